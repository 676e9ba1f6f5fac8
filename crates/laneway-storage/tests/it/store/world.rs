//! A partition without its machine: a log, the stores, and a naive twin of what should be in them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use laneway_core::ids::{LaneId, Offset, PartitionId};
use laneway_core::time::WallTime;
use laneway_storage::checkpoint::{CheckpointError, CheckpointStore, CheckpointWriter};
use laneway_storage::codec::push_frame;
use laneway_storage::payload::{PayloadError, PayloadOptions, PayloadStore, StoredMessage, WalBlock};
use laneway_storage::rows::{RowStore, SledRowStore, VfsRowStore};
use laneway_storage::snapshot::OutgoingSnapshot;
use laneway_storage::vfs::{Crash, SimVfs, Vfs};
use laneway_storage::wal::{Wal, WalEntry, WalError, WalOptions, WalWriter};

use proptest::prelude::ProptestConfig;
use tempfile::TempDir;

use crate::wal::support::callback;

pub(crate) const P: PartitionId = PartitionId(3);

/// Small blocks and files, so that a short run makes many.
pub(crate) const OPTIONS: PayloadOptions = PayloadOptions {
    runs_in_memory_max: 10_000,
    block_bytes_max: 600,
    backlog_file_bytes_max: 24 * 1024,
};

/// The same, with nearly everything in the row store.
pub(crate) const SPILLING: PayloadOptions = PayloadOptions {
    runs_in_memory_max: 3,
    ..OPTIONS
};

const WAL_OPTIONS: WalOptions = WalOptions {
    segment_bytes: 16 * 1024,
    segments_max: 3,
    tail_cache_bytes: 2048,
};

/// An entry of the log.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Messages of these sizes.
    Push { lane: u8, sizes: Vec<u16> },
    /// Deletes so many messages at the head.
    Trim { lane: u8, count: u8 },
    /// Pins the message so far behind the head, if it is there.
    Pin { lane: u8, ahead: u8 },
    /// Releases the so-manieth pin.
    Unpin { which: u8 },
    /// Drops the lane; its name gets a new one.
    Drop { lane: u8 },
}

pub(crate) type Message = (WallTime, String, Bytes);

#[derive(Clone, Debug, Default)]
pub(crate) struct Lane {
    pub(crate) head: u64,
    pub(crate) messages: Vec<Message>,
}

impl Lane {
    pub(crate) fn tail(&self) -> u64 {
        self.messages.len() as u64
    }
}

/// What should be there after some prefix of the log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Twin {
    /// Entries applied.
    pub(crate) applied: u64,
    /// Which incarnation of each lane lives.
    names: BTreeMap<u8, u64>,
    pub(crate) lanes: BTreeMap<LaneId, Lane>,
    pub(crate) pins: BTreeSet<(LaneId, u64)>,
}

fn payload(index: u64, at: usize, bytes: usize) -> Bytes {
    let mut payload = vec![0u8; bytes];
    for (place, byte) in payload.iter_mut().enumerate() {
        *byte = (index as usize * 31 + at * 7 + place) as u8;
    }
    payload.into()
}

fn wall(index: u64) -> WallTime {
    WallTime(1_000_000 + index * 1000)
}

impl Twin {
    pub(crate) fn lane_id(&self, name: u8) -> LaneId {
        let incarnation = self.names.get(&name).copied().unwrap_or(0);
        LaneId(u64::from(name) << 24 | incarnation)
    }

    /// The body of an entry: it depends on nothing but its index and sizes.
    pub(crate) fn body(index: u64, op: &Op) -> Bytes {
        let mut body = BytesMut::new();
        body.put_slice(b"head");
        if let Op::Push { sizes, .. } = op {
            for (at, bytes) in sizes.iter().enumerate() {
                let id = if at % 3 == 2 {
                    String::new()
                } else {
                    format!("t-{index}-{at}")
                };
                push_frame(&mut body, &id, &payload(index, at, usize::from(*bytes)));
            }
        }
        body.freeze()
    }

