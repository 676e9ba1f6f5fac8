//! Reads the records of one segment and tells a torn tail from damage.

use std::ops::Range;

use super::format::{
    RECORD_HEADER_BYTES, RecordHeader, RecordKind, SEGMENT_HEADER_BYTES, SegmentHeader, find_life,
};

/// What a look at all bytes of a segment found.
#[derive(Debug)]
pub(crate) struct SegmentScan {
    /// Where the sound records end; all before it is sound, gapless and in order.
    pub(crate) end: usize,
    /// Number of the last drain that a sound record belongs to.
    pub(crate) last_drain: u64,
    /// Where that drain starts.
    pub(crate) last_drain_at: usize,
    /// End of the last trace of a torn drain after `end`; equal to `end` if there is none.
    pub(crate) torn_end: usize,
}

/// Bytes that no crash explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    pub(crate) at: usize,
    pub(crate) what: &'static str,
}

/// Reads a segment, calling `each` for every sound record with the place of its body.
///
/// A drain is written only after the one before it was synced. So bad bytes after which no later drain begins are the
/// torn tail of the last drain, and nobody was told of it; bad bytes before the start of a later drain are damage.
pub(crate) fn scan_segment(
    bytes: &[u8],
    mut each: impl FnMut(&RecordHeader, Range<usize>) -> Result<(), &'static str>,
) -> Result<SegmentScan, Damage> {
    let damage = |at, what| Damage { at, what };
    let header = SegmentHeader::decode(bytes).ok_or_else(|| damage(0, "its header cannot be read"))?;
    let mut at = SEGMENT_HEADER_BYTES;
    let mut drain = header.first_drain;
    let mut drain_at = at;
    while let Some((record, body)) = read_record(bytes, header.life, at) {
        if at == SEGMENT_HEADER_BYTES && record.kind != RecordKind::State {
            return Err(damage(at, "its first record is not the one expected"));
        }
        let next_drain = record.drain == drain.wrapping_add(1) && usize_of(record.drain_at) == at;
        if next_drain {
            drain = record.drain;
            drain_at = at;
        } else if record.drain != drain || usize_of(record.drain_at) != drain_at {
            return Err(damage(at, "a record does not follow the one before it"));
        }
        each(&record, body.clone()).map_err(|what| damage(at, what))?;
        at = body.end;
    }
    if at == SEGMENT_HEADER_BYTES {
        // Written and synced before the file got its name.
        return Err(damage(at, "its first record cannot be read"));
    }
    let torn_end = torn_tail(bytes, &header, at, drain, drain_at)?;
    Ok(SegmentScan {
        end: at,
        last_drain: drain,
        last_drain_at: drain_at,
        torn_end,
    })
}

/// Looks behind the first bad bytes (at `end`) for records of the same life.
fn torn_tail(
    bytes: &[u8],
    header: &SegmentHeader,
    end: usize,
    drain: u64,
    drain_at: usize,
) -> Result<usize, Damage> {
    let mut torn_end = end;
    let mut from = end;
    while let Some(at) = find_life(bytes, header.life, from) {
        let Some(record) = RecordHeader::decode(&bytes[at..], header.life) else {
            from = at + 1;
            continue;
        };
        let start = usize_of(record.drain_at);
        let same = record.drain == drain && start == drain_at
            || record.drain == drain.wrapping_add(1) && start == end;
        if !same {
            return Err(Damage {
                at: end,
                what: "bad bytes, and a later write behind them",
            });
        }
        from = at.saturating_add(record.record_bytes());
        torn_end = torn_end.max(from.min(bytes.len()));
    }
    Ok(torn_end)
}

/// The sound record at `at` and the place of its body.
fn read_record(bytes: &[u8], life: u64, at: usize) -> Option<(RecordHeader, Range<usize>)> {
    let record = RecordHeader::decode(bytes.get(at..)?, life)?;
    let body = at + RECORD_HEADER_BYTES..at.checked_add(record.record_bytes())?;
    let sound = crc32fast::hash(bytes.get(body.clone())?) == record.body_crc;
    sound.then_some((record, body))
}

fn usize_of(position: u32) -> usize {
    usize::try_from(position).expect("usize has at least 32 bits")
}
