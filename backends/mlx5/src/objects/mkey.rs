//! Memory keys: regions with their page lists, windows.

use bareverbs::{Access, AddressMap, Lkey, MrRequest, MwType, Platform, Rkey};
use bareverbs_mlx5_spec::{AccessMode, CmdOpcode, CreateMkeyIn, INVALID_LKEY, Layout, MKEY_ANY_QPN, Mkc, OCTWORD, ViewMut};

use crate::command::late::{ObjectMemory, PendingDestroy};
use crate::driver::Driver;
use crate::error::{Error, Feature};
use crate::objects::pd::Pd;

/// Octowords of a window's translation: one KLM, in the 64 bytes that a bind writes.
const WINDOW_OCTWORDS: u32 = 4;
/// Least and greatest log2 of a page of a page list.
const LOG_PAGE: core::ops::RangeInclusive<u32> = 12..=31;

/// A memory region of this backend.
#[derive(Debug)]
pub struct Mr {
    index: u32,
    destroy: PendingDestroy,
}

/// A memory window of this backend.
#[derive(Debug)]
pub struct Mw {
    index: u32,
    destroy: PendingDestroy,
}

/// The pages of a region: the largest that its map allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pages {
    log_size: u32,
    count: u64,
}

/// Finds the largest page size at which the region is a list of aligned pages.
fn pages(request: &MrRequest<'_>) -> Result<Pages, Error> {
    let MrRequest { addr, length, map, .. } = *request;
    let smallest = map.page_size();
    let log_smallest = smallest.trailing_zeros();
    if !smallest.is_power_of_two() || log_smallest < *LOG_PAGE.start() {
        return Err(Error::Misaligned { addr: smallest });
    }
    if length == 0 {
        return Ok(Pages { log_size: *LOG_PAGE.start(), count: 0 });
    }
    let last = addr.checked_add(length - 1).ok_or(Error::Unmapped { addr })?;
    // A bit is set in `unlike` if pages of that size, or larger, would not do.
    let mut unlike = 0;
    let mut expected = None;
    let mut at = addr;
    loop {
        let device = map.device_addr(at).ok_or(Error::Unmapped { addr: at })?;
        match expected {
            None => unlike |= at ^ device,
            Some(expected) if expected == device => {}
            Some(_) => unlike |= at | (at ^ device),
        }
        let step = smallest - (at & (smallest - 1));
        expected = Some(device.wrapping_add(step));
        match at.checked_add(step) {
            Some(next) if next <= last => at = next,
            _ => break,
        }
    }
    if unlike.trailing_zeros() < log_smallest {
        return Err(Error::Misaligned { addr });
    }
    // No larger than what covers the whole region.
    let cover = u64::BITS - (addr ^ last).leading_zeros();
    let log_size = unlike.trailing_zeros().min(cover).clamp(*LOG_PAGE.start(), *LOG_PAGE.end());
    Ok(Pages { log_size, count: (last >> log_size) - (addr >> log_size) + 1 })
}

/// Device address of page `index` of a region.
fn page_addr(map: &dyn AddressMap, addr: u64, log_size: u32, index: u64) -> Option<u64> {
    let page = (addr >> log_size).wrapping_add(index) << log_size;
    let device = map.device_addr(page.max(addr))?;
    Some(device & (u64::MAX << log_size))
}

impl<P: Platform> Driver<P> {
    /// Makes a region.
    pub(crate) fn create_mr(&mut self, pd: &Pd, request: &MrRequest<'_>) -> Result<(Mr, Lkey, Rkey), Error> {
        let access = request.access;
        if access.contains(Access::REMOTE_ATOMIC) && !self.caps.atomics {
            return Err(Error::Unsupported(Feature::Atomics));
        }
        if access.contains(Access::MW_BIND) && !self.caps.windows {
            return Err(Error::Unsupported(Feature::MemoryWindows));
        }
        if access.contains(Access::RELAXED_ORDERING) && !self.caps.relaxed_write && !self.caps.relaxed_read {
            return Err(Error::Unsupported(Feature::RelaxedOrdering));
        }
        if !Access::KNOWN.contains(access) {
            return Err(Error::Unsupported(Feature::AccessFlag));
        }
        let Pages { log_size, count } = pages(request)?;
        let start = if access.contains(Access::ZERO_BASED) { 0 } else { request.addr };
        if (start ^ request.addr) & ((1 << log_size) - 1) != 0 && count != 0 {
            // The device has no offset into the first page other than the low bits of the start.
            return self.create_zero_based(pd, request, log_size);
        }
        self.create_mtt(pd, request, start, log_size, count)
    }

