//! Polls of a completion queue: one completion, many, and with their sources.

use core::hint::cold_path;

use super::{CompletionQueue, is_xrc, unknown};
use crate::backend::{CqReader, CqRing, Peek, Provider, RawCompletion};
use crate::error::{DeviceLoss, PollCqError, RawKind};
use crate::log::{format_as, log_event};
use crate::ring::locate;
use crate::shared::{NO_NUMBER, NO_QP, QpSlot, Shared};
use crate::storage::SendFacts;
use crate::sync::Ordering;
use crate::{Completion, CqHandle, FAST_PATH, QpHandle, Qpn, Source, WcData, WcOpcode, WcStatus};

impl<P: Provider> CompletionQueue<'_, P> {
    /// Takes completions into `out`, as many as there are and fit. An invalid completion is an error at its place in the order:
    /// completions before it are returned first. The call that returns the error takes it from the queue, this one or
    /// [`Self::completions`]. Later completions stay for the next call.
    ///
    /// A broken queue returns the completions from before, and then [`PollCqError::Broken`] at each call. The device reports
    /// the break by an event, for example after an overrun ([`Verbs::create_cq`](crate::Verbs::create_cq)). Until
    /// [`Verbs::poll_event`](crate::Verbs::poll_event) has taken the event, the queue is just empty. Where interrupts are handled,
    /// [`crate::Interrupted::asynchronous`] says that an event is waiting.
    ///
    /// When the device is lost ([`DeviceLoss`]), a queue returns the completions that had come. Then it returns each request
    /// that completes into it and is not done, signaled or not, exactly once with [`WcStatus::WrFlushErr`] and
    /// [`WcData::Lost`]. Whether the device has executed such a request is not known. After that it returns
    /// [`PollCqError::DeviceLost`] at each call. A call of the control path that fails finds the loss, and
    /// [`Verbs::maintain`](crate::Verbs::maintain) looks for it; until then the queue is just empty. What another core posts at the time
    /// of the loss may be flushed by a poll after that error, and what it posts in a batch when the batch has ended.
    ///
    /// A completion with an error, of a bind or of an invalidation takes the lock of the windows, and a receive of a
    /// [`SharedReceiveQueue`](crate::SharedReceiveQueue) takes the lock of that. Posts of binds and invalidations, polls of other queues
    /// and calls of [`Verbs`](crate::Verbs) hold these locks for a moment. An interrupt handler that polls and has interrupted one of
    /// them waits for ever, on its own core. So poll in a task that `CompletionQueue::ready` wakes, or keep interrupts disabled during
    /// those calls.
    ///
    /// ```
    /// # use bareverbs::{Access, Completion, SendWr};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// # let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// # qa.qp.send.post(&SendWr::write(target.remote(0), b"x").id(7))?;
    /// let mut done = [Completion::EMPTY; 16];
    /// let count = loop {
    ///     match qa.cq.poll(&mut done)? {
    ///         0 => std::hint::spin_loop(),
    ///         count => break count,
    ///     }
    /// };
    /// for completion in &done[..count] {
    ///     completion.result()?;
    ///     println!("request {} is done", completion.wr_id);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A completion is invalid, the queue is broken, or the device is lost. Each comes after all completions before it, those that
    /// are flushed for a lost device too: a call that has any to give returns these, and the next one the error.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub fn poll(&mut self, out: &mut [Completion]) -> Result<usize, PollCqError> {
        poll(self, out)
    }

    /// Takes completions into `out` as [`Self::poll`] does, each with where it came from if it is the receive of a datagram.
    ///
    /// ```
    /// # use bareverbs::{Access, Completion, Destination, Qkey, QpType, RecvWr, SendWr};
    /// # use bareverbs_testing::{Connection, Faults, connect_with, pair, path_to};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let qkey = Qkey::new(0x1357);
    /// # let datagrams = Connection { qp_type: QpType::Ud, qkey, ..Connection::default() };
    /// # let [mut qa, mut qb] = connect_with(&mut a, &mut b, &datagrams)?;
    /// # let inbox = b.register(128, Access::LOCAL_WRITE)?;
    /// # qb.qp.recv.post(&RecvWr { wr_id: 7, sges: &[inbox.sge(0, 128)] })?;
    /// # let ah = a.verbs.create_ah(a.pd, &path_to(&mut b.verbs)?)?;
    /// # let to = Destination { ah, remote_qpn: b.verbs.qp_info(qb.qp.handle())?.qpn, remote_qkey: qkey };
    /// # qa.qp.send.post(&SendWr::send_to(&to, b"hello"))?;
    /// # a.network().world().advance(std::time::Duration::from_millis(1));
    /// # let sender = a.verbs.qp_info(qa.qp.handle())?.qpn;
    /// let mut received = [(Completion::EMPTY, None); 4];
    /// assert_eq!(qb.cq.poll_with_source(&mut received)?, 1);
    /// let (completion, source) = received[0];
    /// assert_eq!((completion.wr_id, source.map(|source| source.src_qp)), (7, Some(sender)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As of [`Self::poll`].
    pub fn poll_with_source(&mut self, out: &mut [(Completion, Option<Source>)]) -> Result<usize, PollCqError> {
        let (mut each, mut count) = (self.completions().with_source(), 0_usize);
        let mut result = Ok(());
        for place in out {
            match each.take_next(count != 0) {
                Some(Ok(found)) => *place = found,
                Some(Err(error)) if count == 0 => {
                    result = Err(error);
                    break;
                }
                // Behind completions an error stays, for the next call.
                _ => break,
            }
            count = count.wrapping_add(1);
        }
        each.publish();
        result.map(|()| count)
    }

    /// Iterates over completions, without an array. An error of [`Self::poll`] is an item at its place in the order, and the
    /// iterator continues behind it. At its end, a broken queue returns [`PollCqError::Broken`] once, and a queue of a lost device
    /// [`PollCqError::DeviceLost`]: the next iterator says it again.
    ///
    /// ```
    /// # use bareverbs::{Access, SendWr};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// # let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// # for id in 0..2 { qa.qp.send.post(&SendWr::write(target.remote(0), b"x").id(id))?; }
    /// let mut next = 0;
    /// while next < 2 {
    ///     for completion in qa.cq.completions() {
    ///         assert_eq!(completion?.wr_id, next);
    ///         next += 1;
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn completions(&mut self) -> Completions<'_, P> {
        Completions { open: PollCursor::new(self), ended: false }
    }
}

