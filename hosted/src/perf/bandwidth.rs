//! Bandwidth: the send queues are kept full, and completions are taken as they come.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bareverbs::{Completion, CqHandle, PostSendError, Provider, QpHandle, Remote, SendBatch, SendFlags, Sge, WcData, WcStatus};

use super::buffer_layout::BufferLayout;
use super::end::{PerfEnd, refused, stream};
use super::parameters::{Atomic, CREDITS, End, Parameters, Point, Verb};
use super::report::Row;
use crate::data_pattern::Pattern;
use crate::device::{Device, Host, Role};

/// Completions taken at a time.
const BATCH: usize = 32;
/// Steps between two looks at the clock of a test with a duration.
const CLOCK_CHECK_STEPS: u32 = 16;
/// Bit of a `wr_id` that marks a credit.
const CREDIT: u64 = 1 << 63;
/// Where the queue pair stands in a `wr_id`; below it are the messages posted up to the request, or the slot of a receive.
const QUEUE_PAIR_SHIFT: u32 = 48;
const COUNT: u64 = (1 << QUEUE_PAIR_SHIFT) - 1;

/// A queue pair.
#[derive(Debug)]
struct QueuePair {
    qp: QpHandle,
    /// Messages posted, those known to be complete, and those to post in all.
    posted: u64,
    completed: u64,
    target: u64,
    /// Messages for which the peer has receives, in all.
    allowed: u64,
    /// Messages up to the next that asks for a completion.
    until_signal: u32,
    /// Offset of the next message in the ring of slots.
    offset: usize,
    /// Device address of the ring of slots here.
    local: u64,
    /// The ring of slots at the peer.
    remote: Remote,
    /// Offset of the ring of slots in the memory here.
    out: usize,
    /// Messages received.
    received: u64,
    /// The peer's slot from which the next message comes.
    next_slot: usize,
    /// The peer's slot from which the last message in each slot here came, `usize::MAX` for none.
    source_slots: Vec<usize>,
    /// Messages that the peer has received by its last credit, and that were received here by the last credit sent.
    credited: u64,
    credit_sent: u64,
    /// Whether a credit is posted and has not completed.
    credit_in_flight: bool,
}

/// What all messages of a test have in common.
struct Shape {
    /// Bytes of the slots of a queue pair, and from slot to slot.
    ring: usize,
    stride: usize,
    /// Length and key of a message.
    sge: Sge,
    cq_mod: u32,
    /// Whether every message is for the same place at the peer.
    fixed: bool,
}

/// The next message of a queue pair.
struct Next {
    wr_id: u64,
    flags: SendFlags,
    sge: Sge,
    remote: Remote,
    /// Messages before it.
    number: u64,
    /// Offset in the memory here.
    at: usize,
}

impl QueuePair {
    /// Counts the next message; `index` is the queue pair's own.
    #[inline(always)]
    fn next(&mut self, index: usize, shape: &Shape) -> Next {
        let number = self.posted;
        self.posted += 1;
        self.until_signal -= 1;
        let mut flags = SendFlags::empty();
        if self.until_signal == 0 || self.posted == self.target {
            self.until_signal = shape.cq_mod;
            flags = SendFlags::SIGNALED;
        }
        let offset = self.offset;
        self.offset = offset.wrapping_add(shape.stride);
        if self.offset == shape.ring {
            self.offset = 0;
        }
        let sge = Sge { addr: self.local.wrapping_add(offset as u64), ..shape.sge };
        let remote_offset = if shape.fixed { 0 } else { offset as u64 };
        let remote = Remote { addr: self.remote.addr.wrapping_add(remote_offset), ..self.remote };
        let wr_id = (index as u64) << QUEUE_PAIR_SHIFT | self.posted;
        Next { wr_id, flags, sge, remote, number, at: self.out.wrapping_add(offset) }
    }
}

