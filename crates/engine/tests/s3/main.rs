//! The engine on a real object store: what every engine must do, and what happens when the wire or the store fails.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[expect(dead_code, unreachable_pub, reason = "it serves the tests of several engines")]
#[path = "../support/mod.rs"]
mod support;

mod common;
mod conformance;
mod connecting;
mod cost;
mod crash;
mod damage;
mod faults;
mod forgetting;
mod keeping;
mod lost;
mod presence;
mod tls;
