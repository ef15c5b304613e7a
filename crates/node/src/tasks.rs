//! Tasks in the decision loop: commands, leases, waiting lease calls, and views of tasks and queues.

mod admission;
mod answers;
mod counting;
mod leasing;
mod polls;
mod rates;
mod registry;

use std::collections::BTreeMap;

use orchestrix_core::limits::PURGE_TASKS_MAX;
use orchestrix_core::wire::Outcome;
use orchestrix_core::{
    Command, Decision, Event, LeaseId, Name, Position, Refusal, TaskCommand, TaskEvent, TaskId, Timestamp,
};

use self::admission::Admission;
pub use self::leasing::Abandoned;
use self::leasing::{HANDED_AGAIN_MIN, HandedAgain};
use self::polls::Polls;
use self::rates::Rates;
use self::registry::Registry;
use crate::caller;
use crate::decider::{Component, Decider};
use crate::request::{Answer, Ask, Error, Recipient, Seen};

/// Events of purges in one tick.
const PURGES_MAX: usize = 8;
/// Rights that end by time in one tick. Bounds the pause after a long silence.
const EXPIRIES_MAX: usize = 1_000;
/// Milliseconds between two looks for what was kept long enough.
const PURGE_MS: u64 = 1_000;

/// What the loop decides about tasks.
#[derive(Debug)]
pub(crate) struct TaskDecisions<R> {
    polls: Polls<R>,
    /// Only in the first seconds of a term in a cluster.
    admission: Option<Admission<R>>,
    registry: Registry,
    rates: Rates,
    /// Queues that got a task that could be leased.
    woken: Vec<Name>,
    next_purge: Timestamp,
    /// Tasks that ended since the last look for what was kept long enough.
    ended: usize,
    /// Leases that were handed out once more, until it is known which answers with them were taken.
    handed_again: BTreeMap<LeaseId, HandedAgain>,
    /// With so many of them it is worth to look for those that ended.
    handed_again_max: usize,
    next_sweep: Timestamp,
}

impl<R> Default for TaskDecisions<R> {
    fn default() -> Self {
        Self {
            polls: Polls::default(),
            admission: None,
            registry: Registry::default(),
            rates: Rates::default(),
            woken: Vec::new(),
            next_purge: Timestamp(0),
            ended: 0,
            handed_again: BTreeMap::new(),
            handed_again_max: HANDED_AGAIN_MIN,
            next_sweep: Timestamp(0),
        }
    }
}

impl<R: Recipient> Component<R> for TaskDecisions<R> {
    fn begin_term(&mut self, _decider: &mut Decider<R>, _now: Timestamp) {}

    fn tick(&mut self, decider: &mut Decider<R>, now: Timestamp) {
        self.advance(decider, now);
        for _ in 0..EXPIRIES_MAX {
            if decider.is_full() {
                break;
            }
            let end = match decider.is_bus_silent() {
                true => decider.state.next_end_beside_bus(now),
                false => decider.state.next_end(now),
            };
            let Some(task) = end else { break };
            match decider.state.decide(&ending_of(decider, task), now) {
                Ok(Decision::Event(event)) => self.commit(decider, event, now),
                Ok(Decision::Already(_) | Decision::Nothing) | Err(_) => break,
            };
        }
        self.serve_polls(decider, now);
        self.let_in(decider, now);
        while let Some(poll) = self.polls.take_over(now) {
            self.send_home(decider, poll.to, poll.since, now);
        }
    }

    fn purge(&mut self, decider: &mut Decider<R>, now: Timestamp) {
        if now < self.next_purge && self.ended < PURGE_TASKS_MAX / 2 {
            return;
        }
        self.ended = 0;
        self.next_purge = Timestamp(0);
        for _ in 0..PURGES_MAX {
            let command = Command::Task(TaskCommand::Purge(decider.options.retention));
            let decision = decider.state.decide(&command, now);
            let Ok(Decision::Event(Event::Task(TaskEvent::TaskPurged(event)))) = decision else { break };
            let more = event.tasks.len() == PURGE_TASKS_MAX;
            decider.group.purged.extend(event.tasks.iter().map(|purge| purge.task));
            self.commit(decider, event.into(), now);
            if !more {
                self.ended = 0;
                break;
            }
            // There is more to forget: the next tick goes on.
            self.ended = PURGE_TASKS_MAX;
        }
        if decider.state.has_ended() {
            self.next_purge = now.plus(PURGE_MS);
        }
        let state = &decider.state;
        self.rates.retain(|queue| state.has_queue(queue));
    }

    fn next_due(&self, decider: &Decider<R>) -> Option<Timestamp> {
        let purge = (self.ended > 0 || self.next_purge > Timestamp(0)).then_some(self.next_purge);
        let in_state = match decider.is_bus_silent() {
            true => decider.state.next_due_beside_bus(),
            false => decider.state.next_due(),
        };
        let due = in_state.into_iter().chain(self.polls.next_end()).chain(purge);
        due.chain(self.admission.as_ref().and_then(Admission::next_due)).min()
    }

