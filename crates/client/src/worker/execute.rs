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
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::completer::Completion;
use super::held::{Signal, Stop, lock, wind_up};
use super::job::{Job, JobError, Verdict};
use super::job_log::{JobLog, cut};
use super::log_sender::LogSender;
use super::notice::Noticed;
use super::{Shared, persist};
use crate::client::to_json;
use crate::error::Error;

/// How long the last lines of a job may take when its worker stops and its handler was dropped.
const LAST_LINES: Duration = Duration::from_secs(5);

/// What to tell of a lease.
pub(crate) enum Words {
    Complete(Option<Json>),
    Fail {
        text: String,
        retry: bool,
    },
    Release,
    /// Nothing: it is over.
    Nothing {
        why: Stop,
    },
}

/// How a handler ended.
pub(crate) enum Ended {
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
    let (log, items) = JobLog::open();
    let sender = LogSender::new(
        items,
        shared.client.clone(),
        Arc::clone(&held),
        Arc::clone(&signal),
        Arc::clone(&leased),
    );
    let listening = tokio::spawn(sender.run());
    shared.notice(&leased, Noticed::Began);
    let job = Job::new(Arc::clone(&leased), Arc::clone(&signal), log.clone());
    let running = tokio::spawn(async move { handler(job).await });
    let ended = watch_over(&shared.drop_handlers, &leased, &signal, running).await;
    held.ended(leased.lease_id);
    log.last();
    last_lines(listening, &shared.drop_handlers, &leased).await;
    let noticed = tell(&shared, &leased, &signal, ended).await;
    held.remove(leased.lease_id);
    shared.notice(&leased, noticed);
}

/// Waits for the sender of a log, which ends by itself: when all is sent, when it is not accepted, or when the lease is gone.
pub(crate) async fn last_lines(
    listening: JoinHandle<()>,
    drop_handlers: &CancellationToken,
    leased: &Leased,
) {
    let listening = AbortOnDropHandle::new(listening);
    let hurried = async {
        drop_handlers.cancelled().await;
        tokio::time::sleep(LAST_LINES).await;
    };
    tokio::select! {
        _ = listening => {}
        () = hurried => {
            let (task, lease) = (leased.task_id.0, leased.lease_id.0);
            tracing::warn!(task, lease, "the last log lines were not sent: the worker stops");
        }
    }
}

