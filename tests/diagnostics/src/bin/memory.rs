//! Memory, registers and rings whose parts are none.
//~ error: `u32` is not a register of eight bytes
//~ error: `u32` is not a register of four bytes
//~ error: `Vec<u64>` is not a ring in memory that CPU and device share
//~ error: `&'a [u64]` is not a view of a ring
use bareverbs::platform::{DmaMemory, DmaRing, OutOfRange, Registers, RingLayout, RingToken};

struct Bar;

impl Registers for Bar {
    type Doorbell = u32;
    type Word = u32;

    fn len(&self) -> usize {
        0
    }
    fn read32(&self, offset: usize) -> Result<u32, OutOfRange> {
        Err(OutOfRange { offset, len: 4, size: 0 })
    }
    fn write32(&mut self, offset: usize, _: u32) -> Result<(), OutOfRange> {
        Err(OutOfRange { offset, len: 4, size: 0 })
    }
    fn doorbell(&self, _: usize, _: usize) -> Result<u32, OutOfRange> {
        Ok(0)
    }
    fn word(&self, _: usize) -> Result<u32, OutOfRange> {
        Ok(0)
    }
}

struct Memory;

unsafe impl DmaMemory for Memory {
    type Ring = Vec<u64>;

    fn len(&self) -> usize {
        0
    }
    fn device_addr(&self) -> u64 {
        0
    }
    fn read(&self, _: usize, _: &mut [u8]) -> Result<(), OutOfRange> {
        Ok(())
    }
    fn write(&mut self, _: usize, _: &[u8]) -> Result<(), OutOfRange> {
        Ok(())
    }
    fn read_u8(&self, _: usize) -> Result<u8, OutOfRange> {
        Ok(0)
    }
    fn store_u32(&mut self, _: usize, _: u32) -> Result<(), OutOfRange> {
        Ok(())
    }
    fn load<const N: usize>(&self, _: usize) -> Result<[u64; N], OutOfRange> {
        Ok([0; N])
    }
    fn store<const N: usize>(&mut self, _: usize, _: &[u64; N]) -> Result<(), OutOfRange> {
        Ok(())
    }
    fn ring(&self, _: RingToken, _: &RingLayout) -> Result<Vec<u64>, OutOfRange> {
        Ok(Vec::new())
    }
}

struct Ring(Vec<u64>);

impl DmaRing for Ring {
    type View<'a> = &'a [u64];

    fn view(&self) -> &[u64] {
        &self.0
    }
}

fn main() {}
