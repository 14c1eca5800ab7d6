//! Bring-up and teardown of the driver on the simulated device, and every way in which they can fail.

use core::ops::ControlFlow;
use core::time::Duration;
use std::sync::{Arc, Mutex};

use bareverbs::backend::Provider;
use bareverbs::error::{AllocPdError, Errno};
use bareverbs::platform::{Clock, Instant};
use bareverbs::storage::Storage;
use bareverbs::{
    Access, AddressVector, Gid, GlobalRoute, Mtu, MwType, Payload, PhysState, PortAttr, PortState, QpAttr, QpInit, QpType,
    SendOp, Verbs, WcStatus, storage,
};
use bareverbs_mlx5::{BringUpError, Config, Error, EthernetConfig, Mlx5, Progress, Step};
use bareverbs_mlx5_spec::{CapabilityType, CmdHcaCap, CmdIn, CmdOpcode, CmdStatus, CreateEqIn, Eqc, Layout, SetHcaCapIn, View};
use bareverbs_sim::fault::Fault;
use bareverbs_sim::in_process::{Host, SimPlatform, World, WorldConfig};
use bareverbs_sim::trace::{Record, Tracer};
use bareverbs_sim::{DeviceConfig, PageDemand, Profile};
use bareverbs_tests::{ALL_ACCESS, CAP, Driver, Node, driver_config, end, instant, machine, pattern, signaled, verbs};

fn host(config: DeviceConfig) -> Host {
    World::new(WorldConfig::default()).add(config).unwrap()
}

fn up(host: &Host) -> Driver {
    match Driver::bring_up(machine(host), &driver_config(host)) {
        Ok(driver) => driver,
        Err((error, _)) => panic!("{error}"),
    }
}

fn refused(host: &Host, config: &Config) -> BringUpError {
    match Driver::bring_up(machine(host), config) {
        Ok(_) => panic!("it came up"),
        Err((error, _)) => error,
    }
}

/// log2 of the entries of each event queue that is made.
#[derive(Clone, Default)]
struct EventQueues(Arc<Mutex<Vec<u32>>>);

impl Tracer for EventQueues {
    fn record(&mut self, _: Instant, record: Record<'_>) {
        let Record::Command { input, .. } = record else { return };
        if View::<CmdIn>::new(input).unwrap().get(CmdIn::OPCODE) == CmdOpcode::CreateEq.code() {
            let context = View::<CreateEqIn>::new(input).unwrap().sub(CreateEqIn::EQ_CONTEXT_ENTRY);
            self.0.lock().unwrap().push(context.get(Eqc::LOG_EQ_SIZE));
        }
    }
}

#[test]
fn event_queues_have_at_least_as_many_entries_as_configured() {
    let host = host(instant(1));
    for (async_events, log_size) in [(0, 6), (1, 6), (64, 6), (65, 7), (100, 7), (1024, 10)] {
        let made = EventQueues::default();
        host.with_device(|device| device.set_tracer(Some(Box::new(made.clone()))));
        let config = Config { async_events, page_events: 129, ..driver_config(&host) };
        let driver = Driver::bring_up(machine(&host), &config).map_err(|(error, _)| error).unwrap();
        assert_eq!(made.0.lock().unwrap()[..2], [log_size, 8], "{async_events} entries");
        driver.teardown().map_err(|(error, _)| error).unwrap();
    }
    for async_events in [65_537, u32::MAX] {
        let error = refused(&host, &Config { async_events, ..driver_config(&host) });
        assert_eq!((error.step, error.cause), (Step::AsyncEq, Error::LimitExceeded { limit: 65_536 }));
    }
}

/// A driver that takes a virtual function for a physical one is refused its registers.
#[test]
fn a_virtual_function_has_no_registers_of_the_physical_one() {
    let host = host(DeviceConfig::profile(Profile::ConnectX6Vf, 1));
    let error = refused(&host, &Config::DEFAULT);
    assert!(matches!((error.step, error.cause), (Step::HostEndianness, Error::CommandStatus { status: 3, .. })), "{error}");
    down(up(&host));
}

