//! Shards in the loop: who is alive, who speaks for a worker, when a round is due, and who waits for one.
//!
//! What is here is soft: a new leader takes every worker for live for one time, and hears the rest from the workers. What
//! a worker has is in the state, and changes only by events.
//!
//! **Invariants:** a worker's shards pass on only when it let go of them in an answer to having been told, when it left,
//! or when the time is over that it was last promised. Whoever is not heard of is promised nothing.

mod belief;
mod ended;
mod overrule;
mod rounds;
mod soft;
mod views;

use orchestrix_core::limits::SHARD_WORKERS_MAX;
use orchestrix_core::shards::{ShardCommand, ShardWorker, kept_ms};
use orchestrix_core::wire::{Assignment, ServiceChange, ShardDeregister, ShardHeartbeat, ShardRegister};
use orchestrix_core::{Command, Decision, LeaveReason, Name, Position, Refusal, Timestamp, is_planted};

pub(crate) use self::soft::Sharding;
use self::soft::{Known, Waiting, join};

use crate::decision_loop::DecisionLoop;
use crate::request::{Answer, Error, Recipient};

/// Milliseconds between what makes a round needful and the round: those who come together are counted together.
const DEBOUNCE_MS: u64 = 250;
/// The same after a worker said that it goes: what it had is nobody's.
const LEAVE_MS: u64 = 20;

/// Registrations of a service that wait at one time: as many as it may have workers, each started again once.
const WAITING_MAX: usize = 2 * SHARD_WORKERS_MAX;

/// A question about shards.
#[derive(Clone, Debug)]
pub enum ShardAsk {
    Register {
        service: Name,
        worker: Name,
        body: ShardRegister,
    },
    Heartbeat {
        service: Name,
        worker: Name,
        body: ShardHeartbeat,
    },
    Deregister {
        service: Name,
        worker: Name,
        body: ShardDeregister,
    },
    Change {
        service: Name,
        change: ServiceChange,
    },
    /// What a worker should serve now; promises no time.
    Assignment {
        service: Name,
        worker: Name,
        /// Who asks; another process of the name is answered nothing.
        session: Name,
    },
    Service(ServicePage),
    Services {
        group: Option<Name>,
    },
}

/// A page of the shards of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePage {
    pub service: Name,
    /// The first shard.
    pub from: u32,
    /// Shards at most; bytes are limited, too.
    pub limit: usize,
}

impl From<Name> for ServicePage {
    fn from(service: Name) -> Self {
        Self { service, from: 0, limit: usize::MAX }
    }
}

/// How long workers are believed.
#[derive(Clone, Copy, Debug)]
pub struct ShardTimes {
    /// Milliseconds that a worker may serve after its last heartbeat.
    pub lease_ms: u64,
    /// Milliseconds that two heartbeats are apart at least, for a worker that echoes no generation to be believed that it
    /// let go.
    pub check_ms: u64,
}

impl Default for ShardTimes {
    fn default() -> Self {
        Self { lease_ms: 15_000, check_ms: 5_000 }
    }
}

/// The session of a process; none can do without, because two of one name would be taken for one.
fn session_of(given: Option<&Name>) -> Result<Name, Refusal> {
    let problem =
        || "is missing: it tells two processes of one worker apart, so draw one when a process starts";
    given.cloned().ok_or_else(|| Refusal::Invalid { field: "session", problem: problem().to_owned() })
}

impl<R: Recipient> DecisionLoop<R> {
    /// A term began: whoever has shards is taken for live for one time of this term, and for as long as the terms before
    /// it have promised.
    pub(crate) fn begin_shards(&mut self, now: Timestamp) {
        let mut until = self.promised_until(now).max(now.plus(self.state.owed_ms()));
        if is_planted("new-leader-does-not-wait") {
            until = now;
        } else if is_planted("own-shard-lease-for-others") {
            until = self.promised_until(now);
        }
        let workers: Vec<(Name, Name, Option<Name>)> = self
            .state
            .services()
            .flat_map(|(name, service)| {
                let of_service = |(worker, there): (&Name, &ShardWorker)| {
                    (name.clone(), worker.clone(), there.session.clone())
                };
                service.workers.iter().map(of_service)
            })
            .collect();
        let empty = self.state.services().filter(|(_, service)| service.workers.is_empty());
        let empty: Vec<Name> = empty.map(|(name, _)| name.clone()).collect();
        for service in empty {
            self.sharding.services.entry(service.clone()).or_default().idle_since = Some(now);
            self.schedule(&service);
        }
        for (service, worker, session) in workers {
            let soft = self.sharding.services.entry(service.clone()).or_default();
            let known = soft.promise(&worker, until);
            known.session = session.filter(|_| !is_planted("sessions-forgotten"));
            known.is_unheard = known.session.is_some();
            soft.want_round(DEBOUNCE_MS, now);
            self.schedule(&service);
        }
    }

