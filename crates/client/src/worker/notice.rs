//! Notices of a worker about its tasks, for display and for counting.

use orchestrix_core::wire::Leased;
use orchestrix_core::{LeaseId, Name, TaskId, TaskState, Timestamp};

use crate::error::Error;

/// Something happened to a task of this worker.
#[derive(Clone, Debug)]
pub struct Notice {
    pub task: TaskId,
    pub lease: LeaseId,
    pub queue: Name,
    pub attempt: u32,
    pub what: Noticed,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Noticed {
    /// The handler began.
    Began,
    /// The completion was accepted.
    Completed { state: TaskState },
    /// The failure was accepted; a task that waits is tried again.
    Failed { error: String, state: TaskState, not_before_at: Option<Timestamp> },
    /// The task was given back.
    Released { state: TaskState },
    /// The lease ended before the handler did; what it did does not count.
    Lost,
    /// The time limit of the attempt was over before the handler ended; what it did does not count.
    TimedOut,
    /// The outcome was not accepted, or could not be reported.
    Untold { error: Error },
}

impl Notice {
    pub(crate) fn new(leased: &Leased, what: Noticed) -> Self {
        let Leased { task_id, lease_id, queue, attempt, .. } = leased;
        Self { task: *task_id, lease: *lease_id, queue: queue.clone(), attempt: *attempt, what }
    }
}
