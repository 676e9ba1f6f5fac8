//! Options of the gateway. Every bound has a documented default.

use std::time::Duration;

use laneway_core::settings::GroupStart;

/// What the gateway is started with.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// Bytes of one request body; a larger one is refused with 413. Default 64 MiB.
    pub body_bytes_max: usize,
    /// Bytes of all request bodies held at one time; beyond it requests are refused with 429. Default 512 MiB.
    pub bodies_bytes_max: usize,
    /// Open connections; further ones wait in the listener's queue. Default 10 000.
    pub connections_max: usize,
    /// A connection that sends no complete request head for so long is closed, idle ones too. It should be longer than
    /// the time for which clients keep idle connections (90 s for the published ones). Default 120 s.
    pub head_read_timeout: Duration,
    /// A request whose body makes no progress for so long is refused with 408. Default 30 s.
    pub body_read_timeout: Duration,
    /// How long running requests may take to finish at shutdown; waiting pops are answered at once. Default 10 s.
    pub shutdown_timeout: Duration,
    /// Where a consumer group starts when its first pop does not say. Default: at its registration (`new`).
    pub group_start_default: GroupStart,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            body_bytes_max: 64 * 1024 * 1024,
            bodies_bytes_max: 512 * 1024 * 1024,
            connections_max: 10_000,
            head_read_timeout: Duration::from_secs(120),
            body_read_timeout: Duration::from_secs(30),
            shutdown_timeout: Duration::from_secs(10),
            group_start_default: GroupStart::Registration,
        }
    }
}
