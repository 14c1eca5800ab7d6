//! Two ends of a connection as tasks of an executor (embassy), which wait for completions as for anything else: an interrupt of the card
//! wakes the task. A third task waits for time alone. While no task has anything to do the processor sleeps.
//!
//! What an executor wants of a machine is at the beginning: who wakes it, what time it is, and what it does until there is work.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::task::Waker;

use bareverbs::platform::Clock as _;
use bareverbs::{
    Access, AddressVector, Completion, CompletionQueue, InterruptHandler, Mtu, PdHandle, QpAttr, QpCap, QpInit, QpType,
    QueuePair, RecvWr, Region, SendWr, WcStatus,
};
use bareverbs_mmio::{IdentityBuffer, MappedMemory};
use board::card::Slot;
use board::{During as _, Failure, Timer as BoardTimer, interrupts, println};
use embassy_executor::raw::Executor;
use embassy_time::{Duration, Timer, with_timeout};
use embassy_time_driver::{Driver, TICK_HZ};
use embassy_time_queue_utils::Queue;
use programs::connection::{Card, PORT_TIMEOUT, Rdma, bring_up};
use programs::pattern;
use spin::Mutex;
use static_cell::StaticCell;

// ---- what the executor wants of the machine

/// Whether a task was woken since the executor has looked.
static WOKEN: AtomicBool = AtomicBool::new(false);

/// Called by the executor's wakers, in an interrupt handler too.
#[unsafe(export_name = "__pender")]
fn pender(_: *mut ()) {
    WOKEN.store(true, Ordering::Release);
}

/// The time of tasks: the board's, in ticks of the executor.
struct Time {
    /// Who waits until when. Locked with interrupts held back, since a waker is used anywhere.
    waiting: Mutex<Queue>,
}

const NANOS: u64 = 1_000_000_000 / TICK_HZ;

impl Driver for Time {
    fn now(&self) -> u64 {
        BoardTimer.now().as_nanos() / NANOS
    }

    fn schedule_wake(&self, at: u64, waker: &Waker) {
        let is_next = interrupts::held(|| self.waiting.lock().schedule_wake(at, waker));
        if is_next {
            // The sleep that is to come ends earlier.
            pender(core::ptr::null_mut());
        }
    }
}

embassy_time_driver::time_driver_impl!(static TIME: Time = Time { waiting: Mutex::new(Queue::new()) });

/// The card's interrupts. Locked with interrupts held back, and by [`interrupted`].
static HANDLER: Mutex<Option<InterruptHandler<'static, &'static mut Card>>> = Mutex::new(None);
static INTERRUPTS: AtomicU32 = AtomicU32::new(0);

/// Takes the card's completion events, which wakes the tasks that wait for them.
fn interrupted(vector: usize) {
    INTERRUPTS.fetch_add(1, Ordering::Relaxed);
    if let (Some(mut handler), Ok(vector)) = (HANDLER.try_lock(), u16::try_from(vector))
        && let Some(handler) = handler.as_mut()
    {
        handler.on_interrupt(vector);
    }
}

/// Runs the tasks until both ends are back, and does what is due for the card.
fn run(executor: &'static Executor, rdma: &mut Rdma) -> Result<(), Failure> {
    let mut due = BoardTimer.now();
    while ENDS.lock().iter().any(Option::is_none) {
        // SAFETY: this is the only place where the executor is polled, and no task comes here.
        unsafe { executor.poll() };
        let now = BoardTimer.now();
        if now >= due {
            due = rdma.maintain().during("the card")?;
        }
        // Wakes those whose time has come, and gives the time of the next.
        let next = interrupts::held(|| TIME.waiting.lock().next_expiration(TIME.now()));
        let deadline = bareverbs::platform::Instant::from_nanos(next.saturating_mul(NANOS)).min(due);
        interrupts::sleep_until(deadline, || WOKEN.swap(false, Ordering::Acquire));
    }
    Ok(())
}

