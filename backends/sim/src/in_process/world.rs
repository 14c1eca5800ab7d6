//! Devices, wire and time.

use std::cell::RefCell;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bareverbs::platform::{Instant, Machine};
use parking_lot::ReentrantMutex;

use super::capture::Capture;
use super::config::WorldConfig;
use super::idle_reads::WeakWorld;
use super::memory::{MemoryMap, SimMemory};
use super::number::WorldNumber;
use super::pages::SimPages;
use super::platform::{SimClock, SimFence, SimPlatform, SimRegisters};
use super::state::{CaptureFile, Subnet, WorldState};
use crate::capture::PcapNg;
use crate::config::{ConfigError, DeviceConfig};
use crate::device::Device;
use crate::fabric::{Arrival, Fabric, StationAddress, Tap, Uplink};
use crate::host_memory::HostMemory;
use crate::identity::PortIdentity;
use crate::stats::DeviceStats;
use crate::wire::{EgressQueues, EgressStats, FaultyWire, PerfectWire, PortId, WireFaults, WireStats};

/// Device address of the first memory of the first host, unless the caller chooses one.
const FIRST_MEMORY: u64 = 0x1_0000_0000;
/// From the first memory of one host to that of the next: an address of one is none of another's.
const HOST_MEMORY: u64 = 1 << 40;
/// Hosts of a world that have addresses of their own.
const HOSTS: u64 = 1 << 12;
/// Worlds of a program that have them at one time.
const WORLDS: u64 = (1 << 12) - 1;

/// Devices joined by a wire, and their time.
///
/// A world and everything of its hosts may be used from several threads. One thread at a time has the world locked: a thread
/// that accesses a register, relaxes a clock or calls a method here waits until no other thread does. All threads move the same
/// time. A thread that the machine's scheduler delays may find that its deadlines have passed in simulated time. A short
/// [`WorldConfig::max_step`] bounds that. Used from one thread, a world does the same every time.
///
/// A buffer of another world opens nothing here: worlds that a program has at one time give their memories different device addresses. A
/// program with one world at a time always has the same.
///
/// A listener that a device calls, and the closure of [`Host::with_device`], run with the world locked. They must not wait for
/// another thread that needs it. They may read the clock; register accesses fail there, relaxing does nothing, and any other
/// use of the world or of its hosts panics.
#[derive(Clone, Debug)]
pub struct World {
    state: Arc<WorldState>,
}

impl World {
    /// Creates a world with a wire and no device.
    pub fn new(config: WorldConfig) -> Self {
        let switch = EgressQueues::new(PerfectWire::new(config.latency), config.egress);
        let wire = FaultyWire::new(switch, config.faults, config.seed);
        let (step, read_step) = (config.step, config.read_step);
        let fabric = Fabric::new(wire, None);
        let subnet = ReentrantMutex::new(RefCell::new(Subnet {
            step,
            devices: Vec::new(),
            fabric,
            config,
            ports: Vec::new(),
            capture: None,
        }));
        Self { state: Arc::new(WorldState { now: AtomicU64::new(0), read_step, subnet, number: WorldNumber::take() }) }
    }

    /// Creates a world with two hosts, whose devices have LIDs 1 and 2 and are otherwise as [`DeviceConfig::with_lid`] makes
    /// them.
    pub fn pair(config: WorldConfig) -> (Self, Host, Host) {
        let world = Self::new(config);
        let [first, second] = [1, 2].map(|lid| {
            let map = MemoryMap::default();
            world.attach(DeviceConfig::with_lid(lid), map.clone(), Box::new(map))
        });
        (world, first, second)
    }

    /// Adds a host with a device on the wire, enabled as a kernel leaves it to a driver.
    ///
    /// # Errors
    /// The device cannot be as `config` says ([`DeviceConfig::check`]), another one here has its local identifier, or they cannot
    /// be on one wire ([`DeviceConfig::check_wire`]).
    pub fn add(&self, config: DeviceConfig) -> Result<Host, ConfigError> {
        self.add_with_memory(config, |map| Box::new(map))
    }

