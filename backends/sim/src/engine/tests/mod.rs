//! Requests from WQE to CQE, on two devices.

mod answers;
mod budget;
mod cache;
mod counters;
mod credit;
mod failure;
mod flood;
mod flow_table;
mod global_route;
pub(super) mod harness;
mod hostile;
mod indirect_key;
mod key;
mod management_datagram;
mod masked_atomic;
mod memory_limit;
mod moderation;
mod partition;
mod recovery;
mod resize;
mod roce;
mod shared_receive;
mod state;
mod transfer;
mod unreliable;
mod xrc;
