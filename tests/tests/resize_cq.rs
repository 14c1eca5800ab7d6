//! Completion queues of another size on simulated devices, in the middle of traffic.

use core::time::Duration;

use bareverbs::error::{Errno, PollCqError, ResizeCqError};
use bareverbs::{Access, Completion, CompletionQueue, Event, QpCap, QpInit, QpType, QueuePair, SendWr, WcStatus};
use bareverbs_mlx5::Error;
use bareverbs_testing::{Connection, Driver, Fault, Faults, Node, Probability, connect, join, pair};

type Qp = QueuePair<'static, Driver>;
type Cq = CompletionQueue<'static, Driver>;

const CAP: QpCap = QpCap { max_send_wr: 128, max_recv_wr: 0, max_send_sge: 1, max_recv_sge: 0, max_inline_data: 16 };

/// A connected queue pair of `a` with a completion queue of so many entries.
fn connected(a: &mut Node, b: &mut Node, entries: u32) -> (Qp, Cq, Qp) {
    let (cq, peer_cq) = (a.verbs.create_cq(entries).unwrap(), b.verbs.create_cq(1024).unwrap());
    let init = |pd, cq| QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap: CAP, sq_sig_all: true };
    let qp = a.verbs.create_qp(&init(a.pd, cq.handle())).unwrap();
    let peer = b.verbs.create_qp(&init(b.pd, peer_cq.handle())).unwrap();
    join((&mut a.verbs, qp.handle()), (&mut b.verbs, peer.handle()), &Connection::default()).unwrap();
    drop(peer_cq);
    (qp, cq, peer)
}

fn settle(node: &Node) {
    node.network().world().advance(Duration::from_millis(20));
}

fn taken(cq: &mut Cq) -> Vec<u64> {
    let all: Vec<Completion> = cq.completions().map(Result::unwrap).collect();
    assert!(all.iter().all(|done| done.status == WcStatus::Success), "{all:?}");
    all.iter().map(|done| done.wr_id).collect()
}

