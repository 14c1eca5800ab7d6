//! Registers, memory and fences of a real machine: a mapped BAR, memory at a pointer, the CPU's barriers.
//!
//! The BAR is two register blocks, [`InitializationSegment`] and [`UarPage`], one for each page from the fifth on: what is no register
//! of them cannot be reached (the MSI-X table and its pending bits, which lie between them), and what may only be read cannot be
//! written. The only module that touches raw memory. A simulated device, or a machine with drivers of its own for these, needs
//! nothing of it.
#![expect(unsafe_code, reason = "a mapped BAR and device memory are raw memory; everything else is generic over the seams")]

use core::marker::PhantomData;
use core::mem::offset_of;
use core::ptr::NonNull;
use core::sync::atomic::{Ordering, compiler_fence};

use crate::dma::uar::FIRST_UAR_PAGE;
use bareverbs::{DmaFence, DmaMemory, DmaRing, Doorbell, OutOfRange, Registers, RingView, Span, WordRegister};
use bareverbs_mlx5_spec::{HealthBuffer, InitialSeg, UAR_BLUEFLAME, UAR_CQ_ARM, UAR_EQ_ARM, UAR_EQ_UPDATE, UAR_PAGE};
use volatile_register::{RO, RW, WO};

use crate::log::format_as;

/// The initialization segment as registers, big-endian as they lie (PRM "Initialization Segment").
#[repr(C)]
pub struct InitializationSegment {
    /// Firmware revision: minor, major.
    pub fw_rev: RO<u32>,
    /// Command interface revision, firmware sub-minor.
    pub cmdif_rev: RO<u32>,
    reserved0: [RO<u32>; 2],
    /// Address of the command queue, high half.
    pub cmdq_addr_high: RW<u32>,
    /// Address of the command queue, low half, with the shape of the queue in its low bits.
    pub cmdq_addr_low: RW<u32>,
    /// Bit n: start the command in slot n.
    pub command_doorbell: WO<u32>,
    reserved1: [RO<u32>; 0x78],
    /// Bit 31: still initializing.
    pub initializing: RO<u32>,
    /// Health buffer.
    pub health: [RO<u32>; 16],
    reserved2: [RO<u32>; 0x370],
    /// Internal timer, high half.
    pub timer_high: RO<u32>,
    /// Internal timer, low half.
    pub timer_low: RO<u32>,
    reserved3: [RO<u32>; 2],
    /// Health syndrome and counter.
    pub health_counter: RO<u32>,
}

format_as!([] InitializationSegment, "InitializationSegment({:#x})", |this| core::ptr::from_ref(this).addr());

const _: () = {
    assert!(offset_of!(InitializationSegment, fw_rev) == InitialSeg::FW_REV_MAJOR.dword());
    assert!(offset_of!(InitializationSegment, cmdif_rev) == InitialSeg::CMD_INTERFACE_REV.dword());
    assert!(offset_of!(InitializationSegment, cmdq_addr_high) == InitialSeg::CMDQ_PHY_ADDR_63_32.dword());
    assert!(offset_of!(InitializationSegment, cmdq_addr_low) == InitialSeg::CMDQ_PHY_ADDR_31_12.dword());
    assert!(offset_of!(InitializationSegment, command_doorbell) == InitialSeg::COMMAND_DOORBELL_VECTOR.dword());
    assert!(offset_of!(InitializationSegment, initializing) == InitialSeg::INITIALIZING.dword());
    assert!(offset_of!(InitializationSegment, health) == InitialSeg::HEALTH_BUFFER.offset());
    assert!(size_of::<[RO<u32>; 16]>() == <HealthBuffer as bareverbs_mlx5_spec::Layout>::SIZE);
    assert!(offset_of!(InitializationSegment, timer_high) == 0x1000);
    assert!(offset_of!(InitializationSegment, health_counter) == InitialSeg::HEALTH_COUNTER.dword());
};

/// A register of eight bytes that the device takes as one.
#[repr(C, align(8))]
pub struct DoorbellRegister {
    #[cfg(target_pointer_width = "64")]
    whole: WO<u64>,
    #[cfg(not(target_pointer_width = "64"))]
    halves: [WO<u32>; 2],
}

format_as!([] DoorbellRegister, "DoorbellRegister({:#x})", |this| core::ptr::from_ref(this).addr());

