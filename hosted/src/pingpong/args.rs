//! The command line of `pingpong`: options as `ibv_rc_pingpong(1)` names them.

use bareverbs::Mtu;
use clap::{Args, ValueEnum};

use crate::args::{TraceArgs, mtu};
use crate::device::faults::FaultArgs;
use crate::device::selection::DeviceChoice;

/// Receives that the command's queue pairs hold at most.
const MAX_RECEIVES: i64 = 512;

/// Transport service of the queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// Reliable connection, as `ibv_rc_pingpong`
    #[default]
    Rc,
    /// Unreliable connection, as `ibv_uc_pingpong`
    Uc,
    /// Unreliable datagram, as `ibv_ud_pingpong`: unsupported, the driver sends no datagrams yet
    Ud,
    /// Reliable connection with a shared receive queue, as `ibv_srq_pingpong`: unsupported, the driver makes none yet
    Srq,
}

/// Options of `pingpong`.
#[derive(Clone, Debug, Args)]
pub struct PingpongArgs {
    /// Name or address of the machine where the server runs; without it this is the server
    pub host: Option<String>,
    /// A device: `simulated`, or the PCI address of one behind VFIO. Twice: both ends in this process, one on each (the same
    /// address twice: both on that one, looped back). Without, or simulated: both ends in this process on simulated devices
    #[arg(long, short, value_name = "DEVICE")]
    pub device: Vec<DeviceChoice>,
    /// Transport service
    #[arg(long, value_enum, default_value_t)]
    pub transport: Transport,
    /// TCP port of the exchange [default: 18515; any free one if both ends are in this process, and for a server with 0, which prints it]
    #[arg(long, short)]
    pub port: Option<u16>,
    /// Port of the device
    #[arg(long, short, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    pub ib_port: u8,
    /// Bytes of a message
    #[arg(long, short, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    pub size: u32,
    /// Path MTU in bytes
    #[arg(long, short, default_value = "1024", value_parser = mtu)]
    pub mtu: Mtu,
    /// Receives that are posted at a time
    #[arg(long, short, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=MAX_RECEIVES))]
    pub rx_depth: u32,
    /// Messages each way
    #[arg(long, short = 'n', default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    pub iters: u32,
    /// Service level
    #[arg(long, short = 'l', default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=15))]
    pub sl: u8,
    /// Sleeps until completion events instead of polling
    #[arg(long, short)]
    pub events: bool,
    /// Index of the GID to use: packets carry a GRH then; both ends must give one
    #[arg(long, short, value_name = "INDEX")]
    pub gid_idx: Option<u8>,
    /// Checks each message; always so if both ends are simulated. A client compares every byte that comes back with what it
    /// sent; a server looks at the first byte of each 4096, which a client with this option sets to 0
    #[arg(long, short)]
    pub chk: bool,
    /// Seconds that a server waits for its client
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    pub wait: u32,
    /// Prints one JSON document instead of text
    #[arg(long)]
    pub json: bool,
    /// Faults of simulated devices.
    #[command(flatten)]
    pub faults: FaultArgs,
    /// Trace options, for simulated devices.
    #[command(flatten)]
    pub trace: TraceArgs,
}
