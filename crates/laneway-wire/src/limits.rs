//! Bounds of the wire contract that clients can rely on.

/// Name of the lane of a push that names none.
pub const LANE_DEFAULT: &str = "Default";

/// Name of the group of a pop or ack that names none.
pub const GROUP_DEFAULT: &str = "__QUEUE_MODE__";

/// Request header that identifies one request, so that a repeat of it gets the first one's answer.
pub const REQUEST_ID_HEADER: &str = "x-laneway-request-id";

/// Longest value of [`REQUEST_ID_HEADER`], in visible ASCII bytes.
pub const REQUEST_ID_BYTES_MAX: usize = 64;

/// Most bytes of a queue name together with the longer of lane and group name (447, less 36 for a tenant id).
pub const NAMES_BYTES_MAX: usize = 447 - 36;

/// Longest transaction id, in bytes.
pub const TRANSACTION_ID_BYTES_MAX: usize = 65_535;

/// Bytes of an ack's `error` that are kept; the rest is cut off at a character boundary.
pub const REASON_BYTES_MAX: usize = 65_535;

/// Messages of a pop that gives no `batch`.
pub const BATCH_DEFAULT: u32 = 200;

/// Largest `batch` of a pop. The broker may answer with fewer messages than asked for.
pub const BATCH_MAX: u32 = 1_000_000;

/// Most lanes that one pop claims; `partitions` is clamped to it.
pub const LANES_PER_POP_MAX: u16 = 64;

/// Longest wait of a pop that gives no `timeout`, in ms.
pub const WAIT_MS_DEFAULT: u64 = 30_000;

/// Longest wait of a pop, in ms; `timeout` is clamped to 1 ..= this.
pub const WAIT_MS_MAX: u64 = 60_000;

/// Longest lease, in seconds (one year): `leaseTime`, `leaseSeconds` and the `seconds` of an extension.
pub const LEASE_SECONDS_MAX: u64 = 31_536_000;

/// Length of an extension that gives no `seconds`.
pub const EXTEND_SECONDS_DEFAULT: u64 = 60;

/// Largest delay, age or window of a queue's options, in seconds (a hundred years).
pub const SECONDS_MAX: u64 = 3_153_600_000;

/// Largest count among a queue's options; also the largest integer that every JSON reader takes exactly.
pub const COUNT_MAX: u64 = (1 << 53) - 1;

/// Largest `retryLimit`.
pub const RETRY_LIMIT_MAX: u32 = 2_147_483_647;

/// Largest distance of a `priority` from 0.
pub const PRIORITY_MAX: i64 = 2_147_483_647;

/// Range of `retentionSinkHoldMaxSeconds`.
pub const SINK_HOLD_SECONDS: (u64, u64) = (60, 31_536_000);

/// Longest `retentionSinkHold`.
pub const SINK_HOLD_BYTES_MAX: usize = 64;

/// Rows of a dead-letter listing that gives no `limit`.
pub const DEAD_LETTERS_DEFAULT: usize = 100;

/// Most rows of one dead-letter listing.
pub const DEAD_LETTERS_MAX: usize = 1000;

/// Largest `offset` of a listing.
pub const SKIP_MAX: usize = 1_000_000_000;
