//! Memory keys: what they open, for whom, and where their bytes are.

use std::collections::{BTreeMap, BTreeSet};

use bareverbs::KeyTag;
use bareverbs_mlx5_spec::{AccessMode, CmdStatus, Layout, MKEY_ANY_QPN, Mkc, OCTOWORD, View, ViewMut};

use crate::engine::memory::device_memory::DeviceMemory;
use crate::engine::memory::key_range::{KeyRange, covering};
use crate::engine::memory::klm_list::{KlmList, RESERVED_INDEX};
use crate::engine::memory::page_source::PageSource;
use crate::engine::memory::page_table::PageTable;
use crate::host_memory::DmaFault;
use crate::registry::{ObjectKind, Registry, Resource};
use crate::rejection::{KeyFault, KeyUse, Rejection};

/// Smallest page of a page list.
pub(in crate::engine) const MIN_LOG_PAGE: u32 = 12;

/// Rights that an access needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Right {
    LocalRead,
    LocalWrite,
    RemoteRead,
    RemoteWrite,
    RemoteAtomic,
}

impl From<Right> for KeyUse {
    fn from(right: Right) -> Self {
        match right {
            Right::LocalRead => Self::LocalRead,
            Right::LocalWrite => Self::LocalWrite,
            Right::RemoteRead => Self::RemoteRead,
            Right::RemoteWrite => Self::RemoteWrite,
            Right::RemoteAtomic => Self::RemoteAtomic,
        }
    }
}

/// Who reaches for memory, and why.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Access {
    pub(in crate::engine) right: Right,
    pub(in crate::engine) pd: u32,
    pub(in crate::engine) qpn: u32,
}

/// Why a key does not open the bytes asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum KeyError {
    /// No key with this index.
    Unknown,
    /// The key exists, and its tag is another one.
    Tag,
    /// Nothing is registered or bound with it.
    Free,
    /// It belongs to another protection domain.
    Domain,
    /// It belongs to another queue pair.
    QueuePair,
    /// It lacks the right.
    Right,
    /// Bytes outside its range.
    Range,
    /// Its translations do not reach that far, or are no translations.
    Translation,
    /// The host has no memory where it leads.
    Memory,
}

impl From<DmaFault> for KeyError {
    fn from(_: DmaFault) -> Self {
        Self::Memory
    }
}

/// What a key translates with.
#[derive(Clone, Debug)]
pub(in crate::engine) enum Translations {
    Pages(PageTable),
    Klms(KlmList),
}

/// A key.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Mkey {
    /// The context as created and changed since.
    context: [u8; 64],
    pub(super) translations: Translations,
    /// It is a window that a request bound: the keys that it leads to stay while it does.
    bound: bool,
}

impl Mkey {
    fn new(context: [u8; 64], source: PageSource<'_>) -> Self {
        let mode = mode_of(View::of(&context));
        let log_page = View::<Mkc>::of(&context).get(Mkc::LOG_PAGE_SIZE);
        let translations = match (mode, source) {
            (Some(AccessMode::Klms | AccessMode::Ksm), PageSource::Listed(raw)) => Translations::Klms(KlmList::read(raw)),
            (Some(AccessMode::Klms | AccessMode::Ksm), PageSource::Umem(_)) => Translations::Klms(KlmList::default()),
            (_, source) => Translations::Pages(PageTable::new(source, log_page)),
        };
        Self { context, translations, bound: false }
    }

    /// Returns the bytes of this process that its translations take.
    fn memory(&self) -> u64 {
        match &self.translations {
            Translations::Pages(pages) => pages.memory(),
            Translations::Klms(klms) => klms.memory(),
        }
    }

    /// Returns the range that a window leads to, as far as its length reaches.
    fn targets(&self) -> impl Iterator<Item = KeyRange> {
        let len = self.context().get64(Mkc::LEN);
        self.klms().into_iter().flat_map(move |klms| klms.ranges(len))
    }

    /// Its entries, if it is indirect.
    pub(in crate::engine) fn klms(&self) -> Option<&KlmList> {
        match &self.translations {
            Translations::Pages(_) => None,
            Translations::Klms(klms) => Some(klms),
        }
    }

