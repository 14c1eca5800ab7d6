//! Memory windows: their facts, binds in flight, and what a failed bind leaves behind.
//!
//! Windows are changed by the poster of binds, by the poller of their completions, and by the control path. So a lock guards
//! them, which is also that of the states of queue pairs ([`Shared::with_qp_states`]).

use crate::backend::{CoreToken, Provider};
use crate::error::{AllocMwError, AnswerFault, BindRefused, DeallocMwError, StaleHandle};
use crate::log::log_event;
use crate::shared::{RegionFacts, Shared};
use crate::sync::Ordering;
use crate::verbs::Verbs;
use crate::{Access, Binding, KeyTag, Lkey, MrHandle, MwHandle, MwType, PdHandle, QpHandle, Rkey, SendFlags};

/// A bind of a type 1 window (`ibv_mw_bind`): [`SendQueue::bind_type1`](crate::SendQueue::bind_type1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Type1Bind {
    /// Returned in the completion.
    pub wr_id: u64,
    /// FENCE and SIGNALED.
    pub flags: SendFlags,
    /// Region to bind to; ignored when `length` is 0.
    pub mr: MrHandle,
    /// First byte, in the address space of the region; ignored when `length` is 0.
    pub addr: u64,
    /// Length in bytes; 0 unbinds.
    pub length: u64,
    /// Remote rights, and `ZERO_BASED`; ignored when `length` is 0.
    pub access: Access,
}

/// Attributes of a memory window. A bind changes it when it is posted, and a failed one changes it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct MwInfo {
    /// Protection domain.
    pub pd: PdHandle,
    /// Type.
    pub kind: MwType,
    /// Key for the peer; opens nothing while the window is unbound.
    pub rkey: Rkey,
    /// What it is bound to.
    pub binding: Option<Binding>,
}

/// A window as the control path keeps it.
pub(crate) struct Mw<P: Provider> {
    pub(crate) pd: PdHandle,
    pub(crate) inner: P::Mw,
    /// Region for fast registration whose key it is ([`crate::FastMr`]).
    pub(crate) region: Option<MrHandle>,
}

/// What a bind changes of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowState {
    pub(crate) rkey: Rkey,
    pub(crate) binding: Option<Binding>,
    /// The region of a binding that the peer is said to have ended, or [`ANY_REGION`]. The completion may have been about an older one with
    /// the same key, so that the device is asked before the region ends. Beside a binding with the same key: what a RESET has left of
    /// the window may be either.
    doubt: MrHandle,
}

/// [`WindowState::doubt`] of a window that may be bound to one of several regions. No program has this handle.
const ANY_REGION: MrHandle = MrHandle::new(u16::MAX, 1);

impl WindowState {
    /// Returns whether the window may be bound to a region though the peer was said to have ended that.
    fn doubts(&self, mr: MrHandle) -> bool {
        self.doubt == mr || self.doubt == ANY_REGION
    }

    fn may_be_bound(&self) -> bool {
        self.binding.is_some() || self.doubt != MrHandle::NONE
    }

    /// Adds a region to which the window may be bound, beside its binding.
    fn add_doubt(&mut self, mr: MrHandle) {
        if mr != MrHandle::NONE && !self.doubts(mr) && self.binding.is_none_or(|binding| binding.mr != mr) {
            self.doubt = if self.doubt == MrHandle::NONE { mr } else { ANY_REGION };
        }
    }
}

/// A window as binds see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) handle: MwHandle,
    pub(crate) pd: PdHandle,
    pub(crate) kind: MwType,
    pub(crate) state: WindowState,
    /// Binds and invalidations of it in flight, all on one queue pair: their order is that in which they were posted.
    in_flight: u32,
    /// That queue pair.
    binder: QpHandle,
    /// Bit n: a bind in flight may have found a key whose tag is n, modulo 32.
    held_tags: u32,
    /// Invalidations by the peer of which the completions were not polled yet, though the window was bound again since: what those
    /// say is about bindings of the past. Too many are harmless (the completions of a queue pair that is reset are dropped): then
    /// the window may count as bound until it is bound again or ended.
    unpolled: u32,
    /// Bit n: the tag of one of them may be n, modulo 32.
    unpolled_tags: u32,
}

impl Window {
    /// Notes that the completion of an invalidation by the peer comes still, of a binding that counts no more.
    fn note_unpolled(&mut self, rkey: Rkey) {
        self.unpolled = self.unpolled.saturating_add(1);
        self.unpolled_tags |= tag_bit(rkey);
    }
}

/// A bind or invalidation in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingBind {
    /// Its place in the order of all binds of the device.
    sequence: u64,
    qp: QpHandle,
    /// Its block in the send ring of the queue pair.
    pub(crate) at: u32,
    pub(crate) mw: MwHandle,
    /// Whether it binds; if not, it unbinds.
    binds: bool,
    /// What the window is again if it fails. A binding in it keeps its region.
    previous: WindowState,
}

impl PendingBind {
    /// Returns whether `other` is a newer bind of the same window.
    fn is_before(&self, other: &Self) -> bool {
        other.mw == self.mw && other.sequence > self.sequence
    }
}

