//! The naive model: a second implementation of the conditions and changes of each event, from the design.

mod bus;
mod rights;
mod task;

use std::collections::BTreeMap;

use orchestrix_core::{
    AttemptEnd, CancelReason, Event, ExpiryReason, Key, LeaseId, Name, Next, Position, Retention, TaskEvent,
    TaskId, TermEvent, Timestamp,
};

use crate::check::Violation;
use crate::coverage::{Coverage, Covered};
use crate::history::History;

use task::Lease;
pub(super) use task::{Granted, Is, Task};

#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) tasks: BTreeMap<TaskId, Task>,
    pub(super) leases: BTreeMap<LeaseId, Granted>,
    /// The time of every event.
    pub(super) times: Vec<(Position, Timestamp)>,
    held: BTreeMap<Name, usize>,
    keys: BTreeMap<(Name, Key), TaskId>,
    /// Purged tasks whose keys were to be remembered, in the order in which they were purged.
    remembered: Vec<TaskId>,
    /// Tasks of each queue that are there, ended or not.
    queues: BTreeMap<Name, usize>,
    pub(super) queues_max: Option<usize>,
    position: Position,
    at: Timestamp,
    epoch: u64,
    format: u8,
    owners: bus::Owners,
    retention: Option<Retention>,
    healed: Option<Position>,
    /// When the faults had ended.
    healed_at: Option<Timestamp>,
    /// Dead letters, and others that have ended, that are still there.
    dead: usize,
    done: usize,
}

/// What time asks for is done no later than this after its time, where nothing goes wrong.
const LATE_MS: u64 = 2_000;

/// Walks the whole journal.
pub(super) fn walk(history: &History, coverage: &mut Coverage) -> Result<Model, Violation> {
    let mut model = Model {
        retention: history.retention,
        queues_max: history.queues_max,
        healed: history.healed,
        ..Model::default()
    };
    for entry in &history.log {
        if entry.at < model.at {
            return Err(Violation::new("W10", format!("time goes back at position {}", entry.position)));
        }
        if entry.position != model.position.next() {
            return Err(Violation::new(
                "W2",
                format!("position {} follows {}", entry.position, model.position),
            ));
        }
        let last = std::mem::replace(&mut model.at, entry.at);
        model.position = entry.position;
        if model.healed_at.is_none() && model.healed.is_some_and(|healed| healed < entry.position) {
            model.healed_at = Some(entry.at);
        }
        let position = entry.position;
        model.times.push((entry.position, entry.at));
        if let Event::Term(TermEvent::TermStarted(_)) = &entry.event {
            model.prolong(entry.at.since(last), |_| true, coverage);
        }
        model.take(&entry.event, coverage)?;
        model.note_endings(position, &entry.event);
    }
    Ok(model)
}

/// Refuses when something is not as it should be.
fn ensure(holds: bool, invariant: &'static str, what: impl FnOnce() -> String) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation::new(invariant, what())) }
}

/// A lease is kept 1 % and a millisecond longer than its worker was promised.
fn kept_until(at: Timestamp, length_ms: u64) -> Timestamp {
    Timestamp(at.0 + length_ms + length_ms / 100 + 1)
}

