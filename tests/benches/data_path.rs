//! What a posted request and a polled completion cost, with every check on.
//!
//! The queue pair is made by the driver on the simulated device. Then its registers are swapped for plain memory and the
//! device stands still, so that only the driver's own work is measured: checks, WQE, fences, doorbell record, doorbell; and
//! for completions: owner, copy, checks, consumer index. Completions are written by hand where the device would.
#![expect(unsafe_code, reason = "the driver's own register file and memory over plain memory are what is measured")]

use std::alloc::Layout;
use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant as WallClock};

use bareverbs::{
    Access, AddressVector, Clock, Completion, CqHandle, Instant, Lid, OffsetMap, OutOfRange, Payload, Platform, QpCap,
    QpHandle, QpInit, QpType, Registers, Remote, SendFlags, SendOp, SendWr, Sge, Verbs,
};
use bareverbs_mlx5::mmio::{CpuFence, MappedBar, MappedMemory};
use bareverbs_mlx5::{Config, Machine, Mlx5};
use bareverbs_mlx5_spec::{CmdOpcode, Cqc, Cqe, CqeOpcode, CreateCqIn, View, ViewMut};
use bareverbs_sim::memory::{DmaFault, HostMemory};
use bareverbs_sim::trace::{Record, Tracer};
use bareverbs_sim::{Device, DeviceConfig};
use bareverbs_tests::{Connection, rc_steps};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const PAGES: usize = 2048;
const ARENA: usize = PAGES * 4096;
const DEPTH: u32 = 256;
const BATCH: usize = 32;

/// Zeroed memory for the whole run.
fn plain(len: usize) -> NonNull<u8> {
    let layout = Layout::from_size_align(len, 4096).expect("a layout");
    // SAFETY: the layout has a size, and the memory is never freed.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).expect("memory")
}

/// The arena as the device reaches it; device addresses are pointers.
#[derive(Clone, Copy)]
struct Arena(NonNull<u8>);

// SAFETY: the memory lives for ever and belongs to no thread. `Device` wants memory that may go to another thread; here it
// stays in the one that also runs the driver.
unsafe impl Send for Arena {}

