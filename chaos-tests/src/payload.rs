//! Message bodies: unique JSON texts that tell who made them, and the hash that names them in a history.

use std::fmt::Write;

use xxhash_rust::xxh3::xxh3_64;

/// Consumers of failing groups fail a message with this mark again and again.
const POISON_MARK: &str = "\"poison\":true";

/// Names a payload by its raw JSON text.
pub fn payload_hash(text: &str) -> u64 {
    xxh3_64(text.as_bytes())
}

/// A JSON object, unique by (`client`, `number`), at least `bytes` long, with a filler that no byte run repeats.
pub fn json_payload(client: u32, number: u64, poison: bool, bytes: usize) -> String {
    let mut text = format!("{{\"client\":{client},\"number\":{number}");
    if poison {
        text.push(',');
        text.push_str(POISON_MARK);
    }
    text.push_str(",\"filler\":\"");
    let seed = xxh3_64(text.as_bytes());
    push_filler(&mut text, seed, bytes.saturating_sub(2));
    text.push_str("\"}");
    text
}

/// Whether the payload asks to be failed.
pub fn is_poison(text: &str) -> bool {
    text.contains(POISON_MARK)
}

/// A JSON string of exactly `bytes` bytes (at least 34): 32 hex digits of (`number`, `micros`), then filler.
pub fn sized_payload(number: u64, micros: u64, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes);
    text.push('"');
    let _infallible = write!(text, "{number:016x}{micros:016x}");
    push_filler(&mut text, number, bytes.saturating_sub(1));
    text.push('"');
    text
}

/// Number and time of a [`sized_payload`]; `None` for another text.
pub fn read_sized_payload(text: &str) -> Option<(u64, u64)> {
    let field = |from: usize| u64::from_str_radix(text.get(from..from + 16)?, 16).ok();
    Some((field(1)?, field(17)?))
}

/// Fills `text` up to `bytes_end` bytes with letters of a 64-letter alphabet.
fn push_filler(text: &mut String, seed: u64, bytes_end: usize) {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut state = seed ^ 0x9E37_79B9_7F4A_7C15;
    while text.len() < bytes_end {
        // xorshift64*, ten letters a turn
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let mut bits = state.wrapping_mul(0x2545_F491_4F6C_DD1D);
        for _ in 0..10.min(bytes_end - text.len()) {
            text.push(char::from(LETTERS[usize::from((bits & 63) as u8)]));
            bits >>= 6;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sized_payload_is_exact_json_and_comes_back() {
        for bytes in [34, 256, 1024] {
            let text = sized_payload(77, u64::MAX - 1, bytes);
            assert_eq!(text.len(), bytes);
            assert!(serde_json::from_str::<String>(&text).is_ok());
            assert_eq!(read_sized_payload(&text), Some((77, u64::MAX - 1)));
        }
        assert_eq!(read_sized_payload("\"short\""), None);
    }

    #[test]
    fn payloads_are_json_unique_and_marked() {
        let plain = json_payload(1, 2, false, 200);
        let poison = json_payload(1, 2, true, 200);
        assert!(!is_poison(&plain) && is_poison(&poison));
        assert_eq!(plain.len(), 200);
        assert_ne!(
            payload_hash(&plain),
            payload_hash(&json_payload(1, 3, false, 200))
        );
        let value: serde_json::Value = serde_json::from_str(&poison).unwrap();
        assert_eq!(value["number"], 2);
        assert_eq!(
            serde_json::to_string(&serde_json::value::RawValue::from_string(plain.clone()).unwrap()).unwrap(),
            plain
        );
    }
}
