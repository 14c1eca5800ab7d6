//! Registers, memory and fences of a real machine: a mapped BAR, memory at a pointer, the CPU's barriers.
//!
//! The only module that touches raw memory. A simulated device, or a machine with drivers of its own for these, needs
//! nothing of it.
#![expect(unsafe_code, reason = "a mapped BAR and device memory are raw memory; everything else is generic over the seams")]

use core::mem::offset_of;
use core::ptr::NonNull;

use bareverbs::{DmaFence, DmaMemory, OutOfRange, Registers};
use bareverbs_mlx5_spec::{HealthBuffer, InitialSeg, UAR_BLUEFLAME, UAR_CQ_ARM, UAR_EQ_ARM, UAR_EQ_UPDATE, UAR_PAGE};
use volatile_register::{RO, RW, WO};

/// The initialization segment as registers, big-endian as they lie (PRM "Initialization Segment").
#[repr(C)]
pub struct InitializationSegment {
    /// Firmware revision: minor, major.
    pub fw_rev: RO<u32>,
    /// Command interface revision, firmware sub-minor.
    pub cmdif_rev: RO<u32>,
    reserved0: [u32; 2],
    /// Address of the command queue, high half.
    pub cmdq_addr_high: RW<u32>,
    /// Address of the command queue, low half, with the shape of the queue in its low bits.
    pub cmdq_addr_low: RW<u32>,
    /// Bit n: start the command in slot n.
    pub command_doorbell: WO<u32>,
    reserved1: [u32; 0x78],
    /// Bit 31: still initializing.
    pub initializing: RO<u32>,
    /// Health buffer.
    pub health: [RO<u32>; 16],
    reserved2: [u32; 0x370],
    /// Internal timer, high half.
    pub timer_high: RO<u32>,
    /// Internal timer, low half.
    pub timer_low: RO<u32>,
    reserved3: [u32; 2],
    /// Health syndrome and counter.
    pub health_counter: RO<u32>,
}

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

/// A UAR page as registers.
#[repr(C)]
pub struct UarPage {
    reserved0: [u64; 4],
    /// Arms a completion queue.
    pub cq_arm: WO<u64>,
    reserved1: [u64; 3],
    /// Updates the consumer index of an event queue and arms it.
    pub eq_arm: WO<u32>,
    reserved2: u32,
    /// Updates the consumer index of an event queue.
    pub eq_update: WO<u32>,
    reserved3: u32,
    reserved4: [u64; 0xf6],
    /// Send doorbells: BlueFlame registers.
    pub blue_flame: [WO<u64>; 0x100],
}

const _: () = {
    assert!(offset_of!(UarPage, cq_arm) == UAR_CQ_ARM);
    assert!(offset_of!(UarPage, eq_arm) == UAR_EQ_ARM);
    assert!(offset_of!(UarPage, eq_update) == UAR_EQ_UPDATE);
    assert!(offset_of!(UarPage, blue_flame) == UAR_BLUEFLAME);
    assert!(size_of::<UarPage>() == UAR_PAGE);
};

/// Where an access of `width` bytes at `offset` goes, if it is aligned and lies within `len` bytes.
#[inline]
fn place(base: NonNull<u8>, len: usize, offset: usize, width: usize) -> Result<NonNull<u8>, OutOfRange> {
    if !offset.is_multiple_of(width.clamp(1, 8)) || width > len || offset > len - width {
        return Err(OutOfRange { offset, len: width });
    }
    // SAFETY: the bytes from `offset` to `offset + width` lie within the `len` bytes that whoever made the value promised.
    Ok(unsafe { base.add(offset) })
}

/// BAR0 of a device, mapped.
#[derive(Debug)]
pub struct MappedBar {
    base: NonNull<u8>,
    len: usize,
}

impl MappedBar {
    /// Registers at `base`.
    ///
    /// # Safety
    /// `base` is aligned to 4096 and the `len` bytes there are the device's BAR0, mapped uncached or write-combining, for as
    /// long as the value lives. Nothing else in the program accesses them.
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

impl Registers for MappedBar {
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn read32(&self, offset: usize) -> Result<u32, OutOfRange> {
        let register = place(self.base, self.len, offset, 4)?.cast::<RO<u32>>();
        // SAFETY: `place` gave four aligned bytes of the BAR; `RO` reads them in one volatile access.
        Ok(unsafe { register.as_ref() }.read())
    }

