//! One end of a ping-pong: its verbs objects, its messages, and its progress.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bareverbs::{
    Access, AddressVector, Completion, Destination, DmaBuffer as _, GlobalRoute, LinkLayer, Mac, Mtu, Payload, Psn, Qkey,
    QpAttr, QpCap, QpHandle, SendWr, Srqn, WcStatus, ack_timeout,
};

use super::address::{Address, XrcNumbers};
use super::args::Transport;
use crate::data_pattern::Pattern;
use crate::device::ethernet::{EntryArgs, LocalPort, PeerPort};
use crate::device::{Device, Endpoint, Host, Role};

/// `wr_id`s of the tools, each a bit of [`Peer::pending`].
const RECEIVE: u64 = 1;
const SEND: u64 = 2;
/// First bit of the receive buffer's index in the `wr_id` of a receive.
const BUFFER_SHIFT: u32 = 8;
/// Q_Key of the tools.
const QKEY: Qkey = Qkey::new(0x1111_1111);
/// Local ACK timeout of the tools: 4.096 µs · 2^14 = 67 ms.
const ACK_TIMEOUT: u8 = 14;
/// Distance in bytes between the bytes of a message that the tools check, on machines with the smallest pages.
const PAGE: usize = 4096;
/// Maximum size of an inline message in bytes.
const INLINE: u32 = 64;

/// Time for which a finished end still answers retransmissions. The peer retransmits after one ACK timeout.
pub const LINGER: Duration = match ack_timeout(ACK_TIMEOUT) {
    Some(time) => time.saturating_mul(2),
    None => Duration::ZERO,
};

/// Parameters of an end.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Transport service.
    pub transport: Transport,
    /// Queue pairs of each end.
    pub queue_pairs: usize,
    /// Port of the device.
    pub port: u8,
    /// Bytes of a message.
    pub size: u32,
    /// Path MTU.
    pub mtu: Mtu,
    /// Number of receives posted at a time.
    pub rx_depth: u32,
    /// Messages in each direction.
    pub iters: u32,
    /// Service level.
    pub sl: u8,
    /// Index of the local GID, if packets carry a GRH.
    pub gid_idx: Option<u8>,
    /// What is set there on an Ethernet port.
    pub entry: EntryArgs,
    /// Whether messages are verified.
    pub chk: bool,
    /// Seed of the first PSN and of the data.
    pub seed: u64,
}

/// Where the messages of an end lie in its memory: first those to be sent, one for each queue pair, then those received.
#[derive(Clone, Copy, Debug)]
struct Buffers {
    /// Bytes from one to the next.
    stride: usize,
    /// Bytes before a message: the route of a datagram.
    area: usize,
    /// Index of the first that is received into. An end that answers, with one queue pair, sends from the buffer into which it receives.
    first_receive: usize,
    /// Number of those that are received into. Each is that of one receive at a time, or the only one is that of all.
    receives: usize,
}

impl Buffers {
    fn new(begins: bool, plan: &Plan) -> Self {
        let area = if plan.transport == Transport::Ud { GlobalRoute::AREA } else { 0 };
        let stride = (area + plan.size as usize).next_multiple_of(PAGE);
        let (first_receive, receives) = match (plan.transport, begins) {
            (Transport::Srq, _) => (plan.queue_pairs, plan.receives()),
            (_, true) => (1, 1),
            (_, false) => (0, 1),
        };
        Self { stride, area, first_receive, receives }
    }

    /// Returns the offset of the message that a queue pair sends.
    const fn send(self, queue_pair: usize) -> usize {
        queue_pair * self.stride + self.area
    }

    /// Returns the offset of a received message.
    const fn received(self, buffer: usize) -> usize {
        (self.first_receive + buffer) * self.stride + self.area
    }

    const fn total(self) -> usize {
        (self.first_receive + self.receives) * self.stride
    }
}

impl Plan {
    /// Returns whether this end sends first, and checks what is returned: the client, but of `ibv_xsrq_pingpong` the server.
    fn begins(&self, role: Role) -> bool {
        (role == Role::Client) != (self.transport == Transport::Xrc)
    }

    /// Returns the number of receives posted at a time. A peer has one message on the way to each queue pair. With a shared receive
    /// queue each has a buffer of its own, so that no more are posted than there can be in use.
    fn receives(&self) -> usize {
        let depth = self.rx_depth as usize;
        if self.transport == Transport::Srq { depth.min(2 * self.queue_pairs) } else { depth }
    }
}

