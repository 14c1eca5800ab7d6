//! Queues that are drained on simulated devices: each request is given back once, and then nothing of its memory is used.

use core::time::Duration;

use bareverbs::error::{DrainError, Errno};
use bareverbs::platform::Clock;
use bareverbs::{
    Access, Completion, CompletionQueue, DmaBuffer, Drained, Event, Psn, Qkey, QpAttr, QpAttrMask, QpCap, QpInit, QpState,
    QpType, QueuePair, RecvWr, SendFlags, SendWr, SharedReceiveQueue, SharedReceives, SrqCap, SrqInit, WcData, WcOpcode,
    WcStatus,
};
use bareverbs_testing::{
    Connection, Driver, End, Fault, Faults, Node, Probability, connect, connect_with, connect_with_srq, join, pair,
};

type Qp = QueuePair<'static, Driver>;
type Cq = CompletionQueue<'static, Driver>;

const CAP: QpCap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16 };

/// Queue pairs of two hosts whose sends complete only if they are signaled.
fn unsignaled(a: &mut Node, b: &mut Node, qp_type: QpType) -> [(Qp, Cq); 2] {
    let connection = Connection { qp_type, ..Connection::default() };
    let made = [&mut *a, &mut *b].map(|node| {
        let cq = node.verbs.create_cq(64).unwrap();
        let (send_cq, recv_cq) = (cq.handle(), cq.handle());
        let init = QpInit { pd: node.pd, qp_type, send_cq, recv_cq, cap: CAP, sq_sig_all: false };
        (node.verbs.create_qp(&init).unwrap(), cq)
    });
    join((&mut a.verbs, made[0].0.handle()), (&mut b.verbs, made[1].0.handle()), &connection).unwrap();
    made
}

fn settle(node: &Node) {
    node.network().world().advance(Duration::from_millis(20));
}

fn drain_sq(
    node: &mut Node,
    qp: &mut Qp,
    cq: &mut Cq,
) -> (Result<Drained, DrainError<bareverbs_mlx5::Error>>, Vec<Completion>) {
    let mut given = Vec::new();
    (node.verbs.drain_sq(&mut qp.send, cq, SECOND, |done| given.push(done)), given)
}

fn drain_rq(
    node: &mut Node,
    qp: &mut Qp,
    cq: &mut Cq,
) -> (Result<Drained, DrainError<bareverbs_mlx5::Error>>, Vec<Completion>) {
    let mut given = Vec::new();
    (node.verbs.drain_rq(&mut qp.recv, cq, SECOND, |done| given.push(done)), given)
}

fn ids(given: &[Completion], status: WcStatus) -> Vec<u64> {
    given.iter().filter(|done| done.status == status).map(|done| done.wr_id).collect()
}

