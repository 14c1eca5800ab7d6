//! The main job: two simulated devices joined by a wire, brought up by the driver, and every verb used between them.

mod bed;
mod pattern;
mod progress;
mod refusal;
mod report;
mod side;
mod transfers;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bareverbs::{MwHandle, Psn, Rkey};
use bareverbs_sim::in_process::{Host, World, WorldConfig};
use bareverbs_sim::wire::WireFaults;
use bareverbs_sim::{DeviceConfig, PageDemand};

use self::bed::{Bed, Moved};
use self::progress::Progress;
use self::side::{Areas, Side};
use crate::cli::JobArgs;
use crate::simulated::{Verbs, bring_up};
use crate::trace::{Printer, Sink};

pub use report::{Device, Limits, Options, Port, Refused, Report, Teardown, Transfer, Window, Wire};

/// First PSNs of the two directions: close to the end of their 24 bits, so that every run crosses it.
const FIRST_PSNS: (u32, u32) = (0xff_ff80, 0xff_fff0);
/// Kinds of message: rows of the table.
const KINDS: u64 = 9;

/// Runs the main job. `stop` ends it early, cleanly. The report says what was done also if something failed.
pub fn run(args: &JobArgs, trace: Option<&Sink>, stop: Arc<AtomicBool>) -> Report {
    let started = Instant::now();
    let mut report = Report { options: options(args), ..Report::default() };
    let world = World::new(WorldConfig { faults: faults(args), seed: args.seed, ..WorldConfig::default() });
    let mut job = Job { args, trace, stop, world: world.clone(), report: &mut report };
    let result = job.run();
    report.seconds = started.elapsed().as_secs_f64();
    report.simulated_seconds = Duration::from_nanos(world.now().as_nanos()).as_secs_f64();
    let wire = world.wire_stats();
    report.wire = Wire {
        sent: wire.sent,
        delivered: wire.delivered,
        lost: wire.lost,
        duplicated: wire.duplicated,
        reordered: wire.reordered,
        delayed: wire.delayed,
    };
    report.ok = result.is_ok() && !report.interrupted;
    report.failure = result.err().map(|error| format!("{error:#}"));
    report
}

fn options(args: &JobArgs) -> Options {
    Options {
        messages: args.messages,
        size: args.size,
        iterations: args.iterations,
        mtu: mtu(args).bytes(),
        seed: args.seed,
        loss: args.loss,
        duplicate: args.duplicate,
        reorder: args.reorder,
        delay: args.delay,
    }
}

fn mtu(args: &JobArgs) -> bareverbs::Mtu {
    let codes = 1..=5;
    let named = codes.filter_map(bareverbs::Mtu::from_encoding).find(|mtu| mtu.bytes().to_string() == args.mtu);
    // The command line takes the five names only.
    named.unwrap_or_default()
}

fn faults(args: &JobArgs) -> WireFaults {
    // The command line takes 0 to 20 per cent.
    let per_mille = |per_cent: f64| (per_cent * 10.0).round() as u16;
    WireFaults {
        loss: per_mille(args.loss),
        duplication: per_mille(args.duplicate),
        reordering: per_mille(args.reorder),
        delay: per_mille(args.delay),
        ..WireFaults::all(0)
    }
}

struct Job<'a> {
    args: &'a JobArgs,
    trace: Option<&'a Sink>,
    stop: Arc<AtomicBool>,
    world: World,
    report: &'a mut Report,
}

