//! Rows of the contract about domains, regions, windows, completion queues, queries and events.

use crate::error::{QueryQpError, RawKind};
use std::string::ToString as _;

use super::mock::{Mock, MockError};
use super::{ALL_RIGHTS, BASE, CAP, Harness, LENGTH, post, register, verbs_on};
use crate::error::{
    AllocMwError, AllocPdError, AnswerFault, CreateCqError, CreateQpError, DeallocMwError, DeallocPdError, DeregMrError,
    DestroyCqError, DestroyQpError, Errno, ModifyCqError, QueryError, RegMrError, StaleHandle,
};
use crate::storage::QpRings;
use crate::{Access, CqModeration, Guid, MwType, QpCap, QpInit, QpType, Verbs, WcStatus, storage};

// contract: cq-moderation-refused
#[test]
fn moderation_is_checked_before_the_device_is_asked() {
    let mut harness = Harness::new();
    let most = CqModeration { count: 100, period: 50 };
    let cqn = harness.verbs.cq_info(harness.cq).unwrap().cqn;
    harness.verbs.modify_cq(harness.cq, most).unwrap();
    for asked in [CqModeration { count: 101, ..most }, CqModeration { period: 51, ..most }] {
        let error = harness.verbs.modify_cq(harness.cq, asked).unwrap_err();
        assert_eq!((error, error.errno()), (ModifyCqError::Moderation { asked, max: most }, Errno::Einval));
        assert_eq!(harness.device().moderation[&cqn], most);
    }
    let error = harness.verbs.modify_cq(harness.cq, CqModeration { count: 101, period: 7 }).unwrap_err();
    let text = "an event for 101 completions or after 7 µs: the device offers up to 100 and 50 µs";
    assert_eq!(error.to_string(), text);

    let mut mock = Mock::new();
    mock.device.max_cq_moderation = CqModeration::default();
    let mut verbs = verbs_on(mock);
    let cq = verbs.create_cq(4).unwrap();
    let error = verbs.modify_cq(cq, CqModeration::default()).unwrap_err();
    assert_eq!((error, error.errno()), (ModifyCqError::Unsupported, Errno::Eopnotsupp));
}

#[test]
fn region_rights_are_checked() {
    let mut harness = Harness::new();
    let mut refused = |access: u32, errno: Errno| {
        let before = harness.device().alive;
        let error = register(&mut harness.verbs, harness.pd, BASE, 16, Access::from_bits_retain(access)).unwrap_err();
        assert_eq!((error.errno(), harness.device().alive), (errno, before), "{error}");
    };
    refused(Access::REMOTE_WRITE.bits(), Errno::Einval);
    refused(Access::REMOTE_ATOMIC.bits(), Errno::Einval);
    refused(1 << 9, Errno::Einval);
    refused(1 << 31 | 1, Errno::Einval);
    refused(Access::RELAXED_ORDERING.bits(), Errno::Eopnotsupp);
    for access in [Access::empty(), Access::REMOTE_READ, Access::MW_BIND, ALL_RIGHTS | Access::ZERO_BASED] {
        let mr = register(&mut harness.verbs, harness.pd, BASE, 16, access).unwrap();
        assert_eq!(harness.verbs.mr_info(mr).unwrap().access, access);
        harness.verbs.dereg_mr_raw(mr).unwrap();
    }
}

#[test]
fn region_ranges_are_checked() {
    let mut harness = Harness::new();
    let mut reg = |addr, length| register(&mut harness.verbs, harness.pd, addr, length, Access::empty()).map(drop);
    assert_eq!(reg(u64::MAX, 2), Err(RegMrError::Overflow { addr: u64::MAX, length: 2 }));
    assert_eq!(reg(1, u64::MAX), Err(RegMrError::Overflow { addr: 1, length: u64::MAX }));
    assert_eq!(reg(0, 0), Err(RegMrError::Empty));
    assert_eq!(reg(0, (1 << 40) + 1), Err(RegMrError::TooLong { max: 1 << 40 }));
    assert_eq!(reg(0, 1 << 40), Ok(()));
}

#[test]
fn a_region_keeps_what_it_was_made_with() {
    let mut harness = Harness::new();
    let mr = register(&mut harness.verbs, harness.pd, 0x123, 0x456, Access::LOCAL_WRITE).unwrap();
    let info = harness.verbs.mr_info(mr).unwrap();
    assert_eq!((info.pd, info.addr, info.length, info.access), (harness.pd, 0x123, 0x456, Access::LOCAL_WRITE));
    assert_eq!(info.lkey.get(), info.rkey.get());
    assert_ne!(info.lkey, harness.lkey());
}