    pub(crate) fn next_shards(&self) -> Option<Timestamp> {
        self.sharding.due.first().map(|(at, _)| *at)
    }

    fn promised_until(&self, now: Timestamp) -> Timestamp {
        now.plus(kept_ms(self.options.shards.lease_ms))
    }

    /// Takes a question. A worker that comes is answered when its round has settled.
    pub(crate) fn ask_shards(&mut self, ask: ShardAsk, to: R, now: Timestamp) {
        let answer = match ask {
            ShardAsk::Register { service, worker, body } => {
                return self.register(service, worker, body, to, now);
            }
            ShardAsk::Heartbeat { body, .. } if self.is_of_another_journal(&body) => {
                Ok(Answer::Assignment(Assignment { seq: body.seq, fenced: true, ..Assignment::default() }))
            }
            ShardAsk::Heartbeat { service, worker, body } => {
                let session = match session_of(body.session.as_ref()) {
                    Ok(session) => session,
                    Err(refusal) => return self.reply_refused(to, refusal),
                };
                if body.assigned_shards.is_empty() && self.is_new(&service, &worker, &session) {
                    let ShardHeartbeat { max_shard_count, session, seq, capacity, group, by, .. } = body;
                    let body = ShardRegister { max_shard_count, capacity, group, session, seq, by };
                    return self.register(service, worker, body, to, now);
                }
                self.shard_heartbeat(&service, &worker, (body, session), now)
            }
            ShardAsk::Deregister { service, worker, body } => self.deregister(&service, &worker, &body, now),
            ShardAsk::Change { service, change } => self.change_service(&service, change, now),
            ShardAsk::Assignment { service, worker, session } => {
                Ok(Answer::Assignment(self.look_up(&service, &worker, &session)))
            }
            ShardAsk::Service(page) => self.service_view(&page, now),
            ShardAsk::Services { group } => Ok(Answer::Services(self.service_list(group.as_ref()))),
        };
        self.reply(to, answer);
    }

    fn register(&mut self, service: Name, worker: Name, body: ShardRegister, to: R, now: Timestamp) {
        // Whoever cannot come is in nobody's way.
        let command = Command::Shard(join(&service, &worker, &body));
        let can_come = command.validate().and_then(|()| self.state.decide(&command, now).map(drop));
        let session = match can_come.and_then(|()| session_of(body.session.as_ref())) {
            Ok(session) => session,
            Err(refusal) => return self.reply_refused(to, refusal),
        };
        let soft = self.sharding.services.entry(service.clone()).or_default();
        if soft.waiting.len() >= WAITING_MAX {
            return self.reply(to, Err(Error::Overloaded));
        }
        // A repeat of a call that waits takes its place.
        let repeats = |waiting: &mut Waiting<R>| waiting.worker == worker && waiting.session == session;
        let repeated: Vec<Waiting<R>> = soft.waiting.extract_if(.., repeats).collect();
        let is_there = self.state.service(&service).is_some_and(|known| known.workers.contains_key(&worker));
        let known = soft.workers.get_mut(&worker).filter(|_| is_there);
        // One that registers in the term after it came has stopped meanwhile, and gets other tokens.
        let is_ours = |known: &&mut Known| {
            !known.replaced && !known.is_unheard && known.session.as_ref() == Some(&session)
        };
        let ours = known.as_ref().is_some_and(is_ours);
        let lease_ms = self.options.shards.lease_ms;
        let mut until = now.plus(lease_ms.saturating_sub(1_000).max(lease_ms / 4 * 3));
        if let Some(known) = known.filter(|_| !ours) {
            known.replaced = true;
            if let Some(before) = &known.session {
                self.sharding.ended.add(&service, &worker, before);
            }
            // Some workers listen only once: whoever starts again gets its share, not nothing.
            until = until.max(known.until.plus(4 * DEBOUNCE_MS));
        }
        let waited_until = repeated.last().map(|waiting| waiting.until);
        for waiting in repeated {
            let nothing = Assignment { seq: waiting.body.seq, ..Assignment::default() };
            self.reply(waiting.to, Ok(Answer::Assignment(nothing)));
        }
        if ours {
            self.promise(&service, &worker, now);
            let said = self
                .say_count(&service, &worker, body.max_shard_count, now)
                .and_then(|()| self.say_capacity(&service, &worker, body.capacity, now));
            if let (Ok(()), Some(until)) = (&said, waited_until) {
                let soft = self.sharding.services.entry(service.clone()).or_default();
                soft.waiting.push(Waiting::new(to, worker, session, body, until));
                return self.schedule(&service);
            }
            self.schedule(&service);
            let answer = said.map(|()| Answer::Assignment(self.promised(&service, &worker, body.seq)));
            return self.reply(to, answer);
        }
        self.wait(&service, Waiting::new(to, worker, session, body, until), now);
    }

