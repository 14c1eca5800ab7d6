//! What the examples share: two simulated devices joined by a wire, a connection between them, and the wait for a completion.
//!
//! `examples/hello.rs` has all of it in one file and does without this crate. On hardware, [`devices`] is what changes: registers,
//! memory, fence and clock come from the machine.

use std::error::Error;
use std::time::Duration;
use std::{panic, process};

use bareverbs::{
    Access, AddressVector, Completion, CqHandle, Mtu, PdHandle, QpAttr, QpCap, QpHandle, QpInit, QpRings, QpType, Storage,
    Verbs,
};
use bareverbs_mlx5::{Config, Mlx5};
use bareverbs_sim::in_process::{Host, SimBuffer, SimPlatform, World, WorldConfig};
use bareverbs_sim::wire::WireFaults;

/// The driver, with an arena of 128 pages of 4096 bytes for its queues. The device's firmware has pages of its own.
pub type Driver = Mlx5<SimPlatform, 128>;

/// A host whose device is up.
pub struct Node {
    /// The simulated host.
    pub host: Host,
    /// The verbs on its device.
    pub verbs: Verbs<'static, Driver>,
}

impl Node {
    fn bring_up(host: Host) -> Result<Self, Box<dyn Error>> {
        let driver = Driver::bring_up(host.machine(Driver::ARENA), &Config::DEFAULT).map_err(|(error, _)| error)?;
        // Room for 1 protection domain, 4 regions, 1 window, 1 completion queue and 1 queue pair of 64 send blocks and 16
        // receives. It is leaked here; in firmware it is a static.
        let rings: &QpRings<64, 16> = Box::leak(Box::new(QpRings::new()));
        let storage = Box::leak(Box::new(Storage::<Driver, 1, 4, 1, 1, 1>::new([rings.view()])));
        Ok(Self { host, verbs: Verbs::new(driver, storage) })
    }

    /// Returns `len` bytes, zeroed, that the device reaches.
    pub fn buffer(&self, len: usize) -> SimBuffer {
        self.host.memory(len).whole()
    }
}

/// The status of a program that ends by a panic.
const FAILED: i32 = 101;

/// Returns two hosts with one device each, joined by a wire without faults.
///
/// From here on a thread that panics ends the program: another thread would wait for it without end.
///
/// # Errors
/// The driver cannot bring a device up.
pub fn devices() -> Result<[Node; 2], Box<dyn Error>> {
    devices_on(WireFaults::NONE)
}

/// Returns two hosts as [`devices`] does, on a wire with these faults.
///
/// # Errors
/// The driver cannot bring a device up.
pub fn devices_on(faults: WireFaults) -> Result<[Node; 2], Box<dyn Error>> {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        print(panicked);
        process::exit(FAILED);
    }));
    let (_, a, b) = World::pair(WorldConfig { faults, ..WorldConfig::default() });
    Ok([Node::bring_up(a)?, Node::bring_up(b)?])
}

/// One end of a reliable connection.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// The protection domain of the queue pair.
    pub pd: PdHandle,
    /// All completions of the queue pair.
    pub cq: CqHandle,
    /// The queue pair: at least 16 sends and 16 receives, each with a completion.
    pub qp: QpHandle,
}

/// Creates a queue pair on each node and connects them. Between machines, LID and queue pair number go over another connection first.
///
/// # Errors
/// A device does not answer, or refuses.
pub fn connect(a: &mut Node, b: &mut Node) -> Result<[End; 2], Box<dyn Error>> {
    let (end_a, end_b) = (create(a)?, create(b)?);
    let (address_a, address_b) = (address(a, end_a.qp)?, address(b, end_b.qp)?);
    a.verbs.connect(end_a.qp, &address_b)?;
    b.verbs.connect(end_b.qp, &address_a)?;
    Ok([end_a, end_b])
}

fn create(node: &mut Node) -> Result<End, Box<dyn Error>> {
    // More entries than the rings have blocks: a completion queue that overflows stays in error.
    let (pd, cq) = (node.verbs.alloc_pd()?, node.verbs.create_cq(128)?);
    let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16 };
    let init = QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap, sq_sig_all: true };
    Ok(End { pd, cq, qp: node.verbs.create_qp(&init)? })
}

/// What the peer of a queue pair needs to connect to it.
fn address(node: &mut Node, qp: QpHandle) -> Result<QpAttr, Box<dyn Error>> {
    // The link is trained after a reset, and a subnet manager gives the LID. Simulated ports take 50 ms.
    let dlid = node.verbs.wait_active(1, Duration::from_secs(60))?.lid;
    let av = AddressVector { dlid, port_num: 1, ..AddressVector::default() };
    Ok(QpAttr {
        access: Access::REMOTE_READ | Access::REMOTE_WRITE,
        port_num: 1,
        av,
        dest_qpn: node.verbs.qp(qp)?.qpn,
        path_mtu: Mtu::Mtu1024,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 1,
        ..QpAttr::default()
    })
}

/// Waits for the next completion.
///
/// # Errors
/// The completion queue has failed.
pub fn completion(node: &mut Node, cq: CqHandle) -> Result<Completion, Box<dyn Error>> {
    let mut done = [Completion::EMPTY];
    while node.verbs.poll_cq(cq, &mut done)? == 0 {}
    let [done] = done;
    Ok(done)
}
