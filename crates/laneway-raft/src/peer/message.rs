//! The bodies of raft's calls. Entry bodies are neither copied to be sent nor when received.

use bytes::{Buf, Bytes};
use laneway_storage::codec::{self, DecodeError};
use laneway_storage::wal::WalEntry;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, StreamAppendError, TransferLeaderRequest, VoteRequest,
    VoteResponse,
};
use serde::{Deserialize, Serialize};

use crate::format::{self, FormatError, LogIdRow, VoteRow};
use crate::types::{Entry, LogId, Types};

/// What a call asks for: the first byte of its body. Part of the protocol, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Verb {
    Vote = 1,
    PreVote = 2,
    Append = 3,
    TransferLeader = 4,
    /// A request of the node above; its body is not raft's business.
    Node = 5,
}

impl Verb {
    fn of(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Vote,
            2 => Self::PreVote,
            3 => Self::Append,
            4 => Self::TransferLeader,
            5 => Self::Node,
            _ => return None,
        })
    }

    /// Takes the verb off a call's body.
    pub(crate) fn take(body: &mut Bytes) -> Result<Self, MessageError> {
        if body.is_empty() {
            return Err(MessageError::Short);
        }
        let byte = body.get_u8();
        Self::of(byte).ok_or(MessageError::Verb(byte))
    }

    /// This verb's byte, then `rest`.
    pub(crate) fn body(self, rest: impl IntoIterator<Item = Bytes>) -> Vec<Bytes> {
        const BYTES: [u8; 6] = [0, 1, 2, 3, 4, 5];
        let verb = Bytes::from_static(std::slice::from_ref(&BYTES[self as usize]));
        std::iter::once(verb).chain(rest).collect()
    }
}

