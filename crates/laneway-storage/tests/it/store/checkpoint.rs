//! Checkpoints: base, deltas, manifest; abandoned, interrupted and damaged ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use laneway_core::ids::PartitionId;
use laneway_storage::checkpoint::{CheckpointError, CheckpointStore, DELTAS_MAX, Manifest};
use laneway_storage::dedup::DedupFileName;
use laneway_storage::vfs::{Crash, SimVfs, Vfs};

const DIR: &str = "/data/checkpoint";
const P: PartitionId = PartitionId(2);

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn open(vfs: &SimVfs) -> Result<(CheckpointStore, Option<Manifest>), CheckpointError> {
    CheckpointStore::open(Arc::new(vfs.clone()), PathBuf::from(DIR), P)
}

fn load(store: &CheckpointStore, manifest: &Manifest) -> Result<Rows, CheckpointError> {
    let mut rows = Rows::new();
    store.load(manifest, &mut |key, value| {
        match value {
            Some(value) => rows.insert(key.to_vec(), value.to_vec()),
            None => rows.remove(key),
        };
        Ok(())
    })?;
    Ok(rows)
}

/// Writes checkpoint `number`: a delta has one changed row, one new one and one removed one.
fn write(
    store: &CheckpointStore,
    rows: &mut Rows,
    number: u64,
    full: bool,
) -> Result<Manifest, CheckpointError> {
    let mut changes: Vec<(Vec<u8>, Option<Vec<u8>>)> = vec![
        (b"counter".to_vec(), Some(number.to_be_bytes().to_vec())),
        (format!("row {number}").into_bytes(), Some(vec![7; 300])),
    ];
    if number > 2 {
        changes.push((format!("row {}", number - 2).into_bytes(), None));
    }
    let mut after = rows.clone();
    for (key, value) in &changes {
        match value {
            Some(value) => after.insert(key.clone(), value.clone()),
            None => after.remove(key),
        };
    }
    let mut writer = store.begin(full)?;
    if full {
        for (key, value) in &after {
            writer.row(key, Some(value))?;
        }
    } else {
        for (key, value) in &changes {
            writer.row(key, value.as_deref())?;
        }
    }
    let dedup = vec![DedupFileName(number), DedupFileName(number + 1)];
    let manifest = writer.finish((number * 10, 3, 4), Bytes::from_static(b"members"), dedup)?;
    *rows = after;
    Ok(manifest)
}

fn names(vfs: &SimVfs) -> Vec<String> {
    vfs.list(Path::new(DIR)).unwrap()
}

#[test]
fn newest_checkpoint_is_found_again() {
    let vfs = SimVfs::new();
    let (mut store, found) = open(&vfs).unwrap();
    assert_eq!(found, None);
    assert!(matches!(store.begin(false), Err(CheckpointError::NeedsFull)));
    let mut rows = Rows::new();
    for number in 1..40 {
        let full = store.wants_full();
        let manifest = write(&store, &mut rows, number, full).unwrap();
        assert!(manifest.deltas.len() <= DELTAS_MAX);
        assert_eq!(manifest.deltas.is_empty(), full);
        assert_eq!(
            (manifest.generation, manifest.applied),
            (number, (number * 10, 3, 4))
        );
        assert_eq!(
            names(&vfs).len(),
            manifest.deltas.len() + 2,
            "only named files are left"
        );
        let (again, found) = open(&vfs).unwrap();
        store = again;
        assert_eq!(found.as_ref(), Some(&manifest));
        assert_eq!(manifest.dedup, [DedupFileName(number), DedupFileName(number + 1)]);
        assert_eq!(load(&store, &manifest).unwrap(), rows);
    }
}

#[test]
fn deltas_that_outgrow_the_base_ask_for_a_full_one() {
    let vfs = SimVfs::new();
    let (store, _) = open(&vfs).unwrap();
    let finish = |writer: laneway_storage::checkpoint::CheckpointWriter| {
        writer.finish((1, 1, 1), Bytes::new(), Vec::new()).unwrap()
    };
    let mut base = store.begin(true).unwrap();
    base.row(b"a", Some(&[0; 1000])).unwrap();
    finish(base);
    assert!(!store.wants_full());
    let mut delta = store.begin(false).unwrap();
    delta.row(b"b", Some(&[0; 2000])).unwrap();
    finish(delta);
    assert!(store.wants_full());
    let (store, _) = open(&vfs).unwrap();
    assert!(store.wants_full());
}

#[test]
fn abandoned_checkpoint_leaves_the_old_one() {
    let vfs = SimVfs::new();
    let (store, _) = open(&vfs).unwrap();
    let mut rows = Rows::new();
    let manifest = write(&store, &mut rows, 1, true).unwrap();
    let mut abandoned = store.begin(false).unwrap();
    abandoned.row(b"counter", None).unwrap();
    drop(abandoned);
    assert_eq!(names(&vfs).len(), 2);
    let (store, found) = open(&vfs).unwrap();
    assert_eq!(found, Some(manifest.clone()));
    assert_eq!(load(&store, &manifest).unwrap(), rows);
}

#[test]
fn overtaken_checkpoint_is_refused() {
    let (store, _) = open(&SimVfs::new()).unwrap();
    let mut rows = Rows::new();
    write(&store, &mut rows, 1, true).unwrap();
    let slow = store.begin(false).unwrap();
    let manifest = write(&store, &mut rows, 2, false).unwrap();
    let refused = slow.finish((15, 1, 1), Bytes::new(), Vec::new());
    assert!(matches!(refused, Err(CheckpointError::Overtaken)));
    assert_eq!(load(&store, &manifest).unwrap(), rows);
}

