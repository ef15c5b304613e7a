//! Completions share requests: those that come within a few milliseconds of each other go together.

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
        let (items, answers): (Vec<_>, Vec<_>) =
            batch.into_iter().map(|Completion { item, answer }| (item, answer)).unzip();
        let outcomes = persist(&self.give_up, || self.send(items.clone())).await;
        match outcomes {
            Ok(outcomes) if outcomes.len() == answers.len() => {
                for (answer, outcome) in answers.into_iter().zip(outcomes) {
                    drop(answer.send(outcome));
                }
            }
            Ok(_) => {
                let error =
                    Error::invalid("the coordinator answered another number of completions than it got");
                answers.into_iter().for_each(|answer| drop(answer.send(Err(error.clone()))));
            }
            Err(error) => answers.into_iter().for_each(|answer| drop(answer.send(Err(error.clone())))),
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

fn size(completion: &Completion) -> usize {
    completion.item.result.as_ref().map_or(0, |result| result.as_str().len())
}
