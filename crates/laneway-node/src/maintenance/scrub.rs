//! After the start, every sealed file in use is read once, in small steps, and damage is told of.
//!
//! A damaged file does not stop its partition: requests that need the bytes fail, all others are served, and
//! [`Node::readiness`](crate::Node::readiness), status and a metric say so until the file is no longer needed.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use laneway_core::ids::PartitionId;
use laneway_storage::ScrubCursor;

use crate::partition::{PartitionHandle, Stores};

/// Bytes read for the scrub in one round, of all partitions together: 40 MiB per second.
const SCRUB_ROUND_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// The scrubs of all partitions.
#[derive(Debug, Default)]
pub(super) struct Scrubs {
    scrubs: HashMap<PartitionId, Scrub>,
    /// Files that were told of.
    told: BTreeSet<PathBuf>,
}

/// The scrub of the stores of one actor; a restarted one has others, which know nothing of what was found.
#[derive(Debug)]
struct Scrub {
    stores: Arc<Stores>,
    payloads: ScrubCursor,
    dedup: ScrubCursor,
}

impl Scrub {
    fn new(stores: &Arc<Stores>) -> Self {
        Self {
            stores: Arc::clone(stores),
            payloads: stores.payloads.begin_scrub(),
            dedup: stores.dedup.begin_scrub(),
        }
    }

    fn step(&mut self, bytes_max: u64) -> u64 {
        let mut read = self.stores.payloads.scrub(&mut self.payloads, bytes_max);
        if read < bytes_max {
            read += self.stores.dedup.scrub(&mut self.dedup, bytes_max - read);
        }
        read
    }
}

impl Scrubs {
    /// One round: reads on, and tells of what was found since the last one, by the scrub or by a request.
    pub(super) fn round<'a>(&mut self, partitions: impl Iterator<Item = &'a Arc<PartitionHandle>>) {
        let mut left = SCRUB_ROUND_BYTES_MAX;
        for partition in partitions {
            let Ok(stores) = partition.stores() else { continue };
            let scrub = self
                .scrubs
                .entry(partition.id)
                .or_insert_with(|| Scrub::new(&stores));
            if !Arc::ptr_eq(&scrub.stores, &stores) {
                *scrub = Scrub::new(&stores);
            }
            left = left.saturating_sub(scrub.step(left));
            for damaged in stores.damaged() {
                if self.told.insert(damaged.file.clone()) {
                    tracing::error!(
                        partition = %partition.id,
                        file = %damaged.file.display(),
                        error = %damaged,
                        "a file is damaged: requests that need it fail, all others are served"
                    );
                }
            }
        }
    }
}
