//! Dead letters: list, replay, delete.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::future::try_join_all;
use laneway_core::command::{Block, Command, DeleteDeadLetter, ReplayDeadLetter, RequestKey};
use laneway_core::ids::{LaneId, MessageId, Offset, PartitionId, QueueId};
use laneway_core::reply::{DeadLetter, Refusal, Replayed, Reply};
use laneway_storage::codec;

use serde::{Deserialize, Serialize};

use super::names::check_request_id;
use super::pop::{to_message, unreadable};
use super::{content_hash, refused, unexpected};
use crate::api::{
    DeadLetterFilter, DeadLetterInfo, DeadLetterRef, PoppedMessage, ReplayReply, RequestError, RequestId,
};
use crate::leader::{AtLeader, Verb};
use crate::node::Node;
use crate::partition::{Ask, PartitionHandle, Running};

/// A dead letter with the names of where it was.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Named {
    row: DeadLetter,
    queue: String,
    lane: String,
}

fn named(running: &Running, row: &DeadLetter) -> Option<Named> {
    let queue = running.machine.queue(row.queue)?.name.clone();
    let lane = running.machine.lane(row.lane)?.name.to_owned();
    Some(Named {
        row: row.clone(),
        queue,
        lane,
    })
}

impl Node {
    /// Dead letters, newest first; fewer than asked for when their messages are over `pop_bytes_max` together.
    pub async fn dead_letters(&self, filter: DeadLetterFilter) -> Result<Vec<DeadLetterInfo>, RequestError> {
        self.catalog_up_to_date().await?;
        let queue = match &filter.queue {
            None => None,
            Some(name) => match self.known_queue(name) {
                Some(row) => Some(row.id),
                None => return Ok(Vec::new()),
            },
        };
        let wanted = filter.skip.saturating_add(filter.limit);
        let partitions = self.inner.partitions.iter();
        let parts = partitions.map(|partition| {
            let group = filter.group.clone();
            let newest = DeadLetters { queue, group, wanted };
            self.at_leader(partition.id, newest)
        });
        let mut rows: Vec<Named> = try_join_all(parts).await?.into_iter().flatten().collect();
        rows.sort_by_key(|named| std::cmp::Reverse((named.row.filed, named.row.id)));
        let mut infos = Vec::new();
        let mut bytes = 0;
        for named in rows.into_iter().skip(filter.skip).take(filter.limit) {
            let partition = self.partition_of_lane(named.row.lane).id;
            if bytes >= self.inner.limits.pop_bytes_max {
                break;
            }
            let (lane, offset) = (named.row.lane, named.row.offset);
            if let Some(message) = self.at_leader(partition, ReadMessage { lane, offset }).await? {
                bytes += message.payload.len() as u64;
                let Named { row, queue, lane } = named;
                infos.push(DeadLetterInfo {
                    row,
                    queue,
                    lane_name: lane,
                    message,
                });
            }
        }
        Ok(infos)
    }

    /// Moves a dead letter back to the tail of its lane, once. `None`: there is no such row.
    ///
    /// The row goes and the message comes in one entry; its new transaction id is `dlq:<row id>`.
    pub async fn replay(
        &self,
        request_id: Option<RequestId>,
        which: DeadLetterRef,
    ) -> Result<Option<ReplayReply>, RequestError> {
        check_request_id(request_id.as_ref())?;
        self.check_disk()?;
        let request = request_key(request_id, 0, "replay", &which);
        let Some(partition) = self.partition_of(&which) else {
            return Ok(None);
        };
        self.at_leader(partition.id, Replay { request, which }).await
    }

    /// Deletes a dead letter's rows; says how many there were.
    pub async fn delete_dead_letters(
        &self,
        request_id: Option<RequestId>,
        which: DeadLetterRef,
    ) -> Result<u64, RequestError> {
        check_request_id(request_id.as_ref())?;
        let Some(partition) = self.partition_of(&which) else {
            return Ok(0);
        };
        self.at_leader(partition.id, DeleteDeadLetters { request_id, which })
            .await
    }