    /// Applies one entry, to the store too if there is one.
    pub(crate) fn apply(&mut self, op: &Op, store: Option<(&PayloadStore, WalBlock)>) {
        let index = self.applied;
        self.applied += 1;
        match op {
            Op::Push { lane, sizes } if !sizes.is_empty() => {
                let id = self.lane_id(*lane);
                let lane = self.lanes.entry(id).or_default();
                let first = lane.tail();
                for (at, bytes) in sizes.iter().enumerate() {
                    let text = if at % 3 == 2 {
                        String::new()
                    } else {
                        format!("t-{index}-{at}")
                    };
                    lane.messages
                        .push((wall(index), text, payload(index, at, usize::from(*bytes))));
                }
                if let Some((store, block)) = store {
                    let block = WalBlock {
                        at: block.at + 4,
                        bytes: block.bytes - 4,
                        ..block
                    };
                    store.stored(id, Offset(first), sizes.len() as u32, wall(index), block);
                }
            }
            Op::Push { .. } => {}
            Op::Trim { lane, count } => {
                let id = self.lane_id(*lane);
                let Some(lane) = self.lanes.get_mut(&id) else {
                    return;
                };
                lane.head = (lane.head + u64::from(*count)).min(lane.tail());
                if let Some((store, _)) = store {
                    store.head_moved(id, Offset(lane.head));
                }
            }
            Op::Pin { lane, ahead } => {
                let id = self.lane_id(*lane);
                let Some(lane) = self.lanes.get(&id) else { return };
                let offset = lane.head + u64::from(*ahead);
                if offset < lane.tail() {
                    self.pins.insert((id, offset));
                    store.inspect(|(store, _)| store.pinned(id, Offset(offset)));
                }
            }
            Op::Unpin { which } => {
                let Some(pin) = self.pins.iter().nth(usize::from(*which)).copied() else {
                    return;
                };
                self.pins.remove(&pin);
                store.inspect(|(store, _)| store.unpinned(pin.0, Offset(pin.1)));
            }
            Op::Drop { lane } => {
                let id = self.lane_id(*lane);
                *self.names.entry(*lane).or_default() += 1;
                self.lanes.remove(&id);
                self.pins.retain(|(of, _)| *of != id);
                store.inspect(|(store, _)| store.lane_dropped(id));
            }
        }
    }

    /// Bytes of frames that are alive.
    pub(crate) fn live_bytes(&self) -> u64 {
        let frame = |message: &Message| 7 + message.1.len() as u64 + message.2.len() as u64;
        let lanes = self
            .lanes
            .values()
            .flat_map(|lane| &lane.messages[lane.head as usize..])
            .map(frame);
        let pins = self
            .pins
            .iter()
            .filter(|(id, offset)| *offset < self.lanes[id].head);
        lanes.sum::<u64>()
            + pins
                .map(|(id, offset)| frame(&self.lanes[id].messages[*offset as usize]))
                .sum::<u64>()
    }
}

/// Folders of checkpoint and backlog.
pub(crate) type Dirs = (PathBuf, PathBuf);

fn apart() -> Dirs {
    (PathBuf::from("/d/checkpoint"), PathBuf::from("/d/backlog"))
}

/// A partition's stores on one disk.
pub(crate) struct World {
    pub(crate) vfs: SimVfs,
    pub(crate) options: PayloadOptions,
    pub(crate) wal: Wal,
    pub(crate) writer: WalWriter,
    pub(crate) rows: Arc<dyn RowStore>,
    /// Where sled works, if it does.
    sled: Option<Arc<TempDir>>,
    /// Of the checkpoint and of the backlog.
    dirs: Dirs,
    pub(crate) store: PayloadStore,
    pub(crate) checkpoints: CheckpointStore,
    /// Everything ever appended.
    pub(crate) ops: Vec<Op>,
    pub(crate) twin: Twin,
}

impl World {
    pub(crate) fn new(options: PayloadOptions) -> Self {
        Self::open(&SimVfs::new(), options, Vec::new(), None, apart())
    }

    /// Opens what is in one folder, and a log that knows of it; `ops` are those of the world it comes from.
    pub(crate) fn within(vfs: &SimVfs, options: PayloadOptions, ops: Vec<Op>, dir: &Path) -> Self {
        Self::open(vfs, options, ops, None, (dir.to_owned(), dir.to_owned()))
    }

