//! Completions and events that a device spoils, loses, repeats or invents: each is an error value of its own, and what is good
//! before and behind it comes through.

use core::time::Duration;

use bareverbs::error::{Errno, PollCqError, RawKind};
use bareverbs::{Completion, CqInfo, Event, Payload, QpCap, QpInit, QpState, QpType, Qpn, RecvWr, SendOp, WcStatus};
use bareverbs_mlx5_spec::EventType;
use bareverbs_sim::fault::Fault;
use bareverbs_sim::in_process::Host;
use bareverbs_tests::{ALL_ACCESS, CAP, Connection, End, Pair, Region, end, end_in, instant, refused, signaled};

fn arm(host: &Host, fault: Fault) {
    host.with_device(|device| device.faults_mut().arm(fault));
}

/// Returns whether every fault has struck.
fn all_struck(host: &Host) -> bool {
    host.with_device(|device| device.faults_mut().is_empty())
}

/// Two connected queue pairs and what is written to: completions of writes are what goes wrong.
struct Stream {
    pair: Pair,
    a: End,
    b: End,
    there: Region,
    next: u64,
}

impl Stream {
    fn new() -> Self {
        Self::on(Pair::new())
    }

    fn on(mut pair: Pair) -> Self {
        let (a, b) = pair.connected();
        let there = pair.b.region(b.pd, 4096, ALL_ACCESS);
        Self { pair, a, b, there, next: 0 }
    }

    fn cqn(&self) -> u32 {
        self.pair.a.verbs.cq_info(self.a.cq).unwrap().cqn.get()
    }

    fn arm(&mut self, fault: Fault) {
        arm(&self.pair.a.host, fault);
    }

    /// Posts a write and lets the device finish it.
    fn write(&mut self) -> u64 {
        let op = SendOp::Write { payload: Payload::Inline(b"x"), remote: self.there.remote(0) };
        self.pair.a.verbs.post_send(self.a.qp, &signaled(self.next, op)).unwrap();
        self.pair.world.advance(Duration::from_millis(1));
        self.next += 1;
        self.next - 1
    }

    fn poll(&mut self) -> Result<Vec<u64>, PollCqError> {
        let mut some = [Completion::EMPTY; 16];
        let count = self.pair.a.verbs.poll_cq(self.a.cq, &mut some)?;
        assert!(some[..count].iter().all(|done| done.status == WcStatus::Success && done.qp == self.a.qp));
        Ok(some[..count].iter().map(|done| done.wr_id).collect())
    }

    /// Lets a good completion come, one made bad by `fault`, and another good one: the bad one is an error of its own between
    /// them.
    fn between(mut self, fault: impl FnOnce(&Self) -> Fault, expected: impl FnOnce(&Self) -> PollCqError) {
        self.write();
        let fault = fault(&self);
        self.arm(fault);
        self.write();
        assert!(all_struck(&self.pair.a.host));
        self.write();
        assert_eq!(self.poll(), Ok(vec![0]), "first what was good");
        let expected = expected(&self);
        assert_eq!(self.poll(), Err(expected));
        assert_eq!(expected.errno(), Errno::Ebadmsg);
        assert_eq!(self.poll(), Ok(vec![2]), "then what comes behind");
        assert_eq!(self.poll(), Ok(vec![]));
        // The ring has lost nothing: as much fits as ever, and it works on.
        assert_eq!(self.pair.a.verbs.qp_info(self.a.qp).unwrap().send_blocks, 0);
        for n in 3..10 {
            assert_eq!(self.write(), n);
            assert_eq!(self.poll(), Ok(vec![n]));
        }
        self.pair.assert_no_findings();
    }

    fn unknown_request(&self, index: u16) -> PollCqError {
        PollCqError::UnknownRequest { qp: self.a.qp, kind: RawKind::Send, index }
    }
}

#[test]
fn a_completion_that_names_a_request_that_is_not() {
    for counter in [3, 100, 511, 0x8000, 0xffff] {
        Stream::new()
            .between(|stream| Fault::WrongWqeCounter { cqn: stream.cqn(), counter }, |stream| stream.unknown_request(counter));
    }
}

#[test]
fn a_completion_of_a_request_that_is_done() {
    Stream::new()
        .between(|stream| Fault::WrongWqeCounter { cqn: stream.cqn(), counter: 0 }, |stream| stream.unknown_request(0));
}

