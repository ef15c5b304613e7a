//! Every invariant that the checker knows, with a short history that breaks it.

mod bus;
mod numbers;
mod others;

use orchestrix_core::wire::{Leased, Leases, Outcome, Submit, WorkerExtended};
use orchestrix_core::{
    CancelRequested, Event, ExpiryReason, Extension, Json, Key, KeyClaim, LeaseExpired, LeaseExtended,
    LeaseGranted, LeaseId, LeaseReleased, Name, Next, Position, Purge, Refusal, TaskCompleted, TaskCreated,
    TaskExpired, TaskFailed, TaskId, TaskPurged, TaskRetried, TaskState, TermStarted, Timestamp,
};
use orchestrix_node::Error;

use super::check;
use crate::coverage::Coverage;
use crate::history::{Answer, Call, Entry, Execution, History, Question};

/// A history that is put together event by event.
struct Story(History);

const NOW: u64 = 1_000;
/// The length of every lease here, in milliseconds, and how long one is kept.
const LEASE: u64 = 1_000;
const KEPT: u64 = 1_011;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn submit(payload: &str) -> Submit {
    Submit::new(name("q"), Json::parse(payload).unwrap())
}

impl Story {
    /// A term, and one waiting task at position 2.
    fn new() -> Self {
        let mut story = Self(History::default());
        story.add(NOW, TermStarted { epoch: 1, node: "n".to_owned(), actor: None, shard_lease_ms: None });
        story.task(NOW, |_| {});
        // The caller of its leases may not have got the answer.
        story.0.unanswered.push((lease_call("q", None), 0));
        story
    }

    fn add(&mut self, at: u64, event: impl Into<Event>) -> Position {
        let position = Position(self.0.log.len() as u64 + 1);
        self.0.log.push(Entry { position, at: Timestamp(at), event: event.into(), batch: [0; 32] });
        position
    }

    fn task(&mut self, at: u64, change: impl FnOnce(&mut TaskCreated)) -> TaskId {
        let payload = format!("{}", self.0.log.len() + 1);
        self.0.submits.push((submit(&payload), 1));
        let mut event = TaskCreated {
            queue: name("q"),
            payload: Json::parse(&payload).unwrap(),
            priority: 0,
            not_before: Timestamp(at),
            max_attempts: 3,
            key: None,
            timeout_ms: None,
            ttl_at: None,
            backoff: None,
        };
        change(&mut event);
        TaskId(self.add(at, event).0)
    }

    fn grant(&mut self, at: u64, task: u64, attempt: u32) -> LeaseId {
        self.grant_as(at, task, attempt, |_| {})
    }

    fn grant_as(
        &mut self,
        at: u64,
        task: u64,
        attempt: u32,
        change: impl FnOnce(&mut LeaseGranted),
    ) -> LeaseId {
        let mut event = LeaseGranted {
            task: TaskId(task),
            worker: name("w"),
            attempt,
            length_ms: LEASE,
            expires_at: Timestamp(at + KEPT),
            timeout_at: None,
            request_id: None,
        };
        change(&mut event);
        LeaseId(self.add(at, event).0)
    }

    fn complete(&mut self, at: u64, task: u64, lease: LeaseId) {
        self.add(at, TaskCompleted { task: TaskId(task), lease, result: Some(Json::null()), worker: None });
    }

    fn call(&mut self, question: Question, answer: Result<Answer, Error>) -> &mut Call {
        let end = Position(self.0.log.len() as u64);
        self.0.calls.push(Call {
            op: 0,
            question,
            durable_before: Position(1),
            durable_after: end,
            at: Timestamp(NOW),
            asked_us: 0,
            answered_us: 1,
            answer,
        });
        self.0.calls.last_mut().unwrap()
    }

    fn breaks(&self, invariant: &str) {
        let found = check(&self.0, &mut Coverage::default());
        let names: Vec<_> = found.iter().map(|violation| violation.invariant).collect();
        assert!(names.contains(&invariant), "expected {invariant}, found {found:?}");
    }

    fn holds(&self) {
        assert_eq!(check(&self.0, &mut Coverage::default()), []);
    }
}

fn outcome(id: u64, state: TaskState) -> Outcome {
    Outcome { id: TaskId(id), state, not_before_at: None, cancel_requested: false }
}

fn complete(lease: LeaseId) -> Question {
    Question::Complete { task: TaskId(2), lease, worker: name("w"), result: "null".to_owned() }
}

