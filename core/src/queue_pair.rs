//! Queue pairs: creation, transitions, queries, destruction.

use core::cell::Cell;

use crate::backend::{CoreToken, CreateQpParams, CreatedQp, Provider};
use crate::completion::Cq;
use crate::error::{
    AddressPart, AnswerFault, AttachMcastError, CreateQpError, DestroyQpError, DetachMcastError, LinkFault, ModifyQpError,
    QueryQpError, StaleHandle,
};
use crate::link::check_path;
use crate::log::log_event;
use crate::recv_queue::{ReceiveSide, RecvQueue};
use crate::send_queue::{PostNamed, SendLimits, SendQueue};
use crate::shared::{CqSlot, GONE, LoseOnDrop, NO_NUMBER, Owner, QpSlot, RESET, RingCounters, Shared, domain_word, is_dropped};
use crate::storage::RingSizes;
use crate::sync::Ordering;
use crate::table::Table;
use crate::verbs::Verbs;
use crate::{
    Access, AddressVector, CqHandle, DeviceAttr, Gid, LinkLayer, Mtu, PathMigState, PdHandle, PortAttr, PortState, Qkey,
    QpAttr, QpAttrMask, QpCap, QpHandle, QpState, QpType, Qpn, Refused, SrqHandle, Xrcdn, kind, transition,
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
#[non_exhaustive]
pub struct QpInfo {
    /// Number.
    pub qpn: Qpn,
    /// Transport.
    pub qp_type: QpType,
    /// State.
    pub state: QpState,
    /// In SQD: whether sends that had begun are not done yet. Always `false` from [`Verbs::qp_info`], which does not ask the device.
    pub sq_draining: bool,
    /// Protection domain; [`Handle::NONE`](crate::Handle::NONE) of a target of XRC.
    pub pd: PdHandle,
    /// Queue for completions of sends; none of a target of XRC.
    pub send_cq: CqHandle,
    /// Queue for completions of receives; none of an XRC queue pair.
    pub recv_cq: CqHandle,
    /// Shared receive queue that it takes its receives from, if any.
    pub srq: Option<SrqHandle>,
    /// Capacities. A send that takes several blocks of the ring takes the place of as many short ones.
    pub cap: QpCap,
    /// Whether every send gives a completion.
    pub sq_sig_all: bool,
    /// Every attribute set since RESET.
    pub attr: QpAttr,
    /// Send blocks in flight.
    pub send_blocks: u32,
    /// Receives in flight; 0 with a shared receive queue.
    pub recvs: u32,
}

/// Multicast groups of a queue pair, at most. Each takes 16 bytes of every queue pair's slot.
pub const MCAST_GROUPS: usize = 4;

/// In place of a group: no group has this GID.
const NO_GROUP: Gid = Gid([0; 16]);

/// A queue pair as the control path keeps it.
pub(crate) struct Qp<P: Provider> {
    inner: P::Qp,
    qpn: Qpn,
    qp_type: QpType,
    pd: PdHandle,
    send_cq: CqHandle,
    recv_cq: CqHandle,
    srq: Option<SrqHandle>,
    cap: QpCap,
    sq_sig_all: bool,
    attr: QpAttr,
    /// XRC domain that it is in.
    pub(crate) domain: Option<Xrcdn>,
    /// Multicast groups that it is in.
    groups: [Gid; MCAST_GROUPS],
}

/// A queue pair: the owner of its send queue posts sends, the owner of its receive queue posts receives, on any core. The two
/// are taken apart and put together as any value. [`Verbs::reset_qp`] and [`Verbs::destroy_qp`] want both of the same queue
/// pair, so that nobody posts meanwhile.
///
/// A queue that is dropped leaves a queue pair that cannot be posted to. [`Verbs::destroy_dropped_qp`] destroys that.
///
/// One that takes its receives from a shared receive queue ([`Verbs::create_qp_with_srq`]) has [`SharedReceives`](crate::SharedReceives) in place of the
/// receive queue, so that nothing can be posted to it alone:
///
/// ```compile_fail,E0599
/// # use bareverbs::backend::Provider;
/// # use bareverbs::{QueuePair, RecvWr, SharedReceives};
/// fn post<'s, P: Provider>(qp: &mut QueuePair<'s, P, SharedReceives>, wr: &RecvWr<'_>) {
///     let _ = qp.recv.post(wr);
/// }
/// ```
#[derive(Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[must_use = "nobody posts to a queue pair whose value is dropped"]
pub struct QueuePair<'s, P: Provider, R = RecvQueue<'s, P>> {
    /// Posts sends.
    pub send: SendQueue<'s, P>,
    /// Posts receives; or names the shared receive queue where they are posted.
    pub recv: R,
}

impl<P: Provider, R> QueuePair<'_, P, R> {
    /// Returns the handle of the queue pair, for calls of the control path during which its queues may be posted to.
    pub const fn handle(&self) -> QpHandle {
        self.send.qp()
    }
}

impl<P: Provider> Qp<P> {
    pub(crate) const fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Makes the alternate path its path.
    pub(crate) const fn migrate(&mut self) {
        let attr = &mut self.attr;
        (attr.av, attr.pkey_index, attr.timeout) = (attr.alt_av, attr.alt_pkey_index, attr.alt_timeout);
        attr.path_mig_state = PathMigState::Migrated;
    }

