//! Devices, wire and time.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bareverbs::Instant;

use super::memory::{MemoryMap, SimMemory};
use super::platform::{SimClock, SimFence, SimRegisters};
use crate::config::DeviceConfig;
use crate::device::Device;
use crate::wire::{FaultyWire, PerfectWire, PortId, Wire, WireFaults, WireStats};

/// Rounds of work after which the world goes on without having come to rest, so that no device can stop time.
const ROUNDS: usize = 256;
/// Where the first memory of a host lies if its owner does not say.
const FIRST_MEMORY: u64 = 0x1_0000_0000;

/// How a world behaves.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// What the wire does to frames.
    pub faults: WireFaults,
    /// Seed of the wire's choices.
    pub seed: u64,
    /// How long a frame is on its way.
    pub latency: Duration,
    /// How far time moves when a clock is asked to relax.
    pub step: Duration,
    /// How far it may move then if nothing has happened for long; not less than `step`.
    pub longest_step: Duration,
    /// How far time moves when a clock is read.
    pub look: Duration,
}

impl Default for WorldConfig {
    fn default() -> Self {
        Self {
            faults: WireFaults::default(),
            seed: 1,
            latency: Duration::from_nanos(500),
            step: Duration::from_micros(1),
            longest_step: Duration::from_millis(1),
            look: Duration::from_nanos(20),
        }
    }
}

pub(super) type Shared = Rc<RefCell<State>>;

/// What clocks, registers and hosts share.
#[derive(Debug)]
pub(super) struct State {
    config: WorldConfig,
    now: Instant,
    /// How far the next relax moves.
    step: Duration,
    devices: Vec<Device>,
    wire: FaultyWire<PerfectWire>,
}

impl State {
    pub(super) fn read(&self, device: usize, offset: u64, into: &mut [u8]) {
        if let Some(device) = self.devices.get(device) {
            device.bar_read(offset, into);
        }
    }

    pub(super) fn write(&mut self, device: usize, offset: u64, from: &[u8]) {
        self.step = self.config.step;
        if let Some(device) = self.devices.get_mut(device) {
            device.bar_write(offset, from);
        }
    }

    /// A look at the clock.
    pub(super) fn look(&mut self) -> Instant {
        self.now = self.now.after(self.config.look);
        self.now
    }

    /// Moves a step on and lets everything work. Steps grow while nothing happens, up to the next thing that is due.
    pub(super) fn relax(&mut self) {
        let step = match self.next_due() {
            Some(due) if due <= self.now => self.config.step,
            Some(due) => self.step.min(due.since(self.now)).max(self.config.step),
            None => self.step,
        };
        self.now = self.now.after(step);
        if self.work() {
            self.step = self.config.step;
        } else {
            self.step = self.step.saturating_mul(2).min(self.config.longest_step).max(self.config.step);
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.devices.iter().filter_map(Device::next_due).chain(self.wire.next_due()).min()
    }

    /// Lets devices and wire do what is due now; whether there was anything.
    fn work(&mut self) -> bool {
        let now = self.now;
        let mut worked = false;
        for _ in 0..ROUNDS {
            let mut again = false;
            for (port, device) in self.devices.iter_mut().enumerate() {
                worked |= device.next_due().is_some_and(|due| due <= now);
                device.advance(now);
                while let Some(frame) = device.transmit() {
                    self.wire.send(now, PortId(port), frame);
                    worked = true;
                }
                again |= device.next_due().is_some_and(|due| due <= now);
            }
            while let Some((to, frame)) = self.wire.deliver(now) {
                again = true;
                if let Some(device) = self.devices.get_mut(to.0) {
                    device.receive(&frame);
                }
            }
            if !again {
                break;
            }
            worked = true;
        }
        worked
    }
}

/// Devices joined by a wire, and their time.
#[derive(Clone, Debug)]
pub struct World {
    state: Shared,
}

impl World {
    /// A world with a wire and no device.
    pub fn new(config: WorldConfig) -> Self {
        let wire = FaultyWire::new(PerfectWire::new(config.latency), config.faults, config.seed);
        let state = State { now: Instant::default(), step: config.step, devices: Vec::new(), wire, config };
        Self { state: Rc::new(RefCell::new(state)) }
    }

