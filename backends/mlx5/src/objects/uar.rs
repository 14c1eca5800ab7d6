//! Allocation of the UAR page.

use bareverbs::platform::{Platform, Registers};
use bareverbs_mlx5_spec::{CmdHcaCap, CmdOpcode, UAR_PAGE, View, cmd};

use crate::dma::arena::ObjectMemory;
use crate::dma::uar::{FIRST_UAR_PAGE, SendDoorbell};
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
        let page = self.commands.create::<cmd::AllocUar>(View::zeros(), ObjectMemory::default())?;
        if !page_lies_in(page, self.commands.machine.registers.len()) {
            log_event!(error, "the device returned UAR page {}, outside its BAR", page);
            return Err(Error::BadAnswer { opcode: CmdOpcode::AllocUar.code() as u16, value: page });
        }
        self.uar = page;
        log_event!(debug, "UAR page {}, BlueFlame halves of {} bytes", page, self.blue_flame_half());
        Ok(())
    }

    /// Opens the doorbell register of a send queue.
    pub(crate) fn send_doorbell(&self) -> Result<SendDoorbell<<P::Registers as Registers>::Doorbell>, Error> {
        SendDoorbell::open(&self.commands.machine.registers, self.uar, self.blue_flame_half(), self.config.blue_flame)
    }

    /// Returns the bytes of half a BlueFlame register, 0 if it is not asked for, or the device has none of a possible size.
    fn blue_flame_half(&self) -> usize {
        match self.capability(CmdHcaCap::LOG_BF_REG_SIZE) {
            log @ 7..=9 if self.config.blue_flame && self.capability(CmdHcaCap::BF) != 0 => 1 << (log - 1),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::mock::{MockPlatform, offer, started};

    /// Half a register of 128, 256 or 512 bytes; a device with one of another size has none. By `cmd_hca_cap` of `mlx5_ifc.h`: bf is bit 31
    /// of the dword at 76, log_bf_reg_size the bits 20 to 16.
    #[test]
    fn half_a_blue_flame_register_is_what_a_request_is_copied_to() {
        let (mut driver, _shared) = started();
        let driver: &mut Driver<MockPlatform> = &mut driver;
        offer(&mut driver.general, 76, 1 << 31 | 7 << 16);
        assert_eq!(driver.blue_flame_half(), 0, "not asked for");
        driver.config.blue_flame = true;
        for log in 0..32 {
            offer(&mut driver.general, 76, log << 16);
            assert_eq!(driver.blue_flame_half(), 0, "none");
            offer(&mut driver.general, 76, 1 << 31 | log << 16);
            let half = match log {
                7 => 64,
                8 => 128,
                9 => 256,
                _ => 0,
            };
            assert_eq!(driver.blue_flame_half(), half, "{log}");
        }
    }

    #[test]
    fn a_uar_page_lies_in_the_bar() {
        let bar = 8 * 4096;
        assert!(page_lies_in(4, bar) && page_lies_in(7, bar));
        assert!(!page_lies_in(3, bar) && !page_lies_in(8, bar));
        // In 32 bits 2^20 + 4 pages are 4 pages, and the end of the last page is 0.
        assert!(!page_lies_in(0x10_0004, bar) && !page_lies_in(0xf_ffff, bar) && !page_lies_in(u32::MAX, bar));
    }
}
