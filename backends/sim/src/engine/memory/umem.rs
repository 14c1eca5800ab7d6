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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::PageSource;
    use crate::engine::ring::Pages;
    use crate::limits::Limits;
    use crate::registry::FIXED;

    const KERNEL: Owner = Owner::KERNEL;

    /// Returns an object of three pages of 64 KiB, which do not follow each other, from byte `offset` of the first on.
    fn object(offset: u32) -> (Umems, Registry, u32) {
        let (mut umems, mut registry) = (Umems::default(), Registry::new(&Limits::default(), FIXED + (1 << 20)));
        // The low bits of an entry say that the device may read and write.
        let list = [0x50_0003_u64, 0x10_0003, 0x90_0003].map(u64::to_be_bytes).concat();
        let number = umems.create(&mut registry, (&list, 3), 4, offset).unwrap();
        (umems, registry, number)
    }

    #[test]
    fn an_object_needs_pages_of_its_size_and_begins_in_the_first() {
        let (mut umems, mut registry, _) = object(0);
        let mut create = |list: &[u64], count, log_page_size, offset| {
            let raw = list.iter().flat_map(|page| page.to_be_bytes()).collect::<Vec<_>>();
            umems.create(&mut registry, (&raw, count), log_page_size, offset).err()
        };
        let bad = Some(CmdStatus::BadParam);
        assert_eq!(create(&[0x1000, 0x3000], 2, 0, 4095), None);
        assert_eq!(create(&[0x1000], 1, 0, 4096), bad, "behind the first page");
        assert_eq!(create(&[], 0, 0, 0), bad);
        assert_eq!(create(&[0x1000], 2, 0, 0), Some(CmdStatus::BadInputLen));
        assert_eq!(create(&[0x4000, 0x2000], 2, 1, 0), None);
        assert_eq!(create(&[0x4000, 0x3000], 2, 1, 0), bad, "the second is at half a page");
        assert_eq!(create(&[0], 1, 28, 0), None);
        assert_eq!(create(&[0], 1, 29, 0), bad);
    }

    #[test]
    fn bytes_lie_in_the_pages_in_their_order() {
        let (umems, registry, number) = object(0x8000);
        let range = umems.range(&registry, KERNEL, number, 0x1000).unwrap();
        assert_eq!((range.number(), range.len()), (number, 3 * 0x1_0000 - 0x9000));
        assert_eq!(range.locate(0), Some((0x50_9000, 0x7000)));
        assert_eq!(range.locate(0x6fff), Some((0x50_ffff, 1)));
        assert_eq!(range.locate(0x7000), Some((0x10_0000, 0x1_0000)));
        assert_eq!(range.locate(range.len() - 1), Some((0x90_ffff, 1)));
        assert_eq!((range.locate(range.len()), range.locate(u64::MAX)), (None, None));
        // What must lie in one page.
        let address = |at, len| umems.address(&registry, KERNEL, number, (at, len));
        assert_eq!(address(0x7ff8, 8), Ok(0x50_fff8));
        assert_eq!(address(0x7ff9, 8), Err(CmdStatus::BadParam));
        assert_eq!(umems.range(&registry, KERNEL, number + 1, 0).err(), Some(CmdStatus::BadRes));
    }

    #[test]
    fn a_queue_begins_at_a_64th_of_a_page_inside_the_object() {
        let (umems, registry, number) = object(0);
        let queue = |at| umems.queue(&registry, KERNEL, number, at).map(|(range, offset)| (range.len(), offset));
        assert_eq!(queue(0x1_1fc0), Ok((0x1_e040, 63)));
        assert_eq!(queue(0x2_0000), Ok((0x1_0000, 0)));
        assert_eq!(queue(0x2_ffc0), Ok((64, 63)));
        for refused in [32, 0x3_0000, u64::MAX] {
            assert_eq!(queue(refused), Err(CmdStatus::BadParam), "{refused:#x}");
        }
    }

    /// A ring in user memory reaches as far as the object.
    #[test]
    fn a_ring_must_fit_into_what_is_left_of_the_object() {
        let (umems, registry, number) = object(0);
        let plan = |len| {
            let (range, _) = umems.queue(&registry, KERNEL, number, 0x2_0000).unwrap();
            Pages::plan(PageSource::Umem(range), 0, 0, len).map(|plan| plan.umem())
        };
        assert_eq!(plan(0x1_0000), Ok(Some(Resource::umem(number))));
        assert_eq!(plan(64), Ok(Some(Resource::umem(number))));
        assert_eq!(plan(0x1_0001).err(), Some(CmdStatus::BadParam));
        // A list of pages has as many as the ring needs, from its first byte on.
        let listed = |pages: &[u8], offset, len| Pages::plan(PageSource::Listed(pages), 0, offset, len).is_ok();
        assert!(listed(&[0; 16], 0, 8192) && listed(&[0; 16], 63, 8192 - 63 * 64));
        assert!(!listed(&[0; 16], 0, 8193) && !listed(&[0; 16], 63, 8192 - 63 * 64 + 1) && !listed(&[0; 15], 0, 8192));
    }

    /// A region may have smaller pages than its object, and begins as far in the first as it says.
    #[test]
    fn a_region_has_its_pages_in_the_object() {
        let (umems, registry, number) = object(0x1000);
        let region = |at, log_page, within, len| {
            umems.region(&registry, KERNEL, (number, at), (log_page, within), len).map(|range| range.locate(0).unwrap().0)
        };
        // Its first page, in which it begins at `within`.
        assert_eq!(region(0x234, 12, 0x234, 100), Ok(0x50_1000));
        assert_eq!(region(0x234, 16, 0x1234, 100), Ok(0x50_0000));
        assert_eq!(region(0xf000, 12, 0, 0x1000), Ok(0x10_0000));
        assert_eq!(region(0x1_f123, 16, 0x123, 0xfedd), Ok(0x90_0000), "to the last byte");
        let bad = Err(CmdStatus::BadParam);
        assert_eq!(region(0x1_f123, 16, 0x123, 0xfede), bad, "one byte more");
        assert_eq!(region(0x234, 12, 0x235, 100), bad);
        assert_eq!((region(0, 11, 0, 100), region(0, 17, 0x1000, 100)), (bad, bad), "sizes of pages");
        assert_eq!(region(0, 12, 0, u64::MAX), bad);
    }

    #[test]
    fn an_object_in_which_something_lies_stays() {
        let (mut umems, mut registry, number) = object(0);
        let queue = Resource::cq(registry.create(ObjectKind::Cq, 0, vec![Resource::umem(number)]).unwrap());
        assert_eq!(umems.destroy(&mut registry, number), Err(CmdStatus::BadResState));
        assert!(umems.range(&registry, KERNEL, number, 0).is_ok());
        registry.destroy(queue).unwrap();
        assert!(registry.memory_used() >= FIXED + 24, "three pages are listed");
        assert_eq!(umems.destroy(&mut registry, number), Ok(()));
        assert_eq!(registry.memory_used(), FIXED);
        assert_eq!(umems.range(&registry, KERNEL, number, 0).err(), Some(CmdStatus::BadRes));
        assert_eq!(umems.destroy(&mut registry, number), Err(CmdStatus::BadRes));
    }
}