/// Implements [`CompletionQueue::poll`].
#[cfg_attr(not(feature = "small"), inline(always))]
fn poll<P: Provider>(queue: &CompletionQueue<'_, P>, out: &mut [Completion]) -> Result<usize, PollCqError> {
    // One alone, without what a loop wants.
    if cfg!(not(feature = "small"))
        && let [place] = out
    {
        let mut open = PollCursor::new(queue);
        if let Some(completion) = open.poll_first_fast() {
            *place = completion;
            open.reader.publish_consumer_index();
            return Ok(1);
        }
        return poll_other(queue, place);
    }
    poll_all(queue, out)
}

/// Polls for one completion where [`PollCursor::poll_first_fast`] has found none.
#[inline(never)]
fn poll_other<P: Provider>(queue: &CompletionQueue<'_, P>, place: &mut Completion) -> Result<usize, PollCqError> {
    match PollCursor::new(queue).poll_slow(false) {
        Some(Ok(completion)) => {
            *place = completion;
            Ok(1)
        }
        Some(Err(error)) => Err(error),
        None => Ok(0),
    }
}

/// Polls in a loop.
#[inline(never)]
fn poll_all<P: Provider>(queue: &CompletionQueue<'_, P>, out: &mut [Completion]) -> Result<usize, PollCqError> {
    // On the fast path a completion goes from registers to its place: no `Result` between.
    let mut open = PollCursor::new(queue);
    let mut count = 0_usize;
    for place in out {
        if let Some(completion) = open.poll_fast() {
            *place = completion;
        } else {
            // Behind completions an error waits in the ring.
            match open.poll_slow(count != 0) {
                Some(Ok(completion)) => *place = completion,
                Some(Err(error)) if count == 0 => return Err(error),
                _ => break,
            }
        }
        count = count.wrapping_add(1);
    }
    if count != 0 {
        open.reader.publish_consumer_index();
    }
    Ok(count)
}

