//! What a machine must offer: registers, memory that the device sees, pages for its firmware, ordering, time.
//!
//! All five are implemented by the integrator (or by a simulated device) and composed in a [`Platform`].

use core::time::Duration;

use crate::log::format_as;

/// An access outside the registers or the memory, or not aligned to its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct OutOfRange {
    /// Byte offset of the access.
    pub offset: usize,
    /// Length of the access in bytes.
    pub len: usize,
    /// Bytes of the registers or the memory.
    pub size: usize,
}

impl core::fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { offset, len, size } = *self;
        let s = if len == 1 { "" } else { "s" };
        write!(f, "no access of {len} byte{s} at offset {offset}: ")?;
        if offset.checked_add(len).is_some_and(|end| end <= size) {
            f.write_str("it is not aligned")
        } else {
            write!(f, "there are {size} bytes")
        }
    }
}

impl core::error::Error for OutOfRange {}

/// Device registers (a BAR). Offsets are bytes; a value is stored as the CPU stores it, so a driver of a big-endian
/// device turns it round first (`to_be`). Each call is one access of its width. Never assumed to be plain memory.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the registers of a device",
    note = "a BAR is `bareverbs_vfio::Bar` on Linux, `bareverbs_mmio::MappedBar` where it is mapped, and \
            `bareverbs_sim::in_process::SimRegisters` in tests"
)]
pub trait Registers {
    /// A register of eight bytes that a queue writes without the owner of the BAR. A queue is [`Send`] if this, the
    /// [`Ring`](DmaMemory::Ring) and the [`Fence`](Platform::Fence) are; tables in a `static` need that too.
    type Doorbell: Doorbell + 'static;
    /// A register of four bytes that an interrupt handler writes without the owner of the BAR: [`Send`], as
    /// [`Self::Doorbell`].
    type Word: WordRegister + 'static;

    /// Returns the size in bytes.
    fn len(&self) -> usize;
    /// Returns whether there are no registers at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Reads four bytes.
    ///
    /// # Errors
    /// [`OutOfRange`]: there is no register of that size at `offset`.
    fn read32(&self, offset: usize) -> Result<u32, OutOfRange>;
    /// Writes four bytes.
    ///
    /// # Errors
    /// [`OutOfRange`]: there is no register of that size at `offset`.
    fn write32(&mut self, offset: usize, value: u32) -> Result<(), OutOfRange>;
    /// Returns the `count` registers of eight bytes from `offset` on, to be written independently of the rest, also by another
    /// core.
    ///
    /// # Errors
    /// They are not all registers of eight bytes.
    fn doorbell(&self, offset: usize, count: usize) -> Result<Self::Doorbell, OutOfRange>;
    /// Returns the register of four bytes at `offset`, to be written independently of the rest, also by another core.
    ///
    /// # Errors
    /// [`OutOfRange`]: there is no register of that size at `offset`.
    fn word(&self, offset: usize) -> Result<Self::Word, OutOfRange>;
}

/// Registers of eight bytes, found to exist when [`Registers::doorbell`] made it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a register of eight bytes",
    note = "`Registers::doorbell` makes it, of `Registers::Doorbell`"
)]
pub trait Doorbell {
    /// Writes register `index` as the CPU stores the value, in one access where the machine has one. The index is counted
    /// round the registers that there are.
    fn write(&self, index: usize, value: u64);
}

/// A register of four bytes, found to exist when [`Registers::word`] made it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a register of four bytes",
    note = "`Registers::word` makes it, of `Registers::Word`"
)]
pub trait WordRegister {
    /// Writes it as the CPU stores the value.
    fn write(&self, value: u32);
}

/// A type by which a backend proves that it is one: see [`RingToken::of`].
///
/// # Safety
/// A ring points into memory that its [`DmaMemory`] and other rings access too. So:
/// - Nothing but the backend of a device has a value of the type.
/// - While a ring that the backend opens is used, no other code accesses the same bytes, through the memory or another ring. The
///   backend changes from one to the other within one thread, or after one thread is known to be done.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the backend of a device, and only that opens rings",
    note = "programs call `Verbs`, which have their rings opened"
)]
#[expect(unsafe_code, reason = "rings over the same bytes would race")]
pub unsafe trait OpensRings {}

