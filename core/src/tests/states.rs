//! The state machine of queue pairs.

use std::string::ToString as _;

use super::mock::MockError;
use super::post::send;
use super::{Harness, attributes, set_state};
use crate::error::{AddressPart, Errno, LinkFault, ModifyQpError};
use crate::transition::rule;
use crate::{
    Access, AddressVector, Completion, GlobalRoute, Lid, Psn, QpAttr, QpAttrMask as M, QpState, QpType, Qpn, RecvWr, WcStatus,
};

const STATES: [QpState; 7] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];
const TYPES: [QpType; 5] = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Gsi, QpType::XrcSend];

// contract: qp-transitions
#[test]
fn the_transitions_of_the_specification_and_no_others() {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let forward = [(Reset, Init), (Init, Init), (Init, Rtr), (Rtr, Rts), (Rts, Rts), (Rts, Sqd), (Sqd, Sqd), (Sqd, Rts)];
    for qp_type in TYPES.into_iter().chain([QpType::XrcRecv]) {
        for from in STATES {
            for to in STATES {
                let unreliable = matches!(qp_type, QpType::Uc | QpType::Ud | QpType::Gsi);
                let expected =
                    matches!(to, Reset | Err) || forward.contains(&(from, to)) || ((from, to) == (Sqe, Rts) && unreliable);
                assert_eq!(rule(qp_type, from, to).is_some(), expected, "{qp_type:?} {from:?} {to:?}");
            }
        }
    }
}

#[test]
fn connecting_goes_through_every_state_with_the_attributes_that_the_transport_needs() {
    for qp_type in TYPES {
        let mut harness = Harness::with(qp_type, false);
        set_state(&harness.verbs, harness.qp, QpState::Reset);
        harness.verbs.modify_qp_to_rts(harness.qp, &attributes(QpState::Reset)).unwrap();
        assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().state, QpState::Rts, "{qp_type:?}");
        let again = harness.verbs.modify_qp_to_rts(harness.qp, &attributes(QpState::Reset)).unwrap_err();
        assert_eq!(again, ModifyQpError::Transition { from: QpState::Rts, to: QpState::Init });
    }
}

/// An attribute of any of the transitions: what the device would see is one of the right ones only.
// contract: qp-refused
#[test]
fn connecting_with_a_wrong_attribute_leaves_the_queue_pair_where_it_was() {
    let right = attributes(QpState::Reset);
    let path = |av| QpAttr { av, ..right };
    let value = |attribute, value, min, max| ModifyQpError::Value { attribute, part: None, value, min, max };
    let part = |part, value, min, max| ModifyQpError::Value { attribute: M::AV, part: Some(part), value, min, max };
    let lid = |lid| ModifyQpError::Path { attribute: M::AV, fault: LinkFault::NoLid { lid } };
    let cases = [
        (QpAttr { port_num: 2, ..right }, value(M::PORT, 2, 1, 1)),
        (QpAttr { access: Access::MW_BIND, ..right }, value(M::ACCESS_FLAGS, Access::MW_BIND.bits(), 0, 0)),
        (path(AddressVector { sl: 16, ..right.av }), part(AddressPart::Sl, 16, 0, 15)),
        (path(AddressVector { dlid: Lid::new(0), ..right.av }), lid(Lid::new(0))),
        (path(AddressVector { dlid: Lid::NONE, ..right.av }), lid(Lid::NONE)),
        (QpAttr { min_rnr_timer: 32, ..right }, value(M::MIN_RNR_TIMER, 32, 0, 31)),
        (QpAttr { timeout: 32, ..right }, value(M::TIMEOUT, 32, 0, 31)),
        (QpAttr { retry_cnt: 9, ..right }, value(M::RETRY_CNT, 9, 0, 7)),
    ];
    for (wrong, error) in cases {
        let mut harness = Harness::with(QpType::Rc, false);
        set_state(&harness.verbs, harness.qp, QpState::Reset);
        let before = harness.device().modified.len();
        assert_eq!(harness.verbs.modify_qp_to_rts(harness.qp, &wrong), Err(error));
        assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().state, QpState::Reset, "{error}");
        assert_eq!(harness.device().modified.len(), before, "{error}: the device has heard nothing of it");
        harness.verbs.modify_qp_to_rts(harness.qp, &right).unwrap();
        assert_eq!(harness.device().modified.len(), before + 3);
    }
    // Of an unreliable queue pair nobody looks at what it does not have.
    let mut harness = Harness::with(QpType::Uc, false);
    set_state(&harness.verbs, harness.qp, QpState::Reset);
    harness.verbs.modify_qp_to_rts(harness.qp, &QpAttr { retry_cnt: 9, timeout: 32, ..right }).unwrap();
}

