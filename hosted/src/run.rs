//! Runs the subcommand of a command line, and determines the exit status.

use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory as _;
use serde::Serialize;

use crate::args::UsageError;
use crate::cli::{Cli, Command, CommandCommand, EntryCommand, InfoArgs, SelftestArgs, WqeCommand};
use crate::decode::{self, input::InputError};
use crate::outcome::Outcome;
use crate::perf::{self, args::PerfArgs};
use crate::pingpong::args::PingpongArgs;
use crate::rdma_cm::program::Program;
use crate::serve::{
    self,
    args::{ServeArgs, SimCommand},
};
use crate::vm::args::VmArgs;
use crate::{bind, devices, doctor, export, info, output, pingpong, rdma_cm, selftest, stop, vm};

/// Exit status after an error of the command line or unreadable input.
const USAGE: u8 = 2;

/// Exit status after Ctrl-C.
const INTERRUPTED: u8 = 130;

/// Runs the subcommand of the command line.
pub fn run(cli: Cli) -> ExitCode {
    let done = match cli.command {
        None => return run_selftest(&cli.selftest),
        Some(Command::Info(args)) => return run_info(&args),
        Some(Command::Devices(args)) => return job(args.output.json, || devices::run(&args), devices::Listing::to_string),
        Some(Command::Doctor(args)) => {
            return job(args.output.json, || doctor::run(&args, &stop::on_ctrl_c()?), doctor::Report::to_string);
        }
        Some(Command::Bind(args)) => return job(args.change.output.json, || bind::bind(&args), bind::Changes::to_string),
        Some(Command::Unbind(args)) => return job(args.change.output.json, || bind::unbind(&args), bind::Changes::to_string),
        Some(Command::Perf(args)) => return run_perf(&args),
        Some(Command::Pingpong(args)) => return run_pingpong(&args),
        Some(Command::Rping(args)) => return run_rdma_cm(&*args),
        Some(Command::Ucmatose(args)) => return run_rdma_cm(&*args),
        Some(Command::Udaddy(args)) => return run_rdma_cm(&*args),
        Some(Command::Sim(SimCommand::Serve(args))) => return serve_devices(&args),
        Some(Command::Vm(args)) => return run_vm(*args),
        Some(Command::Completions { shell }) => print(|text| complete(shell, text)),
        Some(Command::Man { into }) => write_manual(into.as_deref()),
        Some(Command::Wqe(WqeCommand::Decode(args))) => decode::wqe(&args),
        Some(Command::Cqe(EntryCommand::Decode(args))) => decode::cqe(&args),
        Some(Command::Eqe(EntryCommand::Decode(args))) => decode::eqe(&args),
        Some(Command::Command(CommandCommand::Decode(args))) => decode::firmware_command(&args),
        Some(Command::Command(CommandCommand::Export(args))) => export::run(&args),
    };
    done.unwrap_or_else(failed)
}

