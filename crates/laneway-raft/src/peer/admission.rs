//! Who is let in: nodes of the same cluster, one process per node.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::handshake::{Class, NodeIntroduction, Refused};
use super::room::Room;
use super::{Inner, lock};

/// Who has connected to this node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    raft_id: u64,
    process: u64,
    connections: usize,
    seen: Instant,
}

impl Inner {
    /// Whether two nodes belong together. A node without a cluster id belongs to any cluster of its name.
    fn check(&self, theirs: &NodeIntroduction) -> Result<(), Refused> {
        let ours = self.introduction();
        if ours.cluster != theirs.cluster {
            let (ours, theirs) = (ours.cluster, theirs.cluster.clone());
            return Err(Refused::OtherCluster { ours, theirs });
        }
        if ours.fingerprint != theirs.fingerprint {
            let (ours, theirs) = (ours.fingerprint, theirs.fingerprint);
            return Err(Refused::OtherFingerprint { ours, theirs });
        }
        let (ours, theirs) = (ours.cluster_id, theirs.cluster_id);
        if ours != theirs && ours != 0 && theirs != 0 {
            return Err(Refused::OtherClusterId { ours, theirs });
        }
        Ok(())
    }

    /// Of the node that this one has called.
    pub(super) fn check_peer(&self, node: u16, theirs: &NodeIntroduction) -> Result<(), Refused> {
        if theirs.node() != node {
            return Err(Refused::NotMe {
                ours: theirs.node(),
                wanted: node,
            });
        }
        self.check(theirs)
    }

    /// Of a node that calls. What it may keep busy here.
    pub(super) fn check_caller(
        &self,
        to: u16,
        theirs: &NodeIntroduction,
        class: Class,
    ) -> Result<Arc<Room>, Refused> {
        let ours = self.introduction().raft_id;
        if to != crate::node_number(ours) {
            return Err(Refused::NotMe {
                ours: crate::node_number(ours),
                wanted: to,
            });
        }
        self.check(theirs)?;
        let node = theirs.node();
        if node == to {
            let theirs = theirs.raft_id;
            return Err(Refused::Twin { node, ours, theirs });
        }
        let Some(room) = self.rooms.get(&(node, class)) else {
            return Err(Refused::NotAPeer { node });
        };
        let callers = lock(&self.callers);
        let Some(known) = callers.get(&node) else {
            return Ok(Arc::clone(room));
        };
        // One whose connections are about to be seen to end is let in at its next attempt.
        let is_there = known.process != theirs.process && known.connections > 0;
        let ours = known.raft_id;
        if is_there {
            let theirs = theirs.raft_id;
            return Err(Refused::Twin { node, ours, theirs });
        }
        if self.is_too_early(known, theirs.raft_id) {
            let takeover_ms = u64::try_from(self.takeover.as_millis()).unwrap_or(u64::MAX);
            return Err(Refused::EarlierData {
                node,
                ours,
                takeover_ms,
            });
        }
        Ok(Arc::clone(room))
    }

    /// Whether other data of the node was heard of so recently that this one is not let in.
    fn is_too_early(&self, known: &Caller, raft_id: u64) -> bool {
        known.raft_id != raft_id && known.seen.elapsed() < self.takeover
    }

    /// Whether a process with this raft id would be refused, for other data of its node is there or was a moment ago.
    pub(super) fn keeps_out(&self, raft_id: u64) -> bool {
        let callers = lock(&self.callers);
        let known = callers.get(&crate::node_number(raft_id));
        known.is_some_and(|known| {
            let other_is_there = known.raft_id != raft_id && known.connections > 0;
            other_is_there || self.is_too_early(known, raft_id)
        })
    }

    /// Counts an incoming connection for as long as the guard lives. A node has one of each class: the one before is told to end.
    pub(super) fn connected(self: &Arc<Self>, from: &NodeIntroduction, class: Class) -> Connected {
        let mut callers = lock(&self.callers);
        let newcomer = Caller {
            raft_id: from.raft_id,
            process: from.process,
            connections: 0,
            seen: Instant::now(),
        };
        let caller = callers.entry(from.node()).or_insert(newcomer);
        if caller.process != from.process {
            *caller = newcomer;
        }
        caller.connections += 1;
        let (newest, replaced) = oneshot::channel();
        lock(&self.newest).insert((from.node(), class), newest);
        Connected {
            inner: Arc::clone(self),
            node: from.node(),
            process: from.process,
            replaced,
        }
    }
}

/// Counts one incoming connection.
pub(super) struct Connected {
    inner: Arc<Inner>,
    node: u16,
    process: u64,
    replaced: oneshot::Receiver<()>,
}

impl Connected {
    /// Waits until the same node has made another connection of the same class.
    pub(super) async fn replaced(&mut self) {
        // The newer one drops the sender.
        let _ = (&mut self.replaced).await;
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        let mut callers = lock(&self.inner.callers);
        if let Some(caller) = callers.get_mut(&self.node)
            && caller.process == self.process
        {
            caller.connections = caller.connections.saturating_sub(1);
            caller.seen = Instant::now();
        }
    }
}
