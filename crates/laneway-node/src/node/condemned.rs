//! Data of one node of several that turns out to lack messages when the whole log is applied.
//!
//! Whether a gap found at the start is damage is known only then. A node alone waits for it before it serves; one of several must not,
//! as the others may not be up yet. It says in a file that its data is condemned and stops; the next start moves the data aside.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use laneway_storage::vfs::Vfs;

use super::Node;
use crate::identity::write_whole;
use crate::partition::PartitionHandle;
use crate::router::requests::Confirm;

/// The file.
pub(super) const FILE: &str = "condemned";

/// Longest reason read back.
const REASON_BYTES_MAX: usize = 4_096;

/// Between two looks at how far the log is applied.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Why the data in `dir` was condemned, if it was.
pub(super) fn reason(vfs: &dyn Vfs, dir: &Path) -> std::io::Result<Option<String>> {
    let file = dir.join(FILE);
    if !vfs.exists(&file)? {
        return Ok(None);
    }
    let bytes = vfs.read(&file)?;
    let shown = &bytes[..bytes.len().min(REASON_BYTES_MAX)];
    Ok(Some(String::from_utf8_lossy(shown).into_owned()))
}

/// Looks at every gap that the start found. Ends when all are judged.
pub(super) async fn judge_gaps(node: Node, vfs: Arc<dyn Vfs>) {
    for partition in node.inner.partitions.clone() {
        let Some(reason) = judge(&node, &partition).await else {
            continue;
        };
        let file = node.inner.data_dir.join(FILE);
        let (vfs, dir) = (Arc::clone(&vfs), node.inner.data_dir.clone());
        let text = reason.clone();
        let written = tokio::task::spawn_blocking(move || write_whole(&*vfs, &dir, &file, text.as_bytes()));
        match written
            .await
            .map_err(std::io::Error::other)
            .and_then(|written| written)
        {
            Ok(()) => {
                tracing::error!(
                    reason,
                    "the data of this node is damaged: it stops, and the next start moves it aside"
                );
                // Only the first counts; there is no second.
                let _ = node.inner.condemned.set(reason);
            }
            Err(error) => tracing::error!(%error, reason, "damaged data cannot be condemned"),
        }
        return;
    }
}

async fn judge(node: &Node, partition: &Arc<PartitionHandle>) -> Option<String> {
    let gaps = partition.take_gaps();
    if gaps.is_empty() {
        return None;
    }
    let committed = loop {
        if let Ok(index) = node.at_leader(partition.id, Confirm).await {
            break index;
        }
    };
    while partition.applied_index.load(Ordering::Acquire) < committed {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let (lane, offset) = partition.first_missing(gaps).await.ok().flatten()?;
    Some(format!(
        "messages of partition {} are missing: lane {lane} has none at offset {offset}; a backlog file or log segment was removed",
        partition.id
    ))
}
