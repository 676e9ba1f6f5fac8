//! Entries that the WAL has not confirmed yet, and what happens when it has no room for them.
//!
//! openraft takes a failed append as the end of the group, for it cannot take back entries that it has numbered. A full disk
//! is no such end: the WAL says for sure that it did not take the entries, and works on. So they are kept here, and offered
//! again until there is room. To openraft it looks like a slow disk; readers find the entries all the same.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use laneway_core::ids::PartitionId;
use laneway_storage::wal::{Wal, WalEntry, WalError};
use openraft::storage::IOFlushed;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use crate::types::Types;

/// How long after a refusal the entries are offered again.
const OFFER_AGAIN: Duration = Duration::from_millis(100);

/// The way from openraft into the WAL, for one group.
pub(crate) struct Unsynced {
    wal: Wal,
    partition: PartitionId,
    runtime: Handle,
    /// Held while entries are noted and handed to the WAL, so that both happen in one order. Taken before `state`.
    handing: Mutex<()>,
    /// Also taken by the WAL's callbacks.
    state: Mutex<State>,
    /// Changes whenever the WAL has answered.
    answers: watch::Sender<Answers>,
}

/// What the WAL has answered so far.
#[derive(Clone, Copy, Default)]
struct Answers {
    count: u64,
    failed: bool,
}

/// Waits for entries to be durable on this node.
#[derive(Clone)]
pub(crate) struct Durable {
    wal: Wal,
    partition: PartitionId,
    answers: watch::Receiver<Answers>,
}

impl Durable {
    /// Waits until the entry at `index` is on this node's disk. A quorum without this node may have committed it before.
    ///
    /// Errors: the log failed.
    pub(crate) async fn reached(&mut self, index: u64) -> io::Result<()> {
        let Self {
            wal,
            partition,
            answers,
        } = self;
        let there = |answers: &Answers| answers.failed || wal.locate(*partition, index).is_some();
        match answers.wait_for(there).await {
            Ok(answers) if !answers.failed => Ok(()),
            Ok(_) | Err(_) => Err(io::Error::other(
                "the log failed before the entry was durable here",
            )),
        }
    }
}

#[derive(Default)]
struct State {
    /// In order, from the oldest unanswered one on.
    appends: VecDeque<Append>,
    /// Number of the next one.
    next: u64,
    /// Appends that the WAL has taken and not answered.
    in_wal: usize,
    /// The WAL had no room: nothing is handed to it but the oldest append, again and again.
    refused: bool,
}

struct Append {
    number: u64,
    /// Less those that were truncated since.
    entries: Vec<WalEntry>,
    callback: IOFlushed<Types>,
}

impl Unsynced {
    /// Must be called on a tokio runtime.
    pub(crate) fn new(wal: Wal, partition: PartitionId) -> Arc<Self> {
        Arc::new(Self {
            wal,
            partition,
            runtime: Handle::current(),
            handing: Mutex::default(),
            state: Mutex::default(),
            answers: watch::Sender::default(),
        })
    }

    pub(crate) fn durable(&self) -> Durable {
        Durable {
            wal: self.wal.clone(),
            partition: self.partition,
            answers: self.answers.subscribe(),
        }
    }

    /// Hands entries to the WAL. `callback` is called once they are durable, or lost for good.
    pub(crate) fn append(self: &Arc<Self>, entries: Vec<WalEntry>, callback: IOFlushed<Types>) {
        let _handing = lock(&self.handing);
        let (number, refused) = {
            let mut state = self.state();
            let number = state.next;
            state.next += 1;
            state.in_wal += usize::from(!state.refused);
            let entries = entries.clone();
            state.appends.push_back(Append {
                number,
                entries,
                callback,
            });
            (number, state.refused)
        };
        if !refused {
            let unsynced = Arc::clone(self);
            let done = move |result| unsynced.answered(number, result);
            self.wal.append(self.partition, entries, Box::new(done));
        }
    }

