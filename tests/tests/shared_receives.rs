//! Shared receive queues on simulated devices: bytes, several queue pairs, limits, RNR, flushes, refusals, a device that lies.

use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

use bareverbs::error::{CreateQpError, CreateSrqError, DestroySrqError, Errno, PollCqError, PostRecvError, RawKind, SgeFault};
use bareverbs::{
    Access, AddressVector, Completion, CompletionQueue, Destination, DmaBuffer, Event, Payload, Psn, Qkey, QpAttr, QpAttrMask,
    QpCap, QpInit, QpState, QpType, QueuePair, RecvWr, Region, SendWr, SharedReceiveQueue, SharedReceives, SrqCap, SrqInit,
    WcData, WcOpcode, WcStatus,
};
use bareverbs_mlx5_spec::CmdOpcode;
use bareverbs_sim::in_process::SimBuffer;
use bareverbs_testing::{Driver, End, Fault, Faults, Node, Probability, connect, connect_with_srq, pair};
use bareverbs_tests::dice;

type Srq = SharedReceiveQueue<'static, Driver>;
type Inbox = Region<'static, SimBuffer>;

/// Bytes of a receive.
const ROOM: usize = 8192;

fn srq(node: &mut Node, max_wr: u32) -> Srq {
    let pd = node.pd;
    node.verbs.create_srq(&SrqInit { pd, cap: SrqCap { max_wr, max_sge: 2 } }).unwrap()
}

fn inbox(node: &mut Node, places: usize) -> Inbox {
    node.register(places * ROOM, Access::LOCAL_WRITE).unwrap()
}

/// Posts a receive for the place with this number, in two pieces.
fn post(srq: &mut Srq, inbox: &Inbox, place: u64) -> Result<(), PostRecvError> {
    let at = place * ROOM as u64;
    srq.post(&RecvWr { wr_id: place, sges: &[inbox.sge(at, 100), inbox.sge(at + 100, (ROOM - 100) as u32)] })
}

/// Time passes.
fn settle(node: &Node) {
    node.network().world().advance(Duration::from_millis(20));
}

/// What is in a completion queue.
fn taken(cq: &mut CompletionQueue<'static, Driver>) -> Vec<Completion> {
    cq.completions().map(Result::unwrap).collect()
}

/// `wr_id`s of receives in a completion queue, which all succeeded or were all flushed.
fn received<R>(end: &mut End<R>, status: WcStatus) -> Vec<u64> {
    let done = taken(&mut end.cq);
    assert!(done.iter().all(|done| done.opcode == WcOpcode::Recv && done.status == status), "{done:?}");
    done.iter().map(|done| done.wr_id).collect()
}

fn event(node: &mut Node) -> Option<Event> {
    node.verbs.poll_event().unwrap()
}

// contract: srq
#[test]
fn every_byte_arrives_where_the_queue_pair_that_took_the_receive_says() {
    for seed in 0..3 {
        let [mut a, mut b] = pair(Faults::none().loss(Probability::per_mille(20)).seed(seed)).unwrap();
        let (mut first, mut second) = (srq(&mut b, 31), srq(&mut b, 15));
        let inboxes = [inbox(&mut b, 32), inbox(&mut b, 16)];
        let mut ends: Vec<(usize, (End, End<SharedReceives>))> = Vec::new();
        for of in [0, 0, 1, 0, 1] {
            let handle = [first.handle(), second.handle()][of];
            ends.push((of, connect_with_srq(&mut a, &mut b, handle).unwrap()));
        }
        for place in 0..31 {
            post(&mut first, &inboxes[0], place).unwrap();
        }
        for place in 0..15 {
            post(&mut second, &inboxes[1], place).unwrap();
        }
        assert_eq!(post(&mut first, &inboxes[0], 31), Err(PostRecvError::SharedQueueFull { capacity: 31 }));
        let (mut got, mut sent) = (0, 0);
        for round in 0..60_u32 {
            for (number, (of, (from, into))) in ends.iter_mut().enumerate() {
                // Messages of one packet and of several.
                let len = 1 + (round as usize * 997 + number * 131) % 5000;
                let text = vec![(round as usize * 7 + number) as u8; len];
                let mut source = a.register(ROOM, Access::empty()).unwrap();
                source.write(0, &text).unwrap();
                from.qp.send.post(&SendWr::send(&[source.sge(0, len as u32)])).unwrap();
                sent += 1;
                assert_eq!(from.wait().unwrap().status, WcStatus::Success);
                let done = into.wait().unwrap();
                assert_eq!((done.status, done.byte_len, done.qp), (WcStatus::Success, len as u32, into.qp.handle()));
                let mut bytes = vec![0; len];
                inboxes[*of].read(done.wr_id as usize * ROOM, &mut bytes).unwrap();
                assert_eq!(bytes, text, "place {}", done.wr_id);
                post([&mut first, &mut second][*of], &inboxes[*of], done.wr_id).unwrap();
                got += 1;
                a.verbs.dereg_mr(source).map_err(|refused| refused.error).unwrap();
            }
        }
        assert_eq!((got, sent), (300, 300));
        assert_eq!((a.findings(), b.findings()), (vec![], vec![]));
    }
}

