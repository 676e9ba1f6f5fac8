//! A client that does one thing at a time and writes down what it asked and what it saw.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use laneway_sim::oracle::history::{self, Op, Operation, Outcome, Reply};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::http::{Answer, Call, CallError, Connection};
use crate::recorder::Recorder;

/// Longest wait for an answer, beyond the time that a pop asks to be parked.
const DEADLINE: Duration = Duration::from_secs(10);

/// Pause after a call that could not even be sent.
const NOT_SENT_PAUSE: Duration = Duration::from_millis(5);

/// Attempts of one logical request.
const ATTEMPTS_MAX: u32 = 4;

/// The only node.
const NODE: u64 = 1;

/// Whether clients may work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The broker should answer.
    Up,
    /// It was killed and is not ready again.
    Down,
    /// The load is over.
    Ending,
}

/// What all clients of a run share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) recorder: Recorder,
    pub(super) authority: Arc<str>,
    pub(super) phase: watch::Receiver<Phase>,
    pub(super) seed: u64,
}

/// How an attempt ended for its client.
#[derive(Debug)]
pub(super) enum Attempt<T> {
    /// Answered with success.
    Done(T),
    /// Surely without effect.
    Refused,
    /// Maybe with effect.
    Unknown,
    /// Never left; not in the history.
    NotSent,
}

/// One client; it has a number of its own and one connection.
#[derive(Debug)]
pub(super) struct Client {
    number: u32,
    connection: Connection,
    pub(super) shared: Arc<Shared>,
    phase: watch::Receiver<Phase>,
    pub(super) rng: StdRng,
    requests: u64,
}

/// An attempt before its answer is understood.
pub(super) struct Sent {
    invoked: u64,
    returned: u64,
    pub(super) result: Result<Bytes, Failure>,
}

impl Sent {
    /// A call over several parts that was refused as a whole may have carried out some of them.
    pub(super) fn over(mut self, parts: usize) -> Self {
        if parts > 1
            && let Err(Failure::Refused(why)) = self.result
        {
            self.result = Err(Failure::Unknown(why));
        }
        self
    }
}

/// Why a 2xx answer is no success for one operation.
#[derive(Clone, Debug)]
pub(super) enum NoReply {
    /// It says that this part was refused.
    Refused(String),
    /// It says that nobody knows.
    Unknown(String),
    /// It breaks the wire contract; the outcome counts as unknown, the breach as a fault of the run.
    Odd(String),
}

/// Why an attempt gave no success.
#[derive(Debug)]
pub(super) enum Failure {
    NotSent,
    Refused(String),
    Unknown(String),
}

impl Client {
    pub(super) fn new(number: u32, shared: Arc<Shared>) -> Self {
        let seed = shared
            .seed
            .wrapping_mul(1_000_003)
            .wrapping_add(u64::from(number));
        Self {
            number,
            connection: Connection::new(Arc::clone(&shared.authority)),
            phase: shared.phase.clone(),
            shared,
            rng: StdRng::seed_from_u64(seed),
            requests: 0,
        }
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// True with this probability.
    pub(super) fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }

    /// A random pause between two bounds in milliseconds.
    pub(super) async fn pause(&mut self, from_ms: u64, to_ms: u64) {
        let pause = self.rng.random_range(from_ms..=to_ms);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }

    /// Waits until the broker should answer; false when the load is over.
    pub(super) async fn may_work(&mut self) -> bool {
        match self.phase.wait_for(|phase| *phase != Phase::Down).await {
            Ok(phase) => *phase == Phase::Up,
            Err(_) => false,
        }
    }

    /// A new id for a logical request.
    pub(super) fn request_id(&mut self) -> String {
        self.requests += 1;
        format!("chaos-{}-{}", self.number, self.requests)
    }

