//! The lines that the driver logs: each step, each error with its facts, each recovery. The frames are decoded as a host does
//! it.

use core::ops::ControlFlow;
use core::time::Duration;
use std::iter;

use bareverbs::error::ModifyQpError;
use bareverbs::storage::Storage;
use bareverbs::{
    Completion, Event, MwType, Payload, QpAttr, QpAttrMask, QpInit, QpState, QpType, SendOp, Verbs, WcStatus, storage,
};
use bareverbs_mlx5::{Config, Step};
use bareverbs_mlx5_spec::{CmdOpcode, CmdStatus};
use bareverbs_sim::HealthReport;
use bareverbs_sim::fault::Fault;
use bareverbs_sim::in_process::{Host, World, WorldConfig};
use bareverbs_tests::{ALL_ACCESS, CAP, Connection, Driver, End, Node, Pair, end, instant, machine, signaled, to_state};
use log_tests::Log;

/// Commands end soon here, so that a stuck one does not take a minute of simulated time.
const SHORT_TIMEOUTS: Config = Config { command_timeout: Duration::from_millis(20), ..Config::DEFAULT };

fn host() -> Host {
    World::new(WorldConfig::default()).add(instant(1)).unwrap()
}

fn arm(host: &Host, fault: Fault) {
    host.with_device(|device| device.faults_mut().arm(fault));
}

/// Returns the lines since the last call but those of single commands.
fn lines(log: &Log) -> Vec<String> {
    log.lines().unwrap().into_iter().filter(|line| !line.starts_with("TRACE")).collect()
}

#[track_caller]
fn assert_lines(log: &Log, expected: &[&str]) {
    let found = lines(log);
    assert_eq!(found, expected, "{found:#?}");
}

/// The log lines of every bring-up of such a host, up to the step before INIT_HCA.
const UP_TO_INIT_HCA: [&str; 18] = [
    "DEBUG bring-up: CheckArena",
    "DEBUG bring-up: WaitBoot",
    "DEBUG bring-up: SetCommandQueue",
    "DEBUG command queue of 2^5 entries, 2^6 bytes apart",
    "DEBUG bring-up: WaitInitialized",
    "DEBUG bring-up: EnableHca",
    "DEBUG bring-up: Issi",
    "DEBUG interface steps offered: 3",
    "DEBUG bring-up: BootPages",
    "DEBUG the firmware needs 17 pages for function 0",
    "DEBUG the firmware was given 17 pages for function 0",
    "DEBUG bring-up: HostEndianness",
    "DEBUG bring-up: SetCapabilities",
    "DEBUG bring-up: AtomicCapabilities",
    "DEBUG bring-up: RoceCapabilities",
    "DEBUG bring-up: InitPages",
    "DEBUG the firmware needs 41 pages for function 0",
    "DEBUG the firmware was given 41 pages for function 0",
];

#[test]
fn every_step_up_and_down() {
    let log = Log::new().unwrap();
    let node = Node::with_config(host(), &SHORT_TIMEOUTS);
    let all = log.lines().unwrap();
    let steps: Vec<_> = all.iter().filter_map(|line| line.strip_prefix("DEBUG bring-up: ")).collect();
    assert_eq!(steps, Step::ALL.iter().map(ToString::to_string).collect::<Vec<_>>());
    let commands: Vec<_> = all.iter().filter_map(|line| line.strip_prefix("TRACE command ")).collect();
    assert_eq!(commands.len() as u32, node.verbs.provider().statistics().commands);
    assert_eq!(commands[..3], ["EnableHca in slot 0", "QueryIssi in slot 0", "SetIssi in slot 0"]);
    assert!(commands.contains(&"ManagePages in slot 31"), "{commands:?}");

    let expected = [
        "DEBUG bring-up: InitHca",
        "DEBUG bring-up: ReadCapabilities",
        "DEBUG windows true, atomics true",
        "DEBUG bring-up: QueryAdapter",
        "DEBUG bring-up: QueryPort",
        "DEBUG bring-up: AllocUar",
        "DEBUG UAR page 8, BlueFlame halves of 0 bytes",
        "DEBUG bring-up: AsyncEq",
        "DEBUG event queue 1 of 256 entries, vector 0",
        "DEBUG bring-up: PagesEq",
        "DEBUG event queue 2 of 64 entries, vector 0",
        "DEBUG bring-up: CompletionEqs",
        "DEBUG event queue 3 of 256 entries, vector 1",
        "DEBUG bring-up: EnablePort",
        "INFO firmware 28.39.1002 is up, it has 58 pages",
    ];
    let found: Vec<_> = all.iter().map(String::as_str).filter(|line| !line.starts_with("TRACE")).collect();
    assert_eq!(found, [&UP_TO_INIT_HCA[..], &expected].concat(), "{found:#?}");
    node.into_driver().teardown().map_err(|(error, _)| error).unwrap();
    let expected = [
        "DEBUG teardown: 0 completion queues are left",
        "DEBUG DestroyEq of 3",
        "DEBUG teardown: DestroyEq",
        "DEBUG DestroyEq of 2",
        "DEBUG teardown: DestroyEq",
        "DEBUG DestroyEq of 1",
        "DEBUG teardown: DestroyEq",
        "DEBUG DeallocUar of 8",
        "DEBUG teardown: DeallocUar",
        "DEBUG teardown: TeardownHca",
        "DEBUG the firmware returned 58 pages of function 0",
        "DEBUG teardown: ManagePages",
        "DEBUG teardown: DisableHca",
        "INFO teardown: the firmware kept 0 pages, a reset is needed: false",
    ];
    assert_lines(&log, &expected);
}

