//! The `bareverbs` command.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

use bareverbs_cli::{cli::Cli, output, run, vm};
use clap::Parser as _;

fn main() -> std::process::ExitCode {
    match Cli::try_parse() {
        Ok(cli) => run::run(cli),
        Err(message) => {
            let status = output::parser_message(&message);
            // Any other status may be that of a command in a guest.
            if message.use_stderr() && vm::is_meant(std::env::args_os()) { vm::ERROR.into() } else { status }
        }
    }
}
