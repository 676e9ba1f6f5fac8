//! Recovering a partition from disk and starting its actor and its Raft group.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use laneway_core::partition::{Limits, PartitionMachine};
use laneway_core::rows::{Row, RowKey};
use laneway_raft::CheckpointName;
use laneway_storage::FileError;
use laneway_storage::checkpoint::{CheckpointError, CheckpointStore, Manifest};
use laneway_storage::codec;
use laneway_storage::dedup::{DedupError, DedupOptions, DedupStore};
use laneway_storage::payload::{PayloadError, PayloadOpenError, PayloadOptions, PayloadStore};
use laneway_storage::wal::WalError;
use ractor::{Actor, ActorCell, ActorRef};

use super::running::LogPosition;
use super::{PartitionActor, PartitionHandle, PartitionMsg, Stores};
use crate::replica::{Found, ReplicaContext, open_group, settle};
use crate::span_cache::SpanCache;

/// A recovered partition, before its log is replayed.
pub(crate) struct Opened {
    pub(crate) handle: Arc<PartitionHandle>,
    pub(crate) context: ReplicaContext,
    pub(crate) machine: PartitionMachine,
    pub(crate) stores: Arc<Stores>,
    pub(crate) applied: Option<LogPosition>,
    pub(crate) membership: Bytes,
    pub(crate) checkpoint: Option<CheckpointName>,
    pub(crate) found: Option<Found>,
}

/// Why a partition cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// Of its checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Of its payloads.
    #[error(transparent)]
    Payloads(#[from] PayloadError),
    /// Of its backlog files.
    #[error(transparent)]
    PayloadFiles(#[from] PayloadOpenError),
    /// Of its dedup rows.
    #[error(transparent)]
    Dedup(#[from] DedupError),
    /// Of the log, when it was to go on behind a snapshot.
    #[error(transparent)]
    Log(#[from] WalError),
    /// Of the file that says where the replica lives, or of snapshots.
    #[error(transparent)]
    Generation(#[from] FileError),
    /// The checkpoint's rows contradict each other.
    #[error(
        "the checkpoint in {} is damaged: {what}; restore the data directory from a backup, or move it aside and start empty",
        .dir.display()
    )]
    Rows {
        /// Where.
        dir: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The log lacks what the checkpoint is made of.
    #[error(
        "the log in {} ends before the checkpoint of partition {partition} at {checkpoint}: log segments are missing; put them back or restore the data directory from a backup",
        .dir.display()
    )]
    LogTooShort {
        /// The log's directory.
        dir: PathBuf,
        /// Which partition.
        partition: laneway_core::ids::PartitionId,
        /// Index of its checkpoint.
        checkpoint: u64,
    },
    /// The log was purged beyond the checkpoint: that is not the one it was purged for.
    #[error(
        "partition {partition} lacks entries up to {purged}: the log begins behind them, but {}; put the manifest and the checkpoint files beside it back, or restore the data directory from a backup",
        found(.manifest, *.checkpoint)
    )]
    CheckpointMissing {
        /// The manifest of the partition's checkpoint.
        manifest: PathBuf,
        /// Which partition.
        partition: laneway_core::ids::PartitionId,
        /// The log begins behind this entry.
        purged: u64,
        /// Index of the checkpoint, if there is one.
        checkpoint: Option<u64>,
    },
    /// The identity is of another data directory.
    #[error(
        "the data of partition {partition} in {} was written under another identity; put the identity file back that belongs to this data directory",
        .dir.display()
    )]
    OtherIdentity {
        /// The partition's folder.
        dir: PathBuf,
        /// Which partition.
        partition: laneway_core::ids::PartitionId,
    },
    /// Its actor or group does not start.
    #[error("partition {0} does not start: {1}")]
    Start(laneway_core::ids::PartitionId, String),
}

