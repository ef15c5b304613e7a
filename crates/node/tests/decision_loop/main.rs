//! The decision loop without threads: the clock is a number, and callers are names.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod admission;
mod belief;
mod budget;
mod coming;
mod common;
mod deciding;
mod leasing;
mod overruling;
mod promises;
mod repeats;
mod scope;
mod sharding;
mod starving;
mod storm;