impl Arena {
    fn at(self, addr: u64, len: usize) -> Result<*mut u8, DmaFault> {
        let offset = addr.wrapping_sub(self.0.as_ptr() as u64);
        let end = offset.checked_add(len as u64).filter(|end| *end <= ARENA as u64);
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

/// The device's registers while things are made, plain memory while they are measured.
enum Bar {
    Device(Rc<RefCell<Device>>),
    Plain(MappedBar),
}

impl Registers for Bar {
    fn len(&self) -> usize {
        Device::bar_len() as usize
    }

    fn read32(&self, offset: usize) -> Result<u32, OutOfRange> {
        match self {
            Self::Device(device) => {
                let mut bytes = [0; 4];
                device.borrow().bar_read(offset as u64, &mut bytes);
                Ok(u32::from_ne_bytes(bytes))
            }
            Self::Plain(bar) => bar.read32(offset),
        }
    }

    fn write32(&mut self, offset: usize, value: u32) -> Result<(), OutOfRange> {
        match self {
            Self::Device(device) => device.borrow_mut().bar_write(offset as u64, &value.to_ne_bytes()),
            Self::Plain(bar) => bar.write32(offset, value)?,
        }
        Ok(())
    }

    #[inline]
    fn write64(&mut self, offset: usize, value: u64) -> Result<(), OutOfRange> {
        match self {
            Self::Plain(bar) => bar.write64(offset, value),
            Self::Device(device) => {
                device.borrow_mut().bar_write(offset as u64, &value.to_ne_bytes());
                Ok(())
            }
        }
    }
}

struct DeviceClock {
    device: Rc<RefCell<Device>>,
    now: Cell<u64>,
}

impl Clock for DeviceClock {
    fn now(&self) -> Instant {
        self.now.set(self.now.get() + 20);
        Instant::from_nanos(self.now.get())
    }

    fn relax(&self) {
        self.now.set(self.now.get() + 1000);
        self.device.borrow_mut().advance(Instant::from_nanos(self.now.get()));
    }
}

struct Bench;

impl Platform for Bench {
    type Registers = Bar;
    type Memory = MappedMemory;
    type Fence = CpuFence;
    type Clock = DeviceClock;
}

type Rdma = Verbs<Mlx5<Bench, PAGES>, 1, 4, 1, 1, 1, { DEPTH as usize }, 64>;

/// Sees where the completion queue lies and how it is numbered.
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

/// A queue pair whose device stands still.
struct Scene {
    verbs: Box<Rdma>,
    qp: QpHandle,
    cq: CqHandle,
    sge: Sge,
    remote: Remote,
    cq_entries: u32,
    ring: *mut u8,
    qpn: u32,
    /// Completions written so far, blocks completed so far.
    produced: u32,
    retired: u32,
}

impl Scene {
    fn new(fence: CpuFence, blue_flame: bool) -> Self {
        let arena = Arena(plain(ARENA));
        let mut device = Device::new(DeviceConfig { blue_flame, ..DeviceConfig::with_lid(1) }, Box::new(arena));
        let watch = Watch::default();
        device.set_tracer(Some(Box::new(watch.clone())));
        device.enable_function();
        let device = Rc::new(RefCell::new(device));
        // SAFETY: the arena is aligned to a page, lives for ever, and is accessed by pointer only.
        let memory = unsafe { MappedMemory::new(arena.0, ARENA, arena.0.as_ptr() as u64) };
        let machine =
            Machine { registers: Bar::Device(device.clone()), memory, fence, clock: DeviceClock { device, now: Cell::new(0) } };
        let driver = Mlx5::bring_up(machine, &Config::DEFAULT).map_err(|(error, _)| error).expect("bring-up");
        let mut verbs = Box::new(Rdma::new(driver));
        let pd = verbs.alloc_pd().expect("pd");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        // Three more regions, so that the one in use is not the only one.
        let mr = (0..4).map(|n| verbs.reg_mr(pd, n << 20, 1 << 20, access, &OffsetMap::default()).expect("mr")).last();
        let info = verbs.mr(mr.expect("regions")).expect("mr");
        let cq = verbs.create_cq(DEPTH).expect("cq");
        let cap = QpCap { max_send_wr: DEPTH / 4, max_recv_wr: 16, max_send_sge: 2, max_recv_sge: 1, max_inline_data: 64 };
        let init = QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap, sq_sig_all: false };
        let qp = verbs.create_qp(&init).expect("qp");
        let qpn = verbs.qp(qp).expect("qp").qpn;
        for (attr, mask) in rc_steps(&Connection::default(), Lid::new(1), qpn, 0, 0) {
            let av = AddressVector { dlid: Lid::new(1), port_num: 1, ..AddressVector::default() };
            verbs.modify_qp(qp, &bareverbs::QpAttr { av, ..attr }, mask).expect("modify");
        }
        let cq_entries = verbs.cq(cq).expect("cq").entries;
        let ring =
            arena.at(watch.0.lock().expect("no panic before").expect("CREATE_CQ"), cq_entries as usize * 64).expect("inside");
        let bar = plain(Device::bar_len() as usize);
        // SAFETY: the memory is aligned to a page, lives for ever, and is accessed through the value only.
        verbs.provider_mut().machine().registers = Bar::Plain(unsafe { MappedBar::new(bar, Device::bar_len() as usize) });
        Self {
            verbs,
            qp,
            cq,
            sge: Sge { addr: info.addr + 4096, length: 64, lkey: info.lkey },
            remote: Remote { addr: 0x1234_5678, rkey: info.rkey },
            cq_entries,
            ring,
            qpn: qpn.get(),
            produced: 0,
            retired: 0,
        }
    }

    /// Writes the completion of the request that starts at block `index`, as the device does: owner byte last.
    fn complete(&mut self, index: u32) {
        let mut cqe = [0; 64];
        let owner = (self.produced / self.cq_entries) & 1;
        ViewMut::<Cqe>::new(&mut cqe)
            .expect("64 bytes")
            .set(Cqe::SRQN_UIDX, 0)
            .set(Cqe::SEND_OPCODE, 8)
            .set(Cqe::QPN, self.qpn)
            .set(Cqe::WQE_COUNTER, index)
            .set(Cqe::OPCODE, CqeOpcode::Req.code())
            .set(Cqe::OWNER, owner);
        let at = (self.produced % self.cq_entries) as usize * 64;
        // SAFETY: the ring has `cq_entries` entries of 64 bytes, and the driver is not reading now.
        unsafe { std::ptr::copy(cqe.as_ptr(), self.ring.add(at), 64) };
        self.produced += 1;
    }

    fn poll(&mut self, into: &mut [Completion]) -> usize {
        self.verbs.poll_cq(self.cq, into).expect("poll")
    }

    /// Requests of `blocks` blocks that fit in the ring, rounded to batches.
    fn fits(&mut self, blocks: u32) -> u64 {
        let free = self.verbs.send_queue(self.qp).expect("queue").free_blocks();
        u64::from(free / blocks) / BATCH as u64 * BATCH as u64
    }

    /// Completes everything posted: `count` requests of `blocks` blocks.
    fn retire(&mut self, count: u64, blocks: u32) {
        self.retired = self.retired.wrapping_add(count as u32 * blocks);
        self.complete(self.retired.wrapping_sub(blocks) & 0xffff);
        assert_eq!(self.poll(&mut [Completion::EMPTY; 2]), 1);
    }

    /// Time of `iters` runs of `post`, which posts `per` requests of `blocks` blocks.
    fn time_posts(&mut self, iters: u64, per: u64, blocks: u32, mut post: impl FnMut(&mut Self)) -> Duration {
        let mut total = Duration::ZERO;
        let room = self.fits(blocks) / per;
        let mut left = iters;
        while left > 0 {
            let runs = left.min(room);
            let start = WallClock::now();
            for _ in 0..runs {
                post(self);
            }
            total += start.elapsed();
            self.retire(runs * per, blocks);
            left -= runs;
        }
        total
    }

    /// Time of polling `iters` completions, `per` at a time.
    fn time_polls(&mut self, iters: u64, per: usize) -> Duration {
        let mut total = Duration::ZERO;
        let mut left = iters;
        let mut found = [Completion::EMPTY; BATCH];
        while left > 0 {
            let runs = (self.fits(1) / per as u64).min(left);
            let count = runs * per as u64;
            for _ in 0..count {
                let sges = [self.sge];
                let op = SendOp::Write { payload: Payload::Sges(&sges), remote: self.remote };
                self.verbs.post_send(self.qp, &SendWr { wr_id: 1, flags: SendFlags::SIGNALED, op }).expect("post");
                self.complete(self.retired & 0xffff);
                self.retired = self.retired.wrapping_add(1);
            }
            let start = WallClock::now();
            for _ in 0..runs {
                let found = black_box(&mut found).get_mut(..per).expect("per");
                let count = self.verbs.poll_cq(self.cq, found).expect("poll");
                assert_eq!(count, per);
            }
            total += start.elapsed();
            left -= runs;
        }
        total
    }
}

fn posts(criterion: &mut Criterion) {
    // Both kinds of mapping that a BAR can have on this CPU; the second has the fences of libmlx5.
    for (name, fence, blue_flame) in
        [("uncached BAR", CpuFence::UNCACHED, false), ("write-combining BAR", CpuFence::WRITE_COMBINING, false)]
    {
        let mut group = criterion.benchmark_group(format!("post_send, {name}"));
        let mut scene = Scene::new(fence, blue_flame);
        for length in [8, 64] {
            group.bench_function(format!("RDMA WRITE {length} bytes, one SGE, one doorbell each"), |bencher| {
                bencher.iter_custom(|iters| {
                    let (sge, remote) = (Sge { length, ..scene.sge }, scene.remote);
                    scene.time_posts(iters, 1, 1, |scene| {
                        // Made afresh each time, as programs do.
                        let sges = [Sge { addr: black_box(sge.addr), ..sge }];
                        let op = SendOp::Write { payload: Payload::Sges(&sges), remote };
                        scene.verbs.post_send(scene.qp, &SendWr { wr_id: 7, flags: SendFlags::SIGNALED, op }).expect("post");
                    })
                });
            });
        }
        group.bench_function("RDMA WRITE 64 bytes, two SGEs", |bencher| {
            bencher.iter_custom(|iters| {
                let (sge, remote) = (Sge { length: 32, ..scene.sge }, scene.remote);
                scene.time_posts(iters, 1, 1, |scene| {
                    let sges = [Sge { addr: black_box(sge.addr), ..sge }, Sge { addr: black_box(sge.addr + 512), ..sge }];
                    let op = SendOp::Write { payload: Payload::Sges(&sges), remote };
                    scene.verbs.post_send(scene.qp, &SendWr { wr_id: 7, flags: SendFlags::SIGNALED, op }).expect("post");
                })
            });
        });
        group.bench_function("RDMA WRITE 32 bytes inline", |bencher| {
            bencher.iter_custom(|iters| {
                let (bytes, remote) = ([0x5a_u8; 32], scene.remote);
                scene.time_posts(iters, 1, 2, |scene| {
                    let op = SendOp::Write { payload: Payload::Inline(black_box(&bytes)), remote };
                    scene.verbs.post_send(scene.qp, &SendWr { wr_id: 7, flags: SendFlags::SIGNALED, op }).expect("post");
                })
            });
        });
        group.throughput(Throughput::Elements(BATCH as u64));
        group.bench_function("RDMA WRITE 64 bytes, batch of 32", |bencher| {
            bencher.iter_custom(|iters| {
                let sges = [scene.sge];
                let op = SendOp::Write { payload: Payload::Sges(&sges), remote: scene.remote };
                let list = [SendWr { wr_id: 7, flags: SendFlags::SIGNALED, op }; BATCH];
                scene.time_posts(iters, BATCH as u64, 1, |scene| {
                    scene.verbs.post_send_list(scene.qp, black_box(&list)).expect("post");
                })
            });
        });
        group.finish();
    }
}

fn polls(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("poll_cq");
    let mut scene = Scene::new(CpuFence::UNCACHED, false);
    group.bench_function("one at a time", |bencher| bencher.iter_custom(|iters| scene.time_polls(iters, 1)));
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("32 at a time", |bencher| bencher.iter_custom(|iters| scene.time_polls(iters, BATCH)));
    group.finish();
}

criterion_group!(benches, posts, polls);
criterion_main!(benches);
