//! Decides commands about tasks. Changes nothing.

use super::event::{
    AttemptEnd, CancelReason, CancelRequested, ExpiryReason, Extension, LeaseExpired, LeaseExtended,
    LeaseGranted, LeaseReleased, Next, Purge, TaskCancelled, TaskCompleted, TaskCreated, TaskExpired,
    TaskFailed, TaskPurged, TaskRetried,
};
use super::fold::lease_end;
use super::{KeyClaim, Lease, LiveLease, Retention, Task, TaskCommand, TaskState, Tasks};
use crate::entity::Asked;
use crate::limits::{FREE_RELEASES, PURGE_TASKS_MAX};
use crate::planted::is_planted;
use crate::sorted::{Keyed, Sorted};
use crate::wire::{Backoff, Outcome, Submit};
use crate::{Decision, Event, Json, Key, LeaseId, Name, Refusal, TaskId, Timestamp};

impl Tasks {
    pub(super) fn judge(&self, command: &TaskCommand, asked: Asked) -> Result<Decision, Refusal> {
        let Asked { now, queues_max } = asked;
        match command {
            TaskCommand::Submit { task, request } => self.submit(task, *request, queues_max, now),
            TaskCommand::Lease(lease) => Ok(self.lease(lease, now)),
            TaskCommand::Offer(offer) => Ok(self.offer(offer, now)),
            TaskCommand::Start(leases) => Ok(self.start(leases, now)),
            TaskCommand::Extend(leases) => Ok(self.extend(leases, now)),
            TaskCommand::Note { task, lease, worker, progress, note } => {
                self.note(*task, *lease, worker, (*progress, note.as_ref()), now)
            }
            TaskCommand::ResumeBus { silent_since } => Ok(self.resume_bus(*silent_since, now)),
            TaskCommand::Heartbeat { task, lease, worker, progress, note } => {
                let held = self.running(*task, *lease, worker.as_ref(), now)?;
                let extended = vec![extension(held, now)];
                Ok(event(LeaseExtended { extended, progress: *progress, note: note.clone() }))
            }
            TaskCommand::HeartbeatAll { worker, leases } => Ok(self.heartbeat_all(worker, leases, now)),
            TaskCommand::Complete { task, lease, worker, result } => {
                self.complete(*task, *lease, worker.as_ref(), result.as_ref(), now)
            }
            TaskCommand::Fail { task, lease, worker, error, retry } => {
                let retry = if *retry { Retry::Allowed } else { Retry::Useless };
                self.fail(*task, *lease, worker.as_ref(), error, retry, now)
            }
            TaskCommand::Release { task, lease, worker } => self.release(*task, *lease, worker.as_ref(), now),
            TaskCommand::Abandon { task, lease } => self.abandon(*task, *lease, now),
            TaskCommand::Cancel { task, actor } => self.cancel(*task, actor.clone(), now),
            TaskCommand::Retry { task, actor } => self.retry(*task, actor.clone()),
            TaskCommand::Expire { task } => Ok(self.expire(*task, now)),
            TaskCommand::Purge(retention) => Ok(self.purge(*retention, now)),
        }
    }

    fn submit(
        &self,
        submit: &Submit,
        request: [u8; 16],
        queues_max: usize,
        now: Timestamp,
    ) -> Result<Decision, Refusal> {
        if let Some(key) = &submit.key
            && let Some(first) = self.key_holder(&submit.queue, key, request, now)
        {
            return if first.same_request || is_planted("key-without-request") {
                Ok(Decision::Already(first.outcome))
            } else {
                Err(Refusal::KeyConflict { key: key.clone(), task: first.outcome.id })
            };
        }
        if self.queues.len() >= queues_max && !self.queues.contains_key(&submit.queue) {
            let problem = format!("there are {queues_max} queues with tasks already; use one of them");
            return Err(Refusal::Invalid { field: "queue", problem });
        }
        Ok(event(TaskCreated {
            queue: self.shared_queue(&submit.queue),
            payload: submit.payload.clone(),
            priority: submit.priority,
            not_before: now.plus(submit.delay_ms),
            max_attempts: submit.max_attempts,
            key: submit.key.clone().map(|key| KeyClaim { key, request }),
            timeout_ms: submit.timeout_ms,
            ttl_at: submit.ttl_ms.map(|ttl_ms| now.plus(ttl_ms)),
            backoff: (submit.backoff != Backoff::default()).then_some(submit.backoff),
        }))
    }

