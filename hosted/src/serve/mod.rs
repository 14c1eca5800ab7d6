//! `bareverbs sim serve`: simulated devices for virtual machines, over vfio-user.

pub mod args;
mod control;
mod error;
mod function;
mod heap;
mod link;
mod memory;
mod messages;
mod protocol;
mod shrunk;
mod socket;
mod subnet;
mod values;
mod vectors;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use bareverbs_sim::trace::Tracer;
use bareverbs_sim::wire::{FaultyWire, PerfectWire, Wire, WireFaults};
use bareverbs_sim::{Device, DeviceConfig, InterruptRouting, PageDemand};

use self::args::{ServeArgs, TroubleArgs};
use self::control::Line;
pub use self::error::ServeError;
use self::function::Function;
use self::memory::{ClientMemory, Reach};
use self::subnet::{Station, Subnet};
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
    let sink = Sink::queued(args.trace.trace, args.trace.trace_file.as_deref()).map_err(ServeError::Trace)?;
    let tracing = args.trace.trace || args.trace.trace_file.is_some();
    let recording = args.record.as_deref().map(Recording::create).transpose().map_err(ServeError::Recording)?;
    let mut stations = Vec::new();
    let mut memories = Vec::new();
    let mut claims = Vec::new();
    let mut wire = PerfectWire::default();
    for (number, path) in args.sockets.iter().enumerate() {
        if args.sockets.iter().take(number).any(|earlier| earlier == path) {
            return Err(ServeError::Twice(path.clone()));
        }
        let config = device_config(args, number)?;
        let (listener, claim) = socket::listen(path, args.socket_mode)?;
        wire.attach(config.lid);
        let name = format!("lid{}", config.lid);
        let memory = Arc::new(ClientMemory::new(name.clone()));
        let vectors = Vectors::new(config.vectors);
        let mut device = Device::with_memory(config, Reach(Arc::clone(&memory)));
        let mut tracers: Vec<Box<dyn Tracer + Send>> = Vec::new();
        if tracing {
            tracers.push(Box::new(Printer::new(name.clone(), sink.clone())));
        }
        if let Some(recording) = &recording {
            tracers.push(Box::new(recording.tracer(&name, device.config())));
        }
        if !tracers.is_empty() {
            device.set_tracer(Some(Several(tracers)));
        }
        stations.push(Station { device, vectors });
        memories.push((name, listener, memory));
        claims.push(claim);
    }

    arm(&args.trouble.faults, &mut stations)?;

    let (near, far) = args.link.as_deref().map(link::link).transpose()?.unzip();
    let lids: Vec<u16> = stations.iter().map(|station| station.device.config().lid).collect();
    let served: Vec<String> = stations.iter().zip(&args.sockets).map(|(station, path)| introduce(station, path)).collect();
    let subnet = Subnet::new(stations, with_faults(&args.trouble, wire), near);
    let stopper = subnet.handle(0);
    ctrlc::set_handler(move || stopper.stop()).map_err(ServeError::Signal)?;
    for (number, (name, listener, memory)) in memories.into_iter().enumerate() {
        let function = Function::new(name.clone(), args.offer.vectors, subnet.handle(number), memory);
        thread::Builder::new().name(name).spawn(move || socket::serve(&listener, function)).map_err(ServeError::Thread)?;
    }
    if let Some(far) = far {
        let handle = subnet.handle(0);
        let deliver = move |frame: &[u8]| handle.frame(frame);
        thread::Builder::new().name("link".into()).spawn(move || far.run(deliver)).map_err(ServeError::Thread)?;
    }
    if args.trouble.control {
        let devices: Vec<_> = lids.into_iter().enumerate().map(|(number, lid)| (lid, subnet.handle(number))).collect();
        let listener = thread::Builder::new().name("control".into());
        let recording = recording.clone();
        listener.spawn(move || control::listen(&devices, recording.as_ref())).map_err(ServeError::Thread)?;
    }
    for line in served {
        messages::line(line);
    }
    let stations = subnet.run();
    drop(claims);
    stations.iter().for_each(report);
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
    Ok(ExitCode::SUCCESS)
}

fn introduce(station: &Station, path: &Path) -> String {
    let config = station.device.config();
    format!("lid{}: {:#06x}, GUID {:#018x}, at {}", config.lid, config.pci_device_id, config.node_guid, path.display())
}

fn device_config(args: &ServeArgs, number: usize) -> Result<DeviceConfig, ServeError> {
    let ServeArgs { identity, port, offer, .. } = args;
    let step = u16::try_from(number).map_err(|_| ServeError::TooMany)?;
    let lid = identity.lid.checked_add(step).filter(|lid| *lid < 0xbf00).ok_or(ServeError::TooMany)?;
    let usual = DeviceConfig::with_lid(lid);
    let counted = |first: u64| first.wrapping_add(u64::from(step) << 8);
    let node_guid = identity.node_guid.map_or(usual.node_guid, counted);
    let mut limits = usual.limits;
    for LimitTo { limit, number } in &offer.limits {
        limits.set(*limit, *number).map_err(|error| ServeError::Limit(limit.name(), error))?;
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
        ..usual
    })
}

/// Has the faults done that were ordered for the start.
fn arm(faults: &[Line], stations: &mut [Station]) -> Result<(), ServeError> {
    for Line { lid, act } in faults {
        let station = stations.iter_mut().find(|station| station.device.config().lid == *lid);
        control::apply(station.ok_or(ServeError::NoSuchLid(*lid))?, *act);
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
