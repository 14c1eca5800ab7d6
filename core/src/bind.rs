//! Binds in flight: what a window was before, so that a failed bind leaves it as it was.

use heapless::VecView;

use crate::parts::{Mr, Mw, Parts, Qp};
use crate::table::TableView;
use crate::{
    Access, BindRefused, Binding, Lkey, MrHandle, MwHandle, MwType, PdHandle, Provider, QpHandle, Rkey, SendFlags, kind,
};

/// A type 1 bind (`ibv_mw_bind`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct MwBind {
    /// Returned in the completion.
    pub wr_id: u64,
    /// FENCE and SIGNALED.
    pub flags: SendFlags,
    /// Region to bind to; ignored when `length` is 0.
    pub mr: MrHandle,
    /// First byte, in the address space of the region.
    pub addr: u64,
    /// Length in bytes; 0 unbinds.
    pub length: u64,
    /// Remote rights, and `ZERO_BASED`.
    pub access: Access,
}

/// What a bind changes of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowState {
    pub(crate) rkey: Rkey,
    pub(crate) binding: Option<Binding>,
}

/// A bind or invalidation in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingBind {
    pub(crate) qp: QpHandle,
    /// Its block in the send ring of the queue pair.
    pub(crate) at: u32,
    pub(crate) mw: MwHandle,
    /// What the window is again if it fails. Its binding counts as one of its region.
    pub(crate) previous: WindowState,
}

/// Access that a window can have.
const WINDOW_ACCESS: Access =
    Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC).union(Access::ZERO_BASED);

/// One more binding holds its region.
pub(crate) fn hold<P: Provider>(mrs: &mut TableView<kind::Mr, Mr<P>>, binding: Option<Binding>) {
    if let Some(mr) = binding.and_then(|binding| mrs.get_mut(binding.mr)) {
        mr.bindings = mr.bindings.saturating_add(1);
    }
}

/// One binding fewer holds its region.
pub(crate) fn release<P: Provider>(mrs: &mut TableView<kind::Mr, Mr<P>>, binding: Option<Binding>) {
    if let Some(mr) = binding.and_then(|binding| mrs.get_mut(binding.mr)) {
        mr.bindings = mr.bindings.saturating_sub(1);
    }
}

/// First check of a binding: handles and flags that make no sense wherever it is posted.
pub(crate) fn check_arguments<P: Provider>(mrs: &TableView<kind::Mr, Mr<P>>, binding: &Binding) -> Result<(), BindRefused> {
    let access = binding.access.difference(WINDOW_ACCESS);
    if !access.is_empty() {
        return Err(BindRefused::AccessFlags { access });
    }
    if binding.length != 0 && mrs.get(binding.mr).is_none() {
        return Err(BindRefused::StaleRegion);
    }
    Ok(())
}

/// Second check of a binding: domains, rights and range. Gives the key of the region and what the window will be bound to.
pub(crate) fn check_binding<P: Provider>(
    mrs: &TableView<kind::Mr, Mr<P>>,
    qp_pd: PdHandle,
    mw: &Mw<P>,
    binding: &Binding,
) -> Result<(Lkey, Option<Binding>), BindRefused> {
    if mw.pd != qp_pd {
        return Err(BindRefused::Domain);
    }
    if binding.length == 0 {
        return Ok((Lkey::new(0), None));
    }
    let mr = mrs.get(binding.mr).ok_or(BindRefused::StaleRegion)?;
    if mr.pd != qp_pd {
        return Err(BindRefused::Domain);
    }
    if !mr.access.contains(Access::MW_BIND) {
        return Err(BindRefused::NoBindRight);
    }
    let writes = binding.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    if writes && !mr.access.contains(Access::LOCAL_WRITE) {
        return Err(BindRefused::NoLocalWrite);
    }
    if binding.addr.checked_add(binding.length).is_none() {
        return Err(BindRefused::Overflow);
    }
    if !mr.holds(binding.addr, binding.length) {
        return Err(BindRefused::Range);
    }
    Ok((mr.lkey, Some(*binding)))
}

/// The key that a type 1 bind gives: the low byte one further.
pub(crate) const fn next_key(rkey: Rkey) -> Rkey {
    with_tag(rkey, (rkey.get() as u8).wrapping_add(1))
}

/// A key with another low byte.
pub(crate) const fn with_tag(rkey: Rkey, tag: u8) -> Rkey {
    Rkey::new((rkey.get() & !0xff) | tag as u32)
}

