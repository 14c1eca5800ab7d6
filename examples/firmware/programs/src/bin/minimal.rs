//! The driver's side of a program in one file: a card is brought up and writes to itself. The machine's side is the package `board`.
//!
//! A program for another board replaces `main`, [`Timer`] and, in the package `board`, the page tables; the other programs of this folder show
//! a peer, interrupts and errors.
#![no_std]
#![no_main]

use core::ptr::NonNull;
use core::time::Duration;

use bareverbs::platform::{Clock, Instant, Machine, Platform};
use bareverbs::storage::{QpRings, Storage};
use bareverbs::{
    Access, AddressVector, Completion, DmaBuffer as _, QpAttr, QpCap, QpInit, QpType, SendWr, Verbs, WcStatus, storage,
};
use bareverbs_mlx5::{Config, Mlx5};
use bareverbs_mmio::{CpuFence, IdentityBuffer, MappedBar, MappedMemory, PageRanges};
use board::card::Slot;
use board::{During as _, Failure, println};
use static_cell::{ConstStaticCell, StaticCell};

/// The board's timer. It never goes back, and every wait of the driver ends by it.
struct Timer;

impl Clock for Timer {
    fn now(&self) -> Instant {
        board::Timer.now() // On another board: the CPU's counter, in nanoseconds.
    }
}

/// What this machine is to the driver: a mapped BAR, coherent memory, pages for the card's firmware, the CPU's own barriers, a timer.
struct Board;

// SAFETY: a mapped BAR, coherent memory and the CPU's own barriers.
unsafe impl Platform for Board {
    type Registers = MappedBar;
    type Memory = MappedMemory;
    type Pages = PageRanges;
    type Fence = CpuFence;
    type Clock = Timer;
}

/// The driver, with an arena of 128 pages: queues, doorbell records, mailboxes.
type Card = Mlx5<Board, 128>;
/// Room for the objects that it makes.
type Tables = storage!['static, &'static mut Card; pds: 1, mrs: 1, cqs: 1, qps: 1];

/// 64 blocks of sends and 16 receives for the queue pair.
static RINGS: QpRings<64, 16> = QpRings::new();
static TABLES: ConstStaticCell<Tables> = ConstStaticCell::new(Storage::new([RINGS.view()]));
/// The driver stays where it is made: by value it would be on the stack several times.
static DRIVER: StaticCell<Option<Card>> = StaticCell::new();

/// Brings the card up, once.
///
/// # Safety
/// `bar` is BAR0 of `bar_len` bytes, mapped uncached, and bus mastering is on. Nothing else uses it, `arena` or `pages`.
unsafe fn bring_up(
    bar: NonNull<u8>,
    bar_len: usize,
    arena: MappedMemory,
    pages: PageRanges,
) -> Result<&'static mut Card, Failure> {
    // SAFETY: the caller promises it.
    let registers = unsafe { MappedBar::new(bar, bar_len) };
    let machine = Machine { registers, memory: arena, pages, fence: CpuFence::UNCACHED, clock: Timer };
    let place = DRIVER.try_init(None).during("the driver is in use")?;
    Card::bring_up_in(place, machine, &Config::DEFAULT).during("bring-up")
}

const PAGE: usize = 4096;
const TIMEOUT: Duration = Duration::from_secs(10);
const PORT_TIMEOUT: Duration = Duration::from_secs(60);

/// Writes the first page of `buffer` to the second one, through a queue pair that is connected to itself.
fn write(verbs: &mut Verbs<'static, &'static mut Card>, buffer: IdentityBuffer) -> Result<(), Failure> {
    let pd = verbs.alloc_pd().during("alloc_pd")?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mut region = verbs.reg_mr(pd, buffer, access).during("reg_mr")?; // The region owns the buffer now.
    region.write(0, &[0x5a; PAGE]).map_err(|_| "outside of the buffer").during("filling the buffer")?;

    let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let rings = verbs.ring_sizes(QpType::Rc, &cap).during("ring_sizes")?;
    let mut cq = verbs.create_cq(rings.send_blocks + rings.recv_entries).during("create_cq")?; // An overrun is fatal.
    let (send_cq, recv_cq) = (cq.handle(), cq.handle());
    let init = QpInit { pd, qp_type: QpType::Rc, send_cq, recv_cq, cap, sq_sig_all: false };
    let mut qp = verbs.create_qp(&init).during("create_qp")?;

    // LID and QPN are those of the peer: here its own. A real port gets a LID when its link is trained, from a subnet manager.
    let port = verbs.wait_active(1, PORT_TIMEOUT).during("wait_active")?;
    let (dlid, dest_qpn) = (port.lid, verbs.qp_info(qp.handle()).during("qp")?.qpn);
    let av = AddressVector { dlid, port_num: 1, ..AddressVector::default() };
    let attr = QpAttr { port_num: 1, access, av, dest_qpn, timeout: 14, retry_cnt: 7, ..QpAttr::default() };
    verbs.modify_qp_to_rts(qp.handle(), &attr).during("modify_qp_to_rts")?;

    let remote = region.remote(PAGE as u64); // Address and key, as a peer would send them.
    qp.send.post(&SendWr::write(remote, &[region.sge(0, PAGE as u32)]).id(1).signaled()).during("posting the write")?;

    let end = Timer.now().after(TIMEOUT);
    let mut maintenance = Timer.now();
    let mut done = [Completion::EMPTY];
    while cq.poll(&mut done).during("polling")? == 0 {
        let now = Timer.now();
        if now >= maintenance {
            // Pages for the card's firmware, and its health: after the end of the card polling fails.
            maintenance = verbs.maintain().during("maintain")?;
        }
        (now < end).then_some(()).during("no completion in 10 s")?;
    }
    let [Completion { status, .. }] = done;
    (status == WcStatus::Success).then_some(()).during("the write did not succeed")?;
    let mut written = [0; PAGE];
    region.read(PAGE, &mut written).map_err(|_| "outside of the buffer").during("reading the buffer")?;
    (written == [0x5a; PAGE]).then_some(()).during("other bytes were written")?;
    println!("{PAGE} bytes written over the loopback, each byte checked");

    verbs.destroy_qp(qp).during("destroy_qp")?;
    verbs.destroy_cq(cq).during("destroy_cq")?;
    verbs.dereg_mr(region).during("dereg_mr")?; // Returns the buffer.
    verbs.dealloc_pd(pd).during("dealloc_pd")
}

board::entry!(main);

fn main() -> Result<(), Failure> {
    println!("minimal on {}", board::NAME);
    // Three pieces of static memory, which CPU and card reach at the same addresses. The firmware of a real card wants 50 MiB.
    let arena = board::dma_memory!(Card::ARENA).during("the arena is in use")?;
    let pages = board::dma::firmware_pages().during("the pages for the firmware are in use")?;
    let buffer = IdentityBuffer::new(board::dma_memory!(2 * PAGE).during("the buffer is in use")?);
    // The card: found on the bus, BAR0 placed, memory space and bus mastering on.
    let slot = Slot::find().during("looking for the card")?;
    // SAFETY: the slot's BAR0 is mapped uncached, and it is given to nothing else.
    let card = unsafe { bring_up(slot.bar(), slot.bar_len(), arena, pages) }?;
    let mut verbs = Verbs::new(card, TABLES.try_take().during("the tables are in use")?);
    write(&mut verbs, buffer)?;

    let card = verbs.into_provider().ok().during("somebody has a queue")?;
    let report = card.teardown_in_place().during("teardown")?;
    println!("down: {} of {} pages came back", report.pages_back, report.pages_given);
    Ok(())
}
