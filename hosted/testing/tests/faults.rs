//! What goes wrong goes wrong where it was asked for, ends, and says what it was.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::time::Duration;

use bareverbs::error::PollCqError;
use bareverbs::{Access, Completion, DmaBuffer, SendWr, WcStatus};
use bareverbs_testing::{
    DeviceConfig, End, Fault, Faults, Network, Node, Probability, Profile, WaitError, WireFaults, connect, nodes, pair,
};

const OPEN: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

/// Writes `count` messages and waits for each. Returns the statuses.
fn write_all(a: &mut Node, b: &mut Node, count: u64) -> Vec<WcStatus> {
    let [mut qa, _qb] = connect(a, b).unwrap();
    let target = b.register(8 * count as usize, OPEN).unwrap();
    let write = |number: u64| {
        qa.qp.send.post(&SendWr::write(target.remote(8 * number), &number.to_le_bytes()).id(number)).unwrap();
        let done = qa.wait().unwrap();
        assert_eq!(done.wr_id, number);
        done.status
    };
    let statuses = (0..count).map(write).collect();
    for number in 0..count {
        let mut bytes = [0; 8];
        target.read(8 * number as usize, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), number);
    }
    statuses
}

#[test]
fn a_seed_is_a_run() {
    let run = |seed| {
        let [mut a, mut b] = pair(Faults::wire(WireFaults::all(100)).seed(seed)).unwrap();
        assert_eq!(write_all(&mut a, &mut b, 100), [WcStatus::Success; 100]);
        assert_eq!((a.findings(), b.findings()), (vec![], vec![]));
        (a.network().world().now(), a.network().world().wire_stats())
    };
    let (first, again, other) = (run(1), run(1), run(2));
    assert!(first.1.lost > 10 && first.1.duplicated > 10 && first.1.reordered + first.1.delayed > 10, "{first:?}");
    assert_eq!(first, again);
    assert_ne!(first, other);
}

#[test]
fn each_fault_has_its_method() {
    let always = Probability::ALWAYS;
    let stats = |faults: Faults| {
        let [mut a, mut b] = pair(faults).unwrap();
        write_all(&mut a, &mut b, 20);
        a.network().world().wire_stats()
    };
    let none = stats(Faults::none());
    assert_eq!((none.lost, none.duplicated, none.reordered, none.delayed), (0, 0, 0, 0));
    assert!(stats(Faults::none().loss(Probability::per_mille(200))).lost > 0);
    assert!(stats(Faults::none().duplication(always)).duplicated > 0);
    assert!(stats(Faults::none().reordering(always)).delayed > 0, "one at a time is passed by none");
    assert!(stats(Faults::none().delay(always, Duration::from_micros(5))).delayed > 0);
    let [mut a, mut b] = pair(Faults::none().latency(Duration::from_micros(100))).unwrap();
    let start = a.network().world().now();
    write_all(&mut a, &mut b, 1);
    assert!(a.network().world().now().since(start) > Duration::from_micros(200), "there and back");
}

/// The cost of a lost frame is counted in polls: it is the same on each machine.
#[test]
fn a_wire_that_loses_frames_costs_few_polls() {
    const MAX_POLLS: u64 = 1_000_000;
    let [mut a, mut b] = pair(Faults::none().loss(Probability::per_mille(200))).unwrap();
    let [mut qa, _qb] = connect(&mut a, &mut b).unwrap();
    let target = b.register(8, OPEN).unwrap();
    let mut polls = 0;
    for number in 0..100_u64 {
        qa.qp.send.post(&SendWr::write(target.remote(0), &number.to_le_bytes()).id(number)).unwrap();
        let mut done = [Completion::EMPTY];
        while qa.cq.poll(&mut done).unwrap() == 0 {
            polls += 1;
            assert!(polls < MAX_POLLS, "{number} of 100 writes");
        }
        assert_eq!(done.map(|done| (done.wr_id, done.status)), [(number, WcStatus::Success)]);
    }
}

/// Posts a write and waits for it.
fn write(end: &mut End, target: bareverbs::Remote) -> WcStatus {
    end.qp.send.post(&SendWr::write(target, b"x")).unwrap();
    end.wait().unwrap().status
}

