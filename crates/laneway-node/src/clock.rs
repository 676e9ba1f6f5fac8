//! The clock seam, and how a leader turns its clocks into the stamps of the log.

use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use laneway_core::time::{LeaseTime, Stamps, WallTime};

/// How long a follower's reading of the leader's lease time counts when it takes office, in µs.
const SKEW_WINDOW_US: u64 = 10_000_000;

/// The wall clock may be so far from the stamps before the log says so, in µs.
const CLOCK_OFF_MAX_US: u64 = 60_000_000;

/// Where a node reads time. The real one and the simulated one differ; nothing else reads a clock for stamps.
pub(crate) trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Microseconds on a clock that never goes back and knows nothing of the time of day.
    fn monotonic_us(&self) -> u64;
    /// Microseconds since 1970 UTC, as the machine believes; may jump.
    fn wall_us(&self) -> u64;
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
/// far the leader's lease time runs from its own clock, so that it continues from there and is never ahead of the old
/// leader. Wall time follows the wall clock, but never back and within 5 % of the monotonic clock's pace.
#[derive(Debug, Default)]
pub(crate) struct TimeKeeper {
    office: Option<Office>,
    /// Of entries of other leaders: (lease time − own monotonic time, own monotonic time), largest of the window.
    skew: Option<(i128, u64)>,
}

#[derive(Debug)]
struct Office {
    lease_anchor: u64,
    mono_anchor: u64,
    last: Stamps,
    /// 0: no entry of this office yet, the first may jump forward to the wall clock.
    last_mono: u64,
    warned: bool,
}

impl Office {
    /// Follows the wall clock, but within 5 % of the monotonic clock, so that what waits for a time of day neither comes all
    /// at once nor stands still when the wall clock jumps.
    fn wall(&self, clock_us: u64, mono: u64) -> WallTime {
        let last = self.last.wall.0;
        let is_first = self.last_mono == 0;
        let since = if is_first {
            self.mono_anchor
        } else {
            self.last_mono
        };
        let elapsed = mono.saturating_sub(since);
        let slowest = last.saturating_add(elapsed - elapsed / 20).max(last + 1);
        let fastest = if is_first {
            u64::MAX
        } else {
            last.saturating_add(elapsed + elapsed / 20)
        };
        WallTime(clock_us.min(fastest).max(slowest))
    }
}

impl TimeKeeper {
    /// Notes an entry that another leader (or an earlier process) stamped.
    pub(crate) fn observe(&mut self, clock: &dyn Clock, stamps: Stamps) {
        let mono = clock.monotonic_us();
        let skew = i128::from(stamps.lease.0) - i128::from(mono);
        match self.skew {
            Some((best, at)) if best >= skew && mono.saturating_sub(at) < SKEW_WINDOW_US => {}
            _ => self.skew = Some((skew, mono)),
        }
    }

    /// Takes office after `last`, the stamps of the newest applied entry.
    ///
    /// `replayed` says that this process has seen only its own old log since it started: then the time while nobody
    /// ran does not count, and lease time continues from `last`.
    pub(crate) fn take_office(&mut self, clock: &dyn Clock, last: Stamps, replayed: bool) {
        let mono = clock.monotonic_us();
        let continued = match self.skew {
            Some((skew, at)) if !replayed && mono.saturating_sub(at) < SKEW_WINDOW_US => {
                u64::try_from(skew + i128::from(mono)).unwrap_or(0)
            }
            _ => 0,
        };
        self.office = Some(Office {
            lease_anchor: continued.max(last.lease.0),
            mono_anchor: mono,
            last,
            last_mono: 0,
            warned: false,
        });
        self.skew = None;
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
            wall: office.wall(clock.wall_us(), mono),
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
        office.last = stamps;
        office.last_mono = clock.monotonic_us().max(1);
        Some(stamps)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[derive(Debug, Default)]
    struct HandClock {
        mono: AtomicU64,
        wall: AtomicU64,
    }

    impl HandClock {
        fn set(&self, mono: u64, wall: u64) {
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
        keeper.take_office(&clock, stamps(77, 5), true);
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
        keeper.take_office(&clock, stamps(0, 10 * hour), true);
        clock.set(3_000_000, 5 * hour + 2_000_000);
        assert_eq!(keeper.peek(&clock).unwrap().wall, WallTime(10 * hour + 1_900_000));
        keeper.next(&clock).unwrap();
        clock.set(5_000_000, 5 * hour + 4_000_000);
        assert_eq!(keeper.next(&clock).unwrap().wall, WallTime(10 * hour + 3_800_000));
    }

    #[test]
    fn wall_time_of_entries_at_one_instant_still_grows() {
        let clock = HandClock::default();
        clock.set(1_000_000, 7);
        let mut keeper = TimeKeeper::default();
        keeper.take_office(&clock, stamps(0, 9), true);
        let walls: Vec<u64> = (0..3).map(|_| keeper.next(&clock).unwrap().wall.0).collect();
        assert_eq!(walls, [10, 11, 12]);
    }

    #[test]
    fn follower_continues_the_leaders_lease_time_but_is_never_ahead() {
        let clock = HandClock::default();
        let mut keeper = TimeKeeper::default();
        clock.set(1_000_000, 0);
        keeper.observe(&clock, stamps(500_000, 1));
        clock.set(2_000_000, 0);
        keeper.observe(&clock, stamps(1_400_000, 2));
        clock.set(3_000_000, 0);
        keeper.take_office(&clock, stamps(1_400_000, 2), false);
        assert_eq!(keeper.peek(&clock).unwrap().lease, LeaseTime(2_500_000));
    }

    #[test]
    fn downtime_of_all_replicas_does_not_count() {
        let clock = HandClock::default();
        let mut keeper = TimeKeeper::default();
        clock.set(1_000_000, 0);
        keeper.observe(&clock, stamps(9_000_000, 1));
        clock.set(5_000_000, 0);
        keeper.take_office(&clock, stamps(9_000_000, 1), true);
        assert_eq!(keeper.peek(&clock).unwrap().lease, LeaseTime(9_000_000));
        keeper.leave_office();
        assert_eq!(keeper.next(&clock), None);
    }
}
