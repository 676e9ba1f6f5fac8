//! openraft's view of the state machine, which lives behind a channel.

use std::io;
use std::sync::Arc;

use futures_util::stream::{Stream, TryStreamExt};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{OptionalSend, RaftSnapshotBuilder, SnapshotMeta};
use tokio::sync::{mpsc, oneshot, watch};

use crate::format;
use crate::fsm::{CheckpointName, CommittedEntry, CommittedPayload, FsmMsg};
use crate::log_store::Durable;
use crate::snapshot::SnapshotStore;
use crate::types::{Entry, EntryBody, LeaderId, LogId, Payload, StoredMembership, Types};

/// Bytes of bodies that one [`FsmMsg::Apply`] carries, counted before the last entry is added.
const APPLY_BYTES_MAX: usize = 4 << 20;
/// Entries that one [`FsmMsg::Apply`] carries.
const APPLY_ENTRIES_MAX: usize = 1024;

type Snapshot = openraft::Snapshot<LeaderId, u64, (), CheckpointName>;

/// What the machine behind the channel has named so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Named {
    /// Counts the answers, so that a waiter sees one that names nothing new.
    pub(crate) answers: u64,
    /// The newest complete checkpoint.
    pub(crate) newest: Option<CheckpointName>,
}

/// Forwards committed entries and questions for checkpoints.
pub(crate) struct Machine {
    fsm: mpsc::UnboundedSender<FsmMsg>,
    applied: Option<LogId>,
    membership: StoredMembership,
    named: watch::Sender<Named>,
    durable: Durable,
    snapshots: Option<Arc<dyn SnapshotStore>>,
}

impl Machine {
    /// `applied` and `membership` as in the newest checkpoint, which `newest` names.
    pub(crate) fn new(
        fsm: mpsc::UnboundedSender<FsmMsg>,
        membership: StoredMembership,
        newest: Option<CheckpointName>,
        durable: Durable,
        snapshots: Option<Arc<dyn SnapshotStore>>,
    ) -> (Self, watch::Receiver<Named>) {
        let applied = newest
            .as_ref()
            .map(|name| format::log_id((name.index, name.term, name.leader)));
        let (named, named_seen) = watch::channel(Named { answers: 0, newest });
        (
            Self {
                fsm,
                applied,
                membership,
                named,
                durable,
                snapshots,
            },
            named_seen,
        )
    }

    async fn apply_batch(&mut self, entries: Vec<CommittedEntry>) -> Result<(), io::Error> {
        let (done, applied) = oneshot::channel();
        self.fsm
            .send(FsmMsg::Apply { entries, done })
            .map_err(|_| io::Error::other(MachineGone))?;
        applied.await.map_err(|_| io::Error::other(MachineGone))
    }

    fn committed_entry(&mut self, entry: Entry) -> CommittedEntry {
        let (index, term, leader) = format::log_id_parts(&entry.log_id);
        let payload = match entry.payload {
            Payload::Blank => CommittedPayload::Blank,
            Payload::Normal(EntryBody(body)) => CommittedPayload::Normal(body),
            Payload::Membership(membership) => {
                self.membership = StoredMembership::new(Some(entry.log_id), membership);
                CommittedPayload::Membership(format::encode_stored_membership(&self.membership))
            }
        };
        CommittedEntry {
            index,
            term,
            leader,
            payload,
        }
    }
}

/// The machine dropped a batch, or is gone altogether.
#[derive(Debug, thiserror::Error)]
#[error("the state machine failed")]
struct MachineGone;

/// Snapshots are put in place beside a running group, see [`crate::snapshot`].
#[derive(Debug, thiserror::Error)]
#[error("a snapshot is not installed through the group")]
struct NoInstall;

impl RaftStateMachine<Types> for Machine {
    type SnapshotData = CheckpointName;
    type SnapshotBuilder = CheckpointNamer;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut committed: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        let mut ended = false;
        while !ended {
            let (mut entries, mut responders, mut bytes) = (Vec::new(), Vec::new(), 0);
            let mut last = self.applied;
            while bytes < APPLY_BYTES_MAX && entries.len() < APPLY_ENTRIES_MAX {
                let Some((entry, responder)) = committed.try_next().await? else {
                    ended = true;
                    break;
                };
                last = Some(entry.log_id);
                let entry = self.committed_entry(entry);
                if let CommittedPayload::Normal(body) = &entry.payload {
                    bytes += body.len();
                }
                entries.push(entry);
                responders.extend(responder);
            }
            if let Some(index) = entries.last().map(|entry| entry.index) {
                // Others may have committed it while it is on its way to the disk here. What is applied rests on the log: its
                // payloads are read from there, and a checkpoint of it must not be ahead of it.
                self.durable.reached(index).await?;
                self.apply_batch(entries).await?;
                self.applied = last;
                responders.into_iter().for_each(|responder| responder.send(()));
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> CheckpointNamer {
        CheckpointNamer {
            fsm: self.fsm.clone(),
            named: self.named.clone(),
        }
    }

    async fn install_snapshot(
        &mut self,
        _meta: &SnapshotMeta<LeaderId, u64, ()>,
        _snapshot: CheckpointName,
    ) -> Result<(), io::Error> {
        Err(io::Error::new(io::ErrorKind::Unsupported, NoInstall))
    }

    // Answered from what was named last: the machine itself may be waiting for this very group to open. The snapshot that is
    // held for sending comes first, though later checkpoints follow it: what is named is what openraft takes to be sent.
    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        // At the start openraft would install one that is ahead of the checkpoint; the log has those entries too.
        let applied = self.applied.as_ref().map(|id| id.index);
        let held = self
            .snapshots
            .as_ref()
            .and_then(|snapshots| snapshots.held())
            .filter(|held| Some(held.index) <= applied);
        let newest = held.or_else(|| self.named.borrow().newest.clone());
        newest.map(snapshot).transpose()
    }
}

/// Asks the machine which checkpoint is the newest, beside the apply path.
pub(crate) struct CheckpointNamer {
    fsm: mpsc::UnboundedSender<FsmMsg>,
    named: watch::Sender<Named>,
}

impl RaftSnapshotBuilder<Types> for CheckpointNamer {
    type SnapshotData = CheckpointName;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let (reply, answer) = oneshot::channel();
        let asked = self.fsm.send(FsmMsg::Checkpoint { reply });
        let name = if asked.is_ok() {
            answer.await.ok().flatten()
        } else {
            None
        };
        let built = name.clone().map(snapshot).transpose();
        self.named.send_modify(|named| {
            named.answers += 1;
            if built.is_ok()
                && name.as_ref().map(|name| name.index) > named.newest.as_ref().map(|newest| newest.index)
            {
                named.newest = name;
            }
        });
        // Without a name, openraft gets the name of nothing, which is older than what it knows and changes nothing.
        Ok(built?.unwrap_or_else(|| Snapshot {
            meta: SnapshotMeta::default(),
            snapshot: nothing(),
        }))
    }
}

fn snapshot(name: CheckpointName) -> Result<Snapshot, io::Error> {
    let last_log_id = Some(format::log_id((name.index, name.term, name.leader)));
    let last_membership = format::decode_stored_membership(&name.membership)?;
    Ok(Snapshot {
        meta: SnapshotMeta {
            last_log_id,
            last_membership,
        },
        snapshot: name,
    })
}

fn nothing() -> CheckpointName {
    CheckpointName {
        index: 0,
        term: 0,
        leader: 0,
        membership: bytes::Bytes::new(),
    }
}
