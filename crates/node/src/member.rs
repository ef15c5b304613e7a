//! One of several nodes on one engine: a follower, or the leader after an election.
//!
//! [`Member`] is the handle; the thread behind it is in `member_loop`.

mod feed_liveness;
mod member_loop;
mod note;
mod output;

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use orchestrix_core::wire::{Cluster, NodeView};
use orchestrix_core::{Name, Position};
use orchestrix_engine::{Batch, Clock, JournalId, LogThrottle, Shared, SystemClock};
use orchestrix_leadership::{Candidate, Duty, EnsureError, Leadership, Reason, Term};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use self::feed_liveness::FeedLiveness;
use self::member_loop::{Leading, MemberLoop, wait_for_growth};
use self::note::Note;
pub use self::note::{presence_note, readable};
use crate::events::{Batches, Events};
use crate::follower::Following;
use crate::high_water::HighWater;
use crate::logs::{Calls, TaskLogs};
use crate::node::Node;
use crate::open::{Failure, guarded, spawn};
use crate::options::Options;
use crate::progress::Rounds;
use crate::runner::Running;
use crate::standby::Standby;
use crate::stats::Stats;
use crate::write_guard::WriteGuard;

/// A node that is further behind than this does not get the leader lease.
const LAG_MAX: u64 = 100_000;
/// The key of the leader lease in the register.
const OFFICE: &str = "leader";

/// The name of the duty that a leader has here.
pub const DUTY: &str = "coordinator";

/// What is asked of the engine, for people.
const FOLLOW: &str = "read the journal";
const BEGIN: &str = "begin a term";

/// How a node becomes one of several.
pub struct Membership {
    pub engine: Arc<dyn Shared>,
    pub me: Candidate,
    pub leadership: orchestrix_leadership::Options,
    pub node: Options,
    pub high_water: HighWater,
}

impl std::fmt::Debug for Membership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Membership")
            .field("engine", &self.engine.place())
            .field("me", &self.me)
            .finish_non_exhaustive()
    }
}

/// Where requests go.
#[derive(Clone, Debug)]
pub enum NodeRole {
    /// This node leads: it decides.
    Leads(Node),
    /// Another node is leader, or none.
    Follows,
}

/// A node among others. Cheap to clone; it stops with [`Member::stop`].
#[derive(Clone)]
pub struct Member {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Arc<dyn Shared>,
    me: Candidate,
    journal: JournalId,
    /// The newest format of the journal that this node reads.
    reads: u8,
    following: Following,
    /// Output of tasks that are owned while another node leads.
    output: Arc<TaskLogs>,
    /// Of the thread that waits for the journal to grow.
    growth: Rounds,
    /// A term that begins here, until its first event is durable.
    begins: Mutex<Option<Node>>,
    role: watch::Sender<NodeRole>,
    fed: FeedLiveness,
    leadership: OnceLock<Leadership>,
    running: Running,
    commands: Sender<Command>,
    tick_ms: u64,
    /// The engine cannot be used.
    throttle: LogThrottle,
    clock: Arc<dyn Clock>,
}

enum Command {
    /// There may be something to read. The answer is where to wait next; it comes when this node follows.
    Look(Sender<Position>),
    /// The leader says that this is durable. The answer is how far this node is then.
    Hint(JournalId, Batch, oneshot::Sender<Position>),
    Elected(Term),
    Deposed(Reason),
    /// The node that led in this epoch has stopped.
    Ended(u64, Failure),
    Stop(oneshot::Sender<Result<(), Failure>>),
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member")
            .field("me", &self.inner.me)
            .field("role", &*self.inner.role.borrow())
            .finish()
    }
}

impl Member {
    /// Loads what the engine has, and stands for leader. Call it on a runtime, where blocking is allowed.
    ///
    /// # Errors
    /// When the engine does not answer, is behind what this node has seen, or the options make no sense.
    pub fn open(membership: Membership) -> Result<Self, Failure> {
        Self::open_by(membership, Arc::new(SystemClock))
    }

