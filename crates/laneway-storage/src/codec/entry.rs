//! Bodies of log entries.
//!
//! `u8 version ‖ u8 kind (0 partition, 1 catalog) ‖ u64 node ‖ u64 proposal ‖ u64 lease stamp ‖ u64 wall stamp ‖
//! u32 bytes of the commands ‖ commands (u8 tag ‖ u32 length ‖ bincode each) ‖ blob`, integers little-endian.

use std::cell::RefCell;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use laneway_core::command::{Block, Command, Entry};
use laneway_core::time::{LeaseTime, Stamps, WallTime};

use super::{DecodeError, decode_from, encode_into};

/// Bytes in front of the commands.
pub const ENTRY_HEADER_BYTES: usize = 38;

const ENTRY_VERSION: u8 = 1;
const KIND_PARTITION: u8 = 0;

/// Tag and length in front of each command.
const COMMAND_HEADER_BYTES: usize = 5;

/// Scratch space larger than this is not kept.
const SCRATCH_BYTES_MAX: usize = 1024 * 1024;

thread_local! {
    /// Commands are encoded here first, so that an entry is allocated once at its exact size.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Who proposed an entry: its node's actor finds the callers that it filed by this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// Raft node id of the proposer.
    pub node: u64,
    /// The proposer's number for it.
    pub proposal: u64,
}

/// Encodes a partition's entry: one allocation; the blob is copied once.
///
/// Panics if commands take 4 GiB or more: batches are bounded long before.
pub fn encode_entry(origin: Origin, entry: &Entry) -> Bytes {
    let encode = |out: &mut Vec<u8>| {
        for command in &entry.commands {
            push_command(out, command.tag(), |out| encode_command(out, command));
        }
    };
    assemble(KIND_PARTITION, origin, entry.stamps, encode, &entry.blob)
}

/// Decodes a partition's entry. Its blob is a slice of `body`; the last value is the blob's position in it.
///
/// Every block that a command names lies inside the blob.
pub fn decode_entry(body: &Bytes) -> Result<(Origin, Entry, u32), DecodeError> {
    let header = Header::read(body, KIND_PARTITION)?;
    let blob = body.slice(header.blob_at..);
    let mut commands = Vec::new();
    for_each_command(&body[ENTRY_HEADER_BYTES..header.blob_at], |tag, bytes| {
        let command = decode_command(tag, bytes)?;
        check_block(&command, blob.len())?;
        commands.push(command);
        Ok(())
    })?;
    let blob_at = u32::try_from(header.blob_at).map_err(|_| DecodeError::Block)?;
    Ok((
        header.origin,
        Entry {
            stamps: header.stamps,
            commands,
            blob,
        },
        blob_at,
    ))
}

fn encode_command(out: &mut Vec<u8>, command: &Command) {
    match command {
        Command::Push(push) => encode_into(out, push),
        Command::Claim(claim) => encode_into(out, claim),
        Command::Ack(ack) => encode_into(out, ack),
        Command::Extend(extend) => encode_into(out, extend),
        Command::ReleaseClaim(release) => encode_into(out, release),
        Command::ReplayDeadLetter(replay) => encode_into(out, replay),
        Command::DeleteDeadLetter(delete) => encode_into(out, delete),
        Command::PutQueue(put) => encode_into(out, put),
        Command::DeleteQueue(delete) => encode_into(out, delete),
        Command::RegisterGroup(register) => encode_into(out, register),
        Command::Tick => {}
        Command::Sweep(sweep) => encode_into(out, sweep),
        Command::Trim(trim) => encode_into(out, trim),
    }
}

fn decode_command(tag: u8, bytes: &[u8]) -> Result<Command, DecodeError> {
    Ok(match tag {
        1 => Command::Push(decode_from(bytes)?),
        2 => Command::Claim(decode_from(bytes)?),
        3 => Command::Ack(decode_from(bytes)?),
        4 => Command::Extend(decode_from(bytes)?),
        5 => Command::ReleaseClaim(decode_from(bytes)?),
        6 => Command::ReplayDeadLetter(decode_from(bytes)?),
        7 => Command::DeleteDeadLetter(decode_from(bytes)?),
        8 => Command::PutQueue(decode_from(bytes)?),
        9 => Command::DeleteQueue(decode_from(bytes)?),
        10 => Command::RegisterGroup(decode_from(bytes)?),
        11 if bytes.is_empty() => Command::Tick,
        11 => return Err(DecodeError::Trailing { bytes: bytes.len() }),
        12 => Command::Sweep(decode_from(bytes)?),
        15 => Command::Trim(decode_from(bytes)?),
        found => return Err(DecodeError::Tag { found }),
    })
}

