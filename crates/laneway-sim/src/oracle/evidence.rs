//! A history, indexed: who pushed, got and settled what, and between which moments.

mod acks;
mod earliest;
mod holds;

use std::collections::{BTreeMap, BTreeSet, HashMap};

pub(super) use self::acks::AckFact;
pub(super) use self::earliest::Earliest;
pub(super) use self::holds::Hold;

use super::Violation;
use super::history::{
    DeadLetterSeen, Delivery, History, Op, Operation, Outcome, QueueFacts, Replayed, Reply,
};

/// Transaction ids of replayed dead letters start with it.
pub(super) const REPLAY_PREFIX: &str = "dlq:";

/// Queue mode's group: it always starts at the beginning.
pub(super) const QUEUE_MODE: &str = "__QUEUE_MODE__";

/// A lane by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct LaneKey<'a> {
    pub(super) queue: &'a str,
    pub(super) lane: &'a str,
}

/// A group on a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct GroupKey<'a> {
    pub(super) lane: LaneKey<'a>,
    pub(super) group: &'a str,
}

/// What became of one pushed item in one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PushFate<'a> {
    Stored {
        offset: u64,
        message_id: &'a str,
        transaction_id: &'a str,
    },
    Duplicate {
        offset: u64,
        message_id: &'a str,
        transaction_id: &'a str,
    },
    Refused,
    Unknown,
}

/// One item of one attempt to push.
#[derive(Clone, Copy, Debug)]
pub(super) struct PushFact<'a> {
    pub(super) op: usize,
    pub(super) lane: LaneKey<'a>,
    pub(super) transaction_id: Option<&'a str>,
    pub(super) payload_hash: u64,
    pub(super) fate: PushFate<'a>,
    /// Not before this: when the first attempt with its request id began.
    pub(super) invoked: u64,
    pub(super) returned: u64,
}

/// One message in one answer of a pop.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeliveryFact<'a> {
    pub(super) op: usize,
    pub(super) to: GroupKey<'a>,
    pub(super) message: &'a Delivery,
    pub(super) auto_ack: bool,
    pub(super) invoked: u64,
    pub(super) returned: u64,
}

/// One row of one listing.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowFact<'a> {
    pub(super) op: usize,
    pub(super) row: &'a DeadLetterSeen,
    pub(super) invoked: u64,
    pub(super) returned: u64,
}

/// An attempt to replay or delete a dead letter, unless it was refused.
#[derive(Clone, Copy, Debug)]
pub(super) struct RemovalFact<'a> {
    pub(super) op: usize,
    pub(super) id: &'a str,
    pub(super) request_id: Option<&'a str>,
    pub(super) replay: bool,
    /// It surely happened.
    pub(super) known: bool,
    pub(super) replayed: Option<&'a Replayed>,
    pub(super) returned: u64,
}

/// A group that read from the beginning, and has met and settled all.
#[derive(Clone, Copy, Debug)]
pub(super) struct DrainedFact<'a> {
    pub(super) op: usize,
    pub(super) group: &'a str,
    pub(super) invoked: u64,
}

