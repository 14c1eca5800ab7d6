//! From bring-up to teardown and again: nothing leaks, pages come and go, events come when they are requested.

use bareverbs::error::DestroyCqError;
use core::ops::ControlFlow;
use core::time::Duration;

use bareverbs::error::{AllocPdError, CreateCqError, CreateQpError, Errno, PollEventError, RegMrError};
use bareverbs::platform::{Clock, Machine};
use bareverbs::{
    Access, Event, MwType, Payload, PortState, QpAttrMask, QpCap, QpInit, QpState, QpType, RecvWr, Remote, SendFlags, SendOp,
    SendWr, Type1Bind, WcStatus,
};
use bareverbs_mlx5::{BringUpError, Config, Error, Mlx5, Progress, Statistics, Step, TeardownReport};
use bareverbs_mlx5_spec::CmdOpcode;
use bareverbs_sim::fault::Fault;
use bareverbs_sim::in_process::{Host, SimPlatform, World, WorldConfig};
use bareverbs_sim::wire::WireFaults;
use bareverbs_sim::{DeviceConfig, DeviceCounts, HcaState, PageDemand, Profile};
use bareverbs_tests::{
    ALL_ACCESS, CAP, Connection, Driver, End, Node, Pair, SamePage, driver_config, end, end_in, instant, machine, pattern,
    refused, register_mapped, signaled, to_state, verbs,
};

fn host(config: DeviceConfig) -> Host {
    World::new(WorldConfig::default()).add(config).unwrap()
}

fn up(host: &Host, machine: Machine<SimPlatform>, config: &Config) -> Node {
    match Driver::bring_up(machine, config) {
        Ok(driver) => {
            let mut node = Node { host: host.clone(), verbs: verbs(driver) };
            node.await_port();
            node
        }
        Err((error, _)) => panic!("{config:?}: {error}"),
    }
}

fn down(node: Node) -> (Machine<SimPlatform>, TeardownReport) {
    match node.into_driver().teardown() {
        Ok(done) => done,
        Err((error, _)) => panic!("{error}"),
    }
}

fn statistics(node: &Node) -> Statistics {
    node.verbs.provider().statistics()
}

/// Asserts that the device has no objects, and no findings about its driver.
fn assert_nothing_left(host: &Host) {
    host.with_device(|device| {
        assert_eq!(device.counts(), DeviceCounts::default());
        assert_eq!(device.state(), HcaState::Disabled);
        assert_eq!(device.audit().findings(), []);
        assert_eq!(device.stats().events_dropped, 0);
    });
}

/// Sends one message each way, and writes through a window.
fn traffic(pair: &mut Pair, a: &End, b: &End) {
    let mut here = pair.a.region(a.pd, 8192, ALL_ACCESS);
    let there = pair.b.region(b.pd, 8192, ALL_ACCESS);
    here.buffer.write(0, &pattern(6, 8192));
    pair.b.verbs.post_recv(b.qp, &RecvWr { wr_id: 1, sges: &[there.sge(0, 8192)] }).unwrap();
    let op = SendOp::Send { payload: Payload::Sges(&[here.sge(0, 8192)]) };
    pair.a.verbs.post_send(a.qp, &signaled(2, op)).unwrap();
    assert_eq!(pair.a.completions(a.cq, 1)[0].status, WcStatus::Success);
    assert_eq!(pair.b.completions(b.cq, 1)[0].status, WcStatus::Success);
    assert_eq!(there.buffer.read(0, 8192), here.buffer.read(0, 8192));
    let mw = pair.b.verbs.alloc_mw(b.pd, MwType::Type1).unwrap();
    let (addr, access) = (there.buffer.addr, Access::REMOTE_WRITE);
    let bind = Type1Bind { wr_id: 3, flags: SendFlags::SIGNALED, mr: there.mr, addr, length: 100, access };
    let rkey = pair.b.verbs.bind_type1(b.qp, mw, &bind).unwrap();
    assert_eq!(pair.b.completions(b.cq, 1)[0].status, WcStatus::Success);
    let op = SendOp::Write { payload: Payload::Inline(b"through the window"), remote: Remote { addr, rkey } };
    pair.a.verbs.post_send(a.qp, &signaled(4, op)).unwrap();
    assert_eq!(pair.a.completions(a.cq, 1)[0].status, WcStatus::Success);
    assert_eq!(there.buffer.read(0, 18), b"through the window");
    pair.b.verbs.dealloc_mw(mw).unwrap();
    pair.b.verbs.dereg_mr_raw(there.mr).unwrap();
    pair.a.verbs.dereg_mr_raw(here.mr).unwrap();
}