    /// Sends a GET, POST or DELETE; `wait_ms` is how long the broker may park it.
    pub(super) async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
        request_id: Option<&str>,
        wait_ms: u64,
    ) -> Sent {
        let deadline = DEADLINE + Duration::from_millis(wait_ms);
        let invoked = self.shared.recorder.now();
        let result = self
            .connection
            .call(Call {
                method,
                path,
                body,
                request_id,
                deadline,
            })
            .await;
        let returned = self.shared.recorder.now();
        if matches!(result, Err(CallError::NotSent(_))) {
            tokio::time::sleep(NOT_SENT_PAUSE).await;
        }
        Sent {
            invoked,
            returned,
            result: self.classify(path, result),
        }
    }

    /// A call that is no operation of the history.
    pub(super) async fn raw(&mut self, call: Call<'_>) -> Result<Answer, CallError> {
        self.connection.call(call).await
    }

    /// Reads the body of a success.
    pub(super) fn read<T: DeserializeOwned>(&self, what: &str, body: &Bytes) -> Result<T, NoReply> {
        serde_json::from_slice(body).map_err(|error| {
            let shown = String::from_utf8_lossy(&body[..body.len().min(300)]);
            NoReply::Odd(format!("{what}: {error} in {shown}"))
        })
    }

    /// Writes one operation of an attempt into the history; `reply` is asked only for a success.
    pub(super) fn record(
        &self,
        op: Op,
        request_id: Option<&str>,
        sent: &Sent,
        reply: impl FnOnce(&Bytes) -> Result<Reply, NoReply>,
    ) -> Attempt<Reply> {
        let (outcome, attempt) = match &sent.result {
            Err(Failure::NotSent) => return Attempt::NotSent,
            Err(Failure::Refused(why)) => (Outcome::Refused(why.clone()), Attempt::Refused),
            Err(Failure::Unknown(why)) => (Outcome::Unknown(why.clone()), Attempt::Unknown),
            Ok(body) => match reply(body) {
                Ok(reply) => (Outcome::Ok(reply.clone()), Attempt::Done(reply)),
                Err(NoReply::Refused(why)) => (Outcome::Refused(why), Attempt::Refused),
                Err(NoReply::Unknown(why)) => (Outcome::Unknown(why), Attempt::Unknown),
                Err(NoReply::Odd(why)) => {
                    self.shared.recorder.fault(why.clone());
                    (Outcome::Unknown(why), Attempt::Unknown)
                }
            },
        };
        self.shared.recorder.operation(Operation {
            client: self.number,
            op,
            request_id: request_id.map(str::to_owned),
            node: NODE,
            invoked: sent.invoked,
            returned: sent.returned,
            outcome,
        });
        attempt
    }

    /// Writes the harness's own statement that a group is drained.
    pub(super) fn record_drained(&self, queue: &str, group: &str, from_beginning: bool) {
        let now = self.shared.recorder.now();
        self.shared.recorder.operation(Operation {
            client: self.number,
            op: Op::Drained {
                queue: queue.to_owned(),
                group: group.to_owned(),
                from_beginning,
            },
            request_id: None,
            node: NODE,
            invoked: now,
            returned: now,
            outcome: Outcome::Ok(Reply::Drained),
        });
    }

    /// Whether to send a request again whose outcome is unknown: most clients do, some give up. Waits for the broker.
    pub(super) async fn again(&mut self, attempts: u32) -> bool {
        attempts < ATTEMPTS_MAX && self.chance(85) && self.may_work().await
    }

    fn classify(&self, path: &str, result: Result<Answer, CallError>) -> Result<Bytes, Failure> {
        match result {
            Err(CallError::NotSent(_)) => Err(Failure::NotSent),
            Err(CallError::NoAnswer(why)) => Err(Failure::Unknown(why)),
            Ok(answer) => match answer.status {
                200..=299 => Ok(answer.body),
                404 | 429 => Err(Failure::Refused(answer.brief())),
                400..=499 => {
                    self.shared.recorder.fault(format!("{path}: {}", answer.brief()));
                    Err(Failure::Refused(answer.brief()))
                }
                _ => Err(Failure::Unknown(answer.brief())),
            },
        }
    }
}

/// The history's word for a status, and the wire's.
pub(super) fn status_word(status: history::AckStatus) -> &'static str {
    match status {
        history::AckStatus::Completed => "completed",
        history::AckStatus::Retry => "retry",
        history::AckStatus::Failed => "failed",
        history::AckStatus::Dlq => "dlq",
    }
}
