//! A broker without faults: the model, with payloads, dedup and transaction ids as a leader adds them.

use std::collections::BTreeMap;

use laneway_core::command::{
    Ack, AckItem, AckStatus, Block, Claim, Command, DeleteDeadLetter, Extend, Push, PushItem, PutQueue,
    RegisterGroup, ReplayDeadLetter, RequestKey,
};
use laneway_core::ids::{
    CatalogVersion, DeadLetterId, LaneId, LeaseId, MessageId, Offset, PartitionId, QueueId,
};
use laneway_core::reply::{AckedItem, DeadLetter, Reply};
use laneway_core::settings::{GroupRow, GroupStart, QueueRow, QueueSettings};
use laneway_core::time::{LeaseTime, Stamps, WallTime};
use laneway_sim::model::{Model, ModelLimits};
use laneway_sim::oracle::history::{self, Op, Outcome, QueueFacts};

pub(crate) const QUEUE: &str = "q";
pub(crate) const GROUPS: [&str; 2] = ["__QUEUE_MODE__", "g"];

const PARTITION: PartitionId = PartitionId(1);
const ID: QueueId = QueueId(1);

/// A fault that the broker has, now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// A push is answered but not stored.
    PushLost,
    /// A payload is read as its neighbour's.
    PayloadSwapped,
    /// The window forgets an id.
    DedupForgets,
    /// An ack is answered but has no effect.
    AckLost,
    /// Lease time jumps ahead.
    LeaseTimeJumps,
    /// The lease id of an ack is not looked at.
    LeaseUnchecked,
    /// The budget is spent one failure too early.
    BudgetShort,
    /// A replay leaves its row.
    RowStays,
    /// A row is dropped.
    RowLost,
}

/// A stored message.
#[derive(Clone)]
struct Stored {
    transaction_id: String,
    payload_hash: u64,
    wall: WallTime,
}

#[derive(Clone)]
pub(crate) struct Broker {
    model: Model,
    settings: QueueSettings,
    stored: BTreeMap<(LaneId, u64), Stored>,
    lanes: BTreeMap<String, LaneId>,
    leases: u64,
    /// What its lease time lags behind the clients' clock: it stands still while the broker is down.
    pub(crate) downtime: u64,
    fault: Fault,
    chances: u64,
    ahead: u64,
    listed: Vec<history::DeadLetterSeen>,
}

impl Broker {
    pub(crate) fn new(settings: QueueSettings, fault: Fault) -> Self {
        let limits = ModelLimits {
            lanes_max: 100,
            kept_answers_max: 1000,
            kept_answer_ms: 60_000,
            expire_max: 100,
        };
        let mut model = Model::new(PARTITION, limits);
        model.begin_entry(Stamps {
            lease: LeaseTime(0),
            wall: WallTime(0),
        });
        let row = QueueRow {
            id: ID,
            name: QUEUE.to_owned(),
            settings: settings.clone(),
            version: CatalogVersion(1),
            listed: true,
            created: WallTime(0),
        };
        model.apply(Command::PutQueue(PutQueue {
            row: row.clone(),
            version: CatalogVersion(1),
        }));
        for (version, name) in (2..).zip(GROUPS) {
            let version = CatalogVersion(version);
            let (name, registered) = (name.to_owned(), WallTime(0));
            let group = GroupRow {
                name,
                start: GroupStart::Beginning,
                registered,
                version,
            };
            model.apply(Command::RegisterGroup(RegisterGroup {
                queue: row.clone(),
                group,
                starts: Vec::new(),
            }));
        }
        let (stored, lanes) = (BTreeMap::new(), BTreeMap::new());
        Self {
            model,
            settings,
            stored,
            lanes,
            leases: 0,
            downtime: 0,
            fault,
            chances: 0,
            ahead: 0,
            listed: Vec::new(),
        }
    }

    pub(crate) fn facts(&self) -> QueueFacts {
        QueueFacts {
            name: QUEUE.to_owned(),
            retry_limit: self.settings.retry_limit + u32::from(self.fault == Fault::BudgetShort),
            keeps_dead_letters: self.settings.keeps_dead_letters(),
            dedup_window_seconds: self.settings.dedup_window_seconds,
        }
    }

