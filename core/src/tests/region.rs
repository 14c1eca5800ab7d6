//! Regions that own their buffers, and the table in which requests look for their keys.

use std::boxed::Box;
use std::string::ToString as _;
use std::sync::Arc;
use std::vec;
use std::vec::Vec;

use super::mock::{Mock, MockError};
use super::{ALL_RIGHTS, BASE, Harness, post, register, verbs_on};
use crate::error::{AnswerFault, DeregMrError, Errno, PostSendError, RegMrError, SgeFault};
use crate::platform::{AddressMap, Extent, OutOfRange};
use crate::shared::check_sge;
use crate::storage::QpRings;
use crate::{Access, DmaBuffer, KeyTag, Lkey, MrChange, MrHandle, MwType, PdHandle, Sge, Verbs, storage};

/// A buffer of a test; the count of its clones shows whether it was dropped.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    _alive: Arc<()>,
}

impl Buffer {
    pub(super) fn new(alive: &Arc<()>) -> Self {
        Self { bytes: vec![0; 64], _alive: Arc::clone(alive) }
    }
}

impl AddressMap for Buffer {
    fn extent(&self, addr: u64) -> Option<Extent> {
        let offset = addr.checked_sub(BASE).filter(|offset| *offset < self.len())?;
        Some(Extent { device_addr: addr, len: self.len() - offset })
    }
}

// SAFETY: the mock device reads and writes no memory, so none of the promises is relied upon.
#[expect(unsafe_code, reason = "the bytes are in no device's reach")]
unsafe impl DmaBuffer for Buffer {
    fn addr(&self) -> u64 {
        BASE
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        let outside = OutOfRange { offset: at, len: into.len(), size: self.bytes.len() };
        into.copy_from_slice(self.bytes.get(at..at + into.len()).ok_or(outside)?);
        Ok(())
    }

    fn write(&mut self, at: usize, from: &[u8]) -> Result<(), OutOfRange> {
        let outside = OutOfRange { offset: at, len: from.len(), size: self.bytes.len() };
        self.bytes.get_mut(at..at + from.len()).ok_or(outside)?.copy_from_slice(from);
        Ok(())
    }
}

#[test]
fn a_region_owns_its_buffer_and_gives_it_back() {
    let (mut harness, alive) = (Harness::new(), Arc::new(()));
    let mut region = harness.verbs.reg_mr(harness.pd, Buffer::new(&alive), Access::LOCAL_WRITE).unwrap();
    let info = harness.verbs.mr_info(region.handle()).unwrap();
    assert_eq!((info.addr, info.length, info.lkey, info.rkey), (BASE, 64, region.lkey(), region.rkey()));
    assert_eq!(region.sge(8, 4), Sge { addr: BASE + 8, length: 4, lkey: info.lkey });
    assert_eq!((region.remote(8).addr, region.remote(8).rkey), (BASE + 8, info.rkey));
    region.write(60, b"tail").unwrap();
    let outside = region.write(61, b"tail").unwrap_err();
    assert_eq!(outside, OutOfRange { offset: 61, len: 4, size: 64 });
    assert_eq!(outside.to_string(), "no access of 4 bytes at offset 61: there are 64 bytes");
    let unaligned = OutOfRange { offset: 2, len: 4, size: 64 };
    assert_eq!(unaligned.to_string(), "no access of 4 bytes at offset 2: it is not aligned");
    harness.verbs.post_send(harness.qp, &post::send(1, &[region.sge(0, 64)])).unwrap();
    let sge = region.sge(0, 64);
    let buffer = harness.verbs.dereg_mr(region).unwrap();
    let mut tail = [0; 4];
    buffer.read(60, &mut tail).unwrap();
    assert_eq!(&tail, b"tail");
    let error = harness.verbs.post_send(harness.qp, &post::send(1, &[sge])).unwrap_err();
    assert_eq!(error, PostSendError::Sge { index: 0, lkey: sge.lkey, fault: SgeFault::UnknownKey });
}

