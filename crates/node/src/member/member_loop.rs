//! The thread of a member, which owns the state: it reads, it begins a term when elected, and it steps down.
//!
//! Commands reach it in order: what there is to read, an election, the end of one. Another thread only waits for the
//! journal to grow, so that no wait holds up an election.
//!
//! **Invariant:** a leader has read the journal to its end and made its `TermStarted` durable before it
//! decides anything; a leader that steps down drops its state and reads again.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use orchestrix_core::{Name, Position};
use orchestrix_engine::{Batch, Journal, JournalId, Link};
use orchestrix_leadership::{Duty, Reason, Term, Work};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::{BEGIN, Command, DUTY, FOLLOW, Inner, NodeRole};
use crate::node::Node;
use crate::open::{Failure, guarded, start_node};
use crate::standby::{Beginning, Standby};
use crate::write_guard::{LeaderLease, WriteGuard};

/// The longest wait for the journal to grow; bounds how old the note about this node is.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// How often the engine is asked while the leader tells what it writes: what it tells has to be there.
const CHECK_EVERY: Duration = Duration::from_secs(10);
/// How long an engine that does not answer is left alone.
const PAUSE: Duration = Duration::from_millis(200);

/// Passes elections on to the thread that owns the state.
pub(super) struct Leading(pub(super) Sender<Command>);

impl Leading {
    fn tell(&self, command: Command) -> Work<'_> {
        // A stopped member needs no leader lease.
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

/// The leader lease of the current term.
struct ElectedLease {
    inner: Arc<Inner>,
    epoch: u64,
    journal: JournalId,
}

impl LeaderLease for ElectedLease {
    fn holds(&self) -> bool {
        self.inner.leadership().token() == Some(self.epoch)
    }

    fn prove(&self, end: Link) {
        self.inner.leadership().prove();
        self.inner.following.saw(self.journal, end, self.epoch);
    }
}

/// What the thread of a member owns.
pub(super) struct MemberLoop {
    pub(super) inner: Arc<Inner>,
    pub(super) runtime: Handle,
    pub(super) standby: Standby,
    pub(super) leads: Option<(u64, Node)>,
    /// Wants to know where to wait, when this node follows again.
    pub(super) waiting: Option<Sender<Position>>,
}

impl MemberLoop {
    pub(super) fn run(&mut self, commands: &Receiver<Command>) {
        let ended = guarded("the member's thread", || self.obey(commands));
        self.inner.role.send_replace(NodeRole::Follows);
        self.inner.following.high_water.flush();
        if let Err(failure) = ended {
            self.inner.running.end(Err(failure));
            let inner = Arc::clone(&self.inner);
            self.runtime.spawn(async move { inner.leadership().stop().await });
        }
    }

