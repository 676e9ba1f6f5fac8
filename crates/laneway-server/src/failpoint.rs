//! Ending the process at a named step of the storage, for tests (feature `failpoints`).

use anyhow::{Context, Result};

/// `name:count`: the process aborts when it comes to the point of that name for the count-th time.
const VARIABLE: &str = "LANEWAY_FAILPOINT";

/// Arms the point that the environment names, if it does.
pub(crate) fn arm_from_environment() -> Result<()> {
    let Some(text) = std::env::var_os(VARIABLE) else {
        return Ok(());
    };
    laneway_node::arm_failpoint(&text.to_string_lossy()).context(VARIABLE)
}
