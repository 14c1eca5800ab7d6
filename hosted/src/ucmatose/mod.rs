//! `bareverbs ucmatose`: either end of `ucmatose` of rdma-core, or both. Reliable connections are made by communication management
//! (`rdma_cm`); the server sends messages, the client returns as many, and the server releases the connections.

pub mod args;
mod end;
pub mod report;
mod slots;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use bareverbs_cm::{IpPrivateData, PortSpace, Rej, Rep, Req, ServiceId};

use self::args::UcmatoseArgs;
use self::end::UcmatoseEnd;
use self::report::Messages;
use crate::device::Host;
use crate::rdma_cm::args::{CmArgs, Room};
use crate::rdma_cm::program::Program;
use crate::rdma_cm::{Report, run as ends};

impl Program for UcmatoseArgs {
    type End<H: Host> = UcmatoseEnd<H>;
    type Done = Messages;
    const ROOM: Room =
        Room { request: Req::PRIVATE_DATA - IpPrivateData::BYTES, answer: Rep::PRIVATE_DATA, rejection: Rej::PRIVATE_DATA };

    fn cm(&self) -> &CmArgs {
        &self.cm
    }

    fn service(&self) -> ServiceId {
        PortSpace::Tcp.service_id(self.port)
    }
}

/// Runs the ucmatose of a command line. `stop` ends it early.
///
/// # Errors
/// The command line has a mistake ([`UsageError`](crate::args::UsageError)), or a device cannot be opened.
pub fn run(args: &UcmatoseArgs, stop: &Arc<AtomicBool>) -> Result<Report<Messages>> {
    ends::run(args, stop)
}

#[cfg(test)]
mod tests;
