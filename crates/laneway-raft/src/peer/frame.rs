//! What goes over a connection between two nodes: frames.
//!
//! ```text
//! u32 LE body bytes ‖ u32 LE CRC-32 of the body ‖ u8 kind ‖ u8 0 ‖ u16 LE partition ‖ u64 LE number ‖ u32 LE CRC-32 of these ‖ body
//! ```
//!
//! The header has a checksum of its own: a length that was changed on the way would swallow the frames behind it.
//! The header never changes its shape; what bodies mean is a matter of the protocol version, which the handshake settles.
//! Frames are decoded as hostile: no panic, and no memory beyond what has arrived.

use std::io::{self, IoSlice};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use laneway_core::ids::PartitionId;
use laneway_storage::codec::checksum;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Bytes before a frame's body.
pub(crate) const HEADER_BYTES: usize = 24;

/// Of these, what the header's checksum is of.
const HEADER_FIELDS: usize = HEADER_BYTES - 4;

/// Longest time for a frame that has begun. One that stands still is no use to anybody, and hides that the connection is broken.
const FRAME_MAX: Duration = Duration::from_secs(30);

/// Largest body on a connection for entries or bulk: one request of a client may be one entry.
pub(crate) const BODY_BYTES_MAX: usize = 256 << 20;

/// Largest body on a connection for votes and heartbeats, and of a handshake.
pub(crate) const SMALL_BODY_BYTES_MAX: usize = 64 << 10;

/// Memory taken for a body at a time, before more of it has arrived.
const READ_STEP_BYTES: usize = 1 << 20;

/// Slices given to one write.
const SLICES_MAX: usize = 64;

/// What a frame is. Numbers are part of the protocol and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// First frame of either side.
    Hello = 1,
    /// Asks for one answer.
    Call = 2,
    /// The answer to the call with this number.
    Answer = 3,
    /// There is no answer to the call, or no further one in the stream; the body says why.
    Failure = 4,
    /// One more request of an ordered stream.
    Item = 5,
    /// The answer to the oldest unanswered request of the stream.
    ItemAnswer = 6,
    /// The sender has no further use for the stream.
    End = 7,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Hello,
            2 => Self::Call,
            3 => Self::Answer,
            4 => Self::Failure,
            5 => Self::Item,
            6 => Self::ItemAnswer,
            7 => Self::End,
            _ => return None,
        })
    }
}

/// One frame. The body may be in several pieces, so that payloads are not copied to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) partition: PartitionId,
    /// Of the call or stream; counted by the side that opens it, for each connection.
    pub(crate) number: u64,
    pub(crate) body: Vec<Bytes>,
}

/// A received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) kind: Kind,
    pub(crate) partition: PartitionId,
    pub(crate) number: u64,
    pub(crate) body: Bytes,
}

/// Why a connection's bytes make no frame. The connection is of no further use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    /// The other side is gone.
    #[error("the connection ended")]
    Ended,
    /// Reading failed.
    #[error("reading failed: {0}")]
    Io(#[from] io::Error),
    /// More than allowed on this connection.
    #[error("a frame of {bytes} bytes came, {max} are allowed here")]
    TooLarge { bytes: usize, max: usize },
    /// Changed on the way, or no frame at all.
    #[error("a frame's checksum is wrong")]
    Checksum,
    /// It began and did not come to its end.
    #[error("a frame did not arrive whole within {} s", FRAME_MAX.as_secs())]
    Stalled,
    /// Of a kind that this version does not know.
    #[error("a frame is of the unknown kind {0}")]
    Kind(u8),
}

impl Frame {
    /// A frame with at most one piece of body.
    pub(crate) fn new(kind: Kind, partition: PartitionId, number: u64, body: Bytes) -> Self {
        Self {
            kind,
            partition,
            number,
            body: vec![body],
        }
    }

    pub(super) fn body_bytes(&self) -> usize {
        self.body.iter().map(Bytes::len).sum()
    }

