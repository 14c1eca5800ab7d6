//! What the whole-stack scenarios share: hosts with a driven device, buffers, connected queue pairs, and waiting.

pub mod book;
pub mod command_fields;
mod dice;
mod kept_verbs;
mod lone_device;
pub mod lying_device;
mod refused;
mod registration;
mod resource_snapshot;

use core::time::Duration;

use bareverbs::backend::Provider;
use bareverbs::platform::{Clock, DmaMemory, Instant, Machine};
use bareverbs::storage::{QpRings, Storage};
use bareverbs::{
    Access, AddressVector, Completion, CqHandle, Event, Lid, MrHandle, MrInfo, PdHandle, Psn, QpAttr, QpAttrMask, QpCap,
    QpHandle, QpInit, QpState, QpType, Qpn, Remote, SendFlags, SendOp, SendWr, Sge, Verbs, storage,
};
use bareverbs_mlx5::{Config, Mlx5};
use bareverbs_sim::in_process::{Host, SimBuffer, SimMemory, SimPlatform, World, WorldConfig};
use bareverbs_sim::{DeviceConfig, Profile};

pub use bareverbs_testing::{Connection, bring_up, driver_config};
pub use dice::dice;
pub use kept_verbs::KeptVerbs;
pub use lone_device::LoneDevice;
pub use registration::{SamePage, register, register_mapped};
pub use resource_snapshot::ResourceSnapshot;

/// Pages of the driver's arena.
pub const PAGES: usize = 4096;
/// The driver on a simulated host.
pub type Driver = Mlx5<SimPlatform, PAGES>;
/// The verbs on it.
pub type Rdma = KeptVerbs<Driver>;
/// Tables for every scenario: more than those of [`bareverbs_testing::Node`], and of any provider.
type Tables<P> = storage!['static, P; pds: 4, mrs: 16, mws: 8, cqs: 8, qps: 16];

/// Verbs over storage of their own, which lives as long as the test.
pub fn verbs<P: Provider + 'static>(driver: P) -> KeptVerbs<P> {
    KeptVerbs::new(Verbs::new(driver, tables()))
}

fn tables<P: Provider + 'static>() -> &'static mut Tables<P> {
    let long: &'static [QpRings<8192, 4096>; 2] = Box::leak(Box::default());
    let short: &'static [QpRings<1024, 1024>; 14] = Box::leak(Box::default());
    let rings = core::array::from_fn(|index| match index.checked_sub(14) {
        Some(index) => long[index].view(),
        None => short[index].view(),
    });
    Box::leak(Box::new(Storage::new(rings)))
}

/// Where the callers' addresses begin: not where the device sees the same bytes.
const CALLER_BASE: u64 = 0x7f00_0000_0000;

/// A host, its device brought up, and the verbs on it.
pub struct Node {
    /// The host.
    pub host: Host,
    /// Its verbs.
    pub verbs: Rdma,
}

/// Bytes that an application owns, at an address of its own.
#[derive(Clone)]
pub struct Buffer {
    memory: SimMemory,
    /// Address of the first byte for the application.
    pub addr: u64,
}

/// A registered buffer.
#[derive(Clone)]
pub struct Region {
    /// The bytes.
    pub buffer: Buffer,
    /// The region.
    pub mr: MrHandle,
    /// Its keys and place.
    pub info: MrInfo,
}

impl Buffer {
    /// Returns the bytes from `at`.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(at, &mut bytes).expect("inside the buffer");
        bytes
    }

    /// Writes bytes at `at`.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        self.memory.write(at, bytes).expect("inside the buffer");
    }

    /// Returns all bytes, to be registered.
    pub fn bytes(&self) -> SimBuffer {
        self.part(0, self.size())
    }

    /// Returns `len` bytes from `at`, to be registered.
    pub fn part(&self, at: usize, len: usize) -> SimBuffer {
        self.memory.buffer(at, len, self.addr + at as u64).expect("inside the buffer")
    }

    /// Returns the address of the first byte for the device.
    pub fn device_addr(&self) -> u64 {
        self.memory.device_addr()
    }

    /// Returns the length in bytes.
    pub fn size(&self) -> usize {
        self.memory.len()
    }
}