impl DoorbellRegister {
    /// Writes the register as the CPU stores the value: in one access, or, on a CPU of 32 bits, in two of four bytes, the lower
    /// address first: the device takes the second as the end of the doorbell. Two cores of 32 bits that ring through one page would
    /// mix their halves up: the device is rung for nothing then, and one of the doorbells is lost.
    #[inline(always)]
    fn write(&self, value: u64) {
        #[cfg(target_pointer_width = "64")]
        // SAFETY: a doorbell names queues to the device; what memory those lie in was told by firmware commands.
        unsafe {
            self.whole.write(value);
        }
        #[cfg(not(target_pointer_width = "64"))]
        {
            let [a, b, c, d, e, f, g, h] = value.to_ne_bytes();
            let [first, second] = &self.halves;
            // SAFETY: as above.
            unsafe { first.write(u32::from_ne_bytes([a, b, c, d])) };
            // SAFETY: as above.
            unsafe { second.write(u32::from_ne_bytes([e, f, g, h])) };
        }
    }
}

/// A UAR page as registers.
#[repr(C)]
pub struct UarPage {
    reserved0: [RO<u32>; 8],
    /// Arms a completion queue.
    pub cq_arm: DoorbellRegister,
    reserved1: [RO<u32>; 6],
    /// Updates the consumer index of an event queue and arms it.
    pub eq_arm: WO<u32>,
    reserved2: RO<u32>,
    /// Updates the consumer index of an event queue.
    pub eq_update: WO<u32>,
    reserved3: RO<u32>,
    reserved4: [RO<u32>; 0x1ec],
    /// Send doorbells: BlueFlame registers.
    pub blue_flame: [DoorbellRegister; 0x100],
}

format_as!([] UarPage, "UarPage({:#x})", |this| core::ptr::from_ref(this).addr());

const _: () = {
    assert!(offset_of!(UarPage, cq_arm) == UAR_CQ_ARM);
    assert!(offset_of!(UarPage, eq_arm) == UAR_EQ_ARM);
    assert!(offset_of!(UarPage, eq_update) == UAR_EQ_UPDATE);
    assert!(offset_of!(UarPage, blue_flame) == UAR_BLUEFLAME);
    assert!(size_of::<UarPage>() == UAR_PAGE);
};

/// BAR0 of a device, mapped.
pub struct MappedBar {
    base: NonNull<u8>,
    len: usize,
}

format_as!([] MappedBar, "MappedBar({:#x}, {} bytes)", |this| this.base.addr().get(), this.len);

impl MappedBar {
    /// Registers at `base`.
    ///
    /// # Safety
    /// `base` is aligned to 4096 and the `len` bytes there are the device's BAR0, mapped uncached or write-combining, for as
    /// long as the value and the doorbells made of it live. Nothing else in the program accesses them. Without an IOMMU the value goes to the driver and to nobody
    /// else: registers tell the device where to write.
    pub const unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len }
    }

    /// The initialization segment, if the BAR is that long.
    pub const fn initialization_segment(&self) -> Option<&InitializationSegment> {
        if self.len < size_of::<InitializationSegment>() {
            return None;
        }
        // SAFETY: the bytes are there (checked), aligned to a page (promised), and every field is a cell for volatile access.
        Some(unsafe { self.base.cast().as_ref() })
    }

    /// UAR page `index`, if the BAR is that long.
    pub fn uar_page(&self, index: usize) -> Option<&UarPage> {
        let offset = index.checked_mul(UAR_PAGE)?;
        if offset.checked_add(UAR_PAGE)? > self.len {
            return None;
        }
        // SAFETY: the page lies in the BAR (checked), is aligned (promised), and every field is a cell for volatile access.
        Some(unsafe { self.base.add(offset).cast().as_ref() })
    }
}

// SAFETY: the registers belong to the value alone (promised to `new`), and no reference to them outlives a borrow of it.
unsafe impl Send for MappedBar {}

impl MappedBar {
    /// The UAR page in which the byte at `offset` lies, and where in it.
    #[inline]
    fn uar_register(&self, offset: usize) -> Option<(&UarPage, usize)> {
        let page = offset / UAR_PAGE;
        if page < FIRST_UAR_PAGE {
            return None;
        }
        Some((self.uar_page(page)?, offset % UAR_PAGE))
    }

