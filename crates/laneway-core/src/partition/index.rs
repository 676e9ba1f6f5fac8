//! What is derived from the rows, so that every command is quick.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::counts::QueueCounts;
use crate::command::RequestKey;
use crate::ids::{DeadLetterId, LaneId, LeaseId, Offset, QueueId};
use crate::rows::{Lease, Standing};
use crate::settings::{GroupRow, GroupStart, QUEUE_MODE_GROUP};
use crate::time::{LeaseTime, WallTime};

/// Number of a group in its queue, in order of registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupNumber(pub(super) u32);

impl GroupNumber {
    pub(super) fn at(self) -> usize {
        usize::try_from(self.0).expect("32 bits fit an index")
    }
}

/// Everything derived. No entry but those of `dead` promises that its queue is still there.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Index {
    /// Live queues.
    pub(super) queues: BTreeMap<QueueId, QueueIndex>,
    /// Deleted queues that have rows left.
    pub(super) dead: BTreeMap<QueueId, QueueIndex>,
    /// Lanes by hash of queue and name.
    pub(super) names: BTreeSet<(u64, LaneId)>,
    /// Lanes whose counts are not in their queue's sums just now.
    pub(super) uncounted: BTreeSet<LaneId>,
    /// Leases, lapsed ones included.
    pub(super) deadlines: BTreeSet<(LeaseTime, LaneId, GroupNumber)>,
    /// The same by id.
    pub(super) leases: BTreeSet<(LeaseId, LaneId, GroupNumber)>,
    /// Lanes held back.
    pub(super) ripenings: BTreeSet<(WallTime, LaneId, GroupNumber)>,
    /// Dead letters by place.
    pub(super) pins: BTreeSet<(LaneId, Offset, DeadLetterId)>,
    /// Kept answers by hash of the request's id and part.
    pub(super) requests: BTreeSet<(u64, u64)>,
    /// Kept answers of settled leases.
    pub(super) settled: BTreeMap<(LeaseId, LaneId, u128), u64>,
}

/// A queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct QueueIndex {
    pub(super) lanes: BTreeSet<LaneId>,
    pub(super) dead_letters: BTreeSet<DeadLetterId>,
    /// By number.
    pub(super) groups: Vec<GroupIndex>,
    pub(super) by_name: BTreeMap<String, GroupNumber>,
    /// Numbers in name order.
    pub(super) order: Arc<[GroupNumber]>,
    pub(super) queue_mode: Option<GroupNumber>,
    /// Sums over its lanes, without dead letters.
    pub(super) sums: QueueCounts,
}

/// A group of a queue.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GroupIndex {
    pub(super) name: String,
    pub(super) start: GroupStart,
    /// Claimable lanes, longest-ready first.
    pub(super) ready: BTreeSet<(u64, LaneId)>,
}

impl QueueIndex {
    pub(super) fn add_group(&mut self, row: &GroupRow) -> GroupNumber {
        let number = GroupNumber(u32::try_from(self.groups.len()).expect("the catalog bounds groups"));
        self.groups.push(GroupIndex {
            name: row.name.clone(),
            start: row.start,
            ready: BTreeSet::new(),
        });
        self.by_name.insert(row.name.clone(), number);
        if row.name == QUEUE_MODE_GROUP {
            self.queue_mode = Some(number);
        }
        self.order = self.by_name.values().copied().collect();
        number
    }

    pub(super) fn is_swept(&self) -> bool {
        self.lanes.is_empty() && self.dead_letters.is_empty()
    }
}

impl Index {
    pub(super) fn insert_standing(
        &mut self,
        queue: QueueId,
        lane: LaneId,
        group: GroupNumber,
        standing: Standing,
    ) {
        match standing {
            Standing::Idle => {}
            Standing::Held(until) => drop(self.ripenings.insert((until, lane, group))),
            Standing::Ready(sequence) => {
                let queue = self
                    .queues
                    .get_mut(&queue)
                    .expect("only lanes of live queues become ready");
                queue.groups[group.at()].ready.insert((sequence, lane));
            }
        }
    }

    /// Also for lanes of deleted queues.
    pub(super) fn remove_standing(
        &mut self,
        queue: QueueId,
        lane: LaneId,
        group: GroupNumber,
        standing: Standing,
    ) {
        match standing {
            Standing::Idle => {}
            Standing::Held(until) => drop(self.ripenings.remove(&(until, lane, group))),
            Standing::Ready(sequence) => {
                let index = self.queues.get_mut(&queue).or_else(|| self.dead.get_mut(&queue));
                let group = index.and_then(|index| index.groups.get_mut(group.at()));
                group.map(|group| group.ready.remove(&(sequence, lane)));
            }
        }
    }

    pub(super) fn insert_lease(&mut self, lane: LaneId, group: GroupNumber, lease: Lease) {
        self.deadlines.insert((lease.deadline, lane, group));
        self.leases.insert((lease.id, lane, group));
    }

    pub(super) fn remove_lease(&mut self, lane: LaneId, group: GroupNumber, lease: Lease) {
        self.deadlines.remove(&(lease.deadline, lane, group));
        self.leases.remove(&(lease.id, lane, group));
    }
}

/// For [`Index::names`].
pub(super) fn name_hash(queue: QueueId, name: &str) -> u64 {
    xxh3_64_with_seed(name.as_bytes(), queue.0)
}

/// For [`Index::requests`].
pub(super) fn request_hash(request: &RequestKey) -> u64 {
    xxh3_64_with_seed(request.id.as_bytes(), xxh3_64(&request.part.to_le_bytes()))
}