fn check_block(command: &Command, blob_bytes: usize) -> Result<(), DecodeError> {
    let block: Block = match command {
        Command::Push(push) => push.block,
        Command::ReplayDeadLetter(replay) => replay.block,
        _ => return Ok(()),
    };
    let end = u64::from(block.at) + u64::from(block.bytes);
    if usize::try_from(end).is_ok_and(|end| end <= blob_bytes) {
        Ok(())
    } else {
        Err(DecodeError::Block)
    }
}

pub(super) fn push_command(out: &mut Vec<u8>, tag: u8, encode: impl FnOnce(&mut Vec<u8>)) {
    out.push(tag);
    let length_at = out.len();
    out.extend_from_slice(&[0; 4]);
    encode(out);
    let bytes = u32::try_from(out.len() - length_at - 4).expect("a command is far smaller than 4 GiB");
    out[length_at..length_at + 4].copy_from_slice(&bytes.to_le_bytes());
}

pub(super) fn for_each_command(
    commands: &[u8],
    mut each: impl FnMut(u8, &[u8]) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    let mut rest = commands;
    while !rest.is_empty() {
        if rest.len() < COMMAND_HEADER_BYTES {
            return Err(DecodeError::Truncated);
        }
        let tag = rest.get_u8();
        let bytes = usize::try_from(rest.get_u32_le()).map_err(|_| DecodeError::Truncated)?;
        let Some((command, after)) = rest.split_at_checked(bytes) else {
            return Err(DecodeError::Truncated);
        };
        each(tag, command)?;
        rest = after;
    }
    Ok(())
}

pub(super) fn assemble(
    kind: u8,
    origin: Origin,
    stamps: Stamps,
    encode: impl FnOnce(&mut Vec<u8>),
    blob: &[u8],
) -> Bytes {
    SCRATCH.with_borrow_mut(|commands| {
        commands.clear();
        encode(commands);
        let mut out = BytesMut::with_capacity(ENTRY_HEADER_BYTES + commands.len() + blob.len());
        out.put_u8(ENTRY_VERSION);
        out.put_u8(kind);
        out.put_u64_le(origin.node);
        out.put_u64_le(origin.proposal);
        out.put_u64_le(stamps.lease.0);
        out.put_u64_le(stamps.wall.0);
        out.put_u32_le(u32::try_from(commands.len()).expect("commands are far smaller than 4 GiB"));
        out.put_slice(commands);
        out.put_slice(blob);
        if commands.capacity() > SCRATCH_BYTES_MAX {
            *commands = Vec::new();
        }
        out.freeze()
    })
}

pub(super) struct Header {
    pub(super) origin: Origin,
    pub(super) stamps: Stamps,
    /// Where the commands end.
    pub(super) blob_at: usize,
}

impl Header {
    pub(super) fn read(body: &[u8], kind: u8) -> Result<Self, DecodeError> {
        let mut bytes = body;
        match bytes.first() {
            Some(&ENTRY_VERSION) => {}
            Some(&found) => return Err(DecodeError::Version { found }),
            None => return Err(DecodeError::Truncated),
        }
        if bytes.len() < ENTRY_HEADER_BYTES {
            return Err(DecodeError::Truncated);
        }
        bytes.advance(1);
        let found = bytes.get_u8();
        if found != kind {
            return Err(DecodeError::Kind { found });
        }
        let origin = Origin {
            node: bytes.get_u64_le(),
            proposal: bytes.get_u64_le(),
        };
        let stamps = Stamps {
            lease: LeaseTime(bytes.get_u64_le()),
            wall: WallTime(bytes.get_u64_le()),
        };
        let commands_bytes = usize::try_from(bytes.get_u32_le()).map_err(|_| DecodeError::Truncated)?;
        if commands_bytes > bytes.len() {
            return Err(DecodeError::Truncated);
        }
        Ok(Self {
            origin,
            stamps,
            blob_at: ENTRY_HEADER_BYTES + commands_bytes,
        })
    }
}
