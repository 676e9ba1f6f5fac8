//! How late the machine itself wakes a thread: the noise floor below every measured gap.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::stats::Latencies;

/// Length of each sleep.
const SLEEP: Duration = Duration::from_millis(1);

/// A thread that sleeps and notes by how much it overslept, until it is stopped or dropped.
#[derive(Debug)]
pub struct SchedulingDelay {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Latencies>>,
}

impl SchedulingDelay {
    /// Starts the thread.
    pub fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut overslept = Latencies::default();
            while !stopped.load(Ordering::Relaxed) {
                let started = Instant::now();
                std::thread::sleep(SLEEP);
                overslept.add(started.elapsed().saturating_sub(SLEEP));
            }
            overslept
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }

    /// What it noted.
    pub fn finish(mut self) -> Latencies {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take();
        thread.and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for SchedulingDelay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_are_noted() {
        let delay = SchedulingDelay::start();
        std::thread::sleep(Duration::from_millis(20));
        assert!(delay.finish().count() > 0);
    }
}
