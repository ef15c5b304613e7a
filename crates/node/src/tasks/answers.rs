//! Reads: views and explanations.

use orchestrix_core::limits::PAGE_BYTES_MAX;
use orchestrix_core::wire::{Cluster, Explanation, NodeView, QueueList, QueueView, TaskSummary, WorkerList};
use orchestrix_core::{
    Counts, LeaseId, LiveLease, Name, Place, Refusal, Task, TaskId, Timestamp, is_planted,
};

use super::TaskDecisions;
use super::rates::Rate;
use crate::decider::Decider;
use crate::request::{Answer, Ask, Error, Recipient};

/// Milliseconds without a lease call after which a queue is shown as without workers.
const NO_WORKER_MS: u64 = 60_000;

/// As many as a page may have bytes, and where the next page begins. Counts texts as they are: no JSON of them is shorter.
fn fitting_page(
    tasks: impl Iterator<Item = TaskSummary>,
    next: Option<TaskId>,
) -> (Vec<TaskSummary>, Option<TaskId>) {
    let (mut page, mut bytes) = (Vec::new(), 0);
    for task in tasks {
        let texts = [task.error.as_ref(), task.reason.as_ref()];
        bytes += texts.into_iter().flatten().map(String::len).sum::<usize>();
        if bytes > PAGE_BYTES_MAX
            && let Some(last) = page.last().map(|last: &TaskSummary| last.id)
        {
            return (page, Some(last));
        }
        page.push(task);
    }
    (page, next)
}

impl<R: Recipient> TaskDecisions<R> {
    /// Answers a question that changes nothing.
    pub(crate) fn look(
        &self,
        decider: &Decider<R>,
        ask: Ask,
        own: Option<&[Name]>,
        now: Timestamp,
    ) -> Result<Answer, Error> {
        match ask {
            Ask::Task(id) => Ok(Answer::Task(Box::new(known(decider, id)?.view()))),
            Ask::Tasks { filter, after, limit } => {
                let (tasks, next) = decider.state.list(&filter, after, limit);
                let (tasks, next) = fitting_page(tasks.into_iter().map(Task::summary), next);
                Ok(Answer::Tasks { tasks, next })
            }
            Ask::Explain(id) => {
                Ok(Answer::Explanation(Box::new(self.explain(decider, known(decider, id)?, now))))
            }
            Ask::Queues => {
                let seen =
                    decider.state.queues().filter(|counts| own.is_none_or(|own| own.contains(&counts.queue)));
                let queues = seen.map(|counts| self.queue_view(counts, now)).collect();
                Ok(Answer::Queues(QueueList { queues }))
            }
            Ask::Workers => Ok(Answer::Workers(WorkerList { workers: self.registry.list(&decider.state) })),
            Ask::Cluster => Ok(Answer::Cluster(cluster(decider))),
            Ask::Unknown(mut tasks) => {
                tasks.retain(|id| decider.state.task(*id).is_none());
                Ok(Answer::Unknown(tasks))
            }
            Ask::Command(_)
            | Ask::Batch(_)
            | Ask::Heartbeat(_)
            | Ask::HeartbeatAll { .. }
            | Ask::Lease(_)
            | Ask::Shards(_)
            | Ask::Owner(_)
            | Ask::Dispatch(_)
            | Ask::Attempt { .. } => {
                unreachable!("a question that may change something is answered elsewhere")
            }
        }
    }

    /// The number of the attempt that a live lease is for.
    pub(crate) fn attempt(
        &self,
        decider: &Decider<R>,
        id: TaskId,
        lease: LeaseId,
        now: Timestamp,
    ) -> Result<Answer, Error> {
        let task = known(decider, id)?;
        let held = task.lease.as_deref().filter(|held| held.id == lease && held.is_live(now));
        let stale = Refusal::StaleLease { task: id, lease, why: "the task is not leased under it any more" };
        held.map(|held| Answer::Attempt(held.attempt)).ok_or_else(|| decider.refuse(stale))
    }

    fn queue_view(&self, counts: Counts, now: Timestamp) -> QueueView {
        let Counts { queue, ready, all, oldest, next } = counts;
        let rate = |rate| self.rates.per_second(&queue, rate, now);
        QueueView {
            ready,
            delayed: all.waiting.saturating_sub(ready)
                + if is_planted("leased-counted-twice") { all.leased } else { 0 },
            leased: all.leased,
            completed: all.completed,
            failed: all.failed,
            cancelled: all.cancelled,
            submitted_per_s: rate(Rate::Submitted),
            completed_per_s: rate(Rate::Completed),
            failed_per_s: rate(Rate::Failed),
            polls: self.polls.count(&queue) as u64,
            asked_at: self.registry.asked_at(&queue),
            oldest_ms: oldest.map(|(since, _)| now.since(since)),
            oldest: oldest.map(|(_, task)| task),
            next_ms: next.map(|(since, _)| now.since(since)),
            next: next.map(|(_, task)| task),
            queue,
        }
    }

