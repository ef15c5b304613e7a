//! Many worlds with several nodes: runs seeds until the time is over, and says what was tried and seen.

use crate::check::Violation;
use crate::cluster::sights::Sights;
use crate::cluster::{ClusterEnded, ClusterPlan, run_cluster, run_cluster_plan};
use crate::prove::{Campaign, Tally, run_all};

/// What came of a campaign.
#[derive(Debug, Default)]
pub struct ClusterOutcome {
    pub worlds: u64,
    /// Worlds that were run twice, and had the same trace both times.
    pub repeated: u64,
    pub simulated_seconds: u64,
    pub calls: u64,
    pub sights: Sights,
    /// The seeds that failed, with why.
    pub failed: Vec<(u64, Violation)>,
}

/// Runs worlds on all threads until the seeds or the time are used up, or ten have failed.
#[must_use]
pub fn prove_clusters(campaign: Campaign, progress: impl Fn(u64) + Sync) -> ClusterOutcome {
    run_all(campaign, progress, run_cluster)
}

/// Seconds of a day.
const DAY: u64 = 24 * 3_600;

/// Runs days in which nothing goes wrong, on all threads, until the seeds or the time are used up; one at least.
#[must_use]
pub fn prove_calm(campaign: Campaign, progress: impl Fn(u64) + Sync) -> ClusterOutcome {
    run_all(campaign, progress, |seed| run_cluster_plan(ClusterPlan::calm(seed, DAY)))
}

impl Tally for ClusterOutcome {
    type Ended = ClusterEnded;

    fn trace(ended: &ClusterEnded) -> [u8; 32] {
        ended.trace
    }

    fn broken(&self) -> usize {
        self.failed.len()
    }

    fn add(&mut self, mut ended: ClusterEnded, repeated: bool, other: Option<Violation>) {
        ended.violations.extend(other);
        self.worlds += 1;
        self.repeated += u64::from(repeated);
        self.simulated_seconds += ended.seconds;
        self.calls += ended.calls;
        self.sights.merge(&ended.sights);
        self.failed.extend(ended.violations.into_iter().map(|violation| (ended.seed, violation)));
    }
}
