//! The driver's own functions outside of the verbs.

use bareverbs::platform::Platform;

use crate::driver::Driver;
use crate::events::health::Health;
use crate::log::{format_as, logged};
use crate::{Error, MkeyState};

/// The driver's own functions on a device whose verbs are in use ([`bareverbs::Verbs::direct`]). It does not lend the driver
/// itself, which could be exchanged for that of another device.
pub struct Mlx5Direct<'a, P: Platform> {
    pub(crate) driver: &'a mut Driver<P>,
}

format_as!([P: Platform] Mlx5Direct<'_, P>, "Mlx5Direct(node {:x})", |this| this.driver.attr.node_guid.0);

impl<P: Platform> Mlx5Direct<'_, P> {
    /// Reads the health of the device now. This replaces no call of [`bareverbs::Verbs::maintain`], which also gives the firmware the pages
    /// that it requests, and tries a command when the counter stands still.
    ///
    /// # Errors
    /// The device was removed or reset.
    pub fn health(&mut self) -> Result<Health, Error> {
        self.driver.health.check(&mut self.driver.commands)
    }

    /// Returns the state of a key by its index, the upper 24 bits of an L_Key or R_Key.
    ///
    /// # Errors
    /// The device has no such key, or the command fails.
    pub fn query_mkey(&mut self, index: u32) -> Result<MkeyState, Error> {
        logged("query_mkey", self.driver.query_mkey(index))
    }
}
