//! Rings that are given to more than one place of a storage, or to two storages.

use super::mock::{Mock, MockError};
use super::{ALL_RIGHTS, BASE, CAP, LENGTH};
use crate::error::{CreateQpError, CreateSrqError, DeallocMwError};
use crate::storage::{QpRings, SrqEntries};
use crate::{MwHandle, QpInit, QpType, SrqCap, SrqInit, Verbs, storage};

type Tables<'r> = storage!['r, Mock; pds: 1, mrs: 1, mws: 1, cqs: 1, qps: 2, srqs: 2];

/// Creates queue pairs and shared receive queues on tables until it is refused; returns how many there were, and the refusals.
fn fill(tables: &mut Tables<'_>) -> (usize, CreateQpError<MockError>, usize, CreateSrqError<MockError>) {
    let mut verbs = Verbs::new(Mock::new(), tables);
    let pd = verbs.alloc_pd().unwrap();
    let cq = verbs.create_cq(64).unwrap();
    let init = QpInit { pd, qp_type: QpType::Rc, send_cq: cq.handle(), recv_cq: cq.handle(), cap: CAP, sq_sig_all: false };
    let mut qps = std::vec![];
    let no_qp = loop {
        match verbs.create_qp(&init) {
            Ok(qp) => qps.push(qp),
            Err(error) => break error,
        }
    };
    let init = SrqInit { pd, cap: SrqCap { max_wr: 3, max_sge: 1 } };
    let mut srqs = std::vec![];
    let no_srq = loop {
        match verbs.create_srq(&init) {
            Ok(srq) => srqs.push(srq),
            Err(error) => break error,
        }
    };
    (qps.len(), no_qp, srqs.len(), no_srq)
}

#[test]
fn rings_serve_one_place_until_its_storage_is_dropped() {
    let (rings, slots) = ([QpRings::<16, 8>::new(), QpRings::new()], [SrqEntries::<4>::new(), SrqEntries::new()]);
    let [first, second] = QpRings::views(&rings);
    let [a, b] = SrqEntries::views(&slots);
    let one = (1, CreateQpError::Full { capacity: 2, fitting: 1 }, 1, CreateSrqError::Full { capacity: 2, fitting: 1 });
    let both = (2, CreateQpError::Full { capacity: 2, fitting: 2 }, 2, CreateSrqError::Full { capacity: 2, fitting: 2 });
    let mut twice = Tables::with_srqs([first, first], [a, a]);
    assert_eq!(fill(&mut twice), one);
    // Other verbs on the same tables: the rings are theirs already.
    assert_eq!(fill(&mut twice), one);
    let mut beside = Tables::with_srqs([first, second], [a, b]);
    assert_eq!(fill(&mut beside), one);
    // Those of others are none of its own.
    let mut none = Tables::with_srqs([first, first], [a, a]);
    let rings = CreateQpError::Rings { max_send_wr: 5, max_recv_wr: 8, send: 16, recv: 8, longest: [0; 2] };
    assert_eq!(fill(&mut none), (0, rings, 0, CreateSrqError::Entries { max_wr: 3, slots: 4, most: 0 }));
    drop(none);
    drop(twice);
    // Free, and taken by the next verbs that find them.
    assert_eq!(fill(&mut beside), both);
    let mut late = Tables::with_srqs([first, second], [a, b]);
    drop(beside);
    assert_eq!(fill(&mut late), both);
}

/// The number of a region for fast registration names its window: destroyed by it, the region is gone too.
#[test]
fn a_region_of_requests_that_ends_as_a_window_leaves_its_place() {
    let mut harness = super::Harness::new();
    let pd = harness.pd;
    for _ in 0..8 {
        let fast = harness.verbs.alloc_fast_mr(pd, 4).unwrap();
        harness.verbs.dealloc_mw(MwHandle::from_raw(fast.mw.into_raw())).unwrap();
        assert_eq!(harness.verbs.dealloc_fast_mr(fast), Err(DeallocMwError::Stale));
    }
    let rest = core::iter::from_fn(|| super::register(&mut harness.verbs, pd, BASE, LENGTH, ALL_RIGHTS).ok()).count();
    assert_eq!(rest, 3, "all regions but that of the harness");
}