    fn obey(&mut self, commands: &Receiver<Command>) -> Result<(), Failure> {
        loop {
            let command = commands.recv_timeout(PAUSE);
            self.inner.following.rounds.beat();
            match command {
                Ok(Command::Look(reply)) => {
                    self.waiting = Some(reply);
                    self.follow()?;
                }
                Ok(Command::Hint(journal, batch, reply)) => self.hint(journal, batch, reply)?,
                Ok(Command::Elected(term)) => self.lead(&term)?,
                Ok(Command::Deposed(reason)) => {
                    tracing::info!(reason = reason.word(), "following the journal");
                    self.step_down();
                    self.follow()?;
                }
                Ok(Command::Ended(epoch, failure)) => self.ended(epoch, &failure)?,
                Ok(Command::Stop(reply)) => {
                    let stopped = self.stop();
                    // The caller may have disconnected.
                    let _ = reply.send(stopped);
                    return Ok(());
                }
                // An engine that did not answer is asked again; waiting callers have no answer yet either.
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

    /// Applies batches of the replication feed. The sender gets no answer if this node does not follow.
    fn hint(
        &mut self,
        journal: JournalId,
        batch: Batch,
        reply: oneshot::Sender<Position>,
    ) -> Result<(), Failure> {
        if self.leads.is_some() {
            return Ok(());
        }
        let epoch = self.standby.epoch();
        if !self.standby.hint(journal, batch) {
            self.follow()?;
        }
        self.tell_epoch(epoch);
        if let Some(follower) = self.standby.follower() {
            // The sender may be gone.
            let _ = reply.send(follower.link().position);
        }
        Ok(())
    }

    /// Reads to the end, unless this node leads. An engine that does not answer, or refuses for a reason that can pass, is
    /// asked again later.
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
                self.inner.engine_answers();
                Ok(())
            }
            Err(failure) if failure.may_pass() => {
                self.inner.engine_refuses(FOLLOW, &failure);
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    fn read_to_end(&mut self) -> Result<Position, Failure> {
        let epoch = self.standby.epoch();
        let position = self.standby.read_to_end()?.link().position;
        self.tell_epoch(epoch);
        Ok(position)
    }

    /// An epoch in the journal that is above those seen so far is never stood for again.
    fn tell_epoch(&self, seen: u64) {
        if self.standby.epoch() > seen {
            self.inner.leadership().raise_epoch(self.standby.epoch());
        }
    }

    /// Begins a term, and repeats this while another node writes before our first event.
    fn lead(&mut self, term: &Term) -> Result<(), Failure> {
        let goes_on = |inner: &Inner| !term.over.is_cancelled() && !inner.running.is_stopping();
        while goes_on(&self.inner) && self.leads.is_none() {
            match self.try_lead(term) {
                Ok(()) => return Ok(()),
                Err(failure) if failure.may_pass() => {
                    self.inner.engine_refuses(BEGIN, &failure);
                    self.standby.forget_state();
                    std::thread::sleep(PAUSE / 10);
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    fn try_lead(&mut self, term: &Term) -> Result<(), Failure> {
        let mut follower = match self.standby.begin(term.epoch)? {
            Beginning::Term(follower) => *follower,
            Beginning::Outdated { seen } => {
                tracing::warn!(
                    epoch = term.epoch,
                    seen,
                    "the election returned an epoch below one already seen; standing again above it"
                );
                self.inner.leadership().raise_epoch(seen);
                self.inner.leadership().let_go(term.epoch);
                return Ok(());
            }
        };
        follower.skip_lost()?;
        let journal = follower.journal_id();
        let leader_lease = ElectedLease { inner: Arc::clone(&self.inner), epoch: term.epoch, journal };
        let guard = WriteGuard {
            epoch: term.epoch,
            leader_lease: Some(Arc::new(leader_lease)),
            tick_ms: Some(self.inner.tick_ms),
            // What is in the register is checked like everything that comes from outside.
            actor: term.asked_by.as_deref().and_then(|name| Name::new(name).ok()),
        };
        let (stored, options, surroundings) = follower.into_parts();
        let node = start_node(stored, options, guard, surroundings)?;
        // An answer comes only when all before it is durable, and so is the beginning of the term.
        *self.inner.begins() = Some(node.clone());
        let begun = self.inner.following.rounds.beginning(|| self.runtime.block_on(node.cluster()));
        *self.inner.begins() = None;
        if begun.is_err() {
            let ended = self.stopping(node.stopped());
            return Err(ended
                .err()
                .unwrap_or_else(|| Failure::new("the term ended at once".to_owned()))
                .retry());
        }
        tracing::info!(
            epoch = term.epoch,
            position = self.inner.following.stats().durable.get(),
            "serving as leader"
        );
        self.inner.engine_answers();
        self.leads = Some((term.epoch, node.clone()));
        self.inner.role.send_replace(NodeRole::Leads(node.clone()));
        let (commands, epoch) = (self.inner.commands.clone(), term.epoch);
        self.runtime.spawn(async move {
            if let Err(failure) = node.stopped().await {
                // A member that has stopped knows already.
                let _ = commands.send(Command::Ended(epoch, failure));
            }
        });
        Ok(())
    }

    /// The node that led has stopped by itself: it lost its leader lease, or its engine.
    fn ended(&mut self, epoch: u64, failure: &Failure) -> Result<(), Failure> {
        if self.leads.as_ref().is_none_or(|(leads, _)| *leads != epoch) {
            return Ok(());
        }
        tracing::warn!(%failure, epoch, "lost leadership");
        self.step_down();
        self.inner.leadership().let_go(epoch);
        self.follow()
    }

    /// Decides no more. What was decided and is not durable is forgotten.
    fn step_down(&mut self) {
        self.inner.role.send_replace(NodeRole::Follows);
        if let Some((_, node)) = self.leads.take() {
            node.abort();
            // The reason does not matter: this stop was requested.
            let _ = self.stopping(node.stopped());
        }
        // There are no leases and no waiting calls here.
        let stats = self.inner.following.stats();
        stats.tasks_leased.set(0);
        stats.keys_remembered.set(0);
        stats.polls.set(0);
    }

    fn stop(&mut self) -> Result<(), Failure> {
        let stopped = match self.leads.take() {
            Some((_, node)) => self.stopping(node.stop()),
            None => Ok(()),
        };
        self.inner.role.send_replace(NodeRole::Follows);
        self.inner.following.high_water.flush();
        stopped
    }

    /// Waits for a term to stop.
    fn stopping<T>(&self, stopped: impl Future<Output = T>) -> T {
        self.inner.following.rounds.stopping(|| self.runtime.block_on(stopped))
    }
}

/// Waits for the journal to grow, and tells the member. Beside that it tells the others how far this node is.
pub(super) fn wait_for_growth(inner: &Inner) {
    let mut journal: Option<Box<dyn Journal>> = None;
    let mut looked = Instant::now();
    while !inner.running.is_stopping() {
        inner.growth.beat();
        tell_of_myself(inner);
        if inner.fed.wait(WAIT_MAX) && looked.elapsed() < CHECK_EVERY {
            continue;
        }
        let (reply, next) = channel();
        if inner.commands.send(Command::Look(reply)).is_err() {
            return;
        }
        let after = loop {
            match next.recv_timeout(WAIT_MAX) {
                Ok(after) => break after,
                Err(RecvTimeoutError::Timeout) if !inner.running.is_stopping() => {
                    inner.growth.beat();
                    tell_of_myself(inner);
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        };
        looked = Instant::now();
        let waited = match &journal {
            _ if inner.fed.wait(Duration::ZERO) => Ok(()),
            Some(journal) => inner.growth.asking(|| journal.wait(after, WAIT_MAX)),
            None => inner.growth.asking(|| inner.engine.journal()).map(|opened| journal = Some(opened)),
        };
        if let Err(error) = waited {
            tracing::debug!(%error, "cannot wait for the journal");
            journal = None;
            std::thread::sleep(PAUSE);
        }
    }
}

fn tell_of_myself(inner: &Inner) {
    let note = serde_json::to_string(&inner.note()).expect("a note is plain JSON");
    inner.leadership().set_note(note);
    inner.raise_format();
    inner.following.high_water.flush();
}
