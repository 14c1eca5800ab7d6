//! Regions that change on simulated devices: which keys open what, before and after.

use bareverbs::error::{DeregMrError, Errno, PostSendError, RegMrError, ReregMrError, SgeFault};
use bareverbs::{
    Access, DmaBuffer, MrChange, MwType, QpAttr, QpAttrMask, QpState, Region, Remote, SendFlags, SendWr, Type1Bind, WcStatus,
};
use bareverbs_mlx5::Error;
use bareverbs_sim::in_process::SimBuffer;
use bareverbs_testing::{End, Fault, Faults, Node, connect, pair};

const CREATE_MKEY: u16 = 0x200;
const DESTROY_MKEY: u16 = 0x202;
/// Status of a command that the device refuses for want of resources, and its syndrome.
const REFUSED: (u8, u32) = (0xf, 0x77);

type Mr = Region<'static, SimBuffer>;

/// Returns the status of a WRITE of one byte. A queue pair that fails is connected again.
fn write(a: &mut Node, b: &mut Node, ends: &mut [End; 2], remote: Remote, byte: u8) -> WcStatus {
    ends[0].qp.send.post(&SendWr::write(remote, &[byte])).unwrap();
    let status = ends[0].wait().unwrap().status;
    if status != WcStatus::Success {
        *ends = connect(a, b).unwrap();
    }
    status
}

fn rights(access: Access) -> MrChange {
    MrChange { access: Some(access), ..MrChange::default() }
}

fn byte(buffer: &impl DmaBuffer, at: usize) -> u8 {
    let mut byte = [0];
    buffer.read(at, &mut byte).unwrap();
    byte[0]
}

// contract: mr-change
#[test]
fn new_rights_count_and_old_keys_open_nothing() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let mut ends = connect(&mut a, &mut b).unwrap();
    let region = b.register(4096, Access::LOCAL_WRITE).unwrap();
    let (handle, closed) = (region.handle(), region.remote(5));
    assert_eq!(write(&mut a, &mut b, &mut ends, closed, 1), WcStatus::RemAccessErr);
    let open = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let region = b.verbs.rereg_mr(region, &rights(open)).unwrap();
    assert_eq!(region.handle(), handle);
    let info = b.verbs.mr_info(handle).unwrap();
    assert_eq!((info.access, info.length, info.lkey, info.rkey), (open, 4096, region.lkey(), region.rkey()));
    let opened = region.remote(5);
    assert_ne!(opened.rkey, closed.rkey);
    assert_eq!(write(&mut a, &mut b, &mut ends, opened, 2), WcStatus::Success);
    assert_eq!(byte(&*region, 5), 2);
    assert_eq!(write(&mut a, &mut b, &mut ends, closed, 3), WcStatus::RemAccessErr);
    // And back again: what was open is closed.
    let region = b.verbs.rereg_mr(region, &rights(Access::LOCAL_WRITE)).unwrap();
    for remote in [opened, region.remote(5)] {
        assert_eq!(write(&mut a, &mut b, &mut ends, remote, 4), WcStatus::RemAccessErr);
    }
    assert_eq!(byte(&*region, 5), 2);
    b.verbs.dereg_mr(region).map_err(|refused| refused.error).unwrap();
    assert_eq!((a.findings(), b.findings()), (vec![], vec![]));
}

/// The poster sees the change too: an old key names nothing, and the rights that count are the new ones.
#[test]
fn requests_are_checked_against_the_new_region() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let [mut end, _peer] = connect(&mut a, &mut b).unwrap();
    let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap();
    let mut region = a.register(64, Access::empty()).unwrap();
    region.write(0, b"out").unwrap();
    let refused = |fault, lkey| Err(PostSendError::Sge { index: 0, lkey, fault });
    let old = region.sge(0, 3);
    assert_eq!(end.qp.send.post(&SendWr::read(target.remote(0), &[old])), refused(SgeFault::Access, old.lkey));
    let region = a.verbs.rereg_mr(region, &rights(Access::LOCAL_WRITE)).unwrap();
    let new = region.sge(0, 3);
    assert_eq!(end.qp.send.post(&SendWr::write(target.remote(0), &[old])), refused(SgeFault::UnknownKey, old.lkey));
    for wr in [SendWr::write(target.remote(0), &[new]), SendWr::read(target.remote(0), &[new])] {
        end.qp.send.post(&wr).unwrap();
        assert_eq!(end.wait().unwrap().status, WcStatus::Success);
    }
    // Another domain: the queue pair's own regions are in `a.pd`.
    let pd = a.verbs.alloc_pd().unwrap();
    let elsewhere = MrChange { pd: Some(pd), ..MrChange::default() };
    let region = a.verbs.rereg_mr(region, &elsewhere).unwrap();
    let sge = region.sge(0, 3);
    assert_eq!(end.qp.send.post(&SendWr::write(target.remote(0), &[sge])), refused(SgeFault::Domain, sge.lkey));
    assert_eq!(a.verbs.dealloc_pd(pd).unwrap_err().errno(), Errno::Ebusy);
    let home = MrChange { pd: Some(a.pd), ..MrChange::default() };
    let region = a.verbs.rereg_mr(region, &home).unwrap();
    a.verbs.dealloc_pd(pd).unwrap();
    end.qp.send.post(&SendWr::write(target.remote(0), &[region.sge(0, 3)])).unwrap();
    assert_eq!(end.wait().unwrap().status, WcStatus::Success);
    assert_eq!((a.findings(), b.findings()), (vec![], vec![]));
}