/// Sizes up and down at every fill, over many rounds of the rings. Requests are posted and polled between, and some are on the way
/// while the command runs.
// contract: cq-resize
#[test]
fn completions_stay_whole_through_every_resize() {
    for seed in 0..4 {
        let [mut a, mut b] = pair(Faults::none().loss(Probability::per_mille(20)).seed(seed)).unwrap();
        let (mut qp, mut cq, _peer) = connected(&mut a, &mut b, 16);
        let target = b.register(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let (mut next, mut expected, mut size) = (0_u64, 0_u64, 16_u32);
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut roll = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        for round in 0..300 {
            let in_flight = next - expected;
            for _ in 0..roll(u64::from(size) - in_flight) {
                qp.send.post(&SendWr::write(target.remote(next % 4096), &[next as u8]).id(next)).unwrap();
                next += 1;
            }
            match roll(3) {
                0 => settle(&a),
                1 => a.network().world().advance(Duration::from_micros(3)),
                _ => {}
            }
            // Room for what is in flight and for the mark.
            let wanted = (next - expected + 1).max(2).max(1 << roll(9));
            // The mark needs a place in the ring that it ends.
            if next - expected < u64::from(size) {
                a.verbs.resize_cq(&mut cq, wanted as u32).unwrap();
                size = (wanted as u32).next_power_of_two();
                assert_eq!(a.verbs.cq_info(cq.handle()).unwrap().entries, size);
            }
            if roll(2) == 0 {
                settle(&a);
            }
            let mut out = [Completion::EMPTY; 7];
            let count = cq.poll(&mut out).unwrap();
            for done in &out[..count] {
                assert_eq!((done.wr_id, done.status), (expected, WcStatus::Success), "round {round}");
                expected += 1;
            }
        }
        settle(&a);
        assert_eq!(taken(&mut cq), (expected..next).collect::<Vec<_>>());
        assert!(next > 1000, "{next}");
        a.verbs.destroy_qp(qp).map_err(|refused| refused.error).unwrap();
        a.verbs.destroy_cq(cq).map_err(|refused| refused.error).unwrap();
        assert_eq!((a.findings(), b.findings()), (vec![], vec![]));
    }
}

// contract: cq-resize-refused
#[test]
fn too_few_entries_and_other_queues_are_refused() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let (mut qp, mut cq, _peer) = connected(&mut a, &mut b, 16);
    let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let max = a.verbs.query_device().max_cqe;
    for entries in [0, max + 1, u32::MAX] {
        let error = a.verbs.resize_cq(&mut cq, entries).unwrap_err();
        assert_eq!((error, error.errno()), (ResizeCqError::Entries { entries, max }, Errno::Einval));
    }
    let of_others = b.verbs.resize_cq(&mut cq, 32).unwrap_err();
    assert_eq!((of_others, of_others.errno()), (ResizeCqError::Stale, Errno::Einval));
    // Nine wait: they do not fit into eight entries with the mark, and the queue goes on as it was.
    let mut next = 0;
    let mut post = |qp: &mut Qp, count: u64| {
        for _ in 0..count {
            qp.send.post(&SendWr::write(target.remote(0), b"x").id(next)).unwrap();
            next += 1;
        }
    };
    post(&mut qp, 9);
    settle(&a);
    for entries in [1, 8] {
        let error = a.verbs.resize_cq(&mut cq, entries).unwrap_err();
        assert!(matches!(error, ResizeCqError::Device(Error::CommandStatus { .. })), "{error:?}");
        assert_eq!(error.errno(), Errno::Einval);
    }
    assert_eq!(a.verbs.cq_info(cq.handle()).unwrap().entries, 16);
    // A full queue has no place for the mark.
    post(&mut qp, 7);
    settle(&a);
    assert_eq!(a.verbs.resize_cq(&mut cq, 64).unwrap_err().errno(), Errno::Einval);
    assert_eq!(taken(&mut cq), (0..16).collect::<Vec<_>>());
    post(&mut qp, 3);
    settle(&a);
    assert_eq!(taken(&mut cq), [16, 17, 18]);
    // No memory is left for the new ring: refused, and the queue goes on.
    let error = a.verbs.resize_cq(&mut cq, max).unwrap_err();
    assert_eq!(error.errno(), Errno::Enomem, "{error}");
    post(&mut qp, 1);
    settle(&a);
    assert_eq!(taken(&mut cq), [19]);
    assert_eq!(b.findings(), vec![]);
}

/// The memory of the old ring is free again: resizes have no end.
#[test]
fn resizes_leak_no_memory() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let (mut qp, mut cq, _peer) = connected(&mut a, &mut b, 16);
    let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    for round in 0..3000 {
        a.verbs.resize_cq(&mut cq, if round % 2 == 0 { 4096 } else { 8 }).unwrap();
    }
    qp.send.post(&SendWr::write(target.remote(0), b"x").id(7)).unwrap();
    settle(&a);
    assert_eq!(taken(&mut cq), [7]);
    assert_eq!(a.findings(), vec![]);
}

/// An armed queue stays armed.
#[test]
fn an_event_that_was_asked_for_comes_after_a_resize() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let [mut qa, _qb] = connect(&mut a, &mut b).unwrap();
    let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    while a.verbs.poll_event().unwrap().is_some() {}
    let cq = qa.cq.handle();
    for entries in [1024, 256, 4096] {
        qa.cq.req_notify(false).unwrap();
        a.verbs.resize_cq(&mut qa.cq, entries).unwrap();
        assert_eq!(a.verbs.poll_event().unwrap(), None, "the mark completes nothing");
        qa.qp.send.post(&SendWr::write(target.remote(0), b"x")).unwrap();
        settle(&a);
        assert_eq!(a.verbs.poll_event().unwrap(), Some(Event::Completion(cq)));
        assert_eq!(a.verbs.poll_event().unwrap(), None);
        assert_eq!(taken(&mut qa.cq).len(), 1);
    }
}

