//! Completion queues: made, armed, destroyed, and completions taken out of them.

use crate::bind::Windows;
use crate::parts::{Cq, Parts, Qp};
use crate::ring::place as ring_place;
use crate::say::say;
use crate::send::SendEntry;
use crate::table::TableView;
use crate::{
    Completion, CqHandle, Cqn, CreateCqError, DataPath, DestroyCqError, NotifyCqError, PollCqError, Provider, QpState, QpType,
    Qpn, RawCompletion, RawKind, UsualCompletion, WcData, WcOpcode, WcStatus, kind,
};

/// What is known of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CqInfo {
    /// Number.
    pub cqn: Cqn,
    /// Completions that it holds.
    pub entries: u32,
}

/// The rings of all queue pairs, one after the other.
pub(crate) struct Rings<'a> {
    pub(crate) send: &'a [SendEntry],
    /// Entries of one send ring.
    pub(crate) send_size: usize,
    /// `wr_id` of each receive.
    pub(crate) recv: &'a [u64],
    /// Entries of one receive ring.
    pub(crate) recv_size: usize,
}

impl Rings<'_> {
    #[inline]
    fn send_entry(&self, qp: usize, counter: u32) -> Option<&SendEntry> {
        self.send.get(qp.wrapping_mul(self.send_size).wrapping_add(ring_place(counter, self.send_size)))
    }

    #[inline]
    fn recv_entry(&self, qp: usize, counter: u32) -> Option<u64> {
        self.recv.get(qp.wrapping_mul(self.recv_size).wrapping_add(ring_place(counter, self.recv_size))).copied()
    }
}

impl<P: Provider> Cq<P> {
    pub(crate) fn info(&self) -> CqInfo {
        CqInfo { cqn: self.cqn, entries: self.entries }
    }
}

impl<P: Provider> Parts<'_, P> {
    pub(crate) fn create_cq(&mut self, entries: u32) -> Result<CqHandle, CreateCqError<P::Error>> {
        let max = self.provider.device_attr().max_cqe;
        if entries == 0 || entries > max {
            return Err(CreateCqError::Entries { entries, max });
        }
        let handle = self.cqs.vacancy(self.first_generation()).ok_or(CreateCqError::Full)?;
        let (inner, cqn, entries) = self.provider.create_cq(entries).map_err(CreateCqError::Device)?;
        self.cqs.occupy(handle, Cq { inner, cqn, entries, users: 0, held: None });
        Ok(handle)
    }

    pub(crate) fn destroy_cq(&mut self, handle: CqHandle) -> Result<(), DestroyCqError<P::Error>> {
        let cq = self.cqs.get_mut(handle).ok_or(DestroyCqError::Stale)?;
        if cq.users != 0 {
            return Err(DestroyCqError::Busy { users: cq.users });
        }
        self.provider.destroy_cq(&mut cq.inner).map_err(DestroyCqError::Device)?;
        self.cqs.remove(handle);
        Ok(())
    }
}

impl<P: DataPath> Parts<'_, P> {
    pub(crate) fn req_notify_cq(&mut self, handle: CqHandle, solicited_only: bool) -> Result<(), NotifyCqError<P::Error>> {
        let cq = self.cqs.get_mut(handle).ok_or(NotifyCqError::Stale)?;
        self.provider.arm_cq(&mut cq.inner, solicited_only).map_err(NotifyCqError::Device)
    }

    /// Takes completions until `out` is full or none is left.
    #[inline]
    pub(crate) fn poll_cq(
        self,
        handle: CqHandle,
        rings: &Rings<'_>,
        out: &mut [Completion],
    ) -> Result<usize, PollCqError<P::Error>> {
        let Parts { provider, mrs, mws, cqs, qps, binds, .. } = self;
        let Some(cq) = cqs.get_mut(handle) else { return Err(PollCqError::Stale) };
        if cq.held.is_some() {
            return Err(cq.held.take().unwrap_or(PollCqError::Stale));
        }
        let mut finder = Finder { cq: handle, cqn: cq.cqn, qps, rings, windows: Windows { mrs, mws, binds } };
        let mut count = 0_usize;
        let mut trouble = None;
        for place in out {
            let found = match provider.poll(&mut cq.inner) {
                Ok(Some(raw)) => finder.complete(&raw, place),
                Ok(None) => break,
                Err(error) => Err(PollCqError::Device(error)),
            };
            if let Err(error) = found {
                trouble = Some(error);
                break;
            }
            count = count.wrapping_add(1);
        }
        if (count != 0 || trouble.is_some())
            && let Err(error) = provider.commit_cq(&mut cq.inner)
        {
            trouble = trouble.or(Some(PollCqError::Device(error)));
        }
        match trouble {
            None => Ok(count),
            Some(error) if count == 0 => Err(error),
            Some(error) => {
                cq.held = Some(error);
                Ok(count)
            }
        }
    }
}

