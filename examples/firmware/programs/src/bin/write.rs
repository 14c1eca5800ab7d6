//! RDMA WRITE, RDMA READ and a memory window between two machines; every byte is checked.
//!
//! Each side shows the other an area through a window, writes into the other's, reads it back, and then looks at what the
//! other wrote here. At the end the first side writes one byte too far, which the other's card refuses.
//!
//! The program prints its address and reads one line: the peer's address, and `first` or `second`.
#![no_std]
#![no_main]

use core::time::Duration;

use bareverbs::{
    Access, Clock as _, DmaMemory as _, Event, MwBind, MwType, Payload, Remote, Rkey, SendFlags, SendOp, WcStatus,
};
use board::card::Slot;
use board::{During as _, Failure, Timer, println};
use programs::address::Address;
use programs::connection::{Card, Connection};
use programs::pattern;

/// Bytes of an area: shown to the peer, written to the peer, read from the peer.
const AREA: usize = 128 << 10;
const SHOWN: usize = 0;
const SOURCE: usize = AREA;
const COPY: usize = 2 * AREA;
/// Behind the areas: a page for short messages.
const MESSAGE: usize = 3 * AREA;
const MESSAGE_LEN: usize = 16;
/// What the window shows: not the last page of the area.
const WINDOW: usize = AREA - 4096;
const PATIENCE: Duration = Duration::from_secs(30);

board::entry!(main);

fn main() -> Result<(), Failure> {
    println!("write on {}", board::NAME);
    let slot = Slot::find().during("looking for the card")?;
    let arena = board::dma_memory!(Card::ARENA).during("the arena is in use")?;
    let buffer = board::dma_memory!(3 * AREA + 4096).during("the buffer is in use")?;
    let mut connection = Connection::open(slot, arena, buffer)?;
    println!("address {}", connection.address);

    let line = board::console::read_line::<100>(Duration::from_secs(120)).during("the peer's address")?;
    let (peer, role) = line.split_once(' ').during("not 'LID:QPN:PSN:GID first|second'")?;
    let peer = Address::parse(peer).during("not an address: LID:QPN:PSN:GID")?;
    (0..2).try_for_each(|place| connection.receive(place, message(place as usize), MESSAGE_LEN))?;
    connection.connect(&peer)?;
    println!("connected");

    // A window over the area that is shown; the key of the region itself stays here.
    let window = connection.rdma.alloc_mw(connection.pd, MwType::Type1).during("alloc_mw")?;
    let first_byte = connection.buffer.device_addr() + SHOWN as u64;
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let region = connection.region;
    let bind = MwBind { wr_id: 2, flags: SendFlags::SIGNALED, mr: region, addr: first_byte, length: WINDOW as u64, access };
    let rkey = connection.rdma.bind_mw(connection.qp, window, &bind).during("bind_mw")?;
    expect(&mut connection, &[2])?;
    let remote = exchange(&mut connection, 0, first_byte, rkey)?;
    println!("the peer shows {WINDOW} bytes at {:#x}, key {}", remote.addr, remote.rkey);

    let (mine, yours) = (u32::from(connection.address.lid.get()), u32::from(peer.lid.get()));
    pattern::fill(&mut connection.buffer, SOURCE, WINDOW, mine)?;
    let source = [connection.sge(SOURCE, WINDOW)];
    connection.post(3, SendOp::Write { payload: Payload::Sges(&source), remote })?;
    expect(&mut connection, &[3])?;
    let copy = [connection.sge(COPY, WINDOW)];
    connection.post(4, SendOp::Read { sges: &copy, remote })?;
    expect(&mut connection, &[4])?;
    pattern::check(&connection.buffer, COPY, WINDOW, |at| pattern::byte(mine, at)).during("read back")?;
    println!("{WINDOW} bytes written and read back, each byte checked");

    exchange(&mut connection, 1, first_byte, rkey)?;
    pattern::check(&connection.buffer, SHOWN, WINDOW, |at| pattern::byte(yours, at)).during("written by the peer")?;
    println!("{WINDOW} bytes written by the peer, each byte checked");

    // One byte too far: refused by the other's card, and both queue pairs are in error after that.
    connection.buffer.write(SHOWN + WINDOW, &[0x55]).map_err(|_| "outside of the buffer").during("marking")?;
    if role == "first" {
        let byte = [connection.sge(SOURCE + 1, 1)];
        let beyond = Remote { addr: remote.addr + WINDOW as u64, rkey: remote.rkey };
        connection.post(5, SendOp::Write { payload: Payload::Sges(&byte), remote: beyond })?;
        let status = connection.next_of_any_status(PATIENCE)?.status;
        (status == WcStatus::RemAccessErr).then_some(()).during("a write beyond the window was not refused")?;
    } else {
        wait_for_refusal(&mut connection)?;
    }
    pattern::check(&connection.buffer, SHOWN + WINDOW, 1, |_| 0x55).during("beyond the window")?;
    println!("a byte beyond the window refused");
    connection.rdma.destroy_qp(connection.qp).during("destroy_qp")?;
    connection.rdma.dealloc_mw(window).during("dealloc_mw")?;
    connection.close()
}

const fn message(place: usize) -> usize {
    MESSAGE + place * MESSAGE_LEN
}

/// Waits for the completions of these requests, in any order.
fn expect(connection: &mut Connection, requests: &[u64]) -> Result<(), Failure> {
    for _ in requests {
        let done = connection.next(PATIENCE)?.wr_id;
        requests.contains(&done).then_some(()).ok_or_else(|| Failure::new(format_args!("request {done} completed")))?;
    }
    Ok(())
}

/// Tells the peer an address and a key, and takes those of the peer, in message `place`.
fn exchange(connection: &mut Connection, place: usize, addr: u64, rkey: Rkey) -> Result<Remote, Failure> {
    let out = MESSAGE + 1024;
    let outside = |_| Failure::new(format_args!("a message outside of the buffer"));
    connection.buffer.write(out, &addr.to_be_bytes()).map_err(outside)?;
    connection.buffer.write(out + 8, &rkey.get().to_be_bytes()).map_err(outside)?;
    let sges = [connection.sge(out, MESSAGE_LEN)];
    connection.post(10, SendOp::Send { payload: Payload::Sges(&sges) })?;
    expect(connection, &[10, place as u64])?;
    let (mut addr, mut rkey) = ([0; 8], [0; 4]);
    connection.buffer.read(message(place), &mut addr).map_err(outside)?;
    connection.buffer.read(message(place) + 8, &mut rkey).map_err(outside)?;
    Ok(Remote { addr: u64::from_be_bytes(addr), rkey: Rkey::new(u32::from_be_bytes(rkey)) })
}

/// The event of the queue pair whose card refused an access of the peer.
fn wait_for_refusal(connection: &mut Connection) -> Result<(), Failure> {
    let deadline = Timer.now().after(PATIENCE);
    while Timer.now() < deadline {
        match connection.rdma.poll_event().during("poll_event")? {
            Some(Event::QpAccessError(_)) => return Ok(()),
            Some(other) => println!("event: {other:?}"),
            None => {}
        }
    }
    Err(Failure::new(format_args!("no event of a refused access in {} s", PATIENCE.as_secs())))
}
