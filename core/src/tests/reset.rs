//! What a RESET leaves.

use super::Harness;
use super::post::send;
use crate::QpState;

#[test]
fn after_a_reset_all_blocks_and_no_more_are_free() {
    let mut harness = Harness::new();
    let all = harness.verbs.send(harness.qp).free_blocks();
    harness.verbs.post_send(harness.qp, &send(1, &[])).unwrap();
    assert!(harness.device().execute(harness.qpn()));
    assert_eq!(harness.poll_ids(), [1]);
    harness.step(harness.qp, QpState::Reset);
    assert_eq!(harness.verbs.send(harness.qp).free_blocks(), all);
}

/// A device that says RESET of a queue pair that nobody has reset does not bring requests of before into its next life.
#[test]
fn a_reset_that_only_the_device_knows_leaves_no_request() {
    let mut harness = Harness::new();
    for wr_id in 0..2 {
        harness.verbs.post_send(harness.qp, &send(wr_id, &[])).unwrap();
    }
    let qpn = harness.qpn();
    harness.device().state = Some(QpState::Reset);
    harness.device().qps.get_mut(&qpn).unwrap().state = QpState::Reset;
    let said = harness.verbs.query_qp(harness.qp).unwrap().state;
    harness.device().state = None;
    if said != QpState::Reset {
        return;
    }
    harness.connect(harness.qp);
    let info = harness.verbs.qp_info(harness.qp).unwrap();
    assert_eq!((info.state, info.send_blocks), (QpState::Rts, 0), "requests of before the RESET are in flight after it");
}
