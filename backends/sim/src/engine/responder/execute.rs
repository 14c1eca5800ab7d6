//! Execution of the requests of a connected peer: bytes placed, keys checked, atomics.

use bareverbs_mlx5_spec::{CqeOpcode, CqeSyndrome, Field, Qpc};

use crate::engine::masked;
use crate::engine::memory::key::{Access, KeyError, Right};
use crate::engine::memory::message::{ScatterError, scatter};
use crate::engine::psn;
use crate::engine::qp::context::QpContext;
use crate::engine::resources::QpStep;
use crate::engine::responder::state::{Inbound, Refusal, Reply, Responder, Stop};
use crate::packet::{AtomicEth, Packet, Place, Reth, Syndrome, TransportPart};
use crate::rejection::Rejection;
use crate::wqe_decode::AtomicOperation;

/// Maximum message length of any path.
const MAX_MESSAGE: u32 = 1 << 31;
/// [`Qpc::ATOMIC_MODE`] of atomics without masks (Linux `MLX5_ATOMIC_MODE_IB_COMP`).
const ATOMIC_MODE_IB: u32 = 1;

/// Refuses an operation whose right the attributes of the queue pair lack.
fn check_right(qp: &QpContext, step: &mut QpStep<'_, '_>, field: Field<Qpc>, right: Right) -> Result<(), Refusal> {
    if qp.get(field) != 0 {
        return Ok(());
    }
    step.ctx.reject(Rejection::QpRight { qpn: qp.qpn, usage: right.into() });
    Err(Refusal::INVALID)
}

/// Records that a key did not open its bytes.
fn reject(step: &mut QpStep<'_, '_>, access: Access, place: (u32, u64), len: u64, error: KeyError) {
    let rejection = step.shared.keys.rejection(place, len, access, error);
    step.ctx.reject(rejection);
}

impl Responder {
    pub(in crate::engine) fn handle_send(
        &mut self,
        qp: &mut QpContext,
        step: &mut QpStep<'_, '_>,
        packet: &Packet<'_>,
        place: Place,
    ) -> Result<(), Stop> {
        if place.is_start() {
            let receive = self.require_receive(qp, step)?;
            self.message = Some(Inbound::Send { receive, written: 0 });
        }
        let (qpn, domain) = (qp.qpn, self.key_domain(qp, step)?);
        let Some(Inbound::Send { receive, written }) = &mut self.message else {
            return Err(Refusal::INVALID.into());
        };
        let access = receive.access(qpn);
        let list = receive.list.iter().copied();
        match scatter(step, access, list, *written, &packet.transport.payload) {
            Ok(()) => *written += packet.transport.payload.len() as u64,
            Err(ScatterError::TooLong) => {
                let needed = *written + packet.transport.payload.len() as u64;
                step.ctx.reject(Rejection::ReceiveTooShort { qpn, room: receive.len(), needed });
                return Err(Refusal::of_receive(Syndrome::InvalidRequest, CqeSyndrome::LocalLength).into());
            }
            Err(ScatterError::Key(_)) => {
                return Err(Refusal::of_receive(Syndrome::RemoteOperational, CqeSyndrome::LocalProt).into());
            }
        }
        if !place.is_end() {
            return Ok(());
        }
        let (index, byte_cnt) = (receive.index, *written as u32);
        if let Some(key) = packet.transport.invalidate {
            match step.shared.keys.invalidate_remotely(&mut step.shared.registry, key, domain, qpn) {
                Ok(entries) => step.ctx.meter.count_entries(entries),
                Err(error) => {
                    let fault = step.shared.keys.fault(key, error);
                    step.ctx.reject(Rejection::Invalidation { qpn, key, fault });
                    return Err(Refusal::INVALIDATION.into());
                }
            }
        }
        self.message = None;
        let opcode = match (packet.transport.immediate, packet.transport.invalidate) {
            (Some(_), _) => CqeOpcode::RespSendImm,
            (None, Some(_)) => CqeOpcode::RespSendInv,
            (None, None) => CqeOpcode::RespSend,
        };
        self.finish_receive(qp, step, packet, opcode, index, byte_cnt);
        Ok(())
    }

    pub(in crate::engine) fn handle_write(
        &mut self,
        qp: &mut QpContext,
        step: &mut QpStep<'_, '_>,
        packet: &Packet<'_>,
        place: Place,
    ) -> Result<(), Stop> {
        if place.is_start() {
            let reth = packet.transport.reth.ok_or(Refusal::INVALID)?;
            check_right(qp, step, Qpc::RWE, Right::RemoteWrite)?;
            if reth.len > MAX_MESSAGE {
                return Err(Refusal::INVALID.into());
            }
            if let Err(refusal) = self.check_key(qp, step, &reth, Right::RemoteWrite) {
                return Err(self.refuse_write(qp, step, &packet.transport, refusal));
            }
            let total = u64::from(reth.len);
            self.message = Some(Inbound::Write { addr: reth.addr, rkey: reth.rkey, left: total, total });
        }
        let access = self.access(qp, step, Right::RemoteWrite)?;
        let Some(Inbound::Write { addr, rkey, left, total }) = &mut self.message else {
            return Err(Refusal::INVALID.into());
        };
        let len = packet.transport.payload.len() as u64;
        if (place.is_end() && len != *left) || (!place.is_end() && len >= *left) {
            return Err(Refusal::INVALID.into());
        }
        let (at, key, total) = (*addr, *rkey, *total);
        // The receive that immediate data needs comes first: without one nothing of this packet happens.
        let receive = match packet.transport.immediate {
            Some(_) => match self.require_receive(qp, step) {
                Err(Stop::NotReady) => {
                    if place == Place::Only {
                        self.message = None;
                    }
                    return Err(Stop::NotReady);
                }
                taken => Some(taken?),
            },
            None => None,
        };
        if len > 0
            && let Err(error) = step.shared.keys.write(step.ctx, (key, at), access, &packet.transport.payload)
        {
            reject(step, access, (key, at), len, error);
            let Some(receive) = receive else { return Err(Refusal::ACCESS.into()) };
            self.message = Some(Inbound::Send { receive, written: 0 });
            return Err(Refusal::of_receive(Syndrome::RemoteAccess, CqeSyndrome::LocalAccess).into());
        }
        if place.is_end() {
            self.message = None;
        } else if let Some(Inbound::Write { addr, left, .. }) = &mut self.message {
            *addr = addr.wrapping_add(len);
            *left -= len;
        }
        if let Some(receive) = receive {
            self.finish_receive(qp, step, packet, CqeOpcode::RespWrImm, receive.index, total as u32);
        }
        Ok(())
    }