    /// Header and body, ready to be written. A body beyond `max` is refused here, not by the receiver.
    pub(crate) fn pieces(self, max: usize) -> Result<Vec<Bytes>, FrameError> {
        let bytes = self.body_bytes();
        let length = u32::try_from(bytes)
            .ok()
            .filter(|_| bytes <= max)
            .ok_or(FrameError::TooLarge { bytes, max })?;
        let mut header = BytesMut::with_capacity(HEADER_BYTES);
        header.put_u32_le(length);
        header.put_u32_le(checksum(self.body.iter().map(|piece| &piece[..])));
        header.put_u8(self.kind as u8);
        header.put_u8(0);
        header.put_u16_le(self.partition.0);
        header.put_u64_le(self.number);
        let of_header = checksum([&header[..]]);
        header.put_u32_le(of_header);
        let mut pieces = Vec::with_capacity(1 + self.body.len());
        pieces.push(header.freeze());
        pieces.extend(self.body.into_iter().filter(|piece| !piece.is_empty()));
        Ok(pieces)
    }
}

/// Writes all pieces, in order.
pub(crate) async fn write_pieces<W: AsyncWrite + Unpin>(
    out: &mut W,
    mut pieces: &mut [Bytes],
) -> io::Result<()> {
    while !pieces.is_empty() {
        let slices: Vec<IoSlice<'_>> = pieces
            .iter()
            .take(SLICES_MAX)
            .map(|piece| IoSlice::new(piece))
            .collect();
        let mut written = out.write_vectored(&slices).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let whole = pieces.iter().take_while(|piece| {
            let fits = piece.len() <= written;
            if fits {
                written -= piece.len();
            }
            fits
        });
        let whole = whole.count();
        pieces = &mut pieces[whole..];
        if written > 0 {
            pieces[0].advance(written);
        }
    }
    Ok(())
}

/// Reads the next frame. Not cancel safe: a dropped read leaves the connection in mid-frame.
pub(crate) async fn read_frame<R: AsyncRead + Unpin>(
    input: &mut R,
    max: usize,
) -> Result<Received, FrameError> {
    let (header, first) = read_start(input).await?;
    match timeout(FRAME_MAX, read_rest(input, header, first, max)).await {
        Ok(received) => received,
        Err(_) => Err(FrameError::Stalled),
    }
}

/// The same from bytes that are all there, and without a timer.
pub(super) async fn read_frame_of(input: &mut &[u8], max: usize) -> Result<Received, FrameError> {
    let (header, first) = read_start(input).await?;
    read_rest(input, header, first, max).await
}

/// Waits for a frame to begin; how much of its header came along.
async fn read_start<R: AsyncRead + Unpin>(input: &mut R) -> Result<([u8; HEADER_BYTES], usize), FrameError> {
    let mut header = [0; HEADER_BYTES];
    match input.read(&mut header).await? {
        0 => Err(FrameError::Ended),
        first => Ok((header, first)),
    }
}

async fn read_rest<R: AsyncRead + Unpin>(
    input: &mut R,
    mut header: [u8; HEADER_BYTES],
    first: usize,
    max: usize,
) -> Result<Received, FrameError> {
    input.read_exact(&mut header[first..]).await?;
    let of_header = checksum([&header[..HEADER_FIELDS]]);
    let mut fields = &header[..];
    let bytes = fields.get_u32_le() as usize;
    let of_body = fields.get_u32_le();
    let (kind, _zero) = (fields.get_u8(), fields.get_u8());
    let partition = PartitionId(fields.get_u16_le());
    let number = fields.get_u64_le();
    // Who speaks another protocol shall hear how much too long that is.
    if bytes > max {
        return Err(FrameError::TooLarge { bytes, max });
    }
    if fields.get_u32_le() != of_header {
        return Err(FrameError::Checksum);
    }
    let body = read_body(input, bytes).await?;
    if checksum([&body[..]]) != of_body {
        return Err(FrameError::Checksum);
    }
    Ok(Received {
        kind: Kind::of(kind).ok_or(FrameError::Kind(kind))?,
        partition,
        number,
        body,
    })
}

