//! Many worlds: runs seeds until the time is over, and says what was tried and seen.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::check::Violation;
use crate::plan::Plan;
use crate::seen::Seen;
use crate::shards::ShardSights;
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
#[derive(Debug, Default)]
pub struct Outcome {
    pub worlds: u64,
    /// Worlds that were run twice, and had the same trace both times.
    pub repeated: u64,
    pub simulated_seconds: u64,
    pub calls: u64,
    pub seen: Seen,
    /// The seeds that failed, with why.
    pub failed: Vec<(u64, Violation)>,
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
    let seed = plan.seed;
    contained(|| World::new(plan).run()).unwrap_or_else(|violation| Ended {
        seed,
        violations: vec![violation],
        seen: Seen::default(),
        shards: ShardSights::default(),
        shard_messages: 0,
        trace: [0; 32],
        seconds: 0,
        calls: 0,
        told: Vec::new(),
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
    run_all(campaign, progress, run_seed)
}

/// What is made of many worlds.
pub(crate) trait Tally: Default + Send {
    type Ended;

    fn trace(ended: &Self::Ended) -> [u8; 32];

    /// Violations so far.
    fn broken(&self) -> usize;

    /// Takes in a world, whether it was run twice, and what came of that.
    fn add(&mut self, ended: Self::Ended, repeated: bool, other: Option<Violation>);
}

/// Runs seeds on all threads until they or the time are used up, or ten have failed.
pub(crate) fn run_all<T: Tally>(
    campaign: Campaign,
    progress: impl Fn(u64) + Sync,
    run: impl Fn(u64) -> T::Ended + Sync,
) -> T {
    let (next, start) = (AtomicU64::new(0), Instant::now());
    let tally = Mutex::new(T::default());
    let locked = || tally.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        for _ in 0..campaign.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    let enough = locked().broken() >= 10;
                    if number >= campaign.seeds || start.elapsed() >= campaign.time || enough {
                        return;
                    }
                    let seed = campaign.first_seed + number;
                    let ended = run(seed);
                    let again = number.is_multiple_of(REPEAT_EVERY);
                    let other = (again && T::trace(&run(seed)) != T::trace(&ended))
                        .then(|| Violation::new("W6", "the same seed gave another world".to_owned()));
                    locked().add(ended, again, other);
                    progress(number + 1);
                }
            });
        }
    });
    tally.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl Tally for Outcome {
    type Ended = Ended;

    fn trace(ended: &Ended) -> [u8; 32] {
        ended.trace
    }

    fn broken(&self) -> usize {
        self.failed.len()
    }

    fn add(&mut self, mut ended: Ended, repeated: bool, other: Option<Violation>) {
        ended.violations.extend(other);
        self.worlds += 1;
        self.repeated += u64::from(repeated);
        self.simulated_seconds += ended.seconds;
        self.calls += ended.calls;
        self.seen.merge(&ended.seen);
        self.failed.extend(ended.violations.into_iter().map(|violation| (ended.seed, violation)));
    }
}