/// Waits for the handler, and drops it when it does not stop although it has to.
pub(crate) async fn watch_over<T: Serialize>(
    drop_handlers: &CancellationToken,
    leased: &Leased,
    signal: &Signal,
    mut running: JoinHandle<Result<T, JobError>>,
) -> Ended {
    let lease_is_gone = async {
        signal.gone.cancelled().await;
        // At a time limit it was asked to stop before.
        if signal.why() != Some(Stop::TimedOut) {
            tokio::time::sleep(wind_up(Duration::from_millis(leased.lease_ms))).await;
        }
    };
    let has_to_stop = async {
        tokio::select! {
            () = lease_is_gone => {}
            () = drop_handlers.cancelled() => {}
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

/// What the end of a handler means for its lease.
pub(crate) fn words(why: Option<Stop>, ended: Ended) -> Words {
    match (why, ended) {
        (Some(Stop::LeaseLost), _) => Words::Nothing { why: Stop::LeaseLost },
        // The coordinator ends an attempt by itself when its time limit is over, and says why.
        (Some(why @ (Stop::Deadline | Stop::TimedOut)), Ended::Badly(_) | Ended::Dropped) => {
            Words::Nothing { why }
        }
        (_, Ended::Well(result)) => Words::Complete(result),
        (Some(Stop::Shutdown), Ended::Badly(_) | Ended::Dropped) | (_, Ended::Dropped) => Words::Release,
        (None | Some(Stop::CancelRequested), Ended::Badly(JobError { text, verdict })) => match verdict {
            Verdict::Retry => Words::Fail { text, retry: true },
            Verdict::Permanent => Words::Fail { text, retry: false },
            Verdict::Release => Words::Release,
        },
    }
}

/// Tells the outcome, and keeps telling it until it is accepted or refused.
async fn tell(shared: &Shared, leased: &Leased, signal: &Signal, ended: Ended) -> Noticed {
    match words(signal.why(), ended) {
        Words::Complete(result) => complete(shared, leased, result).await,
        Words::Fail { text, retry } => fail(shared, leased, text, retry).await,
        Words::Release => release(shared, leased).await,
        Words::Nothing { why: Stop::TimedOut } => Noticed::TimedOut,
        Words::Nothing { .. } => Noticed::Lost,
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
        // Who gave up does not know what the coordinator thinks of the result.
        Ok(Err(error)) if is_about_the_result(&error) && !shared.give_up.is_cancelled() => {
            fail(shared, leased, format!("the result was refused: {error}"), false).await
        }
        Ok(Err(error)) if error.code() == "internal" && !shared.give_up.is_cancelled() => {
            fail(shared, leased, format!("the result was not taken: {error}"), true).await
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

/// Gives back a task that was never begun.
pub(crate) async fn give_back(shared: Arc<Shared>, leased: Leased) {
    let Leased { task_id, lease_id, .. } = leased;
    shared.held.ended(lease_id);
    if let Noticed::Untold { error } = release(&shared, &leased).await {
        tracing::warn!(task = task_id.0, lease = lease_id.0, %error, "a task was not given back");
    }
    shared.held.remove(lease_id);
}

async fn release(shared: &Shared, leased: &Leased) -> Noticed {
    let release = Release { lease_id: leased.lease_id, worker: None };
    match persist(&shared.give_up, || shared.client.release(leased.task_id, &release)).await {
        Ok(outcome) => Noticed::Released { state: outcome.state },
        Err(error) => Noticed::Untold { error },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::json;
    use tokio::sync::mpsc;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::client::Client;
    use crate::tests::fake::{Answer, coordinator, in_time, lease};
    use crate::wire::LogStream;
    use crate::worker::Worker;

    /// A coordinator with one task, which takes every outcome and no line; the receiver hears of each refusal.
    async fn without_a_log() -> (Client, mpsc::UnboundedReceiver<()>) {
        let tasks = Mutex::new(vec![lease(1)]);
        let (sender, refused) = mpsc::unbounded_channel();
        let client = coordinator(move |asked| match asked.path.as_str() {
            "/v1/lease" => match tasks.lock().unwrap().pop() {
                Some(lease) => Answer::ok(json!({"leases": [lease], "waited_ms": 0})),
                None => Answer::Silence,
            },
            "/v1/tasks/1/logs" => {
                sender.send(()).unwrap_or_default();
                Answer::problem(500, "internal")
            }
            "/v1/tasks/1/complete" => Answer::ok(json!({"id": 1, "state": "COMPLETED"})),
            "/v1/tasks/1/release" => Answer::ok(json!({"id": 1, "state": "WAITING"})),
            other => panic!("nobody should ask for {other}"),
        })
        .await;
        (client, refused)
    }

    fn watched(client: Client) -> (Worker, mpsc::UnboundedReceiver<Noticed>) {
        let (sender, notices) = mpsc::unbounded_channel();
        let worker = Worker::new(client, ["q"]).lease(Duration::from_secs(60));
        (worker.observe(move |notice| drop(sender.send(notice.what))), notices)
    }

    /// Fills what there is of room for lines, while the first one is tried again.
    async fn fill_the_log(job: &Job, refused: &tokio::sync::Mutex<mpsc::UnboundedReceiver<()>>) {
        job.log("first");
        refused.lock().await.recv().await.expect("the coordinator refuses every line");
        (0..20_000).for_each(|_| job.log("again"));
    }

    #[tokio::test]
    async fn a_task_completes_although_its_lines_are_not_accepted() {
        let (client, refused) = without_a_log().await;
        let (worker, mut notices) = watched(client);
        let (stop, refused) = (CancellationToken::new(), Arc::new(tokio::sync::Mutex::new(refused)));
        let running = tokio::spawn(worker.run(stop.clone(), move |job: Job| {
            let refused = Arc::clone(&refused);
            async move {
                fill_the_log(&job, &refused).await;
                Ok::<_, JobError>(())
            }
        }));
        assert!(matches!(in_time(notices.recv()).await.unwrap(), Noticed::Began));
        assert!(matches!(in_time(notices.recv()).await.unwrap(), Noticed::Completed { .. }));
        stop.cancel();
        in_time(running).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_stop_ends_although_lines_are_not_accepted() {
        let (client, refused) = without_a_log().await;
        let (worker, mut notices) = watched(client);
        let worker = worker.grace(Duration::ZERO).wind_up(Duration::ZERO);
        let (stop, refused) = (CancellationToken::new(), Arc::new(tokio::sync::Mutex::new(refused)));
        let running = tokio::spawn(worker.run(stop.clone(), {
            let stop = stop.clone();
            move |job: Job| {
                let (stop, refused) = (stop.clone(), Arc::clone(&refused));
                async move {
                    fill_the_log(&job, &refused).await;
                    stop.cancel();
                    job.log_from(LogStream::Stdout, "no room").await;
                    std::future::pending::<Result<(), JobError>>().await
                }
            }
        }));
        in_time(running).await.unwrap().unwrap();
        assert!(matches!(notices.recv().await.unwrap(), Noticed::Began));
        assert!(matches!(notices.recv().await.unwrap(), Noticed::Released { .. }));
    }
}
