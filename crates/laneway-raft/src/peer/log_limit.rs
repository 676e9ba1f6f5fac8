//! Keeps those who misbehave at the peer port from filling the log.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::lock;

/// Between two lines about the same host or node for the same kind of reason.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Hosts and kinds told apart at a time. All others share one line.
const KEYS_MAX: usize = 64;

/// When each kind of line was last written, by host.
#[derive(Debug, Default)]
pub(super) struct LogLimit(Mutex<HashMap<(String, &'static str), Written>>);

#[derive(Clone, Copy, Debug)]
struct Written {
    at: Instant,
    left_out: u64,
}

impl LogLimit {
    /// Whether a line about `whom` (an address as `host:port`, or the name of a node) for this kind of reason is due; if so, how
    /// many were left out since the last.
    pub(super) fn due(&self, whom: &str, kind: &'static str) -> Option<u64> {
        self.due_at(Instant::now(), whom, kind)
    }

    fn due_at(&self, now: Instant, whom: &str, kind: &'static str) -> Option<u64> {
        // Each connection comes from another port.
        let host = whom.rsplit_once(':').map_or(whom, |(host, _)| host);
        let mut written = lock(&self.0);
        let mut key = (host.to_owned(), kind);
        if written.len() >= KEYS_MAX && !written.contains_key(&key) {
            written.retain(|_, last| now.duration_since(last.at) < LOG_EVERY);
            if written.len() >= KEYS_MAX {
                key = (String::new(), "others");
            }
        }
        let Some(last) = written.get_mut(&key) else {
            let first = Written { at: now, left_out: 0 };
            written.insert(key, first);
            return Some(0);
        };
        if now.duration_since(last.at) < LOG_EVERY {
            last.left_out += 1;
            return None;
        }
        last.at = now;
        Some(std::mem::take(&mut last.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_and_kind_has_one_line_in_a_while() {
        let (limit, start) = (LogLimit::default(), Instant::now());
        let later = start + LOG_EVERY;
        assert_eq!(limit.due_at(start, "10.0.0.1:4000", "silent"), Some(0));
        for port in 0..1000 {
            assert_eq!(limit.due_at(start, &format!("10.0.0.1:{port}"), "silent"), None);
        }
        assert_eq!(limit.due_at(start, "10.0.0.1:4000", "flood"), Some(0));
        assert_eq!(limit.due_at(start, "[::1]:4000", "silent"), Some(0));
        assert_eq!(limit.due_at(later, "10.0.0.1:4000", "silent"), Some(1000));
        assert_eq!(limit.due_at(later, "10.0.0.1:4000", "silent"), None);
    }

    #[test]
    fn many_hosts_share_one_line() {
        let (limit, start) = (LogLimit::default(), Instant::now());
        let lines = |at| {
            let hosts = (0..10_000).map(|host| format!("10.0.{}.{}:1", host / 256, host % 256));
            hosts
                .filter(|host| limit.due_at(at, host, "silent").is_some())
                .count()
        };
        assert_eq!(lines(start), KEYS_MAX + 1);
        assert_eq!(lock(&limit.0).len(), KEYS_MAX + 1);
        assert_eq!(lines(start + LOG_EVERY), KEYS_MAX + 1);
    }
}