#[test]
fn devices_and_drivers_of_many_kinds() {
    let plenty = PageDemand { boot: 300, init: 1500, chunk: 64, ..PageDemand::NONE };
    let at_start = PageDemand { chunk: 0, ..PageDemand::FEW };
    let demands = [PageDemand::NONE, at_start, plenty].map(|pages| (Profile::Simulated, pages));
    let profiles = Profile::ALL.map(|profile| (profile, DeviceConfig::profile(profile, 1).pages));
    for (profile, pages) in demands.into_iter().chain(profiles) {
        for (signatures, blue_flame, completion_vectors) in
            [(false, false, 1), (true, false, 2), (false, true, 8), (true, true, 3)]
        {
            let device = |lid| DeviceConfig { pages, command_checksum: signatures, ..DeviceConfig::profile(profile, lid) };
            let world = World::new(WorldConfig::default());
            let (a, b) = (world.add(device(1)).unwrap(), world.add(device(2)).unwrap());
            let config = Config { blue_flame, completion_vectors, ..driver_config(&a) };
            let (a, b) = (up(&a, machine(&a), &config), up(&b, machine(&b), &config));
            let fresh = statistics(&a);
            assert_eq!(fresh.pages_held, fresh.pages_given);
            assert!(fresh.pages_held >= pages.boot + pages.init_for(11), "for 2^11 queue pairs");
            assert_eq!(fresh.pages_used + fresh.pages_free, 4096);
            let eqs = a.host.with_device(|device| device.counts().eqs);
            assert_eq!(
                eqs,
                1 + usize::from(pages.chunk != 0) + usize::from(completion_vectors),
                "no queue for what never comes"
            );
            let mut pair = Pair { world, a, b };
            let (near, far) = pair.connected();
            traffic(&mut pair, &near, &far);
            for (node, end) in [(&mut pair.a, near), (&mut pair.b, far)] {
                node.verbs.destroy_qp(end.qp).unwrap();
                node.verbs.destroy_cq(end.cq).unwrap();
                node.verbs.dealloc_pd(end.pd).unwrap();
                assert_eq!(statistics(node).pages_used, fresh.pages_used);
            }
            for node in [pair.a, pair.b] {
                let host = node.host.clone();
                // Each command that was issued was executed, once.
                let issued = u64::from(statistics(&node).commands);
                assert_eq!(host.with_device(|device| device.stats().commands), issued);
                let (_, report) = down(node);
                assert_eq!((report.pages_kept, report.cqs_left, report.needs_reset), (0, 0, false));
                assert_eq!(report.pages_given, report.pages_back);
                assert_nothing_left(&host);
            }
        }
    }
}

