//! `apply`: how events change the state. Cannot refuse; what is impossible stops the process before it
//! becomes history, because an event is applied before it is written.

use crate::event::{
    AttemptEnd, CancelReason, CancelRequested, ExpiryReason, FormatRaised, LeaseExpired, LeaseExtended,
    LeaseGranted, LeaseReleased, Next, PositionsSkipped, TaskCancelled, TaskCompleted, TaskCreated,
    TaskExpired, TaskFailed, TaskPurged, TaskRetried, TermStarted,
};
use crate::keys::Remembered;
use crate::limits::{ATTEMPTS_KEPT, ID_MAX, KEYS_FORGOTTEN_MAX};
use crate::planted::is_planted;
use crate::task::Terms;
use crate::{
    Attempt, Ending, Event, Json, LeaseId, LiveLease, Name, Position, State, Task, TaskId, TaskState, Term,
    Timestamp,
};

/// The end that a lease promises, a little after what the worker is told: the clocks of two machines may
/// differ in speed by 1 %, and times are whole milliseconds.
#[must_use]
pub(crate) fn lease_end(now: Timestamp, length_ms: u64) -> Timestamp {
    if is_planted("lease-too-short") {
        return now.plus(length_ms / 2);
    }
    now.plus(length_ms + length_ms / 100 + 1)
}

impl State {
    /// Folds the next event into the state. Answers its position.
    ///
    /// # Panics
    /// When the event cannot have happened in this state: a bug, or a journal that is not ours.
    pub fn apply(&mut self, at: Timestamp, event: Event) -> Position {
        assert!(at >= self.at, "time goes forward: {at:?} after {:?}", self.at);
        self.position = self.position.next();
        assert!(self.position.0 <= ID_MAX, "ids fit a JSON number");
        let last = std::mem::replace(&mut self.at, at);
        self.forget_keys(at);
        match event {
            Event::TermStarted(event) => self.term_started(&event, last),
            Event::FormatRaised(event) => self.format_raised(&event),
            Event::Tick(_) => {}
            Event::PositionsSkipped(event) => self.positions_skipped(&event),
            Event::TaskCreated(event) => self.task_created(event),
            Event::LeaseGranted(event) => self.lease_granted(event),
            Event::LeaseExtended(event) => self.lease_extended(&event),
            Event::LeaseReleased(event) => self.lease_released(&event),
            Event::LeaseExpired(event) => self.lease_expired(&event),
            Event::TaskCompleted(event) => self.task_completed(event),
            Event::TaskFailed(event) => self.task_failed(event),
            Event::TaskCancelled(event) => self.task_cancelled(&event),
            Event::CancelRequested(event) => self.cancel_requested(&event),
            Event::TaskExpired(event) => self.task_expired(&event),
            Event::TaskRetried(event) => self.task_retried(&event),
            Event::TaskPurged(event) => self.task_purged(&event),
            Event::ShardWorkerJoined(event) => self.shard_worker_joined(event),
            Event::ShardWorkerLeft(event) => self.shard_worker_left(&event),
            Event::ShardCountSet(event) => self.shard_count_set(event),
            Event::ShardWeightsSet(event) => self.shard_weights_set(event),
            Event::ShardsLetGo(event) => self.shards_let_go(&event),
            Event::ShardsMoved(event) => self.shards_moved(&event),
        }
        self.position
    }

    /// A new term takes no lease away: the time since the `last` event before it is nobody's, however long it was by
    /// the clock of the new leader. The first since its worker was heard of gives a lease its whole length again, any
    /// other one what was left of it. An execution limit moves only as far as its worker may count on it. So a lease lasts for its length of time in terms at most, and is not kept
    /// by one change of leader after the other.
    fn term_started(&mut self, event: &TermStarted, last: Timestamp) {
        assert!(event.epoch > self.epoch || self.term.0 == 0, "the epoch rises with every term");
        self.term = Term(self.position.0);
        self.epoch = event.epoch;
        self.promises = self.promises.next(event.shard_lease_ms, last, self.at);
        let leased: Vec<TaskId> = self.leases.after(None).map(|(_, task)| *task).collect();
        for id in leased {
            if is_planted("expiry-implicit") && self.forget_if_over(id) {
                continue;
            }
            self.change_lease(id, |lease, at| {
                if is_planted("no-prolonging") || lease.prolonged && is_planted("prolonged-once-only") {
                    return;
                }
                lease.expires_at = if lease.prolonged {
                    lease.expires_at.plus(at.since(last))
                } else {
                    lease.expires_at.max(lease_end(at, lease.length_ms))
                };
                lease.prolonged = true;
                if !is_planted("limit-passed-between-terms") {
                    // Its worker was told no more than the lease and the limit had left.
                    let kept = |limit: Timestamp| limit.max(limit.plus(at.since(last)).min(lease.expires_at));
                    lease.timeout_at = lease.timeout_at.map(kept);
                }
            });
        }
    }

    /// A planted bug: the lease of a task ends without an event.
    fn forget_if_over(&mut self, id: TaskId) -> bool {
        let lease = self.tasks.get(id).and_then(|task| task.lease.as_ref());
        let over = lease.is_some_and(|lease| lease.expires_at <= self.at);
        if over {
            self.change(id, |task, _| (task.state, task.lease) = (TaskState::Waiting, None));
        }
        over
    }

    fn positions_skipped(&mut self, event: &PositionsSkipped) {
        // It stands at the first of them already.
        self.position = Position(self.position.0 + u64::from(event.count.max(1)) - 1);
        assert!(self.position.0 <= ID_MAX, "ids fit a JSON number");
    }