/// Room for a window and for a bind in flight, which need not be one of that window.
#[derive(Debug)]
pub(crate) struct WindowCell {
    window: Option<Window>,
    bind: Option<PendingBind>,
}

impl WindowCell {
    pub(crate) const EMPTY: Self = Self { window: None, bind: None };
}

/// All windows and binds in flight of a device.
#[derive(Debug)]
pub(crate) struct Windows<C: ?Sized = [WindowCell]> {
    next: u64,
    /// Before this cell none has room for a bind.
    vacant: usize,
    /// From this cell on none has a bind: what is done with every bind costs what is in flight, not the size of the table.
    used: usize,
    /// No window is further than this from the cell where the search for its key begins ([`Self::place_of`]).
    reach: usize,
    /// The cells, if their number is known at run time only. No array of that size can be made under the lock.
    #[cfg(feature = "alloc")]
    boxed: alloc::vec::Vec<WindowCell>,
    /// The cells otherwise.
    array: C,
}

impl<C> Windows<C> {
    pub(crate) const fn new(array: C) -> Self {
        Self {
            next: 1,
            vacant: 0,
            used: 0,
            reach: 0,
            #[cfg(feature = "alloc")]
            boxed: alloc::vec::Vec::new(),
            array,
        }
    }
}

#[cfg(feature = "alloc")]
impl Windows<[WindowCell; 0]> {
    /// Returns windows with `count` cells on the heap.
    pub(crate) fn boxed(count: usize) -> Self {
        Self { boxed: (0..count).map(|_| WindowCell::EMPTY).collect(), ..Self::new([]) }
    }
}

/// Access that a window can have.
pub(crate) const WINDOW_ACCESS: Access =
    Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC).union(Access::ZERO_BASED);

/// What is asked of a bind, whichever way it is posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BindRequest<'a> {
    pub(crate) pd: PdHandle,
    pub(crate) qp: QpHandle,
    pub(crate) mw: MwHandle,
    pub(crate) kind: MwType,
    pub(crate) binding: &'a Binding,
    /// Tag of the new key; `None`: the one after the present one.
    pub(crate) tag: Option<KeyTag>,
    /// Maximum window of the device in bytes.
    pub(crate) max_length: u64,
}

/// A bind that may be posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckedBind<'a> {
    pub(crate) mw: MwHandle,
    pub(crate) old: Rkey,
    pub(crate) new: Rkey,
    pub(crate) lkey: Lkey,
    /// What the window will be bound to.
    pub(crate) binding: Option<&'a Binding>,
}

impl Window {
    /// Returns the queue pair on which requests about it are in flight, if that is another than this.
    pub(crate) fn elsewhere(&self, qp: QpHandle) -> Option<QpHandle> {
        if self.binder == qp || self.in_flight == 0 { None } else { Some(self.binder) }
    }
}

/// Returns the bit of a key in [`Window::held_tags`] and [`Window::unpolled_tags`].
const fn tag_bit(rkey: Rkey) -> u32 {
    1 << (rkey.get() & 31)
}

/// Returns the facts of the region that a binding names.
fn region_of(shared: &Shared<'_>, mr: MrHandle) -> Result<RegionFacts, BindRefused> {
    let facts = shared.regions.slots().get(usize::from(mr.index())).and_then(|slot| slot.facts());
    facts.filter(|facts| facts.generation == mr.generation()).ok_or(BindRefused::StaleRegion)
}

impl Windows {
    fn cells(&self) -> &[WindowCell] {
        #[cfg(feature = "alloc")]
        if !self.boxed.is_empty() {
            return &self.boxed;
        }
        &self.array
    }

    fn cells_mut(&mut self) -> &mut [WindowCell] {
        #[cfg(feature = "alloc")]
        if !self.boxed.is_empty() {
            return &mut self.boxed;
        }
        &mut self.array
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        for cell in self.cells_mut() {
            *cell = WindowCell::EMPTY;
        }
        (self.vacant, self.used, self.reach) = (0, 0, 0);
    }

    /// Returns the cell that is `step` cells after the one where the search for a key begins. Keys that a device assigns in turn
    /// spread evenly; a bind changes the tag of a key, not its index.
    fn place_of(&self, rkey: Rkey, step: usize) -> usize {
        let len = self.cells().len();
        let first = len.checked_ilog2().map_or(0, |log| rkey.index() as usize & ((1 << log) - 1));
        let at = first.wrapping_add(step);
        if at < len { at } else { at.wrapping_sub(len) }
    }