/// Messages of two queue pairs interleave packet by packet, so that receives are taken in one order and completed in another.
#[test]
fn receives_are_completed_in_another_order_than_posted() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let mut shared = srq(&mut b, 7);
    let inbox = inbox(&mut b, 8);
    let (mut long_a, mut long_b) = connect_with_srq(&mut a, &mut b, shared.handle()).unwrap();
    let (mut short_a, mut short_b) = connect_with_srq(&mut a, &mut b, shared.handle()).unwrap();
    let source = a.register(ROOM, Access::empty()).unwrap();
    (0..7).for_each(|place| post(&mut shared, &inbox, place).unwrap());
    let (mut longs, mut shorts) = (Vec::new(), Vec::new());
    for _ in 0..50 {
        long_a.qp.send.post(&SendWr::send(&[source.sge(0, ROOM as u32)])).unwrap();
        short_a.qp.send.post(&SendWr::send(b"x")).unwrap();
        short_a.qp.send.post(&SendWr::send(b"y")).unwrap();
        settle(&a);
        longs = received(&mut long_b, WcStatus::Success);
        shorts = received(&mut short_b, WcStatus::Success);
        assert_eq!((longs.len(), shorts.len()), (1, 2));
        for place in shorts.iter().chain(&longs) {
            post(&mut shared, &inbox, *place).unwrap();
        }
        taken(&mut long_a.cq);
        taken(&mut short_a.cq);
    }
    assert!(!longs.is_empty() && !shorts.is_empty());
    assert_eq!(b.verbs.srq_info(shared.handle()).unwrap().recvs, 7);
}

// contract: events-srq
#[test]
fn the_limit_event_comes_once_when_fewer_are_left() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let mut shared = srq(&mut b, 7);
    let handle = shared.handle();
    let inbox = inbox(&mut b, 8);
    let (mut from, mut into) = connect_with_srq(&mut a, &mut b, handle).unwrap();
    while event(&mut b).is_some() {}
    assert_eq!(b.verbs.arm_srq(handle, 8).unwrap_err().errno(), Errno::Einval);
    for round in 0..3 {
        (0..7).for_each(|place| post(&mut shared, &inbox, place).unwrap());
        b.verbs.arm_srq(handle, 4).unwrap();
        assert_eq!(b.verbs.query_srq(handle).unwrap().limit, 4);
        for count in 1..=7 {
            from.qp.send.post(&SendWr::send(b"x")).unwrap();
            settle(&a);
            let expected = if count == 4 { Some(Event::SrqLimitReached(handle)) } else { None };
            assert_eq!(event(&mut b), expected, "{count} taken in round {round}");
            let limit = if count < 4 { 4 } else { 0 };
            let info = b.verbs.query_srq(handle).unwrap();
            assert_eq!((info.limit, b.verbs.srq_info(handle).unwrap().limit), (limit, limit));
        }
        assert_eq!(received(&mut into, WcStatus::Success), (0..7).collect::<Vec<_>>());
        taken(&mut from.cq);
    }
    // Below at once, and disarmed.
    b.verbs.arm_srq(handle, 1).unwrap();
    assert_eq!(event(&mut b), Some(Event::SrqLimitReached(handle)));
    (0..7).for_each(|place| post(&mut shared, &inbox, place).unwrap());
    b.verbs.arm_srq(handle, 7).unwrap();
    b.verbs.arm_srq(handle, 0).unwrap();
    from.qp.send.post(&SendWr::send(b"x")).unwrap();
    settle(&a);
    assert_eq!(event(&mut b), None);
}