    /// [`World::add`] with a device that reaches the memories of its host through what `wrap` makes of their map, such as a
    /// [`LyingMemory`](super::LyingMemory). The host itself reaches them directly.
    ///
    /// # Errors
    /// As of [`World::add`].
    pub fn add_with_memory(
        &self,
        config: DeviceConfig,
        wrap: impl FnOnce(MemoryMap) -> Box<dyn HostMemory + Send>,
    ) -> Result<Host, ConfigError> {
        config.check()?;
        let is_taken = self.state.with(|subnet| subnet.devices.iter().any(|(_, other)| config.collides(other.config())));
        if is_taken {
            return Err(ConfigError::LidTaken { lid: config.lid });
        }
        self.state
            .with(|subnet| DeviceConfig::check_wire(subnet.devices.iter().map(|(_, other)| other.config()).chain([&config])))?;
        let map = MemoryMap::default();
        let memory = wrap(map.clone());
        Ok(self.attach(config, map, memory))
    }

    /// Adds a host whose configuration was checked.
    fn attach(&self, config: DeviceConfig, map: MemoryMap, memory: Box<dyn HostMemory + Send>) -> Host {
        let mut device = Device::of_checked(config, memory);
        device.enable_function();
        device.advance(self.now());
        let device = self.state.with(|subnet| {
            subnet.fabric.wire_mut().inner_mut().inner_mut().attach(device.identity());
            subnet.add(device)
        });
        Host { world: self.clone(), device, map }
    }

    /// Returns the seed of the wire's faults.
    pub fn seed(&self) -> u64 {
        self.state.with(|subnet| subnet.config.seed)
    }

    /// Returns the present moment; time stands still over this call.
    pub fn now(&self) -> Instant {
        self.state.now()
    }

    /// Adds a port of the switch with a cable instead of a device: frames for it go to `cable`, and [`World::arrive_at`] is its other
    /// end.
    pub fn add_cable(&self, cable: Box<dyn Uplink + Send>) -> PortId {
        self.state.with(|subnet| {
            subnet.fabric.wire_mut().inner_mut().inner_mut().attach(PortIdentity::ethernet());
            subnet.add_cable(cable)
        })
    }

    /// Puts an Ethernet frame that came out of the cable of a port on the wire ([`Fabric::arrive_at`]).
    pub fn arrive_at(&self, port: PortId, frame: Vec<u8>) -> Arrival {
        self.state.with(|subnet| subnet.fabric.arrive_at(port, frame, self.now(), |_| {}))
    }

    /// Binds a port of the switch to addresses ([`Fabric::bind`]).
    ///
    /// # Errors
    /// One of the addresses, which another port is bound to.
    pub fn bind(&self, port: PortId, macs: &[[u8; 6]], ips: &[IpAddr]) -> Result<(), StationAddress> {
        self.state.with(|subnet| subnet.fabric.bind(port, macs, ips))
    }

    /// Lets devices and wire do what is due, without moving time.
    pub fn work(&self) {
        self.state.with(|subnet| subnet.work(self.now()));
    }

    /// Moves time on by `duration`, from one thing due to the next.
    pub fn advance(&self, duration: Duration) {
        self.state.with(|subnet| {
            let end = self.now().after(duration);
            loop {
                let now = self.now();
                subnet.work(now);
                match subnet.next_due() {
                    Some(due) if due < end && now < end => self.state.move_to(subnet.next_moment(now, due).min(end)),
                    _ => break,
                }
            }
            self.state.move_to(end);
            subnet.work(end);
        });
    }