/// Proof that a ring is opened by a backend, which knows what else accesses its bytes. No other code can make one:
///
/// ```compile_fail,E0423
/// # use bareverbs::platform::{DmaMemory, RingLayout, RingToken};
/// /// Two rings over the same bytes, to be written by two threads.
/// fn twice<M: DmaMemory>(memory: &M, layout: &RingLayout) -> Option<[M::Ring; 2]> {
///     Some([memory.ring(RingToken(()), layout).ok()?, memory.ring(RingToken(()), layout).ok()?])
/// }
/// ```
///
/// ```compile_fail,E0277
/// # use bareverbs::platform::{DmaMemory, Machine, Platform, RingLayout, RingToken};
/// struct Anybody;
///
/// /// A ring over the memory that a driver is given later.
/// fn keep<P: Platform>(machine: &Machine<P>, layout: &RingLayout) -> Option<<P::Memory as DmaMemory>::Ring> {
///     machine.memory.ring(RingToken::of(&Anybody), layout).ok()
/// }
/// ```
///
/// Nor does one serve twice:
///
/// ```compile_fail,E0382
/// # use bareverbs::platform::{DmaMemory, RingLayout, RingToken};
/// fn twice<M: DmaMemory>(memory: &M, token: RingToken, layout: &RingLayout) -> Option<[M::Ring; 2]> {
///     Some([memory.ring(token, layout).ok()?, memory.ring(token, layout).ok()?])
/// }
/// ```
#[derive(Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RingToken(());

impl RingToken {
    /// Returns the proof of a backend.
    pub const fn of<B: OpensRings>(_: &B) -> Self {
        Self(())
    }
}

/// Bytes that CPU and device both see, contiguous for the device. Bytes move by copy; no reference to them exists.
///
/// It orders nothing: that is [`DmaFence`]'s work.
///
/// # Safety
/// Device and driver put addresses at which the device writes into these bytes. So:
/// - A copy touches the bytes that it names and no others; each byte (each aligned word, where words are moved) once.
/// - The device sees the bytes at [`Self::device_addr`], which stays the same as long as the value lives.
/// - The bytes belong to the value and to the rings made of it ([`Self::ring`]) alone.
/// - They stay allocated as long as the value or a ring of it lives. Once all of them are gone, the device cannot reach the
///   bytes any more (an IOMMU sees to that), or they are never used for anything else.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not memory that CPU and device share",
    note = "slices and `Vec` are not: references to their bytes may exist while the device writes",
    note = "the memory of a driver is `bareverbs_vfio::DmaAllocation` on Linux, `bareverbs_mmio::MappedMemory` where it is \
            mapped, and `bareverbs_sim::in_process::SimMemory` in tests",
    note = "memory to be registered is a `DmaBuffer`"
)]
#[expect(unsafe_code, reason = "a wrong implementation would let the device write anywhere")]
pub unsafe trait DmaMemory {
    /// Part of the memory that one queue works in.
    ///
    /// A ring of pointers needs `unsafe impl Send`: queues that are to move to another core, and tables in a `static`
    /// (`ConstStaticCell<Storage<…>>`), do not compile without it. It may have it because one queue uses a ring at a time.
    type Ring: DmaRing + 'static;

    /// Returns the size in bytes.
    fn len(&self) -> usize;
    /// Returns whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Address of byte 0 as the device sees it; a multiple of 4096.
    fn device_addr(&self) -> u64;
    /// Copies bytes out.
    ///
    /// # Errors
    /// The bytes are not all in the memory.
    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange>;
    /// Copies bytes in.
    ///
    /// # Errors
    /// The bytes are not all in the memory.
    fn write(&mut self, at: usize, from: &[u8]) -> Result<(), OutOfRange>;
    /// Reads one byte in one access: an owner byte.
    ///
    /// # Errors
    /// The byte is not in the memory.
    fn read_u8(&self, at: usize) -> Result<u8, OutOfRange>;
    /// Writes an aligned four-byte word in one access. The value is stored as the CPU stores it.
    ///
    /// # Errors
    /// The word is not in the memory, or not aligned.
    fn store_u32(&mut self, at: usize, value: u32) -> Result<(), OutOfRange>;
    /// Reads `N` eight-byte words from `at`, a multiple of 8, as the CPU loads them.
    ///
    /// # Errors
    /// The words are not all in the memory, or not aligned.
    fn load<const N: usize>(&self, at: usize) -> Result<[u64; N], OutOfRange>;
    /// Writes `N` eight-byte words from `at`, a multiple of 8, as the CPU stores them.
    ///
    /// # Errors
    /// The words are not all in the memory, or not aligned.
    fn store<const N: usize>(&mut self, at: usize, words: &[u64; N]) -> Result<(), OutOfRange>;
    /// Returns a ring and its doorbell record. They are checked to lie inside here, and later accesses are not, also on another
    /// core. Only a backend can ask for one.
    ///
    /// # Errors
    /// The layout is not inside the memory.
    fn ring(&self, _: RingToken, layout: &RingLayout) -> Result<Self::Ring, OutOfRange>;
}

