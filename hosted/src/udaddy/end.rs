//! One end of a udaddy: its queue pairs, and their messages.
//!
//! The order is that of librdmacm/examples/udaddy.c: when all queue pairs are resolved, the client sends all messages of each, with the
//! number of its queue pair as immediate data. A server that has those of all answers with as many, from the buffer that it received
//! into: 40 bytes of the header that came with a datagram, and then the datagram, as far as they go.

use std::net::IpAddr;

use anyhow::{Context as _, Result, bail};
use bareverbs::platform::Instant;
use bareverbs::{
    Access, Completion, Destination, GlobalRoute, Qkey, QpAttr, QpCap, QpType, Qpn, SendWr, Source, WcData, WcStatus,
};
use bareverbs_cm::{Event, Path, QueryId, ResolveRequest, ServiceAnswer, ServiceTicket, SidrRep, SidrStatus};

use super::args::UdaddyArgs;
use super::report::Datagrams;
use crate::data_pattern::Pattern;
use crate::device::ethernet::EntryArgs;
use crate::device::{Device, Endpoint, Host, Role};
use crate::rdma_cm::link::PORT;
use crate::rdma_cm::port::{CM_RETRIES, CM_TIMEOUT, CmPort, random};
use crate::rdma_cm::program::{End, Program as _};

/// Q_Key of datagrams of `rdma_cm` (`RDMA_UDP_QKEY`, include/rdma/rdma_cm.h of Linux).
const QKEY: Qkey = Qkey::new(0x0123_4567);
/// Bytes before the message in each receive.
const AREA: usize = GlobalRoute::AREA;
/// `wr_id` of a send; that of a receive is its place.
const SENT: u64 = 1 << 63;

/// The peer of a queue pair.
#[derive(Default)]
struct Peer {
    /// Client: the question that is not answered yet.
    query: Option<QueryId>,
    /// Server: the question that was answered.
    ticket: Option<ServiceTicket>,
    /// Client: whether the answer has come.
    resolved: bool,
    /// Where messages go.
    to: Option<Destination>,
    posted: u32,
    sent: u32,
    received: u32,
    /// Of a server, the first message that came.
    first: Vec<u8>,
}

/// One end.
pub(crate) struct UdaddyEnd<H: Host> {
    role: Role,
    args: UdaddyArgs,
    endpoint: Endpoint<H>,
    port: CmPort<H>,
    /// Path of a client.
    path: Option<Path>,
    seed: u64,
    peers: Vec<Peer>,
    rejected: bool,
}

impl<H: Host> End<H> for UdaddyEnd<H> {
    type Program = UdaddyArgs;

