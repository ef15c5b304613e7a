//! Answers that are nearly right: of another worker, another request, another length; and what comes too late, too
//! early, or without a sender.

use orchestrix_core::wire::{Leases, Outcome};
use orchestrix_core::{
    CancelReason, Event, ExpiryReason, Json, Key, KeyClaim, LeaseExpired, LeaseReleased, Next, Position,
    Purge, Refusal, Retention, TaskCancelled, TaskExpired, TaskFailed, TaskId, TaskPurged, TaskState,
    Timestamp,
};

use super::{KEPT, LEASE, NOW, Story, complete, fail, lease_call, leased, name, outcome, submit};
use crate::history::{Answer, Question};

const FIRST: orchestrix_node::Seen = orchestrix_node::Seen::First;

fn submitted(id: u64) -> Answer {
    Answer::Submitted(outcome(id, TaskState::Waiting), FIRST)
}

fn completed() -> Answer {
    Answer::Outcome(outcome(2, TaskState::Completed))
}

#[test]
fn t15_a_task_with_another_delay_ttl_or_number_of_attempts() {
    type Change = fn(&mut orchestrix_core::wire::Submit);
    let changes: [Change; 5] = [
        |task| task.delay_ms = 5,
        |task| task.ttl_ms = Some(5),
        |task| task.max_attempts = 4,
        |task| task.timeout_ms = Some(5),
        |task| task.backoff.base_ms = 5,
    ];
    for change in changes {
        let mut story = Story::new();
        let mut asked = submit("2");
        change(&mut asked);
        story.call(Question::Submit(asked), Ok(submitted(2)));
        story.breaks("T15");
    }
}

#[test]
fn t7_a_task_without_the_key_that_was_asked_for() {
    let mut story = Story::new();
    let mut asked = submit("2");
    asked.key = Some(Key::new("k").unwrap());
    story.0.submits = vec![(asked, 1)];
    story.breaks("T7");
}

#[test]
fn t7_a_conflict_with_the_same_request() {
    let mut story = Story::new();
    let key = Key::new("k").unwrap();
    let claim = KeyClaim { key: key.clone(), request: [0; 16] };
    let task = story.task(NOW, |event| event.key = Some(claim));
    let mut asked = submit("3");
    asked.key = Some(key.clone());
    story.0.submits[1].0.key = Some(key.clone());
    let refused = Refusal::KeyConflict { key, task };
    story.call(Question::Submit(asked.clone()), Err(refused.clone().into()));
    story.breaks("T7");
    asked.priority = 1;
    story.0.calls.clear();
    story.call(Question::Submit(asked), Err(refused.into()));
    story.holds();
}

#[test]
fn t6_a_report_of_another_worker() {
    let mut story = Story::new();
    let lease = story.grant(NOW, 2, 1);
    story.complete(NOW, 2, lease);
    let question =
        Question::Complete { task: TaskId(2), lease, worker: name("other"), result: "null".to_owned() };
    story.call(question, Ok(completed()));
    story.breaks("T6");
}

#[test]
fn t5_a_completion_with_another_answer() {
    let mut story = Story::new();
    let lease = story.grant(NOW, 2, 1);
    story.complete(NOW, 2, lease);
    story.call(complete(lease), Ok(Answer::Outcome(outcome(2, TaskState::Waiting))));
    story.breaks("T5");
}

#[test]
fn l7_more_leases_than_were_asked_for() {
    let mut story = Story::new();
    let other = story.task(NOW, |_| {});
    let leases =
        [(2, story.grant(NOW, 2, 1)), (other.0, story.grant(NOW, other.0, 1))].map(|(task, lease)| {
            let Ok(Answer::Leases(one)) = leased(task, lease, |_| {}) else {
                unreachable!("it was just made")
            };
            one.leases.into_iter().next().unwrap()
        });
    story.call(lease_call("q", None), Ok(Answer::Leases(Leases { leases: leases.to_vec(), waited_ms: 0 })));
    story.breaks("L7");
}

#[test]
fn l6_a_lease_that_was_extended_is_called_stale() {
    let mut story = Story::new();
    let lease = story.grant(NOW, 2, 1);
    let extended = vec![orchestrix_core::Extension { lease, expires_at: Timestamp(NOW + 500 + KEPT) }];
    story.add(NOW + 500, orchestrix_core::LeaseExtended { extended, progress: None, note: None });
    let refused = Refusal::StaleLease { task: TaskId(2), lease, why: "" };
    let call = story.call(complete(lease), Err(refused.into()));
    (call.durable_before, call.at) = (Position(4), Timestamp(NOW + KEPT + 10));
    story.breaks("L6");
}

