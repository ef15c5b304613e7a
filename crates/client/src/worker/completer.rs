//! Completions share requests: those that come within a few milliseconds of each other go together.
//!
//! **Invariant:** a completion is refused only by an answer about itself, never by one about its company.

use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::limits::BATCH_ITEMS_MAX;
use orchestrix_core::wire::{Complete, CompleteItem, Outcome};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::held::Held;
use crate::client::Client;
use crate::error::Error;
use crate::retry::Backoff;

/// How long a completion waits for others. Short enough not to matter to who waits for the task.
const GATHER: Duration = Duration::from_millis(3);
/// Bytes of results in one request, if there is more than one. Half of what a coordinator takes.
const BATCH_BYTES_MAX: usize = 512 << 10;

/// How often a completion is reported alone when the coordinator fails at it.
const REFUSALS_MAX: u32 = 6;
/// How often a batch without an answer is sent, before it is sent in parts.
const UNHEARD_MAX: u32 = 3;

/// One completion that waits to be reported.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) item: CompleteItem,
    pub(crate) answer: oneshot::Sender<Result<Outcome, Error>>,
}

/// Tells completions until there can be no more.
#[derive(Debug)]
pub(crate) struct Completer {
    pub(crate) completions: mpsc::Receiver<Completion>,
    pub(crate) client: Client,
    pub(crate) held: Arc<Held>,
    pub(crate) give_up: CancellationToken,
}

/// Tells one batch after the other, and insists.
#[derive(Clone, Debug)]
struct Reporter {
    client: Client,
    give_up: CancellationToken,
}

/// A batch that was not taken, and why.
type NotTaken = (Vec<Completion>, Error);

impl Completer {
    pub(crate) async fn run(mut self) {
        let reporter = Reporter { client: self.client.clone(), give_up: self.give_up.clone() };
        let insisting = TaskTracker::new();
        let mut left_over = None;
        loop {
            let first = match left_over.take() {
                Some(completion) => completion,
                None => match self.completions.recv().await {
                    Some(completion) => completion,
                    None => break,
                },
            };
            let batch;
            (batch, left_over) = self.gather(first).await;
            if let Err(not_taken) = reporter.tell(batch).await {
                let reporter = reporter.clone();
                insisting.spawn(async move { reporter.insist(not_taken).await });
            }
        }
        insisting.close();
        insisting.wait().await;
    }

    /// What goes together, and the first that does not fit.
    async fn gather(&mut self, first: Completion) -> (Vec<Completion>, Option<Completion>) {
        let mut bytes = size(&first);
        let mut batch = vec![first];
        let until = Instant::now() + GATHER;
        while batch.len() < BATCH_ITEMS_MAX {
            // No other job can finish: waiting would only cost time.
            let alone = self.held.running() == 0;
            let next = if alone {
                self.completions.try_recv().ok()
            } else {
                tokio::time::timeout_at(until, self.completions.recv()).await.ok().flatten()
            };
            let Some(next) = next else { break };
            bytes += size(&next);
            if bytes > BATCH_BYTES_MAX {
                return (batch, Some(next));
            }
            batch.push(next);
        }
        (batch, None)
    }
}

impl Reporter {
    /// Tells completions once.
    async fn tell(&self, batch: Vec<Completion>) -> Result<(), NotTaken> {
        let items: Vec<_> = batch.iter().map(|completion| completion.item.clone()).collect();
        let Some(told) = self.give_up.run_until_cancelled(self.send(items)).await else {
            return Err((batch, Error::invalid("the worker stopped before the coordinator answered")));
        };
        match told {
            Ok(outcomes) if outcomes.len() == batch.len() => {
                for (completion, outcome) in batch.into_iter().zip(outcomes) {
                    drop(completion.answer.send(outcome));
                }
                Ok(())
            }
            Ok(_) => {
                let why = "the coordinator answered another number of completions than it got";
                Err((batch, Error::invalid(why)))
            }
            Err(error) => Err((batch, error)),
        }
    }

    /// Tells completions until each has an answer. What is wrong with a whole batch says nothing about its parts, so it is
    /// halved: one that is never taken ends up alone, and the others go on.
    async fn insist(&self, (mut batch, mut error): NotTaken) {
        let (mut backoff, mut unheard, mut refused) = (Backoff::endless(), 0, 0);
        loop {
            match blame(&error) {
                Blame::Coordinator => {}
                Blame::Unclear => unheard += 1,
                Blame::Batch => refused += 1,
            }
            let alone = batch.len() == 1;
            if self.give_up.is_cancelled() || alone && (!error.is_retryable() || refused == REFUSALS_MAX) {
                batch.into_iter().for_each(|completion| drop(completion.answer.send(Err(error.clone()))));
                return;
            }
            if !alone && (refused > 0 || unheard == UNHEARD_MAX) {
                tracing::warn!(%error, completions = batch.len(), "sending the completions in two halves");
                let second = batch.split_off(batch.len() / 2);
                tokio::join!(Box::pin(self.tell_all(batch)), Box::pin(self.tell_all(second)));
                return;
            }
            let wait = tokio::time::sleep(backoff.pause(error.retry_after()));
            if self.give_up.run_until_cancelled(wait).await.is_none() {
                continue;
            }
            match self.tell(batch).await {
                Ok(()) => return,
                Err(not_taken) => (batch, error) = not_taken,
            }
        }
    }

    async fn tell_all(&self, batch: Vec<Completion>) {
        if let Err(not_taken) = self.tell(batch).await {
            self.insist(not_taken).await;
        }
    }

