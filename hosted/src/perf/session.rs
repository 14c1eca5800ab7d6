//! One end's way through all measurements, step by step: agree, open and connect queue pairs, measure, compare, close.
//!
//! Both ends go the same way. A step never waits, so that one thread can step two ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::bandwidth::Bandwidth;
use super::end::PerfEnd;
use super::exchange::{Link, Message, PROTOCOL, VERSION, printable};
use super::latency::Latency;
use super::parameters::{Parameters, Point};
use super::progress_line::ProgressLine;
use super::report::Row;
use crate::device::{Device, Host, Role};
use crate::stop::Interrupted;

/// How long, by the host's clock, nothing may happen while something is outstanding.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(10);
/// How long bytes may take to appear that the peer says are written.
const VISIBLE_TIMEOUT: Duration = Duration::from_millis(200);
/// How long an end may take for the next message that is due outside a measurement, whether or not it says that it lives.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the client waits after Ctrl-C for the result of a measurement that it has ended.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// Steps in one turn.
const TURN: u32 = 64;
/// How far apart looks at anything but the device are to be, and steps between them.
const CHECK_INTERVAL: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(20));
const STEPS: (u32, u32) = (16, 1 << 20);

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Something; go on at once.
    Busy,
    /// Nothing: the device has to work first.
    Idle,
    /// Nothing, and only the peer's next message brings anything.
    Waiting,
    /// Everything is done.
    Finished,
}

/// What an end does in a measurement.
#[derive(Debug)]
enum Activity {
    Bandwidth(Box<Bandwidth>),
    Latency(Box<Latency>),
}

/// Calls the same on either.
macro_rules! each {
    ($activity:expr, $inner:ident => $call:expr) => {
        match $activity {
            Activity::Bandwidth($inner) => $call,
            Activity::Latency($inner) => $call,
        }
    };
}

/// How far the session is.
#[derive(Debug)]
enum Phase {
    /// Until the peer has said hello.
    Greet,
    /// The next measurement is to be opened.
    Open,
    /// Until the peer has sent its queue pairs.
    Connect,
    /// Until the peer is ready.
    Ready,
    /// Measuring.
    Run,
    /// Everything is sent; until everything has come and is compared.
    Compare { since: Instant },
    /// Until the peer has compared.
    Result,
    /// All is done.
    Finished,
}

/// One end of all measurements.
pub(super) struct Session<H: Host, L: Link> {
    role: Role,
    pub(super) link: L,
    pub(super) parameters: Option<Parameters>,
    points: Vec<Point>,
    /// Which of them is at work.
    at: usize,
    phase: Phase,
    /// When the phase began, or in a measurement when Ctrl-C ended it.
    pub(super) entered: Instant,
    end: Option<PerfEnd<H>>,
    activity: Option<Activity>,
    /// A message that came before it was due.
    early: Option<Message>,
    /// Messages that the peer sent on each queue pair, once it sends no more.
    peer_sent: Option<Vec<u64>>,
    /// Whether this end has said that it sends no more.
    is_done: bool,
    is_last: bool,
    stop: Arc<AtomicBool>,
    pub(super) rows: Vec<Row>,
    pub(super) progress: ProgressLine,
    steps: u32,
    until_look: u32,
    last_look: Instant,
    /// When, by the host's clock, something last happened.
    worked: Option<bareverbs::Instant>,
    has_worked: bool,
    /// Changes a byte before it is compared.
    #[cfg(test)]
    pub(super) spoil: Option<usize>,
}

impl<H: Host, L: Link> Session<H, L> {
    /// The end that decides.
    pub(super) fn client(link: L, parameters: Parameters, stop: Arc<AtomicBool>, progress: ProgressLine) -> Result<Self> {
        let hello =
            Message::Hello { protocol: PROTOCOL.into(), version: VERSION, parameters: Some(Box::new(parameters.clone())) };
        let mut session = Self::new(Role::Client, link, stop, progress);
        session.points = parameters.points();
        session.parameters = Some(parameters);
        session.link.send(&hello)?;
        Ok(session)
    }

    /// The end that does what the other decides.
    pub(super) fn server(link: L, stop: Arc<AtomicBool>, progress: ProgressLine) -> Self {
        Self::new(Role::Server, link, stop, progress)
    }

