//! Rows of the contract about posting.

use crate::error::DeallocMwError;
use crate::storage::QpRings;
use std::boxed::Box;
use std::string::ToString as _;
use std::vec::Vec;

use super::mock::Kind;
use super::{BASE, Harness, LENGTH, register, set_state};
use crate::error::{BadWr, Errno, PostRecvError, PostSendError, SgeFault};
use crate::send_queue::PostCursor;
use crate::{
    Access, KeyTag, MaskedOp, MaskedWr, MwHandle, MwType, Payload, QpState, QpType, RecvWr, Remote, Rkey, SendFlags, SendOp,
    SendWr, Sge, Type1Bind, WcOpcode, WcStatus,
};

pub(super) const REMOTE: Remote = Remote { addr: 0x8000, rkey: Rkey::new(0x1234) };

pub(super) fn send(wr_id: u64, sges: &[Sge]) -> SendWr<'_> {
    SendWr { wr_id, flags: SendFlags::SIGNALED, op: SendOp::Send { payload: Payload::Sges(sges) } }
}

/// Returns one request of each operation, with SGE `sge` where it has one.
pub(super) fn each(sges: &[Sge; 1]) -> [SendOp<'_>; 8] {
    let payload = Payload::Sges(sges);
    let sge = sges[0];
    [
        SendOp::Send { payload },
        SendOp::SendWithImm { payload, imm: [1, 2, 3, 4] },
        SendOp::Write { payload, remote: REMOTE },
        SendOp::WriteWithImm { payload, remote: REMOTE, imm: [1, 2, 3, 4] },
        SendOp::SendWithInv { payload, rkey: REMOTE.rkey },
        SendOp::Read { sges, remote: REMOTE },
        SendOp::CompareSwap { sge, remote: REMOTE, compare: 1, swap: 2 },
        SendOp::FetchAdd { sge, remote: REMOTE, add: 1 },
    ]
}

/// Returns as what those complete.
fn each_opcode(n: usize) -> WcOpcode {
    use WcOpcode::{CompSwap, FetchAdd, RdmaRead, RdmaWrite, Send};
    [Send, Send, RdmaWrite, RdmaWrite, Send, RdmaRead, CompSwap, FetchAdd][n]
}

