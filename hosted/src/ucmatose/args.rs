//! The command line of `ucmatose`: options as `ucmatose(1)` names them.

use clap::Args;

use crate::rdma_cm::args::CmArgs;

/// Options of `ucmatose`.
#[derive(Clone, Debug, Args)]
pub struct UcmatoseArgs {
    /// The end, its peer and how they meet.
    #[command(flatten)]
    pub cm: CmArgs,
    /// Port of the connections, in the port space of TCP
    #[arg(long, short, default_value_t = 7471)]
    pub port: u16,
    /// Connections; give both ends the same
    #[arg(long, short, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub connections: u16,
    /// Messages of each connection in each direction; give both ends the same
    #[arg(long, visible_alias = "iters", short = 'C', default_value_t = 10)]
    pub count: u32,
    /// Bytes of a message; give both ends the same
    #[arg(long, short = 'S', default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub size: u32,
}