impl Region {
    /// Returns an SGE over `len` bytes from `at`.
    pub fn sge(&self, at: usize, len: usize) -> Sge {
        Sge { addr: self.buffer.addr + at as u64, length: len as u32, lkey: self.info.lkey }
    }

    /// Returns the peer's name for the byte at `at`.
    pub fn remote(&self, at: usize) -> Remote {
        Remote { addr: self.buffer.addr + at as u64, rkey: self.info.rkey }
    }
}

impl Node {
    /// Brings the device of `host` up.
    pub fn new(host: Host) -> Self {
        let config = driver_config(&host);
        Self::with_config(host, &config)
    }

    /// Brings the device of `host` up with `config`.
    pub fn with_config(host: Host, config: &Config) -> Self {
        match bring_up(&host, config, tables()) {
            Ok(verbs) => Self { host, verbs: KeptVerbs::new(verbs) },
            Err(error) => panic!("bring-up: {error:?}"),
        }
    }

    /// Waits until the port is active, if there is anything to wait for, and takes the events of that.
    pub fn await_port(&mut self) {
        bareverbs_testing::await_port(&self.host, &mut self.verbs).expect("await_port");
    }

    /// Drops every queue that the node keeps, and gives the driver back.
    pub fn into_driver(self) -> Driver {
        match self.verbs.into_provider() {
            Ok(driver) => driver,
            Err(_) => panic!("somebody has a queue or the interrupt handler"),
        }
    }

    /// Allocates `len` bytes that the device reaches.
    pub fn buffer(&self, len: usize) -> Buffer {
        let memory = self.host.memory(len);
        // Not page-aligned for the application, so that its addresses and the device's differ.
        let addr = CALLER_BASE + memory.device_addr();
        Buffer { memory, addr }
    }

    /// Registers a buffer of `len` bytes.
    pub fn region(&mut self, pd: PdHandle, len: usize, access: Access) -> Region {
        let buffer = self.buffer(len);
        // The bytes are the application's and the region's: `dereg_mr_raw` ends the region, and the bytes stay.
        let mr = self.verbs.reg_mr(pd, buffer.bytes(), access).expect("reg_mr").handle();
        let info = self.verbs.mr_info(mr).expect("mr");
        Region { buffer, mr, info }
    }

    /// Polls everything that is in `cq` now.
    pub fn poll(&mut self, cq: CqHandle) -> Vec<Completion> {
        let mut found = Vec::new();
        let mut some = [Completion::EMPTY; 16];
        loop {
            let none = self.verbs.poll_cq(cq, &mut some).expect("poll_cq");
            if none == 0 {
                return found;
            }
            found.extend_from_slice(&some[..none]);
        }
    }

    /// Lets time pass.
    pub fn relax(&self) {
        self.host.clock().relax(Instant::default());
    }

    /// Waits for `count` completions in `cq`, one simulated minute at most.
    pub fn completions(&mut self, cq: CqHandle, count: usize) -> Vec<Completion> {
        let mut found = Vec::new();
        let deadline = self.host.clock().now().after(Duration::from_secs(60));
        while found.len() < count {
            found.extend(self.poll(cq));
            assert!(self.host.clock().now() < deadline, "{} of {count} completions: {found:?}", found.len());
            if found.len() < count {
                self.relax();
            }
        }
        found
    }

    /// Waits for the next event that `pick` likes, one simulated second at most.
    pub fn event<T>(&mut self, mut pick: impl FnMut(Event) -> Option<T>) -> Option<T> {
        let deadline = self.host.clock().now().after(Duration::from_secs(1));
        while self.host.clock().now() < deadline {
            match self.verbs.poll_event().expect("poll_event") {
                Some(event) => {
                    if let Some(found) = pick(event) {
                        return Some(found);
                    }
                }
                None => self.relax(),
            }
        }
        None
    }

    /// Asserts that the device has no findings about the driver.
    pub fn assert_no_findings(&self) {
        let findings = self.host.with_device(|device| device.audit().findings().to_vec());
        assert!(findings.is_empty(), "{findings:?}");
    }
}

