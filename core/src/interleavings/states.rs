//! A send fails while the control path moves the queue pair.

use loom::thread;

use super::{Harness, send};
use crate::sync::modelled::check;
use crate::{Completion, QpAttr, QpAttrMask, QpState, QpType};

/// Moves the queue pair while a poller takes a failed send; it ends in `to`.
fn ends_in(to: QpState, recovers: bool) {
    check(move || {
        let mut harness = Harness::of(QpType::Uc, true);
        harness.verbs.provider().fail_sends();
        harness.verbs.post_send(harness.qp, &send(1)).unwrap();
        let mut queue = harness.verbs.take_cq(harness.cq);
        let poller = thread::spawn(move || {
            let mut out = [Completion::EMPTY; 2];
            let _ = queue.poll(&mut out);
            queue
        });
        let mask = if recovers { QpAttrMask::STATE | QpAttrMask::CUR_STATE } else { QpAttrMask::STATE };
        let attr = QpAttr { state: to, cur_state: QpState::Sqe, ..QpAttr::default() };
        harness.verbs.modify_qp(harness.qp, &attr, mask).unwrap();
        drop(poller.join().unwrap());
        assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().state, to);
    });
}

#[test]
fn a_send_fails_while_the_queue_pair_is_reset() {
    ends_in(QpState::Reset, false);
}

#[test]
fn a_send_fails_while_the_queue_pair_is_moved_to_err() {
    ends_in(QpState::Err, false);
}

/// The caller knows before the poller that the send queue is in error, and ends that.
#[test]
fn a_send_fails_while_its_queue_is_recovered() {
    ends_in(QpState::Rts, true);
}