    fn new(role: Role, link: L, stop: Arc<AtomicBool>, progress: ProgressLine) -> Self {
        Self {
            role,
            link,
            parameters: None,
            points: Vec::new(),
            at: 0,
            phase: Phase::Greet,
            entered: Instant::now(),
            end: None,
            activity: None,
            early: None,
            peer_sent: None,
            is_done: false,
            is_last: false,
            stop,
            rows: Vec::new(),
            progress,
            steps: STEPS.0,
            until_look: STEPS.0,
            last_look: Instant::now(),
            worked: None,
            has_worked: false,
            #[cfg(test)]
            spoil: None,
        }
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.entered = Instant::now();
    }

    /// Whether the session ended before its last measurement because of Ctrl-C, here or at the client.
    pub(super) const fn is_interrupted(&self) -> bool {
        self.is_last
    }

    /// The phase, for tests that stop in it.
    #[cfg(test)]
    pub(super) fn phase_name(&self) -> String {
        format!("{:?}", self.phase)
    }

    /// Whether the measurement waits for events, and is at a place where the device has to do something.
    pub(super) fn waits_for_events(&self) -> bool {
        matches!(self.phase, Phase::Run | Phase::Compare { .. })
            && self.parameters.as_ref().is_some_and(|parameters| parameters.events)
    }

    /// Takes everything off the device after an error, so that its memory may go.
    pub(super) fn abandon(&mut self, device: &mut Device<H>) {
        if let Some(end) = self.end.take() {
            // The error before is the one that counts, and the teardown of the device ends what is left.
            let _ = end.destroy(device);
        }
    }

    /// Nothing happened for as long as a wait takes: looks after everything else soon.
    pub(super) fn look_soon(&mut self) {
        self.until_look = 1;
    }

    fn point(&self) -> Result<Point> {
        self.points.get(self.at).copied().context("no measurement")
    }

    fn parameters(&self) -> Result<&Parameters> {
        self.parameters.as_ref().context("no parameters")
    }

    /// A number that each measurement has for itself, for its data.
    fn run(&self) -> u64 {
        self.at as u64 + 1
    }

    /// Goes on. While it measures, it looks for new things `spins` times before it says that there are none.
    ///
    /// # Errors
    /// The device, the peer or the data; the error names the measurement, and the peer was notified.
    pub(super) fn step(&mut self, device: &mut Device<H>, spins: u32) -> Result<Turn> {
        let result = self.go_on(device, spins);
        let Err(error) = result else { return result };
        let during = matches!(self.phase, Phase::Run | Phase::Compare { .. } | Phase::Open | Phase::Connect);
        let error = match self.point() {
            Ok(point) if during && !error.is::<Interrupted>() && !error.is::<FromPeer>() => error.context(point),
            _ => error,
        };
        if error.is::<Interrupted>() && matches!(self.phase, Phase::Result) {
            // The peer has not compared the data: what was measured here is worth nothing yet.
            let point = self.point().ok();
            self.rows.pop_if(|row| Some(row.point()) == point);
        }
        if !error.is::<FromPeer>() {
            // If the peer cannot be notified, its timeout ends it.
            let _ = self.link.send(&Message::Failure { reason: format!("{error:#}") });
        }
        Err(error)
    }

    fn go_on(&mut self, device: &mut Device<H>, spins: u32) -> Result<Turn> {
        match self.phase {
            Phase::Run => self.measure(device, spins),
            Phase::Greet => self.greet(device),
            Phase::Open => self.open(device),
            Phase::Connect => self.connect(device),
            Phase::Ready => self.begin(device),
            Phase::Compare { since } => self.compare(device, since),
            Phase::Result => self.conclude(device),
            Phase::Finished => Ok(Turn::Finished),
        }
    }

