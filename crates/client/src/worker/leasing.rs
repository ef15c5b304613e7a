//! Gets tasks for the free places of a worker.

use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::wire::{LeaseQueues, Leased, Leases};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Shared;
use super::complaints::Complaints;
use super::execute::{execute, give_back};
use super::heart::Heart;
use super::held::{Signal, trusted};
use super::job::{Job, JobError};
use crate::client::request_id;
use crate::error::Error;
use crate::retry::Backoff;

/// The leasing side of a worker.
pub(crate) struct Leasing {
    pub(crate) shared: Arc<Shared>,
    pub(crate) heart: Heart,
    pub(crate) request: LeaseQueues,
    pub(crate) concurrency: usize,
}

/// Leases that were got, each with its signal.
type Got = Vec<(Leased, Arc<Signal>)>;

impl Leasing {
    /// Leases and runs until `stop`. A request that waits at that moment is dropped: the coordinator gives
    /// nothing to a caller who is gone.
    pub(crate) async fn run<H, F, T>(
        mut self,
        stop: &CancellationToken,
        jobs: &TaskTracker,
        handler: Arc<H>,
    ) -> Result<(), Error>
    where
        H: Fn(Job) -> F + Send + Sync + 'static,
        F: Future<Output = Result<T, JobError>> + Send + 'static,
        T: Serialize + Send + 'static,
    {
        let places = Arc::new(Semaphore::new(self.concurrency));
        loop {
            let next = async {
                let free = free_places(&places).await;
                self.lease(free.len()).await.map(|got| (free, got))
            };
            let (free, answered) = match stop.run_until_cancelled(next).await {
                Some(next) => next?,
                None => return Ok(()),
            };
            let got = self.hold(answered, stop, jobs).await;
            for ((leased, signal), place) in got.into_iter().zip(free) {
                let execution = execute(Arc::clone(&self.shared), leased, signal, Arc::clone(&handler));
                jobs.spawn(async move {
                    execution.await;
                    drop(place);
                });
            }
        }
    }

    /// Asks until there is an answer; an answer without leases is one.
    async fn lease(&mut self, max: usize) -> Result<Answered, Error> {
        let mut backoff = Backoff::endless();
        let mut asked_before = Asked::Never;
        let mut complaints = Complaints::default();
        self.request.max = max;
        self.request.request_id = Some(request_id());
        loop {
            let sent = self.shared.held.now();
            let error = match self.shared.client.lease_once(&self.request).await {
                Ok(leases) => return Ok(Answered { sent, leases, asked_before }),
                Err(error) => error,
            };
            if error.is_outcome_unknown() {
                asked_before = Asked::Perhaps;
            }
            if is_final(&error) {
                return Err(error);
            }
            if complaints.are_due(self.shared.held.now()) {
                tracing::warn!(worker = %self.request.worker, %error, "cannot lease");
            }
            tokio::time::sleep(backoff.pause(error.retry_after())).await;
        }
    }

    /// From here on leases are ours: they are run or given back, also when the worker stops.
    async fn hold(&self, answered: Answered, stop: &CancellationToken, jobs: &TaskTracker) -> Got {
        let Answered { sent, leases: Leases { leases, waited_ms }, asked_before } = answered;
        let trust = |lease: &Leased| trusted(sent, waited_ms, lease.lease_ms, lease.timeout_ms);
        let got: Got = leases
            .into_iter()
            .map(|lease| {
                let signal = self.shared.held.add(lease.lease_id, trust(&lease));
                (lease, signal)
            })
            .collect();
        let got = match asked_before {
            Asked::Never => got,
            Asked::Perhaps => self.confirm(got, stop, jobs).await,
        };
        let is_ours = |(lease, _): &(Leased, Arc<Signal>)| self.shared.held.is_trusted(lease.lease_id);
        let (ours, over): (Got, Got) = got.into_iter().partition(is_ours);
        for (lease, _) in over {
            // Its answer was under way for as long as the lease lasts. What is begun now would have to stop at once.
            tracing::warn!(
                task = lease.task_id.0,
                lease = lease.lease_id.0,
                "a lease was over when it arrived"
            );
            jobs.spawn(give_back(Arc::clone(&self.shared), lease));
        }
        ours
    }

    /// Leases that an earlier request may have got are as old as that request: only what a heartbeat extends
    /// now may be used.
    async fn confirm(&self, got: Got, stop: &CancellationToken, jobs: &TaskTracker) -> Got {
        if got.is_empty() {
            return got;
        }
        let ids = got.iter().map(|(lease, _)| lease.lease_id).collect();
        let confirmed = matches!(stop.run_until_cancelled(self.heart.beat(ids)).await, Some(Ok(())));
        let mut usable = Got::new();
        for (lease, signal) in got {
            if signal.gone.is_cancelled() {
                self.shared.held.remove(lease.lease_id);
            } else if confirmed {
                usable.push((lease, signal));
            } else {
                jobs.spawn(give_back(Arc::clone(&self.shared), lease));
            }
        }
        usable
    }
}