    fn dismiss(&mut self, decider: &mut Decider<R>, now: Timestamp) {
        while let Some(poll) = self.polls.take_any() {
            self.send_home(decider, poll.to, poll.since, now);
        }
        for waiting in self.admission.take().into_iter().flat_map(Admission::into_line) {
            self.send_home(decider, waiting.to, waiting.since, now);
        }
    }
}

impl<R: Recipient> TaskDecisions<R> {
    pub(crate) fn admit_slowly(&mut self, now: Timestamp) {
        self.admission = Some(Admission::begin(now));
    }

    pub(crate) fn ask(
        &mut self,
        decider: &mut Decider<R>,
        ask: Ask,
        own: Option<&[Name]>,
        to: R,
        now: Timestamp,
    ) {
        if let Ask::Lease(request) = ask {
            return self.admit(decider, request, to, now);
        }
        let answer = self.answer(decider, ask, own, now);
        decider.reply(to, answer);
    }

    /// Serves the calls that wait for tasks whose delay is over by now.
    pub(crate) fn serve_waiting(&mut self, decider: &mut Decider<R>, now: Timestamp) {
        self.advance(decider, now);
        self.serve_polls(decider, now);
    }

    /// Shows how much there is, for metrics.
    pub(crate) fn observe(&self, decider: &Decider<R>) {
        let Decider { state, stats, .. } = decider;
        stats.polls.set(self.waiting_calls() as u64);
        stats.tasks_leased.set(state.lease_count() as u64);
        stats.keys_remembered.set(state.remembered_keys() as u64);
    }

    fn advance(&mut self, decider: &mut Decider<R>, now: Timestamp) {
        let woken = &mut self.woken;
        decider.state.advance(now, |queue| {
            if woken.last() != Some(queue) {
                woken.push(queue.clone());
            }
        });
    }

    fn answer(
        &mut self,
        decider: &mut Decider<R>,
        ask: Ask,
        own: Option<&[Name]>,
        now: Timestamp,
    ) -> Result<Answer, Error> {
        match ask {
            Ask::Command(command) => {
                let (outcome, seen) = self.command(decider, &command, now)?;
                Ok(Answer::Outcome { outcome, seen })
            }
            Ask::Batch(commands) => self.batch(decider, &commands, own, now),
            Ask::Heartbeat(command) => self.heartbeat(decider, &command, now),
            Ask::HeartbeatAll { worker, leases } => Ok(self.heartbeat_all(decider, worker, leases, own, now)),
            Ask::Lease(_) | Ask::Shards(_) | Ask::Owner(_) | Ask::Dispatch(_) => {
                unreachable!("a call that may wait, or is about something else, is answered elsewhere")
            }
            Ask::Attempt { task, lease } => self.attempt(decider, task, lease, now),
            Ask::Task(_)
            | Ask::Tasks { .. }
            | Ask::Explain(_)
            | Ask::Queues
            | Ask::Workers
            | Ask::Cluster
            | Ask::Unknown(_) => self.look(decider, ask, own, now),
        }
    }

    fn batch(
        &mut self,
        decider: &mut Decider<R>,
        commands: &[Command],
        own: Option<&[Name]>,
        now: Timestamp,
    ) -> Result<Answer, Error> {
        decider.check_space(commands)?;
        let decide = |command| match self.decide_own(decider, command, own, now) {
            Ok((outcome, _)) => Ok(outcome),
            Err(Error::Refused(refusal)) => Err(refusal),
            Err(
                Error::Overloaded
                | Error::StorageFull
                | Error::Stopping
                | Error::Unavailable
                | Error::OutcomeUnknown,
            ) => {
                unreachable!("space was checked, and nothing else stops a decision")
            }
        };
        Ok(Answer::Batch(commands.iter().map(decide).collect()))
    }

    /// Decides one of many. For a caller who is limited, a task of another queue is not there.
    fn decide_own(
        &mut self,
        decider: &mut Decider<R>,
        command: &Command,
        own: Option<&[Name]>,
        now: Timestamp,
    ) -> Result<(Outcome, Seen), Error> {
        if let Some(own) = own {
            caller::check_task(&decider.state, command, own).map_err(|refusal| decider.refuse(refusal))?;
        }
        self.decide(decider, command, Place::Found, now)
    }

    fn command(
        &mut self,
        decider: &mut Decider<R>,
        command: &Command,
        now: Timestamp,
    ) -> Result<(Outcome, Seen), Error> {
        self.decide(decider, command, Place::ToFind, now)
    }

