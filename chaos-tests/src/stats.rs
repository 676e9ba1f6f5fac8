//! Percentiles, medians, and the output line that the commands share.

use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

/// Times of single operations in microseconds.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    micros: Vec<u32>,
    sorted: bool,
}

impl Latencies {
    /// Adds one; what is beyond 71 minutes counts as that.
    pub fn add(&mut self, took: Duration) {
        self.micros
            .push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
        self.sorted = false;
    }

    /// Adds all of another's.
    pub fn merge(&mut self, other: Self) {
        self.micros.extend(other.micros);
        self.sorted = false;
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.micros.len()
    }

    /// The smallest time that `per_mille` of all do not exceed (nearest rank); zero when there is none.
    pub fn percentile(&mut self, per_mille: usize) -> Duration {
        if !self.sorted {
            self.micros.sort_unstable();
            self.sorted = true;
        }
        let rank = (self.micros.len() * per_mille).div_ceil(1000).max(1);
        Duration::from_micros(self.micros.get(rank - 1).map_or(0, |micros| u64::from(*micros)))
    }
}

/// Middle value (mean of the two middle ones when the count is even); zero for none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.len() % 2, sorted.get(middle)) {
        (_, None) => 0.0,
        (1, Some(value)) => *value,
        (_, Some(value)) => f64::midpoint(sorted[middle - 1], *value),
    }
}

/// A count as a float, for rates and ratios; exact below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts of a run stay far below 2^53")]
pub fn float(count: u64) -> f64 {
    count as f64
}

/// Milliseconds of a duration, with fraction.
pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Writes one line to standard output; a closed pipe ends nothing.
pub fn say(line: fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    let _closed = writeln!(out, "{line}").and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentile(500), Duration::ZERO);
        for micros in (1..=100).rev() {
            latencies.add(Duration::from_micros(micros));
        }
        assert_eq!(latencies.percentile(0), Duration::from_micros(1));
        assert_eq!(latencies.percentile(500), Duration::from_micros(50));
        assert_eq!(latencies.percentile(990), Duration::from_micros(99));
        assert_eq!(latencies.percentile(1000), Duration::from_micros(100));
        let mut more = Latencies::default();
        more.add(Duration::from_secs(10_000)); // over the bound
        latencies.merge(more);
        assert_eq!(latencies.count(), 101);
        assert_eq!(
            latencies.percentile(1000),
            Duration::from_micros(u64::from(u32::MAX))
        );
    }

    #[test]
    fn median_of_odd_even_and_none() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < f64::EPSILON);
        assert!(median(&[]).abs() < f64::EPSILON);
    }
}
