//! `GET /api/v1/resources/queues`, `GET` and `DELETE /api/v1/resources/queues/:queue`

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::configure::QueueOptions;

/// All queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueList<'a> {
    /// By name.
    pub queues: Vec<QueueRow<'a>>,
    /// Always 0 for now.
    pub kv_rows: u64,
    /// Always 0 for now.
    pub kv_bytes: u64,
    /// Always 0 for now.
    pub timer_rows: u64,
    /// Always 0 for now.
    pub timer_bytes: u64,
}

/// A queue of the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueRow<'a> {
    /// UUID of the incarnation.
    pub id: String,
    /// Its name.
    pub name: Cow<'a, str>,
    /// Its name again.
    pub queue: Cow<'a, str>,
    /// For pops by namespace and task.
    pub namespace: Cow<'a, str>,
    /// For pops by namespace and task.
    pub task: Cow<'a, str>,
    /// Always `segments`.
    pub storage: Cow<'a, str>,
    /// Number of lanes.
    pub partitions: u64,
    /// What is stored.
    pub segments: SegmentCounts,
    /// What is in which state.
    pub messages: MessageCounts,
    /// Bytes of retained messages.
    pub retained_bytes: u64,
    /// Its options.
    pub options: QueueOptions<'a>,
    /// When it came into being.
    pub created_at: String,
}

/// One queue with its lanes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueDetail<'a> {
    /// UUID of the incarnation.
    pub id: String,
    /// Its name.
    pub name: Cow<'a, str>,
    /// For pops by namespace and task.
    pub namespace: Cow<'a, str>,
    /// For pops by namespace and task.
    pub task: Cow<'a, str>,
    /// When it came into being.
    pub created_at: String,
    /// Its options.
    pub options: QueueOptions<'a>,
    /// Its lanes, by id.
    pub partitions: Vec<LaneRow<'a>>,
    /// What is stored.
    pub segments: SegmentCounts,
    /// Sums over its lanes.
    pub totals: MessageCounts,
    /// Bytes of retained messages.
    pub retained_bytes: u64,
}

/// Laneway has no segments: the number of lanes stands in for theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentCounts {
    /// Number of lanes.
    pub segments: u64,
    /// Retained messages.
    pub messages: u64,
}

/// Messages by state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageCounts {
    /// Retained.
    pub total: u64,
    /// Above the reference cursor and not leased.
    pub pending: u64,
    /// Under live leases.
    pub processing: u64,
    /// The rest of the retained ones.
    pub completed: u64,
    /// Dead letters.
    pub dead_letter: u64,
}

/// A lane of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LaneRow<'a> {
    /// Lane id.
    pub id: String,
    /// Its name.
    pub name: Cow<'a, str>,
    /// Time of its oldest retained message; null when it retains none.
    pub created_at: Option<String>,
    /// Retained messages.
    pub messages: u64,
    /// Messages by state.
    pub stats: LaneStats,
    /// How far it was read.
    pub cursor: LaneCursor,
    /// Time of its newest message.
    pub last_activity: Option<String>,
    /// Time of its oldest retained message.
    pub oldest_message: Option<String>,
    /// Time of its newest message.
    pub newest_message: Option<String>,
}

/// Messages of a lane by state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LaneStats {
    /// Retained.
    pub total: u64,
    /// Above the reference cursor and not leased.
    pub pending: u64,
    /// Under live leases.
    pub processing: u64,
    /// The rest of the retained ones.
    pub completed: u64,
    /// Always null: failures are counted per group, not per lane.
    pub failed: Option<u64>,
    /// Dead letters.
    pub dead_letter: u64,
}

/// How far a lane was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LaneCursor {
    /// Messages settled in all.
    pub total_consumed: u64,
    /// Always 0: batches are not counted.
    pub batches_consumed: u64,
}

/// Answer of a deletion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteQueueResponse<'a> {
    /// It was deleted now.
    pub deleted: bool,
    /// It was there.
    pub existed: bool,
    /// Its name.
    pub queue: Cow<'a, str>,
    /// Why nothing was deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Cow<'a, str>>,
}
