//! Rows of the contract about domains, regions, windows, completion queues, queries and events.

use std::string::ToString as _;

use super::mock::{Mock, MockError};
use super::{ALL_RIGHTS, BASE, CAP, LENGTH, Rig, post, register, verbs_on};
use crate::{
    Access, AllocMwError, AllocPdError, CreateCqError, CreateQpError, DeallocMwError, DeallocPdError, DeregMrError,
    DestroyCqError, DestroyQpError, Errno, Guid, Lkey, MwType, NotifyCqError, QpCap, QpInit, QpRings, QpType, QueryError,
    RegMrError, StaleHandle, Storage, Verbs, WcStatus,
};

#[test]
fn region_rights_are_checked() {
    let mut rig = Rig::new();
    let mut refused = |access: u32, errno: Errno| {
        let before = rig.device().alive;
        let error = register(&mut rig.verbs, rig.pd, BASE, 16, Access::from_bits_retain(access)).unwrap_err();
        assert_eq!((error.errno(), rig.device().alive), (errno, before), "{error}");
    };
    refused(Access::REMOTE_WRITE.bits(), Errno::Einval);
    refused(Access::REMOTE_ATOMIC.bits(), Errno::Einval);
    refused(1 << 9, Errno::Einval);
    refused(1 << 31 | 1, Errno::Einval);
    refused(Access::RELAXED_ORDERING.bits(), Errno::Eopnotsupp);
    for access in [Access::empty(), Access::REMOTE_READ, Access::MW_BIND, ALL_RIGHTS | Access::ZERO_BASED] {
        let mr = register(&mut rig.verbs, rig.pd, BASE, 16, access).unwrap();
        assert_eq!(rig.verbs.mr(mr).unwrap().access, access);
        rig.verbs.dereg_mr_raw(mr).unwrap();
    }
}

#[test]
fn region_ranges_are_checked() {
    let mut rig = Rig::new();
    let mut reg = |addr, length| register(&mut rig.verbs, rig.pd, addr, length, Access::empty()).map(drop);
    assert_eq!(reg(u64::MAX, 2), Err(RegMrError::Overflow { addr: u64::MAX, length: 2 }));
    assert_eq!(reg(1, u64::MAX), Err(RegMrError::Overflow { addr: 1, length: u64::MAX }));
    assert_eq!(reg(0, 0), Err(RegMrError::Empty));
    assert_eq!(reg(0, (1 << 40) + 1), Err(RegMrError::TooLong { max: 1 << 40 }));
    assert_eq!(reg(0, 1 << 40), Ok(()));
}

#[test]
fn a_region_keeps_what_it_was_made_with() {
    let mut rig = Rig::new();
    let mr = register(&mut rig.verbs, rig.pd, 0x123, 0x456, Access::LOCAL_WRITE).unwrap();
    let info = rig.verbs.mr(mr).unwrap();
    assert_eq!((info.pd, info.addr, info.length, info.access), (rig.pd, 0x123, 0x456, Access::LOCAL_WRITE));
    assert_eq!(info.lkey.get(), info.rkey.get());
    assert_ne!(info.lkey, rig.lkey());
}

#[test]
fn full_tables_make_nothing_and_name_themselves() {
    let mut rig = Rig::new();
    let window = rig.window(MwType::Type1);
    for _ in 0..3 {
        register(&mut rig.verbs, rig.pd, BASE, 16, Access::empty()).unwrap();
    }
    rig.verbs.alloc_pd().unwrap();
    rig.window(MwType::Type1);
    rig.verbs.create_cq(1).unwrap();
    rig.verbs.create_qp(&rig.init(QpType::Rc)).unwrap();
    let alive = rig.device().alive;
    assert_eq!(rig.verbs.alloc_pd(), Err(AllocPdError::Full));
    assert_eq!(register(&mut rig.verbs, rig.pd, BASE, 16, Access::empty()), Err(RegMrError::Full));
    assert_eq!(rig.verbs.alloc_mw(rig.pd, MwType::Type1), Err(AllocMwError::Full));
    assert_eq!(rig.verbs.create_cq(1), Err(CreateCqError::Full));
    assert_eq!(rig.verbs.create_qp(&rig.init(QpType::Rc)), Err(CreateQpError::Full));
    assert_eq!(RegMrError::<MockError>::Full.errno(), Errno::Enomem);
    assert_eq!(rig.device().alive, alive);
    rig.verbs.dealloc_mw(window).unwrap();
    rig.window(MwType::Type1);
}

