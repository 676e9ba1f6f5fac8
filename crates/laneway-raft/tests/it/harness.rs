//! A node's WAL, and state machines that record what they are told.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use laneway_core::ids::PartitionId;
use laneway_raft::{
    AppliedState, CheckpointName, CommittedEntry, CommittedPayload, FsmMsg, Group, GroupOptions, Leadership,
    OpenError, Peers, SnapshotStore,
};
use laneway_storage::vfs::RealVfs;
use laneway_storage::wal::{Wal, WalOptions, WalRecovery};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// Raft node id of the only node.
pub(crate) const NODE: u64 = 0x0001_0000_0000_002a;

/// Longest wait for something that must happen; never waited for something that must not.
const PATIENCE: Duration = Duration::from_secs(20);

/// Opens the WAL of a node whose data is in `dir`.
pub(crate) fn open_wal(dir: &Path) -> (Wal, WalRecovery) {
    let options = WalOptions {
        segment_bytes: 1 << 20,
        segments_max: 2,
        ..WalOptions::default()
    };
    Wal::open(Arc::new(RealVfs), dir.to_path_buf(), options).unwrap()
}

/// What a machine was told so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Batches that arrived, applied or not.
    pub(crate) batches: usize,
    pub(crate) applied: Vec<CommittedEntry>,
    pub(crate) failed: Vec<(u64, bool)>,
    pub(crate) leadership: Vec<Leadership>,
    pub(crate) stopped: Option<String>,
    /// Told to be opened anew.
    pub(crate) placed: bool,
}

impl Seen {
    /// Bodies of the applied proposals, in order.
    pub(crate) fn bodies(&self) -> Vec<Bytes> {
        let body = |entry: &CommittedEntry| match &entry.payload {
            CommittedPayload::Normal(body) => Some(body.clone()),
            CommittedPayload::Blank | CommittedPayload::Membership(_) => None,
        };
        self.applied.iter().filter_map(body).collect()
    }

    pub(crate) fn membership(&self) -> Bytes {
        let latest = self.applied.iter().rev().find_map(|entry| match &entry.payload {
            CommittedPayload::Membership(bytes) => Some(bytes.clone()),
            CommittedPayload::Blank | CommittedPayload::Normal(_) => None,
        });
        latest.unwrap_or_default()
    }

    /// The checkpoint that ends with the applied entry `index`.
    pub(crate) fn checkpoint(&self, index: u64) -> CheckpointName {
        let entry = self.applied.iter().find(|entry| entry.index == index).unwrap();
        CheckpointName {
            index,
            term: entry.term,
            leader: entry.leader,
            membership: self.membership(),
        }
    }
}

/// What a machine does with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    Open,
    Closed,
    /// Drop the batch, as a machine that panicked does.
    Broken,
}

/// A machine behind a group's channel.
pub(crate) struct Recorder {
    pub(crate) fsm: mpsc::UnboundedSender<FsmMsg>,
    pub(crate) gate: watch::Sender<Gate>,
    pub(crate) checkpoint: watch::Sender<Option<CheckpointName>>,
    seen: watch::Receiver<Seen>,
    task: JoinHandle<()>,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        let (fsm, mut received) = mpsc::unbounded_channel();
        let (gate, mut gate_seen) = watch::channel(Gate::Open);
        let (checkpoint, newest) = watch::channel(None);
        let (record, seen) = watch::channel(Seen::default());
        let task = tokio::spawn(async move {
            while let Some(msg) = received.recv().await {
                match msg {
                    FsmMsg::Apply { entries, done } => {
                        record.send_modify(|seen| seen.batches += 1);
                        if *gate_seen.wait_for(|gate| *gate != Gate::Closed).await.unwrap() == Gate::Broken {
                            continue;
                        }
                        record.send_modify(|seen| seen.applied.extend(entries));
                        let _ = done.send(());
                    }
                    FsmMsg::ProposalFailed { proposal, definite } => {
                        record.send_modify(|seen| seen.failed.push((proposal, definite)));
                    }
                    FsmMsg::LeadershipChanged(now) => record.send_modify(|seen| seen.leadership.push(now)),
                    FsmMsg::Checkpoint { reply } => reply.send(newest.borrow().clone()).unwrap(),
                    FsmMsg::SnapshotPlaced => record.send_modify(|seen| seen.placed = true),
                    FsmMsg::Stopped { reason } => record.send_modify(|seen| seen.stopped = Some(reason)),
                }
            }
        });
        Self {
            fsm,
            gate,
            checkpoint,
            seen,
            task,
        }
    }

    pub(crate) fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// What it is told, from now on.
    pub(crate) fn watch(&self) -> watch::Receiver<Seen> {
        self.seen.clone()
    }

    /// Waits until what was seen satisfies `enough`.
    pub(crate) async fn wait(&self, enough: impl FnMut(&Seen) -> bool) -> Seen {
        let mut seen = self.seen.clone();
        let waited = tokio::time::timeout(PATIENCE, seen.wait_for(enough)).await;
        let Ok(seen) = waited else {
            panic!("waited in vain; seen: {:?}", self.seen())
        };
        seen.expect("the recorder outlives its group").clone()
    }

    /// Waits until the group has let go of the machine, as the last step of its end.
    pub(crate) async fn ended(self) -> Seen {
        let Self {
            fsm,
            gate,
            task,
            seen,
            ..
        } = self;
        drop(fsm);
        gate.send_replace(Gate::Open);
        tokio::time::timeout(PATIENCE, task)
            .await
            .expect("the group lets go of its machine")
            .unwrap();
        drop(gate);
        seen.borrow().clone()
    }
}

