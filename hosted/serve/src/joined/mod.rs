//! Wires of other programs that join the Ethernet of a server, in the formats of QEMU's `-netdev stream` and `-netdev dgram`, and TAP
//! interfaces.
//!
//! Each is a port of the server's switch, with a cable instead of a device. What the switch sends to the cable waits in a queue
//! for each port that sends ([`SourceQueues`](crate::source_queues)), from which a thread of the cable sends it; a frame that
//! finds no room is dropped and counted. So a peer that reads nothing, or is not there, delays nobody. What comes from a peer is
//! put on the wire at once, or dropped and counted if the device that it is for has no room.

mod address;
mod cable;
mod datagram;
mod frame_stream;
mod stream;
mod tap;

use std::sync::Arc;

use crate::error::ServeError;
use crate::log::Log;
use crate::socket::Claim;

pub use self::address::{DatagramAddress, JoinedWire, JoinedWireError, StreamAddress, TapName};
pub use self::cable::JoinedStats;
pub(crate) use self::cable::{Cable, Deliver, NearEnd};
pub use self::frame_stream::{FrameStream, FrameTooLong};

/// The far end of a cable, before it runs.
pub(crate) struct FarEnd {
    cable: Arc<Cable>,
    socket: Socket,
    claim: Option<Claim>,
}

/// The socket of a cable as far as it exists at the start.
enum Socket {
    Stream(stream::Rendezvous),
    Datagram(datagram::Socket),
    Tap(tap::Tap),
}

/// Creates a cable called `name` at a switch with ports of these names. Its socket has the permissions `mode` if it is at a
/// path.
///
/// # Errors
/// Its socket could not be created.
pub(crate) fn join(
    name: String,
    wire: &JoinedWire,
    ports: Vec<String>,
    mode: Option<u32>,
    log: &Log,
) -> Result<(NearEnd, FarEnd), ServeError> {
    let (socket, claim) = match wire {
        JoinedWire::Stream { address, listens } => {
            let (meeting, claim) = stream::Rendezvous::new(address, *listens, mode)?;
            (Socket::Stream(meeting), claim)
        }
        JoinedWire::Datagram(address) => {
            let (socket, claim) = datagram::Socket::new(address, mode)?;
            (Socket::Datagram(socket), claim)
        }
        JoinedWire::Tap(name) => (Socket::Tap(tap::Tap::new(name)?), None),
    };
    let cable = Arc::new(Cable::new(name, wire.to_string(), ports, log));
    Ok((NearEnd(Arc::clone(&cable)), FarEnd { cable, socket, claim }))
}

impl FarEnd {
    /// Returns the name of the cable.
    pub(crate) fn name(&self) -> &str {
        self.cable.name()
    }

    /// Returns the cable.
    pub(crate) fn cable(&self) -> Arc<Cable> {
        Arc::clone(&self.cable)
    }

    /// Takes the path of its socket, if it is at one and nobody has taken it.
    pub(crate) fn take_claim(&mut self) -> Option<Claim> {
        self.claim.take()
    }

    /// Exchanges frames with a peer, and with the next one, until the near end is dropped.
    pub(crate) fn run(self, deliver: impl Deliver) {
        match self.socket {
            Socket::Stream(meeting) => stream::run(&self.cable, meeting, deliver),
            Socket::Datagram(socket) => datagram::run(&self.cable, socket, deliver),
            Socket::Tap(tap) => tap::run(&self.cable, tap, deliver),
        }
    }
}
