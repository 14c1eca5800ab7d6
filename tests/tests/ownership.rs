//! Values that are dropped, and handles of another `Verbs`: nothing wedges a device, and nothing names what is another's.
#![forbid(unsafe_code)]

use bareverbs::error::{CreateQpError, DeallocPdError, DeregMrError, TakeError};
use bareverbs::platform::{Clock, DmaMemory as _, Instant};
use bareverbs::storage::QpRings;
use bareverbs::{DmaBuffer as _, Event, Payload, QpInit, QpType, SendOp, Verbs, WcStatus, storage};
use bareverbs_sim::in_process::{Host, World, WorldConfig};
use bareverbs_sim::{DeviceConfig, Limits};
use bareverbs_tests::{
    ALL_ACCESS, CAP, Connection, Driver, End, Pair, driver_config, end, instant, machine, refused, signaled, verbs,
};

fn host(lid: u16) -> Host {
    World::new(WorldConfig::default()).add(instant(lid)).unwrap()
}

fn bring_up(host: &Host) -> Driver {
    Driver::bring_up(machine(host), &driver_config(host)).map_err(|(error, _)| error).unwrap()
}

#[test]
fn an_interrupt_handler_that_is_dropped_keeps_neither_completion_queues_nor_the_driver() {
    let mut verbs = verbs(bring_up(&host(1)));
    let cq = verbs.create_cq(4).unwrap();
    let handler = verbs.take_interrupt_handler().unwrap();
    assert_eq!(verbs.take_interrupt_handler().err(), Some(TakeError::Taken));
    drop(handler);
    verbs.destroy_cq(cq).unwrap();
    assert!(verbs.into_provider().is_ok());
}

/// Makes verbs on a driver that stays where it is, and drops them with an object.
fn lend(driver: &mut Driver) {
    let rings = [const { QpRings::<512, 128>::new() }; 2];
    let mut tables = <storage![&mut Driver; pds: 2, mrs: 4, mws: 2, cqs: 2, qps: 2]>::new(QpRings::views(&rings));
    let mut verbs = Verbs::new(driver, &mut tables);
    let cq = verbs.create_cq(4).unwrap();
    assert!(verbs.destroy_cq(cq).is_ok());
}

#[test]
fn a_driver_is_lent_to_verbs_again() {
    let mut driver = bring_up(&host(1));
    lend(&mut driver);
    lend(&mut driver);
    assert!(driver.teardown().is_ok());
}

#[test]
fn handles_of_a_device_with_the_same_guid_name_nothing() {
    let config = |lid| DeviceConfig { node_guid: 0, ..instant(lid) };
    let mut pair = Pair::of_devices(config(1), config(2));
    let (a, b) = pair.connected();
    let (near, far) = (pair.a.buffer(4096).bytes(), pair.b.buffer(4096).bytes());
    let theirs = pair.b.verbs.reg_mr(b.pd, far, ALL_ACCESS).map_err(|refused| refused.error).unwrap();
    let ours = pair.a.verbs.reg_mr(a.pd, near, ALL_ACCESS).map_err(|refused| refused.error).unwrap();
    refused!(pair.a.verbs.dereg_mr_raw(theirs.handle()), Einval, DeregMrError::Stale);
    // The key still opens the region.
    let op = SendOp::Write { payload: Payload::Inline(b"x"), remote: ours.remote(0) };
    pair.b.verbs.post_send(b.qp, &signaled(1, op)).unwrap();
    assert_eq!(pair.b.completions(b.cq, 1)[0].status, WcStatus::Success);
    assert!(pair.a.verbs.dereg_mr(ours).is_ok() && pair.b.verbs.dereg_mr(theirs).is_ok());
}

#[test]
fn handles_of_verbs_that_are_gone_name_nothing() {
    let mut first = verbs(bring_up(&host(1)));
    let old = first.alloc_pd().unwrap();
    let Ok(driver) = first.into_provider() else { panic!("nothing is out") };
    let mut second = verbs(driver);
    let new = second.alloc_pd().unwrap();
    assert_ne!(old, new);
    refused!(second.dealloc_pd(old), Einval, DeallocPdError::Stale);
    second.dealloc_pd(new).unwrap();
}

