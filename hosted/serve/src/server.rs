//! The server: sockets, devices and the threads that serve them.

use std::collections::BTreeSet;
use std::fmt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use bareverbs_sim::audit::Finding;
use bareverbs_sim::fabric::Uplink;
use bareverbs_sim::identity::PortIdentity;
use bareverbs_sim::trace::Tracer;
use bareverbs_sim::wire::{EgressQueues, FaultyWire, PerfectWire, PortId, Wire, WireFaults};
use bareverbs_sim::{Device, DeviceConfig, DeviceStats, InterruptRouting, PortKind};

use crate::binding::{BindingError, PortBinding};
use crate::client_memory::{Bounds, ClientDma, ClientMemory};
use crate::config::{ControlInput, MAX_LID, ServedDevice, ServerConfig};
use crate::control::{self, Control};
use crate::control_line::ControlLine;
use crate::device_slot::{DeviceSlot, LineOutputs};
use crate::devices::{DeviceHandle, Devices, Dropped, Ended, Running};
use crate::error::ServeError;
use crate::interrupts::{self, Vectors};
use crate::joined::{self, Cable, DatagramAddress, FarEnd, JoinedStats, JoinedWire, NearEnd, StreamAddress};
use crate::log::{Log, RateLimited};
use crate::pci_function::PciFunction;
use crate::record::{Recording, Several};
use crate::socket::{self, Claim};
use crate::trace::{Printer, Sink};
use crate::{fd_limits, wire_link};

/// Maximum number of driver errors that a summary lists.
const MAX_FINDINGS_SHOWN: usize = 20;

/// A running server. Dropping it stops it.
pub struct Server {
    /// `None` after the server has ended.
    running: Option<Running>,
    stopper: Stopper,
    devices: Vec<(u16, DeviceHandle)>,
    listeners: Vec<Arc<UnixListener>>,
    memories: Vec<Arc<ClientMemory>>,
    limited: Vec<Arc<RateLimited>>,
    cables: Vec<Arc<Cable>>,
    claims: Vec<Claim>,
    log: Log,
}

/// Ends a server from any thread, including one that handles signals.
#[derive(Clone)]
pub struct Stopper(DeviceHandle);

impl Stopper {
    /// Ends the server without waiting for its clients. Returns `false` if it was called before.
    pub fn stop(&self) -> bool {
        self.0.stop()
    }
}

impl fmt::Debug for Stopper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stopper").finish_non_exhaustive()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lids: Vec<u16> = self.devices.iter().map(|(lid, _)| *lid).collect();
        f.debug_struct("Server").field("lids", &lids).finish_non_exhaustive()
    }
}

/// The resources of a device before it is served.
struct Prepared {
    name: String,
    lines: Arc<RateLimited>,
    listener: Arc<UnixListener>,
    memory: Arc<ClientMemory>,
    vectors: u16,
}

