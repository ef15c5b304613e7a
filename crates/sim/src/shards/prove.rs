//! Many worlds with shards: runs seeds until the time is over, and reports their coverage.

use crate::check::Violation;
use crate::cluster::{ClusterPlan, ClusterWorld, run_cluster_traced};
use crate::plan::Plan;
use crate::prove::{Campaign, End, Outcome, run_all, run_traced};
use crate::shards::coverage::{ShardCoverage, ShardCovered};
use crate::shrink::Shrink;
use crate::trace::Tracing;
use crate::world::World;

/// A world with shards before it begins.
#[derive(Clone, Debug)]
pub enum ShardWorldPlan {
    /// On one node, which crashes and starts again on its disk.
    One(Box<Plan>),
    /// On several, of which another leads now and then.
    Several(Box<ClusterPlan>),
}

/// How a world ended.
#[derive(Debug)]
pub struct ShardWorld {
    pub seed: u64,
    pub violations: Vec<Violation>,
    pub coverage: ShardCoverage,
    /// Depends on everything that happened.
    pub trace: [u8; 32],
    /// Simulated time.
    pub seconds: u64,
    pub calls: u64,
    /// What happened, if asked for.
    pub listing: Vec<String>,
}

/// What came of a campaign.
pub type ShardOutcome = Outcome<ShardCovered>;

impl From<ShardWorld> for End<ShardCovered> {
    fn from(ended: ShardWorld) -> Self {
        let ShardWorld { seed, violations, coverage, trace, seconds, calls, .. } = ended;
        Self { seed, violations, coverage, trace, seconds, calls }
    }
}

impl ShardWorldPlan {
    /// Draws a plan. One world in three has one node.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        if seed.is_multiple_of(3) {
            Self::One(Box::new(Plan::sharded(seed)))
        } else {
            Self::Several(Box::new(ClusterPlan::sharded(seed)))
        }
    }

    /// Runs it and keeps everything that happens, to be read by people.
    #[must_use]
    pub fn listing(self) -> ShardWorld {
        match self {
            Self::One(plan) => World::new(*plan).telling().run().into(),
            Self::Several(plan) => ClusterWorld::new(*plan).telling().run().into(),
        }
    }
}

impl Shrink for ShardWorldPlan {
    fn easier(&self) -> Vec<Self> {
        match self {
            Self::One(plan) => plan.easier().into_iter().map(|plan| Self::One(Box::new(plan))).collect(),
            Self::Several(plan) => {
                plan.easier().into_iter().map(|plan| Self::Several(Box::new(plan))).collect()
            }
        }
    }
}

impl From<crate::Ended> for ShardWorld {
    fn from(ended: crate::Ended) -> Self {
        let crate::Ended { seed, violations, shards: coverage, trace, seconds, calls, listing, .. } = ended;
        Self { seed, violations, coverage, trace, seconds, calls, listing }
    }
}

impl From<crate::ClusterEnded> for ShardWorld {
    fn from(ended: crate::ClusterEnded) -> Self {
        let crate::ClusterEnded {
            seed, violations, shards: coverage, trace, seconds, calls, listing, ..
        } = ended;
        Self { seed, violations, coverage, trace, seconds, calls, listing }
    }
}

/// Runs one seed.
#[must_use]
pub fn run_shards(seed: u64) -> ShardWorld {
    run_shards_plan(ShardWorldPlan::draw(seed))
}

/// Runs one world. A panic is a violation like any other.
#[must_use]
pub fn run_shards_plan(plan: ShardWorldPlan) -> ShardWorld {
    run_shards_traced(plan, Tracing::Hashed)
}

fn run_shards_traced(plan: ShardWorldPlan, tracing: Tracing) -> ShardWorld {
    match plan {
        ShardWorldPlan::One(plan) => run_traced(*plan, tracing).into(),
        ShardWorldPlan::Several(plan) => run_cluster_traced(*plan, tracing).into(),
    }
}

/// Runs worlds on all threads until the seeds or the time are used up, or ten have failed.
#[must_use]
pub fn prove_shards(campaign: Campaign, progress: impl Fn(u64) + Sync) -> ShardOutcome {
    run_all(campaign, progress, |seed, tracing| run_shards_traced(ShardWorldPlan::draw(seed), tracing))
}
