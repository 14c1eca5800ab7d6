//! Rows of the contract about domains, regions, windows, completion queues, queries and events.

use super::mock::{Mock, MockError};
use super::{ALL_RIGHTS, BASE, LENGTH, Rig, TestVerbs, post};
use crate::{
    Access, AllocMwError, AllocPdError, AsyncEvent, CreateCqError, CreateQpError, DeallocMwError, DeallocPdError, DeregMrError,
    DestroyCqError, DestroyQpError, Errno, Event, Guid, MwType, NotifyCqError, OffsetMap, QpCap, QpState, QpType, Qpn,
    QueryError, RegMrError, SgeFault, StaleHandle, Verbs, WcStatus,
};

const MAP: OffsetMap = OffsetMap { offset: 0 };

#[test]
fn region_rights_are_checked() {
    let mut rig = Rig::new();
    let mut refused = |access: u32, errno: Errno| {
        let before = rig.verbs.provider().alive;
        let error = rig.verbs.reg_mr(rig.pd, BASE, 16, Access::from_bits_retain(access), &MAP).unwrap_err();
        assert_eq!((error.errno(), rig.verbs.provider().alive), (errno, before), "{error}");
    };
    refused(Access::REMOTE_WRITE.bits(), Errno::Einval);
    refused(Access::REMOTE_ATOMIC.bits(), Errno::Einval);
    refused(1 << 9, Errno::Einval);
    refused(1 << 31 | 1, Errno::Einval);
    refused(Access::RELAXED_ORDERING.bits(), Errno::Eopnotsupp);
    for access in [Access::empty(), Access::REMOTE_READ, Access::MW_BIND, ALL_RIGHTS | Access::ZERO_BASED] {
        let mr = rig.verbs.reg_mr(rig.pd, BASE, 16, access, &MAP).unwrap();
        assert_eq!(rig.verbs.mr(mr).unwrap().access, access);
        rig.verbs.dereg_mr(mr).unwrap();
    }
}

#[test]
fn region_ranges_are_checked() {
    let mut rig = Rig::new();
    let mut reg = |addr, length| rig.verbs.reg_mr(rig.pd, addr, length, Access::empty(), &MAP).map(drop);
    assert_eq!(reg(u64::MAX, 2), Err(RegMrError::Overflow { addr: u64::MAX, length: 2 }));
    assert_eq!(reg(1, u64::MAX), Err(RegMrError::Overflow { addr: 1, length: u64::MAX }));
    assert_eq!(reg(0, 0), Err(RegMrError::Empty));
    assert_eq!(reg(0, (1 << 40) + 1), Err(RegMrError::TooLong { max: 1 << 40 }));
    assert_eq!(reg(0, 1 << 40), Ok(()));
}

#[test]
fn a_region_keeps_what_it_was_made_with() {
    let mut rig = Rig::new();
    let mr = rig.verbs.reg_mr(rig.pd, 0x123, 0x456, Access::LOCAL_WRITE, &MAP).unwrap();
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
        rig.verbs.reg_mr(rig.pd, BASE, 16, Access::empty(), &MAP).unwrap();
    }
    rig.verbs.alloc_pd().unwrap();
    rig.window(MwType::Type1);
    rig.verbs.create_cq(1).unwrap();
    rig.verbs.create_qp(&rig.init(QpType::Rc)).unwrap();
    let alive = rig.verbs.provider().alive;
    assert_eq!(rig.verbs.alloc_pd(), Err(AllocPdError::Full));
    assert_eq!(rig.verbs.reg_mr(rig.pd, BASE, 16, Access::empty(), &MAP), Err(RegMrError::Full));
    assert_eq!(rig.verbs.alloc_mw(rig.pd, MwType::Type1), Err(AllocMwError::Full));
    assert_eq!(rig.verbs.create_cq(1), Err(CreateCqError::Full));
    assert_eq!(rig.verbs.create_qp(&rig.init(QpType::Rc)), Err(CreateQpError::Full));
    assert_eq!(RegMrError::<MockError>::Full.errno(), Errno::Enomem);
    assert_eq!(rig.verbs.provider().alive, alive);
    rig.verbs.dealloc_mw(window).unwrap();
    rig.window(MwType::Type1);
}

