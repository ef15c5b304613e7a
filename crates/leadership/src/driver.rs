//! The thread that does the register's I/O for the election rules, and the task that runs the duties of each term.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use orchestrix_engine::{Register, Set};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::duty::{self, Duty, Term};
use crate::election::{Candidate, Change, Reason, Stands, Step};
use crate::elector::Elector;
use crate::event::LeadershipEvent;
use crate::leadership::{Command, EnsureError, FLAPPING_CHANGES, FLAPPING_WINDOW, Shared};
use crate::lister::{Lister, NODES};
use crate::options::{Options, Policy, Roster};
use crate::own_name::OwnName;
use crate::roster::{Presence, presence_claim};

/// How often to check whether a listing has arrived.
const LISTING_POLL: Duration = Duration::from_millis(20);

/// The longest wait of the thread.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Operations on the register, as they appear in messages.
const READ: &str = "read the leader cell";
const SET: &str = "write the leader cell";
const SHOW: &str = "write the presence cell";
const LIST: &str = "list present nodes";

/// What the thread sends to the task that runs the duties.
pub(crate) enum TermChange {
    /// The epoch, and who requested the change of leader, if anyone did.
    Began(u64, Option<String>),
    Ended(Reason),
}

/// The thread that reads and writes the register.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    register: Arc<dyn Register>,
    key: String,
    elector: Elector,
    presence: Presence,
    name: OwnName,
    /// Another live node has this name: this one neither stands nor sends heartbeats any more.
    name_lost: bool,
    next_heartbeat: Duration,
    next_list: Duration,
    lister: Lister,
    /// When the last listing was requested, and when the own presence cell was last written.
    list_requested_at: Duration,
    presence_written_at: Duration,
    /// With the roster policy: when the mandate began, and when it is renewed.
    mandate: Option<(Duration, Duration)>,
    /// The term that the duties act under.
    acting: Option<u64>,
    term_changes: mpsc::UnboundedSender<TermChange>,
    /// Who waits for the stop, and the deadline: the lease has expired by then.
    stopping: Option<(oneshot::Sender<()>, Duration)>,
}

impl Driver {
    pub(crate) fn new(
        shared: Arc<Shared>,
        register: Arc<dyn Register>,
        key: &str,
        elector: Elector,
        presence: Presence,
        term_changes: mpsc::UnboundedSender<TermChange>,
    ) -> std::io::Result<Self> {
        let name = OwnName::new(shared.me.clone(), roster_of(&shared.options).worker_timeout);
        let lister = Lister::start(Arc::clone(&register))?;
        Ok(Self {
            shared,
            register,
            key: key.to_owned(),
            elector,
            presence,
            name,
            name_lost: false,
            next_heartbeat: Duration::ZERO,
            next_list: Duration::ZERO,
            lister,
            list_requested_at: Duration::ZERO,
            presence_written_at: Duration::ZERO,
            mandate: None,
            acting: None,
            term_changes,
            stopping: None,
        })
    }

    pub(crate) fn run(mut self, asked: &Receiver<Command>) {
        loop {
            let now = self.shared.clock.boot();
            self.stand(now);
            self.elector.prove(Duration::from_micros(self.shared.proved_us.load(Relaxed)));
            // The lease comes first: presence can wait for a slow register.
            let until = self.step();
            self.publish();
            self.heartbeat(now);
            self.list(now);
            let now = self.shared.clock.boot();
            let over = |(_, at_latest): &(_, Duration)| self.elector.is_settled() || now >= *at_latest;
            if self.stopping.as_ref().is_some_and(over) {
                self.leave();
                return;
            }
            // A stopping node sends no heartbeats and reads no listings.
            let until = match self.stopping {
                Some(_) => until,
                None if self.name_lost => until,
                None => until.min(self.next_heartbeat).min(self.list_due(now)).min(self.mandate_due()),
            };
            match asked.recv_timeout(until.saturating_sub(now).min(LONGEST_WAIT)) {
                Ok(command) => self.handle(command),
                Err(RecvTimeoutError::Timeout) => {}
                // All handles are gone, so nothing waits for the stop.
                Err(RecvTimeoutError::Disconnected) if self.stopping.is_none() => {
                    self.handle(Command::Stop(oneshot::channel().0));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.shared.clock.pause(until.saturating_sub(now).min(LONGEST_WAIT));
                }
            }
            if self.stopping.is_none() && self.term_changes.is_closed() {
                return;
            }
        }
    }