/// The other end of a queue pair.
#[derive(Clone, Copy, Debug)]
struct Peer {
    /// The queue pair here, that which sends of XRC.
    qp: QpHandle,
    /// That which receives: the same but of XRC.
    receiver: QpHandle,
    /// The peer's shared receive queue, of XRC.
    srqn: Option<Srqn>,
    /// Where its datagrams go.
    to: Option<Destination>,
    /// Requests to complete before its next message is sent: bits [`SEND`] and [`RECEIVE`].
    pending: u64,
}

/// One end.
pub struct PingpongEnd<H: Host> {
    /// Client or server.
    pub role: Role,
    /// Address of each queue pair of this end.
    pub locals: Vec<Address>,
    /// MAC address of this end's port, if it is an Ethernet port.
    pub mac: Option<Mac>,
    /// Number of messages sent and, with RC, acknowledged.
    pub sent: u32,
    /// Number of messages received.
    pub received: u32,
    name: String,
    plan: Plan,
    inline: bool,
    buffers: Buffers,
    endpoint: Endpoint<H>,
    peers: Vec<Peer>,
    /// Number of receives posted.
    posted: u32,
    /// Number of sends posted so far.
    posted_sends: u32,
    /// The message to send.
    message: Vec<u8>,
}

impl<H: Host> PingpongEnd<H> {
    /// Creates the verbs objects. The port must be active.
    ///
    /// # Errors
    /// The device does not support the plan, or refuses an object.
    pub fn new(role: Role, name: &str, device: &mut Device<H>, plan: Plan) -> Result<Self> {
        let port = device.verbs.query_port(plan.port).context("query_port")?;
        let most = *device.verbs.query_device();
        if plan.transport == Transport::Ud {
            check_datagram(&plan, port.active_mtu)?;
        } else if plan.mtu > port.active_mtu {
            bail!(
                "a path MTU of {} is more than the {} of port {}; give both ends -m {}",
                plan.mtu.bytes(),
                port.active_mtu.bytes(),
                plan.port,
                port.active_mtu.bytes()
            );
        }
        if u64::from(plan.size) > most.max_msg_size {
            bail!("messages of {} bytes are longer than the device's longest, {}", plan.size, most.max_msg_size);
        }
        let gid = device.local_gid(plan.port, &port, plan.gid_idx, plan.entry)?;
        let mac = (port.link_layer == LinkLayer::Ethernet).then_some(port.mac);
        let buffers = Buffers::new(plan.begins(role), &plan);
        let mut endpoint = Endpoint::new(device, buffers.total(), Access::LOCAL_WRITE)?;
        let message = vec![0x7b; plan.size as usize];
        let (receives, queue_pairs) = (plan.receives() as u32, plan.queue_pairs as u32);
        let cq = endpoint.create_cq(device, receives + queue_pairs)?;
        let mut srqn = None;
        match plan.transport {
            Transport::Srq => endpoint.create_srq(device, receives)?,
            Transport::Xrc => srqn = Some(endpoint.create_xrc(device, receives)?),
            Transport::Rc | Transport::Uc | Transport::Ud => {}
        }
        let inline = plan.size <= INLINE.min(most.max_inline_data);
        let cap = QpCap {
            max_send_wr: 1,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: if inline { plan.size } else { 0 },
        };
        let (mut locals, mut peers) = (Vec::new(), Vec::new());
        for queue_pair in 0..plan.queue_pairs {
            endpoint.region.write(buffers.send(queue_pair), &message)?;
            let qp = endpoint.create_qp(device, plan.transport.qp_type(), (cq, cq), cap)?;
            let psn = Psn::new(((plan.seed >> 40) as u32).wrapping_add((queue_pair as u32) << 12) & 0xff_ffff);
            let receiver = endpoint.qp(queue_pair)?.receiver();
            let initiator = device.verbs.qp_info(qp)?.qpn;
            let xrc = srqn.map(|srqn| XrcNumbers { initiator, srqn });
            locals.push(Address { lid: port.lid, qpn: device.verbs.qp_info(receiver)?.qpn, psn, gid, xrc });
            peers.push(Peer { qp, receiver, srqn: None, to: None, pending: RECEIVE });
        }
        Ok(Self {
            role,
            locals,
            mac,
            sent: 0,
            received: 0,
            name: name.into(),
            plan,
            inline,
            buffers,
            endpoint,
            peers,
            posted: 0,
            posted_sends: 0,
            message,
        })
    }