fn down(driver: Driver) -> bareverbs_mlx5::TeardownReport {
    match driver.teardown() {
        Ok((_, report)) => report,
        Err((error, _)) => panic!("{error}"),
    }
}

fn no_findings(host: &Host) {
    let findings = host.with_device(|device| device.audit().findings().to_vec());
    assert!(findings.is_empty(), "{findings:?}");
}

/// log2 of the queue pairs that the driver asks for.
const LOG_MAX_QP: u8 = 11;

#[test]
fn comes_up_goes_down_and_every_page_is_back() {
    for profile in Profile::ALL {
        comes_up_and_goes_down(DeviceConfig::profile(profile, 7));
    }
}

fn comes_up_and_goes_down(config: DeviceConfig) {
    let (pages, until_active) = (config.pages, config.link_training + config.lid_delay);
    let host = host(config);
    for _ in 0..3 {
        let mut driver = up(&host);
        host.world().advance(until_active);
        let port = driver.query_port(1).unwrap();
        assert_eq!(port.state, PortState::Active);
        assert_eq!(port.lid.get(), 7);
        assert_eq!(driver.query_pkey(1, 0), Ok(0xffff));
        let gid = driver.query_gid(1, 0).unwrap();
        assert_eq!(gid.0[8..], port.port_guid.0.to_be_bytes());
        assert_eq!(driver.query_port(2), Err(Error::NoPort { port: 2 }));
        let stats = driver.statistics();
        assert_eq!(stats.pages_held, stats.pages_given);
        assert!(stats.pages_held >= pages.boot + pages.init_for(LOG_MAX_QP));
        let report = down(driver);
        assert_eq!((report.pages_kept, report.needs_reset, report.cqs_left), (0, false, 0));
        assert_eq!(report.pages_given, report.pages_back);
    }
    no_findings(&host);
}

#[test]
fn without_pages_with_blue_flame_with_signed_inputs() {
    for (pages, blue_flame, signed) in
        [(PageDemand::NONE, false, false), (PageDemand::FEW, true, false), (PageDemand::FEW, false, true)]
    {
        let host = host(DeviceConfig { pages, blue_flame, command_checksum: signed, ..DeviceConfig::with_lid(1) });
        let config = Config { blue_flame, ..Config::DEFAULT };
        match Driver::bring_up(machine(&host), &config) {
            Ok(driver) => assert_eq!(down(driver).pages_kept, 0),
            Err((error, _)) => panic!("{pages:?} {blue_flame} {signed}: {error}"),
        }
        no_findings(&host);
    }
}

/// A card whose queues have the real-time clock alone refuses contexts that ask for stamps of the free-running one.
#[test]
fn queues_are_created_on_a_card_with_a_real_time_clock() {
    let world = World::new(WorldConfig::default());
    for (lid, on_ethernet) in [(1, false), (2, true)] {
        let config = DeviceConfig { real_time_clock: true, ..DeviceConfig::profile(Profile::Instant, lid) };
        let mut node = Node::new(world.add(if on_ethernet { config.with_ethernet() } else { config }).unwrap());
        let (pd, cq) = (node.verbs.alloc_pd().unwrap(), node.verbs.create_cq(16).unwrap());
        for qp_type in [QpType::Rc, QpType::Ud] {
            let init = QpInit { pd, qp_type, send_cq: cq, recv_cq: cq, cap: CAP, sq_sig_all: true };
            let created = node.verbs.create_qp(&init).map(drop);
            assert_eq!(created, Ok(()), "{qp_type:?}, Ethernet: {on_ethernet}");
        }
        if on_ethernet {
            assert_eq!(node.verbs.direct().open_ethernet(&EthernetConfig::DEFAULT), Ok(()));
        }
        no_findings(&node.host);
    }
}

/// Registers of a port: PMTU, PTYS, PAOS.
const PORT_REGISTERS: [u16; 3] = [0x5003, 0x5004, 0x5006];

