//! BAR0 of a card, mapped into this process.
#![expect(unsafe_code, reason = "registers are raw memory that the kernel maps")]

use std::any::Any;
use std::fs::File;
use std::ptr::NonNull;
use std::sync::Arc;

use bareverbs::platform::{Doorbell, OutOfRange, Registers, WordRegister};
use bareverbs_mmio::{MappedBar, MappedDoorbell, MappedWord};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::error::Error;
use crate::open_function::OpenFunction;
use crate::opener::Opener;

/// The mapping, which lives until the BAR, its doorbells and its words are dropped.
#[derive(Debug)]
struct Mapped {
    base: NonNull<u8>,
    len: usize,
    opener: Opener,
    /// The function of the registers, which cannot be opened again while they are mapped.
    _function: Arc<dyn Any + Send + Sync>,
}

// SAFETY: a range of addresses that belongs to the value, which gives no access to the memory.
unsafe impl Send for Mapped {}
// SAFETY: as above, and nothing changes through a shared reference.
unsafe impl Sync for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // A forked child has no such mapping, and may have another one there.
        if !self.opener.is_this() {
            return;
        }
        // SAFETY: the mapping belongs to the value, and every pointer into it keeps the value alive. If the kernel refuses, the
        // registers stay mapped and unused.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// The registers of a card. VFIO maps them uncached; they stay mapped until the value and all its doorbells are dropped.
///
/// With the value goes the driver. So its drop disables the card's bus mastering: after a teardown that failed, the card would still
/// access memory that is about to be unmapped. A [`bareverbs::platform::Machine`] drops its registers before its memory.
pub struct Bar {
    registers: MappedBar,
    mapped: Arc<Mapped>,
    end_dma: Box<EndDma>,
}

/// Disables the bus mastering of a card.
type EndDma = dyn Fn() + Send + Sync;

impl Bar {
    /// Maps the `len` bytes at `offset` of the function's descriptor.
    ///
    /// # Safety
    /// They are BAR0 of the function, and are mapped once.
    pub(crate) unsafe fn map(function: Arc<OpenFunction>, offset: u64, len: usize) -> Result<Self, Error> {
        let keep: Arc<dyn Any + Send + Sync> = function.clone();
        let dma = function.clone();
        // SAFETY: as the caller promises.
        unsafe { Self::of(function.descriptor(), keep, offset, len, Box::new(move || dma.end_dma())) }
    }

    /// # Safety
    /// The `len` bytes at `offset` of the file are a BAR0, and are mapped once.
    unsafe fn of(
        file: &File,
        function: Arc<dyn Any + Send + Sync>,
        offset: u64,
        len: usize,
        end_dma: Box<EndDma>,
    ) -> Result<Self, Error> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory that exists.
        let base = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, offset) };
        let base = base.map_err(|error| Error::io("BAR0 cannot be mapped", error.into()))?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(Error::BarNotMappable)?;
        let mapped = Arc::new(Mapped { base, len, opener: Opener::this(), _function: function });
        // A forked child must not ring the doorbells of its parent's queues.
        // SAFETY: the advice changes no content.
        let advised = unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxDontFork) };
        advised.map_err(|error| Error::io("BAR0 cannot be kept from forked children", error.into()))?;
        // SAFETY: aligned to a page, mapped uncached by vfio-pci until the drop of `Mapped`, which the value and each of its
        // doorbells hold, and mapped once, as the caller promises.
        let registers = unsafe { MappedBar::new(base, len) };
        Ok(Self { registers, mapped, end_dma })
    }
}

impl std::fmt::Debug for Bar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bar").field("registers", &self.registers).finish_non_exhaustive()
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        (self.end_dma)();
    }
}

impl Registers for Bar {
    type Doorbell = BarDoorbell;
    type Word = BarWord;

    fn len(&self) -> usize {
        self.registers.len()
    }

    #[inline]
    fn read32(&self, offset: usize) -> Result<u32, OutOfRange> {
        self.registers.read32(offset)
    }

    #[inline]
    fn write32(&mut self, offset: usize, value: u32) -> Result<(), OutOfRange> {
        self.registers.write32(offset, value)
    }

    fn doorbell(&self, offset: usize, count: usize) -> Result<BarDoorbell, OutOfRange> {
        Ok(BarDoorbell { doorbell: self.registers.doorbell(offset, count)?, _mapped: self.mapped.clone() })
    }

