//! One end of a series of measurements, as a state machine ([`Phase`]): agree on the parameters, connect queue pairs, measure,
//! verify the data, close.
//!
//! Both ends run the same state machine. A step never blocks, so that one thread can run two ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::bandwidth::Bandwidth;
use super::end::{EndPath, PerfEnd};
use super::exchange::{Link, Message, PROTOCOL, VERSION, printable};
use super::latency::Latency;
use super::parameters::{Parameters, Point};
use super::progress_line::ProgressLine;
use super::report::Row;
use crate::device::{Device, Host, Role};
use crate::stop::Interrupted;

/// Maximum time, by the host's clock, without a completion while requests are outstanding.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time until bytes are visible that the peer has reported as written.
const VISIBLE_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum time for a message that is due outside a measurement. Keepalive messages do not extend it.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time that the client waits after Ctrl-C for the result of the measurement that it has ended.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// Steps of the activity in one step of the session, at least.
const ACTIVITY_STEPS: u32 = 64;
/// Bounds of the time between two checks of everything but the completion queues.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(2);
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Bounds of the number of steps between two checks.
const MIN_CHECK_STEPS: u32 = 16;
const MAX_CHECK_STEPS: u32 = 1 << 20;

/// Outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The session advanced; the next step may do so too.
    Progressed,
    /// Nothing to do until the device completes a request.
    Idle,
    /// Nothing to do until the peer sends its next message.
    AwaitingPeer,
    /// All measurements are done.
    Finished,
}

/// The work of an end in one measurement.
#[derive(Debug)]
enum Activity {
    Bandwidth(Box<Bandwidth>),
    Latency(Box<Latency>),
}

/// Evaluates an expression on the bandwidth or latency test of an activity.
macro_rules! dispatch {
    ($activity:expr, $inner:ident => $call:expr) => {
        match $activity {
            Activity::Bandwidth($inner) => $call,
            Activity::Latency($inner) => $call,
        }
    };
}

/// State of the session.
#[derive(Debug)]
enum Phase {
    /// Waits for the peer's `hello`.
    Hello,
    /// Creates the queues of the next measurement.
    Open,
    /// Waits for the peer's `connection`.
    Connect,
    /// Waits for the peer's `ready`.
    Ready,
    /// Measures.
    Measure,
    /// Neither end sends any more: waits for outstanding messages, then verifies the data.
    Verify { since: Instant },
    /// Waits for the peer's `result`.
    AwaitResult,
    /// All measurements are done.
    Finished,
}

/// One end of a series of measurements.
pub(super) struct Session<H: Host> {
    role: Role,
    /// Boxed, so that the session is compiled once for all links. It is used at each check, not at each step.
    pub(super) link: Box<dyn Link>,
    pub(super) parameters: Option<Parameters>,
    points: Vec<Point>,
    /// Index of the current measurement in `points`.
    current: usize,
    phase: Phase,
    /// Start of the phase; in a measurement that Ctrl-C ended, the time of its end.
    pub(super) entered: Instant,
    path: EndPath,
    end: Option<PerfEnd<H>>,
    activity: Option<Activity>,
    /// A message that arrived a phase before it is due.
    early_message: Option<Message>,
    /// Messages that the peer sent on each queue pair, known once its `done` has arrived.
    peer_sent: Option<Vec<u64>>,
    /// Whether this end has sent `done`.
    is_done: bool,
    /// Whether Ctrl-C, at either end, makes the current measurement the last.
    is_last: bool,
    stop: Arc<AtomicBool>,
    pub(super) rows: Vec<Row>,
    pub(super) progress: ProgressLine,
    /// Steps between two checks, adapted to the time that they take.
    check_steps: u32,
    steps_to_check: u32,
    last_check: Instant,
    /// Time of the last progress, by the host's clock.
    last_progress: Option<bareverbs::platform::Instant>,
    /// Whether there was progress since `last_progress` was set.
    has_progressed: bool,
    /// Offset of a byte to invert before the data is verified.
    #[cfg(test)]
    pub(super) flip_byte: Option<usize>,
}

impl<H: Host> Session<H> {
    /// Creates the end that chooses the measurements, and sends its `hello`.
    ///
    /// # Errors
    /// The message cannot be sent.
    pub(super) fn client(
        link: impl Link + 'static,
        parameters: Parameters,
        path: EndPath,
        stop: Arc<AtomicBool>,
        progress: ProgressLine,
    ) -> Result<Self> {
        let hello =
            Message::Hello { protocol: PROTOCOL.into(), version: VERSION, parameters: Some(Box::new(parameters.clone())) };
        let mut session = Self::new(Role::Client, Box::new(link), path, stop, progress);
        session.points = parameters.points();
        session.parameters = Some(parameters);
        session.link.send(&hello)?;
        Ok(session)
    }