#[test]
fn a_device_that_refuses_leaves_nothing_behind() {
    let mut rig = Rig::new();
    let alive = rig.device().alive;
    let fail = |rig: &mut Rig| rig.device().fail_after = Some(0);
    fail(&mut rig);
    assert_eq!(rig.verbs.alloc_pd(), Err(AllocPdError::Device(MockError::Refused)));
    fail(&mut rig);
    assert_eq!(register(&mut rig.verbs, rig.pd, BASE, 1, Access::empty()), Err(RegMrError::Device(MockError::Refused)));
    fail(&mut rig);
    assert_eq!(rig.verbs.alloc_mw(rig.pd, MwType::Type1), Err(AllocMwError::Device(MockError::Refused)));
    fail(&mut rig);
    assert_eq!(rig.verbs.create_cq(1), Err(CreateCqError::Device(MockError::Refused)));
    fail(&mut rig);
    assert_eq!(rig.verbs.create_qp(&rig.init(QpType::Rc)), Err(CreateQpError::Device(MockError::Refused)));
    assert_eq!(rig.device().alive, alive);
    // Destruction that fails leaves the object as it was.
    fail(&mut rig);
    assert_eq!(rig.verbs.dereg_mr_raw(rig.mr), Err(DeregMrError::Device(MockError::Refused)));
    assert!(rig.verbs.mr(rig.mr).is_ok());
    fail(&mut rig);
    assert_eq!(rig.verbs.destroy_qp(rig.qp), Err(DestroyQpError::Device(MockError::Refused)));
    assert!(rig.verbs.qp(rig.qp).is_ok());
    assert_eq!(DestroyQpError::Device(MockError::Refused).errno(), Errno::Eio);
}

#[test]
fn a_key_that_is_none_or_another_regions_is_refused_and_the_region_undone() {
    let mut rig = Rig::new();
    let alive = rig.device().alive;
    for key in [0, rig.lkey().get()] {
        rig.device().keys.push_back(key);
        let error = register(&mut rig.verbs, rig.pd, BASE, 1, Access::empty()).unwrap_err();
        assert_eq!(error, RegMrError::ForeignKey { lkey: Lkey::new(key) });
        assert_eq!(error.errno(), Errno::Ebadmsg);
        assert_eq!(rig.device().alive, alive);
    }
    rig.verbs.post_send(rig.qp, &post::send(1, &[rig.sge(0, 8)])).unwrap();
}

#[test]
fn objects_in_use_stay() {
    let mut rig = Rig::new();
    assert_eq!(rig.verbs.dealloc_pd(rig.pd), Err(DeallocPdError::Busy { users: 2 }));
    assert_eq!(rig.verbs.destroy_cq(rig.cq), Err(DestroyCqError::Busy { users: 2 }));
    assert_eq!(DestroyCqError::<MockError>::Busy { users: 2 }.errno(), Errno::Ebusy);
    rig.verbs.destroy_qp(rig.qp).unwrap();
    rig.verbs.destroy_cq(rig.cq).unwrap();
    rig.verbs.dereg_mr_raw(rig.mr).unwrap();
    rig.verbs.dealloc_pd(rig.pd).unwrap();
    let Ok(mock) = rig.verbs.into_provider() else { panic!("nothing is out") };
    assert_eq!(mock.lock().alive, [0; 5]);
}