#[test]
fn a_partition_is_between_two_hosts_and_ends() {
    let [mut a, mut b, mut c] = nodes(Faults::none()).unwrap();
    let [mut ab, mut ba] = connect(&mut a, &mut b).unwrap();
    let [mut ac, mut ca] = connect(&mut a, &mut c).unwrap();
    let [mut bc, _cb] = connect(&mut b, &mut c).unwrap();
    let [at_a, at_b, at_c] = [&mut a, &mut b, &mut c].map(|node| node.register(64, OPEN).unwrap().remote(0));
    a.network().cut(&a, &b);
    assert_eq!([write(&mut ab, at_b), write(&mut ba, at_a)], [WcStatus::RetryExcErr; 2]);
    assert_eq!([write(&mut ac, at_c), write(&mut ca, at_a), write(&mut bc, at_c)], [WcStatus::Success; 3]);
    a.network().heal(&a, &b);
    let [mut ab, mut ba] = connect(&mut a, &mut b).unwrap();
    assert_eq!([write(&mut ab, at_b), write(&mut ba, at_a)], [WcStatus::Success; 2]);

    // One direction alone: the bytes arrive, and no acknowledgment comes back.
    let target = b.register(64, OPEN).unwrap();
    a.network().world().set_cut(&b.host, &a.host, true);
    assert_eq!(write(&mut ab, target.remote(0)), WcStatus::RetryExcErr);
    let mut byte = [0];
    target.read(0, &mut byte).unwrap();
    assert_eq!(&byte, b"x");
}

/// Each command and each doorbell of this scenario is a write to the device.
#[test]
fn a_device_that_dies_at_any_write_ends_the_program_with_an_error() {
    let scenario = |writes| -> Result<WcStatus, Box<dyn std::error::Error>> {
        let [mut a, mut b] = pair(Faults::none())?;
        a.remove_after(writes);
        let target = b.register(64, OPEN)?;
        let [mut qa, _qb] = connect(&mut a, &mut b)?;
        qa.qp.send.post(&SendWr::write(target.remote(0), b"x"))?;
        let status = qa.wait();
        // What finds that a device is gone.
        a.verbs.maintain()?;
        Ok(status?.status)
    };
    let ends: Vec<_> = (0..40).map(scenario).collect();
    let lived = ends.iter().position(Result::is_ok).unwrap();
    assert!((5..30).contains(&lived), "{lived}");
    assert!(ends.iter().skip(lived).all(|end| matches!(end, Ok(WcStatus::Success))), "{ends:?}");
}

#[test]
fn a_lie_is_an_error_of_the_wait() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let [mut qa, _qb] = connect(&mut a, &mut b).unwrap();
    let target = b.register(64, OPEN).unwrap();
    let cqn = a.verbs.cq_info(qa.cq.handle()).unwrap().cqn.get();
    a.arm(Fault::ForeignQpn { cqn, qpn: 0xabcdef });
    qa.qp.send.post(&SendWr::write(target.remote(0), b"x")).unwrap();
    let error = qa.wait().unwrap_err();
    assert!(matches!(error, WaitError::Poll(PollCqError::UnknownQp { .. })), "{error:?}");
}

#[test]
fn a_wait_that_is_over_has_the_facts() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let [mut qa, _qb] = connect(&mut a, &mut b).unwrap();
    let target = b.register(64, OPEN).unwrap();
    let cqn = a.verbs.cq_info(qa.cq.handle()).unwrap().cqn.get();
    a.arm(Fault::DropCqe { cqn });
    a.arm(Fault::LostInterrupt { vector: 31 });
    qa.qp.send.post(&SendWr::write(target.remote(0), b"x")).unwrap();
    let waiter = a.waiter().timeout(Duration::from_secs(2));
    let WaitError::Overdue(facts) = waiter.wait(&mut qa.cq).unwrap_err() else { panic!("the completion was dropped") };
    assert!(facts.waited >= Duration::from_secs(2) && facts.waited < Duration::from_secs(3), "{facts:?}");
    assert_eq!((facts.wire.sent, facts.wire.delivered, facts.wire.lost), (2, 2, 0), "the write and its acknowledgment");
    assert!(facts.link_is_up && facts.fault_is_armed && facts.findings.is_empty(), "{facts:?}");
    a.set_link(false);
    let WaitError::Overdue(facts) = waiter.wait(&mut qa.cq).unwrap_err() else { panic!("nothing was posted") };
    let text = facts.to_string();
    assert!(text.contains("2 frames, delivered 2 and lost 0") && text.contains("link down; a fault is armed"), "{text}");
}

#[test]
fn devices_of_every_profile_talk_to_each_other() {
    use Profile::{ConnectX4Lx, ConnectX5, ConnectX6, ConnectX6Vf, ConnectX7, Instant, Simulated};
    let network = Network::new(Faults::none());
    let mut hub = network.add(DeviceConfig::with_lid(100)).unwrap();
    for (lid, profile) in (1..).zip([ConnectX4Lx, ConnectX5, ConnectX6, ConnectX6Vf, ConnectX7, Instant, Simulated]) {
        let mut node = network.add(DeviceConfig::profile(profile, lid)).unwrap();
        assert_eq!(write_all(&mut hub, &mut node, 3), [WcStatus::Success; 3]);
        assert_eq!(node.findings(), []);
    }
    let taken = network.add(DeviceConfig::with_lid(3)).unwrap_err();
    assert_eq!(taken.to_string(), "LID 0x3: another device has it");
}
