//! XRC on a device that does what the test says.

use std::boxed::Box;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

use super::mock::{Entry, Kind, Mock, MockError, raw};
use super::post::{REMOTE, each};
use super::shared_receives::{harness, recv};
use super::{BASE, CAP, Harness, LENGTH, register, set_state};
use crate::backend::{DataOpcode, RawCompletion};
use crate::error::{
    AllocXrcdError, AnswerFault, CreateQpError, CreateSrqError, DeallocXrcdError, DestroyCqError, DestroyQpError, DeviceLoss,
    Errno, ModifyQpError, PollCqError, PostSendError, RawKind, SgeFault,
};
use crate::storage::{QpRings, SrqEntries};
use crate::{
    Access, Completion, CompletionQueue, CqHandle, KeyTag, MwType, NoReceives, QpHandle, QpInit, QpState, QpType, Qpn,
    QueuePair, Rkey, SendFlags, SendOp, SendWr, SharedReceiveQueue, SrqCap, SrqInit, Srqn, Type1Bind, Verbs, WcData, WcOpcode,
    WcStatus, XrcDomain, Xrcdn, storage,
};

type Domain = XrcDomain<Mock>;
type Srq = SharedReceiveQueue<'static, Mock>;
type Cq = CompletionQueue<'static, Mock>;
type Target = QueuePair<'static, Mock, NoReceives>;

const SRQN: Srqn = Srqn::new(0x12_3456);

fn srq(harness: &mut Harness, domain: &Domain, cq: &mut Cq, max_wr: u32) -> (Srq, Srqn) {
    let init = SrqInit { pd: harness.pd, cap: SrqCap { max_wr, max_sge: 2 } };
    let srq = harness.verbs.create_xrc_srq(&init, domain, cq).unwrap();
    let number = harness.verbs.srq_info(srq.handle()).unwrap().srqn;
    (srq, number)
}

fn target(harness: &mut Harness, domain: &Domain) -> (Target, Qpn) {
    let target = harness.verbs.create_xrc_recv_qp(domain).unwrap();
    harness.connect(target.handle());
    let number = harness.verbs.qp_info(target.handle()).unwrap().qpn;
    (target, number)
}

fn good() -> RawCompletion {
    raw(Qpn::new(0), RawKind::Recv, 0)
}

fn given(cq: &mut Cq) -> Vec<(u64, QpHandle)> {
    cq.completions().map(|done| done.map(|done| (done.wr_id, done.qp)).unwrap()).collect()
}

#[test]
fn each_operation_of_an_initiator_names_a_shared_receive_queue() {
    let mut harness = Harness::with(QpType::XrcSend, false);
    let qp = harness.qp;
    let sges = [harness.sge(0, 8)];
    for op in each(&sges) {
        let plain = SendWr { wr_id: 1, flags: SendFlags::SIGNALED, op };
        for refused in [
            harness.verbs.post_send(qp, &plain).unwrap_err(),
            harness.verbs.post_send_list(qp, &[plain]).unwrap_err().error,
            harness.verbs.send_batch(qp).post(&plain).unwrap_err(),
        ] {
            assert_eq!((refused, refused.errno()), (PostSendError::NoSrqNumber, Errno::Einval), "{op:?}");
        }
    }
    assert!(harness.device().sent.is_empty() && harness.device().doorbells.is_empty());
    for op in each(&sges) {
        harness.verbs.post_send(qp, &SendWr { wr_id: 1, flags: SendFlags::SIGNALED, op }.to_srq(SRQN)).unwrap();
        assert!(harness.device().execute(harness.qpn()));
        let done = harness.poll().unwrap();
        let expected = match op {
            SendOp::Send { .. } | SendOp::SendWithImm { .. } | SendOp::SendWithInv { .. } => WcOpcode::Send,
            SendOp::Write { .. } | SendOp::WriteWithImm { .. } => WcOpcode::RdmaWrite,
            SendOp::Read { .. } => WcOpcode::RdmaRead,
            SendOp::CompareSwap { .. } => WcOpcode::CompSwap,
            _ => WcOpcode::FetchAdd,
        };
        assert_eq!((done.len(), done[0].opcode, done[0].byte_len), (1, expected, 8));
    }
    let opcodes: Vec<_> = harness
        .device()
        .sent
        .iter()
        .map(|sent| match sent.kind {
            Kind::Xrc { srqn: SRQN, opcode, bytes: 8 } => opcode,
            other => panic!("{other:?}"),
        })
        .collect();
    use DataOpcode::{Read, Send, SendWithImm, SendWithInv, Write, WriteWithImm};
    let expected = [Send, SendWithImm, Write, WriteWithImm, SendWithInv, Read].map(Some);
    assert_eq!(opcodes, [&expected[..], &[None, None]].concat());
    // By a list and by a batch, with one doorbell each.
    let doorbells = harness.device().doorbells.len();
    let plain = [SendWr::send(b"a").id(1), SendWr::write(REMOTE, b"b").id(2)];
    let list = plain.each_ref().map(|wr| wr.to_srq(SRQN));
    harness.verbs.post_send_list(qp, &list).unwrap();
    let mut batch = harness.verbs.send_batch(qp);
    batch.post(&list[0]).unwrap();
    batch.post(&list[1]).unwrap();
    drop(batch);
    assert_eq!(harness.device().doorbells.len(), doorbells + 2);
    // On others there is no such destination, and an initiator has no datagrams.
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut harness = Harness::with(qp_type, false);
        let refused = harness.verbs.post_send(harness.qp, &list[0]).unwrap_err();
        assert_eq!(refused, PostSendError::Destination { qp_type });
    }
    let mut harness = Harness::with(QpType::Ud, false);
    assert_eq!(harness.verbs.post_send(harness.qp, &list[0]), Err(PostSendError::NoAddressHandle));
}