// contract: drain-sends
#[test]
fn each_send_is_done_or_flushed_or_silent_once() {
    for seed in 0..20 {
        let [mut a, mut b] = pair(Faults::none().loss(Probability::per_mille(50)).seed(seed)).unwrap();
        let [(mut qp, mut cq), (peer, _peer_cq)] = unsignaled(&mut a, &mut b, QpType::Rc);
        let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let signaled = seed % 3;
        // Done by then: writes, of which the first `signaled` have completions.
        for id in 0..4 {
            let flags = if id < signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
            qp.send.post(&SendWr { flags, ..SendWr::write(target.remote(id), &[id as u8 + 1]).id(id) }).unwrap();
        }
        if seed % 2 == 0 {
            settle(&a);
        }
        // The peer has no receive for these: they cannot be done.
        for id in 4..7 {
            let flags = if id == 5 { SendFlags::SIGNALED } else { SendFlags::empty() };
            qp.send.post(&SendWr { flags, ..SendWr::send(b"x").id(id) }).unwrap();
        }
        let (drained, given) = drain_sq(&mut a, &mut qp, &mut cq);
        let drained = drained.unwrap();
        assert_eq!(drained.total(), 7, "{drained:?}");
        assert!(given.iter().all(|done| done.qp == qp.handle() && done.wr_id < 7), "the marker stays: {given:?}");
        let (done, flushed) = (ids(&given, WcStatus::Success), ids(&given, WcStatus::WrFlushErr));
        assert_eq!((done.len() as u32, flushed.len() as u32), (drained.completed, drained.flushed));
        assert!(flushed.ends_with(&[4, 5, 6]) && given.is_sorted_by_key(|done| done.wr_id), "{given:?}");
        if seed % 2 == 0 {
            let expected = Drained { completed: signaled as u32, flushed: 3, silent: 4 - signaled as u32 };
            assert_eq!((drained, flushed), (expected, vec![4, 5, 6]));
        }
        let info = a.verbs.qp_info(qp.handle()).unwrap();
        assert_eq!((info.state, info.send_blocks), (QpState::Err, 0));
        // What was not flushed was executed.
        let mut bytes = [0; 4];
        target.read(0, &mut bytes).unwrap();
        let executed = 7 - drained.flushed as usize;
        assert_eq!(bytes[..executed.min(4)], [1, 2, 3, 4][..executed.min(4)]);
        // Nothing is left, for anybody.
        settle(&a);
        assert_eq!(cq.completions().count(), 0);
        assert_eq!(drain_sq(&mut a, &mut qp, &mut cq), (Ok(Drained::default()), vec![]));
        a.verbs.destroy_qp(qp).map_err(|refused| refused.error).unwrap();
        a.verbs.destroy_cq(cq).map_err(|refused| refused.error).unwrap();
        drop(peer);
        assert_eq!((a.findings(), b.findings()), (vec![], vec![]));
    }
}

/// Sends that were done without a completion end with the marker alone.
#[test]
fn unsignaled_sends_that_are_done_end_with_the_marker() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    for qp_type in [QpType::Rc, QpType::Uc] {
        let [(mut qp, mut cq), _peer] = unsignaled(&mut a, &mut b, qp_type);
        let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        for round in 0..5 {
            (0..6).for_each(|id| qp.send.post(&SendWr::write(target.remote(id), b"x").id(id)).unwrap());
            settle(&a);
            assert_eq!(cq.completions().count(), 0);
            let expected = Drained { silent: 6, ..Drained::default() };
            assert_eq!(drain_sq(&mut a, &mut qp, &mut cq), (Ok(expected), vec![]), "round {round}");
            // A drained queue pair begins anew, and its ring is another round on.
            let attr = a.verbs.qp_info(qp.handle()).unwrap().attr;
            a.verbs.reset_qp(&mut qp).unwrap();
            assert_eq!(cq.completions().count(), 0);
            a.verbs.modify_qp_to_rts(qp.handle(), &QpAttr { sq_psn: Psn::new(attr.sq_psn.get() + 6), ..attr }).unwrap();
        }
    }
    assert_eq!((a.findings(), b.findings()), (vec![], vec![]));
}

#[test]
fn a_full_queue_is_drained_if_a_completion_makes_room() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let fill = |node: &mut Node, qp: &mut Qp, flags| {
        let blocks = qp.send.free_blocks();
        for id in 0..u64::from(blocks) {
            qp.send.post(&SendWr { flags, ..SendWr::write(target.remote(0), b"x").id(id) }).unwrap();
        }
        settle(node);
        blocks
    };
    let [(mut qp, mut cq), _peer] = unsignaled(&mut a, &mut b, QpType::Rc);
    let blocks = fill(&mut a, &mut qp, SendFlags::SIGNALED);
    let (drained, given) = drain_sq(&mut a, &mut qp, &mut cq);
    assert_eq!(drained, Ok(Drained { completed: blocks, ..Drained::default() }));
    assert_eq!(given.len() as u32, blocks);
    // Without one there is room for nothing, and no wait for ever.
    let [(mut qp, mut cq), _peer] = unsignaled(&mut a, &mut b, QpType::Rc);
    let blocks = fill(&mut a, &mut qp, SendFlags::empty());
    let start = a.host.clock().now();
    let (drained, given) = drain_sq(&mut a, &mut qp, &mut cq);
    assert_eq!((drained, given), (Err(DrainError::TimedOut { left: blocks }), vec![]));
    let waited = a.host.clock().now().since(start);
    assert!(waited >= Duration::from_secs(1) && waited < Duration::from_secs(2), "{waited:?}");
    assert_eq!(drained.unwrap_err().errno(), Errno::Etimedout);
    a.verbs.reset_qp(&mut qp).unwrap();
    assert_eq!(drain_sq(&mut a, &mut qp, &mut cq), (Ok(Drained::default()), vec![]));
}