/// Completions of one queue, taken one after the other; what is not read of them costs nothing. The device is notified of each that its
/// place is free: what the program posts before it takes the next one may complete there. A queue that is broken, or whose device is lost,
/// says so once here.
#[must_use]
pub struct Completions<'a, P: Provider> {
    open: PollCursor<'a, P>,
    /// Whether the end was said.
    ended: bool,
}

format_as!([P: Provider] Completions<'_, P>, "Completions({:?})", |this| this.open.queue.handle);

/// The working state of [`Completions`]. It lives in registers, so nothing that is called and not inlined gets a reference to
/// it: calls work on what is kept in `queue`. What is read once for a completion stays where it lies.
struct PollCursor<'a, P: Provider> {
    reader: <P::CqRing as CqRing>::Reader<'a>,
    queue: &'a CompletionQueue<'a, P>,
    /// The queue pair of the last send that completed: its sends complete here.
    sender: &'a QpSlot<'a>,
    /// Head of its send ring, as it was read when no bind was in flight: what was posted later is looked up again.
    head: u32,
    /// The queue pair of the last receive that completed: its receives complete here.
    receiver: &'a QpSlot<'a>,
}

impl<'a, P: Provider> PollCursor<'a, P> {
    #[inline(always)]
    fn new(queue: &'a CompletionQueue<'a, P>) -> Self {
        Self { reader: queue.ring.reader(), queue, sender: &NO_QP, head: 0, receiver: &NO_QP }
    }

    /// Forgets what was found of queue pairs.
    #[inline(always)]
    fn forget(&mut self) {
        (self.sender, self.receiver) = (&NO_QP, &NO_QP);
    }

    /// Returns the first completion of a queue that was just opened, if the fast path takes it. `None` as for
    /// [`Self::poll_fast`].
    #[inline(always)]
    fn poll_first_fast(&mut self) -> Option<Completion> {
        let Peek::Success { qpn, recv, index } = self.reader.peek() else { return None };
        let cookie = self.reader.cookie()?;
        let slot = look_up(&self.queue.shared, qpn, cookie)?;
        if recv {
            self.receiver = receiver(slot, self.queue.handle)?;
            return self.complete_recv(qpn, index);
        }
        (self.sender, self.head) = sender(slot, self.queue.handle)?;
        self.complete_send(qpn, index)
    }

    /// Returns the next completion, if the fast path takes it. `None`: [`Self::poll_slow`] must take it, and nothing has
    /// happened.
    #[inline(always)]
    fn poll_fast(&mut self) -> Option<Completion> {
        if !FAST_PATH {
            return None;
        }
        let Peek::Success { qpn, recv, index } = self.reader.peek() else { return None };
        // Two ways to the end, so that what was found of one kind is not moved about for the other.
        if recv {
            if !is_of(self.receiver, qpn) {
                cold_path();
                // The cookie of a shared receive queue of XRC names no queue pair.
                self.receiver = find_receiver(&self.queue.shared, self.queue.handle, qpn, self.reader.cookie()?)?;
            }
            return self.complete_recv(qpn, index);
        }
        if !is_of(self.sender, qpn) {
            cold_path();
            (self.sender, self.head) = find_sender(&self.queue.shared, self.queue.handle, qpn, self.reader.cookie()?)?;
        }
        self.complete_send(qpn, index)
    }

    /// Completes a receive of the queue pair that was found.
    #[inline(always)]
    fn complete_recv(&mut self, qpn: Qpn, index: u16) -> Option<Completion> {
        if !self.receiver.is_common() {
            return None;
        }
        let at = self.receiver.recv.locate(index)?;
        let wr_id = retire_recv(self.receiver, at)?;
        let byte_len = self.reader.byte_len();
        self.reader.advance();
        Some(success(self.receiver, qpn, wr_id, WcOpcode::Recv, byte_len))
    }

    /// Completes a send of the queue pair that was found.
    #[inline(always)]
    fn complete_send(&mut self, qpn: Qpn, index: u16) -> Option<Completion> {
        if !self.sender.is_common() {
            return None;
        }
        let at = locate(self.head, self.sender.send.tail.load(Ordering::Relaxed), index)?;
        let facts = retire_send(self.sender, at)?;
        self.reader.advance();
        Some(success(self.sender, qpn, facts.wr_id, facts.opcode, facts.bytes))
    }

