//! Power loss at every operation, every byte of a small drain and every sector of a large one.

use bytes::Bytes;
use laneway_core::ids::PartitionId;
use laneway_storage::vfs::{Crash, SECTOR_BYTES, SimVfs, Vfs};
use laneway_storage::wal::{WalEntry, WalOptions};

use super::support::*;

/// Runs a fixed mix of everything, over several segments. Notes what was asked and how much of it was acknowledged.
struct Script {
    changes: Vec<Change>,
    /// Changes up to here were acknowledged.
    acked: usize,
}

impl Script {
    fn run(vfs: &SimVfs) -> Self {
        let mut script = Self {
            changes: Vec::new(),
            acked: 0,
        };
        let Ok(mut node) = Node::open(vfs, SMALL) else {
            return script;
        };
        for round in 0..12 {
            if !script.round(&mut node, round) {
                return script;
            }
        }
        script
    }

    fn round(&mut self, node: &mut Node, round: u64) -> bool {
        let mut answers = Vec::new();
        for partition in [P0, P1, PartitionId(9)] {
            let first = node.wal.last(partition).map_or(0, |(index, _, _)| index + 1);
            let sizes = [40, 700 + 100 * round as usize, 0];
            let entries: Vec<_> = sizes
                .iter()
                .zip(first..)
                .map(|(&bytes, index)| entry(index, round, bytes))
                .collect();
            self.changes.extend(
                entries
                    .iter()
                    .map(|entry| Change::Append(partition, entry.clone())),
            );
            let (done, answer) = callback();
            node.wal.append(partition, entries, done);
            answers.push(answer);
        }
        let vote = Bytes::from(format!("vote {round}"));
        self.changes.push(Change::Vote(P0, vote.clone()));
        let (done, answer) = callback();
        node.wal.save_vote(P0, vote, done);
        answers.push(answer);
        node.wal
            .save_committed(P1, Bytes::from(format!("committed {round}")));
        let last = node.wal.last(P1).unwrap().0;
        if round % 3 == 1 {
            self.changes.push(Change::Truncate(P1, Some(last - 2)));
            let (done, answer) = callback();
            node.wal.truncate_after(P1, Some(last - 2), done);
            answers.push(answer);
        }
        if round % 4 == 3 {
            for partition in [P0, P1, PartitionId(9)] {
                let (index, term, leader) = node.wal.last(partition).unwrap();
                let upto = (index - 1, term, leader);
                self.changes.push(Change::Purge(partition, upto));
                let (done, answer) = callback();
                node.wal.purge(partition, upto, done);
                answers.push(answer);
            }
        }
        node.writer.step();
        node.wal.reserve();
        if answers.iter().all(Answer::is_ok) {
            self.acked = self.changes.len();
        }
        let ids: Vec<u64> = node.wal.segments().iter().map(|info| info.id).collect();
        ids.into_iter().all(|id| node.wal.release_segment(id).is_ok()) && !node.wal.stats().failed
    }

    /// The recovered state must be the model's after some prefix of the changes, with all acknowledged ones.
    fn check(&self, found: &State, context: &str) {
        let mut model = State::new();
        for change in &self.changes[..self.acked] {
            apply(&mut model, change);
        }
        let mut rest = self.changes[self.acked..].iter();
        while model != *found {
            let change = rest.next().unwrap_or_else(|| {
                panic!(
                    "{context}: not a prefix with the {} acknowledged changes: {found:#?}",
                    self.acked
                )
            });
            apply(&mut model, change);
        }
    }
}

#[test]
fn power_loss_at_every_operation_keeps_what_was_acknowledged() {
    let dry = SimVfs::new();
    let script = Script::run(&dry);
    assert_eq!(script.acked, script.changes.len());
    let operations = dry.operations();
    assert!(operations > 60, "{operations}");
    let crashes = [
        Crash::Process,
        Crash::Synced,
        Crash::Torn { seed: 1 },
        Crash::Torn { seed: 2 },
    ];
    for operation in 0..operations {
        for crash in crashes {
            let vfs = SimVfs::new();
            vfs.power_off_at(operation);
            let script = Script::run(&vfs);
            let crash = match crash {
                Crash::Torn { seed } => Crash::Torn {
                    seed: seed * 1000 + operation,
                },
                other => other,
            };
            vfs.crash(crash);
            let context = format!("operation {operation}, {crash:?}");
            let mut node = Node::open(&vfs, SMALL).unwrap_or_else(|error| panic!("{context}: {error}"));
            let found = node.dump();
            script.check(&found, &context);
            // What was found is durable, and the log goes on.
            let next = node.wal.last(P0).map_or(0, |(index, _, _)| index + 1);
            let mut wanted = found;
            apply(&mut wanted, &Change::Append(P0, entry(next, 99, 300)));
            node.append(P0, vec![entry(next, 99, 300)]);
            vfs.crash(Crash::Synced);
            drop(node);
            assert_eq!(Node::open(&vfs, SMALL).unwrap().dump(), wanted, "{context}");
        }
    }
}

