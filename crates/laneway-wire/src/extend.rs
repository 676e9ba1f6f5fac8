//! `POST /api/v1/lease/:leaseId/extend`

use serde::{Deserialize, Serialize};

use crate::value::Int;

/// Body of an extension; may be empty.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ExtendRequest {
    /// New length from now; absent means [`crate::limits::EXTEND_SECONDS_DEFAULT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<Int>,
}

/// Answer of an extension. The three times are the same: the earliest expiry among the leases renewed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtendResponse {
    /// As in the path.
    #[serde(rename = "leaseId")]
    pub lease_id: String,
    /// A live lease had this id.
    pub success: bool,
    /// Lanes whose lease was lengthened.
    pub renewed: u32,
    /// Expiry.
    #[serde(rename = "newExpiresAt")]
    pub new_expires_at: Option<String>,
    /// Expiry.
    #[serde(rename = "expiresAt")]
    pub expires_at: Option<String>,
    /// Expiry.
    pub lease_expires_at: Option<String>,
}