    fn format_raised(&mut self, event: &FormatRaised) {
        assert!(event.format > self.format, "a format is only raised");
        self.format = event.format;
    }

    fn task_created(&mut self, event: TaskCreated) {
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
        let id = TaskId(self.position.0);
        self.tasks.insert(Task {
            id,
            queue: self.shared_queue(&queue),
            payload,
            created_at: self.at,
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
        self.index(id);
    }

    fn lease_granted(&mut self, event: LeaseGranted) {
        let lease = LiveLease {
            id: LeaseId(self.position.0),
            worker: self.shared_worker(&event.worker),
            attempt: event.attempt,
            granted_at: self.at,
            length_ms: event.length_ms,
            expires_at: event.expires_at,
            timeout_at: event.timeout_at,
            cancel_at: None,
            prolonged: false,
            request_id: event.request_id,
            progress: None,
            note: None,
            cancel_by: None,
        };
        self.change(event.task, |task, at| {
            assert_eq!(task.state, TaskState::Waiting, "only a waiting task is leased");
            let due = task.not_before <= at || is_planted("granted-early");
            assert!(due, "a task is not leased before its time");
            let left = task.charged < task.max_attempts || is_planted("attempts-unlimited");
            assert!(left, "a task whose attempts are used up is not leased");
            task.state = TaskState::Leased;
            task.lease = Some(Box::new(lease));
        });
    }

    fn lease_extended(&mut self, event: &LeaseExtended) {
        for extension in &event.extended {
            let (_, id) = *self.leases.get(extension.lease).expect("only a live lease is extended");
            self.change_lease(id, |lease, at| {
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

    fn lease_released(&mut self, event: &LeaseReleased) {
        self.change(event.task, |task, at| {
            if event.undelivered != Some(true) {
                task.past.get_or_insert_default().releases += 1;
            }
            let charge = if event.charged { Charge::Counted } else { Charge::Free };
            task.end_attempt(event.lease, AttemptEnd::Released, None, event.next, charge, at);
        });
    }

    fn lease_expired(&mut self, event: &LeaseExpired) {
        let end = match event.reason {
            ExpiryReason::Silent => AttemptEnd::Silent,
            ExpiryReason::Timeout => AttemptEnd::Timeout,
        };
        self.change(event.task, |task, at| {
            let charge = if is_planted("expiry-uncounted") { Charge::Free } else { Charge::Counted };
            task.end_attempt(event.lease, end, None, event.next, charge, at);
        });
    }

    fn task_completed(&mut self, event: TaskCompleted) {
        self.change(event.task, |task, at| {
            let lease = task.take_lease(event.lease);
            let live = lease.is_live(at) || is_planted("expired-lease-accepted");
            assert!(live, "an outcome is accepted only under a live lease");
            task.charged += 1;
            task.end(TaskState::Completed, None, event.result, at);
            task.remember(&lease, AttemptEnd::Completed, None, at);
        });
    }

    fn task_failed(&mut self, event: TaskFailed) {
        self.change(event.task, |task, at| {
            let live = task.lease.as_ref().is_some_and(|lease| lease.is_live(at));
            assert!(live, "an outcome is accepted only under a live lease");
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

    fn task_cancelled(&mut self, event: &TaskCancelled) {
        self.change(event.task, |task, at| match event.reason {
            CancelReason::Requested => {
                assert_eq!(task.state, TaskState::Waiting, "a leased task is asked first");
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
        self.change_lease(event.task, |lease, _| {
            assert!(lease.cancel_at.is_none(), "a cancellation is asked for once per lease");
            lease.cancel_at = Some(event.cancel_at);
            lease.cancel_by.clone_from(&event.actor);
        });
    }

    fn task_expired(&mut self, event: &TaskExpired) {
        self.change(event.task, |task, at| {
            assert_eq!(task.state, TaskState::Waiting, "only a waiting task outlives its ttl");
            task.end(TaskState::Cancelled, Some("expired"), None, at);
        });
    }

    fn task_retried(&mut self, event: &TaskRetried) {
        self.change(event.task, |task, at| {
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

    fn task_purged(&mut self, event: &TaskPurged) {
        for purge in &event.tasks {
            let id = purge.task;
            self.save_for_capture(id);
            self.unindex(id);
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
    fn change(&mut self, id: TaskId, change: impl FnOnce(&mut Task, Timestamp)) {
        self.save_for_capture(id);
        self.unindex(id);
        let at = self.at;
        change(self.tasks.get_mut(id).expect("an event names a task that was created before it"), at);
        self.index(id);
    }

    /// Changes only times of a lease: the task stays where it is in all indexes but one.
    fn change_lease(&mut self, id: TaskId, change: impl FnOnce(&mut LiveLease, Timestamp)) {
        self.save_for_capture(id);
        let at = self.at;
        let task = self.tasks.get_mut(id).expect("an event names a task that was created before it");
        let lease = task.lease.as_mut().expect("the task is leased");
        self.ends.remove((lease.ends_at(), id));
        change(lease, at);
        self.ends.insert((lease.ends_at(), id));
    }
}

/// Whether an attempt counts.
enum Charge {
    Counted,
    Free,
}

impl Task {
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
            worker: lease.worker.clone(),
            started_at: lease.granted_at,
            ended_at: at,
            end,
            error,
            left,
            not_before,
        });
    }
}
