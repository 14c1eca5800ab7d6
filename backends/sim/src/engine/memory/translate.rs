//! Translation of a key and an address in it to extents of memory, through indirect keys.

use bareverbs_mlx5_spec::{AccessMode, Mkc};

use crate::engine::memory::key::{Access, KeyError, KeyTable, MIN_LOG_PAGE, Mkey, Right};
use crate::engine::memory::key_range::KeyRange;
use crate::step::StepContext;

/// Keys inside keys are followed this deep.
const MAX_DEPTH: u32 = 4;
/// Extents of one translation, at most.
const MAX_EXTENTS: usize = 8192;
/// Contiguous memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Extent {
    /// In the device, at this place in BAR0; otherwise in the host's memory, at this device address.
    in_device: bool,
    pub(in crate::engine) addr: u64,
    pub(in crate::engine) len: usize,
}

impl KeyTable {
    /// Appends to `out` the host memory of `len` bytes at `addr` of `key`, checked all the way down.
    pub(in crate::engine) fn translate(
        &self,
        key: u32,
        addr: u64,
        len: usize,
        access: Access,
        out: &mut Vec<Extent>,
    ) -> Result<(), KeyError> {
        self.translate_at(key, addr, len as u64, access, MAX_DEPTH, out)
    }

    fn translate_at(
        &self,
        key: u32,
        addr: u64,
        len: u64,
        access: Access,
        depth: u32,
        out: &mut Vec<Extent>,
    ) -> Result<(), KeyError> {
        if len == 0 {
            return Ok(());
        }
        let mkey = self.open(key, access)?;
        if !mkey.allows(access.right) {
            return Err(KeyError::Right);
        }
        let offset = mkey.offset(addr, len)?;
        let mut push = |addr: u64, len: u64| {
            if out.len() >= MAX_EXTENTS {
                return Err(KeyError::Translation);
            }
            let in_device = mkey.mode() == Some(AccessMode::Memic);
            out.push(Extent { in_device, addr, len: usize::try_from(len).map_err(|_| KeyError::Range)? });
            Ok(())
        };
        match mkey.mode() {
            Some(AccessMode::Pa) => push(addr, len),
            Some(AccessMode::Memic) => push(mkey.context().get64(Mkc::START_ADDR).saturating_add(offset), len),
            Some(AccessMode::Mtt) => {
                let context = mkey.context();
                let log_page = context.get(Mkc::LOG_PAGE_SIZE);
                if !(MIN_LOG_PAGE..=40).contains(&log_page) {
                    return Err(KeyError::Translation);
                }
                let page = 1u64 << log_page;
                let within_first = context.get64(Mkc::START_ADDR) & (page - 1);
                let mut at = within_first.checked_add(offset).ok_or(KeyError::Range)?;
                let end = at.checked_add(len).ok_or(KeyError::Range)?;
                while at < end {
                    let within = at & (page - 1);
                    let part = (page - within).min(end - at);
                    let base = mkey.page(at >> log_page)?;
                    push(base.checked_add(within).ok_or(KeyError::Translation)?, part)?;
                    at += part;
                }
                Ok(())
            }
            Some(mode @ (AccessMode::Klms | AccessMode::Ksm)) => {
                let depth = depth.checked_sub(1).ok_or(KeyError::Translation)?;
                self.translate_indirect(mkey, mode, offset, len, access, depth, out)
            }
            _ => Err(KeyError::Translation),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one step of a recursion that carries its whole state")]
    fn translate_indirect(
        &self,
        mkey: &Mkey,
        mode: AccessMode,
        offset: u64,
        len: u64,
        access: Access,
        depth: u32,
        out: &mut Vec<Extent>,
    ) -> Result<(), KeyError> {
        // An indirect key alone decides what a peer may do. The key that it refers to must allow local access only: so a window
        // opens a region without remote access.
        let right = match access.right {
            Right::LocalRead | Right::RemoteRead => Right::LocalRead,
            Right::LocalWrite | Right::RemoteWrite | Right::RemoteAtomic => Right::LocalWrite,
        };
        let inner = Access { right, ..access };
        let (mut at, end) = (offset, offset.checked_add(len).ok_or(KeyError::Range)?);
        let entry_len = 1u64.checked_shl(mkey.context().get(Mkc::LOG_PAGE_SIZE)).unwrap_or(0);
        while at < end {
            let klms = mkey.klms();
            let range = if mode == AccessMode::Klms {
                klms.and_then(|klms| klms.locate(at))
            } else {
                let (index, within) = (at.checked_div(entry_len), at.checked_rem(entry_len));
                let entry = index.zip(klms).and_then(|(index, klms)| klms.entry(index));
                entry.zip(within).and_then(|(range, within)| {
                    Some(KeyRange { len: entry_len - within, addr: range.addr.checked_add(within)?, ..range })
                })
            };
            let range = range.filter(|range| range.len != 0).ok_or(KeyError::Translation)?;
            let part = range.len.min(end - at);
            self.translate_at(range.key, range.addr, part, inner, depth, out)?;
            at += part;
        }
        Ok(())
    }

    /// Reads bytes through a key.
    pub(in crate::engine) fn read(
        &self,
        ctx: &StepContext<'_>,
        (key, addr): (u32, u64),
        access: Access,
        into: &mut [u8],
    ) -> Result<(), KeyError> {
        let mut extents = Vec::new();
        self.translate(key, addr, into.len(), access, &mut extents)?;
        let mut rest = into;
        for extent in extents {
            let (part, tail) = rest.split_at_mut_checked(extent.len).ok_or(KeyError::Range)?;
            if extent.in_device {
                ctx.meter.access(part.len());
                self.device.read(extent.addr, part);
            } else {
                ctx.memory.read(extent.addr, part)?;
            }
            rest = tail;
        }
        Ok(())
    }

    /// Writes bytes through a key; nothing is written unless all of them may be.
    pub(in crate::engine) fn write(
        &self,
        ctx: &StepContext<'_>,
        (key, addr): (u32, u64),
        access: Access,
        from: &[u8],
    ) -> Result<(), KeyError> {
        let mut extents = Vec::new();
        self.translate(key, addr, from.len(), access, &mut extents)?;
        let mut rest = from;
        for extent in extents {
            let (part, tail) = rest.split_at_checked(extent.len).ok_or(KeyError::Range)?;
            if extent.in_device {
                ctx.meter.access(part.len());
                self.device.write(extent.addr, part);
            } else {
                ctx.memory.write(extent.addr, part)?;
            }
            rest = tail;
        }
        Ok(())
    }
}
