//! Entry point for fuzzing.

use super::reader::scan_segment;
use super::replay::Replay;

/// Runs the segment reader and the replay over arbitrary bytes, as at start: for `cargo xtask fuzz` and tests only.
///
/// Returns how many records were taken for sound. Never panics, and uses memory in proportion to `bytes`.
#[doc(hidden)]
pub fn fuzz_segment(bytes: &[u8]) -> usize {
    let mut replay = Replay::default();
    let mut records = 0;
    let scan = scan_segment(bytes, |record, body| {
        records += 1;
        replay.apply(record, &bytes[body.clone()], 0, body.start)
    });
    if scan.is_ok() {
        let _ = replay.check();
    }
    records
}
