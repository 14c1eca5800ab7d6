//! The verbs objects of one end: a memory region for all measurements, the queues of each measurement, and the peer's memory.

use std::hash::{BuildHasher as _, RandomState};
use std::net::Ipv6Addr;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result, bail};
use bareverbs::backend::Provider as _;
use bareverbs::error::PollCqError;
use bareverbs::{
    Access, Completion, Destination, DmaBuffer as _, Gid, Lid, LinkLayer, Mac, Mtu, Psn, Qkey, QpAttr, QpCap, QpState, QpType,
    Qpn, Remote, Rkey, WcStatus,
};

use super::buffer_layout::BufferLayout;
use super::exchange::Connection;
use super::parameters::{CREDITS, Parameters, Point, REQUESTS, Test, Transport, Verb};
use crate::device::ethernet::{self, EntryArgs, LocalPort, PeerPort};
use crate::device::{Device, Endpoint, Host, Role, SEND_BLOCKS};

/// Port of each device.
pub(super) const PORT: u8 = 1;
/// Codes of the local ACK timeout and the minimum RNR timer, as in perftest: 67 ms, 0.64 ms.
const TIMEOUT: u8 = 14;
const MIN_RNR_TIMER: u8 = 12;
/// Maximum bytes of memory for messages of all simulated devices together.
const SIMULATED_MEMORY: u64 = 8 << 30;
/// Send queue depth in latency tests: one request in flight, and requests before it that are not signaled.
const LATENCY_DEPTH: u32 = 32;
/// Requests for one completion in latency tests on one queue pair, low enough that the queue never fills.
pub(super) const LATENCY_INTERVAL: u32 = LATENCY_DEPTH / 4;
/// Q_Key of datagrams, that of perftest and of the `ibv_*_pingpong` tools.
const QKEY: Qkey = Qkey::new(0x1111_1111);
/// Hop limit of packets with a GRH, as in perftest.
const HOPS: u8 = 0xff;
/// Places of the completion queues of a measurement in its [`Endpoint`].
pub(super) const SEND_CQ: usize = 0;
pub(super) const RECV_CQ: usize = 1;

/// What is known of the queues of one measurement, which [`Endpoint`] has.
#[derive(Debug)]
pub(super) struct Queues {
    psns: Vec<Psn>,
    /// Maximum inline payload.
    pub(super) inline: u32,
    /// Whether the completion queues are armed, as far as this end knows.
    armed: bool,
}

/// Address and rkey of the peer's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerMemory {
    addr: u64,
    rkey: Rkey,
}

impl PeerMemory {
    /// Returns the address of byte `at`.
    pub(super) const fn at(self, at: usize) -> Remote {
        Remote { addr: self.addr.wrapping_add(at as u64), rkey: self.rkey }
    }
}

/// What the command line says of the path of one end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EndPath {
    /// Index of its GID.
    pub(super) gid_idx: Option<u8>,
    /// What is set there.
    pub(super) entry: EntryArgs,
    /// MAC address of the router to the peer. Without it, that which the peer says.
    pub(super) peer_mac: Option<Mac>,
}

/// The verbs objects of one end.
pub(super) struct PerfEnd<H: Host> {
    pub(super) endpoint: Endpoint<H>,
    lid: Lid,
    port: LocalPort,
    /// MAC address of the router to the peer, if there is one.
    peer_mac: Option<Mac>,
    mtu: Mtu,
    /// Where the datagrams of each queue pair go.
    destinations: Vec<Destination>,
    queues: Option<Queues>,
    peer: Option<PeerMemory>,
}

impl<H: Host> PerfEnd<H> {
    /// Creates an end with memory for all measurements. `local_ends` is the number of ends in this process.
    ///
    /// # Errors
    /// The port is down, the device does not support the parameters, or there is not enough memory.
    pub(super) fn new(
        device: &mut Device<H>,
        parameters: &Parameters,
        path: EndPath,
        local_ends: u64,
        stop: &AtomicBool,
    ) -> Result<Self> {
        check_device(device, parameters)?;
        let attr = device.active_port(PORT, false, stop)?;
        let gid = device.local_gid(PORT, &attr, path.gid_idx, path.entry)?;
        let mac = (attr.link_layer == LinkLayer::Ethernet).then_some(attr.mac);
        let port = LocalPort { gid_idx: path.gid_idx, gid, mac };
        let length = parameters.points().iter().map(|&point| BufferLayout::new(parameters, point).total()).max().unwrap_or(0);
        let length = length.next_multiple_of(4096);
        let longest = parameters.points().iter().map(|point| u64::from(point.size)).max().unwrap_or(0);
        // Messages are generated and compared in a buffer besides the registered memory.
        let needed = (length as u64).saturating_add(longest).saturating_mul(local_ends);
        check_memory(needed, device.host.simulated().is_some(), memory_available())?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let endpoint = Endpoint::new(device, length, access)?;
        Ok(Self {
            endpoint,
            lid: attr.lid,
            port,
            peer_mac: path.peer_mac,
            mtu: attr.active_mtu,
            destinations: Vec::new(),
            queues: None,
            peer: None,
        })
    }

