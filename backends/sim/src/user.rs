//! User contexts (DEVX): whose an object is, and memory that user programs hand to the device by name.
//!
//! A kernel marks the commands that it passes on for a program with the program's context. Such a command may only touch
//! what belongs to that context; the kernel's own commands, with context 0 or the shared one, may touch everything.

use std::collections::BTreeMap;

use bareverbs_mlx5_spec::{CmdStatus, ObjectKind};

use crate::id_allocator::IdAllocator;

/// The context under which a kernel makes what all may use (Linux `MLX5_SHARED_RESOURCE_UID`).
const SHARED: u32 = 0xffff;
/// Contexts, and user memory objects, at most, as powers of two.
pub(crate) const LOG_MAX_CONTEXTS: u32 = 10;
pub(crate) const LOG_MAX_UMEMS: u32 = 16;
/// Pages of all user memory objects together, at most: so much of them is kept here (8 bytes each).
const MAX_PAGES: usize = 32 << 20;
/// Pages of 4096 bytes of the longest queue.
const MAX_QUEUE_PAGES: usize = (128 << 22) / 4096 + 1;

/// Memory of a program: pages of one size and where it begins in the first.
#[derive(Clone, Debug)]
struct Umem {
    pages: Vec<u64>,
    log_page: u32,
    offset: u64,
}

impl Umem {
    /// Device address of byte `at`, if `len` bytes from there lie in one page.
    fn address(&self, at: u64, len: u64) -> Option<u64> {
        let at = self.offset.checked_add(at)?;
        let within = at & ((1 << self.log_page) - 1);
        let page = self.pages.get(usize::try_from(at >> self.log_page).ok()?)?;
        (within + len <= 1 << self.log_page).then_some(page + within)
    }
}

/// The user memory objects in which the buffer and the doorbell record of an object lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UmemBinding {
    /// Of its ring or its pages.
    pub(crate) buffer: Option<u32>,
    /// Of its doorbell record.
    pub(crate) record: Option<u32>,
}

/// Contexts and what belongs to them.
#[derive(Clone, Debug)]
pub(crate) struct Users {
    contexts: IdAllocator,
    numbers: IdAllocator,
    umems: BTreeMap<u32, Umem>,
    pages: usize,
    /// Objects of contexts other than the kernel's.
    owners: BTreeMap<(ObjectKind, u32), u32>,
    /// The user memory in which an object's buffer and record lie.
    bindings: BTreeMap<(ObjectKind, u32), UmemBinding>,
}

impl Default for Users {
    fn default() -> Self {
        Self {
            contexts: IdAllocator::new(1, (1 << LOG_MAX_CONTEXTS) - 1),
            numbers: IdAllocator::new(1, (1 << LOG_MAX_UMEMS) - 1),
            umems: BTreeMap::new(),
            pages: 0,
            owners: BTreeMap::new(),
            bindings: BTreeMap::new(),
        }
    }
}