    pub(crate) const fn inner(&self) -> &P::Qp {
        &self.inner
    }

    fn info(&self, slot: &QpSlot<'_>) -> QpInfo {
        let state = slot.state();
        // What is left in rings that are draining was dropped.
        let in_flight = |ring: &RingCounters| if slot.is_draining() { 0 } else { ring.in_flight() };
        QpInfo {
            qpn: self.qpn,
            qp_type: self.qp_type,
            state,
            sq_draining: false,
            pd: self.pd,
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            srq: self.srq,
            cap: self.cap,
            sq_sig_all: self.sq_sig_all,
            attr: QpAttr { state, cur_state: state, ..self.attr },
            send_blocks: in_flight(&slot.send),
            recvs: in_flight(&slot.recv),
        }
    }
}

impl<'s, P: Provider> Verbs<'s, P> {
    /// Returns the rings of a queue pair with at least these capacities. They may have room for more requests than that, and all
    /// may complete before they are polled. These are up to `send_blocks` sends, since a short one takes one block, and
    /// `recv_entries` receives. [`Self::create_cq`] has an example.
    ///
    /// # Errors
    /// The capacities exceed the device's.
    pub fn ring_sizes(&self, qp_type: QpType, cap: &QpCap) -> Result<RingSizes, CreateQpError<P::Error>> {
        // The target of XRC has none.
        if qp_type == QpType::XrcRecv { Ok(RingSizes::default()) } else { ring_sizes(&self.provider, qp_type, cap) }
    }

