//! Bytes of each persisted version still decode, and are still what is written. `LANEWAY_BLESS=1` writes files that are
//! missing; a file that exists is never changed: a new format gets a new version and a new file.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use laneway_core::catalog::{CatalogCommand, CatalogEntry, Patch, SettingsPatch};
use laneway_core::command::*;
use laneway_core::ids::{CatalogVersion, DeadLetterId, LaneId, LeaseId, Offset, QueueId};
use laneway_core::settings::{GroupRow, GroupStart, QueueRow, QueueSettings};
use laneway_core::time::{LeaseTime, Stamps, WallTime};
use laneway_storage::codec::{
    Origin, decode_catalog_entry, decode_entry, encode_catalog_entry, encode_entry, push_frame,
};
use laneway_storage::vfs::{SimVfs, Vfs};

use crate::wal::support::{DIR, Node, P0, P1, SMALL, entry as wal_entry, newest_path, segment_path};

fn golden_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

/// Compares `bytes` with the golden file of that name, and returns the file's.
pub(crate) fn golden(name: &str, bytes: &[u8]) -> Vec<u8> {
    let path = golden_path(name);
    if std::env::var_os("LANEWAY_BLESS").is_some() && !path.exists() {
        std::fs::write(&path, bytes).unwrap();
    }
    let kept = std::fs::read(&path).unwrap_or_else(|error| panic!("{name}: {error}; see LANEWAY_BLESS"));
    assert!(kept == bytes, "{name} is no longer what is written");
    kept
}

pub(crate) fn origin() -> Origin {
    Origin {
        node: 0x0001_aabb_ccdd_eeff,
        proposal: 77,
    }
}

fn stamps() -> Stamps {
    Stamps {
        lease: LeaseTime(5_000_000),
        wall: WallTime(1_700_000_000_000_001),
    }
}

fn request() -> Option<RequestKey> {
    Some(RequestKey {
        id: "request-1".to_owned(),
        part: 3,
        content: 0xfeed_f00d,
    })
}

fn queue_row() -> QueueRow {
    QueueRow {
        id: QueueId(12),
        name: "orders.eu".to_owned(),
        settings: QueueSettings {
            priority: -4,
            ..QueueSettings::implicit("orders.eu")
        },
        version: CatalogVersion(14),
        listed: true,
        created: WallTime(1_699_999_999_000_000),
    }
}

fn ack() -> Ack {
    let item = |status, candidates: &[u64], text: Option<&str>| AckItem {
        status,
        candidates: candidates.iter().map(|&offset| Offset(offset)).collect(),
        transaction_id: text.map(str::to_owned),
        error: text.map(|text| format!("error of {text}")),
    };
    Ack {
        request: None,
        lane: LaneId(0x1_0000_0001),
        group: "workers".to_owned(),
        lease_id: Some(LeaseId(u128::MAX / 3)),
        items_hash: u128::MAX / 7,
        items: vec![
            item(AckStatus::Completed, &[1, 300], None),
            item(AckStatus::Retry, &[], None),
            item(AckStatus::Failed, &[70_000], Some("t-2")),
            item(AckStatus::DeadLetter, &[5_000_000_000], Some("t-3")),
        ],
    }
}

fn register(name: &str, start: GroupStart) -> Command {
    let registered = WallTime(1_700_000_000_000_000);
    let group = GroupRow {
        name: name.to_owned(),
        start,
        registered,
        version: CatalogVersion(15),
    };
    Command::RegisterGroup(RegisterGroup {
        queue: queue_row(),
        group,
        starts: vec![(LaneId(9), Offset(4))],
    })
}

fn claim() -> Claim {
    Claim {
        lease_id: LeaseId(1 << 100),
        queue: QueueId(12),
        group: "workers".to_owned(),
        lane: Some(LaneId(9)),
        lanes_max: 10,
        messages_max: 1000,
        lease_ms: Some(30_000),
        auto_ack: true,
    }
}

fn push(bytes: u32) -> Push {
    Push {
        request: request(),
        queue: QueueId(12),
        lane: "eu-1".to_owned(),
        rider: Some(queue_row()),
        items: vec![
            PushItem::Store,
            PushItem::DuplicateOf {
                offset: Offset(3),
                wall: WallTime(1_690_000_000_000_000),
            },
            PushItem::DuplicateOfItem(0),
            PushItem::Store,
        ],
        block: Block { at: 0, bytes },
    }
}

/// Every command, with every variant of its parts.
pub(crate) fn entry() -> Entry {
    let mut blob = Vec::new();
    push_frame(&mut blob, "t-1", b"{\"a\":1}");
    push_frame(&mut blob, "", b"two");
    let pushed = u32::try_from(blob.len()).unwrap();
    push_frame(&mut blob, "dlq:5", b"replayed");
    let replayed = u32::try_from(blob.len()).unwrap() - pushed;
    let lanes = vec![(LaneId(9), Some(Offset(11))), (LaneId(10), None)];
    let commands = vec![
        Command::Push(push(pushed)),
        Command::Claim(claim()),
        Command::Claim(Claim {
            lane: None,
            lease_ms: None,
            auto_ack: false,
            ..claim()
        }),
        Command::Ack(ack()),
        Command::Extend(Extend {
            request: request(),
            lease_id: LeaseId(5),
            lease_ms: 60_000,
        }),
        Command::ReleaseClaim(ReleaseClaim {
            lease_id: LeaseId(6),
            lanes,
        }),
        Command::ReplayDeadLetter(ReplayDeadLetter {
            request: None,
            id: DeadLetterId(5),
            block: Block {
                at: pushed,
                bytes: replayed,
            },
        }),
        Command::DeleteDeadLetter(DeleteDeadLetter {
            request: request(),
            id: DeadLetterId(u64::MAX),
        }),
        Command::PutQueue(PutQueue {
            row: queue_row(),
            version: CatalogVersion(16),
        }),
        Command::DeleteQueue(DeleteQueue {
            queue: QueueId(12),
            version: CatalogVersion(17),
        }),
        register("all", GroupStart::Beginning),
        register("new", GroupStart::Registration),
        register("at", GroupStart::At(WallTime(1))),
        Command::Tick,
        Command::Sweep(Sweep { rows_max: 500 }),
        Command::Trim(Trim {
            queue: QueueId(12),
            completed_only: true,
            lanes: vec![(LaneId(9), Offset(2))],
        }),
    ];
    Entry {
        stamps: stamps(),
        commands,
        blob: blob.into(),
    }
}