#[test]
fn what_is_wrong_with_a_request_is_named_and_nothing_is_posted() {
    let mut harness = Harness::with(QpType::XrcSend, false);
    let qp = harness.qp;
    let other_pd = harness.verbs.alloc_pd().unwrap();
    let mr = register(&mut harness.verbs, other_pd, BASE, LENGTH, super::ALL_RIGHTS).unwrap();
    let read_only = harness.region(Access::empty());
    let mut theirs = harness.sge(0, 8);
    theirs.lkey = harness.verbs.mr_info(mr).unwrap().lkey;
    let mut unwritable = harness.sge(0, 8);
    unwritable.lkey = harness.verbs.mr_info(read_only).unwrap().lkey;
    let (good, beyond, bytes) = (harness.sge(0, 8), harness.sge(LENGTH - 7, 8), [0; 129]);
    let (range, domain, access) = (super::range(beyond.addr, 8), SgeFault::Domain, SgeFault::Access);
    let sge = |index, sge: &crate::Sge, fault| PostSendError::Sge { index, lkey: sge.lkey, fault };
    let inner = SendWr::send(b"x");
    let nested = inner.to_srq(SRQN);
    let (lone, five) = ([good], [good; 5]);
    let inv = SendWr::local_inv(Rkey::new(0x1234));
    let solicited = PostSendError::Flags { flags: SendFlags::SOLICITED };
    let cases = [
        (SendWr::send(&five), PostSendError::SgeCount { count: 5, max: 4 }),
        (SendWr::send(&bytes), PostSendError::InlineSize { length: 129, max: 128 }),
        (SendWr::write(REMOTE, &lone).solicited(), solicited),
        (SendWr::fetch_add(REMOTE, good, 1).solicited(), solicited),
        (SendWr::fetch_add(REMOTE, harness.sge(0, 4), 1), PostSendError::AtomicLength { length: 4, needed: 8 }),
        (nested, PostSendError::NotToSrq),
        (inv, PostSendError::NotToSrq),
    ];
    for (wr, error) in &cases {
        assert_eq!(harness.verbs.post_send(qp, &wr.to_srq(SRQN)), Err(*error), "{wr:?}");
    }
    let odd = crate::Remote { addr: 0x8004, ..REMOTE };
    let refused = harness.verbs.post_send(qp, &SendWr::fetch_add(odd, good, 1).to_srq(SRQN)).unwrap_err();
    assert_eq!(refused, PostSendError::AtomicAlignment { addr: 0x8004, needed: 8 });
    for (sges, error) in [([good, beyond], sge(1, &beyond, range)), ([theirs, good], sge(0, &theirs, domain))] {
        assert_eq!(harness.verbs.post_send(qp, &SendWr::send(&sges).to_srq(SRQN)), Err(error));
    }
    let refused = harness.verbs.post_send(qp, &SendWr::read(REMOTE, &[unwritable]).to_srq(SRQN));
    assert_eq!(refused, Err(sge(0, &unwritable, access)));
    let refused = harness.verbs.post_send(qp, &SendWr::fetch_add(REMOTE, unwritable, 1).to_srq(SRQN));
    assert_eq!(refused, Err(sge(0, &unwritable, access)));
    let far = Srqn::new(1 << 24);
    assert_eq!(harness.verbs.post_send(qp, &inner.to_srq(far)), Err(PostSendError::SrqNumber { srqn: far }));
    assert!(harness.device().sent.is_empty() && harness.device().doorbells.is_empty());
    // The largest message, and one byte more.
    let big = register(&mut harness.verbs, harness.pd, 0, 1 << 40, Access::empty()).unwrap();
    let half = crate::Sge { addr: 0, length: 1 << 30, lkey: harness.verbs.mr_info(big).unwrap().lkey };
    let over = [half, half, crate::Sge { length: 1, ..half }];
    let refused = harness.verbs.post_send(qp, &SendWr::send(&over).to_srq(SRQN));
    assert_eq!(refused, Err(PostSendError::MessageSize { max: 1 << 31 }));
    harness.verbs.post_send(qp, &SendWr::send(&over[..2]).signaled().to_srq(SRQN)).unwrap();
    assert!(harness.device().execute(harness.qpn()));
    assert_eq!(harness.poll().unwrap()[0].byte_len, 1 << 31);
    // As many as fit, and no more.
    let mut batch = harness.verbs.send_batch(qp);
    for _ in 0..16 {
        batch.post(&inner.to_srq(SRQN)).unwrap();
    }
    assert_eq!(batch.post(&inner.to_srq(SRQN)), Err(PostSendError::QueueFull { needed: 1, free: 0, blocks: 16 }));
    drop(batch);
    for state in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Err] {
        set_state(&harness.verbs, qp, state);
        assert_eq!(harness.verbs.post_send(qp, &inner.to_srq(SRQN)), Err(PostSendError::NotReady { state }));
    }
}

