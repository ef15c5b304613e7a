//! What a seed draws: the size of a world and the faults in it.

use std::time::Duration;

use orchestrix_core::Retention;
use orchestrix_core::limits::QUEUES_MAX;
use orchestrix_engine::file::{self, Prepare};
use orchestrix_node::{Options, ShardTimes};

use crate::rng::Rng;
use crate::shards::plan::ShardPlan;

/// A world before it begins. Rates are per million: of messages, of seconds, or of calls, as said.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// Nothing goes wrong.
    pub(crate) calm: bool,
    /// Seconds with faults, before they stop and everything must come to rest.
    pub(crate) seconds: u64,
    pub(crate) submitters: usize,
    pub(crate) workers: usize,
    pub(crate) queues: usize,
    /// Tasks that are submitted at most.
    pub(crate) tasks: u64,
    /// Milliseconds of the leases that workers ask for.
    pub(crate) lease_ms: u64,
    pub(crate) keyed: u32,

    /// Of messages.
    pub(crate) lost: u32,
    pub(crate) doubled: u32,
    pub(crate) slow: u32,
    /// Of lease calls that have a name: the caller hangs up early and asks again.
    pub(crate) hang_ups: u32,
    /// Of syncs.
    pub(crate) slow_disk: u32,
    /// Per second.
    pub(crate) kills: u32,
    pub(crate) power_losses: u32,
    pub(crate) stops: u32,
    pub(crate) freezes: u32,
    pub(crate) jumps: u32,
    pub(crate) full_disks: u32,
    pub(crate) sync_failures: u32,
    pub(crate) short_writes: u32,
    pub(crate) worker_crashes: u32,
    pub(crate) worker_freezes: u32,
    /// Of attempts.
    pub(crate) failures: u32,
    pub(crate) releases: u32,
    pub(crate) poison: u32,
    pub(crate) late_reports: u32,
    /// Of submits.
    pub(crate) cancels: u32,

    pub(crate) server_drift_ppm: i64,
    pub(crate) worker_drift_ppm: i64,
    pub(crate) segment_bytes: u64,
    pub(crate) snapshot_bytes: u64,
    pub(crate) retention: Retention,
    /// Queues that may have tasks at one time.
    pub(crate) queues_max: usize,
    pub(crate) queue_max: usize,
    pub(crate) polls_max: usize,
    /// Whether every start has settings of its own: how long workers may serve shards, how much journal is written before
    /// a snapshot is taken, how long a leader lease lasts. Those of the plan are the longest.
    pub(crate) changing: bool,
    /// Workers that divide shards, if there are any.
    pub(crate) shards: Option<ShardPlan>,
}

/// What is drawn for callers who hang up, from a generator of its own.
pub(crate) const IMPATIENCE: u64 = 0x00c0_ffee;
/// Likewise for how long keys are remembered.
const FORGETTING: u64 = 0x6b65_7973;
/// Likewise for how many queues there may be.
const CROWD: u64 = 0x6372_6f77;

/// What is drawn for settings that change, from a generator of its own.
const SETTINGS: u64 = 0x5e77_1266;