    /// Returns what the port of this end is.
    pub const fn link_layer(&self) -> LinkLayer {
        if self.mac.is_some() { LinkLayer::Ethernet } else { LinkLayer::InfiniBand }
    }

    /// Returns the path to the peer. `peer_mac` is its MAC address on Ethernet, if somebody has said it.
    fn path_to(&self, local: &Address, remote: &Address, peer_mac: Option<Mac>) -> Result<AddressVector> {
        let Plan { sl, gid_idx, transport, .. } = self.plan;
        let port = LocalPort { gid_idx, gid: local.gid, mac: self.mac };
        let peer = PeerPort { lid: remote.lid, gid: remote.is_global().then_some(remote.gid), mac: peer_mac };
        // Those of the tools.
        let hops = match transport {
            Transport::Ud => 64,
            Transport::Xrc => 5,
            Transport::Rc | Transport::Uc | Transport::Srq => 1,
        };
        Ok(AddressVector { sl, ..port.path_to(&peer, hops)? })
    }

    /// Connects each queue pair to that of the peer, or readies it for datagrams, and posts the receives. The peer may send from then
    /// on. `peer_mac` is the peer's MAC address on Ethernet, if somebody has said it.
    ///
    /// # Errors
    /// There is no path to the peer, which has a GID if this end has none, or the device refuses.
    pub fn connect(&mut self, device: &mut Device<H>, remotes: &[Address], peer_mac: Option<Mac>) -> Result<()> {
        let Plan { port, mtu, transport, .. } = self.plan;
        for (queue_pair, (local, remote)) in self.locals.iter().zip(remotes).enumerate() {
            let av = self.path_to(local, remote, peer_mac)?;
            if transport == Transport::Ud {
                let ah = self.endpoint.create_ah(device, port, &av)?;
                let to = Destination { ah, remote_qpn: remote.qpn, remote_qkey: QKEY };
                if let Some(peer) = self.peers.get_mut(queue_pair) {
                    peer.to = Some(to);
                }
            }
            let attr = QpAttr {
                port_num: port,
                qkey: QKEY,
                av,
                path_mtu: mtu,
                dest_qpn: remote.qpn,
                rq_psn: remote.psn,
                sq_psn: local.psn,
                max_rd_atomic: 1,
                max_dest_rd_atomic: 1,
                min_rnr_timer: 12,
                timeout: ACK_TIMEOUT,
                ..QpAttr::default()
            };
            if let Some(XrcNumbers { initiator, srqn }) = remote.xrc {
                let attr = QpAttr { dest_qpn: initiator, ..attr };
                let connected = self.endpoint.connect_target(device, queue_pair, &attr);
                connected.with_context(|| format!("{}: connect to {remote}", self.name))?;
                if let Some(peer) = self.peers.get_mut(queue_pair) {
                    peer.srqn = Some(srqn);
                }
            }
            let connected = self.endpoint.connect(device, queue_pair, &attr);
            connected.with_context(|| format!("{}: connect to {remote}", self.name))?;
        }
        for buffer in (0..self.buffers.receives).cycle().take(self.plan.receives()) {
            self.post_receive(buffer)?;
        }
        Ok(())
    }

    /// Starts the ping-pong: one end sends the first message of each queue pair.
    ///
    /// # Errors
    /// The message cannot be posted.
    pub fn start(&mut self) -> Result<()> {
        let first = if self.begins() { self.peers.len() } else { 0 };
        (0..first).try_for_each(|queue_pair| self.post_send(queue_pair))
    }

    fn begins(&self) -> bool {
        self.plan.begins(self.role)
    }

    /// Polls the completion queue and answers messages. Returns whether there were completions.
    ///
    /// # Errors
    /// A request failed, a message is wrong, or the next one cannot be posted.
    pub fn step(&mut self) -> Result<bool> {
        let mut completions = [Completion::EMPTY; 2];
        let taken = self.endpoint.cq(0)?.poll(&mut completions).context("poll_cq")?;
        for completion in completions.iter().take(taken) {
            self.complete(completion)?;
        }
        Ok(taken > 0)
    }

    /// Returns whether all messages were sent and received.
    pub const fn is_done(&self) -> bool {
        self.sent >= self.plan.iters && self.received >= self.plan.iters
    }

    /// Returns the number of sends posted so far.
    pub const fn posted_sends(&self) -> u32 {
        self.posted_sends
    }