    /// The peer's next message, if there is one. A failure of the peer is ours.
    fn receive(&mut self) -> Result<Option<Message>> {
        // The client ends a measurement cleanly, with its result.
        let is_measuring = matches!(self.phase, Phase::Run | Phase::Compare { .. } | Phase::Result);
        let is_stopped = self.stop.load(Ordering::Relaxed);
        if is_stopped && (self.role == Role::Server || !is_measuring) {
            return Err(Interrupted.into());
        }
        if let Some(message) = self.early.take() {
            return Ok(Some(message));
        }
        match self.link.receive()? {
            Some(Message::Failure { reason }) => return Err(FromPeer(reason).into()),
            Some(message) => return Ok(Some(message)),
            None => {}
        }
        let due = match self.phase {
            Phase::Greet => "hello",
            Phase::Connect => "connection",
            Phase::Ready => "ready",
            Phase::Result if is_stopped && self.entered.elapsed() > STOP_TIMEOUT => return Err(Interrupted.into()),
            Phase::Result => "result",
            // After Ctrl-C the peer has only to end what is in flight.
            Phase::Run if self.role == Role::Client && self.is_last && self.is_done => "done",
            Phase::Run | Phase::Compare { .. } | Phase::Open | Phase::Finished => return Ok(None),
        };
        if self.entered.elapsed() > MESSAGE_TIMEOUT {
            bail!("the peer has not sent {due:?} for {} s", MESSAGE_TIMEOUT.as_secs());
        }
        Ok(None)
    }

    fn greet(&mut self, device: &mut Device<H>) -> Result<Turn> {
        device.check()?;
        let Some(message) = self.receive()? else { return Ok(Turn::Waiting) };
        let Message::Hello { protocol, version, parameters } = message else { return Err(unexpected(&message, "hello")) };
        if protocol != PROTOCOL || version != VERSION {
            bail!(
                "the peer speaks {} version {version}, this is {PROTOCOL} version {VERSION}: use the same release at both ends",
                printable(&protocol)
            );
        }
        if self.role == Role::Server {
            let parameters = *parameters.context("the client did not say what to measure")?;
            if let Err(reason) = parameters.check() {
                bail!("the client asks for what cannot be: {reason}");
            }
            self.points = parameters.points();
            self.parameters = Some(parameters);
        }
        self.end = Some(PerfEnd::new(device, self.parameters()?, self.link.ends_here(), &self.stop)?);
        if self.role == Role::Server {
            self.link.send(&Message::Hello { protocol: PROTOCOL.into(), version: VERSION, parameters: None })?;
        }
        self.enter(Phase::Open);
        Ok(Turn::Busy)
    }

    fn open(&mut self, device: &mut Device<H>) -> Result<Turn> {
        let point = self.point()?;
        let parameters = self.parameters.as_ref().context("no parameters")?;
        let end = self.end.as_mut().context("no endpoint")?;
        let connection = end.open(device, parameters, point)?;
        self.link.send(&Message::Connection(connection))?;
        self.enter(Phase::Connect);
        Ok(Turn::Busy)
    }

    fn connect(&mut self, device: &mut Device<H>) -> Result<Turn> {
        device.check()?;
        let peer = match self.receive()? {
            None => return Ok(Turn::Waiting),
            Some(Message::Connection(peer)) => peer,
            Some(message) => return Err(unexpected(&message, "connection")),
        };
        let (point, run) = (self.point()?, self.run());
        let parameters = self.parameters.as_ref().context("no parameters")?;
        let end = self.end.as_mut().context("no endpoint")?;
        end.connect(device, parameters, point, &peer)?;
        self.activity = Some(if point.test.is_latency() {
            Activity::Latency(Box::new(Latency::new(end, device, parameters, point, self.role, run)?))
        } else {
            Activity::Bandwidth(Box::new(Bandwidth::new(end, device, parameters, point, self.role, run)?))
        });
        (self.peer_sent, self.is_done) = (None, false);
        self.link.send(&Message::Ready { point })?;
        self.enter(Phase::Ready);
        Ok(Turn::Busy)
    }

    fn begin(&mut self, device: &mut Device<H>) -> Result<Turn> {
        let wanted = self.point()?;
        match self.receive()? {
            None => {
                device.check()?;
                // A peer that was ready before us may send already: whatever comes is taken once we run.
                return Ok(Turn::Waiting);
            }
            Some(Message::Ready { point }) if point == wanted => {}
            Some(message) => return Err(unexpected(&message, "ready")),
        }
        self.progress.begin(wanted);
        (self.steps, self.until_look, self.last_look) = (STEPS.0, STEPS.0, Instant::now());
        (self.worked, self.has_worked) = (Some(device.host.now()), false);
        self.enter(Phase::Run);
        Ok(Turn::Busy)
    }

