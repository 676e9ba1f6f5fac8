//! Bodies of the catalog's log entries: the layout of [`super::entry`] with kind 1 and without a blob.

use bytes::Bytes;
use laneway_core::catalog::{CatalogCommand, CatalogEntry};

use super::entry::{ENTRY_HEADER_BYTES, Header, Origin, assemble, for_each_command, push_command};
use super::{DecodeError, decode_from, encode_into};

const KIND_CATALOG: u8 = 1;

/// Encodes an entry of the catalog's log.
pub fn encode_catalog_entry(origin: Origin, entry: &CatalogEntry) -> Bytes {
    let encode = |out: &mut Vec<u8>| {
        for command in &entry.commands {
            push_command(out, command.tag(), |out| encode_command(out, command));
        }
    };
    assemble(KIND_CATALOG, origin, entry.stamps, encode, &[])
}

/// Decodes an entry of the catalog's log.
pub fn decode_catalog_entry(body: &Bytes) -> Result<(Origin, CatalogEntry), DecodeError> {
    let header = Header::read(body, KIND_CATALOG)?;
    if header.blob_at < body.len() {
        return Err(DecodeError::Trailing {
            bytes: body.len() - header.blob_at,
        });
    }
    let mut commands = Vec::new();
    for_each_command(&body[ENTRY_HEADER_BYTES..], |tag, bytes| {
        commands.push(decode_command(tag, bytes)?);
        Ok(())
    })?;
    Ok((
        header.origin,
        CatalogEntry {
            stamps: header.stamps,
            commands,
        },
    ))
}

fn encode_command(out: &mut Vec<u8>, command: &CatalogCommand) {
    match command {
        CatalogCommand::CreateQueue { name, listed } => encode_into(out, &(name, listed)),
        CatalogCommand::Configure { name, patch, merge } => encode_into(out, &(name, patch, merge)),
        CatalogCommand::DeleteQueue { name } => encode_into(out, name),
        CatalogCommand::RegisterGroup { queue, group, start } => encode_into(out, &(queue, group, start)),
        CatalogCommand::ForgetTombstones { up_to } => encode_into(out, up_to),
        CatalogCommand::Tick => {}
    }
}

fn decode_command(tag: u8, bytes: &[u8]) -> Result<CatalogCommand, DecodeError> {
    Ok(match tag {
        1 => {
            let (name, listed) = decode_from(bytes)?;
            CatalogCommand::CreateQueue { name, listed }
        }
        2 => {
            let (name, patch, merge) = decode_from(bytes)?;
            CatalogCommand::Configure { name, patch, merge }
        }
        3 => CatalogCommand::DeleteQueue {
            name: decode_from(bytes)?,
        },
        4 => {
            let (queue, group, start) = decode_from(bytes)?;
            CatalogCommand::RegisterGroup { queue, group, start }
        }
        5 => CatalogCommand::ForgetTombstones {
            up_to: decode_from(bytes)?,
        },
        6 if bytes.is_empty() => CatalogCommand::Tick,
        6 => return Err(DecodeError::Trailing { bytes: bytes.len() }),
        found => return Err(DecodeError::Tag { found }),
    })
}
