//! How the leader turns a request into a command: it decides what needs disk, clock or randomness.

use laneway_core::command::{Block, Claim, Command, Push, PushItem, RequestKey};
use laneway_core::ids::{LaneId, LeaseId, Offset};
use laneway_core::reply::{Claimed, Refusal, Reply};
use laneway_core::time::WallTime;

use super::running::{Draft, Running};
use super::{Ask, ClaimAsk, PushAsk, PushAskItem};
use crate::api::{ErrorClass, RequestError};

/// What becomes of a request.
#[expect(
    clippy::large_enum_variant,
    reason = "moved once; a box would be an allocation per command"
)]
pub(super) enum Plan {
    Propose(Command),
    Answer(Result<Reply, RequestError>),
}

impl Running {
    pub(super) fn plan(&mut self, ask: Ask, draft: &mut Draft) -> Plan {
        match ask {
            Ask::Push(push) => self.plan_push(push, draft),
            Ask::Claim(claim) => self.plan_claim(&claim, draft),
            Ask::Command(command, blob) => self.plan_command(command, &blob, draft),
            Ask::Changes(_) => unreachable!("changes are drafted as a whole"),
        }
    }

    fn plan_command(&mut self, mut command: Command, blob: &[u8], draft: &mut Draft) -> Plan {
        if let Command::ReplayDeadLetter(replay) = &mut command {
            replay.block = draft.put_block(blob);
            if let Some(dead) = self.machine.dead_letter(replay.id)
                && let Some(lane) = self.machine.lane(dead.lane)
            {
                // It takes the tail: plans that predict the lane's tail must know.
                let key = (lane.queue, lane.name.into());
                let tail = self.overlay.tail(&key).unwrap_or(lane.tail.0);
                self.overlay.set_tail(key, tail + 1);
            }
        }
        Plan::Propose(command)
    }

    fn plan_push(&mut self, push: PushAsk, draft: &mut Draft) -> Plan {
        if self.stores.dedup.full() {
            let message = "the partition remembers as many transaction ids as it may, so it cannot tell duplicates of new messages; \
                 retry after a moment, and if it stays so shorten dedupWindowSeconds of busy queues or raise dedup_bytes_max";
            return Plan::Answer(Err(RequestError::new(
                ErrorClass::Overloaded,
                "overloaded",
                message,
            )));
        }
        let queue = push.queue.id;
        let known = self.machine.queue(queue);
        let rider = match known {
            Some(row) if row.version >= push.queue.version => None,
            _ => Some((*push.queue).clone()),
        };
        let mut command = Push {
            request: push.request,
            queue,
            lane: push.lane.to_string(),
            rider,
            items: Vec::new(),
            block: Block::default(),
        };
        if self.is_repeat(command.request.as_ref()) {
            // The kept answer stands in the machine, or will when this entry is applied.
            return Plan::Propose(Command::Push(command));
        }
        let window = rider_window(known, &push.queue);
        let items = self.plan_items(&push.items, queue, &push.lane, window, draft);
        match items {
            Ok(items) => command.items = items,
            Err(error) => return Plan::Answer(Err(error)),
        }
        let stored = command.items.iter().all(|item| matches!(item, PushItem::Store));
        command.block = if stored {
            draft.put_block(&push.block)
        } else {
            draft.put_block(&stored_frames(&push.block, &push.items, &command.items))
        };
        if let Some(request) = &command.request {
            self.overlay.add_request(request);
        }
        Plan::Propose(Command::Push(command))
    }

    fn is_repeat(&self, request: Option<&RequestKey>) -> bool {
        request.is_some_and(|key| self.machine.kept_answer(key).is_some() || self.overlay.in_flight(key))
    }

