//! The task that confirms the lead for readers, many at a time.

use openraft::ReadPolicy;
use openraft::errors::{LinearizableReadError, RaftError};
use openraft::raft::linearizable_read::Linearizer;
use tokio::sync::{mpsc, oneshot, watch};

use super::Raft;
use super::error::ReadIndexError;
use crate::fsm::Leadership;
use crate::types::Types;

type Reply = oneshot::Sender<Result<u64, ReadIndexError>>;

pub(super) struct Reader {
    raft: Raft,
    leadership: watch::Receiver<Leadership>,
}

impl Reader {
    pub(super) fn new(raft: Raft, leadership: watch::Receiver<Leadership>) -> Self {
        Self { raft, leadership }
    }

    /// Runs until the last handle of the group is dropped.
    pub(super) async fn run(mut self, mut asked: mpsc::UnboundedReceiver<Reply>) {
        let mut waiting = Vec::new();
        while let Some(first) = asked.recv().await {
            // All of these were asked before the confirmation below starts; who comes later is not among them.
            waiting.push(first);
            while let Ok(next) = asked.try_recv() {
                waiting.push(next);
            }
            let answer = self.read_index().await;
            for reply in waiting.drain(..) {
                let _ = reply.send(answer); // the caller may have gone
            }
        }
    }

    async fn read_index(&mut self) -> Result<u64, ReadIndexError> {
        let linearizer = match self.raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
            Ok(linearizer) => linearizer,
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => {
                return Err(ReadIndexError::NotLeader {
                    leader: forward.leader_id,
                });
            }
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => {
                return Err(ReadIndexError::NoQuorum);
            }
            Err(RaftError::Fatal(_)) => return Err(ReadIndexError::Stopped),
        };
        let term = linearizer.read_log_id().committed_leader_id().term;
        let raft = self.raft.clone();
        tokio::select! {
            applied = applied(linearizer, &raft) => applied,
            // A leader that is deposed before its first entry is committed would wait for ever.
            lost = self.lost(term) => Err(lost),
        }
    }

    async fn lost(&mut self, term: u64) -> ReadIndexError {
        // The watch may not have seen the beginning of the term yet.
        let ended =
            |now: &Leadership| now.term > term || (now.term == term && !now.is_self && now.leader.is_some());
        match self.leadership.wait_for(ended).await {
            Ok(now) => ReadIndexError::NotLeader { leader: now.leader },
            Err(_) => ReadIndexError::Stopped,
        }
    }
}

async fn applied(linearizer: Linearizer<Types>, raft: &Raft) -> Result<u64, ReadIndexError> {
    let state = linearizer
        .await_ready(raft)
        .await
        .map_err(|_| ReadIndexError::Stopped)?;
    let known = state.applied().map(|applied| applied.index);
    Ok(known.unwrap_or_else(|| state.read_log_id().index()))
}
