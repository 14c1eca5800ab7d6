//! Queue pairs: creation, transitions, queries, destruction.

use core::cell::Cell;

use crate::completion::Cq;
use crate::log::log_event;
use crate::recv_queue::{RecvQueue, RecvState};
use crate::send_queue::{SendLimits, SendQueue, SendState, ring_unannounced};
use crate::shared::{GONE, NO_NUMBER, QpSlot, RESET, RingCounters, Shared};
use crate::sync::Ordering;
use crate::table::TableView;
use crate::transition;
use crate::verbs::Verbs;
use crate::{
    Access, AddressVector, CoreToken, CqHandle, CqRing, CreateQpError, CreateQpParams, CreatedQp, DestroyQpError, DeviceAttr,
    ModifyQpError, PdHandle, Provider, QpAttr, QpAttrMask, QpCap, QpHandle, QpState, QpType, Qpn, QueryQpError, RecvRing,
    RingSizes, SendRing, StaleHandle, TakeError, kind,
};

/// A queue pair to make (`ibv_qp_init_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct QpInit {
    /// Protection domain.
    pub pd: PdHandle,
    /// Transport.
    pub qp_type: QpType,
    /// Queue for completions of sends.
    pub send_cq: CqHandle,
    /// Queue for completions of receives; may be the same.
    pub recv_cq: CqHandle,
    /// Least capacities.
    pub cap: QpCap,
    /// Whether every send gives a completion, signaled or not.
    pub sq_sig_all: bool,
}

/// Attributes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct QpInfo {
    /// Number.
    pub qpn: Qpn,
    /// Transport.
    pub qp_type: QpType,
    /// State.
    pub state: QpState,
    /// Protection domain.
    pub pd: PdHandle,
    /// Queue for completions of sends.
    pub send_cq: CqHandle,
    /// Queue for completions of receives.
    pub recv_cq: CqHandle,
    /// Capacities. A send that takes several blocks of the ring takes the place of as many short ones.
    pub cap: QpCap,
    /// Whether every send gives a completion.
    pub sq_sig_all: bool,
    /// Every attribute set since RESET.
    pub attr: QpAttr,
    /// Send blocks in flight.
    pub send_blocks: u32,
    /// Receives in flight.
    pub recvs: u32,
}

/// A queue pair as the control path keeps it.
pub(crate) struct Qp<P: Provider> {
    inner: P::Qp,
    qpn: Qpn,
    qp_type: QpType,
    pd: PdHandle,
    send_cq: CqHandle,
    recv_cq: CqHandle,
    cap: QpCap,
    sq_sig_all: bool,
    attr: QpAttr,
    pub(crate) send: Option<SendState<P>>,
    pub(crate) recv: Option<RecvState<P>>,
}

impl<P: Provider> Qp<P> {
    pub(crate) const fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(crate) const fn inner(&self) -> &P::Qp {
        &self.inner
    }

    fn info(&self, slot: &QpSlot<'_>) -> QpInfo {
        let state = slot.control_state();
        // What is left in rings that are draining was dropped.
        let in_flight = |ring: &RingCounters| if slot.is_draining() { 0 } else { ring.in_flight() };
        QpInfo {
            qpn: self.qpn,
            qp_type: self.qp_type,
            state,
            pd: self.pd,
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            cap: self.cap,
            sq_sig_all: self.sq_sig_all,
            attr: QpAttr { state, cur_state: state, ..self.attr },
            send_blocks: in_flight(&slot.send),
            recvs: in_flight(&slot.recv),
        }
    }
}

impl<'s, P: Provider> Verbs<'s, P> {
    /// Returns the rings of a queue pair with at least these capacities. They have room for more requests than that, and all
    /// may complete before they are polled. These are up to `send_blocks` sends, since a short one takes one block, and
    /// `recv_entries` receives. See [`Self::create_cq`].
    ///
    /// # Errors
    /// The capacities exceed the device's.
    pub fn ring_sizes(&self, qp_type: QpType, cap: &QpCap) -> Result<RingSizes, CreateQpError<P::Error>> {
        ring_sizes(&self.provider, qp_type, cap)
    }

