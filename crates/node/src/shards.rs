//! Shards in the loop: live workers and their processes, due rebalances, and waiting registrations.
//!
//! What is here is soft: a new leader takes every worker for live for one time, and hears the rest from the workers. What
//! a worker has is in the state, and changes only by events.
//!
//! **Invariants:** the shards of a worker move only after it released them in answer to a withdrawal, after it left,
//! or after its last promised lease ended. A worker without a heartbeat is promised nothing.

mod belief;
mod counting;
mod ended;
mod overrule;
mod rebalance;
mod request;
mod soft;
mod views;

use orchestrix_core::limits::SHARD_WORKERS_MAX;
use orchestrix_core::shards::{ShardCommand, ShardWorker, kept_ms};
use orchestrix_core::wire::{Assignment, ServiceChange, ShardDeregister, ShardHeartbeat, ShardRegister};
use orchestrix_core::{
    Command, Decision, Event, LeaveReason, Name, Position, Refusal, Timestamp, is_planted,
};

pub use self::request::{ServicePage, ShardAsk, ShardTimes};
pub(crate) use self::soft::ShardDecisions;
use self::soft::{Known, Waiting, join};

use crate::decider::{Component, Decider};
use crate::request::{Answer, Error, Recipient};

/// Milliseconds between the cause of a rebalance and the rebalance: workers that register together are counted together.
const DEBOUNCE_MS: u64 = 250;
/// The same after a worker left: its shards are free.
const LEAVE_MS: u64 = 20;

/// Registrations of a service that wait at one time: as many as it may have workers, each started again once.
const WAITING_MAX: usize = 2 * SHARD_WORKERS_MAX;

/// The session of a process; none can do without, because two of one name would be taken for one.
fn session_of(given: Option<&Name>) -> Result<Name, Refusal> {
    let problem =
        || "is missing: it tells two processes of one worker apart, so draw one when a process starts";
    given.cloned().ok_or_else(|| Refusal::Invalid { field: "session", problem: problem().to_owned() })
}

impl<R: Recipient> Component<R> for ShardDecisions<R> {
    /// A term began: every worker with shards counts as live for one lease of this term, and for as long as earlier terms
    /// it have promised.
    fn begin_term(&mut self, decider: &mut Decider<R>, now: Timestamp) {
        let mut until = self.promised_until(decider, now).max(now.plus(decider.state.owed_ms()));
        if is_planted("new-leader-does-not-wait") {
            until = now;
        } else if is_planted("own-shard-lease-for-others") {
            until = self.promised_until(decider, now);
        }
        let workers: Vec<(Name, Name, Option<Name>)> = decider
            .state
            .services()
            .flat_map(|(name, service)| {
                let of_service = |(worker, there): (&Name, &ShardWorker)| {
                    (name.clone(), worker.clone(), there.session.clone())
                };
                service.workers.iter().map(of_service)
            })
            .collect();
        let empty = decider.state.services().filter(|(_, service)| service.workers.is_empty());
        let empty: Vec<Name> = empty.map(|(name, _)| name.clone()).collect();
        for service in empty {
            self.services.entry(service.clone()).or_default().idle_since = Some(now);
            self.schedule(decider, &service);
        }
        for (service, worker, session) in workers {
            let soft = self.services.entry(service.clone()).or_default();
            let known = soft.promise(&worker, until);
            known.session = session.filter(|_| !is_planted("sessions-forgotten"));
            known.is_unheard = known.session.is_some();
            soft.want_rebalance(DEBOUNCE_MS, now);
            self.schedule(decider, &service);
        }
    }

    fn tick(&mut self, decider: &mut Decider<R>, now: Timestamp) {
        self.tick_services(decider, now);
    }

    fn next_due(&self, _decider: &Decider<R>) -> Option<Timestamp> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Sends waiting registrations to the next leader; to register again changes nothing.
    fn dismiss(&mut self, decider: &mut Decider<R>, _now: Timestamp) {
        let waiting: Vec<Waiting<R>> =
            self.services.values_mut().flat_map(|soft| std::mem::take(&mut soft.waiting)).collect();
        for waiting in waiting {
            decider.reply(waiting.to, Err(Error::Stopping));
        }
    }
}

impl<R: Recipient> ShardDecisions<R> {
    fn promised_until(&self, decider: &Decider<R>, now: Timestamp) -> Timestamp {
        now.plus(kept_ms(decider.options.shards.lease_ms))
    }

