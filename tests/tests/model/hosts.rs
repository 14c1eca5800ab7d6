//! A device of the model: the verbs on it, everything that was created, and what the model knows of each.

use core::time::Duration;
use std::collections::VecDeque;
use std::thread;

use bareverbs::error::PollCqError;
use bareverbs::platform::Machine;
use bareverbs::storage::{QpRings, SrqEntries, Storage, StorageView};
use bareverbs::{
    Access, Completion, CompletionQueue, Destination, DmaBuffer, GidEntry, LinkLayer, MrHandle, MwHandle, MwType, PdHandle,
    PortAttr, QpCap, QpHandle, QpInit, QpType, QueuePair, RecvWr, Region, Rkey, SendQueue, Sge, SharedReceiveQueue,
    SharedReceives, SrqCap, SrqInit, Srqn, Verbs, WcOpcode,
};
use bareverbs_mlx5::{Config, CqeSize};
use bareverbs_sim::in_process::{Host, SimBuffer, SimPlatform};
use bareverbs_testing::{Driver, await_port, driver_config};

use crate::expected::{Arrival, Bytes, Posted, Sent, take_arrival, take_sent};
use crate::fast::Fast;
use crate::program::{CQS, DOMAINS, INLINE, MESSAGES, PAIRS, REGION, REGIONS, SIDES, STRIPE, WINDOWS, domain_of};
use crate::xrc::{QUEUES, Xrc, XrcPair, arrivals_of, queue_of};

/// Receives of the shared queue at most.
pub(crate) const PLACES: usize = 15;
/// Receives of a queue of its own at most.
pub(crate) const RECEIVES: usize = 16;
/// Sends of a queue at most.
pub(crate) const SENDS: usize = 16;

/// A command that is not answered by then has lost the device.
const COMMAND_TIMEOUT: Duration = Duration::from_millis(200);

pub(crate) const CAP: QpCap = QpCap {
    max_send_wr: SENDS as u32 + 1,
    max_recv_wr: RECEIVES as u32,
    max_send_sge: 3,
    max_recv_sge: 3,
    max_inline_data: INLINE as u32,
};

/// Queue pairs of a device: one for each pair, a target for each of XRC, and one more.
pub(crate) const QPS: usize = PAIRS.len() + 2 + 1;
/// Shared receive queues: the one of RC, those of XRC, that of another domain, and one more.
pub(crate) const SRQS: usize = QUEUES + 2 + 1;

pub(crate) type Rings = [QpRings<128, 16>; QPS];
pub(crate) type Shared = [SrqEntries<16>; SRQS];
/// With room for everything of the model and one object of each kind more, so that one that was refused and has kept its place is
/// found. A fast registration has a place among regions and among windows.
pub(crate) type Tables<'s> = Storage<
    's,
    Driver,
    { DOMAINS + 1 },
    { REGIONS + 1 + QUEUES + DOMAINS + 1 },
    { WINDOWS + DOMAINS + 1 },
    { CQS + 1 },
    QPS,
    SRQS,
>;

/// A queue pair, with receives of its own or shared ones.
pub(crate) enum Qp<'s> {
    Own(QueuePair<'s, Driver>),
    Shared(QueuePair<'s, Driver, SharedReceives>),
    Xrc(Box<XrcPair<'s>>),
}

impl<'s> Qp<'s> {
    pub(crate) const fn handle(&self) -> QpHandle {
        match self {
            Self::Own(qp) => qp.handle(),
            Self::Shared(qp) => qp.handle(),
            Self::Xrc(qp) => qp.initiator.handle(),
        }
    }

    /// Returns what receives: the queue pair itself, or a target.
    pub(crate) const fn receiver(&self) -> QpHandle {
        match self {
            Self::Xrc(qp) => qp.target.handle(),
            _ => self.handle(),
        }
    }

    pub(crate) fn is(&self, qp: QpHandle) -> bool {
        qp == self.handle() || qp == self.receiver()
    }

    pub(crate) const fn send(&mut self) -> &mut SendQueue<'s, Driver> {
        match self {
            Self::Own(qp) => &mut qp.send,
            Self::Shared(qp) => &mut qp.send,
            Self::Xrc(qp) => &mut qp.initiator.send,
        }
    }
}

pub(crate) struct Memory<'s> {
    pub(crate) region: Region<'s, SimBuffer>,
    pub(crate) access: Access,
    pub(crate) bytes: Bytes,
}