    fn plan_items(
        &mut self,
        asked: &[PushAskItem],
        queue: laneway_core::ids::QueueId,
        lane: &std::sync::Arc<str>,
        window_seconds: u64,
        draft: &mut Draft,
    ) -> Result<Vec<PushItem>, RequestError> {
        let lane_key = (queue, std::sync::Arc::clone(lane));
        let in_machine = || {
            let id = self.machine.lane_id(queue, lane)?;
            Some(self.machine.lane(id)?.tail.0)
        };
        let mut tail = self.overlay.tail(&lane_key).or_else(in_machine).unwrap_or(0);
        let wall = draft.stamps.wall;
        let not_before = WallTime(wall.0.saturating_sub(window_seconds.saturating_mul(1_000_000)));
        let mut items = Vec::with_capacity(asked.len());
        for item in asked {
            let decided = match (item.same_as, item.key) {
                (Some(earlier), _) => PushItem::DuplicateOfItem(earlier),
                (None, Some(key)) if window_seconds > 0 => match self.look_up(key, not_before)? {
                    Some((offset, wall)) => PushItem::DuplicateOf { offset, wall },
                    None => PushItem::Store,
                },
                (None, _) => PushItem::Store,
            };
            if matches!(decided, PushItem::Store) {
                if let Some(key) = item.key.filter(|_| window_seconds > 0) {
                    self.overlay.add_key(key, Offset(tail), wall);
                }
                tail += 1;
            }
            items.push(decided);
        }
        if items.iter().any(|item| matches!(item, PushItem::Store)) {
            self.overlay.set_tail(lane_key, tail);
        }
        Ok(items)
    }

    fn look_up(
        &self,
        key: laneway_storage::dedup::DedupKey,
        not_before: WallTime,
    ) -> Result<Option<(Offset, WallTime)>, RequestError> {
        if let Some(found) = self.overlay.stored(key) {
            return Ok(Some(found));
        }
        self.stores.dedup.get(key, not_before).map_err(|error| {
            tracing::error!(partition = %self.id, %error, "dedup rows are not readable");
            RequestError::new(
                ErrorClass::Internal,
                "internal",
                "transaction ids on disk cannot be read, so nothing was pushed; the node's log names the damage",
            )
        })
    }

    /// An empty claim is not proposed: idle polling writes nothing to the log.
    fn plan_claim(&mut self, ask: &ClaimAsk, draft: &Draft) -> Plan {
        let empty = |refusal: Option<Refusal>| {
            let nothing = Claimed {
                lease_id: LeaseId(0),
                lanes: Vec::new(),
            };
            Plan::Answer(Ok(refusal.map_or(Reply::Claimed(nothing), Reply::Refused)))
        };
        if self.machine.queue(ask.queue).is_none() {
            return empty(Some(Refusal::QueueGone));
        }
        if !self.machine.has_group(ask.queue, &ask.group) {
            return empty(Some(Refusal::GroupUnknown));
        }
        let lane: Option<LaneId> = match &ask.lane {
            None => None,
            Some(name) => match self.machine.lane_id(ask.queue, name) {
                Some(lane) => Some(lane),
                None => return empty(None),
            },
        };
        if !self.machine.claimable(ask.queue, &ask.group, lane, draft.stamps) {
            return empty(None);
        }
        Plan::Propose(Command::Claim(Claim {
            lease_id: ask
                .lease_id
                .unwrap_or_else(|| LeaseId::new(draft.stamps.wall, self.id, rand::random())),
            queue: ask.queue,
            group: ask.group.to_string(),
            lane,
            lanes_max: ask.lanes_max,
            messages_max: ask.messages_max,
            lease_ms: ask.lease_ms,
            // The gateway settles what it has read: settled here, a batch that cannot be read would be lost.
            auto_ack: false,
        }))
    }
}

/// The window that will hold when the push is applied.
fn rider_window(
    known: Option<&laneway_core::settings::QueueRow>,
    row: &laneway_core::settings::QueueRow,
) -> u64 {
    match known {
        Some(known) if known.version >= row.version => known.settings.dedup_window_seconds,
        _ => row.settings.dedup_window_seconds,
    }
}

/// The frames of the items that are stored.
fn stored_frames(block: &[u8], asked: &[PushAskItem], items: &[PushItem]) -> Vec<u8> {
    let mut frames = Vec::with_capacity(block.len());
    let mut at = 0;
    for (asked, item) in asked.iter().zip(items) {
        let end = at + asked.frame_bytes as usize;
        if matches!(item, PushItem::Store) {
            frames.extend_from_slice(&block[at..end]);
        }
        at = end;
    }
    frames
}
