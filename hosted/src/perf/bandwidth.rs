//! Bandwidth tests: keeps the send queues full and polls completions.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bareverbs::backend::Provider;
use bareverbs::error::PostSendError;
use bareverbs::{Completion, Destination, QpHandle, QpType, Remote, SendBatch, SendFlags, SendWr, Sge, WcData, WcStatus};

use super::buffer_layout::BufferLayout;
use super::end::{PerfEnd, RECV_CQ, SEND_CQ, failed_completion, stream};
use super::parameters::{Atomic, CREDITS, End, Parameters, Point, Transport, Verb};
use super::report::Row;
use crate::data_pattern::Pattern;
use crate::device::{Host, Role};

/// Completions polled in one call.
const BATCH: usize = 32;
/// Steps between two reads of the clock in a test with a duration.
const CLOCK_CHECK_STEPS: u32 = 16;
/// Bit of a `wr_id` that marks a credit.
const CREDIT: u64 = 1 << 63;
/// First bit of the queue pair's index in a `wr_id`. The bits below count the messages posted, or name the slot of a receive.
const QUEUE_PAIR_SHIFT: u32 = 48;
const COUNT: u64 = (1 << QUEUE_PAIR_SHIFT) - 1;

/// State of a queue pair.
#[derive(Debug)]
struct QueuePair {
    /// Number of messages posted.
    posted: u64,
    /// Number of messages known to have completed.
    completed: u64,
    /// Number of messages to post in total.
    target: u64,
    /// Number of messages for which the peer has had receives posted in total.
    send_limit: u64,
    /// Messages up to the next signaled request.
    until_signal: u32,
    /// Offset of the next message in the ring of slots.
    offset: usize,
    /// Device address of the local ring of slots.
    local: u64,
    /// The ring of slots at the peer.
    remote: Remote,
    /// Offset of the local ring of slots in the memory region.
    out: usize,
    /// Messages received.
    received: u64,
    /// The peer's slot of the next message.
    next_slot: usize,
    /// Of the last message in each local slot, the queue pair that received it and the peer's slot.
    sources: Vec<Option<(usize, usize)>>,
    /// Names it in completions.
    handle: QpHandle,
    /// Where its datagrams go, unless it is connected.
    to: Option<Destination>,
    /// Number of messages that the peer has received, according to its last credit.
    credited: u64,
    /// Number of messages received up to the last credit sent.
    credit_sent: u64,
    /// Whether a credit is posted and has not completed.
    credit_in_flight: bool,
}

/// Values that all requests of a test share.
struct RequestTemplate {
    /// Bytes of the slots of a queue pair.
    ring: usize,
    /// Bytes from one slot to the next.
    stride: usize,
    /// Length and lkey of a message.
    sge: Sge,
    cq_mod: u32,
    /// Whether every message has the same remote address.
    fixed: bool,
}

/// The next message of a queue pair.
struct NextMessage {
    wr_id: u64,
    flags: SendFlags,
    sge: Sge,
    remote: Remote,
    /// Number of messages before this one.
    number: u64,
    /// Offset of the message in the memory region.
    at: usize,
}

impl QueuePair {
    /// Returns the next message and counts it as posted. `index` is the index of this queue pair.
    #[inline(always)]
    fn next(&mut self, index: usize, template: &RequestTemplate) -> NextMessage {
        let number = self.posted;
        self.posted += 1;
        self.until_signal -= 1;
        let mut flags = SendFlags::empty();
        if self.until_signal == 0 || self.posted == self.target {
            self.until_signal = template.cq_mod;
            flags = SendFlags::SIGNALED;
        }
        let offset = self.offset;
        self.offset = offset.wrapping_add(template.stride);
        if self.offset == template.ring {
            self.offset = 0;
        }
        let sge = Sge { addr: self.local.wrapping_add(offset as u64), ..template.sge };
        let remote_offset = if template.fixed { 0 } else { offset as u64 };
        let remote = Remote { addr: self.remote.addr.wrapping_add(remote_offset), ..self.remote };
        let wr_id = (index as u64) << QUEUE_PAIR_SHIFT | self.posted;
        NextMessage { wr_id, flags, sge, remote, number, at: self.out.wrapping_add(offset) }
    }
}