#[test]
fn full_tables_make_nothing_and_name_themselves() {
    let mut harness = Harness::new();
    let window = harness.window(MwType::Type1);
    for _ in 0..3 {
        register(&mut harness.verbs, harness.pd, BASE, 16, Access::empty()).unwrap();
    }
    harness.verbs.alloc_pd().unwrap();
    harness.window(MwType::Type1);
    harness.verbs.create_cq(1).unwrap();
    harness.verbs.create_qp(&harness.init(QpType::Rc)).unwrap();
    let alive = harness.device().alive;
    assert_eq!(harness.verbs.alloc_pd(), Err(AllocPdError::Full { capacity: 2 }));
    assert_eq!(register(&mut harness.verbs, harness.pd, BASE, 16, Access::empty()), Err(RegMrError::Full { capacity: 4 }));
    assert_eq!(harness.verbs.alloc_mw(harness.pd, MwType::Type1), Err(AllocMwError::Full { capacity: 2 }));
    assert_eq!(harness.verbs.create_cq(1), Err(CreateCqError::Full { capacity: 2 }));
    assert_eq!(harness.verbs.create_qp(&harness.init(QpType::Rc)), Err(CreateQpError::Full { capacity: 2, fitting: 2 }));
    assert_eq!(RegMrError::<MockError>::Full { capacity: 4 }.errno(), Errno::Enomem);
    assert_eq!(harness.device().alive, alive);
    harness.verbs.dealloc_mw(window).unwrap();
    harness.window(MwType::Type1);
}

#[test]
fn a_device_that_refuses_leaves_nothing_behind() {
    let mut harness = Harness::new();
    let alive = harness.device().alive;
    let fail = |harness: &mut Harness| harness.device().fail_after = Some(0);
    fail(&mut harness);
    assert_eq!(harness.verbs.alloc_pd(), Err(AllocPdError::Device(MockError::Refused)));
    fail(&mut harness);
    assert_eq!(register(&mut harness.verbs, harness.pd, BASE, 1, Access::empty()), Err(RegMrError::Device(MockError::Refused)));
    fail(&mut harness);
    assert_eq!(harness.verbs.alloc_mw(harness.pd, MwType::Type1), Err(AllocMwError::Device(MockError::Refused)));
    fail(&mut harness);
    assert_eq!(harness.verbs.create_cq(1), Err(CreateCqError::Device(MockError::Refused)));
    fail(&mut harness);
    assert_eq!(harness.verbs.create_qp(&harness.init(QpType::Rc)), Err(CreateQpError::Device(MockError::Refused)));
    assert_eq!(harness.device().alive, alive);
    // Destruction that fails leaves the object as it was.
    fail(&mut harness);
    assert_eq!(harness.verbs.dereg_mr_raw(harness.mr), Err(DeregMrError::Device(MockError::Refused)));
    assert!(harness.verbs.mr_info(harness.mr).is_ok());
    fail(&mut harness);
    assert_eq!(harness.verbs.destroy_qp(harness.qp), Err(DestroyQpError::Device(MockError::Refused)));
    assert!(harness.verbs.qp_info(harness.qp).is_ok());
    assert_eq!(DestroyQpError::Device(MockError::Refused).errno(), Errno::Eio);
}

#[test]
fn a_region_with_a_key_that_is_none_is_undone() {
    let mut harness = Harness::new();
    let alive = harness.device().alive;
    harness.device().keys.push_back(0);
    let error = register(&mut harness.verbs, harness.pd, BASE, 1, Access::empty()).unwrap_err();
    assert_eq!((error, error.errno()), (RegMrError::Answer { fault: AnswerFault::NoKey }, Errno::Ebadmsg));
    assert_eq!(harness.device().alive, alive);
}

/// By the index of its key the device destroys a region or a window: what has the index already would be destroyed in its place.
#[test]
fn a_key_whose_index_is_taken_is_refused_and_destroys_nothing() {
    let mut harness = Harness::new();
    let mw = harness.window(MwType::Type1);
    let taken = [harness.lkey().get(), harness.lkey().get() ^ 0x55, harness.verbs.mw_info(mw).unwrap().rkey.get()];
    for key in taken {
        harness.device().keys.push_back(key);
        let error = register(&mut harness.verbs, harness.pd, BASE, 1, Access::empty()).unwrap_err();
        assert_eq!((error, error.errno()), (RegMrError::Answer { fault: AnswerFault::KeyInUse { key } }, Errno::Ebadmsg));
        harness.device().keys.push_back(key);
        let error = harness.verbs.alloc_mw(harness.pd, MwType::Type1).unwrap_err();
        assert_eq!((error, error.errno()), (AllocMwError::Answer { fault: AnswerFault::KeyInUse { key } }, Errno::Ebadmsg));
    }
    assert_eq!(harness.device().destroyed, [0; 6]);
    harness.verbs.post_send(harness.qp, &post::send(1, &[harness.sge(0, 8)])).unwrap();
    harness.verbs.alloc_mw(harness.pd, MwType::Type1).unwrap();
}

