//! Waiting for a port.

use core::ops::ControlFlow;
use core::time::Duration;
use std::vec::Vec;

use super::Harness;
use crate::backend::AsyncEvent;
use crate::error::{DeviceLoss, Errno, WaitActiveError};
use crate::platform::Instant;
use crate::{Event, Lid, LinkLayer, PhysState, PortAttr, PortState};

const SECOND: Duration = Duration::from_secs(1);

fn port(state: PortState, phys_state: PhysState, lid: u16) -> PortAttr {
    PortAttr { state, phys_state, lid: Lid::new(lid), ..PortAttr::default() }
}

/// The port changes at these times, in milliseconds.
fn changing(ports: &[(u64, PortAttr)]) -> Harness {
    let harness = Harness::new();
    let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
    harness.device().ports = ports.iter().map(|(millis, attr)| (at(*millis), *attr)).collect();
    harness
}

#[test]
fn a_port_that_is_active_is_returned_at_once() {
    let active = port(PortState::Active, PhysState::LinkUp, 7);
    let mut harness = changing(&[(0, active)]);
    let mut calls = 0;
    let found = harness.verbs.wait_active_with(1, Duration::ZERO, |_, _| {
        calls += 1;
        ControlFlow::Break(())
    });
    assert_eq!((found, calls), (Ok(active), 0));
    let device = harness.device();
    assert_eq!((device.now, device.port_queries), (Instant::default(), 1));
}

#[test]
fn link_and_lid_may_come_late() {
    let active = port(PortState::Active, PhysState::LinkUp, 7);
    let mut harness = changing(&[
        (0, port(PortState::Down, PhysState::Polling, 0)),
        (3000, port(PortState::Down, PhysState::Training, 0)),
        (4000, port(PortState::Init, PhysState::LinkUp, 0)),
        (9000, port(PortState::Active, PhysState::LinkUp, 0)),
        (9500, active),
    ]);
    let mut seen: Vec<(PortState, PhysState, u64)> = Vec::new();
    let mut times: Vec<Duration> = Vec::new();
    let found = harness.verbs.wait_active_with(1, 60 * SECOND, |attr, waited| {
        if seen.last().is_none_or(|(state, phys, _)| (*state, *phys) != (attr.state, attr.phys_state)) {
            seen.push((attr.state, attr.phys_state, waited.as_secs()));
        }
        times.push(waited);
        ControlFlow::Continue(())
    });
    assert_eq!(found, Ok(active));
    let expected = [
        (PortState::Down, PhysState::Polling, 0),
        (PortState::Down, PhysState::Training, 3),
        (PortState::Init, PhysState::LinkUp, 4),
        (PortState::Active, PhysState::LinkUp, 9),
    ];
    assert_eq!(seen, expected);
    assert!(times.is_sorted() && (90..=96).contains(&times.len()), "ten queries a second: {}", times.len());
    let waited = harness.device().now.since(Instant::default());
    assert!(waited >= Duration::from_millis(9500) && waited <= Duration::from_millis(9600), "{waited:?}");
    assert!(harness.device().maintained >= 10 * 95, "the firmware gets its pages in each pause");
}

#[test]
fn a_port_that_does_not_come_is_an_error_that_says_what_is_missing() {
    let (timeout, waited) = (Duration::from_millis(2345), Duration::from_millis(2345));
    let no_link = |phys_state| WaitActiveError::NoLink { port: 1, phys_state, waited };
    let training = |phys_state| WaitActiveError::Training { port: 1, phys_state, waited };
    let disabled = |phys_state| WaitActiveError::Disabled { port: 1, phys_state, waited };
    let function_down = |link_layer| WaitActiveError::FunctionDown { port: 1, link_layer, waited };
    for (state, phys, lid, expected, text) in [
        (PortState::Down, PhysState::Polling, 0, no_link(PhysState::Polling), "check the cable"),
        (PortState::Down, PhysState::Unknown(15), 3, no_link(PhysState::Unknown(15)), "Unknown(15)"),
        (PortState::Down, PhysState::Disabled, 0, disabled(PhysState::Disabled), "check the cable"),
        (PortState::Down, PhysState::LinkUp, 0xffff, function_down(LinkLayer::InfiniBand), "must know virtual ports"),
        (PortState::Down, PhysState::Sleep, 0, disabled(PhysState::Sleep), "(Sleep)"),
        (PortState::Down, PhysState::Training, 0, training(PhysState::Training), "still training"),
        (PortState::Down, PhysState::LinkErrorRecovery, 0, training(PhysState::LinkErrorRecovery), "wait longer"),
        (PortState::Init, PhysState::LinkUp, 0, WaitActiveError::NoSubnetManager { port: 1, waited }, "start one (opensm)"),
        (PortState::Armed, PhysState::LinkUp, 5, WaitActiveError::NotActivated { port: 1, waited }, "(Armed)"),
        (PortState::Active, PhysState::LinkUp, 0, WaitActiveError::NoLid { port: 1, waited }, "without a LID"),
        (PortState::Active, PhysState::LinkUp, 0xffff, WaitActiveError::NoLid { port: 1, waited }, "without a LID"),
    ] {
        let mut harness = changing(&[(0, port(state, phys, lid))]);
        let error = harness.verbs.wait_active(1, timeout).unwrap_err();
        assert_eq!((error, error.errno()), (expected, Errno::Etimedout));
        let message = std::format!("{error}");
        assert!(message.contains(text) && message.contains("port 1") && message.contains("after 2 s"), "{message}");
        assert_eq!(harness.device().now.since(Instant::default()), timeout, "the deadline is kept");
    }
    // An Ethernet port has neither GUIDs nor a subnet manager; in switchdev mode its state follows its representor.
    let ethernet = PortAttr { link_layer: LinkLayer::Ethernet, ..port(PortState::Down, PhysState::LinkUp, 0) };
    let error = changing(&[(0, ethernet)]).verbs.wait_active(1, timeout).unwrap_err();
    assert_eq!(error, function_down(LinkLayer::Ethernet));
    let message = std::format!("{error}");
    assert!(message.contains("representor") && !message.contains("GUID") && !message.contains("subnet"), "{message}");
}

