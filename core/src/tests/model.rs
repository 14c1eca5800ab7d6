//! Random operations, with the device as the truth. There are several queue pairs and completion queues, and windows that move
//! between queue pairs and regions. Batches are forgotten or left open; queue pairs break, are reset, or are created anew.

use std::boxed::Box;
use std::collections::{BTreeMap, VecDeque};
use std::sync::MutexGuard;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::mock::{Device, Mock};
use super::post::REMOTE;
use super::{ALL_RIGHTS, BASE, CAP, LENGTH, attributes, register};
use crate::backend::RawCompletion;
use crate::error::{BindRefused, BindType1Error, DeallocMwError, DeviceLoss, PollCqError, PostSendError, RawKind};
use crate::kept_verbs::KeptVerbs;
use crate::storage::QpRings;
use crate::{
    Access, Binding, Completion, CqHandle, Cqn, MrHandle, MwHandle, MwType, Payload, PdHandle, QpAttr, QpAttrMask, QpHandle,
    QpInit, QpState, QpType, Qpn, RecvWr, SendBatch, SendFlags, SendOp, SendWr, Type1Bind, Verbs, WcData, WcOpcode, WcStatus,
    storage,
};

const QPS: usize = 3;
const CQS: usize = 2;
const MRS: usize = 3;
const MWS: usize = 3;
const BLOCKS: u32 = 16;

/// A request to post.
#[derive(Clone, Debug)]
enum Request {
    /// A message of one to three blocks.
    Send { long: u8, signaled: bool },
    /// Binds a window to a region, or unbinds it (type 1 only).
    Bind { window: usize, region: Option<usize>, signaled: bool },
    /// Invalidates a type 2 window.
    Invalidate { window: usize, signaled: bool },
}

#[derive(Clone, Debug)]
enum Op {
    Post {
        qp: usize,
        request: Request,
    },
    /// Posts in a batch, which ends with a doorbell or is forgotten.
    Batch {
        qp: usize,
        requests: Vec<Request>,
        forget: bool,
    },
    /// The same, with other things happening while the batch is open.
    Open {
        qp: usize,
        requests: Vec<Request>,
        meanwhile: Vec<Op>,
        last: Request,
        forget: bool,
    },
    /// The device does this many requests that it knows.
    Execute {
        qp: usize,
        count: u8,
    },
    Poll {
        cq: usize,
        count: usize,
    },
    /// Notifies the device of what is left of batches.
    Ring {
        qp: usize,
    },
    /// The queue pair breaks on its own.
    Break {
        qp: usize,
    },
    Error {
        qp: usize,
    },
    Reset {
        qp: usize,
    },
    Recreate {
        qp: usize,
    },
    /// The peer sends and invalidates a window.
    PeerInvalidates {
        qp: usize,
        window: usize,
    },
    Event,
    /// Tries to deregister a region, and registers it again.
    Reregister {
        region: usize,
    },
    /// Tries to replace a window.
    Replace {
        window: usize,
        two: bool,
    },
    /// Everything completes.
    Settle,
}

fn requests() -> impl Strategy<Value = Request> {
    prop_oneof![
        2 => (0_u8..3, any::<bool>()).prop_map(|(long, signaled)| Request::Send { long, signaled }),
        4 => (0..MWS, prop::option::weighted(0.8, 0..MRS), any::<bool>())
            .prop_map(|(window, region, signaled)| Request::Bind { window, region, signaled }),
        2 => (0..MWS, any::<bool>()).prop_map(|(window, signaled)| Request::Invalidate { window, signaled }),
    ]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let batch = || prop::collection::vec(requests(), 1..4);
    let simple = prop_oneof![
        8 => (0..QPS, requests()).prop_map(|(qp, request)| Op::Post { qp, request }),
        2 => (0..QPS, batch(), any::<bool>()).prop_map(|(qp, requests, forget)| Op::Batch { qp, requests, forget }),
        8 => (0..QPS, 1_u8..4).prop_map(|(qp, count)| Op::Execute { qp, count }),
        6 => (0..CQS, 1_usize..5).prop_map(|(cq, count)| Op::Poll { cq, count }),
        1 => (0..QPS).prop_map(|qp| Op::Ring { qp }),
        1 => (0..QPS).prop_map(|qp| Op::Break { qp }),
        1 => (0..QPS).prop_map(|qp| Op::Error { qp }),
        2 => (0..QPS).prop_map(|qp| Op::Reset { qp }),
        1 => (0..QPS).prop_map(|qp| Op::Recreate { qp }),
        2 => (0..QPS, 0..MWS).prop_map(|(qp, window)| Op::PeerInvalidates { qp, window }),
        1 => Just(Op::Event),
        3 => (0..MRS).prop_map(|region| Op::Reregister { region }),
        2 => (0..MWS, any::<bool>()).prop_map(|(window, two)| Op::Replace { window, two }),
        1 => Just(Op::Settle),
    ]
    .boxed();
    let open = (0..QPS, batch(), prop::collection::vec(simple.clone(), 1..6), requests(), any::<bool>())
        .prop_map(|(qp, requests, meanwhile, last, forget)| Op::Open { qp, requests, meanwhile, last, forget });
    prop::collection::vec(prop_oneof![12 => simple, 1 => open], 0..OPS)
}

