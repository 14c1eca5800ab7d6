//! Firmware commands: fetched from the command queue, decoded and dispatched by opcode, executed by one function an opcode. The
//! functions are grouped by object.

mod access_register;
mod boot;
mod capabilities;
pub(crate) mod command_queue;
mod cq;
mod decode;
mod device_memory;
mod eq;
mod flow_table;
pub(crate) mod gateway_command;
mod general_object;
mod mkey;
mod nic_queue;
mod nic_vport;
mod pages;
mod qp;
mod queue_buffer;
mod refusal;
mod resource;
mod srq;
mod user_context;
mod vport;
