//! Shards in worlds: workers that divide the shards of services, and the check that no shard ever had two.
//!
//! - [`ShardPlan`](plan::ShardPlan) is what a seed draws, [`worker`] who lives by it, [`record`] what the workers did,
//!   in the time of the world.
//! - [`check`] holds the journal, the answers and what the workers did against the invariants of shards (H).
//! - Worlds with shards are worlds like others, with one node or with several: a seed in three has one node.
//!
//! **Invariant:** the same seed gives the same world, to the last byte of its trace.

pub(crate) mod check;
mod coverage;
mod handover;
pub(crate) mod messages;
pub(crate) mod plan;
mod prove;
pub(crate) mod record;
pub(crate) mod rest;
pub(crate) mod worker;

pub use coverage::{ShardCoverage, ShardCovered};
pub use handover::{Handovers, handovers};
pub use prove::{ShardOutcome, ShardWorld, ShardWorldPlan, prove_shards, run_shards, run_shards_plan};
