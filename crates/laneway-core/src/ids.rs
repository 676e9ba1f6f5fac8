//! Identifiers. Each is a newtype, so that an offset never meets a lane id unconverted.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::time::WallTime;

/// Number of slots that lanes are hashed to; a table maps slots to partitions.
pub const SLOTS: u16 = 1024;

/// Bits of a lane id that hold the per-slot sequence.
pub const LANE_SEQUENCE_BITS: u32 = 24;

/// Largest per-slot sequence of a lane.
pub const LANE_SEQUENCE_MAX: u32 = (1 << LANE_SEQUENCE_BITS) - 1;

/// Largest offset that fits a message id (40 bits).
pub const OFFSET_MAX: u64 = (1 << 40) - 1;

/// The replicated unit: one actor, one Raft group, many lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PartitionId(pub u16);

impl PartitionId {
    /// The group that orders cluster-wide facts. Not a partition of messages.
    pub const CATALOG: Self = Self(u16::MAX);
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::CATALOG {
            f.write_str("catalog")
        } else {
            self.0.fmt(f)
        }
    }
}

/// One incarnation of a queue: a queue deleted and made again has another id.
///
/// It is the catalog's log index at which the queue was born, so it is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QueueId(pub u64);

impl QueueId {
    /// The id as Queen's API shows it: a UUID (version 8) made from the incarnation.
    pub fn to_uuid_text(self) -> String {
        let mut bits = u128::from(xxh3_64(&self.0.to_le_bytes())) << 64 | u128::from(self.0);
        bits &= !(0xf << 76 | 0x3 << 62);
        bits |= 0x8 << 76 | 0x2 << 62;
        UuidText::new(bits).to_string()
    }
}

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One of [`SLOTS`] hash buckets of lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Slot(pub u16);

impl Slot {
    /// The slot of a lane: `xxh3-64(incarnation, little-endian ‖ lane name) mod 1024`. Golden-tested: it never changes.
    pub fn of(queue: QueueId, lane_name: &str) -> Self {
        let mut hash = Xxh3::new();
        hash.update(&queue.0.to_le_bytes());
        hash.update(lane_name.as_bytes());
        Self(u16::try_from(hash.digest() % u64::from(SLOTS)).expect("a remainder of 1024 fits u16"))
    }
}

/// An ordered sequence inside a queue: `slot << 24 | sequence`. Never reused. Shown in decimal as Queen's `partitionId`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LaneId(pub u64);

impl LaneId {
    /// The lane `sequence` (at most [`LANE_SEQUENCE_MAX`]) of `slot`.
    pub fn new(slot: Slot, sequence: u32) -> Self {
        assert!(
            sequence <= LANE_SEQUENCE_MAX,
            "lane sequence {sequence} is out of range"
        );
        Self(u64::from(slot.0) << LANE_SEQUENCE_BITS | u64::from(sequence))
    }

    /// The slot decides which partition owns the lane.
    pub fn slot(self) -> Slot {
        Slot(u16::try_from(self.0 >> LANE_SEQUENCE_BITS & u64::from(SLOTS - 1)).expect("masked to 10 bits"))
    }
}

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for LaneId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let id: u64 = if digits {
            text.parse().map_err(|_| ParseIdError)?
        } else {
            return Err(ParseIdError);
        };
        if id >> LANE_SEQUENCE_BITS >= u64::from(SLOTS) {
            Err(ParseIdError)
        } else {
            Ok(Self(id))
        }
    }
}

/// Text that is no id of the kind asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an id")]
pub struct ParseIdError;

/// Dense position in a lane, from 0, never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Offset(pub u64);

impl Offset {
    /// The offset `count` further on.
    #[must_use]
    pub fn plus(self, count: u64) -> Self {
        Self(self.0.saturating_add(count))
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Exclusive, timed right to one batch of each of several (lane, group): a UUIDv7 that carries its partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseId(pub u128);

impl LeaseId {
    /// UUIDv7: 48 bits of milliseconds, the partition in `rand_a` and the first 4 bits of `rand_b`, 58 random bits.
    pub fn new(wall: WallTime, partition: PartitionId, random: u64) -> Self {
        let millis = u128::from(wall.0 / 1000) & 0xffff_ffff_ffff;
        let partition = u128::from(partition.0);
        let random = u128::from(random) & ((1 << 58) - 1);
        Self(millis << 80 | 0x7 << 76 | (partition >> 4) << 64 | 0x2 << 62 | (partition & 0xf) << 58 | random)
    }

    /// The partition that owns the lease.
    pub fn partition(self) -> PartitionId {
        let bits = (self.0 >> 64 & 0xfff) << 4 | (self.0 >> 58 & 0xf);
        PartitionId(u16::try_from(bits).expect("masked to 16 bits"))
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&UuidText::new(self.0))
    }
}

impl FromStr for LeaseId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        parse_uuid(text).map(Self)
    }
}

/// A message: UUIDv7 made from (wall stamp, lane id, offset), so it costs no storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MessageId(pub u128);

impl MessageId {
    /// 48 bits of milliseconds, 34 bits of lane id, 40 bits of offset.
    pub fn new(wall: WallTime, lane: LaneId, offset: Offset) -> Self {
        let millis = u128::from(wall.0 / 1000) & 0xffff_ffff_ffff;
        let low = u128::from(lane.0) << 40 | u128::from(offset.0 & OFFSET_MAX);
        let rand_a = low >> 62 & 0xfff;
        let rand_b = low & ((1 << 62) - 1);
        Self(millis << 80 | 0x7 << 76 | rand_a << 64 | 0x2 << 62 | rand_b)
    }