    fn explain(&self, decider: &Decider<R>, task: &Task, now: Timestamp) -> Explanation {
        let mut explanation = Explanation {
            id: task.id,
            state: task.state,
            code: String::new(),
            detail: String::new(),
            not_before_at: None,
            ahead: None,
            worker: None,
            expires_at: None,
        };
        let (code, detail) = match decider.state.place(task, now) {
            Place::Delayed { until } => {
                explanation.not_before_at = Some(until);
                (
                    "delayed",
                    format!("it was submitted with a delay that has {} left", human(until.since(now))),
                )
            }
            Place::Backoff { until } => {
                explanation.not_before_at = Some(until);
                let left = human(until.since(now));
                (
                    "backoff",
                    format!(
                        "attempt {} of {} failed; the next may begin in {left}",
                        task.charged, task.max_attempts
                    ),
                )
            }
            Place::InLine { ahead } => {
                explanation.ahead = Some(ahead);
                self.in_line(task, ahead, now)
            }
            Place::Offered(lease) => {
                explanation.expires_at = Some(lease.expires_at);
                let left = human(lease.expires_at.since(now));
                (
                    "offered",
                    format!("it is offered over the bus for {left} more, and no worker has started it"),
                )
            }
            Place::Leased(lease) => {
                explanation.worker.clone_from(&lease.worker);
                explanation.expires_at = Some(lease.expires_at);
                let left = human(lease.expires_at.since(now));
                let (worker, attempt) = (worker_of(lease), lease.attempt);
                ("leased_by", format!("worker {worker} has attempt {attempt}; its lease has {left} left"))
            }
            Place::CancelRequested(lease) => {
                explanation.worker.clone_from(&lease.worker);
                explanation.expires_at = Some(lease.ends_at());
                let left = human(lease.ends_at().since(now));
                (
                    "cancel_requested",
                    format!("worker {} was asked to stop, and has {left} left", worker_of(lease)),
                )
            }
            Place::Finished => {
                let ending = task.ending().expect("an ended task has an ending");
                let reason =
                    ending.reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
                ("finished", format!("{}{reason} {} ago", task.state, human(now.since(ending.at))))
            }
        };
        code.clone_into(&mut explanation.code);
        explanation.detail = detail;
        explanation
    }

    fn in_line(&self, task: &Task, ahead: u64, now: Timestamp) -> (&'static str, String) {
        let queue = &task.queue;
        let lately = self.registry.asked_at(queue).is_some_and(|at| now.since(at) < NO_WORKER_MS);
        if !lately && self.polls.count(queue) == 0 {
            return (
                "no_worker",
                format!("no worker has requested a task from queue {queue} in the last minute"),
            );
        }
        match ahead {
            0 => ("behind_n", format!("it is next in queue {queue}")),
            1 => ("behind_n", format!("1 task of queue {queue} goes first")),
            _ => ("behind_n", format!("{ahead} tasks of queue {queue} go first")),
        }
    }
}

fn known<R: Recipient>(decider: &Decider<R>, id: TaskId) -> Result<&Task, Error> {
    decider.state.task(id).ok_or_else(|| decider.refuse(Refusal::NotFound(id)))
}

fn cluster<R>(decider: &Decider<R>) -> Cluster {
    let (name, position) = (decider.options.node.clone(), decider.state.position());
    let node = NodeView {
        name: name.clone(),
        role: "leader".to_owned(),
        state: if decider.stats.bus.drains.get() > 0 { "DRAINING" } else { "ACTIVE" }.to_owned(),
        load: decider.state.lease_count() as u64,
        position,
        lag: 0,
        address: None,
        seen_ms: None,
    };
    Cluster {
        leader: Some(name),
        term: decider.state.term(),
        epoch: decider.state.epoch(),
        position,
        leader_seen_ms: None,
        nodes: vec![node],
        why: Vec::new(),
    }
}

/// A duration, for people.
fn human(millis: u64) -> String {
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{}.{} s", millis / 1_000, millis % 1_000 / 100),
        60_000..3_600_000 => format!("{} min {} s", millis / 60_000, millis % 60_000 / 1_000),
        3_600_000..86_400_000 => format!("{} h {} min", millis / 3_600_000, millis % 3_600_000 / 60_000),
        _ => format!("{} d {} h", millis / 86_400_000, millis % 86_400_000 / 3_600_000),
    }
}

fn worker_of(lease: &LiveLease) -> &Name {
    lease.worker.as_ref().expect("a lease that was started has a worker")
}
