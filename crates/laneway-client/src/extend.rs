//! Extending leases.

use laneway_wire::{ExtendRequest, ExtendResponse, Int};

use crate::path::push_segment;
use crate::{Client, ClientError};

impl Client {
    /// Lets every live lease with this id last at least `seconds` from now. `success: false` = there is none.
    pub async fn extend(&self, lease_id: &str, seconds: u32) -> Result<ExtendResponse, ClientError> {
        let mut path = String::from("/api/v1/lease");
        push_segment(&mut path, lease_id);
        path.push_str("/extend");
        self.post(
            &path,
            &ExtendRequest {
                seconds: Some(Int(seconds.into())),
            },
        )
        .await
    }
}
