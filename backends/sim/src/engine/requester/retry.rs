//! Packets sent again: the local acknowledge timeout, gaps, and peers without a receive.

use std::time::Duration;

use bareverbs::platform::Instant;
use bareverbs_mlx5_spec::{CqeSyndrome, Qpc};

use crate::engine::qp::context::QpContext;
use crate::engine::requester::state::Requester;
use crate::engine::resources::QpStep;
use crate::rejection::Rejection;

/// A timer that is checked later than this part of its value was not watched.
const LATE: u32 = 4;

/// Returns the delay that a timer code of an RNR NAK names (InfiniBand Architecture, table 45).
pub(in crate::engine) fn rnr_delay(timer: u8) -> Duration {
    const UNITS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
        8192, 12288, 16384, 24576, 32768, 49152,
    ];
    const UNIT: Duration = Duration::from_micros(10);
    UNIT * UNITS.get(usize::from(timer & 0x1f)).copied().unwrap_or(1)
}

impl Requester {
    pub(in crate::engine) fn note_progress(&mut self, qp: &QpContext, now: Instant) {
        let (retries, rnr, timeout) = (qp.get(Qpc::RETRY_COUNT), qp.get(Qpc::RNR_RETRY), qp.timeout());
        self.progress(retries, rnr, timeout, now);
    }

    /// Sends again from the oldest unacknowledged packet, or fails after the last retry.
    pub(in crate::engine) fn retransmit(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>) {
        let Some(left) = self.retries_left.checked_sub(1) else {
            self.fail_head(qp, step, CqeSyndrome::TransportRetryExc);
            return;
        };
        step.shared.stats.retries += 1;
        self.retries_left = left;
        self.retransmitting = true;
        self.timer_restarted = false;
        self.rewind();
        self.ack_due = qp.timeout().map(|timeout| step.ctx.now.after(timeout));
    }

    /// Waits as long as the peer's RNR NAK says, or fails after the last retry.
    pub(in crate::engine) fn wait_for_receive(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>, timer: u8) {
        /// Retry count that means no limit.
        const FOREVER: u32 = 7;
        if qp.get(Qpc::RNR_RETRY) != FOREVER {
            let Some(left) = self.rnr_left.checked_sub(1) else {
                step.ctx.reject(Rejection::RnrNak { qpn: qp.qpn });
                self.fail_head(qp, step, CqeSyndrome::RnrRetryExc);
                return;
            };
            self.rnr_left = left;
        }
        step.shared.stats.receiver_not_ready += 1;
        step.ctx.reject(Rejection::RnrNak { qpn: qp.qpn });
        qp.counts(step).receiver_not_ready += 1;
        self.rewind();
        self.ack_due = None;
        self.rnr_until = Some(step.ctx.now.after(rnr_delay(timer)));
    }

    /// Timers that are due at `now`.
    pub(in crate::engine) fn check_timers(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>) {
        let now = step.ctx.now;
        if self.rnr_until.is_some_and(|due| due <= now) {
            self.rnr_until = None;
        }
        let Some(due) = self.ack_due.filter(|&due| due <= now && qp.can_send()) else { return };
        self.ack_due = None;
        if self.unacked == self.sent_end {
            return;
        }
        let timeout = qp.timeout().unwrap_or_default();
        // This timer was checked long after it was due: the process stood still, and with it whatever brings the
        // acknowledgement. The peer gets the time again, once for each retry. The architecture lets the timer run for up to
        // four times its value (9.7.6.1.3).
        if now.since(due) > timeout / LATE && !self.timer_restarted {
            step.ctx.note(|| format!("QP {:#x}: the device stood still, acknowledge timer restarted", qp.qpn));
            self.timer_restarted = true;
            self.ack_due = Some(now.after(timeout));
            return;
        }
        step.ctx.note(|| format!("QP {:#x}: no acknowledgement in time", qp.qpn));
        qp.counts(step).timeouts += 1;
        self.retransmit(qp, step);
    }
}
