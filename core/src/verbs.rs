//! The verbs on one device: the tables, and every operation on them.

use heapless::Vec;

use crate::bind::PendingBind;
use crate::completion::{Rings, complete_usual};
use crate::parts::{Cq, Mr, Mw, Parts, Pd, Qp};
use crate::recv::RecvQueue;
use crate::region::slot_mask;
use crate::send::{SendEntry, Short, can_send};
use crate::table::{TableOf, TableView};
use crate::transition::rule;
use crate::{
    Access, AddressMap, AllocMwError, AllocPdError, BadWr, BindMwError, Completion, CqHandle, CqInfo, CreateCqError,
    CreateQpError, DataPath, DeallocMwError, DeallocPdError, DeregMrError, DestroyCqError, DestroyQpError, DeviceAttr, Event,
    Gid, ModifyQpError, MrHandle, MrInfo, MwBind, MwHandle, MwInfo, MwType, NotifyCqError, PdHandle, Peek, PollCqError,
    PollEventError, PortAttr, PostRecvError, PostSendError, QpAttr, QpAttrMask, QpHandle, QpInfo, QpInit, QpState, QueryError,
    QueryQpError, RecvWr, RegMrError, Rkey, SendQueue, SendWr, StaleHandle, kind,
};

/// The verbs on the device of backend `P`, without heap: room for `PD` protection domains, `MR` regions, `MW` windows, `CQ`
/// completion queues and `QP` queue pairs, each of which has at most `SQ` blocks of sends and `RQ` receives in flight.
///
/// `SQ` and `RQ` are powers of two, 32,768 at most; the others are 65,535 at most. Other numbers do not compile.
pub struct Verbs<
    P: DataPath,
    const PD: usize,
    const MR: usize,
    const MW: usize,
    const CQ: usize,
    const QP: usize,
    const SQ: usize,
    const RQ: usize,
> {
    provider: P,
    pds: TableOf<kind::Pd, Pd<P>, PD>,
    mrs: TableOf<kind::Mr, Mr<P>, MR>,
    mws: TableOf<kind::Mw, Mw<P>, MW>,
    cqs: TableOf<kind::Cq, Cq<P>, CQ>,
    qps: TableOf<kind::Qp, Qp<P>, QP>,
    binds: Vec<PendingBind, MW>,
    sends: [[SendEntry; SQ]; QP],
    recvs: [[u64; RQ]; QP],
}

impl<
    P: DataPath,
    const PD: usize,
    const MR: usize,
    const MW: usize,
    const CQ: usize,
    const QP: usize,
    const SQ: usize,
    const RQ: usize,