impl Model {
    fn take(&mut self, event: &Event, coverage: &mut Coverage) -> Result<(), Violation> {
        match event {
            Event::Term(TermEvent::TermStarted(event)) => {
                ensure(event.epoch > self.epoch, "W4", || {
                    format!("epoch {} after {}", event.epoch, self.epoch)
                })?;
                self.epoch = event.epoch;
            }
            Event::Term(TermEvent::FormatRaised(event)) => self.raise(event.format)?,
            Event::Ownership(event) => self.own(event)?,
            Event::Task(TaskEvent::LeaseOffered(event)) => self.offered(event)?,
            Event::Task(TaskEvent::LeasesStarted(event)) => self.started(event)?,
            Event::Task(TaskEvent::BusResumed(event)) => self.resumed(event, coverage)?,
            Event::Term(TermEvent::Tick(_) | TermEvent::PositionsSkipped(_)) | Event::Shard(_) => {}
            Event::Task(TaskEvent::TaskCreated(event)) => {
                let id = TaskId(self.position.0);
                if let Some(claim) = &event.key {
                    let name = (event.queue.clone(), claim.key.clone());
                    let holder = self.keys.get(&name).and_then(|holder| self.tasks.get(holder));
                    let free = holder.is_none_or(|holder| {
                        holder.is() == Is::Purged && holder.key_until.is_none_or(|until| until <= self.at)
                    });
                    ensure(free, "T7", || format!("task {id} has the key {:?} of another", claim.key))?;
                    self.keys.insert(name, id);
                }
                let others = self.queues.keys().filter(|queue| **queue != event.queue).count();
                ensure(self.queues_max.is_none_or(|max| others < max), "R1", || {
                    format!("task {id} is of one more queue than the {others} that may have tasks")
                })?;
                *self.queues.entry(event.queue.clone()).or_default() += 1;
                let task = Task {
                    queue: event.queue.clone(),
                    payload: event.payload.clone(),
                    key: event.key.as_ref().map(|claim| claim.key.clone()),
                    priority: event.priority,
                    created: self.position,
                    made: event.clone(),
                    made_at: self.at,
                    max_attempts: event.max_attempts,
                    timeout_ms: event.timeout_ms,
                    ttl_at: event.ttl_at,
                    not_before: event.not_before,
                    charged: 0,
                    lease: None,
                    was: vec![(self.position, Is::Waiting)],
                    ended: BTreeMap::new(),
                    given_up: Vec::new(),
                    result: None,
                    key_until: None,
                    ended_at: Timestamp(0),
                };
                self.tasks.insert(id, task);
            }
            Event::Task(TaskEvent::LeaseGranted(event)) => {
                self.may_be_granted(event.task)?;
                let (position, at) = (self.position, self.at);
                let task = self.task(event.task)?;
                ensure(event.attempt == task.charged + 1, "T9", || {
                    format!(
                        "attempt {} of task {}, which has {} behind it",
                        event.attempt, event.task, task.charged
                    )
                })?;
                let timeout_at = task.timeout_ms.map(|ms| Timestamp(at.0 + ms));
                ensure(event.timeout_at == timeout_at, "L8", || {
                    format!("the time limit of task {}", event.task)
                })?;
                ensure(event.expires_at >= kept_until(at, event.length_ms), "L3", || {
                    format!("lease {position} is kept too short")
                })?;
                let lease = Lease {
                    id: LeaseId(position.0),
                    worker: Some(event.worker.clone()),
                    of_bus: false,
                    length_ms: event.length_ms,
                    expires_at: event.expires_at,
                    timeout_at,
                    cancel_at: None,
                    prolonged: false,
                };
                let ends = vec![(position, lease.ends_at())];
                task.lease = Some(lease);
                task.was.push((position, Is::Leased(LeaseId(position.0))));
                let held = self.held.entry(event.worker.clone()).or_default();
                *held += 1;
                let granted = Granted {
                    task: event.task,
                    worker: Some(event.worker.clone()),
                    of_bus: false,
                    attempt: event.attempt,
                    request_id: event.request_id.clone(),
                    held: *held,
                    ends,
                };
                self.leases.insert(LeaseId(position.0), granted);
            }
            Event::Task(TaskEvent::LeaseExtended(event)) => {
                for extension in &event.extended {
                    self.extend(extension.lease, extension.expires_at)?;
                }
            }
            Event::Task(TaskEvent::LeaseReleased(event)) => {
                let free = event.undelivered == Some(true);
                if free {
                    coverage.add(Covered::LeaseAbandoned);
                    self.offer_ends_in_time(event.task)?;
                } else {
                    self.live(event.task, event.lease)?;
                }
                self.starts_with(event.task, event.lease, event.worker.as_ref())?;
                self.ends_uncounted(event.task, event.charged || !free)?;
                if event.charged {
                    coverage.add(Covered::ReleaseCharged);
                }
                self.end_attempt(
                    event.task,
                    event.lease,
                    AttemptEnd::Released,
                    event.next,
                    event.charged,
                    coverage,
                )?;
            }
            Event::Task(TaskEvent::LeaseExpired(event)) => {
                let at = self.at;
                let lease = self.current(event.task, event.lease)?;
                let (end, limit) = match event.reason {
                    ExpiryReason::Silent => (AttemptEnd::Silent, Some(lease.expires_at)),
                    ExpiryReason::Timeout => (AttemptEnd::Timeout, lease.timeout_at),
                };
                ensure(limit.is_some_and(|limit| limit <= at), "L3", || {
                    format!("lease {} ended by time at {at:?}, before {limit:?}", event.lease)
                })?;
                self.in_time(limit, "lease", event.lease.0)?;
                self.ends_uncounted(event.task, true)?;
                if event.reason == ExpiryReason::Timeout {
                    coverage.add(Covered::Timeout);
                }
                if event.next == Next::Failed {
                    coverage.add(Covered::DeadLetterByExpiry);
                }
                self.end_attempt(event.task, event.lease, end, event.next, true, coverage)?;
            }
            Event::Task(TaskEvent::TaskCompleted(event)) => {
                self.live(event.task, event.lease)?;
                self.starts_with(event.task, event.lease, event.worker.as_ref())?;
                self.ends_uncounted(event.task, true)?;
                let (position, result) = (self.position, event.result.clone());
                self.close(event.task, event.lease, AttemptEnd::Completed)?;
                let task = self.task(event.task)?;
                task.charged += 1;
                task.result = result;
                task.was.push((position, Is::Completed));
                coverage.add(Covered::Completed);
            }
            Event::Task(TaskEvent::TaskFailed(event)) => {
                self.live(event.task, event.lease)?;
                self.starts_with(event.task, event.lease, event.worker.as_ref())?;
                self.ends_uncounted(event.task, true)?;
                if event.next == Next::Failed {
                    coverage.add(Covered::DeadLetterByFailure);
                }
                self.waits_as_agreed(event.task, event.next)?;
                self.end_attempt(event.task, event.lease, AttemptEnd::Failed, event.next, true, coverage)?;
            }
            Event::Task(TaskEvent::TaskCancelled(event)) => {
                let (position, at) = (self.position, self.at);
                match event.reason {
                    CancelReason::Requested => {
                        let task = self.task(event.task)?;
                        let offer =
                            task.lease.as_ref().filter(|lease| lease.is_offer()).map(|lease| lease.id);
                        ensure(task.is() == Is::Waiting || offer.is_some(), "T3", || {
                            format!("task {} was not waiting", event.task)
                        })?;
                        if let Some(offer) = offer {
                            self.close(event.task, offer, AttemptEnd::Cancelled)?;
                        }
                    }
                    CancelReason::Unheeded => {
                        let task = self.task(event.task)?;
                        let due = task
                            .lease
                            .as_ref()
                            .and_then(|lease| lease.cancel_at)
                            .is_some_and(|due| due <= at);
                        ensure(due, "T11", || format!("task {} was cancelled too early", event.task))?;
                        let lease = task.lease.as_ref().map(|lease| lease.id);
                        if let Some(lease) = lease {
                            self.close(event.task, lease, AttemptEnd::Cancelled)?;
                        }
                        coverage.add(Covered::CancelUnheeded);
                    }
                }
                self.task(event.task)?.was.push((position, Is::Cancelled));
            }
            Event::Task(TaskEvent::CancelRequested(event)) => {
                let position = self.position;
                let task = self.task(event.task)?;
                let Some(lease) = task.lease.as_mut().filter(|lease| !lease.is_offer()) else {
                    return Err(Violation::new("T3", format!("task {} is not leased", event.task)));
                };
                lease.cancel_at = Some(event.cancel_at);
                let (id, ends) = (lease.id, lease.ends_at());
                task.was.push((position, Is::Asked(id)));
                self.note_end(id, ends);
            }
            Event::Task(TaskEvent::TaskExpired(event)) => {
                let (position, at) = (self.position, self.at);
                let task = self.task(event.task)?;
                let over = task.is() == Is::Waiting && task.ttl_at.is_some_and(|ttl_at| ttl_at <= at);
                ensure(over, "T10", || format!("task {} had time left", event.task))?;
                // It counts while a task waits: one that comes back late ends at once.
                let waits_from = task.was.last().map(|(from, _)| *from);
                let ttl_at = task.ttl_at;
                task.was.push((position, Is::Cancelled));
                let waits_from =
                    waits_from.and_then(|from| self.times.get(usize::try_from(from.0 - 1).ok()?));
                let due = ttl_at.max(waits_from.map(|(_, at)| *at));
                self.in_time(due, "ttl of task", event.task.0)?;
                coverage.add(Covered::TtlExpired);
            }
            Event::Task(TaskEvent::TaskRetried(event)) => {
                let (position, at) = (self.position, self.at);
                let task = self.task(event.task)?;
                ensure(task.is() == Is::Failed, "T4", || format!("task {} was no dead letter", event.task))?;
                (task.charged, task.not_before, task.ttl_at) = (0, at, None);
                task.was.push((position, Is::Waiting));
                self.dead -= 1;
            }
            Event::Task(TaskEvent::TaskPurged(event)) => {
                let retention = self.retention.unwrap_or_default();
                let key_ms = retention.key_ms;
                for purge in &event.tasks {
                    let (position, at) = (self.position, self.at);
                    self.may_be_purged(purge.task)?;
                    let task = self.task(purge.task)?;
                    let ended = matches!(task.is(), Is::Completed | Is::Failed | Is::Cancelled);
                    ensure(ended, "T4", || format!("task {} had not ended when it was purged", purge.task))?;
                    let kept_until = Timestamp(task.ended_at.0 + key_ms);
                    let kept = task.key.is_none() || kept_until <= at || purge.key_until >= Some(kept_until);
                    ensure(kept, "T7", || format!("the key of task {} is forgotten too early", purge.task))?;
                    task.key_until = purge.key_until;
                    task.was.push((position, Is::Purged));
                    let queue = task.queue.clone();
                    if let Some(tasks) = self.queues.get_mut(&queue) {
                        *tasks -= 1;
                    }
                    self.queues.retain(|_, tasks| *tasks > 0);
                    coverage.add(Covered::Purged);
                    if purge.key_until.is_some() {
                        self.remembered.push(purge.task);
                    }
                }
                if let Some(kept) = event.keys_kept {
                    ensure(kept >= retention.keys as u64, "T7", || {
                        format!("only {kept} keys are remembered")
                    })?;
                    self.forget_all_but(usize::try_from(kept).unwrap_or(usize::MAX));
                    coverage.add(Covered::KeysForgotten);
                }
            }
        }
        Ok(())
    }

