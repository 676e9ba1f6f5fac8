//! Writes the history of client operations, as the oracle reads it: one JSON record a line.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use laneway_sim::oracle::history::{DigestSeen, Note, Operation, Outcome, QueueFacts, Record};

/// Breaches of the wire contract kept word for word; more are only counted.
const FAULTS_KEPT_MAX: usize = 20;

/// A shared writer of one history file, and the clock of its times.
#[derive(Debug)]
pub struct Recorder {
    started: Instant,
    path: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    output: BufWriter<File>,
    counts: Counts,
    faults: Vec<String>,
    failed: Option<io::Error>,
}

/// Operations by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Answered with success.
    pub ok: u64,
    /// Surely without effect.
    pub refused: u64,
    /// Maybe with effect.
    pub unknown: u64,
    /// Answers that break the wire contract.
    pub faults: u64,
    /// Longest time without an answer of success, in microseconds.
    pub silence_max: u64,
    /// When the last one came.
    last_ok: u64,
}

impl Counts {
    fn success(&mut self, at: u64) {
        self.ok += 1;
        self.silence_max = self.silence_max.max(at.saturating_sub(self.last_ok));
        self.last_ok = self.last_ok.max(at);
    }
}

impl Recorder {
    /// Makes the file; the clock starts now.
    pub fn create(path: &Path) -> io::Result<Self> {
        let output = BufWriter::with_capacity(1 << 20, File::create(path)?);
        let inner = Inner {
            output,
            counts: Counts::default(),
            faults: Vec::new(),
            failed: None,
        };
        Ok(Self {
            started: Instant::now(),
            path: path.to_owned(),
            inner: Mutex::new(inner),
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Microseconds since the recorder was made.
    pub fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Adds an operation.
    pub fn operation(&self, operation: Operation) {
        let returned = operation.returned;
        let count = match operation.outcome {
            Outcome::Ok(_) => Counts::success,
            Outcome::Refused(_) => |counts: &mut Counts, _| counts.refused += 1,
            Outcome::Unknown(_) => |counts: &mut Counts, _| counts.unknown += 1,
        };
        self.write(&Record::Operation(operation), |counts| count(counts, returned));
    }

    /// Adds what is known of a queue.
    pub fn queue(&self, facts: QueueFacts) {
        self.write(&Record::Queue(facts), |_| ());
    }

    /// Adds what a node said of a group's state.
    pub fn digest(&self, digest: DigestSeen) {
        self.write(&Record::Digest(digest), |_| ());
    }

    /// Adds a remark.
    pub fn note(&self, text: impl Into<String>) {
        let note = Note {
            at: self.now(),
            text: text.into(),
        };
        self.write(&Record::Note(note), |_| ());
    }

    /// Counts an answer that breaks the wire contract; a run with one has failed.
    pub fn fault(&self, text: String) {
        self.note(format!("contract: {text}"));
        let mut inner = self.lock();
        inner.counts.faults += 1;
        if inner.faults.len() < FAULTS_KEPT_MAX {
            inner.faults.push(text);
        }
    }

    /// Operations so far.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Writes out what is buffered; gives the first breaches of the contract. Errors: the file is incomplete.
    pub fn finish(&self) -> io::Result<Vec<String>> {
        let mut inner = self.lock();
        if let Some(error) = inner.failed.take() {
            return Err(error);
        }
        inner.output.flush()?;
        Ok(inner.faults.clone())
    }

    fn write(&self, record: &Record, count: impl FnOnce(&mut Counts)) {
        let mut line = Vec::with_capacity(512);
        let encoded = record.write(&mut line);
        let mut inner = self.lock();
        count(&mut inner.counts);
        if let Err(error) = encoded.and_then(|()| inner.output.write_all(&line)) {
            inner.failed.get_or_insert(error);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use laneway_sim::oracle::history::{History, Op, Reply};

    use super::*;

    #[test]
    fn silence_is_the_longest_time_between_successes_in_any_order() {
        let mut counts = Counts::default();
        for at in [10, 40, 35, 45] {
            counts.success(at);
        }
        assert_eq!((counts.ok, counts.silence_max), (4, 30));
    }

    #[test]
    fn what_was_recorded_is_read_back_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history.jsonl");
        let recorder = Recorder::create(&path).unwrap();
        recorder.queue(QueueFacts {
            name: "q".into(),
            retry_limit: 1,
            keeps_dead_letters: true,
            dedup_window_seconds: 0,
        });
        let outcomes = [
            Outcome::Ok(Reply::Extended(1)),
            Outcome::Unknown("reset".into()),
            Outcome::Refused("429".into()),
        ];
        for outcome in outcomes.clone() {
            recorder.operation(Operation {
                client: 1,
                op: Op::Extend {
                    lease_id: "l".into(),
                    lease_ms: 1,
                },
                request_id: None,
                node: 1,
                invoked: recorder.now(),
                returned: recorder.now(),
                outcome,
            });
        }
        recorder.note("killed");
        recorder.fault("a push answered 200".into());
        assert_eq!(recorder.finish().unwrap(), ["a push answered 200"]);
        let counts = recorder.counts();
        assert_eq!(
            (counts.ok, counts.refused, counts.unknown, counts.faults),
            (1, 1, 1, 1)
        );

        let history = History::read(BufReader::new(File::open(&path).unwrap())).unwrap();
        assert_eq!(history.queues.len(), 1);
        assert_eq!(history.notes.len(), 2);
        let read: Vec<_> = history
            .operations
            .into_iter()
            .map(|operation| operation.outcome)
            .collect();
        assert_eq!(read, outcomes);
    }
}
