//! One world with several nodes: an ordered heap of things that happen, an engine, nodes, and their clients.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::actors::{Actor, actors};
use crate::check::{self, Violation};
use crate::cluster::check as elections;
use crate::cluster::coverage::ClusterCoverage;
use crate::cluster::engine::{Model, Who};
use crate::cluster::handles::lock;
use crate::cluster::happening::{Doing, Happening, Pending};
use crate::cluster::hints::Hint;
use crate::cluster::node::Machine;
use crate::cluster::output::OutputWorld;
use crate::cluster::plan::ClusterPlan;
use crate::cluster::record::{Fact, Record};
use crate::cluster::requests::Request;
use crate::cluster::versions::Versions;
use crate::coverage::Coverage;
use crate::history::History;
use crate::plan::IMPATIENCE;
use crate::rng::Rng;
use crate::server::Mirror;
use crate::shards::check::check as shard_check;
use crate::shards::{ShardCoverage, rest};
use crate::trace::{Trace, Tracing};
use crate::world::{Op, SECOND};

/// Things that happen in one world at most, and in each second of a long one.
const STEPS_MAX: u64 = 3_000_000;
const STEPS_OF_A_SECOND: u64 = 200;
/// Seconds of a world without faults after which everything must be at rest.
const REST_SECONDS: u64 = 4_000;
/// How much longer than the longest leader lease it may take until there is a leader, in microseconds: delayed requests,
/// looks at the register, a term that begins.
const SLACK: u64 = 3 * SECOND;

/// A run of one seed.
pub struct ClusterWorld {
    pub(crate) plan: ClusterPlan,
    pub(crate) rng: Rng,
    /// When the engine refuses, apart from everything else.
    pub(crate) refusals: Rng,
    /// Who hangs up, and when.
    pub(crate) impatience: Rng,
    pub(crate) now: u64,
    /// The same, for the clocks.
    pub(crate) time: Arc<AtomicU64>,
    pub(crate) faulty: bool,
    happenings: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    order: u64,
    steps: u64,
    pub(crate) model: Arc<Mutex<Model>>,
    pub(crate) machines: Vec<Machine>,
    pub(crate) requests: BTreeMap<u64, Request>,
    pub(crate) next_request: u64,
    /// When each attempt at the leader lease was first made, on the clock of who made it, and what that one led then.
    pub(crate) first_asked: BTreeMap<Vec<u8>, (Duration, Option<u64>)>,
    pub(crate) mirror: Mirror,
    /// Batches of the journal that the mirror has.
    pub(crate) mirrored: usize,
    pub(crate) hints: BTreeMap<u64, Hint>,
    pub(crate) next_hint: u64,
    pub(crate) pending: BTreeMap<u64, Pending>,
    pub(crate) next_pending: u64,
    pub(crate) actors: Vec<Actor>,
    pub(crate) wakes: Vec<Option<u64>>,
    pub(crate) ops: Vec<Op>,
    pub(crate) history: History,
    pub(crate) record: Record,
    pub(crate) task_coverage: Coverage,
    pub(crate) coverage: ClusterCoverage,
    /// When there was a leader after the faults had ended.
    pub(crate) settled: Option<u64>,
    pub(crate) last_elected: Option<(u64, Who, u64)>,
    /// Shards were looked at when they had to be at rest.
    shards_rested: bool,
    trace: Trace,
    pub(crate) listing: Option<Vec<String>>,
    pub(crate) output: OutputWorld,
    pub(crate) versions: Versions,
}

/// How a world ended.
#[derive(Debug)]
pub struct ClusterEnded {
    pub seed: u64,
    pub violations: Vec<Violation>,
    pub coverage: ClusterCoverage,
    pub shards: ShardCoverage,
    /// Depends on everything that happened.
    pub trace: [u8; 32],
    /// Simulated time.
    pub seconds: u64,
    pub calls: u64,
    /// The last things that happened, if asked for.
    pub listing: Vec<String>,
}

