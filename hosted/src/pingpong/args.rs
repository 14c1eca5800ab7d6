//! The command line of `pingpong`: options as `ibv_rc_pingpong(1)` names them.

use bareverbs::{Mtu, QpType};
use clap::{Args, ValueEnum};

use crate::args::{JsonArgs, TraceArgs, WaitArgs, mtu};
use crate::device::QUEUE_PAIRS;
use crate::device::ethernet::PathArgs;
use crate::device::selection::DeviceChoice;
use crate::device::simulation_args::SimulationArgs;

/// Maximum number of receives in a receive queue.
const MAX_RECEIVES: i64 = 512;
/// Maximum number of queue pairs of a device.
const MAX_QUEUE_PAIRS: i64 = QUEUE_PAIRS as i64;

/// Transport service of the queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// Reliable connection, as `ibv_rc_pingpong`
    #[default]
    Rc,
    /// Unreliable connection, as `ibv_uc_pingpong`
    Uc,
    /// Unreliable datagram, as `ibv_ud_pingpong`: a message is one packet
    Ud,
    /// Reliable connections with one shared receive queue, as `ibv_srq_pingpong`
    Srq,
    /// Extended reliable connection to a shared receive queue, as `ibv_xsrq_pingpong`
    Xrc,
}

impl Transport {
    /// Returns the kind of the queue pairs.
    pub const fn qp_type(self) -> QpType {
        match self {
            Self::Rc | Self::Srq => QpType::Rc,
            Self::Uc => QpType::Uc,
            Self::Ud => QpType::Ud,
            Self::Xrc => QpType::XrcSend,
        }
    }

    /// Returns the name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Srq => "SRQ",
            Self::Xrc => "XRC",
        }
    }

    /// Returns the bytes of a message without `--size`: those of the tool.
    pub const fn default_size(self) -> u32 {
        if matches!(self, Self::Ud) { 1024 } else { 4096 }
    }
}

/// Options of `pingpong`.
#[derive(Clone, Debug, Args)]
pub struct PingpongArgs {
    /// Name or address of the server's machine; without it, this end is the server
    pub host: Option<String>,
    /// Device: `simulated`, or the PCI address of a card behind VFIO. Given twice, both ends run in this process, one on each
    /// device; the same address twice loops back. Default: both ends in this process on simulated devices
    #[arg(long, short, value_name = "DEVICE")]
    pub device: Vec<DeviceChoice>,
    /// Transport service
    #[arg(long, value_enum, default_value_t)]
    pub transport: Transport,
    /// TCP port of the address exchange [default: 18515, or any free port if both ends are in this process]. A server with 0
    /// chooses a free port and prints it
    #[arg(long, short)]
    pub port: Option<u16>,
    /// Port of the device
    #[arg(long, short, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    pub ib_port: u8,
    /// Bytes of a message [default: 4096, or 1024 for ud]
    #[arg(long, short, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    pub size: Option<u32>,
    /// Path MTU in bytes; of ud it is that of the port
    #[arg(long, short, default_value = "1024", value_parser = mtu)]
    pub mtu: Mtu,
    /// Queue pairs of each end, for srq
    #[arg(long = "num-qp", short = 'q', default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=MAX_QUEUE_PAIRS))]
    pub queue_pairs: u16,
    /// Number of receives posted at a time. For srq two for each queue pair suffice, and no more are posted
    #[arg(long, short, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=MAX_RECEIVES))]
    pub rx_depth: u32,
    /// Messages in each direction, of all queue pairs together
    #[arg(long, short = 'n', default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    pub iters: u32,
    /// Service level
    #[arg(long, short = 'l', default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=15))]
    pub sl: u8,
    /// Waits for completion events instead of polling
    #[arg(long, short)]
    pub events: bool,
    /// Verifies each message, which simulated devices always do. A client compares all bytes that it receives with those
    /// that it sent. A server checks the first byte of each 4096, which a client with this option sets to 0
    #[arg(long, short)]
    pub chk: bool,
    /// How long a server waits.
    #[command(flatten)]
    pub wait: WaitArgs,
    /// Format of the result.
    #[command(flatten)]
    pub output: JsonArgs,
    /// The path to the peer.
    #[command(flatten)]
    pub path: PathArgs,
    /// What simulated devices are like.
    #[command(flatten)]
    pub simulation: SimulationArgs,
    /// Trace options, for simulated devices.
    #[command(flatten)]
    pub trace: TraceArgs,
}