#[test]
fn a_stop_before_any_step_undoes_everything_on_the_same_machine() {
    let host = host(DeviceConfig { command_checksum: true, ..DeviceConfig::with_lid(1) });
    let config = Config { completion_vectors: 4, ..Config::DEFAULT };
    let mut machine = machine(&host);
    for stop in Step::ALL {
        let mut seen = Vec::new();
        let brought = Driver::bring_up_with(machine, &config, |next| {
            if let Progress::Step(step) = next {
                seen.push(step);
            }
            if next == Progress::Step(*stop) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let Err((error, back)) = brought else { panic!("not stopped at {stop}") };
        assert_eq!(error, BringUpError { step: *stop, cause: Error::Stopped, pages_kept: 0, needs_reset: false });
        assert_eq!(error.cause.errno(), Errno::Eintr);
        assert_eq!(seen, Step::ALL[..seen.len()], "in order, and none after the stop");
        assert_nothing_left(&host);
        machine = back;
    }
    let node = up(&host, machine, &config);
    down(node);
    assert_nothing_left(&host);
}

#[test]
fn twenty_times_up_and_down() {
    let world = World::new(WorldConfig::default());
    let hosts = [1, 2].map(|lid| world.add(DeviceConfig::with_lid(lid)).unwrap());
    let mut machines = hosts.each_ref().map(machine);
    let mut first = None;
    for round in 0..20 {
        let [ma, mb] = machines;
        let config = Config { completion_vectors: 1 + round % 3, ..Config::DEFAULT };
        let (a, b) = (up(&hosts[0], ma, &config), up(&hosts[1], mb, &config));
        let mut pair = Pair { world: world.clone(), a, b };
        let (near, far) = pair.connected();
        traffic(&mut pair, &near, &far);
        // The LID comes in the first round alone.
        let now = Statistics { pages_free: 0, pages_used: 0, async_events: 0, ..statistics(&pair.a) };
        if round % 3 == 0 {
            assert_eq!(*first.get_or_insert(now), now, "round {round} is like the first");
        }
        // Every other time the objects are destroyed before.
        if round % 2 == 0 {
            for (node, end) in [(&mut pair.a, near), (&mut pair.b, far)] {
                node.verbs.destroy_qp(end.qp).unwrap();
                node.verbs.destroy_cq(end.cq).unwrap();
                node.verbs.dealloc_pd(end.pd).unwrap();
            }
        }
        let Pair { a, b, .. } = pair;
        machines = [a, b].map(|node| {
            let (machine, report) = down(node);
            assert_eq!((report.pages_kept, report.needs_reset, report.cqs_left), (0, false, u32::from(round % 2)));
            assert_eq!(report.pages_given, report.pages_back);
            machine
        });
        hosts.iter().for_each(assert_nothing_left);
    }
}

#[test]
fn a_teardown_under_load() {
    let mut pair = Pair::new();
    let (a, b) = (end(&mut pair.a, true), end(&mut pair.b, true));
    pair.connect(&a, &b, &Connection { timeout: 6, retry_cnt: 2, ..Connection::default() });
    let here = pair.a.region(a.pd, 1 << 18, ALL_ACCESS);
    let there = pair.b.region(b.pd, 1 << 18, ALL_ACCESS);
    let mw = pair.b.verbs.alloc_mw(b.pd, MwType::Type1).unwrap();
    let (addr, access) = (there.buffer.addr, Access::REMOTE_READ);
    let bind = Type1Bind { wr_id: 3, flags: SendFlags::empty(), mr: there.mr, addr, length: 100, access };
    pair.b.verbs.bind_type1(b.qp, mw, &bind).unwrap();
    pair.b.verbs.req_notify_cq(b.cq, false).unwrap();
    for n in 0..64 {
        let op = SendOp::Write { payload: Payload::Sges(&[here.sge(0, 1 << 18)]), remote: there.remote(0) };
        pair.a.verbs.post_send(a.qp, &signaled(n, op)).unwrap();
    }
    pair.world.advance(Duration::from_micros(2));
    let host = pair.b.host.clone();
    let (machine, report) = down(pair.b);
    assert_eq!((report.pages_kept, report.cqs_left), (0, 1));
    assert_eq!(report.pages_given, report.pages_back);
    assert_nothing_left(&host);
    // From here on the device writes nowhere, whatever still comes in.
    let before = there.buffer.read(0, 1 << 18);
    let found = pair.a.completions(a.cq, 64);
    let broken = found.iter().position(|done| done.status != WcStatus::Success).unwrap();
    assert_eq!(found[broken].status, WcStatus::RetryExcErr, "{found:?}");
    assert!(broken < 63 && found[broken + 1..].iter().all(|done| done.status == WcStatus::WrFlushErr), "{found:?}");
    assert_eq!(there.buffer.read(0, 1 << 18), before);
    // And it can be brought up again in the memory that it had.
    down(up(&host, machine, &Config::DEFAULT));
    pair.a.assert_no_findings();
    assert_nothing_left(&host);
}

#[test]
fn the_firmware_asks_for_pages_and_gives_them_back() {
    let host = host(instant(1));
    let mut node = up(&host, machine(&host), &Config::DEFAULT);
    let pd = node.verbs.alloc_pd().unwrap();
    let buffer = node.buffer(4096);
    let page = SamePage { device_addr: buffer.device_addr() };
    let fresh = statistics(&node);
    // 128 KB of page list for each.
    let regions: Vec<_> =
        (0..12).map(|_| register_mapped(&mut node.verbs, pd, 0x1000_0000, 64 << 20, Access::empty(), &page).unwrap()).collect();
    while node.verbs.poll_event().unwrap().is_some() {}
    let full = statistics(&node);
    assert!(full.page_requests > 0 && full.pages_held > fresh.pages_held + 12 * 32 - 60, "{full:?}");
    assert_eq!(full.pages_given - full.pages_back, full.pages_held);
    assert_eq!(host.with_device(|device| device.counts().pages_held), full.pages_held as usize);
    for mr in regions {
        node.verbs.dereg_mr_raw(mr).unwrap();
        let _ = node.verbs.poll_event().unwrap();
    }
    // The firmware gives pages back once nothing has happened for seconds, not all in one request.
    for _ in 0..2 {
        host.world().advance(Duration::from_secs(6));
        while node.verbs.poll_event().unwrap().is_some() {}
    }
    let after = statistics(&node);
    assert!(after.pages_held < fresh.pages_held + 8 && after.pages_back > 12 * 32 - 60, "{after:?}");
    assert_eq!(after.pages_used, fresh.pages_used);
    let (_, report) = down(node);
    assert_eq!((report.pages_kept, report.pages_given), (0, report.pages_back));
    assert_nothing_left(&host);
}

#[test]
fn a_page_command_without_answer_ends_the_command_that_waits_for_pages() {
    let opcode = CmdOpcode::ManagePages.code() as u16;
    let reason = Error::CommandTimeout { opcode };
    for fault in [Fault::StuckCommand { opcode }, Fault::LateCommand { opcode, delay: Duration::from_millis(30) }] {
        let config = Config { command_timeout: Duration::from_millis(20), ..Config::DEFAULT };
        let host = host(DeviceConfig::with_lid(1));
        let mut node = up(&host, machine(&host), &config);
        let pd = node.verbs.alloc_pd().unwrap();
        let page = SamePage { device_addr: node.buffer(4096).device_addr() };
        host.with_device(|device| device.faults_mut().arm(fault));
        let start = host.clock().now();
        // 128 KB of page list for each.
        let refusal = (0..12)
            .find_map(|_| register_mapped(&mut node.verbs, pd, 0x1000_0000, 64 << 20, Access::empty(), &page).err())
            .expect("the firmware requests pages");
        assert_eq!(refusal, RegMrError::Device(reason), "{fault:?}");
        assert!(host.clock().now().since(start) < Duration::from_millis(60), "not each at a deadline of its own");
        let commands = statistics(&node).commands;
        host.world().advance(Duration::from_millis(50));
        assert_eq!(node.verbs.poll_event(), Err(PollEventError::Device(reason)));
        assert_eq!(node.verbs.alloc_pd(), Err(AllocPdError::Device(reason)));
        assert_eq!(statistics(&node).commands, commands);
        let held = statistics(&node).pages_held;
        let Ok(driver) = node.verbs.into_provider() else { panic!("a queue is taken") };
        let Err((error, _)) = driver.teardown() else { panic!("{fault:?}: it was torn down") };
        assert_eq!((error.cause, error.report.pages_kept, error.report.needs_reset), (reason, held, true));
    }
}

#[test]
fn a_long_page_list_needs_no_long_run_of_the_arena() {
    let host = host(DeviceConfig::with_lid(1));
    let mut node = up(&host, machine(&host), &Config::DEFAULT);
    let pd = node.verbs.alloc_pd().unwrap();
    let buffer = node.buffer(4096);
    let page = SamePage { device_addr: buffer.device_addr() };
    // Two of three runs go again, so that what is free lies in runs of 512 pages and fewer, with a queue between them.
    let cqs: Vec<_> = (0..6).map(|_| node.verbs.create_cq(32768).unwrap()).collect();
    let before = statistics(&node);
    for cq in [0, 2, 4] {
        node.verbs.destroy_cq(cqs[cq]).unwrap();
    }
    let free = statistics(&node).pages_free;
    assert_eq!(free, before.pages_free + 3 * 512);
    // 1 GiB in pages of 4 KiB: 2 MiB of addresses, in 1,024 pages of mailboxes, more than any run has.
    let mr = register_mapped(&mut node.verbs, pd, 0x1_0000_0000, 1 << 30, Access::empty(), &page).unwrap();
    while node.verbs.poll_event().unwrap().is_some() {}
    node.verbs.dereg_mr_raw(mr).unwrap();
    assert_eq!(statistics(&node).pages_used, before.pages_used - 3 * 512);
    for cq in [1, 3, 5] {
        node.verbs.destroy_cq(cqs[cq]).unwrap();
    }
    down(node);
    assert_nothing_left(&host);
}

#[test]
fn pages_that_cannot_be_given_are_refused_and_the_rest_goes_on() {
    let host = host(instant(1));
    let firmware_pages = PageDemand::FEW.boot + PageDemand::FEW.init + 10;
    let mut node = up(&host, machine(&host), &Config { firmware_pages, ..Config::DEFAULT });
    let end = end(&mut node, true);
    let buffer = node.buffer(4096);
    let page = SamePage { device_addr: buffer.device_addr() };
    let mut made = Vec::new();
    let refusal = loop {
        match register_mapped(&mut node.verbs, end.pd, 0x1000_0000, 64 << 20, Access::empty(), &page) {
            Ok(mr) => made.push(mr),
            Err(error) => break error,
        }
        node.verbs.maintain().unwrap();
        node.verbs.poll_event().unwrap();
    };
    assert_eq!(refusal.errno(), Errno::Enomem, "{refusal}");
    // A request by event that is refused is no failure of the device: queues go on.
    host.world().advance(Duration::from_millis(100));
    node.verbs.maintain().unwrap();
    assert!(statistics(&node).page_requests_refused > 0, "{:?}", statistics(&node));
    assert_eq!(node.verbs.completions(end.cq).count(), 0);
    assert!(statistics(&node).pages_held <= firmware_pages);
    // What exists works, and what is freed can be had again.
    assert!(node.verbs.query_qp(end.qp).is_ok());
    for mr in made {
        node.verbs.dereg_mr_raw(mr).unwrap();
    }
    let again = register_mapped(&mut node.verbs, end.pd, 0x1000_0000, 1 << 20, Access::empty(), &page).unwrap();
    node.verbs.dereg_mr_raw(again).unwrap();
    let (_, report) = down(node);
    assert_eq!((report.pages_kept, report.pages_given), (0, report.pages_back));
    assert_nothing_left(&host);
}

#[test]
fn firmware_that_wants_more_than_there_is_does_not_come_up() {
    for (firmware_pages, step, wanted, allowed) in
        [(16, Step::BootPages, 17, 16), (0, Step::BootPages, 17, 0), (57, Step::InitPages, 41, 40)]
    {
        let config = Config { firmware_pages, ..Config::DEFAULT };
        let host = host(instant(1));
        let Err((error, back)) = Driver::bring_up(machine(&host), &config) else { panic!("it came up") };
        let cause = Error::PageLimit { wanted, allowed: allowed.into() };
        assert_eq!(error, BringUpError { step, cause, pages_kept: 0, needs_reset: false });
        assert_eq!(error.cause.errno(), Errno::Enomem);
        assert_nothing_left(&host);
        down(up(&host, back, &Config::DEFAULT));
    }
}

/// Brings up a device without demands in an arena of `PAGES` pages; whether it came up.
fn in_arena<const PAGES: usize>(demand: PageDemand) -> bool {
    let host = host(DeviceConfig { pages: demand, ..DeviceConfig::with_lid(1) });
    match Mlx5::<SimPlatform, PAGES>::bring_up(machine(&host), &Config::DEFAULT) {
        Err((error, _)) => {
            assert!(matches!(error.cause, Error::ArenaFull { .. }), "{PAGES} pages: {error}");
            assert_eq!(error.pages_kept, 0);
            assert_nothing_left(&host);
            false
        }
        Ok(driver) => {
            // As many objects as there are pages for, and then an error.
            let mut verbs = verbs(driver);
            let held = |host: &Host| host.with_device(|device| DeviceCounts { pages_held: 0, ..device.counts() });
            let pd = verbs.alloc_pd().unwrap();
            let mut cqs = Vec::new();
            let (before, refusal) = loop {
                let before = (held(&host), verbs.provider().statistics().pages_used);
                match verbs.create_cq(128) {
                    Ok(cq) => cqs.push(cq),
                    Err(refusal) => break (before, refusal),
                }
            };
            assert_eq!((held(&host), verbs.provider().statistics().pages_used), before, "nothing half-made");
            assert_eq!(refusal.errno(), Errno::Enomem, "{PAGES} pages: {refusal}");
            assert!(
                matches!(refusal, CreateCqError::Full { .. } | CreateCqError::Device(Error::ArenaFull { .. })),
                "{PAGES} pages: {refusal:?}"
            );
            if let Some(&cq) = cqs.first() {
                let init = QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap: CAP, sq_sig_all: false };
                let mut qps = Vec::new();
                let (before, refusal) = loop {
                    let before = (held(&host), verbs.provider().statistics().pages_used);
                    match verbs.create_qp(&init) {
                        Ok(qp) => qps.push(qp),
                        Err(refusal) => break (before, refusal),
                    }
                };
                assert_eq!((held(&host), verbs.provider().statistics().pages_used), before, "nothing half-made");
                assert_eq!(refusal.errno(), Errno::Enomem, "{PAGES} pages: {refusal}");
                assert!(
                    matches!(refusal, CreateQpError::Full { .. } | CreateQpError::Device(Error::ArenaFull { .. })),
                    "{PAGES} pages: {refusal:?}"
                );
                for qp in qps {
                    verbs.destroy_qp(qp).unwrap();
                }
            }
            for cq in cqs {
                verbs.destroy_cq(cq).unwrap();
            }
            let Ok(driver) = verbs.into_provider() else { panic!("a queue is taken") };
            let Ok((_, report)) = driver.teardown() else { panic!("{PAGES} pages: teardown") };
            assert_eq!(report.pages_kept, 0);
            assert_nothing_left(&host);
            true
        }
    }
}

#[test]
fn arenas_from_one_page_on() {
    macro_rules! arenas {
        ($demand:expr; $($pages:literal)*) => { [$(($pages, in_arena::<$pages>($demand))),*] };
    }
    let none = arenas!(PageDemand::NONE; 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 24 28 32 40 48 64 80 100);
    let first = none.iter().position(|(_, up)| *up).expect("it comes up in 100 pages");
    assert!(none[first..].iter().all(|(_, up)| *up), "{none:?}");
    assert!(!none[0].1);
    let usual = arenas!(PageDemand::FEW; 10 20 50 60 65 70 72 74 76 78 80 82 84 86 88 90 100 120);
    let first = usual.iter().position(|(_, up)| *up).expect("it comes up in 120 pages");
    assert!(usual[first..].iter().all(|(_, up)| *up), "{usual:?}");
}

#[test]
fn firmware_that_boots_slowly() {
    for (boots_in, comes_up) in
        [(Duration::from_millis(1), true), (Duration::from_secs(3), true), (Duration::from_secs(9), false)]
    {
        let host = host(DeviceConfig { initializing: boots_in, ..DeviceConfig::with_lid(1) });
        let config = Config { boot_timeout: Duration::from_secs(5), ..Config::DEFAULT };
        let start = host.clock().now();
        match Driver::bring_up(machine(&host), &config) {
            Ok(driver) => {
                assert!(comes_up && host.clock().now().since(start) >= boots_in);
                assert!(driver.teardown().is_ok());
            }
            Err((error, _)) => {
                assert!(!comes_up);
                assert_eq!((error.step, error.cause, error.pages_kept), (Step::WaitBoot, Error::NotInitialized, 0));
                assert_eq!(error.cause.errno(), Errno::Etimedout);
                assert!(host.clock().now().since(start) < Duration::from_secs(6));
            }
        }
        assert_nothing_left(&host);
    }
}

#[test]
fn more_vectors_than_the_device_has() {
    let host = host(DeviceConfig { vectors: 3, ..DeviceConfig::with_lid(1) });
    let config = Config { completion_vectors: 3, ..Config::DEFAULT };
    let Err((error, back)) = Driver::bring_up(machine(&host), &config) else { panic!("it came up") };
    assert_eq!(error.step, Step::CompletionEqs);
    assert!(matches!(error.cause, Error::CommandStatus { opcode: 0x301, .. }), "{error}");
    assert_nothing_left(&host);
    down(up(&host, back, &Config { completion_vectors: 2, ..config }));
}

/// Returns the events that are waiting now.
fn poll_events(node: &mut Node) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(event) = node.verbs.poll_event().unwrap() {
        events.push(event);
    }
    events
}