    /// A zero-based region can be a page list only if it starts with a page; smaller pages may do.
    fn create_zero_based(&mut self, pd: &Pd, request: &MrRequest<'_>, log_size: u32) -> Result<(Mr, Lkey, Rkey), Error> {
        let log_size = request.addr.trailing_zeros().min(log_size);
        if log_size < *LOG_PAGE.start() || 1 << log_size < request.map.page_size() {
            return Err(Error::Misaligned { addr: request.addr });
        }
        let count = ((request.length - 1) >> log_size) + 1;
        self.create_mtt(pd, request, 0, log_size, count)
    }

    fn create_mtt(
        &mut self,
        pd: &Pd,
        request: &MrRequest<'_>,
        start: u64,
        log_size: u32,
        count: u64,
    ) -> Result<(Mr, Lkey, Rkey), Error> {
        let access = request.access;
        let limit = u64::from(u32::MAX / OCTWORD as u32);
        let entries =
            u32::try_from(count).ok().filter(|_| count <= limit).ok_or(Error::LimitExceeded { requested: count, limit })?;
        let octwords = entries.div_ceil(2);
        let flag = |flag| u32::from(access.contains(flag));
        let relaxed = flag(Access::RELAXED_ORDERING);
        let mut input = [0; CreateMkeyIn::SIZE];
        let mut view = ViewMut::<CreateMkeyIn>::of(&mut input);
        view.set(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, octwords);
        view.sub(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY)
            .set(Mkc::A, flag(Access::REMOTE_ATOMIC))
            .set(Mkc::RW, flag(Access::REMOTE_WRITE))
            .set(Mkc::RR, flag(Access::REMOTE_READ))
            .set(Mkc::LW, flag(Access::LOCAL_WRITE))
            .set(Mkc::LR, 1)
            .set(Mkc::RELAXED_ORDERING_WRITE, relaxed & u32::from(self.caps.relaxed_write))
            .set(Mkc::RELAXED_ORDERING_READ, relaxed & u32::from(self.caps.relaxed_read))
            .set(Mkc::ACCESS_MODE_1_0, AccessMode::Mtt.code())
            .set(Mkc::QPN, MKEY_ANY_QPN)
            .set(Mkc::MKEY_7_0, u32::from(request.key))
            .set(Mkc::PD, pd.number)
            .set64(Mkc::START_ADDR, start)
            .set64(Mkc::LEN, request.length)
            .set(Mkc::TRANSLATIONS_OCTWORD_SIZE, octwords)
            .set(Mkc::LOG_PAGE_SIZE, log_size);
        let mut missing = None;
        let map = request.map;
        let mut list = (0..count).map(|index| {
            page_addr(map, request.addr, log_size, index).unwrap_or_else(|| {
                missing = Some(request.addr);
                0
            })
        });
        // The list is whole octowords: an odd last one is filled up with a zero.
        let index = self.create_mkey(&input, &mut list, octwords as usize * 2)?;
        if let Some(addr) = missing {
            self.destroy_for_good(CmdOpcode::DestroyMkey, index, ObjectMemory::default())?;
            return Err(Error::Unmapped { addr });
        }
        let key = index << 8 | u32::from(request.key);
        Ok((Mr { index, destroy: PendingDestroy::NONE }, Lkey::new(key), Rkey::new(key)))
    }

    /// Destroys a region.
    pub(crate) fn destroy_mr(&mut self, mr: &mut Mr) -> Result<(), Error> {
        self.destroy_mkey(mr.index, &mut mr.destroy)
    }

    /// Makes an unbound window: a free key of one KLM.
    pub(crate) fn create_mw(&mut self, pd: &Pd, kind: MwType) -> Result<(Mw, Rkey), Error> {
        if !self.caps.windows {
            return Err(Error::Unsupported(Feature::MemoryWindows));
        }
        let mut input = [0; CreateMkeyIn::SIZE];
        ViewMut::<CreateMkeyIn>::of(&mut input)
            .sub(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY)
            .set(Mkc::FREE, 1)
            .set(Mkc::UMR_EN, 1)
            .set(Mkc::LR, 1)
            .set(Mkc::ACCESS_MODE_1_0, AccessMode::Klms.code())
            .set(Mkc::QPN, MKEY_ANY_QPN)
            .set(Mkc::EN_RINVAL, u32::from(kind == MwType::Type2))
            .set(Mkc::PD, pd.number)
            .set(Mkc::TRANSLATIONS_OCTWORD_SIZE, WINDOW_OCTWORDS);
        let index = self.create_mkey(&input, &mut core::iter::empty(), 0)?;
        Ok((Mw { index, destroy: PendingDestroy::NONE }, Rkey::new(index << 8)))
    }

