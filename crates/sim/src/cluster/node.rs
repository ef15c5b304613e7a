//! The nodes of a world: the elector, the follower and the leader that ship, and between them as little as
//! possible of what only simulates.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use orchestrix_core::FORMAT;
use orchestrix_engine::{Batch, JournalId, Link};
use orchestrix_leadership::{Change, Elector, Reason, Step};
use orchestrix_node::{
    Beginning, Clock, Failure, Following, HighWater, LeaderLease, Mark, Node, Standby, Stepped, WriteGuard,
};

use crate::check::Violation;
use crate::cluster::clock::NodeClock;
use crate::cluster::coverage::ClusterCovered;
use crate::cluster::engine::Who;
use crate::cluster::handles::lock;
use crate::cluster::happening::{Doing, Happening};
use crate::cluster::plan::NodePlan;
use crate::cluster::record::Fact;
use crate::cluster::requests::What;
use crate::cluster::versions::Members;
use crate::cluster::world::ClusterWorld;
use crate::world::{MS, SECOND};

/// The key of the leader lease in the register.
pub(crate) const LEADER_KEY: &str = "leader";
/// How long an engine that does not answer is left alone by one who has to begin a term.
const BEGIN_AGAIN: u64 = 20 * MS;
/// At most so long between two looks at the elector.
const ELECT_MAX: u64 = SECOND;

/// A machine, and the process on it if there is one.
pub(crate) struct Machine {
    pub(crate) plan: NodePlan,
    pub(crate) clock: Arc<NodeClock>,
    pub(crate) life: u32,
    pub(crate) frozen_until: u64,
    /// Until then all its requests take long.
    pub(crate) slow_until: u64,
    /// Until then the register does not answer it, though the journal does.
    pub(crate) mute_until: u64,
    pub(crate) process: Option<Process>,
    /// What the file in its folder says of the journal.
    pub(crate) written: Option<Mark>,
    /// The highest epoch that was ever written there.
    pub(crate) epoch_written: u64,
    /// Why the last process ended, if it has seen that the engine forgot something.
    pub(crate) refused: bool,
    pub(crate) accepts_loss: bool,
}

/// A running process.
pub(crate) struct Process {
    pub(crate) elector: Elector,
    pub(crate) trust: Arc<Trust>,
    pub(crate) standby: Standby,
    pub(crate) following: Following,
    pub(crate) high_water: HighWater,
    /// A request to the register that has no answer yet.
    pub(crate) asking: Option<u64>,
    pub(crate) leads: Option<Leading>,
    pub(crate) stopping: bool,
    /// It was frozen while it led.
    pub(crate) slept: bool,
    /// The last try to take the leader lease had no answer.
    pub(crate) unsure: bool,
    /// Who is present, where nodes have versions.
    pub(crate) members: Option<Members>,
}

/// A term that this process leads.
pub(crate) struct Leading {
    pub(crate) epoch: u64,
    pub(crate) node: Node,
    pub(crate) stepped: Stepped,
    pub(crate) decide_at: Option<u64>,
    /// A batch that has no answer yet.
    pub(crate) sent: Option<u64>,
    /// The batch itself.
    pub(crate) batch: Option<Batch>,
    /// When it may be sent again.
    pub(crate) send_at: Option<u64>,
    pub(crate) unknown: bool,
}

/// What a process may act under, as the threads of a member share it.
#[derive(Debug)]
pub(crate) struct Trust {
    clock: Arc<NodeClock>,
    leader_lease: Mutex<Option<(u64, Duration)>>,
    proved_us: AtomicU64,
}

/// The leader lease of one term.
struct TermLease {
    trust: Arc<Trust>,
    following: Following,
    epoch: u64,
    journal: JournalId,
}

impl Trust {
    pub(crate) fn new(clock: Arc<NodeClock>) -> Self {
        Self { clock, leader_lease: Mutex::default(), proved_us: AtomicU64::default() }
    }

    fn set(&self, leader_lease: Option<(u64, Duration)>) {
        *self.leader_lease.lock().unwrap_or_else(PoisonError::into_inner) = leader_lease;
    }

    /// The epoch that may be acted under at this moment.
    pub(crate) fn token(&self) -> Option<u64> {
        let leader_lease = *self.leader_lease.lock().unwrap_or_else(PoisonError::into_inner);
        leader_lease.filter(|(_, until)| self.clock.boot() < *until).map(|(epoch, _)| epoch)
    }
}

impl LeaderLease for TermLease {
    fn holds(&self) -> bool {
        self.trust.token() == Some(self.epoch)
    }

