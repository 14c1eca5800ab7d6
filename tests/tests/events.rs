//! Events that come late, or not at all: of destroyed queues, of a queue pair before its RESET, and those for which the event
//! queue had no room.

use core::time::Duration;

use bareverbs::backend::AsyncEvent;
use bareverbs::error::DestroyCqError;
use bareverbs::platform::{Clock, DmaMemory};
use bareverbs::storage::{QpRings, SrqEntries};
use bareverbs::{
    Access, CqHandle, Event, MaskedOp, MaskedWr, Payload, QpAttr, QpAttrMask, QpInit, QpState, QpType, QueuePair, RecvWr,
    Remote, SendFlags, SendOp, SrqCap, SrqInit, Verbs, WcStatus, storage,
};
use bareverbs_mlx5::Config;
use bareverbs_sim::in_process::{World, WorldConfig};
use bareverbs_sim::wire::{Probability, WireFaults};
use bareverbs_sim::{DeviceConfig, Limits};
use bareverbs_tests::{
    ALL_ACCESS, CAP, Connection, Driver, End, KeptVerbs, Node, Pair, Region, driver_config, end, end_in, instant, machine,
    rc_steps, refused, signaled, to_rts, to_state, verbs,
};

/// Entries of the queue of completion events, as configured by default.
const ENTRIES: usize = 256;

/// Returns the events that are waiting now.
fn waiting(node: &mut Node) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(event) = node.verbs.poll_event().unwrap() {
        events.push(event);
    }
    events
}

/// Writes from the first host to the second and waits for the completion.
fn write(pair: &mut Pair, end: &End, remote: Remote) -> WcStatus {
    let op = SendOp::Write { payload: Payload::Inline(b"12345678"), remote };
    pair.a.verbs.post_send(end.qp, &signaled(1, op)).unwrap();
    pair.a.completions(end.cq, 1)[0].status
}

/// Makes an access that the second host refuses: its queue pair breaks, and reports it by an event.
fn break_peer(pair: &mut Pair, end: &End, there: &Region) {
    let wrong = Remote { addr: 0, ..there.remote(0) };
    assert_eq!(write(pair, end, wrong), WcStatus::RemAccessErr);
    pair.world.advance(Duration::from_millis(1));
}

/// Takes both through RESET back to RTS.
fn reconnect(pair: &mut Pair, a: &End, b: &End) {
    pair.a.verbs.modify_qp(a.qp, &to_state(QpState::Reset), QpAttrMask::STATE).unwrap();
    pair.b.verbs.modify_qp(b.qp, &to_state(QpState::Reset), QpAttrMask::STATE).unwrap();
    pair.connect(a, b, &Connection::default());
}

/// Arms a completion queue and lets it have a completion, so often that the events of it fill their queue.
fn flood(pair: &mut Pair, a: &End, remote: Remote, count: usize) {
    for n in 0..count {
        pair.a.verbs.req_notify_cq(a.cq, false).unwrap();
        assert_eq!(write(pair, a, remote), WcStatus::Success, "{n}");
    }
}

// contract: events-lost
#[test]
fn more_completion_events_than_their_queue_holds() {
    let mut pair = Pair::new();
    let (a, b) = pair.connected();
    let there = pair.b.region(b.pd, 4096, ALL_ACCESS);
    // Another queue, armed, whose only event finds no room.
    let other = end_in(&mut pair.a, a.pd, QpType::Rc, CAP, true);
    let opposite = end(&mut pair.b, true);
    pair.connect(&other, &opposite, &Connection::default());
    let far = pair.b.region(opposite.pd, 4096, ALL_ACCESS);
    let idle = pair.a.verbs.create_cq(4).unwrap();
    for round in 0..3 {
        flood(&mut pair, &a, there.remote(0), ENTRIES + 50);
        pair.a.verbs.req_notify_cq(other.cq, false).unwrap();
        assert_eq!(write(&mut pair, &other, far.remote(0)), WcStatus::Success);
        let dropped = pair.a.host.with_device(|device| device.stats().events_dropped);
        assert!(dropped > 0, "the device had no room");
        let events = waiting(&mut pair.a);
        assert_eq!(events[0], Event::EventsLost, "{events:?}");
        let reported = |cq: CqHandle| events[1..].iter().filter(|event| **event == Event::Completion(cq)).count();
        assert_eq!(
            (reported(a.cq), reported(other.cq), reported(idle), events.len()),
            (1, 1, 1, 4),
            "round {round}: every queue, once"
        );
        // Everything still works: a queue reports once it is armed, and only then.
        assert_eq!(write(&mut pair, &a, there.remote(0)), WcStatus::Success);
        assert_eq!(waiting(&mut pair.a), []);
        for end in [&a, &other] {
            pair.a.verbs.req_notify_cq(end.cq, false).unwrap();
            assert_eq!(waiting(&mut pair.a), []);
            let remote = if end.cq == a.cq { there.remote(0) } else { far.remote(0) };
            assert_eq!(write(&mut pair, end, remote), WcStatus::Success);
            assert_eq!(waiting(&mut pair.a), [Event::Completion(end.cq)]);
        }
    }
}

