//! What the leader has planned and not yet applied, as far as later plans depend on it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use laneway_core::command::RequestKey;
use laneway_core::ids::{Offset, QueueId};
use laneway_core::time::WallTime;
use laneway_storage::dedup::DedupKey;

/// A lane by name: it may not be born yet.
pub(super) type LaneKey = (QueueId, Arc<str>);

/// Plans in flight. All of it belongs to one term; a failed proposal voids the whole.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    /// Predicted tail, and the last proposal that moved it.
    tails: HashMap<LaneKey, (u64, u64)>,
    /// Messages being stored, by dedup key.
    keys: HashMap<DedupKey, (Offset, WallTime)>,
    /// Request ids in flight.
    requests: HashSet<(String, u32)>,
}

/// What one proposal put into the overlay.
#[derive(Debug, Default)]
pub(super) struct Planned {
    pub(super) lanes: Vec<LaneKey>,
    pub(super) keys: Vec<DedupKey>,
    pub(super) requests: Vec<(String, u32)>,
}

impl Overlay {
    pub(super) fn tail(&self, lane: &LaneKey) -> Option<u64> {
        self.tails.get(lane).map(|(tail, _)| *tail)
    }

    pub(super) fn stored(&self, key: DedupKey) -> Option<(Offset, WallTime)> {
        self.keys.get(&key).copied()
    }

    pub(super) fn in_flight(&self, request: &RequestKey) -> bool {
        self.requests.contains(&(request.id.clone(), request.part))
    }

    pub(super) fn set_tail(&mut self, lane: LaneKey, tail: u64, proposal: u64, planned: &mut Planned) {
        self.tails.insert(lane.clone(), (tail, proposal));
        planned.lanes.push(lane);
    }

    pub(super) fn add_key(&mut self, key: DedupKey, offset: Offset, wall: WallTime, planned: &mut Planned) {
        self.keys.insert(key, (offset, wall));
        planned.keys.push(key);
    }

    pub(super) fn add_request(&mut self, request: &RequestKey, planned: &mut Planned) {
        let key = (request.id.clone(), request.part);
        self.requests.insert(key.clone());
        planned.requests.push(key);
    }

    /// `proposal` is applied: the machine and the dedup store know it now.
    pub(super) fn applied(&mut self, proposal: u64, planned: Planned) {
        for lane in planned.lanes {
            if self.tails.get(&lane).is_some_and(|(_, last)| *last == proposal) {
                self.tails.remove(&lane);
            }
        }
        for key in planned.keys {
            self.keys.remove(&key);
        }
        for request in planned.requests {
            self.requests.remove(&request);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
