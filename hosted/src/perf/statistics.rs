//! Latency statistics from a histogram with three significant digits, whose memory does not grow with the number of samples.

use std::time::Duration;

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Maximum latency of the histogram; longer ones count as this one.
const MAX_LATENCY: Duration = Duration::from_secs(60);

/// Measured latencies.
#[derive(Debug)]
pub struct Samples {
    /// In nanoseconds.
    histogram: Histogram<u64>,
}

/// Latency in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Number of samples.
    pub samples: u64,
    /// Minimum.
    pub min: f64,
    /// Median.
    pub median: f64,
    /// Arithmetic mean.
    pub average: f64,
    /// Maximum.
    pub max: f64,
    /// Standard deviation.
    pub stdev: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
}

impl Samples {
    /// Creates an empty histogram.
    ///
    /// # Errors
    /// None: the bounds are constants that the histogram accepts.
    pub fn new() -> Result<Self> {
        let longest = u64::try_from(MAX_LATENCY.as_nanos()).unwrap_or(u64::MAX);
        Ok(Self { histogram: Histogram::new_with_bounds(1, longest, 3).context("a histogram")? })
    }

    /// Records a latency.
    #[inline]
    pub fn record(&mut self, latency: Duration) {
        self.histogram.saturating_record(latency.as_nanos() as u64);
    }

    /// Returns the statistics, or `None` without samples.
    pub fn summary(&self) -> Option<Latency> {
        let histogram = &self.histogram;
        let micros = |nanos: u64| nanos as f64 / 1000.0;
        (!histogram.is_empty()).then(|| Latency {
            samples: histogram.len(),
            min: micros(histogram.min()),
            median: micros(histogram.value_at_quantile(0.5)),
            average: histogram.mean() / 1000.0,
            max: micros(histogram.max()),
            stdev: histogram.stdev() / 1000.0,
            p99: micros(histogram.value_at_quantile(0.99)),
            p999: micros(histogram.value_at_quantile(0.999)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_that_of_the_samples() {
        let mut samples = Samples::new().unwrap();
        assert_eq!(samples.summary(), None);
        // 1 to 1000 µs, in no order.
        for at in 0..1000_u64 {
            samples.record(Duration::from_micros(at * 617 % 1000 + 1));
        }
        let got = samples.summary().unwrap();
        let near = |have: f64, want: f64| (have - want).abs() <= want / 1000.0;
        assert_eq!(got.samples, 1000);
        for (have, want) in [
            (got.min, 1.0),
            (got.median, 500.0),
            (got.average, 500.5),
            (got.max, 1000.0),
            (got.stdev, 288.675),
            (got.p99, 990.0),
            (got.p999, 999.0),
        ] {
            assert!(near(have, want), "{have} instead of {want}: {got:?}");
        }
    }

    #[test]
    fn a_latency_above_the_maximum_is_recorded_as_the_maximum() {
        let mut samples = Samples::new().unwrap();
        samples.record(Duration::ZERO);
        samples.record(Duration::from_secs(3600));
        let got = samples.summary().unwrap();
        assert_eq!((got.samples, got.min), (2, 0.0));
        assert!(got.max >= 60e6);
    }
}
