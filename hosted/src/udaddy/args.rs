//! The command line of `udaddy`: options as `udaddy(1)` names them.

use clap::Args;

use crate::rdma_cm::args::CmArgs;

/// Options of `udaddy`.
#[derive(Clone, Debug, Args)]
pub struct UdaddyArgs {
    /// The end, its peer and how they meet.
    #[command(flatten)]
    pub cm: CmArgs,
    /// Port of the service, in the port space of UDP
    #[arg(long, short, default_value_t = 7174)]
    pub port: u16,
    /// Queue pairs that are resolved; give both ends the same
    #[arg(long, short, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub connections: u16,
    /// Messages of each queue pair in each direction; give both ends the same
    #[arg(long, visible_alias = "iters", short = 'C', default_value_t = 10, value_parser = clap::value_parser!(u32).range(..=512))]
    pub count: u32,
    /// Bytes of a message, at most the MTU of the port; give both ends the same
    #[arg(long, short = 'S', default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub size: u32,
}
