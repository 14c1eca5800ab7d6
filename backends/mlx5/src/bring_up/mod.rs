//! Bring-up and teardown of a device: steps, capabilities, port, firmware pages.

pub(crate) mod caps;
pub(crate) mod pages;
pub(crate) mod port;
pub(crate) mod steps;

#[cfg(test)]
mod tests;
