//! A worker that divides the shards of a service with others.
//!
//! One change, file by file: `zmq` or `http` receives it ([`link`]), `book` finds out what it means, and this file calls
//! the callback, and reports when it has returned.

mod book;
mod http;
mod link;
mod shard;
#[cfg(test)]
mod tests;
mod zmq;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::Name;
use orchestrix_core::limits::SHARDS_MAX;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use self::book::{Book, Change};
use self::http::Http;
use self::link::{Heard, Link, Who};
use self::shard::ShardLease;
use self::zmq::Zmq;
use crate::addresses::split;
use crate::client::Client;
use crate::clock::{BootClock, Clock};
use crate::error::Error;
use crate::random;
use crate::retry::Backoff;
use crate::worker::default_name;

pub use self::shard::Shard;

/// How long a leaving worker waits for the answer. Without one, others wait for the end of its lease.
const LAST_WORDS: Duration = Duration::from_secs(2);

type Callback = Arc<dyn Fn(Vec<Shard>) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// A worker of a service that divides numbered shards among its workers. Set what differs from the defaults, then
/// [`run`](ShardWorker::run) it.
///
/// No two workers serve one shard at a time, as long as each follows this rule: all work on a shard happens while
/// [`Shard::is_held`], and `on_revoked` returns when nothing is done with it any more. What could still be on its way
/// then, is refused by its smaller [token](Shard::token).
///
/// ```no_run
/// # async fn example() -> Result<(), orchestrix_client::Error> {
/// use orchestrix_client::ShardWorker;
/// use tokio_util::sync::CancellationToken;
///
/// let stop = CancellationToken::new();
/// ShardWorker::new("tcp://127.0.0.1:5555", "orders", 10)
///     .name("worker-1")
///     .on_assigned(|shards| async move {
///         for shard in shards {
///             tokio::spawn(async move {
///                 while shard.is_held() {
///                     // One piece of work; then look again.
///                 }
///             });
///         }
///     })
///     .on_revoked(|shards| async move {
///         // Wait here until all work on them has ended.
///         tracing::info!(?shards, "stopped");
///     })
///     .run(stop)
///     .await
/// # }
/// ```
#[must_use = "a worker does nothing until it is run"]
pub struct ShardWorker {
    address: String,
    service: String,
    shards: u32,
    name: Option<String>,
    capacity: Option<u32>,
    group: Option<String>,
    token: Option<String>,
    heartbeat: Option<Duration>,
    wind_up: Option<Duration>,
    clock: Arc<dyn Clock>,
    on_assigned: Callback,
    on_revoked: Callback,
}

impl ShardWorker {
    /// A worker of a service that has so many shards, as far as it knows: the coordinator counts a change of that, and
    /// not what is repeated. The address is `http://…` or, for ZeroMQ, `tcp://…`, or several of one kind with commas
    /// between.
    pub fn new(address: impl Into<String>, service: impl Into<String>, shards: u32) -> Self {
        let nothing: Callback = Arc::new(|_| Box::pin(std::future::ready(())));
        Self {
            address: address.into(),
            service: service.into(),
            shards,
            name: None,
            capacity: None,
            group: None,
            token: None,
            heartbeat: None,
            wind_up: None,
            clock: Arc::new(BootClock),
            on_assigned: Arc::clone(&nothing),
            on_revoked: nothing,
        }
    }

    /// The name that no other worker of the service has; by default made of host, process and random characters. A worker
    /// that registers again under its old name gets shards when the lease of the earlier process has expired.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How many shards it takes at most.
    pub fn capacity(mut self, shards: u32) -> Self {
        self.capacity = Some(shards);
        self
    }

    /// The group that the service belongs to.
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// The bearer token.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// The time between two heartbeats; by default a third of the lease that the coordinator grants.
    pub fn heartbeat(mut self, every: Duration) -> Self {
        self.heartbeat = Some(every);
        self
    }

    /// How long before the end of its lease a worker without an answer calls `on_revoked`; by default a tenth of the
    /// lease. Give it as long as `on_revoked` takes.
    pub fn wind_up(mut self, wind_up: Duration) -> Self {
        self.wind_up = Some(wind_up);
        self
    }

