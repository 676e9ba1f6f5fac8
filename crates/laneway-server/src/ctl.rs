//! `laneway ctl`: asks a running node and prints for people, or with `--json` what the node answered.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand};
use laneway_client::wire::{
    DeadLetterList, DeleteDeadLettersResponse, DigestResponse, GroupStatus, QueueDetail, QueueList,
    ReplayResponse, StatusResponse,
};
use laneway_client::{Client, ClientError, DeadLetter, DeadLetterQuery};
use serde::Serialize;

use cluster::ClusterCommand;
use table::{Table, masked};

mod cluster;
mod table;

/// Node asked unless told otherwise.
const URL_DEFAULT: &str = "http://127.0.0.1:6632";

/// Where the node to ask can be named, too.
const URL_VARIABLE: &str = "LANEWAY_URL";

/// Longest wait for an answer unless told otherwise. A node that has no leader to ask says so well before.
const TIMEOUT_SECONDS_DEFAULT: u64 = 10;

/// What the client says when nothing came in time.
const TIMED_OUT: &str = "timed out";

/// Most dead letters skipped by a listing; the broker's limit.
const DEAD_LETTERS_SKIPPED_MAX: u32 = 1_000_000_000;

/// Arguments of `laneway ctl`.
#[derive(Debug, Args)]
pub struct CtlArgs {
    /// HTTP address of the node to ask.
    #[arg(long, global = true, env = URL_VARIABLE, default_value = URL_DEFAULT)]
    url: String,
    /// Longest wait for an answer, in seconds. A change of the cluster takes what it takes once the node has shown that it answers.
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = TIMEOUT_SECONDS_DEFAULT, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// Print the node's answer as JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: CtlCommand,
}

#[derive(Debug, Subcommand)]
enum CtlCommand {
    /// Shows the node, its partitions and its storage.
    Status,
    /// Queues.
    #[command(subcommand)]
    Queue(QueueCommand),
    /// Dead letters.
    #[command(subcommand)]
    Dlq(DlqCommand),
    /// Nodes and their replicas.
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// For finding faults.
    #[command(subcommand)]
    Debug(DebugCommand),
}

impl CtlCommand {
    fn changes(&self) -> bool {
        match self {
            Self::Status | Self::Queue(_) | Self::Debug(_) | Self::Dlq(DlqCommand::List(_)) => false,
            Self::Dlq(DlqCommand::Retry(_) | DlqCommand::Delete { .. }) => true,
            Self::Cluster(command) => !matches!(command, ClusterCommand::Status),
        }
    }
}

#[derive(Debug, Subcommand)]
enum QueueCommand {
    /// Lists queues with their counters.
    List,
    /// Shows one queue with its lanes.
    Get {
        /// Queue name.
        name: String,
    },
}

#[derive(Debug, Subcommand)]
enum DlqCommand {
    /// Lists dead letters, newest first; says so when there are more.
    List(ListArgs),
    /// Puts a dead letter back at its lane's tail and removes its row, in one step.
    Retry(RetryArgs),
    /// Deletes all dead letters of a message, whichever groups they are of.
    Delete {
        /// Lane id, as `dlq list` shows it.
        #[arg(value_name = "LANE_ID")]
        lane: String,
        /// Transaction id.
        transaction: String,
    },
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Only of this queue.
    #[arg(long)]
    queue: Option<String>,
    /// Only of this consumer group.
    #[arg(long)]
    group: Option<String>,
    /// Most rows.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Rows to skip.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=i64::from(DEAD_LETTERS_SKIPPED_MAX)))]
    offset: u32,
}

#[derive(Debug, Args)]
struct RetryArgs {
    /// Lane id, as `dlq list` shows it.
    #[arg(
        value_name = "LANE_ID",
        required_unless_present = "id",
        requires = "transaction"
    )]
    lane: Option<String>,
    /// Transaction id: its newest dead letter.
    transaction: Option<String>,
    /// Row id instead.
    #[arg(long, conflicts_with = "lane")]
    id: Option<String>,
}

#[derive(Debug, Subcommand)]
enum DebugCommand {
    /// Shows the state digest of each group at its applied index.
    Digest,
}

/// Carries out one command.
///
/// Errors: one line that says what the node refused or why it could not be asked.
pub fn run(args: CtlArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let text = runtime
        .context("cannot start the runtime")?
        .block_on(answer(&args))
        .map_err(|error| advised(error, &args))?;
    io::stdout().write_all(text.as_bytes()).context("cannot print")
}

