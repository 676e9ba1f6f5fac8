//! One replicated log and its tasks.

mod error;
mod members;
mod options;
mod propose;
mod read;
mod transfer;
mod watch;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use laneway_storage::wal::{RecoveredPartition, Wal};
use openraft::ServerState;
use openraft::errors::RaftError;
use tokio::sync::{mpsc, oneshot, watch as latest};

pub use self::error::{
    ChangeError, InitializeError, NameCheckpointError, OpenError, PurgeError, ReadIndexError, TransferError,
};
pub use self::members::Members;
pub use self::options::{ELECTION_MS_MAX, ELECTION_MS_MIN, GroupOptions, HEARTBEAT_MS};
use self::propose::{Proposal, Proposed, Proposer};
use self::read::Reader;
pub use self::transfer::TRANSFER_LAG_MAX;
use self::watch::LeadershipWatcher;
use crate::format;
use crate::fsm::{AppliedState, CheckpointName, FsmMsg, Leadership};
use crate::log_store::{LogStore, Unsynced};
use crate::machine::{Machine, Named};
use crate::network::PeerNetwork;
use crate::peer::{Peers, Registration};
use crate::snapshot::{Receiver, SnapshotStore};
use crate::types::Types;

/// Longest wait of [`Group::purge`] for the log to be purged on disk.
pub const PURGE_WAIT_MS_MAX: u64 = 1_000;

/// How long to wait for the machine's answer before asking again; a question that is being answered is not doubled.
const ASK_AGAIN: Duration = Duration::from_millis(10);

pub(crate) type Raft = openraft::Raft<Types, Machine>;

/// Handle of one raft group. Cheap to clone; the group ends with [`Group::shutdown`] or when the last handle is dropped.
#[derive(Clone)]
pub struct Group {
    inner: Arc<Inner>,
}

struct Inner {
    raft: Raft,
    partition: laneway_core::ids::PartitionId,
    fsm: mpsc::UnboundedSender<FsmMsg>,
    proposals: mpsc::UnboundedSender<Proposed>,
    reads: mpsc::UnboundedSender<oneshot::Sender<Result<u64, ReadIndexError>>>,
    leadership: latest::Receiver<Leadership>,
    views: Views,
    closing: Arc<AtomicBool>,
    /// The log behind the one that it holds is not purged.
    snapshots: Option<Arc<dyn SnapshotStore>>,
    /// Taken when the group ends: peers that call are told that it is not here.
    registration: Mutex<Option<Registration>>,
}

/// What the log and the machine show of themselves.
struct Views {
    /// The newest checkpoint.
    named: latest::Receiver<Named>,
    /// Up to which index the log is purged on disk.
    purged: latest::Receiver<Option<u64>>,
    unsynced: Weak<Unsynced>,
}

/// How peers reach a group.
struct Reached {
    registration: Option<Registration>,
    snapshots: Option<Arc<dyn SnapshotStore>>,
}

impl Reached {
    fn open(
        raft: &Raft,
        partition: laneway_core::ids::PartitionId,
        fsm: &mpsc::UnboundedSender<FsmMsg>,
        peers: Option<Peers>,
        snapshots: Option<Arc<dyn SnapshotStore>>,
    ) -> Self {
        let registration = peers.map(|peers| {
            let receiver = snapshots
                .clone()
                .map(|store| Receiver::new(partition, store, peers.clone(), fsm.clone()));
            peers.register(partition, raft.clone(), receiver)
        });
        Self {
            registration,
            snapshots,
        }
    }
}

/// What a replica is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupState {
    /// Has no vote (or the group was never initialized).
    Learner,
    /// Follows a leader, or waits for one.
    Follower,
    /// Asks for votes.
    Candidate,
    /// Leads.
    Leader,
    /// Ended.
    Stopped,
}