#[test]
fn stale_handles_are_errors_of_every_verb() {
    let mut rig = Rig::new();
    let window = rig.window(MwType::Type1);
    let init = rig.init(QpType::Rc);
    rig.verbs.dealloc_mw(window).unwrap();
    rig.verbs.destroy_qp(rig.qp).unwrap();
    rig.verbs.destroy_cq(rig.cq).unwrap();
    rig.verbs.dereg_mr_raw(rig.mr).unwrap();
    rig.verbs.dealloc_pd(rig.pd).unwrap();
    // New objects take the same slots.
    let pd = rig.verbs.alloc_pd().unwrap();
    register(&mut rig.verbs, pd, BASE, LENGTH, ALL_RIGHTS).unwrap();
    let cq = rig.verbs.create_cq(4).unwrap();
    rig.verbs.alloc_mw(pd, MwType::Type1).unwrap();
    let alive = rig.device().alive;

    assert_eq!(rig.verbs.dealloc_pd(rig.pd), Err(DeallocPdError::Stale));
    assert_eq!(register(&mut rig.verbs, rig.pd, BASE, 1, Access::empty()), Err(RegMrError::StalePd));
    assert_eq!(rig.verbs.alloc_mw(rig.pd, MwType::Type2), Err(AllocMwError::StalePd));
    assert_eq!(rig.verbs.create_qp(&init), Err(CreateQpError::StalePd));
    assert_eq!(rig.verbs.create_qp(&crate::QpInit { pd, ..init }), Err(CreateQpError::StaleCq));
    assert_eq!(rig.verbs.create_qp(&crate::QpInit { pd, send_cq: cq, ..init }), Err(CreateQpError::StaleCq));
    assert_eq!(rig.verbs.mr(rig.mr), Err(StaleHandle));
    assert_eq!(rig.verbs.dereg_mr_raw(rig.mr), Err(DeregMrError::Stale));
    assert_eq!(rig.verbs.mw(window), Err(StaleHandle));
    assert_eq!(rig.verbs.dealloc_mw(window), Err(DeallocMwError::Stale));
    assert_eq!(rig.verbs.cq(rig.cq), Err(StaleHandle));
    assert_eq!(rig.verbs.destroy_cq(rig.cq), Err(DestroyCqError::Stale));
    assert_eq!(rig.verbs.req_notify_cq(rig.cq, false), Err(NotifyCqError::Stale));
    assert_eq!(rig.poll(), Err(crate::PollCqError::Stale));
    assert_eq!(rig.verbs.qp(rig.qp), Err(StaleHandle));
    assert_eq!(rig.verbs.query_qp(rig.qp), Err(crate::QueryQpError::Stale));
    assert_eq!(rig.verbs.destroy_qp(rig.qp), Err(DestroyQpError::Stale));
    assert_eq!(rig.verbs.post_send(rig.qp, &post::send(1, &[])), Err(crate::PostSendError::Stale));
    assert_eq!(rig.device().alive, alive);
    assert_eq!(StaleHandle.errno(), Errno::Einval);
}

#[test]
fn handles_of_another_device_are_stale() {
    let rig = Rig::new();
    let mut other = Mock::new();
    other.device.node_guid = Guid(other.device.node_guid.0 + 1);
    let mut other = verbs_on(other);
    let pd = other.alloc_pd().unwrap();
    register(&mut other, pd, BASE, LENGTH, ALL_RIGHTS).unwrap();
    assert_eq!(other.mr(rig.mr), Err(StaleHandle));
    assert_eq!(other.dealloc_pd(rig.pd), Err(DeallocPdError::Stale));
}

#[test]
fn completion_queue_sizes_are_checked() {
    let mut rig = Rig::new();
    assert_eq!(rig.verbs.create_cq(0), Err(CreateCqError::Entries { entries: 0, max: 1 << 20 }));
    let too_many = (1 << 20) + 1;
    assert_eq!(rig.verbs.create_cq(too_many), Err(CreateCqError::Entries { entries: too_many, max: 1 << 20 }));
    let cq = rig.verbs.create_cq(5).unwrap();
    assert_eq!(rig.verbs.cq(cq).unwrap().entries, 8);
}

