//! Rows in memory, and what a row is.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

use laneway_core::ids::{OFFSET_MAX, Offset};
use laneway_core::time::WallTime;

use super::DedupKey;
use crate::sealed::FileError;

/// Bytes of a row, in memory and on disk: 16 of the key, 12 of the rest.
pub(super) const ROW_BYTES: u64 = 28;

/// Hash tables, by the key's highest bits: none is ever large, so growing one never takes long.
const SHARD_BITS: u32 = 7;

const WALL_BITS: u32 = 52;
const OFFSET_BITS: u32 = 40;

/// Offset, stamp and window of a message in 96 bits: 40 ‖ 52 ‖ 4.
///
/// The window is kept as the smallest class whose length, 4^class seconds, is not shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place([u32; 3]);

/// The highest window class: 34 years.
const CLASS_MAX: u32 = 15;

/// A row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) key: DedupKey,
    pub(super) place: Place,
}

impl Place {
    pub(super) fn new(offset: Offset, wall: WallTime, window_seconds: u64) -> Self {
        let offset = u128::from(offset.0.min(OFFSET_MAX));
        let wall = u128::from(wall.0.min((1 << WALL_BITS) - 1));
        let class = (0..CLASS_MAX)
            .find(|class| class_seconds(*class) >= window_seconds)
            .unwrap_or(CLASS_MAX);
        let bits = offset << (WALL_BITS + 4) | wall << 4 | u128::from(class);
        Self([low32(bits >> 64), low32(bits >> 32), low32(bits)])
    }

    fn bits(self) -> u128 {
        self.0.iter().fold(0, |bits, word| bits << 32 | u128::from(*word))
    }

    pub(super) fn offset(self) -> Offset {
        Offset(low64(self.bits() >> (WALL_BITS + 4)))
    }

    pub(super) fn wall(self) -> WallTime {
        WallTime(low64(self.bits() >> 4) & ((1 << WALL_BITS) - 1))
    }

    /// When the row may be dropped.
    pub(super) fn kept_until(self) -> WallTime {
        self.wall()
            .plus_seconds(class_seconds(low32(self.bits()) & CLASS_MAX))
    }

    pub(super) fn found(self) -> (Offset, WallTime) {
        (self.offset(), self.wall())
    }

    pub(super) fn to_bytes(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        for (chunk, word) in bytes.chunks_exact_mut(4).zip(self.0) {
            chunk.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    pub(super) fn of_bytes(bytes: [u8; 12]) -> Self {
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self([word(0), word(4), word(8)])
    }
}

const _: () = assert!(WALL_BITS + OFFSET_BITS + 4 == 96 && OFFSET_MAX == (1 << OFFSET_BITS) - 1);

fn class_seconds(class: u32) -> u64 {
    1 << (2 * class)
}

fn low32(bits: u128) -> u32 {
    u32::try_from(bits & u128::from(u32::MAX)).expect("masked to 32 bits")
}

fn low64(bits: u128) -> u64 {
    u64::try_from(bits & u128::from(u64::MAX)).expect("masked to 64 bits")
}

/// A key in four words, so that a table's entry takes 28 bytes and not 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PackedKey([u32; 4]);

impl PackedKey {
    fn new(key: DedupKey) -> Self {
        Self([
            low32(key.0 >> 96),
            low32(key.0 >> 64),
            low32(key.0 >> 32),
            low32(key.0),
        ])
    }

    fn key(self) -> DedupKey {
        DedupKey(self.0.iter().fold(0, |bits, word| bits << 32 | u128::from(*word)))
    }
}

const _: () = assert!(size_of::<(PackedKey, Place)>() == 28);

impl Hash for PackedKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // A key is a hash already; half of it will do.
        state.write_u64(u64::from(self.0[2]) << 32 | u64::from(self.0[3]));
    }
}

/// Takes the number it is given for the hash.
#[derive(Debug, Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

type Table = HashMap<PackedKey, Place, BuildHasherDefault<KeyHasher>>;

/// Rows in memory: the newest of each key.
#[derive(Debug)]
pub(super) struct MemoryRows {
    shards: Vec<Table>,
    len: u64,
}

impl Default for MemoryRows {
    fn default() -> Self {
        Self {
            shards: (0..1 << SHARD_BITS).map(|_| Table::default()).collect(),
            len: 0,
        }
    }
}

impl MemoryRows {
    fn shard(key: DedupKey) -> usize {
        usize::try_from(key.0 >> (128 - SHARD_BITS)).expect("a few bits")
    }

    pub(super) fn insert(&mut self, key: DedupKey, offset: Offset, wall: WallTime, window_seconds: u64) {
        let place = Place::new(offset, wall, window_seconds);
        let table = &mut self.shards[Self::shard(key)];
        let before = table.len();
        let newest = table.entry(PackedKey::new(key)).or_insert(place);
        if newest.wall() <= place.wall() {
            *newest = place;
        }
        self.len += u64::try_from(table.len() - before).expect("0 or 1");
    }

    pub(super) fn get(&self, key: DedupKey) -> Option<(Offset, WallTime)> {
        self.shards[Self::shard(key)]
            .get(&PackedKey::new(key))
            .map(|place| place.found())
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let capacity: usize = self.shards.iter().map(HashMap::capacity).sum();
        // A table is at most 7/8 full and has one byte of its own per place.
        u64::try_from(capacity).expect("a length fits u64") * (ROW_BYTES + 1) * 8 / 7
    }
}

/// Calls `each` with the newest row of each key, in order of the keys; one shard's rows at a time are copied.
pub(super) fn each_sorted(
    parts: &[Arc<MemoryRows>],
    each: &mut dyn FnMut(Row) -> Result<(), FileError>,
) -> Result<(), FileError> {
    for shard in 0..1 << SHARD_BITS {
        let mut rows: Vec<Row> = Vec::new();
        for part in parts {
            rows.extend(part.shards[shard].iter().map(|(key, place)| Row {
                key: key.key(),
                place: *place,
            }));
        }
        rows.sort_unstable_by_key(|row| (row.key, row.place.wall()));
        let mut rows = rows.into_iter().peekable();
        while let Some(row) = rows.next() {
            if rows.peek().is_none_or(|next| next.key != row.key) {
                each(row)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_back() {
        for (offset, wall, window) in [
            (0, 0, 0),
            (OFFSET_MAX, (1 << 52) - 1, 3600),
            (77, 1_700_000_000_000_000, 1),
        ] {
            let place = Place::of_bytes(Place::new(Offset(offset), WallTime(wall), window).to_bytes());
            assert_eq!(place.found(), (Offset(offset), WallTime(wall)));
            assert!(place.kept_until() >= WallTime(wall).plus_seconds(window));
        }
        let kept = |window| Place::new(Offset(0), WallTime(0), window).kept_until();
        assert_eq!(kept(3600), WallTime(4_096_000_000));
        assert_eq!(kept(u64::MAX), WallTime(0).plus_seconds(1 << 30));
    }

    #[test]
    fn newest_row_of_a_key_is_kept() {
        let mut rows = MemoryRows::default();
        let key = DedupKey(u128::MAX - 5);
        rows.insert(key, Offset(1), WallTime(10), 60);
        rows.insert(key, Offset(2), WallTime(20), 60);
        rows.insert(key, Offset(3), WallTime(15), 60);
        assert_eq!(rows.get(key), Some((Offset(2), WallTime(20))));
        assert_eq!(rows.len(), 1);
        assert_eq!(rows.get(DedupKey(7)), None);
    }
}
