//! Waiting for the outcome of something proposed, so that "not done" and "maybe done" are never mixed up.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::admission::Permit;
use crate::api::{ErrorClass, RequestError};
use crate::options::NodeLimits;

/// Who waits for an answer of type `A`.
#[derive(Debug)]
pub(crate) struct Caller<A> {
    reply: oneshot::Sender<Result<A, RequestError>>,
    ticket: Arc<Ticket>,
    _permit: Option<Permit>,
}

/// The other end of a [`Caller`].
#[derive(Debug)]
pub(crate) struct Waiting<A> {
    answer: oneshot::Receiver<Result<A, RequestError>>,
    ticket: Arc<Ticket>,
}

/// How long to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    /// For the leader to take the request up.
    pub(crate) leader: Duration,
    /// For its outcome.
    pub(crate) outcome: Duration,
}

impl Waits {
    pub(crate) fn new(limits: &NodeLimits) -> Self {
        Self {
            leader: Duration::from_millis(limits.leader_wait_ms),
            outcome: Duration::from_millis(limits.outcome_wait_ms),
        }
    }
}

const WAITING: u8 = 0;
const TAKEN: u8 = 1;
const WITHDRAWN: u8 = 2;

/// Decides between "taken up" and "withdrawn": a time-out before proposing is then a definite refusal.
#[derive(Debug, Default)]
struct Ticket(AtomicU8);

impl Ticket {
    fn settle(&self, state: u8) -> bool {
        self.0
            .compare_exchange(WAITING, state, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

/// A caller and its waiting end.
pub(crate) fn caller<A>(permit: Option<Permit>) -> (Caller<A>, Waiting<A>) {
    let (reply, answer) = oneshot::channel();
    let ticket = Arc::new(Ticket::default());
    (
        Caller {
            reply,
            ticket: Arc::clone(&ticket),
            _permit: permit,
        },
        Waiting { answer, ticket },
    )
}

impl<A> Caller<A> {
    /// Marks the request as taken up; false when the asker has withdrawn it.
    pub(crate) fn take_up(&self) -> bool {
        self.ticket.settle(TAKEN)
    }

    /// Gives the answer back when nobody waits for it any more.
    pub(crate) fn answer(self, answer: Result<A, RequestError>) -> Result<(), Result<A, RequestError>> {
        self.reply.send(answer)
    }
}

impl<A> Waiting<A> {
    /// Waits for the outcome. `whose` names the group in errors; `refused` is the error of a request that was not taken up.
    ///
    /// Cancel safety: dropping the future withdraws nothing that is proposed.
    pub(crate) async fn outcome(mut self, waits: Waits, whose: &dyn WhoseOutcome) -> Result<A, RequestError> {
        let started = Instant::now();
        let mut deadline = started + waits.leader;
        loop {
            match tokio::time::timeout_at(deadline, &mut self.answer).await {
                Ok(Ok(answer)) => return answer,
                Ok(Err(_)) | Err(_) if self.ticket.settle(WITHDRAWN) => return Err(whose.not_taken_up()),
                Ok(Err(_)) => {
                    return Err(outcome_unknown(
                        "it was proposed, then the partition restarted",
                        whose,
                    ));
                }
                Err(_) if deadline >= started + waits.outcome => {
                    return Err(outcome_unknown(
                        "it was proposed but is not committed in time",
                        whose,
                    ));
                }
                Err(_) => deadline = started + waits.outcome,
            }
        }
    }
}

/// The group that was asked.
pub(crate) trait WhoseOutcome: fmt::Display + Sync {
    /// The error of a request that was not proposed.
    fn not_taken_up(&self) -> RequestError;
}

/// What to do about an unknown outcome where request ids count.
pub(crate) const REPEAT_ADVICE: &str = "repeat it with the same request id to learn its outcome";

impl RequestError {
    /// An unknown outcome of a request whose id, if it has one, is not kept: what to do about it instead.
    #[must_use]
    pub fn advising(mut self, advice: &str) -> Self {
        if let Some(what) = self.message.strip_suffix(REPEAT_ADVICE) {
            self.message = format!("{what}{advice}");
        }
        self
    }
}

/// The request may or may not have been done.
pub(crate) fn outcome_unknown(why: &str, whose: &(impl fmt::Display + ?Sized)) -> RequestError {
    let message = format!("{why} ({whose}); {REPEAT_ADVICE}");
    RequestError::new(ErrorClass::OutcomeUnknown, "outcome_unknown", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Whose;

    impl fmt::Display for Whose {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("partition 0")
        }
    }

    impl WhoseOutcome for Whose {
        fn not_taken_up(&self) -> RequestError {
            RequestError::new(ErrorClass::Unavailable, "no_leader", "no leader")
        }
    }

    const WAITS: Waits = Waits {
        leader: Duration::from_millis(1),
        outcome: Duration::from_millis(2),
    };

    #[test]
    fn advice_fits_the_verb() {
        let unknown = outcome_unknown("it was sent", "partition 0");
        assert!(
            unknown
                .message
                .ends_with("; repeat it with the same request id to learn its outcome")
        );
        assert_eq!(
            unknown.advising("pop again").message,
            "it was sent (partition 0); pop again"
        );
        let other = RequestError::new(ErrorClass::Unavailable, "no_leader", "no leader");
        assert_eq!(other.clone().advising("pop again"), other);
    }

    #[tokio::test]
    async fn request_not_taken_up_is_refused_for_good() {
        let (caller, waiting) = caller::<u8>(None);
        let error = waiting.outcome(WAITS, &Whose).await.unwrap_err();
        assert_eq!(error.class, ErrorClass::Unavailable);
        assert!(!caller.take_up());
    }

    #[tokio::test]
    async fn request_taken_up_is_unknown_until_answered() {
        let (taken, waiting) = caller::<u8>(None);
        assert!(taken.take_up());
        assert_eq!(
            waiting.outcome(WAITS, &Whose).await.unwrap_err().class,
            ErrorClass::OutcomeUnknown
        );
        let (taken, waiting) = caller::<u8>(None);
        assert!(taken.take_up());
        drop(taken);
        assert_eq!(
            waiting.outcome(WAITS, &Whose).await.unwrap_err().class,
            ErrorClass::OutcomeUnknown
        );
        let (taken, waiting) = caller::<u8>(None);
        assert!(taken.take_up());
        assert!(taken.answer(Ok(7)).is_ok());
        assert_eq!(waiting.outcome(WAITS, &Whose).await, Ok(7));
    }
}
