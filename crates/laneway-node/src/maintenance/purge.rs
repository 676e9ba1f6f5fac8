//! Purging the log: what a checkpoint covers goes, but for what followers may soon ask for.
//!
//! openraft itself keeps what a connected follower has not confirmed, until that fails to answer an append in time. For one
//! that is away for a moment the newest segments stay, a quarter of what the log may have: it is bounded by bytes, and the
//! same on leader and followers. What a snapshot on its way needs stays until that is given up. Whoever needs more than that
//! gets a snapshot.

use laneway_core::ids::PartitionId;
use laneway_raft::Group;

use super::Round;

/// Of `wal_segments_max`, so many parts stay for followers: one in four.
const KEPT_DIVISOR: usize = 4;

impl Round {
    /// The log up to the checkpoint that ends at `index` is no longer needed here.
    pub(super) fn purge(&self, group: Option<Group>, partition: PartitionId, index: u64) {
        let Some(group) = group else { return };
        let members = group.members();
        let alone = members.voters.len() + members.learners.len() <= 1;
        let upto = if alone {
            Some(index)
        } else {
            self.behind_kept(partition, index)
        };
        let held = self.snapshots().hold(partition);
        let upto = upto.map(|upto| held.map_or(upto, |held| upto.min(held)));
        let outcome = self.work.runtime.block_on(async {
            group.name_checkpoint().await.map_err(|error| error.to_string())?;
            if let Some(upto) = upto {
                group.purge(upto).await.map_err(|error| error.to_string())?;
            }
            Ok::<(), String>(())
        });
        if let Err(error) = outcome {
            tracing::debug!(%partition, error, "log not purged yet");
        }
    }

    /// The last entry up to `index` that lies in none of the newest segments.
    fn behind_kept(&self, partition: PartitionId, index: u64) -> Option<u64> {
        let wal = &self.work.wal;
        let segments = wal.segments();
        let kept = self.work.storage.wal_segments_max as usize / KEPT_DIVISOR;
        let oldest_kept = segments.get(segments.len().checked_sub(kept)?)?.id;
        let first = wal.first_index(partition);
        let (mut low, mut high) = (first, index.saturating_add(1));
        while low < high {
            let middle = low + (high - low) / 2;
            match wal.locate(partition, middle) {
                Some(place) if place.segment < oldest_kept => low = middle + 1,
                _ => high = middle,
            }
        }
        low.checked_sub(1).filter(|last| *last >= first)
    }
}
