//! Why a call failed.

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The base address is no `http` address.
    #[error("{url} is no address such as http://127.0.0.1:6632")]
    BadUrl {
        /// As given.
        url: String,
    },
    /// No connection could be made: nothing was sent.
    #[error("cannot connect to {url}: {reason}")]
    Connect {
        /// The base address.
        url: String,
        /// What the system says.
        reason: String,
    },
    /// The connection ended, or the time ran out, after something was sent.
    #[error("no answer from {url}: {reason}")]
    NoAnswer {
        /// The base address.
        url: String,
        /// What the system says.
        reason: String,
    },
    /// The broker refused.
    #[error("{0}")]
    Refused(Refusal),
    /// The broker's answer is none that this client knows.
    #[error("answer with status {status} is not readable: {reason}")]
    BadAnswer {
        /// HTTP status.
        status: u16,
        /// What is wrong with it.
        reason: String,
    },
}

/// A refusal by the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// For a program, such as `no_leader`; empty when the answer has none.
    pub code: String,
    /// For a person.
    pub message: String,
    /// Seconds after which a repeat makes sense.
    pub retry_after: Option<u64>,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}", self.message, self.status)?;
        if !self.code.is_empty() {
            write!(f, " {}", self.code)?;
        }
        f.write_str(")")
    }
}

impl ClientError {
    /// The call may or may not have been carried out.
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Self::BadUrl { .. } | Self::Connect { .. } => false,
            Self::NoAnswer { .. } => true,
            Self::Refused(refusal) => refusal.outcome_unknown(),
            Self::BadAnswer { status, .. } => *status < 300 || *status >= 500,
        }
    }
}

impl Refusal {
    /// The call may or may not have been carried out: `outcome_unknown`, `timeout`, and every 5xx that does not say that nothing
    /// was done.
    pub fn outcome_unknown(&self) -> bool {
        self.status >= 500 && !matches!(self.code.as_str(), "no_leader" | "storage_full")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_definite_refusals_have_a_known_outcome() {
        let refused = |status, code: &str| {
            let refusal = Refusal {
                status,
                code: code.to_owned(),
                message: String::new(),
                retry_after: None,
            };
            ClientError::Refused(refusal).outcome_unknown()
        };
        assert!(!refused(400, "bad_request"));
        assert!(!refused(429, "overloaded"));
        assert!(!refused(503, "no_leader"));
        assert!(!refused(507, "storage_full"));
        assert!(refused(503, "outcome_unknown"));
        assert!(refused(500, "internal"));
        assert!(refused(502, ""));
    }
}
