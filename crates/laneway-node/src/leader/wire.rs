//! The bytes of requests and answers between nodes: `verb u8 ‖ group u16 LE ‖ head bytes u32 LE ‖ head ‖ payload`; an answer
//! has neither verb nor group.

use bytes::{Buf, Bytes};
use laneway_core::ids::PartitionId;
use laneway_storage::codec::{self, DecodeError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{AtLeader, Verb};
use crate::api::RequestError;

/// Bytes that are no message between nodes.
#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    #[error("the message is shorter than it says")]
    Short,
    #[error("the verb {0} is unknown: run the same release on all nodes")]
    Verb(u8),
    #[error("the message is malformed: {0}")]
    Decode(#[from] DecodeError),
    #[error("the message's payload does not fit its other fields")]
    Payload,
}

pub(super) fn encode_request<R: AtLeader>(group: PartitionId, mut request: R) -> Vec<Bytes> {
    let payload = request.take_payload();
    let mut start = vec![R::VERB as u8];
    start.extend_from_slice(&group.0.to_le_bytes());
    with_payload(start, &request, payload)
}

/// Verb, group, and the rest.
pub(super) fn open_request(mut body: Bytes) -> Result<(Verb, PartitionId, Bytes), WireError> {
    let verb = body.try_get_u8().map_err(|_| WireError::Short)?;
    let group = body.try_get_u16_le().map_err(|_| WireError::Short)?;
    let verb = Verb::of(verb).ok_or(WireError::Verb(verb))?;
    Ok((verb, PartitionId(group), body))
}

pub(super) fn decode_request<R: AtLeader>(body: Bytes) -> Result<R, WireError> {
    let (mut request, payload): (R, Bytes) = without_payload(body)?;
    if request.set_payload(payload) {
        Ok(request)
    } else {
        Err(WireError::Payload)
    }
}

pub(super) fn encode_answer<R: AtLeader>(mut answer: Result<R::Answer, RequestError>) -> Vec<Bytes> {
    let payload = answer
        .as_mut()
        .map_or_else(|_| Vec::new(), |answer| R::take_answer_payload(answer));
    with_payload(Vec::new(), &answer, payload)
}

pub(super) fn decode_answer<R: AtLeader>(body: Bytes) -> Result<Result<R::Answer, RequestError>, WireError> {
    let (mut answer, payload): (Result<R::Answer, RequestError>, Bytes) = without_payload(body)?;
    let fits = match &mut answer {
        Ok(answer) => R::set_answer_payload(answer, payload),
        Err(_) => payload.is_empty(),
    };
    if fits { Ok(answer) } else { Err(WireError::Payload) }
}

fn with_payload(mut start: Vec<u8>, head: &impl Serialize, payload: Vec<Bytes>) -> Vec<Bytes> {
    let head = codec::encode(head);
    let head_bytes = u32::try_from(head.len()).expect("a request body is far below 4 GiB");
    start.extend_from_slice(&head_bytes.to_le_bytes());
    start.extend_from_slice(&head);
    let mut pieces = vec![Bytes::from(start)];
    pieces.extend(payload);
    pieces
}

fn without_payload<T: DeserializeOwned>(mut body: Bytes) -> Result<(T, Bytes), WireError> {
    let head_bytes = body.try_get_u32_le().map_err(|_| WireError::Short)? as usize;
    if body.len() < head_bytes {
        return Err(WireError::Short);
    }
    let head = body.split_to(head_bytes);
    Ok((codec::decode(&head)?, body))
}
