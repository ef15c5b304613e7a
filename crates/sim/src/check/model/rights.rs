//! The rules of leases: which one is current, which is live, which worker may get one, and how it ends.

use orchestrix_core::{AttemptEnd, LeaseId, Next, TaskId, Timestamp};

use super::{Is, LATE_MS, Lease, Model, Task, ensure, kept_until};
use crate::check::Violation;
use crate::coverage::{Coverage, Covered};

impl Model {
    pub(super) fn task(&mut self, id: TaskId) -> Result<&mut Task, Violation> {
        let position = self.position;
        let unknown =
            || Violation::new("T2", format!("position {position} names task {id}, which is not there"));
        self.tasks.get_mut(&id).filter(|task| task.is() != Is::Purged).ok_or_else(unknown)
    }

    /// The lease of a task, if it is the one named.
    pub(super) fn current(&mut self, task: TaskId, lease: LeaseId) -> Result<Lease, Violation> {
        let position = self.position;
        let current = self.task(task)?.lease.clone().filter(|current| current.id == lease);
        current.ok_or_else(|| {
            Violation::new(
                "T6",
                format!("position {position} names lease {lease}, which task {task} does not have"),
            )
        })
    }

    /// Refuses a report under a lease that is over.
    pub(super) fn live(&mut self, task: TaskId, lease: LeaseId) -> Result<(), Violation> {
        let at = self.at;
        let ends = self.current(task, lease)?.ends_at();
        ensure(at < ends, "L4", || {
            format!("lease {lease} of task {task} ended at {ends:?}, and it is {at:?}")
        })
    }

    pub(super) fn may_be_granted(&mut self, id: TaskId) -> Result<(), Violation> {
        let at = self.at;
        let task = self.task(id)?;
        ensure(task.is() == Is::Waiting, "L1", || {
            format!("task {id} is granted while it is {:?}", task.is())
        })?;
        ensure(task.not_before <= at, "T10", || format!("task {id} is granted before its time"))?;
        ensure(task.charged < task.max_attempts, "T9", || format!("task {id} has no attempt left"))?;
        ensure(task.ttl_at.is_none_or(|ttl_at| at < ttl_at), "T10", || {
            format!("task {id} has outlived its ttl")
        })?;
        let (queue, priority, created) = (task.queue.clone(), task.priority, task.created);
        let first = self.tasks.iter().find(|(_, other)| {
            let eligible = other.is() == Is::Waiting && other.not_before <= at && other.queue == queue;
            eligible && (-other.priority, other.created) < (-priority, created)
        });
        ensure(first.is_none(), "T12", || format!("task {id} overtakes task {:?}", first.map(|(id, _)| id)))
    }

    pub(super) fn extend(&mut self, id: LeaseId, expires_at: Timestamp) -> Result<(), Violation> {
        let task = self.leases.get(&id).map(|granted| granted.task);
        let Some(task) = task else {
            return Err(Violation::new("L4", format!("lease {id} is extended and was never granted")));
        };
        self.live(task, id)?;
        let at = self.at;
        let Some(lease) = self.task(task)?.lease.as_mut() else {
            return Err(Violation::new("L4", format!("lease {id} is extended and is over")));
        };
        ensure(expires_at >= lease.expires_at, "L5", || format!("an extension makes lease {id} shorter"))?;
        ensure(!lease.is_offer(), "L6", || format!("offer {id} is extended, and nobody has it"))?;
        // What a worker says over the bus between heartbeats is noted, and makes nothing longer.
        let noted = lease.of_bus && expires_at == lease.expires_at;
        ensure(noted || expires_at >= kept_until(at, lease.length_ms), "L3", || {
            format!("lease {id} is kept too short")
        })?;
        (lease.expires_at, lease.prolonged) = (expires_at, false);
        let ends = lease.ends_at();
        self.note_end(id, ends);
        Ok(())
    }

    /// A new term gives every live lease its length once more, once between two extensions. Another one leaves it what
    /// it had at the last event before.
    pub(super) fn prolong(
        &mut self,
        since_last_ms: u64,
        counts: impl Fn(&Lease) -> bool,
        coverage: &mut Coverage,
    ) {
        let at = self.at;
        let mut changed = Vec::new();
        let leases = self.tasks.values_mut().filter_map(|task| task.lease.as_mut());
        for lease in leases.filter(|lease| counts(lease)) {
            if !lease.prolonged {
                lease.expires_at = lease.expires_at.max(kept_until(at, lease.lasts()));
                lease.prolonged = true;
                coverage.add(Covered::LeaseProlongedAtStart);
            } else {
                lease.expires_at = Timestamp(lease.expires_at.0 + since_last_ms);
            }
            // A worker counts on its limit as on its lease: it has the one or the other until then.
            if let Some(limit) = &mut lease.timeout_at {
                let moved = Timestamp(limit.0 + since_last_ms);
                *limit = (*limit).max(moved.min(lease.expires_at));
            }
            changed.push((lease.id, lease.ends_at()));
        }
        for (id, ends) in changed {
            self.note_end(id, ends);
        }
    }

