//! A range of bytes behind another key: what a KLM names.

use bareverbs_mlx5_spec::{Layout, View, ViewMut, WqeKlm};

/// Bytes behind another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct KeyRange {
    pub(in crate::engine) len: u64,
    pub(in crate::engine) key: u32,
    pub(in crate::engine) addr: u64,
}

impl KeyRange {
    /// Returns the range from byte `at` of this one on, `None` if that is beyond all addresses.
    pub(super) fn from(self, at: u64) -> Option<Self> {
        Some(Self { len: self.len.saturating_sub(at), addr: self.addr.checked_add(at)?, ..self })
    }

    pub(super) fn from_klm(klm: View<'_, WqeKlm>) -> Self {
        let len = u64::from(klm.get(WqeKlm::BYTE_COUNT));
        Self { len, key: klm.get(WqeKlm::MKEY), addr: klm.get64(WqeKlm::ADDRESS) }
    }

    pub(super) fn to_raw(self) -> [u8; WqeKlm::SIZE] {
        let mut raw = [0; WqeKlm::SIZE];
        ViewMut::<WqeKlm>::of(&mut raw)
            .set(WqeKlm::BYTE_COUNT, self.len as u32)
            .set(WqeKlm::MKEY, self.key)
            .set64(WqeKlm::ADDRESS, self.addr);
        raw
    }
}

/// Returns the ranges that bytes up to `len` reach, of ranges that begin at byte `start`.
pub(in crate::engine) fn covering(
    ranges: impl Iterator<Item = KeyRange>,
    start: u64,
    len: u64,
) -> impl Iterator<Item = KeyRange> {
    let mut at = start;
    let clipped = ranges.map_while(move |range| {
        let rest = len.checked_sub(at).filter(|rest| *rest != 0)?;
        at = at.saturating_add(range.len);
        Some(KeyRange { len: range.len.min(rest), ..range })
    });
    clipped.filter(|range| range.len != 0)
}
