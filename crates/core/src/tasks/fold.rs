//! Applies events to tasks. It has many assertions, also in release builds.

use super::event::{
    AttemptEnd, CancelReason, CancelRequested, ExpiryReason, LeaseExpired, LeaseExtended, LeaseGranted,
    LeaseReleased, Next, TaskCancelled, TaskCompleted, TaskCreated, TaskEvent, TaskExpired, TaskFailed,
    TaskPurged, TaskRetried,
};
use super::keys::Remembered;
use super::{Attempt, Ending, LiveLease, Task, TaskState, Tasks, Terms};
use crate::entity::Moment;
use crate::limits::{ATTEMPTS_KEPT, KEYS_FORGOTTEN_MAX};
use crate::planted::is_planted;
use crate::{Json, LeaseId, Name, TaskId, Timestamp};

/// The end of a lease, a little after the promised one: the clocks of two machines may
/// differ in speed by 1 %, and times are whole milliseconds.
#[must_use]
pub(crate) fn lease_end(now: Timestamp, length_ms: u64) -> Timestamp {
    if is_planted("lease-too-short") {
        return now.plus(length_ms / 2);
    }
    now.plus(length_ms + length_ms / 100 + 1)
}

impl Tasks {
    pub(super) fn fold(&mut self, event: TaskEvent, here: Moment) {
        let at = here.at;
        match event {
            TaskEvent::TaskCreated(event) => self.task_created(event, here),
            TaskEvent::LeaseGranted(event) => self.lease_granted(event, here),
            TaskEvent::LeaseExtended(event) => self.lease_extended(&event, at),
            TaskEvent::LeaseReleased(event) => self.lease_released(&event, at),
            TaskEvent::LeaseExpired(event) => self.lease_expired(&event, at),
            TaskEvent::TaskCompleted(event) => self.task_completed(event, at),
            TaskEvent::TaskFailed(event) => self.task_failed(event, at),
            TaskEvent::TaskCancelled(event) => self.task_cancelled(&event, at),
            TaskEvent::CancelRequested(event) => self.cancel_requested(&event),
            TaskEvent::TaskExpired(event) => self.task_expired(&event, at),
            TaskEvent::TaskRetried(event) => self.task_retried(&event, at),
            TaskEvent::TaskPurged(event) => self.task_purged(&event, at),
            TaskEvent::LeaseOffered(event) => self.lease_offered(&event, here),
            TaskEvent::LeasesStarted(event) => self.leases_started(&event, at),
            TaskEvent::BusResumed(event) => self.bus_resumed(&event, at),
        }
    }

    /// A new term takes no lease away: the time since the `last` event before it does not count, however long it was by
    /// the clock of the new leader. The first since its worker was heard of gives a lease its whole length again, any
    /// other one what was left of it. An execution limit moves only as far as its worker may count on it. So a lease lasts for its length of time in terms at most, and is not kept
    /// by one change of leader after the other.
    pub(super) fn prolong_leases(&mut self, last: Timestamp, at: Timestamp) {
        let leased: Vec<TaskId> = self.leases.after(None).map(|(_, task)| *task).collect();
        for id in leased {
            if is_planted("expiry-implicit") && self.forget_if_over(id, at) {
                continue;
            }
            self.prolong(id, last, at);
        }
    }

    /// The time since `last` does not count for a lease.
    pub(super) fn prolong(&mut self, id: TaskId, last: Timestamp, at: Timestamp) {
        self.change_lease(id, |lease| {
            if is_planted("no-prolonging") || lease.prolonged && is_planted("prolonged-once-only") {
                return;
            }
            lease.expires_at = if lease.prolonged {
                lease.expires_at.plus(at.since(last))
            } else {
                lease.expires_at.max(lease_end(at, lease.lasts_ms()))
            };
            lease.prolonged = true;
            if !is_planted("limit-passed-between-terms") {
                // Its worker was promised no more than the rest of the lease and of the limit.
                let kept = |limit: Timestamp| limit.max(limit.plus(at.since(last)).min(lease.expires_at));
                lease.timeout_at = lease.timeout_at.map(kept);
            }
        });
    }

