//! A machine by hand: each trait that the driver asks for, without `bareverbs-mmio`. The card reaches memory under the CPU's
//! addresses, its accesses are coherent with the caches, and BAR0 is mapped uncached.

use core::num::NonZeroUsize;
use core::ptr::NonNull;

use bareverbs::DmaBuffer;
use bareverbs::platform::{
    AddressMap, Clock, DmaFence, DmaMemory, DmaRing, Doorbell, Extent, Instant, OutOfRange, PageSource, Platform, Registers,
    RingLayout, RingToken, RingView, TooFewPages, WordRegister,
};

/// Some bytes that the card accesses too: registers, or memory.
#[derive(Clone, Copy)]
struct Mapped {
    base: NonNull<u8>,
    len: usize,
}

impl Mapped {
    /// Returns where `count` values of a type lie from `offset` on.
    fn at<T>(self, offset: usize, count: usize) -> Result<NonNull<T>, OutOfRange> {
        let len = count.saturating_mul(size_of::<T>());
        match offset.checked_add(len) {
            Some(end) if end <= self.len && offset.is_multiple_of(align_of::<T>()) => {
                // SAFETY: in the bytes, and aligned, since `base` is aligned to 4096.
                Ok(unsafe { self.base.add(offset) }.cast())
            }
            _ => Err(OutOfRange { offset, len, size: self.len }),
        }
    }
}

/// BAR0.
pub(crate) struct Bar(Mapped);

impl Bar {
    /// # Safety
    /// `base` is BAR0 of a card, `len` bytes of it are mapped uncached for good, and nothing else accesses them.
    pub(crate) const unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self(Mapped { base, len })
    }
}

impl Registers for Bar {
    type Doorbell = Doorbells;
    type Word = Word;

    fn len(&self) -> usize {
        self.0.len
    }

    fn read32(&self, offset: usize) -> Result<u32, OutOfRange> {
        let register = self.0.at::<u32>(offset, 1)?;
        // SAFETY: a register of the BAR.
        Ok(unsafe { register.read_volatile() })
    }

    fn write32(&mut self, offset: usize, value: u32) -> Result<(), OutOfRange> {
        let register = self.0.at::<u32>(offset, 1)?;
        // SAFETY: a register of the BAR.
        unsafe { register.write_volatile(value) };
        Ok(())
    }

    fn doorbell(&self, offset: usize, count: usize) -> Result<Doorbells, OutOfRange> {
        let count = NonZeroUsize::new(count).ok_or(OutOfRange { offset, len: 0, size: self.0.len })?;
        Ok(Doorbells { first: self.0.at(offset, count.get())?, count })
    }

    fn word(&self, offset: usize) -> Result<Word, OutOfRange> {
        self.0.at(offset, 1).map(Word)
    }
}

/// Registers of eight bytes that a queue has.
pub(crate) struct Doorbells {
    first: NonNull<u64>,
    count: NonZeroUsize,
}

impl Doorbell for Doorbells {
    fn write(&self, index: usize, value: u64) {
        // SAFETY: one of them, in one access of eight bytes.
        unsafe { self.first.add(index % self.count).write_volatile(value) };
    }
}

/// A register of four bytes that the interrupt handler has.
pub(crate) struct Word(NonNull<u32>);

impl WordRegister for Word {
    fn write(&self, value: u32) {
        // SAFETY: a register of the BAR.
        unsafe { self.0.write_volatile(value) };
    }
}

/// Memory of the driver's queues, or of a buffer.
pub(crate) struct Memory(Mapped);

impl Memory {
    /// # Safety
    /// `base` is aligned to 4096. `len` bytes from there on stay, the card reaches them under the same addresses, and nothing else
    /// accesses them, not even through a reference.
    pub(crate) const unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self(Mapped { base, len })
    }

    fn addr(&self) -> u64 {
        self.0.base.addr().get() as u64
    }
}

// SAFETY: each access is checked to be inside, volatile, and of the width that it should have. The addresses stay.
unsafe impl DmaMemory for Memory {
    type Ring = Ring;

