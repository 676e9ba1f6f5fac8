//! A client that does one thing at a time and writes down what it asked and what it saw.
//!
//! It asks any node, and another one when it cannot connect; a node that broke off or kept silent is left alone for a while.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::Method;
use laneway_sim::oracle::history::{self, Op, Operation, Outcome, Reply};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::api;
use crate::http::{Answer, Call, CallError, Connection};
use crate::recorder::Recorder;

/// Pause after a call that could be sent to no node.
const NOT_SENT_PAUSE: Duration = Duration::from_millis(10);

/// A node to which a connection broke is left alone for so long, while there is another.
const BROKEN_PAUSE: Duration = Duration::from_millis(200);

/// A node that kept silent is left alone for so long, while there is another.
const SILENT_PAUSE: Duration = Duration::from_secs(4);

/// Codes of answers which say that nothing was done, whatever their status.
const DEFINITE: [&str; 4] = ["no_leader", "retry", "overloaded", "storage_full"];

/// Attempts of one logical request.
const ATTEMPTS_MAX: u32 = 4;

/// Whether clients may work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The broker should answer.
    Up,
    /// All of it was killed and is not ready again.
    Down,
    /// The load is over.
    Ending,
}

/// A node that can be asked.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    pub(crate) node: u16,
    pub(crate) authority: Arc<str>,
}

/// What all clients of a run share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) recorder: Recorder,
    pub(crate) nodes: Vec<Address>,
    pub(crate) phase: watch::Receiver<Phase>,
    pub(crate) seed: u64,
    /// Longest wait for an answer, beyond the time that a pop asks to be parked.
    pub(crate) deadline: Duration,
}

/// How an attempt ended for its client.
#[derive(Debug)]
pub(crate) enum Attempt<T> {
    /// Answered with success.
    Done(T),
    /// Surely without effect.
    Refused,
    /// Maybe with effect.
    Unknown,
    /// Never left; not in the history.
    NotSent,
}

/// One client; it has a number of its own and one connection to each node.
#[derive(Debug)]
pub(crate) struct Client {
    number: u32,
    links: Vec<Link>,
    deadline: Duration,
    pub(crate) shared: Arc<Shared>,
    phase: watch::Receiver<Phase>,
    pub(crate) rng: StdRng,
    requests: u64,
}

/// A client's way to one node.
#[derive(Debug)]
struct Link {
    node: u16,
    connection: Connection,
    alone_until: Option<Instant>,
}

impl Link {
    fn leave_alone(&mut self, pause: Duration) {
        self.alone_until = Some(Instant::now() + pause);
    }
}

/// An attempt before its answer is understood.
pub(crate) struct Sent {
    node: u16,
    invoked: u64,
    pub(crate) returned: u64,
    pub(crate) result: Result<Bytes, Failure>,
}

/// Why a 2xx answer is no success for one operation.
#[derive(Clone, Debug)]
pub(crate) enum NoReply {
    /// It says that this part was refused.
    Refused(String),
    /// It says that nobody knows.
    Unknown(String),
    /// It breaks the wire contract; the outcome counts as unknown, the breach as a fault of the run.
    Odd(String),
}

/// Why an attempt gave no success.
#[derive(Debug)]
pub(crate) enum Failure {
    NotSent,
    Refused(String),
    Unknown(String),
}

impl Client {
    pub(crate) fn new(number: u32, shared: Arc<Shared>) -> Self {
        let seed = shared
            .seed
            .wrapping_mul(1_000_003)
            .wrapping_add(u64::from(number));
        let link = |address: &Address| Link {
            node: address.node,
            connection: Connection::new(Arc::clone(&address.authority)),
            alone_until: None,
        };
        Self {
            number,
            links: shared.nodes.iter().map(link).collect(),
            deadline: shared.deadline,
            phase: shared.phase.clone(),
            shared,
            rng: StdRng::seed_from_u64(seed),
            requests: 0,
        }
    }

    /// One that asks only this node.
    pub(crate) fn at_node(mut self, node: u16) -> Self {
        self.links.retain(|link| link.node == node);
        self
    }

    /// One that asks any other node.
    pub(crate) fn not_at_node(mut self, node: u16) -> Self {
        self.links.retain(|link| link.node != node);
        self
    }

    /// One that waits no longer than this for an answer.
    pub(crate) fn within(mut self, deadline: Duration) -> Self {
        self.wait_at_most(deadline);
        self
    }

    /// From now on.
    pub(crate) fn wait_at_most(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// True with this probability.
    pub(crate) fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }

    /// A random pause between two bounds in milliseconds.
    pub(crate) async fn pause(&mut self, from_ms: u64, to_ms: u64) {
        let pause = self.rng.random_range(from_ms..=to_ms);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }

    /// Waits until the broker should answer; false when the load is over.
    pub(crate) async fn may_work(&mut self) -> bool {
        match self.phase.wait_for(|phase| *phase != Phase::Down).await {
            Ok(phase) => *phase == Phase::Up,
            Err(_) => false,
        }
    }