    /// A planted bug: the lease of a task ends without an event.
    fn forget_if_over(&mut self, id: TaskId, at: Timestamp) -> bool {
        let lease = self.all.get(id).and_then(|task| task.lease.as_ref());
        let over = lease.is_some_and(|lease| lease.expires_at <= at);
        if over {
            self.change(id, at, |task| (task.state, task.lease) = (TaskState::Waiting, None));
        }
        over
    }

    fn task_created(&mut self, event: TaskCreated, here: Moment) {
        let TaskCreated {
            queue,
            payload,
            priority,
            not_before,
            max_attempts,
            key,
            timeout_ms,
            ttl_at,
            backoff,
        } = event;
        let terms = Terms { key, timeout_ms, ttl_at, backoff };
        let id = TaskId(here.position.0);
        self.all.insert(Task {
            id,
            queue: self.shared_queue(&queue),
            payload,
            created_at: here.at,
            not_before,
            priority,
            max_attempts,
            charged: 0,
            state: TaskState::Waiting,
            purged: false,
            lease: None,
            terms: (terms != Terms::default()).then(|| Box::new(terms)),
            past: None,
        });
        self.index(id, here.at);
    }

    fn lease_granted(&mut self, event: LeaseGranted, here: Moment) {
        let lease = LiveLease {
            id: LeaseId(here.position.0),
            worker: Some(self.shared_worker(&event.worker)),
            attempt: event.attempt,
            granted_at: here.at,
            length_ms: event.length_ms,
            expires_at: event.expires_at,
            timeout_at: event.timeout_at,
            cancel_at: None,
            prolonged: false,
            request_id: event.request_id,
            progress: None,
            note: None,
            cancel_by: None,
            via: None,
        };
        self.change(event.task, here.at, |task| {
            assert_eq!(task.state, TaskState::Waiting, "only a waiting task is leased");
            let due = task.not_before <= here.at || is_planted("granted-early");
            assert!(due, "a task is not leased before its time");
            let left = task.charged < task.max_attempts || is_planted("attempts-unlimited");
            assert!(left, "a task whose attempts are used up is not leased");
            task.state = TaskState::Leased;
            task.lease = Some(Box::new(lease));
        });
    }

    fn lease_extended(&mut self, event: &LeaseExtended, at: Timestamp) {
        for extension in &event.extended {
            let (_, id) = *self.leases.get(extension.lease).expect("only a live lease is extended");
            self.change_lease(id, |lease| {
                assert!(lease.is_live(at), "nothing expired is resurrected");
                assert!(extension.expires_at >= lease.expires_at, "an extension never shortens");
                lease.expires_at = extension.expires_at;
                lease.prolonged = false;
                if event.progress.is_some() {
                    lease.progress = event.progress;
                }
                if event.note.is_some() {
                    lease.note = event.note.as_deref().map(Box::from);
                }
            });
        }
    }

    fn lease_released(&mut self, event: &LeaseReleased, at: Timestamp) {
        self.change(event.task, at, |task| {
            if event.undelivered != Some(true) {
                task.past.get_or_insert_default().releases += 1;
            }
            task.start_with(event.worker.as_ref());
            let charge = if event.charged { Charge::Counted } else { Charge::Free };
            task.end_attempt(event.lease, AttemptEnd::Released, None, event.next, charge, at);
        });
    }

    fn lease_expired(&mut self, event: &LeaseExpired, at: Timestamp) {
        let end = match event.reason {
            ExpiryReason::Silent => AttemptEnd::Silent,
            ExpiryReason::Timeout => AttemptEnd::Timeout,
        };
        self.change(event.task, at, |task| {
            let offered = task.lease.as_ref().is_some_and(|lease| lease.is_offer());
            assert!(!offered || is_planted("offer-charged"), "an offer ends without being an attempt");
            let charge = if is_planted("expiry-uncounted") { Charge::Free } else { Charge::Counted };
            task.end_attempt(event.lease, end, None, event.next, charge, at);
        });
    }