/// A request after a bind waits for it, as on other transports.
#[test]
fn binds_are_posted_as_they_are_and_fence_what_follows() {
    let mut harness = Harness::with(QpType::XrcSend, false);
    let (qp, mr) = (harness.qp, harness.mr);
    let mw = harness.window(MwType::Type1);
    let bind = Type1Bind { wr_id: 1, flags: SendFlags::empty(), mr, addr: BASE, length: 8, access: Access::REMOTE_READ };
    harness.verbs.bind_type1(qp, mw, &bind).unwrap();
    for _ in 0..2 {
        harness.verbs.post_send(qp, &SendWr::send(b"x").to_srq(SRQN)).unwrap();
    }
    let mw = harness.window(MwType::Type2);
    let info = crate::Binding { mr, addr: BASE, length: 8, access: Access::REMOTE_READ };
    harness.verbs.post_send(qp, &SendWr::bind_mw(mw, KeyTag(9), info)).unwrap();
    let after: Vec<bool> = harness.device().sent.iter().map(|sent| sent.flags.contains(SendFlags::AFTER_BIND)).collect();
    assert_eq!(after, [false, true, false, false]);
}

#[test]
fn a_device_without_atomics_has_none_here_either() {
    let mut mock = Mock::new();
    mock.device.atomics = false;
    let mut verbs = super::verbs_on(mock);
    let pd = verbs.alloc_pd().unwrap();
    let cq = verbs.create_cq(64).unwrap();
    let mr = register(&mut verbs, pd, BASE, LENGTH, Access::LOCAL_WRITE).unwrap();
    let init = QpInit { pd, qp_type: QpType::XrcSend, send_cq: cq, recv_cq: cq, cap: CAP, sq_sig_all: false };
    let qp = verbs.create_qp(&init).unwrap();
    let mut harness = Harness { verbs, pd, mr, cq, qp };
    harness.connect(qp);
    let wr = SendWr::fetch_add(REMOTE, harness.sge(0, 8), 1);
    assert_eq!(harness.verbs.post_send(qp, &wr.to_srq(SRQN)), Err(PostSendError::NoAtomics));
}

#[test]
fn an_error_moves_the_initiator_to_err_and_the_rest_is_flushed() {
    let mut harness = Harness::with(QpType::XrcSend, false);
    for id in 0..3 {
        harness.verbs.post_send(harness.qp, &SendWr::send(b"x").id(id).to_srq(SRQN)).unwrap();
    }
    harness.complete(0, WcStatus::RemInvReqErr);
    harness.complete(1, WcStatus::WrFlushErr);
    harness.complete(2, WcStatus::WrFlushErr);
    let done: Vec<_> = harness.poll().unwrap().iter().map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(done, [(0, WcStatus::RemInvReqErr), (1, WcStatus::WrFlushErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().state, QpState::Err);
}

/// A card returns 24 bits of a cookie, the lower 16 of which say XRC.
#[test]
fn a_place_that_no_completion_can_name_is_not_taken() {
    let rings: &'static [QpRings<16, 8>; 1] = Box::leak(Box::default());
    let few = || Box::leak(Box::new(SrqEntries::<4>::new())).view();
    let many = Box::leak(Box::new(SrqEntries::<8>::new())).view();
    let mut srqs = [many; 257].map(|_| few());
    srqs[256] = many;
    let tables: &'static mut _ = Box::leak(Box::new(
        <storage![Mock; pds: 1, mrs: 1, mws: 1, cqs: 1, qps: 1, srqs: 257]>::with_srqs(QpRings::views(rings), srqs),
    ));
    let mut verbs = Verbs::new(Mock::new(), tables);
    let pd = verbs.alloc_pd().unwrap();
    let mut cq = verbs.create_cq(4096).unwrap();
    let domain = verbs.alloc_xrcd().unwrap();
    let init = |max_wr| SrqInit { pd, cap: SrqCap { max_wr, max_sge: 2 } };
    let refused = verbs.create_xrc_srq(&init(7), &domain, &mut cq).unwrap_err();
    assert_eq!(refused, CreateSrqError::Entries { max_wr: 7, slots: 8, most: 4 });
    let plain = verbs.create_srq(&init(7)).unwrap();
    assert_eq!(plain.handle().index(), 256);
    let xrc: Vec<_> = (0..256).map(|_| verbs.create_xrc_srq(&init(3), &domain, &mut cq).unwrap()).collect();
    let full = verbs.create_xrc_srq(&init(3), &domain, &mut cq).unwrap_err();
    assert_eq!(full, CreateSrqError::Full { capacity: 256, fitting: 256 });
    assert_eq!(xrc.iter().map(|srq| srq.handle().index()).max(), Some(255));
}

