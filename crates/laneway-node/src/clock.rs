//! The clock seam, and how a leader turns its clocks into the stamps of the log.

mod cluster;

use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use laneway_core::time::{LeaseTime, Stamps, WallTime};

pub(crate) use cluster::ClusterClock;

/// How long a follower's reading of the leader's lease time counts when it takes office, in µs.
const SKEW_WINDOW_US: u64 = 10_000_000;

/// The wall clock may be so far from the stamps before the log says so, in µs.
const CLOCK_OFF_MAX_US: u64 = 60_000_000;

/// A first stamp waits no longer for the wall clock to be settled before it jumps to it, in µs.
const SETTLE_MAX_US: u64 = 2_000_000;

/// Where a node reads time. The real one and the simulated one differ; nothing else reads a clock for stamps.
pub(crate) trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Microseconds on a clock that never goes back and knows nothing of the time of day.
    fn monotonic_us(&self) -> u64;
    /// Microseconds since 1970 UTC, as the machine or the cluster believes; may jump.
    fn wall_us(&self) -> u64;
    /// Whether the wall clock rests on all that it is to rest on. A stamp should not jump to it before.
    fn is_settled(&self) -> bool {
        true
    }
}

/// The machine's clocks.
#[derive(Debug)]
pub(crate) struct SystemClock {
    started: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self {
            started: Instant::now(),
        }
    }
}

impl Clock for SystemClock {
    fn monotonic_us(&self) -> u64 {
        micros(self.started.elapsed())
    }

    fn wall_us(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros)
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Makes the stamps of one partition's entries (architecture §4).
///
/// Lease time is anchored once, on taking office, and then follows the monotonic clock alone. A follower remembers how
/// far the leader's stamps run from its own clock, so that it continues from there and is never ahead of the old
/// leader. Wall time follows the wall clock, but never back and within 5 % of the monotonic clock's pace; also over a change of
/// leader, so that one node with a wrong clock makes no jump.
#[derive(Debug, Default)]
pub(crate) struct TimeKeeper {
    office: Option<Office>,
    /// Of the newest leader that was seen to stamp an entry.
    skew: Option<Skew>,
}

/// How far a leader's stamps run from the own monotonic clock, in µs: the largest seen of late.
#[derive(Clone, Copy, Debug)]
struct Skew {
    term: u64,
    lease: i128,
    wall: i128,
    /// Own monotonic time at which it was seen.
    at: u64,
}

#[derive(Debug)]
struct Office {
    lease_anchor: u64,
    mono_anchor: u64,
    last: Stamps,
    /// Own monotonic time at `last`.
    last_mono: u64,
    /// The next stamp may jump forward to the wall clock.
    may_jump: bool,
    warned: bool,
}

impl Office {
    /// Follows the wall clock, but within 5 % of the monotonic clock, so that what waits for a time of day neither comes all
    /// at once nor stands still when the wall clock jumps.
    fn wall(&self, clock: &dyn Clock, mono: u64) -> WallTime {
        let last = self.last.wall.0;
        let elapsed = mono.saturating_sub(self.last_mono);
        let slowest = last.saturating_add(elapsed - elapsed / 20).max(last + 1);
        let fastest = if self.jumps(clock, mono) {
            u64::MAX
        } else {
            last.saturating_add(elapsed + elapsed / 20)
        };
        WallTime(clock.wall_us().min(fastest).max(slowest))
    }

    /// Whether a stamp made now may be far ahead of the last one. Where nothing was ever stamped, there is nothing to wait with.
    fn jumps(&self, clock: &dyn Clock, mono: u64) -> bool {
        let waited = mono.saturating_sub(self.mono_anchor);
        self.may_jump && (clock.is_settled() || waited > SETTLE_MAX_US || self.last.wall.0 == 0)
    }
}

impl TimeKeeper {
    /// Notes an entry that the leader of `term` stamped just now. What is read back from the log must not come here, as it
    /// would seem that no time has passed since.
    pub(crate) fn observe(&mut self, clock: &dyn Clock, term: u64, stamps: Stamps) {
        let mono = clock.monotonic_us();
        let now = Skew {
            term,
            lease: i128::from(stamps.lease.0) - i128::from(mono),
            wall: i128::from(stamps.wall.0) - i128::from(mono),
            at: mono,
        };
        match self.skew {
            // Another leader's stamps may run behind those of the one before: a lease that it gave must not end early.
            Some(best)
                if best.term == term
                    && best.lease >= now.lease
                    && mono.saturating_sub(best.at) < SKEW_WINDOW_US => {}
            _ => self.skew = Some(now),
        }
    }