// contract: drain-receives
#[test]
fn each_receive_is_filled_or_flushed_once_and_its_memory_rests() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let [mut from, mut into] = connect(&mut a, &mut b).unwrap();
    let inbox = b.register(64 * 16, Access::LOCAL_WRITE).unwrap();
    let mut posted = 0;
    while into.qp.recv.post(&RecvWr { wr_id: posted, sges: &[inbox.sge(posted % 64 * 16, 16)] }).is_ok() {
        posted += 1;
    }
    assert!(posted >= 64, "the queue is full");
    for id in 0..5 {
        from.qp.send.post(&SendWr::send(b"message").id(id)).unwrap();
        assert_eq!(from.wait().unwrap().status, WcStatus::Success);
    }
    let mut given = Vec::new();
    let drained = b.verbs.drain_rq(&mut into.qp.recv, &mut into.cq, SECOND, |done| given.push(done)).unwrap();
    assert_eq!(drained, Drained { completed: 5, flushed: posted as u32 - 5, silent: 0 });
    assert!(given.iter().all(|done| done.opcode == WcOpcode::Recv));
    assert_eq!(given.iter().map(|done| done.wr_id).collect::<Vec<_>>(), (0..posted).collect::<Vec<_>>());
    // The next message finds nobody, and changes nothing.
    let mut before = [0; 64 * 16];
    inbox.read(0, &mut before).unwrap();
    from.qp.send.post(&SendWr::send(b"too late")).unwrap();
    assert_eq!(from.wait().unwrap().status, WcStatus::RetryExcErr);
    let mut after = [0; 64 * 16];
    inbox.read(0, &mut after).unwrap();
    assert_eq!(before, after);
    assert_eq!(into.cq.completions().count(), 0);
    b.verbs.dereg_mr(inbox).map_err(|refused| refused.error).unwrap();
    assert_eq!((a.findings(), b.findings()), (vec![], vec![]));
}

/// Receives are posted in INIT, and a queue pair may end there.
#[test]
fn receives_of_a_queue_pair_that_was_never_connected_are_flushed() {
    let [mut a, _b] = pair(Faults::none()).unwrap();
    let mut cq = a.verbs.create_cq(64).unwrap();
    let (send_cq, recv_cq) = (cq.handle(), cq.handle());
    let init = QpInit { pd: a.pd, qp_type: QpType::Rc, send_cq, recv_cq, cap: CAP, sq_sig_all: true };
    let mut qp = a.verbs.create_qp(&init).unwrap();
    assert_eq!(drain_rq(&mut a, &mut qp, &mut cq), (Ok(Drained::default()), vec![]));
    assert_eq!(a.verbs.qp_info(qp.handle()).unwrap().state, QpState::Reset, "nothing is in flight there");
    let attr = QpAttr { state: QpState::Init, port_num: 1, ..QpAttr::default() };
    let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
    a.verbs.modify_qp(qp.handle(), &attr, mask).unwrap();
    (0..3).for_each(|wr_id| qp.recv.post(&RecvWr { wr_id, sges: &[] }).unwrap());
    let (drained, given) = drain_rq(&mut a, &mut qp, &mut cq);
    assert_eq!((drained.unwrap().flushed, ids(&given, WcStatus::WrFlushErr)), (3, vec![0, 1, 2]));
    assert_eq!(drain_sq(&mut a, &mut qp, &mut cq), (Ok(Drained::default()), vec![]));
    assert_eq!(a.findings(), vec![]);
}