/// Slots of queue pairs and shared receive queues have the same numbers, and an RC queue pair completes into the same queue.
#[test]
fn a_completion_tells_its_queue_whichever_target_took_it() {
    let mut harness = harness();
    let domain = harness.verbs.alloc_xrcd().unwrap();
    let mut cq = harness.verbs.take_cq(harness.cq);
    let (mut few, few_number) = srq(&mut harness, &domain, &mut cq, 3);
    let (mut many, many_number) = srq(&mut harness, &domain, &mut cq, 7);
    let ((first, a), (second, b)) = (target(&mut harness, &domain), target(&mut harness, &domain));
    let (rc, rc_number) = (harness.qp, harness.qpn());
    few.post_list(&[recv(10), recv(11), recv(12)]).unwrap();
    many.post_list(&[recv(20), recv(21), recv(22)]).unwrap();
    harness.verbs.post_recv(rc, &recv(30)).unwrap();
    let cqn = harness.verbs.cq_info(cq.handle()).unwrap().cqn;
    {
        let mut device = harness.device();
        let imm = RawCompletion { kind: RawKind::RecvRdmaWithImm, data: WcData::Imm([1, 2, 3, 4]), byte_len: 9, ..good() };
        assert!(device.deliver_xrc(b, many_number, good()).is_some());
        assert!(device.deliver_xrc(a, few_number, imm).is_some());
        device.complete(cqn, raw(rc_number, RawKind::Recv, 0));
        assert!(device.deliver_xrc(a, many_number, good()).is_some());
        assert!(device.deliver_xrc(b, few_number, good()).is_some());
    }
    let mut one = [Completion::EMPTY; 1];
    assert_eq!((cq.poll(&mut one), one[0].wr_id, one[0].qp), (Ok(1), 20, second.handle()));
    assert_eq!((cq.poll(&mut one), one[0].wr_id, one[0].qp), (Ok(1), 10, first.handle()));
    assert_eq!((one[0].opcode, one[0].data, one[0].byte_len), (WcOpcode::RecvRdmaWithImm, WcData::Imm([1, 2, 3, 4]), 9));
    assert_eq!(given(&mut cq), [(30, rc), (21, first.handle()), (11, second.handle())]);
    let info = harness.verbs.srq_info(many.handle()).unwrap();
    assert_eq!((info.recvs, info.queue_pairs, info.cq), (1, 0, Some(cq.handle())));
    let info = harness.verbs.qp_info(first.handle()).unwrap();
    assert_eq!((info.qp_type, info.recv_cq, info.send_cq, info.srq), (QpType::XrcRecv, CqHandle::NONE, CqHandle::NONE, None));
}

#[test]
fn completions_that_fit_no_queue_are_errors_and_retire_nothing() {
    let mut harness = harness();
    let domain = harness.verbs.alloc_xrcd().unwrap();
    let (mut cq, mut other) = (harness.verbs.take_cq(harness.cq), harness.verbs.verbs_mut().create_cq(64).unwrap());
    let (mut first, number) = srq(&mut harness, &domain, &mut cq, 3);
    let (mut second, second_number) = srq(&mut harness, &domain, &mut other, 7);
    let (_target, qpn) = target(&mut harness, &domain);
    first.post(&recv(1)).unwrap();
    second.post(&recv(2)).unwrap();
    let (cqn, index) = (harness.verbs.cq_info(cq.handle()).unwrap().cqn, u32::from(first.handle().index()));
    let unknown = PollCqError::UnknownQp { qpn, cqn };
    let at = |index| RawCompletion { qpn, index, ..good() };
    let lost = |index| PollCqError::UnknownRequest { qp: QpHandle::NONE, kind: RawKind::Recv, index };
    let of = |index: u32| index << 16 | 0xffff;
    for (cookie, raw, error) in [
        // The one that completes elsewhere, one that there is not, none of XRC, a send.
        (of(1 - index), at(0), unknown),
        (of(7), at(0), unknown),
        (of(0xffff), at(0), unknown),
        (index << 16 | 2, at(0), unknown),
        (index, at(0), unknown),
        (of(index), RawCompletion { kind: RawKind::Send, ..at(0) }, unknown),
        // Places that are free, or not there.
        (of(index), RawCompletion { qpn: Qpn::new(0x77), ..at(1) }, lost(1)),
        (of(index), RawCompletion { qpn: Qpn::new(0x77), ..at(4) }, lost(4)),
        (of(index), RawCompletion { qpn: Qpn::new(0x77), ..at(u16::MAX) }, lost(u16::MAX)),
    ] {
        harness.device().put_entry(cqn, Entry { raw: Ok(raw), cookie: Some(cookie) });
        let mut out = [Completion::EMPTY; 2];
        assert_eq!(cq.poll(&mut out), Err(error), "{cookie:#x}");
    }
    assert!(harness.device().deliver_xrc(qpn, number, good()).is_some());
    assert!(harness.device().deliver_xrc(qpn, second_number, good()).is_some());
    assert_eq!((given(&mut cq)[0].0, given(&mut other)[0].0), (1, 2));
    // The same place a second time.
    harness.device().put_entry(cqn, Entry { raw: Ok(at(0)), cookie: Some(of(index)) });
    assert!(matches!(cq.poll(&mut [Completion::EMPTY; 2]), Err(PollCqError::UnknownRequest { index: 0, .. })));
}