/// Returns a device that asks for few pages, as many for each driver, and whose port is active from the start: for tests that
/// count pages and changes of the port.
pub fn instant(lid: u16) -> DeviceConfig {
    DeviceConfig::profile(Profile::Instant, lid)
}

/// Returns a machine for a driver on `host`.
pub fn machine(host: &Host) -> Machine<SimPlatform> {
    host.machine(Driver::ARENA)
}

/// A protection domain, a completion queue and a queue pair on one host.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// Domain.
    pub pd: PdHandle,
    /// Queue for completions of sends and receives.
    pub cq: CqHandle,
    /// Queue pair.
    pub qp: QpHandle,
    /// Its number.
    pub qpn: Qpn,
}

/// What most scenarios ask of a queue pair.
pub const CAP: QpCap = QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 128 };

/// Creates a domain, a queue and an RC queue pair in RESET.
pub fn end(node: &mut Node, sq_sig_all: bool) -> End {
    let pd = node.verbs.alloc_pd().expect("alloc_pd");
    end_in(node, pd, QpType::Rc, CAP, sq_sig_all)
}

/// Creates a queue and a queue pair in RESET in a domain.
pub fn end_in(node: &mut Node, pd: PdHandle, qp_type: QpType, cap: QpCap, sq_sig_all: bool) -> End {
    let cq = node.verbs.create_cq(4 * (cap.max_send_wr + cap.max_recv_wr)).expect("create_cq");
    let init = QpInit { pd, qp_type, send_cq: cq, recv_cq: cq, cap, sq_sig_all };
    let qp = node.verbs.create_qp(&init).expect("create_qp");
    let qpn = node.verbs.qp_info(qp).expect("qp").qpn;
    End { pd, cq, qp, qpn }
}

/// Rights of a region that allow everything.
pub const ALL_ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

/// Attributes of a move to `state` that needs no others.
pub fn to_state(state: QpState) -> QpAttr {
    QpAttr { state, ..QpAttr::default() }
}

/// Attributes of each step from RESET to RTS of an RC queue pair.
pub fn rc_steps(connection: &Connection, dlid: Lid, dest_qpn: Qpn, rq_psn: u32, sq_psn: u32) -> [(QpAttr, QpAttrMask); 3] {
    let all = QpAttr {
        access: connection.access,
        port_num: 1,
        av: AddressVector { dlid, port_num: 1, ..AddressVector::default() },
        path_mtu: connection.mtu,
        timeout: connection.timeout,
        retry_cnt: connection.retry_cnt,
        rnr_retry: connection.rnr_retry,
        rq_psn: Psn::new(rq_psn),
        sq_psn: Psn::new(sq_psn),
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 1,
        dest_qpn,
        ..QpAttr::default()
    };
    [
        (
            QpAttr { state: QpState::Init, ..all },
            QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS,
        ),
        (
            QpAttr { state: QpState::Rtr, ..all },
            QpAttrMask::STATE
                | QpAttrMask::AV
                | QpAttrMask::PATH_MTU
                | QpAttrMask::DEST_QPN
                | QpAttrMask::RQ_PSN
                | QpAttrMask::MAX_DEST_RD_ATOMIC
                | QpAttrMask::MIN_RNR_TIMER,
        ),
        (
            QpAttr { state: QpState::Rts, ..all },
            QpAttrMask::STATE
                | QpAttrMask::SQ_PSN
                | QpAttrMask::TIMEOUT
                | QpAttrMask::RETRY_CNT
                | QpAttrMask::RNR_RETRY
                | QpAttrMask::MAX_QP_RD_ATOMIC,
        ),
    ]
}

/// Attributes of each step from RESET to RTS of a UC queue pair.
pub fn uc_steps(connection: &Connection, dlid: Lid, dest_qpn: Qpn, rq_psn: u32, sq_psn: u32) -> [(QpAttr, QpAttrMask); 3] {
    let mut steps = rc_steps(connection, dlid, dest_qpn, rq_psn, sq_psn);
    let reliable = QpAttrMask::MAX_DEST_RD_ATOMIC
        | QpAttrMask::MIN_RNR_TIMER
        | QpAttrMask::TIMEOUT
        | QpAttrMask::RETRY_CNT
        | QpAttrMask::RNR_RETRY
        | QpAttrMask::MAX_QP_RD_ATOMIC;
    for (_, mask) in &mut steps {
        *mask -= reliable;
    }
    steps
}

