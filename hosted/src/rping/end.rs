//! One end of an rping: its connection, and its rounds.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use bareverbs::{
    Access, Completion, DmaBuffer as _, Gid, Guid, Instant, Lid, LinkLayer, Mac, Mtu, Psn, QpAttr, QpCap, QpType, Refused,
    Remote, Rkey, SendWr, WcStatus,
};
use bareverbs_cm::{
    Accept, Attributes, CarrierError, Config, ConnectRequest, ConnectionId, Event, IpAddresses, IpPrivateData, MAD_BYTES, Path,
    PortSpace, RejectReason, Req,
};

use super::args::RpingArgs;
use crate::data_pattern::Pattern;
use crate::device::ethernet::EntryArgs;
use crate::device::{Carrier, Device, Endpoint, Host, Role};

/// Port of the device.
const PORT: u8 = 1;
/// Bytes of a message: address, key and length of memory (`struct rping_rdma_info` of librdmacm/examples/rping.c).
const MESSAGE: usize = 16;
/// `wr_id` of a message that was received, of one that was sent, and of an RDMA read or write.
const RECEIVED: u64 = 1;
const SENT: u64 = 2;
const MOVED: u64 = 3;
/// Where messages leave, where they arrive, and where the data begins.
const OUT: usize = 0;
const IN: usize = 64;
const DATA: usize = 4096;
/// How long an answer of the peer may take, and how often it is asked: 1 s, encoded, eight times.
const CM_TIMEOUT: u8 = 18;
const CM_RETRIES: u8 = 7;
/// Packet lifetime for the ACK timeout: 67 ms, encoded.
const LIFE_TIME: u8 = 14;
/// LID of a path on Ethernet.
const NO_LID: Lid = Lid::new(0xffff);
const HOP_LIMIT: u8 = 64;

/// What an end waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Server: a request. Client: the answer to its own.
    Connecting,
    /// Server: where to read from. Client: that its data was read.
    Read,
    /// Server: the end of its RDMA read.
    Reading,
    /// Server: where to write to. Client: that its data was written.
    Write,
    /// Server: the end of its RDMA write.
    Writing,
    /// The end of the connection.
    Releasing,
    /// Nothing.
    Done,
}

/// One end.
pub(crate) struct RpingEnd<H: Host> {
    /// Client or server.
    pub(crate) role: Role,
    /// Rounds that are done.
    pub(crate) rounds: u32,
    /// Address of this end.
    pub(crate) local: IpAddr,
    /// MAC address of the port.
    pub(crate) mac: Mac,
    /// Whether it has rejected the request of its client.
    pub(crate) rejected: bool,
    /// MAC address of the peer, or of the router to it, if it is known.
    pub(crate) peer_mac: Option<Mac>,
    /// What happened since the last look, for people.
    pub(crate) news: Vec<String>,
    args: RpingArgs,
    mtu: Mtu,
    endpoint: Endpoint<H>,
    carrier: Carrier<H>,
    cm: bareverbs_cm::Endpoint<4, 1, 1>,
    connection: Option<ConnectionId>,
    state: State,
    /// Bytes of the round at hand, of a server.
    length: usize,
}

/// Returns a number that nobody can guess.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Returns the error of an address without a MAC address.
fn no_mac(address: IpAddr) -> anyhow::Error {
    anyhow!(
        "the address {address} does not tell its MAC address, and this command asks nobody for it (ARP): give --peer-mac, of the peer or \
         of the router to it"
    )
}

/// Returns private data up to the zeros that fill its field.
fn text_of(private_data: &[u8]) -> String {
    let length = private_data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    private_data.get(..length).unwrap_or_default().escape_ascii().to_string()
}