#[test]
fn what_waits_of_a_queue_that_ended_is_dropped_before_its_slot_has_another() {
    let mut harness = harness();
    let domain = harness.verbs.alloc_xrcd().unwrap();
    let mut cq = harness.verbs.take_cq(harness.cq);
    let (mut first, number) = srq(&mut harness, &domain, &mut cq, 7);
    let (other, _) = srq(&mut harness, &domain, &mut cq, 3);
    let (target, qpn) = target(&mut harness, &domain);
    first.post_list(&[recv(1), recv(2), recv(3)]).unwrap();
    for _ in 0..2 {
        harness.device().deliver_xrc(qpn, number, good()).unwrap();
    }
    harness.verbs.destroy_srq(first).unwrap();
    let init = SrqInit { pd: harness.pd, cap: SrqCap { max_wr: 7, max_sge: 1 } };
    assert_eq!(harness.verbs.create_xrc_srq(&init, &domain, &mut cq).map(drop), Err(CreateSrqError::Draining));
    let refused = harness.verbs.create_srq(&init).map(drop).unwrap_err();
    assert_eq!((refused, refused.errno()), (CreateSrqError::Draining, Errno::Eagain));
    assert_eq!(given(&mut cq), []);
    let mut basic = harness.verbs.create_srq(&init).unwrap();
    basic.post(&recv(4)).unwrap();
    harness.verbs.destroy_srq(basic).unwrap();
    let (mut next, number) = srq(&mut harness, &domain, &mut cq, 7);
    next.post(&recv(5)).unwrap();
    harness.device().deliver_xrc(qpn, number, good()).unwrap();
    assert_eq!(given(&mut cq), [(5, target.handle())]);
    // A completion queue that is gone, or whose value was dropped, has nothing that waits.
    harness.verbs.destroy_srq(next).unwrap();
    harness.verbs.destroy_srq(other).unwrap();
    drop(cq);
    assert!(harness.verbs.create_srq(&init).is_ok());
}

/// What a peer invalidated is free, although the receive that tells of it was posted to a queue that ended.
#[test]
fn an_invalidation_that_a_queue_which_ended_received_is_learned() {
    let mut harness = harness();
    let domain = harness.verbs.alloc_xrcd().unwrap();
    let mut cq = harness.verbs.take_cq(harness.cq);
    let (mut srq, number) = srq(&mut harness, &domain, &mut cq, 3);
    let (_target, qpn) = target(&mut harness, &domain);
    let mr = harness.region(Access::LOCAL_WRITE | Access::MW_BIND);
    let mw = harness.verbs.alloc_mw(harness.pd, MwType::Type2).unwrap();
    let binding = crate::Binding { mr, addr: BASE, length: 8, access: Access::REMOTE_WRITE };
    harness.verbs.post_send(harness.qp, &SendWr::bind_mw(mw, KeyTag(1), binding).signaled()).unwrap();
    let rkey = harness.verbs.mw_info(mw).unwrap().rkey;
    srq.post(&recv(1)).unwrap();
    let invalidated = RawCompletion { data: WcData::Invalidated(rkey), ..good() };
    harness.device().deliver_xrc(qpn, number, invalidated).unwrap();
    harness.verbs.destroy_srq(srq).unwrap();
    assert!(harness.verbs.mw_info(mw).unwrap().binding.is_some());
    assert_eq!(given(&mut cq), []);
    assert_eq!(harness.verbs.mw_info(mw).unwrap().binding, None);
}

