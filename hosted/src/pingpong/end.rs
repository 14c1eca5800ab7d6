//! One end of a ping-pong: its verbs objects, its messages, and its progress.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bareverbs::{
    Access, AddressVector, Completion, DmaBuffer as _, GlobalRoute, LinkLayer, Mac, Mtu, Psn, QpAttr, QpCap, QpType, SendWr,
    WcStatus, ack_timeout,
};

use super::address::Address;
use crate::data_pattern::Pattern;
use crate::device::ethernet::{self, EntryArgs};
use crate::device::{Device, Endpoint, Host, Role};

/// `wr_id`s of the tools, each a bit of [`PingpongEnd::pending`].
const RECEIVE: u64 = 1;
const SEND: u64 = 2;
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
    /// RC or UC.
    pub qp_type: QpType,
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

/// One end.
pub struct PingpongEnd<H: Host> {
    /// Client or server.
    pub role: Role,
    /// Address of this end.
    pub local: Address,
    /// MAC address of this end's port, if it is an Ethernet port.
    pub mac: Option<Mac>,
    /// Number of messages sent and, with RC, acknowledged.
    pub sent: u32,
    /// Number of messages received.
    pub received: u32,
    name: String,
    plan: Plan,
    inline: bool,
    endpoint: Endpoint<H>,
    /// Number of receives posted.
    posted: u32,
    /// Requests to complete before the next message is sent: bits [`SEND`] and [`RECEIVE`].
    pending: u64,
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
        if plan.mtu > port.active_mtu {
            bail!(
                "a path MTU of {} is more than the {} of port {}; give both ends -m {}",
                plan.mtu.bytes(),
                port.active_mtu.bytes(),
                plan.port,
                port.active_mtu.bytes()
            );
        }
        let most = *device.verbs.query_device();
        if u64::from(plan.size) > most.max_msg_size {
            bail!("messages of {} bytes are longer than the device's longest, {}", plan.size, most.max_msg_size);
        }
        let gid = device.local_gid(plan.port, &port, plan.gid_idx, plan.entry)?;
        let mac = (port.link_layer == LinkLayer::Ethernet).then_some(port.mac);
        // A client has separate buffers to send and to receive. A server sends from the buffer into which it receives.
        let len = (plan.size as usize).next_multiple_of(PAGE) * if role == Role::Client { 2 } else { 1 };
        let mut endpoint = Endpoint::new(device, len, Access::LOCAL_WRITE)?;
        let message = vec![0x7b; plan.size as usize];
        endpoint.region.write(0, &message)?;
        let cq = endpoint.create_cq(device, plan.rx_depth + 1)?;
        let inline = plan.size <= INLINE.min(most.max_inline_data);
        let cap = QpCap {
            max_send_wr: 1,
            max_recv_wr: plan.rx_depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: if inline { plan.size } else { 0 },
        };
        let qp = endpoint.create_qp(device, plan.qp_type, (cq, cq), cap)?;
        let psn = Psn::new((plan.seed >> 40) as u32 & 0xff_ffff);
        let local = Address { lid: port.lid, qpn: device.verbs.qp(qp)?.qpn, psn, gid };
        Ok(Self {
            role,
            local,
            mac,
            sent: 0,
            received: 0,
            name: name.into(),
            plan,
            inline,
            endpoint,
            posted: 0,
            pending: RECEIVE,
            posted_sends: 0,
            message,
        })
    }

    /// Returns what the port of this end is.
    pub const fn link_layer(&self) -> LinkLayer {
        if self.mac.is_some() { LinkLayer::Ethernet } else { LinkLayer::InfiniBand }
    }

    /// Returns the path to the peer. `peer_mac` is its MAC address on Ethernet, if somebody has said it.
    fn path_to(&self, remote: &Address, peer_mac: Option<Mac>) -> Result<AddressVector> {
        let Plan { sl, gid_idx, .. } = self.plan;
        let path = match (self.mac, gid_idx, remote.is_global()) {
            (Some(_), Some(index), _) => ethernet::path(self.local.gid, index, remote.gid, peer_mac)?,
            (None, ..) if peer_mac.is_some() => bail!("--peer-mac: an InfiniBand port has no MAC addresses; leave it out"),
            (_, _, false) => AddressVector { dlid: remote.lid, ..AddressVector::default() },
            (_, Some(sgid_index), true) => {
                let grh = GlobalRoute { dgid: remote.gid, sgid_index, hop_limit: 1, ..GlobalRoute::default() };
                AddressVector { dlid: remote.lid, grh: Some(grh), ..AddressVector::default() }
            }
            (_, None, true) => bail!("the peer uses a GID (-g): give an index here too"),
        };
        Ok(AddressVector { sl, ..path })
    }

    /// Connects to the peer and posts the receives. The peer may send from then on. `peer_mac` is the peer's MAC address on Ethernet,
    /// if somebody has said it.
    ///
    /// # Errors
    /// There is no path to the peer, which has a GID if this end has none, or the device refuses.
    pub fn connect(&mut self, device: &mut Device<H>, remote: &Address, peer_mac: Option<Mac>) -> Result<()> {
        let Plan { port, mtu, .. } = self.plan;
        let attr = QpAttr {
            port_num: port,
            av: self.path_to(remote, peer_mac)?,
            path_mtu: mtu,
            dest_qpn: remote.qpn,
            rq_psn: remote.psn,
            sq_psn: self.local.psn,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            timeout: ACK_TIMEOUT,
            ..QpAttr::default()
        };
        self.endpoint.connect(device, 0, &attr).with_context(|| format!("{}: connect to {remote}", self.name))?;
        self.post_receives()
    }

    /// Starts the ping-pong: a client sends the first message.
    ///
    /// # Errors
    /// The message cannot be posted.
    pub fn start(&mut self) -> Result<()> {
        if self.role == Role::Client { self.post_send() } else { Ok(()) }
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
        if completion.wr_id == SEND {
            self.sent += 1;
        } else {
            if completion.byte_len != self.plan.size {
                bail!(
                    "{}: a message of {} bytes arrived instead of {}; give both ends the same -s",
                    self.name,
                    completion.byte_len,
                    self.plan.size
                );
            }
            if self.plan.chk {
                self.check(self.received).with_context(|| format!("message {} at {}", self.received, self.name))?;
            }
            self.received += 1;
            self.posted -= 1;
            if self.posted <= 1 {
                self.post_receives()?;
            }
        }
        self.pending &= !completion.wr_id;
        if self.pending == 0 && self.sent < self.plan.iters {
            self.post_send()?;
        }
        Ok(())
    }

    /// Returns the offset of the receive buffer.
    fn receive_offset(&self) -> usize {
        if self.role == Role::Client { (self.plan.size as usize).next_multiple_of(PAGE) } else { 0 }
    }

    fn post_receives(&mut self) -> Result<()> {
        while self.posted < self.plan.rx_depth {
            self.endpoint.post_receive(0, RECEIVE, self.receive_offset(), self.message.len())?;
            self.posted += 1;
        }
        Ok(())
    }

    fn post_send(&mut self) -> Result<()> {
        if self.plan.chk && self.role == Role::Client {
            self.fill(self.posted_sends);
            self.endpoint.region.write(0, &self.message)?;
        } else if self.inline {
            self.endpoint.region.read(0, &mut self.message)?;
        }
        let sges = [self.endpoint.sge(0, self.message.len())];
        let wr = if self.inline { SendWr::send(self.message.as_slice()) } else { SendWr::send(&sges) };
        self.endpoint.qp(0)?.send.post(&wr.id(SEND).signaled()).context("post of a send")?;
        self.pending = SEND | RECEIVE;
        self.posted_sends += 1;
        Ok(())
    }

    /// Generates message `index` of a client. Messages differ, and the first byte of each page is 0, as the tools require.
    fn fill(&mut self, index: u32) {
        Pattern::new(self.plan.seed, 0, index.into()).fill(&mut self.message);
        self.message.iter_mut().step_by(PAGE).for_each(|byte| *byte = 0);
    }

    /// Verifies message `index` in the receive buffer.
    fn check(&mut self, index: u32) -> Result<()> {
        if self.role == Role::Client {
            self.fill(index);
            let received = self.endpoint.read(self.receive_offset(), self.message.len())?;
            let is_wrong = |(_, (have, want)): &(usize, (&u8, &u8))| have != want;
            if let Some((at, (have, want))) = received.iter().zip(&self.message).enumerate().find(is_wrong) {
                bail!("byte {at} was returned as {have:#04x} instead of {want:#04x}");
            }
            return Ok(());
        }
        for at in (0..self.message.len()).step_by(PAGE) {
            let mut byte = [0];
            self.endpoint.region.read(at, &mut byte)?;
            let [byte] = byte;
            if byte != 0 {
                bail!("byte {at} is {byte:#04x} instead of 0; did the client get -c too?");
            }
        }
        Ok(())
    }
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
        qp_type: QpType::Rc,
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
        a.connect(devices.of(Role::Client), &b.local, None).unwrap();
        b.connect(devices.of(Role::Server), &a.local, None).unwrap();
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
        assert!(b.local.is_global());
        let error = a.connect(devices.of(Role::Client), &b.local, None).unwrap_err();
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
