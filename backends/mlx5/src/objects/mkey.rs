//! Memory keys: regions with their page lists, windows.

use bareverbs::backend::MrRequest;
use bareverbs::error::DeviceError as _;
use bareverbs::platform::{AddressMap, Extent, Platform};
use bareverbs::{Access, KeyTag, Lkey, MwType, Rkey};
use bareverbs_mlx5_spec::{
    AccessMode, Buffer, CmdOpcode, CreateMkeyIn, INVALID_LKEY, MKEY_ANY_QPN, Mkc, OCTOWORD, QueryMkeyIn, QueryMkeyOut, WQEBB,
    WqeKlm, cmd,
};

use crate::dma::arena::ObjectMemory;
use crate::driver::Driver;
use crate::error::{Error, Feature};
use crate::log::{format_as, log_event};
use crate::object::Object;

/// Octowords of a window's translation: one KLM, in the 64 bytes that a bind writes.
const WINDOW_OCTOWORDS: u32 = 4;
/// Minimum and maximum log2 of a page of a page list.
const LOG_PAGE: core::ops::RangeInclusive<u32> = 12..=31;
/// Maximum bytes of one entry of an indirect key.
const KLM_REACH: u64 = 1 << 30;
/// Octowords of a translation are counted in blocks of this many.
const OCTOWORD_BLOCK: u32 = 4;

/// A memory region of this backend.
pub struct Mr {
    index: u32,
    /// The key that callers use, if the region needs one of its own over the page list.
    indirect: Option<u32>,
}

format_as!([] Mr, "Mr({:x}, over another key: {})", |this| this.index, this.indirect.is_some());

/// The state of a key, as QUERY_MKEY reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct MkeyState {
    /// Low byte of the key.
    pub tag: KeyTag,
    /// Whether the key grants no access: a window that is not bound.
    pub free: bool,
    /// First address to which it grants access.
    pub start: u64,
    /// Number of bytes to which it grants access.
    pub length: u64,
}

/// Looks addresses up in a map, and caches the last extent.
struct Walk<'a> {
    map: &'a dyn AddressMap,
    at: u64,
    extent: Extent,
}

impl<'a> Walk<'a> {
    const fn new(map: &'a dyn AddressMap) -> Self {
        Self { map, at: 0, extent: Extent { device_addr: 0, len: 0 } }
    }

    /// Returns the extent from `addr` on.
    fn extent(&mut self, addr: u64) -> Option<Extent> {
        let within = addr.wrapping_sub(self.at);
        if within >= self.extent.len {
            self.extent = self.map.extent(addr).filter(|extent| extent.len != 0)?;
            self.at = addr;
            return Some(self.extent);
        }
        Some(Extent { device_addr: self.extent.device_addr.wrapping_add(within), len: self.extent.len - within })
    }
}

/// The pages of a region: the largest that its map allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pages {
    log_size: u32,
    count: u64,
}

impl Pages {
    /// Finds the largest page size at which `length` bytes from `addr` are a list of aligned pages.
    fn find(addr: u64, length: u64, walk: &mut Walk<'_>) -> Result<Self, Error> {
        let smallest = *LOG_PAGE.start();
        if length == 0 {
            return Ok(Self { log_size: smallest, count: 0 });
        }
        let last = addr.checked_add(length - 1).ok_or(Error::Unmapped { page: 0 })?;
        // A bit is set in `unlike` if pages of that size, or larger, would not do.
        let mut unlike = 0;
        let mut expected = None;
        let mut at = addr;
        loop {
            let Extent { device_addr, len } = walk.extent(at).ok_or_else(|| unmapped(at.wrapping_sub(addr)))?;
            match expected {
                None => unlike |= at ^ device_addr,
                Some(expected) if expected == device_addr => {}
                Some(_) => unlike |= at | (at ^ device_addr),
            }
            expected = Some(device_addr.wrapping_add(len));
            match at.checked_add(len) {
                Some(next) if next <= last => at = next,
                _ => break,
            }
        }
        if unlike.trailing_zeros() < smallest {
            return Err(Error::Misaligned);
        }
        // No larger than what covers the whole region.
        let cover = u64::BITS - (addr ^ last).leading_zeros();
        let log_size = unlike.trailing_zeros().min(cover).clamp(smallest, *LOG_PAGE.end());
        Ok(Self { log_size, count: (last >> log_size) - (addr >> log_size) + 1 })
    }

    /// Returns the device address of page `index` of a region that begins at `addr`.
    fn device_addr(self, addr: u64, index: u64, walk: &mut Walk<'_>) -> Option<u64> {
        let page = (addr >> self.log_size).wrapping_add(index) << self.log_size;
        let Extent { device_addr, .. } = walk.extent(page.max(addr))?;
        Some(device_addr & (u64::MAX << self.log_size))
    }
}

impl<P: Platform> Driver<P> {
    /// Returns the tag of the next key: another one each time, so that a destroyed key does not grant access to its successor.
    const fn next_tag(&mut self) -> KeyTag {
        self.key_tag = self.key_tag.next();
        self.key_tag
    }