// ---- the program

/// Bytes of a message, and how many go there and back.
const SIZE: usize = 4096;
const MESSAGES: u32 = 200;
/// After so many the client sleeps.
const REST: u32 = 20;
/// Receives alternate between two places; what is sent lies in a third.
const OUT: usize = 2 * SIZE;
const SEND: u64 = 100;
const TIMEOUT: Duration = Duration::from_secs(30);

/// One end of the connection.
struct End {
    qp: QueuePair<'static, &'static mut Card>,
    cq: CompletionQueue<'static, &'static mut Card>,
    region: Region<'static, IdentityBuffer>,
    received: u32,
    sending: u32,
}

/// What became of each end: its task puts it here.
static ENDS: Mutex<[Option<Result<End, Failure>>; 2]> = Mutex::new([None, None]);
/// How often the third task has waited.
static TICKS: AtomicU32 = AtomicU32::new(0);

#[embassy_executor::task(pool_size = 2)]
async fn exchange(number: usize, mut end: End) {
    let result = end.exchange(number == 0).await;
    if let Some(place) = ENDS.lock().get_mut(number) {
        *place = Some(result.map(|()| end));
    }
}

#[embassy_executor::task]
async fn tick() {
    loop {
        Timer::after(Duration::from_millis(2)).await;
        TICKS.fetch_add(1, Ordering::Relaxed);
    }
}

impl End {
    fn create(rdma: &mut Rdma, pd: PdHandle, memory: MappedMemory) -> Result<Self, Failure> {
        let region = rdma.reg_mr(pd, IdentityBuffer::new(memory), Access::LOCAL_WRITE).during("reg_mr")?;
        let cq = rdma.create_cq(64).during("create_cq")?;
        let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let (send_cq, recv_cq) = (cq.handle(), cq.handle());
        let init = QpInit { pd, qp_type: QpType::Rc, send_cq, recv_cq, cap, sq_sig_all: true };
        let qp = rdma.create_qp(&init).during("create_qp")?;
        Ok(Self { qp, cq, region, received: 0, sending: 0 })
    }

    /// Messages there and back; the client begins, and makes the bytes.
    async fn exchange(&mut self, client: bool) -> Result<(), Failure> {
        for number in 0..MESSAGES {
            let place = (number % 2) as usize * SIZE;
            if client {
                if number % REST == REST - 1 {
                    Timer::after(Duration::from_millis(5)).await;
                }
                pattern::fill(&mut self.region, OUT, SIZE, number)?;
                self.send(OUT)?;
            }
            self.wait(number + 1).await?;
            pattern::check(&self.region, place, SIZE, |at| pattern::byte(number, at))?;
            if !client {
                self.send(place)?;
                self.wait(number + 1).await?;
            }
            self.receive(u64::from(number % 2))?;
        }
        Ok(())
    }

    fn receive(&mut self, place: u64) -> Result<(), Failure> {
        let sges = [self.region.sge(place * SIZE as u64, SIZE as u32)];
        self.qp.recv.post(&RecvWr { wr_id: place, sges: &sges }).during("posting a receive")
    }

    fn send(&mut self, at: usize) -> Result<(), Failure> {
        self.sending += 1;
        let sges = [self.region.sge(at as u64, SIZE as u32)];
        self.qp.send.post(&SendWr::send(&sges).id(SEND)).during("posting a send")
    }

    /// Waits until every send has completed and `messages` messages have come.
    async fn wait(&mut self, messages: u32) -> Result<(), Failure> {
        while self.sending != 0 || self.received < messages {
            let mut done = [Completion::EMPTY];
            if self.cq.poll(&mut done).during("polling")? == 0 {
                with_timeout(TIMEOUT, self.cq.ready()).await.map_err(|_| "no completion").during("waiting")?;
                continue;
            }
            let [Completion { wr_id, status, .. }] = done;
            match (status, wr_id) {
                (WcStatus::Success, SEND) => self.sending -= 1,
                (WcStatus::Success, _) => self.received += 1,
                _ => return Err(Failure::new(format_args!("request {wr_id} ended with {status:?}"))),
            }
        }
        Ok(())
    }
}

