//! `bareverbs sim serve`, tested by a vfio-user client.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

mod capture;
mod examples;
mod life;
mod memory;
mod options;
mod raw;
mod record;
mod server;