impl Server {
    /// Creates the sockets and starts to serve.
    ///
    /// # Errors
    /// See [`ServeError`]; the sockets are removed then.
    pub fn start(config: ServerConfig) -> Result<Self, ServeError> {
        interrupts::check().map_err(ServeError::Interrupts)?;
        check_lids(&config.devices)?;
        DeviceConfig::check_wire(config.devices.iter().map(|device| &device.config)).map_err(ServeError::Wire)?;
        if config.link.is_some()
            && let Some(device) = config.devices.iter().find(|device| device.config.managed)
        {
            return Err(ServeError::LinkedManaged { lid: device.config.lid });
        }
        if !config.joined.is_empty() && !config.devices.iter().any(|device| is_ethernet(&device.config)) {
            return Err(ServeError::JoinedInfiniBand);
        }
        let most_vectors = config.devices.iter().map(|device| device.config.vectors).max().unwrap_or_default();
        let files = fd_limits::files(fd_limits::descriptor_limit(), config.devices.len(), most_vectors)?;
        check_paths(&config)?;
        let (near_ends, mut far_ends) = join(&config)?;
        let mut slots = Vec::new();
        let mut prepared = Vec::new();
        let mut claims: Vec<Claim> = far_ends.iter_mut().filter_map(FarEnd::take_claim).collect();
        let mut wire = PerfectWire::default();
        for ServedDevice { config: device, socket: path } in config.devices {
            let device = DeviceConfig { interrupts: InterruptRouting::External, ..device };
            let name = format!("lid{}", device.lid);
            let lines = Arc::new(RateLimited::new(name.clone(), config.log.clone()));
            let memory = Arc::new(ClientMemory::new(Arc::clone(&lines), Bounds { bytes: config.guest_memory, files }));
            let vectors = device.vectors;
            let slot = slot(&name, device, &memory, config.trace.as_ref(), config.recording.as_ref())?;
            let (listener, claim) = socket::listen(&path, config.socket_mode)?;
            wire.attach(slot.device.identity());
            slots.push((slot, Vectors::new(vectors)));
            prepared.push(Prepared { name, lines, listener: Arc::new(listener), memory, vectors });
            claims.push(claim);
        }
        execute(&config.initial_lines, &mut slots)?;

        let lids: Vec<u16> = slots.iter().map(|(slot, _)| slot.device.config().lid).collect();
        let mut ports: Vec<(String, PortKind)> =
            prepared.iter().zip(&slots).map(|(device, (slot, _))| (device.name.clone(), slot.device.config().port)).collect();
        for far in &far_ends {
            wire.attach(PortIdentity::ethernet());
            ports.push((far.name().to_owned(), PortKind::Ethernet { mac: [0; 6] }));
        }
        let cables = far_ends.iter().map(FarEnd::cable).collect();
        let names = prepared.iter().map(|device| device.name.clone()).collect();
        let (near, far) = config.link.as_deref().map(|path| wire_link::link(path, names, &config.log)).transpose()?.unzip();
        let uplink = near.map(|link| Box::new(link) as Box<dyn Uplink + Send>);
        let near_ends = near_ends.into_iter().map(|near| Box::new(near) as Box<dyn Uplink + Send>).collect();
        let wire = match config.egress {
            Some(limits) => with_faults(config.wire_faults, config.seed, EgressQueues::new(wire, Some(limits))),
            None => with_faults(config.wire_faults, config.seed, wire),
        };
        let all = Devices::new(slots, wire, uplink, near_ends, &config.log);
        bind(&all, &ports, &config.bindings)?;
        if let Some(capture) = &config.capture {
            all.set_tap(capture.tap(ports.into_iter()));
        }
        let devices: Vec<(u16, DeviceHandle)> =
            lids.iter().enumerate().map(|(number, lid)| (*lid, all.handle(number))).collect();
        let stopper = Stopper(all.handle(0));
        let running = Some(all.start()?);
        // After an error below, the drop of `server` stops the threads that were started.
        let mut server = Self {
            running,
            stopper,
            devices,
            listeners: Vec::new(),
            memories: Vec::new(),
            limited: Vec::new(),
            cables,
            claims,
            log: config.log,
        };
        for (Prepared { name, lines, listener, memory, vectors }, (_, handle)) in prepared.into_iter().zip(&server.devices) {
            server.listeners.push(Arc::clone(&listener));
            server.memories.push(Arc::clone(&memory));
            server.limited.push(Arc::clone(&lines));
            let log = server.log.clone();
            let function = PciFunction::new(name.clone(), lines, vectors, handle.clone(), memory);
            thread::Builder::new()
                .name(name)
                .spawn(move || socket::serve(&listener, function, log))
                .map_err(ServeError::Thread)?;
        }
        if let Some(far) = far {
            let (handle, ports) = (server.stopper.0.clone(), server.stopper.0.clone());
            let deliver = move |frame| handle.offer(frame);
            let here = move |lid| ports.has_lid(lid);
            thread::Builder::new().name("link".into()).spawn(move || far.run(here, deliver)).map_err(ServeError::Thread)?;
        }
        for (port, far) in (server.devices.len()..).map(PortId).zip(far_ends) {
            let handle = server.stopper.0.clone();
            let deliver = move |frame| handle.arrive_at(port, frame);
            let thread = thread::Builder::new().name(far.name().to_owned());
            thread.spawn(move || far.run(deliver)).map_err(ServeError::Thread)?;
        }
        if let Some(input) = config.control {
            server.start_control(input, config.socket_mode, config.recording)?;
        }
        Ok(server)
    }

