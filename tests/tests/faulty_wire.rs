//! A wire that loses, duplicates, reorders and delays: every message arrives once, in order, intact.

use bareverbs::platform::Instant;
use bareverbs::{Access, Mtu, Payload, RecvWr, SendFlags, SendOp, SendWr, WcOpcode, WcStatus};
use bareverbs_sim::in_process::WorldConfig;
use bareverbs_sim::wire::{Probability, WireFaults, WireStats};
use bareverbs_tests::{Connection, Pair, end, pattern, signaled};

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// Returns message `n`: from none to several packets.
fn message(n: u64) -> Vec<u8> {
    let mut bytes = pattern(n, (n * 37 % 3000) as usize);
    for (to, from) in bytes.iter_mut().zip(n.to_le_bytes()) {
        *to = from;
    }
    bytes
}

/// Sends `messages` over a wire with `faults` and checks each where it arrives. When it ended, and what the wire did.
fn stream(messages: u64, faults: WireFaults, seed: u64) -> (Instant, WireStats) {
    const SLOT: usize = 4096;
    const DEPTH: u64 = 32;
    let mut pair = Pair::in_world(WorldConfig { faults, seed, ..WorldConfig::default() });
    let (a, b) = (end(&mut pair.a, true), end(&mut pair.b, true));
    // PSNs go through their 24-bit wrap on the way.
    let connection = Connection {
        mtu: Mtu::Mtu256,
        psn: (bareverbs::Psn::new(0xff_f000), bareverbs::Psn::new(0xff_fff0)),
        timeout: 6,
        ..Connection::default()
    };
    pair.connect(&a, &b, &connection);
    let mut from = pair.a.region(a.pd, SLOT * DEPTH as usize, ALL);
    let to = pair.b.region(b.pd, SLOT * DEPTH as usize, ALL);
    let slot = |n: u64| (n % DEPTH) as usize * SLOT;
    let recv = |pair: &mut Pair, n: u64| {
        pair.b.verbs.post_recv(b.qp, &RecvWr { wr_id: n, sges: &[to.sge(slot(n), SLOT)] }).unwrap();
    };
    for n in 0..DEPTH {
        recv(&mut pair, n);
    }
    let (mut posted, mut sent, mut received) = (0, 0, 0);
    let mut idle = 0;
    while sent < messages || received < messages {
        while posted < messages && posted < sent + DEPTH && posted < received + DEPTH {
            let bytes = message(posted);
            from.buffer.write(slot(posted), &bytes);
            let op = SendOp::Send { payload: Payload::Sges(&[from.sge(slot(posted), bytes.len())]) };
            pair.a.verbs.post_send(a.qp, &SendWr { wr_id: posted, flags: SendFlags::empty(), op }).unwrap();
            posted += 1;
        }
        let before = (sent, received);
        for done in pair.b.poll(b.cq) {
            assert_eq!((done.wr_id, done.status), (received, WcStatus::Success), "in order, once");
            let bytes = message(received);
            assert_eq!(done.byte_len as usize, bytes.len());
            assert!(to.buffer.read(slot(received), bytes.len()) == bytes, "message {received} is not what was sent");
            if received + DEPTH < messages {
                recv(&mut pair, received + DEPTH);
            }
            received += 1;
        }
        for done in pair.a.poll(a.cq) {
            assert_eq!((done.wr_id, done.status), (sent, WcStatus::Success));
            sent += 1;
        }
        idle = if before == (sent, received) { idle + 1 } else { 0 };
        assert!(idle < 1_000_000, "stuck at {sent} sent, {received} received of {messages}: {:?}", pair.world.wire_stats());
        pair.a.relax();
    }
    let stats = pair.world.wire_stats();
    println!("{messages} messages, {faults:?}: {stats:?}");
    let struck = |asked: Probability, count: u64| asked == Probability::NEVER || count > 0;
    assert!(struck(faults.loss, stats.lost) && struck(faults.duplication, stats.duplicated), "{stats:?}");
    assert!(struck(faults.reordering, stats.reordered) && struck(faults.delay, stats.delayed), "{stats:?}");
    pair.assert_no_findings();
    (pair.world.now(), stats)
}

#[test]
fn the_same_seed_gives_the_same_run_to_the_nanosecond() {
    let run = |seed| stream(500, WireFaults::all(50), seed);
    let first = run(9);
    assert_eq!(first, run(9));
    assert_ne!(first, run(10));
}

// contract: poll-once, recv-order
#[test]
fn ten_thousand_messages_with_one_per_cent_of_each_fault() {
    stream(10_000, WireFaults::all(10), 1);
}

#[test]
fn each_fault_alone_and_often() {
    let none = WireFaults { delay_time: core::time::Duration::from_micros(30), ..WireFaults::NONE };
    for (seed, faults) in [
        WireFaults { loss: Probability::per_mille(100), ..none },
        WireFaults { duplication: Probability::per_mille(300), ..none },
        WireFaults { reordering: Probability::per_mille(200), ..none },
        WireFaults { delay: Probability::per_mille(300), ..none },
        WireFaults::all(50),
    ]
    .into_iter()
    .enumerate()
    {
        stream(500, faults, seed as u64);
    }
}

#[test]
fn writes_reads_and_atomics_are_done_once() {
    let faults = WireFaults::all(10);
    let mut pair = Pair::in_world(WorldConfig { faults, seed: 7, ..WorldConfig::default() });
    let (a, b) = (end(&mut pair.a, true), end(&mut pair.b, true));
    pair.connect(
        &a,
        &b,
        &Connection {
            mtu: Mtu::Mtu256,
            psn: (bareverbs::Psn::new(0xff_ff00), bareverbs::Psn::new(5)),
            timeout: 6,
            ..Connection::default()
        },
    );
    let mut here = pair.a.region(a.pd, 1 << 16, ALL);
    let there = pair.b.region(b.pd, 1 << 16, ALL);
    let counter = there.remote(32_768);
    for n in 0..1000_u64 {
        let len = (n * 53 % 5000) as usize;
        let bytes = pattern(n, len);
        here.buffer.write(0, &bytes);
        let (out, back) = ([here.sge(0, len)], [here.sge(16_384, len)]);
        let list = [
            signaled(0, SendOp::Write { payload: Payload::Sges(&out), remote: there.remote(0) }),
            signaled(1, SendOp::FetchAdd { sge: here.sge(60_000, 8), remote: counter, add: 3 }),
            signaled(2, SendOp::Read { sges: &back, remote: there.remote(0) }),
            signaled(
                3,
                SendOp::CompareSwap { sge: here.sge(60_008, 8), remote: there.remote(32_776), compare: n, swap: n + 1 },
            ),
        ];
        pair.a.verbs.post_send_list(a.qp, &list).unwrap();
        let done = pair.a.completions(a.cq, 4);
        let facts: Vec<_> = done.iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(facts, [0, 1, 2, 3].map(|id| (id, WcStatus::Success)));
        assert_eq!(done[1].opcode, WcOpcode::FetchAdd);
        assert!(here.buffer.read(16_384, len) == bytes, "round {n}");
        assert_eq!(here.buffer.read(60_000, 8), (3 * n).to_le_bytes(), "each add was done once");
        assert_eq!(here.buffer.read(60_008, 8), n.to_le_bytes(), "each swap was done once");
    }
    assert_eq!(there.buffer.read(32_768, 8), 3000_u64.to_le_bytes());
    assert!(pair.world.wire_stats().lost > 10, "{:?}", pair.world.wire_stats());
    pair.assert_no_findings();
}
