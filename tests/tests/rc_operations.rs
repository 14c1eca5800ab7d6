//! Every operation of a reliable connection, in both directions, with every byte checked.

use bareverbs::{Access, Mtu, Payload, QpAttr, RecvWr, Remote, SendFlags, SendOp, SendWr, WcData, WcOpcode, WcStatus};
use bareverbs_tests::{Connection, End, Pair, end, pattern, rc_steps, signaled};

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// Lengths at and around the edges of packets and pages.
const LENGTHS: [usize; 14] = [0, 1, 7, 255, 256, 257, 1023, 1024, 1025, 4096, 4097, 65_536, 100_001, 1 << 20];

/// Asserts one successful completion of `wr_id` in the queue of the first or the second end.
fn done(pair: &mut Pair, ends: &(End, End), second: bool, wr_id: u64, opcode: WcOpcode) -> bareverbs::Completion {
    let (node, end) = if second { (&mut pair.b, &ends.1) } else { (&mut pair.a, &ends.0) };
    let found = node.completions(end.cq, 1);
    assert_eq!(found.len(), 1, "{found:?}");
    let completion = found[0];
    assert_eq!(
        (completion.wr_id, completion.opcode, completion.status, completion.qp),
        (wr_id, opcode, WcStatus::Success, end.qp)
    );
    completion
}

#[test]
fn send_of_every_length_and_mtu() {
    for mtu in [Mtu::Mtu256, Mtu::Mtu1024, Mtu::Mtu4096] {
        let mut pair = Pair::new();
        let ends = (end(&mut pair.a, true), end(&mut pair.b, true));
        pair.connect(&ends.0, &ends.1, &Connection { mtu, ..Connection::default() });
        let mut from = pair.a.region(ends.0.pd, 1 << 20, Access::empty());
        let mut to = pair.b.region(ends.1.pd, (1 << 20) + 8, ALL);
        for (n, len) in LENGTHS.into_iter().enumerate() {
            let wr_id = n as u64;
            let bytes = pattern(wr_id, len);
            from.buffer.write(0, &bytes);
            to.buffer.write(0, &vec![0xee; len + 8]);
            pair.b.verbs.post_recv(ends.1.qp, &RecvWr { wr_id, sges: &[to.sge(0, len + 8)] }).unwrap();
            let op = SendOp::Send { payload: Payload::Sges(&[from.sge(0, len)]) };
            pair.a.verbs.post_send(ends.0.qp, &SendWr { wr_id, flags: SendFlags::empty(), op }).unwrap();
            done(&mut pair, &ends, false, wr_id, WcOpcode::Send);
            let received = done(&mut pair, &ends, true, wr_id, WcOpcode::Recv);
            assert_eq!((received.byte_len as usize, received.data), (len, WcData::None));
            assert_eq!(to.buffer.read(0, len), bytes);
            assert_eq!(to.buffer.read(len, 8), [0xee; 8], "not a byte more than was sent");
        }
        pair.assert_no_findings();
    }
}

#[test]
fn scattered_and_gathered() {
    let mut pair = Pair::new();
    let ends = pair.connected();
    let mut from = pair.a.region(ends.0.pd, 16_384, ALL);
    let to = pair.b.region(ends.1.pd, 16_384, ALL);
    let bytes = pattern(3, 16_384);
    from.buffer.write(0, &bytes);
    let pieces = [(5, 100), (9000, 0), (4090, 3000), (1, 1)];
    let sges: Vec<_> = pieces.iter().map(|(at, len)| from.sge(*at, *len)).collect();
    let whole: Vec<u8> = pieces.iter().flat_map(|(at, len)| bytes[*at..at + len].to_vec()).collect();
    let places = [(4000, 200), (0, 33), (8000, 4000)];
    let recv: Vec<_> = places.iter().map(|(at, len)| to.sge(*at, *len)).collect();
    pair.b.verbs.post_recv(ends.1.qp, &RecvWr { wr_id: 9, sges: &recv }).unwrap();
    pair.a.verbs.post_send(ends.0.qp, &signaled(8, SendOp::Send { payload: Payload::Sges(&sges) })).unwrap();
    done(&mut pair, &ends, false, 8, WcOpcode::Send);
    assert_eq!(done(&mut pair, &ends, true, 9, WcOpcode::Recv).byte_len as usize, whole.len());
    let got: Vec<u8> = places.iter().flat_map(|(at, len)| to.buffer.read(*at, *len)).collect();
    assert_eq!(got[..whole.len()], whole);
    assert!(got[whole.len()..].iter().all(|byte| *byte == 0));
    pair.assert_no_findings();
}

