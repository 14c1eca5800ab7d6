//! The self-test: the driver brings up one device or two, and two ends use every verb between them.

mod buffer_layout;
mod end;
mod harness;
mod report;
mod stale_rkey;
mod transfers;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bareverbs::{GidEntry, Lid, LinkLayer, MwHandle, PortAttr, Psn, Rkey};
use bareverbs_sim::PageDemand;
use bareverbs_sim::in_process::{World, WorldConfig};
use bareverbs_sim::wire::{Probability, WireFaults};

use self::buffer_layout::BufferLayout;
use self::end::{Connection, PORT, RetryTimes, SelftestEnd};
use self::harness::{Harness, Moved};
use crate::args::UsageError;
use crate::cli::SelftestArgs;
use crate::device::selection::DeviceSelection;
use crate::device::simulated::Simulated;
use crate::device::vfio::Card;
use crate::device::{Device, DevicePair, Host, Role};
use crate::outcome::Outcome;
use crate::progress::Progress;
use crate::stop::Interrupted;
use crate::trace;

pub use report::{DeviceReport, Options, Port, Refused, Report, Teardown, Transfer, Window, Wire};

/// First PSNs of the two directions, close to the maximum of 24 bits, so that every run wraps around.
const FIRST_PSNS: (u32, u32) = (0xff_ff80, 0xff_fff0);
/// Difference of the first PSNs of successive connections. A delayed packet of the connection before is then a duplicate, which
/// has no effect, and never the expected request.
const PSN_STEP: u32 = 1 << 22;
/// Messages of one iteration for each `--messages`: one for each row of the table, two for the ping-pong.
const KINDS: u64 = 9;

/// Runs the self-test of a command line. `stop` ends it early. The report has the results so far even after a failure.
///
/// # Errors
/// The command line has a mistake ([`UsageError`]), or a device or the trace cannot be opened.
pub fn run(args: &SelftestArgs, stop: Arc<AtomicBool>) -> Result<Report> {
    match DeviceSelection::new(&args.device).map_err(UsageError::new)? {
        DeviceSelection::Simulated(given) => run_simulated(args, given != 1, stop),
        DeviceSelection::Pci { first, second, .. } => {
            refuse_simulated_options(args)?;
            let first = Card::open(first, &stop)?;
            let second = second.map(|address| Card::open(address, &stop)).transpose()?;
            Ok(run_on(args, options(args), first, second, stop))
        }
    }
}

/// Runs on simulated devices: one for each end if `two`, otherwise one for both.
fn run_simulated(args: &SelftestArgs, two: bool, stop: Arc<AtomicBool>) -> Result<Report> {
    args.simulation.check(if two { 2 } else { 1 })?;
    let sink = trace::sink(&args.trace)?;
    let config = WorldConfig { faults: faults(args), seed: args.seed, ..WorldConfig::default() };
    let world = World::new(args.simulation.world(config));
    let host = |label: &str, lid| {
        let mut config = args.simulation.device(lid);
        if args.no_firmware_pages {
            config.pages = PageDemand::NONE;
        }
        let host = Simulated::new(&format!("device {label}"), world.add(config)?);
        args.simulation.arm(host.inner());
        if let Some(sink) = &sink {
            host.trace(label, sink);
        }
        Ok::<_, anyhow::Error>(host)
    };
    let first = host("a", 1)?;
    let second = two.then(|| host("b", 2)).transpose()?;
    let options = Options {
        loss: Some(args.loss.as_per_cent()),
        duplicate: Some(args.duplicate.as_per_cent()),
        reorder: Some(args.reorder.as_per_cent()),
        delay: Some(args.delay.as_per_cent()),
        ..options(args)
    };
    let mut report = run_on(args, options, first, second, stop);
    report.simulated_seconds = Some(Duration::from_nanos(world.now().as_nanos()).as_secs_f64());
    let wire = world.wire_stats();
    report.wire = Some(Wire {
        sent: wire.sent,
        delivered: wire.delivered,
        lost: wire.lost,
        duplicated: wire.duplicated,
        reordered: wire.reordered,
        delayed: wire.delayed,
    });
    trace::finish_job(sink.as_ref(), &mut report.outcome);
    Ok(report)
}