fn fail(lease: LeaseId, retry: bool) -> Question {
    Question::Fail { task: TaskId(2), lease, worker: name("w"), retry }
}

fn lease_call(queue: &str, capacity: Option<u32>) -> Question {
    Question::Lease {
        queues: vec![name(queue)],
        worker: name("w"),
        max: 1,
        lease_ms: LEASE,
        wait_ms: 0,
        request_id: None,
        capacity,
    }
}

fn leased(task: u64, lease: LeaseId, change: impl FnOnce(&mut Leased)) -> Result<Answer, Error> {
    let mut leased = Leased {
        task_id: TaskId(task),
        lease_id: lease,
        queue: name("q"),
        attempt: 1,
        payload: Json::parse(&format!("{task}")).unwrap(),
        lease_ms: LEASE,
        timeout_ms: None,
    };
    change(&mut leased);
    Ok(Answer::Leases(Leases { leases: vec![leased], waited_ms: 0 }))
}

#[test]
fn a_plain_life_cycle_breaks_nothing() {
    let mut story = Story::new();
    let lease = story.grant(NOW, 2, 1);
    story.call(lease_call("q", Some(1)), leased(2, lease, |_| {}));
    story.complete(NOW + 5, 2, lease);
    story.call(complete(lease), Ok(Answer::Outcome(outcome(2, TaskState::Completed))));
    let submitted = Answer::Submitted(outcome(2, TaskState::Waiting), orchestrix_node::Seen::First);
    story.call(Question::Submit(submit("2")), Ok(submitted));
    story.holds();
}

#[test]
fn w1_an_answer_before_its_event_is_durable() {
    let mut story = Story::new();
    let answer = Answer::Submitted(outcome(2, TaskState::Waiting), orchestrix_node::Seen::First);
    story.call(Question::Submit(submit("2")), Ok(answer)).durable_after = Position(1);
    story.breaks("W1");
}

#[test]
fn w1_a_report_that_was_acknowledged_and_is_not_there() {
    let mut story = Story::new();
    let lease = story.grant(NOW, 2, 1);
    story.call(complete(lease), Ok(Answer::Outcome(outcome(2, TaskState::Completed))));
    story.breaks("W1");
}

#[test]
fn w2_a_position_that_is_missing() {
    let mut story = Story::new();
    story.0.log[1].position = Position(3);
    story.breaks("W2");
}

#[test]
fn w4_an_epoch_that_does_not_rise() {
    let mut story = Story::new();
    story.add(NOW, TermStarted { epoch: 1, node: "m".to_owned(), actor: None, shard_lease_ms: None });
    story.breaks("W4");
}

#[test]
fn w10_time_that_goes_back() {
    let mut story = Story::new();
    story.task(NOW - 1, |_| {});
    story.breaks("W10");
}

#[test]
fn t1_a_task_that_was_acknowledged_and_is_not_there() {
    let mut story = Story::new();
    story.grant(NOW, 2, 1);
    let answer = Answer::Submitted(outcome(3, TaskState::Waiting), orchestrix_node::Seen::First);
    story.call(Question::Submit(submit("3")), Ok(answer));
    story.breaks("T1");
}

#[test]
fn t1_a_task_that_is_said_to_be_away_and_is_there() {
    let mut story = Story::new();
    let call = story.call(Question::Get { task: TaskId(2) }, Err(Refusal::NotFound(TaskId(2)).into()));
    call.durable_before = Position(2);
    story.breaks("T1");
}

#[test]
fn t2_a_task_that_was_not_submitted() {
    let mut story = Story::new();
    story.0.submits.clear();
    story.breaks("T2");
}

#[test]
fn t2_an_event_about_a_task_that_is_not_there() {
    let mut story = Story::new();
    story.add(NOW, TaskRetried { task: TaskId(77), actor: None });
    story.breaks("T2");
}

#[test]
fn t3_a_cancel_request_for_a_task_without_a_lease() {
    let mut story = Story::new();
    story.add(NOW, CancelRequested { task: TaskId(2), cancel_at: Timestamp(NOW + KEPT), actor: None });
    story.breaks("T3");
}

#[test]
fn t4_a_completed_task_that_is_retried() {
    let mut story = Story::new();
    let lease = story.grant(NOW, 2, 1);
    story.complete(NOW, 2, lease);
    story.add(NOW, TaskRetried { task: TaskId(2), actor: None });
    story.breaks("T4");
}