    /// Does one step of the elector; returns until when there is nothing to do.
    fn step(&mut self) -> Duration {
        let clock = Arc::clone(&self.shared.clock);
        // A mandate that is over is transferred in this step.
        self.renew_mandate(clock.boot());
        let step = self.elector.next(clock.boot());
        // This node must stop acting before the release can be seen by others.
        self.publish();
        match step {
            Step::Wait(until) => return until,
            Step::Read => match self.register.read(&self.key) {
                Ok(cell) => {
                    self.succeeded(READ);
                    self.elector.on_read(clock.boot(), cell);
                }
                Err(error) => {
                    self.failed(READ, &error);
                    self.elector.on_read_failed(clock.boot());
                }
            },
            Step::Set { seen, claim } => {
                let set = self.register.compare_and_set(&self.key, seen.as_ref(), &claim);
                let set = set
                    .inspect(|set| self.clear_write_failures(set))
                    .inspect_err(|error| self.failed(SET, error));
                let set = set.ok();
                if let Some(Set::Done(_) | Set::Conflict(_)) = set {
                    // It says who leads, and a leader never reads the cell again.
                    self.succeeded(READ);
                }
                self.elector.on_set(clock.boot(), set);
            }
        }
        Duration::ZERO
    }

    fn failed(&self, operation: &str, error: &orchestrix_engine::Error) {
        self.shared.throttle.failed(self.shared.clock.boot(), operation, &error.source.to_string());
    }

    fn succeeded(&self, operation: &str) {
        self.shared.throttle.succeeded(self.shared.clock.boot(), operation);
    }

    fn clear_write_failures(&self, set: &Set) {
        match set {
            // A candidate that no longer stands writes only its presence: a register that accepts one accepts the other.
            Set::Done(_) | Set::Conflict(_) => {
                [SET, SHOW].into_iter().for_each(|operation| self.succeeded(operation))
            }
            Set::Unknown => {}
        }
    }

    /// Writes the presence cell if a heartbeat is due.
    fn heartbeat(&mut self, now: Duration) {
        let roster = roster_of(&self.shared.options);
        if now < self.next_heartbeat || self.stopping.is_some() || self.name_lost {
            return;
        }
        self.next_heartbeat = now + roster.heartbeat_interval;
        self.write_presence(true, roster.worker_timeout);
        let timestamp = self.shared.wall_ms_in(Duration::ZERO);
        self.shared
            .emit(LeadershipEvent::WorkerHeartbeat { worker_id: self.shared.me.name.clone(), timestamp });
    }

    fn write_presence(&mut self, held: bool, timeout: Duration) {
        let me = &self.shared.me;
        let note = self.shared.lock().note.clone();
        let claim = presence_claim(me, &note, held.then_some(timeout));
        let key = format!("{NODES}{}", me.name);
        for _ in 0..2 {
            let asked = self.shared.clock.boot();
            self.presence_written_at = asked;
            let set = self.register.compare_and_set(&key, self.name.version(), &claim);
            match set.inspect(|set| self.clear_write_failures(set)) {
                Ok(Set::Done(version)) => return self.name.written(asked, version),
                // A leaving node changes only its own cell.
                Ok(Set::Conflict(cell)) if !held && self.name.is_of_another(cell.as_ref()) => return,
                Ok(Set::Conflict(cell)) => {
                    if let Some(other) = self.name.met(asked, cell) {
                        return self.lose_name(other);
                    }
                }
                Ok(Set::Unknown) => return,
                Err(error) => return self.failed(SHOW, &error),
            }
        }
    }