    pub(in crate::engine) fn context(&self) -> View<'_, Mkc> {
        const { assert!(Mkc::SIZE == 64, "a context has the size of its layout") };
        View::of(&self.context)
    }

    pub(in crate::engine) fn mode(&self) -> Option<AccessMode> {
        mode_of(self.context())
    }

    pub(in crate::engine) fn pd(&self) -> u32 {
        self.context().get(Mkc::PD)
    }

    pub(in crate::engine) fn is_free(&self) -> bool {
        self.context().is_set(Mkc::FREE)
    }

    pub(in crate::engine) fn tag(&self) -> KeyTag {
        KeyTag::of(self.context().get(Mkc::MKEY_7_0))
    }

    pub(in crate::engine) fn qpn(&self) -> u32 {
        self.context().get(Mkc::QPN)
    }

    /// Returns whether a request that changed it has bound it: it is indirect, not free, and its list is not empty.
    fn has_targets(&self) -> bool {
        !self.is_free() && self.mode() == Some(AccessMode::Klms) && self.klms().is_some_and(|klms| klms.len() != 0)
    }

    /// Returns whether a request has bound it, and this context leaves it bound to the same bytes apart from those that the
    /// request changes. Only then are earlier checks still valid.
    pub(super) fn stays_bound(&self, after: View<'_, Mkc>) -> bool {
        let same_length = self.context().get64(Mkc::LEN) == after.get64(Mkc::LEN);
        self.bound && same_length && !after.is_set(Mkc::FREE)
    }

    pub(in crate::engine) fn allows(&self, right: Right) -> bool {
        let context = self.context();
        context.is_set(match right {
            Right::LocalRead => Mkc::LR,
            Right::LocalWrite => Mkc::LW,
            Right::RemoteRead => Mkc::RR,
            Right::RemoteWrite => Mkc::RW,
            Right::RemoteAtomic => Mkc::A,
        })
    }

    /// Returns the offset of `addr` from the start of the key, if `len` bytes from there lie inside it.
    pub(in crate::engine) fn offset(&self, addr: u64, len: u64) -> Result<u64, KeyError> {
        let context = self.context();
        if context.is_set(Mkc::LENGTH64) {
            return addr.checked_add(len).map(|_| addr).ok_or(KeyError::Range);
        }
        // A key over device memory counts from zero; its start is a place in BAR0.
        let start = if self.mode() == Some(AccessMode::Memic) { 0 } else { context.get64(Mkc::START_ADDR) };
        let offset = addr.checked_sub(start).ok_or(KeyError::Range)?;
        let end = offset.checked_add(len).ok_or(KeyError::Range)?;
        if end > context.get64(Mkc::LEN) {
            return Err(KeyError::Range);
        }
        Ok(offset)
    }

    pub(in crate::engine) fn page(&self, index: u64) -> Result<u64, KeyError> {
        match &self.translations {
            Translations::Pages(pages) => pages.page(index).ok_or(KeyError::Translation),
            Translations::Klms(_) => Err(KeyError::Translation),
        }
    }
}

fn mode_of(context: View<'_, Mkc>) -> Option<AccessMode> {
    AccessMode::from_code(context.get(Mkc::ACCESS_MODE_4_2) << 2 | context.get(Mkc::ACCESS_MODE_1_0))
}

/// Indices of destroyed keys that are remembered.
const MAX_DESTROYED: usize = 1 << 16;
/// Entries of an indirect key, as a power of two; what the capabilities say (`log_max_klm_list_size`).
pub(crate) const LOG_MAX_KLMS: u32 = 16;
/// Bytes of a list of that many entries.
pub(super) const MAX_KLM_BYTES: usize = OCTOWORD << LOG_MAX_KLMS;

/// All keys of a device, by index.
#[derive(Debug, Default)]
pub(in crate::engine) struct KeyTable {
    keys: BTreeMap<u32, Mkey>,
    /// Windows that are bound.
    bound: usize,
    /// Indices that had a key once and have none now.
    destroyed: BTreeSet<u32>,
    /// Memory in the device, which only keys open.
    pub(in crate::engine) device: DeviceMemory,
}

/// Returns the index of a key.
pub(in crate::engine) const fn index_of(key: u32) -> u32 {
    key >> 8
}

impl KeyTable {
    pub(in crate::engine) fn bound_windows(&self) -> usize {
        self.bound
    }

    pub(in crate::engine) fn get(&self, index: u32) -> Option<&Mkey> {
        self.keys.get(&index)
    }