#[test]
fn an_empty_queue_is_not_ready_until_something_is_posted() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let mut shared = srq(&mut b, 3);
    let inbox = inbox(&mut b, 4);
    let mut ends: Vec<(End, End<SharedReceives>)> =
        (0..3).map(|_| connect_with_srq(&mut a, &mut b, shared.handle()).unwrap()).collect();
    for (from, _) in &mut ends {
        from.qp.send.post(&SendWr::send(b"x")).unwrap();
    }
    settle(&a);
    assert!(ends.iter_mut().all(|(from, into)| taken(&mut from.cq).is_empty() && taken(&mut into.cq).is_empty()));
    (0..3).for_each(|place| post(&mut shared, &inbox, place).unwrap());
    let mut places: Vec<u64> = ends
        .iter_mut()
        .map(|(from, into)| {
            assert_eq!(from.wait().unwrap().status, WcStatus::Success);
            into.wait().unwrap().wr_id
        })
        .collect();
    places.sort_unstable();
    assert_eq!(places, [0, 1, 2]);
}

/// IBTA 11.6.3.1: a queue pair in ERR says when it takes no more; what it was filling is flushed, and nothing else.
// contract: events-srq
#[test]
fn an_error_flushes_what_was_taken_and_says_when_it_is_all() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let mut shared = srq(&mut b, 7);
    let inbox = inbox(&mut b, 8);
    let (mut from, mut into) = connect_with_srq(&mut a, &mut b, shared.handle()).unwrap();
    let (mut other, mut other_into) = connect_with_srq(&mut a, &mut b, shared.handle()).unwrap();
    while event(&mut b).is_some() {}
    // Long enough that the connection is cut in the middle.
    let long = 1 << 20;
    let target = b.register(long, Access::LOCAL_WRITE).unwrap();
    shared.post(&RecvWr { wr_id: 0, sges: &[target.sge(0, long as u32)] }).unwrap();
    (1..4).for_each(|place| post(&mut shared, &inbox, place).unwrap());
    b.verbs.arm_srq(shared.handle(), 4).unwrap();
    let source = a.register(long, Access::empty()).unwrap();
    // The first packets of a message come, and no more.
    from.qp.send.post(&SendWr::send(&[source.sge(0, long as u32)])).unwrap();
    // The limit says when the first has taken a receive.
    let world = a.network().world().clone();
    let taken_one = (0..100_000).any(|_| {
        world.advance(Duration::from_nanos(50));
        event(&mut b) == Some(Event::SrqLimitReached(shared.handle()))
    });
    assert!(taken_one);
    a.network().cut(&a, &b);
    settle(&b);
    let qp = into.qp.handle();
    b.verbs.modify_qp(qp, &QpAttr { state: QpState::Err, ..QpAttr::default() }, QpAttrMask::STATE).unwrap();
    settle(&b);
    assert_eq!(event(&mut b), Some(Event::LastWqeReached(qp)));
    assert_eq!(event(&mut b), None, "once");
    assert_eq!(received(&mut into, WcStatus::WrFlushErr), [0]);
    a.network().heal(&a, &b);
    other.qp.send.post(&SendWr::send(b"x")).unwrap();
    assert_eq!(other_into.wait().unwrap().wr_id, 1);
    let (qp, cq) = into.into_parts();
    b.verbs.destroy_qp(qp).map_err(|refused| refused.error).unwrap();
    b.verbs.destroy_cq(cq).map_err(|refused| refused.error).unwrap();
    assert_eq!(b.verbs.srq_info(shared.handle()).unwrap().recvs, 2);
    taken(&mut from.cq);
}

