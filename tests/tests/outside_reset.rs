//! A device that somebody else resets (`echo 1 > /sys/bus/pci/devices/…/reset`): the driver says so soon, sends no command any
//! more, and the other devices go on.

use core::ops::ControlFlow;
use core::time::Duration;
use std::cell::Cell;

use bareverbs::{
    AllocPdError, Clock, Completion, DestroyQpError, DeviceError, Errno, Instant, Machine, Payload, Platform, PollCqError,
    SendOp, WcStatus,
};
use bareverbs_mlx5::{Config, Error, Mlx5, Progress, Step};
use bareverbs_sim::DeviceConfig;
use bareverbs_sim::in_process::{Host, SimPlatform, World, WorldConfig};
use bareverbs_tests::{
    ALL_ACCESS, Connection, Driver, End, Node, PAGES, Pair, Region, end, machine, pattern, rc_steps, signaled, to_rts, verbs,
};

/// How long a command, a health check and a teardown may take to find out.
const SOON: Duration = Duration::from_millis(200);
/// Interval of the health checks of `maintain`.
const HEALTH_INTERVAL: Duration = Duration::from_secs(2);

/// Resets the function as Linux does for sysfs: configuration space is as before afterwards.
fn reset(host: &Host) {
    host.with_device(|device| {
        device.reset();
        device.enable_function();
    });
}

/// Hosts in one world, each with a device: every other one's port is queried by MAD_IFC.
fn hosts<const N: usize>() -> (World, [Host; N]) {
    let world = World::new(WorldConfig::default());
    let hosts = core::array::from_fn(|index| {
        world.add(DeviceConfig { ib_virt: index % 2 == 1, ..DeviceConfig::with_lid(index as u16 + 1) }).unwrap()
    });
    (world, hosts)
}

/// A connection of a device with itself, and memory.
struct Loopback {
    node: Node,
    end: End,
    region: Region,
}

impl Loopback {
    fn new(mut node: Node) -> Self {
        let end = end(&mut node, true);
        let region = node.region(end.pd, 8192, ALL_ACCESS);
        let lid = node.verbs.query_port(1).unwrap().lid;
        to_rts(&mut node, end.qp, &rc_steps(&Connection::default(), lid, end.qpn, 7, 7));
        Self { node, end, region }
    }

    /// Moves data, and looks at it.
    fn works(&mut self, seed: u64) {
        let bytes = pattern(seed, 4096);
        self.region.buffer.write(0, &bytes);
        let sges = [self.region.sge(0, 4096)];
        let op = SendOp::Write { payload: Payload::Sges(&sges), remote: self.region.remote(4096) };
        self.node.verbs.post_send(self.end.qp, &signaled(seed, op)).unwrap();
        assert_eq!(self.node.completions(self.end.cq, 1)[0].status, WcStatus::Success);
        assert_eq!(self.region.buffer.read(4096, 4096), bytes);
    }

    /// Asserts that the device moves data, is healthy, and returns all pages.
    fn assert_unharmed(mut self, seed: u64) {
        self.works(seed);
        self.node.verbs.maintain().unwrap();
        self.node.assert_no_findings();
        let report = self.node.into_driver().teardown().map_err(|(error, _)| error).unwrap().1;
        assert_eq!(report.pages_kept, 0);
    }
}

/// Calls `maintain` when it wants to be called, until it fails. Returns the error and how long it took.
fn maintain(node: &mut Node) -> (Error, Duration) {
    let start = node.host.clock().now();
    for _ in 0..10 {
        match node.verbs.maintain() {
            Ok(next) => node.host.world().advance(next.since(node.host.clock().now())),
            Err(error) => return (error, node.host.clock().now().since(start)),
        }
    }
    panic!("nothing was said");
}

/// Asserts that the driver is dead: every command is refused without one, at once, and the teardown ends with the same reason.
fn assert_dead(mut node: Node, end: &End, cqs: u32) -> Machine<SimPlatform> {
    let start = node.host.clock().now();
    let commands = node.verbs.provider().statistics().commands;
    assert_eq!(node.verbs.alloc_pd(), Err(AllocPdError::Device(Error::DeviceReset)));
    assert_eq!(node.verbs.destroy_qp(end.qp), Err(DestroyQpError::Device(Error::DeviceReset)));
    assert_eq!(node.verbs.provider_mut().health(), Err(Error::DeviceReset));
    assert_eq!(node.verbs.provider().statistics().commands, commands, "no command is sent");
    let Err((error, machine)) = node.into_driver().teardown() else { panic!("the teardown of a device that knows nothing") };
    assert_eq!((error.cause, error.cause.errno()), (Error::DeviceReset, Errno::Eio));
    assert_eq!(error.report.cqs_left, cqs);
    assert!(machine.clock.now().since(start) < Duration::from_millis(1), "at once, no deadline");
    machine
}

