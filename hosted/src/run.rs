//! From the command line to an exit status.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use clap::CommandFactory as _;

use crate::args::UsageError;
use crate::cli::{Cli, Command, CommandCommand, EntryCommand, SelftestArgs, WqeCommand};
use crate::decode::{self, input::InputError};
use crate::perf::{self, args::PerfArgs};
use crate::pingpong::args::PingpongArgs;
use crate::serve::{
    self,
    args::{ServeArgs, SimCommand},
};
use crate::{bind, devices, info, output, pingpong, selftest};

/// Exit status after a mistake on the command line or unreadable input.
const USAGE: u8 = 2;

/// Exit status after Ctrl-C.
const INTERRUPTED: u8 = 130;

/// Does what the command line says.
pub fn run(cli: Cli) -> ExitCode {
    let done = match cli.command {
        None => run_selftest(&cli.selftest),
        Some(Command::Info(args)) => info::run(&args).map(|()| ExitCode::SUCCESS),
        Some(Command::Devices(args)) => devices::run(&args).map(|()| ExitCode::SUCCESS),
        Some(Command::Bind(args)) => return bind_functions(bind::bind(&args)),
        Some(Command::Unbind(args)) => return bind_functions(bind::unbind(&args)),
        Some(Command::Perf(args)) => run_perf(&args),
        Some(Command::Pingpong(args)) => run_pingpong(&args),
        Some(Command::Sim(SimCommand::Serve(args))) => return serve_devices(&args),
        Some(Command::Completions { shell }) => print(|text| complete(shell, text)),
        Some(Command::Man { into }) => write_manual(into.as_deref()),
        Some(Command::Wqe(WqeCommand::Decode(args))) => decode::wqe(&args),
        Some(Command::Cqe(EntryCommand::Decode(args))) => decode::cqe(&args),
        Some(Command::Eqe(EntryCommand::Decode(args))) => decode::eqe(&args),
        Some(Command::Command(CommandCommand::Decode(args))) => decode::firmware_command(&args),
    };
    done.unwrap_or_else(failed)
}

fn failed(error: anyhow::Error) -> ExitCode {
    eprintln!("bareverbs: {error:#}");
    if error.is::<UsageError>() || error.is::<InputError>() { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
}

/// Set by Ctrl-C from now on.
fn stop_flag() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let asked = stop.clone();
    ctrlc::set_handler(move || asked.store(true, Ordering::Relaxed)).context("Ctrl-C cannot be caught")?;
    Ok(stop)
}

/// Exit status of a job; tells people why it failed, if it did.
fn ended(failure: Option<&str>, interrupted: bool) -> ExitCode {
    if let Some(failure) = failure {
        eprintln!("bareverbs: {failure}");
        return ExitCode::FAILURE;
    }
    if interrupted { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS }
}

/// Writes the text of a job's report; what went wrong is told also if that cannot be done.
fn finish(text: &str, failure: Option<&str>, interrupted: bool) -> anyhow::Result<ExitCode> {
    let written = output::write(text);
    let status = ended(failure, interrupted);
    written.map(|()| status)
}

/// Prints what is written to `text`.
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

fn run_selftest(args: &SelftestArgs) -> anyhow::Result<ExitCode> {
    let report = selftest::run(args, stop_flag()?)?;
    let text = match (args.json, args.quiet) {
        (true, _) => serde_json::to_string_pretty(&report)? + "\n",
        (false, true) => String::new(),
        (false, false) => report.to_string(),
    };
    finish(&text, report.failure.as_deref(), report.interrupted)
}

fn bind_functions(done: anyhow::Result<()>) -> ExitCode {
    match done {
        Err(error) if bind::was_interrupted(&error) => {
            eprintln!("bareverbs: {error:#}");
            ExitCode::from(INTERRUPTED)
        }
        done => done.map_or_else(failed, |()| ExitCode::SUCCESS),
    }
}

fn run_perf(args: &PerfArgs) -> anyhow::Result<ExitCode> {
    let stop = stop_flag()?;
    let report = match perf::run(args, &stop) {
        Ok(report) => report,
        Err(mistake) => {
            eprintln!("bareverbs: {mistake}");
            return Ok(ExitCode::from(USAGE));
        }
    };
    let text = match (args.json, args.quiet) {
        (true, _) => serde_json::to_string_pretty(&report)? + "\n",
        (false, true) => String::new(),
        (false, false) => report.to_string(),
    };
    finish(&text, report.failure.as_deref(), report.interrupted)
}

fn run_pingpong(args: &PingpongArgs) -> anyhow::Result<ExitCode> {
    let report = pingpong::run(args, stop_flag()?)?;
    let text = if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { String::new() };
    finish(&text, report.failure.as_deref(), report.interrupted)
}

fn serve_devices(args: &ServeArgs) -> ExitCode {
    serve::run(args).unwrap_or_else(|error| {
        eprintln!("bareverbs: {error:#}");
        ExitCode::from(USAGE)
    })
}
