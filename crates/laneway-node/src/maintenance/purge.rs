//! Purging the log: what a checkpoint covers goes, but for what followers may soon ask for.
//!
//! openraft itself keeps what a connected follower has not confirmed, until that fails to answer an append in time. For one
//! that is away for a moment the newest segments stay, a quarter of what the log may have: it is bounded by bytes, and the
//! same on leader and followers. What a snapshot on its way needs stays until that is given up. Whoever needs more than that
//! gets a snapshot.

use std::sync::atomic::Ordering;

use laneway_core::ids::PartitionId;
use laneway_raft::Group;

use super::Round;

/// Of `wal_segments_max`, so many parts stay for followers: one in four.
const KEPT_DIVISOR: usize = 4;

impl Round {
    /// Purges what was kept when the last checkpoint was written and is kept no longer: a group in which nothing happens
    /// must not hold old segments.
    pub(super) fn purge_kept(&self) {
        let (catalog, _) = &self.work.catalog;
        let index = catalog.checkpoint_index.load(Ordering::Acquire);
        let mut all = vec![(PartitionId::CATALOG, catalog.group(), index)];
        for (partition, _) in &self.work.partitions {
            let index = partition.checkpoint_index.load(Ordering::Acquire);
            all.push((partition.id, partition.group(), index));
        }
        for (id, group, index) in all {
            if let Some(group) = group
                && self.purgeable(&group, id, index).is_some()
            {
                self.purge(Some(group), id, index);
            }
        }
    }

    /// The log up to the checkpoint that ends at `index` is no longer needed here.
    pub(super) fn purge(&self, group: Option<Group>, partition: PartitionId, index: u64) {
        let Some(group) = group else { return };
        let upto = self.purgeable(&group, partition, index);
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

    /// Up to where the log may go, if any of it may.
    fn purgeable(&self, group: &Group, partition: PartitionId, index: u64) -> Option<u64> {
        let members = group.members();
        let alone = members.voters.len() + members.learners.len() <= 1;
        let upto = if alone {
            index
        } else {
            self.behind_kept(partition, index)?
        };
        let upto = self
            .snapshots()
            .hold(partition)
            .map_or(upto, |held| upto.min(held));
        (upto >= self.work.wal.first_index(partition)).then_some(upto)
    }

    /// The last entry up to `index` that lies in none of the newest segments.
    fn behind_kept(&self, partition: PartitionId, index: u64) -> Option<u64> {
        let wal = &self.work.wal;
        let segments = wal.segments();
        let kept = kept_segments(self.work.storage.wal_segments_max);
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

/// Newest segments that stay for followers: at least the one that is being written.
fn kept_segments(segments_max: u32) -> usize {
    (segments_max as usize / KEPT_DIVISOR).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_of_few_segments_is_purged_too() {
        for (segments_max, kept) in [(2, 1), (3, 1), (4, 1), (8, 2), (9, 2)] {
            assert_eq!(kept_segments(segments_max), kept, "{segments_max}");
        }
    }
}