#[test]
fn a_zero_based_region_gives_offsets() {
    let (mut harness, alive) = (Harness::new(), Arc::new(()));
    let region = harness.verbs.reg_mr(harness.pd, Buffer::new(&alive), Access::ZERO_BASED).unwrap();
    assert_eq!((region.sge(8, 4).addr, region.remote(8).addr), (8, 8));
    harness.verbs.post_send(harness.qp, &post::send(1, &[region.sge(0, 64)])).unwrap();
    assert!(harness.verbs.post_send(harness.qp, &post::send(1, &[region.sge(1, 64)])).is_err());
    harness.verbs.dereg_mr(region).unwrap();
}

#[test]
fn a_refused_registration_gives_the_buffer_back_unless_the_device_may_use_it() {
    let (mut harness, alive) = (Harness::new(), Arc::new(()));
    let refused = harness.verbs.reg_mr(harness.pd, Buffer::new(&alive), Access::REMOTE_WRITE).unwrap_err();
    assert_eq!((refused.error, refused.returned.is_some()), (RegMrError::RemoteWithoutLocalWrite, true));
    drop(refused);
    harness.device().fail_after = Some(0);
    let refused = harness.verbs.reg_mr(harness.pd, Buffer::new(&alive), Access::empty()).unwrap_err();
    assert_eq!((refused.error, refused.returned.is_some()), (RegMrError::Device(MockError::Refused), true));
    drop(refused);
    assert_eq!(Arc::strong_count(&alive), 1, "every buffer came back and was dropped");
    harness.device().error = MockError::NoAnswer;
    harness.device().fail_after = Some(0);
    let refused = harness.verbs.reg_mr(harness.pd, Buffer::new(&alive), Access::empty()).unwrap_err();
    assert_eq!((refused.error, refused.returned.is_some()), (RegMrError::Device(MockError::NoAnswer), false));
    assert_eq!(Arc::strong_count(&alive), 2, "memory that the device may write is never freed");
}

/// A key by whose index the device would destroy the region itself, another one, or a window: none is destroyed, and the buffer is never
/// freed.
#[test]
fn a_change_that_gives_a_key_that_is_taken_destroys_nothing() {
    for owner in 0..3 {
        let (mut harness, alive) = (Harness::new(), Arc::new(()));
        let region = harness.verbs.reg_mr(harness.pd, Buffer::new(&alive), Access::LOCAL_WRITE).unwrap();
        let mw = harness.window(MwType::Type1);
        let window = Lkey::new(harness.verbs.mw_info(mw).unwrap().rkey.get());
        let taken = [region.lkey(), harness.lkey(), window][owner];
        let key = KeyTag(taken.get() as u8 ^ 1).key(taken.index());
        harness.device().keys.push_back(key);
        let count = harness.device().alive[1];
        let refused = harness.verbs.rereg_mr(region, &MrChange::default()).unwrap_err();
        let error = RegMrError::Answer { fault: AnswerFault::KeyInUse { key } }.into();
        assert_eq!((refused.error, refused.returned.is_none()), (error, true));
        assert_eq!((harness.device().alive[1], Arc::strong_count(&alive)), (count + 1, 2));
    }
    // No key at all is destroyed, and the region comes back.
    let (mut harness, alive) = (Harness::new(), Arc::new(()));
    let region = harness.verbs.reg_mr(harness.pd, Buffer::new(&alive), Access::LOCAL_WRITE).unwrap();
    harness.device().keys.push_back(0);
    let count = harness.device().alive[1];
    let refused = harness.verbs.rereg_mr(region, &MrChange::default()).unwrap_err();
    assert_eq!((refused.returned.is_some(), harness.device().alive[1]), (true, count));
}