    /// Creates the queues of a measurement. Returns what the peer needs to connect.
    ///
    /// # Errors
    /// The device refuses a queue.
    pub(super) fn open(&mut self, device: &mut Device<H>, parameters: &Parameters, point: Point) -> Result<Connection> {
        let attr = *device.verbs.query_device();
        let inline = parameters.inline(point.test, attr.max_inline_data);
        let depth = depth(parameters, point.test);
        let receives = receives(parameters, point.test);
        let queue_pairs = u32::from(parameters.queue_pairs);
        // Each request has a completion queue entry, so that no moderation can overrun the queue.
        let send_cq = self.endpoint.create_cq(device, (queue_pairs * (depth + 1)).next_power_of_two())?;
        let recv_cq = self.endpoint.create_cq(device, (queue_pairs * receives).next_power_of_two().max(1))?;
        if parameters.use_srq {
            self.endpoint.create_srq(device, queue_pairs * receives)?;
        }
        let mut queues = Queues { psns: Vec::new(), inline, armed: false };
        let mut numbers = Vec::new();
        let cap = capacities(parameters, point.test, inline);
        for queue_pair in 0..parameters.queue_pairs {
            let qp = self.endpoint.create_qp(device, qp_type(parameters), (send_cq, recv_cq), cap)?;
            let psn = Psn::new(RandomState::new().hash_one(queue_pair) as u32 & 0xff_ffff);
            numbers.push((device.verbs.qp_info(qp)?.qpn.get(), psn.get()));
            queues.psns.push(psn);
        }
        let connection = Connection {
            lid: self.lid.get(),
            gid: self.port.gid_idx.map(|_| Ipv6Addr::from(self.port.gid.0)),
            mac: self.port.mac.map(|mac| mac.to_string()),
            mtu: self.mtu.bytes(),
            max_dest_rd_atomic: attr.max_qp_rd_atom,
            queue_pairs: numbers,
            rkey: self.endpoint.region.rkey().get(),
            addr: self.endpoint.region.remote(0).addr,
            length: self.endpoint.region.len(),
        };
        self.queues = Some(queues);
        Ok(connection)
    }

    /// Connects the queue pairs.
    ///
    /// # Errors
    /// The values of the peer are invalid, or the device refuses a transition.
    pub(super) fn connect(
        &mut self,
        device: &mut Device<H>,
        parameters: &Parameters,
        point: Point,
        peer: &Connection,
    ) -> Result<()> {
        let attr = *device.verbs.query_device();
        check_connection(peer, parameters, self.port.link_layer(), BufferLayout::new(parameters, point).total())?;
        let theirs = (1..=5).filter_map(Mtu::from_encoding).find(|mtu| mtu.bytes() == peer.mtu);
        let theirs = theirs.with_context(|| format!("the peer's port has an MTU of {} bytes", peer.mtu))?;
        let path_mtu = parameters.path_mtu().unwrap_or(self.mtu.min(theirs));
        let access = match parameters.transport {
            Transport::Rc => Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            Transport::Uc => Access::REMOTE_WRITE,
            Transport::Ud => Access::empty(),
        };
        if parameters.transport == Transport::Ud && point.size > path_mtu.bytes() {
            let most = path_mtu.bytes();
            bail!(
                "a message of {} bytes is no datagram of a path with an MTU of {most}: give -s {most}, or -m {most} with -a",
                point.size
            );
        }
        let theirs = peer.mac.as_deref().map(ethernet::mac).transpose();
        let theirs = theirs.map_err(|wrong| anyhow::anyhow!("the peer's MAC address: {wrong}"))?;
        let to =
            PeerPort { lid: Lid::new(peer.lid), gid: peer.gid.map(|gid| Gid(gid.octets())), mac: self.peer_mac.or(theirs) };
        let av = self.port.path_to(&to, HOPS)?;
        self.destinations.clear();
        let outs = |most: u8| parameters.outs.map_or(most, |outs| outs.min(most)).max(1);
        let queues = self.queues.as_ref().context("no queues")?;
        for (queue_pair, (&psn, &(dest_qpn, rq_psn))) in queues.psns.iter().zip(&peer.queue_pairs).enumerate() {
            let attr = QpAttr {
                port_num: PORT,
                access,
                qkey: QKEY,
                av,
                path_mtu,
                dest_qpn: Qpn::new(dest_qpn),
                sq_psn: psn,
                rq_psn: Psn::new(rq_psn),
                max_rd_atomic: outs(attr.max_qp_init_rd_atom.min(peer.max_dest_rd_atomic)),
                max_dest_rd_atomic: outs(attr.max_qp_rd_atom),
                min_rnr_timer: MIN_RNR_TIMER,
                timeout: TIMEOUT,
                ..QpAttr::default()
            };
            self.endpoint.connect(device, queue_pair, &attr)?;
            if parameters.transport == Transport::Ud {
                let ah = self.endpoint.create_ah(device, PORT, &av)?;
                self.destinations.push(Destination { ah, remote_qpn: Qpn::new(dest_qpn), remote_qkey: QKEY });
            }
        }
        self.peer = Some(PeerMemory { addr: peer.addr, rkey: Rkey::new(peer.rkey) });
        Ok(())
    }

