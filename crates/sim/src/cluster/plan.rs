//! What a seed draws for a cluster: how many nodes, on which engine, and what goes wrong.

use std::time::Duration;

use orchestrix_leadership as leadership;
use orchestrix_node::Options;

use crate::cluster::engine::Flavour;
use crate::cluster::output::plan::OutputPlan;
use crate::cluster::versions::VersionsPlan;
use crate::plan::Plan;
use crate::rng::Rng;
use crate::shards::plan::ShardPlan;
use crate::shrink::{Rate, Shrink, less, without_each};
use crate::world::{MS, SECOND};

/// A cluster before it begins. Rates are per million: of requests, or per second and node, as said.
#[derive(Clone, Debug)]
pub struct ClusterPlan {
    pub seed: u64,
    pub(crate) flavour: Flavour,
    /// The engine may forget what it acknowledged. Then only this is promised: it is noticed, nothing forks, and no
    /// token comes twice.
    pub(crate) forgets: bool,
    /// What clients and workers do, and the options of the nodes.
    pub(crate) actors: Plan,
    pub(crate) nodes: Vec<NodePlan>,
    pub(crate) poll_interval: Duration,
    /// Microseconds between two times that a follower reads the journal, at least and at most.
    pub(crate) read_every: (u64, u64),
    /// Nothing goes wrong with nodes, engine and network.
    pub(crate) calm: bool,
    /// Seconds with faults, before they stop and everything must come to rest.
    pub(crate) seconds: u64,

    /// Of requests to the engine.
    pub(crate) unsent: u32,
    pub(crate) request_lost: u32,
    pub(crate) reply_lost: u32,
    pub(crate) delayed: u32,
    pub(crate) slow: u32,
    /// Its sender freezes, or dies, right after it was sent.
    pub(crate) freezes_within: u32,
    pub(crate) crashes_within: u32,
    /// Of messages between clients and nodes.
    pub(crate) message_lost: u32,
    /// Of questions: to a node that may not lead any more.
    pub(crate) stale_target: u32,
    /// Per second and node.
    pub(crate) crashes: u32,
    pub(crate) stops: u32,
    pub(crate) freezes: u32,
    pub(crate) cuts: u32,
    pub(crate) jumps: u32,
    /// Milliseconds that a wall clock jumps, either way.
    pub(crate) jump_ms: &'static [i64],
    /// Per second.
    pub(crate) engine_stalls: u32,
    pub(crate) engine_refusals: u32,
    pub(crate) engine_clocks: u32,
    pub(crate) losses: u32,
    pub(crate) output: OutputPlan,
    pub(crate) versions: VersionsPlan,
}

/// Seconds to ten years.
const ANY_JUMP: [i64; 4] = [1_000, 60_000, 86_400_000, 315_360_000_000];
/// About as long as leases: again and again there is one who is ahead of all before.
const SHORT_JUMPS: [i64; 3] = [1_000, 10_000, 60_000];

/// One node before it begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodePlan {
    pub(crate) ttl: Duration,
    pub(crate) drift_ppm: i64,
}

/// Everything that goes wrong with nodes, engine and network.
const FAULTS: [Rate<ClusterPlan>; 24] = [
    |plan| &mut plan.unsent,
    |plan| &mut plan.request_lost,
    |plan| &mut plan.reply_lost,
    |plan| &mut plan.delayed,
    |plan| &mut plan.slow,
    |plan| &mut plan.freezes_within,
    |plan| &mut plan.crashes_within,
    |plan| &mut plan.message_lost,
    |plan| &mut plan.stale_target,
    |plan| &mut plan.crashes,
    |plan| &mut plan.stops,
    |plan| &mut plan.freezes,
    |plan| &mut plan.cuts,
    |plan| &mut plan.jumps,
    |plan| &mut plan.engine_stalls,
    |plan| &mut plan.engine_refusals,
    |plan| &mut plan.engine_clocks,
    |plan| &mut plan.losses,
    |plan| &mut plan.output.lost,
    |plan| &mut plan.output.unheard,
    |plan| &mut plan.output.late,
    |plan| &mut plan.output.slow,
    |plan| &mut plan.output.reply_lost,
    |plan| &mut plan.output.repeats,
];