    /// Creates a queue pair in RESET. Of the free rings it gets the smallest in which its requests fit. Its completion queues
    /// must have room for what these rings admit ([`Self::ring_sizes`]), or the program for less in flight.
    ///
    /// # Errors
    /// A handle is stale, the capacities exceed the device's or those of all rings, the table is full, or the device refuses.
    /// Or stale completions of an earlier queue pair in the slot are not polled yet. Nothing is created.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<QpHandle, CreateQpError<P::Error>> {
        let pd = self.pds.get_mut(init.pd).ok_or(CreateQpError::StalePd)?;
        let send_cq = self.cqs.get(init.send_cq).ok_or(CreateQpError::StaleCq)?;
        let recv_cq = self.cqs.get(init.recv_cq).ok_or(CreateQpError::StaleCq)?;
        let device = *self.provider.device_attr();
        let sizes = ring_sizes(&self.provider, init.qp_type, &init.cap)?;
        let (send, recv) = (sizes.send_blocks as usize, sizes.recv_entries as usize);
        let fits = |slot: &QpSlot<'_>| slot.rings.send.len() >= send && slot.rings.recv.len() >= recv;
        if !self.shared.qps.iter().any(fits) {
            let QpCap { max_send_wr, max_recv_wr, .. } = init.cap;
            let RingSizes { send_blocks: send, recv_entries: recv, .. } = sizes;
            return Err(CreateQpError::Rings { max_send_wr, max_recv_wr, send, recv });
        }
        let size = |slot: &QpSlot<'_>| slot.rings.send.len().saturating_add(slot.rings.recv.len());
        let mut chosen: Option<(QpHandle, &QpSlot<'_>)> = None;
        let mut none = CreateQpError::Full;
        for (index, slot) in self.shared.qps.iter().enumerate().filter(|(_, slot)| fits(slot)) {
            if chosen.is_none_or(|(_, other)| size(slot) < size(other))
                && let Some(handle) = self.qps.vacancy_at(index, self.first_generation)
            {
                if is_gone(slot) && !is_drained(self.shared, slot) {
                    none = CreateQpError::Draining;
                } else {
                    chosen = Some((handle, slot));
                }
            }
        }
        let (handle, slot) = chosen.ok_or(none)?;
        // Leads a completion to the slot without a search.
        let cookie = u32::from(handle.index());
        let params = CreateQpParams {
            qp_type: init.qp_type,
            pd: &pd.inner,
            send_cq: &send_cq.inner,
            recv_cq: &recv_cq.inner,
            sizes,
            cookie,
        };
        let created = match self.provider.create_qp(CoreToken::NEW, &params) {
            Ok(created) => created,
            Err(error) => return Err(CreateQpError::Device(self.failed(error))),
        };
        let CreatedQp { qp: inner, send, recv, qpn } = created;
        pd.users = pd.users.saturating_add(1);
        use_cq(self.cqs, init.send_cq, 1);
        use_cq(self.cqs, init.recv_cq, 1);
        slot.send.start_at(0);
        slot.recv.start_at(0);
        slot.binds.store(0, Ordering::Relaxed);
        slot.set_state(QpState::Reset);
        slot.unreliable.store(u32::from(matches!(init.qp_type, QpType::Uc | QpType::Ud)), Ordering::Relaxed);
        slot.pd.store(u32::from(init.pd.index()), Ordering::Relaxed);
        let cqs = u32::from(init.send_cq.index()) << 16 | u32::from(init.recv_cq.index());
        slot.cqs.store(cqs, Ordering::Relaxed);
        slot.cookie.store(cookie, Ordering::Relaxed);
        slot.generation.store(handle.generation(), Ordering::Relaxed);
        slot.draining.store(0, Ordering::Relaxed);
        slot.qpn.store(qpn.get(), Ordering::Release);
        let limits = SendLimits::new(handle, init.qp_type, init.pd, &sizes, init.sq_sig_all, &device);
        let qp = Qp {
            inner,
            qpn,
            qp_type: init.qp_type,
            pd: init.pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            cap: sizes.cap,
            sq_sig_all: init.sq_sig_all,
            attr: QpAttr::default(),
            send: Some(SendState { ring: send, limits, head: Cell::new(0), doorbell_head: Cell::new(0) }),
            recv: Some(RecvState {
                ring: recv,
                handle,
                pd: init.pd,
                max_sge: sizes.cap.max_recv_sge,
                entries: sizes.recv_entries,
                head: 0,
            }),
        };
        self.qps.occupy(handle, qp);
        log_event!(debug, "queue pair {:?}: number {:?}, {:?}", handle, qpn, init.qp_type);
        Ok(handle)
    }