    /// Returns the next completion where [`Self::poll_fast`] has found none. `pending_output`: completions were taken that the
    /// caller does not have yet. Then an invalid one stays in the queue, and the result is `None`.
    #[inline(always)]
    fn poll_slow(&mut self, pending_output: bool) -> Option<Result<Completion, PollCqError>> {
        if !FAST_PATH {
            return self.next_slow(pending_output);
        }
        if self.reader.peek() == Peek::Empty {
            return self.found_empty(pending_output);
        }
        // From here on a queue pair may be in another state.
        self.forget();
        let found = next_slow(self.queue, pending_output);
        self.reader = self.queue.ring.reader();
        found
    }

    /// Takes the next completion, whatever it is.
    #[cfg_attr(feature = "small", inline(never))]
    fn next_slow(&mut self, pending_output: bool) -> Option<Result<Completion, PollCqError>> {
        // A device that keeps to the consumer index, which is published later, writes no more than the ring has.
        // One look more: that after the last entry may find it empty.
        for _ in 0..=self.queue.entries {
            if self.queue.readable.get() == 0 || self.reader.peek() == Peek::Empty {
                return self.found_empty(pending_output);
            }
            let found = match self.reader.parse() {
                Ok(raw) => self.complete(&raw, self.reader.cookie()),
                Err(opcode) => Err(PollCqError::BadCompletion { cqn: self.queue.cqn, opcode }),
            };
            if found.is_err() && pending_output {
                return None;
            }
            self.reader.advance();
            if self.queue.slot.loss().is_some() {
                self.queue.readable.set(self.queue.readable.get().saturating_sub(1));
            }
            if !FAST_PATH && !matches!(found, Ok(Some(_))) {
                // The caller counts what it is given and publishes that alone.
                self.reader.publish_consumer_index();
            }
            match found {
                Ok(Some(completion)) => return Some(Ok(completion)),
                // Of a queue pair that is gone or was reset: it is dropped.
                Ok(None) => {}
                Err(error) => return Some(Err(error)),
            }
        }
        None
    }

    /// Returns the result of an empty queue: nothing, or that no more completions will come, or what is flushed.
    #[inline(always)]
    fn found_empty(&mut self, pending_output: bool) -> Option<Result<Completion, PollCqError>> {
        let slot = self.queue.slot;
        let wanted = slot.clean_wanted.load(Ordering::Acquire);
        if wanted != slot.clean_done.load(Ordering::Relaxed) || slot.broken.load(Ordering::Relaxed) != 0 {
            // From here on the slot of a queue pair that was drained may be another's.
            self.forget();
            return end_drain_or_report(self.queue, wanted, pending_output);
        }
        None
    }