#[test]
fn a_region_that_is_dropped_stays_registered_and_keeps_its_buffer() {
    let (mut harness, alive) = (Harness::new(), Arc::new(()));
    let region = harness.verbs.reg_mr(harness.pd, Buffer::new(&alive), Access::empty()).unwrap();
    let (handle, sge) = (region.handle(), region.sge(0, 8));
    drop(region);
    assert_eq!(Arc::strong_count(&alive), 2);
    assert_eq!(harness.verbs.mr_info(handle).unwrap().lkey, sge.lkey);
    harness.verbs.post_send(harness.qp, &post::send(1, &[sge])).unwrap();
}

#[test]
fn a_region_that_cannot_be_deregistered_comes_back() {
    let (mut harness, alive) = (Harness::new(), Arc::new(()));
    let region = harness.verbs.reg_mr(harness.pd, Buffer::new(&alive), ALL_RIGHTS).unwrap();
    harness.device().fail_after = Some(0);
    let refused = harness.verbs.dereg_mr(region).unwrap_err();
    assert_eq!(refused.error, DeregMrError::Device(MockError::Refused));
    let region = refused.returned.unwrap();
    harness.verbs.post_send(harness.qp, &post::send(1, &[region.sge(0, 8)])).unwrap();
    // Of other verbs, where the slot and even the key may be the same.
    let mut other = Harness::new();
    let theirs = other.verbs.reg_mr(other.pd, Buffer::new(&alive), ALL_RIGHTS).unwrap();
    assert_eq!((theirs.handle().index(), theirs.lkey()), (region.handle().index(), region.lkey()));
    let refused = other.verbs.dereg_mr(region).unwrap_err();
    assert_eq!((refused.error, refused.error.errno()), (DeregMrError::Stale, Errno::Einval));
    harness.verbs.dereg_mr(refused.returned.unwrap()).unwrap();
    other.verbs.dereg_mr(theirs).unwrap();
    assert_eq!(Arc::strong_count(&alive), 1);
}

/// Verbs with room for `MR` regions, and one domain.
fn large<const MR: usize>() -> (super::TestVerbs, PdHandle) {
    let rings: &'static [QpRings<16, 8>; 1] = Box::leak(Box::new([const { QpRings::new() }; 1]));
    let storage = <storage![Mock; pds: 1, mrs: MR, mws: 1, cqs: 1, qps: 1]>::new(QpRings::views(rings));
    let mut verbs = crate::kept_verbs::KeptVerbs::new(Verbs::new(Mock::new(), Box::leak(Box::new(storage))));
    let pd = verbs.alloc_pd().unwrap();
    (verbs, pd)
}

fn check(verbs: &Verbs<'static, Mock>, pd: PdHandle, addr: u64, lkey: Lkey) -> Result<(), SgeFault> {
    check_sge(&verbs.shared.regions, pd.index(), Access::empty(), &Sge { addr, length: 0x1000, lkey }).map(drop)
}

fn lkey(verbs: &Verbs<'static, Mock>, mr: MrHandle) -> Lkey {
    verbs.mr_info(mr).unwrap().lkey
}

#[test]
#[cfg_attr(miri, ignore = "searches in a large table take minutes")]
fn keys_find_their_region_in_a_table_of_more_than_a_byte() {
    let (mut verbs, pd) = large::<600>();
    let regions: Vec<_> = (0..600).map(|n| register(&mut verbs, pd, n * 0x1000, 0x1000, ALL_RIGHTS).unwrap()).collect();
    for (n, &mr) in (0..).zip(&regions) {
        assert_eq!(check(&verbs, pd, n * 0x1000, lkey(&verbs, mr)), Ok(()));
    }
    let gone = lkey(&verbs, regions[300]);
    verbs.dereg_mr_raw(regions[300]).unwrap();
    assert_eq!(check(&verbs, pd, 300 * 0x1000, gone), Err(SgeFault::UnknownKey));
}

