//! Settings of a queue, as the catalog stores them and `apply` reads them.

use serde::{Deserialize, Serialize};

use crate::ids::{CatalogVersion, QueueId};
use crate::time::WallTime;

/// The group of pops that name none ("queue mode").
pub const QUEUE_MODE_GROUP: &str = "__QUEUE_MODE__";

/// Every option of Queen's `configure`. Units stand in the names; see the wire contract §2.5 for what is enforced.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct QueueSettings {
    /// For discovery pops.
    pub namespace: String,
    /// For discovery pops.
    pub task: String,
    /// Lease length of a pop that names none. At least 1.
    pub lease_seconds: u64,
    /// Charged failures allowed; the next one dead-letters.
    pub retry_limit: u32,
    /// Stored and echoed only.
    pub retry_delay_ms: u64,
    /// Stored and echoed only.
    pub messages_max: u64,
    /// Stored and echoed only.
    pub ttl_seconds: u64,
    /// Stored and echoed only.
    pub priority: i64,
    /// Dead letters are kept if this or `dlq_after_max_retries` is on.
    pub dead_letter_queue: bool,
    /// See `dead_letter_queue`.
    pub dlq_after_max_retries: bool,
    /// A message is deliverable only this long after its push.
    pub delayed_processing_seconds: u64,
    /// A lane whose newest message is younger than this delivers nothing.
    pub window_buffer_seconds: u64,
    /// Age after which messages are deleted; 0 = never.
    pub retention_seconds: u64,
    /// Age after which messages passed by every group are deleted; 0 = never.
    pub completed_retention_seconds: u64,
    /// Switch for the two retentions.
    pub retention_enabled: bool,
    /// Stored and echoed; such queues store plain text for now.
    pub encryption_enabled: bool,
    /// Stored and echoed only.
    pub wait_seconds_max: u64,
    /// Stored and echoed only, at most 60 000.
    pub pop_wait_ms_min: u64,
    /// Window of de-duplication; 0 = no comparison with stored messages.
    pub dedup_window_seconds: u64,
    /// Stored and echoed only.
    pub retention_sink_hold: String,
    /// Stored and echoed only.
    pub retention_sink_hold_seconds_max: u64,
}

impl QueueSettings {
    /// What a `configure` without options gives.
    pub fn configured() -> Self {
        Self {
            namespace: String::new(),
            task: String::new(),
            lease_seconds: 300,
            retry_limit: 3,
            retry_delay_ms: 1000,
            messages_max: 0,
            ttl_seconds: 3600,
            priority: 0,
            dead_letter_queue: true,
            dlq_after_max_retries: true,
            delayed_processing_seconds: 0,
            window_buffer_seconds: 0,
            retention_seconds: 0,
            completed_retention_seconds: 0,
            retention_enabled: false,
            encryption_enabled: false,
            wait_seconds_max: 0,
            pop_wait_ms_min: 0,
            dedup_window_seconds: 3600,
            retention_sink_hold: String::new(),
            retention_sink_hold_seconds_max: 604_800,
        }
    }

    /// What the first push to `queue_name` gives: a lease of 60 s, namespace and task from the name's dot parts.
    pub fn implicit(queue_name: &str) -> Self {
        let mut parts = queue_name.split('.');
        let namespace = parts.next().unwrap_or_default().to_owned();
        let task = parts.next().unwrap_or_default().to_owned();
        Self {
            namespace,
            task,
            lease_seconds: 60,
            ..Self::configured()
        }
    }

    /// Whether a spent retry budget files the message instead of dropping it.
    pub fn keeps_dead_letters(&self) -> bool {
        self.dead_letter_queue || self.dlq_after_max_retries
    }
}

/// Where a consumer group starts in lanes that it has not met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GroupStart {
    /// At the first retained message.
    Beginning,
    /// At the position of the registration in the partition's log.
    Registration,
    /// At the first message pushed at or after this time.
    At(WallTime),
}

/// A consumer group's registration on one queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GroupRow {
    /// The group's name; queue mode is [`QUEUE_MODE_GROUP`].
    pub name: String,
    /// Where it starts.
    pub start: GroupStart,
    /// When the catalog registered it.
    pub registered: WallTime,
    /// Catalog version of the registration.
    pub version: CatalogVersion,
}

/// A queue as every partition knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct QueueRow {
    /// Its incarnation.
    pub id: QueueId,
    /// Its name.
    pub name: String,
    /// Its settings.
    pub settings: QueueSettings,
    /// Catalog version of the last change of this row (settings or `listed`, not groups).
    pub version: CatalogVersion,
    /// False until it was pushed to or configured: so far a pop has only registered groups under its name.
    pub listed: bool,
    /// When it was listed (or, before that, first named).
    pub created: WallTime,
}
