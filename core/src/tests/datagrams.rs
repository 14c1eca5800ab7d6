//! Datagrams: destinations, what is refused, where they come from, and the states of unreliable queue pairs.

use std::string::ToString as _;
use std::vec::Vec;

use super::mock::{Kind, MockError, raw};
use super::post::send;
use super::{ALL_RIGHTS, Harness, LENGTH, attributes, register, set_state};
use crate::backend::RawCompletion;
use crate::error::{
    AddressPart, AttachMcastError, CreateAhError, DestroyQpError, DetachMcastError, DeviceLoss, Errno, LinkFault,
    ModifyQpError, PollCqError, PostSendError, RawKind, SgeFault,
};
use crate::{
    AddressHandle, AddressVector, Completion, Destination, Gid, GlobalRoute, Lid, MCAST_GROUPS, Mtu, Payload, PdHandle,
    PortAttr, PortState, Qkey, QpAttr, QpAttrMask, QpState, QpType, Qpn, RecvWr, SendFlags, SendOp, SendWr, Sge, WcData,
    WcOpcode, WcStatus,
};

const AV: AddressVector =
    AddressVector { dlid: Lid::new(0x1234), sl: 0, src_path_bits: 0, static_rate: 0, port_num: 1, grh: None, dmac: None };

/// A datagram queue pair that sends, and a destination.
fn harness() -> (Harness, Destination) {
    let mut harness = Harness::with(QpType::Ud, false);
    let pd = harness.pd;
    let to = destination(&mut harness, pd);
    (harness, to)
}

fn destination(harness: &mut Harness, pd: PdHandle) -> Destination {
    let ah = harness.verbs.create_ah(pd, &AV).unwrap();
    Destination { ah, remote_qpn: Qpn::new(0x77), remote_qkey: Qkey::new(0x1111_1111) }
}

fn kinds(harness: &Harness) -> Vec<(u32, Kind, SendFlags)> {
    harness.device().sent.iter().map(|sent| (sent.at, sent.kind, sent.flags)).collect()
}

#[test]
fn a_datagram_goes_to_its_destination() {
    let (mut harness, to) = harness();
    let sges = [harness.sge(0, 8), harness.sge(8, 0), harness.sge(100, 24)];
    let (one, three, bytes) = (&sges[..1], &sges[..], [0x5a_u8; 100]);
    harness.verbs.post_send(harness.qp, &SendWr::send_to(&to, one).id(1).signaled()).unwrap();
    harness.verbs.post_send(harness.qp, &SendWr::send_to_with_imm(&to, three, [1, 2, 3, 4]).id(2).solicited()).unwrap();
    let list = [SendWr::send_to(&to, &bytes).id(3).signaled(), SendWr::send_to(&to, &bytes[..0]).id(4).signaled()];
    harness.verbs.post_send_list(harness.qp, &list).unwrap();
    let mut batch = harness.verbs.send_batch(harness.qp);
    batch.post(&SendWr::send_to(&to, one).id(5)).unwrap();
    batch.post(&SendWr::send_to(&to, one).id(6).signaled()).unwrap();
    batch.ring();
    drop(batch);
    let sent = |bytes, imm| Kind::Datagram { remote_qpn: Qpn::new(0x77), bytes, imm, encoded: 0x1234 };
    let (signaled, none) = (SendFlags::SIGNALED, SendFlags::empty());
    // A block for the address; payloads in the blocks after it.
    let expected = [
        (0, sent(8, None), signaled),
        (2, sent(32, Some([1, 2, 3, 4])), SendFlags::SOLICITED),
        (4, sent(100, None), signaled),
        (7, sent(0, None), signaled),
        (9, sent(8, None), none),
        (11, sent(8, None), signaled),
    ];
    assert_eq!(kinds(&harness), expected);
    let doorbells: Vec<u32> = harness.device().doorbells.iter().map(|bell| bell.1).collect();
    assert_eq!(doorbells, [2, 4, 9, 13]);
    let qpn = harness.qpn();
    while harness.device().execute(qpn) {}
    let done = harness.poll().unwrap();
    let ends: Vec<_> = done.iter().map(|done| (done.wr_id, done.opcode, done.byte_len, done.status)).collect();
    let ok = |wr_id, bytes| (wr_id, WcOpcode::Send, bytes, WcStatus::Success);
    assert_eq!(ends, [ok(1, 8), ok(3, 100), ok(4, 0), ok(6, 8)]);
}