    pub(super) fn note_end(&mut self, id: LeaseId, ends: Timestamp) {
        let position = self.position;
        if let Some(granted) = self.leases.get_mut(&id) {
            granted.ends.push((position, ends));
        }
    }

    /// Takes a lease from its task.
    pub(super) fn close(&mut self, id: TaskId, lease: LeaseId, end: AttemptEnd) -> Result<Lease, Violation> {
        let current = self.current(id, lease)?;
        let position = self.position;
        let task = self.task(id)?;
        task.lease = None;
        task.ended.insert(lease, (position, end));
        if let Some(held) = current.worker.as_ref().and_then(|worker| self.held.get_mut(worker)) {
            *held -= 1;
        }
        Ok(current)
    }

    pub(super) fn end_attempt(
        &mut self,
        id: TaskId,
        lease: LeaseId,
        end: AttemptEnd,
        next: Next,
        charged: bool,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        let lease = self.close(id, lease, end)?;
        let (position, at) = (self.position, self.at);
        let task = self.task(id)?;
        task.charged += u32::from(charged);
        let used_up = task.charged >= task.max_attempts;
        let is = match next {
            Next::Waiting { not_before } => {
                ensure(lease.cancel_at.is_none(), "T11", || {
                    format!("task {id} goes on after a cancellation")
                })?;
                ensure(!used_up, "T9", || format!("task {id} goes on with all attempts used up"))?;
                ensure(not_before >= at, "T10", || format!("task {id} may go on before now"))?;
                task.not_before = not_before;
                Is::Waiting
            }
            Next::Failed => {
                ensure(lease.cancel_at.is_none(), "T11", || {
                    format!("task {id} is given up, and was to be cancelled")
                })?;
                if !used_up {
                    task.given_up.push(lease.id);
                }
                let allowed = used_up || end == AttemptEnd::Failed;
                ensure(allowed, "T9", || format!("task {id} is given up with attempts left"))?;
                Is::Failed
            }
            Next::Cancelled => {
                ensure(lease.cancel_at.is_some(), "T11", || format!("nobody cancelled task {id}"))?;
                coverage.add(Covered::CancelHeeded);
                Is::Cancelled
            }
        };
        task.was.push((position, is));
        Ok(())
    }

    /// TL1: what time asks for is done in time, once nothing goes wrong any more.
    pub(super) fn in_time(&self, limit: Option<Timestamp>, what: &str, id: u64) -> Result<(), Violation> {
        let Some((limit, healed_at)) = limit.zip(self.healed_at) else { return Ok(()) };
        let due = limit.0.max(healed_at.0) + LATE_MS;
        ensure(self.at.0 <= due, "TL1", || {
            format!("the {what} {id} was over at {limit:?}, and it is {:?}", self.at)
        })
    }

    /// T10: a task that failed waits as long as its backoff says, less a tenth at most.
    pub(super) fn waits_as_agreed(&mut self, id: TaskId, next: Next) -> Result<(), Violation> {
        let Next::Waiting { not_before } = next else { return Ok(()) };
        let at = self.at;
        let task = self.task(id)?;
        let backoff = task.made.backoff.unwrap_or_default();
        let mut wait = backoff.base_ms as f64;
        for _ in 0..task.charged {
            wait = (wait * backoff.factor).min(backoff.max_ms as f64);
        }
        let (wait, waits) = (wait.min(backoff.max_ms as f64), not_before.since(at) as f64);
        ensure(waits >= wait * 0.9 - 1.0 && waits <= wait + 1.0, "T10", || {
            format!("task {id} waits {waits} ms after a failure, and its backoff says {wait}")
        })
    }

    /// T1: what has ended is kept for its time, unless there is more than is kept.
    pub(super) fn may_be_purged(&mut self, id: TaskId) -> Result<(), Violation> {
        let (at, retention, dead, done) = (self.at, self.retention, self.dead, self.done);
        let Some(retention) = retention else { return Ok(()) };
        let task = self.task(id)?;
        let failed = task.is() == Is::Failed;
        let (kept_ms, count) = if failed { (retention.failed_ms, dead) } else { (retention.done_ms, done) };
        let over = at.0 >= task.ended_at.0 + kept_ms || count > retention.count;
        ensure(over, "T1", || {
            format!("task {id} ended at {:?} and is purged at {at:?}, one of {count}", task.ended_at)
        })?;
        if failed {
            self.dead -= 1;
        } else {
            self.done -= 1;
        }
        Ok(())
    }
}
