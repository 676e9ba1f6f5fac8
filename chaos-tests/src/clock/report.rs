//! Verdicts on what was timed while a node's clock was wrong.

use std::fmt;
use std::time::Duration;

use super::{DELAY, ELECTION, LEASE, Measured, Place, Times, Wrong};
use crate::stats::{millis, say};

/// What invariant 11 allows beyond lease and election.
const LATE_MAX: Duration = Duration::from_secs(1);

/// A node's monotonic clock may be off by one part in so many.
const PACE_PARTS: u32 = 1000;

/// Stamps follow the time of day at most one part in so many fast or slow, so a delay is that much off.
const STAMP_PARTS: u32 = 20;

/// `createdAt` may be off by so much: more than the stamps can drift in the seconds that the node leads.
const CREATED_OFF_MAX_MS: u64 = 1000;

/// What the log names may be off by so much.
const NAMED_OFF_MAX_SECONDS: u64 = 60;

/// Verdicts, and the figures behind them.
#[derive(Debug, Default)]
pub(super) struct Report {
    failed: u32,
    passed: u32,
    rows: Vec<(Wrong, Place, Measured)>,
}

impl Report {
    /// All checks were made and none failed.
    pub(super) fn passed(&self) -> bool {
        self.failed == 0 && self.passed > 0
    }

    pub(super) fn add(&mut self, node: u16, wrong: Wrong, place: Place, measured: Measured) {
        let allowed = measured.gap.max(ELECTION) + LATE_MAX;
        let (lease, delay) = (&measured.lease, &measured.delay);
        let created_off = created_off_ms(lease).max(created_off_ms(delay));
        let lease_holds = lease.longest >= LEASE - LEASE / PACE_PARTS && lease.shortest <= LEASE + allowed;
        let drift = DELAY / STAMP_PARTS;
        let delay_holds = delay.longest >= DELAY - drift && delay.shortest <= DELAY + drift + allowed;
        let holds = lease_holds && delay_holds && created_off <= CREATED_OFF_MAX_MS;
        self.verdict(
            holds,
            format_args!(
                "node {node} {}, {place:?}: a lease of {:.0} s ended after {lease} ms, a delay of {:.0} s took {delay} ms ({:.0} ms late \
                 allowed), createdAt off by {created_off} ms ({CREATED_OFF_MAX_MS} allowed)",
                wrong.words,
                LEASE.as_secs_f64(),
                DELAY.as_secs_f64(),
                millis(allowed)
            ),
        );
        self.rows.push((wrong, place, measured));
    }

    /// The node with the wrong clock must have said so, and by how much.
    pub(super) fn named(&mut self, node: u16, wrong: Wrong, lines: &[String]) {
        let seconds: Vec<u64> = lines.iter().filter_map(|line| seconds_in(line)).collect();
        let right = |seconds: &u64| seconds.abs_diff(wrong.seconds) <= NAMED_OFF_MAX_SECONDS;
        let holds = !seconds.is_empty() && seconds.len() == lines.len() && seconds.iter().all(right);
        self.verdict(
            holds,
            format_args!(
                "node {node} {}: its log names its clock, off by {seconds:?} s, in {} lines",
                wrong.words,
                lines.len()
            ),
        );
    }

    /// No other node may have found its clock wrong.
    pub(super) fn not_named(&mut self, node: u16, wrong: Wrong, lines: &[String]) {
        if let Some(line) = lines.first() {
            self.verdict(
                false,
                format_args!("another node was {}, but node {node} logs: {line}", wrong.words),
            );
        }
    }

    pub(super) fn replicas(&mut self, outcome: Result<Duration, String>) {
        match outcome {
            Ok(took) => self.verdict(
                true,
                format_args!("replicas came to one digest within {:.1} s", took.as_secs_f64()),
            ),
            Err(why) => self.verdict(false, format_args!("{why}")),
        }
    }

    fn verdict(&mut self, holds: bool, what: fmt::Arguments<'_>) {
        if holds {
            self.passed += 1;
            say(format_args!("PASS {what}"));
        } else {
            self.failed += 1;
            say(format_args!("FAIL {what}"));
        }
    }

