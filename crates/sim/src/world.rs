//! One world: an ordered heap of things that happen, a server, a network, and actors.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use orchestrix_core::{LeaseId, Name, Position, TaskId};
use orchestrix_engine::disk::sim::{Counts, Faults, SimDisk};
use orchestrix_node::Error;

use crate::actors::{Actor, Ground, Heard, actors};
use crate::check::{self, Violation};
use crate::clock::SimClock;
use crate::coverage::{Coverage, Covered};
use crate::history::{Answer, Execution, History, Question};
use crate::plan::{IMPATIENCE, Plan};
use crate::rng::Rng;
use crate::server::{Mirror, Process, counted};
use crate::shards::check as shards;
use crate::shards::record::Record;
use crate::shards::{ShardCoverage, rest};
use crate::trace::{Trace, Tracing};

/// Microseconds.
pub(crate) const MS: u64 = 1_000;
pub(crate) const SECOND: u64 = 1_000 * MS;
/// Things that happen in one world at most, and in each second of a long one: workers may ask every millisecond. A world
/// that goes on and on is a bug too.
const STEPS_MAX: u64 = 3_000_000;
const STEPS_OF_A_SECOND: u64 = 10_000;
/// Seconds of a world without faults after which everything must be at rest.
const REST_SECONDS: u64 = 4_000;

/// A run of one seed.
pub struct World {
    pub(crate) plan: Plan,
    pub(crate) rng: Rng,
    /// Who hangs up, and when.
    pub(crate) impatience: Rng,
    /// Microseconds since the beginning.
    pub(crate) now: u64,
    /// Whether things still go wrong.
    pub(crate) faulty: bool,
    pub(crate) happenings: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    pub(crate) order: u64,
    pub(crate) steps: u64,
    pub(crate) disk: SimDisk,
    /// What the disk had done when its faults were last counted.
    pub(crate) faults_seen: Counts,
    pub(crate) clock: Arc<SimClock>,
    pub(crate) server: Option<Process>,
    pub(crate) starts: u32,
    pub(crate) frozen_until: u64,
    pub(crate) decide_at: Option<u64>,
    /// When each actor is woken next.
    pub(crate) wakes: Vec<Option<u64>>,
    pub(crate) mirror: Mirror,
    /// Whether the state was compared since the last start.
    pub(crate) compared: bool,
    pub(crate) pending: BTreeMap<u64, Pending>,
    pub(crate) next_pending: u64,
    pub(crate) actors: Vec<Actor>,
    pub(crate) ops: Vec<Op>,
    pub(crate) history: History,
    pub(crate) coverage: Coverage,
    /// Shards were looked at when they had to be at rest.
    pub(crate) shards_rested: bool,
    pub(crate) trace: Trace,
    pub(crate) listing: Option<Vec<String>>,
}

/// How a world ended.
#[derive(Debug)]
pub struct Ended {
    pub seed: u64,
    pub violations: Vec<Violation>,
    pub coverage: Coverage,
    pub shards: ShardCoverage,
    /// Messages between workers of services and the coordinator while things could go wrong.
    pub shard_messages: u64,
    /// Depends on everything that happened.
    pub trace: [u8; 32],
    /// Simulated time.
    pub seconds: u64,
    pub calls: u64,
    /// The last things that happened, if asked for.
    pub listing: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Happening {
    /// The server decides a round.
    Decide,
    /// The disk has done what the writer asked for.
    Written,
    SnapshotWritten,
    /// A question of an op arrives at the server.
    Arrive(usize),
    /// An answer arrives at the actor of its op.
    Answered(usize, usize),
    GiveUp(usize),
    /// The actor of an op closes its connection.
    HangUp(usize),
    Wake(usize),
    /// Once a second: what goes wrong now?
    Nemesis,
    Start,
    /// A loss of power at any moment.
    PowerLoss,
    FaultsEnd,
}

/// A question that is with the server.
pub(crate) struct Pending {
    pub(crate) op: usize,
    pub(crate) future: Pin<Box<dyn Future<Output = Result<Answer, Error>>>>,
}

/// What an actor asked, until it has an answer or gives up.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) actor: usize,
    pub(crate) question: Question,
    pub(crate) sent: u64,
    pub(crate) durable_before: Position,
    pub(crate) done: bool,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("plan", &self.plan).field("now", &self.now).finish_non_exhaustive()
    }
}