    /// Lets a worker in if nobody of its name is in its way, and lets it wait for its share.
    fn wait(&mut self, service: &Name, waiting: Waiting<R>, now: Timestamp) {
        match self.try_join(service, &waiting, now) {
            Ok(()) => {
                let soft = self.sharding.services.entry(service.clone()).or_default();
                soft.waiting.push(waiting);
                self.schedule(service);
            }
            Err(refused) => {
                self.schedule(service);
                self.reply(waiting.to, Err(refused));
            }
        }
    }

    fn try_join(&mut self, service: &Name, waiting: &Waiting<R>, now: Timestamp) -> Result<(), Error> {
        let known = self.state.service(service);
        if let Some(there) = known.filter(|known| known.workers.contains_key(&waiting.worker)) {
            let has_some = there.tokens_of(&waiting.worker).next().is_some();
            if has_some && !is_planted("second-process-at-once") {
                return Ok(());
            }
            self.leave(service, &waiting.worker, LeaveReason::Fenced, now)?;
        }
        self.shard_command(join(service, &waiting.worker, &waiting.body), now)?;
        let until = self.promised_until(now);
        self.sharding.ended.remove(service, &waiting.worker, &waiting.session);
        let soft = self.sharding.services.entry(service.clone()).or_default();
        soft.idle_since = None;
        let known = soft.promise(&waiting.worker, until);
        (known.session, known.plain) = (Some(waiting.session.clone()), waiting.body.seq.is_none());
        soft.want_round(DEBOUNCE_MS, now);
        Ok(())
    }

    fn shard_heartbeat(
        &mut self,
        service: &Name,
        worker: &Name,
        (body, session): (ShardHeartbeat, Name),
        now: Timestamp,
    ) -> Result<Answer, Error> {
        let ShardHeartbeat { max_shard_count, assigned_shards, generation, seq, .. } = body;
        if !self.speaks_for(service, worker, &session, (&assigned_shards, generation), now) {
            let fenced = Assignment { seq, fenced: true, ..Assignment::default() };
            return Ok(Answer::Assignment(fenced));
        }
        if !is_planted("heartbeat-unheeded") {
            self.promise(service, worker, now);
        }
        self.say_count(service, worker, max_shard_count, now)?;
        let let_go = self.let_go_of(service, worker, &assigned_shards, generation, now);
        if !let_go.is_empty() {
            let (service, worker, shards) = (service.clone(), worker.clone(), let_go);
            self.shard_command(ShardCommand::LetGo { service: service.clone(), worker, shards }, now)?;
            self.want_round(&service, 0, now);
        }
        let ignored = self.ignored_by(service, worker, &assigned_shards, (generation, seq));
        self.overrule(service, worker, ignored, now)?;
        let answer = self.promised(service, worker, seq);
        self.overrule_for_waiting(service, now)?;
        self.schedule(service);
        Ok(Answer::Assignment(answer))
    }

    fn deregister(
        &mut self,
        service: &Name,
        worker: &Name,
        body: &ShardDeregister,
        now: Timestamp,
    ) -> Result<Answer, Error> {
        let session = session_of(body.session.as_ref()).map_err(|refusal| self.refuse(refusal))?;
        let known = self.sharding.services.get(service).and_then(|soft| soft.workers.get(worker));
        let is_other = known.is_none_or(|known| known.replaced || known.session.as_ref() != Some(&session));
        if is_other && !is_planted("any-session-leaves") {
            let fenced = Assignment { seq: body.seq, fenced: true, ..Assignment::default() };
            return Ok(Answer::Assignment(fenced));
        }
        self.leave(service, worker, LeaveReason::Deregistered, now)?;
        self.want_round(service, LEAVE_MS, now);
        self.schedule(service);
        Ok(Answer::Assignment(Assignment { lease_ms: 0, ..self.assignment(service, worker, body.seq) }))
    }