#[test]
fn completions_of_others_in_the_queue_are_given_too() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let mut cq = a.verbs.create_cq(256).unwrap();
    let (send_cq, recv_cq) = (cq.handle(), cq.handle());
    let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let [mut one, mut other] = [0, 1].map(|_| {
        let init = QpInit { pd: a.pd, qp_type: QpType::Rc, send_cq, recv_cq, cap: CAP, sq_sig_all: true };
        let qp = a.verbs.create_qp(&init).unwrap();
        let peer_cq = b.verbs.create_cq(64).unwrap();
        let peer = QpInit { pd: b.pd, send_cq: peer_cq.handle(), recv_cq: peer_cq.handle(), ..init };
        let peer = b.verbs.create_qp(&peer).unwrap();
        join((&mut a.verbs, qp.handle()), (&mut b.verbs, peer.handle()), &Connection::default()).unwrap();
        (qp, peer, peer_cq)
    });
    for id in 0..4 {
        other.0.send.post(&SendWr::write(target.remote(0), b"x").id(100 + id)).unwrap();
        other.0.recv.post(&RecvWr { wr_id: 200 + id, sges: &[] }).unwrap();
        one.0.send.post(&SendWr::send(b"x").id(id)).unwrap();
        one.0.recv.post(&RecvWr { wr_id: 10 + id, sges: &[] }).unwrap();
    }
    let (drained, mut given) = drain_sq(&mut a, &mut one.0, &mut cq);
    assert_eq!(drained, Ok(Drained { flushed: 4, ..Drained::default() }));
    let (drained, more) = drain_rq(&mut a, &mut one.0, &mut cq);
    // Those that the first call was given are not counted again.
    let of_receives = given.iter().filter(|done| done.qp == one.0.handle() && done.opcode == WcOpcode::Recv).count();
    assert_eq!(drained.unwrap().flushed as usize, 4 - of_receives);
    given.extend(more);
    settle(&a);
    given.extend(cq.completions().map(Result::unwrap));
    let mut all: Vec<u64> = given.iter().map(|done| done.wr_id).collect();
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3, 10, 11, 12, 13, 100, 101, 102, 103]);
    let info = a.verbs.qp_info(other.0.handle()).unwrap();
    assert_eq!((info.state, info.recvs), (QpState::Rts, 4), "another queue pair goes on");
}

#[test]
fn datagrams_are_drained() {
    let [mut a, _b] = pair(Faults::none()).unwrap();
    let mut cq = a.verbs.create_cq(64).unwrap();
    let (send_cq, recv_cq) = (cq.handle(), cq.handle());
    let init = QpInit { pd: a.pd, qp_type: QpType::Ud, send_cq, recv_cq, cap: CAP, sq_sig_all: false };
    let mut qp = a.verbs.create_qp(&init).unwrap();
    a.verbs.modify_qp_to_rts(qp.handle(), &QpAttr { port_num: 1, qkey: Qkey::new(0x1111), ..QpAttr::default() }).unwrap();
    let lid = a.verbs.query_port(1).unwrap().lid;
    let av = bareverbs::AddressVector { dlid: lid, port_num: 1, ..bareverbs::AddressVector::default() };
    let ah = a.verbs.create_ah(a.pd, &av).unwrap();
    let to = bareverbs::Destination { ah, remote_qpn: bareverbs::Qpn::new(0x123), remote_qkey: Qkey::new(0x1111) };
    (0..3).for_each(|id| qp.send.post(&SendWr::send_to(&to, b"x").id(id)).unwrap());
    settle(&a);
    qp.recv.post(&RecvWr { wr_id: 9, sges: &[] }).unwrap();
    let (drained, given) = drain_sq(&mut a, &mut qp, &mut cq);
    assert_eq!(drained, Ok(Drained { silent: 3, ..Drained::default() }));
    assert!(given.iter().all(|done| done.wr_id == 9));
    assert_eq!(a.findings(), vec![]);
}