/// What a window is bound to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) region: usize,
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) access: Access,
    /// Whose queue pair bound it.
    pub(crate) pair: usize,
}

pub(crate) struct Window {
    pub(crate) handle: MwHandle,
    pub(crate) kind: MwType,
    pub(crate) rkey: Rkey,
    pub(crate) bound: Option<Bound>,
}

pub(crate) struct Side<'s> {
    pub(crate) host: Host,
    pub(crate) cqe_size: CqeSize,
    pub(crate) verbs: Verbs<'s, Driver>,
    pub(crate) pds: [PdHandle; DOMAINS],
    pub(crate) cqs: Vec<CompletionQueue<'s, Driver>>,
    pub(crate) qps: Vec<Qp<'s>>,
    pub(crate) memory: Vec<Memory<'s>>,
    pub(crate) windows: Vec<Window>,
    pub(crate) srq: SharedReceiveQueue<'s, Driver>,
    /// Where shared receives put their messages.
    pub(crate) places: Region<'s, SimBuffer>,
    /// Which places are free, and how many receives are left that no message takes.
    pub(crate) free_places: Vec<u64>,
    pub(crate) shared_receives: usize,
    /// The peer's queue pair of datagrams, by an address handle of each domain.
    pub(crate) to_peer: [Option<Destination>; DOMAINS],
    pub(crate) sent: [VecDeque<Sent>; PAIRS.len()],
    pub(crate) posted: [VecDeque<Posted>; PAIRS.len()],
    /// Those of XRC once for each shared receive queue ([`arrivals_of`]).
    pub(crate) arrivals: [VecDeque<Arrival>; QUEUES * PAIRS.len()],
    pub(crate) xrc: Xrc<'s>,
    pub(crate) fasts: [Fast; DOMAINS],
}

impl<'s> Memory<'s> {
    /// Registers memory full of bytes that differ from place to place.
    fn new(host: &Host, verbs: &mut Verbs<'s, Driver>, pd: PdHandle, access: Access, salt: u64) -> Self {
        let mut buffer = host.memory(REGION).whole();
        let byte = |at| (at as u64 ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0];
        let bytes: Vec<u8> = (0..REGION).map(byte).collect();
        buffer.write(0, &bytes).expect("inside");
        let region = verbs.reg_mr(pd, buffer, access).expect("a region");
        Self { region, access, bytes: Bytes::new(bytes) }
    }
}