    fn task_completed(&mut self, event: TaskCompleted, at: Timestamp) {
        self.change(event.task, at, |task| {
            task.start_with(event.worker.as_ref());
            let lease = task.take_lease(event.lease);
            assert!(!lease.is_offer(), "a worker has done what is completed");
            let live = lease.is_live(at) || is_planted("expired-lease-accepted");
            assert!(live, "an outcome is accepted only under a live lease");
            task.charged += 1;
            task.end(TaskState::Completed, None, event.result, at);
            task.remember(&lease, AttemptEnd::Completed, None, at);
        });
    }

    fn task_failed(&mut self, event: TaskFailed, at: Timestamp) {
        self.change(event.task, at, |task| {
            let live = task.lease.as_ref().is_some_and(|lease| lease.is_live(at));
            assert!(live, "an outcome is accepted only under a live lease");
            task.start_with(event.worker.as_ref());
            task.end_attempt(
                event.lease,
                AttemptEnd::Failed,
                Some(event.error.into()),
                event.next,
                Charge::Counted,
                at,
            );
        });
    }

    fn task_cancelled(&mut self, event: &TaskCancelled, at: Timestamp) {
        self.change(event.task, at, |task| match event.reason {
            CancelReason::Requested => {
                let offered = task.lease.take_if(|lease| lease.is_offer()).is_some();
                assert!(offered || task.state == TaskState::Waiting, "a leased task is asked first");
                task.end(TaskState::Cancelled, Some("requested"), None, at);
                task.note_cancelled_by(event.actor.clone());
            }
            CancelReason::Unheeded => {
                let lease = task.lease.as_ref().expect("only a leased task can leave a request unheeded").id;
                task.end_attempt(lease, AttemptEnd::Cancelled, None, Next::Cancelled, Charge::Counted, at);
            }
        });
    }

    fn cancel_requested(&mut self, event: &CancelRequested) {
        self.change_lease(event.task, |lease| {
            assert!(lease.cancel_at.is_none(), "a cancellation is asked for once per lease");
            lease.cancel_at = Some(event.cancel_at);
            lease.cancel_by.clone_from(&event.actor);
        });
    }

    fn task_expired(&mut self, event: &TaskExpired, at: Timestamp) {
        self.change(event.task, at, |task| {
            assert_eq!(task.state, TaskState::Waiting, "only a waiting task outlives its ttl");
            task.end(TaskState::Cancelled, Some("expired"), None, at);
        });
    }

    fn task_retried(&mut self, event: &TaskRetried, at: Timestamp) {
        self.change(event.task, at, |task| {
            assert_eq!(task.state, TaskState::Failed, "only a dead letter is retried");
            task.state = TaskState::Waiting;
            task.charged = 0;
            task.not_before = at;
            if let Some(terms) = &mut task.terms {
                terms.ttl_at = None;
            }
            let past = task.past.get_or_insert_default();
            past.round += 1;
            past.releases = 0;
            past.ending = None;
        });
    }

    fn task_purged(&mut self, event: &TaskPurged, at: Timestamp) {
        for purge in &event.tasks {
            let id = purge.task;
            self.save_for_capture(id);
            self.unindex(id, at);
            let task = self.drop_task(id);
            assert!(task.state.is_terminal(), "only an ended task is purged");
            if let (Some(until), Some(claim)) = (purge.key_until, task.key()) {
                self.remembered.add(Remembered::new(&task.queue, claim, id, task.state, until));
            }
            self.drop_if_empty(&task.queue);
        }
        for _ in 0..KEYS_FORGOTTEN_MAX {
            if event.keys_kept.is_none_or(|kept| self.remembered.len() as u64 <= kept) {
                break;
            }
            self.forget_first_key();
        }
    }