    /// Steps the activity, and looks after everything else now and then.
    fn measure(&mut self, device: &mut Device<H>, spins: u32) -> Result<Turn> {
        let (Some(activity), Some(end)) = (&mut self.activity, &mut self.end) else { bail!("no measurement") };
        let (mut empty, mut busy) = (0, false);
        for _ in 0..TURN.max(spins) {
            let worked = match activity {
                Activity::Latency(latency) => latency.step(end, device)?,
                Activity::Bandwidth(bandwidth) => bandwidth.step(end, device)?,
            };
            if worked {
                (empty, busy, self.has_worked) = (0, true, true);
            } else {
                empty += 1;
                if empty >= spins {
                    break;
                }
            }
        }
        let (is_passive, is_finished) = each!(activity, inner => (inner.is_passive(), inner.is_finished()));
        self.until_look = self.until_look.saturating_sub(1);
        // Who has nothing more to do than to hear from the peer listens every time.
        if is_passive || (is_finished && self.role == Role::Client) || self.until_look == 0 {
            self.look(device)?;
        }
        self.finish_run()?;
        Ok(match (busy, is_passive) {
            (true, _) => Turn::Busy,
            (false, true) => Turn::Waiting,
            (false, false) => Turn::Idle,
        })
    }

    /// Tells the peer once nothing more is sent, and goes on once neither sends.
    fn finish_run(&mut self) -> Result<()> {
        let Some(activity) = &self.activity else { return Ok(()) };
        // The server of a test in one direction sends answers at most: it ends when the client has ended.
        let has_ended =
            each!(activity, inner => inner.is_finished()) && (self.role == Role::Client || self.peer_sent.is_some());
        if has_ended && !self.is_done {
            let sent = match activity {
                Activity::Bandwidth(bandwidth) => bandwidth.sent(),
                Activity::Latency(latency) => vec![latency.messages()],
            };
            self.is_done = true;
            self.link.send(&Message::Done { sent, last: self.is_last })?;
        }
        if self.is_done && self.peer_sent.is_some() {
            self.enter(Phase::Compare { since: Instant::now() });
        }
        Ok(())
    }

    /// Everything but the device's queues: the peer, Ctrl-C, the device's health, the time.
    #[cold]
    fn look(&mut self, device: &mut Device<H>) -> Result<()> {
        let elapsed = self.last_look.elapsed();
        self.last_look = Instant::now();
        // Looks cost a system call, and latency: as few as will do.
        if elapsed < CHECK_INTERVAL.0 {
            self.steps = self.steps.saturating_mul(2).min(STEPS.1);
        } else if elapsed > CHECK_INTERVAL.1 {
            self.steps = (self.steps / 2).max(STEPS.0);
        }
        self.until_look = self.steps;
        device.check()?;
        let is_comparing = matches!(self.phase, Phase::Compare { .. });
        match self.receive()? {
            None => {}
            // The peer may have everything, and have compared it, while we still wait for what it sent.
            Some(message) if is_comparing => self.early = Some(message),
            Some(Message::Done { sent, last }) if self.peer_sent.is_none() => {
                let queue_pairs = self.parameters()?.queue_pairs.into();
                let wanted = if self.point()?.test.is_latency() { 1 } else { queue_pairs };
                if sent.len() != wanted {
                    bail!("the peer counts the messages of {} queue pairs instead of {wanted}", sent.len());
                }
                self.peer_sent = Some(sent);
                self.is_last |= last;
                self.touch(device);
            }
            Some(message) => return Err(unexpected(&message, "done")),
        }
        let is_stopped = self.stop.load(Ordering::Relaxed);
        let Some(activity) = &mut self.activity else { return Ok(()) };
        // Once the peer was notified that more follows, it is too late to call this measurement the last.
        if self.role == Role::Client && is_stopped && !self.is_last && !self.is_done {
            self.is_last = true;
            self.entered = Instant::now();
            each!(activity, inner => inner.stop());
        }
        // The other end of a test in both directions stops with it.
        if self.role == Role::Server && self.is_last {
            each!(activity, inner => inner.stop());
        }
        self.progress.show(each!(activity, inner => inner.messages()));
        let (is_passive, is_finished) = each!(activity, inner => (inner.is_passive(), inner.is_finished()));
        if self.has_worked || self.worked.is_none() {
            self.touch(device);
            return Ok(());
        }
        if let Some(end) = &self.end {
            end.check_queue_pairs(device)?;
        }
        let waited = self.worked.map_or(Duration::ZERO, |since| device.host.now().since(since));
        // An end that has nothing to do, or has done it, waits for the peer; the link says whether that lives.
        let expects = is_comparing || !is_passive && (!is_finished || self.role == Role::Server);
        if waited > COMPLETION_TIMEOUT && expects {
            let outstanding = each!(&self.activity.as_ref().context("no measurement")?, inner => inner.outstanding());
            bail!("no completion for {} s: {outstanding}", COMPLETION_TIMEOUT.as_secs());
        }
        Ok(())
    }