#[test]
fn a_queue_pair_does_not_complete_into_a_queue_that_nobody_has() {
    let mut verbs = verbs(bring_up(&host(1)));
    let pd = verbs.alloc_pd().unwrap();
    let [kept, dropped] = [(); 2].map(|()| verbs.create_cq(4).unwrap());
    drop(verbs.take_cq(dropped));
    let init = |send_cq, recv_cq| QpInit { pd, qp_type: QpType::Rc, send_cq, recv_cq, cap: CAP, sq_sig_all: true };
    for (send_cq, recv_cq) in [(kept, dropped), (dropped, kept)] {
        refused!(verbs.create_qp(&init(send_cq, recv_cq)), Einval, CreateQpError::StaleCq);
    }
    verbs.destroy_cq(dropped).unwrap();
}

/// It has none of its device's addresses.
#[test]
fn a_buffer_of_another_device_opens_no_memory_of_this_one() {
    let mut pair = Pair::new();
    let (a, b) = pair.connected();
    let (foreign, victim) = (pair.b.host.memory(4096).whole(), pair.a.host.memory(4096).whole());
    let region = pair.a.verbs.reg_mr(a.pd, foreign, ALL_ACCESS).map_err(|refused| refused.error).unwrap();
    let op = SendOp::Write { payload: Payload::Inline(b"overwritten"), remote: region.remote(0) };
    pair.b.verbs.post_send(b.qp, &signaled(1, op)).unwrap();
    assert_ne!(pair.b.completions(b.cq, 1)[0].status, WcStatus::Success);
    let mut bytes = [0; 11];
    victim.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 11]);
}

/// Nor does one of a device in another world.
#[test]
fn a_buffer_of_another_world_opens_no_memory_of_this_one() {
    let (mut pair, other) = (Pair::new(), Pair::new());
    let (a, b) = pair.connected();
    let victim = pair.a.host.memory(4096);
    let elsewhere = core::iter::repeat_with(|| other.a.host.memory(4096));
    let foreign = elsewhere.take(1000).find(|memory| memory.device_addr() >= victim.device_addr()).unwrap();
    let region = pair.a.verbs.reg_mr(a.pd, foreign.whole(), ALL_ACCESS).map_err(|refused| refused.error).unwrap();
    let op = SendOp::Write { payload: Payload::Inline(b"overwritten"), remote: region.remote(0) };
    pair.b.verbs.post_send(b.qp, &signaled(1, op)).unwrap();
    let status = pair.b.completions(b.cq, 1)[0].status;
    let mut bytes = [0; 11];
    victim.whole().read(0, &mut bytes).unwrap();
    assert_eq!((bytes, status == WcStatus::Success), ([0; 11], false));
}