    pub(crate) fn create_mr(&mut self, pd: &Object, request: &MrRequest<'_>) -> Result<(Mr, Lkey, Rkey), Error> {
        let access = request.access;
        let MrRequest { addr, length, .. } = *request;
        let tag = self.next_tag();
        let mut walk = Walk::new(request.map);
        let mut pages = Pages::find(addr, length, &mut walk)?;
        let mut region = Region { pd: pd.number, access, start: addr, addr, length, tag };
        let within = addr & ((1 << pages.log_size) - 1);
        if access.contains(Access::ZERO_BASED) {
            if length != 0 && addr.trailing_zeros() < *LOG_PAGE.start() {
                return self.create_zero_based(&region, pages, &mut walk);
            }
            if within != 0 && length != 0 {
                // The device takes the offset into the first page from the start address, which is 0: pages that begin there.
                let log_size = addr.trailing_zeros().min(pages.log_size);
                pages = Pages { log_size, count: ((length - 1) >> log_size) + 1 };
            }
            region.start = 0;
        }
        let index = self.create_page_list(&region, pages, &mut walk)?;
        let key = tag.key(index);
        log_event!(debug, "region {:x}: {} pages of 2^{} bytes", key, pages.count, pages.log_size);
        Ok((Mr { index, indirect: None }, Lkey::new(key), Rkey::new(key)))
    }

    /// Registers a zero-based region that does not begin with a page: a key over its addresses, and an indirect key from zero
    /// over that.
    fn create_zero_based(&mut self, region: &Region, pages: Pages, walk: &mut Walk<'_>) -> Result<(Mr, Lkey, Rkey), Error> {
        // The indirect key has the remote rights.
        let local = region.access & (Access::LOCAL_WRITE | Access::RELAXED_ORDERING);
        let inner = Region { access: local, ..*region };
        let index = self.create_page_list(&inner, pages, walk)?;
        let lkey = region.tag.key(index);
        let entries = region.length.div_ceil(KLM_REACH);
        let octowords = octowords(entries)?.next_multiple_of(OCTOWORD_BLOCK);
        let (addr, length) = (region.addr, region.length);
        // Each entry is two 64-bit words. Entries without bytes are zeros.
        let mut list = |index: usize| {
            let done = (index as u64 / 2).saturating_mul(KLM_REACH);
            match length.saturating_sub(done).min(KLM_REACH) {
                0 => 0,
                reach => klm_word(reach as u32, lkey, addr.wrapping_add(done), index),
            }
        };
        match self.create_mkey(&Region { start: 0, ..*region }, Translation::Klms, octowords, &mut list) {
            Ok(outer) => {
                let key = region.tag.key(outer);
                log_event!(debug, "region {:x} from zero over key {:x}", key, lkey);
                Ok((Mr { index, indirect: Some(outer) }, Lkey::new(key), Rkey::new(key)))
            }
            Err(error) => {
                self.undo_mkey(index)?;
                Err(error)
            }
        }
    }

    /// Creates a key over so many octowords, of which a region's follow the input, and returns its index.
    fn create_mkey(
        &mut self,
        region: &Region,
        translation: Translation,
        octowords: u32,
        list: &mut dyn FnMut(usize) -> u64,
    ) -> Result<u32, Error> {
        let (mode, log_page, free, en_rinval, sent) = match translation {
            Translation::Pages(pages) => (AccessMode::Mtt, pages.log_size, false, false, octowords),
            Translation::Klms => (AccessMode::Klms, 0, false, false, octowords),
            Translation::Free(en_rinval) => (AccessMode::Klms, 0, true, en_rinval, 0),
        };
        let flag = |flag| u32::from(region.access.contains(flag));
        let [relaxed_write, relaxed_read] = self.caps.relaxed.map(|offered| flag(Access::RELAXED_ORDERING) & offered);
        let mut input = Buffer::<CreateMkeyIn>::zeroed();
        let mut view = input.view_mut();
        view.set(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, sent);
        view.sub(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY)
            .set(Mkc::FREE, free.into())
            .set(Mkc::UMR_EN, free.into())
            .set(Mkc::ACCESS_MODE_1_0, mode.code())
            .set(Mkc::A, flag(Access::REMOTE_ATOMIC))
            .set(Mkc::RW, flag(Access::REMOTE_WRITE))
            .set(Mkc::RR, flag(Access::REMOTE_READ))
            .set(Mkc::LW, flag(Access::LOCAL_WRITE))
            .set(Mkc::LR, 1)
            .set(Mkc::RELAXED_ORDERING_WRITE, relaxed_write)
            .set(Mkc::RELAXED_ORDERING_READ, relaxed_read)
            .set(Mkc::QPN, MKEY_ANY_QPN)
            .set(Mkc::MKEY_7_0, u32::from(region.tag.0))
            .set(Mkc::EN_RINVAL, en_rinval.into())
            .set(Mkc::PD, region.pd)
            .set64(Mkc::START_ADDR, region.start)
            .set64(Mkc::LEN, region.length)
            .set(Mkc::TRANSLATIONS_OCTWORD_SIZE, octowords)
            .set(Mkc::LOG_PAGE_SIZE, log_page);
        let index = self.commands.execute_with(CmdOpcode::CreateMkey, input.as_bytes(), (sent as usize * 2, list))?;
        // Index 0 is no key, and index 1 is that of the key that ends a receive list.
        if index <= Lkey::new(INVALID_LKEY).index() {
            return Err(Error::BadAnswer { opcode: CmdOpcode::CreateMkey.code() as u16, value: index });
        }
        Ok(index)
    }

