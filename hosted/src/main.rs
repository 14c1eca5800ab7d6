//! The `bareverbs` command.
#![forbid(unsafe_code)]

use clap::Parser as _;

fn main() -> std::process::ExitCode {
    bareverbs_cli::run::run(bareverbs_cli::cli::Cli::parse())
}