    /// Returns whether the key was destroyed and nothing took its place.
    pub(in crate::engine) fn was_destroyed(&self, key: u32) -> bool {
        self.destroyed.contains(&index_of(key))
    }

    /// Adds a key. Indices are given in turn, so that a destroyed one stays unknown for long.
    pub(in crate::engine) fn create(
        &mut self,
        registry: &mut Registry,
        mkc: View<'_, Mkc>,
        source: PageSource<'_>,
    ) -> Result<u32, CmdStatus> {
        let context: [u8; 64] = mkc.as_bytes().first_chunk().copied().ok_or(CmdStatus::BadInputLen)?;
        let octwords = mkc.get(Mkc::TRANSLATIONS_OCTWORD_SIZE);
        let source = match source {
            PageSource::Listed(raw) => {
                let room = (octwords as usize).saturating_mul(OCTOWORD);
                PageSource::Listed(raw.get(..room).unwrap_or(raw))
            }
            PageSource::Umem(range) => PageSource::Umem(range),
        };
        let mode = mode_of(mkc);
        self.check_new(mkc, mode, octwords, &source)?;
        let memory = match (&source, mode) {
            (PageSource::Umem(_), _) => 0,
            (PageSource::Listed(raw), Some(AccessMode::Klms | AccessMode::Ksm)) => KlmList::memory_of(raw.len() as u64),
            (PageSource::Listed(raw), _) => PageTable::memory_of(raw.len() as u64 / 8),
        };
        let mut uses = Vec::from_iter(source.umem().map(Resource::umem));
        // A key that requests will fill in may get its protection domain from them (Linux's cache of keys).
        let pd = Resource::pd(mkc.get(Mkc::PD));
        if !mkc.is_set(Mkc::FREE) || pd.number != 0 {
            uses.push(pd);
        }
        if mode == Some(AccessMode::Memic) {
            let allotted = self.device.allocation_with(mkc.get64(Mkc::START_ADDR), mkc.get64(Mkc::LEN));
            uses.push(Resource::device_memory(allotted.ok_or(CmdStatus::BadParam)?));
        }
        // A key that requests may change can get any tag.
        let may_be_mark = mkc.is_set(Mkc::UMR_EN) || mkc.get(Mkc::MKEY_7_0) == 0;
        let avoided = may_be_mark.then_some(RESERVED_INDEX);
        let index = registry.create_except(avoided, ObjectKind::Mkey, memory, uses)?;
        let key = Mkey::new(context, source);
        registry.set_memory(Resource::mkey(index), key.memory());
        self.destroyed.remove(&index);
        // It counts no use of the keys in its list: nothing has checked those, and an access does.
        self.keys.insert(index, key);
        Ok(index)
    }

    fn check_new(
        &self,
        mkc: View<'_, Mkc>,
        mode: Option<AccessMode>,
        octwords: u32,
        source: &PageSource<'_>,
    ) -> Result<(), CmdStatus> {
        match mode {
            Some(AccessMode::Pa) => {}
            Some(AccessMode::Mtt) if mkc.is_set(Mkc::FREE) => {}
            Some(AccessMode::Mtt) => {
                let log_page = mkc.get(Mkc::LOG_PAGE_SIZE);
                if mkc.is_set(Mkc::LENGTH64) || !(MIN_LOG_PAGE..=40).contains(&log_page) {
                    return Err(CmdStatus::BadParam);
                }
                let within = mkc.get64(Mkc::START_ADDR) & ((1 << log_page) - 1);
                let pages = within.checked_add(mkc.get64(Mkc::LEN)).ok_or(CmdStatus::BadParam)?.div_ceil(1 << log_page);
                let brought = match source {
                    PageSource::Listed(raw) => raw.len() as u64 / 8,
                    PageSource::Umem(range) => range.len() >> log_page,
                };
                // The context must have room for the pages, and the input must have brought them.
                if pages > 2 * u64::from(octwords) || pages > brought {
                    return Err(CmdStatus::BadParam);
                }
            }
            Some(AccessMode::Klms | AccessMode::Ksm) => {
                if matches!(source, PageSource::Listed(raw) if raw.len() > MAX_KLM_BYTES) {
                    return Err(CmdStatus::BadParam);
                }
            }
            Some(AccessMode::Memic) => {
                // It opens one allocation: requests cannot move it to another.
                if mkc.is_set(Mkc::UMR_EN) || mkc.is_set(Mkc::FREE) || mkc.is_set(Mkc::LENGTH64) {
                    return Err(CmdStatus::BadParam);
                }
            }
            _ => return Err(CmdStatus::BadParam),
        }
        Ok(())
    }

