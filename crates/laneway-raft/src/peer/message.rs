//! The bodies of raft's calls. Entry bodies are neither copied to be sent nor when received.

use bytes::{Buf, Bytes};
use laneway_storage::FileError;
use laneway_storage::codec::{self, DecodeError};
use laneway_storage::snapshot::SnapshotOffer;
use laneway_storage::wal::WalEntry;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, StreamAppendError, TransferLeaderRequest, VoteRequest,
    VoteResponse,
};
use serde::{Deserialize, Serialize};

use crate::format::{self, FormatError, LogIdRow, VoteRow};
use crate::snapshot::SnapshotPart;
use crate::types::{Entry, LogId, Types, Vote};

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
    /// A snapshot that the called replica shall fetch.
    SnapshotOffer = 6,
    /// How far it is.
    SnapshotState = 7,
    /// Part of a file of it.
    SnapshotChunk = 8,
}

impl Verb {
    fn of(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Vote,
            2 => Self::PreVote,
            3 => Self::Append,
            4 => Self::TransferLeader,
            5 => Self::Node,
            6 => Self::SnapshotOffer,
            7 => Self::SnapshotState,
            8 => Self::SnapshotChunk,
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
        const BYTES: [u8; 9] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
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
    #[error("a message holds a malformed offer: {0}")]
    Offer(#[from] FileError),
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

#[derive(Serialize, Deserialize)]
struct SnapshotQuestionRow {
    vote: VoteRow,
    index: u64,
    id: u64,
}

#[derive(Serialize, Deserialize)]
struct SnapshotPartRow {
    id: u64,
    file: u32,
    at: u64,
    bytes: u32,
}

#[derive(Serialize, Deserialize)]
enum SnapshotAnswerRow {
    Installed(VoteRow),
    HigherVote(VoteRow),
    Receiving(u64),
    Failed(String),
    Unknown,
}

/// What a replica says of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotAnswer {
    /// It has applied all of it; its vote.
    Installed(Vote),
    /// It follows a newer leader, or votes for one.
    HigherVote(Vote),
    /// It has so many bytes.
    Receiving(u64),
    /// It gave up, for now.
    Failed(String),
    /// It is not receiving that one.
    Unknown,
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

/// `u32 LE head bytes ‖ head ‖ the offer`.
pub(crate) fn encode_snapshot_offer(vote: &Vote, offer: &SnapshotOffer) -> Vec<Bytes> {
    let head = codec::encode(&VoteRow::of(vote));
    let head_bytes = u32::try_from(head.len()).expect("a vote is small");
    vec![
        Bytes::from(head_bytes.to_le_bytes().to_vec()),
        head.into(),
        offer.encode().into(),
    ]
}

pub(crate) fn decode_snapshot_offer(mut body: Bytes) -> Result<(Vote, SnapshotOffer), MessageError> {
    let head_bytes = body.try_get_u32_le().map_err(|_| MessageError::Short)? as usize;
    let vote: VoteRow = codec::decode(&split(&mut body, head_bytes)?)?;
    Ok((vote.vote(), SnapshotOffer::decode(&body)?))
}

pub(crate) fn encode_snapshot_question(vote: &Vote, index: u64, id: u64) -> Bytes {
    let vote = VoteRow::of(vote);
    codec::encode(&SnapshotQuestionRow { vote, index, id }).into()
}

/// The asker's vote, the last index and the id of the snapshot.
pub(crate) fn decode_snapshot_question(body: &[u8]) -> Result<(Vote, u64, u64), MessageError> {
    let row: SnapshotQuestionRow = codec::decode(body)?;
    Ok((row.vote.vote(), row.index, row.id))
}

pub(crate) fn encode_snapshot_part(part: SnapshotPart) -> Bytes {
    let SnapshotPart { id, file, at, bytes } = part;
    codec::encode(&SnapshotPartRow { id, file, at, bytes }).into()
}

pub(crate) fn decode_snapshot_part(body: &[u8]) -> Result<SnapshotPart, MessageError> {
    let SnapshotPartRow { id, file, at, bytes } = codec::decode(body)?;
    Ok(SnapshotPart { id, file, at, bytes })
}

pub(crate) fn encode_snapshot_answer(answer: &SnapshotAnswer) -> Bytes {
    let row = match answer {
        SnapshotAnswer::Installed(vote) => SnapshotAnswerRow::Installed(VoteRow::of(vote)),
        SnapshotAnswer::HigherVote(vote) => SnapshotAnswerRow::HigherVote(VoteRow::of(vote)),
        SnapshotAnswer::Receiving(bytes) => SnapshotAnswerRow::Receiving(*bytes),
        SnapshotAnswer::Failed(reason) => SnapshotAnswerRow::Failed(reason.clone()),
        SnapshotAnswer::Unknown => SnapshotAnswerRow::Unknown,
    };
    codec::encode(&row).into()
}

pub(crate) fn decode_snapshot_answer(body: &[u8]) -> Result<SnapshotAnswer, MessageError> {
    Ok(match codec::decode(body)? {
        SnapshotAnswerRow::Installed(vote) => SnapshotAnswer::Installed(vote.vote()),
        SnapshotAnswerRow::HigherVote(vote) => SnapshotAnswer::HigherVote(vote.vote()),
        SnapshotAnswerRow::Receiving(bytes) => SnapshotAnswer::Receiving(bytes),
        SnapshotAnswerRow::Failed(reason) => SnapshotAnswer::Failed(reason),
        SnapshotAnswerRow::Unknown => SnapshotAnswer::Unknown,
    })
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
    fn snapshot_messages_survive_and_are_refused_when_cut() {
        let vote = Vote::new_committed(7, 9);
        let file = |name: &str| laneway_storage::snapshot::SnapshotFile {
            name: name.to_owned(),
            bytes: 1 << 40,
            hash: 3,
        };
        let offer = SnapshotOffer {
            id: 77,
            partition: laneway_core::ids::PartitionId(3),
            applied: (9, 7, 9),
            files: vec![file("0000000000000001.backlog"), file("manifest")],
        };
        let sent = joined(&encode_snapshot_offer(&vote, &offer));
        assert_eq!(decode_snapshot_offer(sent.clone()).unwrap(), (vote, offer));
        for end in 0..sent.len() {
            assert!(decode_snapshot_offer(sent.slice(..end)).is_err(), "cut at {end}");
        }
        let question = encode_snapshot_question(&vote, 9, 77);
        assert_eq!(decode_snapshot_question(&question).unwrap(), (vote, 9, 77));
        let part = SnapshotPart {
            id: 77,
            file: 1,
            at: 1 << 33,
            bytes: 5,
        };
        assert_eq!(decode_snapshot_part(&encode_snapshot_part(part)).unwrap(), part);
        for answer in [
            SnapshotAnswer::Installed(vote),
            SnapshotAnswer::HigherVote(vote),
            SnapshotAnswer::Receiving(4),
            SnapshotAnswer::Failed("why".to_owned()),
            SnapshotAnswer::Unknown,
        ] {
            let sent = encode_snapshot_answer(&answer);
            assert_eq!(decode_snapshot_answer(&sent).unwrap(), answer);
        }
        assert!(decode_snapshot_answer(b"\xff\xff").is_err());
        assert!(decode_snapshot_part(b"").is_err());
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
            Verb::SnapshotOffer,
            Verb::SnapshotState,
            Verb::SnapshotChunk,
        ] {
            let mut body = joined(&verb.body([Bytes::from_static(b"rest")]));
            assert_eq!(Verb::take(&mut body).unwrap(), verb);
            assert_eq!(&body[..], b"rest");
        }
    }
}
