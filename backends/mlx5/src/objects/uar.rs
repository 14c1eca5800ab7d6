//! Allocation of the UAR page.

use bareverbs::{Platform, Registers};
use bareverbs_mlx5_spec::{CmdOpcode, UAR_PAGE, View, cmd};

use crate::dma::object_memory::ObjectMemory;
use crate::dma::uar::{FIRST_UAR_PAGE, Uar};
use crate::driver::Driver;
use crate::error::Error;
use crate::log::log_event;

/// Returns whether `page` can be a UAR page of a BAR of `bar` bytes. The number comes from the device, so that its offset may
/// not fit in a `usize`.
fn page_lies_in(page: u32, bar: usize) -> bool {
    let end = (u64::from(page) + 1) * UAR_PAGE as u64;
    page as usize >= FIRST_UAR_PAGE && end <= bar as u64
}

impl<P: Platform> Driver<P> {
    pub(crate) fn alloc_uar(&mut self) -> Result<(), Error> {
        let page = self.commands.create::<cmd::AllocUar>(View::zeros(), ObjectMemory::NONE)?;
        if !page_lies_in(page, self.commands.machine.registers.len()) {
            log_event!(error, "the device returned UAR page {}, outside its BAR", page);
            return Err(Error::BadAnswer { opcode: CmdOpcode::AllocUar.code() as u16, value: page });
        }
        let half = if self.config.blue_flame { self.caps.blue_flame_half() } else { 0 };
        self.uar = Uar::at(page, half, self.config.blue_flame);
        log_event!(debug, "UAR page {}, BlueFlame halves of {} bytes", page, half);
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
