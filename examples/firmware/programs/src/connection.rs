//! One reliable connection: the card in its slot, a registered buffer, a completion queue, a queue pair.

use core::time::Duration;

use bareverbs::platform::{Clock as _, Machine};
use bareverbs::storage::{QpRings, Storage};
use bareverbs::{
    Access, AddressVector, Completion, CompletionQueue, Event, InterruptHandler, Mtu, MwHandle, PdHandle, Psn, QpAttr, QpCap,
    QpInit, QpType, QueuePair, RecvWr, Region, SendOp, SendWr, Sge, Verbs, WcStatus, storage,
};
use bareverbs_mlx5::Config;
use bareverbs_mmio::{IdentityBuffer, MappedMemory};
use board::card::{self, Slot};
use board::{Board, During as _, Failure, Timer, interrupts, println};
use spin::Mutex;
use static_cell::{ConstStaticCell, StaticCell};

use crate::address::Address;

/// An arena of 128 pages: queues, doorbell records, mailboxes.
pub type Card = card::Card<128>;
/// The verbs on it. The driver stays where it is made: by value it would be on the stack several times.
pub type Rdma = Verbs<'static, &'static mut Card>;
/// 1 protection domain, 4 regions, 4 windows, 2 completion queues, 2 queue pairs.
pub type Tables = storage!['static, &'static mut Card; pds: 1, mrs: 4, mws: 4, cqs: 2, qps: 2];
/// Room for 16 requests of any kind (a bind takes three blocks) and 16 receives.
pub type Rings = QpRings<64, 16>;

static RINGS: [Rings; 2] = [const { Rings::new() }; 2];
static TABLES: ConstStaticCell<Tables> = {
    let [first, second] = &RINGS;
    ConstStaticCell::new(Storage::new([first.view(), second.view()]))
};
static DRIVER: StaticCell<Option<Card>> = StaticCell::new();
/// Bytes of [`Tables`] and [`Rings`].
pub const STORAGE: usize = size_of::<Tables>() + size_of::<[Rings; 2]>();

/// Brings the card of a machine up, and returns the verbs on it, over the tables of this program.
///
/// # Errors
/// The bring-up failed, or it is not the first: there is one driver.
pub fn bring_up(machine: Machine<Board>, config: &Config) -> Result<Rdma, Failure> {
    let place = DRIVER.try_init(None).during("the driver is in use")?;
    let card = Card::bring_up_in(place, machine, config).during("bringing the card up")?;
    Ok(Rdma::new(card, TABLES.try_take().during("the tables are in use")?))
}

/// What the card's interrupts need of the verbs. Locked with interrupts held back, and by [`interrupted`].
static HANDLER: Mutex<Option<InterruptHandler<'static, &'static mut Card>>> = Mutex::new(None);

/// Takes the card's completion events, in the middle of whatever the program does.
fn interrupted(vector: usize) {
    if let (Some(mut handler), Ok(vector)) = (HANDLER.try_lock(), u16::try_from(vector))
        && let Some(handler) = handler.as_mut()
    {
        handler.on_interrupt(vector);
    }
}

/// For the training of a real card's link after its reset, and the subnet manager. Simulated ports take 50 ms.
pub const PORT_TIMEOUT: Duration = Duration::from_secs(60);

/// Time between two calls of [`Rdma::maintain`], and the timeout of one wait for an interrupt.
const MAINTAIN_INTERVAL: Duration = Duration::from_secs(1);

/// A queue pair with everything that it needs.
pub struct Connection {
    /// The verbs.
    pub rdma: Rdma,
    /// The buffer, registered as one region.
    pub region: Region<'static, IdentityBuffer>,
    /// The queue pair.
    pub qp: QueuePair<'static, &'static mut Card>,
    /// The protection domain.
    pub pd: PdHandle,
    /// Where the peer reaches the queue pair.
    pub address: Address,
    /// Whether to wait for interrupts.
    pub events: bool,
    /// Vector of the completion queue.
    pub vector: usize,
    cq: CompletionQueue<'static, &'static mut Card>,
    armed: bool,
    interrupts: u32,
}

impl Connection {
    /// Brings the card up and makes the objects; the buffer may be written and read by the peer, through windows too.
    ///
    /// # Errors
    /// What could not be done.
    pub fn open(slot: Slot, arena: MappedMemory, buffer: IdentityBuffer) -> Result<Self, Failure> {
        let pages = board::dma::firmware_pages().during("the pages for the firmware are in use")?;
        let config = slot.config();
        let mut rdma = bring_up(slot.machine(arena, pages), &config)?;
        let handler = rdma.take_interrupt_handler().during("take_interrupt_handler")?;
        interrupts::held(|| *HANDLER.lock() = Some(handler));
        interrupts::handle_with(interrupted);
        let lid = rdma.wait_active(1, PORT_TIMEOUT).during("wait_active")?.lid;
        let pd = rdma.alloc_pd().during("alloc_pd")?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::MW_BIND;
        let region = rdma.reg_mr(pd, buffer, access).during("reg_mr")?;
        let cq = rdma.create_cq(64).during("create_cq")?;
        let vector = usize::from(rdma.cq_info(cq.handle()).during("cq_info")?.vector);
        let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let (send_cq, recv_cq) = (cq.handle(), cq.handle());
        let init = QpInit { pd, qp_type: QpType::Rc, send_cq, recv_cq, cap, sq_sig_all: true };
        let qp = rdma.create_qp(&init).during("create_qp")?;
        // A connection that follows another one soon must not take its packets for its own.
        let psn = Psn::new(Timer.now().as_nanos() as u32 & 0xff_ffff);
        let address = Address { lid, qpn: rdma.qp_info(qp.handle()).during("qp_info")?.qpn, psn };
        Ok(Self { rdma, region, qp, pd, address, events: false, vector, cq, armed: false, interrupts: 0 })
    }

