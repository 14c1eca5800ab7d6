//! The initialization segment: version, command queue, state of the interface, health, timer.

use bareverbs::Instant;
use bareverbs_mlx5_spec::{Field, InitialSeg, Layout, ViewMut};

use crate::config::DeviceConfig;
use crate::health::Health;

/// Revision of the command interface that drivers require.
const COMMAND_INTERFACE: u32 = 5;
/// Binary logarithms of the number of slots of the command queue and of the bytes of a slot.
pub(crate) const LOG_SLOTS: u32 = 5;
pub(crate) const LOG_STRIDE: u32 = 6;
/// Free-running timer in nanoseconds, high and low half (Linux `struct mlx5_init_seg`, `internal_timer_h`, `_l`).
const TIMER_HIGH: Field<InitialSeg> = Field::new(0x1000, 31, 0);
const TIMER_LOW: Field<InitialSeg> = Field::new(0x1004, 31, 0);
/// State of the interface; one bit more than `mlx5_ifc.h` gives it, as Linux reads and writes it.
const INTERFACE: Field<InitialSeg> = Field::new(20, 10, 8);

/// State of the interface to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NicInterface {
    /// In use.
    Full,
    /// Turned off by the driver or after a reset that it asked for.
    Disabled,
    /// The driver asks for a reset.
    Reset,
}

/// The registers at the start of BAR0.
#[derive(Clone, Debug)]
pub(crate) struct InitSegment {
    firmware: [u16; 3],
    queue_high: u32,
    queue_low: u32,
    written: bool,
    interface: u32,
    ready: Instant,
}

impl InitSegment {
    pub(crate) fn new(config: &DeviceConfig, now: Instant) -> Self {
        Self {
            firmware: [config.firmware.major, config.firmware.minor, config.firmware.subminor],
            queue_high: 0,
            queue_low: 0,
            written: false,
            interface: 0,
            ready: now.after(config.initializing),
        }
    }

    pub(crate) fn ready_at(&self) -> Instant {
        self.ready
    }

    /// Whether the firmware has started.
    pub(crate) fn ready(&self, now: Instant) -> bool {
        now >= self.ready
    }

    /// Device address of the command queue, once the driver has written it.
    pub(crate) fn command_queue(&self) -> Option<u64> {
        let usable = self.written && self.nic_interface() == NicInterface::Full;
        usable.then_some(u64::from(self.queue_high) << 32 | u64::from(self.queue_low))
    }

    pub(crate) fn nic_interface(&self) -> NicInterface {
        match self.interface {
            0 => NicInterface::Full,
            7 => NicInterface::Reset,
            _ => NicInterface::Disabled,
        }
    }

    /// The interface is off until the driver writes the command queue's address again.
    pub(crate) fn disable(&mut self) {
        self.interface = 1;
        self.written = false;
    }

    /// Takes a register write. The command doorbell's bits, if it was that.
    pub(crate) fn write(&mut self, at: usize, value: u32) -> Option<u32> {
        if at == InitialSeg::CMDQ_PHY_ADDR_63_32.dword() {
            self.queue_high = value;
        } else if at == InitialSeg::CMDQ_PHY_ADDR_31_12.dword() {
            // The low byte is the queue's geometry and reads as before, whatever is written.
            self.queue_low = value & 0xffff_f000;
            self.interface = INTERFACE.take(value);
            self.written = true;
        } else if at == InitialSeg::COMMAND_DOORBELL_VECTOR.dword() {
            return Some(value);
        }
        None
    }

    /// Reads bytes from `at` on.
    pub(crate) fn read(&self, health: &Health, now: Instant, at: usize, into: &mut [u8]) {
        let mut registers = vec![0; InitialSeg::SIZE];
        let [major, minor, subminor] = self.firmware;
        if let Some(mut seg) = ViewMut::<InitialSeg>::new(&mut registers) {
            seg.set(InitialSeg::FW_REV_MAJOR, major.into())
                .set(InitialSeg::FW_REV_MINOR, minor.into())
                .set(InitialSeg::FW_REV_SUBMINOR, subminor.into())
                .set(InitialSeg::CMD_INTERFACE_REV, COMMAND_INTERFACE)
                .set(InitialSeg::CMDQ_PHY_ADDR_63_32, self.queue_high)
                .set(InitialSeg::CMDQ_PHY_ADDR_31_12, self.queue_low >> 12)
                .set(INTERFACE, self.interface)
                .set(InitialSeg::LOG_CMDQ_SIZE, LOG_SLOTS)
                .set(InitialSeg::LOG_CMDQ_STRIDE, LOG_STRIDE)
                .set(InitialSeg::INITIALIZING, u32::from(!self.ready(now)))
                .set(InitialSeg::NIC_INTERFACE_SUPPORTED, 1)
                .set(InitialSeg::HEALTH_SYNDROME, health.report.syndrome.into())
                .set(InitialSeg::HEALTH_COUNTER, health.counter(now))
                .set(TIMER_HIGH, (now.as_nanos() >> 32) as u32)
                .set(TIMER_LOW, now.as_nanos() as u32);
            let version = u32::from(major) << 24 | u32::from(minor) << 16 | u32::from(subminor);
            health.fill(&mut seg.sub(InitialSeg::HEALTH_BUFFER), now, version);
        }
        for (i, byte) in into.iter_mut().enumerate() {
            *byte = registers.get(at.saturating_add(i)).copied().unwrap_or(0);
        }
    }
}
