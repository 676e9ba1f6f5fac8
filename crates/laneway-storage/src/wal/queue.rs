//! What waits for the writer.

use std::collections::BTreeMap;

use bytes::Bytes;
use laneway_core::ids::PartitionId;

use super::log::Unneeded;
use super::{Done, LogPosition, WalEntry, WalError};

/// Something to be written.
pub(crate) enum Op {
    Append {
        partition: PartitionId,
        entries: Vec<WalEntry>,
        ticket: u32,
    },
    Vote {
        partition: PartitionId,
        vote: Bytes,
    },
    Truncate {
        partition: PartitionId,
        index: Option<u64>,
        unneeded: Unneeded,
    },
    Purge {
        partition: PartitionId,
        upto: LogPosition,
        unneeded: Unneeded,
    },
}

pub(crate) struct Item {
    /// Order of queueing.
    pub(crate) sequence: u64,
    pub(crate) op: Op,
    pub(crate) done: Done,
}

impl Item {
    /// Whether this appends to `partition`.
    pub(crate) fn appends_to(&self, partition: PartitionId) -> bool {
        matches!(&self.op, Op::Append { partition: own, .. } if *own == partition)
    }
}

#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) items: Vec<Item>,
    /// Newest committed position of each partition that has one unwritten.
    pub(crate) committed: BTreeMap<PartitionId, Bytes>,
    /// Sequence of the next item.
    pub(crate) next_sequence: u64,
    next_ticket: u32,
    pub(crate) closing: bool,
    pub(crate) failed: Option<WalError>,
}

impl Queue {
    /// Numbers for `count` entries on their way to the disk; unique among those.
    pub(crate) fn take_tickets(&mut self, count: usize) -> u32 {
        let first = self.next_ticket;
        let count = u32::try_from(count % (1 << 32)).expect("a remainder of 2^32 fits u32");
        self.next_ticket = first.wrapping_add(count);
        first
    }

    pub(crate) fn push(&mut self, op: Op, done: Done) {
        self.items.push(Item {
            sequence: self.next_sequence,
            op,
            done,
        });
        self.next_sequence += 1;
    }

    /// Takes the items that append to `partition` out.
    pub(crate) fn take_appends(items: &mut Vec<Item>, partition: PartitionId) -> Vec<Item> {
        let (appends, rest) = std::mem::take(items)
            .into_iter()
            .partition(|item| item.appends_to(partition));
        *items = rest;
        appends
    }
}
