//! Completion events held back by moderation, and events of shared receive queues.

use std::time::Duration;

use bareverbs::platform::Instant;
use bareverbs_mlx5_spec::{Cqc, EventType, View, ViewMut};

use super::super::PageSource;
use super::super::{EngineEvent, SrqKind, SrqSpec};
use super::harness::*;

/// MODIFY_CQ with period (1), count (2) and mode (16) selected.
fn moderate(host: &mut Host, cqn: u32, micros: u32, entries: u32, from_entry: bool) {
    let mut cqc = [0; 64];
    ViewMut::<Cqc>::of(&mut cqc)
        .set(Cqc::CQ_PERIOD, micros)
        .set(Cqc::CQ_MAX_COUNT, entries)
        .set(Cqc::CQ_PERIOD_MODE, from_entry.into());
    host.engine.moderate_cq(cqn, 1 | 1 << 1 | 1 << 4, View::of(&cqc)).unwrap();
}

/// Lets a queue pair without a peer complete a request that does nothing.
fn complete(host: &mut Host, qp: &mut TestQp) {
    host.post_send(qp, 0, SIGNALED, 0, &[]);
    host.with(|engine, ctx| engine.advance(ctx));
}

fn alone(micros: u32, entries: u32, from_entry: bool) -> (Host, TestQp) {
    let mut host = Host::new(1);
    let qp = host.qp(2, 6, 6);
    host.connect(qp.qpn, 2, 9, Link::default());
    moderate(&mut host, qp.send.cqn, micros, entries, from_entry);
    host.arm(&qp.send, false);
    (host, qp)
}

fn at(micros: u64) -> Instant {
    Instant::default().after(Duration::from_micros(micros))
}

/// Returns the events when nothing but time passes until `micros`.
fn wait(host: &mut Host, micros: u64) -> usize {
    host.now = at(micros);
    host.with(|engine, ctx| engine.advance(ctx));
    host.events().len()
}

#[test]
fn an_event_waits_for_the_count_of_entries() {
    let (mut host, mut qp) = alone(100, 3, true);
    for wanted in [0, 0, 1, 0] {
        complete(&mut host, &mut qp);
        assert_eq!(host.events().len(), wanted);
    }
    // The fourth entry came after the event and before the next arming: that causes an event at once.
    host.arm(&qp.send, false);
    assert_eq!(host.events().len(), 1);
}

#[test]
fn an_event_waits_no_longer_than_its_time() {
    let (mut host, mut qp) = alone(100, 3, true);
    complete(&mut host, &mut qp);
    assert_eq!(host.engine.next_due(), Some(at(100)));
    host.now = at(60);
    complete(&mut host, &mut qp);
    // Time counts from the newest entry.
    assert_eq!(host.engine.next_due(), Some(at(160)));
    assert_eq!(wait(&mut host, 159), 0);
    assert_eq!(wait(&mut host, 160), 1);
    assert_eq!((wait(&mut host, 1000), host.engine.next_due()), (0, None));
}

#[test]
fn time_may_count_from_the_newest_event() {
    let (mut host, mut qp) = alone(100, 50, false);
    complete(&mut host, &mut qp);
    assert_eq!(wait(&mut host, 100), 1);
    while host.poll(&mut qp.send).is_some() {}
    host.arm(&qp.send, false);
    host.now = at(130);
    complete(&mut host, &mut qp);
    host.now = at(150);
    complete(&mut host, &mut qp);
    assert_eq!(host.engine.next_due(), Some(at(200)));
    assert_eq!((wait(&mut host, 199), wait(&mut host, 200)), (0, 1));
    // The time is over already: nothing to wait for.
    while host.poll(&mut qp.send).is_some() {}
    host.arm(&qp.send, false);
    host.now = at(900);
    complete(&mut host, &mut qp);
    assert_eq!(host.events().len(), 1);
}

#[test]
fn what_waits_ends_with_its_queue_and_with_its_moderation() {
    let (mut host, mut qp) = alone(100, 3, true);
    complete(&mut host, &mut qp);
    let cqn = qp.send.cqn;
    moderate(&mut host, cqn, 0, 0, true);
    assert_eq!(wait(&mut host, 0), 1);

    let (mut host, mut qp) = alone(100, 3, true);
    complete(&mut host, &mut qp);
    host.engine.destroy_qp(qp.qpn).unwrap();
    host.engine.destroy_cq(qp.send.cqn).unwrap();
    assert_eq!((host.engine.next_due(), wait(&mut host, 1000)), (None, 0));
}

#[test]
fn a_limit_above_what_is_posted_causes_one_event_at_once() {
    let mut host = Host::new(1);
    let (ring, dbr_addr) = (host.alloc(4096), host.alloc(8));
    let spec = SrqSpec {
        kind: SrqKind::Pool,
        log_size: 4,
        log_stride: 6,
        log_page_size: 0,
        page_offset: 0,
        dbr_addr,
        pd: PD,
        xrcd: 0,
        cqn: 0,
        user_index: 0,
        limit: 0,
    };
    let srqn = host.engine.create_srq(spec, PageSource::Listed(&ring.to_be_bytes()), None).unwrap();
    host.write(dbr_addr, &5_u32.to_be_bytes());
    let reported = [EngineEvent::Srq { event: EventType::SrqRqLimit, srqn }];
    for (limit, events, kept) in [(5, &reported[..0], 5), (6, &reported[..], 0), (0, &reported[..0], 0)] {
        host.with(|engine, ctx| engine.arm_srq(ctx, srqn, SrqKind::Pool, limit)).unwrap();
        assert_eq!(host.events(), events, "five posted, limit {limit}");
        let (spec, _) = host.with(|engine, ctx| engine.query_srq(ctx, srqn, SrqKind::Pool)).unwrap();
        assert_eq!(spec.limit, kept);
    }
}