    /// Destroys the queues of a measurement.
    ///
    /// # Errors
    /// The device refuses.
    pub(super) fn close(&mut self, device: &mut Device<H>) -> Result<()> {
        self.queues = None;
        self.endpoint.destroy_queues(device)
    }

    /// Destroys all verbs objects.
    ///
    /// # Errors
    /// The device refuses.
    pub(super) fn destroy(self, device: &mut Device<H>) -> Result<()> {
        self.endpoint.destroy(device)
    }

    /// Returns the queues of the measurement.
    ///
    /// # Errors
    /// No measurement is open.
    pub(super) fn queues(&self) -> Result<&Queues> {
        self.queues.as_ref().context("no queues")
    }

    /// Returns where the datagrams of a queue pair go. `None` for a connected one.
    pub(super) fn destination(&self, queue_pair: usize) -> Option<Destination> {
        self.destinations.get(queue_pair).copied()
    }

    /// Returns the memory of the peer.
    ///
    /// # Errors
    /// No measurement is connected.
    pub(super) fn peer(&self) -> Result<PeerMemory> {
        self.peer.context("no peer")
    }

    /// Arms the completion queues unless they are armed. Returns whether it did. The caller must then poll once more, because
    /// a completion that is already in the queue raises no event.
    ///
    /// # Errors
    /// The device is broken.
    pub(super) fn arm(&mut self) -> Result<bool> {
        let queues = self.queues.as_mut().context("no queues")?;
        if queues.armed {
            return Ok(false);
        }
        queues.armed = true;
        self.endpoint.request_events()?;
        Ok(true)
    }

    /// Marks the completion queues as not armed, after completions.
    pub(super) fn disarm(&mut self) {
        if let Some(queues) = &mut self.queues {
            queues.armed = false;
        }
    }

    /// Checks that no queue pair is in an error state.
    ///
    /// # Errors
    /// The first queue pair that is.
    pub(super) fn check_queue_pairs(&mut self, device: &Device<H>) -> Result<()> {
        for (queue_pair, qp) in self.endpoint.qps().iter().enumerate() {
            let info = device.verbs.qp_info(qp.handle())?;
            if matches!(info.state, QpState::Err | QpState::Sqe) {
                bail!("queue pair {queue_pair} (number {}) is in error: the device refused a request to it", info.qpn);
            }
        }
        Ok(())
    }
}

/// Returns the stream of the data pattern that an end sends.
pub(super) const fn stream(role: Role) -> u32 {
    match role {
        Role::Client => 0,
        Role::Server => 1,
    }
}

/// Returns the error of a failed completion.
#[cold]
pub(super) fn failed_completion(completion: &Completion) -> anyhow::Error {
    if let Some(loss) = completion.loss() {
        return PollCqError::DeviceLost { loss }.into();
    }
    let hint = match completion.status {
        WcStatus::RetryExcErr => ": the peer does not answer",
        WcStatus::RnrRetryExcErr => ": the peer has no receive posted",
        WcStatus::WrFlushErr => ": its queue pair is in error",
        _ => "",
    };
    anyhow::anyhow!(
        "a request of queue pair number {} failed with {:?}, vendor syndrome {:#x}{hint}",
        completion.qpn,
        completion.status,
        completion.vendor_err
    )
}

