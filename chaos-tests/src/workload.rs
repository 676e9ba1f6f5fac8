//! The load of the fault runs: clients that produce, consume, look after dead letters and drain, against one node or several.

pub(crate) mod client;
pub(crate) mod consumer;
pub(crate) mod drain;
pub(crate) mod janitor;
pub(crate) mod plan;
pub(crate) mod producer;
pub(crate) mod setup;
pub(crate) mod verbs;