    fn start_control(
        &mut self,
        input: ControlInput,
        mode: Option<u32>,
        recording: Option<Recording>,
    ) -> Result<(), ServeError> {
        let (devices, cables) = (self.devices.clone(), self.cables.clone());
        let control = Control { devices, cables, recording, log: self.log.clone() };
        let thread = thread::Builder::new().name("control".into());
        let started = match input {
            ControlInput::Stdin => thread.spawn(move || control.listen()),
            ControlInput::Socket(path) => {
                // By default only the user of the server may send commands.
                let (listener, claim) = socket::listen(&path, Some(mode.unwrap_or(0o600)))?;
                let listener = Arc::new(listener);
                self.claims.push(claim);
                self.listeners.push(Arc::clone(&listener));
                thread.spawn(move || control.serve(&listener))
            }
        };
        started.map(drop).map_err(ServeError::Thread)
    }

    /// Returns a handle that ends this server from another thread.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Returns the counters of the device with this LID in the configuration; `None` if there is none.
    pub fn stats(&self, lid: u16) -> Option<DeviceStats> {
        let (_, handle) = self.devices.iter().find(|(known, _)| *known == lid)?;
        handle.inspect(|slot| slot.device.stats()).ok()
    }

    /// Returns what happened at the joined wires, in the order of the configuration.
    pub fn joined(&self) -> Vec<JoinedStats> {
        self.cables.iter().map(|cable| cable.stats()).collect()
    }

    /// Serves until [`Stopper::stop`], then returns a summary.
    pub fn wait(mut self) -> Summary {
        let ended = self.running.take().map_or_else(Ended::default, Running::wait);
        self.close();
        self.limited.iter().for_each(|lines| lines.finish());
        self.cables.iter().for_each(|cable| cable.finish());
        let Ended { slots, stuck, discarded } = ended;
        Summary { devices: slots.iter().map(summarize).collect(), joined: self.joined(), stuck, discarded }
    }

    /// Stops the server and returns a summary.
    pub fn stop(self) -> Summary {
        self.stopper.stop();
        self.wait()
    }

    /// Ends the threads of the sockets, and removes the sockets.
    fn close(&mut self) {
        for listener in self.listeners.drain(..) {
            // Interrupts a blocked accept(2), for which std has no function.
            let _ = rustix::net::shutdown(&*listener, rustix::net::Shutdown::Both);
        }
        self.memories.drain(..).for_each(|memory| memory.hang_up());
        self.claims.clear();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(running) = self.running.take() {
            running.wait();
        }
        self.close();
    }
}

/// Summary of a server that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The devices whose threads ended, in the order of the configuration.
    pub devices: Vec<DeviceSummary>,
    /// The joined wires, in the order of the configuration.
    pub joined: Vec<JoinedStats>,
    /// Names of devices whose threads do not end: they wait for the client's memory, or for a file that takes no more lines.
    pub stuck: Vec<String>,
    /// Names of devices that did not take frames in time, and how many of each were discarded.
    pub discarded: Vec<(String, u64)>,
}

/// Counters of a device, and errors of its drivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSummary {
    /// LID in the configuration.
    pub lid: u16,
    /// Its counters.
    pub stats: DeviceStats,
    /// Errors of its drivers, in order of time.
    pub findings: Vec<Finding>,
    /// Number of further errors, which are not in `findings`.
    pub more_findings: u64,
}

fn summarize(slot: &DeviceSlot) -> DeviceSummary {
    let audit = slot.device.audit();
    DeviceSummary {
        lid: slot.device.config().lid,
        stats: slot.device.stats(),
        findings: audit.findings().to_vec(),
        more_findings: audit.dropped(),
    }
}