/// A queue pair that is its own peer: the responder takes it to ERR before the requester has an answer, so that no completion has the
/// cause.
#[test]
fn an_event_has_the_cause_where_a_queue_pair_refuses_its_own_request() {
    let mut pair = Pair::new();
    let end = end(&mut pair.a, true);
    let lid = pair.a.verbs.query_port(1).unwrap().lid;
    for (attr, mask) in rc_steps(&Connection::default(), lid, end.qpn, 0, 0) {
        pair.a.verbs.modify_qp(end.qp, &attr, mask).unwrap();
    }
    let there = pair.a.region(end.pd, 4096, bareverbs::Access::LOCAL_WRITE);
    let op = SendOp::Write { payload: Payload::Inline(b"12345678"), remote: there.remote(0) };
    pair.a.verbs.post_send(end.qp, &signaled(1, op)).unwrap();
    let failed = pair.a.completions(end.cq, 1)[0].result().unwrap_err();
    assert_eq!(failed.status, WcStatus::WrFlushErr);
    assert!(failed.to_string().contains("or an event (poll_event)"), "{failed}");
    assert_eq!(waiting(&mut pair.a), [Event::QpAccessError(end.qp)]);
}

#[test]
fn a_queue_of_events_that_is_just_not_full() {
    let mut pair = Pair::new();
    let (a, b) = pair.connected();
    let there = pair.b.region(b.pd, 4096, ALL_ACCESS);
    for _ in 0..3 {
        flood(&mut pair, &a, there.remote(0), ENTRIES - 1);
        assert_eq!(waiting(&mut pair.a), [Event::Completion(a.cq)]);
    }
    assert_eq!(pair.a.host.with_device(|device| device.stats().events_dropped), 0);
    pair.assert_no_findings();
}

#[test]
fn an_interrupt_handler_is_told_of_the_overflow() {
    let mut pair = Pair::new();
    let (a, b) = pair.connected();
    let there = pair.b.region(b.pd, 4096, ALL_ACCESS);
    let vector = pair.a.verbs.cq_info(a.cq).unwrap().vector;
    let mut handler = pair.a.verbs.take_interrupt_handler().unwrap();
    flood(&mut pair, &a, there.remote(0), ENTRIES + 50);
    let taken = handler.on_interrupt(vector);
    assert!(taken.overflow && !taken.asynchronous, "{taken:?}");
    assert_eq!(waiting(&mut pair.a), [Event::Completion(a.cq)]);
    pair.a.verbs.req_notify_cq(a.cq, false).unwrap();
    assert_eq!(write(&mut pair, &a, there.remote(0)), WcStatus::Success);
    let taken = handler.on_interrupt(vector);
    assert_eq!((taken.completions, taken.overflow), (1, false));
    assert_eq!(handler.on_interrupt(vector).completions, 0);
    drop(handler);
    assert_eq!(waiting(&mut pair.a), [Event::Completion(a.cq)]);
}

