//! Bring-up and teardown of a device: steps, capabilities, port.

pub(crate) mod caps;
pub(crate) mod port;
pub(crate) mod steps;

#[cfg(test)]
mod tests;
