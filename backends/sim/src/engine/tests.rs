//! Requests from WQE to CQE, on two devices.

mod failure;
mod key;
mod recovery;
mod transfer;
mod unreliable;
