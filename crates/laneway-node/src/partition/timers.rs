//! When the leader proposes of its own accord. A timer proposes, it never mutates.

use std::time::Duration;

use laneway_core::command::{Command, Sweep};

use super::PartitionMsg;
use super::running::Running;
use crate::clock::Clock;

/// While a deadline is outstanding the log gets an entry at least this often, so that a successor knows the time.
const TICK_US_MAX: u64 = 500_000;

/// Shortest sleep of the timer, so that a burst of deadlines makes few entries.
const TIMER_US_MIN: u64 = 2_000;

/// Rows of deleted queues dropped in one entry.
const SWEEP_ROWS_MAX: u32 = 2_000;

#[derive(Debug, Default)]
pub(super) struct Timers {
    /// Monotonic time at which a tick message arrives; later ones may be under way too.
    armed_at: Option<u64>,
    last_entry: u64,
}

impl Timers {
    pub(super) fn entry_applied(&mut self, clock: &dyn Clock) {
        self.last_entry = clock.monotonic_us();
    }
}

impl Running {
    /// Makes sure that a tick comes when the next deadline does.
    pub(super) fn arm_timer(&mut self) {
        let Some(wait) = self.next_due_us() else { return };
        let now = self.clock.monotonic_us();
        let due = now + wait.max(TIMER_US_MIN);
        if self
            .timers
            .armed_at
            .is_some_and(|armed| armed <= due && armed + TICK_US_MAX > now)
        {
            return;
        }
        self.timers.armed_at = Some(due);
        self.myself
            .send_after(Duration::from_micros(due - now), || PartitionMsg::Tick);
    }

    /// µs until something is due on the leader; `None` when nothing is outstanding.
    fn next_due_us(&self) -> Option<u64> {
        self.office?;
        if self.machine.sweepable() {
            return Some(0);
        }
        let now = self.now();
        let deadline = self.machine.next_lease_deadline();
        let lease = deadline.map(|deadline| deadline.0.saturating_sub(now.lease.0));
        let ripe = self
            .machine
            .next_ripening()
            .map(|ripe| ripe.0.saturating_sub(now.wall.0));
        let heartbeat = deadline.map(|_| {
            let since = self.clock.monotonic_us().saturating_sub(self.timers.last_entry);
            TICK_US_MAX.saturating_sub(since)
        });
        [lease, ripe, heartbeat].into_iter().flatten().min()
    }

    pub(super) fn tick(&mut self) {
        self.timers.armed_at = None;
        if self.idle() && self.next_due_us().is_some_and(|wait| wait < TIMER_US_MIN) {
            let sweep = self.machine.sweepable();
            self.propose_own(if sweep {
                Command::Sweep(Sweep {
                    rows_max: SWEEP_ROWS_MAX,
                })
            } else {
                Command::Tick
            });
        }
        self.arm_timer();
    }
}
