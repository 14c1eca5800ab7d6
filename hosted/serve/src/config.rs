//! What a server serves, and how.

use std::path::PathBuf;

use bareverbs_sim::DeviceConfig;
use bareverbs_sim::wire::WireFaults;

use crate::control_line::ControlLine;
use crate::log::Log;
use crate::record::Recording;
use crate::trace::Sink;

/// The highest LID that a device may have: those above are left for multicast and for what comes after the devices.
pub const MAX_LID: u16 = 0xbeff;

/// Bytes of the files that one client may share, unless the configuration says otherwise: 4 TiB.
const DEFAULT_GUEST_MEMORY: u64 = 4 << 40;

/// A device and the socket at which its client connects.
#[derive(Clone, Debug)]
pub struct ServedDevice {
    /// The device. Its interrupts go to the client, whatever [`DeviceConfig::interrupts`] says.
    pub config: DeviceConfig,
    /// Path of its Unix socket. A socket that a server left there which no longer runs is replaced.
    pub socket: PathBuf,
}

/// Where the commands of the control channel come from ([`crate::control_line`]).
#[derive(Clone, Debug)]
pub enum ControlInput {
    /// Standard input. The thread that reads it does not end before the input does.
    Stdin,
    /// A Unix socket at this path. Its mode is 600 unless [`ServerConfig::socket_mode`] says otherwise.
    Socket(PathBuf),
}

/// What a [`crate::Server`] serves, and how.
pub struct ServerConfig {
    /// The devices, all joined by one wire.
    pub devices: Vec<ServedDevice>,
    /// Permissions of the sockets (as chmod(2)); what the umask leaves without it.
    pub socket_mode: Option<u32>,
    /// Joins the wire to that of another process that is given the same path.
    pub link: Option<PathBuf>,
    /// Bytes of the files that the client of each device may share.
    pub guest_memory: u64,
    /// What the wire does to frames.
    pub wire_faults: WireFaults,
    /// Seed of the wire's faults.
    pub seed: u64,
    /// Executed before a client can connect.
    pub initial_lines: Vec<ControlLine>,
    /// Where commands come from while the server runs.
    pub control: Option<ControlInput>,
    /// Gets what people should know: clients that come and go, what a device does not support. Nobody's by default.
    pub log: Log,
    /// Gets every command, doorbell, WQE, CQE and EQE. The caller finishes it after the server has ended.
    pub recording: Option<Recording>,
    /// Gets a line for everything that the devices do. The caller finishes it after the server has ended.
    pub trace: Option<Sink>,
}

impl ServerConfig {
    /// Creates the configuration of a server of `devices` on a perfect wire.
    pub fn new(devices: Vec<ServedDevice>) -> Self {
        Self {
            devices,
            socket_mode: None,
            link: None,
            guest_memory: DEFAULT_GUEST_MEMORY,
            wire_faults: WireFaults::NONE,
            seed: 1,
            initial_lines: Vec::new(),
            control: None,
            log: Log::discard(),
            recording: None,
            trace: None,
        }
    }
}
