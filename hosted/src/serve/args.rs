//! Options of `bareverbs sim serve`.

use std::path::PathBuf;

use bareverbs::Mtu;
use bareverbs_serve::{ControlLine, JoinedWire, PortBinding, parse_number};
use bareverbs_sim::wire::{EgressLimits, Probability};
use clap::{Args, Subcommand};

use super::option_values::{self, LimitTo, ProfileName, Speed, Width};
use crate::args::{TraceArgs, mtu, per_cent};

/// Subcommands of `sim`.
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Serves simulated devices to virtual machines over vfio-user sockets until Ctrl-C
    ///
    /// Example: bareverbs sim serve --socket /tmp/cx0 --socket /tmp/cx1. It prints the QEMU option of each device. The memory of
    /// the guest must be shared (-object memory-backend-memfd,share=on).
    ///
    /// All devices have the same options, except that LIDs and GUIDs are those of the first device and count up.
    Serve(Box<ServeArgs>),
}

/// Options of `sim serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Socket of a device; repeat it for each device. All devices are joined by one wire
    #[arg(long = "socket", short, value_name = "PATH", required = true)]
    pub sockets: Vec<PathBuf>,
    /// Mode of the sockets in octal, for example 660 for the owner and the group [default: set by the umask]
    #[arg(long, value_name = "MODE", value_parser = option_values::mode)]
    pub socket_mode: Option<u32>,
    /// Socket that joins the wire to that of another process, which has the same path and other LIDs
    #[arg(long, value_name = "PATH", conflicts_with = "managed")]
    pub link: Option<PathBuf>,
    /// Wire of another program that joins the Ethernet ports, in the format of QEMU's -netdev stream or dgram, or a TAP interface;
    /// may be repeated. stream:unix:PATH and stream:tcp:HOST:PORT connect, and listen with ',server=on' behind them.
    /// dgram:unix:LOCAL,REMOTE and dgram:udp:HOST:PORT,HOST:PORT have the address here first. tap:NAME is created if there is none
    #[arg(long = "join", value_name = "WIRE", requires = "ethernet")]
    pub joined: Vec<JoinedWire>,
    /// Bind an Ethernet port to its MAC address and to addresses: frames from others are dropped, as are frames of other ports from
    /// these. PORT is lid1 for a device, join1 for a joined wire; may be repeated
    #[arg(long = "bind", value_name = "PORT[=ADDRESS,…]", requires = "ethernet")]
    pub bindings: Vec<PortBinding>,
    /// Identity.
    #[command(flatten)]
    pub identity: IdentityArgs,
    /// Port.
    #[command(flatten)]
    pub port: PortArgs,
    /// Capabilities and limits of the devices.
    #[command(flatten)]
    pub offer: OfferArgs,
    /// Faults to inject.
    #[command(flatten)]
    pub injection: InjectionArgs,
    /// Records the bytes of all firmware commands, doorbells, WQEs, CQEs and EQEs in a file, for replay and comparison. The
    /// file gets all of them, and a device waits for a slow file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub record: Option<PathBuf>,
    /// Captures the frames that arrive over the wire in a pcapng file for Wireshark, with an interface for each device. Frames
    /// that the file does not take in time are left out and counted
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub capture: Option<PathBuf>,
    /// Outputs of a trace.
    #[command(flatten, next_help_heading = "Output")]
    pub trace: TraceArgs,
}

/// Identity of the devices.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Identity")]
pub struct IdentityArgs {
    /// PCI device ID [default: that of the profile, 0x1021 without one]
    #[arg(long, value_name = "ID", value_parser = parse_number::<u16>)]
    pub device_id: Option<u16>,
    /// LID of the port of the first device
    #[arg(long, default_value_t = 1, value_parser = option_values::lid)]
    pub lid: u16,
    /// Node GUID of the first device, for example 0002:c900:0000:0100 or 0x0002c90000000100; each further device adds 0x100
    /// [default: derived from the LID]
    #[arg(long, value_name = "GUID", value_parser = option_values::guid)]
    pub node_guid: Option<u64>,
    /// Port GUID of the first device; each further device adds 0x100 [default: node GUID + 1]
    #[arg(long, value_name = "GUID", value_parser = option_values::guid)]
    pub port_guid: Option<u64>,
    /// System image GUID of all devices [default: the node GUID of each]
    #[arg(long, value_name = "GUID", value_parser = option_values::guid)]
    pub system_guid: Option<u64>,
}

/// Properties of the ports.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Port")]
pub struct PortArgs {
    /// Ports are Ethernet ports with RoCEv2. Their MAC addresses are taken from the GUIDs of the nodes
    #[arg(long, conflicts_with_all = ["managed", "link", "mtu", "sm_lid", "gid_prefix"])]
    pub ethernet: bool,
    /// Link width in lanes
    #[arg(long, value_enum, default_value = "4x")]
    pub width: Width,
    /// Speed of a lane that the port reports; it does not limit the throughput [default: that of the profile, hdr without one]
    #[arg(long, value_enum)]
    pub speed: Option<Speed>,
    /// Maximum MTU in bytes: 256, 512, 1024, 2048 or 4096
    #[arg(long, default_value = "4096", value_parser = mtu)]
    pub mtu: Mtu,
    /// LID of the subnet manager
    #[arg(long, default_value_t = 1, value_name = "LID", value_parser = option_values::sm_lid)]
    pub sm_lid: u16,
    /// GID prefix of the ports
    #[arg(long, default_value = "fe80:0000:0000:0000", value_name = "PREFIX", value_parser = option_values::guid)]
    pub gid_prefix: u64,
    /// Ports start without a LID and wait for a subnet manager, for example opensm in a guest. Commands of --control still use
    /// the LIDs of --lid. Without this option, no guest can configure the port of another
    #[arg(long)]
    pub managed: bool,
    /// Initial M_Key of managed ports, without which no guest can configure them. The subnet manager needs the same key (m_key
    /// and m_key_protection_level 2 of opensm)
    #[arg(long, value_name = "KEY", default_value = "0", requires = "managed", value_parser = parse_number::<u64>)]
    pub m_key: u64,
    /// Links are down at the start; a command of --control raises them
    #[arg(long)]
    pub link_down: bool,
}