#[test]
fn a_device_that_refuses_leaves_nothing_behind() {
    let mut rig = Rig::new();
    let alive = rig.verbs.provider().alive;
    let fail = |rig: &mut Rig| rig.verbs.provider_mut().fail_after = Some(0);
    fail(&mut rig);
    assert_eq!(rig.verbs.alloc_pd(), Err(AllocPdError::Device(MockError)));
    fail(&mut rig);
    assert_eq!(rig.verbs.reg_mr(rig.pd, BASE, 1, Access::empty(), &MAP), Err(RegMrError::Device(MockError)));
    fail(&mut rig);
    assert_eq!(rig.verbs.alloc_mw(rig.pd, MwType::Type1), Err(AllocMwError::Device(MockError)));
    fail(&mut rig);
    assert_eq!(rig.verbs.create_cq(1), Err(CreateCqError::Device(MockError)));
    fail(&mut rig);
    assert_eq!(rig.verbs.create_qp(&rig.init(QpType::Rc)), Err(CreateQpError::Device(MockError)));
    assert_eq!(rig.verbs.provider().alive, alive);
    // Destruction that fails leaves the object as it was.
    fail(&mut rig);
    assert_eq!(rig.verbs.dereg_mr(rig.mr), Err(DeregMrError::Device(MockError)));
    assert!(rig.verbs.mr(rig.mr).is_ok());
    fail(&mut rig);
    assert_eq!(rig.verbs.destroy_qp(rig.qp), Err(DestroyQpError::Device(MockError)));
    assert!(rig.verbs.qp(rig.qp).is_ok());
    assert_eq!(DestroyQpError::Device(MockError).errno(), Errno::Eio);
}

#[test]
fn keys_that_a_backend_made_up_are_refused_and_the_region_undone() {
    let mut rig = Rig::new();
    let alive = rig.verbs.provider().alive;
    rig.verbs.provider_mut().foreign_keys = true;
    let error = rig.verbs.reg_mr(rig.pd, BASE, 1, Access::empty(), &MAP).unwrap_err();
    assert!(matches!(error, RegMrError::ForeignKey { .. }));
    assert_eq!(rig.verbs.provider().alive, alive);
}

#[test]
fn objects_in_use_stay() {
    let mut rig = Rig::new();
    assert_eq!(rig.verbs.dealloc_pd(rig.pd), Err(DeallocPdError::Busy { users: 2 }));
    assert_eq!(rig.verbs.destroy_cq(rig.cq), Err(DestroyCqError::Busy { users: 2 }));
    assert_eq!(DestroyCqError::<MockError>::Busy { users: 2 }.errno(), Errno::Ebusy);
    rig.verbs.destroy_qp(rig.qp).unwrap();
    rig.verbs.destroy_cq(rig.cq).unwrap();
    rig.verbs.dereg_mr(rig.mr).unwrap();
    rig.verbs.dealloc_pd(rig.pd).unwrap();
    assert_eq!(rig.verbs.into_provider().alive, [0; 5]);
}

#[test]
fn stale_handles_are_errors_of_every_verb() {
    let mut rig = Rig::new();
    let window = rig.window(MwType::Type1);
    let init = rig.init(QpType::Rc);
    rig.verbs.dealloc_mw(window).unwrap();
    rig.verbs.destroy_qp(rig.qp).unwrap();
    rig.verbs.destroy_cq(rig.cq).unwrap();
    rig.verbs.dereg_mr(rig.mr).unwrap();
    rig.verbs.dealloc_pd(rig.pd).unwrap();
    // New objects take the same slots.
    let pd = rig.verbs.alloc_pd().unwrap();
    rig.verbs.reg_mr(pd, BASE, LENGTH, ALL_RIGHTS, &MAP).unwrap();
    let cq = rig.verbs.create_cq(4).unwrap();
    rig.verbs.alloc_mw(pd, MwType::Type1).unwrap();
    let alive = rig.verbs.provider().alive;

    assert_eq!(rig.verbs.dealloc_pd(rig.pd), Err(DeallocPdError::Stale));
    assert_eq!(rig.verbs.reg_mr(rig.pd, BASE, 1, Access::empty(), &MAP), Err(RegMrError::StalePd));
    assert_eq!(rig.verbs.alloc_mw(rig.pd, MwType::Type2), Err(AllocMwError::StalePd));
    assert_eq!(rig.verbs.create_qp(&init), Err(CreateQpError::StalePd));
    assert_eq!(rig.verbs.create_qp(&crate::QpInit { pd, ..init }), Err(CreateQpError::StaleCq));
    assert_eq!(rig.verbs.create_qp(&crate::QpInit { pd, send_cq: cq, ..init }), Err(CreateQpError::StaleCq));
    assert_eq!(rig.verbs.mr(rig.mr), Err(StaleHandle));
    assert_eq!(rig.verbs.dereg_mr(rig.mr), Err(DeregMrError::Stale));
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
    assert_eq!(rig.verbs.provider().alive, alive);
    assert_eq!(StaleHandle.errno(), Errno::Einval);
}

#[test]
fn handles_of_another_device_are_stale() {
    let rig = Rig::new();
    let mut other = Mock::new();
    other.device.node_guid = Guid(other.device.node_guid.0 + 1);
    let mut other = TestVerbs::new(other);
    let pd = other.alloc_pd().unwrap();
    other.reg_mr(pd, BASE, LENGTH, ALL_RIGHTS, &MAP).unwrap();
    assert_eq!(other.mr(rig.mr), Err(StaleHandle));
    assert_eq!(other.dealloc_pd(rig.pd), Err(DeallocPdError::Stale));
}

