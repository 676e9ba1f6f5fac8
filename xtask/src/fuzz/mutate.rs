//! Random changes of inputs.

/// Longest input.
pub(super) const INPUT_BYTES_MAX: usize = 64 * 1024;

/// Most changes of one input.
const CHANGES_MAX: u64 = 6;

/// Longest piece that is copied, removed or repeated.
const PIECE_BYTES_MAX: u64 = 256;

/// Values at the edges of integer types.
const EDGES: [u64; 12] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// SplitMix64.
#[derive(Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Below `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).expect("usize is at most 64 bits");
        usize::try_from(self.next() % bound).expect("below a usize")
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}

/// A changed copy of `input`; `other` is material to splice in, `tokens` are words of the format.
pub(super) fn mutated(random: &mut Random, input: &[u8], other: &[u8], tokens: &[&[u8]]) -> Vec<u8> {
    let mut changed = input.to_vec();
    for _ in 0..=random.next() % CHANGES_MAX {
        change(random, &mut changed, other, tokens);
    }
    changed.truncate(INPUT_BYTES_MAX);
    changed
}

fn change(random: &mut Random, bytes: &mut Vec<u8>, other: &[u8], tokens: &[&[u8]]) {
    let at = random.below(bytes.len() + 1);
    match random.next() % 10 {
        0 => flip_bit(random, bytes, at),
        1 => overwrite(bytes, at, &[random.byte()]),
        2 => write_edge(random, bytes, at),
        3 => {
            let piece = piece(random, bytes);
            insert(bytes, at, &piece);
        }
        4 => {
            let end = (at + random.below(256) + 1).min(bytes.len());
            bytes.drain(at..end);
        }
        5 => {
            let piece = piece(random, other);
            insert(bytes, at, &piece);
        }
        6 => {
            let piece = piece(random, other);
            overwrite(bytes, at, &piece);
        }
        7 if !tokens.is_empty() => {
            let token = tokens[random.below(tokens.len())];
            insert(bytes, at, token);
        }
        8 if !tokens.is_empty() => {
            let token = tokens[random.below(tokens.len())];
            overwrite(bytes, at, token);
        }
        9 => bytes.truncate(at),
        _ => insert(bytes, at, &[random.byte()]),
    }
}

fn flip_bit(random: &mut Random, bytes: &mut [u8], at: usize) {
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << (random.next() % 8);
    }
}

/// An edge value as little-endian integer of 1, 2, 4 or 8 bytes, or as decimal text.
fn write_edge(random: &mut Random, bytes: &mut Vec<u8>, at: usize) {
    let edge = EDGES[random.below(EDGES.len())];
    match random.next() % 5 {
        width @ 0..=3 => {
            let width = 1 << width;
            overwrite(bytes, at, &edge.to_le_bytes()[..width]);
        }
        _ => insert(bytes, at, edge.to_string().as_bytes()),
    }
}

fn piece(random: &mut Random, from: &[u8]) -> Vec<u8> {
    if from.is_empty() {
        return Vec::new();
    }
    let start = random.below(from.len());
    let length = usize::try_from(random.next() % PIECE_BYTES_MAX).expect("small") + 1;
    from[start..(start + length).min(from.len())].to_vec()
}

fn insert(bytes: &mut Vec<u8>, at: usize, piece: &[u8]) {
    if bytes.len() + piece.len() <= INPUT_BYTES_MAX {
        bytes.splice(at..at, piece.iter().copied());
    }
}

fn overwrite(bytes: &mut [u8], at: usize, piece: &[u8]) {
    let end = (at + piece.len()).min(bytes.len());
    bytes[at..end].copy_from_slice(&piece[..end - at]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_series() {
        let series = |seed| {
            let mut random = Random(seed);
            (0..2_000)
                .map(|_| mutated(&mut random, b"{\"a\":1}", b"other", &[b"null"]))
                .collect::<Vec<_>>()
        };
        assert_eq!(series(1), series(1));
        assert_ne!(series(1), series(2));
        assert!(series(3).iter().all(|input| input.len() <= INPUT_BYTES_MAX));
    }
}
