//! Checks what this machine is to the driver: registers, memory, pages and clock before the driver has them, and then all of it with the
//! card, request by request, with an interrupt for each. The first program on a new board.
#![no_std]
#![no_main]

use core::time::Duration;

use bareverbs_conformance::{Traffic, check_buffer, check_machine, check_traffic};
use bareverbs_mmio::IdentityBuffer;
use board::card::Slot;
use board::{During as _, Failure, Timer, interrupts, println};
use programs::connection::{Card, PORT_TIMEOUT, bring_up};

/// Requests over the loopback, and bytes of the buffer that they move.
const REQUESTS: u32 = 200;
const BUFFER: usize = 128 << 10;
const TIMEOUT: Duration = Duration::from_secs(10);

/// How many interrupts of the card were raised so far.
fn raised() -> u32 {
    (0..interrupts::VECTORS).map(interrupts::taken).fold(0, u32::wrapping_add)
}

board::entry!(main);

fn main() -> Result<(), Failure> {
    println!("conformance on {}", board::NAME);
    let slot = Slot::find().during("looking for the card")?;
    let arena = board::dma_memory!(Card::ARENA).during("the arena is in use")?;
    let pages = board::dma::firmware_pages().during("the pages for the firmware are in use")?;
    let mut buffer = IdentityBuffer::new(board::dma_memory!(BUFFER).during("the buffer is in use")?);
    let config = slot.config();
    let mut machine = slot.machine(arena, pages);
    check_machine(&mut machine, &mut [0; 256]).during("the machine")?;
    check_buffer(&mut buffer).during("the buffer")?;
    println!("registers, memory, pages and clock are right");

    let mut rdma = bring_up(machine, &config)?;
    rdma.wait_active(1, PORT_TIMEOUT).during("wait_active")?;
    // The check takes the events itself: who handles interrupts in a program of one's own does it there.
    let (mut count, before) = (raised, raised());
    let traffic = Traffic { port: 1, requests: REQUESTS, timeout: TIMEOUT, interrupts: Some(&mut count) };
    let (_, report) = check_traffic(&mut rdma, &Timer, buffer, traffic).during("traffic")?;
    let interrupts = raised().wrapping_sub(before);
    println!("{} requests, {} bytes, each checked; {interrupts} interrupts", report.requests, report.bytes);
    let card = rdma.into_provider().ok().during("somebody has a queue")?;
    let report = card.teardown_in_place().during("taking the card down")?;
    println!("down: {} of {} pages came back", report.pages_back, report.pages_given);
    Ok(())
}