/// The firmware of a restricted host refuses registers that no verb needs, one or all of them, also to a virtual function.
#[test]
fn a_function_whose_port_registers_are_refused_moves_data() {
    let alone = PORT_REGISTERS.map(|register| vec![register]);
    for refused_registers in alone.into_iter().chain([PORT_REGISTERS.to_vec()]) {
        for (virtual_function, on_ethernet) in [(false, false), (true, false), (false, true), (true, true)] {
            let which = format!("{refused_registers:x?}, virtual: {virtual_function}, Ethernet: {on_ethernet}");
            let world = World::new(WorldConfig::default());
            let mut nodes = [1, 2].map(|lid| {
                let config = DeviceConfig { virtual_function, refused_registers: refused_registers.clone(), ..instant(lid) };
                Node::new(world.add(if on_ethernet { config.with_ethernet() } else { config }).unwrap())
            });
            let ends = nodes.each_mut().map(|node| end(node, true));
            let ports = nodes.each_mut().map(|node| node.verbs.query_port(1).unwrap());
            for (from, to) in [(0, 1), (1, 0)] {
                let PortAttr { lid, mac, active_mtu, .. } = ports[to];
                let route = GlobalRoute { dgid: Gid::link_local(mac), hop_limit: 64, ..GlobalRoute::default() };
                let (grh, dmac) = (on_ethernet.then_some(route), on_ethernet.then_some(mac));
                let attr = QpAttr {
                    access: Access::REMOTE_WRITE,
                    port_num: 1,
                    av: AddressVector { dlid: lid, port_num: 1, grh, dmac, ..AddressVector::default() },
                    path_mtu: active_mtu,
                    dest_qpn: ends[to].qpn,
                    timeout: 14,
                    retry_cnt: 7,
                    rnr_retry: 7,
                    min_rnr_timer: 1,
                    ..QpAttr::default()
                };
                nodes[from].verbs.modify_qp_to_rts(ends[from].qp, &attr).unwrap();
            }
            let ([mut a, mut b], [near, far]) = (nodes, ends);
            let (mut from, into) = (a.region(near.pd, 4096, ALL_ACCESS), b.region(far.pd, 4096, ALL_ACCESS));
            from.buffer.write(0, &pattern(7, 4096));
            let op = SendOp::Write { payload: Payload::Sges(&[from.sge(0, 4096)]), remote: into.remote(0) };
            a.verbs.post_send(near.qp, &signaled(1, op)).unwrap();
            assert_eq!(a.completions(near.cq, 1)[0].status, WcStatus::Success, "{which}");
            assert_eq!(into.buffer.read(0, 4096), pattern(7, 4096), "{which}");
            let port = a.verbs.query_port(1).unwrap();
            assert_eq!((port.state, port.phys_state), (PortState::Active, PhysState::LinkUp), "{which}");
            // The MTU of the function's own context where there is one; Linux takes 256 for an InfiniBand port (`mlx5_mtu_to_ib_mtu`).
            let mtu = match (on_ethernet, refused_registers.contains(&0x5003)) {
                (true, _) => Mtu::Mtu1024,
                (false, true) => Mtu::Mtu256,
                (false, false) => Mtu::Mtu4096,
            };
            assert_eq!(port.active_mtu, mtu, "{which}");
            assert_eq!(port.active_speed_gbps == 0, refused_registers.contains(&0x5004), "{which}");
            if on_ethernet {
                assert_eq!(a.verbs.direct().open_ethernet(&EthernetConfig::DEFAULT), Ok(()), "{which}");
                assert_eq!(a.verbs.direct().ethernet().unwrap().max_frame(), 1518, "{which}");
            }
            for node in [a, b] {
                no_findings(&node.host);
                down(node.into_driver());
            }
        }
    }
}

