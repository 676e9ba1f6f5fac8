//! The time of day that the nodes of a cluster agree on: one wrong clock among them is outvoted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{CLOCK_OFF_MAX_US, Clock};

/// Clocks that are no further apart agree: what is asked over a network is not known any better. In µs.
const AGREE_WITHIN_US: i64 = 1_000_000;

/// An answer that took longer says too little about when the peer read its clock. In µs.
const ROUND_TRIP_MAX_US: u64 = 500_000;

/// The machine's clocks, and what the other nodes said of theirs.
///
/// The wall clock of this machine counts while it is within a second of the median of all nodes' clocks, and the median otherwise;
/// of two that disagree, the earlier one: stamps never go back, so what is too early is mended at once when it is found out.
/// What a node that is gone said last stays.
#[derive(Debug)]
pub(crate) struct ClusterClock {
    own: Arc<dyn Clock>,
    others: usize,
    /// How far each other node's wall clock is ahead of the own, in µs.
    ahead: Mutex<BTreeMap<u16, i64>>,
    correction: AtomicI64,
    settled: AtomicBool,
    warned: AtomicBool,
}

impl ClusterClock {
    /// Of a cluster with so many other nodes.
    pub(crate) fn new(own: Arc<dyn Clock>, others: usize) -> Self {
        Self {
            own,
            others,
            ahead: Mutex::default(),
            correction: AtomicI64::new(0),
            settled: AtomicBool::new(others == 0),
            warned: AtomicBool::new(false),
        }
    }

    /// What this machine believes, whatever the others say: it is for them to compare.
    pub(crate) fn own_wall_us(&self) -> u64 {
        self.own.wall_us()
    }

    /// Whether every other node has said what its clock shows.
    pub(crate) fn has_heard_all(&self) -> bool {
        let ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        ahead.len() >= self.others
    }

    /// A peer that was asked at `asked`, by the own monotonic clock, answered just now that its wall clock shows `wall_us`.
    pub(crate) fn heard(&self, peer: u16, wall_us: u64, asked: u64) {
        let round_trip = self.own.monotonic_us().saturating_sub(asked);
        if round_trip > ROUND_TRIP_MAX_US {
            return;
        }
        let here = self.own.wall_us().saturating_sub(round_trip / 2);
        let difference = i128::from(wall_us) - i128::from(here);
        let Ok(difference) = i64::try_from(difference) else {
            return;
        };
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        ahead.insert(peer, difference);
        let mut clocks: Vec<i64> = ahead.values().copied().chain([0]).collect();
        clocks.sort_unstable();
        let median = clocks[(clocks.len() - 1) / 2];
        let correction = if median.abs() <= AGREE_WITHIN_US {
            0
        } else {
            median
        };
        let agree = clocks[clocks.len() - 1] - clocks[0] <= AGREE_WITHIN_US;
        let quorum = clocks.len() > self.others.div_ceil(2);
        let settled = ahead.len() >= self.others || quorum && agree;
        self.correction.store(correction, Ordering::Release);
        self.settled.store(settled, Ordering::Release);
        self.warn(correction);
    }

    fn warn(&self, correction: i64) {
        let off = correction.unsigned_abs();
        if off <= CLOCK_OFF_MAX_US {
            self.warned.store(false, Ordering::Relaxed);
        } else if !self.warned.swap(true, Ordering::Relaxed) {
            let direction = if correction < 0 { "ahead" } else { "behind" };
            tracing::warn!(
                seconds = off / 1_000_000,
                direction,
                "the machine's clock is off from those of the other nodes by so much; messages are stamped by theirs: check the clock"
            );
        }
    }
}

impl Clock for ClusterClock {
    fn monotonic_us(&self) -> u64 {
        self.own.monotonic_us()
    }

    fn wall_us(&self) -> u64 {
        self.own
            .wall_us()
            .saturating_add_signed(self.correction.load(Ordering::Acquire))
    }

    fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::HandClock;
    use super::*;

    const HOUR: u64 = 3_600_000_000;

    /// A node whose clock shows `own`, and what the others' show.
    fn clock(own: u64, others: usize, heard: &[u64]) -> ClusterClock {
        let hand = HandClock::default();
        hand.set(5_000_000, own);
        let clock = ClusterClock::new(Arc::new(hand), others);
        for (peer, wall) in (2..).zip(heard) {
            clock.heard(peer, *wall, 5_000_000);
        }
        clock
    }

    #[test]
    fn wrong_clock_among_three_is_outvoted_wherever_it_is() {
        for wrong in [9 * HOUR, 11 * HOUR, 34 * HOUR, 0] {
            for clocks in [
                [wrong, 10 * HOUR, 10 * HOUR],
                [10 * HOUR, wrong, 10 * HOUR],
                [10 * HOUR, 10 * HOUR, wrong],
            ] {
                let clock = clock(clocks[0], 2, &clocks[1..]);
                assert_eq!(clock.wall_us(), 10 * HOUR, "{clocks:?}");
                assert!(clock.is_settled() && clock.has_heard_all());
            }
        }
    }

    #[test]
    fn clocks_that_agree_are_left_alone() {
        let clock = clock(10 * HOUR, 2, &[10 * HOUR + 900_000, 10 * HOUR + 950_000]);
        assert_eq!(clock.wall_us(), 10 * HOUR);
    }

    #[test]
    fn of_two_that_disagree_the_earlier_counts_and_nothing_is_settled() {
        for (own, other) in [(9 * HOUR, 10 * HOUR), (10 * HOUR, 9 * HOUR)] {
            let clock = clock(own, 2, &[other]);
            assert_eq!(clock.wall_us(), 9 * HOUR);
            assert!(!clock.is_settled());
        }
    }

    #[test]
    fn quorum_that_agrees_is_enough() {
        assert!(clock(10 * HOUR, 0, &[]).is_settled());
        assert!(!clock(10 * HOUR, 2, &[]).is_settled());
        assert!(clock(10 * HOUR, 2, &[10 * HOUR]).is_settled());
        assert!(!clock(10 * HOUR, 4, &[10 * HOUR]).is_settled());
        assert!(!clock(10 * HOUR, 2, &[10 * HOUR]).has_heard_all());
    }

    #[test]
    fn half_of_the_round_trip_is_taken_off_and_slow_answers_do_not_count() {
        let hand = HandClock::default();
        hand.set(5_400_000, 10 * HOUR + 400_000);
        let clock = ClusterClock::new(Arc::new(hand), 1);
        clock.heard(2, 8 * HOUR + 200_000, 5_000_000);
        assert_eq!(clock.wall_us(), 8 * HOUR + 400_000);
        clock.heard(2, 5 * HOUR, 4_800_000);
        assert_eq!(clock.wall_us(), 8 * HOUR + 400_000);
    }
}