    /// Changes those attributes of a queue pair that `mask` names, its state among them. In RESET nothing that was posted is
    /// left, and no completion of it. In ERR everything that was posted completes.
    ///
    /// A queue pair whose queues are taken ([`Self::take_send_queue`]) can be moved to every state but RESET.
    ///
    /// # Errors
    /// The handle is stale, attributes or transition are invalid, or the device refuses. Or stale completions are not polled
    /// yet, from before the last RESET or of an earlier queue pair with the number. The queue pair is as before.
    pub fn modify_qp(&mut self, handle: QpHandle, attr: &QpAttr, mask: QpAttrMask) -> Result<(), ModifyQpError<P::Error>> {
        let device = *self.provider.device_attr();
        let qp = self.qps.get_mut(handle).ok_or(ModifyQpError::Stale)?;
        let slot = self.shared.qps.get(usize::from(handle.index())).ok_or(ModifyQpError::Stale)?;
        let actual = slot.control_state();
        let from =
            assumed_state(qp.qp_type, actual, attr, mask).ok_or(ModifyQpError::CurState { assumed: attr.cur_state, actual })?;
        let to = if mask.contains(QpAttrMask::STATE) { attr.state } else { from };
        let rule = transition::rule(qp.qp_type, from, to).ok_or(ModifyQpError::Transition { from, to })?;
        let missing = rule.required.difference(mask);
        let forbidden = mask.difference(rule.required | rule.optional | QpAttrMask::STATE);
        if !missing.is_empty() || !forbidden.is_empty() {
            return Err(ModifyQpError::Attributes { from, to, missing, forbidden });
        }
        if let Some(Checked { attribute, value, min, max }) = out_of_range(&device, attr, mask) {
            return Err(ModifyQpError::Value { attribute, value, min, max });
        }
        let here = qp.send.is_some() && qp.recv.is_some();
        if to == QpState::Reset && !here {
            return Err(ModifyQpError::Taken);
        }
        if slot.is_draining() && to != QpState::Reset {
            if !is_drained(self.shared, slot) {
                log_event!(debug, "queue pair {:?} is still draining", handle);
                return Err(ModifyQpError::Draining);
            }
            slot.send.start_at(0);
            slot.recv.start_at(0);
            // A poller at the time of the RESET may have written ERR after it.
            slot.set_state(QpState::Reset);
            slot.draining.store(0, Ordering::Relaxed);
            log_event!(debug, "queue pair {:?} is drained", handle);
        }
        if from == QpState::Reset && to != QpState::Reset && !free_number(self.shared, qp.qpn) {
            return Err(ModifyQpError::Draining);
        }
        let mut all = qp.attr;
        merge(&mut all, attr, mask, from, to);
        if let Err(error) = self.provider.modify_qp(CoreToken::NEW, &mut qp.inner, from, &all, mask) {
            return Err(ModifyQpError::Device(self.failed(error)));
        }
        log_event!(debug, "queue pair {:?}: {:?} to {:?}", handle, from, to);
        // Again, since that is less code than a copy that may overlap.
        merge(&mut qp.attr, attr, mask, from, to);
        if to != actual {
            slot.set_state(to);
        }
        if to == QpState::Err
            && let Some(send) = &mut qp.send
        {
            // The device flushes only what it knows of.
            ring_unannounced(send, &self.shared);
        }
        if to == QpState::Reset {
            qp.attr = QpAttr::default();
            self.drop_requests(handle, RESET);
            if let Some(Qp { send: Some(send), recv: Some(recv), .. }) = self.qps.get_mut(handle) {
                send.ring.reset();
                recv.ring.reset();
                send.head.set(0);
                send.doorbell_head.set(0);
                recv.head = 0;
            }
            // A window whose bind was pending was queried, and the device was found lost: the mark of that is gone with the requests.
            if let Some((loss, _)) = self.provider.lost() {
                self.lose(loss);
            }
        }
        Ok(())
    }