#[test]
fn a_bring_up_that_fails_and_is_undone() {
    let log = Log::new().unwrap();
    let host = host();
    let opcode = CmdOpcode::InitHca.code() as u16;
    let status = CmdStatus::IntErr.code() as u8;
    arm(&host, Fault::CommandStatus { opcode, status, syndrome: 1234 });
    assert!(Driver::bring_up(machine(&host), &SHORT_TIMEOUTS).is_err());
    let expected = [
        "DEBUG bring-up: InitHca",
        "DEBUG command InitHca failed: CommandStatus { status: 1, opcode: 258, syndrome: 1234 }",
        "ERROR bring-up failed at InitHca: CommandStatus { status: 1, opcode: 258, syndrome: 1234 }",
        "DEBUG teardown: 0 completion queues are left",
        "DEBUG the firmware returned 58 pages of function 0",
        "DEBUG teardown: ManagePages",
        "DEBUG teardown: DisableHca",
        "INFO teardown: the firmware kept 0 pages, a reset is needed: false",
    ];
    assert_lines(&log, &[&UP_TO_INIT_HCA[..], &expected].concat());
    assert!(Driver::bring_up_with(machine(&host), &SHORT_TIMEOUTS, |_| ControlFlow::Break(())).is_err());
    let expected = [
        "DEBUG bring-up: CheckArena",
        "ERROR bring-up failed at CheckArena: Stopped",
        "DEBUG teardown: 0 completion queues are left",
        "INFO teardown: the firmware kept 0 pages, a reset is needed: false",
    ];
    assert_lines(&log, &expected);
}

#[test]
fn a_command_without_answer() {
    let log = Log::new().unwrap();
    let mut node = Node::with_config(host(), &SHORT_TIMEOUTS);
    log.lines().unwrap();
    let opcode = CmdOpcode::AllocPd.code() as u16;
    arm(&node.host, Fault::LateCommand { opcode, delay: Duration::from_millis(30) });
    assert!(node.verbs.alloc_pd().is_err());
    let expected = [
        "TRACE command AllocPd in slot 0",
        "ERROR command AllocPd in slot 0 timed out: the device is lost",
        "DEBUG command AllocPd failed: CommandTimeout { opcode: 2048 }",
        "ERROR alloc_pd failed: CommandTimeout { opcode: 2048 }",
    ];
    assert_eq!(log.lines().unwrap(), expected);
    node.host.world().advance(Duration::from_millis(20));
    assert!(node.verbs.query_gid(1, 0).is_err());
    assert_eq!(log.lines().unwrap(), ["ERROR query_gid failed: CommandTimeout { opcode: 2048 }"]);
    assert!(node.into_driver().teardown().is_err());
    let found = lines(&log);
    let expected =
        ["DEBUG teardown: 0 completion queues are left", "ERROR teardown failed at DestroyEq: CommandTimeout { opcode: 2048 }"];
    assert_eq!(found[..2], expected);
    let last = &found[found.len() - 1];
    assert!(last.starts_with("INFO teardown: the firmware kept ") && last.ends_with("a reset is needed: true"), "{last}");
}

