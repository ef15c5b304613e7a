//! Worlds with several nodes on one engine, from seeds: the elector, the follower and the leader that ship, each node
//! with its own clock, and everything that goes wrong between them.
//!
//! - [`ClusterWorld`] is one run; [`ClusterPlan`] is what its seed drew.
//! - `engine` is the model of the engine, `handles` what the nodes have of it, `requests` what becomes of a request
//!   on its way: lost, late, answered and not heard.
//! - `record` is what happened, seen from outside, and `check` holds it against the invariants of elections. Tasks and
//!   leases are checked as in a world with one node.
//! - `versions` has nodes of two versions, and the leader that raises the format of the journal.
//!
//! **Invariant:** the same seed gives the same world, to the last byte of its trace.

mod check;
mod clients;
mod clock;
mod coverage;
mod engine;
mod faults;
mod handles;
mod happening;
mod hints;
mod leader;
mod life;
mod node;
mod output;
mod plan;
mod prove;
mod record;
mod requests;
mod versions;
mod world;

pub use coverage::{ClusterCoverage, ClusterCovered};
pub use plan::ClusterPlan;
pub use prove::{ClusterOutcome, prove_calm, prove_clusters};
pub use world::{ClusterEnded, ClusterWorld};

use crate::prove::contained;
use crate::shards::ShardCoverage;
use crate::trace::Tracing;

/// Runs one seed.
#[must_use]
pub fn run_cluster(seed: u64) -> ClusterEnded {
    run_cluster_plan(ClusterPlan::draw(seed))
}

/// Runs one world. A panic is a violation like any other.
#[must_use]
pub fn run_cluster_plan(plan: ClusterPlan) -> ClusterEnded {
    run_cluster_traced(plan, Tracing::Hashed)
}

pub(crate) fn run_cluster_traced(plan: ClusterPlan, tracing: Tracing) -> ClusterEnded {
    let seed = plan.seed;
    contained(|| ClusterWorld::new(plan).traced(tracing).run()).unwrap_or_else(|violation| ClusterEnded {
        seed,
        violations: vec![violation],
        coverage: ClusterCoverage::default(),
        shards: ShardCoverage::default(),
        trace: [0; 32],
        seconds: 0,
        calls: 0,
        listing: Vec::new(),
    })
}