impl<H: Host> RpingEnd<H> {
    /// Gives the port its address, and creates QP1 and the queue pair of the connection. The port is active.
    ///
    /// # Errors
    /// It is no Ethernet port, its address cannot be set, or there is no room for an object.
    pub(crate) fn new(role: Role, device: &mut Device<H>, args: &RpingArgs, entry: EntryArgs) -> Result<Self> {
        let port = device.verbs.query_port(PORT).context("query_port")?;
        if port.link_layer != LinkLayer::Ethernet {
            bail!("port {PORT} is an InfiniBand port: this command resolves no IP addresses there, and needs an Ethernet port");
        }
        let mac = port.mac;
        let gid = device.local_gid(PORT, &port, Some(args.path.gid_idx.unwrap_or(0)), entry)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let size = args.size as usize;
        let mut endpoint = Endpoint::new(device, DATA + 2 * size.next_multiple_of(64), access)?;
        let buffer = device.host.buffer(Carrier::<H>::BYTES).context("memory for QP1")?;
        let opened = Carrier::<H>::open(&mut device.verbs, endpoint.pd(), PORT, buffer);
        let carrier = opened.map_err(Refused::into_error).context("QP1")?;
        let cq = endpoint.create_cq(device, 64)?;
        let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        endpoint.create_qp(device, QpType::Rc, (cq, cq), cap)?;
        let [a, b, c, d, e, f] = mac.0;
        let guid = Guid(u64::from_be_bytes([a, b, c, 0xff, 0xfe, d, e, f]));
        let mut end = Self {
            role,
            rounds: 0,
            local: gid.ip(),
            mac,
            rejected: false,
            peer_mac: args.path.peer_mac,
            news: Vec::new(),
            args: args.clone(),
            mtu: port.active_mtu,
            endpoint,
            carrier,
            cm: bareverbs_cm::Endpoint::new(Config::new(guid)),
            connection: None,
            state: State::Connecting,
            length: 0,
        };
        if role == Role::Server {
            end.cm.listen(PortSpace::Tcp.service_id(args.port)).context("listen")?;
        }
        Ok(end)
    }