    /// Implements [`Self::create_qp`] and [`Self::create_qp_with_srq`]; `named` posts datagrams, if the queue pair is one for them. The
    /// receive queue of one with a shared receive queue has no entries, and is dropped.
    #[inline(never)]
    pub(crate) fn create_qp_with(
        &mut self,
        init: &QpInit,
        srq: Option<SrqHandle>,
        named: Option<PostNamed<P>>,
    ) -> Result<QueuePair<'s, P>, CreateQpError<P::Error>> {
        let mut cap = init.cap;
        if srq.is_some() {
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
            if !matches!(init.qp_type, QpType::Rc | QpType::Ud) {
                return Err(CreateQpError::SrqTransport { qp_type: init.qp_type });
            }
        }
        if [init.send_cq, init.recv_cq].into_iter().any(|cq| self.is_cq_dropped(cq)) {
            return Err(CreateQpError::StaleCq);
        }
        let pd = self.pds.get(init.pd).ok_or(CreateQpError::StalePd)?;
        let send_cq = self.cqs.get(init.send_cq).ok_or(CreateQpError::StaleCq)?;
        let recv_cq = self.cqs.get(init.recv_cq).ok_or(CreateQpError::StaleCq)?;
        let sizes = ring_sizes(&self.provider, init.qp_type, &cap)?;
        let taken_from = match srq {
            Some(srq) => Some(self.srqs.get(srq).ok_or(CreateQpError::StaleSrq)?),
            None => None,
        };
        if taken_from.is_some_and(|srq| srq.domain.is_some()) {
            return Err(CreateQpError::XrcSrq);
        }
        let place = self.place_of_qp(&cap, &sizes)?;
        let params = CreateQpParams {
            qp_type: init.qp_type,
            pd: &pd.inner,
            send_cq: &send_cq.inner,
            recv_cq: &recv_cq.inner,
            srq: taken_from.map(|srq| &srq.inner),
            sizes,
            cookie: cookie_of(place.0),
        };
        let created = match self.provider.create_qp(CoreToken::NEW, &params) {
            Ok(created) => created,
            Err(error) => return Err(CreateQpError::Device(self.failed(error))),
        };
        self.adopt_qp(init, srq, &sizes, place, created, named)
    }

    /// Returns the place for a queue pair with such rings: the smallest in which they fit.
    pub(crate) fn place_of_qp(
        &self,
        cap: &QpCap,
        sizes: &RingSizes,
    ) -> Result<(QpHandle, &'s QpSlot<'s>), CreateQpError<P::Error>> {
        let (send, recv) = (sizes.send_blocks as usize, sizes.recv_entries as usize);
        let fits = |slot: &QpSlot<'_>| slot.claim.has() && slot.rings.send.len() >= send && slot.rings.recv.len() >= recv;
        let slots: &'s [QpSlot<'s>] = self.shared.qps;
        let fitting = slots.iter().filter(|slot| fits(slot)).count();
        if fitting == 0 {
            let QpCap { max_send_wr, max_recv_wr, .. } = *cap;
            let RingSizes { send_blocks: send, recv_entries: recv, .. } = *sizes;
            let own = slots.iter().filter(|slot| slot.claim.has());
            let lengths = own.map(|slot| [slot.rings.send.len() as u32, slot.rings.recv.len() as u32]);
            let longest = lengths.fold([0; 2], |[sends, recvs], [send, recv]| [sends.max(send), recvs.max(recv)]);
            return Err(CreateQpError::Rings { max_send_wr, max_recv_wr, send, recv, longest });
        }
        let size = |slot: &QpSlot<'_>| slot.rings.send.len().saturating_add(slot.rings.recv.len());
        let mut chosen: Option<(QpHandle, &'s QpSlot<'s>)> = None;
        let mut none = CreateQpError::Full { capacity: slots.len(), fitting };
        for (index, slot) in slots.iter().enumerate().filter(|(_, slot)| fits(slot)) {
            if chosen.is_none_or(|(_, other)| size(slot) < size(other))
                && let Some(handle) = self.qps.vacancy_at(index, self.first_generation)
            {
                if !end_draining(self.shared, slot) {
                    none = CreateQpError::Draining;
                } else {
                    chosen = Some((handle, slot));
                }
            }
        }
        chosen.ok_or(none)
    }

    /// Keeps a queue pair that was just made, and returns its queues.
    pub(crate) fn adopt_qp(
        &mut self,
        init: &QpInit,
        srq: Option<SrqHandle>,
        sizes: &RingSizes,
        (handle, slot): (QpHandle, &'s QpSlot<'s>),
        created: CreatedQp<P>,
        named: Option<PostNamed<P>>,
    ) -> Result<QueuePair<'s, P>, CreateQpError<P::Error>> {
        let CreatedQp { qp: inner, send, recv, qpn } = created;
        if self.qps.iter().any(|(_, other)| other.qpn == qpn) {
            // Not destroyed: by its number that would be the other. The memory that it was given stays the device's.
            return Err(CreateQpError::Answer { fault: AnswerFault::NumberInUse { number: qpn.get() } });
        }
        self.join_pd(init.pd);
        if let Some(srq) = srq.and_then(|srq| self.srqs.get_mut(srq)) {
            srq.users = srq.users.saturating_add(1);
        }
        use_cq(&mut self.cqs, init.send_cq, 1);
        use_cq(&mut self.cqs, init.recv_cq, 1);
        slot.send.start_at(0);
        slot.recv.start_at(0);
        slot.binds.store(0, Ordering::Relaxed);
        slot.set_state(QpState::Reset);
        slot.set_service(init.qp_type, init.pd.index());
        let cqs = u32::from(init.send_cq.index()) << 16 | u32::from(init.recv_cq.index());
        slot.cqs.store(cqs, Ordering::Relaxed);
        slot.set_handle(handle);
        slot.set_srq(srq.unwrap_or(SrqHandle::NONE));
        slot.draining.store(0, Ordering::Relaxed);
        slot.qpn.store(qpn.get(), Ordering::Release);
        let device = self.provider.device_attr();
        let limits =
            SendLimits::new(handle, init.qp_type, (init.pd, domain_word(init.pd.index())), sizes, init.sq_sig_all, device);
        let qp = Qp {
            inner,
            qpn,
            qp_type: init.qp_type,
            pd: init.pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq,
            cap: sizes.cap,
            sq_sig_all: init.sq_sig_all,
            attr: QpAttr::default(),
            domain: None,
            groups: [NO_GROUP; MCAST_GROUPS],
        };
        self.qps.occupy(handle, qp);
        let (shared, pd) = (self.shared, init.pd);
        let (head, uncommon, left) = (Cell::new(0), Cell::new(limits.disallowed_mask), Cell::new(false));
        let queues = QueuePair {
            send: SendQueue {
                ring: send,
                slot,
                shared,
                limits,
                named,
                head,
                uncommon,
                left,
                _owner: Owner::new(&slot.send_owner),
            },
            recv: RecvQueue {
                ring: recv,
                slot,
                shared,
                handle,
                pd,
                max_sge: sizes.cap.max_recv_sge,
                entries: sizes.recv_entries,
                head: 0,
                _owner: Owner::new(&slot.recv_owner),
            },
        };
        // Last, since a logger may do anything: the queues are dropped, and not lost, if it unwinds.
        log_event!(debug, "queue pair {:?}: number {:?}, {:?}", handle, qpn, init.qp_type);
        Ok(queues)
    }

    /// Changes those attributes of a queue pair that `mask` names, its state among them. In ERR everything that was posted
    /// completes. To RESET leads [`Self::reset_qp`] alone.
    ///
    /// The peer may read from now on, where the connection allowed writes only:
    ///
    /// ```
    /// # use bareverbs::{Access, QpAttr, QpAttrMask, QpState, SendWr};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, qb] = connect(&mut a, &mut b)?;
    /// # let source = b.register(64, Access::REMOTE_READ)?;
    /// # let here = a.register(64, Access::LOCAL_WRITE)?;
    /// let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    /// let attr = QpAttr { state: QpState::Rts, access, ..QpAttr::default() };
    /// b.verbs.modify_qp(qb.qp.handle(), &attr, QpAttrMask::STATE | QpAttrMask::ACCESS_FLAGS)?;
    /// # qa.qp.send.post(&SendWr::read(source.remote(0), &[here.sge(0, 64)]))?;
    /// # qa.wait()?.result()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    /// # Errors
    /// The handle is stale, attributes or transition are invalid, or the device refuses. Or stale completions are not polled
    /// yet, from before the last RESET or of an earlier queue pair with the number. The queue pair is as before.
    pub fn modify_qp(&mut self, handle: QpHandle, attr: &QpAttr, mask: QpAttrMask) -> Result<(), ModifyQpError<P::Error>> {
        let [from, to] = self.modify(handle, attr, mask, false)?;
        log_event!(debug, "queue pair {:?}: {:?} to {:?}", handle, from, to);
        Ok(())
    }

    /// Moves a queue pair to RESET. Nothing that was posted is left, and none of its completions is given after this. Those that
    /// wait are dropped when their completion queues are polled, wherever that is: the queue pair leaves RESET when both were
    /// found empty. A second RESET does not make them wait anew. One to which nothing was posted since the last RESET leaves it at
    /// once, for instance after [`Self::modify_qp_to_rts`] was refused; one with a shared receive queue does so from RESET and INIT.
    ///
    /// A receive of a shared receive queue that is being filled is not given back: its place stays taken until that queue is destroyed,
    /// so that a peer that stops in the middle of messages uses the queue up. Before the RESET, and before the end, of such a queue
    /// pair call [`Self::drain_qp_with_srq`]: it moves the queue pair to ERR and waits until the device has flushed that receive.
    ///
    /// ```
    /// # use bareverbs::QpState;
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// a.verbs.reset_qp(&mut qa.qp)?;
    /// assert_eq!(a.verbs.qp_info(qa.qp.handle())?.state, QpState::Reset);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The queues are not those of one queue pair of these verbs, or the device refuses. The queue pair is as before.
    pub fn reset_qp<R: ReceiveSide<'s>>(&mut self, qp: &mut QueuePair<'s, P, R>) -> Result<(), ModifyQpError<P::Error>> {
        if !self.is_whole(qp) {
            return Err(ModifyQpError::Stale);
        }
        let attr = QpAttr { state: QpState::Reset, ..QpAttr::default() };
        let untouched = qp.send.head.get() == 0 && qp.send.slot.is_untouched();
        let [from, to] = self.modify(qp.handle(), &attr, QpAttrMask::STATE, true)?;
        // Before anything that may unwind: a ring that kept its requests would show them to the device again.
        qp.send.reset();
        qp.recv.reset();
        if let Some(kept) = self.qps.get_mut(qp.handle()) {
            kept.attr = QpAttr::default();
        }
        // Nothing was posted and nothing received since the last RESET: no completion waits anywhere, or its drain is still asked for.
        let may_have_taken = !matches!(from, QpState::Reset | QpState::Init) && qp.send.slot.srq() != SrqHandle::NONE;
        if !untouched || may_have_taken {
            self.drop_requests(qp.handle(), RESET);
        }
        log_event!(debug, "queue pair {:?}: {:?} to {:?}", qp.handle(), from, to);
        Ok(())
    }

    /// Returns whether the two queues are those of one queue pair of these verbs. Their slot is in the table of these verbs
    /// only, and is that of no other queue pair as long as they live.
    fn is_whole<R: ReceiveSide<'s>>(&self, qp: &QueuePair<'s, P, R>) -> bool {
        let slot = self.shared.qps.get(usize::from(qp.handle().index()));
        slot.is_some_and(|slot| core::ptr::eq(slot, qp.send.slot) && qp.recv.is_of(slot))
    }

    /// Implements [`Self::modify_qp`] and [`Self::reset_qp`]; gives the states before and after. The caller logs them when all is
    /// done: a logger may unwind. `has_queues`: the caller has both queues, so that nobody posts.
    fn modify(
        &mut self,
        handle: QpHandle,
        attr: &QpAttr,
        mask: QpAttrMask,
        has_queues: bool,
    ) -> Result<[QpState; 2], ModifyQpError<P::Error>> {
        let qp = self.qps.get_mut(handle).ok_or(ModifyQpError::Stale)?;
        let slot = self.shared.qps.get(usize::from(handle.index())).ok_or(ModifyQpError::Stale)?;
        let actual = slot.state();
        let from =
            assumed_state(qp.qp_type, actual, attr, mask).ok_or(ModifyQpError::CurState { assumed: attr.cur_state, actual })?;
        let to = if mask.contains(QpAttrMask::STATE) { attr.state } else { from };
        let rule = transition::rule(qp.qp_type, from, to).ok_or(ModifyQpError::Transition { from, to })?;
        let missing = rule.required.difference(mask);
        let forbidden = mask.difference(rule.required | rule.optional | QpAttrMask::STATE);
        if !missing.is_empty() || !forbidden.is_empty() {
            return Err(ModifyQpError::Attributes { from, to, missing, forbidden });
        }
        let port = if mask.contains(QpAttrMask::PORT) { attr.port_num } else { qp.attr.port_num };
        check_values(&self.provider, qp.qp_type, port, attr, mask)?;
        if to == QpState::Reset && !has_queues {
            return Err(ModifyQpError::Owned);
        }
        if to != QpState::Reset && slot.is_draining() {
            if !end_draining(self.shared, slot) {
                log_event!(debug, "queue pair {:?} is still draining", handle);
                return Err(ModifyQpError::Draining);
            }
            log_event!(debug, "queue pair {:?} is drained", handle);
        }
        if from == QpState::Reset && to != QpState::Reset && !free_number(self.shared, qp.qpn) {
            return Err(ModifyQpError::Draining);
        }
        let mut all = qp.attr;
        merge(&mut all, attr, mask, from, to);
        let mtu = if qp.qp_type == QpType::Ud && to == QpState::Rtr {
            match self.provider.query_port(all.port_num) {
                Ok(port) => Some(datagram_mtu(&port)),
                Err(error) => return Err(ModifyQpError::Device(self.failed(error))),
            }
        } else {
            None
        };
        if let Err(error) = self.provider.modify_qp(CoreToken::NEW, &mut qp.inner, from, &all, mask) {
            return Err(ModifyQpError::Device(self.failed(error)));
        }
        // Again, since that is less code than a copy that may overlap.
        merge(&mut qp.attr, attr, mask, from, to);
        if let Some(mtu) = mtu {
            slot.set_max_datagram(mtu);
        }
        let recovers = from == QpState::Sqe && to == QpState::Rts;
        if recovers {
            slot.note_recovery();
        } else if to == QpState::Reset {
            slot.forget_recovery();
        }
        let is_certain = recovers || matches!(to, QpState::Reset | QpState::Err);
        self.shared.move_state(slot, if is_certain { None } else { Some(actual) }, to);
        Ok([from, to])
    }

    /// Takes a queue pair from RESET over INIT and RTR to RTS, with the attributes of `attr` that each transition requires for
    /// its transport (IBTA table 91); `attr.state` is ignored.
    ///
    /// ```
    /// # use bareverbs::{AddressVector, QpAttr, QpCap, QpInit, QpState, QpType};
    /// # use bareverbs_testing::{Faults, pair};
    /// # let [mut a, _b] = pair(Faults::none())?;
    /// # let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16 };
    /// # let cq = a.verbs.create_cq(256)?;
    /// # let (send_cq, recv_cq) = (cq.handle(), cq.handle());
    /// # let qp = a.verbs.create_qp(&QpInit { pd: a.pd, qp_type: QpType::Rc, send_cq, recv_cq, cap, sq_sig_all: true })?;
    /// # let (lid_of_peer, qpn_of_peer) = (bareverbs::Lid::new(2), bareverbs::Qpn::new(0x48));
    /// // The peer's LID and queue pair number have come by some other connection.
    /// let av = AddressVector { dlid: lid_of_peer, port_num: 1, ..AddressVector::default() };
    /// let attr = QpAttr { port_num: 1, av, dest_qpn: qpn_of_peer, timeout: 14, retry_cnt: 7, rnr_retry: 7, ..QpAttr::default() };
    /// a.verbs.modify_qp_to_rts(qp.handle(), &attr)?;
    /// assert_eq!(a.verbs.qp_info(qp.handle())?.state, QpState::Rts);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The handle is stale, or an attribute of one of the transitions is invalid: the queue pair is as before, since all are checked
    /// before the first transition. Or the device refuses a transition: the queue pair is in the state before that one, and
    /// [`Self::reset_qp`] leads back to RESET.
    pub fn modify_qp_to_rts(&mut self, qp: QpHandle, attr: &QpAttr) -> Result<(), ModifyQpError<P::Error>> {
        let qp_type = self.qps.get(qp).ok_or(ModifyQpError::Stale)?.qp_type;
        let mut steps = [QpState::Init, QpState::Rtr, QpState::Rts].map(|state| (state, QpAttrMask::STATE));
        let (mut from, mut all) = (QpState::Reset, QpAttrMask::empty());
        for (to, mask) in &mut steps {
            *mask = transition::rule(qp_type, from, *to).map_or(*mask, |rule| rule.required | *mask);
            (from, all) = (*to, all | *mask);
        }
        check_values(&self.provider, qp_type, attr.port_num, attr, all)?;
        for (state, mask) in steps {
            self.modify_qp(qp, &QpAttr { state, ..*attr }, mask)?;
        }
        Ok(())
    }

    /// Returns the attributes of a queue pair that the verbs keep, without a command to the device.
    ///
    /// # Errors
    /// The handle is stale.
    pub fn qp_info(&self, handle: QpHandle) -> Result<QpInfo, StaleHandle> {
        let qp = self.qps.get(handle).ok_or(StaleHandle)?;
        let slot = self.shared.qps.get(usize::from(handle.index())).ok_or(StaleHandle)?;
        Ok(qp.info(slot))
    }

    /// Returns the attributes of a queue pair, with the state and the next PSNs that it has in the device now.
    ///
    /// ```
    /// # use bareverbs::{Access, QpState, Remote, Rkey, SendWr};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, qb] = connect(&mut a, &mut b)?;
    /// // A write with a key that is none breaks both queue pairs.
    /// qa.qp.send.post(&SendWr::write(Remote { addr: 0, rkey: Rkey::new(0x100) }, b"x"))?;
    /// assert!(qa.wait()?.result().is_err());
    /// assert_eq!(a.verbs.query_qp(qa.qp.handle())?.state, QpState::Err);
    /// assert_eq!(b.verbs.query_qp(qb.qp.handle())?.state, QpState::Err);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    /// # Errors
    /// The handle is stale, or the device does not answer.
    pub fn query_qp(&mut self, handle: QpHandle) -> Result<QpInfo, QueryQpError<P::Error>> {
        let qp = self.qps.get(handle).ok_or(QueryQpError::Stale)?;
        let slot = self.shared.qps.get(usize::from(handle.index())).ok_or(QueryQpError::Stale)?;
        let before = slot.state();
        let answer = self.provider.query_qp(&qp.inner);
        let said = answer.map_err(|error| QueryQpError::Device(self.failed(error)))?;
        // Only `reset_qp` empties the rings: one that the device alone has reset would do its old requests again.
        let unasked = said.state == QpState::Reset && before != QpState::Reset;
        let state = if unasked { QpState::Err } else { said.state };
        // One that is draining stays in RESET, whatever the device says: until the end of it nothing may be posted. And what a
        // poller has seen since is newer than the answer.
        if !slot.is_draining() {
            self.shared.move_state(slot, Some(before), state);
        }
        let mut info = qp.info(slot);
        (info.attr.rq_psn, info.attr.sq_psn, info.sq_draining) = (said.rq_psn, said.sq_psn, said.sq_draining);
        Ok(info)
    }

    /// Destroys a queue pair with all that is posted. No completion of it is given afterwards: those that wait are dropped when
    /// their completion queues are polled, wherever that is. Its rings serve another queue pair when both were found empty. With a
    /// shared receive queue, drain it first: [`Self::reset_qp`] says why.
    ///
    /// A refusal gives the queues back, and borrows what they borrow: [`Refused::into_error`] is the error for `?`.
    ///
    /// ```
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// use bareverbs::Refused;
    ///
    /// let (qp, cq) = qa.into_parts();
    /// a.verbs.destroy_qp(qp).map_err(Refused::into_error)?;
    /// a.verbs.destroy_cq(cq).map_err(Refused::into_error)?;
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    /// The queues are not those of one queue pair of these verbs, or the device refuses. They come back and are as before.
    #[expect(clippy::result_large_err, clippy::type_complexity, reason = "the queue pair itself is given back")]
    pub fn destroy_qp<R: ReceiveSide<'s>>(
        &mut self,
        qp: QueuePair<'s, P, R>,
    ) -> Result<(), Refused<QueuePair<'s, P, R>, DestroyQpError<P::Error>>> {
        let destroyed = if self.is_whole(&qp) { self.end_qp(qp.handle()) } else { Err(DestroyQpError::Stale) };
        destroyed.map_err(|error| Refused { error, returned: Some(qp) })
    }

    /// Destroys a queue pair whose send queue and receive queue were dropped, as [`Self::destroy_qp`] does. It cannot be drained any
    /// more: move it to ERR before, and wait for [`Event::LastWqeReached`](crate::Event), if it has a shared receive queue.
    ///
    /// # Errors
    /// [`DestroyQpError`]: the handle is stale, a queue was not dropped, the queue pair is in multicast groups, or the device refuses.
    pub fn destroy_dropped_qp(&mut self, handle: QpHandle) -> Result<(), DestroyQpError<P::Error>> {
        self.qps.get(handle).ok_or(DestroyQpError::Stale)?;
        if !self.is_qp_dropped(handle) {
            return Err(DestroyQpError::Owned);
        }
        self.end_qp(handle)
    }

    pub(crate) fn is_qp_dropped(&self, handle: QpHandle) -> bool {
        let slot = self.shared.qps.get(usize::from(handle.index()));
        slot.is_none_or(|slot| is_dropped(&slot.send_owner) && is_dropped(&slot.recv_owner))
    }

    /// Destroys a queue pair to which nobody posts.
    fn end_qp(&mut self, handle: QpHandle) -> Result<(), DestroyQpError<P::Error>> {
        let groups = self.qps.get(handle).map_or(0, |qp| qp.groups.iter().filter(|group| **group != NO_GROUP).count());
        if groups != 0 {
            return Err(DestroyQpError::Attached { groups: groups as u32 });
        }
        // Nothing names it while it ends, also not after a panic in the middle: its number may be another's by then.
        let mut qp = self.qps.remove(handle).ok_or(DestroyQpError::Stale)?;
        let ended = LoseOnDrop::if_unwound(self.shared, || self.provider.destroy_qp(CoreToken::NEW, &mut qp.inner));
        if let Err(error) = ended {
            self.qps.occupy(handle, qp);
            return Err(DestroyQpError::Device(self.failed(error)));
        }
        self.leave_pd(qp.pd);
        use_cq(&mut self.cqs, qp.send_cq, -1);
        use_cq(&mut self.cqs, qp.recv_cq, -1);
        if let Some(srq) = qp.srq.and_then(|srq| self.srqs.get_mut(srq)) {
            srq.users = srq.users.saturating_sub(1);
        }
        self.drop_requests(handle, GONE);
        log_event!(debug, "queue pair {:?} is gone", handle);
        Ok(())
    }

    /// Gives a queue pair for datagrams a copy of what is sent to a multicast group (`ibv_attach_mcast`). Each copy takes a
    /// receive. An InfiniBand port gets the packets of the group only if it has joined the group at the subnet manager; an Ethernet
    /// port gets those that its switch passes on.
    ///
    /// A second attachment to the same group changes nothing, as in Linux. A queue pair is detached from all groups before it is
    /// destroyed.
    ///
    /// ```
    /// # use bareverbs::{Gid, QpType};
    /// # use bareverbs_testing::{Connection, Faults, connect_with, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let datagrams = Connection { qp_type: QpType::Ud, ..Connection::default() };
    /// # let [qa, _qb] = connect_with(&mut a, &mut b, &datagrams)?;
    /// // Every port of the link: ff02::1.
    /// let group = Gid([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    /// a.verbs.attach_mcast(qa.qp.handle(), &group)?;
    /// // And out of it again, before the queue pair is destroyed.
    /// a.verbs.detach_mcast(qa.qp.handle(), &group)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    /// # Errors
    /// The handle is stale, the queue pair is none for datagrams, the GID is none of a group, it is in [`MCAST_GROUPS`] others, or
    /// the device refuses.
    pub fn attach_mcast(&mut self, handle: QpHandle, gid: &Gid) -> Result<(), AttachMcastError<P::Error>> {
        let qp = self.qps.get_mut(handle).ok_or(AttachMcastError::Stale)?;
        if qp.qp_type != QpType::Ud {
            return Err(AttachMcastError::Transport { qp_type: qp.qp_type });
        }
        let is_group = match self.provider.link_layer(qp.attr.port_num) {
            LinkLayer::InfiniBand => gid.0.first() == Some(&0xff),
            LinkLayer::Ethernet => gid.is_ip_group(),
        };
        if !is_group {
            return Err(AttachMcastError::NoGroup);
        }
        if qp.groups.contains(gid) {
            return Ok(());
        }
        let Some(at) = qp.groups.iter().position(|group| *group == NO_GROUP) else {
            return Err(AttachMcastError::Full { groups: MCAST_GROUPS as u32 });
        };
        if let Err(error) = self.provider.attach_mcast(CoreToken::NEW, &mut qp.inner, gid) {
            return Err(AttachMcastError::Device(self.failed(error)));
        }
        if let Some(group) = qp.groups.get_mut(at) {
            *group = *gid;
        }
        Ok(())
    }

    /// Ends [`Self::attach_mcast`] (`ibv_detach_mcast`).
    ///
    /// # Errors
    /// The handle is stale, the queue pair is not in this group, or the device refuses.
    pub fn detach_mcast(&mut self, handle: QpHandle, gid: &Gid) -> Result<(), DetachMcastError<P::Error>> {
        let qp = self.qps.get_mut(handle).ok_or(DetachMcastError::Stale)?;
        let Some(at) = qp.groups.iter().position(|group| group == gid && *gid != NO_GROUP) else {
            return Err(DetachMcastError::NotAttached);
        };
        if let Err(error) = self.provider.detach_mcast(CoreToken::NEW, &mut qp.inner, gid) {
            return Err(DetachMcastError::Device(self.failed(error)));
        }
        if let Some(group) = qp.groups.get_mut(at) {
            *group = NO_GROUP;
        }
        Ok(())
    }

    /// Drops what was posted and its completions, after the device did. Its completion queues drop them when they are polled,
    /// and report it: until then the slot is draining.
    fn drop_requests(&mut self, handle: QpHandle, why: u32) {
        // Those that are drained by now need not wait for what follows.
        for slot in self.shared.qps {
            end_draining(self.shared, slot);
        }
        let Some(slot) = self.shared.qps.get(usize::from(handle.index())) else { return };
        // Before the queues are asked to drop its completions, so that they know whose.
        slot.draining.store(why, Ordering::Release);
        let (send_cq, recv_cq) = (slot.send_cq(), slot.recv_cq());
        let cqs = || {
            let indices = [Some(send_cq), Some(recv_cq).filter(|recv| *recv != send_cq)].into_iter().flatten();
            indices.filter_map(|index| self.shared.cqs.get(usize::from(index)))
        };
        cqs().for_each(CqSlot::ask_to_clean);
        LoseOnDrop::if_unwound(self.shared, || self.end_binds(handle));
        // A sleeping poller would not poll, and the slot would drain for ever. Last, since a task may do anything when it is woken.
        for cq in cqs() {
            cq.wake();
        }
    }
}

