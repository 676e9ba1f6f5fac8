//! How votes, log ids and memberships are stored: our own rows, so that openraft may change its own.

use std::collections::BTreeSet;
use std::io;

use bytes::Bytes;
use laneway_storage::codec::{self, DecodeError};
use laneway_storage::wal::WalEntry;
use serde::{Deserialize, Serialize};

use crate::types::{Entry, EntryBody, LeaderId, LogId, Membership, Payload, StoredMembership, Vote};

/// `WalEntry::kind` of a leader's first entry. Never reuse a number.
const KIND_BLANK: u8 = 0;
/// `WalEntry::kind` of a proposal.
const KIND_NORMAL: u8 = 1;
/// `WalEntry::kind` of a membership change.
const KIND_MEMBERSHIP: u8 = 2;

/// Stored bytes that are not what they should be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FormatError {
    /// Not decodable.
    #[error("stored {what} is damaged: {source}")]
    Decode { what: &'static str, source: DecodeError },
    /// A membership without a quorum, or with a voter that is no member.
    #[error("stored membership is contradictory: {reason}")]
    Membership { reason: String },
    /// An entry of a kind that this version does not know.
    #[error("entry {index} is of the unknown kind {kind}")]
    Kind { index: u64, kind: u8 },
}

impl From<FormatError> for io::Error {
    fn from(error: FormatError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct VoteRow {
    term: u64,
    node: u64,
    committed: bool,
}

impl VoteRow {
    pub(crate) fn of(vote: &Vote) -> Self {
        Self {
            term: vote.leader_id.term,
            node: vote.leader_id.node_id,
            committed: vote.committed,
        }
    }

    pub(crate) fn vote(self) -> Vote {
        Vote {
            leader_id: LeaderId {
                term: self.term,
                node_id: self.node,
            },
            committed: self.committed,
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct LogIdRow {
    index: u64,
    term: u64,
    leader: u64,
}

impl LogIdRow {
    pub(crate) fn of(index: u64, term: u64, leader: u64) -> Self {
        Self { index, term, leader }
    }

    pub(crate) fn parts(&self) -> (u64, u64, u64) {
        (self.index, self.term, self.leader)
    }

    pub(crate) fn log_id(self) -> LogId {
        log_id(self.parts())
    }
}

/// More than one set of voters: a joint membership on its way from one to the next.
#[derive(Serialize, Deserialize)]
struct MembershipRow {
    voters: Vec<BTreeSet<u64>>,
    members: BTreeSet<u64>,
}

#[derive(Serialize, Deserialize)]
struct StoredMembershipRow {
    at: Option<LogIdRow>,
    membership: MembershipRow,
}

pub(crate) fn log_id((index, term, leader): (u64, u64, u64)) -> LogId {
    LogId::new(
        LeaderId {
            term,
            node_id: leader,
        },
        index,
    )
}

pub(crate) fn log_id_parts(id: &LogId) -> (u64, u64, u64) {
    (id.index, id.leader_id.term, id.leader_id.node_id)
}

pub(crate) fn encode_vote(vote: &Vote) -> Bytes {
    codec::encode(&VoteRow::of(vote)).into()
}

pub(crate) fn decode_vote(bytes: &[u8]) -> Result<Vote, FormatError> {
    let row: VoteRow = codec::decode(bytes).map_err(|source| FormatError::Decode { what: "vote", source })?;
    Ok(row.vote())
}

pub(crate) fn encode_committed(id: &LogId) -> Bytes {
    codec::encode(&log_id_row(id)).into()
}

pub(crate) fn decode_committed(bytes: &[u8]) -> Result<LogId, FormatError> {
    let row: LogIdRow = codec::decode(bytes).map_err(|source| FormatError::Decode {
        what: "commit position",
        source,
    })?;
    Ok(row.log_id())
}

pub(crate) fn encode_stored_membership(membership: &StoredMembership) -> Bytes {
    let at = membership.log_id().as_ref().map(log_id_row);
    codec::encode(&StoredMembershipRow {
        at,
        membership: membership_row(membership.membership()),
    })
    .into()
}

/// Empty bytes are the membership of a group that was never initialized.
pub(crate) fn decode_stored_membership(bytes: &[u8]) -> Result<StoredMembership, FormatError> {
    if bytes.is_empty() {
        return Ok(StoredMembership::default());
    }
    let row: StoredMembershipRow = codec::decode(bytes).map_err(|source| FormatError::Decode {
        what: "membership",
        source,
    })?;
    let at = row.at.map(LogIdRow::log_id);
    Ok(StoredMembership::new(at, membership(row.membership)?))
}

/// The entry as the WAL stores it. A proposal's body is moved, not copied.
pub(crate) fn wal_entry(entry: Entry) -> WalEntry {
    let (index, term, leader) = log_id_parts(&entry.log_id);
    let (kind, body) = match entry.payload {
        Payload::Blank => (KIND_BLANK, Bytes::new()),
        Payload::Normal(EntryBody(body)) => (KIND_NORMAL, body),
        Payload::Membership(membership) => (
            KIND_MEMBERSHIP,
            codec::encode(&membership_row(&membership)).into(),
        ),
    };
    WalEntry {
        index,
        term,
        leader,
        kind,
        body,
    }
}

/// The inverse of [`wal_entry`].
pub(crate) fn entry(stored: WalEntry) -> Result<Entry, FormatError> {
    let payload = match stored.kind {
        KIND_BLANK => Payload::Blank,
        KIND_NORMAL => Payload::Normal(EntryBody(stored.body)),
        KIND_MEMBERSHIP => {
            let row: MembershipRow = codec::decode(&stored.body).map_err(|source| FormatError::Decode {
                what: "membership entry",
                source,
            })?;
            Payload::Membership(membership(row)?)
        }
        kind => {
            return Err(FormatError::Kind {
                index: stored.index,
                kind,
            });
        }
    };
    Ok(Entry {
        log_id: log_id((stored.index, stored.term, stored.leader)),
        payload,
    })
}

pub(crate) fn log_id_row(id: &LogId) -> LogIdRow {
    let (index, term, leader) = log_id_parts(id);
    LogIdRow::of(index, term, leader)
}

fn membership_row(membership: &Membership) -> MembershipRow {
    let members = membership.nodes().map(|(id, ())| *id).collect();
    MembershipRow {
        voters: membership.get_joint_config().clone(),
        members,
    }
}

fn membership(row: MembershipRow) -> Result<Membership, FormatError> {
    Membership::new(row.voters, row.members).map_err(|error| FormatError::Membership {
        reason: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joint() -> StoredMembership {
        let voters = vec![BTreeSet::from([1, 2, 3]), BTreeSet::from([2, 3, 4])];
        let membership = Membership::new(voters, BTreeSet::from([1, 2, 3, 4, 9])).unwrap();
        StoredMembership::new(Some(log_id((7, 2, 3))), membership)
    }

    #[test]
    fn stored_forms_are_golden() {
        let vote = Vote::new_committed(5, 0x0001_0000_0000_002a);
        assert_eq!(hex(&encode_vote(&vote)), GOLDEN_VOTE);
        assert_eq!(decode_vote(&encode_vote(&vote)).unwrap(), vote);
        let id = log_id((300, 5, 42));
        assert_eq!(hex(&encode_committed(&id)), GOLDEN_COMMITTED);
        assert_eq!(decode_committed(&encode_committed(&id)).unwrap(), id);
        assert_eq!(hex(&encode_stored_membership(&joint())), GOLDEN_MEMBERSHIP);
        assert_eq!(
            decode_stored_membership(&encode_stored_membership(&joint())).unwrap(),
            joint()
        );
    }

    const GOLDEN_VOTE: &str = "0105fd2a0000000000010001";
    const GOLDEN_COMMITTED: &str = "01fb2c01052a";
    const GOLDEN_MEMBERSHIP: &str = "0101070203020301020303020304050102030409";

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn entries_survive_the_wal_form() {
        let body = Bytes::from_static(b"body");
        let payloads = [
            Payload::Blank,
            Payload::Normal(EntryBody(body.clone())),
            Payload::Membership(joint().membership().clone()),
        ];
        for payload in payloads {
            let entry_in = Entry {
                log_id: log_id((3, 2, 1)),
                payload,
            };
            let stored = wal_entry(entry_in.clone());
            if stored.kind == KIND_NORMAL {
                assert_eq!(stored.body.as_ptr(), body.as_ptr(), "the body is shared");
            }
            assert_eq!(entry(stored).unwrap(), entry_in);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(decode_vote(b"").is_err());
        assert!(decode_stored_membership(b"\xff\xff").is_err());
        let empty_quorum = MembershipRow {
            voters: vec![BTreeSet::new()],
            members: BTreeSet::new(),
        };
        let stranger = MembershipRow {
            voters: vec![BTreeSet::from([1])],
            members: BTreeSet::new(),
        };
        for row in [empty_quorum, stranger] {
            assert!(matches!(membership(row), Err(FormatError::Membership { .. })));
        }
        let unknown = WalEntry {
            index: 1,
            term: 1,
            leader: 1,
            kind: 77,
            body: Bytes::new(),
        };
        assert!(matches!(
            entry(unknown),
            Err(FormatError::Kind { index: 1, kind: 77 })
        ));
    }

    #[test]
    fn membership_of_a_new_group_is_empty() {
        assert_eq!(
            decode_stored_membership(b"").unwrap(),
            StoredMembership::default()
        );
    }
}