/// A device that answers with the number of another queue would have the completions and events of one given to the other. What it made
/// is not destroyed, because its number is that of the other.
#[test]
fn a_number_that_another_queue_has_is_refused_and_destroys_nothing() {
    let mut harness = Harness::new();
    let (qpn, cqn) = (harness.qpn(), harness.cqn());
    harness.device().next_qpn = Some(qpn);
    let error = harness.verbs.create_qp(&harness.init(QpType::Rc)).unwrap_err();
    assert_eq!(
        (error, error.errno()),
        (CreateQpError::Answer { fault: AnswerFault::NumberInUse { number: qpn.get() } }, Errno::Ebadmsg)
    );
    harness.device().next_cqn = Some(cqn);
    let error = harness.verbs.create_cq(64).unwrap_err();
    assert_eq!(
        (error, error.errno()),
        (CreateCqError::Answer { fault: AnswerFault::NumberInUse { number: cqn.get() } }, Errno::Ebadmsg)
    );
    assert_eq!(harness.device().destroyed, [0; 6]);
    // What is there goes on, and the device that tells the truth again makes more.
    let (qp, _) = harness.second();
    assert_ne!(harness.verbs.qp_info(qp).unwrap().qpn, qpn);
    assert_eq!(harness.verbs.dealloc_pd(harness.pd), Err(DeallocPdError::Busy { users: 3 }));
    assert_eq!(harness.verbs.destroy_cq(harness.cq), Err(DestroyCqError::Busy { users: 2 }));
}

// contract: cq-busy, pd-busy
#[test]
fn objects_in_use_stay() {
    let mut harness = Harness::new();
    assert_eq!(harness.verbs.dealloc_pd(harness.pd), Err(DeallocPdError::Busy { users: 2 }));
    assert_eq!(harness.verbs.destroy_cq(harness.cq), Err(DestroyCqError::Busy { users: 2 }));
    assert_eq!(DestroyCqError::<MockError>::Busy { users: 2 }.errno(), Errno::Ebusy);
    harness.verbs.destroy_qp(harness.qp).unwrap();
    harness.verbs.destroy_cq(harness.cq).unwrap();
    harness.verbs.dereg_mr_raw(harness.mr).unwrap();
    harness.verbs.dealloc_pd(harness.pd).unwrap();
    let Ok(mock) = harness.verbs.into_provider() else { panic!("a queue is taken") };
    assert_eq!(mock.lock().alive, [0; 6]);
}

#[test]
fn stale_handles_are_errors_of_every_verb() {
    let mut harness = Harness::new();
    let window = harness.window(MwType::Type1);
    let init = harness.init(QpType::Rc);
    harness.verbs.dealloc_mw(window).unwrap();
    harness.verbs.destroy_qp(harness.qp).unwrap();
    harness.verbs.destroy_cq(harness.cq).unwrap();
    harness.verbs.dereg_mr_raw(harness.mr).unwrap();
    harness.verbs.dealloc_pd(harness.pd).unwrap();
    // New objects take the same slots.
    let pd = harness.verbs.alloc_pd().unwrap();
    register(&mut harness.verbs, pd, BASE, LENGTH, ALL_RIGHTS).unwrap();
    let cq = harness.verbs.create_cq(4).unwrap();
    harness.verbs.alloc_mw(pd, MwType::Type1).unwrap();
    let alive = harness.device().alive;

    assert_eq!(harness.verbs.dealloc_pd(harness.pd), Err(DeallocPdError::Stale));
    assert_eq!(register(&mut harness.verbs, harness.pd, BASE, 1, Access::empty()), Err(RegMrError::StalePd));
    assert_eq!(harness.verbs.alloc_mw(harness.pd, MwType::Type2), Err(AllocMwError::StalePd));
    assert_eq!(harness.verbs.create_qp(&init), Err(CreateQpError::StalePd));
    assert_eq!(harness.verbs.create_qp(&crate::QpInit { pd, ..init }), Err(CreateQpError::StaleCq));
    assert_eq!(harness.verbs.create_qp(&crate::QpInit { pd, send_cq: cq, ..init }), Err(CreateQpError::StaleCq));
    assert_eq!(harness.verbs.mr_info(harness.mr), Err(StaleHandle));
    assert_eq!(harness.verbs.dereg_mr_raw(harness.mr), Err(DeregMrError::Stale));
    assert_eq!(harness.verbs.mw_info(window), Err(StaleHandle));
    assert_eq!(harness.verbs.dealloc_mw(window), Err(DeallocMwError::Stale));
    assert_eq!(harness.verbs.cq_info(harness.cq), Err(StaleHandle));
    assert_eq!(harness.verbs.destroy_cq(harness.cq), Err(DestroyCqError::Stale));
    assert_eq!(harness.verbs.qp_info(harness.qp), Err(StaleHandle));
    assert_eq!(harness.verbs.query_qp(harness.qp), Err(QueryQpError::Stale));
    assert_eq!(harness.verbs.destroy_qp(harness.qp), Err(DestroyQpError::Stale));
    assert_eq!(harness.device().alive, alive);
    assert_eq!(StaleHandle.errno(), Errno::Einval);
}

