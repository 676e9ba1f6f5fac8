//! Named points at which a test kills the process (feature `failpoints`, absent from release builds).
//!
//! With the feature on, `LANEWAY_FAILPOINT=name:count` in the environment aborts the process at the `count`-th time
//! (from 1) that the named point is reached. Without it [`hit`] is empty.

/// Marks a durability step. Aborts the process if a test armed this point.
#[cfg(feature = "failpoints")]
pub fn hit(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static ARMED: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static HITS: AtomicU64 = AtomicU64::new(0);

    let armed = ARMED.get_or_init(|| {
        let text = std::env::var("LANEWAY_FAILPOINT").ok()?;
        let (name, count) = text.split_once(':')?;
        Some((name.to_owned(), count.parse().ok()?))
    });
    if let Some((armed, count)) = armed
        && armed == name
        && HITS.fetch_add(1, Ordering::Relaxed) + 1 == *count
    {
        std::process::abort();
    }
}

/// Marks a durability step.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn hit(_name: &str) {}
