//! Checkpoints of a partition: rows out, copy-on-write, and rows in.

use std::collections::BTreeSet;

use super::PartitionMachine;
use super::index::{GroupNumber, Index, name_hash, request_hash};
use crate::digest;
use crate::ids::{DeadLetterId, LANE_SEQUENCE_BITS, LaneId, PartitionId, QueueId};
use crate::rows::{LaneRow, Row, RowKey, Standing};
use crate::tracker::CheckpointStep;

/// Rows that no machine can have written: damage, or files of different checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// A row is of another kind, or another thing, than its key says.
    #[error("the row at {key:?} does not fit its key")]
    Misfit {
        /// The key.
        key: RowKey,
    },
    /// There are rows, but not the one with the stamps.
    #[error("the row with the partition's stamps is missing")]
    MetaMissing,
    /// The rows belong elsewhere.
    #[error("the rows are those of partition {found}")]
    OtherPartition {
        /// Where.
        found: PartitionId,
    },
    /// A queue is both live and deleted, or its groups are not numbered from 0.
    #[error("the rows of queue {queue} contradict each other")]
    Queue {
        /// The queue.
        queue: QueueId,
    },
    /// A lane's queue, name, offsets, groups or slot cannot be.
    #[error("the row of lane {lane} contradicts others")]
    Lane {
        /// The lane.
        lane: LaneId,
    },
    /// A dead letter of a lane or message that was never there.
    #[error("the row of dead letter {id} contradicts others")]
    DeadLetter {
        /// The row.
        id: DeadLetterId,
    },
    /// A kept answer that is numbered as if it were still to come.
    #[error("the kept answer {number} contradicts others")]
    KeptAnswer {
        /// Its number.
        number: u64,
    },
}

impl PartitionMachine {
    /// Cuts a checkpoint here: of all rows, or of those changed since the last cut.
    ///
    /// Costs nothing; the rows as of now come out of [`Self::checkpoint_step`] however `apply` goes on. A cut whose
    /// steps are not done is abandoned first.
    pub fn begin_checkpoint(&mut self, full: bool) {
        self.tracker.begin(full);
    }

    /// The next rows (at most `rows_max`, at least one looked at) of the checkpoint, in key order; done if none is in progress.
    pub fn checkpoint_step(&mut self, rows_max: usize) -> CheckpointStep {
        let Self { tables, tracker, .. } = self;
        tracker.step(rows_max, |after| tables.keys_after(after), |key| tables.row(key))
    }

    /// Takes the last cut back, also after its last step: what it held counts as changed again.
    pub fn abandon_checkpoint(&mut self) {
        self.tracker.abandon();
    }

    /// Hash of all rows: equal on replicas (of one build) that applied the same log, and after a restore.
    pub fn digest(&self) -> u64 {
        digest::of_rows(
            self.tables
                .keys_after(None)
                .map(|key| (key, self.tables.row(key))),
        )
    }

    /// Takes a row of a checkpoint into a new machine: those of the base, then those of each delta in order.
    ///
    /// Nothing else may be called before [`Self::finish_load`].
    pub fn load_row(&mut self, key: RowKey, row: Option<Row>) {
        if !self.loading {
            self.loading = true;
            self.tables.has_meta = false;
        }
        match row {
            None => self.tables.remove(key),
            Some(row) => {
                if !self.tables.put(key, row) {
                    self.misfit.get_or_insert(key);
                }
            }
        }
    }

    /// Rebuilds what is derived from the rows.
    ///
    /// Errors: the rows contradict each other; the machine must not be used. Without rows it stays new.
    pub fn finish_load(&mut self) -> Result<(), LoadError> {
        if let Some(key) = self.misfit {
            return Err(LoadError::Misfit { key });
        }
        if !self.tables.has_meta {
            return Err(LoadError::MetaMissing);
        }
        let found = self.tables.meta.partition;
        if found != self.partition {
            return Err(LoadError::OtherPartition { found });
        }
        self.loading = false;
        self.index = Index::default();
        self.index_queues()?;
        self.index_lanes()?;
        self.index_dead_letters()?;
        self.index_kept()?;
        self.count_lanes();
        self.tracker.reset();
        Ok(())
    }

