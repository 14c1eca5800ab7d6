//! Waiting for completions, with an end.

use core::fmt;
use std::thread;
use std::time::Duration;

use bareverbs::{Clock, Completion, CompletionQueue, CqHandle, PollCqError, Provider};
use bareverbs_sim::HcaState;
use bareverbs_sim::audit::Finding;
use bareverbs_sim::in_process::Host;
use bareverbs_sim::wire::WireStats;

use crate::Network;

/// How long a wait may last: many times what the retries of a connection take. Of simulated time, which takes a moment to pass; of the
/// machine's time while the network runs in the background.
pub const PATIENCE: Duration = Duration::from_secs(10);

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
    patience: Duration,
}

/// Why there is no completion.
#[derive(Clone, Debug)]
pub enum WaitError {
    /// The queue returned an error: a lie of the device, an overrun, or a lost device.
    Poll(PollCqError),
    /// None came in time.
    Overdue(Overdue),
}

/// The facts about a completion that did not come.
#[derive(Clone, Debug)]
pub struct Overdue {
    /// The queue.
    pub cq: CqHandle,
    /// How long it was waited for.
    pub waited: Duration,
    /// Frames on the wire since the start.
    pub wire: WireStats,
    /// State of the waiting host's device.
    pub device: HcaState,
    /// Whether its link is up.
    pub link_is_up: bool,
    /// Whether a fault is armed that has not happened.
    pub fault_is_armed: bool,
    /// What the device found wrong with the driver.
    pub findings: Vec<Finding>,
}

impl Waiter {
    pub(crate) const fn new(network: Network, host: Host) -> Self {
        Self { network, host, patience: PATIENCE }
    }

    /// Sets how long a wait may last, [`PATIENCE`] otherwise.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Waits for the next completion. Look at its status first: a request that failed is a completion too.
    ///
    /// # Errors
    /// The queue returns an error, or nothing for as long as the patience lasts.
    pub fn wait<P: Provider>(&self, cq: &mut CompletionQueue<'_, P>) -> Result<Completion, WaitError> {
        let (clock, started) = (self.host.clock(), std::time::Instant::now());
        let start = clock.now();
        let mut done = [Completion::EMPTY];
        loop {
            if cq.poll(&mut done).map_err(WaitError::Poll)? != 0 {
                let [done] = done;
                return Ok(done);
            }
            let waited = if self.network.runs() {
                thread::yield_now();
                started.elapsed()
            } else {
                clock.relax(start.after(self.patience));
                clock.now().since(start)
            };
            if waited >= self.patience {
                return Err(WaitError::Overdue(self.facts(cq.handle(), waited)));
            }
        }
    }

    fn facts(&self, cq: CqHandle, waited: Duration) -> Overdue {
        let wire = self.network.world().wire_stats();
        self.host.with_device(|device| Overdue {
            cq,
            waited,
            wire,
            device: device.state(),
            link_is_up: device.link_is_up(),
            fault_is_armed: !device.faults_mut().is_empty(),
            findings: device.audit().findings().to_vec(),
        })
    }
}

impl fmt::Display for Overdue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cq, waited, wire, device, link_is_up, fault_is_armed, findings } = self;
        let WireStats { sent, delivered, lost, .. } = wire;
        write!(
            f,
            "no completion in {cq:?} after {waited:?}: the wire has had {sent} frames, delivered {delivered} and lost {lost}; the device is \
             {device:?}, its link {}",
            if *link_is_up { "up" } else { "down" }
        )?;
        if *fault_is_armed {
            f.write_str("; a fault is armed that has not happened")?;
        }
        if !findings.is_empty() {
            write!(f, "; mistakes of the driver: {findings:?}")?;
        }
        Ok(())
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