    /// Takes a queue pair from RESET over INIT and RTR to RTS, with the attributes of `attr` that each transition requires for
    /// its transport (IBTA table 91); `attr.state` is ignored.
    ///
    /// # Errors
    /// A transition was refused: the queue pair is in the state before it.
    pub fn connect(&mut self, qp: QpHandle, attr: &QpAttr) -> Result<(), ModifyQpError<P::Error>> {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let now = self.qp(qp).map_err(|StaleHandle| ModifyQpError::Stale)?;
            let required = transition::rule(now.qp_type, now.state, state).map_or(QpAttrMask::empty(), |rule| rule.required);
            self.modify_qp(qp, &QpAttr { state, ..*attr }, QpAttrMask::STATE | required)?;
        }
        Ok(())
    }

    /// Returns the attributes of a queue pair that the verbs keep, without a command to the device.
    ///
    /// # Errors
    /// The handle is stale.
    pub fn qp(&self, handle: QpHandle) -> Result<QpInfo, StaleHandle> {
        let qp = self.qps.get(handle).ok_or(StaleHandle)?;
        let slot = self.shared.qps.get(usize::from(handle.index())).ok_or(StaleHandle)?;
        Ok(qp.info(slot))
    }

    /// Returns the attributes of a queue pair, with the state and the next PSNs that it has in the device now.
    ///
    /// # Errors
    /// The handle is stale, or the device does not answer.
    pub fn query_qp(&mut self, handle: QpHandle) -> Result<QpInfo, QueryQpError<P::Error>> {
        let qp = self.qps.get(handle).ok_or(QueryQpError::Stale)?;
        let slot = self.shared.qps.get(usize::from(handle.index())).ok_or(QueryQpError::Stale)?;
        let answer = self.provider.query_qp(&qp.inner);
        let (state, rq_psn, sq_psn) = answer.map_err(|error| QueryQpError::Device(self.failed(error)))?;
        // One that is draining stays in RESET, whatever the device says: until the end of it nothing may be posted.
        if !slot.is_draining() {
            slot.set_state(state);
        }
        let mut info = qp.info(slot);
        (info.attr.rq_psn, info.attr.sq_psn) = (rq_psn, sq_psn);
        Ok(info)
    }

    /// Destroys a queue pair with all that is posted. No completion of it is returned afterwards.
    ///
    /// # Errors
    /// The handle is stale, a queue of the queue pair is taken ([`Self::take_send_queue`]), or the device refuses. The queue
    /// pair is as before.
    pub fn destroy_qp(&mut self, handle: QpHandle) -> Result<(), DestroyQpError<P::Error>> {
        let qp = self.qps.get_mut(handle).ok_or(DestroyQpError::Stale)?;
        if qp.send.is_none() || qp.recv.is_none() {
            return Err(DestroyQpError::Taken);
        }
        if let Err(error) = self.provider.destroy_qp(CoreToken::NEW, &mut qp.inner) {
            return Err(DestroyQpError::Device(self.failed(error)));
        }
        let (pd, send_cq, recv_cq) = (qp.pd, qp.send_cq, qp.recv_cq);
        self.drop_requests(handle, GONE);
        self.qps.remove(handle);
        self.leave_pd(pd);
        use_cq(self.cqs, send_cq, -1);
        use_cq(self.cqs, recv_cq, -1);
        Ok(())
    }

    /// Drops what was posted and its completions, after the device did. Completion queues that are split off drop them when
    /// they are polled, and report it: until then the slot is draining.
    fn drop_requests(&mut self, handle: QpHandle, why: u32) {
        let Some(Qp { send: Some(send), send_cq, recv_cq, qpn, .. }) = self.qps.get(handle) else { return };
        let (doorbell_head, send_cq, recv_cq, qpn) = (send.doorbell_head.get(), *send_cq, *recv_cq, *qpn);
        self.end_binds(handle, doorbell_head);
        let Some(slot) = self.shared.qps.get(usize::from(handle.index())) else { return };
        // Before the queues are asked to drop its completions, so that they know whose.
        slot.draining.store(why, Ordering::Release);
        let mut all_here = true;
        for (cq, again) in [(send_cq, false), (recv_cq, recv_cq == send_cq)] {
            let Some(queue) = self.cqs.get_mut(cq).filter(|_| !again) else { continue };
            match &mut queue.queue {
                Some(state) => state.ring.clean(qpn),
                None => {
                    all_here = false;
                    if let Some(cq) = self.shared.cqs.get(usize::from(cq.index())) {
                        let wanted = cq.clean_wanted.load(Ordering::Relaxed).wrapping_add(1);
                        cq.clean_wanted.store(wanted, Ordering::Release);
                        // A sleeping poller would not poll, and the slot would drain for ever.
                        cq.wake();
                    }
                }
            }
        }
        // A poller on another core goes on with the counters until it has seen that the slot is draining.
        if all_here {
            slot.send.start_at(0);
            slot.recv.start_at(0);
            slot.draining.store(0, Ordering::Relaxed);
            if why == GONE {
                slot.qpn.store(NO_NUMBER, Ordering::Relaxed);
            }
        } else {
            log_event!(debug, "queue pair {:?} is draining: a completion queue of it is taken", handle);
        }
    }

    /// Splits the send queue of a queue pair off, to be used independently on any core. [`Self::return_send_queue`] puts it
    /// back; until then the queue pair can neither be reset nor destroyed.
    ///
    /// # Errors
    /// The handle is stale, or the queue is taken already.
    pub fn take_send_queue(&mut self, qp: QpHandle) -> Result<SendQueue<'s, P>, TakeError> {
        let qp = self.qps.get_mut(qp).ok_or(TakeError::Stale)?;
        let state = qp.send.take().ok_or(TakeError::Taken)?;
        Ok(SendQueue { state, shared: self.shared })
    }

    /// Puts a send queue back; one of other verbs is given back.
    ///
    /// # Errors
    /// The queue was not taken from these verbs.
    #[expect(clippy::result_large_err, reason = "the queue itself is given back")]
    pub fn return_send_queue(&mut self, queue: SendQueue<'s, P>) -> Result<(), SendQueue<'s, P>> {
        let ours = self.is_ours(queue.shared);
        match self.qps.get_mut(queue.qp()) {
            Some(qp) if ours && qp.send.is_none() => {
                let slot = self.shared.qps.get(usize::from(queue.qp().index()));
                if let Some(slot) = slot.filter(|slot| slot.loss().is_some()) {
                    // With those of a batch that was forgotten, as in `lose`.
                    slot.send.head.store(queue.state.head.get(), Ordering::Release);
                }
                qp.send = Some(queue.state);
                Ok(())
            }
            _ => Err(queue),
        }
    }

    /// Splits the receive queue of a queue pair off, as [`Self::take_send_queue`] does the send queue.
    ///
    /// # Errors
    /// The handle is stale, or the queue is taken already.
    pub fn take_recv_queue(&mut self, qp: QpHandle) -> Result<RecvQueue<'s, P>, TakeError> {
        let qp = self.qps.get_mut(qp).ok_or(TakeError::Stale)?;
        let state = qp.recv.take().ok_or(TakeError::Taken)?;
        Ok(RecvQueue { state, shared: self.shared })
    }

    /// Puts a receive queue back; one of other verbs is given back.
    ///
    /// # Errors
    /// The queue was not taken from these verbs.
    pub fn return_recv_queue(&mut self, queue: RecvQueue<'s, P>) -> Result<(), RecvQueue<'s, P>> {
        let ours = self.is_ours(queue.shared);
        match self.qps.get_mut(queue.qp()) {
            Some(qp) if ours && qp.recv.is_none() => {
                qp.recv = Some(queue.state);
                Ok(())
            }
            _ => Err(queue),
        }
    }
}