    /// The id as clients see it.
    pub fn text(self) -> UuidText {
        UuidText::new(self.0)
    }

    /// The lane and offset that the id was made from; nothing says that such a message exists.
    pub fn position(self) -> (LaneId, Offset) {
        let low = (self.0 >> 64 & 0xfff) << 62 | self.0 & ((1 << 62) - 1);
        let lane = u64::try_from(low >> 40).expect("34 bits");
        let offset = u64::try_from(low & u128::from(OFFSET_MAX)).expect("40 bits");
        (LaneId(lane), Offset(offset))
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&UuidText::new(self.0))
    }
}

impl FromStr for MessageId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        parse_uuid(text).map(Self)
    }
}

/// A dead letter's row: partition (16 bits) ‖ sequence (48 bits), minted when it is filed, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeadLetterId(pub u64);

impl DeadLetterId {
    /// The `sequence`-th dead letter of `partition`.
    pub fn new(partition: PartitionId, sequence: u64) -> Self {
        Self(u64::from(partition.0) << 48 | sequence)
    }

    /// The partition that holds the row.
    pub fn partition(self) -> PartitionId {
        PartitionId(u16::try_from(self.0 >> 48).expect("16 bits"))
    }
}

impl fmt::Display for DeadLetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for DeadLetterId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if digits {
            text.parse().map(Self).map_err(|_| ParseIdError)
        } else {
            Err(ParseIdError)
        }
    }
}

/// Position in the catalog's log; orders changes of queue rows and groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CatalogVersion(pub u64);

/// The lower-case hyphenated text of a UUID, held in place: one is written for each message that is pushed or delivered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UuidText([u8; UUID_TEXT_BYTES]);

const UUID_TEXT_BYTES: usize = 36;

impl UuidText {
    /// The text of 128 bits.
    pub fn new(bits: u128) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [b'-'; UUID_TEXT_BYTES];
        let places = (0..UUID_TEXT_BYTES).filter(|at| !is_hyphen(*at));
        let nibbles = bits
            .to_be_bytes()
            .into_iter()
            .flat_map(|byte| [byte >> 4, byte & 0xf]);
        for (at, nibble) in places.zip(nibbles) {
            text[at] = DIGITS[usize::from(nibble)];
        }
        Self(text)
    }
}

impl std::ops::Deref for UuidText {
    type Target = str;

    fn deref(&self) -> &str {
        std::str::from_utf8(&self.0).expect("hexadecimal digits and hyphens")
    }
}

impl fmt::Debug for UuidText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

/// Where the hyphens of a UUID stand.
fn is_hyphen(at: usize) -> bool {
    matches!(at, 8 | 13 | 18 | 23)
}

/// Reads hyphenated UUID text; upper case is accepted.
pub fn parse_uuid(text: &str) -> Result<u128, ParseIdError> {
    let bytes = text.as_bytes();
    if bytes.len() != UUID_TEXT_BYTES {
        return Err(ParseIdError);
    }
    let mut bits = 0u128;
    for (at, &byte) in bytes.iter().enumerate() {
        if is_hyphen(at) {
            if byte != b'-' {
                return Err(ParseIdError);
            }
            continue;
        }
        let digit = char::from(byte).to_digit(16).ok_or(ParseIdError)?;
        bits = bits << 4 | u128::from(digit);
    }
    Ok(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_id_carries_its_partition() {
        for partition in [0, 1, 0x1234, u16::MAX] {
            let id = LeaseId::new(WallTime(1_700_000_000_000_000), PartitionId(partition), u64::MAX);
            assert_eq!(id.partition(), PartitionId(partition));
            let text = id.to_string();
            assert_eq!(&text[14..15], "7");
            assert_eq!(text.parse(), Ok(id));
        }
    }

    #[test]
    fn message_id_names_its_position() {
        let lane = LaneId::new(Slot(1023), LANE_SEQUENCE_MAX);
        let id = MessageId::new(WallTime(1_700_000_000_123_456), lane, Offset(OFFSET_MAX));
        assert_eq!(id.position(), (lane, Offset(OFFSET_MAX)));
        assert_eq!(id.to_string().parse(), Ok(id));
    }

    #[test]
    fn uuid_text_is_golden_and_reads_back() {
        let bits = 0x0123_4567_89ab_cdef_0011_2233_4455_6677;
        let text = UuidText::new(bits);
        assert_eq!(&*text, "01234567-89ab-cdef-0011-223344556677");
        for bits in [0, 1, bits, u128::MAX] {
            assert_eq!(parse_uuid(&UuidText::new(bits)), Ok(bits));
        }
    }

    #[test]
    fn slots_are_golden() {
        let slots =
            [(1, "Default"), (1, "eu"), (7, ""), (u64::MAX, "名前")].map(|(q, n)| Slot::of(QueueId(q), n).0);
        assert_eq!(slots, [778, 824, 687, 387]);
    }

    #[test]
    fn lane_ids_parse_only_their_own_form() {
        assert_eq!("17".parse(), Ok(LaneId(17)));
        for bad in ["", "-1", "+1", "x", " 1", "99999999999999999999", "17179869184"] {
            assert_eq!(bad.parse::<LaneId>(), Err(ParseIdError), "{bad}");
        }
    }
}
