//! Health of the device.

use core::time::Duration;

use bareverbs::platform::{Clock, Instant, Platform};
use bareverbs_mlx5_spec::{HealthBuffer, InitialSeg};

use crate::command::CommandInterface;
use crate::error::Error;
use crate::log::log_event;

/// Checks without a change of the counter after which it counts as stuck (Linux `health.c`, `MAX_MISSES`).
const MAX_MISSES: u8 = 3;
/// Interval between two checks (Linux `tout.c`, `MLX5_TO_HEALTH_POLL_INTERVAL_MS`).
const HEALTH_INTERVAL: Duration = Duration::from_secs(2);

/// The result of a health check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Health {
    /// The device's counter, 24 bits.
    pub counter: u32,
    /// Consecutive checks, two seconds apart or more, that found the counter unchanged.
    pub misses: u8,
    /// Whether `misses` is three or more: the counter stands still. The device is lost only if it does not answer a command either,
    /// which `maintain` tries.
    pub stuck: bool,
    /// Syndrome that the firmware reports, 0 for none.
    pub syndrome: u8,
    /// Extended syndrome.
    pub ext_syndrome: u16,
    /// Whether the firmware requests a reset.
    pub reset_wanted: bool,
}

impl Health {
    /// Returns whether the counter moves and the firmware requests no reset. A device whose counter stands still may be usable.
    pub const fn is_well(&self) -> bool {
        !(self.stuck || self.reset_wanted && self.syndrome != 0)
    }
}

/// The counter at the last check.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HealthWatch {
    last: Option<u32>,
    misses: u8,
    /// When the counter was seen to change, or a miss was counted.
    counted: Instant,
    /// When [`HealthWatch::maintain`] checks again.
    next: Instant,
}

impl HealthWatch {
    pub(crate) fn check<P: Platform>(&mut self, commands: &mut CommandInterface<P>) -> Result<Health, Error> {
        let (reset_wanted, report) = commands.read_health_report()?;
        let word = commands.register(InitialSeg::HEALTH_COUNTER.dword());
        let counter = InitialSeg::HEALTH_COUNTER.take(word);
        let now = commands.machine.clock.now();
        if self.last != Some(counter) {
            (self.last, self.misses, self.counted) = (Some(counter), 0, now);
        } else if now >= self.counted.after(HEALTH_INTERVAL) {
            // Checks in quick succession are one: the counter moves at its own pace.
            (self.misses, self.counted) = (self.misses.saturating_add(1), now);
            if self.misses == MAX_MISSES {
                log_event!(warn, "the health counter stands still at {:x}", counter);
            }
        }
        Ok(Health {
            counter,
            misses: self.misses,
            stuck: self.misses >= MAX_MISSES,
            syndrome: HealthBuffer::SYND.take(report) as u8,
            ext_syndrome: HealthBuffer::EXT_SYND.take(report) as u16,
            reset_wanted,
        })
    }

    /// Gives the firmware the pages that it requests and checks its health every two seconds, by a command too while its counter stands
    /// still. Returns when to call again.
    pub(crate) fn maintain<P: Platform>(&mut self, commands: &mut CommandInterface<P>) -> Result<Instant, Error> {
        commands.serve_page_requests()?;
        let now = commands.machine.clock.now();
        if now >= self.next {
            self.next = now.after(HEALTH_INTERVAL);
            let health = self.check(commands)?;
            // The counter of firmware that works may pause: Linux only reports it (`poll_health`). Firmware that has stopped answers no
            // command.
            commands.probe(health.stuck)?;
        }
        commands.check_alive()?;
        Ok(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::mock::{MockPlatform, started};

    /// The counter is the lower 24 bits of the dword at 0x1010 of the initialization segment. Linux looks every two seconds, and reports
    /// the third miss (`poll_health`).
    #[test]
    fn a_counter_that_stands_still_for_three_intervals_is_stuck() {
        let (mut driver, shared) = started();
        let commands: &mut CommandInterface<MockPlatform> = &mut driver.commands;
        let mut watch = HealthWatch::default();
        let mut look = |nanos: u64, counter: u32| {
            let mut state = shared.borrow_mut();
            state.now += nanos;
            state.registers[0x1010..0x1014].copy_from_slice(&counter.to_be_bytes());
            drop(state);
            let health = watch.check(commands).unwrap();
            assert_eq!(health.counter, counter & 0xff_ffff);
            (health.misses, health.stuck)
        };
        const SECOND: u64 = 1_000_000_000;
        assert_eq!(look(0, 5), (0, false));
        assert_eq!(look(SECOND, 5), (0, false), "one second later");
        assert_eq!(look(SECOND, 5), (1, false));
        // The upper byte is not of the counter.
        assert_eq!(look(2 * SECOND, 0x7f00_0005), (2, false));
        assert_eq!(look(SECOND, 5), (2, false), "not two seconds after the last that counted");
        assert_eq!(look(SECOND, 5), (3, true));
        assert_eq!(look(60 * SECOND, 5), (4, true), "one check, however late");
        assert_eq!(look(2 * SECOND, 6), (0, false));
        assert_eq!(look(2 * SECOND, 6), (1, false));
        assert_eq!(look(2 * SECOND, 5), (0, false), "any other number is a sign of life");
    }

    /// Linux takes a request for a reset for one with a syndrome only (`check_fatal_sensors`).
    #[test]
    fn a_device_is_well_unless_it_stands_still_or_wants_a_reset() {
        for (stuck, reset_wanted, syndrome, is_well) in [
            (false, false, 0, true),
            (false, false, 1, true),
            (false, true, 0, true),
            (false, true, 1, false),
            (true, false, 0, false),
            (true, true, 1, false),
        ] {
            let health = Health { stuck, reset_wanted, syndrome, ..Health::default() };
            assert_eq!(health.is_well(), is_well, "{health:?}");
        }
    }
}
