//! Both row stores give the same answers as a map.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use laneway_storage::rows::{ROW_BATCH_MAX, RowStore, SledRowStore, VfsRowStore};
use laneway_storage::vfs::SimVfs;

/// A few thousand keys in three groups.
fn key(number: u32) -> Vec<u8> {
    [&[number as u8 % 3][..], &(number / 3).to_be_bytes()].concat()
}

fn check_against_a_map(store: &dyn RowStore) {
    let mut map: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut random = 12_345u32;
    let mut next = |bound: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 8) % bound
    };
    for round in 0..6u32 {
        let changes: Vec<_> = (0..ROW_BATCH_MAX as u32 + 300)
            .map(|_| {
                let keep = next(4) > 0;
                (key(next(3000)), keep.then(|| round.to_be_bytes().to_vec()))
            })
            .collect();
        store.put_batch(&changes).unwrap();
        for (key, value) in changes {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
        for _ in 0..200 {
            let (one, other) = (key(next(3000)), key(next(3000)));
            assert_eq!(store.get(&one).unwrap(), map.get(&one).cloned());
            let expected = if one < other {
                let rows = map.range(one.clone()..other.clone()).take(5);
                rows.map(|(key, value)| (key.clone(), value.clone())).collect()
            } else {
                Vec::new()
            };
            assert_eq!(store.range(&one, &other, 5).unwrap(), expected);
            let expected = if one <= other {
                let within = (Bound::Included(one.clone()), Bound::Included(other.clone()));
                map.range(within)
                    .next_back()
                    .map(|(key, value)| (key.clone(), value.clone()))
            } else {
                None
            };
            assert_eq!(store.last_at_or_before(&one, &other).unwrap(), expected);
        }
    }
    assert!(store.bytes() > 0);
    store.remove_prefix(&[1]).unwrap();
    map.retain(|key, _| key[0] != 1);
    assert_eq!(store.range(&[], &[0xff], usize::MAX).unwrap().len(), map.len());
    let generation = store.generation();
    store.clear().unwrap();
    assert!(store.generation() > generation);
    assert!(store.range(&[], &[0xff], 1).unwrap().is_empty());
    store
        .put_batch(&[(b"again".to_vec(), Some(b"1".to_vec()))])
        .unwrap();
    assert_eq!(store.get(b"again").unwrap(), Some(b"1".to_vec()));
}

#[test]
fn sled_answers_like_a_map() {
    let dir = tempfile::tempdir().unwrap();
    check_against_a_map(&SledRowStore::open(&dir.path().join("rows")).unwrap());
}

#[test]
fn twin_answers_like_a_map() {
    let vfs = Arc::new(SimVfs::new());
    check_against_a_map(&VfsRowStore::open(vfs, Path::new("/rows")).unwrap());
}

#[test]
fn damaged_database_is_replaced_by_an_empty_one() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path().join("rows");
    let store = SledRowStore::open(&dir).unwrap();
    store.put_batch(&[(b"key".to_vec(), Some(vec![1; 100]))]).unwrap();
    drop(store);
    let mut damaged = 0;
    for generation in std::fs::read_dir(&dir).unwrap() {
        for file in std::fs::read_dir(generation.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            if path.is_file() {
                std::fs::write(&path, b"nonsense").unwrap();
                damaged += 1;
            }
        }
    }
    assert!(damaged > 0);
    let store = SledRowStore::open(&dir).unwrap();
    assert_eq!(store.get(b"key").unwrap(), None);
    store.put_batch(&[(b"key".to_vec(), Some(vec![2]))]).unwrap();
    assert_eq!(store.get(b"key").unwrap(), Some(vec![2]));
}

#[test]
fn absent_database_is_made() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path().join("deep/down/rows");
    let store = SledRowStore::open(&dir).unwrap();
    assert_eq!(store.get(b"key").unwrap(), None);
}
