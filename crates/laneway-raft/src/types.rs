//! The types that openraft is instantiated with.

use std::fmt;

use bytes::Bytes;
use openraft::OptionalSend;
use serde::{Deserialize, Serialize};

use crate::responder::ProposalResponder;

/// What a leader is known by: (term, node), ordered by both.
pub(crate) type LeaderId = openraft::impls::leader_id_adv::LeaderId<u64, u64>;
pub(crate) type LogId = openraft::LogId<LeaderId>;
pub(crate) type Vote = openraft::Vote<LeaderId>;
pub(crate) type Membership = openraft::Membership<u64, ()>;
pub(crate) type StoredMembership = openraft::StoredMembership<LeaderId, u64, ()>;
pub(crate) type Payload = openraft::EntryPayload<EntryBody, u64, ()>;
pub(crate) type Entry = openraft::Entry<LeaderId, Payload>;

/// The body of a normal entry: opaque here, shared with the WAL, never copied.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct EntryBody(pub(crate) Bytes);

impl fmt::Debug for EntryBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for EntryBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len()) // openraft prints entries; payloads never belong in a log line
    }
}

/// Names all of the above to openraft.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Types;

impl openraft::RaftTypeConfig for Types {
    type D = EntryBody;
    type R = ();
    type NodeId = u64;
    type Node = ();
    type Term = u64;
    type LeaderId = LeaderId;
    type Vote = Vote;
    type Payload = Payload;
    type Entry = Entry;
    type AsyncRuntime = openraft_rt_tokio::TokioRuntime;
    type Responder<T>
        = ProposalResponder<T>
    where
        T: OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: OptionalSend + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}