/// The error with what to do about it.
fn advised(error: anyhow::Error, args: &CtlArgs) -> anyhow::Error {
    let perhaps = if args.command.changes() {
        "; the change may be done: look before you repeat it"
    } else {
        ""
    };
    match error.downcast_ref::<ClientError>() {
        Some(ClientError::Connect { .. }) => {
            anyhow!("{error}; start the node, or name another one with --url or {URL_VARIABLE}")
        }
        Some(ClientError::BadUrl { .. }) => {
            anyhow!("{error}: only http:// is spoken, and --url (or {URL_VARIABLE}) must begin with it")
        }
        // A node that stops, or something that speaks no HTTP.
        Some(ClientError::NoAnswer { reason, .. }) if !reason.contains(TIMED_OUT) => anyhow!(
            "{error}; the node stopped just now, or this is not its HTTP port: --url takes the one of listen, not of peer_listen{perhaps}"
        ),
        Some(ClientError::NoAnswer { .. }) => anyhow!(
            "{error}; the node may hang, be stopped or have too much to do: look at its process and its log, ask another node with --url, or wait longer than {} s with --timeout{perhaps}",
            args.timeout
        ),
        _ => error,
    }
}

async fn answer(args: &CtlArgs) -> Result<String> {
    let client = Client::new(&args.url)?.with_answer_wait(Duration::from_secs(args.timeout));
    let json = args.json;
    match &args.command {
        CtlCommand::Status => shown(json, &client.status().await?, status),
        CtlCommand::Queue(QueueCommand::List) => shown(json, &client.queues().await?, queues),
        CtlCommand::Queue(QueueCommand::Get { name }) => shown(json, &client.queue(name).await?, queue),
        CtlCommand::Dlq(DlqCommand::List(which)) => list_dead_letters(&client, which, json).await,
        CtlCommand::Dlq(DlqCommand::Retry(which)) => {
            shown(json, &client.replay(&which.dead_letter()?).await?, replayed)
        }
        CtlCommand::Dlq(DlqCommand::Delete { lane, transaction }) => shown(
            json,
            &client.delete_dead_letters(lane, transaction).await?,
            deleted,
        ),
        CtlCommand::Cluster(command) => cluster::answer(&client, command, json).await,
        CtlCommand::Debug(DebugCommand::Digest) => shown(json, &client.digest().await?, digests),
    }
}

async fn list_dead_letters(client: &Client, which: &ListArgs, json: bool) -> Result<String> {
    let ListArgs { limit, offset, .. } = *which;
    let query = |limit, skip| DeadLetterQuery {
        queue: which.queue.clone(),
        group: which.group.clone(),
        limit: Some(limit),
        skip,
    };
    let list = client.dead_letters(&query(limit, offset)).await?;
    if let Some(queue) = &which.queue
        && list.messages.is_empty()
        && !json
        // A listing of no such queue is empty as well.
        && let Err(ClientError::Refused(refusal)) = client.queue(queue).await
        && refusal.status == 404
    {
        bail!("there is no queue {queue:?}: see laneway ctl queue list");
    }
    let mut text = shown(json, &list, dead_letters)?;
    let next = offset.saturating_add(limit);
    let full = u32::try_from(list.messages.len()).is_ok_and(|rows| rows >= limit);
    if !json && full && next <= DEAD_LETTERS_SKIPPED_MAX {
        let more = client.dead_letters(&query(1, next)).await?;
        if !more.messages.is_empty() {
            let _ = writeln!(text, "there are more: --offset {next}");
        }
    }
    Ok(text)
}

impl RetryArgs {
    fn dead_letter(&self) -> Result<DeadLetter> {
        match (&self.id, &self.lane, &self.transaction) {
            (Some(id), _, _) => Ok(DeadLetter::Row(id.clone())),
            (None, Some(lane), Some(transaction)) => Ok(DeadLetter::Message {
                lane_id: lane.clone(),
                transaction_id: transaction.clone(),
            }),
            _ => bail!("give LANE_ID and TRANSACTION, or --id"),
        }
    }
}

/// The answer as JSON, or as `text` makes it.
fn shown<T: Serialize>(json: bool, answer: &T, text: impl Fn(&T) -> String) -> Result<String> {
    if json {
        Ok(serde_json::to_string_pretty(answer)? + "\n")
    } else {
        Ok(text(answer))
    }
}

fn status(status: &StatusResponse) -> String {
    let mut text = String::new();
    let ready = if status.ready { "ready" } else { "not ready" };
    let StatusResponse {
        version,
        node,
        cluster,
        cluster_id,
        uptime_seconds,
        data_dir,
        ..
    } = status;
    let cluster_id = known_id(cluster_id);
    let _ = writeln!(
        text,
        "laneway {version}, node {node} of cluster {cluster} ({cluster_id}): {ready}, up {uptime_seconds:.0} s"
    );
    for reason in &status.reasons {
        let _ = writeln!(text, "  {}", masked(reason));
    }
    let low = if status.disk_low {
        ", pushes are refused"
    } else {
        ""
    };
    let _ = writeln!(
        text,
        "data in {data_dir}, {} MiB free{low}",
        mib(status.disk_free_bytes)
    );
    let storage = &status.storage;
    let (backlog, live) = (mib(storage.backlog_bytes), mib(storage.backlog_live_bytes));
    let (wal, dedup, checkpoint) = (
        mib(storage.wal_bytes),
        mib(storage.dedup_bytes),
        mib(storage.checkpoint_bytes),
    );
    let _ = writeln!(
        text,
        "MiB: wal {wal}, backlog {backlog} ({live} live), dedup {dedup}, checkpoints {checkpoint}"
    );
    let _ = writeln!(
        text,
        "pops that wait: {}, wal syncs: {}\n",
        status.parked_pops, storage.wal_syncs
    );
    text + &groups(&status.groups)
}

