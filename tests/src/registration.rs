//! Registration of simulated memory, whose bytes are the application's too.

use bareverbs::backend::Provider;
use bareverbs::error::RegMrError;
use bareverbs::platform::{AddressMap, Extent};
use bareverbs::{Access, MrHandle, PdHandle, Verbs};
use bareverbs_sim::in_process::SimBuffer;

/// Registers bytes for as long as the region lives: `dereg_mr_raw` ends it.
///
/// # Errors
/// As of `reg_mr`.
pub fn register<P: Provider>(
    verbs: &mut Verbs<'_, P>,
    pd: PdHandle,
    bytes: SimBuffer,
    access: Access,
) -> Result<MrHandle, RegMrError<P::Error>> {
    let registered = verbs.reg_mr(pd, bytes, access);
    registered.map(|region| region.handle()).map_err(|refused| refused.error)
}

/// Registers a range whose bytes lie where `map` says, which need be no memory at all.
///
/// # Errors
/// As of `reg_mr_raw`.
pub fn register_mapped<P: Provider>(
    verbs: &mut Verbs<'_, P>,
    pd: PdHandle,
    addr: u64,
    length: u64,
    access: Access,
    map: &dyn AddressMap,
) -> Result<MrHandle, RegMrError<P::Error>> {
    // SAFETY: a simulated device reaches nothing but simulated memory, whatever addresses it is given, and every access there
    // is a checked copy.
    #[expect(unsafe_code, reason = "addresses of simulated memory are numbers")]
    unsafe {
        verbs.reg_mr_raw(pd, addr, length, access, map)
    }
}

/// Every page of a region is the same page: a long list for the device, and little memory.
#[derive(Clone, Copy, Debug)]
pub struct SamePage {
    /// Device address of the page.
    pub device_addr: u64,
}

impl AddressMap for SamePage {
    fn extent(&self, addr: u64) -> Option<Extent> {
        Some(Extent { device_addr: self.device_addr | addr & 0xfff, len: 0x1000 - (addr & 0xfff) })
    }
}
