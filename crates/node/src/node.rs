//! The handle to a running node: one method per request.

use std::sync::Arc;

use orchestrix_core::wire::{
    Assignment, Cluster, Complete, CompleteBatch, CompleteItem, Explanation, Extended, Fail, Heartbeat,
    LeaseQueues, Leases, LogAppend, LogAppended, LogPage, Outcome, QueueList, Release, ServiceChange,
    ServiceList, ServiceView, Submit, SubmitBatch, TaskSummary, TaskView, WorkerExtended, WorkerList,
};
use orchestrix_core::{Command, Filter, LeaseId, Name, Position, Refusal, TaskCommand, TaskId};
use orchestrix_engine::JournalId;
use tokio::sync::{oneshot, watch};

use crate::caller::{self, Caller};
use crate::events::{EventFeed, Events};
use crate::inbox::{Inbox, Refused};
use crate::logs::{AskUnknown, TaskLogs};
use crate::progress::Progress;
use crate::request::{Answer, Ask, Error, Recipient, Seen};
use crate::room;
use crate::runner::{Input, Running};
use crate::shards::{ServicePage, ShardAsk};
use crate::stats::Stats;
use crate::tasks::Abandoned;

/// A running coordinator. Cheap to clone; the node stops with [`Node::stop`].
#[derive(Clone, Debug)]
pub struct Node {
    pub(crate) journal: JournalId,
    pub(crate) inputs: Inbox,
    pub(crate) events: Arc<EventFeed>,
    pub(crate) logs: Arc<TaskLogs>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) running: Arc<Running>,
    pub(crate) progress: Arc<Progress>,
}

/// Called once, when the loop has taken or refused an ask: its bytes no longer count against the window.
pub type OnTaken = Box<dyn FnOnce() + Send>;

/// Waits for an answer in this process.
pub(crate) struct Waiter {
    to: oneshot::Sender<Result<Answer, Error>>,
    on_taken: Option<OnTaken>,
}

impl std::fmt::Debug for Waiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiter").field("to", &self.to).finish_non_exhaustive()
    }
}

impl Waiter {
    pub(crate) fn new(to: oneshot::Sender<Result<Answer, Error>>) -> Self {
        Self { to, on_taken: None }
    }

    /// The loop has taken the ask.
    pub(crate) fn taken(&mut self) {
        if let Some(told) = self.on_taken.take() {
            told();
        }
    }
}

impl Recipient for Waiter {
    fn is_gone(&self) -> bool {
        self.to.is_closed()
    }

    fn send(self, answer: Result<Answer, Error>) -> Result<(), Result<Answer, Error>> {
        self.to.send(answer)
    }
}

/// Waits for the answer to one ask. Leases of an answer that is not taken here are given back.
struct Awaited<'a> {
    node: &'a Node,
    receiver: oneshot::Receiver<Result<Answer, Error>>,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        // From here on, the loop sees that the caller is gone.
        self.receiver.close();
        if let Ok(Ok(Answer::Leases { leases, at })) = self.receiver.try_recv()
            && let Some(abandoned) = Abandoned::of(&leases, at)
        {
            self.node.give_back(abandoned);
        }
    }
}

/// Takes the one kind of answer that a question calls for.
macro_rules! expect_answer {
    ($answer:expr, $pattern:pat => $value:expr) => {
        match $answer? {
            $pattern => Ok::<_, Error>($value),
            other => unreachable!("the loop answers in kind, not with {other:?}"),
        }
    };
}

impl Node {
    /// Has a question of a caller decided. One that is not valid is refused here, before the loop hears of it.
    ///
    /// # Errors
    /// As for every method here: see [`Error`].
    pub async fn ask(&self, caller: &Caller, ask: Ask) -> Result<Answer, Error> {
        self.ask_telling(caller, ask, None).await
    }