// contract: events-lost
#[test]
fn more_asynchronous_events_than_their_queue_holds() {
    let config = Config { async_events: 64, ..Config::DEFAULT };
    let host = World::new(WorldConfig::default()).add(instant(1)).unwrap();
    let mut node = Node::with_config(host, &config);
    for _ in 0..3 {
        for _ in 0..40 {
            node.host.with_device(|device| device.set_link(false));
            node.host.with_device(|device| device.set_link(true));
        }
        let events = waiting(&mut node);
        assert!(events.contains(&Event::EventsLost), "{events:?}");
        assert!(events.iter().filter(|event| **event == Event::EventsLost).count() == 1, "{events:?}");
        // Those that were not lost are there, in their order.
        let ports: Vec<_> = events.iter().filter(|event| **event != Event::EventsLost).collect();
        assert!(ports.len() >= 60, "{}", ports.len());
        for (n, event) in ports.iter().enumerate() {
            assert_eq!(**event, if n % 2 == 0 { Event::PortDown(1) } else { Event::PortActive(1) });
        }
        node.host.with_device(|device| device.set_link(false));
        assert_eq!(waiting(&mut node), [Event::PortDown(1)]);
        node.host.with_device(|device| device.set_link(true));
        assert_eq!(waiting(&mut node), [Event::PortActive(1)]);
    }
}

#[test]
fn an_event_of_a_destroyed_completion_queue_is_not_its_successor_s() {
    let limits = Limits { log_max_cq: 2, ..Limits::default() };
    let mut pair = Pair::of_devices(DeviceConfig { limits, ..DeviceConfig::with_lid(1) }, DeviceConfig::with_lid(2));
    let (a, b) = pair.connected();
    let there = pair.b.region(b.pd, 4096, ALL_ACCESS);
    pair.a.verbs.req_notify_cq(a.cq, false).unwrap();
    assert_eq!(write(&mut pair, &a, there.remote(0)), WcStatus::Success);
    let old = pair.a.verbs.cq_info(a.cq).unwrap().cqn;
    pair.a.verbs.destroy_qp(a.qp).unwrap();
    // Its event waits to be taken by somebody who handles interrupts: until then the number must not come again.
    let handler = pair.a.verbs.take_interrupt_handler().unwrap();
    refused!(pair.a.verbs.destroy_cq(a.cq), Ebusy, DestroyCqError::EventsTaken);
    drop(handler);
    pair.a.verbs.destroy_cq(a.cq).unwrap();
    let same = (0..8).any(|_| {
        let cq = pair.a.verbs.create_cq(16).unwrap();
        let same = pair.a.verbs.cq_info(cq).unwrap().cqn == old;
        assert_eq!(waiting(&mut pair.a), [], "it was never armed");
        pair.a.verbs.destroy_cq(cq).unwrap();
        same
    });
    assert!(same, "the number came again");
}

#[test]
fn an_error_event_from_before_a_reset() {
    let mut pair = Pair::new();
    let (a, b) = pair.connected();
    let there = pair.b.region(b.pd, 4096, ALL_ACCESS);
    break_peer(&mut pair, &a, &there);
    reconnect(&mut pair, &a, &b);
    assert_eq!(waiting(&mut pair.b), [Event::Stray(AsyncEvent::QpAccessError(b.qpn))]);
    assert_eq!(pair.b.verbs.qp_info(b.qp).unwrap().state, QpState::Rts);
    // Both directions, so that the state is what posting finds too.
    assert_eq!(write(&mut pair, &a, there.remote(0)), WcStatus::Success);
    pair.b
        .verbs
        .post_send(b.qp, &signaled(2, SendOp::Write { payload: Payload::Inline(b""), remote: there.remote(0) }))
        .unwrap();
    assert_eq!(pair.b.completions(b.cq, 1)[0].wr_id, 2);
    // A queue pair that is connected again reports its own events.
    reconnect(&mut pair, &a, &b);
    break_peer(&mut pair, &a, &there);
    assert_eq!(waiting(&mut pair.b), [Event::QpAccessError(b.qp)]);
    assert_eq!(pair.b.verbs.qp_info(b.qp).unwrap().state, QpState::Err);
    pair.assert_no_findings();
}

/// Moves a queue pair with nothing to send to SQD, whose event is left to wait.
fn drain_idle(pair: &mut Pair, end: &End) {
    pair.a.verbs.modify_qp(end.qp, &to_state(QpState::Sqd), QpAttrMask::STATE).unwrap();
    pair.world.advance(Duration::from_millis(1));
}

