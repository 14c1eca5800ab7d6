//! Builds request packets from send WQEs.

use bareverbs_mlx5_spec::{Ads, CqeSyndrome, Qpc, WqeOpcode};

use crate::engine::masked;
use crate::engine::memory::key::Right;
use crate::engine::memory::message::gather;
use crate::engine::psn;
use crate::engine::qp::context::QpContext;
use crate::engine::requester::state::Requester;
use crate::engine::resources::QpStep;
use crate::packet::{AtomicEth, Deth, Operation, Packet, Place, Reth};
use crate::rejection::Rejection;
use crate::wqe_decode::{AtomicOperation, SendBody, SendWqe};

/// Returns the operation of a packet of `wqe`, with what travels at the end of the message.
pub(in crate::engine) fn operation(wqe: &SendWqe, place: Place) -> (Operation, Option<u32>, Option<u32>) {
    let end = place.is_end();
    match wqe.opcode {
        WqeOpcode::SendImm if end => (Operation::SendImmediate(place), Some(wqe.immediate), None),
        WqeOpcode::SendInval if end => (Operation::SendInvalidate(place), None, Some(wqe.immediate)),
        WqeOpcode::RdmaWriteImm if end => (Operation::WriteImmediate(place), Some(wqe.immediate), None),
        WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm => (Operation::Write(place), None, None),
        WqeOpcode::RdmaRead => (Operation::ReadRequest, None, None),
        WqeOpcode::AtomicCs => (Operation::CompareSwap, None, None),
        WqeOpcode::AtomicFa => (Operation::FetchAdd, None, None),
        WqeOpcode::AtomicMaskedCs => (Operation::MaskedCompareSwap, None, None),
        WqeOpcode::AtomicMaskedFa => (Operation::MaskedFetchAdd, None, None),
        _ => (Operation::Send(place), None, None),
    }
}

impl Requester {
    /// Builds packet `packet_index` of request `at`: outer `None` if there is no such request, inner error if it cannot be
    /// made.
    pub(in crate::engine) fn build(
        &self,
        qp: &QpContext,
        step: &mut QpStep<'_, '_>,
        at: usize,
        packet_index: u32,
    ) -> Option<Result<Packet<'static>, CqeSyndrome>> {
        let op = self.ops.get(at)?;
        let wqe = op.wqe.as_ref()?;
        let mtu = qp.mtu() as u64;
        let place = Place::of(packet_index, op.packets());
        let (operation, immediate, invalidate) = operation(wqe, place);
        let link = match &wqe.body {
            SendBody::Send { address: Some(address), .. } => match qp.link_to_address(step.shared, address) {
                Some(link) => link,
                None => {
                    let (index, entries) = (address.route.sgid_index.into(), step.shared.port.gid_entries());
                    step.ctx.reject(Rejection::NoGid { qpn: qp.qpn, index, entries });
                    return Some(Err(CqeSyndrome::LocalQpOp));
                }
            },
            _ => {
                // Without it they go nowhere, as if the wire had lost them.
                let path = qp.primary_path();
                if !step.shared.port.has_source(path) {
                    let (index, entries) = (path.get(Ads::SRC_ADDR_INDEX), step.shared.port.gid_entries());
                    step.ctx.reject(Rejection::NoGid { qpn: qp.qpn, index, entries });
                }
                qp.link_to_peer(step.shared)
            }
        };
        let mut transport = qp.transport_part(step.shared, operation, psn::add(op.first_psn, packet_index));
        transport.immediate = immediate;
        transport.invalidate = invalidate;
        transport.xrc_srqn = wqe.xrc_srqn;
        transport.bth.solicited = wqe.solicited && place.is_end();
        match &wqe.body {
            SendBody::Send { .. } | SendBody::Write { .. } => {
                if let SendBody::Write { remote, .. } = &wqe.body
                    && place.is_start()
                {
                    transport.reth = Some(Reth { addr: remote.addr, rkey: remote.rkey, len: op.len as u32 });
                }
                if let SendBody::Send { address: Some(address), .. } = &wqe.body {
                    transport.bth.dest_qpn = address.dqpn;
                    // A queue key with its highest bit set stands for the queue pair's own.
                    let qkey = if address.qkey >> 31 == 0 { address.qkey } else { qp.get(Qpc::Q_KEY) };
                    transport.deth = Some(Deth { qkey, source_qpn: qp.wire_qpn() });
                }
                let offset = u64::from(packet_index) * mtu;
                let len = (op.len - offset.min(op.len)).min(mtu) as usize;
                match gather(step, qp.access(Right::LocalRead), op.data(), offset, len) {
                    Ok(payload) => transport.payload = payload.into(),
                    Err(_) => return Some(Err(CqeSyndrome::LocalProt)),
                }
            }
            SendBody::Read { remote, .. } => {
                // What came already is not asked for again.
                let offset = u64::from(op.received) * mtu;
                transport.bth.psn = psn::add(op.first_psn, op.received);
                let len = (op.len - offset.min(op.len)) as u32;
                transport.reth = Some(Reth { addr: remote.addr.wrapping_add(offset), rkey: remote.rkey, len });
            }
            SendBody::Atomic { remote, operation, .. } => {
                let (swap_add, compare) = match *operation {
                    AtomicOperation::CompareSwap { compare, swap } => (swap, compare),
                    AtomicOperation::FetchAdd { add } => (add, 0),
                    AtomicOperation::MaskedCompareSwap { size, compare, compare_mask, swap, swap_mask } => {
                        transport.payload = masked::payload(size, swap_mask, compare_mask).into();
                        (swap, compare)
                    }
                    AtomicOperation::MaskedFetchAdd { size, add, boundary } => {
                        transport.payload = masked::payload(size, boundary, 0).into();
                        (add, 0)
                    }
                };
                transport.atomic = Some(AtomicEth { addr: remote.addr, rkey: remote.rkey, swap_add, compare });
            }
            SendBody::Nop | SendBody::Umr(_) => return None,
        }
        Some(Ok(Packet { link, transport }))
    }
}
