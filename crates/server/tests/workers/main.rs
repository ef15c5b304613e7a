//! Workers that divide shards, against a real coordinator: the library, and the examples in three languages.
//! `scripts/workers` installs what they need.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod bus;
mod campaign;
mod coordinator;
mod examples;
mod library;
mod measure;
mod process;
mod seed;
#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "it is shared with tests that need more of it")]
mod support;
