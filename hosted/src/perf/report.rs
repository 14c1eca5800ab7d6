//! The report of a run, printed as tables or as JSON.

use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};

use super::parameters::{Parameters, Point, Test};
use super::statistics::Latency;
use crate::outcome::Outcome;

/// Report of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// How it ended; `ok` says that all measurements succeeded.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// `local` if both ends were in this process, `client` or `server`.
    pub role: &'static str,
    /// The devices of this process.
    pub devices: Vec<String>,
    /// Parameters of the measurements; a server receives them from the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Parameters>,
    /// Time to read the clock, in nanoseconds. Each latency includes one read.
    pub clock_ns: f64,
    /// Results, in order.
    pub results: Vec<Row>,
}

/// Result of one measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Test.
    pub test: Test,
    /// Bytes of a message.
    pub size: u32,
    /// Messages, or round trips of a latency test.
    pub messages: u64,
    /// Bytes of all messages.
    pub bytes: u64,
    /// Time from the first request to the last completion.
    pub seconds: f64,
    /// Bandwidth in MiB (1048576 bytes) per second. A latency test counts one direction.
    pub mib_per_second: f64,
    /// Messages per second.
    pub messages_per_second: f64,
    /// Latency in microseconds, of a latency test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
}

impl Row {
    /// Creates the result of `messages` messages in `seconds` seconds.
    pub(super) fn bandwidth(point: Point, messages: u64, seconds: f64) -> Self {
        let bytes = messages.saturating_mul(point.size.into());
        let rate = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        Self {
            test: point.test,
            size: point.size,
            messages,
            bytes,
            seconds,
            mib_per_second: rate(bytes) / f64::from(1 << 20),
            messages_per_second: rate(messages),
            latency: None,
        }
    }

    /// Returns the measurement.
    pub const fn point(&self) -> Point {
        Point { test: self.test, size: self.size }
    }

    /// Adds the result of the other end, which sent at the same time.
    pub(super) fn add(&mut self, other: &Self) {
        self.messages = self.messages.saturating_add(other.messages);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.seconds = self.seconds.max(other.seconds);
        self.mib_per_second += other.mib_per_second;
        self.messages_per_second += other.messages_per_second;
    }

    /// Returns whether all numbers are finite and not negative.
    pub(super) fn is_sound(&self) -> bool {
        let mut all = vec![self.seconds, self.mib_per_second, self.messages_per_second];
        if let Some(latency) = &self.latency {
            let Latency { min, median, average, max, stdev, p99, p999, .. } = *latency;
            all.extend([min, median, average, max, stdev, p99, p999]);
        }
        all.iter().all(|value| value.is_finite() && *value >= 0.0)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.results.is_empty() && self.outcome.failure.is_some() {
            // The reason is on standard error.
            return Ok(());
        }
        if let Some(parameters) = &self.parameters {
            writeln!(f, "{}", summary(parameters, &self.devices))?;
        }
        let mut before: Option<Test> = None;
        for row in &self.results {
            if before != Some(row.test) {
                before = Some(row.test);
                writeln!(f)?;
                f.write_str(if row.test.is_latency() { LATENCY } else { BANDWIDTH })?;
            }
            let Row { test, size, messages, seconds, mib_per_second, messages_per_second, latency, .. } = row;
            match latency {
                Some(Latency { min, median, average, max, stdev, p99, p999, .. }) => writeln!(
                    f,
                    "{test:10} {size:>9} {messages:>11} {min:>9.2} {median:>9.2} {average:>9.2} {max:>9.2} {stdev:>9.2} {p99:>9.2} \
                     {p999:>9.2}"
                )?,
                None => writeln!(
                    f,
                    "{test:10} {size:>9} {messages:>11} {seconds:>9.3} {mib_per_second:>12.2} {messages_per_second:>13.0}"
                )?,
            }
        }
        if self.results.is_empty() && self.outcome.interrupted {
            return writeln!(f, "interrupted: nothing was measured");
        }
        writeln!(f)?;
        match (&self.outcome.failure, self.outcome.interrupted, self.results.len()) {
            (Some(_), ..) => writeln!(f, "failed"),
            (None, true, _) => writeln!(f, "interrupted: these are the measurements up to then"),
            (None, false, 1) => writeln!(f, "ok: 1 measurement, data verified"),
            (None, false, count) => writeln!(f, "ok: {count} measurements, data verified"),
        }
    }
}