    /// Arms the completion queue. A completion that is already in the queue raises no event.
    ///
    /// # Errors
    /// The device is broken.
    pub fn arm(&mut self) -> Result<()> {
        self.endpoint.request_events()
    }

    /// Returns the counts of messages, for errors.
    pub fn progress(&self) -> String {
        let iters = self.plan.iters;
        format!("{}: {} of {iters} messages sent, {} of {iters} received", self.name, self.sent, self.received)
    }

    /// Destroys all verbs objects.
    ///
    /// # Errors
    /// The device does not destroy one.
    pub fn destroy(self, device: &mut Device<H>) -> Result<()> {
        self.endpoint.destroy(device)
    }

    fn complete(&mut self, completion: &Completion) -> Result<()> {
        if completion.status != WcStatus::Success {
            bail!("{}: {}", self.progress(), failure(completion, self.link_layer()));
        }
        let queue_pair = self.peers.iter().position(|peer| [peer.qp, peer.receiver].contains(&completion.qp));
        let queue_pair = queue_pair.with_context(|| format!("a completion of queue pair {}, of another", completion.qpn))?;
        let done = if completion.wr_id == SEND {
            self.sent += 1;
            SEND
        } else {
            self.receive(completion, queue_pair)?;
            RECEIVE
        };
        let may_send = self.sent < self.plan.iters;
        let Some(peer) = self.peers.get_mut(queue_pair) else { return Ok(()) };
        peer.pending &= !done;
        if peer.pending == 0 && may_send {
            self.post_send(queue_pair)?;
        }
        Ok(())
    }

    /// Takes a message that a queue pair received.
    fn receive(&mut self, completion: &Completion, queue_pair: usize) -> Result<()> {
        let buffer = (completion.wr_id >> BUFFER_SHIFT) as usize;
        let length = completion.byte_len as usize;
        if length != self.message.len() + self.buffers.area {
            bail!(
                "{}: a message of {} bytes arrived instead of {}; give both ends the same -s",
                self.name,
                length.saturating_sub(self.buffers.area),
                self.plan.size
            );
        }
        let at = self.buffers.received(buffer);
        if self.plan.chk {
            self.check(self.received, at).with_context(|| format!("message {} at {}", self.received, self.name))?;
        }
        self.received += 1;
        self.posted -= 1;
        if self.plan.transport == Transport::Srq {
            // The buffer may have the next message before this one has left.
            if self.role == Role::Server {
                self.endpoint.region.read(at, &mut self.message)?;
                self.endpoint.region.write(self.buffers.send(queue_pair), &self.message)?;
            }
            if self.plan.chk {
                // All messages are equal: one that does not come must not be found here.
                self.endpoint.clear(at, self.message.len())?;
            }
            self.post_receive(buffer)?;
        } else if self.posted <= 1 {
            while self.posted < self.plan.rx_depth {
                self.post_receive(buffer)?;
            }
        }
        Ok(())
    }

    fn post_receive(&mut self, buffer: usize) -> Result<()> {
        let Buffers { area, .. } = self.buffers;
        let (at, wr_id) = (self.buffers.received(buffer) - area, RECEIVE | (buffer as u64) << BUFFER_SHIFT);
        self.endpoint.post_receive(0, wr_id, at, area + self.message.len())?;
        self.posted += 1;
        Ok(())
    }

    fn post_send(&mut self, queue_pair: usize) -> Result<()> {
        let at = self.buffers.send(queue_pair);
        if self.plan.chk && self.begins() {
            self.fill(self.posted_sends);
            self.endpoint.region.write(at, &self.message)?;
        } else if self.inline {
            self.endpoint.region.read(at, &mut self.message)?;
        }
        let peer = self.peers.get_mut(queue_pair).context("no such queue pair")?;
        let sges = [self.endpoint.sge(at, self.message.len())];
        let payload = if self.inline { Payload::Inline(&self.message) } else { Payload::Sges(&sges) };
        let wr = match &peer.to {
            Some(to) => SendWr::send_to(to, payload),
            None => SendWr::send(payload),
        };
        let wr = wr.id(SEND).signaled();
        let wr = peer.srqn.map_or(wr, |srqn| wr.to_srq(srqn));
        self.endpoint.qp(queue_pair)?.send().post(&wr).context("post of a send")?;
        peer.pending = SEND | RECEIVE;
        self.posted_sends += 1;
        Ok(())
    }

