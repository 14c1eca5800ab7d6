//! The command line of `rping`: options as `rping(1)` names them.

use std::net::IpAddr;

use clap::Args;

use crate::args::{JsonArgs, WaitArgs};
use crate::device::ethernet::PathArgs;
use crate::device::selection::DeviceChoice;

/// Options of `rping`.
#[derive(Clone, Debug, Args)]
pub struct RpingArgs {
    /// IP address of the server; without it, this end is the server
    pub server: Option<IpAddr>,
    /// Card behind VFIO with an Ethernet port: its PCI address. Default: both ends in this process on simulated devices
    #[arg(long, short, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,
    /// Port of the connection, in the port space of TCP
    #[arg(long, short, default_value_t = 7174)]
    pub port: u16,
    /// Rounds of a client: each moves the data to the server by an RDMA read and back by an RDMA write
    #[arg(long, visible_alias = "iters", short = 'C', default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub count: u32,
    /// Bytes of a round; of a server, the most that it takes
    #[arg(long, short = 'S', default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub size: u32,
    /// Text that a client sends with its request (up to 56 bytes), and a server with its answer (up to 196, or 148 with --reject)
    #[arg(long, default_value = "", value_name = "TEXT")]
    pub private_data: String,
    /// A server rejects the request of its client
    #[arg(long, conflicts_with = "server")]
    pub reject: bool,
    /// How long a server waits.
    #[command(flatten)]
    pub wait: WaitArgs,
    /// Format of the result.
    #[command(flatten)]
    pub output: JsonArgs,
    /// The address of this end and of its peer.
    #[command(flatten)]
    pub path: PathArgs,
}