    fn len(&self) -> usize {
        self.0.len
    }

    fn device_addr(&self) -> u64 {
        self.addr() // On another bus: plus the difference.
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        let from = self.0.at::<u8>(at, into.len())?;
        for (index, byte) in into.iter_mut().enumerate() {
            // SAFETY: one of the bytes that `at` found.
            *byte = unsafe { from.add(index).read_volatile() };
        }
        Ok(())
    }

    fn write(&mut self, at: usize, from: &[u8]) -> Result<(), OutOfRange> {
        let to = self.0.at::<u8>(at, from.len())?;
        for (index, byte) in from.iter().enumerate() {
            // SAFETY: one of the bytes that `at` found.
            unsafe { to.add(index).write_volatile(*byte) };
        }
        Ok(())
    }

    fn read_u8(&self, at: usize) -> Result<u8, OutOfRange> {
        let from = self.0.at::<u8>(at, 1)?;
        // SAFETY: the byte that `at` found.
        Ok(unsafe { from.read_volatile() })
    }

    fn store_u32(&mut self, at: usize, value: u32) -> Result<(), OutOfRange> {
        let to = self.0.at::<u32>(at, 1)?;
        // SAFETY: the word that `at` found.
        unsafe { to.write_volatile(value) };
        Ok(())
    }

    fn load<const N: usize>(&self, at: usize) -> Result<[u64; N], OutOfRange> {
        let from = self.0.at::<u64>(at, N)?;
        // SAFETY: one of the words that `at` found.
        Ok(core::array::from_fn(|index| unsafe { from.add(index).read_volatile() }))
    }

    fn store<const N: usize>(&mut self, at: usize, words: &[u64; N]) -> Result<(), OutOfRange> {
        let to = self.0.at::<u64>(at, N)?;
        for (index, word) in words.iter().enumerate() {
            // SAFETY: one of the words that `at` found.
            unsafe { to.add(index).write_volatile(*word) };
        }
        Ok(())
    }

    fn ring(&self, _: RingToken, layout: &RingLayout) -> Result<Ring, OutOfRange> {
        let words = layout.len() / size_of::<u64>();
        let (first, record) = (self.0.at(layout.ring(), words)?, self.0.at(layout.doorbell_record(), 2)?);
        Ok(Ring { first, mask: words.wrapping_sub(1), record })
    }
}

/// A ring in it, with its doorbell record of two words of four bytes.
#[derive(Clone, Copy)]
pub(crate) struct Ring {
    first: NonNull<u64>,
    /// Bits that the number of a word may have: their count is a power of two.
    mask: usize,
    record: NonNull<u32>,
}

// SAFETY: pointers go with the queue that has them, to whichever core. Without these no queue could stand in a static.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Send for Doorbells {}
// SAFETY: as above.
unsafe impl Send for Word {}

impl Ring {
    fn at(self, word: u32) -> NonNull<u64> {
        // SAFETY: the mask keeps it inside.
        unsafe { self.first.add(word as usize & self.mask) }
    }
}

impl DmaRing for Ring {
    type View<'a> = Self;

    fn view(&self) -> Self {
        *self
    }
}

impl RingView for Ring {
    fn put<const N: usize>(self, block: u32, words: &[u64; N]) {
        for (index, word) in (block.wrapping_mul(8)..).zip(words) {
            self.put_word(index, *word);
        }
    }

    fn put_word(self, word: u32, value: u64) {
        // SAFETY: a word of the ring.
        unsafe { self.at(word).write_volatile(value) };
    }

    fn word(self, word: u32) -> u64 {
        // SAFETY: a word of the ring.
        unsafe { self.at(word).read_volatile() }
    }

    fn record(self, second: bool, value: u32) {
        // SAFETY: the record has two words.
        unsafe { self.record.add(usize::from(second)).write_volatile(value) };
    }
}

/// A buffer that a region owns.
pub(crate) struct Buffer(pub(crate) Memory);

impl AddressMap for Buffer {
    fn extent(&self, addr: u64) -> Option<Extent> {
        let left = self.0.addr().checked_add(DmaBuffer::len(self))?.checked_sub(addr)?;
        (addr >= self.0.addr() && left != 0).then_some(Extent { device_addr: addr, len: left })
    }
}