    /// Voids the entries after `index` (`None`: all), here and in the WAL.
    pub(crate) fn truncate_after(&self, index: Option<u64>) {
        let _handing = lock(&self.handing);
        {
            let mut state = self.state();
            for append in &mut state.appends {
                append.entries.retain(|entry| Some(entry.index) <= index);
            }
            if state.refused {
                // The WAL will never answer these. openraft replaces their entries and waits for the new ones.
                state.appends.retain(|append| !append.entries.is_empty());
            }
        }
        let done = Box::new(|_: Result<(), WalError>| ()); // a failed WAL fails the next append too
        self.wal.truncate_after(self.partition, index, done);
    }

    /// Whether entries wait here for room on the disk.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.state().refused
    }

    /// Index behind the last entry that is not confirmed.
    pub(crate) fn end(&self) -> Option<u64> {
        let state = self.state();
        state
            .appends
            .iter()
            .rev()
            .find_map(|append| append.entries.last())
            .map(|entry| entry.index + 1)
    }

    /// Unconfirmed entries of `range` from its beginning on, until `bytes_max` (at least one). Empty if the first is not here.
    pub(crate) fn read(&self, range: &Range<u64>, bytes_max: u64) -> Vec<WalEntry> {
        let state = self.state();
        let mut found: Vec<WalEntry> = Vec::new();
        let mut bytes = 0;
        for entry in state.appends.iter().flat_map(|append| &append.entries) {
            let wanted = entry.index < range.end && entry.index == range.start + count(found.len());
            if wanted && (found.is_empty() || bytes < bytes_max) {
                bytes += count(entry.body.len());
                found.push(entry.clone());
            }
        }
        found
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The WAL's answer to an append, on its thread, or on the caller's when it is refused at once.
    fn answered(self: &Arc<Self>, number: u64, result: Result<(), WalError>) {
        let mut state = self.state();
        state.in_wal -= 1;
        let oldest = state.appends.front().is_none_or(|append| append.number >= number);
        let no_room = match &result {
            Err(WalError::Full) => true,
            // What follows refused entries does not follow the log; an older append is still unanswered then.
            Err(WalError::Gap { .. }) => state.refused || !oldest,
            Ok(()) | Err(_) => false,
        };
        if !no_room {
            drop(state);
            return self.end_appends(number, &result);
        }
        if !state.refused {
            state.refused = true;
            drop(state);
            tracing::warn!(partition = %self.partition, "no room in the log, entries wait");
            self.runtime.spawn(offer_again(Arc::downgrade(self)));
        }
    }

    /// Ends the appends up to `number`.
    fn end_appends(&self, number: u64, result: &Result<(), WalError>) {
        loop {
            let ended = {
                let mut state = self.state();
                let due = state
                    .appends
                    .front()
                    .is_some_and(|append| append.number <= number);
                if due { state.appends.pop_front() } else { None }
            };
            let Some(append) = ended else { break };
            append
                .callback
                .io_completed(result.clone().map_err(io::Error::other));
        }
        self.answers.send_modify(|answers| {
            answers.count += 1;
            answers.failed |= result.is_err();
        });
    }

    /// Hands the oldest append to the WAL once more.
    fn offer_oldest(&self) -> Offer {
        let _handing = lock(&self.handing);
        let mut state = self.state();
        if state.in_wal > 0 {
            return Offer::Later; // refusals of what was on its way are still to come
        }
        let Some(oldest) = state.appends.front() else {
            state.refused = false;
            return Offer::NothingLeft;
        };
        let (number, entries) = (oldest.number, oldest.entries.clone());
        drop(state);
        let (done, answer) = oneshot::channel();
        self.wal.append(
            self.partition,
            entries,
            Box::new(move |result| _ = done.send(result)),
        );
        Offer::Made { number, answer }
    }
}

enum Offer {
    Made {
        number: u64,
        answer: oneshot::Receiver<Result<(), WalError>>,
    },
    Later,
    NothingLeft,
}