#[test]
fn a_completion_of_a_queue_pair_that_does_not_exist() {
    for qpn in [0, 1, 0x99, 0xff_ffff] {
        Stream::new().between(
            |stream| Fault::ForeignQpn { cqn: stream.cqn(), qpn },
            |stream| {
                let cqn = stream.pair.a.verbs.cq_info(stream.a.cq).unwrap().cqn;
                PollCqError::UnknownQp { qpn: Qpn::new(qpn), cqn }
            },
        );
    }
}

#[test]
fn a_completion_of_a_queue_pair_of_another_queue() {
    let mut stream = Stream::new();
    let pd = stream.a.pd;
    let other = end_in(&mut stream.pair.a, pd, QpType::Rc, CAP, true);
    stream.between(
        |stream| Fault::ForeignQpn { cqn: stream.cqn(), qpn: other.qpn.get() },
        |stream| {
            let cqn = stream.pair.a.verbs.cq_info(stream.a.cq).unwrap().cqn;
            PollCqError::UnknownQp { qpn: other.qpn, cqn }
        },
    );
}

#[test]
fn completions_with_opcodes_that_no_completion_has() {
    for opcode in [5, 6, 7, 8, 9, 10, 11, 12] {
        Stream::new().between(
            |stream| Fault::CqeOpcode { cqn: stream.cqn(), opcode },
            |stream| PollCqError::BadCompletion { cqn: bareverbs::Cqn::new(stream.cqn()), opcode },
        );
    }
}

#[test]
fn a_send_that_completes_as_a_receive() {
    for (opcode, kind) in
        [(1, RawKind::RecvRdmaWithImm), (2, RawKind::Recv), (3, RawKind::Recv), (4, RawKind::Recv), (14, RawKind::Recv)]
    {
        Stream::new().between(
            |stream| Fault::CqeOpcode { cqn: stream.cqn(), opcode },
            |stream| PollCqError::UnknownRequest { qp: stream.a.qp, kind, index: 1 },
        );
    }
}

// contract: poll-once
#[test]
fn a_repeated_completion() {
    let mut stream = Stream::new();
    stream.write();
    let cqn = stream.cqn();
    stream.arm(Fault::RepeatCqe { cqn });
    stream.write();
    stream.write();
    assert_eq!(stream.poll(), Ok(vec![0, 1]));
    let expected = stream.unknown_request(1);
    assert_eq!(stream.poll(), Err(expected));
    assert_eq!(stream.poll(), Ok(vec![2]));
    assert_eq!(stream.write(), 3);
    assert_eq!(stream.poll(), Ok(vec![3]));
    stream.pair.assert_no_findings();
}

#[test]
fn a_dropped_completion_is_stood_for_by_the_next() {
    let mut stream = Stream::new();
    let cqn = stream.cqn();
    stream.arm(Fault::DropCqe { cqn });
    stream.write();
    assert_eq!(stream.poll(), Ok(vec![]));
    stream.write();
    assert_eq!(stream.poll(), Ok(vec![1]));
    assert_eq!(stream.pair.a.verbs.qp_info(stream.a.qp).unwrap().send_blocks, 0, "both are retired");

    // A receive whose completion is lost does not shift those behind it.
    for wr_id in 10..13 {
        let sges = [stream.there.sge(0, 64)];
        stream.pair.b.verbs.post_recv(stream.b.qp, &RecvWr { wr_id, sges: &sges }).unwrap();
    }
    let cqn = stream.pair.b.verbs.cq_info(stream.b.cq).unwrap().cqn.get();
    arm(&stream.pair.b.host, Fault::DropCqe { cqn });
    for n in 20..23 {
        let send = signaled(n, SendOp::Send { payload: Payload::Inline(b"y") });
        stream.pair.a.verbs.post_send(stream.a.qp, &send).unwrap();
        assert_eq!(stream.pair.a.completions(stream.a.cq, 1)[0].wr_id, n);
    }
    let found: Vec<_> = stream.pair.b.completions(stream.b.cq, 2).iter().map(|done| done.wr_id).collect();
    assert_eq!(found, [11, 12]);
    assert_eq!(stream.pair.b.verbs.qp_info(stream.b.qp).unwrap().recvs, 0);
}

