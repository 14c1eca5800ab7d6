//! Health: the counter that shows life, and what a failing device says.

use bareverbs::platform::Instant;
use bareverbs_mlx5_spec::{HealthBuffer, ViewMut};

/// Nanoseconds between two steps of the health counter: real firmware counts about this fast, drivers look every two
/// seconds.
const TICK: u64 = 10_000_000;

/// What the health buffer says about a failure; all zero is health.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HealthReport {
    /// Syndrome, not 0 for a failure.
    pub syndrome: u8,
    /// Extended syndrome.
    pub extended: u16,
    /// Whether a reset is required: the failure is fatal.
    pub reset_required: bool,
    /// Severity, 0 to 7.
    pub severity: u8,
}

/// Health of the device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Health {
    pub(crate) report: HealthReport,
    /// When the counter stopped, if it did.
    pub(crate) stopped: Option<Instant>,
}

impl Health {
    /// Returns the value of the health counter.
    pub(crate) fn counter(&self, now: Instant) -> u32 {
        let at = self.stopped.map_or(now, |stopped| stopped.min(now));
        (at.as_nanos() / TICK) as u32 & 0xff_ffff
    }

    /// Writes the health buffer.
    pub(crate) fn fill(&self, buffer: &mut ViewMut<'_, HealthBuffer>, now: Instant, firmware: u32) {
        let failed = self.report != HealthReport::default();
        buffer
            .set(HealthBuffer::FW_VERSION, firmware)
            .set(HealthBuffer::HW_ID, 0x0000_0218)
            .set(HealthBuffer::TIME, (now.as_nanos() / 1_000_000) as u32)
            .set(HealthBuffer::RFR, self.report.reset_required.into())
            .set(HealthBuffer::VALID, failed.into())
            .set(HealthBuffer::SEVERITY, self.report.severity.into())
            .set(HealthBuffer::SYND, self.report.syndrome.into())
            .set(HealthBuffer::EXT_SYND, self.report.extended.into());
    }
}