    pub(in crate::engine) fn query(&self, index: u32, out: &mut ViewMut<'_, Mkc>) -> Result<(), CmdStatus> {
        let key = self.keys.get(&index).ok_or(CmdStatus::BadRes)?;
        for (to, from) in out.as_bytes_mut().iter_mut().zip(key.context) {
            *to = from;
        }
        Ok(())
    }

    /// Ends a key that no bound window leads to.
    pub(in crate::engine) fn destroy(&mut self, registry: &mut Registry, index: u32) -> Result<u64, CmdStatus> {
        let room = registry.destroy(Resource::mkey(index))?;
        self.unbind(registry, index);
        self.keys.remove(&index);
        if self.destroyed.len() >= MAX_DESTROYED {
            self.destroyed.pop_first();
        }
        self.destroyed.insert(index);
        Ok(room)
    }

    /// Notes which keys a window leads to, if it is bound. One that leads to itself does not count as a use of itself.
    fn bind(&mut self, registry: &mut Registry, index: u32) {
        if let Some(key) = self.keys.get_mut(&index).filter(|key| !key.bound && key.has_targets()) {
            key.bound = true;
            self.bound += 1;
            name_targets(registry, index, key.targets());
        }
    }

    /// Ends [`KeyTable::bind`].
    fn unbind(&mut self, registry: &mut Registry, index: u32) {
        if let Some(key) = self.keys.get_mut(&index).filter(|key| key.bound) {
            key.bound = false;
            self.bound -= 1;
            unname_targets(registry, index, key.targets());
        }
    }

    /// Returns the key, if its tag is right and it may be used by this queue pair and domain.
    pub(in crate::engine) fn open(&self, key: u32, access: Access) -> Result<&Mkey, KeyError> {
        let mkey = self.keys.get(&index_of(key)).ok_or(KeyError::Unknown)?;
        if mkey.tag() != KeyTag::of(key) {
            return Err(KeyError::Tag);
        }
        if mkey.is_free() {
            return Err(KeyError::Free);
        }
        if mkey.pd() != access.pd {
            return Err(KeyError::Domain);
        }
        if mkey.qpn() != MKEY_ANY_QPN && mkey.qpn() != access.qpn {
            return Err(KeyError::QueuePair);
        }
        Ok(mkey)
    }

    /// Returns whether `key` opens `len` bytes at `addr`; no memory is touched.
    pub(in crate::engine) fn check(&self, key: u32, addr: u64, len: u64, access: Access) -> Result<(), KeyError> {
        let mkey = self.open(key, access)?;
        if !mkey.allows(access.right) {
            return Err(KeyError::Right);
        }
        mkey.offset(addr, len).map(|_| ())
    }

    /// Returns what is to be recorded of an access to `len` bytes at a place of a key, which failed.
    pub(in crate::engine) fn rejection(&self, (key, addr): (u32, u64), len: u64, access: Access, error: KeyError) -> Rejection {
        let fault = self.fault(key, error);
        Rejection::Access { qpn: access.qpn, usage: access.right.into(), key, addr, len, fault }
    }

    /// Returns why a key did not open, with the facts.
    pub(in crate::engine) fn fault(&self, key: u32, error: KeyError) -> KeyFault {
        let mkey = self.keys.get(&index_of(key));
        match (error, mkey) {
            (KeyError::Unknown, _) | (_, None) => KeyFault::Unknown,
            // Of a key that was invalidated the tag says nothing: the next binding chooses it.
            (KeyError::Tag, Some(mkey)) if mkey.is_free() => KeyFault::Free,
            (KeyError::Tag, Some(mkey)) => KeyFault::Tag { tag: mkey.tag().0 },
            (KeyError::Free, _) => KeyFault::Free,
            (KeyError::Domain, _) => KeyFault::Domain,
            (KeyError::QueuePair, _) => KeyFault::QueuePair,
            (KeyError::Right, _) => KeyFault::Right,
            (KeyError::Range, Some(mkey)) => {
                let start = if mkey.mode() == Some(AccessMode::Memic) { 0 } else { mkey.context().get64(Mkc::START_ADDR) };
                KeyFault::Range { start, len: mkey.context().get64(Mkc::LEN) }
            }
            (KeyError::Translation, _) => KeyFault::Translation,
            (KeyError::Memory, _) => KeyFault::Memory,
        }
    }