// contract: notify-next
#[test]
fn completion_events_come_when_asked_for_and_once() {
    let mut pair = Pair::new();
    let (a, b) = pair.connected();
    let there = pair.b.region(b.pd, 4096, ALL_ACCESS);
    let write = |pair: &mut Pair| {
        let op = SendOp::Write { payload: Payload::Inline(b"x"), remote: there.remote(0) };
        pair.a.verbs.post_send(a.qp, &signaled(1, op)).unwrap();
        pair.world.advance(Duration::from_millis(1));
    };
    let event = vec![Event::Completion(a.cq)];
    let arm = |pair: &mut Pair| pair.a.verbs.req_notify_cq(a.cq, false).unwrap();
    // Not requested.
    write(&mut pair);
    assert_eq!(poll_events(&mut pair.a), []);
    assert_eq!(pair.a.poll(a.cq).len(), 1);
    for _ in 0..10 {
        arm(&mut pair);
        pair.world.advance(Duration::from_millis(1));
        assert_eq!(poll_events(&mut pair.a), [], "nothing has come since");
        write(&mut pair);
        write(&mut pair);
        assert_eq!(poll_events(&mut pair.a), event, "once for both");
        // Asked again with completions not yet taken: at once.
        arm(&mut pair);
        assert_eq!(poll_events(&mut pair.a), event);
        assert_eq!(pair.a.poll(a.cq).len(), 2);
        write(&mut pair);
        assert_eq!(poll_events(&mut pair.a), []);
        assert_eq!(pair.a.poll(a.cq).len(), 1);
    }
    pair.assert_no_findings();
}