fn wr(op: SendOp<'_>, flags: SendFlags) -> SendWr<'_> {
    SendWr { wr_id: 1, flags, op }
}

// contract: post-opcodes-rc, post-opcodes-uc
#[test]
fn each_transport_has_its_operations() {
    let had = [(QpType::Rc, 8), (QpType::Uc, 4)];
    for (qp_type, had) in had {
        let mut harness = Harness::with(qp_type, false);
        let sges = [harness.sge(0, 8)];
        for (n, op) in each(&sges).into_iter().enumerate() {
            let result = harness.verbs.post_send(harness.qp, &wr(op, SendFlags::empty()));
            if n < had {
                assert_eq!(result, Ok(()), "{qp_type:?} {op:?}");
            } else {
                let error = result.unwrap_err();
                let expected = match op {
                    SendOp::SendWithInv { .. } => PostSendError::NoSendWithInv,
                    _ => PostSendError::Opcode { opcode: each_opcode(n), qp_type },
                };
                assert_eq!((error, error.errno()), (expected, Errno::Einval));
            }
        }
        assert_eq!(harness.device().sent.len(), had);
        assert_eq!(harness.device().doorbells.len(), had);
    }
}

#[test]
fn datagrams_have_only_sends_and_those_need_a_destination() {
    let mut harness = Harness::with(QpType::Ud, false);
    let sges = [harness.sge(0, 8)];
    for (n, op) in each(&sges).into_iter().enumerate() {
        let error = harness.verbs.post_send(harness.qp, &wr(op, SendFlags::empty())).unwrap_err();
        assert_eq!(error == PostSendError::NoAddressHandle, n < 2, "{op:?}: {error}");
        assert_eq!(matches!(error, PostSendError::Opcode { .. } | PostSendError::NoSendWithInv), n >= 2);
    }
    assert!(harness.device().sent.is_empty());
}

// contract: post-fence, post-solicited
#[test]
fn flags_fit_operation_and_transport() {
    let mut harness = Harness::new();
    let sges = [harness.sge(0, 8)];
    for (n, op) in each(&sges).into_iter().enumerate() {
        let mut fits = |flags| {
            let result = harness.verbs.post_send(harness.qp, &wr(op, flags));
            harness.device().sent.clear();
            while harness.verbs.send_batch(harness.qp).free_blocks() < 8 {
                let index = u16::try_from(harness.device().doorbells.last().unwrap().1 - 1).unwrap();
                harness.complete(index, WcStatus::Success);
                harness.poll().unwrap();
            }
            result == Ok(())
        };
        assert!(fits(SendFlags::FENCE | SendFlags::SIGNALED), "{op:?}");
        assert_eq!(fits(SendFlags::SOLICITED), matches!(n, 0 | 1 | 3 | 4), "{op:?}");
        assert!(!fits(SendFlags::from_bits_retain(1 << 7)), "{op:?}");
        assert!(!fits(SendFlags::INLINE), "SGEs cannot be copied into {op:?}");
    }
    let error = harness.verbs.post_send(harness.qp, &wr(each(&sges)[0], SendFlags::INLINE)).unwrap_err();
    assert!(error.to_string().contains("SendWr::send(&bytes[..])"), "{error}");
    let mut harness = Harness::with(QpType::Uc, false);
    let error = harness.verbs.post_send(harness.qp, &wr(each(&sges)[0], SendFlags::FENCE)).unwrap_err();
    assert_eq!(error, PostSendError::Flags { flags: SendFlags::FENCE });
}

/// The mock device does masked atomics on four bytes, and none on eight.
// contract: masked-refused
#[test]
fn a_masked_atomic_of_a_size_that_the_device_lacks_is_refused() {
    let mut harness = Harness::with(QpType::Rc, false);
    let mut post = |op: MaskedOp| {
        let wr = MaskedWr { wr_id: 1, flags: SendFlags::SIGNALED, op, remote: REMOTE, sge: harness.sge(0, op.size()) };
        harness.verbs.send(harness.qp).post_masked(&wr)
    };
    assert_eq!(post(MaskedOp::FetchAdd4 { add: 1, boundary: 0 }), Ok(()));
    assert_eq!(post(MaskedOp::FetchAdd8 { add: 1, boundary: 0 }), Err(PostSendError::NoAtomics));
}

/// The requests that most programs live on are posted without the code for all requests, alone and behind others, as that code posts
/// them. The instructions of a post are those of this way (`tests/scripts/instructions`).
#[test]
fn common_requests_are_posted_by_the_short_way() {
    let some = Harness::new();
    let (one, two) = ([some.sge(0, 8)], [some.sge(0, 8), some.sge(64, 100)]);
    let mut ops = each(&one).to_vec();
    for payload in [Payload::Sges(&two), Payload::Inline(&[1]), Payload::Inline(&[1; 128])] {
        ops.extend([SendOp::Send { payload }, SendOp::Write { payload, remote: REMOTE }]);
    }
    for op in ops {
        let request = wr(op, SendFlags::SIGNALED);
        let mut harness = Harness::new();
        let queue = harness.verbs.send(harness.qp);
        let mut open = PostCursor::new(queue);
        assert!(open.post_common(&request, true) && open.post_common(&request, false), "{op:?}");
        open.finish(true);
        let mut other = Harness::new();
        for _ in 0..2 {
            // As the code for all posts it, which alone takes a request that has an empty SGE too.
            other.verbs.post_send(other.qp, &request).unwrap();
        }
        assert_eq!(harness.device().sent, other.device().sent, "{op:?}");
    }
}

/// More SGEs go another way: three with a doorbell of their own, and from four on. Each request is posted once.
#[test]
fn requests_with_more_sges_are_posted_once() {
    for count in 0..=4 {
        for is_write in [false, true] {
            let mut harness = Harness::new();
            let all = [0, 8, 16, 24].map(|offset| harness.sge(offset, 8));
            let payload = Payload::Sges(&all[..count]);
            let op = if is_write { SendOp::Write { payload, remote: REMOTE } } else { SendOp::Send { payload } };
            let request = wr(op, SendFlags::SIGNALED);
            let mut open = PostCursor::new(harness.verbs.send(harness.qp));
            assert_eq!(open.post_common(&request, true), matches!(count, 1..=2), "{count} SGEs, and a doorbell");
            // Those that the first way takes are not tried again in first slots.
            assert_eq!(open.post_common(&request, false), matches!(count, 1..=3), "{count} SGEs");
            assert_eq!(open.post_sges::<false>(&request), count == 4, "{count} SGEs");
            assert_eq!(open.post_sges::<true>(&request), count != 0, "{count} SGEs");
            let mut harness = Harness::new();
            harness.verbs.post_send(harness.qp, &request).unwrap();
            harness.verbs.post_send_list(harness.qp, &[request, request]).unwrap();
            assert_eq!(harness.device().sent.len(), 3, "{count} SGEs");
            assert_eq!(harness.device().doorbells.len(), 2);
            let qpn = harness.qpn();
            while harness.device().execute(qpn) {}
            assert_eq!(harness.poll_ids(), [1, 1, 1]);
        }
    }
}

// contract: post-inline
#[test]
fn inline_payloads_are_limited_and_need_no_region() {
    let mut harness = Harness::new();
    let bytes = [0x5a; 129];
    let mut post = |length: usize, flags| {
        let payload = Payload::Inline(&bytes[..length]);
        harness.verbs.post_send(harness.qp, &wr(SendOp::Write { payload, remote: REMOTE }, flags))
    };
    assert_eq!(post(128, SendFlags::INLINE), Ok(()));
    assert_eq!(post(0, SendFlags::empty()), Ok(()));
    assert_eq!(post(129, SendFlags::INLINE), Err(PostSendError::InlineSize { length: 129, max: 128 }));
    let kinds: Vec<Kind> = harness.device().sent.iter().map(|sent| sent.kind).collect();
    assert_eq!(kinds, [Kind::Inline(128), Kind::Inline(0)]);
}

// contract: post-sge-domain, post-sge-rights, post-sge-range
#[test]
fn sges_are_checked_against_their_regions() {
    let mut harness = Harness::new();
    let other_pd = harness.verbs.alloc_pd().unwrap();
    let foreign = register(&mut harness.verbs, other_pd, BASE, LENGTH, Access::LOCAL_WRITE).unwrap();
    let readable = register(&mut harness.verbs, harness.pd, BASE, LENGTH, Access::empty()).unwrap();
    let (foreign, readable) = (harness.verbs.mr_info(foreign).unwrap().lkey, harness.verbs.mr_info(readable).unwrap().lkey);
    let good = harness.sge(0, 16);
    let mut refused = |bad: Sge, fault: SgeFault, errno: Errno| {
        let sges = [good, bad];
        let error = harness.verbs.post_send(harness.qp, &send(1, &sges)).unwrap_err();
        assert_eq!(error, PostSendError::Sge { index: 1, lkey: bad.lkey, fault });
        assert_eq!(error.errno(), errno);
    };
    refused(Sge { lkey: crate::Lkey::new(good.lkey.get() ^ 0x100), ..good }, SgeFault::UnknownKey, Errno::Einval);
    refused(Sge { lkey: foreign, ..good }, SgeFault::Domain, Errno::Eperm);
    for (addr, length) in [(BASE - 1, 16), (BASE + LENGTH - 15, 16), (u64::MAX - 3, 16), (BASE, u32::MAX)] {
        refused(Sge { addr, length, ..good }, super::range(addr, length), Errno::Erange);
    }
    assert_eq!(
        super::range(BASE + 8, 100).to_string(),
        std::format!("100 bytes at offset 8 are not inside the region, which has {LENGTH} bytes")
    );
    assert_eq!(
        super::range(BASE - 1, 4).to_string(),
        std::format!("4 bytes at {:#x} are not inside the region, which has {LENGTH} bytes from {BASE:#x} on", BASE - 1)
    );
    // The last byte is inside; an SGE without bytes needs no region.
    harness.verbs.post_send(harness.qp, &send(1, &[Sge { addr: BASE + LENGTH - 16, ..good }])).unwrap();
    harness.verbs.post_send(harness.qp, &send(1, &[Sge::default()])).unwrap();
    // Sending reads, reading writes.
    let sges = [Sge { lkey: readable, length: 8, ..good }];
    for (n, op) in each(&sges).into_iter().enumerate() {
        let result = harness.verbs.post_send(harness.qp, &wr(op, SendFlags::empty()));
        let refused = matches!(result, Err(PostSendError::Sge { fault: SgeFault::Access, .. }));
        assert_eq!(refused, n >= 5, "{op:?}: {result:?}");
    }
}

// contract: post-sge-count, post-message-size
#[test]
fn sge_counts_and_message_sizes_are_checked() {
    let mut harness = Harness::new();
    let five = [harness.sge(0, 1); 5];
    assert_eq!(harness.verbs.post_send(harness.qp, &send(1, &five)), Err(PostSendError::SgeCount { count: 5, max: 4 }));
    harness.verbs.post_send(harness.qp, &send(1, &five[..4])).unwrap();
    harness.verbs.post_send(harness.qp, &send(1, &[])).unwrap();
    let big = register(&mut harness.verbs, harness.pd, 0, 1 << 40, Access::empty()).unwrap();
    let lkey = harness.verbs.mr_info(big).unwrap().lkey;
    let half = Sge { addr: 0, length: 1 << 30, lkey };
    harness.verbs.post_send(harness.qp, &send(1, &[half, half])).unwrap();
    // As many bytes as a message may have, in one SGE and in two with an empty one between them.
    harness.verbs.post_send(harness.qp, &send(1, &[Sge { length: 1 << 31, ..half }])).unwrap();
    harness.verbs.post_send(harness.qp, &send(1, &[half, Sge { length: 0, ..half }, half])).unwrap();
    let over = [half, half, Sge { length: 1, ..half }];
    assert_eq!(harness.verbs.post_send(harness.qp, &send(1, &over)), Err(PostSendError::MessageSize { max: 1 << 31 }));
    let wrapping = [Sge { length: u32::MAX, ..half }; 4];
    assert_eq!(harness.verbs.post_send(harness.qp, &send(1, &wrapping)), Err(PostSendError::MessageSize { max: 1 << 31 }));
}

// contract: post-atomics
#[test]
fn atomics_move_eight_aligned_bytes() {
    let mut harness = Harness::new();
    let mut post = |length: u32, addr: u64| {
        let (sge, remote) = (harness.sge(0, length), Remote { addr, ..REMOTE });
        harness.verbs.post_send(harness.qp, &wr(SendOp::FetchAdd { sge, remote, add: 1 }, SendFlags::empty()))
    };
    assert_eq!(post(8, 0x8008), Ok(()));
    assert_eq!(post(4, 0x8008), Err(PostSendError::AtomicLength { length: 4, needed: 8 }));
    assert_eq!(post(8, 0x8004), Err(PostSendError::AtomicAlignment { addr: 0x8004, needed: 8 }));
    let mut mock = super::Mock::new();
    mock.device.atomics = false;
    let mut verbs = super::verbs_on(mock);
    let pd = verbs.alloc_pd().unwrap();
    let cq = verbs.create_cq(4).unwrap();
    let init = crate::QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap: super::CAP, sq_sig_all: false };
    let qp = verbs.create_qp(&init).unwrap();
    set_state(&verbs, qp, QpState::Rts);
    let op = SendOp::FetchAdd { sge: Sge::default(), remote: REMOTE, add: 1 };
    let error = verbs.post_send(qp, &wr(op, SendFlags::empty())).unwrap_err();
    assert_eq!((error, error.errno()), (PostSendError::NoAtomics, Errno::Eopnotsupp));
}

