//! Configuration of a server.

use std::path::PathBuf;

use bareverbs_sim::DeviceConfig;
use bareverbs_sim::wire::{EgressLimits, WireFaults};

use crate::binding::PortBinding;
use crate::capture::Capture;
use crate::control_line::ControlLine;
use crate::joined::JoinedWire;
use crate::log::Log;
use crate::record::Recording;
use crate::trace::Sink;

/// Maximum LID of a device. The unicast LIDs above it are not assigned to devices.
pub const MAX_LID: u16 = 0xbeff;

/// Default of [`ServerConfig::guest_memory`] in bytes: 4 TiB.
const DEFAULT_GUEST_MEMORY: u64 = 4 << 40;

/// A device and the socket at which its client connects.
#[derive(Clone, Debug)]
pub struct ServedDevice {
    /// The device. Its interrupts go to the client, whatever [`DeviceConfig::interrupts`] says.
    pub config: DeviceConfig,
    /// Path of its Unix socket. A stale socket of a server that no longer runs is replaced.
    pub socket: PathBuf,
}

/// Source of the commands of the control channel ([`crate::ControlLine`]).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ControlInput {
    /// Standard input. The thread that reads it does not end before the input does.
    Stdin,
    /// A Unix socket at this path. Its mode is 600 unless [`ServerConfig::socket_mode`] says otherwise.
    Socket(PathBuf),
}

/// Configuration of a [`crate::Server`].
pub struct ServerConfig {
    /// The devices, all joined by one wire.
    pub devices: Vec<ServedDevice>,
    /// Permissions of the sockets (chmod(2)); those of the umask if `None`.
    pub socket_mode: Option<u32>,
    /// Joins the wire to that of another process that is given the same path.
    pub link: Option<PathBuf>,
    /// Wires of other programs, each at a port of the switch that joins the Ethernet ports. Their sockets at paths have
    /// [`ServerConfig::socket_mode`].
    pub joined: Vec<JoinedWire>,
    /// Ethernet ports that send frames from their own addresses alone.
    pub bindings: Vec<PortBinding>,
    /// Maximum total size of the memory files of each client, in bytes.
    pub guest_memory: u64,
    /// Faults of the wire.
    pub wire_faults: WireFaults,
    /// The rate of the switch's ports, and their queues. Without limits nothing waits there.
    pub egress: Option<EgressLimits>,
    /// Seed of the random numbers for the faults of the wire.
    pub seed: u64,
    /// Commands that are executed before a client can connect.
    pub initial_lines: Vec<ControlLine>,
    /// Source of commands while the server runs.
    pub control: Option<ControlInput>,
    /// Receives messages for the operator: clients that connect and disconnect, unsupported features. Discarded by default.
    pub log: Log,
    /// Receives every command, doorbell, WQE, CQE and EQE. The caller finishes it after the server has ended.
    pub recording: Option<Recording>,
    /// Receives each frame that arrives at a device over the wire, with an interface `lid1` and so on for each device, and `join1`
    /// and so on for each joined wire. The caller finishes it after the server has ended.
    pub capture: Option<Capture>,
    /// Receives a line for each action of the devices. The caller finishes it after the server has ended.
    pub trace: Option<Sink>,
}

impl ServerConfig {
    /// Creates the configuration of a server of `devices` on a perfect wire.
    pub fn new(devices: Vec<ServedDevice>) -> Self {
        Self {
            devices,
            socket_mode: None,
            link: None,
            joined: Vec::new(),
            bindings: Vec::new(),
            guest_memory: DEFAULT_GUEST_MEMORY,
            wire_faults: WireFaults::NONE,
            egress: None,
            seed: 1,
            initial_lines: Vec::new(),
            control: None,
            log: Log::discard(),
            recording: None,
            capture: None,
            trace: None,
        }
    }
}
