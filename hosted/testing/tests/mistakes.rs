//! Mistakes of a program under test: each ends soon, and what is said of it names the cause.
#![expect(clippy::panic, clippy::unwrap_used, reason = "a test fails by it")]

use bareverbs::error::{PostSendError, SgeFault};
use bareverbs::{
    Access, AddressVector, Binding, Destination, FastReg, GlobalRoute, KeyTag, Lkey, MwType, Qkey, QpType, RecvWr, SendFlags,
    SendWr, WcStatus,
};
use bareverbs_testing::{
    Connection, End, Faults, KeyFault, KeyUse, Node, QpcState, Rejection, WaitError, comparable, connect, connect_with, pair,
    path_to,
};

const OPEN: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// Returns the text of a wait that is over.
fn overdue(end: &mut End) -> String {
    match end.wait() {
        Err(WaitError::Overdue(facts)) => facts.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_forgotten_receive_is_named_and_costs_few_frames() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let [mut qa, mut qb] = connect(&mut a, &mut b).unwrap();
    qa.qp.send.post(&SendWr::send(b"x")).unwrap();
    let done = qa.wait().unwrap();
    assert_eq!(done.status, WcStatus::RnrRetryExcErr);
    assert!(done.result().unwrap_err().to_string().contains("no receive posted"));
    let frames = a.network().world().wire_stats().sent;
    assert!(frames < 30, "{frames}");
    assert!(overdue(&mut qb).contains("no receive posted, RNR NAK sent (7 times)"));

    // The worst that a program can ask for: again for ever, every 10 µs.
    let eager = Connection { rnr_retry: 7, min_rnr_timer: 1, ..Connection::default() };
    let [mut qa, _qb] = connect_with(&mut a, &mut b, &eager).unwrap();
    qa.qp.send.post(&SendWr::send(b"x")).unwrap();
    let text = overdue(&mut qa);
    assert!(text.contains("RNR NAKs: ") && text.contains("RNR NAK, its peer has no receive posted"), "{text}");
    let frames = a.network().world().wire_stats().sent - frames;
    assert!(frames < 10_000, "{frames}");
}

#[test]
fn a_receive_that_is_late_is_in_time() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let [mut qa, mut qb] = connect(&mut a, &mut b).unwrap();
    qa.qp.send.post(&SendWr::send(b"")).unwrap();
    a.network().world().advance(std::time::Duration::from_millis(50));
    qb.qp.recv.post(&RecvWr { wr_id: 5, sges: &[] }).unwrap();
    assert_eq!((qa.wait().unwrap().status, qb.wait().unwrap().wr_id), (WcStatus::Success, 5));
}

#[test]
fn a_wait_says_that_the_device_is_gone_the_queue_full_or_the_queue_pair_in_error() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let [mut qa, mut qb] = connect(&mut a, &mut b).unwrap();
    let target = b.register(64, Access::LOCAL_WRITE).unwrap();

    // A right that the region lacks: the responder's end is in error.
    qa.qp.send.post(&SendWr::write(target.remote(0), b"x")).unwrap();
    assert_eq!(qa.wait().unwrap().status, WcStatus::RemAccessErr);
    let Err(WaitError::Overdue(facts)) = qb.wait() else { panic!("nothing was posted") };
    assert!(matches!(facts.queue_pairs[..], [(_, QpcState::Err)]), "{facts}");
    let text = facts.to_string();
    assert!(
        text.contains("in state Err: look at") && text.contains("RDMA WRITE of 1 byte at") && text.contains("lacks the right"),
        "{text}"
    );

    // 5 completions for 4 entries.
    let open = b.register(64, OPEN).unwrap();
    let [mut qa, _qb] = connect(&mut a, &mut b).unwrap();
    a.verbs.resize_cq(&mut qa.cq, 4).unwrap();
    for _ in 0..16 {
        qa.qp.send.post(&SendWr::write(open.remote(0), b"x")).unwrap();
    }
    a.network().world().advance(std::time::Duration::from_millis(1));
    for _ in 0..4 {
        assert_eq!(qa.wait().unwrap().status, WcStatus::Success);
    }
    let text = overdue(&mut qa);
    assert!(text.contains("overran: it has 4 entries") && text.contains("in state Err"), "{text}");

    let [mut qa, _qb] = connect(&mut a, &mut b).unwrap();
    a.remove();
    qa.qp.send.post(&SendWr::write(open.remote(0), b"x")).unwrap();
    let text = overdue(&mut qa);
    assert!(text.contains("the device is out of its slot") && !text.contains("Running"), "{text}");
}

