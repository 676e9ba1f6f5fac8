//! One block: neighbouring messages of one lane.

use bytes::Bytes;
use laneway_core::ids::{LaneId, OFFSET_MAX, Offset};
use laneway_core::time::WallTime;

use crate::codec::{DecodeError, Frame, FrameIter, frames};
use crate::sealed::cursor::{Cursor, Malformed};

/// A block read from a file; its checksum was verified.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) lane: LaneId,
    pub(crate) first: Offset,
    /// Messages and stamp of each push that the block holds a part of.
    pub(crate) pushes: Vec<(u32, WallTime)>,
    frames: Bytes,
}

impl Block {
    pub(crate) fn decode(body: Bytes) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(&body);
        let lane = LaneId(cursor.varint()?);
        let first = cursor.varint()?;
        let count = usize::try_from(cursor.varint()?).map_err(|_| Malformed)?;
        // Each push takes at least two bytes here and seven as frames.
        if count == 0 || count > cursor.left() / 2 {
            return Err(Malformed);
        }
        let mut pushes = Vec::with_capacity(count);
        let mut wall = 0u64;
        let mut end = first;
        for _ in 0..count {
            let messages = cursor.varint_u32()?;
            wall = wall.checked_add(cursor.varint()?).ok_or(Malformed)?;
            end = end
                .checked_add(u64::from(messages))
                .filter(|end| *end <= OFFSET_MAX + 1)
                .ok_or(Malformed)?;
            if messages == 0 {
                return Err(Malformed);
            }
            pushes.push((messages, WallTime(wall)));
        }
        let frames_at = body.len() - cursor.left();
        Ok(Self {
            lane,
            first: Offset(first),
            pushes,
            frames: body.slice(frames_at..),
        })
    }

    pub(crate) fn count(&self) -> u64 {
        self.pushes.iter().map(|(count, _)| u64::from(*count)).sum()
    }

    /// Stamp of the newest message.
    pub(crate) fn wall_last(&self) -> WallTime {
        self.pushes.last().map_or(WallTime(0), |(_, wall)| *wall)
    }

    /// The first message that is not older than `at`.
    pub(crate) fn offset_at(&self, at: WallTime) -> Option<Offset> {
        let mut offset = self.first;
        for (count, wall) in &self.pushes {
            if *wall >= at {
                return Some(offset);
            }
            offset = offset.plus(u64::from(*count));
        }
        None
    }

    /// All messages, in order. Ends after the first error; it is one, too, if there are not as many frames as messages.
    pub(crate) fn messages(&self) -> BlockMessages<'_> {
        BlockMessages {
            offset: self.first,
            pushes: self.pushes.iter(),
            push: (0, WallTime(0)),
            frames: frames(&self.frames),
            failed: false,
        }
    }
}

/// See [`Block::messages`].
#[derive(Debug)]
pub(crate) struct BlockMessages<'a> {
    offset: Offset,
    pushes: std::slice::Iter<'a, (u32, WallTime)>,
    push: (u32, WallTime),
    frames: FrameIter,
    failed: bool,
}

impl Iterator for BlockMessages<'_> {
    type Item = Result<(Offset, WallTime, Frame), DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        if self.push.0 == 0 {
            match self.pushes.next() {
                Some(push) => self.push = *push,
                None if self.frames.rest_bytes() == 0 => return None,
                None => {
                    self.failed = true;
                    return Some(Err(DecodeError::Trailing {
                        bytes: self.frames.rest_bytes(),
                    }));
                }
            }
        }
        self.push.0 -= 1;
        let offset = self.offset;
        self.offset = offset.plus(1);
        match self.frames.next() {
            Some(Ok(frame)) => Some(Ok((offset, self.push.1, frame))),
            other => {
                self.failed = true;
                Some(Err(other.and_then(Result::err).unwrap_or(DecodeError::Truncated)))
            }
        }
    }
}
