//! A real process that dies at a named step of the storage loses nothing that it acknowledged.

use laneway_client::{Client, Pop, Push, Start};

use crate::broker::{Broker, laneway, output};

/// Steps of a drain, of a move to another log segment, and of a checkpoint's purge, with the count at which to die.
const POINTS: [&str; 6] = [
    "drain-before-write:150",
    "drain-written:150",
    "drain-synced:150",
    "segment-dir-synced:2",
    "newest-written:3",
    "newest-synced:3",
];

/// Enough to fill several segments of 1 MiB.
const PUSHES_MAX: u32 = 400;

#[tokio::test]
async fn process_that_dies_at_a_failpoint_keeps_what_it_acknowledged() {
    for point in POINTS {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let broker = Broker::start_with(&data, &[("LANEWAY_FAILPOINT", point)]);
        let client = Client::new(&broker.url).unwrap();
        let filler = "x".repeat(16 * 1024);
        let mut acked = 0;
        for n in 0..PUSHES_MAX {
            let push = Push::new("q", &(n, &filler))
                .unwrap()
                .transaction_id(&format!("t{n}"));
            if client.push(&[push.lane("a")]).await.is_err() {
                break;
            }
            acked = n + 1;
        }
        assert!(acked < PUSHES_MAX, "{point} was never reached");
        broker.aborted();

        let broker = Broker::start(&data);
        let client = Client::new(&broker.url).unwrap();
        let mut found = 0;
        while found < acked {
            let pop = Pop {
                start: Some(Start::All),
                batch: Some(100),
                auto_ack: true,
                ..Pop::new("q")
            };
            let popped = client.pop(&pop).await.unwrap();
            let messages = popped.map_or(0, |popped| popped.messages.len());
            assert!(messages > 0, "{point}: {found} of {acked} acknowledged pushes");
            found += u32::try_from(messages).unwrap();
        }
        broker.stop();
    }
}

#[test]
fn malformed_failpoint_is_refused() {
    assert_eq!(output(&["--version"]).status.code(), Some(0));
    let refused = laneway()
        .args(["check-config", "x"])
        .env("LANEWAY_FAILPOINT", "drain-synced")
        .output()
        .unwrap();
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(
        text.contains("LANEWAY_FAILPOINT") && text.contains("name:count"),
        "{text}"
    );
}
