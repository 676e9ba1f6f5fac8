//! Body of every answer that is not a success, but for those of the pop routes ([`crate::PopFailure`]).

use serde::{Deserialize, Serialize};

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// For a person.
    pub error: String,
    /// For a program.
    #[serde(default)]
    pub code: String,
    /// The path asked for, when there is no such route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// `false` on the routes whose answers have this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success: Option<bool>,
}