#[test]
fn completions_of_a_target_that_ended_come() {
    let mut harness = harness();
    let domain = harness.verbs.alloc_xrcd().unwrap();
    let mut cq = harness.verbs.take_cq(harness.cq);
    let (mut queue, number) = srq(&mut harness, &domain, &mut cq, 7);
    let ((mut first, a), (second, b)) = (target(&mut harness, &domain), target(&mut harness, &domain));
    queue.post_list(&[recv(1), recv(2), recv(3), recv(4)]).unwrap();
    let failed = RawCompletion { status: WcStatus::LocLenErr, ..good() };
    harness.device().deliver_xrc(a, number, good()).unwrap();
    harness.device().deliver_xrc(a, number, failed).unwrap();
    harness.device().deliver_xrc(b, number, good()).unwrap();
    harness.verbs.reset_qp(&mut first).unwrap();
    harness.connect(first.handle());
    harness.verbs.verbs_mut().destroy_qp(second).unwrap();
    let done: Vec<_> =
        cq.completions().map(|done| done.map(|done| (done.wr_id, done.qp, done.qpn, done.status)).unwrap()).collect();
    let (ok, bad) = (WcStatus::Success, WcStatus::LocLenErr);
    assert_eq!(done, [(1, first.handle(), a, ok), (2, first.handle(), a, bad), (3, QpHandle::NONE, b, ok)]);
    // What came before the reset says nothing of the state after it.
    assert_eq!(harness.verbs.qp_info(first.handle()).unwrap().state, QpState::Rts);
}

#[test]
fn a_lost_device_flushes_each_request_once_where_its_queue_completes() {
    let mut harness = harness();
    let domain = harness.verbs.alloc_xrcd().unwrap();
    let (mut cq, mut other) = (harness.verbs.take_cq(harness.cq), harness.verbs.verbs_mut().create_cq(64).unwrap());
    let (mut first, number) = srq(&mut harness, &domain, &mut cq, 3);
    let (mut second, _) = srq(&mut harness, &domain, &mut other, 7);
    let (_target, qpn) = target(&mut harness, &domain);
    first.post_list(&[recv(1), recv(2), recv(3)]).unwrap();
    second.post_list(&[recv(11), recv(12)]).unwrap();
    harness.device().deliver_xrc(qpn, number, good()).unwrap();
    harness.device().loss = Some(DeviceLoss::Gone);
    assert!(harness.verbs.maintain().is_err());
    let end = PollCqError::DeviceLost { loss: DeviceLoss::Gone };
    for (cq, expected) in [(&mut cq, vec![1, 2, 3]), (&mut other, vec![11, 12])] {
        let mut ids = Vec::new();
        let mut one = [Completion::EMPTY; 1];
        let error = loop {
            match cq.poll(&mut one) {
                Ok(count) => assert_eq!(count, 1),
                Err(error) => break error,
            }
            let done = one[0];
            let flushed = (done.status, done.data) == (WcStatus::WrFlushErr, WcData::Lost(DeviceLoss::Gone));
            assert!(flushed != (done.wr_id == 1), "{done:?}");
            ids.push(done.wr_id);
        };
        assert_eq!((ids, error), (expected, end));
        assert_eq!(cq.poll(&mut one), Err(end));
    }
    assert!(first.post(&recv(9)).is_err());
}

#[test]
fn verbs_that_are_dropped_flush_them_too() {
    let mut harness = harness();
    let domain = harness.verbs.alloc_xrcd().unwrap();
    let mut cq = harness.verbs.take_cq(harness.cq);
    let (mut queue, _) = srq(&mut harness, &domain, &mut cq, 3);
    queue.post(&recv(1)).unwrap();
    drop(harness);
    let mut one = [Completion::EMPTY; 1];
    assert_eq!((cq.poll(&mut one), one[0].wr_id, one[0].data), (Ok(1), 1, WcData::Lost(DeviceLoss::Abandoned)));
    assert_eq!(cq.poll(&mut one), Err(PollCqError::DeviceLost { loss: DeviceLoss::Abandoned }));
}

