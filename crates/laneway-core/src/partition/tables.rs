//! The rows of a partition, by table.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::ids::{DeadLetterId, LaneId, QueueId, Slot};
use crate::reply::DeadLetter;
use crate::rows::{LaneRow, MetaRow, RequestRow, Row, RowKey, SettledRow, SlotRow, TombstoneRow};
use crate::settings::{GroupRow, QueueRow};

/// All of the machine's state.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) meta: MetaRow,
    /// No rows were loaded, or the [`MetaRow`] was among them.
    pub(super) has_meta: bool,
    pub(super) slots: BTreeMap<Slot, SlotRow>,
    pub(super) queues: BTreeMap<QueueId, QueueRow>,
    pub(super) groups: BTreeMap<(QueueId, u32), GroupRow>,
    pub(super) tombstones: BTreeMap<QueueId, TombstoneRow>,
    pub(super) lanes: BTreeMap<LaneId, LaneRow>,
    pub(super) dead_letters: BTreeMap<DeadLetterId, DeadLetter>,
    pub(super) requests: BTreeMap<u64, RequestRow>,
    pub(super) settled: BTreeMap<u64, SettledRow>,
}

impl Tables {
    pub(super) fn new(meta: MetaRow) -> Self {
        Self {
            meta,
            has_meta: true,
            slots: BTreeMap::new(),
            queues: BTreeMap::new(),
            groups: BTreeMap::new(),
            tombstones: BTreeMap::new(),
            lanes: BTreeMap::new(),
            dead_letters: BTreeMap::new(),
            requests: BTreeMap::new(),
            settled: BTreeMap::new(),
        }
    }

    pub(super) fn contains(&self, key: RowKey) -> bool {
        match key {
            RowKey::Meta => true,
            RowKey::Slot(slot) => self.slots.contains_key(&slot),
            RowKey::Queue(queue) => self.queues.contains_key(&queue),
            RowKey::Group(queue, number) => self.groups.contains_key(&(queue, number)),
            RowKey::Tombstone(queue) => self.tombstones.contains_key(&queue),
            RowKey::Lane(lane) => self.lanes.contains_key(&lane),
            RowKey::DeadLetter(id) => self.dead_letters.contains_key(&id),
            RowKey::Request(number) => self.requests.contains_key(&number),
            RowKey::Settled(number) => self.settled.contains_key(&number),
        }
    }

    pub(super) fn row(&self, key: RowKey) -> Option<Row> {
        match key {
            RowKey::Meta => Some(Row::Meta(Box::new(self.meta.clone()))),
            RowKey::Slot(slot) => self.slots.get(&slot).copied().map(Row::Slot),
            RowKey::Queue(queue) => self
                .queues
                .get(&queue)
                .cloned()
                .map(|row| Row::Queue(Box::new(row))),
            RowKey::Group(queue, number) => self.groups.get(&(queue, number)).cloned().map(Row::Group),
            RowKey::Tombstone(queue) => self.tombstones.get(&queue).copied().map(Row::Tombstone),
            RowKey::Lane(lane) => self.lanes.get(&lane).cloned().map(|row| Row::Lane(Box::new(row))),
            RowKey::DeadLetter(id) => self
                .dead_letters
                .get(&id)
                .cloned()
                .map(|row| Row::DeadLetter(Box::new(row))),
            RowKey::Request(number) => self
                .requests
                .get(&number)
                .cloned()
                .map(|row| Row::Request(Box::new(row))),
            RowKey::Settled(number) => self
                .settled
                .get(&number)
                .cloned()
                .map(|row| Row::Settled(Box::new(row))),
        }
    }