    /// The task that has a key, unless it was purged and its time is over.
    fn key_holder(&self, queue: &Name, key: &Key, request: [u8; 16], now: Timestamp) -> Option<KeyHolder> {
        if let Some(task) = self.keys.get(&(queue.clone(), key.clone())).and_then(|id| self.all.get(*id)) {
            let same_request = task.key().is_some_and(|claim| claim.request == request);
            return Some(KeyHolder { outcome: outcome(task), same_request });
        }
        let found = self.remembered.find(queue, key, now)?;
        let (id, state) = (found.task, found.state());
        let outcome = Outcome { id, state, not_before_at: None, cancel_requested: false };
        Some(KeyHolder { outcome, same_request: found.is_request(request) })
    }

    /// Grants the first task in line; if that has outlived its ttl, it is expired instead.
    fn lease(&self, lease: &Lease, now: Timestamp) -> Decision {
        if !self.has_room(&lease.worker, lease.capacity) {
            return Decision::Nothing;
        }
        let Some(task) = self.first_in_line(&lease.queues) else { return Decision::Nothing };
        if task.ttl_at().is_some_and(|ttl_at| ttl_at <= now) {
            return event(TaskExpired { task: task.id });
        }
        event(LeaseGranted {
            task: task.id,
            worker: self.shared_worker(&lease.worker),
            attempt: task.charged + 1,
            length_ms: lease.lease_ms,
            expires_at: lease_end(now, lease.lease_ms),
            timeout_at: task.timeout_ms().map(|timeout_ms| now.plus(timeout_ms)),
            request_id: lease.request_id.clone(),
        })
    }

    /// The task of these queues that is handed out next.
    pub(super) fn first_in_line(&self, queues: &[Name]) -> Option<&Task> {
        let best = queues.iter().filter_map(|queue| self.first_ready(queue)).min_by_key(Keyed::key)?;
        Some(self.all.get(best.id()).expect("a ready task is there"))
    }

    fn heartbeat_all(&self, worker: &Name, leases: &[LeaseId], now: Timestamp) -> Decision {
        let held = leases.iter().filter_map(|id| self.leased(*id)?.lease.as_deref());
        let live = held.filter(|lease| lease.worker.as_ref() == Some(worker) && lease.is_live(now));
        let mut extended: Vec<Extension> = live.map(|lease| extension(lease, now)).collect();
        extended.sort_by_key(|extension| extension.lease);
        extended.dedup();
        if extended.is_empty() {
            return Decision::Nothing;
        }
        event(LeaseExtended { extended, progress: None, note: None })
    }

    fn complete(
        &self,
        task: TaskId,
        lease: LeaseId,
        worker: Option<&Name>,
        result: Option<&Json>,
        now: Timestamp,
    ) -> Result<Decision, Refusal> {
        if let Some(repeat) = self.repeat(task, lease, worker, AttemptEnd::Completed)? {
            return Ok(repeat);
        }
        let held = self.held(task, lease, worker, now)?;
        let lease = if is_planted("completed-by-task-only") { held.id } else { lease };
        let worker = self.starting(held, worker);
        Ok(event(TaskCompleted { task, lease, result: result.cloned(), worker }))
    }

    fn fail(
        &self,
        id: TaskId,
        lease: LeaseId,
        worker: Option<&Name>,
        error: &str,
        retry: Retry,
        now: Timestamp,
    ) -> Result<Decision, Refusal> {
        if let Some(repeat) = self.repeat(id, lease, worker, AttemptEnd::Failed)? {
            return Ok(repeat);
        }
        let held = self.held(id, lease, worker, now)?;
        let task = self.known(id)?;
        let next = match retry {
            Retry::Useless if held.cancel_at.is_none() => Next::Failed,
            Retry::Allowed | Retry::Useless => next_after(task, held, now.plus(backoff_ms(task))),
        };
        let worker = self.starting(held, worker);
        Ok(event(TaskFailed { task: id, lease, error: error.to_owned(), next, worker }))
    }

