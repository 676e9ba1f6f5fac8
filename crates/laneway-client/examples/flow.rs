//! A producer and a consumer that go on while nodes die: whoever gets no answer asks the next node again.
//!
//! `cargo run --example flow` against `laneway dev --nodes 3`, or with the addresses of other nodes as arguments. Kill nodes
//! while it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use laneway_client::wire::AckStatus;
use laneway_client::{Ack, Client, ClientError, Pop, Push};
use tokio::time::sleep;

const MESSAGES: u32 = 600;
const LANES: u32 = 4;

/// Between two pushes.
const PUSH_EVERY: Duration = Duration::from_millis(20);

/// Before the next node is asked.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Longest wait for one answer, and for any node to give one.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

type Failure = Box<dyn std::error::Error>;

/// All nodes of a cluster, one of which is asked.
#[derive(Clone)]
struct AnyNode {
    nodes: Vec<Client>,
    at: usize,
}

impl AnyNode {
    /// Asks until a node answers. Every attempt carries the same request id, so that what was done is not done again.
    async fn ask<T>(
        &mut self,
        id: &str,
        call: impl AsyncFn(Client) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let started = Instant::now();
        loop {
            let node = self.nodes[self.at].with_request_id(id);
            match call(node).await {
                Err(error) if may_be_repeated(&error) && started.elapsed() < GIVE_UP_AFTER => {
                    self.at = (self.at + 1) % self.nodes.len();
                    sleep(RETRY_PAUSE).await;
                }
                outcome => return outcome,
            }
        }
    }
}

/// Not a mistake of the caller's.
fn may_be_repeated(error: &ClientError) -> bool {
    match error {
        ClientError::BadUrl { .. } => false,
        ClientError::Refused(refusal) => refusal.status >= 500 || refusal.status == 429,
        ClientError::Connect { .. } | ClientError::NoAnswer { .. } | ClientError::BadAnswer { .. } => true,
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut urls: Vec<String> = std::env::args().skip(1).collect();
    if urls.is_empty() {
        urls = (6632..6635)
            .map(|port| format!("http://127.0.0.1:{port}"))
            .collect();
    }
    let nodes: Result<Vec<_>, _> = urls.iter().map(|url| Client::new(url)).collect();
    let nodes = nodes?.into_iter().map(|node| node.with_answer_wait(ANSWER_WAIT));
    let nodes = AnyNode {
        nodes: nodes.collect(),
        at: 0,
    };
    // A queue of its own for each run.
    let queue = format!(
        "flow-{}",
        SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis()
    );
    let producing = produce(nodes.clone(), queue.clone());
    let (longest, worked_off) = tokio::try_join!(producing, consume(nodes, queue))?;
    writeln!(
        std::io::stderr(),
        "longest wait for a push: {} ms",
        longest.as_millis()
    )?;
    writeln!(
        std::io::stdout(),
        "{MESSAGES} messages pushed, {worked_off} worked off, each lane in order"
    )?;
    Ok(())
}

/// Pushes the numbers from 0 on; gives the longest time that one took.
async fn produce(mut nodes: AnyNode, queue: String) -> Result<Duration, Failure> {
    let mut longest = Duration::ZERO;
    for n in 0..MESSAGES {
        let message = Push::new(&queue, &n)?
            .lane(&format!("lane-{}", n % LANES))
            .transaction_id(&format!("{queue}-{n}"));
        let started = Instant::now();
        let id = format!("push-{queue}-{n}");
        nodes
            .ask(&id, async |node| node.push(std::slice::from_ref(&message)).await)
            .await?;
        longest = longest.max(started.elapsed());
        if n % 100 == 0 {
            writeln!(std::io::stderr(), "pushed {n}")?;
        }
        sleep(PUSH_EVERY).await;
    }
    Ok(longest)
}

/// Works messages off until all have been; gives their number.
async fn consume(mut nodes: AnyNode, queue: String) -> Result<usize, Failure> {
    let mut worked_off = BTreeSet::new();
    let mut next: BTreeMap<u32, u32> = (0..LANES).map(|lane| (lane, lane)).collect();
    let pop = Pop {
        batch: Some(10),
        wait: Some(Duration::from_secs(1)),
        // Messages whose pop was never answered come again after so long.
        lease_seconds: Some(2),
        ..Pop::new(&queue)
    };
    while worked_off.len() < MESSAGES as usize {
        let popped = nodes.ask("pop", async |node| node.pop(&pop).await).await?;
        let Some(popped) = popped else { continue };
        let mut numbers = Vec::new();
        for message in &popped.messages {
            let n: u32 = serde_json::from_str(message.data.get())?;
            let due = next.get_mut(&(n % LANES)).ok_or("no such lane")?;
            if n > *due {
                return Err(format!("{n} came before {due}").into());
            }
            // A smaller one is a redelivery.
            *due = (*due).max(n + LANES);
            numbers.push(n);
        }
        let acks: Vec<Ack> = popped
            .messages
            .iter()
            .map(|message| Ack::of(message, AckStatus::Completed))
            .collect();
        let id = format!("ack-{}", popped.messages[0].lease_id);
        let results = nodes.ask(&id, async |node| node.ack(&acks).await).await?;
        let done = numbers.iter().zip(&results).filter(|(_, result)| result.success);
        worked_off.extend(done.map(|(n, _)| *n));
    }
    Ok(worked_off.len())
}