/// Checks that a machine with `available` free bytes has the `needed` bytes.
fn check_memory(needed: u64, is_simulated: bool, available: Option<u64>) -> Result<()> {
    const REMEDY: &str = "take shorter messages (-s) or fewer queue pairs (-q)";
    if is_simulated && needed > SIMULATED_MEMORY {
        bail!("{needed} bytes of memory for messages: simulated devices have {SIMULATED_MEMORY} here; {REMEDY}");
    }
    match available {
        Some(available) if needed > available => {
            bail!("{needed} bytes of memory for messages: this machine has {available} available; {REMEDY}")
        }
        _ => Ok(()),
    }
}

/// Returns the bytes of memory available without swapping (proc_meminfo(5)), if the kernel reports them.
fn memory_available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Checks that the device supports the parameters.
fn check_device<H: Host>(device: &Device<H>, parameters: &Parameters) -> Result<()> {
    let (attr, name) = (device.verbs.query_device(), device.host.name());
    for &test in &parameters.tests {
        if test.verb() == Verb::Atomic && !attr.atomics {
            bail!("{test}: {name} does no atomics");
        }
        let inline = parameters.inline(test, attr.max_inline_data);
        if inline > attr.max_inline_data {
            bail!("{test}: {inline} bytes inline, {name} takes {} at most", attr.max_inline_data);
        }
        let fits = |depth| {
            let cap = capacities(&Parameters { tx_depth: depth, ..parameters.clone() }, test, inline);
            let sizes = device.verbs.provider().ring_sizes(qp_type(parameters), &cap);
            sizes.is_ok_and(|sizes| sizes.send_blocks as usize <= SEND_BLOCKS)
        };
        let depth = parameters.tx_depth;
        if !fits(depth) {
            let greatest = (1..depth).rev().find(|&depth| fits(depth)).unwrap_or(0);
            bail!(
                "{test}: {depth} requests with {inline} bytes inline do not fit the send queue, which has {SEND_BLOCKS} blocks of 64 \
                 bytes: {greatest} is the greatest tx-depth"
            );
        }
    }
    for point in parameters.points() {
        if u64::from(point.size) > attr.max_msg_size {
            bail!("{point}: the longest message of {name} has {} bytes", attr.max_msg_size);
        }
    }
    if attr.max_qp < parameters.queue_pairs.into() {
        bail!("{} queue pairs: {name} has {}", parameters.queue_pairs, attr.max_qp);
    }
    if let Some(outs) = parameters.outs
        && outs > attr.max_qp_init_rd_atom
    {
        bail!("outs {outs}: a queue pair of {name} has {} reads and atomics outstanding at most", attr.max_qp_init_rd_atom);
    }
    Ok(())
}

/// Returns the maximum number of requests in flight of a queue pair.
const fn depth(parameters: &Parameters, test: Test) -> u32 {
    if test.is_latency() { LATENCY_DEPTH } else { parameters.tx_depth }
}

/// Returns the number of receives of a queue pair, including those for credits.
fn receives(parameters: &Parameters, test: Test) -> u32 {
    if test.verb() == Verb::Send { parameters.receives_each() + CREDITS } else { 0 }
}

const fn qp_type(parameters: &Parameters) -> QpType {
    match parameters.transport {
        Transport::Rc => QpType::Rc,
        Transport::Uc => QpType::Uc,
        Transport::Ud => QpType::Ud,
    }
}

/// Returns the capacities of a queue pair: one more request for a credit, and at least one receive, which some devices require.
fn capacities(parameters: &Parameters, test: Test, inline: u32) -> QpCap {
    let credit = u32::from(test.verb() == Verb::Send);
    QpCap {
        max_send_wr: (depth(parameters, test) + credit).min(REQUESTS),
        max_recv_wr: receives(parameters, test).max(1),
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: inline,
    }
}

