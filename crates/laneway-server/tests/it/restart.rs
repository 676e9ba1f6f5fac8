//! Stopping, killing, starting again.

use std::time::Duration;

use laneway_client::wire::{
    AckStatus, ConfigureRequest, Given, Int, PopResponse, PushStatus, QueueOptionsPatch, Text,
};
use laneway_client::{Ack, Client, DeadLetterQuery, Pop, Push, Start};

use crate::broker::Broker;

/// A stop signal must have ended the process by then, also with requests that wait.
const STOP_MAX: Duration = Duration::from_secs(8);

fn push(queue: &str, n: u32) -> Push {
    Push::new(queue, &n)
        .unwrap()
        .transaction_id(&format!("t{n}"))
        .lane(&format!("lane-{}", n % 3))
}

fn pop(queue: &str, group: &str) -> Pop {
    Pop {
        group: Some(group.to_owned()),
        start: Some(Start::All),
        lanes_max: Some(64),
        ..Pop::new(queue)
    }
}

/// What was answered before the kill.
struct Before {
    offsets: Vec<Option<u64>>,
    leased: PopResponse,
}

fn nine() -> Vec<Push> {
    (0..9).map(|n| push("q", n)).collect()
}

/// Nine messages in three lanes: one lane is leased and left so, the head of another goes to the dead-letter store, the third
/// is worked off.
async fn work(client: &Client) -> Before {
    let options = QueueOptionsPatch {
        retry_limit: Given::Value(Int(0)),
        ..Default::default()
    };
    let request = ConfigureRequest {
        queue: Text::from("q"),
        options,
        ..Default::default()
    };
    client.configure(&request).await.unwrap();
    let pushed = client.push(&nine()).await.unwrap();
    assert!(pushed.iter().all(|one| one.status == PushStatus::Queued));
    let lane = |name: &str| Pop {
        lane: Some(name.to_owned()),
        ..pop("q", "g")
    };
    let leased = client.pop(&lane("lane-0")).await.unwrap().unwrap();
    let failing = client.pop(&lane("lane-1")).await.unwrap().unwrap();
    let failure = Ack::of(&failing.messages[0], AckStatus::Failed).because("no");
    let failed = client.ack(&[failure]).await.unwrap();
    assert!(failed[0].success && failed[0].dlq);
    let done = client.pop(&lane("lane-2")).await.unwrap().unwrap();
    let acks: Vec<Ack> = done
        .messages
        .iter()
        .map(|message| Ack::of(message, AckStatus::Completed))
        .collect();
    assert!(client.ack(&acks).await.unwrap().iter().all(|one| one.success));
    Before {
        offsets: pushed.iter().map(|one| one.offset).collect(),
        leased,
    }
}

#[tokio::test]
async fn messages_leases_and_dead_letters_survive_kill() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let broker = Broker::start(&data);
    let before = work(&Client::new(&broker.url).unwrap()).await;
    broker.kill();

    let broker = Broker::start(&data);
    let client = Client::new(&broker.url).unwrap();
    let rest = client.pop(&pop("q", "g")).await.unwrap().unwrap();
    let numbers: Vec<&str> = rest.messages.iter().map(|message| message.data.get()).collect();
    assert_eq!(
        numbers,
        ["4", "7"],
        "the leased lane stays leased, what was settled stays so"
    );
    let last = Ack::of(&before.leased.messages[2], AckStatus::Completed);
    let acked = client.ack(&[last]).await.unwrap();
    assert!(acked[0].success && acked[0].lease_released, "{acked:?}");
    let repeated = client.push(&nine()).await.unwrap();
    assert!(
        repeated.iter().all(|one| one.status == PushStatus::Duplicate),
        "{repeated:?}"
    );
    assert_eq!(
        repeated.iter().map(|one| one.offset).collect::<Vec<_>>(),
        before.offsets
    );
    let dead = client
        .dead_letters(&DeadLetterQuery::default())
        .await
        .unwrap()
        .messages;
    assert_eq!(dead.len(), 1);
    assert_eq!((dead[0].data.get(), &*dead[0].error_message), ("1", "no"));
    broker.stop();
}

#[tokio::test]
async fn stop_signal_answers_waiting_pops_and_ends_soon() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::start(&dir.path().join("data"));
    let client = Client::new(&broker.url).unwrap();
    let waiting = Pop {
        wait: Some(Duration::from_secs(60)),
        ..Pop::new("q")
    };
    let popping = tokio::spawn({
        let client = client.clone();
        async move { client.pop(&waiting).await }
    });
    while client.status().await.unwrap().parked_pops == 0 {
        tokio::task::yield_now().await;
    }
    let stopping = tokio::task::spawn_blocking(move || broker.stop());
    assert!(stopping.await.unwrap() < STOP_MAX);
    let answer = popping.await.unwrap();
    assert!(!matches!(answer, Ok(Some(_))), "{answer:?}");
}

#[tokio::test]
async fn start_says_once_what_it_is_and_found() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    for _ in 0..2 {
        let broker = Broker::start(&data);
        let starts = broker.logged("starting");
        assert_eq!(starts.len(), 1);
        assert_eq!(starts[0]["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(
            starts[0]["data_dir"],
            data.canonicalize().unwrap().to_str().unwrap()
        );
        assert_eq!(broker.logged("listening").len(), 1);
        let recovered = broker.logged("recovered");
        assert_eq!(recovered.len(), 1, "{recovered:?}");
        assert!(recovered[0]["found"].is_string(), "{recovered:?}");
        broker.stop();
    }
}