/// A group, its machine and the log beneath.
pub(crate) struct Replica {
    pub(crate) group: Group,
    pub(crate) machine: Recorder,
}

impl Replica {
    pub(crate) async fn open(
        partition: u16,
        wal: &Wal,
        recovery: &mut WalRecovery,
        applied: AppliedState,
    ) -> Result<Self, OpenError> {
        Self::open_as(partition, NODE, wal, recovery, applied, (None, None)).await
    }

    /// One of several.
    pub(crate) async fn open_among(
        partition: u16,
        node: u64,
        wal: &Wal,
        recovery: &mut WalRecovery,
        applied: AppliedState,
        peers: Peers,
    ) -> Result<Self, OpenError> {
        Self::open_as(partition, node, wal, recovery, applied, (Some(peers), None)).await
    }

    /// One of several, that sends and takes snapshots.
    pub(crate) async fn open_with_snapshots(
        partition: u16,
        node: u64,
        wal: &Wal,
        applied: AppliedState,
        peers: Peers,
        snapshots: Arc<dyn SnapshotStore>,
    ) -> Result<Self, OpenError> {
        // What the log holds now, which may have restarted since it was opened.
        let id = PartitionId(partition);
        let mut recovery = WalRecovery::default();
        recovery.partitions.insert(id, wal.recovered(id));
        let others = (Some(peers), Some(snapshots));
        Self::open_as(partition, node, wal, &mut recovery, applied, others).await
    }

    async fn open_as(
        partition: u16,
        node: u64,
        wal: &Wal,
        recovery: &mut WalRecovery,
        applied: AppliedState,
        (peers, snapshots): (Option<Peers>, Option<Arc<dyn SnapshotStore>>),
    ) -> Result<Self, OpenError> {
        let partition = PartitionId(partition);
        let machine = Recorder::new();
        let recovered = recovery.partitions.remove(&partition).unwrap_or_default();
        let options = GroupOptions::new(partition, node);
        let group = Group::open(
            options,
            wal.clone(),
            recovered,
            applied,
            machine.fsm.clone(),
            peers,
            snapshots,
        )
        .await?;
        Ok(Self { group, machine })
    }

    /// Opens a new group of one voter and waits until it may plan.
    pub(crate) async fn lead(partition: u16, wal: &Wal, recovery: &mut WalRecovery) -> (Self, u64) {
        let replica = Self::open(partition, wal, recovery, AppliedState::default())
            .await
            .unwrap();
        replica.group.initialize(BTreeSet::from([NODE])).await.unwrap();
        let term = replica.term().await;
        (replica, term)
    }

    /// Waits until this replica leads and has applied its term's first entry.
    pub(crate) async fn term(&self) -> u64 {
        let may_plan = |seen: &Seen| {
            let (Some(now), Some(last)) = (seen.leadership.last(), seen.applied.last()) else {
                return false;
            };
            now.is_self && last.term == now.term
        };
        self.machine.wait(may_plan).await.leadership.last().unwrap().term
    }

    /// Proposes `numbers` and waits until they are applied.
    pub(crate) async fn apply(&self, term: u64, numbers: std::ops::Range<u64>) {
        for number in numbers.clone() {
            self.group.propose(term, number, body(number));
        }
        let last = body(numbers.end - 1);
        self.machine
            .wait(|seen| seen.bodies().last() == Some(&last))
            .await;
    }

    pub(crate) async fn shut_down(self) -> Seen {
        self.group.shutdown().await;
        drop(self.group);
        self.machine.ended().await
    }
}

/// The body that the tests propose under `number`.
pub(crate) fn body(number: u64) -> Bytes {
    Bytes::from(format!("body {number:06}"))
}

pub(crate) fn bodies(numbers: std::ops::Range<u64>) -> Vec<Bytes> {
    numbers.map(body).collect()
}