    #[inline]
    fn read_segment(&self, offset: usize) -> Option<u32> {
        let segment = self.initialization_segment()?;
        let health = offset_of!(InitializationSegment, health);
        match offset {
            _ if offset == offset_of!(InitializationSegment, fw_rev) => Some(segment.fw_rev.read()),
            _ if offset == offset_of!(InitializationSegment, cmdif_rev) => Some(segment.cmdif_rev.read()),
            _ if offset == offset_of!(InitializationSegment, cmdq_addr_high) => Some(segment.cmdq_addr_high.read()),
            _ if offset == offset_of!(InitializationSegment, cmdq_addr_low) => Some(segment.cmdq_addr_low.read()),
            _ if offset == offset_of!(InitializationSegment, initializing) => Some(segment.initializing.read()),
            _ if offset == offset_of!(InitializationSegment, timer_high) => Some(segment.timer_high.read()),
            _ if offset == offset_of!(InitializationSegment, timer_low) => Some(segment.timer_low.read()),
            _ if offset == offset_of!(InitializationSegment, health_counter) => Some(segment.health_counter.read()),
            _ if offset >= health && offset.is_multiple_of(4) => Some(segment.health.get((offset - health) / 4)?.read()),
            _ => None,
        }
    }

    #[inline]
    fn write_word(&self, offset: usize, value: u32) -> Option<()> {
        if let Some((page, at)) = self.uar_register(offset) {
            let register = match at {
                UAR_EQ_ARM => &page.eq_arm,
                UAR_EQ_UPDATE => &page.eq_update,
                _ => return None,
            };
            // SAFETY: it tells the device which events were taken; what memory they lie in was told by a firmware command.
            unsafe { register.write(value) };
            return Some(());
        }
        let segment = self.initialization_segment()?;
        if offset == offset_of!(InitializationSegment, command_doorbell) {
            // SAFETY: the device takes commands from the queue whose address it was told below.
            unsafe { segment.command_doorbell.write(value) };
        } else if offset == offset_of!(InitializationSegment, cmdq_addr_high) {
            // SAFETY: the driver writes the address of its arena, which is the device's. A device that is told another one is held
            // by the IOMMU; whoever has none answers for who gets at the registers (promised to `new`).
            unsafe { segment.cmdq_addr_high.write(value) };
        } else if offset == offset_of!(InitializationSegment, cmdq_addr_low) {
            // SAFETY: as above.
            unsafe { segment.cmdq_addr_low.write(value) };
        } else {
            return None;
        }
        Some(())
    }

    /// The first of `count` registers of eight bytes from `offset` on.
    fn doorbells(&self, offset: usize, count: usize) -> Option<&[DoorbellRegister]> {
        let (page, at) = self.uar_register(offset)?;
        if at == UAR_CQ_ARM && count == 1 {
            return Some(core::slice::from_ref(&page.cq_arm));
        }
        if !at.is_multiple_of(8) {
            return None;
        }
        let first = at.checked_sub(UAR_BLUEFLAME)? / 8;
        page.blue_flame.get(first..first.checked_add(count)?)
    }
}

impl Registers for MappedBar {
    type Doorbell = MappedDoorbell;
    type Word = MappedWord;

    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn read32(&self, offset: usize) -> Result<u32, OutOfRange> {
        self.read_segment(offset).ok_or(OutOfRange { offset, len: 4 })
    }

    #[inline]
    fn write32(&mut self, offset: usize, value: u32) -> Result<(), OutOfRange> {
        self.write_word(offset, value).ok_or(OutOfRange { offset, len: 4 })
    }

    fn doorbell(&self, offset: usize, count: usize) -> Result<MappedDoorbell, OutOfRange> {
        let out = OutOfRange { offset, len: count.saturating_mul(8) };
        let registers = if count.is_power_of_two() { self.doorbells(offset, count).ok_or(out)? } else { return Err(out) };
        Ok(MappedDoorbell { first: NonNull::from(registers).cast(), mask: count.wrapping_sub(1) })
    }

    fn word(&self, offset: usize) -> Result<MappedWord, OutOfRange> {
        let register = match self.uar_register(offset) {
            Some((page, UAR_EQ_ARM)) => &page.eq_arm,
            Some((page, UAR_EQ_UPDATE)) => &page.eq_update,
            _ => return Err(OutOfRange { offset, len: 4 }),
        };
        Ok(MappedWord { register: NonNull::from(register) })
    }
}

/// Doorbell registers of a mapped BAR.
pub struct MappedDoorbell {
    first: NonNull<DoorbellRegister>,
    /// Registers less one: a power of two.
    mask: usize,
}

