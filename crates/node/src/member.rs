//! One of several nodes on one engine: follows while another leads, and leads when it is elected.
//!
//! A thread of its own owns the state. Commands reach it in order: what there is to read, an election, the end of
//! one. Another thread only waits for the journal to grow, so that no wait holds up an election.
//!
//! **Invariant:** whoever leads has read the journal to its end and made its `TermStarted` durable before it
//! decides anything; and whoever is deposed drops its state and reads again.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use orchestrix_core::Position;
use orchestrix_core::wire::{Cluster, NodeView};
use orchestrix_engine::{Journal, JournalId, Link, Shared, SystemClock};
use orchestrix_leadership::{Candidate, Duty, EnsureError, Leadership, Reason, Term, Work};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use crate::events::Events;
use crate::follower::Following;
use crate::high_water::HighWater;
use crate::mandate::{Mandate, Office};
use crate::node::Node;
use crate::open::{Failure, spawn, start_node};
use crate::options::Options;
use crate::runner::Running;
use crate::standby::{Beginning, Standby};
use crate::stats::Stats;

/// The longest wait for the journal to grow; bounds how old the note about this node is.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// How long an engine that does not answer is left alone.
const PAUSE: Duration = Duration::from_millis(200);
/// A node that was further behind than this does not get the office passed.
const LAG_MAX: u64 = 100_000;
/// The office of the leader in the register.
const OFFICE: &str = "leader";

/// The name of the duty that a leader has here.
pub const DUTY: &str = "coordinator";

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
pub enum Seat {
    /// This node leads: it decides.
    Leads(Node),
    /// Another does, or nobody.
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
    following: Following,
    seat: watch::Sender<Seat>,
    leadership: OnceLock<Leadership>,
    running: Running,
    commands: Sender<Command>,
    tick_ms: u64,
}

enum Command {
    /// There may be something to read. The answer is where to wait next; it comes when this node follows.
    Look(Sender<Position>),
    Elected(Term),
    Deposed(Reason),
    /// The node that led in this epoch has stopped.
    Ended(u64, Failure),
    Stop(oneshot::Sender<Result<(), Failure>>),
}

/// What a node tells the others of itself.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Note {
    position: u64,
    load: u64,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member")
            .field("me", &self.inner.me)
            .field("seat", &*self.inner.seat.borrow())
            .finish()
    }
}

impl Member {
    /// Loads what the engine has, and stands for leader. Call it on a runtime, where blocking is allowed.
    ///
    /// # Errors
    /// When the engine does not answer, is behind what this node has seen, or the options make no sense.
    pub fn open(membership: Membership) -> Result<Self, Failure> {
        let Membership { engine, me, leadership: options, node, high_water } = membership;
        let following = Following::new(Arc::new(SystemClock), high_water, &node);
        let mut standby = Standby::new(Arc::clone(&engine), node, following.clone());
        standby.read_to_end()?;
        let (commands, heard) = channel();
        let tick_ms = u64::try_from(options.leader_ttl.as_millis() / 4).unwrap_or(u64::MAX);
        let inner = Arc::new(Inner {
            engine,
            me: me.clone(),
            following,
            seat: watch::Sender::new(Seat::Follows),
            leadership: OnceLock::new(),
            running: Running::new(),
            commands,
            tick_ms,
        });
        let options = orchestrix_leadership::Options { needs_proof: true, ..options };
        let duty: Arc<dyn Duty> = Arc::new(Leading(inner.commands.clone()));
        let register = inner.engine.register();
        let leadership = Leadership::start(register, OFFICE, me, options, vec![duty])
            .map_err(|error| Failure::new(error.to_string()))?;
        leadership.raise_epoch(standby.epoch());
        // Set here and nowhere else.
        let _ = inner.leadership.set(leadership);
        let mut desk = Desk {
            inner: Arc::clone(&inner),
            runtime: Handle::current(),
            standby,
            leads: None,
            waiting: None,
        };
        spawn("orchestrix-member", move || desk.run(&heard))?;
        let waiter = Arc::clone(&inner);
        spawn("orchestrix-follow", move || wait_for_growth(&waiter))?;
        Ok(Self { inner })
    }

