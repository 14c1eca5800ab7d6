//! Programs without `unsafe` that try to make a device use memory that it should not, or to get a completion that is not theirs.
#![forbid(unsafe_code)]

use std::time::Duration;

use bareverbs::error::{
    CreateSrqError, DeregMrError, DestroySrqError, DrainError, PostRecvError, PostSendError, ReregMrError, ResizeCqError,
    SgeFault,
};
use bareverbs::{
    Access, DmaBuffer, MrChange, QpCap, QpInit, QpState, QpType, QueuePair, RecvWr, SendWr, SrqCap, SrqInit, WcStatus,
};
use bareverbs_testing::{Connection, Faults, connect, join, pair};

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// A region whose keys were ended by its handle: its buffer is not to be had again, and none of its names opens anything, although
/// another region has its place in the table by then.
#[test]
fn a_region_that_was_deregistered_by_its_handle_opens_nothing_and_gives_no_buffer_back() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let [mut near, mut far] = connect(&mut a, &mut b).unwrap();
    let ended = a.register(64, ALL).unwrap();
    a.verbs.dereg_mr_raw(ended.handle()).unwrap();
    assert_eq!(a.verbs.dereg_mr_raw(ended.handle()), Err(DeregMrError::Stale));
    // In its place, sooner or later.
    let mut next = a.register(64, ALL).unwrap();
    while next.handle().index() != ended.handle().index() {
        next = a.register(64, ALL).unwrap();
    }
    next.write(0, &[7; 64]).unwrap();

    let (lkey, fault) = (ended.lkey(), SgeFault::UnknownKey);
    let refused = near.qp.send.post(&SendWr::send(&[ended.sge(0, 64)]));
    assert_eq!(refused, Err(PostSendError::Sge { index: 0, lkey, fault }));
    let refused = near.qp.recv.post(&RecvWr { wr_id: 1, sges: &[ended.sge(0, 64)] });
    assert_eq!(refused, Err(PostRecvError::Sge { index: 0, lkey, fault }));
    far.qp.send.post(&SendWr::write(ended.remote(0), b"overwritten").id(2)).unwrap();
    let done = far.wait().unwrap();
    assert_eq!((done.wr_id, done.status), (2, WcStatus::RemAccessErr));
    let mut bytes = [0; 64];
    ended.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 64]);
    next.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 64]);

    let change = MrChange { access: Some(ALL), ..MrChange::default() };
    let refused = a.verbs.rereg_mr(ended, &change).unwrap_err();
    assert!(matches!(refused.error, ReregMrError::Deregister(DeregMrError::Stale)), "{:?}", refused.error);
    let refused = a.verbs.dereg_mr(refused.returned.unwrap()).unwrap_err();
    assert_eq!(refused.error, DeregMrError::Stale);
    assert!(refused.returned.is_some());
}

/// Each call that takes a queue refuses one of another `Verbs`, although its handle's place is taken in these, and changes neither.
#[test]
fn queues_of_other_verbs_are_refused_by_each_call_that_takes_one() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let [mut near, mut far] = connect(&mut a, &mut b).unwrap();
    let timeout = Duration::from_secs(1);
    let init = SrqInit { pd: a.pd, cap: SrqCap { max_wr: 3, max_sge: 1 } };
    let domain = a.verbs.alloc_xrcd().unwrap();

    assert!(matches!(a.verbs.create_xrc_srq(&init, &domain, &mut far.cq).err(), Some(CreateSrqError::StaleCq)));
    assert!(matches!(a.verbs.resize_cq(&mut far.cq, 8), Err(ResizeCqError::Stale)));
    let never = |_| panic!("nothing was polled");
    let drained = a.verbs.drain_sq(&mut far.qp.send, &mut near.cq, timeout, never);
    assert!(matches!(drained, Err(DrainError::Stale | DrainError::OtherCq)), "{drained:?}");
    let drained = a.verbs.drain_sq(&mut near.qp.send, &mut far.cq, timeout, never);
    assert!(matches!(drained, Err(DrainError::Stale | DrainError::OtherCq)), "{drained:?}");
    let drained = a.verbs.drain_rq(&mut far.qp.recv, &mut near.cq, timeout, never);
    assert!(matches!(drained, Err(DrainError::Stale | DrainError::OtherCq)), "{drained:?}");
    let of_b = SrqInit { pd: b.pd, ..init };
    let (ours, theirs) = (a.verbs.create_srq(&init).unwrap(), b.verbs.create_srq(&of_b).unwrap());
    assert_eq!(ours.handle().index(), theirs.handle().index());
    let refused = a.verbs.destroy_srq(theirs).unwrap_err();
    assert_eq!(refused.error, DestroySrqError::Stale);
    b.verbs.destroy_srq(refused.returned.unwrap()).unwrap();
    a.verbs.destroy_srq(ours).unwrap();

    // Halves of two queue pairs are none.
    let mut mixed = QueuePair { send: near.qp.send, recv: far.qp.recv };
    assert!(a.verbs.reset_qp(&mut mixed).is_err() && b.verbs.reset_qp(&mut mixed).is_err());
    near.qp.send = mixed.send;
    far.qp.recv = mixed.recv;

    // All of it works as before.
    let inbox = b.register(64, ALL).unwrap();
    far.qp.recv.post(&RecvWr { wr_id: 1, sges: &[inbox.sge(0, 64)] }).unwrap();
    near.qp.send.post(&SendWr::send(b"still here").id(2)).unwrap();
    assert_eq!((near.wait().unwrap().wr_id, far.wait().unwrap().wr_id), (2, 1));
    let mut bytes = [0; 10];
    inbox.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"still here");
}

