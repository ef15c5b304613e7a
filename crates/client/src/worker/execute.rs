//! One task from its lease to its accepted outcome.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::Json;
use orchestrix_core::limits::ERROR_BYTES_MAX;
use orchestrix_core::wire::{CompleteItem, Fail, Leased, Outcome, Release};
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinHandle};

use super::completer::Completion;
use super::held::{Signal, Stop, lock, wind_up};
use super::job::{Job, JobError, Verdict};
use super::notice::Noticed;
use super::teller::{Teller, cut};
use super::{Shared, persist};
use crate::client::to_json;
use crate::error::Error;

/// How long the last lines of a job may take before its outcome is told without them.
const LAST_LINES: Duration = Duration::from_secs(5);

/// How a handler ended.
enum Ended {
    Well(Option<Json>),
    Badly(JobError),
    /// It did not stop in time and was dropped.
    Dropped,
}

/// Runs the handler for one lease and tells its outcome.
pub(crate) async fn execute<H, F, T>(
    shared: Arc<Shared>,
    leased: Leased,
    signal: Arc<Signal>,
    handler: Arc<H>,
) where
    H: Fn(Job) -> F + Send + Sync + 'static,
    F: Future<Output = Result<T, JobError>> + Send + 'static,
    T: Serialize + Send + 'static,
{
    let leased = Arc::new(leased);
    let held = Arc::clone(&shared.held);
    let (teller, listener) =
        Teller::new(shared.client.clone(), Arc::clone(&held), Arc::clone(&signal), Arc::clone(&leased));
    let mut listening = tokio::spawn(listener.run());
    shared.notice(&leased, Noticed::Began);
    let job = Job::new(Arc::clone(&leased), Arc::clone(&signal), teller.clone());
    let running = tokio::spawn(async move { handler(job).await });
    let ended = watch_over(&shared, &leased, &signal, running).await;
    held.ended(leased.lease_id);
    teller.last().await;
    if tokio::time::timeout(LAST_LINES, &mut listening).await.is_err() {
        listening.abort();
    }
    let noticed = tell(&shared, &leased, &signal, ended).await;
    held.remove(leased.lease_id);
    shared.notice(&leased, noticed);
}

/// Waits for the handler, and drops it when it does not stop although it has to.
async fn watch_over<T: Serialize>(
    shared: &Shared,
    leased: &Leased,
    signal: &Signal,
    mut running: JoinHandle<Result<T, JobError>>,
) -> Ended {
    let has_to_stop = async {
        tokio::select! {
            () = signal.gone.cancelled() => tokio::time::sleep(wind_up(Duration::from_millis(leased.lease_ms))).await,
            () = shared.drop_handlers.cancelled() => {}
        }
    };
    tokio::select! {
        biased;
        returned = &mut running => ended(returned),
        () = has_to_stop => {
            running.abort();
            match running.await {
                // It came to its end after all, while it was being dropped.
                Ok(returned) => ended(Ok(returned)),
                Err(_) => Ended::Dropped,
            }
        }
    }
}

fn ended<T: Serialize>(returned: Result<Result<T, JobError>, JoinError>) -> Ended {
    match returned {
        Ok(Ok(value)) => match to_json(&value) {
            Ok(json) => Ended::Well(Some(json).filter(|json| *json != Json::null())),
            Err(error) => Ended::Badly(JobError::permanent(format!("the result is not JSON: {error}"))),
        },
        Ok(Err(error)) => Ended::Badly(error),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => {
                Ended::Badly(JobError::new(format!("the handler panicked: {}", panic_text(&*panic))))
            }
            Err(_) => Ended::Dropped,
        },
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}

/// Tells the outcome, and keeps telling it until it is accepted or refused.
async fn tell(shared: &Shared, leased: &Leased, signal: &Signal, ended: Ended) -> Noticed {
    match (signal.why(), ended) {
        (Some(Stop::LeaseLost), _) | (Some(Stop::Deadline), Ended::Badly(_) | Ended::Dropped) => {
            Noticed::Lost
        }
        (_, Ended::Well(result)) => complete(shared, leased, result).await,
        (Some(Stop::Shutdown), Ended::Badly(_) | Ended::Dropped) | (_, Ended::Dropped) => {
            release(shared, leased).await
        }
        (None | Some(Stop::CancelRequested), Ended::Badly(error)) => match error.verdict {
            Verdict::Retry => fail(shared, leased, error.text, true).await,
            Verdict::Permanent => fail(shared, leased, error.text, false).await,
            Verdict::Release => release(shared, leased).await,
        },
    }
}

async fn complete(shared: &Shared, leased: &Leased, result: Option<Json>) -> Noticed {
    let (answer, answered) = oneshot::channel();
    let item = CompleteItem { task_id: leased.task_id, lease_id: leased.lease_id, result };
    let completions = lock(&shared.completions).clone();
    if let Some(completions) = completions {
        drop(completions.send(Completion { item, answer }).await);
    }
    match answered.await {
        Ok(Ok(outcome)) => Noticed::Completed { state: outcome.state },
        Ok(Err(error)) if is_about_the_result(&error) => {
            fail(shared, leased, format!("the result was refused: {error}"), false).await
        }
        Ok(Err(error)) => Noticed::Untold { error },
        Err(_) => Noticed::Lost,
    }
}

/// The lease is good, but what was to be stored with it is not.
fn is_about_the_result(error: &Error) -> bool {
    matches!(error.code(), "too_large" | "invalid")
}

async fn fail(shared: &Shared, leased: &Leased, text: String, retry: bool) -> Noticed {
    let error = cut(&text, ERROR_BYTES_MAX).0.to_owned();
    let fail = Fail { lease_id: leased.lease_id, worker: None, error: error.clone(), retry };
    match persist(&shared.give_up, || shared.client.fail(leased.task_id, &fail)).await {
        Ok(Outcome { state, not_before_at, .. }) => Noticed::Failed { error, state, not_before_at },
        Err(error) => Noticed::Untold { error },
    }
}

async fn release(shared: &Shared, leased: &Leased) -> Noticed {
    let release = Release { lease_id: leased.lease_id, worker: None };
    match persist(&shared.give_up, || shared.client.release(leased.task_id, &release)).await {
        Ok(outcome) => Noticed::Released { state: outcome.state },
        Err(error) => Noticed::Untold { error },
    }
}
