//! Answers kept for clients that ask again: by request id, and by the exact ack that ended a lease.

use super::PartitionMachine;
use super::index::request_hash;
use crate::command::{Ack, RequestKey};
use crate::reply::{Outcome, Refusal, Reply};
use crate::rows::{RequestRow, RowKey, SettledRow};

/// A request id that comes back with other content.
const REUSED: Reply = Reply::Refused(Refusal::RequestIdReused);

impl PartitionMachine {
    /// The kept answer of a request: its reply, or `Refused(RequestIdReused)` if its content was another.
    pub fn kept_answer(&self, request: &RequestKey) -> Option<&Reply> {
        let hash = request_hash(request);
        let mut same_hash = self.index.requests.range((hash, 0)..=(hash, u64::MAX));
        let row = same_hash.find_map(|(_, number)| {
            let row = &self.tables.requests[number];
            (row.request.id == request.id && row.request.part == request.part).then_some(row)
        })?;
        Some(if row.request.content == request.content {
            &row.reply
        } else {
            &REUSED
        })
    }

    /// Answers from what was kept, or runs the command and keeps its answer. A refusal changed nothing and is not kept: a
    /// repeat is judged anew, and may succeed.
    pub(super) fn answered(
        &mut self,
        request: Option<&RequestKey>,
        run: impl FnOnce(&mut Self) -> Outcome,
    ) -> Outcome {
        let Some(request) = request else { return run(self) };
        if let Some(reply) = self.kept_answer(request) {
            return Outcome::reply(reply.clone());
        }
        let outcome = run(self);
        if matches!(outcome.reply, Reply::Refused(_)) {
            return outcome;
        }
        let number = self.next_kept();
        let row = RequestRow {
            request: request.clone(),
            kept: self.now(),
            reply: outcome.reply.clone(),
        };
        self.touch(RowKey::Request(number));
        self.index.requests.insert((request_hash(request), number));
        self.tables.requests.insert(number, row);
        if self.tables.requests.len() > self.kept_answers_max() {
            self.drop_oldest_request();
        }
        outcome
    }

    pub(super) fn settled_answer(&self, ack: &Ack) -> Option<&Reply> {
        let key = (ack.lease_id?, ack.lane, ack.items_hash);
        self.index
            .settled
            .get(&key)
            .map(|number| &self.tables.settled[number].reply)
    }

    /// Keeps the answer of an ack that ended the lease that it named.
    pub(super) fn keep_settled(&mut self, ack: &Ack, reply: &Reply) {
        let Some(lease) = ack.lease_id else { return };
        let number = self.next_kept();
        let (lane, items_hash) = (ack.lane, ack.items_hash);
        self.touch(RowKey::Settled(number));
        let row = SettledRow {
            lease,
            lane,
            items_hash,
            kept: self.now(),
            reply: reply.clone(),
        };
        self.tables.settled.insert(number, row);
        if let Some(older) = self.index.settled.insert((lease, lane, items_hash), number) {
            self.remove_row(RowKey::Settled(older));
        }
        if self.tables.settled.len() > self.kept_answers_max() {
            self.drop_oldest_settled();
        }
    }

    pub(super) fn drop_old_answers(&mut self) {
        let (now, kept_ms) = (self.now(), self.limits.kept_answer_ms);
        let is_old = |kept: crate::time::LeaseTime| kept.plus_ms(kept_ms) <= now;
        while self
            .tables
            .requests
            .first_key_value()
            .is_some_and(|(_, row)| is_old(row.kept))
        {
            self.drop_oldest_request();
        }
        while self
            .tables
            .settled
            .first_key_value()
            .is_some_and(|(_, row)| is_old(row.kept))
        {
            self.drop_oldest_settled();
        }
    }

    fn drop_oldest_request(&mut self) {
        let Some((number, row)) = self.tables.requests.first_key_value() else {
            return;
        };
        let number = *number;
        self.index.requests.remove(&(request_hash(&row.request), number));
        self.remove_row(RowKey::Request(number));
    }

    fn drop_oldest_settled(&mut self) {
        let Some((number, row)) = self.tables.settled.first_key_value() else {
            return;
        };
        let number = *number;
        self.index.settled.remove(&(row.lease, row.lane, row.items_hash));
        self.remove_row(RowKey::Settled(number));
    }

    fn next_kept(&mut self) -> u64 {
        let meta = self.meta_mut();
        let number = meta.kept_next;
        meta.kept_next += 1;
        number
    }

    fn kept_answers_max(&self) -> usize {
        usize::try_from(self.limits.kept_answers_max).unwrap_or(usize::MAX)
    }
}
