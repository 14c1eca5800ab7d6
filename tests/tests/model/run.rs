//! Runs a program on the devices and on the model.

mod binds;
mod domains;
mod lost;
mod predict;
mod recover;
mod request;
mod together;
mod trouble;
mod windows;

use core::time::Duration;

use bareverbs::error::{PostRecvError, SgeFault};
use bareverbs::storage::{QpRings, SrqEntries, StorageView};
use bareverbs::{
    Access, Destination, MrChange, MwType, Psn, Qkey, QpAttr, QpState, QpType, RecvWr, Remote, SendWr, WcOpcode, WcStatus,
};
use bareverbs_mlx5::CqeSize;
use bareverbs_sim::in_process::{World, WorldConfig};
use bareverbs_sim::{DeviceConfig, PageDemand};
use bareverbs_testing::{Connection, Driver, Faults, Probability, join, path_to};

use self::domains::domains;
use self::request::{hand_over, named, pieces};
use crate::expected::{Posted, Sent};
use crate::hosts::{Bound, QPS, Qp, RECEIVES, Rings, SENDS, SRQS, Shared, Side, Tables};
use crate::program::{End, How, Kind, MESSAGES, Op, PAIRS, Program, Request, SIDES, STRIPE, domain_of, of_domain};

/// Entries of 128 bytes, where the driver has them.
#[cfg(feature = "large-completions")]
const LARGE: CqeSize = CqeSize::Bytes128;
#[cfg(not(feature = "large-completions"))]
const LARGE: CqeSize = CqeSize::Bytes64;

/// Bytes that a datagram's route takes in its receive.
const GRH_AREA: usize = 40;
const QKEY: Qkey = Qkey::new(0x1234);

/// What becomes of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// What the model says.
    Executed,
    /// Nothing comes back from the peer.
    Unreachable,
    /// Nobody knows: the queue pair breaks meanwhile.
    Unknown,
}

/// What has happened on a pair since everything was completed.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// The side that sends. A failure moves both queue pairs to ERR: requests of the other side would end in one of two ways.
    direction: Option<usize>,
    /// A request fails.
    failed: bool,
    /// A read is in flight that later requests must not pass.
    fences: bool,
    /// Reads or atomics are in flight, which may be executed after an invalidation that was posted later without a fence.
    reads: bool,
    /// The last request has no completion.
    silent: bool,
    posted: usize,
}

struct Run<'s> {
    world: World,
    /// Two; one while the other is brought up.
    sides: Vec<Side<'s>>,
    /// Of what is brought up again.
    tables: [Vec<StorageView<'s, Driver>>; SIDES],
    rounds: [Round; PAIRS.len()],
    lossy: bool,
    next_id: u64,
    requests: u64,
}