// contract: notify-solicited
#[test]
fn solicited_events_are_for_solicited_and_failed_ones_only() {
    let mut pair = Pair::new();
    let (a, b) = pair.connected();
    let there = pair.b.region(b.pd, 4096, ALL_ACCESS);
    let send = |pair: &mut Pair, flags: SendFlags| {
        pair.b.verbs.post_recv(b.qp, &RecvWr { wr_id: 1, sges: &[there.sge(0, 64)] }).unwrap();
        let op = SendOp::Send { payload: Payload::Inline(b"x") };
        pair.a.verbs.post_send(a.qp, &SendWr { wr_id: 2, flags, op }).unwrap();
        pair.world.advance(Duration::from_millis(1));
    };
    let event = vec![Event::Completion(b.cq)];
    for _ in 0..5 {
        pair.b.verbs.req_notify_cq(b.cq, true).unwrap();
        send(&mut pair, SendFlags::empty());
        send(&mut pair, SendFlags::empty());
        assert_eq!(poll_events(&mut pair.b), []);
        send(&mut pair, SendFlags::SOLICITED);
        assert_eq!(poll_events(&mut pair.b), event);
        assert_eq!(pair.b.poll(b.cq).len(), 3);
    }
    // A request for the next one of any kind still gives one.
    pair.b.verbs.req_notify_cq(b.cq, false).unwrap();
    send(&mut pair, SendFlags::empty());
    assert_eq!(poll_events(&mut pair.b), event);
    assert_eq!(pair.b.poll(b.cq).len(), 1);
    // A flush is a failure, and failures are always reported.
    pair.b.verbs.req_notify_cq(b.cq, true).unwrap();
    pair.b.verbs.post_recv(b.qp, &RecvWr { wr_id: 9, sges: &[] }).unwrap();
    pair.b.verbs.modify_qp(b.qp, &to_state(QpState::Err), QpAttrMask::STATE).unwrap();
    pair.world.advance(Duration::from_millis(1));
    assert!(poll_events(&mut pair.b).contains(&Event::Completion(b.cq)));
    assert_eq!(pair.b.poll(b.cq)[0].status, WcStatus::WrFlushErr);
    pair.assert_no_findings();
}