/// Refuses options that only simulated devices support.
fn refuse_simulated_options(args: &SelftestArgs) -> Result<()> {
    let faults = [
        ("--loss", args.loss != Probability::NEVER),
        ("--duplicate", args.duplicate != Probability::NEVER),
        ("--reorder", args.reorder != Probability::NEVER),
        ("--delay", args.delay != Probability::NEVER),
    ];
    if let Some((name, _)) = faults.into_iter().find(|(_, is_given)| *is_given) {
        return Err(UsageError::new(format!("{name}: only simulated wires have faults to inject; leave it out")).into());
    }
    if args.no_firmware_pages {
        let reason = "--no-firmware-pages: the firmware of a card requests the pages that it needs; leave it out";
        return Err(UsageError::new(reason).into());
    }
    args.simulation.refuse()?;
    trace::refuse(&args.trace)
}

fn run_on<H: Host>(args: &SelftestArgs, options: Options, first: H, second: Option<H>, stop: Arc<AtomicBool>) -> Report {
    let started = Instant::now();
    let mut report = Report { options, ..Report::default() };
    let result = Job { args, stop, report: &mut report }.run(first, second);
    report.seconds = started.elapsed().as_secs_f64();
    let interrupted = report.outcome.interrupted || matches!(&result, Err(error) if error.is::<Interrupted>());
    let failure = result.err().filter(|error| !error.is::<Interrupted>()).map(|error| format!("{error:#}"));
    report.outcome = Outcome::new(failure, interrupted);
    report
}

fn options(args: &SelftestArgs) -> Options {
    Options {
        messages: args.messages,
        size: args.size,
        iterations: args.iterations,
        mtu: args.mtu.bytes(),
        seed: args.seed,
        ..Options::default()
    }
}

fn faults(args: &SelftestArgs) -> WireFaults {
    WireFaults { loss: args.loss, duplication: args.duplicate, reordering: args.reorder, delay: args.delay, ..WireFaults::NONE }
}

struct Job<'a> {
    args: &'a SelftestArgs,
    stop: Arc<AtomicBool>,
    report: &'a mut Report,
}