/// A port that is down is not taken for one that is switched off because nothing says what it is.
#[test]
fn a_port_that_is_down_and_tells_nothing_is_polling() {
    let config = DeviceConfig { link_up: false, refused_registers: PORT_REGISTERS.to_vec(), ..instant(1) };
    let mut driver = up(&host(config.with_ethernet()));
    let port = driver.query_port(1).unwrap();
    assert_eq!((port.state, port.phys_state), (PortState::Down, PhysState::Polling));
    down(driver);
}

/// Linux goes on without the MTU of the function (`mlx5e_set_mtu`) and without its lists of addresses, and not without RoCE: commands
/// of their own, the first of which is for the MTU.
#[test]
fn an_ethernet_port_comes_up_without_its_mtu_and_its_addresses() {
    let opcode = CmdOpcode::ModifyNicVportContext.code() as u16;
    let host = host(instant(1).with_ethernet());
    let arm = |times: usize| {
        host.with_device(|device| {
            (0..times).for_each(|_| device.faults_mut().arm(Fault::CommandStatus { opcode, status: 3, syndrome: 7 }));
        });
    };
    for times in [1, 2] {
        arm(times);
        down(up(&host));
        assert!(host.with_device(|device| device.faults_mut().is_empty()));
    }
    arm(3);
    let error = refused(&host, &Config::DEFAULT);
    assert_eq!((error.step, error.cause), (Step::EnablePort, Error::CommandStatus { opcode, status: 3, syndrome: 7 }));
    no_findings(&host);
}

/// Linux takes each status of QUERY_ISSI for firmware without it (`mlx5_core_set_issi`): interface step 0.
#[test]
fn a_refused_query_of_the_interface_step_is_step_0() {
    let opcode = CmdOpcode::QueryIssi.code() as u16;
    for status in [1, 2, 3, 5, 9] {
        let host = host(DeviceConfig::with_lid(1));
        host.with_device(|device| device.faults_mut().arm(Fault::CommandStatus { opcode, status, syndrome: 7 }));
        down(up(&host));
    }
}

/// Keeps the general capabilities that the driver requests with SET_HCA_CAP.
#[derive(Clone, Default)]
struct RequestedCapabilities(Arc<Mutex<Option<Vec<u8>>>>);

impl Tracer for RequestedCapabilities {
    fn record(&mut self, _: Instant, record: Record<'_>) {
        let Record::Command { input, .. } = record else { return };
        let general = CapabilityType::General.code() << 1;
        let head = View::<CmdIn>::new(input).unwrap();
        if (head.get(CmdIn::OPCODE), head.get(CmdIn::OP_MOD)) == (CmdOpcode::SetHcaCap.code(), general) {
            let capabilities = input[SetHcaCapIn::CAPABILITY.offset()..][..CmdHcaCap::SIZE.min(256)].to_vec();
            *self.0.lock().unwrap() = Some(capabilities);
        }
    }
}

#[test]
fn no_more_queue_pairs_are_requested_than_the_driver_can_create() {
    let host = host(DeviceConfig::with_lid(1));
    let requested = RequestedCapabilities::default();
    host.with_device(|device| device.set_tracer(Some(Box::new(requested.clone()))));
    let driver = up(&host);
    let capabilities = requested.0.lock().unwrap().take().expect("SET_HCA_CAP");
    let log_max_qp = CmdHcaCap::LOG_MAX_QP.bits().read(&capabilities).unwrap();
    let max_qp = driver.device_attr().max_qp;
    assert_eq!(1 << log_max_qp, max_qp.next_power_of_two(), "the firmware takes memory for each");
    assert_eq!(log_max_qp, LOG_MAX_QP.into());
    down(driver);
}

#[test]
fn a_caller_may_stop_before_any_step_and_start_again() {
    for (profile, stop) in Profile::ALL.into_iter().flat_map(|profile| Step::ALL.iter().map(move |stop| (profile, stop))) {
        let host = host(DeviceConfig::profile(profile, 1));
        let hook = |next| if next == Progress::Step(*stop) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        match Driver::bring_up_with(machine(&host), &driver_config(&host), hook) {
            Ok(_) => panic!("{profile}: not stopped at {stop}"),
            Err((error, _)) => {
                assert_eq!(error, BringUpError { step: *stop, cause: Error::Stopped, pages_kept: 0, needs_reset: false })
            }
        }
        down(up(&host));
        no_findings(&host);
    }
}