    /// The first keys that were remembered may be used again, all but so many.
    fn forget_all_but(&mut self, kept: usize) {
        let gone = self.remembered.len().saturating_sub(kept);
        for id in self.remembered.drain(..gone) {
            if let Some(task) = self.tasks.get_mut(&id) {
                task.key_until = None;
            }
        }
    }

    /// Notes down when a task came to an end.
    fn note_endings(&mut self, position: Position, event: &Event) {
        let Event::Task(event) = event else { return };
        let id = match event {
            TaskEvent::LeaseReleased(event) => event.task,
            TaskEvent::LeaseExpired(event) => event.task,
            TaskEvent::TaskCompleted(event) => event.task,
            TaskEvent::TaskFailed(event) => event.task,
            TaskEvent::TaskCancelled(event) => event.task,
            TaskEvent::TaskExpired(event) => event.task,
            TaskEvent::TaskCreated(_)
            | TaskEvent::LeaseGranted(_)
            | TaskEvent::LeaseOffered(_)
            | TaskEvent::LeasesStarted(_)
            | TaskEvent::BusResumed(_)
            | TaskEvent::LeaseExtended(_)
            | TaskEvent::CancelRequested(_)
            | TaskEvent::TaskRetried(_)
            | TaskEvent::TaskPurged(_) => return,
        };
        let at = self.at;
        if let Some(task) = self.tasks.get_mut(&id)
            && let Some((_, is)) = task.was.last().filter(|(from, _)| *from == position)
        {
            task.ended_at = at;
            match is {
                Is::Failed => self.dead += 1,
                Is::Completed | Is::Cancelled => self.done += 1,
                Is::Waiting | Is::Leased(_) | Is::Asked(_) | Is::Purged => {}
            }
        }
    }
}