/// Runs until the WAL has taken everything that waits, or the group is gone.
async fn offer_again(unsynced: Weak<Unsynced>) {
    tokio::time::sleep(OFFER_AGAIN).await;
    while let Some(this) = unsynced.upgrade() {
        let offer = this.offer_oldest();
        let partition = this.partition;
        drop(this); // not held while waiting: the group may end
        let (number, result) = match offer {
            Offer::Made { number, answer } => (number, answer.await.unwrap_or(Err(WalError::Closed))),
            Offer::Later => (0, Err(WalError::Full)),
            Offer::NothingLeft => {
                tracing::info!(%partition, "the log has room again");
                return;
            }
        };
        if result == Err(WalError::Full) {
            tokio::time::sleep(OFFER_AGAIN).await;
        } else if let Some(this) = unsynced.upgrade() {
            this.end_appends(number, &result);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn count(len: usize) -> u64 {
    u64::try_from(len).expect("a length fits u64")
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use laneway_storage::vfs::SimVfs;
    use laneway_storage::wal::WalOptions;
    use openraft::RaftTypeConfig;
    use openraft::async_runtime::{AsyncRuntime, Oneshot};

    use super::*;

    type Runtime = <Types as RaftTypeConfig>::AsyncRuntime;

    const PARTITION: PartitionId = PartitionId(3);

    fn entries(indexes: Range<u64>, term: u64) -> Vec<WalEntry> {
        let body = Bytes::from(vec![b'.'; 6_000]);
        indexes
            .map(|index| WalEntry {
                index,
                term,
                leader: 1,
                kind: 1,
                body: body.clone(),
            })
            .collect()
    }

    fn append(unsynced: &Arc<Unsynced>, entries: Vec<WalEntry>) -> oneshot::Receiver<Result<(), io::Error>> {
        let (done, answer) = <<Runtime as AsyncRuntime>::Oneshot as Oneshot>::channel();
        unsynced.append(entries, IOFlushed::signal(done));
        answer
    }

    fn terms(unsynced: &Unsynced, range: Range<u64>) -> Vec<u64> {
        unsynced
            .read(&range, u64::MAX)
            .iter()
            .map(|entry| entry.term)
            .collect()
    }

    async fn full_log() -> (SimVfs, Wal, Arc<Unsynced>, u64) {
        let disk = SimVfs::new();
        let options = WalOptions {
            segment_bytes: 32 * 1024,
            ..WalOptions::default()
        };
        let (wal, _) = Wal::open(Arc::new(disk.clone()), "/wal".into(), options).unwrap();
        disk.set_disk_bytes(Some(0));
        let unsynced = Unsynced::new(wal.clone(), PARTITION);
        let mut next = 0;
        loop {
            let mut answer = append(&unsynced, entries(next..next + 1, 1));
            while !unsynced.waits_for_room() && answer.try_recv().is_err() {
                tokio::task::yield_now().await;
            }
            if unsynced.waits_for_room() {
                return (disk, wal, unsynced, next);
            }
            next += 1;
        }
    }

    #[tokio::test]
    async fn waiting_entries_can_be_read_and_are_written_once_there_is_room() {
        let (disk, wal, unsynced, first) = full_log().await;
        let more = append(&unsynced, entries(first + 1..first + 4, 1));
        assert_eq!(unsynced.end(), Some(first + 4));
        assert_eq!(terms(&unsynced, first..first + 9), [1, 1, 1, 1]);
        assert_eq!(unsynced.read(&(first + 1..first + 9), 1).len(), 1, "at least one");
        assert!(
            terms(&unsynced, 0..first + 9).is_empty(),
            "the first is elsewhere"
        );
        disk.set_disk_bytes(None);
        more.await.unwrap().unwrap();
        assert_eq!(wal.last(PARTITION), Some((first + 3, 1, 1)));
        assert_eq!(unsynced.end(), None);
    }

    #[tokio::test]
    async fn truncated_entries_do_not_come_back_when_there_is_room() {
        let (disk, wal, unsynced, first) = full_log().await;
        let cut = append(&unsynced, entries(first + 1..first + 3, 1));
        unsynced.truncate_after(Some(first));
        assert!(cut.await.is_err(), "it is never answered");
        let new = append(&unsynced, entries(first + 1..first + 2, 2));
        assert_eq!(terms(&unsynced, first..first + 9), [1, 2]);
        disk.set_disk_bytes(None);
        new.await.unwrap().unwrap();
        assert_eq!(wal.last(PARTITION), Some((first + 1, 2, 1)));
        let direct = append(&unsynced, entries(first + 2..first + 3, 2));
        direct.await.unwrap().unwrap();
        assert_eq!(wal.last(PARTITION), Some((first + 2, 2, 1)));
    }
}
