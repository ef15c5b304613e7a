//! The requests, answers and actions of all actors, in the time of the world.

use std::collections::BTreeMap;

use orchestrix_core::wire::{
    Assignment, Extended, Leases, Outcome, QueueList, Submit, TaskView, WorkerExtended,
};
use orchestrix_core::{Event, LeaseId, Name, Position, Retention, TaskId, Timestamp};
use orchestrix_node::{Error, Seen, ShardAsk};

use crate::plan::Plan;
use crate::shards::record::Record;

/// One event of the journal, as it first became durable.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) position: Position,
    pub(crate) at: Timestamp,
    pub(crate) event: Event,
    /// Of the batch that carried it: what was written must never read differently.
    pub(crate) batch: [u8; 32],
}

/// What an actor asks.
#[derive(Clone, Debug)]
pub(crate) enum Question {
    Submit(Submit),
    Lease {
        queues: Vec<Name>,
        worker: Name,
        max: usize,
        lease_ms: u64,
        wait_ms: u64,
        request_id: Option<Name>,
        capacity: Option<u32>,
    },
    Heartbeat {
        task: TaskId,
        lease: LeaseId,
        worker: Name,
    },
    HeartbeatAll {
        worker: Name,
        leases: Vec<LeaseId>,
    },
    Complete {
        task: TaskId,
        lease: LeaseId,
        worker: Name,
        result: String,
    },
    Fail {
        task: TaskId,
        lease: LeaseId,
        worker: Name,
        retry: bool,
    },
    Release {
        task: TaskId,
        lease: LeaseId,
        worker: Name,
    },
    Cancel {
        task: TaskId,
    },
    Retry {
        task: TaskId,
    },
    Get {
        task: TaskId,
    },
    Queues,
    /// A process of a worker of a service asks; whose number only the world knows.
    Shards {
        process: usize,
        ask: Box<ShardAsk>,
    },
    ChangeService {
        service: Name,
        count: u32,
    },
}

impl Question {
    pub(crate) fn is_about_shards(&self) -> bool {
        matches!(self, Self::Shards { .. } | Self::ChangeService { .. })
    }

    /// Whether a process of a service asks this.
    pub(crate) fn is_of(&self, process: usize) -> bool {
        matches!(self, Self::Shards { process: asks, .. } if *asks == process)
    }

    /// Milliseconds that the coordinator may take; a worker that comes waits for others of its service.
    pub(crate) fn waits_ms(&self, plan: &Plan) -> u64 {
        match self {
            Self::Lease { wait_ms, .. } => *wait_ms,
            Self::Shards { ask, .. } if is_coming(ask) => plan.shards.as_ref().map_or(0, |it| it.lease_ms),
            Self::Submit(_)
            | Self::Heartbeat { .. }
            | Self::HeartbeatAll { .. }
            | Self::Complete { .. }
            | Self::Fail { .. }
            | Self::Release { .. }
            | Self::Cancel { .. }
            | Self::Retry { .. }
            | Self::Get { .. }
            | Self::Queues
            | Self::Shards { .. }
            | Self::ChangeService { .. } => 0,
        }
    }

    /// The worker that asks, if one does.
    pub(crate) fn worker(&self) -> Option<&Name> {
        match self {
            Self::Lease { worker, .. }
            | Self::Heartbeat { worker, .. }
            | Self::HeartbeatAll { worker, .. }
            | Self::Complete { worker, .. }
            | Self::Fail { worker, .. }
            | Self::Release { worker, .. } => Some(worker),
            Self::Submit(_)
            | Self::Cancel { .. }
            | Self::Retry { .. }
            | Self::Get { .. }
            | Self::Queues
            | Self::Shards { .. }
            | Self::ChangeService { .. } => None,
        }
    }
}

fn is_coming(ask: &ShardAsk) -> bool {
    match ask {
        ShardAsk::Register { .. } => true,
        ShardAsk::Heartbeat { body, .. } => body.assigned_shards.is_empty(),
        ShardAsk::Deregister { .. }
        | ShardAsk::Change { .. }
        | ShardAsk::Assignment { .. }
        | ShardAsk::Service(_)
        | ShardAsk::Services { .. } => false,
    }
}

/// What the server answers.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Submitted(Outcome, Seen),
    Leases(Leases),
    Extended(Extended),
    WorkerExtended(WorkerExtended),
    Outcome(Outcome),
    Task(Box<TaskView>),
    Queues(QueueList),
    Assignment(Assignment),
    ServiceChanged,
}

/// One delivery of a question to the server and what came of it there.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) op: usize,
    pub(crate) question: Question,
    /// What was durable when the question was first sent; its effect comes later.
    pub(crate) durable_before: Position,
    /// What was durable when the answer was given.
    pub(crate) durable_after: Position,
    /// The time of the server when the answer was given.
    pub(crate) at: Timestamp,
    /// When it was asked and answered, in microseconds of the world.
    pub(crate) asked_us: u64,
    pub(crate) answered_us: u64,
    pub(crate) answer: Result<Answer, Error>,
}

/// An honest worker at work under a lease, in microseconds of the world.
#[derive(Clone, Debug)]
pub(crate) struct Execution {
    pub(crate) task: TaskId,
    pub(crate) lease: LeaseId,
    pub(crate) from_us: u64,
    pub(crate) to_us: u64,
}

/// What a process says that it has done, when it has come to rest or stopped cleanly.
#[derive(Clone, Debug)]
pub(crate) struct Counted {
    /// The end of the journal when it started.
    pub(crate) after: Position,
    pub(crate) until: Position,
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// This world had no faults, and every participant was quick.
    pub(crate) calm: bool,
    /// How long tasks that have ended must be kept, if it is known.
    pub(crate) retention: Option<Retention>,
    /// How many queues may have tasks at one time, if it is known.
    pub(crate) queues_max: Option<usize>,
    /// What was decided when the faults ended.
    pub(crate) healed: Option<Position>,
    pub(crate) log: Vec<Entry>,
    pub(crate) calls: Vec<Call>,
    pub(crate) executions: Vec<Execution>,
    /// Every submit, and how often it reached the server.
    pub(crate) submits: Vec<(Submit, u32)>,
    pub(crate) counted: Vec<Counted>,
    /// What reached the server and was never answered, with when it was asked.
    pub(crate) unanswered: Vec<(Question, u64)>,
    pub(crate) shards: Record,
}