/// Completions of a queue pair that is reset are dropped, and their places are used again.
#[test]
fn a_reset_drops_completions_and_frees_their_places() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let mut shared = srq(&mut b, 3);
    let inbox = inbox(&mut b, 4);
    let (mut from, mut into) = connect_with_srq(&mut a, &mut b, shared.handle()).unwrap();
    let (mut other, mut other_into) = connect_with_srq(&mut a, &mut b, shared.handle()).unwrap();
    (0..3).for_each(|place| post(&mut shared, &inbox, place).unwrap());
    for _ in 0..2 {
        from.qp.send.post(&SendWr::send(b"x")).unwrap();
    }
    settle(&a);
    b.verbs.reset_qp(&mut into.qp).unwrap();
    assert_eq!(post(&mut shared, &inbox, 3), Err(PostRecvError::SharedQueueFull { capacity: 3 }));
    assert!(taken(&mut into.cq).is_empty());
    post(&mut shared, &inbox, 3).unwrap();
    post(&mut shared, &inbox, 0).unwrap();
    assert_eq!(post(&mut shared, &inbox, 1), Err(PostRecvError::SharedQueueFull { capacity: 3 }));
    let mut places = Vec::new();
    for _ in 0..3 {
        other.qp.send.post(&SendWr::send(b"x")).unwrap();
        places.push(other_into.wait().unwrap().wr_id);
    }
    assert_eq!(places, [2, 3, 0]);
}

/// A shared receive queue has a protection domain of its own: its requests name regions of that, whatever domain the queue pairs are in
/// that take them, and no others.
#[test]
fn receives_use_regions_of_the_shared_queues_domain() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let foreign = b.verbs.alloc_pd().unwrap();
    let mut shared = b.verbs.create_srq(&SrqInit { pd: foreign, cap: SrqCap { max_wr: 3, max_sge: 1 } }).unwrap();
    let of_queue_pairs = b.register(64, Access::LOCAL_WRITE).unwrap();
    let buffer = b.host.memory(4096).whole();
    let of_queue = b.verbs.reg_mr(foreign, buffer, Access::LOCAL_WRITE).map_err(|refused| refused.error).unwrap();
    // Connects in `b.pd`.
    let (mut from, mut into) = connect_with_srq(&mut a, &mut b, shared.handle()).unwrap();
    let sge = of_queue_pairs.sge(0, 64);
    let refused = shared.post(&RecvWr { wr_id: 1, sges: &[sge] }).unwrap_err();
    assert_eq!(refused, PostRecvError::Sge { index: 0, lkey: sge.lkey, fault: SgeFault::Domain });
    assert_eq!(refused.errno(), Errno::Eperm);
    shared.post(&RecvWr { wr_id: 2, sges: &[of_queue.sge(0, 64)] }).unwrap();
    from.qp.send.post(&SendWr::send(b"of the queue's domain")).unwrap();
    let done = into.wait().unwrap();
    assert_eq!((done.wr_id, done.status, done.byte_len), (2, WcStatus::Success, 21));
    let mut bytes = [0; 21];
    of_queue.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"of the queue's domain");
    // And the domain stays while its queue does.
    assert!(b.verbs.dealloc_pd(foreign).is_err());
    assert_eq!((a.findings(), b.findings()), (vec![], vec![]));
}

