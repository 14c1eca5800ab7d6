//! The device: configuration space, BAR0, wire, time.

use std::fmt;
use std::sync::Arc;

use bareverbs::platform::Instant;
use bareverbs_mlx5_spec::{QpcState, UAR_PAGE};

use crate::audit::Audit;
use crate::command::command_queue::CommandQueue;
use crate::command::gateway_command;
use crate::config::{ConfigError, DeviceConfig, InterruptRouting};
use crate::fabric::frame_pool::FramePool;
use crate::fault::Faults;
use crate::firmware::event_queues::Event;
use crate::firmware::{Firmware, HcaState};
use crate::host_memory::{DmaFault, HostMemory};
use crate::identity::PortIdentity;
use crate::pci::{ConfigEffect, ConfigSpace};
use crate::registers::bar0::{BAR0_SIZE, DEVICE_MEMORY_START, FIRST_UAR, MSIX_PENDING, MSIX_TABLE};
use crate::registers::health::{Health, HealthReport};
use crate::registers::init_segment::{InitSegment, NicInterface, SCAN_SIZE};
use crate::registers::msix::{Gate, Msix};
use crate::registers::uar::Doorbells;
use crate::registry::ObjectKind;
use crate::rejection::Rejections;
use crate::stats::{DeviceCounts, DeviceStats};
use crate::step::StepContext;
use crate::step::{Meter, Metered};
use crate::trace::Tracer;

/// Host memory of a function that is no bus master: every access fails.
struct NoBusMaster;

impl HostMemory for NoBusMaster {
    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        Err(DmaFault { addr, len: into.len() })
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), DmaFault> {
        Err(DmaFault { addr, len: from.len() })
    }
}

/// Time, memory, tracer, faults, audit and rejections of the device.
struct DeviceContext<M, T> {
    now: Instant,
    memory: Metered<M>,
    tracer: Option<T>,
    faults: Faults,
    audit: Audit,
    rejections: Rejections,
}

impl<M: HostMemory, T: Tracer + 'static> DeviceContext<M, T> {
    fn ctx(&mut self, bus_master: bool) -> StepContext<'_> {
        StepContext {
            now: self.now,
            memory: if bus_master { &self.memory } else { &NoBusMaster },
            meter: &self.memory.meter,
            tracer: self.tracer.as_mut().map(|tracer| tracer as &mut dyn Tracer),
            faults: &mut self.faults,
            audit: &mut self.audit,
            rejections: &mut self.rejections,
        }
    }
}

/// A simulated ConnectX function with one port.
///
/// It does its work in [`Device::advance`] alone, apart from the effect of a register access. It is `Send` if its memory and
/// its tracer are.
pub struct Device<M = Box<dyn HostMemory + Send>, T = Box<dyn Tracer + Send>> {
    context: DeviceContext<M, T>,
    pci: ConfigSpace,
    msix: Msix,
    init: InitSegment,
    commands: CommandQueue,
    doorbells: Doorbells,
    firmware: Firmware,
    health: Health,
    removed: bool,
    /// Writes to BAR0 before it is removed.
    writes_left: Option<u64>,
    /// End of the reset that is going on, or was.
    reset_until: Instant,
    /// Until when configuration space is not answered: the end of a function-level reset.
    silent_until: Instant,
    stats: DeviceStats,
}

impl<M, T> fmt::Debug for Device<M, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("lid", &self.firmware.port.identity().lid())
            .field("state", &self.firmware.state)
            .finish_non_exhaustive()
    }
}

/// Returns the configuration space of a device at power-on.
fn config_space(config: &DeviceConfig) -> ConfigSpace {
    let space = ConfigSpace::new(config.pci_device_id, config.vectors, SCAN_SIZE);
    if config.mac().is_some() { space.with_ethernet_class() } else { space }
}

impl Device {
    /// Creates a device in its state at power-on. It reaches `memory` by DMA once the host makes it bus master.
    ///
    /// # Errors
    /// It cannot be as `config` says: see [`DeviceConfig::check`].
    pub fn new(config: DeviceConfig, memory: Box<dyn HostMemory + Send>) -> Result<Self, ConfigError> {
        Self::with_memory(config, memory)
    }

    /// Returns the bytes of BAR0.
    pub const fn bar_len() -> u64 {
        BAR0_SIZE
    }
}