#[test]
fn tl1_a_lease_that_ends_long_after_its_time() {
    let mut story = Story::new();
    let lease = story.grant(NOW, 2, 1);
    let next = Next::Waiting { not_before: Timestamp(NOW + 9_000) };
    story.add(NOW + 9_000, LeaseExpired { task: TaskId(2), lease, reason: ExpiryReason::Silent, next });
    story.holds();
    story.0.healed = Some(Position(1));
    story.breaks("TL1");
}

#[test]
fn tl1_a_ttl_that_ends_long_after_its_time() {
    let mut story = Story::new();
    let task = story.task(NOW, |event| event.ttl_at = Some(Timestamp(NOW + 10)));
    story.add(NOW + 9_000, TaskExpired { task });
    story.holds();
    story.0.healed = Some(Position(1));
    story.breaks("TL1");
}

#[test]
fn t10_a_task_that_waits_less_than_its_backoff() {
    for (waits, holds) in [(899 - 1, false), (900, true), (1_000, true), (1_002, false)] {
        let mut story = Story::new();
        let lease = story.grant(NOW, 2, 1);
        let next = Next::Waiting { not_before: Timestamp(NOW + waits) };
        let (task, error) = (TaskId(2), String::new());
        story.add(NOW, TaskFailed { task, lease, error, next, worker: None });
        story.0.unanswered.push((fail(lease, true), 0));
        if holds { story.holds() } else { story.breaks("T10") }
    }
}

#[test]
fn t1_a_task_that_is_purged_before_its_time() {
    let mut story = Story::new();
    let lease = story.grant(NOW, 2, 1);
    story.call(lease_call("q", None), leased(2, lease, |_| {}));
    story.complete(NOW, 2, lease);
    story.call(complete(lease), Ok(completed()));
    story.add(
        NOW + LEASE,
        TaskPurged { tasks: vec![Purge { task: TaskId(2), key_until: None }], keys_kept: None },
    );
    story.holds();
    story.0.retention =
        Some(Retention { done_ms: LEASE, failed_ms: LEASE, count: 1, ..Retention::default() });
    story.holds();
    story.0.retention =
        Some(Retention { done_ms: LEASE + 1, failed_ms: LEASE, count: 1, ..Retention::default() });
    story.breaks("T1");
    story.0.retention =
        Some(Retention { done_ms: LEASE + 1, failed_ms: LEASE, count: 0, ..Retention::default() });
    story.holds();
}

#[test]
fn r7_a_change_without_a_request() {
    let mut story = Story::new();
    let lease = story.grant(NOW, 2, 1);
    story.holds();
    let events: [Event; 4] = [
        orchestrix_core::TaskCompleted { task: TaskId(2), lease, result: Some(Json::null()), worker: None }
            .into(),
        TaskFailed { task: TaskId(2), lease, error: String::new(), next: Next::Failed, worker: None }.into(),
        LeaseReleased {
            task: TaskId(2),
            lease,
            next: Next::Waiting { not_before: Timestamp(NOW) },
            charged: false,
            undelivered: None,
            worker: None,
        }
        .into(),
        orchestrix_core::CancelRequested { task: TaskId(2), cancel_at: Timestamp(NOW + LEASE), actor: None }
            .into(),
    ];
    for event in events {
        let mut story = story.0.clone();
        let position = Position(4);
        story.log.push(crate::history::Entry { position, at: Timestamp(NOW), event, batch: [0; 32] });
        // A caller asked, and got the answer that it was not done.
        let mut story = Story(story);
        story.call(complete(lease), Err(orchestrix_node::Error::Overloaded));
        story.breaks("R7");
    }
    let mut story = Story::new();
    story.add(NOW, TaskCancelled { task: TaskId(2), reason: CancelReason::Requested, actor: None });
    story.breaks("R7");
    story.call(
        Question::Cancel { task: TaskId(2) },
        Ok(Answer::Outcome(Outcome { cancel_requested: false, ..outcome(2, TaskState::Cancelled) })),
    );
    story.holds();
}
