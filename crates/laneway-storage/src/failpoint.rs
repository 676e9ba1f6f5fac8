//! Named points at which a test kills the process (feature `failpoints`, absent from release builds).
//!
//! With the feature on, [`arm`] makes the process abort at the `count`-th time (from 1) that the named point is reached.
//! Without it there is nothing to arm, and [`hit`] is empty.

#[cfg(feature = "failpoints")]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static ARMED: OnceLock<(String, u64)> = OnceLock::new();
    static HITS: AtomicU64 = AtomicU64::new(0);

    /// Why a failpoint cannot be armed.
    #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
    pub enum ArmError {
        /// It is not of the form `name:count`.
        #[error("failpoint {text:?} is not of the form name:count, with a count from 1")]
        Malformed {
            /// What was given.
            text: String,
        },
        /// One point per process.
        #[error("a failpoint is armed already")]
        Armed,
    }

    /// Makes the process abort at a point, given as `name:count`. Once per process; counts from when it is called.
    pub fn arm(text: &str) -> Result<(), ArmError> {
        let malformed = || ArmError::Malformed {
            text: text.to_owned(),
        };
        let (name, count) = text.split_once(':').ok_or_else(malformed)?;
        let count: u64 = count.parse().map_err(|_| malformed())?;
        if name.is_empty() || count == 0 {
            return Err(malformed());
        }
        ARMED.set((name.to_owned(), count)).map_err(|_| ArmError::Armed)
    }

    /// Marks a durability step. Aborts the process if a test armed this point.
    pub fn hit(name: &str) {
        if let Some((armed, count)) = ARMED.get()
            && armed == name
            && HITS.fetch_add(1, Ordering::Relaxed) + 1 == *count
        {
            std::process::abort();
        }
    }
}

#[cfg(feature = "failpoints")]
pub use armed::{ArmError, arm, hit};

/// Marks a durability step.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn hit(_name: &str) {}
