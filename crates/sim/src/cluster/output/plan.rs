//! What a seed draws about output: how workers write and readers read, and what becomes of appends on their way.

use crate::plan::Plan;
use crate::rng::Rng;
use crate::world::{MS, SECOND};

/// Output of a world before it begins. Rates are per million, of what is said.
#[derive(Clone, Debug)]
pub(crate) struct OutputPlan {
    pub(crate) used: bool,
    /// Of appends: lost, stored without an answer, and stored long after.
    pub(crate) lost: u32,
    pub(crate) unheard: u32,
    pub(crate) late: u32,
    /// Microseconds that an append is late at most.
    pub(crate) latest: u64,
    /// Of calls of the engine: they begin late.
    pub(crate) slow: u32,
    /// Of answers to workers.
    pub(crate) reply_lost: u32,
    /// Of appends: they begin with lines that have arrived already.
    pub(crate) repeats: u32,
    /// Microseconds between two times that workers write, at most.
    pub(crate) pause: u64,
    /// Microseconds that a worker waits for an answer before it sends its lines again.
    pub(crate) patience: u64,
    /// Of these times: a client reads; and likewise of appends that were acknowledged.
    pub(crate) reads: u32,
    pub(crate) reads_after: u32,
    /// Bytes of output that a task may have, if that is little; and whether each node takes another number.
    pub(crate) cap: Option<u64>,
    pub(crate) uneven: bool,
    /// Tasks go from one lease to the next while appends are late.
    pub(crate) hands_over: bool,
    /// Of seconds of each node: it freezes, often while lines are on their way to the engine.
    pub(crate) freezes: u32,
}

impl OutputPlan {
    /// Draws a plan from a generator of its own: two worlds of three have output; in one of three of these tasks
    /// change hands often, and in one of four leaders freeze while they store lines.
    pub(crate) fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x0eaf_1e55);
        let used = rng.chance(666_000);
        let mut rate = |high: u64| u32::try_from(rng.skewed(1_000, high)).unwrap_or(0);
        let (lost, unheard, late) = (rate(100_000), rate(200_000), rate(300_000));
        let (slow, reply_lost, repeats) = (rate(500_000), rate(300_000), rate(300_000));
        let cap = rng.chance(300_000).then(|| rng.skewed(8, 1_000));
        let mut plan = Self {
            used,
            lost,
            unheard,
            late,
            latest: 10 * SECOND,
            slow,
            reply_lost,
            repeats,
            pause: rng.skewed(30 * MS, 500 * MS),
            patience: rng.skewed(200 * MS, 20 * SECOND),
            reads: u32::try_from(rng.range(100_000, 900_000)).unwrap_or(0),
            reads_after: u32::try_from(rng.range(0, 700_000)).unwrap_or(0),
            cap,
            uneven: rng.chance(300_000),
            hands_over: rng.chance(333_000),
            freezes: 0,
        };
        // Nothing but the cap keeps lines out: then every one that is dropped is counted.
        if plan.cap.is_some() && rng.chance(400_000) {
            (plan.lost, plan.unheard, plan.late) = (0, 0, 0);
        }
        if plan.hands_over {
            plan.late = u32::try_from(rng.range(50_000, 300_000)).unwrap_or(0);
            plan.pause = rng.range(30 * MS, 150 * MS);
        }
        if rng.chance(250_000) {
            plan.freezes = u32::try_from(rng.range(50_000, 150_000)).unwrap_or(0);
            plan.slow = u32::try_from(rng.range(300_000, 700_000)).unwrap_or(0);
            plan.patience = rng.range(5 * SECOND, 30 * SECOND);
            plan.reads = plan.reads.max(500_000);
        }
        plan
    }

    /// Leases are short, and workers often give back what they have.
    pub(crate) fn hand_over(&mut self, seed: u64, actors: &mut Plan) {
        let mut rng = Rng::new(seed ^ 0x0eaf_1e55).fork();
        actors.lease_ms = rng.range(1_000, 4_000);
        self.latest = 2 * actors.lease_ms * MS;
        actors.releases = actors.releases.max(u32::try_from(rng.range(200_000, 600_000)).unwrap_or(0));
    }

    /// Bytes of output that a node stores of each task, if that is little.
    pub(crate) fn cap(&self, node: usize) -> Option<u64> {
        self.cap.map(|cap| if self.uneven { cap << (node % 3) } else { cap })
    }
}
