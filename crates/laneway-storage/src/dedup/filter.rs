//! A Bloom filter in blocks of one cache line: 10 bits per key, about 1.3 % false alarms.

use super::DedupKey;

/// 32-bit words of a block.
const BLOCK_WORDS: usize = 16;

/// Bits set per key; one word of the block has at most one of them each.
const BITS_PER_KEY: usize = 6;

/// Keys per block.
const KEYS_PER_BLOCK: u64 = 51;

/// Which keys a file may hold.
#[derive(Debug, Default)]
pub(super) struct Filter {
    words: Vec<u32>,
}

impl Filter {
    pub(super) fn for_keys(keys: u64) -> Self {
        let blocks = usize::try_from(keys.div_ceil(KEYS_PER_BLOCK)).expect("a file's filter fits memory");
        Self {
            words: vec![0; blocks * BLOCK_WORDS],
        }
    }

    /// `None`: not whole blocks.
    pub(super) fn of_bytes(bytes: &[u8]) -> Option<Self> {
        if !bytes.len().is_multiple_of(BLOCK_WORDS * 4) {
            return None;
        }
        let word = |chunk: &[u8]| u32::from_le_bytes(chunk.try_into().expect("chunks of four"));
        Some(Self {
            words: bytes.chunks_exact(4).map(word).collect(),
        })
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    pub(super) fn bytes(&self) -> usize {
        self.words.len() * 4
    }

    pub(super) fn insert(&mut self, key: DedupKey) {
        if let Some((block, bits)) = self.position(key) {
            for (word, bit) in bits {
                self.words[block + word] |= bit;
            }
        }
    }

    pub(super) fn may_hold(&self, key: DedupKey) -> bool {
        self.position(key)
            .is_some_and(|(block, mut bits)| bits.all(|(word, bit)| self.words[block + word] & bit != 0))
    }

    /// First word of the key's block, and word and bit of each of its marks.
    fn position(&self, key: DedupKey) -> Option<(usize, impl Iterator<Item = (usize, u32)> + use<>)> {
        let blocks = self.words.len() / BLOCK_WORDS;
        if blocks == 0 {
            return None;
        }
        // The upper half picks the block, the lower half the bits: nine bits each, four for the word and five for the bit.
        let upper = key.0 >> 64;
        let block = usize::try_from((upper * u128::try_from(blocks).expect("a length fits u128")) >> 64)
            .expect("below the number of blocks");
        let lower = key.0 & u128::from(u64::MAX);
        let bits = (0..BITS_PER_KEY).map(move |mark| {
            let nine = u32::try_from(lower >> (9 * mark) & 0x1ff).expect("masked to nine bits");
            (
                usize::try_from(nine >> 5).expect("four bits"),
                1u32 << (nine & 31),
            )
        });
        Some((block * BLOCK_WORDS, bits))
    }
}

#[cfg(test)]
mod tests {
    use xxhash_rust::xxh3::xxh3_128;

    use super::*;

    fn key(number: u64) -> DedupKey {
        DedupKey(xxh3_128(&number.to_le_bytes()))
    }

    #[test]
    fn filter_knows_its_keys_and_few_others() {
        let mut filter = Filter::for_keys(100_000);
        (0..100_000).for_each(|number| filter.insert(key(number)));
        let filter = Filter::of_bytes(&filter.to_bytes()).unwrap();
        assert!((0..100_000).all(|number| filter.may_hold(key(number))));
        let false_alarms = (100_000..300_000)
            .filter(|number| filter.may_hold(key(*number)))
            .count();
        assert!(false_alarms < 4_000, "{false_alarms} of 200000");
        assert!(filter.bytes() * 8 <= 100_000 * 11);
    }

    #[test]
    fn empty_filter_holds_nothing() {
        assert!(!Filter::default().may_hold(key(1)));
        assert!(Filter::of_bytes(&[0; 63]).is_none());
    }
}
