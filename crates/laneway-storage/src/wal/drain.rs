//! What is gathered for one write.

use bytes::Bytes;
use laneway_core::ids::PartitionId;

use super::Done;
use super::format::RecordHeader;

/// Bodies from this length on are written from where they are; shorter ones are copied together first.
const GATHER_BYTES_MAX: usize = 16 * 1024;

/// A gather buffer larger than this is not kept for the next drain.
const GATHER_KEPT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What is gathered and not written yet.
#[derive(Default)]
pub(crate) struct Drain {
    small: Vec<u8>,
    parts: Vec<Part>,
    pub(crate) bytes: usize,
    pub(crate) located: Vec<Located>,
    pub(crate) done: Vec<Done>,
    /// Sequence of the last item that is wholly in here.
    pub(crate) last_item: Option<u64>,
}

/// A piece of a drain.
enum Part {
    /// So many bytes more of the gather buffer.
    Small(usize),
    Large(Bytes),
}

/// An entry in the drain, and where its body will be.
pub(crate) struct Located {
    pub(crate) partition: PartitionId,
    pub(crate) index: u64,
    pub(crate) ticket: u32,
    pub(crate) at: u32,
    pub(crate) bytes: u32,
}

impl Drain {
    /// Adds a record. A long body is not copied.
    pub(crate) fn push(&mut self, header: &RecordHeader, body: &Bytes) {
        self.push_small(&header.encode());
        if body.len() < GATHER_BYTES_MAX {
            self.push_small(body);
        } else {
            self.parts.push(Part::Large(body.clone()));
            self.bytes += body.len();
        }
    }

    fn push_small(&mut self, bytes: &[u8]) {
        self.small.extend_from_slice(bytes);
        self.bytes += bytes.len();
        match self.parts.last_mut() {
            Some(Part::Small(length)) => *length += bytes.len(),
            _ => self.parts.push(Part::Small(bytes.len())),
        }
    }

    /// What to write, in order.
    pub(crate) fn buffers(&self) -> Vec<&[u8]> {
        let mut small = &self.small[..];
        let mut buffers = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            match part {
                Part::Small(length) => {
                    let (piece, rest) = small.split_at(*length);
                    buffers.push(piece);
                    small = rest;
                }
                Part::Large(body) => buffers.push(body),
            }
        }
        buffers
    }

    /// Empties the drain and returns its callers.
    pub(crate) fn reset(&mut self) -> Vec<Done> {
        self.small.clear();
        self.small.shrink_to(GATHER_KEPT_BYTES_MAX);
        self.parts.clear();
        self.bytes = 0;
        self.located.clear();
        self.last_item = None;
        std::mem::take(&mut self.done)
    }
}