    /// Takes a question. A worker that comes is answered when its rebalance has settled.
    pub(crate) fn ask(&mut self, decider: &mut Decider<R>, ask: ShardAsk, to: R, now: Timestamp) {
        let answer = match ask {
            ShardAsk::Register { service, worker, body } => {
                return self.register(decider, service, worker, body, to, now);
            }
            ShardAsk::Heartbeat { body, .. } if self.is_of_another_journal(decider, &body) => {
                Ok(Answer::Assignment(Assignment { seq: body.seq, fenced: true, ..Assignment::default() }))
            }
            ShardAsk::Heartbeat { service, worker, body } => {
                let session = match session_of(body.session.as_ref()) {
                    Ok(session) => session,
                    Err(refusal) => return decider.reply_refused(to, refusal),
                };
                if body.assigned_shards.is_empty() && self.is_new(decider, &service, &worker, &session) {
                    let ShardHeartbeat { max_shard_count, session, seq, capacity, group, by, .. } = body;
                    let body = ShardRegister { max_shard_count, capacity, group, session, seq, by };
                    return self.register(decider, service, worker, body, to, now);
                }
                self.shard_heartbeat(decider, &service, &worker, (body, session), now)
            }
            ShardAsk::Deregister { service, worker, body } => {
                self.deregister(decider, &service, &worker, &body, now)
            }
            ShardAsk::Change { service, change } => self.change_service(decider, &service, change, now),
            ShardAsk::Assignment { service, worker, session } => {
                Ok(Answer::Assignment(self.look_up(decider, &service, &worker, &session)))
            }
            ShardAsk::Service(page) => self.service_view(decider, &page, now),
            ShardAsk::Services { group } => Ok(Answer::Services(self.service_list(decider, group.as_ref()))),
        };
        decider.reply(to, answer);
    }

    fn register(
        &mut self,
        decider: &mut Decider<R>,
        service: Name,
        worker: Name,
        body: ShardRegister,
        to: R,
        now: Timestamp,
    ) {
        // A refused registration blocks no other.
        let command = Command::Shard(join(&service, &worker, &body));
        let can_come = command.validate().and_then(|()| decider.state.decide(&command, now).map(drop));
        let session = match can_come.and_then(|()| session_of(body.session.as_ref())) {
            Ok(session) => session,
            Err(refusal) => return decider.reply_refused(to, refusal),
        };
        let soft = self.services.entry(service.clone()).or_default();
        if soft.waiting.len() >= WAITING_MAX {
            return decider.reply(to, Err(Error::Overloaded));
        }
        // A repeat of a call that waits takes its place.
        let repeats = |waiting: &mut Waiting<R>| waiting.worker == worker && waiting.session == session;
        let repeated: Vec<Waiting<R>> = soft.waiting.extract_if(.., repeats).collect();
        let is_there =
            decider.state.service(&service).is_some_and(|known| known.workers.contains_key(&worker));
        let known = soft.workers.get_mut(&worker).filter(|_| is_there);
        // One that registers in the term after it came has stopped meanwhile, and gets other tokens.
        let is_ours = |known: &&mut Known| {
            !known.replaced && !known.is_unheard && known.session.as_ref() == Some(&session)
        };
        let ours = known.as_ref().is_some_and(is_ours);
        let lease_ms = decider.options.shards.lease_ms;
        let mut until = now.plus(lease_ms.saturating_sub(1_000).max(lease_ms / 4 * 3));
        if let Some(known) = known.filter(|_| !ours) {
            known.replaced = true;
            if let Some(before) = &known.session {
                self.ended.add(&service, &worker, before);
            }
            // Some workers read only one assignment: a restarted worker gets its share, not an empty one.
            until = until.max(known.until.plus(4 * DEBOUNCE_MS));
        }
        let waited_until = repeated.last().map(|waiting| waiting.until);
        for waiting in repeated {
            let nothing = Assignment { seq: waiting.body.seq, ..Assignment::default() };
            decider.reply(waiting.to, Ok(Answer::Assignment(nothing)));
        }
        if ours {
            self.promise(decider, &service, &worker, now);
            let said = self
                .say_count(decider, &service, &worker, body.max_shard_count, now)
                .and_then(|()| self.say_capacity(decider, &service, &worker, body.capacity, now));
            if let (Ok(()), Some(until)) = (&said, waited_until) {
                let soft = self.services.entry(service.clone()).or_default();
                soft.waiting.push(Waiting::new(to, worker, session, body, until));
                return self.schedule(decider, &service);
            }
            self.schedule(decider, &service);
            let answer =
                said.map(|()| Answer::Assignment(self.promised(decider, &service, &worker, body.seq)));
            return decider.reply(to, answer);
        }
        self.wait(decider, &service, Waiting::new(to, worker, session, body, until), now);
    }

