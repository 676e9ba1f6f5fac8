//! Writes a backlog file, gathering neighbouring messages into blocks.

use std::path::Path;
use std::sync::Arc;

use laneway_core::ids::{LaneId, Offset, PartitionId};
use laneway_core::time::WallTime;

use super::index::{SECTION_ENTRIES, encode_section};
use super::{BACKLOG_ENDING, BacklogEntry, FOOTER_MAGIC, MAGIC, REPLACES_MAX, VERSION, crc_at};
use crate::sealed::cursor::put_varint;
use crate::sealed::{FileError, SealedWriter, numbered_name};
use crate::vfs::Vfs;

/// One message to be written; `frame` is its whole frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BacklogMessage<'a> {
    pub(crate) lane: LaneId,
    pub(crate) offset: Offset,
    pub(crate) wall: WallTime,
    pub(crate) frame: &'a [u8],
}

/// Messages come in order of lane and offset. The file exists once [`BacklogWriter::finish`] returned.
#[derive(Debug)]
pub(crate) struct BacklogWriter {
    number: u64,
    out: SealedWriter,
    block_bytes_max: usize,
    block: Option<OpenBlock>,
    frames: Vec<u8>,
    body: Vec<u8>,
    entries: Vec<BacklogEntry>,
    messages: u64,
}

/// The block being gathered.
#[derive(Debug)]
struct OpenBlock {
    lane: LaneId,
    first: Offset,
    end: Offset,
    pushes: Vec<(u32, WallTime)>,
}

impl BacklogWriter {
    pub(crate) fn create(
        vfs: &Arc<dyn Vfs>,
        dir: &Path,
        partition: PartitionId,
        number: u64,
        replaces: &[u64],
        block_bytes_max: usize,
    ) -> Result<Self, FileError> {
        assert!(
            replaces.len() <= REPLACES_MAX,
            "one file replaces {} others",
            replaces.len()
        );
        let mut out = SealedWriter::create(vfs, dir, &numbered_name(number, BACKLOG_ENDING))?;
        let mut body = Vec::new();
        body.extend_from_slice(&partition.0.to_le_bytes());
        body.extend_from_slice(&number.to_le_bytes());
        put_varint(
            &mut body,
            u64::try_from(replaces.len()).expect("a length fits u64"),
        );
        replaces.iter().for_each(|number| put_varint(&mut body, *number));
        let mut header = MAGIC.to_vec();
        header.push(VERSION);
        header.extend_from_slice(
            &u32::try_from(body.len())
                .expect("at most 64 Ki numbers")
                .to_le_bytes(),
        );
        header.append(&mut body);
        header.extend_from_slice(&crc32fast::hash(&header).to_le_bytes());
        out.write(&header)?;
        let entries = Vec::new();
        Ok(Self {
            number,
            out,
            block_bytes_max,
            block: None,
            frames: Vec::new(),
            body,
            entries,
            messages: 0,
        })
    }

    pub(crate) fn push(&mut self, message: BacklogMessage<'_>) -> Result<(), FileError> {
        let BacklogMessage {
            lane,
            offset,
            wall,
            frame,
        } = message;
        let fits = self.block.as_ref().is_some_and(|block| {
            // Stamps grow along a lane; a block can only hold what does.
            let grows = block.pushes.last().is_none_or(|(_, of)| *of <= wall);
            let has_room = self.frames.len() + frame.len() <= self.block_bytes_max;
            block.lane == lane && block.end == offset && grows && has_room
        });
        if !fits {
            self.end_block()?;
            self.block = Some(OpenBlock {
                lane,
                first: offset,
                end: offset,
                pushes: Vec::new(),
            });
        }
        let block = self.block.as_mut().expect("opened above");
        block.end = offset.plus(1);
        match block.pushes.last_mut() {
            Some((count, of)) if *of == wall => *count += 1,
            _ => block.pushes.push((1, wall)),
        }
        self.frames.extend_from_slice(frame);
        self.messages += 1;
        Ok(())
    }

    fn end_block(&mut self) -> Result<(), FileError> {
        let Some(block) = self.block.take() else {
            return Ok(());
        };
        self.body.clear();
        put_varint(&mut self.body, block.lane.0);
        put_varint(&mut self.body, block.first.0);
        put_varint(
            &mut self.body,
            u64::try_from(block.pushes.len()).expect("a length fits u64"),
        );
        let mut before = 0;
        for (count, wall) in &block.pushes {
            put_varint(&mut self.body, u64::from(*count));
            put_varint(&mut self.body, wall.0 - before);
            before = wall.0;
        }
        self.body.append(&mut self.frames);
        let at = self.write_section()?;
        self.entries.push(BacklogEntry {
            lane: block.lane,
            first: block.first,
            count: u32::try_from(block.end.0 - block.first.0)
                .expect("a block holds fewer messages than bytes"),
            wall_last: WallTime(before),
            at: u32::try_from(at).expect("a backlog file is smaller than 4 GiB"),
            bytes: u32::try_from(self.out.position() - at).expect("a block is smaller than 4 GiB"),
        });
        Ok(())
    }

    /// Writes `self.body`; returns where.
    fn write_section(&mut self) -> Result<u64, FileError> {
        let at = self.out.position();
        self.out
            .write(&crc_at(self.number, at, &self.body).to_le_bytes())?;
        let bytes = u32::try_from(self.body.len()).expect("a section is smaller than 4 GiB");
        self.out.write(&bytes.to_le_bytes())?;
        self.out.write(&self.body)?;
        Ok(at)
    }

    /// Ends the file and makes it durable under its name. Returns its blocks, its messages and its length in bytes.
    pub(crate) fn finish(mut self) -> Result<(Vec<BacklogEntry>, u64, u64), FileError> {
        self.end_block()?;
        let index_at = self.out.position();
        let entries = std::mem::take(&mut self.entries);
        for section in entries.chunks(SECTION_ENTRIES) {
            self.body.clear();
            encode_section(&mut self.body, section);
            self.write_section()?;
        }
        let mut footer = Vec::new();
        footer.extend_from_slice(&index_at.to_le_bytes());
        footer.extend_from_slice(
            &u64::try_from(entries.len())
                .expect("a length fits u64")
                .to_le_bytes(),
        );
        footer.extend_from_slice(&self.messages.to_le_bytes());
        footer.extend_from_slice(&crc_at(self.number, 0, &footer).to_le_bytes());
        footer.extend_from_slice(FOOTER_MAGIC);
        self.out.write(&footer)?;
        let bytes = self.out.publish()?;
        Ok((entries, self.messages, bytes))
    }
}