    /// Another live node has this name.
    fn lose_name(&mut self, other: Candidate) {
        tracing::error!(
            name = other.name,
            address = other.address,
            "node name already in use, shutting down"
        );
        self.name_lost = true;
        self.resign();
        self.shared.namesake.send_replace(Some(other));
    }

    /// Takes in a finished listing and requests the next. Never waits for one. The leader also has the cells of nodes
    /// that are long gone removed.
    fn list(&mut self, now: Duration) {
        if self.stopping.is_some() || self.name_lost {
            return;
        }
        let found = self.lister.found();
        let is_due = now >= self.next_list && !self.lister.is_asked();
        if found.is_none() && !is_due {
            return;
        }
        // Time alone says nothing between two listings: a candidate with a short timeout would look gone before each.
        let listed = found.as_ref().map(Result::is_ok);
        match found {
            Some(Ok(cells)) => {
                self.succeeded(LIST);
                let own = cells.iter().find(|(id, _)| *id == self.shared.me.name);
                // A listing requested before the last write of the own cell says nothing about who has the name.
                let own = own.filter(|_| self.list_requested_at > self.presence_written_at);
                if let Some(other) = own.and_then(|(_, cell)| self.name.seen(now, cell)) {
                    return self.lose_name(other);
                }
                self.presence.update(now, cells);
            }
            Some(Err(error)) => self.failed(LIST, &error),
            None => {}
        }
        if let Some(listed) = listed {
            let (present, peers) = (self.presence.present(now), self.presence.peers(now));
            let mut status = self.shared.lock();
            (status.present, status.peers, status.listed) = (present, peers, listed);
        }
        if is_due {
            self.next_list = now + roster_of(&self.shared.options).heartbeat_interval / 3;
            self.list_requested_at = self.shared.clock.boot();
            let leads = self.elector.leads(now).is_some();
            self.lister.ask(if leads { self.presence.long_gone(now) } else { Vec::new() });
        }
    }

    /// When to check for listings again.
    fn list_due(&self, now: Duration) -> Duration {
        if self.lister.is_asked() { now + LISTING_POLL } else { self.next_list }
    }

    /// Decides whether to stand, and advances the cold start.
    fn stand(&mut self, now: Duration) {
        let roster = matches!(self.shared.options.policy, Policy::Roster(_));
        let leads = self.elector.leads(now).is_some();
        for event in self.presence.advance(now, leads, self.elector.leader().is_some()) {
            self.shared.emit(event);
        }
        self.shared.lock().phase = self.presence.phase();
        self.elector.set_stands(match self.stopping {
            Some(_) => Stands::No,
            None if self.name_lost => Stands::No,
            None if !self.shared.options.enable_coordinator => Stands::No,
            None if !roster || self.presence.stands(now) => Stands::Yes,
            None => Stands::IfChosen,
        });
    }

    fn mandate_due(&self) -> Duration {
        self.mandate.map_or(Duration::MAX, |(_, renewed)| renewed)
    }

    /// Publishes changes of leadership.
    fn publish(&mut self) {
        let now = self.shared.clock.boot();
        for change in self.elector.take_changes() {
            self.publish_change(change, now);
        }
        if let Some(seen) = self.elector.leader_seen() {
            self.shared.saw_leader(seen);
        }
        let lease = self.elector.leads(now).zip(self.elector.trusted_until());
        self.shared.lock().lease = lease.filter(|_| self.presence.acts());
        let acts = lease.map(|(epoch, _)| epoch).filter(|_| self.presence.acts());
        if let Some(epoch) = acts.filter(|_| self.acting.is_none()) {
            self.acting = Some(epoch);
            let timestamp = self.shared.wall_ms_in(Duration::ZERO);
            let worker_id = self.shared.me.name.clone();
            self.shared.emit(LeadershipEvent::CoordinatorPromoted { worker_id, timestamp, term: epoch });
            // The duties may have ended.
            let _ =
                self.term_changes.send(TermChange::Began(epoch, self.elector.asked_by().map(str::to_owned)));
        }
    }

