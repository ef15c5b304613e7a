//! What events change about leases of the bus, collected for those who act on it.

use std::mem;

use orchestrix_core::wire::bus::{CancelCause, JobCancel};
use orchestrix_core::{Event, LeaseId, Name, State, Task, TaskId};
use orchestrix_engine::bus::Ended;

use crate::tasks::named;

/// What is kept for a bus that does not answer. Channels beyond that are looked for later.
const KEPT_MAX: usize = 100_000;

/// Leases that ended or should end, since somebody looked.
#[derive(Debug, Default)]
pub(crate) struct BusChanges {
    /// Nothing was heard of the bus for a while: none of its leases ends.
    pub(crate) is_silent: bool,
    ended: Vec<EndedLease>,
    cancels: Vec<JobCancel>,
}

/// A lease of the bus that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndedLease {
    pub(crate) task: TaskId,
    pub(crate) lease: LeaseId,
    pub(crate) queue: Name,
    /// Who had started it.
    pub(crate) worker: Option<Name>,
}

/// A lease before an event.
pub(crate) struct Before {
    lease: EndedLease,
    /// It was asked to stop.
    is_asked: bool,
}

impl EndedLease {
    /// What is to be closed.
    pub(crate) fn to_close(&self) -> Ended {
        let offered_in = self.worker.is_none().then(|| self.queue.clone());
        Ended { task: self.task, lease: self.lease, offered_in }
    }
}

impl Before {
    /// The lease of the bus that an event is about, as it is before.
    pub(crate) fn of(state: &State, event: &Event) -> Option<Self> {
        let task = state.task(named(event)?)?;
        let lease = task.lease.as_deref().filter(|lease| lease.is_of_bus())?;
        let (queue, worker) = (task.queue.clone(), lease.worker.clone());
        let is_asked = lease.cancel_at.is_some();
        Some(Self { lease: EndedLease { task: task.id, lease: lease.id, queue, worker }, is_asked })
    }
}

impl BusChanges {
    /// The event is folded.
    pub(crate) fn note(&mut self, state: &State, before: Before) {
        let Before { lease, is_asked } = before;
        let now = state.task(lease.task).and_then(|task| task.lease.as_deref());
        let Some(now) = now.filter(|now| now.id == lease.lease) else {
            if self.ended.len() < KEPT_MAX {
                self.ended.push(lease);
            }
            return;
        };
        if !is_asked
            && now.cancel_at.is_some()
            && let Some(worker) = lease.worker
            && self.cancels.len() < KEPT_MAX
        {
            let (job_id, history_id, reason) = (lease.task, lease.lease, CancelCause::Requested);
            self.cancels.push(JobCancel { job_id, history_id, worker_id: worker, reason });
        }
    }

    pub(crate) fn take_ended(&mut self) -> Vec<EndedLease> {
        mem::take(&mut self.ended)
    }

    pub(crate) fn take_cancels(&mut self) -> Vec<JobCancel> {
        mem::take(&mut self.cancels)
    }
}

/// Whether the worker of a leased task was asked to stop.
pub(crate) fn is_asked_to_stop(task: &Task) -> bool {
    task.lease.as_deref().is_some_and(|lease| lease.cancel_at.is_some())
}