    /// One chance in `sides` that the fault shows, if it is this one.
    fn shows(&mut self, fault: Fault, sides: u64) -> bool {
        self.chances += u64::from(self.fault == fault);
        self.fault == fault && self.chances.is_multiple_of(sides)
    }

    /// Carries out a call of a client at `now`.
    pub(crate) fn execute(&mut self, now: u64, op: &Op, request_id: Option<&str>) -> Outcome {
        if self.shows(Fault::LeaseTimeJumps, 30) {
            self.ahead += 900_000;
        }
        let lease = LeaseTime(now - self.downtime + self.ahead);
        self.model.begin_entry(Stamps {
            lease,
            wall: WallTime(now),
        });
        let undone = match op {
            Op::Push { .. } => self.shows(Fault::PushLost, 10),
            Op::Ack { .. } => self.shows(Fault::AckLost, 10),
            _ => false,
        };
        let before = undone.then(|| self.clone());
        let outcome = self.carry_out(op, request_id);
        if let Some(before) = before {
            *self = before;
        }
        outcome
    }

    fn carry_out(&mut self, op: &Op, request_id: Option<&str>) -> Outcome {
        let request = request_id.map(|id| RequestKey {
            id: id.to_owned(),
            part: 0,
            content: 0,
        });
        match op {
            Op::Push { lane, items, .. } => self.push(lane, items, request),
            Op::Pop {
                group,
                lane,
                auto_ack,
                lease_ms,
                ..
            } => self.pop(group, lane.as_deref(), *auto_ack, *lease_ms),
            Op::Ack {
                lane,
                group,
                lease_id,
                items,
                ..
            } => self.ack(lane, group, lease_id.as_deref(), items, request),
            Op::Extend { lease_id, lease_ms } => {
                let lease_id = lease_id.parse().expect("an id that the broker gave");
                let extend = Extend {
                    request,
                    lease_id,
                    lease_ms: *lease_ms,
                };
                let Reply::Extended(extended) = self.model.apply(Command::Extend(extend)).reply else {
                    panic!()
                };
                Outcome::Ok(history::Reply::Extended(
                    extended.map_or(0, |extended| extended.renewed),
                ))
            }
            Op::Replay { dead_letter_id } => self.replay(
                dead_letter_id.parse().expect("an id that the broker gave"),
                request,
            ),
            Op::DeleteDeadLetter { dead_letter_id } => {
                let id = dead_letter_id.parse().expect("an id that the broker gave");
                let delete = Command::DeleteDeadLetter(DeleteDeadLetter { request, id });
                match self.model.apply(delete).reply {
                    Reply::DeadLetterDeleted => Outcome::Ok(history::Reply::DeadLetterDeleted),
                    refused => Outcome::Refused(format!("{refused:?}")),
                }
            }
            Op::ListDeadLetters { .. } => {
                let rows = self.model.dump().dead_letters;
                let mut rows: Vec<_> = rows.iter().map(|row| self.row_seen(row)).collect();
                if self.fault == Fault::RowLost && !rows.is_empty() {
                    rows.remove(0);
                }
                if self.fault == Fault::RowStays {
                    self.listed.retain(|old| rows.iter().all(|row| row.id != old.id));
                    self.listed.extend(rows);
                    rows = self.listed.clone();
                }
                Outcome::Ok(history::Reply::DeadLetters(rows))
            }
            Op::Drained { .. } => Outcome::Ok(history::Reply::Drained),
        }
    }

    /// The newest message of the lane with that transaction id, if it opens a window that still lasts.
    fn duplicate_of(&self, lane: LaneId, transaction_id: &str) -> Option<PushItem> {
        let window = self.settings.dedup_window_seconds;
        let of_lane = self.stored.range((lane, 0)..=(lane, u64::MAX)).rev();
        let mut same = of_lane.filter(|(_, stored)| stored.transaction_id == transaction_id);
        let ((_, offset), stored) = same.next()?;
        let now = self.model.stamps().wall;
        let lasts = stored.wall.plus_seconds(window) > now;
        lasts.then_some(PushItem::DuplicateOf {
            offset: Offset(*offset),
            wall: stored.wall,
        })
    }