    fn word(&self, offset: usize) -> Result<BarWord, OutOfRange> {
        Ok(BarWord { word: self.registers.word(offset)?, _mapped: self.mapped.clone() })
    }
}

/// Doorbell registers of a [`Bar`], which stays mapped until this value is dropped.
#[derive(Debug)]
pub struct BarDoorbell {
    doorbell: MappedDoorbell,
    _mapped: Arc<Mapped>,
}

impl Doorbell for BarDoorbell {
    #[inline(always)]
    fn write(&self, index: usize, value: u64) {
        self.doorbell.write(index, value);
    }
}

/// A 32-bit register of a [`Bar`], which stays mapped until this value is dropped.
#[derive(Debug)]
pub struct BarWord {
    word: MappedWord,
    _mapped: Arc<Mapped>,
}

impl WordRegister for BarWord {
    #[inline]
    fn write(&self, value: u32) {
        self.word.write(value);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::FileExt as _;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    const LEN: usize = 16 * 4096;

    /// Returns registers in a file of zeroes, with the file.
    fn registers_in_file(function: Arc<dyn Any + Send + Sync>, end_dma: Box<EndDma>) -> (File, Bar) {
        let file = File::from(memfd_create("bar", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(LEN as u64).unwrap();
        // SAFETY: a file of zeroes, mapped once.
        let bar = unsafe { Bar::of(&file, function, 0, LEN, end_dma) }.unwrap();
        (file, bar)
    }

    /// Returns registers of no card, whose drop calls `end_dma`.
    pub(crate) fn registers(end_dma: impl Fn() + Send + Sync + 'static) -> Bar {
        registers_in_file(Arc::new(()), Box::new(end_dma)).1
    }

    /// A UAR page; doorbells lie at 0x800, and the register that arms event queues at 0x40 (PRM "UAR Page Format").
    const UAR: usize = 8 * 4096;

    /// Writes with `write` to a register that outlives its BAR. Returns the eight bytes at `offset`, and whether the register kept the
    /// function open until it was dropped.
    fn written<R>(offset: usize, make: impl FnOnce(&Bar) -> R, write: impl FnOnce(&R)) -> ([u8; 8], bool) {
        let function = Arc::new(());
        let (file, bar) = registers_in_file(function.clone(), Box::new(|| ()));
        let register = make(&bar);
        drop(bar);
        assert_eq!(Arc::strong_count(&function), 2);
        write(&register);
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, offset as u64).unwrap();
        drop(register);
        (bytes, Arc::strong_count(&function) == 1)
    }

    #[test]
    fn registers_of_queues_keep_the_bar_mapped_and_its_function_open() {
        let doorbell = |bar: &Bar| bar.doorbell(UAR + 0x800, 2).unwrap();
        let rung = written(UAR + 0x808, doorbell, |doorbell| doorbell.write(1, u64::from_ne_bytes(*b"doorbell")));
        assert_eq!(rung, (*b"doorbell", true));
        let word = |bar: &Bar| bar.word(UAR + 0x40).unwrap();
        let armed = written(UAR + 0x40, word, |word| word.write(u32::from_ne_bytes(*b"word")));
        assert_eq!(armed, (*b"word\0\0\0\0", true));
    }

    #[test]
    fn registers_keep_their_contract() {
        let (file, mut bar) = registers_in_file(Arc::new(()), Box::new(|| ()));
        assert_eq!(bareverbs_conformance::check_registers(&mut bar), Ok(()));
        assert_eq!(bar.len(), LEN);
        bar.write32(0x14, 0x1234_5678).unwrap();
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, 0x14).unwrap();
        assert_eq!((u32::from_ne_bytes(bytes), bar.read32(0x14)), (0x1234_5678, Ok(0x1234_5678)));
    }

    #[test]
    fn the_copy_of_a_forked_child_unmaps_no_registers() {
        let (file, bar) = registers_in_file(Arc::new(()), Box::new(|| ()));
        assert!(format!("{bar:?}").starts_with("Bar { registers: "), "{bar:?}");
        let (base, len, word) = (bar.mapped.base, bar.mapped.len, bar.word(UAR + 0x40).unwrap());
        let child = Mapped { base, len, opener: crate::opener::tests::PARENT, _function: Arc::new(()) };
        drop(child);
        word.write(u32::from_ne_bytes(*b"word"));
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, UAR as u64 + 0x40).unwrap();
        assert_eq!(&bytes, b"word");
    }
}
