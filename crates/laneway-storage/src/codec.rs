//! What persisted values look like, and the only user of bincode.
//!
//! Every value begins with a version byte. Bytes are decoded as hostile: no panic, and no allocation out of proportion
//! to the input. Numbers in here are persisted and never reused.

mod catalog;
mod checksum;
mod entry;
mod frame;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use catalog::{decode_catalog_entry, encode_catalog_entry};
pub use checksum::checksum;
pub use entry::{ENTRY_HEADER_BYTES, Origin, decode_entry, encode_entry};
pub use frame::{
    FRAME_HEADER_BYTES, Frame, FrameIter, FrameText, TRANSACTION_ID_BYTES_MAX, frames, push_frame,
};

/// Version of values made by [`encode`].
const VALUE_VERSION: u8 = 1;

/// Bytes that could not be decoded. Nothing of them was used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than the value needs.
    #[error("the bytes end too early")]
    Truncated,
    /// More bytes than the value needs.
    #[error("{bytes} bytes follow the value")]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// Written by a version of the program that this one does not know.
    #[error("format version {found} is unknown")]
    Version {
        /// The version byte.
        found: u8,
    },
    /// An entry of another kind than asked for.
    #[error("entry kind {found} is not the one expected")]
    Kind {
        /// The kind byte.
        found: u8,
    },
    /// A command that this version of the program does not know.
    #[error("command tag {found} is unknown")]
    Tag {
        /// The tag byte.
        found: u8,
    },
    /// A block that lies outside its entry's blob.
    #[error("a payload block lies outside the entry's blob")]
    Block,
    /// A frame whose parts do not fit it.
    #[error("a frame's lengths contradict each other")]
    Frame,
    /// Text that is not UTF-8.
    #[error("a transaction id is not UTF-8")]
    Text,
    /// The value itself.
    #[error("the value is malformed: {reason}")]
    Value {
        /// What bincode found.
        reason: String,
    },
}

/// Encodes a plain value: version byte, then bincode.
///
/// Panics if `T` is not plain data (a sequence of unknown length): a bug in the type, not in the value.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let mut out = vec![VALUE_VERSION];
    encode_into(&mut out, value);
    out
}

/// Decodes what [`encode`] made, all of it.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    match bytes.split_first() {
        Some((&VALUE_VERSION, rest)) => decode_from(rest),
        Some((&found, _)) => Err(DecodeError::Version { found }),
        None => Err(DecodeError::Truncated),
    }
}

/// Appends the bincode form of `value`, without a version byte.
fn encode_into<T: Serialize>(out: &mut Vec<u8>, value: &T) {
    bincode::serde::encode_into_std_write(value, out, bincode::config::standard())
        .expect("plain data always encodes into memory");
}

/// Decodes all of `bytes`.
///
/// Bincode's limit is a constant of the type, and counts integers at full width (at most 16 times their length here), so
/// the smallest of four limits is taken that the input cannot exceed: what a lying length can make it allocate stays
/// within a constant factor of the input.
fn decode_from<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    let needed = bytes.len().saturating_mul(16).saturating_add(64);
    if needed <= 1 << 12 {
        decode_limited::<T, { 1 << 12 }>(bytes)
    } else if needed <= 1 << 18 {
        decode_limited::<T, { 1 << 18 }>(bytes)
    } else if needed <= 1 << 24 {
        decode_limited::<T, { 1 << 24 }>(bytes)
    } else {
        decode_limited::<T, { 1 << 34 }>(bytes)
    }
}

fn decode_limited<T: DeserializeOwned, const LIMIT: usize>(bytes: &[u8]) -> Result<T, DecodeError> {
    let config = bincode::config::standard().with_limit::<LIMIT>();
    let (value, used) = bincode::serde::decode_from_slice(bytes, config).map_err(|error| match error {
        bincode::error::DecodeError::UnexpectedEnd { .. } => DecodeError::Truncated,
        other => DecodeError::Value {
            reason: other.to_string(),
        },
    })?;
    if used < bytes.len() {
        return Err(DecodeError::Trailing {
            bytes: bytes.len() - used,
        });
    }
    Ok(value)
}
