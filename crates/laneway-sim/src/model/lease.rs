//! Extension and release of leases.

use laneway_core::command::{Extend, ReleaseClaim};
use laneway_core::reply::Extended;
use laneway_core::time::WallTime;

use super::Model;

impl Model {
    pub(super) fn extend(&mut self, extend: &Extend) -> Option<Extended> {
        let now = self.stamps;
        let wanted = now.lease.plus_ms(extend.lease_ms);
        let mut deadlines = Vec::new();
        let live: Vec<_> = self.queues.iter().map(|queue| queue.row.id).collect();
        for lane in self.lanes.iter_mut().filter(|lane| live.contains(&lane.queue)) {
            for group in &mut lane.groups {
                let Some(mut lease) = group.live_lease(now.lease) else {
                    continue;
                };
                if lease.id == extend.lease_id {
                    lease.deadline = lease.deadline.max(wanted);
                    deadlines.push(lease.deadline);
                    group.lease = Some(lease);
                }
            }
        }
        let earliest = deadlines.iter().min()?;
        let left = earliest.0 - now.lease.0;
        let renewed = u32::try_from(deadlines.len()).expect("a model holds fewer lanes");
        Some(Extended {
            renewed,
            expires: WallTime(now.wall.0.saturating_add(left)),
        })
    }

    pub(super) fn release_claim(&mut self, release: &ReleaseClaim) -> u32 {
        let now = self.stamps.lease;
        let mut count = 0;
        for (lane, end) in &release.lanes {
            let Some(lane_at) = self.lane_at(*lane) else {
                continue;
            };
            let head = self.lanes[lane_at].head;
            for group_at in 0..self.lanes[lane_at].groups.len() {
                let group = &mut self.lanes[lane_at].groups[group_at];
                let Some(lease) = group.live_lease(now).filter(|lease| lease.id == release.lease_id) else {
                    continue;
                };
                match *end {
                    None => {
                        group.lease = None;
                        group.attempt = group.attempt.saturating_sub(1);
                        self.update_ready(lane_at, group_at);
                        count += 1;
                    }
                    Some(end) if group.cursor.max(head) < end && end < lease.batch_end => {
                        group.lease = Some(super::Lease {
                            batch_end: end,
                            ..lease
                        });
                        count += 1;
                    }
                    Some(_) => {}
                }
            }
        }
        count
    }
}
