//! One end of a ucmatose: its connections, and their messages.
//!
//! The order is that of librdmacm/examples/cmatose.c: when all connections are made, the server sends all messages of each. A client that
//! has those of all connections sends as many, from the buffer that it received into, so that its messages are the server's. When the
//! server has them, it releases the connections.

use std::net::IpAddr;

use anyhow::{Context as _, Result, bail};
use bareverbs::platform::Instant;
use bareverbs::{Access, Completion, Psn, QpAttr, QpCap, QpType, Qpn, SendWr, WcStatus};
use bareverbs_cm::{Accept, Attributes, ConnectRequest, ConnectionId, Event, RejectReason, Req};

use super::args::UcmatoseArgs;
use super::report::Messages;
use super::slots::{Request, Slots};
use crate::data_pattern::Pattern;
use crate::device::ethernet::EntryArgs;
use crate::device::{Device, Endpoint, Host, Role};
use crate::rdma_cm::port::{CM_RETRIES, CM_TIMEOUT, CmPort, random};
use crate::rdma_cm::program::{End, Program as _};

/// Sends of a connection that are posted at a time.
const SENDS: u32 = 16;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is asked for, or not yet.
    Connecting,
    /// It has messages.
    Connected,
    /// This end has asked for its end.
    Releasing,
    /// It has ended.
    Done,
}

/// A connection, of the queue pair with its number.
struct Connection {
    id: Option<ConnectionId>,
    state: State,
    /// Sends that were posted, and those that were acknowledged.
    posted: u32,
    sent: u32,
    /// Messages that were received, and receives that were posted for others.
    received: u32,
    awaited: u32,
    /// Of a client, the first message that came.
    first: Vec<u8>,
}

/// One end.
pub(crate) struct UcmatoseEnd<H: Host> {
    role: Role,
    args: UcmatoseArgs,
    endpoint: Endpoint<H>,
    port: CmPort<H>,
    slots: Slots,
    seed: u64,
    connections: Vec<Connection>,
    rejected: bool,
}

impl<H: Host> End<H> for UcmatoseEnd<H> {
    type Program = UcmatoseArgs;