    /// Returns the cells in the order of the search for a key.
    fn places_of(&self, rkey: Rkey) -> impl Iterator<Item = usize> + '_ {
        (0..self.cells().len()).map(move |step| self.place_of(rkey, step))
    }

    /// Returns whether a window can be put into a cell. One whose end unwound is still there: the device may have it.
    fn is_vacant(&self, index: usize) -> bool {
        self.cells().get(index).is_some_and(|cell| cell.window.is_none())
    }

    /// Returns whether a window has a key with this index.
    pub(crate) fn has_key(&self, index: u32) -> bool {
        let mut windows = self.cells().iter().filter_map(|cell| cell.window.as_ref());
        windows.any(|window| window.state.rkey.index() == index && window.handle.index() != MwHandle::NONE.index())
    }

    fn insert(&mut self, handle: MwHandle, pd: PdHandle, kind: MwType, rkey: Rkey) {
        let at = usize::from(handle.index());
        let steps = self.places_of(rkey).position(|place| place == at).unwrap_or(0);
        self.reach = self.reach.max(steps);
        if let Some(cell) = self.cells_mut().get_mut(usize::from(handle.index())) {
            let state = WindowState { rkey, binding: None, doubt: MrHandle::NONE };
            cell.window = Some(Window {
                handle,
                pd,
                kind,
                state,
                in_flight: 0,
                binder: QpHandle::NONE,
                held_tags: 0,
                unpolled: 0,
                unpolled_tags: 0,
            });
        }
    }

    pub(crate) fn get(&self, handle: MwHandle) -> Option<&Window> {
        let window = self.cells().get(usize::from(handle.index()))?.window.as_ref()?;
        if window.handle == handle { Some(window) } else { None }
    }

    fn get_mut(&mut self, handle: MwHandle) -> Option<&mut Window> {
        let window = self.cells_mut().get_mut(usize::from(handle.index()))?.window.as_mut()?;
        if window.handle == handle { Some(window) } else { None }
    }

    /// Hides a window from binds, unless some of it are in flight; how many.
    fn hide(&mut self, handle: MwHandle) -> Result<(), u32> {
        let binds = self.binds().filter(|bind| bind.mw == handle).count();
        match self.get_mut(handle) {
            Some(window) if binds == 0 => {
                window.handle = MwHandle::NONE;
                Ok(())
            }
            _ => Err(binds as u32),
        }
    }

    /// Ends a window that was hidden, or shows it again.
    fn end_hidden(&mut self, handle: MwHandle, gone: bool) {
        let Some(cell) = self.cells_mut().get_mut(usize::from(handle.index())) else { return };
        if gone {
            cell.window = None;
        } else if let Some(window) = &mut cell.window {
            window.handle = handle;
        }
    }

    fn binds(&self) -> impl Iterator<Item = &PendingBind> + Clone {
        self.cells().get(..self.used).unwrap_or_default().iter().filter_map(|cell| cell.bind.as_ref())
    }

    /// Returns the type 2 window of the domain in slot `pd` whose key has the index of this one.
    fn type2(&mut self, pd: u16, rkey: Rkey) -> Option<&mut Window> {
        // A domain exists as long as its windows do: one slot is one domain.
        let named = |window: &Window| {
            let hidden = window.handle.index() == MwHandle::NONE.index();
            let is_named = window.state.rkey.index() == rkey.index();
            window.kind == MwType::Type2 && window.pd.index() == pd && is_named && !hidden
        };
        let is_it = |at: &usize| self.cells().get(*at).and_then(|cell| cell.window.as_ref()).is_some_and(named);
        let at = (0..=self.reach).map(|step| self.place_of(rkey, step)).find(is_it)?;
        self.cells_mut().get_mut(at)?.window.as_mut()
    }

    /// Returns how many bindings hold a region: those of windows, and those that a failed bind would bring back.
    pub(crate) fn bindings_of(&self, mr: MrHandle) -> u32 {
        self.count(&|state| state.binding.is_some_and(|binding| binding.mr == mr))
    }

    /// Returns how many bindings may hold a region though the peer was said to have ended them.
    pub(crate) fn doubts_of(&self, mr: MrHandle) -> u32 {
        self.count(&|state| state.doubts(mr))
    }

    fn count(&self, wanted: &dyn Fn(&WindowState) -> bool) -> u32 {
        let windows = self.cells().iter().filter_map(|cell| cell.window.as_ref()).filter(|window| wanted(&window.state));
        let binds = self.binds().filter(|bind| wanted(&bind.previous));
        windows.count().saturating_add(binds.count()) as u32
    }

    /// Returns the first window from cell `from` on about which [`Self::doubts_of`] a region exist, its cell, and [`Self::oldest_or_next`].
    fn doubted(&self, mr: MrHandle, from: usize) -> Option<(usize, MwHandle, u64)> {
        let in_flight = |mw: MwHandle| self.binds().any(|bind| bind.mw == mw && bind.previous.doubts(mr));
        let windows = self.cells().iter().enumerate().skip(from);
        let mut windows = windows.filter_map(|(at, cell)| cell.window.as_ref().map(|window| (at, window)));
        let (at, window) = windows.find(|(_, window)| window.state.doubts(mr) || in_flight(window.handle))?;
        Some((at, window.handle, self.oldest_or_next(window.handle)))
    }

    /// Returns the sequence number of the oldest bind in flight of a window, or the next number if there is none.
    fn oldest_or_next(&self, mw: MwHandle) -> u64 {
        self.oldest_of(&|bind| bind.mw == mw).map_or(self.next, |bind| bind.sequence)
    }

    /// Ends the doubt about a window of which the device says its key, and whether it is bound, unless that may be its binding. The answer
    /// is about what the oldest bind in flight has found: the device does that bind after it. `oldest` is the
    /// [`Self::oldest_or_next`] from before the question. If that bind has ended since, the answer may be too old.
    fn settle(&mut self, mw: MwHandle, mr: MrHandle, oldest: u64, rkey: Rkey, is_bound: bool) {
        if self.oldest_or_next(mw) != oldest {
            return;
        }
        let state = match self.oldest_of(&|bind| bind.mw == mw) {
            Some(_) => self.bind_mut(oldest).map(|bind| &mut bind.previous),
            None => self.get_mut(mw).map(|window| &mut window.state),
        };
        if let Some(state) = state.filter(|state| state.doubts(mr) && !(is_bound && state.rkey == rkey)) {
            state.doubt = MrHandle::NONE;
        }
    }

    /// Checks the handles and flags of a bind, before those of the queue pair; gives its region, if it binds.
    pub(crate) fn check_arguments(
        &self,
        shared: &Shared<'_>,
        request: &BindRequest<'_>,
    ) -> Result<Option<RegionFacts>, BindRefused> {
        let window = self.get(request.mw).ok_or(BindRefused::StaleWindow)?;
        if window.kind != request.kind {
            return Err(BindRefused::WindowType { kind: window.kind });
        }
        if request.binding.length == 0 {
            return Ok(None);
        }
        let access = request.binding.access.difference(WINDOW_ACCESS);
        if !access.is_empty() {
            return Err(BindRefused::AccessFlags { access });
        }
        region_of(shared, request.binding.mr).map(Some)
    }

    /// Checks domains, rights, range and key, after [`Self::check_arguments`], which gave the region.
    pub(crate) fn check<'a>(
        &self,
        request: &BindRequest<'a>,
        region: Option<&RegionFacts>,
    ) -> Result<CheckedBind<'a>, BindRefused> {
        let window = self.get(request.mw).ok_or(BindRefused::StaleWindow)?;
        if window.pd != request.pd {
            return Err(BindRefused::Domain);
        }
        let old = window.state.rkey;
        let new = old.with_tag(request.tag.unwrap_or(old.tag().next()));
        let binding = request.binding;
        let Some(region) = region else {
            Self::check_order(window, request.qp)?;
            return Ok(CheckedBind { mw: request.mw, old, new, lkey: Lkey::new(0), binding: None });
        };
        if region.pd != request.pd.index() {
            return Err(BindRefused::Domain);
        }
        if !region.access.contains(Access::MW_BIND) {
            return Err(BindRefused::NoBindRight);
        }
        let writes = binding.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if writes && !region.access.contains(Access::LOCAL_WRITE) {
            return Err(BindRefused::NoLocalWrite);
        }
        if binding.addr.checked_add(binding.length).is_none() {
            return Err(BindRefused::Overflow);
        }
        if !region.contains(binding.addr, binding.length) {
            let Binding { addr, length, .. } = *binding;
            return Err(BindRefused::Range { addr, length, start: region.base, size: region.length });
        }
        if binding.length > request.max_length {
            return Err(BindRefused::TooLong { max: request.max_length });
        }
        Self::check_order(window, request.qp)?;
        let held = |state: &WindowState| state.rkey == new && state.binding.is_some();
        let before = |bind: &PendingBind| bind.mw == request.mw && held(&bind.previous);
        if held(&window.state) || window.held_tags & tag_bit(new) != 0 && self.binds().any(before) {
            return Err(BindRefused::KeyInUse { rkey: new });
        }
        Ok(CheckedBind { mw: request.mw, old, new, lkey: region.lkey, binding: Some(binding) })
    }

    /// Returns whether a window was bound with this key before a bind or invalidation in flight.
    pub(crate) fn is_held(&self, mw: MwHandle, rkey: Rkey) -> bool {
        let may_be = self.get(mw).is_some_and(|window| window.held_tags & tag_bit(rkey) != 0);
        let held = |bind: &PendingBind| bind.mw == mw && bind.previous.rkey == rkey && bind.previous.binding.is_some();
        may_be && self.binds().any(held)
    }

    /// Checks that no binds of a window are in flight on another queue pair than this.
    fn check_order(window: &Window, qp: QpHandle) -> Result<(), BindRefused> {
        let ordered = window.binder == qp || window.in_flight == 0;
        if ordered { Ok(()) } else { Err(BindRefused::OtherQueuePair { qp: window.binder }) }
    }

    /// Returns the window that a LOCAL_INV names, and its next state.
    pub(crate) fn check_invalidate(
        &mut self,
        pd: PdHandle,
        qp: QpHandle,
        rkey: Rkey,
    ) -> Result<CheckedBind<'static>, BindRefused> {
        let window = self.type2(pd.index(), rkey).filter(|window| window.state.rkey == rkey);
        let window = window.ok_or(BindRefused::UnknownKey { rkey })?;
        Self::check_order(window, qp)?;
        Ok(CheckedBind { mw: window.handle, old: rkey, new: rkey, lkey: Lkey::new(0), binding: None })
    }

    /// Returns where one more bind can be remembered.
    pub(crate) fn room(&self) -> Option<usize> {
        let cells = self.cells().get(self.vacant..)?;
        cells.iter().position(|cell| cell.bind.is_none()).map(|step| self.vacant.wrapping_add(step))
    }

    /// Puts a window into the state that a posted bind will give it and remembers how it was, in the cell that [`Self::room`] gave.
    pub(crate) fn post(&mut self, qp: QpHandle, at: u32, bind: &CheckedBind<'_>, room: usize) {
        let sequence = self.next;
        let Some(window) = self.get_mut(bind.mw) else { return };
        let next = WindowState { rkey: bind.new, binding: bind.binding.copied(), doubt: MrHandle::NONE };
        let previous = core::mem::replace(&mut window.state, next);
        (window.in_flight, window.binder) = (window.in_flight.wrapping_add(1), qp);
        window.held_tags |= tag_bit(previous.rkey);
        if let Some(cell) = self.cells_mut().get_mut(room) {
            cell.bind = Some(PendingBind { sequence, qp, at, mw: bind.mw, binds: bind.binding.is_some(), previous });
            self.next = sequence.wrapping_add(1);
            self.vacant = room.wrapping_add(1);
            self.used = self.used.max(self.vacant);
        }
    }

    /// Returns the oldest bind in flight of a queue pair.
    fn oldest(&self, qp: QpHandle) -> Option<PendingBind> {
        self.oldest_of(&|bind| bind.qp == qp).copied()
    }

    /// Returns the oldest of those binds in flight that are `wanted`.
    fn oldest_of(&self, wanted: &dyn Fn(&PendingBind) -> bool) -> Option<&PendingBind> {
        let mut oldest: Option<&PendingBind> = None;
        for bind in self.binds() {
            if wanted(bind) && oldest.is_none_or(|other| bind.sequence < other.sequence) {
                oldest = Some(bind);
            }
        }
        oldest
    }

    /// Returns a bind in flight.
    fn bind_mut(&mut self, sequence: u64) -> Option<&mut PendingBind> {
        let used = self.used;
        let used = self.cells_mut().get_mut(..used).unwrap_or_default();
        used.iter_mut().filter_map(|cell| cell.bind.as_mut()).find(|bind| bind.sequence == sequence)
    }

    /// Ends every bind of a queue pair up to its block `last`, counted from `tail`: that one `failed` or not, those before it
    /// have succeeded. Gives their number.
    pub(crate) fn complete(&mut self, qp: QpHandle, tail: u32, last: u32, failed: bool) -> u32 {
        let reach = last.wrapping_sub(tail);
        let mut count = 0_u32;
        while let Some(bind) = self.oldest(qp).filter(|bind| bind.at.wrapping_sub(tail) <= reach) {
            self.end(&bind, failed && bind.at == last);
            count = count.wrapping_add(1);
        }
        count
    }

    /// Ends one bind.
    ///
    /// A bind that failed never was: the next newer one in flight, or the window, gets what it had found.
    fn end(&mut self, bind: &PendingBind, failed: bool) {
        let is_it = |cell: &WindowCell| cell.bind.as_ref().is_some_and(|other| other.sequence == bind.sequence);
        let used = self.used;
        let used = self.cells_mut().get_mut(..used).unwrap_or_default();
        // A poller may have ended it since a RESET has looked for it.
        let Some((index, cell)) = used.iter_mut().enumerate().find(|(_, cell)| is_it(cell)) else { return };
        cell.bind = None;
        self.vacant = self.vacant.min(index);
        while let Some(last) = self.used.checked_sub(1)
            && self.cells().get(last).is_some_and(|cell| cell.bind.is_none())
        {
            self.used = last;
        }
        let Some(window) = self.get_mut(bind.mw) else { return };
        window.in_flight = window.in_flight.wrapping_sub(1);
        if window.in_flight == 0 {
            window.held_tags = 0;
        }
        if !failed {
            // The device binds no type 2 window that is bound: the peer has invalidated it before.
            if window.kind == MwType::Type2 && bind.binds && bind.previous.binding.is_some() {
                window.note_unpolled(bind.previous.rkey);
            }
            return;
        }
        if let Some(state) = self.state_after(bind) {
            *state = bind.previous;
        }
    }

    /// Returns whether `rkey`, the key of a window in the device, shows that this bind was done. It is then the key of the bind
    /// or of a newer one.
    ///
    /// A bind that left the key as it was, such as an invalidation, does not show. Then the window counts as bound, whether
    /// that is what it was or what it was to be, so that the region stays held.
    fn key_shows(&self, bind: &PendingBind, rkey: Rkey) -> bool {
        // Each newer bind remembers what the one before it gave; what the newest gave is the window's.
        let newest = self.get(bind.mw).map(|window| &window.state);
        if rkey != bind.previous.rkey {
            let given = |other: &PendingBind| bind.is_before(other) && other.previous.rkey == rkey;
            return self.binds().any(given) || newest.is_some_and(|state| state.rkey == rkey);
        }
        let own = self.oldest_of(&|other| bind.is_before(other)).map(|other| &other.previous).or(newest);
        own.is_some_and(|state| state.rkey == rkey && state.may_be_bound() && bind.previous.binding.is_none())
    }

    /// Returns whether a bind was done, by what the device says of its window. A type 2 window that is not bound shows it if this
    /// bind or a newer one was to leave it so: an invalidation does not change the key. If none was, and the key is that of this bind or of a
    /// newer one, the peer has invalidated it: the completion that says so comes still.
    fn was_done(&mut self, bind: &PendingBind, rkey: Rkey, is_bound: bool) -> bool {
        let Some(window) = self.get(bind.mw).filter(|window| window.kind == MwType::Type2 && !is_bound) else {
            let shows = self.key_shows(bind, rkey);
            // If both have this key, what is bound may be either.
            if shows
                && rkey == bind.previous.rkey
                && let Some(state) = self.state_after(bind)
            {
                state.add_doubt(bind.previous.doubt);
            }
            return shows;
        };
        let is_left_unbound = window.state.binding.is_none();
        if is_left_unbound || self.binds().any(|other| bind.is_before(other) && other.previous.binding.is_none()) {
            return true;
        }
        if rkey == bind.previous.rkey || !self.key_shows(bind, rkey) {
            return false;
        }
        if let Some(state) = self.state_after(bind).filter(|state| state.rkey == rkey) {
            state.binding = None;
            if let Some(window) = self.get_mut(bind.mw) {
                window.note_unpolled(rkey);
            }
        }
        true
    }

    /// Returns the state that a bind gave its window, which the next newer bind has found, or which the window has.
    fn state_after(&mut self, bind: &PendingBind) -> Option<&mut WindowState> {
        match self.oldest_of(&|other| bind.is_before(other)).map(|newer| newer.sequence) {
            Some(newer) => self.bind_mut(newer).map(|newer| &mut newer.previous),
            None => self.get_mut(bind.mw).map(|window| &mut window.state),
        }
    }

    /// Records that the peer has invalidated the type 2 window of the domain in slot `pd` with this key, when the completion that says so
    /// is polled. That may be after the window was bound again, with the same key: then it is about the oldest binding of which none
    /// was polled yet.
    pub(crate) fn invalidated(&mut self, pd: u16, rkey: Rkey) {
        let Some(&mut Window { handle: mw, unpolled, unpolled_tags, .. }) = self.type2(pd, rkey) else { return };
        let held = |state: &WindowState| state.rkey == rkey && state.binding.is_some();
        // A bind that was posted meanwhile, and fails, does not bring it back.
        let oldest = self.oldest_of(&|bind| bind.mw == mw && held(&bind.previous)).map(|bind| bind.sequence);
        let is_past = unpolled != 0 && unpolled_tags & tag_bit(rkey) != 0;
        let state = match oldest {
            _ if is_past => None,
            Some(sequence) => self.bind_mut(sequence).map(|bind| &mut bind.previous),
            None => self.get_mut(mw).map(|window| &mut window.state),
        };
        if let Some(state) = state.filter(|state| held(state)) {
            // It may be about an older binding with this key that nobody counted: one of a key that ended, for instance.
            let region = state.binding.take().map_or(MrHandle::NONE, |binding| binding.mr);
            state.add_doubt(region);
        } else if let Some(window) = self.get_mut(mw) {
            window.unpolled = unpolled.saturating_sub(1);
            window.unpolled_tags = if window.unpolled == 0 { 0 } else { unpolled_tags };
        }
    }
}

