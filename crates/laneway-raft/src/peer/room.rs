//! What a peer may keep busy here: calls, bytes of requests, bytes of answers that it has not read.
//!
//! One [`Room`] serves all connections of one class from one node, also one that is about to end, so that connecting anew gains
//! nothing. Where there is no room, no more is read from the connection, which holds the peer back; other classes and other
//! peers have rooms of their own. Nothing waits for room but the reading of further requests, so nothing can wait in a circle:
//! whoever has room gives it back once its answer is written, or its connection ends.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::frame::{BODY_BYTES_MAX, SMALL_BODY_BYTES_MAX};
use super::handshake::Class;

/// Calls carried out or waiting for their answer to be written.
const CALLS_MAX: usize = 1024;

/// Bytes of requests that are being carried out, where bodies may be large.
const REQUEST_BYTES_MAX: usize = 2 * BODY_BYTES_MAX;

/// The same, where they are small.
const SMALL_REQUEST_BYTES_MAX: usize = 16 << 20;

/// Least that a request counts for, so that the number of small ones is bounded too.
const REQUEST_BYTES_MIN: usize = 4 << 10;

/// Bytes of answers that wait to be written, from which on no further call begins.
const ANSWER_BYTES_PAUSE: usize = 64 << 20;

/// The same, from which on the peer counts as one that does not read. How large an answer becomes is known only when it is there,
/// so the calls that had begun before the pause may all add to it.
const ANSWER_BYTES_MAX: usize = 4 * BODY_BYTES_MAX;

/// What an answer counts for until it is there.
pub(super) const ANSWER_BYTES_GUESS: usize = 64 << 10;

const _: () = {
    // The largest request waits neither for ever nor for all others, the largest answer is no reason to part.
    assert!(REQUEST_BYTES_MAX > BODY_BYTES_MAX && ANSWER_BYTES_MAX > ANSWER_BYTES_PAUSE + BODY_BYTES_MAX);
    // As many small calls as may be there at all, in any class.
    assert!(SMALL_REQUEST_BYTES_MAX >= CALLS_MAX * REQUEST_BYTES_MIN);
    assert!(ANSWER_BYTES_PAUSE >= CALLS_MAX * ANSWER_BYTES_GUESS);
    assert!(SMALL_REQUEST_BYTES_MAX > SMALL_BODY_BYTES_MAX && REQUEST_BYTES_MAX <= u32::MAX as usize);
};

/// How much room there is.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoomLimits {
    pub(super) calls: usize,
    pub(super) request_bytes: u32,
    pub(super) answer_bytes_pause: usize,
    pub(super) answer_bytes: usize,
}

impl RoomLimits {
    pub(super) fn of(class: Class) -> Self {
        let request_bytes = match class {
            Class::Control => SMALL_REQUEST_BYTES_MAX,
            Class::Entries | Class::Bulk => REQUEST_BYTES_MAX,
        };
        Self {
            calls: CALLS_MAX,
            request_bytes: u32::try_from(request_bytes).expect("asserted above"),
            answer_bytes_pause: ANSWER_BYTES_PAUSE,
            answer_bytes: ANSWER_BYTES_MAX,
        }
    }
}

/// What is left.
#[derive(Debug)]
pub(super) struct Room {
    limits: RoomLimits,
    calls: Arc<Semaphore>,
    request_bytes: Arc<Semaphore>,
    /// Bytes of answers that are there, or guessed.
    answer_bytes: watch::Sender<usize>,
}

/// The peer does not read its answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unread;

