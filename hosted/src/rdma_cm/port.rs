//! The port that an end meets its peer on: its addresses, and its QP1 with the state machine of communication management.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::IpAddr;

use anyhow::{Context as _, Result, anyhow, bail};
use bareverbs::platform::Instant;
use bareverbs::{AddressVector, Mtu, PdHandle, Refused};
use bareverbs_cm::{CarrierError, Config, Event, IpAddresses, IpPrivateData, Mad, Path, PathAddress, RejectReason, ServiceId};

use super::args::CmArgs;
use super::link::{Link, PORT, no_mac};
use crate::device::ethernet::EntryArgs;
use crate::device::{Carrier, Device, Host, Role};

/// The most connections of an end, or queue pairs that it resolves.
pub(crate) const CONNECTIONS: usize = 16;
/// How long an answer of the peer may take, and how often it is asked: 1 s, encoded, eight times.
pub(crate) const CM_TIMEOUT: u8 = 18;
pub(crate) const CM_RETRIES: u8 = 7;
/// Packet lifetime for the ACK timeout: 67 ms, encoded.
const LIFE_TIME: u8 = 14;

/// State machine of a port: room for the connections of an end, and for as many that have ended.
type Cm = bareverbs_cm::Endpoint<{ 2 * CONNECTIONS }, 1, CONNECTIONS>;

/// A port with QP1.
pub(crate) struct CmPort<H: Host> {
    /// Address of this end.
    pub(crate) local: IpAddr,
    /// What the port and its peer are.
    pub(crate) link: Link,
    /// MTU of the port.
    pub(crate) mtu: Mtu,
    /// What happened since the last look, for people.
    pub(crate) news: Vec<String>,
    /// Texts of the private data that peers sent, for the report.
    pub(crate) texts: Vec<String>,
    /// The state machine.
    pub(crate) cm: Box<Cm>,
    carrier: Carrier<H>,
}

/// What [`CmPort::turn`] found.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, which is taken apart at once")]
pub(crate) enum Turn<'a> {
    /// Nothing to do.
    Idle,
    /// Something that the program need not know.
    Done,
    /// What the program has to handle.
    Event(Instant, Event<'a>),
}

/// Returns a number that nobody can guess.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Returns private data up to the zeros that fill its field.
fn text_of(private_data: &[u8]) -> String {
    let length = private_data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    private_data.get(..length).unwrap_or_default().escape_ascii().to_string()
}

impl<H: Host> CmPort<H> {
    /// Gives the port its address, and creates QP1 in a domain. A server listens on `service`. The port is active.
    ///
    /// # Errors
    /// An option is missing or is not for such a port, its address cannot be set, or there is no room for an object.
    pub(crate) fn open(
        device: &mut Device<H>,
        pd: PdHandle,
        role: Role,
        args: &CmArgs,
        entry: EntryArgs,
        service: ServiceId,
    ) -> Result<Self> {
        let port = device.verbs.query_port(PORT).context("query_port")?;
        let (link, local) = Link::open(device, &port, args, entry)?;
        let buffer = device.host.buffer(Carrier::<H>::BYTES).context("memory for QP1")?;
        let opened = Carrier::<H>::open(&mut device.verbs, pd, PORT, buffer);
        let carrier = opened.map_err(Refused::into_error).context("QP1")?;
        // All connections may be of one peer, which begins them at once.
        let config = Config {
            half_open: CONNECTIONS,
            half_open_per_peer: CONNECTIONS,
            per_peer: 2 * CONNECTIONS,
            ..Config::new(link.guid(device))
        };
        let mut cm = Box::new(Cm::new(config));
        if role == Role::Server {
            cm.listen(service).context("listen")?;
        }
        Ok(Self { local, link, mtu: port.active_mtu, news: Vec::new(), texts: Vec::new(), cm, carrier })
    }

    /// Returns the path to a server.
    ///
    /// # Errors
    /// Nobody has said where on the link it is.
    pub(crate) fn path_to(&self, server: IpAddr) -> Result<Path> {
        let path = self.link.path_to(self.local, server)?;
        Ok(Path { packet_life_time: LIFE_TIME, mtu: self.mtu, ..path })
    }