    /// Seconds of the quickest and of the slowest, each as far as it is proven.
    fn range(&self, of: fn(&Measured) -> Times) -> (f64, f64) {
        let all = self.rows.iter().map(|(_, _, measured)| of(measured));
        all.fold((f64::MAX, 0.0_f64), |(least, most), times| {
            let (shortest, longest) = (times.shortest.as_secs_f64(), times.longest.as_secs_f64());
            (least.min(longest), most.max(shortest))
        })
    }

    /// Prints the ranges of all figures.
    pub(super) fn print(&self) {
        say(format_args!(
            "| clock | node | lease of 3 s ended after ms | delay of 2 s took ms | createdAt off by ms | gap ms |"
        ));
        for (wrong, place, measured) in &self.rows {
            let off = created_off_ms(&measured.lease).max(created_off_ms(&measured.delay));
            say(format_args!(
                "| {} | {place:?} | {} | {} | {off} | {:.0} |",
                wrong.words,
                measured.lease,
                measured.delay,
                millis(measured.gap)
            ));
        }
        let (lease_least, lease_most) = self.range(|it| it.lease);
        let (delay_least, delay_most) = self.range(|it| it.delay);
        let offs = self.rows.iter();
        let off = offs.map(|(_, _, it)| created_off_ms(&it.lease).max(created_off_ms(&it.delay)));
        say(format_args!(
            "a lease of 3 s ended after {lease_least:.2} to {lease_most:.2} s, a delay of 2 s took {delay_least:.2} to {delay_most:.2} s, \
             createdAt was off by {} ms at most; {} checks passed, {} failed",
            off.max().unwrap_or(0),
            self.passed,
            self.failed
        ));
    }
}

/// What it took at least and at most: when it began is known only so well.
impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} to {:.0}", millis(self.shortest), millis(self.longest))
    }
}

/// How far the message's own time is from the span of its push.
fn created_off_ms(times: &Times) -> u64 {
    let (from, to) = times.pushed_ms;
    let at = times.created_at_ms;
    from.saturating_sub(at).max(at.saturating_sub(to))
}

/// The number after `seconds=` in a line of a log.
fn seconds_in(line: &str) -> Option<u64> {
    let (_, after) = line.split_once("seconds=")?;
    let digits = after.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRONG: Wrong = Wrong {
        offset: "+1h",
        seconds: 3600,
        words: "an hour ahead",
    };

    fn measured(lease_ms: u64, delay_ms: u64, created_at_ms: u64) -> Measured {
        let times = |ms| Times {
            shortest: Duration::from_millis(ms),
            longest: Duration::from_millis(ms),
            pushed_ms: (5_000_000, 5_000_010),
            created_at_ms,
        };
        Measured {
            lease: times(lease_ms),
            delay: times(delay_ms),
            gap: Duration::ZERO,
        }
    }

    #[test]
    fn what_is_early_late_or_named_wrongly_fails() {
        let check = |measured, holds| {
            let mut report = Report::default();
            report.add(1, WRONG, Place::Leads, measured);
            assert_eq!(report.passed(), holds, "{measured:?}");
        };
        check(measured(3000, 2000, 5_000_005), true);
        check(measured(4299, 1900, 5_000_900), true);
        check(measured(2990, 2000, 5_000_005), false);
        check(measured(4301, 2000, 5_000_005), false);
        check(measured(3000, 1890, 5_000_005), false);
        check(measured(3000, 3500, 5_000_005), false);
        check(measured(3000, 2000, 4_998_999), false);
        check(measured(3000, 2000, 8_600_000), false);
    }

    #[test]
    fn log_must_name_the_wrong_clock_and_no_other() {
        let line =
            |seconds: u64| format!("WARN laneway_node::clock: the machine's clock is off seconds={seconds}");
        let named = |lines: &[String]| {
            let mut report = Report::default();
            report.named(1, WRONG, lines);
            report.passed()
        };
        assert!(named(&[line(3598), line(3601)]));
        assert!(!named(&[]));
        assert!(!named(&[line(90)]));
        let mut report = Report::default();
        report.named(1, WRONG, &[line(3600)]);
        report.not_named(2, WRONG, &[]);
        assert!(report.passed());
        report.not_named(2, WRONG, &[line(3600)]);
        assert!(!report.passed());
    }
}
