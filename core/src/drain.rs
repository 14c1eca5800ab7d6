//! Draining of queues: what was posted is given back, and then the device uses none of its memory.

use core::time::Duration;

use crate::backend::Provider;
use crate::completion::CompletionQueue;
use crate::error::{DrainError, ModifyQpError, PollCqError, PollEventError};
use crate::platform::Instant;
use crate::recv_queue::RecvQueue;
use crate::send_queue::SendQueue;
use crate::shared::{QpSlot, RingCounters};
use crate::storage::MARKER_BYTES;
use crate::sync::Ordering;
use crate::verbs::Verbs;
use crate::{Completion, Event, QpAttr, QpAttrMask, QpHandle, QpState, QueuePair, SharedReceives, WcOpcode, WcStatus};

/// Between two looks at the health of the device.
const HEALTH_INTERVAL: Duration = Duration::from_millis(10);

/// What became of the requests that were in flight when a queue was drained. Each is counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Drained {
    /// They have completed, with success or with an error of their own.
    pub completed: u32,
    /// They were flushed.
    pub flushed: u32,
    /// They have no completion of their own, and ended with that of a later one: unsignaled sends that were done before the queue pair
    /// was in ERR. 0 for receives.
    pub silent: u32,
}

impl Drained {
    /// Returns how many requests were in flight.
    pub const fn total(&self) -> u32 {
        self.completed.saturating_add(self.flushed).saturating_add(self.silent)
    }
}

/// Which queue of a queue pair is drained.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Send,
    Recv,
}

impl Side {
    fn counters<'a>(self, slot: &'a QpSlot<'_>) -> &'a RingCounters {
        match self {
            Self::Send => &slot.send,
            Self::Recv => &slot.recv,
        }
    }

    fn has(self, completion: &Completion) -> bool {
        let is_recv = matches!(completion.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm);
        is_recv == (self == Self::Recv)
    }
}

/// Requests of a piece of a ring.
#[derive(Clone, Copy, Default)]
struct Requests {
    count: u32,
    /// The last of them is a marker, which is not counted.
    marker: bool,
}

/// Returns the requests from counter `from` to before `to`.
fn requests(slot: &QpSlot<'_>, side: Side, from: u32, to: u32) -> Requests {
    if side == Side::Recv {
        return Requests { count: to.wrapping_sub(from), marker: false };
    }
    let (entries, mut found) = (slot.rings.send, Requests::default());
    let mut at = from;
    // A ring has no more requests than blocks.
    for _ in 0..to.wrapping_sub(from) {
        if at == to {
            break;
        }
        let Some(facts) = entries.get(at).map(crate::storage::SendEntry::get) else { break };
        found.marker = facts.bytes == MARKER_BYTES;
        found.count = found.count.wrapping_add(u32::from(!found.marker));
        at = at.wrapping_add(u32::from(facts.blocks.max(1)));
    }
    found
}

