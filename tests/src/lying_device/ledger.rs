//! What was posted, and what has come back.

use std::collections::HashMap;

use bareverbs::{Completion, QpHandle, WcOpcode, WcStatus};

/// Whose completion a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// That of a queue pair, on one of its sides.
    Pair(QpHandle, Side),
    /// That of whichever queue pair takes it from a shared receive queue.
    Shared,
}

/// Which queue of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Send,
    Recv,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    owner: Owner,
    /// It was completed, or its queue pair was reset or destroyed.
    is_over: bool,
    /// It is a masked atomic.
    is_masked: bool,
}

/// Each request once, by its `wr_id`.
#[derive(Default)]
pub(super) struct Ledger {
    requests: HashMap<u64, Request>,
    /// Queue pairs that a drain has left a marker in.
    markers: Vec<QpHandle>,
    /// Completions so far.
    pub(super) completions: u64,
    /// Those of them with success.
    pub(super) successes: u64,
    /// Masked atomics that have succeeded so far.
    pub(super) masked: u64,
}

/// `wr_id` and `byte_len` of a marker that a drain has left.
const MARKER: (u64, u32) = (u64::MAX, u32::MAX);

impl Ledger {
    /// Returns the number for the next request.
    pub(super) fn next_id(&self) -> u64 {
        0x5eed_0000_0000 + self.requests.len() as u64
    }

    /// Notes a request that was posted.
    pub(super) fn posted(&mut self, owner: Owner) {
        self.requests.insert(self.next_id(), Request { owner, is_over: false, is_masked: false });
    }

    /// Notes a masked atomic that was posted.
    pub(super) fn posted_masked(&mut self, owner: Owner) {
        self.requests.insert(self.next_id(), Request { owner, is_over: false, is_masked: true });
    }

    /// Returns how many were posted.
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Checks a completion: it is of a request that was posted and is not over.
    pub(super) fn completed(&mut self, done: &Completion) {
        self.completions += 1;
        self.successes += u64::from(done.status == WcStatus::Success);
        if (done.wr_id, done.byte_len) == MARKER {
            assert_eq!((done.opcode, done.status), (WcOpcode::RdmaWrite, WcStatus::WrFlushErr), "{done:?}");
            let at = self.markers.iter().position(|qp| *qp == done.qp);
            self.markers.swap_remove(at.unwrap_or_else(|| panic!("a marker that no drain has left: {done:?}")));
            return;
        }
        let Some(request) = self.requests.get_mut(&done.wr_id) else { panic!("a request that was never posted: {done:?}") };
        assert!(!request.is_over, "twice, or after its queue pair was reset: {done:?}, {request:?}");
        request.is_over = true;
        self.masked += u64::from(request.is_masked && done.status == WcStatus::Success);
        let receives = matches!(done.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm);
        match request.owner {
            Owner::Pair(qp, side) => assert_eq!((done.qp, receives), (qp, side == Side::Recv), "another queue's: {done:?}"),
            Owner::Shared => assert!(receives, "a receive that completes as a send: {done:?}"),
        }
    }

    /// A drain that did not end has left a marker in a queue pair.
    pub(super) fn marked(&mut self, qp: QpHandle) {
        if !self.markers.contains(&qp) {
            self.markers.push(qp);
        }
    }

    /// What was posted to a queue pair was given up by its reset or its end.
    pub(super) fn forget(&mut self, of: QpHandle) {
        self.markers.retain(|qp| *qp != of);
        for request in self.requests.values_mut() {
            request.is_over |= matches!(request.owner, Owner::Pair(qp, _) if qp == of);
        }
    }
}
