//! The log: standard error, text or JSON, filtered by `LANEWAY_LOG`.

use std::io::{self, IsTerminal};
use std::panic;

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use tracing::error;
use tracing_subscriber::EnvFilter;

/// Environment variable of the filter, such as `laneway_node=debug,info`.
pub const FILTER_VARIABLE: &str = "LANEWAY_LOG";

/// Without it: our own state changes, and what others warn of; but openraft warns of races that it then handles itself, and
/// tells of errors that it also returns.
const FILTER_DEFAULT: &str = "info,openraft=off,sled=warn,ractor=warn";

/// Form of the log lines.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Installs the subscriber and a panic hook that logs; once per process.
pub fn install(format: LogFormat) -> Result<()> {
    let filter = match std::env::var(FILTER_VARIABLE) {
        // Its message has its source in it.
        Ok(filter) => EnvFilter::try_new(&filter).map_err(|error| {
            anyhow!("{FILTER_VARIABLE}={filter}: {error}: give it a form such as laneway_node=debug,info")
        })?,
        Err(_) => EnvFilter::new(FILTER_DEFAULT),
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        // It would tell on standard error that standard error is closed, and panic.
        .log_internal_errors(false);
    match format {
        LogFormat::Text => builder.with_ansi(io::stderr().is_terminal()).init(),
        LogFormat::Json => builder.json().init(),
    }
    panic::set_hook(Box::new(|info| {
        let location = info.location().map(ToString::to_string).unwrap_or_default();
        let reason = info.payload_as_str().unwrap_or("no reason given");
        error!(location, reason, "panic");
    }));
    Ok(())
}
