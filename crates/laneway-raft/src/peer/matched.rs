//! What followers have confirmed, to notice one whose data went back in time.
//!
//! A data directory that was put back to an earlier state (a copy, a disk's snapshot) has its old raft node id, but not the
//! entries that it confirmed under it. openraft counts on them for ever and asks for nothing else. Within one term a follower
//! that has confirmed an entry never loses it otherwise.

use std::collections::HashMap;
use std::sync::Mutex;

use laneway_core::ids::PartitionId;

use super::lock;

/// The last entry that each replica confirmed, and in which term of the leader that was.
#[derive(Debug, Default)]
pub(super) struct Matched(Mutex<HashMap<(PartitionId, u64), (u64, u64)>>);

impl Matched {
    /// To this leader of `term` the replica has confirmed what it holds up to `index`.
    pub(super) fn note(&self, partition: PartitionId, raft_id: u64, term: u64, index: u64) {
        let mut matched = lock(&self.0);
        let last = matched.entry((partition, raft_id)).or_insert((term, index));
        *last = if last.0 == term {
            (term, last.1.max(index))
        } else {
            (term, index)
        };
    }

    /// The replica says that it has no such entry at `index`. The index up to which it had confirmed, if that was in the same term
    /// and not before `index`.
    pub(super) fn lost(&self, partition: PartitionId, raft_id: u64, term: u64, index: u64) -> Option<u64> {
        let matched = lock(&self.0);
        let (at, confirmed) = matched.get(&(partition, raft_id))?;
        (*at == term && *confirmed >= index).then_some(*confirmed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: PartitionId = PartitionId(3);

    #[test]
    fn only_what_was_confirmed_in_the_same_term_can_be_lost() {
        let matched = Matched::default();
        assert_eq!(matched.lost(P, 7, 1, 5), None);
        matched.note(P, 7, 1, 5);
        matched.note(P, 7, 1, 4);
        assert_eq!(matched.lost(P, 7, 1, 6), None, "it never had that");
        assert_eq!(matched.lost(P, 7, 1, 5), Some(5));
        assert_eq!(matched.lost(P, 7, 2, 5), None, "it may have been overwritten");
        assert_eq!(matched.lost(PartitionId(4), 7, 1, 5), None);
        assert_eq!(matched.lost(P, 8, 1, 5), None, "other data of the node");
        matched.note(P, 7, 2, 3);
        assert_eq!(matched.lost(P, 7, 2, 4), None);
    }
}
