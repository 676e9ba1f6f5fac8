//! The checksum of files and frames.

/// CRC-32 (ISO-HDLC) of the parts, one after the other.
pub fn checksum<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_of_parts_is_that_of_the_whole() {
        assert_eq!(checksum([&b"123456789"[..]]), 0xcbf4_3926); // the check value of the algorithm
        assert_eq!(checksum([&b"1234"[..], b"", b"56789"]), 0xcbf4_3926);
        assert_eq!(checksum([]), 0);
    }
}
