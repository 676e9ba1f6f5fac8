//! What clients did and saw: the only evidence that the checkers judge by.
//!
//! A history is written as JSON lines, one [`Record`] a line, in any order. Every time is in microseconds of one monotonic
//! clock, that of the harness. Rules for whoever writes one:
//!
//! * Payloads are unique over the whole history, and every payload is named by the same hash of its text.
//! * A queue is configured once, before its first use, and is neither deleted nor trimmed while an undrained group needs it.
//! * One HTTP request that spans several targets (lanes of a push; lane, group and lease of an ack) is one operation per
//!   target. Each attempt is an operation of its own; attempts of one logical request share their `request_id`.
//! * A target that is answered with `error` items is `Refused`; an answer that is not understood is `Unknown`.
//! * No transaction id that a client makes up starts with `dlq:`: those are the broker's, of replayed dead letters.
//! * Client numbers are never shared by two tasks: the operations of one client never overlap in time.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};

/// One line of a history file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(
    clippy::large_enum_variant,
    reason = "short-lived; nearly every record is an operation"
)]
pub enum Record {
    /// A queue as it was configured.
    Queue(QueueFacts),
    /// One attempt of one client.
    Operation(Operation),
    /// What a node said of the state of one group.
    Digest(DigestSeen),
    /// Something that the harness did (a kill, a restart): for people, not for checkers.
    Note(Note),
}

/// What the checkers must know of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueFacts {
    /// Its name.
    pub name: String,
    /// `retryLimit`.
    pub retry_limit: u32,
    /// `deadLetterQueue` or `dlqAfterMaxRetries`.
    pub keeps_dead_letters: bool,
    /// `dedupWindowSeconds`; 0 = no comparison with stored messages.
    pub dedup_window_seconds: u64,
}

/// The digest of one replica of one group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestSeen {
    /// When it was asked, in microseconds.
    pub at: u64,
    /// The node asked.
    pub node: u64,
    /// The group: a partition's number, or `catalog`.
    pub partition: String,
    /// Index of the last entry that the state holds.
    pub applied_index: u64,
    /// Of the whole state, in hex.
    pub digest: String,
}

/// A remark with its moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// When, in microseconds.
    pub at: u64,
    /// What.
    pub text: String,
}

/// One attempt of one client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Who; the operations of one client are sequential.
    pub client: u32,
    /// What was asked for.
    pub op: Op,
    /// `x-laneway-request-id`, when one was sent: all attempts under one id take effect at most once.
    #[serde(default)]
    pub request_id: Option<String>,
    /// The node asked; 0 for the harness's own statements.
    pub node: u64,
    /// Microseconds, read before the first byte was sent.
    pub invoked: u64,
    /// Microseconds, read after the answer's last byte, or when the client gave up.
    pub returned: u64,
    /// How it ended.
    pub outcome: Outcome,
}

