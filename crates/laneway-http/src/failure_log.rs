//! Log lines for failed requests: each reason at most once in [`INTERVAL`], with the number of those left out.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::{Level, debug, error, warn};

use crate::counts::Verb;
use crate::error::Failure;

/// Shortest time between two lines of the same verb and code.
const INTERVAL: Duration = Duration::from_secs(5);

/// Remembers when what was logged. Bounded: verbs and codes are fixed sets.
#[derive(Debug, Default)]
pub(crate) struct FailureLog {
    lines: Mutex<BTreeMap<(Verb, &'static str), Line>>,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    written: Instant,
    suppressed: u64,
}

impl FailureLog {
    /// Logs the failure, unless its like was logged just now.
    pub(crate) fn note(&self, verb: Verb, failure: &Failure) {
        let verb_name = verb.name();
        let Failure { code, message, level } = failure;
        if *level == Level::DEBUG {
            debug!(verb = verb_name, code, error = message, "request refused");
            return;
        }
        let Some(suppressed) = self.due(verb, code, Instant::now()) else {
            return;
        };
        if *level == Level::ERROR {
            error!(
                verb = verb_name,
                code,
                error = message,
                suppressed,
                "request failed"
            );
        } else {
            warn!(
                verb = verb_name,
                code,
                error = message,
                suppressed,
                "request refused"
            );
        }
    }

    /// Whether a line is due, and how many were left out since the last one.
    fn due(&self, verb: Verb, code: &'static str, now: Instant) -> Option<u64> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(line) = lines.get_mut(&(verb, code)) else {
            lines.insert(
                (verb, code),
                Line {
                    written: now,
                    suppressed: 0,
                },
            );
            return Some(0);
        };
        if now.duration_since(line.written) < INTERVAL {
            line.suppressed += 1;
            return None;
        }
        let suppressed = line.suppressed;
        *line = Line {
            written: now,
            suppressed: 0,
        };
        Some(suppressed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_reason_is_logged_once_in_an_interval() {
        let log = FailureLog::default();
        let start = Instant::now();
        assert_eq!(log.due(Verb::Push, "storage_full", start), Some(0));
        assert_eq!(log.due(Verb::Push, "storage_full", start), None);
        assert_eq!(log.due(Verb::Push, "storage_full", start + INTERVAL / 2), None);
        assert_eq!(log.due(Verb::Pop, "storage_full", start), Some(0));
        assert_eq!(log.due(Verb::Push, "overloaded", start), Some(0));
        assert_eq!(log.due(Verb::Push, "storage_full", start + INTERVAL), Some(2));
        assert_eq!(log.due(Verb::Push, "storage_full", start + INTERVAL), None);
    }
}