/// Every single attribute of every transition: a required one cannot be left out, a foreign one cannot be added.
// contract: qp-masks
#[test]
fn each_transition_names_what_is_missing_and_what_is_forbidden() {
    for qp_type in TYPES {
        for (from, to) in STATES.into_iter().flat_map(|from| STATES.map(|to| (from, to))) {
            let mut harness = Harness::with(qp_type, false);
            set_state(&harness.verbs, harness.qp, from);
            let attr = QpAttr { cur_state: from, ..attributes(to) };
            let Some(rule) = rule(qp_type, from, to) else {
                let error = harness.verbs.modify_qp(harness.qp, &attr, M::STATE).unwrap_err();
                assert_eq!(error, ModifyQpError::Transition { from, to });
                continue;
            };
            let given = rule.required | M::STATE;
            for bit in (0..21).map(|bit| M::from_bits_retain(1 << bit)) {
                let expected = |missing, forbidden| ModifyQpError::Attributes { from, to, missing, forbidden };
                if rule.required.contains(bit) {
                    let error = harness.verbs.modify_qp(harness.qp, &attr, given - bit).unwrap_err();
                    assert_eq!(error, expected(bit, M::empty()));
                } else if !rule.optional.contains(bit) && bit != M::STATE {
                    let error = harness.verbs.modify_qp(harness.qp, &attr, given | bit).unwrap_err();
                    assert_eq!(error, expected(M::empty(), bit));
                    assert_eq!(error.errno(), Errno::Einval);
                }
            }
            let unknown = M::from_bits_retain(1 << 30);
            assert!(harness.verbs.modify_qp(harness.qp, &attr, given | unknown).is_err());
            assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().state, from);
            harness.verbs.modify_qp(harness.qp, &attr, given | rule.optional).unwrap();
            assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().state, to);
        }
    }
}

#[test]
fn the_device_gets_every_attribute_set_so_far() {
    let harness = Harness::new();
    let (from, attr, mask) = *harness.device().modified.last().unwrap();
    assert_eq!((from, attr.state, attr.cur_state), (QpState::Rtr, QpState::Rts, QpState::Rtr));
    assert_eq!(mask, M::STATE | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC);
    assert_eq!((attr.port_num, attr.dest_qpn, attr.sq_psn), (1, Qpn::new(0x77), Psn::new(2)));
}

#[test]
fn attributes_outside_the_mask_change_nothing() {
    let mut harness = Harness::new();
    let attr = QpAttr { access: Access::REMOTE_READ, timeout: 99, ..QpAttr::default() };
    harness.verbs.modify_qp(harness.qp, &attr, M::ACCESS_FLAGS).unwrap();
    let info = harness.verbs.qp_info(harness.qp).unwrap();
    assert_eq!((info.state, info.attr.access, info.attr.timeout), (QpState::Rts, Access::REMOTE_READ, 14));
}

