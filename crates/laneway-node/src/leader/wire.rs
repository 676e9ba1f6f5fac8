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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use laneway_core::ids::{LaneId, LeaseId, MessageId, Offset, QueueId};
    use laneway_core::settings::{QueueRow, QueueSettings};
    use laneway_core::time::WallTime;
    use laneway_storage::codec::push_frame;

    use super::*;
    use crate::api::{ErrorClass, PoppedLane, PoppedMessage};
    use crate::partition::{PushAsk, PushAskItem};
    use crate::router::requests::{Claim, Delivered};

    fn push() -> PushAsk {
        let mut block = bytes::BytesMut::new();
        let mut items = Vec::new();
        for payload in ["{\"n\":1}", "2"] {
            let before = block.len();
            push_frame(&mut block, "id", payload.as_bytes());
            items.push(PushAskItem {
                key: None,
                same_as: None,
                frame_bytes: u32::try_from(block.len() - before).unwrap(),
            });
        }
        PushAsk {
            request: None,
            queue: Arc::new(QueueRow {
                id: QueueId(1),
                name: "q".to_owned(),
                version: laneway_core::ids::CatalogVersion(1),
                settings: QueueSettings::implicit("q"),
                created: WallTime(1),
                listed: true,
            }),
            lane: "lane".into(),
            items,
            block: block.freeze(),
        }
    }

    fn delivered() -> Delivered {
        let message = |offset, payload: &'static str| PoppedMessage {
            id: MessageId::new(WallTime(1), LaneId(1), Offset(offset)),
            offset: Offset(offset),
            transaction_id: "t".to_owned(),
            created: WallTime(1),
            payload: Bytes::from_static(payload.as_bytes()),
        };
        let lane = PoppedLane {
            queue: "q".into(),
            name: "lane".into(),
            lane: LaneId(1),
            attempt: 1,
            messages: vec![message(0, "first"), message(1, ""), message(2, "third")],
        };
        Delivered::new(LeaseId(7), vec![lane])
    }

    fn joined(pieces: Vec<Bytes>) -> Bytes {
        pieces.concat().into()
    }

    #[test]
    fn push_survives_and_its_payload_is_shared() {
        let sent = push();
        let block = sent.block.clone();
        let pieces = encode_request(PartitionId(3), sent);
        assert!(pieces.iter().any(|piece| piece.as_ptr() == block.as_ptr()));
        let (verb, group, rest) = open_request(joined(pieces)).unwrap();
        assert_eq!((verb, group), (Verb::Push, PartitionId(3)));
        assert_eq!(decode_request::<PushAsk>(rest).unwrap().block, block);
    }

    #[test]
    fn claimed_messages_survive() {
        let whole = joined(encode_answer::<Claim>(Ok(Some(delivered()))));
        let answer = decode_answer::<Claim>(whole).unwrap().unwrap().unwrap();
        let payloads = |delivered: &Delivered| -> Vec<Bytes> {
            let messages = delivered.lanes.iter().flat_map(|lane| &lane.messages);
            messages.map(|message| message.payload.clone()).collect()
        };
        assert_eq!(payloads(&answer), payloads(&delivered()));
    }

    #[test]
    fn refusals_survive_with_their_codes() {
        let refusal = RequestError::new(ErrorClass::Overloaded, "overloaded", "why");
        let whole = joined(encode_answer::<Claim>(Err(refusal.clone())));
        assert_eq!(decode_answer::<Claim>(whole).unwrap().unwrap_err(), refusal);
    }

    #[test]
    fn cut_lengthened_or_flipped_messages_are_refused_or_harmless() {
        let (_, _, request) = open_request(joined(encode_request(PartitionId(3), push()))).unwrap();
        let answer = joined(encode_answer::<Claim>(Ok(Some(delivered()))));
        for end in 0..request.len() {
            assert!(
                decode_request::<PushAsk>(request.slice(..end)).is_err(),
                "cut at {end}"
            );
        }
        for end in 0..answer.len() {
            assert!(
                decode_answer::<Claim>(answer.slice(..end)).is_err(),
                "cut at {end}"
            );
        }
        let longer = |bytes: &Bytes| Bytes::from([bytes, &b"x"[..]].concat());
        assert!(decode_request::<PushAsk>(longer(&request)).is_err());
        assert!(decode_answer::<Claim>(longer(&answer)).is_err());
        for at in 0..request.len().max(answer.len()) {
            for bit in 0..8 {
                let flipped = |bytes: &Bytes| {
                    let mut bytes = bytes.to_vec();
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= 1 << bit;
                    }
                    Bytes::from(bytes)
                };
                // Whatever they say, nobody panics; what passes is consistent in itself.
                if let Ok(push) = decode_request::<PushAsk>(flipped(&request)) {
                    let bytes: usize = push.items.iter().map(|item| item.frame_bytes as usize).sum();
                    assert_eq!(bytes, push.block.len());
                }
                drop(decode_answer::<Claim>(flipped(&answer)));
            }
        }
    }

    #[test]
    fn unknown_verbs_are_refused() {
        assert!(matches!(open_request(Bytes::new()), Err(WireError::Short)));
        let body = Bytes::from_static(&[200, 0, 0]);
        assert!(matches!(open_request(body), Err(WireError::Verb(200))));
    }
}
