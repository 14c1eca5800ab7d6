//! `bareverbs sim serve` as a vfio-user client sees it.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

mod life;
mod memory;
mod options;
mod raw;
mod record;
mod server;