    /// Generates message `index` of the end that begins. Messages differ, and the first byte of each page is 0, as the tools require. Those of
    /// several queue pairs are equal: `ibv_srq_pingpong` receives all into one buffer, and answers from there.
    fn fill(&mut self, index: u32) {
        let index = if self.plan.transport == Transport::Srq { 0 } else { index };
        Pattern::new(self.plan.seed, 0, index.into()).fill(&mut self.message);
        self.message.iter_mut().step_by(PAGE).for_each(|byte| *byte = 0);
    }

    /// Verifies message `index` at an offset of the memory.
    fn check(&mut self, index: u32, at: usize) -> Result<()> {
        if self.begins() {
            self.fill(index);
            let received = self.endpoint.read(at, self.message.len())?;
            let is_wrong = |(_, (have, want)): &(usize, (&u8, &u8))| have != want;
            if let Some((byte, (have, want))) = received.iter().zip(&self.message).enumerate().find(is_wrong) {
                bail!("byte {byte} was returned as {have:#04x} instead of {want:#04x}");
            }
            return Ok(());
        }
        for offset in (0..self.message.len()).step_by(PAGE) {
            let mut byte = [0];
            self.endpoint.region.read(at + offset, &mut byte)?;
            let [byte] = byte;
            if byte != 0 {
                bail!("byte {offset} is {byte:#04x} instead of 0; did the client get -c too?");
            }
        }
        Ok(())
    }
}

/// Checks that a message is one packet of a port with this MTU.
fn check_datagram(plan: &Plan, active_mtu: Mtu) -> Result<()> {
    let most = active_mtu.bytes();
    if plan.size > most {
        bail!(
            "a message of {} bytes is no datagram of port {}, whose MTU is {most}; give both ends -s {most}",
            plan.size,
            plan.port
        );
    }
    Ok(())
}