/// The queue is polled, and what is said is of the waiter's host.
#[test]
fn a_waiter_of_another_host_says_that_nothing_here_completes_into_the_queue() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let [mut qa, _qb] = connect(&mut a, &mut b).unwrap();
    let open = b.register(64, OPEN).unwrap();
    qa.qp.send.post(&SendWr::write(open.remote(0), b"x")).unwrap();
    assert_eq!(b.waiter().wait(&mut qa.cq).unwrap().status, WcStatus::Success);
    // Numbers of queues may be the same on both hosts: one more than the other has.
    let _one = a.verbs.create_cq(4).unwrap();
    let mut other = a.verbs.create_cq(4).unwrap();
    let Err(WaitError::Overdue(facts)) = b.waiter().wait(&mut other) else { panic!("nothing completes into it") };
    assert!(facts.to_string().contains("no queue pair of this host completes into the queue"), "{facts}");
}

/// Each end is in error afterwards: a pair of them for each mistake.
#[test]
fn a_refused_access_is_known_to_the_host_that_refused_it() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let own = a.register(64, OPEN).unwrap();
    let (open, readable) = (b.register(64, OPEN).unwrap(), b.register(64, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap());
    let other_domain = b.verbs.alloc_pd().unwrap();
    let bytes = b.host.memory(64).whole();
    let foreign = b.verbs.reg_mr(other_domain, bytes, OPEN).unwrap();
    let start = open.remote(0).addr;
    let mut refused = |target, usage, fault| {
        let [mut qa, _qb] = connect(&mut a, &mut b).unwrap();
        qa.qp.send.post(&SendWr::write(target, b"12345678")).unwrap();
        assert_eq!(qa.wait().unwrap().status, WcStatus::RemAccessErr);
        let newest = b.rejections().pop().unwrap();
        let Rejection::Access { usage: used, len: 8, key, addr, fault: found, .. } = newest else { panic!("{newest}") };
        assert_eq!((used, key, addr, found), (usage, target.rkey.get(), target.addr, fault), "{newest}");
        newest.to_string()
    };
    let write = KeyUse::RemoteWrite;
    refused(own.remote(0), write, KeyFault::Unknown);
    refused(readable.remote(0), write, KeyFault::Right);
    refused(foreign.remote(0), write, KeyFault::Domain);
    let text = refused(open.remote(57), write, KeyFault::Range { start, len: 64 });
    assert!(text.contains("RDMA WRITE of 8 bytes") && text.contains("opens 64 bytes"), "{text}");
    let mut other_tag = open.remote(0);
    other_tag.rkey = bareverbs::Rkey::new(other_tag.rkey.get() ^ 1);
    refused(other_tag, write, KeyFault::Tag { tag: open.remote(0).rkey.get() as u8 });

    // A queue pair without the right.
    let closed = Connection { access: Access::REMOTE_READ, ..Connection::default() };
    let [mut qa, qb] = connect_with(&mut a, &mut b, &closed).unwrap();
    let qpn = b.verbs.qp_info(qb.qp.handle()).unwrap().qpn.get();
    qa.qp.send.post(&SendWr::write(open.remote(0), b"x")).unwrap();
    assert_eq!(qa.wait().unwrap().status, WcStatus::RemInvReqErr);
    assert_eq!(b.rejections().pop(), Some(Rejection::QpRight { qpn, usage: write }));

    // A receive that is too short: it fails too.
    let [mut qa, mut qb] = connect(&mut a, &mut b).unwrap();
    let qpn = b.verbs.qp_info(qb.qp.handle()).unwrap().qpn.get();
    qb.qp.recv.post(&RecvWr { wr_id: 1, sges: &[open.sge(0, 4)] }).unwrap();
    qa.qp.send.post(&SendWr::send(b"12345678")).unwrap();
    assert_eq!((qa.wait().unwrap().status, qb.wait().unwrap().status), (WcStatus::RemInvReqErr, WcStatus::LocLenErr));
    assert_eq!(b.rejections().pop(), Some(Rejection::ReceiveTooShort { qpn, room: 4, needed: 8 }));
    // A key that no message ends: the sender has no answer, the receive fails.
    let [mut qa, mut qb] = connect(&mut a, &mut b).unwrap();
    let qpn = b.verbs.qp_info(qb.qp.handle()).unwrap().qpn.get();
    qb.qp.recv.post(&RecvWr { wr_id: 1, sges: &[open.sge(0, 8)] }).unwrap();
    qa.qp.send.post(&SendWr::send_with_inv(b"12345678", open.rkey())).unwrap();
    assert_eq!((qa.wait().unwrap().status, qb.wait().unwrap().status), (WcStatus::RetryExcErr, WcStatus::RemInvReqErr));
    let key = open.rkey().get();
    assert_eq!(b.rejections().pop(), Some(Rejection::Invalidation { qpn, key, fault: KeyFault::Right }));

    // A window that is bound is bound with another tag.
    let [mut qa, _qb] = connect(&mut a, &mut b).unwrap();
    let qpn = a.verbs.qp_info(qa.qp.handle()).unwrap().qpn.get();
    let region = a.register(64, OPEN | Access::MW_BIND).unwrap();
    let mw = a.verbs.alloc_mw(a.pd, MwType::Type2).unwrap();
    let addr = region.remote(0).addr;
    let binding = Binding { mr: region.handle(), addr, length: 64, access: Access::REMOTE_WRITE };
    let tag = a.verbs.mw_info(mw).unwrap().rkey.tag().next();
    qa.qp.send.post(&SendWr::bind_mw(mw, tag, binding)).unwrap();
    assert_eq!(qa.wait().unwrap().status, WcStatus::Success);
    let bound = a.verbs.mw_info(mw).unwrap().rkey;
    qa.qp.send.post(&SendWr::bind_mw(mw, tag.next(), binding)).unwrap();
    assert_eq!(qa.wait().unwrap().status, WcStatus::MwBindErr);
    assert_eq!(a.rejections().pop(), Some(Rejection::KeyChange { qpn, key: bound.get(), is_bound: true }));
    assert_eq!((a.findings(), b.findings()), (vec![], vec![]), "none is the driver's mistake");
}

