//! Waiting for completions, with an end.

use core::fmt;
use std::thread;
use std::time::Duration;

use bareverbs::backend::Provider;
use bareverbs::error::PollCqError;
use bareverbs::platform::Clock;
use bareverbs::{Completion, CompletionQueue, CqHandle, Cqn};
use bareverbs_sim::audit::Finding;
use bareverbs_sim::in_process::Host;
use bareverbs_sim::rejection::Rejection;
use bareverbs_sim::wire::WireStats;
use bareverbs_sim::{HcaState, QpcState};

use crate::Network;

/// How long a wait may last: many times what the retries of a connection take. Of simulated time, which takes a moment to pass unless
/// frames fly all the time; of the machine's time while the network runs in the background.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(10);
/// How many RNR NAKs may come in one wait while the network does not run in the background. A queue pair that repeats a request for ever
/// ([`Connection::rnr_retry`](crate::Connection::rnr_retry) 7) keeps simulated time from passing; this many take a fraction of a second.
pub const MAX_RNR_NAKS: u64 = 2048;
/// Rejections that the text of an [`Overdue`] has.
const SHOWN: usize = 4;

/// Waits for completions on one host. It is a value of its own, so that a thread that has a queue can have it too.
///
/// ```
/// use bareverbs::{Access, SendWr};
/// use bareverbs_testing::{Faults, connect, pair};
///
/// let [mut a, mut b] = pair(Faults::none())?;
/// let [mut qa, _qb] = connect(&mut a, &mut b)?;
/// let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
/// let waiter = a.waiter();
/// for wr_id in 0..2 {
///     qa.qp.send.post(&SendWr::write(target.remote(0), b"x").id(wr_id))?;
/// }
/// assert_eq!([waiter.wait(&mut qa.cq)?.wr_id, waiter.wait(&mut qa.cq)?.wr_id], [0, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Waiter {
    network: Network,
    host: Host,
    timeout: Duration,
}

/// Why there is no completion. Its `Debug` is its text.
#[derive(Clone)]
#[non_exhaustive]
pub enum WaitError {
    /// The queue returned an error: a completion that cannot be, or, once a call of [`Verbs`](bareverbs::Verbs) has found it, an overrun
    /// ([`poll_event`](bareverbs::Verbs::poll_event)) or a lost device ([`maintain`](bareverbs::Verbs::maintain)).
    Poll(PollCqError),
    /// None came in time, or after [`MAX_RNR_NAKS`].
    Overdue(Box<Overdue>),
}

/// The facts about a completion that did not come. Its `Debug` is its text.
#[derive(Clone)]
#[non_exhaustive]
pub struct Overdue {
    /// The queue.
    pub cq: CqHandle,
    /// Its number.
    pub cqn: Cqn,
    /// How long it was waited for.
    pub waited: Duration,
    /// RNR NAKs that queue pairs of the network had meanwhile: each says that a peer has no receive posted.
    pub rnr_naks: u64,
    /// Queue pairs that complete into the queue, and their states as the device has them.
    pub queue_pairs: Vec<(u32, QpcState)>,
    /// Frames on the wire since the start.
    pub wire: WireStats,
    /// Seed of what happens on it.
    pub seed: u64,
    /// State of the waiting host's device.
    pub device: HcaState,
    /// Whether that device is out of its slot.
    pub removed: bool,
    /// Whether its link is up.
    pub link_is_up: bool,
    /// Whether a fault is armed that has not happened.
    pub fault_is_armed: bool,
    /// What the device found wrong with the driver.
    pub findings: Vec<Finding>,
    /// What the device has refused or dropped since the start, and how often, the newest last: as [`Node::rejections`](crate::Node::rejections).
    pub rejections: Vec<(Rejection, u64)>,
}

impl Waiter {
    pub(crate) const fn new(network: Network, host: Host) -> Self {
        Self { network, host, timeout: WAIT_TIMEOUT }
    }

