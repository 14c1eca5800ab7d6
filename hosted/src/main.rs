//! The `bareverbs` command.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

use bareverbs_cli::{cli::Cli, output, run};
use clap::Parser as _;

fn main() -> std::process::ExitCode {
    match Cli::try_parse() {
        Ok(cli) => run::run(cli),
        Err(message) => output::parser_message(&message),
    }
}