/// Capabilities and limits of the devices.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Device")]
pub struct OfferArgs {
    /// The card that the devices are like: identity, limits, pages of the firmware, time until the port is active, time of
    /// resets and commands. Other options have precedence
    #[arg(long, value_enum, value_name = "NAME", default_value = "simulated")]
    pub profile: ProfileName,
    /// MSI-X vectors
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub vectors: u16,
    /// Maximum number or size of objects, a power of two; may be repeated. NAME is qps, qp-size, srqs, srq-size, cqs, cq-size,
    /// eqs, eq-size, mkeys, pds, message (bytes) or reads (outstanding on a queue pair). Linux caches mkeys, so a guest reaches
    /// their limit only with --no-umr
    #[arg(long = "limit", value_name = "NAME=NUMBER", value_parser = option_values::limit)]
    pub limits: Vec<LimitTo>,
    /// Maximum memory that all devices hold for guests, divided evenly (32M each at least), in bytes, k, M or G; requests
    /// beyond it fail. The process may take twice that. The memory of guests does not count [default: 1G for each device]
    #[arg(long, value_name = "SIZE", value_parser = parse_number::<u64>)]
    pub memory_limit: Option<u64>,
    /// Maximum memory that the client of each device may share, as the sum of its file sizes, in bytes, k, M or G. Linux
    /// charges a page to the memory cgroup that touches it first, which may be this server's. So a cgroup with a limit needs
    /// this much for each device, unless the guests touch their memory at the start (prealloc=on of QEMU)
    #[arg(long, value_name = "SIZE", default_value = "4096G", value_parser = parse_number::<u64>)]
    pub guest_memory: u64,
    /// Request no firmware pages
    #[arg(long)]
    pub no_firmware_pages: bool,
    /// Do not support BlueFlame
    #[arg(long)]
    pub no_blueflame: bool,
    /// Do not support atomics
    #[arg(long)]
    pub no_atomics: bool,
    /// Do not support changes of the size of mkeys by UMR; Linux then caches no mkeys
    #[arg(long)]
    pub no_umr: bool,
    /// Do not offer virtual ports (ib_virt), as many cards whose SR-IOV is off: drivers query the port by MAD_IFC
    #[arg(long)]
    pub no_ib_virt: bool,
    /// Do not support user contexts (DEVX)
    #[arg(long)]
    pub no_devx: bool,
}

/// Faults to inject.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Faults")]
pub struct InjectionArgs {
    /// Packets lost on the wire, in per cent
    #[arg(long, default_value = "0", value_name = "PERCENT", value_parser = per_cent)]
    pub loss: Probability,
    /// Packets duplicated on the wire, in per cent
    #[arg(long, default_value = "0", value_name = "PERCENT", value_parser = per_cent)]
    pub duplicate: Probability,
    /// Packets reordered on the wire, in per cent
    #[arg(long, default_value = "0", value_name = "PERCENT", value_parser = per_cent)]
    pub reorder: Probability,
    /// Packets delayed on the wire by up to 20 microseconds, in per cent
    #[arg(long, default_value = "0", value_name = "PERCENT", value_parser = per_cent)]
    pub delay: Probability,
    /// What each port of the switch sends, in bits a second, with k, M or G for thousands. Senders wait while their frames find no
    /// room in the queue before it [default: no limit]
    #[arg(long, value_name = "RATE", value_parser = option_values::rate)]
    pub rate: Option<EgressLimits>,
    /// With --rate: a frame with which the queue of a port would have more bytes is lost, instead of its sender waiting; in bytes, k,
    /// M or G
    #[arg(long, value_name = "SIZE", value_parser = parse_number::<usize>, requires = "rate")]
    pub queue: Option<usize>,
    /// With --rate: IP packets that come to a queue of more bytes are marked, if their senders know of marks (ECN); in bytes, k, M or G
    #[arg(long, value_name = "SIZE", value_parser = parse_number::<usize>, requires = "rate")]
    pub mark_above: Option<usize>,
    /// Seed of the faults of the wire
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A fault to inject at the start, in the syntax of --control, for example 'stick 1 0x800'; may be repeated
    #[arg(long = "fault", value_name = "LINE", value_parser = option_values::fault)]
    pub faults: Vec<ControlLine>,
    /// Reads commands, one a line, from standard input or, with a path, from clients of a Unix socket; 'help' lists them
    #[arg(long, value_name = "PATH", num_args = 0..=1, require_equals = true)]
    pub control: Option<Option<PathBuf>>,
}

impl InjectionArgs {
    /// Returns what the ports of the switch send, and what their queues do.
    pub fn egress(&self) -> Option<EgressLimits> {
        let mut limits = self.rate?;
        if let Some(bytes) = self.mark_above {
            limits = limits.mark_above(bytes);
        }
        Some(self.queue.map_or(limits, |bytes| limits.room(bytes)))
    }
}