    /// Stores a row; false when it is of another kind than its key.
    pub(super) fn put(&mut self, key: RowKey, row: Row) -> bool {
        match (key, row) {
            (RowKey::Meta, Row::Meta(row)) => {
                self.meta = *row;
                self.has_meta = true;
            }
            (RowKey::Slot(slot), Row::Slot(row)) => {
                self.slots.insert(slot, row);
            }
            (RowKey::Queue(queue), Row::Queue(row)) if queue == row.id => {
                self.queues.insert(queue, *row);
            }
            (RowKey::Group(queue, number), Row::Group(row)) => {
                self.groups.insert((queue, number), row);
            }
            (RowKey::Tombstone(queue), Row::Tombstone(row)) => {
                self.tombstones.insert(queue, row);
            }
            (RowKey::Lane(lane), Row::Lane(row)) => {
                self.lanes.insert(lane, *row);
            }
            (RowKey::DeadLetter(id), Row::DeadLetter(row)) if id == row.id => {
                self.dead_letters.insert(id, *row);
            }
            (RowKey::Request(number), Row::Request(row)) => {
                self.requests.insert(number, *row);
            }
            (RowKey::Settled(number), Row::Settled(row)) => {
                self.settled.insert(number, *row);
            }
            (_, _) => return false,
        }
        true
    }

    pub(super) fn remove(&mut self, key: RowKey) {
        match key {
            RowKey::Meta => self.has_meta = false,
            RowKey::Slot(slot) => drop(self.slots.remove(&slot)),
            RowKey::Queue(queue) => drop(self.queues.remove(&queue)),
            RowKey::Group(queue, number) => drop(self.groups.remove(&(queue, number))),
            RowKey::Tombstone(queue) => drop(self.tombstones.remove(&queue)),
            RowKey::Lane(lane) => drop(self.lanes.remove(&lane)),
            RowKey::DeadLetter(id) => drop(self.dead_letters.remove(&id)),
            RowKey::Request(number) => drop(self.requests.remove(&number)),
            RowKey::Settled(number) => drop(self.settled.remove(&number)),
        }
    }

    /// Keys of all rows beyond `after`, ascending.
    pub(super) fn keys_after(&self, after: Option<RowKey>) -> impl Iterator<Item = RowKey> + '_ {
        let group = |(queue, number)| RowKey::Group(queue, number);
        (after.is_none().then_some(RowKey::Meta).into_iter())
            .chain(beyond(&self.slots, after, RowKey::Slot, |key| {
                if let RowKey::Slot(slot) = key {
                    Some(slot)
                } else {
                    None
                }
            }))
            .chain(beyond(&self.queues, after, RowKey::Queue, |key| {
                if let RowKey::Queue(queue) = key {
                    Some(queue)
                } else {
                    None
                }
            }))
            .chain(beyond(&self.groups, after, group, |key| {
                if let RowKey::Group(queue, number) = key {
                    Some((queue, number))
                } else {
                    None
                }
            }))
            .chain(beyond(&self.tombstones, after, RowKey::Tombstone, |key| {
                if let RowKey::Tombstone(queue) = key {
                    Some(queue)
                } else {
                    None
                }
            }))
            .chain(beyond(&self.lanes, after, RowKey::Lane, |key| {
                if let RowKey::Lane(lane) = key {
                    Some(lane)
                } else {
                    None
                }
            }))
            .chain(beyond(&self.dead_letters, after, RowKey::DeadLetter, |key| {
                if let RowKey::DeadLetter(id) = key {
                    Some(id)
                } else {
                    None
                }
            }))
            .chain(beyond(&self.requests, after, RowKey::Request, |key| {
                if let RowKey::Request(number) = key {
                    Some(number)
                } else {
                    None
                }
            }))
            .chain(beyond(&self.settled, after, RowKey::Settled, |key| {
                if let RowKey::Settled(number) = key {
                    Some(number)
                } else {
                    None
                }
            }))
    }
}

/// Keys of one table beyond `after`; `own` finds the table's own key in a row key.
fn beyond<'a, K: Copy + Ord, V>(
    table: &'a BTreeMap<K, V>,
    after: Option<RowKey>,
    row_key: impl Fn(K) -> RowKey + 'a,
    own: impl Fn(RowKey) -> Option<K>,
) -> impl Iterator<Item = RowKey> + 'a {
    let from = after.and_then(own).map_or(Bound::Unbounded, Bound::Excluded);
    let passed = matches!(from, Bound::Unbounded)
        && table
            .first_key_value()
            .is_some_and(|(first, _)| after.is_some_and(|after| row_key(*first) < after));
    let keys_max = if passed { 0 } else { usize::MAX };
    table
        .range((from, Bound::Unbounded))
        .take(keys_max)
        .map(move |(key, _)| row_key(*key))
}
