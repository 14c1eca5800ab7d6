//! Send queues, receive queues and completion queues of both devices, each with a thread of its own, beside the control path. In which
//! order the queues get on is open; the order in each of them is not.

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use bareverbs::error::{PollCqError, PostRecvError};
use bareverbs::{Access, Completion, CompletionQueue, MwType, QpType, RecvWr, Sge};
use bareverbs_sim::in_process::World;
use bareverbs_testing::Driver;

use super::request::{Ready, hand_over};
use super::{Fate, Run};
use crate::expected::Posted;
use crate::hosts::{Qp, RECEIVES, Side};
use crate::program::{How, Kind, Lane, MAX_REQUESTS, MESSAGES, PAIRS, SIDES, STRIPE, domain_of, of_domain};
use crate::xrc::QUEUES;

/// What threads do with a pair on one device.
#[derive(Default)]
struct Work {
    sends: Option<(How, Vec<Ready>)>,
    receives: Vec<Receive>,
}

/// A receive: its `wr_id` and SGEs.
type Receive = (u64, Vec<Sge>);

/// Receives of each shared receive queue of a device.
type SharedWork = Vec<Vec<Receive>>;

/// How many pairs take from one shared receive queue.
const PAIRS_OF_SHARED: usize = 2;

/// How long a thread that polls pauses when there is nothing.
const PAUSE: Duration = Duration::from_micros(20);

/// What is polled of a completion queue.
type Polled = Vec<Result<Completion, PollCqError>>;

/// Lets the threads that poll end, also when the one that would do it fails.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Run<'_> {
    /// Posts requests of several pairs, receives behind those that they need, and polls, all at once.
    pub(super) fn together(&mut self, at_a_time: usize, lanes: &[Lane]) -> Result<(), String> {
        self.settle(8, false)?;
        let shared = self.sides.iter_mut().map(supply_shared).collect::<Result<_, _>>()?;
        for Lane { pair, side, .. } in lanes {
            self.supply(*pair, 1 - side)?;
        }
        let mut work: [[Work; PAIRS.len()]; SIDES] = Default::default();
        for (at, lane) in lanes.iter().enumerate() {
            if !lanes[..at].iter().any(|other| other.pair == lane.pair) {
                self.divide(lane, &mut work)?;
            }
        }
        let polled = self.run_threads(at_a_time, work, shared)?;
        self.end_round()?;
        for (side, polled) in self.sides.iter_mut().zip(polled) {
            for done in polled {
                side.completed(&done.map_err(|error| format!("polling: {error}"))?)?;
            }
        }
        self.settle(8, false)
    }

    /// Posts receives for what may come in this round.
    fn supply(&mut self, pair: usize, at: usize) -> Result<(), String> {
        let region = domain_of(pair);
        let at_byte = (pair * SIDES + (1 - at)) * STRIPE;
        for _ in self.sides[at].posted[pair].len()..MAX_REQUESTS {
            let wr_id = self.next_wr_id();
            self.receive(pair, at, Posted { wr_id, region, at: at_byte, len: MESSAGES }, 2)?;
        }
        Ok(())
    }

    /// Makes the work of a lane ready, and tells the model.
    fn divide(&mut self, lane: &Lane, work: &mut [[Work; PAIRS.len()]; SIDES]) -> Result<(), String> {
        let &Lane { pair, side, how, receives, .. } = lane;
        let places: [usize; SIDES] = core::array::from_fn(|at| RECEIVES - self.sides[at].posted[pair].len());
        let mut ready = Vec::new();
        for request in &lane.requests {
            // Other lanes may need the key.
            let is_harmless = request.kind != Kind::SendWithInvFast;
            let Some(made) = is_harmless.then(|| self.prepare(pair, side, request, Fate::Executed)).flatten() else { continue };
            let is_last = made.refused.is_some() || self.rounds[pair].failed;
            ready.push(made);
            if is_last {
                break;
            }
        }
        work[side][pair].sends = Some((how, ready));
        if self.rounds[pair].failed || PAIRS[pair].shared || PAIRS[pair].qp_type == QpType::XrcSend {
            return Ok(());
        }
        for at in 0..SIDES {
            // A message that finds no receive is lost on these, and must not find one of those.
            if at != side && PAIRS[pair].qp_type != QpType::Rc {
                continue;
            }
            for number in 0..receives.min(places[at]) {
                let wr_id = self.next_wr_id();
                let of = &mut self.sides[at];
                let region = of_domain(number, domain_of(pair)) % of.memory.len();
                if !of.memory[region].access.contains(Access::LOCAL_WRITE) {
                    continue;
                }
                let posted = Posted { wr_id, region, at: (pair * SIDES + (1 - at)) * STRIPE, len: MESSAGES };
                work[at][pair].receives.push((wr_id, vec![of.memory[region].region.sge(posted.at as u64, MESSAGES as u32)]));
                of.posted[pair].push_back(posted);
            }
        }
        Ok(())
    }

    fn run_threads(
        &mut self,
        at_a_time: usize,
        work: [[Work; PAIRS.len()]; SIDES],
        shared: Vec<SharedWork>,
    ) -> Result<Vec<Polled>, String> {
        let world = &self.world;
        let (stop, start) = (AtomicBool::new(false), RwLock::new(()));
        thread::scope(|scope| {
            let ending = Ending(&stop);
            let (mut posts, mut polls, mut controls) = (Vec::new(), Vec::new(), Vec::new());
            // Held until all threads are there: the first would have ended before the last begins.
            let gate = start.write();
            let clock = Clock { world, start: &start };
            for ((side, work), shared) in self.sides.iter_mut().zip(work).zip(shared) {
                let Side { cqs, qps, verbs, pds, srq, xrc, .. } = side;
                let srqs = core::iter::once(srq).chain(xrc.queues.iter_mut().map(|queue| &mut queue.srq));
                for (srq, receives) in srqs.zip(shared) {
                    let post = move |(wr_id, sges): &Receive| srq.post(&RecvWr { wr_id: *wr_id, sges });
                    posts.push(scope.spawn(move || receive(clock, &receives, post)));
                }
                let stop = &stop;
                let threads: Vec<_> = cqs.iter_mut().map(|cq| scope.spawn(move || poll(clock, cq, at_a_time, stop))).collect();
                polls.push(threads);
                for (qp, Work { sends, receives }) in qps.iter_mut().zip(work) {
                    let (send, recv) = match qp {
                        Qp::Own(qp) => (&mut qp.send, Some(&mut qp.recv)),
                        Qp::Shared(qp) => (&mut qp.send, None),
                        Qp::Xrc(qp) => (&mut qp.initiator.send, None),
                    };
                    if let Some((how, ready)) = sends {
                        posts.push(scope.spawn(move || {
                            clock.begin();
                            let size = if matches!(how, How::Single) { 1 } else { MAX_REQUESTS };
                            ready.chunks(size).try_for_each(|some| clock.step(|| hand_over(send, how, some)))
                        }));
                    }
                    if let (Some(recv), false) = (recv, receives.is_empty()) {
                        let post = move |(wr_id, sges): &Receive| recv.post(&RecvWr { wr_id: *wr_id, sges });
                        posts.push(scope.spawn(move || receive(clock, &receives, post)));
                    }
                }
                controls.push((verbs, pds[0]));
            }
            drop(gate);
            let mut result = Ok(());
            for (verbs, pd) in &mut controls {
                world.advance(Duration::from_micros(1));
                let window = verbs.alloc_mw(*pd, MwType::Type2).map_err(|error| error.to_string());
                let freed = window.and_then(|window| verbs.dealloc_mw(window).map_err(|error| error.to_string()));
                result = result.and(freed);
            }
            for thread in posts {
                world.advance(Duration::from_micros(1));
                result = result.and(thread.join().expect("it does not panic"));
            }
            // Completions come while the threads poll.
            for _ in 0..10 {
                world.advance(Duration::from_micros(2));
                thread::yield_now();
            }
            drop(ending);
            let join = |threads: Vec<ScopedJoinHandle<'_, Polled>>| -> Polled {
                threads.into_iter().flat_map(|thread| thread.join().expect("it does not panic")).collect()
            };
            let polled = polls.into_iter().map(join).collect();
            result.map(|()| polled)
        })
    }
}

