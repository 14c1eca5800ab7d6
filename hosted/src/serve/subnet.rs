//! The devices and the wire between them, behind one lock.
//!
//! Whoever has something for a device does it at once and on its own thread, and lets the devices work a little: a register
//! access crosses no thread. One more thread, the runner, does what is left then and what comes due by time, and sleeps
//! otherwise.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time;

use bareverbs::Instant;
use bareverbs_sim::packet::{PERMISSIVE_LID, destination, is_multicast_lid};
use bareverbs_sim::wire::{PortId, Wire};
use bareverbs_sim::{Device, DeviceCounts};

use super::link::Link;
use super::memory::Reach;
use super::vectors::Vectors;
use crate::record::Several;

/// Turns that whoever brings work takes itself, before it leaves the rest to the runner: what a short request needs from its
/// doorbell to its completion, so that no thread has to wake up for it.
const TURNS: usize = 4;

/// One device and how its interrupts leave.
pub(crate) struct Station {
    pub(crate) device: Device<Reach, Several>,
    pub(crate) vectors: Vectors,
}

impl Station {
    /// What its client has not given back, for people.
    pub(crate) fn left(&self) -> String {
        let counts = self.device.counts();
        let DeviceCounts { engine, eqs, uars, pds, xrcds, user_contexts, user_memories, pages_held, pages_lost } = counts;
        let named = [
            (engine.qps, "queue pairs"),
            (engine.cqs, "completion queues"),
            (engine.srqs, "shared receive queues"),
            (engine.mkeys, "memory keys"),
            (engine.device_memories, "pieces of device memory"),
            (eqs, "event queues"),
            (pds, "protection domains"),
            (xrcds, "XRC domains"),
            (uars, "UARs"),
            (engine.memberships, "multicast memberships"),
            (user_contexts, "user contexts"),
            (user_memories, "user memory objects"),
            (pages_held + pages_lost, "pages"),
        ];
        let left: Vec<String> =
            named.iter().filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}")).collect();
        if left.is_empty() { "nothing left".into() } else { format!("left: {}", left.join(", ")) }
    }

    /// As at power-on: the client is gone, or asks for it.
    pub(crate) fn reset(&mut self) {
        self.device.reset();
        self.device.take_interrupts();
    }
}

/// The subnet is no longer served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone;

/// What the runner does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runner {
    /// It works, or is about to look for work.
    Awake,
    /// It sleeps until then, or until it is woken.
    Asleep(Option<Instant>),
}

/// What the lock guards.
struct State {
    stations: Vec<Station>,
    wire: Box<dyn Wire + Send>,
    /// Where frames go that no device here is for.
    link: Option<Link>,
    runner: Runner,
    stopped: bool,
    /// Frames of one turn, kept for its room.
    frames: Vec<Vec<u8>>,
}

struct Shared {
    start: time::Instant,
    /// Held while waiting for the lock: the runner, which takes the lock again and again, so lets everyone else in between
    /// two turns.
    entry: Mutex<()>,
    state: Mutex<State>,
    /// Wakes the runner.
    bell: Condvar,
}

/// A way to reach one station from another thread.
#[derive(Clone)]
pub(crate) struct Handle {
    station: usize,
    shared: Arc<Shared>,
}

impl Handle {
    /// Does something with the station, then lets the devices work.
    pub(crate) fn ask<R>(&self, act: impl FnOnce(&mut Station) -> R) -> Result<R, Gone> {
        let now = self.shared.now();
        let mut state = self.shared.enter();
        if state.stopped {
            return Err(Gone);
        }
        let station = state.stations.get_mut(self.station).ok_or(Gone)?;
        // The registers that count time shall show the present one.
        station.device.advance(now);
        let result = act(station);
        self.shared.follow_up(&mut state);
        Ok(result)
    }

    /// Gives a frame from elsewhere to the device that it is for; one for nobody here is lost.
    pub(crate) fn frame(&self, frame: &[u8]) -> Result<(), Gone> {
        let now = self.shared.now();
        let mut state = self.shared.enter();
        if state.stopped {
            return Err(Gone);
        }
        let lid = destination(frame).unwrap_or(0);
        let takes = |station: &Station| lid == station.device.lid() || lid == PERMISSIVE_LID;
        // One port takes it, or each one when it is for a group.
        let most = if is_multicast_lid(lid) { usize::MAX } else { 1 };
        let takers = state.stations.iter_mut().filter(|station| is_multicast_lid(lid) || takes(station)).take(most);
        for station in takers {
            station.device.advance(now);
            station.device.receive(frame);
        }
        self.shared.follow_up(&mut state);
        Ok(())
    }