/// What the requests of a test look like.
trait Request {
    /// Posts a message's request; `bytes` holds the message if it goes inline.
    fn post<P: Provider>(batch: &mut SendBatch<'_, P>, next: &Next, bytes: &[u8]) -> Result<(), PostSendError>;
    /// Whether every message is for the same place at the peer.
    const FIXED: bool = false;
}

macro_rules! requests {
    ($($name:ident($batch:ident, $next:pat, $bytes:pat) $(fixed $fixed:literal)? => $posted:expr;)+) => {$(
        struct $name;

        impl Request for $name {
            #[inline(always)]
            fn post<P: Provider>($batch: &mut SendBatch<'_, P>, $next: &Next, $bytes: &[u8]) -> Result<(), PostSendError> {
                $posted
            }

            $(const FIXED: bool = $fixed;)?
        }
    )+};
}

requests! {
    Write(batch, &Next { wr_id, flags, sge, remote, .. }, _) => batch.write(wr_id, flags, remote, &[sge]);
    WriteInline(batch, &Next { wr_id, flags, remote, .. }, bytes) => batch.write_inline(wr_id, flags, remote, bytes);
    Send(batch, &Next { wr_id, flags, sge, .. }, _) => batch.send(wr_id, flags, &[sge]);
    SendInline(batch, &Next { wr_id, flags, .. }, bytes) => batch.send_inline(wr_id, flags, bytes);
    Read(batch, &Next { wr_id, flags, sge, remote, .. }, _) => batch.read(wr_id, flags, remote, &[sge]);
    FetchAdd(batch, &Next { wr_id, flags, sge, remote, .. }, _) fixed true => batch.fetch_add(wr_id, flags, remote, 1, &sge);
    CompareSwap(batch, &Next { wr_id, flags, sge, remote, number, .. }, _) fixed true =>
        batch.compare_swap(wr_id, flags, remote, number, number.wrapping_add(1), &sge);
}

/// The requests of a test.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Write,
    WriteInline,
    Send,
    SendInline,
    Read,
    FetchAdd,
    CompareSwap,
}

/// One end of a bandwidth test.
#[derive(Debug)]
pub(super) struct Bandwidth {
    point: Point,
    layout: BufferLayout,
    kind: Kind,
    role: Role,
    queue_pairs: Vec<QueuePair>,
    send_cq: CqHandle,
    recv_cq: CqHandle,
    /// Length and key of a message.
    lkey: Sge,
    /// Whether this end sends, receives, and waits for events.
    sends: bool,
    receives: bool,
    events: bool,
    depth: u64,
    cq_mod: u32,
    post_list: u64,
    rx_depth: u64,
    /// Messages between two credits.
    credit_every: u64,
    /// The messages as they go inline.
    inline: Vec<u8>,
    completions: Box<[Completion; BATCH]>,
    /// Queue pairs that have not sent everything yet.
    unfinished: usize,
    duration: Option<Duration>,
    until_look: u32,
    start: Option<Instant>,
    finish: Option<Instant>,
}