/// How an attempt ended, as far as its client knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Answered with success (items may still be refused one by one).
    Ok(Reply),
    /// Surely without effect: rejected before it was proposed, or "not found".
    Refused(String),
    /// Time-out, reset, 5xx: it took effect once, or will, or never does.
    Unknown(String),
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// A push to one lane.
    Push {
        /// The queue.
        queue: String,
        /// The lane's name.
        lane: String,
        /// In request order.
        items: Vec<PushItem>,
    },
    /// A pop of one queue.
    Pop {
        /// The queue.
        queue: String,
        /// The group, `__QUEUE_MODE__` for none.
        group: String,
        /// The lane it is pinned to.
        #[serde(default)]
        lane: Option<String>,
        /// Settled at delivery, no lease.
        auto_ack: bool,
        /// Length of the lease in force: the one asked for, or else the queue's own.
        lease_ms: u64,
    },
    /// An ack of one target: lane, group, lease.
    Ack {
        /// The queue.
        queue: String,
        /// The lane's name.
        lane: String,
        /// The lane's id, as a pop showed it.
        lane_id: String,
        /// The group.
        group: String,
        /// The lease; `None` is a bare ack.
        #[serde(default)]
        lease_id: Option<String>,
        /// In request order.
        items: Vec<AckItem>,
    },
    /// A lease extension.
    Extend {
        /// The lease.
        lease_id: String,
        /// New length from now.
        lease_ms: u64,
    },
    /// A replay of one dead letter.
    Replay {
        /// Its row.
        dead_letter_id: String,
    },
    /// A deletion of one dead letter.
    DeleteDeadLetter {
        /// Its row.
        dead_letter_id: String,
    },
    /// A listing of dead letters, all pages.
    ListDeadLetters {
        /// The queue.
        queue: String,
    },
    /// The harness has popped and completed everything of this group, until pops gave nothing with no lease of anybody
    /// left and no fault going on. Written after the last such pop returned; nothing of the queue is pushed, popped, acked or
    /// replayed afterwards. A listing of its dead letters may follow.
    Drained {
        /// The queue.
        queue: String,
        /// The group.
        group: String,
        /// The group was registered with mode `all` (or is queue mode): it must have met every message.
        from_beginning: bool,
    },
}

/// One message to push.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushItem {
    /// `None`: the broker takes the message id.
    #[serde(default)]
    pub transaction_id: Option<String>,
    /// Hash of its payload.
    pub payload_hash: u64,
}

/// One message to settle or fail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AckItem {
    /// Its transaction id.
    pub transaction_id: String,
    /// What happened to it.
    pub status: AckStatus,
    /// Reason sent along.
    #[serde(default)]
    pub error: Option<String>,
}

/// Status word of an ack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AckStatus {
    /// Done.
    Completed,
    /// Redeliver, uncharged.
    Retry,
    /// Redeliver, charged.
    Failed,
    /// Dead-letter now.
    Dlq,
}

/// An answer of success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Of a push: one per item, in order.
    Pushed(Vec<PushedItem>),
    /// Of a pop; no messages when nothing was deliverable.
    Popped(Popped),
    /// Of an ack: one per item, in order.
    Acked(Vec<AckedItem>),
    /// Of an extension: how many leases were renewed; 0 when none lives.
    Extended(u32),
    /// Of a replay.
    Replayed(Replayed),
    /// Of a deletion that found its row.
    DeadLetterDeleted,
    /// Of a listing.
    DeadLetters(Vec<DeadLetterSeen>),
    /// Of [`Op::Drained`].
    Drained,
}

/// Answer for one pushed message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushedItem {
    /// Its offset, or that of the message stored before.
    pub offset: u64,
    /// Its message id, or that of the message stored before.
    pub message_id: String,
    /// Its transaction id.
    pub transaction_id: String,
    /// It was stored before.
    pub duplicate: bool,
}

/// Answer of a pop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Popped {
    /// Empty under `auto_ack` and when nothing was claimed.
    pub lease_id: String,
    /// In answer order: contiguous and in offset order for each lane.
    pub messages: Vec<Delivery>,
}

/// One delivered message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// Its lane's name.
    pub lane: String,
    /// Its lane's id.
    pub lane_id: String,
    /// Its offset.
    pub offset: u64,
    /// Its message id.
    pub message_id: String,
    /// Its transaction id.
    pub transaction_id: String,
    /// Hash of its payload.
    pub payload_hash: u64,
    /// `deliveryAttempt`.
    pub attempt: u32,
}

/// Answer for one ack item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AckedItem {
    /// Accepted.
    pub success: bool,
    /// Why not.
    #[serde(default)]
    pub error: Option<String>,
    /// The ack ended the lease.
    pub lease_released: bool,
    /// The target filed a dead letter, and this item carried a signal.
    pub dead_lettered: bool,
    /// Settled before.
    pub noop: bool,
}

