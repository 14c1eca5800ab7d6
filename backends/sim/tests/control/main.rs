//! A small host drives the device by raw bytes, as the documents lay them out.
//!
//! No layout of the crates under test is used here: every offset is written as the published documents give it.

#[cfg(test)]
mod bring_up;
#[cfg(test)]
mod busy_port;
#[cfg(test)]
mod command_outputs;
#[cfg(test)]
mod counters;
#[cfg(test)]
mod device_memory;
#[cfg(test)]
mod ethernet;
#[cfg(test)]
mod events;
#[cfg(test)]
mod frames;
#[cfg(test)]
mod gateway;
#[cfg(test)]
mod host;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod managed_port;
#[cfg(test)]
mod nic;
#[cfg(test)]
mod pages;
#[cfg(test)]
mod profile;
#[cfg(test)]
mod registers;
#[cfg(test)]
mod resources;
#[cfg(test)]
mod threads;
#[cfg(test)]
mod transport;
#[cfg(test)]
mod trap;
#[cfg(test)]
mod user;
mod user_space_driver;
#[cfg(test)]
mod virtual_ports;
