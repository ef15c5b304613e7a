//! The command line and the client against a real coordinator: the binary itself, on a free port.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod bench;
mod client;
mod commands;
mod failover;
#[path = "../support/mod.rs"]
mod support;
mod work;
mod wrong_input;