    /// The clock that the lease is measured with.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Called with shards that may be served from now on. Heartbeats go on while it runs.
    pub fn on_assigned<F, R>(mut self, assigned: F) -> Self
    where
        F: Fn(Vec<Shard>) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        self.on_assigned = Arc::new(move |shards| Box::pin(assigned(shards)));
        self
    }

    /// Called with shards that must not be served any more. **When it returns, nothing is done with them**: only then
    /// does the coordinator learn that they were released, and grants them to others. Heartbeats go on while it runs.
    /// It is called after `on_assigned` of the same shards has returned.
    pub fn on_revoked<F, R>(mut self, revoked: F) -> Self
    where
        F: Fn(Vec<Shard>) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        self.on_revoked = Arc::new(move |shards| Box::pin(revoked(shards)));
        self
    }

    /// Serves until `stop` fires; then gives everything up and goes. A coordinator that cannot be reached is asked
    /// again, for ever; at the end of its lease the worker gives up its shards, and gets these or others when the
    /// coordinator is there again. So it does when another process has its name, after longer and longer pauses.
    ///
    /// # Errors
    /// When an option is not valid, or the coordinator refuses this worker.
    ///
    /// # Panics
    /// When a callback does: whether the shards are served is not known then, so others get them when the lease expires.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Error> {
        let link = self.link()?;
        let trust = Arc::new(ShardLease::new(Arc::clone(&self.clock)));
        let book = Book::new(trust, self.heartbeat, self.wind_up);
        let running = Running {
            link,
            book,
            callbacks: JoinSet::new(),
            backoff: Backoff::endless(),
            clock: self.clock,
            on_assigned: self.on_assigned,
            on_revoked: self.on_revoked,
        };
        running.run(stop).await
    }

    fn link(&self) -> Result<Link, Error> {
        let named = |what: &str, text: &str| {
            Name::new(text).map_err(|why| Error::invalid(format!("{what} {text:?}: {why}")))
        };
        if !(1..=SHARDS_MAX).contains(&self.shards) {
            return Err(Error::invalid(format!(
                "a service has 1 to {SHARDS_MAX} shards, not {}",
                self.shards
            )));
        }
        let who = Arc::new(Who {
            service: named("service", &self.service)?,
            worker: named("worker", &self.name.clone().unwrap_or_else(default_name))?,
            session: named("session", &random::id())?,
            shards: self.shards,
            capacity: self.capacity,
            group: self.group.as_deref().map(|group| named("group", group)).transpose()?,
        });
        if !self.address.trim_start().starts_with("tcp://") {
            let client = Client::builder(&self.address);
            let client = match &self.token {
                Some(token) => client.token(token),
                None => client,
            };
            return Ok(Link::Http(Http::new(client.build()?, who)));
        }
        let addresses = split(&self.address).iter().map(|address| tcp(address)).collect::<Result<_, _>>()?;
        Ok(Link::Zmq(Zmq::new(addresses, who, self.token.clone())))
    }
}

/// Host and port of an address as ZeroMQ writes it.
fn tcp(address: &str) -> Result<String, Error> {
    let place = address.trim().strip_prefix("tcp://").filter(|place| {
        let parts = place.rsplit_once(':');
        parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
    });
    let wrong = || {
        Error::invalid(format!(
            "{address:?} is not an address for ZeroMQ: write it like tcp://127.0.0.1:5555"
        ))
    };
    place.map(str::to_owned).ok_or_else(wrong)
}

impl fmt::Debug for ShardWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardWorker")
            .field("address", &self.address)
            .field("service", &self.service)
            .field("shards", &self.shards)
            .field("name", &self.name)
            .field("capacity", &self.capacity)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

/// A worker at work.
struct Running {
    link: Link,
    book: Book,
    /// Those that run.
    callbacks: JoinSet<Change>,
    backoff: Backoff,
    clock: Arc<dyn Clock>,
    on_assigned: Callback,
    on_revoked: Callback,
}

/// What happened next.
enum Next {
    Heard(Heard),
    Returned(Result<Change, JoinError>),
    Stop,
    Time,
}