/// Operation of the requests of a test, as a type, so that posting has no branch on it.
trait Request {
    /// Posts the request of a message. `bytes` is the inline payload, `to` where a datagram goes.
    fn post<P: Provider>(
        batch: &mut SendBatch<'_, P>,
        next: &NextMessage,
        bytes: &[u8],
        to: Option<&Destination>,
    ) -> Result<(), PostSendError>;
    /// Whether every message has the same remote address.
    const FIXED: bool = false;
}

macro_rules! requests {
    ($($name:ident($batch:ident, $next:pat, $bytes:pat, $to:pat) $(fixed $fixed:literal)? => $posted:expr;)+) => {$(
        struct $name;

        impl Request for $name {
            #[inline(always)]
            fn post<P: Provider>(
                $batch: &mut SendBatch<'_, P>,
                $next: &NextMessage,
                $bytes: &[u8],
                $to: Option<&Destination>,
            ) -> Result<(), PostSendError> {
                $posted
            }

            $(const FIXED: bool = $fixed;)?
        }
    )+};
}

/// What is wrong with a queue pair for datagrams that has nowhere to send them.
const NOWHERE: PostSendError = PostSendError::Destination { qp_type: QpType::Ud };

requests! {
    Write(batch, &NextMessage { wr_id, flags, sge, remote, .. }, _, _) =>
        batch.post(&SendWr::write(remote, &[sge]).id(wr_id).with(flags));
    WriteInline(batch, &NextMessage { wr_id, flags, remote, .. }, bytes, _) =>
        batch.post(&SendWr::write(remote, bytes).id(wr_id).with(flags));
    Send(batch, &NextMessage { wr_id, flags, sge, .. }, _, _) => batch.post(&SendWr::send(&[sge]).id(wr_id).with(flags));
    SendInline(batch, &NextMessage { wr_id, flags, .. }, bytes, _) => batch.post(&SendWr::send(bytes).id(wr_id).with(flags));
    SendTo(batch, &NextMessage { wr_id, flags, sge, .. }, _, to) =>
        batch.post(&SendWr::send_to(to.ok_or(NOWHERE)?, &[sge]).id(wr_id).with(flags));
    SendToInline(batch, &NextMessage { wr_id, flags, .. }, bytes, to) =>
        batch.post(&SendWr::send_to(to.ok_or(NOWHERE)?, bytes).id(wr_id).with(flags));
    Read(batch, &NextMessage { wr_id, flags, sge, remote, .. }, _, _) =>
        batch.post(&SendWr::read(remote, &[sge]).id(wr_id).with(flags));
    FetchAdd(batch, &NextMessage { wr_id, flags, sge, remote, .. }, _, _) fixed true =>
        batch.post(&SendWr::fetch_add(remote, sge, 1).id(wr_id).with(flags));
    CompareSwap(batch, &NextMessage { wr_id, flags, sge, remote, number, .. }, _, _) fixed true =>
        batch.post(&SendWr::compare_swap(remote, sge, number, number.wrapping_add(1)).id(wr_id).with(flags));
}

/// Operation of the requests of a test.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Write,
    WriteInline,
    Send,
    SendInline,
    SendTo,
    SendToInline,
    Read,
    FetchAdd,
    CompareSwap,
}

/// One end of a bandwidth test.
#[derive(Debug)]
pub(super) struct Bandwidth {
    point: Point,
    layout: BufferLayout,
    operation: Operation,
    role: Role,
    queue_pairs: Vec<QueuePair>,
    /// Length and lkey of a message.
    lkey: Sge,
    /// Whether this end posts the messages of the test.
    sends: bool,
    /// Whether messages consume receives.
    receives: bool,
    /// Whether the queue pairs take their receives from one queue.
    use_srq: bool,
    /// Whether this end waits for completion events.
    events: bool,
    depth: u64,
    cq_mod: u32,
    post_list: u64,
    rx_depth: u64,
    /// Messages between two credits.
    credit_every: u64,
    /// Inline payloads of all slots.
    inline: Vec<u8>,
    completions: Box<[Completion; BATCH]>,
    /// Number of queue pairs with messages left to send.
    unfinished: usize,
    duration: Option<Duration>,
    steps_to_clock_check: u32,
    start: Option<Instant>,
    finish: Option<Instant>,
}