const LATENCY: &str = "\
latency [µs]   bytes  iterations       min    median   average       max     stdev      99 %    99.9 %\n";
const BANDWIDTH: &str = "\
bandwidth      bytes    messages   seconds        MiB/s    messages/s\n";

/// Returns a line with the parameters of all measurements.
pub(super) fn summary(parameters: &Parameters, devices: &[String]) -> String {
    let Parameters { transport, use_srq, queue_pairs, tx_depth, post_list, events, bidirectional, .. } = parameters;
    let mut text = devices.join(" and ");
    let plural = if *queue_pairs == 1 { "" } else { "s" };
    let _ = write!(text, ": {transport}, {queue_pairs} queue pair{plural}, tx-depth {tx_depth}, post-list {post_list}");
    if *use_srq {
        text += ", a shared receive queue";
    }
    text += if *events { ", events" } else { ", polling" };
    if *bidirectional {
        text += ", bidirectional";
    }
    if let Some(mtu) = parameters.mtu {
        let _ = write!(text, ", MTU {mtu}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_bytes_and_messages_per_second() {
        let point = Point { test: Test::WriteBw, size: 1 << 20 };
        let mut row = Row::bandwidth(point, 10, 2.0);
        assert_eq!((row.bytes, row.mib_per_second, row.messages_per_second), (10 << 20, 5.0, 5.0));
        row.add(&Row::bandwidth(point, 10, 1.0));
        assert_eq!((row.messages, row.bytes, row.seconds), (20, 20 << 20, 2.0));
        assert_eq!((row.mib_per_second, row.messages_per_second), (15.0, 15.0));
        assert_eq!(Row::bandwidth(point, 1, 0.0).mib_per_second, 0.0);
        assert!(
            row.is_sound() && !Row { seconds: -1.0, ..row.clone() }.is_sound() && !Row { seconds: f64::NAN, ..row }.is_sound()
        );
    }

    #[test]
    fn the_last_line_is_the_outcome() {
        let row = Row::bandwidth(Point { test: Test::WriteBw, size: 8 }, 1, 1.0);
        let report = |failure: Option<&str>, interrupted, count| {
            let (outcome, results) = (Outcome::new(failure.map(String::from), interrupted), vec![row.clone(); count]);
            Report { outcome, results, ..Report::default() }.to_string()
        };
        assert_eq!(report(Some("no card"), false, 0), "");
        assert_eq!(report(None, true, 0), "interrupted: nothing was measured\n");
        for (text, end) in [
            (report(Some("no card"), false, 1), "\n\nfailed\n"),
            (report(None, true, 1), "\n\ninterrupted: these are the measurements up to then\n"),
            (report(None, false, 1), "\n\nok: 1 measurement, data verified\n"),
            (report(None, false, 2), "\n\nok: 2 measurements, data verified\n"),
        ] {
            assert!(text.ends_with(end), "{text}");
        }
    }

    #[test]
    fn columns_are_aligned_with_their_headings() {
        let latency =
            Latency { samples: 9, min: 1.25, median: 2.5, average: 3.75, max: 1234.5, stdev: 0.5, p99: 9.75, p999: 10.25 };
        let of = |test| Row { latency: None, ..Row::bandwidth(Point { test, size: 8_388_608 }, 5000, 12.5) };
        let results = vec![Row { latency: Some(latency), ..of(Test::WriteLat) }, of(Test::WriteBw)];
        let text = Report { outcome: Outcome::new(None, false), results, ..Report::default() }.to_string();
        let ends = |line: &str| {
            let ends = line.char_indices().zip(line.chars().skip(1).chain(['\n']));
            ends.filter(|((_, this), next)| !this.is_whitespace() && next.is_whitespace()).map(|((at, _), _)| at).last()
        };
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        // µ has two bytes.
        assert_eq!(ends(lines[0]).map(|end| end - 1), ends(lines[1]), "{text}");
        assert_eq!(ends(lines[2]), ends(lines[3]), "{text}");
        assert!(text.contains("ok: 2 measurements"), "{text}");
    }
}