    /// Like [`Member::open`], by a clock of the caller's.
    ///
    /// # Errors
    /// As there.
    pub fn open_by(membership: Membership, clock: Arc<dyn Clock>) -> Result<Self, Failure> {
        let Membership { engine, me, leadership: options, node, high_water } = membership;
        let growth = Rounds::new(Arc::clone(&clock), "the thread that waits for the journal to grow");
        let (following, reads) = (Following::new(Arc::clone(&clock), high_water, &node), node.reads);
        let output = TaskLogs::new(
            engine.logs(),
            &node,
            Arc::clone(&clock),
            Arc::clone(following.stats()),
            // What is stored is fenced by its lease.
            WriteGuard::default(),
            Calls::Threads,
        );
        let mut standby = Standby::new(Arc::clone(&engine), node, following.clone());
        let journal = standby.read_to_end()?.journal_id();
        let (commands, heard) = channel();
        let tick_ms = u64::try_from(options.leader_ttl.as_millis() / 4).unwrap_or(u64::MAX);
        let inner = Arc::new(Inner {
            engine,
            me: me.clone(),
            journal,
            reads,
            following,
            output: Arc::new(output),
            growth,
            begins: Mutex::default(),
            role: watch::Sender::new(NodeRole::Follows),
            fed: FeedLiveness::default(),
            leadership: OnceLock::new(),
            running: Running::new(),
            commands,
            tick_ms,
            throttle: LogThrottle::new(
                "cannot use the engine: waiting until it answers",
                "the engine answers again",
            ),
            clock,
        });
        let options = orchestrix_leadership::Options { needs_proof: true, ..options };
        let duty: Arc<dyn Duty> = Arc::new(Leading(inner.commands.clone()));
        let register = inner.engine.register();
        let leadership = Leadership::start(register, OFFICE, me, options, vec![duty])
            .map_err(|error| Failure::new(error.to_string()))?;
        leadership.raise_epoch(standby.epoch());
        // Set here and nowhere else.
        let _ = inner.leadership.set(leadership);
        let mut decisions = MemberLoop {
            inner: Arc::clone(&inner),
            runtime: Handle::current(),
            standby,
            leads: None,
            waiting: None,
        };
        spawn("orchestrix-member", move || decisions.run(&heard))?;
        tokio::spawn(Arc::clone(&inner).end_with_namesake());
        let waiter = Arc::clone(&inner);
        spawn("orchestrix-follow", move || {
            let ended = guarded("the thread that waits for the journal", || {
                wait_for_growth(&waiter);
                Ok(())
            });
            if ended.is_err() {
                waiter.running.end(ended);
            }
        })?;
        Ok(Self { inner })
    }

    /// Where requests go now.
    #[must_use]
    pub fn role(&self) -> NodeRole {
        self.inner.role.borrow().clone()
    }

    /// Changes whenever requests go elsewhere.
    #[must_use]
    pub fn roles(&self) -> watch::Receiver<NodeRole> {
        self.inner.role.subscribe()
    }

    #[must_use]
    pub fn leadership(&self) -> &Leadership {
        self.inner.leadership()
    }

    /// Whether a candidate is this process, and not another of the same name.
    #[must_use]
    pub fn is_me(&self, other: &Candidate) -> bool {
        other.incarnation == self.inner.me.incarnation
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.me.name
    }

    #[must_use]
    pub fn stats(&self) -> &Stats {
        self.inner.following.stats()
    }

    /// The same numbers, for services of this process.
    #[must_use]
    pub fn shared_stats(&self) -> Arc<Stats> {
        Arc::clone(self.inner.following.stats())
    }

    /// Durable events after a position, or from now on, as they come.
    #[must_use]
    pub fn events(&self, after: Option<Position>) -> Events {
        self.inner.following.events().subscribe(after)
    }

    /// Whole batches after a position as they become durable here, for a node that follows.
    #[must_use]
    pub fn batches(&self, after: Position) -> Batches {
        self.inner.following.events().batches(after)
    }

