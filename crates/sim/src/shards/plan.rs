//! What a seed draws about shards: services, their workers, and what goes wrong with them.

use crate::rng::Rng;
use crate::shrink::{Rate, less, without_each};

/// How many shards a service has at most in a world.
const SHARDS_MAX: u64 = 24;

/// So many lengths of a right a worker is frozen at most, in most worlds.
const FROZEN: u64 = 2;

/// Shards of a world before it begins. Rates are per million: of messages, or per second and worker, as said.
#[derive(Clone, Debug)]
pub(crate) struct ShardPlan {
    /// How many workers each service has.
    pub(crate) services: Vec<usize>,
    /// Shards that a service begins with.
    pub(crate) count: u32,
    /// Milliseconds that a worker may serve after a heartbeat.
    pub(crate) lease_ms: u64,
    /// Parts per million that the clock of a worker is slow at most: against the fastest of all nodes it must not be
    /// more than 1 %.
    pub(crate) slowest_ppm: i64,
    /// Nothing goes wrong but with workers, and the first of each service has no trouble at all: then every shard is
    /// served again in time.
    pub(crate) calm: bool,

    /// Of messages.
    pub(crate) lost: u32,
    pub(crate) doubled: u32,
    pub(crate) late: u32,
    /// So many lengths of a right a message is late at most.
    pub(crate) latest: u64,
    /// Per second and worker.
    pub(crate) deaths: u32,
    pub(crate) freezes: u32,
    /// So many lengths of a right a worker is frozen at most.
    pub(crate) frozen: u64,
    pub(crate) leaves: u32,
    pub(crate) reconnects: u32,
    /// Another process of the same name comes.
    pub(crate) twins: u32,
    pub(crate) count_changes: u32,
    /// Of workers.
    pub(crate) plain: u32,
    pub(crate) limited: u32,
    /// Services, by their number, whose workers read only their first assignment.
    pub(crate) deaf: Vec<usize>,
    /// Services of which the first worker is like that.
    pub(crate) one_deaf: Vec<usize>,
    /// Milliseconds after which the next worker of a service comes; at any time in the beginning if none are said.
    pub(crate) apart_ms: Option<u64>,
    /// Milliseconds after which the last worker of each service comes; with the others if none.
    pub(crate) last_ms: u64,
    /// Milliseconds after which the operator sets the shard count of each service for the first time.
    pub(crate) ordered_ms: Option<u64>,
    /// What becomes of single messages, by their number.
    pub(crate) fates: Vec<(u64, Fate)>,
}

/// Two heartbeats of a worker that may serve for so long are at most so far apart, in milliseconds.
pub(crate) fn beat_ms(lease_ms: u64) -> u64 {
    lease_ms * 3 / 5
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Lost,
    /// It comes at once, and again when everything is over.
    Doubled,
    /// It comes when everything is over.
    Late,
}

const FAULTS: [Rate<ShardPlan>; 11] = [
    |plan| &mut plan.lost,
    |plan| &mut plan.doubled,
    |plan| &mut plan.late,
    |plan| &mut plan.deaths,
    |plan| &mut plan.freezes,
    |plan| &mut plan.leaves,
    |plan| &mut plan.reconnects,
    |plan| &mut plan.twins,
    |plan| &mut plan.count_changes,
    |plan| &mut plan.plain,
    |plan| &mut plan.limited,
];

