//! A 16550 at the ports of a PC.

use crate::arch::{inb, outb};

/// A 16550 from some port on.
pub(crate) struct ComPort(u16);

impl ComPort {
    /// Returns the one from this port on.
    pub(crate) const fn at(port: u16) -> Self {
        Self(port)
    }

    /// 115,200 baud, 8 bits, no parity, one stop bit, FIFO on.
    pub(crate) fn start(&self) {
        for (register, value) in [(1, 0), (3, 0x80), (0, 1), (1, 0), (3, 3), (2, 7), (4, 3)] {
            outb(self.0 + register, value);
        }
    }

    /// Stays where it is: ports have no address in memory.
    pub(crate) fn move_to(&mut self, _: usize) {}

    pub(crate) fn put(&mut self, byte: u8) {
        // Room in the transmitter; a line that never has any does not hold the program up.
        let _ = (0..100_000).find(|_| inb(self.0 + 5) & 0x20 != 0);
        outb(self.0, byte);
    }

    pub(crate) fn get(&mut self) -> Option<u8> {
        (inb(self.0 + 5) & 1 != 0).then(|| inb(self.0))
    }
}
