//! `bareverbs udaddy`: either end of `udaddy` of rdma-core, or both. The client asks for queue pairs by service ID resolution
//! (`rdma_cm` with datagrams), and sends messages to them; the server returns as many.

pub mod args;
mod end;
pub mod report;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use bareverbs_cm::{IpPrivateData, PortSpace, ServiceId, SidrRep, SidrReq};

use self::args::UdaddyArgs;
use self::end::UdaddyEnd;
use self::report::Datagrams;
use crate::device::Host;
use crate::rdma_cm::args::{CmArgs, Room};
use crate::rdma_cm::program::Program;
use crate::rdma_cm::{Report, run as ends};

impl Program for UdaddyArgs {
    type End<H: Host> = UdaddyEnd<H>;
    type Done = Datagrams;
    const ROOM: Room = Room {
        request: SidrReq::PRIVATE_DATA - IpPrivateData::BYTES,
        answer: SidrRep::PRIVATE_DATA,
        rejection: SidrRep::PRIVATE_DATA,
    };

    fn cm(&self) -> &CmArgs {
        &self.cm
    }

    fn service(&self) -> ServiceId {
        PortSpace::Udp.service_id(self.port)
    }
}

/// Runs the udaddy of a command line. `stop` ends it early.
///
/// # Errors
/// The command line has a mistake ([`UsageError`](crate::args::UsageError)), or a device cannot be opened.
pub fn run(args: &UdaddyArgs, stop: &Arc<AtomicBool>) -> Result<Report<Datagrams>> {
    ends::run(args, stop)
}

#[cfg(test)]
mod tests;
