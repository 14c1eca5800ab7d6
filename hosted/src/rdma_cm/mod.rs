//! Programs of rdma-core that meet their peer by communication management, as `rdma_cm` of Linux does: what they have in common.

pub mod args;
pub(crate) mod link;
mod peer_args;
pub(crate) mod port;
pub(crate) mod program;
pub(crate) mod run;
#[cfg(test)]
pub(crate) mod two_ends;

pub use program::Report;
