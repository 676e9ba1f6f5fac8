//! Entries: round trips, refusals, hostile bytes.

use bytes::Bytes;
use laneway_core::command::{Block, Command, Entry, Push, ReplayDeadLetter};
use laneway_core::ids::{DeadLetterId, QueueId};
use laneway_storage::codec::{
    DecodeError, Origin, decode, decode_catalog_entry, decode_entry, encode, encode_catalog_entry,
    encode_entry, frames,
};
use proptest::prelude::*;

use crate::golden::{catalog_entry, entry, origin};

#[test]
fn every_command_comes_back() {
    let body = encode_entry(origin(), &entry());
    let (found_origin, found, blob_at) = decode_entry(&body).unwrap();
    assert_eq!((found_origin, &found), (origin(), &entry()));
    assert_eq!(
        found.blob.as_ptr(),
        body[blob_at as usize..].as_ptr(),
        "the blob is not copied"
    );
    let body = encode_catalog_entry(origin(), &catalog_entry());
    assert_eq!(decode_catalog_entry(&body), Ok((origin(), catalog_entry())));
}

#[test]
fn every_cut_of_an_entry_is_refused_or_loses_only_blob() {
    let body = encode_entry(origin(), &entry());
    for cut in 0..body.len() {
        match decode_entry(&body.slice(..cut)) {
            Err(_) => {}
            Ok((_, found, _)) => panic!("{cut} bytes decode to {found:?}, yet its blocks reach to the end"),
        }
    }
    let body = encode_catalog_entry(origin(), &catalog_entry());
    assert!((0..body.len()).all(|cut| decode_catalog_entry(&body.slice(..cut)).is_err()));
}

#[test]
fn strange_headers_are_refused() {
    let with = |at: usize, byte: u8| {
        let mut body = encode_entry(origin(), &entry()).to_vec();
        body[at] = byte;
        decode_entry(&body.into()).unwrap_err()
    };
    assert_eq!(with(0, 9), DecodeError::Version { found: 9 });
    assert_eq!(with(1, 1), DecodeError::Kind { found: 1 });
    assert_eq!(with(38, 77), DecodeError::Tag { found: 77 });
    assert_eq!(with(38, 13), DecodeError::Tag { found: 13 });
    let mut body = encode_catalog_entry(origin(), &catalog_entry()).to_vec();
    body.push(0);
    assert_eq!(
        decode_catalog_entry(&body.into()),
        Err(DecodeError::Trailing { bytes: 1 })
    );
}

#[test]
fn blocks_outside_the_blob_are_refused() {
    let check = |block: Block, replay: bool| {
        let command = if replay {
            Command::ReplayDeadLetter(ReplayDeadLetter {
                request: None,
                id: DeadLetterId(1),
                block,
            })
        } else {
            let (queue, lane) = (QueueId(1), String::new());
            Command::Push(Push {
                request: None,
                queue,
                lane,
                rider: None,
                items: vec![],
                block,
            })
        };
        let entry = Entry {
            commands: vec![command],
            blob: Bytes::from_static(b"12345"),
            ..entry()
        };
        decode_entry(&encode_entry(origin(), &entry)).map(|_| ())
    };
    for replay in [false, true] {
        assert_eq!(check(Block { at: 1, bytes: 4 }, replay), Ok(()));
        assert_eq!(check(Block { at: 2, bytes: 4 }, replay), Err(DecodeError::Block));
        assert_eq!(
            check(
                Block {
                    at: u32::MAX,
                    bytes: u32::MAX
                },
                replay
            ),
            Err(DecodeError::Block)
        );
    }
}

#[test]
fn values_are_bounded_by_their_bytes() {
    let text = "x".repeat(5000);
    assert_eq!(decode::<String>(&encode(&text)).unwrap(), text);
    let numbers: Vec<u128> = (0..3000).collect();
    assert_eq!(decode::<Vec<u128>>(&encode(&numbers)).unwrap(), numbers);
    // A length of 2^60 with nothing behind it.
    let mut lie = vec![1, 253];
    lie.extend((1u64 << 60).to_le_bytes());
    assert!(decode::<String>(&lie).is_err());
    assert!(decode::<Vec<u64>>(&lie).is_err());
    assert_eq!(decode::<u8>(&[]), Err(DecodeError::Truncated));
    assert_eq!(decode::<u8>(&[2, 0]), Err(DecodeError::Version { found: 2 }));
    assert_eq!(decode::<u8>(&[1, 0, 0]), Err(DecodeError::Trailing { bytes: 1 }));
}

proptest! {
    #[test]
    fn any_bytes_decode_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let bytes = Bytes::from(bytes);
        let _ = decode_entry(&bytes);
        let _ = decode_catalog_entry(&bytes);
        frames(&bytes).for_each(drop);
    }

    #[test]
    fn mutated_entries_decode_without_panic(edits in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..5)) {
        for body in [encode_entry(origin(), &entry()), encode_catalog_entry(Origin::default(), &catalog_entry())] {
            let mut body = body.to_vec();
            for &(at, byte) in &edits {
                let length = body.len();
                body[at % length] = byte;
            }
            let body = Bytes::from(body);
            // What still decodes also encodes.
            if let Ok((origin, entry, _)) = decode_entry(&body) {
                encode_entry(origin, &entry);
            }
            let _ = decode_catalog_entry(&body);
        }
    }
}
