//! The command line of `rping`: options as `rping(1)` names them.

use clap::Args;

use crate::rdma_cm::args::CmArgs;

/// Options of `rping`.
#[derive(Clone, Debug, Args)]
pub struct RpingArgs {
    /// The end, its peer and how they meet.
    #[command(flatten)]
    pub cm: CmArgs,
    /// Port of the connection, in the port space of TCP
    #[arg(long, short, default_value_t = 7174)]
    pub port: u16,
    /// Rounds of a client: each moves the data to the server by an RDMA read and back by an RDMA write
    #[arg(long, visible_alias = "iters", short = 'C', default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub count: u32,
    /// Bytes of a round; of a server, the most that it takes
    #[arg(long, short = 'S', default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub size: u32,
}
