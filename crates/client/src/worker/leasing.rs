//! Gets tasks for the free places of a worker.

use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::wire::{LeaseQueues, Leased, Leases};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Shared;
use super::execute::execute;
use super::heart::Heart;
use super::held::{Signal, trusted_until};
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
            let (free, got) = match stop.run_until_cancelled(next).await {
                Some(next) => next?,
                None => return Ok(()),
            };
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
    async fn lease(&mut self, max: usize) -> Result<Got, Error> {
        let mut backoff = Backoff::endless();
        let mut asked_before = Asked::Never;
        self.request.max = max;
        self.request.request_id = Some(request_id());
        loop {
            let sent = self.shared.held.now();
            let error = match self.shared.client.lease_once(&self.request).await {
                Ok(leases) => return Ok(self.hold(sent, leases, asked_before).await),
                Err(error) => error,
            };
            if error.is_outcome_unknown() {
                asked_before = Asked::Perhaps;
            }
            if is_final(&error) {
                return Err(error);
            }
            tracing::warn!(worker = %self.request.worker, %error, "cannot lease");
            tokio::time::sleep(backoff.pause(error.retry_after())).await;
        }
    }

    async fn hold(&self, sent: Duration, leases: Leases, asked_before: Asked) -> Got {
        let Leases { leases, waited_ms } = leases;
        let until = |lease: &Leased| trusted_until(sent, waited_ms, lease.lease_ms);
        let got: Got = leases
            .into_iter()
            .map(|lease| {
                let signal = self.shared.held.add(lease.lease_id, until(&lease));
                (lease, signal)
            })
            .collect();
        match asked_before {
            Asked::Never => got,
            Asked::Perhaps => self.confirm(got).await,
        }
    }

    /// Leases that an earlier request may have got are as old as that request: only what a heartbeat extends
    /// now may be used.
    async fn confirm(&self, got: Got) -> Got {
        let ids: Vec<_> = got.iter().map(|(lease, _)| lease.lease_id).collect();
        let beaten = if ids.is_empty() { Ok(()) } else { self.heart.beat(ids).await };
        let usable = |(lease, signal): &(Leased, Arc<Signal>)| {
            let usable = beaten.is_ok() && !signal.gone.is_cancelled();
            if !usable {
                self.shared.held.remove(lease.lease_id);
            }
            usable
        };
        got.into_iter().filter(usable).collect()
    }
}

/// Whether an earlier request with the same name may have got leases.
#[derive(Clone, Copy)]
enum Asked {
    Never,
    Perhaps,
}

/// Waits for one free place and takes all others that are free.
async fn free_places(places: &Arc<Semaphore>) -> Vec<OwnedSemaphorePermit> {
    let first = Arc::clone(places).acquire_owned().await.expect("the places of a worker are never closed");
    let others = std::iter::from_fn(|| Arc::clone(places).try_acquire_owned().ok());
    std::iter::once(first).chain(others).collect()
}

/// Whether this worker will never be served: it is not let in, or does not ask properly.
fn is_final(error: &Error) -> bool {
    !error.is_retryable() && error.code() != "storage_full"
}