    fn partition_of(&self, which: &DeadLetterRef) -> Option<&Arc<PartitionHandle>> {
        match which {
            DeadLetterRef::Message(lane, _) => Some(self.partition_of_lane(*lane)),
            DeadLetterRef::Row(id) => self.partition(id.partition()),
        }
    }
}

/// The newest dead letters, by queue and group.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DeadLetters {
    queue: Option<QueueId>,
    group: Option<Arc<str>>,
    wanted: usize,
}

impl AtLeader for DeadLetters {
    const VERB: Verb = Verb::DeadLetters;
    const WRITES: bool = false;
    type Answer = Vec<Named>;

    async fn run(self, node: Node, group: PartitionId) -> Result<Vec<Named>, RequestError> {
        let newest = move |running: &Running| {
            let group = self.group.as_deref();
            let of_group = |row: &&DeadLetter| group.is_none_or(|group| row.group == group);
            let rows = running.machine.dead_letters(self.queue).rev().filter(of_group);
            rows.filter_map(|row| named(running, row))
                .take(self.wanted)
                .collect()
        };
        node.own_partition(group)?.look_linear(newest).await
    }
}

/// One stored message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ReadMessage {
    lane: LaneId,
    offset: Offset,
}

impl AtLeader for ReadMessage {
    const VERB: Verb = Verb::ReadMessage;
    const WRITES: bool = false;
    type Answer = Option<PoppedMessage>;

    async fn run(self, node: Node, group: PartitionId) -> Result<Self::Answer, RequestError> {
        let partition = node.own_partition(group)?;
        partition.until_serving().await?;
        read_one(partition, self.lane, self.offset).await
    }
}

/// A replay.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Replay {
    request: Option<RequestKey>,
    which: DeadLetterRef,
}

impl AtLeader for Replay {
    const VERB: Verb = Verb::Replay;
    const WRITES: bool = true;
    type Answer = Option<ReplayReply>;

    async fn run(self, node: Node, group: PartitionId) -> Result<Option<ReplayReply>, RequestError> {
        let Self { request, which } = self;
        let partition = node.own_partition(group)?;
        if let Some(kept) = kept_answer(partition, request.clone()).await? {
            return match kept {
                Reply::Replayed(answer) => replayed(partition, answer).await.map(Some),
                Reply::Refused(Refusal::DeadLetterGone) => Ok(None),
                Reply::Refused(refusal) => Err(refused(refusal)),
                reply => Err(unexpected(&reply)),
            };
        }
        let Some(named) = find(partition, &which).await?.pop() else {
            return Ok(None);
        };
        let Some(message) = read_one(partition, named.row.lane, named.row.offset).await? else {
            return Ok(None);
        };
        let mut frame = BytesMut::with_capacity(message.payload.len() + 64);
        codec::push_frame(&mut frame, &replay_transaction_id(&named.row), &message.payload);
        let bytes = frame.len();
        let replay = ReplayDeadLetter {
            request,
            id: named.row.id,
            block: Block::default(),
        };
        let ask = Ask::Command(Command::ReplayDeadLetter(replay), frame.freeze());
        match partition.ask(ask, bytes).await? {
            Reply::Replayed(answer) => replayed(partition, answer).await.map(Some),
            Reply::Refused(Refusal::DeadLetterGone) => Ok(None),
            Reply::Refused(refusal) => Err(refused(refusal)),
            reply => Err(unexpected(&reply)),
        }
    }
}

async fn replayed(partition: &Arc<PartitionHandle>, replayed: Replayed) -> Result<ReplayReply, RequestError> {
    let row = replayed.dead_letter.clone();
    let names = partition.look(move |running| named(running, &row)).await?;
    let (queue, lane_name) = names.map(|named| (named.queue, named.lane)).unwrap_or_default();
    Ok(ReplayReply {
        transaction_id: replay_transaction_id(&replayed.dead_letter),
        message_id: MessageId::new(replayed.wall, replayed.lane, replayed.offset),
        offset: replayed.offset,
        dead_letter: replayed.dead_letter,
        queue,
        lane_name,
    })
}

/// A deletion of all rows meant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DeleteDeadLetters {
    request_id: Option<RequestId>,
    which: DeadLetterRef,
}

impl AtLeader for DeleteDeadLetters {
    const VERB: Verb = Verb::DeleteDeadLetters;
    const WRITES: bool = true;
    type Answer = u64;

