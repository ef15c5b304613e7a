//! A worker: leases tasks, runs a handler for each, and stops in an orderly way.
//!
//! **Invariant:** a handler runs only while its lease is trusted ([`held`]); when it is not, the handler gets a signal
//! to stop, and is dropped if it does not.

pub(crate) mod complaints;
mod completer;
pub(crate) mod execute;
mod heart;
pub(crate) mod held;
pub(crate) mod job;
pub(crate) mod job_log;
pub(crate) mod leasing;
mod log_sender;
mod notice;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use orchestrix_core::Name;
use orchestrix_core::limits::{BATCH_ITEMS_MAX, LEASE_MS_MAX, LEASE_MS_MIN, WAIT_MS_MAX};
use orchestrix_core::wire::Leased;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::completer::{Completer, Completion};
use self::heart::Heart;
use self::held::{Held, lock};
use self::leasing::Leasing;
use crate::client::Client;
use crate::clock::{BootClock, Clock};
use crate::error::Error;
use crate::random;
use crate::retry::Backoff;

pub use self::held::Stop;
pub use self::job::{Job, JobError};
pub use self::notice::{Notice, Noticed};

/// How long the report of outcomes may take after the last handler ended. Unreported tasks are left to
/// the expiry of their leases.
const LAST_OUTCOMES: Duration = Duration::from_secs(10);

/// A call waits this many lease lengths at most. `waited_ms` is rounded down by 2 %, because clocks differ, and
/// a lease counts from there: after a wait that is too long, none of a short lease would be left.
const WAIT_LEASES_MAX: u64 = 10;

/// A worker of some queues. Set what differs from the defaults, then [`run`](Worker::run) it.
#[must_use = "a worker does nothing until it is run"]
pub struct Worker {
    client: Client,
    queues: Vec<String>,
    name: Option<String>,
    concurrency: usize,
    lease: Duration,
    wait: Duration,
    grace: Duration,
    wind_up: Duration,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Fn(Notice) + Send + Sync>,
}

/// What the parts of a running worker have in common.
pub(crate) struct Shared {
    client: Client,
    held: Arc<Held>,
    observer: Arc<dyn Fn(Notice) + Send + Sync>,
    /// Taken away when no more completions can come.
    completions: Mutex<Option<mpsc::Sender<Completion>>>,
    /// Handlers that have not stopped by now are dropped.
    drop_handlers: CancellationToken,
    /// Outcomes that could not be reported by now are dropped.
    give_up: CancellationToken,
}

impl Worker {
    /// A worker that runs one task at a time, under leases of 60 s: twice the default time of a leader, so that they outlast
    /// a leader that is killed.
    pub fn new<Q: Into<String>>(client: Client, queues: impl IntoIterator<Item = Q>) -> Self {
        Self {
            client,
            queues: queues.into_iter().map(Into::into).collect(),
            name: None,
            concurrency: 1,
            lease: Duration::from_secs(60),
            wait: Duration::from_secs(20),
            grace: Duration::from_secs(30),
            wind_up: Duration::from_secs(5),
            clock: Arc::new(BootClock),
            observer: Arc::new(|_| {}),
        }
    }

    /// The name that the coordinator lists; by default made of host, process and random characters.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How many tasks run at once, 1 to 1,000.
    pub fn concurrency(mut self, tasks: usize) -> Self {
        self.concurrency = tasks;
        self
    }

    /// The length of a lease: how soon another worker gets the task when this worker is gone. It is renewed every third of
    /// that. To outlast a leader that is killed it has to be at least twice as long as the leader's time (`--leader-ttl`).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long one request waits for a task, up to a minute and to ten lease lengths.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
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

    /// Called for everything that happens to the tasks of this worker. Must not block.
    pub fn observe(mut self, observer: impl Fn(Notice) + Send + Sync + 'static) -> Self {
        self.observer = Arc::new(observer);
        self
    }