/// A ring and its doorbell record of eight bytes, as byte offsets in a [`DmaMemory`]. The ring's length is a power of two of at
/// least 64 bytes, its start is a multiple of 64, and the record's start is a multiple of 8. Both end at [`Self::end`] or
/// below, so that one comparison shows whether a memory contains them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RingLayout {
    ring: usize,
    len: usize,
    record: usize,
    end: usize,
}

impl RingLayout {
    /// Returns the layout of a ring of `len` bytes at `ring` with its record at `record`. `None`: they break a rule of the
    /// type.
    pub const fn new(ring: usize, len: usize, record: usize) -> Option<Self> {
        if !ring.is_multiple_of(64) || !record.is_multiple_of(8) || len < 64 || !len.is_power_of_two() {
            return None;
        }
        let (Some(end), Some(after)) = (ring.checked_add(len), record.checked_add(8)) else { return None };
        Some(Self { ring, len, record, end: if end > after { end } else { after } })
    }

    /// Returns the byte offset of the ring.
    pub const fn ring(&self) -> usize {
        self.ring
    }

    /// Returns the bytes of the ring, a power of two.
    #[expect(clippy::len_without_is_empty, reason = "a ring is never empty")]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns the byte offset of the record.
    pub const fn doorbell_record(&self) -> usize {
        self.record
    }

    /// Returns the offset below which ring and record lie.
    pub const fn end(&self) -> usize {
        self.end
    }
}

/// A ring of eight-byte words and its doorbell record, in the hands of the one queue that uses it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a ring in memory that CPU and device share",
    note = "`DmaMemory::ring` makes it, of `DmaMemory::Ring`"
)]
pub trait DmaRing {
    /// The ring while it is used, with frequently used state in registers.
    type View<'a>: RingView + Copy
    where
        Self: 'a;
    /// Returns the ring for use.
    fn view(&self) -> Self::View<'_>;
}

/// What [`DmaRing::view`] gives. Words are counted round the ring: there is none outside. Values are as the CPU stores and
/// loads them. Each access is one of its width.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a view of a ring",
    note = "`DmaRing::view` makes it, of `DmaRing::View`"
)]
pub trait RingView {
    /// Writes the first `N` words, 8 at most, of 64-byte block `block`, counted round the ring.
    fn put<const N: usize>(self, block: u32, words: &[u64; N]);
    /// Writes one word.
    fn put_word(self, word: u32, value: u64);
    /// Writes a pair of words, the first of them word `2 * pair`.
    #[inline(always)]
    fn put_pair(self, pair: u32, words: [u64; 2])
    where
        Self: Copy,
    {
        let [first, second] = words;
        self.put_word(pair.wrapping_mul(2), first);
        self.put_word(pair.wrapping_mul(2).wrapping_add(1), second);
    }
    /// Reads one word.
    fn word(self, word: u32) -> u64;
    /// Reads one of the eight words of a block.
    #[inline(always)]
    fn block_word(self, block: u32, word: usize) -> u64
    where
        Self: Sized,
    {
        self.word(block.wrapping_mul(8).wrapping_add(word as u32 & 7))
    }
    /// Writes four bytes of the record, from byte 0 or, `second`, from byte 4.
    fn record(self, second: bool, value: u32);
}

/// Pages for the firmware of a device: single pages of 4096 bytes, anywhere. A real card wants thousands of them. The driver
/// never accesses them.
///
/// # Safety
/// The device reads and writes the pages that it is given. So:
/// - [`Self::allocate`] returns the address of 4096 bytes, as the device sees them, which belong to nothing else until
///   [`Self::free`] returns `true` for the address, or [`Self::free_all`] is called.
/// - They stay allocated as long as the value lives. Once it is gone, the device cannot reach them any more (an IOMMU sees to
///   that), or they are never used for anything else.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no pages for the firmware of a device",
    note = "pages come from `bareverbs_vfio::FirmwarePages` on Linux, `bareverbs_mmio::PageRanges` where RAM is mapped, and \
            `bareverbs_sim::in_process::SimPages` in tests"
)]
#[expect(unsafe_code, reason = "a wrong implementation would let the device write anywhere")]
pub unsafe trait PageSource {
    /// Prepares `pages` more pages, before the first of them is allocated.
    ///
    /// # Errors
    /// There are fewer.
    fn reserve(&mut self, pages: u32) -> Result<(), TooFewPages>;
    /// Allocates a page and returns its address as the device sees it, a multiple of 4096. `None` if none is left.
    fn allocate(&mut self) -> Option<u64>;
    /// Frees the page at this address. Returns `false` if no page there is allocated: the address comes from the device.
    fn free(&mut self, device_addr: u64) -> bool;
    /// Frees every page. A bring-up begins with it: a device that was reset has no pages any more.
    fn free_all(&mut self);
}

