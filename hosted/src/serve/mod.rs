//! `bareverbs sim serve`: simulated devices for virtual machines, over vfio-user.

pub mod args;
mod control;
mod descriptors;
mod error;
mod function;
mod heap;
mod link;
mod memory;
mod messages;
mod protocol;
mod receive;
mod shrunk;
mod socket;
mod spin;
mod subnet;
mod values;
mod vectors;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use bareverbs_sim::trace::Tracer;
use bareverbs_sim::wire::{FaultyWire, PerfectWire, Wire, WireFaults};
use bareverbs_sim::{Device, DeviceConfig, InterruptRouting, MIN_MEMORY_LIMIT, PageDemand};

use self::args::{ServeArgs, TroubleArgs};
use self::control::{Control, Line};
pub use self::error::ServeError;
use self::function::Function;
use self::memory::{Bounds, ClientMemory, Reach};
use self::messages::Limited;
use self::subnet::{Ended, Handle, LineOutputs, Station, Subnet};
use self::values::LimitTo;
use self::vectors::Vectors;
use crate::record::{Recording, Several};
use crate::trace::{Printer, Sink};

/// Mistakes of a driver that the report names one by one.
const FINDINGS_TOLD: usize = 20;

/// Serves the devices until Ctrl-C (or a request to terminate).
///
/// # Errors
/// It could not begin.
pub fn run(args: &ServeArgs) -> Result<ExitCode, ServeError> {
    let ended = serve(args);
    messages::finish();
    ended
}

