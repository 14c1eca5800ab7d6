//! A driver that distrusts its device: whatever the device does wrong comes out as an error value, in bounded time, and
//! nothing is lost or half-made.

use bareverbs::error::{DestroyQpError, ModifyQpError, PostSendError, QueryQpError};
use core::ops::ControlFlow;
use core::time::Duration;
use std::sync::{Arc, Mutex};

use bareverbs::backend::Provider;
use bareverbs::error::{AllocPdError, CreateCqError, DeviceLoss, Errno, PollCqError, PollEventError, RegMrError};
use bareverbs::platform::{Clock, Instant};
use bareverbs::{
    Access, Completion, Event, MwType, Payload, PdHandle, QpAttrMask, QpHandle, QpInit, QpState, QpType, Qpn, RecvWr,
    SendFlags, SendOp, SendWr, WcStatus,
};
use bareverbs_mlx5::{BringUpError, Config, Error, Progress, Step};
use bareverbs_mlx5_spec::{CmdOpcode, CmdStatus};
use bareverbs_sim::fault::Fault;
use bareverbs_sim::in_process::{Host, World, WorldConfig};
use bareverbs_sim::trace::{Record, Tracer};
use bareverbs_sim::{DeviceConfig, DeviceCounts, HcaState, HealthReport};
use bareverbs_tests::{
    ALL_ACCESS, CAP, Connection, Driver, End, Node, Pair, Region, end, machine, rc_steps, refused, register, signaled, to_state,
};

/// Commands end soon here, so that a stuck one does not take a minute of simulated time.
const SHORT_TIMEOUTS: Config =
    Config { command_timeout: Duration::from_millis(20), reclaim_timeout: Duration::from_millis(20), ..Config::DEFAULT };

fn host() -> Host {
    World::new(WorldConfig::default()).add(DeviceConfig::with_lid(1)).unwrap()
}

fn ethernet_host() -> Host {
    World::new(WorldConfig::default()).add(DeviceConfig::with_lid(1).with_ethernet()).unwrap()
}

fn arm(host: &Host, fault: Fault) {
    host.with_device(|device| device.faults_mut().arm(fault));
}

/// Returns whether every fault has struck.
fn all_struck(host: &Host) -> bool {
    host.with_device(|device| device.faults_mut().is_empty())
}

fn status_of(opcode: u16, status: CmdStatus) -> (Fault, Error) {
    let status = status.code() as u8;
    (Fault::CommandStatus { opcode, status, syndrome: 0xabcd }, Error::CommandStatus { opcode, status, syndrome: 0xabcd })
}

/// The opcodes that the device executes, in order.
#[derive(Clone, Default)]
struct Opcodes(Arc<Mutex<Vec<u16>>>);

impl Tracer for Opcodes {
    fn record(&mut self, _: Instant, record: Record<'_>) {
        if let Record::Command { input, .. } = record {
            self.0.lock().unwrap().push(u16::from_be_bytes([input[0], input[1]]));
        }
    }
}

impl Opcodes {
    fn on(host: &Host) -> Self {
        let opcodes = Self::default();
        let listener = opcodes.clone();
        host.with_device(|device| device.set_tracer(Some(Box::new(listener))));
        opcodes
    }

    /// Returns each opcode once, in order of the first.
    fn take(&self) -> Vec<u16> {
        let mut seen = Vec::new();
        for opcode in std::mem::take(&mut *self.0.lock().unwrap()) {
            if !seen.contains(&opcode) {
                seen.push(opcode);
            }
        }
        seen
    }
}

/// Returns each step of the bring-up with the opcodes of its commands.
fn commands_of_steps(new_host: fn() -> Host) -> Vec<(Step, u16)> {
    let host = new_host();
    let opcodes = Opcodes::on(&host);
    let mut pairs = Vec::new();
    let mut last = None;
    let driver = Driver::bring_up_with(machine(&host), &SHORT_TIMEOUTS, |next| {
        pairs.extend(opcodes.take().into_iter().filter_map(|opcode| Some((last?, opcode))));
        if let Progress::Step(step) = next {
            last = Some(step);
        }
        ControlFlow::Continue(())
    });
    pairs.extend(opcodes.take().into_iter().filter_map(|opcode| Some((last?, opcode))));
    assert!(driver.is_ok());
    assert!(pairs.len() >= 18, "{pairs:?}");
    pairs
}

/// Returns the same for ports of both kinds.
fn commands_of_ports() -> impl Iterator<Item = (fn() -> Host, (Step, u16))> {
    let kinds: [fn() -> Host; 2] = [host, ethernet_host];
    kinds.into_iter().flat_map(|kind| commands_of_steps(kind).into_iter().map(move |command| (kind, command)))
}

/// Brings the device up with a fault armed before `at`, which must strike.
fn brought_up_with_fault(host: &Host, at: Step, fault: Fault) -> Result<Driver, BringUpError> {
    let before = host.clock().now();
    let brought = Driver::bring_up_with(machine(host), &SHORT_TIMEOUTS, |next| {
        if next == Progress::Step(at) {
            arm(host, fault);
        }
        ControlFlow::Continue(())
    });
    assert!(host.clock().now().since(before) < Duration::from_secs(1), "{at} with {fault:?} took too long");
    assert!(all_struck(host), "{fault:?} did not strike");
    brought.map_err(|(error, _)| error)
}