#[test]
fn a_region_of_the_wrong_host_is_unknown() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let [mut qa, _qb] = connect(&mut a, &mut b).unwrap();
    let keys = |node: &mut Node| {
        [node.register(64, OPEN).unwrap(), node.register(64, OPEN).unwrap()].map(|region| region.sge(0, 1).lkey)
    };
    let (of_a, of_b) = (keys(&mut a), keys(&mut b));
    assert!(of_a.iter().all(|key: &Lkey| of_b.iter().all(|other| key.index() != other.index())), "{of_a:?} {of_b:?}");
    let target = b.register(64, OPEN).unwrap();
    let error = qa.qp.send.post(&SendWr::write(target.remote(0), &[target.sge(0, 8)])).unwrap_err();
    assert!(matches!(error, PostSendError::Sge { fault: SgeFault::UnknownKey, .. }), "{error}");
}

/// Returns two UD queue pairs, and where the second is.
fn datagrams(faults: Faults) -> ([Node; 2], [End; 2], Destination) {
    let [mut a, mut b] = pair(faults).unwrap();
    let unconnected = Connection { qp_type: QpType::Ud, ..Connection::default() };
    let ends = connect_with(&mut a, &mut b, &unconnected).unwrap();
    let path = path_to(&mut b.verbs).unwrap();
    let ah = a.verbs.create_ah(a.pd, &path).unwrap();
    let remote_qpn = b.verbs.qp_info(ends[1].qp.handle()).unwrap().qpn;
    let to = Destination { ah, remote_qpn, remote_qkey: unconnected.qkey };
    ([a, b], ends, to)
}

#[test]
fn a_datagram_that_is_dropped_leaves_its_reason() {
    for faults in [Faults::none(), Faults::none().ethernet()] {
        let ([a, mut b], [mut qa, mut qb], to) = datagrams(faults);
        let inbox = b.register(256, Access::LOCAL_WRITE).unwrap();
        let qpn = to.remote_qpn.get();
        let mut lost = |to: Destination| {
            qa.qp.send.post(&SendWr::send_to(&to, b"datagram")).unwrap();
            assert_eq!(qa.wait().unwrap().status, WcStatus::Success);
            a.network().world().advance(std::time::Duration::from_millis(1));
            b.rejections().pop().unwrap()
        };
        assert_eq!(lost(to), Rejection::NoReceive { qpn, srqn: None, answered: false });
        // A receive for the message alone, and not for the 40 bytes before it.
        qb.qp.recv.post(&RecvWr { wr_id: 1, sges: &[inbox.sge(0, 8)] }).unwrap();
        assert_eq!(lost(to), Rejection::ReceiveTooShort { qpn, room: 8, needed: 48 });
        assert_eq!(
            lost(Destination { remote_qkey: Qkey::new(5), ..to }),
            Rejection::QueueKey { qpn, qkey: 5, expected: 0x1111_1111 }
        );
        let text = overdue(&mut qb);
        assert!(text.contains("its Q_Key is 0x5") && text.contains("it needs 48 bytes or more, its receive has 8"), "{text}");
    }
}

#[test]
fn an_address_that_names_no_gid_is_known_with_the_range() {
    let ([mut a, mut b], [mut qa, _qb], to) = datagrams(Faults::none().ethernet());
    let path = path_to(&mut b.verbs).unwrap();
    let wrong = |index| AddressVector { grh: path.grh.map(|route| GlobalRoute { sgid_index: index, ..route }), ..path };
    let beyond = a.verbs.create_ah(a.pd, &wrong(128)).unwrap_err().to_string();
    assert!(beyond.contains("table has 128, from 0 on"), "{beyond}");
    let ah = a.verbs.create_ah(a.pd, &wrong(9)).unwrap();
    qa.qp.send.post(&SendWr::send_to(&Destination { ah, ..to }, b"x")).unwrap();
    assert_eq!(qa.wait().unwrap().status, WcStatus::LocQpOpErr);
    let newest = a.rejections().pop().unwrap();
    assert!(matches!(newest, Rejection::NoGid { index: 9, entries: 128, .. }), "{newest}");
    assert!(newest.to_string().contains("entries 0 to 127"), "{newest}");
}