/// Finds the requests that the completions of one queue complete.
struct Finder<'a, P: Provider> {
    cq: CqHandle,
    cqn: Cqn,
    qps: &'a mut TableView<kind::Qp, Qp<P>>,
    rings: &'a Rings<'a>,
    windows: Windows<'a, P>,
}

impl<P: Provider> Finder<'_, P> {
    /// Finds the request that a completion completes, retires it, and tells the caller in `place`, which an error leaves as
    /// it was.
    fn complete(&mut self, raw: &RawCompletion, place: &mut Completion) -> Result<(), PollCqError<P::Error>> {
        let named = raw.cookie.map_or(usize::MAX, |cookie| (cookie & 0xffff) as usize);
        let index = match self.qps.at(named) {
            Some(qp) if qp.qpn == raw.qpn => named,
            _ => self.search(raw.qpn)?,
        };
        match raw.kind {
            RawKind::Send => self.complete_send(index, raw, place),
            RawKind::Recv => self.complete_recv(index, raw, WcOpcode::Recv, place),
            RawKind::RecvRdmaWithImm => self.complete_recv(index, raw, WcOpcode::RecvRdmaWithImm, place),
        }
    }

    fn complete_send(
        &mut self,
        index: usize,
        raw: &RawCompletion,
        place: &mut Completion,
    ) -> Result<(), PollCqError<P::Error>> {
        let (handle, qp) = match self.qps.entry_mut(index) {
            Some((handle, qp)) if qp.send_cq == self.cq => (handle, qp),
            _ => return Err(PollCqError::UnknownQp { qpn: raw.qpn, cqn: self.cqn }),
        };
        let found = qp.send.locate(raw.index).and_then(|at| Some((at, *self.rings.send_entry(index, at)?)));
        let (at, entry) = match found {
            Some((at, entry)) if entry.blocks() != 0 => (at, entry),
            _ => return Err(PollCqError::UnknownRequest { qp: handle, kind: raw.kind, index: raw.index }),
        };
        let failed = raw.status != WcStatus::Success;
        if failed {
            fail_send(qp, raw.status);
        }
        if qp.pending != 0 {
            self.windows.settle(handle, qp, at, failed);
        }
        qp.send.retire(at, u32::from(entry.blocks()));
        *place = Completion {
            wr_id: entry.wr_id,
            qp: handle,
            qpn: raw.qpn,
            opcode: entry.opcode(),
            status: raw.status,
            vendor_err: raw.vendor_err,
            byte_len: entry.bytes(),
            data: WcData::None,
        };
        Ok(())
    }

    fn complete_recv(
        &mut self,
        index: usize,
        raw: &RawCompletion,
        opcode: WcOpcode,
        place: &mut Completion,
    ) -> Result<(), PollCqError<P::Error>> {
        let (handle, qp) = match self.qps.entry_mut(index) {
            Some((handle, qp)) if qp.recv_cq == self.cq => (handle, qp),
            _ => return Err(PollCqError::UnknownQp { qpn: raw.qpn, cqn: self.cqn }),
        };
        let found = qp.recv.locate(raw.index).and_then(|at| Some((at, self.rings.recv_entry(index, at)?)));
        let Some((at, wr_id)) = found else {
            return Err(PollCqError::UnknownRequest { qp: handle, kind: raw.kind, index: raw.index });
        };
        if raw.status != WcStatus::Success {
            qp.state = QpState::Err;
        }
        qp.recv.retire(at, 1);
        if let WcData::Invalidated(rkey) = raw.data {
            let pd = qp.pd;
            self.windows.invalidate(pd, rkey);
        }
        *place = Completion {
            wr_id,
            qp: handle,
            qpn: raw.qpn,
            opcode,
            status: raw.status,
            vendor_err: raw.vendor_err,
            byte_len: raw.byte_len,
            data: raw.data,
        };
        Ok(())
    }

    /// Looks for a queue pair by its number alone.
    #[cold]
    #[inline(never)]
    fn search(&self, qpn: Qpn) -> Result<usize, PollCqError<P::Error>> {
        let found = self.qps.iter().find(|(_, qp)| qp.qpn == qpn);
        found.map(|(handle, _)| usize::from(handle.index())).ok_or(PollCqError::UnknownQp { qpn, cqn: self.cqn })
    }
}

