//! Takes offers for the free places of a worker.

use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::Name;
use orchestrix_core::wire::Leased;
use orchestrix_core::wire::bus::{Dispatch, Queue, read};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::execute::{Offer, execute, refuse, settle};
use super::link::{Entry, Failure, Link};
use super::{Shared, WAIT};
use crate::error::Error;
use crate::retry::Backoff;
use crate::worker::complaints::Complaints;
use crate::worker::held::{lock, trusted};
use crate::worker::job::{Job, JobError};
use crate::worker::leasing::free_places;

/// How long a stop waits for a read beyond its time. What is taken and not heard of runs out.
const LAST_READ: Duration = Duration::from_secs(1);

/// Offers in one read. Bounds memory, and how many run out if the answer is lost.
const TAKE_MAX: usize = 100;

/// The taking side of a worker.
pub(super) struct Taking {
    shared: Arc<Shared>,
    link: Link,
    /// Of its queues.
    channels: Vec<String>,
    concurrency: usize,
}

impl Taking {
    pub(super) fn new(shared: Arc<Shared>, link: Link, queues: &[Name], concurrency: usize) -> Self {
        let name = |queue: &Name| shared.channels.queue(&Queue::Dispatch(queue.clone()));
        let channels = queues.iter().map(name).collect();
        Self { shared, link, channels, concurrency }
    }

    /// Takes and runs until `stop`. A read that is under way then is awaited: what it takes is given back.
    pub(super) async fn run<H, F, T>(
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
        let mut trouble = Trouble { backoff: Backoff::endless(), complaints: Complaints::default() };
        let mut joined = false;
        loop {
            let Some(free) = stop.run_until_cancelled(free_places(&places)).await else { return Ok(()) };
            let taken = {
                let taking = async {
                    if !joined {
                        self.link.join(&self.channels).await?;
                    }
                    self.take(free.len().min(TAKE_MAX)).await
                };
                tokio::pin!(taking);
                let patient = async {
                    stop.cancelled().await;
                    tokio::time::sleep(WAIT + LAST_READ).await;
                };
                tokio::select! {
                    taken = &mut taking => taken,
                    () = patient => return Ok(()),
                }
            };
            match taken {
                Ok(entries) => {
                    trouble.backoff.reset();
                    joined = true;
                    self.begin(entries, free, stop, jobs, &handler);
                }
                Err(failure) => {
                    joined = joined && !failure.is_no_group();
                    let pause = trouble.pause(&self.shared, &failure)?;
                    if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// At most so many entries, but for those that come to several queues at the same moment.
    async fn take(&mut self, at_most: usize) -> Result<Vec<Entry>, Failure> {
        let worker = self.shared.worker.as_str();
        if let [one] = &self.channels[..] {
            return self.link.take(std::slice::from_ref(one), worker, at_most, Some(WAIT)).await;
        }
        // A count is one for each channel, so each is asked alone, and another one first the next time.
        self.channels.rotate_left(1);
        for channel in &self.channels {
            let some = self.link.take(std::slice::from_ref(channel), worker, at_most, None).await?;
            if !some.is_empty() {
                return Ok(some);
            }
        }
        self.link.take(&self.channels, worker, 1, Some(WAIT)).await
    }

    fn begin<H, F, T>(
        &self,
        entries: Vec<Entry>,
        free: Vec<OwnedSemaphorePermit>,
        stop: &CancellationToken,
        jobs: &TaskTracker,
        handler: &Arc<H>,
    ) where
        H: Fn(Job) -> F + Send + Sync + 'static,
        F: Future<Output = Result<T, JobError>> + Send + 'static,
        T: Serialize + Send + 'static,
    {
        let mut free = free.into_iter();
        for Entry { channel, id, data } in entries {
            let offer = Offer { channel, id };
            let told = data.ok_or_else(|| "it has no text, or too much".to_owned());
            let dispatch = match told.and_then(|data| read::<Dispatch>(&data)) {
                Ok(dispatch) => dispatch,
                Err(why) => {
                    tracing::warn!(channel = %offer.channel, id = %offer.id, %why, "an offer cannot be read");
                    jobs.spawn(settle(Arc::clone(&self.shared), offer));
                    continue;
                }
            };
            let leased = leased(dispatch);
            let known = lock(&self.shared.lengths).insert(leased.lease_id, leased.lease_ms).is_some();
            if known {
                // It came twice.
                jobs.spawn(settle(Arc::clone(&self.shared), offer));
                continue;
            }
            let trust = trusted(self.shared.held.now(), 0, leased.lease_ms, None);
            let signal = self.shared.held.add(leased.lease_id, trust);
            self.shared.more.notify_one();
            let place = free.next().filter(|_| !stop.is_cancelled());
            match place {
                Some(place) => {
                    let (shared, handler) = (Arc::clone(&self.shared), Arc::clone(handler));
                    jobs.spawn(execute(shared, leased, offer, signal, handler, place));
                }
                None => drop(jobs.spawn(refuse(Arc::clone(&self.shared), leased, offer, signal))),
            }
        }
    }
}

/// How often it could not take.
struct Trouble {
    backoff: Backoff,
    complaints: Complaints,
}

impl Trouble {
    /// How long to wait.
    fn pause(&mut self, shared: &Shared, failure: &Failure) -> Result<Duration, Error> {
        if failure.is_final() {
            return Err(Error::invalid(format!("the bus refuses this worker: {failure}")));
        }
        if self.complaints.are_due(shared.held.now()) {
            tracing::warn!(worker = %shared.worker, %failure, "cannot take offers");
        }
        Ok(self.backoff.pause(None))
    }
}

fn leased(dispatch: Dispatch) -> Leased {
    let Dispatch { job_id, history_id, queue, payload, attempt, lease_ms } = dispatch;
    Leased { task_id: job_id, lease_id: history_id, queue, attempt, payload, lease_ms, timeout_ms: None }
}