// contract: post-inline
#[test]
fn inline_payloads_are_free_when_the_call_returns() {
    let mut pair = Pair::new();
    let ends = pair.connected();
    let to = pair.b.region(ends.1.pd, 8192, ALL);
    let max = pair.a.verbs.qp_info(ends.0.qp).unwrap().cap.max_inline_data as usize;
    assert!(max >= 128);
    // More requests than the ring has blocks: the inline data wraps in it at every place.
    for (n, len) in (0..=max).chain((0..=max).rev()).enumerate() {
        let mut bytes = pattern(n as u64, len);
        let kept = bytes.clone();
        let remote = to.remote(n);
        pair.a
            .verbs
            .post_send(ends.0.qp, &signaled(n as u64, SendOp::Write { payload: Payload::Inline(&bytes), remote }))
            .unwrap();
        bytes.fill(0xff);
        done(&mut pair, &ends, false, n as u64, WcOpcode::RdmaWrite);
        assert_eq!(to.buffer.read(n, len), kept, "{len} bytes");
    }
    pair.assert_no_findings();
}

// contract: post-immediate
#[test]
fn immediate_data_arrives_as_it_was_given() {
    let mut pair = Pair::new();
    let ends = pair.connected();
    let mut from = pair.a.region(ends.0.pd, 4096, ALL);
    let to = pair.b.region(ends.1.pd, 4096, ALL);
    from.buffer.write(0, &pattern(1, 4096));
    let imm = [0xde, 0xad, 0xbe, 0xef];
    pair.b.verbs.post_recv(ends.1.qp, &RecvWr { wr_id: 1, sges: &[to.sge(0, 64)] }).unwrap();
    pair.b.verbs.post_recv(ends.1.qp, &RecvWr { wr_id: 2, sges: &[] }).unwrap();
    let payload = Payload::Sges(&[from.sge(0, 64)]);
    pair.a.verbs.post_send(ends.0.qp, &signaled(3, SendOp::SendWithImm { payload, imm })).unwrap();
    let (payload, remote) = (Payload::Sges(&[from.sge(64, 3000)]), to.remote(500));
    pair.a.verbs.post_send(ends.0.qp, &signaled(4, SendOp::WriteWithImm { payload, remote, imm })).unwrap();
    let sent: Vec<_> = pair.a.completions(ends.0.cq, 2).iter().map(|c| (c.wr_id, c.status, c.opcode)).collect();
    assert_eq!(sent, [(3, WcStatus::Success, WcOpcode::Send), (4, WcStatus::Success, WcOpcode::RdmaWrite)]);
    let received = pair.b.completions(ends.1.cq, 2);
    let facts: Vec<_> = received.iter().map(|c| (c.wr_id, c.status, c.opcode, c.byte_len, c.data)).collect();
    assert_eq!(
        facts,
        [
            (1, WcStatus::Success, WcOpcode::Recv, 64, WcData::Imm(imm)),
            (2, WcStatus::Success, WcOpcode::RecvRdmaWithImm, 3000, WcData::Imm(imm)),
        ]
    );
    assert_eq!(to.buffer.read(0, 64), from.buffer.read(0, 64));
    assert_eq!(to.buffer.read(500, 3000), from.buffer.read(64, 3000));
    pair.assert_no_findings();
}

