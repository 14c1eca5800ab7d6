//! Standard output: where the subcommands write what they found.

use std::io::{self, Write};

use anyhow::{Context as _, Result};

/// Writes a text to standard output, whole and at once.
///
/// A reader that closed its end of a pipe wanted no more: that is no error.
///
/// # Errors
/// The text could not be written: a full file system, for one.
pub fn write(text: &str) -> Result<()> {
    write_to(&mut io::stdout().lock(), text)
}

fn write_to(out: &mut impl Write, text: &str) -> Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("standard output"),
        _ => Ok(()),
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
        assert!(write_to(&mut Failing(io::ErrorKind::BrokenPipe), "x\n").is_ok());
        let error = write_to(&mut Failing(io::ErrorKind::StorageFull), "x\n").unwrap_err();
        assert!(format!("{error:#}").starts_with("standard output: "), "{error:#}");
    }
}