#[test]
fn t4_a_task_that_is_purged_while_it_waits() {
    let mut story = Story::new();
    story.add(NOW, TaskPurged { tasks: vec![Purge { task: TaskId(2), key_until: None }], keys_kept: None });
    story.breaks("T4");
}

#[test]
fn t6_a_second_outcome_under_the_same_lease() {
    let mut story = Story::new();
    let lease = story.grant(NOW, 2, 1);
    story.complete(NOW, 2, lease);
    story.complete(NOW, 2, lease);
    story.breaks("T6");
}

fn keyed(event: &mut TaskCreated) {
    event.key = Some(KeyClaim { key: Key::new("k").unwrap(), request: [1; 16] });
}

#[test]
fn t7_two_tasks_with_one_key() {
    let mut story = Story::new();
    story.task(NOW, keyed);
    story.task(NOW, keyed);
    story.breaks("T7");
}

#[test]
fn t7_a_key_that_is_forgotten_with_its_task() {
    let mut story = Story::new();
    let task = story.task(NOW, keyed);
    let lease = story.grant_as(NOW, 2, 1, |_| {});
    story.complete(NOW, 2, lease);
    let lease = story.grant(NOW, task.0, 1);
    story.complete(NOW, task.0, lease);
    story.add(NOW, TaskPurged { tasks: vec![Purge { task, key_until: None }], keys_kept: None });
    story.breaks("T7");
}

#[test]
fn t9_an_attempt_that_was_not_counted() {
    let mut story = Story::new();
    let lease = story.grant(NOW, 2, 1);
    let at = NOW + KEPT;
    let next = Next::Waiting { not_before: Timestamp(at) };
    story.add(at, LeaseExpired { task: TaskId(2), lease, reason: ExpiryReason::Silent, next });
    story.grant(at, 2, 1);
    story.breaks("T9");
}

#[test]
fn t9_a_task_that_goes_on_without_attempts() {
    let mut story = Story::new();
    for attempt in 1..=3 {
        let at = NOW + u64::from(attempt) * KEPT;
        let lease = story.grant(at - KEPT, 2, attempt);
        let next = Next::Waiting { not_before: Timestamp(at) };
        story.add(at, LeaseExpired { task: TaskId(2), lease, reason: ExpiryReason::Silent, next });
    }
    story.breaks("T9");
}

#[test]
fn t9_a_task_given_up_whose_worker_wants_another_attempt() {
    for retry in [true, false] {
        let mut story = Story::new();
        let lease = story.grant(NOW, 2, 1);
        story.add(
            NOW,
            TaskFailed { task: TaskId(2), lease, error: String::new(), next: Next::Failed, worker: None },
        );
        story.0.unanswered.push((fail(lease, retry), 0));
        if retry { story.breaks("T9") } else { story.holds() }
    }
}

#[test]
fn t10_a_grant_before_its_time() {
    let mut story = Story::new();
    let task = story.task(NOW, |event| (event.not_before, event.priority) = (Timestamp(NOW + 10), 5));
    story.grant(NOW + 9, task.0, 1);
    story.breaks("T10");
}

#[test]
fn t10_a_grant_after_its_ttl() {
    let mut story = Story::new();
    let task = story.task(NOW, |event| (event.ttl_at, event.priority) = (Some(Timestamp(NOW + 10)), 5));
    story.grant(NOW + 10, task.0, 1);
    story.breaks("T10");
}

#[test]
fn t10_a_ttl_that_ends_early() {
    let mut story = Story::new();
    let task = story.task(NOW, |event| event.ttl_at = Some(Timestamp(NOW + 10)));
    story.add(NOW + 9, TaskExpired { task });
    story.breaks("T10");
}

#[test]
fn t11_a_cancelled_task_that_goes_on() {
    let mut story = Story::new();
    let lease = story.grant(NOW, 2, 1);
    story.add(NOW, CancelRequested { task: TaskId(2), cancel_at: Timestamp(NOW + KEPT), actor: None });
    let next = Next::Waiting { not_before: Timestamp(NOW) };
    story.add(
        NOW,
        LeaseReleased { task: TaskId(2), lease, charged: false, next, undelivered: None, worker: None },
    );
    story.breaks("T11");
}

#[test]
fn t11_a_cancellation_that_was_confirmed_and_is_not_there() {
    let mut story = Story::new();
    story.call(Question::Cancel { task: TaskId(2) }, Ok(Answer::Outcome(outcome(2, TaskState::Cancelled))));
    story.breaks("T11");
}