    /// The journal that this node follows or leads.
    #[must_use]
    pub fn journal_id(&self) -> JournalId {
        self.inner.journal
    }

    /// The leader is there and tells of its batches: the engine need not be asked for them until it is silent.
    pub fn heard_of_leader(&self) {
        self.inner.fed.heard();
        self.leadership().saw_leader();
    }

    /// The leader tells no more.
    pub fn unheard_of_leader(&self) {
        self.inner.fed.end();
    }

    /// Takes a batch that the leader says is durable. It is applied if it follows what was applied before; if it does
    /// not, the engine is asked. Answers how far this node is then, or `None` when it does not follow.
    pub async fn hint(&self, journal: JournalId, batch: Batch) -> Option<Position> {
        let (reply, heard) = oneshot::channel();
        self.inner.commands.send(Command::Hint(journal, batch, reply)).ok()?;
        heard.await.ok()
    }

    /// Waits until this node has applied what stands at a position.
    pub async fn applied(&self, position: Position) {
        self.inner.following.events().reached(position).await;
    }

    /// Who is there and who leads, as far as this node knows.
    #[must_use]
    pub fn cluster(&self) -> Cluster {
        let (status, stats) = (self.leadership().status(), self.stats());
        let own = self.inner.note();
        let end = Position(stats.durable.get());
        let leader_age = self.leadership().leader_age();
        // Its leader lease is over, though an engine that accepts nothing cannot record it.
        let is_over = leader_age.is_some_and(|age| age > self.leadership().leader_ttl());
        let leader = status.leader.map(|(leader, _)| leader.name).filter(|_| !is_over);
        let millis = |age: Duration| u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let view =
            |Candidate { name, address, .. }: Candidate, note: Note, present: bool, age: Duration| NodeView {
                role: if Some(&name) == leader.as_ref() { "leader" } else { "follower" }.to_owned(),
                // The leader lease also shows that the leader is alive, and so does its feed.
                seen_ms: Some(millis(
                    leader_age.filter(|_| Some(&name) == leader.as_ref()).map_or(age, |sign| age.min(sign)),
                )),
                // Presence is written less often than the leader lease is renewed: the leader is present.
                state: match present || Some(&name) == leader.as_ref() {
                    true if note.drains => "DRAINING",
                    true => "ACTIVE",
                    false => "DEAD",
                }
                .to_owned(),
                load: note.load,
                position: Position(note.position),
                lag: end.0.saturating_sub(note.position),
                address: Some(address),
                name,
            };
        let others = status.peers.into_iter().filter(|peer| peer.candidate.name != self.inner.me.name);
        let others = others.map(|peer| {
            view(peer.candidate, Note::of(&peer.note), peer.present, self.leadership().age_of(peer.seen))
        });
        let mut nodes: Vec<NodeView> = others.collect();
        nodes.push(view(self.inner.me.clone(), own, true, Duration::ZERO));
        nodes.sort_by(|one, other| one.name.cmp(&other.name));
        Cluster {
            leader,
            term: orchestrix_core::Term(stats.term.get()),
            epoch: stats.epoch.get(),
            position: end,
            leader_seen_ms: leader_age.map(millis),
            nodes,
            why: self.inner.waiting().into_iter().chain(self.leadership().why()).collect(),
        }
    }

    /// What this node waits for, while it cannot use its engine.
    #[must_use]
    pub fn waits_for(&self) -> Option<String> {
        self.inner.throttle.reason()
    }

    /// Why this node makes no progress, if so: a term in this process, or a following thread. Sends no request.
    #[must_use]
    pub fn stalled(&self) -> Option<String> {
        let term = self.inner.term().and_then(|node| node.stalled());
        term.or_else(|| self.inner.following.rounds.stalled()).or_else(|| self.inner.growth.stalled())
    }

    /// Why nothing can be written at the moment, if so. Sends no request.
    #[must_use]
    pub fn unwritten(&self) -> Option<String> {
        self.inner.term()?.unwritten()
    }

