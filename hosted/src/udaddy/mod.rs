//! `bareverbs udaddy`: either end of `udaddy` of rdma-core, or both. The client asks for queue pairs by service ID resolution
//! (`rdma_cm` with datagrams), and sends messages to them; the server returns as many.

pub mod args;
mod end;
pub mod report;

use bareverbs_cm::{PortSpace, ServiceId};

use self::args::UdaddyArgs;
use self::end::UdaddyEnd;
use self::report::Datagrams;
use crate::device::Host;
use crate::rdma_cm::args::{CmArgs, Room};
use crate::rdma_cm::program::Program;

impl Program for UdaddyArgs {
    type End<H: Host> = UdaddyEnd<H>;
    type Done = Datagrams;
    const ROOM: Room = Room::RESOLUTION;

    fn cm(&self) -> &CmArgs {
        &self.cm
    }

    fn service(&self) -> ServiceId {
        PortSpace::Udp.service_id(self.port)
    }
}

#[cfg(test)]
mod tests;