    /// Where requests go now.
    #[must_use]
    pub fn seat(&self) -> Seat {
        self.inner.seat.borrow().clone()
    }

    /// Changes whenever requests go elsewhere.
    #[must_use]
    pub fn seats(&self) -> watch::Receiver<Seat> {
        self.inner.seat.subscribe()
    }

    #[must_use]
    pub fn leadership(&self) -> &Leadership {
        self.inner.leadership()
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.me.name
    }

    #[must_use]
    pub fn stats(&self) -> &Stats {
        self.inner.following.stats()
    }

    /// Durable events after a position, or from now on, as they come.
    #[must_use]
    pub fn events(&self, after: Option<Position>) -> Events {
        self.inner.following.events().subscribe(after)
    }

    /// Waits until this node has applied what stands at a position.
    pub async fn applied(&self, position: Position) {
        self.inner.following.events().reached(position).await;
    }

    /// Who is there and who leads, as far as this node knows.
    #[must_use]
    pub fn cluster(&self) -> Cluster {
        let (status, stats) = (self.leadership().status(), self.stats());
        let leader = status.leader.map(|(leader, _)| leader.name);
        let own = self.inner.note();
        let end = Position(stats.durable.get());
        let view = |Candidate { name, address, .. }: Candidate, note: Note, present: bool| NodeView {
            role: if Some(&name) == leader.as_ref() { "leader" } else { "follower" }.to_owned(),
            state: if present { "ACTIVE" } else { "DEAD" }.to_owned(),
            load: note.load,
            position: Position(note.position),
            lag: end.0.saturating_sub(note.position),
            address: Some(address),
            name,
        };
        let others = status.peers.into_iter().filter(|peer| peer.candidate.name != self.inner.me.name);
        let others = others.map(|peer| {
            let note = serde_json::from_str(&peer.note).unwrap_or_default();
            view(peer.candidate, note, peer.present)
        });
        let mut nodes: Vec<NodeView> = others.collect();
        nodes.push(view(self.inner.me.clone(), own, true));
        nodes.sort_by(|one, other| one.name.cmp(&other.name));
        Cluster {
            leader,
            term: orchestrix_core::Term(stats.term.get()),
            epoch: stats.epoch.get(),
            position: end,
            nodes,
            why: self.leadership().why(),
        }
    }

    /// Passes the office to a node that is present and has read almost everything, or gives it back.
    ///
    /// # Errors
    /// Why it stays where it is.
    pub async fn ensure_leader(&self, force: bool, desired: Option<&str>) -> Result<(), EnsureError> {
        let nodes = self.cluster().nodes;
        let behind = desired.and_then(|name| nodes.into_iter().find(|node| node.name == name));
        if let Some(node) = behind.filter(|node| node.lag > LAG_MAX && !force) {
            return Err(EnsureError::Behind { name: node.name, lag: node.lag });
        }
        self.leadership().ensure_coordinator(force, desired).await
    }

    /// Waits until the member has stopped, whatever the reason.
    ///
    /// # Errors
    /// The failure that stopped it.
    pub async fn stopped(&self) -> Result<(), Failure> {
        self.inner.running.stopped().await
    }

    /// Stops cleanly: answers what was asked, makes everything durable, then gives the office back.
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
        self.inner.running.end(stopped.clone());
        stopped
    }
}

impl Inner {
    fn leadership(&self) -> &Leadership {
        self.leadership.get().expect("leadership is set before anybody has a member")
    }

    fn note(&self) -> Note {
        let stats = self.following.stats();
        let load = match &*self.seat.borrow() {
            Seat::Leads(_) => stats.tasks_leased.get(),
            Seat::Follows => 0,
        };
        Note { position: stats.durable.get(), load }
    }
}

/// Passes elections on to the thread that owns the state.
struct Leading(Sender<Command>);

impl Leading {
    fn tell(&self, command: Command) -> Work<'_> {
        // A member that has stopped needs no office.
        let _ = self.0.send(command);
        Box::pin(std::future::ready(()))
    }
}

