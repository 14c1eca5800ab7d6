//! Requests from WQE to CQE, on two devices.

mod agent;
mod answers;
mod cache;
mod failure;
mod hostile;
mod indirect_key;
mod key;
mod moderation;
mod recovery;
mod resize;
mod state;
mod transfer;
mod unreliable;