    fn release(
        &self,
        id: TaskId,
        lease: LeaseId,
        worker: Option<&Name>,
        now: Timestamp,
    ) -> Result<Decision, Refusal> {
        if let Some(repeat) = self.repeat(id, lease, worker, AttemptEnd::Released)? {
            return Ok(repeat);
        }
        let held = self.held(id, lease, worker, now)?;
        let task = self.known(id)?;
        let charged = task.releases() >= FREE_RELEASES;
        let next = if charged || held.cancel_at.is_some() {
            next_after(task, held, now)
        } else {
            Next::Waiting { not_before: now }
        };
        let worker = self.starting(held, worker);
        Ok(event(LeaseReleased { task: id, lease, charged, next, undelivered: None, worker }))
    }

    /// Gives back a lease that its worker never heard of, over or not.
    fn abandon(&self, id: TaskId, lease: LeaseId, now: Timestamp) -> Result<Decision, Refusal> {
        let current = self.known(id)?.lease.as_deref().filter(|current| current.id == lease);
        let stale = Refusal::StaleLease { task: id, lease, why: "it is not the task's any more" };
        let cancelled = current.ok_or(stale)?.cancel_at.is_some();
        let next = if cancelled { Next::Cancelled } else { Next::Waiting { not_before: now } };
        let (charged, undelivered) = (false, Some(true));
        Ok(event(LeaseReleased { task: id, lease, charged, next, undelivered, worker: None }))
    }

    fn cancel(&self, id: TaskId, actor: Option<Name>, now: Timestamp) -> Result<Decision, Refusal> {
        let task = self.known(id)?;
        match task.state {
            TaskState::Waiting => {
                Ok(event(TaskCancelled { task: id, reason: CancelReason::Requested, actor }))
            }
            TaskState::Leased => {
                let lease = task.lease.as_ref().expect("a leased task has a lease");
                if lease.is_offer() {
                    return Ok(event(TaskCancelled { task: id, reason: CancelReason::Requested, actor }));
                }
                if lease.cancel_at.is_some() {
                    return Ok(Decision::Already(outcome(task)));
                }
                let cancel_at = lease_end(now, lease.length_ms);
                Ok(event(CancelRequested { task: id, cancel_at, actor }))
            }
            TaskState::Cancelled => Ok(Decision::Already(outcome(task))),
            TaskState::Completed | TaskState::Failed => {
                Err(Refusal::Finished { task: id, state: task.state })
            }
        }
    }

    fn retry(&self, id: TaskId, actor: Option<Name>) -> Result<Decision, Refusal> {
        let task = self.known(id)?;
        if task.state != TaskState::Failed {
            return Err(Refusal::NotFailed { task: id, state: task.state });
        }
        Ok(event(TaskRetried { task: id, actor }))
    }

    fn expire(&self, id: TaskId, now: Timestamp) -> Decision {
        let Some(task) = self.get(id) else { return Decision::Nothing };
        let over = |limit: Option<Timestamp>| limit.is_some_and(|limit| limit <= now);
        match (task.state, task.lease.as_deref()) {
            (TaskState::Waiting, _) if over(task.ttl_at()) => event(TaskExpired { task: id }),
            (TaskState::Leased, Some(lease)) if lease.is_offer() && !is_planted("offer-charged") => {
                if over(Some(lease.expires_at)) {
                    Self::offer_over(id, lease.id, now)
                } else {
                    Decision::Nothing
                }
            }
            (TaskState::Leased, Some(lease)) => {
                let next = next_after(task, lease, now);
                if over(lease.cancel_at) {
                    event(TaskCancelled { task: id, reason: CancelReason::Unheeded, actor: None })
                } else if over(lease.timeout_at) {
                    event(LeaseExpired { task: id, lease: lease.id, reason: ExpiryReason::Timeout, next })
                } else if over(Some(lease.expires_at)) {
                    event(LeaseExpired { task: id, lease: lease.id, reason: ExpiryReason::Silent, next })
                } else {
                    Decision::Nothing
                }
            }
            (
                TaskState::Waiting
                | TaskState::Leased
                | TaskState::Completed
                | TaskState::Failed
                | TaskState::Cancelled,
                _,
            ) => Decision::Nothing,
        }
    }