/// A request in flight as the model remembers it.
#[derive(Clone, Copy, Debug)]
struct Flying {
    wr_id: u64,
    at: u32,
    blocks: u32,
    /// The window that it binds or invalidates.
    window: Option<usize>,
    invalidates: bool,
    /// The device was not notified.
    left: bool,
}

/// A queue pair as the model remembers it.
struct Queue {
    qp: QpHandle,
    qpn: Qpn,
    flying: VecDeque<Flying>,
    head: u32,
    /// `wr_id` of each receive by its entry.
    receives: BTreeMap<u16, u64>,
    next_receive: u16,
    is_open: bool,
}

struct Model {
    verbs: KeptVerbs<Mock>,
    pd: PdHandle,
    cqs: [CqHandle; CQS],
    queues: Vec<Queue>,
    mrs: [MrHandle; MRS],
    mws: [MwHandle; MWS],
    kinds: [MwType; MWS],
    /// Windows of which the key does not show whether they are bound: a RESET dropped an invalidation.
    uncertain: [bool; MWS],
    next_id: u64,
}

/// Completion queues of sends and of receives, by queue pair.
const COMPLETES: [(usize, usize); QPS] = [(0, 1), (1, 1), (1, 0)];

impl Model {
    fn new(strict: bool, has_cookies: bool, start: u32) -> Self {
        let rings: &'static [QpRings<16, 8>; QPS] = Box::leak(Box::new([const { QpRings::new() }; QPS]));
        let storage = <storage![Mock; pds: 1, mrs: MRS, mws: MWS, cqs: CQS, qps: QPS]>::new(QpRings::views(rings));
        let mut verbs = KeptVerbs::new(Verbs::new(Mock::new(), Box::leak(Box::new(storage))));
        verbs.provider().lock().strict = strict;
        verbs.provider().lock().is_without_cookies = !has_cookies;
        let pd = verbs.alloc_pd().unwrap();
        let mrs = core::array::from_fn(|_| register(&mut verbs, pd, BASE, LENGTH, ALL_RIGHTS).unwrap());
        let kinds = [MwType::Type1, MwType::Type1, MwType::Type2];
        let mws = kinds.map(|kind| verbs.alloc_mw(pd, kind).unwrap());
        let cqs = [64, 64].map(|entries| verbs.create_cq(entries).unwrap());
        let uncertain = [false; MWS];
        let mut model = Self { verbs, pd, cqs, queues: Vec::new(), mrs, mws, kinds, uncertain, next_id: 1 };
        for n in 0..QPS {
            let queue = model.made(n);
            model.queues.push(queue);
            model.connect(n);
            super::start_rings(&mut model.verbs, model.queues[n].qp, start);
            model.queues[n].head = start;
            model.queues[n].next_receive = start as u16;
        }
        model
    }

