//! A queue pair made by the driver on the simulated device, which then stands still: only the driver's own work is left to be
//! measured. Completions are written by hand where the device would.

use std::alloc::Layout;
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use bareverbs::platform::{Clock, Instant, Machine, OffsetMap, OutOfRange, Platform, Registers};
use bareverbs::storage::{QpRings, Storage};
use bareverbs::{
    Access, AddressVector, Completion, CompletionQueue, Destination, GidEntry, GlobalRoute, Lid, MrHandle, MwHandle, MwType,
    Payload, Qkey, QpAttr, QpCap, QpInit, QpType, QueuePair, RecvWr, Remote, Rkey, SendFlags, SendOp, SendWr, Sge, Verbs,
    storage,
};
use bareverbs_mlx5::{Config, Mlx5};
use bareverbs_mlx5_spec::{CmdOpcode, Cqc, Cqe, CqeOpcode, CreateCqIn, View, ViewMut};
use bareverbs_mmio::{CpuFence, MappedBar, MappedDoorbell, MappedMemory, MappedWord, PageRanges};
use bareverbs_sim::host_memory::{DmaFault, HostMemory};
use bareverbs_sim::trace::{Record, Tracer};
use bareverbs_sim::{Device, DeviceConfig};
use bareverbs_tests::{Connection, rc_steps};

use crate::by_hand::{ByHand, Done};
use crate::operations::{BATCH, Kind, Operation};

const PAGES: usize = 2048;
const ARENA: usize = PAGES * 4096;
/// Bytes behind the arena for the pages of the firmware.
const FIRMWARE: usize = 1 << 20;
/// Blocks of the send ring, entries of the receive ring and of the completion queue.
const DEPTH: usize = 256;
/// Q_Key of datagrams.
const QKEY: Qkey = Qkey::new(0x1111);

/// Returns zeroed memory for the whole run.
fn plain(len: usize) -> NonNull<u8> {
    let layout = Layout::from_size_align(len, 4096).expect("a layout");
    // SAFETY: the layout has a size, and the memory is never freed.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).expect("memory")
}

/// The arena and the firmware's pages as the device reaches them; device addresses are pointers.
#[derive(Clone, Copy)]
struct Arena(NonNull<u8>);

// SAFETY: the memory lives for ever and belongs to no thread. `Device` wants memory that may go to another thread; here it
// stays in the one that also runs the driver.
unsafe impl Send for Arena {}

impl Arena {
    fn at(self, addr: u64, len: usize) -> Result<*mut u8, DmaFault> {
        let offset = addr.wrapping_sub(self.0.as_ptr() as u64);
        let end = offset.checked_add(len as u64).filter(|end| *end <= (ARENA + FIRMWARE) as u64);
        end.map(|_| self.0.as_ptr().wrapping_add(offset as usize)).ok_or(DmaFault { addr, len })
    }
}

impl HostMemory for Arena {
    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        let from = self.at(addr, into.len())?;
        // SAFETY: the bytes lie in the arena, which lives for ever, and nothing else runs meanwhile.
        unsafe { std::ptr::copy(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), DmaFault> {
        let to = self.at(addr, from.len())?;
        // SAFETY: the bytes lie in the arena, which lives for ever, and nothing else runs meanwhile.
        unsafe { std::ptr::copy(from.as_ptr(), to, from.len()) };
        Ok(())
    }
}

/// The device's registers for the control path; doorbells go to plain memory, because the device stands still.
pub(crate) struct Bar {
    device: Arc<Mutex<Device>>,
    plain: MappedBar,
}

impl Registers for Bar {
    type Doorbell = MappedDoorbell;
    type Word = MappedWord;

    fn len(&self) -> usize {
        Device::bar_len() as usize
    }

    fn read32(&self, offset: usize) -> Result<u32, OutOfRange> {
        let mut bytes = [0; 4];
        self.device.lock().expect("no panic before").bar_read(offset as u64, &mut bytes);
        Ok(u32::from_ne_bytes(bytes))
    }

    fn write32(&mut self, offset: usize, value: u32) -> Result<(), OutOfRange> {
        self.device.lock().expect("no panic before").bar_write(offset as u64, &value.to_ne_bytes());
        Ok(())
    }

    fn doorbell(&self, offset: usize, count: usize) -> Result<MappedDoorbell, OutOfRange> {
        self.plain.doorbell(offset, count)
    }

    fn word(&self, offset: usize) -> Result<MappedWord, OutOfRange> {
        self.plain.word(offset)
    }
}

/// Time in which the device works while things are made.
pub(crate) struct DeviceClock {
    device: Arc<Mutex<Device>>,
    now: Cell<u64>,
}

impl Clock for DeviceClock {
    fn now(&self) -> Instant {
        self.now.set(self.now.get() + 20);
        Instant::from_nanos(self.now.get())
    }

