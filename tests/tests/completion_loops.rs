//! Loops over completions that post again: a queue of the size that is documented has room for them. And what ends such a loop.

use core::time::Duration;

use bareverbs::error::{DeviceLoss, PollCqError};
use bareverbs::{
    Access, Completion, CompletionQueue, QpCap, QpInit, QpType, QueuePair, RecvWr, Refused, Region, SendWr, SrqCap, SrqInit,
    WcStatus,
};
use bareverbs_sim::in_process::SimBuffer;
use bareverbs_sim::{DeviceConfig, Limits};
use bareverbs_testing::{Connection, Driver, Faults, Network, Node, join, pair};

const CAP: QpCap = QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16 };
const OPEN: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

type Qp = QueuePair<'static, Driver>;
type Cq = CompletionQueue<'static, Driver>;

fn qp(node: &mut Node, cq: &Cq) -> Qp {
    let (send_cq, recv_cq) = (cq.handle(), cq.handle());
    let init = QpInit { pd: node.pd, qp_type: QpType::Rc, send_cq, recv_cq, cap: CAP, sq_sig_all: true };
    node.verbs.create_qp(&init).unwrap()
}

fn connect(a: &mut Node, one: &Qp, b: &mut Node, other: &Qp) {
    join((&mut a.verbs, one.handle()), (&mut b.verbs, other.handle()), &Connection::default()).unwrap();
}

/// Posts a write, if there is room.
fn write(qp: &mut Qp, target: &Region<'static, SimBuffer>, id: u64) -> bool {
    qp.send.post(&SendWr::write(target.remote(0), b"x").id(id)).is_ok()
}

/// A queue with as many entries as the ring has blocks is never more than full, though each place is used again at once.
#[test]
fn what_is_posted_in_the_loop_has_room() {
    for with_source in [false, true] {
        let [mut a, mut b] = pair(Faults::none()).unwrap();
        let sizes = a.verbs.ring_sizes(QpType::Rc, &CAP).unwrap();
        let (mut cq, of_b) = (a.verbs.create_cq(sizes.send_blocks).unwrap(), b.verbs.create_cq(64).unwrap());
        assert_eq!(a.verbs.cq_info(cq.handle()).unwrap().entries, sizes.send_blocks, "none to spare");
        let (mut qa, qb) = (qp(&mut a, &cq), qp(&mut b, &of_b));
        connect(&mut a, &qa, &mut b, &qb);
        let target = b.register(64, OPEN).unwrap();
        let world = a.network().world().clone();
        let mut posted = 0;
        while write(&mut qa, &target, posted) {
            posted += 1;
        }
        assert_eq!(posted, u64::from(sizes.send_blocks));
        world.advance(Duration::from_millis(5));
        let mut seen = 0;
        let mut take = |done: Completion| {
            assert_eq!((done.wr_id, done.status), (seen, WcStatus::Success));
            seen += 1;
            if seen < 1000 {
                assert!(write(&mut qa, &target, posted));
                posted += 1;
            }
            world.advance(Duration::from_micros(20));
        };
        if with_source {
            cq.completions().with_source().for_each(|done| take(done.unwrap().0));
        } else {
            cq.completions().for_each(|done| take(done.unwrap()));
        }
        assert_eq!(seen, posted);
        assert_eq!(a.verbs.poll_event().unwrap(), None);
    }
}

/// The same in the closure of a drain, by another queue pair of the completion queue.
#[test]
fn what_is_posted_in_a_drain_has_room() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let sizes = a.verbs.ring_sizes(QpType::Rc, &CAP).unwrap();
    let (mut cq, of_b) = (a.verbs.create_cq(2 * sizes.send_blocks).unwrap(), b.verbs.create_cq(64).unwrap());
    let (mut busy, mut idle) = (qp(&mut a, &cq), qp(&mut a, &cq));
    let (for_busy, for_idle) = (qp(&mut b, &of_b), qp(&mut b, &of_b));
    connect(&mut a, &busy, &mut b, &for_busy);
    connect(&mut a, &idle, &mut b, &for_idle);
    let target = b.register(64, OPEN).unwrap();
    let world = a.network().world().clone();
    while write(&mut busy, &target, 1) {}
    idle.send.post(&SendWr::send(b"nobody receives it")).unwrap();
    world.advance(Duration::from_micros(100));
    let (mut count, of_busy) = (0, busy.handle());
    let drained = a.verbs.drain_sq(&mut idle.send, &mut cq, Duration::from_secs(1), |done| {
        count += 1;
        if done.qp == of_busy {
            assert!(write(&mut busy, &target, 1));
        }
        world.advance(Duration::from_micros(20));
    });
    assert_eq!(drained.unwrap().total(), 1);
    assert!(count > sizes.send_blocks, "each place was used again: {count}");
    assert_eq!(a.verbs.poll_event().unwrap(), None);
    assert_eq!(cq.completions().map(|done| done.unwrap().status).filter(|status| *status == WcStatus::Success).count(), 64);
}