#[test]
fn pages_on_request_of_the_firmware() {
    let log = Log::new().unwrap();
    // Room for one request.
    let config = Config { firmware_pages: 65, ..SHORT_TIMEOUTS };
    let host = host();
    let driver = Driver::bring_up(machine(&host), &config).map_err(|(error, _)| error).unwrap();
    let mut tables: Box<storage![Driver; pds: 1, mws: 2400]> = Box::new(Storage::new([]));
    let mut verbs = Verbs::new(driver, &mut *tables);
    log.lines().unwrap();
    let pd = verbs.alloc_pd().unwrap();
    let windows: Vec<_> = iter::from_fn(|| verbs.alloc_mw(pd, MwType::Type1).ok()).collect();
    let of_pages = || lines(&log).into_iter().filter(|line| line.contains("pages")).collect::<Vec<_>>();
    let expected = [
        "DEBUG the firmware requests 5 pages for function 0",
        "DEBUG the firmware was given 5 pages for function 0",
        "DEBUG the firmware requests 5 pages for function 0",
        "WARN the firmware wants 5 pages for function 0, 2 are allowed",
        "WARN 5 pages for function 0 were refused: PageLimit { allowed: 2, wanted: 5 }",
    ];
    assert_eq!(of_pages(), expected);
    for window in windows {
        verbs.dealloc_mw(window).unwrap();
    }
    while verbs.poll_event().unwrap().is_some() {}
    assert_eq!(of_pages(), [""; 0], "not while objects go");
    // The firmware gives pages back once nothing has happened for seconds: those that it has asked for and was given.
    host.world().advance(Duration::from_secs(6));
    while verbs.poll_event().unwrap().is_some() {}
    let expected = ["DEBUG the firmware requests -5 pages for function 0", "DEBUG the firmware returned 5 pages of function 0"];
    assert_eq!(of_pages(), expected);
}

#[test]
fn a_device_that_stops_and_one_that_is_gone() {
    let log = Log::new().unwrap();
    let mut node = Node::with_config(host(), &SHORT_TIMEOUTS);
    node.verbs.create_cq(16).unwrap();
    log.lines().unwrap();
    let report = HealthReport { syndrome: 7, extended: 0x12, reset_required: true, severity: 1 };
    node.host.with_device(|device| device.set_health(report));
    let event = node.event(Some);
    assert_eq!(event, Some(Event::DeviceFatal(7, 0x12)));
    for _ in 0..3 {
        assert!(node.verbs.maintain().is_err());
    }
    assert!(node.verbs.alloc_pd().is_err());
    let expected = [
        "ERROR the device reports an internal error, health syndrome 7, 12",
        "ERROR 1 completion queues are lost with their device: Fatal",
        "DEBUG event: DeviceFatal(7, 18)",
        "ERROR alloc_pd failed: DeviceFatal { syndrome: 7 }",
    ];
    assert_lines(&log, &expected);

    let mut node = Node::with_config(host(), &SHORT_TIMEOUTS);
    log.lines().unwrap();
    node.host.with_device(|device| device.set_removed(true));
    assert!(node.verbs.alloc_pd().is_err());
    let expected =
        ["ERROR the device is gone", "DEBUG command AllocPd failed: DeviceGone", "ERROR alloc_pd failed: DeviceGone"];
    assert_lines(&log, &expected);
    assert!(node.into_driver().teardown().is_err());
    let found = lines(&log);
    assert_eq!(found[1], "ERROR teardown failed at DestroyEq: DeviceGone");
    assert_eq!(found[found.len() - 1], "INFO teardown: the firmware kept 58 pages, a reset is needed: true");
}

