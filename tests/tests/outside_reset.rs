//! A device that somebody else resets (`echo 1 > /sys/bus/pci/devices/…/reset`), or that is lost otherwise: the driver says so
//! soon, sends no command any more, and the other devices go on. What was posted and is not done is flushed, each request once.

use core::ops::ControlFlow;
use core::time::Duration;
use std::cell::Cell;
use std::collections::VecDeque;

use bareverbs::error::{
    AllocPdError, CreateCqError, CreateQpError, DestroyQpError, DeviceLoss, Errno, ModifyQpError, NotifyCqError, PollCqError,
    PostRecvError, PostSendError, QueryQpError, RegMrError,
};
use bareverbs::platform::{Clock, Instant, Machine, Platform};
use bareverbs::{
    Completion, CompletionQueue, CqHandle, Payload, PdHandle, QpAttrMask, QpCap, QpHandle, QpInit, QpState, QpType, RecvWr,
    SendFlags, SendOp, SendWr, WcOpcode, WcStatus,
};
use bareverbs_mlx5::{Config, Error, Mlx5, Progress, Step};
use bareverbs_mlx5_spec::CmdOpcode;
use bareverbs_sim::fault::Fault;
use bareverbs_sim::in_process::{Host, SimPlatform, World, WorldConfig};
use bareverbs_sim::{DeviceConfig, HealthReport, Profile};
use bareverbs_tests::{
    ALL_ACCESS, Connection, Driver, End, Node, PAGES, Pair, Region, dice, driver_config, end, machine, pattern, rc_steps,
    signaled, to_rts, to_state, verbs,
};

/// How long a command, a health check and a teardown may take to find out.
const SOON: Duration = Duration::from_millis(200);
/// Interval of the health checks of `maintain`.
const HEALTH_INTERVAL: Duration = Duration::from_secs(2);

/// What each completion queue says at its end.
const LOST: PollCqError = PollCqError::DeviceLost { loss: DeviceLoss::Reset };

/// Resets the function as Linux does for sysfs: configuration space is as before afterwards.
fn reset(host: &Host) {
    host.with_device(|device| {
        device.reset();
        device.enable_function();
    });
}