    /// Takes office after `last`, the stamps of the newest applied entry.
    ///
    /// A process that has seen no leader at work since it started continues lease time from `last`, as the time while
    /// nobody ran does not count, and wall time from its wall clock.
    pub(crate) fn take_office(&mut self, clock: &dyn Clock, last: Stamps) {
        let mono = clock.monotonic_us();
        let continued = |skew: i128| u64::try_from(skew + i128::from(mono)).unwrap_or(0);
        let recent = self
            .skew
            .filter(|skew| mono.saturating_sub(skew.at) < SKEW_WINDOW_US);
        let lease = recent.map_or(0, |skew| continued(skew.lease));
        let wall = self.skew.map(|skew| continued(skew.wall));
        self.office = Some(Office {
            lease_anchor: lease.max(last.lease.0),
            mono_anchor: mono,
            last: Stamps {
                wall: WallTime(wall.unwrap_or(0).max(last.wall.0)),
                ..last
            },
            last_mono: mono,
            may_jump: wall.is_none(),
            warned: false,
        });
    }

    /// Leaves office.
    pub(crate) fn leave_office(&mut self) {
        self.office = None;
    }

    /// What the stamps of an entry made now would be; `None` out of office.
    pub(crate) fn peek(&self, clock: &dyn Clock) -> Option<Stamps> {
        let office = self.office.as_ref()?;
        let mono = clock.monotonic_us();
        let lease = office
            .lease_anchor
            .saturating_add(mono.saturating_sub(office.mono_anchor))
            .max(office.last.lease.0);
        Some(Stamps {
            lease: LeaseTime(lease),
            wall: office.wall(clock, mono),
        })
    }

