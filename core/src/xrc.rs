//! Extended reliable connections (IBTA annex A14): domains, their shared receive queues, initiators and targets.

use crate::backend::{CoreToken, CreateXrcQpParams, CreateXrcSrqParams, Provider, RawCompletion};
use crate::completion::poll::end_invalidated;
use crate::completion::{self, CompletionQueue, flush};
use crate::error::{AllocXrcdError, AnswerFault, CreateQpError, CreateSrqError, DeallocXrcdError, PollCqError, RawKind};
use crate::log::{format_as, log_event};
use crate::queue_pair::{cookie_of, ring_sizes, use_cq};
use crate::recv_queue::NoReceives;
use crate::send_queue::xrc::post_xrc;
use crate::shared::{NO_CQ, QpSlot};
use crate::storage::RingSizes;
use crate::sync::Ordering;
use crate::verbs::{Verbs, XRC_DOMAINS};
use crate::{
    Completion, CqHandle, PdHandle, QpCap, QpHandle, QpInit, QpType, Qpn, QueuePair, Refused, SharedReceiveQueue, SrqInit,
    WcData, WcOpcode, WcStatus, Xrcdn,
};

/// An XRC domain: requests that arrive at a target of it take from its shared receive queues, and from no others. It is a plain value, of
/// which nothing of the storage is taken.
///
/// One that is dropped lasts as long as the device is up.
///
/// It cannot be destroyed twice, or used when it is gone:
///
/// ```compile_fail,E0382
/// # use bareverbs::backend::Provider;
/// # use bareverbs::{Verbs, XrcDomain};
/// fn use_after<'s, P: Provider>(verbs: &mut Verbs<'s, P>, domain: XrcDomain<P>) {
///     let _ = verbs.dealloc_xrcd(domain);
///     let _ = verbs.create_xrc_recv_qp(&domain);
/// }
/// ```
#[must_use = "an XRC domain whose value is dropped lasts as long as the device is up"]
pub struct XrcDomain<P: Provider> {
    inner: P::Xrcd,
    number: Xrcdn,
    /// Which verbs made it: their first generation.
    verbs: u32,
}

format_as!([P: Provider] XrcDomain<P>, "XrcDomain({:?})", |this| this.number);

impl<'s, P: Provider> Verbs<'s, P> {
    /// Makes an XRC domain (`ibv_open_xrcd`; IBTA A14.4).
    ///
    /// An XRC domain with a shared receive queue and a target, to which an initiator of another host sends:
    ///
    /// ```
    /// # use bareverbs::{Access, QpCap, QpInit, QpType, RecvWr, SendWr, SrqCap, SrqInit, WcStatus};
    /// # use bareverbs_testing::{Connection, Faults, join, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let cap = QpCap { max_send_wr: 16, max_send_sge: 1, max_inline_data: 16, ..QpCap::default() };
    /// let domain = b.verbs.alloc_xrcd()?;
    /// let mut cq = b.verbs.create_cq(16)?;
    /// let init = SrqInit { pd: b.pd, cap: SrqCap { max_wr: 15, max_sge: 1 } };
    /// let mut srq = b.verbs.create_xrc_srq(&init, &domain, &mut cq)?;
    /// let srqn = b.verbs.srq_info(srq.handle())?.srqn;
    /// let target = b.verbs.create_xrc_recv_qp(&domain)?;
    ///
    /// let of_sender = a.verbs.alloc_xrcd()?;
    /// let mut send_cq = a.verbs.create_cq(64)?;
    /// let (pd, send, recv) = (a.pd, send_cq.handle(), send_cq.handle());
    /// let init = QpInit { pd, qp_type: QpType::XrcSend, send_cq: send, recv_cq: recv, cap, sq_sig_all: true };
    /// let mut initiator = a.verbs.create_xrc_send_qp(&init, &of_sender)?;
    /// join((&mut a.verbs, initiator.handle()), (&mut b.verbs, target.handle()), &Connection::default())?;
    ///
    /// let inbox = b.register(64, Access::LOCAL_WRITE)?;
    /// srq.post(&RecvWr { wr_id: 3, sges: &[inbox.sge(0, 64)] })?;
    /// initiator.send.post(&SendWr::send(b"hello").to_srq(srqn))?;
    /// assert_eq!(a.waiter().wait(&mut send_cq)?.status, WcStatus::Success);
    /// let received = b.waiter().wait(&mut cq)?;
    /// assert_eq!((received.wr_id, received.byte_len, received.qp), (3, 5, target.handle()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// There are [`XRC_DOMAINS`], the device has no XRC, or refuses.
    pub fn alloc_xrcd(&mut self) -> Result<XrcDomain<P>, AllocXrcdError<P::Error>> {
        if !self.xrcds.contains(&None) {
            return Err(AllocXrcdError::Full { capacity: XRC_DOMAINS });
        }
        let made = self.provider.alloc_xrcd(CoreToken::NEW);
        let (inner, number) = made.map_err(|error| AllocXrcdError::Device(self.failed(error)))?;
        if self.xrcds.contains(&Some(number)) {
            // Not destroyed: by its number that would be the other.
            return Err(AllocXrcdError::Answer { fault: AnswerFault::NumberInUse { number: number.get() } });
        }
        if let Some(place) = self.xrcds.iter_mut().find(|place| place.is_none()) {
            *place = Some(number);
        }
        log_event!(debug, "XRC domain {:?}", number);
        Ok(XrcDomain { inner, number, verbs: self.first_generation })
    }

