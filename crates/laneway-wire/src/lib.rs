//! Request and answer bodies of Laneway's HTTP API, shared by the gateway and the Rust client. Data only, one file per verb.
//!
//! **Invariants.** Key names are those of the Queen contract, odd casing included; they never change. Unknown keys are
//! ignored, `null` for an optional field is the same as absence. Payloads are raw JSON text ([`serde_json::value::RawValue`])
//! and are never re-encoded. Nothing here buffers a document generically (no `flatten`, no `untagged`): that would limit the
//! depth of payloads to serde_json's recursion limit. A body is an object, and so is each element of its arrays: [`Object`].
//!
//! Deliberately absent: validation (names, ranges), transport, and anything of the broker's internals.

mod ack;
mod cluster;
mod configure;
mod error;
mod extend;
pub mod limits;
mod message;
mod metrics;
mod pop;
mod push;
mod queue;
mod redrive;
mod status;
mod value;

pub use ack::{AckBatchRequest, AckItem, AckRequest, AckResult, AckStatus};
pub use cluster::{
    ClusterChangeRequest, ClusterChangeResponse, ClusterGroup, ClusterMember, ClusterNode, ClusterResponse,
};
pub use configure::{ConfigureRequest, ConfigureResponse, QueueOptions, QueueOptionsPatch};
pub use error::ErrorBody;
pub use extend::{ExtendRequest, ExtendResponse};
pub use message::{ConsumerGroup, DeliveryMode, MessageDetail};
pub use metrics::{
    CpuMetrics, HistogramMetrics, MemoryMetrics, MessageMetrics, MetricsResponse, QueueMetrics,
    RequestMetrics,
};
pub use pop::{Message, PopFailure, PopResponse};
pub use push::{PushItem, PushRequest, PushResult, PushStatus};
pub use queue::{
    DeleteQueueResponse, LaneCursor, LaneRow, LaneStats, MessageCounts, QueueDetail, QueueList, QueueRow,
    SegmentCounts,
};
pub use redrive::{
    DeadLetterList, DeadLetterRow, DeleteDeadLettersResponse, Pagination, ReplayDestination, ReplayResponse,
    ReplayedAs,
};
pub use status::{
    DigestResponse, GroupDigest, GroupStatus, HealthResponse, HttpStatus, ReadyResponse, StatusResponse,
    StorageStatus,
};
pub use value::{Given, Int, Object, Text};