/// The index.
pub(super) struct Evidence<'a> {
    pub(super) operations: &'a [Operation],
    pub(super) queues: BTreeMap<&'a str, &'a QueueFacts>,
    pub(super) pushes: Vec<PushFact<'a>>,
    /// In the order of the operations, then of each answer.
    pub(super) deliveries: Vec<DeliveryFact<'a>>,
    /// Positions in `deliveries`.
    pub(super) deliveries_to: BTreeMap<GroupKey<'a>, Vec<usize>>,
    /// The same by lease.
    deliveries_under: HashMap<(GroupKey<'a>, &'a str), Vec<usize>>,
    /// Pops under `auto_ack` with unknown outcome, by queue, group and the lane that they are pinned to.
    lost_pops: BTreeSet<(&'a str, &'a str, Option<&'a str>)>,
    pub(super) acks: Vec<AckFact<'a>>,
    /// Positions in `acks`.
    pub(super) acks_of: BTreeMap<GroupKey<'a>, Vec<usize>>,
    /// The same by lease; `None` for bare ones.
    acks_under: HashMap<(GroupKey<'a>, Option<&'a str>), Vec<usize>>,
    /// The same by lease and first transaction id, and by request id.
    acks_alike: HashMap<(GroupKey<'a>, Option<&'a str>, &'a str), Vec<usize>>,
    acks_requested: HashMap<&'a str, Vec<usize>>,
    /// When each answer that delivers to a group came: by when its pop began.
    answers_to: BTreeMap<GroupKey<'a>, Earliest>,
    pub(super) holds: Vec<Hold<'a>>,
    /// Positions in `holds`, in the order in which the answers came.
    pub(super) holds_of: BTreeMap<GroupKey<'a>, Vec<usize>>,
    pub(super) rows: Vec<RowFact<'a>>,
    /// The last successful listing of each queue: when it began, and the operation.
    last_listings: BTreeMap<&'a str, (u64, usize)>,
    pub(super) removals: Vec<RemovalFact<'a>>,
    /// Drained groups that read from the beginning, by queue.
    drained: BTreeMap<&'a str, Vec<DrainedFact<'a>>>,
    /// Every offset at which a transaction id was seen in a lane, ascending.
    offsets: HashMap<(LaneKey<'a>, &'a str), Vec<u64>>,
    first_invoked: HashMap<&'a str, u64>,
}

impl<'a> Evidence<'a> {
    pub(super) fn new(history: &'a History) -> Self {
        let mut evidence = Self {
            operations: &history.operations,
            queues: history
                .queues
                .iter()
                .map(|facts| (facts.name.as_str(), facts))
                .collect(),
            pushes: Vec::new(),
            deliveries: Vec::new(),
            deliveries_to: BTreeMap::new(),
            deliveries_under: HashMap::new(),
            lost_pops: BTreeSet::new(),
            acks: Vec::new(),
            acks_of: BTreeMap::new(),
            acks_under: HashMap::new(),
            acks_alike: HashMap::new(),
            acks_requested: HashMap::new(),
            answers_to: BTreeMap::new(),
            holds: Vec::new(),
            holds_of: BTreeMap::new(),
            rows: Vec::new(),
            last_listings: BTreeMap::new(),
            removals: Vec::new(),
            drained: BTreeMap::new(),
            offsets: HashMap::new(),
            first_invoked: HashMap::new(),
        };
        evidence.note_attempts();
        for (op, operation) in history.operations.iter().enumerate() {
            evidence.note(op, operation);
        }
        for offsets in evidence.offsets.values_mut() {
            offsets.sort_unstable();
            offsets.dedup();
        }
        for (to, delivered) in &evidence.deliveries_to {
            let facts = delivered.iter().map(|&at| &evidence.deliveries[at]);
            let answers = facts
                .map(|fact| (fact.invoked, (fact.returned, fact.op)))
                .collect();
            evidence.answers_to.insert(*to, Earliest::new(answers));
        }
        evidence.note_acks();
        evidence.note_holds();
        evidence
    }

    fn note_attempts(&mut self) {
        for operation in self.operations {
            if let Some(id) = operation.request_id.as_deref() {
                let first = self.first_invoked.entry(id).or_insert(operation.invoked);
                *first = operation.invoked.min(*first);
            }
        }
    }

    /// When the first attempt with the operation's request id began.
    pub(super) fn first_invoked(&self, operation: &Operation) -> u64 {
        let first = operation
            .request_id
            .as_deref()
            .and_then(|id| self.first_invoked.get(id));
        first.copied().unwrap_or(operation.invoked)
    }

    fn note(&mut self, op: usize, operation: &'a Operation) {
        let (invoked, returned) = (operation.invoked, operation.returned);
        let reply = match &operation.outcome {
            Outcome::Ok(reply) => Some(reply),
            Outcome::Refused(_) | Outcome::Unknown(_) => None,
        };
        let refused = matches!(operation.outcome, Outcome::Refused(_));
        match &operation.op {
            Op::Push { .. } => self.note_push(op, operation),
            Op::Pop { .. } if refused => {}
            Op::Pop { .. } => self.note_pop(op, operation),
            Op::ListDeadLetters { queue } => {
                if let Some(Reply::DeadLetters(rows)) = reply {
                    let last = self.last_listings.entry(queue).or_insert((invoked, op));
                    *last = (invoked, op).max(*last);
                    self.rows.extend(rows.iter().map(|row| RowFact {
                        op,
                        row,
                        invoked,
                        returned,
                    }));
                }
            }
            Op::Replay { dead_letter_id: id } | Op::DeleteDeadLetter { dead_letter_id: id } if !refused => {
                let replay = matches!(operation.op, Op::Replay { .. });
                let replayed = match reply {
                    Some(Reply::Replayed(replayed)) => Some(replayed),
                    _ => None,
                };
                if let Some(to) = replayed {
                    let lane = LaneKey {
                        queue: &to.queue,
                        lane: &to.lane,
                    };
                    self.offsets
                        .entry((lane, &to.transaction_id))
                        .or_default()
                        .push(to.offset);
                }
                let request_id = operation.request_id.as_deref();
                let known = reply.is_some();
                self.removals.push(RemovalFact {
                    op,
                    id,
                    request_id,
                    replay,
                    known,
                    replayed,
                    returned,
                });
            }
            Op::Drained {
                queue,
                group,
                from_beginning: true,
            } if !refused => {
                self.drained
                    .entry(queue)
                    .or_default()
                    .push(DrainedFact { op, group, invoked });
            }
            Op::Ack { .. }
            | Op::Extend { .. }
            | Op::Replay { .. }
            | Op::DeleteDeadLetter { .. }
            | Op::Drained { .. } => {}
        }
    }

    fn note_push(&mut self, op: usize, operation: &'a Operation) {
        let Op::Push { queue, lane, items } = &operation.op else {
            return;
        };
        let lane = LaneKey { queue, lane };
        let answers = match &operation.outcome {
            Outcome::Ok(Reply::Pushed(answers)) => answers.as_slice(),
            _ => &[],
        };
        for (at, item) in items.iter().enumerate() {
            let fate = match (answers.get(at), &operation.outcome) {
                (_, Outcome::Refused(_)) => PushFate::Refused,
                (None, _) => PushFate::Unknown,
                (Some(answer), _) => {
                    self.offsets
                        .entry((lane, &answer.transaction_id))
                        .or_default()
                        .push(answer.offset);
                    let (offset, message_id) = (answer.offset, answer.message_id.as_str());
                    let transaction_id = answer.transaction_id.as_str();
                    if answer.duplicate {
                        PushFate::Duplicate {
                            offset,
                            message_id,
                            transaction_id,
                        }
                    } else {
                        PushFate::Stored {
                            offset,
                            message_id,
                            transaction_id,
                        }
                    }
                }
            };
            self.pushes.push(PushFact {
                op,
                lane,
                transaction_id: item.transaction_id.as_deref(),
                payload_hash: item.payload_hash,
                fate,
                invoked: self.first_invoked(operation),
                returned: operation.returned,
            });
        }
    }

    fn note_pop(&mut self, op: usize, operation: &'a Operation) {
        let Op::Pop {
            queue,
            group,
            lane,
            auto_ack,
            ..
        } = &operation.op
        else {
            return;
        };
        let (invoked, returned, auto_ack) = (operation.invoked, operation.returned, *auto_ack);
        let Outcome::Ok(Reply::Popped(popped)) = &operation.outcome else {
            if auto_ack {
                self.lost_pops.insert((queue, group, lane.as_deref()));
            }
            return;
        };
        for message in &popped.messages {
            let lane = LaneKey {
                queue,
                lane: &message.lane,
            };
            let to = GroupKey { lane, group };
            self.offsets
                .entry((lane, &message.transaction_id))
                .or_default()
                .push(message.offset);
            self.deliveries_to
                .entry(to)
                .or_default()
                .push(self.deliveries.len());
            let lease_id = popped.lease_id.as_str();
            self.deliveries_under
                .entry((to, lease_id))
                .or_default()
                .push(self.deliveries.len());
            self.deliveries.push(DeliveryFact {
                op,
                to,
                message,
                auto_ack,
                invoked,
                returned,
            });
        }
    }

    /// Every offset at which a transaction id was seen, ascending.
    pub(super) fn offsets_of(&self, lane: LaneKey<'a>, transaction_id: &'a str) -> &[u64] {
        self.offsets
            .get(&(lane, transaction_id))
            .map_or(&[], Vec::as_slice)
    }

    pub(super) fn facts(&self, queue: &str) -> Option<&'a QueueFacts> {
        self.queues.get(queue).copied()
    }

    /// Whether the group may have met and settled messages of the lane that no client saw: an unknown pop under `auto_ack`.
    pub(super) fn may_have_lost(&self, to: GroupKey<'_>) -> bool {
        let (queue, lane, group) = (to.lane.queue, to.lane.lane, to.group);
        let lost = |lane| self.lost_pops.contains(&(queue, group, lane));
        lost(None) || lost(Some(lane))
    }

    /// The first answer to the group that came from a pop begun after `moment`: when it came, and its operation.
    pub(super) fn next_answer(&self, to: GroupKey<'a>, moment: u64) -> Option<(u64, usize)> {
        self.answers_to.get(&to)?.at_or_after(moment.saturating_add(1))
    }

    /// The acks under one lease, or the bare ones.
    pub(super) fn acks_under<'s>(
        &'s self,
        of: GroupKey<'a>,
        lease_id: Option<&'a str>,
    ) -> impl Iterator<Item = &'s AckFact<'a>> + use<'a, 's> {
        self.acks_under
            .get(&(of, lease_id))
            .into_iter()
            .flatten()
            .map(|&at| &self.acks[at])
    }

    /// The other attempts at the same ack.
    pub(super) fn repeats_of<'s>(
        &'s self,
        ack: &'s AckFact<'a>,
    ) -> impl Iterator<Item = &'s AckFact<'a>> + use<'a, 's> {
        let alike = ack.items.first().and_then(|first| {
            self.acks_alike
                .get(&(ack.of, ack.lease_id, first.item.transaction_id.as_str()))
        });
        let requested = ack.request_id.and_then(|id| self.acks_requested.get(id));
        let others = alike
            .into_iter()
            .chain(requested)
            .flatten()
            .map(|&at| &self.acks[at]);
        others.filter(move |other| other.op != ack.op && other.repeats(ack))
    }

    /// The offset below which bare acks may have settled messages that were never delivered.
    pub(super) fn bare_acks_reach(&self, to: GroupKey<'a>) -> u64 {
        let acks = self.acks_of.get(&to).map_or(&[][..], Vec::as_slice);
        let bare = acks
            .iter()
            .map(|&at| &self.acks[at])
            .filter(|ack| ack.lease_id.is_none());
        bare.map(|ack| ack.settled_at_most).max().unwrap_or_default()
    }

    /// Groups of a queue that read from the beginning and have met all.
    pub(super) fn drained_of(&self, queue: &str) -> &[DrainedFact<'a>] {
        self.drained.get(queue).map_or(&[], Vec::as_slice)
    }

    /// The last successful listing of a queue's dead letters, if it began after `after`.
    pub(super) fn last_listing(&self, queue: &str, after: u64) -> Option<usize> {
        self.last_listings
            .get(queue)
            .filter(|(began, _)| *began >= after)
            .map(|(_, op)| *op)
    }
}

pub(super) fn violation(invariant: u8, operations: &[usize], what: String) -> Violation {
    Violation {
        invariant,
        what,
        operations: operations.to_vec(),
    }
}