impl World {
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        let mut rng = Rng::new(plan.seed);
        let disk = SimDisk::new(rng.next());
        let clock = Arc::new(SimClock::new(plan.server_drift_ppm, disk.clone()));
        let actors = actors(&plan, &mut rng);
        Self {
            rng,
            impatience: Rng::new(plan.seed ^ IMPATIENCE).fork(),
            now: 0,
            faulty: true,
            happenings: BinaryHeap::new(),
            order: 0,
            steps: 0,
            faults_seen: disk.counts(),
            disk,
            clock,
            server: None,
            starts: 0,
            frozen_until: 0,
            decide_at: None,
            wakes: vec![None; actors.len()],
            mirror: Mirror::new(),
            compared: false,
            pending: BTreeMap::new(),
            next_pending: 0,
            actors,
            ops: Vec::new(),
            history: History {
                calm: plan.calm,
                retention: Some(plan.retention),
                queues_max: Some(plan.queues_max),
                ..History::default()
            },
            coverage: Coverage::default(),
            shards_rested: false,
            trace: Trace::new(Tracing::Hashed),
            listing: None,
            plan,
        }
    }

    /// Whether the hash of the trace is computed; without this it is.
    #[must_use]
    pub fn traced(mut self, tracing: Tracing) -> Self {
        self.trace = Trace::new(tracing);
        self
    }

    /// Keeps what happens, to be read by people.
    #[must_use]
    pub fn telling(mut self) -> Self {
        self.listing = Some(Vec::new());
        self
    }

    /// Runs to the end: a phase with faults, then one without, in which everything must come to rest.
    #[must_use]
    pub fn run(mut self) -> Ended {
        self.push(0, Happening::Start);
        self.push(SECOND, Happening::Nemesis);
        self.push(self.plan.seconds * SECOND, Happening::FaultsEnd);
        for actor in 0..self.actors.len() {
            let after = self.rng.range(0, 100 * MS);
            self.wake_after(actor, after);
        }
        let mut violations = Vec::new();
        if let Err(violation) = self.go_on() {
            violations.push(violation);
        }
        for actor in 0..self.actors.len() {
            let mut acting = self.actors[actor].take();
            acting.end(&mut self);
        }
        let open: Vec<usize> = self.pending.values().map(|pending| pending.op).collect();
        self.unanswered(open);
        self.history.log = std::mem::take(&mut self.mirror.log);
        if violations.is_empty() {
            violations = check::check(&self.history, &mut self.coverage);
        }
        let shards = self.plan.shards.as_ref().map(|plan| shards::check(&mut self.history, plan));
        violations.extend(shards.into_iter().flatten());
        Ended {
            seed: self.plan.seed,
            violations,
            trace: self.trace.hash(),
            seconds: self.now / SECOND,
            calls: self.history.calls.len() as u64,
            coverage: self.coverage,
            shard_messages: self.history.shards.messages,
            shards: self.history.shards.coverage,
            listing: self.listing.unwrap_or_default(),
        }
    }

    fn go_on(&mut self) -> Result<(), Violation> {
        while let Some(Reverse((at, _, happening))) = self.happenings.pop() {
            self.steps += 1;
            let most = STEPS_MAX.max(self.plan.seconds * STEPS_OF_A_SECOND);
            if self.steps > most {
                return Err(Violation::new("TL2", format!("the world goes on after {most} steps")));
            }
            self.now = self.now.max(at);
            self.clock.set(self.now);
            self.trace.add(format_args!("{at} {happening:?}\n"));
            if let Some(listing) = &mut self.listing {
                listing.push(format!("{at:>12} {happening:?}"));
            }
            self.happen(happening)?;
            if !self.faulty && self.is_at_rest() {
                return self.rest();
            }
            self.shards_are_due()?;
            if self.now > (self.plan.seconds + REST_SECONDS) * SECOND {
                return Err(Violation::new("TL2", self.why_no_rest()));
            }
        }
        Ok(())
    }

    fn happen(&mut self, happening: Happening) -> Result<(), Violation> {
        match happening {
            Happening::Decide => {
                // One that was put off is not this one.
                if self.decide_at.is_some_and(|at| at <= self.now) {
                    self.decide_at = None;
                    self.decide()?;
                }
            }
            Happening::Written => self.write()?,
            Happening::SnapshotWritten if self.now < self.frozen_until => {
                self.push(self.frozen_until, Happening::SnapshotWritten);
            }
            Happening::SnapshotWritten => {
                if let Some(server) = &mut self.server {
                    server.stepped.write_snapshot();
                }
                self.decide_after(1);
            }
            Happening::Arrive(op) => self.arrive(op),
            Happening::Answered(op, call) => {
                // A worker of a service gets every answer, however late.
                if !self.ops[op].done || self.ops[op].question.is_about_shards() {
                    self.ops[op].done = true;
                    let heard = Heard::Answer(self.history.calls[call].answer.clone());
                    self.tell(op, heard);
                }
            }
            Happening::GiveUp(op) => {
                if !self.ops[op].done {
                    if self.plan.calm {
                        let what =
                            format!("nobody answers {:?} where nothing goes wrong", self.ops[op].question);
                        return Err(Violation::new("TL1", what));
                    }
                    self.ops[op].done = true;
                    self.tell(op, Heard::Nothing);
                }
            }
            Happening::HangUp(op) => {
                if self.faulty && !self.ops[op].done {
                    self.coverage.add(Covered::HungUp);
                    self.ops[op].done = true;
                    self.stop_listening(op);
                    self.tell_actor(op, Heard::Nothing);
                }
            }
            Happening::Wake(actor) => {
                // One that was put off is not this one.
                if self.wakes[actor].is_some_and(|at| at <= self.now) {
                    self.wakes[actor] = None;
                    self.wake(actor);
                }
            }
            Happening::Nemesis => {
                if self.faulty {
                    self.nemesis()?;
                    self.push(self.now + SECOND, Happening::Nemesis);
                }
            }
            Happening::Start => self.start()?,
            Happening::PowerLoss => {
                if self.faulty {
                    self.lose_power()?;
                }
            }
            Happening::FaultsEnd => {
                self.faulty = false;
                self.see_faults();
                self.disk.set_faults(Faults::default());
                self.frozen_until = 0;
                if self.server.is_none() {
                    self.start()?;
                }
                // A start has read what the process before it has written.
                // What it decided before, and has not written yet, it decided among faults.
                let decided = self.server.as_ref().map(|server| server.stepped.state().position());
                self.history.healed = decided.max(Some(self.mirror.durable()));
                for actor in 0..self.actors.len() {
                    self.wake_after(actor, 1);
                }
                self.decide_after(1);
            }
        }
        Ok(())
    }

    fn tell(&mut self, op: usize, heard: Heard) {
        // An actor whose connection is gone does not listen to another answer.
        if matches!(heard, Heard::Nothing) && self.rng.chance(500_000) {
            self.stop_listening(op);
        }
        self.tell_actor(op, heard);
    }

    fn stop_listening(&mut self, op: usize) {
        let before = self.pending.len();
        self.pending.retain(|_, pending| pending.op != op);
        self.unanswered(std::iter::repeat_n(op, before - self.pending.len()));
    }

    fn tell_actor(&mut self, op: usize, heard: Heard) {
        let actor = self.ops[op].actor;
        let mut acting = self.actors[actor].take();
        acting.hear(self, actor, op, heard);
        self.actors[actor] = acting;
    }

    fn wake(&mut self, actor: usize) {
        let mut acting = self.actors[actor].take();
        acting.wake(self, actor);
        self.actors[actor] = acting;
    }

    pub(crate) fn decide_after(&mut self, us: u64) {
        let at = self.now + us;
        if self.decide_at.is_none_or(|planned| at < planned) {
            self.decide_at = Some(at);
            self.push(at, Happening::Decide);
        }
    }

    pub(crate) fn push(&mut self, at: u64, happening: Happening) {
        self.order += 1;
        self.happenings.push(Reverse((at, self.order, happening)));
    }

    pub(crate) fn see(&mut self, happened: bool, item: Covered) {
        if happened {
            self.coverage.add(item);
        }
    }

    fn is_at_rest(&self) -> bool {
        let state = &self.mirror.state;
        self.actors.iter().all(Actor::is_done)
            && state.lease_count() == 0
            && state.queues().all(|queue| queue.all.waiting == 0 && queue.all.leased == 0)
            && self.kept() <= 2 * self.plan.retention.count as u64
            && (self.plan.shards.is_none() || rest::unrest(state, &self.actors).is_none())
    }

    /// HL1: when nothing has gone wrong for long, every shard is served.
    fn shards_are_due(&mut self) -> Result<(), Violation> {
        let Some(plan) = self.plan.shards.as_ref().filter(|_| !self.faulty) else { return Ok(()) };
        if self.now < self.plan.seconds * SECOND + rest::bound_us(plan) || self.shards_rested {
            return Ok(());
        }
        self.shards_rested = true;
        let unrest = rest::unrest(&self.mirror.state, &self.actors);
        unrest.map_or(Ok(()), |what| Err(Violation::new("HL1", what)))
    }

    /// Tasks that have ended and are still there.
    fn kept(&self) -> u64 {
        let all = self.mirror.state.queues().map(|queue| queue.all);
        all.map(|all| all.completed + all.failed + all.cancelled).sum()
    }

    fn why_no_rest(&self) -> String {
        let waiting: u64 = self.mirror.state.queues().map(|queue| queue.all.waiting).sum();
        let leased = self.mirror.state.lease_count();
        let busy = self.actors.iter().filter(|actor| !actor.is_done()).count();
        let kept = self.kept();
        format!(
            "after {REST_SECONDS} s without faults {waiting} tasks wait, {leased} are leased, {busy} actors are busy, \
             {kept} that have ended are kept"
        )
    }

    /// The end of a world at rest: everything is compared once more.
    fn rest(&mut self) -> Result<(), Violation> {
        self.note_snapshots();
        self.history.shards.rested_us = Some(self.now);
        let Some(server) = &self.server else { return Ok(()) };
        if server.stepped.state().position() == self.mirror.durable() {
            self.history.counted.push(counted(&server.node, server.after));
        }
        self.mirror.compare_state(server)
    }
}

