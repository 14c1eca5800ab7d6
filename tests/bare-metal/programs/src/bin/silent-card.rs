//! A card that never finishes its boot, for which this program waits ten seconds instead of the driver's two minutes.
#![no_std]
#![no_main]

use core::time::Duration;

use bareverbs_mlx5::Config;
use board::card::Slot;
use board::{During as _, Failure};
use programs::connection::Card;

board::entry!(main);

fn main() -> Result<(), Failure> {
    let slot = Slot::find().during("looking for the card")?;
    let arena = board::dma_memory!(Card::ARENA).during("the arena is in use")?;
    let pages = board::dma::firmware_pages().during("the pages for the firmware are in use")?;
    let config = Config { boot_timeout: Duration::from_secs(10), ..slot.config() };
    let brought = Card::bring_up(slot.machine(arena, pages), &config);
    brought.map(drop).map_err(|(error, _)| error).during("bringing the card up")
}
