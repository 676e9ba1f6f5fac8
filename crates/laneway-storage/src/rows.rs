//! Rows that outgrow memory: an ordered map of bytes on disk.
//!
//! **A row store holds only what can be rebuilt** from files that are durable by our own rules, for sled's flush does not
//! reach the disk's medium. So nothing in it outlives the process: a store begins empty, whatever an earlier process left,
//! and whoever fills it can fill it again when it fails.

mod sled_store;
mod twin;

use std::fmt;
use std::io;

pub use sled_store::SledRowStore;
pub use twin::VfsRowStore;

/// Most changes that reach the database at once: large batches cost sled memory.
pub const ROW_BATCH_MAX: usize = 1000;

/// A key and its new value, or `None` to remove it.
pub type RowChange = (Vec<u8>, Option<Vec<u8>>);

/// A key and its value.
pub type StoredRow = (Vec<u8>, Vec<u8>);

/// The row store failed. Its content is lost; [`RowStore::clear`] makes it usable again.
#[derive(Debug, thiserror::Error)]
#[error("the row store failed: {error}")]
pub struct RowStoreError {
    /// What the database or the file system said.
    #[from]
    pub error: io::Error,
}

/// The seam to the database. All calls block; keys are ordered as bytes.
pub trait RowStore: Send + Sync + fmt::Debug + 'static {
    /// Applies changes in order, [`ROW_BATCH_MAX`] at a time; each such part is seen as a whole or not at all.
    ///
    /// Durability: none promised.
    fn put_batch(&self, changes: &[RowChange]) -> Result<(), RowStoreError>;

    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, RowStoreError>;

    /// The first `rows_max` rows with a key in `[from, to)`, in order.
    fn range(&self, from: &[u8], to: &[u8], rows_max: usize) -> Result<Vec<StoredRow>, RowStoreError>;

    /// The row with the greatest key in `[lowest, key]`.
    fn last_at_or_before(&self, lowest: &[u8], key: &[u8]) -> Result<Option<StoredRow>, RowStoreError>;

    /// Removes every row whose key begins with `prefix`.
    fn remove_prefix(&self, prefix: &[u8]) -> Result<(), RowStoreError>;

    /// Removes everything, of all who share the store, and begins anew, also after a failure.
    fn clear(&self) -> Result<(), RowStoreError>;

    /// Grows with each [`RowStore::clear`]: rows written under another generation are gone.
    fn generation(&self) -> u64;

    /// Bytes on disk, as far as known.
    fn bytes(&self) -> u64;
}