/// Implements [`Verbs::ring_sizes`].
fn ring_sizes<P: Provider>(provider: &P, qp_type: QpType, cap: &QpCap) -> Result<RingSizes, CreateQpError<P::Error>> {
    let max = most(provider.device_attr());
    if exceeds(cap, &max) {
        return Err(CreateQpError::Capacity { wanted: *cap, max });
    }
    let sizes = provider.ring_sizes(qp_type, cap).map_err(CreateQpError::Device)?;
    let sensible = |length: u32| length == 0 || length.is_power_of_two() && length <= 1 << 15;
    if !sensible(sizes.send_blocks) || !sensible(sizes.recv_entries) {
        return Err(CreateQpError::ForeignRings { send: sizes.send_blocks, recv: sizes.recv_entries });
    }
    Ok(sizes)
}

/// Returns whether a slot is that of a queue pair that is gone, and whose completions are to be dropped.
fn is_gone(slot: &QpSlot<'_>) -> bool {
    slot.draining.load(Ordering::Relaxed) == GONE
}

/// Returns whether the completion queues of a slot that is draining were found empty since.
fn is_drained(shared: Shared<'_>, slot: &QpSlot<'_>) -> bool {
    [slot.send_cq(), slot.recv_cq()].into_iter().all(|index| {
        shared.cqs.get(usize::from(index)).is_none_or(|cq| {
            cq.clean_done.load(Ordering::Acquire) == cq.clean_wanted.load(Ordering::Relaxed)
                || cq.cqn.load(Ordering::Relaxed) == NO_NUMBER
        })
    })
}