// contract: post-state
#[test]
fn states_that_do_not_send_or_receive() {
    let mut harness = Harness::new();
    for state in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err] {
        set_state(&harness.verbs, harness.qp, state);
        let sent = harness.verbs.post_send(harness.qp, &send(1, &[]));
        let sends = matches!(state, QpState::Rts | QpState::Sqd);
        assert_eq!(sent, if sends { Ok(()) } else { Err(PostSendError::NotReady { state }) });
        assert_eq!(harness.verbs.send_batch(harness.qp).post(&send(1, &[])), sent);
        let received = harness.verbs.post_recv(harness.qp, &RecvWr { wr_id: 1, sges: &[] });
        let receives = !matches!(state, QpState::Reset | QpState::Err);
        assert_eq!(received, if receives { Ok(()) } else { Err(PostRecvError::NotReady { state }) });
    }
    assert_eq!(PostSendError::NotReady { state: QpState::Err }.errno(), Errno::Enotconn);
}

// contract: post-queue-full
#[test]
fn a_full_queue_gives_the_request_back() {
    let mut harness = Harness::new();
    for n in 0..16 {
        harness.verbs.post_send(harness.qp, &send(n, &[])).unwrap();
    }
    let error = harness.verbs.post_send(harness.qp, &send(16, &[])).unwrap_err();
    assert_eq!((error, error.errno()), (PostSendError::QueueFull { needed: 1, free: 0, blocks: 16 }, Errno::Enospc));
    harness.complete(2, WcStatus::Success);
    assert_eq!(harness.poll_ids(), [2]);
    // Three blocks are free: 128 bytes inline take three, and then nothing fits.
    let long = Payload::Inline(&[0; 128]);
    harness.verbs.post_send(harness.qp, &wr(SendOp::Write { payload: long, remote: REMOTE }, SendFlags::empty())).unwrap();
    assert_eq!(
        harness.verbs.post_send(harness.qp, &send(16, &[])),
        Err(PostSendError::QueueFull { needed: 1, free: 0, blocks: 16 })
    );
}