/// Checks the peer's port, queue pairs and memory; this end's port is of this kind.
fn check_connection(peer: &Connection, parameters: &Parameters, ours: LinkLayer, length: usize) -> Result<()> {
    let kind = |is_ethernet| if is_ethernet { "an Ethernet port" } else { "an InfiniBand port" };
    let (is_ethernet, theirs) = (ours == LinkLayer::Ethernet, peer.mac.is_some());
    if is_ethernet != theirs {
        bail!("the peer has {} and this end {}, and no wire joins the two", kind(theirs), kind(is_ethernet));
    }
    let queue_pairs = usize::from(parameters.queue_pairs);
    if peer.queue_pairs.len() != queue_pairs {
        bail!("the peer made {} queue pairs instead of {queue_pairs}", peer.queue_pairs.len());
    }
    if peer.queue_pairs.iter().any(|&(qpn, psn)| qpn >= 1 << 24 || psn >= 1 << 24) {
        bail!("the peer gave a number of a queue pair or a PSN of more than 24 bits");
    }
    for (at, &(qpn, _)) in peer.queue_pairs.iter().enumerate() {
        // QP0 and QP1 are the management queue pairs, 0xffffff means multicast (IBTA 3.5.10, 10.5).
        if matches!(qpn, 0 | 1 | 0xff_ffff) {
            bail!("the peer gave {qpn:#x} as the number of a queue pair, which cannot be connected");
        }
        if peer.queue_pairs.iter().take(at).any(|&(other, _)| other == qpn) {
            bail!("the peer gave the number {qpn:#x} for two queue pairs");
        }
    }
    if !is_ethernet && (peer.lid == 0 || peer.lid >= 0xc000) {
        bail!("the peer's LID, {:#x}, is not a unicast LID", peer.lid);
    }
    if peer.length < length as u64 || peer.addr.checked_add(peer.length).is_none() {
        bail!("the peer has {} bytes of memory at {:#x}, {length} are needed", peer.length, peer.addr);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_memory_than_available_is_refused() {
        assert!(check_memory(8 << 30, true, None).is_ok() && check_memory(9 << 30, false, Some(9 << 30)).is_ok());
        for (is_simulated, available, part) in [(true, None, "8589934592 here"), (false, Some(5), "5 available")] {
            let error = check_memory((8 << 30) + 1, is_simulated, available).unwrap_err().to_string();
            assert!(error.starts_with("8589934593 bytes") && error.contains(part), "{error}");
        }
        #[cfg(target_os = "linux")]
        assert!(memory_available().unwrap() > 1 << 20);
    }

    #[test]
    fn invalid_values_of_a_peer_are_refused() {
        let parameters = Parameters { queue_pairs: 2, ..Parameters::default() };
        let good = Connection {
            lid: 1,
            gid: None,
            mac: None,
            mtu: 4096,
            max_dest_rd_atomic: 16,
            queue_pairs: vec![(2, 0), (0xff_fffe, 0xff_ffff)],
            rkey: 1,
            addr: 0x1000,
            length: 4096,
        };
        let check = |peer: &Connection, ours| check_connection(peer, &parameters, ours, 4096);
        assert!(check(&good, LinkLayer::InfiniBand).is_ok());
        let ethernet = Connection { lid: 0, mac: Some("02:00:5e:00:53:01".into()), ..good.clone() };
        assert!(check(&ethernet, LinkLayer::Ethernet).is_ok());
        for (peer, ours, part) in [
            (&ethernet, LinkLayer::InfiniBand, "the peer has an Ethernet port and this end an InfiniBand port"),
            (&good, LinkLayer::Ethernet, "the peer has an InfiniBand port and this end an Ethernet port"),
        ] {
            let error = check(peer, ours).unwrap_err().to_string();
            assert!(error.starts_with(part), "{error}");
        }
        for (change, part) in [
            (Connection { queue_pairs: vec![(1, 0)], ..good.clone() }, "1 queue pairs instead of 2"),
            (Connection { queue_pairs: vec![(1, 0), (1 << 24, 0)], ..good.clone() }, "24 bits"),
            (Connection { queue_pairs: vec![(1, 0), (1, 1 << 24)], ..good.clone() }, "24 bits"),
            (Connection { queue_pairs: vec![(2, 0), (0, 0)], ..good.clone() }, "cannot be connected"),
            (Connection { queue_pairs: vec![(1, 0), (2, 0)], ..good.clone() }, "cannot be connected"),
            (Connection { queue_pairs: vec![(2, 0), (0xff_ffff, 0)], ..good.clone() }, "cannot be connected"),
            (Connection { queue_pairs: vec![(2, 0), (2, 1)], ..good.clone() }, "0x2 for two queue pairs"),
            (Connection { lid: 0, ..good.clone() }, "LID"),
            (Connection { lid: 0xffff, ..good.clone() }, "LID"),
            (Connection { length: 4095, ..good.clone() }, "4096 are needed"),
            (Connection { addr: u64::MAX - 5, ..good }, "needed"),
        ] {
            let error = check(&change, LinkLayer::InfiniBand).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
