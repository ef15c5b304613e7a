//! Worlds from seeds: the coordinator that ships, between clients, workers, clocks, a network and a disk that do
//! everything wrong that we know of.
//!
//! - [`World`] is one run: everything in it comes from one seed, and nothing outside is asked.
//! - [`Plan`] is what the seed drew: how large the world is and which faults it has.
//! - `check` holds the journal and what the actors saw against the invariants; it knows nothing of the rules'
//!   own code.
//! - [`prove`] runs many worlds and says what was seen.
//! - [`ClusterWorld`] is a world with several nodes on one engine: elections, followers, leaders that are overtaken.
//! - [`ShardWorldPlan`] is a world of either kind that is about shards: workers that divide them, and lose each other.
//! - [`damage`] changes what a coordinator left on its disk in every way, and opens it again.
//! - [`REAL_CAMPAIGNS`] have no world: they meet the program that ships, as a process, with faults of a real machine.
//!
//! **Invariant:** the same seed gives the same world, to the last byte of its trace.

mod actors;
mod check;
mod clock;
mod cluster;
mod coverage;
mod damage;
mod fuzzing;
mod history;
mod nemesis;
mod network;
mod plan;
mod prove;
mod real;
mod report;
mod rng;
mod rounds;
mod server;
mod shards;
mod shrink;
mod trace;
mod world;

pub use check::Violation;
pub use cluster::{
    ClusterCoverage, ClusterCovered, ClusterEnded, ClusterOutcome, ClusterPlan, ClusterWorld, prove_calm,
    prove_clusters, run_cluster, run_cluster_plan,
};
pub use coverage::{Coverable, Coverage, Covered};
pub use damage::{DamageCampaign, DamageOutcome, damage};
pub use fuzzing::fuzz;
pub use plan::Plan;
pub use prove::{Campaign, Outcome, prove, run_plan, run_seed};
pub use real::{REAL_CAMPAIGNS, RealCampaign, Trial, Tried};
pub use report::{Failure, Length, Row, table};
pub use shards::{
    Handovers, ShardCoverage, ShardCovered, ShardOutcome, ShardWorld, ShardWorldPlan, handovers,
    prove_shards, run_shards, run_shards_plan,
};
pub use shrink::{Shrink, shrink};
pub use trace::Tracing;
pub use world::{Ended, World};
