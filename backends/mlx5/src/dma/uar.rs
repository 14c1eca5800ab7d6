//! The UAR page: doorbells and BlueFlame. The order of a doorbell is written down here once.

use bareverbs::{DmaFence, DmaMemory, Platform, Registers};
use bareverbs_mlx5_spec::{AllocUarIn, CmdOpcode, Layout, QpDoorbellRecord, UAR_BLUEFLAME, UAR_CQ_ARM, UAR_PAGE, WQEBB};

use crate::Machine;
use crate::command::late::ObjectMemory;
use crate::driver::Driver;
use crate::error::Error;
use crate::log::log_event;

/// First page of BAR0 that may be a UAR page: before it lie the initialization segment, the MSI-X table and its pending bits.
pub(crate) const FIRST_UAR_PAGE: usize = 4;

/// The page in use.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Uar {
    page: Option<u32>,
    /// Byte offset of the page in the BAR.
    base: usize,
    /// Byte offset in the BAR of the send doorbell to ring next.
    send: usize,
    /// Bytes of half a BlueFlame register, 0 without BlueFlame.
    half: usize,
    /// Whether the page is mapped write-combining, so that what is written to it has to be flushed.
    combining: bool,
}

/// A send request that alone is waiting for its doorbell: its first block and its blocks in the ring, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Short {
    /// Byte offset of the ring.
    pub(crate) ring: usize,
    /// Bytes of the ring less one.
    pub(crate) mask: usize,
    /// Byte offset in the ring.
    pub(crate) at: usize,
    /// Bytes, a multiple of 64.
    pub(crate) len: usize,
}

impl Uar {
    /// Page `page` with BlueFlame halves of `half` bytes, 0 for none, `combining` if it is mapped write-combining.
    pub(crate) const fn at(page: u32, half: usize, combining: bool) -> Self {
        let base = page as usize * UAR_PAGE;
        Self { page: Some(page), base, send: base + UAR_BLUEFLAME, half, combining }
    }

    /// Page number.
    pub(crate) const fn page(&self) -> Option<u32> {
        self.page
    }

    /// Byte offset of the page in the BAR.
    pub(crate) const fn base(&self) -> usize {
        self.base
    }

    /// Bytes that one BlueFlame write takes, 0 without BlueFlame.
    pub(crate) const fn blue_flame(&self) -> usize {
        self.half
    }

    /// Tells the device of send requests: `counter` is the index after the last one, `control` the first eight bytes of
    /// the last one as they lie in memory.
    ///
    /// 1 WQE stores (done before), 2 release, 3 doorbell record, 4 release, 5 UAR write or BlueFlame copy; to a
    /// write-combining page 6 flush, so that it leaves the CPU now and before any later doorbell.
    #[inline(always)]
    pub(crate) fn ring_send<P: Platform>(
        &mut self,
        machine: &mut Machine<P>,
        record: usize,
        counter: u32,
        control: u64,
        short: Option<Short>,
    ) -> Result<(), Error> {
        machine.fence.release();
        machine.memory.store_u32(record + QpDoorbellRecord::SEND_COUNTER.dword(), (counter & 0xffff).to_be())?;
        machine.fence.release();
        match short {
            Some(short) => self.copy_blocks(machine, short)?,
            None => machine.registers.write64(self.send, control)?,
        }
        if self.combining {
            machine.fence.flush();
            self.send ^= self.half;
        }
        Ok(())
    }

    #[inline(never)]
    fn copy_blocks<P: Platform>(&self, machine: &mut Machine<P>, short: Short) -> Result<(), Error> {
        for offset in (0..short.len).step_by(WQEBB) {
            let words: [u64; 8] = machine.memory.load(short.ring + (short.at.wrapping_add(offset) & short.mask))?;
            for (index, word) in words.iter().enumerate() {
                machine.registers.write64(self.send + offset + 8 * index, *word)?;
            }
        }
        Ok(())
    }

    /// Tells the device of receive requests: they have no register.
    #[inline]
    pub(crate) fn ring_receive<P: Platform>(machine: &mut Machine<P>, record: usize, counter: u32) -> Result<(), Error> {
        machine.fence.release();
        machine.memory.store_u32(record + QpDoorbellRecord::RECEIVE_COUNTER.dword(), (counter & 0xffff).to_be())?;
        Ok(())
    }

    /// Arms a completion queue: the record first, then the register.
    pub(crate) fn arm_cq<P: Platform>(
        &self,
        machine: &mut Machine<P>,
        record: usize,
        high: u32,
        cqn: u32,
    ) -> Result<(), Error> {
        machine.memory.store_u32(record + 4, high.to_be())?;
        machine.fence.release();
        machine.registers.write64(self.base + UAR_CQ_ARM, (u64::from(high) << 32 | u64::from(cqn)).to_be())?;
        if self.combining {
            machine.fence.flush();
        }
        Ok(())
    }
}

/// Whether `page` may be a UAR page of a BAR of `bar` bytes. The number is the device's: its offset may not fit in a `usize`.
fn page_lies_in(page: u32, bar: usize) -> bool {
    let end = (u64::from(page) + 1) * UAR_PAGE as u64;
    page as usize >= FIRST_UAR_PAGE && end <= bar as u64
}

impl<P: Platform> Driver<P> {
    /// Gets a UAR page from the device.
    pub(crate) fn alloc_uar(&mut self) -> Result<(), Error> {
        let input = [0; AllocUarIn::SIZE];
        let page = self.create(CmdOpcode::AllocUar, &input, &mut core::iter::empty(), 0, ObjectMemory::NONE)?;
        if !page_lies_in(page, self.machine.registers.len()) {
            log_event!(error, "the device names UAR page {}, outside its BAR", page);
            return Err(Error::BadAnswer { opcode: CmdOpcode::AllocUar.code() as u16, value: page });
        }
        let half = if self.config.blue_flame { self.caps.blue_flame_half() } else { 0 };
        self.uar = Uar::at(page, half, self.config.blue_flame);
        log_event!(debug, "UAR page {}, BlueFlame halves of {} bytes", page, half);
        Ok(())
    }

    /// Gives the UAR page back.
    pub(crate) fn dealloc_uar(&mut self) -> Result<(), Error> {
        let Some(page) = self.uar.page else { return Ok(()) };
        self.destroy_for_good(CmdOpcode::DeallocUar, page, ObjectMemory::NONE)?;
        self.uar = Uar::default();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uar_page_lies_in_the_bar() {
        let bar = 8 * 4096;
        assert!(page_lies_in(4, bar) && page_lies_in(7, bar));
        assert!(!page_lies_in(3, bar) && !page_lies_in(8, bar));
        // In 32 bits 2^20 + 4 pages are 4 pages, and the end of the last page is 0.
        assert!(!page_lies_in(0x10_0004, bar) && !page_lies_in(0xf_ffff, bar) && !page_lies_in(u32::MAX, bar));
    }
}