#[test]
fn completion_queues_are_dealt_out_to_the_vectors() {
    let config = Config { completion_vectors: 3, first_vector: 4, ..Config::DEFAULT };
    let host = host(DeviceConfig::with_lid(1));
    let mut node = up(&host, machine(&host), &config);
    let pd = node.verbs.alloc_pd().unwrap();
    let ends: Vec<_> = (0..6).map(|_| end_in(&mut node, pd, QpType::Rc, CAP, true)).collect();
    host.take_interrupts();
    node.verbs.query_port(1).unwrap();
    assert!(host.take_interrupts().iter().all(|vector| *vector == 4), "commands go to the first");
    for (n, end) in ends.iter().enumerate() {
        let steps = bareverbs_tests::rc_steps(&Connection::default(), bareverbs::Lid::new(1), end.qpn, 0, 0);
        node.verbs.modify_qp(end.qp, &steps[0].0, steps[0].1).unwrap();
        node.verbs.post_recv(end.qp, &RecvWr { wr_id: 1, sges: &[] }).unwrap();
        node.verbs.req_notify_cq(end.cq, false).unwrap();
        node.verbs.modify_qp(end.qp, &to_state(QpState::Err), QpAttrMask::STATE).unwrap();
        let vectors: Vec<_> = host.take_interrupts().into_iter().filter(|vector| *vector != 4).collect();
        assert_eq!(vectors, [5 + n as u16 % 3], "queue {n}");
        assert_eq!(poll_events(&mut node), [Event::Completion(end.cq)]);
    }
    node.assert_no_findings();
}

