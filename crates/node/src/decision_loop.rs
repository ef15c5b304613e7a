//! The decision loop: questions in, groups out. One writer, one order.
//!
//! A question is decided against the state, its event is put into the group and folded into the state, and its
//! answer waits in the same group. Whoever runs the loop writes the events first and sends the answers after;
//! answers without events travel in groups too, so nobody hears of anything that is not durable.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use orchestrix_core::limits::PURGE_TASKS_MAX;
use orchestrix_core::wire::Outcome;
use orchestrix_core::{
    Command, Decision, Event, LeaseId, Name, Position, Refusal, State, TaskCommand, TaskEvent, TaskId,
    TermCommand, Tick, Timestamp, is_planted,
};
use orchestrix_engine::Space;

use crate::admission::Admission;
use crate::caller;
use crate::commit_group::CommitGroup;
use crate::leasing::{HANDED_AGAIN_MIN, HandedAgain};
use crate::options::Options;
use crate::polls::Polls;
use crate::rates::Rates;
use crate::registry::Registry;
use crate::request::{Answer, Ask, Error, Recipient, Seen};
use crate::room;
use crate::sharding::Sharding;
use crate::stats::Stats;

/// Events of purges in one tick.
const PURGES_MAX: usize = 8;
/// Rights that end by time in one tick. Bounds the pause after a long silence.
const EXPIRIES_MAX: usize = 1_000;
/// Milliseconds between two looks for what was kept long enough.
const PURGE_MS: u64 = 1_000;

/// The loop without its threads.
#[derive(Debug)]
pub struct DecisionLoop<R> {
    pub(crate) state: State,
    pub(crate) polls: Polls<R>,
    /// There is one in the first seconds of a term under an office.
    pub(crate) admission: Option<Admission<R>>,
    pub(crate) registry: Registry,
    pub(crate) rates: Rates,
    pub(crate) sharding: Sharding<R>,
    pub(crate) options: Options,
    pub(crate) stats: Arc<Stats>,
    group: CommitGroup<R>,
    /// Queues that got a task that could be leased.
    pub(crate) woken: Vec<Name>,
    space: Space,
    /// New work was refused for want of room, and there is not plenty since.
    refuses_work: bool,
    next_purge: Timestamp,
    /// Tasks that ended since the last look for what was kept long enough.
    pub(crate) ended: usize,
    /// Leases that were handed out once more, until it is known who took the answers with them.
    pub(crate) handed_again: BTreeMap<LeaseId, HandedAgain>,
    /// As many of them make it worth to look for those that ended.
    pub(crate) handed_again_max: usize,
    pub(crate) next_sweep: Timestamp,
    /// Nobody has heard of anything that was decided after this.
    durable: Position,
    /// After so many milliseconds without an event there is a `Tick`.
    tick_ms: Option<u64>,
}

impl<R: Recipient> DecisionLoop<R> {
    #[must_use]
    pub fn new(state: State, options: Options, stats: Arc<Stats>) -> Self {
        Self {
            durable: state.position(),
            state,
            polls: Polls::default(),
            admission: None,
            registry: Registry::default(),
            rates: Rates::default(),
            sharding: Sharding::default(),
            options,
            stats,
            group: CommitGroup::default(),
            woken: Vec::new(),
            space: Space::Plenty,
            refuses_work: false,
            next_purge: Timestamp(0),
            ended: 0,
            handed_again: BTreeMap::new(),
            handed_again_max: HANDED_AGAIN_MIN,
            next_sweep: Timestamp(0),
            tick_ms: None,
        }
    }

    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    /// The journal is durable up to here.
    pub fn is_durable(&mut self, position: Position) {
        self.durable = self.durable.max(position);
    }

    /// How a task goes on whose time is over. A lease that is not durable yet was not answered yet: its worker does not
    /// know of it, and no attempt is charged.
    fn ending_of(&self, task: TaskId) -> Command {
        let lease = self.state.task(task).and_then(|task| task.lease.as_deref());
        match lease.filter(|lease| lease.id.0 > self.durable.0) {
            Some(lease) => Command::Task(TaskCommand::Abandon { task, lease: lease.id }),
            None => Command::Task(TaskCommand::Expire { task }),
        }
    }