/// Figures of one replica at one moment; each is read without waiting and may lag behind by an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMetrics {
    /// Current term.
    pub term: u64,
    /// Raft node id of the leader, if known.
    pub leader: Option<u64>,
    /// Index of the last entry in this replica's log.
    pub last_index: Option<u64>,
    /// Index up to which this replica knows entries to be committed.
    pub committed: Option<u64>,
    /// Index up to which its machine has applied them.
    pub applied: Option<u64>,
    /// Index up to which its log is purged.
    pub purged: Option<u64>,
    /// How long ago a quorum last acknowledged this leader; `None` on others, and before the first time.
    pub since_quorum: Option<Duration>,
    /// Whether its entries wait for room on this node's disk. Nothing is lost; everything proposed waits with them.
    pub waits_for_room: bool,
    /// What it is doing.
    pub state: GroupState,
}

impl Group {
    /// Opens the group over its part of the WAL, replays the committed entries above `applied` through `fsm` and starts it.
    ///
    /// `peers` are the way to the other voters; without them only a group of one voter elects and commits. `snapshots` are what is
    /// sent to replicas that are too far behind, and received if this one is; without them it stays behind.
    ///
    /// `recovered` is what the WAL found for this partition; `applied` is what the machine behind `fsm` holds already. Replayed
    /// entries come as [`FsmMsg::Apply`] *before* this returns: the machine must be running, so call this in a task of its own.
    /// Entries that were stored but are not known to be committed follow once there is a leader.
    ///
    /// Errors: [`OpenError`]; the group is not running, the log is unchanged.
    /// Cancel safety: dropping the future ends the replay; open again with what the machine holds then.
    pub async fn open(
        options: GroupOptions,
        wal: Wal,
        recovered: RecoveredPartition,
        applied: AppliedState,
        fsm: mpsc::UnboundedSender<FsmMsg>,
        peers: Option<Peers>,
        snapshots: Option<Arc<dyn SnapshotStore>>,
    ) -> Result<Self, OpenError> {
        let config = Arc::new(options.config()?);
        let vote = recovered.vote.as_deref().map(format::decode_vote).transpose()?;
        let committed = recovered
            .committed
            .as_deref()
            .map(format::decode_committed)
            .transpose()?;
        let membership = format::decode_stored_membership(&applied.membership)?;
        let newest = applied.applied.map(|(index, term, leader)| CheckpointName {
            index,
            term,
            leader,
            membership: applied.membership.clone(),
        });
        let purged = recovered.purged.map(|(index, ..)| index);
        let held = applied.applied.map(|(index, ..)| index);
        if purged > held {
            return Err(OpenError::CheckpointBehindLog {
                purged,
                applied: held,
            });
        }

        let (log, purged) = LogStore::new(wal, options.partition, vote, committed);
        let unsynced = Arc::downgrade(&log.unsynced());
        let (machine, named) = Machine::new(
            fsm.clone(),
            membership,
            newest,
            log.unsynced().durable(),
            snapshots.clone(),
        );
        let network = PeerNetwork::new(options.partition, peers.clone(), snapshots.clone());
        let build = Raft::build(options.node_id, config, network, log, machine);
        let raft = Box::pin(build).await.map_err(|fatal| OpenError::Replay {
            reason: fatal.to_string(),
        })?;

        let term = vote.map_or(0, |vote| vote.leader_id.term);
        let views = Views {
            named,
            purged,
            unsynced,
        };
        let reached = Reached::open(&raft, options.partition, &fsm, peers, snapshots);
        Ok(Self::start(raft, &options, fsm, term, views, reached))
    }

