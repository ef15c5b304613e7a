//! R7: every change was requested by a caller who got the answer that it was done, or no answer.

use std::collections::BTreeSet;

use orchestrix_core::{CancelReason, Event, LeaseId, Name, Next, TaskEvent, TaskId};

use crate::check::Violation;
use crate::history::{Answer, Entry, History, Question};

/// A change that a caller may have caused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    Complete(LeaseId),
    /// With whether another attempt is wanted.
    Fail(LeaseId, bool),
    Release(LeaseId),
    Cancel(TaskId),
    Retry(TaskId),
    /// This lease was handed out.
    Granted(LeaseId),
    /// A lease call of this worker was never answered.
    Leasing(Name),
}

pub(super) fn check(history: &History) -> Option<Violation> {
    let accepted = history.calls.iter().filter_map(|call| Some((&call.question, call.answer.as_ref().ok()?)));
    let mut causes: BTreeSet<Cause> =
        accepted.flat_map(|(question, answer)| told(question, answer)).collect();
    causes.extend(history.unanswered.iter().filter_map(|(question, _)| caused(question)));
    let unexplained = |entry: &&Entry| {
        let needed = needs(entry);
        !needed.is_empty() && !needed.iter().any(|cause| causes.contains(cause))
    };
    let entry = history.log.iter().find(unexplained)?;
    let what = format!("position {} was not asked for, or refused: {:?}", entry.position, entry.event);
    Some(Violation::new("R7", what))
}

/// What an answer says was done.
fn told(question: &Question, answer: &Answer) -> Vec<Cause> {
    if let Answer::Leases(leases) = answer {
        return leases.leases.iter().map(|leased| Cause::Granted(leased.lease_id)).collect();
    }
    caused(question).into_iter().collect()
}

fn caused(question: &Question) -> Option<Cause> {
    match question {
        Question::Complete { lease, .. } => Some(Cause::Complete(*lease)),
        Question::Fail { lease, retry, .. } => Some(Cause::Fail(*lease, *retry)),
        Question::Release { lease, .. } => Some(Cause::Release(*lease)),
        Question::Cancel { task } => Some(Cause::Cancel(*task)),
        Question::Retry { task } => Some(Cause::Retry(*task)),
        Question::Lease { worker, .. } => Some(Cause::Leasing(worker.clone())),
        Question::Submit(_)
        | Question::Heartbeat { .. }
        | Question::HeartbeatAll { .. }
        | Question::Get { .. }
        | Question::Queues
        | Question::Shards { .. }
        | Question::ChangeService { .. } => None,
    }
}

/// One of these must be the cause of an event; none is needed for what time does.
fn needs(entry: &Entry) -> Vec<Cause> {
    let Event::Task(event) = &entry.event else { return Vec::new() };
    match event {
        TaskEvent::TaskCompleted(event) => vec![Cause::Complete(event.lease)],
        TaskEvent::TaskFailed(event) if matches!(event.next, Next::Waiting { .. }) => {
            vec![Cause::Fail(event.lease, true)]
        }
        TaskEvent::TaskFailed(event) => {
            vec![Cause::Fail(event.lease, true), Cause::Fail(event.lease, false)]
        }
        TaskEvent::LeaseReleased(event) if event.undelivered != Some(true) => {
            vec![Cause::Release(event.lease)]
        }
        TaskEvent::CancelRequested(event) => vec![Cause::Cancel(event.task)],
        TaskEvent::TaskCancelled(event) if event.reason == CancelReason::Requested => {
            vec![Cause::Cancel(event.task)]
        }
        TaskEvent::TaskRetried(event) => vec![Cause::Retry(event.task)],
        TaskEvent::LeaseGranted(event) => {
            vec![Cause::Granted(LeaseId(entry.position.0)), Cause::Leasing(event.worker.clone())]
        }
        // Submits are counted with their payloads, and the rest comes of time.
        TaskEvent::TaskCreated(_)
        | TaskEvent::LeaseReleased(_)
        | TaskEvent::TaskCancelled(_)
        | TaskEvent::LeaseExtended(_)
        | TaskEvent::LeaseOffered(_)
        | TaskEvent::LeasesStarted(_)
        | TaskEvent::BusResumed(_)
        | TaskEvent::LeaseExpired(_)
        | TaskEvent::TaskExpired(_)
        | TaskEvent::TaskPurged(_) => Vec::new(),
    }
}