#[test]
fn power_loss_during_recovery_is_harmless() {
    let vfs = SimVfs::new();
    let mut node = Node::open(&vfs, SMALL).unwrap();
    node.append(P0, vec![entry(0, 1, 900)]);
    let acked = node.dump_after_reopen();
    let (path, start) = acked.1;
    // A torn drain of two records, of which the second survived.
    let before = vfs.fork();
    let mut node = Node::open(&vfs, SMALL).unwrap();
    node.append(P0, vec![entry(1, 1, 900), entry(2, 1, 900)]);
    let (_, end) = node.tail();
    let written = vfs.read(&path).unwrap();
    before.corrupt(&path, start + 600, &written[start + 600..end]);
    let dry = before.fork();
    Node::open(&dry, SMALL).unwrap();
    for operation in 0..dry.operations() {
        for seed in 0..20 {
            let vfs = before.fork();
            vfs.power_off_at(operation);
            drop(Node::open(&vfs, SMALL));
            vfs.crash(Crash::Torn { seed });
            let node = Node::open(&vfs, SMALL).unwrap();
            assert_eq!(node.dump()[&P0].entries, vec![entry(0, 1, 900)]);
        }
    }
}

impl Node {
    /// Closes the log; returns what a reopened one holds, and its tail.
    fn dump_after_reopen(self) -> (State, (std::path::PathBuf, usize)) {
        let node = self.reopen(SMALL).unwrap();
        (node.dump(), node.tail())
    }
}

/// A disk before and after its last drain, which is all appends to P0.
struct LastDrain {
    before: SimVfs,
    path: std::path::PathBuf,
    start: usize,
    bytes: Vec<u8>,
    acked: State,
    /// Entries of the drain.
    entries: Vec<WalEntry>,
    options: WalOptions,
}

impl LastDrain {
    /// `stale`: in a recycled segment.
    fn new(options: WalOptions, sizes: &[usize], stale: bool) -> Self {
        let mut node = Node::new(options);
        let mut index = 0;
        let fill = (options.segment_bytes / 5) as usize;
        while stale && node.wal.segments().last().unwrap().id < 4 {
            node.append(P0, vec![entry(index, 1, fill)]);
            index += 1;
            node.purge(P0, index - 1).unwrap();
            node.release_all();
        }
        node.append(P0, vec![entry(index, 1, 100)]);
        node.append(P1, vec![entry(0, 1, 100)]);
        let mut node = node.reopen(options).unwrap();
        let acked = node.dump();
        let before = node.vfs.fork();
        let (path, start) = node.tail();
        let entries: Vec<_> = sizes
            .iter()
            .zip(index + 1..)
            .map(|(&bytes, index)| entry(index, 2, bytes))
            .collect();
        node.append(P0, entries.clone());
        let (path_after, end) = node.tail();
        assert_eq!(path, path_after, "the drain fits the segment");
        let bytes = node.vfs.read(&path).unwrap()[start..end].to_vec();
        Self {
            before,
            path,
            start,
            bytes,
            acked,
            entries,
            options,
        }
    }

    /// Opens the disk as it was before, with the drain on it but for `[from, to)`; returns how many of its entries are found.
    fn check(&self, from: usize, to: usize) -> usize {
        let vfs = self.before.fork();
        vfs.corrupt(&self.path, self.start, &self.bytes[..from]);
        vfs.corrupt(&self.path, self.start + to, &self.bytes[to..]);
        let node =
            Node::open(&vfs, self.options).unwrap_or_else(|error| panic!("without {from}..{to}: {error}"));
        let mut found = node.dump();
        assert_eq!(found.remove(&P1), self.acked.get(&P1).cloned());
        let known = &self.acked[&P0];
        let mut p0 = found.remove(&P0).unwrap();
        let fresh = p0.entries.split_off(known.entries.len());
        assert_eq!(p0, *known, "without {from}..{to}");
        assert!(found.is_empty());
        assert!(fresh[..] == self.entries[..fresh.len()], "without {from}..{to}");
        let (_, end) = node.tail();
        if fresh.len() < self.entries.len() {
            assert!(end < self.start + self.bytes.len());
        }
        fresh.len()
    }
}

#[test]
fn crash_at_every_byte_of_a_small_drain() {
    for stale in [false, true] {
        let drain = LastDrain::new(SMALL, &[10, 1500, 0, 300, 1700], stale);
        let length = drain.bytes.len();
        assert!((3000..=4096).contains(&length), "{length}");
        for at in 0..=length {
            let found = drain.check(at, length);
            assert_eq!(found == 5, at == length, "byte {at} of {length}, stale {stale}");
            // The other end first.
            let found = drain.check(0, at);
            assert!(found == 5 && at == 0 || found < 5);
        }
    }
}

#[test]
fn crash_at_every_sector_of_a_large_drain() {
    let options = WalOptions {
        segment_bytes: 1200 * 1024,
        ..SMALL
    };
    let sizes: Vec<usize> = (0..16).map(|at| 64 * 1024 + at * 11).collect();
    let drain = LastDrain::new(options, &sizes, false);
    let length = drain.bytes.len();
    assert!(length > 1024 * 1024);
    // Sectors of the file, of which the first and last are only partly the drain's.
    let lead = SECTOR_BYTES - drain.start % SECTOR_BYTES;
    let mut cuts = vec![0];
    cuts.extend((lead..length).step_by(SECTOR_BYTES));
    cuts.push(length);
    for pair in cuts.windows(2) {
        let found = drain.check(pair[0], pair[1]);
        assert!(found < 16, "a missing sector voids its entry and the rest");
    }
    for &cut in cuts.iter().step_by(16) {
        let found = drain.check(cut, length);
        assert_eq!(found == 16, cut == length);
    }
}
