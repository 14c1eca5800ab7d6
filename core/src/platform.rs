//! What a machine must offer: registers, memory that the device sees, ordering, time.
//!
//! All four are implemented by the integrator (or by a simulated device) and composed in a [`Platform`].

use core::time::Duration;

/// An access outside the registers or the memory, or not aligned to its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct OutOfRange {
    /// Byte offset of the access.
    pub offset: usize,
    /// Its length in bytes.
    pub len: usize,
}

impl core::fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "no access of {} bytes at offset {:#x}", self.len, self.offset)
    }
}

impl core::error::Error for OutOfRange {}

/// Device registers (a BAR). Offsets are bytes; a value is stored as the CPU stores it, so a driver of a big-endian
/// device turns it round first (`to_be`). Each call is one access of its width. Never assumed to be plain memory.
pub trait Registers {
    /// Size in bytes.
    fn len(&self) -> usize;
    /// Whether there are no registers at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Reads four bytes.
    fn read32(&self, offset: usize) -> Result<u32, OutOfRange>;
    /// Writes four bytes.
    fn write32(&mut self, offset: usize, value: u32) -> Result<(), OutOfRange>;
    /// Writes eight bytes, in one access where the machine has one.
    fn write64(&mut self, offset: usize, value: u64) -> Result<(), OutOfRange>;
}

/// Bytes that CPU and device both see, contiguous for the device. Bytes move by copy; no reference to them exists.
///
/// An implementation promises that a copy reads or writes each byte (each aligned word, for `load` and `store`) once,
/// and that a device address stays the same as long as the value lives. It orders nothing: that is [`DmaFence`]'s work.
pub trait DmaMemory {
    /// Size in bytes.
    fn len(&self) -> usize;
    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Address of byte 0 as the device sees it; a multiple of 4096.
    fn device_addr(&self) -> u64;
    /// Copies bytes out.
    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange>;
    /// Copies bytes in.
    fn write(&mut self, at: usize, from: &[u8]) -> Result<(), OutOfRange>;
    /// Reads one byte in one access: an owner byte.
    fn read_u8(&self, at: usize) -> Result<u8, OutOfRange>;
    /// Writes an aligned four-byte word in one access: a doorbell record. The value is stored as the CPU stores it.
    fn store_u32(&mut self, at: usize, value: u32) -> Result<(), OutOfRange>;
    /// Reads `N` eight-byte words from `at`, a multiple of 8, as the CPU loads them.
    fn load<const N: usize>(&self, at: usize) -> Result<[u64; N], OutOfRange>;
    /// Writes `N` eight-byte words from `at`, a multiple of 8, as the CPU stores them.
    fn store<const N: usize>(&mut self, at: usize, words: &[u64; N]) -> Result<(), OutOfRange>;
}

/// Ordering between this CPU and the device.
pub trait DmaFence {
    /// Everything written to [`DmaMemory`] before is seen by the device before any register or memory write after.
    fn release(&self);
    /// Nothing is read from [`DmaMemory`] after before what was read before it.
    fn acquire(&self);
    /// Everything written to registers before leaves the CPU's write-combining buffers now.
    fn flush(&self);
}

/// A moment of the integrator's clock, in nanoseconds since a start of its choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Instant {
    nanos: u64,
}

impl Instant {
    /// The moment `nanos` nanoseconds after the start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self { nanos }
    }

    /// Nanoseconds since the start.
    pub const fn as_nanos(self) -> u64 {
        self.nanos
    }

    /// The moment `duration` later; the end of time if that is later still.
    pub fn after(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self { nanos: self.nanos.saturating_add(nanos) }
    }

    /// Time since `earlier`, zero if that is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos.saturating_sub(earlier.nanos))
    }
}

/// Time. Every wait of a driver asks it and has a deadline.
pub trait Clock {
    /// The present moment; never goes back.
    fn now(&self) -> Instant;
    /// Called between two looks at the device inside a wait: may spin, sleep, or let a simulated device work.
    fn relax(&self) {
        core::hint::spin_loop();
    }
}

/// The four seams of one machine, composed.
pub trait Platform {
    /// Device registers.
    type Registers: Registers;
    /// Memory for queues, commands and firmware.
    type Memory: DmaMemory;
    /// Ordering.
    type Fence: DmaFence;
    /// Time.
    type Clock: Clock;
}