> Verbs<P, PD, MR, MW, CQ, QP, SQ, RQ>
{
    const CAPACITIES: () = {
        assert!(SQ.is_power_of_two() && SQ <= 1 << 15, "SQ is a power of two, 32768 at most");
        assert!(RQ.is_power_of_two() && RQ <= 1 << 15, "RQ is a power of two, 32768 at most");
        assert!(
            PD <= 65_535 && MR <= 65_535 && MW <= 65_535 && CQ <= 65_535 && QP <= 65_535,
            "a table has 65535 slots at most"
        );
    };

    /// The verbs on a device that is up, without any object.
    pub const fn new(provider: P) -> Self {
        const { Self::CAPACITIES };
        Self {
            provider,
            pds: TableOf::new(),
            mrs: TableOf::new(),
            mws: TableOf::new(),
            cqs: TableOf::new(),
            qps: TableOf::new(),
            binds: Vec::new(),
            sends: [[SendEntry::NONE; SQ]; QP],
            recvs: [[0; RQ]; QP],
        }
    }

    /// The backend.
    pub const fn provider(&self) -> &P {
        &self.provider
    }

    /// The backend, for what the verbs do not know of, such as its health.
    pub const fn provider_mut(&mut self) -> &mut P {
        &mut self.provider
    }

    /// Gives the backend back. The objects that are left are forgotten, not destroyed: destroy them first, or let the
    /// device forget them too.
    pub fn into_provider(self) -> P {
        self.provider
    }

    #[inline]
    fn parts(&mut self) -> (Parts<'_, P>, Rings<'_>) {
        let parts = Parts {
            provider: &mut self.provider,
            pds: &mut self.pds,
            mrs: &mut self.mrs,
            mws: &mut self.mws,
            cqs: &mut self.cqs,
            qps: &mut self.qps,
            binds: &mut self.binds,
            slot_mask: slot_mask(MR),
            ring_sizes: (SQ as u32, RQ as u32),
        };
        let rings = Rings { send: self.sends.as_flattened(), send_size: SQ, recv: self.recvs.as_flattened(), recv_size: RQ };
        (parts, rings)
    }

    // ---- device

    /// What the device has.
    pub fn query_device(&self) -> &DeviceAttr {
        self.provider.device_attr()
    }

    fn check_port(&self, port: u8) -> Result<(), QueryError<P::Error>> {
        if port == 0 || port > self.query_device().phys_port_cnt { Err(QueryError::Port { port }) } else { Ok(()) }
    }

    /// State of a port, from 1.
    pub fn query_port(&mut self, port: u8) -> Result<PortAttr, QueryError<P::Error>> {
        self.check_port(port)?;
        self.provider.query_port(port).map_err(QueryError::Device)
    }

    /// Entry of a port's GID table.
    pub fn query_gid(&mut self, port: u8, index: u16) -> Result<Gid, QueryError<P::Error>> {
        self.check_port(port)?;
        self.provider.query_gid(port, index).map_err(QueryError::Device)
    }

    /// Entry of a port's P_Key table.
    pub fn query_pkey(&mut self, port: u8, index: u16) -> Result<u16, QueryError<P::Error>> {
        self.check_port(port)?;
        self.provider.query_pkey(port, index).map_err(QueryError::Device)
    }

    /// Takes the next event, if one is waiting. A queue pair that the device says is broken is in ERR from here on.
    pub fn poll_event(&mut self) -> Result<Option<Event>, PollEventError<P::Error>> {
        self.parts().0.poll_event()
    }

    // ---- protection domains and regions

    /// Makes a protection domain.
    pub fn alloc_pd(&mut self) -> Result<PdHandle, AllocPdError<P::Error>> {
        self.parts().0.alloc_pd()
    }

    /// Destroys a protection domain to which nothing belongs.
    pub fn dealloc_pd(&mut self, pd: PdHandle) -> Result<(), DeallocPdError<P::Error>> {
        self.parts().0.dealloc_pd(pd)
    }

    /// Registers `length` bytes from `addr` of the caller's address space, which `map` turns into the device's. The caller
    /// keeps the bytes in place until the region is gone.
    pub fn reg_mr(
        &mut self,
        pd: PdHandle,
        addr: u64,
        length: u64,
        access: Access,
        map: &dyn AddressMap,
    ) -> Result<MrHandle, RegMrError<P::Error>> {
        self.parts().0.reg_mr(pd, addr, length, access, map)
    }

    /// What is known of a region, its keys among it.
    pub fn mr(&self, mr: MrHandle) -> Result<MrInfo, StaleHandle> {
        let mrs: &TableView<kind::Mr, Mr<P>> = &self.mrs;
        mrs.get(mr).map(Mr::info).ok_or(StaleHandle)
    }

    /// Deregisters a region to which no window is bound.
    pub fn dereg_mr(&mut self, mr: MrHandle) -> Result<(), DeregMrError<P::Error>> {
        self.parts().0.dereg_mr(mr)
    }

    // ---- windows

    /// Makes an unbound window.
    pub fn alloc_mw(&mut self, pd: PdHandle, kind: MwType) -> Result<MwHandle, AllocMwError<P::Error>> {
        self.parts().0.alloc_mw(pd, kind)
    }

    /// What is known of a window, its key and binding among it.
    pub fn mw(&self, mw: MwHandle) -> Result<MwInfo, StaleHandle> {
        let mws: &TableView<kind::Mw, Mw<P>> = &self.mws;
        mws.get(mw).map(Mw::info).ok_or(StaleHandle)
    }

    /// Destroys a window, bound or not: remote access ends at once, and the region is free of it.
    pub fn dealloc_mw(&mut self, mw: MwHandle) -> Result<(), DeallocMwError<P::Error>> {
        self.parts().0.dealloc_mw(mw)
    }

    /// Binds a type 1 window to part of a region, or unbinds it (`length` 0). The key that it gives is the window's from now
    /// on: requests posted after it on the same queue pair may carry it. The bind itself completes later; if it fails,
    /// `poll_cq` puts the window back to what it was.
    ///
    /// A queue pair that is reset or destroyed before keeps the outcome to itself: the window stays as the bind was to leave
    /// it, and the next bind makes it certain.
    pub fn bind_mw(&mut self, qp: QpHandle, mw: MwHandle, bind: &MwBind) -> Result<Rkey, BindMwError<P::Error>> {
        let mut queue = self.open_send(qp).ok_or(BindMwError::StaleQp)?;
        let rkey = queue.bind_mw(mw, bind)?;
        queue.commit().map_err(BindMwError::Commit)?;
        Ok(rkey)
    }

    // ---- completion queues

    /// Makes a completion queue of at least `entries`.
    pub fn create_cq(&mut self, entries: u32) -> Result<CqHandle, CreateCqError<P::Error>> {
        self.parts().0.create_cq(entries)
    }

    /// What is known of a completion queue.
    pub fn cq(&self, cq: CqHandle) -> Result<CqInfo, StaleHandle> {
        let cqs: &TableView<kind::Cq, Cq<P>> = &self.cqs;
        cqs.get(cq).map(Cq::info).ok_or(StaleHandle)
    }

    /// Destroys a completion queue into which no queue pair completes.
    pub fn destroy_cq(&mut self, cq: CqHandle) -> Result<(), DestroyCqError<P::Error>> {
        self.parts().0.destroy_cq(cq)
    }

    /// Takes completions into `out`, as many as there are and fit. A completion that makes no sense is an error of its own:
    /// those before it are given first, the error by the next call, and those behind it after that.
    #[inline]
    pub fn poll_cq(&mut self, cq: CqHandle, out: &mut [Completion]) -> Result<usize, PollCqError<P::Error>> {
        let cqs: &mut TableView<kind::Cq, Cq<P>> = &mut self.cqs;
        let Some(queue) = cqs.get_mut(cq) else { return Err(PollCqError::Stale) };
        let mut count = 0_usize;
        let mut rest = queue.held.is_some();
        if !rest {
            let qps: &mut TableView<kind::Qp, Qp<P>> = &mut self.qps;
            for place in out.iter_mut() {
                match self.provider.peek(&queue.inner) {
                    Peek::Usual(found) if complete_usual(qps, &self.sends, &self.recvs, cq, &found, place) => {
                        self.provider.skip(&mut queue.inner);
                        count = count.wrapping_add(1);
                    }
                    Peek::Empty => break,
                    _ => {
                        rest = true;
                        break;
                    }
                }
            }
            if !rest {
                if count != 0
                    && let Err(error) = self.provider.commit_cq(&mut queue.inner)
                {
                    queue.held = Some(PollCqError::Device(error));
                }
                return Ok(count);
            }
        }
        self.poll_cq_rest(cq, out, count)
    }

    /// Goes on with a poll that has taken `count` usual completions and met something else.
    #[cold]
    #[inline(never)]
    fn poll_cq_rest(&mut self, cq: CqHandle, out: &mut [Completion], count: usize) -> Result<usize, PollCqError<P::Error>> {
        let (parts, rings) = self.parts();
        match parts.poll_cq(cq, &rings, out.get_mut(count..).unwrap_or_default()) {
            Ok(more) => Ok(count.wrapping_add(more)),
            Err(error) if count == 0 => Err(error),
            Err(error) => {
                if let Some(queue) = self.parts().0.cqs.get_mut(cq) {
                    queue.held = Some(error);
                }
                Ok(count)
            }
        }
    }

    /// Asks for an event when the next completion comes, or only at the next solicited or failed one.
    pub fn req_notify_cq(&mut self, cq: CqHandle, solicited_only: bool) -> Result<(), NotifyCqError<P::Error>> {
        self.parts().0.req_notify_cq(cq, solicited_only)
    }

    // ---- queue pairs

    /// Makes a queue pair in RESET.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<QpHandle, CreateQpError<P::Error>> {
        self.parts().0.create_qp(init)
    }

    /// Changes those attributes of a queue pair that `mask` names, its state among them. In RESET nothing that was posted is
    /// left, and no completion of it. In ERR everything that was posted completes, sends without a doorbell too.
    pub fn modify_qp(&mut self, qp: QpHandle, attr: &QpAttr, mask: QpAttrMask) -> Result<(), ModifyQpError<P::Error>> {
        self.parts().0.modify_qp(qp, attr, mask)?;
        match self.open_send(qp) {
            // The device flushes only what it knows of, and in ERR no other commit will tell it.
            Some(mut queue) if queue.qp.state == QpState::Err => queue.commit().map_err(ModifyQpError::Commit),
            _ => Ok(()),
        }
    }

    /// Takes a queue pair from RESET over INIT and RTR to RTS, with the attributes of `attr` that each transition requires for its
    /// transport (IBTA table 91); `attr.state` is not looked at.
    ///
    /// # Errors
    /// A transition was refused: the queue pair is in the state before it.
    pub fn connect(&mut self, qp: QpHandle, attr: &QpAttr) -> Result<(), ModifyQpError<P::Error>> {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let now = self.qp(qp).map_err(|StaleHandle| ModifyQpError::Stale)?;
            let required = rule(now.qp_type, now.state, state).map_or(QpAttrMask::empty(), |rule| rule.required);
            self.modify_qp(qp, &QpAttr { state, ..*attr }, QpAttrMask::STATE | required)?;
        }
        Ok(())
    }

    /// What is known here of a queue pair; the device is not asked.
    pub fn qp(&self, qp: QpHandle) -> Result<QpInfo, StaleHandle> {
        let qps: &TableView<kind::Qp, Qp<P>> = &self.qps;
        qps.get(qp).map(Qp::info).ok_or(StaleHandle)
    }

    /// What is known of a queue pair, with its state and its next PSNs as the device has them now.
    pub fn query_qp(&mut self, qp: QpHandle) -> Result<QpInfo, QueryQpError<P::Error>> {
        self.parts().0.query_qp(qp)
    }

    /// Destroys a queue pair with all that is posted. No completion of it stays in its completion queues.
    pub fn destroy_qp(&mut self, qp: QpHandle) -> Result<(), DestroyQpError<P::Error>> {
        self.parts().0.destroy_qp(qp)
    }

    // ---- requests

    #[inline]
    fn open_send(&mut self, handle: QpHandle) -> Option<SendQueue<'_, P>> {
        let qps: &mut TableView<kind::Qp, Qp<P>> = &mut self.qps;
        let qp = qps.get_mut(handle)?;
        let entries = self.sends.get_mut(usize::from(handle.index()))?;
        Some(SendQueue {
            provider: &mut self.provider,
            handle,
            qp,
            entries,
            mrs: &mut self.mrs,
            mws: &mut self.mws,
            binds: &mut self.binds,
            slot_mask: slot_mask(MR),
        })
    }

    /// Opens the send queue for a batch of requests with one doorbell; the state is checked once, here.
    #[inline]
    pub fn send_queue(&mut self, qp: QpHandle) -> Result<SendQueue<'_, P>, PostSendError<P::Error>> {
        let queue = self.open_send(qp).ok_or(PostSendError::Stale)?;
        if can_send(queue.qp.state) { Ok(queue) } else { Err(PostSendError::NotReady { state: queue.qp.state }) }
    }

    /// Posts one send and tells the device.
    #[inline]
    pub fn post_send(&mut self, qp: QpHandle, wr: &SendWr<'_>) -> Result<(), PostSendError<P::Error>> {
        let qps: &mut TableView<kind::Qp, Qp<P>> = &mut self.qps;
        if let Some(slot) = qps.get_mut(qp)
            && can_send(slot.state)
            && let Some(entries) = self.sends.get_mut(usize::from(qp.index()))
        {
            let short =
                Short { provider: &mut self.provider, qp: &mut *slot, entries, mrs: &self.mrs, slot_mask: slot_mask(MR) };
            match short.post(wr) {
                Some(Ok(())) => {
                    let end = slot.send.head();
                    if let Err(error) = self.provider.commit_send(&mut slot.inner, end) {
                        return Err(PostSendError::Commit(error));
                    }
                    slot.announced = end;
                    return Ok(());
                }
                Some(Err(error)) => return Err(PostSendError::Device(error)),
                None => {}
            }
        }
        self.post_send_long(qp, wr)
    }

    #[inline(never)]
    fn post_send_long(&mut self, qp: QpHandle, wr: &SendWr<'_>) -> Result<(), PostSendError<P::Error>> {
        let mut queue = self.send_queue(qp)?;
        queue.post_any(wr)?;
        queue.commit().map_err(PostSendError::Commit)
    }

    /// Posts sends up to the first that fails, with one doorbell; that one is named and not posted.
    // Not part of the caller: the loop wants every register.
    #[inline(never)]
    pub fn post_send_list(&mut self, qp: QpHandle, list: &[SendWr<'_>]) -> Result<(), BadWr<PostSendError<P::Error>>> {
        let mut queue = match self.send_queue(qp) {
            Ok(queue) => queue,
            Err(error) => return Err(BadWr { index: 0, error }),
        };
        for (index, wr) in list.iter().enumerate() {
            // A result of the long way would be written to memory and read again, for every request.
            match queue.short().post(wr) {
                Some(Ok(())) => {}
                Some(Err(error)) => return Err(queue.stop_at(index, PostSendError::Device(error))),
                None => {
                    if let Err(error) = queue.post_any(wr) {
                        return Err(queue.stop_at(index, error));
                    }
                }
            }
        }
        match queue.commit() {
            Ok(()) => Ok(()),
            Err(error) => Err(BadWr { index: list.len(), error: PostSendError::Commit(error) }),
        }
    }

    #[inline]
    fn open_recv(&mut self, handle: QpHandle) -> Result<RecvQueue<'_, P>, PostRecvError<P::Error>> {
        let qps: &mut TableView<kind::Qp, Qp<P>> = &mut self.qps;
        let qp = qps.get_mut(handle).ok_or(PostRecvError::Stale)?;
        let entries = self.recvs.get_mut(usize::from(handle.index())).ok_or(PostRecvError::Stale)?;
        let queue = RecvQueue { provider: &mut self.provider, qp, entries, mrs: &self.mrs, slot_mask: slot_mask(MR) };
        queue.ready()?;
        Ok(queue)
    }

    /// Posts one receive and tells the device.
    #[inline]
    pub fn post_recv(&mut self, qp: QpHandle, wr: &RecvWr<'_>) -> Result<(), PostRecvError<P::Error>> {
        let mut queue = self.open_recv(qp)?;
        queue.post(wr)?;
        queue.commit()
    }

    /// Posts receives up to the first that fails; that one is named and not posted.
    pub fn post_recv_list(&mut self, qp: QpHandle, list: &[RecvWr<'_>]) -> Result<(), BadWr<PostRecvError<P::Error>>> {
        let mut queue = self.open_recv(qp).map_err(|error| BadWr { index: 0, error })?;
        let failed = list.iter().enumerate().find_map(|(index, wr)| Some(BadWr { index, error: queue.post(wr).err()? }));
        let posted = failed.map_or(list.len(), |failed| failed.index);
        if posted != 0 {
            queue.commit().map_err(|error| BadWr { index: posted, error })?;
        }
        failed.map_or(Ok(()), Err)
    }

    /// Puts both rings of an idle queue pair at a counter of the test's choice.
    #[cfg(test)]
    pub(crate) fn start_rings_for_test(&mut self, qp: QpHandle, at: u32) {
        let qps: &mut TableView<kind::Qp, Qp<P>> = &mut self.qps;
        let qp = qps.get_mut(qp).unwrap();
        qp.send = crate::ring::Ring::starting_at(at, qp.send.limit());
        qp.recv = crate::ring::Ring::starting_at(at, qp.recv.limit());
        qp.announced = at;
    }

    /// Puts a queue pair into a state without asking anyone.
    #[cfg(test)]
    pub(crate) fn set_state_for_test(&mut self, qp: QpHandle, state: crate::QpState) {
        let qps: &mut TableView<kind::Qp, Qp<P>> = &mut self.qps;
        qps.get_mut(qp).unwrap().state = state;
    }

    /// The check of an SGE as every post does it.
    #[cfg(test)]
    pub(crate) fn check_sge_for_test(&self, pd: PdHandle, sge: &crate::Sge) -> Result<(), crate::SgeFault> {
        let mrs: &TableView<kind::Mr, Mr<P>> = &self.mrs;
        crate::region::check_sge(mrs, slot_mask(MR), pd, Access::empty(), sge)
    }
}
