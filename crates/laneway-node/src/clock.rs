//! The clock seam, and how a leader turns its clocks into the stamps of the log.

use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use laneway_core::time::{LeaseTime, Stamps, WallTime};

/// How long a follower's reading of the leader's lease time counts when it takes office, in µs.
const SKEW_WINDOW_US: u64 = 10_000_000;

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
/// leader. Wall time follows the wall clock, but never back and at most 5 % faster than the monotonic clock.
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
    last_mono: u64,
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
        let wall = if office.last_mono == 0 {
            clock.wall_us()
        } else {
            let elapsed = mono.saturating_sub(office.last_mono);
            clock
                .wall_us()
                .min(office.last.wall.0.saturating_add(elapsed + elapsed / 20))
        };
        Some(Stamps {
            lease: LeaseTime(lease),
            wall: WallTime(wall.max(office.last.wall.0 + 1)),
        })
    }

    /// The stamps of the next entry; `None` out of office.
    pub(crate) fn next(&mut self, clock: &dyn Clock) -> Option<Stamps> {
        let stamps = self.peek(clock)?;
        let office = self.office.as_mut()?;
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
        assert_eq!(back.wall, WallTime(jumped.wall.0 + 1));
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