// contract: qp-ranges
#[test]
fn values_out_of_range_are_named() {
    type Spoil = fn(&mut QpAttr);
    let cases: [(QpState, M, Spoil); 16] = [
        (QpState::Init, M::PORT, |attr| attr.port_num = 0),
        (QpState::Init, M::PORT, |attr| attr.port_num = 2),
        (QpState::Init, M::ACCESS_FLAGS, |attr| attr.access = Access::MW_BIND),
        (QpState::Rtr, M::AV, |attr| attr.av.sl = 16),
        (QpState::Rtr, M::AV, |attr| attr.av.port_num = 2),
        (QpState::Rtr, M::AV, |attr| attr.av.grh = Some(GlobalRoute { flow_label: 1 << 20, ..GlobalRoute::default() })),
        (QpState::Rtr, M::DEST_QPN, |attr| attr.dest_qpn = Qpn::new(1 << 24)),
        (QpState::Rtr, M::RQ_PSN, |attr| attr.rq_psn = Psn::new(1 << 24)),
        (QpState::Rtr, M::MAX_DEST_RD_ATOMIC, |attr| attr.max_dest_rd_atomic = 17),
        (QpState::Rtr, M::MIN_RNR_TIMER, |attr| attr.min_rnr_timer = 32),
        (QpState::Rts, M::TIMEOUT, |attr| attr.timeout = 32),
        (QpState::Rts, M::RETRY_CNT, |attr| attr.retry_cnt = 8),
        (QpState::Rts, M::RNR_RETRY, |attr| attr.rnr_retry = 8),
        (QpState::Rts, M::SQ_PSN, |attr| attr.sq_psn = Psn::new(u32::MAX)),
        (QpState::Rts, M::MAX_QP_RD_ATOMIC, |attr| attr.max_rd_atomic = 17),
        (QpState::Rts, M::ALT_PATH, |attr| attr.alt_timeout = 32),
    ];
    for (to, attribute, spoil) in cases {
        let mut harness = Harness::new();
        let qp = harness.verbs.create_qp(&harness.init(QpType::Rc)).unwrap();
        for step in [QpState::Init, QpState::Rtr] {
            if harness.verbs.qp_info(qp).unwrap().state != to && step != to && to != QpState::Init {
                harness.step(qp, step);
            }
        }
        let from = harness.verbs.qp_info(qp).unwrap().state;
        let mut attr = attributes(to);
        spoil(&mut attr);
        let mask = rule(QpType::Rc, from, to).unwrap().required | M::STATE | attribute;
        let error = harness.verbs.modify_qp(qp, &attr, mask).unwrap_err();
        let ModifyQpError::Value { attribute: found, value, min, max, .. } = error else { panic!("{error}") };
        assert!(found == attribute && !(min..=max).contains(&value), "{error}");
        assert_eq!(harness.verbs.qp_info(qp).unwrap().state, from);
    }
    // The greatest values are none of those.
    let mut harness = Harness::new();
    let qp = harness.verbs.create_qp(&harness.init(QpType::Rc)).unwrap();
    for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let mut attr = attributes(to);
        attr.av.sl = 15;
        (attr.dest_qpn, attr.rq_psn, attr.sq_psn) = (Qpn::new((1 << 24) - 1), Psn::new((1 << 24) - 1), Psn::new((1 << 24) - 1));
        (attr.timeout, attr.min_rnr_timer, attr.retry_cnt, attr.rnr_retry) = (31, 31, 7, 7);
        (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (16, 16);
        let from = harness.verbs.qp_info(qp).unwrap().state;
        harness.verbs.modify_qp(qp, &attr, rule(QpType::Rc, from, to).unwrap().required | M::STATE).unwrap();
    }
    let route = AddressVector { grh: Some(GlobalRoute::default()), ..AddressVector::default() };
    assert_eq!(route.port_num, 0, "a path without a port uses the queue pair's");
}

#[test]
fn the_assumed_state_must_be_so() {
    let mut harness = Harness::new();
    let assume = |cur_state| QpAttr { cur_state, ..attributes(QpState::Rts) };
    harness.verbs.modify_qp(harness.qp, &assume(QpState::Rts), M::STATE | M::CUR_STATE).unwrap();
    let error = harness.verbs.modify_qp(harness.qp, &assume(QpState::Sqd), M::STATE | M::CUR_STATE).unwrap_err();
    assert_eq!(error, ModifyQpError::CurState { assumed: QpState::Sqd, actual: QpState::Rts });
    // Only an unreliable queue pair can have a send queue in error without anyone here knowing.
    assert!(harness.verbs.modify_qp(harness.qp, &assume(QpState::Sqe), M::STATE | M::CUR_STATE).is_err());
    let mut harness = Harness::with(QpType::Uc, false);
    harness.verbs.modify_qp(harness.qp, &assume(QpState::Sqe), M::STATE | M::CUR_STATE).unwrap();
    assert_eq!(harness.device().modified.last().unwrap().0, QpState::Sqe);
}

// contract: qp-refused
#[test]
fn a_device_that_refuses_leaves_the_state() {
    let mut harness = Harness::new();
    harness.device().fail_after = Some(0);
    let error = harness.verbs.modify_qp(harness.qp, &attributes(QpState::Sqd), M::STATE).unwrap_err();
    assert_eq!((error, error.errno()), (ModifyQpError::Device(MockError::Refused), Errno::Eio));
    assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().state, QpState::Rts);
}