impl Job<'_> {
    fn run<H: Host>(&mut self, first: H, second: Option<H>) -> Result<()> {
        let first = self.bring_up(first)?;
        let second = match second.map(|host| self.bring_up(host)).transpose() {
            Ok(second) => second,
            Err(error) => {
                // The first device is torn down. The error of the second is the one to report.
                let _ = self.take_down(first);
                return Err(error);
            }
        };
        let (devices, result) = self.work(DevicePair::new(first, second));
        // All devices are torn down even after an error. The first error is reported.
        devices.into_devices().fold(result, |result, device| {
            let end = self.take_down(device);
            result.and(end)
        })
    }

    /// Brings a device up and adds it to the report.
    fn bring_up<H: Host>(&mut self, host: H) -> Result<Device<H>> {
        let started = Instant::now();
        let mut device = Device::bring_up(host, &self.stop)?;
        match DeviceReport::new(&mut device) {
            Ok(found) => {
                self.report.devices.push(DeviceReport { seconds: started.elapsed().as_secs_f64(), ..found });
                Ok(device)
            }
            Err(error) => {
                let error = error.context(device.host.name().to_string());
                // The error of the query is the one to report.
                let _ = self.take_down(device);
                Err(error)
            }
        }
    }

    /// Runs the test on devices that are up. Returns them for the teardown.
    fn work<H: Host>(&mut self, mut devices: DevicePair<H>) -> (DevicePair<H>, Result<()>) {
        let (a, b) = match self.ends(&mut devices) {
            Ok(ends) => ends,
            Err(error) => return (devices, Err(error)),
        };
        let total = KINDS * u64::from(self.args.messages) * u64::from(self.args.iterations);
        let progress = Progress::new(total, "messages", self.has_progress(), self.stop.clone());
        let (seed, loses) = (self.args.seed, self.args.loss != Probability::NEVER);
        let mut harness = Harness { devices, a, b, progress, seed, loses, connections: 0, first: 0 };
        let mut window = None;
        let result = self.exchange(&mut harness, &mut window);
        self.report.outcome.interrupted = harness.progress.is_stopped();
        let Harness { mut devices, a, b, .. } = harness;
        let (name_a, name_b) = (a.name.clone(), b.name.clone());
        let ends = [
            a.destroy(devices.of(Role::Client), None).with_context(|| format!("the end of {name_a}")),
            b.destroy(devices.of(Role::Server), window).with_context(|| format!("the end of {name_b}")),
        ];
        let ends = [Role::Client, Role::Server].into_iter().zip(ends).map(|(role, end)| devices.of(role).unless_stopped(end));
        let result = ends.fold(result, Result::and);
        (devices, result)
    }

    /// Returns whether a terminal shows the progress.
    const fn has_progress(&self) -> bool {
        !self.args.quiet && !self.args.trace.trace
    }

    fn ends<H: Host>(&mut self, devices: &mut DevicePair<H>) -> Result<(SelftestEnd<H>, SelftestEnd<H>)> {
        let port_a = self.active_port(devices, Role::Client)?;
        let port_b = self.active_port(devices, Role::Server)?;
        let is_simulated = devices.of(Role::Client).host.simulated().is_some();
        let times = if is_simulated { RetryTimes::SIMULATED } else { RetryTimes::CARD };
        let atomics = devices.iter_mut().all(|device| device.verbs.query_device().atomics);
        // A card sends what the path MTU says; a port drops what is longer than its own MTU.
        let mtu = self.args.mtu.min(port_a.active_mtu).min(port_b.active_mtu);
        self.report.options.mtu = mtu.bytes();
        let windows = devices.of(Role::Server).verbs.query_device().max_mw != 0;
        let connection = Connection { mtu, times, atomics, windows };
        let layout = BufferLayout::new(self.args.size as usize);
        let mut end = |side, lid: Lid| {
            let name = devices.name(side);
            SelftestEnd::new(&name, devices.of(side), lid, layout, connection).context(name)
        };
        Ok((end(Role::Client, port_a.lid)?, end(Role::Server, port_b.lid)?))
    }

    /// Waits until the port of an end is active, and reports it as it is then. An Ethernet port gets its link-local address as GID 0.
    fn active_port<H: Host>(&mut self, devices: &mut DevicePair<H>, role: Role) -> Result<PortAttr> {
        let (has_line, device) = (self.has_progress(), devices.of(role));
        let port = device.active_port(PORT, has_line, &self.stop)?;
        if port.link_layer == LinkLayer::Ethernet {
            device.verbs.set_gid(PORT, 0, &GidEntry::link_local(port.mac)).context("set_gid")?;
        }
        let reported = match role {
            Role::Client => self.report.devices.first_mut(),
            Role::Server => self.report.devices.last_mut(),
        };
        if let Some(reported) = reported {
            reported.port = Port::query(device)?;
        }
        Ok(port)
    }

    /// Connects, binds the window, transfers data, and unbinds. Stores the window in `window`, for its deallocation. A device without
    /// windows is accessed by the key of the region.
    fn exchange<H: Host>(&mut self, harness: &mut Harness<H>, window: &mut Option<MwHandle>) -> Result<()> {
        connect(harness)?;
        if !harness.b.has_windows() {
            return self.move_data(harness, None, harness.b.key());
        }
        let (handle, first) = harness.b.alloc_window(harness.devices.of(Role::Server))?;
        *window = Some(handle);
        let rkey = harness.bind(handle).context("the first bind")?;
        self.report.window =
            Some(Window { length: harness.b.layout.window() as u64, first_rkey: first.get(), bound_rkey: rkey.get() });
        self.move_data(harness, Some(handle), rkey)?;
        harness.unbind(handle).context("the unbind")
    }

    fn move_data<H: Host>(&mut self, harness: &mut Harness<H>, window: Option<MwHandle>, mut rkey: Rkey) -> Result<()> {
        let count = u64::from(self.args.messages);
        for iteration in 0..u64::from(self.args.iterations) {
            harness.first = iteration * count;
            self.row(harness, "SEND ping-pong", |harness, moved| harness.ping_pong(moved, count))?;
            self.row(harness, "SEND_WITH_IMM", |harness, moved| harness.send_imm(moved, count))?;
            self.row(harness, "RDMA_WRITE inline", |harness, moved| harness.write_inline(moved, count, rkey))?;
            self.row(harness, "RDMA_WRITE", |harness, moved| harness.write(moved, count, rkey))?;
            self.row(harness, "RDMA_WRITE_WITH_IMM", |harness, moved| harness.write_imm(moved, count, rkey))?;
            self.row(harness, "RDMA_READ", |harness, moved| harness.read(moved, count, rkey))?;
            if harness.a.has_atomics() {
                self.row(harness, "FETCH_AND_ADD", |harness, moved| harness.fetch_add(moved, count, rkey))?;
                self.row(harness, "CMP_AND_SWP", |harness, moved| harness.compare_swap(moved, count, rkey))?;
            }
            if harness.progress.is_stopped() {
                break;
            }
            let Some(window) = window else { continue };
            let (new, refused) = harness.refuse_old_key(window, rkey, connect).context("the old rkey")?;
            rkey = new;
            self.report.refused = Some(refused);
        }
        Ok(())
    }

    /// Runs the messages of one row of the table.
    fn row<H: Host>(
        &mut self,
        harness: &mut Harness<H>,
        what: &'static str,
        work: impl FnOnce(&mut Harness<H>, &mut Moved) -> Result<()>,
    ) -> Result<()> {
        if harness.progress.is_stopped() {
            return Ok(());
        }
        let (done, result) = harness.measure(what, work);
        let rows = &mut self.report.transfers;
        match rows.iter_mut().find(|row| row.what == what) {
            Some(row) => row.add(&done),
            None => rows.push(done.finish()),
        }
        result.context(what)
    }

    fn take_down<H: Host>(&mut self, device: Device<H>) -> Result<()> {
        let name = device.host.name().to_string();
        let simulated = device.host.simulated().cloned();
        // The driver's count lacks the commands of the teardown. A simulated device counts those too.
        let issued = u64::from(device.verbs.provider().statistics().commands);
        let report = device.teardown()?;
        let (commands, findings) = match simulated {
            Some(host) => host.with_device(|device| {
                let findings: Vec<_> = device.audit().findings().iter().map(|found| format!("{found:?}")).collect();
                (device.stats().commands, Some(findings))
            }),
            None => (issued, None),
        };
        let is_clean = findings.as_ref().is_none_or(Vec::is_empty);
        let (pages_given, pages_back) = (report.pages_given.into(), report.pages_back.into());
        self.report.teardown.push(Teardown { name: name.clone(), commands, pages_given, pages_back, findings });
        if pages_given != pages_back {
            bail!("{name} kept {} firmware pages", report.pages_kept);
        }
        if !is_clean {
            bail!("{name} reports driver mistakes");
        }
        Ok(())
    }
}

