//! A worker that talks over a bus: it knows a Redis server and the names of channels, and no node.
//!
//! **Invariant:** a lease is among those of the next heartbeat before its worker says `Running`, and until its last words
//! are taken: nodes release a lease that two heartbeats in a row do not name.

mod execute;
mod heart;
mod link;
mod log;
mod taking;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use orchestrix_core::wire::bus::{CancelCause, Channels, JobCancel, Topic, read};
use orchestrix_core::{LeaseId, Name};
use serde::Serialize;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::link::Link;
use self::taking::Taking;
use crate::clock::{BootClock, Clock};
use crate::error::Error;
use crate::retry::Backoff;
use crate::worker::complaints::Complaints;
use crate::worker::held::{Held, Stop, lock};
use crate::worker::job::{Job, JobError};
use crate::worker::{Ending, capacity, who};

/// How long a read waits for messages. Bounds how long a stop waits for it.
const WAIT: Duration = Duration::from_millis(500);
/// Cancellations in one read. Bounds memory.
const CANCELS_MAX: usize = 1_000;
/// Before all that is kept.
const START: &str = "0-0";

/// A worker of some queues on a bus. It has the handlers of a [`Worker`](crate::Worker). Set what differs from the defaults,
/// then [`run`](BusWorker::run) it.
///
/// ```no_run
/// # async fn example() -> Result<(), orchestrix_client::Error> {
/// use orchestrix_client::{BusWorker, Job, JobError};
/// use tokio_util::sync::CancellationToken;
///
/// let stop = CancellationToken::new();
/// let worker = BusWorker::new("redis://worker:secret@10.0.0.9:6379", ["mail"]).concurrency(8);
/// let send = |job: Job| async move {
///     let address: String = job.parse()?;
///     job.log(&format!("to {address}"));
///     Ok::<_, JobError>("sent")
/// };
/// worker.run(stop, send).await
/// # }
/// ```
#[must_use = "a worker does nothing until it is run"]
pub struct BusWorker {
    url: String,
    domain: String,
    queues: Vec<String>,
    name: Option<String>,
    concurrency: usize,
    grace: Duration,
    wind_up: Duration,
    clock: Arc<dyn Clock>,
}

/// What the parts of a running worker have in common.
struct Shared {
    worker: Name,
    channels: Channels,
    /// For all that is said.
    link: Link,
    held: Arc<Held>,
    /// The lengths of the leases that heartbeats name, in milliseconds.
    lengths: Mutex<BTreeMap<LeaseId, u64>>,
    /// There is a lease more.
    more: Notify,
    /// Handlers that have not stopped by now are dropped.
    drop_handlers: CancellationToken,
    /// What could not be said by now is dropped.
    give_up: CancellationToken,
}

impl BusWorker {
    /// A worker that runs one task at a time, on the server with this URL: `redis://USER:PASSWORD@HOST:PORT`.
    pub fn new<Q: Into<String>>(url: impl Into<String>, queues: impl IntoIterator<Item = Q>) -> Self {
        Self {
            url: url.into(),
            domain: "default".to_owned(),
            queues: queues.into_iter().map(Into::into).collect(),
            name: None,
            concurrency: 1,
            grace: Duration::from_secs(30),
            wind_up: Duration::from_secs(5),
            clock: Arc::new(BootClock),
        }
    }

    /// The domain of the nodes; by default `default`.
    pub fn domain(mut self, domain: impl Into<String>) -> Self {
        self.domain = domain.into();
        self
    }

    /// The name that nodes list; by default made of host, process and random characters. No two workers may have the
    /// same.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How many tasks run at once, 1 to 1,000.
    pub fn concurrency(mut self, tasks: usize) -> Self {
        self.concurrency = tasks;
        self
    }

    /// How long running handlers may continue after the stop of the worker was requested, before they are asked to stop too.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// How long a handler may take to end after it was asked to stop, before it is dropped.
    pub fn wind_up(mut self, wind_up: Duration) -> Self {
        self.wind_up = wind_up;
        self
    }

