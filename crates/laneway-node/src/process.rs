//! What the operating system says of this process.

use laneway_storage::wal::WalStats;

use crate::api::Histogram;

/// Clock ticks per second in `/proc/self/stat`: fixed at 100 on every Linux that has this interface.
const TICKS_PER_SECOND: f64 = 100.0;

/// Resident memory in bytes; 0 where it cannot be read.
pub(crate) fn memory_bytes() -> u64 {
    let Ok(text) = std::fs::read_to_string("/proc/self/status") else {
        return 0;
    };
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// User and system CPU seconds; zeros where they cannot be read.
pub(crate) fn cpu_seconds() -> (f64, f64) {
    let Ok(text) = std::fs::read_to_string("/proc/self/stat") else {
        return (0.0, 0.0);
    };
    // The command in parentheses may hold spaces; user and system time are fields 14 and 15.
    let Some((_, rest)) = text.rsplit_once(')') else {
        return (0.0, 0.0);
    };
    let mut fields = rest
        .split_whitespace()
        .skip(11)
        .map(|field| field.parse::<f64>().unwrap_or(0.0));
    let user = fields.next().unwrap_or(0.0);
    let system = fields.next().unwrap_or(0.0);
    (user / TICKS_PER_SECOND, system / TICKS_PER_SECOND)
}

/// The WAL's sync times.
pub(crate) fn wal_histogram(stats: &WalStats) -> Histogram {
    let latency = &stats.fsync_latency;
    let bounds = latency
        .buckets
        .iter()
        .map(|(bound, _)| *bound)
        .filter(|bound| *bound < u64::MAX);
    Histogram {
        bounds: bounds.map(seconds).collect(),
        counts: latency.buckets.iter().map(|(_, count)| *count).collect(),
        sum: seconds(latency.sum_us),
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a display value; 2^53 µs are 285 years"
)]
fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

#[cfg(test)]
mod tests {
    #[test]
    fn process_figures_are_read() {
        assert!(super::memory_bytes() > 0);
        let (user, system) = super::cpu_seconds();
        assert!(user >= 0.0 && system >= 0.0);
    }
}
