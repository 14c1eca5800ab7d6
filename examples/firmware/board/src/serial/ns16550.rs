//! A 16550 in memory, one byte a register.

use volatile_register::RW;

use crate::registers::registers;

/// Its registers, as far as they are used here.
#[repr(C)]
struct Registers {
    data: RW<u8>,
    interrupts: RW<u8>,
    fifo: RW<u8>,
    line_control: RW<u8>,
    modem_control: RW<u8>,
    line_status: RW<u8>,
}

/// A 16550 at some address.
pub(crate) struct Ns16550(usize);

impl Ns16550 {
    /// Returns the one at this address.
    ///
    /// # Safety
    /// A 16550 is there, mapped as device memory.
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

    /// No interrupts, 8 bits, FIFO on.
    pub(crate) fn start(&self) {
        let uart = self.registers();
        // SAFETY: nothing but the serial line changes.
        unsafe {
            uart.interrupts.write(0);
            uart.line_control.write(3);
            uart.fifo.write(7);
        }
    }

    pub(crate) fn put(&mut self, byte: u8) {
        let uart = self.registers();
        // Room in the transmitter; a line that never has any does not hold the program up.
        let _ = (0..100_000).find(|_| uart.line_status.read() & 0x20 != 0);
        // SAFETY: sends a byte.
        unsafe { uart.data.write(byte) };
    }

    pub(crate) fn get(&mut self) -> Option<u8> {
        let uart = self.registers();
        (uart.line_status.read() & 1 != 0).then(|| uart.data.read())
    }
}
