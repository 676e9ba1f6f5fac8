//! Receiving request bodies: bounded each, bounded together, and not for ever.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::error::ApiError;
use crate::json;
use crate::options::HttpOptions;

/// Unit of the bound on all bodies together.
const UNIT_BYTES: usize = 1024;

/// How much memory is taken on the word of a `content-length` alone.
const RESERVE_BYTES_MAX: usize = 1024 * 1024;

/// How much of a refused body is still received, so that its sender gets to read the answer.
const DISCARD_BYTES_MAX: usize = 256 * 1024 * 1024;

/// How long a refused body is still received.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// Receives bodies. One per gateway.
#[derive(Debug)]
pub(crate) struct BodyReader {
    body_bytes_max: usize,
    read_timeout: Duration,
    units: Arc<Semaphore>,
    units_max: usize,
}

/// A received body; counts against the bound on all bodies until it is dropped.
#[derive(Debug)]
pub(crate) struct Received {
    /// The body; `{}` when it says nothing.
    pub(crate) bytes: Bytes,
    _units: Option<OwnedSemaphorePermit>,
}

impl BodyReader {
    pub(crate) fn new(options: &HttpOptions) -> Self {
        let units_max = (options.bodies_bytes_max / UNIT_BYTES).clamp(1, Semaphore::MAX_PERMITS);
        Self {
            body_bytes_max: options.body_bytes_max,
            read_timeout: options.body_read_timeout,
            units: Arc::new(Semaphore::new(units_max)),
            units_max,
        }
    }

    /// Bytes that are held now, in steps of [`UNIT_BYTES`].
    pub(crate) fn held_bytes(&self) -> u64 {
        let units = self.units_max.saturating_sub(self.units.available_permits());
        u64::try_from(units.saturating_mul(UNIT_BYTES)).unwrap_or(u64::MAX)
    }