    /// The clock that deadlines are measured with.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Takes offers and runs `handler` for each, until `stop` fires; then lets running handlers end for the
    /// grace, tells them to stop, and gives their tasks back.
    ///
    /// What a handler returns is the result of the task (`null` means none). A handler that fails or panics
    /// fails its attempt. A handler must not block its thread: only one that awaits can be stopped.
    ///
    /// # Errors
    /// When an option is not valid or the server does not let this worker in. A server that cannot be reached is
    /// asked again, for ever.
    pub async fn run<H, F, T>(self, stop: CancellationToken, handler: H) -> Result<(), Error>
    where
        H: Fn(Job) -> F + Send + Sync + 'static,
        F: Future<Output = Result<T, JobError>> + Send + 'static,
        T: Serialize + Send + 'static,
    {
        let (queues, worker) = who(&self.queues, self.name.as_deref())?;
        let capacity = capacity(self.concurrency)?;
        let channels = Channels::of(&self.domain).map_err(Error::invalid)?;
        let link = || Link::to(&self.url);
        let (taking, hearing) = (link()?, link()?);
        let shared = Arc::new(Shared {
            worker,
            channels,
            link: link()?,
            held: Arc::new(Held::new(Arc::clone(&self.clock))),
            lengths: Mutex::default(),
            more: Notify::new(),
            drop_handlers: CancellationToken::new(),
            give_up: CancellationToken::new(),
        });

        let (alive, leaving) = (CancellationToken::new(), stop.child_token());
        let background = TaskTracker::new();
        let heart = heart::beat(Arc::clone(&shared), queues.clone(), capacity, leaving.clone());
        background.spawn(alive.clone().run_until_cancelled_owned(heart));
        background.spawn(alive.clone().run_until_cancelled_owned(hear(Arc::clone(&shared), hearing)));
        let held = Arc::clone(&shared.held);
        background.spawn(alive.clone().run_until_cancelled_owned(async move { held.watch().await }));
        // Also when this future is dropped, nothing goes on behind the owner's back.
        let _end_background = alive.drop_guard();
        let _end_handlers = shared.drop_handlers.clone().drop_guard();
        let _end_words = shared.give_up.clone().drop_guard();

        let jobs = TaskTracker::new();
        let taking = Taking::new(Arc::clone(&shared), taking, &queues, self.concurrency);
        let taken = taking.run(&stop, &jobs, Arc::new(handler)).await;
        // Also after an error.
        leaving.cancel();
        let ending = Ending {
            grace: self.grace,
            wind_up: self.wind_up,
            drop_handlers: &shared.drop_handlers,
            give_up: &shared.give_up,
        };
        ending.wind_down(&shared.held, &jobs).await;
        taken
    }
}

/// Tells handlers what nodes say, for ever. Each connection reads all that is kept: what is heard twice has the same effect.
async fn hear(shared: Arc<Shared>, link: Link) {
    let channel = shared.channels.topic(&Topic::Cancel);
    let mut after = START.to_owned();
    let mut backoff = Backoff::endless();
    let mut complaints = Complaints::default();
    loop {
        match link.read(&channel, &after, CANCELS_MAX, WAIT).await {
            Ok(entries) => {
                backoff.reset();
                for entry in entries {
                    if let Some(Ok(cancel)) = entry.data.as_deref().map(read::<JobCancel>) {
                        shared.take_cancel(&cancel);
                    }
                    after = entry.id;
                }
            }
            Err(failure) => {
                if complaints.are_due(shared.held.now()) {
                    tracing::warn!(worker = %shared.worker, %failure, "cannot hear cancellations");
                }
                START.clone_into(&mut after);
                tokio::time::sleep(backoff.pause(None)).await;
            }
        }
    }
}

impl Shared {
    fn take_cancel(&self, cancel: &JobCancel) {
        if cancel.worker_id != self.worker {
            return;
        }
        let stop = match cancel.reason {
            CancelCause::Requested => Stop::CancelRequested,
            CancelCause::Stale => Stop::LeaseLost,
        };
        self.held.tell(cancel.history_id, stop);
    }

    fn forget(&self, lease: LeaseId) {
        lock(&self.lengths).remove(&lease);
        self.held.remove(lease);
    }
}

impl fmt::Debug for BusWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may have a password.
        f.debug_struct("BusWorker")
            .field("domain", &self.domain)
            .field("queues", &self.queues)
            .field("name", &self.name)
            .field("concurrency", &self.concurrency)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn options_out_of_range_are_refused_with_a_sentence() {
        let worker = || BusWorker::new("redis://127.0.0.1:1", ["mail"]);
        let wrong = [
            worker().concurrency(0),
            worker().name("no spaces"),
            worker().domain("a.b"),
            BusWorker::new("redis://127.0.0.1:1", Vec::<String>::new()),
            BusWorker::new("http://127.0.0.1:1", ["mail"]),
            BusWorker::new("rediss://127.0.0.1:1", ["mail"]),
        ];
        for worker in wrong {
            let shown = format!("{worker:?}");
            let refused = worker.run(CancellationToken::new(), async |_: Job| Ok(())).await.unwrap_err();
            assert_eq!(refused.code(), "invalid", "{shown}");
        }
    }
}
