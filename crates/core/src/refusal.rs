//! Refusals: every reason for which the rules refuse a command. A refusal changes nothing.

use crate::{Key, LeaseId, Name, TaskId, TaskState};

/// A refusal, with a stable [`code`](Refusal::code) for programs and a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{field}: {problem}")]
    Invalid { field: &'static str, problem: String },
    #[error("{field} has {bytes} bytes, at most {max} are accepted")]
    TooLarge { field: &'static str, bytes: usize, max: usize },
    #[error("there is no task {0}; if there was one, it ended and was purged")]
    NotFound(TaskId),
    #[error("there is no service {0}; the first worker that registers creates it")]
    NoService(Name),
    #[error("lease {lease} of task {task} is not valid: {why}")]
    StaleLease { task: TaskId, lease: LeaseId, why: &'static str },
    /// A lease of the bus is not the node's to take or to give away.
    #[error("lease {lease} does not change its owner: {why}")]
    NotOwner { lease: LeaseId, why: &'static str },
    #[error("key {key:?} belongs to task {task}, which was submitted with a different request")]
    KeyConflict { key: Key, task: TaskId },
    #[error("task {task} is {state}; only FAILED tasks can be retried")]
    NotFailed { task: TaskId, state: TaskState },
    #[error("task {task} is {state} and cannot be cancelled any more")]
    Finished { task: TaskId, state: TaskState },
    /// The caller is limited to some queues, and this is outside of them.
    #[error(transparent)]
    Forbidden(Forbidden),
    #[error(
        "this needs format {format} of the journal, which is not there before every node is of a version that reads it"
    )]
    Upgrading { format: u8 },
    #[error("an internal error kept this command from being decided; nothing was changed")]
    Internal,
}

/// What a caller who is limited to some queues may not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Forbidden {
    /// It names a queue that is not one of the caller's.
    #[error("this token is not for queue {0}")]
    Queue(Name),
    /// It names no queue, which would mean all of them.
    #[error("this token is limited to some queues: name one of them with the parameter queue")]
    AnyQueue,
    #[error("this token is limited to some queues, and this concerns all of them")]
    Everything,
}

impl Refusal {
    /// The word that programs match on. It never changes.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "invalid",
            Self::TooLarge { .. } => "too_large",
            Self::NotFound(_) | Self::NoService(_) => "not_found",
            Self::StaleLease { .. } => "stale_lease",
            Self::KeyConflict { .. } => "key_conflict",
            Self::NotFailed { .. } => "not_failed",
            Self::Finished { .. } => "finished",
            Self::Forbidden(_) => "forbidden",
            Self::NotOwner { .. } => "not_owner",
            Self::Upgrading { .. } => "upgrading",
            Self::Internal => "internal",
        }
    }
}