/// Completions of a queue pair that was reset are dropped, and their places are the device's again, with each way to poll.
#[test]
fn the_places_of_what_was_dropped_are_free() {
    for with_source in [false, true] {
        let [mut a, mut b] = pair(Faults::none()).unwrap();
        let (mut cq, mut of_b) = (a.verbs.create_cq(16).unwrap(), b.verbs.create_cq(64).unwrap());
        let entries = u64::from(a.verbs.cq_info(cq.handle()).unwrap().entries);
        let (mut qa, mut qb) = (qp(&mut a, &cq), qp(&mut b, &of_b));
        let target = b.register(64, OPEN).unwrap();
        for _ in 0..3 {
            connect(&mut a, &qa, &mut b, &qb);
            (0..entries).for_each(|id| assert!(write(&mut qa, &target, id)));
            a.network().world().advance(Duration::from_millis(5));
            a.verbs.reset_qp(&mut qa).unwrap();
            b.verbs.reset_qp(&mut qb).unwrap();
            assert_eq!(of_b.poll(&mut [Completion::EMPTY; 4]), Ok(0));
            // Once: what gives nothing has found it empty, though as many were there as it has entries.
            let found = if with_source {
                cq.poll_with_source(&mut [(Completion::EMPTY, None); 4])
            } else {
                cq.poll(&mut [Completion::EMPTY; 4])
            };
            assert_eq!(found, Ok(0));
        }
        assert_eq!(a.verbs.poll_event().unwrap(), None);
    }
}

/// A program that logs errors and goes on does not loop for ever.
#[test]
fn an_iterator_says_the_end_once() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let (mut cq, of_b) = (a.verbs.create_cq(64).unwrap(), b.verbs.create_cq(64).unwrap());
    let (mut qa, qb) = (qp(&mut a, &cq), qp(&mut b, &of_b));
    connect(&mut a, &qa, &mut b, &qb);
    let target = b.register(64, OPEN).unwrap();
    (0..3).for_each(|id| assert!(write(&mut qa, &target, id)));
    a.remove();
    assert!(a.verbs.alloc_pd().is_err());
    let lost = Err(PollCqError::DeviceLost { loss: DeviceLoss::Gone });
    for flushed in [3, 0] {
        let found: Vec<_> = cq.completions().map(|done| done.map(|done| done.status)).collect();
        assert_eq!(found.len(), flushed + 1);
        assert!(found[..flushed].iter().all(|status| *status == Ok(WcStatus::WrFlushErr)));
        assert_eq!(found.last(), Some(&lost));
    }
    let ends = cq.completions().with_source().map(|done| done.map(|(done, _)| done.status));
    assert_eq!(ends.collect::<Vec<_>>(), [lost]);
}

/// The completion of an XRC shared receive queue waits, and its target is gone. Another queue pair has the number by then, and
/// completes into the same queue.
#[test]
fn a_completion_of_xrc_is_of_no_queue_pair_that_has_the_targets_number() {
    for at_most in [1, 4] {
        let network = Network::new(Faults::none());
        let mut a = network.add(DeviceConfig::with_lid(1)).unwrap();
        let limits = Limits { log_max_qp: 3, ..Limits::default() };
        let mut b = network.add(DeviceConfig { limits, ..DeviceConfig::with_lid(2) }).unwrap();
        let (of_a, domain) = (a.verbs.alloc_xrcd().unwrap(), b.verbs.alloc_xrcd().unwrap());
        let (mut cq, other) = (b.verbs.create_cq(256).unwrap(), b.verbs.create_cq(64).unwrap());
        let cap = SrqCap { max_wr: 7, max_sge: 1 };
        let mut srq = b.verbs.create_xrc_srq(&SrqInit { pd: b.pd, cap }, &domain, &mut cq).unwrap();
        let srqn = b.verbs.srq_info(srq.handle()).unwrap().srqn;
        let mut sent = a.verbs.create_cq(64).unwrap();
        let (send_cq, recv_cq) = (sent.handle(), sent.handle());
        let init = QpInit { pd: a.pd, qp_type: QpType::XrcSend, send_cq, recv_cq, cap: CAP, sq_sig_all: true };
        let mut from = a.verbs.create_xrc_send_qp(&init, &of_a).unwrap();
        let target = b.verbs.create_xrc_recv_qp(&domain).unwrap();
        let qpn = b.verbs.qp_info(target.handle()).unwrap().qpn;
        join((&mut a.verbs, from.handle()), (&mut b.verbs, target.handle()), &Connection::default()).unwrap();
        let inbox = b.register(4096, Access::LOCAL_WRITE).unwrap();
        for wr_id in [1000, 1001] {
            srq.post(&RecvWr { wr_id, sges: &[inbox.sge(0, 64)] }).unwrap();
            from.send.post(&SendWr::send(b"for the shared queue").to_srq(srqn)).unwrap();
            assert_eq!(a.waiter().wait(&mut sent).unwrap().status, WcStatus::Success);
        }
        b.verbs.destroy_qp(target).map_err(Refused::into_error).unwrap();

        let init =
            QpInit { pd: b.pd, qp_type: QpType::Rc, send_cq: other.handle(), recv_cq: cq.handle(), cap: CAP, sq_sig_all: true };
        let mut others = Vec::new();
        let mut receiver = loop {
            let made = b.verbs.create_qp(&init).unwrap();
            if b.verbs.qp_info(made.handle()).unwrap().qpn == qpn {
                break made;
            }
            others.push(made);
        };
        let cqa = a.verbs.create_cq(64).unwrap();
        let mut sender = qp(&mut a, &cqa);
        connect(&mut a, &sender, &mut b, &receiver);
        (1..=3).for_each(|wr_id| receiver.recv.post(&RecvWr { wr_id, sges: &[inbox.sge(64 * wr_id, 64)] }).unwrap());
        sender.send.post(&SendWr::send(b"for the queue pair")).unwrap();
        network.world().advance(Duration::from_millis(5));
        let mut done = Vec::new();
        let mut out = [Completion::EMPTY; 4];
        while let Ok(count @ 1..) = cq.poll(&mut out[..at_most]) {
            done.extend(out[..count].iter().map(|done| (done.wr_id, done.status)));
        }
        assert_eq!(done, [1000, 1001, 1].map(|wr_id| (wr_id, WcStatus::Success)));
        assert_eq!(b.verbs.srq_info(srq.handle()).unwrap().recvs, 0);
    }
}