    /// Something happened.
    fn touch(&mut self, device: &Device<H>) {
        self.has_worked = false;
        self.worked = Some(device.host.now());
    }

    fn compare(&mut self, device: &mut Device<H>, since: Instant) -> Result<Turn> {
        let run = self.run();
        let (Some(activity), Some(end), Some(sent)) = (&mut self.activity, &mut self.end, &self.peer_sent) else {
            bail!("no measurement")
        };
        if !each!(&*activity, inner => inner.has_received(sent)) {
            if each!(&mut *activity, inner => inner.step(end, device))? {
                self.has_worked = true;
                return Ok(Turn::Busy);
            }
            self.until_look = self.until_look.saturating_sub(1);
            if self.until_look == 0 {
                // The peer says nothing more before our result, but it may fail.
                self.look(device)?;
            }
            return Ok(Turn::Idle);
        }
        #[cfg(test)]
        if let Some(at) = self.spoil.take() {
            use bareverbs::DmaBuffer as _;
            let mut byte = [0];
            assert!(end.endpoint.region.read(at, &mut byte).is_ok());
            assert!(end.endpoint.region.write(at, &byte.map(|byte: u8| !byte)).is_ok());
        }
        if let Err(error) = each!(&*activity, inner => inner.verify(end, run, sent)) {
            // What the sender's device calls complete may still be on its way into this memory.
            if since.elapsed() < VISIBLE_TIMEOUT {
                return Ok(Turn::Idle);
            }
            return Err(error);
        }
        let row = each!(&*activity, inner => inner.row());
        self.rows.extend(row.clone());
        self.link.send(&Message::Result { row })?;
        self.enter(Phase::Result);
        Ok(Turn::Busy)
    }

    fn conclude(&mut self, device: &mut Device<H>) -> Result<Turn> {
        device.check()?;
        let theirs = match self.receive()? {
            None => {
                // The peer may need our receives, or our answers, for what it still compares.
                if let (Some(activity), Some(end)) = (&mut self.activity, &mut self.end) {
                    let _ = each!(activity, inner => inner.step(end, device))?;
                }
                return Ok(Turn::Waiting);
            }
            Some(Message::Result { row }) => row,
            Some(message) => return Err(unexpected(&message, "result")),
        };
        let point = self.point()?;
        if let Some(theirs) = theirs {
            if theirs.point() != point || !theirs.is_sound() {
                bail!("the peer gave a result that cannot be: {theirs:?}");
            }
            match self.rows.last_mut() {
                Some(ours)
                    if ours.point() == point
                        && self.activity.as_ref().is_some_and(|activity| each!(activity, inner => inner.row()).is_some()) =>
                {
                    ours.add(&theirs)
                }
                _ => self.rows.push(theirs),
            }
        }
        self.progress.end();
        self.activity = None;
        if let Some(end) = &mut self.end {
            end.close(device)?;
        }
        self.at += 1;
        if self.at == self.points.len() || self.is_last {
            if let Some(end) = self.end.take() {
                end.destroy(device)?;
            }
            // Ctrl-C in the last measurement after its end interrupts nothing.
            self.enter(Phase::Finished);
            return Ok(Turn::Finished);
        }
        self.enter(Phase::Open);
        Ok(Turn::Busy)
    }
}

/// The peer's reason to give up.
#[derive(Clone, Debug)]
struct FromPeer(String);

impl std::fmt::Display for FromPeer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the peer failed: {}", printable(&self.0))
    }
}

impl std::error::Error for FromPeer {}

fn unexpected(message: &Message, wanted: &str) -> anyhow::Error {
    anyhow::anyhow!("the peer said {:?} where {wanted:?} was due", message.name())
}
