//! Pushes a few messages, works them off in batches, lets one fail into the dead-letter store and replays it.
//!
//! `cargo run --example work -- http://127.0.0.1:6632` against a running broker.

use std::io::Write;
use std::time::Duration;

use laneway_client::wire::{AckStatus, ConfigureRequest, Given, Int, QueueOptionsPatch, Text};
use laneway_client::{Ack, Client, DeadLetter, DeadLetterQuery, Pop, Push};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "http://127.0.0.1:6632".to_owned());
    let client = Client::new(&url)?;
    let mut out = std::io::stdout();

    // No failure is allowed: the first one goes to the dead-letter store.
    let options = QueueOptionsPatch {
        retry_limit: Given::Value(Int(0)),
        ..Default::default()
    };
    client
        .configure(&ConfigureRequest {
            queue: Text::from("work"),
            options,
            ..Default::default()
        })
        .await?;

    let messages: Vec<Push> = (0..3).map(|n| Push::new("work", &n)).collect::<Result<_, _>>()?;
    for result in client.push(&messages).await? {
        writeln!(
            out,
            "pushed {} at offset {:?}",
            result.transaction_id, result.offset
        )?;
    }

    let pop = Pop {
        batch: Some(1),
        wait: Some(Duration::from_secs(1)),
        ..Pop::new("work")
    };
    while let Some(popped) = client.pop(&pop).await? {
        for message in &popped.messages {
            let fails = message.data.get() == "1" && message.delivery_attempt == 1 && message.offset < 3;
            let status = if fails {
                AckStatus::Failed
            } else {
                AckStatus::Completed
            };
            let acked = client
                .ack(&[Ack::of(message, status).because("1 is odd")])
                .await?;
            writeln!(
                out,
                "{}: {}, dead letter: {}",
                message.data,
                status.as_word(),
                acked[0].dlq
            )?;
        }
    }

    let query = DeadLetterQuery {
        queue: Some("work".to_owned()),
        ..Default::default()
    };
    for row in client.dead_letters(&query).await?.messages {
        let replayed = client.replay(&DeadLetter::Row(row.id)).await?;
        writeln!(
            out,
            "{} ({}) is back at offset {}",
            row.data, row.error_message, replayed.replayed_as.offset
        )?;
    }
    Ok(())
}
