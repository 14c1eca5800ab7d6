//! A program that starts again in the middle of traffic, as after a watchdog: the card still has the memory of the program before,
//! and a peer that writes into it.
//!
//! The program prints its address and its memory, and reads one line: the peer's address and `writer`, with the memory of the peer, or
//! `target`. The writer writes until the peer does not answer any more. The target starts again after the first write, and looks for
//! writes into its memory: with `early` before it has looked for the card, in any case after that.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use bareverbs::platform::{Clock as _, DmaMemory as _};
use bareverbs::{DmaBuffer as _, Payload, Remote, Rkey, SendOp, WcStatus};
use bareverbs_mmio::{IdentityBuffer, MappedMemory};
use board::card::Slot;
use board::{During as _, Failure, Timer, println};
use programs::address::Address;
use programs::connection::{Card, Connection};

board::entry!(main);

/// Bytes of the memory that the peer writes.
const BUFFER: usize = 64 << 10;
/// Time between two writes: longer than the start of a program takes.
const PAUSE: Duration = Duration::from_millis(300);
/// How long the program looks for writes.
const WATCH: Duration = Duration::from_millis(1500);
const TIMEOUT: Duration = Duration::from_secs(60);
const PATTERN: u8 = 0xa5;

/// What the program does after a start: 0 at power-on. In a section that no start clears.
#[unsafe(link_section = ".dma")]
static LIFE: AtomicU32 = AtomicU32::new(0);
const EARLY: u32 = 1;
const LATE: u32 = 2;

fn main() -> Result<(), Failure> {
    let arena = board::dma_memory!(Card::ARENA).during("the arena is in use")?;
    let buffer = board::dma_memory!(BUFFER).during("the buffer is in use")?;
    match LIFE.swap(0, Ordering::Relaxed) {
        0 => first_life(arena, buffer),
        life => second_life(arena, buffer, life == EARLY),
    }
}

fn first_life(arena: MappedMemory, buffer: MappedMemory) -> Result<(), Failure> {
    println!("restart on {}", board::NAME);
    let slot = Slot::find().during("looking for the card")?;
    let mut connection = Connection::open(slot, arena, IdentityBuffer::new(buffer))?;
    let memory = connection.region.remote(0);
    println!("memory {:x} {:x}", memory.addr, memory.rkey.get());
    println!("address {}", connection.address);

    let line = board::console::read_line::<150>(Duration::from_secs(120)).during("the peer's address")?;
    let mut words = line.split(' ');
    let peer = words.next().and_then(Address::parse).during("not an address: LID:QPN:PSN:GID")?;
    connection.connect(&peer)?;
    println!("connected");
    match (words.next(), words.next(), words.next()) {
        (Some("target"), Some("early"), None) => restart(&mut connection, EARLY),
        (Some("target"), Some("late"), None) => restart(&mut connection, LATE),
        (Some("writer"), Some(addr), Some(rkey)) => {
            let addr = u64::from_str_radix(addr, 16).during("not the address of memory")?;
            let rkey = Rkey::new(u32::from_str_radix(rkey, 16).during("not a key")?);
            write_until_the_end(connection, Remote { addr, rkey })
        }
        _ => Err(Failure::new(format_args!("neither 'target early|late' nor 'writer ADDRESS KEY'"))),
    }
}

/// Writes a byte now and then, until the peer does not answer.
fn write_until_the_end(mut connection: Connection, remote: Remote) -> Result<(), Failure> {
    let deadline = Timer.now().after(TIMEOUT);
    for place in 0.. {
        let addr = remote.addr + place % BUFFER as u64;
        connection.post(place, SendOp::Write { payload: Payload::Inline(&[0x11]), remote: Remote { addr, ..remote } })?;
        let status = connection.next_of_any_status(TIMEOUT)?.status;
        if status != WcStatus::Success {
            println!("the peer is gone: {status:?}");
            return connection.close(None);
        }
        if Timer.now() >= deadline {
            break;
        }
        wait(PAUSE);
    }
    Err(Failure::new(format_args!("the peer still answers")))
}

/// Starts the program again once the peer writes.
fn restart(connection: &mut Connection, life: u32) -> Result<(), Failure> {
    let deadline = Timer.now().after(TIMEOUT);
    let mut first = [0];
    while first == [0] {
        (Timer.now() < deadline).then_some(()).during("the peer writes nothing")?;
        connection.region.read(0, &mut first).map_err(|_| Failure::new(format_args!("outside of the buffer")))?;
    }
    LIFE.store(life, Ordering::Relaxed);
    board::restart()
}

fn second_life(mut arena: MappedMemory, mut buffer: MappedMemory, early: bool) -> Result<(), Failure> {
    println!("started again");
    if early {
        watch(&mut arena, &mut buffer).during("before the reset of the card")?;
    }
    let slot = Slot::find().during("looking for the card")?;
    watch(&mut arena, &mut buffer).during("after the reset of the card")?;
    println!("no byte was written by the card");
    // The same that the card had before.
    let pages = board::dma::firmware_pages().during("the pages for the firmware are in use")?;
    let config = slot.config();
    let card =
        Card::bring_up(slot.machine(arena, pages), &config).map_err(|(error, _)| error).during("bringing the card up")?;
    let report = card.teardown().map_err(|(error, _)| error).during("taking the card down")?.1;
    println!("down: {} of {} pages came back", report.pages_back, report.pages_given);
    Ok(())
}

/// Fills both memories, and compares them some time later.
fn watch(arena: &mut MappedMemory, buffer: &mut MappedMemory) -> Result<(), Failure> {
    let outside = |_| Failure::new(format_args!("outside of the memory"));
    for memory in [&mut *arena, &mut *buffer] {
        for at in (0..memory.len()).step_by(4096) {
            memory.write(at, &[PATTERN; 4096]).map_err(outside)?;
        }
    }
    wait(WATCH);
    for (name, memory) in [("arena", arena), ("buffer", buffer)] {
        for at in (0..memory.len()).step_by(4096) {
            let mut page = [0; 4096];
            memory.read(at, &mut page).map_err(outside)?;
            if let Some(byte) = page.iter().position(|byte| *byte != PATTERN) {
                return Err(Failure::new(format_args!("the card wrote byte {:#x} of the {name}", at + byte)));
            }
        }
    }
    Ok(())
}

fn wait(time: Duration) {
    let deadline = Timer.now().after(time);
    while Timer.now() < deadline {
        core::hint::spin_loop();
    }
}