    fn create_page_list(&mut self, region: &Region, pages: Pages, walk: &mut Walk<'_>) -> Result<u32, Error> {
        let octowords = octowords(pages.count.div_ceil(2))?;
        let mut missing = None;
        // The list is whole octowords: an odd last one is filled up with a zero.
        let mut list = |index: usize| {
            let index = index as u64;
            if index == pages.count {
                return 0;
            }
            pages.device_addr(region.addr, index, walk).unwrap_or_else(|| {
                missing = Some(index << pages.log_size);
                0
            })
        };
        let index = self.create_mkey(region, Translation::Pages(pages), octowords, &mut list)?;
        if let Some(at) = missing {
            self.undo_mkey(index)?;
            return Err(unmapped(at));
        }
        Ok(index)
    }

    pub(crate) fn destroy_mr(&mut self, mr: &mut Mr) -> Result<(), Error> {
        if let Some(index) = mr.indirect {
            self.destroy_mkey(index)?;
            mr.indirect = None;
        }
        self.destroy_mkey(mr.index)
    }

    /// Creates an unbound window: a free key of one KLM.
    pub(crate) fn create_mw(&mut self, pd: &Object, kind: MwType) -> Result<(Object, Rkey), Error> {
        self.create_free_key(pd, kind == MwType::Type2, WINDOW_OCTOWORDS)
    }

    /// Creates a free key with room for so many pieces, as a request carries them (rdma-core `mlx5dv_create_mkey`).
    pub(crate) fn create_fast_mr(&mut self, pd: &Object, max_sges: u32) -> Result<(Object, Rkey), Error> {
        let limit = max_pieces(self.caps.max_send_wqe);
        if max_sges > limit {
            return Err(Error::LimitExceeded { limit });
        }
        self.create_free_key(pd, true, max_sges.next_multiple_of(OCTOWORD_BLOCK))
    }

    /// Creates a free key of as many KLMs, which a peer may invalidate if `en_rinval`.
    fn create_free_key(&mut self, pd: &Object, en_rinval: bool, octowords: u32) -> Result<(Object, Rkey), Error> {
        if self.attr.max_mw == 0 {
            return Err(Error::Unsupported { feature: Feature::MemoryWindows });
        }
        let tag = self.next_tag();
        let region = Region { pd: pd.number, access: Access::empty(), start: 0, addr: 0, length: 0, tag };
        let index = self.create_mkey(&region, Translation::Free(en_rinval), octowords, &mut |_| 0)?;
        let key = tag.key(index);
        log_event!(debug, "free key {:x} of {} octowords", key, octowords);
        Ok((Object::of::<cmd::DestroyMkey>(index, ObjectMemory::default()), Rkey::new(key)))
    }

    fn destroy_mkey(&mut self, index: u32) -> Result<(), Error> {
        self.end(&Object::of::<cmd::DestroyMkey>(index, ObjectMemory::default()))
    }

    /// Destroys a key that no region has got. The error says whether the device still has the key, and with it the memory.
    fn undo_mkey(&mut self, index: u32) -> Result<(), Error> {
        self.destroy_mkey(index).map_err(|error| {
            log_event!(error, "the device keeps the key with index {:x}: {:?}", index, error);
            if error.may_use_memory() {
                return error;
            }
            Error::BadAnswer { opcode: CmdOpcode::DestroyMkey.code() as u16, value: index }
        })
    }

    pub(crate) fn query_mkey(&mut self, index: u32) -> Result<MkeyState, Error> {
        let output = self.commands.query::<cmd::QueryMkey>(|input| input.set(QueryMkeyIn::MKEY_INDEX, index))?;
        let context = output.view().sub(QueryMkeyOut::MEMORY_KEY_MKEY_ENTRY);
        Ok(MkeyState {
            tag: KeyTag::of(context.get(Mkc::MKEY_7_0)),
            free: context.is_set(Mkc::FREE),
            start: context.get64(Mkc::START_ADDR),
            length: context.get64(Mkc::LEN),
        })
    }

    /// Returns the current key of a window, and whether it may be bound. After a reset of its queue pair only this shows whether a
    /// bind was executed.
    pub(crate) fn query_mw(&mut self, mw: &Object) -> Result<(Rkey, bool), Error> {
        let state = self.query_mkey(mw.number)?;
        Ok((Rkey::new(state.tag.key(mw.number)), !state.free))
    }
}

/// Returns the pieces that a registration may carry in a request of so many bytes, in whole blocks.
const fn max_pieces(max_send_wqe: u32) -> u32 {
    max_send_wqe.saturating_sub(2 * WQEBB as u32) / WQEBB as u32 * OCTOWORD_BLOCK
}