#[test]
fn what_is_wrong_with_a_datagram_is_named_and_nothing_is_posted() {
    let (mut harness, to) = harness();
    let other_pd = harness.verbs.alloc_pd().unwrap();
    let foreign = destination(&mut harness, other_pd);
    let far = Destination { remote_qpn: Qpn::new(1 << 24), ..to };
    let other_mr = register(&mut harness.verbs, other_pd, super::BASE, LENGTH, ALL_RIGHTS).unwrap();
    let other_key = harness.verbs.mr_info(other_mr).unwrap().lkey;
    let good = harness.sge(0, 8);
    let bytes = [0; 2000];
    let max = Mtu::Mtu1024.bytes();
    let range = PostSendError::Sge { index: 1, lkey: good.lkey, fault: super::range(harness.sge(LENGTH, 1).addr, 1) };
    let domain = PostSendError::Sge { index: 0, lkey: other_key, fault: SgeFault::Domain };
    let fence = PostSendError::Flags { flags: SendFlags::FENCE };
    let inline = PostSendError::Flags { flags: SendFlags::INLINE };
    let (long, beyond, theirs) = ([harness.sge(0, max), good], [good, harness.sge(LENGTH, 1)], Sge { lkey: other_key, ..good });
    for (wr, error, errno) in [
        (SendWr::send(&[good]), PostSendError::NoAddressHandle, Errno::Einval),
        (SendWr::send_with_imm(&[good], [0; 4]), PostSendError::NoAddressHandle, Errno::Einval),
        (SendWr::send_to(&foreign, &[good]), PostSendError::AddressDomain, Errno::Eperm),
        (SendWr::send_to(&far, &[good]), PostSendError::RemoteQpn { qpn: Qpn::new(1 << 24) }, Errno::Einval),
        (SendWr::send_to(&to, &[good]).fenced(), fence, Errno::Einval),
        (SendWr::send_to(&to, &[good]).with(SendFlags::INLINE), inline, Errno::Einval),
        (SendWr::send_to(&to, &beyond), range, Errno::Erange),
        (SendWr::send_to(&to, &[theirs]), domain, Errno::Eperm),
        (SendWr::send_to(&to, &[good; 5]), PostSendError::SgeCount { count: 5, max: 4 }, Errno::Einval),
        (SendWr::send_to(&to, &bytes[..129]), PostSendError::InlineSize { length: 129, max: 128 }, Errno::Einval),
        (SendWr::send_to(&to, &long), PostSendError::MessageSize { max }, Errno::Einval),
    ] {
        let refused = harness.verbs.post_send(harness.qp, &wr).unwrap_err();
        assert_eq!((refused, refused.errno()), (error, errno), "{wr:?}");
        assert!(!refused.to_string().is_empty());
        let listed = harness.verbs.post_send_list(harness.qp, &[wr]).unwrap_err();
        assert_eq!((listed.index, listed.error), (0, error));
    }
    assert!(kinds(&harness).is_empty() && harness.device().doorbells.is_empty());
    // As many as fit, and no more.
    let mut batch = harness.verbs.send_batch(harness.qp);
    let free = batch.free_blocks();
    for _ in 0..free / 2 {
        batch.post(&SendWr::send_to(&to, &[good])).unwrap();
    }
    let full = batch.post(&SendWr::send_to(&to, &[good])).unwrap_err();
    assert_eq!(full, PostSendError::QueueFull { needed: 2, free: 0, blocks: 16 });
    drop(batch);
    for state in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Sqe, QpState::Err] {
        set_state(&harness.verbs, harness.qp, state);
        let refused = harness.verbs.post_send(harness.qp, &SendWr::send_to(&to, &[good])).unwrap_err();
        assert_eq!(refused, PostSendError::NotReady { state });
    }
}