#[test]
fn write_and_read_of_every_length() {
    let mut pair = Pair::new();
    let ends = pair.connected();
    let mut here = pair.a.region(ends.0.pd, 1 << 21, ALL);
    let mut there = pair.b.region(ends.1.pd, (1 << 20) + 64, ALL);
    for (n, len) in LENGTHS.into_iter().enumerate() {
        let wr_id = n as u64;
        let (out, back) = (pattern(wr_id, len), pattern(!wr_id, len));
        here.buffer.write(3, &out);
        there.buffer.write(0, &vec![0xee; len + 64]);
        let op = SendOp::Write { payload: Payload::Sges(&[here.sge(3, len)]), remote: there.remote(17) };
        pair.a.verbs.post_send(ends.0.qp, &signaled(wr_id, op)).unwrap();
        done(&mut pair, &ends, false, wr_id, WcOpcode::RdmaWrite);
        assert_eq!(there.buffer.read(17, len), out);
        assert_eq!(there.buffer.read(0, 17), [0xee; 17]);
        assert_eq!(there.buffer.read(17 + len, 47), [0xee; 47]);

        there.buffer.write(5, &back);
        let op = SendOp::Read {
            sges: &[here.sge(1 << 20, len / 2), here.sge((1 << 20) + len / 2, len - len / 2)],
            remote: there.remote(5),
        };
        pair.a.verbs.post_send(ends.0.qp, &signaled(wr_id, op)).unwrap();
        assert_eq!(done(&mut pair, &ends, false, wr_id, WcOpcode::RdmaRead).byte_len as usize, len);
        assert_eq!(here.buffer.read(1 << 20, len), back);
    }
    assert!(pair.b.poll(ends.1.cq).is_empty(), "the passive side gives no completion");
    pair.assert_no_findings();
}

#[test]
fn atomics_give_the_old_value() {
    let mut pair = Pair::new();
    let ends = pair.connected();
    let here = pair.a.region(ends.0.pd, 4096, ALL);
    let mut there = pair.b.region(ends.1.pd, 4096, ALL);
    let word = |bytes: Vec<u8>| u64::from_le_bytes(bytes.try_into().unwrap());
    // Addresses of the application are aligned as the buffer is.
    let at = 64;
    there.buffer.write(at, &41_u64.to_le_bytes());
    let remote = there.remote(at);
    assert_eq!(remote.addr % 8, 0);
    let post = |pair: &mut Pair, op| pair.a.verbs.post_send(ends.0.qp, &signaled(7, op)).unwrap();

    post(&mut pair, SendOp::FetchAdd { sge: here.sge(0, 8), remote, add: 1 });
    assert_eq!(done(&mut pair, &ends, false, 7, WcOpcode::FetchAdd).byte_len, 8);
    assert_eq!((word(here.buffer.read(0, 8)), word(there.buffer.read(at, 8))), (41, 42));

    post(&mut pair, SendOp::FetchAdd { sge: here.sge(0, 8), remote, add: u64::MAX });
    done(&mut pair, &ends, false, 7, WcOpcode::FetchAdd);
    assert_eq!((word(here.buffer.read(0, 8)), word(there.buffer.read(at, 8))), (42, 41), "wraps at 64 bits");

    post(&mut pair, SendOp::CompareSwap { sge: here.sge(8, 8), remote, compare: 5, swap: 6 });
    done(&mut pair, &ends, false, 7, WcOpcode::CompSwap);
    assert_eq!((word(here.buffer.read(8, 8)), word(there.buffer.read(at, 8))), (41, 41), "not swapped");

    post(&mut pair, SendOp::CompareSwap { sge: here.sge(8, 8), remote, compare: 41, swap: 0x0102_0304_0506_0708 });
    done(&mut pair, &ends, false, 7, WcOpcode::CompSwap);
    assert_eq!((word(here.buffer.read(8, 8)), word(there.buffer.read(at, 8))), (41, 0x0102_0304_0506_0708));
    pair.assert_no_findings();
}

