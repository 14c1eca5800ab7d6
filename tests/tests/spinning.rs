//! Programs that spin on a completion queue or on memory and never ask a clock: on simulated devices the loop ends as on
//! hardware.

use std::time::Duration;

use bareverbs::platform::Instant;
use bareverbs::{Access, Completion, DmaBuffer as _, Payload, SendFlags, SendOp, SendWr, WcStatus};
use bareverbs_sim::in_process::WorldConfig;
use bareverbs_sim::wire::{Probability, WireFaults};
use bareverbs_tests::{Connection, End, Node, Pair, Region, end, pattern};

const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);
/// Polls in which one message arrives over a wire that loses nothing.
const MAX_POLLS: u64 = 2_000;

fn post_write(node: &mut Node, end: &End, number: u64, bytes: &[u8], target: &Region) {
    let op = SendOp::Write { payload: Payload::Inline(bytes), remote: target.remote(0) };
    node.verbs.post_send(end.qp, &SendWr { wr_id: number, flags: SendFlags::empty(), op }).unwrap();
}

/// Polls and does nothing else until there is a completion. How often it polled.
fn spin(node: &mut Node, end: &End, number: u64, limit: u64) -> u64 {
    let mut done = [Completion::EMPTY];
    for polls in 1..=limit {
        if node.verbs.poll_cq(end.cq, &mut done).unwrap() != 0 {
            assert_eq!((done[0].wr_id, done[0].status), (number, WcStatus::Success));
            return polls;
        }
    }
    panic!("no completion of {number} in {limit} polls");
}

/// Writes `messages` one after the other to the peer over a wire with `faults`. How many polls that took, and until when.
fn write_and_spin(messages: u64, faults: WireFaults, limit: u64) -> (u64, Instant) {
    let mut pair = Pair::in_world(WorldConfig { faults, ..WorldConfig::default() });
    let (a, b) = (end(&mut pair.a, true), end(&mut pair.b, true));
    // 67 ms until a request is sent again, which most programs ask for.
    pair.connect(&a, &b, &Connection { timeout: 14, ..Connection::default() });
    let target = pair.b.region(b.pd, 64, ACCESS);
    let mut polls = 0;
    for number in 0..messages {
        let bytes = pattern(number, 64);
        post_write(&mut pair.a, &a, number, &bytes, &target);
        polls += spin(&mut pair.a, &a, number, limit);
        assert_eq!(target.buffer.read(0, 64), bytes);
    }
    (polls, pair.world.now())
}

#[test]
fn a_loop_that_only_polls_ends() {
    let first = write_and_spin(10, WireFaults::NONE, MAX_POLLS);
    assert_eq!(write_and_spin(10, WireFaults::NONE, MAX_POLLS), first, "the same program, polls and time");
}

#[test]
fn a_loop_that_only_polls_ends_on_a_wire_that_loses_frames() {
    let faults = WireFaults { loss: Probability::per_mille(200), ..WireFaults::NONE };
    let (polls, _) = write_and_spin(100, faults, 100 * MAX_POLLS);
    assert!(polls < 1_000_000, "{polls} polls");
}

#[test]
fn a_receiver_that_spins_on_its_memory_sees_the_write() {
    let mut pair = Pair::new();
    let (a, b) = pair.connected();
    let target = pair.b.buffer(64);
    let region = pair.b.verbs.reg_mr(b.pd, target.bytes(), ACCESS).unwrap();
    let op = SendOp::Write { payload: Payload::Inline(&[7]), remote: region.remote(5) };
    pair.a.verbs.post_send(a.qp, &SendWr { wr_id: 0, flags: SendFlags::empty(), op }).unwrap();
    let mut byte = [0];
    let reads = (0..MAX_POLLS).take_while(|_| {
        region.read(5, &mut byte).unwrap();
        byte == [0]
    });
    assert!(reads.count() < MAX_POLLS as usize, "no byte");
    assert_eq!(byte, [7]);
}

#[test]
fn polls_move_no_time_while_no_event_is_due() {
    let mut pair = Pair::new();
    let (a, _) = pair.connected();
    let start = pair.world.now();
    for _ in 0..100_000 {
        assert_eq!(pair.a.verbs.poll_cq(a.cq, &mut [Completion::EMPTY]), Ok(0));
    }
    assert_eq!(pair.world.now(), start);
}

/// Other threads may wait for something else, which the time would pass for them.
#[test]
fn polls_move_time_by_the_longest_step_at_most() {
    let max_step = Duration::from_micros(1);
    let mut pair = Pair::in_world(WorldConfig { max_step, latency: Duration::from_micros(100), ..WorldConfig::default() });
    let (a, b) = pair.connected();
    let target = pair.b.region(b.pd, 64, ACCESS);
    post_write(&mut pair.a, &a, 0, &[1], &target);
    let (mut done, mut steps, mut now) = ([Completion::EMPTY], 0, pair.world.now());
    while pair.a.verbs.poll_cq(a.cq, &mut done).unwrap() == 0 {
        let before = std::mem::replace(&mut now, pair.world.now());
        let step = now.since(before);
        assert!(step <= max_step, "{step:?} in one poll");
        steps += u32::from(!step.is_zero());
        assert!(steps < 1_000, "no completion");
    }
    assert!(steps >= 200, "{steps} steps for two times 100 microseconds");
}