/// The same with a fault that must end in an error.
fn bring_up_with_fault(host: &Host, at: Step, fault: Fault) -> BringUpError {
    match brought_up_with_fault(host, at, fault) {
        Ok(_) => panic!("it came up in spite of {fault:?}"),
        Err(error) => error,
    }
}

/// Asserts that nothing is left of a bring-up that failed.
fn assert_clean(host: &Host, what: &str) {
    host.with_device(|device| {
        assert_eq!(device.counts(), DeviceCounts::default(), "{what}");
        assert_eq!(device.state(), HcaState::Disabled, "{what}");
        assert_eq!(device.audit().findings(), [], "{what}");
    });
}

/// Resets a device, which lets go of the memory.
fn reset(host: &Host) {
    host.with_device(|device| {
        device.reset();
        device.enable_function();
    });
}

/// Commands whose refusal is no failure, as in Linux: QUERY_ISSI, the registers of an Ethernet port, and the MTU of its function.
const DISPENSABLE: [(Step, CmdOpcode); 3] = [
    (Step::Issi, CmdOpcode::QueryIssi),
    (Step::EnablePort, CmdOpcode::AccessReg),
    (Step::EnablePort, CmdOpcode::ModifyNicVportContext),
];

#[test]
fn every_command_of_the_bring_up_refused() {
    for (new_host, (step, opcode)) in commands_of_ports() {
        let host = new_host();
        let (fault, cause) = status_of(opcode, CmdStatus::IntErr);
        if DISPENSABLE.iter().any(|(at, known)| (*at, known.code() as u16) == (step, opcode)) {
            assert!(brought_up_with_fault(&host, step, fault).unwrap().teardown().is_ok());
        } else {
            let error = bring_up_with_fault(&host, step, fault);
            assert_eq!(error, BringUpError { step, cause, pages_kept: 0, needs_reset: false });
            assert!(error.to_string().contains(&format!("{opcode:#x}")), "{error}");
        }
        assert_clean(&host, "refused");
        let delivery = Fault::DeliveryStatus { opcode, status: 5 };
        let error = bring_up_with_fault(&host, step, delivery);
        assert_eq!(
            error,
            BringUpError { step, cause: Error::CommandDelivery { opcode, status: 5 }, pages_kept: 0, needs_reset: false }
        );
        assert_clean(&host, &error.to_string());
        // The device is as good as new.
        let driver = Driver::bring_up(machine(&host), &SHORT_TIMEOUTS).map_err(|(error, _)| error).unwrap();
        assert!(driver.teardown().is_ok());
        assert_clean(&host, "after all");
    }
}

#[test]
fn every_command_of_the_bring_up_without_answer() {
    for (new_host, (step, opcode)) in commands_of_ports() {
        let host = new_host();
        let error = bring_up_with_fault(&host, step, Fault::StuckCommand { opcode });
        assert_eq!((error.step, error.cause), (step, Error::CommandTimeout { opcode }));
        assert_eq!((error.cause.errno(), error.needs_reset), (Errno::Etimedout, true), "the memory is not to be touched");
        let held = host.with_device(|device| device.counts().pages_held);
        assert!(error.pages_kept as usize >= held, "{error}: {} of {held}", error.pages_kept);
        reset(&host);
        let driver = Driver::bring_up(machine(&host), &SHORT_TIMEOUTS).map_err(|(error, _)| error).unwrap();
        assert!(driver.teardown().is_ok());
        assert_clean(&host, &error.to_string());
    }
}

#[test]
fn the_device_is_pulled_out_before_each_step() {
    // The last step of an InfiniBand port sends nothing, so that nobody notices.
    let (_, steps_of_infiniband) = Step::ALL.split_last().unwrap();
    let of_infiniband = steps_of_infiniband.iter().map(|at| (host(), *at));
    for (host, at) in of_infiniband.chain(Step::ALL.iter().map(|at| (ethernet_host(), *at))) {
        let before = host.clock().now();
        let brought = Driver::bring_up_with(machine(&host), &SHORT_TIMEOUTS, |next| {
            if next == Progress::Step(at) {
                host.with_device(|device| device.set_removed(true));
            }
            ControlFlow::Continue(())
        });
        let Err((error, _)) = brought else { panic!("it came up without a device, gone at {at}") };
        assert_eq!(error.cause, Error::DeviceGone, "at {at}: {error}");
        assert_eq!(error.cause.errno(), Errno::Enodev);
        assert!(error.step >= at, "{error}");
        // One that reads as ones may be in a reset: it has the time of its boot.
        let wait = match error.step {
            Step::WaitBoot => SHORT_TIMEOUTS.boot_timeout,
            Step::WaitInitialized => SHORT_TIMEOUTS.init_timeout,
            _ => Duration::ZERO,
        };
        assert!(host.clock().now().since(before) < wait + Duration::from_secs(1), "at {at}");
    }
}

/// A driven device with one object of each kind, and room for more.
struct Fixture {
    node: Node,
    end: End,
    region: Region,
    mw: bareverbs::MwHandle,
}

impl Fixture {
    fn new() -> Self {
        let mut node = Node::with_config(host(), &SHORT_TIMEOUTS);
        let end = end(&mut node, true);
        let region = node.region(end.pd, 4096, ALL_ACCESS);
        let mw = node.verbs.alloc_mw(end.pd, MwType::Type1).unwrap();
        Self { node, end, region, mw }
    }