    /// Returns the private data of a request to a server: what `rdma_cm` wants to know, and a text.
    ///
    /// # Errors
    /// The server cannot be reached from the address of this end.
    pub(crate) fn request_data(&self, server: IpAddr, text: &str) -> Result<Vec<u8>> {
        let addresses = match (self.local, server) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => IpAddresses::V4 { source, destination },
            (IpAddr::V6(source), IpAddr::V6(destination)) => IpAddresses::V6 { source, destination },
            (local, server) => bail!("{local} and {server} are of different versions of IP: give this end another --address"),
        };
        // A port that no service has (RFC 6335).
        let source_port = 0xc000 | (random() >> 48) as u16;
        let mut private_data = IpPrivateData { source_port, addresses }.encode().to_vec();
        private_data.extend_from_slice(text.as_bytes());
        Ok(private_data)
    }

    /// Tells who asks, by the private data of a request. Returns whether it is one of `rdma_cm`.
    pub(crate) fn tell_client(&mut self, private_data: &[u8]) -> bool {
        let Some((header, text)) = IpPrivateData::decode(private_data) else { return false };
        let source = match header.addresses {
            IpAddresses::V4 { source, .. } => IpAddr::V4(source),
            IpAddresses::V6 { source, .. } => IpAddr::V6(source),
        };
        self.news.push(format!("  request from {source}, port {}", header.source_port));
        self.tell_private_data("client", text);
        true
    }

    /// Tells the text of a peer.
    pub(crate) fn tell_private_data(&mut self, who: &str, private_data: &[u8]) {
        if let Some(text) = self.take_text(private_data) {
            self.news.push(format!("  private data of the {who}: \"{text}\""));
        }
    }

    /// Returns the error of a peer that refuses, with its private data if there is any.
    pub(crate) fn refusal(&mut self, why: &str, private_data: &[u8]) -> anyhow::Error {
        match self.take_text(private_data) {
            Some(text) => anyhow!("{why}, private data \"{text}\""),
            None => anyhow!("{why}"),
        }
    }

    /// Returns the error of a rejected connection.
    pub(crate) fn rejection(&mut self, reason: u16, private_data: &[u8]) -> anyhow::Error {
        let known = RejectReason::from_code(reason.into());
        let name = known.map_or_else(|| format!("reason {reason}"), |reason| reason.name().into());
        self.refusal(&format!("the peer rejected the connection: {name}"), private_data)
    }

    /// Keeps the text of private data for the report, and returns it. `None` if there is none.
    fn take_text(&mut self, private_data: &[u8]) -> Option<String> {
        let text = text_of(private_data);
        if text.is_empty() {
            return None;
        }
        self.texts.push(text.clone());
        Some(text)
    }

    /// Returns the error of a peer that does not answer.
    pub(crate) fn unanswered(&self) -> anyhow::Error {
        self.link.unanswered(self.local)
    }

    /// Returns the address vector of a path from this port.
    ///
    /// # Errors
    /// The port has not the address that the path comes from, or nobody has said the peer's MAC address.
    pub(crate) fn address(&self, path: &PathAddress) -> Result<AddressVector> {
        match self.carrier.address(path, |gid| self.link.mac_of(gid)) {
            Err(CarrierError::NoMac { gid }) => Err(no_mac(gid.ip())),
            found => found.context("path"),
        }
    }

    /// Takes one datagram, or does what time asks for.
    ///
    /// # Errors
    /// QP1 is broken.
    pub(crate) fn turn<'a>(&mut self, device: &mut Device<H>, mad: &'a mut Mad) -> Result<Turn<'a>> {
        let event = match self.carrier.receive(mad) {
            Ok(None) => match self.cm.advance(device.host.now()) {
                None => return Ok(Turn::Idle),
                event => event,
            },
            Ok(Some(from)) => self.cm.receive(device.host.now(), random(), &from, mad),
            Err(CarrierError::Stopped { .. }) => {
                self.carrier.restart(&mut device.verbs).context("QP1")?;
                None
            }
            Err(error) => return Err(error).context("QP1"),
        };
        Ok(event.map_or(Turn::Done, |event| Turn::Event(device.host.now(), event)))
    }

    /// Sends what the state machine has to say.
    ///
    /// # Errors
    /// QP1 is broken, or nobody has said the peer's MAC address.
    pub(crate) fn transmit(&mut self, device: &mut Device<H>) -> Result<()> {
        let link = self.link;
        match self.carrier.transmit(&mut device.verbs, &mut *self.cm, |gid| link.mac_of(gid)) {
            Ok(()) => Ok(()),
            Err(CarrierError::NoMac { gid }) => Err(no_mac(gid.ip())),
            // A stranger's datagram asks for an answer that cannot be given: it gets none.
            Err(error @ (CarrierError::NoGid { .. } | CarrierError::Partition { .. } | CarrierError::Address(_))) => {
                self.news.push(format!("  not answered: {error}"));
                Ok(())
            }
            Err(error) => Err(error).context("QP1"),
        }
    }

    /// Destroys QP1.
    ///
    /// # Errors
    /// The device does not destroy it.
    pub(crate) fn close(self, device: &mut Device<H>) -> Result<()> {
        self.carrier.close(&mut device.verbs).map(|_| ()).map_err(Refused::into_error).context("QP1")
    }
}