// contract: srq-create-refused, srq-create-full
#[test]
fn a_queue_that_cannot_be_is_not_created() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let device = b.verbs.query_device();
    let max = SrqCap { max_wr: device.max_srq_wr, max_sge: device.max_srq_sge };
    let good = SrqInit { pd: b.pd, cap: SrqCap { max_wr: 100, max_sge: max.max_sge } };
    let mut refused = |init: &SrqInit, errno: Errno| {
        let error = b.verbs.create_srq(init).map(drop).unwrap_err();
        assert_eq!(error.errno(), errno, "{error}");
        error
    };
    for wanted in [
        SrqCap { max_wr: 0, ..good.cap },
        SrqCap { max_wr: max.max_wr + 1, ..good.cap },
        SrqCap { max_sge: max.max_sge + 1, ..good.cap },
    ] {
        let error = refused(&SrqInit { cap: wanted, ..good }, Errno::Einval);
        assert_eq!(error, CreateSrqError::Capacity { wanted, max });
    }
    let foreign = a.verbs.alloc_pd().unwrap();
    assert_eq!(refused(&SrqInit { pd: foreign, ..good }, Errno::Einval), CreateSrqError::StalePd);
    // The device has it, and the storage has no places for so many.
    let long = SrqInit { cap: SrqCap { max_wr: max.max_wr, ..good.cap }, ..good };
    assert!(matches!(refused(&long, Errno::Enomem), CreateSrqError::Entries { most: 256, .. }));
    // CREATE_RMP: the device has no room for another (LIM_ERR).
    b.arm(Fault::CommandStatus { opcode: 0x90c, status: 8, syndrome: 1 });
    let error = b.verbs.create_srq(&good).map(drop).unwrap_err();
    assert!(matches!(error, CreateSrqError::Device(_)) && error.errno() == Errno::Enomem, "{error}");
    let queues: Vec<Srq> = (0..4).map(|_| b.verbs.create_srq(&good).unwrap()).collect();
    let error = b.verbs.create_srq(&good).map(drop).unwrap_err();
    assert_eq!((error, error.errno()), (CreateSrqError::Full { capacity: 4, fitting: 4 }, Errno::Enomem));
    queues.into_iter().for_each(|queue| b.verbs.destroy_srq(queue).map_err(|refused| refused.error).unwrap());
    assert!(b.verbs.create_srq(&good).is_ok());
    assert_eq!(b.findings(), vec![]);
}

// contract: srq-busy
#[test]
fn a_queue_that_is_used_is_not_destroyed() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let shared = srq(&mut b, 3);
    let handle = shared.handle();
    let (_from, into) = connect_with_srq(&mut a, &mut b, handle).unwrap();
    let refused = b.verbs.destroy_srq(shared).unwrap_err();
    assert_eq!((refused.error, refused.error.errno()), (DestroySrqError::Busy { users: 1 }, Errno::Ebusy));
    assert!(b.verbs.dealloc_pd(b.pd).is_err());
    let mut shared = refused.returned.unwrap();
    shared.post(&RecvWr { wr_id: 1, sges: &[] }).unwrap();
    let (qp, _) = into.into_parts();
    b.verbs.destroy_qp(qp).map_err(|refused| refused.error).unwrap();
    b.verbs.destroy_srq(shared).map_err(|refused| refused.error).unwrap();
    assert_eq!(b.verbs.destroy_dropped_srq(handle), Err(DestroySrqError::Stale));
    for qp_type in [QpType::Uc, QpType::Ud] {
        let cap = QpCap { max_send_wr: 1, max_send_sge: 1, ..QpCap::default() };
        let cq = b.verbs.create_cq(16).unwrap();
        let init = QpInit { pd: b.pd, qp_type, send_cq: cq.handle(), recv_cq: cq.handle(), cap, sq_sig_all: true };
        let refused = b.verbs.create_qp_with_srq(&init, handle).map(drop).unwrap_err();
        let expected = if qp_type == QpType::Uc { CreateQpError::SrqTransport { qp_type } } else { CreateQpError::StaleSrq };
        assert_eq!(refused, expected);
    }
    // As many as the device has numbers: each is destroyed again, so that nothing is used up.
    for _ in 0..300 {
        let shared = srq(&mut b, 200);
        b.verbs.destroy_srq(shared).map_err(|refused| refused.error).unwrap();
    }
    assert_eq!(b.findings(), []);
}

