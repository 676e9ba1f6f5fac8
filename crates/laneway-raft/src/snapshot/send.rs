//! The leader's side: offer, and ask until it is in place.

use std::time::Duration;

use openraft::errors::{ReplicationClosed, StreamingError, Timeout, Unreachable};
use openraft::network::RPCTypes;
use openraft::raft::SnapshotResponse;

use crate::fsm::CheckpointName;
use crate::network::PeerLink;
use crate::peer::{self, PeerCallError, SnapshotAnswer, Verb};
use crate::types::{Types, Vote};

/// Longest wait for the answer to an offer or a question. The work itself is not waited for.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Between two questions how far it is.
const ASK_EVERY: Duration = Duration::from_millis(200);

type Failed = StreamingError<Types>;
type Sent = Result<SnapshotResponse<Types>, Failed>;

/// Why a snapshot is not sent, for now.
#[derive(Debug, thiserror::Error)]
enum NotSent {
    #[error("this node keeps no snapshots")]
    NoStore,
    #[error("no snapshot to send: {0}")]
    NotMade(String),
    #[error("the peer could not take the snapshot: {0}")]
    NotTaken(String),
    #[error("the peer forgot that it was receiving")]
    Forgotten,
    #[error(transparent)]
    Call(#[from] PeerCallError),
    #[error("the peer's answer is malformed: {0}")]
    Malformed(String),
}

impl PeerLink {
    /// Sends the snapshot `named`, or says why not; openraft pauses and asks again, with the snapshot that is held then.
    ///
    /// Takes as long as it takes: neither openraft's time limit nor a lost connection says anything of a transfer that goes on
    /// by itself.
    pub(crate) async fn send_snapshot(
        &self,
        vote: Vote,
        named: CheckpointName,
        cancel: impl Future<Output = ReplicationClosed>,
    ) -> Sent {
        tokio::select! {
            sent = self.offer_until_taken(vote, &named) => sent,
            closed = cancel => Err(closed.into()),
        }
    }

    async fn offer_until_taken(&self, vote: Vote, named: &CheckpointName) -> Sent {
        let later = |error: NotSent| -> Failed {
            tracing::debug!(partition = %self.partition, peer = self.peer, %error, "snapshot not sent, trying again");
            Unreachable::new(&error).into()
        };
        let Some(store) = self.snapshots.clone() else {
            return Err(later(NotSent::NoStore));
        };
        // Not made for a peer that is not there.
        let question = || vec![peer::encode_snapshot_question(&vote, named.index, 0)];
        match self.ask(Verb::SnapshotState, question()).await.map_err(later)? {
            SnapshotAnswer::Installed(vote) | SnapshotAnswer::HigherVote(vote) => {
                store.taken(named.index);
                return Ok(SnapshotResponse::new(vote));
            }
            SnapshotAnswer::Receiving(_) | SnapshotAnswer::Failed(_) | SnapshotAnswer::Unknown => {}
        }
        let offer = store
            .offer(named.index)
            .await
            .map_err(|reason| later(NotSent::NotMade(reason)))?;
        if offer.applied != (named.index, named.term, named.leader) {
            // What was named is not what is offered: openraft would believe the peer to hold less than it does, and purge
            // the rest. It asks again at once, and then the one that is held is named.
            return Err(Timeout {
                action: RPCTypes::InstallSnapshot,
                id: vote.leader_id.node_id,
                target: self.peer,
                timeout: Duration::ZERO,
            }
            .into());
        }
        tracing::info!(
            partition = %self.partition, peer = self.peer, index = offer.applied.0, bytes = offer.bytes(),
            files = offer.files.len(), "offering a snapshot"
        );
        let mut answer = self
            .ask(Verb::SnapshotOffer, peer::encode_snapshot_offer(&vote, &offer))
            .await
            .map_err(later)?;
        loop {
            match answer {
                SnapshotAnswer::Installed(theirs) => {
                    store.taken(named.index);
                    return Ok(SnapshotResponse::new(theirs));
                }
                SnapshotAnswer::HigherVote(theirs) => return Ok(SnapshotResponse::new(theirs)),
                SnapshotAnswer::Receiving(_) => store.keep(offer.id),
                SnapshotAnswer::Failed(reason) => return Err(later(NotSent::NotTaken(reason))),
                SnapshotAnswer::Unknown => return Err(later(NotSent::Forgotten)),
            }
            tokio::time::sleep(ASK_EVERY).await;
            let question = vec![peer::encode_snapshot_question(&vote, named.index, offer.id)];
            answer = self.ask(Verb::SnapshotState, question).await.map_err(later)?;
        }
    }

    async fn ask(&self, verb: Verb, body: Vec<bytes::Bytes>) -> Result<SnapshotAnswer, NotSent> {
        let answer = self.call_bulk(ANSWER_MAX, verb, body).await?;
        peer::decode_snapshot_answer(&answer).map_err(|error| NotSent::Malformed(error.to_string()))
    }
}