#[test]
fn t11_a_cancelled_task_that_is_given_up() {
    for (asked, next) in [(false, Next::Failed), (true, Next::Failed), (true, Next::Cancelled)] {
        let mut story = Story::new();
        let lease = story.grant(NOW, 2, 1);
        if asked {
            let cancel_at = Timestamp(NOW + KEPT);
            story.add(NOW, CancelRequested { task: TaskId(2), cancel_at, actor: None });
            story.0.unanswered.push((Question::Cancel { task: TaskId(2) }, 0));
        }
        story.add(NOW, TaskFailed { task: TaskId(2), lease, error: String::new(), next, worker: None });
        story.0.unanswered.push((fail(lease, false), 0));
        if asked && next == Next::Failed { story.breaks("T11") } else { story.holds() }
    }
}

#[test]
fn t12_a_task_that_overtakes() {
    let mut story = Story::new();
    let task = story.task(NOW, |_| {});
    story.grant(NOW, task.0, 1);
    story.breaks("T12");
}

#[test]
fn t13_a_dead_letter_that_was_none_at_any_time_between() {
    let mut story = Story::new();
    let refusal = Refusal::Finished { task: TaskId(2), state: TaskState::Completed };
    story.call(Question::Cancel { task: TaskId(2) }, Err(refusal.into()));
    story.breaks("T13");
}

#[test]
fn t13_a_task_that_was_there_before_it_was_submitted() {
    let mut story = Story::new();
    let answer = Answer::Submitted(outcome(2, TaskState::Waiting), orchestrix_node::Seen::First);
    story.call(Question::Submit(submit("2")), Ok(answer)).durable_before = Position(2);
    story.breaks("T13");
}

#[test]
fn t15_a_payload_that_is_another() {
    let mut story = Story::new();
    let lease = story.grant(NOW, 2, 1);
    story.call(lease_call("q", None), leased(2, lease, |leased| leased.payload = Json::null()));
    story.breaks("T15");
}

#[test]
fn t16_a_task_of_a_queue_that_was_not_requested() {
    let mut story = Story::new();
    let lease = story.grant(NOW, 2, 1);
    story.call(lease_call("other", None), leased(2, lease, |_| {}));
    story.breaks("T16");
}

#[test]
fn l1_two_leases_of_one_task() {
    let mut story = Story::new();
    story.grant(NOW, 2, 1);
    story.grant(NOW, 2, 1);
    story.breaks("L1");
}

#[test]
fn l2_two_workers_at_one_task() {
    let mut story = Story::new();
    for (lease, from_us, to_us) in [(3, 0, 100), (4, 99, 200)] {
        let execution = Execution { task: TaskId(2), lease: LeaseId(lease), from_us, to_us };
        story.0.executions.push(execution);
    }
    story.breaks("L2");
}

#[test]
fn l3_a_lease_that_ends_early() {
    let mut story = Story::new();
    let lease = story.grant(NOW, 2, 1);
    let next = Next::Waiting { not_before: Timestamp(NOW + KEPT) };
    let (task, reason) = (TaskId(2), ExpiryReason::Silent);
    story.add(NOW + KEPT - 1, LeaseExpired { task, lease, reason, next });
    story.breaks("L3");
}

#[test]
fn l3_a_new_term_that_gives_no_more_time() {
    let mut story = Story::new();
    let lease = story.grant(NOW, 2, 1);
    story.add(
        NOW + KEPT - 5,
        TermStarted { epoch: 2, node: "n".to_owned(), actor: None, shard_lease_ms: None },
    );
    let next = Next::Waiting { not_before: Timestamp(NOW + KEPT) };
    let (task, reason) = (TaskId(2), ExpiryReason::Silent);
    story.add(NOW + KEPT, LeaseExpired { task, lease, reason, next });
    story.breaks("L3");
}

#[test]
fn l3_a_lease_that_is_kept_too_short() {
    let mut story = Story::new();
    story.grant_as(NOW, 2, 1, |event| event.expires_at = Timestamp(NOW + LEASE));
    story.breaks("L3");
}

#[test]
fn l4_a_report_under_a_lease_that_is_over() {
    let mut story = Story::new();
    let lease = story.grant(NOW, 2, 1);
    story.complete(NOW + KEPT, 2, lease);
    story.breaks("L4");
}