/// The state that a device has moved a queue pair to when a send fails: unreliable ones keep receiving (IBTA 10.3.1).
#[cold]
#[inline(never)]
fn fail_send<P: Provider>(qp: &mut Qp<P>, status: WcStatus) {
    if status != WcStatus::WrFlushErr {
        say!(warn, "a send of queue pair {:?} failed: {:?}", qp.qpn, status);
    }
    let unreliable = matches!(qp.qp_type, QpType::Uc | QpType::Ud);
    qp.state = match (status, qp.state) {
        (WcStatus::WrFlushErr, QpState::Sqe) => QpState::Sqe,
        (WcStatus::WrFlushErr, _) => QpState::Err,
        (_, QpState::Rts | QpState::Sqd) if unreliable => QpState::Sqe,
        (_, QpState::Sqe) if unreliable => QpState::Sqe,
        _ => QpState::Err,
    };
}

/// Retires the request of a usual completion and tells the caller in `place`. `false`: it takes the long way, and nothing has
/// happened.
#[inline(always)]
pub(crate) fn complete_usual<P: Provider, const SQ: usize, const RQ: usize, const QP: usize>(
    qps: &mut TableView<kind::Qp, Qp<P>>,
    sends: &[[SendEntry; SQ]; QP],
    recvs: &[[u64; RQ]; QP],
    cq: CqHandle,
    found: &UsualCompletion,
    place: &mut Completion,
) -> bool {
    let index = (found.cookie & 0xffff) as usize;
    let Some((handle, qp)) = qps.entry_mut(index) else { return false };
    if qp.qpn != found.qpn {
        return false;
    }
    let (wr_id, opcode, byte_len) = if found.recv {
        let Some(at) = qp.recv.locate(found.index) else { return false };
        let Some(wr_id) = recvs.get(index).and_then(|ring| ring.get(ring_place(at, RQ))) else { return false };
        if qp.recv_cq != cq {
            return false;
        }
        qp.recv.retire(at, 1);
        (*wr_id, WcOpcode::Recv, found.byte_len)
    } else {
        let Some(at) = qp.send.locate(found.index) else { return false };
        let Some(entry) = sends.get(index).and_then(|ring| ring.get(ring_place(at, SQ))) else { return false };
        if entry.blocks() == 0 || qp.pending != 0 || qp.send_cq != cq {
            return false;
        }
        qp.send.retire(at, u32::from(entry.blocks()));
        (entry.wr_id, entry.opcode(), entry.bytes())
    };
    *place = Completion {
        wr_id,
        qp: handle,
        qpn: found.qpn,
        opcode,
        status: WcStatus::Success,
        vendor_err: 0,
        byte_len,
        data: WcData::None,
    };
    true
}
