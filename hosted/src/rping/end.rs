//! One end of an rping: its connection, and its rounds.

use std::net::IpAddr;

use anyhow::{Context as _, Result, bail};
use bareverbs::platform::Instant;
use bareverbs::{Access, Completion, DmaBuffer as _, Psn, QpAttr, QpCap, QpType, Qpn, Remote, Rkey, SendWr, WcStatus};
use bareverbs_cm::{Accept, Attributes, ConnectRequest, ConnectionId, Event, RejectReason, Req};

use super::args::RpingArgs;
use super::report::Rounds;
use crate::data_pattern::Pattern;
use crate::device::ethernet::EntryArgs;
use crate::device::{Device, Endpoint, Host, Role};
use crate::rdma_cm::port::{CM_RETRIES, CM_TIMEOUT, CmPort, random};
use crate::rdma_cm::program::{End, Program as _};

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
    role: Role,
    args: RpingArgs,
    endpoint: Endpoint<H>,
    port: CmPort<H>,
    connection: Option<ConnectionId>,
    state: State,
    /// Rounds that are done.
    rounds: u32,
    /// Whether it has rejected the request of its client.
    rejected: bool,
    /// Bytes of the round at hand, of a server.
    length: usize,
}

impl<H: Host> End<H> for RpingEnd<H> {
    type Program = RpingArgs;

    fn new(role: Role, device: &mut Device<H>, args: &RpingArgs, entry: EntryArgs) -> Result<Self> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let size = args.size as usize;
        let mut endpoint = Endpoint::new(device, DATA + 2 * size.next_multiple_of(64), access)?;
        let port = CmPort::open(device, endpoint.pd(), role, &args.cm, entry, args.service())?;
        let cq = endpoint.create_cq(device, 64)?;
        let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        endpoint.create_qp(device, QpType::Rc, (cq, cq), cap)?;
        let (args, connection, state) = (args.clone(), None, State::Connecting);
        Ok(Self { role, args, endpoint, port, connection, state, rounds: 0, rejected: false, length: 0 })
    }

    fn port(&mut self) -> &mut CmPort<H> {
        &mut self.port
    }

    fn request(&mut self, device: &mut Device<H>, server: IpAddr) -> Result<()> {
        let path = self.port.path_to(server)?;
        let private_data = self.port.request_data(server, &self.args.cm.private_data)?;
        let request = ConnectRequest {
            remote_cm_response_timeout: CM_TIMEOUT,
            local_cm_response_timeout: CM_TIMEOUT,
            max_cm_retries: CM_RETRIES,
            private_data: &private_data,
            ..ConnectRequest::new(self.args.service(), path, self.qpn(device)?, Psn::new(random() as u32 & 0xff_ffff))
        };
        self.connection = Some(self.port.cm.connect(device.host.now(), random(), &request).context("request")?);
        Ok(())
    }

    fn handle(&mut self, device: &mut Device<H>, now: Instant, event: &Event<'_>) -> Result<()> {
        match *event {
            Event::Requested { id, request, .. } => return self.answer(device, now, id, &request),
            Event::Replied { id, reply, attributes } if Some(id) == self.connection => {
                self.port.tell_private_data("server", reply.private_data);
                self.connect(device, &attributes)?;
                self.port.cm.ready(id, &[]).context("ready")?;
                self.port.news.push("  connected".into());
                self.advertise(DATA)?;
                self.state = State::Read;
            }
            Event::Established { id, .. } if Some(id) == self.connection => self.port.news.push("  connected".into()),
            Event::Rejected { id, reason, private_data, .. } if Some(id) == self.connection => {
                return Err(self.port.rejection(reason, private_data));
            }
            Event::TimedOut { id, .. } if Some(id) == self.connection => return Err(self.port.unanswered()),
            Event::Disconnected { id, cause, .. } if Some(id) == self.connection => match (self.role, self.state) {
                (Role::Server, State::Read) | (_, State::Releasing) => self.state = State::Done,
                _ => bail!("the connection ended in round {}: {cause:?}", self.rounds),
            },
            _ => {}
        }
        Ok(())
    }

    fn poll(&mut self, device: &mut Device<H>) -> Result<bool> {
        let mut completions = [Completion::EMPTY; 4];
        let taken = self.endpoint.cq(0)?.poll(&mut completions).context("poll_cq")?;
        for completion in completions.iter().take(taken) {
            self.complete(device, completion)?;
        }
        Ok(taken > 0)
    }

    fn leave(&mut self, now: Instant) -> bool {
        let Some(id) = self.connection.filter(|_| self.state != State::Done) else { return false };
        if self.state != State::Releasing {
            if self.port.cm.disconnect(now, id, &[]).is_err() {
                return false;
            }
            self.state = State::Releasing;
        }
        true
    }

    fn is_done(&self) -> bool {
        self.state == State::Done
    }

    fn waits_for_client(&self) -> bool {
        self.role == Role::Server && self.connection.is_none()
    }

    fn has_rejected(&self) -> bool {
        self.rejected
    }

    fn done(&self) -> Rounds {
        Rounds { rounds: self.rounds, size: self.args.size }
    }

    fn progress(&self) -> String {
        match self.state {
            State::Connecting => "no connection was made".into(),
            State::Releasing => "the connection does not end".into(),
            _ => format!("round {} does not end", self.rounds),
        }
    }

    fn destroy(self, device: &mut Device<H>) -> Result<()> {
        self.port.close(device)?;
        self.endpoint.destroy(device)
    }
}

impl<H: Host> RpingEnd<H> {
    fn qpn(&mut self, device: &Device<H>) -> Result<Qpn> {
        Ok(device.verbs.qp_info(self.endpoint.qp(0)?.handle()).context("queue pair")?.qpn)
    }

    /// Accepts or rejects a request.
    fn answer(&mut self, device: &mut Device<H>, now: Instant, id: ConnectionId, request: &Req<'_>) -> Result<()> {
        if self.connection.is_some() {
            return self.port.cm.reject(now, id, RejectReason::NoResources, &[], &[]).context("reject");
        }
        if !self.port.tell_client(request.private_data) {
            return self.port.cm.reject(now, id, RejectReason::Unsupported, &[], &[]).context("reject");
        }
        let private_data = self.args.cm.private_data.clone().into_bytes();
        self.connection = Some(id);
        if self.args.cm.reject {
            self.port.cm.reject(now, id, RejectReason::ConsumerReject, &[], &private_data).context("reject")?;
            self.state = State::Done;
            self.rejected = true;
            return Ok(());
        }
        let accept =
            Accept { private_data: &private_data, ..Accept::new(self.qpn(device)?, Psn::new(random() as u32 & 0xff_ffff)) };
        let attributes = self.port.cm.accept(now, id, &accept).context("accept")?;
        self.connect(device, &attributes)?;
        self.state = State::Read;
        Ok(())
    }

    /// Leads the queue pair to RTS. Its receive is posted before the peer hears of it.
    fn connect(&mut self, device: &mut Device<H>, attributes: &Attributes) -> Result<()> {
        let av = self.port.address(&attributes.rtr.path)?;
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
            && self.port.cm.established(id).context("established")?
        {
            self.port.news.push("  connected".into());
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
        self.port.cm.disconnect(device.host.now(), connection, &[]).context("disconnect")
    }
}