/// The marker that ends a drain names no shared receive queue: a device that took it for a request would send to the one that its
/// bytes name.
#[test]
fn an_initiator_of_xrc_is_drained_and_its_memory_rests() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let (of_a, domain) = (a.verbs.alloc_xrcd().unwrap(), b.verbs.alloc_xrcd().unwrap());
    let mut receive_cq = b.verbs.create_cq(16).unwrap();
    let init = SrqInit { pd: b.pd, cap: SrqCap { max_wr: 7, max_sge: 1 } };
    let mut srq = b.verbs.create_xrc_srq(&init, &domain, &mut receive_cq).unwrap();
    let srqn = b.verbs.srq_info(srq.handle()).unwrap().srqn;
    let mut target = b.verbs.create_xrc_recv_qp(&domain).unwrap();
    let mut cq = a.verbs.create_cq(64).unwrap();
    let cap = QpCap { max_send_wr: 16, max_send_sge: 1, max_inline_data: 16, ..QpCap::default() };
    let (pd, send_cq, recv_cq) = (a.pd, cq.handle(), cq.handle());
    let init = QpInit { pd, qp_type: QpType::XrcSend, send_cq, recv_cq, cap, sq_sig_all: false };
    let mut initiator = a.verbs.create_xrc_send_qp(&init, &of_a).unwrap();
    join((&mut a.verbs, initiator.handle()), (&mut b.verbs, target.handle()), &Connection::default()).unwrap();
    let inbox = b.register(64, ALL).unwrap();

    for round in 0..3_u64 {
        // The first is done; nothing is posted for the others, which wait. Every second one has no completion of its own.
        srq.post(&RecvWr { wr_id: round, sges: &[inbox.sge(0, 64)] }).unwrap();
        initiator.send.post(&SendWr::send(b"done").to_srq(srqn).id(0).signaled()).unwrap();
        assert_eq!(a.waiter().wait(&mut cq).unwrap().status, WcStatus::Success);
        assert_eq!(b.waiter().wait(&mut receive_cq).unwrap().wr_id, round);
        for id in 1..=6 {
            let wr = SendWr::send(b"waits");
            let wr = wr.to_srq(srqn).id(id);
            initiator.send.post(&if id % 2 == 0 { wr.signaled() } else { wr }).unwrap();
        }
        a.network().world().advance(Duration::from_millis(5));
        let timeout = Duration::from_secs(5);
        let mut given = Vec::new();
        let drained = a.verbs.drain_sq(&mut initiator.send, &mut cq, timeout, |done| given.push((done.wr_id, done.status)));
        assert_eq!(drained.map(|drained| drained.total()), Ok(6), "round {round}");
        let flushed: Vec<_> = (1..=6).map(|id| (id, WcStatus::WrFlushErr)).collect();
        assert_eq!(given, flushed, "round {round}");
        // None of them arrives any more.
        srq.post(&RecvWr { wr_id: 100 + round, sges: &[inbox.sge(0, 64)] }).unwrap();
        a.network().world().advance(Duration::from_secs(1));
        assert!(receive_cq.completions().next().is_none());
        assert_eq!((a.findings(), b.findings()), (Vec::new(), Vec::new()));
        // Both begin anew, and the receive is taken by the next round.
        a.verbs.reset_qp(&mut initiator).unwrap();
        b.verbs.reset_qp(&mut target).unwrap();
        assert!(cq.completions().next().is_none());
        join((&mut a.verbs, initiator.handle()), (&mut b.verbs, target.handle()), &Connection::default()).unwrap();
        assert_eq!(a.verbs.qp_info(initiator.handle()).unwrap().state, QpState::Rts);
        initiator.send.post(&SendWr::send(b"next").to_srq(srqn).id(9).signaled()).unwrap();
        assert_eq!(a.waiter().wait(&mut cq).unwrap().status, WcStatus::Success);
        assert_eq!(b.waiter().wait(&mut receive_cq).unwrap().wr_id, 100 + round);
    }
}
