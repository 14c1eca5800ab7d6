//! Send WQEs taken from the ring: read, decoded, refused if nothing of them can be done; doorbells audited.

use bareverbs_mlx5_spec::{CqeSyndrome, DS_UNIT, EventType, Qpc, QpcState, SendDoorbell, View, WQEBB, WqeCtrlSeg, WqeOpcode};

use crate::audit::Finding;
use crate::engine::event::EngineEvent;
use crate::engine::psn;
use crate::engine::qp::context::{QpContext, Service};
use crate::engine::requester::MAX_UNDER_WAY;
use crate::engine::requester::state::{Kind, Requester, SendOp};
use crate::engine::resources::QpStep;
use crate::packet::SUBNET_QPN;
use crate::rejection::Rejection;
use crate::trace::Record;
use crate::wqe_decode::{DataSegment, SendBody, SendWqe, WqeError, blocks};

/// Maximum message length of any path (InfiniBand Architecture 9.3.3).
const MAX_MESSAGE: u64 = 1 << 31;

impl Requester {
    /// Takes the next WQE from the ring. Returns `false` if there is none to take.
    pub(in crate::engine) fn fetch(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>) -> bool {
        if qp.state != QpcState::Rts || self.fetched == self.posted() {
            return false;
        }
        // One request always finds room: it is counted with the queue pair. More wait until some of those before are done.
        let under_way = self.ops.len();
        if under_way >= MAX_UNDER_WAY || (under_way > 0 && !step.shared.registry.has_memory(self.memory_with_next())) {
            return false;
        }
        let index = self.fetched;
        let Some((bytes, size)) = self.read_wqe(qp, step, index) else {
            qp.fail(step, Some(EventType::WqCatasError));
            return false;
        };
        step.ctx.trace(Record::SendWqe { qpn: qp.qpn, index, bytes: &bytes });
        let mut op = SendOp {
            wqe: None,
            index,
            send_opcode: View::<WqeCtrlSeg>::new(&bytes).map_or(0, |control| control.get(WqeCtrlSeg::OPCODE) as u8),
            first_psn: self.next_psn,
            psns: 0,
            len: 0,
            count: self.count,
            received: 0,
            failed: None,
            // Segments take more room decoded than in the ring.
            segments: 4 * bytes.len() as u64,
        };
        match SendWqe::decode(&bytes, qp.service.wqe()) {
            Err(error) => {
                step.ctx.note(|| format!("WQE {index} of QP {:#x}: {error}", qp.qpn));
                op.failed = Some(error.syndrome());
                if let WqeError::Opcode { .. } | WqeError::Unsupported { .. } = error {
                    step.shared.events.push_back(EngineEvent::UnknownRequest { opcode: op.send_opcode });
                }
            }
            Ok(wqe) if wqe.index != index || wqe.qpn != qp.qpn => {
                let finding = Finding::WqeMismatch { qpn: qp.qpn, index, wqe_index: wqe.index, wqe_qpn: wqe.qpn };
                step.ctx.audit.report(finding);
                op.failed = Some(CqeSyndrome::LocalQpOp);
            }
            Ok(wqe) => {
                op.len = wqe.message_len();
                op.failed = self.refuse(qp, &wqe, op.len, step);
                op.wqe = Some(wqe);
                op.psns = match op.kind() {
                    Kind::Nop | Kind::Umr => 0,
                    Kind::Atomic => 1,
                    Kind::SendOrWrite | Kind::Read => (op.len.div_ceil(qp.mtu() as u64) as u32).max(1),
                };
            }
        }
        if op.failed.is_some() {
            op.psns = 0;
        }
        if op.psns > 0 {
            op.count.messages = psn::add(op.count.messages, 1);
            op.count.receives = psn::add(op.count.receives, u32::from(op.takes_receive()));
        }
        self.count = op.count;
        self.fetched = index.wrapping_add(size);
        self.next_psn = psn::add(self.next_psn, op.psns);
        self.segments += op.segments;
        self.ops.push_back(op);
        true
    }

    /// Returns the bytes of the WQE at `index` and its size in blocks, cut to what is posted.
    pub(in crate::engine) fn read_wqe(&self, qp: &QpContext, step: &QpStep<'_, '_>, index: u16) -> Option<(Vec<u8>, u16)> {
        let ring = qp.sq.as_ref()?;
        let mut bytes = vec![0; WQEBB];
        ring.read(step.ctx.memory, u32::from(index), &mut bytes).ok()?;
        let ds = View::<WqeCtrlSeg>::new(&bytes)?.get(WqeCtrlSeg::DS);
        let (len, size) = (ds as usize * DS_UNIT, blocks(ds as u8));
        let posted = self.posted().wrapping_sub(index);
        let size = size.min(posted).min(u16::try_from(ring.entries()).unwrap_or(u16::MAX)).max(1);
        if size > 1 {
            bytes.resize(usize::from(size) * WQEBB, 0);
            ring.read(step.ctx.memory, u32::from(index), &mut bytes).ok()?;
        }
        bytes.truncate(len.clamp(16, usize::from(size) * WQEBB));
        Some((bytes, size))
    }