impl fmt::Display for Summary {
    /// Writes one line for each device and for each problem.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.devices.iter().try_for_each(|device| write!(f, "{device}"))?;
        self.joined.iter().try_for_each(|wire| writeln!(f, "{wire}"))?;
        for (name, frames) in &self.discarded {
            writeln!(f, "{name}: {frames} frames discarded that it did not take in time")?;
        }
        for name in &self.stuck {
            writeln!(
                f,
                "{name}: its thread does not end: it waits for the client's memory, or for a file that takes no more lines"
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for DeviceSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lid, stats, findings, more_findings } = self;
        writeln!(
            f,
            "lid{lid}: {} commands, {} doorbells, {} interrupts, {} frames sent, {} received",
            stats.commands, stats.doorbells, stats.interrupts, stats.frames_sent, stats.frames_received
        )?;
        for finding in findings.iter().take(MAX_FINDINGS_SHOWN) {
            writeln!(f, "lid{lid}: driver: {finding:?}")?;
        }
        let more = (findings.len() as u64 + more_findings).saturating_sub(MAX_FINDINGS_SHOWN as u64);
        if more > 0 {
            writeln!(f, "lid{lid}: driver: {more} more mistakes")?;
        }
        Ok(())
    }
}

fn is_ethernet(device: &DeviceConfig) -> bool {
    matches!(device.port, PortKind::Ethernet { .. })
}

/// Creates the cables of the joined wires, at the ports behind those of the devices.
fn join(config: &ServerConfig) -> Result<(Vec<NearEnd>, Vec<FarEnd>), ServeError> {
    let name = |number: usize| format!("join{}", number + 1);
    let devices = config.devices.iter().map(|device| format!("lid{}", device.config.lid));
    let ports: Vec<String> = devices.chain((0..config.joined.len()).map(name)).collect();
    let cable = |(number, wire)| joined::join(name(number), wire, ports.clone(), config.socket_mode, &config.log);
    let cables: Result<Vec<_>, ServeError> = config.joined.iter().enumerate().map(cable).collect();
    Ok(cables?.into_iter().unzip())
}

/// Binds ports, whose names and kinds are given in their order, to their addresses.
fn bind(all: &Devices, ports: &[(String, PortKind)], bindings: &[PortBinding]) -> Result<(), ServeError> {
    for (number, binding) in bindings.iter().enumerate() {
        let refused = |error| ServeError::Binding(binding.port.clone(), error);
        let place = ports.iter().position(|(name, kind)| *name == binding.port && *kind != PortKind::InfiniBand);
        let place = place.ok_or_else(|| refused(BindingError::NoSuchPort))?;
        if bindings.iter().take(number).any(|earlier| earlier.port == binding.port) {
            return Err(refused(BindingError::Twice));
        }
        let is_cable = matches!(ports.get(place), Some((_, PortKind::Ethernet { mac: [0, 0, 0, 0, 0, 0] })));
        if is_cable && binding.macs.is_empty() {
            return Err(refused(BindingError::NoMac));
        }
        all.bind(PortId(place), binding).map_err(|address| refused(BindingError::Taken(address)))?;
    }
    Ok(())
}

/// Creates a device with its tracers.
fn slot(
    name: &str,
    config: DeviceConfig,
    memory: &Arc<ClientMemory>,
    trace: Option<&Sink>,
    recording: Option<&Recording>,
) -> Result<DeviceSlot, ServeError> {
    let lid = config.lid;
    let device = Device::with_memory(config, ClientDma(Arc::clone(memory)));
    let mut device = device.map_err(|error| ServeError::Config { lid, error })?;
    let mut tracers: Vec<Box<dyn Tracer + Send>> = Vec::new();
    let mut outputs = LineOutputs::default();
    if let Some(sink) = trace {
        let sink = sink.for_source();
        outputs.trace = Some(sink.clone());
        tracers.push(Box::new(Printer::new(name, device.config().port, sink)));
    }
    if let Some(recording) = recording {
        let recorder = recording.tracer(name, device.config());
        outputs.recording = Some(recorder.recording().clone());
        tracers.push(Box::new(recorder));
    }
    if !tracers.is_empty() {
        device.set_tracer(Some(Several(tracers)));
    }
    Ok(DeviceSlot { device, outputs })
}