/// IBTA 13.4.2: 256 bytes, whatever the port's packets have. IBTA 10.2.5: the Q_Key of QP1 is fixed.
#[test]
fn a_management_datagram_has_256_bytes_at_most_and_the_q_key_of_queue_pair_1() {
    let mut harness = Harness::with(QpType::Rc, false);
    let pd = harness.pd;
    let qp = harness.verbs.create_qp(&harness.init(QpType::Gsi)).unwrap();
    let rule = crate::transition::rule(QpType::Gsi, QpState::Reset, QpState::Init).unwrap();
    for wrong in [0, 1, 0x8001_0001, 0x1111_1111] {
        let attr = QpAttr { qkey: Qkey::new(wrong), ..attributes(QpState::Init) };
        let refused = harness.verbs.modify_qp(qp, &attr, rule.required | QpAttrMask::STATE).unwrap_err();
        let (attribute, only) = (QpAttrMask::QKEY, 0x8001_0000);
        assert_eq!(refused, ModifyQpError::Value { attribute, part: None, value: wrong, min: only, max: only });
    }
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        harness.step(qp, state);
    }
    let to = destination(&mut harness, pd);
    let (fits, longer) = ([harness.sge(0, 256)], [harness.sge(0, 257)]);
    harness.verbs.post_send(qp, &SendWr::send_to(&to, &fits)).unwrap();
    let refused = harness.verbs.post_send(qp, &SendWr::send_to(&to, &longer)).unwrap_err();
    assert!(matches!(refused, PostSendError::MessageSize { max: 256 }), "{refused:?}");
    let group = Gid([0xff; 16]);
    let refused = harness.verbs.attach_mcast(qp, &group).unwrap_err();
    assert_eq!(refused, AttachMcastError::Transport { qp_type: QpType::Gsi });
}

#[test]
fn only_datagrams_have_a_destination() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut harness = Harness::with(qp_type, false);
        let (pd, good) = (harness.pd, harness.sge(0, 8));
        let to = destination(&mut harness, pd);
        for wr in [SendWr::send_to(&to, &[good]), SendWr::send_to_with_imm(&to, &[good], [0; 4])] {
            let refused = harness.verbs.post_send(harness.qp, &wr).unwrap_err();
            assert_eq!((refused, refused.errno()), (PostSendError::Destination { qp_type }, Errno::Einval));
            let mut batch = harness.verbs.send_batch(harness.qp);
            assert_eq!(batch.post(&wr), Err(refused));
            batch.post(&SendWr::send(&[good])).unwrap();
            drop(batch);
        }
        assert_eq!(kinds(&harness).len(), 2);
        let group = Gid([0xff; 16]);
        let refused = harness.verbs.attach_mcast(harness.qp, &group).unwrap_err();
        assert_eq!(refused, AttachMcastError::Transport { qp_type });
        assert_eq!(harness.verbs.detach_mcast(harness.qp, &group), Err(DetachMcastError::NotAttached));
    }
}