    fn init(&self) -> QpInit {
        let End { pd, cq, .. } = self.end;
        QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap: CAP, sq_sig_all: true }
    }

    /// Does the `n`-th operation; gives its opcode and the device's error.
    fn operation(&mut self, n: usize) -> Option<(CmdOpcode, Result<(), Option<Error>>)> {
        let (buffer, pd, init) = (self.region.buffer.clone(), self.end.pd, self.init());
        let qp = self.end.qp;
        let verbs = &mut self.node.verbs;
        macro_rules! device {
            ($result:expr, $error:ident) => {
                $result.map(drop).map_err(|error| match error {
                    bareverbs::error::$error::Device(cause) => Some(cause),
                    _ => None,
                })
            };
        }
        Some(match n {
            0 => (CmdOpcode::AllocPd, device!(verbs.alloc_pd(), AllocPdError)),
            1 => (CmdOpcode::CreateMkey, device!(register(verbs, pd, buffer.bytes(), Access::empty()), RegMrError)),
            2 => (CmdOpcode::CreateMkey, device!(verbs.alloc_mw(pd, MwType::Type2), AllocMwError)),
            3 => (CmdOpcode::CreateCq, device!(verbs.create_cq(1000), CreateCqError)),
            4 => (CmdOpcode::CreateQp, device!(verbs.create_qp(&init), CreateQpError)),
            5 => (CmdOpcode::QueryQp, device!(verbs.query_qp(qp), QueryQpError)),
            6 => (CmdOpcode::Qp2Rst, device!(verbs.modify_qp(qp, &to_state(QpState::Reset), QpAttrMask::STATE), ModifyQpError)),
            7 => (CmdOpcode::Qp2Err, device!(verbs.modify_qp(qp, &to_state(QpState::Err), QpAttrMask::STATE), ModifyQpError)),
            8 => (CmdOpcode::QueryHcaVportContext, device!(verbs.query_port(1), QueryError)),
            9 => (CmdOpcode::QueryHcaVportGid, device!(verbs.query_gid(1, 0), QueryError)),
            10 => (CmdOpcode::QueryHcaVportPkey, device!(verbs.query_pkey(1, 0), QueryError)),
            11 => (CmdOpcode::AccessReg, device!(verbs.query_port(1), QueryError)),
            // What takes away comes last.
            12 => (CmdOpcode::DestroyMkey, device!(verbs.dealloc_mw(self.mw), DeallocMwError)),
            13 => (CmdOpcode::DestroyMkey, device!(verbs.dereg_mr_raw(self.region.mr), DeregMrError)),
            14 => (CmdOpcode::DestroyQp, device!(verbs.destroy_qp(qp), DestroyQpError)),
            15 => (CmdOpcode::DestroyCq, device!(verbs.destroy_cq(self.end.cq), DestroyCqError)),
            16 => (CmdOpcode::DeallocPd, device!(verbs.dealloc_pd(pd), DeallocPdError)),
            _ => return None,
        })
    }
}

/// Returns the opcodes of the operations, found on a device of its own.
fn opcodes() -> Vec<CmdOpcode> {
    let mut fixture = Fixture::new();
    // Objects that the first operations make would keep the last ones from succeeding; only the names count here.
    (0..).map_while(|n| fixture.operation(n)).map(|(opcode, _)| opcode).collect()
}

#[test]
fn every_command_of_operation_refused_and_undelivered() {
    let mut fixture = Fixture::new();
    for (n, opcode) in opcodes().into_iter().enumerate() {
        let opcode = opcode.code() as u16;
        let kinds = [
            status_of(opcode, CmdStatus::IntErr),
            status_of(opcode, CmdStatus::BadParam),
            (Fault::DeliveryStatus { opcode, status: 3 }, Error::CommandDelivery { opcode, status: 3 }),
        ];
        for (fault, cause) in kinds {
            let before = fixture.node.snapshot();
            arm(&fixture.node.host, fault);
            let (_, result) = fixture.operation(n).unwrap();
            // The registers of a port are no more than facts about it.
            let is_dispensable = n == 11 && matches!(fault, Fault::CommandStatus { .. });
            assert_eq!(result, if is_dispensable { Ok(()) } else { Err(Some(cause)) }, "operation {n}");
            assert!(all_struck(&fixture.node.host));
            assert_eq!(fixture.node.snapshot(), before, "operation {n} with {fault:?}");
        }
        // Those that take away succeed now; those that make are left alone, so that the domain can go at the end.
        if n >= 5 {
            assert_eq!(fixture.operation(n).unwrap().1, Ok(()), "operation {n}");
        }
    }
    fixture.node.assert_no_findings();
    let driver = fixture.node.into_driver();
    let (_, report) = driver.teardown().map_err(|(error, _)| error).unwrap();
    assert_eq!((report.pages_kept, report.needs_reset), (0, false));
}

/// The device is lost with the first command that it does not answer in time, whether it answers after that or never.
#[test]
fn every_command_of_operation_without_answer() {
    for (n, opcode) in opcodes().into_iter().enumerate() {
        let opcode = opcode.code() as u16;
        for fault in [Fault::StuckCommand { opcode }, Fault::LateCommand { opcode, delay: Duration::from_millis(30) }] {
            let mut fixture = Fixture::new();
            let host = fixture.node.host.clone();
            // What a destroy needs gone.
            for earlier in 12..n {
                fixture.operation(earlier).unwrap().1.unwrap();
            }
            let start = host.clock().now();
            arm(&host, fault);
            let reason = Err(Some(Error::CommandTimeout { opcode }));
            assert_eq!(fixture.operation(n).unwrap().1, reason, "operation {n}");
            assert!(host.clock().now().since(start) < Duration::from_millis(100));
            assert!(all_struck(&host));
            assert_lost(fixture, n, opcode);
        }
    }
}

