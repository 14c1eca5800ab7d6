//! Two hosts of one simulated world, each driven by a thread of its own.

use std::thread;
use std::time::Duration;

use bareverbs::{Payload, RecvWr, SendOp, WcOpcode, WcStatus};
use bareverbs_sim::in_process::WorldConfig;
use bareverbs_tests::{ALL_ACCESS, End, Node, Pair, pattern, signaled};

const MESSAGES: u64 = 2000;
/// Receives that are posted before the peer sends anything, and sends that wait for completion.
const DEPTH: u64 = 8;
const LEN: usize = 100;

/// Returns what the node with the seed `seed` sends as message `number`.
fn message(seed: u64, number: u64) -> Vec<u8> {
    pattern(seed * MESSAGES + number, LEN)
}

/// Sends all messages of `seed` and receives all of `peer_seed`, in their order.
fn exchange(node: &mut Node, end: &End, seed: u64, peer_seed: u64) {
    let mut from = node.region(end.pd, DEPTH as usize * LEN, ALL_ACCESS);
    let to = node.region(end.pd, DEPTH as usize * LEN, ALL_ACCESS);
    let at = |number: u64| (number % DEPTH) as usize * LEN;
    let post_receive = |node: &mut Node, number: u64| {
        let sges = [to.sge(at(number), LEN)];
        node.verbs.post_recv(end.qp, &RecvWr { wr_id: number, sges: &sges }).unwrap();
    };
    (0..DEPTH).for_each(|number| post_receive(node, number));
    let (mut posted, mut sent, mut received) = (0, 0, 0);
    while sent < MESSAGES || received < MESSAGES {
        while posted < MESSAGES && posted < sent + DEPTH {
            from.buffer.write(at(posted), &message(seed, posted));
            let sges = [from.sge(at(posted), LEN)];
            node.verbs.post_send(end.qp, &signaled(posted, SendOp::Send { payload: Payload::Sges(&sges) })).unwrap();
            posted += 1;
        }
        for completion in node.completions(end.cq, 1) {
            assert_eq!(completion.status, WcStatus::Success, "{completion:?}");
            if completion.opcode == WcOpcode::Send {
                assert_eq!(completion.wr_id, sent);
                sent += 1;
            } else {
                assert_eq!((completion.wr_id, completion.byte_len as usize), (received, LEN));
                assert_eq!(to.buffer.read(at(received), LEN), message(peer_seed, received), "message {received}");
                post_receive(node, received + DEPTH);
                received += 1;
            }
        }
    }
}

#[test]
fn each_host_in_its_own_thread() {
    // Long steps would end a thread's waits while the scheduler holds up the other thread.
    let max_step = Duration::from_micros(1);
    let mut pair = Pair::in_world(WorldConfig { max_step, ..WorldConfig::default() });
    let (a, b) = pair.connected();
    let Pair { a: first, b: second, .. } = &mut pair;
    thread::scope(|scope| {
        scope.spawn(|| exchange(first, &a, 1, 2));
        scope.spawn(|| exchange(second, &b, 2, 1));
    });
    pair.assert_no_findings();
}
