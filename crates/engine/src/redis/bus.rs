//! The bus on Redis: a stream for each channel, and a hash with the claims.
//!
//! An offer has the id of its lease in all its streams, and the last one is noted with the claims. A stream remembers its last id, too,
//! also when its entries are gone and after a restart. No call blocks on the server; those that wait look again.
//!
//! **Invariant:** no channel for a job is made but by `bus_publish.lua`, and none is removed whose first entry is of
//! another lease.
//!
//! **Invariant:** a script that is refused midway has published nothing and removed nothing that is needed, and may be
//! repeated.

mod calls;
mod publisher;
mod replies;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;

use super::durability;
use super::keys::Keys;
use super::rights;
use super::server::{Command, Failure, Script, Server};
use crate::bus::{Channels, JobChannel, Queue, Seen, Topic, channels_of};
use crate::{Error, JournalId};

use self::replies::Noting;

macro_rules! script {
    ($name:literal) => {
        Script::new(include_str!(concat!("scripts/bus_", $name, ".lua")))
    };
    (noted $name:literal) => {
        Script::new(concat!(
            include_str!("scripts/bus_noted.lua"),
            include_str!(concat!("scripts/bus_", $name, ".lua"))
        ))
    };
}

static OPEN: Script = script!(noted "open");
static CLAIM: Script = script!(noted "claim");
static CHECK: Script = script!(noted "check");
static PUBLISH: Script = script!(noted "publish");
static CLOSE: Script = script!("close");
static SETTLE: Script = script!("settle");
static READ: Script = script!("read");
static DELETE: Script = script!("delete");
static TRIM: Script = script!("trim");
static LEAVE: Script = script!("leave");
static FIGURES: Script = script!("figures");

/// A connection to a bus on Redis.
pub struct RedisBus {
    server: Arc<Server>,
    keys: Arc<Keys>,
    channels: Channels,
    seen: Arc<Mutex<Seen>>,
    warnings: Vec<String>,
}

impl RedisBus {
    /// Connects to a server that carries nothing but a bus. The URL and the timeout are those of an engine on Redis.
    ///
    /// # Errors
    /// When the URL is wrong, no server answers, the server does not let us in, it is a replica, or the user lacks a right.
    pub fn connect(url: &str, timeout: Duration) -> Result<Self, Error> {
        let server = Arc::new(Server::connect(url, timeout)?);
        let warnings = durability::bus_warnings(&server)?;
        Ok(Self { warnings, ..Self::on(server, Arc::default())? })
    }

    /// The same server for another domain than `default`: nothing is shared between domains.
    ///
    /// # Errors
    /// When the name cannot be part of the name of a channel.
    pub fn in_domain(self, domain: &str) -> Result<Self, Error> {
        let bus = Self::on(self.server, Arc::new(Keys::of(domain)?))?;
        Ok(Self { warnings: self.warnings, ..bus })
    }

    /// On a server that carries an engine, too.
    pub(super) fn on(server: Arc<Server>, keys: Arc<Keys>) -> Result<Self, Error> {
        let channels = channels_of(keys.domain())?;
        let mut every = vec![(keys.bus(), keys.bus())];
        let own = channels.pattern();
        let (queues, topics) = ([Queue::Assigned, Queue::Handoff], topics());
        let names = queues.iter().map(|queue| channels.queue(queue));
        let names = names.chain(topics.iter().map(|topic| channels.topic(topic))).chain([channels.probe()]);
        every.extend(names.map(|name| (own.clone(), name)));
        rights::BUS.check_keys(&server, &every)?;
        rights::BUS.check(&server, &channels.probe())?;
        Ok(Self { server, keys, channels, seen: Arc::default(), warnings: Vec::new() })
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A script about the claims; arguments may follow.
    fn about_claims(&self, script: &'static Script) -> Command {
        script.with(&[self.keys.bus()])
    }

    fn noting(&self, doing: &str, command: &Command, own: JournalId) -> Result<Noting, Error> {
        let answer: Value = self.server.get(doing, command)?;
        self.noted(doing, answer, own)
    }

    fn job(&self, channels: &[JobChannel]) -> Vec<String> {
        channels.iter().map(|channel| self.channels.job(*channel)).collect()
    }

    fn error(&self, doing: &str, failure: Failure) -> Error {
        self.server.error(doing, failure)
    }
}

/// Those that every domain has.
fn topics() -> [Topic; 3] {
    [Topic::Cancel, Topic::WorkerHeartbeat, Topic::CoordinatorHeartbeat]
}

impl fmt::Debug for RedisBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (place, domain) = (self.server.place(), self.keys.domain());
        f.debug_struct("RedisBus").field("place", &place).field("domain", &domain).finish_non_exhaustive()
    }
}
