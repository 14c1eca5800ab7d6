//! A mapped BAR and the doorbell registers in it.

use core::ptr::NonNull;

use bareverbs::format_as;
use bareverbs::platform::{Doorbell, OutOfRange, Registers, WordRegister};

/// A BAR of a device, mapped into the address space. Accesses are volatile and checked against its length and their alignment.
pub struct MappedBar {
    base: NonNull<u8>,
    len: usize,
    /// Where doorbells are rung.
    doorbells: NonNull<u8>,
}

format_as!([] MappedBar, "MappedBar({:#x}, {} bytes)", |this| this.base.addr().get(), this.len);

impl MappedBar {
    /// Returns the registers at `base`.
    ///
    /// # Safety
    /// `base` is aligned to 4096. The `len` bytes there are a BAR of one device, mapped uncached or write-combining for as long
    /// as the value and the doorbells made from it live. Nothing else in the program accesses registers that the owner of the
    /// value uses. Registers direct the device's DMA: without an IOMMU, only the device's driver gets the value.
    pub const unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len, doorbells: base }
    }

    /// Rings doorbells through another mapping of the same BAR, a write-combining one: for BlueFlame, while all other registers stay
    /// uncached.
    ///
    /// # Safety
    /// At `combining`, aligned to 4096, the same BAR is mapped a second time, write-combining, for as long as the value and the doorbells
    /// made from it live.
    #[must_use]
    pub const unsafe fn with_combining_doorbells(self, combining: NonNull<u8>) -> Self {
        Self { doorbells: combining, ..self }
    }

    /// Returns the first of `count` registers of type `T`, if all of them lie in the BAR and the first is aligned.
    #[inline]
    fn registers<T>(&self, base: NonNull<u8>, offset: usize, count: usize) -> Result<NonNull<T>, OutOfRange> {
        let len = count.saturating_mul(size_of::<T>());
        if !offset.is_multiple_of(size_of::<T>()) || len > self.len || offset > self.len - len {
            return Err(OutOfRange { offset, len, size: self.len });
        }
        // SAFETY: the bytes from `offset` to `offset + len` lie in the BAR (checked), of which each base is a mapping.
        Ok(unsafe { base.add(offset) }.cast())
    }
}

// SAFETY: the registers belong to the value alone (promised to `new`).
unsafe impl Send for MappedBar {}

impl Registers for MappedBar {
    type Doorbell = MappedDoorbell;
    type Word = MappedWord;

    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn read32(&self, offset: usize) -> Result<u32, OutOfRange> {
        let register = self.registers::<u32>(self.base, offset, 1)?;
        // SAFETY: an aligned register of the BAR, which stays mapped (promised to `new`).
        Ok(unsafe { register.read_volatile() })
    }

    #[inline]
    fn write32(&mut self, offset: usize, value: u32) -> Result<(), OutOfRange> {
        let register = self.registers::<u32>(self.base, offset, 1)?;
        // SAFETY: an aligned register of the BAR, which stays mapped. It may direct the device's DMA: an IOMMU confines that,
        // or the caller is the device's driver (promised to `new`).
        unsafe { register.write_volatile(value) };
        Ok(())
    }

    fn doorbell(&self, offset: usize, count: usize) -> Result<MappedDoorbell, OutOfRange> {
        if !count.is_power_of_two() {
            return Err(OutOfRange { offset, len: count.saturating_mul(8), size: self.len });
        }
        Ok(MappedDoorbell { first: self.registers(self.doorbells, offset, count)?, mask: count.wrapping_sub(1) })
    }

    fn word(&self, offset: usize) -> Result<MappedWord, OutOfRange> {
        Ok(MappedWord { register: self.registers(self.base, offset, 1)? })
    }
}

/// Doorbell registers of eight bytes in a [`MappedBar`].
///
/// A CPU of 64 bits writes a doorbell in one access. A CPU of 32 bits writes it in two accesses of four bytes, the lower
/// address first. Two such cores that share a doorbell page can interleave the halves, and a doorbell is lost.
pub struct MappedDoorbell {
    first: NonNull<u64>,
    /// Number of registers, a power of two, minus one.
    mask: usize,
}

format_as!([] MappedDoorbell, "MappedDoorbell({:#x})", |this| this.first.addr().get());

// SAFETY: writing a register from any thread touches no memory of the program; the BAR stays mapped (promised to
// `MappedBar::new`).
unsafe impl Send for MappedDoorbell {}

impl Doorbell for MappedDoorbell {
    #[inline(always)]
    fn write(&self, index: usize, value: u64) {
        // SAFETY: `doorbell` checked as many registers as the mask lets the index name.
        let register = unsafe { self.first.add(index & self.mask) };
        #[cfg(target_pointer_width = "64")]
        // SAFETY: the BAR stays mapped as long as anything made from it lives (promised to `MappedBar::new`).
        unsafe {
            register.write_volatile(value);
        }
        #[cfg(not(target_pointer_width = "64"))]
        {
            let [a, b, c, d, e, f, g, h] = value.to_ne_bytes();
            let halves = register.cast::<u32>();
            // SAFETY: as above.
            unsafe { halves.write_volatile(u32::from_ne_bytes([a, b, c, d])) };
            // SAFETY: as above; the register has eight bytes.
            unsafe { halves.add(1).write_volatile(u32::from_ne_bytes([e, f, g, h])) };
        }
    }
}

