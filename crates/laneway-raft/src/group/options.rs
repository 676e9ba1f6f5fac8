//! Options of a group, and what openraft is told.

use laneway_core::ids::PartitionId;
use openraft::{Config, SnapshotPolicy};

use super::error::OpenError;

/// Default of [`GroupOptions::heartbeat_ms`].
pub const HEARTBEAT_MS: u64 = 50;
/// Default of [`GroupOptions::election_ms_min`].
pub const ELECTION_MS_MIN: u64 = 150;
/// Default of [`GroupOptions::election_ms_max`].
pub const ELECTION_MS_MAX: u64 = 300;

/// Options of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupOptions {
    /// Which partition this is the log of.
    pub partition: PartitionId,
    /// This replica's raft node id, see [`node_id`](crate::node_id()).
    pub node_id: u64,
    /// A leader shows itself this often, in ms.
    pub heartbeat_ms: u64,
    /// A follower that has heard no leader for a random time between this, in ms, and ...
    pub election_ms_min: u64,
    /// ... this, in ms, stands for election. More than `election_ms_min`, which is more than `heartbeat_ms`.
    pub election_ms_max: u64,
}

impl GroupOptions {
    /// The defaults for one group.
    #[must_use]
    pub fn new(partition: PartitionId, node_id: u64) -> Self {
        Self {
            partition,
            node_id,
            heartbeat_ms: HEARTBEAT_MS,
            election_ms_min: ELECTION_MS_MIN,
            election_ms_max: ELECTION_MS_MAX,
        }
    }

    pub(super) fn config(&self) -> Result<Config, OpenError> {
        let config = Config {
            cluster_name: format!("laneway/{}", self.partition),
            heartbeat_interval: self.heartbeat_ms,
            election_timeout_min: self.election_ms_min,
            election_timeout_max: self.election_ms_max,
            // Checkpoints are cut by bytes and time, and purging is asked for: openraft shall do neither by entry counts.
            snapshot_policy: SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: u64::MAX,
            enable_pre_vote: Some(true),
            // A restarted leader leads a new term. In its old one it would append no first entry, and what it proposed
            // before the restart could not be told from what it proposes now.
            enable_leader_restore: Some(false),
            // A follower whose data was put back to an earlier time gets what it lacks while it is told to stop (see
            // `PeerService::reverted`); otherwise openraft would ask it for the same entry without end, or panic in debug builds.
            allow_log_reversion: Some(true),
            ..Config::default()
        };
        config.validate().map_err(|error| OpenError::InvalidOptions {
            reason: error.to_string(),
        })
    }
}