    /// Ends [`Subnet::run`].
    pub(crate) fn stop(&self) {
        self.shared.enter().stopped = true;
        self.shared.bell.notify_one();
    }
}

impl Shared {
    fn now(&self) -> Instant {
        Instant::default().after(self.start.elapsed())
    }

    /// The lock, in turn with everyone else.
    fn enter(&self) -> MutexGuard<'_, State> {
        let _entry = self.entry.lock().unwrap_or_else(PoisonError::into_inner);
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a few turns, and has the runner come back in time for what is left.
    fn follow_up(&self, state: &mut State) {
        let mut due = state.next_due();
        for _ in 0..TURNS {
            let now = self.now();
            if due.is_none_or(|due| due > now) {
                break;
            }
            state.turn(now);
            due = state.next_due();
        }
        state.deliver_interrupts();
        if let (Some(due), Runner::Asleep(until)) = (due, state.runner)
            && until.is_none_or(|until| due < until)
        {
            state.runner = Runner::Awake;
            self.bell.notify_one();
        }
    }
}

impl State {
    fn next_due(&self) -> Option<Instant> {
        self.stations.iter().filter_map(|station| station.device.next_due()).chain(self.wire.next_due()).min()
    }

    /// Whether a frame of a device here is for another one here, and whether for one elsewhere.
    fn route(&self, frame: &[u8]) -> (bool, bool) {
        match destination(frame) {
            Some(lid) if is_multicast_lid(lid) => (true, true),
            // Whoever is at the other end.
            Some(PERMISSIVE_LID) => (self.stations.len() > 1, self.stations.len() == 1),
            lid => {
                let here = self.stations.iter().any(|station| Some(station.device.lid()) == lid);
                (here, !here)
            }
        }
    }

    /// Lets every device work once and moves frames.
    fn turn(&mut self, now: Instant) {
        let mut frames = std::mem::take(&mut self.frames);
        // A subnet manager may have given some.
        for (port, station) in self.stations.iter().enumerate() {
            self.wire.set_lid(PortId(port), station.device.lid());
        }
        for port in 0..self.stations.len() {
            if let Some(station) = self.stations.get_mut(port) {
                station.device.advance(now);
                frames.extend(std::iter::from_fn(|| station.device.transmit()));
            }
            for frame in frames.drain(..) {
                match (&self.link, self.route(&frame)) {
                    (Some(link), (false, true)) => link.send(frame),
                    (Some(link), (true, true)) => {
                        link.send(frame.clone());
                        self.wire.send(now, PortId(port), frame);
                    }
                    _ => self.wire.send(now, PortId(port), frame),
                }
            }
        }
        self.frames = frames;
        while let Some((port, frame)) = self.wire.deliver(now) {
            if let Some(station) = self.stations.get_mut(port.0) {
                station.device.receive(&frame);
            }
        }
    }

    fn deliver_interrupts(&mut self) {
        for station in &mut self.stations {
            for vector in station.device.take_interrupts() {
                station.vectors.raise(vector);
            }
            for line in station.device.take_unsupported() {
                super::messages::line(format!("lid{}: {line}", station.device.config().lid));
            }
        }
    }
}

/// Devices, wire, time.
pub(crate) struct Subnet {
    shared: Arc<Shared>,
}

impl Subnet {
    /// The stations take the wire's ports in their order.
    pub(crate) fn new(stations: Vec<Station>, wire: Box<dyn Wire + Send>, link: Option<Link>) -> Self {
        let state = State { stations, wire, link, runner: Runner::Awake, stopped: false, frames: Vec::new() };
        let start = time::Instant::now();
        Self { shared: Arc::new(Shared { start, entry: Mutex::default(), state: Mutex::new(state), bell: Condvar::new() }) }
    }

    /// Reaches one station.
    pub(crate) fn handle(&self, station: usize) -> Handle {
        Handle { station, shared: Arc::clone(&self.shared) }
    }

    /// The runner: serves until [`Handle::stop`]. Then the devices, in order; the link is gone.
    pub(crate) fn run(self) -> Vec<Station> {
        let Self { shared } = self;
        loop {
            let mut state = shared.enter();
            if state.stopped {
                state.link = None;
                return std::mem::take(&mut state.stations);
            }
            let now = shared.now();
            match state.next_due() {
                Some(due) if due <= now => {
                    state.turn(now);
                    state.deliver_interrupts();
                }
                due => shared.sleep(state, due.map(|due| (due, due.since(now)))),
            }
        }
    }
}