/// A queue that overran is broken, and no resize mends it; that of a lost device gives what had come, and then what is flushed.
#[test]
fn a_broken_queue_and_a_lost_device_refuse() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let (mut qp, mut cq, _peer) = connected(&mut a, &mut b, 4);
    let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    (0..6).for_each(|id| qp.send.post(&SendWr::write(target.remote(0), b"x").id(id)).unwrap());
    settle(&a);
    assert!(a.verbs.resize_cq(&mut cq, 64).is_err());
    while a.verbs.poll_event().unwrap().is_some() {}
    assert!(a.verbs.resize_cq(&mut cq, 64).is_err());
    let mut out = [Completion::EMPTY; 8];
    assert_eq!(cq.poll(&mut out), Ok(4));
    assert!(matches!(cq.poll(&mut out), Err(PollCqError::Broken { .. })));

    let (mut qp, mut cq, _peer) = connected(&mut a, &mut b, 16);
    (0..3).for_each(|id| qp.send.post(&SendWr::write(target.remote(0), b"x").id(id)).unwrap());
    settle(&a);
    a.verbs.resize_cq(&mut cq, 32).unwrap();
    b.remove();
    (3..6).for_each(|id| qp.send.post(&SendWr::write(target.remote(0), b"x").id(id)).unwrap());
    a.remove();
    assert!(a.verbs.resize_cq(&mut cq, 64).is_err());
    let all: Vec<Completion> = cq.completions().map_while(Result::ok).collect();
    let of = |status| all.iter().filter(|done| done.status == status).map(|done| done.wr_id).collect::<Vec<_>>();
    assert_eq!((of(WcStatus::Success), of(WcStatus::WrFlushErr)), (vec![0, 1, 2], vec![3, 4, 5]));
}

/// A queue that has grown gives all that waits in it, as many as it has now, when the device is lost.
#[test]
fn a_queue_that_has_grown_loses_nothing_with_its_device() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let (mut qp, mut cq, _peer) = connected(&mut a, &mut b, 4);
    let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    a.verbs.resize_cq(&mut cq, 64).unwrap();
    (0..40).for_each(|id| qp.send.post(&SendWr::write(target.remote(0), b"x").id(id)).unwrap());
    settle(&a);
    a.remove();
    assert!(a.verbs.resize_cq(&mut cq, 128).is_err());
    let all: Vec<Completion> = cq.completions().map_while(Result::ok).collect();
    let done: Vec<u64> = all.iter().filter(|done| done.status == WcStatus::Success).map(|done| done.wr_id).collect();
    assert_eq!((done, all.len()), ((0..40).collect(), 40));
}

/// A device that says that it has resized the queue and has not: it is lost, and each request is given once.
#[test]
fn a_device_that_did_not_resize_is_lost() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let (mut qp, mut cq, _peer) = connected(&mut a, &mut b, 16);
    let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    (0..3).for_each(|id| qp.send.post(&SendWr::write(target.remote(0), b"x").id(id)).unwrap());
    settle(&a);
    (3..6).for_each(|id| qp.send.post(&SendWr::send(b"no receive").id(id)).unwrap());
    // The status says that MODIFY_CQ was executed.
    a.arm(Fault::CommandStatus { opcode: 0x403, status: 0, syndrome: 0 });
    let error = a.verbs.resize_cq(&mut cq, 64).unwrap_err();
    assert!(matches!(error, ResizeCqError::Device(Error::BadAnswer { opcode: 0x403, .. })), "{error}");
    let all: Vec<Completion> = cq.completions().map_while(Result::ok).collect();
    let of = |status| all.iter().filter(|done| done.status == status).map(|done| done.wr_id).collect::<Vec<_>>();
    assert_eq!((of(WcStatus::Success), of(WcStatus::WrFlushErr)), (vec![0, 1, 2], vec![3, 4, 5]));
    assert!(a.verbs.create_cq(16).is_err(), "nothing works until a reset");
}