    /// Creates the end that receives the measurements from the client.
    pub(super) fn server(link: impl Link + 'static, path: EndPath, stop: Arc<AtomicBool>, progress: ProgressLine) -> Self {
        Self::new(Role::Server, Box::new(link), path, stop, progress)
    }

    fn new(role: Role, link: Box<dyn Link>, path: EndPath, stop: Arc<AtomicBool>, progress: ProgressLine) -> Self {
        Self {
            role,
            link,
            parameters: None,
            points: Vec::new(),
            current: 0,
            phase: Phase::Hello,
            entered: Instant::now(),
            path,
            end: None,
            activity: None,
            early_message: None,
            peer_sent: None,
            is_done: false,
            is_last: false,
            stop,
            rows: Vec::new(),
            progress,
            check_steps: MIN_CHECK_STEPS,
            steps_to_check: MIN_CHECK_STEPS,
            last_check: Instant::now(),
            last_progress: None,
            has_progressed: false,
            #[cfg(test)]
            flip_byte: None,
        }
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.entered = Instant::now();
    }

    /// Returns whether Ctrl-C, here or at the client, ended the session before its last measurement.
    pub(super) const fn is_interrupted(&self) -> bool {
        self.is_last
    }

    /// Returns the phase, for tests that stop in it.
    #[cfg(test)]
    pub(super) fn phase_name(&self) -> String {
        format!("{:?}", self.phase)
    }

    /// Returns whether the session waits for completion events of the device.
    pub(super) fn waits_for_events(&self) -> bool {
        matches!(self.phase, Phase::Measure | Phase::Verify { .. })
            && self.parameters.as_ref().is_some_and(|parameters| parameters.events)
    }

    /// Destroys the verbs objects of a session that failed, so that its memory can be freed.
    pub(super) fn abandon(&mut self, device: &mut Device<H>) {
        if let Some(end) = self.end.take() {
            // The first error is the one to report; the teardown of the device destroys the rest.
            let _ = end.destroy(device);
        }
    }

    /// Makes the next step check everything but the completion queues, for example after a wait that timed out.
    pub(super) fn check_soon(&mut self) {
        self.steps_to_check = 1;
    }

    fn point(&self) -> Result<Point> {
        self.points.get(self.current).copied().context("no measurement")
    }

    fn parameters(&self) -> Result<&Parameters> {
        self.parameters.as_ref().context("no parameters")
    }

    /// Returns the seed of the current measurement's data.
    fn seed(&self) -> u64 {
        self.current as u64 + 1
    }

    /// Advances the session without blocking. In a measurement it returns [`Step::Idle`] after `polls` polls without a
    /// completion.
    ///
    /// # Errors
    /// The device or the peer failed, or data is wrong. The error names the measurement, and the peer was notified.
    pub(super) fn step(&mut self, device: &mut Device<H>, polls: u32) -> Result<Step> {
        let result = self.advance(device, polls);
        let Err(error) = result else { return result };
        let has_point = matches!(self.phase, Phase::Measure | Phase::Verify { .. } | Phase::Open | Phase::Connect);
        let error = match self.point() {
            Ok(point) if has_point && !error.is::<Interrupted>() && !error.is::<PeerFailure>() => error.context(point),
            _ => error,
        };
        if error.is::<Interrupted>() && matches!(self.phase, Phase::AwaitResult) {
            // The peer has not verified its data, so the measurement does not count.
            let point = self.point().ok();
            self.rows.pop_if(|row| Some(row.point()) == point);
        }
        if !error.is::<PeerFailure>() {
            // A peer that cannot be notified ends by its own timeout.
            let _ = self.link.send(&Message::Failure { reason: format!("{error:#}") });
        }
        Err(error)
    }

    fn advance(&mut self, device: &mut Device<H>, polls: u32) -> Result<Step> {
        match self.phase {
            Phase::Measure => self.measure(device, polls),
            Phase::Hello => self.receive_hello(device),
            Phase::Open => self.open(device),
            Phase::Connect => self.connect(device),
            Phase::Ready => self.start(device),
            Phase::Verify { since } => self.verify(device, since),
            Phase::AwaitResult => self.conclude(device),
            Phase::Finished => Ok(Step::Finished),
        }
    }