/// Returns the cause of a failed request, and the remedy.
fn failure(completion: &Completion, link_layer: LinkLayer) -> String {
    if let Some(loss) = completion.loss() {
        return format!("the device is lost: {loss}");
    }
    let what = if completion.wr_id == SEND { "a send" } else { "a receive" };
    let help = match completion.status {
        WcStatus::RetryExcErr if link_layer == LinkLayer::Ethernet => {
            "the peer does not answer: it ended, has another MTU or VLAN, its GID is one of RoCE v1, --peer-mac is not its MAC address, \
             or its kernel does not find this end's (`ip neighbor replace`)"
        }
        WcStatus::RetryExcErr => "the peer does not answer: it ended, has another MTU, or its LID is not reachable",
        WcStatus::RemInvReqErr | WcStatus::LocLenErr => "the messages differ in length; give both ends the same -s",
        WcStatus::RemOpErr => "the peer failed; see its error",
        WcStatus::WrFlushErr => "the queue pair was in error before",
        _ => "see the status and the vendor code",
    };
    format!("{what} failed with {:?}, vendor {:#x}: {help}", completion.status, completion.vendor_err)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use bareverbs_sim::in_process::{World, WorldConfig};

    use super::*;
    use crate::device::DevicePair;
    use crate::device::simulated::Simulated;

    const PLAN: Plan = Plan {
        transport: Transport::Rc,
        queue_pairs: 1,
        port: 1,
        size: 9000,
        mtu: Mtu::Mtu1024,
        rx_depth: 4,
        iters: 3,
        sl: 0,
        gid_idx: None,
        entry: EntryArgs { address: None, vlan: None },
        chk: true,
        seed: 0x1234_5678_9abc_def0,
    };

    type Ends = (DevicePair<Simulated>, PingpongEnd<Simulated>, PingpongEnd<Simulated>);

    fn ends(plan_a: Plan, plan_b: Plan) -> Ends {
        let (mut devices, mut a, mut b) = unconnected(plan_a, plan_b);
        a.connect(devices.of(Role::Client), &b.locals, None).unwrap();
        b.connect(devices.of(Role::Server), &a.locals, None).unwrap();
        (devices, a, b)
    }

    fn unconnected(plan_a: Plan, plan_b: Plan) -> Ends {
        let (_, a, b) = World::pair(WorldConfig::default());
        let up = |name, host| {
            let mut device = Device::bring_up(Simulated::new(name, host), &Arc::default()).unwrap();
            device.active_port(PLAN.port, false, &AtomicBool::new(false)).unwrap();
            device
        };
        let mut devices = DevicePair::new(up("a", a), Some(up("b", b)));
        let a = PingpongEnd::new(Role::Client, "a", devices.of(Role::Client), plan_a).unwrap();
        let b = PingpongEnd::new(Role::Server, "b", devices.of(Role::Server), plan_b).unwrap();
        (devices, a, b)
    }

    /// Steps both ends until they are done or one fails.
    fn play((devices, a, b): &mut Ends) -> Result<()> {
        for _ in 0..100_000 {
            a.step()?;
            b.step()?;
            if a.is_done() && b.is_done() {
                return Ok(());
            }
            devices.idle()?;
        }
        panic!("{} {}", a.progress(), b.progress());
    }

    fn set(end: &mut PingpongEnd<Simulated>, at: usize, byte: u8) {
        end.endpoint.region.write(at, &[byte]).unwrap();
    }

    #[test]
    fn correct_messages_pass_verification() {
        let mut ends = ends(PLAN, PLAN);
        ends.1.start().unwrap();
        play(&mut ends).unwrap();
        assert_eq!((ends.1.sent, ends.1.received, ends.2.sent, ends.2.received), (3, 3, 3, 3));
    }

    #[test]
    fn a_client_detects_any_wrong_byte() {
        for at in [0, 1, 4096, 8999] {
            // The server does not verify, and returns the wrong byte.
            let mut ends = ends(PLAN, Plan { chk: false, ..PLAN });
            ends.1.start().unwrap();
            let right = ends.1.message[at];
            // The request is posted, and the device has not fetched the message yet.
            set(&mut ends.1, at, right ^ 0x40);
            let error = format!("{:#}", play(&mut ends).unwrap_err());
            let want = format!("message 0 at a: byte {at} was returned as {:#04x} instead of {right:#04x}", right ^ 0x40);
            assert_eq!(error, want);
        }
    }

    #[test]
    fn a_server_detects_a_wrong_byte_at_the_start_of_a_page() {
        let mut ends = ends(PLAN, PLAN);
        ends.1.start().unwrap();
        set(&mut ends.1, 4096, 0x7b);
        let error = format!("{:#}", play(&mut ends).unwrap_err());
        assert!(error.contains("message 0 at b: byte 4096 is 0x7b instead of 0"), "{error}");
    }

    #[test]
    fn different_message_sizes_are_an_error_with_the_remedy() {
        for (size_a, size_b, what) in [(100, 200, "a message of 100 bytes arrived instead of 200"), (200, 100, "failed with")] {
            let mut ends = ends(Plan { size: size_a, ..PLAN }, Plan { size: size_b, ..PLAN });
            ends.1.start().unwrap();
            let error = format!("{:#}", play(&mut ends).unwrap_err());
            assert!(error.contains(what) && error.contains("give both ends the same -s"), "{error}");
        }
    }

    #[test]
    fn a_gid_at_one_end_only_is_refused() {
        let (mut devices, mut a, b) = unconnected(PLAN, Plan { gid_idx: Some(0), ..PLAN });
        assert!(b.locals[0].is_global());
        let error = a.connect(devices.of(Role::Client), &b.locals, None).unwrap_err();
        assert!(error.to_string().contains("-g"), "{error}");
    }

    #[test]
    fn a_gid_or_mtu_that_the_port_lacks_is_refused() {
        let (_, host, _) = World::pair(WorldConfig::default());
        let mut device = Device::bring_up(Simulated::new("a", host), &Arc::default()).unwrap();
        let mut refusal = |plan| PingpongEnd::new(Role::Client, "a", &mut device, plan).err().unwrap().to_string();
        assert!(refusal(Plan { gid_idx: Some(200), ..PLAN }).contains("no GID 200"));
        let ethernet = bareverbs_sim::DeviceConfig::default().with_ethernet();
        let host = World::new(WorldConfig::default()).add(ethernet).unwrap();
        let mut device = Device::bring_up(Simulated::new("a", host), &Arc::default()).unwrap();
        let refusal = PingpongEnd::new(Role::Client, "a", &mut device, PLAN).err().unwrap();
        assert!(refusal.to_string().contains("port 1 is an Ethernet port, where every path needs a GID"), "{refusal}");
        let small = bareverbs_sim::DeviceConfig { mtu: 2048, ..Default::default() };
        let host = World::new(WorldConfig::default()).add(small).unwrap();
        let mut device = Device::bring_up(Simulated::new("a", host), &Arc::default()).unwrap();
        let refusal = PingpongEnd::new(Role::Client, "a", &mut device, Plan { mtu: Mtu::Mtu4096, ..PLAN }).err().unwrap();
        assert!(refusal.to_string().contains("-m 2048"), "{refusal}");
    }
}
