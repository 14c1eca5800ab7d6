//! Brings a ConnectX up, says what it is, and takes it down again.
#![no_std]
#![no_main]

use board::card::Slot;
use board::{During as _, Failure, println};
use programs::connection::{self, Card, PORT_TIMEOUT, Rdma, STORAGE};

board::entry!(main);

fn main() -> Result<(), Failure> {
    println!("bring-up on {}", board::NAME);
    let slot = Slot::find().during("looking for the card")?;
    println!("{}: 15b3:{:04x}, BAR0 {} bytes, {} vectors", slot.address(), slot.device(), slot.bar_len(), slot.vectors());

    let arena = board::dma_memory!(Card::ARENA).during("the arena is in use")?;
    let pages = board::dma::firmware_pages().during("the pages for the firmware are in use")?;
    println!("memory for the card's firmware: {} pages, which is all that is unused", pages.free_pages());
    let config = slot.config();
    let mut verbs = connection::bring_up(slot.machine(arena, pages), &config)?;
    let [major, minor, sub] = verbs.query_device().fw_ver;
    let statistics = verbs.provider().statistics();
    println!(
        "firmware {major}.{minor}.{sub}, it wanted {} pages, {} of the arena are left",
        statistics.pages_held, statistics.pages_free
    );

    println!(
        "{} bytes of memory: tables and rings {STORAGE}, verbs and driver {}, arena {}",
        STORAGE + size_of::<Rdma>() + size_of::<Card>() + Card::ARENA,
        size_of::<Rdma>() + size_of::<Card>(),
        Card::ARENA
    );
    let device = verbs.query_device();
    println!("node {:016x}, {} queue pairs, {} regions at most", device.node_guid.0, device.max_qp, device.max_mr);
    let port = verbs.wait_active(1, PORT_TIMEOUT).during("wait_active")?;
    println!("port 1: {:?}, LID {}, MTU {}", port.state, port.lid.get(), port.active_mtu.bytes());

    let card = verbs.into_provider().ok().during("a queue is taken")?;
    let report = card.teardown_in_place().during("taking it down")?;
    println!("down: {} of {} pages came back", report.pages_back, report.pages_given);
    Ok(())
}