#[test]
fn a_refused_command_names_its_step_and_nothing_stays_behind() {
    for profile in Profile::ALL {
        refused_commands(&host(DeviceConfig::profile(profile, 1)));
    }
}

fn refused_commands(host: &Host) {
    let config = driver_config(host);
    let ib_virt = host.with_device(|device| device.config().ib_virt);
    let query_port = if ib_virt { CmdOpcode::QueryHcaVportContext } else { CmdOpcode::MadIfc };
    // Nothing is given to a virtual function, and it has no registers of the physical one.
    let is_sent = |opcode| !(config.virtual_function && matches!(opcode, CmdOpcode::ManagePages | CmdOpcode::AccessReg));
    let steps = [
        (CmdOpcode::EnableHca, Step::EnableHca),
        (CmdOpcode::SetIssi, Step::Issi),
        (CmdOpcode::QueryPages, Step::BootPages),
        (CmdOpcode::ManagePages, Step::BootPages),
        (CmdOpcode::AccessReg, Step::HostEndianness),
        (CmdOpcode::QueryHcaCap, Step::SetCapabilities),
        (CmdOpcode::SetHcaCap, Step::SetCapabilities),
        (CmdOpcode::InitHca, Step::InitHca),
        (CmdOpcode::QueryAdapter, Step::QueryAdapter),
        (query_port, Step::QueryPort),
        (CmdOpcode::AllocUar, Step::AllocUar),
        (CmdOpcode::CreateEq, Step::AsyncEq),
    ];
    for (opcode, step) in steps.into_iter().filter(|(opcode, _)| is_sent(*opcode)) {
        let opcode = opcode.code() as u16;
        let status = CmdStatus::NoResources.code() as u8;
        host.with_device(|device| device.faults_mut().arm(Fault::CommandStatus { opcode, status, syndrome: 0x1234 }));
        let error = refused(host, &config);
        let cause = Error::CommandStatus { opcode, status, syndrome: 0x1234 };
        assert_eq!(error, BringUpError { step, cause, pages_kept: 0, needs_reset: false });
        assert_eq!(cause.errno(), Errno::Enomem);
        host.with_device(|device| device.faults_mut().arm(Fault::DeliveryStatus { opcode, status: 6 }));
        let error = refused(host, &config);
        assert_eq!((error.step, error.cause), (step, Error::CommandDelivery { opcode, status: 6 }));
    }
    down(up(host));
    no_findings(host);
}

#[test]
fn a_command_without_answer_ends_at_its_deadline() {
    for opcode in [CmdOpcode::InitHca, CmdOpcode::QueryHcaCap, CmdOpcode::CreateEq] {
        let host = host(DeviceConfig::with_lid(1));
        let opcode = opcode.code() as u16;
        host.with_device(|device| device.faults_mut().arm(Fault::StuckCommand { opcode }));
        let config = Config { command_timeout: Duration::from_millis(200), ..Config::DEFAULT };
        let start = host.clock().now();
        let error = refused(&host, &config);
        assert_eq!(error.cause, Error::CommandTimeout { opcode });
        assert!(error.needs_reset, "the device may still execute it");
        assert!(host.clock().now().since(start) < Duration::from_secs(2));
    }
}

#[test]
fn a_device_that_is_gone_is_noticed_in_time() {
    let host = host(DeviceConfig::with_lid(1));
    let mut node = Node { verbs: verbs(up(&host)), host: host.clone() };
    host.with_device(|device| device.set_removed(true));
    let start = host.clock().now();
    assert_eq!(node.verbs.alloc_pd(), Err(AllocPdError::Device(Error::DeviceGone)));
    assert!(host.clock().now().since(start) < Duration::from_secs(1), "long before the command's deadline");
    assert_eq!(node.verbs.direct().health(), Err(Error::DeviceGone));
    match node.into_driver().teardown() {
        Ok(_) => panic!("nothing answers"),
        Err((error, _)) => assert!(error.cause == Error::DeviceGone && error.report.pages_kept > 0),
    }
    let error = refused(&host, &Config { boot_timeout: Duration::from_millis(10), ..Config::DEFAULT });
    assert_eq!((error.step, error.cause), (Step::WaitBoot, Error::DeviceGone));
}