impl Bandwidth {
    /// Fills the slots with data made from `seed`, and posts receives.
    ///
    /// # Errors
    /// The queues do not exist, or a receive cannot be posted.
    pub(super) fn new<H: Host>(
        end: &mut PerfEnd<H>,
        parameters: &Parameters,
        point: Point,
        role: Role,
        seed: u64,
    ) -> Result<Self> {
        let layout = BufferLayout::new(parameters, point);
        let verb = point.test.verb();
        let sends = role == Role::Client || parameters.bidirectional;
        let receives = verb == Verb::Send;
        let queues = end.queues()?;
        let is_inline = point.size <= queues.inline;
        let is_datagram = parameters.transport == Transport::Ud;
        let operation = match (verb, is_inline, parameters.atomic) {
            (Verb::Write, false, _) => Operation::Write,
            (Verb::Write, true, _) => Operation::WriteInline,
            (Verb::Send, false, _) if is_datagram => Operation::SendTo,
            (Verb::Send, true, _) if is_datagram => Operation::SendToInline,
            (Verb::Send, false, _) => Operation::Send,
            (Verb::Send, true, _) => Operation::SendInline,
            (Verb::Read, ..) => Operation::Read,
            (Verb::Atomic, _, Atomic::FetchAndAdd) => Operation::FetchAdd,
            (Verb::Atomic, _, Atomic::CmpAndSwap) => Operation::CompareSwap,
        };
        let mut inline = Vec::new();
        for queue_pair in 0..layout.queue_pairs {
            for slot in 0..layout.slots {
                if verb == Verb::Atomic {
                    end.endpoint.clear(layout.tx(queue_pair, slot), layout.size)?;
                } else {
                    end.endpoint.fill(layout.tx(queue_pair, slot), layout.size, pattern(seed, role, queue_pair, slot))?;
                }
                end.endpoint.clear(layout.rx(queue_pair, slot), layout.size)?;
            }
        }
        if is_inline {
            inline.extend_from_slice(end.endpoint.read(0, layout.queue_pairs * layout.ring())?);
        }
        let target = match parameters.end(point) {
            _ if !sends => 0,
            End::Iterations(count) => count,
            End::Duration(_) => u64::MAX,
        };
        let rx_depth = u64::from(parameters.receives_each());
        let (depth, post_list) = (parameters.tx_depth, parameters.post_list);
        // A list is posted only if all of it fits, so a signaled request must complete while less than a list fits.
        let cq_mod = parameters.cq_mod(point.size).min(depth - post_list + 1);
        let mut queue_pairs = Vec::with_capacity(layout.queue_pairs);
        let handles: Vec<_> = end.endpoint.qps().iter().map(|qp| qp.handle()).collect();
        for (index, handle) in handles.into_iter().enumerate() {
            let (out, incoming) = (layout.tx(index, 0), layout.rx(index, 0));
            // An RDMA read fetches from the peer's send slots into the receive slots here.
            let (from, to) = if verb == Verb::Read { (incoming, out) } else { (out, incoming) };
            queue_pairs.push(QueuePair {
                posted: 0,
                completed: 0,
                target,
                send_limit: if receives { rx_depth } else { u64::MAX },
                until_signal: cq_mod,
                offset: 0,
                local: end.endpoint.sge(from, 0).addr,
                remote: end.peer()?.at(to),
                out,
                received: 0,
                next_slot: 0,
                sources: vec![None; layout.slots],
                handle,
                to: end.destination(index),
                credited: 0,
                credit_sent: 0,
                credit_in_flight: false,
            });
            if receives {
                for count in 0..parameters.receives_each() + CREDITS {
                    let slot = count as usize % layout.slots;
                    let wr_id = (index as u64) << QUEUE_PAIR_SHIFT | slot as u64;
                    let (at, len) = layout.receive(index, slot);
                    end.endpoint.post_receive(index, wr_id, at, len)?;
                }
            }
        }
        Ok(Self {
            point,
            layout,
            operation,
            role,
            unfinished: if sends { queue_pairs.len() } else { 0 },
            queue_pairs,
            lkey: end.endpoint.sge(0, layout.size),
            sends,
            receives,
            use_srq: parameters.use_srq,
            events: parameters.events,
            depth: depth.into(),
            cq_mod,
            post_list: post_list.into(),
            rx_depth,
            credit_every: rx_depth / 4,
            inline,
            completions: Box::new([Completion::EMPTY; BATCH]),
            duration: match parameters.end(point) {
                End::Duration(duration) if sends => Some(duration),
                _ => None,
            },
            steps_to_clock_check: CLOCK_CHECK_STEPS,
            start: None,
            finish: None,
        })
    }

