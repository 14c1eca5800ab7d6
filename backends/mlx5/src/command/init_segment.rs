//! The initialization segment: its registers, and what they say about the device.

use core::time::Duration;

use bareverbs::platform::{DmaFence, Platform, Registers};
use bareverbs_mlx5_spec::{Field, HealthBuffer, InitialSeg};

use super::CommandInterface;
use crate::error::Error;
use crate::log::log_event;

/// Longest timeout that is taken from a card: each wait ends, whatever the card says.
const LONGEST: Duration = Duration::from_secs(600);

impl<P: Platform> CommandInterface<P> {
    /// Takes the card's own timeout of a command, if that is longer, and returns that of its initialization. Linux takes both
    /// (`mlx5_tout_query_iseg`). A card that tells none has zeros there.
    pub(crate) fn take_timeouts(&mut self) -> Duration {
        // All ones are no time, but a device that is gone.
        let time = |register| if register == u32::MAX { Duration::ZERO } else { InitialSeg::timeout(register) };
        let own = |field: Field<InitialSeg>| time(self.segment(field)).min(LONGEST);
        let (init, command) = (own(InitialSeg::CMD_Q_INIT_TO), own(InitialSeg::CMD_EXEC_TO));
        if !init.is_zero() {
            self.timeout = self.timeout.max(command);
        }
        init
    }

    pub(crate) fn set_queue_address(&mut self, addr: u64) -> Result<(), Error> {
        let Self { machine, .. } = self;
        machine.fence.release();
        let high = InitialSeg::CMDQ_PHY_ADDR_63_32;
        machine.registers.write32(high.dword(), ((addr >> 32) as u32).to_be())?;
        // The other fields of the dword are 0: the interface is in the state of a driver that uses the device.
        let low = InitialSeg::CMDQ_PHY_ADDR_31_12;
        machine.registers.write32(low.dword(), low.place(addr as u32 >> 12).to_be())?;
        machine.fence.flush();
        self.queue_page = addr as u32 >> 12;
        self.queue_was_seen = self.has_queue_address();
        Ok(())
    }

    /// Returns whether the device has the address of the command queue, and takes commands.
    fn has_queue_address(&self) -> bool {
        let low = self.register(InitialSeg::CMDQ_PHY_ADDR_31_12.dword());
        let page = InitialSeg::CMDQ_PHY_ADDR_31_12.take(low);
        // These two states are the sensors of Linux's `mlx5_health_check_fatal_sensors`.
        let is_off = matches!(InitialSeg::nic_interface(low), InitialSeg::NIC_DISABLED | InitialSeg::NIC_SOFTWARE_RESET);
        page != 0 && page == self.queue_page && !is_off
    }

    /// Returns a register of the initialization segment in host byte order, all ones where there is none.
    pub(crate) fn register(&self, at: usize) -> u32 {
        self.machine.registers.read32(at).map_or(u32::MAX, u32::from_be)
    }

    pub(crate) fn segment(&self, field: Field<InitialSeg>) -> u32 {
        field.take(self.register(field.dword()))
    }

    /// Returns [`Error::DeviceGone`] if registers read as all ones, [`Error::DeviceReset`] if the device has lost the address of the
    /// command queue, [`Error::DeviceFatal`] if the firmware stopped until a reset. No command is sent after any of them, since it
    /// would time out.
    pub(crate) fn check_device(&mut self) -> Result<(), Error> {
        self.read_health_report()?;
        self.check_alive()
    }

    /// Returns whether the firmware requests a reset, and the dword with its syndrome.
    pub(crate) fn read_health_report(&mut self) -> Result<(bool, u32), Error> {
        let revision = self.register(InitialSeg::FW_REV_MAJOR.dword());
        let interface = self.register(InitialSeg::CMD_INTERFACE_REV.dword());
        if revision == u32::MAX && interface == u32::MAX {
            log_event!(error, "the device is gone");
            return Err(*self.dead.insert(Error::DeviceGone));
        }
        if self.has_queue_address() {
            self.queue_was_seen = true;
        } else if self.queue_was_seen {
            log_event!(error, "the device was reset");
            return Err(*self.dead.insert(Error::DeviceReset));
        }
        let buffer = InitialSeg::HEALTH_BUFFER.offset();
        let reset_wanted = HealthBuffer::RFR.take(self.register(buffer + HealthBuffer::RFR.dword())) != 0;
        let report = self.register(buffer + HealthBuffer::SYND.dword());
        let syndrome = HealthBuffer::SYND.take(report) as u8;
        if reset_wanted && syndrome != 0 {
            log_event!(error, "the firmware requests a reset, health syndrome {:x}", syndrome);
            self.dead = Some(Error::DeviceFatal { syndrome });
        }
        Ok((reset_wanted, report))
    }
}
