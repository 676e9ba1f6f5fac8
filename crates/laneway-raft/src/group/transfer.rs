//! Handing the lead to another voter.
//!
//! From the moment it is asked to, openraft takes no proposals and sends no heartbeats in this term, whatever comes of it. So that is
//! done last: before it, the target catches up while proposals are taken, and then gets the last entries while they are refused,
//! which can still be taken back. What is left is one round of votes.

use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::{RaftMetrics, ServerState};
use tokio::time::{Instant, timeout, timeout_at};

use super::Group;
use super::error::TransferError;
use super::members::matched;
use super::propose::{Ended, Hold};
use crate::types::Types;

/// Entries that the target of [`Group::transfer_leader`] may lack when it is called.
pub const TRANSFER_LAG_MAX: u64 = 1_000;

/// Entries that it may lack when proposals begin to be refused for its sake: those on their way.
const HELD_LAG_MAX: u64 = 8;

/// Longest wait for the target to catch up, first while proposals are taken, then while they are refused.
const CATCH_UP_MAX: Duration = Duration::from_millis(500);

/// Longest wait for the lead to pass on.
const PASS_MAX: Duration = Duration::from_secs(2);

impl Group {
    /// Hands the lead to the voter `to`; `Ok` at once if it leads already, otherwise once it does.
    ///
    /// First the target is waited for, for half a second at most, then proposals are refused (definitely) and it is waited for once
    /// more, until it holds the last entry, and until this replica has applied that: nothing is on its way when the lead passes on. A
    /// target that is no voter, lacks more than [`TRANSFER_LAG_MAX`] entries, or does not get them in time is refused; this node leads on
    /// and takes proposals as before. Should the target not take the lead in the end, the others elect somebody after their
    /// time-out. Whether it is connected is for the caller to look at.
    ///
    /// Errors: [`TransferError`]. Cancel safety: dropped before the lead was offered, it leaves all as it was, otherwise the transfer goes on.
    pub async fn transfer_leader(&self, to: u64) -> Result<(), TransferError> {
        let mut leadership = self.inner.leadership.clone();
        let now = *leadership.borrow_and_update();
        if now.leader == Some(to) {
            return Ok(());
        }
        if !now.is_self {
            return Err(TransferError::NotLeader { leader: now.leader });
        }
        let lag = self.lag(to, 0)?;
        if lag.entries > TRANSFER_LAG_MAX {
            return Err(lag.behind(to));
        }
        let by = Instant::now() + CATCH_UP_MAX;
        self.lag_until(to, 0, by, |lag| lag.entries <= HELD_LAG_MAX)
            .await?;

        let hold = Hold::new(&self.inner.proposals);
        let hold = hold.await.map_err(|Ended| TransferError::Stopped)?;
        let by = Instant::now() + CATCH_UP_MAX;
        let end = self.log_end().await?;
        self.lag_until(to, end, by, |lag| lag.entries == 0).await?;
        match self.lag_until(to, end, by, |lag| lag.unapplied == 0).await {
            // A slow machine is no reason to stay: its callers do not learn the outcome, that is all.
            Ok(()) | Err(TransferError::Behind { .. }) => {}
            Err(error) => return Err(error),
        }
        let trigger = self.inner.raft.trigger();
        let triggered = trigger.transfer_leader(to).await;
        triggered.map_err(|_| TransferError::Stopped)?;
        // What comes after that is refused by openraft.
        drop(hold);

        // Between the two nobody leads; and should `to` not take it, somebody else is elected.
        let passed =
            leadership.wait_for(|seen| seen.term != now.term && (seen.is_self || seen.leader.is_some()));
        match timeout(PASS_MAX, passed).await {
            Ok(Ok(seen)) if seen.leader == Some(to) => Ok(()),
            Ok(Err(_)) => Err(TransferError::Stopped),
            Ok(Ok(_)) | Err(_) => Err(TransferError::NotTaken),
        }
    }

    /// One past the last entry, all that openraft was given before this included: the metrics may not show it yet.
    async fn log_end(&self) -> Result<u64, TransferError> {
        let last = self
            .inner
            .raft
            .with_raft_state(|state| state.log_ids.last().map(|id| id.index));
        let last = last.await.map_err(|_| TransferError::Stopped)?;
        Ok(last.map_or(0, |index| index + 1))
    }

    /// Waits for the target until it lacks little `enough` of a log that ends at `end` or later, or until the time is up.
    async fn lag_until(
        &self,
        to: u64,
        end: u64,
        by: Instant,
        enough: impl Fn(Lag) -> bool,
    ) -> Result<(), TransferError> {
        let mut metrics = self.inner.raft.metrics();
        let waiting = async {
            loop {
                if enough(self.lag(to, end)?) {
                    return Ok(());
                }
                metrics.changed().await.map_err(|_| TransferError::Stopped)?;
            }
        };
        match timeout_at(by, waiting).await {
            Ok(waited) => waited,
            Err(_) => Err(self.lag(to, end)?.behind(to)),
        }
    }

    /// What the target lacks of a log that ends at `end` or later, as far as this leader knows.
    fn lag(&self, to: u64, end: u64) -> Result<Lag, TransferError> {
        let metrics = self.inner.raft.metrics();
        let metrics = metrics.borrow_watched();
        Lag::of(&metrics, to, end)
    }
}

/// How far the lead is from being ready to pass on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lag {
    /// That the target is not known to hold.
    entries: u64,
    /// That this leader has not applied.
    unapplied: u64,
}

impl Lag {
    fn of(metrics: &RaftMetrics<Types>, to: u64, end: u64) -> Result<Self, TransferError> {
        if metrics.state != ServerState::Leader {
            let leader = metrics.current_leader;
            return Err(TransferError::NotLeader { leader });
        }
        let membership = metrics.membership_config.membership();
        if !membership.voter_ids().any(|voter| voter == to) {
            return Err(TransferError::NotAVoter { raft_id: to });
        }
        let past = |index: Option<u64>| index.map_or(0, |index| index + 1);
        let end = end.max(past(metrics.last_log_index));
        let held = matched(metrics).get(&to).copied().flatten();
        Ok(Self {
            entries: end.saturating_sub(past(held)),
            unapplied: end.saturating_sub(past(metrics.last_applied.map(|id| id.index))),
        })
    }

    fn behind(self, to: u64) -> TransferError {
        TransferError::Behind {
            raft_id: to,
            entries: self.entries,
        }
    }
}