    /// The same, with rows in sled.
    pub(crate) fn with_sled(options: PayloadOptions) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        Self::open(&SimVfs::new(), options, Vec::new(), Some(dir), apart())
    }

    /// Opens what is on the disk and replays the log; `ops` are the entries that it may hold.
    fn open(
        vfs: &SimVfs,
        options: PayloadOptions,
        mut ops: Vec<Op>,
        sled: Option<Arc<TempDir>>,
        dirs: Dirs,
    ) -> Self {
        let arc = || Arc::new(vfs.clone());
        let (wal, writer, recovery) = Wal::open_stepped(arc(), PathBuf::from("/d/wal"), WAL_OPTIONS).unwrap();
        let rows: Arc<dyn RowStore> = match &sled {
            Some(dir) => Arc::new(SledRowStore::open(&dir.path().join("rows")).unwrap()),
            None => Arc::new(VfsRowStore::open(arc(), Path::new("/d/rows")).unwrap()),
        };
        let (checkpoints, manifest) = CheckpointStore::open(arc(), dirs.0.clone(), P).unwrap();
        let dir = dirs.1.clone();
        let store = PayloadStore::open(arc(), wal.clone(), rows.clone(), dir, P, options).unwrap();
        let applied = manifest.as_ref().map_or(0, |manifest| manifest.applied.0 + 1);
        let mut twin = Twin::default();
        ops.iter()
            .take(applied as usize)
            .for_each(|op| twin.apply(op, None));
        let mut heads = BTreeMap::new();
        let mut pins = BTreeSet::new();
        let mut cut = laneway_storage::payload::PayloadCut::default();
        if let Some(manifest) = &manifest {
            cut = checkpoints
                .load(manifest, &mut |key, value| {
                    take_row(&mut heads, &mut pins, key, value);
                    Ok(())
                })
                .unwrap();
        }
        let twin_heads: BTreeMap<LaneId, u64> =
            twin.lanes.iter().map(|(id, lane)| (*id, lane.head)).collect();
        assert_eq!((&heads, &pins), (&twin_heads, &twin.pins));
        let heads = heads.into_iter().map(|(id, head)| (id, Offset(head)));
        let pins = pins.into_iter().map(|(id, offset)| (id, Offset(offset)));
        store.restore(&cut, heads, pins).unwrap();
        let end = recovery
            .partitions
            .get(&P)
            .and_then(|partition| partition.last)
            .map_or(0, |last| last.0 + 1);
        ops.truncate(end.max(applied) as usize);
        let mut world = Self {
            vfs: vfs.clone(),
            options,
            wal,
            writer,
            rows,
            sled,
            dirs,
            store,
            checkpoints,
            ops,
            twin,
        };
        while world.twin.applied < world.ops.len() as u64 {
            world.apply_next();
        }
        world
    }

    pub(crate) fn reopen(self) -> Self {
        self.crash(Crash::Process)
    }

    pub(crate) fn crash(self, crash: Crash) -> Self {
        let Self {
            vfs,
            options,
            ops,
            sled,
            dirs,
            wal,
            writer,
            rows,
            store,
            ..
        } = self;
        vfs.crash(crash);
        drop((wal, writer, rows, store));
        Self::open(&vfs, options, ops, sled, dirs)
    }

    /// Appends an entry and applies it.
    pub(crate) fn run(&mut self, op: Op) -> Result<(), WalError> {
        let index = self.ops.len() as u64;
        let body = Twin::body(index, &op);
        let (done, answer) = callback();
        self.ops.push(op);
        self.wal.append(
            P,
            vec![WalEntry {
                index,
                term: 1,
                leader: 7,
                kind: 1,
                body,
            }],
            done,
        );
        self.writer.step();
        answer.get().expect("a step answers everybody")?;
        self.apply_next();
        Ok(())
    }

    fn apply_next(&mut self) {
        let index = self.twin.applied;
        let location = self.wal.locate(P, index).expect("the entry is in the log");
        let block = WalBlock {
            segment: location.segment,
            at: location.body_at,
            bytes: location.body_bytes,
        };
        let op = self.ops[index as usize].clone();
        self.twin.apply(&op, Some((&self.store, block)));
    }

    /// Writes a checkpoint and purges the log up to it.
    pub(crate) fn checkpoint(&mut self, full: bool) -> Result<(), CheckpointError> {
        let Some(index) = self.twin.applied.checked_sub(1) else {
            return Ok(());
        };
        let full = full || self.checkpoints.wants_full();
        let cut = self.store.cut();
        let mut writer = self.checkpoints.begin(full)?;
        self.write_rows(&mut writer, full)?;
        writer.payload_cut(&cut)?;
        let manifest = writer.finish((index, 1, 7), Bytes::from_static(b"members"), Vec::new())?;
        assert_eq!(manifest.applied.0, index);
        let (done, _) = callback();
        self.wal.purge(P, (index, 1, 7), done);
        self.writer.step();
        Ok(())
    }

    /// Makes a snapshot of what is there now.
    pub(crate) fn export(&self) -> OutgoingSnapshot {
        let vfs: Arc<dyn Vfs> = Arc::new(self.vfs.clone());
        let index = self.twin.applied - 1;
        let (id, dir) = OutgoingSnapshot::create(&*vfs, Path::new("/d")).unwrap();
        let (checkpoints, _) = CheckpointStore::open(Arc::clone(&vfs), dir.clone(), P).unwrap();
        let mut writer = checkpoints.begin(true).unwrap();
        self.write_rows(&mut writer, true).unwrap();
        writer
            .finish((index, 1, 7), Bytes::from_static(b"members"), Vec::new())
            .unwrap();
        self.store.export(&dir).unwrap();
        OutgoingSnapshot::seal(vfs, dir, id, P).unwrap()
    }

    fn write_rows(&self, writer: &mut CheckpointWriter, full: bool) -> Result<(), CheckpointError> {
        // A delta without knowledge of what changed: everything is written again, and what is gone is removed.
        for old in 0..10u64 {
            for incarnation in 0..20u64 {
                let id = LaneId(old << 24 | incarnation);
                let head = self.twin.lanes.get(&id).map(|lane| lane.head.to_be_bytes());
                if head.is_some() || !full {
                    writer.row(&id.0.to_be_bytes(), head.as_ref().map(|head| &head[..]))?;
                }
            }
        }
        writer.row(b"pins", Some(&[]))?;
        for (id, offset) in &self.twin.pins {
            writer.row(
                &[b"pin".as_slice(), &id.0.to_be_bytes(), &offset.to_be_bytes()].concat(),
                Some(b""),
            )?;
        }
        Ok(())
    }

    /// Evacuates and gives back every segment that the log does not need, or only the newest such one.
    pub(crate) fn evacuate(&self, newest_only: bool) -> Result<(), PayloadError> {
        let mut segments = self.wal.segments();
        segments.retain(|segment| !segment.log_needed && !segment.active);
        if newest_only {
            segments.drain(..segments.len().saturating_sub(1));
        }
        for segment in segments {
            let report = self.store.evacuate(segment.id)?;
            assert!(report.clear);
            assert_eq!(self.store.segment_live_bytes(segment.id), 0);
            self.wal.release_segment(segment.id)?;
        }
        Ok(())
    }

    /// Compares everything with the twin.
    pub(crate) fn check(&self) {
        for (id, lane) in &self.twin.lanes {
            self.check_lane(*id, lane);
        }
        for (id, offset) in &self.twin.pins {
            let found = self
                .store
                .read(*id, Offset(*offset), Offset(offset + 1), 1)
                .unwrap();
            assert_eq!(
                found,
                self.expected(*id, &self.twin.lanes[id], *offset..offset + 1),
                "pin {id}/{offset}"
            );
        }
        let stats = self.store.stats();
        assert_eq!(
            stats.wal_live_bytes + stats.backlog_live_bytes,
            self.store.retained_bytes_total()
        );
    }

    fn expected(&self, id: LaneId, lane: &Lane, range: std::ops::Range<u64>) -> Vec<StoredMessage> {
        let alive = range.filter(|offset| {
            (*offset >= lane.head && *offset < lane.tail()) || self.twin.pins.contains(&(id, *offset))
        });
        let message = |offset: u64| {
            let (wall, text, payload) = lane.messages[offset as usize].clone();
            StoredMessage {
                offset: Offset(offset),
                wall,
                transaction_id: text,
                payload,
            }
        };
        alive.map(message).collect()
    }

    fn check_lane(&self, id: LaneId, lane: &Lane) {
        let store = &self.store;
        let all = store
            .read(id, Offset(0), Offset(lane.tail() + 5), u64::MAX)
            .unwrap();
        assert_eq!(
            all,
            self.expected(id, lane, 0..lane.tail()),
            "lane {id} from {}",
            lane.head
        );
        let head = Offset(lane.head);
        let tail = Offset(lane.tail());
        let headers = store.headers(id, head, tail, 5).unwrap();
        let expected = self.expected(id, lane, lane.head..lane.tail().min(lane.head + 5));
        let ids = |message: &StoredMessage| (message.offset, message.wall, message.transaction_id.clone());
        let found: Vec<_> = headers
            .into_iter()
            .map(|h| (h.offset, h.wall, h.transaction_id))
            .collect();
        assert_eq!(found, expected.iter().map(ids).collect::<Vec<_>>());
        // Some, but at least one, and no more bytes than asked for unless the first alone has more.
        let some = store.read(id, head, tail, 700).unwrap();
        let sizes = some
            .iter()
            .map(|message| message.transaction_id.len() + message.payload.len());
        assert!(some.len() == 1 || sizes.sum::<usize>() <= 700 || some.is_empty());
        assert_eq!(some.is_empty(), lane.head == lane.tail());
        assert_eq!(
            some[..],
            self.expected(id, lane, lane.head..lane.tail())[..some.len()]
        );
        let fits = store.fits(id, head, tail, 700);
        assert!(fits <= tail && (fits > head || head == tail));
        for back in [0, 1, 4, 30] {
            let at = WallTime(wall(self.twin.applied).0 - back * 1000 - 500);
            let naive = (lane.head..lane.tail()).find(|offset| lane.messages[*offset as usize].0 >= at);
            assert_eq!(
                store.offset_at(id, at, tail).unwrap(),
                Offset(naive.unwrap_or_else(|| lane.tail()))
            );
            if let Some(older) = store.older_than(id, at) {
                assert!(older <= tail && older > head, "{older} of {head}..{tail}");
                assert!(
                    lane.messages[..older.0 as usize]
                        .iter()
                        .all(|(wall, ..)| *wall < at)
                );
            } else if naive.is_none() {
                assert_eq!(head, tail, "everything is older");
            }
        }
        assert_eq!(store.bytes(id, head, head), 0);
        let bytes = store.bytes(id, head, tail);
        assert!(bytes > 0 || head == tail);
        assert_eq!(store.retained_bytes(id) > 0, head < tail);
    }
}

/// Reads back a row of [`World::checkpoint`].
fn take_row(
    heads: &mut BTreeMap<LaneId, u64>,
    pins: &mut BTreeSet<(LaneId, u64)>,
    key: &[u8],
    value: Option<&[u8]>,
) {
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
    if key == b"pins" {
        pins.clear();
    } else if let Some(pin) = key.strip_prefix(b"pin") {
        pins.insert((LaneId(number(&pin[..8])), number(&pin[8..])));
    } else if let Some(value) = value {
        heads.insert(LaneId(number(key)), number(value));
    } else {
        heads.remove(&LaneId(number(key)));
    }
}

/// So many random cases, unless `PROPTEST_CASES` says otherwise.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    let config = ProptestConfig::default();
    if std::env::var_os("PROPTEST_CASES").is_some() {
        config
    } else {
        ProptestConfig { cases, ..config }
    }
}

/// Rows of a store, for a look at how many there are.
pub(crate) fn rows_of(world: &World) -> usize {
    world.rows.range(&[], &[0xff; 20], usize::MAX).unwrap().len()
}
