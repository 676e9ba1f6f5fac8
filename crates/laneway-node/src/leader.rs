//! What the leader of a group does for gateways, and how a gateway gets it done: here, or with one call to the leader's node.
//!
//! A request is plain data ([`AtLeader`]), so that it runs the same on both ways. A node never passes on what a peer sent it.

mod route;
mod serve;
mod wire;

use bytes::Bytes;
use laneway_core::ids::PartitionId;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use serve::{NodeService, Verb};

use crate::api::RequestError;
use crate::node::Node;

/// A request to the leader of a group.
///
/// The payloads of a request and its answer travel beside their other fields, uncopied: see [`AtLeader::take_payload`].
pub(crate) trait AtLeader: Serialize + DeserializeOwned + Clone + Send + Sync + 'static {
    /// What it is called on the wire.
    const VERB: Verb;
    /// It changes something: when no answer comes, its outcome is unknown. Others are simply asked again.
    const WRITES: bool;
    /// What the leader answers.
    type Answer: Serialize + DeserializeOwned + Send + 'static;

    /// Carries it out on the node that leads `group`.
    ///
    /// Errors: one with code `no_leader` says that nothing was done because another node leads.
    fn run(
        self,
        node: Node,
        group: PartitionId,
    ) -> impl Future<Output = Result<Self::Answer, RequestError>> + Send;

    /// Takes the payload out, back to back.
    fn take_payload(&mut self) -> Vec<Bytes> {
        Vec::new()
    }

    /// Puts the payload back; false when it does not fit the other fields.
    fn set_payload(&mut self, payload: Bytes) -> bool {
        payload.is_empty()
    }

    /// Takes the payload out of an answer, back to back.
    fn take_answer_payload(_answer: &mut Self::Answer) -> Vec<Bytes> {
        Vec::new()
    }

    /// Puts the answer's payload back; false when it does not fit the other fields.
    fn set_answer_payload(_answer: &mut Self::Answer, payload: Bytes) -> bool {
        payload.is_empty()
    }
}