    fn push(&mut self, lane: &str, items: &[history::PushItem], request: Option<RequestKey>) -> Outcome {
        let mut plan: Vec<PushItem> = Vec::new();
        for (at, item) in items.iter().enumerate() {
            let id = item.transaction_id.as_deref();
            let earlier = items[..at]
                .iter()
                .position(|other| id.is_some() && other.transaction_id.as_deref() == id);
            let known = self.lanes.get(lane).copied().zip(id);
            let forgets = self.shows(Fault::DedupForgets, 3);
            let stored = known
                .filter(|_| !forgets)
                .and_then(|(lane, id)| self.duplicate_of(lane, id));
            let repeat = earlier.map(|at| PushItem::DuplicateOfItem(u32::try_from(at).expect("small")));
            plan.push(stored.or(repeat).unwrap_or(PushItem::Store));
        }
        let (lane_name, block) = (lane.to_owned(), Block::default());
        let push = Push {
            request,
            queue: ID,
            lane: lane_name,
            rider: None,
            items: plan,
            block,
        };
        let outcome = self.model.apply(Command::Push(push));
        let Reply::Pushed(pushed) = outcome.reply else {
            return Outcome::Refused(format!("{:?}", outcome.reply));
        };
        self.lanes.insert(lane.to_owned(), pushed.lane);
        let stored_now = !outcome.changes.is_empty();
        let mut answers = Vec::new();
        for (item, answer) in items.iter().zip(&pushed.items) {
            let message_id = MessageId::new(answer.wall, pushed.lane, answer.offset).to_string();
            let key = (pushed.lane, answer.offset.0);
            if stored_now && !answer.duplicate {
                let transaction_id = item.transaction_id.clone().unwrap_or_else(|| message_id.clone());
                let stored = Stored {
                    transaction_id,
                    payload_hash: item.payload_hash,
                    wall: answer.wall,
                };
                self.stored.insert(key, stored);
            }
            answers.push(history::PushedItem {
                offset: answer.offset.0,
                message_id,
                transaction_id: self.stored[&key].transaction_id.clone(),
                duplicate: answer.duplicate,
            });
        }
        Outcome::Ok(history::Reply::Pushed(answers))
    }

    fn pop(&mut self, group: &str, lane: Option<&str>, auto_ack: bool, lease_ms: u64) -> Outcome {
        self.leases += 1;
        let claim = Claim {
            lease_id: LeaseId::new(self.model.stamps().wall, PARTITION, self.leases),
            queue: ID,
            group: group.to_owned(),
            lane: lane.map(|name| self.lanes.get(name).copied().unwrap_or(LaneId(0))),
            lanes_max: 2,
            messages_max: 5,
            lease_ms: Some(lease_ms),
            auto_ack,
        };
        let Reply::Claimed(claimed) = self.model.apply(Command::Claim(claim)).reply else {
            panic!("not claimed")
        };
        let mut messages = Vec::new();
        for lane in &claimed.lanes {
            for offset in lane.offset_first.0..lane.batch_end.0 {
                let swapped = offset > 0 && self.shows(Fault::PayloadSwapped, 40);
                let payload_hash = self.stored[&(lane.lane, offset - u64::from(swapped))].payload_hash;
                let stored = &self.stored[&(lane.lane, offset)];
                messages.push(history::Delivery {
                    lane: lane.name.clone(),
                    lane_id: lane.lane.to_string(),
                    offset,
                    message_id: MessageId::new(stored.wall, lane.lane, Offset(offset)).to_string(),
                    transaction_id: stored.transaction_id.clone(),
                    payload_hash,
                    attempt: lane.attempt,
                });
            }
        }
        let leased = !auto_ack && !messages.is_empty();
        let lease_id = if leased {
            claimed.lease_id.to_string()
        } else {
            String::new()
        };
        Outcome::Ok(history::Reply::Popped(history::Popped { lease_id, messages }))
    }