/// Hosts in one world, each with a device whose resets are over at once: every other one's port is queried by MAD_IFC.
fn hosts<const N: usize>() -> (World, [Host; N]) {
    let world = World::new(WorldConfig::default());
    let hosts = core::array::from_fn(|index| {
        let (lid, ib_virt) = (index as u16 + 1, index % 2 == 1);
        world.add(DeviceConfig { reset_time: Duration::ZERO, ib_virt, ..DeviceConfig::with_lid(lid) }).unwrap()
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
    for _ in 0..20 {
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
    assert_eq!(node.verbs.direct().health(), Err(Error::DeviceReset));
    assert_eq!(node.verbs.provider().statistics().commands, commands, "no command is sent");
    let Err((error, machine)) = node.into_driver().teardown() else { panic!("the teardown of a device that knows nothing") };
    assert_eq!((error.cause, error.cause.errno()), (Error::DeviceReset, Errno::Eio));
    assert_eq!(error.report.cqs_left, cqs);
    assert!(machine.clock.now().since(start) < Duration::from_millis(1), "at once, no deadline");
    machine
}

/// Of an Ethernet port, to which each step of the second half sends something.
#[test]
fn in_each_step_of_the_bring_up() {
    let (world, [other]) = hosts();
    let host = world.add(DeviceConfig { reset_time: Duration::ZERO, ..DeviceConfig::with_lid(2) }.with_ethernet()).unwrap();
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
        assert_eq!(node.verbs.poll_cq(end.cq, &mut [Completion::EMPTY]), Err(LOST));
    }
    let machine = assert_dead(node, &ends[0], 2);
    other.assert_unharmed(1);
    assert!(Driver::bring_up(machine, &Config::DEFAULT).is_ok(), "the program may go on");
}

// contract: events-device
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
    // What completed before is delivered, then the rest as flushed, then the reason why nothing else comes.
    let polled = loop {
        let mut some = [Completion::EMPTY; 16];
        match pair.a.verbs.poll_cq(a.cq, &mut some) {
            Ok(0) => panic!("nothing says that no more comes"),
            Ok(n) => done.extend_from_slice(&some[..n]),
            Err(error) => break error,
        }
    };
    assert_eq!(polled, LOST);
    let completed = done.iter().take_while(|done| done.status == WcStatus::Success).count();
    assert!((3..61).contains(&completed), "{completed}");
    let flushed = |done: &Completion| (done.status, done.loss()) == (WcStatus::WrFlushErr, Some(DeviceLoss::Reset));
    assert!(done[completed..].iter().all(flushed), "{done:?}");
    assert!(done.iter().map(|done| done.wr_id).eq(0..61), "each once, in its order: {done:?}");
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
    let mut node = Node { verbs: verbs(Driver::bring_up(machine, &Config::DEFAULT).map_err(|_| ()).unwrap()), host };
    node.await_port();
    Loopback::new(node).assert_unharmed(2);
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
    assert_eq!(node.verbs.direct().health(), Err(Error::DeviceReset));
    assert_eq!(maintain(&mut node).0, Error::DeviceReset);
    assert_dead(node, &end, 1);
}

#[test]
fn during_a_reset_there_is_no_device_and_after_it_one_that_was_reset() {
    for profile in Profile::ALL {
        let config = DeviceConfig::profile(profile, 1);
        let reset_time = config.reset_time;
        let host = World::new(WorldConfig::default()).add(config).unwrap();
        let mut node = Node::new(host.clone());
        let end = end(&mut node, true);
        reset(&host);
        if !reset_time.is_zero() {
            assert_eq!(node.verbs.direct().health(), Err(Error::DeviceGone), "{profile}");
        }
        host.world().advance(reset_time);
        assert_eq!(node.verbs.direct().health(), Err(Error::DeviceReset), "{profile}");
        let machine = assert_dead(node, &end, 1);
        // Who begins during a reset waits for its end.
        reset(&host);
        let start = host.clock().now();
        let driver = Driver::bring_up(machine, &driver_config(&host)).map_err(|(error, _)| error).unwrap();
        assert!(host.clock().now().since(start) >= reset_time, "{profile}");
        assert_eq!(driver.teardown().map_err(|(error, _)| error).unwrap().1.pages_kept, 0, "{profile}");
    }
}

/// A simulated host whose clock puts the device back into its slot at some time.
struct Returning;

struct ReturningClock {
    host: Host,
    back: Cell<Option<Instant>>,
}

// SAFETY: those of the simulated platform, but for the clock.
#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl Platform for Returning {
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

/// A request that was posted and is not known to be done.
#[derive(Clone, Copy, Debug)]
struct Open {
    wr_id: u64,
    signaled: bool,
}

/// A queue pair with what is open in its two queues, oldest first.
struct Queues {
    qp: QpHandle,
    send_cq: CqHandle,
    recv_cq: CqHandle,
    sends: VecDeque<Open>,
    recvs: VecDeque<Open>,
}

/// One device whose queue pairs are connected with another's. Counts each `wr_id`: what is given was open, in the order of its
/// queue; only unsignaled requests before a successful one may be left out.
struct Ledger {
    queues: Vec<Queues>,
    cqs: [CqHandle; 2],
    next: u64,
    /// Completions of each kind: successful ones, flushed ones.
    given: (u32, u32),
}

impl Ledger {
    /// Three connected queue pairs over two completion queues, crosswise, and one in INIT.
    fn new(pair: &mut Pair) -> (Self, Region, Region) {
        let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 2, max_recv_sge: 1, max_inline_data: 64 };
        let make = |node: &mut Node, pd: PdHandle, cqs: [CqHandle; 2], (send, recv): (usize, usize)| {
            let init = QpInit { pd, qp_type: QpType::Rc, send_cq: cqs[send], recv_cq: cqs[recv], cap, sq_sig_all: false };
            node.verbs.create_qp(&init).unwrap()
        };
        let objects = |node: &mut Node| {
            let pd = node.verbs.alloc_pd().unwrap();
            (pd, [1024, 1024].map(|entries| node.verbs.create_cq(entries).unwrap()))
        };
        let ((pd, cqs), (their_pd, their_cqs)) = (objects(&mut pair.a), objects(&mut pair.b));
        let mut queues = Vec::new();
        for (n, which) in [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().enumerate() {
            let qp = make(&mut pair.a, pd, cqs, which);
            let info = pair.a.verbs.qp_info(qp).unwrap();
            if n == 3 {
                let steps = rc_steps(&Connection::default(), bareverbs::Lid::new(2), bareverbs::Qpn::new(9), 0, 0);
                pair.a.verbs.modify_qp(qp, &steps[0].0, steps[0].1).unwrap();
            } else {
                let theirs = make(&mut pair.b, their_pd, their_cqs, (0, 0));
                let end = |pd, cq, qp, qpn| End { pd, cq, qp, qpn };
                let their_qpn = pair.b.verbs.qp_info(theirs).unwrap().qpn;
                pair.connect(
                    &end(pd, cqs[0], qp, info.qpn),
                    &end(their_pd, their_cqs[0], theirs, their_qpn),
                    &Connection::default(),
                );
            }
            let (sends, recvs) = (VecDeque::new(), VecDeque::new());
            queues.push(Queues { qp, send_cq: info.send_cq, recv_cq: info.recv_cq, sends, recvs });
        }
        let here = pair.a.region(pd, 1 << 16, ALL_ACCESS);
        let there = pair.b.region(their_pd, 1 << 16, ALL_ACCESS);
        (Self { queues, cqs, next: 1, given: (0, 0) }, here, there)
    }

    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Posts one request of each kind, as far as there is room.
    fn post_each(&mut self, node: &mut Node, here: &Region, there: &Region) {
        for n in 0..self.queues.len() {
            for what in 0..5 {
                self.post(node, here, there, n, what);
            }
        }
    }

    /// Posts a request: a receive, or a send of one of four kinds.
    fn post(&mut self, node: &mut Node, here: &Region, there: &Region, n: usize, what: u64) {
        let (wr_id, qp) = (self.id(), self.queues[n].qp);
        if what == 0 {
            if node.verbs.post_recv(qp, &RecvWr { wr_id, sges: &[here.sge(0, 64)] }).is_ok() {
                self.queues[n].recvs.push_back(Open { wr_id, signaled: true });
            }
            return;
        }
        let (sges, remote) = ([here.sge(64, 4096)], there.remote(0));
        let op = match what {
            1 => SendOp::Write { payload: Payload::Sges(&sges), remote },
            2 => SendOp::Read { sges: &sges, remote },
            3 => SendOp::Write { payload: Payload::Inline(&[7; 60]), remote },
            _ => SendOp::FetchAdd { sge: here.sge(0, 8), remote, add: 1 },
        };
        let signaled = wr_id.is_multiple_of(3);
        let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        if node.verbs.post_send(qp, &SendWr { wr_id, flags, op }).is_ok() {
            self.queues[n].sends.push_back(Open { wr_id, signaled });
        }
    }

    /// Checks completions of a queue, and what they leave open.
    fn give(&mut self, cq: CqHandle, done: &[Completion], loss: DeviceLoss) {
        for done in done {
            let queues = self.queues.iter_mut().find(|queues| queues.qp == done.qp).expect("of a queue pair");
            let recv = done.opcode == WcOpcode::Recv;
            assert_eq!(if recv { queues.recv_cq } else { queues.send_cq }, cq, "in its queue: {done:?}");
            let open = if recv { &mut queues.recvs } else { &mut queues.sends };
            let at = open.iter().position(|open| open.wr_id == done.wr_id).expect("open, and given once");
            if done.status == WcStatus::Success {
                assert!(open.iter().take(at).all(|open| !open.signaled), "{done:?} before signaled ones: {open:?}");
                assert_eq!(done.loss(), None);
                self.given.0 += 1;
            } else {
                assert_eq!((at, done.status, done.loss()), (0, WcStatus::WrFlushErr, Some(loss)), "{done:?}");
                self.given.1 += 1;
            }
            open.drain(..=at);
        }
    }

    /// Polls a queue once for up to `count` completions.
    fn poll(&mut self, node: &mut Node, cq: CqHandle, count: usize, loss: DeviceLoss) -> Result<usize, PollCqError> {
        let mut some = [Completion::EMPTY; 8];
        let taken = node.verbs.poll_cq(cq, &mut some[..count])?;
        self.give(cq, &some[..taken], loss);
        Ok(taken)
    }

    /// Takes what is left of every queue, and asserts that nothing is open.
    fn settle(&mut self, node: &mut Node, loss: DeviceLoss) {
        for cq in self.cqs {
            let error = loop {
                match self.poll(node, cq, 3, loss) {
                    Ok(count) => assert_ne!(count, 0, "neither a request nor the reason"),
                    Err(error) => break error,
                }
            };
            assert_eq!(error, PollCqError::DeviceLost { loss });
            assert_eq!(node.verbs.poll_cq(cq, &mut [Completion::EMPTY; 2]), Err(error), "and nothing behind it");
        }
        for queues in &self.queues {
            assert!(queues.sends.is_empty() && queues.recvs.is_empty(), "{:?} {:?}", queues.sends, queues.recvs);
        }
    }
}

/// A way to lose a device, and what the verbs say.
type Way = (fn(&Host), DeviceLoss);

const WAYS: [Way; 5] = [
    (reset, DeviceLoss::Reset),
    (|host| host.with_device(|device| device.set_removed(true)), DeviceLoss::Gone),
    (
        |host| {
            let report = HealthReport { syndrome: 1, reset_required: true, ..HealthReport::default() };
            host.with_device(|device| device.set_health(report));
        },
        DeviceLoss::Fatal,
    ),
    (
        |host| {
            let opcode = CmdOpcode::QueryIssi.code() as u16;
            host.with_device(|device| {
                device.freeze_health(true);
                device.faults_mut().arm(Fault::StuckCommand { opcode });
            });
        },
        DeviceLoss::NoAnswer,
    ),
    (
        |host| {
            let opcode = CmdOpcode::AllocPd.code() as u16;
            host.with_device(|device| device.faults_mut().arm(Fault::StuckCommand { opcode }));
        },
        DeviceLoss::NoAnswer,
    ),
];

/// Lets the verbs find the loss: by a command that has no answer, or by their maintenance.
fn find(node: &mut Node, loss: DeviceLoss) {
    if loss != DeviceLoss::NoAnswer || node.verbs.alloc_pd().is_ok() {
        maintain(node);
    }
}

/// Random operations; the device is lost at each step, in another way each time, and polled in pieces of another size.
// contract: poll-once
#[test]
fn at_each_step_of_random_traffic_every_request_is_given_once() {
    const STEPS: u64 = 60;
    let mut flushed = 0;
    for at in 0..STEPS {
        let (lose, loss) = WAYS[(at % 5) as usize];
        let mut pair = Pair::new();
        let (mut ledger, here, there) = Ledger::new(&mut pair);
        let mut dice = dice(at + 1);
        for step in 0..=at {
            match dice(8) {
                0 | 1 => {
                    let (cq, count) = (ledger.cqs[dice(2) as usize], dice(8) as usize + 1);
                    ledger.poll(&mut pair.a, cq, count, loss).unwrap();
                }
                2 => pair.a.relax(),
                _ => {
                    let n = dice(4) as usize;
                    for _ in 0..=dice(6) {
                        ledger.post(&mut pair.a, &here, &there, n, dice(5));
                    }
                }
            }
            if step == at {
                lose(&pair.a.host);
            }
        }
        find(&mut pair.a, loss);
        ledger.settle(&mut pair.a, loss);
        flushed += ledger.given.1;
    }
    assert!(flushed > 500, "{flushed} requests were flushed");
}

/// The peer's sends and its own: in the middle of both, with a batch half polled.
#[test]
fn a_half_polled_batch_goes_on_with_the_rest() {
    for (lose, loss) in WAYS {
        let mut pair = Pair::new();
        let (mut ledger, here, there) = Ledger::new(&mut pair);
        for _ in 0..3 {
            ledger.post_each(&mut pair.a, &here, &there);
        }
        let cq = ledger.cqs[0];
        while ledger.given.0 == 0 {
            pair.a.relax();
            ledger.poll(&mut pair.a, cq, 1, loss).unwrap();
        }
        lose(&pair.a.host);
        find(&mut pair.a, loss);
        ledger.settle(&mut pair.a, loss);
        assert!(ledger.given.1 > 0);
    }
}

/// The completion queue of one core is split off, and so is a send queue with an open batch.
#[test]
fn queues_on_other_cores_get_theirs() {
    let mut pair = Pair::new();
    let (mut ledger, here, there) = Ledger::new(&mut pair);
    ledger.post_each(&mut pair.a, &here, &there);
    let cq = ledger.cqs[1];
    let mut queue: CompletionQueue<'_, Driver> = pair.a.verbs.take_cq(cq);
    let mut sends = pair.a.verbs.take_send(ledger.queues[2].qp);
    let mut batch = sends.batch();
    reset(&pair.a.host);
    assert_eq!(maintain(&mut pair.a).0, Error::DeviceReset);
    let mut take = |ledger: &mut Ledger| {
        let mut some = [Completion::EMPTY; 3];
        loop {
            match queue.poll(&mut some) {
                Ok(count) => ledger.give(cq, &some[..count], DeviceLoss::Reset),
                Err(error) => break assert_eq!(error, LOST),
            }
        }
    };
    take(&mut ledger);
    // What the batch posts has nowhere to go, and is flushed when it has ended.
    let wr_id = ledger.id();
    batch.post(&SendWr::write(there.remote(0), b"x").id(wr_id)).unwrap();
    drop(batch);
    ledger.queues[2].sends.push_back(Open { wr_id, signaled: false });
    take(&mut ledger);
    let refused = bareverbs::error::PostSendError::DeviceLost { loss: DeviceLoss::Reset };
    assert_eq!(sends.batch().post(&SendWr::write(there.remote(0), b"x")), Err(refused));
    pair.a.verbs.keep_cq(queue);
    pair.a.verbs.keep_send(sends);
    ledger.settle(&mut pair.a, DeviceLoss::Reset);
}

/// The teardown finds the loss by the first object that it destroys; what was posted is flushed nevertheless.
#[test]
fn in_the_teardown_every_request_is_given_once() {
    for (lose, loss) in WAYS.into_iter().filter(|(_, loss)| !matches!(loss, DeviceLoss::NoAnswer)).take(3) {
        let mut pair = Pair::new();
        let (mut ledger, here, there) = Ledger::new(&mut pair);
        ledger.post_each(&mut pair.a, &here, &there);
        lose(&pair.a.host);
        let qp = ledger.queues[0].qp;
        assert!(matches!(pair.a.verbs.destroy_qp(qp), Err(DestroyQpError::Device(_))));
        ledger.settle(&mut pair.a, loss);
        assert!(pair.a.into_driver().teardown().is_err());
    }
}

/// Nothing is sent, nothing is taken: each call fails at once with the reason, and a buffer comes back.
#[test]
fn every_call_after_the_loss_fails_at_once_and_takes_nothing() {
    let mut pair = Pair::new();
    let (ledger, here, _there) = Ledger::new(&mut pair);
    let (pd, cq, qp) = (here.info.pd, ledger.cqs[0], ledger.queues[0].qp);
    let init = pair.a.verbs.qp_info(qp).unwrap();
    reset(&pair.a.host);
    assert_eq!(maintain(&mut pair.a).0, Error::DeviceReset);
    let (start, before) = (pair.a.host.clock().now(), pair.a.verbs.provider().statistics());
    let bytes = pair.a.buffer(4096);
    let verbs = &mut pair.a.verbs;
    let device = Error::DeviceReset;
    for _ in 0..10 {
        let refused = verbs.reg_mr(pd, bytes.bytes(), ALL_ACCESS).err().unwrap();
        assert_eq!(refused.error, RegMrError::Device(device));
        assert!(refused.returned.is_some(), "its buffer");
        assert_eq!(verbs.create_cq(64), Err(CreateCqError::Device(device)));
        let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let init = QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap, sq_sig_all: false };
        assert_eq!(verbs.create_qp(&init), Err(CreateQpError::Device(device)));
        assert_eq!(verbs.query_qp(qp).err(), Some(QueryQpError::Device(device)));
        for state in [QpState::Reset, QpState::Err] {
            let moved = verbs.modify_qp(qp, &to_state(state), QpAttrMask::STATE);
            assert_eq!(moved, Err(ModifyQpError::Device(device)));
        }
        assert!(verbs.poll_event().is_err() && verbs.query_port(1).is_err() && verbs.alloc_pd().is_err());
        assert!(verbs.dereg_mr_raw(here.mr).is_err() && verbs.destroy_cq(cq).is_err());
        let loss = DeviceLoss::Reset;
        let op = SendOp::Send { payload: Payload::Sges(&[]) };
        assert_eq!(verbs.post_send(qp, &signaled(1, op)), Err(PostSendError::DeviceLost { loss }));
        assert_eq!(verbs.post_recv(qp, &RecvWr { wr_id: 1, sges: &[] }), Err(PostRecvError::DeviceLost { loss }));
        assert_eq!(verbs.req_notify_cq(cq, false), Err(NotifyCqError::DeviceLost { loss }));
        assert_eq!(verbs.poll_cq(cq, &mut [Completion::EMPTY]), Err(LOST));
    }
    let after = pair.a.verbs.provider().statistics();
    assert_eq!((after.commands, after.pages_used), (before.commands, before.pages_used));
    assert!(pair.a.host.clock().now().since(start) < Duration::from_millis(1), "at once");
    assert_eq!(pair.a.verbs.qp_info(qp).unwrap().cap, init.cap);
    assert_eq!(pair.a.verbs.mr_info(here.mr).unwrap(), here.info);
}
