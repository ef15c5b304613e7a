//! Answers against the journal: one position between request and answer must explain each.
//!
//! The journal is one order of everything that happened. If every answer fits a place of it that is neither
//! before the question nor after the answer, that order is the proof that each task was one thing at a time.

use std::collections::{BTreeMap, BTreeSet};

use orchestrix_core::wire::{Leases, Submit, TaskView, WorkerExtended};
use orchestrix_core::{AttemptEnd, LeaseId, Name, Position, Refusal, TaskId, TaskState, Timestamp};
use orchestrix_node::{Error, Seen};

use crate::check::model::{Is, Model, Task};
use crate::check::{Violation, counts};
use crate::history::{Answer, Call, History, Question};

/// Every answer that nothing explains, at most one per kind of question.
pub(super) fn check(history: &History, model: &Model) -> Vec<Violation> {
    let mut found: Vec<Violation> =
        history.calls.iter().find_map(|call| Look { call, model }.check().err()).into_iter().collect();
    found.extend(invented(history, model));
    found.extend(given_up(history, model));
    found
}

/// T9: a task is given up with attempts left only if its worker says that another is of no use.
fn given_up(history: &History, model: &Model) -> Option<Violation> {
    let answered = history.calls.iter().filter(|call| call.answer.is_ok()).map(|call| &call.question);
    let questions = answered.chain(history.unanswered.iter().map(|(question, _)| question));
    let useless: BTreeSet<LeaseId> = questions
        .filter_map(|question| {
            if let Question::Fail { lease, retry: false, .. } = question { Some(*lease) } else { None }
        })
        .collect();
    let mut leases =
        model.tasks.iter().flat_map(|(id, task)| task.given_up.iter().map(move |lease| (id, lease)));
    let (id, lease) = leases.find(|(_, lease)| !useless.contains(lease))?;
    Some(Violation::new("T9", format!("task {id} is given up under lease {lease} with attempts left")))
}

/// T2, T8, R7: no task without a submit, no second task for a submit that was refused or made one already.
fn invented(history: &History, model: &Model) -> Option<Violation> {
    let mut most: BTreeMap<&str, i64> = BTreeMap::new();
    let keys: BTreeMap<&str, _> =
        history.submits.iter().map(|(task, _)| (task.payload.as_str(), &task.key)).collect();
    for (question, arrivals) in &history.submits {
        let count = most.entry(question.payload.as_str()).or_default();
        *count = if question.key.is_some() { i64::MAX } else { count.saturating_add(i64::from(*arrivals)) };
    }
    for call in &history.calls {
        if let (Question::Submit(task), Err(error)) = (&call.question, &call.answer)
            && *error != Error::OutcomeUnknown
            && let Some(count) = most.get_mut(task.payload.as_str())
        {
            *count = count.saturating_sub(1);
        }
    }
    for (id, task) in &model.tasks {
        let Some(count) = most.get_mut(task.payload.as_str()) else {
            return Some(Violation::new("T2", format!("nobody submitted task {id}")));
        };
        if keys.get(task.payload.as_str()).is_some_and(|key| **key != task.key) {
            return Some(Violation::new("T7", format!("task {id} does not have the key that was asked for")));
        }
        *count = count.saturating_sub(1);
        if *count < 0 {
            let what = format!("task {id} was made by a submit that was refused, or once too often");
            return Some(Violation::new("R7", what));
        }
    }
    None
}

/// Whether a task is what a submit asked for.
fn is_as_asked(task: &Task, asked: &Submit) -> bool {
    let made = &task.made;
    let after = |ms: u64| Timestamp(task.made_at.0 + ms);
    made.payload == asked.payload
        && made.queue == asked.queue
        && made.priority == asked.priority
        && made.not_before == after(asked.delay_ms)
        && made.ttl_at == asked.ttl_ms.map(after)
        && made.max_attempts == asked.max_attempts
        && made.timeout_ms == asked.timeout_ms
        && made.backoff.unwrap_or_default() == asked.backoff
}

struct Look<'a> {
    call: &'a Call,
    model: &'a Model,
}