impl ShardPlan {
    /// Draws a plan for nodes of which the fastest is so many parts per million fast.
    pub(crate) fn draw(seed: u64, fastest_ppm: i64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5a4d_0b0b);
        let mut rate = |low: u64, high: u64| -> u32 {
            let drawn = rng.skewed(low, high);
            let on = rng.chance(600_000);
            if on { u32::try_from(drawn).unwrap_or(u32::MAX) } else { 0 }
        };
        let (lost, doubled, late) = (rate(2_000, 300_000), rate(10_000, 300_000), rate(20_000, 300_000));
        let (deaths, freezes, leaves) = (rate(2_000, 50_000), rate(2_000, 80_000), rate(2_000, 50_000));
        let (reconnects, twins) = (rate(2_000, 50_000), rate(2_000, 50_000));
        let (count_changes, plain, limited) = (rate(1_000, 20_000), rate(50_000, 400_000), 200_000);
        let services = (0..rng.range(1, 3)).map(|_| 1 + rng.index(5)).collect();
        let mut plan = Self {
            services,
            count: u32::try_from(rng.range(1, SHARDS_MAX)).unwrap_or(1),
            lease_ms: rng.skewed(1_500, 15_000),
            // 1 + slow >= (1 + fast) / 1.01
            slowest_ppm: (1_000_000 + fastest_ppm) * 100 / 101 - 1_000_000 + 1,
            calm: false,
            lost,
            doubled,
            late,
            latest: 2,
            deaths,
            freezes,
            frozen: FROZEN,
            leaves,
            reconnects,
            twins,
            count_changes,
            plain,
            limited,
            deaf: Vec::new(),
            one_deaf: Vec::new(),
            apart_ms: None,
            last_ms: 0,
            ordered_ms: None,
            fates: Vec::new(),
        };
        plan.draw_duels(seed);
        plan.draw_deaf(seed);
        let mut rng = Rng::new(seed ^ 0x1a7e_5a4d);
        if rng.chance(150_000) {
            plan.last_ms = rng.range(5_000, 30_000);
        }
        plan.draw_orders(seed);
        plan.draw_sleepers(seed);
        plan
    }

    /// In one world of six the operator sets shard counts, and then workers with new names register.
    fn draw_orders(&mut self, seed: u64) {
        let mut rng = Rng::new(seed ^ 0x0de5_5a4d);
        if rng.chance(166_000) {
            let ordered_ms = rng.range(2_000, 8_000);
            self.ordered_ms = Some(ordered_ms);
            self.last_ms = ordered_ms + rng.range(1_000, 10_000);
            self.services.iter_mut().for_each(|workers| *workers = (*workers).max(2));
        }
    }

    /// In one world of ten, processes of one name replace each other all the time, while messages of before arrive.
    fn draw_duels(&mut self, seed: u64) {
        let mut rng = Rng::new(seed ^ 0xd0e1_5a4d);
        if rng.chance(100_000) {
            self.lease_ms = rng.skewed(1_500, 4_000);
            self.latest = 5;
            let mut rate = |low, high| u32::try_from(rng.range(low, high)).unwrap_or(u32::MAX);
            (self.twins, self.late) = (rate(50_000, 400_000), rate(50_000, 300_000));
        }
    }

    /// In one world of twelve, plain workers that name their sessions are frozen, and wake when another process of their
    /// name has joined and another node leads.
    fn draw_sleepers(&mut self, seed: u64) {
        let mut rng = Rng::new(seed ^ 0x51ee_5a4d);
        if rng.chance(83_000) {
            self.simplify();
            // The last worker of a service has a twin, and every second one names its session.
            self.services.iter_mut().for_each(|workers| *workers = if rng.chance(700_000) { 1 } else { 3 });
            (self.lease_ms, self.frozen) = (rng.skewed(1_500, 4_000), 6);
            let mut rate = |low, high| u32::try_from(rng.range(low, high)).unwrap_or(u32::MAX);
            (self.plain, self.twins, self.freezes) =
                (rate(500_000, 1_000_000), rate(100_000, 400_000), rate(50_000, 200_000));
        }
    }

    /// Whether workers are frozen for so long that leaders should change meanwhile.
    pub(crate) fn has_sleepers(&self) -> bool {
        self.frozen > FROZEN
    }

    fn draw_deaf(&mut self, seed: u64) {
        let mut rng = Rng::new(seed ^ 0xdeaf_5a4d);
        for service in 0..self.services.len() {
            if rng.chance(80_000) {
                self.deaf.push(service);
            } else if rng.chance(40_000) {
                self.one_deaf.push(service);
            }
        }
    }

    /// The same without any fault.
    pub(crate) fn without_faults(mut self) -> Self {
        self.simplify();
        FAULTS.iter().for_each(|rate| *rate(&mut self) = 0);
        self
    }

    fn simplify(&mut self) {
        (self.last_ms, self.ordered_ms) = (0, None);
        self.deaf.clear();
        self.one_deaf.clear();
    }

    /// Leaves only what happens to workers that do everything right.
    pub(crate) fn make_calm(&mut self) {
        self.simplify();
        self.calm = true;
        (self.lost, self.doubled, self.late, self.reconnects, self.twins) = (0, 0, 0, 0, 0);
        (self.count_changes, self.plain, self.limited, self.frozen) = (0, 0, 0, FROZEN);
        self.services.iter_mut().for_each(|workers| *workers = (*workers).max(2));
    }

    /// Two heartbeats of a worker are at most so far apart, in milliseconds.
    pub(crate) fn beat_ms(&self) -> u64 {
        beat_ms(self.lease_ms)
    }

    /// The same with one thing less, for each thing that can be less.
    pub(crate) fn easier(&self) -> Vec<Self> {
        let mut found = without_each(self, &FAULTS);
        let mut smaller = |change: &dyn Fn(&mut Self)| {
            let mut easier = self.clone();
            change(&mut easier);
            found.push(easier);
        };
        if !self.deaf.is_empty() || !self.one_deaf.is_empty() || self.last_ms > 0 {
            smaller(&Self::simplify);
        }
        if self.services.len() > 1 {
            smaller(&|plan| plan.services.truncate(1));
        }
        for service in 0..self.services.len() {
            if self.services[service] > 1 {
                smaller(&|plan| plan.services[service] -= 1);
            }
        }
        for count in less(self.count.into()) {
            smaller(&|plan| plan.count = u32::try_from(count).unwrap_or(1));
        }
        found
    }
}