    /// Finds the request that a completion completes and retires it; `None` if its queue pair is gone or was reset. An error
    /// changes nothing.
    fn complete(&mut self, raw: &RawCompletion, cookie: Option<u32>) -> Result<Option<Completion>, PollCqError> {
        if raw.qpn.get() == NO_NUMBER {
            // A slot without a queue pair is none of this number.
            return unknown(self.queue, raw, None);
        }
        let send = raw.kind == RawKind::Send;
        if self.queue.has_xrc && !send && is_xrc(cookie) {
            return (self.queue.unknown)(self.queue, raw, cookie);
        }
        let is_it = |slot: &QpSlot<'_>| {
            let cq = if send { slot.send_cq() } else { slot.recv_cq() };
            is_of(slot, raw.qpn) && cq == self.queue.handle.index()
        };
        let mut all = self.queue.shared.qps.iter().filter(|slot| is_it(slot));
        let named = cookie.and_then(|cookie| self.queue.shared.qps.get(usize::from(cookie as u16)).filter(|slot| is_it(slot)));
        // While a queue pair that had the number is draining, the next one with it is in RESET.
        let draining = || all.clone().find(|slot| slot.is_draining());
        // A target of XRC is none of them: it completes nothing itself.
        let Some(slot) = named.or_else(draining).or_else(|| all.next()) else {
            return (self.queue.unknown)(self.queue, raw, cookie);
        };
        let srq = if send { None } else { self.queue.shared.srq_of(slot) };
        if slot.is_draining() {
            // The place belongs to all queue pairs.
            if let Some((srq, generation)) = srq {
                srq.retire(generation, raw.index);
            }
            if !send {
                end_invalidated(&self.queue.shared, slot.pd(), &raw.data);
            }
            return Ok(None);
        }
        let qp = slot.handle();
        let lost = PollCqError::UnknownRequest { qp, kind: raw.kind, index: raw.index };
        let (wr_id, opcode, byte_len) = if send {
            let at = slot.send.locate(raw.index).ok_or(lost)?;
            // Before anything changes: if the logger unwinds, the next poll gives the completion.
            if !matches!(raw.status, WcStatus::Success | WcStatus::WrFlushErr) {
                log_event!(warn, "a send of queue pair {:?} failed: {:?}", raw.qpn, raw.status);
            }
            let tail = slot.send.tail.load(Ordering::Relaxed);
            let facts = retire_send(slot, at).ok_or(lost)?;
            let failed = raw.status != WcStatus::Success;
            if failed {
                self.queue.shared.fail(slot, Some(at), raw.status == WcStatus::WrFlushErr);
            }
            if slot.binds.load(Ordering::Acquire) != 0 {
                end_binds(&self.queue.shared, slot, qp, tail, at, failed);
            }
            (facts.wr_id, facts.opcode, facts.bytes)
        } else {
            let wr_id = match srq {
                Some((srq, generation)) => match srq.retire(generation, raw.index) {
                    Some(wr_id) => wr_id,
                    // Another poller gave it as flushed.
                    None if srq.loss().is_some() => return Ok(None),
                    None => return Err(lost),
                },
                None => slot.recv.locate(raw.index).and_then(|at| retire_recv(slot, at)).ok_or(lost)?,
            };
            if !matches!(raw.status, WcStatus::Success | WcStatus::WrFlushErr) {
                log_event!(warn, "a receive of queue pair {:?} failed: {:?}", raw.qpn, raw.status);
            }
            if raw.status != WcStatus::Success {
                self.queue.shared.fail(slot, None, raw.status == WcStatus::WrFlushErr);
            }
            end_invalidated(&self.queue.shared, slot.pd(), &raw.data);
            let opcode = if raw.kind == RawKind::Recv { WcOpcode::Recv } else { WcOpcode::RecvRdmaWithImm };
            (wr_id, opcode, raw.byte_len)
        };
        let RawCompletion { qpn, status, vendor_err, data, .. } = *raw;
        Ok(Some(Completion { wr_id, qp, qpn, opcode, status, vendor_err, byte_len, data }))
    }
}

/// Ends the binds among the requests from `tail` to the one at `at`, which failed or not.
pub(super) fn end_binds(shared: &Shared<'_>, slot: &QpSlot<'_>, qp: QpHandle, tail: u32, at: u32, failed: bool) {
    shared.windows.with(|windows| {
        let ended = windows.complete(qp, tail, at, failed);
        slot.binds.store(slot.binds.load(Ordering::Relaxed).wrapping_sub(ended), Ordering::Relaxed);
    });
}

/// Ends what the peer has invalidated, if a receive in the domain in slot `pd` says so. Also of a receive that is dropped: a RESET of the
/// queue pair does not bring back what the device has ended.
pub(crate) fn end_invalidated(shared: &Shared<'_>, pd: u16, data: &WcData) {
    if let WcData::Invalidated(rkey) = *data {
        shared.windows.with(|windows| windows.invalidated(pd, rkey));
    }
}

/// Returns whether a slot is that of the queue pair with this number.
#[inline(always)]
fn is_of(slot: &QpSlot<'_>, qpn: Qpn) -> bool {
    slot.qpn.load(Ordering::Acquire) == qpn.get()
}

/// Returns the queue pair with this number, if it is the one that the cookie names.
#[inline(always)]
fn look_up<'a>(shared: &Shared<'a>, qpn: Qpn, cookie: u32) -> Option<&'a QpSlot<'a>> {
    match shared.qps.get(usize::from(cookie as u16)) {
        Some(slot) if is_of(slot, qpn) => Some(slot),
        _ => None,
    }
}

