//! Congestion on the way of RoCEv2 packets: marks of switches, and notifications that answer them.
//!
//! A notification is counted. It slows nobody down: how much is up to a card's firmware, which no document describes.

use std::time::Duration;

use bareverbs_mlx5_spec::Qpc;

use super::Engine;
use crate::packet::{Addressing, CongestionNotification, Link};
use crate::step::StepContext;
use crate::trace::Record;

/// Time between two notifications from the port at least, as a ConnectX-5 comes from the factory (`MIN_TIME_BETWEEN_CNPS` of mlxconfig).
const INTERVAL: Duration = Duration::from_micros(4);

impl Engine {
    /// Takes a notification from the wire.
    pub(super) fn receive_notification(&mut self, ctx: &mut StepContext<'_>, frame: &[u8], addressing: &Addressing) {
        let notification = match CongestionNotification::decode(frame) {
            Ok(notification) => notification,
            Err(error) => {
                ctx.note(|| format!("notification of congestion dropped: {error}"));
                self.shared.stats.dropped += 1;
                self.shared.stats.malformed += 1;
                return;
            }
        };
        let (port, context) = (&self.shared.port, self.qps.get(&notification.dest_qpn).map(|qp| &qp.context));
        let is_from_peer = context.is_some_and(|context| {
            context.service.is_connected() && port.is_from_peer(&addressing.link, context.primary_path())
        });
        if !is_from_peer {
            return self.drop_frame(ctx, "a notification of congestion from no peer of a queue pair");
        }
        self.shared.stats.received.count(frame.len());
        self.shared.stats.notifications_received += 1;
    }

    /// Answers a marked packet for a connected queue pair by a notification, unless the port sent one lately.
    pub(super) fn notify_congestion(&mut self, ctx: &mut StepContext<'_>, qpn: u32) {
        let Some(qp) = self.qps.get(&qpn).filter(|qp| qp.context.service.is_connected()) else { return };
        if ctx.now < self.next_notification || !self.shared.has_room() {
            return;
        }
        let link = self.shared.port.to_peer(qp.context.primary_path(), false);
        let Link::RoceV2(to_peer) = link else { return };
        if !self.shared.port.may_send(&link) {
            return;
        }
        let frame = CongestionNotification::new(to_peer, qp.context.get(Qpc::REMOTE_QPN)).encode();
        self.next_notification = ctx.now.after(INTERVAL);
        ctx.trace(Record::Sent { bytes: &frame });
        self.shared.stats.sent.count(frame.len());
        self.shared.stats.notifications_sent += 1;
        let queue = if self.shared.port.loops_back(&link) { &mut self.shared.loopback } else { &mut self.shared.frames };
        queue.push_back(frame);
    }
}