// contract: poll-unsignaled
#[test]
fn a_batch_is_one_doorbell_and_unsignaled_requests_are_retired_by_the_next_completion() {
    let mut pair = Pair::new();
    let ends = (end(&mut pair.a, false), end(&mut pair.b, false));
    pair.connect(&ends.0, &ends.1, &Connection::default());
    let here = pair.a.region(ends.0.pd, 65_536, ALL);
    let mut there = pair.b.region(ends.1.pd, 65_536, ALL);
    for round in 0..40_u64 {
        let blocks = pair.a.verbs.send_batch(ends.0.qp).free_blocks();
        let mut here = here.clone();
        here.buffer.write(0, &pattern(round, 640));
        there.buffer.write(0, &[0; 640]);
        let mut queue = pair.a.verbs.send_batch(ends.0.qp);
        for n in 0..10 {
            let op = SendOp::Write { payload: Payload::Sges(&[here.sge(n * 64, 64)]), remote: there.remote(n * 64) };
            let flags = if n == 9 { SendFlags::SIGNALED } else { SendFlags::empty() };
            queue.post(&SendWr { wr_id: round * 100 + n as u64, flags, op }).unwrap();
        }
        for _ in 0..50 {
            pair.world.work();
        }
        assert_eq!(there.buffer.read(0, 640), [0; 640], "the device knows nothing yet");
        queue.ring();
        drop(queue);
        let found = pair.a.completions(ends.0.cq, 1);
        assert_eq!(found.iter().map(|c| c.wr_id).collect::<Vec<_>>(), [round * 100 + 9]);
        assert_eq!(there.buffer.read(0, 640), pattern(round, 640));
        assert_eq!(pair.a.verbs.send_batch(ends.0.qp).free_blocks(), blocks, "all ten are retired");
    }
    pair.assert_no_findings();
}

