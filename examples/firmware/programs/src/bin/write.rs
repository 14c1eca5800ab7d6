//! RDMA WRITE, RDMA READ and a memory window between two machines; every byte is checked.
//!
//! Each side shows the other an area through a window, writes into the other's, reads it back, and then looks at what the
//! other wrote here. At the end the first side writes one byte too far, which the other's card refuses.
//!
//! The program prints its address and reads one line: the peer's address, and `first` or `second`.
#![no_std]
#![no_main]

use core::time::Duration;

use bareverbs::platform::Clock as _;
use bareverbs::{Access, DmaBuffer as _, Event, MwType, Payload, Remote, Rkey, SendFlags, SendOp, Type1Bind, WcStatus};
use bareverbs_mmio::IdentityBuffer;
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
const TIMEOUT: Duration = Duration::from_secs(30);

board::entry!(main);

struct Side {
    connection: Connection,
    /// Bit n: request n is done.
    done: u64,
    /// Whether this side sends before it has heard of the other.
    first: bool,
}

fn main() -> Result<(), Failure> {
    println!("write on {}", board::NAME);
    let slot = Slot::find().during("looking for the card")?;
    let arena = board::dma_memory!(Card::ARENA).during("the arena is in use")?;
    let buffer = IdentityBuffer::new(board::dma_memory!(3 * AREA + 4096).during("the buffer is in use")?);
    let mut side = Side { connection: Connection::open(slot, arena, buffer)?, done: 0, first: true };
    println!("address {}", side.connection.address);

    let line = board::console::read_line::<100>(Duration::from_secs(120)).during("the peer's address")?;
    let (peer, role) = line.split_once(' ').during("not 'LID:QPN:PSN:GID first|second'")?;
    let peer = Address::parse(peer).during("not an address: LID:QPN:PSN:GID")?;
    side.first = role == "first";
    let connection = &mut side.connection;
    connection.connect(&peer)?;
    (0..2).try_for_each(|place| connection.receive(place, message(place), MESSAGE_LEN))?;
    println!("connected");

    // A window over the area that is shown; the key of the region itself stays here.
    let window = connection.rdma.alloc_mw(connection.pd, MwType::Type1).during("alloc_mw")?;
    let shown = connection.region.remote(SHOWN as u64).addr;
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let mr = connection.region.handle();
    let bind = Type1Bind { wr_id: 2, flags: SendFlags::SIGNALED, mr, addr: shown, length: WINDOW as u64, access };
    let rkey = connection.qp.send.bind_type1(window, &bind).during("bind_type1")?;
    side.expect(&[2])?;
    let remote = side.exchange(0, Remote { addr: shown, rkey })?;
    println!("the peer shows {WINDOW} bytes at {:#x}, key {}", remote.addr, remote.rkey);

    let connection = &mut side.connection;
    let (mine, yours) = (u32::from(connection.address.lid.get()), u32::from(peer.lid.get()));
    // A mark behind the window, which must not be overwritten.
    connection.region.write(SHOWN + WINDOW, &[0x55]).map_err(|_| "outside of the buffer").during("marking")?;
    pattern::fill(&mut connection.region, SOURCE, WINDOW, mine)?;
    let source = [connection.sge(SOURCE, WINDOW)];
    connection.post(3, SendOp::Write { payload: Payload::Sges(&source), remote })?;
    let copy = [connection.sge(COPY, WINDOW)];
    connection.post(4, SendOp::Read { sges: &copy, remote })?;
    side.expect(&[3, 4])?;
    pattern::check(&side.connection.region, COPY, WINDOW, |at| pattern::byte(mine, at)).during("read back")?;
    println!("{WINDOW} bytes written and read back, each byte checked");

    side.exchange(1, remote)?;
    pattern::check(&side.connection.region, SHOWN, WINDOW, |at| pattern::byte(yours, at)).during("written by the peer")?;
    println!("{WINDOW} bytes written by the peer, each byte checked");

    // One byte too far: the other's card refuses it, and both queue pairs are in error after that.
    if role == "first" {
        side.write_beyond(Remote { addr: remote.addr + WINDOW as u64, rkey: remote.rkey })?;
    } else {
        side.wait_for_refusal()?;
    }
    let connection = side.connection;
    pattern::check(&connection.region, SHOWN + WINDOW, 1, |_| 0x55).during("behind the window")?;
    println!("a byte beyond the window refused");
    connection.close(Some(window))
}

const fn message(place: u64) -> usize {
    MESSAGE + place as usize * MESSAGE_LEN
}

impl Side {
    /// Waits until these requests are done: the peer may be ahead, so that its messages complete receives early.
    fn expect(&mut self, requests: &[u64]) -> Result<(), Failure> {
        for request in requests {
            while self.done & 1 << request == 0 {
                self.done |= 1 << (self.connection.next(TIMEOUT)?.wr_id & 63);
            }
        }
        Ok(())
    }

    /// Sends the peer the address where it may write, and takes the same from the peer: receive `place`.
    fn exchange(&mut self, place: u64, own: Remote) -> Result<Remote, Failure> {
        // The second connects before the first, whose message says that both are connected.
        if !self.first {
            self.expect(&[place])?;
        }
        let (connection, out) = (&mut self.connection, MESSAGE + 1024);
        let outside = |_| Failure::new(format_args!("a message outside of the buffer"));
        connection.region.write(out, &own.addr.to_be_bytes()).map_err(outside)?;
        connection.region.write(out + 8, &own.rkey.get().to_be_bytes()).map_err(outside)?;
        let sges = [connection.sge(out, MESSAGE_LEN)];
        connection.post(10 + place, SendOp::Send { payload: Payload::Sges(&sges) })?;
        self.expect(&[10 + place, place])?;
        let (mut addr, mut rkey) = ([0; 8], [0; 4]);
        self.connection.region.read(message(place), &mut addr).map_err(outside)?;
        self.connection.region.read(message(place) + 8, &mut rkey).map_err(outside)?;
        Ok(Remote { addr: u64::from_be_bytes(addr), rkey: Rkey::new(u32::from_be_bytes(rkey)) })
    }

    fn write_beyond(&mut self, remote: Remote) -> Result<(), Failure> {
        let byte = [self.connection.sge(SOURCE + 1, 1)];
        self.connection.post(5, SendOp::Write { payload: Payload::Sges(&byte), remote })?;
        let status = self.connection.next_of_any_status(TIMEOUT)?.status;
        (status == WcStatus::RemAccessErr).then_some(()).during("a write beyond the window was not refused")
    }

    /// Waits for the event of the queue pair whose card refused an access of the peer.
    fn wait_for_refusal(&mut self) -> Result<(), Failure> {
        let deadline = Timer.now().after(TIMEOUT);
        while Timer.now() < deadline {
            match self.connection.rdma.poll_event().during("poll_event")? {
                Some(Event::QpAccessError(_)) => return Ok(()),
                Some(other) => println!("event: {other:?}"),
                None => {}
            }
        }
        Err(Failure::new(format_args!("no event of a refused access in {} s", TIMEOUT.as_secs())))
    }
}
