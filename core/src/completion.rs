//! Completion queues: made, armed, destroyed, and completions taken out of them.

use crate::parts::{Cq, Parts, Qp};
use crate::ring::place;
use crate::send::SendEntry;
use crate::{
    Completion, CqHandle, Cqn, CreateCqError, DataPath, DestroyCqError, NotifyCqError, PollCqError, Provider, QpState, QpType,
    RawCompletion, RawKind, WcData, WcOpcode, WcStatus,
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
        self.send.get(qp.wrapping_mul(self.send_size).wrapping_add(place(counter, self.send_size)))
    }

    #[inline]
    fn recv_entry(&self, qp: usize, counter: u32) -> Option<u64> {
        self.recv.get(qp.wrapping_mul(self.recv_size).wrapping_add(place(counter, self.recv_size))).copied()
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
        &mut self,
        handle: CqHandle,
        rings: &Rings<'_>,
        out: &mut [Completion],
    ) -> Result<usize, PollCqError<P::Error>> {
        let Some(cq) = self.cqs.get_mut(handle) else { return Err(PollCqError::Stale) };
        if cq.held.is_some() {
            return Err(cq.held.take().unwrap_or(PollCqError::Stale));
        }
        let mut count = 0_usize;
        let mut taken = false;
        let mut trouble = None;
        for place in out {
            let Some(cq) = self.cqs.get_mut(handle) else { break };
            let raw = match self.provider.poll(&mut cq.inner) {
                Ok(Some(raw)) => raw,
                Ok(None) => break,
                Err(error) => {
                    taken = true;
                    trouble = Some(PollCqError::Device(error));
                    break;
                }
            };
            taken = true;
            match self.complete(handle, rings, &raw) {
                Ok(completion) => {
                    *place = completion;
                    count = count.wrapping_add(1);
                }
                Err(error) => {
                    trouble = Some(error);
                    break;
                }
            }
        }
        let Some(cq) = self.cqs.get_mut(handle) else { return Ok(count) };
        if taken {
            if let Err(error) = self.provider.commit_cq(&mut cq.inner) {
                trouble = trouble.or(Some(PollCqError::Device(error)));
            }
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

    /// Finds the request that a completion completes, and retires it.
    #[inline]
    fn complete(&mut self, cq: CqHandle, rings: &Rings<'_>, raw: &RawCompletion) -> Result<Completion, PollCqError<P::Error>> {
        let named = raw.cookie.map_or(usize::MAX, |cookie| (cookie & 0xffff) as usize);
        let index = match self.qps.at(named) {
            Some(qp) if qp.qpn == raw.qpn => named,
            _ => self.search(cq, raw)?,
        };
        let Some((handle, qp)) = self.qps.entry_mut(index) else { return Err(self.unknown_qp(cq, raw)) };
        let own = if matches!(raw.kind, RawKind::Send) { qp.send_cq } else { qp.recv_cq };
        if own != cq {
            return Err(self.unknown_qp(cq, raw));
        }
        let qpn = raw.qpn;
        let unknown = PollCqError::UnknownRequest { qp: handle, kind: raw.kind, index: raw.index };
        if raw.kind == RawKind::Send {
            let Some(counter) = qp.send.locate(raw.index) else { return Err(unknown) };
            let Some(&SendEntry { wr_id, bytes, blocks, opcode }) = rings.send_entry(index, counter) else {
                return Err(unknown);
            };
            if blocks == 0 {
                return Err(unknown);
            }
            let pending = qp.pending;
            if raw.status != WcStatus::Success {
                fail_send(qp, raw.status);
            }
            if pending != 0 {
                self.settle_binds(handle, counter, raw.status != WcStatus::Success);
            }
            if let Some((_, qp)) = self.qps.entry_mut(index) {
                qp.send.retire(counter, u32::from(blocks));
            }
            return Ok(Completion {
                wr_id,
                qp: handle,
                qpn,
                opcode,
                status: raw.status,
                vendor_err: raw.vendor_err,
                byte_len: bytes,
                data: WcData::None,
            });
        }
        let Some(counter) = qp.recv.locate(raw.index) else { return Err(unknown) };
        let Some(wr_id) = rings.recv_entry(index, counter) else { return Err(unknown) };
        qp.recv.retire(counter, 1);
        if raw.status != WcStatus::Success {
            qp.state = QpState::Err;
        }
        let pd = qp.pd;
        if let WcData::Invalidated(rkey) = raw.data {
            self.invalidated(pd, rkey);
        }
        let opcode = if raw.kind == RawKind::Recv { WcOpcode::Recv } else { WcOpcode::RecvRdmaWithImm };
        Ok(Completion {
            wr_id,
            qp: handle,
            qpn,
            opcode,
            status: raw.status,
            vendor_err: raw.vendor_err,
            byte_len: raw.byte_len,
            data: raw.data,
        })
    }

    /// Looks for a queue pair by its number alone.
    #[cold]
    #[inline(never)]
    fn search(&self, cq: CqHandle, raw: &RawCompletion) -> Result<usize, PollCqError<P::Error>> {
        let found = self.qps.iter().find(|(_, qp)| qp.qpn == raw.qpn);
        found.map(|(handle, _)| usize::from(handle.index())).ok_or_else(|| self.unknown_qp(cq, raw))
    }

    #[cold]
    #[inline(never)]
    fn unknown_qp(&self, cq: CqHandle, raw: &RawCompletion) -> PollCqError<P::Error> {
        let cqn = self.cqs.get(cq).map_or(Cqn::new(0), |cq| cq.cqn);
        PollCqError::UnknownQp { qpn: raw.qpn, cqn }
    }
}

/// The state that a device has moved a queue pair to when a send fails: unreliable ones keep receiving (IBTA 10.3.1).
#[cold]
#[inline(never)]
fn fail_send<P: Provider>(qp: &mut Qp<P>, status: WcStatus) {
    let unreliable = matches!(qp.qp_type, QpType::Uc | QpType::Ud);
    qp.state = match (status, qp.state) {
        (WcStatus::WrFlushErr, QpState::Sqe) => QpState::Sqe,
        (WcStatus::WrFlushErr, _) => QpState::Err,
        (_, QpState::Rts | QpState::Sqd) if unreliable => QpState::Sqe,
        (_, QpState::Sqe) if unreliable => QpState::Sqe,
        _ => QpState::Err,
    };
}
