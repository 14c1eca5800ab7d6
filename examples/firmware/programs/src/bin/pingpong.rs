//! Exchanges messages over a reliable connection, as `ibv_rc_pingpong` does, which may be the peer. Every byte is verified.
//!
//! The program prints its address and reads one line: the peer's address, `client` or `server`, and options. The options are
//! `size=N` (bytes), `iters=N`, `events` (interrupts instead of polling) and `linux` (the peer is `ibv_rc_pingpong -c`).
//!
//! `ibv_rc_pingpong` sends back what it received last. So does the server here; the end that has such a peer makes the bytes. A
//! server whose client is `ibv_rc_pingpong` makes them too: the client begins with bytes of 0x7b.
#![no_std]
#![no_main]

use core::time::Duration;

use bareverbs::{Payload, SendOp};
use bareverbs_mmio::IdentityBuffer;
use board::card::Slot;
use board::{During as _, Failure, println};
use programs::address::Address;
use programs::connection::{Card, Connection};
use programs::pattern;

/// Maximum bytes of a message.
const MAX_MESSAGE: usize = 64 << 10;
/// Receives alternate between two places; what is sent lies in a third.
const OUT: usize = 2 * MAX_MESSAGE;
const TIMEOUT: Duration = Duration::from_secs(30);
const SEND: u64 = 100;

board::entry!(main);

struct Wanted {
    peer: Address,
    client: bool,
    linux: bool,
    events: bool,
    size: usize,
    iters: u32,
}

impl Wanted {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let peer = Address::parse(words.next()?)?;
        let client = match words.next()? {
            "client" => true,
            "server" => false,
            _ => return None,
        };
        let mut wanted = Self { peer, client, linux: false, events: false, size: 4096, iters: 1000 };
        for word in words {
            match word.split_once('=') {
                Some(("size", number)) => wanted.size = number.parse().ok().filter(|size| (1..=MAX_MESSAGE).contains(size))?,
                Some(("iters", number)) => wanted.iters = number.parse().ok()?,
                None if word == "events" => wanted.events = true,
                None if word == "linux" => wanted.linux = true,
                _ => return None,
            }
        }
        Some(wanted)
    }
}

/// What has happened so far.
struct Pingpong {
    connection: Connection,
    wanted: Wanted,
    /// Messages that came.
    received: u32,
    /// Sends that did not complete yet.
    sending: u32,
}

fn main() -> Result<(), Failure> {
    println!("pingpong on {}", board::NAME);
    let slot = Slot::find().during("looking for the card")?;
    let arena = board::dma_memory!(Card::ARENA).during("the arena is in use")?;
    let buffer = IdentityBuffer::new(board::dma_memory!(3 * MAX_MESSAGE).during("the buffer is in use")?);
    let mut connection = Connection::open(slot, arena, buffer)?;
    println!("address {}", connection.address);

    let line = board::console::read_line::<200>(Duration::from_secs(120)).during("the peer's address")?;
    let wanted = Wanted::parse(&line).during("not 'LID:QPN:PSN:GID client|server [size=N] [iters=N] [events] [linux]'")?;
    connection.events = wanted.events;
    connection.connect(&wanted.peer)?;
    (0..2).try_for_each(|place| connection.receive(place, place as usize * MAX_MESSAGE, wanted.size))?;
    println!("connected");

    let mut pingpong = Pingpong { connection, wanted, received: 0, sending: 0 };
    for number in 0..pingpong.wanted.iters {
        pingpong.turn(number)?;
    }
    let Wanted { iters, size, events, .. } = pingpong.wanted;
    println!("{iters} messages of {size} bytes there and back, each byte checked");
    if events {
        println!("{} interrupts", board::interrupts::taken(pingpong.connection.vector));
    }
    pingpong.connection.close(None)
}

impl Pingpong {
    /// Exchanges one message there and one back.
    fn turn(&mut self, number: u32) -> Result<(), Failure> {
        let Wanted { client, linux, size, .. } = self.wanted;
        let place = (number % 2) as usize * MAX_MESSAGE;
        if client {
            pattern::fill(&mut self.connection.region, OUT, size, number)?;
            self.send(OUT)?;
        }
        self.wait(number + 1)?;
        // What came: the bytes of the one that makes them, once they have been there and back.
        let buffer = &self.connection.region;
        match number.checked_sub(1) {
            _ if client || !linux => pattern::check(buffer, place, size, |at| pattern::byte(number, at))?,
            Some(before) => pattern::check(buffer, place, size, |at| pattern::byte(before, at))?,
            None => pattern::check(buffer, place, size, |at| if at.is_multiple_of(4096) { 0 } else { 0x7b })?,
        }
        if !client && linux {
            pattern::fill(&mut self.connection.region, OUT, size, number)?;
        }
        if !client {
            self.send(if linux { OUT } else { place })?;
        }
        // The place is free once its bytes are sent.
        self.wait(number + 1)?;
        self.connection.receive(u64::from(number % 2), place, size)
    }

    fn send(&mut self, at: usize) -> Result<(), Failure> {
        let sges = [self.connection.sge(at, self.wanted.size)];
        self.sending += 1;
        self.connection.post(SEND, SendOp::Send { payload: Payload::Sges(&sges) })
    }

    /// Waits until every send has completed and `messages` messages have come.
    fn wait(&mut self, messages: u32) -> Result<(), Failure> {
        while self.sending != 0 || self.received < messages {
            match self.connection.next(TIMEOUT)?.wr_id {
                SEND => self.sending -= 1,
                place if place == u64::from(self.received % 2) => self.received += 1,
                place => return Err(Failure::new(format_args!("message {} came at place {place}", self.received))),
            }
        }
        Ok(())
    }
}
