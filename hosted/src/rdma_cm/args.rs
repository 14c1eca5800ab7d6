//! Options that the programs have in common.

use std::net::IpAddr;

use bareverbs_cm::{IpPrivateData, Rej, Rep, Req, SidrRep, SidrReq};
use clap::Args;

use super::peer_args::PeerArgs;
use crate::args::{JsonArgs, UsageError, WaitArgs};
use crate::device::Role;
use crate::device::ethernet::PathArgs;
use crate::device::selection::DeviceChoice;

/// Options of every program that meets its peer by communication management.
#[derive(Clone, Debug, Args)]
pub struct CmArgs {
    /// IP address of the server; without it, this end is the server
    pub server: Option<IpAddr>,
    /// Card behind VFIO: its PCI address. Default: both ends in this process on simulated devices
    #[arg(long, short, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,
    /// Text that a client sends with its request, and a server with its answer
    #[arg(long, default_value = "", value_name = "TEXT")]
    pub private_data: String,
    /// A server rejects the request of its client
    #[arg(long, conflicts_with = "server")]
    pub reject: bool,
    /// How long a server waits.
    #[command(flatten)]
    pub wait: WaitArgs,
    /// Format of the result.
    #[command(flatten)]
    pub output: JsonArgs,
    /// The address of this end and of its peer.
    #[command(flatten)]
    pub path: PathArgs,
    /// The port of its peer on an InfiniBand subnet.
    #[command(flatten)]
    pub peer: PeerArgs,
}

/// Bytes of private data that messages have room for, besides what `rdma_cm` puts there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// A client's request.
    pub(crate) request: usize,
    /// A server's answer.
    pub(crate) answer: usize,
    /// A rejection.
    pub(crate) rejection: usize,
}

impl Room {
    /// Of messages that make a connection: REQ, REP and REJ.
    pub(crate) const CONNECTION: Self =
        Self { request: Req::PRIVATE_DATA - IpPrivateData::BYTES, answer: Rep::PRIVATE_DATA, rejection: Rej::PRIVATE_DATA };
    /// Of those that resolve a service ID: SIDR_REQ and SIDR_REP.
    pub(crate) const RESOLUTION: Self = Self {
        request: SidrReq::PRIVATE_DATA - IpPrivateData::BYTES,
        answer: SidrRep::PRIVATE_DATA,
        rejection: SidrRep::PRIVATE_DATA,
    };
}

impl CmArgs {
    /// Returns what the only end of this process is, if it is alone here.
    pub(crate) fn role(&self) -> Role {
        if self.server.is_some() { Role::Client } else { Role::Server }
    }

    /// Checks that every end here has room for the private data.
    ///
    /// # Errors
    /// It has not.
    pub(crate) fn check_private_data(&self, room: Room) -> Result<(), UsageError> {
        let client = ("a client", room.request);
        let server = if self.reject { ("a rejecting server", room.rejection) } else { ("a server", room.answer) };
        let (who, room) = match (self.server, &self.device) {
            (None, Some(_)) => server,
            (Some(_), _) => client,
            (None, None) if server.1 < client.1 => server,
            (None, None) => client,
        };
        if self.private_data.len() > room {
            return Err(UsageError::new(format!("--private-data: {who} has room for {room} bytes")));
        }
        Ok(())
    }
}