impl ClusterPlan {
    /// Draws a plan. One world in four has an engine that forgets; in one of ten others the leader lease changes hands faster
    /// than workers are heard of, and each of its holders has another time.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0xc1a5_7e12);
        let forgets = rng.chance(250_000);
        let flavour = match rng.index(3) {
            _ if forgets => Flavour::Redis,
            0 => Flavour::Redis,
            1 => Flavour::Sql,
            _ => Flavour::S3,
        };
        let calm = rng.chance(60_000) && !forgets;
        let mut rate = |low: u64, high: u64| -> u32 {
            let drawn = rng.skewed(low, high);
            let on = rng.chance(600_000) && !calm;
            if on { u32::try_from(drawn).unwrap_or(u32::MAX) } else { 0 }
        };
        let (unsent, request_lost, reply_lost) =
            (rate(1_000, 100_000), rate(1_000, 100_000), rate(1_000, 200_000));
        let (delayed, slow) = (rate(1_000, 150_000), rate(1_000, 300_000));
        let (freezes_within, crashes_within) = (rate(500, 20_000), rate(500, 10_000));
        let (message_lost, stale_target) = (rate(1_000, 100_000), rate(10_000, 500_000));
        let (crashes, stops, freezes) = (rate(2_000, 80_000), rate(2_000, 80_000), rate(2_000, 120_000));
        let (cuts, jumps, engine_stalls) = (rate(2_000, 80_000), rate(2_000, 100_000), rate(2_000, 60_000));
        let losses = if forgets { 30_000 + rate(2_000, 200_000) } else { 0 };
        // Nodes of one cluster most often agree how long a leader lease lasts, but they need not.
        let ttl_ms = rng.skewed(300, 8_000);
        let same = rng.chance(700_000);
        let nodes = (0..rng.range(2, 5))
            .map(|_| NodePlan {
                ttl: Duration::from_millis(if same { ttl_ms } else { rng.skewed(300, 8_000) }),
                drift_ppm: i64::try_from(rng.range(0, 20_000)).unwrap_or(0) - 10_000,
            })
            .collect();
        let poll_interval = Duration::from_millis(rng.skewed(20, 200));
        let read_every = (5 * MS, 500 * MS);
        let seconds = rng.skewed(20, 150);
        let mut actors = Plan::draw(seed);
        actors.calm = false;
        (actors.seconds, actors.tasks) = (seconds, rng.skewed(5, 120));
        (actors.workers, actors.submitters) = (1 + rng.index(3), 1 + rng.index(3));
        (actors.queue_max, actors.polls_max) = (512, 64);
        actors.hang_ups = if calm { 0 } else { actors.hang_ups };
        actors.changing = Plan::draw_changing(seed) && !calm;
        actors.snapshot_bytes = rng.skewed(200, 32 << 10);
        actors.without_server();
        // A leader is never stepped faster than this engine answers.
        actors.lease_ms = actors.lease_ms.max(1_000);
        let mut plan = Self {
            seed,
            flavour,
            forgets,
            actors,
            nodes,
            poll_interval,
            read_every,
            calm,
            seconds,
            unsent,
            request_lost,
            reply_lost,
            delayed,
            slow,
            freezes_within,
            crashes_within,
            message_lost,
            stale_target,
            crashes,
            stops,
            freezes,
            cuts,
            jumps,
            jump_ms: &ANY_JUMP,
            engine_stalls,
            engine_refusals: 0,
            engine_clocks: 0,
            losses,
            output: OutputPlan::draw(seed),
            versions: VersionsPlan::draw(seed, forgets),
        };
        if !calm {
            (plan.engine_refusals, plan.engine_clocks) = troubles(seed);
        }
        if rng.chance(100_000) && !forgets && !calm {
            plan.make_restless(&mut rng);
        } else if plan.output.used && !forgets && !calm {
            plan.freezes = plan.freezes.max(plan.output.freezes);
            if plan.output.hands_over {
                plan.output.hand_over(seed, &mut plan.actors);
            }
        }
        plan
    }

    fn make_restless(&mut self, rng: &mut Rng) {
        let mut often = || u32::try_from(rng.range(50_000, 200_000)).unwrap_or(0);
        (self.crashes, self.stops, self.jumps) = (often(), often(), often());
        (self.freezes, self.cuts, self.engine_stalls, self.jump_ms) = (0, 0, 0, &SHORT_JUMPS);
        (self.engine_refusals, self.engine_clocks) = (0, 0);
        let ttl = Duration::from_millis(rng.range(300, 900));
        self.nodes.iter_mut().for_each(|node| node.ttl = ttl);
        self.actors.workers = 3;
        self.actors.lease_ms = rng.range(5_000, 30_000);
    }

    /// Draws a plan in which nothing goes wrong for so many seconds, with leader leases of the length that nodes have by
    /// default.
    #[must_use]
    pub fn calm(seed: u64, seconds: u64) -> Self {
        let mut plan = Self::draw(seed);
        FAULTS.iter().for_each(|rate| *rate(&mut plan) = 0);
        plan.nodes.iter_mut().for_each(|node| node.ttl = leadership::Options::default().leader_ttl);
        (plan.calm, plan.forgets, plan.actors.hang_ups, plan.actors.changing) = (true, false, 0, false);
        plan.versions.used = false;
        (plan.seconds, plan.actors.seconds) = (seconds, seconds);
        (plan.poll_interval, plan.read_every) = (Duration::from_secs(1), (SECOND, 2 * SECOND));
        plan
    }

    /// Draws a plan of a cluster that is about shards: there are tasks too, but few. In one of ten nothing goes wrong but
    /// with workers.
    #[must_use]
    pub fn sharded(seed: u64) -> Self {
        let (mut plan, mut rng) = (Self::draw(seed), Rng::new(seed ^ 0x0dd5));
        (plan.forgets, plan.losses, plan.calm, plan.actors.hang_ups) = (false, 0, false, 0);
        plan.versions.used = false;
        let seconds = rng.skewed(30, 150);
        (plan.seconds, plan.actors.seconds) = (seconds, seconds);
        (plan.actors.submitters, plan.actors.workers, plan.actors.tasks) = (1, 1, rng.skewed(1, 10));
        let fastest = plan.nodes.iter().map(|node| node.drift_ppm).max().unwrap_or(0);
        let mut shards = ShardPlan::draw(seed, fastest);
        if rng.chance(100_000) {
            shards.make_calm();
            FAULTS.iter().for_each(|rate| *rate(&mut plan) = 0);
            (plan.calm, plan.actors.changing) = (true, false);
        } else if shards.has_sleepers() {
            plan.crashes = plan.crashes.max(u32::try_from(rng.range(20_000, 100_000)).unwrap_or(0));
        }
        plan.actors.shards = Some(shards);
        plan
    }

    pub(crate) fn longest_ttl(&self) -> Duration {
        self.nodes.iter().map(|node| node.ttl).max().unwrap_or_default()
    }

    /// The options of a node that starts for the so many-th time.
    pub(crate) fn options(&self, node: usize, start: u32) -> Options {
        let options = self.actors.node(node, start);
        let log_task_bytes = self.output.cap(node).unwrap_or(options.log_task_bytes);
        Options { node: format!("n{node}"), log_task_bytes, ..options }
    }
}