    /// Destroys a window.
    pub(crate) fn destroy_mw(&mut self, mw: &mut Mw) -> Result<(), Error> {
        self.destroy_mkey(mw.index, &mut mw.destroy)
    }

    fn create_mkey(
        &mut self,
        input: &[u8; CreateMkeyIn::SIZE],
        list: &mut dyn Iterator<Item = u64>,
        len: usize,
    ) -> Result<u32, Error> {
        let index = self.create(CmdOpcode::CreateMkey, input, list, len, ObjectMemory::default())?;
        // Index 0 is no key, and index 1 holds the key that ends a receive list.
        if index <= INVALID_LKEY >> 8 {
            return Err(Error::BadAnswer { opcode: CmdOpcode::CreateMkey.code() as u16, value: index });
        }
        Ok(index)
    }

    fn destroy_mkey(&mut self, index: u32, pending: &mut PendingDestroy) -> Result<(), Error> {
        self.destroy(CmdOpcode::DestroyMkey, index, pending)
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use bareverbs::OffsetMap;

    use super::*;

    /// Pages of 4096 bytes at any device address.
    struct Scattered<'a> {
        base: u64,
        pages: &'a [u64],
    }

    impl AddressMap for Scattered<'_> {
        fn device_addr(&self, addr: u64) -> Option<u64> {
            let page = self.pages.get(((addr - self.base) / 4096) as usize)?;
            Some(page | addr & 4095)
        }
    }

    fn list(addr: u64, length: u64, map: &dyn AddressMap) -> Result<(u32, Vec<u64>), Error> {
        let request = MrRequest { addr, length, access: Access::empty(), key: 0, map };
        let Pages { log_size, count } = pages(&request)?;
        Ok((log_size, (0..count).map(|index| page_addr(map, addr, log_size, index).unwrap()).collect()))
    }

    #[test]
    fn one_page_covers_what_is_contiguous_and_aligned_alike() {
        let same = OffsetMap { offset: 0 };
        assert_eq!(list(0x10_0000, 0x10_0000, &same), Ok((20, std::vec![0x10_0000])));
        assert_eq!(list(0x10_0004, 8, &same), Ok((12, std::vec![0x10_0000])));
        assert_eq!(list(0x1f_f000, 0x2000, &same), Ok((22, std::vec![0])), "both sides of 2 MiB, in one page of 4 MiB");
        let offset = OffsetMap { offset: 0x3000 };
        assert_eq!(list(0x10_0000, 0x4000, &offset), Ok((12, std::vec![0x10_3000, 0x10_4000, 0x10_5000, 0x10_6000])));
        assert_eq!(list(0x1000, 0, &same), Ok((12, std::vec![])));
        assert_eq!(list(u64::MAX - 7, 8, &same), Ok((12, std::vec![!4095])), "the last bytes of all");
        assert_eq!(list(u64::MAX - 7, 9, &same), Err(Error::Unmapped { addr: u64::MAX - 7 }));
        assert_eq!(list(0, 1 << 40, &Huge).map(|(log, pages)| (log, pages.len())), Ok((31, 512)));
    }

    /// Contiguous pages of 1 GiB.
    struct Huge;

    impl AddressMap for Huge {
        fn device_addr(&self, addr: u64) -> Option<u64> {
            Some(addr)
        }

        fn page_size(&self) -> u64 {
            1 << 30
        }
    }

    #[test]
    fn scattered_pages_are_listed_in_the_largest_size_that_fits() {
        let base = 0x7000_0000;
        let map = Scattered { base, pages: &[0x9000_0000, 0x9000_1000, 0x5000_2000, 0x5000_3000] };
        assert_eq!(list(base, 0x4000, &map), Ok((13, std::vec![0x9000_0000, 0x5000_2000])));
        assert_eq!(list(base + 0x10, 0x2ff0, &map), Ok((13, std::vec![0x9000_0000, 0x5000_2000])));
        let map = Scattered { base, pages: &[0x9000_1000, 0x9000_0000] };
        assert_eq!(list(base, 0x2000, &map), Ok((12, std::vec![0x9000_1000, 0x9000_0000])));
        assert_eq!(list(base, 0x2001, &map), Err(Error::Unmapped { addr: base + 0x2000 }));
        assert_eq!(list(base, 0x1000, &OffsetMap { offset: 8 }), Err(Error::Misaligned { addr: base }));
    }
}
