//! A hash over rows that is the same on every machine.

use std::hash::{Hash, Hasher};

use xxhash_rust::xxh3::Xxh3;

/// Feeds integers as little-endian and lengths as 64 bits, whatever the machine.
#[derive(Default)]
struct DigestHasher(Xxh3);

impl Hasher for DigestHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn write_u16(&mut self, value: u16) {
        self.write(&value.to_le_bytes());
    }

    fn write_u32(&mut self, value: u32) {
        self.write(&value.to_le_bytes());
    }

    fn write_u64(&mut self, value: u64) {
        self.write(&value.to_le_bytes());
    }

    fn write_u128(&mut self, value: u128) {
        self.write(&value.to_le_bytes());
    }

    fn write_usize(&mut self, value: usize) {
        self.write(&u64::try_from(value).unwrap_or(u64::MAX).to_le_bytes());
    }

    fn write_i64(&mut self, value: i64) {
        self.write(&value.to_le_bytes());
    }

    fn write_isize(&mut self, value: isize) {
        self.write(&i64::try_from(value).unwrap_or(i64::MAX).to_le_bytes());
    }

    fn finish(&self) -> u64 {
        self.0.digest()
    }
}

/// Hash of all rows, which come in key order. Comparable between replicas that run the same build.
pub(crate) fn of_rows<K: Hash, R: Hash>(rows: impl Iterator<Item = (K, Option<R>)>) -> u64 {
    let mut hasher = DigestHasher::default();
    for (key, row) in rows {
        key.hash(&mut hasher);
        row.hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_depends_on_keys_and_rows() {
        let of = |key: u16, row: Option<&str>| of_rows([(key, row)].into_iter());
        assert_eq!(of(1, Some("a")), of(1, Some("a")));
        assert_ne!(of(1, Some("a")), of(2, Some("a")));
        assert_ne!(of(1, Some("a")), of(1, Some("b")));
        assert_ne!(of(1, Some("a")), of(1, None));
    }
}
