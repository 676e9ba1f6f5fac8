//! Bounds on names, checked before anything else happens.

use crate::api::{ErrorClass, REQUEST_ID_BYTES_MAX, RequestError, RequestId};
use crate::node::Node;

impl Node {
    /// Queue name and the longest of `others` (lane and group names) must fit the bound together.
    pub(super) fn check_names(&self, queue: &str, others: &[&str]) -> Result<(), RequestError> {
        let longest = others.iter().map(|name| name.len()).max().unwrap_or(0);
        let bytes_max = self.inner.limits.names_bytes_max;
        if queue.len() + longest <= bytes_max {
            return Ok(());
        }
        let message = format!(
            "the names are too long: queue ({} bytes) and the longer of lane and group ({longest} bytes) may have {bytes_max} bytes together",
            queue.len()
        );
        Err(RequestError::new(ErrorClass::TooLarge, "name_too_long", message))
    }

    pub(super) fn check_transaction_id(&self, transaction_id: &str) -> Result<(), RequestError> {
        let bytes_max = self.inner.limits.transaction_id_bytes_max;
        if transaction_id.len() <= bytes_max {
            return Ok(());
        }
        let message = format!(
            "a transaction id has {} bytes, the limit is {bytes_max}; use a shorter one, such as a hash",
            transaction_id.len()
        );
        Err(RequestError::new(ErrorClass::TooLarge, "name_too_long", message))
    }
}

/// A request id must have 1 to 64 bytes.
pub(super) fn check_request_id(id: Option<&RequestId>) -> Result<(), RequestError> {
    match id {
        Some(id) if id.0.is_empty() || id.0.len() > REQUEST_ID_BYTES_MAX => {
            let message = format!(
                "a request id has {} bytes; it must have 1 to {REQUEST_ID_BYTES_MAX}",
                id.0.len()
            );
            Err(RequestError::new(ErrorClass::Invalid, "bad_request", message))
        }
        _ => Ok(()),
    }
}