fn failed(error: anyhow::Error) -> ExitCode {
    output::report(format_args!("{error:#}"));
    if error.is::<UsageError>() || error.is::<InputError>() { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
}

/// Result of a job with `--json`.
trait Report: Serialize {
    /// Returns how it ended; `None` for what succeeds, or has no report.
    fn outcome(&self) -> Option<&Outcome> {
        None
    }
}

macro_rules! reports {
    ($($report:ty),+) => {$(
        impl Report for $report {
            fn outcome(&self) -> Option<&Outcome> {
                Some(&self.outcome)
            }
        }
    )+};
}

reports!(selftest::Report, info::Report, doctor::Report, perf::report::Report, pingpong::report::Report);

impl<D: Serialize> Report for rdma_cm::Report<D> {
    fn outcome(&self) -> Option<&Outcome> {
        Some(&self.outcome)
    }
}

// These either succeed or have no report.
impl Report for devices::Listing {}
impl Report for bind::Changes {}

/// Runs a program that meets its peer by communication management.
fn run_rdma_cm<P: Program>(program: &P) -> ExitCode {
    job(program.cm().output.json, || rdma_cm::run::run(program, &stop::on_ctrl_c()?), rdma_cm::Report::to_string)
}

/// Runs a job and prints its result: as one JSON document if `json` is set, otherwise as `text` formats it. Also writes the reason of a
/// failure to standard error. Returns the exit status.
fn job<R: Report>(json: bool, run: impl FnOnce() -> anyhow::Result<R>, text: impl FnOnce(&R) -> String) -> ExitCode {
    match run() {
        Ok(report) => {
            let written = if json { write_json(&report) } else { output::write(&text(&report)) };
            // The reason is reported even if the report cannot be written.
            let status = ended(&report);
            written.map_or_else(failed, |()| status)
        }
        Err(error) => early_failure(json, &error),
    }
}

/// Reports the error of a job without a report, with `json` also as a document. Returns the exit status.
fn early_failure(json: bool, error: &anyhow::Error) -> ExitCode {
    let is_undone_change = bind::was_interrupted(error);
    let interrupted = error.is::<stop::Interrupted>() || is_undone_change;
    // An interrupted change also reports the restoration.
    let outcome = Outcome::new((!interrupted || is_undone_change).then(|| format!("{error:#}")), interrupted);
    if json && let Err(lost) = write_json(&outcome) {
        output::report(format_args!("{lost:#}"));
    }
    if let Some(failure) = outcome.failure {
        output::report(failure);
    }
    match error {
        _ if interrupted => ExitCode::from(INTERRUPTED),
        error if error.is::<UsageError>() => ExitCode::from(USAGE),
        _ => ExitCode::FAILURE,
    }
}

fn write_json(report: &impl Serialize) -> anyhow::Result<()> {
    output::write(&(serde_json::to_string_pretty(report)? + "\n"))
}

/// Returns the exit status of a job; reports why it failed, if it did.
fn ended(report: &impl Report) -> ExitCode {
    match report.outcome() {
        Some(Outcome { failure: Some(failure), .. }) => {
            output::report(failure);
            ExitCode::FAILURE
        }
        Some(Outcome { interrupted: true, .. }) => ExitCode::from(INTERRUPTED),
        _ => ExitCode::SUCCESS,
    }
}

/// Prints the text that `text` writes.
fn print(write: impl FnOnce(&mut Vec<u8>) -> anyhow::Result<()>) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    write(&mut text)?;
    output::write(&String::from_utf8(text)?).map(|()| ExitCode::SUCCESS)
}

fn complete(shell: clap_complete::Shell, text: &mut Vec<u8>) -> anyhow::Result<()> {
    clap_complete::generate(shell, &mut Cli::command(), "bareverbs", text);
    Ok(())
}

fn write_manual(into: Option<&Path>) -> anyhow::Result<ExitCode> {
    let Some(folder) = into else {
        return print(|text| Ok(clap_mangen::Man::new(Cli::command()).render(text)?));
    };
    let written = clap_mangen::generate_to(Cli::command(), folder);
    written.map_err(|error| UsageError::new(format!("{}: {error}", folder.display())))?;
    Ok(ExitCode::SUCCESS)
}

fn run_selftest(args: &SelftestArgs) -> ExitCode {
    let text = |report: &selftest::Report| if args.quiet { String::new() } else { report.to_string() };
    job(args.output.json, || selftest::run(args, stop::on_ctrl_c()?), text)
}

fn run_info(args: &InfoArgs) -> ExitCode {
    job(args.output.json, || info::run(args, stop::on_ctrl_c()?), info::Report::to_string)
}

fn run_perf(args: &PerfArgs) -> ExitCode {
    let run = || perf::run(args, &stop::on_ctrl_c()?).map_err(|mistake| UsageError::new(mistake).into());
    job(args.output.json, run, |report| if args.quiet { String::new() } else { report.to_string() })
}

fn run_pingpong(args: &PingpongArgs) -> ExitCode {
    // Its lines were printed as they became known, in the format of the tools.
    job(args.output.json, || pingpong::run(args, stop::on_ctrl_c()?), |_| String::new())
}

fn run_vm(args: VmArgs) -> ExitCode {
    vm::run(args).unwrap_or_else(|error| {
        output::report(format_args!("vm: {error:#}"));
        ExitCode::from(vm::ERROR)
    })
}

fn serve_devices(args: &ServeArgs) -> ExitCode {
    serve::run(args).unwrap_or_else(|error| {
        output::report(format_args!("{error:#}"));
        ExitCode::from(USAGE)
    })
}