    fn start(
        raft: Raft,
        options: &GroupOptions,
        fsm: mpsc::UnboundedSender<FsmMsg>,
        term: u64,
        views: Views,
        reached: Reached,
    ) -> Self {
        let closing = Arc::new(AtomicBool::new(false));
        let (watcher, leadership) =
            LeadershipWatcher::new(options.node_id, term, &raft, fsm.clone(), Arc::clone(&closing));
        let (proposals, proposed) = mpsc::unbounded_channel();
        let proposer = Proposer::new(raft.clone(), options.node_id, fsm.clone(), leadership.clone());
        let (reads, asked) = mpsc::unbounded_channel();
        let reader = Reader::new(raft.clone(), leadership.clone());

        raft.run();
        tokio::spawn(watcher.run());
        tokio::spawn(proposer.run(proposed));
        tokio::spawn(reader.run(asked));
        let partition = options.partition;
        let inner = Inner {
            raft,
            partition,
            fsm,
            proposals,
            reads,
            leadership,
            views,
            closing,
            snapshots: reached.snapshots,
            registration: Mutex::new(reached.registration),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Gives a new group its first membership. On a group that has one, or any entry or vote, it does nothing.
    ///
    /// Durability: after `Ok` the membership is in this node's log and survives power loss. This node must be among `voters`, and
    /// all voters must be given the same set.
    pub async fn initialize(&self, voters: BTreeSet<u64>) -> Result<(), InitializeError> {
        match Box::pin(self.inner.raft.initialize(voters)).await {
            Ok(()) => Ok(()),
            Err(RaftError::APIError(openraft::errors::InitializeError::NotAllowed(_))) => Ok(()),
            Err(RaftError::APIError(openraft::errors::InitializeError::NotInMembers(error))) => {
                Err(InitializeError::NotAVoter {
                    node_id: error.node_id,
                })
            }
            Err(RaftError::Fatal(fatal)) => Err(InitializeError::Stopped {
                reason: fatal.to_string(),
            }),
        }
    }

    /// Whether this replica is a member of its group, as far as its own log tells; true of a group without a membership.
    #[must_use]
    pub fn is_member(&self) -> bool {
        use openraft::async_runtime::watch::WatchReceiver;

        let metrics = self.inner.raft.metrics();
        let metrics = metrics.borrow_watched();
        let mut members = metrics
            .membership_config
            .membership()
            .nodes()
            .map(|(id, ())| *id)
            .peekable();
        members.peek().is_none() || members.any(|id| id == *self.inner.raft.node_id())
    }

    /// Offers `body` to the log of `term`, the term of a [`Leadership`] in which this node leads. Returns at once.
    ///
    /// Proposals of one caller are appended in the order given. Success shows as the [`FsmMsg::Apply`] of an entry with
    /// this body, so the body must carry `proposal` if its owner is to recognize it; failure comes as
    /// [`FsmMsg::ProposalFailed`]. How many are on their way at a time is for the caller to bound.
    pub fn propose(&self, term: u64, proposal: u64, body: Bytes) {
        let proposed = Proposed::Proposal(Proposal { term, proposal, body });
        let sent = self.inner.proposals.send(proposed);
        if sent.is_err() {
            // The runtime is going down; so may be the receiver of this.
            let _ = self.inner.fsm.send(FsmMsg::ProposalFailed {
                proposal,
                definite: true,
            });
        }
    }

    /// Confirms with a quorum that this node leads, and waits until everything that was committed when this was called is
    /// applied here. Returns the applied index: what is read from the machine now is not stale.
    ///
    /// Callers that arrive while a confirmation runs share the next one. Cancel safety: nothing to undo.
    pub async fn read_index(&self) -> Result<u64, ReadIndexError> {
        let (reply, answer) = oneshot::channel();
        self.inner
            .reads
            .send(reply)
            .map_err(|_| ReadIndexError::Stopped)?;
        answer.await.unwrap_or(Err(ReadIndexError::Stopped))
    }

    /// Who leads, as this node sees it now.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        *self.inner.leadership.borrow()
    }

    /// Figures of this replica.
    #[must_use]
    pub fn metrics(&self) -> GroupMetrics {
        use openraft::Instant;
        use openraft::async_runtime::watch::WatchReceiver;

        let metrics = self.inner.raft.metrics();
        let metrics = metrics.borrow_watched();
        GroupMetrics {
            term: metrics.current_term,
            leader: metrics.current_leader,
            last_index: metrics.last_log_index,
            committed: metrics.local_committed.map(|id| id.index),
            applied: metrics.last_applied.map(|id| id.index),
            purged: metrics.purged.map(|id| id.index),
            since_quorum: metrics.last_quorum_acked.map(|at| at.elapsed()),
            waits_for_room: self
                .inner
                .views
                .unsynced
                .upgrade()
                .is_some_and(|unsynced| unsynced.waits_for_room()),
            state: match metrics.state {
                _ if metrics.running_state.is_err() => GroupState::Stopped,
                ServerState::Learner => GroupState::Learner,
                ServerState::Follower => GroupState::Follower,
                ServerState::Candidate => GroupState::Candidate,
                ServerState::Leader => GroupState::Leader,
                ServerState::Shutdown => GroupState::Stopped,
            },
        }
    }

    /// Asks the machine for its newest complete checkpoint ([`FsmMsg::Checkpoint`]) and remembers it: from then on the log
    /// may be purged up to it. `None`: there is none.
    ///
    /// Cancel safety: the question is asked all the same.
    pub async fn name_checkpoint(&self) -> Result<Option<CheckpointName>, NameCheckpointError> {
        let mut named = self.inner.views.named.clone();
        let before = named.borrow_and_update().answers;
        let newest = loop {
            self.inner
                .raft
                .trigger()
                .snapshot()
                .await
                .map_err(|_| NameCheckpointError::Stopped)?;
            // openraft drops a trigger that it takes while it still finishes the last answer, so ask again.
            let answer =
                tokio::time::timeout(ASK_AGAIN, named.wait_for(|named| named.answers > before)).await;
            if let Ok(named) = answer {
                break named.map_err(|_| NameCheckpointError::Stopped)?.newest.clone();
            }
        };
        if let Some(name) = &newest {
            let named = Some(format::log_id((name.index, name.term, name.leader)));
            let mut known = self.inner.raft.watch_snapshot_progress();
            known
                .wait_until_ge(&named)
                .await
                .map_err(|_| NameCheckpointError::Stopped)?;
        }
        Ok(newest)
    }

    /// Purges the log up to `index`, inclusive, but not beyond the newest checkpoint, which it asks for first, nor beyond a
    /// snapshot that is held for sending.
    ///
    /// Returns up to where the log is purged on disk now. That may be less than asked: followers may still need entries (they
    /// go when they no longer do), or the disk took longer than [`PURGE_WAIT_MS_MAX`].
    pub async fn purge(&self, index: u64) -> Result<Option<u64>, PurgeError> {
        let named = self
            .name_checkpoint()
            .await
            .map_err(|NameCheckpointError::Stopped| PurgeError::Stopped)?;
        let Some(name) = named else {
            return Err(PurgeError::NoCheckpoint);
        };
        let held = self
            .inner
            .snapshots
            .as_ref()
            .and_then(|snapshots| snapshots.held());
        let upto = held
            .map_or(name.index, |held| held.index.min(name.index))
            .min(index);
        let mut purged = self.inner.views.purged.clone();
        if *purged.borrow_and_update() < Some(upto) {
            self.inner
                .raft
                .trigger()
                .purge_log(upto)
                .await
                .map_err(|_| PurgeError::Stopped)?;
            let wait = Duration::from_millis(PURGE_WAIT_MS_MAX);
            let done = tokio::time::timeout(wait, purged.wait_for(|purged| *purged >= Some(upto))).await;
            if let Ok(Err(_)) = done {
                return Err(PurgeError::Stopped);
            }
        }
        Ok(*self.inner.views.purged.borrow())
    }

    /// Ends the group and waits until it has. Proposals that were on their way are reported as not definite, later ones as
    /// definite. A second call waits likewise.
    pub async fn shutdown(&self) {
        self.inner.closing.store(true, Ordering::Release);
        drop(
            self.inner
                .registration
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
        if let Err(error) = Box::pin(self.inner.raft.shutdown()).await {
            tracing::warn!(partition = %self.inner.partition, %error, "raft group ended with an error");
        }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("partition", &self.inner.partition)
            .finish_non_exhaustive()
    }
}