impl<'s> Side<'s> {
    /// Brings a device up, and creates everything on it.
    pub(crate) fn new(
        host: Host,
        machine: Machine<SimPlatform>,
        cqe_size: CqeSize,
        tables: StorageView<'s, Driver>,
    ) -> Result<Self, String> {
        let config = Config { cqe_size, command_timeout: COMMAND_TIMEOUT, ..driver_config(&host) };
        let driver = Driver::bring_up(machine, &config).map_err(|(error, _)| error.to_string())?;
        let mut verbs = Verbs::new(driver, tables);
        await_port(&host, &mut verbs).map_err(|error| error.to_string())?;
        let PortAttr { link_layer, mac, .. } = verbs.query_port(1).map_err(|error| error.to_string())?;
        if link_layer == LinkLayer::Ethernet {
            verbs.set_gid(1, 0, &GidEntry::link_local(mac)).map_err(|error| error.to_string())?;
        }
        let pds: [_; DOMAINS] = core::array::from_fn(|_| verbs.alloc_pd().expect("a domain"));
        let mut cqs: Vec<_> = (0..CQS).map(|_| verbs.create_cq(1000).expect("a completion queue")).collect();
        let srq = verbs.create_srq(&SrqInit { pd: pds[0], cap: SrqCap { max_wr: PLACES as u32, max_sge: 2 } }).expect("an SRQ");
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::MW_BIND;
        let memory =
            (0..REGIONS).map(|index| Memory::new(&host, &mut verbs, pds[domain_of(index)], all, index as u64)).collect();
        let places = verbs.reg_mr(pds[0], host.memory(PLACES * MESSAGES).whole(), Access::LOCAL_WRITE).expect("a region");
        let xrc = Xrc::new(&host, &mut verbs, pds, &mut cqs);
        let fasts = pds.map(|pd| Fast::new(&mut verbs, pd));
        let mut side = Self {
            host,
            cqe_size,
            verbs,
            pds,
            cqs,
            qps: Vec::new(),
            memory,
            windows: Vec::new(),
            srq,
            places,
            free_places: (0..PLACES as u64).rev().collect(),
            shared_receives: 0,
            to_peer: [None; DOMAINS],
            sent: Default::default(),
            posted: Default::default(),
            arrivals: Default::default(),
            xrc,
            fasts,
        };
        for pair in 0..PAIRS.len() {
            let qp = side.create_qp(pair);
            side.qps.push(qp);
        }
        for window in 0..WINDOWS {
            let window = side.create_window(window, if window < DOMAINS { MwType::Type1 } else { MwType::Type2 });
            side.windows.push(window);
        }
        Ok(side)
    }

    /// Destroys everything, and gives back what is left.
    pub(crate) fn close(mut self) -> Result<(Host, Verbs<'s, Driver>), String> {
        (0..PAIRS.len()).rev().for_each(|pair| self.destroy_qp(pair));
        for fast in &self.fasts {
            self.verbs.dealloc_fast_mr(fast.mr).map_err(|error| error.to_string())?;
        }
        self.xrc.end(&mut self.verbs)?;
        for window in &self.windows {
            self.verbs.dealloc_mw(window.handle).map_err(|error| error.to_string())?;
        }
        for memory in self.memory {
            self.verbs.dereg_mr(memory.region).map_err(|refused| refused.error.to_string())?;
        }
        self.verbs.dereg_mr(self.places).map_err(|refused| refused.error.to_string())?;
        self.verbs.destroy_srq(self.srq).map_err(|refused| refused.error.to_string())?;
        for cq in self.cqs {
            self.verbs.destroy_cq(cq).map_err(|refused| refused.error.to_string())?;
        }
        for pd in self.pds {
            self.verbs.dealloc_pd(pd).map_err(|error| error.to_string())?;
        }
        Ok((self.host, self.verbs))
    }