    fn purge(&self, retention: Retention, now: Timestamp) -> Decision {
        let over = |ended: &Sorted<(Timestamp, TaskId)>, kept_ms: u64| {
            let too_many = ended.len().saturating_sub(retention.count);
            let old = |at: Timestamp| at.plus(kept_ms) <= now;
            let oldest = ended.after(None).take(PURGE_TASKS_MAX).enumerate();
            oldest
                .take_while(|(n, (at, _))| *n < too_many || old(*at))
                .map(|(_, (_, id))| *id)
                .collect::<Vec<_>>()
        };
        let (mut ids, mut failed) =
            (over(&self.done, retention.done_ms), over(&self.failed, retention.failed_ms));
        // Neither kind waits until there is nothing left of the other.
        failed.truncate(PURGE_TASKS_MAX.saturating_sub(ids.len()).max(PURGE_TASKS_MAX / 2));
        ids.truncate(PURGE_TASKS_MAX - failed.len());
        ids.extend(failed);
        if ids.is_empty() {
            return Decision::Nothing;
        }
        let key_until = |task| self.key_until(task, retention.key_ms, now);
        let tasks: Vec<Purge> =
            ids.into_iter().map(|task| Purge { task, key_until: key_until(task) }).collect();
        let added = tasks.iter().filter(|purge| purge.key_until.is_some()).count();
        let too_many = self.remembered.len() + added > retention.keys;
        event(TaskPurged { tasks, keys_kept: too_many.then_some(retention.keys as u64) })
    }

    /// Until when the key of a task is remembered past its purge, if it has one that is not over already.
    fn key_until(&self, id: TaskId, key_ms: u64, now: Timestamp) -> Option<Timestamp> {
        let task = self.all.get(id).expect("an ended task is there");
        let until = task.ending().expect("an ended task has an ending").at.plus(key_ms);
        (task.key().is_some() && until > now && !is_planted("key-forgotten")).then_some(until)
    }

    fn known(&self, id: TaskId) -> Result<&Task, Refusal> {
        self.get(id).ok_or(Refusal::NotFound(id))
    }

    /// The lease, if it is the current one of this task, live, and of this worker.
    fn held(
        &self,
        id: TaskId,
        lease: LeaseId,
        worker: Option<&Name>,
        now: Timestamp,
    ) -> Result<&LiveLease, Refusal> {
        let stale = |why| Refusal::StaleLease { task: id, lease, why };
        let task = self.known(id)?;
        let held = task.lease.as_deref().ok_or_else(|| stale(why_not_leased(task, lease)))?;
        if held.id != lease {
            let replaced = stale("another lease has replaced it, or it never was of this task");
            return if is_planted("completed-by-task-only") { Ok(held) } else { Err(replaced) };
        }
        if !held.is_live(now) && !is_planted("expired-lease-accepted") {
            return Err(stale("it has expired"));
        }
        match (&held.worker, worker) {
            (Some(holder), Some(worker)) if holder != worker => Err(stale("it belongs to another worker")),
            (None, None) => {
                let problem = format!("must be named: nobody has started lease {lease}, which is offered");
                Err(Refusal::Invalid { field: "worker", problem })
            }
            (Some(_) | None, _) => Ok(held),
        }
    }

    /// The same, of a lease that was started.
    pub(super) fn running(
        &self,
        id: TaskId,
        lease: LeaseId,
        worker: Option<&Name>,
        now: Timestamp,
    ) -> Result<&LiveLease, Refusal> {
        let held = self.held(id, lease, worker, now)?;
        if held.is_offer() {
            return Err(Refusal::StaleLease { task: id, lease, why: "nobody has started it" });
        }
        Ok(held)
    }

