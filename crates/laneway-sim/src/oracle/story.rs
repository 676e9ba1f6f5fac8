//! Hand-made histories: one queue `q` (retry limit 1, dedup window 60 s), one lane `l`, one group `g`, one node, one step after
//! the other.

use super::history::{
    AckItem, AckStatus, AckedItem, DeadLetterSeen, Delivery, History, Op, Operation, Outcome, Popped,
    PushedItem, QueueFacts, Replayed, Reply,
};
use super::judge;

/// Length of every lease.
pub(super) const LEASE_US: u64 = 10_000_000;

/// Every step takes so long.
const STEP_US: u64 = 1000;

pub(super) struct Story {
    history: History,
    now: u64,
    payloads: Vec<(String, u64)>,
}

/// The invariants that the oracle finds broken, each once.
pub(super) fn numbers(story: &Story) -> Vec<u8> {
    let mut numbers: Vec<u8> = judge(&story.history)
        .violations
        .iter()
        .map(|it| it.invariant)
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Nothing is wrong with it; what is, if something is.
pub(super) fn assert_sound(story: &Story) {
    assert_eq!(judge(&story.history).violations, Vec::new());
}

fn message_id(offset: u64) -> String {
    format!("message-{offset}")
}

impl Story {
    pub(super) fn new() -> Self {
        let queue = QueueFacts {
            name: "q".to_owned(),
            retry_limit: 1,
            keeps_dead_letters: true,
            dedup_window_seconds: 60,
        };
        let history = History {
            queues: vec![queue],
            ..History::default()
        };
        Self {
            history,
            now: 1000,
            payloads: Vec::new(),
        }
    }

    fn step(&mut self, op: Op, outcome: Outcome) -> &mut Self {
        let invoked = self.now;
        self.now += STEP_US;
        let returned = self.now;
        self.now += 1;
        let operation = Operation {
            client: 0,
            op,
            request_id: None,
            node: 1,
            invoked,
            returned,
            outcome,
        };
        self.history.operations.push(operation);
        self
    }

    pub(super) fn wait(&mut self, us: u64) -> &mut Self {
        self.now += us;
        self
    }

    /// The payload of a push is known by its offset, or else by the digit in its transaction id.
    fn push_with(&mut self, transaction_id: &str, payload_hash: u64, outcome: Outcome) -> &mut Self {
        self.payloads.push((transaction_id.to_owned(), payload_hash));
        self.step(Op::push("q", "l", Some(transaction_id), payload_hash), outcome)
    }

    fn pushed(transaction_id: &str, offset: u64, duplicate: bool) -> Outcome {
        let message_id = message_id(offset);
        let transaction_id = transaction_id.to_owned();
        Outcome::Ok(Reply::Pushed(vec![PushedItem {
            offset,
            message_id,
            transaction_id,
            duplicate,
        }]))
    }

    pub(super) fn push(&mut self, transaction_id: &str, offset: u64) -> &mut Self {
        self.push_with(
            transaction_id,
            offset,
            Self::pushed(transaction_id, offset, false),
        )
    }

    pub(super) fn push_duplicate(&mut self, transaction_id: &str, offset: u64) -> &mut Self {
        let payload = 1000 + self.now;
        self.step(
            Op::push("q", "l", Some(transaction_id), payload),
            Self::pushed(transaction_id, offset, true),
        )
    }

    pub(super) fn push_unknown(&mut self, transaction_id: &str) -> &mut Self {
        let payload = transaction_id[1..].parse().unwrap();
        self.push_with(transaction_id, payload, Outcome::Unknown("reset".to_owned()))
    }

    pub(super) fn push_refused(&mut self, transaction_id: &str) -> &mut Self {
        let payload = transaction_id[1..].parse().unwrap();
        self.push_with(transaction_id, payload, Outcome::Refused("no_leader".to_owned()))
    }

    fn popped(&mut self, lease_id: &str, messages: Vec<(u64, String, u64)>) -> &mut Self {
        let auto_ack = lease_id.is_empty();
        let op = Op::Pop {
            queue: "q".to_owned(),
            group: "g".to_owned(),
            lane: None,
            auto_ack,
            lease_ms: LEASE_US / 1000,
        };
        let delivery = |(offset, transaction_id, payload_hash)| Delivery {
            lane: "l".to_owned(),
            lane_id: "5".to_owned(),
            offset,
            message_id: message_id(offset),
            transaction_id,
            payload_hash,
            attempt: 1,
        };
        let messages = messages.into_iter().map(delivery).collect();
        self.step(
            op,
            Outcome::Ok(Reply::Popped(Popped {
                lease_id: lease_id.to_owned(),
                messages,
            })),
        )
    }

    /// A leased answer with what was pushed at these offsets.
    pub(super) fn pop(&mut self, lease_id: &str, offsets: &[u64]) -> &mut Self {
        let of_offset = |offset: &u64| {
            let pushed = self.payloads.iter().find(|(_, payload)| payload == offset);
            (*offset, pushed.map(|(id, _)| id.clone()).unwrap(), *offset)
        };
        let messages = offsets.iter().map(of_offset).collect();
        self.popped(lease_id, messages)
    }

    /// The same, asked of this lane only.
    pub(super) fn pop_lane(&mut self, lease_id: &str, offsets: &[u64]) -> &mut Self {
        self.pop(lease_id, offsets);
        let last = self.history.operations.last_mut();
        if let Some(Op::Pop { lane, .. }) = last.map(|operation| &mut operation.op) {
            *lane = Some("l".to_owned());
        }
        self
    }

    /// No answer came.
    pub(super) fn pop_unknown(&mut self) -> &mut Self {
        let op = Op::Pop {
            queue: "q".to_owned(),
            group: "g".to_owned(),
            lane: None,
            auto_ack: false,
            lease_ms: LEASE_US / 1000,
        };
        self.step(op, Outcome::Unknown("time-out".to_owned()))
    }

    pub(super) fn auto_pop(&mut self, offsets: &[u64]) -> &mut Self {
        self.pop("", offsets)
    }

    /// A leased answer with these (offset, transaction id, payload).
    pub(super) fn deliver(&mut self, lease_id: &str, messages: &[(u64, &str, u64)]) -> &mut Self {
        let messages = messages
            .iter()
            .map(|(offset, id, payload)| (*offset, (*id).to_owned(), *payload));
        self.popped(lease_id, messages.collect())
    }

    fn ack(
        &mut self,
        lease_id: &str,
        ids: &[&str],
        status: AckStatus,
        answer: Option<AckedItem>,
    ) -> &mut Self {
        let error = (status == AckStatus::Failed).then(|| "boom".to_owned());
        let item = |id: &&str| AckItem {
            transaction_id: (*id).to_owned(),
            status,
            error: error.clone(),
        };
        let op = Op::Ack {
            queue: "q".to_owned(),
            lane: "l".to_owned(),
            lane_id: "5".to_owned(),
            group: "g".to_owned(),
            lease_id: Some(lease_id.to_owned()),
            items: ids.iter().map(item).collect(),
        };
        let outcome = match answer {
            Some(answer) => Outcome::Ok(Reply::Acked(vec![answer; ids.len()])),
            None => Outcome::Unknown("time-out".to_owned()),
        };
        self.step(op, outcome)
    }

    fn done(lease_released: bool, dead_lettered: bool) -> Option<AckedItem> {
        Some(AckedItem {
            success: true,
            error: None,
            lease_released,
            dead_lettered,
            noop: false,
        })
    }

    /// Completes the whole batch.
    pub(super) fn complete(&mut self, lease_id: &str, ids: &[&str]) -> &mut Self {
        self.ack(lease_id, ids, AckStatus::Completed, Self::done(true, false))
    }

    /// Completes the first part of the batch.
    pub(super) fn complete_some(&mut self, lease_id: &str, ids: &[&str]) -> &mut Self {
        self.ack(lease_id, ids, AckStatus::Completed, Self::done(false, false))
    }

    pub(super) fn fail(&mut self, lease_id: &str, ids: &[&str]) -> &mut Self {
        self.ack(lease_id, ids, AckStatus::Failed, Self::done(true, false))
    }

    /// Fails, and the answer says that it was filed.
    pub(super) fn file(&mut self, lease_id: &str, ids: &[&str]) -> &mut Self {
        self.ack(lease_id, ids, AckStatus::Failed, Self::done(true, true))
    }

    pub(super) fn fail_unknown(&mut self, lease_id: &str, ids: &[&str]) -> &mut Self {
        self.ack(lease_id, ids, AckStatus::Failed, None)
    }

    pub(super) fn ack_unknown(&mut self, lease_id: &str, ids: &[&str]) -> &mut Self {
        self.ack(lease_id, ids, AckStatus::Completed, None)
    }

    pub(super) fn ack_refused(&mut self, lease_id: &str, ids: &[&str]) -> &mut Self {
        let error = Some("invalid or expired lease".to_owned());
        let refused = AckedItem {
            success: false,
            error,
            lease_released: false,
            dead_lettered: false,
            noop: false,
        };
        self.ack(lease_id, ids, AckStatus::Completed, Some(refused))
    }

    pub(super) fn extend(&mut self, lease_id: &str) -> &mut Self {
        let op = Op::Extend {
            lease_id: lease_id.to_owned(),
            lease_ms: LEASE_US / 1000,
        };
        self.step(op, Outcome::Ok(Reply::Extended(1)))
    }

    /// A listing with these (offset, transaction id, payload); the row of offset n is `row-n`.
    pub(super) fn listing(&mut self, rows: &[(u64, &str, u64)]) -> &mut Self {
        self.listing_as("row", rows)
    }

    pub(super) fn listing_as(&mut self, prefix: &str, rows: &[(u64, &str, u64)]) -> &mut Self {
        let row = |(offset, transaction_id, payload_hash): &(u64, &str, u64)| DeadLetterSeen {
            id: format!("{prefix}-{offset}"),
            queue: "q".to_owned(),
            lane: "l".to_owned(),
            lane_id: "5".to_owned(),
            group: "g".to_owned(),
            offset: *offset,
            transaction_id: (*transaction_id).to_owned(),
            payload_hash: *payload_hash,
            reason: "boom".to_owned(),
            retries_used: 1,
        };
        let op = Op::ListDeadLetters {
            queue: "q".to_owned(),
        };
        self.step(
            op,
            Outcome::Ok(Reply::DeadLetters(rows.iter().map(row).collect())),
        )
    }

    pub(super) fn replay(&mut self, id: &str, offset: u64) -> &mut Self {
        let replayed = Replayed {
            queue: "q".to_owned(),
            lane: "l".to_owned(),
            offset,
            message_id: message_id(offset),
            transaction_id: format!("dlq:{id}"),
        };
        self.step(
            Op::Replay {
                dead_letter_id: id.to_owned(),
            },
            Outcome::Ok(Reply::Replayed(replayed)),
        )
    }

    pub(super) fn delete(&mut self, id: &str) -> &mut Self {
        let op = Op::DeleteDeadLetter {
            dead_letter_id: id.to_owned(),
        };
        self.step(op, Outcome::Ok(Reply::DeadLetterDeleted))
    }

    pub(super) fn drained(&mut self) -> &mut Self {
        let op = Op::Drained {
            queue: "q".to_owned(),
            group: "g".to_owned(),
            from_beginning: true,
        };
        self.step(op, Outcome::Ok(Reply::Drained))
    }
}