    /// Takes the queue pair to RTS, towards `peer`, with the times of `ibv_rc_pingpong`. A message that comes before the first
    /// receive is posted is sent again.
    ///
    /// # Errors
    /// The step that failed.
    pub fn connect(&mut self, peer: &Address) -> Result<(), Failure> {
        let attr = QpAttr {
            port_num: 1,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            av: AddressVector { dlid: peer.lid, port_num: 1, ..AddressVector::default() },
            path_mtu: Mtu::Mtu1024,
            dest_qpn: peer.qpn,
            rq_psn: peer.psn,
            sq_psn: self.address.psn,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        self.rdma.modify_qp_to_rts(self.qp.handle(), &attr).during("modify_qp_to_rts")
    }

    /// Returns a piece of the buffer.
    pub fn sge(&self, at: usize, len: usize) -> Sge {
        self.region.sge(at as u64, len as u32)
    }

    /// Posts a receive into a piece of the buffer.
    ///
    /// # Errors
    /// The refused request.
    pub fn receive(&mut self, wr_id: u64, at: usize, len: usize) -> Result<(), Failure> {
        let sges = [self.sge(at, len)];
        self.qp.recv.post(&RecvWr { wr_id, sges: &sges }).during("posting a receive")
    }

    /// Posts a request.
    ///
    /// # Errors
    /// The refused request.
    pub fn post(&mut self, wr_id: u64, op: SendOp<'_>) -> Result<(), Failure> {
        self.qp.send.post(&SendWr::new(op).id(wr_id).signaled()).during("posting a request")
    }

    /// Returns the next completion that succeeded.
    ///
    /// # Errors
    /// Of a request that did not, of the card, or because none came in `timeout`.
    pub fn next(&mut self, timeout: Duration) -> Result<Completion, Failure> {
        let completion = self.next_of_any_status(timeout)?;
        if completion.status == WcStatus::Success {
            return Ok(completion);
        }
        let Completion { wr_id, status, vendor_err, .. } = completion;
        Err(Failure::new(format_args!("request {wr_id} ended with {status:?}, vendor error {vendor_err:#x}")))
    }

    /// Returns the next completion.
    ///
    /// # Errors
    /// Of the card, or because none came in `timeout`.
    pub fn next_of_any_status(&mut self, timeout: Duration) -> Result<Completion, Failure> {
        let deadline = Timer.now().after(timeout);
        let mut due = Timer.now().after(MAINTAIN_INTERVAL);
        let mut overdue = false;
        loop {
            let mut completions = [Completion::EMPTY];
            if self.cq.poll(&mut completions).during("polling")? != 0 {
                if overdue {
                    return Err(Failure::new(format_args!("a completion came without its interrupt")));
                }
                return Ok(completions[0]);
            }
            let now = Timer.now();
            if now >= due {
                due = self.rdma.maintain().during("the card")?;
            }
            if now >= deadline {
                return Err(Failure::new(format_args!("no completion in {} s", timeout.as_secs())));
            }
            if self.events {
                overdue = self.wait_for_interrupt()?;
            }
        }
    }

    /// Asks for an event, and the next time waits for its interrupt; gives whether that should have come and did not.
    fn wait_for_interrupt(&mut self) -> Result<bool, Failure> {
        if !self.armed {
            self.interrupts = interrupts::taken(self.vector);
            self.cq.req_notify(false).during("req_notify")?;
            self.armed = true;
            // A completion may have come before: one more poll.
            return Ok(false);
        }
        // The handler has taken the event by then.
        let raised = interrupts::wait(self.vector, self.interrupts, MAINTAIN_INTERVAL).is_some();
        while let Some(event) = self.rdma.poll_event().during("poll_event")? {
            match event {
                Event::Completion(_) => self.armed = false,
                other => println!("event: {other:?}"),
            }
        }
        Ok(!raised)
    }

    /// Destroys the objects and takes the card down. A window that is bound through the queue pair goes after it.
    ///
    /// # Errors
    /// What could not be done.
    pub fn close(mut self, window: Option<MwHandle>) -> Result<(), Failure> {
        self.rdma.destroy_qp(self.qp).during("destroy_qp")?;
        if let Some(window) = window {
            self.rdma.dealloc_mw(window).during("dealloc_mw")?;
        }
        drop(interrupts::held(|| HANDLER.lock().take()));
        self.rdma.destroy_cq(self.cq).during("destroy_cq")?;
        self.rdma.dereg_mr(self.region).during("dereg_mr")?;
        self.rdma.dealloc_pd(self.pd).during("dealloc_pd")?;
        let card = self.rdma.into_provider().ok().during("somebody has a queue")?;
        let report = card.teardown_in_place().during("taking the card down")?;
        println!("down: {} of {} pages came back", report.pages_back, report.pages_given);
        Ok(())
    }
}
