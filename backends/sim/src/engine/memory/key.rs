//! Memory keys: what they open, for whom, and where their bytes are.

use std::collections::{BTreeMap, BTreeSet};

use bareverbs_mlx5_spec::{AccessMode, CmdStatus, Layout, MKEY_ANY_QPN, Mkc, OCTWORD, View, ViewMut};

use crate::engine::memory::device_memory::DeviceMemory;
use crate::engine::memory::klm_list::{KlmList, is_reserved};
use crate::memory::DmaFault;

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
    /// The key exists, and its variant (low byte) is another one.
    Variant,
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

/// A key.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Mkey {
    /// The context as created and changed since.
    context: [u8; 64],
    /// Raw translation entries.
    translations: Vec<u8>,
    /// Its entries, if it is indirect.
    pub(in crate::engine) klm_list: KlmList,
}

impl Mkey {
    fn new(context: [u8; 64], translations: Vec<u8>) -> Self {
        let mut key = Self { context, translations, klm_list: KlmList::default() };
        if matches!(key.mode(), Some(AccessMode::Klms | AccessMode::Ksm)) {
            key.klm_list = KlmList::read(&key.translations);
        }
        key
    }

    /// Bytes that it takes here.
    fn cost(&self) -> u64 {
        KEY_COST + (self.translations.len() + self.klm_list.cost()) as u64
    }

    pub(in crate::engine) fn context(&self) -> View<'_, Mkc> {
        const { assert!(Mkc::SIZE == 64, "a context has the size of its layout") };
        View::of(&self.context)
    }

    pub(in crate::engine) fn mode(&self) -> Option<AccessMode> {
        let context = self.context();
        AccessMode::from_code(context.get(Mkc::ACCESS_MODE_4_2) << 2 | context.get(Mkc::ACCESS_MODE_1_0))
    }

    pub(in crate::engine) fn pd(&self) -> u32 {
        self.context().get(Mkc::PD)
    }

    pub(in crate::engine) fn is_free(&self) -> bool {
        self.context().is_set(Mkc::FREE)
    }

    pub(in crate::engine) fn variant(&self) -> u32 {
        self.context().get(Mkc::MKEY_7_0)
    }

    pub(in crate::engine) fn qpn(&self) -> u32 {
        self.context().get(Mkc::QPN)
    }

    /// Whether this is a window that is bound: changed from a send queue, indirect, not free, with something in it.
    fn is_bound_window(&self) -> bool {
        let context = self.context();
        !self.is_free() && context.is_set(Mkc::UMR_EN) && self.mode() == Some(AccessMode::Klms) && self.klm_list.len() != 0
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

    /// Offset of `addr` from the start of the key, if `len` bytes from there lie inside it.
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
        let at = usize::try_from(index).ok().and_then(|index| index.checked_mul(8)).ok_or(KeyError::Translation)?;
        let entry = self.translations.get(at..).and_then(|rest| rest.first_chunk()).ok_or(KeyError::Translation)?;
        // The low byte holds permission bits.
        Ok(u64::from_be_bytes(*entry) & !0xff)
    }
}

/// Bytes that a key takes here beside its translations, generously.
const KEY_COST: u64 = 512;
/// Indices of destroyed keys that are remembered.
const MAX_DESTROYED: usize = 1 << 16;

/// All keys of a device, by index.
#[derive(Debug, Default)]
pub(in crate::engine) struct KeyTable {
    keys: BTreeMap<u32, Mkey>,
    next: u32,
    /// Bytes that all keys take here.
    used: u64,
    /// Indices that had a key once and have none now.
    destroyed: BTreeSet<u32>,
    /// Memory in the device, which only keys open.
    pub(in crate::engine) device: DeviceMemory,
}

/// Index of a key.
pub(in crate::engine) const fn index_of(key: u32) -> u32 {
    key >> 8
}

impl KeyTable {
    pub(in crate::engine) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(in crate::engine) fn bound_windows(&self) -> usize {
        self.keys.values().filter(|key| key.is_bound_window()).count()
    }

    pub(in crate::engine) fn uses_pd(&self, pd: u32) -> bool {
        self.keys.values().any(|key| key.pd() == pd)
    }

    /// Whether a key opens device memory in this range.
    pub(in crate::engine) fn opens_memory(&self, at: u64, len: u64) -> bool {
        self.keys.values().filter(|key| key.mode() == Some(AccessMode::Memic)).any(|key| {
            let (start, key_len) = (key.context().get64(Mkc::START_ADDR), key.context().get64(Mkc::LEN));
            start < at.saturating_add(len) && at < start.saturating_add(key_len)
        })
    }

    pub(in crate::engine) fn get(&self, index: u32) -> Option<&Mkey> {
        self.keys.get(&index)
    }

    /// Whether the key was destroyed and nothing took its place.
    pub(in crate::engine) fn was_destroyed(&self, key: u32) -> bool {
        self.destroyed.contains(&index_of(key))
    }