#[test]
fn an_address_is_checked_when_its_handle_is_made() {
    let (mut harness, _) = harness();
    let pd = harness.pd;
    let route = GlobalRoute::default();
    let label = GlobalRoute { flow_label: 1 << 20, ..route };
    for (av, part, value) in [
        (AddressVector { port_num: 0, ..AV }, AddressPart::PortNum, 0),
        (AddressVector { port_num: 2, ..AV }, AddressPart::PortNum, 2),
        (AddressVector { sl: 16, ..AV }, AddressPart::Sl, 16),
        (AddressVector { src_path_bits: 128, ..AV }, AddressPart::SrcPathBits, 128),
        (AddressVector { grh: Some(label), ..AV }, AddressPart::FlowLabel, 1 << 20),
    ] {
        let refused = harness.verbs.create_ah(pd, &av).unwrap_err();
        assert!(
            matches!(refused, CreateAhError::Value { part: of, value: was, .. } if (of, was) == (part, value)),
            "{refused}"
        );
        assert_eq!(refused.errno(), Errno::Einval);
    }
    // The LID of a port that has none yet.
    for lid in [Lid::new(0), Lid::NONE] {
        let refused = harness.verbs.create_ah(pd, &AddressVector { dlid: lid, ..AV }).unwrap_err();
        assert_eq!((refused, refused.errno()), (CreateAhError::Path { fault: LinkFault::NoLid { lid } }, Errno::Einval));
        assert!(refused.to_string().contains("wait_active"), "{refused}");
    }
    // A route does not replace it: nothing would arrive.
    let routed = |dlid, dgid| AddressVector { dlid: Lid::new(dlid), grh: Some(GlobalRoute { dgid, ..route }), ..AV };
    let group = Gid([0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    for (av, fault) in [
        (routed(0, route.dgid), LinkFault::NoLid { lid: Lid::new(0) }),
        (routed(0, group), LinkFault::NoLid { lid: Lid::new(0) }),
        (routed(2, group), LinkFault::GroupLid { lid: Lid::new(2) }),
        (routed(0xbfff, group), LinkFault::GroupLid { lid: Lid::new(0xbfff) }),
        (routed(0xc000, route.dgid), LinkFault::GroupLid { lid: Lid::new(0xc000) }),
        (AddressVector { dlid: Lid::new(0xc000), ..AV }, LinkFault::GroupLid { lid: Lid::new(0xc000) }),
    ] {
        assert_eq!(harness.verbs.create_ah(pd, &av), Err(CreateAhError::Path { fault }), "{av:?}");
    }
    for av in [routed(0xbfff, route.dgid), routed(0xc000, group), routed(0xfffe, group)] {
        harness.verbs.create_ah(pd, &av).unwrap();
    }
    harness.device().fail_after = Some(0);
    assert_eq!(harness.verbs.create_ah(pd, &AV), Err(CreateAhError::Device(MockError::Refused)));
    assert_eq!(harness.verbs.create_ah(PdHandle::NONE, &AV), Err(CreateAhError::StalePd));
    // A domain that is gone has no destinations, also if another one is in its slot.
    let gone = harness.verbs.alloc_pd().unwrap();
    let to = destination(&mut harness, gone);
    harness.verbs.dealloc_pd(gone).unwrap();
    let next = harness.verbs.alloc_pd().unwrap();
    assert!(next != gone && next.index() == gone.index());
    assert_eq!(harness.verbs.create_ah(gone, &AV).map(|ah: AddressHandle| ah.pd()), Err(CreateAhError::StalePd));
    let refused = harness.verbs.post_send(harness.qp, &SendWr::send_to(&to, &[0; 8])).unwrap_err();
    assert_eq!(refused, PostSendError::AddressDomain);
}

/// A datagram has no more bytes than a packet of the port, as it was when the queue pair got ready to receive.
#[test]
fn the_port_says_how_long_a_datagram_is() {
    for (state, max) in [(PortState::Active, 256), (PortState::Init, 4096)] {
        let mut harness = Harness::with(QpType::Rc, false);
        let (pd, now) = (harness.pd, harness.device().now);
        let attr = PortAttr { state, active_mtu: Mtu::Mtu256, max_mtu: Mtu::Mtu4096, ..PortAttr::default() };
        harness.device().ports = std::vec![(now, attr)];
        let qp = harness.verbs.create_qp(&harness.init(QpType::Ud)).unwrap();
        harness.step(qp, QpState::Init);
        // A port that does not answer leaves the queue pair as it is.
        harness.device().fail_after = Some(0);
        let rule = crate::transition::rule(QpType::Ud, QpState::Init, QpState::Rtr).unwrap();
        harness.verbs.modify_qp(qp, &attributes(QpState::Rtr), rule.required | QpAttrMask::STATE).unwrap_err();
        assert_eq!(harness.verbs.qp_info(qp).unwrap().state, QpState::Init);
        harness.step(qp, QpState::Rtr);
        harness.step(qp, QpState::Rts);
        let to = destination(&mut harness, pd);
        let (fits, too_long) = ([harness.sge(0, max)], [harness.sge(0, max + 1)]);
        harness.verbs.post_send(qp, &SendWr::send_to(&to, &fits)).unwrap();
        let refused = harness.verbs.post_send(qp, &SendWr::send_to(&to, &too_long)).unwrap_err();
        assert_eq!(refused, PostSendError::MessageSize { max });
    }
}

/// The mock's sources are the lengths of its completions.
#[test]
fn received_datagrams_say_where_they_came_from() {
    let (mut harness, to) = harness();
    let (qpn, init) = (harness.qpn(), harness.init(QpType::Rc));
    let connected = harness.verbs.create_qp(&init).unwrap();
    harness.connect(connected);
    let connected_qpn = harness.verbs.qp_info(connected).unwrap().qpn;
    for wr_id in 0..5 {
        harness.verbs.post_recv(harness.qp, &RecvWr { wr_id, sges: &[] }).unwrap();
        harness.verbs.post_recv(connected, &RecvWr { wr_id: 10 + wr_id, sges: &[] }).unwrap();
    }
    harness.verbs.post_send(harness.qp, &SendWr::send_to(&to, &[0; 8]).id(20).signaled()).unwrap();
    let received = |qpn, at, byte_len, data| RawCompletion { byte_len, data, ..raw(qpn, RawKind::Recv, at) };
    harness.push(received(qpn, 0, 41, WcData::None));
    harness.push(received(qpn, 1, 42, WcData::Imm([1, 2, 3, 4])));
    harness.push(received(connected_qpn, 0, 43, WcData::None));
    harness.push(received(qpn, 2, 44, WcData::None));
    harness.device().execute(qpn);
    harness.push(received(connected_qpn, 1, 45, WcData::Imm([0; 4])));
    harness.push(RawCompletion { status: WcStatus::LocLenErr, ..received(qpn, 3, 46, WcData::None) });
    let cqn = harness.cqn();
    harness.device().put_entry(cqn, super::mock::Entry { raw: Err(9), cookie: None });
    harness.push(received(qpn, 4, 47, WcData::None));
    let consumed = harness.device().consumed;
    let mut found = Vec::new();
    for done in harness.verbs.completions(harness.cq).with_source() {
        found.push(done.map(|(done, source)| (done.wr_id, source.map(|source| source.src_qp.get()))));
    }
    // At the end too, and with `small` also where the error is found: one function polls there, whatever is asked.
    let times = found.len() as u32 + if cfg!(feature = "small") { 2 } else { 1 };
    assert_eq!(harness.device().consumed, consumed + times, "each place is given back behind its source");
    let bad = found.remove(7);
    assert!(bad.is_err(), "{bad:?}");
    let found: Vec<_> = found.into_iter().map(Result::unwrap).collect();
    assert_eq!(
        found,
        [(0, Some(41)), (1, Some(42)), (10, None), (2, Some(44)), (20, None), (11, None), (3, None), (4, Some(47))]
    );
}

/// Into an array, up to what is no completion: that is the next call's error.
#[test]
fn sources_come_into_an_array_and_an_error_waits_behind_them() {
    let (mut harness, _) = harness();
    let qpn = harness.qpn();
    let cqn = harness.cqn();
    for wr_id in 0..4 {
        harness.verbs.post_recv(harness.qp, &RecvWr { wr_id, sges: &[] }).unwrap();
    }
    let received = |at, byte_len| RawCompletion { byte_len, ..raw(qpn, RawKind::Recv, at) };
    for at in 0..3 {
        harness.push(received(at, 41 + at));
    }
    harness.device().put_entry(cqn, super::mock::Entry { raw: Err(9), cookie: None });
    harness.push(received(3, 44));
    let mut out = [(Completion::EMPTY, None); 2];
    let mut found = Vec::new();
    for _ in 0..5 {
        let taken = harness.verbs.poll_with_source(harness.cq, &mut out);
        let ends =
            |count: usize| out[..count].iter().map(|(done, source)| (done.wr_id, source.unwrap().src_qp.get())).collect();
        found.push(taken.map(ends));
    }
    let bad = PollCqError::BadCompletion { cqn, opcode: 9 };
    assert_eq!(
        found,
        [Ok(std::vec![(0, 41), (1, 42)]), Ok(std::vec![(2, 43)]), Err(bad), Ok(std::vec![(3, 44)]), Ok(Vec::new())]
    );
}

/// What a lost device leaves is flushed into the array; that it is lost is said by the next call.
#[test]
fn sources_come_into_an_array_before_the_loss() {
    let (mut harness, _) = harness();
    for wr_id in 0..3 {
        harness.verbs.post_recv(harness.qp, &RecvWr { wr_id, sges: &[] }).unwrap();
    }
    harness.device().loss = Some(DeviceLoss::Gone);
    assert!(harness.verbs.maintain().is_err());
    let mut out = [(Completion::EMPTY, None); 8];
    assert_eq!(harness.verbs.poll_with_source(harness.cq, &mut out), Ok(3));
    assert_eq!(out.map(|(done, _)| done.wr_id)[..3], [0, 1, 2]);
    assert_eq!(harness.verbs.poll_with_source(harness.cq, &mut out), Err(PollCqError::DeviceLost { loss: DeviceLoss::Gone }));
}

#[test]
fn groups_are_left_before_the_queue_pair_ends() {
    let (mut harness, _) = harness();
    let (qp, group, other) = (harness.qp, Gid([0xff; 16]), Gid([0xfe; 16]));
    assert_eq!(harness.verbs.attach_mcast(qp, &other), Err(AttachMcastError::NoGroup));
    harness.device().fail_after = Some(0);
    assert_eq!(harness.verbs.attach_mcast(qp, &group), Err(AttachMcastError::Device(MockError::Refused)));
    harness.verbs.attach_mcast(qp, &group).unwrap();
    assert!(harness.device().groups.contains(&(harness.verbs.qp_info(qp).unwrap().qpn, group.0)));
    assert_eq!(harness.verbs.destroy_qp(qp), Err(DestroyQpError::Attached { groups: 1 }));
    assert_eq!(harness.verbs.detach_mcast(qp, &other), Err(DetachMcastError::NotAttached));
    // A device that keeps count of attachments would want two detachments.
    harness.device().fail_after = Some(0);
    harness.verbs.attach_mcast(qp, &group).unwrap();
    harness.device().fail_after = Some(0);
    assert_eq!(harness.verbs.detach_mcast(qp, &group), Err(DetachMcastError::Device(MockError::Refused)));
    harness.verbs.detach_mcast(qp, &group).unwrap();
    assert_eq!(harness.verbs.detach_mcast(qp, &group), Err(DetachMcastError::NotAttached));
    assert_eq!(harness.verbs.detach_mcast(qp, &Gid([0; 16])), Err(DetachMcastError::NotAttached));
    let groups: Vec<_> = (0..MCAST_GROUPS as u8).map(|at| Gid([0xff, at, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])).collect();
    for (at, other) in groups.iter().enumerate() {
        harness.verbs.attach_mcast(qp, other).unwrap();
        assert_eq!(harness.device().groups.len(), at + 1);
    }
    let full = Err(AttachMcastError::Full { groups: MCAST_GROUPS as u32 });
    assert_eq!(harness.verbs.attach_mcast(qp, &group), full);
    // The first, the last, and those between.
    for other in [0, 3, 1, 2].map(|at: usize| &groups[at]) {
        assert!(harness.verbs.destroy_qp(qp).is_err());
        harness.verbs.detach_mcast(qp, other).unwrap();
        assert_eq!(harness.verbs.detach_mcast(qp, other), Err(DetachMcastError::NotAttached));
    }
    assert!(harness.device().groups.is_empty());
    harness.verbs.destroy_qp(qp).unwrap();
    assert_eq!(harness.verbs.attach_mcast(qp, &group), Err(AttachMcastError::Stale));
    assert_eq!(harness.verbs.detach_mcast(qp, &group), Err(DetachMcastError::Stale));
}

/// Completions of what failed before a recovery say nothing of the queue pair after it, in whatever order caller and poller
/// learn of it.
#[test]
fn what_failed_before_a_recovery_does_not_stop_what_comes_after() {
    for qp_type in [QpType::Uc, QpType::Ud] {
        for polled_before in 0..=3 {
            let mut harness = Harness::with(qp_type, false);
            let pd = harness.pd;
            let to = destination(&mut harness, pd);
            let payload = Payload::Inline(&[0; 4]);
            let op = if qp_type == QpType::Ud { SendOp::SendTo { to: &to, payload } } else { SendOp::Send { payload } };
            let mut heads = std::vec![0];
            for wr_id in 0..4 {
                harness.verbs.post_send(harness.qp, &SendWr { op, ..send(wr_id, &[]) }).unwrap();
                heads.push(harness.device().doorbells.last().unwrap().1 as u16);
            }
            let ends = [WcStatus::LocProtErr, WcStatus::WrFlushErr, WcStatus::WrFlushErr];
            for (status, at) in ends.into_iter().zip(&heads) {
                harness.complete(*at, status);
            }
            let cq = harness.cq;
            for _ in 0..polled_before {
                harness.verbs.completions(cq).next().unwrap().unwrap();
            }
            let state = |harness: &Harness| harness.verbs.qp_info(harness.qp).unwrap().state;
            assert_eq!(state(&harness), if polled_before == 0 { QpState::Rts } else { QpState::Sqe });
            // As `ibv_modify_qp` is used: the caller says which state it assumes.
            let attr = QpAttr { state: QpState::Rts, cur_state: QpState::Sqe, ..QpAttr::default() };
            harness.verbs.modify_qp(harness.qp, &attr, QpAttrMask::STATE | QpAttrMask::CUR_STATE).unwrap();
            harness.complete(heads[3], WcStatus::WrFlushErr);
            let rest = harness.poll_ids();
            assert_eq!(rest, (polled_before..4).collect::<Vec<u64>>());
            assert_eq!(state(&harness), QpState::Rts, "{qp_type:?}: {polled_before} polled before");
            // What fails after it does count.
            harness.verbs.post_send(harness.qp, &SendWr { op, ..send(5, &[]) }).unwrap();
            harness.complete(heads[4], WcStatus::LocProtErr);
            assert_eq!((harness.poll_ids(), state(&harness)), (std::vec![5], QpState::Sqe));
            // And a flush, if nothing failed: the device has moved it.
            harness.verbs.modify_qp(harness.qp, &attr, QpAttrMask::STATE | QpAttrMask::CUR_STATE).unwrap();
            harness.verbs.post_send(harness.qp, &SendWr { op, ..send(6, &[]) }).unwrap();
            let last = harness.device().doorbells.iter().rev().nth(1).unwrap().1 as u16;
            harness.complete(last, WcStatus::WrFlushErr);
            assert_eq!((harness.poll_ids(), state(&harness)), (std::vec![6], QpState::Err));
            // After a RESET the blocks are counted anew.
            let reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
            harness.verbs.modify_qp(harness.qp, &reset, QpAttrMask::STATE).unwrap();
            assert!(harness.poll_ids().is_empty());
            let qp = harness.qp;
            harness.connect(qp);
            harness.verbs.post_send(harness.qp, &SendWr { op, ..send(7, &[]) }).unwrap();
            harness.complete(0, WcStatus::LocProtErr);
            assert_eq!((harness.poll_ids(), state(&harness)), (std::vec![7], QpState::Sqe));
        }
    }
}