#[test]
fn in_each_step_of_the_bring_up() {
    let (_, [host, other]) = hosts();
    let mut other = Loopback::new(Node::new(other));
    for (seed, at) in (1..).zip(Step::ALL.iter().copied()) {
        let mut since = Instant::default();
        let brought = Driver::bring_up_with(machine(&host), &Config::DEFAULT, |next| {
            if next == Progress::Step(at) {
                reset(&host);
                since = host.clock().now();
            }
            ControlFlow::Continue(())
        });
        match brought {
            Ok(driver) => {
                assert!(at <= Step::SetCommandQueue, "it came up, reset before {at}");
                assert!(driver.teardown().is_ok());
            }
            Err((error, machine)) => {
                assert_eq!(error.cause, Error::DeviceReset, "reset before {at}: {error}");
                assert!(at > Step::SetCommandQueue && error.step >= at, "reset before {at}: {error}");
                assert!(host.clock().now().since(since) < SOON, "before {at}");
                // The same machine comes up again.
                let driver = Driver::bring_up(machine, &Config::DEFAULT).map_err(|(error, _)| error).unwrap();
                assert!(driver.teardown().is_ok());
            }
        }
        other.works(seed);
    }
    other.assert_unharmed(99);
}

#[test]
fn while_it_is_idle() {
    let (_, [host, other]) = hosts();
    let (mut node, other) = (Node::new(host), Loopback::new(Node::new(other)));
    let ends = [end(&mut node, true), end(&mut node, true)];
    node.verbs.maintain().unwrap();
    reset(&node.host);
    let (error, took) = maintain(&mut node);
    assert_eq!(error, Error::DeviceReset);
    assert!(took < HEALTH_INTERVAL + SOON, "{took:?}");
    let (error, took) = maintain(&mut node);
    assert_eq!(error, Error::DeviceReset);
    assert!(took < Duration::from_millis(1), "at each further call at once");
    for end in &ends {
        let polled = node.verbs.poll_cq(end.cq, &mut [Completion::EMPTY]);
        assert!(matches!(polled, Err(PollCqError::Broken { .. })), "{polled:?}");
    }
    let machine = assert_dead(node, &ends[0], 2);
    other.assert_unharmed(1);
    assert!(Driver::bring_up(machine, &Config::DEFAULT).is_ok(), "the program may go on");
}

#[test]
fn under_traffic() {
    let mut pair = Pair::new();
    let third = Loopback::new(Node::new(pair.world.add(DeviceConfig::with_lid(3)).unwrap()));
    let (a, b) = pair.connected();
    let here = pair.a.region(a.pd, 1 << 20, ALL_ACCESS);
    let there = pair.b.region(b.pd, 1 << 20, ALL_ACCESS);
    let sges = [here.sge(0, 1 << 20)];
    let op = SendOp::Write { payload: Payload::Sges(&sges), remote: there.remote(0) };
    for wr_id in 0..60 {
        pair.a.verbs.post_send(a.qp, &signaled(wr_id, op)).unwrap();
    }
    let mut done = pair.a.completions(a.cq, 3);
    reset(&pair.a.host);
    // The doorbells of a queue that the device does not know do nothing.
    let last =
        pair.a.verbs.post_send(a.qp, &signaled(60, SendOp::Write { payload: Payload::Inline(b"x"), remote: there.remote(0) }));
    last.unwrap();
    let (error, took) = maintain(&mut pair.a);
    assert_eq!(error, Error::DeviceReset);
    assert!(took < HEALTH_INTERVAL + SOON, "{took:?}");
    // What completed before is delivered, then the reason why nothing else comes.
    let polled = loop {
        let mut some = [Completion::EMPTY; 16];
        match pair.a.verbs.poll_cq(a.cq, &mut some) {
            Ok(0) => panic!("nothing says that no more comes"),
            Ok(n) => done.extend_from_slice(&some[..n]),
            Err(error) => break error,
        }
    };
    assert!(matches!(polled, PollCqError::Broken { .. }), "{polled:?}");
    assert!((3..61).contains(&done.len()) && done.iter().all(|done| done.status == WcStatus::Success), "{}", done.len());
    assert!(done.iter().zip(0..).all(|(done, wr_id)| done.wr_id == wr_id), "{done:?}");
    assert_dead(pair.a, &a, 1);
    // The peer is alive, and its own requests time out.
    let op = SendOp::Write { payload: Payload::Inline(b"x"), remote: here.remote(0) };
    pair.b.verbs.post_send(b.qp, &signaled(1, op)).unwrap();
    assert_eq!(pair.b.completions(b.cq, 1)[0].status, WcStatus::RetryExcErr);
    Loopback::new(pair.b).works(2);
    third.assert_unharmed(3);
}

