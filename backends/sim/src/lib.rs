//! A simulated ConnectX at the register level.
#![forbid(unsafe_code)]

pub mod audit;
pub mod engine;
pub mod env;
pub mod fault;
pub mod memory;
pub mod packet;
pub mod trace;
pub mod wire;
pub mod wqe;