    /// Returns whether this end posts no requests: the peer accesses its memory.
    pub(super) const fn is_passive(&self) -> bool {
        !self.sends && !self.receives
    }

    /// Returns whether everything is sent.
    pub(super) const fn is_finished(&self) -> bool {
        self.unfinished == 0
    }

    /// Returns the number of messages sent on each queue pair.
    pub(super) fn sent(&self) -> Vec<u64> {
        self.queue_pairs.iter().map(|queue_pair| queue_pair.completed).collect()
    }

    /// Returns the number of messages sent, or received if this end does not send.
    pub(super) fn messages(&self) -> u64 {
        self.queue_pairs.iter().map(|queue_pair| if self.sends { queue_pair.completed } else { queue_pair.received }).sum()
    }

    /// Ends the test: posts no more messages than the last completion needs.
    pub(super) fn stop(&mut self) {
        self.unfinished = 0;
        for queue_pair in &mut self.queue_pairs {
            // Messages posted since the last signaled request complete with one more, which is signaled.
            let last =
                if queue_pair.until_signal == self.cq_mod { queue_pair.posted } else { queue_pair.posted.saturating_add(1) };
            queue_pair.target = queue_pair.target.min(last);
            if queue_pair.completed < queue_pair.target {
                self.unfinished += 1;
            }
        }
        if self.unfinished == 0 {
            self.finish = self.finish.or_else(|| Some(Instant::now()));
        }
    }

    /// Posts messages up to the depth, and polls both completion queues. Returns whether there was progress.
    ///
    /// # Errors
    /// A request failed or cannot be posted.
    #[inline]
    pub(super) fn step<H: Host>(&mut self, end: &mut PerfEnd<H>) -> Result<bool> {
        let mut progressed = false;
        if self.unfinished != 0 {
            progressed |= match self.operation {
                Operation::Write => self.post::<Write, H>(end),
                Operation::WriteInline => self.post::<WriteInline, H>(end),
                Operation::Send => self.post::<Send, H>(end),
                Operation::SendInline => self.post::<SendInline, H>(end),
                Operation::SendTo => self.post::<SendTo, H>(end),
                Operation::SendToInline => self.post::<SendToInline, H>(end),
                Operation::Read => self.post::<Read, H>(end),
                Operation::FetchAdd => self.post::<FetchAdd, H>(end),
                Operation::CompareSwap => self.post::<CompareSwap, H>(end),
            }?;
        }
        progressed |= self.poll_send_cq(end)?;
        if self.receives {
            progressed |= self.poll_recv_cq(end)?;
        }
        if self.events {
            if progressed {
                end.disarm();
            } else if !self.is_passive() {
                return end.arm();
            }
        }
        Ok(progressed)
    }

    fn post<R: Request, H: Host>(&mut self, end: &mut PerfEnd<H>) -> Result<bool> {
        let start = *self.start.get_or_insert_with(Instant::now);
        if let Some(duration) = self.duration {
            self.steps_to_clock_check -= 1;
            if self.steps_to_clock_check == 0 {
                self.steps_to_clock_check = CLOCK_CHECK_STEPS;
                if start.elapsed() >= duration {
                    self.duration = None;
                    self.stop();
                }
            }
        }
        let mut progressed = false;
        let (inline, size) = (self.inline.as_slice(), self.layout.size);
        let template = RequestTemplate {
            ring: self.layout.ring(),
            stride: self.layout.stride,
            sge: self.lkey,
            cq_mod: self.cq_mod,
            fixed: R::FIXED,
        };
        for (index, (queue_pair, qp)) in self.queue_pairs.iter_mut().zip(end.endpoint.qps()).enumerate() {
            loop {
                let count = (queue_pair.target.min(queue_pair.send_limit) - queue_pair.posted).min(self.post_list);
                if count == 0 || count > self.depth - (queue_pair.posted - queue_pair.completed) {
                    break;
                }
                progressed = true;
                let mut batch = qp.send().batch();
                for _ in 0..count {
                    let next = queue_pair.next(index, &template);
                    let bytes = inline.get(next.at..next.at.wrapping_add(size)).unwrap_or_default();
                    R::post(&mut batch, &next, bytes, queue_pair.to.as_ref()).context("post of a request")?;
                }
            }
        }
        Ok(progressed)
    }