    /// Changes one task, and the indexes with it.
    pub(super) fn change(&mut self, id: TaskId, at: Timestamp, change: impl FnOnce(&mut Task)) {
        self.save_for_capture(id);
        self.unindex(id, at);
        change(self.all.get_mut(id).expect("an event names a task that was created before it"));
        self.index(id, at);
    }

    /// Changes only times of a lease: the task stays where it is in all indexes but one.
    fn change_lease(&mut self, id: TaskId, change: impl FnOnce(&mut LiveLease)) {
        self.save_for_capture(id);
        let task = self.all.get_mut(id).expect("an event names a task that was created before it");
        let lease = task.lease.as_mut().expect("the task is leased");
        let ends = if lease.is_of_bus() { &mut self.bus_ends } else { &mut self.ends };
        ends.remove((lease.ends_at(), id));
        change(lease);
        ends.insert((lease.ends_at(), id));
    }
}

/// Whether an attempt counts.
enum Charge {
    Counted,
    Free,
}

impl Task {
    /// A report under an offer says who has started it.
    fn start_with(&mut self, worker: Option<&Name>) {
        let Some(worker) = worker else { return };
        let lease = self.lease.as_mut().expect("only a leased task is started");
        assert!(lease.is_offer(), "a lease is started once");
        lease.worker = Some(worker.clone());
    }

    fn take_lease(&mut self, lease: LeaseId) -> Box<LiveLease> {
        assert_eq!(self.state, TaskState::Leased, "only a leased task has a lease to end");
        let held = self.lease.take().expect("a leased task has a lease");
        assert_eq!(held.id, lease, "an event names the current lease");
        held
    }

    fn end_attempt(
        &mut self,
        lease: LeaseId,
        end: AttemptEnd,
        error: Option<Box<str>>,
        next: Next,
        charge: Charge,
        at: Timestamp,
    ) {
        let lease = self.take_lease(lease);
        match charge {
            Charge::Counted => self.charged += 1,
            Charge::Free => {}
        }
        match next {
            Next::Waiting { not_before } => {
                self.state = TaskState::Waiting;
                self.not_before = not_before;
            }
            Next::Failed => self.end(TaskState::Failed, Some(end.as_str()), None, at),
            Next::Cancelled => {
                self.end(TaskState::Cancelled, Some("requested"), None, at);
                self.note_cancelled_by(lease.cancel_by.clone());
            }
        }
        self.remember(&lease, end, error, at);
    }

    fn end(&mut self, state: TaskState, reason: Option<&str>, result: Option<Json>, at: Timestamp) {
        assert!(!self.state.is_terminal(), "terminal is final");
        self.state = state;
        let ending = Ending { at, reason: reason.map(Box::from), result, cancelled_by: None };
        self.past.get_or_insert_default().ending = Some(ending);
    }

    fn note_cancelled_by(&mut self, actor: Option<Name>) {
        let ending = self.past.as_mut().and_then(|past| past.ending.as_mut());
        ending.expect("a cancelled task has an ending").cancelled_by = actor;
    }

    fn remember(&mut self, lease: &LiveLease, end: AttemptEnd, error: Option<Box<str>>, at: Timestamp) {
        // An offer that nobody has started was no attempt of anybody.
        let Some(worker) = lease.worker.clone() else { return };
        let (left, not_before, round) = (self.state, self.not_before, self.round());
        let past = self.past.get_or_insert_default();
        if past.attempts.len() == ATTEMPTS_KEPT {
            past.attempts.remove(0);
        }
        // Most tasks have one attempt: no room for three more that never come.
        past.attempts.reserve_exact(1);
        past.attempts.push(Attempt {
            lease: lease.id,
            number: lease.attempt,
            round,
            worker,
            started_at: lease.granted_at,
            ended_at: at,
            end,
            error,
            left,
            not_before,
        });
    }
}