    /// Ids given so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests
    }

    /// A new id for a logical request.
    pub(crate) fn request_id(&mut self) -> String {
        self.requests += 1;
        format!("chaos-{}-{}", self.number, self.requests)
    }

    /// Sends a GET, POST or DELETE; `wait_ms` is how long the broker may park it.
    pub(crate) async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
        request_id: Option<&str>,
        wait_ms: u64,
    ) -> Sent {
        let deadline = self.deadline + Duration::from_millis(wait_ms);
        let call = Call {
            method,
            path,
            body,
            request_id,
            deadline,
        };
        let first = self.first_link();
        let count = self.links.len();
        for turn in 0..count {
            let link = &mut self.links[(first + turn) % count];
            let invoked = self.shared.recorder.now();
            let result = link.connection.call(call.clone()).await;
            let returned = self.shared.recorder.now();
            match &result {
                Ok(_) => {}
                Err(CallError::NotSent(_)) => {
                    link.leave_alone(BROKEN_PAUSE);
                    continue;
                }
                Err(CallError::Broken(_)) => link.leave_alone(BROKEN_PAUSE),
                Err(CallError::Silent(_)) => link.leave_alone(SILENT_PAUSE),
            }
            return Sent {
                node: link.node,
                invoked,
                returned,
                result: self.classify(path, result),
            };
        }
        tokio::time::sleep(NOT_SENT_PAUSE).await;
        let now = self.shared.recorder.now();
        Sent {
            node: 0,
            invoked: now,
            returned: now,
            result: Err(Failure::NotSent),
        }
    }

    /// Any node, but rather one that was well the last time.
    fn first_link(&mut self) -> usize {
        let now = Instant::now();
        let well: Vec<usize> = (0..self.links.len())
            .filter(|at| self.links[*at].alone_until.is_none_or(|until| until <= now))
            .collect();
        match well.len() {
            0 => self.rng.random_range(0..self.links.len()),
            count => well[self.rng.random_range(0..count)],
        }
    }

    /// A call that is no operation of the history, to the first node that can be reached.
    pub(crate) async fn raw(&mut self, call: Call<'_>) -> Result<Answer, CallError> {
        let mut last = CallError::NotSent("there is no node".to_owned());
        for link in &mut self.links {
            match link.connection.call(call.clone()).await {
                Err(error @ CallError::NotSent(_)) => last = error,
                answered => return answered,
            }
        }
        Err(last)
    }

    /// Reads the body of a success.
    pub(crate) fn read<T: DeserializeOwned>(&self, what: &str, body: &Bytes) -> Result<T, NoReply> {
        serde_json::from_slice(body).map_err(|error| {
            let shown = String::from_utf8_lossy(&body[..body.len().min(300)]);
            NoReply::Odd(format!("{what}: {error} in {shown}"))
        })
    }

    /// Writes one operation of an attempt into the history; `reply` is asked only for a success.
    pub(crate) fn record(
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
            node: sent.node.into(),
            invoked: sent.invoked,
            returned: sent.returned,
            outcome,
        });
        attempt
    }

    /// Writes the harness's own statement that a group is drained.
    pub(crate) fn record_drained(&self, queue: &str, group: &str, from_beginning: bool) {
        let now = self.shared.recorder.now();
        self.shared.recorder.operation(Operation {
            client: self.number,
            op: Op::Drained {
                queue: queue.to_owned(),
                group: group.to_owned(),
                from_beginning,
            },
            request_id: None,
            node: 0,
            invoked: now,
            returned: now,
            outcome: Outcome::Ok(Reply::Drained),
        });
    }

    /// Whether to send a request again whose outcome is unknown: most clients do, some give up. Waits for the broker.
    pub(crate) async fn again(&mut self, attempts: u32) -> bool {
        attempts < ATTEMPTS_MAX && self.chance(85) && self.may_work().await
    }

    fn classify(&self, path: &str, result: Result<Answer, CallError>) -> Result<Bytes, Failure> {
        let answer = match result {
            Err(CallError::NotSent(_)) => return Err(Failure::NotSent),
            Err(CallError::Broken(why) | CallError::Silent(why)) => return Err(Failure::Unknown(why)),
            Ok(answer) => answer,
        };
        match answer.status {
            200..=299 => Ok(answer.body),
            404 | 429 => Err(Failure::Refused(answer.brief())),
            400..=499 => {
                self.shared.recorder.fault(format!("{path}: {}", answer.brief()));
                Err(Failure::Refused(answer.brief()))
            }
            503 | 507 if is_definite(&answer.body) => Err(Failure::Refused(answer.brief())),
            _ => Err(Failure::Unknown(answer.brief())),
        }
    }
}

/// Whether a failure's code says that nothing was done.
pub(crate) fn is_definite(body: &[u8]) -> bool {
    let failure: Result<api::Failure, _> = serde_json::from_slice(body);
    failure.is_ok_and(|failure| definite_code(&failure.code))
}

/// Whether a code says that nothing was done.
pub(crate) fn definite_code(code: &str) -> bool {
    DEFINITE.contains(&code)
}

/// The history's word for a status, and the wire's.
pub(crate) fn status_word(status: history::AckStatus) -> &'static str {
    match status {
        history::AckStatus::Completed => "completed",
        history::AckStatus::Retry => "retry",
        history::AckStatus::Failed => "failed",
        history::AckStatus::Dlq => "dlq",
    }
}