/// How often an engine refuses for a while, and how often its clock is set back, each in three of ten worlds. Has a
/// generator of its own.
fn troubles(seed: u64) -> (u32, u32) {
    let mut rng = Rng::new(seed ^ 0x0e50_5a15);
    let mut rate =
        || if rng.chance(300_000) { u32::try_from(rng.skewed(2_000, 60_000)).unwrap_or(0) } else { 0 };
    (rate(), rate())
}

impl Shrink for ClusterPlan {
    fn easier(&self) -> Vec<Self> {
        let mut found = without_each(self, &FAULTS);
        let mut smaller = |change: &dyn Fn(&mut Self)| {
            let mut easier = self.clone();
            change(&mut easier);
            found.push(easier);
        };
        for seconds in less(self.seconds) {
            smaller(&|plan| (plan.seconds, plan.actors.seconds) = (seconds, seconds));
        }
        if self.output.used {
            smaller(&|plan| plan.output.used = false);
        }
        if self.versions.used {
            smaller(&|plan| plan.versions.used = false);
        }
        if self.nodes.len() > 1 {
            smaller(&|plan| plan.nodes.truncate(plan.nodes.len() - 1));
        }
        if self.nodes.iter().any(|node| node.drift_ppm != 0) {
            smaller(&|plan| plan.nodes.iter_mut().for_each(|node| node.drift_ppm = 0));
        }
        // The world says how long it lasts, not its actors.
        let actors = self.actors.easier().into_iter().filter(|actors| actors.seconds == self.actors.seconds);
        found.extend(actors.map(|actors| Self { actors, ..self.clone() }));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::run_cluster_plan;
    use crate::shrink::shrink;

    #[test]
    fn only_what_is_needed_to_fail_is_left() {
        let mut plan = ClusterPlan::draw(3);
        (plan.freezes, plan.actors.failures) = (1_000, 1_000);
        let fails = |plan: &ClusterPlan| plan.freezes > 0 && plan.nodes.len() >= 2 && plan.actors.tasks >= 3;
        let smallest = shrink(plan, fails);
        assert_eq!((smallest.freezes, smallest.nodes.len(), smallest.actors.tasks), (1_000, 2, 3));
        assert_eq!((smallest.seconds, smallest.actors.failures, smallest.actors.workers), (1, 0, 1));
        assert!(smallest.easier().iter().all(|easier| !fails(easier)));
    }

    /// No bug is planted here: clocks that differ by a third are more than is promised.
    #[test]
    fn a_failing_world_is_shrunk_and_still_fails() {
        let breaks = |plan: &ClusterPlan| {
            run_cluster_plan(plan.clone()).violations.iter().any(|violation| violation.invariant == "E5")
        };
        let wild = (1..200).map(|seed| {
            let mut plan = ClusterPlan::draw(seed);
            let drifts = [330_000, -330_000].into_iter().cycle();
            plan.nodes.iter_mut().zip(drifts).for_each(|(node, drift)| node.drift_ppm = drift);
            plan
        });
        let plan = wild.into_iter().find(breaks).expect("some of these worlds break");
        let smallest = shrink(plan.clone(), breaks);
        assert!(breaks(&smallest));
        let (left, before) = (smallest.easier().len(), plan.easier().len());
        assert!(
            left < before && smallest.seconds <= plan.seconds,
            "{left} of {before} things are left: {smallest:?}"
        );
    }
}
