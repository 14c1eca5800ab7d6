//! The UAR page: doorbells and BlueFlame.

use core::cell::Cell;

use bareverbs::{Doorbell, Platform, Registers};
use bareverbs_mlx5_spec::{CmdOpcode, UAR_BLUEFLAME, UAR_PAGE, View, cmd};

use crate::command::object::ObjectMemory;
use crate::driver::Driver;
use crate::error::{Error, Fault};
use crate::log::log_event;

/// First page of BAR0 that may be a UAR page: before it lie the initialization segment, the MSI-X table and its pending bits.
pub(crate) const FIRST_UAR_PAGE: usize = 4;

/// The page in use.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Uar {
    page: Option<u32>,
    /// Bytes of half a BlueFlame register, 0 without BlueFlame.
    half: usize,
    /// Whether the page is mapped write-combining, so that what is written to it has to be flushed.
    combining: bool,
}

impl Uar {
    /// Page `page` with BlueFlame halves of `half` bytes, 0 for none, `combining` if it is mapped write-combining.
    pub(crate) const fn at(page: u32, half: usize, combining: bool) -> Self {
        Self { page: Some(page), half, combining }
    }

    /// Page number.
    pub(crate) const fn page(&self) -> Option<u32> {
        self.page
    }

    /// Byte offset of the page in the BAR.
    pub(crate) fn base(&self) -> Result<usize, Fault> {
        Ok(self.page.ok_or(Error::NotInitialized.fault())? as usize * UAR_PAGE)
    }

    /// Whether what is written to the page has to be flushed.
    pub(crate) const fn is_combining(&self) -> bool {
        self.combining
    }

    /// The doorbell of one more send queue.
    pub(crate) fn send_doorbell<R: Registers>(&self, registers: &R) -> Result<SendDoorbell<R::Doorbell>, Fault> {
        let words = self.half / 8;
        let register = registers.doorbell(self.base()? + UAR_BLUEFLAME, (2 * words).max(1))?;
        Ok(SendDoorbell { register, words, at: Cell::new(0), combining: self.combining })
    }
}

/// The register that tells the device of send requests, in the hands of one send queue.
///
/// Send queues of several cores may share a page only where eight bytes are written in one access, and without BlueFlame: a copy
/// into the register is not to be cut in two by another one.
#[derive(Debug)]
pub(crate) struct SendDoorbell<D> {
    register: D,
    /// Words of half a BlueFlame register, 0 without BlueFlame.
    words: usize,
    /// The half to write next: its first word.
    at: Cell<usize>,
    combining: bool,
}

impl<D: Doorbell> SendDoorbell<D> {
    /// Words that a BlueFlame copy may have, 0 without BlueFlame.
    pub(crate) const fn words(&self) -> usize {
        self.words
    }

    /// Whether what is written has to be flushed.
    #[inline(always)]
    pub(crate) const fn is_combining(&self) -> bool {
        self.combining
    }

    /// Rings where no half is to be chosen: `control` is the first word of the last request as it lies in memory.
    #[inline(always)]
    pub(crate) fn ring(&self, control: u64) {
        self.register.write(0, control);
    }

    /// Writes word `index` of a request into the half that is next.
    pub(crate) fn copy(&self, index: usize, value: u64) {
        self.register.write(self.at.get().wrapping_add(index), value);
    }

    /// Goes on with the other half.
    pub(crate) fn switch_half(&self) {
        if self.words != 0 {
            self.at.set(self.at.get() ^ self.words);
        }
    }
}

/// Whether `page` may be a UAR page of a BAR of `bar` bytes. The number is the device's: its offset may not fit in a `usize`.
fn page_lies_in(page: u32, bar: usize) -> bool {
    let end = (u64::from(page) + 1) * UAR_PAGE as u64;
    page as usize >= FIRST_UAR_PAGE && end <= bar as u64
}

impl<P: Platform> Driver<P> {
    /// Gets a UAR page from the device.
    pub(crate) fn alloc_uar(&mut self) -> Result<(), Fault> {
        let page = self.create::<cmd::AllocUar>(View::zeros(), ObjectMemory::NONE)?;
        if !page_lies_in(page, self.machine.registers.len()) {
            log_event!(error, "the device names UAR page {}, outside its BAR", page);
            return Err(Error::BadAnswer { opcode: CmdOpcode::AllocUar.code() as u16, value: page }.fault());
        }
        let half = if self.config.blue_flame { self.caps.blue_flame_half() } else { 0 };
        self.uar = Uar::at(page, half, self.config.blue_flame);
        log_event!(debug, "UAR page {}, BlueFlame halves of {} bytes", page, half);
        Ok(())
    }

    /// Gives the UAR page back.
    pub(crate) fn dealloc_uar(&mut self) -> Result<(), Fault> {
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