/// Returns the cookie of a queue pair, which leads a completion to its slot without a search.
pub(crate) const fn cookie_of(handle: QpHandle) -> u32 {
    handle.index() as u32
}

/// Implements [`Verbs::ring_sizes`].
pub(crate) fn ring_sizes<P: Provider>(
    provider: &P,
    qp_type: QpType,
    cap: &QpCap,
) -> Result<RingSizes, CreateQpError<P::Error>> {
    let max = most(provider.device_attr());
    if exceeds(cap, &max) {
        return Err(CreateQpError::Capacity { wanted: *cap, max });
    }
    let sizes = provider.ring_sizes(qp_type, cap).map_err(CreateQpError::Device)?;
    let sensible = |length: u32| length == 0 || length.is_power_of_two() && length <= 1 << 15;
    if !sensible(sizes.send_blocks) || !sensible(sizes.recv_entries) {
        return Err(CreateQpError::Answer { fault: AnswerFault::Rings { send: sizes.send_blocks, recv: sizes.recv_entries } });
    }
    Ok(sizes)
}

/// Returns whether a slot is that of a queue pair that is gone, and whose completions are to be dropped.
fn is_gone(slot: &QpSlot<'_>) -> bool {
    slot.draining.load(Ordering::Relaxed) == GONE
}