#[test]
fn more_events_than_an_event_queue_holds() {
    let mut pair = Pair::of_devices(instant(1), instant(2));
    let (a, b) = pair.connected();
    let there = pair.b.region(b.pd, 4096, ALL_ACCESS);
    // Several laps of the queue of 256 entries, and of the one of 64 for commands.
    for n in 0..700 {
        pair.a.verbs.req_notify_cq(a.cq, false).unwrap();
        let op = SendOp::Write { payload: Payload::Inline(b"x"), remote: there.remote(0) };
        pair.a.verbs.post_send(a.qp, &signaled(n, op)).unwrap();
        assert_eq!(pair.a.completions(a.cq, 1)[0].wr_id, n);
        assert_eq!(poll_events(&mut pair.a), [Event::Completion(a.cq)], "{n}");
    }
    for _ in 0..300 {
        assert!(pair.a.verbs.query_port(1).is_ok());
        pair.a.host.with_device(|device| device.set_link(false));
        pair.a.host.with_device(|device| device.set_link(true));
        assert_eq!(poll_events(&mut pair.a), [Event::PortDown(1), Event::PortActive(1)]);
    }
    let (stats, device) = (statistics(&pair.a), pair.a.host.with_device(|device| device.stats()));
    assert_eq!((stats.async_events, device.events_dropped), (600, 0));
    pair.assert_no_findings();
}

// contract: events-port
#[test]
fn the_port_goes_down_and_up() {
    for ib_virt in [true, false] {
        port_down_and_up(Pair::of_devices(DeviceConfig { ib_virt, ..instant(1) }, instant(2)));
    }
}

fn port_down_and_up(mut pair: Pair) {
    let (a, b) = (end(&mut pair.a, true), end(&mut pair.b, true));
    pair.connect(&a, &b, &Connection { timeout: 12, ..Connection::default() });
    let there = pair.b.region(b.pd, 4096, ALL_ACCESS);
    assert_eq!(pair.a.verbs.query_port(1).unwrap().state, PortState::Active);
    pair.a.host.with_device(|device| device.set_link(false));
    assert_eq!(poll_events(&mut pair.a), [Event::PortDown(1)]);
    let port = pair.a.verbs.query_port(1).unwrap();
    assert_eq!((port.state, port.active_speed_gbps), (PortState::Down, 0));
    // What is sent meanwhile waits for the retry, and arrives once the link is back.
    let op = SendOp::Write { payload: Payload::Inline(b"retry it"), remote: there.remote(0) };
    pair.a.verbs.post_send(a.qp, &signaled(1, op)).unwrap();
    pair.world.advance(Duration::from_millis(30));
    assert!(pair.a.poll(a.cq).is_empty());
    pair.a.host.with_device(|device| device.set_link(true));
    assert_eq!(poll_events(&mut pair.a), [Event::PortActive(1)]);
    assert_eq!(pair.a.completions(a.cq, 1)[0].status, WcStatus::Success);
    assert_eq!(there.buffer.read(0, 8), b"retry it");
    // Nothing has changed, so no event is raised.
    pair.a.host.with_device(|device| device.set_link(true));
    assert_eq!(poll_events(&mut pair.a), []);
    pair.assert_no_findings();
}