impl Room {
    pub(super) fn new(limits: RoomLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            calls: Arc::new(Semaphore::new(limits.calls)),
            request_bytes: Arc::new(Semaphore::new(limits.request_bytes as usize)),
            answer_bytes: watch::Sender::new(0),
        })
    }

    /// Waits for room for a call with a request of `request_bytes`, whose answer is guessed to have `answer_bytes`.
    pub(super) async fn call(self: &Arc<Self>, request_bytes: usize, answer_bytes: usize) -> Held {
        let call = Arc::clone(&self.calls).acquire_owned().await;
        let request = self.request(request_bytes).await;
        let pause = self.limits.answer_bytes_pause;
        if *self.answer_bytes.borrow() >= pause {
            let mut held = self.answer_bytes.subscribe();
            // The sender is `self`.
            let _ = held.wait_for(|held| *held < pause).await;
        }
        self.answer_bytes.send_modify(|held| *held += answer_bytes);
        Held {
            _call: Some(call.expect("this semaphore is never closed")),
            request: Some(request),
            answer_bytes,
            room: Arc::clone(self),
        }
    }

    /// Waits for room for a request of a stream. Its answer is small.
    pub(super) async fn item(self: &Arc<Self>, request_bytes: usize) -> Held {
        Held {
            _call: None,
            request: Some(self.request(request_bytes).await),
            answer_bytes: 0,
            room: Arc::clone(self),
        }
    }

    async fn request(&self, bytes: usize) -> OwnedSemaphorePermit {
        // One that is larger than all of the room takes all of it, rather than never to be let in.
        let bytes = u32::try_from(bytes.max(REQUEST_BYTES_MIN)).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.request_bytes).acquire_many_owned(bytes.min(self.limits.request_bytes));
        permit.await.expect("this semaphore is never closed")
    }

    fn release_answer(&self, bytes: usize) {
        self.answer_bytes.send_if_modified(|held| {
            let paused = *held >= self.limits.answer_bytes_pause;
            *held -= bytes;
            paused && *held < self.limits.answer_bytes_pause
        });
    }
}

/// Room that is taken, until this is dropped: with the answer that was written, or with the connection.
#[derive(Debug)]
pub(super) struct Held {
    _call: Option<OwnedSemaphorePermit>,
    request: Option<OwnedSemaphorePermit>,
    answer_bytes: usize,
    room: Arc<Room>,
}

impl Held {
    /// The call was carried out, its request is gone, and its answer has so many bytes.
    pub(super) fn answered(&mut self, bytes: usize) -> Result<(), Unread> {
        self.request = None;
        let guessed = std::mem::replace(&mut self.answer_bytes, bytes);
        self.room.answer_bytes.send_modify(|held| *held += bytes);
        self.room.release_answer(guessed);
        if *self.room.answer_bytes.borrow() > self.room.limits.answer_bytes {
            return Err(Unread);
        }
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room.release_answer(self.answer_bytes);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const KIB: usize = 1024;

    fn room() -> Arc<Room> {
        Room::new(RoomLimits {
            calls: 4,
            request_bytes: 64 * 1024,
            answer_bytes_pause: 100 * KIB,
            answer_bytes: 200 * KIB,
        })
    }

    fn call(room: &Arc<Room>, request: usize, answer: usize) -> Option<Held> {
        room.call(request, answer).now_or_never()
    }

    #[test]
    fn calls_are_bounded_by_count_until_their_answers_are_written() {
        let room = room();
        let mut held: Vec<Held> = (0..4).map(|_| call(&room, 1, 1).unwrap()).collect();
        assert!(call(&room, 1, 1).is_none());
        held[0].answered(10).unwrap();
        assert!(call(&room, 1, 1).is_none(), "it is not written yet");
        held.pop();
        assert!(call(&room, 1, 1).is_some());
    }

    #[test]
    fn requests_are_bounded_by_bytes_and_the_largest_is_let_in_alone() {
        let room = room();
        let half = call(&room, 32 * KIB, 0).unwrap();
        assert!(call(&room, 33 * KIB, 0).is_none());
        assert!(room.item(33 * KIB).now_or_never().is_none());
        let rest = room.item(32 * KIB).now_or_never().unwrap();
        assert!(room.item(1).now_or_never().is_none(), "small ones count too");
        drop((half, rest));
        let huge = call(&room, 1 << 40, 0).unwrap();
        assert!(room.item(1).now_or_never().is_none());
        drop(huge);
        assert!(room.item(1).now_or_never().is_some());
    }

    #[test]
    fn no_call_begins_while_too_many_bytes_of_answers_wait() {
        let room = room();
        let mut first = call(&room, 1, KIB).unwrap();
        first.answered(100 * KIB).unwrap();
        let waiting = room.call(1, KIB);
        let mut waiting = std::pin::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(first);
        assert!(waiting.now_or_never().is_some(), "it is woken");
        assert_eq!(*room.answer_bytes.borrow(), 0);
    }

    #[test]
    fn answers_of_calls_that_had_begun_are_bounded_too() {
        let room = room();
        let mut begun: Vec<Held> = (0..3).map(|_| call(&room, 1, KIB).unwrap()).collect();
        begun[0].answered(100 * KIB).unwrap();
        begun[1].answered(99 * KIB).unwrap();
        assert_eq!(begun[2].answered(2 * KIB), Err(Unread));
    }
}