format_as!([] MappedDoorbell, "MappedDoorbell({:#x})", |this| this.first.addr().get());

// SAFETY: writing a register from any thread touches no memory of the program; the BAR stays mapped (promised to
// `MappedBar::new`). On a CPU of 32 bits a doorbell is two accesses, and another thread's may come between: a doorbell is lost then.
unsafe impl Send for MappedDoorbell {}

impl Doorbell for MappedDoorbell {
    #[inline(always)]
    fn write(&self, index: usize, value: u64) {
        // SAFETY: `doorbell` found as many registers as the mask lets the index name, and the BAR stays mapped as long as anything
        // made of it lives (promised to `MappedBar::new`).
        let register = unsafe { self.first.add(index & self.mask).as_ref() };
        register.write(value);
    }
}

/// A register of four bytes of a mapped BAR.
pub struct MappedWord {
    register: NonNull<WO<u32>>,
}

format_as!([] MappedWord, "MappedWord({:#x})", |this| this.register.addr().get());

// SAFETY: as of `MappedDoorbell`.
unsafe impl Send for MappedWord {}

impl WordRegister for MappedWord {
    #[inline]
    fn write(&self, value: u32) {
        // SAFETY: the register exists, as of `MappedDoorbell`; it tells the device which events were taken, and what memory they lie
        // in was told by a firmware command.
        unsafe { self.register.as_ref().write(value) };
    }
}

/// Where an access of `width` bytes at `offset` goes, if it is aligned and lies within `len` bytes.
#[inline]
fn place(base: NonNull<u8>, len: usize, offset: usize, width: usize) -> Result<NonNull<u8>, OutOfRange> {
    if !offset.is_multiple_of(width.clamp(1, 8)) || width > len || offset > len - width {
        return Err(OutOfRange { offset, len: width });
    }
    // SAFETY: the bytes from `offset` to `offset + width` lie within the `len` bytes that whoever made the value promised.
    Ok(unsafe { base.add(offset) })
}

/// Memory that CPU and device both see, at a pointer.
pub struct MappedMemory {
    base: NonNull<u8>,
    len: usize,
    device_addr: u64,
}

format_as!(
    [] MappedMemory,
    "MappedMemory({:#x}, {} bytes, for the device {:#x})",
    |this| this.base.addr().get(), this.len, this.device_addr,
);

impl MappedMemory {
    /// Memory at `base` that the device sees at `device_addr`.
    ///
    /// # Safety
    /// `base` and `device_addr` are aligned to 4096; the `len` bytes are readable and writable for as long as the value and the
    /// rings made of it live, contiguous for the device, coherent with it, and no Rust reference to any of them exists in that
    /// time. After it the device cannot reach them, or they are never used for anything else.
    pub const unsafe fn new(base: NonNull<u8>, len: usize, device_addr: u64) -> Self {
        Self { base, len, device_addr }
    }

    fn span(&self, at: usize, len: usize) -> Result<NonNull<u8>, OutOfRange> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(OutOfRange { offset: at, len });
        }
        // SAFETY: `at` is within the `len` bytes that whoever made the value promised.
        Ok(unsafe { self.base.add(at) })
    }
}

// SAFETY: the bytes belong to the value and the device (promised to `new`), and every access is volatile.
unsafe impl Send for MappedMemory {}

// SAFETY: what is asked of an implementation was promised to `new`, and every access below is checked against the length.
unsafe impl DmaMemory for MappedMemory {
    type Ring = MappedRing;

    fn ring(&self, span: &Span) -> Result<MappedRing, OutOfRange> {
        if span.top() > self.len {
            return Err(OutOfRange { offset: span.ring(), len: span.len() });
        }
        // SAFETY: both lie below `top` (what a span promises), so within the bytes that were promised to `new`.
        let (ring, record) = unsafe { (self.base.add(span.ring()), self.base.add(span.record())) };
        Ok(MappedRing { ring, mask: span.len().wrapping_sub(8), record: record.cast() })
    }

    fn len(&self) -> usize {
        self.len
    }

