//! An arena of fewer pages than the card's firmware asks for.
#![no_std]
#![no_main]

use board::card::{Card, Slot};
use board::{During as _, Failure};
use programs::connection::CONFIG;

const PAGES: usize = 32;

board::entry!(main);

fn main() -> Result<(), Failure> {
    let slot = Slot::find().during("looking for the card")?;
    let arena = board::dma_memory!(Card::<PAGES>::ARENA).during("the arena is in use")?;
    let brought = Card::<PAGES>::bring_up(slot.machine(arena), &CONFIG);
    brought.map(drop).map_err(|(error, _)| error).during("bringing the card up")
}