impl Bandwidth {
    /// Fills the slots, and posts receives.
    pub(super) fn new<H: Host>(
        end: &mut PerfEnd<H>,
        device: &mut Device<H>,
        parameters: &Parameters,
        point: Point,
        role: Role,
        run: u64,
    ) -> Result<Self> {
        let layout = BufferLayout::new(parameters, point);
        let verb = point.test.verb();
        let sends = role == Role::Client || parameters.bidirectional;
        let receives = verb == Verb::Send;
        let queues = end.queues()?;
        let (send_cq, recv_cq, qps) = (queues.send_cq, queues.recv_cq, end.endpoint.qps().to_vec());
        let is_inline = point.size <= queues.inline;
        let kind = match (verb, is_inline, parameters.atomic) {
            (Verb::Write, false, _) => Kind::Write,
            (Verb::Write, true, _) => Kind::WriteInline,
            (Verb::Send, false, _) => Kind::Send,
            (Verb::Send, true, _) => Kind::SendInline,
            (Verb::Read, ..) => Kind::Read,
            (Verb::Atomic, _, Atomic::FetchAndAdd) => Kind::FetchAdd,
            (Verb::Atomic, _, Atomic::CmpAndSwap) => Kind::CompareSwap,
        };
        let mut inline = Vec::new();
        for queue_pair in 0..layout.queue_pairs {
            for slot in 0..layout.slots {
                if verb == Verb::Atomic {
                    end.endpoint.clear(layout.tx(queue_pair, slot), layout.size)?;
                } else {
                    end.endpoint.fill(layout.tx(queue_pair, slot), layout.size, pattern(run, role, queue_pair, slot))?;
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
        let rx_depth = u64::from(parameters.rx_depth);
        let (depth, post_list) = (parameters.tx_depth, parameters.post_list);
        // A list waits for room, so a completion must come before there is none.
        let cq_mod = parameters.cq_mod(point.size).min(depth - post_list + 1);
        let mut queue_pairs = Vec::with_capacity(layout.queue_pairs);
        for (index, &qp) in qps.iter().enumerate() {
            let (out, incoming) = (layout.tx(index, 0), layout.rx(index, 0));
            // What is read goes where messages come in, and comes from where messages are sent.
            let (from, to) = if verb == Verb::Read { (incoming, out) } else { (out, incoming) };
            queue_pairs.push(QueuePair {
                qp,
                posted: 0,
                completed: 0,
                target,
                allowed: if receives { rx_depth } else { u64::MAX },
                until_signal: cq_mod,
                offset: 0,
                local: end.endpoint.sge(from, 0).addr,
                remote: end.peer()?.at(to),
                out,
                received: 0,
                next_slot: 0,
                source_slots: vec![usize::MAX; layout.slots],
                credited: 0,
                credit_sent: 0,
                credit_in_flight: false,
            });
            if receives {
                for count in 0..parameters.rx_depth + CREDITS {
                    let slot = count as usize % layout.slots;
                    let wr_id = (index as u64) << QUEUE_PAIR_SHIFT | slot as u64;
                    end.endpoint.post_receive(device, qp, wr_id, layout.rx(index, slot), layout.size)?;
                }
            }
        }
        Ok(Self {
            point,
            layout,
            kind,
            role,
            unfinished: if sends { queue_pairs.len() } else { 0 },
            queue_pairs,
            send_cq,
            recv_cq,
            lkey: end.endpoint.sge(0, layout.size),
            sends,
            receives,
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
            until_look: CLOCK_CHECK_STEPS,
            start: None,
            finish: None,
        })
    }

    /// Whether this end has nothing to do but let the peer work on its memory.
    pub(super) const fn is_passive(&self) -> bool {
        !self.sends && !self.receives
    }

    /// Whether everything is sent.
    pub(super) const fn is_finished(&self) -> bool {
        self.unfinished == 0
    }

    /// Messages sent on each queue pair.
    pub(super) fn sent(&self) -> Vec<u64> {
        self.queue_pairs.iter().map(|queue_pair| queue_pair.completed).collect()
    }

    /// Messages sent or received.
    pub(super) fn messages(&self) -> u64 {
        self.queue_pairs.iter().map(|queue_pair| if self.sends { queue_pair.completed } else { queue_pair.received }).sum()
    }

    /// Posts nothing more than what lets the last completion come.
    pub(super) fn stop(&mut self) {
        self.unfinished = 0;
        for queue_pair in &mut self.queue_pairs {
            // What was posted since the last request with a completion needs one more.
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

    /// Posts what fits and takes the completions that are there; whether anything happened.
    #[inline]
    pub(super) fn step<H: Host>(&mut self, end: &mut PerfEnd<H>, device: &mut Device<H>) -> Result<bool> {
        let mut worked = false;
        if self.unfinished != 0 {
            worked |= match self.kind {
                Kind::Write => self.post::<Write, H>(device),
                Kind::WriteInline => self.post::<WriteInline, H>(device),
                Kind::Send => self.post::<Send, H>(device),
                Kind::SendInline => self.post::<SendInline, H>(device),
                Kind::Read => self.post::<Read, H>(device),
                Kind::FetchAdd => self.post::<FetchAdd, H>(device),
                Kind::CompareSwap => self.post::<CompareSwap, H>(device),
            }?;
        }
        worked |= self.take_sends(device)?;
        if self.receives {
            worked |= self.take_receives(end, device)?;
        }
        if self.events {
            if worked {
                end.disarm();
            } else if !self.is_passive() {
                return end.arm(device);
            }
        }
        Ok(worked)
    }

    fn post<R: Request, H: Host>(&mut self, device: &mut Device<H>) -> Result<bool> {
        let start = *self.start.get_or_insert_with(Instant::now);
        if let Some(duration) = self.duration {
            self.until_look -= 1;
            if self.until_look == 0 {
                self.until_look = CLOCK_CHECK_STEPS;
                if start.elapsed() >= duration {
                    self.duration = None;
                    self.stop();
                }
            }
        }
        let mut worked = false;
        let (inline, size) = (self.inline.as_slice(), self.layout.size);
        let shape = Shape {
            ring: self.layout.ring(),
            stride: self.layout.stride,
            sge: self.lkey,
            cq_mod: self.cq_mod,
            fixed: R::FIXED,
        };
        for (index, queue_pair) in self.queue_pairs.iter_mut().enumerate() {
            loop {
                let count = (queue_pair.target.min(queue_pair.allowed) - queue_pair.posted).min(self.post_list);
                if count == 0 || count > self.depth - (queue_pair.posted - queue_pair.completed) {
                    break;
                }
                worked = true;
                let mut batch = device.verbs.send_batch(queue_pair.qp).context("post_send")?;
                for _ in 0..count {
                    let next = queue_pair.next(index, &shape);
                    let bytes = inline.get(next.at..next.at.wrapping_add(size)).unwrap_or_default();
                    R::post(&mut batch, &next, bytes).context("post_send")?;
                }
            }
        }
        Ok(worked)
    }

    fn take_sends<H: Host>(&mut self, device: &mut Device<H>) -> Result<bool> {
        let (mut taken, mut credit) = (false, false);
        for completion in device.verbs.completions(self.send_cq).context("poll_cq")? {
            let completion = completion.context("poll_cq")?;
            if completion.status != WcStatus::Success {
                return Err(refused(&completion));
            }
            taken = true;
            let wr_id = completion.wr_id;
            let index = (wr_id >> QUEUE_PAIR_SHIFT) as usize & 0x7fff;
            let Some(queue_pair) = self.queue_pairs.get_mut(index) else {
                bail!("a completion of request {wr_id:#x}, which nobody posted")
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
            (0..self.queue_pairs.len()).try_for_each(|index| self.send_credit(index, device))?;
        }
        Ok(taken)
    }

    fn take_receives<H: Host>(&mut self, end: &PerfEnd<H>, device: &mut Device<H>) -> Result<bool> {
        let taken = device.verbs.poll_cq(self.recv_cq, &mut *self.completions).context("poll_cq")?;
        for at in 0..taken {
            let Some(&completion) = self.completions.get(at) else { break };
            if completion.status != WcStatus::Success {
                return Err(refused(&completion));
            }
            let (index, slot) = ((completion.wr_id >> QUEUE_PAIR_SHIFT) as usize, (completion.wr_id & COUNT) as usize);
            let Some(queue_pair) = self.queue_pairs.get_mut(index) else {
                bail!("a completion of receive {:#x}, which nobody posted", completion.wr_id)
            };
            if let WcData::Imm(count) = completion.data {
                let more = u32::from_be_bytes(count).wrapping_sub(queue_pair.credited as u32);
                queue_pair.credited += u64::from(more);
                if queue_pair.credited > queue_pair.posted {
                    bail!(
                        "the peer says that it received {} messages of queue pair {index}, {} were sent",
                        queue_pair.credited,
                        queue_pair.posted
                    );
                }
                queue_pair.allowed = self.rx_depth + queue_pair.credited;
            } else {
                if completion.byte_len as usize != self.layout.size {
                    bail!("a message of {} bytes came on queue pair {index}", completion.byte_len);
                }
                queue_pair.received += 1;
                if let Some(source) = queue_pair.source_slots.get_mut(slot) {
                    *source = queue_pair.next_slot;
                }
                queue_pair.next_slot += 1;
                if queue_pair.next_slot == self.layout.slots {
                    queue_pair.next_slot = 0;
                }
            }
            let at = self.layout.rx(index, slot);
            end.endpoint.post_receive(device, queue_pair.qp, completion.wr_id, at, self.layout.size)?;
            self.send_credit(index, device)?;
        }
        Ok(taken != 0)
    }

    /// Lets the peer know of the messages received, if enough have come: it sends only what there are receives for. A message
    /// without bytes, and not a write to a word of the peer, so that a peer that waits for events wakes up.
    #[inline]
    fn send_credit<H: Host>(&mut self, index: usize, device: &mut Device<H>) -> Result<()> {
        let Some(queue_pair) = self.queue_pairs.get_mut(index) else { return Ok(()) };
        if queue_pair.credit_in_flight || queue_pair.received - queue_pair.credit_sent < self.credit_every {
            return Ok(());
        }
        queue_pair.credit_sent = queue_pair.received;
        queue_pair.credit_in_flight = true;
        let (wr_id, imm) = (CREDIT | (index as u64) << QUEUE_PAIR_SHIFT, (queue_pair.received as u32).to_be_bytes());
        let mut batch = device.verbs.send_batch(queue_pair.qp).context("post_send of a credit")?;
        batch.send_imm(wr_id, SendFlags::SIGNALED, imm, &[]).context("post_send of a credit")
    }

    /// Whether all that the peer sent has come.
    pub(super) fn has_received(&self, sent: &[u64]) -> bool {
        !self.receives || self.queue_pairs.iter().zip(sent).all(|(queue_pair, &sent)| queue_pair.received >= sent)
    }

    /// What is outstanding, for errors.
    pub(super) fn outstanding(&self) -> String {
        let sum = |value: fn(&QueuePair) -> u64| self.queue_pairs.iter().map(value).sum::<u64>();
        let (posted, completed, received) = (
            sum(|queue_pair| queue_pair.posted),
            sum(|queue_pair| queue_pair.completed),
            sum(|queue_pair| queue_pair.received),
        );
        let blocked = self.queue_pairs.iter().filter(|queue_pair| queue_pair.posted == queue_pair.allowed).count();
        let mut text = format!("{} requests outstanding ({posted} posted, {completed} complete)", posted - completed);
        if self.receives {
            text += &format!(", {received} messages received, {blocked} queue pairs waiting for the peer's receives");
        }
        text
    }

    /// Compares what came with what the peer sent; `sent` are its messages.
    pub(super) fn verify<H: Host>(&self, end: &mut PerfEnd<H>, run: u64, sent: &[u64]) -> Result<()> {
        let layout = self.layout;
        for (index, queue_pair) in self.queue_pairs.iter().enumerate() {
            match self.kind {
                Kind::FetchAdd | Kind::CompareSwap => {
                    let sum = end.endpoint.load(layout.rx(index, 0))?;
                    let wanted = sent.get(index).copied().unwrap_or(0);
                    if sum != wanted {
                        bail!("the atomics of queue pair {index} made {sum} of the word instead of {wanted}");
                    }
                    // The results of the last round: each the number of the atomics before it.
                    for number in queue_pair.posted.saturating_sub(layout.slots as u64)..queue_pair.posted {
                        let slot = (number % layout.slots as u64) as usize;
                        let old = end.endpoint.load(layout.tx(index, slot))?;
                        if old != number {
                            bail!("atomic {number} of queue pair {index} gave {old} as the value before it");
                        }
                    }
                }
                Kind::Write | Kind::WriteInline | Kind::Read => {
                    let count = if matches!(self.kind, Kind::Read) { Some(&queue_pair.posted) } else { sent.get(index) };
                    let used = count.map_or(0, |&count| usize::try_from(count).unwrap_or(usize::MAX)).min(layout.slots);
                    for slot in 0..used {
                        end.endpoint
                            .verify(layout.rx(index, slot), layout.size, pattern(run, self.role.other(), index, slot))
                            .with_context(|| format!("slot {slot} of queue pair {index}"))?;
                    }
                }
                Kind::Send | Kind::SendInline => {
                    for (slot, &from) in queue_pair.source_slots.iter().enumerate().filter(|(_, from)| **from != usize::MAX) {
                        end.endpoint
                            .verify(layout.rx(index, slot), layout.size, pattern(run, self.role.other(), index, from))
                            .with_context(|| format!("receive slot {slot} of queue pair {index}"))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// What was measured, if this end sent.
    pub(super) fn row(&self) -> Option<Row> {
        if !self.sends {
            return None;
        }
        let messages: u64 = self.queue_pairs.iter().map(|queue_pair| queue_pair.completed).sum();
        let seconds = self.finish?.saturating_duration_since(self.start?).as_secs_f64();
        Some(Row::bandwidth(self.point, messages, seconds))
    }
}

/// What end `role` sends from a slot.
fn pattern(run: u64, role: Role, queue_pair: usize, slot: usize) -> Pattern {
    Pattern::new(run, stream(role), (queue_pair as u64) << 32 | slot as u64)
}