    /// Leases tasks and runs `handler` for each, until `stop` fires; then lets running handlers end for the
    /// grace, tells them to stop, and gives their tasks back.
    ///
    /// What a handler returns is the result of the task (`null` means none). A handler that fails or panics
    /// fails its attempt. A handler must not block its thread: only one that awaits can be stopped.
    ///
    /// # Errors
    /// When an option is not valid or the coordinator refuses this worker. One that cannot be reached is
    /// asked again, for ever.
    pub async fn run<H, F, T>(self, stop: CancellationToken, handler: H) -> Result<(), Error>
    where
        H: Fn(Job) -> F + Send + Sync + 'static,
        F: Future<Output = Result<T, JobError>> + Send + 'static,
        T: Serialize + Send + 'static,
    {
        let request = self.check()?;
        let held = Arc::new(Held::new(Arc::clone(&self.clock)));
        let (completions, completed) = mpsc::channel(BATCH_ITEMS_MAX);
        let shared = Arc::new(Shared {
            client: self.client.clone(),
            held: Arc::clone(&held),
            observer: Arc::clone(&self.observer),
            completions: Mutex::new(Some(completions)),
            drop_handlers: CancellationToken::new(),
            give_up: CancellationToken::new(),
        });
        let completer = Completer {
            completions: completed,
            client: self.client.clone(),
            held: Arc::clone(&held),
            give_up: shared.give_up.clone(),
        };
        let completing = tokio::spawn(completer.run());
        let heart = Heart {
            client: self.client.clone(),
            worker: request.worker.clone(),
            held: Arc::clone(&held),
            lease: self.lease,
        };
        let alive = CancellationToken::new();
        let background = TaskTracker::new();
        background.spawn(alive.clone().run_until_cancelled_owned({
            let heart = heart.clone();
            async move { heart.run().await }
        }));
        background.spawn(alive.clone().run_until_cancelled_owned(async move { held.watch().await }));
        // Also when this future is dropped, nothing goes on behind the owner's back.
        let _end_background = alive.drop_guard();
        let _end_handlers = shared.drop_handlers.clone().drop_guard();

        let jobs = TaskTracker::new();
        let leasing = Leasing { shared: Arc::clone(&shared), heart, request, concurrency: self.concurrency };
        let leased = leasing.run(&stop, &jobs, Arc::new(handler)).await;
        let ending = Ending {
            grace: self.grace,
            wind_up: self.wind_up,
            drop_handlers: &shared.drop_handlers,
            give_up: &shared.give_up,
        };
        ending.wind_down(&shared.held, &jobs).await;
        lock(&shared.completions).take();
        drop(completing.await);
        leased
    }

    fn check(&self) -> Result<orchestrix_core::wire::LeaseQueues, Error> {
        let (queues, worker) = who(&self.queues, self.name.as_deref())?;
        let lease_ms = millis(self.lease);
        if !(LEASE_MS_MIN..=LEASE_MS_MAX).contains(&lease_ms) {
            return Err(Error::invalid(format!(
                "a lease lasts {LEASE_MS_MIN} ms to 24 h, not {:?}",
                self.lease
            )));
        }
        Ok(orchestrix_core::wire::LeaseQueues {
            queues,
            worker,
            max: 1,
            lease_ms,
            wait_ms: millis(self.wait).min(WAIT_MS_MAX).min(WAIT_LEASES_MAX * lease_ms),
            request_id: None,
            capacity: Some(capacity(self.concurrency)?),
        })
    }
}

/// How a worker comes to its end.
pub(crate) struct Ending<'a> {
    pub(crate) grace: Duration,
    pub(crate) wind_up: Duration,
    pub(crate) drop_handlers: &'a CancellationToken,
    pub(crate) give_up: &'a CancellationToken,
}

impl Ending<'_> {
    /// Lets handlers end, then tells them to, then drops them, then tells what became of them.
    pub(crate) async fn wind_down(&self, held: &Held, jobs: &TaskTracker) {
        jobs.close();
        if tokio::time::timeout(self.grace, jobs.wait()).await.is_ok() {
            return;
        }
        held.tell_all(Stop::Shutdown);
        if tokio::time::timeout(self.wind_up, jobs.wait()).await.is_ok() {
            return;
        }
        self.drop_handlers.cancel();
        if tokio::time::timeout(LAST_OUTCOMES, jobs.wait()).await.is_ok() {
            return;
        }
        self.give_up.cancel();
        jobs.wait().await;
    }
}

