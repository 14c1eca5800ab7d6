//! The initialization segment: version, command queue, state of the interface, health, timer.

use bareverbs::platform::Instant;
use bareverbs_mlx5_spec::{HealthBuffer, InitialSeg, Layout, ViewMut};

use crate::config::DeviceConfig;
use crate::registers::health::Health;

/// Revision of the command interface that drivers require.
const COMMAND_INTERFACE: u32 = 5;
/// Binary logarithms of the number of slots of the command queue and of the bytes of a slot.
pub(crate) const LOG_SLOTS: u32 = 5;
pub(crate) const LOG_STRIDE: u32 = 6;
/// Frequency of the free-running timer, by which completions are stamped too: it counts nanoseconds.
pub(crate) const TIMER_KHZ: u32 = 1_000_000;
/// Bytes of the registers that a crash dump shows: all up to the health buffer.
pub(crate) const SCAN_SIZE: u32 = (InitialSeg::HEALTH_BUFFER.offset() + HealthBuffer::SIZE) as u32;

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

    /// Returns whether the firmware has started.
    pub(crate) fn ready(&self, now: Instant) -> bool {
        now >= self.ready
    }

    /// Returns the device address of the command queue, once the driver has written it.
    pub(crate) fn command_queue(&self) -> Option<u64> {
        let usable = self.written && self.nic_interface() == NicInterface::Full;
        usable.then_some(u64::from(self.queue_high) << 32 | u64::from(self.queue_low))
    }

    pub(crate) fn nic_interface(&self) -> NicInterface {
        match self.interface {
            InitialSeg::NIC_FULL_DRIVER => NicInterface::Full,
            InitialSeg::NIC_SOFTWARE_RESET => NicInterface::Reset,
            _ => NicInterface::Disabled,
        }
    }

    /// The interface is off until the driver writes the command queue's address again.
    pub(crate) fn disable(&mut self) {
        self.interface = InitialSeg::NIC_DISABLED;
        self.written = false;
    }

    /// Takes a register write. The command doorbell's bits, if it was that.
    pub(crate) fn write(&mut self, at: usize, value: u32) -> Option<u32> {
        if at == InitialSeg::CMDQ_PHY_ADDR_63_32.dword() {
            self.queue_high = value;
        } else if at == InitialSeg::CMDQ_PHY_ADDR_31_12.dword() {
            // The low byte is the queue's geometry and cannot be written.
            self.queue_low = value & 0xffff_f000;
            self.interface = InitialSeg::nic_interface(value);
            self.written = true;
        } else if at == InitialSeg::COMMAND_DOORBELL_VECTOR.dword() {
            return Some(value);
        }
        None
    }

    /// Reads bytes from `at` on.
    pub(crate) fn read(&self, health: &Health, now: Instant, at: usize, into: &mut [u8]) {
        let mut last = None;
        for (i, byte) in into.iter_mut().enumerate() {
            let at = at.saturating_add(i);
            let dword = match last {
                Some((known, value)) if known == at & !3 => value,
                _ => self.register(health, now, at & !3),
            };
            last = Some((at & !3, dword));
            *byte = (dword >> (24 - 8 * (at & 3))) as u8;
        }
    }

    /// Returns the register at byte `at`; zero where none is.
    fn register(&self, health: &Health, now: Instant, at: usize) -> u32 {
        let [major, minor, subminor] = self.firmware.map(u32::from);
        let buffer = InitialSeg::HEALTH_BUFFER.offset();
        if (buffer..buffer + HealthBuffer::SIZE).contains(&at) {
            let mut bytes = [0; HealthBuffer::SIZE];
            if let Some(mut view) = ViewMut::new(&mut bytes) {
                health.fill(&mut view, now, major << 24 | minor << 16 | subminor);
            }
            return bytes.get(at - buffer..).and_then(|rest| rest.first_chunk()).map_or(0, |dword| u32::from_be_bytes(*dword));
        }
        let fields = [
            (InitialSeg::FW_REV_MAJOR, major),
            (InitialSeg::FW_REV_MINOR, minor),
            (InitialSeg::FW_REV_SUBMINOR, subminor),
            (InitialSeg::CMD_INTERFACE_REV, COMMAND_INTERFACE),
            (InitialSeg::CMDQ_PHY_ADDR_63_32, self.queue_high),
            (InitialSeg::CMDQ_PHY_ADDR_31_12, self.queue_low >> 12),
            (InitialSeg::NIC_INTERFACE, self.interface),
            (InitialSeg::NIC_INTERFACE_2, self.interface >> 2),
            (InitialSeg::LOG_CMDQ_SIZE, LOG_SLOTS),
            (InitialSeg::LOG_CMDQ_STRIDE, LOG_STRIDE),
            (InitialSeg::INITIALIZING, u32::from(!self.ready(now))),
            (InitialSeg::RESET_SUPPORTED, 1),
            (InitialSeg::HEALTH_SYNDROME, health.report.syndrome.into()),
            (InitialSeg::HEALTH_COUNTER, health.counter(now)),
            (InitialSeg::INTERNAL_TIMER_H, (now.as_nanos() >> 32) as u32),
            (InitialSeg::INTERNAL_TIMER_L, now.as_nanos() as u32),
        ];
        fields.into_iter().filter(|(field, _)| field.dword() == at).fold(0, |dword, (field, value)| dword | field.place(value))
    }
}
