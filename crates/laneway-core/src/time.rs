//! The two clocks of the log. A machine reads no clock: time enters only as the stamps of an entry.

use serde::{Deserialize, Serialize};

/// Lease time: microseconds on the log's monotonic clock. Decides deadlines; says nothing of the time of day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseTime(pub u64);

impl LeaseTime {
    /// The moment `ms` later; saturates.
    #[must_use]
    pub fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms.saturating_mul(1000)))
    }
}

/// Wall time: microseconds since 1970 UTC, made strictly increasing over the entries of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WallTime(pub u64);

impl WallTime {
    /// The moment `seconds` later; saturates.
    #[must_use]
    pub fn plus_seconds(self, seconds: u64) -> Self {
        Self(self.0.saturating_add(seconds.saturating_mul(1_000_000)))
    }
}

/// The two stamps that the leader puts into every entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stamps {
    /// Decides deadlines.
    pub lease: LeaseTime,
    /// `createdAt`, delays, windows, retention, display.
    pub wall: WallTime,
}