    /// Returns the peer's next message, if one has arrived.
    ///
    /// # Errors
    /// The peer reported a failure, or its message is overdue. [`Interrupted`] after Ctrl-C.
    fn receive(&mut self) -> Result<Option<Message>> {
        // After Ctrl-C the client ends a measurement in progress with its result.
        let is_measuring = matches!(self.phase, Phase::Measure | Phase::Verify { .. } | Phase::AwaitResult);
        let is_stopped = self.stop.load(Ordering::Relaxed);
        if is_stopped && (self.role == Role::Server || !is_measuring) {
            return Err(Interrupted.into());
        }
        if let Some(message) = self.early_message.take() {
            return Ok(Some(message));
        }
        match self.link.receive()? {
            Some(Message::Failure { reason }) => return Err(PeerFailure(reason).into()),
            Some(message) => return Ok(Some(message)),
            None => {}
        }
        let due = match self.phase {
            Phase::Hello => "hello",
            Phase::Connect => "connection",
            Phase::Ready => "ready",
            Phase::AwaitResult if is_stopped && self.entered.elapsed() > STOP_TIMEOUT => return Err(Interrupted.into()),
            Phase::AwaitResult => "result",
            // After Ctrl-C the peer only completes the requests in flight.
            Phase::Measure if self.role == Role::Client && self.is_last && self.is_done => "done",
            Phase::Measure | Phase::Verify { .. } | Phase::Open | Phase::Finished => return Ok(None),
        };
        if self.entered.elapsed() > MESSAGE_TIMEOUT {
            bail!("the peer has not sent {due:?} for {} s", MESSAGE_TIMEOUT.as_secs());
        }
        Ok(None)
    }

