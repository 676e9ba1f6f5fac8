//! A process that dies at each named point loses nothing that it acknowledged.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, mpsc};

use laneway_core::ids::PartitionId;
use laneway_storage::failpoint;
use laneway_storage::vfs::RealVfs;
use laneway_storage::wal::{Wal, WalOptions};

use super::support::{P0, P1, dump, entry};

const OPTIONS: WalOptions = WalOptions {
    segment_bytes: 32 * 1024,
    segments_max: 2,
    tail_cache_bytes: 4096,
};

/// Points of the log; the stores have points of their own.
const POINTS: &[&str] = &[
    "pool-created",
    "pool-filled",
    "pool-synced",
    "pool-renamed",
    "pool-dir-synced",
    "segment-header-written",
    "segment-header-synced",
    "segment-renamed",
    "segment-dir-synced",
    "newest-created",
    "newest-dir-synced",
    "newest-written",
    "newest-synced",
    "drain-before-write",
    "drain-written",
    "drain-synced",
    "drain-published",
    "release-renamed",
    "release-removed",
    "release-dir-synced",
    "recovery-rewritten",
    "recovery-zeroed",
    "recovery-synced",
];

/// Tells this test binary, started again, that it is the child.
const CHILD_DIR: &str = "LANEWAY_TEST_CHILD_DIR";
/// Where the child is to die.
const CHILD_FAILPOINT: &str = "LANEWAY_TEST_CHILD_FAILPOINT";

fn wait(ask: impl FnOnce(laneway_storage::wal::Done)) {
    let (sender, receiver) = mpsc::channel();
    ask(Box::new(move |result| sender.send(result).unwrap()));
    receiver.recv().unwrap().unwrap();
}

fn work(dir: &Path, acks: &mut std::fs::File, segments_max: u32, rounds: std::ops::Range<u64>) {
    let options = WalOptions {
        segments_max,
        ..OPTIONS
    };
    let (wal, _) = Wal::open(Arc::new(RealVfs), dir.join("wal"), options).unwrap();
    for round in rounds {
        for partition in [P0, P1] {
            let index = wal.last(partition).map_or(0, |(index, _, _)| index + 1);
            wait(|done| {
                wal.append(
                    partition,
                    vec![entry(index, 1, 2500), entry(index + 1, 1, 10)],
                    done,
                )
            });
            writeln!(acks, "{} {}", partition.0, index + 1).unwrap();
        }
        if round % 5 == 4 {
            for partition in [P0, P1] {
                let last = wal.last(partition).unwrap().0;
                wait(|done| wal.purge(partition, (last - 2, 1, 7), done));
            }
            for info in wal.segments() {
                wal.release_segment(info.id).unwrap();
            }
        }
    }
}

#[test]
fn child_process() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else {
        return;
    };
    let dir = Path::new(&dir);
    failpoint::arm(&std::env::var(CHILD_FAILPOINT).unwrap()).unwrap();
    let mut acks = std::fs::File::create(dir.join("acks")).unwrap();
    // Released segments are recycled first, later removed.
    work(dir, &mut acks, 12, 0..30);
    work(dir, &mut acks, 1, 30..60);
}

fn run_child(dir: &Path, failpoint: &str) -> bool {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "wal::failpoints::child_process"])
        .env(CHILD_DIR, dir)
        .env(CHILD_FAILPOINT, failpoint)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    status.success()
}

#[test]
fn process_killed_at_any_point_keeps_what_it_acknowledged() {
    for point in POINTS {
        for count in [1, 2, 7] {
            let dir = tempfile::tempdir().unwrap();
            let finished = run_child(dir.path(), &format!("{point}:{count}"));
            assert!(count > 1 || !finished, "{point} was never reached");
            let acks = std::fs::read_to_string(dir.path().join("acks")).unwrap();
            let (wal, recovery) = Wal::open(Arc::new(RealVfs), dir.path().join("wal"), OPTIONS)
                .unwrap_or_else(|error| panic!("{point}:{count}: {error}"));
            for (partition, state) in dump(&wal, &recovery) {
                for found in state.entries {
                    let bytes = if found.index % 2 == 0 { 2500 } else { 10 };
                    assert_eq!(found, entry(found.index, 1, bytes), "{partition}");
                }
            }
            for line in acks.lines() {
                let (partition, index) = line.split_once(' ').unwrap();
                let last = wal.last(PartitionId(partition.parse().unwrap())).unwrap().0;
                assert!(last >= index.parse().unwrap(), "{point}:{count}: {line} is lost");
            }
        }
    }
}