    fn relax(&self, _deadline: Instant) {
        self.now.set(self.now.get() + 1000);
        self.device.lock().expect("no panic before").advance(Instant::from_nanos(self.now.get()));
    }
}

/// The driver's own register file and memory, both plain.
pub(crate) struct PlainPlatform;

// SAFETY: plain memory, and the CPU's own barriers.
#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl Platform for PlainPlatform {
    type Registers = Bar;
    type Memory = MappedMemory;
    type Pages = PageRanges;
    type Fence = CpuFence;
    type Clock = DeviceClock;
}

/// The driver that is measured.
pub(crate) type Driver = Mlx5<PlainPlatform, PAGES>;

/// Sees where the rings lie.
#[derive(Clone, Default)]
struct Watch(Arc<Mutex<Option<u64>>>);

impl Tracer for Watch {
    fn record(&mut self, _: Instant, record: Record<'_>) {
        let Record::Command { input, .. } = record else { return };
        let Some(create) = View::<CreateCqIn>::new(input) else { return };
        if create.get(CreateCqIn::OPCODE) == CmdOpcode::CreateCq.code() {
            assert_eq!(create.sub(CreateCqIn::CQ_CONTEXT).get(Cqc::LOG_PAGE_SIZE), 0);
            *self.0.lock().expect("no panic before") = create.tail64(CreateCqIn::PAS, 0);
        }
    }
}

/// How requests reach the device, and which port its queue pairs are at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Path {
    /// A short request that is posted alone is copied to the BlueFlame register, which a write-combining BAR has. Otherwise all
    /// ring doorbells in an uncached one.
    pub(crate) blue_flame: bool,
    /// The port is one of Ethernet.
    pub(crate) roce: bool,
}

impl Path {
    const fn fence(self) -> CpuFence {
        if self.blue_flame { CpuFence::WRITE_COMBINING } else { CpuFence::UNCACHED }
    }

    /// Returns whether the path matters to an operation: BlueFlame is for sends that are posted alone.
    pub(crate) const fn concerns(self, operation: &Operation) -> bool {
        !self.blue_flame || matches!(operation.kind, Kind::Send { .. } | Kind::Datagram { .. }) && operation.requests == 1
    }
}

/// A connected queue pair and one for datagrams.
pub(crate) struct Fixtures {
    connected: Fixture,
    datagrams: Fixture,
}

impl Fixtures {
    /// Creates each on a device of its own.
    pub(crate) fn new(path: Path) -> Self {
        Self { connected: Fixture::new(path, QpType::Rc), datagrams: Fixture::new(path, QpType::Ud) }
    }

    /// Returns the one for an operation.
    pub(crate) const fn of(&mut self, operation: &Operation) -> &mut Fixture {
        if matches!(operation.kind, Kind::Datagram { .. }) { &mut self.datagrams } else { &mut self.connected }
    }
}

/// A queue pair whose device stands still.
pub(crate) struct Fixture {
    /// The verbs.
    pub(crate) verbs: Verbs<'static, Driver>,
    /// The queue pair.
    pub(crate) qp: QueuePair<'static, Driver>,
    /// Its completion queue.
    pub(crate) cq: CompletionQueue<'static, Driver>,
    /// 64 bytes of a region.
    pub(crate) sge: Sge,
    /// The same of a region that is not in the first slot of its search.
    pub(crate) displaced: Sge,
    /// Somewhere at the peer.
    pub(crate) remote: Remote,
    /// Where datagrams go.
    pub(crate) to: Destination,
    /// The region of `sge`.
    pub(crate) mr: MrHandle,
    /// A type 2 window.
    pub(crate) mw: MwHandle,
    /// Where completions are put.
    pub(crate) found: [Completion; BATCH],
    /// A queue pair that no driver drives, with a region like that of `sge`.
    pub(crate) by_hand: ByHand,
    /// Where completions of that are put.
    pub(crate) done: [Done; BATCH],
    cq_entries: u32,
    ring: *mut u8,
    qpn: u32,
    /// Completions written so far, blocks and receives completed so far.
    produced: u32,
    retired: u32,
    received: u32,
}