#[test]
fn keys_find_their_region_in_a_table_of_more_than_a_byte() {
    let mut verbs = Verbs::<Mock, 1, 600, 1, 1, 1, 16, 8>::new(Mock::new());
    let pd = verbs.alloc_pd().unwrap();
    let regions: std::vec::Vec<_> = (0..600).map(|n| verbs.reg_mr(pd, n * 0x1000, 0x1000, ALL_RIGHTS, &MAP).unwrap()).collect();
    for (n, &mr) in (0..).zip(&regions) {
        let lkey = verbs.mr(mr).unwrap().lkey;
        assert_eq!(verbs.check_sge_for_test(pd, &crate::Sge { addr: n * 0x1000, length: 0x1000, lkey }), Ok(()));
    }
    let gone = verbs.mr(regions[300]).unwrap().lkey;
    verbs.dereg_mr(regions[300]).unwrap();
    let sge = crate::Sge { addr: 300 * 0x1000, length: 1, lkey: gone };
    assert_eq!(verbs.check_sge_for_test(pd, &sge), Err(SgeFault::UnknownKey));
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
    let alive = rig.verbs.provider().alive;
    for change in [
        |cap: &mut QpCap| cap.max_send_wr = 17,
        |cap: &mut QpCap| cap.max_recv_wr = 9,
        |cap: &mut QpCap| cap.max_send_sge = 5,
        |cap: &mut QpCap| cap.max_recv_sge = 5,
        |cap: &mut QpCap| cap.max_inline_data = 513,
    ] {
        let mut init = rig.init(QpType::Rc);
        change(&mut init.cap);
        assert!(matches!(rig.verbs.create_qp(&init), Err(CreateQpError::Capacity { .. })));
    }
    for rings in [(48, 8), (1 << 16, 8), (64, 12), (0, 8)] {
        rig.verbs.provider_mut().rings = Some(rings);
        let error = rig.verbs.create_qp(&rig.init(QpType::Rc)).unwrap_err();
        assert_eq!(error, CreateQpError::ForeignRings { send: rings.0, recv: rings.1 });
    }
    assert_eq!(rig.verbs.provider().alive, alive);
}

#[test]
fn a_failure_to_clean_is_told_and_the_queue_pair_gone() {
    let mut rig = Rig::new();
    rig.verbs.provider_mut().fail_after = Some(1);
    assert_eq!(rig.verbs.destroy_qp(rig.qp), Err(DestroyQpError::Clean(MockError)));
    assert_eq!(rig.verbs.qp(rig.qp), Err(StaleHandle));
    rig.verbs.destroy_cq(rig.cq).unwrap();
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
    raw.cookie = None;
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

#[test]
fn events_name_handles_and_break_queue_pairs() {
    let mut rig = Rig::new();
    let cqn = rig.verbs.cq(rig.cq).unwrap().cqn;
    let (qpn, qp, cq) = (rig.qpn(), rig.qp, rig.cq);
    let stray = AsyncEvent::QpFatal(Qpn::new(0xabc));
    let told = [
        (AsyncEvent::Completion(cqn), Event::Completion(cq)),
        (AsyncEvent::CqError(cqn, 1), Event::CqError(cq, 1)),
        (AsyncEvent::CommEstablished(qpn), Event::CommEstablished(qp)),
        (AsyncEvent::SqDrained(qpn), Event::SqDrained(qp)),
        (AsyncEvent::LastWqeReached(qpn), Event::LastWqeReached(qp)),
        (AsyncEvent::PortDown(1), Event::PortDown(1)),
        (AsyncEvent::DeviceFatal(1, 2), Event::DeviceFatal(1, 2)),
        (AsyncEvent::Unknown(0x77, 0), Event::Unknown(0x77, 0)),
        (stray, Event::Stray(stray)),
    ];
    for (raw, event) in told {
        rig.verbs.provider_mut().events.push_back(raw);
        assert_eq!(rig.verbs.poll_event(), Ok(Some(event)));
    }
    assert_eq!(rig.verbs.qp(qp).unwrap().state, QpState::Rts);
    rig.verbs.provider_mut().events.push_back(AsyncEvent::QpAccessError(qpn));
    assert_eq!(rig.verbs.poll_event(), Ok(Some(Event::QpAccessError(qp))));
    assert_eq!(rig.verbs.qp(qp).unwrap().state, QpState::Err);
    assert_eq!(rig.verbs.poll_event(), Ok(None));
}

#[test]
fn arming_reaches_the_device() {
    let mut rig = Rig::new();
    let cqn = rig.verbs.cq(rig.cq).unwrap().cqn;
    rig.verbs.req_notify_cq(rig.cq, true).unwrap();
    rig.verbs.req_notify_cq(rig.cq, false).unwrap();
    assert_eq!(rig.verbs.provider().armed, [(cqn, true), (cqn, false)]);
}
