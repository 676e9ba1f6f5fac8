//! Data of one node of several that turns out to lack messages when the whole log is applied, or log entries that it had confirmed.
//!
//! Whether a gap found at the start is damage is known only then. A node alone waits for it before it serves; one of several must not,
//! as the others may not be up yet. That the log lacks entries only the leader can tell, who remembers them. The node says in a file that its data is condemned and stops; the next start moves the data aside.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use laneway_raft::node_number;
use laneway_storage::vfs::Vfs;

use super::Node;
use crate::leader::Verb;
use crate::partition::PartitionHandle;
use crate::router::requests::Confirm;

/// The file.
pub(super) const FILE: &str = "condemned";

/// Longest reason read back.
const REASON_BYTES_MAX: usize = 4_096;

/// Longest wait for a node to hear that its data is condemned; it is told again.
const TELL_MAX: Duration = Duration::from_secs(2);

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
pub(super) async fn judge_gaps(node: Node) {
    for partition in node.inner.partitions.clone() {
        if let Some(reason) = judge(&node, &partition).await {
            return node.condemn(reason).await;
        }
    }
}

impl Node {
    /// The data here is not to be relied on: durably so, and the process is to stop.
    pub(crate) async fn condemn(&self, reason: String) {
        if self.inner.condemned.get().is_some() {
            return;
        }
        let (standing, text) = (Arc::clone(&self.inner.standing), reason.clone());
        let written = tokio::task::spawn_blocking(move || standing.write_beside(FILE, text.as_bytes())).await;
        match written.map_err(std::io::Error::other).and_then(|written| written) {
            Ok(()) => {
                tracing::error!(
                    reason,
                    "the data of this node is damaged: it stops, and the next start moves it aside"
                );
                // Only the first counts.
                let _ = self.inner.condemned.set(reason);
            }
            Err(error) => tracing::error!(%error, reason, "damaged data cannot be condemned"),
        }
    }

    /// Tells a node that its data is of an earlier time.
    pub(crate) async fn condemn_peer(self, raft_id: u64, reason: String) {
        let Some(peers) = &self.inner.peers else { return };
        let mut body = vec![Verb::Condemn as u8];
        body.extend_from_slice(&raft_id.to_le_bytes());
        body.extend_from_slice(reason.as_bytes());
        let told = peers.call_small(node_number(raft_id), TELL_MAX, vec![body.into()]);
        if let Err(error) = told.await {
            tracing::debug!(%error, "a node could not be told that its data is of an earlier time");
        }
    }

    /// A leader says so of the data here.
    pub(crate) async fn condemned_by(&self, node: u16, body: &[u8]) -> Result<Vec<Bytes>, String> {
        let Some((raft_id, reason)) = body.split_first_chunk::<8>() else {
            return Err("the message is shorter than it says".to_owned());
        };
        if u64::from_le_bytes(*raft_id) != self.inner.standing.identity().raft_id() {
            return Err("that is not the data of this node".to_owned());
        }
        let shown = &reason[..reason.len().min(REASON_BYTES_MAX)];
        let reason = String::from_utf8_lossy(shown);
        self.condemn(format!("{reason} (says node {node})")).await;
        Ok(Vec::new())
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
