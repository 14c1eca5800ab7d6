//! A card writes to itself, on a machine whose platform is all by hand (`platform.rs`): what `bareverbs-mmio` has is not used.
#![no_std]
#![no_main]

mod platform;

use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::time::Duration;

use bareverbs::platform::{Clock as _, Machine};
use bareverbs::storage::{QpRings, Storage};
use bareverbs::{Access, AddressVector, Completion, DmaBuffer as _, QpAttr, QpCap, QpInit, QpType, SendWr, Verbs, storage};
use bareverbs_mlx5::{Config, Mlx5};
use board::card::Slot;
use board::{During as _, Failure, println};
use static_cell::{ConstStaticCell, StaticCell};

use crate::platform::{Bar, Buffer, ByHand, Fence, Memory, PAGE_WORDS, Pages, Timer};

type Card = Mlx5<ByHand, 64>;
type Tables = storage!['static, &'static mut Card; pds: 1, mrs: 1, cqs: 1, qps: 1];

static RINGS: QpRings<16, 16> = QpRings::new();
static TABLES: ConstStaticCell<Tables> = ConstStaticCell::new(Storage::new([RINGS.view()]));
static DRIVER: StaticCell<Option<Card>> = StaticCell::new();

const PAGE: usize = 4096;
/// Pages for the card's firmware.
const FIRMWARE: usize = PAGE_WORDS * 64;

/// Memory of the card: nothing but `main` takes its address, once.
#[repr(C, align(4096))]
struct CardMemory<const LEN: usize>(UnsafeCell<[u8; LEN]>);

// SAFETY: the bytes are reached through the pointers of `main` alone.
unsafe impl<const LEN: usize> Sync for CardMemory<LEN> {}

impl<const LEN: usize> CardMemory<LEN> {
    const fn base(&'static self) -> NonNull<u8> {
        NonNull::from_ref(&self.0).cast()
    }
}

static ARENA: CardMemory<{ Card::ARENA }> = CardMemory(UnsafeCell::new([0; Card::ARENA]));
static FIRMWARE_PAGES: CardMemory<{ FIRMWARE * PAGE }> = CardMemory(UnsafeCell::new([0; FIRMWARE * PAGE]));
static BUFFER: CardMemory<{ 2 * PAGE }> = CardMemory(UnsafeCell::new([0; 2 * PAGE]));

board::entry!(main);

fn main() -> Result<(), Failure> {
    println!("by hand on {}", board::NAME);
    let slot = Slot::find().during("looking for the card")?;
    // SAFETY: the slot's BAR0 is mapped uncached, and it is given to nothing else.
    let registers = unsafe { Bar::new(slot.bar(), slot.bar_len()) };
    // SAFETY: statics, each taken here once; memory is mapped to itself and coherent with the bus.
    let (memory, pages, buffer) = unsafe {
        (
            Memory::new(ARENA.base(), Card::ARENA),
            Pages::new(FIRMWARE_PAGES.base()),
            Buffer(Memory::new(BUFFER.base(), 2 * PAGE)),
        )
    };
    let machine = Machine { registers, memory, pages, fence: Fence, clock: Timer };
    let place = DRIVER.try_init(None).during("the driver is in use")?;
    let card = Card::bring_up_in(place, machine, &Config::DEFAULT).during("bring-up")?;
    let mut verbs = Verbs::new(card, TABLES.try_take().during("the tables are in use")?);
    write(&mut verbs, buffer)?;
    let card = verbs.into_provider().ok().during("somebody has a queue")?;
    let report = card.teardown_in_place().during("teardown")?;
    println!("down: {} of {} pages came back", report.pages_back, report.pages_given);
    Ok(())
}

/// Writes the first page of `buffer` to the second one, through a queue pair that is connected to itself.
fn write(verbs: &mut Verbs<'static, &'static mut Card>, buffer: Buffer) -> Result<(), Failure> {
    let pd = verbs.alloc_pd().during("alloc_pd")?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mut region = verbs.reg_mr(pd, buffer, access).during("reg_mr")?;
    region.write(0, &[0x5a; PAGE]).map_err(|_| "outside of the buffer").during("filling the buffer")?;

    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let rings = verbs.ring_sizes(QpType::Rc, &cap).during("ring_sizes")?;
    let mut cq = verbs.create_cq(rings.send_blocks + rings.recv_entries).during("create_cq")?;
    let (send_cq, recv_cq) = (cq.handle(), cq.handle());
    let init = QpInit { pd, qp_type: QpType::Rc, send_cq, recv_cq, cap, sq_sig_all: true };
    let mut qp = verbs.create_qp(&init).during("create_qp")?;
    let port = verbs.wait_active(1, Duration::from_secs(60)).during("wait_active")?;
    let (dlid, dest_qpn) = (port.lid, verbs.qp_info(qp.handle()).during("qp")?.qpn);
    let av = AddressVector { dlid, port_num: 1, ..AddressVector::default() };
    let attr = QpAttr { port_num: 1, access, av, dest_qpn, timeout: 14, retry_cnt: 7, ..QpAttr::default() };
    verbs.modify_qp_to_rts(qp.handle(), &attr).during("modify_qp_to_rts")?;

    let remote = region.remote(PAGE as u64);
    qp.send.post(&SendWr::write(remote, &[region.sge(0, PAGE as u32)])).during("posting the write")?;
    let end = Timer.now().after(Duration::from_secs(10));
    let mut done = [Completion::EMPTY];
    while cq.poll(&mut done).during("polling")? == 0 {
        (Timer.now() < end).then_some(()).during("no completion in 10 s")?;
    }
    let [completion] = done;
    completion.result().during("the write")?;
    let mut written = [0; PAGE];
    region.read(PAGE, &mut written).map_err(|_| "outside of the buffer").during("reading the buffer")?;
    (written == [0x5a; PAGE]).then_some(()).during("other bytes were written")?;
    println!("{PAGE} bytes written over the loopback, each byte checked");

    verbs.destroy_qp(qp).during("destroy_qp")?;
    verbs.destroy_cq(cq).during("destroy_cq")?;
    verbs.dereg_mr(region).during("dereg_mr")?;
    verbs.dealloc_pd(pd).during("dealloc_pd")
}
