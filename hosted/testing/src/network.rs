//! Hosts on one wire, and their time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bareverbs_sim::in_process::{World, WorldConfig};

use crate::error::failed;
use crate::{Error, Faults};

/// How far time that passes by itself moves in one turn at most: a thread that the machine's scheduler has delayed does not run the
/// deadlines of all others out.
const TURN: Duration = Duration::from_millis(1);
/// How long it sleeps between two turns.
const PAUSE: Duration = Duration::from_micros(20);

/// Hosts on one wire. Clones are the same network.
#[derive(Clone, Debug)]
pub struct Network {
    world: World,
    runs: Arc<AtomicBool>,
}

/// Time passes by itself until this is dropped.
#[derive(Debug)]
#[must_use = "time passes by itself until this is dropped"]
pub struct Running {
    network: Network,
    thread: Option<JoinHandle<()>>,
}

impl Network {
    /// Creates a wire without hosts.
    pub fn new(faults: Faults) -> Self {
        Self::of(World::new(WorldConfig::from(faults)))
    }

    /// Takes a world, for what [`Faults`] do not say, as how far time moves in a step.
    pub fn of(world: World) -> Self {
        Self { world, runs: Arc::default() }
    }

    /// Returns the world behind it.
    pub const fn world(&self) -> &World {
        &self.world
    }

    /// Lets simulated time pass as the machine's does, in a thread that ends with the returned value: for programs of several threads, and
    /// for loops that sleep. A run is not repeatable then. Waits of this crate let time pass by itself meanwhile, and are bounded by
    /// the machine's time.
    ///
    /// ```
    /// use std::{thread, time::Duration};
    ///
    /// use bareverbs::{Access, Completion, SendWr};
    /// use bareverbs_testing::{Faults, connect, pair};
    ///
    /// let [mut a, mut b] = pair(Faults::none())?;
    /// let [mut qa, _qb] = connect(&mut a, &mut b)?;
    /// let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// let _running = a.network().run_in_background()?;
    /// qa.qp.send.post(&SendWr::write(target.remote(0), b"x"))?;
    /// while qa.cq.poll(&mut [Completion::EMPTY])? == 0 {
    ///     thread::sleep(Duration::from_millis(1));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// It runs in the background already, or the system starts no thread.
    pub fn run_in_background(&self) -> Result<Running, Error> {
        if self.runs.swap(true, Ordering::Relaxed) {
            return Err(failed("this network runs in the background already: drop the earlier `Running` first"));
        }
        let mut running = Running { network: self.clone(), thread: None };
        let network = self.clone();
        let thread = thread::Builder::new().name("bareverbs-testing".to_owned());
        running.thread = Some(thread.spawn(move || network.run()).map_err(failed)?);
        Ok(running)
    }

    pub(crate) fn runs(&self) -> bool {
        self.runs.load(Ordering::Relaxed)
    }

    fn run(&self) {
        let mut last = Instant::now();
        while self.runs() {
            let now = Instant::now();
            self.world.advance((now - last).min(TURN));
            last = now;
            thread::sleep(PAUSE);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.network.runs.store(false, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It has ended, or panicked in a device and said so.
            let _ = thread.join();
        }
    }
}