    fn new(role: Role, device: &mut Device<H>, args: &UcmatoseArgs, entry: EntryArgs) -> Result<Self> {
        let count = usize::from(args.connections);
        let slots = Slots::new(count, args.size as usize);
        let mut endpoint = Endpoint::new(device, slots.total(), Access::LOCAL_WRITE)?;
        let port = CmPort::open(device, endpoint.pd(), role, &args.cm, entry, args.service())?;
        let depth = slots.depth as u32;
        let cq = endpoint.create_cq(device, u32::from(args.connections) * (depth + SENDS))?;
        let cap = QpCap { max_send_wr: SENDS, max_recv_wr: depth, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let seed = random();
        let mut connections = Vec::new();
        for connection in 0..count {
            endpoint.create_qp(device, QpType::Rc, (cq, cq), cap)?;
            endpoint.fill(slots.out(connection), args.size as usize, Pattern::new(seed, connection as u32, 0))?;
            let first = Vec::new();
            connections.push(Connection {
                id: None,
                state: State::Connecting,
                posted: 0,
                sent: 0,
                received: 0,
                awaited: 0,
                first,
            });
        }
        Ok(Self { role, args: args.clone(), endpoint, port, slots, seed, connections, rejected: false })
    }

    fn port(&mut self) -> &mut CmPort<H> {
        &mut self.port
    }

    fn request(&mut self, device: &mut Device<H>, server: IpAddr) -> Result<()> {
        let path = self.port.path_to(server)?;
        for connection in 0..self.connections.len() {
            let private_data = self.port.request_data(server, &self.args.cm.private_data)?;
            let qpn = self.qpn(device, connection)?;
            let request = ConnectRequest {
                remote_cm_response_timeout: CM_TIMEOUT,
                local_cm_response_timeout: CM_TIMEOUT,
                max_cm_retries: CM_RETRIES,
                private_data: &private_data,
                ..ConnectRequest::new(self.args.service(), path, qpn, Psn::new(random() as u32 & 0xff_ffff))
            };
            let id = self.port.cm.connect(device.host.now(), random(), &request).context("request")?;
            self.connection(connection)?.id = Some(id);
        }
        Ok(())
    }

    fn handle(&mut self, device: &mut Device<H>, now: Instant, event: &Event<'_>) -> Result<()> {
        match *event {
            Event::Requested { id, request, .. } => return self.answer(device, now, id, &request),
            Event::Replied { id, reply, attributes } => {
                let Some(connection) = self.of(id) else { return Ok(()) };
                self.port.tell_private_data("server", reply.private_data);
                self.connect(device, connection, &attributes)?;
                self.port.cm.ready(id, &[]).context("ready")?;
                self.connected(connection)?;
            }
            Event::Established { id, .. } => {
                let Some(connection) = self.of(id) else { return Ok(()) };
                self.connected(connection)?;
            }
            Event::Rejected { id, reason, private_data, .. } if self.of(id).is_some() => {
                return Err(self.port.rejection(reason, private_data));
            }
            Event::TimedOut { id, .. } if self.of(id).is_some() => return Err(self.port.unanswered()),
            Event::Disconnected { id, cause, .. } => {
                let Some(connection) = self.of(id) else { return Ok(()) };
                // What the peer has acknowledged before it released the connection.
                if self.connection(connection)?.state == State::Connected {
                    self.poll(device)?;
                }
                let count = self.args.count;
                let role = self.role;
                let Connection { state, posted, received, .. } = self.connection(connection)?;
                let is_expected =
                    *state == State::Releasing || (role == Role::Client && (*posted, *received) == (count, count));
                if !is_expected {
                    let (posted, received) = (*posted, *received);
                    *state = State::Done;
                    bail!(
                        "connection {connection} ended ({cause:?}) after {received} of {count} messages had come and {posted} of \
                         {count} were posted: the peer has ended"
                    );
                }
                *state = State::Done;
            }
            _ => {}
        }
        Ok(())
    }

    fn poll(&mut self, device: &mut Device<H>) -> Result<bool> {
        let mut completions = [Completion::EMPTY; 16];
        let mut any = false;
        loop {
            let taken = self.endpoint.cq(0)?.poll(&mut completions).context("poll_cq")?;
            if taken == 0 {
                break;
            }
            any = true;
            for completion in completions.iter().take(taken) {
                self.complete(completion)?;
            }
        }
        any |= self.send()?;
        if self.role == Role::Server && self.connections.iter().all(|connection| self.has_all(connection)) {
            for connection in self.connections.iter_mut().filter(|connection| connection.state == State::Connected) {
                let id = connection.id.context("no connection")?;
                self.port.cm.disconnect(device.host.now(), id, &[]).context("disconnect")?;
                connection.state = State::Releasing;
                any = true;
            }
        }
        Ok(any)
    }

    fn leave(&mut self, now: Instant) -> bool {
        for connection in self.connections.iter_mut().filter(|connection| connection.state != State::Done) {
            let Some(id) = connection.id else { continue };
            if connection.state == State::Releasing || self.port.cm.disconnect(now, id, &[]).is_ok() {
                connection.state = State::Releasing;
            }
        }
        self.connections.iter().any(|connection| connection.state == State::Releasing)
    }

    fn is_done(&self) -> bool {
        self.rejected || self.connections.iter().all(|connection| connection.state == State::Done)
    }

    fn waits_for_client(&self) -> bool {
        self.role == Role::Server && self.connections.iter().any(|connection| connection.id.is_none())
    }

    fn has_rejected(&self) -> bool {
        self.rejected
    }

    fn done(&self) -> Messages {
        let made = self.connections.iter().filter(|connection| connection.state != State::Connecting).count();
        Messages {
            connections: made as u16,
            received: self.connections.iter().map(|connection| u64::from(connection.received)).sum(),
            sent: self.connections.iter().map(|connection| u64::from(connection.sent)).sum(),
            size: self.args.size,
        }
    }

    fn progress(&self) -> String {
        let Messages { connections, received, sent, .. } = self.done();
        let all = u64::from(self.args.connections) * u64::from(self.args.count);
        format!(
            "{connections} of {} connections were made, {received} of {all} messages have come, {sent} of {all} were acknowledged",
            self.args.connections
        )
    }

    fn destroy(self, device: &mut Device<H>) -> Result<()> {
        self.port.close(device)?;
        self.endpoint.destroy(device)
    }
}

impl<H: Host> UcmatoseEnd<H> {
    fn qpn(&mut self, device: &Device<H>, connection: usize) -> Result<Qpn> {
        Ok(device.verbs.qp_info(self.endpoint.qp(connection)?.handle()).context("queue pair")?.qpn)
    }