impl Duty for Leading {
    fn name(&self) -> &str {
        DUTY
    }

    fn on_elected<'a>(&'a self, term: &'a Term) -> Work<'a> {
        self.tell(Command::Elected(term.clone()))
    }

    fn tick<'a>(&'a self, _: &'a Term) -> Work<'a> {
        Box::pin(std::future::ready(()))
    }

    fn on_deposed(&self, reason: Reason) -> Work<'_> {
        self.tell(Command::Deposed(reason))
    }
}

/// The office of a leader that writes.
struct Trust {
    inner: Arc<Inner>,
    epoch: u64,
    journal: JournalId,
}

impl Office for Trust {
    fn holds(&self) -> bool {
        self.inner.leadership().token() == Some(self.epoch)
    }

    fn prove(&self, end: Link) {
        self.inner.leadership().prove();
        self.inner.following.saw(self.journal, end, self.epoch);
    }
}

/// What the thread of a member owns.
struct Desk {
    inner: Arc<Inner>,
    runtime: Handle,
    standby: Standby,
    leads: Option<(u64, Node)>,
    /// Wants to know where to wait, when this node follows again.
    waiting: Option<Sender<Position>>,
}

impl Desk {
    fn run(&mut self, commands: &Receiver<Command>) {
        let ended = self.obey(commands);
        self.inner.seat.send_replace(Seat::Follows);
        self.inner.following.high_water.flush();
        if let Err(failure) = ended {
            self.inner.running.end(Err(failure));
            let inner = Arc::clone(&self.inner);
            self.runtime.spawn(async move { inner.leadership().stop().await });
        }
    }