impl Shared {
    fn notice(&self, leased: &Leased, what: Noticed) {
        (self.observer)(Notice::new(leased, what));
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("client", &self.client)
            .field("queues", &self.queues)
            .field("name", &self.name)
            .field("concurrency", &self.concurrency)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

/// Asks again while that may help, until `end`.
async fn persist<T, F>(end: &CancellationToken, ask: impl Fn() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut backoff = Backoff::endless();
    loop {
        let asked = tokio::select! {
            biased;
            asked = ask() => asked,
            () = end.cancelled() => return Err(Error::invalid("the worker stopped before the coordinator answered")),
        };
        let error = match asked {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let wait = backoff.next(error.clone())?;
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = end.cancelled() => return Err(error),
        }
    }
}

/// Queues and name of a worker, checked.
pub(crate) fn who(queues: &[String], name: Option<&str>) -> Result<(Vec<Name>, Name), Error> {
    let queue =
        |queue: &String| Name::new(queue).map_err(|why| Error::invalid(format!("queue {queue:?}: {why}")));
    let queues = queues.iter().map(queue).collect::<Result<Vec<_>, _>>()?;
    if queues.is_empty() {
        return Err(Error::invalid("a worker needs at least one queue"));
    }
    let name = name.map_or_else(default_name, str::to_owned);
    let worker = Name::new(&name).map_err(|why| Error::invalid(format!("worker {name:?}: {why}")))?;
    Ok((queues, worker))
}

/// How many tasks run at once, checked.
pub(crate) fn capacity(concurrency: usize) -> Result<u32, Error> {
    let capacity = u32::try_from(concurrency).ok().filter(|_| (1..=BATCH_ITEMS_MAX).contains(&concurrency));
    capacity
        .ok_or_else(|| Error::invalid(format!("concurrency is 1 to {BATCH_ITEMS_MAX}, not {concurrency}")))
}

/// Host, process and random characters: two workers of one host do not meet, nor do two of one process.
pub(crate) fn default_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' };
    let host: String = host.chars().map(plain).take(64).collect();
    let host = if host.is_empty() { "worker".to_owned() } else { host };
    format!("{host}-{}-{:06x}", std::process::id(), random::number() & 0x00ff_ffff)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker() -> Worker {
        Worker::new(Client::new("http://127.0.0.1:1").unwrap(), ["mail"])
    }

    #[test]
    fn a_worker_without_a_name_gets_a_valid_one_of_its_own() {
        let (first, second) = (worker().check().unwrap(), worker().check().unwrap());
        assert_ne!(first.worker, second.worker);
        assert!(first.worker.as_str().contains(&std::process::id().to_string()));
    }

    #[test]
    fn options_out_of_range_are_refused_with_a_sentence() {
        let wrong = [
            worker().concurrency(0),
            worker().concurrency(1_001),
            worker().lease(Duration::from_millis(9)),
            worker().lease(Duration::from_secs(86_401)),
            worker().name("no spaces"),
            Worker::new(Client::new("http://h").unwrap(), Vec::<String>::new()),
        ];
        for worker in wrong {
            assert_eq!(worker.check().unwrap_err().code(), "invalid", "{worker:?}");
        }
    }

    #[test]
    fn a_short_lease_is_not_used_up_by_a_long_wait() {
        let waits = |lease_ms| worker().lease(Duration::from_millis(lease_ms)).check().unwrap().wait_ms;
        assert_eq!((waits(100), waits(1_999), waits(2_000)), (1_000, 19_990, 20_000));
    }

    #[test]
    fn a_worker_announces_how_much_it_can_run() {
        assert_eq!(worker().concurrency(8).check().unwrap().capacity, Some(8));
    }
}