/// The event of the first move to SQD is polled in the second, in which a READ is not done.
// contract: events-drained-late
#[test]
fn an_event_of_an_earlier_drain_does_not_end_the_next() {
    let mut pair = Pair::new();
    let (a, b) = pair.connected();
    let (here, there) = (pair.a.region(a.pd, 4096, ALL_ACCESS), pair.b.region(b.pd, 4096, ALL_ACCESS));
    drain_idle(&mut pair, &a);
    pair.a.verbs.modify_qp(a.qp, &to_state(QpState::Rts), QpAttrMask::STATE).unwrap();
    pair.world.set_wire_faults(WireFaults { loss: Probability::ALWAYS, ..WireFaults::default() });
    let read = SendOp::Read { sges: &[here.sge(0, 64)], remote: there.remote(0) };
    pair.a.verbs.post_send(a.qp, &signaled(1, read)).unwrap();
    pair.world.advance(Duration::from_micros(100));
    drain_idle(&mut pair, &a);
    assert_eq!(waiting(&mut pair.a), [Event::Stray(AsyncEvent::SqDrained(a.qpn))]);
    pair.world.set_wire_faults(WireFaults::default());
    assert_eq!(pair.a.completions(a.cq, 1)[0].status, WcStatus::Success);
    pair.world.advance(Duration::from_millis(1));
    assert_eq!(waiting(&mut pair.a), [Event::SqDrained(a.qp)]);
}

// contract: events-drained-late
#[test]
fn a_drain_is_over_for_a_queue_pair_that_has_left_sqd() {
    let mut pair = Pair::new();
    let (a, b) = pair.connected();
    for to in [QpState::Rts, QpState::Err, QpState::Reset] {
        drain_idle(&mut pair, &a);
        pair.a.verbs.modify_qp(a.qp, &to_state(to), QpAttrMask::STATE).unwrap();
        assert_eq!(waiting(&mut pair.a), [Event::Stray(AsyncEvent::SqDrained(a.qpn))], "{to:?}");
        reconnect(&mut pair, &a, &b);
    }
}

// contract: events-drained-late
#[test]
fn the_drain_of_a_number_that_came_again_is_not_the_successor_s() {
    let limits = Limits { log_max_qp: 3, ..Limits::default() };
    let mut pair = Pair::of_devices(DeviceConfig { limits, ..DeviceConfig::with_lid(1) }, DeviceConfig::with_lid(2));
    let (a, b) = pair.connected();
    drain_idle(&mut pair, &a);
    pair.a.verbs.destroy_qp(a.qp).unwrap();
    let init = QpInit { pd: a.pd, qp_type: QpType::Rc, send_cq: a.cq, recv_cq: a.cq, cap: CAP, sq_sig_all: true };
    let qp = loop {
        let qp = pair.a.verbs.create_qp(&init).unwrap();
        if pair.a.verbs.qp_info(qp).unwrap().qpn == a.qpn {
            break qp;
        }
        pair.a.verbs.destroy_qp(qp).unwrap();
    };
    let a = End { qp, ..a };
    pair.b.verbs.modify_qp(b.qp, &to_state(QpState::Reset), QpAttrMask::STATE).unwrap();
    pair.connect(&a, &b, &Connection::default());
    assert_eq!(waiting(&mut pair.a), [Event::Stray(AsyncEvent::SqDrained(a.qpn))]);
    // Its own is.
    drain_idle(&mut pair, &a);
    assert_eq!(waiting(&mut pair.a), [Event::SqDrained(a.qp)]);
    pair.assert_no_findings();
}

