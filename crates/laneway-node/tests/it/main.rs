//! A whole node on a real disk, without HTTP.

mod basics;
mod restart;
mod support;