#[test]
fn handles_of_another_device_are_stale() {
    let harness = Harness::new();
    let mut other = Mock::new();
    other.device.node_guid = Guid(other.device.node_guid.0 + 1);
    let mut other = verbs_on(other);
    let pd = other.alloc_pd().unwrap();
    register(&mut other, pd, BASE, LENGTH, ALL_RIGHTS).unwrap();
    assert_eq!(other.mr_info(harness.mr), Err(StaleHandle));
    assert_eq!(other.dealloc_pd(harness.pd), Err(DeallocPdError::Stale));
}

#[test]
fn completion_queue_sizes_are_checked() {
    let mut harness = Harness::new();
    assert_eq!(harness.verbs.create_cq(0), Err(CreateCqError::Entries { entries: 0, max: 1 << 20 }));
    let too_many = (1 << 20) + 1;
    assert_eq!(harness.verbs.create_cq(too_many), Err(CreateCqError::Entries { entries: too_many, max: 1 << 20 }));
    let cq = harness.verbs.create_cq(5).unwrap();
    assert_eq!(harness.verbs.cq_info(cq).unwrap().entries, 8);
}

#[test]
fn queue_pair_capacities_are_checked() {
    let mut harness = Harness::new();
    let alive = harness.device().alive;
    for change in [
        |cap: &mut QpCap| cap.max_send_wr = (1 << 10) + 1,
        |cap: &mut QpCap| cap.max_recv_wr = (1 << 10) + 1,
        |cap: &mut QpCap| cap.max_send_sge = 5,
        |cap: &mut QpCap| cap.max_recv_sge = 5,
        |cap: &mut QpCap| cap.max_inline_data = 513,
    ] {
        let mut init = harness.init(QpType::Rc);
        change(&mut init.cap);
        let error = harness.verbs.create_qp(&init).unwrap_err();
        assert!(matches!(error, CreateQpError::Capacity { wanted, .. } if wanted == init.cap));
        let text = error.to_string();
        assert_eq!(text.matches(" is ").count(), 1, "one capacity is too large: {text}");
    }
    // As much as the device has, each for itself; for some there are no rings.
    for change in [
        |cap: &mut QpCap| cap.max_send_wr = 1 << 10,
        |cap: &mut QpCap| cap.max_recv_wr = 1 << 10,
        |cap: &mut QpCap| cap.max_send_sge = 4,
        |cap: &mut QpCap| cap.max_recv_sge = 4,
        |cap: &mut QpCap| (cap.max_inline_data, cap.max_send_wr) = (512, 1),
    ] {
        let mut init = harness.init(QpType::Rc);
        change(&mut init.cap);
        match harness.verbs.create_qp(&init) {
            Ok(qp) => harness.verbs.destroy_qp(qp).unwrap(),
            Err(error) => assert!(matches!(error, CreateQpError::Rings { .. }), "{error}"),
        }
        assert!(harness.poll_ids().is_empty());
    }
    // What the device has, but no rings of the storage.
    let more = |cap: &mut QpCap| cap.max_send_wr = 6;
    let receives = |cap: &mut QpCap| cap.max_recv_wr = 9;
    let longest = [16, 8];
    for (change, send, recv) in [(more as fn(&mut QpCap), 32, 8), (receives, 16, 16)] {
        let mut init = harness.init(QpType::Rc);
        change(&mut init.cap);
        let error = harness.verbs.create_qp(&init).unwrap_err();
        let QpCap { max_send_wr, max_recv_wr, .. } = init.cap;
        assert_eq!(
            (error, error.errno()),
            (CreateQpError::Rings { max_send_wr, max_recv_wr, send, recv, longest }, Errno::Enomem)
        );
    }
    for rings in [(48, 8), (1 << 16, 8), (64, 12)] {
        harness.device().rings = Some(rings);
        let error = harness.verbs.create_qp(&harness.init(QpType::Rc)).unwrap_err();
        assert_eq!(error, CreateQpError::Answer { fault: AnswerFault::Rings { send: rings.0, recv: rings.1 } });
    }
    assert_eq!(harness.device().alive, alive);
}