impl Running {
    async fn run(mut self, stop: CancellationToken) -> Result<(), Error> {
        let outcome = loop {
            self.step();
            match self.next(Some(&stop)).await {
                Next::Heard(heard) => {
                    if let Err(error) = self.take(heard) {
                        break Err(error);
                    }
                }
                Next::Returned(returned) => self.returned(returned),
                Next::Stop => break Ok(()),
                Next::Time => {}
            }
        };
        self.leave(outcome.is_ok()).await;
        outcome
    }

    /// Does what is due.
    fn step(&mut self) {
        let now = self.clock.now();
        for change in self.book.changes(now) {
            self.call(change);
        }
        if self.book.is_overdue(now) {
            tracing::warn!("no answer in time; trying another connection");
            self.link.hang_up();
            self.book.disconnected(Duration::ZERO, now);
        }
        if now >= self.book.speak_at
            && let Some(request) = self.book.speak(now)
        {
            self.link.say(request);
        }
    }

    fn call(&mut self, change: Change) {
        let callback = match &change {
            Change::Assigned(_) => &self.on_assigned,
            Change::Revoked(_) => &self.on_revoked,
        };
        let calling = callback(change.shards().to_vec());
        self.callbacks.spawn(async move {
            calling.await;
            change
        });
    }

    async fn next(&mut self, stop: Option<&CancellationToken>) -> Next {
        let now = self.clock.now();
        let wait = self.book.next(now).saturating_sub(now);
        let stopped = async {
            match stop {
                Some(stop) => stop.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stopped => Next::Stop,
            Some(returned) = self.callbacks.join_next() => Next::Returned(returned),
            heard = self.link.hear() => Next::Heard(heard),
            () = tokio::time::sleep(wait) => Next::Time,
        }
    }

    /// Applies an answer of the coordinator.
    ///
    /// # Errors
    /// When the answer will always be the same.
    fn take(&mut self, heard: Heard) -> Result<(), Error> {
        let now = self.clock.now();
        match heard {
            Heard::Assigned { assignment, answers } => {
                self.backoff.reset();
                self.book.hear(&assignment, answers, now);
            }
            Heard::Hint(generation) => self.book.hint(generation, now),
            Heard::Unanswered { number, error } => {
                let pause = self.pause(error)?;
                self.book.unanswered(number, pause, now);
            }
            Heard::Disconnected(error) => {
                let pause = self.pause(error)?;
                self.book.disconnected(pause, now);
            }
            Heard::Refused(error) => {
                let pause = self.pause(error)?;
                // Another address may do better.
                self.link.hang_up();
                self.book.disconnected(pause, now);
            }
        }
        Ok(())
    }

    fn pause(&mut self, error: Error) -> Result<Duration, Error> {
        tracing::debug!(%error, "the coordinator did not answer");
        self.backoff.next(error)
    }

    fn returned(&mut self, returned: Result<Change, JoinError>) {
        match returned {
            Ok(change) => self.book.returned(&change, self.clock.now()),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => unreachable!("nobody aborts a callback while the worker runs"),
            },
        }
    }

    /// Gives everything up, and reports it if the coordinator expects that.
    async fn leave(mut self, is_welcome: bool) {
        self.book.leave(self.clock.now());
        // Who still serves says so until it does not.
        while !self.book.serves_nothing() {
            self.step();
            match self.next(None).await {
                Next::Heard(heard) => drop(self.take(heard)),
                Next::Returned(returned) => self.returned(returned),
                Next::Stop | Next::Time => {}
            }
        }
        if !is_welcome {
            return;
        }
        let Some(request) = self.book.speak(self.clock.now()) else { return };
        let number = request.number;
        self.link.say(request);
        let answered = async {
            loop {
                match self.link.hear().await {
                    Heard::Assigned { answers, assignment }
                        if answers == Some(number) || assignment.fenced =>
                    {
                        return;
                    }
                    Heard::Unanswered { .. } | Heard::Disconnected(_) | Heard::Refused(_) => return,
                    Heard::Assigned { .. } | Heard::Hint(_) => {}
                }
            }
        };
        // A coordinator that did not get it waits for the end of our lease.
        let _ = tokio::time::timeout(LAST_WORDS, answered).await;
    }
}
