//! The story of each task in the answers to its callers, for [`super::search`].

use std::collections::BTreeMap;

use orchestrix_core::{LeaseId, Name, Refusal, TaskId, TaskState};
use orchestrix_node::{Error, Seen};

use crate::check::Violation;
use crate::check::search::{Operation, Thing, has_order};
use crate::history::{Answer, Call, History, Question};

/// T13: every task behaves as one thing that does one thing at a time.
pub(super) fn check(history: &History) -> Option<Violation> {
    let mut stories: BTreeMap<TaskId, Vec<Operation<Act>>> = BTreeMap::new();
    let mut granted: Granted<'_> = BTreeMap::new();
    for call in &history.calls {
        if let (Ok(Answer::Leases(leases)), Some(worker)) = (&call.answer, call.question.worker()) {
            granted.extend(leases.leases.iter().map(|leased| (leased.lease_id, (leased.task_id, worker))));
        }
    }
    for call in &history.calls {
        for (task, act) in acts(call, &granted) {
            let operation = Operation { asked: call.asked_us, answered: Some(call.answered_us), act };
            stories.entry(task).or_default().push(operation);
        }
    }
    for (question, asked) in &history.unanswered {
        if let Some((task, act)) = maybe(question)
            && let Some(story) = stories.get_mut(&task)
        {
            story.push(Operation { asked: *asked, answered: None, act });
        }
    }
    stories.into_iter().find_map(|(task, mut story)| {
        story.sort_by_key(|operation| operation.asked);
        let known = story.iter().any(|operation| operation.act == Act::Made);
        let start = Task { is: Is::Absent, last: LeaseId(0), ended: Vec::new() };
        let found = has_order(&TaskThing { known }, start, &story);
        (!found).then(|| {
            Violation::new("T13", format!("no order explains what was heard of task {task}: {story:?}"))
        })
    })
}

/// What was heard of a task, or may have been done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Made,
    /// A submit with its key found it.
    Found,
    Leased(LeaseId),
    /// Still held, and whether its worker was asked to stop.
    Extended(LeaseId, bool),
    Stale(LeaseId),
    Completed(LeaseId),
    /// Given up by its worker; what the task was then.
    Failed(LeaseId, Option<TaskState>),
    Released(LeaseId),
    Cancelled {
        asked: bool,
    },
    /// A cancellation without an answer.
    MaybeCancelled,
    Retried,
    Was(TaskState, Option<(LeaseId, bool)>),
    Away,
    Finished,
    NotFailed,
}

/// The task and the worker of every lease that was handed out.
type Granted<'a> = BTreeMap<LeaseId, (TaskId, &'a Name)>;

fn acts(call: &Call, granted: &Granted<'_>) -> Vec<(TaskId, Act)> {
    match (&call.question, &call.answer) {
        // A refusal to a worker that names the lease of another says nothing about it.
        (question, Err(Error::Refused(Refusal::StaleLease { lease, .. })))
            if granted.get(lease).is_some_and(|(_, worker)| question.worker() != Some(*worker)) =>
        {
            Vec::new()
        }
        (_, Err(Error::Refused(refusal))) => refused(refusal).into_iter().collect(),
        (
            _,
            Err(
                Error::Overloaded
                | Error::StorageFull
                | Error::Stopping
                | Error::Unavailable
                | Error::OutcomeUnknown,
            ),
        ) => Vec::new(),
        (Question::Submit(_), Ok(Answer::Submitted(outcome, Seen::First))) => vec![(outcome.id, Act::Made)],
        (Question::Submit(_), Ok(Answer::Submitted(outcome, Seen::Repeat))) => vec![(outcome.id, Act::Found)],
        (Question::Lease { .. }, Ok(Answer::Leases(leases))) => {
            leases.leases.iter().map(|leased| (leased.task_id, Act::Leased(leased.lease_id))).collect()
        }
        (Question::Heartbeat { task, lease, .. }, Ok(Answer::Extended(extended))) => {
            vec![(*task, Act::Extended(*lease, extended.cancel_requested))]
        }
        (Question::Complete { task, lease, .. }, Ok(_)) => vec![(*task, Act::Completed(*lease))],
        (Question::Fail { task, lease, .. }, Ok(Answer::Outcome(outcome))) => {
            vec![(*task, Act::Failed(*lease, Some(outcome.state)))]
        }
        (Question::Release { task, lease, .. }, Ok(_)) => vec![(*task, Act::Released(*lease))],
        (Question::Cancel { task }, Ok(Answer::Outcome(outcome))) => {
            vec![(*task, Act::Cancelled { asked: outcome.cancel_requested })]
        }
        (Question::Retry { task }, Ok(_)) => vec![(*task, Act::Retried)],
        (Question::Get { task }, Ok(Answer::Task(view))) => {
            let lease = view.summary.lease.as_ref().map(|lease| (lease.lease_id, lease.cancel_requested));
            vec![(*task, Act::Was(view.summary.state, lease))]
        }
        (Question::HeartbeatAll { .. }, Ok(Answer::WorkerExtended(heard))) => {
            let extended =
                heard.extended.iter().map(|id| (id, Act::Extended(*id, heard.cancel.contains(id))));
            let lost = heard.lost.iter().map(|id| (id, Act::Stale(*id)));
            extended.chain(lost).filter_map(|(id, act)| Some((granted.get(id)?.0, act))).collect()
        }
        // Queues are counted elsewhere, and what does not fit its question is found elsewhere.
        _ => Vec::new(),
    }
}