    /// Gives a key another context, and changes its list from `first` (counted in entries) on, or replaces it. Returns how many
    /// entries were examined: those brought and, of an indirect key that is bound or freed, all.
    pub(super) fn change(
        &mut self,
        registry: &mut Registry,
        index: u32,
        context: [u8; 64],
        list: Option<(Option<u64>, &[u8])>,
    ) -> usize {
        let Some(key) = self.keys.get(&index) else { return 0 };
        let brought = list.map_or(0, |(_, raw)| raw.len() / OCTOWORD);
        let after = View::<Mkc>::of(&context);
        let len = after.get64(Mkc::LEN);
        let stays_bound = key.stays_bound(after);
        // A bound window that stays bound and whose other entries stay where they are: only what changes in its list matters.
        let changed = match (list, key.klms()) {
            (None, _) if stays_bound => Some((Vec::new(), Vec::new())),
            (Some((Some(first), raw)), Some(klms)) if stays_bound => {
                let first = usize::try_from(first).unwrap_or(usize::MAX);
                let sum = |ranges: &[KeyRange]| ranges.iter().map(|range| range.len).sum::<u64>();
                let changed = klms.changed(first, raw).filter(|(old, new)| sum(old) == sum(new));
                let start = klms.start_of(first);
                let within = |ranges: Vec<KeyRange>| covering(ranges.into_iter(), start, len).collect::<Vec<_>>();
                changed.map(|(old, new)| (within(old), within(new)))
            }
            _ => None,
        };
        let before = key.klms().map_or(0, KlmList::count);
        if changed.is_none() {
            self.unbind(registry, index);
        }
        let Some(key) = self.keys.get_mut(&index) else { return 0 };
        key.context = context;
        match (&mut key.translations, list) {
            (_, None) => {}
            (Translations::Pages(pages), Some((None, raw))) => pages.replace(raw),
            (Translations::Pages(pages), Some((Some(first), raw))) => pages.write(first, raw),
            (Translations::Klms(klms), Some((None, raw))) => *klms = KlmList::read(raw),
            (Translations::Klms(klms), Some((Some(first), raw))) => {
                klms.change(usize::try_from(first).unwrap_or(usize::MAX), raw);
            }
        }
        registry.set_memory(Resource::mkey(index), key.memory());
        let filled = key.klms().map_or(0, KlmList::count).saturating_sub(before);
        match changed {
            Some((old, new)) => {
                name_targets(registry, index, new.into_iter());
                unname_targets(registry, index, old.into_iter());
                brought.max(filled)
            }
            None => {
                let all = key.klms().map_or(0, KlmList::count);
                self.bind(registry, index);
                brought + all
            }
        }
    }

    /// Frees a key that a peer names (SEND with invalidate). Returns how many entries were examined.
    pub(in crate::engine) fn invalidate_remotely(
        &mut self,
        registry: &mut Registry,
        key: u32,
        pd: u32,
        qpn: u32,
    ) -> Result<usize, KeyError> {
        let access = Access { right: Right::RemoteRead, pd, qpn };
        let mkey = self.open(key, access)?;
        if !mkey.context().is_set(Mkc::EN_RINVAL) {
            return Err(KeyError::Right);
        }
        let entries = if mkey.bound { mkey.klms().map_or(0, KlmList::count) } else { 0 };
        self.unbind(registry, index_of(key));
        if let Some(mkey) = self.keys.get_mut(&index_of(key))
            && let Some(mut context) = ViewMut::<Mkc>::new(&mut mkey.context)
        {
            context.set(Mkc::FREE, 1);
        }
        Ok(entries)
    }
}

fn name_targets(registry: &mut Registry, index: u32, ranges: impl Iterator<Item = KeyRange>) {
    for target in ranges.map(|range| index_of(range.key)).filter(|target| *target != index) {
        registry.name(Resource::mkey(target));
    }
}

fn unname_targets(registry: &mut Registry, index: u32, ranges: impl Iterator<Item = KeyRange>) {
    for target in ranges.map(|range| index_of(range.key)).filter(|target| *target != index) {
        registry.unname(Resource::mkey(target));
    }
}