// contract: post-fence
#[test]
fn a_fenced_send_waits_for_the_read_before_it() {
    let mut pair = Pair::new();
    let ends = pair.connected();
    let here = pair.a.region(ends.0.pd, 1 << 20, ALL);
    let mut there = pair.b.region(ends.1.pd, 1 << 20, ALL);
    let bytes = pattern(11, 200_000);
    there.buffer.write(0, &bytes);
    // What the fenced write sends is what the read brings.
    pair.a
        .verbs
        .post_send_list(
            ends.0.qp,
            &[
                signaled(1, SendOp::Read { sges: &[here.sge(0, 200_000)], remote: there.remote(0) }),
                SendWr {
                    wr_id: 2,
                    flags: SendFlags::SIGNALED | SendFlags::FENCE,
                    op: SendOp::Write { payload: Payload::Sges(&[here.sge(0, 200_000)]), remote: there.remote(500_000) },
                },
            ],
        )
        .unwrap();
    let order: Vec<_> = pair.a.completions(ends.0.cq, 2).iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(order, [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(there.buffer.read(500_000, 200_000), bytes);
    pair.assert_no_findings();
}

#[test]
fn more_reads_than_the_peer_takes_at_once_are_all_done() {
    let mut pair = Pair::new();
    let ends = pair.connected();
    let here = pair.a.region(ends.0.pd, 1 << 18, ALL);
    let mut there = pair.b.region(ends.1.pd, 1 << 18, ALL);
    let bytes = pattern(5, 1 << 18);
    there.buffer.write(0, &bytes);
    let mut queue = pair.a.verbs.send_batch(ends.0.qp);
    for n in 0..32 {
        let op = SendOp::Read { sges: &[here.sge(n * 8192, 8192)], remote: there.remote(n * 8192) };
        queue.post(&signaled(n as u64, op)).unwrap();
    }
    drop(queue);
    let order: Vec<_> = pair.a.completions(ends.0.cq, 32).iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(order, (0..32).map(|n| (n, WcStatus::Success)).collect::<Vec<_>>());
    assert_eq!(here.buffer.read(0, 1 << 18), bytes);
    pair.assert_no_findings();
}

// contract: recv-order
#[test]
fn a_send_waits_for_its_receive() {
    let mut pair = Pair::new();
    let ends = pair.connected();
    let mut from = pair.a.region(ends.0.pd, 4096, ALL);
    let to = pair.b.region(ends.1.pd, 4096, ALL);
    from.buffer.write(0, &pattern(2, 4096));
    let op = SendOp::Send { payload: Payload::Sges(&[from.sge(0, 4096)]) };
    pair.a.verbs.post_send(ends.0.qp, &signaled(1, op)).unwrap();
    pair.world.advance(core::time::Duration::from_millis(5));
    assert!(pair.a.poll(ends.0.cq).is_empty() && pair.b.poll(ends.1.cq).is_empty(), "nothing to receive into yet");
    pair.b.verbs.post_recv(ends.1.qp, &RecvWr { wr_id: 2, sges: &[to.sge(0, 4096)] }).unwrap();
    done(&mut pair, &ends, true, 2, WcOpcode::Recv);
    done(&mut pair, &ends, false, 1, WcOpcode::Send);
    assert_eq!(to.buffer.read(0, 4096), from.buffer.read(0, 4096));
    pair.assert_no_findings();
}

/// Asserts that both sides report a refused request, and that both queue pairs are in error afterwards.
fn refused(make: impl FnOnce(&mut Pair, &(End, End)), active: WcStatus, passive: Option<WcStatus>) {
    let mut pair = Pair::new();
    let ends = (end(&mut pair.a, true), end(&mut pair.b, true));
    pair.connect(&ends.0, &ends.1, &Connection { rnr_retry: 1, retry_cnt: 2, timeout: 4, ..Connection::default() });
    make(&mut pair, &ends);
    let found = pair.a.completions(ends.0.cq, 1);
    assert_eq!(found[0].status, active, "{found:?}");
    assert_eq!(pair.a.verbs.query_qp(ends.0.qp).unwrap().state, bareverbs::QpState::Err);
    if let Some(passive) = passive {
        let found = pair.b.completions(ends.1.cq, 1);
        assert_eq!(found[0].status, passive, "{found:?}");
        assert_eq!(pair.b.verbs.query_qp(ends.1.qp).unwrap().state, bareverbs::QpState::Err);
    }
    pair.assert_no_findings();
}

#[test]
fn a_message_longer_than_its_receive() {
    refused(
        |pair, ends| {
            let from = pair.a.region(ends.0.pd, 4096, ALL);
            let to = pair.b.region(ends.1.pd, 4096, ALL);
            pair.b.verbs.post_recv(ends.1.qp, &RecvWr { wr_id: 2, sges: &[to.sge(0, 99)] }).unwrap();
            let op = SendOp::Send { payload: Payload::Sges(&[from.sge(0, 100)]) };
            pair.a.verbs.post_send(ends.0.qp, &signaled(1, op)).unwrap();
        },
        WcStatus::RemInvReqErr,
        Some(WcStatus::LocLenErr),
    );
}

#[test]
fn no_receive_in_time() {
    refused(
        |pair, ends| {
            let from = pair.a.region(ends.0.pd, 4096, ALL);
            let op = SendOp::Send { payload: Payload::Sges(&[from.sge(0, 100)]) };
            pair.a.verbs.post_send(ends.0.qp, &signaled(1, op)).unwrap();
        },
        WcStatus::RnrRetryExcErr,
        None,
    );
}

#[test]
fn remote_accesses_that_the_region_does_not_allow() {
    // Each with the region's rights, the peer's address, and the operation.
    type Op = for<'a> fn(&'a [bareverbs::Sge], Remote) -> SendOp<'a>;
    let write: Op = |sges, remote| SendOp::Write { payload: Payload::Sges(sges), remote };
    let read: Op = |sges, remote| SendOp::Read { sges, remote };
    let add: Op = |sges, remote| SendOp::FetchAdd { sge: sges[0], remote, add: 1 };
    let cases: [(&str, Access, i64, i32, Op); 8] = [
        ("write without right", Access::LOCAL_WRITE | Access::REMOTE_READ, 0, 0, write),
        ("read without right", Access::LOCAL_WRITE | Access::REMOTE_WRITE, 0, 0, read),
        ("atomic without right", Access::LOCAL_WRITE | Access::REMOTE_WRITE, 0, 0, add),
        ("one byte after the end", ALL, 4096 - 7, 0, write),
        ("one byte before the start", ALL, -1, 0, read),
        ("address overflow", ALL, i64::MAX, 0, write),
        ("a key that is not there", ALL, 0, 0x100_0000, write),
        ("another tag of the key", ALL, 0, 0x01, read),
    ];
    for (name, access, shift, key, op) in cases {
        println!("{name}");
        refused(
            |pair, ends| {
                let here = pair.a.region(ends.0.pd, 4096, ALL);
                let there = pair.b.region(ends.1.pd, 4096, access);
                let remote = Remote {
                    addr: there.buffer.addr.wrapping_add_signed(shift),
                    rkey: bareverbs::Rkey::new(there.info.rkey.get().wrapping_add_signed(key)),
                };
                pair.a.verbs.post_send(ends.0.qp, &signaled(1, op(&[here.sge(0, 8)], remote))).unwrap();
            },
            WcStatus::RemAccessErr,
            None,
        );
    }
}

#[test]
fn a_queue_pair_that_lacks_the_remote_right_refuses_although_the_region_has_it() {
    let mut pair = Pair::new();
    let ends = (end(&mut pair.a, true), end(&mut pair.b, true));
    pair.connect(&ends.0, &ends.1, &Connection { access: Access::REMOTE_READ, ..Connection::default() });
    let here = pair.a.region(ends.0.pd, 4096, ALL);
    let there = pair.b.region(ends.1.pd, 4096, ALL);
    let op = SendOp::Read { sges: &[here.sge(0, 8)], remote: there.remote(0) };
    pair.a.verbs.post_send(ends.0.qp, &signaled(1, op)).unwrap();
    done(&mut pair, &ends, false, 1, WcOpcode::RdmaRead);
    let op = SendOp::Write { payload: Payload::Sges(&[here.sge(0, 8)]), remote: there.remote(0) };
    pair.a.verbs.post_send(ends.0.qp, &signaled(2, op)).unwrap();
    let found = pair.a.completions(ends.0.cq, 1);
    assert!(matches!(found[0].status, WcStatus::RemAccessErr | WcStatus::RemInvReqErr), "{found:?}");
}

/// As with Linux's driver (`set_qpc_atomic_flags`), a server that accepts no reads (`responder_resources` 0 of the CM) is open to none.
#[test]
fn a_responder_that_takes_no_read_at_a_time_admits_none_whatever_its_rights() {
    for depth in [0, 1] {
        let mut pair = Pair::new();
        let ends = (end(&mut pair.a, true), end(&mut pair.b, true));
        let mut here = pair.a.region(ends.0.pd, 4096, ALL);
        let mut there = pair.b.region(ends.1.pd, 4096, ALL);
        here.buffer.write(0, b"nothing");
        there.buffer.write(0, b"secrets");
        let [lid_a, lid_b] = [&mut pair.a, &mut pair.b].map(|node| node.verbs.query_port(1).unwrap().lid);
        for (node, own, lid, peer, depth) in
            [(&mut pair.a, &ends.0, lid_b, &ends.1, 4), (&mut pair.b, &ends.1, lid_a, &ends.0, depth)]
        {
            for (attr, mask) in rc_steps(&Connection::default(), lid, peer.qpn, 0, 0) {
                node.verbs.modify_qp(own.qp, &QpAttr { max_dest_rd_atomic: depth, ..attr }, mask).unwrap();
            }
        }
        let op = SendOp::Read { sges: &[here.sge(0, 7)], remote: there.remote(0) };
        pair.a.verbs.post_send(ends.0.qp, &signaled(1, op)).unwrap();
        let found = pair.a.completions(ends.0.cq, 1);
        let got = here.buffer.read(0, 7);
        if depth == 0 {
            assert!(matches!(found[0].status, WcStatus::RemAccessErr | WcStatus::RemInvReqErr), "{found:?}");
            assert_eq!(got, b"nothing");
        } else {
            assert_eq!((found[0].status, got), (WcStatus::Success, b"secrets".to_vec()));
        }
    }
}

#[test]
fn a_peer_that_does_not_answer() {
    refused(
        |pair, ends| {
            let here = pair.a.region(ends.0.pd, 4096, ALL);
            let there = pair.b.region(ends.1.pd, 4096, ALL);
            pair.world.set_wire_faults(bareverbs_sim::wire::WireFaults {
                loss: bareverbs_sim::wire::Probability::ALWAYS,
                ..Default::default()
            });
            let op = SendOp::Write { payload: Payload::Sges(&[here.sge(0, 8)]), remote: there.remote(0) };
            pair.a.verbs.post_send(ends.0.qp, &signaled(1, op)).unwrap();
        },
        WcStatus::RetryExcErr,
        None,
    );
}