impl Users {
    /// Contexts and user memory objects there are.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.contexts.len(), self.umems.len())
    }

    pub(crate) fn create(&mut self) -> Result<u32, CmdStatus> {
        self.contexts.allocate()
    }

    /// Ends a context; refused while objects are left in it.
    pub(crate) fn destroy(&mut self, uid: u32) -> Result<(), CmdStatus> {
        if self.owners.values().any(|&owner| owner == uid) {
            return Err(CmdStatus::ResBusy);
        }
        self.contexts.free(uid)
    }

    /// Whether commands of this context are the kernel's own.
    pub(crate) fn is_kernel(uid: u32) -> bool {
        uid == 0 || uid == SHARED
    }

    /// Whether there is such a context; the kernel's is always there.
    pub(crate) fn exists(&self, uid: u32) -> bool {
        Self::is_kernel(uid) || self.contexts.contains(uid)
    }

    /// Whether a command of context `uid` may touch an object.
    pub(crate) fn may_touch(&self, uid: u32, kind: ObjectKind, number: u32) -> bool {
        let owner = self.owners.get(&(kind, number));
        Self::is_kernel(uid) || owner == Some(&uid) || owner == Some(&SHARED)
    }

    pub(crate) fn own(&mut self, uid: u32, kind: ObjectKind, number: u32) {
        if uid != 0 {
            self.owners.insert((kind, number), uid);
        }
    }

    /// An object is gone.
    pub(crate) fn disown(&mut self, kind: ObjectKind, number: u32) {
        self.owners.remove(&(kind, number));
        self.bindings.remove(&(kind, number));
    }

    /// An object lies in these user memory objects, which stay as long as it does.
    pub(crate) fn bind(&mut self, kind: ObjectKind, number: u32, binding: UmemBinding) {
        if binding != UmemBinding::default() {
            self.bindings.insert((kind, number), binding);
        }
    }

    /// The buffer of an object lies elsewhere now; its doorbell record is where it was.
    pub(crate) fn move_buffer(&mut self, kind: ObjectKind, number: u32, buffer: Option<u32>) {
        let record = self.bindings.get(&(kind, number)).and_then(|binding| binding.record);
        self.bindings.remove(&(kind, number));
        self.bind(kind, number, UmemBinding { buffer, record });
    }

    /// Takes a user memory object: its pages of `4096 << log_page_size` bytes and the byte of the first where it begins.
    pub(crate) fn create_umem(&mut self, pages: Vec<u64>, log_page_size: u32, offset: u32) -> Result<u32, CmdStatus> {
        let log_page = log_page_size + 12;
        let page = 1_u64 << log_page;
        if log_page > 40 || pages.is_empty() || u64::from(offset) >= page {
            return Err(CmdStatus::BadParam);
        }
        if pages.len() > MAX_PAGES - self.pages {
            return Err(CmdStatus::NoResources);
        }
        // The low bits of an entry say what the device may do with the page.
        let pages: Vec<u64> = pages.into_iter().map(|address| address & !0xfff).collect();
        if pages.iter().any(|address| address & (page - 1) != 0) {
            return Err(CmdStatus::BadParam);
        }
        let number = self.numbers.allocate()?;
        self.pages += pages.len();
        self.umems.insert(number, Umem { pages, log_page, offset: offset.into() });
        Ok(number)
    }

    /// Ends a user memory object; refused while an object lies in it.
    pub(crate) fn destroy_umem(&mut self, number: u32) -> Result<(), CmdStatus> {
        if self.bindings.values().any(|binding| [binding.buffer, binding.record].contains(&Some(number))) {
            return Err(CmdStatus::ResBusy);
        }
        let umem = self.umems.remove(&number).ok_or(CmdStatus::BadRes)?;
        self.pages -= umem.pages.len();
        self.numbers.free(number)
    }

    fn umem(&self, uid: u32, number: u32) -> Result<&Umem, CmdStatus> {
        self.umems.get(&number).filter(|_| self.may_touch(uid, ObjectKind::Umem, number)).ok_or(CmdStatus::BadRes)
    }

    /// Device address of the `len` bytes at byte `at` of a user memory object.
    pub(crate) fn address(&self, uid: u32, number: u32, at: u64, len: u64) -> Result<u64, CmdStatus> {
        self.umem(uid, number)?.address(at, len).ok_or(CmdStatus::BadParam)
    }

    /// A queue at byte `at` of a user memory object: its pages of 4096 bytes as far as any queue reaches, and where it
    /// begins in the first, in 64ths.
    pub(crate) fn queue(&self, uid: u32, number: u32, at: u64) -> Result<(Vec<u64>, u32), CmdStatus> {
        let umem = self.umem(uid, number)?;
        let start = umem.offset.checked_add(at).filter(|start| start.is_multiple_of(64)).ok_or(CmdStatus::BadParam)?;
        let first = start & !0xfff;
        let page = |i: usize| {
            let at = first.checked_add(i as u64 * 4096)?;
            let base = umem.pages.get(usize::try_from(at >> umem.log_page).ok()?)?;
            base.checked_add(at & ((1 << umem.log_page) - 1))
        };
        let pages: Vec<u64> = (0..MAX_QUEUE_PAGES).map_while(page).collect();
        if pages.is_empty() {
            return Err(CmdStatus::BadParam);
        }
        Ok((pages, ((start & 0xfff) / 64) as u32))
    }

    /// The translations of a region of `len` bytes that begins at byte `at` of a user memory object and at `within` of its
    /// first page of `1 << log_page` bytes.
    pub(crate) fn region(
        &self,
        uid: u32,
        (number, at): (u32, u64),
        log_page: u32,
        within: u64,
        len: u64,
    ) -> Result<Vec<u8>, CmdStatus> {
        let umem = self.umem(uid, number)?;
        let start = umem.offset.checked_add(at).ok_or(CmdStatus::BadParam)?;
        if !(12..=umem.log_page).contains(&log_page) || start & ((1 << log_page) - 1) != within {
            return Err(CmdStatus::BadParam);
        }
        let first = start - within;
        let count = within.checked_add(len).ok_or(CmdStatus::BadParam)?.div_ceil(1 << log_page);
        // More than the object has is an error, and found before anything is kept for it.
        if count > (umem.pages.len() as u64) << (umem.log_page - log_page) {
            return Err(CmdStatus::BadParam);
        }
        let page = |i: u64| {
            let at = first.checked_add(i << log_page)?;
            let base = umem.pages.get(usize::try_from(at >> umem.log_page).ok()?)?;
            base.checked_add(at & ((1 << umem.log_page) - 1))
        };
        let pages: Option<Vec<[u8; 8]>> = (0..count).map(|i| page(i).map(u64::to_be_bytes)).collect();
        Ok(pages.ok_or(CmdStatus::BadParam)?.concat())
    }
}
