//! Entry for fuzzing: every reader of what clients send, on arbitrary bytes.

use axum::http::{HeaderMap, HeaderValue};
use bytes::Bytes;
use laneway_core::settings::GroupStart;
use laneway_node::PopSource;
use laneway_wire::limits::REQUEST_ID_HEADER;

use crate::names::{Segments, request_id};
use crate::query::Query;
use crate::routes::{ack, cluster, configure, extend, message, pop, push, redrive};
use crate::{json, stamp};

/// What [`fuzz_body`] can be pointed at, by number.
pub const FUZZ_ROUTES: [&str; 13] = [
    "push",
    "ack",
    "ack_batch",
    "configure",
    "extend",
    "replay",
    "query",
    "pop",
    "discover",
    "dead_letters",
    "path",
    "header",
    "cluster",
];

/// Runs one of the readers of [`FUZZ_ROUTES`] (`route` modulo their number) on `bytes`. It never panics, whatever they are.
pub fn fuzz_body(route: u8, bytes: &[u8]) {
    let body = json::or_empty_object(Bytes::copy_from_slice(bytes));
    let text = String::from_utf8_lossy(bytes);
    // Only panics matter here: results are dropped.
    match usize::from(route) % FUZZ_ROUTES.len() {
        0 => drop(push::parse(None, &body)),
        1 => drop(ack::parse_single(None, &body)),
        2 => drop(ack::parse_batch(None, &body)),
        3 => drop(configure::parse(&body)),
        4 => drop(extend::parse(&body)),
        5 => drop(redrive::check_destination(&body)),
        6 => drop(Query::parse(&text)),
        7 => drop(pop::parse(
            PopSource::Queue("q".into()),
            &text,
            GroupStart::Registration,
        )),
        8 => drop(pop::discovery(&text)),
        9 => drop(redrive::filter(&text)),
        10 => {
            for at in 0..8 {
                drop(Segments::of(&text).get(at));
            }
            drop(message::address(&text));
            drop(pop::lane_source(&text));
        }
        11 => {
            stamp::parse(&text);
            if let Ok(value) = HeaderValue::from_bytes(bytes) {
                let headers =
                    HeaderMap::from_iter([(REQUEST_ID_HEADER.parse().expect("a header name"), value)]);
                drop(request_id(&headers));
            }
        }
        _ => drop(cluster::parse(&body)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small generator, so that the test needs no dependency and always does the same.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            usize::try_from(self.0 % bound as u64).unwrap()
        }
    }

    const SEEDS: [&str; 9] = [
        r#"{"items":[{"queue":"q","partition":"é\u0000","payload":{"a":[1,{"b":null}]},"transactionId":"t"}]}"#,
        r#"{"acknowledgments":[{"transactionId":"t","partitionId":"17","status":"dlq","leaseId":""}],"consumerGroup":null}"#,
        r#"{"transactionId":"t","partitionId":"17","leaseId":"019fb305-4c95-7000-8400-000000000007","error":"x"}"#,
        r#"{"queue":"q","options":{"leaseTime":9e18,"priority":-1,"retentionSinkHold":"a"},"mode":"merge","ttl":5}"#,
        r#"{"seconds":60,"queue":""}"#,
        r#"{"change":"transfer_leader","node":2,"partition":"3"}"#,
        "batch=10&leaseSeconds=5&consumerGroup=g%20%E5%90%8D&subscriptionFrom=2026-08-01T10:00:00+02:00&limit=7",
        "/api/v1/messages/17/a%2Fb%C3/retry",
        "[[[[{\"a\":\"\\",
    ];

    #[test]
    fn mutated_requests_never_panic() {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for round in 0..20_000 {
            let mut bytes = SEEDS[random.below(SEEDS.len())].as_bytes().to_vec();
            for _ in 0..random.below(6) {
                let at = random.below(bytes.len() + 1);
                match random.below(4) {
                    0 if at < bytes.len() => bytes[at] = u8::try_from(random.below(256)).unwrap(),
                    1 if at < bytes.len() => drop(bytes.remove(at)),
                    2 => bytes.truncate(at),
                    _ => bytes.insert(at, b"{}[]\",:\\%&=+\n\x00\xff9e-"[random.below(18)]),
                }
            }
            fuzz_body(u8::try_from(round % FUZZ_ROUTES.len()).unwrap(), &bytes);
        }
    }
}