impl Shared {
    /// Sleeps until the bell rings, or for the time given.
    fn sleep(&self, mut state: MutexGuard<'_, State>, until: Option<(Instant, time::Duration)>) {
        state.runner = Runner::Asleep(until.map(|(due, _)| due));
        // It may wake early: whoever calls looks what is due.
        let mut state = match until {
            None => self.bell.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some((_, left)) => self.bell.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
        };
        state.runner = Runner::Awake;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;

    use bareverbs_sim::DeviceConfig;
    use bareverbs_sim::wire::PerfectWire;

    use super::super::memory::ClientMemory;
    use super::*;

    /// A wire that carries nothing and has something to do every so often.
    struct Busy {
        due: Instant,
        every: Duration,
        looks: Arc<AtomicUsize>,
    }

    impl Wire for Busy {
        fn send(&mut self, _: Instant, _: PortId, _: Vec<u8>) {}

        fn deliver(&mut self, now: Instant) -> Option<(PortId, Vec<u8>)> {
            if now >= self.due {
                self.looks.fetch_add(1, Ordering::Relaxed);
                self.due = now.after(self.every);
            }
            None
        }

        fn next_due(&self) -> Option<Instant> {
            Some(self.due)
        }

        fn set_lid(&mut self, _: PortId, _: u16) {}
    }

    /// A subnet of one device with a [`Busy`] wire, running; how often that was looked at.
    fn running(every: Duration) -> (Handle, Arc<AtomicUsize>, thread::JoinHandle<Vec<Station>>) {
        let looks = Arc::new(AtomicUsize::new(0));
        let wire = Busy { due: Instant::default(), every, looks: Arc::clone(&looks) };
        let memory = Reach(Arc::new(ClientMemory::new("test".into())));
        let device = Device::with_memory(DeviceConfig::with_lid(1), memory);
        let subnet = Subnet::new(vec![Station { device, vectors: Vectors::new(1) }], Box::new(wire), None);
        (subnet.handle(0), looks, thread::spawn(|| subnet.run()))
    }

    #[test]
    fn what_is_due_by_time_needs_nobody_to_ask() {
        let start = time::Instant::now();
        let (handle, looks, runner) = running(Duration::from_millis(20));
        while looks.load(Ordering::Relaxed) < 10 && start.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(10));
        }
        handle.stop();
        assert_eq!(runner.join().unwrap().len(), 1);
        // Once each 20 ms; far more often would mean that it does not sleep.
        let most = start.elapsed().as_millis() / 10 + 2;
        assert!((10..=most).contains(&(looks.load(Ordering::Relaxed) as u128)), "{looks:?}, at most {most}");
    }

    #[test]
    fn frames_go_where_their_destination_is() {
        let route = |devices: u16, dlid: u16| {
            let station = |lid| {
                let memory = Reach(Arc::new(ClientMemory::new("test".into())));
                Station { device: Device::with_memory(DeviceConfig::with_lid(lid), memory), vectors: Vectors::new(1) }
            };
            let wire = PerfectWire::new(Duration::ZERO);
            let subnet = Subnet::new((1..=devices).map(station).collect(), Box::new(wire), None);
            // The destination is in the second two bytes of a local route header.
            let [high, low] = dlid.to_be_bytes();
            let state = subnet.shared.enter();
            state.route(&[0, 0, high, low])
        };
        assert_eq!((route(2, 1), route(2, 2), route(2, 3)), ((true, false), (true, false), (false, true)));
        assert_eq!(route(2, 0xc001), (true, true), "a group has members anywhere");
        assert_eq!((route(2, 0xffff), route(1, 0xffff)), ((true, false), (false, true)), "the other end of the cable");
    }

    #[test]
    fn endless_work_keeps_nobody_out() {
        let (handle, looks, runner) = running(Duration::ZERO);
        let askers: Vec<_> = (0..4)
            .map(|_| {
                let handle = handle.clone();
                thread::spawn(move || (0..500).all(|_| handle.ask(|station| station.device.config().lid) == Ok(1)))
            })
            .collect();
        assert!(askers.into_iter().all(|asker| asker.join().unwrap()));
        assert!(looks.load(Ordering::Relaxed) > 0);
        handle.stop();
        runner.join().unwrap();
    }

    #[test]
    fn nobody_is_left_after_the_end() {
        let (handle, _, runner) = running(Duration::from_secs(1000));
        assert_eq!(handle.ask(|_| 7), Ok(7));
        handle.stop();
        runner.join().unwrap();
        assert_eq!(handle.ask(|_| 7), Err(Gone));
        assert_eq!(handle.frame(&[]), Err(Gone));
    }
}
