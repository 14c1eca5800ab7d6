//! Regions for fast registration: what `alloc_fast_mr` asks a device for, and what it takes from its answer.

use super::{ALL_RIGHTS, Harness, MockError};
use crate::error::{AllocFastMrError, AnswerFault};
use crate::{Access, FastReg, KeyTag, MwType, SendFlags};

/// Windows that the device has, and that it was asked to destroy.
fn windows(harness: &Harness) -> (u32, u32) {
    let device = harness.device();
    (device.alive[2], device.destroyed[2])
}

/// Either table is full: the device is asked for nothing.
#[test]
fn a_region_of_requests_needs_a_place_in_two_tables() {
    let mut harness = Harness::new();
    let more: [_; 3] = core::array::from_fn(|_| harness.region(ALL_RIGHTS));
    let refused = harness.verbs.alloc_fast_mr(harness.pd, 2);
    assert_eq!(refused, Err(AllocFastMrError::RegionsFull { capacity: 4 }));
    assert_eq!(windows(&harness), (0, 0));
    harness.verbs.dereg_mr_raw(more[1]).unwrap();
    for _ in 0..2 {
        harness.window(MwType::Type2);
    }
    assert_eq!(harness.verbs.alloc_fast_mr(harness.pd, 2), Err(AllocFastMrError::WindowsFull { capacity: 2 }));
    assert_eq!(windows(&harness), (2, 0));
}

#[test]
fn what_the_device_refuses_leaves_both_tables_as_they_were() {
    let mut harness = Harness::new();
    for count in [0, 1 << 16, u32::MAX] {
        assert_eq!(harness.verbs.alloc_fast_mr(harness.pd, count), Err(AllocFastMrError::SgeCount { count }));
    }
    harness.device().fail_after = Some(0);
    assert_eq!(harness.verbs.alloc_fast_mr(harness.pd, 2), Err(AllocFastMrError::Device(MockError::Refused)));
    // Both windows' places and the three regions' are free.
    for _ in 0..2 {
        harness.verbs.alloc_fast_mr(harness.pd, 2).unwrap();
    }
    assert_eq!(windows(&harness), (2, 0));
}

/// A key that another region or window has by its index is nobody's to destroy: that would be the other.
#[test]
fn a_key_that_is_in_use_is_not_taken_twice() {
    let mut harness = Harness::new();
    let first = harness.verbs.alloc_fast_mr(harness.pd, 2).unwrap();
    let window = harness.verbs.fast_mr_info(first).unwrap().rkey.get();
    for key in [harness.lkey().get(), harness.lkey().get() ^ 0x11, window ^ 0x22] {
        harness.device().keys.push_back(key);
        let fault = AnswerFault::KeyInUse { key };
        assert_eq!(harness.verbs.alloc_fast_mr(harness.pd, 2), Err(AllocFastMrError::Answer { fault }));
    }
    assert_eq!(windows(&harness).1, 0);
}

/// Key 0 is that of no region: what has it is destroyed.
#[test]
fn an_answer_without_a_key_is_given_back_to_the_device() {
    let mut harness = Harness::new();
    harness.device().keys.push_back(0);
    let fault = AnswerFault::NoKey;
    assert_eq!(harness.verbs.alloc_fast_mr(harness.pd, 2), Err(AllocFastMrError::Answer { fault }));
    assert_eq!(windows(&harness), (0, 1));
    // The device refuses that too: it says so, and has the object still.
    harness.device().keys.push_back(0);
    harness.device().fail_after = Some(1);
    assert_eq!(harness.verbs.alloc_fast_mr(harness.pd, 2), Err(AllocFastMrError::Device(MockError::Refused)));
    assert_eq!(windows(&harness), (1, 1));
}

/// A registration gives its pieces as one range, from the first one's address on.
#[test]
fn a_registration_names_the_bytes_of_its_pieces() {
    let mut harness = Harness::new();
    let mr = harness.verbs.alloc_fast_mr(harness.pd, 2).unwrap();
    let sges = [harness.sge(0x100, 24), harness.sge(0x800, 40)];
    let reg = FastReg { wr_id: 1, flags: SendFlags::SIGNALED, tag: KeyTag(7), sges: &sges, access: Access::REMOTE_WRITE };
    let region = harness.verbs.send(harness.qp).post_reg_mr(mr, &reg).unwrap();
    assert_eq!((region.len(), region.is_empty()), (64, false));
    assert_eq!(region.lkey().get(), region.rkey().get());
    let (sge, remote) = (region.sge(30, 8), region.remote(30));
    assert_eq!((sge.addr, sge.length, sge.lkey), (sges[0].addr + 30, 8, region.lkey()));
    assert_eq!((remote.addr, remote.rkey), (sge.addr, region.rkey()));
}
