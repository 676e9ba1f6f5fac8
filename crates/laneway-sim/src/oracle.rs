//! Judges histories of real or simulated clusters: one file per invariant, named after what must hold.
//!
//! Every rule is one-sided: it speaks only of what a history proves, whatever the outcomes that its clients did not learn
//! turn out to be. A violation is therefore real (or the history breaks the rules of [`history`]).

pub mod history;

mod acked_is_never_redelivered;
mod acked_push_is_kept;
mod dead_letter_is_filed_once;
mod dedup_names_one_message;
mod evidence;
mod fates_partition;
mod lanes_are_fifo;
mod lease_never_ends_early;
mod no_phantoms;
mod no_stale_success;
mod one_live_lease;
mod one_value_per_offset;
mod replay_moves_once;
mod replicas_agree;
mod retry_counter_is_exact;
mod settled_lease_is_fenced;

#[cfg(test)]
mod story;

use serde::{Deserialize, Serialize};

use self::evidence::Evidence;
use self::history::{History, Outcome, Reply};

/// A rule of `invariants.md` §1 that a history breaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// Its number there.
    pub invariant: u8,
    /// What is wrong, with the values.
    pub what: String,
    /// The operations that show it: positions in [`History::operations`].
    pub operations: Vec<usize>,
}

/// What a history holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Attempts.
    pub operations: u64,
    /// Answered with success.
    pub ok: u64,
    /// Surely without effect.
    pub refused: u64,
    /// With an outcome that their client did not learn.
    pub unknown: u64,
    /// Messages stored by known pushes.
    pub messages_pushed: u64,
    /// Deliveries, repeated ones too.
    pub messages_delivered: u64,
    /// Ack items answered with success.
    pub items_acked: u64,
    /// Ack items answered as dead-lettered.
    pub items_dead_lettered: u64,
    /// Dead letters replayed.
    pub replayed: u64,
    /// (lane, group)s whose retry counter could not be followed: acks were accepted under a lease that no answer showed.
    pub retry_counters_unjudged: u64,
    /// Empty answers of pops that a message surely deliverable would have proved stale.
    #[serde(default)]
    pub empty_pops_judged: u64,
    /// Digests of replicas.
    #[serde(default)]
    pub digests: u64,
}

/// What the oracle makes of a history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// By invariant; empty is good.
    pub violations: Vec<Violation>,
    /// How much was judged.
    pub counts: Counts,
}

/// Judges a history by every rule.
pub fn judge(history: &History) -> Verdict {
    let evidence = Evidence::new(history);
    let mut violations = Vec::new();
    violations.extend(acked_push_is_kept::check(&evidence));
    violations.extend(no_phantoms::check(&evidence));
    violations.extend(one_value_per_offset::check(&evidence));
    violations.extend(lanes_are_fifo::check(&evidence));
    violations.extend(one_live_lease::check(&evidence));
    violations.extend(settled_lease_is_fenced::check(&evidence));
    violations.extend(lease_never_ends_early::check(&evidence));
    violations.extend(acked_is_never_redelivered::check(&evidence));
    let (counter_violations, retry_counters_unjudged) = retry_counter_is_exact::check(&evidence);
    violations.extend(counter_violations);
    violations.extend(dead_letter_is_filed_once::check(&evidence));
    violations.extend(fates_partition::check(&evidence));
    violations.extend(replay_moves_once::check(&evidence));
    violations.extend(dedup_names_one_message::check(&evidence));
    violations.extend(replicas_agree::check(&history.digests));
    let (stale, empty_pops_judged) = no_stale_success::check(&evidence);
    violations.extend(stale);
    let mut counts = count(history);
    counts.empty_pops_judged = empty_pops_judged;
    counts.retry_counters_unjudged = retry_counters_unjudged;
    Verdict { violations, counts }
}

fn count(history: &History) -> Counts {
    let mut counts = Counts {
        digests: u64::try_from(history.digests.len()).unwrap_or(u64::MAX),
        ..Counts::default()
    };
    for operation in &history.operations {
        counts.operations += 1;
        match &operation.outcome {
            Outcome::Refused(_) => counts.refused += 1,
            Outcome::Unknown(_) => counts.unknown += 1,
            Outcome::Ok(reply) => {
                counts.ok += 1;
                count_reply(reply, &mut counts);
            }
        }
    }
    counts
}

fn count_reply(reply: &Reply, counts: &mut Counts) {
    match reply {
        Reply::Pushed(items) => {
            counts.messages_pushed += items.iter().map(|item| u64::from(!item.duplicate)).sum::<u64>();
        }
        Reply::Popped(popped) => {
            counts.messages_delivered += u64::try_from(popped.messages.len()).unwrap_or(u64::MAX);
        }
        Reply::Acked(items) => {
            counts.items_acked += items.iter().map(|item| u64::from(item.success)).sum::<u64>();
            counts.items_dead_lettered += items
                .iter()
                .map(|item| u64::from(item.dead_lettered))
                .sum::<u64>();
        }
        Reply::Replayed(_) => counts.replayed += 1,
        Reply::Extended(_) | Reply::DeadLetterDeleted | Reply::DeadLetters(_) | Reply::Drained => {}
    }
}
