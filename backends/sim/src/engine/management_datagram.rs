//! Management datagrams for the agents of the port: taken before any queue pair gets them, as firmware does, and answered.

use std::borrow::Cow;

use super::Engine;
use super::resources::{MAX_FRAMES, QpStep};
use crate::identity::DEFAULT_PARTITION;
use crate::management::{self, MAD, Violation};
use crate::packet::{
    Bth, Deth, GENERAL_QPN, Grh, Lrh, NO_LID, Opcode, Operation, PERMISSIVE_LID, Packet, Place, SUBNET_LANE, SUBNET_QPN,
    Transport,
};
use crate::step::StepContext;

/// Queue key of general management.
const GENERAL_QKEY: u32 = 0x8001_0000;

impl Engine {
    /// Returns whether a packet is a datagram that an agent of the port answers.
    pub(super) fn is_management_request(&self, packet: &Packet<'_>) -> bool {
        let identity = &self.shared.identity;
        let here = packet.lrh.dlid == identity.lid() || packet.lrh.dlid == PERMISSIVE_LID;
        let datagram = Opcode { transport: Transport::Ud, operation: Operation::Send(Place::Only) };
        let (Some(deth), Ok(mad)) = (packet.deth, <&[u8; MAD]>::try_from(&*packet.payload)) else { return false };
        let allowed = match packet.bth.dest_qpn {
            SUBNET_QPN => true,
            GENERAL_QPN => deth.qkey == GENERAL_QKEY && identity.shares_partition(packet.bth.pkey),
            _ => false,
        };
        let subnet = packet.bth.dest_qpn == SUBNET_QPN;
        here && allowed && packet.bth.opcode == datagram && management::is_request(mad, subnet)
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
        let lrh = Lrh { vl: SUBNET_LANE, sl: 0, dlid: manager, slid: self.shared.identity.lid() };
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
        let mut packet = Packet::new(lrh, bth);
        packet.deth = Some(Deth { qkey: 0, source_qpn: SUBNET_QPN });
        packet.payload = Cow::Borrowed(mad);
        QpStep { shared: &mut self.shared, ctx }.transmit(packet);
    }

    /// Sends an agent's answer back to where the request came from.
    pub(crate) fn answer(&mut self, ctx: &mut StepContext<'_>, request: &Packet<'_>, answer: &[u8; MAD]) {
        let Some(asked) = request.deth else { return };
        let to_subnet = request.bth.dest_qpn == SUBNET_QPN;
        let vl = if to_subnet { SUBNET_LANE } else { 0 };
        // A port without a local identifier is at the other end of the cable.
        let dlid = if request.lrh.slid == NO_LID { PERMISSIVE_LID } else { request.lrh.slid };
        let lrh = Lrh { vl, sl: request.lrh.sl, dlid, slid: self.shared.identity.lid() };
        // A full member answers a limited one as what it is itself: two limited members may not communicate (10.9.1.2).
        let own_pkey = self.shared.identity.matching_pkey(request.bth.pkey).filter(|_| !to_subnet);
        let pkey = own_pkey.unwrap_or(request.bth.pkey);
        let bth = Bth { dest_qpn: asked.source_qpn, solicited: false, pkey, ..request.bth };
        let mut packet = Packet::new(lrh, bth);
        let qkey = if to_subnet { 0 } else { GENERAL_QKEY };
        packet.deth = Some(Deth { qkey, source_qpn: request.bth.dest_qpn });
        packet.grh =
            request.grh.map(|route| Grh { hop_limit: 0xff, sgid: self.shared.identity.port_gid(), dgid: route.sgid, ..route });
        packet.payload = Cow::Borrowed(answer);
        QpStep { shared: &mut self.shared, ctx }.transmit(packet);
    }
}
