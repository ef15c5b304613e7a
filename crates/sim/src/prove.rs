//! Many worlds: runs seeds until the time is over, and reports their coverage.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::check::Violation;
use crate::coverage::{Coverable, Coverage, Covered};
use crate::plan::Plan;
use crate::shards::ShardCoverage;
use crate::trace::Tracing;
use crate::world::{Ended, World};

/// How many worlds are run.
#[derive(Clone, Copy, Debug)]
pub struct Campaign {
    pub first_seed: u64,
    pub seeds: u64,
    pub time: Duration,
    pub threads: usize,
}

/// What came of a campaign.
#[derive(Debug)]
pub struct Outcome<S = Covered> {
    pub worlds: u64,
    /// Worlds that were run twice, and had the same trace both times.
    pub repeated: u64,
    pub simulated_seconds: u64,
    pub calls: u64,
    pub coverage: Coverage<S>,
    /// The seeds that failed, with why.
    pub failed: Vec<(u64, Violation)>,
}

/// What counts of a world that has ended.
pub(crate) struct End<S> {
    pub(crate) seed: u64,
    pub(crate) violations: Vec<Violation>,
    pub(crate) coverage: Coverage<S>,
    pub(crate) trace: [u8; 32],
    pub(crate) seconds: u64,
    pub(crate) calls: u64,
}

impl From<Ended> for End<Covered> {
    fn from(ended: Ended) -> Self {
        let Ended { seed, violations, coverage, trace, seconds, calls, .. } = ended;
        Self { seed, violations, coverage, trace, seconds, calls }
    }
}

impl<S> Default for Outcome<S> {
    fn default() -> Self {
        let (coverage, failed) = (Coverage::default(), Vec::new());
        Self { worlds: 0, repeated: 0, simulated_seconds: 0, calls: 0, coverage, failed }
    }
}

impl<S: Coverable> Outcome<S> {
    /// Takes in a world, whether it was run twice, and what came of that.
    fn add(&mut self, mut end: End<S>, repeated: bool, other: Option<Violation>) {
        end.violations.extend(other);
        self.worlds += 1;
        self.repeated += u64::from(repeated);
        self.simulated_seconds += end.seconds;
        self.calls += end.calls;
        self.coverage.merge(&end.coverage);
        self.failed.extend(end.violations.into_iter().map(|violation| (end.seed, violation)));
    }
}

/// One world in so many is run twice.
const REPEAT_EVERY: u64 = 20;

/// Runs one seed.
#[must_use]
pub fn run_seed(seed: u64) -> Ended {
    run_plan(Plan::draw(seed))
}

/// Runs one world. A panic is a violation like any other.
#[must_use]
pub fn run_plan(plan: Plan) -> Ended {
    run_traced(plan, Tracing::Hashed)
}

pub(crate) fn run_traced(plan: Plan, tracing: Tracing) -> Ended {
    let seed = plan.seed;
    contained(|| World::new(plan).traced(tracing).run()).unwrap_or_else(|violation| Ended {
        seed,
        violations: vec![violation],
        coverage: Coverage::default(),
        shards: ShardCoverage::default(),
        shard_messages: 0,
        trace: [0; 32],
        seconds: 0,
        calls: 0,
        listing: Vec::new(),
    })
}

/// Runs something that may panic. A panic is a violation like any other.
pub(crate) fn contained<T>(run: impl FnOnce() -> T) -> Result<T, Violation> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        Violation::new("W11", format!("a panic: {}", text.unwrap_or("no word")))
    })
}

/// Runs worlds on all threads until the seeds or the time are used up, or ten have failed.
#[must_use]
pub fn prove(campaign: Campaign, progress: impl Fn(u64) + Sync) -> Outcome {
    run_all(campaign, progress, |seed, tracing| run_traced(Plan::draw(seed), tracing))
}

/// Runs seeds on all threads until they or the time are used up, or ten have failed.
pub(crate) fn run_all<S: Coverable + Send, E: Into<End<S>>>(
    campaign: Campaign,
    progress: impl Fn(u64) + Sync,
    run: impl Fn(u64, Tracing) -> E + Sync,
) -> Outcome<S> {
    let (next, start) = (AtomicU64::new(0), Instant::now());
    let outcome = Mutex::new(Outcome::default());
    let locked = || outcome.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        for _ in 0..campaign.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    let enough = locked().failed.len() >= 10;
                    if number >= campaign.seeds || start.elapsed() >= campaign.time || enough {
                        return;
                    }
                    let seed = campaign.first_seed + number;
                    let again = number.is_multiple_of(REPEAT_EVERY);
                    let tracing = if again { Tracing::Hashed } else { Tracing::Off };
                    let end = run(seed, tracing).into();
                    let other = (again && run(seed, tracing).into().trace != end.trace)
                        .then(|| Violation::new("W6", "the same seed gave another world".to_owned()));
                    locked().add(end, again, other);
                    progress(number + 1);
                }
            });
        }
    });
    outcome.into_inner().unwrap_or_else(PoisonError::into_inner)
}