/// Keys that all begin their search in one slot, also beside keys of the slots that they spill into; one after the other goes.
#[test]
fn keys_that_begin_in_the_same_slot_are_all_found() {
    let (mut verbs, pd) = large::<6>();
    // Six slots: the search begins at the number's low two bits.
    let keys = [0x200, 0xa01, 0x1202, 0x303, 0x600, 0x2205];
    let slots: Vec<usize> =
        keys.iter().filter_map(|key| verbs.shared.regions.in_order(Lkey::new(*key)).next()).map(|(slot, _)| slot).collect();
    assert_eq!(slots, [2, 2, 2, 3, 2, 2]);
    verbs.provider().lock().keys.extend(keys);
    let mut regions: Vec<(u64, MrHandle)> =
        (0..6).map(|n| (n * 0x1000, register(&mut verbs, pd, n * 0x1000, 0x1000, ALL_RIGHTS).unwrap())).collect();
    assert_eq!(register(&mut verbs, pd, 0, 0x1000, ALL_RIGHTS), Err(RegMrError::Full { capacity: 6 }));
    while !regions.is_empty() {
        for (addr, mr) in &regions {
            assert_eq!(check(&verbs, pd, *addr, lkey(&verbs, *mr)), Ok(()));
        }
        // From the middle, so that the search goes past vacant slots.
        let (addr, mr) = regions.remove(regions.len() / 2);
        let gone = lkey(&verbs, mr);
        verbs.dereg_mr_raw(mr).unwrap();
        assert_eq!(check(&verbs, pd, addr, gone), Err(SgeFault::UnknownKey));
    }
    assert_eq!(check(&verbs, pd, 0, Lkey::new(0)), Err(SgeFault::UnknownKey), "what marks a vacant slot is no key");
}

/// A device whose numbers come again distinguishes the reuses of a number by the low byte of the key. Whatever the size of the
/// table, an old key leads nowhere.
#[test]
#[cfg_attr(miri, ignore = "searches in a large table take minutes")]
fn the_key_of_a_region_that_is_gone_leads_nowhere() {
    fn lives<const MR: usize>() {
        let (mut verbs, pd) = large::<MR>();
        let mut gone: Vec<Lkey> = Vec::new();
        for _ in 0..100 {
            let mr = register(&mut verbs, pd, 0, 0x1000, ALL_RIGHTS).unwrap();
            let key = lkey(&verbs, mr);
            assert_eq!(check(&verbs, pd, 0, key), Ok(()));
            for old in &gone {
                assert_eq!(old.index(), key.index(), "the number came again");
                assert_eq!(check(&verbs, pd, 0, *old), Err(SgeFault::UnknownKey));
            }
            verbs.dereg_mr_raw(mr).unwrap();
            gone.push(key);
        }
    }
    lives::<1>();
    lives::<128>();
    lives::<129>();
    lives::<1024>();
}

#[test]
fn a_raw_handle_is_stale_once_its_region_is_gone() {
    let mut verbs = verbs_on(Mock::new());
    let pd = verbs.alloc_pd().unwrap();
    let first = register(&mut verbs, pd, BASE, 64, ALL_RIGHTS).unwrap();
    verbs.dereg_mr_raw(first).unwrap();
    let second = register(&mut verbs, pd, BASE, 64, ALL_RIGHTS).unwrap();
    assert_ne!(first, second);
    assert_eq!(verbs.dereg_mr_raw(first), Err(DeregMrError::Stale));
    verbs.dereg_mr_raw(second).unwrap();
}

/// The device has ended the old key: the handle names neither it nor another's.
#[test]
fn a_change_of_a_region_that_unwinds_leaves_no_entry() {
    let (mut harness, alive) = (Harness::new(), Arc::new(()));
    let region = harness.verbs.reg_mr(harness.pd, Buffer::new(&alive), Access::LOCAL_WRITE).unwrap();
    let handle = region.handle();
    harness.device().unwinds = true;
    let change = MrChange { access: Some(Access::LOCAL_WRITE), ..MrChange::default() };
    assert!(
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| harness.verbs.rereg_mr(region, &change).is_ok())).is_err()
    );
    assert!(harness.verbs.mr_info(handle).is_err());
    assert!(harness.verbs.dereg_mr_raw(handle).is_err());
}
