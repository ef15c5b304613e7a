//! Many worlds with several nodes: runs seeds until the time is over, and reports their coverage.

use crate::cluster::coverage::ClusterCovered;
use crate::cluster::{ClusterEnded, ClusterPlan, run_cluster_traced};
use crate::prove::{Campaign, End, Outcome, run_all};

/// What came of a campaign.
pub type ClusterOutcome = Outcome<ClusterCovered>;

impl From<ClusterEnded> for End<ClusterCovered> {
    fn from(ended: ClusterEnded) -> Self {
        let ClusterEnded { seed, violations, coverage, trace, seconds, calls, .. } = ended;
        Self { seed, violations, coverage, trace, seconds, calls }
    }
}

/// Runs worlds on all threads until the seeds or the time are used up, or ten have failed.
#[must_use]
pub fn prove_clusters(campaign: Campaign, progress: impl Fn(u64) + Sync) -> ClusterOutcome {
    run_all(campaign, progress, |seed, tracing| run_cluster_traced(ClusterPlan::draw(seed), tracing))
}

/// Seconds of a day.
const DAY: u64 = 24 * 3_600;

/// Runs days in which nothing goes wrong, on all threads, until the seeds or the time are used up; one at least.
#[must_use]
pub fn prove_calm(campaign: Campaign, progress: impl Fn(u64) + Sync) -> ClusterOutcome {
    run_all(campaign, progress, |seed, tracing| run_cluster_traced(ClusterPlan::calm(seed, DAY), tracing))
}