#[derive(Clone, Copy)]
struct Region {
    pd: u32,
    access: Access,
    /// First address by which the key is used.
    start: u64,
    /// First address for the map.
    addr: u64,
    length: u64,
    tag: KeyTag,
}

/// What a key translates addresses by.
#[derive(Clone, Copy)]
enum Translation {
    Pages(Pages),
    /// A list of pieces under other keys.
    Klms,
    /// Such a list, to which a request binds the key; `true` if a peer may end that.
    Free(bool),
}

/// Returns the error of a region whose byte `at` has no device address.
fn unmapped(at: u64) -> Error {
    Error::Unmapped { page: u32::try_from(at >> LOG_PAGE.start()).unwrap_or(u32::MAX) }
}

/// Returns the number of octowords, if a command can carry it.
fn octowords(count: u64) -> Result<u32, Error> {
    let limit = u32::MAX / OCTOWORD as u32;
    let within = u32::try_from(count).ok().filter(|count| *count <= limit);
    within.ok_or(Error::LimitExceeded { limit })
}

/// Returns an entry of an indirect key: its first 64-bit word, or with an odd `index` its second.
fn klm_word(byte_count: u32, key: u32, addr: u64, index: usize) -> u64 {
    const { assert!(WqeKlm::BYTE_COUNT.dword() == 0 && WqeKlm::MKEY.dword() == 4 && WqeKlm::ADDRESS.offset() == 8) };
    let [low, high] = [WqeKlm::MKEY.place(key), WqeKlm::BYTE_COUNT.place(byte_count)].map(u64::from);
    if index.is_multiple_of(2) { high << 32 | low } else { addr }
}

#[cfg(test)]
mod tests {
    use core::cell::{Cell, RefCell};
    use std::rc::Rc;
    use std::vec::Vec;

    use bareverbs_mlx5_spec::CmdStatus;

    use super::*;
    use crate::tests::mock::{MockPlatform, acknowledge, opcode_of, respond, started};

    /// `struct mlx5_klm` of Linux's `mlx5/device.h`: byte count, key, address.
    #[test]
    fn an_entry_of_an_indirect_key_has_two_words() {
        let word = |index| klm_word(0x8000_1000, 0x1234_5678, 0x7f00_0000_1000, index);
        assert_eq!([0, 1, 2, 3].map(word), [0x8000_1000_1234_5678, 0x7f00_0000_1000, 0x8000_1000_1234_5678, 0x7f00_0000_1000]);
    }