/// Rings of several sizes: a queue pair gets the smallest in which its requests fit, and those that are in use are not given
/// again.
#[test]
fn a_queue_pair_gets_the_smallest_rings_that_fit() {
    static LONG: QpRings<64, 32> = QpRings::new();
    static SHORT: [QpRings<16, 8>; 2] = [const { QpRings::new() }; 2];
    static SENDS: QpRings<16, 0> = QpRings::new();
    let views = [LONG.view(), SHORT[0].view(), SENDS.view(), SHORT[1].view()];
    let storage =
        std::boxed::Box::leak(std::boxed::Box::new(<storage![Mock; pds: 1, mrs: 1, mws: 1, cqs: 1, qps: 4]>::new(views)));
    let mut verbs = crate::kept_verbs::KeptVerbs::new(Verbs::new(Mock::new(), storage));
    let (pd, cq) = (verbs.alloc_pd().unwrap(), verbs.create_cq(4).unwrap());
    let init = |cap| QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap, sq_sig_all: false };
    let long = QpCap { max_send_wr: 20, ..CAP };
    verbs.provider().lock().rings = Some((16, 0));
    let sends = verbs.create_qp(&init(CAP)).unwrap();
    verbs.provider().lock().rings = None;
    let mut made = [CAP, CAP, long].map(|cap| verbs.create_qp(&init(cap)).unwrap());
    assert_eq!(verbs.create_qp(&init(long)), Err(CreateQpError::Full { capacity: 4, fitting: 1 }));
    // Without the short rings, the long ones do.
    verbs.destroy_qp(made[2]).unwrap();
    assert_eq!(verbs.poll_cq(cq, &mut [crate::Completion::EMPTY]), Ok(0));
    made[2] = verbs.create_qp(&init(CAP)).unwrap();
    assert_eq!(
        verbs.create_qp(&init(CAP)),
        Err(CreateQpError::Full { capacity: 4, fitting: 3 }),
        "the ring without receives is no ring for this one"
    );
    for qp in made.into_iter().chain([sends]) {
        verbs.destroy_qp(qp).unwrap();
    }
    assert_eq!(verbs.provider().lock().alive[4], 0);
}

// contract: qp-destroy
#[test]
fn destroying_a_queue_pair_takes_its_completions_along() {
    let mut harness = Harness::new();
    let other = harness.verbs.create_qp(&harness.init(QpType::Rc)).unwrap();
    harness.connect(other);
    harness.verbs.post_send(other, &post::send(2, &[])).unwrap();
    harness.verbs.post_send(harness.qp, &post::send(1, &[])).unwrap();
    harness.complete(0, WcStatus::Success);
    let mut raw = harness.raw(RawKind::Send, 0, WcStatus::Success);
    raw.qpn = harness.verbs.qp_info(other).unwrap().qpn;
    harness.push(raw);
    harness.verbs.destroy_qp(harness.qp).unwrap();
    let ids: std::vec::Vec<_> = harness.poll_ids();
    assert_eq!(ids, [2]);
}

// contract: query-port
#[test]
fn ports_are_checked_before_the_device_is_asked() {
    let mut harness = Harness::new();
    assert_eq!(harness.verbs.query_port(0), Err(QueryError::Port { port: 0 }));
    assert_eq!(harness.verbs.query_gid(2, 0), Err(QueryError::Port { port: 2 }));
    assert!(harness.verbs.query_port(1).is_ok());
    assert!(harness.verbs.query_gid(1, 0).is_ok());
    assert_eq!(harness.verbs.query_pkey(1, 0), Ok(0xffff));
    assert_eq!(harness.verbs.query_device().phys_port_cnt, 1);
}