/// Returns the queue pair of a send and the head of its send ring, if its sends complete here and none of them ends a bind.
#[inline(always)]
fn sender<'a>(slot: &'a QpSlot<'a>, cq: CqHandle) -> Option<(&'a QpSlot<'a>, u32)> {
    // A bind is counted before the head is moved past it.
    let head = slot.send.head.load(Ordering::Acquire);
    let good = slot.send_cq() == cq.index() && slot.binds.load(Ordering::Relaxed) == 0;
    if good { Some((slot, head)) } else { None }
}

/// Returns the queue pair of a receive, if its receives complete here.
#[inline(always)]
fn receiver<'a>(slot: &'a QpSlot<'a>, cq: CqHandle) -> Option<&'a QpSlot<'a>> {
    if slot.recv_cq() == cq.index() { Some(slot) } else { None }
}

/// Combines [`look_up`] and [`sender`]. A call, because it is rare and would take registers from the loop.
#[inline(never)]
fn find_sender<'a>(shared: &Shared<'a>, cq: CqHandle, qpn: Qpn, cookie: u32) -> Option<(&'a QpSlot<'a>, u32)> {
    sender(look_up(shared, qpn, cookie)?, cq)
}

/// Combines [`look_up`] and [`receiver`].
#[inline(never)]
fn find_receiver<'a>(shared: &Shared<'a>, cq: CqHandle, qpn: Qpn, cookie: u32) -> Option<&'a QpSlot<'a>> {
    receiver(look_up(shared, qpn, cookie)?, cq)
}

/// Returns the successful completion of a common request.
#[inline(always)]
fn success(slot: &QpSlot<'_>, qpn: Qpn, wr_id: u64, opcode: WcOpcode, byte_len: u32) -> Completion {
    let qp = slot.handle();
    let (status, data) = (WcStatus::Success, WcData::None);
    Completion { wr_id, qp, qpn, opcode, status, vendor_err: 0, byte_len, data }
}

/// Runs [`PollCursor::next_slow`] on the saved state, and publishes the consumer index.
#[cold]
#[inline(never)]
fn next_slow<P: Provider>(queue: &CompletionQueue<'_, P>, pending_output: bool) -> Option<Result<Completion, PollCqError>> {
    let mut open = PollCursor::new(queue);
    let found = open.next_slow(pending_output);
    open.reader.publish_consumer_index();
    if let Some(Err(error)) = &found {
        log_event!(error, "completion queue {:?}: {:?}", queue.handle, error);
    }
    found
}

#[cold]
#[inline(never)]
fn end_drain_or_report<P: Provider>(
    queue: &CompletionQueue<'_, P>,
    wanted: u32,
    pending_output: bool,
) -> Option<Result<Completion, PollCqError>> {
    let slot = queue.slot;
    let broken = slot.broken.load(Ordering::Acquire);
    // The queue may have been filled between the peek and the load of `wanted`. And what was taken before it was drained must
    // not reach the caller after.
    let is_empty = queue.readable.get() == 0 || queue.ring.reader().peek() == Peek::Empty;
    if !pending_output && is_empty {
        slot.clean_done.store(wanted, Ordering::Release);
    }
    match DeviceLoss::of_word(broken) {
        // It had come before the device was lost.
        Some(_) if !is_empty => None,
        Some(loss) => {
            queue.readable.set(0);
            Some((queue.flush)(queue).ok_or(PollCqError::DeviceLost { loss }))
        }
        None if broken == 0 => None,
        None => {
            Some(Err(PollCqError::Broken { cqn: queue.cqn, syndrome: broken.wrapping_sub(1) as u8, entries: queue.entries }))
        }
    }
}

impl<P: Provider> Iterator for Completions<'_, P> {
    type Item = Result<Completion, PollCqError>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if let Some(completion) = self.open.poll_fast() {
            self.open.reader.publish_consumer_index();
            return Some(Ok(completion));
        }
        if self.ended {
            return None;
        }
        let other = self.open.poll_slow(false);
        if !FAST_PATH && matches!(other, Some(Ok(_))) {
            self.open.reader.publish_consumer_index();
        }
        self.ended = is_end(&other);
        other
    }
}

/// Returns whether a queue gives nothing any more.
const fn is_end<T>(found: &Option<Result<T, PollCqError>>) -> bool {
    matches!(found, Some(Err(PollCqError::Broken { .. } | PollCqError::DeviceLost { .. })))
}

