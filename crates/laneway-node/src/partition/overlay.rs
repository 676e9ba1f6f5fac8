//! What the leader has planned in the entry that it forms or that is in flight, as far as later commands of it depend on that.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use laneway_core::command::RequestKey;
use laneway_core::ids::{Offset, QueueId};
use laneway_core::time::WallTime;
use laneway_storage::dedup::DedupKey;

/// A lane by name: it may not be born yet.
pub(super) type LaneKey = (QueueId, Arc<str>);

/// Plans of one entry. It is empty again when that is applied, or failed.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    /// Predicted tails.
    tails: HashMap<LaneKey, u64>,
    /// Messages being stored, by dedup key.
    keys: HashMap<DedupKey, (Offset, WallTime)>,
    /// Request ids in flight.
    requests: HashSet<(String, u32)>,
}

impl Overlay {
    pub(super) fn tail(&self, lane: &LaneKey) -> Option<u64> {
        self.tails.get(lane).copied()
    }

    pub(super) fn stored(&self, key: DedupKey) -> Option<(Offset, WallTime)> {
        self.keys.get(&key).copied()
    }

    pub(super) fn in_flight(&self, request: &RequestKey) -> bool {
        self.requests.contains(&(request.id.clone(), request.part))
    }

    pub(super) fn set_tail(&mut self, lane: LaneKey, tail: u64) {
        self.tails.insert(lane, tail);
    }

    pub(super) fn add_key(&mut self, key: DedupKey, offset: Offset, wall: WallTime) {
        self.keys.insert(key, (offset, wall));
    }

    pub(super) fn add_request(&mut self, request: &RequestKey) {
        self.requests.insert((request.id.clone(), request.part));
    }

    /// Keeps the room: the next entry needs as much.
    pub(super) fn clear(&mut self) {
        self.tails.clear();
        self.keys.clear();
        self.requests.clear();
    }
}
