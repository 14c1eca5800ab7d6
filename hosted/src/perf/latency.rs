//! Latency: one message at a time.
//!
//! With write and send both ends send: the client's message is answered by the server's, and half the time between two messages of
//! the client is the latency. A write is seen by polling its last byte, which counts. With read and atomics the client alone sends,
//! and the time from request to completion is the latency.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bareverbs::{Completion, CqHandle, DmaBuffer as _, Payload, QpHandle, Remote, SendFlags, SendOp, SendWr, Sge, WcStatus};

use super::buffer_layout::BufferLayout;
use super::end::{LATENCY_INTERVAL, PerfEnd, refused, stream};
use super::parameters::{Atomic, End, Parameters, Point, Verb};
use super::report::Row;
use super::statistics::Samples;
use crate::data_pattern::Pattern;
use crate::device::{Device, Host, Role};

/// Completions taken at a time: there are hardly ever more.
const BATCH: usize = 4;
/// Looks at the memory between two looks for a failed request.
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
    qps: Vec<QpHandle>,
    /// Which of them is next.
    queue_pair: usize,
    send_cq: CqHandle,
    recv_cq: CqHandle,
    sges: [Sge; 1],
    remote: Remote,
    /// The message, if it goes inline.
    inline: Vec<u8>,
    /// Offsets of the last byte that is sent, and of the last that comes.
    out_last: usize,
    in_last: usize,
    sent: u64,
    completed: u64,
    received: u64,
    /// Whether it is this end's turn to send.
    turn: bool,
    target: u64,
    /// Messages between two that ask for a completion, and up to the next that does.
    interval: u64,
    until_signal: u64,
    empty: u32,
    duration: Option<Duration>,
    start: Option<Instant>,
    /// When the last message was sent.
    stamp: Instant,
    finish: Option<Instant>,
    samples: Samples,
}