/// Checks that there are devices, and that each has a valid and unique LID.
fn check_lids(devices: &[ServedDevice]) -> Result<(), ServeError> {
    if devices.is_empty() {
        return Err(ServeError::NoDevices);
    }
    let mut lids = BTreeSet::new();
    for lid in devices.iter().map(|device| device.config.lid) {
        if !(1..=MAX_LID).contains(&lid) {
            return Err(ServeError::Lid(lid));
        }
        if !lids.insert(lid) {
            return Err(ServeError::LidTwice(lid));
        }
    }
    Ok(())
}

/// Checks that no two sockets have the same path.
fn check_paths(config: &ServerConfig) -> Result<(), ServeError> {
    let control = match &config.control {
        Some(ControlInput::Socket(path)) => Some(path),
        _ => None,
    };
    let devices = config.devices.iter().map(|device| &device.socket);
    let joined = config.joined.iter().filter_map(|wire| match wire {
        JoinedWire::Stream { address: StreamAddress::Unix(path), .. } => Some(path),
        JoinedWire::Datagram(DatagramAddress::Unix { local, .. }) => Some(local),
        _ => None,
    });
    let mut paths = BTreeSet::<PathBuf>::new();
    for path in devices.chain(&config.link).chain(control).chain(joined) {
        // Without a current folder, the path is compared as it is.
        if !paths.insert(std::path::absolute(path).unwrap_or_else(|_| path.clone())) {
            return Err(ServeError::Twice(path.clone()));
        }
    }
    Ok(())
}

/// Executes the initial lines of the configuration.
fn execute(lines: &[ControlLine], slots: &mut [(DeviceSlot, Vectors)]) -> Result<(), ServeError> {
    for ControlLine { lid, act } in lines {
        let slot = slots.iter_mut().find(|(slot, _)| slot.device.config().lid == *lid);
        let (slot, _) = slot.ok_or(ServeError::NoSuchLid(*lid))?;
        control::apply(slot, Dropped::default(), *act);
    }
    Ok(())
}

fn with_faults(faults: WireFaults, seed: u64, wire: impl Wire + Send + 'static) -> Box<dyn Wire + Send> {
    if faults == WireFaults::NONE { Box::new(wire) } else { Box::new(FaultyWire::new(wire, faults, seed)) }
}

#[cfg(test)]
mod tests {
    use bareverbs::platform::Instant;
    use bareverbs_sim::wire::Delivery;
    use bareverbs_sim::wire::Probability;

    use super::*;

    /// Sends frames a microsecond apart on a wire with these faults. Returns their numbers in the order of arrival.
    fn arrivals(faults: WireFaults) -> Vec<u32> {
        let mut wire = PerfectWire::default();
        let (from, _) = (wire.attach(PortIdentity::with_lid(1)), wire.attach(PortIdentity::with_lid(2)));
        let mut wire = with_faults(faults, 1, wire);
        let mut got = Vec::new();
        for number in 0..10_000_u32 {
            let now = Instant::from_nanos(u64::from(number) * 1000);
            wire.send(now, from, [&[0, 0, 0, 2], &number.to_be_bytes()[..]].concat());
            while let Some(Delivery { to, frame, .. }) = wire.deliver(now) {
                assert_eq!(to, PortId(1));
                got.push(u32::from_be_bytes(*frame.last_chunk().unwrap()));
            }
        }
        got
    }

    #[test]
    fn the_wire_does_what_the_configuration_asks_for() {
        let per_cent = |value| Probability::per_cent(value).unwrap();
        assert!(arrivals(WireFaults::NONE).into_iter().eq(0..10_000));
        let mut latest = 0;
        let late = arrivals(WireFaults { reordering: per_cent(20.0), ..WireFaults::NONE }).into_iter().filter(|number| {
            latest = latest.max(*number);
            *number < latest
        });
        assert!((1800..2200).contains(&late.count()));
        let lost = 10_000 - arrivals(WireFaults { loss: per_cent(0.04), ..WireFaults::NONE }).len();
        assert!((1..20).contains(&lost), "{lost}");
        let twice = arrivals(WireFaults { duplication: per_cent(5.0), ..WireFaults::NONE }).len() - 10_000;
        assert!((400..600).contains(&twice), "{twice}");
    }
}
