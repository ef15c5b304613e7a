//! The lives of the processes of a world: how they start, stop, die, and refuse to go on.

use std::sync::Arc;

use orchestrix_engine::{Register, Shared};
use orchestrix_leadership::{Elector, Stands, Timing};
use orchestrix_node::{Clock, Failure, Following, HighWater, Options, Standby};

use crate::check::Violation;
use crate::cluster::clock::NodeClock;
use crate::cluster::coverage::ClusterCovered;
use crate::cluster::engine::Who;
use crate::cluster::handles::{Connection, lock};
use crate::cluster::happening::{Doing, Happening};
use crate::cluster::node::{Leading, Process, Trust};
use crate::cluster::record::Fact;
use crate::cluster::versions::candidate;
use crate::cluster::world::ClusterWorld;
use crate::world::{MS, SECOND};

impl ClusterWorld {
    pub(crate) fn start(&mut self, node: usize) -> Result<(), Violation> {
        let machine = &mut self.machines[node];
        if machine.process.is_some() {
            return Ok(());
        }
        machine.life += 1;
        let who = Who { node, life: machine.life };
        let reads = self.choose_version(who);
        let options = Options { reads, ..self.plan.options(node, who.life) };
        let machine = &mut self.machines[node];
        let high_water = HighWater::remembering(machine.written);
        let accepts_loss = std::mem::take(&mut machine.accepts_loss);
        if accepts_loss {
            high_water.accept_loss();
        }
        machine.plan.ttl = self.plan.actors.ttl(node, who.life, self.plan.nodes[node].ttl);
        let clock: Arc<NodeClock> = Arc::clone(&machine.clock);
        let following = Following::new(clock, high_water.clone(), &options);
        let engine = Connection::new(Arc::clone(&self.model), who, self.plan.poll_interval);
        let poll_interval = engine.poll_interval();
        let engine: Arc<dyn Shared> = Arc::new(engine);
        let mut standby = Standby::new(engine, options, following.clone());
        match standby.read_to_end() {
            Ok(_) => {}
            Err(failure) if failure.may_pass() => {
                let takes = self.rng.range(100 * MS, 2 * SECOND);
                self.push(self.now + takes, Happening::Start(node));
                return Ok(());
            }
            Err(failure) => return self.refused(node, &failure),
        }
        let written = machine.written.filter(|_| !accepts_loss);
        if let Some(mark) = written.filter(|mark| !lock(&self.model).has(mark)) {
            let what = format!("{who:?} has seen {mark:?} and follows a journal without it");
            return Err(Violation::new("W3", what));
        }
        let machine = &mut self.machines[node];
        let ttl = machine.plan.ttl;
        let timing = Timing { ttl, renew: ttl / 3, poll_interval, needs_proof: true };
        let mut elector = Elector::new(candidate(who), timing);
        elector.raise_epoch(standby.epoch());
        let trust = Arc::new(Trust::new(Arc::clone(&machine.clock)));
        machine.refused = false;
        let members = self.members(who);
        self.machines[node].process = Some(Process {
            elector,
            trust,
            standby,
            following,
            high_water,
            asking: None,
            leads: None,
            stopping: false,
            slept: false,
            unsure: false,
            members,
        });
        self.soon(who, Doing::Elect);
        self.soon(who, Doing::Look);
        Ok(())
    }

    /// A process does not go on: the engine has less than or something other than what it has seen.
    pub(crate) fn refused(&mut self, node: usize, failure: &Failure) -> Result<(), Violation> {
        let text = failure.to_string();
        self.tell(|| format!("  n{node} refuses: {text}"));
        if self.stops_as_old(node, &text)? {
            return Ok(());
        }
        if !self.plan.forgets {
            return Err(Violation::new(
                "W1",
                format!("n{node} refuses an engine that has lost nothing: {text}"),
            ));
        }
        self.coverage.add(ClusterCovered::DataLossNoticed);
        self.machines[node].refused = true;
        if self.machines[node].process.is_some() {
            self.die(node);
        }
        if self.faulty {
            let takes = self.rng.range(SECOND, 5 * SECOND);
            self.push(self.now + takes, Happening::Start(node));
        }
        Ok(())
    }

    /// Writes down what was seen of the journal: now and then, not at every batch.
    pub(crate) fn write_mark(&mut self, who: Who) {
        let mark = self.process(who).high_water.mark();
        let machine = &mut self.machines[who.node];
        machine.written = mark;
        machine.epoch_written = machine.epoch_written.max(mark.map_or(0, |mark| mark.epoch));
    }

    /// The process is gone without a word. What it sent is on its way.
    pub(crate) fn die(&mut self, node: usize) {
        let Some(who) = self.who(node) else { return };
        if let Some(epoch) = self.process(who).trust.token() {
            self.note(Fact::Distrusts { who, epoch });
        }
        self.machines[node].process = None;
        self.machines[node].frozen_until = 0;
        self.forget_pending(who);
    }

    /// Stops as it should: everyone is answered, everything is written, the leader lease is given back.
    pub(crate) fn stop(&mut self, who: Who) -> Result<(), Violation> {
        self.coverage.add(ClusterCovered::NodeStopped);
        if let Some(Leading { epoch, node, stepped, .. }) = self.process(who).leads.take() {
            // It may not reach the engine any more, or not be trusted: then it stops all the same.
            let _ = stepped.stop();
            self.note_direct(who, epoch)?;
            drop(node);
            self.take_answers_of(who, epoch)?;
            self.forget_pending(who);
            self.note(Fact::SteppedDown { who, epoch });
        }
        let now = self.machines[who.node].clock.boot();
        let process = self.process(who);
        process.stopping = true;
        process.elector.set_stands(Stands::No);
        process.elector.resign(now);
        self.write_mark(who);
        self.publish(who);
        self.soon(who, Doing::Elect);
        Ok(())
    }
}