    /// Accepts a worker if no other process of its name is live, and lets it wait for its share.
    fn wait(&mut self, decider: &mut Decider<R>, service: &Name, waiting: Waiting<R>, now: Timestamp) {
        match self.try_join(decider, service, &waiting, now) {
            Ok(()) => {
                let soft = self.services.entry(service.clone()).or_default();
                soft.waiting.push(waiting);
                self.schedule(decider, service);
            }
            Err(refused) => {
                self.schedule(decider, service);
                decider.reply(waiting.to, Err(refused));
            }
        }
    }

    fn try_join(
        &mut self,
        decider: &mut Decider<R>,
        service: &Name,
        waiting: &Waiting<R>,
        now: Timestamp,
    ) -> Result<(), Error> {
        let known = decider.state.service(service);
        if let Some(there) = known.filter(|known| known.workers.contains_key(&waiting.worker)) {
            let has_some = there.tokens_of(&waiting.worker).next().is_some();
            if has_some && !is_planted("second-process-at-once") {
                return Ok(());
            }
            self.leave(decider, service, &waiting.worker, LeaveReason::Fenced, now)?;
        }
        self.shard_command(decider, join(service, &waiting.worker, &waiting.body), now)?;
        let until = self.promised_until(decider, now);
        self.ended.remove(service, &waiting.worker, &waiting.session);
        let soft = self.services.entry(service.clone()).or_default();
        soft.idle_since = None;
        let known = soft.promise(&waiting.worker, until);
        (known.session, known.plain) = (Some(waiting.session.clone()), waiting.body.seq.is_none());
        soft.want_rebalance(DEBOUNCE_MS, now);
        Ok(())
    }

    fn shard_heartbeat(
        &mut self,
        decider: &mut Decider<R>,
        service: &Name,
        worker: &Name,
        (body, session): (ShardHeartbeat, Name),
        now: Timestamp,
    ) -> Result<Answer, Error> {
        let ShardHeartbeat { max_shard_count, assigned_shards, generation, seq, .. } = body;
        if !self.speaks_for(decider, service, worker, &session, (&assigned_shards, generation), now) {
            let fenced = Assignment { seq, fenced: true, ..Assignment::default() };
            return Ok(Answer::Assignment(fenced));
        }
        if !is_planted("heartbeat-unheeded") {
            self.promise(decider, service, worker, now);
        }
        self.say_count(decider, service, worker, max_shard_count, now)?;
        let let_go = self.let_go_of(decider, service, worker, &assigned_shards, generation, now);
        if !let_go.is_empty() {
            let (service, worker, shards) = (service.clone(), worker.clone(), let_go);
            self.shard_command(
                decider,
                ShardCommand::LetGo { service: service.clone(), worker, shards },
                now,
            )?;
            self.want_rebalance(&service, 0, now);
        }
        let ignored = self.ignored_by(decider, service, worker, &assigned_shards, (generation, seq));
        self.overrule(decider, service, worker, ignored, now)?;
        let answer = self.promised(decider, service, worker, seq);
        self.overrule_for_waiting(decider, service, now)?;
        self.schedule(decider, service);
        Ok(Answer::Assignment(answer))
    }

    fn deregister(
        &mut self,
        decider: &mut Decider<R>,
        service: &Name,
        worker: &Name,
        body: &ShardDeregister,
        now: Timestamp,
    ) -> Result<Answer, Error> {
        let session = session_of(body.session.as_ref()).map_err(|refusal| decider.refuse(refusal))?;
        let known = self.services.get(service).and_then(|soft| soft.workers.get(worker));
        let is_other = known.is_none_or(|known| known.replaced || known.session.as_ref() != Some(&session));
        if is_other && !is_planted("any-session-leaves") {
            let fenced = Assignment { seq: body.seq, fenced: true, ..Assignment::default() };
            return Ok(Answer::Assignment(fenced));
        }
        self.leave(decider, service, worker, LeaveReason::Deregistered, now)?;
        self.want_rebalance(service, LEAVE_MS, now);
        self.schedule(decider, service);
        Ok(Answer::Assignment(Assignment {
            lease_ms: 0,
            ..self.assignment(decider, service, worker, body.seq)
        }))
    }