impl<'a, P: Provider> Completions<'a, P> {
    /// Iterates over the same completions, each with where it came from if it is the receive of a datagram.
    /// ```
    /// # use bareverbs::{Access, Destination, GlobalRoute, Qkey, QpType, RecvWr, SendWr};
    /// # use bareverbs_testing::{Connection, Faults, connect_with, pair, path_to};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let qkey = Qkey::new(0x1357);
    /// # let datagrams = Connection { qp_type: QpType::Ud, qkey, ..Connection::default() };
    /// # let [mut qa, mut qb] = connect_with(&mut a, &mut b, &datagrams)?;
    /// # let inbox = b.register(256, Access::LOCAL_WRITE)?;
    /// # qb.qp.recv.post(&RecvWr { wr_id: 7, sges: &[inbox.sge(0, GlobalRoute::AREA as u32 + 64)] })?;
    /// # let ah = a.verbs.create_ah(a.pd, &path_to(&mut b.verbs)?)?;
    /// # let to = Destination { ah, remote_qpn: b.verbs.qp_info(qb.qp.handle())?.qpn, remote_qkey: qkey };
    /// # qa.qp.send.post(&SendWr::send_to(&to, b"hello"))?;
    /// # a.network().world().advance(std::time::Duration::from_millis(1));
    /// let sender = a.verbs.qp_info(qa.qp.handle())?.qpn;
    /// for received in qb.cq.completions().with_source() {
    ///     let (completion, source) = received?;
    ///     assert_eq!((completion.wr_id, source.map(|source| source.src_qp)), (7, Some(sender)));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_source(self) -> WithSource<'a, P> {
        WithSource { completions: self }
    }
}

/// [`Completions`] with the source of each received datagram.
#[must_use]
pub struct WithSource<'a, P: Provider> {
    completions: Completions<'a, P>,
}

format_as!([P: Provider] WithSource<'_, P>, "WithSource({:?})", |this| this.completions.open.queue.handle);

impl<P: Provider> WithSource<'_, P> {
    /// Returns the next completion; `pending_output` is that of [`PollCursor::poll_slow`].
    fn take_next(&mut self, pending_output: bool) -> Option<Result<(Completion, Option<Source>), PollCqError>> {
        let Completions { open, ended } = &mut self.completions;
        let found = match open.poll_fast() {
            Some(completion) => Some(Ok(completion)),
            None if *ended => None,
            None => {
                // Not `poll_slow`: it gives the place of the completion back to the device, and the source is still in it.
                open.forget();
                open.next_slow(pending_output)
            }
        };
        *ended |= is_end(&found);
        let found = found?;
        Some(found.map(|completion| {
            let slot = open.queue.shared.qps.get(usize::from(completion.qp.index()));
            let is_datagram = completion.opcode == WcOpcode::Recv
                && completion.status == WcStatus::Success
                && slot.is_some_and(QpSlot::is_datagram);
            (completion, if is_datagram { Some(open.reader.source()) } else { None })
        }))
    }

    /// Gives the places of what was taken back to the device, after their sources were read; also of what was dropped.
    fn publish(&mut self) {
        self.completions.open.reader.publish_consumer_index();
    }
}

impl<P: Provider> Iterator for WithSource<'_, P> {
    type Item = Result<(Completion, Option<Source>), PollCqError>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = self.take_next(false);
        self.publish();
        found
    }
}

/// Frees the blocks of the send at `at` and of all before it; gives what it was. `None` if no request starts there.
#[inline(always)]
pub(super) fn retire_send(slot: &QpSlot<'_>, at: u32) -> Option<SendFacts> {
    let entry = slot.rings.send.get(at)?;
    let facts = entry.get();
    if facts.blocks == 0 {
        return None;
    }
    slot.send.tail.store(at.wrapping_add(u32::from(facts.blocks)), Ordering::Release);
    Some(facts)
}

/// Frees the place of the receive at `at`; gives its `wr_id`.
#[inline(always)]
pub(super) fn retire_recv(slot: &QpSlot<'_>, at: u32) -> Option<u64> {
    let entry = slot.rings.recv.get(at)?;
    let wr_id = entry.get();
    slot.recv.tail.store(at.wrapping_add(1), Ordering::Release);
    Some(wr_id)
}