/// An event about a completion queue that is gone is not the next one's with its number.
#[test]
fn a_late_event_of_an_overrun_queue_breaks_no_other() {
    let limits = Limits { log_max_cq: 3, ..Limits::default() };
    let mut pair = Pair::of_devices(DeviceConfig { limits, ..instant(1) }, instant(2));
    let pd = pair.a.verbs.alloc_pd().unwrap();
    let cq = pair.a.verbs.create_cq(1).unwrap();
    let cqn = pair.a.verbs.cq_info(cq).unwrap().cqn;
    let init = QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap: CAP, sq_sig_all: true };
    let qp = pair.a.verbs.create_qp(&init).unwrap();
    let near = End { pd, cq, qp, qpn: pair.a.verbs.qp_info(qp).unwrap().qpn };
    let far = end(&mut pair.b, true);
    pair.connect(&near, &far, &Connection::default());
    let there = pair.b.region(far.pd, 64, ALL_ACCESS);
    for wr_id in 0..8 {
        let op = SendOp::Write { payload: Payload::Inline(b"x"), remote: there.remote(0) };
        pair.a.verbs.post_send(qp, &signaled(wr_id, op)).unwrap();
    }
    for _ in 0..50 {
        pair.a.host.clock().relax(Instant::default());
    }
    // Nobody has taken the event of the overrun.
    pair.a.verbs.destroy_qp(qp).unwrap();
    pair.a.verbs.destroy_cq(cq).unwrap();
    let new = loop {
        let new = pair.a.verbs.create_cq(64).unwrap();
        if pair.a.verbs.cq_info(new).unwrap().cqn == cqn {
            break new;
        }
        pair.a.verbs.destroy_cq(new).unwrap();
    };
    let events: Vec<Event> = core::iter::from_fn(|| pair.a.verbs.poll_event().unwrap()).collect();
    assert!(
        events.iter().any(|event| matches!(event, Event::Stray(bareverbs::backend::AsyncEvent::CqError(..)))),
        "{events:?}"
    );
    assert_eq!(pair.a.verbs.queue(new).completions().next(), None);
    // And it works.
    let qp = pair.a.verbs.create_qp(&QpInit { send_cq: new, recv_cq: new, ..init }).unwrap();
    let near = End { pd, cq: new, qp, qpn: pair.a.verbs.qp_info(qp).unwrap().qpn };
    let far = end(&mut pair.b, true);
    pair.connect(&near, &far, &Connection::default());
    let there = pair.b.region(far.pd, 64, ALL_ACCESS);
    let op = SendOp::Write { payload: Payload::Inline(b"y"), remote: there.remote(0) };
    pair.a.verbs.post_send(qp, &signaled(9, op)).unwrap();
    assert_eq!(pair.a.completions(new, 1)[0].status, WcStatus::Success);
}

/// A batch remembers the region of its last SGE. One that is deregistered meanwhile is not read by what is posted then: the device has
/// no such key any more.
#[test]
fn what_an_open_batch_posts_of_a_region_that_is_gone_moves_no_byte() {
    let mut pair = Pair::new();
    let (a, b) = pair.connected();
    let (near, far) = (pair.a.buffer(4096).bytes(), pair.b.buffer(4096).bytes());
    let mut source = pair.a.verbs.reg_mr(a.pd, near, ALL_ACCESS).map_err(|refused| refused.error).unwrap();
    let target = pair.b.verbs.reg_mr(b.pd, far, ALL_ACCESS).map_err(|refused| refused.error).unwrap();
    source.write(0, b"secret").unwrap();
    let (sges, remote) = ([source.sge(0, 6)], target.remote(0));
    let write = signaled(1, SendOp::Write { payload: Payload::Sges(&sges), remote });
    let mut send = pair.a.verbs.take_send(a.qp);
    let mut batch = send.batch();
    batch.post(&write).unwrap();
    assert!(pair.a.verbs.dereg_mr(source).is_ok());
    batch.post(&write).unwrap();
    drop(batch);
    pair.a.verbs.keep_send(send);
    let done = pair.a.completions(a.cq, 2);
    assert_eq!([done[0].status, done[1].status], [WcStatus::LocProtErr, WcStatus::WrFlushErr]);
    let mut bytes = [0; 6];
    target.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 6]);
}

/// A peer reaches no queue of the driver: neither before nor after its rings are there is its memory a buffer that can be registered.
#[test]
fn memory_with_rings_is_no_buffer_and_a_buffer_has_no_rings() {
    let of_card = host(1);
    let parts = machine(&of_card);
    let memory = parts.memory.clone();
    let driver = Driver::bring_up(parts, &driver_config(&of_card)).map_err(|(error, _)| error).unwrap();
    let mut kept = verbs(driver);
    let pd = kept.alloc_pd().unwrap();
    kept.create_cq(16).unwrap();
    assert!(memory.buffer(0, 64, 0).is_none());
    assert_eq!(memory.whole().len(), 0);
    assert!(kept.reg_mr(pd, memory.whole(), ALL_ACCESS).is_err());

    let of_card = host(2);
    let parts = machine(&of_card);
    let lent = parts.memory.whole();
    let driver = Driver::bring_up(parts, &driver_config(&of_card)).map_err(|(error, _)| error);
    assert!(driver.is_err() || verbs(driver.unwrap()).create_cq(16).is_err(), "a queue in {lent:?}");
}
