//! The initialization segment: its registers, and what they say about the device.

use bareverbs::{Platform, Registers};
use bareverbs_mlx5_spec::{Field, HealthBuffer, InitialSeg};

use super::CommandInterface;
use crate::error::{Error, PackedError};
use crate::log::log_event;

impl<P: Platform> CommandInterface<P> {
    /// Returns a register of the initialization segment in host byte order, all ones where there is none.
    pub(crate) fn register(&self, at: usize) -> u32 {
        self.machine.registers.read32(at).map_or(u32::MAX, u32::from_be)
    }

    /// Returns a field of the initialization segment.
    pub(crate) fn segment(&self, field: Field<InitialSeg>) -> u32 {
        field.take(self.register(field.dword()))
    }

    /// Returns [`Error::DeviceGone`] if registers read as all ones, [`Error::DeviceFatal`] if the firmware stopped until a
    /// reset. No command is sent after either, since it would time out.
    pub(crate) fn check_device(&mut self) -> Result<(), PackedError> {
        self.read_health_report()?;
        self.check_alive()
    }

    /// Returns whether the firmware requests a reset, and the dword with its syndrome.
    pub(crate) fn read_health_report(&mut self) -> Result<(bool, u32), PackedError> {
        let revision = self.register(InitialSeg::FW_REV_MAJOR.dword());
        let interface = self.register(InitialSeg::CMD_INTERFACE_REV.dword());
        if revision == u32::MAX && interface == u32::MAX {
            log_event!(error, "the device is gone");
            self.dead = Some(Error::DeviceGone.pack());
            return Err(Error::DeviceGone.pack());
        }
        let buffer = InitialSeg::HEALTH_BUFFER.offset();
        let reset_wanted = HealthBuffer::RFR.take(self.register(buffer + HealthBuffer::RFR.dword())) != 0;
        let report = self.register(buffer + HealthBuffer::SYND.dword());
        let syndrome = HealthBuffer::SYND.take(report) as u8;
        if reset_wanted && syndrome != 0 {
            log_event!(error, "the firmware requests a reset, health syndrome {:x}", syndrome);
            self.dead = Some(Error::DeviceFatal { syndrome }.pack());
        }
        Ok((reset_wanted, report))
    }
}