    fn decide(
        &mut self,
        decider: &mut Decider<R>,
        command: &Command,
        place: Place,
        now: Timestamp,
    ) -> Result<(Outcome, Seen), Error> {
        match decider.state.decide_within(command, decider.options.queues_max, now) {
            Ok(Decision::Event(event)) => {
                // Only what would be stored needs room; a repeat of what was accepted does not.
                if matches!(place, Place::ToFind) {
                    decider.check_space(std::slice::from_ref(command))?;
                }
                let task = named(&event);
                let position = self.commit(decider, event, now);
                let task = decider.state.task(task.unwrap_or(TaskId(position.0)));
                Ok((task.expect("a task that was just changed is there").outcome(), Seen::First))
            }
            Ok(Decision::Already(outcome)) => {
                self.count_repeat(decider, command);
                Ok((outcome, Seen::Repeat))
            }
            Ok(Decision::Nothing) => Err(Error::Refused(Refusal::Internal)),
            Err(refusal) => Err(decider.refuse(refusal)),
        }
    }

    /// Commits an event, and notes which waiting calls it may serve.
    pub(crate) fn commit(&mut self, decider: &mut Decider<R>, event: Event, now: Timestamp) -> Position {
        if let Event::Task(event) = &event {
            self.count(decider, event, decider.event_time(now));
        }
        let (ready, task) = (self.polls.len() > 0 && may_make_ready(&event), named(&event));
        let holder = if self.polls.len() > 0 { self.holder_of(decider, task) } else { None };
        let position = decider.commit(event, now);
        if ready && let Some(task) = decider.state.task(task.unwrap_or(TaskId(position.0))) {
            self.woken.push(task.queue.clone());
        }
        if let Some((worker, held)) = holder
            && decider.state.held_by(&worker) < held
        {
            self.woken.extend(self.polls.unblock(&worker));
        }
        position
    }

    /// The worker that has a task, with the number of its leases.
    fn holder_of(&self, decider: &Decider<R>, task: Option<TaskId>) -> Option<(Name, u64)> {
        let worker = decider.state.task(task?)?.lease.as_deref()?.worker.as_ref()?;
        Some((worker.clone(), decider.state.held_by(worker)))
    }
}

/// How a task goes on whose time is over. A lease that is not durable yet was not answered yet: its worker does not know of
/// it, and no attempt is charged.
fn ending_of<R>(decider: &Decider<R>, task: TaskId) -> Command {
    let lease = decider.state.task(task).and_then(|task| task.lease.as_deref());
    match lease.filter(|lease| lease.id.0 > decider.durable.0) {
        Some(lease) => Command::Task(TaskCommand::Abandon { task, lease: lease.id }),
        None => Command::Task(TaskCommand::Expire { task }),
    }
}

/// Whether it was looked that there is room for a command.
#[derive(Clone, Copy)]
enum Place {
    ToFind,
    Found,
}

/// The task that an event is about; `None` for one that is named by the event's own position, and for events
/// about many or none.
pub(crate) fn named(event: &Event) -> Option<TaskId> {
    let Event::Task(event) = event else { return None };
    match event {
        TaskEvent::LeaseGranted(event) => Some(event.task),
        TaskEvent::LeaseOffered(event) => Some(event.task),
        TaskEvent::LeaseReleased(event) => Some(event.task),
        TaskEvent::LeaseExpired(event) => Some(event.task),
        TaskEvent::TaskCompleted(event) => Some(event.task),
        TaskEvent::TaskFailed(event) => Some(event.task),
        TaskEvent::TaskCancelled(event) => Some(event.task),
        TaskEvent::CancelRequested(event) => Some(event.task),
        TaskEvent::TaskExpired(event) => Some(event.task),
        TaskEvent::TaskRetried(event) => Some(event.task),
        TaskEvent::TaskCreated(_)
        | TaskEvent::LeaseExtended(_)
        | TaskEvent::LeasesStarted(_)
        | TaskEvent::BusResumed(_)
        | TaskEvent::TaskPurged(_) => None,
    }
}

fn may_make_ready(event: &Event) -> bool {
    let Event::Task(event) = event else { return false };
    match event {
        TaskEvent::TaskCreated(_)
        | TaskEvent::LeaseReleased(_)
        | TaskEvent::LeaseExpired(_)
        | TaskEvent::TaskFailed(_)
        | TaskEvent::TaskRetried(_) => true,
        TaskEvent::LeaseGranted(_)
        | TaskEvent::LeaseOffered(_)
        | TaskEvent::LeasesStarted(_)
        | TaskEvent::BusResumed(_)
        | TaskEvent::LeaseExtended(_)
        | TaskEvent::TaskCompleted(_)
        | TaskEvent::TaskCancelled(_)
        | TaskEvent::CancelRequested(_)
        | TaskEvent::TaskExpired(_)
        | TaskEvent::TaskPurged(_) => false,
    }
}