/// Asserts that every verb fails at once with the reason and sends nothing, and that the device works again after a reset.
fn assert_lost(mut fixture: Fixture, n: usize, opcode: u16) {
    let reason = Error::CommandTimeout { opcode };
    let host = fixture.node.host.clone();
    let statistics = fixture.node.verbs.provider().statistics();
    let opcodes = Opcodes::on(&host);
    let start = host.clock().now();
    for wait in [0, 50] {
        host.world().advance(Duration::from_millis(wait));
        let now = host.clock().now();
        for again in 0..17 {
            match fixture.operation(again).unwrap().1 {
                Err(Some(error)) => assert_eq!(error, reason, "operation {again} after {n}"),
                // What the core refuses before it asks the device: the domain is in use; what it names is gone.
                Err(None) => assert!(again >= 12 || (4..8).contains(&again) && n > 14, "operation {again} after {n}"),
                Ok(()) => panic!("operation {again} after {n}"),
            }
        }
        let verbs = &mut fixture.node.verbs;
        assert_eq!(verbs.poll_event(), Err(PollEventError::Device(reason)), "operation {n}");
        assert_eq!(verbs.maintain(), Err(reason), "operation {n}");
        assert!(host.clock().now().since(now) < Duration::from_millis(1), "operation {n}: none of them waits");
    }
    assert_eq!(opcodes.take(), [], "operation {n}");
    assert_eq!(fixture.node.verbs.provider().statistics(), statistics, "operation {n}: no page is used or free again");
    fixture.node.assert_no_findings();

    let Err((error, back)) = fixture.node.into_driver().teardown() else { panic!("operation {n}: it was torn down") };
    assert_eq!((error.cause, error.report.needs_reset), (reason, true), "operation {n}");
    assert_eq!(error.report.pages_kept, statistics.pages_held, "operation {n}");
    assert!(host.clock().now().since(start) < Duration::from_millis(60), "operation {n}");
    assert_eq!(opcodes.take(), [], "operation {n}");
    reset(&host);
    let driver = Driver::bring_up(back, &SHORT_TIMEOUTS).map_err(|(error, _)| error).unwrap();
    let (_, report) = driver.teardown().map_err(|(error, _)| error).unwrap();
    assert_eq!((report.pages_kept, report.needs_reset), (0, false), "operation {n}");
    assert_clean(&host, "after the reset");
}

/// A buffer that stays out of use while a command about it may still be executed.
#[test]
fn the_buffer_of_a_region_without_answer_is_not_returned() {
    let mut fixture = Fixture::new();
    let opcode = CmdOpcode::CreateMkey.code() as u16;
    let memory = || fixture.node.host.memory(4096).whole();
    let (first, second) = (memory(), memory());
    let kept = fixture.node.verbs.reg_mr(fixture.end.pd, first, Access::LOCAL_WRITE).unwrap();
    arm(&fixture.node.host, Fault::LateCommand { opcode, delay: Duration::from_millis(30) });
    let refused = fixture.node.verbs.reg_mr(fixture.end.pd, second, Access::LOCAL_WRITE).unwrap_err();
    assert_eq!(refused.error, RegMrError::Device(Error::CommandTimeout { opcode }));
    assert!(refused.returned.is_none());
    let refused = fixture.node.verbs.dereg_mr(kept).unwrap_err();
    assert!(refused.returned.is_some(), "the region, with the buffer in it");
}

#[test]
fn every_command_of_the_teardown_fails() {
    let opcodes =
        [CmdOpcode::DestroyEq, CmdOpcode::DeallocUar, CmdOpcode::TeardownHca, CmdOpcode::ManagePages, CmdOpcode::DisableHca];
    for opcode in opcodes {
        let opcode = opcode.code() as u16;
        for fault in [status_of(opcode, CmdStatus::IntErr).0, Fault::StuckCommand { opcode }] {
            let host = host();
            let driver = Driver::bring_up(machine(&host), &SHORT_TIMEOUTS).map_err(|(error, _)| error).unwrap();
            arm(&host, fault);
            let start = host.clock().now();
            let Err((error, _)) = driver.teardown() else { panic!("{fault:?} unnoticed") };
            assert!(host.clock().now().since(start) < Duration::from_secs(1));
            assert_eq!(error.opcode.0, opcode, "{fault:?}: {error}");
            match fault {
                Fault::StuckCommand { .. } => assert_eq!(error.cause, Error::CommandTimeout { opcode }),
                _ => assert_eq!(error.cause, status_of(opcode, CmdStatus::IntErr).1),
            }
            // What the driver says that the firmware kept is what the firmware has, or had when it was disabled.
            let counts = host.with_device(|device| device.counts());
            assert_eq!(error.report.pages_kept as usize, counts.pages_held + counts.pages_lost, "{fault:?}: {error}");
        }
    }
}

/// Drivers for the teardown: of a port of each kind, and with verbs objects that are left.
fn drivers_to_tear_down() -> [fn() -> (Driver, Host); 3] {
    fn up(host: Host) -> (Driver, Host) {
        let driver = Driver::bring_up(machine(&host), &SHORT_TIMEOUTS).map_err(|(error, _)| error).unwrap();
        (driver, host)
    }
    [
        || up(host()),
        || up(ethernet_host()),
        || {
            let fixture = Fixture::new();
            let host = fixture.node.host.clone();
            (fixture.node.into_driver(), host)
        },
    ]
}