// contract: mr-change
#[test]
fn another_buffer_takes_what_comes_and_the_old_one_rests() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let mut ends = connect(&mut a, &mut b).unwrap();
    for extra in [Access::empty(), Access::ZERO_BASED] {
        let region = b.register(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE | extra).unwrap();
        let before = region.remote(7);
        assert_eq!(write(&mut a, &mut b, &mut ends, before, 1), WcStatus::Success);
        let buffer = b.host.memory(3 * 4096).whole();
        let (region, old) = b.verbs.rereg_mr_buffer(region, buffer, &MrChange::default()).map_err(|r| r.error).unwrap();
        assert_eq!((old.len(), region.len(), b.verbs.mr_info(region.handle()).unwrap().length), (4096, 3 * 4096, 3 * 4096));
        let far = region.remote(2 * 4096 + 7);
        assert_eq!(far.addr < 3 * 4096, extra == Access::ZERO_BASED);
        assert_eq!(write(&mut a, &mut b, &mut ends, region.remote(7), 2), WcStatus::Success);
        assert_eq!(write(&mut a, &mut b, &mut ends, far, 3), WcStatus::Success);
        assert_eq!(write(&mut a, &mut b, &mut ends, before, 4), WcStatus::RemAccessErr);
        assert_eq!((byte(&old, 7), byte(&*region, 7), byte(&*region, 2 * 4096 + 7)), (1, 2, 3));
    }
    assert_eq!((a.findings(), b.findings()), (vec![], vec![]));
}

#[test]
fn a_full_table_has_room_for_a_change() {
    let [mut a, _b] = pair(Faults::none()).unwrap();
    let mut regions: Vec<Mr> = Vec::new();
    while let Ok(region) = a.register(64, Access::empty()) {
        regions.push(region);
    }
    assert_eq!(regions.len(), 64);
    let mut keys: Vec<_> = regions.iter().map(|region| region.lkey()).collect();
    for round in 0..3 {
        for at in 0..regions.len() {
            let region = regions.remove(0);
            let region =
                a.verbs.rereg_mr(region, &rights(Access::LOCAL_WRITE)).unwrap_or_else(|error| panic!("{round} {at}: {error}"));
            keys.push(region.lkey());
            regions.push(region);
        }
    }
    let all = keys.len();
    keys.sort_unstable_by_key(|key| key.get());
    keys.dedup();
    assert_eq!(keys.len(), all, "no key came again");
    for region in regions {
        a.verbs.dereg_mr(region).map_err(|refused| refused.error).unwrap();
    }
    assert_eq!(a.findings(), vec![]);
}

