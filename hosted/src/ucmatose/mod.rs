//! `bareverbs ucmatose`: either end of `ucmatose` of rdma-core, or both. Reliable connections are made by communication management
//! (`rdma_cm`); the server sends messages, the client returns as many, and the server releases the connections.

pub mod args;
mod end;
pub mod report;
mod slots;

use bareverbs_cm::{PortSpace, ServiceId};

use self::args::UcmatoseArgs;
use self::end::UcmatoseEnd;
use self::report::Messages;
use crate::device::Host;
use crate::rdma_cm::args::{CmArgs, Room};
use crate::rdma_cm::program::Program;

impl Program for UcmatoseArgs {
    type End<H: Host> = UcmatoseEnd<H>;
    type Done = Messages;
    const ROOM: Room = Room::CONNECTION;

    fn cm(&self) -> &CmArgs {
        &self.cm
    }

    fn service(&self) -> ServiceId {
        PortSpace::Tcp.service_id(self.port)
    }
}

#[cfg(test)]
mod tests;
