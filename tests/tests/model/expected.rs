//! What must come: completions in the order of their queue, and the bytes of a region.

use std::collections::VecDeque;

use bareverbs::{Completion, WcData, WcOpcode, WcStatus};

/// A send request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) wr_id: u64,
    pub(crate) opcode: WcOpcode,
    /// How it ends, if that is known.
    pub(crate) status: Option<WcStatus>,
    pub(crate) signaled: bool,
    pub(crate) byte_len: u32,
    /// The wire loses frames, and a request moves the peer to ERR, where it answers no more: an answer that was lost is not repeated.
    pub(crate) may_stay_unanswered: bool,
}

/// A receive that was posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub(crate) wr_id: u64,
    pub(crate) region: usize,
    /// In the region.
    pub(crate) at: usize,
    pub(crate) len: usize,
}

/// A message that arrives.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) opcode: WcOpcode,
    pub(crate) status: WcStatus,
    pub(crate) byte_len: u32,
    pub(crate) data: WcData,
    /// The receive that it takes, of a queue that is not shared.
    pub(crate) wr_id: Option<u64>,
    /// What a shared receive must hold.
    pub(crate) message: Vec<u8>,
}

/// Takes the request that a completion completes, and those before it that have none.
pub(crate) fn take_sent(sent: &mut VecDeque<Sent>, done: &Completion) -> Result<(), String> {
    loop {
        let Some(first) = sent.pop_front() else { return Err(format!("a completion of no request: {done:?}")) };
        if first.wr_id != done.wr_id {
            // It was executed, and asked for no completion.
            if first.signaled || first.status.is_some_and(|status| status != WcStatus::Success) {
                return Err(format!("{done:?} before that of {first:?}"));
            }
            continue;
        }
        let unanswered = first.may_stay_unanswered && matches!(done.status, WcStatus::RetryExcErr | WcStatus::WrFlushErr);
        if first.status.is_some_and(|status| status != done.status) && !unanswered {
            return Err(format!("{done:?} of {first:?}"));
        }
        let succeeded = done.status == WcStatus::Success;
        if succeeded && (done.opcode, done.byte_len) != (first.opcode, first.byte_len) {
            return Err(format!("{done:?} of {first:?}"));
        }
        if succeeded && !first.signaled {
            return Err(format!("a completion that was not asked for: {done:?} of {first:?}"));
        }
        return Ok(());
    }
}

/// Compares a receive with the message that arrives next.
pub(crate) fn take_arrival(arrivals: &mut VecDeque<Arrival>, done: &Completion) -> Result<Arrival, String> {
    let Some(arrival) = arrivals.pop_front() else { return Err(format!("a receive of no message: {done:?}")) };
    let is_right = arrival.status == done.status
        && arrival.wr_id.is_none_or(|wr_id| wr_id == done.wr_id)
        && (done.status != WcStatus::Success
            || (arrival.opcode, arrival.byte_len, arrival.data) == (done.opcode, done.byte_len, done.data));
    if is_right { Ok(arrival) } else { Err(format!("{done:?} of {arrival:?}")) }
}

/// The bytes of a region as they must be.
#[derive(Clone, Debug)]
pub(crate) struct Bytes {
    bytes: Vec<u8>,
    /// Ranges to be compared.
    touched: Vec<(usize, usize)>,
    /// Ranges in which a request failed in the middle: what they hold is taken from the device.
    unknown: Vec<(usize, usize)>,
}

impl Bytes {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, touched: Vec::new(), unknown: Vec::new() }
    }

    pub(crate) fn get(&self, at: usize, len: usize) -> &[u8] {
        &self.bytes[at..at + len]
    }

    pub(crate) fn set(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.touched.push((at, bytes.len()));
    }

    pub(crate) fn forget(&mut self, at: usize, len: usize) {
        self.unknown.push((at, len));
    }

    /// Compares the bytes that requests have written, or all, with those that `read` finds.
    pub(crate) fn compare(&mut self, all: bool, read: impl Fn(usize, &mut [u8])) -> Result<(), String> {
        for (at, len) in self.unknown.drain(..) {
            read(at, &mut self.bytes[at..at + len]);
        }
        if all {
            self.touched.push((0, self.bytes.len()));
        }
        for (at, len) in self.touched.drain(..) {
            let mut found = vec![0; len];
            read(at, &mut found);
            if let Some(index) = (0..len).find(|index| found[*index] != self.bytes[at + index]) {
                let (is, must) = (found[index], self.bytes[at + index]);
                return Err(format!("byte {} is {is:#04x}, and must be {must:#04x}", at + index));
            }
        }
        Ok(())
    }
}
