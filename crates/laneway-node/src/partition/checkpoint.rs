//! Cutting a checkpoint: the maintenance thread asks for rows bit by bit, so that `apply` never stalls.

use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;

use bytes::Bytes;
use laneway_core::rows::{Row, RowKey};
use laneway_core::time::WallTime;
use laneway_raft::CheckpointName;
use laneway_storage::dedup::FrozenDedup;
use laneway_storage::payload::PayloadCut;

use super::running::{LogPosition, Running};

/// Rows in one part.
const ROWS_PER_STEP: usize = 4_000;

/// A part of a checkpoint on its way to the file.
pub(crate) enum CheckpointPart {
    /// First: where it is cut, and what else belongs to it.
    Cut {
        applied: LogPosition,
        membership: Bytes,
        payloads: PayloadCut,
        dedup: FrozenDedup,
        /// No queue's dedup window reaches further back.
        dedup_from: WallTime,
    },
    /// Rows as of the cut; `done` with the last ones.
    Rows {
        rows: Vec<(RowKey, Option<Row>)>,
        done: bool,
    },
}

impl Running {
    pub(super) fn begin_checkpoint(&mut self, full: bool, to: Sender<CheckpointPart>) {
        // Nothing is applied yet: `to` is dropped, and there is no checkpoint.
        let Some(applied) = self.applied else { return };
        if self.rows_wanted.take().is_some() {
            self.machine.abandon_checkpoint();
        }
        self.machine.begin_checkpoint(full);
        self.handle.bytes_since_checkpoint.store(0, Ordering::Relaxed);
        let cut = CheckpointPart::Cut {
            applied,
            membership: self.membership.clone(),
            payloads: self.stores.payloads.cut(),
            dedup: self.stores.dedup.freeze(),
            dedup_from: self.dedup_from(),
        };
        if to.send(cut).is_ok() {
            self.rows_wanted = Some(to);
        } else {
            self.machine.abandon_checkpoint();
        }
    }

    fn dedup_from(&self) -> WallTime {
        let rows = self
            .machine
            .queue_ids()
            .filter_map(|queue| self.machine.queue(queue));
        let seconds = rows
            .map(|row| row.settings.dedup_window_seconds)
            .max()
            .unwrap_or(0);
        WallTime(
            self.machine
                .stamps()
                .wall
                .0
                .saturating_sub(seconds.saturating_mul(1_000_000)),
        )
    }

    pub(super) fn checkpoint_step(&mut self) {
        let Some(to) = self.rows_wanted.take() else { return };
        let step = self.machine.checkpoint_step(ROWS_PER_STEP);
        let done = step.done;
        if to
            .send(CheckpointPart::Rows {
                rows: step.rows,
                done,
            })
            .is_err()
        {
            self.machine.abandon_checkpoint();
        } else if !done {
            self.rows_wanted = Some(to);
        }
    }

    pub(super) fn abandon_checkpoint(&mut self) {
        self.rows_wanted = None;
        self.machine.abandon_checkpoint();
    }

    pub(super) fn checkpoint_written(&mut self, name: CheckpointName) {
        self.handle.checkpoint_index.store(name.index, Ordering::Release);
        self.checkpoint = Some(name);
    }
}