#[test]
fn queue_pair_capacities_are_checked() {
    let mut rig = Rig::new();
    let alive = rig.device().alive;
    for change in [
        |cap: &mut QpCap| cap.max_send_wr = (1 << 10) + 1,
        |cap: &mut QpCap| cap.max_recv_wr = (1 << 10) + 1,
        |cap: &mut QpCap| cap.max_send_sge = 5,
        |cap: &mut QpCap| cap.max_recv_sge = 5,
        |cap: &mut QpCap| cap.max_inline_data = 513,
    ] {
        let mut init = rig.init(QpType::Rc);
        change(&mut init.cap);
        let error = rig.verbs.create_qp(&init).unwrap_err();
        assert!(matches!(error, CreateQpError::Capacity { wanted, .. } if wanted == init.cap));
        let text = error.to_string();
        assert_eq!(text.matches(" is ").count(), 1, "one capacity is too large: {text}");
    }
    // What the device has, but no rings of the storage.
    let more = |cap: &mut QpCap| cap.max_send_wr = 6;
    let receives = |cap: &mut QpCap| cap.max_recv_wr = 9;
    for (change, send, recv) in [(more as fn(&mut QpCap), 32, 8), (receives, 16, 16)] {
        let mut init = rig.init(QpType::Rc);
        change(&mut init.cap);
        let error = rig.verbs.create_qp(&init).unwrap_err();
        let QpCap { max_send_wr, max_recv_wr, .. } = init.cap;
        assert_eq!((error, error.errno()), (CreateQpError::Rings { max_send_wr, max_recv_wr, send, recv }, Errno::Enomem));
    }
    for rings in [(48, 8), (1 << 16, 8), (64, 12)] {
        rig.device().rings = Some(rings);
        let error = rig.verbs.create_qp(&rig.init(QpType::Rc)).unwrap_err();
        assert_eq!(error, CreateQpError::ForeignRings { send: rings.0, recv: rings.1 });
    }
    assert_eq!(rig.device().alive, alive);
}

/// Rings of several sizes: a queue pair gets the smallest in which its requests fit, and those that are in use are not given
/// again.
#[test]
fn a_queue_pair_gets_the_smallest_rings_that_fit() {
    static LONG: QpRings<64, 32> = QpRings::new();
    static SHORT: [QpRings<16, 8>; 2] = [const { QpRings::new() }; 2];
    static SENDS: QpRings<16, 0> = QpRings::new();
    let views = [LONG.view(), SHORT[0].view(), SENDS.view(), SHORT[1].view()];
    let storage = std::boxed::Box::leak(std::boxed::Box::new(Storage::<Mock, 1, 1, 1, 1, 4>::new(views)));
    let mut verbs = Verbs::new(Mock::new(), storage);
    let (pd, cq) = (verbs.alloc_pd().unwrap(), verbs.create_cq(4).unwrap());
    let init = |cap| QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap, sq_sig_all: false };
    let long = QpCap { max_send_wr: 20, ..CAP };
    verbs.provider().lock().rings = Some((16, 0));
    let sends = verbs.create_qp(&init(CAP)).unwrap();
    verbs.provider().lock().rings = None;
    let mut made = [CAP, CAP, long].map(|cap| verbs.create_qp(&init(cap)).unwrap());
    assert_eq!(verbs.create_qp(&init(long)), Err(CreateQpError::Full));
    // Without the short rings, the long ones do.
    verbs.destroy_qp(made[2]).unwrap();
    made[2] = verbs.create_qp(&init(CAP)).unwrap();
    assert_eq!(verbs.create_qp(&init(CAP)), Err(CreateQpError::Full), "the ring without receives is no ring for this one");
    for qp in made.into_iter().chain([sends]) {
        verbs.destroy_qp(qp).unwrap();
    }
    assert_eq!(verbs.provider().lock().alive[4], 0);
}

#[test]
fn destroying_a_queue_pair_takes_its_completions_along() {
    let mut rig = Rig::new();
    let other = rig.verbs.create_qp(&rig.init(QpType::Rc)).unwrap();
    rig.connect(other);
    rig.verbs.post_send(other, &post::send(2, &[])).unwrap();
    rig.verbs.post_send(rig.qp, &post::send(1, &[])).unwrap();
    rig.complete(0, WcStatus::Success);
    let mut raw = rig.raw(crate::RawKind::Send, 0, WcStatus::Success);
    raw.qpn = rig.verbs.qp(other).unwrap().qpn;
    rig.push(raw);
    rig.verbs.destroy_qp(rig.qp).unwrap();
    let ids: std::vec::Vec<_> = rig.poll_ids();
    assert_eq!(ids, [2]);
}

#[test]
fn ports_are_checked_before_the_device_is_asked() {
    let mut rig = Rig::new();
    assert_eq!(rig.verbs.query_port(0), Err(QueryError::Port { port: 0 }));
    assert_eq!(rig.verbs.query_gid(2, 0), Err(QueryError::Port { port: 2 }));
    assert!(rig.verbs.query_port(1).is_ok());
    assert!(rig.verbs.query_gid(1, 0).is_ok());
    assert_eq!(rig.verbs.query_pkey(1, 0), Ok(0xffff));
    assert_eq!(rig.verbs.query_device().phys_port_cnt, 1);
}