#[test]
fn the_hook_stops_the_wait() {
    let mut harness = changing(&[(0, port(PortState::Init, PhysState::LinkUp, 0))]);
    let mut calls = 0;
    let stopped = harness.verbs.wait_active_with(1, 60 * SECOND, |_, _| {
        calls += 1;
        if calls == 5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let waited = harness.device().now.since(Instant::default());
    let (state, phys_state) = (PortState::Init, PhysState::LinkUp);
    assert_eq!(stopped, Err(WaitActiveError::Stopped { port: 1, state, phys_state, waited }));
    assert_eq!((stopped.unwrap_err().errno(), waited.as_millis()), (Errno::Eintr, 400));
}

#[test]
fn a_hook_that_sleeps_uses_the_pause() {
    let mut harness = changing(&[(0, port(PortState::Init, PhysState::LinkUp, 0))]);
    let shared = harness.verbs.provider().shared();
    let end = harness.verbs.wait_active_with(1, SECOND, |_, _| {
        let mut device = shared.lock().unwrap();
        device.now = device.now.after(Duration::from_millis(100));
        ControlFlow::Continue(())
    });
    assert!(matches!(end, Err(WaitActiveError::NoSubnetManager { .. })));
    let device = harness.device();
    assert_eq!((device.port_queries, device.maintained), (11, 10));
}

#[test]
fn no_event_is_lost_in_the_wait() {
    let mut harness =
        changing(&[(0, port(PortState::Down, PhysState::Polling, 0)), (500, port(PortState::Active, PhysState::LinkUp, 7))]);
    let (qpn, cqn) = (harness.qpn(), harness.cqn());
    let events = [AsyncEvent::CommEstablished(qpn), AsyncEvent::PortActive(1), AsyncEvent::CqError(cqn, 1)];
    harness.device().events.extend(events);
    harness.verbs.wait_active(1, SECOND).unwrap();
    let taken: Vec<_> = core::iter::from_fn(|| harness.verbs.poll_event().unwrap()).collect();
    assert_eq!(taken, [Event::CommEstablished(harness.qp), Event::PortActive(1), Event::CqError(harness.cq, 1)]);
}

#[test]
fn a_device_that_fails_and_a_port_that_is_not_there_end_the_wait() {
    let mut harness = changing(&[(0, port(PortState::Init, PhysState::LinkUp, 0))]);
    for port in [0, 2] {
        let error = harness.verbs.wait_active(port, SECOND).unwrap_err();
        assert_eq!((error, error.errno()), (WaitActiveError::Port { port }, Errno::Einval));
    }
    harness.device().fail_after = Some(3);
    let error = harness.verbs.wait_active(1, SECOND).unwrap_err();
    assert_eq!((error, error.errno()), (WaitActiveError::Device(super::MockError::Refused), Errno::Eio));
    harness.device().loss = Some(DeviceLoss::Fatal);
    assert_eq!(harness.verbs.wait_active(1, SECOND), Err(WaitActiveError::Device(super::MockError::NoAnswer)));
}

#[test]
fn physical_states_have_the_codes_of_infiniband() {
    for code in 0..=15 {
        assert_eq!(PhysState::from_encoding(code).encoding(), code);
    }
    assert_eq!(
        [2, 3, 4, 5].map(PhysState::from_encoding),
        [PhysState::Polling, PhysState::Disabled, PhysState::Training, PhysState::LinkUp]
    );
}