    pub(crate) fn create_qp(&mut self, pair: usize) -> Qp<'s> {
        let (send, recv) = PAIRS[pair].cqs;
        let (send_cq, recv_cq) = (self.cqs[send].handle(), self.cqs[recv].handle());
        let pd = self.pds[domain_of(pair)];
        let init = QpInit { pd, qp_type: PAIRS[pair].qp_type, send_cq, recv_cq, cap: CAP, sq_sig_all: pair == 0 };
        if PAIRS[pair].qp_type == QpType::XrcSend {
            let initiator = self.verbs.create_xrc_send_qp(&init, &self.xrc.domain).expect("an initiator");
            let target = self.verbs.create_xrc_recv_qp(&self.xrc.domain).expect("a target");
            return Qp::Xrc(Box::new(XrcPair { initiator, target }));
        }
        if PAIRS[pair].shared {
            let cap = QpCap { max_recv_wr: 0, max_recv_sge: 0, ..CAP };
            Qp::Shared(self.verbs.create_qp_with_srq(&QpInit { cap, ..init }, self.srq.handle()).expect("a queue pair"))
        } else {
            Qp::Own(self.verbs.create_qp(&init).expect("a queue pair"))
        }
    }

    pub(crate) fn destroy_qp(&mut self, pair: usize) {
        match self.qps.remove(pair) {
            Qp::Own(qp) => self.verbs.destroy_qp(qp).map_err(|refused| refused.error).expect("nobody uses it"),
            Qp::Shared(qp) => self.verbs.destroy_qp(qp).map_err(|refused| refused.error).expect("nobody uses it"),
            Qp::Xrc(qp) => {
                for qp in [qp.initiator, qp.target] {
                    self.verbs.destroy_qp(qp).map_err(|refused| refused.error).expect("nobody uses it");
                }
            }
        }
        self.sent[pair].clear();
        self.posted[pair].clear();
        self.clear_arrivals(pair);
    }

    /// Forgets the bytes that requests of a pair use.
    pub(crate) fn forget(&mut self, pair: usize) {
        self.memory.iter_mut().for_each(|memory| memory.bytes.forget(pair * SIDES * STRIPE, SIDES * STRIPE));
    }

    pub(crate) fn clear_arrivals(&mut self, pair: usize) {
        (0..QUEUES).for_each(|queue| self.arrivals[arrivals_of(pair, queue)].clear());
    }

    /// Returns a message of a pair that has not come.
    pub(crate) fn next_arrival(&self, pair: usize) -> Option<&Arrival> {
        (0..QUEUES).find_map(|queue| self.arrivals[arrivals_of(pair, queue)].front())
    }

    fn create_window(&mut self, index: usize, kind: MwType) -> Window {
        let handle = self.verbs.alloc_mw(self.pds[domain_of(index)], kind).expect("a window");
        let rkey = self.verbs.mw_info(handle).expect("just created").rkey;
        Window { handle, kind, rkey, bound: None }
    }

    pub(crate) fn replace_window(&mut self, window: usize, kind: MwType) {
        self.verbs.dealloc_mw(self.windows[window].handle).expect("no bind in flight");
        self.windows[window] = self.create_window(window, kind);
    }

    /// Deregisters a region and registers another. A region with windows refuses.
    pub(crate) fn replace_region(&mut self, region: usize, access: Access, salt: u64) -> Result<(), String> {
        let (handle, is_bound) = (self.memory[region].region.handle(), self.is_bound(region));
        if is_bound {
            return match self.verbs.dereg_mr_raw(handle) {
                Err(_) => Ok(()),
                Ok(()) => Err(format!("region {region} was deregistered with a window bound to it")),
            };
        }
        let old = self.memory.remove(region).region;
        self.verbs.dereg_mr(old).map_err(|refused| format!("region {region}: {}", refused.error))?;
        let memory = Memory::new(&self.host, &mut self.verbs, self.pds[domain_of(region)], access, salt);
        self.memory.insert(region, memory);
        Ok(())
    }

    pub(crate) fn is_bound(&self, region: usize) -> bool {
        let is_bound = |window: &Window| window.bound.is_some_and(|bound| bound.region == region);
        self.windows.iter().any(is_bound) || self.fasts.iter().any(|fast| fast.is_over(region))
    }

    /// Returns whether a receive that was posted names the region.
    pub(crate) fn is_posted(&self, region: usize) -> bool {
        self.posted.iter().flatten().any(|posted| posted.region == region)
    }

    /// Returns the number of the shared receive queue that is none of XRC.
    pub(crate) fn srqn(&self) -> Srqn {
        self.verbs.srq_info(self.srq.handle()).expect("it exists").srqn
    }

    /// Makes a receive of the shared queue ready, if a place is free.
    pub(crate) fn take_shared(&mut self) -> Option<(u64, Vec<Sge>)> {
        let place = self.free_places.pop()?;
        let at = place * MESSAGES as u64;
        self.shared_receives += 1;
        Some((place, vec![self.places.sge(at, 100), self.places.sge(at + 100, MESSAGES as u32 - 100)]))
    }

    /// Posts a receive of the shared queue.
    pub(crate) fn post_shared(&mut self) -> Result<(), String> {
        let Some((wr_id, sges)) = self.take_shared() else { return Ok(()) };
        self.srq.post(&RecvWr { wr_id, sges: &sges }).map_err(|error| format!("a shared receive: {error}"))
    }

    /// Polls both completion queues until they are empty, so many at a time, each on its own thread if `threads`.
    pub(crate) fn poll(&mut self, at_a_time: usize, threads: bool) -> Vec<Result<Completion, PollCqError>> {
        let take = |cq: &mut CompletionQueue<'s, Driver>| {
            let (mut all, mut out) = (Vec::new(), vec![Completion::EMPTY; at_a_time]);
            loop {
                match cq.poll(&mut out) {
                    Ok(0) => return all,
                    Ok(count) => all.extend(out[..count].iter().copied().map(Ok)),
                    Err(error) => {
                        all.push(Err(error));
                        return all;
                    }
                }
            }
        };
        if threads {
            thread::scope(|scope| {
                let threads: Vec<_> = self.cqs.iter_mut().map(|cq| scope.spawn(move || take(cq))).collect();
                threads.into_iter().flat_map(|thread| thread.join().expect("it does not panic")).collect()
            })
        } else {
            self.cqs.iter_mut().flat_map(take).collect()
        }
    }

    /// Takes all completions and compares each with what must come.
    pub(crate) fn complete(&mut self, at_a_time: usize, threads: bool) -> Result<(), String> {
        for done in self.poll(at_a_time, threads) {
            let done = done.map_err(|error| format!("polling: {error}"))?;
            self.completed(&done)?;
        }
        Ok(())
    }

    pub(crate) fn completed(&mut self, done: &Completion) -> Result<(), String> {
        let Some(pair) = self.qps.iter().position(|qp| qp.is(done.qp)) else {
            return Err(format!("{done:?} of no queue pair"));
        };
        if !matches!(done.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm) {
            return take_sent(&mut self.sent[pair], done).map_err(|why| format!("sends of {pair}: {why}"));
        }
        let queue = queue_of(done);
        let list = &mut self.arrivals[arrivals_of(pair, queue.unwrap_or(0))];
        let arrival = take_arrival(list, done).map_err(|why| format!("receives of {pair}: {why}"))?;
        if PAIRS[pair].qp_type == QpType::XrcSend {
            let queue = queue.ok_or_else(|| format!("{done:?} of no shared receive queue"))?;
            return self.xrc.received(queue, done, &arrival.message);
        }
        if !PAIRS[pair].shared {
            return Ok(());
        }
        if done.wr_id >= PLACES as u64 || self.free_places.contains(&done.wr_id) {
            return Err(format!("a shared receive that was not posted: {done:?}"));
        }
        let mut found = vec![0; arrival.message.len()];
        self.places.read(done.wr_id as usize * MESSAGES, &mut found).expect("inside");
        self.free_places.push(done.wr_id);
        if found == arrival.message { Ok(()) } else { Err(format!("another message in place {}", done.wr_id)) }
    }

    /// Compares memory and windows.
    pub(crate) fn compare(&mut self, all: bool) -> Result<(), String> {
        for (region, Memory { region: found, bytes, .. }) in self.memory.iter_mut().enumerate() {
            let read = |at, into: &mut [u8]| found.read(at, into).expect("inside");
            bytes.compare(all, read).map_err(|why| format!("region {region}: {why}"))?;
        }
        for (index, window) in self.windows.iter().enumerate() {
            let info = self.verbs.mw_info(window.handle).expect("it exists");
            let place = |mr: MrHandle| self.memory.iter().position(|memory| memory.region.handle() == mr);
            let found = info.binding.map(|binding| (place(binding.mr), binding.length, binding.access));
            let must = window.bound.map(|bound| (Some(bound.region), bound.len as u64, bound.access));
            if (info.rkey, found) != (window.rkey, must) {
                return Err(format!("window {index} is {info:?}, and must have {:?} and {must:?}", window.rkey));
            }
        }
        self.fasts.iter().try_for_each(|fast| fast.compare(&self.verbs, &self.memory))
    }
}