/// Polls until it is to stop.
fn poll(clock: Clock<'_>, cq: &mut CompletionQueue<'_, Driver>, at_a_time: usize, stop: &AtomicBool) -> Polled {
    clock.begin();
    let (mut all, mut out) = (Vec::new(), vec![Completion::EMPTY; at_a_time]);
    while !stop.load(Ordering::Acquire) {
        match cq.poll(&mut out) {
            Ok(0) => thread::sleep(PAUSE),
            Ok(count) => all.extend(out[..count].iter().copied().map(Ok)),
            Err(error) => {
                all.push(Err(error));
                return all;
            }
        }
    }
    all
}

/// What the threads of a round share.
#[derive(Clone, Copy)]
struct Clock<'a> {
    world: &'a World,
    start: &'a RwLock<()>,
}

impl Clock<'_> {
    /// Waits until all threads are there.
    fn begin(self) {
        drop(self.start.read());
    }

    /// Posts, and lets time pass, so that completions come while something is posted.
    fn step(self, post: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        post()?;
        self.world.advance(Duration::from_micros(1));
        thread::yield_now();
        Ok(())
    }
}

/// Posts receives one by one.
fn receive(
    clock: Clock<'_>,
    receives: &[Receive],
    mut post: impl FnMut(&Receive) -> Result<(), PostRecvError>,
) -> Result<(), String> {
    let mut post = |of| post(of).map_err(|error| format!("a receive beside others: {error}"));
    clock.begin();
    receives.iter().try_for_each(|of| clock.step(|| post(of)))
}

/// Posts shared receives for what may come in this round, and returns those that are posted meanwhile, by queue.
fn supply_shared(side: &mut Side<'_>) -> Result<SharedWork, String> {
    while side.shared_receives < PAIRS_OF_SHARED * MAX_REQUESTS && !side.free_places.is_empty() {
        side.post_shared()?;
    }
    let mut work = vec![core::iter::from_fn(|| side.take_shared()).collect()];
    for queue in 0..QUEUES {
        for _ in side.xrc.queues[queue].left..PAIRS_OF_SHARED * MAX_REQUESTS {
            side.xrc.post(queue)?;
        }
        work.push(core::iter::from_fn(|| side.xrc.queues[queue].take_place(queue)).collect());
    }
    Ok(work)
}
