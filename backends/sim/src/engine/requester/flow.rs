//! End-to-end flow control (InfiniBand Architecture 9.7.7.2): acknowledgements say how many receives are posted at the peer,
//! and no more requests that take one are sent than that. Credits count messages, which is what `mlx5dv_create_qp` of rdma-core
//! documents as the default of the devices; their other mode, which counts packets, is not offered (`qp_packet_based`).
//!
//! One request may go beyond the limit, with one packet: an acknowledgement says that its receive came, and a receiver not
//! ready NAK lets it be tried again later. So a requester without credits resumes alone when receives are posted.

use bareverbs_mlx5_spec::WqeOpcode;

use crate::engine::psn;
use crate::engine::requester::state::{Requester, SendOp};
use crate::engine::responder::aeth_credit;
use crate::packet::{Aeth, Syndrome};
use crate::wqe_decode::SendBody;

impl SendOp {
    /// Returns the packet with which the request takes a receive of the peer, if it takes one.
    fn receiving_packet(&self) -> Option<u32> {
        let wqe = self.wqe.as_ref()?;
        match (&wqe.body, wqe.opcode) {
            (SendBody::Send { .. }, _) => Some(0),
            (SendBody::Write { .. }, WqeOpcode::RdmaWriteImm) => self.psns.checked_sub(1),
            _ => None,
        }
    }

    pub(in crate::engine) fn takes_receive(&self) -> bool {
        self.receiving_packet().is_some()
    }
}

impl Requester {
    /// Takes the credits of an acknowledgement. How many a device assumes before the first one is not published: here there is
    /// no limit then, and a receiver that is not ready says so.
    pub(in crate::engine) fn take_credits(&mut self, aeth: Aeth) {
        let Syndrome::Ack(count) = aeth.syndrome else { return };
        let Some(credits) = aeth_credit::decode(count) else {
            self.receive_limit = None;
            return;
        };
        // What the peer counted before, it counted again since.
        if psn::ahead(aeth.msn, self.done.messages) < 0 {
            return;
        }
        // Its messages up to this number took these receives; the credits are for those after them.
        let after = self.ops.partition_point(|op| psn::ahead(op.count.messages, aeth.msn) <= 0);
        let last = after.checked_sub(1).and_then(|last| self.ops.get(last));
        let taken = last.map_or(self.done.receives, |op| op.count.receives);
        let mut limit = psn::add(taken, credits);
        // A message that was begun when there was no limit continues: nothing in progress may ask for the acknowledgement that
        // it would have to wait for.
        if self.receive_limit.is_none()
            && let Some(begun) = self.ops.get(self.cursor.0).filter(|_| self.cursor.1 > 0)
        {
            limit = psn::later(limit, begun.count.receives);
        }
        self.receive_limit = Some(self.receive_limit.map_or(limit, |known| psn::later(known, limit)));
    }

    /// Returns how many receives a request is beyond the limit; none if that is not above 0. The oldest request is one beyond
    /// at most, so that it always makes progress.
    fn beyond_limit(&self, op: &SendOp) -> i32 {
        self.receive_limit.map_or(0, |limit| psn::ahead(op.count.receives, limit))
    }

    /// Returns whether credits let a packet of a request be sent.
    pub(in crate::engine) fn has_credit(&self, op: &SendOp, packet_index: u32) -> bool {
        if self.receive_limit.is_none() {
            return true;
        }
        let Some(receiving) = op.receiving_packet().filter(|receiving| packet_index >= *receiving) else { return true };
        match self.beyond_limit(op) {
            i32::MIN..=0 => true,
            // The rest of a message follows when its receive is known to be there.
            1 => packet_index == receiving || psn::ahead(self.unacked, op.first_psn) > 0,
            _ => false,
        }
    }

    /// Returns whether a packet goes beyond the limit, so that the requester waits for its acknowledgement.
    pub(in crate::engine) fn is_limited(&self, op: &SendOp, packet_index: u32) -> bool {
        op.receiving_packet() == Some(packet_index) && self.beyond_limit(op) > 0
    }
}