impl Latency {
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
        let (out, incoming) = (layout.tx(0, 0), layout.rx(0, 0));
        if verb == Verb::Atomic {
            end.endpoint.clear(out, layout.size)?;
        } else {
            end.endpoint.fill(out, layout.size, pattern(run, role))?;
        }
        end.endpoint.clear(incoming, layout.size)?;
        let queues = end.queues()?;
        let (send_cq, recv_cq, qps, longest) = (queues.send_cq, queues.recv_cq, end.endpoint.qps().to_vec(), queues.inline);
        let inline = if point.size <= longest { end.endpoint.read(out, layout.size)?.to_vec() } else { Vec::new() };
        // What is read goes where messages come in, and comes from where messages are sent.
        let (from, to) = if verb == Verb::Read { (incoming, out) } else { (out, incoming) };
        if verb == Verb::Send {
            for (index, &qp) in qps.iter().enumerate() {
                for _ in 0..parameters.rx_depth {
                    end.endpoint.post_receive(device, qp, index as u64, incoming, layout.size)?;
                }
            }
        }
        // On several queue pairs each request asks, for a completion covers only those before it on the same one.
        let alone = qps.len() == 1 && matches!(verb, Verb::Write | Verb::Send);
        let interval = if alone { LATENCY_INTERVAL.into() } else { 1 };
        let (target, duration) = match parameters.end(point) {
            // The server answers whatever comes.
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
            qps,
            queue_pair: 0,
            send_cq,
            recv_cq,
            sges: [end.endpoint.sge(from, layout.size)],
            remote: end.peer()?.at(to),
            inline,
            out_last: out + layout.size - 1,
            in_last: incoming + layout.size - 1,
            sent: 0,
            completed: 0,
            received: 0,
            turn: role == Role::Client,
            target,
            interval,
            until_signal: interval,
            empty: 0,
            duration,
            start: None,
            stamp: Instant::now(),
            finish: None,
            samples: Samples::new()?,
        })
    }

    const fn is_client(&self) -> bool {
        matches!(self.role, Role::Client)
    }

    /// Whether this end has nothing to do but let the peer work on its memory.
    pub(super) const fn is_passive(&self) -> bool {
        !self.is_client() && matches!(self.verb, Verb::Read | Verb::Atomic)
    }

    /// Whether the last answer has come. The server has no end of its own.
    pub(super) const fn is_finished(&self) -> bool {
        !self.is_client() || self.finish.is_some()
    }

    /// Messages sent on all queue pairs.
    pub(super) const fn messages(&self) -> u64 {
        self.sent
    }

    /// Sends nothing more.
    pub(super) fn stop(&mut self) {
        self.target = self.target.min(self.sent);
        if self.is_client() && self.sent == self.received {
            self.finish = self.finish.or_else(|| Some(Instant::now()));
        }
    }

    /// Looks for the message that is due, and sends the next one; whether anything happened.
    #[inline]
    pub(super) fn step<H: Host>(&mut self, end: &mut PerfEnd<H>, device: &mut Device<H>) -> Result<bool> {
        if self.turn {
            return self.send(end, device);
        }
        let came = match self.verb {
            Verb::Write => self.poll_write(end, device)?,
            Verb::Send => return self.poll_receive(end, device),
            Verb::Read | Verb::Atomic => self.take_sends(device)?,
        };
        if came {
            self.take_message(end, device)?;
            return Ok(true);
        }
        self.wait_for_event(end, device)
    }

    #[cold]
    fn wait_for_event<H: Host>(&mut self, end: &mut PerfEnd<H>, device: &mut Device<H>) -> Result<bool> {
        if self.events && !self.is_passive() { end.arm(device) } else { Ok(false) }
    }

    /// The message that was due has come: sends the next one, unless it was the last.
    #[inline]
    fn take_message<H: Host>(&mut self, end: &mut PerfEnd<H>, device: &mut Device<H>) -> Result<bool> {
        self.received += 1;
        if self.events {
            end.disarm();
        }
        if self.is_client() && self.received >= self.target {
            let now = Instant::now();
            // The time between two messages was measured for all but the last.
            if self.received == 1 {
                self.samples.record(self.latency(now));
            }
            self.finish = Some(now);
            return Ok(true);
        }
        self.turn = true;
        self.send(end, device)
    }

    #[inline]
    fn latency(&self, now: Instant) -> Duration {
        let time = now.saturating_duration_since(self.stamp);
        if matches!(self.verb, Verb::Write | Verb::Send) { time / 2 } else { time }
    }

    /// Whether the last byte of the message that is due has come.
    #[inline]
    fn poll_write<H: Host>(&mut self, end: &PerfEnd<H>, device: &mut Device<H>) -> Result<bool> {
        let mut last = [0];
        end.endpoint.region.read(self.in_last, &mut last)?;
        if last == [self.received.wrapping_add(1) as u8] {
            return Ok(true);
        }
        self.empty = self.empty.wrapping_add(1);
        if self.empty.is_multiple_of(FAILURE_CHECK_STEPS) {
            self.take_sends(device)?;
        }
        Ok(false)
    }

    fn poll_receive<H: Host>(&mut self, end: &mut PerfEnd<H>, device: &mut Device<H>) -> Result<bool> {
        let mut completions = [Completion::EMPTY; 1];
        if device.verbs.poll_cq(self.recv_cq, &mut completions).context("poll_cq")? == 0 {
            self.empty = self.empty.wrapping_add(1);
            if self.empty.is_multiple_of(FAILURE_CHECK_STEPS) || self.events {
                self.take_sends(device)?;
            }
            return self.wait_for_event(end, device);
        }
        let [completion] = &completions;
        if completion.status != WcStatus::Success {
            return Err(refused(completion));
        }
        if completion.byte_len as usize != self.layout.size {
            bail!("a message of {} bytes came", completion.byte_len);
        }
        self.take_message(end, device)?;
        // The answer is on its way before the receive goes back.
        let at = self.layout.rx(0, 0);
        end.endpoint.post_receive(device, completion.qp, completion.wr_id, at, self.layout.size)?;
        Ok(true)
    }

    /// Takes completions of sends; whether there was one.
    fn take_sends<H: Host>(&mut self, device: &mut Device<H>) -> Result<bool> {
        let mut completions = [Completion::EMPTY; BATCH];
        let taken = device.verbs.poll_cq(self.send_cq, &mut completions).context("poll_cq")?;
        for completion in completions.iter().take(taken) {
            if completion.status != WcStatus::Success {
                return Err(refused(completion));
            }
            self.completed += self.interval;
        }
        Ok(taken != 0)
    }

    /// Sends the next message, if the queue has room for it.
    #[inline]
    fn send<H: Host>(&mut self, end: &mut PerfEnd<H>, device: &mut Device<H>) -> Result<bool> {
        let Some(&qp) = self.qps.get(self.queue_pair) else { bail!("no queue pair") };
        if self.sent >= self.target {
            self.stop();
            return Ok(false);
        }
        if self.sent - self.completed >= 3 * self.interval + self.qps.len() as u64 && !self.take_sends(device)? {
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
        let op = match (self.verb, self.atomic) {
            (Verb::Write, _) => SendOp::Write { payload, remote },
            (Verb::Send, _) => SendOp::Send { payload },
            (Verb::Read, _) => SendOp::Read { sges: &self.sges, remote },
            (Verb::Atomic, Atomic::FetchAndAdd) => SendOp::FetchAdd { sge, remote, add: 1 },
            (Verb::Atomic, Atomic::CmpAndSwap) => {
                SendOp::CompareSwap { sge, remote, compare: number, swap: number.wrapping_add(1) }
            }
        };
        device.verbs.post_send(qp, &SendWr { wr_id: self.sent, flags, op }).context("post_send")?;
        // From here on the message is on its way: nothing below lengthens what is measured.
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
            self.stamp = now;
        }
        self.turn = false;
        self.queue_pair += 1;
        if self.queue_pair == self.qps.len() {
            self.queue_pair = 0;
        }
        if matches!(self.verb, Verb::Write | Verb::Send) && self.sent - self.completed >= self.interval {
            self.take_sends(device)?;
        }
        Ok(true)
    }

    /// Whether all that the peer sent has come.
    pub(super) fn has_received(&self, sent: &[u64]) -> bool {
        !matches!(self.verb, Verb::Write | Verb::Send) || self.received >= sent.iter().sum()
    }

    /// What is outstanding, for errors.
    pub(super) fn outstanding(&self) -> String {
        let what = if matches!(self.verb, Verb::Write | Verb::Send) { "message" } else { "completion" };
        format!("waiting for {what} {} ({} sent, {} complete)", self.received + 1, self.sent, self.completed)
    }

    /// Compares what came with what the peer sent; `sent` are its messages.
    pub(super) fn verify<H: Host>(&self, end: &mut PerfEnd<H>, run: u64, sent: &[u64]) -> Result<()> {
        let (incoming, size) = (self.layout.rx(0, 0), self.layout.size);
        match self.verb {
            Verb::Atomic if self.is_client() => Ok(()),
            Verb::Atomic => {
                let (sum, wanted) = (end.endpoint.load(incoming)?, sent.iter().sum::<u64>());
                if sum != wanted {
                    bail!("the atomics made {sum} of the word instead of {wanted}");
                }
                Ok(())
            }
            Verb::Read if !self.is_client() => Ok(()),
            Verb::Read if self.sent == 0 => Ok(()),
            Verb::Read => end.endpoint.verify(incoming, size, pattern(run, self.role.other())),
            Verb::Write | Verb::Send => {
                if self.received == 0 {
                    return Ok(());
                }
                let bytes = end.endpoint.read(incoming, size)?;
                let wanted = pattern(run, self.role.other());
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

    /// What was measured, if this end measured.
    pub(super) fn row(&self) -> Option<Row> {
        if !self.is_client() {
            return None;
        }
        let seconds = self.finish?.saturating_duration_since(self.start?).as_secs_f64();
        Some(Row { latency: self.samples.summary(), ..Row::bandwidth(self.point, self.received, seconds) })
    }
}

/// What end `role` sends.
fn pattern(run: u64, role: Role) -> Pattern {
    Pattern::new(run, stream(role), 0)
}