    /// Answers a write to bytes that no key opens. The receive that the immediate data of the same packet needs reports it to
    /// the host (Local Access Error, InfiniBand Architecture 11.6.2), on services that send a NAK too.
    fn refuse_write(
        &mut self,
        qp: &QpContext,
        step: &mut QpStep<'_, '_>,
        packet: &TransportPart<'_>,
        refusal: Refusal,
    ) -> Stop {
        if packet.immediate.is_none() || !qp.service.is_reliable() {
            return refusal.into();
        }
        match self.require_receive(qp, step) {
            Ok(receive) => {
                self.message = Some(Inbound::Send { receive, written: 0 });
                Refusal::of_receive(Syndrome::RemoteAccess, CqeSyndrome::LocalAccess).into()
            }
            Err(Stop::NotReady) => refusal.into(),
            Err(stop) => stop,
        }
    }

    pub(in crate::engine) fn check_key(
        &self,
        qp: &QpContext,
        step: &mut QpStep<'_, '_>,
        reth: &Reth,
        right: Right,
    ) -> Result<(), Refusal> {
        // Nothing is touched for a message of no bytes, so its key is not checked.
        if reth.len == 0 {
            return Ok(());
        }
        let access = self.access(qp, step, right)?;
        let checked = step.shared.keys.check(reth.rkey, reth.addr, u64::from(reth.len), access);
        checked.map_err(|error| {
            reject(step, access, (reth.rkey, reth.addr), u64::from(reth.len), error);
            Refusal::ACCESS
        })
    }

    pub(in crate::engine) fn check_read(&self, qp: &QpContext, step: &mut QpStep<'_, '_>, reth: &Reth) -> Result<(), Refusal> {
        check_right(qp, step, Qpc::RRE, Right::RemoteRead)?;
        if reth.len > MAX_MESSAGE {
            return Err(Refusal::INVALID);
        }
        self.check_key(qp, step, reth, Right::RemoteRead)
    }

    pub(in crate::engine) fn handle_atomic(
        &mut self,
        qp: &QpContext,
        step: &mut QpStep<'_, '_>,
        packet: &TransportPart<'_>,
    ) -> Result<(), Refusal> {
        let atomic = packet.atomic.ok_or(Refusal::INVALID)?;
        let operation = masked::operation(packet).ok_or(Refusal::INVALID)?;
        let masked = step.shared.config.extended_atomics && qp.get(Qpc::ATOMIC_MODE) > ATOMIC_MODE_IB;
        if operation.is_masked() && !masked {
            return Err(Refusal::INVALID);
        }
        check_right(qp, step, Qpc::RAE, Right::RemoteAtomic)?;
        if !atomic.addr.is_multiple_of(operation.size().into()) {
            step.ctx.reject(Rejection::AtomicAlignment { qpn: qp.qpn, addr: atomic.addr });
            return Err(Refusal::INVALID);
        }
        self.room_for_response(qp)?;
        let original = self.execute_atomic(qp, step, &atomic, &operation)?;
        let saved = qp.depth(Qpc::LOG_RRA_MAX);
        self.msn = psn::add(self.msn, 1);
        while self.atomics.len() >= saved {
            self.atomics.pop_front();
        }
        let (psn, msn) = (packet.bth.psn, self.msn);
        self.atomics.push_back((psn, original));
        self.replies.push_back(Reply::Atomic { psn, original, msn, again: false });
        Ok(())
    }

    pub(in crate::engine) fn execute_atomic(
        &self,
        qp: &QpContext,
        step: &mut QpStep<'_, '_>,
        atomic: &AtomicEth,
        operation: &AtomicOperation,
    ) -> Result<u64, Refusal> {
        let access = self.access(qp, step, Right::RemoteAtomic)?;
        let place = (atomic.rkey, atomic.addr);
        let size = usize::from(operation.size());
        let mut bytes = vec![0; size];
        step.shared.keys.read(step.ctx, place, access, &mut bytes).map_err(|error| {
            reject(step, access, place, size as u64, error);
            Refusal::ACCESS
        })?;
        let original = step.shared.config.atomic_value(&bytes);
        let new = operation.apply(original);
        if new != original {
            let bytes = step.shared.config.atomic_bytes(new, size);
            step.shared.keys.write(step.ctx, place, access, &bytes).map_err(|_| Refusal::ACCESS)?;
        }
        Ok(original)
    }
}