// SAFETY: as promised to `Memory::new`; there is no IOMMU, so that each card reaches the same bytes under these addresses.
unsafe impl DmaBuffer for Buffer {
    fn addr(&self) -> u64 {
        self.0.addr()
    }

    fn len(&self) -> u64 {
        self.0.0.len as u64
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        DmaMemory::read(&self.0, at, into)
    }

    fn write(&mut self, at: usize, from: &[u8]) -> Result<(), OutOfRange> {
        DmaMemory::write(&mut self.0, at, from)
    }
}

/// Words of [`Pages`]: 2,048 pages for the card's firmware, 8 MiB. A simulated card wants 216, a ConnectX-4 Lx about 1,200.
pub(crate) const PAGE_WORDS: usize = 32;

/// `WORDS` × 64 pages for the card's firmware, one after the other: a bit for each that is allocated.
pub(crate) struct Pages<const WORDS: usize> {
    first: u64,
    allocated: [u64; WORDS],
}

const PAGE: u64 = 4096;

impl<const WORDS: usize> Pages<WORDS> {
    /// # Safety
    /// As for [`Memory::new`], of all pages from `first` on.
    pub(crate) unsafe fn new(first: NonNull<u8>) -> Self {
        Self { first: first.addr().get() as u64, allocated: [0; WORDS] }
    }
}

// SAFETY: a page is allocated once until it is free again. All are of memory that nothing else uses (promised to `new`).
unsafe impl<const WORDS: usize> PageSource for Pages<WORDS> {
    fn reserve(&mut self, pages: u32) -> Result<(), TooFewPages> {
        let available = self.allocated.iter().map(|word| word.count_zeros()).sum();
        if pages <= available { Ok(()) } else { Err(TooFewPages { wanted: pages, available }) }
    }

    fn allocate(&mut self) -> Option<u64> {
        let (index, word) = self.allocated.iter_mut().enumerate().find(|(_, word)| **word != u64::MAX)?;
        let bit = word.trailing_ones();
        *word |= 1 << bit;
        Some(self.first + (index as u64 * 64 + u64::from(bit)) * PAGE)
    }

    fn free(&mut self, device_addr: u64) -> bool {
        let Some(offset) = device_addr.checked_sub(self.first).filter(|offset| offset.is_multiple_of(PAGE)) else {
            return false;
        };
        let (page, bit) = (offset / PAGE, 1 << (offset / PAGE % 64));
        let Some(word) = usize::try_from(page / 64).ok().and_then(|index| self.allocated.get_mut(index)) else { return false };
        let was_allocated = *word & bit != 0;
        *word &= !bit;
        was_allocated
    }

    fn free_all(&mut self) {
        self.allocated = [0; WORDS];
    }
}

/// The strongest barrier of each processor, wherever one is needed.
#[derive(Clone)]
pub(crate) struct Fence;

fn barrier() {
    // SAFETY: it changes no register and no memory.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!("mfence", options(nostack, preserves_flags));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("dsb sy", options(nostack, preserves_flags));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "riscv64")]
    unsafe {
        core::arch::asm!("fence iorw, iorw", options(nostack, preserves_flags));
    }
}

impl DmaFence for Fence {
    fn release(&self) {
        barrier();
    }

    fn acquire(&self) {
        barrier();
    }

    fn flush(&self) {
        barrier();
    }
}

/// The board's timer. It never goes back.
pub(crate) struct Timer;

impl Clock for Timer {
    fn now(&self) -> Instant {
        board::Timer.now() // On another board: the CPU's counter, in nanoseconds.
    }
}

/// What the driver is brought up on.
pub(crate) struct ByHand;

// SAFETY: the registers of one BAR, memory that the card reaches as it says, and the processor's barriers.
unsafe impl Platform for ByHand {
    type Registers = Bar;
    type Memory = Memory;
    type Pages = Pages<PAGE_WORDS>;
    type Fence = Fence;
    type Clock = Timer;
}