/// A [`PageSource`] has fewer pages than requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct TooFewPages {
    /// Pages requested.
    pub wanted: u32,
    /// Pages that are left.
    pub available: u32,
}

impl core::fmt::Display for TooFewPages {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} pages of 4096 bytes are wanted, {} are left", self.wanted, self.available)
    }
}

impl core::error::Error for TooFewPages {}

/// Ordering between this CPU and the device.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not order accesses of CPU and device",
    note = "`bareverbs_mmio::CpuFence` does on x86-64, AArch64, RISC-V and Arm, and `bareverbs_sim::in_process::SimFence` in \
            tests"
)]
pub trait DmaFence {
    /// Orders earlier writes to [`DmaMemory`] before later writes to registers and memory, as the device sees them.
    fn release(&self);
    /// Does the same as [`Self::release`], if the registers are mapped uncached: for a driver that writes no others.
    fn release_uncached(&self) {
        self.release();
    }
    /// Orders earlier writes to [`DmaMemory`] before later writes to it, as the device sees them.
    fn publish(&self) {
        self.release();
    }
    /// Orders earlier reads of [`DmaMemory`] before later reads of it.
    fn acquire(&self);
    /// Orders earlier reads of [`DmaMemory`] before later writes to registers and memory.
    fn read_before_write(&self) {
        self.acquire();
        self.release();
    }
    /// Flushes earlier writes to registers from the CPU's write-combining buffers.
    fn flush(&self);
}

/// A moment of the integrator's clock, in nanoseconds since a start of its choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Instant {
    nanos: u64,
}

impl Instant {
    /// Returns the moment `nanos` nanoseconds after the start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self { nanos }
    }

    /// Nanoseconds since the start.
    pub const fn as_nanos(self) -> u64 {
        self.nanos
    }

    /// Returns the moment `duration` later, or the end of time if that is earlier.
    #[inline(never)]
    pub fn after(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self { nanos: self.nanos.saturating_add(nanos) }
    }

    /// Returns the time since `earlier`, or zero if that is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos.saturating_sub(earlier.nanos))
    }
}

/// Time. Every wait of a driver asks it and has a deadline.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a clock",
    note = "implement `Clock::now` with a timer of the machine; `bareverbs_vfio::MonotonicClock` is that of Linux, \
            `bareverbs_sim::in_process::SimClock` of tests"
)]
pub trait Clock {
    /// Returns the present moment, which never goes back.
    fn now(&self) -> Instant;
    /// Pauses between two polls of the device, in a wait that ends at `deadline` at the latest. May spin, sleep until an
    /// interrupt or the deadline, or let a simulated device work.
    fn relax(&self, deadline: Instant) {
        let _ = deadline;
        core::hint::spin_loop();
    }
}

/// The five traits of one machine, composed.
///
/// # Safety
/// The driver directs the device's DMA through these types, and relies on their duties:
/// - [`Registers`], with its doorbells and words, accesses the register that an offset names, with the value given, and no other.
///   All belong to one device.
/// - [`DmaFence`] orders accesses as its methods say: with one that does not, the device reads addresses that are not written yet.
/// - The rest is promised by [`DmaMemory`] and [`PageSource`]; a [`Clock`] promises nothing that memory depends on.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name the registers, memory, pages, fence and clock of a machine",
    note = "platforms are `bareverbs_vfio::VfioPlatform` on Linux and `bareverbs_sim::in_process::SimPlatform` in tests; a \
            machine without an operating system implements `Platform`"
)]
#[expect(unsafe_code, reason = "wrong registers or fences would let the device write anywhere")]
pub unsafe trait Platform {
    /// Device registers.
    type Registers: Registers;
    /// Memory for queues and commands.
    type Memory: DmaMemory;
    /// Pages for the firmware.
    type Pages: PageSource;
    /// Ordering; each queue has one of its own. [`Send`], as [`DmaMemory::Ring`].
    type Fence: DmaFence + Clone + 'static;
    /// Time.
    type Clock: Clock;
}

/// One machine: the parts of a [`Platform`], which a driver owns while it runs. They are dropped in the order of the fields: the
/// registers first, with which a platform may end the device's accesses to the rest.
pub struct Machine<P: Platform> {
    /// BAR0 of the device. The integrator enables bus mastering before.
    pub registers: P::Registers,
    /// Memory for queues and commands, at least as long as the driver requires.
    pub memory: P::Memory,
    /// Pages for the firmware.
    pub pages: P::Pages,
    /// Ordering.
    pub fence: P::Fence,
    /// Time.
    pub clock: P::Clock,
}

