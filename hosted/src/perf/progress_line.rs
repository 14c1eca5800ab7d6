//! The progress line of a measurement on a terminal.

use std::time::{Duration, Instant};

use super::parameters::{End, Parameters, Point};
use crate::status_line::StatusLine;

/// Minimum interval between updates.
const UPDATE_INTERVAL: Duration = Duration::from_millis(200);

/// A progress line, which may be disabled.
#[derive(Debug)]
pub(super) struct ProgressLine {
    line: Option<StatusLine>,
    /// Parameters of the measurements, if they are known when the line is created.
    parameters: Option<Parameters>,
    point: Option<Point>,
    /// Time of the last update.
    updated: Instant,
    /// Messages at the last update.
    shown: u64,
}

impl ProgressLine {
    /// Creates a line on standard error. It is disabled unless `is_wanted` and standard error is a terminal.
    pub(super) fn new(is_wanted: bool, parameters: Option<&Parameters>) -> Self {
        let line = is_wanted.then(StatusLine::new).flatten();
        Self { line, parameters: parameters.cloned(), point: None, updated: Instant::now(), shown: 0 }
    }

    /// Creates a disabled line.
    pub(super) fn none() -> Self {
        Self { line: None, parameters: None, point: None, updated: Instant::now(), shown: 0 }
    }

    /// Starts the line of a measurement.
    pub(super) fn begin(&mut self, point: Point) {
        (self.point, self.updated, self.shown) = (Some(point), Instant::now(), 0);
    }

    /// Shows the number of messages so far.
    pub(super) fn show(&mut self, messages: u64) {
        let (Some(status), Some(point)) = (&self.line, self.point) else { return };
        let elapsed = self.updated.elapsed();
        if elapsed < UPDATE_INTERVAL {
            return;
        }
        let rate = messages.saturating_sub(self.shown) as f64 / elapsed.as_secs_f64();
        (self.updated, self.shown) = (Instant::now(), messages);
        status.show(line(point, self.parameters.as_ref(), messages, rate));
    }

    /// Clears the line at the end of a measurement.
    pub(super) fn end(&mut self) {
        if let Some(line) = &self.line {
            line.show(String::new());
        }
    }
}

fn line(point: Point, parameters: Option<&Parameters>, messages: u64, rate: f64) -> String {
    let mut text = format!("{} {} bytes: {messages}", point.test, point.size);
    if let Some(parameters) = parameters
        && let End::Iterations(count) = parameters.end(point)
    {
        let queue_pairs = if point.test.is_latency() { 1 } else { u64::from(parameters.queue_pairs) };
        text += &format!(" of {}", count.saturating_mul(queue_pairs));
    }
    text += &format!(" messages, {rate:.0} messages/s");
    if !point.test.is_latency() {
        text += &format!(", {:.1} MiB/s", rate * f64::from(point.size) / f64::from(1 << 20));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::parameters::Test;
    use super::*;

    #[test]
    fn the_line_has_the_measurement_and_its_rates() {
        let parameters = Parameters { queue_pairs: 2, iterations: Some(1000), ..Parameters::default() };
        let bandwidth = Point { test: Test::SendBw, size: 1 << 20 };
        assert_eq!(
            line(bandwidth, Some(&parameters), 30, 10.0),
            "send-bw 1048576 bytes: 30 of 2000 messages, 10 messages/s, 10.0 MiB/s"
        );
        assert_eq!(line(Point { test: Test::WriteLat, size: 2 }, None, 7, 3.4), "write-lat 2 bytes: 7 messages, 3 messages/s");
    }
}
