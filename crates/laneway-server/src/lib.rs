//! What the `laneway` binary is made of: command line, configuration, log setup, wiring of the layers, signals.
//!
//! **Invariants.** Only this crate reads the environment and installs a log subscriber. A start that is refused prints one line
//! on standard error that says what to do, and changes nothing on disk.
//!
//! It is a library only so that the configuration reader can be fuzzed; nothing depends on it but the binary and the
//! repository's tasks.

pub mod cli;
pub mod config;
pub mod ctl;
pub mod dev;
#[cfg(feature = "failpoints")]
mod failpoint;
pub mod logging;
pub mod run;
