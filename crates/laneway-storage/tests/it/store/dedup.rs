//! The dedup store against a naive map: random inserts, checkpoints, restarts, expiry.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use laneway_core::ids::{Offset, QueueId};
use laneway_core::time::WallTime;
use laneway_storage::dedup::{DedupFileName, DedupKey, DedupOptions, DedupStore};
use laneway_storage::vfs::{Crash, SimVfs, Vfs};
use proptest::prelude::*;

use super::world::cases;

const OPTIONS: DedupOptions = DedupOptions {
    bytes_max: 1 << 20,
    rows_in_memory_max: 100_000,
};
const WINDOWS: [u64; 3] = [1, 60, 3600];

fn key(number: u16) -> DedupKey {
    DedupStore::key(QueueId(5), "lane", &number.to_string())
}

fn window(number: u16) -> u64 {
    WINDOWS[usize::from(number) % WINDOWS.len()]
}

fn open(vfs: &SimVfs, listed: &[DedupFileName]) -> DedupStore {
    DedupStore::open(Arc::new(vfs.clone()), PathBuf::from("/dedup"), OPTIONS, listed).unwrap()
}

fn files(vfs: &SimVfs) -> usize {
    vfs.list(&PathBuf::from("/dedup")).unwrap().len()
}

#[derive(Clone, Debug)]
enum Action {
    /// Messages of these ids, stamped so many milliseconds after the last ones.
    Insert {
        ids: Vec<u16>,
        after_ms: u32,
    },
    /// A checkpoint, which may fail after the files were written.
    Checkpoint {
        finished: bool,
    },
    Restart {
        crash: bool,
    },
    Expire,
    Check,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => (prop::collection::vec(0u16..300, 1..60), 0u32..400_000)
            .prop_map(|(ids, after_ms)| Action::Insert { ids, after_ms }),
        3 => any::<bool>().prop_map(|finished| Action::Checkpoint { finished }),
        1 => any::<bool>().prop_map(|crash| Action::Restart { crash }),
        1 => Just(Action::Expire),
        2 => Just(Action::Check),
    ]
}

struct World {
    vfs: SimVfs,
    store: DedupStore,
    now: WallTime,
    /// Every insert, in order.
    log: Vec<(u16, Offset, WallTime)>,
    newest: BTreeMap<u16, (Offset, WallTime)>,
    listed: Vec<DedupFileName>,
    /// Inserts that the durable list covers.
    covered: usize,
}

impl World {
    fn new() -> Self {
        let vfs = SimVfs::new();
        let store = open(&vfs, &[]);
        let now = WallTime(1_700_000_000_000_000);
        Self {
            vfs,
            store,
            now,
            log: Vec::new(),
            newest: BTreeMap::new(),
            listed: Vec::new(),
            covered: 0,
        }
    }

    fn insert(&mut self, id: u16) {
        self.now.0 += 1;
        let offset = Offset(self.log.len() as u64);
        self.log.push((id, offset, self.now));
        self.newest.insert(id, (offset, self.now));
        self.store.insert(key(id), offset, self.now, window(id));
    }

    fn run(&mut self, action: &Action) {
        match action {
            Action::Insert { ids, after_ms } => {
                self.now.0 += u64::from(*after_ms) * 1000;
                ids.iter().for_each(|id| self.insert(*id));
            }
            Action::Checkpoint { finished } => {
                let frozen = self.store.freeze();
                let covered = self.log.len();
                // Rows of later entries are not part of it.
                self.insert(7);
                let listed = self.store.write(frozen).unwrap();
                if *finished {
                    self.listed = listed;
                    self.covered = covered;
                    self.store.remove_unlisted(&self.listed).unwrap();
                    assert_eq!(files(&self.vfs), self.listed.len());
                }
                assert!(self.store.stats().files <= 12);
            }
            Action::Restart { crash } => {
                if *crash {
                    self.vfs.crash(Crash::Synced);
                }
                self.store = open(&self.vfs, &self.listed);
                for (id, offset, wall) in &self.log[self.covered..] {
                    self.store.insert(key(*id), *offset, *wall, window(*id));
                }
            }
            Action::Expire => self.store.expire(WallTime(self.now.0 - 3_600_000_000)),
            Action::Check => self.check(),
        }
    }

    fn check(&self) {
        for id in 0..310 {
            let not_before = WallTime(self.now.0 - window(id) * 1_000_000);
            let expected = self
                .newest
                .get(&id)
                .filter(|(_, wall)| *wall >= not_before)
                .copied();
            assert_eq!(self.store.get(key(id), not_before).unwrap(), expected, "id {id}");
            assert_eq!(self.store.get(key(id), WallTime(self.now.0 + 1)).unwrap(), None);
        }
    }
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn store_agrees_with_a_naive_map(actions in prop::collection::vec(action(), 1..80)) {
        let mut world = World::new();
        actions.iter().for_each(|action| world.run(action));
        world.check();
    }
}

#[test]
fn keys_tell_queue_lane_and_id_apart() {
    let all = [
        DedupStore::key(QueueId(1), "a", "bc"),
        DedupStore::key(QueueId(1), "ab", "c"),
        DedupStore::key(QueueId(2), "a", "bc"),
        DedupStore::key(QueueId(1), "a", ""),
        DedupStore::key(QueueId(1), "", "a"),
    ];
    assert_eq!(std::collections::BTreeSet::from(all).len(), all.len());
    // Persisted: it never changes.
    assert_eq!(
        all[0],
        DedupKey(229_981_009_425_242_250_703_573_935_385_457_432_129)
    );
}