/// A cluster's id for people: it has one once it is founded.
fn known_id(cluster_id: &str) -> &str {
    if cluster_id.bytes().all(|digit| digit == b'0') {
        "no id yet: not founded"
    } else {
        cluster_id
    }
}

fn groups(groups: &[GroupStatus]) -> String {
    let mut table = Table::new([
        "PARTITION",
        "TERM",
        "LEADER",
        "LAST",
        "COMMITTED",
        "APPLIED",
        "CHECKPOINT",
        "STATE",
    ]);
    for group in groups {
        let state = group
            .stopped
            .clone()
            .unwrap_or_else(|| if group.leads { "leads" } else { "follows" }.to_owned());
        table.whole_row([
            group.partition.clone(),
            group.term.to_string(),
            group
                .leader
                .map_or_else(|| "-".to_owned(), |leader| leader.to_string()),
            group.last_index.to_string(),
            group.commit_index.to_string(),
            group.applied_index.to_string(),
            group.checkpoint_index.to_string(),
            state,
        ]);
    }
    table.to_string()
}

fn queues(list: &QueueList<'_>) -> String {
    let mut table = Table::new([
        "QUEUE",
        "LANES",
        "MESSAGES",
        "PENDING",
        "PROCESSING",
        "COMPLETED",
        "DEAD",
        "KIB",
    ]);
    for queue in &list.queues {
        let counts = &queue.messages;
        table.row([
            queue.name.to_string(),
            queue.partitions.to_string(),
            counts.total.to_string(),
            counts.pending.to_string(),
            counts.processing.to_string(),
            counts.completed.to_string(),
            counts.dead_letter.to_string(),
            (queue.retained_bytes / 1024).to_string(),
        ]);
    }
    table.to_string()
}

fn queue(queue: &QueueDetail<'_>) -> String {
    let options = serde_json::to_string(&queue.options).unwrap_or_default();
    let mut table = Table::new([
        "LANE",
        "ID",
        "MESSAGES",
        "PENDING",
        "PROCESSING",
        "COMPLETED",
        "DEAD",
    ]);
    for lane in &queue.partitions {
        let stats = &lane.stats;
        table.row([
            lane.name.to_string(),
            lane.id.clone(),
            stats.total.to_string(),
            stats.pending.to_string(),
            stats.processing.to_string(),
            stats.completed.to_string(),
            stats.dead_letter.to_string(),
        ]);
    }
    format!(
        "{} ({}), made {}\noptions {options}\n\n{table}",
        queue.name, queue.id, queue.created_at
    )
}

fn dead_letters(list: &DeadLetterList<'_>) -> String {
    let mut table = Table::new([
        "ID",
        "QUEUE",
        "LANE",
        "LANE ID",
        "GROUP",
        "TRANSACTION",
        "RETRIES",
        "FAILED AT",
        "REASON",
    ]);
    for row in &list.messages {
        table.row([
            row.id.clone(),
            row.queue.to_string(),
            row.partition.to_string(),
            row.partition_id.clone(),
            row.consumer_group.to_string(),
            row.transaction_id.to_string(),
            row.retry_count.to_string(),
            row.failed_at.clone(),
            row.error_message.to_string(),
        ]);
    }
    table.to_string()
}

fn replayed(replayed: &ReplayResponse<'_>) -> String {
    let ReplayResponse {
        queue,
        partition,
        original_transaction_id,
        replayed_as,
        ..
    } = replayed;
    let original = masked(original_transaction_id);
    let (transaction, offset) = (masked(&replayed_as.transaction_id), replayed_as.offset);
    format!("{original} is back in {queue}/{partition} as {transaction} at offset {offset}\n")
}

fn deleted(deleted: &DeleteDeadLettersResponse<'_>) -> String {
    format!(
        "deleted {} dead letter(s) of {}\n",
        deleted.deleted,
        masked(&deleted.transaction_id)
    )
}

fn digests(response: &DigestResponse) -> String {
    let mut table = Table::new(["PARTITION", "APPLIED", "DIGEST"]);
    for group in &response.groups {
        table.row([
            group.partition.clone(),
            group.applied_index.to_string(),
            group.digest.clone(),
        ]);
    }
    table.to_string()
}

fn mib(bytes: u64) -> u64 {
    bytes / (1024 * 1024)
}