#[test]
fn a_domain_is_of_its_verbs_and_lasts_while_queues_are_in_it() {
    let (mut harness, mut strange) = (harness(), harness());
    let domain = harness.verbs.alloc_xrcd().unwrap();
    let mut cq = harness.verbs.take_cq(harness.cq);
    let (queue, _) = srq(&mut harness, &domain, &mut cq, 3);
    let (receiver, _) = target(&mut harness, &domain);
    let refused = harness.verbs.dealloc_xrcd(domain).unwrap_err();
    assert_eq!(refused.error, DeallocXrcdError::Busy { users: 2 });
    let domain = refused.returned.unwrap();
    let refused = strange.verbs.dealloc_xrcd(domain).unwrap_err();
    assert_eq!((refused.error, refused.error.errno()), (DeallocXrcdError::Stale, Errno::Einval));
    let domain = refused.returned.unwrap();
    let init = strange.init(QpType::XrcSend);
    assert_eq!(strange.verbs.create_xrc_send_qp(&init, &domain).map(drop), Err(CreateQpError::StaleXrcDomain));
    assert_eq!(strange.verbs.create_xrc_recv_qp(&domain).map(drop), Err(CreateQpError::StaleXrcDomain));
    let own = strange.verbs.alloc_xrcd().unwrap();
    let srq_init = SrqInit { pd: strange.pd, cap: SrqCap { max_wr: 3, max_sge: 1 } };
    assert_eq!(strange.verbs.create_xrc_srq(&srq_init, &own, &mut cq).map(drop), Err(CreateSrqError::StaleCq));
    let mut own_cq = strange.verbs.take_cq(strange.cq);
    let stale = strange.verbs.create_xrc_srq(&srq_init, &domain, &mut own_cq).map(drop);
    assert_eq!(stale, Err(CreateSrqError::StaleXrcDomain));
    {
        let device = strange.device();
        assert_eq!((device.srqs.len(), device.qps.len()), (0, 1));
    }
    // A device that gives the number of a domain in use.
    harness.device().next_xrcdn = Some(Xrcdn::new(1));
    let foreign = harness.verbs.alloc_xrcd().map(drop);
    assert_eq!(foreign, Err(AllocXrcdError::Answer { fault: AnswerFault::NumberInUse { number: 1 } }));
    // The completion queue and the protection domain are in use.
    let init = harness.init(QpType::XrcSend);
    let dead = QpInit { send_cq: CqHandle::NONE, ..init };
    assert_eq!(harness.verbs.create_xrc_send_qp(&dead, &domain).map(drop), Err(CreateQpError::StaleCq));
    harness.verbs.destroy_qp(harness.qp).unwrap();
    let refused = harness.verbs.verbs_mut().destroy_cq(cq).unwrap_err();
    assert_eq!(refused.error, DestroyCqError::Busy { users: 1 });
    let cq = refused.returned.unwrap();
    harness.verbs.destroy_srq(queue).unwrap();
    harness.verbs.verbs_mut().destroy_cq(cq).unwrap();
    harness.device().fail_after = Some(0);
    let refused = harness.verbs.verbs_mut().destroy_qp(receiver).unwrap_err();
    assert_eq!(refused.error, DestroyQpError::Device(MockError::Refused));
    harness.verbs.verbs_mut().destroy_qp(refused.returned.unwrap()).unwrap();
    harness.verbs.dealloc_xrcd(domain).map_err(|refused| refused.error).unwrap();
    let device = harness.device();
    assert_eq!((device.domains.len(), device.violations.len()), (0, 0));
}

/// Somebody else may have the receive queue of an RC queue pair: its send queue with nothing beside it is not whole.
#[test]
fn a_queue_pair_is_not_made_whole_by_the_side_of_an_xrc_one() {
    let mut harness = harness();
    let domain = harness.verbs.alloc_xrcd().unwrap();
    let (receiver, _) = target(&mut harness, &domain);
    let send = harness.verbs.take_send(harness.qp);
    let recv = harness.verbs.take_recv(harness.qp);
    let QueuePair { send: send_of_target, recv: nothing } = receiver;
    let mut mixed = QueuePair { send, recv: nothing };
    assert_eq!(harness.verbs.reset_qp(&mut mixed), Err(ModifyQpError::Stale));
    let refused = harness.verbs.verbs_mut().destroy_qp(mixed).unwrap_err();
    assert_eq!(refused.error, DestroyQpError::Stale);
    let QueuePair { send, recv: nothing } = refused.returned.unwrap();
    let mixed = QueuePair { send: send_of_target, recv };
    let refused = harness.verbs.verbs_mut().destroy_qp(mixed).unwrap_err();
    assert_eq!(refused.error, DestroyQpError::Stale);
    let QueuePair { send: send_of_target, recv } = refused.returned.unwrap();
    harness.verbs.verbs_mut().destroy_qp(QueuePair { send: send_of_target, recv: nothing }).unwrap();
    harness.verbs.verbs_mut().destroy_qp(QueuePair { send, recv }).unwrap();
}

