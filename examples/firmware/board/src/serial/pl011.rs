//! Arm's PL011.

use volatile_register::{RO, RW};

use crate::registers::registers;

/// Its registers, as far as they are used here.
#[repr(C)]
struct Registers {
    data: RW<u32>,
    reserved0: [u32; 5],
    flags: RO<u32>,
    reserved1: [u32; 4],
    line_control: RW<u32>,
    control: RW<u32>,
}

const _: () = assert!(core::mem::offset_of!(Registers, control) == 0x30);

/// A PL011 at some address.
pub(crate) struct Pl011(usize);

impl Pl011 {
    /// Returns the one at this address.
    ///
    /// # Safety
    /// A PL011 is there, mapped as device memory.
    pub(crate) const unsafe fn at(address: usize) -> Self {
        Self(address)
    }

    /// Goes on at another address, where the machine says that one is.
    pub(crate) fn move_to(&mut self, address: usize) {
        self.0 = address;
    }

    fn registers(&self) -> &'static Registers {
        // SAFETY: promised to `at`.
        unsafe { registers(self.0) }
    }

    /// 8 bits, FIFO on; then on, both ways.
    pub(crate) fn start(&self) {
        let uart = self.registers();
        // SAFETY: nothing but the serial line changes.
        unsafe {
            uart.line_control.write(0x70);
            uart.control.write(0x301);
        }
    }

    pub(crate) fn put(&mut self, byte: u8) {
        let uart = self.registers();
        // Room in the transmitter; a line that never has any does not hold the program up.
        let _ = (0..100_000).find(|_| uart.flags.read() & 0x20 == 0);
        // SAFETY: sends a byte.
        unsafe { uart.data.write(u32::from(byte)) };
    }

    pub(crate) fn get(&mut self) -> Option<u8> {
        let uart = self.registers();
        (uart.flags.read() & 0x10 == 0).then(|| uart.data.read() as u8)
    }
}
