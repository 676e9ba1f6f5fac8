//! Applying committed entries: the machine, then the stores beside it, then the callers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use laneway_core::command::{Command, Entry};
use laneway_core::reply::{Effect, Outcome, Reply, StoreChange};
use laneway_core::time::Stamps;
use laneway_raft::{CommittedEntry, CommittedPayload};
use laneway_storage::codec;
use laneway_storage::dedup::DedupStore;
use laneway_storage::payload::WalBlock;
use laneway_storage::wal::EntryLocation;
use tokio::sync::oneshot;

use super::running::{Filed, LogPosition, Running};

/// Where the blob of the entry being applied is.
struct BlobPlace<'a> {
    blob: &'a Bytes,
    location: Option<EntryLocation>,
    blob_at: u64,
}

impl Running {
    /// Applies a batch and signals `done`. Panics on an entry that cannot be decoded: a stopped partition is better
    /// than a wrong one.
    pub(super) fn apply(&mut self, entries: Vec<CommittedEntry>, done: oneshot::Sender<()>) {
        for entry in entries {
            let position = LogPosition {
                index: entry.index,
                term: entry.term,
                leader: entry.leader,
            };
            let next = self.applied.map_or(0, |applied| applied.index + 1);
            assert_eq!(
                position.index, next,
                "partition {}: the log has a hole or comes twice",
                self.id
            );
            match entry.payload {
                CommittedPayload::Blank => {}
                CommittedPayload::Membership(membership) => self.membership = membership,
                CommittedPayload::Normal(body) => self.apply_body(position, &body),
            }
            self.applied = Some(position);
            self.handle.applied_index.store(position.index, Ordering::Release);
            self.take_office_at(position.term);
        }
        // The group may have been shut down meanwhile; then nobody waits.
        let _ = done.send(());
        self.want_flush();
        self.arm_timer();
    }

    /// The entry is of the leader of now, and did not wait in the log for this process to start.
    fn is_fresh(&self, position: LogPosition) -> bool {
        let leader = *self.handle.leadership.borrow();
        let is_new = self.replay_end.is_none_or(|end| position.index > end);
        is_new && leader.leader.is_some() && !leader.is_self && leader.term == position.term
    }

    fn apply_body(&mut self, position: LogPosition, body: &Bytes) {
        let (origin, entry, blob_at) = codec::decode_entry(body)
            .unwrap_or_else(|error| panic!("entry {} of partition {}: {error}", position.index, self.id));
        let Entry {
            stamps,
            commands,
            blob,
        } = entry;
        let filed = if origin.node == self.raft_id {
            self.filed.take_if(|filed| filed.proposal == origin.proposal)
        } else {
            None
        };
        if self.is_fresh(position) {
            self.keeper.observe(&*self.clock, position.term, stamps);
        }
        self.handle
            .bytes_since_checkpoint
            .fetch_add(body.len() as u64, Ordering::Relaxed);
        let effects = self.machine.begin_entry(stamps);
        self.hint(effects);
        let stamps = self.machine.stamps();
        let place = BlobPlace {
            blob: &blob,
            location: self.wal.locate(self.id, position.index),
            blob_at: u64::from(blob_at),
        };
        match filed {
            Some(filed) => self.apply_filed(filed, commands, stamps, &place),
            None => {
                for command in commands {
                    self.apply_command(command, stamps, &place);
                }
            }
        }
        // Once per entry: everyone who waits for a version wakes each time.
        let version = self.machine.catalog_version().0;
        self.handle
            .catalog_version
            .send_if_modified(|known| std::mem::replace(known, version) != version);
        self.timers.entry_applied(&*self.clock);
    }

    fn apply_filed(&mut self, filed: Filed, commands: Vec<Command>, stamps: Stamps, place: &BlobPlace<'_>) {
        for (command, caller) in commands.into_iter().zip(filed.callers) {
            let reply = self.apply_command(command, stamps, place);
            let Some(caller) = caller else { continue };
            if let Err(Ok(unheard)) = caller.answer(Ok(reply)) {
                self.give_back(unheard);
            }
        }
        self.overlay.clear();
        self.commit_took(filed.at);
    }

    /// A claim whose asker has gone: nobody will ever read it.
    fn give_back(&mut self, reply: Reply) {
        if let Reply::Claimed(claimed) = reply
            && !claimed.lanes.is_empty()
        {
            let lanes = claimed.lanes.iter().map(|lane| lane.lane).collect();
            self.handle.release(claimed.lease_id, lanes);
        }
    }

    fn apply_command(&mut self, command: Command, stamps: Stamps, place: &BlobPlace<'_>) -> Reply {
        let Outcome {
            reply,
            changes,
            effects,
        } = self.machine.apply(command);
        for change in changes {
            self.store(&change, stamps, place);
        }
        self.hint(effects);
        reply
    }

    fn store(&self, change: &StoreChange, stamps: Stamps, place: &BlobPlace<'_>) {
        let payloads = &self.stores.payloads;
        match *change {
            StoreChange::Stored {
                queue,
                lane,
                offset_first,
                count,
                block,
                dedup,
            } => {
                let location = place
                    .location
                    .expect("an entry that is being applied is in the WAL");
                let at = location.body_at + place.blob_at + u64::from(block.at);
                let place_in_wal = WalBlock {
                    segment: location.segment,
                    at,
                    bytes: block.bytes,
                };
                payloads.stored(lane, offset_first, count, stamps.wall, place_in_wal);
                if dedup {
                    let frames = place
                        .blob
                        .slice(block.at as usize..(block.at + block.bytes) as usize);
                    self.store_dedup_rows(queue, lane, offset_first, stamps, &frames);
                }
            }
            StoreChange::HeadMoved { lane, head } => payloads.head_moved(lane, head),
            StoreChange::Pinned { lane, offset } => payloads.pinned(lane, offset),
            StoreChange::Unpinned { lane, offset } => payloads.unpinned(lane, offset),
            StoreChange::LaneDropped { lane } => payloads.lane_dropped(lane),
        }
    }

    fn store_dedup_rows(
        &self,
        queue: laneway_core::ids::QueueId,
        lane: laneway_core::ids::LaneId,
        offset_first: laneway_core::ids::Offset,
        stamps: Stamps,
        frames: &Bytes,
    ) {
        let (Some(row), Some(view)) = (self.machine.queue(queue), self.machine.lane(lane)) else {
            return;
        };
        let window_seconds = row.settings.dedup_window_seconds;
        for (at, frame) in (0u64..).zip(codec::frames(frames)) {
            let frame = frame.unwrap_or_else(|error| panic!("frame {at} of an entry: {error}"));
            if !frame.transaction_id.is_empty() {
                let key = DedupStore::key(queue, view.name, &frame.transaction_id);
                self.stores
                    .dedup
                    .insert(key, offset_first.plus(at), stamps.wall, window_seconds);
            }
        }
    }

    /// Carries hints to parked pops.
    pub(super) fn hint(&self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::LaneReady { queue, group, lane } => {
                    if self.office.is_some()
                        && let Some(view) = self.machine.lane(lane)
                    {
                        let name: Arc<str> = view.name.into();
                        self.parking.ready(&(queue, group.into()), self.id, &name);
                    }
                }
                // Every gateway sees it in its own replica.
                Effect::QueueGone { queue } => self.parking.queue_gone(queue),
            }
        }
    }
}