#[test]
fn datagrams_of_two_queue_pairs_come_with_their_source() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let mut shared = srq(&mut b, 7);
    let inbox = inbox(&mut b, 8);
    let cap = QpCap { max_send_wr: 8, max_send_sge: 1, max_inline_data: 64, ..QpCap::default() };
    let init = |node: &Node, cq| QpInit { pd: node.pd, qp_type: QpType::Ud, send_cq: cq, recv_cq: cq, cap, sq_sig_all: true };
    let all = QpAttr { port_num: 1, qkey: Qkey::new(7), ..QpAttr::default() };
    let from_cq = a.verbs.create_cq(64).unwrap();
    let mut from: QueuePair<'static, Driver> = a.verbs.create_qp(&init(&a, from_cq.handle())).unwrap();
    a.verbs.modify_qp_to_rts(from.handle(), &QpAttr { sq_psn: Psn::new(1), ..all }).unwrap();
    let mut into_cq = b.verbs.create_cq(64).unwrap();
    let into: Vec<QueuePair<'static, Driver, SharedReceives>> = (0..2)
        .map(|_| {
            let qp = b.verbs.create_qp_with_srq(&init(&b, into_cq.handle()), shared.handle()).unwrap();
            b.verbs.modify_qp_to_rts(qp.handle(), &all).unwrap();
            qp
        })
        .collect();
    (0..7).for_each(|place| post(&mut shared, &inbox, place).unwrap());
    let dlid = b.verbs.query_port(1).unwrap().lid;
    let ah = a.verbs.create_ah(a.pd, &AddressVector { dlid, port_num: 1, ..AddressVector::default() }).unwrap();
    let from_qpn = a.verbs.qp_info(from.handle()).unwrap().qpn;
    for (place, number) in [0, 1, 1, 0, 1].into_iter().enumerate() {
        let remote_qpn = b.verbs.qp_info(into[number].handle()).unwrap().qpn;
        let to = Destination { ah, remote_qpn, remote_qkey: Qkey::new(7) };
        from.send.post(&SendWr::send_to(&to, b"datagram")).unwrap();
        settle(&a);
        let done: Vec<_> = into_cq.completions().with_source().map(Result::unwrap).collect();
        let [(done, Some(source))] = &done[..] else { panic!("{done:?}") };
        assert_eq!((done.wr_id, done.qp, done.byte_len), (place as u64, into[number].handle(), 48));
        assert_eq!(source.src_qp, from_qpn);
        let mut bytes = [0; 8];
        inbox.read(place * ROOM + 40, &mut bytes).unwrap();
        assert_eq!(&bytes, b"datagram");
    }
}

/// A device that names another place, or the same one twice.
#[test]
fn a_device_that_lies_about_the_place_is_refused() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let mut shared = srq(&mut b, 7);
    let (mut from, mut into) = connect_with_srq(&mut a, &mut b, shared.handle()).unwrap();
    let qp = into.qp.handle();
    let cqn = b.verbs.cq_info(into.cq.handle()).unwrap().cqn.get();
    // Places 0 to 3 are posted.
    (10..14).for_each(|wr_id| shared.post(&RecvWr { wr_id, sges: &[] }).unwrap());
    let mut message = |fault: Option<Fault>| {
        if let Some(fault) = fault {
            b.arm(fault);
        }
        from.qp.send.post(&SendWr::send(b"")).unwrap();
        settle(&a);
        let mut all = Vec::new();
        for _ in 0..4 {
            let mut out = [Completion::EMPTY; 4];
            match into.cq.poll(&mut out) {
                Ok(0) => break,
                Ok(count) => all.extend(out[..count].iter().map(|done| Ok((done.wr_id, done.status)))),
                Err(error) => all.push(Err(error)),
            }
        }
        all
    };
    let unknown = |index| Err(PollCqError::UnknownRequest { qp, kind: RawKind::Recv, index });
    // A place where nothing is posted.
    assert_eq!(message(Some(Fault::WrongWqeCounter { cqn, counter: 4 })), [unknown(4)]);
    assert_eq!(message(Some(Fault::RepeatCqe { cqn })), [Ok((11, WcStatus::Success)), unknown(1)]);
    // A place that is posted and was not taken: its `wr_id`, which does not come again.
    assert_eq!(message(Some(Fault::WrongWqeCounter { cqn, counter: 3 })), [Ok((13, WcStatus::Success))]);
    assert_eq!(message(None), [unknown(3)]);
    // Places 0 and 2 were never given back.
    assert_eq!(b.verbs.srq_info(shared.handle()).unwrap().recvs, 2);
}