/// Connects the ends with each other, over the loopback of the card's port.
fn connect(rdma: &mut Rdma, [first, second]: [&End; 2]) -> Result<(), Failure> {
    let lid = rdma.wait_active(1, PORT_TIMEOUT).during("wait_active")?.lid;
    for (end, peer) in [(first, second), (second, first)] {
        let dest_qpn = rdma.qp_info(peer.qp.handle()).during("qp_info")?.qpn;
        let av = AddressVector { dlid: lid, port_num: 1, ..AddressVector::default() };
        let attr = QpAttr { port_num: 1, av, path_mtu: Mtu::Mtu1024, dest_qpn, ..QpAttr::default() };
        let attr = QpAttr { min_rnr_timer: 12, timeout: 14, retry_cnt: 7, rnr_retry: 7, ..attr };
        rdma.modify_qp_to_rts(end.qp.handle(), &attr).during("modify_qp_to_rts")?;
    }
    Ok(())
}

board::entry!(main);

fn main() -> Result<(), Failure> {
    println!("tasks on {}", board::NAME);
    let slot = Slot::find().during("looking for the card")?;
    let arena = board::dma_memory!(Card::ARENA).during("the arena is in use")?;
    let pages = board::dma::firmware_pages().during("the pages for the firmware are in use")?;
    let config = slot.config();
    let mut rdma = bring_up(slot.machine(arena, pages), &config)?;
    let handler = rdma.take_interrupt_handler().during("take_interrupt_handler")?;
    interrupts::held(|| *HANDLER.lock() = Some(handler));
    interrupts::handle_with(interrupted);
    let pd = rdma.alloc_pd().during("alloc_pd")?;
    let mut first = End::create(&mut rdma, pd, board::dma_memory!(3 * SIZE).during("the first buffer is in use")?)?;
    let mut second = End::create(&mut rdma, pd, board::dma_memory!(3 * SIZE).during("the second buffer is in use")?)?;
    connect(&mut rdma, [&first, &second])?;
    for end in [&mut first, &mut second] {
        (0..2).try_for_each(|place| end.receive(place))?;
    }

    static EXECUTOR: StaticCell<Executor> = StaticCell::new();
    let executor: &'static Executor =
        EXECUTOR.try_init(Executor::new(core::ptr::null_mut())).during("the executor is in use")?;
    for (number, end) in [first, second].into_iter().enumerate() {
        executor.spawner().spawn(exchange(number, end).map_err(|_| "no place for the task").during("spawning")?);
    }
    executor.spawner().spawn(tick().map_err(|_| "no place for the task").during("spawning")?);
    run(executor, &mut rdma)?;
    println!("{MESSAGES} messages of {SIZE} bytes there and back between two tasks, each byte checked");
    println!("{} interrupts, {} ticks of the third task", INTERRUPTS.load(Ordering::Relaxed), TICKS.load(Ordering::Relaxed));

    let ends = core::mem::take(&mut *ENDS.lock());
    drop(interrupts::held(|| HANDLER.lock().take()));
    for end in ends.into_iter().flatten() {
        let End { qp, cq, region, .. } = end?;
        rdma.destroy_qp(qp).during("destroy_qp")?;
        rdma.destroy_cq(cq).during("destroy_cq")?;
        rdma.dereg_mr(region).during("dereg_mr")?;
    }
    rdma.dealloc_pd(pd).during("dealloc_pd")?;
    let card = rdma.into_provider().ok().during("somebody has a queue")?;
    let report = card.teardown_in_place().during("taking the card down")?;
    println!("down: {} of {} pages came back", report.pages_back, report.pages_given);
    Ok(())
}
