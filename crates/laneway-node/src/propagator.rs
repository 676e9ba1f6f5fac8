//! Brings catalog changes into every partition's log, until all have them.
//!
//! It needs no memory of its own: each partition says up to which catalog version it is, and the catalog says what has
//! changed since. So a crash at any point leaves nothing half done for good.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use laneway_core::catalog::{CatalogChange, CatalogCommand};
use laneway_core::command::{Command, RegisterGroup};
use laneway_core::ids::{CatalogVersion, LaneId, Offset, QueueId};
use laneway_core::settings::{GroupRow, GroupStart, QueueRow};
use laneway_core::time::WallTime;

use crate::api::{ErrorClass, RequestError};
use crate::catalog::CatalogHandle;
use crate::partition::{Ask, PartitionHandle};

/// Changes in one entry.
const CHANGES_PER_ENTRY_MAX: usize = 500;

/// Pause after a failed attempt.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Deleted incarnations remembered by the catalog before the propagator has them forgotten.
const TOMBSTONES_KEPT: usize = 64;

/// Keeps one partition up to date while it is led here, from the catalog's replica here: so a leader needs nobody else for
/// it. Runs until the task is aborted.
pub(crate) async fn propagate(catalog: Arc<CatalogHandle>, partition: Arc<PartitionHandle>) {
    let mut wanted = catalog.version.subscribe();
    let mut leadership = partition.leadership.subscribe();
    loop {
        let target = *wanted.borrow_and_update();
        let leads = leadership.borrow_and_update().is_self;
        let serving = || partition.serving.load(Ordering::Acquire);
        while serving() && *partition.catalog_version.borrow() < target {
            if let Err(error) = bring(&catalog, &partition).await {
                tracing::debug!(partition = %partition.id, %error, "catalog change not taken yet");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            changed = leadership.changed() => if changed.is_err() { return },
            // It takes office a little after it is elected.
            () = tokio::time::sleep(RETRY_PAUSE), if leads && !serving() => {}
        }
    }
}

/// Brings what the partition lacks, in version order, a bounded number at a time. They go in one entry: were one refused
/// and a later one taken, the partition would count as having both.
async fn bring(catalog: &CatalogHandle, partition: &Arc<PartitionHandle>) -> Result<(), RequestError> {
    let from = CatalogVersion(*partition.catalog_version.borrow());
    let changes = catalog.machine().first_changes_since(from, CHANGES_PER_ENTRY_MAX);
    let mut commands = Vec::with_capacity(changes.len());
    for change in changes {
        commands.push(match change {
            CatalogChange::PutQueue(put) => Command::PutQueue(put),
            CatalogChange::DeleteQueue(delete) => Command::DeleteQueue(delete),
            CatalogChange::RegisterGroup { queue, group } => register(partition, queue, group).await?,
        });
    }
    if commands.is_empty() {
        return Ok(());
    }
    partition.ask(Ask::Changes(commands), 0).await.map(|_| ())
}

/// Resolves where a group that starts at a time of day starts in each lane.
async fn register(
    partition: &Arc<PartitionHandle>,
    queue: QueueRow,
    group: GroupRow,
) -> Result<Command, RequestError> {
    let starts = match group.start {
        GroupStart::Beginning | GroupStart::Registration => Vec::new(),
        GroupStart::At(at) => resolve_starts(partition, queue.id, at).await?,
    };
    Ok(Command::RegisterGroup(RegisterGroup { queue, group, starts }))
}

async fn resolve_starts(
    partition: &Arc<PartitionHandle>,
    queue: QueueId,
    at: WallTime,
) -> Result<Vec<(LaneId, Offset)>, RequestError> {
    let (now, lanes) = partition
        .look_linear(move |running| {
            let lanes: Vec<_> = running
                .machine
                .lanes_of(queue)
                .map(|(lane, view)| (lane, view.tail))
                .collect();
            (running.now().wall, lanes)
        })
        .await?;
    if at > now {
        // Everything pushed so far is older; `apply` takes the lane's tail at that moment.
        return Ok(lanes
            .into_iter()
            .map(|(lane, _)| (lane, Offset(u64::MAX)))
            .collect());
    }
    let stores = partition.stores()?;
    let resolve = move || {
        let mut starts = Vec::new();
        for (lane, tail) in lanes {
            let start = stores.payloads.offset_at(lane, at, tail)?;
            if start > Offset(0) {
                starts.push((lane, start));
            }
        }
        Ok::<_, laneway_storage::payload::PayloadError>(starts)
    };
    let starts = tokio::task::spawn_blocking(resolve).await.map_err(internal)?;
    starts.map_err(internal)
}

fn internal(error: impl std::fmt::Display) -> RequestError {
    tracing::error!(%error, "start of a consumer group cannot be resolved");
    RequestError::new(
        ErrorClass::Internal,
        "internal",
        "the start of the group cannot be resolved; see the node's log",
    )
}

/// Has the catalog forget deleted incarnations that every partition has dropped. Bounds its memory.
pub(crate) async fn forget_tombstones(catalog: Arc<CatalogHandle>, partitions: Vec<Arc<PartitionHandle>>) {
    let mut version = catalog.version.subscribe();
    while version.changed().await.is_ok() {
        if !catalog.serving.load(Ordering::Acquire) {
            continue;
        }
        let everywhere = partitions
            .iter()
            .map(|partition| *partition.catalog_version.borrow())
            .min()
            .unwrap_or(0);
        let up_to = CatalogVersion(everywhere);
        if catalog.machine().tombstones_up_to(up_to).len() > TOMBSTONES_KEPT {
            // It will be tried again at the next change.
            drop(catalog.propose(CatalogCommand::ForgetTombstones { up_to }).await);
        }
    }
}
