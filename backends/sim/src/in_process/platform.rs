//! The platform traits of a host in a simulated world.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use bareverbs::platform::{Clock, DmaFence, Doorbell, Instant, OutOfRange, Platform, Registers, WordRegister};

use super::memory::SimMemory;
use super::pages::SimPages;
use super::state::WorldState;
use crate::device::Device;

/// BAR0 of the host's device.
#[derive(Clone, Debug)]
pub struct SimRegisters {
    world: Arc<WorldState>,
    device: usize,
}

impl SimRegisters {
    pub(super) fn new(world: Arc<WorldState>, device: usize) -> Self {
        Self { world, device }
    }

    fn check(&self, offset: usize, len: usize) -> Result<(), OutOfRange> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len());
        if inside && offset.is_multiple_of(len) { Ok(()) } else { Err(OutOfRange { offset, len, size: self.len() }) }
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfRange> {
        self.check(offset, bytes.len())?;
        let written = self.world.try_with(|subnet| subnet.write(self.device, offset as u64, bytes));
        written.ok_or(OutOfRange { offset, len: bytes.len(), size: self.len() })
    }
}

impl Registers for SimRegisters {
    type Doorbell = SimRegister;
    type Word = SimRegister;

    #[inline]
    fn len(&self) -> usize {
        Device::bar_len() as usize
    }

    fn read32(&self, offset: usize) -> Result<u32, OutOfRange> {
        self.check(offset, 4)?;
        let mut bytes = [0xff; 4];
        let read = self.world.try_with(|subnet| subnet.read(self.device, offset as u64, &mut bytes));
        read.map(|()| u32::from_ne_bytes(bytes)).ok_or(OutOfRange { offset, len: 4, size: self.len() })
    }

    #[inline]
    fn write32(&mut self, offset: usize, value: u32) -> Result<(), OutOfRange> {
        self.write(offset, &value.to_ne_bytes())
    }

    fn doorbell(&self, offset: usize, count: usize) -> Result<SimRegister, OutOfRange> {
        let out = OutOfRange { offset, len: count.saturating_mul(8), size: self.len() };
        let end = count.checked_mul(8).and_then(|len| offset.checked_add(len)).ok_or(out)?;
        if count == 0 || !offset.is_multiple_of(8) || end > self.len() {
            return Err(out);
        }
        Ok(SimRegister { registers: self.clone(), offset, count })
    }

    fn word(&self, offset: usize) -> Result<SimRegister, OutOfRange> {
        self.check(offset, 4)?;
        Ok(SimRegister { registers: self.clone(), offset, count: 1 })
    }
}

/// A register that one queue writes. What is written while the calling thread has the world locked is lost.
#[derive(Clone, Debug)]
pub struct SimRegister {
    registers: SimRegisters,
    offset: usize,
    count: usize,
}

impl Doorbell for SimRegister {
    fn write(&self, index: usize, value: u64) {
        let at = self.offset.wrapping_add(index.checked_rem(self.count).unwrap_or(0).wrapping_mul(8));
        let _ = self.registers.write(at, &value.to_ne_bytes());
    }
}

impl WordRegister for SimRegister {
    fn write(&self, value: u32) {
        let _ = self.registers.write(self.offset, &value.to_ne_bytes());
    }
}

/// Ordering between a thread of the driver and whichever thread lets the device work: the fences of the CPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimFence;

impl DmaFence for SimFence {
    #[inline]
    fn release(&self) {
        fence(Ordering::Release);
    }

    #[inline]
    fn acquire(&self) {
        fence(Ordering::Acquire);
    }

    #[inline]
    fn flush(&self) {
        fence(Ordering::SeqCst);
    }
}

/// The world's time.
#[derive(Clone, Debug)]
pub struct SimClock {
    world: Arc<WorldState>,
}

impl SimClock {
    pub(super) fn new(world: Arc<WorldState>) -> Self {
        Self { world }
    }
}

impl Clock for SimClock {
    #[inline]
    fn now(&self) -> Instant {
        self.world.read_clock()
    }

    fn relax(&self, _deadline: Instant) {
        self.world.relax();
    }
}

/// A host in a simulated world.
#[derive(Clone, Copy, Debug)]
pub struct SimPlatform;

// SAFETY: a simulated device reaches simulated memory alone, whatever it is told.
#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl Platform for SimPlatform {
    type Registers = SimRegisters;
    type Memory = SimMemory;
    type Pages = SimPages;
    type Fence = SimFence;
    type Clock = SimClock;
}