/// Returns whether the completion queues of a slot that is draining were found empty since.
fn is_drained(shared: Shared<'_>, slot: &QpSlot<'_>) -> bool {
    [slot.send_cq(), slot.recv_cq()].into_iter().all(|index| is_cleaned(shared, index))
}

/// Returns whether the completion queue in slot `index`, if there is one, was found empty since it was asked to be.
pub(crate) fn is_cleaned(shared: Shared<'_>, index: u16) -> bool {
    shared.cqs.get(usize::from(index)).is_none_or(|cq| {
        cq.clean_done.load(Ordering::Acquire) == cq.clean_wanted.load(Ordering::Relaxed)
            || cq.cqn.load(Ordering::Relaxed) == NO_NUMBER
            // Nobody polls it, so nobody is given a stale completion.
            || is_dropped(&cq.owner)
    })
}

/// Frees the slots of queue pairs that are gone and had this number; `false` if completions of one of them are not polled yet.
/// A queue pair in RESET gives no completions: until it leaves that, all with its number are of those before it.
fn free_number(shared: Shared<'_>, qpn: Qpn) -> bool {
    let mut gone = shared.qps.iter().filter(|slot| is_gone(slot) && slot.qpn() == qpn);
    gone.all(|slot| end_draining(shared, slot))
}