    #[inline]
    fn write32(&mut self, offset: usize, value: u32) -> Result<(), OutOfRange> {
        let register = place(self.base, self.len, offset, 4)?.cast::<WO<u32>>();
        // SAFETY: `place` gave four aligned bytes of the BAR, and what a write does there is the driver's business.
        unsafe { register.as_ref().write(value) };
        Ok(())
    }

    #[inline]
    fn write64(&mut self, offset: usize, value: u64) -> Result<(), OutOfRange> {
        let register = place(self.base, self.len, offset, 8)?;
        if cfg!(target_pointer_width = "64") {
            // SAFETY: `place` gave eight aligned bytes of the BAR, and what a write does there is the driver's business.
            unsafe { register.cast::<WO<u64>>().as_ref().write(value) };
        } else {
            let bytes = value.to_ne_bytes();
            for (index, half) in bytes.chunks_exact(4).enumerate() {
                let half = u32::from_ne_bytes(half.first_chunk().copied().unwrap_or_default());
                // SAFETY: both halves lie in the eight bytes that `place` gave. The device takes the second as the end of
                // the doorbell, and `&mut self` keeps any other doorbell from coming in between.
                unsafe { register.cast::<WO<u32>>().add(index).as_ref().write(half) };
            }
        }
        Ok(())
    }
}

/// Memory that CPU and device both see, at a pointer.
#[derive(Debug)]
pub struct MappedMemory {
    base: NonNull<u8>,
    len: usize,
    device_addr: u64,
}

impl MappedMemory {
    /// Memory at `base` that the device sees at `device_addr`.
    ///
    /// # Safety
    /// `base` and `device_addr` are aligned to 4096; the `len` bytes are readable and writable for as long as the value lives,
    /// contiguous for the device, coherent with it, and no Rust reference to any of them exists in that time.
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

impl DmaMemory for MappedMemory {
    fn len(&self) -> usize {
        self.len
    }

    fn device_addr(&self) -> u64 {
        self.device_addr
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        let from = self.span(at, into.len())?;
        for (index, byte) in into.iter_mut().enumerate() {
            // SAFETY: `span` gave as many bytes as `into` has; volatile because the device may write at any time.
            *byte = unsafe { from.add(index).read_volatile() };
        }
        Ok(())
    }

    fn write(&mut self, at: usize, from: &[u8]) -> Result<(), OutOfRange> {
        let to = self.span(at, from.len())?;
        for (index, byte) in from.iter().enumerate() {
            // SAFETY: `span` gave as many bytes as `from` has; volatile because the device may read at any time.
            unsafe { to.add(index).write_volatile(*byte) };
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

/// The barriers of this CPU between ordinary memory and device registers.
///
/// | CPU | release | acquire | flush |
/// |---|---|---|---|
/// | x86-64, BAR uncached | none: stores stay in order | none: loads stay in order | none |
/// | x86-64, BAR write-combining | `sfence` | none | `sfence` |
/// | AArch64 | `dmb oshst` | `dmb oshld` | `dsb st` |
/// | RISC-V | `fence iorw, ow` | `fence ir, ir` | `fence ow, ow` |
/// | Arm (M profile) | `dmb` | `dmb` | `dsb` |
///
/// Each is a barrier for the compiler too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl DmaFence for CpuFence {
    #[inline]
    fn release(&self) {
        #[cfg(target_arch = "x86_64")]
        if self.write_combining {
            barrier!("sfence");
        }
        #[cfg(target_arch = "aarch64")]
        barrier!("dmb oshst");
        #[cfg(any(target_arch = "riscv32", target_arch = "riscv64"))]
        barrier!("fence iorw, ow");
        #[cfg(target_arch = "arm")]
        barrier!("dmb");
        core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::Release);
    }

    #[inline]
    fn acquire(&self) {
        #[cfg(target_arch = "aarch64")]
        barrier!("dmb oshld");
        #[cfg(any(target_arch = "riscv32", target_arch = "riscv64"))]
        barrier!("fence ir, ir");
        #[cfg(target_arch = "arm")]
        barrier!("dmb");
        core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::Acquire);
    }

    #[inline]
    fn flush(&self) {
        #[cfg(target_arch = "x86_64")]
        if self.write_combining {
            barrier!("sfence");
        }
        #[cfg(target_arch = "aarch64")]
        barrier!("dsb st");
        #[cfg(any(target_arch = "riscv32", target_arch = "riscv64"))]
        barrier!("fence ow, ow");
        #[cfg(target_arch = "arm")]
        barrier!("dsb");
        core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    }
}