impl<'s, P: Provider> Verbs<'s, P> {
    /// Moves a queue pair to ERR and waits until each send that was posted is done or flushed, as Linux's `ib_drain_sq` does. Then
    /// the device uses the memory of none of them.
    ///
    /// `cq` is the completion queue of the sends. `give` gets what comes out of it meanwhile, of other queue pairs too. The last
    /// request is a marker that these verbs post, which `give` does not get: sends without a completion of their own end with it. So a
    /// send queue that is full of those cannot be drained, as it can send nothing more.
    /// The completion queue needs an entry for the marker: the sizes of [`Self::ring_sizes`] have it.
    ///
    /// `timeout` is a time of the machine's [`Clock`](crate::platform::Clock). After [`DrainError::TimedOut`] the call may be repeated; another
    /// poll of this queue returns the marker as a flushed RDMA_WRITE with `wr_id` and `byte_len` of all ones. In RESET nothing is in flight, and
    /// the queue pair stays there.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use bareverbs::{SendWr, WcStatus};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// // The peer has no receive for it.
    /// qa.qp.send.post(&SendWr::send(b"x").id(7))?;
    /// let drained = a.verbs.drain_sq(&mut qa.qp.send, &mut qa.cq, Duration::from_secs(1), |done| {
    ///     assert_eq!((done.wr_id, done.status), (7, WcStatus::WrFlushErr));
    /// })?;
    /// assert_eq!((drained.flushed, drained.total()), (1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A queue is of another `Verbs` or the completion queue of another queue pair, a completion is invalid, the device refuses, is lost, or
    /// not all sends are done in time.
    pub fn drain_sq(
        &mut self,
        send: &mut SendQueue<'s, P>,
        cq: &mut CompletionQueue<'s, P>,
        timeout: Duration,
        mut give: impl FnMut(Completion),
    ) -> Result<Drained, DrainError<P::Error>> {
        let deadline = self.provider.now().after(timeout);
        let qp = send.qp();
        self.begin_drain(qp, send.slot, (Side::Send, cq))?;
        // Those of a batch that was forgotten.
        send.ring();
        let (slot, tail) = (send.slot, send.slot.send.tail.load(Ordering::Relaxed));
        let mut needs_marker = !requests(slot, Side::Send, tail, slot.send.head.load(Ordering::Relaxed)).marker;
        let mut post_marker = || {
            if needs_marker && slot.loss().is_none() {
                needs_marker = !send.post_marker();
            }
        };
        self.drain((qp, slot, Side::Send), cq, deadline, &mut post_marker, &mut give)
    }

    /// Moves a queue pair to ERR and waits until each receive that was posted is done or flushed, as Linux's `ib_drain_rq` does. Then
    /// the device writes into the memory of none of them.
    ///
    /// `cq` is the completion queue of the receives; `give` and `timeout` are those of [`Self::drain_sq`]. Each receive has a completion
    /// of its own, so that no marker is needed, and a full queue is drained too.
    ///
    /// A queue pair with a [`SharedReceiveQueue`](crate::SharedReceiveQueue) is drained by [`Self::drain_qp_with_srq`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use bareverbs::{Access, RecvWr, Refused};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// let inbox = b.register(64, Access::LOCAL_WRITE)?;
    /// qb.qp.recv.post(&RecvWr { wr_id: 3, sges: &[inbox.sge(0, 64)] })?;
    /// let drained = b.verbs.drain_rq(&mut qb.qp.recv, &mut qb.cq, Duration::from_secs(1), |done| assert_eq!(done.wr_id, 3))?;
    /// assert_eq!(drained.flushed, 1);
    /// // The device has forgotten the buffer.
    /// b.verbs.dereg_mr(inbox).map_err(Refused::into_error)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`DrainError`]: a queue is of another `Verbs` or the completion queue of another queue pair, a completion is invalid, the device
    /// refuses, is lost, or not all receives are done in time.
    pub fn drain_rq(
        &mut self,
        recv: &mut RecvQueue<'s, P>,
        cq: &mut CompletionQueue<'s, P>,
        timeout: Duration,
        mut give: impl FnMut(Completion),
    ) -> Result<Drained, DrainError<P::Error>> {
        let deadline = self.provider.now().after(timeout);
        let (qp, slot) = (recv.qp(), recv.slot);
        self.begin_drain(qp, slot, (Side::Recv, cq))?;
        self.drain((qp, slot, Side::Recv), cq, deadline, &mut || (), &mut give)
    }

