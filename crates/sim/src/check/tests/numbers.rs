//! Numbers that are not those of the journal, and a lease that is lost for no reason.

use orchestrix_core::wire::{QueueList, QueueView};
use orchestrix_core::{ExpiryReason, LeaseExpired, Next, Position, TaskId, Timestamp};

use super::{KEPT, NOW, Story, name};
use crate::history::{Answer, Counted, Question};

#[test]
fn r2_a_counter_that_says_more_than_there_was() {
    let mut story = Story::new();
    let counts = [("submitted", 2)].into();
    story.0.counted.push(Counted { after: Position(0), until: Position(2), counts });
    story.breaks("R2");
}

#[test]
fn r2_a_counter_that_missed_an_event() {
    let mut story = Story::new();
    story.grant(NOW, 2, 1);
    let counts = [("submitted", 1), ("leased", 0)].into();
    story.0.counted.push(Counted { after: Position(0), until: Position(3), counts });
    story.breaks("R2");
}

#[test]
fn t14_a_queue_that_has_more_tasks_than_there_are() {
    let mut story = Story::new();
    story.call(Question::Queues, Ok(Answer::Queues(queues(1, 1))));
    story.breaks("T14");
}

#[test]
fn t14_a_queue_is_counted_as_it_was_at_one_time() {
    let mut story = Story::new();
    story.grant(NOW, 2, 1);
    story.call(Question::Queues, Ok(Answer::Queues(queues(1, 0))));
    story.call(Question::Queues, Ok(Answer::Queues(queues(0, 1))));
    story.holds();
    story.call(Question::Queues, Ok(Answer::Queues(queues(0, 0)))).durable_before = Position(2);
    story.breaks("T14");
}

#[test]
fn ll1_a_lease_that_is_lost_where_nothing_goes_wrong() {
    let mut story = Story::new();
    let lease = story.grant(NOW, 2, 1);
    let next = Next::Waiting { not_before: Timestamp(NOW + KEPT) };
    let (task, reason) = (TaskId(2), ExpiryReason::Silent);
    story.add(NOW + KEPT, LeaseExpired { task, lease, reason, next });
    story.holds();
    story.0.calm = true;
    story.breaks("LL1");
}

fn queues(ready: u64, leased: u64) -> QueueList {
    let queue = QueueView {
        queue: name("q"),
        ready,
        delayed: 0,
        leased,
        completed: 0,
        failed: 0,
        cancelled: 0,
        submitted_per_s: 0.0,
        completed_per_s: 0.0,
        failed_per_s: 0.0,
        polls: 0,
        asked_at: None,
        oldest_ms: None,
        oldest: None,
        next_ms: None,
        next: None,
    };
    QueueList { queues: vec![queue] }
}