impl Job<'_> {
    fn run(&mut self) -> Result<()> {
        let areas = Areas::new(self.args.size as usize);
        let (host_a, verbs_a) = self.machine("device a", 1)?;
        let (host_b, verbs_b) = self.machine("device b", 2)?;
        let a = Side::new("device a", host_a.clone(), verbs_a, areas).context("device a")?;
        let b = Side::new("device b", host_b, verbs_b, areas).context("device b")?;
        let total = KINDS * u64::from(self.args.messages) * u64::from(self.args.iterations);
        let progress = Progress::new(total, !self.args.quiet && !self.args.trace.trace, self.stop.clone());
        let clock = host_a.clock();
        let (seed, loses) = (self.args.seed, self.args.loss > 0.0);
        let mut bed = Bed { world: self.world.clone(), clock, a, b, progress, seed, loses, first: 0 };
        connect(&mut bed, mtu(self.args))?;
        let (window, first) = bed.b.alloc_window()?;
        let rkey = bed.bind(window).context("the first bind")?;
        self.report.window =
            Some(Window { length: bed.b.areas.window() as u64, first_rkey: first.get(), bound_rkey: rkey.get() });
        let moved = self.move_data(&mut bed, window, rkey);
        self.report.interrupted = bed.progress.is_stopped();
        moved?;
        bed.unbind(window).context("the unbind")?;
        let Bed { a, b, progress, .. } = bed;
        drop(progress);
        self.take_down(a, None)?;
        self.take_down(b, Some(window))
    }

    /// A machine with its device, up; what was found goes into the report.
    fn machine(&mut self, name: &'static str, lid: u16) -> Result<(Host, Box<Verbs>)> {
        let mut config = DeviceConfig::with_lid(lid);
        if self.args.no_firmware_pages {
            config.pages = PageDemand::NONE;
        }
        let host = self.world.add(config);
        if let Some(sink) = self.trace {
            let printer = Printer::new(name.replace("device ", ""), sink.clone());
            host.with_device(|device| device.set_tracer(Some(Box::new(printer))));
        }
        let started = Instant::now();
        let mut verbs = bring_up(&host).with_context(|| name.to_string())?;
        let mut found = crate::info::device(name, &mut verbs).with_context(|| name.to_string())?;
        // The part number stands in PCI configuration space, which the driver does not see.
        found.vendor_part_id = host.with_device(|device| device.config().pci_device_id).into();
        found.seconds = started.elapsed().as_secs_f64();
        self.report.devices.push(found);
        Ok((host, verbs))
    }

    fn move_data(&mut self, bed: &mut Bed, window: MwHandle, mut rkey: Rkey) -> Result<()> {
        let count = u64::from(self.args.messages);
        for iteration in 0..u64::from(self.args.iterations) {
            bed.first = iteration * count;
            self.row(bed, "SEND ping-pong", |bed, moved| bed.ping_pong(moved, count))?;
            self.row(bed, "SEND_WITH_IMM", |bed, moved| bed.send_imm(moved, count))?;
            self.row(bed, "RDMA_WRITE inline", |bed, moved| bed.write_inline(moved, count, rkey))?;
            self.row(bed, "RDMA_WRITE", |bed, moved| bed.write(moved, count, rkey))?;
            self.row(bed, "RDMA_WRITE_WITH_IMM", |bed, moved| bed.write_imm(moved, count, rkey))?;
            self.row(bed, "RDMA_READ", |bed, moved| bed.read(moved, count, rkey))?;
            self.row(bed, "FETCH_AND_ADD", |bed, moved| bed.fetch_add(moved, count, rkey))?;
            self.row(bed, "CMP_AND_SWP", |bed, moved| bed.compare_swap(moved, count, rkey))?;
            if bed.progress.is_stopped() {
                break;
            }
            let mtu = mtu(self.args);
            let (new, refused) = bed.refuse_old_key(window, rkey, |bed| connect(bed, mtu)).context("the old rkey")?;
            rkey = new;
            self.report.refused = Some(refused);
        }
        Ok(())
    }

    /// Runs one kind of message and adds it to the table.
    fn row(&mut self, bed: &mut Bed, what: &'static str, work: impl FnOnce(&mut Bed, &mut Moved) -> Result<()>) -> Result<()> {
        if bed.progress.is_stopped() {
            return Ok(());
        }
        let (done, result) = bed.measure(what, work);
        let rows = &mut self.report.transfers;
        match rows.iter_mut().find(|row| row.what == what) {
            Some(row) => row.add(&done),
            None => rows.push(done.finish()),
        }
        result.context(what)
    }

    fn take_down(&mut self, mut side: Side, window: Option<MwHandle>) -> Result<()> {
        side.destroy(window).with_context(|| format!("the end of {}", side.name))?;
        let Side { name, host, verbs, .. } = side;
        let backend = (*verbs).into_provider();
        let findings =
            || host.with_device(|device| device.audit().findings().iter().map(|found| format!("{found:?}")).collect());
        let report = match backend.teardown() {
            Ok((_machine, report)) => report,
            Err((error, _machine)) => return Err(error).with_context(|| format!("teardown of {name}")),
        };
        let (commands, findings): (_, Vec<String>) = (host.with_device(|device| device.stats().commands), findings());
        let is_clean = findings.is_empty();
        let (pages_given, pages_back) = (report.pages_given.into(), report.pages_back.into());
        self.report.teardown.push(Teardown { name: name.into(), commands, pages_given, pages_back, findings });
        if pages_given != pages_back {
            bail!("{name} kept {} firmware pages", report.pages_kept);
        }
        if !is_clean {
            bail!("{name} found mistakes of the driver");
        }
        Ok(())
    }
}

/// Connects the two queue pairs.
fn connect(bed: &mut Bed, mtu: bareverbs::Mtu) -> Result<()> {
    let (a, b) = (Psn::new(FIRST_PSNS.0), Psn::new(FIRST_PSNS.1));
    let (to_a, to_b) = ((bed.a.lid, bed.a.qpn), (bed.b.lid, bed.b.qpn));
    bed.a.connect(to_b, mtu, (a, b))?;
    bed.b.connect(to_a, mtu, (b, a))
}
