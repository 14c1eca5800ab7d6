//! `bareverbs sim serve`: simulated devices for virtual machines, over vfio-user.

pub mod args;
pub(crate) mod option_values;

use std::io;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use bareverbs_serve::record::Recording;
use bareverbs_serve::trace::Sink;
use bareverbs_serve::{Capture, ControlInput, Log, MAX_LID, ServedDevice, Server, ServerConfig, Stopper};
use bareverbs_sim::wire::WireFaults;
use bareverbs_sim::{DeviceConfig, MIN_MEMORY_LIMIT, PageDemand};

use crate::args::UsageError;
use crate::stop::catch;

use self::args::ServeArgs;
use self::option_values::LimitTo;

/// Serves the devices until Ctrl-C (or a request to terminate).
///
/// # Errors
/// The server could not start.
pub fn run(args: &ServeArgs) -> Result<ExitCode> {
    let log = Log::new(Box::new(io::stderr())).context("messages")?;
    let ended = serve(args, &log);
    log.finish();
    ended
}

fn serve(args: &ServeArgs, log: &Log) -> Result<ExitCode> {
    bareverbs_serve::raise_descriptor_limit();
    let devices = devices(args)?;
    let introductions: Vec<String> = devices.iter().map(introduce).collect();
    let tracing = args.trace.trace || args.trace.trace_file.is_some();
    let sink = Sink::queued(args.trace.trace, args.trace.trace_file.as_deref());
    let sink = sink
        .with_context(|| args.trace.trace_file.as_ref().map_or("trace".into(), |path| format!("trace: {}", path.display())))?;
    let recording = match &args.record {
        Some(path) => Some(Recording::create(path).with_context(|| format!("recording: {}", path.display()))?),
        None => None,
    };
    let capture = match &args.capture {
        Some(path) => Some(Capture::create(path, log).with_context(|| format!("capture: {}", path.display()))?),
        None => None,
    };
    let injection = &args.injection;
    let server = Server::start(ServerConfig {
        socket_mode: args.socket_mode,
        link: args.link.clone(),
        joined: args.joined.clone(),
        bindings: args.bindings.clone(),
        guest_memory: args.offer.guest_memory,
        wire_faults: WireFaults {
            loss: injection.loss,
            duplication: injection.duplicate,
            reordering: injection.reorder,
            delay: injection.delay,
            ..WireFaults::NONE
        },
        egress: injection.egress(),
        seed: injection.seed,
        initial_lines: injection.faults.clone(),
        control: injection.control.as_ref().map(|path| path.clone().map_or(ControlInput::Stdin, ControlInput::Socket)),
        log: log.clone(),
        recording: recording.clone(),
        capture: capture.clone(),
        trace: tracing.then(|| sink.clone()),
        ..ServerConfig::new(devices)
    })?;
    let stopper = server.stopper();
    catch(move || stop(&stopper))?;
    introductions.into_iter().for_each(|line| log.line(line));
    log.line("serving, Ctrl-C ends".into());
    let summary = server.wait();
    summary.to_string().lines().for_each(|line| log.line(line.into()));
    // Each output is finished, also after an error of another.
    let (traced, dropped) = (sink.finish(), sink.dropped());
    let recorded = recording.as_ref().map_or(Ok(()), Recording::finish);
    let captured = capture.as_ref().map_or(Ok(()), Capture::finish);
    if dropped > 0 {
        log.line(format!("trace: {dropped} lines dropped, which nobody took fast enough"));
    }
    let dropped = capture.as_ref().map_or(0, Capture::dropped);
    if dropped > 0 {
        log.line(format!("capture: {dropped} frames left out, which the file did not take fast enough"));
    }
    let mut complete = summary.stuck.is_empty();
    for (output, finished) in [("trace", traced), ("recording", recorded), ("capture", captured)] {
        if let Err(error) = finished {
            log.line(format!("bareverbs: {output}: {error}"));
            complete = false;
        }
    }
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Ends the server at the first signal, and the process at the second.
fn stop(stopper: &Stopper) {
    if !stopper.stop() {
        // Ends the process without exit handlers. It cannot fail.
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

fn devices(args: &ServeArgs) -> Result<Vec<ServedDevice>, UsageError> {
    let served =
        |(number, socket)| Ok(ServedDevice { config: device_config(args, number)?, socket: std::path::PathBuf::clone(socket) });
    args.sockets.iter().enumerate().map(served).collect()
}

/// Returns the line that introduces a device, with QEMU's option for it.
fn introduce(device: &ServedDevice) -> String {
    let ServedDevice { config, socket: path } = device;
    let socket = serde_json::json!({ "driver": "vfio-user-pci", "socket": { "type": "unix", "path": path } });
    let DeviceConfig { lid, pci_device_id, node_guid, .. } = config;
    // Quoted for a shell, also with a quote in the path.
    let option = socket.to_string().replace('\'', "'\\''");
    format!("lid{lid}: {pci_device_id:#06x}, GUID {node_guid:#018x}, at {}; for QEMU: -device '{option}'", path.display())
}

fn device_config(args: &ServeArgs, number: usize) -> Result<DeviceConfig, UsageError> {
    let ServeArgs { identity, port, offer, .. } = args;
    let too_many = || UsageError::new(format!("the devices' LIDs would pass {MAX_LID:#x}"));
    let step = u16::try_from(number).map_err(|_| too_many())?;
    let lid = identity.lid.checked_add(step).filter(|lid| *lid <= MAX_LID).ok_or_else(too_many)?;
    let defaults = DeviceConfig::profile(offer.profile.0, lid);
    let counted = |first: u64| first.wrapping_add(u64::from(step) << 8);
    let node_guid = identity.node_guid.map_or(defaults.node_guid, counted);
    let mut limits = defaults.limits;
    for LimitTo { limit, number } in &offer.limits {
        limits.set(*limit, *number).map_err(|error| UsageError::new(format!("limit {}: {error}", limit.name())))?;
    }
    let memory_limit = match offer.memory_limit {
        Some(all) => all / (args.sockets.len() as u64).max(1),
        None => defaults.memory_limit,
    };
    if memory_limit < MIN_MEMORY_LIMIT {
        let least = MIN_MEMORY_LIMIT.saturating_mul(args.sockets.len() as u64);
        return Err(UsageError::new(format!("that many devices need a memory limit of {}M at least", least >> 20)));
    }
    let config = DeviceConfig {
        pci_device_id: identity.device_id.unwrap_or(defaults.pci_device_id),
        node_guid,
        port_guid: identity.port_guid.map_or(node_guid.wrapping_add(1), counted),
        system_guid: identity.system_guid.unwrap_or(node_guid),
        gid_prefix: port.gid_prefix,
        sm_lid: port.sm_lid,
        managed: port.managed,
        m_key: port.m_key,
        mtu: port.mtu.bytes() as u16,
        link_width: port.width.0,
        link_speed: port.speed.map_or(defaults.link_speed, |speed| speed.0),
        link_up: !port.link_down,
        pages: if offer.no_firmware_pages { PageDemand::NONE } else { defaults.pages },
        blue_flame: !offer.no_blueflame,
        atomics: !offer.no_atomics,
        umr: !offer.no_umr,
        ib_virt: defaults.ib_virt && !offer.no_ib_virt,
        devx: !offer.no_devx,
        vectors: offer.vectors,
        limits,
        memory_limit,
        ..defaults
    };
    Ok(if port.ethernet { config.with_ethernet() } else { config })
}
