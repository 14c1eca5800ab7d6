//! A device wired to itself, the verbs on it, and the model beside it: each step is done on both.

use std::mem;

use bareverbs::error::{Errno, PollCqError, PostSendError};
use bareverbs::platform::{Clock as _, DmaMemory as _, Instant};
use bareverbs::storage::{QpRings, Storage};
use bareverbs::{
    AddressVector, Completion, CompletionQueue, CqHandle, Lid, Lkey, MrHandle, MwHandle, MwType, Payload, PdHandle, QpAttr,
    QpCap, QpHandle, QpInit, QpType, Region, Remote, Rkey, SendFlags, SendOp, SendWr, Sge, Type1Bind, Verbs, WcStatus, storage,
};
use bareverbs_mlx5::Config;
use bareverbs_sim::DeviceConfig;
use bareverbs_sim::EngineCounts;
use bareverbs_sim::audit::Finding;
use bareverbs_sim::in_process::{Host, SimBuffer, SimMemory, World, WorldConfig};
use bareverbs_tests::{Connection, Driver, machine, rc_steps};

use crate::model::{
    self, Binding, CQS, MAX_LEN, MEMORY, MRS, MWS, Model, Operation, PDS, QPS, QueuePair, Step, Window, access, get, live,
};

type Tables = storage!['static, Driver; pds: PDS, mrs: MRS, mws: MWS, cqs: CQS, qps: QPS];
/// 8 requests of three blocks, the largest (a bind); the device's smallest receive ring.
type Rings = QpRings<32, 4>;

/// A fuzz target has one thread, and so one harness.
static RINGS: [Rings; QPS] = [const { Rings::new() }; QPS];

/// Address of the first byte as the application names it: not where the device sees it.
const BASE: u64 = 0x7f12_3456_7000;
const LID: u16 = 1;
const CAP: QpCap = QpCap { max_send_wr: 8, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
/// Polls of the completion queue after which a request counts as lost.
const MAX_POLLS: usize = 100_000;

/// A device, and the tables of the verbs on it: made once.
pub struct Harness {
    host: Host,
    /// Between two runs.
    driver: Option<Driver>,
    tables: Box<Tables>,
    memory: SimMemory,
    before: EngineCounts,
    /// What memory contains.
    bytes: Vec<u8>,
}

/// The verbs on the device and the model, for one list of steps.
struct Run<'s> {
    host: &'s Host,
    verbs: Verbs<'s, Driver>,
    memory: &'s SimMemory,
    before: EngineCounts,
    model: Model,
    pds: Vec<PdHandle>,
    mrs: Vec<MrHandle>,
    /// The regions that live, by their places in `mrs`.
    regions: Vec<Option<Region<'s, SimBuffer>>>,
    mws: Vec<MwHandle>,
    cqs: Vec<CqHandle>,
    /// The completion queues that live, by their places in `cqs`.
    completion_queues: Vec<Option<CompletionQueue<'s, Driver>>>,
    qps: Vec<QpHandle>,
    /// The queue pairs that live, by their places in `qps`.
    queue_pairs: Vec<Option<bareverbs::QueuePair<'s, Driver>>>,
}

fn some(name: u8, of: usize) -> usize {
    if of == 0 { 0 } else { usize::from(name) % of }
}

/// Returns a span of memory from two numbers.
fn span(start: u16, length: u16) -> (usize, usize) {
    let start = usize::from(start) % MEMORY;
    (start, usize::from(length % (MAX_LEN + 1)).min(MEMORY - start))
}

/// Checks that both outcomes agree; returns the value of a success.
fn agree<T, E>(got: Result<T, E>, errno: impl Fn(&E) -> Errno, model: Result<(), Errno>, step: &Step) -> Option<T> {
    let outcome = got.as_ref().map(|_| ()).map_err(&errno);
    assert_eq!(outcome, model, "{step:?}");
    got.ok()
}

impl Default for Harness {
    fn default() -> Self {
        Self::new()
    }
}

impl Harness {
    /// Creates a device that is up.
    pub fn new() -> Self {
        let host = World::new(WorldConfig::default()).add(DeviceConfig::with_lid(LID)).unwrap();
        let Ok(driver) = Driver::bring_up(machine(&host), &Config::DEFAULT) else { panic!("bring-up") };
        let memory = host.memory(MEMORY);
        let before = host.with_device(|device| device.counts().engine);
        let tables = Box::new(Storage::new(QpRings::views(&RINGS)));
        Self { host, driver: Some(driver), tables, memory, before, bytes: vec![0; MEMORY] }
    }

    /// Does the steps on the device and on the model, and then destroys what they have made.
    pub fn run(&mut self, steps: &[Step]) {
        let driver = self.driver.take().expect("the last run gave it back");
        let model = Model { memory: mem::take(&mut self.bytes), ..Model::default() };
        let verbs = Verbs::new(driver, &mut *self.tables);
        let (host, memory, before) = (&self.host, &self.memory, self.before);
        let (pds, mrs, regions, mws) = Default::default();
        let (cqs, completion_queues, qps, queue_pairs) = Default::default();
        let mut run =
            Run { host, verbs, memory, before, model, pds, mrs, regions, mws, cqs, completion_queues, qps, queue_pairs };
        for step in steps {
            run.step(step);
        }
        run.clear();
        self.bytes = mem::take(&mut run.model.memory);
        let Ok(driver) = run.verbs.into_provider() else { panic!("a queue lives") };
        self.driver = Some(driver);
    }
}

impl Run<'_> {
    /// Does one step on both.
    fn step(&mut self, step: &Step) {
        match *step {
            Step::AllocPd => {
                let model = if live(&self.model.pds) == PDS { Err(Errno::Enomem) } else { Ok(()) };
                if let Some(pd) = agree(self.verbs.alloc_pd(), |e| e.errno(), model, step) {
                    self.pds.push(pd);
                    self.model.pds.push(Some(()));
                }
            }
            Step::DeallocPd(name) => self.dealloc_pd(some(name, self.pds.len()), step),
            Step::RegMr(pd, start, length, bits) => self.reg_mr(some(pd, self.pds.len()), start, length, bits, step),
            Step::DeregMr(name) => self.dereg_mr(some(name, self.mrs.len()), step),
            Step::AllocMw(pd) => self.alloc_mw(some(pd, self.pds.len()), step),
            Step::DeallocMw(name) => self.dealloc_mw(some(name, self.mws.len()), step),
            Step::CreateCq => {
                let model = if live(&self.model.cqs) == CQS { Err(Errno::Enomem) } else { Ok(()) };
                if let Some(cq) = agree(self.verbs.create_cq(64), |e| e.errno(), model, step) {
                    self.cqs.push(cq.handle());
                    self.completion_queues.push(Some(cq));
                    self.model.cqs.push(Some(()));
                }
            }
            Step::DestroyCq(name) => self.destroy_cq(some(name, self.cqs.len()), step),
            Step::CreateQp(pd, cq) => self.create_qp(some(pd, self.pds.len()), some(cq, self.cqs.len()), step),
            Step::DestroyQp(name) => self.destroy_qp(some(name, self.qps.len()), step),
            Step::Connect(a, b) => self.connect(some(a, self.qps.len()), some(b, self.qps.len())),
            Step::Bind(qp, mw, mr, start, length, bits, way) => {
                let (start, length) = span(start, length);
                let asked = Binding { mr: some(mr, self.mrs.len()), start, length, access: access(bits) };
                self.bind(some(qp, self.qps.len()), some(mw, self.mws.len()), &asked, way, step);
            }
            Step::Request { .. } => self.request(step),
        }
    }

    fn dealloc_pd(&mut self, name: usize, step: &Step) {
        let Some(&pd) = self.pds.get(name) else { return };
        let model = match (get(&self.model.pds, name), self.model.users_of_pd(name)) {
            (None, _) => Err(Errno::Einval),
            (Some(()), 0) => Ok(()),
            _ => Err(Errno::Ebusy),
        };
        if agree(self.verbs.dealloc_pd(pd), |e| e.errno(), model, step).is_some() {
            self.model.pds[name] = None;
        }
    }

    fn reg_mr(&mut self, pd: usize, start: u16, length: u16, bits: u8, step: &Step) {
        let Some(&handle) = self.pds.get(pd) else { return };
        let (start, length, access) = (usize::from(start) % MEMORY, usize::from(length), access(bits));
        let length = length.min(MEMORY - start);
        let buffer = self.memory.buffer(start, length, BASE + start as u64).expect("inside the memory");
        let made = self.verbs.reg_mr(handle, buffer, access);
        let model = self.model.reg_mr(pd, length, access);
        if let Some(region) = agree(made, |refused| refused.error.errno(), model, step) {
            let key = region.rkey().get();
            assert_eq!(region.lkey().get(), key, "one key for both sides");
            self.mrs.push(region.handle());
            self.regions.push(Some(region));
            self.model.mrs.push(Some(model::Region { pd, start, length, access, key }));
        }
    }

    fn dereg_mr(&mut self, name: usize, step: &Step) {
        let Some(&mr) = self.mrs.get(name) else { return };
        let model = match (get(&self.model.mrs, name), self.model.windows_of(name)) {
            (None, _) => Err(Errno::Einval),
            (Some(_), 0) => Ok(()),
            _ => Err(Errno::Ebusy),
        };
        let Some(region) = self.regions[name].take() else {
            agree(self.verbs.dereg_mr_raw(mr), |e| e.errno(), model, step);
            return;
        };
        let ended = self.verbs.dereg_mr(region).map_err(|refused| {
            self.regions[name] = refused.returned;
            assert!(self.regions[name].is_some(), "a region that lives was not given back");
            refused.error
        });
        if agree(ended, |e| e.errno(), model, step).is_some() {
            self.model.mrs[name] = None;
        }
    }

    fn alloc_mw(&mut self, pd: usize, step: &Step) {
        let Some(&handle) = self.pds.get(pd) else { return };
        let model = match get(&self.model.pds, pd) {
            None => Err(Errno::Einval),
            Some(()) if live(&self.model.mws) == MWS => Err(Errno::Enomem),
            Some(()) => Ok(()),
        };
        if let Some(mw) = agree(self.verbs.alloc_mw(handle, MwType::Type1), |e| e.errno(), model, step) {
            let key = self.verbs.mw_info(mw).expect("it was just made").rkey.get();
            self.mws.push(mw);
            self.model.mws.push(Some(Window { pd, binding: None, key }));
        }
    }

    fn dealloc_mw(&mut self, name: usize, step: &Step) {
        let Some(&mw) = self.mws.get(name) else { return };
        let model = get(&self.model.mws, name).map(drop).ok_or(Errno::Einval);
        if agree(self.verbs.dealloc_mw(mw), |e| e.errno(), model, step).is_some() {
            self.model.mws[name] = None;
        }
    }

    fn destroy_cq(&mut self, name: usize, step: &Step) {
        let Some(&cq) = self.cqs.get(name) else { return };
        let used = self.model.qps.iter().flatten().any(|qp| qp.cq == name);
        let model = match (get(&self.model.cqs, name), used) {
            (None, _) => Err(Errno::Einval),
            (Some(()), true) => Err(Errno::Ebusy),
            (Some(()), false) => Ok(()),
        };
        let destroyed = match self.completion_queues[name].take() {
            None => self.verbs.destroy_dropped_cq(cq),
            Some(queue) => self.verbs.destroy_cq(queue).map_err(|refused| {
                self.completion_queues[name] = refused.returned;
                assert!(self.completion_queues[name].is_some(), "a completion queue that lives was not given back");
                refused.error
            }),
        };
        if agree(destroyed, |e| e.errno(), model, step).is_some() {
            self.model.cqs[name] = None;
        }
    }

    fn create_qp(&mut self, pd: usize, cq: usize, step: &Step) {
        let (Some(&pd_handle), Some(&cq_handle)) = (self.pds.get(pd), self.cqs.get(cq)) else { return };
        let model = match (get(&self.model.pds, pd), get(&self.model.cqs, cq)) {
            (Some(()), Some(())) if live(&self.model.qps) == QPS => Err(Errno::Enomem),
            (Some(()), Some(())) => Ok(()),
            _ => Err(Errno::Einval),
        };
        let init =
            QpInit { pd: pd_handle, qp_type: QpType::Rc, send_cq: cq_handle, recv_cq: cq_handle, cap: CAP, sq_sig_all: true };
        if let Some(qp) = agree(self.verbs.create_qp(&init), |e| e.errno(), model, step) {
            self.qps.push(qp.handle());
            self.queue_pairs.push(Some(qp));
            self.model.qps.push(Some(QueuePair { pd, cq, peer: None }));
        }
    }

    fn destroy_qp(&mut self, name: usize, step: &Step) {
        let Some(&qp) = self.qps.get(name) else { return };
        let Some(known) = get(&self.model.qps, name) else {
            agree(self.verbs.destroy_dropped_qp(qp), |e| e.errno(), Err(Errno::Einval), step);
            return;
        };
        self.part(name);
        let queues = self.queue_pairs[name].take().expect("it lives");
        if agree(self.verbs.destroy_qp(queues), |refused| refused.error.errno(), Ok(()), step).is_some() {
            self.model.qps[name] = None;
            self.drain(known.cq);
        }
    }

    fn reset(&mut self, name: usize) {
        if let Some(qp) = get(&self.model.qps, name) {
            let queues = self.queue_pairs[name].as_mut().expect("it lives");
            self.verbs.reset_qp(queues).expect("every state goes to RESET");
            self.model.qps[name] = Some(QueuePair { peer: None, ..qp });
            self.drain(qp.cq);
        }
    }

    /// Finds a completion queue empty: then queue pairs leave RESET, and their slots serve others.
    fn drain(&mut self, cq: usize) {
        let queue = self.completion_queues[cq].as_mut().expect("a queue pair uses it");
        assert_eq!(queue.poll(&mut [Completion::EMPTY]), Ok(0));
    }

    /// Puts a queue pair and its peer back to RESET.
    fn part(&mut self, name: usize) {
        let peer = get(&self.model.qps, name).and_then(|qp| qp.peer);
        self.reset(name);
        if let Some(peer) = peer {
            self.reset(peer);
        }
    }

    fn connect(&mut self, a: usize, b: usize) {
        if get(&self.model.qps, a).is_none() || get(&self.model.qps, b).is_none() {
            return;
        }
        self.part(a);
        self.part(b);
        for (own, peer) in [(a, b), (b, a)] {
            if own == peer && self.model.qps[own].is_some_and(|qp| qp.peer.is_some()) {
                continue;
            }
            let dest_qpn = self.verbs.qp_info(self.qps[peer]).expect("it lives").qpn;
            for (attr, mask) in rc_steps(&Connection::default(), Lid::new(LID), dest_qpn, 7, 7) {
                let attr = QpAttr { av: AddressVector { dlid: Lid::new(LID), port_num: 1, ..attr.av }, ..attr };
                self.verbs.modify_qp(self.qps[own], &attr, mask).expect("the usual way to RTS");
            }
            if let Some(qp) = &mut self.model.qps[own] {
                qp.peer = Some(peer);
            }
        }
    }

    fn bind(&mut self, qp: usize, mw: usize, asked: &Binding, way: u8, step: &Step) {
        let (Some(Some(queues)), Some(&mw_handle), Some(&mr)) =
            (self.queue_pairs.get_mut(qp), self.mws.get(mw), self.mrs.get(asked.mr))
        else {
            return;
        };
        let Binding { start, length, access, .. } = *asked;
        let bind =
            Type1Bind { wr_id: 1, flags: SendFlags::empty(), mr, addr: BASE + start as u64, length: length as u64, access };
        let model = self.model.bind(qp, mw, asked);
        let bound = match way % 4 {
            1 | 2 => {
                let mut batch = queues.send.batch();
                let bound = batch.bind_type1(mw_handle, &bind);
                if way % 4 == 2 {
                    mem::forget(batch);
                    // A bind of a forgotten batch waits for the next doorbell.
                    queues.send.ring();
                } else {
                    drop(batch);
                }
                bound
            }
            _ => queues.send.bind_type1(mw_handle, &bind),
        };
        if let Some(rkey) = agree(bound, |e| e.errno(), model, step) {
            let completion = self.completion(qp, way / 4, step);
            assert_eq!((completion.wr_id, completion.status), (1, WcStatus::Success), "{step:?}");
            if let Some(window) = &mut self.model.mws[mw] {
                assert_ne!(rkey.get(), window.key, "a bind gives a new key");
                window.key = rkey.get();
                window.binding = (length != 0).then_some(*asked);
            }
        }
    }

    fn request(&mut self, step: &Step) {
        let Step::Request { operation, qp, mr, local, window, key, remote, length, way } = *step else { return };
        let qp = some(qp, self.qps.len());
        let (Some(Some(_)), Some(&mr)) = (self.queue_pairs.get(qp), self.mrs.get(some(mr, self.mrs.len()))) else { return };
        let atomic = matches!(operation, Operation::FetchAdd(_));
        let (local, mut near) = span(local, length);
        let (mut remote, far) = span(remote, length);
        near = near.min(far);
        if atomic {
            (remote, near) = (remote & !7, 8);
        }
        if local + near > MEMORY || remote + near > MEMORY {
            return;
        }
        // A handle that went stale gives no key any more: the last one that it had is what a caller may have kept.
        let lkey = self.kept(false, self.mrs.iter().position(|known| *known == mr).unwrap_or_default());
        let far_key = if window && !self.mws.is_empty() {
            self.kept(true, some(key, self.mws.len()))
        } else {
            self.kept(false, some(key, self.mrs.len()))
        };
        let sge = Sge { addr: BASE + local as u64, length: near as u32, lkey: Lkey::new(lkey) };
        let place = Remote { addr: BASE + remote as u64, rkey: Rkey::new(far_key) };
        let sges = [sge];
        let op = match operation {
            Operation::Write => SendOp::Write { payload: Payload::Sges(&sges), remote: place },
            Operation::Read => SendOp::Read { sges: &sges, remote: place },
            Operation::FetchAdd(add) => SendOp::FetchAdd { sge, remote: place, add },
        };
        let model = self.model.post(qp, lkey, local, near, operation != Operation::Write);
        let posted = self.post(qp, &SendWr { wr_id: 2, flags: SendFlags::empty(), op }, way % 8, model, step);
        if agree(posted, |e| e.errno(), model, step).is_none() {
            return;
        }
        let status = self.model.complete(qp, operation, far_key, remote, near);
        let completion = self.completion(qp, way / 8, step);
        assert_eq!(completion.wr_id, 2, "{step:?}");
        // A queue pair that is its own peer refuses as responder, and is in error before it hears of it as requester.
        let own_peer = get(&self.model.qps, qp).is_some_and(|own| own.peer == Some(qp));
        let flushed = own_peer && status == WcStatus::RemAccessErr && completion.status == WcStatus::WrFlushErr;
        assert!(completion.status == status || flushed, "{:?} instead of {status:?}: {step:?}", completion.status);
        if status == WcStatus::Success {
            self.model.apply(operation, local, remote, near);
        } else {
            self.part(qp);
        }
        let mut bytes = vec![0; MEMORY];
        self.memory.read(0, &mut bytes).expect("all of it");
        assert!(bytes == self.model.memory, "memory differs after {step:?}");
    }

    /// Posts a request in one of the ways that there are.
    fn post(
        &mut self,
        qp: usize,
        wr: &SendWr<'_>,
        way: u8,
        model: Result<(), Errno>,
        step: &Step,
    ) -> Result<(), PostSendError> {
        let send = &mut self.queue_pairs[qp].as_mut().expect("it lives").send;
        match way {
            0 | 1 => send.batch().post(wr),
            2 | 5 => send.post_list(std::slice::from_ref(wr)).map_err(|bad| bad.error),
            // What a forgotten batch has posted waits for the next doorbell, or is gone and another one comes in its place.
            3 | 4 => {
                let mut batch = send.batch();
                let free = batch.free_blocks();
                let posted = batch.post(wr);
                agree(posted, |e| e.errno(), model, step);
                mem::forget(batch);
                posted?;
                if way == 4 {
                    send.ring();
                }
                // Its end rings.
                if send.batch().free_blocks() == free { send.post(wr) } else { Ok(()) }
            }
            _ => send.post(wr),
        }
    }

    /// Returns the key that a caller has of a region or window, which may be destroyed.
    fn kept(&self, window: bool, name: usize) -> u32 {
        let key =
            if window { get(&self.model.mws, name).map(|mw| mw.key) } else { get(&self.model.mrs, name).map(|mr| mr.key) };
        // Index 0 with this low byte is given to nothing.
        key.unwrap_or(0xff)
    }

    /// Returns the next completion in the queue of a queue pair, which must be its own.
    fn completion(&mut self, qp: usize, way: u8, step: &Step) -> Completion {
        let cq = get(&self.model.qps, qp).expect("it has posted").cq;
        let clock = self.host.clock();
        for _ in 0..MAX_POLLS {
            match self.poll(cq, way).as_slice() {
                [] => clock.relax(Instant::default()),
                [Ok(completion)] => {
                    assert_eq!(completion.qp, self.qps[qp]);
                    return *completion;
                }
                more => panic!("{more:?} instead of one completion of {step:?}"),
            }
        }
        panic!("no completion of {step:?}");
    }

    /// Returns what is in a completion queue now, two completions at most, in one of the ways that there are.
    fn poll(&mut self, cq: usize, way: u8) -> Vec<Result<Completion, PollCqError>> {
        let queue = self.completion_queues[cq].as_mut().expect("a queue pair uses it");
        if !way.is_multiple_of(2) {
            return queue.completions().take(2).collect();
        }
        let mut out = [Completion::EMPTY; 2];
        match queue.poll(&mut out) {
            Ok(taken) => out[..taken].iter().copied().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        }
    }

    /// Destroys all that is left; the device must have nothing then that it did not have before.
    fn clear(&mut self) {
        for name in 0..self.qps.len() {
            if get(&self.model.qps, name).is_some() {
                self.destroy_qp(name, &Step::DestroyQp(0));
            }
        }
        for name in 0..self.mws.len() {
            if get(&self.model.mws, name).is_some() {
                self.dealloc_mw(name, &Step::DeallocMw(0));
            }
        }
        for name in 0..self.mrs.len() {
            if get(&self.model.mrs, name).is_some() {
                self.dereg_mr(name, &Step::DeregMr(0));
            }
        }
        for name in 0..self.cqs.len() {
            if get(&self.model.cqs, name).is_some() {
                self.destroy_cq(name, &Step::DestroyCq(0));
            }
        }
        for name in 0..self.pds.len() {
            if get(&self.model.pds, name).is_some() {
                self.dealloc_pd(name, &Step::DeallocPd(0));
            }
        }
        while let Ok(Some(_)) = self.verbs.poll_event() {}
        let (now, findings) = self.host.with_device(|device| {
            let findings = device.audit().findings().to_vec();
            (device.counts().engine, findings)
        });
        assert_eq!(now, self.before, "the device kept something");
        let wrong = findings.iter().find(|finding| !matches!(finding, Finding::KeyAfterDestroy { .. }));
        assert!(wrong.is_none(), "{wrong:?}");
    }
}
