//! One offer, from `Running` to last words that are taken.

use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::limits::{ERROR_BYTES_MAX, PAYLOAD_BYTES_MAX};
use orchestrix_core::wire::Leased;
use orchestrix_core::wire::bus::{JobChannel, JobStatus, MESSAGE_BYTES_MAX, Status, write};
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;

use super::Shared;
use super::link::{Added, Failure};
use super::log::LogSender;
use crate::retry::Backoff;
use crate::worker::complaints::Complaints;
use crate::worker::execute::{Words, last_lines, watch_over, words};
use crate::worker::held::{Signal, Stop, trusted};
use crate::worker::job::{Job, JobError};
use crate::worker::job_log::{JobLog, cut};

/// How long to wait for an owner to take last words, at first and at most, before they are said again.
const REPEAT: Duration = Duration::from_millis(100);
const REPEAT_LONGEST: Duration = Duration::from_secs(10);

/// An entry of a dispatch channel that was taken.
pub(super) struct Offer {
    pub(super) channel: String,
    pub(super) id: String,
}

/// What became of `Running`.
enum Begun {
    Yes,
    /// The offer was withdrawn before.
    Withdrawn,
    /// It has to stop before it has begun.
    Stopped,
}

/// Runs the handler for one offer and tells its outcome.
pub(super) async fn execute<H, F, T>(
    shared: Arc<Shared>,
    leased: Leased,
    offer: Offer,
    signal: Arc<Signal>,
    handler: Arc<H>,
    place: OwnedSemaphorePermit,
) where
    H: Fn(Job) -> F + Send + Sync + 'static,
    F: Future<Output = Result<T, JobError>> + Send + 'static,
    T: Serialize + Send + 'static,
{
    let leased = Arc::new(leased);
    match begin(&shared, &leased, &offer, &signal).await {
        Begun::Yes => {}
        Begun::Withdrawn => {
            tracing::debug!(task = leased.task_id.0, lease = leased.lease_id.0, "the offer was withdrawn");
            return shared.forget(leased.lease_id);
        }
        Begun::Stopped => {
            drop(place);
            return refuse(shared, (*leased).clone(), offer, signal).await;
        }
    }
    let (log, items) = JobLog::open();
    let sender = LogSender::new(items, Arc::clone(&shared), Arc::clone(&signal), Arc::clone(&leased));
    let listening = tokio::spawn(sender.run());
    let job = Job::new(Arc::clone(&leased), Arc::clone(&signal), log.clone());
    let running = tokio::spawn(async move { handler(job).await });
    let ended = watch_over(&shared.drop_handlers, &leased, &signal, running).await;
    shared.held.ended(leased.lease_id);
    log.last();
    last_lines(listening, &shared.drop_handlers, &leased).await;
    let last = match words(signal.why(), ended) {
        Words::Complete(result) => Some(completed(&shared, &leased, result)),
        Words::Fail { text, retry } => Some(failed(&shared, &leased, &text, retry)),
        Words::Release => Some(status(&shared, &leased, Status::Released)),
        Words::Nothing { why } => {
            let (task, lease) = (leased.task_id.0, leased.lease_id.0);
            tracing::warn!(task, lease, ?why, "a lease ended before its handler");
            None
        }
    };
    if let Some(last) = last {
        say_last(&shared, &leased, &signal, &last, Some(place)).await;
    }
    shared.forget(leased.lease_id);
}

/// Gives back an offer that was not begun.
pub(super) async fn refuse(shared: Arc<Shared>, leased: Leased, offer: Offer, signal: Arc<Signal>) {
    shared.held.ended(leased.lease_id);
    if !matches!(signal.why(), Some(Stop::LeaseLost | Stop::Deadline)) {
        let released = status(&shared, &leased, Status::Released);
        say_last(&shared, &leased, &signal, &released, None).await;
    }
    shared.forget(leased.lease_id);
    settle(shared, offer).await;
}

/// Removes an entry, and insists.
pub(super) async fn settle(shared: Arc<Shared>, offer: Offer) {
    let settling = async {
        let mut backoff = Backoff::endless();
        while let Err(failure) = shared.link.settle(&offer.channel, &offer.id).await {
            tracing::debug!(channel = %offer.channel, id = %offer.id, %failure, "an offer was not removed");
            tokio::time::sleep(backoff.pause(None)).await;
        }
    };
    shared.give_up.run_until_cancelled(settling).await;
}