/// Connects the two queue pairs.
fn connect<H: Host>(harness: &mut Harness<H>) -> Result<()> {
    let start = PSN_STEP.wrapping_mul(harness.connections);
    harness.connections = harness.connections.wrapping_add(1);
    let psn = |first: u32| Psn::new(first.wrapping_add(start) & 0xff_ffff);
    let (a, b) = (psn(FIRST_PSNS.0), psn(FIRST_PSNS.1));
    let (to_a, to_b) = (harness.a.address, harness.b.address);
    harness.a.connect(harness.devices.of(Role::Client), &to_b, (a, b))?;
    harness.b.connect(harness.devices.of(Role::Server), &to_a, (b, a))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use bareverbs_sim::DeviceConfig;
    use clap::Parser as _;

    use super::*;
    use crate::cli::Cli;

    fn args(more: &[&str]) -> SelftestArgs {
        Cli::parse_from([&["bareverbs", "-n", "5", "-s", "100", "-q"], more].concat()).selftest
    }

    fn refusal(more: &[&str]) -> String {
        let error = run(&args(more), Arc::default()).unwrap_err();
        assert!(error.is::<UsageError>(), "{error:#}");
        error.to_string()
    }

    #[test]
    fn options_of_simulated_devices_are_refused_for_a_card() {
        for option in ["--loss=1", "--duplicate=1", "--reorder=1", "--delay=1", "--no-firmware-pages", "--trace"] {
            let error = refusal(&["--device", "01:00.0", option]);
            assert!(error.contains(option.split('=').next().unwrap()), "{error}");
        }
        assert!(refusal(&["--device", "01:00.0", "--device", "simulated"]).contains("no wire"));
    }

    /// A simulated device without the reports that a card does not have.
    struct Card(Simulated, Arc<AtomicBool>);

    impl Host for Card {
        type Platform = <Simulated as Host>::Platform;
        type Buffer = <Simulated as Host>::Buffer;

        fn name(&self) -> &str {
            "0000:01:00.0"
        }

        fn machine(&self, arena: usize) -> Result<bareverbs::platform::Machine<Self::Platform>> {
            self.0.machine(arena)
        }

        fn buffer(&self, len: usize) -> Result<Self::Buffer> {
            self.0.buffer(len)
        }

        fn now(&self) -> bareverbs::platform::Instant {
            self.0.now()
        }

        fn relax(&self) {
            self.0.relax();
        }

        fn wait(&self, timeout: Duration) -> Result<bool> {
            // Ctrl-C is simulated during a wait.
            self.1.store(true, Ordering::Relaxed);
            self.0.wait(timeout)
        }

        fn pci_ids(&self) -> (u16, u8) {
            self.0.pci_ids()
        }
    }

    fn card(config: DeviceConfig) -> Card {
        Card(Simulated::new("", World::new(WorldConfig::default()).add(config).unwrap()), Arc::default())
    }

    #[test]
    fn a_port_that_requires_global_routes_gets_them() {
        let args = args(&[]);
        let config = DeviceConfig { grh_required: true, ..DeviceConfig::with_lid(9) };
        let report = run_on(&args, options(&args), card(config), None, Arc::default());
        assert!(report.outcome.ok, "{:?}", report.outcome.failure);
    }

    #[test]
    fn an_ethernet_port_passes_every_transfer() {
        let args = args(&[]);
        let report = run_on(&args, options(&args), card(DeviceConfig::with_lid(9).with_ethernet()), None, Arc::default());
        assert!(report.outcome.ok, "{:?}", report.outcome.failure);
        assert_eq!(report.transfers.len(), 8);
        let text = report.to_string();
        assert!(text.contains("both sides, looped back through the port's own address"), "{text}");
    }

    #[test]
    fn values_that_a_card_does_not_report_are_absent() {
        let args = args(&[]);
        let report = run_on(&args, options(&args), card(DeviceConfig::with_lid(9)), None, Arc::default());
        assert!(report.outcome.ok, "{:?}", report.outcome.failure);
        let text = report.to_string();
        for word in ["retries", "wire ", "devices' time", "driver mistake"] {
            assert!(!text.contains(word), "{word} in\n{text}");
        }
        assert!(text.contains("both sides, looped back through LID 9"), "{text}");
        let json = serde_json::to_value(&report).unwrap();
        for absent in ["/wire", "/simulated_seconds", "/options/loss", "/transfers/0/retries", "/teardown/0/findings"] {
            assert_eq!(json.pointer(absent), None, "{absent}");
        }
        assert_eq!((json["transfers"].as_array().unwrap().len(), json["devices"].as_array().unwrap().len()), (8, 1));
    }

    #[test]
    fn a_port_that_is_not_active_is_an_error_and_the_device_is_torn_down() {
        let args = args(&[]);
        for (config, remedy) in [
            (DeviceConfig { link_up: false, ..DeviceConfig::default() }, "check the cable"),
            (DeviceConfig { managed: true, ..DeviceConfig::default() }, "opensm"),
        ] {
            let report = run_on(&args, options(&args), card(config), None, Arc::default());
            let failure = report.outcome.failure.unwrap();
            assert!(failure.contains("0000:01:00.0: port 1") && failure.contains(remedy), "{failure}");
            assert!(report.transfers.is_empty() && report.window.is_none());
            assert_eq!(report.teardown.len(), 1);
        }
    }

    #[test]
    fn a_stop_while_waiting_for_a_port_is_an_interruption() {
        let args = args(&[]);
        let config = DeviceConfig { link_up: false, ..DeviceConfig::default() };
        let host = card(config);
        let stop = host.1.clone();
        let report = run_on(&args, options(&args), host, None, stop);
        assert_eq!((report.outcome.interrupted, report.outcome.ok, report.outcome.failure), (true, false, None));
        assert_eq!(report.teardown.len(), 1);
    }

    #[test]
    fn a_device_without_atomics_runs_the_other_operations() {
        let args = args(&[]);
        let config = DeviceConfig { atomics: false, ..DeviceConfig::default() };
        let report = run_on(&args, options(&args), card(config), None, Arc::default());
        assert!(report.outcome.ok, "{:?}", report.outcome.failure);
        assert_eq!(report.transfers.len(), 6);
    }

    /// Some virtual functions have no windows, as their firmware restricts what requests may change of a key.
    #[test]
    fn a_device_without_windows_is_accessed_by_the_key_of_the_region() {
        let args = args(&[]);
        let config = DeviceConfig { restricted_umr: true, ..DeviceConfig::default() };
        let report = run_on(&args, options(&args), card(config), None, Arc::default());
        assert!(report.outcome.ok, "{:?}", report.outcome.failure);
        assert_eq!((report.transfers.len(), report.window.is_none(), report.refused.is_none()), (8, true, true));
    }

    /// Moments are writes to the registers: firmware commands and doorbells, from the first of the bring-up to the last of the teardown.
    #[test]
    fn a_device_that_is_pulled_out_at_any_moment_ends_the_job_with_the_reason() {
        let args = args(&[]);
        let (mut failures, mut moments) = (Vec::new(), (0..).step_by(2));
        loop {
            let writes = moments.next().unwrap();
            let world = World::new(WorldConfig::default());
            let host = Simulated::new("device a", world.add(DeviceConfig::with_lid(9)).unwrap());
            host.inner().with_device(|device| device.remove_after(writes));
            let report = run_on(&args, options(&args), host, None, Arc::default());
            if report.outcome.ok {
                break;
            }
            let failure = report.outcome.failure.unwrap();
            assert!(failure.contains("device a") && failure.contains("the device is gone"), "after {writes} writes: {failure}");
            let took = Duration::from_nanos(world.now().as_nanos());
            assert!(took < Duration::from_secs(5), "after {writes} writes: {took:?}");
            failures.push(failure);
        }
        let count = |phase: &str| failures.iter().filter(|failure| failure.contains(phase)).count();
        let (bring_up, teardown) = (count("bring-up"), count("teardown"));
        assert!(bring_up > 10 && teardown > 2 && failures.len() > bring_up + teardown + 20, "{failures:#?}");
        for phase in ["connecting queue pair", "the first bind", "SEND ping-pong", "RDMA_WRITE", "the end of side"] {
            assert!(count(phase) != 0, "never in '{phase}'");
        }
    }
}
