//! Standard output and standard error of the command; no other module writes to them.
//!
//! `println!` and `eprintln!` panic if the write fails, so clippy denies them in this package.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context as _, Result};

/// Writes a text to standard output, whole and at once.
///
/// A reader that closed its end of a pipe is no error.
///
/// # Errors
/// The text could not be written, for example to a full file system.
pub fn write(text: &str) -> Result<()> {
    write_to(&mut io::stdout().lock(), text.as_bytes()).context("standard output")
}

/// Writes a line to standard error, after the name of the command.
///
/// A line that cannot be written is lost; the exit status still reports the failure.
pub fn report(message: impl fmt::Display) {
    note(format_args!("bareverbs: {message}"));
}

/// Writes a line to standard error without a prefix, otherwise as [`report`].
pub fn note(line: impl fmt::Display) {
    // There is no other output to report the error to.
    let _ = write_to(&mut io::stderr().lock(), format!("{line}\n").as_bytes());
}

/// Prints help or an error of the command line's parser. Returns the exit status.
pub fn parser_message(message: &clap::Error) -> ExitCode {
    let written = message.print().and_then(|()| io::stdout().lock().flush());
    match unless_closed(written) {
        // The exit status reports an error of the command line.
        Err(error) if !message.use_stderr() => {
            report(format_args!("standard output: {error}"));
            ExitCode::FAILURE
        }
        _ => ExitCode::from(u8::try_from(message.exit_code()).unwrap_or(u8::MAX)),
    }
}

fn write_to(out: &mut impl Write, text: &[u8]) -> io::Result<()> {
    unless_closed(out.write_all(text).and_then(|()| out.flush()))
}

/// Converts the result of a write: a reader that closed its end of a pipe is no error.
pub fn unless_closed(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Failing(io::ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_pipe_alone_is_no_error() {
        assert!(write_to(&mut Failing(io::ErrorKind::BrokenPipe), b"x\n").is_ok());
        let error = write_to(&mut Failing(io::ErrorKind::StorageFull), b"x\n").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
