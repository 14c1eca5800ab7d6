//! What a RESET leaves.

use super::Harness;
use super::post::send;
use crate::error::ModifyQpError;
use crate::{QpAttrMask, QpState, QpType, RecvWr, SendFlags, SendWr};

/// Takes the queue pair from RESET to INIT.
fn initialize(harness: &mut Harness) -> Result<(), ModifyQpError<super::MockError>> {
    let required = QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
    harness.verbs.verbs_mut().modify_qp(harness.qp, &super::attributes(QpState::Init), QpAttrMask::STATE | required)
}

/// The way back after a transition that the device refused, from INIT and from RTR: reset, and again.
#[test]
fn an_untouched_queue_pair_leaves_reset_at_once() {
    let mut harness = Harness::new();
    harness.verbs.destroy_qp(harness.qp).unwrap();
    assert_eq!(harness.poll_ids(), []);
    harness.qp = harness.verbs.create_qp(&harness.init(QpType::Rc)).unwrap();
    let right = super::attributes(QpState::Reset);
    for (steps, left) in [(1, QpState::Init), (2, QpState::Rtr)] {
        harness.device().fail_after = Some(steps);
        assert!(matches!(harness.verbs.verbs_mut().modify_qp_to_rts(harness.qp, &right), Err(ModifyQpError::Device(_))));
        harness.device().fail_after = None;
        assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().state, left);
        harness.step(harness.qp, QpState::Reset);
    }
    harness.verbs.verbs_mut().modify_qp_to_rts(harness.qp, &right).unwrap();
    assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().state, QpState::Rts);
}

/// One request of any queue, of which a completion may wait, and it is not untouched any more: until the queue was found empty.
#[test]
fn a_queue_pair_with_a_request_is_not_untouched() {
    for posts in 0..3 {
        let mut harness = Harness::new();
        match posts {
            0 => harness.verbs.post_send(harness.qp, &send(1, &[])).unwrap(),
            1 => harness.verbs.post_recv(harness.qp, &RecvWr { wr_id: 1, sges: &[] }).unwrap(),
            _ => {
                let mut batch = harness.verbs.send_batch(harness.qp);
                batch.post(&SendWr { flags: SendFlags::empty(), ..send(1, &[]) }).unwrap();
                core::mem::forget(batch);
                harness.verbs.send(harness.qp).post(&send(2, &[])).unwrap();
            }
        }
        harness.step(harness.qp, QpState::Reset);
        assert_eq!(initialize(&mut harness), Err(ModifyQpError::Draining), "{posts}");
        assert_eq!(harness.poll_ids(), []);
        harness.connect(harness.qp);
        // The next life has one of its own.
        harness.step(harness.qp, QpState::Reset);
        initialize(&mut harness).unwrap();
    }
}

/// Who resets again because the queue pair did not leave RESET, and polls in between, comes out of it. A completion that still waits
/// is dropped by the poll, and not before.
#[test]
fn a_second_reset_keeps_that_the_queues_were_found_empty() {
    let mut harness = Harness::new();
    for again in 0..3 {
        harness.verbs.post_send(harness.qp, &send(1, &[])).unwrap();
        assert!(harness.device().execute(harness.qpn()));
        harness.step(harness.qp, QpState::Reset);
        for _ in 0..again {
            assert_eq!(initialize(&mut harness), Err(ModifyQpError::Draining));
            harness.step(harness.qp, QpState::Reset);
        }
        assert_eq!(initialize(&mut harness), Err(ModifyQpError::Draining), "a completion waits");
        assert_eq!(harness.poll_ids(), []);
        harness.step(harness.qp, QpState::Reset);
        harness.connect(harness.qp);
    }
}

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