#[test]
fn each_request_of_a_lost_device_is_completed_or_flushed_once() {
    for used in [true, false] {
        let [mut a, mut b] = pair(Faults::none()).unwrap();
        let mut shared = srq(&mut b, 31);
        let inbox = inbox(&mut b, 32);
        let (mut from, mut into) = connect_with_srq(&mut a, &mut b, shared.handle()).unwrap();
        let (_other, mut other_into) = connect_with_srq(&mut a, &mut b, shared.handle()).unwrap();
        let [_plain_from, mut plain] = connect(&mut a, &mut b).unwrap();
        plain.qp.recv.post(&RecvWr { wr_id: 100, sges: &[] }).unwrap();
        (0..20).for_each(|place| post(&mut shared, &inbox, place).unwrap());
        for _ in 0..5 {
            from.qp.send.post(&SendWr::send(b"x")).unwrap();
        }
        settle(&a);
        if !used {
            assert_eq!(received(&mut into, WcStatus::Success).len(), 5);
            let ((qp, mut cq), (other, mut other_cq)) = (into.into_parts(), other_into.into_parts());
            for qp in [qp, other] {
                b.verbs.destroy_qp(qp).map_err(|refused| refused.error).unwrap();
            }
            b.remove();
            assert!(b.verbs.maintain().is_err() || b.verbs.query_port(1).is_err());
            for cq in [&mut cq, &mut other_cq] {
                let mut out = [Completion::EMPTY; 4];
                assert!(matches!(cq.poll(&mut out), Err(PollCqError::DeviceLost { .. })), "nobody's requests are not flushed");
            }
            continue;
        }
        b.remove();
        let error = b.verbs.query_srq(shared.handle()).unwrap_err();
        assert_eq!(error.errno(), Errno::Enodev);
        assert!(matches!(post(&mut shared, &inbox, 20), Err(PostRecvError::DeviceLost { .. })));
        let mut given = Vec::new();
        for _ in 0..2 {
            for cq in [&mut other_into.cq, &mut into.cq, &mut plain.cq] {
                loop {
                    let mut out = [Completion::EMPTY; 4];
                    match cq.poll(&mut out) {
                        Ok(count) => given.extend(out[..count].iter().map(|done| {
                            let is_lost = matches!(done.data, WcData::Lost(_));
                            assert_eq!(is_lost, done.status == WcStatus::WrFlushErr);
                            (done.wr_id, is_lost)
                        })),
                        Err(PollCqError::DeviceLost { .. }) => break,
                        Err(error) => panic!("{error:?}"),
                    }
                }
            }
        }
        given.sort_unstable();
        assert_eq!(given.iter().map(|(wr_id, _)| *wr_id).collect::<Vec<_>>(), (0..20).chain([100]).collect::<Vec<_>>());
    }
}

/// What is open of a device whose queue pairs share their receives: each queue pair's sends in their order, and the receives of all.
#[derive(Default)]
struct Open {
    sends: [VecDeque<u64>; 3],
    recvs: BTreeSet<u64>,
    posted: u64,
    /// Completed receives, flushed receives, flushed sends.
    given: [u32; 3],
}

impl Open {
    fn next_id(&mut self) -> u64 {
        self.posted += 1;
        self.posted
    }

    /// Polls a queue pair's completion queue once, and checks what it gives.
    fn poll(&mut self, n: usize, end: &mut End<SharedReceives>, at_most: usize) -> Result<usize, PollCqError> {
        let mut out = [Completion::EMPTY; 4];
        let count = end.cq.poll(&mut out[..at_most])?;
        for done in &out[..count] {
            let is_flushed = done.status == WcStatus::WrFlushErr;
            assert!(is_flushed == done.loss().is_some() && (is_flushed || done.status == WcStatus::Success), "{done:?}");
            if done.opcode == WcOpcode::Recv {
                assert!(self.recvs.remove(&done.wr_id), "not posted, or given before: {done:?}");
            } else {
                assert_eq!(self.sends[n].pop_front(), Some(done.wr_id), "{done:?}");
            }
            match (done.opcode == WcOpcode::Recv, is_flushed) {
                (true, flushed) => self.given[usize::from(flushed)] += 1,
                (false, flushed) => self.given[2] += u32::from(flushed),
            }
        }
        Ok(count)
    }
}

