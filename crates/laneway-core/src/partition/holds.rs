//! Holding messages back: `delayed_processing_seconds` and `window_buffer_seconds`.

use crate::ids::Offset;
use crate::rows::{LaneRow, UnripeRun};
use crate::settings::QueueSettings;
use crate::time::WallTime;

/// What a queue holds back. Both must be satisfied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Holds {
    /// Seconds from a message's push until it is deliverable.
    pub(super) delay: u64,
    /// Seconds that a lane must have been quiet to deliver anything.
    pub(super) window: u64,
}

impl Holds {
    pub(super) fn of(settings: &QueueSettings) -> Self {
        Self {
            delay: settings.delayed_processing_seconds,
            window: settings.window_buffer_seconds,
        }
    }

    /// When the message at `from`, which is in the lane, becomes deliverable; 0 if that was always so.
    pub(super) fn ripe_at(self, lane: &LaneRow, from: Offset) -> WallTime {
        let quiet = if self.window == 0 {
            WallTime(0)
        } else {
            lane.newest.plus_seconds(self.window)
        };
        let Some(unripe) = lane.unripe.as_deref().filter(|_| self.delay > 0) else {
            return quiet;
        };
        let after = unripe.runs.partition_point(|run| run.first <= from);
        let run = after.checked_sub(1).and_then(|at| unripe.runs.get(at));
        quiet.max(run.map_or(WallTime(0), |run| run.wall.plus_seconds(self.delay)))
    }

    /// End of what is deliverable at `wall`; the head if that is nothing.
    pub(super) fn ripe_end(self, lane: &LaneRow, wall: WallTime) -> Offset {
        if self.window > 0 && lane.newest.plus_seconds(self.window) > wall {
            return lane.head;
        }
        let Some(unripe) = lane.unripe.as_deref().filter(|_| self.delay > 0) else {
            return lane.tail;
        };
        let ripe_runs = unripe
            .runs
            .partition_point(|run| run.wall.plus_seconds(self.delay) <= wall);
        unripe
            .runs
            .get(ripe_runs)
            .map_or(lane.tail, |run| run.first.max(lane.head))
    }

    /// Notes the stamp of messages about to be stored from the tail on.
    pub(super) fn note(self, lane: &mut LaneRow, wall: WallTime) {
        lane.newest = wall;
        if self.delay > 0 {
            let runs = &mut lane.unripe.get_or_insert_default().runs;
            if runs.back().is_none_or(|last| last.wall != wall) {
                runs.push_back(UnripeRun {
                    first: lane.tail,
                    wall,
                });
            }
        }
    }

    /// Forgets stamps that no longer hold anything back.
    pub(super) fn prune(self, lane: &mut LaneRow, wall: WallTime) {
        let Some(unripe) = lane.unripe.as_deref_mut() else {
            return;
        };
        let runs = &mut unripe.runs;
        while runs
            .front()
            .is_some_and(|run| run.wall.plus_seconds(self.delay) <= wall)
        {
            runs.pop_front();
        }
        while runs.get(1).is_some_and(|next| next.first <= lane.head) {
            runs.pop_front();
        }
        if runs.is_empty() {
            lane.unripe = None;
        }
    }
}
