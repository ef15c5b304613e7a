//! One handover, and everything that can become of its messages: each is lost, comes again later, or comes when all is
//! over; and so for every two of them.

use crate::check::Violation;
use crate::plan::Plan;
use crate::prove::run_plan;
use crate::shards::coverage::ShardCoverage;
use crate::shards::plan::{Fate, ShardPlan};

const SEED: u64 = 3;
/// The second worker comes when the first has everything.
const APART_MS: u64 = 1_500;
/// Seconds in which messages can be lost and late: both workers come, and a shard changes hands.
const SECONDS: u64 = 4;
const FATES: [Fate; 3] = [Fate::Lost, Fate::Doubled, Fate::Late];

/// What came of it.
#[derive(Debug, Default)]
pub struct Handovers {
    /// Messages of a handover in which nothing goes wrong.
    pub messages: u64,
    pub worlds: u64,
    pub coverage: ShardCoverage,
    /// Which messages had which fate, and what was broken.
    pub failed: Vec<(String, Violation)>,
}

/// Runs a handover with every fate of every message, and with those of every `nth` pair of messages.
#[must_use]
pub fn handovers(nth: usize) -> Handovers {
    let mut all = Handovers::default();
    all.messages = all.run(Vec::new());
    let one: Vec<(u64, Fate)> =
        (1..=all.messages).flat_map(|number| FATES.map(|fate| (number, fate))).collect();
    for fate in &one {
        all.run(vec![*fate]);
    }
    let pairs = one.iter().flat_map(|first| one.iter().map(move |second| (*first, *second)));
    for (first, second) in pairs.filter(|(first, second)| first.0 < second.0).step_by(nth.max(1)) {
        all.run(vec![first, second]);
    }
    all
}

impl Handovers {
    /// Answers how many messages there were.
    fn run(&mut self, fates: Vec<(u64, Fate)>) -> u64 {
        let named = format!("{fates:?}");
        let ended = run_plan(plan(fates));
        self.worlds += 1;
        self.coverage.merge(&ended.shards);
        self.failed.extend(ended.violations.into_iter().map(|violation| (named.clone(), violation)));
        ended.shard_messages
    }
}

/// Two workers and two shards on a node that has no trouble.
fn plan(fates: Vec<(u64, Fate)>) -> Plan {
    let mut plan = Plan::draw(SEED);
    plan.without_server();
    (plan.calm, plan.seconds, plan.tasks, plan.workers, plan.submitters) = (false, SECONDS, 1, 1, 1);
    (plan.worker_crashes, plan.worker_freezes) = (0, 0);
    let shards = ShardPlan::draw(SEED, 0).without_faults();
    let (services, apart_ms) = (vec![2], Some(APART_MS));
    plan.shards = Some(ShardPlan { services, apart_ms, count: 2, lease_ms: 1_500, fates, ..shards });
    plan
}