    fn device(&self) -> MutexGuard<'_, Device> {
        self.verbs.provider().lock()
    }

    fn made(&mut self, n: usize) -> Queue {
        let (send_cq, recv_cq) = (self.cqs[COMPLETES[n].0], self.cqs[COMPLETES[n].1]);
        let init = QpInit { pd: self.pd, qp_type: QpType::Rc, send_cq, recv_cq, cap: CAP, sq_sig_all: false };
        let qp = self.verbs.create_qp(&init).unwrap();
        let qpn = self.verbs.qp_info(qp).unwrap().qpn;
        let (flying, receives) = (VecDeque::new(), BTreeMap::new());
        Queue { qp, qpn, flying, head: 0, receives, next_receive: 0, is_open: false }
    }

    fn connect(&mut self, n: usize) {
        self.verbs.modify_qp_to_rts(self.queues[n].qp, &attributes(QpState::Reset)).unwrap();
    }

    fn cqn(&self, cq: usize) -> Cqn {
        self.verbs.cq_info(self.cqs[cq]).unwrap().cqn
    }

    fn index(&self, window: usize) -> u32 {
        self.verbs.mw_info(self.mws[window]).unwrap().rkey.index()
    }

    fn binds(&self) -> usize {
        self.queues.iter().flat_map(|queue| &queue.flying).filter(|flying| flying.window.is_some()).count()
    }

    fn binds_of(&self, window: usize) -> u32 {
        let flying = self.queues.iter().flat_map(|queue| &queue.flying);
        u32::try_from(flying.filter(|flying| flying.window == Some(window)).count()).unwrap()
    }

    /// Posts a request to an open batch and says what must come of it.
    fn post_into(&mut self, n: usize, batch: &mut SendBatch<'_, Mock>, request: &Request) {
        let (wr_id, head) = (self.next_id, self.queues[n].head);
        let flags = |signaled| if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let (window, invalidates) = match *request {
            Request::Send { .. } => (None, false),
            Request::Bind { window, .. } => (Some(window), false),
            Request::Invalidate { window, .. } => (Some(window), true),
        };
        let held: u32 = self.queues[n].flying.iter().map(|flying| flying.blocks).sum();
        let (needed, free) = match *request {
            Request::Send { long, .. } => (u32::from(long) + 1, BLOCKS - held),
            Request::Bind { region: Some(_), .. } => (3, BLOCKS - held),
            _ => (2, BLOCKS - held),
        };
        let too_many = window.is_some() && self.binds() == MWS;
        let full = PostSendError::QueueFull { needed, free, blocks: BLOCKS };
        let state = self.verbs.qp_info(self.queues[n].qp).unwrap().state;
        // Only these read the state again.
        let type1 = matches!(*request, Request::Bind { window, .. } if self.kinds[window] == MwType::Type1);
        let elsewhere = |window: usize| {
            let mut others = self.queues.iter().enumerate().filter(|(other, _)| *other != n);
            others.find(|(_, queue)| queue.flying.iter().any(|flying| flying.window == Some(window))).map(|(_, queue)| queue.qp)
        };
        let expected = if type1 && state != QpState::Rts {
            Err(PostSendError::NotReady { state })
        } else if let Some(qp) = window.and_then(elsewhere) {
            Err(PostSendError::Bind(BindRefused::OtherQueuePair { qp }))
        } else if needed > free {
            Err(full)
        } else if too_many {
            Err(PostSendError::TooManyPendingBinds)
        } else {
            Ok(())
        };
        let result = match *request {
            Request::Send { long, signaled } => {
                let bytes = [0; 128];
                let payload = Payload::Inline(&bytes[..usize::from(long) * 64]);
                let op = SendOp::Write { payload, remote: REMOTE };
                batch.post(&SendWr { wr_id, flags: flags(signaled), op })
            }
            Request::Bind { window, region, signaled } => {
                let length = if region.is_some() { 64 } else { 0 };
                let (mr, addr, access) = (self.mrs[region.unwrap_or(0)], BASE, Access::REMOTE_READ);
                match self.kinds[window] {
                    MwType::Type1 => {
                        let bind = Type1Bind { wr_id, flags: flags(signaled), mr, addr, length, access };
                        let before = self.verbs.mw_info(self.mws[window]).unwrap().rkey.get();
                        let bound = batch.bind_type1(self.mws[window], &bind);
                        if let Ok(rkey) = bound {
                            assert_eq!(rkey.get(), before & !0xff | (before + 1) & 0xff);
                        }
                        bound.map(drop).map_err(|error| match error {
                            BindType1Error::QueueFull { needed, free, blocks } => {
                                PostSendError::QueueFull { needed, free, blocks }
                            }
                            BindType1Error::NotReady { state } => PostSendError::NotReady { state },
                            BindType1Error::TooManyPendingBinds => PostSendError::TooManyPendingBinds,
                            BindType1Error::Refused(refused) => PostSendError::Bind(refused),
                            other => panic!("{other}"),
                        })
                    }
                    // A type 2 window is unbound by an invalidation.
                    MwType::Type2 if region.is_none() => return,
                    MwType::Type2 => {
                        // Often the same key again, so that an invalidation that is polled late has the key of a newer bind.
                        let tag = self.verbs.mw_info(self.mws[window]).unwrap().rkey.tag();
                        let tag = if signaled { tag } else { tag.next() };
                        let op = SendOp::BindMw { mw: self.mws[window], tag, binding: Binding { mr, addr, length, access } };
                        batch.post(&SendWr { wr_id, flags: flags(signaled), op })
                    }
                }
            }
            Request::Invalidate { window, signaled } => {
                if self.kinds[window] == MwType::Type1 {
                    return;
                }
                let rkey = self.verbs.mw_info(self.mws[window]).unwrap().rkey;
                batch.post(&SendWr { wr_id, flags: flags(signaled), op: SendOp::LocalInv { rkey } })
            }
        };
        // In a batch that is open, the queue pair may be in another state by now: then a request is refused or posted.
        if let Err(PostSendError::NotReady { state }) = result {
            assert_ne!(state, QpState::Rts);
            return;
        }
        if let Err(PostSendError::Bind(BindRefused::KeyInUse { rkey })) = result {
            let info = self.verbs.mw_info(self.mws[window.unwrap()]).unwrap();
            assert_eq!((info.rkey.index(), info.kind), (rkey.index(), MwType::Type2));
            return;
        }
        assert_eq!(result, expected, "{request:?}");
        if result.is_ok() {
            let queue = &mut self.queues[n];
            queue.flying.push_back(Flying { wr_id, at: head, blocks: needed, window, invalidates, left: true });
            queue.head = head.wrapping_add(needed);
            self.next_id += 1;
        }
    }

    /// Records the requests that a forgotten batch leaves behind: all of its requests up to one of them, the last bind or a
    /// later one; `head` says which.
    fn left_behind(&mut self, n: usize, head: u32) {
        let queue = &mut self.queues[n];
        while queue.head != head {
            let lost = queue.flying.pop_back().unwrap();
            assert!(lost.left && lost.window.is_none(), "{lost:?} is lost");
            queue.head = lost.at;
        }
    }

    /// Records that the doorbell was rung for everything.
    fn rung(&mut self, n: usize) {
        self.queues[n].flying.iter_mut().for_each(|flying| flying.left = false);
    }

    /// Posts in one batch, with the send queue out so that the rest can go on.
    fn batch(&mut self, n: usize, requests: &[Request], meanwhile: Option<(&[Op], &Request)>, forget: bool) {
        if self.queues[n].is_open {
            return;
        }
        let mut taken = self.verbs.take_send(self.queues[n].qp);
        let state = self.verbs.qp_info(self.queues[n].qp).unwrap().state;
        let mut batch = taken.batch();
        match state {
            QpState::Rts => {
                self.queues[n].is_open = true;
                for request in requests {
                    self.post_into(n, &mut batch, request);
                }
                if let Some((ops, last)) = meanwhile {
                    for op in ops {
                        self.apply(op);
                    }
                    self.post_into(n, &mut batch, last);
                }
                self.queues[n].is_open = false;
                if forget {
                    core::mem::forget(batch);
                } else {
                    drop(batch);
                    self.rung(n);
                }
            }
            _ => {
                let refused = batch.post(&SendWr::send(&[0_u8; 0]));
                assert_eq!(refused, Err(PostSendError::NotReady { state }));
                drop(batch);
                self.rung(n);
            }
        }
        self.left_behind(n, taken.head.get());
        self.verbs.keep_send(taken);
    }

    /// Posts one request by the verbs themselves.
    fn post(&mut self, n: usize, request: &Request) {
        self.batch(n, core::slice::from_ref(request), None, false);
    }

    /// Takes up to `count` completions, which are those that the device has given, in their order.
    fn poll(&mut self, cq: usize, count: usize) {
        self.poll_without(cq, count, None);
    }

    /// Polls until the queues of a queue pair that was reset or destroyed were found empty. None of its completions is given.
    fn drop_stale(&mut self, n: usize) {
        let stale = self.queues[n].qpn;
        for cq in 0..CQS {
            while self.poll_without(cq, 8, Some(stale)) != 0 {}
        }
    }

    /// Does the same as [`Self::poll`], and no completion of `stale` is given. Returns how many there were.
    fn poll_without(&mut self, cq: usize, count: usize, stale: Option<Qpn>) -> usize {
        let cqn = self.cqn(cq);
        let entries: Vec<_> = self.device().entries(cqn).iter().map(|entry| entry.raw.unwrap()).collect();
        let given: Vec<_> = entries.into_iter().filter(|raw| Some(raw.qpn) != stale).take(count).collect();
        let mut out = [Completion::EMPTY; 8];
        let taken = if count.is_multiple_of(2) {
            let mut taken = 0;
            for (place, done) in out.iter_mut().zip(self.verbs.completions(self.cqs[cq]).take(count)) {
                *place = done.unwrap();
                taken += 1;
            }
            taken
        } else {
            self.verbs.poll_cq(self.cqs[cq], &mut out[..count]).unwrap()
        };
        assert_eq!(taken, given.len());
        for (raw, done) in given.iter().zip(&out) {
            let queue = self.queues.iter_mut().find(|queue| queue.qpn == raw.qpn).unwrap();
            let wr_id = if raw.kind == RawKind::Send {
                let at = queue.flying.iter().position(|flying| flying.at as u16 == raw.index).unwrap();
                queue.flying.drain(..=at).next_back().unwrap().wr_id
            } else {
                queue.receives.remove(&raw.index).unwrap()
            };
            assert_eq!((done.wr_id, done.qp, done.status, done.data), (wr_id, queue.qp, raw.status, raw.data));
        }
        taken
    }

    /// Drops the requests of a queue pair that is reset or destroyed.
    fn dropped(&mut self, n: usize) {
        for flying in &self.queues[n].flying {
            // By its key the device does not show a bind to the key that the window had.
            if let Some(window) = flying.window
                && (flying.invalidates || self.kinds[window] == MwType::Type2)
            {
                self.uncertain[window] = true;
            }
        }
        self.forget_completed_invalidations(n);
    }

    /// Forgets invalidations by the peer whose receive is dropped: they are learned by a poll that does not report them.
    fn forget_completed_invalidations(&mut self, n: usize) {
        let queue = &mut self.queues[n];
        (queue.head, queue.next_receive) = (0, 0);
        queue.flying.clear();
        queue.receives.clear();
        for window in (0..MWS).filter(|window| self.kinds[*window] == MwType::Type2) {
            self.uncertain[window] |= self.queues[n].qpn == self.peer_invalidated(window);
            let (index, cqn) = (self.index(window), self.cqn(COMPLETES[n].1));
            let qpn = self.queues[n].qpn;
            let is_dropped =
                |raw: RawCompletion| raw.qpn == qpn && matches!(raw.data, WcData::Invalidated(rkey) if rkey.index() == index);
            let drops = self.device().entries(cqn).iter().any(|entry| entry.raw.is_ok_and(is_dropped));
            self.uncertain[window] |= drops;
        }
    }

    /// Returns the queue pair whose peer was the last to invalidate a window.
    fn peer_invalidated(&self, window: usize) -> Qpn {
        let index = self.index(window);
        self.device().windows[&index].invalidated_by
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Post { qp, ref request } => self.post(qp, request),
            Op::Batch { qp, ref requests, forget } => self.batch(qp, requests, None, forget),
            Op::Open { qp, ref requests, ref meanwhile, ref last, forget } => {
                self.batch(qp, requests, Some((meanwhile, last)), forget);
            }
            Op::Execute { qp, count } => {
                for _ in 0..count {
                    let qpn = self.queues[qp].qpn;
                    self.device().execute(qpn);
                }
            }
            Op::Poll { cq, count } => self.poll(cq, count),
            Op::Ring { qp } => {
                if !self.queues[qp].is_open {
                    self.verbs.ring_send_queue(self.queues[qp].qp);
                    self.rung(qp);
                }
            }
            Op::Break { qp } => {
                let qpn = self.queues[qp].qpn;
                self.device().break_qp(qpn);
            }
            Op::Error { qp } => {
                let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
                // By the verbs themselves: what a batch has left is not announced.
                self.verbs.verbs_mut().modify_qp(self.queues[qp].qp, &attr, QpAttrMask::STATE).unwrap();
            }
            Op::Reset { qp } => {
                let result = self.verbs.modify_qp(self.queues[qp].qp, &QpAttr::default(), QpAttrMask::STATE);
                assert_eq!(result.is_err(), self.queues[qp].is_open, "{result:?}");
                if result.is_ok() {
                    self.dropped(qp);
                    self.drop_stale(qp);
                    self.connect(qp);
                }
            }
            Op::Recreate { qp } => {
                let result = self.verbs.destroy_qp(self.queues[qp].qp);
                assert_eq!(result.is_err(), self.queues[qp].is_open, "{result:?}");
                if result.is_ok() {
                    self.dropped(qp);
                    self.drop_stale(qp);
                    self.queues[qp] = self.made(qp);
                    self.connect(qp);
                }
            }
            Op::PeerInvalidates { qp, window } => {
                let (handle, qpn, index) = (self.queues[qp].qp, self.queues[qp].qpn, self.index(window));
                if self.verbs.post_recv(handle, &RecvWr { wr_id: self.next_id, sges: &[] }).is_ok() {
                    let at = self.queues[qp].next_receive;
                    self.queues[qp].receives.insert(at, self.next_id);
                    self.queues[qp].next_receive = at.wrapping_add(1);
                    self.next_id += 1;
                }
                self.device().invalidate(qpn, index);
            }
            Op::Event => {
                self.verbs.poll_event().unwrap();
            }
            Op::Reregister { region } => {
                if self.verbs.dereg_mr_raw(self.mrs[region]).is_ok() {
                    self.mrs[region] = register(&mut self.verbs, self.pd, BASE, LENGTH, ALL_RIGHTS).unwrap();
                }
            }
            Op::Replace { window, two } => {
                let result = self.verbs.dealloc_mw(self.mws[window]);
                let expected = match self.binds_of(window) {
                    0 => Ok(()),
                    binds => Err(DeallocMwError::Busy { binds }),
                };
                assert_eq!(result, expected);
                if result.is_ok() {
                    self.kinds[window] = if two { MwType::Type2 } else { MwType::Type1 };
                    self.mws[window] = self.verbs.alloc_mw(self.pd, self.kinds[window]).unwrap();
                    self.uncertain[window] = false;
                }
            }
            Op::Settle => self.settle(),
        }
        let device = self.device();
        assert_eq!(device.violations, [""; 0], "after {op:?}");
        drop(device);
        for queue in &self.queues {
            let known: u32 = queue.flying.iter().filter(|flying| !flying.left).map(|flying| flying.blocks).sum();
            assert_eq!(self.verbs.qp_info(queue.qp).unwrap().send_blocks, known, "after {op:?}");
        }
    }

    /// Completes everything that was posted, takes every event, and compares the state with that of the device.
    fn settle(&mut self) {
        if self.queues.iter().any(|queue| queue.is_open) {
            return;
        }
        for n in 0..QPS {
            self.apply(&Op::Ring { qp: n });
            // Retires unsignaled requests.
            if self.queues[n].flying.is_empty() || self.verbs.qp_info(self.queues[n].qp).unwrap().state != QpState::Rts {
                continue;
            }
            self.drain(n);
            self.post(n, &Request::Send { long: 0, signaled: true });
            self.drain(n);
            if !self.queues[n].flying.is_empty() && self.verbs.qp_info(self.queues[n].qp).unwrap().state == QpState::Rts {
                // Full of requests that ask for no completion: no way out but this.
                self.apply(&Op::Reset { qp: n });
            }
        }
        for n in 0..QPS {
            self.drain(n);
        }
        while self.verbs.poll_event().unwrap().is_some() {}
        self.agree();
        // Not in error, and nothing in flight; and a window whose state is unknown is replaced.
        for n in 0..QPS {
            if self.verbs.qp_info(self.queues[n].qp).unwrap().state != QpState::Rts {
                self.apply(&Op::Reset { qp: n });
            }
        }
        assert_eq!(self.binds(), 0);
        self.agree();
        for window in (0..MWS).filter(|window| self.uncertain[*window]).collect::<Vec<_>>() {
            self.apply(&Op::Replace { window, two: self.kinds[window] == MwType::Type2 });
        }
    }

    /// Lets the device do all that it was notified of, and polls everything.
    fn drain(&mut self, n: usize) {
        let qpn = self.queues[n].qpn;
        loop {
            let done = self.device().execute(qpn) || self.device().flush_receive(qpn);
            for cq in 0..CQS {
                self.poll(cq, 8);
            }
            if !done {
                return;
            }
        }
    }

    /// Loses the device. Takes everything of every completion queue, `size` at a time, with half of the queues split off if
    /// `apart`: each request comes exactly once, in the order of its ring, as the device has completed it or flushed.
    fn lose(&mut self, size: usize, apart: bool) {
        self.device().loss = Some(DeviceLoss::Gone);
        let mut taken = if apart { vec![self.verbs.take_cq(self.cqs[0])] } else { Vec::new() };
        if size.is_multiple_of(2) {
            assert!(self.verbs.maintain().is_err());
        } else {
            assert!(self.verbs.query_port(1).is_err());
        }
        for n in 0..QPS {
            // What batches have left is flushed once the queue rings for it.
            self.verbs.ring_send_queue(self.queues[n].qp);
        }
        for cq in 0..CQS {
            let cqn = self.cqn(cq);
            let come: Vec<_> = self.device().entries(cqn).iter().map(|entry| entry.raw.unwrap()).collect();
            let mut given = Vec::new();
            loop {
                let mut out = [Completion::EMPTY; 5];
                let polled = match taken.iter_mut().find(|queue| queue.handle() == self.cqs[cq]) {
                    Some(queue) => queue.poll(&mut out[..size]),
                    None => self.verbs.poll_cq(self.cqs[cq], &mut out[..size]),
                };
                match polled {
                    Ok(count) => {
                        assert_ne!(count, 0, "neither a request nor the reason");
                        given.extend_from_slice(&out[..count]);
                    }
                    Err(error) => {
                        assert_eq!(error, PollCqError::DeviceLost { loss: DeviceLoss::Gone });
                        break;
                    }
                }
            }
            let (first, flushed) = given.split_at(come.len());
            for (raw, done) in come.iter().zip(first) {
                let queue = self.queues.iter_mut().find(|queue| queue.qpn == raw.qpn).unwrap();
                let wr_id = if raw.kind == RawKind::Send {
                    let at = queue.flying.iter().position(|flying| flying.at as u16 == raw.index).unwrap();
                    queue.flying.drain(..=at).next_back().unwrap().wr_id
                } else {
                    queue.receives.remove(&raw.index).unwrap()
                };
                assert_eq!((done.wr_id, done.qp, done.status, done.data), (wr_id, queue.qp, raw.status, raw.data));
            }
            let mut expected = 0;
            for (n, queue) in self.queues.iter().enumerate() {
                let of =
                    |recv| flushed.iter().filter(move |done| done.qp == queue.qp && (done.opcode == WcOpcode::Recv) == recv);
                let sends: Vec<_> = queue.flying.iter().map(|flying| flying.wr_id).filter(|_| COMPLETES[n].0 == cq).collect();
                let mut recvs: Vec<_> = queue.receives.values().copied().filter(|_| COMPLETES[n].1 == cq).collect();
                // As they were posted.
                recvs.sort_unstable();
                expected += sends.len() + recvs.len();
                assert_eq!(of(false).map(|done| done.wr_id).collect::<Vec<_>>(), sends, "sends of {n}");
                assert_eq!(of(true).map(|done| done.wr_id).collect::<Vec<_>>(), recvs, "receives of {n}");
            }
            assert_eq!(flushed.len(), expected, "of queue pairs that are none");
            let why = |done: &Completion| (done.status, done.loss()) == (WcStatus::WrFlushErr, Some(DeviceLoss::Gone));
            assert!(flushed.iter().all(why), "{flushed:?}");
        }
        for queue in &self.queues {
            let (info, slot) = (self.verbs.qp_info(queue.qp).unwrap(), &self.verbs.shared.qps[usize::from(queue.qp.index())]);
            assert_eq!((info.state, info.send_blocks, info.recvs), (QpState::Err, 0, 0));
            assert_eq!(slot.binds.load(crate::sync::Ordering::Relaxed), 0);
        }
        assert!(self.device().violations.is_empty());
    }

    fn agree(&mut self) {
        for queue in &self.queues {
            let (info, state) = (self.verbs.qp_info(queue.qp).unwrap(), self.device().qps[&queue.qpn].state);
            assert_eq!(info.state, state);
            // Unsignaled requests that were executed before a queue pair broke retire when it is reset.
            assert!(state == QpState::Err || info.send_blocks == 0);
        }
        for window in 0..MWS {
            let info = self.verbs.mw_info(self.mws[window]).unwrap();
            let truth = self.device().windows[&info.rkey.index()];
            let lkey = |mr| self.verbs.mr_info(mr).unwrap().lkey.get();
            let known = info.binding.map(|binding| (lkey(binding.mr), binding.addr, binding.length));
            assert_eq!(info.kind, truth.kind);
            if self.uncertain[window] {
                assert!(truth.binding.is_none() || known == truth.binding, "{known:?} {truth:?}");
            } else {
                assert_eq!((info.rkey.get(), known), (truth.rkey, truth.binding));
            }
        }
        // A bind in flight keeps what its window was bound to before.
        if self.binds() != 0 {
            return;
        }
        for region in 0..MRS {
            let lkey = self.verbs.mr_info(self.mrs[region]).unwrap().lkey.get();
            let infos = self.mws.map(|mw| self.verbs.mw_info(mw).unwrap());
            let is_held = infos.iter().any(|info| info.binding.is_some_and(|binding| binding.mr == self.mrs[region]));
            let result = self.verbs.dereg_mr_raw(self.mrs[region]);
            // What a RESET has left of a window may be bound to either of two regions: both are held while it is bound.
            let may_be_held = (0..MWS).any(|window| {
                let index = infos[window].rkey.index();
                self.uncertain[window] && self.device().windows[&index].binding.is_some()
            });
            assert!(result.is_err() == is_held || result.is_err() && may_be_held, "{result:?} of {lkey:#x}");
            if result.is_ok() {
                self.mrs[region] = register(&mut self.verbs, self.pd, BASE, LENGTH, ALL_RIGHTS).unwrap();
            }
        }
    }
}

/// Programs of random calls, and calls of one at most. Miri takes minutes over a long one.
const CASES: u32 = if cfg!(miri) { 2 } else { 4096 };
const OPS: usize = if cfg!(miri) { 20 } else { 100 };

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tables_and_device_agree(
        strict in any::<bool>(),
        has_cookies in any::<bool>(),
        start in prop_oneof![Just(0), any::<u32>(), (u32::MAX - 40)..=u32::MAX, 65_500_u32..65_540],
        ops in ops(),
    ) {
        let mut model = Model::new(strict, has_cookies, start);
        for op in &ops {
            model.apply(op);
        }
        model.settle();
        assert!(model.device().violations.is_empty());
    }

    #[test]
    fn after_a_loss_at_any_time_each_request_is_given_once(
        has_cookies in any::<bool>(),
        start in prop_oneof![Just(0), any::<u32>(), (u32::MAX - 40)..=u32::MAX, 65_500_u32..65_540],
        ops in ops(),
        (size, apart) in (1_usize..=5, any::<bool>()),
    ) {
        let mut model = Model::new(true, has_cookies, start);
        for op in &ops {
            model.apply(op);
        }
        model.lose(size, apart);
    }
}