    fn device_addr(&self) -> u64 {
        self.device_addr
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        let mut from = self.span(at, into.len())?;
        let (head, words) = into.split_at_mut(Self::to_word(at).min(into.len()));
        for byte in head {
            // SAFETY: `span` gave as many bytes as `into` has; volatile because the device may write at any time.
            (*byte, from) = unsafe { (from.read_volatile(), from.add(1)) };
        }
        let (words, tail) = words.as_chunks_mut::<8>();
        for word in words {
            // SAFETY: as above, and `from` is a multiple of 8 after the head.
            let (value, next) = unsafe { (from.cast::<u64>().read_volatile(), from.add(8)) };
            (*word, from) = (value.to_ne_bytes(), next);
        }
        for byte in tail {
            // SAFETY: as above.
            (*byte, from) = unsafe { (from.read_volatile(), from.add(1)) };
        }
        Ok(())
    }

    fn write(&mut self, at: usize, from: &[u8]) -> Result<(), OutOfRange> {
        let mut to = self.span(at, from.len())?;
        let (head, words) = from.split_at(Self::to_word(at).min(from.len()));
        for byte in head {
            // SAFETY: `span` gave as many bytes as `from` has; volatile because the device may read at any time.
            to = unsafe {
                to.write_volatile(*byte);
                to.add(1)
            };
        }
        let (words, tail) = words.as_chunks::<8>();
        for word in words {
            // SAFETY: as above, and `to` is a multiple of 8 after the head.
            to = unsafe {
                to.cast::<u64>().write_volatile(u64::from_ne_bytes(*word));
                to.add(8)
            };
        }
        for byte in tail {
            // SAFETY: as above.
            to = unsafe {
                to.write_volatile(*byte);
                to.add(1)
            };
        }
        Ok(())
    }

    #[inline]
    fn read_u8(&self, at: usize) -> Result<u8, OutOfRange> {
        let byte = place(self.base, self.len, at, 1)?;
        // SAFETY: `place` gave one byte of the memory.
        Ok(unsafe { byte.read_volatile() })
    }

    #[inline]
    fn store_u32(&mut self, at: usize, value: u32) -> Result<(), OutOfRange> {
        let word = place(self.base, self.len, at, 4)?.cast::<u32>();
        // SAFETY: `place` gave four aligned bytes of the memory.
        unsafe { word.write_volatile(value) };
        Ok(())
    }

    #[inline]
    fn load<const N: usize>(&self, at: usize) -> Result<[u64; N], OutOfRange> {
        let from = self.words(at, N)?;
        let mut words = [0; N];
        for (index, word) in words.iter_mut().enumerate() {
            // SAFETY: `words` gave `N` aligned words of the memory.
            *word = unsafe { from.add(index).read_volatile() };
        }
        Ok(words)
    }

    #[inline]
    fn store<const N: usize>(&mut self, at: usize, words: &[u64; N]) -> Result<(), OutOfRange> {
        let to = self.words(at, N)?;
        for (index, word) in words.iter().enumerate() {
            // SAFETY: `words` gave `N` aligned words of the memory.
            unsafe { to.add(index).write_volatile(*word) };
        }
        Ok(())
    }
}

impl MappedMemory {
    /// Bytes from `at` to the next multiple of 8; the memory itself starts at one.
    const fn to_word(at: usize) -> usize {
        at.wrapping_neg() % 8
    }

    #[inline]
    fn words(&self, at: usize, count: usize) -> Result<NonNull<u64>, OutOfRange> {
        let len = count * size_of::<u64>();
        if !at.is_multiple_of(8) || len > self.len || at > self.len - len {
            return Err(OutOfRange { offset: at, len });
        }
        // SAFETY: `at` is within the bytes promised to `new`, and a multiple of 8 from an aligned start.
        Ok(unsafe { self.base.add(at) }.cast())
    }
}

/// A ring in [`MappedMemory`] with its doorbell record.
#[derive(Clone, Copy)]
pub struct MappedRing {
    ring: NonNull<u8>,
    /// Bits of a byte offset that a word's start may have.
    mask: usize,
    record: NonNull<u32>,
}

format_as!([] MappedRing, "MappedRing({:#x})", |this| this.ring.addr().get());

// SAFETY: every access is volatile, and the bytes stay where they are as long as the ring lives (promised to `MappedMemory::new`).
unsafe impl Send for MappedRing {}

impl DmaRing for MappedRing {
    type View<'a> = MappedRingView<'a>;

    #[inline(always)]
    fn view(&self) -> MappedRingView<'_> {
        MappedRingView { ring: *self, borrowed: PhantomData }
    }
}

/// [`MappedRing`] while it is used: a copy, which can live in registers.
#[derive(Clone, Copy)]
pub struct MappedRingView<'a> {
    ring: MappedRing,
    borrowed: PhantomData<&'a MappedRing>,
}