impl<M: HostMemory, T: Tracer + 'static> Device<M, T> {
    /// Same as [`Device::new`], with memory and tracers of one type each.
    ///
    /// # Errors
    /// See [`Device::new`].
    pub fn with_memory(config: DeviceConfig, memory: M) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self::of_checked(config, memory))
    }

    /// [`Device::with_memory`] with a configuration that was checked.
    pub(crate) fn of_checked(config: DeviceConfig, memory: M) -> Self {
        let now = Instant::default();
        let memory = Metered { memory, meter: Meter::default() };
        Self {
            context: DeviceContext {
                now,
                memory,
                tracer: None,
                faults: Faults::default(),
                audit: Audit::default(),
                rejections: Rejections::default(),
            },
            pci: config_space(&config),
            msix: Msix::new(config.vectors),
            init: InitSegment::new(&config, now),
            commands: CommandQueue::default(),
            doorbells: Doorbells::default(),
            firmware: Firmware::new(config),
            health: Health::default(),
            removed: false,
            writes_left: None,
            reset_until: now,
            silent_until: now,
            stats: DeviceStats::default(),
        }
    }

    fn gate(&self) -> Gate {
        Gate {
            enabled: self.pci.msix_enabled() && self.pci.bus_master(),
            masked: self.pci.msix_masked(),
            external: self.firmware.config.interrupts == InterruptRouting::External,
        }
    }

    /// Returns whether the function answers nothing, not even accesses to configuration space.
    fn is_silent(&self) -> bool {
        self.removed || self.context.now < self.silent_until
    }

    /// Reads configuration space. It reads as all ones until a function-level reset is over, as a root port makes of requests that a
    /// function asks to repeat (PCI Express Base Specification, 2.3.1 and 6.6.2).
    pub fn config_read(&mut self, offset: usize, into: &mut [u8]) {
        if self.is_silent() {
            into.fill(0xff);
        } else {
            self.pci.read(offset, into);
        }
    }

    /// Writes configuration space.
    pub fn config_write(&mut self, offset: usize, from: &[u8]) {
        if self.is_silent() {
            return;
        }
        match self.pci.write(offset, from) {
            ConfigEffect::Reset => {
                self.reset();
                self.silent_until = self.reset_until;
            }
            ConfigEffect::Msix => self.msix.release(self.gate()),
            ConfigEffect::Scan { at } => {
                let mut register = [0; 4];
                self.init.read(&self.health, self.context.now, at, &mut register);
                self.pci.scanned(at, u32::from_be_bytes(register));
            }
            ConfigEffect::Command { opcode } => {
                let bus_master = self.pci.bus_master();
                let mut ctx = self.context.ctx(bus_master);
                let status = gateway_command::run(&mut self.firmware, &mut ctx, opcode, self.pci.mailbox());
                self.pci.commanded(status);
                self.after_work();
            }
            ConfigEffect::None => {}
        }
    }

    /// Enables the function as a kernel does before its driver starts: memory space, bus master and MSI-X on, every vector
    /// unmasked.
    pub fn enable_function(&mut self) {
        self.pci.enable();
        self.msix.unmask_all();
    }

    /// Returns whether the device answers an access to these bytes of BAR0.
    fn decodes(&self, offset: u64, len: usize) -> bool {
        !self.removed
            && self.context.now >= self.reset_until
            && self.pci.memory_enabled()
            && offset.saturating_add(len as u64) <= BAR0_SIZE
    }

    /// Reads BAR0 from byte `offset` on, as bytes of a big-endian register file. Reads all ones where the device does not
    /// answer.
    pub fn bar_read(&self, offset: u64, into: &mut [u8]) {
        into.fill(0xff);
        let Ok(at) = usize::try_from(offset) else { return };
        if !self.decodes(offset, into.len()) {
            return;
        }
        if offset >= DEVICE_MEMORY_START {
            self.firmware.engine.read_memory(offset, into);
            return;
        }
        let table = MSIX_TABLE..MSIX_TABLE + self.msix.vectors() * 16;
        if table.contains(&at) {
            self.msix.read_table(at - MSIX_TABLE, into);
        } else if (MSIX_PENDING..MSIX_PENDING + 32).contains(&at) {
            self.msix.read_pending(at - MSIX_PENDING, into);
        } else {
            self.init.read(&self.health, self.context.now, at, into);
        }
    }

    /// Writes BAR0 from byte `offset` on. A write to a place without a register has no effect.
    pub fn bar_write(&mut self, offset: u64, from: &[u8]) {
        match &mut self.writes_left {
            Some(0) => self.removed = true,
            Some(left) => *left -= 1,
            None => {}
        }
        let Ok(at) = usize::try_from(offset) else { return };
        if !self.decodes(offset, from.len()) {
            return;
        }
        if offset >= DEVICE_MEMORY_START {
            self.firmware.engine.write_memory(offset, from);
        } else if at >= FIRST_UAR as usize * UAR_PAGE {
            self.write_uar(at, from);
        } else if (MSIX_TABLE..MSIX_TABLE + self.msix.vectors() * 16).contains(&at) {
            let gate = self.gate();
            self.msix.write_table(at - MSIX_TABLE, from, gate);
        } else {
            self.write_init_segment(at, from);
        }
    }

    fn write_uar(&mut self, at: usize, from: &[u8]) {
        self.stats.doorbells += 1;
        if self.firmware.state != HcaState::Running || self.health.report.reset_required {
            return;
        }
        let bus_master = self.pci.bus_master();
        let mut ctx = self.context.ctx(bus_master);
        self.doorbells.write(&mut self.firmware, &mut ctx, (at / UAR_PAGE) as u32, at % UAR_PAGE, from);
        self.after_work();
    }

    fn write_init_segment(&mut self, at: usize, from: &[u8]) {
        let before = self.init.nic_interface();
        for (i, dword) in from.chunks_exact(4).enumerate() {
            let rung = dword.first_chunk().and_then(|value| self.init.write(at + i * 4, u32::from_be_bytes(*value)));
            // Without a queue there is nothing to fetch: after a reset that the driver does not know of, for instance.
            if let Some(slots) = rung
                && self.init.command_queue().is_some()
            {
                self.commands.ring(slots);
            }
        }
        match self.init.nic_interface() {
            NicInterface::Full => {}
            NicInterface::Disabled => self.commands.forget(),
            NicInterface::Reset => {
                self.reset_function();
                self.init.disable();
            }
        }
        if before != NicInterface::Full && self.init.nic_interface() == NicInterface::Full {
            self.commands.forget();
        }
    }

    /// Sets the device's time for the registers that show it. A time before the present one is ignored.
    pub fn set_time(&mut self, now: Instant) {
        self.context.now = self.context.now.max(now);
    }

    /// Does work that is due at `now`, until [`Budget::TURN`](crate::Budget::TURN) is reached together with what doorbells and
    /// frames have taken since the last call; [`Device::next_due`] says whether some is left. A time before the present one is
    /// ignored.
    pub fn advance(&mut self, now: Instant) {
        self.set_time(now);
        self.work();
        self.context.memory.meter.restart();
    }

    fn work(&mut self) {
        if self.removed {
            return;
        }
        let bus_master = self.pci.bus_master();
        let mut ctx = self.context.ctx(bus_master);
        if !self.health.report.reset_required && self.init.ready(ctx.now) {
            if let Some(queue) = self.init.command_queue() {
                self.stats.commands += self.commands.run(&mut self.firmware, &mut ctx, queue);
            }
            if self.firmware.state == HcaState::Running {
                self.firmware.advance_port(&mut ctx);
                self.firmware.answer_management_requests(&mut ctx);
                self.firmware.engine.advance(&mut ctx);
                self.firmware.send_traps(&mut ctx);
            }
        }
        self.after_work();
    }

    /// Events and interrupts of what was just done.
    fn after_work(&mut self) {
        let gate = self.gate();
        let bus_master = self.pci.bus_master();
        let mut ctx = self.context.ctx(bus_master);
        self.firmware.post_events(&mut ctx);
        for vector in self.firmware.eqs.take_interrupts() {
            self.stats.interrupts += 1;
            self.msix.raise(vector, gate);
        }
    }

    /// Returns the requests of the host that the device does not support: a line for each new one since the last call. Each is
    /// reported once.
    pub fn take_unsupported(&mut self) -> Vec<String> {
        self.firmware.unsupported.take()
    }

    /// Returns when [`Device::advance`] next has work: a past time if it has some now, `None` if only the host or the wire can
    /// cause any.
    pub fn next_due(&self) -> Option<Instant> {
        if self.removed || self.health.report.reset_required {
            return None;
        }
        let ready = self.init.ready_at();
        if ready > self.context.now {
            return Some(ready);
        }
        let commands = self.commands.next_due(self.context.now);
        commands.into_iter().chain(self.firmware.next_due()).min()
    }

    /// Returns whether frames have not used up their share of this turn. [`Device::receive`] takes more of them, but the turn
    /// is then longer than [`Budget::TURN`](crate::Budget::TURN).
    pub fn may_receive(&self) -> bool {
        !self.context.memory.meter.is_half_spent()
    }

    /// Takes a frame (LRH to ICRC, or an Ethernet frame without check sequence) from the wire. It is lost while the port is down.
    pub fn receive(&mut self, frame: &[u8]) {
        self.context.memory.meter.count(1);
        if !self.carries(frame) {
            return;
        }
        let bus_master = self.pci.bus_master();
        let mut ctx = self.context.ctx(bus_master);
        if self.firmware.port.is_too_long(frame) {
            ctx.note(|| format!("frame of {} bytes dropped: longer than the MTU of the port", frame.len()));
            self.firmware.port.refuse_long_frame();
            return;
        }
        self.stats.frames_received += 1;
        self.firmware.port.count_received(frame);
        self.firmware.engine.receive(&mut ctx, frame);
        self.after_work();
    }

    /// Returns the buffers for the frames to come.
    pub(crate) fn frame_pool(&mut self) -> &mut FramePool {
        self.firmware.engine.frame_pool()
    }

    /// Returns the next frame for the wire.
    pub fn transmit(&mut self) -> Option<Vec<u8>> {
        loop {
            let frame = self.firmware.engine.transmit()?;
            // Frames of the queues are lost while the port is down, and if they are longer than its MTU.
            if self.carries(&frame) && !self.firmware.port.is_too_long(&frame) {
                self.stats.frames_sent += 1;
                self.firmware.port.count_sent(&frame);
                return Some(frame);
            }
            self.firmware.port.discard(&frame);
        }
    }

    fn carries(&self, frame: &[u8]) -> bool {
        !self.removed
            && self.firmware.state == HcaState::Running
            && self.firmware.port.carries(frame)
            && !self.health.report.reset_required
    }

    /// Returns the MSI-X vectors that were raised since the last call, in order.
    pub fn take_interrupts(&mut self) -> Vec<u16> {
        self.msix.take_raised()
    }

    /// Returns whether an interrupt was raised that was not taken yet.
    pub fn has_interrupts(&self) -> bool {
        self.msix.has_raised()
    }

    /// Function-level reset: everything but time, faults, findings, rejections, the cable and what a subnet manager set is as at power-on,
    /// configuration space included. It takes [`DeviceConfig::reset_time`].
    pub fn reset(&mut self) {
        let config = &self.firmware.config;
        self.reset_until = self.context.now.after(config.reset_time);
        self.silent_until = self.context.now;
        self.pci = config_space(config);
        self.msix = Msix::new(config.vectors);
        self.init = InitSegment::new(config, self.reset_until);
        self.reset_function();
    }

    fn reset_function(&mut self) {
        self.firmware.restart();
        self.firmware.pages.forget();
        self.firmware.count_pages();
        self.commands = CommandQueue::default();
        self.doorbells = Doorbells::default();
        self.health = Health::default();
    }

    /// Plugs or pulls the cable. The driver gets a port change event.
    pub fn set_link(&mut self, plugged: bool) {
        self.firmware.port.set_cable(plugged, self.context.now);
        let bus_master = self.pci.bus_master();
        let mut ctx = self.context.ctx(bus_master);
        self.firmware.port_changed(&mut ctx);
        self.after_work();
    }

    /// Gives a managed port the M_Key, protection and lease that it had at the start ([`DeviceConfig::m_key`]), after a manager
    /// that is gone, or none, has locked it.
    pub fn release_management_key(&mut self) {
        self.firmware.port.release_management_key(&self.firmware.config);
    }

    /// Returns whether the port is active: it carries frames.
    pub fn link_is_up(&self) -> bool {
        self.firmware.port.is_active()
    }

    /// Returns who the port is on its subnet: what a switch routes by.
    pub fn identity(&self) -> Arc<PortIdentity> {
        Arc::clone(self.firmware.port.identity())
    }

    /// Returns the local identifier of the port; 0 while it waits for a subnet manager.
    pub fn lid(&self) -> u16 {
        self.firmware.port.identity().lid()
    }

    /// Removes the device from its slot, or puts it back as it was. A removed device reads as all ones and does nothing.
    pub fn set_removed(&mut self, removed: bool) {
        self.removed = removed;
        self.writes_left = None;
    }

    /// Removes the device from its slot at a moment of its driver's work: at the write to its registers after this many more, which is
    /// lost. Each firmware command and each doorbell is a write.
    pub const fn remove_after(&mut self, writes: u64) {
        self.writes_left = Some(writes);
    }

    /// Sets what the health buffer reports. A report that requires a reset stops the device and its health counter, and causes
    /// an internal error event.
    pub fn set_health(&mut self, report: HealthReport) {
        let fatal = report.reset_required && !self.health.report.reset_required;
        self.health = Health { report, stopped: report.reset_required.then_some(self.context.now) };
        if fatal {
            let bus_master = self.pci.bus_master();
            let mut ctx = self.context.ctx(bus_master);
            self.firmware.eqs.post(&mut ctx, Event::internal_error());
            self.after_work();
        }
    }

    /// Stops the health counter without any other sign, or starts it again.
    pub fn freeze_health(&mut self, frozen: bool) {
        self.health.stopped = frozen.then_some(self.context.now);
    }

    /// Returns what the health buffer reports.
    pub fn health(&self) -> HealthReport {
        self.health.report
    }

    /// Passes all that happens from now on to `tracer`.
    pub fn set_tracer(&mut self, tracer: Option<T>) {
        self.context.tracer = tracer;
    }

    /// Returns the faults that are armed.
    pub fn faults_mut(&mut self) -> &mut Faults {
        &mut self.context.faults
    }

    /// Gives the memory keys that the driver makes next indices from this one on, now and after each reset, as far as there are so many.
    /// With another start for each device, a key that is used at the wrong device is refused as unknown.
    pub fn start_keys_at(&mut self, index: u32) {
        self.firmware.engine.registry_mut().start_mkeys_at(index);
    }

    /// Returns the findings of the audit so far.
    pub fn audit(&self) -> &Audit {
        &self.context.audit
    }

    /// Returns the findings of the audit, to be taken out.
    pub fn audit_mut(&mut self) -> &mut Audit {
        &mut self.context.audit
    }

    /// Returns what the device refused or dropped, and why: more than it tells its driver.
    pub fn rejections(&self) -> &Rejections {
        &self.context.rejections
    }

    /// Returns whether the device is out of its slot.
    pub fn is_removed(&self) -> bool {
        self.removed
    }

    /// Returns the queue pairs that complete into a completion queue, by number, each with its state.
    pub fn queue_pairs_of(&self, cqn: u32) -> Vec<(u32, QpcState)> {
        self.firmware.engine.queue_pairs_of(cqn)
    }

    /// Returns the number of live objects and pages.
    pub fn counts(&self) -> DeviceCounts {
        let count = |kind| self.firmware.engine.registry().count(kind);
        DeviceCounts {
            engine: self.firmware.engine.counts(),
            eqs: count(ObjectKind::Eq),
            uars: count(ObjectKind::Uar),
            pds: count(ObjectKind::Pd),
            xrcds: count(ObjectKind::Xrcd),
            user_contexts: count(ObjectKind::UserContext),
            user_memories: count(ObjectKind::Umem),
            pages_held: self.firmware.pages.held(),
            pages_lost: self.firmware.pages.lost(),
        }
    }

    /// Returns the bytes of this process that the device takes, estimated from above. Counted are objects with their lists,
    /// requests in progress, and a fixed part for everything else, which is bounded. It stays below
    /// [`DeviceConfig::memory_limit`].
    pub fn memory_used(&self) -> u64 {
        self.firmware.engine.registry().memory_used()
    }

    /// Returns what happened since power-on.
    pub fn stats(&self) -> DeviceStats {
        DeviceStats { events_dropped: self.firmware.eqs.dropped(), engine: self.firmware.engine.stats(), ..self.stats }
    }

    /// Returns how far the driver has brought the device.
    pub fn state(&self) -> HcaState {
        self.firmware.state
    }

    /// Returns the identity, limits, options.
    pub fn config(&self) -> &DeviceConfig {
        &self.firmware.config
    }
}