/// Frees the slots of queue pairs that are gone and had this number; `false` if completions of one of them are not polled yet.
/// A queue pair in RESET gives no completions: until it leaves that, all with its number are of those before it.
fn free_number(shared: Shared<'_>, qpn: Qpn) -> bool {
    let mut gone = shared.qps.iter().filter(|slot| is_gone(slot) && slot.qpn() == qpn);
    gone.all(|slot| {
        let free = is_drained(shared, slot);
        if free {
            slot.qpn.store(NO_NUMBER, Ordering::Relaxed);
            slot.draining.store(0, Ordering::Relaxed);
        }
        free
    })
}

/// Counts one work queue more or fewer that completes into a queue.
fn use_cq<P: Provider>(cqs: &mut TableView<kind::Cq, Cq<P>>, handle: CqHandle, change: i32) {
    if let Some(cq) = cqs.get_mut(handle) {
        cq.users = cq.users.saturating_add_signed(change);
    }
}

/// Returns the maximum capacities of a queue pair.
fn most(device: &DeviceAttr) -> QpCap {
    QpCap {
        max_send_wr: device.max_qp_wr,
        max_recv_wr: device.max_qp_wr,
        max_send_sge: device.max_sge,
        max_recv_sge: device.max_sge,
        max_inline_data: device.max_inline_data,
    }
}

fn exceeds(cap: &QpCap, max: &QpCap) -> bool {
    cap.max_send_wr > max.max_send_wr
        || cap.max_recv_wr > max.max_recv_wr
        || cap.max_send_sge > max.max_send_sge
        || cap.max_recv_sge > max.max_recv_sge
        || cap.max_inline_data > max.max_inline_data
}

/// Returns the state that a modify starts from. A caller may know before this library that the send queue of an unreliable
/// queue pair is in error; anything else that it assumes must be so. `None` if it is not.
fn assumed_state(qp_type: QpType, state: QpState, attr: &QpAttr, mask: QpAttrMask) -> Option<QpState> {
    if !mask.contains(QpAttrMask::CUR_STATE) || attr.cur_state == state {
        return Some(state);
    }
    let unreliable = matches!(qp_type, QpType::Uc | QpType::Ud);
    let unnoticed = unreliable && attr.cur_state == QpState::Sqe && matches!(state, QpState::Rts | QpState::Sqd);
    if unnoticed { Some(QpState::Sqe) } else { None }
}