    fn leave(
        &mut self,
        service: &Name,
        worker: &Name,
        reason: LeaveReason,
        now: Timestamp,
    ) -> Result<(), Error> {
        let command = ShardCommand::Leave { service: service.clone(), worker: worker.clone(), reason };
        self.shard_command(command, now)?;
        let known = self.sharding.services.get_mut(service).and_then(|soft| soft.forget(worker, now));
        if let Some(session) = known.and_then(|known| known.session) {
            self.sharding.ended.add(service, worker, &session);
        }
        Ok(())
    }

    fn say_count(&mut self, service: &Name, worker: &Name, count: u32, now: Timestamp) -> Result<(), Error> {
        let command =
            ShardCommand::SetCount { service: service.clone(), count, worker: Some(worker.clone()) };
        if self.shard_command(command, now)?.is_some() {
            self.want_round(service, DEBOUNCE_MS, now);
        }
        Ok(())
    }

    fn say_capacity(
        &mut self,
        service: &Name,
        worker: &Name,
        capacity: Option<u32>,
        now: Timestamp,
    ) -> Result<(), Error> {
        let (of, worker) = (service.clone(), worker.clone());
        if self.shard_command(ShardCommand::SetCapacity { service: of, worker, capacity }, now)?.is_some() {
            self.want_round(service, DEBOUNCE_MS, now);
        }
        Ok(())
    }

    fn change_service(
        &mut self,
        service: &Name,
        change: ServiceChange,
        now: Timestamp,
    ) -> Result<Answer, Error> {
        if let Some(count) = change.shard_count {
            let command = ShardCommand::SetCount { service: service.clone(), count, worker: None };
            self.shard_command(command, now)?;
        }
        if let Some(weights) = change.weights.filter(|_| change.shard_count != Some(0)) {
            self.shard_command(ShardCommand::SetWeights { service: service.clone(), weights }, now)?;
        }
        if self.state.service(service).is_none() {
            // It had no workers, and has no shards any more.
            self.schedule(service);
            return Ok(Answer::Service(Box::new(views::forgotten(service, self.state.position()))));
        }
        self.want_round(service, DEBOUNCE_MS, now);
        self.schedule(service);
        self.service_view(&service.clone().into(), now)
    }

    /// Sends those who came and wait for their share to whoever leads next; to come again changes nothing.
    pub(crate) fn dismiss_shards(&mut self) {
        let waiting: Vec<Waiting<R>> =
            self.sharding.services.values_mut().flat_map(|soft| std::mem::take(&mut soft.waiting)).collect();
        for waiting in waiting {
            self.reply(waiting.to, Err(Error::Stopping));
        }
    }

    fn promise(&mut self, service: &Name, worker: &Name, now: Timestamp) {
        let until = self.promised_until(now);
        if let Some(soft) = self.sharding.services.get_mut(service) {
            soft.promise(worker, until);
        }
    }

    /// What a worker should serve, in an answer that it will have heard.
    fn promised(&mut self, service: &Name, worker: &Name, seq: Option<u64>) -> Assignment {
        let answer = self.assignment(service, worker, seq);
        let soft = self.sharding.services.get_mut(service);
        if let Some(known) = soft.and_then(|soft| soft.workers.get_mut(worker)) {
            known.told = answer.generation;
        }
        answer
    }

    fn want_round(&mut self, service: &Name, after_ms: u64, now: Timestamp) {
        self.sharding.services.entry(service.clone()).or_default().want_round(after_ms, now);
    }

    /// Notes down when a service is due next.
    fn schedule(&mut self, service: &Name) {
        let Some(soft) = self.sharding.services.get_mut(service) else { return };
        if let Some(before) = soft.due.take() {
            self.sharding.due.remove(&(before, service.clone()));
        }
        if soft.is_idle() && self.state.service(service).is_none() {
            self.sharding.services.remove(service);
            return;
        }
        soft.due = soft.next_due();
        if let Some(due) = soft.due {
            self.sharding.due.insert((due, service.clone()));
        }
    }

    fn reply_refused(&mut self, to: R, refusal: Refusal) {
        let refused = self.refuse(refusal);
        self.reply(to, Err(refused));
    }

    /// Decides and commits. Answers where the event stands, if there was one.
    fn shard_command(&mut self, command: ShardCommand, now: Timestamp) -> Result<Option<Position>, Error> {
        let command = Command::Shard(command);
        command.validate()?;
        match self.state.decide(&command, now) {
            Ok(Decision::Event(event)) => Ok(Some(self.commit(event, now))),
            Ok(Decision::Already(_) | Decision::Nothing) => Ok(None),
            Err(refusal) => Err(self.refuse(refusal)),
        }
    }
}