#[test]
fn power_loss_at_every_operation_leaves_the_old_or_the_new_one() {
    let script = |store: &CheckpointStore, done: &mut u64, rows: &mut Rows| -> Result<(), CheckpointError> {
        for number in 1..=12 {
            write(store, rows, number, store.wants_full() || number == 5)?;
            *done = number;
        }
        Ok(())
    };
    let vfs = SimVfs::new();
    let (store, _) = open(&vfs).unwrap();
    let start = vfs.operations();
    script(&store, &mut 0, &mut Rows::new()).unwrap();
    for at in start..vfs.operations() {
        for crash in [Crash::Process, Crash::Synced, Crash::Torn { seed: at }] {
            let vfs = SimVfs::new();
            let (store, _) = open(&vfs).unwrap();
            vfs.power_off_at(at);
            let (mut done, mut rows) = (0, Rows::new());
            let _ = script(&store, &mut done, &mut rows);
            vfs.crash(crash);
            let (store, found) = open(&vfs).unwrap();
            let number = found.as_ref().map_or(0, |manifest| manifest.generation);
            assert!(number == done || number == done + 1, "{number} after {done}");
            if let Some(manifest) = &found {
                let mut expected = Rows::new();
                let (other, _) = open(&SimVfs::new()).unwrap();
                (1..=number).for_each(|number| {
                    write(&other, &mut expected, number, true).unwrap();
                });
                assert_eq!(load(&store, manifest).unwrap(), expected);
                assert_eq!(names(&vfs).len(), manifest.deltas.len() + 2);
            }
            write(&store, &mut rows, 77, true).unwrap();
        }
    }
}

#[test]
fn damage_anywhere_is_refused_by_the_file_name() {
    let vfs = SimVfs::new();
    let (store, _) = open(&vfs).unwrap();
    let mut rows = Rows::new();
    for number in 1..4 {
        write(&store, &mut rows, number, number == 1).unwrap();
    }
    for name in names(&vfs) {
        let path = Path::new(DIR).join(&name);
        let bytes = vfs.read(&path).unwrap();
        for (at, byte) in bytes.iter().enumerate() {
            let copy = vfs.fork();
            copy.corrupt(&path, at, &[byte ^ 0x10]);
            let refused = open(&copy)
                .and_then(|(store, found)| load(&store, &found.unwrap()))
                .unwrap_err();
            let text = refused.to_string();
            assert!(
                text.contains(&name) && text.contains("restore the data directory"),
                "{text}"
            );
        }
        let copy = vfs.fork();
        copy.open(&path).unwrap().set_len(bytes.len() as u64 - 1).unwrap();
        assert!(
            open(&copy)
                .and_then(|(store, found)| load(&store, &found.unwrap()))
                .is_err()
        );
        if name != "manifest" {
            let copy = vfs.fork();
            copy.remove(&path).unwrap();
            let text = open(&copy).unwrap_err().to_string();
            assert!(text.contains(&name) && text.contains("missing"), "{text}");
        }
    }
}

#[test]
fn files_of_another_partition_are_refused() {
    let vfs = SimVfs::new();
    let (store, _) = open(&vfs).unwrap();
    write(&store, &mut Rows::new(), 1, true).unwrap();
    let other = CheckpointStore::open(Arc::new(vfs.clone()), PathBuf::from(DIR), PartitionId(9));
    assert!(other.unwrap_err().to_string().contains("another partition"));
}

#[test]
fn refused_row_is_an_error() {
    let (store, _) = open(&SimVfs::new()).unwrap();
    let manifest = write(&store, &mut Rows::new(), 1, true).unwrap();
    let refused = store
        .load(&manifest, &mut |_, _| Err("not a row".into()))
        .unwrap_err();
    assert!(matches!(refused, CheckpointError::Row { .. }), "{refused}");
}

#[test]
fn full_disk_leaves_the_old_checkpoint() {
    let vfs = SimVfs::new();
    let (store, _) = open(&vfs).unwrap();
    let mut rows = Rows::new();
    write(&store, &mut rows, 1, true).unwrap();
    vfs.set_disk_bytes(Some(vfs.used_bytes() + 100));
    let error = write(&store, &mut rows.clone(), 2, false).unwrap_err();
    assert!(
        matches!(&error, CheckpointError::File(file) if file.is_full()),
        "{error}"
    );
    vfs.set_disk_bytes(None);
    assert_eq!(names(&vfs).len(), 2);
    let manifest = write(&store, &mut rows, 2, false).unwrap();
    assert_eq!(load(&store, &manifest).unwrap(), rows);
}

#[test]
fn many_rows_stream_through() {
    let vfs = SimVfs::new();
    let (store, _) = open(&vfs).unwrap();
    let mut writer = store.begin(true).unwrap();
    for number in 0..100_000u64 {
        writer.row(&number.to_be_bytes(), Some(&[1; 50])).unwrap();
    }
    let manifest = writer.finish((1, 1, 1), Bytes::new(), Vec::new()).unwrap();
    let mut seen = 0;
    store
        .load(&manifest, &mut |_, _| {
            seen += 1;
            Ok(())
        })
        .unwrap();
    assert_eq!(seen, 100_000);
    assert!(store.bytes() < 100_000 * 61);
}