/// Leases as they were answered to a request that was sent at some time.
struct Answered {
    sent: Duration,
    leases: Leases,
    asked_before: Asked,
}

/// Whether an earlier request with the same name may have got leases.
#[derive(Clone, Copy)]
enum Asked {
    Never,
    Perhaps,
}

/// Waits for one free place and takes all others that are free.
pub(crate) async fn free_places(places: &Arc<Semaphore>) -> Vec<OwnedSemaphorePermit> {
    let first = Arc::clone(places).acquire_owned().await.expect("the places of a worker are never closed");
    let others = std::iter::from_fn(|| Arc::clone(places).try_acquire_owned().ok());
    std::iter::once(first).chain(others).collect()
}

/// Whether this worker will never be served: it is not let in, or does not ask properly.
fn is_final(error: &Error) -> bool {
    !error.is_retryable() && error.code() != "storage_full"
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::json;
    use tokio::sync::mpsc;

    use super::*;
    use crate::clock::manual::ManualClock;
    use crate::tests::fake::{Answer, Asked, coordinator, in_time, lease};
    use crate::worker::Worker;

    /// A coordinator that answers the second of two lease requests, and what a heartbeat about that gets.
    /// The receiver has all that it was asked, but for those.
    async fn twice_asked(heartbeat: fn() -> Answer) -> (Worker, mpsc::UnboundedReceiver<Asked>) {
        let leasing =
            Mutex::new(vec![Answer::ok(json!({"leases": [lease(1)], "waited_ms": 0})), Answer::HangUp]);
        let (sender, asked) = mpsc::unbounded_channel();
        let client = coordinator(move |request| {
            if request.path == "/v1/lease" {
                return leasing.lock().unwrap().pop().unwrap_or(Answer::Silence);
            }
            drop(sender.send(request.clone()));
            match request.path.as_str() {
                "/v1/workers/w/heartbeat" => heartbeat(),
                "/v1/tasks/1/release" => Answer::ok(json!({"id": 1, "state": "WAITING"})),
                other => panic!("nobody should ask for {other}"),
            }
        })
        .await;
        (Worker::new(client, ["q"]).name("w").lease(Duration::from_secs(60)), asked)
    }

    async fn never(_: Job) -> Result<(), JobError> {
        panic!("nothing is begun under a lease that was not confirmed")
    }

    #[tokio::test]
    async fn a_stop_gives_back_leases_that_are_not_confirmed_yet() {
        let (worker, mut asked) = twice_asked(|| Answer::Silence).await;
        let stop = CancellationToken::new();
        let running = tokio::spawn(worker.run(stop.clone(), never));
        assert_eq!(in_time(asked.recv()).await.unwrap().path, "/v1/workers/w/heartbeat");
        stop.cancel();
        in_time(running).await.unwrap().unwrap();
        let given_back = asked.try_recv().unwrap();
        assert_eq!(
            (given_back.path.as_str(), &given_back.body["lease_id"]),
            ("/v1/tasks/1/release", &json!(1_001))
        );
    }

    #[tokio::test]
    async fn leases_that_cannot_be_confirmed_are_given_back() {
        let (worker, mut asked) = twice_asked(|| Answer::problem(500, "internal")).await;
        let stop = CancellationToken::new();
        let running = tokio::spawn(worker.run(stop.clone(), never));
        assert_eq!(in_time(asked.recv()).await.unwrap().path, "/v1/workers/w/heartbeat");
        assert_eq!(in_time(asked.recv()).await.unwrap().path, "/v1/tasks/1/release");
        stop.cancel();
        in_time(running).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_lease_that_is_over_when_it_arrives_is_not_begun() {
        let clock = Arc::new(ManualClock::default());
        let leasing = Mutex::new(vec![lease(1)]);
        let (sender, mut asked) = mpsc::unbounded_channel();
        let client = coordinator({
            let clock = Arc::clone(&clock);
            move |request| match request.path.as_str() {
                "/v1/lease" => match leasing.lock().unwrap().pop() {
                    Some(lease) => {
                        clock.advance(Duration::from_secs(60));
                        Answer::ok(json!({"leases": [lease], "waited_ms": 0}))
                    }
                    None => Answer::Silence,
                },
                path => {
                    drop(sender.send(path.to_owned()));
                    Answer::ok(json!({"id": 1, "state": "WAITING"}))
                }
            }
        })
        .await;
        let stop = CancellationToken::new();
        let worker = Worker::new(client, ["q"]).lease(Duration::from_secs(60)).clock(clock);
        let running = tokio::spawn(worker.run(stop.clone(), never));
        assert_eq!(in_time(asked.recv()).await.unwrap(), "/v1/tasks/1/release");
        stop.cancel();
        in_time(running).await.unwrap().unwrap();
        assert_eq!(asked.try_recv().ok(), None);
    }
}
