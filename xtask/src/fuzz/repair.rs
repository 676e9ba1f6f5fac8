//! Checksums made to fit after a mutation, by the formats as the modules of `laneway-storage` document them.
//!
//! Best effort: where lengths make no sense it stops, and the parser meets a wrong checksum instead.

/// Bytes of a WAL segment before its first record.
const SEGMENT_HEADER_BYTES: usize = 4096;

/// Bytes of a WAL record before its body.
const RECORD_HEADER_BYTES: usize = 64;

/// Rows of a whole page of a dedup file, bytes of a row, bytes before the rows.
const DEDUP_PAGE: (usize, usize, usize) = (146, 28, 6);

/// `wal/format.rs`
pub(super) fn wal(bytes: &mut [u8]) {
    if bytes.len() < SEGMENT_HEADER_BYTES {
        return;
    }
    let crc = crc32fast::hash(&bytes[16..64]);
    put(bytes, 12, crc);
    let life = u64_at(bytes, 24).unwrap_or(0).to_le_bytes();
    let mut at = SEGMENT_HEADER_BYTES;
    while let Some(body_bytes) = u32_at(bytes, at + 8) {
        // What is not written yet is zeros.
        if bytes[at..]
            .iter()
            .take(RECORD_HEADER_BYTES)
            .all(|byte| *byte == 0)
        {
            return;
        }
        let (body_at, body_bytes) = (at + RECORD_HEADER_BYTES, size(body_bytes));
        let Some(body) = bytes.get(body_at..body_at.saturating_add(body_bytes)) else {
            return;
        };
        let crc = crc32fast::hash(body);
        put(bytes, at + 12, crc);
        bytes[at + 16..at + 24].copy_from_slice(&life);
        let crc = crc32fast::hash(&bytes[at + 4..body_at]);
        put(bytes, at, crc);
        at = body_at + body_bytes;
    }
}

/// Of a frame between nodes.
const PEER_HEADER_BYTES: usize = 24;

/// `peer/frame.rs` of `laneway-raft`
pub(super) fn peer(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(body_bytes) = u32_at(bytes, at) {
        let body_at = at.saturating_add(PEER_HEADER_BYTES);
        let end = body_at.saturating_add(size(body_bytes));
        let Some(body) = bytes.get(body_at..end) else {
            return;
        };
        let of_body = crc32fast::hash(body);
        put(bytes, at + 4, of_body);
        let of_header = crc32fast::hash(&bytes[at..body_at - 4]);
        put(bytes, body_at - 4, of_header);
        at = end;
    }
}

/// `checkpoint/file.rs`, or `checkpoint/manifest.rs` when the bytes begin so.
pub(super) fn checkpoint(bytes: &mut [u8]) {
    if bytes.starts_with(b"LWmf") {
        if let Some(end) = bytes.len().checked_sub(4) {
            let crc = crc32fast::hash(&bytes[..end]);
            put(bytes, end, crc);
        }
        return;
    }
    let Some(number) = u64_at(bytes, 8) else { return };
    if bytes.len() < 28 {
        return;
    }
    let crc = crc32fast::hash(&bytes[..24]);
    put(bytes, 24, crc);
    let mut at = 28;
    while let Some(body_bytes) = u32_at(bytes, at + 1) {
        let end = (at + 9).saturating_add(size(body_bytes));
        let Some(body) = bytes.get(at + 9..end) else {
            return;
        };
        let crc = hash(&[&number.to_le_bytes(), &position(at), &bytes[at..=at], body]);
        put(bytes, at + 5, crc);
        at = end;
    }
}

/// `backlog.rs`
pub(super) fn backlog(bytes: &mut [u8]) {
    let Some(header_bytes) = u32_at(bytes, 5).map(size) else {
        return;
    };
    let header_end = header_bytes.saturating_add(9);
    let (Some(number), Some(footer_at)) = (u64_at(bytes, 11), bytes.len().checked_sub(32)) else {
        return;
    };
    if header_end.saturating_add(4) > footer_at {
        return;
    }
    let crc = crc32fast::hash(&bytes[..header_end]);
    put(bytes, header_end, crc);
    let mut at = header_end + 4;
    while at + 8 <= footer_at {
        let body_bytes = u32_at(bytes, at + 4).map_or(0, size);
        let end = (at + 8).saturating_add(body_bytes);
        if end > footer_at {
            break;
        }
        let crc = hash(&[&number.to_le_bytes(), &position(at), &bytes[at + 8..end]]);
        put(bytes, at, crc);
        at = end;
    }
    let crc = hash(&[
        &number.to_le_bytes(),
        &position(0),
        &bytes[footer_at..footer_at + 24],
    ]);
    put(bytes, footer_at + 24, crc);
}

/// `dedup/file.rs`
pub(super) fn dedup(bytes: &mut [u8]) {
    let Some(footer_at) = bytes.len().checked_sub(56).filter(|at| *at >= 17) else {
        return;
    };
    let crc = crc32fast::hash(&bytes[..13]);
    put(bytes, 13, crc);
    let number = u64_at(bytes, 5).unwrap_or(0).to_le_bytes();
    let rows = usize::try_from(u64_at(bytes, footer_at).unwrap_or(0)).unwrap_or(usize::MAX);
    let filter_bytes = usize::try_from(u64_at(bytes, footer_at + 32).unwrap_or(0)).unwrap_or(usize::MAX);
    let (page_rows, row_bytes, page_header) = DEDUP_PAGE;
    let mut at = 17;
    let mut page = 0;
    while page * page_rows < rows {
        let end = at + page_header + (rows - page * page_rows).min(page_rows) * row_bytes;
        if end > footer_at {
            return;
        }
        let crc = hash(&[&number, &position(page), &bytes[at + page_header..end]]);
        put(bytes, at, crc);
        at = end;
        page += 1;
    }
    let filter_at = at + page * 8;
    if filter_at.saturating_add(filter_bytes) != footer_at {
        return;
    }
    let crc = crc32fast::hash(&bytes[at..filter_at]);
    put(bytes, footer_at + 40, crc);
    let crc = crc32fast::hash(&bytes[filter_at..footer_at]);
    put(bytes, footer_at + 44, crc);
    let crc = hash(&[&number, &bytes[footer_at..footer_at + 48]]);
    put(bytes, footer_at + 48, crc);
}

fn hash(parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize()
}

fn position(at: usize) -> [u8; 8] {
    u64::try_from(at).expect("usize is at most 64 bits").to_le_bytes()
}

fn size(bytes: u32) -> usize {
    usize::try_from(bytes).expect("32 bits fit")
}

fn put(bytes: &mut [u8], at: usize, crc: u32) {
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&crc.to_le_bytes());
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|chunk| u32::from_le_bytes(*chunk))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|chunk| u64::from_le_bytes(*chunk))
}