    /// Pages of 4096 bytes at any device address.
    struct Scattered<'a> {
        base: u64,
        pages: &'a [u64],
    }

    impl AddressMap for Scattered<'_> {
        fn extent(&self, addr: u64) -> Option<Extent> {
            let page = self.pages.get(((addr - self.base) / 4096) as usize)?;
            Some(Extent { device_addr: page | addr & 4095, len: 4096 - (addr & 4095) })
        }
    }

    /// One extent of all addresses, plus a constant, and how often it was looked up.
    #[derive(Default)]
    struct Offset {
        offset: u64,
        lookups: Cell<u32>,
    }

    impl AddressMap for Offset {
        fn extent(&self, addr: u64) -> Option<Extent> {
            self.lookups.set(self.lookups.get() + 1);
            Some(Extent { device_addr: addr.wrapping_add(self.offset), len: (u64::MAX - addr).max(1) })
        }
    }

    fn list(addr: u64, length: u64, map: &dyn AddressMap) -> Result<(u32, Vec<u64>), Error> {
        let mut walk = Walk::new(map);
        let pages = Pages::find(addr, length, &mut walk)?;
        let list = (0..pages.count).map(|index| pages.device_addr(addr, index, &mut walk).unwrap());
        Ok((pages.log_size, list.collect()))
    }

    /// A key that is not undone: refused, the answer of a device that has made a key and keeps it; without answer, that.
    #[test]
    fn a_key_that_cannot_be_undone_says_why() {
        let (mut driver, shared) = started();
        let driver: &mut Driver<MockPlatform> = &mut driver;
        let opcode = CmdOpcode::DestroyMkey.code() as u16;
        acknowledge(&shared);
        assert_eq!(driver.undo_mkey(7), Ok(()));
        shared.borrow_mut().device = Some(std::boxed::Box::new(|memory, at, _| {
            if at == 0x18 {
                (memory[32], memory[63]) = (CmdStatus::IntErr.code() as u8, 0);
            }
        }));
        assert_eq!(driver.undo_mkey(7), Err(Error::BadAnswer { opcode, value: 7 }));
        shared.borrow_mut().device = None;
        for _ in 0..2 {
            assert_eq!(driver.undo_mkey(7), Err(Error::CommandTimeout { opcode }));
        }
    }

    #[test]
    fn as_many_pieces_as_a_request_carries() {
        // 1008 bytes: 63 units of 16, of which control, UMR control and context take 8, and the pieces whole blocks of 4.
        assert_eq!([0, 128, 192, 191, 1008].map(max_pieces), [0, 0, 4, 0, 52]);
    }

    #[test]
    fn one_page_covers_what_is_contiguous_and_aligned_alike() {
        let same = Offset::default();
        assert_eq!(list(0x10_0000, 0x10_0000, &same), Ok((20, std::vec![0x10_0000])));
        assert_eq!(list(0x10_0004, 8, &same), Ok((12, std::vec![0x10_0000])));
        assert_eq!(list(0x1f_f000, 0x2000, &same), Ok((22, std::vec![0])), "both sides of 2 MiB, in one page of 4 MiB");
        let offset = Offset { offset: 0x3000, ..Offset::default() };
        assert_eq!(list(0x10_0000, 0x4000, &offset), Ok((12, std::vec![0x10_3000, 0x10_4000, 0x10_5000, 0x10_6000])));
        assert_eq!(list(0x1000, 0, &same), Ok((12, std::vec![])));
        assert_eq!(list(u64::MAX - 7, 8, &same), Ok((12, std::vec![!4095])), "the last bytes of all");
        assert_eq!(list(u64::MAX - 7, 9, &same), Err(Error::Unmapped { page: 0 }));
    }

    #[test]
    fn a_contiguous_extent_is_looked_up_once() {
        let map = Offset { offset: 1 << 40, ..Offset::default() };
        let (log_size, pages) = list(0x1234_5000, 64 << 30, &map).unwrap();
        assert_eq!((log_size, pages.len(), pages[0], pages[1]), (31, 33, 1 << 40, (1 << 40) + (1 << 31)));
        assert!(map.lookups.get() <= 2, "{} lookups", map.lookups.get());
    }

    #[test]
    fn scattered_pages_are_listed_in_the_largest_size_that_fits() {
        let base = 0x7000_0000;
        let map = Scattered { base, pages: &[0x9000_0000, 0x9000_1000, 0x5000_2000, 0x5000_3000] };
        assert_eq!(list(base, 0x4000, &map), Ok((13, std::vec![0x9000_0000, 0x5000_2000])));
        assert_eq!(list(base + 0x10, 0x2ff0, &map), Ok((13, std::vec![0x9000_0000, 0x5000_2000])));
        let map = Scattered { base, pages: &[0x9000_1000, 0x9000_0000] };
        assert_eq!(list(base, 0x2000, &map), Ok((12, std::vec![0x9000_1000, 0x9000_0000])));
        assert_eq!(list(base, 0x2001, &map), Err(Error::Unmapped { page: 2 }));
        let odd = Offset { offset: 8, ..Offset::default() };
        assert_eq!(list(base, 0x1000, &odd), Err(Error::Misaligned));
    }

    /// Returns the page list that covers most with each page: by looking at every page of 4096 bytes, for each size of page.
    fn best_list(base: u64, map: &[u64], addr: u64, last: u64) -> (u32, Vec<u64>) {
        let device = |page: u64| map[(page - base / 4096) as usize];
        let pages = addr / 4096..=last / 4096;
        for log_size in (12..=31).rev() {
            let size = 1_u64 << log_size;
            // No larger than what covers the region.
            if log_size > 12 && addr / (size / 2) == last / (size / 2) {
                continue;
            }
            // Where each page of this size would begin for the device.
            let begin = |page: u64| device(page).wrapping_sub(page * 4096 % size);
            let good = pages.clone().all(|page| {
                let whole = begin(page);
                let same = pages.clone().filter(|other| other * 4096 / size == page * 4096 / size);
                whole % size == 0 && same.into_iter().all(|other| begin(other) == whole)
            });
            if good {
                let mut list: Vec<u64> = pages.clone().map(begin).collect();
                let mut numbers: Vec<u64> = pages.clone().map(|page| page * 4096 / size).collect();
                (0..list.len()).rev().for_each(|n| {
                    if n != 0 && numbers[n] == numbers[n - 1] {
                        list.remove(n);
                        numbers.remove(n);
                    }
                });
                return (log_size, list);
            }
        }
        panic!("pages of 4096 bytes always do")
    }

    /// Each way in which one to three pages lie among eight of the device, from each of eight pages on, with the first and the last page in
    /// part: the largest pages that do.
    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn every_map_of_a_few_pages_has_the_largest_pages_that_fit() {
        let mut sizes = std::collections::BTreeSet::new();
        for first in 0..8 {
            let base = 0x7000_0000 + 4096 * first;
            for count in 1..=3_u32 {
                for code in 0..8_u64.pow(count) {
                    let map: Vec<u64> = (0..count).map(|n| 0x9000_0000 + 4096 * (code >> (3 * n) & 7)).collect();
                    let scattered = Scattered { base, pages: &map };
                    for (start, end) in [(0, 0), (1, 0), (4095, 0), (0, 4095), (1, 1), (2000, 2000)] {
                        let (addr, last) = (base + start, base + 4096 * u64::from(count) - 1 - end);
                        if addr > last {
                            continue;
                        }
                        let best = best_list(base, &map, addr, last);
                        sizes.insert(best.0);
                        assert_eq!(list(addr, last - addr + 1, &scattered), Ok(best), "{map:x?} from {addr:#x} to {last:#x}");
                    }
                }
            }
        }
        assert_eq!(sizes.into_iter().collect::<Vec<_>>(), [12, 13, 14, 15]);
    }

    /// Each number of bytes that a WQE may have: in 64-byte blocks behind the first two, four pieces each.
    #[test]
    fn pieces_fill_the_blocks_behind_the_first_two() {
        let mut most = 0;
        for bytes in 0..=u32::from(u16::MAX) {
            if bytes >= 192 && bytes % 64 == 0 {
                most += 4;
            }
            assert_eq!(max_pieces(bytes), most, "{bytes}");
        }
    }

    /// A command counts the bytes of its list in 32 bits.
    #[test]
    fn a_list_is_no_longer_than_a_command_can_say() {
        let limit = (1 << 28) - 1;
        for count in [0, 1, 4, limit - 1, limit] {
            assert_eq!(octowords(count), Ok(count as u32));
        }
        for count in [limit + 1, limit + 2, 1 << 32, (1 << 32) + 1, u64::MAX] {
            assert_eq!(octowords(count), Err(Error::LimitExceeded { limit: limit as u32 }), "{count:#x}");
        }
    }

    #[test]
    fn a_map_that_breaks_within_a_page_has_no_page_list() {
        struct Broken;
        impl AddressMap for Broken {
            fn extent(&self, addr: u64) -> Option<Extent> {
                Some(Extent { device_addr: if addr < 0x1800 { addr } else { addr + 0x10_0000 }, len: 0x800 })
            }
        }
        assert_eq!(list(0x1000, 0x1000, &Broken), Err(Error::Misaligned));
        struct Empty;
        impl AddressMap for Empty {
            fn extent(&self, addr: u64) -> Option<Extent> {
                Some(Extent { device_addr: addr, len: 0 })
            }
        }
        assert_eq!(list(0x1000, 0x1000, &Empty), Err(Error::Unmapped { page: 0 }));
    }

    type Commands = Rc<RefCell<Vec<Vec<u8>>>>;

    /// Lets a device make keys with the indices from 0x77 on, one higher each time, and returns the commands that it executes.
    fn make_keys(shared: &crate::tests::mock::Shared) -> Commands {
        let commands = Commands::default();
        let note = commands.clone();
        respond(shared, move |input, output| {
            output[8..12].copy_from_slice(&(0x77 + note.borrow().len() as u32).to_be_bytes());
            note.borrow_mut().push(input.to_vec());
        });
        commands
    }

    /// By `create_mkey_in` and `mkc` of `mlx5_ifc.h`: the context is at 16, translations_octword_actual_size at 96, the list from 272 on.
    fn create_mkey_bytes(context: &[(usize, &[u8])], octowords: u32, list: &[u64]) -> Vec<u8> {
        let mut bytes = std::vec![0; 272];
        bytes[0] = 2;
        bytes[96..100].copy_from_slice(&octowords.to_be_bytes());
        for (at, field) in context {
            bytes[16 + at..][..field.len()].copy_from_slice(field);
        }
        bytes.extend(list.iter().flat_map(|entry| entry.to_be_bytes()));
        bytes
    }

    const PD: u32 = 0x0a_0b0c;

    fn pd() -> Object {
        Object::of::<cmd::DeallocPd>(PD, ObjectMemory::default())
    }

    /// In the dword at 0 relaxed_ordering_write is bit 18, a, rw, rr, lw and lr are the bits 14 to 10, access_mode 9 and 8, of which 1 are
    /// page lists; qpn and tag are at 4, pd at 13, address and length at 16 and 24, octowords at 52, relaxed_ordering_read and log_page_size
    /// at 59. Two addresses are an octoword.
    #[test]
    fn a_region_is_the_bytes_of_its_key_and_its_pages() {
        let map = Scattered { base: 0x7000_0000, pages: &[0x9000_1000, 0x9000_3000, 0x5000_2000] };
        for (access, relaxed, [ordered, rights, read]) in [
            (Access::empty(), [1, 1], [0, 0x04, 0]),
            (Access::LOCAL_WRITE, [1, 1], [0, 0x0c, 0]),
            (Access::REMOTE_READ, [1, 1], [0, 0x14, 0]),
            (Access::REMOTE_WRITE, [1, 1], [0, 0x24, 0]),
            (Access::REMOTE_ATOMIC, [1, 1], [0, 0x44, 0]),
            (Access::MW_BIND, [1, 1], [0, 0x04, 0]),
            (Access::RELAXED_ORDERING, [1, 1], [4, 0x04, 0x40]),
            (Access::RELAXED_ORDERING, [0, 1], [0, 0x04, 0x40]),
            (Access::RELAXED_ORDERING, [1, 0], [4, 0x04, 0]),
        ] {
            for pages in 1..=3_usize {
                let (mut driver, shared) = started();
                let driver: &mut Driver<MockPlatform> = &mut driver;
                driver.caps.relaxed = relaxed;
                let commands = make_keys(&shared);
                let (addr, length) = (0x7000_0123_u64, pages as u64 * 4096 - 0x123 - 7);
                let (_, lkey, rkey) = driver.create_mr(&pd(), &MrRequest { addr, length, access, map: &map }).unwrap();
                assert_eq!((lkey.get() >> 8, rkey.get()), (0x77, lkey.get()));
                let octowords = pages.div_ceil(2);
                let mut list = map.pages[..pages].to_vec();
                list.resize(2 * octowords, 0);
                let context: &[(usize, &[u8])] = &[
                    (1, &[ordered, rights | 1, 0]),
                    (4, &[0xff, 0xff, 0xff, lkey.get() as u8]),
                    (13, &[0x0a, 0x0b, 0x0c]),
                    (16, &addr.to_be_bytes()),
                    (24, &length.to_be_bytes()),
                    (52, &(octowords as u32).to_be_bytes()),
                    (59, &[12 | read]),
                ];
                assert_eq!(*commands.borrow(), [create_mkey_bytes(context, octowords as u32, &list)], "{access:?} {pages}");
            }
        }
    }

    /// A zero-based region that begins with a page has one key, with pages that begin where it does; another has a second key, of pieces
    /// (access_mode 2) of at most 2^30 bytes under the first, which has the local rights alone.
    #[test]
    fn a_region_from_zero_has_the_address_0_and_where_needed_a_key_over_another() {
        let same = Offset::default();
        let access = Access::ZERO_BASED | Access::LOCAL_WRITE | Access::REMOTE_READ;
        let created = |addr: u64, length: u64| {
            let (mut driver, shared) = started();
            let driver: &mut Driver<MockPlatform> = &mut driver;
            let commands = make_keys(&shared);
            let (mut mr, lkey, rkey) = driver.create_mr(&pd(), &MrRequest { addr, length, access, map: &same }).unwrap();
            assert_eq!(lkey.get(), rkey.get());
            let made = commands.borrow().clone();
            driver.destroy_mr(&mut mr).unwrap();
            // DESTROY_MKEY (0x202) names the index at 9: the last key is the first to go.
            let ended: Vec<_> = commands.borrow()[made.len()..].iter().map(|input| (opcode_of(input), input[11])).collect();
            let expected: Vec<_> = (0..made.len()).rev().map(|n| (0x202, 0x77 + n as u8)).collect();
            assert_eq!(ended, expected);
            (made, lkey.get())
        };
        let context = |key: u32, rights: u8, start: u64, length: u64, octowords: u32, log_page: u8| {
            let mut context = std::vec![0; 64];
            (context[2], context[59]) = (rights, log_page);
            context[4..8].copy_from_slice(&[0xff, 0xff, 0xff, key as u8]);
            context[13..16].copy_from_slice(&[0x0a, 0x0b, 0x0c]);
            context[16..24].copy_from_slice(&start.to_be_bytes());
            context[24..32].copy_from_slice(&length.to_be_bytes());
            context[52..56].copy_from_slice(&octowords.to_be_bytes());
            context
        };
        // In the middle of a page of 64 KiB, on a boundary of 8 KiB: three of those.
        let (made, key) = created(0x10_2000, 0x5001);
        let list = [0x10_2000, 0x10_4000, 0x10_6000, 0];
        assert_eq!(made, [create_mkey_bytes(&[(0, &context(key, 0x1d, 0, 0x5001, 2, 13))], 2, &list)]);
        // On the boundary of its page.
        let (made, key) = created(0x10_0000, 0x10_0000);
        assert_eq!(made, [create_mkey_bytes(&[(0, &context(key, 0x1d, 0, 0x10_0000, 1, 20))], 1, &[0x10_0000, 0])]);
        let (addr, length) = (0x10_0010_u64, (3_u64 << 30) + 5);
        let (made, key) = created(addr, length);
        // From 1 MiB to beyond 3 GiB: two pages of 2 GiB.
        let under = key & 0xff | 0x77 << 8;
        let first = create_mkey_bytes(&[(0, &context(key, 0x0d, addr, length, 1, 31))], 1, &[0, 1 << 31]);
        let mut pieces = Vec::new();
        for piece in 0..4_u64 {
            let bytes = if piece == 3 { 5 } else { 1 << 30 };
            pieces.extend([bytes << 32 | u64::from(under), addr + (piece << 30)]);
        }
        let second = create_mkey_bytes(&[(0, &context(key, 0x1e, 0, length, 4, 0))], 4, &pieces);
        assert_eq!((made, key >> 8), (std::vec![first, second], 0x78));
        // One piece; a list is whole blocks of four.
        let (made, key) = created(addr, 16);
        let mut pieces = [0; 8];
        pieces[..2].copy_from_slice(&[16 << 32 | u64::from(key & 0xff | 0x77 << 8), addr]);
        assert_eq!(made[1], create_mkey_bytes(&[(0, &context(key, 0x1e, 0, 16, 4, 0))], 4, &pieces));
    }

    /// free is bit 30 of the dword at 0, umr_en bit 15, en_rinval bit 24 of that at 12.
    #[test]
    fn a_free_key_has_room_and_no_list() {
        type Make<'a> = &'a dyn Fn(&mut Driver<MockPlatform>) -> Result<(Object, Rkey), Error>;
        let key_of = |max_mw, make: Make<'_>| {
            let (mut driver, shared) = started();
            let driver: &mut Driver<MockPlatform> = &mut driver;
            (driver.attr.max_mw, driver.caps.max_send_wqe) = (max_mw, 1008);
            let commands = make_keys(&shared);
            make(driver).map(|(object, key)| (object.number, key.get(), commands.borrow().clone()))
        };
        let expected = |key: u32, en_rinval: u8, octowords: u8| {
            let context: &[(usize, &[u8])] = &[
                (0, &[0x40, 0, 0x86, 0]),
                (4, &[0xff, 0xff, 0xff, key as u8]),
                (12, &[en_rinval, 0x0a, 0x0b, 0x0c]),
                (55, &[octowords]),
            ];
            std::vec![create_mkey_bytes(context, 0, &[])]
        };
        for (kind, en_rinval) in [(MwType::Type1, 0), (MwType::Type2, 1)] {
            let (number, key, made) = key_of(1, &|driver| driver.create_mw(&pd(), kind)).unwrap();
            assert_eq!((number, key >> 8, made), (0x77, 0x77, expected(key, en_rinval, 4)));
        }
        for (pieces, octowords) in [(1, 4), (4, 4), (5, 8), (52, 52)] {
            let (_, key, made) = key_of(1, &|driver| driver.create_fast_mr(&pd(), pieces)).unwrap();
            assert_eq!(made, expected(key, 1, octowords), "{pieces}");
        }
        let refused = |max_mw, pieces| key_of(max_mw, &|driver| driver.create_fast_mr(&pd(), pieces)).map(drop);
        assert_eq!(refused(1, 53), Err(Error::LimitExceeded { limit: 52 }));
        assert_eq!(refused(0, 1), Err(Error::Unsupported { feature: Feature::MemoryWindows }));
    }

    /// A key with the index 0 is none, and 1 is that of INVALID_LKEY. A map without a page in the middle leaves no key.
    #[test]
    fn no_region_has_a_key_that_is_none() {
        let same = Offset::default();
        let request = MrRequest { addr: 0x1000, length: 64, access: Access::empty(), map: &same };
        for (index, is_key) in [(0, false), (1, false), (2, true)] {
            let (mut driver, shared) = started();
            let driver: &mut Driver<MockPlatform> = &mut driver;
            respond(&shared, move |_, output| output[8..12].copy_from_slice(&u32::to_be_bytes(index)));
            let opcode = CmdOpcode::CreateMkey.code() as u16;
            let expected = if is_key { Ok(index << 8) } else { Err(Error::BadAnswer { opcode, value: index }) };
            assert_eq!(driver.create_mr(&pd(), &request).map(|(_, lkey, _)| lkey.get() & !0xff), expected);
        }
        /// Pages that are there when they are counted, and not when they are listed.
        struct Vanishing(Cell<u32>);
        impl AddressMap for Vanishing {
            fn extent(&self, addr: u64) -> Option<Extent> {
                self.0.set(self.0.get() + 1);
                let page = addr & !4095;
                (self.0.get() != 6).then_some(Extent { device_addr: page + addr, len: 4096 - (addr & 4095) })
            }
        }
        let (mut driver, shared) = started();
        let driver: &mut Driver<MockPlatform> = &mut driver;
        let commands = make_keys(&shared);
        let map = Vanishing(Cell::new(0));
        let request = MrRequest { addr: 0x1000, length: 3 * 4096, access: Access::empty(), map: &map };
        assert_eq!(driver.create_mr(&pd(), &request).map(drop), Err(Error::Unmapped { page: 2 }));
        let sent: Vec<_> = commands.borrow().iter().map(|input| (opcode_of(input), input[11])).collect();
        assert_eq!(sent, [(0x200, 0), (0x202, 0x77)], "it is undone");
    }

    /// By `query_mkey_out` and `mkc`: the context is at 16.
    #[test]
    fn the_state_of_a_key_is_that_of_its_context() {
        for free in [false, true] {
            let (mut driver, shared) = started();
            let driver: &mut Driver<MockPlatform> = &mut driver;
            respond(&shared, move |input, output| {
                assert_eq!((opcode_of(input), &input[8..12]), (0x201, &[0, 0x12, 0x34, 0x56][..]));
                output[16] = if free { 0x40 } else { 0xbf };
                output[16 + 7] = 0xa5;
                output[16 + 16..][..8].copy_from_slice(&0x0102_0304_0506_0708_u64.to_be_bytes());
                output[16 + 24..][..8].copy_from_slice(&0x1112_1314_1516_1718_u64.to_be_bytes());
            });
            let state = driver.query_mkey(0x12_3456).unwrap();
            let expected = MkeyState { tag: KeyTag(0xa5), free, start: 0x0102_0304_0506_0708, length: 0x1112_1314_1516_1718 };
            assert_eq!(state, expected);
            let window = Object::of::<cmd::DestroyMkey>(0x12_3456, ObjectMemory::default());
            assert_eq!(driver.query_mw(&window), Ok((Rkey::new(0x1234_56a5), !free)));
        }
    }
}
