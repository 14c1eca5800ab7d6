//! A record of what a driver does to registers, memory and fences, in order.

use std::marker::PhantomData;
use std::sync::Arc;

use bareverbs::{DmaFence, DmaMemory, OutOfRange, Platform, Registers};
use parking_lot::Mutex;

/// One access. Values are as the CPU stores them; `at` is a byte offset in the memory or the registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Memory was written, as bytes or as words.
    Write {
        /// Where.
        at: usize,
        /// How many bytes.
        len: usize,
    },
    /// A four-byte word was stored: a doorbell record.
    Store32 {
        /// Where.
        at: usize,
        /// The word.
        value: u32,
    },
    /// Memory was read, as bytes or as words.
    Read {
        /// Where.
        at: usize,
        /// How many bytes.
        len: usize,
    },
    /// One byte was read: an owner byte.
    Read8 {
        /// Where.
        at: usize,
        /// The byte.
        value: u8,
    },
    /// A register was read.
    Register32Read {
        /// Where.
        at: usize,
    },
    /// A register was written.
    Register32 {
        /// Where.
        at: usize,
        /// The value.
        value: u32,
    },
    /// A register was written with eight bytes.
    Register64 {
        /// Where.
        at: usize,
        /// The value.
        value: u64,
    },
    /// [`DmaFence::release`].
    Release,
    /// [`DmaFence::acquire`].
    Acquire,
    /// [`DmaFence::flush`].
    Flush,
}

/// The record; clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct OrderLog {
    accesses: Arc<Mutex<Vec<Access>>>,
}

impl OrderLog {
    fn push(&self, access: Access) {
        self.accesses.lock().push(access);
    }

    /// What was recorded since the last call.
    pub fn take(&self) -> Vec<Access> {
        std::mem::take(&mut *self.accesses.lock())
    }

    /// `inner` (registers, memory or a fence), with what is done to it recorded here.
    pub fn record<T>(&self, inner: T) -> Recorded<T> {
        Recorded { inner, log: self.clone() }
    }
}

/// Registers, memory or a fence whose use is recorded.
#[derive(Clone, Debug)]
pub struct Recorded<T> {
    inner: T,
    log: OrderLog,
}

impl<T: Registers> Registers for Recorded<T> {
    fn len(&self) -> usize {
        self.inner.len()
    }

    fn read32(&self, offset: usize) -> Result<u32, OutOfRange> {
        self.log.push(Access::Register32Read { at: offset });
        self.inner.read32(offset)
    }

    fn write32(&mut self, offset: usize, value: u32) -> Result<(), OutOfRange> {
        self.log.push(Access::Register32 { at: offset, value });
        self.inner.write32(offset, value)
    }

    fn write64(&mut self, offset: usize, value: u64) -> Result<(), OutOfRange> {
        self.log.push(Access::Register64 { at: offset, value });
        self.inner.write64(offset, value)
    }
}

impl<T: DmaMemory> DmaMemory for Recorded<T> {
    fn len(&self) -> usize {
        self.inner.len()
    }

    fn device_addr(&self) -> u64 {
        self.inner.device_addr()
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.log.push(Access::Read { at, len: into.len() });
        self.inner.read(at, into)
    }

    fn write(&mut self, at: usize, from: &[u8]) -> Result<(), OutOfRange> {
        self.log.push(Access::Write { at, len: from.len() });
        self.inner.write(at, from)
    }

    fn read_u8(&self, at: usize) -> Result<u8, OutOfRange> {
        let value = self.inner.read_u8(at)?;
        self.log.push(Access::Read8 { at, value });
        Ok(value)
    }

    fn store_u32(&mut self, at: usize, value: u32) -> Result<(), OutOfRange> {
        self.log.push(Access::Store32 { at, value });
        self.inner.store_u32(at, value)
    }

    fn load<const N: usize>(&self, at: usize) -> Result<[u64; N], OutOfRange> {
        self.log.push(Access::Read { at, len: N * 8 });
        self.inner.load(at)
    }

    fn store<const N: usize>(&mut self, at: usize, words: &[u64; N]) -> Result<(), OutOfRange> {
        self.log.push(Access::Write { at, len: N * 8 });
        self.inner.store(at, words)
    }
}

impl<T: DmaFence> DmaFence for Recorded<T> {
    fn release(&self) {
        self.log.push(Access::Release);
        self.inner.release();
    }

    fn acquire(&self) {
        self.log.push(Access::Acquire);
        self.inner.acquire();
    }

    fn flush(&self) {
        self.log.push(Access::Flush);
        self.inner.flush();
    }
}

/// Platform `P` with registers, memory and fence recorded.
#[derive(Clone, Copy, Debug)]
pub struct RecordedPlatform<P> {
    platform: PhantomData<fn() -> P>,
}

impl<P: Platform> Platform for RecordedPlatform<P> {
    type Registers = Recorded<P::Registers>;
    type Memory = Recorded<P::Memory>;
    type Fence = Recorded<P::Fence>;
    type Clock = P::Clock;
}
