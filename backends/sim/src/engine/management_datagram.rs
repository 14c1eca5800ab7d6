//! Management datagrams for the agents of the port: taken before any queue pair gets them, as firmware does, and answered.

use std::borrow::Cow;

use super::Engine;
use super::resources::{MAX_FRAMES, QpStep};
use crate::identity::DEFAULT_PARTITION;
use crate::management::{self, MAD, Violation};
use crate::packet::{Bth, Deth, GENERAL_QPN, Opcode, Operation, Packet, Place, SUBNET_QPN, Transport, TransportPart};
use crate::step::StepContext;

/// Queue key of general management.
const GENERAL_QKEY: u32 = 0x8001_0000;

impl Engine {
    /// Returns whether a packet is a datagram that an agent of the port answers.
    pub(super) fn is_management_request(&self, packet: &Packet<'_>) -> bool {
        let port = &self.shared.port;
        let here = port.has_agents_for(&packet.link);
        let TransportPart { bth, deth, payload, .. } = &packet.transport;
        let datagram = Opcode { transport: Transport::Ud, operation: Operation::Send(Place::Only) };
        let (Some(deth), Ok(mad)) = (deth, <&[u8; MAD]>::try_from(&**payload)) else { return false };
        let allowed = match bth.dest_qpn {
            SUBNET_QPN => true,
            GENERAL_QPN => deth.qkey == GENERAL_QKEY && port.shares_partition(bth.pkey),
            _ => false,
        };
        let subnet = bth.dest_qpn == SUBNET_QPN;
        here && allowed && bth.opcode == datagram && management::is_request(mad, subnet)
    }

    /// Returns whether there is room for a datagram of an agent.
    pub(crate) fn has_room_for_datagram(&self) -> bool {
        self.shared.frames.len() < MAX_FRAMES
    }

    /// Returns the next request to an agent, if there is room for its answer.
    pub(crate) fn next_management_request(&mut self) -> Option<Packet<'static>> {
        if self.has_room_for_datagram() { self.shared.management_requests.pop() } else { None }
    }

    /// Returns whether there is something for [`Engine::take_violations`].
    pub(crate) fn has_violations(&self) -> bool {
        !self.shared.violations.is_empty()
    }

    /// Returns packets with wrong keys that came since the last call: one of each kind.
    pub(crate) fn take_violations(&mut self) -> Vec<Violation> {
        std::mem::take(&mut self.shared.violations)
    }

    /// Sends a datagram of the port's agent to queue pair 0 of the subnet manager, which may be here.
    pub(crate) fn send_to_manager(&mut self, ctx: &mut StepContext<'_>, manager: u16, mad: &[u8; MAD]) {
        let Some(link) = self.shared.port.to_manager(manager) else { return };
        let opcode = Opcode { transport: Transport::Ud, operation: Operation::Send(Place::Only) };
        let bth = Bth {
            opcode,
            solicited: false,
            migreq: true,
            pkey: DEFAULT_PARTITION,
            dest_qpn: SUBNET_QPN,
            ack_req: false,
            psn: 0,
        };
        let mut packet = Packet::new(link, bth);
        packet.transport.deth = Some(Deth { qkey: 0, source_qpn: SUBNET_QPN });
        packet.transport.payload = Cow::Borrowed(mad);
        QpStep { shared: &mut self.shared, ctx }.transmit(packet);
    }

    /// Sends an agent's answer back to where the request came from.
    pub(crate) fn answer(&mut self, ctx: &mut StepContext<'_>, request: &Packet<'_>, answer: &[u8; MAD]) {
        let TransportPart { bth: asked, deth: Some(from), .. } = &request.transport else { return };
        let to_subnet = asked.dest_qpn == SUBNET_QPN;
        let Some(link) = self.shared.port.to_asker(&request.link, to_subnet) else { return };
        // A full member answers a limited one as what it is itself: two limited members may not communicate (10.9.1.2).
        let own_pkey = self.shared.port.matching_pkey(asked.pkey).filter(|_| !to_subnet);
        let pkey = own_pkey.unwrap_or(asked.pkey);
        let bth = Bth { dest_qpn: from.source_qpn, solicited: false, pkey, ..*asked };
        let mut packet = Packet::new(link, bth);
        let qkey = if to_subnet { 0 } else { GENERAL_QKEY };
        packet.transport.deth = Some(Deth { qkey, source_qpn: asked.dest_qpn });
        packet.transport.payload = Cow::Borrowed(answer);
        QpStep { shared: &mut self.shared, ctx }.transmit(packet);
    }
}
