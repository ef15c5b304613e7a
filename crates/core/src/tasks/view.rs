//! Views of tasks: from the state to the wire.

use super::decide::outcome;
use crate::wire::{AttemptView, LeaseView, Leased, Outcome, TaskSummary, TaskView};
use crate::{Attempt, LiveLease, Name, Task, TaskState, Timestamp};

impl Task {
    /// What a caller hears about it after a command.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        outcome(self)
    }

    /// What a worker gets with its lease, now; `None` when the task is not leased.
    #[must_use]
    pub fn handed_out(&self, now: Timestamp) -> Option<Leased> {
        let lease = self.lease.as_deref()?;
        Some(Leased {
            task_id: self.id,
            lease_id: lease.id,
            queue: self.queue.clone(),
            attempt: lease.attempt,
            payload: self.payload.clone(),
            lease_ms: lease.promised_ms(now),
            timeout_ms: lease.promised_timeout_ms(now),
        })
    }

    #[must_use]
    pub fn view(&self) -> TaskView {
        TaskView {
            summary: self.summary(),
            payload: self.payload.clone(),
            result: self.ending().and_then(|ending| ending.result.clone()),
            backoff: self.backoff(),
            attempts: self.attempts().iter().map(attempt_view).collect(),
        }
    }

    /// Who cancelled it, or has asked its worker to stop; if known by name.
    fn cancelled_by(&self) -> Option<&Name> {
        let asked = self.lease.as_deref().and_then(|lease| lease.cancel_by.as_ref());
        asked.or_else(|| self.ending()?.cancelled_by.as_ref())
    }

    #[must_use]
    pub fn summary(&self) -> TaskSummary {
        let running = u32::from(self.state == TaskState::Leased);
        let waits = self.state == TaskState::Waiting && self.not_before > self.created_at;
        TaskSummary {
            id: self.id,
            queue: self.queue.clone(),
            state: self.state,
            priority: self.priority,
            key: self.key().map(|claim| claim.key.clone()),
            attempt: self.charged + running,
            max_attempts: self.max_attempts,
            round: self.round(),
            created_at: self.created_at,
            not_before_at: waits.then_some(self.not_before),
            ttl_at: self.ttl_at(),
            timeout_ms: self.timeout_ms(),
            lease: self.lease.as_deref().and_then(lease_view),
            ended_at: self.ending().map(|ending| ending.at),
            reason: self.ending().and_then(|ending| ending.reason.as_deref().map(str::to_owned)),
            cancelled_by: self.cancelled_by().cloned(),
            error: self
                .attempts()
                .iter()
                .rev()
                .find_map(|attempt| attempt.error.as_deref().map(str::to_owned)),
        }
    }
}

/// An offer is not shown: it has no worker yet.
fn lease_view(lease: &LiveLease) -> Option<LeaseView> {
    Some(LeaseView {
        lease_id: lease.id,
        worker: lease.worker.clone()?,
        attempt: lease.attempt,
        granted_at: lease.granted_at,
        expires_at: lease.expires_at,
        timeout_at: lease.timeout_at,
        cancel_requested: lease.cancel_at.is_some(),
        progress: lease.progress,
        note: lease.note.as_deref().map(str::to_owned),
    })
}

fn attempt_view(attempt: &Attempt) -> AttemptView {
    AttemptView {
        attempt: attempt.number,
        round: attempt.round,
        lease_id: attempt.lease,
        worker: attempt.worker.clone(),
        started_at: attempt.started_at,
        ended_at: attempt.ended_at,
        outcome: attempt.end.as_str().to_owned(),
        error: attempt.error.as_deref().map(str::to_owned),
    }
}