#[test]
fn power_loss_at_every_operation_of_a_checkpoint_keeps_every_row() {
    let script = |world: &mut World, vfs: &SimVfs| -> Result<(), Box<dyn std::error::Error>> {
        for round in 0..6u16 {
            (0..400).for_each(|id| world.insert(id * 6 + round));
            let frozen = world.store.freeze();
            let covered = world.log.len();
            let listed = world.store.write(frozen)?;
            // The manifest: whatever was listed is durable by now.
            vfs.exists(&PathBuf::from("/dedup"))?;
            (world.listed, world.covered) = (listed, covered);
            world.store.remove_unlisted(&world.listed)?;
        }
        Ok(())
    };
    let mut world = World::new();
    let (start, vfs) = (world.vfs.operations(), world.vfs.clone());
    script(&mut world, &vfs).unwrap();
    for at in start..=vfs.operations() {
        for crash in [Crash::Process, Crash::Synced, Crash::Torn { seed: at }] {
            let mut world = World::new();
            let vfs = world.vfs.clone();
            vfs.power_off_at(at);
            let ended = script(&mut world, &vfs);
            assert!(ended.is_err() || at + 8 > vfs.operations());
            vfs.crash(crash);
            world.run(&Action::Restart { crash: false });
            assert_eq!(files(&vfs), world.listed.len(), "leftovers are removed");
            world.check();
        }
    }
}

#[test]
fn rows_of_short_windows_do_not_stay() {
    let mut world = World::new();
    for round in 0..40 {
        // Ids with a window of one second.
        (0..200).for_each(|id| world.insert(id * 3));
        world.now.0 += 120_000_000;
        if round % 4 == 3 {
            world.run(&Action::Checkpoint { finished: true });
        }
    }
    assert!(
        world.store.stats().rows_in_files < 1500,
        "{:?}",
        world.store.stats()
    );
}

#[test]
fn few_files_however_many_checkpoints() {
    let mut world = World::new();
    let mut most = 0;
    for round in 0..400u16 {
        (0..100u16).for_each(|id| world.insert(round.wrapping_mul(100) + id));
        // Two and a half windows of an hour in all.
        world.now.0 += 22_500_000;
        world.run(&Action::Checkpoint { finished: true });
        most = most.max(world.store.stats().files);
    }
    assert!(most <= 12, "{most} files");
    let stats = world.store.stats();
    assert!(stats.rows_in_files < 100 * 160 * 3 / 2, "{stats:?}");
}

#[test]
fn rows_cost_what_they_should() {
    let vfs = SimVfs::new();
    let options = DedupOptions::default();
    let store = DedupStore::open(Arc::new(vfs.clone()), PathBuf::from("/dedup"), options, &[]).unwrap();
    let rows = 200_000u64;
    for number in 0..rows {
        let key = DedupStore::key(QueueId(1), "lane", &number.to_string());
        store.insert(
            key,
            Offset(number),
            WallTime(1_700_000_000_000_000 + number),
            3600,
        );
    }
    assert!(store.stats().memory_bytes <= rows * 64, "{:?}", store.stats());
    store.write(store.freeze()).unwrap();
    let stats = store.stats();
    assert_eq!((stats.rows_in_memory, stats.rows_in_files), (0, rows));
    assert!(stats.file_bytes <= rows * 30, "{stats:?}");
    assert!(stats.memory_bytes <= rows * 2, "{stats:?}");
}

#[test]
fn full_store_says_so() {
    let vfs: Arc<dyn Vfs> = Arc::new(SimVfs::new());
    let open = |bytes_max, rows_in_memory_max| {
        let options = DedupOptions {
            bytes_max,
            rows_in_memory_max,
        };
        DedupStore::open(vfs.clone(), PathBuf::from("/full"), options, &[]).unwrap()
    };
    let fill = |store: &DedupStore| {
        (0..100).for_each(|id| store.insert(key(id), Offset(0), WallTime(1), 3600));
    };
    let store = open(1 << 20, 100);
    assert!(!store.full());
    fill(&store);
    assert!(store.full(), "a checkpoint is overdue");
    store.write(store.freeze()).unwrap();
    assert!(!store.full());
    let store = open(2000, 1000);
    fill(&store);
    assert!(store.full());
    store.write(store.freeze()).unwrap();
    assert!(store.full());
    store.expire(WallTime(2));
    store.write(store.freeze()).unwrap();
    assert!(!store.full());
}

#[test]
fn scrub_finds_damaged_pages_and_merging_goes_round_them() {
    let vfs = SimVfs::new();
    let store = open(&vfs, &[]);
    let fill = |from: u16| {
        for number in from..from + 400 {
            store.insert(
                key(number),
                Offset(u64::from(number)),
                WallTime(1_000_000 + u64::from(number)),
                3600,
            );
        }
        store.write(store.freeze())
    };
    let listed = fill(0).unwrap();
    let mut cursor = store.begin_scrub();
    while !cursor.is_done() {
        assert!(store.scrub(&mut cursor, 1) <= 4096, "a page at a time");
    }
    assert_eq!(store.damaged(), []);
    let path = PathBuf::from("/dedup").join(listed[0].to_string());
    let bytes = vfs.read(&path).unwrap();
    // Behind the header, in the second page.
    vfs.corrupt(&path, 17 + 4094 + 100, &[bytes[17 + 4094 + 100] ^ 1]);
    let mut cursor = store.begin_scrub();
    while !cursor.is_done() {
        store.scrub(&mut cursor, 1);
    }
    let damaged = store.damaged();
    assert_eq!(damaged.len(), 1);
    assert_eq!(damaged[0].file, path);
    // Rows are written all the same, beside it.
    let listed = fill(400).unwrap();
    assert_eq!(listed.len(), 2);
    let listed = fill(800).unwrap();
    assert_eq!(listed.len(), 2, "the sound ones are merged");
    assert_eq!(store.get(key(900), WallTime(0)).unwrap().unwrap().0, Offset(900));
}