    fn publish_change(&mut self, change: Change, now: Duration) {
        let roster = roster_of(&self.shared.options);
        let worker_id = self.shared.me.name.clone();
        match change {
            Change::Elected { epoch } => {
                let ends = matches!(self.shared.options.policy, Policy::Roster(_));
                self.mandate = ends.then(|| (now, now + roster.max_epoch_duration));
                tracing::info!(epoch, "became leader");
            }
            Change::Renewed { epoch } => {
                if self.shared.options.policy == Policy::FirstCome {
                    let new_epoch = self.shared.wall_ms_in(self.shared.options.leader_ttl);
                    self.shared.emit(LeadershipEvent::CoordinatorEpochRenewed {
                        worker_id,
                        new_epoch,
                        term: epoch,
                    });
                }
            }
            Change::Deposed { epoch, reason } => {
                self.mandate = None;
                self.shared.lock().lease = None;
                tracing::info!(epoch, reason = reason.word(), "lost leadership");
                self.shared.emit(LeadershipEvent::CoordinatorDemoted {
                    worker_id,
                    reason: reason.word().to_owned(),
                    term: epoch,
                });
                if self.acting.take().is_some() {
                    // The duties may have ended.
                    let _ = self.term_changes.send(TermChange::Ended(reason));
                }
            }
            Change::Leader(leader) => self.publish_leader(leader, now),
        }
    }

    fn publish_leader(&self, leader: Option<(Candidate, u64)>, now: Duration) {
        let mut status = self.shared.lock();
        status.leader.clone_from(&leader);
        let Some((holder, term)) = leader else { return };
        status.changes.push_back(now);
        while status.changes.front().is_some_and(|at| *at + FLAPPING_WINDOW < now) {
            status.changes.pop_front();
        }
        if status.changes.len() > FLAPPING_CHANGES {
            tracing::warn!(changes = status.changes.len(), within = ?FLAPPING_WINDOW, "leader changes too often");
        }
        let active_workers = status.present.clone();
        drop(status);
        let epoch = self.shared.wall_ms_in(roster_of(&self.shared.options).max_epoch_duration);
        self.shared.emit(LeadershipEvent::CoordinatorElected {
            worker_id: holder.name,
            epoch,
            active_workers,
            term,
        });
    }

