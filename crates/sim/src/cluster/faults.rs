//! Faults of nodes, their clocks and their engine.

use crate::check::Violation;
use crate::cluster::coverage::ClusterCovered;
use crate::cluster::engine::{Flavour, Who};
use crate::cluster::handles::lock;
use crate::cluster::happening::Happening;
use crate::cluster::record::Fact;
use crate::cluster::world::ClusterWorld;
use crate::server::Mirror;
use crate::world::{MS, SECOND};

impl ClusterWorld {
    pub(crate) fn nemesis(&mut self) -> Result<(), Violation> {
        for node in 0..self.machines.len() {
            self.trouble_node(node)?;
        }
        let plan = self.plan.clone();
        let ttl = self.record.ttl_us;
        if self.rng.chance(plan.engine_stalls) {
            self.coverage.add(ClusterCovered::EngineStalled);
            lock(&self.model).down = true;
            let takes = self.rng.skewed(10 * MS, 2 * ttl);
            self.push(self.now + takes, Happening::EngineUp);
        }
        if self.refusals.chance(plan.engine_refusals) {
            self.coverage.add(ClusterCovered::EngineRefused);
            lock(&self.model).refuses = true;
            let takes = self.refusals.skewed(10 * MS, 3 * ttl);
            self.push(self.now + takes, Happening::EngineWilling);
        }
        if plan.flavour == Flavour::Sql && self.refusals.chance(plan.engine_clocks) {
            self.coverage.add(ClusterCovered::EngineClockSetBack);
            let by = self.refusals.skewed(ttl / 10, 1_000 * ttl);
            lock(&self.model).set_back(by);
        }
        if self.rng.chance(plan.losses) {
            self.lose()?;
        }
        Ok(())
    }

    fn trouble_node(&mut self, node: usize) -> Result<(), Violation> {
        let plan = self.plan.clone();
        let ttl = u64::try_from(self.machines[node].plan.ttl.as_micros()).unwrap_or(u64::MAX);
        if self.rng.chance(plan.jumps) {
            self.coverage.add(ClusterCovered::ClockJump);
            let by = plan.jump_ms[self.rng.index(plan.jump_ms.len())];
            self.machines[node].clock.jump(if self.rng.chance(500_000) { by } else { -by });
        }
        if self.rng.chance(plan.cuts) {
            // Often everything takes long before nothing comes through any more.
            let slow = if self.rng.chance(500_000) { self.rng.range(ttl / 3, 2 * ttl) } else { 0 };
            self.machines[node].slow_until = self.now + slow;
            self.push(self.now + slow, Happening::Cut(node));
        }
        let Some(who) = self.who(node) else { return Ok(()) };
        if self.rng.chance(plan.freezes) {
            self.freeze(who);
        } else if self.rng.chance(plan.crashes) {
            self.crash(who);
        } else if self.rng.chance(plan.stops)
            && self.now >= self.machines[node].frozen_until
            && !self.process(who).stopping
        {
            self.stop(who)?;
        }
        Ok(())
    }

    /// A process stands still, for half of the time of a leader lease to ten times, wherever it is.
    pub(crate) fn freeze(&mut self, who: Who) {
        self.coverage.add(ClusterCovered::NodeFrozen);
        let ttl = u64::try_from(self.machines[who.node].plan.ttl.as_micros()).unwrap_or(u64::MAX);
        let takes = self.rng.skewed(ttl / 2, 10 * ttl);
        self.machines[who.node].frozen_until = self.now + takes;
        let leads = self.machines[who.node].acts().is_some();
        self.process(who).slept |= leads;
    }

    pub(crate) fn crash(&mut self, who: Who) {
        if !self.lives(who) || !self.faulty {
            return;
        }
        self.coverage.add(ClusterCovered::NodeCrashed);
        self.die(who.node);
        let takes = self.rng.range(10 * MS, 5 * SECOND);
        self.push(self.now + takes, Happening::Start(who.node));
    }

    pub(crate) fn cut(&mut self, node: usize) {
        if !self.faulty {
            return;
        }
        let takes = self.rng.skewed(10 * MS, 3 * self.record.ttl_us);
        if self.rng.chance(400_000) {
            self.coverage.add(ClusterCovered::RegisterMute);
            self.machines[node].mute_until = self.now + takes;
            return;
        }
        self.coverage.add(ClusterCovered::NodeCutOff);
        lock(&self.model).cut_off[node] = true;
        self.push(self.now + takes, Happening::Mended(node));
    }

    /// The engine forgets some or all of what it has acknowledged.
    fn lose(&mut self) -> Result<(), Violation> {
        let sleeps = self.machines.iter().any(|machine| self.now < machine.frozen_until);
        if self.rng.chance(150_000) {
            self.coverage.add(ClusterCovered::EngineWiped);
            lock(&self.model).wipe();
        } else if self.rng.chance(if sleeps { 700_000 } else { 200_000 }) {
            self.coverage.add(ClusterCovered::CellsForgotten);
            lock(&self.model).forget_cells();
            return Ok(());
        } else {
            self.coverage.add(ClusterCovered::EngineFailedOver);
            // Where there are heartbeats they are most of what is written.
            let most = if self.plan.versions.used { 400 } else { 40 };
            let writings = usize::try_from(self.rng.skewed(1, most)).unwrap_or(1);
            lock(&self.model).fail_over(writings);
        }
        self.mirror = Mirror::new();
        self.mirrored = 0;
        self.mirror_batches()?;
        let after = self.mirror.durable();
        self.note(Fact::Lost { after });
        Ok(())
    }

    /// The operator has seen that some nodes refuse, and lets all of them continue with the remaining data.
    pub(crate) fn accept_loss(&mut self) -> Result<(), Violation> {
        if self.machines.iter().all(|machine| !machine.refused) {
            return Ok(());
        }
        for node in 0..self.machines.len() {
            self.die(node);
            self.machines[node].accepts_loss = true;
            let takes = self.rng.range(MS, 100 * MS);
            self.push(self.now + takes, Happening::Start(node));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::cluster::plan::ClusterPlan;
    use crate::cluster::run_cluster_plan;

    #[test]
    fn a_node_that_is_frozen_when_faults_end_leads_soon_after() {
        for seed in 1..=20 {
            let mut plan = ClusterPlan::calm(seed, 120);
            (plan.calm, plan.freezes_within) = (false, 500_000);
            plan.nodes.truncate(1);
            plan.nodes[0].ttl = Duration::from_secs(8);
            assert_eq!(run_cluster_plan(plan).violations, [], "seed {seed}");
        }
    }
}
