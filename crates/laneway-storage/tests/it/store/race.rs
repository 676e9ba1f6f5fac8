//! Readers on other threads, while payloads move underneath them and segments are recycled.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::{BufMut, Bytes, BytesMut};
use laneway_core::ids::{LaneId, Offset};
use laneway_core::time::WallTime;
use laneway_storage::codec::push_frame;
use laneway_storage::payload::{PayloadOptions, PayloadStore, WalBlock};
use laneway_storage::rows::VfsRowStore;
use laneway_storage::vfs::SimVfs;
use laneway_storage::wal::{Wal, WalEntry, WalOptions, WalWriter};

use super::world::{OPTIONS, P, SPILLING};
use crate::wal::support::callback;

const LANES: u64 = 3;

/// First offset that is surely there, and the end of what is.
#[derive(Default)]
struct Bounds {
    head: AtomicU64,
    tail: AtomicU64,
}

fn payload(lane: u64, offset: u64) -> Bytes {
    format!("{lane}/{offset} {}", "x".repeat(200)).into_bytes().into()
}

struct Feeder {
    wal: Wal,
    writer: WalWriter,
    store: PayloadStore,
    index: u64,
}

impl Feeder {
    fn push(&mut self, lane: u64, bounds: &Bounds, count: u64) {
        let tail = bounds.tail.load(Ordering::SeqCst);
        let mut body = BytesMut::new();
        body.put_slice(b"head");
        (tail..tail + count).for_each(|offset| push_frame(&mut body, "id", &payload(lane, offset)));
        let bytes = body.len() as u32 - 4;
        let (done, answer) = callback();
        let entry = WalEntry {
            index: self.index,
            term: 1,
            leader: 1,
            kind: 1,
            body: body.freeze(),
        };
        self.wal.append(P, vec![entry], done);
        self.writer.step();
        assert!(answer.is_ok());
        let location = self.wal.locate(P, self.index).unwrap();
        let block = WalBlock {
            segment: location.segment,
            at: location.body_at + 4,
            bytes,
        };
        self.store.stored(
            LaneId(lane),
            Offset(tail),
            count as u32,
            WallTime(self.index),
            block,
        );
        self.index += 1;
        bounds.tail.store(tail + count, Ordering::SeqCst);
    }

    fn recycle(&mut self) {
        let (done, _) = callback();
        self.wal.purge(P, (self.index - 1, 1, 1), done);
        self.writer.step();
        for segment in self.wal.segments() {
            if !segment.log_needed && !segment.active {
                assert!(self.store.evacuate(segment.id).unwrap().clear);
                self.wal.release_segment(segment.id).unwrap();
            }
        }
    }
}

fn read_until(stop: &AtomicBool, store: &PayloadStore, bounds: &[Bounds]) -> u64 {
    let mut read = 0;
    while !stop.load(Ordering::SeqCst) {
        for (lane, bounds) in bounds.iter().enumerate() {
            let from = bounds.head.load(Ordering::SeqCst);
            let tail = bounds.tail.load(Ordering::SeqCst);
            let found = store
                .read(LaneId(lane as u64), Offset(from), Offset(tail), u64::MAX)
                .unwrap();
            let head = bounds.head.load(Ordering::SeqCst);
            for message in &found {
                assert_eq!(message.payload, payload(lane as u64, message.offset.0));
            }
            let alive: Vec<u64> = found
                .iter()
                .map(|message| message.offset.0)
                .filter(|o| *o >= head)
                .collect();
            assert_eq!(alive, (head..tail).collect::<Vec<_>>(), "lane {lane}");
            read += found.len() as u64;
        }
    }
    read
}

fn race(options: PayloadOptions) {
    let vfs = SimVfs::new();
    let wal_options = WalOptions {
        segment_bytes: 16 * 1024,
        segments_max: 3,
        tail_cache_bytes: 0,
    };
    let arc = || Arc::new(vfs.clone());
    let (wal, writer, _) = Wal::open_stepped(arc(), PathBuf::from("/wal"), wal_options).unwrap();
    let rows = Arc::new(VfsRowStore::open(arc(), Path::new("/rows")).unwrap());
    let store = PayloadStore::open(arc(), wal.clone(), rows, PathBuf::from("/backlog"), P, options).unwrap();
    let mut feeder = Feeder {
        wal,
        writer,
        store: store.clone(),
        index: 0,
    };
    let bounds: Arc<Vec<Bounds>> = Arc::new((0..LANES).map(|_| Bounds::default()).collect());
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (stop, store, bounds) = (stop.clone(), store.clone(), bounds.clone());
            std::thread::spawn(move || read_until(&stop, &store, &bounds))
        })
        .collect();
    for round in 0..400u64 {
        for lane in 0..LANES {
            let bounds = &bounds[lane as usize];
            feeder.push(lane, bounds, 1 + round % 5);
            if round > 40 {
                let head = bounds.head.load(Ordering::SeqCst) + 1 + (round + lane) % 5;
                // The readers hear of it first: then they expect nothing below.
                bounds.head.store(head, Ordering::SeqCst);
                store.head_moved(LaneId(lane), Offset(head));
            }
        }
        if round % 4 == 3 {
            feeder.recycle();
        }
        if round % 16 == 15 {
            store.compact().unwrap();
        }
    }
    stop.store(true, Ordering::SeqCst);
    for reader in readers {
        assert!(reader.join().unwrap() > 0);
    }
}

#[test]
fn readers_never_notice_that_payloads_move() {
    race(OPTIONS);
}

#[test]
fn readers_never_notice_that_locations_go_to_rows() {
    race(SPILLING);
}
