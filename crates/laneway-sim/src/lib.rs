//! Reference model and oracle of Laneway.
//!
//! [`model`] is the partition machine once more, written naively from the contract: vectors and scans, no code shared with
//! `laneway-core` but its data types. [`oracle`] judges what clients saw.
//!
//! **Invariants.** Nothing shipped depends on this crate. The model is easy to check by reading; it is never made faster
//! at the cost of that.

pub mod model;
pub mod oracle;