impl<P: Provider> Verbs<'_, P> {
    /// Makes an unbound window.
    ///
    /// A window that a request binds, and which the peer then writes through:
    ///
    /// ```
    /// # use bareverbs::{Access, Binding, KeyTag, MwType, Remote, SendWr};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// let region = a.register(4096, Access::LOCAL_WRITE | Access::MW_BIND)?;
    /// let mw = a.verbs.alloc_mw(a.pd, MwType::Type2)?;
    /// let (mr, addr) = (region.handle(), region.remote(0).addr);
    /// let binding = Binding { mr, addr, length: 64, access: Access::REMOTE_WRITE };
    /// qa.qp.send.post(&SendWr::bind_mw(mw, KeyTag(0x42), binding))?;
    /// qa.wait()?.result()?;
    /// let rkey = a.verbs.mw_info(mw)?.rkey;
    /// qb.qp.send.post(&SendWr::write(Remote { addr, rkey }, b"through the window"))?;
    /// qb.wait()?.result()?;
    /// // The end of the window ends the access.
    /// a.verbs.dealloc_mw(mw)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    /// # Errors
    /// The domain is stale, the table is full, or the device refuses; nothing was made.
    pub fn alloc_mw(&mut self, pd: PdHandle, kind: MwType) -> Result<MwHandle, AllocMwError<P::Error>> {
        let domain = self.pds.get(pd).ok_or(AllocMwError::StalePd)?;
        let any = self.mw_vacancy().map_err(|capacity| AllocMwError::Full { capacity })?;
        let (inner, rkey) = match self.provider.create_mw(CoreToken::NEW, &domain.inner, kind) {
            Ok(created) => created,
            Err(error) => return Err(AllocMwError::Device(self.failed(error))),
        };
        if self.has_key(rkey.index()) {
            // Not destroyed: by its index that would be the other.
            return Err(AllocMwError::Answer { fault: AnswerFault::KeyInUse { key: rkey.get() } });
        }
        let handle = self.adopt_mw(any, pd, inner, kind, rkey);
        log_event!(debug, "window {:?}: key {:?}", handle, rkey);
        Ok(handle)
    }

    /// Returns a vacant place of the table of windows, or how many it has.
    pub(crate) fn mw_vacancy(&self) -> Result<MwHandle, usize> {
        self.shared.windows.with(|windows| {
            let places = windows.cells().len();
            self.first_vacancy(windows, &mut (0..places)).ok_or(places)
        })
    }

    fn first_vacancy(&self, windows: &Windows, places: &mut dyn Iterator<Item = usize>) -> Option<MwHandle> {
        let (mws, first) = (&self.mws, self.first_generation);
        places.filter(|index| windows.is_vacant(*index)).find_map(|index| mws.vacancy_at(index, first))
    }

    /// Puts a window that was made into the table, near to where the search for its key begins.
    pub(crate) fn adopt_mw(&mut self, any: MwHandle, pd: PdHandle, inner: P::Mw, kind: MwType, rkey: Rkey) -> MwHandle {
        let near = self.shared.windows.with(|windows| self.first_vacancy(windows, &mut windows.places_of(rkey)));
        let handle = near.unwrap_or(any);
        self.join_pd(pd);
        self.mws.occupy(handle, Mw { pd, inner, region: None });
        self.shared.windows.with(|windows| windows.insert(handle, pd, kind, rkey));
        handle
    }

    /// Returns the attributes of a window, with its key and binding.
    ///
    /// ```
    /// # use bareverbs::{Access, Binding, KeyTag, MwType, SendWr};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, _qb] = connect(&mut a, &mut b)?;
    /// # let region = a.register(4096, Access::LOCAL_WRITE | Access::MW_BIND)?;
    /// let mw = a.verbs.alloc_mw(a.pd, MwType::Type2)?;
    /// assert_eq!(a.verbs.mw_info(mw)?.binding, None);
    /// let addr = region.remote(0).addr;
    /// let binding = Binding { mr: region.handle(), addr, length: 64, access: Access::REMOTE_WRITE };
    /// qa.qp.send.post(&SendWr::bind_mw(mw, KeyTag(0x42), binding))?;
    /// // Bound from the request on, and still so if that succeeds.
    /// qa.wait()?.result()?;
    /// let info = a.verbs.mw_info(mw)?;
    /// assert_eq!((info.binding, info.rkey.tag()), (Some(binding), KeyTag(0x42)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The handle is stale.
    pub fn mw_info(&self, mw: MwHandle) -> Result<MwInfo, StaleHandle> {
        self.shared.windows.with(|windows| {
            let Window { pd, kind, state, .. } = *windows.get(mw).ok_or(StaleHandle)?;
            Ok(MwInfo { pd, kind, rkey: state.rkey, binding: state.binding })
        })
    }

    /// Destroys a window, bound or not: remote access ends at once, and the region is free of it.
    ///
    /// ```
    /// # use bareverbs::{Access, Binding, KeyTag, MwType, Remote, SendWr, WcStatus};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// # let region = a.register(4096, Access::LOCAL_WRITE | Access::MW_BIND)?;
    /// # let mw = a.verbs.alloc_mw(a.pd, MwType::Type2)?;
    /// # let (mr, addr) = (region.handle(), region.remote(0).addr);
    /// # let binding = Binding { mr, addr, length: 64, access: Access::REMOTE_WRITE };
    /// # qa.qp.send.post(&SendWr::bind_mw(mw, KeyTag(0x42), binding))?;
    /// # qa.wait()?.result()?;
    /// let rkey = a.verbs.mw_info(mw)?.rkey;
    /// a.verbs.dealloc_mw(mw)?;
    /// // The peer has the key still, and may do nothing with it.
    /// qb.qp.send.post(&SendWr::write(Remote { addr, rkey }, b"late"))?;
    /// assert_eq!(qb.wait()?.status, WcStatus::RemAccessErr);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The handle is stale, binds of the window are in flight, or the device refuses; the window is as before.
    pub fn dealloc_mw(&mut self, handle: MwHandle) -> Result<(), DeallocMwError<P::Error>> {
        self.mws.get(handle).ok_or(DeallocMwError::Stale)?;
        // A bind in flight would be done to whatever window gets the number next.
        self.shared.windows.with(|windows| windows.hide(handle)).map_err(|binds| DeallocMwError::Busy { binds })?;
        // Nothing names it while it ends, also not after a panic in the middle: its key may be another's by then.
        let mut mw = self.mws.remove(handle).ok_or(DeallocMwError::Stale)?;
        let destroyed = self.provider.destroy_mw(CoreToken::NEW, &mut mw.inner);
        self.shared.windows.with(|windows| windows.end_hidden(handle, destroyed.is_ok()));
        if let Err(error) = destroyed {
            self.mws.occupy(handle, mw);
            return Err(DeallocMwError::Device(self.failed(error)));
        }
        if let Some(slot) = mw.region.and_then(|region| self.shared.regions.slots().get(usize::from(region.index()))) {
            slot.set(None);
        }
        self.leave_pd(mw.pd);
        Ok(())
    }

    /// Ends the binds of a queue pair whose requests are dropped by RESET or destruction. The device reports which of those that it knew were done.
    pub(crate) fn end_binds(&mut self, qp: QpHandle) {
        let Some(slot) = self.shared.qps.get(usize::from(qp.index())) else { return };
        // Nobody posts meanwhile.
        let doorbell_head = slot.send.head.load(Ordering::Relaxed);
        while let Some(bind) = self.shared.windows.with(|windows| windows.oldest(qp)) {
            // Not by the tail: a poller that is about to end the bind has moved that past it.
            let known = doorbell_head.wrapping_sub(bind.at).cast_signed() > 0;
            let failed = !known || !self.was_done(&bind);
            self.shared.windows.with(|windows| windows.end(&bind, failed));
        }
        // Under the lock, as every store of it: a poller may be about to subtract.
        self.shared.with_qp_states(|| slot.binds.store(0, Ordering::Relaxed));
    }

    /// Asks the device about the windows whose binding to a region the peer is said to have ended: whether it has.
    pub(crate) fn settle_doubts(&mut self, mr: MrHandle) -> Result<(), P::Error> {
        let mut from = 0;
        while let Some((at, handle, oldest)) = self.shared.windows.with(|windows| windows.doubted(mr, from)) {
            from = at.wrapping_add(1);
            let Some(mw) = self.mws.get(handle) else { continue };
            match self.provider.query_mw(CoreToken::NEW, &mw.inner) {
                Ok((rkey, is_bound)) => self.shared.windows.with(|windows| windows.settle(handle, mr, oldest, rkey, is_bound)),
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(())
    }

    fn was_done(&mut self, bind: &PendingBind) -> bool {
        let Some(mw) = self.mws.get(bind.mw) else { return true };
        match self.provider.query_mw(CoreToken::NEW, &mw.inner) {
            Ok((rkey, is_bound)) => self.shared.windows.with(|windows| windows.was_done(bind, rkey, is_bound)),
            // A device that does not answer will not let the region go either.
            Err(error) => {
                self.failed(error);
                true
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::Handle;

    fn places<const N: usize>() {
        let windows = Windows::new([const { WindowCell::EMPTY }; N]);
        let windows: &Windows = &windows;
        // The search begins at the low bits of the key's index, of as many as the table has places for.
        let begins = (0..).take_while(|log| 1 << log <= N).last().map_or(1, |log| 1 << log);
        for index in (0..3 * N as u32 + 2).chain([0xff_ffff]) {
            for tag in [0, 0xff] {
                let mut seen = [false; N];
                let mut first = None;
                for place in windows.places_of(Rkey::new(KeyTag(tag).key(index))) {
                    first.get_or_insert(place);
                    assert!(!core::mem::replace(&mut seen[place], true), "place {place} of {N} twice");
                }
                assert!(seen.into_iter().all(|seen| seen), "key {index} of {N}");
                assert_eq!(first, (N != 0).then_some(index as usize % begins));
            }
        }
    }

    /// A search visits each place of a table of any size once.
    #[test]
    #[cfg_attr(miri, ignore = "a whole domain of numbers takes minutes")]
    fn a_search_visits_each_place_once() {
        macro_rules! sizes {
            ($($size:literal)*) => { $(places::<$size>();)* };
        }
        sizes!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 63 64 65);
    }

    /// Binds of three blocks each, one after the other from each block round each wrap: the completion of each block ends those that
    /// begin there or before.
    #[test]
    #[cfg_attr(miri, ignore = "a whole domain of numbers takes minutes")]
    fn a_completion_ends_the_binds_up_to_its_block() {
        const BINDS: u64 = 5;
        let (mw, pd, qp, other): (MwHandle, _, _, QpHandle) =
            (Handle::new(0, 1), Handle::new(0, 1), Handle::new(0, 1), Handle::new(1, 1));
        for wrap in [1_u64 << 16, 1 << 32] {
            for start in wrap - 3 * BINDS - 1..=wrap + 1 {
                for last in start..start + 3 * BINDS {
                    let mut windows = Windows::new([const { WindowCell::EMPTY }; 2 * BINDS as usize]);
                    let windows: &mut Windows = &mut windows;
                    windows.insert(mw, pd, MwType::Type1, Rkey::new(0x100));
                    for n in 0..BINDS {
                        let (old, new) = (Rkey::new(0x100 + n as u32), Rkey::new(0x101 + n as u32));
                        let bind = CheckedBind { mw, old, new, lkey: Lkey::new(0), binding: None };
                        let room = windows.room().unwrap();
                        windows.post(qp, (start + 3 * n) as u32, &bind, room);
                    }
                    assert_eq!(windows.complete(other, start as u32, last as u32, false), 0);
                    let ended = (0..BINDS).filter(|n| start + 3 * n <= last).count();
                    assert_eq!(windows.complete(qp, start as u32, last as u32, false) as usize, ended, "{start:#x} {last:#x}");
                    let left = windows.oldest(qp).map(|bind| bind.at);
                    assert_eq!(left, (0..BINDS).map(|n| start + 3 * n).find(|at| *at > last).map(|at| at as u32));
                    assert_eq!(windows.get(mw).unwrap().in_flight as usize, BINDS as usize - ended);
                }
            }
        }
    }
}
