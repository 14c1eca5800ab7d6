//! What clocks, registers and hosts of one world share: devices, wire, time.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bareverbs::platform::Instant;
use parking_lot::ReentrantMutex;

use super::config::WorldConfig;
use super::number::WorldNumber;
use crate::capture::PcapNg;
use crate::config::PortKind;
use crate::device::Device;
use crate::fabric::{Fabric, Port, Tap, Uplink};
use crate::wire::{EgressQueues, FaultyWire, PerfectWire, PortId};

/// The file of a capture, which the wire and its owner share.
pub(super) type CaptureFile = Arc<Mutex<PcapNg<Box<dyn io::Write + Send>>>>;

/// Maximum rounds of work at one moment, so that no device can stop time.
const ROUNDS: usize = 256;
/// What clocks, registers and hosts of one world share.
#[derive(Debug)]
pub(super) struct WorldState {
    /// Nanoseconds. Apart from the rest, so that a clock can be read while devices work. Never goes back.
    pub(super) now: AtomicU64,
    pub(super) read_step: Duration,
    /// The mutex makes other threads wait. The cell refuses a thread that has locked it already, in a listener of a device.
    pub(super) subnet: ReentrantMutex<RefCell<Subnet>>,
    pub(super) number: Arc<WorldNumber>,
}

impl WorldState {
    pub(super) fn now(&self) -> Instant {
        Instant::from_nanos(self.now.load(Ordering::Relaxed))
    }

    /// Moves time on by `step`. Returns the moment after.
    fn step(&self, step: Duration) -> Instant {
        let after = |nanos| Instant::from_nanos(nanos).after(step).as_nanos();
        Instant::from_nanos(after(self.now.update(Ordering::Relaxed, Ordering::Relaxed, after)))
    }

    /// Moves time on to `moment`, unless that has passed.
    pub(super) fn move_to(&self, moment: Instant) {
        self.now.fetch_max(moment.as_nanos(), Ordering::Relaxed);
    }

    /// Returns what a clock shows when a host reads it.
    pub(super) fn read_clock(&self) -> Instant {
        self.step(self.read_step)
    }

    /// Moves time a step on and lets everything work. Does nothing if this thread has locked the world already.
    pub(super) fn relax(&self) {
        self.try_with(|subnet| {
            let now = self.step(subnet.next_step(self.now()));
            subnet.work_after_step(now);
        });
    }

    /// Moves time to the next event, by the longest step at most, and lets everything work. Does nothing if a thread has locked
    /// the world, or if no event is due: a thread that only polls cannot run the deadlines of other threads out.
    pub(super) fn go_to_next_event(&self) {
        if let Some(subnet) = self.subnet.try_lock()
            && let Ok(mut subnet) = subnet.try_borrow_mut()
            && let Some(due) = subnet.next_due()
        {
            let now = self.now();
            self.move_to(subnet.next_moment(now, due).min(now.after(subnet.config.max_step)));
            subnet.work(self.now());
        }
    }

    /// Calls `access` with devices and wire once no other thread uses them. Returns `None` if this thread uses them already.
    pub(super) fn try_with<R>(&self, access: impl FnOnce(&mut Subnet) -> R) -> Option<R> {
        let subnet = self.subnet.lock();
        let mut subnet = subnet.try_borrow_mut().ok()?;
        Some(access(&mut subnet))
    }

    /// Same as [`WorldState::try_with`], but panics if this thread has locked the world already.
    pub(super) fn with<R>(&self, access: impl FnOnce(&mut Subnet) -> R) -> R {
        let subnet = self.subnet.lock();
        let Ok(mut subnet) = subnet.try_borrow_mut() else { in_use() };
        access(&mut subnet)
    }
}

#[cold]
#[expect(clippy::panic, reason = "the types cannot keep a closure from calling its world, and there is nothing to return")]
fn in_use() -> ! {
    panic!(
        "a tap, an uplink or the closure of `with_device` called its world: only registers and clocks may be used there; \
         keep what is needed and ask the world after it has returned"
    )
}

/// The devices and the wire between them.
#[derive(Debug)]
pub(super) struct Subnet {
    pub(super) config: WorldConfig,
    /// How far the next relax moves.
    pub(super) step: Duration,
    pub(super) devices: Vec<(Port, Device)>,
    pub(super) fabric: Fabric<FaultyWire<EgressQueues<PerfectWire>>>,
    /// Name and kind of each port.
    pub(super) ports: Vec<(String, PortKind)>,
    /// The capture in progress, which describes each port that is added.
    pub(super) capture: Option<CaptureFile>,
}