#[test]
fn l5_an_extension_that_shortens() {
    let mut story = Story::new();
    let lease = story.grant_as(NOW, 2, 1, |event| event.expires_at = Timestamp(NOW + 9_000));
    let extended = vec![Extension { lease, expires_at: Timestamp(NOW + KEPT) }];
    story.add(NOW, LeaseExtended { extended, progress: None, note: None });
    story.breaks("L5");
}

#[test]
fn l6_a_live_lease_that_is_called_stale() {
    let mut story = Story::new();
    let lease = story.grant(NOW, 2, 1);
    let refusal = Refusal::StaleLease { task: TaskId(2), lease, why: "" };
    story.call(complete(lease), Err(refusal.into())).durable_before = Position(3);
    story.breaks("L6");
}

#[test]
fn l7_more_leases_than_a_worker_wants() {
    let mut story = Story::new();
    let other = story.task(NOW, |_| {});
    story.grant(NOW, 2, 1);
    let lease = story.grant(NOW, other.0, 1);
    story.call(lease_call("q", Some(1)), leased(other.0, lease, |_| {}));
    story.breaks("L7");
}

#[test]
fn l8_a_worker_that_is_promised_more_than_is_kept() {
    let mut story = Story::new();
    let lease = story.grant(NOW, 2, 1);
    story.call(lease_call("q", None), leased(2, lease, |leased| leased.lease_ms = KEPT + 1));
    story.breaks("L8");
}

#[test]
fn l8_an_extension_that_is_promised_and_not_kept() {
    let mut story = Story::new();
    let lease = story.grant(NOW, 2, 1);
    let heard = WorkerExtended {
        extended: vec![lease],
        lost: vec![],
        cancel: vec![],
        lease_ms: KEPT + 1,
        lease_ms_each: vec![KEPT],
        timeout_ms_each: Vec::new(),
    };
    let question = Question::HeartbeatAll { worker: name("w"), leases: vec![lease] };
    story.call(question, Ok(Answer::WorkerExtended(heard)));
    story.breaks("L8");
}

#[test]
fn r1_a_task_of_one_queue_more_than_may_have_tasks() {
    let mut story = Story::new();
    story.task(NOW, |event| event.queue = name("other"));
    for (queues_max, holds) in [(None, true), (Some(2), true), (Some(1), false)] {
        story.0.queues_max = queues_max;
        if holds { story.holds() } else { story.breaks("R1") }
    }
}

#[test]
fn r1_a_queue_without_tasks_makes_room_for_another() {
    let mut story = Story::new();
    story.0.queues_max = Some(1);
    let lease = story.grant(NOW, 2, 1);
    story.complete(NOW, 2, lease);
    story.0.unanswered.push((complete(lease), 0));
    story.add(NOW, TaskPurged { tasks: vec![Purge { task: TaskId(2), key_until: None }], keys_kept: None });
    story.task(NOW, |event| event.queue = name("other"));
    story.holds();
}

#[test]
fn r7_a_submit_refused_for_its_queue_where_there_is_room() {
    let refused = || Refusal::Invalid { field: "queue", problem: String::new() };
    let mut asked = submit("\"new\"");
    for (queue, queues_max, holds) in [("other", 1, true), ("other", 2, false), ("q", 1, false)] {
        let mut story = Story::new();
        story.0.queues_max = Some(queues_max);
        asked.queue = name(queue);
        let call = story.call(Question::Submit(asked.clone()), Err(refused().into()));
        call.durable_before = Position(2);
        if holds { story.holds() } else { story.breaks("R7") }
    }
}

#[test]
fn r7_a_task_that_goes_on_against_the_word_of_its_worker() {
    for retry in [true, false] {
        let mut story = Story::new();
        let lease = story.grant(NOW, 2, 1);
        let next = Next::Waiting { not_before: Timestamp(NOW + 1_000) };
        story.add(NOW, TaskFailed { task: TaskId(2), lease, error: String::new(), next, worker: None });
        story.0.unanswered.push((fail(lease, retry), 0));
        if retry { story.holds() } else { story.breaks("R7") }
    }
}

#[test]
fn r7_a_task_of_a_submit_that_was_refused() {
    let mut story = Story::new();
    story.call(Question::Submit(submit("2")), Err(Error::Overloaded));
    story.breaks("R7");
}

#[test]
fn r7_a_refusal_without_a_reason() {
    let mut story = Story::new();
    story.call(Question::Get { task: TaskId(2) }, Err(Refusal::Internal.into()));
    story.breaks("R7");
}