impl std::fmt::Debug for ClusterWorld {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterWorld")
            .field("plan", &self.plan)
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

impl ClusterWorld {
    #[must_use]
    pub fn new(plan: ClusterPlan) -> Self {
        let mut rng = Rng::new(plan.seed);
        let time = Arc::new(AtomicU64::new(0));
        let mut model = Model::new(plan.flavour, plan.nodes.len(), plan.forgets, rng.fork());
        model.flaky = plan.unsent;
        let actors = actors(&plan.actors, &mut rng);
        let ttl_us = u64::try_from(plan.longest_ttl().as_micros()).unwrap_or(u64::MAX);
        Self {
            rng,
            refusals: Rng::new(plan.seed ^ 0x5a15_0e50),
            impatience: Rng::new(plan.seed ^ IMPATIENCE).fork(),
            now: 0,
            faulty: true,
            happenings: BinaryHeap::new(),
            order: 0,
            steps: 0,
            model: Arc::new(Mutex::new(model)),
            machines: plan.nodes.iter().map(|node| Machine::new(*node, &time)).collect(),
            time,
            requests: BTreeMap::new(),
            next_request: 0,
            first_asked: BTreeMap::new(),
            hints: BTreeMap::new(),
            next_hint: 0,
            mirror: Mirror::new(),
            mirrored: 0,
            pending: BTreeMap::new(),
            next_pending: 0,
            wakes: vec![None; actors.len()],
            actors,
            ops: Vec::new(),
            history: History {
                retention: Some(plan.actors.retention),
                queues_max: Some(plan.actors.queues_max),
                ..History::default()
            },
            record: Record { forgets: plan.forgets, calm: plan.calm, ttl_us, ..Record::default() },
            task_coverage: Coverage::default(),
            coverage: ClusterCoverage::default(),
            settled: None,
            last_elected: None,
            shards_rested: false,
            trace: Trace::new(Tracing::Hashed),
            listing: None,
            output: OutputWorld::new(&plan),
            versions: Versions::new(plan.seed),
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
    pub fn run(mut self) -> ClusterEnded {
        for node in 0..self.machines.len() {
            let after = self.rng.range(0, 50_000);
            self.push(after, Happening::Start(node));
        }
        self.push(SECOND, Happening::Nemesis);
        if self.output.is_used() {
            let plan = &self.plan.output;
            let mut model = lock(&self.model);
            model.output.faults = [plan.lost, plan.unheard, plan.late];
            model.output.rng = Rng::new(self.plan.seed ^ 0x0075_7075);
            drop(model);
            self.push(1, Happening::Write);
        }
        self.push(self.plan.seconds * SECOND, Happening::FaultsEnd);
        for actor in 0..self.actors.len() {
            let at = self.rng.range(1, 100_000);
            self.wakes[actor] = Some(at);
            self.push(at, Happening::Wake(actor));
        }
        let mut violations: Vec<Violation> = self.go_on().err().into_iter().collect();
        violations.extend(elections::check(&self.record));
        for actor in 0..self.actors.len() {
            let mut acting = self.actors[actor].take();
            acting.end(&mut self);
        }
        if !self.plan.forgets {
            let open: Vec<usize> = self.pending.values().map(|pending| pending.op).collect();
            self.unanswered(open);
            self.history.log = std::mem::take(&mut self.mirror.log);
            violations.extend(check::check(&self.history, &mut self.task_coverage));
            let shards = self.plan.actors.shards.as_ref();
            violations.extend(shards.into_iter().flat_map(|plan| shard_check(&mut self.history, plan)));
        }
        ClusterEnded {
            seed: self.plan.seed,
            violations,
            trace: self.trace.hash(),
            seconds: self.now / SECOND,
            calls: self.history.calls.len() as u64,
            coverage: self.coverage,
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
            self.time.store(self.now, Relaxed);
            lock(&self.model).tick(self.now);
            self.trace.add(format_args!("{at} {happening:?}\n"));
            self.tell(|| format!("{happening:?}"));
            self.happen(happening)?;
            if self.is_over()? {
                self.history.shards.rested_us = Some(self.now);
                self.snapshot_is_taken()?;
                return self.compare_all();
            }
            self.shards_are_due()?;
        }
        Ok(())
    }

    fn happen(&mut self, happening: Happening) -> Result<(), Violation> {
        match happening {
            Happening::At(who, doing) | Happening::PutOff(who, doing) => self.at(who, doing)?,
            Happening::Arrive(request) => self.arrive(request)?,
            Happening::Deliver(op) => self.deliver(op),
            Happening::Answered(op, call) => self.answer_arrives(op, call),
            Happening::Refused(op) => self.refusal_arrives(op),
            Happening::GiveUp(op) => self.give_up(op),
            Happening::HangUp(op) => self.hang_up(op),
            Happening::Wake(actor) => self.wake(actor),
            Happening::Write => self.write_output(),
            Happening::LateOutput(number) => self.late_output(number),
            Happening::Nemesis => {
                if self.faulty {
                    self.nemesis()?;
                    self.push(self.now + SECOND, Happening::Nemesis);
                }
            }
            Happening::Start(node) => self.start(node)?,
            Happening::Crash(who) => self.crash(who),
            Happening::Cut(node) => self.cut(node),
            Happening::Mended(node) => lock(&self.model).cut_off[node] = false,
            Happening::EngineUp => lock(&self.model).down = false,
            Happening::EngineWilling => lock(&self.model).refuses = false,
            Happening::FaultsEnd => self.faults_end(),
            Happening::Accepted => self.accept_loss()?,
            Happening::LeaderDue => self.leader_is_due()?,
        }
        Ok(())
    }

    /// A process does something, unless it is gone; one that is frozen does it when it wakes.
    fn at(&mut self, who: Who, doing: Doing) -> Result<(), Violation> {
        let machine = &self.machines[who.node];
        if machine.life != who.life || machine.process.is_none() {
            return Ok(());
        }
        let until = machine.frozen_until;
        let is_call = matches!(doing, Doing::CallOutput(_));
        if self.now + u64::from(is_call) < until {
            let at = if is_call { self.thawed_output(until) } else { until };
            self.push(at, Happening::PutOff(who, doing));
            return Ok(());
        }
        match doing {
            Doing::Elect => self.elect(who),
            Doing::Hear(request) => self.hear(who, request)?,
            Doing::Look => self.look(who)?,
            Doing::Hint(number) => self.hint(who, number)?,
            Doing::Begin(epoch) => self.begin(who, epoch)?,
            Doing::StepDown(epoch) => self.step_down(who, epoch)?,
            Doing::Decide => self.decide(who)?,
            Doing::Send => self.send_batch(who)?,
            Doing::WriteSnapshot => self.write_snapshot(who),
            Doing::Question(op) => self.question(who, op),
            Doing::Output(number) => self.output_arrives(who, number),
            Doing::CallOutput(number) => self.call_output(who, number)?,
            Doing::Member(duty) => self.does_duty(who, duty)?,
        }
        Ok(())
    }

    /// The faults end: every node runs and is connected.
    fn faults_end(&mut self) {
        self.faulty = false;
        self.record.note(self.now, Fact::Healed);
        {
            let mut model = lock(&self.model);
            (model.down, model.refuses, model.flaky) = (false, false, 0);
            model.output.faults = [0; 3];
            model.cut_off.fill(false);
        }
        self.wake_frozen();
        for node in 0..self.machines.len() {
            if self.machines[node].process.is_none() {
                self.push(self.now + 1, Happening::Start(node));
            } else if let Some(who) = self.who(node) {
                self.soon(who, Doing::Elect);
                self.soon(who, Doing::Look);
            }
        }
        for actor in 0..self.actors.len() {
            self.wakes[actor] = Some(self.now + 1);
            self.push(self.now + 1, Happening::Wake(actor));
        }
        let mut due = self.now + 4 * self.record.ttl_us + SLACK;
        if self.plan.forgets {
            // Time to notice, then the operator accepts it.
            let accepted = self.now + 2 * self.record.ttl_us + SLACK;
            self.push(accepted, Happening::Accepted);
            due += accepted - self.now;
        }
        self.push(due, Happening::LeaderDue);
    }

    /// All freezes end: delayed steps are done now, in the same order. One that waits for an answer that it
    /// has would stand still until the time for which it was to be frozen is over.
    fn wake_frozen(&mut self) {
        self.machines.iter_mut().for_each(|machine| machine.frozen_until = 0);
        let now = self.now;
        let woken = |Reverse((at, order, happening))| {
            let is_put_off = matches!(happening, Happening::PutOff(..));
            Reverse((if is_put_off { now } else { at }, order, happening))
        };
        self.happenings = std::mem::take(&mut self.happenings).into_iter().map(woken).collect();
    }

    /// EL1: there is one leader by now. EL3: it stays.
    fn leader_is_due(&mut self) -> Result<(), Violation> {
        let leaders = self.machines.iter().filter(|machine| machine.acts().is_some()).count();
        if leaders != 1 {
            let what = format!("{leaders} nodes lead when nothing has gone wrong for long");
            return Err(Violation::new("EL1", what));
        }
        self.settled = Some(self.now);
        self.push(self.now + 10 * self.record.ttl_us, Happening::EngineUp);
        Ok(())
    }

    fn is_over(&self) -> Result<bool, Violation> {
        if self.now > (self.plan.seconds + REST_SECONDS) * SECOND {
            return Err(Violation::new("TL2", self.why_no_rest()));
        }
        let Some(settled) = self.settled else { return Ok(false) };
        let changed = self.last_elected.filter(|(at, ..)| *at > settled);
        if let Some((_, who, epoch)) = changed {
            let what = format!("{who:?} was elected in {epoch} where nothing goes wrong");
            return Err(Violation::new("EL3", what));
        }
        Ok(self.now >= settled + 10 * self.record.ttl_us
            && (self.plan.forgets || self.is_at_rest() && self.output.is_read()))
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        let state = &self.mirror.state;
        self.actors.iter().all(Actor::is_done)
            && state.lease_count() == 0
            && state.queues().all(|queue| queue.all.waiting == 0 && queue.all.leased == 0)
            && (self.plan.actors.shards.is_none() || rest::unrest(state, &self.actors).is_none())
    }

    /// HL1: when there has been a leader for long, every shard is served.
    fn shards_are_due(&mut self) -> Result<(), Violation> {
        let (Some(plan), Some(settled)) = (&self.plan.actors.shards, self.settled) else { return Ok(()) };
        if self.shards_rested || self.now < settled + rest::bound_us(plan) {
            return Ok(());
        }
        self.shards_rested = true;
        let unrest = rest::unrest(&self.mirror.state, &self.actors);
        unrest.map_or(Ok(()), |what| Err(Violation::new("HL1", what)))
    }

    fn why_no_rest(&self) -> String {
        let waiting: u64 = self.mirror.state.queues().map(|queue| queue.all.waiting).sum();
        let leased = self.mirror.state.lease_count();
        let busy = self.actors.iter().filter(|actor| !actor.is_done()).count();
        format!(
            "after {REST_SECONDS} s without faults {waiting} tasks wait, {leased} are leased, {busy} actors are busy"
        )
    }

    pub(crate) fn push(&mut self, at: u64, happening: Happening) {
        self.order += 1;
        self.happenings.push(Reverse((at, self.order, happening)));
    }

    pub(crate) fn after(&mut self, us: u64, who: Who, doing: Doing) {
        self.push(self.now + us, Happening::At(who, doing));
    }

    /// As soon as a thread takes to wake another.
    pub(crate) fn soon(&mut self, who: Who, doing: Doing) {
        let takes = self.rng.range(1, 500);
        self.after(takes, who, doing);
    }

    pub(crate) fn note(&mut self, fact: Fact) {
        self.tell(|| format!("  {fact:?}"));
        self.trace.add(format_args!("{fact:?}\n"));
        self.record.note(self.now, fact);
    }

    pub(crate) fn trace(&mut self, what: fmt::Arguments<'_>) {
        self.trace.add(what);
    }

    pub(crate) fn tell(&mut self, what: impl FnOnce() -> String) {
        if let Some(listing) = &mut self.listing {
            listing.push(format!("{:>12} {}", self.now, what()));
        }
    }
}
