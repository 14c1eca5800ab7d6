//! Options that several subcommands share, their parsers, and the error of an invalid combination.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use bareverbs::Mtu;
use bareverbs_sim::wire::Probability;
use clap::Args;

/// Outputs of a trace, which only simulated devices support.
#[derive(Clone, Debug, Default, Args)]
pub struct TraceArgs {
    /// Simulated devices: prints each firmware command, doorbell, WQE, CQE, EQE and packet with its fields to standard error
    #[arg(long)]
    pub trace: bool,
    /// The same into a file. A file gets every line, and a device waits for a slow file. A terminal or a pipe may lose lines
    /// of sim serve, which are counted
    #[arg(long, value_name = "FILE")]
    pub trace_file: Option<PathBuf>,
}

/// How a job tells its result.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct JsonArgs {
    /// Prints one JSON document instead of text
    #[arg(long)]
    pub json: bool,
}

/// How long a server waits for its client.
#[derive(Clone, Copy, Debug, Args)]
pub struct WaitArgs {
    /// Maximum time in seconds that a server waits for its client
    #[arg(long = "wait", default_value_t = 600, value_name = "SECONDS")]
    seconds: u32,
}

impl WaitArgs {
    /// Returns the time.
    pub fn time(self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }
}

/// An error of the command line that a subcommand detects after parsing. The exit status is 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageError(String);

impl UsageError {
    /// Creates an error with a message that also names the remedy.
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Maximum probability of a wire fault: higher ones would break connections instead of testing them.
const MAX_FAULT_PERCENT: f64 = 20.0;

pub(crate) fn mtu(text: &str) -> Result<Mtu, String> {
    let named = (1..=5).filter_map(Mtu::from_encoding).find(|mtu| mtu.bytes().to_string() == text);
    named.ok_or_else(|| "not one of 256, 512, 1024, 2048, 4096".into())
}

pub(crate) fn per_cent(text: &str) -> Result<Probability, String> {
    let value: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if !(0.0..=MAX_FAULT_PERCENT).contains(&value) {
        return Err(format!("not between 0 and {MAX_FAULT_PERCENT} per cent"));
    }
    Probability::per_cent(value).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_per_cent() {
        let per_million = |text| per_cent(text).map(Probability::per_million);
        assert_eq!((per_million("1.5"), per_million("0.04"), per_million("0")), (Ok(15_000), Ok(400), Ok(0)));
        assert!(per_cent("0.00004").is_err(), "not rounded to nothing");
        assert!(per_cent("21").is_err() && per_cent("-1").is_err() && per_cent("NaN").is_err() && per_cent("x").is_err());
    }
}
