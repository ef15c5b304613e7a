//! Asks of callers, their answers and errors.

use orchestrix_core::wire::{
    Assignment, Cluster, Complete, CompleteBatch, CompleteItem, Explanation, Extended, Fail, Heartbeat,
    LeaseQueues, Leases, Outcome, QueueList, Release, ServiceList, ServiceView, SubmitBatch, TaskSummary,
    TaskView, WorkerExtended, WorkerList,
};
use orchestrix_core::{Command, Filter, LeaseId, Name, Position, Refusal, TaskCommand, TaskId};

use crate::bus::{BusAnswer, DispatchAsk, OwnerAsk};
use crate::shards::ShardAsk;

/// A question to the decision loop. Everything in it has been validated.
#[derive(Debug)]
pub enum Ask {
    /// One command that has an outcome: submit, complete, fail, release, cancel, retry.
    Command(Command),
    /// Many of them, decided one after the other; each stands for itself.
    Batch(Vec<Command>),
    /// Extends one lease.
    Heartbeat(Command),
    /// Extends all leases of a worker.
    HeartbeatAll {
        worker: Name,
        leases: Vec<LeaseId>,
    },
    Lease(LeaseQueues),
    /// Whether a lease may write logs, and for which attempt.
    Attempt {
        task: TaskId,
        lease: LeaseId,
    },
    Task(TaskId),
    Tasks {
        filter: Filter,
        after: Option<TaskId>,
        limit: usize,
    },
    Explain(TaskId),
    Queues,
    Workers,
    Cluster,
    /// Boxed, so that questions about tasks stay small.
    Shards(Box<ShardAsk>),
    /// Of a node that owns leases of the bus.
    Owner(Box<OwnerAsk>),
    /// Of the leader's own services.
    Dispatch(Box<DispatchAsk>),
    /// Which of these are not known any more. An id is never given out twice, so they never will be again.
    Unknown(Vec<TaskId>),
}

impl Ask {
    /// # Errors
    /// When there are too many tasks, or they are too large together.
    pub fn submit_batch(batch: SubmitBatch) -> Result<Self, Refusal> {
        batch.validate()?;
        Ok(Self::Batch(batch.tasks.into_iter().map(Command::submit).collect()))
    }

    #[must_use]
    pub fn heartbeat(task: TaskId, body: Heartbeat) -> Self {
        let Heartbeat { lease_id: lease, worker, progress, note } = body;
        Self::Heartbeat(Command::Task(TaskCommand::Heartbeat { task, lease, worker, progress, note }))
    }

    #[must_use]
    pub fn complete(task: TaskId, body: Complete) -> Self {
        let Complete { lease_id: lease, worker, result } = body;
        Self::Command(Command::Task(TaskCommand::Complete { task, lease, worker, result }))
    }

    /// # Errors
    /// When there are too many items, or they are too large together.
    pub fn complete_batch(batch: CompleteBatch) -> Result<Self, Refusal> {
        batch.validate()?;
        let complete = |CompleteItem { task_id: task, lease_id: lease, result }| {
            Command::Task(TaskCommand::Complete { task, lease, worker: None, result })
        };
        Ok(Self::Batch(batch.items.into_iter().map(complete).collect()))
    }

    #[must_use]
    pub fn fail(task: TaskId, body: Fail) -> Self {
        let Fail { lease_id: lease, worker, error, retry } = body;
        Self::Command(Command::Task(TaskCommand::Fail { task, lease, worker, error, retry }))
    }

    #[must_use]
    pub fn release(task: TaskId, body: Release) -> Self {
        let Release { lease_id: lease, worker } = body;
        Self::Command(Command::Task(TaskCommand::Release { task, lease, worker }))
    }