// contract: qp-reset
#[test]
fn reset_empties_the_queues_and_starts_from_zero() {
    let mut harness = Harness::new();
    for n in 0..16 {
        harness.verbs.post_send(harness.qp, &send(n, &[])).unwrap();
    }
    harness.verbs.post_recv(harness.qp, &RecvWr { wr_id: 1, sges: &[] }).unwrap();
    harness.complete(0, WcStatus::Success);
    harness.step(harness.qp, QpState::Reset);
    assert!(harness.poll_ids().is_empty());
    let info = harness.verbs.qp_info(harness.qp).unwrap();
    assert_eq!((info.send_blocks, info.recvs, info.attr), (0, 0, QpAttr::default()));
    harness.connect(harness.qp);
    harness.verbs.post_send(harness.qp, &send(7, &[])).unwrap();
    assert_eq!(harness.device().sent.last().unwrap().at, 0);
    harness.complete(0, WcStatus::Success);
    assert_eq!(harness.poll_ids(), [7]);
}

#[test]
fn a_query_brings_what_the_device_knows() {
    let mut harness = Harness::new();
    harness.device().state = Some(QpState::Err);
    let info = harness.verbs.query_qp(harness.qp).unwrap();
    assert_eq!((info.state, info.attr.rq_psn, info.attr.sq_psn), (QpState::Err, Psn::new(11), Psn::new(12)));
    assert_eq!(info.attr.state, QpState::Err);
    assert_eq!(harness.verbs.post_send(harness.qp, &send(1, &[])).unwrap_err().errno(), Errno::Enotconn);
}

#[test]
fn the_text_of_an_error_names_what_is_wrong_and_what_may_be() {
    let mut harness = Harness::new();
    let qp = harness.verbs.create_qp(&harness.init(QpType::Rc)).unwrap();
    let init = QpAttr { state: QpState::Init, ..attributes(QpState::Init) };
    let text = |harness: &mut Harness, attr: &QpAttr, mask| harness.verbs.modify_qp(qp, attr, mask).unwrap_err().to_string();
    let given = M::STATE | M::PORT | M::ACCESS_FLAGS;
    assert_eq!(text(&mut harness, &init, given), "from Reset to Init: PKEY_INDEX must be given");
    let all = given | M::PKEY_INDEX;
    assert_eq!(text(&mut harness, &init, all | M::TIMEOUT | M::AV), "from Reset to Init: AV | TIMEOUT must not be given");
    assert_eq!(text(&mut harness, &init, given | M::QKEY), "from Reset to Init: PKEY_INDEX must be given, QKEY must not");
    let wrong = QpAttr { port_num: 9, ..init };
    assert_eq!(text(&mut harness, &wrong, all), "PORT has the value 9, which is not between 1 and 1");
    let to_sqd = text(&mut harness, &QpAttr { state: QpState::Sqd, ..init }, M::STATE);
    assert_eq!(to_sqd, "no transition leads from Reset to Sqd: Init is next (modify_qp_to_rts passes through all)");
    harness.verbs.modify_qp(qp, &init, all).unwrap();
    let rtr = QpAttr { state: QpState::Rtr, ..attributes(QpState::Rtr) };
    let mask = rule(QpType::Rc, QpState::Init, QpState::Rtr).unwrap().required | M::STATE | M::ALT_PATH;
    for (wrong, expected) in [
        (
            QpAttr { av: AddressVector { port_num: 9, ..rtr.av }, ..rtr },
            "port_num of AV has the value 9, which is not between 0 and 1 (0 stands for the port of the queue pair)",
        ),
        (QpAttr { av: AddressVector { sl: 16, ..rtr.av }, ..rtr }, "sl of AV has the value 16, which is not between 0 and 15"),
        (
            QpAttr { alt_av: AddressVector { sl: 99, ..rtr.av }, ..rtr },
            "sl of ALT_PATH has the value 99, which is not between 0 and 15",
        ),
        (
            QpAttr { alt_av: rtr.av, alt_timeout: 32, ..rtr },
            "alt_timeout of ALT_PATH has the value 32, which is not between 0 and 31",
        ),
    ] {
        assert_eq!(text(&mut harness, &wrong, mask), expected);
    }
    let failed = Completion { status: WcStatus::RemAccessErr, vendor_err: 0x88, ..Completion::EMPTY };
    let error = failed.result().unwrap_err();
    assert!(
        error.to_string().starts_with("remote access error: the peer refuses the access")
            && error.to_string().ends_with("(vendor error 0x88)")
    );
    assert_eq!(Completion { status: WcStatus::Success, ..failed }.result(), Ok(()));
}