    /// The stamps of the next entry; `None` out of office.
    pub(crate) fn next(&mut self, clock: &dyn Clock) -> Option<Stamps> {
        let stamps = self.peek(clock)?;
        let office = self.office.as_mut()?;
        let off = clock.wall_us().abs_diff(stamps.wall.0);
        if off > CLOCK_OFF_MAX_US && !office.warned {
            office.warned = true;
            tracing::warn!(
                seconds = off / 1_000_000,
                "the machine's clock is off from the stamps of the messages by so much; they run at most 5 % slow or fast until they meet: check the clock"
            );
        }
        let mono = clock.monotonic_us();
        office.may_jump = office.may_jump && !office.jumps(clock, mono);
        office.last = stamps;
        office.last_mono = mono;
        Some(stamps)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::*;

    #[derive(Debug, Default)]
    pub(super) struct HandClock {
        mono: AtomicU64,
        wall: AtomicU64,
        unsettled: AtomicBool,
    }

    impl HandClock {
        pub(super) fn set(&self, mono: u64, wall: u64) {
            self.mono.store(mono, Ordering::Relaxed);
            self.wall.store(wall, Ordering::Relaxed);
        }
    }

    impl Clock for HandClock {
        fn monotonic_us(&self) -> u64 {
            self.mono.load(Ordering::Relaxed)
        }
        fn wall_us(&self) -> u64 {
            self.wall.load(Ordering::Relaxed)
        }
        fn is_settled(&self) -> bool {
            !self.unsettled.load(Ordering::Relaxed)
        }
    }

    fn stamps(lease: u64, wall: u64) -> Stamps {
        Stamps {
            lease: LeaseTime(lease),
            wall: WallTime(wall),
        }
    }

    #[test]
    fn lease_time_ignores_wall_jumps() {
        let clock = HandClock::default();
        clock.set(1_000, 50_000_000);
        let mut keeper = TimeKeeper::default();
        keeper.take_office(&clock, stamps(77, 5));
        assert_eq!(keeper.next(&clock), Some(stamps(77, 50_000_000)));
        clock.set(2_001_000, 3_650_000_000);
        let jumped = keeper.next(&clock).unwrap();
        assert_eq!(jumped.lease, LeaseTime(2_000_077));
        assert_eq!(jumped.wall, WallTime(50_000_000 + 2_100_000));
        clock.set(3_001_000, 1_000);
        let back = keeper.next(&clock).unwrap();
        assert_eq!(back.lease, LeaseTime(3_000_077));
        assert_eq!(back.wall, WallTime(jumped.wall.0 + 950_000));
    }

    #[test]
    fn wall_time_goes_on_behind_a_clock_that_was_set_back() {
        let clock = HandClock::default();
        let hour = 3_600_000_000;
        clock.set(1_000_000, 5 * hour);
        let mut keeper = TimeKeeper::default();
        keeper.take_office(&clock, stamps(0, 10 * hour));
        clock.set(3_000_000, 5 * hour + 2_000_000);
        assert_eq!(keeper.peek(&clock).unwrap().wall, WallTime(10 * hour + 1_900_000));
        keeper.next(&clock).unwrap();
        clock.set(5_000_000, 5 * hour + 4_000_000);
        assert_eq!(keeper.next(&clock).unwrap().wall, WallTime(10 * hour + 3_800_000));
    }

    #[test]
    fn first_stamp_jumps_once_the_clock_is_settled_or_after_a_while() {
        let hour = 3_600_000_000;
        for settled in [true, false] {
            let clock = HandClock::default();
            clock.unsettled.store(true, Ordering::Relaxed);
            clock.set(1_000_000, 11 * hour);
            let mut keeper = TimeKeeper::default();
            keeper.take_office(&clock, stamps(0, 10 * hour));
            clock.set(1_100_000, 11 * hour + 100_000);
            assert_eq!(keeper.next(&clock).unwrap().wall, WallTime(10 * hour + 105_000));
            clock.set(1_200_000, 11 * hour + 200_000);
            assert_eq!(keeper.next(&clock).unwrap().wall, WallTime(10 * hour + 210_000));
            let (mono, wall) = if settled {
                clock.unsettled.store(false, Ordering::Relaxed);
                (1_300_000, 11 * hour + 300_000)
            } else {
                (3_100_000, 11 * hour + 2_100_000)
            };
            clock.set(mono, wall);
            assert_eq!(keeper.next(&clock).unwrap().wall, WallTime(wall));
            clock.set(mono + 1_000_000, 20 * hour);
            assert_eq!(
                keeper.next(&clock).unwrap().wall,
                WallTime(wall + 1_050_000),
                "once"
            );
        }
    }

    #[test]
    fn wall_time_of_entries_at_one_instant_still_grows() {
        let clock = HandClock::default();
        clock.set(1_000_000, 7);
        let mut keeper = TimeKeeper::default();
        keeper.take_office(&clock, stamps(0, 9));
        let walls: Vec<u64> = (0..3).map(|_| keeper.next(&clock).unwrap().wall.0).collect();
        assert_eq!(walls, [10, 11, 12]);
    }

    #[test]
    fn follower_continues_the_leaders_lease_time_but_is_never_ahead() {
        let clock = HandClock::default();
        let mut keeper = TimeKeeper::default();
        clock.set(1_000_000, 0);
        keeper.observe(&clock, 1, stamps(500_000, 1));
        clock.set(2_000_000, 0);
        keeper.observe(&clock, 1, stamps(1_400_000, 2));
        clock.set(3_000_000, 0);
        keeper.take_office(&clock, stamps(1_400_000, 2));
        assert_eq!(keeper.peek(&clock).unwrap().lease, LeaseTime(2_500_000));
    }

    #[test]
    fn lease_of_a_leader_that_runs_behind_the_one_before_is_not_cut() {
        let clock = HandClock::default();
        let mut keeper = TimeKeeper::default();
        clock.set(1_000_000, 0);
        keeper.observe(&clock, 1, stamps(1_000_000, 1));
        clock.set(2_000_000, 0);
        keeper.observe(&clock, 2, stamps(1_900_000, 2));
        clock.set(3_000_000, 0);
        keeper.take_office(&clock, stamps(1_900_000, 2));
        assert_eq!(keeper.peek(&clock).unwrap().lease, LeaseTime(2_900_000));
    }

    #[test]
    fn successor_with_a_wrong_clock_goes_on_from_the_old_leaders_wall_time() {
        let hour = 3_600_000_000;
        for wrong in [9 * hour, 11 * hour] {
            let clock = HandClock::default();
            let mut keeper = TimeKeeper::default();
            clock.set(1_000_000, wrong);
            keeper.observe(&clock, 1, stamps(0, 10 * hour));
            // Nothing happened for long: only leases have a reason not to trust that.
            clock.set(61_000_000, wrong + 60_000_000);
            keeper.take_office(&clock, stamps(0, 10 * hour));
            clock.set(62_000_000, wrong + 61_000_000);
            let wall = keeper.next(&clock).unwrap().wall.0;
            let off = wall.abs_diff(10 * hour + 61_000_000);
            assert!(off <= 50_000, "{off} µs");
        }
    }

    #[test]
    fn downtime_of_all_replicas_does_not_count() {
        let clock = HandClock::default();
        let mut keeper = TimeKeeper::default();
        clock.set(5_000_000, 0);
        keeper.take_office(&clock, stamps(9_000_000, 1));
        assert_eq!(keeper.peek(&clock).unwrap().lease, LeaseTime(9_000_000));
        keeper.leave_office();
        assert_eq!(keeper.next(&clock), None);
    }
}