    fn receive_hello(&mut self, device: &mut Device<H>) -> Result<Step> {
        device.check()?;
        let Some(message) = self.receive()? else { return Ok(Step::AwaitingPeer) };
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
                bail!("the client's parameters are invalid: {reason}");
            }
            self.points = parameters.points();
            self.parameters = Some(parameters);
        }
        self.end = Some(PerfEnd::new(device, self.parameters()?, self.path, self.link.local_ends(), &self.stop)?);
        if self.role == Role::Server {
            self.link.send(&Message::Hello { protocol: PROTOCOL.into(), version: VERSION, parameters: None })?;
        }
        self.enter(Phase::Open);
        Ok(Step::Progressed)
    }

    fn open(&mut self, device: &mut Device<H>) -> Result<Step> {
        let point = self.point()?;
        let parameters = self.parameters.as_ref().context("no parameters")?;
        let end = self.end.as_mut().context("no endpoint")?;
        let connection = end.open(device, parameters, point)?;
        self.link.send(&Message::Connection(connection))?;
        self.enter(Phase::Connect);
        Ok(Step::Progressed)
    }

    fn connect(&mut self, device: &mut Device<H>) -> Result<Step> {
        device.check()?;
        let peer = match self.receive()? {
            None => return Ok(Step::AwaitingPeer),
            Some(Message::Connection(peer)) => peer,
            Some(message) => return Err(unexpected(&message, "connection")),
        };
        let (point, seed) = (self.point()?, self.seed());
        let parameters = self.parameters.as_ref().context("no parameters")?;
        let end = self.end.as_mut().context("no endpoint")?;
        end.connect(device, parameters, point, &peer)?;
        self.activity = Some(if point.test.is_latency() {
            Activity::Latency(Box::new(Latency::new(end, parameters, point, self.role, seed)?))
        } else {
            Activity::Bandwidth(Box::new(Bandwidth::new(end, parameters, point, self.role, seed)?))
        });
        (self.peer_sent, self.is_done) = (None, false);
        self.link.send(&Message::Ready { point })?;
        self.enter(Phase::Ready);
        Ok(Step::Progressed)
    }

    /// Starts the measurement once the peer is ready.
    fn start(&mut self, device: &mut Device<H>) -> Result<Step> {
        let wanted = self.point()?;
        match self.receive()? {
            None => {
                device.check()?;
                // A peer that was ready first may send already. Its messages are polled once this end is ready too.
                return Ok(Step::AwaitingPeer);
            }
            Some(Message::Ready { point }) if point == wanted => {}
            Some(message) => return Err(unexpected(&message, "ready")),
        }
        self.progress.begin(wanted);
        (self.check_steps, self.steps_to_check, self.last_check) = (MIN_CHECK_STEPS, MIN_CHECK_STEPS, Instant::now());
        (self.last_progress, self.has_progressed) = (Some(device.host.now()), false);
        self.enter(Phase::Measure);
        Ok(Step::Progressed)
    }

    /// Steps the activity, and checks everything else at intervals.
    fn measure(&mut self, device: &mut Device<H>, polls: u32) -> Result<Step> {
        let (Some(activity), Some(end)) = (&mut self.activity, &mut self.end) else { bail!("no measurement") };
        let (mut empty_polls, mut progressed) = (0, false);
        for _ in 0..ACTIVITY_STEPS.max(polls) {
            let step_progressed = match activity {
                Activity::Latency(latency) => latency.step(end)?,
                Activity::Bandwidth(bandwidth) => bandwidth.step(end)?,
            };
            if step_progressed {
                (empty_polls, progressed, self.has_progressed) = (0, true, true);
            } else {
                empty_polls += 1;
                if empty_polls >= polls {
                    break;
                }
            }
        }
        let (is_passive, is_finished) = dispatch!(activity, inner => (inner.is_passive(), inner.is_finished()));
        self.steps_to_check = self.steps_to_check.saturating_sub(1);
        // An end without work of its own only waits for the peer's message, so it checks each time.
        if is_passive || (is_finished && self.role == Role::Client) || self.steps_to_check == 0 {
            self.check(device)?;
        }
        self.finish_measurement()?;
        Ok(match (progressed, is_passive) {
            (true, _) => Step::Progressed,
            (false, true) => Step::AwaitingPeer,
            (false, false) => Step::Idle,
        })
    }

    /// Sends `done` once this end has sent everything, and enters [`Phase::Verify`] once both ends have.
    fn finish_measurement(&mut self) -> Result<()> {
        let Some(activity) = &self.activity else { return Ok(()) };
        // The server of a test in one direction only answers, so it ends after the client.
        let has_ended =
            dispatch!(activity, inner => inner.is_finished()) && (self.role == Role::Client || self.peer_sent.is_some());
        if has_ended && !self.is_done {
            let sent = match activity {
                Activity::Bandwidth(bandwidth) => bandwidth.sent(),
                Activity::Latency(latency) => vec![latency.messages()],
            };
            self.is_done = true;
            self.link.send(&Message::Done { sent, last: self.is_last })?;
        }
        if self.is_done && self.peer_sent.is_some() {
            self.enter(Phase::Verify { since: Instant::now() });
        }
        Ok(())
    }

    /// Checks everything but the completion queues: the peer, Ctrl-C, the health of the device, the timeouts.
    #[cold]
    fn check(&mut self, device: &mut Device<H>) -> Result<()> {
        let elapsed = self.last_check.elapsed();
        self.last_check = Instant::now();
        // A check costs a system call and adds latency, so checks are as rare as the bounds allow.
        if elapsed < MIN_CHECK_INTERVAL {
            self.check_steps = self.check_steps.saturating_mul(2).min(MAX_CHECK_STEPS);
        } else if elapsed > MAX_CHECK_INTERVAL {
            self.check_steps = (self.check_steps / 2).max(MIN_CHECK_STEPS);
        }
        self.steps_to_check = self.check_steps;
        device.check()?;
        let is_verifying = matches!(self.phase, Phase::Verify { .. });
        match self.receive()? {
            None => {}
            // The peer may have verified its data while this end still waits for messages.
            Some(message) if is_verifying => self.early_message = Some(message),
            Some(Message::Done { sent, last }) if self.peer_sent.is_none() => {
                let queue_pairs = self.parameters()?.queue_pairs.into();
                let wanted = if self.point()?.test.is_latency() { 1 } else { queue_pairs };
                if sent.len() != wanted {
                    bail!("the peer counts the messages of {} queue pairs instead of {wanted}", sent.len());
                }
                self.peer_sent = Some(sent);
                self.is_last |= last;
                self.record_progress(device);
            }
            Some(message) => return Err(unexpected(&message, "done")),
        }
        let is_stopped = self.stop.load(Ordering::Relaxed);
        let Some(activity) = &mut self.activity else { return Ok(()) };
        // After `done` without `last`, the peer expects another measurement, so this one cannot be the last.
        if self.role == Role::Client && is_stopped && !self.is_last && !self.is_done {
            self.is_last = true;
            self.entered = Instant::now();
            dispatch!(activity, inner => inner.stop());
        }
        // In a bidirectional test the server stops too.
        if self.role == Role::Server && self.is_last {
            dispatch!(activity, inner => inner.stop());
        }
        self.progress.show(dispatch!(activity, inner => inner.messages()));
        let (is_passive, is_finished) = dispatch!(activity, inner => (inner.is_passive(), inner.is_finished()));
        if self.has_progressed || self.last_progress.is_none() {
            self.record_progress(device);
            return Ok(());
        }
        if let Some(end) = &mut self.end {
            end.check_queue_pairs(device)?;
        }
        let waited = self.last_progress.map_or(Duration::ZERO, |since| device.host.now().since(since));
        // A passive or finished end waits for the peer alone, whose keepalive messages the link checks.
        let awaits_device = is_verifying || !is_passive && (!is_finished || self.role == Role::Server);
        if waited > COMPLETION_TIMEOUT && awaits_device {
            let outstanding = dispatch!(&self.activity.as_ref().context("no measurement")?, inner => inner.outstanding());
            bail!("no completion for {} s: {outstanding}", COMPLETION_TIMEOUT.as_secs());
        }
        Ok(())
    }

    /// Restarts the completion timeout.
    fn record_progress(&mut self, device: &Device<H>) {
        self.has_progressed = false;
        self.last_progress = Some(device.host.now());
    }

    /// Verifies the data once all messages have arrived, and sends `result`.
    fn verify(&mut self, device: &mut Device<H>, since: Instant) -> Result<Step> {
        let seed = self.seed();
        let (Some(activity), Some(end), Some(sent)) = (&mut self.activity, &mut self.end, &self.peer_sent) else {
            bail!("no measurement")
        };
        if !dispatch!(&*activity, inner => inner.has_received(sent)) {
            if dispatch!(&mut *activity, inner => inner.step(end))? {
                self.has_progressed = true;
                return Ok(Step::Progressed);
            }
            self.steps_to_check = self.steps_to_check.saturating_sub(1);
            if self.steps_to_check == 0 {
                // The peer sends nothing before it has this end's result, unless it fails.
                self.check(device)?;
            }
            return Ok(Step::Idle);
        }
        #[cfg(test)]
        if let Some(at) = self.flip_byte.take() {
            use bareverbs::DmaBuffer as _;
            let mut byte = [0];
            assert!(end.endpoint.region.read(at, &mut byte).is_ok());
            assert!(end.endpoint.region.write(at, &byte.map(|byte: u8| !byte)).is_ok());
        }
        if let Err(error) = dispatch!(&*activity, inner => inner.verify(end, seed, sent)) {
            // A write that has completed at the sender may not be visible in this memory yet.
            if since.elapsed() < VISIBLE_TIMEOUT {
                return Ok(Step::Idle);
            }
            return Err(error);
        }
        let row = dispatch!(&*activity, inner => inner.row());
        self.rows.extend(row.clone());
        self.link.send(&Message::Result { row })?;
        self.enter(Phase::AwaitResult);
        Ok(Step::Progressed)
    }

    /// Merges the peer's result into the rows, closes the measurement, and goes on to the next one.
    fn conclude(&mut self, device: &mut Device<H>) -> Result<Step> {
        device.check()?;
        let theirs = match self.receive()? {
            None => {
                // The peer may need receives or answers of this end for messages that it still waits for.
                if let (Some(activity), Some(end)) = (&mut self.activity, &mut self.end) {
                    let _ = dispatch!(activity, inner => inner.step(end))?;
                }
                return Ok(Step::AwaitingPeer);
            }
            Some(Message::Result { row }) => row,
            Some(message) => return Err(unexpected(&message, "result")),
        };
        let point = self.point()?;
        if let Some(theirs) = theirs {
            if theirs.point() != point || !theirs.is_sound() {
                bail!("the peer sent an invalid result: {theirs:?}");
            }
            match self.rows.last_mut() {
                Some(ours)
                    if ours.point() == point
                        && self
                            .activity
                            .as_ref()
                            .is_some_and(|activity| dispatch!(activity, inner => inner.row()).is_some()) =>
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
        self.current += 1;
        if self.current == self.points.len() || self.is_last {
            if let Some(end) = self.end.take() {
                end.destroy(device)?;
            }
            // Ctrl-C after the last measurement interrupts nothing.
            self.enter(Phase::Finished);
            return Ok(Step::Finished);
        }
        self.enter(Phase::Open);
        Ok(Step::Progressed)
    }
}

/// Failure that the peer reported.
#[derive(Clone, Debug)]
struct PeerFailure(String);

impl std::fmt::Display for PeerFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the peer failed: {}", printable(&self.0))
    }
}

impl std::error::Error for PeerFailure {}

fn unexpected(message: &Message, wanted: &str) -> anyhow::Error {
    anyhow::anyhow!("the peer sent {:?} where {wanted:?} was due", message.name())
}
