//! Windows: who posts binds, who polls them, and the control path.

use loom::thread;

use super::{BASE, Harness};
use crate::error::{BindRefused, BindType1Error, DeregMrError};
use crate::sync::Ordering;
use crate::sync::modelled::check;
use crate::{Access, Completion, MrHandle, MwType, QpHandle, SendFlags, Type1Bind};

const fn bind(mr: MrHandle, wr_id: u64) -> Type1Bind {
    Type1Bind { wr_id, flags: SendFlags::SIGNALED, mr, addr: BASE, length: 64, access: Access::REMOTE_WRITE }
}

/// A window is never bound to a region that is gone.
#[test]
fn a_bind_holds_its_region_or_comes_too_late() {
    check(|| {
        let mut harness = Harness::new(true);
        let mw = harness.verbs.alloc_mw(harness.pd, MwType::Type1).unwrap();
        let (mut sends, mr) = (harness.verbs.take_qp(harness.qp).send, harness.mr);
        let sender = thread::spawn(move || sends.bind_type1(mw, &bind(mr, 1)));
        let gone = harness.verbs.dereg_mr_raw(mr);
        match (sender.join().unwrap(), gone) {
            (Ok(_), Err(DeregMrError::Busy { bindings: 1 })) => {}
            (Err(BindType1Error::Refused(BindRefused::StaleRegion)), Ok(())) => {}
            wrong => panic!("{wrong:?}"),
        }
    });
}

/// A completion of a bind ends it, however it is taken, and the binds in flight of the queue pair are counted right.
#[test]
fn a_completion_of_a_bind_ends_it() {
    check(|| {
        let mut harness = Harness::new(true);
        let mw = harness.verbs.alloc_mw(harness.pd, MwType::Type1).unwrap();
        let (mut sends, mr) = (harness.verbs.take_qp(harness.qp).send, harness.mr);
        let mut queue = harness.verbs.take_cq(harness.cq);
        sends.bind_type1(mw, &bind(mr, 1)).unwrap();
        let sender = thread::spawn(move || {
            sends.bind_type1(mw, &bind(mr, 2)).unwrap();
        });
        let mut given = 0;
        let mut out = [Completion::EMPTY; 2];
        for _ in 0..2 {
            given += queue.poll(&mut out).unwrap();
        }
        sender.join().unwrap();
        given += queue.poll(&mut out).unwrap();
        assert_eq!(given, 2);
        assert_eq!(harness.verbs.shared.qps[0].binds.load(Ordering::Relaxed), 0);
        harness.verbs.dealloc_mw(mw).unwrap();
        harness.verbs.dereg_mr_raw(mr).unwrap();
    });
}

/// A RESET drops a bind that a poller is about to end: one of them ends it, once.
#[test]
fn a_bind_that_reset_drops_is_ended_once() {
    check(|| {
        let mut harness = Harness::new(true);
        let mw = harness.verbs.alloc_mw(harness.pd, MwType::Type1).unwrap();
        let mut queue = harness.verbs.take_cq(harness.cq);
        harness.verbs.bind_type1(harness.qp, mw, &bind(harness.mr, 1)).unwrap();
        let poller = thread::spawn(move || {
            let mut out = [Completion::EMPTY; 2];
            queue.poll(&mut out).unwrap();
        });
        harness.reset();
        poller.join().unwrap();
        // Every other queue pair may bind the window now.
        let elsewhere = harness.verbs.shared.windows.with(|windows| windows.get(mw).unwrap().elsewhere(QpHandle::NONE));
        assert_eq!(elsewhere, None);
    });
}
