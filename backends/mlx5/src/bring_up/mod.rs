//! Bring-up and teardown of a device: its steps, its capabilities, its port, the pages of its firmware.

pub(crate) mod caps;
pub(crate) mod pages;
pub(crate) mod port;
pub(crate) mod steps;

#[cfg(test)]
mod tests;