    /// Sets how long a wait may last, [`WAIT_TIMEOUT`] otherwise.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Waits for the next completion of a queue of this host. Look at its status first: a request that failed is a completion too. A queue
    /// of another host is polled too, but what an [`Overdue`] says is then of the wrong device.
    ///
    /// # Errors
    /// The queue returns an error, or nothing before the timeout.
    pub fn wait<P: Provider>(&self, cq: &mut CompletionQueue<'_, P>) -> Result<Completion, WaitError> {
        /// Polls between two counts of RNR NAKs, which need the lock of the world.
        const POLLS: u32 = 64;
        let (clock, started) = (self.host.clock(), std::time::Instant::now());
        let (start, naks_before) = (clock.now(), self.rnr_naks());
        let mut done = [Completion::EMPTY];
        let mut polls = 0_u32;
        loop {
            if cq.poll(&mut done).map_err(WaitError::Poll)? != 0 {
                let [done] = done;
                return Ok(done);
            }
            polls = polls.wrapping_add(1);
            let runs = self.network.runs();
            let waited = if runs {
                thread::yield_now();
                started.elapsed()
            } else {
                clock.relax(start.after(self.timeout));
                clock.now().since(start)
            };
            let is_spent = || !runs && polls.is_multiple_of(POLLS) && self.rnr_naks() - naks_before >= MAX_RNR_NAKS;
            if waited >= self.timeout || is_spent() {
                return Err(WaitError::Overdue(Box::new(self.facts(cq, waited, self.rnr_naks() - naks_before))));
            }
        }
    }

    /// Returns the RNR NAKs that queue pairs of the network have had since the start.
    fn rnr_naks(&self) -> u64 {
        self.network.world().device_stats().iter().map(|stats| stats.engine.receiver_not_ready).sum()
    }

    fn facts<P: Provider>(&self, cq: &CompletionQueue<'_, P>, waited: Duration, rnr_naks: u64) -> Overdue {
        let (wire, seed) = (self.network.world().wire_stats(), self.network.world().seed());
        self.host.with_device(|device| Overdue {
            cq: cq.handle(),
            cqn: cq.cqn(),
            waited,
            rnr_naks,
            queue_pairs: device.queue_pairs_of(cq.cqn().get()),
            wire,
            seed,
            device: device.state(),
            removed: device.is_removed(),
            link_is_up: device.link_is_up(),
            fault_is_armed: !device.faults_mut().is_empty(),
            findings: device.audit().findings().to_vec(),
            rejections: device.rejections().iter().collect(),
        })
    }
}

impl fmt::Display for Overdue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            cq: _,
            cqn,
            waited,
            rnr_naks,
            queue_pairs,
            wire,
            seed,
            device,
            removed,
            link_is_up,
            fault_is_armed,
            findings,
            rejections,
        } = self;
        write!(f, "no completion in CQ {:#x} after {waited:?}", cqn.get())?;
        if *rnr_naks != 0 {
            write!(f, " and {rnr_naks} RNR NAKs")?;
        }
        let WireStats { sent, delivered, lost, .. } = wire;
        write!(f, ": the wire has had {sent} frames, delivered {delivered} and lost {lost}")?;
        if *sent == 0 {
            f.write_str(" (was anything posted? Queue pairs of one device use no wire)")?;
        }
        write!(f, " with seed {seed}; the device is ")?;
        if *removed {
            f.write_str("out of its slot: Verbs::maintain finds that, and what was posted is flushed")?;
        } else {
            write!(f, "{device:?}, its link {}", if *link_is_up { "up" } else { "down" })?;
        }
        if queue_pairs.is_empty() {
            f.write_str("; no queue pair of this host completes into the queue")?;
        }
        for (qpn, state) in queue_pairs.iter().filter(|(_, state)| *state != QpcState::Rts) {
            write!(f, "; QP {qpn:#x} is in state {state:?}")?;
            if matches!(state, QpcState::Err | QpcState::SqEr) {
                f.write_str(": look at its earlier completions, and at Verbs::poll_event")?;
            }
        }
        if *fault_is_armed {
            f.write_str("; a fault is armed that has not happened")?;
        }
        for (rejection, times) in rejections.iter().rev().take(SHOWN) {
            write!(f, "; {rejection}")?;
            if *times > 1 {
                write!(f, " ({times} times)")?;
            }
        }
        if !findings.is_empty() {
            write!(f, "; mistakes of the driver: {findings:?}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Overdue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Poll(error) => error.fmt(f),
            Self::Overdue(facts) => facts.fmt(f),
        }
    }
}

impl std::error::Error for Overdue {}

impl std::error::Error for WaitError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Poll(error) => Some(error),
            Self::Overdue(_) => None,
        }
    }
}