    /// Destroys an XRC domain that no queue is in (`ibv_close_xrcd`).
    ///
    /// # Errors
    /// The domain is of another `Verbs`, queues are in it, or the device refuses. It comes back and is as before.
    pub fn dealloc_xrcd(&mut self, mut domain: XrcDomain<P>) -> Result<(), Refused<XrcDomain<P>, DeallocXrcdError<P::Error>>> {
        let users = self.users_of(domain.number);
        let error = if domain.verbs != self.first_generation {
            DeallocXrcdError::Stale
        } else if users != 0 {
            DeallocXrcdError::Busy { users }
        } else {
            match self.provider.dealloc_xrcd(CoreToken::NEW, &mut domain.inner) {
                Ok(()) => {
                    self.xrcds.iter_mut().filter(|place| **place == Some(domain.number)).for_each(|place| *place = None);
                    log_event!(debug, "XRC domain {:?} is gone", domain.number);
                    return Ok(());
                }
                Err(error) => DeallocXrcdError::Device(self.failed(error)),
            }
        };
        Err(Refused { error, returned: Some(domain) })
    }

    /// Returns how many queues are in a domain.
    fn users_of(&self, domain: Xrcdn) -> u32 {
        let srqs = self.srqs.iter().filter(|(_, srq)| srq.domain == Some(domain)).count();
        let qps = self.qps.iter().filter(|(_, qp)| qp.domain == Some(domain)).count();
        srqs.saturating_add(qps) as u32
    }