format_as!([] MappedRingView<'_>, "MappedRingView({:#x})", |this| this.ring.ring.addr().get());

impl MappedRingView<'_> {
    #[inline(always)]
    fn at(self, offset: usize) -> NonNull<u64> {
        // SAFETY: the mask keeps the offset inside the ring, and a word's start at a multiple of 8.
        unsafe { self.ring.ring.add(offset & self.ring.mask) }.cast()
    }
}

impl RingView for MappedRingView<'_> {
    #[inline(always)]
    fn put<const N: usize>(self, block: u32, words: &[u64; N]) {
        const { assert!(N <= 8, "a block has eight words") };
        let to = self.at((block as usize).wrapping_mul(64));
        for (index, word) in words.iter().enumerate() {
            // SAFETY: `to` is the start of a block, which has eight words: the ring is a power of two of at least 64 bytes.
            unsafe { to.add(index).write_volatile(*word) };
        }
    }

    #[inline(always)]
    fn put_word(self, word: u32, value: u64) {
        // SAFETY: `at` gave a word of the ring.
        unsafe { self.at((word as usize).wrapping_mul(8)).write_volatile(value) };
    }

    #[inline(always)]
    fn word(self, word: u32) -> u64 {
        // SAFETY: `at` gave a word of the ring.
        unsafe { self.at((word as usize).wrapping_mul(8)).read_volatile() }
    }

    #[inline(always)]
    fn record(self, second: bool, value: u32) {
        // SAFETY: `ring` found the eight bytes of the record inside the memory and aligned.
        unsafe { self.ring.record.add(usize::from(second)).write_volatile(value) };
    }
}

/// The barriers of this CPU between ordinary memory and device registers.
///
/// | CPU | release | publish | acquire | read_before_write | flush |
/// |---|---|---|---|---|---|
/// | x86, BAR uncached | none: stores stay in order | none | none: loads stay in order | none | none |
/// | x86, BAR write-combining | `sfence` | none: memory is written back | none | none | `sfence` |
/// | AArch64 | `dmb oshst` | `dmb oshst` | `dmb oshld` | `dmb oshld` | `dsb st` |
/// | RISC-V | `fence iorw, ow` | `fence w, w` | `fence ir, ir` | `fence ir, ow` | `fence ow, ow` |
/// | Arm | `dmb` | `dmb` | `dmb` | `dmb` | `dsb` |
///
/// Each is a barrier for the compiler too. On other CPUs this does not compile: a compiler barrier alone would be wrong on those
/// that reorder, and a machine of such a kind brings a [`DmaFence`] of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CpuFence {
    write_combining: bool,
}

impl CpuFence {
    /// For a BAR that is mapped uncached (device memory): [`crate::Config::blue_flame`] is off then.
    pub const UNCACHED: Self = Self { write_combining: false };
    /// For a BAR that is mapped write-combining, with [`crate::Config::blue_flame`] on.
    pub const WRITE_COMBINING: Self = Self { write_combining: true };
}

macro_rules! barrier {
    ($instruction:literal) => {{
        // SAFETY: a barrier changes no register and no memory.
        unsafe { core::arch::asm!($instruction, options(nostack, preserves_flags)) }
    }};
}

#[cfg(not(any(
    target_arch = "x86_64",
    target_arch = "x86",
    target_arch = "aarch64",
    target_arch = "riscv32",
    target_arch = "riscv64",
    target_arch = "arm"
)))]
compile_error!("the barriers between memory and device registers of this CPU are not known");

impl DmaFence for CpuFence {
    #[inline(always)]
    fn release(&self) {
        #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
        if self.write_combining {
            barrier!("sfence");
        }
        #[cfg(target_arch = "aarch64")]
        barrier!("dmb oshst");
        #[cfg(any(target_arch = "riscv32", target_arch = "riscv64"))]
        barrier!("fence iorw, ow");
        #[cfg(target_arch = "arm")]
        barrier!("dmb");
        compiler_fence(Ordering::Release);
    }

    #[inline(always)]
    fn publish(&self) {
        #[cfg(target_arch = "aarch64")]
        barrier!("dmb oshst");
        #[cfg(any(target_arch = "riscv32", target_arch = "riscv64"))]
        barrier!("fence w, w");
        #[cfg(target_arch = "arm")]
        barrier!("dmb");
        compiler_fence(Ordering::Release);
    }