    fn prove(&self, end: Link) {
        let now = u64::try_from(self.trust.clock.boot().as_micros()).unwrap_or(u64::MAX);
        self.trust.proved_us.fetch_max(now, Relaxed);
        self.following.saw(self.journal, end, self.epoch);
    }
}

impl Machine {
    pub(crate) fn new(plan: NodePlan, time: &Arc<AtomicU64>) -> Self {
        let clock = Arc::new(NodeClock::new(Arc::clone(time), plan.drift_ppm));
        Self {
            plan,
            clock,
            life: 0,
            frozen_until: 0,
            slow_until: 0,
            mute_until: 0,
            process: None,
            written: None,
            epoch_written: 0,
            refused: false,
            accepts_loss: false,
        }
    }

    /// The epoch that this one leads in and may act under.
    pub(crate) fn acts(&self) -> Option<u64> {
        let process = self.process.as_ref()?;
        let leads = process.leads.as_ref()?;
        process.trust.token().filter(|epoch| *epoch == leads.epoch)
    }
}

impl ClusterWorld {
    /// The process of a life. It was there a moment ago, and nothing else happened since.
    pub(crate) fn process(&mut self, who: Who) -> &mut Process {
        self.machines[who.node].process.as_mut().expect("a process that does something is there")
    }

    /// Whether this life goes on.
    pub(crate) fn lives(&self, who: Who) -> bool {
        let machine = &self.machines[who.node];
        machine.life == who.life && machine.process.is_some()
    }

    pub(crate) fn who(&self, node: usize) -> Option<Who> {
        let machine = &self.machines[node];
        machine.process.as_ref().map(|_| Who { node, life: machine.life })
    }

    /// Asks the elector what to do, and does it. One request at a time: until it is answered, nothing else is asked.
    pub(crate) fn elect(&mut self, who: Who) {
        if self.process(who).asking.is_some() {
            return;
        }
        let clock = Arc::clone(&self.machines[who.node].clock);
        let process = self.process(who);
        let now = clock.boot();
        process.elector.prove(Duration::from_micros(process.trust.proved_us.load(Relaxed)));
        let step = process.elector.next(now);
        if process.stopping && process.elector.is_settled() {
            self.leaves(who);
            self.die(who.node);
            let takes = self.rng.range(10 * MS, 5 * SECOND);
            self.push(self.now + takes, Happening::Start(who.node));
            return;
        }
        self.publish(who);
        match step {
            Step::Wait(until) => {
                let at = clock.world_at(until).clamp(self.now + 1, self.now + ELECT_MAX);
                self.push(at, Happening::At(who, Doing::Elect));
            }
            Step::Read => self.ask(who, What::Read),
            Step::Set { seen, claim } => self.ask(who, What::Set { seen, claim }),
        }
    }

    fn ask(&mut self, who: Who, what: What) {
        let request = self.request(who, what);
        self.process(who).asking = Some(request);
    }

    /// Publishes changes of leadership to the node and to the checker.
    pub(crate) fn publish(&mut self, who: Who) {
        let clock = Arc::clone(&self.machines[who.node].clock);
        let process = self.process(who);
        let changes = process.elector.take_changes();
        let now = clock.boot();
        let leader_lease = process.elector.leads(now).zip(process.elector.trusted_until());
        process.trust.set(leader_lease);
        for change in changes {
            match change {
                Change::Elected { epoch } => {
                    self.coverage.add(ClusterCovered::Elected);
                    if std::mem::take(&mut self.process(who).unsure) {
                        self.coverage.add(ClusterCovered::AmbiguousAcquireAdopted);
                    }
                    self.note_batches_in_flight(who);
                    self.last_elected = Some((self.now, who, epoch));
                    self.note(Fact::Elected { who, epoch });
                    self.soon(who, Doing::Begin(epoch));
                }
                Change::Renewed { .. } => {}
                Change::Deposed { epoch, reason } => {
                    if reason == Reason::NoProof {
                        self.coverage.add(ClusterCovered::DeposedForLackOfProof);
                    }
                    self.note(Fact::Distrusts { who, epoch });
                    self.soon(who, Doing::StepDown(epoch));
                }
                Change::Leader(Some((_, epoch))) => self.note(Fact::Observed { who, epoch }),
                Change::Leader(None) => {}
            }
        }
        if let Some((epoch, until)) = leader_lease {
            let until = clock.world_at(until);
            self.note(Fact::Trusts { who, epoch, until });
        }
    }

    /// A leader was elected: is a batch of another still in flight?
    fn note_batches_in_flight(&mut self, elected: Who) {
        let others = self.requests.values().filter(|request| request.who != elected);
        if others.filter(|request| request.is_append() && request.under_way).count() > 0 {
            self.coverage.add(ClusterCovered::LeaderChangedWithABatchInFlight);
        }
    }