    /// Creates a shared receive queue of an XRC domain (`ibv_create_srq_ex` with `IBV_SRQT_XRC`). Peers name it by its number
    /// ([`SrqInfo::srqn`](crate::SrqInfo::srqn)) in each request to a target of the domain: what they send is received here, and the keys
    /// that they name are of its protection domain. It completes into `cq`, which needs room for each of its requests. It takes one of the
    /// first 256 places of the table: completions name it by a number of 8 bits. All else is as for [`Self::create_srq`].
    ///
    /// [`Completion::qp`] of such a completion is the target that has the number [`Completion::qpn`] when it is polled, if any. Failed ones
    /// do not change the target's state here: the device says it by an event, and [`Self::query_qp`] asks for it.
    ///
    /// An example is at [`Self::alloc_xrcd`].
    ///
    /// # Errors
    /// [`CreateSrqError`]: domain or completion queue are of another `Verbs`, a handle is stale, the device has no such capacities, table or
    /// entries are in use, or the device refuses. Nothing is created.
    pub fn create_xrc_srq(
        &mut self,
        init: &SrqInit,
        domain: &XrcDomain<P>,
        cq: &mut CompletionQueue<'s, P>,
    ) -> Result<SharedReceiveQueue<'s, P>, CreateSrqError<P::Error>> {
        if domain.verbs != self.first_generation {
            return Err(CreateSrqError::StaleXrcDomain);
        }
        let index = cq.handle().index();
        let ours = self.shared.cqs.get(usize::from(index)).is_some_and(|slot| core::ptr::eq(slot, cq.slot));
        let kept = if ours { self.cqs.get(cq.handle()) } else { None };
        let (place, sizes) = self.place_of_srq(init, completion::XRC_SRQS)?;
        let kept = kept.ok_or(CreateSrqError::StaleCq)?;
        let pd = self.pds.get(init.pd).ok_or(CreateSrqError::StalePd)?;
        let cookie = u32::from(place.0.index()) << 16 | u32::from(completion::XRC_COOKIE);
        let params = CreateXrcSrqParams { pd: &pd.inner, domain: &domain.inner, cq: &kept.inner, sizes, cookie };
        let created = match self.provider.create_xrc_srq(CoreToken::NEW, &params) {
            Ok(created) => created,
            Err(error) => return Err(CreateSrqError::Device(self.failed(error))),
        };
        let queue = self.adopt_srq(init, &sizes, place, created)?;
        place.1.set_xrc(Some((init.pd.index(), index)));
        if let Some(srq) = self.srqs.get_mut(place.0) {
            (srq.domain, srq.cq) = (Some(domain.number), cq.handle());
        }
        use_cq(&mut self.cqs, cq.handle(), 1);
        (cq.unknown, cq.flush, cq.has_xrc) = (take::<P>, flush_next::<P>, true);
        Ok(queue)
    }

    /// Creates an initiator of XRC in RESET: it sends to the shared receive queues of its peer's domain, each request to the one that it
    /// names ([`SendWr::to_srq`](crate::SendWr::to_srq)). Its peer is a target ([`Self::create_xrc_recv_qp`]). `qp_type`, `recv_cq` and the
    /// capacities for receives in `init` are ignored. All else is as for [`Self::create_qp`].
    ///
    /// IBTA has initiators without a domain. Devices require one, any of theirs: `domain`, which need not have a shared receive queue.
    ///
    /// An example is at [`Self::alloc_xrcd`].
    ///
    /// # Errors
    /// [`CreateQpError`]: the domain is of another `Verbs`, a handle is stale, the device has no such capacities, table or rings are in use, or
    /// the device refuses. Nothing is created.
    pub fn create_xrc_send_qp(
        &mut self,
        init: &QpInit,
        domain: &XrcDomain<P>,
    ) -> Result<QueuePair<'s, P, NoReceives>, CreateQpError<P::Error>> {
        if domain.verbs != self.first_generation {
            return Err(CreateQpError::StaleXrcDomain);
        }
        let cap = QpCap { max_recv_wr: 0, max_recv_sge: 0, ..init.cap };
        let init = QpInit { qp_type: QpType::XrcSend, recv_cq: CqHandle::NONE, cap, ..*init };
        if self.is_cq_dropped(init.send_cq) {
            return Err(CreateQpError::StaleCq);
        }
        let pd = self.pds.get(init.pd).ok_or(CreateQpError::StalePd)?;
        let send_cq = self.cqs.get(init.send_cq).ok_or(CreateQpError::StaleCq)?;
        let sizes = ring_sizes(&self.provider, init.qp_type, &cap)?;
        let place = self.place_of_qp(&cap, &sizes)?;
        let initiator = Some((&pd.inner, &send_cq.inner));
        let params = CreateXrcQpParams { domain: &domain.inner, initiator, sizes, cookie: cookie_of(place.0) };
        let created = self.provider.create_xrc_qp(CoreToken::NEW, &params);
        self.adopt_xrc_qp(&init, &sizes, place, created, domain)
    }

    /// Creates a target of XRC in RESET: it receives for the shared receive queues of the domain, whichever a request names, and has no
    /// completions of its own. Its peer is an initiator ([`Self::create_xrc_send_qp`]). RTR suffices for it. Nothing can be posted to it.
    ///
    /// A request that names a shared receive queue of another domain, or none of XRC, is refused with
    /// [`WcStatus::RemAccessErr`] at the peer; no byte is moved.
    ///
    /// An example is at [`Self::alloc_xrcd`].
    ///
    /// # Errors
    /// The domain is of another `Verbs`, the table is full, or the device refuses. Nothing is created.
    pub fn create_xrc_recv_qp(
        &mut self,
        domain: &XrcDomain<P>,
    ) -> Result<QueuePair<'s, P, NoReceives>, CreateQpError<P::Error>> {
        if domain.verbs != self.first_generation {
            return Err(CreateQpError::StaleXrcDomain);
        }
        let (cap, sizes) = (QpCap::default(), RingSizes::default());
        let (pd, send_cq, recv_cq) = (PdHandle::NONE, CqHandle::NONE, CqHandle::NONE);
        let init = QpInit { pd, qp_type: QpType::XrcRecv, send_cq, recv_cq, cap, sq_sig_all: false };
        let place = self.place_of_qp(&cap, &sizes)?;
        let params = CreateXrcQpParams { domain: &domain.inner, initiator: None, sizes, cookie: cookie_of(place.0) };
        let created = self.provider.create_xrc_qp(CoreToken::NEW, &params);
        self.adopt_xrc_qp(&init, &sizes, place, created, domain)
    }

    /// Keeps an XRC queue pair that was just made.
    fn adopt_xrc_qp(
        &mut self,
        init: &QpInit,
        sizes: &RingSizes,
        place: (QpHandle, &'s QpSlot<'s>),
        created: Result<crate::backend::CreatedQp<P>, P::Error>,
        domain: &XrcDomain<P>,
    ) -> Result<QueuePair<'s, P, NoReceives>, CreateQpError<P::Error>> {
        let created = created.map_err(|error| CreateQpError::Device(self.failed(error)))?;
        let named = if init.qp_type == QpType::XrcSend { Some(post_xrc::<P> as _) } else { None };
        let QueuePair { send, recv: _ } = self.adopt_qp(init, None, sizes, place, created, named)?;
        if let Some(qp) = self.qps.get_mut(place.0) {
            qp.domain = Some(domain.number);
        }
        Ok(QueuePair { send, recv: NoReceives })
    }
}