    /// From now on there is an event at least every so many milliseconds.
    pub fn tick_every(&mut self, tick_ms: Option<u64>) {
        self.tick_ms = tick_ms;
    }

    /// Begins a term: every live lease is prolonged, so that downtime takes nobody's work away.
    ///
    /// # Panics
    /// Never: a term can always begin.
    pub fn start_term(&mut self, epoch: u64, actor: Option<Name>, now: Timestamp) {
        let (node, shard_lease_ms) = (self.options.node.clone(), Some(self.options.shards.lease_ms));
        let command = Command::Term(TermCommand::Start { epoch, node, actor, shard_lease_ms });
        let Ok(Decision::Event(event)) = self.state.decide(&command, now) else {
            panic!("a term can always begin");
        };
        self.commit(event, now);
        self.begin_shards(now);
    }

    /// From now on, for some seconds, only so many lease calls are decided at a time: those of all workers may come at
    /// once when the leader changes.
    pub fn admit_slowly(&mut self, now: Timestamp) {
        self.admission = Some(Admission::begin(now));
    }

    /// Takes a question of a caller who is limited to its `own` queues, or not. Its answer is in this group, or in a later
    /// one if it waits.
    pub fn ask(&mut self, ask: Ask, own: Option<&[Name]>, to: R, now: Timestamp) {
        self.advance(now);
        // Those who wait come before whoever asks now.
        self.serve_polls(now);
        if let Some(own) = own
            && let Err(refusal) = caller::check(&self.state, &ask, own)
        {
            let refused = self.refuse(refusal);
            return self.reply(to, Err(refused));
        }
        if let Ask::Lease(request) = ask {
            self.admit(request, to, now);
        } else if let Ask::Shards(ask) = ask {
            self.ask_shards(*ask, to, now);
        } else {
            let answer = self.answer(ask, own, now);
            self.reply(to, answer);
        }
        self.serve_polls(now);
    }

    /// Does what time asks for.
    pub fn tick(&mut self, now: Timestamp) {
        self.advance(now);
        for _ in 0..EXPIRIES_MAX {
            if self.is_full() {
                break;
            }
            let Some(task) = self.state.next_end(now) else { break };
            match self.state.decide(&self.ending_of(task), now) {
                Ok(Decision::Event(event)) => self.commit(event, now),
                Ok(Decision::Already(_) | Decision::Nothing) | Err(_) => break,
            };
        }
        self.serve_polls(now);
        self.let_in(now);
        while let Some(poll) = self.polls.take_over(now) {
            self.send_home(poll.to, poll.since, now);
        }
        self.tick_shards(now);
        self.purge(now);
        if self.next_tick().is_some_and(|due| due <= now) {
            self.commit(Tick {}.into(), now);
        }
        self.stats.polls.set(self.waiting_calls() as u64);
        self.stats.tasks_leased.set(self.state.lease_count() as u64);
        self.stats.keys_remembered.set(self.state.remembered_keys() as u64);
    }