// contract: post-list
#[test]
fn a_list_stops_at_the_first_failure_and_rings_once() {
    let mut harness = Harness::new();
    let bad = [Sge { length: 1, ..Sge::default() }];
    let list = [send(0, &[]), send(1, &[]), send(2, &bad), send(3, &[])];
    let BadWr { index, error } = harness.verbs.post_send_list(harness.qp, &list).unwrap_err();
    assert_eq!(index, 2);
    assert!(matches!(error, PostSendError::Sge { index: 0, .. }));
    assert_eq!(harness.device().sent.len(), 2);
    assert_eq!(harness.device().doorbells, [(harness.qpn(), 2, true)]);
    assert_eq!(harness.verbs.post_send_list(harness.qp, &list[2..]).unwrap_err().index, 0);
    assert_eq!(harness.device().doorbells.len(), 1, "nothing was posted, no doorbell");
    harness.verbs.post_send_list(harness.qp, &list[..2]).unwrap();
    assert_eq!(harness.device().doorbells[1..], [(harness.qpn(), 4, true)]);
}

#[test]
fn a_batch_rings_once_and_a_dropped_one_loses_nothing() {
    let mut harness = Harness::new();
    let (qpn, device) = (harness.qpn(), harness.verbs.provider().shared());
    let mut batch = harness.verbs.send_batch(harness.qp);
    for n in 0..3 {
        batch.post(&send(n, &[])).unwrap();
    }
    assert!(device.lock().unwrap().doorbells.is_empty());
    batch.ring();
    batch.ring();
    batch.post(&send(3, &[])).unwrap();
    assert_eq!(device.lock().unwrap().doorbells, [(qpn, 3, true)]);
    drop(batch);
    assert_eq!(harness.device().doorbells[1..], [(qpn, 4, true)]);
    let batch = harness.verbs.send_batch(harness.qp);
    drop(batch);
    assert_eq!(harness.device().doorbells.len(), 2, "nothing was posted, no doorbell");
    harness.complete(3, WcStatus::Success);
    assert_eq!(harness.poll_ids(), [3]);
}