/// Describes a port, before its first frame.
fn describe(file: &CaptureFile, name: &str, kind: PortKind) {
    file.lock().unwrap_or_else(PoisonError::into_inner).add_port(name, kind);
}

impl Subnet {
    /// Adds a device, whose port is the last one on the wire.
    pub(super) fn add(&mut self, device: Device) -> usize {
        let port = self.fabric.add_port();
        self.name_port(format!("lid{}", device.config().lid), device.config().port);
        self.devices.push((port, device));
        self.devices.len() - 1
    }

    /// Adds a cable, whose port is the last one on the wire.
    pub(super) fn add_cable(&mut self, cable: Box<dyn Uplink + Send>) -> PortId {
        let port = self.fabric.add_cable(cable);
        let number = self.ports.len() + 1 - self.devices.len();
        self.name_port(format!("join{number}"), PortKind::Ethernet { mac: [0; 6] });
        port
    }

    fn name_port(&mut self, name: String, kind: PortKind) {
        if let Some(capture) = &self.capture {
            describe(capture, &name, kind);
        }
        self.ports.push((name, kind));
    }

    /// Shows what arrives over the wire to a tap, or to none. Ends a capture.
    pub(super) fn set_tap(&mut self, tap: Option<Box<dyn Tap + Send>>) {
        self.fabric.set_tap(tap);
        self.capture = None;
    }

    /// Writes what arrives over the wire into a file from now on.
    pub(super) fn begin_capture(&mut self, file: &CaptureFile) {
        self.ports.iter().for_each(|(name, kind)| describe(file, name, *kind));
        self.set_tap(Some(Box::new(Arc::clone(file))));
        self.capture = Some(Arc::clone(file));
    }

    /// Ends a capture, unless another one has begun.
    pub(super) fn end_capture(&mut self, file: &CaptureFile) {
        if self.capture.as_ref().is_some_and(|current| Arc::ptr_eq(current, file)) {
            self.set_tap(None);
        }
    }

    pub(super) fn read(&self, device: usize, offset: u64, into: &mut [u8]) {
        if let Some((_, device)) = self.devices.get(device) {
            device.bar_read(offset, into);
        }
    }

    pub(super) fn write(&mut self, device: usize, offset: u64, from: &[u8]) {
        self.step = self.config.step;
        if let Some((_, device)) = self.devices.get_mut(device) {
            device.bar_write(offset, from);
        }
    }

    /// Returns how far a relaxing clock moves: steps grow while nothing happens, up to the next thing that is due.
    fn next_step(&self, now: Instant) -> Duration {
        match self.next_due() {
            Some(due) => self.step.min(due.since(now)).max(self.config.step),
            None => self.step,
        }
    }

    /// Lets everything work after such a step.
    fn work_after_step(&mut self, now: Instant) {
        if self.work(now) {
            self.step = self.config.step;
        } else {
            self.step = self.step.saturating_mul(2).min(self.config.max_step).max(self.config.step);
        }
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        let ports = self.devices.iter().filter_map(|(port, device)| self.fabric.next_due(port, device));
        ports.chain(self.fabric.wire_due()).min()
    }

    /// Returns the moment of the next event, after `now`. What is due in the past has had its turn: its next turn is a step
    /// later.
    pub(super) fn next_moment(&self, now: Instant, due: Instant) -> Instant {
        if due > now { due } else { now.after(self.config.step.max(Duration::from_nanos(1))) }
    }

    /// Lets devices and wire do what is due now. Returns whether there was anything.
    pub(super) fn work(&mut self, now: Instant) -> bool {
        let mut worked = false;
        for _ in 0..ROUNDS {
            for (port, device) in &mut self.devices {
                worked |= self.fabric.step(port, device, now);
            }
            self.fabric.deliver(now, |_| {});
            // One of them may have got room for what it sends.
            let reached = self.devices.iter_mut().map(|(port, _)| port.take_reached().count()).sum::<usize>() > 0;
            if !reached && self.next_due().is_none_or(|due| due > now) {
                break;
            }
            worked = true;
        }
        worked
    }
}