/// A model of two domains: each request of a shared receive queue is given back once with its `wr_id`, or ends with its queue; where and
/// by whom is as the device did it.
#[test]
fn each_request_is_given_back_once_whatever_happens() {
    for seed in 0..if cfg!(miri) { 2 } else { 60_u64 } {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut pick = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let mut harness = harness();
        let domains = [harness.verbs.alloc_xrcd().unwrap(), harness.verbs.alloc_xrcd().unwrap()];
        let mut cqs = [harness.verbs.take_cq(harness.cq), harness.verbs.verbs_mut().create_cq(64).unwrap()];
        let mut targets: Vec<(Target, Qpn, usize)> = Vec::new();
        for domain in [0, 0, 1] {
            let (target, number) = target(&mut harness, &domains[domain]);
            targets.push((target, number, domain));
        }
        // Queue, number, domain, completion queue.
        let mut queues: Vec<Option<(Srq, Srqn, usize, usize)>> = vec![None, None];
        // What was posted to each and not given back, and what waits in each completion queue: id, queue, target.
        let mut open: Vec<BTreeMap<u64, ()>> = vec![BTreeMap::new(); 2];
        let mut order: Vec<Vec<u64>> = vec![Vec::new(); 2];
        let mut waiting: [Vec<(u64, usize, QpHandle)>; 2] = [Vec::new(), Vec::new()];
        let mut next_id = 0_u64;
        for step in 0..400 {
            let at = pick(2) as usize;
            match pick(8) {
                0 | 1 => {
                    if let Some((queue, ..)) = &mut queues[at] {
                        let fits = queue.post(&recv(next_id)).is_ok();
                        let room = 3 - open[at].len();
                        assert_eq!(fits, room != 0, "step {step} of seed {seed}");
                        if fits {
                            open[at].insert(next_id, ());
                            order[at].push(next_id);
                        }
                        next_id += 1;
                    } else {
                        let (domain, cq) = (pick(2) as usize, pick(2) as usize);
                        let init = SrqInit { pd: harness.pd, cap: SrqCap { max_wr: 3, max_sge: 1 } };
                        match harness.verbs.create_xrc_srq(&init, &domains[domain], &mut cqs[cq]) {
                            Ok(queue) => {
                                let number = harness.verbs.srq_info(queue.handle()).unwrap().srqn;
                                queues[at] = Some((queue, number, domain, cq));
                            }
                            Err(error) => assert_eq!(error, CreateSrqError::Draining),
                        }
                    }
                }
                2..=4 => {
                    let (target, qpn, of) = &targets[pick(3) as usize];
                    if let Some((_, number, domain, cq)) = &queues[at] {
                        let came = harness.device().deliver_xrc(*qpn, *number, good()).is_some();
                        assert_eq!(came, of == domain && !order[at].is_empty());
                        if came {
                            waiting[*cq].push((order[at].remove(0), at, target.handle()));
                        }
                    }
                }
                5 | 6 => {
                    let count = 1 + pick(3) as usize;
                    let mut out = [Completion::EMPTY; 3];
                    let got = cqs[at].poll(&mut out[..count]).unwrap();
                    // What ended with its queue is not given.
                    let mut expected: Vec<(u64, usize, QpHandle)> = Vec::new();
                    while expected.len() < got {
                        expected.push(waiting[at].remove(0));
                    }
                    for (done, (id, of, qp)) in out.iter().zip(&expected) {
                        assert_eq!((done.wr_id, done.qp), (*id, *qp), "step {step} of seed {seed}");
                        open[*of].remove(id).unwrap();
                    }
                    assert!(got == count || waiting[at].is_empty());
                }
                _ => {
                    if pick(4) == 0
                        && let Some((queue, ..)) = queues[at].take()
                    {
                        harness.verbs.destroy_srq(queue).unwrap();
                        waiting.iter_mut().for_each(|row| row.retain(|(_, of, _)| *of != at));
                        open[at].clear();
                        order[at].clear();
                    } else {
                        harness.verbs.reset_qp(&mut targets[at].0).unwrap();
                        let handle = targets[at].0.handle();
                        harness.connect(handle);
                    }
                }
            }
        }
        harness.device().loss = Some(DeviceLoss::Fatal);
        assert!(harness.verbs.maintain().is_err());
        for cq in &mut cqs {
            let mut one = [Completion::EMPTY; 1];
            while let Ok(count) = cq.poll(&mut one) {
                assert_eq!(count, 1);
                let of = open.iter().position(|open| open.contains_key(&one[0].wr_id)).expect("a request that was open");
                open[of].remove(&one[0].wr_id);
            }
        }
        assert!(open.iter().all(BTreeMap::is_empty), "{open:?} of seed {seed}");
        assert_eq!(harness.device().violations, Vec::<&str>::new());
    }
}

/// A number of which there is a domain already is refused, though no queue is in that: its end would be that of the other.
#[test]
fn a_domain_number_that_is_given_twice_is_refused() {
    let mut harness = Harness::new();
    let first = harness.verbs.alloc_xrcd().unwrap();
    let dropped = harness.verbs.alloc_xrcd().map(drop);
    assert_eq!(dropped, Ok(()));
    for number in [1, 2] {
        harness.device().next_xrcdn = Some(Xrcdn::new(number));
        let again = harness.verbs.alloc_xrcd().map(drop).unwrap_err();
        assert_eq!(again, AllocXrcdError::Answer { fault: AnswerFault::NumberInUse { number } });
    }
    assert!(harness.verbs.dealloc_xrcd(first).is_ok());
    // It is free now.
    harness.device().next_xrcdn = Some(Xrcdn::new(1));
    harness.verbs.alloc_xrcd().map(drop).unwrap();
    for _ in 2..crate::XRC_DOMAINS {
        harness.verbs.alloc_xrcd().map(drop).unwrap();
    }
    let alive = harness.device().domains.len();
    let full = harness.verbs.alloc_xrcd().map(drop).unwrap_err();
    assert_eq!((full, full.errno()), (AllocXrcdError::Full { capacity: 16 }, crate::error::Errno::Enomem));
    assert_eq!(harness.device().domains.len(), alive, "the device was not asked");
}