    #[inline(always)]
    fn acquire(&self) {
        #[cfg(target_arch = "aarch64")]
        barrier!("dmb oshld");
        #[cfg(any(target_arch = "riscv32", target_arch = "riscv64"))]
        barrier!("fence ir, ir");
        #[cfg(target_arch = "arm")]
        barrier!("dmb");
        compiler_fence(Ordering::Acquire);
    }

    #[inline(always)]
    fn read_before_write(&self) {
        #[cfg(target_arch = "aarch64")]
        barrier!("dmb oshld");
        #[cfg(any(target_arch = "riscv32", target_arch = "riscv64"))]
        barrier!("fence ir, ow");
        #[cfg(target_arch = "arm")]
        barrier!("dmb");
        compiler_fence(Ordering::AcqRel);
    }

    #[inline(always)]
    fn flush(&self) {
        #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
        if self.write_combining {
            barrier!("sfence");
        }
        #[cfg(target_arch = "aarch64")]
        barrier!("dsb st");
        #[cfg(any(target_arch = "riscv32", target_arch = "riscv64"))]
        barrier!("fence ow, ow");
        #[cfg(target_arch = "arm")]
        barrier!("dsb");
        compiler_fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;
    use std::vec;
    use std::vec::Vec;

    use super::*;

    /// Bytes that begin at a page.
    #[repr(C, align(4096))]
    struct Aligned<const N: usize>([u8; N]);

    fn aligned<const N: usize>(byte: u8) -> NonNull<u8> {
        NonNull::from(Box::leak(Box::new(Aligned([byte; N])))).cast()
    }

    fn bytes(base: NonNull<u8>, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: leaked memory of at least that length, which nothing writes meanwhile, and a vector of that length.
        unsafe { base.as_ptr().copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        bytes
    }

    const BAR: usize = 8 * UAR_PAGE;

    fn bar(len: usize) -> (MappedBar, NonNull<u8>) {
        let base = aligned::<BAR>(0);
        // SAFETY: leaked memory of that length and alignment, of this test alone.
        (unsafe { MappedBar::new(base, len) }, base)
    }

    /// Registers by the offsets of the PRM ("Initialization Segment", "UAR Page").
    const READABLE: &[usize] = &[0x0, 0x4, 0x10, 0x14, 0x1fc, 0x200, 0x210, 0x23c, 0x1000, 0x1004, 0x1010];
    const WRITABLE: &[usize] = &[0x10, 0x14, 0x18, 4 * 4096 + 0x40, 4 * 4096 + 0x48, 7 * 4096 + 0x40];
    const DOORBELLS: &[usize] = &[4 * 4096 + 0x20, 4 * 4096 + 0x800, 4 * 4096 + 0x900, 7 * 4096 + 0xff8];

    #[test]
    fn registers_lie_where_the_manual_has_them() {
        for offset in READABLE {
            let (bar, base) = bar(BAR);
            // SAFETY: four bytes within the leaked memory.
            unsafe { base.add(*offset).cast::<u32>().write_volatile(0x1122_3344) };
            assert_eq!(bar.read32(*offset), Ok(0x1122_3344), "{offset:#x}");
        }
        for offset in WRITABLE {
            let (mut bar, base) = bar(BAR);
            bar.write32(*offset, 0x1122_3344).unwrap();
            let mut expected = vec![0; BAR];
            expected[*offset..offset + 4].copy_from_slice(&0x1122_3344_u32.to_ne_bytes());
            assert!(bytes(base, BAR) == expected, "{offset:#x}");
        }
        for offset in DOORBELLS {
            let (bar, base) = bar(BAR);
            bar.doorbell(*offset, 1).unwrap().write(0, 0x1122_3344_5566_7788);
            let mut expected = vec![0; BAR];
            expected[*offset..offset + 8].copy_from_slice(&0x1122_3344_5566_7788_u64.to_ne_bytes());
            assert!(bytes(base, BAR) == expected, "{offset:#x}");
        }
    }

    #[test]
    fn what_is_no_register_is_refused_and_untouched() {
        let (mut bar, base) = bar(BAR);
        // Miri takes minutes over all.
        let step = if cfg!(miri) { 61 } else { 1 };
        for offset in (0..BAR + 64).step_by(step).chain([usize::MAX - 7, usize::MAX]) {
            let is_uar = offset / UAR_PAGE >= 4;
            let is_event_register = is_uar && matches!(offset % UAR_PAGE, UAR_EQ_ARM | UAR_EQ_UPDATE);
            if !(WRITABLE.contains(&offset) || is_event_register) {
                assert_eq!(bar.write32(offset, u32::MAX), Err(OutOfRange { offset, len: 4 }), "{offset:#x}");
            }
            if offset % UAR_PAGE < UAR_BLUEFLAME && offset % UAR_PAGE != UAR_CQ_ARM || offset % 8 != 0 || offset < 2 * UAR_PAGE
            {
                assert_eq!(bar.doorbell(offset, 1).err(), Some(OutOfRange { offset, len: 8 }), "{offset:#x}");
            }
            if !READABLE.contains(&offset) && !(0x200..0x240).contains(&offset) {
                assert_eq!(bar.read32(offset), Err(OutOfRange { offset, len: 4 }), "{offset:#x}");
            }
        }
        assert!(bytes(base, BAR).iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_short_bar_has_no_registers_beyond_its_end() {
        let (mut bar, _) = bar(4096 * 4);
        assert_eq!(bar.read32(0x1010), Ok(0));
        assert!(bar.doorbell(4 * 4096 + 0x800, 1).is_err() && bar.write32(4 * 4096 + 0x40, 0).is_err());
        let (mut shorter, _) = super::tests::bar(0x1010);
        assert!(shorter.read32(0).is_err() && shorter.write32(0x18, 1).is_err());
    }

    #[test]
    fn memory_is_copied_at_every_alignment() {
        const LEN: usize = 256;
        for at in 0..24 {
            for len in [0, 1, 3, 7, 8, 9, 15, 16, 17, 64, 100] {
                let base = aligned::<LEN>(0xee);
                // SAFETY: leaked memory of that length and alignment, of this test alone.
                let mut memory = unsafe { MappedMemory::new(base, LEN, 0x10_0000) };
                let data: Vec<u8> = (0..len).map(|index| index as u8 ^ 0x5a).collect();
                memory.write(at, &data).unwrap();
                let mut expected = vec![0xee; LEN];
                expected[at..at + len].copy_from_slice(&data);
                assert!(bytes(base, LEN) == expected, "{len} bytes at {at}");
                let mut back = vec![0; len];
                memory.read(at, &mut back).unwrap();
                assert_eq!(back, data, "{len} bytes at {at}");
            }
        }
    }

    #[test]
    fn words_are_stored_as_the_cpu_stores_them_and_nothing_beyond_the_end() {
        let base = aligned::<64>(0);
        // SAFETY: leaked memory of that length and alignment, of this test alone.
        let mut memory = unsafe { MappedMemory::new(base, 64, 0x10_0000) };
        memory.store(8, &[0x1122_3344_5566_7788, 9]).unwrap();
        memory.store_u32(60, 0xaabb_ccdd).unwrap();
        assert_eq!(bytes(base, 64)[8..16], 0x1122_3344_5566_7788_u64.to_ne_bytes());
        assert_eq!(memory.load::<2>(8), Ok([0x1122_3344_5566_7788, 9]));
        assert_eq!(memory.read_u8(60), Ok(0xaabb_ccdd_u32.to_ne_bytes()[0]));
        assert_eq!((memory.len(), memory.device_addr()), (64, 0x10_0000));
        for (at, len) in [(64, 1), (usize::MAX, 1), (63, 2), (0, 65), (usize::MAX - 3, 8)] {
            assert_eq!(memory.read(at, &mut vec![0; len]), Err(OutOfRange { offset: at, len }));
            assert_eq!(memory.write(at, &vec![0; len]), Err(OutOfRange { offset: at, len }));
        }
        assert!(memory.read_u8(64).is_err() && memory.store_u32(62, 0).is_err() && memory.store_u32(64, 0).is_err());
        assert!(memory.load::<1>(60).is_err() && memory.load::<1>(4).is_err() && memory.store(64, &[0]).is_err());
        assert!(memory.load::<9>(0).is_err() && memory.store(usize::MAX - 7, &[0]).is_err());
    }

    #[test]
    #[cfg_attr(miri, ignore = "instructions of the CPU")]
    fn fences_run_on_this_cpu() {
        for fence in [CpuFence::UNCACHED, CpuFence::WRITE_COMBINING] {
            fence.release();
            fence.acquire();
            fence.publish();
            fence.read_before_write();
            fence.flush();
        }
    }
}