    /// At the end of a mandate the lowest id present becomes leader; most often that is this node again.
    fn renew_mandate(&mut self, now: Duration) {
        let Policy::Roster(roster) = self.shared.options.policy.clone() else { return };
        let Some((_, renewed)) = self.mandate.filter(|(_, renewed)| now >= *renewed) else { return };
        let Some(term) = self.elector.leads(now) else { return };
        let lowest = self.presence.lowest(now).filter(|lowest| lowest.name != self.shared.me.name);
        if let Some(lowest) = lowest {
            self.elector.pass(now, lowest);
            return;
        }
        self.mandate = Some((renewed, now + roster.max_epoch_duration));
        let new_epoch = self.shared.wall_ms_in(roster.max_epoch_duration);
        let worker_id = self.shared.me.name.clone();
        self.shared.emit(LeadershipEvent::CoordinatorEpochRenewed { worker_id, new_epoch, term });
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Stop(reply) => {
                self.resign();
                self.stopping = Some((reply, self.shared.clock.boot() + self.shared.options.leader_ttl));
            }
            Command::Ensure { force, desired, asker, reply } => {
                self.elector.ask_for(asker);
                // The caller may be gone.
                let _ = reply.send(self.ensure(force, desired.as_deref()));
                self.elector.ask_for(None);
            }
            Command::RaiseEpoch(seen) => self.elector.raise_epoch(seen),
            Command::LetGo(epoch) => {
                let now = self.shared.clock.boot();
                if self.elector.leads(now) == Some(epoch) {
                    self.elector.resign(now);
                    self.elector.rest(now + self.shared.options.leader_ttl / 4);
                }
            }
        }
    }

    fn ensure(&mut self, force: bool, desired: Option<&str>) -> Result<(), EnsureError> {
        let now = self.shared.clock.boot();
        if self.elector.leads(now).is_none() {
            return match self.elector.leader() {
                None if desired.is_none() => Ok(()),
                leader => Err(EnsureError::NotLeader(leader.map_or("none", |(it, _)| &it.name).to_owned())),
            };
        }
        let Some(desired) = desired else {
            if force {
                self.elector.resign(now);
            }
            return Ok(());
        };
        if desired == self.shared.me.name {
            return Ok(());
        }
        let to =
            self.presence.candidate(desired, now).ok_or_else(|| EnsureError::Absent(desired.to_owned()))?;
        let min_mandate = roster_of(&self.shared.options).min_epoch_duration;
        if !force && self.mandate.is_some_and(|(began, _)| now < began + min_mandate) {
            return Err(EnsureError::Mandate);
        }
        self.elector.pass(now, to);
        Ok(())
    }

    fn resign(&mut self) {
        self.elector.set_stands(Stands::No);
        self.elector.resign(self.shared.clock.boot());
        self.publish();
    }

    /// Marks this node as absent, and reports the stop.
    fn leave(&mut self) {
        if !self.name_lost {
            self.write_presence(false, Duration::ZERO);
        }
        if let Some((reply, _)) = self.stopping.take() {
            // The caller may be gone.
            let _ = reply.send(());
        }
    }
}

/// Runs the duties of one term after the other.
pub(crate) async fn run_duties(
    shared: Arc<Shared>,
    duties: Vec<Arc<dyn Duty>>,
    mut term_changes: mpsc::UnboundedReceiver<TermChange>,
) {
    let mut over: Option<CancellationToken> = None;
    let mut running = tokio::task::JoinSet::new();
    loop {
        let trusted_until = shared.lock().lease.map(|(_, until)| until);
        let left = trusted_until
            .map_or(Duration::from_secs(3_600), |until| until.saturating_sub(shared.clock.boot()));
        tokio::select! {
            change = term_changes.recv() => match change {
                Some(TermChange::Began(epoch, asked_by)) => {
                    let term = Term { epoch, over: CancellationToken::new(), asked_by };
                    for duty in &duties {
                        running.spawn(duty::run(Arc::clone(duty), term.clone()));
                    }
                    over = Some(term.over);
                }
                Some(TermChange::Ended(reason)) => {
                    over.take().inspect(CancellationToken::cancel);
                    // A duty that does not end delays nothing: its token is cancelled, and with it its right to act.
                    running.detach_all();
                    for duty in &duties {
                        duty::deposed(&**duty, reason).await;
                    }
                }
                None => return over.into_iter().for_each(|over| over.cancel()),
            },
            // The thread may be waiting for the register while the lease expires.
            () = tokio::time::sleep(left), if over.is_some() => {
                if shared.token().is_none() {
                    over.take().inspect(CancellationToken::cancel);
                }
            }
        }
    }
}

/// The roster settings that the options imply.
pub(crate) fn roster_of(options: &Options) -> Roster {
    match &options.policy {
        Policy::Roster(roster) => roster.clone(),
        Policy::FirstCome => Roster {
            heartbeat_interval: options.leader_renew,
            worker_timeout: options.leader_ttl,
            min_epoch_duration: Duration::ZERO,
            max_epoch_duration: options.leader_ttl,
            cold_start_observation_window: Duration::ZERO,
            cold_start_preparation_delay: Duration::ZERO,
            skip_cold_start: true,
        },
    }
}