    /// Returns the number of a connection; none if it is of nobody here.
    fn of(&self, id: ConnectionId) -> Option<usize> {
        self.connections.iter().position(|connection| connection.id == Some(id))
    }

    fn connection(&mut self, connection: usize) -> Result<&mut Connection> {
        self.connections.get_mut(connection).context("no such connection")
    }

    fn connected(&mut self, connection: usize) -> Result<()> {
        self.connection(connection)?.state = State::Connected;
        self.port.news.push(format!("  connection {connection} connected"));
        Ok(())
    }

    /// Returns whether all messages of a connection were sent and received.
    fn has_all(&self, connection: &Connection) -> bool {
        let Connection { state, sent, received, .. } = *connection;
        state != State::Connecting && (sent, received) == (self.args.count, self.args.count)
    }

    /// Accepts or rejects a request.
    fn answer(&mut self, device: &mut Device<H>, now: Instant, id: ConnectionId, request: &Req<'_>) -> Result<()> {
        let Some(connection) = self.connections.iter().position(|connection| connection.id.is_none()) else {
            return self.port.cm.reject(now, id, RejectReason::NoResources, &[], &[]).context("reject");
        };
        if !self.port.tell_client(request.private_data) {
            return self.port.cm.reject(now, id, RejectReason::Unsupported, &[], &[]).context("reject");
        }
        let private_data = self.args.cm.private_data.clone().into_bytes();
        if self.args.cm.reject {
            self.rejected = true;
            return self.port.cm.reject(now, id, RejectReason::ConsumerReject, &[], &private_data).context("reject");
        }
        let accept = Accept {
            private_data: &private_data,
            ..Accept::new(self.qpn(device, connection)?, Psn::new(random() as u32 & 0xff_ffff))
        };
        let attributes = self.port.cm.accept(now, id, &accept).context("accept")?;
        self.connection(connection)?.id = Some(id);
        self.connect(device, connection, &attributes)
    }

    /// Leads a queue pair to RTS. Its receives are posted before the peer hears of it.
    fn connect(&mut self, device: &mut Device<H>, connection: usize, attributes: &Attributes) -> Result<()> {
        let av = self.port.address(&attributes.rtr.path)?;
        let attr: QpAttr = attributes.qp_attr(av);
        let handle = self.endpoint.qp(connection)?.handle();
        device.verbs.modify_qp_to_rts(handle, &attr).context("connect")?;
        for place in 0..self.slots.depth {
            self.receive(connection, place)?;
        }
        Ok(())
    }

    /// Posts a receive, if there is a message to come for it.
    fn receive(&mut self, connection: usize, place: usize) -> Result<()> {
        let (count, size, at) = (self.args.count, self.args.size as usize, self.slots.place(connection, place));
        let awaits = self.connection(connection)?;
        if awaits.received + awaits.awaited < count {
            awaits.awaited += 1;
            self.endpoint.post_receive(connection, Request::Receive(connection, place).wr_id(), at, size)?;
        }
        Ok(())
    }