    /// Checks all that needs no state: sizes and ranges. Commands of a batch are checked one by one elsewhere.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn validate(&self) -> Result<(), Refusal> {
        match self {
            Self::Command(command) | Self::Heartbeat(command) => command.validate(),
            Self::HeartbeatAll { leases, .. } => TaskCommand::validate_leases(leases),
            Self::Lease(request) => request.validate(),
            Self::Shards(ask) => ask.validate(),
            Self::Owner(ask) => ask.validate(),
            Self::Batch(_)
            | Self::Dispatch(_)
            | Self::Attempt { .. }
            | Self::Task(_)
            | Self::Tasks { .. }
            | Self::Explain(_)
            | Self::Queues
            | Self::Workers
            | Self::Cluster
            | Self::Unknown(_) => Ok(()),
        }
    }

    /// Leaves out the commands of a batch that are not valid.
    pub(crate) fn keep_valid(&mut self, checked: &[Result<(), Refusal>]) {
        if let Self::Batch(commands) = self {
            let mut checked = checked.iter();
            commands.retain(|_| checked.next().is_some_and(Result::is_ok));
        }
    }

    /// Whether it only reads: an answer that is not sent costs nothing.
    #[must_use]
    pub fn changes_nothing(&self) -> bool {
        match self {
            Self::Attempt { .. }
            | Self::Task(_)
            | Self::Tasks { .. }
            | Self::Explain(_)
            | Self::Queues
            | Self::Workers
            | Self::Cluster
            | Self::Unknown(_) => true,
            Self::Shards(ask) => ask.changes_nothing(),
            Self::Command(_)
            | Self::Batch(_)
            | Self::Heartbeat(_)
            | Self::HeartbeatAll { .. }
            | Self::Lease(_)
            | Self::Owner(_)
            | Self::Dispatch(_) => false,
        }
    }

    /// Whether the answer tells a worker how long it may go on.
    pub(crate) fn promises_time(&self) -> bool {
        match self {
            Self::Heartbeat(_)
            | Self::HeartbeatAll { .. }
            | Self::Lease(_)
            | Self::Shards(_)
            | Self::Owner(_)
            | Self::Dispatch(_) => true,
            Self::Command(_)
            | Self::Batch(_)
            | Self::Attempt { .. }
            | Self::Task(_)
            | Self::Tasks { .. }
            | Self::Explain(_)
            | Self::Queues
            | Self::Workers
            | Self::Cluster
            | Self::Unknown(_) => false,
        }
    }
}

/// The answer to a question, of the kind that the question calls for.
#[derive(Debug)]
pub enum Answer {
    Outcome {
        outcome: Outcome,
        seen: Seen,
    },
    Batch(Vec<Result<Outcome, Refusal>>),
    Extended(Extended),
    WorkerExtended(Box<WorkerExtended>),
    /// Leases, and where they were handed out: if the answer is not taken, they are given back under this position.
    Leases {
        leases: Leases,
        at: Position,
    },
    Attempt(u32),
    Task(Box<TaskView>),
    Tasks {
        tasks: Vec<TaskSummary>,
        next: Option<TaskId>,
    },
    Explanation(Box<Explanation>),
    Queues(QueueList),
    Workers(WorkerList),
    Cluster(Cluster),
    Assignment(Assignment),
    Service(Box<ServiceView>),
    Services(ServiceList),
    Unknown(Vec<TaskId>),
    Bus(Box<BusAnswer>),
}

/// Whether an outcome came of this call or of an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    First,
    Repeat,
}

/// Who waits for an answer. The loop does not care whether it is a socket or a simulation.
pub trait Recipient: Send + 'static {
    /// The caller has disconnected; a lease must not be granted to it.
    fn is_gone(&self) -> bool;

    /// Hands the answer over; returns it if it was not taken.
    ///
    /// # Errors
    /// The answer, if the caller has disconnected.
    fn send(self, answer: Result<Answer, Error>) -> Result<(), Result<Answer, Error>>;
}

/// Why a node does not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The rules say no; nothing was changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Too much is waiting to be decided; nothing was changed.
    #[error("too many requests are waiting; try again in a moment")]
    Overloaded,
    /// There is no room for new work; work that is there goes on.
    #[error("the storage of the coordinator is full: no new work is accepted until there is room")]
    StorageFull,
    /// The node is on its way out; nothing was changed.
    #[error("the coordinator is stopping; try again in a moment")]
    Stopping,
    /// What the output of tasks is kept on does not answer; nothing was changed.
    #[error("the engine that keeps the output of tasks does not answer")]
    Unavailable,
    /// It may or may not have happened.
    #[error(
        "the coordinator or its engine stopped before the outcome was certain; repeat the call with the same key; \
         without a key a repeat may submit the task twice"
    )]
    OutcomeUnknown,
}