    fn index_queues(&mut self) -> Result<(), LoadError> {
        for queue in self.tables.queues.keys() {
            if self.tables.tombstones.contains_key(queue) {
                return Err(LoadError::Queue { queue: *queue });
            }
            self.index
                .queues
                .insert(*queue, super::index::QueueIndex::default());
        }
        for (&(queue, number), row) in &self.tables.groups {
            let index = self
                .index
                .queues
                .get_mut(&queue)
                .ok_or(LoadError::Queue { queue })?;
            let is_new = !index.by_name.contains_key(&row.name);
            if !is_new || index.groups.len() != GroupNumber(number).at() {
                return Err(LoadError::Queue { queue });
            }
            index.add_group(row);
        }
        Ok(())
    }

    fn index_lanes(&mut self) -> Result<(), LoadError> {
        let mut names = BTreeSet::new();
        for (&id, lane) in &self.tables.lanes {
            let wrong = LoadError::Lane { lane: id };
            let sequence = id.0 & ((1 << LANE_SEQUENCE_BITS) - 1);
            let slot = self.tables.slots.get(&id.slot());
            if slot.is_none_or(|slot| u64::from(slot.lane_next) <= sequence)
                || lane.head > lane.tail
                || !names.insert((lane.queue, &lane.name))
            {
                return Err(wrong);
            }
            self.index.names.insert((name_hash(lane.queue, &lane.name), id));
            if let Some(queue) = self.index.queues.get_mut(&lane.queue) {
                if queue.groups.len() != lane.groups.len() || !is_sound(lane, self.tables.meta.ready_next) {
                    return Err(wrong);
                }
                queue.lanes.insert(id);
                self.index.uncounted.insert(id);
            } else if self.tables.tombstones.contains_key(&lane.queue) {
                self.index.dead.entry(lane.queue).or_default().lanes.insert(id);
                continue;
            } else {
                return Err(wrong);
            }
            for (number, state) in (0..).map(GroupNumber).zip(&lane.groups) {
                self.index.insert_standing(lane.queue, id, number, state.standing);
                if let Some(lease) = state.lease.as_deref() {
                    self.index.insert_lease(id, number, *lease);
                }
            }
        }
        Ok(())
    }

    fn index_dead_letters(&mut self) -> Result<(), LoadError> {
        let next = DeadLetterId::new(self.partition, self.tables.meta.dead_letter_next);
        for (&id, row) in &self.tables.dead_letters {
            let lane = self.tables.lanes.get(&row.lane);
            let is_placed = lane.is_some_and(|lane| lane.queue == row.queue && row.offset < lane.tail);
            if !is_placed || id.partition() != self.partition || id >= next {
                return Err(LoadError::DeadLetter { id });
            }
            self.index.pins.insert((row.lane, row.offset, id));
            let queues = &mut self.index.queues;
            let queue = queues
                .get_mut(&row.queue)
                .or_else(|| self.index.dead.get_mut(&row.queue));
            queue.map(|queue| queue.dead_letters.insert(id));
        }
        Ok(())
    }

    fn index_kept(&mut self) -> Result<(), LoadError> {
        let next = self.tables.meta.kept_next;
        let last = self
            .tables
            .requests
            .keys()
            .next_back()
            .max(self.tables.settled.keys().next_back());
        if let Some(&number) = last.filter(|last| **last >= next) {
            return Err(LoadError::KeptAnswer { number });
        }
        for (&number, row) in &self.tables.requests {
            self.index.requests.insert((request_hash(&row.request), number));
        }
        for (&number, row) in &self.tables.settled {
            let older = self
                .index
                .settled
                .insert((row.lease, row.lane, row.items_hash), number);
            if older.is_some() {
                return Err(LoadError::KeptAnswer { number });
            }
        }
        Ok(())
    }
}

/// Whether the offsets and standings of a live lane can be.
fn is_sound(lane: &LaneRow, ready_next: u64) -> bool {
    let unripe_is_sound = lane.unripe.as_deref().is_none_or(|unripe| {
        let runs = &unripe.runs;
        let mut pairs = runs.iter().zip(runs.iter().skip(1));
        pairs.all(|(run, next)| run.first < next.first && run.wall < next.wall)
            && runs.back().is_some_and(|run| run.first < lane.tail)
    });
    unripe_is_sound
        && lane.groups.iter().all(|state| {
            let batch_end = state.lease.as_deref().map_or(lane.tail, |lease| lease.batch_end);
            let standing = match state.standing {
                Standing::Idle => true,
                Standing::Held(_) => state.lease.is_none(),
                Standing::Ready(sequence) => state.lease.is_none() && sequence < ready_next,
            };
            state.cursor <= lane.tail && batch_end <= lane.tail && standing
        })
}