async fn read_body<R: AsyncRead + Unpin>(input: &mut R, bytes: usize) -> io::Result<Bytes> {
    let mut body = BytesMut::with_capacity(bytes.min(READ_STEP_BYTES));
    while body.len() < bytes {
        if body.len() == body.capacity() {
            body.reserve(body.len().min(bytes - body.len()));
        }
        let wanted = (bytes - body.len()).min(body.capacity() - body.len());
        if (&mut *input).take(wanted as u64).read_buf(&mut body).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(body.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(body: &[&'static [u8]]) -> Frame {
        Frame {
            kind: Kind::Item,
            partition: PartitionId(3),
            number: 0x0102_0304_0506_0708,
            body: body.iter().map(|piece| Bytes::from_static(piece)).collect(),
        }
    }

    fn bytes_of(frame: Frame) -> Vec<u8> {
        frame.pieces(BODY_BYTES_MAX).unwrap().concat()
    }

    async fn read(mut bytes: &[u8], max: usize) -> Result<Received, FrameError> {
        read_frame(&mut bytes, max).await
    }

    #[test]
    fn frame_is_golden() {
        let bytes = bytes_of(frame(&[b"ab", b"", b"c"]));
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, GOLDEN);
    }

    const GOLDEN: &str = "03000000c24124350500030008070605040302011f1fbb5b616263";

    #[tokio::test]
    async fn frames_survive_any_cut_of_the_stream() {
        let mut stream = bytes_of(frame(&[b"ab", b"", b"c"]));
        stream.extend(bytes_of(frame(&[])));
        for step in 1..stream.len() {
            let (mut near, far) = tokio::io::duplex(step);
            let sent = stream.clone();
            let sending = tokio::spawn(async move {
                let mut far = far;
                far.write_all(&sent).await
            });
            let first = read_frame(&mut near, 3).await.unwrap();
            assert_eq!((first.kind, first.partition), (Kind::Item, PartitionId(3)));
            assert_eq!(
                (first.number, &first.body[..]),
                (0x0102_0304_0506_0708, &b"abc"[..])
            );
            assert!(read_frame(&mut near, 3).await.unwrap().body.is_empty());
            sending.await.unwrap().unwrap();
            assert!(matches!(read_frame(&mut near, 3).await, Err(FrameError::Ended)));
        }
    }

    #[tokio::test]
    async fn pieces_are_written_whole_however_little_a_write_takes() {
        let pieces: Vec<Bytes> = (0..200u8)
            .map(|n| Bytes::from(vec![n; usize::from(n % 7) + 1]))
            .collect();
        for step in [1, 2, 5, 64, 10_000] {
            let (near, mut far) = tokio::io::duplex(step);
            let mut sent = pieces.clone();
            let sending = tokio::spawn(async move {
                let mut near = near;
                write_pieces(&mut near, &mut sent).await
            });
            let mut all = Vec::new();
            far.read_to_end(&mut all).await.unwrap();
            sending.await.unwrap().unwrap();
            assert_eq!(all, pieces.concat());
        }
    }

    #[tokio::test]
    async fn every_flipped_bit_is_found() {
        let whole = bytes_of(frame(&[b"payload"]));
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&bytes, 64).await.is_err(), "bit {bit}");
        }
        for end in 0..whole.len() {
            assert!(read(&whole[..end], 64).await.is_err(), "cut at {end}");
        }
    }

    #[tokio::test]
    async fn large_frames_are_refused_on_both_sides() {
        let bytes = bytes_of(frame(&[b"four"]));
        assert!(matches!(
            read(&bytes, 3).await,
            Err(FrameError::TooLarge { bytes: 4, max: 3 })
        ));
        assert!(matches!(
            frame(&[b"four"]).pieces(3),
            Err(FrameError::TooLarge { .. })
        ));
        // The length alone takes no memory: the bytes must come.
        let body = Bytes::from(vec![0; 1 << 20]);
        let header = &bytes_of(Frame::new(Kind::Item, PartitionId(3), 1, body))[..HEADER_BYTES];
        assert!(matches!(
            read(header, BODY_BYTES_MAX).await,
            Err(FrameError::Io(_))
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn changed_length_is_found_before_its_bytes_are_waited_for() {
        let (mut near, mut far) = tokio::io::duplex(1024);
        let mut bytes = bytes_of(frame(&[b"abc"]));
        bytes[3] ^= 1;
        far.write_all(&bytes).await.unwrap();
        let read = read_frame(&mut near, BODY_BYTES_MAX).await;
        assert!(matches!(read, Err(FrameError::Checksum)), "{read:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn frame_that_stands_still_is_given_up() {
        let whole = bytes_of(frame(&[b"abc"]));
        for end in [1, HEADER_BYTES, whole.len() - 1] {
            let (mut near, mut far) = tokio::io::duplex(1024);
            far.write_all(&whole[..end]).await.unwrap();
            let read = read_frame(&mut near, BODY_BYTES_MAX).await;
            assert!(matches!(read, Err(FrameError::Stalled)), "{read:?}");
        }
    }
}
