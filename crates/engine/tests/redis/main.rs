//! The engine on real Redis servers: what every engine must do, and what happens when the wire or the server fails.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[expect(dead_code, unreachable_pub, reason = "it serves the tests of several engines")]
#[path = "../support/mod.rs"]
mod support;

mod bus;
mod bus_worker;
mod common;
mod conformance;
mod connecting;
mod crash;
mod damage;
mod failover;
mod forgetting;
mod keeping;
mod lost;
mod rights;
mod slow;
mod tls;
mod withdrawn;
