//! Packets sent again: the local acknowledge timeout, gaps, and peers without a receive.

use std::time::Duration;

use bareverbs::Instant;
use bareverbs_mlx5_spec::{Ads, CqeSyndrome, Qpc};

use crate::engine::qp::Qp;
use crate::engine::work::Work;

/// Unit of the local acknowledge timeout.
const TIMEOUT_UNIT: Duration = Duration::from_nanos(4096);

/// A timer that is seen later than this part of its value was not watched.
const LATE: u32 = 4;

/// Delay that a timer code of an RNR NAK names (InfiniBand Architecture, table 45).
pub(in crate::engine) fn rnr_delay(timer: u8) -> Duration {
    const UNITS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
        8192, 12288, 16384, 24576, 32768, 49152,
    ];
    const UNIT: Duration = Duration::from_micros(10);
    UNIT * UNITS.get(usize::from(timer & 0x1f)).copied().unwrap_or(1)
}

impl Qp {
    /// The local acknowledge timeout, if there is one.
    pub(in crate::engine) fn timeout(&self) -> Option<Duration> {
        match self.path(Ads::ACK_TIMEOUT) {
            0 => None,
            exponent => Some(TIMEOUT_UNIT * (1 << exponent.min(31))),
        }
    }

    pub(in crate::engine) fn note_progress(&mut self, now: Instant) {
        let (retries, rnr, timeout) = (self.get(Qpc::RETRY_COUNT), self.get(Qpc::RNR_RETRY), self.timeout());
        self.requester.progress(retries, rnr, timeout, now);
    }

    /// Something is missing: sends again from the oldest unacknowledged packet, or gives up.
    pub(in crate::engine) fn retransmit(&mut self, work: &mut Work<'_, '_>) {
        let Some(left) = self.requester.retries_left.checked_sub(1) else {
            self.fail_head(work, CqeSyndrome::TransportRetryExc);
            return;
        };
        work.shared.stats.retries += 1;
        self.requester.retries_left = left;
        self.requester.retransmitting = true;
        self.requester.timer_restarted = false;
        self.requester.rewind();
        self.requester.ack_due = self.timeout().map(|timeout| work.env.now.after(timeout));
    }

    /// The peer had no receive: waits as long as it said, or gives up.
    pub(in crate::engine) fn wait_for_receive(&mut self, work: &mut Work<'_, '_>, timer: u8) {
        /// Retries without end.
        const FOREVER: u32 = 7;
        if self.get(Qpc::RNR_RETRY) != FOREVER {
            let Some(left) = self.requester.rnr_left.checked_sub(1) else {
                self.fail_head(work, CqeSyndrome::RnrRetryExc);
                return;
            };
            self.requester.rnr_left = left;
        }
        work.shared.stats.receiver_not_ready += 1;
        self.counts(work).receiver_not_ready += 1;
        self.requester.rewind();
        self.requester.ack_due = None;
        self.requester.rnr_until = Some(work.env.now.after(rnr_delay(timer)));
    }

    /// Timers that are due at `now`.
    pub(in crate::engine) fn check_timers(&mut self, work: &mut Work<'_, '_>) {
        let now = work.env.now;
        if self.requester.rnr_until.is_some_and(|due| due <= now) {
            self.requester.rnr_until = None;
        }
        let Some(due) = self.requester.ack_due.filter(|&due| due <= now && self.can_send()) else { return };
        self.requester.ack_due = None;
        if self.requester.unacked == self.requester.sent_end {
            return;
        }
        let timeout = self.timeout().unwrap_or_default();
        // Nobody looked at this timer for long after it was due: the process stood still, and with it whatever brings the
        // acknowledgement. The peer gets the time again, once for each retry. The architecture lets the timer run for up to
        // four times its value (9.7.6.1.3).
        if now.since(due) > timeout / LATE && !self.requester.timer_restarted {
            work.env.note(|| format!("QP {:#x}: the device stood still, acknowledge timer restarted", self.qpn));
            self.requester.timer_restarted = true;
            self.requester.ack_due = Some(now.after(timeout));
            return;
        }
        work.env.note(|| format!("QP {:#x}: no acknowledgement in time", self.qpn));
        self.counts(work).timeouts += 1;
        self.retransmit(work);
    }
}
