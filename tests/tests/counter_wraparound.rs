//! Rings and counters of the whole stack, taken through their wraps.

use bareverbs::{Access, Payload, RecvWr, SendFlags, SendOp, SendWr, WcStatus};
use bareverbs_tests::{Connection, Pair, end, signaled};

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE);

#[test]
fn more_requests_than_sixteen_bits_count() {
    let mut pair = Pair::new();
    let (a, b) = (end(&mut pair.a, false), end(&mut pair.b, true));
    // The 24 bits of the PSN wrap too: after 5 packets one way, after 3 acknowledgements the other.
    pair.connect(
        &a,
        &b,
        &Connection { psn: (bareverbs::Psn::new(0xff_fffb), bareverbs::Psn::new(0xff_fffd)), ..Connection::default() },
    );
    let mut from = pair.a.region(a.pd, 4096, ALL);
    let to = pair.b.region(b.pd, 4096, ALL);
    const BATCH: u64 = 50;
    let mut wr_id = 0_u64;
    // One block each, so the 16-bit index of blocks wraps once at exactly 65,536 requests, in the middle of a batch.
    while wr_id < 66_000 {
        for n in 0..BATCH {
            pair.b.verbs.post_recv(b.qp, &RecvWr { wr_id: wr_id + n, sges: &[to.sge((n * 8) as usize, 8)] }).unwrap();
        }
        let mut all = Vec::new();
        for n in 0..BATCH {
            all.extend_from_slice(&(wr_id + n).to_be_bytes());
        }
        from.buffer.write(0, &all);
        let mut queue = pair.a.verbs.send_batch(a.qp);
        for n in 0..BATCH {
            let op = SendOp::Send { payload: Payload::Sges(&[from.sge((n * 8) as usize, 8)]) };
            let flags = if n + 1 == BATCH { SendFlags::SIGNALED } else { SendFlags::empty() };
            queue.post(&SendWr { wr_id: wr_id + n, flags, op }).unwrap();
        }
        drop(queue);
        let done = pair.a.completions(a.cq, 1);
        assert_eq!((done[0].wr_id, done[0].status), (wr_id + BATCH - 1, WcStatus::Success));
        let received = pair.b.completions(b.cq, BATCH as usize);
        for (n, completion) in received.iter().enumerate() {
            assert_eq!((completion.wr_id, completion.status), (wr_id + n as u64, WcStatus::Success));
        }
        assert_eq!(to.buffer.read(0, all.len()), all);
        wr_id += BATCH;
    }
    pair.assert_no_findings();
}

#[test]
fn requests_of_several_blocks_at_every_place_of_the_ring() {
    let mut pair = Pair::new();
    let (a, b) = pair.connected();
    let from = pair.a.region(a.pd, 4096, ALL);
    let to = pair.b.region(b.pd, 4096, ALL);
    // Lengths whose blocks add up to an odd number, so that every place is a start sooner or later.
    let inline = [0x5a_u8; 100];
    let four = [from.sge(0, 16), from.sge(16, 16), from.sge(32, 16), from.sge(48, 16)];
    for round in 0..600_u64 {
        let list = [
            signaled(round, SendOp::Write { payload: Payload::Sges(&four), remote: to.remote(0) }),
            signaled(round, SendOp::Write { payload: Payload::Inline(&inline), remote: to.remote(1000) }),
            signaled(round, SendOp::Write { payload: Payload::Sges(&four[..1]), remote: to.remote(2000) }),
        ];
        let take = 1 + (round % 3) as usize;
        pair.a.verbs.post_send_list(a.qp, &list[..take]).unwrap();
        for done in pair.a.completions(a.cq, take) {
            assert_eq!((done.wr_id, done.status), (round, WcStatus::Success));
        }
    }
    assert_eq!(to.buffer.read(1000, 100), inline);
    pair.assert_no_findings();
}