    fn ack(
        &mut self,
        lane: &str,
        group: &str,
        lease_id: Option<&str>,
        items: &[history::AckItem],
        request: Option<RequestKey>,
    ) -> Outcome {
        let lane = self.lanes[lane];
        let lease_id = lease_id.filter(|_| !self.shows(Fault::LeaseUnchecked, 4));
        let of_lane = |id: &str| -> Vec<Offset> {
            let stored = self.stored.range((lane, 0)..=(lane, u64::MAX));
            let same = stored.filter(|(_, stored)| stored.transaction_id == id);
            same.map(|((_, offset), _)| Offset(*offset)).collect()
        };
        let item = |item: &history::AckItem| AckItem {
            status: match item.status {
                history::AckStatus::Completed => AckStatus::Completed,
                history::AckStatus::Retry => AckStatus::Retry,
                history::AckStatus::Failed => AckStatus::Failed,
                history::AckStatus::Dlq => AckStatus::DeadLetter,
            },
            candidates: of_lane(&item.transaction_id),
            transaction_id: Some(item.transaction_id.clone()),
            error: item.error.clone(),
        };
        let ack = Ack {
            request,
            lane,
            group: group.to_owned(),
            lease_id: lease_id.map(|id| id.parse().expect("an id that the broker gave")),
            items_hash: hash_of(items),
            items: items.iter().map(item).collect(),
        };
        let Reply::Acked(acked) = self.model.apply(Command::Ack(ack)).reply else {
            panic!("not acked")
        };
        let answer = |item: &AckedItem| {
            let refused = |text: &str| Some(text.to_owned());
            let error = match item {
                AckedItem::Done | AckedItem::DeadLettered | AckedItem::Noop => None,
                AckedItem::LeaseInvalid => refused("invalid or expired lease"),
                AckedItem::Unresolvable => refused("transaction is unresolvable"),
                AckedItem::LaneUnknown => refused("partition not found"),
                AckedItem::DeadLetterRejected => refused("dlq rejected"),
            };
            history::AckedItem {
                success: error.is_none(),
                lease_released: error.is_none() && acked.lease_released,
                dead_lettered: *item == AckedItem::DeadLettered,
                noop: *item == AckedItem::Noop,
                error,
            }
        };
        Outcome::Ok(history::Reply::Acked(acked.items.iter().map(answer).collect()))
    }

    fn replay(&mut self, id: DeadLetterId, request: Option<RequestKey>) -> Outcome {
        let replay = Command::ReplayDeadLetter(ReplayDeadLetter {
            request,
            id,
            block: Block::default(),
        });
        let outcome = self.model.apply(replay);
        let Reply::Replayed(replayed) = outcome.reply else {
            return Outcome::Refused(format!("{:?}", outcome.reply));
        };
        let transaction_id = format!("dlq:{id}");
        let payload_hash = self.stored[&(replayed.lane, replayed.dead_letter.offset.0)].payload_hash;
        if !outcome.changes.is_empty() {
            let stored = Stored {
                transaction_id: transaction_id.clone(),
                payload_hash,
                wall: replayed.wall,
            };
            self.stored.insert((replayed.lane, replayed.offset.0), stored);
        }
        Outcome::Ok(history::Reply::Replayed(history::Replayed {
            queue: QUEUE.to_owned(),
            lane: self.name_of(replayed.lane),
            offset: replayed.offset.0,
            message_id: MessageId::new(replayed.wall, replayed.lane, replayed.offset).to_string(),
            transaction_id,
        }))
    }

    fn name_of(&self, lane: LaneId) -> String {
        self.lanes
            .iter()
            .find(|(_, id)| **id == lane)
            .map(|(name, _)| name.clone())
            .expect("a lane that was pushed to")
    }

    fn row_seen(&self, row: &DeadLetter) -> history::DeadLetterSeen {
        let stored = &self.stored[&(row.lane, row.offset.0)];
        history::DeadLetterSeen {
            id: row.id.to_string(),
            queue: QUEUE.to_owned(),
            lane: self.name_of(row.lane),
            lane_id: row.lane.to_string(),
            group: row.group.clone(),
            offset: row.offset.0,
            transaction_id: stored.transaction_id.clone(),
            payload_hash: stored.payload_hash,
            reason: row.reason.clone(),
            retries_used: row.retries_used,
        }
    }
}

/// FNV-1a of the items as the client sent them.
fn hash_of(items: &[history::AckItem]) -> u128 {
    let step = |hash: u128, byte: &u8| {
        (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    };
    let text = format!("{items:?}");
    text.as_bytes()
        .iter()
        .fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, step)
}