// contract: drain-refused
#[test]
fn what_cannot_be_drained_is_refused_and_stays() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let [mut qa, mut qb] = connect(&mut a, &mut b).unwrap();
    let mut other = a.verbs.create_cq(16).unwrap();
    let never = |done: Completion| panic!("{done:?}");
    let of_others = b.verbs.drain_sq(&mut qa.qp.send, &mut qa.cq, SECOND, never).unwrap_err();
    assert_eq!((of_others, of_others.errno()), (DrainError::Stale, Errno::Einval));
    assert_eq!(b.verbs.drain_rq(&mut qa.qp.recv, &mut qa.cq, SECOND, never), Err(DrainError::Stale));
    for cq in [&mut other, &mut qb.cq] {
        let error = a.verbs.drain_sq(&mut qa.qp.send, cq, SECOND, never).unwrap_err();
        assert_eq!((error, error.errno()), (DrainError::OtherCq, Errno::Einval));
        assert_eq!(a.verbs.drain_rq(&mut qa.qp.recv, cq, SECOND, never), Err(DrainError::OtherCq));
    }
    assert_eq!(a.verbs.qp_info(qa.qp.handle()).unwrap().state, QpState::Rts);
    qb.qp.recv.post(&RecvWr { wr_id: 1, sges: &[] }).unwrap();
    qa.qp.send.post(&SendWr::send(b"").id(1)).unwrap();
    assert_eq!(qa.wait().unwrap().status, WcStatus::Success);
}

/// Another queue pair fills the completion queue for as long as somebody takes from it. The call ends nevertheless.
#[test]
fn others_that_never_end_do_not_put_off_the_end() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let [(mut stuck, mut cq), _peer] = unsignaled(&mut a, &mut b, QpType::Rc);
    let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let blocks = stuck.send.free_blocks();
    (0..blocks).for_each(|_| stuck.send.post(&SendWr::write(target.remote(0), b"x")).unwrap());
    let init = QpInit { pd: a.pd, qp_type: QpType::Rc, send_cq: cq.handle(), recv_cq: cq.handle(), cap: CAP, sq_sig_all: true };
    let mut busy = a.verbs.create_qp(&init).unwrap();
    let peer_cq = b.verbs.create_cq(64).unwrap();
    let peer = QpInit { pd: b.pd, send_cq: peer_cq.handle(), recv_cq: peer_cq.handle(), ..init };
    let peer = b.verbs.create_qp(&peer).unwrap();
    join((&mut a.verbs, busy.handle()), (&mut b.verbs, peer.handle()), &Connection::default()).unwrap();
    settle(&a);
    (0..8).for_each(|_| busy.send.post(&SendWr::write(target.remote(0), b"x")).unwrap());
    let (start, mut count) = (a.host.clock().now(), 0);
    let world = a.network().world().clone();
    let drained = a.verbs.drain_sq(&mut stuck.send, &mut cq, Duration::from_millis(1), |done| {
        assert_eq!((done.qp, done.status), (busy.handle(), WcStatus::Success));
        count += 1;
        assert!(count < 100_000, "no end");
        busy.send.post(&SendWr::write(target.remote(0), b"x")).unwrap();
        // The others are done by the time that this one was looked at.
        world.advance(Duration::from_micros(1));
    });
    assert_eq!(drained, Err(DrainError::TimedOut { left: blocks }));
    assert!(count > 100 && a.host.clock().now().since(start) < Duration::from_millis(2), "{count}");
}

/// The device forgets the completion of the marker. The call ends in time, and so does the next; no second marker is posted.
#[test]
fn a_marker_without_an_answer_ends_in_time() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let [(mut qp, mut cq), _peer] = unsignaled(&mut a, &mut b, QpType::Rc);
    let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    (0..2).for_each(|id| qp.send.post(&SendWr::write(target.remote(0), b"x").id(id)).unwrap());
    settle(&a);
    a.arm(Fault::DropCqe { cqn: a.verbs.cq_info(cq.handle()).unwrap().cqn.get() });
    for _ in 0..2 {
        assert_eq!(drain_sq(&mut a, &mut qp, &mut cq), (Err(DrainError::TimedOut { left: 2 }), vec![]));
        assert_eq!(a.verbs.qp_info(qp.handle()).unwrap().send_blocks, 3);
    }
}