    /// Returns the error of a request that must not be started.
    pub(in crate::engine) fn refuse(
        &self,
        qp: &QpContext,
        wqe: &SendWqe,
        len: u64,
        step: &mut QpStep<'_, '_>,
    ) -> Option<CqeSyndrome> {
        // IBTA table 38: others have no opcode for them.
        let reliable_only =
            matches!(wqe.body, SendBody::Read { .. } | SendBody::Atomic { .. }) || wqe.opcode == WqeOpcode::SendInval;
        let sends = !matches!(wqe.body, SendBody::Nop | SendBody::Umr(_));
        if (reliable_only && !qp.service.is_reliable()) || (sends && qp.service == Service::RegUmr) {
            let (operation, transport) = (wqe.opcode.name(), qp.service.transport().name());
            step.ctx.reject(Rejection::Operation { qpn: qp.qpn, operation, transport });
            return Some(CqeSyndrome::LocalQpOp);
        }
        if matches!(wqe.opcode, WqeOpcode::AtomicMaskedCs | WqeOpcode::AtomicMaskedFa) && !step.shared.config.extended_atomics {
            return Some(CqeSyndrome::LocalQpOp);
        }
        // Queue pair 0 sends to queue pairs 0 alone.
        if let SendBody::Send { address: Some(address), .. } = &wqe.body
            && (address.dqpn == SUBNET_QPN) != qp.is_subnet_management()
        {
            return Some(CqeSyndrome::LocalQpOp);
        }
        let most = match qp.service {
            Service::Ud => (qp.mtu() as u64).min(step.shared.config.max_mtu.into()),
            _ => MAX_MESSAGE.min(1 << step.shared.config.log_max_msg.min(31)),
        };
        let log_msg_max = qp.get(Qpc::LOG_MSG_MAX);
        let most = if log_msg_max == 0 { most } else { most.min(1 << log_msg_max) };
        // Half of all sequence numbers may be in progress, so a message has fewer packets than that.
        let packets = len.div_ceil(qp.mtu() as u64);
        if sends && (len > most || packets >= u64::from(psn::HALF)) {
            return Some(CqeSyndrome::LocalLength);
        }
        if let SendBody::Atomic { data, .. } = &wqe.body
            && data.iter().map(DataSegment::len).sum::<u64>() < len
        {
            return Some(CqeSyndrome::LocalLength);
        }
        None
    }

    /// Takes the host's count of posted blocks.
    pub(in crate::engine) fn post(&mut self, posted: u16) {
        self.posted_blocks += u64::from(posted.wrapping_sub(self.posted()));
    }

    /// Returns the posted blocks, as the host's record counts them.
    pub(in crate::engine) fn posted(&self) -> u16 {
        self.posted_blocks as u16
    }

    /// Checks a doorbell against the record and the ring.
    pub(in crate::engine) fn audit_doorbell(&mut self, qp: &QpContext, step: &mut QpStep<'_, '_>, doorbell: [u8; 8]) {
        let SendDoorbell { wqe_index: index, ds, .. } = SendDoorbell::from_be_word(u64::from_ne_bytes(doorbell));
        let end = index.wrapping_add(blocks(ds));
        let posted = self.posted();
        let Some(ring) = qp.sq.as_ref() else { return };
        // One doorbell makes the device take all that is posted, so later doorbells of a fast host can be a hundred thousand
        // blocks behind. So the position of each is counted from the one before. What is further from that than the ring is
        // long is an old one, if there can be one.
        let more = end.wrapping_sub(self.rung_blocks as u16);
        let behind = posted.wrapping_sub(end);
        let at = if u32::from(more) <= ring.entries() {
            self.rung_blocks + u64::from(more)
        } else {
            let old = self.posted_blocks.checked_sub(behind.into());
            old.unwrap_or_else(|| self.posted_blocks + u64::from(end.wrapping_sub(posted)))
        };
        self.rung_blocks = at;
        if at > self.posted_blocks {
            step.ctx.audit.report(Finding::DoorbellPastRecord { qpn: qp.qpn, doorbell: index, record: posted });
        }
        let mut bytes = [0; 8];
        // A completed WQE may be overwritten.
        let retired = self.posted_blocks.saturating_sub(posted.wrapping_sub(self.retired).into());
        if at > retired && ring.read(step.ctx.memory, u32::from(index), &mut bytes).is_ok() && bytes != doorbell {
            step.ctx.audit.report(Finding::DoorbellNotWqe { qpn: qp.qpn, index });
        }
        let under_way = posted.wrapping_sub(self.retired);
        if u32::from(under_way) > ring.entries() {
            let completed = self.retired;
            step.ctx.audit.report(Finding::RingOverrun { qpn: qp.qpn, posted, completed });
        }
    }
}
