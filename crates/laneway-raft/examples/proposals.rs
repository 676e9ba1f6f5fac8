//! How fast one-voter groups take proposals, beside what their log and the disk can do.
//!
//! `cargo run --release -p laneway-raft --example proposals [DIR]`: the data goes to a temporary directory inside DIR (default:
//! the system's), so give a DIR on the disk in question.
#![expect(clippy::print_stdout, reason = "its output is the result")]

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use laneway_core::ids::PartitionId;
use laneway_raft::{AppliedState, CommittedPayload, FsmMsg, Group, GroupOptions};
use laneway_storage::vfs::RealVfs;
use laneway_storage::wal::{Wal, WalEntry, WalOptions, WalRecovery};
use tokio::sync::{mpsc, oneshot};

const NODE: u64 = 1;
const BODY_BYTES: usize = 1024;
const RUN: Duration = Duration::from_secs(2);

fn main() {
    let parent = std::env::args()
        .nth(1)
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = tempfile::tempdir_in(parent).expect("a directory for the data");
    let disk = raw_syncs(&dir.path().join("raw"));
    println!("disk: {disk:.0} fdatasync/s of 4 KiB overwrites\n");
    println!("what            in flight     1 KiB/s     MiB/s   syncs/s  per sync  x disk   p50 ms   p99 ms");

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        for in_flight in [1, 4, 64] {
            log_alone(&dir.path().join(format!("log-{in_flight}")), in_flight, disk).await;
        }
        for groups in [1u16, 4] {
            for in_flight in [1, 4, 64] {
                let data = dir.path().join(format!("groups-{groups}-{in_flight}"));
                groups_together(&data, groups, in_flight, disk).await;
                if in_flight == 64 {
                    restart(&data, groups).await;
                }
            }
        }
    });
}

/// Syncs per second of a prefilled file that is overwritten in 4 KiB steps.
fn raw_syncs(path: &Path) -> f64 {
    use std::os::unix::fs::FileExt;

    let mut file = File::create(path).expect("a file");
    file.write_all(&vec![0; 16 << 20]).expect("prefilled");
    file.sync_all().expect("synced");
    let start = Instant::now();
    let mut syncs = 0u32;
    while start.elapsed() < RUN {
        file.write_all_at(&[7; 4096], u64::from(syncs % 4096) * 4096)
            .expect("written");
        file.sync_data().expect("synced");
        syncs += 1;
    }
    f64::from(syncs) / start.elapsed().as_secs_f64()
}

fn open_wal(dir: &Path) -> (Wal, WalRecovery) {
    Wal::open(Arc::new(RealVfs), dir.to_path_buf(), WalOptions::default()).expect("a log")
}

struct Figures {
    done: u64,
    took: Duration,
    syncs: u64,
    latencies: Vec<Duration>,
}

impl Figures {
    fn print(mut self, what: &str, in_flight: usize, disk: f64) {
        #[expect(clippy::cast_precision_loss, reason = "figures for the eye")]
        let (done, syncs) = (self.done as f64, self.syncs.max(1) as f64);
        let rate = done / self.took.as_secs_f64();
        self.latencies.sort_unstable();
        let percentile = |hundredths: usize| {
            let at = (self.latencies.len() * hundredths / 100).min(self.latencies.len() - 1);
            self.latencies[at].as_secs_f64() * 1e3
        };
        println!(
            "{what:<15} {in_flight:>9} {rate:>11.0} {:>9.1} {:>9.0} {:>9.1} {:>7.2} {:>8.3} {:>8.3}",
            rate / 1024.0,
            syncs / self.took.as_secs_f64(),
            done / syncs,
            rate / disk,
            percentile(50),
            percentile(99),
        );
    }
}

/// Appends to the log without any raft.
async fn log_alone(dir: &Path, in_flight: usize, disk: f64) {
    let (wal, _) = open_wal(dir);
    let body = Bytes::from(vec![7; BODY_BYTES]);
    let before = wal.stats().fsyncs;
    let start = Instant::now();
    let (mut index, mut waiting, mut latencies) = (0, VecDeque::new(), Vec::new());
    while start.elapsed() < RUN {
        while waiting.len() < in_flight {
            let (done, synced) = oneshot::channel();
            let entry = WalEntry {
                index,
                term: 1,
                leader: NODE,
                kind: 1,
                body: body.clone(),
            };
            wal.append(
                PartitionId(0),
                vec![entry],
                Box::new(move |result| _ = done.send(result)),
            );
            waiting.push_back((Instant::now(), synced));
            index += 1;
        }
        let (sent, synced) = waiting.pop_front().expect("not empty");
        synced.await.expect("the log lives").expect("appended");
        latencies.push(sent.elapsed());
    }
    let done = u64::try_from(latencies.len()).expect("a count");
    let figures = Figures {
        done,
        took: start.elapsed(),
        syncs: wal.stats().fsyncs - before,
        latencies,
    };
    figures.print("log alone", in_flight, disk);
    wal.close();
}

