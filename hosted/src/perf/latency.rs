//! Latency tests: one message at a time.
//!
//! In write and send tests the server answers each message. The latency is half the time between two messages of the client.
//! A write is detected by polling its last byte, which holds the number of the message. In read and atomic tests only the
//! client posts requests, and the latency is the time from request to completion.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bareverbs::{Completion, DmaBuffer as _, Payload, Remote, SendFlags, SendOp, SendWr, Sge, WcStatus};

use super::buffer_layout::BufferLayout;
use super::end::{LATENCY_INTERVAL, PerfEnd, RECV_CQ, SEND_CQ, failed_completion, stream};
use super::parameters::{Atomic, End, Parameters, Point, Verb};
use super::report::Row;
use super::statistics::Samples;
use crate::data_pattern::Pattern;
use crate::device::{Host, Role};

/// Completions polled in one call.
const BATCH: usize = 4;
/// Polls of the memory between two polls for a failed request.
const FAILURE_CHECK_STEPS: u32 = 64;

/// One end of a latency test.
#[derive(Debug)]
pub(super) struct Latency {
    point: Point,
    layout: BufferLayout,
    verb: Verb,
    atomic: Atomic,
    role: Role,
    events: bool,
    /// Number of queue pairs.
    queue_pairs: usize,
    /// Index of the queue pair of the next message.
    queue_pair: usize,
    sges: [Sge; 1],
    remote: Remote,
    /// Inline payload; empty if messages are not inline.
    inline: Vec<u8>,
    /// Offset of the last byte of the message to send.
    out_last: usize,
    /// Offset of the last byte of the message to receive.
    in_last: usize,
    sent: u64,
    completed: u64,
    received: u64,
    /// Whether it is this end's turn to send.
    may_send: bool,
    target: u64,
    /// Number of messages for one signaled request.
    interval: u64,
    /// Messages up to the next signaled request.
    until_signal: u64,
    /// Polls without result.
    empty_polls: u32,
    duration: Option<Duration>,
    start: Option<Instant>,
    /// Time of the last message sent.
    last_send: Instant,
    finish: Option<Instant>,
    samples: Samples,
}

