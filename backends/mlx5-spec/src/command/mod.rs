//! Firmware commands: their transport, inputs and outputs, and the contexts inside them.

mod boot;
mod capability;
mod cq;
mod device_memory;
mod eq;
mod mkey;
mod opcode;
mod other;
mod pages;
mod port;
mod qp;
mod queue;
mod register;
mod resource;
mod srq;
mod user;
mod user_memory;

pub use boot::*;
pub use capability::*;
pub use cq::*;
pub use device_memory::*;
pub use eq::*;
pub use mkey::*;
pub use opcode::*;
pub use other::*;
pub use pages::*;
pub use port::*;
pub use qp::*;
pub use queue::*;
pub use register::*;
pub use resource::*;
pub use srq::*;
pub use user::*;
pub use user_memory::*;
