//! The thread that asks the register what the rules want to know, and those who run the duties of each term.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use orchestrix_engine::{Claim, Register, Set};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::duty::{self, Duty, Term};
use crate::election::{Candidate, Change, Peer, Reason, Stands, Step};
use crate::elector::Elector;
use crate::event::LeadershipEvent;
use crate::leadership::{Command, EnsureError, RESTLESS_CHANGES, RESTLESS_TIME, Shared};
use crate::lister::{Lister, NODES};
use crate::options::{Options, Policy, Roster};
use crate::own_name::OwnName;
use crate::roster::Presence;

/// Between two looks whether a listing is there.
const LISTING_POLL: Duration = Duration::from_millis(20);

/// Between two looks at what is due.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// What is asked of the register, for people.
const READ: &str = "read who leads";
const SET: &str = "write who leads";
const SHOW: &str = "show that this node is present";
const LIST: &str = "list who is present";

/// What the thread tells those who run the duties.
pub(crate) enum TermChange {
    /// With who asked for the change of leader, if somebody did.
    Began(u64, Option<String>),
    Ended(Reason),
}

/// The thread that asks and writes.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    register: Arc<dyn Register>,
    key: String,
    elector: Elector,
    presence: Presence,
    name: OwnName,
    /// Another has this one's name: it stands and shows itself no more.
    gave_up: bool,
    next_heartbeat: Duration,
    next_list: Duration,
    lister: Lister,
    /// When a listing was asked for last, and when this one's own cell was written last.
    asked_at: Duration,
    shown_at: Duration,
    /// By a roster: when the mandate began, and when it is renewed.
    mandate: Option<(Duration, Duration)>,
    /// The term that the duties act under.
    acting: Option<u64>,
    term_changes: mpsc::UnboundedSender<TermChange>,
    /// Who waits for the end, and when it comes at the latest: what this one has is over by then.
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
            gave_up: false,
            next_heartbeat: Duration::ZERO,
            next_list: Duration::ZERO,
            lister,
            asked_at: Duration::ZERO,
            shown_at: Duration::ZERO,
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
            // The office comes first: what the others see of this one can wait for a slow register.
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
            // Whoever stops shows itself to nobody any more, so nothing of that is due.
            let until = match self.stopping {
                Some(_) => until,
                None if self.gave_up => until,
                None => until.min(self.next_heartbeat).min(self.list_due(now)).min(self.mandate_due()),
            };
            match asked.recv_timeout(until.saturating_sub(now).min(LONGEST_WAIT)) {
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => {}
                // Nobody has a handle any more, and nobody waits for the end.
                Err(RecvTimeoutError::Disconnected) if self.stopping.is_none() => {
                    self.obey(Command::Stop(oneshot::channel().0));
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

    /// Does one thing that the elector wants; answers until when there is nothing to do.
    fn step(&mut self) -> Duration {
        let clock = Arc::clone(&self.shared.clock);
        // A mandate that is over is passed on in this round.
        self.renew_mandate(clock.boot());
        let step = self.elector.next(clock.boot());
        // What is given away now is not trusted any more before anybody can hear that it is free.
        self.publish();
        match step {
            Step::Wait(until) => return until,
            Step::Read => match self.register.read(&self.key) {
                Ok(cell) => {
                    self.passed(READ);
                    self.elector.heard_cell(clock.boot(), cell);
                }
                Err(error) => {
                    self.failed(READ, &error);
                    self.elector.heard_nothing(clock.boot());
                }
            },
            Step::Set { seen, claim } => {
                let set = self.register.compare_and_set(&self.key, seen.as_ref(), &claim);
                let set = set.inspect(|set| self.heard(set)).inspect_err(|error| self.failed(SET, error));
                let set = set.ok();
                if let Some(Set::Done(_) | Set::Conflict(_)) = set {
                    // It says who leads, and whoever leads reads it no more.
                    self.passed(READ);
                }
                self.elector.heard_set(clock.boot(), set);
            }
        }
        Duration::ZERO
    }

    fn failed(&self, operation: &str, error: &orchestrix_engine::Error) {
        self.shared.trouble.failed(self.shared.clock.boot(), operation, &error.source.to_string());
    }

    fn passed(&self, operation: &str) {
        self.shared.trouble.passed(self.shared.clock.boot(), operation);
    }

    fn heard(&self, set: &Set) {
        match set {
            // Whoever does not stand any more writes only that it is present: a register that takes one takes the other.
            Set::Done(_) | Set::Conflict(_) => {
                [SET, SHOW].into_iter().for_each(|operation| self.passed(operation))
            }
            Set::Unknown => {}
        }
    }

    /// Shows that this one is present.
    fn heartbeat(&mut self, now: Duration) {
        let roster = roster_of(&self.shared.options);
        if now < self.next_heartbeat || self.stopping.is_some() || self.gave_up {
            return;
        }
        self.next_heartbeat = now + roster.heartbeat_interval;
        self.write_presence(true, roster.worker_timeout);
        let timestamp = self.shared.wall_ms_in(Duration::ZERO);
        self.shared
            .tell(LeadershipEvent::WorkerHeartbeat { worker_id: self.shared.me.name.clone(), timestamp });
    }

    fn write_presence(&mut self, held: bool, timeout: Duration) {
        let me = &self.shared.me;
        let note = self.shared.lock().note.clone();
        let peer = Peer { candidate: me.clone(), note, present: held, seen: Duration::ZERO };
        let claim = Claim {
            owner: me.name.clone(),
            epoch: 0,
            ttl_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
            held,
            value: serde_json::to_vec(&peer).expect("a candidate is plain JSON"),
        };
        let key = format!("{NODES}{}", me.name);
        for _ in 0..2 {
            let asked = self.shared.clock.boot();
            self.shown_at = asked;
            let set = self.register.compare_and_set(&key, self.name.version(), &claim);
            match set.inspect(|set| self.heard(set)) {
                Ok(Set::Done(version)) => return self.name.written(asked, version),
                // Whoever leaves says so only of itself.
                Ok(Set::Conflict(cell)) if !held && self.name.is_of_another(cell.as_ref()) => return,
                Ok(Set::Conflict(cell)) => {
                    if let Some(other) = self.name.met(asked, cell) {
                        return self.give_up(other);
                    }
                }
                Ok(Set::Unknown) => return,
                Err(error) => return self.failed(SHOW, &error),
            }
        }
    }

    /// Another has this one's name.
    fn give_up(&mut self, other: Candidate) {
        tracing::error!(
            name = other.name,
            address = other.address,
            "another of this name is alive: gives up"
        );
        self.gave_up = true;
        self.resign();
        self.shared.namesake.send_replace(Some(other));
    }

    /// Takes in what was listed, and asks for the next listing. Nobody waits for one here. A leader has
    /// the cells of nodes that are long gone removed.
    fn list(&mut self, now: Duration) {
        if self.stopping.is_some() || self.gave_up {
            return;
        }
        let found = self.lister.found();
        let is_due = now >= self.next_list && !self.lister.is_asked();
        if found.is_none() && !is_due {
            return;
        }
        match found {
            Some(Ok(cells)) => {
                self.passed(LIST);
                let own = cells.iter().find(|(id, _)| *id == self.shared.me.name);
                // A listing from before the last writing of this one's cell says nothing about who has its name.
                let own = own.filter(|_| self.asked_at > self.shown_at);
                if let Some(other) = own.and_then(|(_, cell)| self.name.seen(now, cell)) {
                    return self.give_up(other);
                }
                self.presence.heard(now, cells);
            }
            Some(Err(error)) => self.failed(LIST, &error),
            None => {}
        }
        let (present, peers) = (self.presence.present(now), self.presence.peers(now));
        {
            let mut status = self.shared.lock();
            (status.present, status.peers) = (present, peers);
        }
        if is_due {
            self.next_list = now + roster_of(&self.shared.options).heartbeat_interval / 3;
            self.asked_at = self.shared.clock.boot();
            let leads = self.elector.leads(now).is_some();
            self.lister.ask(if leads { self.presence.long_gone(now) } else { Vec::new() });
        }
    }

    /// When to look at listings again.
    fn list_due(&self, now: Duration) -> Duration {
        if self.lister.is_asked() { now + LISTING_POLL } else { self.next_list }
    }

    /// Whether to stand, and how far the cold start is.
    fn stand(&mut self, now: Duration) {
        let roster = matches!(self.shared.options.policy, Policy::Roster(_));
        let leads = self.elector.leads(now).is_some();
        for news in self.presence.advance(now, leads, self.elector.leader().is_some()) {
            self.shared.tell(news);
        }
        self.shared.lock().phase = self.presence.phase();
        self.elector.set_stands(match self.stopping {
            Some(_) => Stands::No,
            None if self.gave_up => Stands::No,
            None if !self.shared.options.enable_coordinator => Stands::No,
            None if !roster || self.presence.stands(now) => Stands::Yes,
            None => Stands::IfChosen,
        });
    }

    fn mandate_due(&self) -> Duration {
        self.mandate.map_or(Duration::MAX, |(_, renewed)| renewed)
    }

    /// Tells everybody what has changed.
    fn publish(&mut self) {
        let now = self.shared.clock.boot();
        for change in self.elector.take_changes() {
            self.tell_change(change, now);
        }
        if let Some(seen) = self.elector.leader_seen() {
            self.shared.saw_leader(seen);
        }
        let office = self.elector.leads(now).zip(self.elector.trusted_until());
        self.shared.lock().office = office.filter(|_| self.presence.acts());
        let acts = office.map(|(epoch, _)| epoch).filter(|_| self.presence.acts());
        if let Some(epoch) = acts.filter(|_| self.acting.is_none()) {
            self.acting = Some(epoch);
            let timestamp = self.shared.wall_ms_in(Duration::ZERO);
            let worker_id = self.shared.me.name.clone();
            self.shared.tell(LeadershipEvent::CoordinatorPromoted { worker_id, timestamp, term: epoch });
            // Duties that are gone do nothing.
            let _ =
                self.term_changes.send(TermChange::Began(epoch, self.elector.asked_by().map(str::to_owned)));
        }
    }

    fn tell_change(&mut self, change: Change, now: Duration) {
        let roster = roster_of(&self.shared.options);
        let worker_id = self.shared.me.name.clone();
        match change {
            Change::Elected { epoch } => {
                let ends = matches!(self.shared.options.policy, Policy::Roster(_));
                self.mandate = ends.then(|| (now, now + roster.max_epoch_duration));
                tracing::info!(epoch, "leads");
            }
            Change::Renewed { epoch } => {
                if self.shared.options.policy == Policy::FirstCome {
                    let new_epoch = self.shared.wall_ms_in(self.shared.options.leader_ttl);
                    self.shared.tell(LeadershipEvent::CoordinatorEpochRenewed {
                        worker_id,
                        new_epoch,
                        term: epoch,
                    });
                }
            }
            Change::Deposed { epoch, reason } => {
                self.mandate = None;
                self.shared.lock().office = None;
                tracing::info!(epoch, reason = reason.word(), "leads no more");
                self.shared.tell(LeadershipEvent::CoordinatorDemoted {
                    worker_id,
                    reason: reason.word().to_owned(),
                    term: epoch,
                });
                if self.acting.take().is_some() {
                    // Duties that are gone do nothing.
                    let _ = self.term_changes.send(TermChange::Ended(reason));
                }
            }
            Change::Leader(leader) => self.tell_leader(leader, now),
        }
    }

    fn tell_leader(&self, leader: Option<(Candidate, u64)>, now: Duration) {
        let mut status = self.shared.lock();
        status.leader.clone_from(&leader);
        let Some((holder, term)) = leader else { return };
        status.changes.push_back(now);
        while status.changes.front().is_some_and(|at| *at + RESTLESS_TIME < now) {
            status.changes.pop_front();
        }
        if status.changes.len() > RESTLESS_CHANGES {
            tracing::warn!(changes = status.changes.len(), within = ?RESTLESS_TIME, "the leader changes too often");
        }
        let active_workers = status.present.clone();
        drop(status);
        let epoch = self.shared.wall_ms_in(roster_of(&self.shared.options).max_epoch_duration);
        self.shared.tell(LeadershipEvent::CoordinatorElected {
            worker_id: holder.name,
            epoch,
            active_workers,
            term,
        });
    }

    /// At the end of a mandate the lowest id present gets the office; most often that is this one again.
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
        self.shared.tell(LeadershipEvent::CoordinatorEpochRenewed { worker_id, new_epoch, term });
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Stop(reply) => {
                self.resign();
                self.stopping = Some((reply, self.shared.clock.boot() + self.shared.options.leader_ttl));
            }
            Command::Ensure { force, desired, asker, reply } => {
                self.elector.ask_for(asker);
                // Whoever asked may be gone.
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
                leader => Err(EnsureError::NotLeader(leader.map_or("nobody", |(it, _)| &it.name).to_owned())),
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
        let youth = roster_of(&self.shared.options).min_epoch_duration;
        if !force && self.mandate.is_some_and(|(began, _)| now < began + youth) {
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

    /// The last thing: nobody is present here any more.
    fn leave(&mut self) {
        if !self.gave_up {
            self.write_presence(false, Duration::ZERO);
        }
        if let Some((reply, _)) = self.stopping.take() {
            // Whoever asked may be gone.
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
        let trusted_until = shared.lock().office.map(|(_, until)| until);
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
                    // A duty that does not end holds up nobody: its token is over, and with it its right to act.
                    running.detach_all();
                    for duty in &duties {
                        duty::deposed(&**duty, reason).await;
                    }
                }
                None => return over.into_iter().for_each(|over| over.cancel()),
            },
            // The thread may be waiting for an answer while the time runs out.
            () = tokio::time::sleep(left), if over.is_some() => {
                if shared.token().is_none() {
                    over.take().inspect(CancellationToken::cancel);
                }
            }
        }
    }
}

/// The roster that the options amount to.
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