#[test]
fn the_device_is_pulled_out_after_each_command_of_the_teardown() {
    for (kind, new_driver) in drivers_to_tear_down().into_iter().enumerate() {
        let (driver, host) = new_driver();
        let opcodes = Opcodes::on(&host);
        driver.teardown().map_err(|(error, _)| error).unwrap();
        let expected = opcodes.take();
        let mut found = Vec::new();
        for writes in 0.. {
            assert!(writes < 200, "{kind}: the teardown has no end");
            let (driver, host) = new_driver();
            host.with_device(|device| device.remove_after(writes));
            let start = host.clock().now();
            let torn = driver.teardown();
            let what = format!("{kind}, after {writes} writes");
            assert!(host.clock().now().since(start) < Duration::from_secs(1), "{what}: it took too long");
            let Err((error, back)) = torn else { break };
            assert_eq!(error.cause, Error::DeviceGone, "{what}: {error}");
            assert!(error.report.needs_reset, "{what}: {error}");
            if !found.contains(&error.opcode.0) {
                found.push(error.opcode.0);
            }
            // The firmware was not asked for what it has, and the driver says so.
            let counts = host.with_device(|device| device.counts());
            assert_eq!(error.report.pages_kept as usize, counts.pages_held + counts.pages_lost, "{what}: {error}");
            // Back in its slot and reset, it works on the same memory.
            host.with_device(|device| device.set_removed(false));
            reset(&host);
            let driver = Driver::bring_up(back, &SHORT_TIMEOUTS).map_err(|(error, _)| error).unwrap();
            let (_, report) = driver.teardown().map_err(|(error, _)| error).unwrap();
            assert_eq!((report.pages_kept, report.needs_reset), (0, false), "{what}");
            assert_clean(&host, &what);
        }
        assert_eq!(found, expected, "{kind}: each command was the one that met the removal");
    }
}

// contract: events-device
#[test]
fn removal_in_operation() {
    let mut pair = Pair::new();
    let (a, b) = pair.connected();
    let region = pair.b.region(b.pd, 4096, ALL_ACCESS);
    let op = SendOp::Write { payload: Payload::Inline(b"x"), remote: region.remote(0) };
    pair.a.verbs.post_send(a.qp, &signaled(0, op)).unwrap();
    pair.world.advance(Duration::from_millis(1));
    pair.a.host.with_device(|device| device.set_removed(true));
    let start = pair.a.host.clock().now();
    let verbs = &mut pair.a.verbs;
    // The data path goes nowhere, without harm; what was written before is still there.
    verbs.post_send(a.qp, &signaled(1, op)).unwrap();
    verbs.post_recv(a.qp, &RecvWr { wr_id: 2, sges: &[] }).unwrap();
    verbs.req_notify_cq(a.cq, true).unwrap();
    let mut some = [Completion::EMPTY; 4];
    assert_eq!(verbs.poll_cq(a.cq, &mut some), Ok(1));
    assert_eq!(verbs.poll_cq(a.cq, &mut some), Ok(0));
    // The control path says so.
    let gone = Error::DeviceGone;
    assert_eq!(verbs.alloc_pd(), Err(AllocPdError::Device(gone)));
    assert_eq!(AllocPdError::Device(gone).errno(), Errno::Enodev);
    let bytes = region.buffer.part(0, 64);
    assert_eq!(register(verbs, a.pd, bytes, Access::empty()), Err(RegMrError::Device(gone)));
    assert_eq!(verbs.create_cq(4), Err(CreateCqError::Device(gone)));
    assert_eq!(verbs.query_qp(a.qp), Err(QueryQpError::Device(gone)));
    assert_eq!(verbs.destroy_qp(a.qp), Err(DestroyQpError::Device(gone)));
    assert!(verbs.qp_info(a.qp).is_ok(), "it is as before");
    assert_eq!(verbs.direct().health(), Err(gone));
    assert!(pair.a.host.clock().now().since(start) < Duration::from_secs(1));
    let used = pair.a.verbs.provider().statistics().pages_held;
    let Err((error, _)) = pair.a.into_driver().teardown() else { panic!("the teardown succeeded") };
    assert_eq!((error.cause, error.report.pages_kept), (gone, used));
}

#[test]
fn a_peer_that_is_removed_is_a_peer_that_does_not_answer() {
    let mut pair = Pair::new();
    let (a, b) = (end(&mut pair.a, true), end(&mut pair.b, true));
    pair.connect(&a, &b, &Connection { timeout: 6, retry_cnt: 2, ..Connection::default() });
    let there = pair.b.region(b.pd, 4096, ALL_ACCESS);
    pair.b.host.with_device(|device| device.set_removed(true));
    let op = SendOp::Write { payload: Payload::Inline(b"x"), remote: there.remote(0) };
    pair.a.verbs.post_send(a.qp, &signaled(1, op)).unwrap();
    assert_eq!(pair.a.completions(a.cq, 1)[0].status, WcStatus::RetryExcErr);
    pair.a.assert_no_findings();
}

