//! The partition machine of `laneway-core` against the naive model.

mod broker;
mod commands;
mod coverage;
mod faithful;
mod machine;
mod shrink;
mod world;