format_as!(
    [P: Platform] Machine<P>,
    "Machine({} bytes of registers, {} bytes of memory)",
    |this| this.registers.len(), this.memory.len(),
);

/// Where some bytes lie for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Extent {
    /// Device address of the first of them.
    pub device_addr: u64,
    /// How many of them follow each other for the device as they do for the caller.
    pub len: u64,
}

/// Turns an address of a region into the address that the device uses. Asked once for each [`Extent`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say where its bytes lie for the device",
    note = "every `DmaBuffer` does; `OffsetMap` does where device addresses are the CPU's plus a constant"
)]
pub trait AddressMap {
    /// Returns where the byte at `addr` lies, and how many bytes from there on are contiguous. `None`: the device does not see
    /// it.
    fn extent(&self, addr: u64) -> Option<Extent>;
}

/// Device addresses are the caller's, plus a constant (wrapping).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct OffsetMap {
    /// Added to the caller's address.
    pub offset: u64,
}

impl AddressMap for OffsetMap {
    fn extent(&self, addr: u64) -> Option<Extent> {
        let device_addr = addr.wrapping_add(self.offset);
        // Neither address may wrap within the extent.
        Some(Extent { device_addr, len: u64::MAX - addr.max(device_addr) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each small ring at each place, and places at the end of all offsets: as the type's rules say, with an end that neither ring nor record
    /// goes past.
    #[test]
    #[cfg_attr(miri, ignore = "a whole domain of numbers takes minutes")]
    fn a_layout_keeps_the_rules_of_its_type() {
        let top = usize::MAX - 255;
        let places = || (0..=256_usize).chain((0..=255).map(|n| top + n));
        for len in (0..=260).chain([4096, 1 << 31, 1 << (usize::BITS - 1), usize::MAX]) {
            let is_ring = [64, 128, 256, 4096, 1 << 31, 1 << (usize::BITS - 1)].contains(&len);
            for ring in places().filter(|ring| cfg!(not(miri)) || ring % 32 == 0) {
                for record in places().filter(|record| record % 8 < 2) {
                    let ends = (ring as u128 + len as u128, record as u128 + 8);
                    let fits = ends.0.max(ends.1) <= usize::MAX as u128;
                    let good = is_ring && ring % 64 == 0 && record % 8 == 0 && fits;
                    let layout = RingLayout::new(ring, len, record);
                    assert_eq!(layout.is_some(), good, "{len} bytes at {ring:#x}, record at {record:#x}");
                    if let Some(layout) = layout {
                        let named = (layout.ring(), layout.len(), layout.doorbell_record());
                        assert_eq!((named, layout.end() as u128), ((ring, len, record), ends.0.max(ends.1)));
                    }
                }
            }
        }
    }

    /// Neither address wraps inside an extent, whatever is added, and it is as long as that allows.
    #[test]
    #[cfg_attr(miri, ignore = "a whole domain of numbers takes minutes")]
    fn an_extent_ends_before_either_address_wraps() {
        let edges = [0, 1, 4095, 4096, 1 << 32, 1 << 63, u64::MAX - 4096, u64::MAX - 1, u64::MAX];
        for offset in edges {
            for addr in edges {
                let Some(Extent { device_addr, len }) = OffsetMap { offset }.extent(addr) else { panic!("no extent") };
                let sum = u128::from(addr) + u128::from(offset);
                assert_eq!(u128::from(device_addr), sum % (1 << 64));
                let rooms = [addr, device_addr].map(|at| u128::from(u64::MAX) - u128::from(at));
                assert_eq!(Some(u128::from(len)), rooms.into_iter().min(), "{addr:#x} and {offset:#x}");
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "a whole domain of numbers takes minutes")]
    fn moments_end_with_time_and_are_never_negative() {
        for nanos in [0, 1, 1 << 63, u64::MAX - 1, u64::MAX] {
            let now = Instant::from_nanos(nanos);
            for duration in [Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(1 << 40), Duration::MAX] {
                let exact = u128::from(nanos) + duration.as_nanos();
                assert_eq!(u128::from(now.after(duration).as_nanos()), exact.min(u128::from(u64::MAX)));
            }
            for earlier in [0, 1, 1 << 63, u64::MAX] {
                let exact = (i128::from(nanos) - i128::from(earlier)).max(0);
                assert_eq!(now.since(Instant::from_nanos(earlier)).as_nanos(), exact as u128);
            }
        }
    }
}