// contract: events-qp
#[test]
fn an_error_event_of_a_number_that_came_again() {
    for connected in [false, true] {
        let limits = Limits { log_max_qp: 3, ..Limits::default() };
        let mut pair = Pair::of_devices(DeviceConfig::with_lid(1), DeviceConfig { limits, ..DeviceConfig::with_lid(2) });
        let (a, b) = pair.connected();
        let there = pair.b.region(b.pd, 4096, ALL_ACCESS);
        break_peer(&mut pair, &a, &there);
        pair.b.verbs.destroy_qp(b.qp).unwrap();
        let init =
            bareverbs::QpInit { pd: b.pd, qp_type: QpType::Rc, send_cq: b.cq, recv_cq: b.cq, cap: CAP, sq_sig_all: true };
        let qp = loop {
            let qp = pair.b.verbs.create_qp(&init).unwrap();
            if pair.b.verbs.qp_info(qp).unwrap().qpn == b.qpn {
                break qp;
            }
            pair.b.verbs.destroy_qp(qp).unwrap();
        };
        let b = End { qp, ..b };
        pair.a.verbs.modify_qp(a.qp, &to_state(QpState::Reset), QpAttrMask::STATE).unwrap();
        if connected {
            pair.connect(&a, &b, &Connection::default());
        }
        assert_eq!(waiting(&mut pair.b), [Event::Stray(AsyncEvent::QpAccessError(b.qpn))]);
        let state = if connected { QpState::Rts } else { QpState::Reset };
        assert_eq!(pair.b.verbs.qp_info(b.qp).unwrap().state, state);
        if !connected {
            pair.connect(&a, &b, &Connection::default());
        }
        assert_eq!(write(&mut pair, &a, there.remote(0)), WcStatus::Success);
        pair.assert_no_findings();
    }
}

/// Two causes: a right that the queue pair does not have, and an operation that the device does not do.
// contract: events-qp-request
#[test]
fn an_invalid_request_that_came_in() {
    let without = DeviceConfig { extended_atomics: false, ..DeviceConfig::with_lid(2) };
    for masked in [false, true] {
        let mut pair = Pair::of_devices(DeviceConfig::with_lid(1), without.clone());
        let (a, b) = pair.connected();
        let (here, there) = (pair.a.region(a.pd, 64, ALL_ACCESS), pair.b.region(b.pd, 64, ALL_ACCESS));
        if masked {
            let op = MaskedOp::FetchAdd8 { add: 1, boundary: 0 };
            let (remote, sge) = (there.remote(0), here.sge(0, 8));
            let wr = MaskedWr { wr_id: 1, flags: SendFlags::SIGNALED, op, remote, sge };
            pair.a.verbs.send(a.qp).post_masked(&wr).unwrap();
        } else {
            let rights = QpAttr { access: Access::REMOTE_WRITE, ..to_state(QpState::Rts) };
            pair.b.verbs.modify_qp(b.qp, &rights, QpAttrMask::STATE | QpAttrMask::ACCESS_FLAGS).unwrap();
            let op = SendOp::Read { sges: &[here.sge(0, 8)], remote: there.remote(0) };
            pair.a.verbs.post_send(a.qp, &signaled(1, op)).unwrap();
        }
        assert_eq!(pair.a.completions(a.cq, 1)[0].status, WcStatus::RemInvReqErr);
        pair.world.advance(Duration::from_millis(1));
        assert_eq!(waiting(&mut pair.b), [Event::QpRequestError(b.qp)]);
        assert_eq!(pair.b.verbs.qp_info(b.qp).unwrap().state, QpState::Err);
        assert_eq!(waiting(&mut pair.a), [], "a failed request is a completion there");
    }
}