/// Says `Running`, and insists until there is a reason to stop.
async fn begin(shared: &Shared, leased: &Leased, offer: &Offer, signal: &Signal) -> Begun {
    let running = write(&status(shared, leased, Status::Running));
    let channel = shared.channels.job(JobChannel::Status(leased.task_id));
    let saying = async {
        let mut trouble = Trouble::default();
        loop {
            let sent = shared.held.now();
            match shared.link.answer(&channel, &running, &offer.channel, &offer.id).await {
                Ok(Added::Done) => {
                    shared.held.extend(leased.lease_id, trusted(sent, 0, leased.lease_ms, None));
                    return Begun::Yes;
                }
                Ok(Added::Closed) => return Begun::Withdrawn,
                Err(failure) => tokio::time::sleep(trouble.pause(shared, leased, &failure)).await,
            }
        }
    };
    signal.stop.run_until_cancelled(saying).await.unwrap_or(Begun::Stopped)
}

/// Says how it ended until the channel is gone, or a node says that the lease is. The place is free once it is said.
async fn say_last(
    shared: &Shared,
    leased: &Leased,
    signal: &Signal,
    last: &JobStatus,
    mut place: Option<OwnedSemaphorePermit>,
) {
    let channel = shared.channels.job(JobChannel::Status(leased.task_id));
    let data = write(last);
    let saying = async {
        let (mut trouble, mut pause) = (Trouble::default(), REPEAT);
        while signal.why() != Some(Stop::LeaseLost) {
            match shared.link.add(&channel, &data).await {
                Ok(Added::Closed) => return,
                Ok(Added::Done) => {
                    drop(place.take());
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(REPEAT_LONGEST);
                }
                Err(failure) => tokio::time::sleep(trouble.pause(shared, leased, &failure)).await,
            }
        }
    };
    if shared.give_up.run_until_cancelled(saying).await.is_none() {
        let (task, lease) = (leased.task_id.0, leased.lease_id.0);
        tracing::warn!(task, lease, "the worker stops before a node has taken its last words");
    }
}

fn completed(shared: &Shared, leased: &Leased, result: Option<orchestrix_core::Json>) -> JobStatus {
    let bytes = result.as_ref().map_or(0, |result| result.as_str().len());
    if bytes > PAYLOAD_BYTES_MAX {
        let text = format!(
            "the result was refused: it has {bytes} bytes, which exceed the limit of {PAYLOAD_BYTES_MAX}"
        );
        return failed(shared, leased, &text, false);
    }
    JobStatus { result, ..status(shared, leased, Status::Completed) }
}

fn failed(shared: &Shared, leased: &Leased, text: &str, retry: bool) -> JobStatus {
    let error = Some(cut(text, ERROR_BYTES_MAX).0.to_owned());
    JobStatus { error, retry: Some(retry), ..status(shared, leased, Status::Failed) }
}

pub(super) fn status(shared: &Shared, leased: &Leased, status: Status) -> JobStatus {
    JobStatus {
        job_id: leased.task_id,
        history_id: leased.lease_id,
        worker_id: shared.worker.clone(),
        status,
        progress: None,
        note: None,
        result: None,
        error: None,
        retry: None,
    }
}

/// The longest last words fit into a message with all their fields.
const _: () = assert!(PAYLOAD_BYTES_MAX + 1_024 <= MESSAGE_BYTES_MAX);
const _: () = assert!(6 * ERROR_BYTES_MAX + 1_024 <= MESSAGE_BYTES_MAX);

/// How often something about one lease could not be said.
struct Trouble {
    backoff: Backoff,
    complaints: Complaints,
}

impl Default for Trouble {
    fn default() -> Self {
        Self { backoff: Backoff::endless(), complaints: Complaints::default() }
    }
}

impl Trouble {
    fn pause(&mut self, shared: &Shared, leased: &Leased, failure: &Failure) -> Duration {
        if self.complaints.are_due(shared.held.now()) {
            let (task, lease) = (leased.task_id.0, leased.lease_id.0);
            tracing::warn!(task, lease, %failure, "cannot report on a task");
        }
        self.backoff.pause(None)
    }
}