    /// The worker of a report, if the report starts the lease.
    fn starting(&self, held: &LiveLease, worker: Option<&Name>) -> Option<Name> {
        worker.filter(|_| held.is_offer()).map(|worker| self.shared_worker(worker))
    }

    /// What came of the same call when it was made the first time.
    fn repeat(
        &self,
        id: TaskId,
        lease: LeaseId,
        worker: Option<&Name>,
        end: AttemptEnd,
    ) -> Result<Option<Decision>, Refusal> {
        let task = self.known(id)?;
        let attempt =
            task.attempts().iter().rev().find(|attempt| attempt.lease == lease && attempt.end == end);
        let Some(attempt) = attempt else { return Ok(None) };
        if worker.is_some_and(|worker| *worker != attempt.worker) {
            return Err(Refusal::StaleLease { task: id, lease, why: "it belonged to another worker" });
        }
        let not_before_at = (attempt.left == TaskState::Waiting).then_some(attempt.not_before);
        let outcome = Outcome { id, state: attempt.left, not_before_at, cancel_requested: false };
        Ok(Some(Decision::Already(outcome)))
    }
}

/// What came of the task that has a key.
struct KeyHolder {
    outcome: Outcome,
    /// Whether it was submitted with the same request.
    same_request: bool,
}

/// Whether another attempt may help, in the eyes of the worker.
enum Retry {
    Allowed,
    Useless,
}

/// What a caller hears about a task.
pub(crate) fn outcome(task: &Task) -> Outcome {
    let waiting = task.state == TaskState::Waiting;
    let cancel_requested = task.lease.as_ref().is_some_and(|lease| lease.cancel_at.is_some());
    Outcome {
        id: task.id,
        state: task.state,
        not_before_at: waiting.then_some(task.not_before),
        cancel_requested,
    }
}

pub(super) fn event(event: impl Into<Event>) -> Decision {
    Decision::Event(event.into())
}

pub(super) fn extension(lease: &LiveLease, now: Timestamp) -> Extension {
    Extension { lease: lease.id, expires_at: lease.expires_at.max(lease_end(now, lease.length_ms)) }
}

/// Where a task goes when an attempt that counts ends without success.
fn next_after(task: &Task, lease: &LiveLease, not_before: Timestamp) -> Next {
    if lease.cancel_at.is_some() && !is_planted("cancel-forgotten") {
        Next::Cancelled
    } else if task.charged + 1 >= task.max_attempts && !is_planted("attempts-unlimited") {
        Next::Failed
    } else {
        Next::Waiting { not_before }
    }
}

/// How long a task waits after the failure of its running attempt. The jitter takes away up to a tenth; it
/// comes from the id and the attempt, so that it is the same wherever it is computed.
fn backoff_ms(task: &Task) -> u64 {
    let Backoff { base_ms, factor, max_ms } = task.backoff();
    #[expect(clippy::cast_precision_loss, reason = "a wait of at most a year is exact")]
    let (mut wait, max) = (base_ms as f64, max_ms as f64);
    for _ in 0..task.charged {
        if wait >= max {
            break;
        }
        wait *= factor;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and max_ms")]
    let wait = wait.min(max) as u64;
    wait - wait / 10 * (mix(task.id.0, task.charged) % 1_000) / 1_000
}

/// Spreads neighbouring ids evenly.
fn mix(id: u64, attempt: u32) -> u64 {
    let mut x =
        id.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(attempt).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    x ^= x >> 31;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 29)
}

fn why_not_leased(task: &Task, lease: LeaseId) -> &'static str {
    let attempt = task.attempts().iter().rev().find(|attempt| attempt.lease == lease);
    match attempt.map(|attempt| attempt.end) {
        Some(AttemptEnd::Completed) => "the task was completed under it",
        Some(AttemptEnd::Failed) => "the attempt was reported as failed",
        Some(AttemptEnd::Released) => "it was released",
        Some(AttemptEnd::Silent) => "it has expired: no heartbeat arrived in time",
        Some(AttemptEnd::Timeout) => "it has expired: the attempt reached the time limit of the task",
        Some(AttemptEnd::Cancelled) => "the task was cancelled",
        None => "the task is not leased under it",
    }
}