/// Lets a slot that is draining begin anew, if its completion queues were found empty; `false` if they were not.
fn end_draining(shared: Shared<'_>, slot: &QpSlot<'_>) -> bool {
    if !slot.is_draining() {
        return true;
    }
    if !is_drained(shared, slot) {
        return false;
    }
    slot.send.start_at(0);
    slot.recv.start_at(0);
    if is_gone(slot) {
        slot.qpn.store(NO_NUMBER, Ordering::Relaxed);
    }
    slot.draining.store(0, Ordering::Relaxed);
    true
}

/// Counts one work queue more or fewer that completes into a queue.
pub(crate) fn use_cq<P: Provider>(cqs: &mut Table<'_, kind::Cq, Cq<P>>, handle: CqHandle, change: i32) {
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
    let unreliable = qp_type == QpType::Uc || qp_type.has_datagrams();
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
    part: Option<AddressPart>,
    value: u32,
    min: u32,
    max: u32,
}

/// Returns the first attribute of `mask` whose value is out of range.
fn out_of_range(device: &DeviceAttr, qp_type: QpType, attr: &QpAttr, mask: QpAttrMask) -> Option<Checked> {
    const NUMBER: u32 = (1 << 24) - 1;
    let ports = u32::from(device.phys_port_cnt);
    let qkeys = match qp_type {
        QpType::Gsi => Qkey::GENERAL_SERVICES.get()..=Qkey::GENERAL_SERVICES.get(),
        _ => 0..=u32::MAX,
    };
    let flow_label = |av: &AddressVector| av.grh.map_or(0, |grh| grh.flow_label);
    macro_rules! values {
        ($($attribute:ident $(.$part:ident)?: $value:expr, $min:expr, $max:expr;)+) => {
            [$(Checked {
                attribute: QpAttrMask::$attribute,
                part: (None $(.or(Some(AddressPart::$part)))?),
                value: u32::from($value),
                min: $min,
                max: $max,
            }),+]
        };
    }
    // A path without a port of its own uses the queue pair's.
    let values = values! {
        ACCESS_FLAGS: attr.access.difference(QP_ACCESS).bits(), 0, 0;
        PORT: attr.port_num, 1, ports;
        QKEY: attr.qkey.get(), *qkeys.start(), *qkeys.end();
        AV.Sl: attr.av.sl, 0, 15;
        AV.FlowLabel: flow_label(&attr.av), 0, (1 << 20) - 1;
        AV.PortNum: attr.av.port_num, 0, ports;
        ALT_PATH.Sl: attr.alt_av.sl, 0, 15;
        ALT_PATH.FlowLabel: flow_label(&attr.alt_av), 0, (1 << 20) - 1;
        ALT_PATH.PortNum: attr.alt_av.port_num, 0, ports;
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

/// Returns the first path of `mask` that is none of a link layer, and why.
fn link_fault(link_layer: LinkLayer, attr: &QpAttr, mask: QpAttrMask) -> Option<(QpAttrMask, LinkFault)> {
    let no_alternate = link_layer == LinkLayer::Ethernet && mask.contains(QpAttrMask::ALT_PATH);
    if no_alternate {
        return Some((QpAttrMask::ALT_PATH, LinkFault::AlternatePath));
    }
    let paths = [(QpAttrMask::AV, &attr.av), (QpAttrMask::ALT_PATH, &attr.alt_av)];
    let mut named = paths.into_iter().filter(|(attribute, _)| mask.contains(*attribute));
    named.find_map(|(attribute, path)| check_path(link_layer, path).err().map(|fault| (attribute, fault)))
}

/// Checks the values of the attributes that `mask` names, for a queue pair of this port, without a question to the device.
#[inline(never)]
fn check_values<P: Provider>(
    provider: &P,
    qp_type: QpType,
    port: u8,
    attr: &QpAttr,
    mask: QpAttrMask,
) -> Result<(), ModifyQpError<P::Error>> {
    if let Some(Checked { attribute, part, value, min, max }) = out_of_range(provider.device_attr(), qp_type, attr, mask) {
        return Err(ModifyQpError::Value { attribute, part, value, min, max });
    }
    if let Some((attribute, fault)) = link_fault(provider.link_layer(port), attr, mask) {
        return Err(ModifyQpError::Path { attribute, fault });
    }
    Ok(())
}

/// Returns the longest datagram that a port sends: the MTU in use, or its greatest while it has none.
fn datagram_mtu(port: &PortAttr) -> Mtu {
    if port.state == PortState::Active { port.active_mtu } else { port.max_mtu }
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