/// Puts a window into the state that a posted bind will give it and remembers how it was.
pub(crate) fn remember<P: Provider>(
    mrs: &mut TableView<kind::Mr, Mr<P>>,
    mws: &mut TableView<kind::Mw, Mw<P>>,
    binds: &mut VecView<PendingBind>,
    qp: (QpHandle, &mut Qp<P>),
    at: u32,
    mw: MwHandle,
    next: WindowState,
) {
    let (handle, qp) = qp;
    let Some(window) = mws.get_mut(mw) else { return };
    let previous = core::mem::replace(&mut window.state, next);
    hold(mrs, next.binding);
    if binds.push(PendingBind { qp: handle, at, mw, previous }).is_ok() {
        qp.pending = qp.pending.saturating_add(1);
    } else {
        // The caller has seen that there is room; without a record the old binding can hold nothing any more.
        release(mrs, previous.binding);
    }
}

/// The tables that the end of a bind touches.
pub(crate) struct Windows<'a, P: Provider> {
    pub(crate) mrs: &'a mut TableView<kind::Mr, Mr<P>>,
    pub(crate) mws: &'a mut TableView<kind::Mw, Mw<P>>,
    pub(crate) binds: &'a mut VecView<PendingBind>,
}

impl<P: Provider> Windows<'_, P> {
    /// Ends every bind of a queue pair up to its block `last`, which `failed` or not; those before it have succeeded.
    ///
    /// Called before the ring lets go of the blocks.
    #[cold]
    #[inline(never)]
    pub(crate) fn settle(&mut self, handle: QpHandle, qp: &mut Qp<P>, last: u32, failed: bool) {
        let reach = qp.send.age(last);
        let mut index = 0;
        while let Some(record) = self.binds.as_slice().get(index).copied() {
            if record.qp != handle || qp.send.age(record.at) > reach {
                index = index.wrapping_add(1);
                continue;
            }
            qp.pending = qp.pending.saturating_sub(1);
            take(self.binds, index);
            if failed && record.at == last {
                self.bring_back(&record, index);
            } else {
                release(self.mrs, record.previous.binding);
            }
        }
    }

    /// Undoes a failed bind, whose record has just been taken from place `index`.
    fn bring_back(&mut self, record: &PendingBind, index: usize) {
        // If a later bind of the window fails too, it must bring back what this one has found.
        let later = self.binds.as_mut_slice().iter_mut().skip(index).find(|later| later.mw == record.mw);
        let state = match later {
            Some(later) => Some(&mut later.previous),
            None => self.mws.get_mut(record.mw).map(|mw| &mut mw.state),
        };
        let gone = match state {
            Some(state) => core::mem::replace(state, record.previous),
            None => record.previous,
        };
        release(self.mrs, gone.binding);
    }

    /// The peer has invalidated the type 2 window of domain `pd` with this key.
    #[cold]
    #[inline(never)]
    pub(crate) fn invalidate(&mut self, pd: PdHandle, rkey: Rkey) {
        let named = |mw: &Mw<P>| mw.kind == MwType::Type2 && mw.pd == pd && mw.state.rkey == rkey;
        if let Some((_, mw)) = self.mws.iter_mut().find(|(_, mw)| named(mw)) {
            let binding = mw.state.binding.take();
            release(self.mrs, binding);
        }
    }
}

impl<P: Provider> Parts<'_, P> {
    /// Drops the records of binds whose end will never be told; their windows stay as the binds were to leave them.
    pub(crate) fn forget_binds(&mut self, of: impl Fn(&PendingBind) -> bool) {
        let mut index = 0;
        while let Some(record) = self.binds.as_slice().get(index).copied() {
            if !of(&record) {
                index = index.wrapping_add(1);
                continue;
            }
            take(self.binds, index);
            release(self.mrs, record.previous.binding);
            if let Some(qp) = self.qps.get_mut(record.qp) {
                qp.pending = qp.pending.saturating_sub(1);
            }
        }
    }
}

/// Takes a record out; the others stay in the order in which they were posted.
fn take(binds: &mut VecView<PendingBind>, index: usize) {
    if let Some(rest) = binds.as_mut_slice().get_mut(index..)
        && !rest.is_empty()
    {
        rest.rotate_left(1);
        binds.pop();
    }
}
