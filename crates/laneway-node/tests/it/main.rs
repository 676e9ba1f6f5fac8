//! A whole node on a real disk, without HTTP.

mod auto_ack;
mod basics;
mod damage;
mod outside;
mod restart;
mod snapshots;
mod support;
mod three;