    /// Asks the server for a connection: what a client begins with.
    ///
    /// # Errors
    /// The server cannot be reached from the address of this end, or QP1 is broken.
    pub(crate) fn request(&mut self, device: &mut Device<H>, server: IpAddr) -> Result<()> {
        let gid = Gid::from(server);
        if self.peer_mac.or_else(|| gid.link_local_mac()).is_none() {
            return Err(no_mac(server));
        }
        let addresses = match (self.local, server) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => IpAddresses::V4 { source, destination },
            (IpAddr::V6(source), IpAddr::V6(destination)) => IpAddresses::V6 { source, destination },
            (local, server) => bail!("{local} and {server} are of different versions of IP: give this end another --address"),
        };
        let seed = random();
        // A port that no service has (RFC 6335).
        let source_port = 0xc000 | (seed >> 48) as u16;
        let mut private_data = IpPrivateData { source_port, addresses }.encode().to_vec();
        private_data.extend_from_slice(self.args.private_data.as_bytes());
        let path = Path {
            local_lid: NO_LID,
            remote_lid: NO_LID,
            local_gid: self.local.into(),
            remote_gid: gid,
            hop_limit: HOP_LIMIT,
            global: true,
            packet_life_time: LIFE_TIME,
            mtu: self.mtu,
            ..Path::default()
        };
        let service = PortSpace::Tcp.service_id(self.args.port);
        let request = ConnectRequest {
            remote_cm_response_timeout: CM_TIMEOUT,
            local_cm_response_timeout: CM_TIMEOUT,
            max_cm_retries: CM_RETRIES,
            private_data: &private_data,
            ..ConnectRequest::new(service, path, self.qpn(device)?, Psn::new(seed as u32 & 0xff_ffff))
        };
        self.connection = Some(self.cm.connect(device.host.now(), random(), &request).context("request")?);
        self.transmit(device)
    }

    fn qpn(&mut self, device: &Device<H>) -> Result<bareverbs::Qpn> {
        Ok(device.verbs.qp_info(self.endpoint.qp(0)?.handle()).context("queue pair")?.qpn)
    }

    /// Does what there is to do. Returns whether there was anything.
    ///
    /// # Errors
    /// The peer rejects, does not answer, leaves in the middle of a round, or sends what is wrong.
    pub(crate) fn step(&mut self, device: &mut Device<H>) -> Result<bool> {
        let mut progressed = false;
        let mut mad = [0; MAD_BYTES];
        loop {
            match self.carrier.receive(&mut mad) {
                Ok(None) => break,
                Ok(Some(from)) => {
                    let now = device.host.now();
                    // Of the state machine: what it tells borrows the datagram.
                    if let Some(event) = self.cm.receive(now, random(), &from, &mad) {
                        self.handle(device, now, &event)?;
                    }
                }
                Err(CarrierError::Stopped { .. }) => self.carrier.restart(&mut device.verbs).context("QP1")?,
                Err(error) => return Err(error).context("QP1"),
            }
            progressed = true;
        }
        let now = device.host.now();
        while let Some(event) = self.cm.advance(now) {
            self.handle(device, now, &event)?;
            progressed = true;
        }
        let mut completions = [Completion::EMPTY; 4];
        let taken = self.endpoint.cq(0)?.poll(&mut completions).context("poll_cq")?;
        for completion in completions.iter().take(taken) {
            self.complete(device, completion)?;
        }
        self.transmit(device)?;
        Ok(progressed || taken > 0)
    }

    /// Releases a connection that an error or the user has ended early: the peer does not learn of it by itself. Returns whether there
    /// is one; it has ended when [`Self::is_done`] says so.
    ///
    /// # Errors
    /// QP1 is broken.
    pub(crate) fn leave(&mut self, device: &mut Device<H>) -> Result<bool> {
        let Some(id) = self.connection.filter(|_| self.state != State::Done) else { return Ok(false) };
        if self.state != State::Releasing {
            if self.cm.disconnect(device.host.now(), id, &[]).is_err() {
                return Ok(false);
            }
            self.state = State::Releasing;
        }
        self.transmit(device)?;
        Ok(true)
    }

    /// Returns whether the connection has ended as it should.
    pub(crate) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Returns whether a server still waits for its client.
    pub(crate) fn waits_for_client(&self) -> bool {
        self.role == Role::Server && self.connection.is_none()
    }

    fn transmit(&mut self, device: &mut Device<H>) -> Result<()> {
        let peer_mac = self.peer_mac;
        match self.carrier.transmit(&mut device.verbs, &mut self.cm, |gid| peer_mac.or_else(|| gid.link_local_mac())) {
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

    fn handle(&mut self, device: &mut Device<H>, now: Instant, event: &Event<'_>) -> Result<()> {
        match *event {
            Event::Requested { id, request, .. } => return self.answer(device, now, id, &request),
            Event::Replied { id, reply, attributes } if Some(id) == self.connection => {
                self.said("server", reply.private_data);
                self.connect(device, &attributes)?;
                self.cm.ready(id, &[]).context("ready")?;
                self.news.push("  connected".into());
                self.advertise(DATA)?;
                self.state = State::Read;
            }
            Event::Established { id, .. } if Some(id) == self.connection => self.news.push("  connected".into()),
            Event::Rejected { id, reason, private_data, .. } if Some(id) == self.connection => {
                let name = RejectReason::from_code(reason.into())
                    .map_or_else(|| format!("reason {reason}"), |reason| reason.name().into());
                let text = text_of(private_data);
                let text = if text.is_empty() { text } else { format!(", private data \"{text}\"") };
                bail!("the peer rejected the connection: {name}{text}");
            }
            Event::TimedOut { id, .. } if Some(id) == self.connection => {
                bail!(
                    "the peer does not answer: it has ended, or has no entry for {} with {} (ip neigh add)",
                    self.local,
                    self.mac
                )
            }
            Event::Disconnected { id, cause, .. } if Some(id) == self.connection => match (self.role, self.state) {
                (Role::Server, State::Read) | (_, State::Releasing) => self.state = State::Done,
                _ => bail!("the connection ended in round {}: {cause:?}", self.rounds),
            },
            _ => {}
        }
        Ok(())
    }

    fn said(&mut self, who: &str, private_data: &[u8]) {
        let text = text_of(private_data);
        if !text.is_empty() {
            self.news.push(format!("  private data of the {who}: \"{text}\""));
        }
    }

    /// Accepts or rejects a request.
    fn answer(&mut self, device: &mut Device<H>, now: Instant, id: ConnectionId, request: &Req<'_>) -> Result<()> {
        let Some((header, text)) = IpPrivateData::decode(request.private_data) else {
            self.cm.reject(now, id, RejectReason::Unsupported, &[], &[]).context("reject")?;
            return Ok(());
        };
        if self.connection.is_some() {
            self.cm.reject(now, id, RejectReason::NoResources, &[], &[]).context("reject")?;
            return Ok(());
        }
        let source = match header.addresses {
            IpAddresses::V4 { source, .. } => IpAddr::V4(source),
            IpAddresses::V6 { source, .. } => IpAddr::V6(source),
        };
        self.news.push(format!("  request from {source}, port {}", header.source_port));
        self.said("client", text);
        let private_data = self.args.private_data.clone().into_bytes();
        if self.args.reject {
            self.cm.reject(now, id, RejectReason::ConsumerReject, &[], &private_data).context("reject")?;
            self.connection = Some(id);
            self.state = State::Done;
            self.rejected = true;
            return Ok(());
        }
        let accept =
            Accept { private_data: &private_data, ..Accept::new(self.qpn(device)?, Psn::new(random() as u32 & 0xff_ffff)) };
        let attributes = self.cm.accept(now, id, &accept).context("accept")?;
        self.connection = Some(id);
        self.connect(device, &attributes)?;
        self.state = State::Read;
        Ok(())
    }

    /// Leads the queue pair to RTS. Its receive is posted before the peer hears of it.
    fn connect(&mut self, device: &mut Device<H>, attributes: &Attributes) -> Result<()> {
        let peer_mac = self.peer_mac;
        let mac_of = |gid: Gid| peer_mac.or_else(|| gid.link_local_mac());
        let av = match self.carrier.address(&attributes.rtr.path, mac_of) {
            Err(CarrierError::NoMac { gid }) => return Err(no_mac(gid.ip())),
            found => found.context("path")?,
        };
        let attr = QpAttr { access: Access::REMOTE_READ | Access::REMOTE_WRITE, ..attributes.qp_attr(av) };
        let handle = self.endpoint.qp(0)?.handle();
        device.verbs.modify_qp_to_rts(handle, &attr).context("connect")?;
        self.endpoint.post_receive(0, RECEIVED, IN, MESSAGE)
    }

    /// Sends where the peer may read from or write to: `size` bytes from `at`.
    fn advertise(&mut self, at: usize) -> Result<()> {
        if self.role == Role::Client && at == DATA {
            let mut data = vec![0; self.args.size as usize];
            Pattern::new(u64::from(self.rounds), 0, 0).fill(&mut data);
            // A server returns a string: all before the first zero, and that.
            data.iter_mut().for_each(|byte| *byte = *byte % 94 + 33);
            if let Some(last) = data.last_mut() {
                *last = 0;
            }
            self.endpoint.region.write(DATA, &data)?;
        }
        let Remote { addr, rkey } = self.endpoint.region.remote(at as u64);
        let mut message = Vec::with_capacity(MESSAGE);
        message.extend_from_slice(&addr.to_be_bytes());
        message.extend_from_slice(&rkey.get().to_be_bytes());
        message.extend_from_slice(&self.args.size.to_be_bytes());
        self.endpoint.region.write(OUT, &message)?;
        self.send()
    }

    fn send(&mut self) -> Result<()> {
        let sges = [self.endpoint.sge(OUT, MESSAGE)];
        self.endpoint.qp(0)?.send().post(&SendWr::send(&sges).id(SENT).signaled()).context("send")
    }

    fn complete(&mut self, device: &mut Device<H>, completion: &Completion) -> Result<()> {
        let Completion { wr_id, status, byte_len, .. } = *completion;
        if matches!(self.state, State::Releasing | State::Done) {
            return Ok(());
        }
        if status != WcStatus::Success {
            bail!("round {}: a request failed with {status:?}: the peer has ended, or its buffer is smaller", self.rounds);
        }
        match (wr_id, self.role, self.state) {
            (SENT, ..) => Ok(()),
            (RECEIVED, ..) if byte_len as usize != MESSAGE => bail!("a message of {byte_len} bytes came instead of {MESSAGE}"),
            (RECEIVED, Role::Server, State::Read) => self.read_from_client(),
            (MOVED, Role::Server, State::Reading) => {
                self.state = State::Write;
                self.send()
            }
            (RECEIVED, Role::Server, State::Write) => self.write_to_client(),
            (MOVED, Role::Server, State::Writing) => {
                self.rounds += 1;
                self.state = State::Read;
                self.send()
            }
            (RECEIVED, Role::Client, State::Read) => {
                self.endpoint.post_receive(0, RECEIVED, IN, MESSAGE)?;
                self.state = State::Write;
                self.advertise(self.echo())
            }
            (RECEIVED, Role::Client, State::Write) => self.end_round(device),
            _ => bail!("round {}: the peer does not keep to the protocol of rping", self.rounds),
        }
    }

    /// Returns where the data comes back to.
    fn echo(&self) -> usize {
        DATA + (self.args.size as usize).next_multiple_of(64)
    }

    /// Takes the client's message, and posts the receive for the next.
    fn message(&mut self) -> Result<(Remote, usize)> {
        let mut message = [0; MESSAGE];
        self.endpoint.region.read(IN, &mut message)?;
        self.endpoint.post_receive(0, RECEIVED, IN, MESSAGE)?;
        let number = u128::from_be_bytes(message);
        let remote = Remote { addr: (number >> 64) as u64, rkey: Rkey::new((number >> 32) as u32) };
        let length = number as u32;
        if length == 0 || length > self.args.size {
            bail!("the client has {length} bytes, and this server takes {} at most (-S)", self.args.size);
        }
        Ok((remote, length as usize))
    }

    fn read_from_client(&mut self) -> Result<()> {
        // A client may begin before its last message of the connection's making has come.
        if let Some(id) = self.connection
            && self.cm.established(id).context("established")?
        {
            self.news.push("  connected".into());
        }
        let (remote, length) = self.message()?;
        self.length = length;
        self.state = State::Reading;
        let sges = [self.endpoint.sge(DATA, length)];
        self.endpoint.qp(0)?.send().post(&SendWr::read(remote, &sges).id(MOVED).signaled()).context("read")
    }

    fn write_to_client(&mut self) -> Result<()> {
        let (remote, length) = self.message()?;
        let data = self.endpoint.read(DATA, self.length)?;
        let text = data.iter().position(|byte| *byte == 0).map_or(data.len(), |end| end + 1).min(length);
        self.state = State::Writing;
        let sges = [self.endpoint.sge(DATA, text)];
        self.endpoint.qp(0)?.send().post(&SendWr::write(remote, &sges).id(MOVED).signaled()).context("write")
    }

    /// Compares what came back with what was sent, and begins the next round or the end.
    fn end_round(&mut self, device: &mut Device<H>) -> Result<()> {
        let size = self.args.size as usize;
        let sent = self.endpoint.read(DATA, size)?.to_vec();
        let came = self.endpoint.read(self.echo(), size)?;
        if let Some(at) = sent.iter().zip(came).position(|(sent, came)| sent != came) {
            bail!("round {}: byte {at} of {size} came back wrong", self.rounds);
        }
        self.rounds += 1;
        self.endpoint.post_receive(0, RECEIVED, IN, MESSAGE)?;
        if self.rounds < self.args.count {
            self.endpoint.clear(self.echo(), size)?;
            self.state = State::Read;
            return self.advertise(DATA);
        }
        self.state = State::Releasing;
        let connection = self.connection.context("no connection")?;
        self.cm.disconnect(device.host.now(), connection, &[]).context("disconnect")
    }

    /// Destroys all verbs objects.
    pub(crate) fn destroy(self, device: &mut Device<H>) -> Result<()> {
        self.carrier.close(&mut device.verbs).map_err(Refused::into_error).context("QP1")?;
        self.endpoint.destroy(device)
    }
}

/// How long an end stays to answer repetitions after its connection has ended.
pub(crate) const LINGER: Duration = Duration::from_millis(500);
