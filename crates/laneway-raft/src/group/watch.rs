//! The task that tells the machine who leads, and when the group has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use openraft::async_runtime::watch::WatchReceiver;
use openraft::metrics::{RaftMetrics, RaftServerMetrics};
use openraft::{AsyncRuntime, RaftTypeConfig, ServerState};
use tokio::sync::{mpsc, watch};

use super::Raft;
use crate::fsm::{FsmMsg, Leadership};
use crate::types::Types;

type Runtime = <Types as RaftTypeConfig>::AsyncRuntime;
type Latest<T> = <<Runtime as AsyncRuntime>::Watch as openraft::async_runtime::watch::Watch>::Receiver<T>;

/// Holds no handle of the group, so that it does not keep it alive.
pub(super) struct LeadershipWatcher {
    node_id: u64,
    server: Latest<RaftServerMetrics<Types>>,
    all: Latest<RaftMetrics<Types>>,
    fsm: mpsc::UnboundedSender<FsmMsg>,
    now: watch::Sender<Leadership>,
    closing: Arc<AtomicBool>,
}

impl LeadershipWatcher {
    /// Announces the first leadership: nobody yet, in the stored `term`.
    pub(super) fn new(
        node_id: u64,
        term: u64,
        raft: &Raft,
        fsm: mpsc::UnboundedSender<FsmMsg>,
        closing: Arc<AtomicBool>,
    ) -> (Self, watch::Receiver<Leadership>) {
        let first = Leadership {
            term,
            leader: None,
            is_self: false,
        };
        let (now, seen) = watch::channel(first);
        let _ = fsm.send(FsmMsg::LeadershipChanged(first));
        (
            Self {
                node_id,
                server: raft.server_metrics(),
                all: raft.metrics(),
                fsm,
                now,
                closing,
            },
            seen,
        )
    }

    /// Runs until the core has ended.
    pub(super) async fn run(mut self) {
        while self.server.changed().await.is_ok() {
            let next = leadership(&self.server.borrow_watched(), self.node_id);
            self.announce(next);
        }
        let Leadership { term, .. } = *self.now.borrow();
        self.announce(Leadership {
            term,
            leader: None,
            is_self: false,
        });
        if !self.closing.load(Ordering::Acquire) {
            let reason = match &self.all.borrow_watched().running_state {
                Err(fatal) => fatal.to_string(),
                Ok(()) => "the raft core panicked".to_owned(),
            };
            let _ = self.fsm.send(FsmMsg::Stopped { reason });
        }
    }

    fn announce(&self, next: Leadership) {
        let last = *self.now.borrow();
        if next == last {
            return;
        }
        // The watch keeps only the newest value: a term that was lost and another won in between is closed here.
        if last.is_self && next.is_self {
            let _ = self.fsm.send(FsmMsg::LeadershipChanged(Leadership {
                is_self: false,
                leader: None,
                ..last
            }));
        }
        self.now.send_replace(next);
        let _ = self.fsm.send(FsmMsg::LeadershipChanged(next)); // the machine may be gone first
    }
}

/// The term is that of the last vote on disk. A leader is named once it is the one of that vote: while a newer vote is being
/// written, nobody leads.
fn leadership(metrics: &RaftServerMetrics<Types>, node_id: u64) -> Leadership {
    let stored = &metrics.vote;
    let leader = metrics
        .current_leader
        .filter(|leader| stored.committed && stored.leader_id.node_id == *leader);
    let is_self = leader == Some(node_id) && metrics.state == ServerState::Leader;
    let leader = leader.filter(|leader| is_self || *leader != node_id);
    Leadership {
        term: stored.leader_id.term,
        leader,
        is_self,
    }
}