fn refused(refusal: &Refusal) -> Option<(TaskId, Act)> {
    match refusal {
        Refusal::StaleLease { task, lease, .. } => Some((*task, Act::Stale(*lease))),
        Refusal::NotFound(task) => Some((*task, Act::Away)),
        Refusal::Finished { task, .. } => Some((*task, Act::Finished)),
        Refusal::NotFailed { task, .. } => Some((*task, Act::NotFailed)),
        Refusal::KeyConflict { task, .. } => Some((*task, Act::Found)),
        Refusal::Invalid { .. }
        | Refusal::TooLarge { .. }
        | Refusal::NoService(_)
        | Refusal::Forbidden(_)
        | Refusal::NotOwner { .. }
        | Refusal::Upgrading { .. }
        | Refusal::Internal => None,
    }
}

/// What a question without an answer may have done.
fn maybe(question: &Question) -> Option<(TaskId, Act)> {
    match question {
        Question::Complete { task, lease, .. } => Some((*task, Act::Completed(*lease))),
        Question::Fail { task, lease, .. } => Some((*task, Act::Failed(*lease, None))),
        Question::Release { task, lease, .. } => Some((*task, Act::Released(*lease))),
        Question::Cancel { task } => Some((*task, Act::MaybeCancelled)),
        Question::Retry { task } => Some((*task, Act::Retried)),
        // A task that was made and a lease that was granted without an answer come by themselves.
        Question::Submit(_)
        | Question::Lease { .. }
        | Question::Heartbeat { .. }
        | Question::HeartbeatAll { .. }
        | Question::Get { .. }
        | Question::Queues
        | Question::Shards { .. }
        | Question::ChangeService { .. } => None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Is {
    Absent,
    Waiting,
    /// Held under a lease; its answer may be lost.
    Held {
        lease: Option<LeaseId>,
        asked: bool,
        over: bool,
    },
    Completed,
    Failed,
    Cancelled,
    Purged,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Completed,
    Failed,
    Released,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Task {
    is: Is,
    /// The newest lease in an answer.
    last: LeaseId,
    ended: Vec<(LeaseId, End)>,
}

struct TaskThing {
    /// An answer said that it was made: it does not come by itself.
    known: bool,
}

impl Task {
    fn becomes(&self, is: Is) -> Vec<Self> {
        vec![Self { is, ..self.clone() }]
    }

    fn same_if(&self, fits: bool) -> Vec<Self> {
        if fits { vec![self.clone()] } else { Vec::new() }
    }

    /// The report of a worker: under the lease that it has, or said once more.
    fn reported(&self, lease: LeaseId, end: End, next: &[Is]) -> Vec<Self> {
        let mut after = self.same_if(self.ended.contains(&(lease, end)));
        if matches!(self.is, Is::Held { lease: Some(held), over: false, .. } if held == lease) {
            let mut ended = self.ended.clone();
            ended.push((lease, end));
            after.extend(next.iter().map(|is| Self { is: *is, last: self.last, ended: ended.clone() }));
        }
        after
    }

    fn leased(&self, lease: LeaseId) -> Vec<Self> {
        let granted = |asked| Self {
            is: Is::Held { lease: Some(lease), asked, over: false },
            last: lease,
            ended: self.ended.clone(),
        };
        match self.is {
            Is::Waiting if lease > self.last => vec![granted(false)],
            Is::Held { lease: None, asked, .. } if lease > self.last => vec![granted(asked)],
            Is::Held { lease: Some(held), .. } => self.same_if(held == lease),
            Is::Absent
            | Is::Waiting
            | Is::Held { lease: None, .. }
            | Is::Completed
            | Is::Failed
            | Is::Cancelled
            | Is::Purged => Vec::new(),
        }
    }

    fn was(&self, state: TaskState, lease: Option<(LeaseId, bool)>) -> Vec<Self> {
        match (state, self.is, lease) {
            (TaskState::Waiting, Is::Waiting, _)
            | (TaskState::Completed, Is::Completed, _)
            | (TaskState::Failed, Is::Failed, _)
            | (TaskState::Cancelled, Is::Cancelled, _) => vec![self.clone()],
            (TaskState::Leased, Is::Held { lease: Some(held), asked, .. }, Some(seen)) => {
                self.same_if((held, asked) == seen)
            }
            (TaskState::Leased, Is::Held { lease: None, asked, over }, Some((seen, told)))
                if asked == told && seen > self.last =>
            {
                vec![Self {
                    is: Is::Held { lease: Some(seen), asked, over },
                    last: seen,
                    ended: self.ended.clone(),
                }]
            }
            _ => Vec::new(),
        }
    }
}

impl Thing for TaskThing {
    type State = Task;
    type Act = Act;

    fn after(&self, task: &Task, act: &Act) -> Vec<Task> {
        let ended = [Is::Waiting, Is::Failed, Is::Cancelled];
        match *act {
            Act::Made if task.is == Is::Absent => task.becomes(Is::Waiting),
            Act::Made => Vec::new(),
            Act::Found => task.same_if(task.is != Is::Absent),
            Act::Leased(lease) => task.leased(lease),
            Act::Extended(lease, asked) => {
                task.same_if(task.is == Is::Held { lease: Some(lease), asked, over: false })
            }
            Act::Stale(lease) => {
                let held =
                    matches!(task.is, Is::Held { lease: Some(held), over: false, .. } if held == lease);
                task.same_if(!held)
            }
            Act::Completed(lease) => task.reported(lease, End::Completed, &[Is::Completed]),
            Act::Failed(lease, state) => {
                let next = ended.iter().copied().filter(|is| match state {
                    Some(TaskState::Waiting) => *is == Is::Waiting,
                    Some(TaskState::Failed) => *is == Is::Failed,
                    Some(TaskState::Cancelled) => *is == Is::Cancelled,
                    Some(TaskState::Leased | TaskState::Completed) | None => true,
                });
                task.reported(lease, End::Failed, &next.collect::<Vec<Is>>())
            }
            Act::Released(lease) => task.reported(lease, End::Released, &ended),
            Act::Cancelled { asked: false } => match task.is {
                Is::Waiting | Is::Cancelled => task.becomes(Is::Cancelled),
                Is::Absent | Is::Held { .. } | Is::Completed | Is::Failed | Is::Purged => Vec::new(),
            },
            Act::Cancelled { asked: true } => match task.is {
                Is::Held { lease, over, .. } => task.becomes(Is::Held { lease, asked: true, over }),
                Is::Absent | Is::Waiting | Is::Completed | Is::Failed | Is::Cancelled | Is::Purged => {
                    Vec::new()
                }
            },
            Act::MaybeCancelled => match task.is {
                Is::Waiting => task.becomes(Is::Cancelled),
                Is::Held { lease, over, .. } => task.becomes(Is::Held { lease, asked: true, over }),
                Is::Absent | Is::Completed | Is::Failed | Is::Cancelled | Is::Purged => Vec::new(),
            },
            Act::Retried if task.is == Is::Failed => task.becomes(Is::Waiting),
            Act::Retried => Vec::new(),
            Act::Was(state, lease) => task.was(state, lease),
            Act::Away => task.same_if(matches!(task.is, Is::Absent | Is::Purged)),
            Act::Finished => task.same_if(matches!(task.is, Is::Completed | Is::Failed)),
            Act::NotFailed => task.same_if(!matches!(task.is, Is::Absent | Is::Failed | Is::Purged)),
        }
    }

    fn is_spent(&self, act: &Act) -> bool {
        match act {
            // A lease is granted once and ends once, and what was seen changes nothing.
            Act::Found
            | Act::Leased(_)
            | Act::Extended(..)
            | Act::Stale(_)
            | Act::Completed(_)
            | Act::Failed(..)
            | Act::Released(_)
            | Act::Was(..)
            | Act::Away
            | Act::Finished
            | Act::NotFailed => true,
            Act::Made | Act::Cancelled { .. } | Act::MaybeCancelled | Act::Retried => false,
        }
    }

    /// Time ends leases, tasks and what is kept of them; and some things happen without an answer.
    fn alone(&self, task: &Task) -> Vec<Task> {
        let next = match task.is {
            Is::Absent if !self.known => vec![Is::Waiting],
            Is::Absent | Is::Purged => Vec::new(),
            Is::Waiting => vec![Is::Held { lease: None, asked: false, over: false }, Is::Cancelled],
            Is::Held { lease, asked, over } => {
                let other = Is::Held { lease, asked, over: !over };
                if asked { vec![other, Is::Cancelled] } else { vec![other, Is::Waiting, Is::Failed] }
            }
            Is::Completed | Is::Failed | Is::Cancelled => vec![Is::Purged],
        };
        next.into_iter().map(|is| Task { is, ..task.clone() }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One thing after the other, as it was heard.
    fn breaks(acts: &[Act]) -> bool {
        let story: Vec<Operation<Act>> = (0_u64..)
            .zip(acts)
            .map(|(n, act)| Operation { asked: 2 * n, answered: Some(2 * n + 1), act: *act })
            .collect();
        let start = Task { is: Is::Absent, last: LeaseId(0), ended: Vec::new() };
        !has_order(&TaskThing { known: acts.contains(&Act::Made) }, start, &story)
    }

    const ONE: LeaseId = LeaseId(1);
    const TWO: LeaseId = LeaseId(2);

    #[test]
    fn a_life_with_an_expiry_and_a_repeated_report_has_an_order() {
        let waiting = Act::Was(TaskState::Waiting, None);
        let life = [
            Act::Made,
            waiting,
            Act::Leased(ONE),
            Act::Extended(ONE, false),
            Act::Stale(ONE),
            Act::Leased(TWO),
        ];
        let end = [Act::Completed(TWO), Act::Completed(TWO), Act::Stale(ONE), Act::Finished, Act::Away];
        assert!(!breaks(&[life.as_slice(), &end].concat()));
    }

    #[test]
    fn impossible_stories_are_found() {
        let stories: [&[Act]; 11] = [
            &[Act::Was(TaskState::Waiting, None), Act::Made],
            &[Act::Made, Act::Made],
            &[Act::Made, Act::Leased(ONE), Act::Completed(ONE), Act::Leased(TWO)],
            &[Act::Made, Act::Leased(ONE), Act::Leased(TWO), Act::Completed(ONE)],
            &[Act::Made, Act::Leased(ONE), Act::Completed(ONE), Act::Failed(ONE, None)],
            &[Act::Made, Act::Leased(TWO), Act::Released(TWO), Act::Leased(ONE)],
            &[Act::Made, Act::Leased(ONE), Act::Completed(ONE), Act::Was(TaskState::Waiting, None)],
            &[Act::Made, Act::Cancelled { asked: false }, Act::Leased(ONE)],
            &[Act::Made, Act::Leased(ONE), Act::Cancelled { asked: true }, Act::Extended(ONE, false)],
            &[Act::Made, Act::Leased(ONE), Act::Completed(ONE), Act::Away, Act::Finished],
            &[Act::Made, Act::Leased(ONE), Act::Completed(ONE), Act::Retried],
        ];
        for story in stories {
            assert!(breaks(story), "{story:?}");
        }
    }

    #[test]
    fn concurrent_operations_may_have_either_order() {
        let story = |second_asked| {
            let made = Operation { asked: 0, answered: Some(1), act: Act::Made };
            let cancel = Operation { asked: 2, answered: Some(9), act: Act::Cancelled { asked: false } };
            let waiting = Act::Was(TaskState::Waiting, None);
            vec![made, cancel, Operation { asked: second_asked, answered: Some(20), act: waiting }]
        };
        let start = || Task { is: Is::Absent, last: LeaseId(0), ended: Vec::new() };
        assert!(has_order(&TaskThing { known: true }, start(), &story(3)));
        assert!(!has_order(&TaskThing { known: true }, start(), &story(10)));
    }
}