// contract: events-device
#[test]
fn a_health_report_is_readable_and_a_fatal_one_ends_in_bounded_time() {
    let mut fixture = Fixture::new();
    let host = fixture.node.host.clone();
    assert!(fixture.node.verbs.direct().health().unwrap().is_well());
    // A report that wants no reset is readable, and everything goes on.
    let complaint = HealthReport { syndrome: 0x0e, extended: 0x1234, reset_required: false, severity: 4 };
    host.with_device(|device| device.set_health(complaint));
    host.world().advance(Duration::from_secs(1));
    let health = fixture.node.verbs.direct().health().unwrap();
    assert_eq!((health.syndrome, health.ext_syndrome, health.reset_wanted), (0x0e, 0x1234, false));
    assert!(health.is_well() && fixture.node.verbs.query_port(1).is_ok());

    host.with_device(|device| device.set_health(HealthReport { syndrome: 1, reset_required: true, ..complaint }));
    let event = fixture.node.event(|event| matches!(event, Event::DeviceFatal(..)).then_some(event));
    assert_eq!(event, Some(Event::DeviceFatal(1, 0x1234)));
    let health = fixture.node.verbs.direct().health().unwrap();
    assert!(health.reset_wanted && !health.is_well(), "{health:?}");
    // The firmware has stopped: commands and teardown end at once, not each at its deadline.
    let start = host.clock().now();
    refused!(fixture.node.verbs.alloc_pd(), Eio, AllocPdError::Device(Error::DeviceFatal { syndrome: 1 }));
    let Err((error, _)) = fixture.node.into_driver().teardown() else { panic!("the teardown succeeded") };
    assert_eq!(error.cause, Error::DeviceFatal { syndrome: 1 });
    assert!(error.report.pages_kept > 0, "{error:?}");
    assert!(host.clock().now().since(start) < Duration::from_millis(1));
}

#[test]
fn a_command_under_way_ends_when_the_firmware_reports_that_it_stopped() {
    let mut fixture = Fixture::new();
    let host = fixture.node.host.clone();
    let report = HealthReport { syndrome: 7, extended: 0, reset_required: true, severity: 1 };
    host.with_device(|device| device.set_health(report));
    let start = host.clock().now();
    refused!(fixture.node.verbs.alloc_pd(), Eio, AllocPdError::Device(Error::DeviceFatal { syndrome: 7 }));
    let took = host.clock().now().since(start);
    assert!(took < Duration::from_millis(200), "it looks ten times a second: {took:?}");
    refused!(fixture.node.verbs.alloc_pd(), Eio, AllocPdError::Device(Error::DeviceFatal { syndrome: 7 }));
}

#[test]
fn a_health_counter_that_stands_still() {
    let mut fixture = Fixture::new();
    let host = fixture.node.host.clone();
    let health = |node: &mut Node| {
        host.world().advance(Duration::from_secs(2));
        node.verbs.direct().health().unwrap()
    };
    assert!(health(&mut fixture.node).is_well());
    host.with_device(|device| device.freeze_health(true));
    for misses in 1..=5 {
        let health = health(&mut fixture.node);
        assert_eq!((health.misses, health.stuck, health.is_well()), (misses, misses >= 3, misses < 3));
    }
    host.with_device(|device| device.freeze_health(false));
    assert!(health(&mut fixture.node).is_well(), "it lives again");
}

const QUERY_ISSI: u16 = CmdOpcode::QueryIssi.code() as u16;

/// Two seconds later, maintains the device, which takes the time of register accesses. Returns the opcodes of its commands since the last look.
fn maintain_later(node: &mut Node, opcodes: &Opcodes) -> Result<Vec<u16>, Error> {
    let host = node.host.clone();
    host.world().advance(Duration::from_secs(2));
    let now = host.clock().now();
    let maintained = node.verbs.maintain();
    assert!(host.clock().now().since(now) < Duration::from_micros(1), "it waits for nothing");
    host.world().advance(Duration::from_millis(1));
    maintained.map(|_| opcodes.take())
}

#[test]
fn a_health_counter_that_pauses_loses_no_device_that_answers() {
    let mut node = Node::with_config(host(), &Config::DEFAULT);
    let host = node.host.clone();
    let opcodes = Opcodes::on(&host);
    assert_eq!(maintain_later(&mut node, &opcodes), Ok(vec![]), "a counter that moves needs no command");
    for pause in 0..4 {
        host.with_device(|device| device.freeze_health(true));
        for misses in 1..=5 {
            match pause {
                // Firmware without the command answers too, and so does firmware that takes its time.
                1 if misses >= 3 => arm(&host, status_of(QUERY_ISSI, CmdStatus::BadOp).0),
                2 if misses == 4 => arm(&host, Fault::LateCommand { opcode: QUERY_ISSI, delay: Duration::from_millis(800) }),
                _ => {}
            }
            assert_eq!(maintain_later(&mut node, &opcodes), Ok(if misses < 3 { vec![] } else { vec![QUERY_ISSI] }), "{misses}");
            // The next command waits for that answer.
            if misses != 5 {
                let pd = node.verbs.alloc_pd().unwrap();
                node.verbs.dealloc_pd(pd).unwrap();
                opcodes.take();
            }
        }
        assert!(node.verbs.direct().health().unwrap().stuck);
        host.with_device(|device| device.freeze_health(false));
        assert_eq!(maintain_later(&mut node, &opcodes), Ok(vec![]));
        assert!(node.verbs.direct().health().unwrap().is_well());
    }
    node.assert_no_findings();
    node.into_driver().teardown().map_err(|(error, _)| error).unwrap();
}