// contract: mr-change-refused
#[test]
fn a_refused_change_leaves_the_region() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let mut ends = connect(&mut a, &mut b).unwrap();
    let [mut binder, _] = connect(&mut b, &mut a).unwrap();
    let open = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::MW_BIND;
    let mut region = b.register(4096, open).unwrap();
    let (info, remote) = (b.verbs.mr_info(region.handle()).unwrap(), region.remote(0));
    let unknown = Access::from_bits_retain(1 << 30);
    let stale = b.verbs.alloc_pd().unwrap();
    b.verbs.dealloc_pd(stale).unwrap();
    let cases: [(MrChange, ReregMrError<Error>, Errno); 3] = [
        (rights(Access::REMOTE_WRITE), RegMrError::RemoteWithoutLocalWrite.into(), Errno::Einval),
        (rights(unknown), RegMrError::UnknownFlags { bits: 1 << 30 }.into(), Errno::Einval),
        (MrChange { pd: Some(stale), ..MrChange::default() }, RegMrError::StalePd.into(), Errno::Einval),
    ];
    let mut number = 0;
    let mut check = |a: &mut Node, b: &mut Node, region: &Mr| {
        number += 1;
        assert_eq!(b.verbs.mr_info(region.handle()).unwrap(), info);
        assert_eq!(write(a, b, &mut ends, remote, number), WcStatus::Success);
        assert_eq!(byte(&**region, 0), number);
    };
    for (change, error, errno) in cases {
        let refused = b.verbs.rereg_mr(region, &change).unwrap_err();
        assert_eq!((refused.error, refused.error.errno()), (error, errno));
        region = refused.returned.unwrap();
        check(&mut a, &mut b, &region);
    }
    // Of other verbs.
    let refused = a.verbs.rereg_mr(region, &MrChange::default()).unwrap_err();
    assert_eq!((refused.error, refused.error.errno()), (DeregMrError::Stale.into(), Errno::Einval));
    region = refused.returned.unwrap();
    // The device refuses the new key, or to destroy the old one; with another buffer, both come back.
    let (status, syndrome) = REFUSED;
    for opcode in [CREATE_MKEY, DESTROY_MKEY] {
        b.arm(Fault::CommandStatus { opcode, status, syndrome });
        let refused = b.verbs.rereg_mr(region, &rights(Access::LOCAL_WRITE)).unwrap_err();
        assert_eq!(refused.error.errno(), Errno::Enomem, "{}", refused.error);
        region = refused.returned.unwrap();
        check(&mut a, &mut b, &region);
        b.arm(Fault::CommandStatus { opcode, status, syndrome });
        let buffer = b.host.memory(64).whole();
        let refused = b.verbs.rereg_mr_buffer(region, buffer, &MrChange::default()).unwrap_err();
        let (same, buffer) = refused.returned.unwrap();
        assert_eq!(buffer.len(), 64);
        region = same;
        check(&mut a, &mut b, &region);
    }
    // A window is bound to it.
    let mw = b.verbs.alloc_mw(b.pd, MwType::Type1).unwrap();
    let bind = |length| Type1Bind {
        wr_id: 1,
        flags: SendFlags::empty(),
        mr: region.handle(),
        addr: remote.addr,
        length,
        access: Access::REMOTE_WRITE,
    };
    let bind_and_unbind = [bind(64), bind(0)];
    binder.qp.send.bind_type1(mw, &bind_and_unbind[0]).unwrap();
    binder.wait().unwrap().result().unwrap();
    let refused = b.verbs.rereg_mr(region, &MrChange::default()).unwrap_err();
    assert_eq!((refused.error, refused.error.errno()), (DeregMrError::Busy { bindings: 1 }.into(), Errno::Ebusy));
    region = refused.returned.unwrap();
    check(&mut a, &mut b, &region);
    binder.qp.send.bind_type1(mw, &bind_and_unbind[1]).unwrap();
    binder.wait().unwrap().result().unwrap();
    // What was refused has left no key behind: the device has as many as after one change.
    let region = b.verbs.rereg_mr(region, &MrChange::default()).unwrap();
    b.verbs.dereg_mr(region).map_err(|refused| refused.error).unwrap();
    let _ = b.verbs.modify_qp(binder.qp.handle(), &QpAttr { state: QpState::Err, ..QpAttr::default() }, QpAttrMask::STATE);
    assert_eq!((a.findings(), b.findings()), (vec![], vec![]));
}

/// The device keeps both keys. Its memory is somebody's who has no name for it any more: nobody gets it back.
#[test]
fn a_key_that_the_device_keeps_takes_the_buffer_along() {
    let [mut a, _b] = pair(Faults::none()).unwrap();
    let (status, syndrome) = REFUSED;
    let twice = |a: &Node| (0..2).for_each(|_| a.arm(Fault::CommandStatus { opcode: DESTROY_MKEY, status, syndrome }));
    let region = a.register(64, Access::LOCAL_WRITE).unwrap();
    twice(&a);
    let refused = a.verbs.rereg_mr(region, &MrChange::default()).unwrap_err();
    assert!(refused.returned.is_none() && matches!(refused.error, ReregMrError::Deregister(DeregMrError::Device(_))));
    let region = a.register(64, Access::LOCAL_WRITE).unwrap();
    twice(&a);
    let buffer = a.host.memory(64).whole();
    assert!(a.verbs.rereg_mr_buffer(region, buffer, &MrChange::default()).unwrap_err().returned.is_none());
    assert_eq!(a.verbs.dealloc_pd(a.pd).unwrap_err().errno(), Errno::Ebusy);
}

/// What is in the buffer can still be read, and the buffer does not come out.
#[test]
fn a_region_of_a_lost_device_comes_back() {
    for known in [false, true] {
        let [mut a, _b] = pair(Faults::none()).unwrap();
        let mut region = a.register(64, Access::LOCAL_WRITE).unwrap();
        region.write(3, &[9]).unwrap();
        a.remove();
        if known {
            a.verbs.query_port(1).unwrap_err();
        }
        let refused = a.verbs.rereg_mr(region, &MrChange::default()).unwrap_err();
        assert_eq!(refused.error.errno(), Errno::Enodev);
        let region = refused.returned.unwrap();
        assert_eq!(byte(&*region, 3), 9);
        assert!(a.verbs.dereg_mr(region).unwrap_err().returned.is_some());
    }
}
