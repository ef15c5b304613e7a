//! The engine on a Redis server, for several nodes.
//!
//! - One file, `server.rs`, knows the driver: connections, timeouts, what a failure means.
//! - The journal is a stream, its end is noted a second time in a hash, and one script, or one transaction under a watch,
//!   appends to both.
//! - Snapshots, cells and logs are hashes. Nothing has a time to live in Redis.
//!
//! **Invariant:** every change of more than one key is one script, or one transaction. A script that answers with an error has
//! changed nothing, even if the server refuses any of its commands: a user may lose any right at any time. So at most one
//! command is run before it is known whether the server accepts it, and it is the first that changes anything. Those
//! after it were tried before it, in a form that changes nothing; or what was done is undone by a command that was done.
//! A server without room refuses only the first command of a script that could need some.
//!
//! **Invariant:** nothing is sent twice by this engine itself, except a script that the server said it does not know and
//! so has not run. A lost answer is reported to the caller.

mod address;
mod bus;
mod durability;
mod journal;
mod keys;
mod logs;
mod register;
mod rights;
mod server;
mod snapshots;
mod watch;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use self::journal::RedisJournal;
use self::keys::Keys;
use self::logs::RedisLogs;
use self::register::RedisRegister;
use self::server::Server;
use crate::bus::Bus;
use crate::{Error, Journal, JournalId, Logs, Register, Shared};

pub use self::bus::RedisBus;

/// A Redis server as a place for one domain.
pub struct RedisPlace {
    server: Arc<Server>,
    keys: Arc<Keys>,
    /// The journal that was found first: another one in its place is not ours.
    journal: OnceLock<JournalId>,
    warnings: Vec<String>,
}

impl RedisPlace {
    /// Connects to `redis://[user][:password@]host[:port][/database]`, or with TLS to `rediss://…`, which may name the
    /// file of an authority with `?ca=FILE`, and asks what the server promises. Every later call waits at most `timeout` for each part of its answer.
    ///
    /// # Errors
    /// When the URL is wrong, no server answers, the server does not let us in, it is a replica, or the user lacks a right.
    pub fn connect(url: &str, timeout: Duration) -> Result<Self, Error> {
        let server = Arc::new(Server::connect(url, timeout)?);
        let (warnings, keys) = (durability::warnings(&server)?, Arc::<Keys>::default());
        rights::ENGINE.check_keys(&server, &keys.patterns())?;
        rights::ENGINE.check(&server, &keys.probe())?;
        Ok(Self { server, keys, journal: OnceLock::new(), warnings })
    }

    /// The same server for another domain than `default`: nothing is shared between domains.
    ///
    /// # Errors
    /// When the name cannot be part of a key.
    pub fn in_domain(self, domain: &str) -> Result<Self, Error> {
        let keys = Arc::new(Keys::of(domain)?);
        rights::ENGINE.check_keys(&self.server, &keys.patterns())?;
        Ok(Self { keys, journal: OnceLock::new(), ..self })
    }
}

impl Shared for RedisPlace {
    fn journal(&self) -> Result<Box<dyn Journal>, Error> {
        let known = self.journal.get().copied();
        let journal = RedisJournal::open(Arc::clone(&self.server), Arc::clone(&self.keys), known)?;
        // Two that open at once find the same one.
        let _ = self.journal.set(journal.id());
        Ok(Box::new(journal))
    }

    fn register(&self) -> Arc<dyn Register> {
        Arc::new(RedisRegister::new(Arc::clone(&self.server), Arc::clone(&self.keys)))
    }

    fn logs(&self) -> Arc<dyn Logs> {
        Arc::new(RedisLogs::new(Arc::clone(&self.server), Arc::clone(&self.keys)))
    }

    fn bus(&self) -> Result<Option<Arc<dyn Bus>>, Error> {
        let bus = RedisBus::on(Arc::clone(&self.server), Arc::clone(&self.keys))?;
        Ok(Some(Arc::new(bus)))
    }

    fn place(&self) -> String {
        format!("{}, domain {}", self.server.place(), self.keys.domain())
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }
}

impl fmt::Debug for RedisPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisPlace").field(&self.place()).finish()
    }
}