#[test]
fn during_a_command() {
    let (_, [host, other]) = hosts();
    let (mut node, other) = (Node::new(host), Loopback::new(Node::new(other)));
    let end = end(&mut node, true);
    reset(&node.host);
    let start = node.host.clock().now();
    assert_eq!(node.verbs.alloc_pd(), Err(AllocPdError::Device(Error::DeviceReset)));
    assert!(node.host.clock().now().since(start) < SOON, "long before the command's deadline");
    assert_dead(node, &end, 1);
    other.assert_unharmed(1);
}

#[test]
fn before_the_teardown() {
    let (_, [host, other]) = hosts();
    let (node, other) = (Loopback::new(Node::new(host)), Loopback::new(Node::new(other)));
    let host = node.node.host.clone();
    reset(&host);
    let start = host.clock().now();
    let Err((error, machine)) = node.node.into_driver().teardown() else { panic!("it knows nothing") };
    assert_eq!(error.cause, Error::DeviceReset);
    assert!(host.clock().now().since(start) < SOON, "one command finds out, the others are not sent");
    other.assert_unharmed(1);
    Loopback::new(Node { verbs: verbs(Driver::bring_up(machine, &Config::DEFAULT).map_err(|_| ()).unwrap()), host })
        .assert_unharmed(2);
}

#[test]
fn a_device_that_is_back_after_it_read_as_ones_was_reset() {
    let (_, [host]) = hosts();
    let mut node = Node::new(host.clone());
    let end = end(&mut node, true);
    host.with_device(|device| device.set_removed(true));
    assert_eq!(maintain(&mut node).0, Error::DeviceGone);
    reset(&host);
    host.with_device(|device| device.set_removed(false));
    assert_eq!(node.verbs.provider_mut().health(), Err(Error::DeviceReset));
    assert_eq!(maintain(&mut node).0, Error::DeviceReset);
    assert_dead(node, &end, 1);
}

/// A simulated host whose clock puts the device back into its slot at some time.
struct Returning;

struct ReturningClock {
    host: Host,
    back: Cell<Option<Instant>>,
}

impl Platform for Returning {
    type Registers = <SimPlatform as Platform>::Registers;
    type Memory = <SimPlatform as Platform>::Memory;
    type Pages = <SimPlatform as Platform>::Pages;
    type Fence = <SimPlatform as Platform>::Fence;
    type Clock = ReturningClock;
}

impl Clock for ReturningClock {
    fn now(&self) -> Instant {
        self.host.clock().now()
    }

    fn relax(&self, deadline: Instant) {
        self.host.clock().relax(deadline);
        if self.back.get().is_some_and(|back| self.now() >= back) {
            self.back.set(None);
            self.host.with_device(|device| device.set_removed(false));
        }
    }
}

#[test]
fn a_device_that_reads_as_ones_after_its_reset_has_the_time_of_its_boot() {
    let (_, [host]) = hosts();
    host.with_device(|device| device.set_removed(true));
    let Machine { registers, memory, pages, fence, clock } = machine(&host);
    let back = Cell::new(Some(clock.now().after(Duration::from_secs(30))));
    let machine = Machine { registers, memory, pages, fence, clock: ReturningClock { host: host.clone(), back } };
    let start = host.clock().now();
    let driver = Mlx5::<Returning, PAGES>::bring_up(machine, &Config::DEFAULT).map_err(|(error, _)| error).unwrap();
    assert!(host.clock().now().since(start) >= Duration::from_secs(30));
    assert!(driver.teardown().is_ok());

    // One that never comes back is gone.
    host.with_device(|device| device.set_removed(true));
    let start = host.clock().now();
    let Err((error, _)) = Driver::bring_up(bareverbs_tests::machine(&host), &Config::DEFAULT) else {
        panic!("it is not there")
    };
    assert_eq!((error.step, error.cause), (Step::WaitBoot, Error::DeviceGone));
    let took = host.clock().now().since(start);
    assert!(took >= Config::DEFAULT.boot_timeout && took < Config::DEFAULT.boot_timeout + SOON, "{took:?}");
}
