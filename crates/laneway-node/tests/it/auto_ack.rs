//! Pops that settle at delivery: nothing is settled that was not read and answered.

use std::fs;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use futures_util::FutureExt;
use laneway_node::{ErrorClass, Node};

use crate::support::{item, options, payloads, pop, pop_request, push, start};

async fn auto_pop(node: &Node, queue: &str, lanes_max: u16) -> laneway_node::PopReply {
    let mut request = pop_request(queue);
    request.auto_ack = true;
    request.lanes_max = lanes_max;
    node.pop(request).await.expect("the pop is answered")
}

/// Every place of `pattern` in the files of a folder.
fn places(dir: &Path, pattern: &[u8]) -> io::Result<Vec<(PathBuf, usize)>> {
    let mut found = Vec::new();
    for file in fs::read_dir(dir)? {
        let path = file?.path();
        let bytes = fs::read(&path)?;
        let hits = bytes.windows(pattern.len()).enumerate();
        found.extend(
            hits.filter(|(_, window)| *window == pattern)
                .map(|(at, _)| (path.clone(), at)),
        );
    }
    Ok(found)
}

fn overwrite(path: &Path, at: usize, with: &[u8]) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(path)?;
    file.seek(SeekFrom::Start(at as u64))?;
    file.write_all(with)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_messages_are_not_settled() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    options.storage.tail_cache_bytes = 0;
    let (node, _) = Node::start(options).await.unwrap();
    push(&node, vec![item("q", "Default", "needle", "\"haystack\"")]).await;

    // A frame's header says how long it is: with another length the rest of the block makes no sense.
    let stored = places(&dir.path().join("wal"), b"needle\"haystack\"").unwrap();
    assert!(!stored.is_empty(), "the message is in the log");
    let header = 7;
    for (path, at) in &stored {
        overwrite(path, at - header, &[0xff; 4]).unwrap();
    }
    let mut request = pop_request("q");
    request.auto_ack = true;
    let error = node.pop(request).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Internal, "{error}");

    let frame_bytes = u32::try_from(3 + b"needle\"haystack\"".len()).unwrap();
    for (path, at) in &stored {
        overwrite(path, at - header, &frame_bytes.to_le_bytes()).unwrap();
    }
    // The claim is given back behind the error.
    loop {
        let popped = auto_pop(&node, "q", 1).await;
        if !popped.lanes.is_empty() {
            assert_eq!(payloads(&popped), ["\"haystack\""]);
            break;
        }
    }
    assert!(auto_pop(&node, "q", 1).await.lanes.is_empty());
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_lane_does_not_keep_others_from_being_popped() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    options.storage.tail_cache_bytes = 0;
    let (node, _) = Node::start(options).await.unwrap();
    push(&node, vec![item("q", "damaged", "needle", "\"haystack\"")]).await;
    for lane in 0..8 {
        push(&node, vec![item("q", &lane.to_string(), "", &lane.to_string())]).await;
    }
    for (path, at) in places(&dir.path().join("wal"), b"needle\"haystack\"").unwrap() {
        overwrite(&path, at - 7, &[0xff; 4]).unwrap();
    }
    let popped = auto_pop(&node, "q", 64).await;
    let mut whole = payloads(&popped);
    whole.sort_unstable();
    assert_eq!(whole, ["0", "1", "2", "3", "4", "5", "6", "7"]);
    let mut request = pop_request("q");
    request.lanes_max = 64;
    // The damaged lane is given back behind the answer.
    while node.pop(request.clone()).await.is_ok() {}
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answer_is_cut_and_the_rest_stays() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    options.limits.pop_bytes_max = 10_000;
    let (node, _) = Node::start(options).await.unwrap();
    let payload = format!("\"{}\"", "x".repeat(2_000));
    let items = (0..12)
        .map(|n| item("q", &format!("lane{}", n % 3), "", &payload))
        .collect();
    push(&node, items).await;
    let mut seen = 0;
    while seen < 12 {
        let mut popped = auto_pop(&node, "q", 64).await;
        popped.delivered();
        assert_eq!(popped.lease_id, None);
        let count = payloads(&popped).len();
        assert!((1..=5).contains(&count), "{count} messages of 2 kB in one answer");
        seen += count;
    }
    assert_eq!(seen, 12);
    assert!(auto_pop(&node, "q", 64).await.lanes.is_empty());
    let counts = node.queue("q").await.unwrap().unwrap().counts;
    assert_eq!((counts.pending, counts.processing, counts.completed), (0, 0, 12));
    let metrics = node.metrics().await;
    assert_eq!(metrics.settled, 12);
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_answer_settles_lanes_of_several_partitions() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    let items = (0..12)
        .map(|n| item("q", &format!("lane{n}"), "", &n.to_string()))
        .collect();
    push(&node, items).await;
    let popped = auto_pop(&node, "q", 64).await;
    assert_eq!(popped.lanes.len(), 12);
    // Settled before it is answered: dropping the answer gives nothing back.
    drop(popped);
    assert!(pop(&node, "q").await.lanes.is_empty());
    assert_eq!(node.metrics().await.settled, 12);
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_pop_loses_nothing_or_settles_what_it_took() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    let items = (0..50)
        .map(|n| item("q", "Default", "", &n.to_string()))
        .collect();
    push(&node, items).await;
    let mut request = pop_request("q");
    request.auto_ack = true;
    request.batch = 10;
    let mut popping = Box::pin(node.pop(request));
    // Polled once: the claim is on its way, nobody waits for it.
    assert!((&mut popping).now_or_never().is_none());
    drop(popping);
    let mut seen = Vec::new();
    while seen.len() < 50 {
        seen.extend(payloads(&auto_pop(&node, "q", 1).await));
    }
    let wanted: Vec<String> = (0..50).map(|n| n.to_string()).collect();
    assert_eq!(seen, wanted);
    node.shutdown().await;
}