    /// A world with two hosts, whose devices have LIDs 1 and 2 and are otherwise as usual.
    pub fn pair(config: WorldConfig) -> (Self, Host, Host) {
        let world = Self::new(config);
        let first = world.add(DeviceConfig::with_lid(1));
        let second = world.add(DeviceConfig::with_lid(2));
        (world, first, second)
    }

    /// Adds a host with a device, enabled as a kernel leaves it to a driver, on the wire.
    pub fn add(&self, config: DeviceConfig) -> Host {
        let map = MemoryMap::default();
        let lid = config.lid;
        let mut device = Device::new(config, Box::new(map.clone()));
        device.enable_function();
        let mut state = self.state.borrow_mut();
        let port = state.wire.inner_mut().attach(lid);
        device.advance(state.now);
        state.devices.push(device);
        Host { world: self.clone(), device: port.0, map }
    }

    /// The present moment; time stands still over this call.
    pub fn now(&self) -> Instant {
        self.state.borrow().now
    }

    /// Lets devices and wire do what is due, without moving time.
    pub fn work(&self) {
        self.state.borrow_mut().work();
    }

    /// Moves time on by `duration`, from one thing due to the next.
    pub fn advance(&self, duration: Duration) {
        let mut state = self.state.borrow_mut();
        let end = state.now.after(duration);
        loop {
            state.work();
            match state.next_due() {
                Some(due) if due <= end => state.now = due.max(state.now.after(Duration::from_nanos(1))).min(end),
                _ => break,
            }
            if state.now >= end {
                break;
            }
        }
        state.now = end;
        state.work();
    }

    /// What the wire did.
    pub fn wire_stats(&self) -> WireStats {
        self.state.borrow().wire.stats()
    }

    /// Changes what the wire does to frames.
    pub fn set_wire_faults(&self, faults: WireFaults) {
        self.state.borrow_mut().wire.set_faults(faults);
    }
}

/// A machine with one device.
#[derive(Clone, Debug)]
pub struct Host {
    world: World,
    device: usize,
    map: MemoryMap,
}

impl Host {
    /// The world around it.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// BAR0 of the device.
    pub fn registers(&self) -> SimRegisters {
        SimRegisters::new(self.world.state.clone(), self.device)
    }

    /// Ordering between this host and its device.
    pub fn fence(&self) -> SimFence {
        SimFence
    }

    /// The world's clock.
    pub fn clock(&self) -> SimClock {
        SimClock::new(self.world.state.clone())
    }

    /// `len` bytes of zeroed memory that the device reaches, after all memory so far.
    pub fn memory(&self, len: usize) -> SimMemory {
        let end = self.map.end().unwrap_or(FIRST_MEMORY);
        // A page apart from the one before, so that a device that runs over its end is caught.
        let memory = SimMemory::new((end | 0xfff).saturating_add(0x1001), len);
        self.map.map(&memory);
        memory
    }

    /// `len` bytes of zeroed memory at device address `addr`, a multiple of 4096; `None` if other memory lies there.
    pub fn memory_at(&self, addr: u64, len: usize) -> Option<SimMemory> {
        let memory = SimMemory::new(addr, len);
        self.map.map(&memory).then_some(memory)
    }

    /// The memories that the device reaches.
    pub fn memory_map(&self) -> &MemoryMap {
        &self.map
    }

    /// Does something with the device itself: faults, findings, counts, link, removal. The world stands still meanwhile.
    pub fn with_device<R>(&self, work: impl FnOnce(&mut Device) -> R) -> R {
        let mut state = self.world.state.borrow_mut();
        state.step = state.config.step;
        #[expect(clippy::indexing_slicing, reason = "the index came from adding the device, and devices are never taken out")]
        work(&mut state.devices[self.device])
    }

    /// The MSI-X vectors that the device raised since the last call, in order.
    pub fn take_interrupts(&self) -> Vec<u16> {
        self.with_device(Device::take_interrupts)
    }
}