fn serve(args: &ServeArgs) -> Result<ExitCode, ServeError> {
    vectors::check().map_err(ServeError::Interrupts)?;
    let files = descriptors::files(descriptors::raise(), args.sockets.len(), args.offer.vectors)?;
    let sink = Sink::queued(args.trace.trace, args.trace.trace_file.as_deref())
        .map_err(|error| ServeError::Trace(args.trace.trace_file.clone(), error))?;
    let tracing = args.trace.trace || args.trace.trace_file.is_some();
    let recording = match &args.record {
        Some(path) => Some(Recording::create(path).map_err(|error| ServeError::Recording(path.clone(), error))?),
        None => None,
    };
    check_paths(args)?;
    let mut stations = Vec::new();
    let mut memories = Vec::new();
    let mut limited = Vec::new();
    let mut claims = Vec::new();
    let mut wire = PerfectWire::default();
    for (number, path) in args.sockets.iter().enumerate() {
        let config = device_config(args, number)?;
        let (listener, claim) = socket::listen(path, args.socket_mode)?;
        wire.attach(config.lid);
        let name = format!("lid{}", config.lid);
        let lines = Arc::new(Limited::new(name.clone()));
        let memory = Arc::new(ClientMemory::new(Arc::clone(&lines), Bounds { bytes: args.offer.guest_memory, files }));
        let vectors = Vectors::new(config.vectors);
        let mut device = Device::with_memory(config, Reach(Arc::clone(&memory)));
        let mut tracers: Vec<Box<dyn Tracer + Send>> = Vec::new();
        let mut outputs = LineOutputs::default();
        if tracing {
            let lane = sink.lane();
            outputs.trace = Some(lane.clone());
            tracers.push(Box::new(Printer::new(name.clone(), lane)));
        }
        if let Some(recording) = &recording {
            let recorder = recording.tracer(&name, device.config());
            outputs.recording = Some(recorder.recording().clone());
            tracers.push(Box::new(recorder));
        }
        if !tracers.is_empty() {
            device.set_tracer(Some(Several(tracers)));
        }
        stations.push((Station { device, outputs }, vectors));
        memories.push((name, Arc::clone(&lines), listener, memory));
        limited.push(lines);
        claims.push(claim);
    }

    arm(&args.trouble.faults, &mut stations)?;

    let lids: Vec<u16> = stations.iter().map(|(station, _)| station.device.config().lid).collect();
    let names = lids.iter().map(|lid| format!("lid{lid}")).collect();
    let (near, far) = args.link.as_deref().map(|path| link::link(path, names)).transpose()?.unzip();
    let served: Vec<String> = stations.iter().zip(&args.sockets).map(|((station, _), path)| introduce(station, path)).collect();
    let subnet = Subnet::new(stations, with_faults(&args.trouble, wire), near);
    let stopper = subnet.handle(0);
    ctrlc::set_handler(move || stop(&stopper)).map_err(ServeError::Signal)?;
    for (number, (name, lines, listener, memory)) in memories.into_iter().enumerate() {
        let function = Function::new(name.clone(), lines, args.offer.vectors, subnet.handle(number), memory);
        thread::Builder::new().name(name).spawn(move || socket::serve(&listener, function)).map_err(ServeError::Thread)?;
    }
    if let Some(far) = far {
        let handle = subnet.handle(0);
        let deliver = move |frame| handle.offer(frame);
        // A subnet manager may give a LID to the other end that the configuration has for this one.
        let here = if args.port.managed { Vec::new() } else { lids.clone() };
        thread::Builder::new().name("link".into()).spawn(move || far.run(here, deliver)).map_err(ServeError::Thread)?;
    }
    if let Some(way) = &args.trouble.control {
        let devices = lids.into_iter().enumerate().map(|(number, lid)| (lid, subnet.handle(number))).collect();
        let control = Control { devices, recording: recording.clone() };
        let thread = thread::Builder::new().name("control".into());
        let started = match way {
            None => thread.spawn(move || control.listen()),
            Some(path) => {
                // Whoever may command the devices is the one who serves them, unless the mode says otherwise.
                let (listener, claim) = socket::listen(path, Some(args.socket_mode.unwrap_or(0o600)))?;
                claims.push(claim);
                thread.spawn(move || control.serve(&listener))
            }
        };
        started.map_err(ServeError::Thread)?;
    }
    for line in served {
        messages::line(line);
    }
    messages::line("serving, Ctrl-C ends".into());
    let Ended { stations, stuck, discarded } = subnet.run()?;
    drop(claims);
    limited.iter().for_each(|lines| lines.finish());
    stations.iter().for_each(report);
    for (name, frames) in &discarded {
        messages::line(format!("{name}: {frames} frames discarded that it did not take in time"));
    }
    for name in &stuck {
        messages::line(format!(
            "{name}: its thread does not end: it waits for the client's memory, or for a file that takes no more lines"
        ));
    }
    // With them go the tracers: whatever a client still does is not told any more.
    drop(stations);
    let finished = sink.finish();
    let dropped = sink.dropped();
    if dropped > 0 {
        messages::line(format!("trace: {dropped} lines dropped, which nobody took fast enough"));
    }
    if let Err(error) = finished {
        messages::line(format!("bareverbs: trace: {error}"));
        return Ok(ExitCode::FAILURE);
    }
    if let Some(Err(error)) = recording.as_ref().map(Recording::finish) {
        messages::line(format!("bareverbs: recording: {error}"));
        return Ok(ExitCode::FAILURE);
    }
    Ok(if stuck.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The first time has the server end, the second time ends it.
fn stop(stopper: &Handle) {
    if !stopper.stop() {
        // An end that waits for nothing, not even for what runs at exit. It cannot fail.
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

/// No two sockets are at one path.
fn check_paths(args: &ServeArgs) -> Result<(), ServeError> {
    let control = args.trouble.control.as_ref().and_then(Option::as_ref);
    let mut paths = BTreeSet::new();
    for path in args.sockets.iter().chain(&args.link).chain(control) {
        // Without a current folder it stays as it is.
        if !paths.insert(std::path::absolute(path).unwrap_or_else(|_| path.clone())) {
            return Err(ServeError::Twice(path.clone()));
        }
    }
    Ok(())
}

fn introduce(station: &Station, path: &Path) -> String {
    let config = station.device.config();
    let socket = serde_json::json!({ "driver": "vfio-user-pci", "socket": { "type": "unix", "path": path } });
    let DeviceConfig { lid, pci_device_id, node_guid, .. } = config;
    // As a shell takes it, also with a quote in the path.
    let option = socket.to_string().replace('\'', "'\\''");
    format!("lid{lid}: {pci_device_id:#06x}, GUID {node_guid:#018x}, at {}; for QEMU: -device '{option}'", path.display())
}

fn device_config(args: &ServeArgs, number: usize) -> Result<DeviceConfig, ServeError> {
    let ServeArgs { identity, port, offer, .. } = args;
    let step = u16::try_from(number).map_err(|_| ServeError::TooMany)?;
    let lid = identity.lid.checked_add(step).filter(|lid| *lid <= values::LAST_LID).ok_or(ServeError::TooMany)?;
    let usual = DeviceConfig::with_lid(lid);
    let counted = |first: u64| first.wrapping_add(u64::from(step) << 8);
    let node_guid = identity.node_guid.map_or(usual.node_guid, counted);
    let mut limits = usual.limits;
    for LimitTo { limit, number } in &offer.limits {
        limits.set(*limit, *number).map_err(|error| ServeError::Limit(limit.name(), error))?;
    }
    let memory_limit = match offer.memory_limit {
        Some(all) => all / (args.sockets.len() as u64).max(1),
        None => usual.memory_limit,
    };
    if memory_limit < MIN_MEMORY_LIMIT {
        return Err(ServeError::Memory { least: MIN_MEMORY_LIMIT.saturating_mul(args.sockets.len() as u64) });
    }
    Ok(DeviceConfig {
        pci_device_id: identity.device_id,
        node_guid,
        port_guid: identity.port_guid.map_or(node_guid.wrapping_add(1), counted),
        system_guid: identity.system_guid.unwrap_or(node_guid),
        gid_prefix: port.gid_prefix,
        sm_lid: port.sm_lid,
        managed: port.managed,
        mtu: port.mtu.parse().unwrap_or(usual.mtu),
        link_width: port.width.0,
        link_speed: port.speed.0,
        link_up: !port.link_down,
        pages: if offer.no_firmware_pages { PageDemand::NONE } else { usual.pages },
        blue_flame: !offer.no_blueflame,
        atomics: !offer.no_atomics,
        umr: !offer.no_umr,
        devx: !offer.no_devx,
        vectors: offer.vectors,
        interrupts: InterruptRouting::External,
        limits,
        memory_limit,
        ..usual
    })
}

/// Has the faults done that were ordered for the start.
fn arm(faults: &[Line], stations: &mut [(Station, Vectors)]) -> Result<(), ServeError> {
    for Line { lid, act } in faults {
        let station = stations.iter_mut().find(|(station, _)| station.device.config().lid == *lid);
        let (station, _) = station.ok_or(ServeError::NoSuchLid(*lid))?;
        control::apply(station, *act);
    }
    Ok(())
}

fn with_faults(args: &TroubleArgs, wire: PerfectWire) -> Box<dyn Wire + Send> {
    let &TroubleArgs { loss, duplicate, reorder, .. } = args;
    let faults = WireFaults { loss, duplication: duplicate, reordering: reorder, ..WireFaults::NONE };
    if faults == WireFaults::NONE { Box::new(wire) } else { Box::new(FaultyWire::new(wire, faults, args.seed)) }
}

/// What a device did, and what its drivers did wrong.
fn report(station: &Station) {
    let device = &station.device;
    let (lid, stats) = (device.config().lid, device.stats());
    messages::line(format!(
        "lid{lid}: {} commands, {} doorbells, {} interrupts, {} frames sent, {} received",
        stats.commands, stats.doorbells, stats.interrupts, stats.frames_sent, stats.frames_received
    ));
    let findings = device.audit().findings();
    for finding in findings.iter().take(FINDINGS_TOLD) {
        messages::line(format!("lid{lid}: driver: {finding:?}"));
    }
    let more = (findings.len() as u64 + device.audit().dropped()).saturating_sub(FINDINGS_TOLD as u64);
    if more > 0 {
        messages::line(format!("lid{lid}: driver: {more} more mistakes"));
    }
}

#[cfg(test)]
mod tests {
    use bareverbs::Instant;
    use bareverbs_sim::wire::{Delivery, PortId};
    use clap::Parser as _;

    use super::args::SimCommand;
    use super::*;
    use crate::cli::{Cli, Command};

    /// Numbers of frames in the order of their arrival, on the wire that the options make, a microsecond apart.
    fn arrivals(options: &[&str]) -> Vec<u32> {
        let line = ["bareverbs", "sim", "serve", "--socket", "x"];
        let cli = Cli::parse_from(line.iter().chain(options));
        let Some(Command::Sim(SimCommand::Serve(args))) = cli.command else { panic!("another command") };
        let mut wire = PerfectWire::default();
        let (from, _) = (wire.attach(1), wire.attach(2));
        let mut wire = with_faults(&args.trouble, wire);
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
    fn the_wire_does_what_the_options_ask_for() {
        assert!(arrivals(&[]).into_iter().eq(0..10_000));
        let mut latest = 0;
        let late = arrivals(&["--reorder", "20"]).into_iter().filter(|number| {
            latest = latest.max(*number);
            *number < latest
        });
        assert!((1800..2200).contains(&late.count()));
        let lost = 10_000 - arrivals(&["--loss", "0.04"]).len();
        assert!((1..20).contains(&lost), "{lost}");
        let twice = arrivals(&["--duplicate", "5"]).len() - 10_000;
        assert!((400..600).contains(&twice), "{twice}");
    }
}
