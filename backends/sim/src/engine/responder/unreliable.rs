//! Receiving without acknowledgements: unreliable connections and datagrams.

use bareverbs_mlx5_spec::{CqeOpcode, CqeSyndrome, EventType, Qpc, QpcState};

use crate::engine::memory::message::{ScatterError, scatter};
use crate::engine::psn;
use crate::engine::qp::context::QpContext;
use crate::engine::resources::QpStep;
use crate::engine::responder::state::{Inbound, NoReceive, Refusal, Responder, Stop};
use crate::management::Violation;
use crate::packet::Packet;
use crate::rejection::Rejection;

/// Bytes before the payload of a received datagram, where its global route lies if it had one.
const ROUTE_AREA: usize = 40;

impl Responder {
    /// Handles a packet of an unreliable connection. A message with a gap is forgotten, and so is one that may not be
    /// executed; the peer gets no NAK.
    pub(in crate::engine) fn handle_uc_request(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>, packet: &Packet<'_>) {
        if !qp.can_receive() {
            return;
        }
        let place = packet.transport.bth.opcode.operation.place();
        if packet.transport.bth.psn != self.expected_psn || place.is_start() {
            self.drop_message();
        }
        self.expected_psn = packet.transport.bth.psn;
        if place.is_start() || self.is_amid_message() {
            match self.execute_request(qp, step, packet) {
                Ok(()) => {}
                Err(Stop::Refused(Refusal { receive: Some(CqeSyndrome::LocalLength), .. })) => self.too_long(qp, step),
                Err(Stop::Refused(refusal)) if refusal.receive.is_some() => {
                    if let (Some(index), Some(syndrome)) = (self.held_receive(), refusal.receive) {
                        self.abandon();
                        self.fail_receive(qp, step, index, syndrome);
                    }
                    if qp.state != QpcState::Err {
                        qp.fail(step, None);
                    }
                }
                Err(Stop::Refused(Refusal { event: event @ Some(EventType::WqCatasError), .. })) => qp.fail(step, event),
                Err(stop) => {
                    if let Stop::NotReady = stop {
                        qp.counts(step).out_of_buffer += 1;
                        self.report_no_receive(qp, step, false);
                    }
                    self.drop_message();
                }
            }
        }
        self.expected_psn = psn::add(packet.transport.bth.psn, 1);
    }

    /// The message in progress does not fit its receive. The next message gets that; one of a shared queue has left it and
    /// completes instead. The queue pair stays usable either way: classes D and E of InfiniBand Architecture 9.9.6.3, as
    /// Linux's software device has them (`rxe_resp.c`, `RESPST_ERR_LENGTH`). What cards do is not published.
    fn too_long(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>) {
        match self.held_receive() {
            Some(index) if qp.srq.is_some() => {
                self.abandon();
                self.fail_receive(qp, step, index, CqeSyndrome::LocalLength);
            }
            _ => self.drop_message(),
        }
    }

    /// The message that is arriving is forgotten; the next one gets its receive.
    fn drop_message(&mut self) {
        self.keep_receive();
        self.abandon();
    }

    /// Handles a datagram. One with the wrong queue key, for which no receive is posted, or that does not fit, is dropped.
    pub(in crate::engine) fn handle_datagram(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>, packet: &Packet<'_>) {
        let Some(deth) = packet.transport.deth else { return };
        if !qp.can_receive() {
            return;
        }
        if deth.qkey != qp.get(Qpc::Q_KEY) && !qp.is_subnet_management() {
            step.shared.stats.qkey_violations += 1;
            step.shared.report(Violation::of_queue_key(packet));
            step.ctx.reject(Rejection::QueueKey { qpn: qp.qpn, qkey: deth.qkey, expected: qp.get(Qpc::Q_KEY) });
            return;
        }
        let receive = match self.next_receive(qp, step) {
            Some(Ok(receive)) => receive,
            Some(Err(NoReceive::BadWqe)) => return self.fail_held(qp, step, CqeSyndrome::LocalQpOp),
            Some(Err(NoReceive::Queue)) => return qp.fail(step, Some(EventType::WqCatasError)),
            None => {
                self.report_no_receive(qp, step, false);
                qp.counts(step).out_of_buffer += 1;
                return;
            }
        };
        let len = ROUTE_AREA + packet.transport.payload.len();
        if receive.len() < len as u64 {
            step.ctx.reject(Rejection::ReceiveTooShort { qpn: qp.qpn, room: receive.len(), needed: len as u64 });
            self.message = Some(Inbound::Send { receive, written: 0 });
            return self.too_long(qp, step);
        }
        let access = receive.access(qp.qpn);
        let mut place = |at, bytes: &[u8]| scatter(step, access, receive.list.iter().copied(), at, bytes);
        // Without a route its place stays as it is.
        let before = packet.link.before_datagram(packet.transport.encoded_len());
        let route = before.map_or(Ok(()), |bytes| place(0, &bytes));
        let syndrome = match route.and_then(|()| place(ROUTE_AREA as u64, &packet.transport.payload)) {
            Ok(()) => {
                let opcode = if packet.transport.immediate.is_some() { CqeOpcode::RespSendImm } else { CqeOpcode::RespSend };
                self.finish_receive(qp, step, packet, opcode, receive.index, len as u32);
                return;
            }
            Err(ScatterError::TooLong) => CqeSyndrome::LocalLength,
            Err(ScatterError::Key(_)) => CqeSyndrome::LocalProt,
        };
        self.fail_receive(qp, step, receive.index, syndrome);
        if qp.state != QpcState::Err {
            qp.fail(step, None);
        }
    }

    fn fail_held(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>, syndrome: CqeSyndrome) {
        if let Some(index) = self.held_receive() {
            self.abandon();
            self.fail_receive(qp, step, index, syndrome);
        }
        if qp.state != QpcState::Err {
            qp.fail(step, None);
        }
    }
}