/// A register of four bytes in a [`MappedBar`].
pub struct MappedWord {
    register: NonNull<u32>,
}

format_as!([] MappedWord, "MappedWord({:#x})", |this| this.register.addr().get());

// SAFETY: as for `MappedDoorbell`.
unsafe impl Send for MappedWord {}

impl WordRegister for MappedWord {
    #[inline]
    fn write(&self, value: u32) {
        // SAFETY: `word` checked the register, and the BAR stays mapped as long as anything made from it lives.
        unsafe { self.register.write_volatile(value) };
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;
    use crate::test_memory::{aligned, bytes};

    const LEN: usize = 2 * 4096;

    fn bar(len: usize) -> (MappedBar, NonNull<u8>) {
        let base = aligned::<LEN>(0);
        // SAFETY: leaked memory of that length and alignment, of this test alone.
        (unsafe { MappedBar::new(base, len) }, base)
    }

    #[test]
    fn an_access_reaches_its_register_and_no_other_byte() {
        for offset in [0, 4, 0x18, 0x1010, LEN - 4] {
            let (mut bar, base) = bar(LEN);
            let mut expected = vec![0; LEN];
            expected[offset..offset + 4].copy_from_slice(&0x1122_3344_u32.to_ne_bytes());
            bar.write32(offset, 0x1122_3344).unwrap();
            assert!(bytes(base, LEN) == expected, "{offset:#x}");
            assert_eq!(bar.read32(offset), Ok(0x1122_3344), "{offset:#x}");
            bar.write32(offset, 0).unwrap();
            bar.word(offset).unwrap().write(0x1122_3344);
            assert!(bytes(base, LEN) == expected, "{offset:#x}");
        }
        for (offset, count, index, at) in [(0x20, 1, 0, 0x20), (0x20, 1, 1, 0x20), (0x800, 4, 3, 0x818), (0x800, 4, 5, 0x808)] {
            let (bar, base) = bar(LEN);
            bar.doorbell(offset, count).unwrap().write(index, 0x1122_3344_5566_7788);
            let mut expected = vec![0; LEN];
            expected[at..at + 8].copy_from_slice(&0x1122_3344_5566_7788_u64.to_ne_bytes());
            assert!(bytes(base, LEN) == expected, "{offset:#x}");
        }
    }

    #[test]
    fn doorbells_are_rung_through_the_second_mapping_alone() {
        let ((bar, base), combining) = (bar(LEN), aligned::<LEN>(0));
        // SAFETY: leaked memory of that length and alignment, of this test alone.
        let mut bar = unsafe { bar.with_combining_doorbells(combining) };
        bar.doorbell(0x800, 8).unwrap().write(3, 0x1122_3344_5566_7788);
        bar.write32(0x18, 1).unwrap();
        bar.word(0x40).unwrap().write(2);
        assert_eq!(bar.read32(0x18), Ok(1));
        let written = |at: usize, bytes: &[u8]| {
            let mut expected = vec![0; LEN];
            expected[at..at + bytes.len()].copy_from_slice(bytes);
            expected
        };
        assert!(bytes(combining, LEN) == written(0x818, &0x1122_3344_5566_7788_u64.to_ne_bytes()));
        let mut registers = written(0x18, &1u32.to_ne_bytes());
        registers[0x40..0x44].copy_from_slice(&2u32.to_ne_bytes());
        assert!(bytes(base, LEN) == registers);
    }

    #[test]
    fn an_access_outside_or_unaligned_is_refused_and_touches_nothing() {
        let (mut bar, base) = bar(0x1010);
        for offset in [1, 2, 3, 0x100e, 0x1010, 0x1011, LEN, usize::MAX - 3, usize::MAX] {
            assert_eq!(bar.read32(offset), Err(OutOfRange { offset, len: 4, size: 0x1010 }), "{offset:#x}");
            assert_eq!(bar.write32(offset, u32::MAX), Err(OutOfRange { offset, len: 4, size: 0x1010 }), "{offset:#x}");
            assert_eq!(bar.word(offset).err(), Some(OutOfRange { offset, len: 4, size: 0x1010 }), "{offset:#x}");
        }
        for (offset, count) in [(4, 1), (0x100c, 1), (0x1010, 1), (0x1008, 2), (0, 0x400), (usize::MAX - 7, 1), (0, 3), (0, 0)]
        {
            let refused = Some(OutOfRange { offset, len: 8 * count, size: 0x1010 });
            assert_eq!(bar.doorbell(offset, count).err(), refused, "{count} at {offset:#x}");
        }
        assert!(bar.doorbell(0, 1 << (usize::BITS - 1)).is_err());
        assert!(bytes(base, LEN).iter().all(|byte| *byte == 0));
    }
}
