//! Frames: stored messages back to back inside a block.
//!
//! `u32 LE bytes of what follows ‖ u8 flags (0) ‖ u16 LE length of the transaction id ‖ transaction id ‖ payload`.

use std::fmt;
use std::ops::Deref;

use bytes::{Buf, BufMut, Bytes};

use super::DecodeError;

/// Bytes of a frame beside its transaction id and payload.
pub const FRAME_HEADER_BYTES: usize = 7;

/// Longest transaction id that a frame can hold.
pub const TRANSACTION_ID_BYTES_MAX: usize = u16::MAX as usize;

/// Flags and length of the transaction id.
const INNER_HEADER_BYTES: usize = 3;

/// Appends one frame. An empty `transaction_id` means that the client gave none.
///
/// Panics if the id is longer than [`TRANSACTION_ID_BYTES_MAX`] or the frame than a `u32` counts: callers check requests.
pub fn push_frame<B: BufMut>(out: &mut B, transaction_id: &str, payload: &[u8]) {
    let id_bytes = u16::try_from(transaction_id.len()).expect("the caller bounds transaction ids");
    let bytes = u32::try_from(INNER_HEADER_BYTES + transaction_id.len() + payload.len())
        .expect("the caller bounds payloads");
    out.put_u32_le(bytes);
    out.put_u8(0);
    out.put_u16_le(id_bytes);
    out.put_slice(transaction_id.as_bytes());
    out.put_slice(payload);
}

/// The frames of a block, in order. Ends after the first error.
pub fn frames(block: &Bytes) -> FrameIter {
    FrameIter { rest: block.clone() }
}

/// One stored message: slices of the block, nothing copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Empty if the client gave none.
    pub transaction_id: FrameText,
    /// The payload.
    pub payload: Bytes,
    /// Length of the whole frame in the block.
    pub bytes: u32,
}

/// Text inside a block.
#[derive(Clone, PartialEq, Eq)]
pub struct FrameText(Bytes);

impl FrameText {
    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("checked when it was decoded")
    }
}

impl Deref for FrameText {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Debug for FrameText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// See [`frames`].
#[derive(Clone, Debug)]
pub struct FrameIter {
    rest: Bytes,
}

impl FrameIter {
    /// Bytes not read yet.
    pub fn rest_bytes(&self) -> usize {
        self.rest.len()
    }

    fn read(&mut self) -> Result<Frame, DecodeError> {
        if self.rest.len() < FRAME_HEADER_BYTES {
            return Err(DecodeError::Truncated);
        }
        let inner = self.rest.get_u32_le();
        let inner_bytes = usize::try_from(inner).map_err(|_| DecodeError::Frame)?;
        if inner_bytes < INNER_HEADER_BYTES || inner > u32::MAX - 4 {
            return Err(DecodeError::Frame);
        }
        if self.rest.len() < inner_bytes {
            return Err(DecodeError::Truncated);
        }
        let mut frame = self.rest.split_to(inner_bytes);
        let flags = frame.get_u8();
        if flags != 0 {
            return Err(DecodeError::Version { found: flags });
        }
        let id_bytes = usize::from(frame.get_u16_le());
        if frame.len() < id_bytes {
            return Err(DecodeError::Frame);
        }
        let id = frame.split_to(id_bytes);
        std::str::from_utf8(&id).map_err(|_| DecodeError::Text)?;
        Ok(Frame {
            transaction_id: FrameText(id),
            payload: frame,
            bytes: inner + 4,
        })
    }
}

impl Iterator for FrameIter {
    type Item = Result<Frame, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let frame = self.read();
        if frame.is_err() {
            self.rest.clear();
        }
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_as_slices() {
        let mut block = Vec::new();
        push_frame(&mut block, "t-1", b"one");
        push_frame(&mut block, "", b"");
        push_frame(&mut block, "名", &[7; 1000]);
        let block = Bytes::from(block);
        let read: Vec<Frame> = frames(&block).collect::<Result<_, _>>().unwrap();
        assert_eq!(read.len(), 3);
        assert_eq!(
            (read[0].transaction_id.as_str(), &read[0].payload[..]),
            ("t-1", &b"one"[..])
        );
        assert_eq!((read[1].transaction_id.as_str(), read[1].payload.len()), ("", 0));
        assert_eq!((&*read[2].transaction_id, read[2].payload.len()), ("名", 1000));
        assert_eq!(
            read.iter().map(|frame| frame.bytes as usize).sum::<usize>(),
            block.len()
        );
        assert_eq!(read[0].payload.as_ptr(), block[10..].as_ptr());
    }

    #[test]
    fn bad_frames_are_errors() {
        let check = |bytes: &[u8], error: DecodeError| {
            let block = Bytes::copy_from_slice(bytes);
            let read: Vec<_> = frames(&block).collect();
            assert_eq!(read, vec![Err(error)], "{bytes:?}");
        };
        check(&[1], DecodeError::Truncated);
        check(&[2, 0, 0, 0, 0, 0, 0], DecodeError::Frame);
        check(&[255, 255, 255, 255, 0, 0, 0], DecodeError::Frame);
        check(&[9, 0, 0, 0, 0, 0, 0], DecodeError::Truncated);
        check(&[3, 0, 0, 0, 1, 0, 0], DecodeError::Version { found: 1 });
        check(&[3, 0, 0, 0, 0, 1, 0], DecodeError::Frame);
        check(&[4, 0, 0, 0, 0, 1, 0, 0xff], DecodeError::Text);
    }
}