    /// Adds a key. Indices are given in turn, so that a destroyed one stays unknown for long; 0 and 1 never are, because
    /// key 0x100 ends receive lists.
    pub(in crate::engine) fn create(
        &mut self,
        limits: (u32, u64),
        mkc: View<'_, Mkc>,
        translations: &[u8],
    ) -> Result<u32, CmdStatus> {
        let (max, memory) = (limits.0.min(1 << 24), limits.1);
        if u64::from(max) <= self.keys.len() as u64 + 2 {
            return Err(CmdStatus::NoResources);
        }
        let context: [u8; 64] = mkc.as_bytes().first_chunk().copied().ok_or(CmdStatus::BadInputLen)?;
        let octwords = mkc.get(Mkc::TRANSLATIONS_OCTWORD_SIZE) as usize;
        let used = translations.get(..octwords.saturating_mul(OCTWORD)).unwrap_or(translations);
        let key = Mkey::new(context, used.to_vec());
        match key.mode() {
            Some(AccessMode::Pa) => {}
            Some(AccessMode::Mtt) if key.is_free() => {}
            Some(AccessMode::Mtt) => {
                let log_page = mkc.get(Mkc::LOG_PAGE_SIZE);
                let len = mkc.get64(Mkc::LEN);
                let start = mkc.get64(Mkc::START_ADDR);
                if mkc.is_set(Mkc::LENGTH64) || !(MIN_LOG_PAGE..=40).contains(&log_page) {
                    return Err(CmdStatus::BadParam);
                }
                let within = start & ((1 << log_page) - 1);
                let pages = within.checked_add(len).ok_or(CmdStatus::BadParam)?.div_ceil(1 << log_page);
                // The context must have room for the pages, and the input must have brought them.
                if pages > 2 * octwords as u64 || pages > translations.len() as u64 / 8 {
                    return Err(CmdStatus::BadParam);
                }
            }
            Some(AccessMode::Klms | AccessMode::Ksm) => {}
            Some(AccessMode::Memic) => {
                // It opens one allocation for good: requests cannot move it to another.
                let fixed = !mkc.is_set(Mkc::UMR_EN) && !mkc.is_set(Mkc::FREE) && !mkc.is_set(Mkc::LENGTH64);
                if !fixed || !self.device.holds(mkc.get64(Mkc::START_ADDR), mkc.get64(Mkc::LEN)) {
                    return Err(CmdStatus::BadParam);
                }
            }
            _ => return Err(CmdStatus::BadParam),
        }
        let mut index = self.next.max(2);
        // A key that requests may change can get any variant.
        let reserved = |index| is_reserved(index, if mkc.is_set(Mkc::UMR_EN) { 0 } else { key.variant() });
        while self.keys.contains_key(&index) || !(2..max).contains(&index) || reserved(index) {
            index = if index + 1 >= max { 2 } else { index + 1 };
        }
        self.used += key.cost();
        if self.used > memory {
            self.used -= key.cost();
            return Err(CmdStatus::NoResources);
        }
        self.next = index + 1;
        self.destroyed.remove(&index);
        self.keys.insert(index, key);
        Ok(index)
    }

    pub(in crate::engine) fn query(&self, index: u32, out: &mut ViewMut<'_, Mkc>) -> Result<(), CmdStatus> {
        let key = self.keys.get(&index).ok_or(CmdStatus::BadRes)?;
        for (to, from) in out.as_bytes_mut().iter_mut().zip(key.context) {
            *to = from;
        }
        Ok(())
    }

    pub(in crate::engine) fn destroy(&mut self, index: u32) -> Result<(), CmdStatus> {
        if !self.keys.contains_key(&index) {
            return Err(CmdStatus::BadRes);
        }
        let leads_here =
            |window: &Mkey| window.klm_list.ranges(window.context().get64(Mkc::LEN)).any(|range| index_of(range.key) == index);
        if self.keys.iter().any(|(&other, window)| other != index && window.is_bound_window() && leads_here(window)) {
            return Err(CmdStatus::ResBusy);
        }
        if let Some(key) = self.keys.remove(&index) {
            self.used -= key.cost();
        }
        if self.destroyed.len() >= MAX_DESTROYED {
            self.destroyed.pop_first();
        }
        self.destroyed.insert(index);
        Ok(())
    }

    /// The key, if its variant is right and it may be used by this queue pair and domain.
    pub(in crate::engine) fn open(&self, key: u32, access: Access) -> Result<&Mkey, KeyError> {
        let mkey = self.keys.get(&index_of(key)).ok_or(KeyError::Unknown)?;
        if mkey.variant() != key & 0xff {
            return Err(KeyError::Variant);
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

    /// Whether `key` opens `len` bytes at `addr`; no memory is touched.
    pub(in crate::engine) fn check(&self, key: u32, addr: u64, len: u64, access: Access) -> Result<(), KeyError> {
        let mkey = self.open(key, access)?;
        if !mkey.allows(access.right) {
            return Err(KeyError::Right);
        }
        mkey.offset(addr, len).map(|_| ())
    }

    /// Whether a translation list may grow by `more` bytes.
    pub(in crate::engine) fn has_room(&self, more: usize, memory: u64) -> bool {
        self.used.saturating_add(more as u64) <= memory
    }

    /// Replaces the context and translations of a key.
    pub(in crate::engine) fn replace(&mut self, index: u32, context: [u8; 64], translations: Vec<u8>) {
        let key = Mkey::new(context, translations);
        self.used += key.cost();
        if let Some(old) = self.keys.insert(index, key) {
            self.used -= old.cost();
        }
    }

    /// Frees a key that a peer names (SEND with invalidate).
    pub(in crate::engine) fn invalidate_remotely(&mut self, key: u32, pd: u32, qpn: u32) -> Result<(), KeyError> {
        let access = Access { right: Right::RemoteRead, pd, qpn };
        let mkey = self.open(key, access)?;
        if !mkey.context().is_set(Mkc::EN_RINVAL) {
            return Err(KeyError::Right);
        }
        if let Some(mkey) = self.keys.get_mut(&index_of(key))
            && let Some(mut context) = ViewMut::<Mkc>::new(&mut mkey.context)
        {
            context.set(Mkc::FREE, 1);
        }
        Ok(())
    }

    /// The translations of a key, raw.
    pub(in crate::engine) fn translations(&self, index: u32) -> Option<&[u8]> {
        self.keys.get(&index).map(|key| key.translations.as_slice())
    }
}
