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

use super::held::Held;
use super::persist;
use crate::client::Client;
use crate::error::Error;

/// How long a completion waits for others. Short enough not to matter to who waits for the task.
const GATHER: Duration = Duration::from_millis(3);
/// Bytes of results in one request, if there is more than one. Half of what a coordinator takes.
const BATCH_BYTES_MAX: usize = 512 << 10;

/// One completion that waits to be told.
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

impl Completer {
    pub(crate) async fn run(mut self) {
        let mut left_over = None;
        loop {
            let first = match left_over.take() {
                Some(completion) => completion,
                None => match self.completions.recv().await {
                    Some(completion) => completion,
                    None => return,
                },
            };
            let batch;
            (batch, left_over) = self.gather(first).await;
            self.tell(batch).await;
        }
    }

    /// What goes together, and the first that does not fit.
    async fn gather(&mut self, first: Completion) -> (Vec<Completion>, Option<Completion>) {
        let mut bytes = size(&first);
        let mut batch = vec![first];
        let until = Instant::now() + GATHER;
        while batch.len() < BATCH_ITEMS_MAX {
            // Nobody else can finish: waiting would only cost time.
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

    async fn tell(&self, batch: Vec<Completion>) {
        let items: Vec<_> = batch.iter().map(|completion| completion.item.clone()).collect();
        let error = match persist(&self.give_up, || self.send(items.clone())).await {
            Ok(outcomes) if outcomes.len() == batch.len() => {
                for (completion, outcome) in batch.into_iter().zip(outcomes) {
                    drop(completion.answer.send(outcome));
                }
                return;
            }
            Ok(_) => Error::invalid("the coordinator answered another number of completions than it got"),
            Err(error) => error,
        };
        if batch.len() > 1 && !self.give_up.is_cancelled() {
            // What is wrong with the whole says nothing about its parts: each gets an answer of its own.
            tracing::warn!(%error, completions = batch.len(), "completions are told one by one");
            for completion in batch {
                Box::pin(self.tell(vec![completion])).await;
            }
            return;
        }
        batch.into_iter().for_each(|completion| drop(completion.answer.send(Err(error.clone()))));
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

fn size(completion: &Completion) -> usize {
    completion.item.result.as_ref().map_or(0, |result| result.as_str().len())
}

#[cfg(test)]
mod tests {
    use orchestrix_core::{LeaseId, TaskId, TaskState};
    use serde_json::json;

    use super::*;
    use crate::clock::manual::ManualClock;
    use crate::fake::{Answer, Asked, coordinator, in_time};

    /// Tells the completions of some tasks together; answers what became of each.
    async fn told(
        tasks: &[u64],
        answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
    ) -> Vec<Result<TaskState, String>> {
        let completer = Completer {
            completions: mpsc::channel(1).1,
            client: coordinator(answer).await,
            held: Arc::new(Held::new(Arc::new(ManualClock::default()))),
            give_up: CancellationToken::new(),
        };
        let complete = |task: &u64| {
            let (answer, answered) = oneshot::channel();
            let item = CompleteItem { task_id: TaskId(*task), lease_id: LeaseId(task + 1_000), result: None };
            (Completion { item, answer }, answered)
        };
        let (batch, answers): (Vec<_>, Vec<_>) = tasks.iter().map(complete).unzip();
        in_time(completer.tell(batch)).await;
        let mut told = Vec::new();
        for answer in answers {
            let outcome = answer.await.unwrap();
            told.push(outcome.map(|done| done.state).map_err(|error| error.code().to_owned()));
        }
        told
    }

    #[tokio::test]
    async fn a_batch_that_is_refused_as_a_whole_is_told_one_by_one() {
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
    async fn a_batch_whose_answer_has_another_length_is_told_one_by_one() {
        let outcomes = told(&[1, 1], |asked| match asked.path.as_str() {
            "/v1/tasks/complete/batch" => Answer::ok(json!({"items": [{"id": 1, "state": "COMPLETED"}]})),
            _ => Answer::ok(json!({"id": 1, "state": "COMPLETED"})),
        })
        .await;
        assert_eq!(outcomes, [Ok(TaskState::Completed), Ok(TaskState::Completed)]);
    }
}