#[test]
fn a_device_that_comes_up_without_a_link() {
    let pair = Pair::of_devices(DeviceConfig { link_up: false, ..instant(1) }, instant(2));
    let mut a = pair.a;
    assert_eq!(a.verbs.query_port(1).unwrap().state, PortState::Down);
    pair.world.set_wire_faults(WireFaults::default());
    a.host.with_device(|device| device.set_link(true));
    assert_eq!(poll_events(&mut a), [Event::PortActive(1)]);
    assert_eq!(a.verbs.query_port(1).unwrap().state, PortState::Active);
}

// contract: cq-busy, cq-create-refused, cq-create-full, qp-create-refused, qp-create-full
#[test]
fn refusals_name_what_does_not_fit() {
    let host = host(DeviceConfig::with_lid(1));
    let mut node = up(&host, machine(&host), &Config::DEFAULT);
    let pd = node.verbs.alloc_pd().unwrap();
    let max = node.verbs.query_device().max_cqe;
    let before = node.snapshot();
    for entries in [0, max + 1, u32::MAX] {
        let error = refused!(node.verbs.create_cq(entries), Einval, CreateCqError::Entries { .. });
        assert_eq!(error, CreateCqError::Entries { entries, max });
    }
    // What the device has, but the arena has no room for.
    refused!(node.verbs.create_cq(max), Enomem, CreateCqError::Device(Error::ArenaFull { .. }));
    assert_eq!(node.snapshot(), before);
    let cqs: Vec<_> = (0..8).map(|_| node.verbs.create_cq(1).unwrap()).collect();
    refused!(node.verbs.create_cq(1), Enomem, CreateCqError::Full { capacity: 8 });
    let cq = cqs[0];
    let init = QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap: CAP, sq_sig_all: false };
    let before = node.snapshot();
    let mut too_much = [CAP; 5];
    let most = node.verbs.query_device().max_qp_wr;
    too_much[0].max_send_wr = most + 1;
    too_much[1].max_recv_wr = most + 1;
    too_much[2].max_send_sge = 1000;
    too_much[3].max_recv_sge = u32::MAX;
    too_much[4].max_inline_data = 4096;
    for cap in too_much {
        refused!(node.verbs.create_qp(&QpInit { cap, ..init }), Einval, CreateQpError::Capacity { .. });
    }
    // What the device has, but no rings of the storage are long enough for: 4096 binds of three blocks; 4097 receives.
    for (cap, send, recv) in [(QpCap { max_send_wr: 4096, ..CAP }, 16_384, 64), (QpCap { max_recv_wr: 4097, ..CAP }, 256, 8192)]
    {
        let error = refused!(node.verbs.create_qp(&QpInit { cap, ..init }), Enomem, CreateQpError::Rings { .. });
        let QpCap { max_send_wr, max_recv_wr, .. } = cap;
        assert!(
            matches!(error, CreateQpError::Rings { max_send_wr: s, max_recv_wr: r, send: blocks, recv: entries, .. }
                if (s, r, blocks, entries) == (max_send_wr, max_recv_wr, send, recv)),
            "{error:?}"
        );
    }
    let gone = node.verbs.alloc_pd().unwrap();
    node.verbs.dealloc_pd(gone).unwrap();
    refused!(node.verbs.create_qp(&QpInit { pd: gone, ..init }), Einval, CreateQpError::StalePd);
    // CREATE_CQ and CREATE_QP: the device has no room for another (LIM_ERR).
    let no_room = |node: &Node, opcode| {
        node.host.with_device(|device| device.faults_mut().arm(Fault::CommandStatus { opcode, status: 8, syndrome: 1 }));
    };
    no_room(&node, 0x500);
    refused!(node.verbs.create_qp(&init), Enomem, CreateQpError::Device(Error::CommandStatus { .. }));
    node.verbs.destroy_cq(cqs[7]).unwrap();
    no_room(&node, 0x400);
    refused!(node.verbs.create_cq(1), Enomem, CreateCqError::Device(Error::CommandStatus { .. }));
    let cqs = [&cqs[..7], &[node.verbs.create_cq(1).unwrap()]].concat();
    assert_eq!(node.snapshot(), before);
    let qps: Vec<_> = (0..16).map(|_| node.verbs.create_qp(&init).unwrap()).collect();
    refused!(node.verbs.create_qp(&init), Enomem, CreateQpError::Full { capacity: 16, fitting: 16 });
    refused!(node.verbs.destroy_cq(cq), Ebusy, DestroyCqError::Busy { users: 32 });
    for qp in qps {
        node.verbs.destroy_qp(qp).unwrap();
    }
    for cq in cqs {
        node.verbs.destroy_cq(cq).unwrap();
        refused!(node.verbs.destroy_cq(cq), Einval, DestroyCqError::Stale);
        refused!(node.verbs.create_qp(&init), Einval, CreateQpError::StaleCq);
    }
    down(node);
    assert_nothing_left(&host);
}