/// Takes a queue pair from RESET to RTS.
pub fn to_rts(node: &mut Node, qp: QpHandle, steps: &[(QpAttr, QpAttrMask); 3]) {
    for (attr, mask) in steps {
        if let Err(error) = node.verbs.modify_qp(qp, attr, *mask) {
            panic!("to {:?}: {error}", attr.state);
        }
    }
}

/// Takes a datagram queue pair from RESET to RTS.
pub fn ud_to_rts(node: &mut Node, qp: QpHandle) {
    let all = QpAttr { port_num: 1, qkey: bareverbs::Qkey::new(0x1111_1111), sq_psn: Psn::new(7), ..QpAttr::default() };
    let steps = [
        (QpState::Init, QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY),
        (QpState::Rtr, QpAttrMask::empty()),
        (QpState::Rts, QpAttrMask::SQ_PSN),
    ];
    for (state, mask) in steps {
        node.verbs.modify_qp(qp, &QpAttr { state, ..all }, mask | QpAttrMask::STATE).expect("modify_qp");
        assert_eq!(node.verbs.query_qp(qp).expect("query_qp").state, state);
    }
}

/// Two hosts whose devices are joined by a wire.
pub struct Pair {
    /// The world of both.
    pub world: World,
    /// The first.
    pub a: Node,
    /// The second.
    pub b: Node,
}

/// Returns a connection whose ends wait for receives without end, and ask often.
pub fn without_rnr_limit() -> Connection {
    Connection { rnr_retry: 7, min_rnr_timer: 1, ..Connection::default() }
}

impl Pair {
    /// Creates two hosts with default devices.
    pub fn new() -> Self {
        Self::in_world(WorldConfig::default())
    }

    /// Creates two hosts in a world of this kind.
    pub fn in_world(config: WorldConfig) -> Self {
        let (world, a, b) = World::pair(config);
        Self { world, a: Node::new(a), b: Node::new(b) }
    }

    /// Creates two hosts with devices of these kinds.
    pub fn of_devices(a: DeviceConfig, b: DeviceConfig) -> Self {
        let world = World::new(WorldConfig::default());
        let (a, b) = (world.add(a).unwrap(), world.add(b).unwrap());
        Self { world, a: Node::new(a), b: Node::new(b) }
    }

    /// Connects two queue pairs that are in RESET, by the steps that [`KeptVerbs`] takes: it polls what is left of an old connection.
    pub fn connect(&mut self, a: &End, b: &End, connection: &Connection) {
        let lid = |node: &mut Node| node.verbs.query_port(1).expect("query_port").lid;
        let (lid_a, lid_b) = (lid(&mut self.a), lid(&mut self.b));
        let (psn_a, psn_b) = (connection.psn.0.get(), connection.psn.1.get());
        let steps = |node: &Node, end: &End| match node.verbs.qp_info(end.qp).expect("qp").qp_type {
            QpType::Uc => uc_steps,
            _ => rc_steps,
        };
        let (steps_a, steps_b) = (steps(&self.a, a), steps(&self.b, b));
        to_rts(&mut self.a, a.qp, &steps_a(connection, lid_b, b.qpn, psn_b, psn_a));
        to_rts(&mut self.b, b.qp, &steps_b(connection, lid_a, a.qpn, psn_a, psn_b));
    }

    /// Creates a connected RC queue pair on each host, every send signaled. They wait for receives without end.
    pub fn connected(&mut self) -> (End, End) {
        let (a, b) = (end(&mut self.a, true), end(&mut self.b, true));
        self.connect(&a, &b, &without_rnr_limit());
        (a, b)
    }

    /// Asserts that no device has findings about its driver.
    pub fn assert_no_findings(&self) {
        self.a.assert_no_findings();
        self.b.assert_no_findings();
    }
}

impl Default for Pair {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns a signaled request.
pub fn signaled(wr_id: u64, op: SendOp<'_>) -> SendWr<'_> {
    SendWr { wr_id, flags: SendFlags::SIGNALED, op }
}

/// Returns bytes that differ from place to place and from seed to seed.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
