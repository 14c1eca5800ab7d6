//! Completion queues of another size.

use super::post::send;
use super::{Harness, MockError};
use crate::WcStatus;
use crate::error::ResizeCqError;

/// The device is asked for what it has, and for nothing else.
#[test]
fn a_queue_has_as_many_entries_as_the_device_gave_it() {
    let mut harness = Harness::new();
    let max = harness.verbs.provider().device.max_cqe;
    let mut cq = harness.verbs.take_cq(harness.cq);
    for entries in [0, max + 1, u32::MAX] {
        let refused = harness.verbs.verbs_mut().resize_cq(&mut cq, entries);
        assert_eq!(refused, Err(ResizeCqError::Entries { entries, max }));
    }
    for (asked, given) in [(2, 2), (max, max), (1, 1), (5, 8)] {
        harness.verbs.verbs_mut().resize_cq(&mut cq, asked).unwrap();
        assert_eq!(harness.verbs.cq_info(cq.handle()).unwrap().entries, given);
        assert_eq!(cq.entries, given);
    }
    // Eight fit, and one poll takes as many.
    for n in 0..8 {
        harness.verbs.post_send(harness.qp, &send(n, &[])).unwrap();
        harness.complete(n as u16, WcStatus::Success);
    }
    let done: std::vec::Vec<_> = cq.completions().map(|done| done.unwrap().wr_id).collect();
    assert_eq!(done, std::vec::Vec::from_iter(0..8));
    assert!(harness.device().events.is_empty());
}

/// More completions wait than there would be room for: the queue is as before, and so is what is in it.
#[test]
fn a_queue_that_the_device_leaves_as_it_is_keeps_its_size() {
    let mut harness = Harness::new();
    let mut cq = harness.verbs.take_cq(harness.cq);
    for n in 0..4 {
        harness.verbs.post_send(harness.qp, &send(n, &[])).unwrap();
        harness.complete(n as u16, WcStatus::Success);
    }
    let refused = harness.verbs.verbs_mut().resize_cq(&mut cq, 4);
    assert_eq!(refused, Err(ResizeCqError::Device(MockError::Refused)));
    assert_eq!((harness.verbs.cq_info(cq.handle()).unwrap().entries, cq.entries), (64, 64));
    assert_eq!(cq.completions().count(), 4);
}

/// A queue of another device has the same slot.
#[test]
fn a_queue_of_another_device_is_refused() {
    let (mut one, mut other) = (Harness::new(), Harness::new());
    let mut cq = other.verbs.take_cq(other.cq);
    assert_eq!(cq.handle().index(), one.cq.index());
    assert_eq!(one.verbs.verbs_mut().resize_cq(&mut cq, 8), Err(ResizeCqError::Stale));
    assert_eq!(one.verbs.cq_info(one.cq).unwrap().entries, 64);
    other.verbs.verbs_mut().resize_cq(&mut cq, 8).unwrap();
}