/// A drain that has timed out leaves its marker in the queue. A poll of a device that is lost then returns it as it is documented.
// contract: drain-lost
#[test]
fn the_marker_of_a_lost_device_is_known_by_its_length() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let [(mut qp, mut cq), _peer] = unsignaled(&mut a, &mut b, QpType::Rc);
    let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    qp.send.post(&SendWr::write(target.remote(0), b"abc").id(5)).unwrap();
    settle(&a);
    a.arm(Fault::DropCqe { cqn: a.verbs.cq_info(cq.handle()).unwrap().cqn.get() });
    assert_eq!(drain_sq(&mut a, &mut qp, &mut cq), (Err(DrainError::TimedOut { left: 1 }), vec![]));
    a.remove();
    a.verbs.query_port(1).unwrap_err();
    let given: Vec<Completion> = cq.completions().map_while(Result::ok).collect();
    let facts: Vec<_> = given.iter().map(|done| (done.wr_id, done.byte_len, done.opcode, done.status)).collect();
    let flushed = |wr_id, len| (wr_id, len, WcOpcode::RdmaWrite, WcStatus::WrFlushErr);
    assert_eq!(facts, [flushed(5, 0), flushed(u64::MAX, u32::MAX)]);
}

// contract: drain-lost
#[test]
fn a_lost_device_gives_each_request_once() {
    for is_known in [false, true] {
        let [mut a, mut b] = pair(Faults::none()).unwrap();
        let [End { .. }, End { .. }] = connect_with(&mut a, &mut b, &Connection::default()).unwrap();
        let [(mut qp, mut cq), _peer] = unsignaled(&mut a, &mut b, QpType::Rc);
        for wr_id in 0..5 {
            qp.send.post(&SendWr::send(b"x").id(wr_id)).unwrap();
            qp.recv.post(&RecvWr { wr_id: 10 + wr_id, sges: &[] }).unwrap();
        }
        a.remove();
        if is_known {
            a.verbs.query_port(1).unwrap_err();
        }
        let (drained, mut given) = drain_sq(&mut a, &mut qp, &mut cq);
        assert!(matches!(drained, Err(DrainError::DeviceLost { .. })), "{drained:?}");
        assert_eq!(drained.unwrap_err().errno(), Errno::Eio);
        let (drained, more) = drain_rq(&mut a, &mut qp, &mut cq);
        assert!(matches!(drained, Err(DrainError::DeviceLost { .. })), "{drained:?}");
        given.extend(more);
        assert!(given.iter().all(|done| matches!(done.data, WcData::Lost(_)) && done.status == WcStatus::WrFlushErr));
        let mut all: Vec<u64> = given.iter().map(|done| done.wr_id).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]);
    }
}

/// A host whose queue pairs take receives from one queue, and a peer that sends to them.
struct SharedHost {
    a: Node,
    b: Node,
    srq: SharedReceiveQueue<'static, Driver>,
    inbox: bareverbs::Region<'static, bareverbs_sim::in_process::SimBuffer>,
}

/// Bytes of a receive: as many packets that a message can be cut in the middle.
const ROOM: usize = 1 << 20;

impl SharedHost {
    fn new() -> Self {
        let [a, mut b] = pair(Faults::none()).unwrap();
        let pd = b.pd;
        let mut srq = b.verbs.create_srq(&SrqInit { pd, cap: SrqCap { max_wr: 7, max_sge: 1 } }).unwrap();
        let inbox = b.register(7 * ROOM, Access::LOCAL_WRITE).unwrap();
        for place in 0..7 {
            srq.post(&RecvWr { wr_id: place, sges: &[inbox.sge(place * ROOM as u64, ROOM as u32)] }).unwrap();
        }
        Self { a, b, srq, inbox }
    }

    fn connect(&mut self) -> (End, End<SharedReceives>) {
        let ends = connect_with_srq(&mut self.a, &mut self.b, self.srq.handle()).unwrap();
        while self.b.verbs.poll_event().unwrap().is_some() {}
        ends
    }