/// The list of receives leads nowhere behind the first: something else than the driver wrote into the memory of the queue.
// contract: events-srq-broken
#[test]
fn a_shared_receive_queue_whose_list_is_broken() {
    let world = World::new(WorldConfig::default());
    let [host_a, host_b] = [1, 2].map(|lid| world.add(instant(lid)).unwrap());
    let mut a = Node::new(host_a);
    let machine = machine(&host_b);
    let mut memory = machine.memory.clone();
    let driver = Driver::bring_up(machine, &driver_config(&host_b)).map_err(|(error, _)| error).unwrap();
    let rings: &'static [QpRings<1024, 1024>; 1] = Box::leak(Box::default());
    let shared: &'static [SrqEntries<16>; 1] = Box::leak(Box::default());
    let tables = <storage![Driver; pds: 1, mrs: 4, mws: 1, cqs: 1, qps: 1, srqs: 1]>::with_srqs(
        QpRings::views(rings),
        SrqEntries::views(shared),
    );
    let mut b = Node { host: host_b, verbs: KeptVerbs::new(Verbs::new(driver, Box::leak(Box::new(tables)))) };
    let pd = b.verbs.alloc_pd().unwrap();
    let mut srq = b.verbs.create_srq(&SrqInit { pd, cap: SrqCap { max_wr: 7, max_sge: 1 } }).unwrap();
    let cq = b.verbs.create_cq(16).unwrap();
    let init = QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap: CAP, sq_sig_all: true };
    let QueuePair { send: to_peer, recv: _ } = b.verbs.create_qp_with_srq(&init, srq.handle()).unwrap();
    let (from, qpn) = (end(&mut a, true), b.verbs.qp_info(to_peer.qp()).unwrap().qpn);
    let lids = [&mut a, &mut b].map(|node| node.verbs.query_port(1).unwrap().lid);
    to_rts(&mut a, from.qp, &rc_steps(&Connection::default(), lids[1], qpn, 0, 0));
    to_rts(&mut b, to_peer.qp(), &rc_steps(&Connection::default(), lids[0], from.qpn, 0, 0));
    assert_eq!(waiting(&mut b), []);

    let inbox = b.region(pd, 4096, Access::LOCAL_WRITE);
    for wr_id in 0..3 {
        srq.post(&RecvWr { wr_id, sges: &[inbox.sge(1000 + wr_id as usize, 77)] }).unwrap();
    }
    // The entry of the first: a segment with the number of the next entry in its third and fourth byte, then the SGE.
    let (first, lkey) = (inbox.sge(1000, 77), inbox.info.lkey);
    let sge = [&77_u32.to_be_bytes()[..], &lkey.get().to_be_bytes(), &first.addr.to_be_bytes()].concat();
    let mut all = vec![0; memory.len()];
    memory.read(0, &mut all).unwrap();
    let at = all.chunks(16).position(|segment| segment == sge).expect("the entry") * 16;
    memory.write(at - 16 + 2, &[0xff; 2]).unwrap();

    let send = |a: &mut Node, wr_id| {
        a.verbs.post_send(from.qp, &signaled(wr_id, SendOp::Send { payload: Payload::Inline(b"x") })).unwrap();
        a.completions(from.cq, 1)[0].status
    };
    assert_eq!(send(&mut a, 1), WcStatus::Success, "the first is found");
    assert_eq!(waiting(&mut b), []);
    assert_eq!(send(&mut a, 2), WcStatus::RemOpErr);
    world.advance(Duration::from_millis(1));
    assert_eq!(
        waiting(&mut b),
        [Event::SrqError(srq.handle()), Event::QpFatal(to_peer.qp()), Event::LastWqeReached(to_peer.qp())]
    );
    assert_eq!(b.verbs.qp_info(to_peer.qp()).unwrap().state, QpState::Err);
    // The one that had found its receive is not lost.
    let done = b.completions(cq, 1)[0];
    assert_eq!((done.wr_id, done.status), (0, WcStatus::Success));
}

/// A port whose link just came up, without the wait for the subnet manager: the link, the LID, and then it is active.
// contract: events-port-changed
#[test]
fn a_port_gets_its_lid_and_is_active_after_that() {
    let config = DeviceConfig::with_lid(9);
    let without = config.no_lid;
    let host = World::new(WorldConfig::default()).add(config).unwrap();
    let driver = Driver::bring_up(machine(&host), &driver_config(&host)).map_err(|(error, _)| error).unwrap();
    let mut node = Node { host, verbs: verbs(driver) };
    let lid = |node: &mut Node| node.verbs.query_port(1).unwrap().lid.get();
    assert_eq!((waiting(&mut node), lid(&mut node)), (vec![], without));
    let mut came = Vec::new();
    let deadline = node.host.clock().now().after(Duration::from_secs(1));
    while came.len() < 3 && node.host.clock().now() < deadline {
        node.relax();
        let events = waiting(&mut node);
        let lid = lid(&mut node);
        came.extend(events.into_iter().map(|event| (event, lid)));
    }
    assert_eq!(came, [(Event::PortChanged(1), without), (Event::PortChanged(1), 9), (Event::PortActive(1), 9)]);
}

// contract: events-qp
#[test]
fn an_error_event_of_a_queue_pair_that_is_gone() {
    let mut pair = Pair::new();
    let (a, b) = pair.connected();
    let there = pair.b.region(b.pd, 4096, ALL_ACCESS);
    break_peer(&mut pair, &a, &there);
    pair.b.verbs.destroy_qp(b.qp).unwrap();
    assert_eq!(waiting(&mut pair.b), [Event::Stray(AsyncEvent::QpAccessError(b.qpn))]);
}