    fn obey(&mut self, commands: &Receiver<Command>) -> Result<(), Failure> {
        loop {
            match commands.recv_timeout(PAUSE) {
                Ok(Command::Look(reply)) => {
                    self.waiting = Some(reply);
                    self.follow()?;
                }
                Ok(Command::Elected(term)) => self.lead(&term)?,
                Ok(Command::Deposed(reason)) => {
                    tracing::info!(reason = reason.word(), "follows");
                    self.step_down();
                    self.follow()?;
                }
                Ok(Command::Ended(epoch, failure)) => self.ended(epoch, &failure)?,
                Ok(Command::Stop(reply)) => {
                    let stopped = self.stop();
                    // Whoever asked may be gone.
                    let _ = reply.send(stopped);
                    return Ok(());
                }
                // An engine that did not answer is asked again; whoever waits for it has not been answered either.
                Err(RecvTimeoutError::Timeout)
                    if self.standby.follower().is_none() || self.waiting.is_some() =>
                {
                    self.follow()?
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    /// Reads to the end, unless this node leads. An engine that does not answer is asked again later.
    fn follow(&mut self) -> Result<(), Failure> {
        if self.leads.is_some() {
            return Ok(());
        }
        match self.read_to_end() {
            Ok(position) => {
                if let Some(waiting) = self.waiting.take() {
                    // The one who waits goes only with this thread.
                    let _ = waiting.send(position);
                }
                Ok(())
            }
            Err(failure) if failure.is_retryable() => {
                tracing::warn!(%failure, "cannot follow the journal: trying again");
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    fn read_to_end(&mut self) -> Result<Position, Failure> {
        let epoch = self.standby.epoch();
        let position = self.standby.read_to_end()?;
        if self.standby.epoch() > epoch {
            self.inner.leadership().raise_epoch(self.standby.epoch());
        }
        Ok(position)
    }

    /// Begins a term, again and again while somebody else gets between the end and our first event.
    fn lead(&mut self, term: &Term) -> Result<(), Failure> {
        while !term.over.is_cancelled() && self.leads.is_none() {
            match self.try_lead(term) {
                Ok(()) => return Ok(()),
                Err(failure) if failure.is_retryable() => {
                    tracing::warn!(%failure, epoch = term.epoch, "cannot begin a term: trying again");
                    self.standby.forget_state();
                    std::thread::sleep(PAUSE / 10);
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    fn try_lead(&mut self, term: &Term) -> Result<(), Failure> {
        let follower = match self.standby.begin(term.epoch)? {
            Beginning::Term(follower) => *follower,
            Beginning::Outdated { seen } => {
                tracing::warn!(epoch = term.epoch, seen, "a later epoch was seen; stands again above it");
                self.inner.leadership().raise_epoch(seen);
                self.resign();
                return Ok(());
            }
        };
        let journal = follower.journal_id();
        let office = Trust { inner: Arc::clone(&self.inner), epoch: term.epoch, journal };
        let mandate =
            Mandate { epoch: term.epoch, office: Some(Arc::new(office)), tick_ms: Some(self.inner.tick_ms) };
        let (stored, options, surroundings) = follower.into_parts();
        let node = start_node(stored, options, mandate, surroundings)?;
        // An answer comes only when all before it is durable, and so is the beginning of the term.
        if self.runtime.block_on(node.cluster()).is_err() {
            let ended = self.runtime.block_on(node.stopped());
            return Err(ended
                .err()
                .unwrap_or_else(|| Failure::new("the term ended at once".to_owned()))
                .retry());
        }
        tracing::info!(epoch = term.epoch, position = self.inner.following.stats().durable.get(), "decides");
        self.leads = Some((term.epoch, node.clone()));
        self.inner.seat.send_replace(Seat::Leads(node.clone()));
        let (commands, epoch) = (self.inner.commands.clone(), term.epoch);
        self.runtime.spawn(async move {
            if let Err(failure) = node.stopped().await {
                // A member that has stopped knows already.
                let _ = commands.send(Command::Ended(epoch, failure));
            }
        });
        Ok(())
    }

    /// The node that led has stopped by itself: it lost its office, or its engine.
    fn ended(&mut self, epoch: u64, failure: &Failure) -> Result<(), Failure> {
        if self.leads.as_ref().is_none_or(|(leads, _)| *leads != epoch) {
            return Ok(());
        }
        tracing::warn!(%failure, epoch, "leads no more");
        self.step_down();
        self.resign();
        self.follow()
    }

    /// Decides no more. What was decided and is not durable is forgotten.
    fn step_down(&mut self) {
        self.inner.seat.send_replace(Seat::Follows);
        if let Some((_, node)) = self.leads.take() {
            node.abort();
            // Why it ended does not matter: it was told to.
            let _ = self.runtime.block_on(node.stopped());
        }
    }

    fn stop(&mut self) -> Result<(), Failure> {
        let stopped = match self.leads.take() {
            Some((_, node)) => self.runtime.block_on(node.stop()),
            None => Ok(()),
        };
        self.inner.seat.send_replace(Seat::Follows);
        self.inner.following.high_water.flush();
        stopped
    }

    fn resign(&self) {
        let inner = Arc::clone(&self.inner);
        self.runtime.spawn(async move {
            // It may have been deposed meanwhile.
            let _ = inner.leadership().ensure_coordinator(true, None).await;
        });
    }
}

/// Waits for the journal to grow, and tells the member. Beside that it tells the others how far this node is.
fn wait_for_growth(inner: &Inner) {
    let mut journal: Option<Box<dyn Journal>> = None;
    while !inner.running.is_stopping() {
        let (reply, next) = channel();
        if inner.commands.send(Command::Look(reply)).is_err() {
            return;
        }
        let after = loop {
            let note = serde_json::to_string(&inner.note()).expect("a note is plain JSON");
            inner.leadership().set_note(note);
            inner.following.high_water.flush();
            match next.recv_timeout(WAIT_MAX) {
                Ok(after) => break after,
                Err(RecvTimeoutError::Timeout) if !inner.running.is_stopping() => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        };
        let waited = match &journal {
            Some(journal) => journal.wait(after, WAIT_MAX),
            None => inner.engine.journal().map(|opened| journal = Some(opened)),
        };
        if let Err(error) = waited {
            tracing::debug!(%error, "cannot wait for the journal");
            journal = None;
            std::thread::sleep(PAUSE);
        }
    }
}