impl Plan {
    /// Draws a plan. In one world of four callers hang up and ask again while the group that their call was decided in is
    /// open: syncs are slow there.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let (mut plan, mut rng) = (Self::patient(seed), Rng::new(seed ^ IMPATIENCE));
        plan.forget_keys(seed);
        plan.crowd_queues(seed);
        plan.changing = Self::draw_changing(seed) && !plan.calm;
        if !plan.calm && rng.chance(250_000) {
            plan.hang_ups = u32::try_from(rng.range(50_000, 500_000)).unwrap_or(0);
            plan.slow_disk = plan.slow_disk.max(300_000);
        }
        plan
    }

    /// Draws a plan. One world in ten has no faults and is larger; the others have about half of the faults each,
    /// at rates from rare to often.
    fn patient(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5eed);
        let calm = rng.chance(100_000);
        let large = if calm { 4 } else { 1 };
        let mut rate = |low: u64, high: u64| -> u32 {
            let drawn = rng.skewed(low, high);
            let on = rng.chance(500_000) && !calm;
            if on { u32::try_from(drawn).unwrap_or(u32::MAX) } else { 0 }
        };
        let (lost, doubled, slow) = (rate(1_000, 200_000), rate(1_000, 200_000), rate(1_000, 300_000));
        let (kills, power_losses, stops) = (rate(2_000, 200_000), rate(2_000, 200_000), rate(2_000, 100_000));
        let (freezes, jumps) = (rate(2_000, 200_000), rate(2_000, 200_000));
        let (full_disks, sync_failures, short_writes) =
            (rate(2_000, 50_000), rate(2_000, 50_000), rate(2_000, 50_000));
        let (worker_crashes, worker_freezes) = (rate(2_000, 200_000), rate(2_000, 200_000));
        let (failures, releases, poison) = (rate(5_000, 300_000), rate(5_000, 300_000), rate(1_000, 50_000));
        let slow_disk = rate(10_000, 900_000);
        let (late_reports, cancels) = (rate(10_000, 500_000), rate(5_000, 200_000));
        let tiny = rng.chance(100_000);
        Self {
            seed,
            calm,
            seconds: rng.skewed(20, 400) * large,
            submitters: usize::try_from(rng.skewed(1, 6)).unwrap_or(1),
            workers: usize::try_from(rng.skewed(1, 10)).unwrap_or(1),
            queues: usize::try_from(rng.skewed(1, 4)).unwrap_or(1),
            tasks: rng.skewed(10, 400) * large,
            lease_ms: if tiny { rng.range(50, 200) } else { rng.skewed(1_000, 30_000) },
            keyed: u32::try_from(rng.range(0, 1_000_000)).unwrap_or(0),
            lost,
            doubled,
            slow,
            hang_ups: 0,
            slow_disk,
            kills,
            power_losses,
            stops,
            freezes,
            jumps,
            full_disks,
            sync_failures,
            short_writes,
            worker_crashes,
            worker_freezes,
            failures,
            releases,
            poison,
            late_reports,
            cancels,
            server_drift_ppm: i64::try_from(rng.range(0, 1_000)).unwrap_or(0) - 500,
            worker_drift_ppm: i64::try_from(rng.range(0, 1_000)).unwrap_or(0) - 500,
            segment_bytes: rng.skewed(1_024, 64 << 10).next_multiple_of(512),
            snapshot_bytes: rng.skewed(200, 64 << 10),
            retention: Retention {
                done_ms: rng.skewed(1_000, 600_000),
                failed_ms: rng.skewed(1_000, 600_000),
                count: usize::try_from(rng.skewed(3, 300)).unwrap_or(3),
                ..Retention::default()
            },
            queues_max: QUEUES_MAX,
            queue_max: usize::try_from(rng.skewed(4, 512)).unwrap_or(4),
            polls_max: usize::try_from(rng.skewed(2, 64)).unwrap_or(2),
            changing: false,
            shards: None,
        }
    }

    /// Draws a plan of a world that is about shards: there are tasks too, but few. In one of ten nothing goes wrong but
    /// with workers.
    #[must_use]
    pub fn sharded(seed: u64) -> Self {
        let (mut plan, mut rng) = (Self::patient(seed), Rng::new(seed ^ 0x0dd5));
        plan.calm = false;
        (plan.submitters, plan.workers, plan.tasks) = (1, 1, rng.skewed(1, 20));
        plan.seconds = rng.skewed(40, 300);
        plan.queue_max = plan.queue_max.max(32);
        // A coordinator that never runs for the time of a worker ends none.
        for rate in [&mut plan.kills, &mut plan.power_losses, &mut plan.stops, &mut plan.freezes] {
            *rate /= 5;
        }
        plan.changing = Self::draw_changing(seed);
        let mut shards = ShardPlan::draw(seed, plan.server_drift_ppm);
        if rng.chance(100_000) {
            shards.make_calm();
            plan.without_server();
            plan.changing = false;
        } else if shards.has_sleepers() {
            plan.kills = plan.kills.max(u32::try_from(rng.range(20_000, 100_000)).unwrap_or(0));
        }
        plan.shards = Some(shards);
        plan
    }

    /// In some worlds keys are remembered for a short time, or only a few.
    fn forget_keys(&mut self, seed: u64) {
        let mut rng = Rng::new(seed ^ FORGETTING);
        if rng.chance(250_000) {
            self.retention.key_ms = rng.skewed(1_000, 600_000);
        }
        if rng.chance(250_000) {
            self.retention.keys = usize::try_from(rng.skewed(1, 200)).unwrap_or(1);
        }
    }

    /// In one world of eight there are tasks for more queues than may have some.
    fn crowd_queues(&mut self, seed: u64) {
        let mut rng = Rng::new(seed ^ CROWD);
        if rng.chance(125_000) {
            self.queues = 2 + rng.index(5);
            self.queues_max = 1 + rng.index(self.queues - 1);
        }
    }

    /// Leaves only what actors do: another world has other servers.
    pub(crate) fn without_server(&mut self) {
        (self.lost, self.doubled, self.slow, self.slow_disk) = (0, 0, 0, 0);
        (self.kills, self.power_losses, self.stops, self.freezes) = (0, 0, 0, 0);
        (self.jumps, self.full_disks, self.sync_failures, self.short_writes) = (0, 0, 0, 0);
        self.server_drift_ppm = 0;
    }

    /// The settings of a process: of this node, for the so many-th time.
    pub(crate) fn node(&self, node: usize, start: u32) -> Options {
        let mut rng = self.settings(node, start);
        let part = rng.range(1, 8);
        let lease_ms = |plan: &ShardPlan| {
            if self.changing { (plan.lease_ms / part).max(1_000) } else { plan.lease_ms }
        };
        let times = |plan: &ShardPlan| ShardTimes { lease_ms: lease_ms(plan), check_ms: lease_ms(plan) / 3 };
        let snapshot_bytes =
            if self.changing { rng.skewed(200, self.snapshot_bytes) } else { self.snapshot_bytes };
        Options {
            shards: self.shards.as_ref().map(times).unwrap_or_default(),
            retention: self.retention,
            queues_max: self.queues_max,
            queue_max: self.queue_max,
            polls_max: self.polls_max,
            snapshot_bytes,
            event_ring_bytes: 16 << 10,
            ..Options::default()
        }
    }

    /// How long the leader lease of a process lasts.
    pub(crate) fn ttl(&self, node: usize, start: u32, longest: Duration) -> Duration {
        let part = self.settings(node, start).fork().range(1, 4);
        let part = u32::try_from(part).unwrap_or(1);
        if self.changing { (longest / part).max(Duration::from_millis(300)).min(longest) } else { longest }
    }

    fn settings(&self, node: usize, start: u32) -> Rng {
        Rng::new(self.seed ^ SETTINGS ^ (node as u64) << 48 ^ u64::from(start) << 32)
    }

    /// Whether a world of this seed has settings that change: one in five.
    pub(crate) fn draw_changing(seed: u64) -> bool {
        Rng::new(seed ^ SETTINGS).chance(200_000)
    }

    pub(crate) fn files(&self) -> file::Options {
        file::Options { segment_bytes: Some(self.segment_bytes), prepare: Prepare::Inline }
    }
}