#[test]
fn signaling_follows_the_queue_pair() {
    for all in [false, true] {
        let mut harness = Harness::with(QpType::Rc, all);
        for flags in [SendFlags::empty(), SendFlags::SIGNALED] {
            harness.verbs.post_send(harness.qp, &SendWr { flags, ..send(1, &[]) }).unwrap();
        }
        let signaled: Vec<bool> = harness.device().sent.iter().map(|sent| sent.flags.contains(SendFlags::SIGNALED)).collect();
        assert_eq!(signaled, [all, true]);
    }
}

// contract: recv-rules
#[test]
fn receives_follow_the_same_rules() {
    let mut harness = Harness::new();
    let readable = register(&mut harness.verbs, harness.pd, BASE, LENGTH, Access::empty()).unwrap();
    let readable = [Sge { lkey: harness.verbs.mr_info(readable).unwrap().lkey, ..harness.sge(0, 8) }];
    let good = [harness.sge(0, 8)];
    let three = [good[0]; 3];
    let recv = |wr_id, sges| RecvWr { wr_id, sges };
    assert_eq!(harness.verbs.post_recv(harness.qp, &recv(1, &three)), Err(PostRecvError::SgeCount { count: 3, max: 2 }));
    let error = harness.verbs.post_recv(harness.qp, &recv(1, &readable)).unwrap_err();
    assert_eq!(error.errno(), Errno::Eacces);
    let list = [recv(1, &good), recv(2, &good), recv(3, &readable), recv(4, &good)];
    assert_eq!(harness.verbs.post_recv_list(harness.qp, &list).unwrap_err().index, 2);
    assert_eq!(harness.device().doorbells, [(harness.qpn(), 2, false)]);
    for n in 3..=8 {
        harness.verbs.post_recv(harness.qp, &recv(n, &good)).unwrap();
    }
    let error = harness.verbs.post_recv(harness.qp, &recv(9, &good)).unwrap_err();
    assert_eq!((error, error.errno()), (PostRecvError::QueueFull { capacity: 8 }, Errno::Enospc));
    assert_eq!(harness.device().received.len(), 8);
}

