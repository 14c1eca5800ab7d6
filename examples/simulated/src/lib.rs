//! What the examples share: two simulated devices joined by a wire, and the connection of two queue pairs.
//!
//! On hardware, [`devices`] is what changes: registers, memory, fence and clock come from the machine.

use std::error::Error;
use std::time::Duration;
use std::{panic, process};

use bareverbs::{
    Access, AddressVector, Clock, CqHandle, Instant, Machine, Mtu, PdHandle, QpAttr, QpCap, QpHandle, QpInit, QpRings, QpType,
    Storage, Verbs,
};
use bareverbs_mlx5::{Config, Mlx5};
use bareverbs_sim::in_process::{Host, SimBuffer, SimPlatform, World, WorldConfig};

/// The driver, with an arena of 512 pages of 4096 bytes for its queues and for the device's firmware.
pub type Driver = Mlx5<SimPlatform, 512>;

/// A host whose device is up.
pub struct Node {
    /// The simulated host.
    pub host: Host,
    /// The verbs on its device.
    pub verbs: Verbs<'static, Driver>,
}

impl Node {
    fn bring_up(host: Host) -> Result<Self, Box<dyn Error>> {
        let machine = Machine {
            registers: host.registers(),
            memory: host.memory(Driver::ARENA),
            fence: host.fence(),
            clock: host.clock(),
        };
        let driver = Driver::bring_up(machine, &Config::DEFAULT).map_err(|(error, _)| format!("bring-up: {error:?}"))?;
        // Room for 1 protection domain, 4 regions, 1 window, 1 completion queue and 1 queue pair of 64 send blocks and 16
        // receives. It lives for ever here; in firmware it stands in a static.
        let rings: &QpRings<64, 16> = Box::leak(Box::new(QpRings::new()));
        let storage = Box::leak(Box::new(Storage::<Driver, 1, 4, 1, 1, 1>::new([rings.view()])));
        Ok(Self { host, verbs: Verbs::new(driver, storage) })
    }

    /// `len` bytes, zeroed, that the device reaches.
    pub fn buffer(&self, len: usize) -> SimBuffer {
        self.host.memory(len).whole()
    }
}

/// Lets simulated time pass, in which the devices work. A real device needs nobody for that.
pub fn relax(host: &Host) {
    host.clock().relax(Instant::default());
}

/// The status of a program that ends by a panic.
const FAILED: i32 = 101;

/// Two hosts with one device each, joined by a wire. From here on a thread that panics ends the program: another one would wait for
/// ever for what it no longer does.
///
/// # Errors
/// The driver cannot bring a device up.
pub fn devices() -> Result<[Node; 2], Box<dyn Error>> {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        print(panicked);
        process::exit(FAILED);
    }));
    // Short steps: in a long one, time would run away from a thread that the scheduler holds up.
    let config = WorldConfig { max_step: Duration::from_micros(1), ..WorldConfig::default() };
    let (_, a, b) = World::pair(config);
    Ok([Node::bring_up(a)?, Node::bring_up(b)?])
}

/// A queue pair with a reliable connection, whose requests all complete into `cq`: at least 16 sends and 16 receives.
pub const fn reliable(pd: PdHandle, cq: CqHandle) -> QpInit {
    let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16 };
    QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap, sq_sig_all: true }
}

/// Connects two queue pairs with each other. Between machines, LID and queue pair number go over some other connection first.
///
/// # Errors
/// A device does not answer, or refuses.
pub fn connect(a: &mut Node, qp_a: QpHandle, b: &mut Node, qp_b: QpHandle) -> Result<(), Box<dyn Error>> {
    let [address_a, address_b] = [address(a, qp_a)?, address(b, qp_b)?];
    a.verbs.connect(qp_a, &address_b)?;
    b.verbs.connect(qp_b, &address_a)?;
    Ok(())
}

/// What the peer of a queue pair needs to connect to it.
fn address(node: &mut Node, qp: QpHandle) -> Result<QpAttr, Box<dyn Error>> {
    let av = AddressVector { dlid: node.verbs.query_port(1)?.lid, port_num: 1, ..AddressVector::default() };
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