impl<'s> Run<'s> {
    fn new(program: &Program, mut tables: [Vec<StorageView<'s, Driver>>; SIDES]) -> Result<Self, String> {
        let per_mille = |n: u16| Probability::per_mille(n);
        let faults = Faults::none().loss(per_mille(program.loss)).duplication(per_mille(program.loss));
        let faults = faults.delay(per_mille(program.loss * 4), Duration::from_micros(40));
        let world = World::new(WorldConfig::from(faults.seed(program.seed)));
        let side = |(lid, tables): (u16, &mut Vec<StorageView<'s, Driver>>)| {
            // Devices come up often, and fill each page.
            let config = DeviceConfig { pages: PageDemand::FEW, ..DeviceConfig::with_lid(lid) };
            let config = if program.ethernet { config.with_ethernet() } else { config };
            let cqe_size = if program.large[usize::from(lid) - 1] { LARGE } else { CqeSize::Bytes64 };
            let host = world.add(config).expect("a device");
            let machine = host.machine(Driver::ARENA);
            Side::new(host, machine, cqe_size, tables.pop().expect("one for each bring-up"))
        };
        let sides = (1..).zip(&mut tables).map(side).collect::<Result<_, _>>()?;
        let mut run =
            Self { world, sides, tables, rounds: Default::default(), lossy: program.loss != 0, next_id: 1000, requests: 0 };
        for pair in 0..PAIRS.len() {
            run.connect(pair)?;
        }
        Ok(run)
    }

    fn connect(&mut self, pair: usize) -> Result<(), String> {
        let [a, b] = &mut self.sides[..] else { return Err("a device is not there".to_owned()) };
        if PAIRS[pair].qp_type == QpType::Ud {
            let attr = QpAttr { port_num: 1, qkey: QKEY, sq_psn: Psn::new(7), ..QpAttr::default() };
            for side in [&mut *a, &mut *b] {
                side.verbs.modify_qp_to_rts(side.qps[pair].handle(), &attr).map_err(|error| error.to_string())?;
            }
            let to = |from: &mut Side<'s>, peer: &mut Side<'s>| {
                let av = path_to(&mut peer.verbs).map_err(|error| error.to_string())?;
                let remote_qpn = peer.verbs.qp_info(peer.qps[pair].handle()).expect("it exists").qpn;
                for (pd, to) in from.pds.into_iter().zip(&mut from.to_peer) {
                    let ah = from.verbs.create_ah(pd, &av).map_err(|error| error.to_string())?;
                    *to = Some(Destination { ah, remote_qpn, remote_qkey: QKEY });
                }
                Ok::<(), String>(())
            };
            to(a, b)?;
            return to(b, a);
        }
        let connection = Connection {
            qp_type: PAIRS[pair].qp_type,
            mtu: bareverbs::Mtu::Mtu256,
            // Close to where they wrap.
            psn: (Psn::new(0xff_fff0), Psn::new(0xff_ff00)),
            rnr_retry: 1,
            min_rnr_timer: 1,
            ..Connection::default()
        };
        let (ends_a, ends_b) = (&a.qps[pair], &b.qps[pair]);
        let (of_a, of_b) = ((ends_a.handle(), ends_a.receiver()), (ends_b.handle(), ends_b.receiver()));
        join((&mut a.verbs, of_a.0), (&mut b.verbs, of_b.1), &connection).map_err(|error| error.to_string())?;
        if PAIRS[pair].qp_type != QpType::XrcSend {
            return Ok(());
        }
        join((&mut a.verbs, of_a.1), (&mut b.verbs, of_b.0), &connection).map_err(|error| error.to_string())
    }

    fn post(&mut self, pair: usize, side: usize, how: How, requests: &[Request], fate: Fate) -> Result<(), String> {
        let round = self.rounds[pair];
        let to = &self.sides[1 - side];
        let left = match PAIRS[pair].qp_type {
            QpType::XrcSend => to.xrc.queues.iter().map(|queue| queue.left).min(),
            _ => PAIRS[pair].shared.then_some(to.shared_receives),
        };
        // What other queue pairs have in flight may need the key that is invalidated.
        let invalidates = requests.iter().any(|request| request.kind == Kind::SendWithInvFast);
        let too_few = invalidates || left.is_some_and(|left| left < requests.len());
        if round.direction.is_some_and(|direction| direction != side) || round.posted + requests.len() > SENDS || too_few {
            self.settle(8, false)?;
        }
        let mut ready = Vec::new();
        for request in requests {
            let Some(made) = self.prepare(pair, side, request, fate) else { continue };
            let is_refused = made.refused.is_some();
            ready.push(made);
            if is_refused {
                break;
            }
        }
        hand_over(self.sides[side].qps[pair].send(), how, &ready)?;
        if (self.rounds[pair].failed || invalidates) && matches!(fate, Fate::Executed) {
            self.settle(8, false)?;
        }
        Ok(())
    }

    /// Lets everything complete and compares.
    fn settle(&mut self, at_a_time: usize, threads: bool) -> Result<(), String> {
        for (pair, round) in self.rounds.into_iter().enumerate() {
            let Some(side) = round.direction else { continue };
            if round.silent && !round.failed {
                let wr_id = self.next_wr_id();
                self.expect_success(pair, side, wr_id, WcOpcode::RdmaWrite);
                let last = SendWr::write(Remote::NONE, &[] as &[u8]).id(wr_id).signaled();
                let srqn = self.sides[1 - side].xrc.queues[0].srqn;
                let srqn = (PAIRS[pair].qp_type == QpType::XrcSend).then_some(srqn);
                let posted = self.sides[side].qps[pair].send().post(&named(&last, srqn));
                posted.map_err(|error| format!("the last request: {error}"))?;
            }
        }
        self.end_round()?;
        for side in &mut self.sides {
            side.complete(at_a_time, threads)?;
        }
        for pair in 0..PAIRS.len() {
            for (at, side) in self.sides.iter().enumerate() {
                let (sent, arrival) = (&side.sent[pair], side.next_arrival(pair));
                if !sent.is_empty() || arrival.is_some() {
                    return Err(format!("pair {pair}, side {at}: no completion of {sent:?} {arrival:?}"));
                }
            }
        }
        let rounds = core::mem::take(&mut self.rounds);
        for (pair, round) in rounds.iter().enumerate() {
            if round.failed {
                self.recover(pair)?;
            } else {
                self.is_in(pair, QpState::Rts)?;
            }
        }
        for (at, side) in self.sides.iter_mut().enumerate() {
            side.compare(false).map_err(|why| format!("side {at}: {why}"))?;
        }
        Ok(())
    }

    /// Lets everything end, and expects the receives of queue pairs that have failed to be flushed.
    fn end_round(&mut self) -> Result<(), String> {
        self.world.advance(Duration::from_millis(60));
        for pair in (0..PAIRS.len()).filter(|pair| self.rounds[*pair].failed).collect::<Vec<_>>() {
            for side in 0..SIDES {
                let qp = self.sides[side].qps[pair].handle();
                let state = self.sides[side].verbs.query_qp(qp).map_err(|error| error.to_string())?.state;
                if self.rounds[pair].direction == Some(side) && state != QpState::Err {
                    return Err(format!("pair {pair}, side {side}: {state:?} after a failure"));
                }
                if state == QpState::Err {
                    self.flush_receives(pair, side);
                }
            }
        }
        Ok(())
    }

    fn is_in(&mut self, pair: usize, must: QpState) -> Result<(), String> {
        for (at, side) in self.sides.iter_mut().enumerate() {
            for qp in [side.qps[pair].handle(), side.qps[pair].receiver()] {
                let state = side.verbs.query_qp(qp).map_err(|error| error.to_string())?.state;
                if state != must {
                    return Err(format!("pair {pair}, side {at}: {state:?}, and must be {must:?}"));
                }
            }
        }
        Ok(())
    }

    fn receive(&mut self, pair: usize, side: usize, posted: Posted, pieces_of: usize) -> Result<(), String> {
        if self.sides[side].posted[pair].is_empty() && self.rounds[pair].direction == Some(1 - side) {
            // A message on its way that the model has no receive for must not find this one.
            self.settle(8, false)?;
        }
        let of = &mut self.sides[side];
        let Qp::Own(qp) = &mut of.qps[pair] else { return Ok(()) };
        let memory = &of.memory[posted.region];
        let base = memory.region.sge(posted.at as u64, 0);
        let sges = pieces(base, posted.len, pieces_of);
        let is_foreign = posted.len != 0 && domain_of(posted.region) != domain_of(pair);
        let lacks_right = posted.len != 0 && !memory.access.contains(Access::LOCAL_WRITE);
        let is_refused = is_foreign || lacks_right || of.posted[pair].len() == RECEIVES;
        let result = qp.recv.post(&RecvWr { wr_id: posted.wr_id, sges: &sges });
        let is_of_domain = matches!(result, Err(PostRecvError::Sge { fault: SgeFault::Domain, .. }));
        if result.is_err() != is_refused || is_of_domain != is_foreign {
            return Err(format!("posting a receive: {result:?}"));
        }
        if !is_refused {
            of.posted[pair].push_back(posted);
        }
        Ok(())
    }

    /// Waits for one request.
    fn done_by(&mut self, pair: usize, side: usize, wr_id: u64, opcode: WcOpcode) -> Result<(), String> {
        self.requests += 1;
        self.expect_success(pair, side, wr_id, opcode);
        self.settle(8, false)
    }

    /// Expects a signaled request without bytes to succeed.
    fn expect_success(&mut self, pair: usize, side: usize, wr_id: u64, opcode: WcOpcode) {
        let (status, signaled, byte_len) = (Some(WcStatus::Success), true, 0);
        self.sides[side].sent[pair].push_back(Sent { wr_id, opcode, status, signaled, byte_len, may_stay_unanswered: false });
    }

    const fn next_wr_id(&mut self) -> u64 {
        let wr_id = self.next_id;
        self.next_id += 1;
        wr_id
    }

    fn apply(&mut self, op: &Op) -> Result<(), String> {
        match *op {
            Op::Post { pair, side, how, ref requests } => self.post(pair, side, how, requests, Fate::Executed)?,
            Op::Receive { pair, side, region, offset, len, pieces, foreign } => {
                let region = of_domain(region, domain_of(pair) ^ usize::from(foreign));
                let at = (pair * SIDES + (1 - side)) * STRIPE + offset;
                let wr_id = self.next_wr_id();
                self.receive(pair, side, Posted { wr_id, region, at, len: len.min(MESSAGES - offset) }, pieces)?;
            }
            Op::SharedReceive { side, queue, count } => {
                let side = &mut self.sides[side];
                (0..count).try_for_each(|_| match queue {
                    None => side.post_shared(),
                    Some(queue) => side.xrc.post(queue),
                })?;
            }
            Op::Register { pair, side, region, ref units, access, foreign } => {
                let (domain, region) = domains(pair, 0, region, foreign);
                self.register((pair, side), (domain, region), units, access)?;
            }
            Op::Invalidate { pair, side, foreign } => self.invalidate(pair, side, domain_of(pair) ^ usize::from(foreign))?,
            Op::Bind { pair, side, window, region, at, len, access, foreign } => {
                let (at, len) = (at * STRIPE / 2, len * STRIPE / 2);
                let (window, region) = domains(pair, window, region, foreign);
                self.bind((pair, side, window), Bound { region, at, len, access, pair })?;
            }
            Op::BindChain { pair, side, window, ref steps, wrong, dropped } => {
                self.bind_chain((pair, side, of_domain(window, domain_of(pair))), steps, wrong, dropped)?;
            }
            Op::Unbind { side, window } => self.unbind(side, window)?,
            Op::ReplaceWindow { side, window, type2 } => {
                self.settle(8, false)?;
                self.sides[side].replace_window(window, if type2 { MwType::Type2 } else { MwType::Type1 });
            }
            Op::ReplaceRegion { side, region, access } => {
                self.settle(8, false)?;
                if !self.sides[side].is_posted(region) {
                    self.sides[side].replace_region(region, access, self.next_id)?;
                }
            }
            Op::Reregister { side, region, access } => {
                self.settle(8, false)?;
                let side = &mut self.sides[side];
                if side.is_posted(region) {
                    return Ok(());
                }
                let (is_bound, memory) = (side.is_bound(region), side.memory.remove(region));
                let change = MrChange { access: Some(access), ..MrChange::default() };
                let (changed, same, refused) = match side.verbs.rereg_mr(memory.region, &change) {
                    Ok(changed) => (Some(changed), access, false),
                    Err(refused) => (refused.returned, memory.access, true),
                };
                if refused != is_bound {
                    return Err(format!("rereg_mr of region {region}: refused {refused}"));
                }
                let changed = changed.ok_or("the region did not come back")?;
                side.memory.insert(region, crate::hosts::Memory { region: changed, access: same, bytes: memory.bytes });
            }
            Op::Move { side, region } => self.move_region(side, region)?,
            Op::FreeDomain { side, domain } => self.free_domain(side, domain)?,
            Op::ResizeCq { side, cq, entries } => {
                let side = &mut self.sides[side];
                // It has what is in flight, and is too short for no more than that.
                side.verbs.resize_cq(&mut side.cqs[cq], entries).map_err(|error| format!("resize_cq: {error}"))?;
            }
            Op::Pass(micros) => self.world.advance(Duration::from_micros(micros.into())),
            Op::Settle { at_a_time, threads } => self.settle(at_a_time, threads)?,
            Op::Interrupt { pair, side, broken, micros, ref requests } => {
                self.interrupt(pair, side, broken, micros, requests)?
            }
            Op::PostInError { pair, side } => {
                self.settle(8, false)?;
                self.fail(pair, side)?;
                self.flush_receives(pair, side);
                let wr = SendWr::send(b"late");
                let send = self.sides[side].qps[pair].send();
                if send.post(&wr).is_ok() || send.post_list(&[wr]).is_ok() || send.batch().post(&wr).is_ok() {
                    return Err("a queue pair in ERR takes a request".to_owned());
                }
                self.rounds[pair] = Round { direction: Some(side), failed: true, ..Round::default() };
                self.settle(8, false)?;
            }
            Op::PostUnreachable { pair, side, ref requests } => {
                self.settle(8, false)?;
                self.cut(true);
                let posted = self.post(pair, side, How::List, requests, Fate::Unreachable).and_then(|()| self.settle(8, false));
                self.cut(false);
                posted?;
            }
            Op::Recreate { pair, side, micros, ref requests } => self.recreate(pair, side, micros, requests)?,
            Op::Trouble { side, command, trouble } => self.trouble(side, command, trouble)?,
            Op::Restart { side, loss, micros, ref lanes } => self.restart(side, loss, micros, lanes)?,
            Op::Together { at_a_time, ref lanes } => self.together(at_a_time, lanes)?,
            Op::Drain { pair, side } => self.drain(pair, side)?,
        }
        Ok(())
    }

    fn cut(&self, cut: bool) {
        let [a, b] = &self.sides[..] else { return };
        self.world.set_cut(&a.host, &b.host, cut);
        self.world.set_cut(&b.host, &a.host, cut);
    }

    /// Destroys everything. The devices have seen no mistake of the driver.
    fn end(mut self) -> Result<u64, String> {
        self.settle(8, false)?;
        for (at, mut side) in self.sides.into_iter().enumerate() {
            side.compare(true).map_err(|why| format!("side {at}: {why}"))?;
            let (host, _verbs) = side.close()?;
            let findings = host.with_device(|device| device.audit().findings().to_vec());
            if !findings.is_empty() {
                return Err(format!("side {at}: {findings:?}"));
            }
        }
        Ok(self.requests)
    }
}

/// Runs a program and returns how many work requests it posted.
pub(crate) fn run(program: &Program) -> Result<u64, String> {
    // One for each time that a device is brought up.
    let lives = |side| {
        let is_restart = |op: &&Op| matches!(op, Op::Restart { side: at, .. } if *at == side);
        1 + program.ops.iter().filter(is_restart).count()
    };
    let rings: [Vec<Box<Rings>>; SIDES] =
        core::array::from_fn(|side| (0..lives(side)).map(|_| Box::new([const { QpRings::new() }; QPS])).collect());
    let shared: [Vec<Box<Shared>>; SIDES] =
        core::array::from_fn(|side| (0..lives(side)).map(|_| Box::new([const { SrqEntries::new() }; SRQS])).collect());
    let mut tables: [Vec<Box<Tables<'_>>>; SIDES] = core::array::from_fn(|side| {
        let views = rings[side].iter().zip(&shared[side]);
        views.map(|(rings, shared)| Box::new(Tables::with_srqs(QpRings::views(rings), SrqEntries::views(shared)))).collect()
    });
    let views = tables.each_mut().map(|tables| tables.iter_mut().map(|tables| StorageView::from(&mut **tables)).collect());
    let mut run = Run::new(program, views)?;
    for (at, op) in program.ops.iter().enumerate() {
        run.apply(op).map_err(|why| format!("operation {at}: {why}"))?;
    }
    match program.end {
        End::Clean => run.end(),
        End::Removed { side } => run.remove(side).map(|()| run.requests),
    }
}