    fn leave(
        &mut self,
        decider: &mut Decider<R>,
        service: &Name,
        worker: &Name,
        reason: LeaveReason,
        now: Timestamp,
    ) -> Result<(), Error> {
        let command = ShardCommand::Leave { service: service.clone(), worker: worker.clone(), reason };
        self.shard_command(decider, command, now)?;
        let known = self.services.get_mut(service).and_then(|soft| soft.forget(worker, now));
        if let Some(session) = known.and_then(|known| known.session) {
            self.ended.add(service, worker, &session);
        }
        Ok(())
    }

    fn say_count(
        &mut self,
        decider: &mut Decider<R>,
        service: &Name,
        worker: &Name,
        count: u32,
        now: Timestamp,
    ) -> Result<(), Error> {
        let command =
            ShardCommand::SetCount { service: service.clone(), count, worker: Some(worker.clone()) };
        if self.shard_command(decider, command, now)?.is_some() {
            self.want_rebalance(service, DEBOUNCE_MS, now);
        }
        Ok(())
    }

    fn say_capacity(
        &mut self,
        decider: &mut Decider<R>,
        service: &Name,
        worker: &Name,
        capacity: Option<u32>,
        now: Timestamp,
    ) -> Result<(), Error> {
        let (of, worker) = (service.clone(), worker.clone());
        if self
            .shard_command(decider, ShardCommand::SetCapacity { service: of, worker, capacity }, now)?
            .is_some()
        {
            self.want_rebalance(service, DEBOUNCE_MS, now);
        }
        Ok(())
    }

    fn change_service(
        &mut self,
        decider: &mut Decider<R>,
        service: &Name,
        change: ServiceChange,
        now: Timestamp,
    ) -> Result<Answer, Error> {
        if let Some(count) = change.shard_count {
            let command = ShardCommand::SetCount { service: service.clone(), count, worker: None };
            self.shard_command(decider, command, now)?;
        }
        if let Some(weights) = change.weights.filter(|_| change.shard_count != Some(0)) {
            self.shard_command(decider, ShardCommand::SetWeights { service: service.clone(), weights }, now)?;
        }
        if decider.state.service(service).is_none() {
            // It had no workers, and has no shards any more.
            self.schedule(decider, service);
            return Ok(Answer::Service(Box::new(views::forgotten(service, decider.state.position()))));
        }
        self.want_rebalance(service, DEBOUNCE_MS, now);
        self.schedule(decider, service);
        self.service_view(decider, &service.clone().into(), now)
    }

    fn promise(&mut self, decider: &mut Decider<R>, service: &Name, worker: &Name, now: Timestamp) {
        let until = self.promised_until(decider, now);
        if let Some(soft) = self.services.get_mut(service) {
            soft.promise(worker, until);
        }
    }

    /// What a worker should serve, in an answer that it will have heard.
    fn promised(
        &mut self,
        decider: &mut Decider<R>,
        service: &Name,
        worker: &Name,
        seq: Option<u64>,
    ) -> Assignment {
        let answer = self.assignment(decider, service, worker, seq);
        let soft = self.services.get_mut(service);
        if let Some(known) = soft.and_then(|soft| soft.workers.get_mut(worker)) {
            known.answered = answer.generation;
        }
        answer
    }

    fn want_rebalance(&mut self, service: &Name, after_ms: u64, now: Timestamp) {
        self.services.entry(service.clone()).or_default().want_rebalance(after_ms, now);
    }

    /// Notes down when a service is due next.
    fn schedule(&mut self, decider: &mut Decider<R>, service: &Name) {
        let Some(soft) = self.services.get_mut(service) else { return };
        if let Some(before) = soft.due.take() {
            self.due.remove(&(before, service.clone()));
        }
        if soft.is_idle() && decider.state.service(service).is_none() {
            self.services.remove(service);
            return;
        }
        soft.due = soft.next_due();
        if let Some(due) = soft.due {
            self.due.insert((due, service.clone()));
        }
    }

    /// Decides and commits. Answers where the event stands, if there was one.
    fn shard_command(
        &mut self,
        decider: &mut Decider<R>,
        command: ShardCommand,
        now: Timestamp,
    ) -> Result<Option<Position>, Error> {
        let command = Command::Shard(command);
        command.validate()?;
        match decider.state.decide(&command, now) {
            Ok(Decision::Event(event)) => {
                if let Event::Shard(event) = &event {
                    self.count(decider, event, decider.event_time(now));
                }
                Ok(Some(decider.commit(event, now)))
            }
            Ok(Decision::Already(_) | Decision::Nothing) => Ok(None),
            Err(refusal) => Err(decider.refuse(refusal)),
        }
    }
}
