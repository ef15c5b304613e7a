//! Explains the state of a task, as far as the journal knows.

use crate::sorted::Keyed;
use crate::{State, Timestamp};

use super::state::Ready;
use super::{LiveLease, Task, TaskState};

/// The place of a task.
#[derive(Clone, Debug, PartialEq)]
pub enum Place<'a> {
    /// It was submitted with a delay, or its worker gave it back until then.
    Delayed {
        until: Timestamp,
    },
    /// Its last attempt failed.
    Backoff {
        until: Timestamp,
    },
    /// It could be leased; so many of its queue go first.
    InLine {
        ahead: u64,
    },
    /// Over the bus; nobody has started it.
    Offered(&'a LiveLease),
    Leased(&'a LiveLease),
    CancelRequested(&'a LiveLease),
    Finished,
}

impl State {
    /// Finds the place of a task.
    #[must_use]
    pub fn place<'a>(&self, task: &'a Task, now: Timestamp) -> Place<'a> {
        match (task.state, task.lease.as_deref()) {
            (TaskState::Waiting, _) if now < task.not_before => {
                let until = task.not_before;
                if task.charged > 0 { Place::Backoff { until } } else { Place::Delayed { until } }
            }
            (TaskState::Waiting, _) => {
                let rank = self
                    .tasks
                    .queues
                    .get(&task.queue)
                    .map_or(0, |queue| queue.ready.rank(Ready::of(task).key()));
                Place::InLine { ahead: rank as u64 }
            }
            (TaskState::Leased, Some(lease)) if lease.cancel_at.is_some() => Place::CancelRequested(lease),
            (TaskState::Leased, Some(lease)) if lease.is_offer() => Place::Offered(lease),
            (TaskState::Leased, Some(lease)) => Place::Leased(lease),
            (TaskState::Leased, None) => unreachable!("a leased task has a lease"),
            (TaskState::Completed | TaskState::Failed | TaskState::Cancelled, _) => Place::Finished,
        }
    }
}
