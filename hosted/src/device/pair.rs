//! One or two devices for the two sides of a connection in this process.

use anyhow::Result;

use super::{Device, Host};

/// One of two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first: requester or client.
    A,
    /// The second: responder or server.
    B,
}

/// The devices of two sides: one each, or one for both.
pub struct DevicePair<H: Host> {
    first: Device<H>,
    second: Option<Device<H>>,
}

impl<H: Host> DevicePair<H> {
    /// Side A on `first`, side B on `second`, or on `first` too if there is none.
    pub const fn new(first: Device<H>, second: Option<Device<H>>) -> Self {
        Self { first, second }
    }

    /// The device of a side.
    pub const fn of(&mut self, side: Side) -> &mut Device<H> {
        match (side, &mut self.second) {
            (Side::B, Some(second)) => second,
            _ => &mut self.first,
        }
    }

    /// What messages call a side: its device, and which side if the device carries both.
    pub fn name(&self, side: Side) -> String {
        match (side, &self.second) {
            (Side::B, Some(second)) => second.host.name().into(),
            (Side::A, Some(_)) => self.first.host.name().into(),
            (Side::A, None) => format!("side a of {}", self.first.host.name()),
            (Side::B, None) => format!("side b of {}", self.first.host.name()),
        }
    }

    /// Each device once.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Device<H>> {
        std::iter::once(&mut self.first).chain(&mut self.second)
    }

    /// [`Device::check`] on each device, then a pause as between two looks at a completion queue.
    ///
    /// # Errors
    /// A device is broken or gone.
    pub fn idle(&mut self) -> Result<()> {
        self.iter_mut().try_for_each(Device::check)?;
        self.first.host.relax();
        Ok(())
    }

    /// The devices, each once, in order.
    pub fn into_devices(self) -> impl Iterator<Item = Device<H>> {
        std::iter::once(self.first).chain(self.second)
    }
}