    /// Transfers the leader lease to a node that is present and has read almost everything, or releases it. The next term
    /// carries the name of who asked.
    ///
    /// # Errors
    /// Why it stays where it is.
    pub async fn ensure_leader(
        &self,
        actor: Option<&Name>,
        force: bool,
        desired: Option<&str>,
    ) -> Result<(), EnsureError> {
        let nodes = self.cluster().nodes;
        let behind = desired.and_then(|name| nodes.into_iter().find(|node| node.name == name));
        if let Some(node) = behind.filter(|node| node.lag > LAG_MAX && !force) {
            return Err(EnsureError::Behind { name: node.name, lag: node.lag });
        }
        self.leadership().ensure_coordinator_for(actor.map(Name::as_str), force, desired).await
    }

    /// Waits until the member has stopped, for any reason.
    ///
    /// # Errors
    /// The failure that stopped it.
    pub async fn stopped(&self) -> Result<(), Failure> {
        self.inner.running.stopped().await
    }

    /// Stops cleanly: answers all taken asks, makes everything durable, then releases the leader lease.
    ///
    /// # Errors
    /// The failure that kept it from a clean stop.
    pub async fn stop(&self) -> Result<(), Failure> {
        self.inner.running.begin_stop();
        let (reply, heard) = oneshot::channel();
        let stopped = match self.inner.commands.send(Command::Stop(reply)) {
            Ok(()) => heard.await.unwrap_or(Ok(())),
            Err(_) => Ok(()),
        };
        self.leadership().stop().await;
        self.inner.following.high_water.close();
        self.inner.running.end(stopped.clone());
        stopped
    }
}

impl Inner {
    /// Ends this node when another that is alive has its name.
    async fn end_with_namesake(self: Arc<Self>) {
        let other = tokio::select! {
            other = self.leadership().namesake() => other,
            _ = self.running.stopped() => return,
        };
        let Candidate { name, address, .. } = other;
        self.running.end(Err(Failure::new(format!(
            "another node named {name} is alive, at {address}: no two nodes on an engine may have the same name; \
             give this one another with --node NAME"
        ))));
    }

    /// The term in this process, also while it begins.
    fn term(&self) -> Option<Node> {
        match &*self.role.borrow() {
            NodeRole::Leads(node) => Some(node.clone()),
            NodeRole::Follows => self.begins().clone(),
        }
    }

    fn begins(&self) -> MutexGuard<'_, Option<Node>> {
        self.begins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> Option<String> {
        let why = self.throttle.reason()?;
        Some(format!("{} cannot use the engine and waits: {why}", self.me.name))
    }

    fn engine_refuses(&self, operation: &str, failure: &Failure) {
        self.throttle.failed(self.clock.boot(), operation, &failure.to_string());
    }

    /// A node that can read again may begin a term again.
    fn engine_answers(&self) {
        for operation in [FOLLOW, BEGIN] {
            self.throttle.succeeded(self.clock.boot(), operation);
        }
    }

    fn leadership(&self) -> &Leadership {
        self.leadership.get().expect("leadership is set before anybody has a member")
    }

    fn note(&self) -> Note {
        let stats = self.following.stats();
        let leased_out = match &*self.role.borrow() {
            NodeRole::Leads(_) => stats.tasks_leased.get().saturating_sub(stats.bus.leases.get()),
            NodeRole::Follows => 0,
        };
        let (load, drains) = (leased_out + stats.bus.owned.get(), stats.bus.drains.get() > 0);
        Note { position: stats.durable.get(), load, drains, format: self.reads }
    }

    /// Raises the format of the journal once every present node reads a newer one. Nodes of an earlier version may join until
    /// then; after that they read a record that they do not know, and stop.
    fn raise_format(&self) {
        if let NodeRole::Leads(node) = &*self.role.borrow() {
            let status = self.leadership().status();
            // What cannot be listed may be present, however long it was not seen.
            if !status.listed {
                return;
            }
            node.raise_format(readable(&status.present, &status.peers));
        }
    }
}
