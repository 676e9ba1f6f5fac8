//! What the log makes of a disk: `cargo run --release -p laneway-storage --example wal_rate -- DIR [SECONDS]`.
//!
//! Each line of the log stands beside the raw rate: one `pwrite` of as many bytes into a prefilled file, one `fdatasync`.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use laneway_core::ids::PartitionId;
use laneway_storage::vfs::{RealVfs, Vfs};
use laneway_storage::wal::{Wal, WalEntry, WalError, WalOptions};

const FILE_BYTES: u64 = 64 * 1024 * 1024;

/// One load: `callers` partitions, each with `in_flight` appends of `bytes` on their way.
struct Load {
    name: &'static str,
    callers: u16,
    in_flight: u64,
    bytes: usize,
}

const LOADS: &[Load] = &[
    Load {
        name: "1 x 1 x 256 B",
        callers: 1,
        in_flight: 1,
        bytes: 256,
    },
    Load {
        name: "4 x 4 x 256 B",
        callers: 4,
        in_flight: 4,
        bytes: 256,
    },
    Load {
        name: "1 x 4 x 25 KiB",
        callers: 1,
        in_flight: 4,
        bytes: 25 * 1024,
    },
    Load {
        name: "16 x 4 x 25 KiB",
        callers: 16,
        in_flight: 4,
        bytes: 25 * 1024,
    },
    Load {
        name: "4 x 4 x 1 MiB",
        callers: 4,
        in_flight: 4,
        bytes: 1024 * 1024,
    },
];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().expect("usage: wal_rate DIR [SECONDS]");
    let seconds = arguments
        .next()
        .map_or(3, |text| text.parse().expect("SECONDS is a number"));
    let (dir, time) = (Path::new(&dir), Duration::from_secs(seconds));
    println!(
        "{:<16} {:>9} {:>9} {:>11} {:>9} {:>9} {:>7}",
        "load", "drains/s", "MB/s", "B per drain", "raw/s", "raw MB/s", "ratio"
    );
    for load in LOADS {
        let (drains, bytes) = wal_rate(dir, load, time);
        let drain_bytes = if drains > 0.0 { bytes / drains } else { 0.0 };
        let raw = raw_rate(dir, drain_bytes, time);
        let raw_bytes = raw * drain_bytes;
        println!(
            "{:<16} {drains:>9.0} {:>9.1} {drain_bytes:>11.0} {raw:>9.0} {:>9.1} {:>7.2}",
            load.name,
            bytes / 1e6,
            raw_bytes / 1e6,
            bytes / raw_bytes,
        );
    }
}

/// Drains and bytes a second.
fn wal_rate(dir: &Path, load: &Load, time: Duration) -> (f64, f64) {
    let dir = dir.join("wal-rate");
    RealVfs
        .remove_dir_all(&dir)
        .expect("the directory can be cleared");
    let (wal, _) = Wal::open(Arc::new(RealVfs), dir.clone(), WalOptions::default()).expect("the log opens");
    // Recycled segments are the normal case: fill the pool first.
    let warm_up = Duration::from_secs(2);
    run(&wal, load, warm_up);
    let before = wal.stats();
    let started = Instant::now();
    run(&wal, load, time);
    let (after, took) = (wal.stats(), started.elapsed().as_secs_f64());
    drop(wal);
    RealVfs
        .remove_dir_all(&dir)
        .expect("the directory can be cleared");
    let rate = |before: u64, after: u64| {
        f64::from(u32::try_from((after - before) / 1000).unwrap_or(u32::MAX)) * 1000.0 / took
    };
    let drains = f64::from(u32::try_from(after.drains - before.drains).unwrap_or(u32::MAX)) / took;
    (drains, rate(before.bytes_written, after.bytes_written))
}

fn run(wal: &Wal, load: &Load, time: Duration) {
    let until = Instant::now() + time;
    std::thread::scope(|scope| {
        for caller in 0..load.callers {
            scope.spawn(move || call(wal, PartitionId(caller), load, until));
        }
    });
}

fn call(wal: &Wal, partition: PartitionId, load: &Load, until: Instant) {
    let body = Bytes::from(vec![caller_byte(partition); load.bytes]);
    let (sender, receiver): (Sender<Result<(), WalError>>, Receiver<_>) = channel();
    let mut index = wal.last(partition).map_or(0, |(index, _, _)| index + 1);
    let mut waiting = 0;
    let mut since_purge = 0;
    while Instant::now() < until || waiting > 0 {
        while waiting < load.in_flight && Instant::now() < until {
            let entry = WalEntry {
                index,
                term: 1,
                leader: 1,
                kind: 1,
                body: body.clone(),
            };
            let sender = sender.clone();
            let done = move |result| sender.send(result).expect("the receiver outlives its calls");
            wal.append(partition, vec![entry], Box::new(done));
            index += 1;
            waiting += 1;
            since_purge += load.bytes + 64;
        }
        receiver.recv().expect("a sender is kept").expect("the log works");
        waiting -= 1;
        if since_purge > 4 * 1024 * 1024 {
            since_purge = 0;
            wal.purge(
                partition,
                (index - waiting - 1, 1, 1),
                Box::new(|result| result.expect("the log works")),
            );
            for info in wal
                .segments()
                .iter()
                .filter(|info| !info.log_needed && !info.active)
            {
                // Another caller may have been faster.
                let _ = wal.release_segment(info.id);
            }
        }
    }
}

fn caller_byte(partition: PartitionId) -> u8 {
    u8::try_from(partition.0 % 251).expect("below 251")
}

/// Writes of `bytes` with a sync each, a second.
fn raw_rate(dir: &Path, bytes: f64, time: Duration) -> f64 {
    let path = dir.join("raw-rate");
    if RealVfs.exists(&path).expect("the directory can be read") {
        RealVfs.remove(&path).expect("the file can be removed");
    }
    let file = RealVfs.create(&path).expect("the file can be made");
    file.preallocate(FILE_BYTES).expect("there is room");
    file.write_zeros(0, FILE_BYTES).expect("there is room");
    file.sync_data().expect("the disk works");
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a length of at most a segment"
    )]
    let bytes = bytes.clamp(64.0, 32e6) as u64;
    let buffer = vec![7; usize::try_from(bytes).expect("at most 32 MB")];
    let started = Instant::now();
    let mut at = 0;
    let mut writes = 0u32;
    while started.elapsed() < time {
        if at + bytes > FILE_BYTES {
            at = 0;
        }
        file.write_at(&buffer, at).expect("the disk works");
        file.sync_data().expect("the disk works");
        at += bytes;
        writes += 1;
    }
    let rate = f64::from(writes) / started.elapsed().as_secs_f64();
    RealVfs.remove(&path).expect("the file can be removed");
    rate
}