    /// The same, and tells when the loop has taken the ask. One that the loop never gets is taken when it is answered.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn ask_telling(
        &self,
        caller: &Caller,
        mut ask: Ask,
        on_taken: Option<OnTaken>,
    ) -> Result<Answer, Error> {
        ask.sign(caller);
        if let Ask::Batch(commands) = ask {
            return self.batch(caller, commands, on_taken).await;
        }
        if let Err(refusal) = ask.validate() {
            check_named(caller, &ask)?;
            return Err(refusal.into());
        }
        self.put(caller, ask, on_taken).await
    }

    /// Accepts a task, or finds the one that was submitted with the same key.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn submit(&self, task: Submit) -> Result<(Outcome, Seen), Error> {
        let answer = self.ask_freely(Ask::Command(Command::submit(task))).await;
        expect_answer!(answer, Answer::Outcome { outcome, seen } => (outcome, seen))
    }

    /// Accepts many tasks; each stands for itself.
    ///
    /// # Errors
    /// Only when the whole call could not be decided.
    pub async fn submit_batch(&self, tasks: Vec<Submit>) -> Result<Vec<Result<Outcome, Refusal>>, Error> {
        let ask = Ask::submit_batch(SubmitBatch { tasks })?;
        expect_answer!(self.ask_freely(ask).await, Answer::Batch(outcomes) => outcomes)
    }

    /// Hands out tasks, and waits for them if asked to. A caller who drops the future takes nothing.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn lease(&self, request: LeaseQueues) -> Result<Leases, Error> {
        expect_answer!(self.ask_freely(Ask::Lease(request)).await, Answer::Leases { leases, .. } => leases)
    }

    /// # Errors
    /// See [`Error`].
    pub async fn heartbeat(&self, task: TaskId, body: Heartbeat) -> Result<Extended, Error> {
        let ask = Ask::heartbeat(task, body);
        expect_answer!(self.ask_freely(ask).await, Answer::Extended(extended) => extended)
    }

    /// Extends all leases of a worker with one event.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn heartbeat_worker(
        &self,
        worker: Name,
        leases: Vec<LeaseId>,
    ) -> Result<WorkerExtended, Error> {
        let ask = Ask::HeartbeatAll { worker, leases };
        expect_answer!(self.ask_freely(ask).await, Answer::WorkerExtended(extended) => *extended)
    }

    /// # Errors
    /// See [`Error`].
    pub async fn complete(&self, task: TaskId, body: Complete) -> Result<Outcome, Error> {
        self.outcome(Ask::complete(task, body)).await
    }

    /// # Errors
    /// Only when the whole call could not be decided.
    pub async fn complete_batch(
        &self,
        items: Vec<CompleteItem>,
    ) -> Result<Vec<Result<Outcome, Refusal>>, Error> {
        let ask = Ask::complete_batch(CompleteBatch { items })?;
        expect_answer!(self.ask_freely(ask).await, Answer::Batch(outcomes) => outcomes)
    }

    /// # Errors
    /// See [`Error`].
    pub async fn fail(&self, task: TaskId, body: Fail) -> Result<Outcome, Error> {
        self.outcome(Ask::fail(task, body)).await
    }

    /// # Errors
    /// See [`Error`].
    pub async fn release(&self, task: TaskId, body: Release) -> Result<Outcome, Error> {
        self.outcome(Ask::release(task, body)).await
    }

    /// Cancels a task; `actor` is who asks, if known by name.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn cancel(&self, task: TaskId, actor: Option<Name>) -> Result<Outcome, Error> {
        self.outcome(Ask::Command(Command::Task(TaskCommand::Cancel { task, actor }))).await
    }

    /// Gives a dead letter a new round; `actor` is who asks, if known by name.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn retry(&self, task: TaskId, actor: Option<Name>) -> Result<Outcome, Error> {
        self.outcome(Ask::Command(Command::Task(TaskCommand::Retry { task, actor }))).await
    }

    /// # Errors
    /// See [`Error`].
    pub async fn task(&self, id: TaskId) -> Result<TaskView, Error> {
        expect_answer!(self.ask_freely(Ask::Task(id)).await, Answer::Task(task) => *task)
    }

    /// A page of tasks after an id, and the id after which the next page begins.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn tasks(
        &self,
        filter: Filter,
        after: Option<TaskId>,
        limit: usize,
    ) -> Result<(Vec<TaskSummary>, Option<TaskId>), Error> {
        let ask = Ask::Tasks { filter, after, limit };
        expect_answer!(self.ask_freely(ask).await, Answer::Tasks { tasks, next } => (tasks, next))
    }

    /// # Errors
    /// See [`Error`].
    pub async fn explain(&self, id: TaskId) -> Result<Explanation, Error> {
        expect_answer!(self.ask_freely(Ask::Explain(id)).await, Answer::Explanation(explanation) => *explanation)
    }

    /// # Errors
    /// See [`Error`].
    pub async fn queues(&self) -> Result<QueueList, Error> {
        expect_answer!(self.ask_freely(Ask::Queues).await, Answer::Queues(queues) => queues)
    }

    /// # Errors
    /// See [`Error`].
    pub async fn workers(&self) -> Result<WorkerList, Error> {
        expect_answer!(self.ask_freely(Ask::Workers).await, Answer::Workers(workers) => workers)
    }

    /// # Errors
    /// See [`Error`].
    pub async fn cluster(&self) -> Result<Cluster, Error> {
        expect_answer!(self.ask_freely(Ask::Cluster).await, Answer::Cluster(cluster) => cluster)
    }

    /// A worker of a service comes, stays or goes. Answers what it should serve.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn shards(&self, ask: ShardAsk) -> Result<Assignment, Error> {
        let answer = self.ask_freely(Ask::Shards(Box::new(ask))).await;
        expect_answer!(answer, Answer::Assignment(assignment) => assignment)
    }

    /// A service, with a page of its shards.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn service(&self, page: impl Into<ServicePage>) -> Result<ServiceView, Error> {
        let ask = Ask::Shards(Box::new(ShardAsk::Service(page.into())));
        expect_answer!(self.ask_freely(ask).await, Answer::Service(service) => *service)
    }

    /// # Errors
    /// See [`Error`].
    pub async fn change_service(&self, service: Name, change: ServiceChange) -> Result<ServiceView, Error> {
        let ask = Ask::Shards(Box::new(ShardAsk::Change { service, change }));
        expect_answer!(self.ask_freely(ask).await, Answer::Service(service) => *service)
    }

    /// All services, or those of a group.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn services(&self, group: Option<Name>) -> Result<ServiceList, Error> {
        let ask = Ask::Shards(Box::new(ShardAsk::Services { group }));
        expect_answer!(self.ask_freely(ask).await, Answer::Services(services) => services)
    }

    /// Stores lines of output of a running attempt.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn append_logs(&self, task: TaskId, body: LogAppend) -> Result<LogAppended, Error> {
        self.append_logs_as(&Caller::default(), task, body).await
    }

    /// The same, in the name of a caller.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn append_logs_as(
        &self,
        caller: &Caller,
        task: TaskId,
        body: LogAppend,
    ) -> Result<LogAppended, Error> {
        let ask = Ask::Attempt { task, lease: body.lease_id };
        let attempt = expect_answer!(self.ask(caller, ask).await, Answer::Attempt(attempt) => attempt)?;
        self.logs.append(task, attempt, body).await
    }

    /// Lines of output from the `offset`-th on; of one attempt, or of all.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn logs(
        &self,
        task: TaskId,
        offset: u64,
        limit: usize,
        attempt: Option<u32>,
    ) -> Result<LogPage, Error> {
        self.logs.read(task, offset, limit, attempt).await
    }

    /// Changes whenever a task gets more lines of output.
    #[must_use]
    pub fn log_changes(&self, task: TaskId) -> watch::Receiver<u64> {
        self.logs.changes(task)
    }

    /// Whether other nodes store output, too: nobody tells this one of their lines.
    #[must_use]
    pub fn shares_output(&self) -> bool {
        self.logs.is_shared()
    }

    /// Durable events after a position, or from now on, as they come.
    #[must_use]
    pub fn events(&self, after: Option<Position>) -> Events {
        self.events.subscribe(after)
    }

    /// Waits until what stands at a position is durable here.
    pub async fn applied(&self, position: Position) {
        self.events.reached(position).await;
    }

    /// The journal that this node writes.
    #[must_use]
    pub fn journal_id(&self) -> JournalId {
        self.journal
    }

    /// The same numbers, for services of this process.
    #[must_use]
    pub fn shared_stats(&self) -> Arc<Stats> {
        Arc::clone(&self.stats)
    }

    /// Numbers about what this node has done.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Why this node makes no progress, if so: its loop ends no step, or its journal does not answer. Sends no request.
    #[must_use]
    pub fn stalled(&self) -> Option<String> {
        self.progress.stalled()
    }

    /// Why nothing can be written at the moment, if so. Sends no request.
    #[must_use]
    pub fn unwritten(&self) -> Option<String> {
        self.progress.unwritten()
    }

    /// Waits until the node has stopped, for any reason.
    ///
    /// # Errors
    /// The failure that stopped it.
    pub async fn stopped(&self) -> Result<(), crate::Failure> {
        self.running.stopped().await
    }

    /// Stops cleanly: refuses what is new, answers what was asked, makes everything durable.
    ///
    /// # Errors
    /// The failure that kept it from a clean stop.
    pub async fn stop(&self) -> Result<(), crate::Failure> {
        // Before the loop sees the stop: a writer that waits for disk space gives up.
        self.running.begin_stop();
        // A loop that has ended needs not be told.
        let _ = self.inputs.put_anyway(Input::Stop);
        self.running.stopped().await
    }

    /// Stops at once: what is not durable by now is dropped, and its callers hear that the outcome is
    /// not known.
    pub(crate) fn abort(&self) {
        self.running.begin_stop();
        // A busy loop sees the flag, or the end of its leader lease, before it writes again.
        let _ = self.inputs.put_anyway(Input::Stop);
    }

    /// Lets a thread of this node ask which tasks are not known. It ends with the loop.
    pub(crate) fn asks_unknown(&self) -> AskUnknown {
        let inputs = self.inputs.clone();
        Box::new(move |tasks| {
            let (sender, receiver) = oneshot::channel();
            inputs.put_anyway(Input::Ask(Ask::Unknown(tasks), None, Waiter::new(sender))).ok()?;
            match receiver.blocking_recv() {
                Ok(Ok(Answer::Unknown(tasks))) => Some(tasks),
                Ok(_) | Err(_) => None,
            }
        })
    }

    /// Asks as a caller with all rights.
    async fn ask_freely(&self, ask: Ask) -> Result<Answer, Error> {
        self.ask(&Caller::default(), ask).await
    }

    async fn outcome(&self, ask: Ask) -> Result<Outcome, Error> {
        expect_answer!(self.ask_freely(ask).await, Answer::Outcome { outcome, .. } => outcome)
    }

    /// Commands that are not valid are refused one by one; the others are decided in order.
    async fn batch(
        &self,
        caller: &Caller,
        commands: Vec<Command>,
        on_taken: Option<OnTaken>,
    ) -> Result<Answer, Error> {
        let checked: Vec<Result<(), Refusal>> = commands.iter().map(Command::validate).collect();
        let mut ask = Ask::Batch(commands);
        if checked.iter().any(Result::is_err) {
            check_named(caller, &ask)?;
            ask.keep_valid(&checked);
        }
        let answer = self.put(caller, ask, on_taken).await;
        let mut decided = expect_answer!(answer, Answer::Batch(outcomes) => outcomes.into_iter())?;
        let in_order = |check: Result<(), Refusal>| {
            check.and_then(|()| decided.next().expect("the loop answers every command of a batch"))
        };
        Ok(Answer::Batch(checked.into_iter().map(in_order).collect()))
    }

    /// Puts a valid question to the loop and waits for the answer.
    async fn put(&self, caller: &Caller, ask: Ask, on_taken: Option<OnTaken>) -> Result<Answer, Error> {
        if self.running.is_stopping() {
            return Err(Error::Stopping);
        }
        if self.progress.waits_for_room() && room::is_surely_new(&ask) {
            self.stats.storage_full.add(1);
            return Err(Error::StorageFull);
        }
        let is_new_work = room::has_new_work(&ask);
        let (sender, receiver) = oneshot::channel();
        let waiter = Waiter { to: sender, on_taken };
        let wake_up = match self.inputs.put(Input::Ask(ask, caller.queues.clone(), waiter)) {
            Ok(wake_up) => wake_up,
            Err(Refused::Full) => {
                self.stats.overloaded.add(1);
                return Err(Error::Overloaded);
            }
            Err(Refused::Closed) => return Err(Error::Stopping),
        };
        let mut awaited = Awaited { node: self, receiver };
        if let Some(wake_up) = wake_up {
            // Other tasks of this runtime that are ready now may ask, too.
            tokio::task::yield_now().await;
            drop(wake_up);
        }
        match (&mut awaited.receiver).await.unwrap_or(Err(Error::OutcomeUnknown)) {
            // Other asks that were refused for lack of space may be tried at another node.
            Err(Error::StorageFull) if !is_new_work => Err(Error::OutcomeUnknown),
            answer => answer,
        }
    }
}

/// A queue that is not the caller's is refused before anything else that is wrong.
pub(crate) fn check_named(caller: &Caller, ask: &Ask) -> Result<(), Refusal> {
    caller.queues.as_deref().map_or(Ok(()), |own| caller::check_named(ask, own))
}