/// Every catalog command.
pub(crate) fn catalog_entry() -> CatalogEntry {
    let patch = SettingsPatch {
        namespace: Patch::Set("eu".to_owned()),
        lease_seconds: Patch::Reset,
        retry_limit: Patch::Set(9),
        ..SettingsPatch::keep()
    };
    let name = || "orders".to_owned();
    let register = |start| CatalogCommand::RegisterGroup {
        queue: name(),
        group: "workers".to_owned(),
        start,
    };
    let commands = vec![
        CatalogCommand::CreateQueue {
            name: name(),
            listed: true,
        },
        CatalogCommand::Configure {
            name: name(),
            patch,
            merge: true,
        },
        CatalogCommand::DeleteQueue { name: name() },
        register(GroupStart::Beginning),
        register(GroupStart::At(WallTime(2))),
        CatalogCommand::ForgetTombstones {
            up_to: CatalogVersion(40),
        },
        CatalogCommand::Tick,
    ];
    CatalogEntry {
        stamps: stamps(),
        commands,
    }
}

#[test]
fn partition_entry_is_golden() {
    let tags: std::collections::BTreeSet<u8> = entry().commands.iter().map(Command::tag).collect();
    assert_eq!(
        tags.into_iter().collect::<Vec<_>>(),
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 15]
    );
    let kept = Bytes::from(golden("entry-v1.bin", &encode_entry(origin(), &entry())));
    let (found_origin, found, _) = decode_entry(&kept).unwrap();
    assert_eq!((found_origin, found), (origin(), entry()));
}

#[test]
fn catalog_entry_is_golden() {
    let kept = Bytes::from(golden(
        "catalog-entry-v1.bin",
        &encode_catalog_entry(origin(), &catalog_entry()),
    ));
    assert_eq!(decode_catalog_entry(&kept), Ok((origin(), catalog_entry())));
}

/// Two segments with a record of every kind.
fn wal() -> Node {
    let mut node = Node::new(SMALL);
    node.vote(P1, b"vote").unwrap();
    node.append(P0, (0..4).map(|index| wal_entry(index, 1, 2700)).collect());
    node.wal.save_committed(P0, Bytes::from_static(b"committed"));
    node.purge(P0, 1).unwrap();
    // The second segment begins with the facts of the first.
    node.append(P0, (4..6).map(|index| wal_entry(index, 1, 900)).collect());
    node.truncate(P0, Some(4));
    node.truncate(P1, None);
    node
}

/// Opens files of a log as they were kept; the log must be that of [`wal`], and go on.
fn check_wal(files: &[(PathBuf, Vec<u8>)]) {
    let vfs = SimVfs::new();
    vfs.create_dir_all(Path::new(DIR)).unwrap();
    for (path, bytes) in files {
        vfs.create(path).unwrap().write_at(bytes, 0).unwrap();
    }
    let mut node = Node::open(&vfs, SMALL).unwrap();
    let p0 = &node.recovery.partitions[&P0];
    assert_eq!((p0.purged, p0.last), (Some((1, 1, 7)), Some((4, 1, 7))));
    assert_eq!(p0.committed.as_deref(), Some(&b"committed"[..]));
    assert_eq!(node.recovery.partitions[&P1].vote.as_deref(), Some(&b"vote"[..]));
    let wanted = vec![wal_entry(2, 1, 2700), wal_entry(3, 1, 2700), wal_entry(4, 1, 900)];
    assert_eq!(node.dump()[&P0].entries, wanted);
    node.append(P0, (5..12).map(|index| wal_entry(index, 2, 2700)).collect());
    let node = node.reopen(SMALL).unwrap();
    assert_eq!(node.dump()[&P0].entries.len(), 10);
}

#[test]
fn wal_is_golden() {
    let node = wal();
    let file = |path: PathBuf| node.vfs.read(&path).unwrap();
    check_wal(&[
        (
            segment_path(1),
            golden("wal-segment-v2-1.bin", &file(segment_path(1))),
        ),
        (
            segment_path(2),
            golden("wal-segment-v2-2.bin", &file(segment_path(2))),
        ),
        (newest_path(), golden("wal-newest-v1.bin", &file(newest_path()))),
    ]);
}

#[test]
fn wal_from_before_the_newest_segment_was_named_opens_and_gets_the_file() {
    let kept = |name| std::fs::read(golden_path(name)).unwrap();
    check_wal(&[
        (segment_path(1), kept("wal-segment-v1-1.bin")),
        (segment_path(2), kept("wal-segment-v1-2.bin")),
    ]);
}
