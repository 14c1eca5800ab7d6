//! Fewer pages than the card's firmware wants.
#![no_std]
#![no_main]

use board::card::Slot;
use board::{During as _, Failure};
use programs::connection::Card;

board::entry!(main);

fn main() -> Result<(), Failure> {
    let slot = Slot::find().during("looking for the card")?;
    let arena = board::dma_memory!(Card::ARENA).during("the arena is in use")?;
    let pages = board::dma::firmware_pages_up_to(33 * 4096).during("the pages for the firmware are in use")?;
    let config = slot.config();
    let brought = Card::bring_up(slot.machine(arena, pages), &config);
    brought.map(drop).map_err(|(error, _)| error).during("bringing the card up")
}
