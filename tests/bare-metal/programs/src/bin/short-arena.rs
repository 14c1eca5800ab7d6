//! Memory that is shorter than the arena of the driver's type.
#![no_std]
#![no_main]

use board::card::{Card, Slot};
use board::{During as _, Failure};

board::entry!(main);

fn main() -> Result<(), Failure> {
    let slot = Slot::find().during("looking for the card")?;
    let arena = board::dma_memory!(64 * 4096).during("the arena is in use")?;
    let pages = board::dma::firmware_pages().during("the pages for the firmware are in use")?;
    let config = slot.config();
    let brought = Card::<512>::bring_up(slot.machine(arena, pages), &config);
    brought.map(drop).map_err(|(error, _)| error).during("bringing the card up")
}