    /// Moves a queue pair with a shared receive queue to ERR and waits until each receive that it took is done or flushed, as Linux's
    /// `ib_drain_qp` does. IBTA 10.3.1 has the steps: the event Last WQE Reached, then the completion queue until it is empty. Then the
    /// device writes into the memory of none of them for this queue pair, and it may be destroyed without loss of their slots. What it
    /// did not take stays in the shared receive queue.
    ///
    /// `cq` is the completion queue of its receives; `give` and `timeout` are those of [`Self::drain_sq`]. The call takes asynchronous events
    /// until that of this queue pair has come, and `event` gets each of them, that one too. One that [`Self::poll_event`] has
    /// returned before counts, unless the queue pair was reset since. An event from before a RESET that was not polled yet is
    /// [`Event::Stray`], unless the queue pair was moved to ERR by another call: then poll the events first.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use bareverbs::{Access, Event, RecvWr, SrqCap, SrqInit};
    /// # use bareverbs_testing::{Faults, connect_with_srq, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// let mut srq = b.verbs.create_srq(&SrqInit { pd: b.pd, cap: SrqCap { max_wr: 7, max_sge: 1 } })?;
    /// let (_from, mut into) = connect_with_srq(&mut a, &mut b, srq.handle())?;
    /// let inbox = b.register(64, Access::LOCAL_WRITE)?;
    /// srq.post(&RecvWr { wr_id: 3, sges: &[inbox.sge(0, 64)] })?;
    /// let mut events = Vec::new();
    /// let drained = b.verbs.drain_qp_with_srq(&into.qp, &mut into.cq, Duration::from_secs(1), |_| (), |event| events.push(event))?;
    /// assert_eq!((drained.total(), events.last()), (0, Some(&Event::LastWqeReached(into.qp.handle()))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`DrainError`]: a queue is of another `Verbs` or the completion queue of another queue pair, a completion is invalid, the device
    /// refuses, is lost, or the queue pair is not done in time. How many receives are left is not known then: the error says 0.
    #[doc(alias = "ib_drain_rq")]
    pub fn drain_qp_with_srq(
        &mut self,
        qp: &QueuePair<'s, P, SharedReceives>,
        cq: &mut CompletionQueue<'s, P>,
        timeout: Duration,
        mut give: impl FnMut(Completion),
        mut event: impl FnMut(Event),
    ) -> Result<Drained, DrainError<P::Error>> {
        let deadline = self.provider.now().after(timeout);
        let (handle, slot) = (qp.handle(), qp.send.slot);
        self.check_queues(handle, slot, (Side::Recv, cq))?;
        // Events from before the last RESET: once in ERR they cannot be told apart from the one awaited.
        while !matches!(slot.state(), QpState::Reset | QpState::Err) && self.provider.now() < deadline {
            match self.poll_event() {
                Ok(Some(found)) => event(found),
                Ok(None) => break,
                Err(_) if slot.loss().is_some() => break,
                Err(PollEventError::Device(error)) => return Err(DrainError::Device(error)),
            }
        }
        self.begin_drain(handle, slot, (Side::Recv, cq))?;
        self.drain_shared((handle, slot), cq, deadline, &mut give, &mut event)
    }

