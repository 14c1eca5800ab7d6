//! Whether the device still lives.

use core::time::Duration;

use bareverbs::{Clock, Instant, Platform, Registers};
use bareverbs_mlx5_spec::{Field, HealthBuffer, InitialSeg};

use crate::driver::Driver;
use crate::error::{Error, Fault};
use crate::log::log_event;

/// Looks without a change of the counter after which a device counts as stuck.
const MISSES: u8 = 3;
/// From look to look.
const HEALTH_PERIOD: Duration = Duration::from_secs(1);

/// What a look at the device gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Health {
    /// The device's counter, 24 bits.
    pub counter: u32,
    /// Looks in a row that found the counter unchanged.
    pub misses: u8,
    /// Whether that were three or more: the firmware runs no more.
    pub stuck: bool,
    /// What the firmware complains of, 0 for nothing.
    pub syndrome: u8,
    /// Details of it.
    pub ext_syndrome: u16,
    /// Whether the firmware asks for a reset.
    pub reset_wanted: bool,
}

impl Health {
    /// Whether the device can be used on.
    pub const fn is_well(&self) -> bool {
        !(self.stuck || self.reset_wanted && self.syndrome != 0)
    }
}

/// The counter at the last look.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HealthWatch {
    last: Option<u32>,
    misses: u8,
    /// When [`Driver::maintain`] looks again.
    next: Instant,
}

impl<P: Platform> Driver<P> {
    /// Looks at the health counter and the health buffer, and takes back what commands that answered late had.
    pub(crate) fn check_health(&mut self) -> Result<Health, Fault> {
        self.destroy_orphans();
        let (reset_wanted, complaint) = self.read_complaint()?;
        let word = self.register(InitialSeg::HEALTH_COUNTER.dword());
        let counter = InitialSeg::HEALTH_COUNTER.take(word);
        self.health.misses = if self.health.last == Some(counter) { self.health.misses.saturating_add(1) } else { 0 };
        self.health.last = Some(counter);
        if self.health.misses == MISSES {
            log_event!(error, "the health counter stands still at {:x}", counter);
        }
        Ok(Health {
            counter,
            misses: self.health.misses,
            stuck: self.health.misses >= MISSES,
            syndrome: HealthBuffer::SYND.take(complaint) as u8,
            ext_syndrome: HealthBuffer::EXT_SYND.take(complaint) as u16,
            reset_wanted,
        })
    }

    /// [`Error::DeviceGone`] if reads give all ones, [`Error::DeviceFatal`] if the firmware stopped until a reset. No command is
    /// sent after either: it would wait for its deadline.
    pub(crate) fn check_device(&mut self) -> Result<(), Fault> {
        self.read_complaint()?;
        self.commands.dead.map_or(Ok(()), Err)
    }

    /// Whether the firmware asks for a reset, and the dword with its syndrome.
    fn read_complaint(&mut self) -> Result<(bool, u32), Fault> {
        let revision = self.register(InitialSeg::FW_REV_MAJOR.dword());
        let interface = self.register(InitialSeg::CMD_INTERFACE_REV.dword());
        if revision == u32::MAX && interface == u32::MAX {
            log_event!(error, "the device is gone");
            self.commands.dead = Some(Error::DeviceGone.fault());
            return Err(Error::DeviceGone.fault());
        }
        let buffer = InitialSeg::HEALTH_BUFFER.offset();
        let reset_wanted = HealthBuffer::RFR.take(self.register(buffer + HealthBuffer::RFR.dword())) != 0;
        let complaint = self.register(buffer + HealthBuffer::SYND.dword());
        let syndrome = HealthBuffer::SYND.take(complaint) as u8;
        if reset_wanted && syndrome != 0 {
            log_event!(error, "the firmware asks for a reset, health syndrome {:x}", syndrome);
            self.commands.dead = Some(Error::DeviceFatal { syndrome }.fault());
        }
        Ok((reset_wanted, complaint))
    }

    /// Gives the firmware the pages that it asks for and, once a second, looks at its health. Gives the moment of the next call.
    pub(crate) fn maintain(&mut self) -> Result<Instant, Fault> {
        self.serve_page_requests()?;
        let now = self.machine.clock.now();
        if now >= self.health.next {
            self.health.next = now.after(HEALTH_PERIOD);
            let health = self.check_health()?;
            // It may count again some day, but nobody can wait for that.
            if health.stuck {
                return Err(Error::DeviceFatal { syndrome: health.syndrome }.fault());
            }
        }
        match self.commands.dead {
            Some(reason) => Err(reason),
            None => Ok(self.health.next),
        }
    }

    /// A register of the initialization segment, in host byte order; all ones where there is none, as if no device answered.
    pub(crate) fn register(&self, at: usize) -> u32 {
        self.machine.registers.read32(at).map_or(u32::MAX, u32::from_be)
    }

    /// A field of the initialization segment.
    pub(crate) fn segment(&self, field: Field<InitialSeg>) -> u32 {
        field.take(self.register(field.dword()))
    }
}