#[test]
fn a_zero_based_region_is_addressed_from_zero() {
    let mut harness = Harness::new();
    let access = Access::LOCAL_WRITE | Access::ZERO_BASED;
    let mr = register(&mut harness.verbs, harness.pd, BASE, 64, access).unwrap();
    let lkey = harness.verbs.mr_info(mr).unwrap().lkey;
    harness.verbs.post_send(harness.qp, &send(1, &[Sge { addr: 0, length: 64, lkey }])).unwrap();
    let error = harness.verbs.post_send(harness.qp, &send(1, &[Sge { addr: BASE, length: 64, lkey }])).unwrap_err();
    assert_eq!(error.errno(), Errno::Erange);
}

/// Every queue has room for as many requests of any kind as it reports.
#[test]
fn a_queue_takes_as_many_requests_as_its_capacities_say() {
    type Post = fn(&mut Harness, &[Sge], MwHandle, &Type1Bind) -> bool;
    let kinds: [Post; 4] = [
        |harness, sges, _, _| harness.verbs.post_send(harness.qp, &send(1, sges)).is_ok(),
        |harness, sges, _, _| {
            harness.verbs.post_send(harness.qp, &wr(SendOp::Read { sges, remote: REMOTE }, SendFlags::SIGNALED)).is_ok()
        },
        |harness, _, _, _| {
            let payload = Payload::Inline(&[0; 128]);
            harness.verbs.post_send(harness.qp, &wr(SendOp::Write { payload, remote: REMOTE }, SendFlags::SIGNALED)).is_ok()
        },
        |harness, _, mw, bind| harness.verbs.bind_type1(harness.qp, mw, bind).is_ok(),
    ];
    for (n, post) in kinds.into_iter().enumerate() {
        let rings: &'static [QpRings<16, 8>; 1] = Box::leak(Box::new([const { QpRings::new() }; 1]));
        // Room for as many binds as requests.
        let storage = <crate::storage![super::Mock; pds: 1, mrs: 1, mws: 5, cqs: 1, qps: 1]>::new(QpRings::views(rings));
        let mut verbs = crate::kept_verbs::KeptVerbs::new(crate::Verbs::new(super::Mock::new(), Box::leak(Box::new(storage))));
        let pd = verbs.alloc_pd().unwrap();
        let mr = register(&mut verbs, pd, BASE, LENGTH, super::ALL_RIGHTS).unwrap();
        let cq = verbs.create_cq(64).unwrap();
        let init = crate::QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap: super::CAP, sq_sig_all: false };
        let qp = verbs.create_qp(&init).unwrap();
        let mut harness = Harness { verbs, pd, mr, cq, qp };
        harness.connect(qp);
        let mw = harness.window(MwType::Type1);
        let sges = [harness.sge(0, 8); 4];
        let bind = Type1Bind { wr_id: 1, flags: SendFlags::SIGNALED, mr, addr: BASE, length: 64, access: Access::REMOTE_READ };
        for request in 0..harness.verbs.qp_info(qp).unwrap().cap.max_send_wr {
            assert!(post(&mut harness, &sges, mw, &bind), "kind {n}, request {request}");
        }
    }
}