    /// Begins a message, and cuts the wire in the middle of it. So many receives are left in the device before.
    fn break_off(&mut self, from: &mut End, left: u32) {
        let source = self.a.register(ROOM, Access::empty()).unwrap();
        self.b.verbs.arm_srq(self.srq.handle(), left).unwrap();
        from.qp.send.post(&SendWr::send(&[source.sge(0, ROOM as u32)])).unwrap();
        let world = self.a.network().world().clone();
        let taken = (0..100_000).any(|_| {
            world.advance(Duration::from_nanos(50));
            self.b.verbs.poll_event().unwrap() == Some(Event::SrqLimitReached(self.srq.handle()))
        });
        assert!(taken, "the limit says when a receive is taken");
        self.a.network().cut(&self.a, &self.b);
        settle(&self.b);
    }

    fn drain(
        &mut self,
        end: &mut End<SharedReceives>,
        within: Duration,
    ) -> (Result<Drained, DrainError<bareverbs_mlx5::Error>>, Vec<Completion>, Vec<Event>) {
        let (mut given, mut events) = (Vec::new(), Vec::new());
        let (give, event) = (|done| given.push(done), |event| events.push(event));
        let drained = self.b.verbs.drain_qp_with_srq(&end.qp, &mut end.cq, within, give, event);
        (drained, given, events)
    }
}

const SECOND: Duration = Duration::from_secs(1);

// contract: drain-shared
#[test]
fn what_a_queue_pair_took_of_a_shared_queue_is_given_back_and_the_rest_stays() {
    for events_taken_before in [false, true] {
        let mut host = SharedHost::new();
        let (mut from, mut into) = host.connect();
        let (mut other_from, mut other_into) = host.connect();
        // One is done and not polled, one is broken off.
        from.qp.send.post(&SendWr::send(b"whole").id(1)).unwrap();
        settle(&host.a);
        host.break_off(&mut from, 6);
        let handle = into.qp.handle();
        if events_taken_before {
            let err = QpAttr { state: QpState::Err, ..QpAttr::default() };
            host.b.verbs.modify_qp(handle, &err, QpAttrMask::STATE).unwrap();
            settle(&host.b);
            assert_eq!(host.b.verbs.poll_event(), Ok(Some(Event::LastWqeReached(handle))));
        }
        let (drained, given, events) = host.drain(&mut into, SECOND);
        assert_eq!(drained, Ok(Drained { completed: 1, flushed: 1, silent: 0 }));
        assert_eq!((ids(&given, WcStatus::Success), ids(&given, WcStatus::WrFlushErr)), (vec![0], vec![1]));
        let expected = if events_taken_before { vec![] } else { vec![Event::LastWqeReached(handle)] };
        assert_eq!(events, expected);
        // Nothing is left of it: the places are free, and the queue pair may go.
        let (qp, cq) = into.into_parts();
        host.b.verbs.destroy_qp(qp).map_err(|refused| refused.error).unwrap();
        host.b.verbs.destroy_cq(cq).map_err(|refused| refused.error).unwrap();
        for place in 0..2 {
            let sges = [host.inbox.sge(place * ROOM as u64, 64)];
            host.srq.post(&RecvWr { wr_id: place, sges: &sges }).unwrap();
        }
        let full = host.srq.post(&RecvWr { wr_id: 9, sges: &[] });
        assert!(matches!(full, Err(bareverbs::error::PostRecvError::SharedQueueFull { .. })), "{full:?}");
        // The others go on.
        host.a.network().heal(&host.a, &host.b);
        other_from.qp.send.post(&SendWr::send(b"x")).unwrap();
        let done = other_into.wait().unwrap();
        assert_eq!((done.wr_id, done.status), (2, WcStatus::Success));
    }
}