#[test]
fn a_completion_with_the_wrong_owner_is_not_there() {
    let mut stream = Stream::new();
    let cqn = stream.cqn();
    stream.arm(Fault::WrongOwner { cqn });
    stream.write();
    stream.write();
    // It stands in the way of those behind it; nothing is invented, and no wait is endless.
    for _ in 0..3 {
        assert_eq!(stream.poll(), Ok(vec![]));
    }
    // The queue can still be left behind.
    let before = stream.pair.a.snapshot();
    stream.pair.a.verbs.destroy_qp(stream.a.qp).unwrap();
    stream.pair.a.verbs.destroy_cq(stream.a.cq).unwrap();
    let after = stream.pair.a.snapshot();
    assert_eq!(after.device.engine.cqs + 1, before.device.engine.cqs);
    // A new one works.
    let (a, b) = (end_in(&mut stream.pair.a, stream.a.pd, QpType::Rc, CAP, true), end(&mut stream.pair.b, true));
    stream.pair.connect(&a, &b, &Connection::default());
    stream
        .pair
        .a
        .verbs
        .post_send(a.qp, &signaled(5, SendOp::Write { payload: Payload::Inline(b"z"), remote: stream.there.remote(0) }))
        .unwrap();
    assert_eq!(stream.pair.a.completions(a.cq, 1)[0].wr_id, 5);
}

// contract: poll-overrun, events-cq
#[test]
fn an_overrun_queue_is_an_event_and_ends_its_queue_pair() {
    let mut pair = Pair::new();
    let pd = pair.a.verbs.alloc_pd().unwrap();
    let cq = pair.a.verbs.create_cq(4).unwrap();
    let init = QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap: CAP, sq_sig_all: true };
    let qp = pair.a.verbs.create_qp(&init).unwrap();
    let qpn = pair.a.verbs.qp_info(qp).unwrap().qpn;
    let (a, b) = (End { pd, cq, qp, qpn }, end(&mut pair.b, true));
    pair.connect(&a, &b, &Connection::default());
    let there = pair.b.region(b.pd, 4096, ALL_ACCESS);
    for n in 0..6 {
        let op = SendOp::Write { payload: Payload::Inline(b"x"), remote: there.remote(0) };
        pair.a.verbs.post_send(qp, &signaled(n, op)).unwrap();
    }
    pair.world.advance(Duration::from_millis(1));
    let mut events = Vec::new();
    let _ = pair.a.event(|event| {
        events.push(event);
        None::<()>
    });
    assert!(events.contains(&Event::CqError(cq, 1)), "{events:?}");
    assert!(events.contains(&Event::QpFatal(qp)), "{events:?}");
    assert_eq!(pair.a.verbs.qp_info(qp).unwrap().state, QpState::Err);
    // What was written before is still there; then the queue says that it is broken, each time.
    let mut some = [Completion::EMPTY; 16];
    assert_eq!(pair.a.verbs.poll_cq(cq, &mut some), Ok(4));
    assert_eq!(some[..4].iter().map(|done| done.wr_id).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let CqInfo { cqn, entries, .. } = pair.a.verbs.cq_info(cq).unwrap();
    for _ in 0..2 {
        let error = refused!(pair.a.verbs.poll_cq(cq, &mut some), Eio, PollCqError::Broken { .. });
        assert_eq!(error, PollCqError::Broken { cqn, syndrome: 1, entries });
    }
    pair.a.verbs.destroy_qp(qp).unwrap();
    pair.a.verbs.destroy_cq(cq).unwrap();
    pair.assert_no_findings();
}