/// Random messages to three queue pairs, which write too. The device is lost after each step, and polled in pieces of another size.
// contract: poll-once
#[test]
fn after_each_step_of_random_traffic_a_lost_device_leaves_no_receive() {
    const STEPS: u64 = 60;
    let mut given = [0; 3];
    for last in 0..STEPS {
        let [mut a, mut b] = pair(Faults::none()).unwrap();
        let mut shared = srq(&mut b, 15);
        let inbox = inbox(&mut b, 1);
        let target = a.register(ROOM, Access::REMOTE_WRITE | Access::LOCAL_WRITE).unwrap();
        let mut ends: Vec<_> = (0..3).map(|_| connect_with_srq(&mut a, &mut b, shared.handle()).unwrap()).collect();
        let mut open = Open::default();
        let mut dice = dice(last + 1);
        for _ in 0..=last {
            let n = dice(3) as usize;
            let (from, into) = &mut ends[n];
            match dice(7) {
                0 => drop(open.poll(n, into, dice(4) as usize + 1).unwrap()),
                1 => settle(&a),
                2 | 3 => {
                    for _ in 0..=dice(4) {
                        let wr_id = open.next_id();
                        if shared.post(&RecvWr { wr_id, sges: &[inbox.sge(0, 64)] }).is_ok() {
                            open.recvs.insert(wr_id);
                        }
                    }
                }
                4 => {
                    let wr_id = open.next_id();
                    if into.qp.send.post(&SendWr::write(target.remote(0), b"x").id(wr_id)).is_ok() {
                        open.sends[n].push_back(wr_id);
                    }
                }
                // More messages than receives break the sender's queue pair, which is none of the device that is lost.
                _ => drop(from.qp.send.post(&SendWr::send(b"message"))),
            }
        }
        match last % 3 {
            0 => b.remove(),
            1 => b.arm(Fault::StuckCommand { opcode: CmdOpcode::AllocPd.code() as u16 }),
            _ => b.remove_after(dice(2)),
        }
        if last % 3 == 2 {
            // The doorbell is the write that the device does not see.
            for _ in 0..2 {
                let wr_id = open.next_id();
                if ends[0].1.qp.send.post(&SendWr::write(target.remote(0), b"x").id(wr_id)).is_ok() {
                    open.sends[0].push_back(wr_id);
                }
            }
        }
        assert!(b.verbs.alloc_pd().is_err());
        for round in 0..2 {
            for (n, (_, into)) in ends.iter_mut().enumerate() {
                let at_most = (last as usize + n) % 4 + 1;
                while let Ok(count) = open.poll(n, into, at_most) {
                    assert!(count != 0 && round == 0, "neither a request nor the reason");
                }
            }
        }
        assert!(open.recvs.is_empty() && open.sends.iter().all(VecDeque::is_empty), "{:?} {:?}", open.recvs, open.sends);
        given = core::array::from_fn(|which| given[which] + open.given[which]);
    }
    assert!(given.iter().all(|count| *count > 30), "{given:?}");
}

/// A list whose request names bytes that the device may not write breaks the queue pair that took it, as with any receive.
#[test]
fn a_message_that_is_too_long_fails_one_queue_pair() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let mut shared = srq(&mut b, 7);
    let small = b.register(64, Access::LOCAL_WRITE).unwrap();
    let (mut from, mut into) = connect_with_srq(&mut a, &mut b, shared.handle()).unwrap();
    let (mut other, mut other_into) = connect_with_srq(&mut a, &mut b, shared.handle()).unwrap();
    let list = [1, 2].map(|wr_id| (wr_id, [small.sge(0, 4)]));
    shared.post_list(&list.each_ref().map(|(wr_id, sges)| RecvWr { wr_id: *wr_id, sges })).unwrap();
    from.qp.send.post(&SendWr::send(b"too long")).unwrap();
    assert_eq!(from.wait().unwrap().status, WcStatus::RemInvReqErr);
    let done = into.wait().unwrap();
    assert_eq!((done.wr_id, done.status), (1, WcStatus::LocLenErr));
    assert_eq!(b.verbs.qp_info(into.qp.handle()).unwrap().state, QpState::Err);
    other.qp.send.post(&SendWr::send(b"fits")).unwrap();
    let done = other_into.wait().unwrap();
    assert_eq!((done.wr_id, done.status, done.byte_len), (2, WcStatus::Success, 4));
    assert!(matches!(SendWr::send(b"").op, bareverbs::SendOp::Send { payload: Payload::Inline(_) }));
}