    fn new(role: Role, device: &mut Device<H>, args: &UdaddyArgs, entry: EntryArgs) -> Result<Self> {
        let (connections, count, size) = (u32::from(args.connections), args.count.max(1), args.size as usize);
        let total = connections as usize * (1 + args.count as usize) * Self::stride(args);
        let mut endpoint = Endpoint::new(device, total, Access::LOCAL_WRITE)?;
        let port = CmPort::open(device, endpoint.pd(), role, &args.cm, entry, args.service())?;
        if size > port.mtu.bytes() as usize {
            bail!("datagrams of {size} bytes do not fit into packets of {} bytes: give both ends less (-S)", port.mtu.bytes());
        }
        let cq = endpoint.create_cq(device, connections * 2 * count)?;
        let cap = QpCap { max_send_wr: count, max_recv_wr: count, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let seed = random();
        let mut peers = Vec::new();
        for number in 0..connections as usize {
            let qp = endpoint.create_qp(device, QpType::Ud, (cq, cq), cap)?;
            let attr = QpAttr { port_num: PORT, qkey: QKEY, ..QpAttr::default() };
            device.verbs.modify_qp_to_rts(qp, &attr).context("queue pair for datagrams")?;
            peers.push(Peer::default());
            // All at once: a datagram that finds no receive is lost.
            for place in 0..args.count as usize {
                endpoint.post_receive(number, place as u64, Self::place(args, number, place), AREA + size)?;
            }
            endpoint.fill(Self::out(args, number), size, Pattern::new(seed, number as u32, 0))?;
        }
        Ok(Self { role, args: args.clone(), endpoint, port, path: None, seed, peers, rejected: false })
    }

    fn port(&mut self) -> &mut CmPort<H> {
        &mut self.port
    }

    fn request(&mut self, device: &mut Device<H>, server: IpAddr) -> Result<()> {
        let path = self.port.path_to(server)?;
        self.path = Some(path);
        for number in 0..self.peers.len() {
            let private_data = self.port.request_data(server, &self.args.cm.private_data)?;
            let request = ResolveRequest {
                timeout: CM_TIMEOUT,
                retries: CM_RETRIES,
                private_data: &private_data,
                ..ResolveRequest::new(self.args.service(), path)
            };
            let query = self.port.cm.resolve(device.host.now(), random(), &request).context("request")?;
            self.peer(number)?.query = Some(query);
        }
        Ok(())
    }

    fn handle(&mut self, device: &mut Device<H>, _now: Instant, event: &Event<'_>) -> Result<()> {
        match *event {
            Event::ServiceRequested { ticket, private_data, .. } => self.answer(device, ticket, private_data),
            Event::Resolved { query, answer } => match self.of(query) {
                Some(number) => self.resolved(device, number, &answer),
                None => Ok(()),
            },
            Event::Unresolved { query } if self.of(query).is_some() => Err(self.port.unanswered()),
            _ => Ok(()),
        }
    }

    fn poll(&mut self, device: &mut Device<H>) -> Result<bool> {
        let mut completions = [(Completion::EMPTY, None); 16];
        let mut any = false;
        loop {
            let taken = self.endpoint.cq(0)?.poll_with_source(&mut completions).context("poll_cq")?;
            if taken == 0 {
                break;
            }
            any = true;
            for (completion, source) in completions.iter().take(taken) {
                self.complete(device, completion, source.as_ref())?;
            }
        }
        Ok(self.send(device)? || any)
    }

    fn leave(&mut self, _now: Instant) -> bool {
        // There is no connection whose end a peer could be notified of.
        false
    }

    fn is_done(&self) -> bool {
        let count = self.args.count;
        self.rejected || self.peers.iter().all(|peer| Self::is_known(peer) && (peer.sent, peer.received) == (count, count))
    }

    fn waits_for_client(&self) -> bool {
        self.role == Role::Server && self.peers.iter().any(|peer| peer.ticket.is_none())
    }

    fn has_rejected(&self) -> bool {
        self.rejected
    }

    fn done(&self) -> Datagrams {
        let known = self.peers.iter().filter(|peer| Self::is_known(peer)).count();
        Datagrams {
            connections: known as u16,
            received: self.peers.iter().map(|peer| u64::from(peer.received)).sum(),
            sent: self.peers.iter().map(|peer| u64::from(peer.sent)).sum(),
            size: self.args.size,
        }
    }

    fn progress(&self) -> String {
        let Datagrams { connections, received, sent, .. } = self.done();
        let all = u64::from(self.args.connections) * u64::from(self.args.count);
        format!(
            "{connections} of {} queue pairs were resolved, {received} of {all} messages have come, {sent} of {all} were sent: the peer \
             has ended, or a datagram was lost, which nobody repeats",
            self.args.connections
        )
    }

    fn destroy(self, device: &mut Device<H>) -> Result<()> {
        self.port.close(device)?;
        self.endpoint.destroy(device)
    }
}

impl<H: Host> UdaddyEnd<H> {
    /// Returns the bytes from one place of the memory to the next.
    const fn stride(args: &UdaddyArgs) -> usize {
        (AREA + args.size as usize).next_multiple_of(64)
    }

    /// Returns where the message of a queue pair begins.
    const fn out(args: &UdaddyArgs, number: usize) -> usize {
        number * (1 + args.count as usize) * Self::stride(args)
    }

