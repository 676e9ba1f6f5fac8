//! Raft groups of a Laneway node.
//!
//! A [`Group`] is one replicated log: a partition of messages, or the catalog. It takes opaque entry bodies, brings them to a
//! quorum through the node's WAL and hands the committed ones, in order, to the state machine behind a channel ([`FsmMsg`]). The
//! consensus itself is openraft, none of whose types appears in a public signature.
//!
//! # Invariants
//!
//! * An entry is forwarded as [`FsmMsg::Apply`] only after it was committed, exactly once per life of the group, in index
//!   order, blank and membership entries included.
//! * A proposal names the term it was planned in; it never enters the log of another term.
//! * [`FsmMsg::ProposalFailed`] with `definite` means that the proposal is not in the log and never will be. Anything less sure is
//!   reported as not definite, and may still be applied.
//! * Votes are on disk before anything rests on them; an entry counts as stored here only after its drain is synced.
//! * The log is purged only up to a checkpoint that the state machine named, and only when asked.
//!
//! # Absent on purpose
//!
//! No snapshot by count or size, no clock-based reads, no retry of a proposal (its owner knows whether a repeat is harmless).
//! A snapshot is not installed into a running machine: that is opened anew on it ([`FsmMsg::SnapshotPlaced`]).

mod format;
mod fsm;
mod group;
mod log_store;
mod machine;
mod network;
mod node_id;
mod peer;
mod responder;
mod snapshot;
mod types;

pub use fsm::{AppliedState, CheckpointName, CommittedEntry, CommittedPayload, FsmMsg, Leadership};
pub use group::{
    ChangeError, ELECTION_MS_MAX, ELECTION_MS_MIN, Group, GroupMetrics, GroupOptions, GroupState,
    HEARTBEAT_MS, InitializeError, Members, NameCheckpointError, OpenError, PURGE_WAIT_MS_MAX, PurgeError,
    ReadIndexError, TRANSFER_LAG_MAX, TransferError,
};
pub use node_id::{GENERATION_MAX, node_id, node_number};
pub use peer::{
    GENERATION_TAKEOVER, NodeIntroduction, PeerCallError, PeerListener, PeerOptions, PeerService, PeerStream,
    PeerTransport, PeerView, Peers, TcpTransport, check_peer_bytes,
};
pub use snapshot::{SNAPSHOT_CHUNK_BYTES_MAX, SnapshotPart, SnapshotStore};