#[test]
fn firmware_that_does_not_answer_while_its_health_counter_stands_still_is_lost_in_time() {
    // With the default timeout of a command a probe has ten seconds, and six pass before it.
    for (config, answer) in [(SHORT_TIMEOUTS, SHORT_TIMEOUTS.command_timeout), (Config::DEFAULT, Duration::from_secs(10))] {
        for found_by in ["maintain", "command", "teardown"] {
            let mut node = Node::with_config(host(), &config);
            let end = end(&mut node, true);
            let host = node.host.clone();
            let opcodes = Opcodes::on(&host);
            maintain_later(&mut node, &opcodes).unwrap();
            host.with_device(|device| device.freeze_health(true));
            arm(&host, Fault::StuckCommand { opcode: QUERY_ISSI });
            let start = host.clock().now();
            for _ in 0..3 {
                maintain_later(&mut node, &opcodes).unwrap();
            }
            let lost = Error::CommandTimeout { opcode: QUERY_ISSI };
            match found_by {
                "maintain" => {
                    let error = (0..6).find_map(|_| maintain_later(&mut node, &opcodes).err());
                    assert_eq!(error, Some(lost), "{config:?}");
                }
                "command" => {
                    let timeout = Error::CommandTimeout { opcode: QUERY_ISSI };
                    assert_eq!(node.verbs.alloc_pd(), Err(AllocPdError::Device(timeout)));
                }
                _ => {
                    let Err((error, _)) = node.into_driver().teardown() else { panic!("the teardown succeeded") };
                    assert_eq!((error.cause, error.report.needs_reset), (lost, true));
                    continue;
                }
            }
            let took = host.clock().now().since(start);
            assert!(took < Duration::from_secs(9) + answer, "{took:?}, {found_by}");
            let polled = node.verbs.poll_cq(end.cq, &mut [Completion::EMPTY]);
            assert_eq!(polled, Err(PollCqError::DeviceLost { loss: DeviceLoss::NoAnswer }));
        }
    }
}

/// Moves a queue pair to INIT, which needs no peer.
fn to_init(node: &mut Node, qp: QpHandle) {
    let steps = rc_steps(&Connection::default(), bareverbs::Lid::new(2), Qpn::new(9), 0, 0);
    node.verbs.modify_qp(qp, &steps[0].0, steps[0].1).unwrap();
}

#[test]
fn device_errors_keep_what_was_posted() {
    let mut fixture = Fixture::new();
    let (qp, cq) = (fixture.end.qp, fixture.end.cq);
    to_init(&mut fixture.node, qp);
    for wr_id in 0..5 {
        fixture.node.verbs.post_recv(qp, &RecvWr { wr_id, sges: &[] }).unwrap();
    }
    let opcode = CmdOpcode::Qp2Err.code() as u16;
    arm(&fixture.node.host, status_of(opcode, CmdStatus::IntErr).0);
    let moved = fixture.node.verbs.modify_qp(qp, &to_state(QpState::Err), QpAttrMask::STATE);
    refused!(moved, Eio, ModifyQpError::Device(_));
    assert_eq!(fixture.node.verbs.qp_info(qp).unwrap().recvs, 5);
    fixture.node.verbs.modify_qp(qp, &to_state(QpState::Err), QpAttrMask::STATE).unwrap();
    let found: Vec<_> = fixture.node.completions(cq, 5).iter().map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(found, (0..5).map(|n| (n, WcStatus::WrFlushErr)).collect::<Vec<_>>());
    let wr = SendWr { wr_id: 1, flags: SendFlags::empty(), op: SendOp::Send { payload: Payload::Inline(b"x") } };
    refused!(fixture.node.verbs.post_send(qp, &wr), Enotconn, PostSendError::NotReady { .. });
    assert_eq!(fixture.node.verbs.provider().device_attr().phys_port_cnt, 1);
}

#[test]
fn a_device_that_was_reset_is_as_good_as_new() {
    let breaks: [fn(&mut bareverbs_sim::Device); 2] = [
        |device| device.set_removed(true),
        |device| device.set_health(HealthReport { syndrome: 1, reset_required: true, ..HealthReport::default() }),
    ];
    for break_it in breaks {
        let mut fixture = Fixture::new();
        let host = fixture.node.host.clone();
        host.with_device(break_it);
        assert!(fixture.node.verbs.alloc_pd().is_err());
        let Err((error, back)) = fixture.node.into_driver().teardown() else { panic!("the teardown succeeded") };
        assert!(error.report.pages_kept > 0);
        // Only a reset makes the device let go of the memory; after it the memory can be used again.
        host.with_device(|device| device.set_removed(false));
        reset(&host);
        let driver = Driver::bring_up(back, &SHORT_TIMEOUTS).map_err(|(error, _)| error).unwrap();
        let (_, report) = driver.teardown().map_err(|(error, _)| error).unwrap();
        assert_eq!(report.pages_kept, 0);
        assert_clean(&host, "after the reset");
    }
}

/// A small generator of its own (xorshift), so that a failure can be run again.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

/// Makes queues in place of others, unless the device refuses.
fn other_end(node: &mut Node, pd: PdHandle) -> Option<End> {
    let cq = node.verbs.create_cq(512).ok()?;
    let init = QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap: CAP, sq_sig_all: true };
    let Ok(qp) = node.verbs.create_qp(&init) else {
        let _ = node.verbs.destroy_cq(cq);
        return None;
    };
    Some(End { pd, cq, qp, qpn: node.verbs.qp_info(qp).unwrap().qpn })
}