/// Two queue pairs complete into one queue; a queue pair that was reset is drained again; one that is reset has nothing.
// contract: drain-shared
#[test]
fn completions_of_other_queue_pairs_are_given_and_a_reset_begins_anew() {
    let mut host = SharedHost::new();
    let (mut from, mut into) = host.connect();
    let init = QpInit {
        pd: host.b.pd,
        qp_type: QpType::Rc,
        send_cq: into.cq.handle(),
        recv_cq: into.cq.handle(),
        cap: QpCap { max_recv_wr: 0, max_recv_sge: 0, ..CAP },
        sq_sig_all: true,
    };
    let second = host.b.verbs.create_qp_with_srq(&init, host.srq.handle()).unwrap();
    let cq = host.a.verbs.create_cq(64).unwrap();
    let init = QpInit { pd: host.a.pd, send_cq: cq.handle(), recv_cq: cq.handle(), cap: CAP, ..init };
    let mut to_second = host.a.verbs.create_qp(&init).unwrap();
    let connect = |host: &mut SharedHost, qp: bareverbs::QpHandle, other: bareverbs::QpHandle| {
        join((&mut host.a.verbs, qp), (&mut host.b.verbs, other), &Connection::default()).unwrap();
    };
    connect(&mut host, to_second.handle(), second.handle());
    for round in 0..3 {
        to_second.send.post(&SendWr::send(b"for the second")).unwrap();
        from.qp.send.post(&SendWr::send(b"for the first")).unwrap();
        settle(&host.a);
        let (drained, given, events) = host.drain(&mut into, SECOND);
        assert_eq!(drained, Ok(Drained { completed: 1, flushed: 0, silent: 0 }), "round {round}");
        let of_second = given.iter().filter(|done| done.qp == second.handle()).count();
        assert_eq!((given.len(), of_second), (2, 1));
        // Not of a round before: the memory of that is forgotten by the reset.
        assert_eq!(events.last(), Some(&Event::LastWqeReached(into.qp.handle())), "round {round}");
        host.b.verbs.reset_qp(&mut into.qp).unwrap();
        assert_eq!(host.drain(&mut into, SECOND), (Ok(Drained::default()), vec![], vec![]), "nothing in RESET");
        host.a.verbs.reset_qp(&mut from.qp).unwrap();
        // It leaves RESET when its completion queue was found empty.
        assert_eq!(from.cq.completions().count() + into.cq.completions().count(), 0);
        connect(&mut host, from.qp.handle(), into.qp.handle());
    }
}

// contract: drain-shared-refused
#[test]
fn a_drain_of_shared_receives_ends_in_time_and_with_its_device() {
    let mut host = SharedHost::new();
    let (mut from, mut into) = host.connect();
    let (_other_from, mut other) = host.connect();
    let other_cq = host.b.verbs.drain_qp_with_srq(&into.qp, &mut other.cq, SECOND, |_| (), |_| ());
    assert_eq!(other_cq.map_err(|error| (error, error.errno())), Err((DrainError::OtherCq, Errno::Einval)));
    let stale = host.a.verbs.drain_qp_with_srq(&into.qp, &mut into.cq, SECOND, |_| (), |_| ());
    assert_eq!(stale.map_err(|error| (error, error.errno())), Err((DrainError::Stale, Errno::Einval)));
    assert_eq!(host.b.verbs.qp_info(into.qp.handle()).unwrap().state, QpState::Rts, "refused before anything was done");

    host.break_off(&mut from, 7);
    let (late, mut given, events) = host.drain(&mut into, Duration::ZERO);
    assert_eq!(late.map_err(|error| (error, error.errno())), Err((DrainError::TimedOut { left: 0 }, Errno::Etimedout)));
    assert_eq!(events, []);
    // What came until then was given, and is not given again.
    let (again, more, _) = host.drain(&mut into, SECOND);
    assert_eq!(again, Ok(Drained { completed: 0, flushed: more.len() as u32, silent: 0 }));
    given.extend(more);
    assert_eq!(ids(&given, WcStatus::WrFlushErr), [0]);

    // A device that goes away: each receive that is left is given once, and the call ends.
    let before = host.b.host.clock().now();
    host.b.remove();
    let (lost, given, _) = host.drain(&mut other, Duration::from_secs(3600));
    assert!(matches!(lost, Err(DrainError::DeviceLost { .. })), "{lost:?}");
    let mut flushed = ids(&given, WcStatus::WrFlushErr);
    flushed.sort_unstable();
    assert_eq!(flushed, [1, 2, 3, 4, 5, 6]);
    assert!(host.b.host.clock().now() < before.after(Duration::from_secs(60)));
}