impl Look<'_> {
    fn check(&self) -> Result<(), Violation> {
        match (&self.call.question, &self.call.answer) {
            (
                _,
                Err(
                    Error::Overloaded
                    | Error::StorageFull
                    | Error::Stopping
                    | Error::Unavailable
                    | Error::OutcomeUnknown,
                ),
            ) => Ok(()),
            // `shards/check` compares answers about shards with the journal.
            (Question::Shards { .. }, Ok(Answer::Assignment(_)))
            | (Question::ChangeService { .. }, Ok(Answer::ServiceChanged)) => Ok(()),
            (_, Err(Error::Refused(refusal))) => self.refused(refusal),
            (Question::Submit(_), Ok(Answer::Submitted(outcome, seen))) => self.submitted(outcome.id, *seen),
            (Question::Lease { .. }, Ok(Answer::Leases(leases))) => self.leased(leases),
            (Question::HeartbeatAll { .. }, Ok(Answer::WorkerExtended(heard))) => self.extended(heard),
            (Question::Complete { task, lease, result, worker }, Ok(Answer::Outcome(outcome))) => {
                self.ended(*task, *lease, worker, outcome.id, AttemptEnd::Completed)?;
                self.ensure(outcome.state == TaskState::Completed, "T5", || {
                    format!("task {task} was completed, and told to be {:?}", outcome.state)
                })?;
                let stored = self.model.tasks[task].result.as_ref().map(orchestrix_core::Json::as_str);
                self.ensure(stored == Some(result), "T15", || format!("the result of task {task} is another"))
            }
            (Question::Fail { task, lease, worker, .. }, Ok(Answer::Outcome(outcome))) => {
                self.ended(*task, *lease, worker, outcome.id, AttemptEnd::Failed)
            }
            (Question::Release { task, lease, worker }, Ok(Answer::Outcome(outcome))) => {
                self.ended(*task, *lease, worker, outcome.id, AttemptEnd::Released)
            }
            (Question::Cancel { task }, Ok(Answer::Outcome(outcome))) => {
                let asked = outcome.cancel_requested;
                let fits = |is: Option<Is>| match is {
                    Some(Is::Cancelled) => !asked,
                    Some(Is::Asked(_)) => asked,
                    _ => false,
                };
                self.at_some_place(*task, fits, "T11", "cancelled as told")
            }
            (Question::Retry { task }, Ok(Answer::Outcome(_))) => {
                self.at_some_place(*task, |is| is == Some(Is::Waiting), "T13", "waiting again")
            }
            (Question::Get { task }, Ok(Answer::Task(view))) => self.viewed(*task, view),
            (Question::Queues, Ok(Answer::Queues(list))) => counts::queues(self.call, list, self.model),
            (Question::Heartbeat { task, lease, worker }, Ok(Answer::Extended(extended))) => {
                self.is_of(*lease, worker)?;
                let fits = |is: Option<Is>| is == Some(Is::Leased(*lease)) || is == Some(Is::Asked(*lease));
                self.at_some_place(*task, fits, "L4", "leased")?;
                self.promised_no_more_than_kept(*lease, extended.lease_ms)
            }
            (question, answer) => {
                Err(Violation::new("R7", format!("{question:?} was answered with {answer:?}")))
            }
        }
    }

    fn submitted(&self, id: TaskId, seen: Seen) -> Result<(), Violation> {
        let Question::Submit(asked) = &self.call.question else { return Ok(()) };
        self.ensure(id.0 <= self.call.durable_after.0, "W1", || {
            format!("task {id} was acknowledged when only {} was durable", self.call.durable_after)
        })?;
        let task = self.model.tasks.get(&id);
        let Some(task) = task else {
            return Err(Violation::new("T1", format!("task {id} was acknowledged and is not there")));
        };
        self.ensure(is_as_asked(task, asked), "T15", || format!("task {id} is not what was submitted"))?;
        match seen {
            Seen::First => {
                self.ensure(id.0 > self.call.durable_before.0, "T13", || {
                    format!("task {id} was there before it was submitted")
                })?;
                self.ensure(task.key == asked.key, "T7", || format!("task {id} has another key"))
            }
            Seen::Repeat => self.ensure(task.key.is_some() && task.key == asked.key, "T7", || {
                format!("task {id} does not have the key that was asked for")
            }),
        }
    }

    fn leased(&self, leases: &Leases) -> Result<(), Violation> {
        let Question::Lease { queues, worker, request_id, capacity, max, lease_ms, .. } = &self.call.question
        else {
            return Ok(());
        };
        self.ensure(leases.leases.len() <= *max, "L7", || {
            format!("{} leases, and {max} were asked for", leases.leases.len())
        })?;
        for leased in &leases.leases {
            let (id, task) = (leased.lease_id, leased.task_id);
            self.ensure(id.0 <= self.call.durable_after.0, "W1", || {
                format!("lease {id} was handed out when only {} was durable", self.call.durable_after)
            })?;
            let granted = self
                .model
                .leases
                .get(&id)
                .filter(|granted| granted.task == task && granted.worker.as_ref() == Some(worker));
            let Some(granted) = granted else {
                return Err(Violation::new(
                    "T6",
                    format!("lease {id} of task {task} was never granted to {worker}"),
                ));
            };
            let new = id.0 > self.call.durable_before.0;
            let repeat = request_id.is_some() && granted.request_id == *request_id;
            self.ensure(new || repeat, "T13", || format!("lease {id} was granted before it was asked for"))?;
            let of = &self.model.tasks[&task];
            self.ensure(queues.contains(&of.queue), "T16", || {
                format!("nobody asked for the queue of task {task}")
            })?;
            self.ensure(of.payload == leased.payload, "T15", || {
                format!("the payload of task {task} is another")
            })?;
            self.ensure(granted.attempt == leased.attempt, "T9", || {
                format!("the attempt of lease {id} is another")
            })?;
            if let Some(capacity) = capacity.filter(|_| new) {
                self.ensure(granted.held <= capacity as usize, "L7", || {
                    format!("{worker} has {} leases and wants {capacity}", granted.held)
                })?;
            }
            self.ensure(leased.lease_ms <= *lease_ms, "L8", || {
                format!("lease {id} is told {} ms, and {lease_ms} were asked for", leased.lease_ms)
            })?;
            self.promised_no_more_than_kept(id, leased.lease_ms)?;
        }
        Ok(())
    }

    fn extended(&self, heard: &WorkerExtended) -> Result<(), Violation> {
        self.ensure(heard.extended.len() == heard.lease_ms_each.len(), "R7", || {
            "not every extended lease has a length".to_owned()
        })?;
        for (id, lease_ms) in heard.extended.iter().zip(&heard.lease_ms_each) {
            let Some(granted) = self.model.leases.get(id) else {
                return Err(Violation::new("L4", format!("lease {id} was extended and never granted")));
            };
            let Question::HeartbeatAll { worker, .. } = &self.call.question else { return Ok(()) };
            self.ensure(granted.worker.as_ref() == Some(worker), "L6", || {
                format!("lease {id} is not of {worker}")
            })?;
            let task = granted.task;
            let fits = |is: Option<Is>| is == Some(Is::Leased(*id)) || is == Some(Is::Asked(*id));
            self.at_some_place(task, fits, "L4", "leased")?;
            self.promised_no_more_than_kept(*id, *lease_ms)?;
            self.promised_no_more_than_kept(*id, heard.lease_ms)?;
        }
        for id in &heard.lost {
            self.is_stale(*id)?;
        }
        Ok(())
    }

    /// L8: the answer to a worker is in the journal, with the allowed difference of clocks.
    fn promised_no_more_than_kept(&self, id: LeaseId, promised_ms: u64) -> Result<(), Violation> {
        let Some(granted) = self.model.leases.get(&id) else { return Ok(()) };
        // It was decided with an event of its own, at the time of that event.
        let own =
            |position: Position| position > self.call.durable_before && position <= self.call.durable_after;
        let decided = granted.ends.iter().filter(|(position, _)| own(*position));
        let kept = decided.clone().any(|(position, ends)| ends.0 >= self.at(*position).0 + promised_ms);
        self.ensure(kept, "L8", || {
            format!("lease {id} is told {promised_ms} ms, but ends at {:?}", decided.collect::<Vec<_>>())
        })
    }

    /// When an event happened.
    fn at(&self, position: Position) -> Timestamp {
        let index = self.model.times.partition_point(|(other, _)| *other < position);
        self.model.times.get(index).map_or(Timestamp(u64::MAX / 2), |(_, at)| *at)
    }

    fn is_foreign(&self, lease: LeaseId) -> bool {
        let worker = self.call.question.worker();
        self.model
            .leases
            .get(&lease)
            .is_some_and(|granted| worker.is_some_and(|worker| granted.worker.as_ref() != Some(worker)))
    }

    /// T6: only the worker that was granted a lease does anything under it.
    fn is_of(&self, lease: LeaseId, worker: &Name) -> Result<(), Violation> {
        let granted = self.model.leases.get(&lease);
        self.ensure(granted.is_some_and(|granted| granted.worker.as_ref() == Some(worker)), "T6", || {
            format!("{worker} was believed, and lease {lease} is not its own")
        })
    }

    fn ended(
        &self,
        task: TaskId,
        lease: LeaseId,
        worker: &Name,
        told: TaskId,
        end: AttemptEnd,
    ) -> Result<(), Violation> {
        self.is_of(lease, worker)?;
        self.ensure(told == task, "R7", || format!("asked about task {task}, told about {told}"))?;
        let ended = self.model.tasks.get(&task).and_then(|task| task.ended.get(&lease));
        let fits =
            ended.is_some_and(|(position, as_told)| *position <= self.call.durable_after && *as_told == end);
        self.ensure(fits, "W1", || {
            format!("lease {lease} of task {task} was acknowledged as {end:?} and the journal has {ended:?}")
        })
    }

    fn viewed(&self, task: TaskId, view: &TaskView) -> Result<(), Violation> {
        if let Some(known) = self.model.tasks.get(&task) {
            let same = known.payload == view.payload
                && (view.summary.state != TaskState::Completed || known.result == view.result);
            self.ensure(same, "T15", || {
                format!("payload or result of task {task} are not as they were given")
            })?;
        }
        let lease = view.summary.lease.as_ref().map(|lease| (lease.lease_id, lease.cancel_requested));
        let fits = |is: Option<Is>| match (view.summary.state, is) {
            (TaskState::Waiting, Some(Is::Waiting))
            | (TaskState::Completed, Some(Is::Completed))
            | (TaskState::Failed, Some(Is::Failed))
            | (TaskState::Cancelled, Some(Is::Cancelled)) => true,
            // An offer is not shown.
            (TaskState::Leased, Some(Is::Leased(id))) if lease.is_none() => {
                self.model.leases.get(&id).is_some_and(|granted| granted.of_bus)
            }
            (TaskState::Leased, Some(Is::Leased(id))) => lease == Some((id, false)),
            (TaskState::Leased, Some(Is::Asked(id))) => lease == Some((id, true)),
            _ => false,
        };
        self.at_some_place(task, fits, "T13", &format!("{:?}", view.summary.state))
    }

    fn refused(&self, refusal: &Refusal) -> Result<(), Violation> {
        match refusal {
            // A worker that names the lease of another is refused, too.
            Refusal::StaleLease { lease, .. } if self.is_foreign(*lease) => Ok(()),
            Refusal::StaleLease { lease, .. } => self.is_stale(*lease),
            // No question about a service is asked here.
            Refusal::NoService(_) => Err(Violation::new("R7", format!("{refusal}"))),
            Refusal::NotFound(task) => {
                self.at_some_place(*task, |is| matches!(is, None | Some(Is::Purged)), "T1", "away")
            }
            Refusal::Finished { task, .. } => {
                let fits = |is: Option<Is>| matches!(is, Some(Is::Completed | Is::Failed));
                self.at_some_place(*task, fits, "T13", "finished")
            }
            Refusal::NotFailed { task, .. } => {
                self.at_some_place(*task, |is| is != Some(Is::Failed), "T13", "anything but failed")
            }
            Refusal::KeyConflict { key, task } => {
                let Question::Submit(asked) = &self.call.question else {
                    return Err(Violation::new("R7", format!("{:?} has no key", self.call.question)));
                };
                let holder = self.model.tasks.get(task);
                let holds = holder.is_some_and(|holder| {
                    holder.key == asked.key && holder.queue == asked.queue && !is_as_asked(holder, asked)
                });
                self.ensure(holds && asked.key.as_ref() == Some(key), "T7", || {
                    format!("task {task} does not have the key {key:?} for another request")
                })
            }
            Refusal::Invalid { field: "queue", .. } => self.has_too_many_queues(),
            Refusal::Invalid { .. }
            | Refusal::TooLarge { .. }
            | Refusal::Forbidden(_)
            | Refusal::NotOwner { .. }
            | Refusal::Upgrading { .. }
            | Refusal::Internal => {
                Err(Violation::new("R7", format!("{:?} was refused: {refusal}", self.call.question)))
            }
        }
    }

    /// R7: a task is refused for its queue where as many others have tasks as may.
    fn has_too_many_queues(&self) -> Result<(), Violation> {
        let Question::Submit(asked) = &self.call.question else {
            return Err(Violation::new("R7", format!("{:?} has no queue", self.call.question)));
        };
        let full = |max: usize| {
            let mut places = self.call.durable_before.0..=self.call.durable_after.0;
            places.any(|position| {
                let queues = counts::all_at(self.model, Position(position));
                queues.len() >= max && !queues.contains_key(&asked.queue)
            })
        };
        self.ensure(self.model.queues_max.is_some_and(full), "R7", || {
            format!("there was room for the queue {}", asked.queue)
        })
    }

    /// L6: a lease that is refused was over, in the journal or by the server's clock.
    fn is_stale(&self, lease: LeaseId) -> Result<(), Violation> {
        let Some(granted) = self.model.leases.get(&lease) else { return Ok(()) };
        let (before, after) = (self.call.durable_before, self.call.durable_after);
        // What held when it was asked, and what came after that until it was answered.
        let first = granted.ends.partition_point(|(position, _)| *position <= before).saturating_sub(1);
        let held = granted.ends[first..].iter().take_while(|(position, _)| *position <= after);
        if held.clone().any(|(_, ends)| *ends <= self.call.at) {
            return Ok(());
        }
        let other = |is: Option<Is>| is != Some(Is::Leased(lease)) && is != Some(Is::Asked(lease));
        self.at_some_place(granted.task, other, "L6", "without this lease")
    }

    /// T13: the task was so at a place between asking and answering.
    fn at_some_place(
        &self,
        id: TaskId,
        fits: impl Fn(Option<Is>) -> bool,
        invariant: &'static str,
        wanted: &str,
    ) -> Result<(), Violation> {
        let (from, to) = (self.call.durable_before, self.call.durable_after);
        let task = self.model.tasks.get(&id);
        let was = |position: Position| task.and_then(|task| task.at(position));
        let between = task
            .into_iter()
            .flat_map(|task| &task.was)
            .filter(|(position, _)| *position > from && *position <= to);
        let fit = fits(was(from)) || between.clone().any(|(_, is)| fits(Some(*is)));
        self.ensure(fit, invariant, || {
            format!(
                "task {id} was never {wanted} between {from} and {to}: it was {:?}, then {:?}",
                was(from),
                between.collect::<Vec<_>>()
            )
        })
    }

    fn ensure(
        &self,
        holds: bool,
        invariant: &'static str,
        what: impl FnOnce() -> String,
    ) -> Result<(), Violation> {
        if holds {
            return Ok(());
        }
        Err(Violation::new(invariant, format!("{} (op {}: {:?})", what(), self.call.op, self.call.question)))
    }
}
