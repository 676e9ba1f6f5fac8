//! Everything that reads a peer's bytes, in one function for the fuzzer.

use futures_util::FutureExt;

use super::frame::{BODY_BYTES_MAX, Kind, Received, read_frame_of};
use super::handshake;
use super::message::{self, Verb};

/// Reads `bytes` as one side of a connection and describes how far that came: what each frame is, and why the last is none.
#[must_use]
pub fn check_peer_bytes(bytes: &[u8]) -> Vec<String> {
    let mut input = bytes;
    let mut story = Vec::new();
    loop {
        let read = read_frame_of(&mut input, BODY_BYTES_MAX).now_or_never();
        match read.expect("bytes in memory are there at once") {
            Ok(frame) => story.push(describe(frame)),
            Err(error) => {
                story.push(error.to_string());
                return story;
            }
        }
    }
}

fn describe(Received { kind, mut body, .. }: Received) -> String {
    match kind {
        Kind::Hello => handshake::describe(body),
        Kind::Item => format!(
            "{:?}",
            message::decode_append(body).map(|request| request.entries.len())
        ),
        Kind::ItemAnswer => format!("{:?}", message::decode_appended(&body)),
        Kind::Answer => format!(
            "{:?} {:?} {:?}",
            message::decode_voted(&body),
            message::decode_append_response(&body),
            message::decode_snapshot_answer(&body)
        ),
        Kind::Failure | Kind::End => format!("{kind:?}"),
        Kind::Call => match Verb::take(&mut body) {
            Ok(Verb::Vote | Verb::PreVote) => format!("{:?}", message::decode_vote(&body)),
            Ok(Verb::Append) => format!(
                "{:?}",
                message::decode_append(body).map(|request| request.entries.len())
            ),
            Ok(Verb::TransferLeader) => format!("{:?}", message::decode_transfer(&body)),
            Ok(Verb::SnapshotOffer) => format!(
                "{:?}",
                message::decode_snapshot_offer(body).map(|(_, offer)| offer.files.len())
            ),
            Ok(Verb::SnapshotState) => format!("{:?}", message::decode_snapshot_question(&body)),
            Ok(Verb::SnapshotChunk) => format!("{:?}", message::decode_snapshot_part(&body)),
            Ok(Verb::Node) => "node".to_owned(),
            Err(error) => error.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use laneway_core::ids::PartitionId;

    use super::*;
    use crate::peer::frame::Frame;

    // No runtime: the fuzzer has none.
    #[test]
    fn frames_are_described_up_to_the_first_that_is_none() {
        let frame = |kind, body| {
            let frame = Frame::new(kind, PartitionId(1), 7, Bytes::from_static(body));
            frame.pieces(BODY_BYTES_MAX).unwrap().concat()
        };
        let bytes = [frame(Kind::End, b""), frame(Kind::Call, b"\xff"), vec![1, 2, 3]].concat();
        let story = check_peer_bytes(&bytes);
        assert_eq!(story.len(), 3, "{story:?}");
        assert_eq!(story[0], "End");
    }
}
