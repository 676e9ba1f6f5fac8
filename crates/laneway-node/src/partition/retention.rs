//! What retention asks of the log: which messages are too old, by the leader's clock.

use laneway_core::command::{Command, Trim};
use laneway_core::ids::{LaneId, Offset, QueueId};
use laneway_core::time::WallTime;

use super::running::Running;

/// Lanes looked at in one pass; the next pass goes on after them.
const LANES_PER_PASS_MAX: usize = 20_000;

/// Lanes in one command.
const LANES_PER_TRIM_MAX: usize = 1_000;

/// One pass over the lanes of queues with retention.
struct Pass {
    skip: usize,
    position: usize,
    looked_at: usize,
    trims: Vec<Trim>,
}

impl Running {
    /// Proposes the trims that are due. Cheap: looks only at locations in memory, at a bounded number of lanes.
    pub(super) fn retain(&mut self) {
        if self.office.is_none() {
            return;
        }
        let mut pass = Pass {
            skip: self.retention_from,
            position: 0,
            looked_at: 0,
            trims: Vec::new(),
        };
        for queue in self.machine.queue_ids() {
            if pass.looked_at < LANES_PER_PASS_MAX {
                self.look_at_queue(queue, &mut pass);
            }
        }
        self.retention_from = if pass.looked_at == LANES_PER_PASS_MAX {
            pass.position
        } else {
            0
        };
        for trim in pass.trims {
            self.propose_own(Command::Trim(trim));
        }
    }

    fn look_at_queue(&self, queue: QueueId, pass: &mut Pass) {
        let Some(row) = self
            .machine
            .queue(queue)
            .filter(|row| row.settings.retention_enabled)
        else {
            return;
        };
        let (any, done) = (
            row.settings.retention_seconds,
            row.settings.completed_retention_seconds,
        );
        let groups: Vec<&str> = self
            .machine
            .groups_of(queue)
            .map(|group| group.name.as_str())
            .collect();
        let mut of_age = Vec::new();
        let mut completed = Vec::new();
        for (lane, view) in self.machine.lanes_of(queue) {
            if pass.looked_at == LANES_PER_PASS_MAX {
                break;
            }
            pass.position += 1;
            if pass.position <= pass.skip || view.head == view.tail {
                continue;
            }
            pass.looked_at += 1;
            if let Some(head) = self.older_than(lane, any).filter(|head| *head > view.head) {
                of_age.push((lane, head));
            } else if let Some(head) = self.older_than(lane, done)
                && self.completed_up_to(lane, &groups).min(head) > view.head
            {
                completed.push((lane, head));
            }
        }
        push_trims(&mut pass.trims, queue, false, &of_age);
        push_trims(&mut pass.trims, queue, true, &completed);
    }

    /// What every group has settled; nothing when there is no group.
    fn completed_up_to(&self, lane: LaneId, groups: &[&str]) -> Offset {
        let cursors = groups
            .iter()
            .filter_map(|group| self.machine.group(lane, group))
            .map(|group| group.cursor);
        cursors.min().unwrap_or_default()
    }

    fn older_than(&self, lane: LaneId, seconds: u64) -> Option<Offset> {
        if seconds == 0 {
            return None;
        }
        let before = self
            .now()
            .wall
            .0
            .saturating_sub(seconds.saturating_mul(1_000_000));
        self.stores.payloads.older_than(lane, WallTime(before))
    }
}

fn push_trims(trims: &mut Vec<Trim>, queue: QueueId, completed_only: bool, lanes: &[(LaneId, Offset)]) {
    for lanes in lanes.chunks(LANES_PER_TRIM_MAX) {
        trims.push(Trim {
            queue,
            completed_only,
            lanes: lanes.to_vec(),
        });
    }
}
