//! One partition: the actor that alone touches its machine, and the handle through which the rest of the node asks it.

mod apply;
mod ask;
mod checkpoint;
mod leadership;
mod open;
mod overlay;
mod plan;
mod retention;
mod running;
mod timers;

use ractor::{Actor, ActorProcessingErr, ActorRef};

pub(crate) use ask::{Ask, ClaimAsk, PartitionHandle, PushAsk, PushAskItem, Stores};
pub(crate) use checkpoint::CheckpointPart;
pub(crate) use open::{OpenError, Opened};
pub(crate) use running::{LogPosition, Running};

use laneway_raft::FsmMsg;

/// Who waits for a partition's answer.
pub(crate) type Caller = crate::caller::Caller<laneway_core::reply::Reply>;

/// What a partition's actor is told.
#[expect(
    clippy::large_enum_variant,
    reason = "moved once; a box would be an allocation per command"
)]
pub(crate) enum PartitionMsg {
    /// A command to plan, propose and answer.
    Ask(Ask, Caller),
    /// Form entries from what is queued by now.
    Flush,
    /// Raft speaks.
    Raft(FsmMsg),
    /// The group is open.
    Opened(laneway_raft::Group),
    /// A deadline may have come.
    Tick,
    /// Propose what retention and sweeping want.
    Retain,
    /// Look at the machine; the closure answers by itself.
    Look(Look),
    /// Cut a checkpoint.
    BeginCheckpoint {
        full: bool,
        to: std::sync::mpsc::Sender<CheckpointPart>,
    },
    /// Send more rows of it.
    CheckpointStep,
    /// It was not written; its rows count as changed again.
    AbandonCheckpoint,
    /// It is complete on disk.
    CheckpointWritten(laneway_raft::CheckpointName),
}

/// A read of the machine.
pub(crate) type Look = Box<dyn FnOnce(&Running) + Send>;

/// The actor of one partition.
pub(crate) struct PartitionActor;

impl Actor for PartitionActor {
    type Msg = PartitionMsg;
    type State = Running;
    type Arguments = Box<Opened>;

    async fn pre_start(
        &self,
        myself: ActorRef<PartitionMsg>,
        opened: Box<Opened>,
    ) -> Result<Running, ActorProcessingErr> {
        Ok(Running::new(myself, *opened))
    }

    async fn handle(
        &self,
        _myself: ActorRef<PartitionMsg>,
        message: PartitionMsg,
        running: &mut Running,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            PartitionMsg::Ask(ask, caller) => running.ask(ask, caller),
            PartitionMsg::Flush => running.flush(),
            PartitionMsg::Raft(message) => running.raft(message),
            PartitionMsg::Opened(group) => running.opened(group),
            PartitionMsg::Tick => running.tick(),
            PartitionMsg::Retain => running.retain(),
            PartitionMsg::Look(look) => look(running),
            PartitionMsg::BeginCheckpoint { full, to } => running.begin_checkpoint(full, to),
            PartitionMsg::CheckpointStep => running.checkpoint_step(),
            PartitionMsg::AbandonCheckpoint => running.abandon_checkpoint(),
            PartitionMsg::CheckpointWritten(name) => running.checkpoint_written(name),
        }
        Ok(())
    }
}