    pub(crate) fn begin(&mut self, who: Who, epoch: u64) -> Result<(), Violation> {
        let now = self.machines[who.node].clock.boot();
        let tick_ms = u64::try_from(self.machines[who.node].plan.ttl.as_millis() / 4).ok();
        let process = self.process(who);
        let over = process.elector.leads(now) != Some(epoch) || process.leads.is_some() || process.stopping;
        if over {
            return Ok(());
        }
        match process.standby.begin(epoch) {
            Ok(Beginning::Term(follower)) => {
                let trust = Arc::clone(&process.trust);
                let (following, journal) = (process.following.clone(), follower.journal_id());
                let leader_lease = TermLease { trust, following, epoch, journal };
                let guard =
                    WriteGuard { epoch, leader_lease: Some(Arc::new(leader_lease)), tick_ms, actor: None };
                let (node, stepped) = Stepped::lead(*follower, guard);
                process.leads = Some(Leading {
                    epoch,
                    node,
                    stepped,
                    decide_at: None,
                    sent: None,
                    batch: None,
                    send_at: None,
                    unknown: false,
                });
                let seen = self.machines[who.node].epoch_written;
                self.note(Fact::Begins { who, epoch, seen });
                if self.versions.reads(who) < FORMAT {
                    self.coverage.add(ClusterCovered::OldVersionLeads);
                }
                self.decide_after(who, 1);
            }
            Ok(Beginning::Outdated { seen }) => {
                self.coverage.add(ClusterCovered::EpochRaisedAboveTheRegister);
                let process = self.process(who);
                process.elector.raise_epoch(seen);
                process.elector.resign(now);
                self.publish(who);
                self.soon(who, Doing::Elect);
            }
            Err(failure) if failure.may_pass() => {
                process.standby.forget_state();
                self.after(BEGIN_AGAIN, who, Doing::Begin(epoch));
            }
            Err(failure) => return self.refused(who.node, &failure),
        }
        Ok(())
    }

    /// Reads what the leader writes, unless this node leads.
    pub(crate) fn look(&mut self, who: Who) -> Result<(), Violation> {
        self.write_mark(who);
        let (low, high) = self.plan.read_every;
        let every = self.rng.skewed(low, high);
        self.after(every, who, Doing::Look);
        if self.process(who).leads.is_some() {
            return Ok(());
        }
        let before = self.process(who).standby.follower().map(|follower| follower.link().position);
        match self.process(who).standby.read_to_end().map(|follower| follower.link().position) {
            Ok(position) => {
                let process = self.process(who);
                let epoch = process.standby.epoch();
                process.elector.raise_epoch(epoch);
                let floor = lock(&self.model).floor();
                if before.is_some_and(|before| before < floor && before.0 > 0) && position >= floor {
                    self.coverage.add(ClusterCovered::SnapshotLoadedAfterTruncation);
                }
                self.compare(who)
            }
            Err(failure) if failure.may_pass() => Ok(()),
            Err(failure) => self.refused(who.node, &failure),
        }
    }

    /// Leaves a term, if this one leads in it: what was decided and is not durable is forgotten.
    pub(crate) fn step_down(&mut self, who: Who, epoch: u64) -> Result<(), Violation> {
        if self.process(who).leads.as_ref().is_none_or(|leads| leads.epoch != epoch) {
            return Ok(());
        }
        self.take_answers(who)?;
        let Some(leads) = self.process(who).leads.take() else { return Ok(()) };
        drop(leads);
        self.note(Fact::SteppedDown { who, epoch });
        self.forget_pending(who);
        self.soon(who, Doing::Look);
        Ok(())
    }

    /// The term ended by itself: the journal refused a batch, or the leader lease was over.
    pub(crate) fn ended(&mut self, who: Who, failure: &Failure) -> Result<(), Violation> {
        let Some(epoch) = self.process(who).leads.as_ref().map(|leads| leads.epoch) else { return Ok(()) };
        self.tell(|| format!("  {who:?} leads no more: {failure}"));
        if std::mem::take(&mut self.process(who).slept) {
            self.coverage.add(ClusterCovered::FrozenLeaderWokeAndWasRefused);
        }
        self.step_down(who, epoch)?;
        let now = self.machines[who.node].clock.boot();
        let process = self.process(who);
        if process.elector.leads(now) == Some(epoch) {
            process.elector.resign(now);
        }
        self.publish(who);
        self.soon(who, Doing::Elect);
        Ok(())
    }
}
