//! A record of what a driver does to registers, memory and fences, in order.

use std::marker::PhantomData;
use std::sync::Arc;

use bareverbs::platform::{
    DmaFence, DmaMemory, DmaRing, Doorbell, OutOfRange, Platform, Registers, RingLayout, RingToken, RingView, WordRegister,
};
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
    /// [`DmaFence::publish`].
    Publish,
    /// [`DmaFence::acquire`].
    Acquire,
    /// [`DmaFence::read_before_write`].
    ReadBeforeWrite,
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

    /// Returns what was recorded since the last call.
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
    type Doorbell = RecordedRegister<T::Doorbell>;
    type Word = RecordedRegister<T::Word>;

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

    fn doorbell(&self, offset: usize, count: usize) -> Result<Self::Doorbell, OutOfRange> {
        Ok(RecordedRegister { inner: self.inner.doorbell(offset, count)?, log: self.log.clone(), offset, count })
    }

    fn word(&self, offset: usize) -> Result<Self::Word, OutOfRange> {
        Ok(RecordedRegister { inner: self.inner.word(offset)?, log: self.log.clone(), offset, count: 1 })
    }
}

/// A register that one queue writes, with what is written recorded.
#[derive(Clone, Debug)]
pub struct RecordedRegister<T> {
    inner: T,
    log: OrderLog,
    offset: usize,
    count: usize,
}

impl<T: Doorbell> Doorbell for RecordedRegister<T> {
    fn write(&self, index: usize, value: u64) {
        let at = self.offset.wrapping_add(index.checked_rem(self.count).unwrap_or(0).wrapping_mul(8));
        self.log.push(Access::Register64 { at, value });
        self.inner.write(index, value);
    }
}

impl<T: WordRegister> WordRegister for RecordedRegister<T> {
    fn write(&self, value: u32) {
        self.log.push(Access::Register32 { at: self.offset, value });
        self.inner.write(value);
    }
}

/// A ring whose use is recorded: offsets are those of the memory.
#[derive(Clone, Debug)]
pub struct RecordedRing<T> {
    inner: T,
    log: OrderLog,
    layout: RingLayout,
}

impl<T> RecordedRing<T> {
    fn at(&self, word: u32) -> usize {
        self.layout.ring().wrapping_add((word as usize).wrapping_mul(8) & self.layout.len().wrapping_sub(1))
    }
}

impl<T: DmaRing> DmaRing for RecordedRing<T> {
    type View<'a>
        = &'a Self
    where
        Self: 'a;

    fn view(&self) -> &Self {
        self
    }
}

impl<T: DmaRing> RingView for &RecordedRing<T> {
    fn put<const N: usize>(self, block: u32, words: &[u64; N]) {
        self.log.push(Access::Write { at: self.at(block.wrapping_mul(8)), len: N * 8 });
        self.inner.view().put(block, words);
    }

    fn put_word(self, word: u32, value: u64) {
        self.log.push(Access::Write { at: self.at(word), len: 8 });
        self.inner.view().put_word(word, value);
    }

    fn word(self, word: u32) -> u64 {
        self.log.push(Access::Read { at: self.at(word), len: 8 });
        self.inner.view().word(word)
    }

    fn record(self, second: bool, value: u32) {
        let at = self.layout.doorbell_record().wrapping_add(if second { 4 } else { 0 });
        self.log.push(Access::Store32 { at, value });
        self.inner.view().record(second, value);
    }
}

// SAFETY: every access is one of the memory inside.
#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl<T: DmaMemory> DmaMemory for Recorded<T> {
    type Ring = RecordedRing<T::Ring>;

    fn ring(&self, token: RingToken, layout: &RingLayout) -> Result<Self::Ring, OutOfRange> {
        Ok(RecordedRing { inner: self.inner.ring(token, layout)?, log: self.log.clone(), layout: *layout })
    }

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

    fn publish(&self) {
        self.log.push(Access::Publish);
        self.inner.publish();
    }

    fn read_before_write(&self) {
        self.log.push(Access::ReadBeforeWrite);
        self.inner.read_before_write();
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

// SAFETY: those of `P`, recorded.
#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl<P: Platform> Platform for RecordedPlatform<P> {
    type Registers = Recorded<P::Registers>;
    type Memory = Recorded<P::Memory>;
    type Pages = P::Pages;
    type Fence = Recorded<P::Fence>;
    type Clock = P::Clock;
}