    /// When [`DecisionLoop::tick`] has something to do next, if nobody asks anything.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        let purge = (self.ended > 0 || self.next_purge > Timestamp(0)).then_some(self.next_purge);
        let due = self.state.next_due().into_iter().chain(self.polls.next_end()).chain(purge);
        let lined_up = self.admission.as_ref().and_then(Admission::next_due);
        due.chain(self.next_tick()).chain(lined_up).chain(self.next_shards()).min()
    }

    fn next_tick(&self) -> Option<Timestamp> {
        self.tick_ms.map(|every| self.state.at().plus(every))
    }

    /// The group is large enough: it should be written before more is decided.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.group.is_full()
    }

    #[must_use]
    pub fn has_group(&self) -> bool {
        !self.group.is_empty()
    }

    /// Hands out what was decided since the last call.
    pub fn take_group(&mut self) -> CommitGroup<R> {
        let position = self.state.position();
        self.stats.position.set(position.0);
        self.space = room::after(self.space, self.group.records.len());
        let next = self.group.next();
        let mut group = mem::replace(&mut self.group, next);
        group.first = Position(position.0 + 1 - u64::from(group.count));
        group
    }

    /// Goes on with a group that was handed out and not written.
    ///
    /// # Panics
    /// If something was decided since.
    pub(crate) fn take_back(&mut self, group: CommitGroup<R>) {
        assert!(!self.has_group(), "groups are written in the order of their decisions");
        self.group = group;
    }

    pub fn set_space(&mut self, space: Space) {
        self.space = space;
        if self.refuses_work && space == Space::Plenty {
            self.refuses_work = false;
            tracing::info!("the disk has room again: new tasks are accepted");
        }
        self.stats.space_low.set(u64::from(space.is_reserve() || self.refuses_work));
    }

    /// Sends everyone who waits home with empty hands, before the loop ends.
    pub fn dismiss(&mut self, now: Timestamp) {
        while let Some(poll) = self.polls.take_any() {
            self.send_home(poll.to, poll.since, now);
        }
        for waiting in self.admission.take().into_iter().flat_map(Admission::into_line) {
            self.send_home(waiting.to, waiting.since, now);
        }
        self.dismiss_shards();
    }

    fn advance(&mut self, now: Timestamp) {
        let woken = &mut self.woken;
        self.state.advance(now, |queue| {
            if woken.last() != Some(queue) {
                woken.push(queue.clone());
            }
        });
    }

    fn answer(&mut self, ask: Ask, own: Option<&[Name]>, now: Timestamp) -> Result<Answer, Error> {
        match ask {
            Ask::Command(command) => {
                let (outcome, seen) = self.command(&command, now)?;
                Ok(Answer::Outcome { outcome, seen })
            }
            Ask::Batch(commands) => self.batch(&commands, own, now),
            Ask::Heartbeat(command) => self.heartbeat(&command, now),
            Ask::HeartbeatAll { worker, leases } => Ok(self.heartbeat_all(worker, leases, own, now)),
            Ask::Lease(_) | Ask::Shards(_) => unreachable!("a call that may wait is answered elsewhere"),
            Ask::Attempt { task, lease } => self.attempt(task, lease, now),
            Ask::Task(_)
            | Ask::Tasks { .. }
            | Ask::Explain(_)
            | Ask::Queues
            | Ask::Workers
            | Ask::Cluster
            | Ask::Unknown(_) => self.look(ask, own, now),
        }
    }

    fn batch(&mut self, commands: &[Command], own: Option<&[Name]>, now: Timestamp) -> Result<Answer, Error> {
        self.check_space(commands)?;
        let decide = |command| match self.decide_own(command, own, now) {
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
        command: &Command,
        own: Option<&[Name]>,
        now: Timestamp,
    ) -> Result<(Outcome, Seen), Error> {
        if let Some(own) = own {
            caller::check_task(&self.state, command, own).map_err(|refusal| self.refuse(refusal))?;
        }
        self.decide(command, Place::Found, now)
    }

    fn command(&mut self, command: &Command, now: Timestamp) -> Result<(Outcome, Seen), Error> {
        self.decide(command, Place::ToFind, now)
    }

    fn decide(&mut self, command: &Command, place: Place, now: Timestamp) -> Result<(Outcome, Seen), Error> {
        match self.state.decide_within(command, self.options.queues_max, now) {
            Ok(Decision::Event(event)) => {
                // Only what would be stored needs room; a repeat of what was accepted does not.
                if matches!(place, Place::ToFind) {
                    self.check_space(std::slice::from_ref(command))?;
                }
                let task = named(&event);
                let position = self.commit(event, now);
                let task = self.state.task(task.unwrap_or(TaskId(position.0)));
                Ok((task.expect("a task that was just changed is there").outcome(), Seen::First))
            }
            Ok(Decision::Already(outcome)) => {
                self.count_repeat(command);
                Ok((outcome, Seen::Repeat))
            }
            Ok(Decision::Nothing) => Err(Error::Refused(Refusal::Internal)),
            Err(refusal) => Err(self.refuse(refusal)),
        }
    }

    fn purge(&mut self, now: Timestamp) {
        if now < self.next_purge && self.ended < PURGE_TASKS_MAX / 2 {
            return;
        }
        self.ended = 0;
        self.next_purge = Timestamp(0);
        for _ in 0..PURGES_MAX {
            let decision = self.state.decide(&Command::Task(TaskCommand::Purge(self.options.retention)), now);
            let Ok(Decision::Event(Event::Task(TaskEvent::TaskPurged(event)))) = decision else { break };
            let more = event.tasks.len() == PURGE_TASKS_MAX;
            self.group.purged.extend(event.tasks.iter().map(|purge| purge.task));
            self.commit(event.into(), now);
            if !more {
                self.ended = 0;
                break;
            }
            // There is more to forget: the next tick goes on.
            self.ended = PURGE_TASKS_MAX;
        }
        if self.state.has_ended() {
            self.next_purge = now.plus(PURGE_MS);
        }
        let state = &self.state;
        self.rates.retain(|queue| state.has_queue(queue));
    }

    /// Puts an event into the group and folds it into the state.
    pub(crate) fn commit(&mut self, event: Event, now: Timestamp) -> Position {
        let at = now.max(self.state.at());
        self.group.record(at, &event);
        self.count(&event, at);
        let (ready, task) = (self.polls.len() > 0 && may_make_ready(&event), named(&event));
        let holder = if self.polls.len() > 0 { self.holder_of(task) } else { None };
        let position = self.state.apply(at, event);
        if ready && let Some(task) = self.state.task(task.unwrap_or(TaskId(position.0))) {
            self.woken.push(task.queue.clone());
        }
        if let Some((worker, held)) = holder
            && self.state.held_by(&worker) < held
        {
            self.woken.extend(self.polls.unblock(&worker));
        }
        position
    }

    /// The worker that has a task, with the number of its leases.
    fn holder_of(&self, task: Option<TaskId>) -> Option<(Name, u64)> {
        let worker = &self.state.task(task?)?.lease.as_deref()?.worker;
        Some((worker.clone(), self.state.held_by(worker)))
    }

    pub(crate) fn reply(&mut self, to: R, answer: Result<Answer, Error>) {
        if is_planted("refusal-before-durable") && answer.is_err() {
            let _ = to.send(answer);
            return;
        }
        self.group.reply(to, answer);
    }

    pub(crate) fn refuse(&self, refusal: Refusal) -> Error {
        self.stats.refused.add(1);
        if matches!(refusal, Refusal::StaleLease { .. }) {
            self.stats.stale_reports.add(1);
        }
        Error::Refused(refusal)
    }

    fn check_space(&mut self, commands: &[Command]) -> Result<(), Error> {
        let checked = room::check(self.space, self.group.records.len(), commands);
        if checked == Err(Error::StorageFull) {
            self.stats.storage_full.add(1);
            self.stats.space_low.set(1);
            if !self.refuses_work {
                self.refuses_work = true;
                tracing::warn!("the disk is full: new tasks are refused until there is room");
            }
        }
        checked
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
        TaskEvent::LeaseReleased(event) => Some(event.task),
        TaskEvent::LeaseExpired(event) => Some(event.task),
        TaskEvent::TaskCompleted(event) => Some(event.task),
        TaskEvent::TaskFailed(event) => Some(event.task),
        TaskEvent::TaskCancelled(event) => Some(event.task),
        TaskEvent::CancelRequested(event) => Some(event.task),
        TaskEvent::TaskExpired(event) => Some(event.task),
        TaskEvent::TaskRetried(event) => Some(event.task),
        TaskEvent::TaskCreated(_) | TaskEvent::LeaseExtended(_) | TaskEvent::TaskPurged(_) => None,
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
        | TaskEvent::LeaseExtended(_)
        | TaskEvent::TaskCompleted(_)
        | TaskEvent::TaskCancelled(_)
        | TaskEvent::CancelRequested(_)
        | TaskEvent::TaskExpired(_)
        | TaskEvent::TaskPurged(_) => false,
    }
}
