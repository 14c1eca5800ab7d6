//! Health of the device.

use core::time::Duration;

use bareverbs::{Clock, Instant, Platform, Registers};
use bareverbs_mlx5_spec::{Field, HealthBuffer, InitialSeg};

use crate::driver::Driver;
use crate::error::{Error, PackedError};
use crate::log::log_event;

/// Checks without a change of the counter after which a device counts as stuck.
const MAX_MISSES: u8 = 3;
/// Interval between two checks.
const HEALTH_INTERVAL: Duration = Duration::from_secs(1);

/// The result of a health check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Health {
    /// The device's counter, 24 bits.
    pub counter: u32,
    /// Consecutive checks that found the counter unchanged.
    pub misses: u8,
    /// Whether that were three or more: the firmware has stopped.
    pub stuck: bool,
    /// Syndrome that the firmware reports, 0 for none.
    pub syndrome: u8,
    /// Extended syndrome.
    pub ext_syndrome: u16,
    /// Whether the firmware requests a reset.
    pub reset_wanted: bool,
}

impl Health {
    /// Returns whether the device is usable.
    pub const fn is_well(&self) -> bool {
        !(self.stuck || self.reset_wanted && self.syndrome != 0)
    }
}

/// The counter at the last check.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HealthWatch {
    last: Option<u32>,
    misses: u8,
    /// When [`Driver::maintain`] checks again.
    next: Instant,
}

impl<P: Platform> Driver<P> {
    /// Checks the health counter and the health buffer, and handles late completions of commands.
    pub(crate) fn check_health(&mut self) -> Result<Health, PackedError> {
        self.destroy_orphans();
        let (reset_wanted, report) = self.read_health_report()?;
        let word = self.register(InitialSeg::HEALTH_COUNTER.dword());
        let counter = InitialSeg::HEALTH_COUNTER.take(word);
        self.health.misses = if self.health.last == Some(counter) { self.health.misses.saturating_add(1) } else { 0 };
        self.health.last = Some(counter);
        if self.health.misses == MAX_MISSES {
            log_event!(error, "the health counter stands still at {:x}", counter);
        }
        Ok(Health {
            counter,
            misses: self.health.misses,
            stuck: self.health.misses >= MAX_MISSES,
            syndrome: HealthBuffer::SYND.take(report) as u8,
            ext_syndrome: HealthBuffer::EXT_SYND.take(report) as u16,
            reset_wanted,
        })
    }

    /// Returns [`Error::DeviceGone`] if registers read as all ones, [`Error::DeviceFatal`] if the firmware stopped until a
    /// reset. No command is sent after either, since it would time out.
    pub(crate) fn check_device(&mut self) -> Result<(), PackedError> {
        self.read_health_report()?;
        self.commands.dead.map_or(Ok(()), Err)
    }

    /// Returns whether the firmware requests a reset, and the dword with its syndrome.
    fn read_health_report(&mut self) -> Result<(bool, u32), PackedError> {
        let revision = self.register(InitialSeg::FW_REV_MAJOR.dword());
        let interface = self.register(InitialSeg::CMD_INTERFACE_REV.dword());
        if revision == u32::MAX && interface == u32::MAX {
            log_event!(error, "the device is gone");
            self.commands.dead = Some(Error::DeviceGone.pack());
            return Err(Error::DeviceGone.pack());
        }
        let buffer = InitialSeg::HEALTH_BUFFER.offset();
        let reset_wanted = HealthBuffer::RFR.take(self.register(buffer + HealthBuffer::RFR.dword())) != 0;
        let report = self.register(buffer + HealthBuffer::SYND.dword());
        let syndrome = HealthBuffer::SYND.take(report) as u8;
        if reset_wanted && syndrome != 0 {
            log_event!(error, "the firmware requests a reset, health syndrome {:x}", syndrome);
            self.commands.dead = Some(Error::DeviceFatal { syndrome }.pack());
        }
        Ok((reset_wanted, report))
    }

    /// Gives the firmware the pages that it requests and checks its health once a second. Returns when to call again.
    pub(crate) fn maintain(&mut self) -> Result<Instant, PackedError> {
        self.serve_page_requests()?;
        let now = self.machine.clock.now();
        if now >= self.health.next {
            self.health.next = now.after(HEALTH_INTERVAL);
            let health = self.check_health()?;
            // The counter may move again, but no wait for that is bounded.
            if health.stuck {
                return Err(Error::DeviceFatal { syndrome: health.syndrome }.pack());
            }
        }
        match self.commands.dead {
            Some(reason) => Err(reason),
            None => Ok(self.health.next),
        }
    }

    /// Returns a register of the initialization segment in host byte order, all ones where there is none.
    pub(crate) fn register(&self, at: usize) -> u32 {
        self.machine.registers.read32(at).map_or(u32::MAX, u32::from_be)
    }

    /// Returns a field of the initialization segment.
    pub(crate) fn segment(&self, field: Field<InitialSeg>) -> u32 {
        field.take(self.register(field.dword()))
    }
}