    /// Takes completions until the device has taken the last shared receive of a queue pair, and then those that wait.
    fn drain_shared(
        &mut self,
        (qp, slot): (QpHandle, &QpSlot<'_>),
        cq: &mut CompletionQueue<'_, P>,
        deadline: Instant,
        give: &mut dyn FnMut(Completion),
        event: &mut dyn FnMut(Event),
    ) -> Result<Drained, DrainError<P::Error>> {
        let mut drained = Drained::default();
        let mut health_due = self.provider.now();
        // As many completions may have waited when the event came. Others may come for ever, of other queue pairs.
        let mut waiting = cq.entries;
        while !slot.is_draining() && slot.state() != QpState::Reset {
            let is_last = slot.has_last_wqe() && slot.loss().is_none();
            let mut taken = 0_u32;
            for completion in cq.completions().take(waiting as usize) {
                let completion = match completion {
                    Ok(completion) => completion,
                    Err(PollCqError::DeviceLost { loss }) => return Err(DrainError::DeviceLost { loss }),
                    Err(error) => return Err(DrainError::Poll { error }),
                };
                taken = taken.saturating_add(1);
                if completion.qp == qp && Side::Recv.has(&completion) {
                    let counter = match completion.status {
                        WcStatus::WrFlushErr => &mut drained.flushed,
                        _ => &mut drained.completed,
                    };
                    *counter = counter.saturating_add(1);
                }
                give(completion);
            }
            if is_last {
                waiting = waiting.saturating_sub(taken);
                if taken == 0 || waiting == 0 {
                    break;
                }
                continue;
            }
            let now = self.provider.now();
            if now >= deadline {
                return Err(DrainError::TimedOut { left: 0 });
            }
            let found = match self.poll_event() {
                Ok(found) => found,
                // If it is lost, the next poll finds everything flushed.
                Err(_) if slot.loss().is_some() => continue,
                Err(PollEventError::Device(error)) => return Err(DrainError::Device(error)),
            };
            if let Some(found) = found {
                event(found);
            } else if taken == 0 && now >= health_due {
                health_due = now.after(HEALTH_INTERVAL);
                if let Err(error) = self.maintain()
                    && slot.loss().is_none()
                {
                    return Err(DrainError::Device(error));
                }
            } else if taken == 0 {
                self.provider.relax(health_due.min(deadline));
            }
        }
        Ok(drained)
    }

    /// Checks that the queues belong together.
    fn check_queues(
        &self,
        qp: QpHandle,
        slot: &QpSlot<'_>,
        (side, cq): (Side, &CompletionQueue<'_, P>),
    ) -> Result<(), DrainError<P::Error>> {
        let ours = self.shared.qps.get(usize::from(qp.index())).is_some_and(|own| core::ptr::eq(own, slot));
        if !ours {
            return Err(DrainError::Stale);
        }
        let index = if side == Side::Send { slot.send_cq() } else { slot.recv_cq() };
        let completes_here = self.shared.cqs.get(usize::from(index)).is_some_and(|own| core::ptr::eq(own, cq.slot));
        if completes_here { Ok(()) } else { Err(DrainError::OtherCq) }
    }

    /// Checks that the queues belong together, and moves the queue pair to ERR.
    fn begin_drain(
        &mut self,
        qp: QpHandle,
        slot: &QpSlot<'_>,
        queues: (Side, &CompletionQueue<'_, P>),
    ) -> Result<(), DrainError<P::Error>> {
        self.check_queues(qp, slot, queues)?;
        if slot.state() == QpState::Reset || slot.loss().is_some() {
            return Ok(());
        }
        let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
        match self.modify_qp(qp, &attr, QpAttrMask::STATE) {
            Ok(()) => Ok(()),
            // What is left is flushed by the verbs.
            Err(_) if slot.loss().is_some() => Ok(()),
            Err(ModifyQpError::Device(error)) => Err(DrainError::Device(error)),
            Err(_) => Err(DrainError::Stale),
        }
    }

    /// Takes completions until nothing of this side is in flight.
    fn drain(
        &mut self,
        (qp, slot, side): (QpHandle, &QpSlot<'_>, Side),
        cq: &mut CompletionQueue<'_, P>,
        deadline: Instant,
        post_marker: &mut dyn FnMut(),
        give: &mut dyn FnMut(Completion),
    ) -> Result<Drained, DrainError<P::Error>> {
        let (ring, mut drained) = (side.counters(slot), Drained::default());
        // Of the first look too: the device may be gone, and say nothing.
        let mut health_due = self.provider.now();
        // After a RESET the counters are stale.
        while !slot.is_draining() && ring.in_flight() != 0 {
            post_marker();
            let mut taken = false;
            let mut tail = ring.tail.load(Ordering::Relaxed);
            // Not until it is empty: another core may fill it for ever.
            let round = cq.entries as usize;
            for completion in cq.completions().take(round) {
                let completion = match completion {
                    Ok(completion) => completion,
                    Err(PollCqError::DeviceLost { loss }) => return Err(DrainError::DeviceLost { loss }),
                    Err(error) => return Err(DrainError::Poll { error }),
                };
                taken = true;
                if completion.qp != qp || !side.has(&completion) {
                    give(completion);
                    continue;
                }
                let before = core::mem::replace(&mut tail, ring.tail.load(Ordering::Relaxed));
                let Requests { count, marker } = requests(slot, side, before, tail);
                let of_its_own = u32::from(!marker).min(count);
                drained.silent = drained.silent.saturating_add(count.saturating_sub(of_its_own));
                if !marker {
                    let counter = match completion.status {
                        WcStatus::WrFlushErr => &mut drained.flushed,
                        _ => &mut drained.completed,
                    };
                    *counter = counter.saturating_add(of_its_own);
                    give(completion);
                }
                if ring.in_flight() == 0 {
                    break;
                }
            }
            let now = self.provider.now();
            if now >= deadline && ring.in_flight() != 0 {
                let Requests { count: left, .. } = requests(slot, side, tail, ring.head.load(Ordering::Relaxed));
                return Err(DrainError::TimedOut { left });
            }
            if taken {
                continue;
            }
            if now >= health_due {
                health_due = now.after(HEALTH_INTERVAL);
                // If it is lost, the next poll finds everything flushed.
                if let Err(error) = self.maintain()
                    && slot.loss().is_none()
                {
                    return Err(DrainError::Device(error));
                }
                continue;
            }
            self.provider.relax(health_due.min(deadline));
        }
        match slot.loss() {
            Some(loss) => Err(DrainError::DeviceLost { loss }),
            None => Ok(drained),
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::WcOpcode;
    use crate::storage::{QpRings, SendFacts};

    const RING: u64 = 8;

    /// Returns every row of requests of one to four blocks that fits into `room` blocks.
    fn rows(room: u16) -> Vec<Vec<u16>> {
        let mut all = std::vec![Vec::new()];
        for first in 1..=room.min(4) {
            all.extend(rows(room - first).into_iter().map(|rest| [&[first][..], &rest].concat()));
        }
        all
    }

    /// Each row of requests that a ring has room for, from each block round each wrap, with a marker at its end and without.
    #[test]
    #[cfg_attr(miri, ignore = "a whole domain of numbers takes minutes")]
    fn requests_are_counted_by_their_blocks() {
        let rings = QpRings::<{ RING as usize }, 1>::new();
        let slot = QpSlot::new(rings.view());
        let facts = |blocks, bytes| SendFacts { wr_id: 0, bytes, blocks, opcode: WcOpcode::Send };
        for row in rows(RING as u16) {
            for wrap in [1_u64 << 16, 1 << 32] {
                for start in wrap - RING - 1..=wrap {
                    for has_marker in [false, true] {
                        // What is left of earlier requests.
                        let entry = |at: u64| rings.view().send.get((at % RING) as u32).unwrap();
                        (0..RING).for_each(|at| entry(at).set(facts(3, MARKER_BYTES)));
                        let mut at = start;
                        for (n, blocks) in row.iter().enumerate() {
                            let is_marker = has_marker && n + 1 == row.len();
                            entry(at).set(facts(*blocks, if is_marker { MARKER_BYTES } else { 5 }));
                            at += u64::from(*blocks);
                        }
                        let found = requests(&slot, Side::Send, start as u32, at as u32);
                        let marker = has_marker && !row.is_empty();
                        let wanted = (row.len() - usize::from(marker), marker);
                        assert_eq!((found.count as usize, found.marker), wanted, "{row:?} from {start:#x}");
                        let received = requests(&slot, Side::Recv, start as u32, at as u32);
                        assert_eq!((u64::from(received.count), received.marker), (at - start, false));
                    }
                }
            }
        }
    }
}