    fn poll_send_cq<H: Host>(&mut self, end: &mut PerfEnd<H>) -> Result<bool> {
        let (mut taken, mut credit) = (false, false);
        for completion in end.endpoint.cq(SEND_CQ)?.completions() {
            let completion = completion.context("poll_cq")?;
            if completion.status != WcStatus::Success {
                return Err(failed_completion(&completion));
            }
            taken = true;
            let wr_id = completion.wr_id;
            let index = (wr_id >> QUEUE_PAIR_SHIFT) as usize & 0x7fff;
            let Some(queue_pair) = self.queue_pairs.get_mut(index) else {
                bail!("a completion of request {wr_id:#x}, which was not posted")
            };
            if wr_id & CREDIT != 0 {
                queue_pair.credit_in_flight = false;
                credit = true;
                continue;
            }
            queue_pair.completed = wr_id & COUNT;
            if queue_pair.completed == queue_pair.target {
                self.unfinished = self.unfinished.saturating_sub(1);
                if self.unfinished == 0 {
                    self.finish = Some(Instant::now());
                }
            }
        }
        if credit {
            (0..self.queue_pairs.len()).try_for_each(|index| self.send_credit(index, end))?;
        }
        Ok(taken)
    }

    fn poll_recv_cq<H: Host>(&mut self, end: &mut PerfEnd<H>) -> Result<bool> {
        let taken = end.endpoint.cq(RECV_CQ)?.poll(&mut *self.completions).context("poll_cq")?;
        for at in 0..taken {
            let Some(&completion) = self.completions.get(at) else { break };
            if completion.status != WcStatus::Success {
                return Err(failed_completion(&completion));
            }
            let (ring, slot) = ((completion.wr_id >> QUEUE_PAIR_SHIFT) as usize, (completion.wr_id & COUNT) as usize);
            // Any queue pair takes a receive of a shared queue.
            let index = if self.use_srq {
                self.queue_pairs.iter().position(|queue_pair| queue_pair.handle == completion.qp).unwrap_or(usize::MAX)
            } else {
                ring
            };
            let Some(queue_pair) = self.queue_pairs.get_mut(index) else {
                bail!("a completion of receive {:#x}, which was not posted", completion.wr_id)
            };
            if let WcData::Imm(count) = completion.data {
                let more = u32::from_be_bytes(count).wrapping_sub(queue_pair.credited as u32);
                queue_pair.credited += u64::from(more);
                if queue_pair.credited > queue_pair.posted {
                    bail!(
                        "the peer reports {} messages received on queue pair {index}, but {} were sent",
                        queue_pair.credited,
                        queue_pair.posted
                    );
                }
                queue_pair.send_limit = self.rx_depth + queue_pair.credited;
            } else {
                if completion.byte_len as usize != self.layout.area + self.layout.size {
                    bail!("a message of {} bytes arrived on queue pair {index}", completion.byte_len);
                }
                queue_pair.received += 1;
                let source = (index, queue_pair.next_slot);
                queue_pair.next_slot += 1;
                if queue_pair.next_slot == self.layout.slots {
                    queue_pair.next_slot = 0;
                }
                if let Some(place) = self.queue_pairs.get_mut(ring).and_then(|ring| ring.sources.get_mut(slot)) {
                    *place = Some(source);
                }
            }
            let (at, len) = self.layout.receive(ring, slot);
            end.endpoint.post_receive(ring, completion.wr_id, at, len)?;
            self.send_credit(index, end)?;
        }
        Ok(taken != 0)
    }

    /// Sends the peer a credit if enough messages were received since the last one. The peer posts no message without a
    /// receive here.
    ///
    /// A credit is an empty SEND_WITH_IMM, not an RDMA write, because it must wake a peer that waits for events.
    #[inline]
    fn send_credit<H: Host>(&mut self, index: usize, end: &mut PerfEnd<H>) -> Result<()> {
        let Some(queue_pair) = self.queue_pairs.get_mut(index) else { return Ok(()) };
        if queue_pair.credit_in_flight || queue_pair.received - queue_pair.credit_sent < self.credit_every {
            return Ok(());
        }
        queue_pair.credit_sent = queue_pair.received;
        queue_pair.credit_in_flight = true;
        let (wr_id, imm) = (CREDIT | (index as u64) << QUEUE_PAIR_SHIFT, (queue_pair.received as u32).to_be_bytes());
        let credit = match &queue_pair.to {
            Some(to) => SendWr::send_to_with_imm(to, &[] as &[Sge], imm),
            None => SendWr::send_with_imm(&[] as &[Sge], imm),
        };
        let credit = credit.id(wr_id).signaled();
        end.endpoint.qp(index)?.send().post(&credit).context("post of a credit")
    }