    /// Returns where a place for a message begins, with what precedes that.
    const fn place(args: &UdaddyArgs, number: usize, place: usize) -> usize {
        Self::out(args, number) + (1 + place) * Self::stride(args)
    }

    const fn is_known(peer: &Peer) -> bool {
        peer.resolved || peer.ticket.is_some()
    }

    /// Returns the queue pair that a question is for; none if nobody here asks it.
    fn of(&self, query: QueryId) -> Option<usize> {
        self.peers.iter().position(|peer| peer.query == Some(query))
    }

    fn peer(&mut self, number: usize) -> Result<&mut Peer> {
        self.peers.get_mut(number).context("no such queue pair")
    }

    fn qpn(&mut self, device: &Device<H>, number: usize) -> Result<Qpn> {
        Ok(device.verbs.qp_info(self.endpoint.qp(number)?.handle()).context("queue pair")?.qpn)
    }

    /// Answers a question. One that is repeated has the same answer again.
    fn answer(&mut self, device: &mut Device<H>, ticket: ServiceTicket, request: &[u8]) -> Result<()> {
        let known = self.peers.iter().position(|peer| peer.ticket == Some(ticket));
        let free = self.peers.iter().position(|peer| peer.ticket.is_none());
        let private_data = self.args.cm.private_data.clone().into_bytes();
        let refused = ServiceAnswer { status: SidrStatus::Rejected, ..ServiceAnswer::valid(Qpn::new(0), Qkey::default()) };
        let answer = match known.or(free) {
            _ if self.args.cm.reject => {
                self.rejected |= self.port.tell_client(request);
                ServiceAnswer { private_data: &private_data, ..refused }
            }
            None => ServiceAnswer { status: SidrStatus::NoQp, ..refused },
            Some(_) if known.is_none() && !self.port.tell_client(request) => refused,
            Some(number) => {
                self.peer(number)?.ticket = Some(ticket);
                ServiceAnswer { private_data: &private_data, ..ServiceAnswer::valid(self.qpn(device, number)?, QKEY) }
            }
        };
        self.port.cm.answer(ticket, &answer).context("answer")
    }

    /// Takes the answer to a question.
    fn resolved(&mut self, device: &mut Device<H>, number: usize, answer: &SidrRep<'_>) -> Result<()> {
        match SidrStatus::from_code(answer.status.into()) {
            Some(SidrStatus::Valid) => {}
            status => {
                let name = status.map_or_else(|| format!("status {}", answer.status), |status| status.name().into());
                return Err(self.port.refusal(&format!("the peer rejected the request: {name}"), answer.private_data));
            }
        }
        self.port.tell_private_data("server", answer.private_data);
        self.port.news.push(format!("  queue pair {number} resolved"));
        let path = self.path.context("no path")?;
        let av = self.port.address(&path.address())?;
        let ah = self.endpoint.create_ah(device, PORT, &av)?;
        let peer = self.peer(number)?;
        peer.query = None;
        peer.resolved = true;
        peer.to = Some(Destination { ah, remote_qpn: answer.qpn, remote_qkey: answer.q_key });
        Ok(())
    }

    fn complete(&mut self, device: &mut Device<H>, completion: &Completion, source: Option<&Source>) -> Result<()> {
        let handle = completion.qp;
        let number =
            self.endpoint.qps().iter().position(|qp| qp.handle() == handle).context("a completion of another queue pair")?;
        if completion.status != WcStatus::Success {
            bail!("queue pair {number}: a request failed with {:?}", completion.status);
        }
        if completion.wr_id == SENT {
            self.peer(number)?.sent += 1;
            return Ok(());
        }
        let size = self.args.size as usize;
        let length = (completion.byte_len as usize).saturating_sub(AREA);
        if length != size {
            bail!("queue pair {number}: a message of {length} bytes came instead of {size}: give both ends the same -S");
        }
        let place = Self::place(&self.args, number, completion.wr_id as usize);
        match self.role {
            Role::Client => self.compare(number, place)?,
            Role::Server => {
                self.take(device, number, place, completion.data, source.context("a datagram without a source")?)?
            }
        }
        self.peer(number)?.received += 1;
        Ok(())
    }