/// A body that is not what it should be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MessageError {
    #[error("a message is shorter than it says")]
    Short,
    #[error("a call has the unknown verb {0}")]
    Verb(u8),
    #[error("a message is malformed: {0}")]
    Decode(#[from] DecodeError),
    #[error("a message holds a malformed entry: {0}")]
    Entry(#[from] FormatError),
}

#[derive(Serialize, Deserialize)]
struct AppendRow {
    vote: VoteRow,
    prev: Option<LogIdRow>,
    commit: Option<LogIdRow>,
    entries: Vec<EntryRow>,
}

#[derive(Serialize, Deserialize)]
struct EntryRow {
    at: LogIdRow,
    kind: u8,
    bytes: u32,
}

#[derive(Serialize, Deserialize)]
enum AppendedRow {
    Done(Option<LogIdRow>),
    Conflict(Option<LogIdRow>),
    HigherVote(VoteRow),
}

#[derive(Serialize, Deserialize)]
struct VoteAskRow {
    vote: VoteRow,
    last: Option<LogIdRow>,
    transfer: bool,
}

#[derive(Serialize, Deserialize)]
struct VotedRow {
    vote: VoteRow,
    granted: bool,
    last: Option<LogIdRow>,
}

#[derive(Serialize, Deserialize)]
struct TransferRow {
    from: VoteRow,
    to: u64,
    last: Option<LogIdRow>,
}

type Appended = Result<Option<LogId>, StreamAppendError<Types>>;

fn row(id: Option<&LogId>) -> Option<LogIdRow> {
    id.map(format::log_id_row)
}

fn id(row: Option<LogIdRow>) -> Option<LogId> {
    row.map(LogIdRow::log_id)
}

/// `u32 LE head bytes ‖ head ‖ the entries' bodies`.
pub(crate) fn encode_append(request: AppendEntriesRequest<Types>) -> Vec<Bytes> {
    let stored: Vec<WalEntry> = request.entries.into_iter().map(format::wal_entry).collect();
    let entries = stored.iter().map(|entry| EntryRow {
        at: LogIdRow::of(entry.index, entry.term, entry.leader),
        kind: entry.kind,
        bytes: u32::try_from(entry.body.len()).expect("an entry is far below 4 GiB"),
    });
    let head = codec::encode(&AppendRow {
        vote: VoteRow::of(&request.vote),
        prev: row(request.prev_log_id.as_ref()),
        commit: row(request.leader_commit.as_ref()),
        entries: entries.collect(),
    });
    let head_bytes = u32::try_from(head.len()).expect("a head is far below 4 GiB");
    let mut pieces = vec![Bytes::from(head_bytes.to_le_bytes().to_vec()), head.into()];
    pieces.extend(stored.into_iter().map(|entry| entry.body));
    pieces
}

pub(crate) fn decode_append(mut body: Bytes) -> Result<AppendEntriesRequest<Types>, MessageError> {
    let head_bytes = body.try_get_u32_le().map_err(|_| MessageError::Short)? as usize;
    let head: AppendRow = codec::decode(&split(&mut body, head_bytes)?)?;
    let mut entries: Vec<Entry> = Vec::with_capacity(head.entries.len());
    for EntryRow { at, kind, bytes } in head.entries {
        let (index, term, leader) = at.parts();
        entries.push(format::entry(WalEntry {
            index,
            term,
            leader,
            kind,
            body: split(&mut body, bytes as usize)?,
        })?);
    }
    if !body.is_empty() {
        return Err(DecodeError::Trailing { bytes: body.len() }.into());
    }
    Ok(AppendEntriesRequest {
        vote: head.vote.vote(),
        prev_log_id: id(head.prev),
        entries,
        leader_commit: id(head.commit),
    })
}

fn split(body: &mut Bytes, bytes: usize) -> Result<Bytes, MessageError> {
    if body.len() < bytes {
        return Err(MessageError::Short);
    }
    Ok(body.split_to(bytes))
}

pub(crate) fn encode_appended(appended: &Appended) -> Bytes {
    let row = match appended {
        Ok(matching) => AppendedRow::Done(row(matching.as_ref())),
        Err(StreamAppendError::Conflict(at)) => AppendedRow::Conflict(row(Some(at))),
        Err(StreamAppendError::HigherVote(vote)) => AppendedRow::HigherVote(VoteRow::of(vote)),
    };
    codec::encode(&row).into()
}

/// What a stream's answer says.
pub(crate) fn decode_appended(body: &[u8]) -> Result<Appended, MessageError> {
    Ok(match codec::decode(body)? {
        AppendedRow::Done(matching) => Ok(id(matching)),
        AppendedRow::Conflict(Some(at)) => Err(StreamAppendError::Conflict(at.log_id())),
        AppendedRow::Conflict(None) => return Err(MessageError::Short),
        AppendedRow::HigherVote(vote) => Err(StreamAppendError::HigherVote(vote.vote())),
    })
}

pub(crate) fn encode_append_response(response: &AppendEntriesResponse<Types>) -> Bytes {
    let row = match response {
        AppendEntriesResponse::Success => AppendedRow::Done(None),
        AppendEntriesResponse::PartialSuccess(matching) => AppendedRow::Done(row(matching.as_ref())),
        AppendEntriesResponse::Conflict => AppendedRow::Conflict(None),
        AppendEntriesResponse::HigherVote(vote) => AppendedRow::HigherVote(VoteRow::of(vote)),
    };
    codec::encode(&row).into()
}

/// The response to a single append without entries, which is never partly successful.
pub(crate) fn decode_append_response(body: &[u8]) -> Result<AppendEntriesResponse<Types>, MessageError> {
    Ok(match codec::decode(body)? {
        AppendedRow::Done(_) => AppendEntriesResponse::Success,
        AppendedRow::Conflict(_) => AppendEntriesResponse::Conflict,
        AppendedRow::HigherVote(vote) => AppendEntriesResponse::HigherVote(vote.vote()),
    })
}

pub(crate) fn encode_vote(request: &VoteRequest<Types>) -> Bytes {
    let row = VoteAskRow {
        vote: VoteRow::of(&request.vote),
        last: row(request.last_log_id.as_ref()),
        transfer: request.leadership_transfer,
    };
    codec::encode(&row).into()
}

pub(crate) fn decode_vote(body: &[u8]) -> Result<VoteRequest<Types>, MessageError> {
    let row: VoteAskRow = codec::decode(body)?;
    Ok(VoteRequest {
        vote: row.vote.vote(),
        last_log_id: id(row.last),
        leadership_transfer: row.transfer,
    })
}

pub(crate) fn encode_voted(response: &VoteResponse<Types>) -> Bytes {
    let row = VotedRow {
        vote: VoteRow::of(&response.vote),
        granted: response.vote_granted,
        last: row(response.last_log_id.as_ref()),
    };
    codec::encode(&row).into()
}

pub(crate) fn decode_voted(body: &[u8]) -> Result<VoteResponse<Types>, MessageError> {
    let row: VotedRow = codec::decode(body)?;
    Ok(VoteResponse {
        vote: row.vote.vote(),
        vote_granted: row.granted,
        last_log_id: id(row.last),
    })
}

pub(crate) fn encode_transfer(request: &TransferLeaderRequest<Types>) -> Bytes {
    let row = TransferRow {
        from: VoteRow::of(request.from_leader()),
        to: *request.to_node_id(),
        last: row(request.last_log_id()),
    };
    codec::encode(&row).into()
}

pub(crate) fn decode_transfer(body: &[u8]) -> Result<TransferLeaderRequest<Types>, MessageError> {
    let row: TransferRow = codec::decode(body)?;
    Ok(TransferLeaderRequest::new(row.from.vote(), row.to, id(row.last)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{EntryBody, Payload, Vote};

    fn at(index: u64) -> LogId {
        format::log_id((index, 7, 9))
    }

    fn request() -> AppendEntriesRequest<Types> {
        let entry = |index, payload| Entry {
            log_id: at(index),
            payload,
        };
        AppendEntriesRequest {
            vote: Vote::new_committed(7, 9),
            prev_log_id: Some(at(4)),
            entries: vec![
                entry(5, Payload::Blank),
                entry(6, Payload::Normal(EntryBody(Bytes::from_static(b"first")))),
                entry(7, Payload::Normal(EntryBody(Bytes::from_static(b"second")))),
            ],
            leader_commit: Some(at(3)),
        }
    }

    fn joined(pieces: &[Bytes]) -> Bytes {
        pieces.concat().into()
    }

    #[test]
    fn append_survives_and_its_bodies_are_shared() {
        let sent = request();
        let pieces = encode_append(sent.clone());
        let Payload::Normal(EntryBody(body)) = &sent.entries[1].payload else {
            panic!("the second entry has a body");
        };
        assert!(pieces.iter().any(|piece| piece.as_ptr() == body.as_ptr()));
        let whole = joined(&pieces);
        let received = decode_append(whole.clone()).unwrap();
        assert_eq!(received.entries, sent.entries);
        assert_eq!(
            (received.vote, received.prev_log_id),
            (sent.vote, sent.prev_log_id)
        );
        assert_eq!(received.leader_commit, sent.leader_commit);
        let Payload::Normal(EntryBody(body)) = &received.entries[1].payload else {
            panic!("the second entry has a body");
        };
        assert!(whole.as_ptr_range().contains(&body.as_ptr()));
    }

    #[test]
    fn cut_or_lengthened_appends_are_refused() {
        let whole = joined(&encode_append(request()));
        for end in 0..whole.len() {
            assert!(decode_append(whole.slice(..end)).is_err(), "cut at {end}");
        }
        let longer = [&whole[..], b"x"].concat();
        assert!(decode_append(longer.into()).is_err());
    }

    #[test]
    fn answers_survive() {
        let vote = Vote::new(8, 1);
        for appended in [
            Ok(None),
            Ok(Some(at(5))),
            Err(StreamAppendError::Conflict(at(5))),
            Err(StreamAppendError::HigherVote(vote)),
        ] {
            assert_eq!(decode_appended(&encode_appended(&appended)).unwrap(), appended);
        }
        for response in [
            AppendEntriesResponse::Success,
            AppendEntriesResponse::Conflict,
            AppendEntriesResponse::HigherVote(vote),
        ] {
            assert_eq!(
                decode_append_response(&encode_append_response(&response)).unwrap(),
                response
            );
        }
        let voted = VoteResponse {
            vote,
            vote_granted: true,
            last_log_id: Some(at(1)),
        };
        assert_eq!(decode_voted(&encode_voted(&voted)).unwrap(), voted);
        let ask = VoteRequest {
            vote,
            last_log_id: None,
            leadership_transfer: true,
        };
        assert_eq!(decode_vote(&encode_vote(&ask)).unwrap(), ask);
        let transfer = TransferLeaderRequest::new(vote, 3, Some(at(2)));
        assert_eq!(decode_transfer(&encode_transfer(&transfer)).unwrap(), transfer);
    }

    #[test]
    fn unknown_verbs_are_refused() {
        assert!(matches!(Verb::take(&mut Bytes::new()), Err(MessageError::Short)));
        assert!(matches!(
            Verb::take(&mut Bytes::from_static(&[77])),
            Err(MessageError::Verb(77))
        ));
        for verb in [
            Verb::Vote,
            Verb::PreVote,
            Verb::Append,
            Verb::TransferLeader,
            Verb::Node,
        ] {
            let mut body = joined(&verb.body([Bytes::from_static(b"rest")]));
            assert_eq!(Verb::take(&mut body).unwrap(), verb);
            assert_eq!(&body[..], b"rest");
        }
    }
}