    async fn run(self, node: Node, group: PartitionId) -> Result<u64, RequestError> {
        let Self { request_id, which } = self;
        let partition = node.own_partition(group)?;
        // What an earlier, interrupted try of the same request has done counts; the rest follows.
        let (done, mut deleted) = count_kept(partition, request_id.as_ref(), &which).await?;
        for (part, named) in (done..).zip(find(partition, &which).await?) {
            let request = request_key(request_id.clone(), part, "delete", &which);
            let delete = DeleteDeadLetter {
                request,
                id: named.row.id,
            };
            match partition
                .ask(Ask::Command(Command::DeleteDeadLetter(delete), Bytes::new()), 0)
                .await?
            {
                Reply::DeadLetterDeleted => deleted += 1,
                Reply::Refused(Refusal::DeadLetterGone) => {}
                Reply::Refused(refusal) => return Err(refused(refusal)),
                reply => return Err(unexpected(&reply)),
            }
        }
        Ok(deleted)
    }
}

fn replay_transaction_id(row: &DeadLetter) -> String {
    format!("dlq:{}", row.id)
}

/// The rows meant, oldest first.
async fn find(partition: &Arc<PartitionHandle>, which: &DeadLetterRef) -> Result<Vec<Named>, RequestError> {
    let which = which.clone();
    partition
        .look_linear(move |running| match &which {
            DeadLetterRef::Row(id) => running
                .machine
                .dead_letter(*id)
                .and_then(|row| named(running, row))
                .into_iter()
                .collect(),
            DeadLetterRef::Message(lane, transaction_id) => running
                .machine
                .dead_letters_of_lane(*lane)
                .filter(|row| row.transaction_id == **transaction_id)
                .filter_map(|row| named(running, row))
                .collect(),
        })
        .await
}

/// One stored message; `None` when it was deleted.
pub(super) async fn read_one(
    partition: &Arc<PartitionHandle>,
    lane: LaneId,
    offset: Offset,
) -> Result<Option<PoppedMessage>, RequestError> {
    let stores = partition.stores()?;
    let read = move || stores.payloads.read(lane, offset, offset.plus(1), u64::MAX);
    let messages = tokio::task::spawn_blocking(read)
        .await
        .map_err(|error| unreadable(&error))?;
    let mut messages = messages.map_err(|error| unreadable(&error))?;
    Ok(messages.pop().map(|message| to_message(lane, message)))
}

fn request_key(id: Option<RequestId>, part: u32, verb: &str, which: &DeadLetterRef) -> Option<RequestKey> {
    let id = id?;
    let content = match which {
        DeadLetterRef::Message(lane, transaction_id) => {
            content_hash(&[verb.as_bytes(), &lane.0.to_le_bytes(), transaction_id.as_bytes()])
        }
        DeadLetterRef::Row(row) => content_hash(&[verb.as_bytes(), &row.0.to_le_bytes()]),
    };
    Some(RequestKey {
        id: id.0.to_string(),
        part,
        content,
    })
}

/// The kept answer of a request whose row may be gone by now.
async fn kept_answer(
    partition: &Arc<PartitionHandle>,
    request: Option<RequestKey>,
) -> Result<Option<Reply>, RequestError> {
    let Some(request) = request else { return Ok(None) };
    partition
        .look_linear(move |running| running.machine.kept_answer(&request).cloned())
        .await
}

/// How many parts of a deletion have an answer, and how many of them deleted a row.
async fn count_kept(
    partition: &Arc<PartitionHandle>,
    request_id: Option<&RequestId>,
    which: &DeadLetterRef,
) -> Result<(u32, u64), RequestError> {
    let (mut parts, mut deleted) = (0, 0);
    loop {
        match kept_answer(
            partition,
            request_key(request_id.cloned(), parts, "delete", which),
        )
        .await?
        {
            None => return Ok((parts, deleted)),
            Some(Reply::DeadLetterDeleted) => deleted += 1,
            Some(Reply::Refused(Refusal::RequestIdReused)) => return Err(refused(Refusal::RequestIdReused)),
            Some(_) => {}
        }
        parts += 1;
    }
}