    /// Compares what comes back with what was sent, as far as the server's buffer has it.
    fn compare(&mut self, number: usize, place: usize) -> Result<()> {
        let size = self.args.size as usize;
        let mut sent = vec![0; size];
        Pattern::new(self.seed, number as u32, 0).fill(&mut sent);
        let received = self.peer(number)?.received;
        let came = self.endpoint.read(place + AREA, size)?;
        let wrong = sent.iter().zip(came.iter().skip(AREA)).position(|(sent, came)| sent != came);
        match wrong {
            None => Ok(()),
            Some(byte) => bail!("queue pair {number}, message {received}: byte {byte} of {size} came back wrong"),
        }
    }

    /// Takes a message at the server: the first tells where the answers go, and all of a client are the same.
    fn take(&mut self, device: &mut Device<H>, number: usize, place: usize, data: WcData, source: &Source) -> Result<()> {
        let WcData::Imm(qpn) = data else {
            bail!("queue pair {number}: a message came without a queue pair number as immediate data")
        };
        let size = self.args.size as usize;
        let message = self.endpoint.read(place, AREA + size)?.to_vec();
        let area = *message.first_chunk::<AREA>().context("a message without what precedes it")?;
        if self.peer(number)?.to.is_none() {
            let av = self.port.link.answer(source, &area)?;
            let ah = self.endpoint.create_ah(device, PORT, &av)?;
            let remote_qpn = Qpn::new(u32::from_be_bytes(qpn) & 0xff_ffff);
            self.peer(number)?.to = Some(Destination { ah, remote_qpn, remote_qkey: QKEY });
            self.peer(number)?.first = message;
            return Ok(());
        }
        let peer = self.peer(number)?;
        let differs = |(first, now): (&u8, &u8)| first != now;
        if let Some(byte) = peer.first.iter().zip(&message).skip(AREA).position(differs) {
            bail!("queue pair {number}, message {}: byte {byte} of {size} is another one than in message 0", peer.received);
        }
        Ok(())
    }

    /// Posts what may be sent. Returns whether there was anything.
    fn send(&mut self, device: &Device<H>) -> Result<bool> {
        let count = self.args.count;
        let may_send = match self.role {
            Role::Client => self.peers.iter().all(|peer| peer.resolved),
            Role::Server => self.peers.iter().all(|peer| peer.received == count),
        };
        if !may_send || self.peers.iter().all(|peer| peer.posted == count) {
            return Ok(false);
        }
        for number in 0..self.peers.len() {
            let size = self.args.size as usize;
            let out = Self::out(&self.args, number);
            let qpn = self.qpn(device, number)?.get().to_be_bytes();
            let peer = self.peer(number)?;
            peer.posted = count;
            let to = peer.to.context("no address of the peer")?;
            if self.role == Role::Server {
                let answer = std::mem::take(&mut self.peer(number)?.first);
                self.endpoint.region.write(out, answer.get(..size).context("a short message")?)?;
            }
            let sges = [self.endpoint.sge(out, size)];
            let wr = SendWr::send_to_with_imm(&to, &sges, qpn).id(SENT).signaled();
            for _ in 0..count {
                self.endpoint.qp(number)?.send().post(&wr).context("send")?;
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
impl<H: Host> UdaddyEnd<H> {
    /// Has a client expect other messages than it sends.
    pub(super) const fn expect_others(&mut self) {
        self.seed ^= 1;
    }

    /// Has a server take the message in its first place once more, with another byte there.
    pub(super) fn take_changed(&mut self, device: &mut Device<H>, byte: usize) -> Result<()> {
        let [first, second] = [0, 1].map(|place| Self::place(&self.args, 0, place));
        let mut message = self.endpoint.read(first, AREA + self.args.size as usize)?.to_vec();
        message[AREA + byte] ^= 1;
        self.endpoint.region.write(second, &message)?;
        self.take(device, 0, second, WcData::Imm([0; 4]), &Source::default())
    }
}