#[test]
fn queue_pairs_that_break_and_drain() {
    let log = Log::new().unwrap();
    let mut pair = Pair::new();
    let (a, b) = (end(&mut pair.a, true), end(&mut pair.b, true));
    pair.connect(&a, &b, &Connection { timeout: 6, retry_cnt: 2, ..Connection::default() });
    let there = pair.b.region(b.pd, 4096, ALL_ACCESS);
    log.lines().unwrap();
    // The common case of the data path logs nothing.
    let op = SendOp::Write { payload: Payload::Inline(b"x"), remote: there.remote(0) };
    pair.a.verbs.post_send(a.qp, &signaled(1, op)).unwrap();
    assert_eq!(pair.a.completions(a.cq, 1)[0].status, WcStatus::Success);
    assert_eq!(log.lines().unwrap(), [""; 0]);

    pair.b.host.with_device(|device| device.set_removed(true));
    pair.a.verbs.post_send(a.qp, &signaled(2, op)).unwrap();
    assert_eq!(pair.a.completions(a.cq, 1)[0].status, WcStatus::RetryExcErr);
    assert_lines(&log, &["WARN a send of queue pair Qpn(0x2) failed: RetryExcErr"]);

    // Its completion queue is elsewhere, and is asked to drop what is left.
    let mut queue = pair.a.verbs.take_cq(a.cq);
    pair.a.verbs.modify_qp(a.qp, &to_state(QpState::Reset), QpAttrMask::STATE).unwrap();
    let init = QpAttr { port_num: 1, ..to_state(QpState::Init) };
    let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
    let refused = pair.a.verbs.verbs_mut().modify_qp(a.qp, &init, mask);
    assert_eq!(refused, Err(ModifyQpError::Draining));
    assert_eq!(queue.poll(&mut [Completion::EMPTY; 4]), Ok(0));
    pair.a.verbs.modify_qp(a.qp, &init, mask).unwrap();
    // A handle is an index and a generation, which begins at a number of the device's.
    let handle = format!("{:?}", a.qp);
    let expected = [
        "DEBUG queue pair QP: Err to Reset",
        "DEBUG queue pair QP is still draining",
        "DEBUG queue pair QP is drained",
        "DEBUG queue pair QP: Reset to Init",
    ];
    assert_eq!(lines(&log), expected.map(|line| line.replace("QP", &handle)));
}

#[test]
fn a_completion_queue_that_overran() {
    let log = Log::new().unwrap();
    let mut pair = Pair::new();
    let pd = pair.a.verbs.alloc_pd().unwrap();
    let cq = pair.a.verbs.create_cq(4).unwrap();
    let init = QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap: CAP, sq_sig_all: true };
    let qp = pair.a.verbs.create_qp(&init).unwrap();
    let qpn = pair.a.verbs.qp_info(qp).unwrap().qpn;
    let (a, b) = (End { pd, cq, qp, qpn }, end(&mut pair.b, true));
    pair.connect(&a, &b, &Connection::default());
    let there = pair.b.region(b.pd, 4096, ALL_ACCESS);
    log.lines().unwrap();
    for n in 0..6 {
        let op = SendOp::Write { payload: Payload::Inline(b"x"), remote: there.remote(0) };
        pair.a.verbs.post_send(qp, &signaled(n, op)).unwrap();
    }
    assert_eq!(pair.a.event(|event| matches!(event, Event::QpFatal(_)).then_some(())), Some(()));
    let found = lines(&log);
    let expected = [
        format!("ERROR completion queue {cq:?} is broken, syndrome 1"),
        "DEBUG event: CqError(Cqn(0x1), 1)".to_owned(),
        format!("WARN the device has moved queue pair {qp:?} to Err"),
        "DEBUG event: QpFatal(Qpn(0x2))".to_owned(),
    ];
    assert_eq!(found, expected, "{found:#?}");
}

#[test]
fn events_that_were_lost() {
    let log = Log::new().unwrap();
    let mut node = Node::with_config(host(), &Config { async_events: 64, ..SHORT_TIMEOUTS });
    log.lines().unwrap();
    for _ in 0..40 {
        node.host.with_device(|device| device.set_link(false));
        node.host.with_device(|device| device.set_link(true));
    }
    while node.verbs.poll_event().unwrap().is_some() {}
    let found = lines(&log);
    assert_eq!(found[0], "DEBUG event: PortDown(1)");
    let full = "WARN the queue of asynchronous events was full: some may be lost";
    assert_eq!(found.iter().filter(|line| *line == full).count(), 1, "{found:#?}");
    assert!(found.iter().any(|line| line == "DEBUG event: Overflow"), "{found:#?}");
}