impl Ground for World {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn faulty(&self) -> bool {
        self.faulty
    }

    fn op(&self, op: usize) -> &Op {
        &self.ops[op]
    }

    fn ask(&mut self, actor: usize, question: Question) -> usize {
        self.send(actor, question)
    }

    fn close(&mut self, process: usize) {
        let is_its = |op: usize| self.ops[op].question.is_of(process);
        let closed: Vec<u64> =
            self.pending.iter().filter(|(_, pending)| is_its(pending.op)).map(|(id, _)| *id).collect();
        let ops: Vec<usize> =
            closed.into_iter().filter_map(|id| self.pending.remove(&id)).map(|pending| pending.op).collect();
        self.unanswered(ops);
    }

    fn wake_after(&mut self, actor: usize, us: u64) {
        let at = self.now + us.max(1);
        if self.wakes[actor].is_none_or(|planned| at < planned) {
            self.wakes[actor] = Some(at);
            self.push(at, Happening::Wake(actor));
        }
    }

    fn see(&mut self, happened: bool, item: Covered) {
        Self::see(self, happened, item);
    }

    fn executed(&mut self, execution: Execution) {
        self.history.executions.push(execution);
    }

    fn shards(&mut self) -> &mut Record {
        &mut self.history.shards
    }

    fn lease_of_another(&self, worker: &Name) -> Option<(TaskId, LeaseId)> {
        self.mirror.lease_of_another(worker)
    }
}