    /// Receives a whole body.
    ///
    /// Errors: 413 over the bound of one body, 429 over the bound of all, 408 without progress, 400 on a broken transfer.
    pub(crate) async fn read(&self, headers: &HeaderMap, mut body: Body) -> Result<Received, ApiError> {
        let announced = headers
            .get(header::CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        let result = match announced {
            Some(bytes) if bytes > self.body_bytes_max => {
                Err(ApiError::payload_too_large(self.body_bytes_max))
            }
            _ => self.collect(announced, &mut body).await,
        };
        if result.as_ref().is_err_and(ApiError::leaves_body) {
            discard(headers, body).await;
        }
        result
    }

    async fn collect(&self, announced: Option<usize>, body: &mut Body) -> Result<Received, ApiError> {
        let mut units = None;
        let mut first = Bytes::new();
        let mut all = BytesMut::new();
        let mut length = 0usize;
        loop {
            let frame = match timeout(self.read_timeout, body.frame()).await {
                Err(_) => return Err(ApiError::body_timeout()),
                Ok(None) => break,
                Ok(Some(Err(error))) => {
                    return Err(ApiError::bad_body(format!(
                        "the body was cut off after {length} bytes: {error}"
                    )));
                }
                Ok(Some(Ok(frame))) => frame,
            };
            let Ok(data) = frame.into_data() else { continue };
            length += data.len();
            if length > self.body_bytes_max {
                return Err(ApiError::payload_too_large(self.body_bytes_max));
            }
            self.reserve(&mut units, length)?;
            if first.is_empty() {
                first = data;
            } else {
                if all.is_empty() {
                    all.reserve(announced.unwrap_or(0).min(RESERVE_BYTES_MAX).max(length));
                    all.extend_from_slice(&first);
                }
                all.extend_from_slice(&data);
            }
        }
        let bytes = if all.is_empty() { first } else { all.freeze() };
        Ok(Received {
            bytes: json::or_empty_object(bytes),
            _units: units,
        })
    }

    /// Grows the reservation to `bytes`.
    fn reserve(&self, held: &mut Option<OwnedSemaphorePermit>, bytes: usize) -> Result<(), ApiError> {
        let have = held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = bytes.div_ceil(UNIT_BYTES).saturating_sub(have);
        if more == 0 {
            return Ok(());
        }
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        let Ok(permit) = Arc::clone(&self.units).try_acquire_many_owned(more) else {
            let bound = self.units_max.saturating_mul(UNIT_BYTES);
            return Err(ApiError::overloaded(format!(
                "request bodies in progress would exceed {bound} bytes together; retry after a moment, or send smaller batches"
            )));
        };
        match held {
            Some(held) => held.merge(permit),
            None => *held = Some(permit),
        }
        Ok(())
    }
}

/// Receives and drops the rest of a refused body: closing a connection with unread bytes would reset it, and its sender
/// might never see the answer.
pub(crate) async fn discard(headers: &HeaderMap, mut body: Body) {
    // Whoever waits for `100 Continue` has sent nothing yet: asking for the rest would make it send all.
    if headers.contains_key(header::EXPECT) || body.is_end_stream() {
        return;
    }
    let receive = async {
        let mut left = DISCARD_BYTES_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            let Some(rest) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) else {
                return;
            };
            left = rest;
        }
    };
    // Whether it took too long makes no difference: the answer goes out either way.
    let _ = timeout(DISCARD_TIMEOUT, receive).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(body_bytes_max: usize, bodies_bytes_max: usize) -> BodyReader {
        BodyReader::new(&HttpOptions {
            body_bytes_max,
            bodies_bytes_max,
            ..HttpOptions::default()
        })
    }

    fn frames(frames: Vec<&'static [u8]>) -> Body {
        struct Frames(std::vec::IntoIter<&'static [u8]>);
        impl http_body::Body for Frames {
            type Data = Bytes;
            type Error = std::convert::Infallible;
            fn poll_frame(
                mut self: std::pin::Pin<&mut Self>,
                _: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
                let next = self
                    .0
                    .next()
                    .map(|data| Ok(http_body::Frame::data(Bytes::from_static(data))));
                std::task::Poll::Ready(next)
            }
        }
        Body::new(Frames(frames.into_iter()))
    }

    #[tokio::test]
    async fn frames_are_put_together() {
        let reader = reader(100, 10_000);
        for (given, whole) in [
            (vec![&b"{\"a\""[..], b":1", b"}"], &b"{\"a\":1}"[..]),
            (vec![b"[1]"], b"[1]"),
            (vec![], b"{}"),
            (vec![b" ", b"null"], b"{}"),
        ] {
            assert_eq!(
                reader.read(&HeaderMap::new(), frames(given)).await.unwrap().bytes,
                whole
            );
        }
        assert_eq!(reader.held_bytes(), 0);
    }

    #[tokio::test]
    async fn body_over_its_bound_is_refused_whatever_its_headers_say() {
        let reader = reader(10, 10_000);
        let mut headers = HeaderMap::new();
        assert!(
            reader
                .read(&headers, frames(vec![b"12345", b"67890"]))
                .await
                .is_ok()
        );
        let error = reader
            .read(&headers, frames(vec![b"12345", b"67890", b"1"]))
            .await
            .unwrap_err();
        assert_eq!((error.parts().0, error.parts().1), (413, "payload_too_large"));
        headers.insert(header::CONTENT_LENGTH, 11.into());
        assert_eq!(
            reader.read(&headers, frames(vec![])).await.unwrap_err().parts().0,
            413
        );
    }

    #[tokio::test]
    async fn bodies_together_are_bounded() {
        let reader = reader(4096, 4096);
        let held = reader
            .read(&HeaderMap::new(), frames(vec![&[b' '; 3000]]))
            .await
            .unwrap();
        assert_eq!(reader.held_bytes(), 3072);
        let error = reader
            .read(&HeaderMap::new(), frames(vec![&[b' '; 3000]]))
            .await
            .unwrap_err();
        assert_eq!((error.parts().0, error.parts().1), (429, "overloaded"));
        assert_eq!(reader.held_bytes(), 3072);
        drop(held);
        assert_eq!(reader.held_bytes(), 0);
        assert!(
            reader
                .read(&HeaderMap::new(), frames(vec![&[b' '; 3000]]))
                .await
                .is_ok()
        );
    }
}