/// Requests with an empty SGE or payload are not posted on the fast path. They keep their blocks alone, in a list and in a
/// batch, also among requests of the fast path.
#[test]
fn requests_with_nothing_in_them_take_their_place_among_others() {
    let mut harness = Harness::new();
    let qpn = harness.qpn();
    let (some, none) = (harness.sge(0, 64), harness.sge(0, 0));
    let (mixed, alone) = ([none, some], [some]);
    let empty =
        |wr_id| SendWr { wr_id, ..wr(SendOp::Write { payload: Payload::Inline(&[]), remote: REMOTE }, SendFlags::SIGNALED) };
    harness.verbs.post_send(harness.qp, &send(0, &mixed)).unwrap();
    harness.verbs.post_send(harness.qp, &empty(1)).unwrap();
    harness.verbs.post_send_list(harness.qp, &[send(2, &alone), send(3, &mixed), empty(4), send(5, &alone)]).unwrap();
    let mut batch = harness.verbs.send_batch(harness.qp);
    batch.post(&SendWr::send(&mixed).id(6).signaled()).unwrap();
    batch.post(&SendWr::write(REMOTE, &[0_u8; 0]).id(7).signaled()).unwrap();
    drop(batch);
    assert_eq!(harness.device().sent.iter().map(|sent| sent.at).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7]);
    while harness.device().execute(qpn) {}
    assert_eq!(harness.poll_ids(), [0, 1, 2, 3, 4, 5, 6, 7]);
}

/// A batch that is dropped rings. Of a forgotten one, the binds and the requests before them stay in the queue; the rest may.
/// The device executes what stays in order, after the next doorbell.
#[test]
fn a_batch_that_is_forgotten_leaves_a_queue_that_works() {
    let mut harness = Harness::new();
    let (qpn, sge) = (harness.qpn(), harness.sge(0, 64));
    let mut batch = harness.verbs.send_batch(harness.qp);
    batch.post(&send(1, &[sge])).unwrap();
    core::mem::forget(batch);
    assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().send_blocks, 0);
    assert!(harness.device().doorbells.is_empty());
    harness.verbs.post_send(harness.qp, &send(2, &[])).unwrap();
    while harness.device().execute(qpn) {}
    let done = harness.poll_ids();
    assert!(done == [2] || done == [1, 2], "{done:?}");
    assert_eq!(harness.verbs.send_batch(harness.qp).free_blocks(), 16);

    let mw = harness.window(MwType::Type1);
    let bind =
        Type1Bind { wr_id: 4, flags: SendFlags::SIGNALED, mr: harness.mr, addr: BASE, length: 64, access: Access::REMOTE_READ };
    let mut batch = harness.verbs.send_batch(harness.qp);
    batch.post(&send(3, &[])).unwrap();
    batch.bind_type1(mw, &bind).unwrap();
    batch.post(&send(5, &[])).unwrap();
    core::mem::forget(batch);
    assert_eq!(harness.device().doorbells.len(), 1);
    // The next doorbell, for any request, includes them.
    harness.verbs.post_send(harness.qp, &send(6, &[])).unwrap();
    assert_eq!(harness.device().doorbells.len(), 2);
    while harness.device().execute(qpn) {}
    let done = harness.poll_ids();
    assert!(done == [3, 4, 6] || done == [3, 4, 5, 6], "{done:?}");
}