    fn complete(&mut self, completion: &Completion) -> Result<()> {
        let request = Request::of(completion.wr_id);
        let (Request::Send(connection) | Request::Receive(connection, _)) = request;
        if matches!(self.connection(connection)?.state, State::Releasing | State::Done) {
            return Ok(());
        }
        if completion.status != WcStatus::Success {
            bail!(
                "connection {connection}: a request failed with {:?}: the peer has ended, or its buffer is smaller ({})",
                completion.status,
                self.progress()
            );
        }
        match request {
            Request::Send(_) => self.connection(connection)?.sent += 1,
            Request::Receive(_, place) => self.take(connection, place, completion.byte_len as usize)?,
        }
        Ok(())
    }

    /// Takes a message: a server compares what comes back with what it has sent, and a client all messages of a connection, which are
    /// the same ones, with the first.
    fn take(&mut self, connection: usize, place: usize, length: usize) -> Result<()> {
        let size = self.args.size as usize;
        if length != size {
            bail!("connection {connection}: a message of {length} bytes came instead of {size}: give both ends the same -S");
        }
        let at = self.slots.place(connection, place);
        let number = self.connection(connection)?.received;
        let of = || format!("message {number} of connection {connection}");
        if self.role == Role::Server {
            let pattern = Pattern::new(self.seed, connection as u32, 0);
            self.endpoint.verify(at, size, pattern).with_context(of)?;
        } else {
            let message = self.endpoint.read(at, size)?;
            let known = self.connections.get_mut(connection).context("no such connection")?;
            if known.first.is_empty() {
                known.first = message.to_vec();
            } else if let Some(byte) = known.first.iter().zip(message).position(|(first, now)| first != now) {
                bail!("{}: byte {byte} of {size} is another one than in message 0", of());
            }
        }
        // A message that does not come must not be found here.
        self.endpoint.clear(at, size)?;
        let known = self.connection(connection)?;
        known.received += 1;
        known.awaited -= 1;
        self.receive(connection, place)
    }

    /// Posts what may be sent. Returns whether there was anything.
    fn send(&mut self) -> Result<bool> {
        let count = self.args.count;
        let may_send = self.connections.iter().all(|connection| {
            connection.state == State::Connected && (self.role == Role::Server || connection.received == count)
        });
        if !may_send {
            return Ok(false);
        }
        let mut any = false;
        for connection in 0..self.connections.len() {
            let out = self.slots.out(connection);
            if self.role == Role::Client && self.connection(connection)?.posted == 0 && count > 0 {
                let first = std::mem::take(&mut self.connection(connection)?.first);
                self.endpoint.region.write(out, &first)?;
            }
            let sges = [self.endpoint.sge(out, self.args.size as usize)];
            while let Connection { posted, sent, .. } = self.connection(connection)?
                && *posted < count
                && *posted - *sent < SENDS
            {
                *posted += 1;
                let wr = SendWr::send(&sges).id(Request::Send(connection).wr_id()).signaled();
                self.endpoint.qp(connection)?.send().post(&wr).context("send")?;
                any = true;
            }
        }
        Ok(any)
    }
}

#[cfg(test)]
impl<H: Host> UcmatoseEnd<H> {
    /// Has a server expect other messages than it sends.
    pub(super) const fn expect_others(&mut self) {
        self.seed ^= 1;
    }

    /// Changes a byte of what a client compares the messages of a connection with.
    pub(super) fn spoil(&mut self, connection: usize, byte: usize) {
        self.connections[connection].first[byte] ^= 1;
    }

    /// Takes the queue pair of connection 0 to RESET, as the end of a process does, which tells its peer nothing.
    pub(super) fn forget_peer(&mut self, device: &mut Device<H>) {
        self.endpoint.reset(device, 0).unwrap();
    }
}