#[test]
fn health_is_watched() {
    let host = host(DeviceConfig::with_lid(1));
    let mut driver = up(&host);
    for _ in 0..4 {
        host.world().advance(Duration::from_secs(1));
        assert!(driver.direct().health().unwrap().is_well());
    }
    host.with_device(|device| device.freeze_health(true));
    let misses: Vec<(u8, bool)> = (0..4)
        .map(|_| {
            host.world().advance(Duration::from_secs(2));
            let first = driver.direct().health().unwrap();
            // Another look in the same interval counts no miss.
            assert_eq!(driver.direct().health().unwrap(), first);
            (first.misses, first.stuck)
        })
        .collect();
    assert!(misses[3].1 && !misses[0].1, "{misses:?}");
    host.with_device(|device| device.freeze_health(false));
    host.world().advance(Duration::from_secs(1));
    assert!(driver.direct().health().unwrap().is_well());
}

#[test]
fn too_little_memory_is_said_at_once_or_when_it_runs_out() {
    let host = host(instant(1));
    let mut small = machine(&host);
    small.memory = host.memory(4096);
    match Driver::bring_up(small, &Config::DEFAULT) {
        Ok(_) => panic!("it came up"),
        Err((error, _)) => assert_eq!(error.cause, Error::ArenaTooSmall { have: 4096 }),
    }
    let mut poor = machine(&host);
    poor.pages = host.pages(57);
    let Err((error, _)) = Driver::bring_up(poor, &Config::DEFAULT) else { panic!("it came up") };
    let cause = Error::TooFewPages { wanted: PageDemand::FEW.init, available: 40.into() };
    assert_eq!(error, BringUpError { step: Step::InitPages, cause, pages_kept: 0, needs_reset: false });
    match Mlx5::<SimPlatform, 8>::bring_up(machine(&host), &Config::DEFAULT) {
        Ok(_) => panic!("it came up"),
        Err((error, _)) => assert!(matches!(error.cause, Error::ArenaFull { .. }) && !error.needs_reset, "{error}"),
    }
    down(up(&host));
}

#[test]
fn pages_are_given_and_taken_while_objects_come_and_go() {
    let host = host(DeviceConfig::with_lid(1));
    let mut tables: Box<storage![Driver; pds: 1, mws: 2000]> = Box::new(Storage::new([]));
    let mut verbs = Verbs::new(up(&host), &mut *tables);
    let before = verbs.provider().statistics();
    let pd = verbs.alloc_pd().unwrap();
    let windows: Vec<_> = (0..2000).map(|_| verbs.alloc_mw(pd, MwType::Type1).unwrap()).collect();
    let during = verbs.provider().statistics();
    assert!(during.page_requests > 0 && during.pages_held > before.pages_held, "while commands waited: {during:?}");
    for window in windows {
        verbs.dealloc_mw(window).unwrap();
    }
    // The firmware gives pages back once nothing has happened for seconds.
    host.world().advance(Duration::from_secs(6));
    while verbs.poll_event().unwrap().is_some() {}
    let after = verbs.provider().statistics();
    assert_eq!(after.pages_used, before.pages_used);
    // It keeps some free ones.
    assert!(after.pages_held < before.pages_held + 8 && after.pages_back > 0, "{after:?}");
    let Ok(driver) = verbs.into_provider() else { panic!("a queue is taken") };
    let report = down(driver);
    assert_eq!((report.pages_kept, report.pages_back), (0, report.pages_given));
    no_findings(&host);
}