/// Answer of a replay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replayed {
    /// The queue it went to.
    pub queue: String,
    /// The lane it went to.
    pub lane: String,
    /// Its new offset.
    pub offset: u64,
    /// Its new message id.
    pub message_id: String,
    /// Its new transaction id.
    pub transaction_id: String,
}

/// One row of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetterSeen {
    /// The row.
    pub id: String,
    /// The queue of its message.
    pub queue: String,
    /// The lane of its message.
    pub lane: String,
    /// That lane's id.
    pub lane_id: String,
    /// The group that failed it.
    pub group: String,
    /// Offset of its message.
    pub offset: u64,
    /// Transaction id of its message.
    pub transaction_id: String,
    /// Hash of the payload shown.
    pub payload_hash: u64,
    /// `errorMessage`.
    pub reason: String,
    /// `retryCount`.
    pub retries_used: u32,
}

impl Op {
    /// A push of one message.
    pub fn push(queue: &str, lane: &str, transaction_id: Option<&str>, payload_hash: u64) -> Self {
        let item = PushItem {
            transaction_id: transaction_id.map(str::to_owned),
            payload_hash,
        };
        Self::Push {
            queue: queue.to_owned(),
            lane: lane.to_owned(),
            items: vec![item],
        }
    }
}

/// A whole history, in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The queues.
    pub queues: Vec<QueueFacts>,
    /// The operations; checkers name them by their position here.
    pub operations: Vec<Operation>,
    /// Digests of replicas.
    pub digests: Vec<DigestSeen>,
    /// The remarks.
    pub notes: Vec<Note>,
}

/// Why a history file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file.
    #[error("cannot read the history: {0}")]
    Io(#[from] io::Error),
    /// A line that is no record.
    #[error("line {line} is no record: {source}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What serde said.
        source: serde_json::Error,
    },
}

impl History {
    /// Adds one record.
    pub fn add(&mut self, record: Record) {
        match record {
            Record::Queue(facts) => self.queues.push(facts),
            Record::Operation(operation) => self.operations.push(operation),
            Record::Digest(digest) => self.digests.push(digest),
            Record::Note(note) => self.notes.push(note),
        }
    }

    /// Reads JSON lines. A last line without its newline is left out if it is no record: its writer was killed.
    pub fn read(mut input: impl BufRead) -> Result<Self, ReadError> {
        let mut history = Self::default();
        let mut text = String::new();
        for line in 1.. {
            text.clear();
            if input.read_line(&mut text)? == 0 {
                break;
            }
            match serde_json::from_str(&text) {
                Ok(record) => history.add(record),
                Err(_) if !text.ends_with('\n') || text.trim().is_empty() => {}
                Err(source) => return Err(ReadError::Line { line, source }),
            }
        }
        Ok(history)
    }
}

impl Record {
    /// Writes itself as one line.
    pub fn write(&self, output: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut *output, self)?;
        output.write_all(b"\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_lines_come_back_and_a_cut_last_line_is_left_out() {
        let mut bytes = Vec::new();
        let facts = QueueFacts {
            name: "q".into(),
            retry_limit: 3,
            keeps_dead_letters: true,
            dedup_window_seconds: 60,
        };
        let operation = Operation {
            client: 7,
            op: Op::push("q", "l", Some("t"), 5),
            request_id: None,
            node: 1,
            invoked: 10,
            returned: 20,
            outcome: Outcome::Unknown("reset".into()),
        };
        Record::Queue(facts.clone()).write(&mut bytes).unwrap();
        Record::Operation(operation.clone()).write(&mut bytes).unwrap();
        bytes.extend_from_slice(b"{\"operation\":{\"cli");
        let history = History::read(bytes.as_slice()).unwrap();
        assert_eq!(history.queues, [facts]);
        assert_eq!(history.operations, [operation]);
    }

    #[test]
    fn a_bad_line_in_the_middle_is_named() {
        let text = b"\n{}\n{}\n";
        assert!(matches!(
            History::read(text.as_slice()),
            Err(ReadError::Line { line: 2, .. })
        ));
    }
}
