//! User memory objects: memory that programs hand to the device by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use bareverbs_mlx5_spec::CmdStatus;

use crate::registry::{ObjectKind, Owner, Registry, Resource};

/// Memory of a program: pages of one size and where it begins in the first.
#[derive(Clone, Debug)]
struct Umem {
    pages: Arc<[u64]>,
    log_page: u32,
    offset: u64,
}

/// User memory from a byte of it on, in which something lies. Its pages are the object's own: nothing is copied.
#[derive(Clone, Debug)]
pub(crate) struct UmemRange {
    number: u32,
    pages: Arc<[u64]>,
    log_page: u32,
    start: u64,
}

impl UmemRange {
    /// Returns the number of the object.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Returns the bytes there are.
    pub(crate) fn len(&self) -> u64 {
        ((self.pages.len() as u64) << self.log_page).saturating_sub(self.start)
    }

    /// Returns the device address of byte `at`, and how many bytes follow it in the same page.
    pub(crate) fn locate(&self, at: u64) -> Option<(u64, u64)> {
        let at = self.start.checked_add(at)?;
        let (page_len, within) = (1_u64 << self.log_page, at & ((1 << self.log_page) - 1));
        let page = self.pages.get(usize::try_from(at >> self.log_page).ok()?)?;
        Some((page.checked_add(within)?, page_len - within))
    }
}

/// The user memory objects of a device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Umems {
    umems: BTreeMap<u32, Umem>,
}

impl Umems {
    /// Takes a user memory object: `count` pages of `4096 << log_page_size` bytes, of which `list` has the addresses in wire
    /// order, and the byte of the first where it begins.
    pub(crate) fn create(
        &mut self,
        registry: &mut Registry,
        (list, count): (&[u8], u64),
        log_page_size: u32,
        offset: u32,
    ) -> Result<u32, CmdStatus> {
        let log_page = log_page_size + 12;
        if log_page > 40 || count == 0 || u64::from(offset) >= 1 << log_page {
            return Err(CmdStatus::BadParam);
        }
        let bytes = usize::try_from(count).ok().and_then(|count| count.checked_mul(8));
        let list = bytes.and_then(|bytes| list.get(..bytes)).ok_or(CmdStatus::BadInputLen)?;
        // The low bits of an entry say what the device may do with the page.
        let pages = list.as_chunks::<8>().0.iter().map(|page| u64::from_be_bytes(*page) & !0xfff);
        if pages.clone().any(|address| address & ((1 << log_page) - 1) != 0) {
            return Err(CmdStatus::BadParam);
        }
        let number = registry.create(ObjectKind::Umem, count * 8, Vec::new())?;
        self.umems.insert(number, Umem { pages: pages.collect(), log_page, offset: offset.into() });
        Ok(number)
    }

    /// Ends a user memory object; refused while an object lies in it.
    pub(crate) fn destroy(&mut self, registry: &mut Registry, number: u32) -> Result<(), CmdStatus> {
        registry.destroy(Resource::umem(number))?;
        self.umems.remove(&number);
        Ok(())
    }

    /// Returns the user memory from byte `at` of an object on, that a command for `owner` names.
    pub(crate) fn range(&self, registry: &Registry, owner: Owner, number: u32, at: u64) -> Result<UmemRange, CmdStatus> {
        let umem = self.umems.get(&number).filter(|_| registry.may_name(owner, Resource::umem(number)));
        let umem = umem.ok_or(CmdStatus::BadRes)?;
        let start = umem.offset.checked_add(at).ok_or(CmdStatus::BadParam)?;
        Ok(UmemRange { number, pages: Arc::clone(&umem.pages), log_page: umem.log_page, start })
    }

    /// Returns the device address of the `len` bytes at byte `at` of an object, which lie in one page.
    pub(crate) fn address(
        &self,
        registry: &Registry,
        owner: Owner,
        number: u32,
        (at, len): (u64, u64),
    ) -> Result<u64, CmdStatus> {
        let place = self.range(registry, owner, number, at)?.locate(0);
        place.filter(|&(_, room)| len <= room).map(|(address, _)| address).ok_or(CmdStatus::BadParam)
    }

    /// Returns a queue at byte `at` of an object, and where it begins in a page of 4096 bytes, in 64ths.
    pub(crate) fn queue(&self, registry: &Registry, owner: Owner, number: u32, at: u64) -> Result<(UmemRange, u32), CmdStatus> {
        let range = self.range(registry, owner, number, at)?;
        if !range.start.is_multiple_of(64) || range.len() == 0 {
            return Err(CmdStatus::BadParam);
        }
        let page_offset = (range.start & 0xfff) / 64;
        Ok((range, page_offset as u32))
    }

    /// Returns the pages of `1 << log_page` bytes of a region of `len` bytes that begins at byte `at` of an object and at
    /// `within` of its first page.
    pub(crate) fn region(
        &self,
        registry: &Registry,
        owner: Owner,
        (number, at): (u32, u64),
        (log_page, within): (u32, u64),
        len: u64,
    ) -> Result<UmemRange, CmdStatus> {
        let mut range = self.range(registry, owner, number, at)?;
        if !(12..=range.log_page).contains(&log_page) || range.start & ((1 << log_page) - 1) != within {
            return Err(CmdStatus::BadParam);
        }
        range.start -= within;
        let pages = within.checked_add(len).ok_or(CmdStatus::BadParam)?.div_ceil(1 << log_page);
        if pages > range.len() >> log_page { Err(CmdStatus::BadParam) } else { Ok(range) }
    }
}