/// Rights that incoming requests of a queue pair may be given. LOCAL_WRITE says nothing here and is customary.
const QP_ACCESS: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// The value of an attribute, and its range.
#[derive(Clone, Copy)]
struct Checked {
    attribute: QpAttrMask,
    value: u32,
    min: u32,
    max: u32,
}

/// Returns the first attribute of `mask` whose value is out of range.
fn out_of_range(device: &DeviceAttr, attr: &QpAttr, mask: QpAttrMask) -> Option<Checked> {
    const NUMBER: u32 = (1 << 24) - 1;
    let ports = u32::from(device.phys_port_cnt);
    let flow_label = |av: &AddressVector| av.grh.map_or(0, |grh| grh.flow_label);
    macro_rules! values {
        ($($attribute:ident: $value:expr, $min:expr, $max:expr;)+) => {
            [$(Checked { attribute: QpAttrMask::$attribute, value: u32::from($value), min: $min, max: $max }),+]
        };
    }
    // A path without a port of its own uses the queue pair's.
    let values = values! {
        ACCESS_FLAGS: attr.access.difference(QP_ACCESS).bits(), 0, 0;
        PORT: attr.port_num, 1, ports;
        AV: attr.av.sl, 0, 15;
        AV: flow_label(&attr.av), 0, (1 << 20) - 1;
        AV: attr.av.port_num, 0, ports;
        ALT_PATH: attr.alt_av.sl, 0, 15;
        ALT_PATH: flow_label(&attr.alt_av), 0, (1 << 20) - 1;
        ALT_PATH: attr.alt_av.port_num, 0, ports;
        ALT_PATH: attr.alt_timeout, 0, 31;
        TIMEOUT: attr.timeout, 0, 31;
        RETRY_CNT: attr.retry_cnt, 0, 7;
        RNR_RETRY: attr.rnr_retry, 0, 7;
        RQ_PSN: attr.rq_psn.get(), 0, NUMBER;
        SQ_PSN: attr.sq_psn.get(), 0, NUMBER;
        MAX_QP_RD_ATOMIC: attr.max_rd_atomic, 0, u32::from(device.max_qp_init_rd_atom);
        MAX_DEST_RD_ATOMIC: attr.max_dest_rd_atomic, 0, u32::from(device.max_qp_rd_atom);
        MIN_RNR_TIMER: attr.min_rnr_timer, 0, 31;
        DEST_QPN: attr.dest_qpn.get(), 0, NUMBER;
    };
    values.into_iter().find(|one| mask.contains(one.attribute) && !(one.min..=one.max).contains(&one.value))
}

/// Puts those attributes of `new` into `all` that `mask` names, and the states.
#[inline(never)]
fn merge(all: &mut QpAttr, new: &QpAttr, mask: QpAttrMask, from: QpState, to: QpState) {
    (all.cur_state, all.state) = (from, to);
    macro_rules! take {
        ($($flag:ident: $($field:ident),+;)+) => {
            $(if mask.contains(QpAttrMask::$flag) { $(all.$field = new.$field;)+ })+
        };
    }
    take! {
        EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify;
        ACCESS_FLAGS: access;
        PKEY_INDEX: pkey_index;
        PORT: port_num;
        QKEY: qkey;
        AV: av;
        PATH_MTU: path_mtu;
        TIMEOUT: timeout;
        RETRY_CNT: retry_cnt;
        RNR_RETRY: rnr_retry;
        RQ_PSN: rq_psn;
        MAX_QP_RD_ATOMIC: max_rd_atomic;
        ALT_PATH: alt_av, alt_pkey_index, alt_timeout;
        MIN_RNR_TIMER: min_rnr_timer;
        SQ_PSN: sq_psn;
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        PATH_MIG_STATE: path_mig_state;
        DEST_QPN: dest_qpn;
    }
}