/// Finds the request of an XRC shared receive queue that a completion completes and retires it; `None` if the queue is gone. An error
/// changes nothing. Its cookie names the queue, and it names the target, which completes nothing itself.
#[cold]
#[inline(never)]
fn take<P: Provider>(
    queue: &CompletionQueue<'_, P>,
    raw: &RawCompletion,
    cookie: Option<u32>,
) -> Result<Option<Completion>, PollCqError> {
    let shared = &queue.shared;
    let unknown = PollCqError::UnknownQp { qpn: raw.qpn, cqn: queue.cqn };
    let index = match cookie {
        Some(number) if completion::is_xrc(cookie) && raw.kind != RawKind::Send => (number >> 16) as u16,
        _ => return Err(unknown),
    };
    let slot = shared.srqs.get(usize::from(index)).ok_or(unknown)?;
    let pd = match slot.xrc() {
        Some((pd, cq)) if cq == queue.handle().index() => pd,
        _ => return Err(unknown),
    };
    let Some(generation) = slot.generation() else {
        end_invalidated(shared, pd, &raw.data);
        return Ok(None);
    };
    let qp = target(shared.qps, raw.qpn);
    let RawCompletion { qpn, kind, status, vendor_err, byte_len, data, .. } = *raw;
    let wr_id = match slot.retire(generation, raw.index) {
        Some(wr_id) => wr_id,
        // Another poller cannot have given it, but this one may have flushed it.
        None if slot.loss().is_some() => return Ok(None),
        None => return Err(PollCqError::UnknownRequest { qp, kind, index: raw.index }),
    };
    end_invalidated(shared, pd, &data);
    let opcode = if kind == RawKind::Recv { WcOpcode::Recv } else { WcOpcode::RecvRdmaWithImm };
    Ok(Some(Completion { wr_id, qp, qpn, opcode, status, vendor_err, byte_len, data }))
}

/// Returns the target that has this number now.
fn target(qps: &[QpSlot<'_>], qpn: Qpn) -> QpHandle {
    let is_it = |slot: &&QpSlot<'_>| {
        slot.qpn.load(Ordering::Acquire) == qpn.get() && slot.send_cq() == NO_CQ && !slot.is_none_or_gone()
    };
    qps.iter().find(is_it).map_or(QpHandle::NONE, QpSlot::handle)
}

/// Flushes the next request that completes here and that a lost device has left: of a queue pair, or of an XRC shared receive queue.
fn flush_next<P: Provider>(queue: &CompletionQueue<'_, P>) -> Option<Completion> {
    flush::flush_next(queue).or_else(|| flush_shared(queue))
}

/// Flushes a request of an XRC shared receive queue that completes here, which a lost device has left.
fn flush_shared<P: Provider>(queue: &CompletionQueue<'_, P>) -> Option<Completion> {
    queue.shared.srqs.iter().find_map(|slot| {
        let (_, cq) = slot.xrc()?;
        let loss = slot.loss().filter(|_| cq == queue.handle().index())?;
        let wr_id = slot.flush(slot.generation()?)?;
        let (status, data, opcode) = (WcStatus::WrFlushErr, WcData::Lost(loss), WcOpcode::Recv);
        let (qp, qpn) = (QpHandle::NONE, Qpn::default());
        Some(Completion { wr_id, qp, qpn, opcode, status, vendor_err: 0, byte_len: 0, data })
    })
}