/// Two queue pairs share a completion queue. One of the requested size overruns, since the rings admit more. Its split poller
/// gets the error once the control path has polled the event. One of the size of the rings does not overrun.
#[test]
fn a_queue_of_two_queue_pairs_has_room_for_what_their_rings_admit() {
    let cap = QpCap { max_send_wr: 16, max_recv_wr: 0, max_send_sge: 1, max_recv_sge: 0, max_inline_data: 16 };
    for by_rings in [false, true] {
        let mut pair = Pair::new();
        let pd = pair.a.verbs.alloc_pd().unwrap();
        let sizes = pair.a.verbs.ring_sizes(QpType::Rc, &cap).unwrap();
        assert!(sizes.send_blocks > 2 * cap.max_send_wr, "{sizes:?}");
        let cq = pair.a.verbs.create_cq(2 * if by_rings { sizes.send_blocks } else { cap.max_send_wr }).unwrap();
        let info = pair.a.verbs.cq_info(cq).unwrap();
        let init = QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap, sq_sig_all: true };
        let mut there = None;
        let qps = [(); 2].map(|()| {
            let qp = pair.a.verbs.create_qp(&init).unwrap();
            let qpn = pair.a.verbs.qp_info(qp).unwrap().qpn;
            let (a, b) = (End { pd, cq, qp, qpn }, end(&mut pair.b, true));
            pair.connect(&a, &b, &Connection::default());
            let region = pair.b.region(b.pd, 4096, ALL_ACCESS);
            let write = signaled(1, SendOp::Write { payload: Payload::Inline(b"x"), remote: region.remote(0) });
            let mut posted = 0;
            while pair.a.verbs.post_send(qp, &write).is_ok() {
                posted += 1;
            }
            assert_eq!(posted, sizes.send_blocks);
            there = Some(region);
            qp
        });
        let mut queue = pair.a.verbs.take_cq(cq);
        let mut handler = pair.a.verbs.take_interrupt_handler().unwrap();
        pair.world.advance(Duration::from_millis(1));
        let good = queue.completions().map_while(Result::ok).filter(|done| done.status == WcStatus::Success).count() as u32;
        assert_eq!(queue.poll(&mut [Completion::EMPTY]), Ok(0), "the event was not taken");
        let vectors = pair.a.host.take_interrupts();
        let asynchronous = vectors.into_iter().filter(|vector| handler.on_interrupt(*vector).asynchronous).count();
        assert!(asynchronous != 0 || by_rings);
        let mut events = Vec::new();
        while let Some(event) = pair.a.verbs.poll_event().unwrap() {
            events.push(event);
        }
        assert_eq!(events.contains(&Event::CqError(cq, 1)), !by_rings, "{events:?}");
        for qp in qps {
            assert_eq!(events.contains(&Event::QpFatal(qp)), !by_rings, "{events:?}");
        }
        let polled = queue.poll(&mut [Completion::EMPTY]);
        if by_rings {
            assert_eq!((good, polled), (2 * sizes.send_blocks, Ok(0)));
        } else {
            assert_eq!(
                (good, polled),
                (info.entries, Err(PollCqError::Broken { cqn: info.cqn, syndrome: 1, entries: info.entries }))
            );
            assert_eq!(
                queue.completions().next(),
                Some(Err(PollCqError::Broken { cqn: info.cqn, syndrome: 1, entries: info.entries }))
            );
        }
        drop(there);
        pair.assert_no_findings();
    }
}

#[test]
fn lost_interrupts_delay_nobody_who_looks() {
    let mut stream = Stream::new();
    for vector in [0, 0, 0, 1, 1] {
        stream.arm(Fault::LostInterrupt { vector });
    }
    let cq = stream.a.cq;
    // Commands end by their owner bit, completions and events are found by looking.
    assert!(stream.pair.a.verbs.query_port(1).is_ok());
    stream.pair.a.verbs.req_notify_cq(cq, false).unwrap();
    stream.write();
    let event = stream.pair.a.event(|event| matches!(event, Event::Completion(_)).then_some(event));
    assert_eq!(event, Some(Event::Completion(cq)));
    stream.pair.a.host.with_device(|device| device.set_link(false));
    let event = stream.pair.a.event(|event| matches!(event, Event::PortDown(_)).then_some(event));
    assert_eq!(event, Some(Event::PortDown(1)));
    // Interrupts go out again afterwards.
    stream.pair.a.host.take_interrupts();
    stream.pair.a.host.with_device(|device| device.set_link(true));
    let event = stream.pair.a.event(|event| matches!(event, Event::PortActive(_)).then_some(event));
    assert_eq!(event, Some(Event::PortActive(1)));
}

#[test]
fn events_of_every_type() {
    // Each change of the cable is one of the port at once.
    let stream_of_instant_ports = || Stream::on(Pair::of_devices(instant(1), instant(2)));
    let mut stream = stream_of_instant_ports();
    let names = |code: u8| EventType::from_code(u32::from(code));
    for event_type in 0..=255 {
        stream.arm(Fault::EventType { event_type });
        // The event that is turned into another is one of the port.
        let up = stream.pair.a.host.with_device(|device| device.link_is_up());
        stream.pair.a.host.with_device(|device| device.set_link(!up));
        let mut events = Vec::new();
        for _ in 0..4 {
            // An error is as good as an event, as long as it ends.
            if let Ok(Some(event)) = stream.pair.a.verbs.poll_event() {
                events.push(event);
            }
            stream.pair.a.relax();
        }
        assert_eq!(events.len(), 1, "type {event_type:#x}: {events:?}");
        if names(event_type).is_none() {
            assert!(matches!(events[0], Event::Unknown(of, _) if of == event_type), "{events:?}");
        }
        if names(event_type) == Some(EventType::InternalError) {
            // The device is lost by it, as it says itself.
            assert!(matches!(events[0], Event::DeviceFatal(..)), "{events:?}");
            assert!(stream.pair.a.verbs.query_port(1).is_err());
            stream = stream_of_instant_ports();
        }
    }
    let lid = stream.pair.a.verbs.query_port(1).unwrap();
    assert_eq!(lid.lid.get(), 1);
    stream.pair.assert_no_findings();
}