    /// Writes what arrives over the wire from now on into `output`, as a pcapng file with an interface for each port: `lid1` and
    /// so on, after [`DeviceConfig::lid`]. Moment 0 is the start of 1970. Ends the capture before, if there is one.
    ///
    /// ```
    /// use bareverbs_sim::in_process::{World, WorldConfig};
    ///
    /// let (world, _a, _b) = World::pair(WorldConfig::default());
    /// let capture = world.capture(Vec::new());
    /// // What the hosts do here is in the file.
    /// capture.finish()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn capture(&self, output: impl io::Write + Send + 'static) -> Capture {
        let output: Box<dyn io::Write + Send> = Box::new(output);
        let file = CaptureFile::new(Mutex::new(PcapNg::new(output, Duration::ZERO)));
        self.state.with(|subnet| subnet.begin_capture(&file));
        Capture::new(Arc::clone(&self.state), file)
    }

    /// Shows what arrives over the wire to `tap` from now on, or to none. Ports have the numbers in which their hosts were
    /// added, from 0. Ends a capture.
    pub fn set_tap(&self, tap: Option<Box<dyn Tap + Send>>) {
        self.state.with(|subnet| subnet.set_tap(tap));
    }

    /// Returns what the wire did to frames so far.
    pub fn wire_stats(&self) -> WireStats {
        self.state.with(|subnet| subnet.fabric.wire_mut().stats())
    }

    /// Returns what happened in the queues of the switch's ports so far.
    pub fn egress_stats(&self) -> EgressStats {
        self.state.with(|subnet| subnet.fabric.wire_mut().inner_mut().stats())
    }

    /// Returns what happened at each device, in the order in which their hosts were added.
    pub fn device_stats(&self) -> Vec<DeviceStats> {
        self.state.with(|subnet| subnet.devices.iter().map(|(_, device)| device.stats()).collect())
    }

    /// Changes what the wire does to frames.
    pub fn set_wire_faults(&self, faults: WireFaults) {
        self.state.with(|subnet| subnet.fabric.wire_mut().set_faults(faults));
    }

    /// Loses each frame that would go from one host of this world to another from now on, or none any more: one direction of a
    /// partition. What is on its way when a cut begins is lost too.
    pub fn set_cut(&self, from: &Host, to: &Host, cut: bool) {
        let (from, to) = (from.port(), to.port());
        self.state.with(|subnet| subnet.fabric.wire_mut().set_cut(from, to, cut));
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
    /// Returns the world around it.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Returns the number of its port on the wire.
    pub fn port(&self) -> PortId {
        self.world
            .state
            .with(|subnet| {
                let (port, _) = subnet.devices.get(self.device)?;
                Some(port.id())
            })
            .unwrap_or(PortId(self.device))
    }

    /// Returns what a driver is brought up on: registers, `arena` bytes of memory, pages for the firmware, fence and clock of this
    /// host.
    pub fn machine(&self, arena: usize) -> Machine<SimPlatform> {
        let (registers, memory, pages) = (self.registers(), self.memory(arena), self.pages(u32::MAX));
        Machine { registers, memory, pages, fence: self.fence(), clock: self.clock() }
    }

    fn first_memory(&self) -> u64 {
        FIRST_MEMORY + (self.world.state.number.get() % WORLDS * HOSTS + self.device as u64 % HOSTS) * HOST_MEMORY
    }

    /// Returns a source of up to `limit` pages for the firmware.
    pub fn pages(&self, limit: u32) -> SimPages {
        SimPages::new(self.map.clone(), self.first_memory(), limit)
    }

    /// BAR0 of the device.
    pub fn registers(&self) -> SimRegisters {
        SimRegisters::new(Arc::clone(&self.world.state), self.device)
    }

    /// Ordering between this host and its device.
    pub fn fence(&self) -> SimFence {
        SimFence
    }

    /// Returns the world's clock.
    pub fn clock(&self) -> SimClock {
        SimClock::new(Arc::clone(&self.world.state))
    }

    /// `len` bytes of zeroed memory that the device reaches, after all memory so far.
    pub fn memory(&self, len: usize) -> SimMemory {
        self.map.append(self.first_memory(), len).in_world(WeakWorld::new(&self.world.state))
    }

    /// `len` bytes of zeroed memory at device address `addr`, a multiple of 4096; `None` if other memory lies there.
    pub fn memory_at(&self, addr: u64, len: usize) -> Option<SimMemory> {
        let memory = SimMemory::new(addr, len);
        self.map.map(&memory).then(|| memory.in_world(WeakWorld::new(&self.world.state)))
    }

    /// Lets the device reach words that are lent for ever, at device address `addr`, a multiple of 4096; `None` if other memory
    /// lies there.
    pub fn lend_memory(&self, addr: u64, words: &'static [AtomicU64]) -> Option<SimMemory> {
        let memory = SimMemory::lent(addr, words);
        self.map.map(&memory).then(|| memory.in_world(WeakWorld::new(&self.world.state)))
    }

    /// Returns the memories that the device reaches.
    pub fn memory_map(&self) -> &MemoryMap {
        &self.map
    }

    /// Does something with the device itself: faults, findings, counts, link, removal. The world stands still meanwhile.
    ///
    /// # Panics
    /// Each call of the world or of its hosts that asks the devices or the wire panics in `work`, and in a [`Tap`] or [`Uplink`], this one
    /// included. Keep what it needs, and call afterwards.
    pub fn with_device<R>(&self, work: impl FnOnce(&mut Device) -> R) -> R {
        self.world.state.with(|subnet| {
            subnet.step = subnet.config.step;
            #[expect(
                clippy::indexing_slicing,
                reason = "the index came from adding the device, and devices are never taken out"
            )]
            work(&mut subnet.devices[self.device].1)
        })
    }

    /// Returns the MSI-X vectors that the device raised since the last call, in order.
    pub fn take_interrupts(&self) -> Vec<u16> {
        // Unlike `with_device`, this gives the device nothing to do: a clock that relaxes continues in long steps.
        self.world
            .state
            .with(|subnet| subnet.devices.get_mut(self.device).map(|(_, device)| device.take_interrupts()).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use bareverbs::platform::{Clock, DmaMemory, Registers};

    use super::*;
    use crate::fault::Fault;

    /// Stages a NOP command in slot 0 of a queue in fresh memory and rings for it.
    fn nop(host: &Host) -> SimMemory {
        let mut memory = host.memory(4096);
        let mut entry = [0; 64];
        entry[0] = 7;
        entry[7] = 16;
        entry[16..18].copy_from_slice(&[0x08, 0x0d]);
        entry[59] = 16;
        entry[63] = 1;
        memory.write(0, &entry).unwrap();
        let mut registers = host.registers();
        registers.write32(0x10, ((memory.device_addr() >> 32) as u32).to_be()).unwrap();
        registers.write32(0x14, (memory.device_addr() as u32).to_be()).unwrap();
        registers.write32(0x18, 1_u32.to_be()).unwrap();
        memory
    }

    #[test]
    fn a_command_is_done_after_relaxing_not_before() {
        let (_, host, _) = World::pair(WorldConfig::default());
        let clock = host.clock();
        while u32::from_be(host.registers().read32(0x1fc).unwrap()) >> 31 != 0 {
            clock.relax(Instant::default());
        }
        let memory = nop(&host);
        assert_eq!(memory.read_u8(63), Ok(1));
        clock.relax(Instant::default());
        assert_eq!(memory.read_u8(63), Ok(0));
    }

    #[test]
    fn waiting_for_a_minute_takes_few_steps_and_every_clock_moves() {
        let (world, host, other) = World::pair(WorldConfig::default());
        host.with_device(|device| device.faults_mut().arm(Fault::StuckCommand { opcode: 0x80d }));
        world.advance(Duration::from_millis(1));
        let memory = nop(&host);
        let start = other.clock().now();
        let mut steps = 0;
        while host.clock().now().since(start) < Duration::from_secs(60) {
            host.clock().relax(Instant::default());
            steps += 1;
        }
        assert_eq!(memory.read_u8(63), Ok(1));
        assert!((60_000..70_000).contains(&steps), "{steps}");
    }

    #[test]
    fn a_look_ends_a_wait_that_never_relaxes() {
        let world = World::new(WorldConfig::default());
        let host = world.add(DeviceConfig::default()).unwrap();
        let clock = host.clock();
        let start = clock.now();
        assert!((0..100).any(|_| clock.now().since(start) > Duration::from_micros(1)));
        assert_eq!(world.now(), world.now());
        host.with_device(|_| clock.now());
    }

    #[test]
    fn hosts_have_memories_of_their_own() {
        let (_, first, second) = World::pair(WorldConfig::default());
        let (mut a, mut b) = (first.memory(100), second.memory(100));
        assert!(b.device_addr() >= a.device_addr() + HOST_MEMORY, "an address of one is none of the other's");
        a.write(0, &[1]).unwrap();
        b.write(0, &[2]).unwrap();
        assert_eq!((a.read_u8(0), b.read_u8(0)), (Ok(1), Ok(2)));
        let more = first.memory(1);
        assert!(more.device_addr() >= a.device_addr() + 0x2000, "an unmapped page lies between them");
        assert!(first.memory_at(a.device_addr(), 8).is_none());
        assert!(first.memory_at(0x10_0000, 8).is_some());
    }
}
