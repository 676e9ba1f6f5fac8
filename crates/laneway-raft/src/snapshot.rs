//! Handing a whole snapshot to a replica whose next entries are purged at its leader.
//!
//! The leader offers a list of files and asks now and then how it goes; the replica fetches them in chunks, a few at a time,
//! goes on where it stopped, checks all of them, and puts them in place. It does not swap the state of a running machine:
//! the machine is told ([`FsmMsg::SnapshotPlaced`](crate::FsmMsg::SnapshotPlaced)) to be opened anew from disk, which is what
//! happens after a crash at that moment too. A snapshot holds committed entries only, so it may be put in place whoever
//! offered it and whatever was elected meanwhile.

mod receive;
mod send;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use laneway_storage::snapshot::{IncomingSnapshot, SnapshotOffer};

use crate::fsm::CheckpointName;

pub(crate) use receive::Receiver;

/// Largest part of a file in one answer, in bytes.
pub const SNAPSHOT_CHUNK_BYTES_MAX: u32 = 1 << 20;

/// A part of a file of the snapshot that is held for sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotPart {
    /// Which snapshot.
    pub id: u64,
    /// Which file of its offer.
    pub file: u32,
    /// Where in the file, in bytes.
    pub at: u64,
    /// How many bytes; at most [`SNAPSHOT_CHUNK_BYTES_MAX`], fewer come only at the end of the file.
    pub bytes: u32,
}

/// Where a group's snapshots are made, kept and put in place. Errors are texts for the log.
pub trait SnapshotStore: Send + Sync + 'static {
    /// The snapshot that is held for sending, if any. While it is, the log behind it is not purged. Does not wait.
    fn held(&self) -> Option<CheckpointName>;

    /// The snapshot to send to a replica that needs the one up to entry `index_min`, or a later one. Holds the one that is
    /// held if it will do, else makes one of what is applied now and holds that.
    fn offer(&self, index_min: u64) -> BoxFuture<'_, Result<SnapshotOffer, String>>;

    /// Reads from the snapshot that is held; the more recently, the longer it is.
    fn read(&self, part: SnapshotPart) -> BoxFuture<'_, Result<Bytes, String>>;

    /// The receiver of snapshot `id` is alive, whether it reads now or not. Does not wait.
    fn keep(&self, id: u64);

    /// A receiver has come to `index`: if that is the last entry of the snapshot that is held, it has it. Others may still
    /// read it. Does not wait.
    fn taken(&self, index: u64);

    /// A folder to receive `offer` in, with what is there of it already. Errors: there is no room, or it is in place already.
    fn receive(&self, offer: SnapshotOffer) -> BoxFuture<'_, Result<IncomingSnapshot, String>>;

    /// Makes a checked snapshot the one that the replica is opened on. `Ok(true)`: durably done, the replica must be opened
    /// anew and may not write what it has to the old files. `Ok(false)`: it has come as far by itself.
    fn place(&self, received: IncomingSnapshot) -> BoxFuture<'_, Result<bool, String>>;
}