async fn groups_together(dir: &Path, groups: u16, in_flight: usize, disk: f64) {
    let (wal, mut recovery) = open_wal(dir);
    let mut opened = Vec::new();
    for partition in 0..groups {
        let (group, fsm) = open_group(partition, &wal, &mut recovery).await;
        group
            .initialize(BTreeSet::from([NODE]))
            .await
            .expect("initialized");
        opened.push((group, fsm));
    }
    let before = wal.stats().fsyncs;
    let start = Instant::now();
    let running: Vec<_> = opened
        .into_iter()
        .map(|(group, fsm)| tokio::spawn(load(group, fsm, in_flight)))
        .collect();
    let mut latencies = Vec::new();
    for group in running {
        latencies.extend(group.await.expect("ran"));
    }
    let done = u64::try_from(latencies.len()).expect("a count");
    let figures = Figures {
        done,
        took: start.elapsed(),
        syncs: wal.stats().fsyncs - before,
        latencies,
    };
    figures.print(&format!("{groups} group(s)"), in_flight, disk);
    wal.close();
}

async fn open_group(
    partition: u16,
    wal: &Wal,
    recovery: &mut WalRecovery,
) -> (Group, mpsc::UnboundedReceiver<FsmMsg>) {
    let partition = PartitionId(partition);
    let (fsm, received) = mpsc::unbounded_channel();
    let recovered = recovery.partitions.remove(&partition).unwrap_or_default();
    let options = GroupOptions::new(partition, NODE);
    let open = Group::open(
        options,
        wal.clone(),
        recovered,
        AppliedState::default(),
        fsm,
        None,
        None,
    );
    let mut received = received;
    let mut open = Box::pin(open);
    loop {
        tokio::select! {
            group = &mut open => return (group.expect("opened"), received),
            Some(msg) = received.recv() => if let FsmMsg::Apply { done, .. } = msg { _ = done.send(()) },
        }
    }
}

/// Keeps `in_flight` proposals under way and returns how long each took until it was applied.
async fn load(group: Group, mut fsm: mpsc::UnboundedReceiver<FsmMsg>, in_flight: usize) -> Vec<Duration> {
    let term = lead(&mut fsm).await;
    let body = Bytes::from(vec![7; BODY_BYTES]);
    let start = Instant::now();
    let (mut waiting, mut latencies, mut number) = (VecDeque::new(), Vec::new(), 0);
    loop {
        let over = start.elapsed() > RUN;
        while !over && waiting.len() < in_flight {
            group.propose(term, number, body.clone());
            waiting.push_back(Instant::now());
            number += 1;
        }
        if waiting.is_empty() {
            break;
        }
        match fsm.recv().await.expect("the group lives") {
            FsmMsg::Apply { entries, done } => {
                let proposals = entries
                    .iter()
                    .filter(|entry| matches!(entry.payload, CommittedPayload::Normal(_)));
                latencies.extend(proposals.map(|_| waiting.pop_front().expect("proposed").elapsed()));
                done.send(()).expect("the group waits");
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    group.shutdown().await;
    latencies
}

/// Waits until the group may be proposed to.
async fn lead(fsm: &mut mpsc::UnboundedReceiver<FsmMsg>) -> u64 {
    let (mut leading, mut applied) = (None, None);
    loop {
        match fsm.recv().await.expect("the group lives") {
            FsmMsg::Apply { entries, done } => {
                applied = entries.last().map(|entry| entry.term);
                done.send(()).expect("the group waits");
            }
            FsmMsg::LeadershipChanged(now) => leading = now.is_self.then_some(now.term),
            other => panic!("unexpected {other:?}"),
        }
        if let Some(term) = leading
            && applied == Some(term)
        {
            return term;
        }
    }
}

/// How long it takes from an open log to leaders of all groups, without a checkpoint.
async fn restart(dir: &Path, groups: u16) {
    let start = Instant::now();
    let (wal, mut recovery) = open_wal(dir);
    let recovered = start.elapsed();
    let (mut opened, mut entries) = (Vec::new(), 0);
    for partition in 0..groups {
        entries += recovery.partitions[&PartitionId(partition)]
            .last
            .map_or(0, |(index, ..)| index + 1);
        opened.push(open_group(partition, &wal, &mut recovery).await);
    }
    let replayed = start.elapsed();
    for (_, fsm) in &mut opened {
        lead(fsm).await;
    }
    let led = start.elapsed();
    println!(
        "  restart: log read {recovered:.1?}, {entries} entries replayed {:.1?}, all lead {:.1?}",
        replayed - recovered,
        led - replayed,
    );
    for (group, _) in opened {
        group.shutdown().await;
    }
    wal.close();
}