    async fn send(&self, items: Vec<CompleteItem>) -> Result<Vec<Result<Outcome, Error>>, Error> {
        let [CompleteItem { task_id, lease_id, result }] = &items[..] else {
            return self.client.complete_batch(items).await;
        };
        let complete = Complete { lease_id: *lease_id, worker: None, result: result.clone() };
        match self.client.complete(*task_id, &complete).await {
            Err(error) if error.is_retryable() => Err(error),
            outcome => Ok(vec![outcome]),
        }
    }
}

/// What an error is about.
enum Blame {
    /// Its state: it accepts nothing now.
    Coordinator,
    /// The batch as it is, or one of it.
    Batch,
    /// Unknown: there was no answer.
    Unclear,
}

fn blame(error: &Error) -> Blame {
    match error.code() {
        "unreachable" | "no_leader" | "stopping" | "behind" | "overloaded" | "rate_limited" => {
            Blame::Coordinator
        }
        "interrupted" | "timed_out" | "outcome_unknown" => Blame::Unclear,
        _ => Blame::Batch,
    }
}

fn size(completion: &Completion) -> usize {
    completion.item.result.as_ref().map_or(0, |result| result.as_str().len())
}

#[cfg(test)]
mod tests {
    use orchestrix_core::{LeaseId, TaskId, TaskState};
    use serde_json::json;

    use super::*;
    use crate::clock::manual::ManualClock;
    use crate::tests::fake::{Answer, Asked, coordinator, in_time};

    /// Tells the completions of some tasks together; answers what became of each.
    async fn told(
        tasks: &[u64],
        answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
    ) -> Vec<Result<TaskState, String>> {
        let reporter = Reporter { client: coordinator(answer).await, give_up: CancellationToken::new() };
        let complete = |task: &u64| {
            let (answer, answered) = oneshot::channel();
            let item = CompleteItem { task_id: TaskId(*task), lease_id: LeaseId(task + 1_000), result: None };
            (Completion { item, answer }, answered)
        };
        let (batch, answers): (Vec<_>, Vec<_>) = tasks.iter().map(complete).unzip();
        in_time(reporter.tell_all(batch)).await;
        let mut told = Vec::new();
        for answer in answers {
            let outcome = answer.await.unwrap();
            told.push(outcome.map(|done| done.state).map_err(|error| error.code().to_owned()));
        }
        told
    }

    #[tokio::test]
    async fn a_batch_refused_as_a_whole_is_sent_one_by_one() {
        for refusal in ["not_found", "too_large"] {
            let outcomes = told(&[1, 2, 3], move |asked| match asked.path.as_str() {
                "/v1/tasks/complete/batch" => Answer::problem(400, refusal),
                "/v1/tasks/2/complete" => Answer::problem(413, "too_large"),
                one => {
                    let id: u64 = one.split('/').nth(3).unwrap().parse().unwrap();
                    Answer::ok(json!({"id": id, "state": "COMPLETED"}))
                }
            })
            .await;
            let completed = || Ok(TaskState::Completed);
            assert_eq!(outcomes, [completed(), Err("too_large".to_owned()), completed()]);
        }
    }

    #[tokio::test]
    async fn a_batch_with_a_wrong_answer_length_is_sent_one_by_one() {
        let outcomes = told(&[1, 1], |asked| match asked.path.as_str() {
            "/v1/tasks/complete/batch" => Answer::ok(json!({"items": [{"id": 1, "state": "COMPLETED"}]})),
            _ => Answer::ok(json!({"id": 1, "state": "COMPLETED"})),
        })
        .await;
        assert_eq!(outcomes, [Ok(TaskState::Completed), Ok(TaskState::Completed)]);
    }

    /// A coordinator that fails at everything with task 2 in it.
    fn poisoned(asked: &Asked) -> Answer {
        let named = asked.path == "/v1/tasks/2/complete";
        let items = asked.body["items"].as_array().cloned().unwrap_or_default();
        if named || items.iter().any(|item| item["task_id"] == 2) {
            return Answer::problem(500, "internal");
        }
        if items.is_empty() {
            return Answer::ok(json!({"id": 1, "state": "COMPLETED"}));
        }
        let done: Vec<_> =
            items.iter().map(|item| json!({"id": item["task_id"], "state": "COMPLETED"})).collect();
        Answer::ok(json!({"items": done}))
    }

    #[tokio::test]
    async fn a_completion_that_is_never_taken_is_given_up_alone() {
        let outcomes = told(&[1, 2, 3, 4, 5], poisoned).await;
        let good = outcomes.iter().filter(|outcome| **outcome == Ok(TaskState::Completed)).count();
        assert_eq!((good, &outcomes[1]), (4, &Err("internal".to_owned())));
    }

    #[tokio::test]
    async fn completions_go_on_beside_one_that_is_never_taken() {
        let (sender, completions) = mpsc::channel(8);
        let completer = Completer {
            completions,
            client: coordinator(poisoned).await,
            held: Arc::new(Held::new(Arc::new(ManualClock::default()))),
            give_up: CancellationToken::new(),
        };
        let running = tokio::spawn(completer.run());
        let complete = async |task: u64| {
            let (answer, answered) = oneshot::channel();
            let item = CompleteItem { task_id: TaskId(task), lease_id: LeaseId(9), result: None };
            sender.send(Completion { item, answer }).await.unwrap();
            (task, answered)
        };
        let (_, mut poison) = complete(2).await;
        for task in [3, 4] {
            let (_, answered) = complete(task).await;
            assert!(in_time(answered).await.unwrap().is_ok());
        }
        assert!(poison.try_recv().is_err(), "it is still tried");
        assert_eq!(in_time(poison).await.unwrap().unwrap_err().code(), "internal");
        drop(sender);
        in_time(running).await.unwrap();
    }
}
