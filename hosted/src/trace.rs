//! The trace of a job on simulated devices, according to the command line.

use std::fs::File;
use std::io::{self, BufWriter, Write};

use anyhow::{Context as _, Result};
use bareverbs_serve::trace::Sink;

use crate::args::{TraceArgs, UsageError};
use crate::outcome::Outcome;

/// Creates the sink that the command line requests, if any.
///
/// # Errors
/// The file cannot be created; the error names it.
pub fn sink(args: &TraceArgs) -> Result<Option<Sink>> {
    if !args.trace && args.trace_file.is_none() {
        return Ok(None);
    }
    let mut outputs: Vec<Box<dyn Write + Send>> = Vec::new();
    if args.trace {
        outputs.push(Box::new(BufWriter::new(io::stderr())));
    }
    if let Some(path) = &args.trace_file {
        let file = File::create(path).map_err(|error| UsageError::new(format!("{}: {error}", path.display())))?;
        outputs.push(Box::new(BufWriter::new(file)));
    }
    Ok(Some(Sink::new(outputs)))
}

/// Ends a trace, if there is one.
///
/// # Errors
/// A part of the trace could not be written.
pub fn finish(sink: Option<&Sink>) -> Result<()> {
    sink.map_or(Ok(()), Sink::finish).context("the trace")
}

/// Ends the trace of a job, if there is one. What cannot be written of it is a failure of the job.
pub fn finish_job(sink: Option<&Sink>, outcome: &mut Outcome) {
    if let Err(error) = finish(sink) {
        outcome.add_failure(format_args!("{error:#}"));
    }
}

/// Refuses a trace of a card, which does not report its actions.
///
/// # Errors
/// The command line requests a trace.
pub fn refuse(args: &TraceArgs) -> Result<()> {
    if args.trace || args.trace_file.is_some() {
        return Err(
            UsageError::new("a trace: only simulated devices report what they do; leave --trace and --trace-file out").into()
        );
    }
    Ok(())
}
