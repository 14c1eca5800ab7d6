//! Bring-up and teardown of a device: steps, capabilities, port.

pub(crate) mod caps;
pub(crate) mod ethernet;
pub(crate) mod port;
mod smp;
pub(crate) mod steps;

#[cfg(test)]
mod tests;
