//! Looks after the dead letters of one queue: replays some, deletes a few, leaves the rest.

use rand::Rng;

use super::client::{Attempt, Client};
use super::plan::QueuePlan;
use crate::api::DeadLetterRow;

/// Most rows handled after one listing.
const ROWS_MAX: usize = 6;

/// Works until the load is over.
pub(crate) async fn tend_dead_letters(mut client: Client, plan: &'static QueuePlan) {
    while client.may_work().await {
        if let Attempt::Done(rows) = client.list_dead_letters(plan.name, false).await {
            for _ in 0..ROWS_MAX.min(rows.len()) {
                let row = &rows[client.rng.random_range(0..rows.len())];
                handle(&mut client, row).await;
            }
        }
        client.pause(200, 700).await;
    }
}

/// One row may be handled twice: the second time it is gone.
async fn handle(client: &mut Client, row: &DeadLetterRow) {
    let replay = client.chance(75);
    let request_id = client.request_id();
    let mut attempts = 0;
    while client.may_work().await {
        let attempt = match replay {
            true => client.replay(row, &request_id).await,
            false => client.delete_dead_letter(row, &request_id).await,
        };
        match attempt {
            Attempt::Done(()) | Attempt::Refused => return,
            Attempt::NotSent => continue,
            Attempt::Unknown => attempts += 1,
        }
        if !client.again(attempts).await {
            return;
        }
    }
}