impl Opened {
    /// Reads the newest checkpoint and opens the stores. Blocking.
    pub(crate) fn recover(handle: Arc<PartitionHandle>, context: ReplicaContext) -> Result<Self, OpenError> {
        let locked = Arc::clone(&handle);
        let _disk = locked.lock_disk();
        let partition = handle.id;
        let limits = Limits {
            lanes_max: context.limits.lanes_max,
            kept_answers_max: context.limits.kept_answers_max,
            kept_answer_ms: context.limits.kept_answer_ms,
            ..Limits::default()
        };
        let mut machine = PartitionMachine::new(partition, limits);
        let (found, generation) = Found::look(&context, partition, handle.disk())?;
        let dir = &found.dir;
        let (checkpoints, manifest) =
            CheckpointStore::open(Arc::clone(&context.vfs), dir.clone(), partition)?;
        let payloads = PayloadStore::open(
            Arc::clone(&context.vfs),
            context.wal.clone(),
            Arc::clone(&context.rows),
            dir.clone(),
            partition,
            PayloadOptions {
                runs_in_memory_max: context.storage.runs_in_memory_max,
                ..PayloadOptions::default()
            },
        )?;
        let dedup_files = manifest
            .as_ref()
            .map(|manifest| manifest.dedup.clone())
            .unwrap_or_default();
        let options = DedupOptions {
            bytes_max: context.limits.dedup_bytes_max,
            rows_in_memory_max: context.storage.dedup_rows_in_memory_max,
        };
        let dedup = DedupStore::open(Arc::clone(&context.vfs), dir.clone(), options, &dedup_files)?;
        let mut opened = Self {
            stores: Arc::new(Stores {
                payloads,
                dedup,
                spans: SpanCache::new(context.limits.span_cache_messages_max as usize),
            }),
            applied: None,
            membership: Bytes::new(),
            checkpoint: None,
            found: None,
            machine: PartitionMachine::new(partition, Limits::default()),
            handle,
            context,
        };
        if let Some(manifest) = manifest {
            opened.load(&mut machine, &checkpoints, &manifest, &found.dir)?;
        }
        opened.machine = machine;
        opened.found = Some(found);
        let applied = opened.applied.map(|applied| applied.index);
        settle(&opened.context, partition, generation, applied)?;
        let handle = &opened.handle;
        handle
            .catalog_version
            .send_replace(opened.machine.catalog_version().0);
        let index = opened.applied.map_or(0, |applied| applied.index);
        handle.applied_index.store(index, Ordering::Release);
        handle.checkpoint_index.store(index, Ordering::Release);
        Ok(opened)
    }

    fn load(
        &mut self,
        machine: &mut PartitionMachine,
        checkpoints: &CheckpointStore,
        manifest: &Manifest,
        dir: &Path,
    ) -> Result<(), OpenError> {
        let cut = checkpoints.load(manifest, &mut |key, row| {
            let key: RowKey = codec::decode(key)?;
            let row: Option<Row> = row.map(codec::decode).transpose()?;
            machine.load_row(key, row);
            Ok(())
        })?;
        machine
            .finish_load()
            .map_err(|error| rows_error(dir, &error.to_string()))?;
        self.stores
            .payloads
            .restore(&cut, machine.heads(), machine.pins())?;
        self.note_gaps(machine);
        let (index, term, leader) = manifest.applied;
        self.applied = Some(LogPosition { index, term, leader });
        self.membership = manifest.membership.clone();
        self.checkpoint = Some(CheckpointName {
            index,
            term,
            leader,
            membership: manifest.membership.clone(),
        });
        Ok(())
    }

    /// Every retained message must have a place; a removed file shows here rather than as a silent gap in a lane.
    fn note_gaps(&self, machine: &PartitionMachine) {
        let payloads = &self.stores.payloads;
        let lanes = machine.queue_ids().flat_map(|queue| machine.lanes_of(queue));
        let gapped = lanes.filter(|(lane, view)| payloads.first_gap(*lane, view.head, view.tail).is_some());
        self.handle.set_gaps(gapped.map(|(lane, _)| lane).collect());
    }

    /// Starts the actor under `supervisor`, then its group: that replays the log through the actor.
    pub(crate) async fn start(
        mut self,
        supervisor: ActorCell,
    ) -> Result<
        (
            ActorRef<PartitionMsg>,
            tokio::task::JoinHandle<Result<(), OpenError>>,
        ),
        OpenError,
    > {
        let context = self.context.clone();
        let handle = Arc::clone(&self.handle);
        let partition = handle.id;
        let checkpoint = self.checkpoint.clone();
        let stores = Arc::clone(&self.stores);
        let found = self.found.take().expect("recovering has found it");
        let (actor, _) = Actor::spawn_linked(None, PartitionActor, Box::new(self), supervisor)
            .await
            .map_err(|error| OpenError::Start(partition, error.to_string()))?;
        handle.attach(actor.clone(), stores);
        let to_actor = actor.clone();
        let forward = move |message| to_actor.cast(PartitionMsg::Raft(message)).is_ok();
        let opened = actor.clone();
        let group_task = tokio::spawn(async move {
            let group = open_group(&context, partition, checkpoint, found, forward).await?;
            // A dead actor is the supervisor's business.
            drop(opened.cast(PartitionMsg::Opened(group)));
            Ok(())
        });
        Ok((actor, group_task))
    }
}

/// What there is of a checkpoint.
fn found(manifest: &Path, checkpoint: Option<u64>) -> String {
    match checkpoint {
        Some(index) => format!(
            "the checkpoint that {} names ends at {index} and is an older one",
            manifest.display()
        ),
        None => format!("{} is missing", manifest.display()),
    }
}

fn rows_error(dir: &Path, what: &str) -> OpenError {
    OpenError::Rows {
        dir: dir.to_owned(),
        what: what.to_owned(),
    }
}
