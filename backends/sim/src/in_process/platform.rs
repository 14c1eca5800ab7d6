//! The four seams of a host in a simulated world.

use core::sync::atomic::{Ordering, compiler_fence};
use std::rc::Rc;

use bareverbs::{Clock, DmaFence, Instant, OutOfRange, Platform, Registers};

use super::memory::SimMemory;
use super::world::Shared;
use crate::device::Device;

/// BAR0 of the host's device.
#[derive(Clone, Debug)]
pub struct SimRegisters {
    world: Rc<Shared>,
    device: usize,
}

impl SimRegisters {
    pub(super) fn new(world: Rc<Shared>, device: usize) -> Self {
        Self { world, device }
    }

    fn check(&self, offset: usize, len: usize) -> Result<(), OutOfRange> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len());
        if inside && offset.is_multiple_of(len) { Ok(()) } else { Err(OutOfRange { offset, len }) }
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfRange> {
        self.check(offset, bytes.len())?;
        let mut world = self.world.state.try_borrow_mut().map_err(|_| OutOfRange { offset, len: bytes.len() })?;
        world.write(self.device, offset as u64, bytes);
        Ok(())
    }
}

impl Registers for SimRegisters {
    #[inline]
    fn len(&self) -> usize {
        Device::bar_len() as usize
    }

    fn read32(&self, offset: usize) -> Result<u32, OutOfRange> {
        self.check(offset, 4)?;
        let world = self.world.state.try_borrow().map_err(|_| OutOfRange { offset, len: 4 })?;
        let mut bytes = [0xff; 4];
        world.read(self.device, offset as u64, &mut bytes);
        Ok(u32::from_ne_bytes(bytes))
    }

    #[inline]
    fn write32(&mut self, offset: usize, value: u32) -> Result<(), OutOfRange> {
        self.write(offset, &value.to_ne_bytes())
    }

    #[inline]
    fn write64(&mut self, offset: usize, value: u64) -> Result<(), OutOfRange> {
        self.write(offset, &value.to_ne_bytes())
    }
}

/// Ordering: driver and device run in one thread, so the compiler alone is held back.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimFence;

impl DmaFence for SimFence {
    #[inline]
    fn release(&self) {
        compiler_fence(Ordering::Release);
    }

    #[inline]
    fn acquire(&self) {
        compiler_fence(Ordering::Acquire);
    }

    #[inline]
    fn flush(&self) {
        compiler_fence(Ordering::SeqCst);
    }
}

/// The world's time.
#[derive(Clone, Debug)]
pub struct SimClock {
    world: Rc<Shared>,
}

impl SimClock {
    pub(super) fn new(world: Rc<Shared>) -> Self {
        Self { world }
    }
}

impl Clock for SimClock {
    #[inline]
    fn now(&self) -> Instant {
        self.world.look()
    }

    fn relax(&self) {
        self.world.relax();
    }
}

/// A host in a simulated world.
#[derive(Clone, Copy, Debug)]
pub struct SimPlatform;

impl Platform for SimPlatform {
    type Registers = SimRegisters;
    type Memory = SimMemory;
    type Fence = SimFence;
    type Clock = SimClock;
}