impl Fixture {
    /// Creates a queue pair, connected or for datagrams, on a device that then stands still.
    fn new(path: Path, qp_type: QpType) -> Self {
        let arena = Arena(plain(ARENA + FIRMWARE));
        let config = DeviceConfig::with_lid(1);
        let config = if path.roce { config.with_ethernet() } else { config };
        let mut device = Device::new(config, Box::new(arena)).unwrap();
        let watch = Watch::default();
        device.set_tracer(Some(Box::new(watch.clone())));
        device.enable_function();
        let device = Arc::new(Mutex::new(device));
        // SAFETY: the arena is aligned to a page, lives for ever, and is accessed by pointer only.
        let memory = unsafe { MappedMemory::new(arena.0, ARENA, arena.0.as_ptr() as u64) };
        let mut pages = PageRanges::new();
        // SAFETY: as above, the bytes behind the arena.
        let added = unsafe {
            let behind = arena.0.add(ARENA);
            pages.add(behind, FIRMWARE, behind.as_ptr() as u64)
        };
        assert!(added);
        let bar = plain(Device::bar_len() as usize);
        // SAFETY: the memory is aligned to a page, lives for ever, and is accessed through the value only.
        let registers = Bar { device: device.clone(), plain: unsafe { MappedBar::new(bar, Device::bar_len() as usize) } };
        let clock = DeviceClock { device, now: Cell::new(0) };
        let machine = Machine { registers, memory, pages, fence: path.fence(), clock };
        let config = Config { blue_flame: path.blue_flame, ..Config::DEFAULT };
        let driver = Mlx5::bring_up(machine, &config).map_err(|(error, _)| error).expect("bring-up");
        let rings: &'static QpRings<DEPTH, DEPTH> = Box::leak(Box::default());
        let storage: &'static mut storage!['static, Driver; pds: 1, mrs: 8, mws: BATCH, cqs: 1, qps: 1] =
            Box::leak(Box::new(Storage::new([rings.view()])));
        let mut verbs = Verbs::new(driver, storage);
        let pd = verbs.alloc_pd().expect("pd");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::MW_BIND;
        let map = OffsetMap::default();
        // Three more regions, so that the one in use is not the only one.
        // SAFETY: the device stands still from here on and moves no byte.
        let mr = (0..4).map(|n| unsafe { verbs.reg_mr_raw(pd, n << 20, 1 << 20, access, &map) }.expect("mr")).last();
        let mr = mr.expect("regions");
        let info = verbs.mr_info(mr).expect("mr");
        // Keys come one after the other: the ninth begins its search at the slot of the first.
        let mut displaced = None;
        for n in 4..9 {
            // SAFETY: as above.
            let mr = unsafe { verbs.reg_mr_raw(pd, n << 20, 1 << 20, access, &map) }.expect("mr");
            displaced = Some(verbs.mr_info(mr).expect("mr"));
            if n < 8 {
                verbs.dereg_mr_raw(mr).expect("dereg_mr_raw");
            }
        }
        let displaced = displaced.expect("a region");
        let mw = verbs.alloc_mw(pd, MwType::Type2).expect("mw");
        let cq = verbs.create_cq(DEPTH as u32).expect("cq");
        let cap = QpCap { max_send_wr: 80, max_recv_wr: DEPTH as u32, max_send_sge: 4, max_recv_sge: 1, max_inline_data: 64 };
        let init = QpInit { pd, qp_type, send_cq: cq.handle(), recv_cq: cq.handle(), cap, sq_sig_all: false };
        let qp = verbs.create_qp(&init).expect("qp");
        let qpn = verbs.qp_info(qp.handle()).expect("qp").qpn;
        let mut av = AddressVector { dlid: Lid::new(1), port_num: 1, ..AddressVector::default() };
        if path.roce {
            let entry = GidEntry::link_local(verbs.query_port(1).expect("port").mac);
            verbs.set_gid(1, 0, &entry).expect("GID");
            let grh = GlobalRoute { dgid: entry.gid, hop_limit: 64, ..GlobalRoute::default() };
            av = AddressVector { grh: Some(grh), dmac: Some(entry.mac), port_num: 1, ..AddressVector::default() };
        }
        if qp_type == QpType::Ud {
            let attr = QpAttr { port_num: 1, qkey: QKEY, ..QpAttr::default() };
            verbs.modify_qp_to_rts(qp.handle(), &attr).expect("modify");
        } else {
            for (attr, mask) in rc_steps(&Connection::default(), Lid::new(1), qpn, 0, 0) {
                verbs.modify_qp(qp.handle(), &QpAttr { av, ..attr }, mask).expect("modify");
            }
        }
        let to = Destination { ah: verbs.create_ah(pd, &av).expect("address"), remote_qpn: qpn, remote_qkey: QKEY };
        let cq_entries = verbs.cq_info(cq.handle()).expect("cq").entries;
        let ring = watch.0.lock().expect("no panic before").expect("CREATE_CQ");
        let ring = arena.at(ring, cq_entries as usize * 64).expect("inside");
        let sge = Sge { addr: info.addr + 4096, length: 64, lkey: info.lkey };
        Self {
            verbs,
            qp,
            cq,
            sge,
            displaced: Sge { addr: displaced.addr + 4096, length: 64, lkey: displaced.lkey },
            remote: Remote { addr: 0x1234_5678, rkey: info.rkey },
            to,
            mr,
            mw,
            found: [Completion::EMPTY; BATCH],
            by_hand: ByHand::new(&sge),
            done: [Done::default(); BATCH],
            cq_entries,
            ring,
            qpn: qpn.get(),
            produced: 0,
            retired: 0,
            received: 0,
        }
    }

    /// Writes the completion of the request with this index, as the device does: owner byte last.
    fn complete(&mut self, index: u32, opcode: CqeOpcode) {
        let mut cqe = [0; 64];
        let owner = (self.produced / self.cq_entries) & 1;
        ViewMut::<Cqe>::new(&mut cqe)
            .expect("64 bytes")
            .set(Cqe::SRQN_UIDX, 0)
            .set(Cqe::SEND_OPCODE, 8)
            .set(Cqe::QPN, self.qpn)
            .set(Cqe::WQE_COUNTER, index & 0xffff)
            .set(Cqe::OPCODE, opcode.code())
            .set(Cqe::OWNER, owner);
        let at = (self.produced % self.cq_entries) as usize * 64;
        // SAFETY: the ring has `cq_entries` entries of 64 bytes, and the driver is not reading now.
        unsafe { std::ptr::copy(cqe.as_ptr(), self.ring.add(at), 64) };
        self.produced += 1;
    }

    /// Returns the present key of the window.
    pub(crate) fn window_key(&self) -> Rkey {
        self.verbs.mw_info(self.mw).expect("mw").rkey
    }

    /// Runs of `operation` that fit in its queue.
    fn room(&mut self, operation: &Operation) -> u64 {
        match operation.kind {
            Kind::Send { blocks } | Kind::Datagram { blocks } => {
                u64::from(self.qp.send.free_blocks() / (blocks * operation.requests))
            }
            // As many binds in flight as there are windows.
            Kind::Window { .. } => (BATCH as u64) / u64::from(operation.requests),
            Kind::ByHand { blocks } => DEPTH as u64 / u64::from(blocks * operation.requests),
            Kind::Recv | Kind::Poll { .. } | Kind::PollByHand => DEPTH as u64 / 2 / u64::from(operation.requests),
        }
    }

    /// Calls `run` with the operation in turns of as many as fit, until there were `count` runs.
    pub(crate) fn run(&mut self, operation: &Operation, count: u64, mut run: impl FnMut(&mut Self, u64)) {
        let mut left = count;
        while left > 0 {
            let turns = self.room(operation).min(left);
            let requests = turns as u32 * operation.requests;
            match operation.kind {
                Kind::Poll { recv } => self.fill(requests, recv),
                Kind::PollByHand => self.by_hand.fill(requests, &self.sge, self.remote),
                _ => {}
            }
            run(self, turns);
            match operation.kind {
                Kind::Send { blocks } | Kind::Datagram { blocks } | Kind::Window { blocks } => {
                    self.retired = self.retired.wrapping_add(requests * blocks);
                    self.complete(self.retired.wrapping_sub(blocks), CqeOpcode::Req);
                    assert_eq!(self.cq.poll(&mut [Completion::EMPTY; 2]).expect("poll"), 1);
                }
                Kind::Recv => {
                    self.complete_receives(requests);
                    self.drain(requests);
                }
                Kind::ByHand { .. } | Kind::PollByHand => self.by_hand.retire(),
                Kind::Poll { .. } => {}
            }
            left -= turns;
        }
    }

    /// Posts requests and completes them, to be polled.
    fn fill(&mut self, requests: u32, recv: bool) {
        let sges = [self.sge];
        for n in 0..requests {
            if recv {
                self.qp.recv.post(&RecvWr { wr_id: u64::from(n), sges: &sges }).expect("post");
            } else {
                let op = SendOp::Write { payload: Payload::Sges(&sges), remote: self.remote };
                self.qp.send.post(&SendWr { wr_id: u64::from(n), flags: SendFlags::SIGNALED, op }).expect("post");
                self.complete(self.retired, CqeOpcode::Req);
                self.retired = self.retired.wrapping_add(1);
            }
        }
        if recv {
            self.complete_receives(requests);
        }
    }

    fn complete_receives(&mut self, requests: u32) {
        for _ in 0..requests {
            self.complete(self.received, CqeOpcode::RespSend);
            self.received = self.received.wrapping_add(1);
        }
    }

    fn drain(&mut self, requests: u32) {
        let mut left = requests as usize;
        while left > 0 {
            left -= self.cq.poll(&mut [Completion::EMPTY; BATCH]).expect("poll");
        }
    }
}