/// The queue pair breaks on its own while the device does not know of everything: what was posted can still be made to
/// complete.
#[test]
fn requests_without_a_doorbell_complete_after_the_queue_pair_broke() {
    let mut harness = Harness::new();
    let (mw, qpn) = (harness.window(MwType::Type1), harness.qpn());
    let bind =
        Type1Bind { wr_id: 2, flags: SendFlags::SIGNALED, mr: harness.mr, addr: BASE, length: 64, access: Access::REMOTE_READ };
    harness.verbs.post_send(harness.qp, &send(1, &[])).unwrap();
    let mut batch = harness.verbs.send_batch(harness.qp);
    batch.bind_type1(mw, &bind).unwrap();
    core::mem::forget(batch);
    harness.device().break_qp(qpn);
    while harness.device().execute(qpn) {}
    assert_eq!(harness.poll_ids(), [1]);
    assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().state, QpState::Err);
    assert_eq!(harness.verbs.dealloc_mw(mw), Err(DeallocMwError::Busy { binds: 1 }));
    harness.verbs.ring_send_queue(harness.qp);
    while harness.device().execute(qpn) {}
    let done = harness.poll().unwrap();
    assert_eq!((done[0].wr_id, done[0].status), (2, WcStatus::WrFlushErr));
    harness.verbs.dealloc_mw(mw).unwrap();
}

/// A batch that is open while the queue pair breaks: its end rings the doorbell.
#[test]
fn an_open_batch_rings_whatever_the_state_is_at_its_end() {
    let mut harness = Harness::new();
    let qpn = harness.qpn();
    let mut queue = harness.verbs.take_send(harness.qp);
    let mut batch = queue.batch();
    batch.post(&send(1, &[])).unwrap();
    harness.step(harness.qp, QpState::Err);
    drop(batch);
    assert_eq!(queue.batch().post(&send(1, &[])), Err(PostSendError::NotReady { state: QpState::Err }));
    while harness.device().execute(qpn) {}
    let done = harness.poll().unwrap();
    assert_eq!((done[0].wr_id, done[0].status), (1, WcStatus::WrFlushErr));
}

#[test]
fn type_two_windows_are_bound_by_request() {
    let mut harness = Harness::new();
    let mw = harness.window(MwType::Type2);
    let info = crate::Binding { mr: harness.mr, addr: BASE, length: 64, access: Access::REMOTE_READ };
    let unbound = harness.verbs.mw_info(mw).unwrap().rkey;
    harness
        .verbs
        .post_send(harness.qp, &wr(SendOp::BindMw { mw, tag: KeyTag(0x42), binding: info }, SendFlags::SIGNALED))
        .unwrap();
    let bound = harness.verbs.mw_info(mw).unwrap();
    assert_eq!(bound.rkey.get(), unbound.get() & !0xff | 0x42);
    assert!(bound.binding.is_some());
    let inv = SendOp::LocalInv { rkey: bound.rkey };
    harness.verbs.post_send(harness.qp, &wr(inv, SendFlags::SIGNALED)).unwrap();
    assert_eq!(harness.verbs.mw_info(mw).unwrap().binding, None);
    assert!(harness.verbs.dereg_mr_raw(harness.mr).is_err(), "the invalidation is not done yet");
    harness.complete(3, WcStatus::Success);
    assert_eq!(harness.poll().unwrap()[0].opcode, WcOpcode::LocalInv);
    let unknown = wr(SendOp::LocalInv { rkey: Rkey::new(5) }, SendFlags::empty());
    assert_eq!(harness.verbs.post_send(harness.qp, &unknown).unwrap_err().errno(), Errno::Einval);
    harness.verbs.dereg_mr_raw(harness.mr).unwrap();
}
