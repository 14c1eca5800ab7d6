//! The `bareverbs` command.
#![forbid(unsafe_code)]

use clap::Parser as _;

fn main() -> std::process::ExitCode {
    bareverbs_hosted::run::run(bareverbs_hosted::cli::Cli::parse())
}