/// Its tag is 0 by then, which nobody has given it.
#[test]
fn a_key_that_was_invalidated_is_said_to_be_so() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let [mut qa, mut qb] = connect(&mut a, &mut b).unwrap();
    let pool = b.register(64, Access::LOCAL_WRITE | Access::MW_BIND).unwrap();
    let mr = b.verbs.alloc_fast_mr(b.pd, 1).unwrap();
    let (flags, tag, access) = (SendFlags::SIGNALED, KeyTag(1), Access::REMOTE_WRITE);
    let open = qb.qp.send.post_reg_mr(mr, &FastReg { wr_id: 1, flags, tag, sges: &[pool.sge(0, 64)], access }).unwrap();
    qb.wait().unwrap().result().unwrap();
    qb.qp.send.post(&SendWr::local_inv(open.rkey()).signaled()).unwrap();
    qb.wait().unwrap().result().unwrap();
    qa.qp.send.post(&SendWr::write(open.remote(0), b"x")).unwrap();
    assert_eq!(qa.wait().unwrap().status, WcStatus::RemAccessErr);
    let newest = b.rejections().pop().unwrap();
    assert!(matches!(newest, Rejection::Access { fault: KeyFault::Free, .. }), "{newest}");
    assert!(
        newest.to_string().contains("RDMA WRITE of 1 byte at")
            && newest.to_string().ends_with("it was invalidated, or never bound"),
        "{newest}"
    );
}

#[test]
fn what_a_device_does_not_have_is_said_with_what_it_has() {
    let [mut a, _b] = pair(Faults::none()).unwrap();
    let entries = a.verbs.query_port(1).unwrap().gid_tbl_len;
    let gid = a.verbs.query_gid(1, 60_000).unwrap_err().to_string();
    assert_eq!(gid, format!("the query has no answer: no entry has this index, the port's table has {entries}, from 0 on"));
    let pieces = a.verbs.alloc_fast_mr(a.pd, 100).unwrap_err().to_string();
    assert!(pieces.ends_with("more than the limit of 52: ask for less"), "{pieces}");
    let pieces = a.verbs.alloc_fast_mr(a.pd, u32::MAX).unwrap_err().to_string();
    assert!(pieces.contains("4294967295 pieces") && pieces.contains("which may be fewer"), "{pieces}");
}

#[test]
fn errors_print_their_text() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let many = bareverbs::QpCap { max_send_wr: 300, ..Connection::default().cap };
    let error = connect_with(&mut a, &mut b, &Connection { cap: many, ..Connection::default() }).unwrap_err();
    assert_eq!(format!("{error:?}"), error.to_string());
    assert!(error.to_string().starts_with("300 send requests need"), "{error}");
    // As many as the documentation of `Node` says.
    let most = |max_send_wr| Connection { cap: bareverbs::QpCap { max_send_wr, ..many }, ..Connection::default() };
    assert!(connect_with(&mut a, &mut b, &most(171)).is_err());
    let [mut qa, _qb] = connect_with(&mut a, &mut b, &most(170)).unwrap();
    let waiter = a.waiter().timeout(std::time::Duration::from_millis(1));
    let error = waiter.wait(&mut qa.cq).unwrap_err();
    assert_eq!(format!("{error:?}"), error.to_string());
    let text = error.to_string();
    assert!(text.starts_with("no completion in CQ 0x3 after 1"), "{text}");
    assert!(
        text.contains(
            "0 frames, delivered 0 and lost 0 (was anything posted? Queue pairs of one device use no wire) with seed 0;"
        ),
        "{text}"
    );
}

#[test]
fn two_runs_have_equal_completions() {
    let run = || {
        let [mut a, mut b] = pair(Faults::none()).unwrap();
        let [_, _] = connect(&mut a, &mut b).unwrap();
        let [mut qa, _qb] = connect(&mut a, &mut b).unwrap();
        let target = b.register(64, OPEN).unwrap();
        qa.qp.send.post(&SendWr::write(target.remote(0), b"x").id(3)).unwrap();
        qa.wait().unwrap()
    };
    let (first, second) = (run(), run());
    assert_ne!(first.qp, second.qp, "a handle of earlier verbs is stale in later ones");
    assert_eq!(comparable(first), comparable(second));
    assert_eq!(comparable(first).qp.index(), first.qp.index());
}
