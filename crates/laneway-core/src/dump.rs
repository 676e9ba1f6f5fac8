//! A canonical, sorted picture of a partition machine, for comparison with a reference model and for people.

use serde::{Deserialize, Serialize};

use crate::ids::{CatalogVersion, LaneId, LeaseId, Offset, QueueId};
use crate::reply::DeadLetter;
use crate::settings::{GroupRow, QueueRow};
use crate::time::{LeaseTime, Stamps};

/// Everything of a machine that a client can observe, at its last stamps. Rows of deleted queues are left out, and so
/// is whatever only speeds things up (ready index, rows waiting for a sweep).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateDump {
    /// Stamps of the last entry.
    pub stamps: Stamps,
    /// All catalog changes up to this one were taken.
    pub catalog_version: CatalogVersion,
    /// By id.
    pub queues: Vec<QueueDump>,
    /// By lane id.
    pub lanes: Vec<LaneDump>,
    /// By id.
    pub dead_letters: Vec<DeadLetter>,
}

/// A queue and its groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueDump {
    /// Its row.
    pub row: QueueRow,
    /// By name.
    pub groups: Vec<GroupRow>,
}

/// A lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneDump {
    /// Its id.
    pub id: LaneId,
    /// Its queue.
    pub queue: QueueId,
    /// Its name.
    pub name: String,
    /// First retained offset.
    pub head: Offset,
    /// Next offset to be written.
    pub tail: Offset,
    /// By group name; one per registered group of the queue.
    pub groups: Vec<GroupDump>,
}

/// A group on a lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupDump {
    /// Its name.
    pub name: String,
    /// First offset it has not settled.
    pub cursor: Offset,
    /// Its live lease; one that has lapsed is left out.
    pub lease: Option<LeaseDump>,
    /// Charged failures since the last completed batch or dead letter.
    pub retries_used: u32,
    /// Deliveries of the batch that starts at `attempt_at`.
    pub attempt: u32,
    /// Start of the last delivered batch.
    pub attempt_at: Offset,
    /// Messages settled in all.
    pub consumed: u64,
}

/// A live lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseDump {
    /// Its id.
    pub id: LeaseId,
    /// End of the batch, exclusive.
    pub batch_end: Offset,
    /// It lives while lease time is below this.
    pub deadline: LeaseTime,
}