    /// Returns whether all messages that the peer sent have arrived.
    pub(super) fn has_received(&self, sent: &[u64]) -> bool {
        !self.receives || self.queue_pairs.iter().zip(sent).all(|(queue_pair, &sent)| queue_pair.received >= sent)
    }

    /// Describes outstanding requests, for errors.
    pub(super) fn outstanding(&self) -> String {
        let sum = |value: fn(&QueuePair) -> u64| self.queue_pairs.iter().map(value).sum::<u64>();
        let (posted, completed, received) = (
            sum(|queue_pair| queue_pair.posted),
            sum(|queue_pair| queue_pair.completed),
            sum(|queue_pair| queue_pair.received),
        );
        let blocked = self.queue_pairs.iter().filter(|queue_pair| queue_pair.posted == queue_pair.send_limit).count();
        let mut text = format!("{} requests outstanding ({posted} posted, {completed} complete)", posted - completed);
        if self.receives {
            text += &format!(", {received} messages received, {blocked} queue pairs waiting for the peer's receives");
        }
        text
    }

    /// Compares the received data with what the peer sent. `sent` has its number of messages on each queue pair.
    ///
    /// # Errors
    /// A byte, or the sum of the atomics, is wrong.
    pub(super) fn verify<H: Host>(&self, end: &mut PerfEnd<H>, seed: u64, sent: &[u64]) -> Result<()> {
        let layout = self.layout;
        for (index, queue_pair) in self.queue_pairs.iter().enumerate() {
            match self.operation {
                Operation::FetchAdd | Operation::CompareSwap => {
                    let sum = end.endpoint.load(layout.rx(index, 0))?;
                    let wanted = sent.get(index).copied().unwrap_or(0);
                    if sum != wanted {
                        bail!("the word is {sum} after the atomics of queue pair {index}, instead of {wanted}");
                    }
                    // The results of the last round: each is the number of atomics before it.
                    for number in queue_pair.posted.saturating_sub(layout.slots as u64)..queue_pair.posted {
                        let slot = (number % layout.slots as u64) as usize;
                        let old = end.endpoint.load(layout.tx(index, slot))?;
                        if old != number {
                            bail!("atomic {number} of queue pair {index} returned {old} as the value before it");
                        }
                    }
                }
                Operation::Write | Operation::WriteInline | Operation::Read => {
                    let count =
                        if matches!(self.operation, Operation::Read) { Some(&queue_pair.posted) } else { sent.get(index) };
                    let used = count.map_or(0, |&count| usize::try_from(count).unwrap_or(usize::MAX)).min(layout.slots);
                    for slot in 0..used {
                        end.endpoint
                            .verify(layout.rx(index, slot), layout.size, pattern(seed, self.role.other(), index, slot))
                            .with_context(|| format!("slot {slot} of queue pair {index}"))?;
                    }
                }
                Operation::Send | Operation::SendInline | Operation::SendTo | Operation::SendToInline => {
                    for (slot, source) in queue_pair.sources.iter().enumerate() {
                        let &Some((sender, from)) = source else { continue };
                        end.endpoint
                            .verify(layout.rx(index, slot), layout.size, pattern(seed, self.role.other(), sender, from))
                            .with_context(|| format!("receive slot {slot} of queue pair {index}"))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the measured values, if this end sent.
    pub(super) fn row(&self) -> Option<Row> {
        if !self.sends {
            return None;
        }
        let messages: u64 = self.queue_pairs.iter().map(|queue_pair| queue_pair.completed).sum();
        let seconds = self.finish?.saturating_duration_since(self.start?).as_secs_f64();
        Some(Row::bandwidth(self.point, messages, seconds))
    }
}

/// Returns the data that end `role` sends from a slot.
fn pattern(seed: u64, role: Role, queue_pair: usize, slot: usize) -> Pattern {
    Pattern::new(seed, stream(role), (queue_pair as u64) << 32 | slot as u64)
}
