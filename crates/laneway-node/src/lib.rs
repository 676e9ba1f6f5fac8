//! A node: partition actors under a supervisor, the catalog, the router, timers, and the thread that keeps the disk in
//! order.
//!
//! A request is routed to its partition's actor, which plans it into a command, joins what is queued into one entry and
//! proposes that. The entry comes back committed; the actor applies it to its machine, carries the changes out in the
//! stores beside it, and answers.
//!
//! **Invariants.** Only an actor touches its machine. No handler waits for a commit or for the disk. No reply, not even a
//! refusal, rests on uncommitted state. A time-out before proposing is a definite refusal; after it, the outcome is
//! unknown and said to be. A plan of one term never enters another.
//!
//! **Deliberately absent**: HTTP and its texts (`laneway-http`), configuration files (`laneway-server`), and so far the hop
//! to other nodes.

mod admission;
mod api;
mod caller;
mod catalog;
mod claim_guard;
mod clock;
mod cluster;
mod identity;
mod leader;
mod maintenance;
mod metrics;
mod node;
mod options;
mod parking;
mod partition;
mod process;
mod propagator;
mod replica;
mod router;
mod snapshot;
mod span_cache;
mod supervisor;

pub use api::*;
#[cfg(feature = "failpoints")]
pub use laneway_storage::failpoint::{ArmError, arm as arm_failpoint};
pub use node::{Node, Recovered, StartError};
pub use options::{
    NAMES_BYTES_MAX, NodeLimits, NodeOptions, PARTITIONS_DEFAULT, PARTITIONS_MAX, PeerNetOptions,
    RaftOptions, StorageOptions,
};