// Shared receive queues, datagrams and XRC are those of `lying_device.rs`.
#[test]
fn whatever_the_device_does_the_driver_comes_to_an_end() {
    for seed in 1..=20_u64 {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut node = Node::with_config(host(), &SHORT_TIMEOUTS);
        let host = node.host.clone();
        let lid = node.verbs.query_port(1).unwrap().lid;
        let mut near = end(&mut node, true);
        // The queue pair is its own peer.
        let connect = |node: &mut Node, end: &End| {
            let _ = node.verbs.modify_qp(end.qp, &to_state(QpState::Reset), QpAttrMask::STATE);
            for (attr, mask) in rc_steps(&Connection { timeout: 4, retry_cnt: 1, ..Connection::default() }, lid, end.qpn, 5, 5)
            {
                let _ = node.verbs.modify_qp(end.qp, &attr, mask);
            }
        };
        connect(&mut node, &near);
        let region = node.region(near.pd, 4096, ALL_ACCESS);
        let mut cqn = node.verbs.cq_info(near.cq).unwrap().cqn.get();
        let start = host.clock().now();
        let (mut done, mut stops) = (0, false);
        for step in 0..300 {
            // An entry with opcode 15 counts as not written, and all behind it waits for ever: the program takes other queues.
            if stops
                && step % 10 == 0
                && let Some(new) = other_end(&mut node, near.pd)
            {
                let _ = (node.verbs.destroy_qp(near.qp), node.verbs.destroy_cq(near.cq));
                (near, stops) = (new, false);
                connect(&mut node, &near);
                cqn = node.verbs.cq_info(near.cq).unwrap().cqn.get();
            }
            let opcodes = [0x200, 0x202, 0x400, 0x401, 0x500, 0x501, 0x502, 0x503, 0x504, 0x50a, 0x50b, 0x762, 0x800, 0x801];
            let opcode = opcodes[dice.below(opcodes.len() as u64) as usize];
            let fault = match dice.below(24) {
                0 => Fault::DropCqe { cqn },
                1 => Fault::RepeatCqe { cqn },
                2 => Fault::WrongWqeCounter { cqn, counter: dice.below(1 << 16) as u16 },
                3 => Fault::ForeignQpn { cqn, qpn: dice.below(1 << 24) as u32 },
                4 => Fault::CqeOpcode { cqn, opcode: dice.below(16) as u8 },
                5 => Fault::EventType { event_type: dice.below(256) as u8 },
                6 => Fault::LostInterrupt { vector: dice.below(3) as u16 },
                7 => Fault::CommandStatus { opcode, status: 1 + dice.below(255) as u8, syndrome: 1 },
                8 => Fault::DeliveryStatus { opcode, status: 1 + dice.below(127) as u8 },
                // After that the device is lost: not at the beginning.
                9 if step > 250 => Fault::StuckCommand { opcode },
                _ => Fault::LostInterrupt { vector: 40 },
            };
            stops |= matches!(fault, Fault::CqeOpcode { opcode: 15, .. });
            arm(&host, fault);
            let verbs = &mut node.verbs;
            match dice.below(8) {
                0 => {
                    if let Ok(pd) = verbs.alloc_pd() {
                        let _ = verbs.dealloc_pd(pd);
                    }
                }
                1 => {
                    if let Ok(mr) = register(verbs, near.pd, region.buffer.bytes(), Access::empty()) {
                        let _ = verbs.dereg_mr_raw(mr);
                    }
                }
                2 => {
                    if let Ok(cq) = verbs.create_cq(10) {
                        let _ = verbs.destroy_cq(cq);
                    }
                }
                3 => {
                    let init = QpInit {
                        pd: near.pd,
                        qp_type: QpType::Rc,
                        send_cq: near.cq,
                        recv_cq: near.cq,
                        cap: CAP,
                        sq_sig_all: true,
                    };
                    if let Ok(qp) = verbs.create_qp(&init) {
                        let _ = verbs.destroy_qp(qp);
                    }
                }
                4 => {
                    let _ = (verbs.query_port(1), verbs.query_qp(near.qp), verbs.req_notify_cq(near.cq, false));
                }
                5 => {
                    let _ = verbs.poll_event();
                    connect(&mut node, &near);
                }
                _ => {
                    let sges = [region.sge(0, 64)];
                    let _ = verbs.post_recv(near.qp, &RecvWr { wr_id: 1, sges: &sges });
                    let _ = verbs.post_send(near.qp, &signaled(2, SendOp::Send { payload: Payload::Sges(&sges) }));
                    let remote = region.remote(64);
                    let _ = verbs.post_send(near.qp, &signaled(3, SendOp::Write { payload: Payload::Inline(b"x"), remote }));
                }
            }
            host.world().advance(Duration::from_micros(200));
            let mut some = [Completion::EMPTY; 4];
            for _ in 0..8 {
                done += node.verbs.poll_cq(near.cq, &mut some).unwrap_or(0);
            }
        }
        assert!(host.clock().now().since(start) < Duration::from_secs(5), "seed {seed}");
        assert!(done > 20, "seed {seed}: only {done} completions came through");
        // Whether it can say that all is well depends on what was armed last; that it ends does not.
        match node.into_driver().teardown() {
            Ok((_, report)) => assert_eq!(report.pages_kept, 0, "seed {seed}"),
            Err((error, _)) => assert!(!error.to_string().is_empty()),
        }
        let findings = host.with_device(|device| device.audit().findings().to_vec());
        assert!(findings.is_empty(), "seed {seed}: {findings:?}");
    }
}