impl Latency {
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
        let (out, incoming) = (layout.tx(0, 0), layout.rx(0, 0));
        if verb == Verb::Atomic {
            end.endpoint.clear(out, layout.size)?;
        } else {
            end.endpoint.fill(out, layout.size, pattern(seed, role))?;
        }
        end.endpoint.clear(incoming, layout.size)?;
        let (longest, queue_pairs) = (end.queues()?.inline, end.endpoint.qps().len());
        let inline = if point.size <= longest { end.endpoint.read(out, layout.size)?.to_vec() } else { Vec::new() };
        // An RDMA read fetches from the peer's send slots into the receive slots here.
        let (from, to) = if verb == Verb::Read { (incoming, out) } else { (out, incoming) };
        if verb == Verb::Send {
            for index in 0..queue_pairs {
                let (at, len) = layout.receive(0, 0);
                for _ in 0..parameters.receives_each() {
                    end.endpoint.post_receive(index, index as u64, at, len)?;
                }
            }
        }
        // A completion covers only requests of its own queue pair, so with several queue pairs each request is signaled.
        let alone = queue_pairs == 1 && matches!(verb, Verb::Write | Verb::Send);
        let interval = if alone { LATENCY_INTERVAL.into() } else { 1 };
        let (target, duration) = match parameters.end(point) {
            // The server answers every message.
            _ if role == Role::Server => (u64::MAX, None),
            End::Iterations(count) => (count, None),
            End::Duration(duration) => (u64::MAX, Some(duration)),
        };
        Ok(Self {
            point,
            layout,
            verb,
            atomic: parameters.atomic,
            role,
            events: parameters.events,
            queue_pairs,
            queue_pair: 0,
            sges: [end.endpoint.sge(from, layout.size)],
            remote: end.peer()?.at(to),
            inline,
            out_last: out + layout.size - 1,
            in_last: incoming + layout.size - 1,
            sent: 0,
            completed: 0,
            received: 0,
            may_send: role == Role::Client,
            target,
            interval,
            until_signal: interval,
            empty_polls: 0,
            duration,
            start: None,
            last_send: Instant::now(),
            finish: None,
            samples: Samples::new()?,
        })
    }

    const fn is_client(&self) -> bool {
        matches!(self.role, Role::Client)
    }

    /// Returns whether this end posts no requests: the peer accesses its memory.
    pub(super) const fn is_passive(&self) -> bool {
        !self.is_client() && matches!(self.verb, Verb::Read | Verb::Atomic)
    }

    /// Returns whether the last answer has arrived. It is always true at the server, which ends with the client.
    pub(super) const fn is_finished(&self) -> bool {
        !self.is_client() || self.finish.is_some()
    }

    /// Returns the number of messages sent on all queue pairs.
    pub(super) const fn messages(&self) -> u64 {
        self.sent
    }

    /// Ends the test: sends no more messages.
    pub(super) fn stop(&mut self) {
        self.target = self.target.min(self.sent);
        if self.is_client() && self.sent == self.received {
            self.finish = self.finish.or_else(|| Some(Instant::now()));
        }
    }

    /// Polls for the message that is due, and sends the next one. Returns whether there was progress.
    ///
    /// # Errors
    /// A request failed or cannot be posted.
    #[inline]
    pub(super) fn step<H: Host>(&mut self, end: &mut PerfEnd<H>) -> Result<bool> {
        if self.may_send {
            return self.send(end);
        }
        let arrived = match self.verb {
            Verb::Write => self.poll_write(end)?,
            Verb::Send => return self.poll_receive(end),
            Verb::Read | Verb::Atomic => self.poll_send_cq(end)?,
        };
        if arrived {
            self.count_received(end)?;
            return Ok(true);
        }
        self.wait_for_event(end)
    }

    #[cold]
    fn wait_for_event<H: Host>(&mut self, end: &mut PerfEnd<H>) -> Result<bool> {
        if self.events && !self.is_passive() { end.arm() } else { Ok(false) }
    }

    /// Counts the message that was due, and sends the next one unless it was the last.
    #[inline]
    fn count_received<H: Host>(&mut self, end: &mut PerfEnd<H>) -> Result<bool> {
        self.received += 1;
        if self.events {
            end.disarm();
        }
        if self.is_client() && self.received >= self.target {
            let now = Instant::now();
            // Sending a message measures the one before, so only a single message is measured here.
            if self.received == 1 {
                self.samples.record(self.latency(now));
            }
            self.finish = Some(now);
            return Ok(true);
        }
        self.may_send = true;
        self.send(end)
    }

    #[inline]
    fn latency(&self, now: Instant) -> Duration {
        let time = now.saturating_duration_since(self.last_send);
        if matches!(self.verb, Verb::Write | Verb::Send) { time / 2 } else { time }
    }

    /// Returns whether the last byte of the message that is due has arrived.
    #[inline]
    fn poll_write<H: Host>(&mut self, end: &mut PerfEnd<H>) -> Result<bool> {
        let mut last = [0];
        end.endpoint.region.read(self.in_last, &mut last)?;
        if last == [self.received.wrapping_add(1) as u8] {
            return Ok(true);
        }
        self.empty_polls = self.empty_polls.wrapping_add(1);
        if self.empty_polls.is_multiple_of(FAILURE_CHECK_STEPS) {
            self.poll_send_cq(end)?;
        }
        Ok(false)
    }

    fn poll_receive<H: Host>(&mut self, end: &mut PerfEnd<H>) -> Result<bool> {
        let mut completions = [Completion::EMPTY; 1];
        if end.endpoint.cq(RECV_CQ)?.poll(&mut completions).context("poll_cq")? == 0 {
            self.empty_polls = self.empty_polls.wrapping_add(1);
            if self.empty_polls.is_multiple_of(FAILURE_CHECK_STEPS) || self.events {
                self.poll_send_cq(end)?;
            }
            return self.wait_for_event(end);
        }
        let [completion] = &completions;
        if completion.status != WcStatus::Success {
            return Err(failed_completion(completion));
        }
        if completion.byte_len as usize != self.layout.area + self.layout.size {
            bail!("a message of {} bytes arrived", completion.byte_len);
        }
        self.count_received(end)?;
        // The answer is posted before the receive, because the time until the answer is measured.
        let (at, len) = self.layout.receive(0, 0);
        end.endpoint.post_receive(completion.wr_id as usize, completion.wr_id, at, len)?;
        Ok(true)
    }

    /// Polls the send completion queue. Returns whether there was a completion.
    fn poll_send_cq<H: Host>(&mut self, end: &mut PerfEnd<H>) -> Result<bool> {
        let mut completions = [Completion::EMPTY; BATCH];
        let taken = end.endpoint.cq(SEND_CQ)?.poll(&mut completions).context("poll_cq")?;
        for completion in completions.iter().take(taken) {
            if completion.status != WcStatus::Success {
                return Err(failed_completion(completion));
            }
            self.completed += self.interval;
        }
        Ok(taken != 0)
    }

    /// Sends the next message, if the queue has room. Returns whether it was sent.
    #[inline]
    fn send<H: Host>(&mut self, end: &mut PerfEnd<H>) -> Result<bool> {
        if self.sent >= self.target {
            self.stop();
            return Ok(false);
        }
        if self.sent - self.completed >= 3 * self.interval + self.queue_pairs as u64 && !self.poll_send_cq(end)? {
            return Ok(false);
        }
        let number = self.sent;
        self.sent += 1;
        let count = self.sent as u8;
        self.until_signal -= 1;
        let mut flags = SendFlags::empty();
        if self.until_signal == 0 {
            self.until_signal = self.interval;
            flags = SendFlags::SIGNALED;
        }
        let remote = self.remote;
        if matches!(self.verb, Verb::Write | Verb::Send) {
            match self.inline.last_mut() {
                Some(last) => *last = count,
                None => end.endpoint.region.write(self.out_last, &[count])?,
            }
        }
        let payload = if self.inline.is_empty() { Payload::Sges(&self.sges) } else { Payload::Inline(&self.inline) };
        let [sge] = self.sges;
        let to = end.destination(self.queue_pair);
        let op = match (self.verb, self.atomic) {
            (Verb::Write, _) => SendOp::Write { payload, remote },
            (Verb::Send, _) => match &to {
                Some(to) => SendOp::SendTo { to, payload },
                None => SendOp::Send { payload },
            },
            (Verb::Read, _) => SendOp::Read { sges: &self.sges, remote },
            (Verb::Atomic, Atomic::FetchAndAdd) => SendOp::FetchAdd { sge, remote, add: 1 },
            (Verb::Atomic, Atomic::CmpAndSwap) => {
                SendOp::CompareSwap { sge, remote, compare: number, swap: number.wrapping_add(1) }
            }
        };
        end.endpoint.qp(self.queue_pair)?.send().post(&SendWr { wr_id: self.sent, flags, op }).context("post of a request")?;
        // The message is posted: the code below does not add to the measured time.
        if self.is_client() {
            let now = Instant::now();
            match self.start {
                Some(start) => {
                    self.samples.record(self.latency(now));
                    if self.duration.is_some_and(|duration| now.saturating_duration_since(start) >= duration) {
                        self.target = self.sent;
                    }
                }
                None => self.start = Some(now),
            }
            self.last_send = now;
        }
        self.may_send = false;
        self.queue_pair += 1;
        if self.queue_pair == self.queue_pairs {
            self.queue_pair = 0;
        }
        if matches!(self.verb, Verb::Write | Verb::Send) && self.sent - self.completed >= self.interval {
            self.poll_send_cq(end)?;
        }
        Ok(true)
    }

    /// Returns whether all messages that the peer sent have arrived.
    pub(super) fn has_received(&self, sent: &[u64]) -> bool {
        !matches!(self.verb, Verb::Write | Verb::Send) || self.received >= sent.iter().sum()
    }

    /// Describes the outstanding request, for errors.
    pub(super) fn outstanding(&self) -> String {
        let what = if matches!(self.verb, Verb::Write | Verb::Send) { "message" } else { "completion" };
        format!("waiting for {what} {} ({} sent, {} complete)", self.received + 1, self.sent, self.completed)
    }

    /// Compares the received data with what the peer sent. `sent` has its number of messages.
    ///
    /// # Errors
    /// A byte, or the sum of the atomics, is wrong.
    pub(super) fn verify<H: Host>(&self, end: &mut PerfEnd<H>, seed: u64, sent: &[u64]) -> Result<()> {
        let (incoming, size) = (self.layout.rx(0, 0), self.layout.size);
        match self.verb {
            Verb::Atomic if self.is_client() => Ok(()),
            Verb::Atomic => {
                let (sum, wanted) = (end.endpoint.load(incoming)?, sent.iter().sum::<u64>());
                if sum != wanted {
                    bail!("the word is {sum} after the atomics, instead of {wanted}");
                }
                Ok(())
            }
            Verb::Read if !self.is_client() => Ok(()),
            Verb::Read if self.sent == 0 => Ok(()),
            Verb::Read => end.endpoint.verify(incoming, size, pattern(seed, self.role.other())),
            Verb::Write | Verb::Send => {
                if self.received == 0 {
                    return Ok(());
                }
                let bytes = end.endpoint.read(incoming, size)?;
                let wanted = pattern(seed, self.role.other());
                let (last, rest) = bytes.split_last().context("no bytes")?;
                if *last != self.received as u8 {
                    bail!("wrong data: the last byte is {last:#04x} instead of {:#04x}", self.received as u8);
                }
                match wanted.differs(rest) {
                    None => Ok(()),
                    Some((byte, want, have)) => {
                        bail!("wrong data: byte {byte} of {size} is {have:#04x} instead of {want:#04x}")
                    }
                }
            }
        }
    }

    /// Returns the measured values, if this end measured.
    pub(super) fn row(&self) -> Option<Row> {
        if !self.is_client() {
            return None;
        }
        let seconds = self.finish?.saturating_duration_since(self.start?).as_secs_f64();
        Some(Row { latency: self.samples.summary(), ..Row::bandwidth(self.point, self.received, seconds) })
    }
}

/// Returns the data that end `role` sends.
fn pattern(seed: u64, role: Role) -> Pattern {
    Pattern::new(seed, stream(role), 0)
}
