//! The contracts on a database server: MySQL or MariaDB (feature `mysql`), and PostgreSQL (feature `postgres`).
//!
//! - `address`: a URL without its secrets. `session`: one connection, its timeouts, and what an answer proves.
//! - `server`: the one place that knows two kinds of servers; `mysql` and `postgres` are what differs.
//! - `schema`: the tables. `rights`: whether the user may use them. `journal`, `snapshots`, `register`, `logs`: the
//!   contracts on them.
//!
//! **Invariant:** every race is decided by one statement, and the server's answer to it. An answer that did not
//! come, or does not say what became of the statement, is [`Unknown`](crate::Appended::Unknown).

mod address;
mod deletion;
mod fault;
mod journal;
mod logs;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
mod register;
mod rights;
mod schema;
mod server;
mod session;
mod snapshots;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{Clock as _, Error, Journal, LogThrottle, Logs, Register, Shared, SystemClock};

use address::Address;
use fault::refuse;
use journal::SqlJournal;
use logs::SqlLogs;
use register::SqlRegister;
use server::Server;
use session::Session;

/// The longest name of a domain, in bytes. It is part of every primary key.
const DOMAIN_BYTES_MAX: usize = 64;

/// The longest that a change of tables may take: it may write an index of all that is there.
const SCHEMA_TIMEOUT: Duration = Duration::from_secs(600);

/// A database on a server, and a domain in it. Every handle has a connection of its own.
pub struct SqlPlace {
    home: Arc<Home>,
    register: Arc<SqlRegister>,
    logs: Arc<SqlLogs>,
    warnings: Vec<String>,
}

/// Where everything of one domain is.
struct Home {
    server: Server,
    address: Address,
    domain: String,
    timeout: Duration,
    /// Writes whose outcome is not known.
    outcomes: LogThrottle,
}

impl Home {
    /// The outcome of a write is unknown.
    fn unknown(&self, doing: &str, why: &str) {
        let reason = format!("{}: {}", self.address.place(), self.address.scrub(why));
        self.outcomes.failed(SystemClock.boot(), doing, &reason);
    }

    /// What became of a write is known.
    fn settled(&self, doing: &str) {
        self.outcomes.succeeded(SystemClock.boot(), doing);
    }
}

impl SqlPlace {
    /// Connects to the database of a URL, `mysql://user:password@host:port/database` or `postgres://…`, and makes
    /// the tables if they are not there. No call takes longer than `timeout`.
    ///
    /// # Errors
    /// When the server cannot be reached, says no, only reads, has tables of a newer version, or lets the user do less
    /// than is needed.
    pub fn connect(url: &str, timeout: Duration) -> Result<Self, Error> {
        Self::connect_to(url, "default", timeout)
    }

    /// The same, for a domain of another name.
    ///
    /// # Errors
    /// As for [`SqlPlace::connect`].
    pub fn connect_to(url: &str, domain: &str, timeout: Duration) -> Result<Self, Error> {
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        if domain.is_empty() || domain.len() > DOMAIN_BYTES_MAX || !domain.bytes().all(fits) {
            let why = format!("a domain is 1 to {DOMAIN_BYTES_MAX} of a-z, 0-9, - and _");
            return Err(refuse("connect", "domain", why));
        }
        let address = Address::parse(url).map_err(|why| refuse("connect", "database url", why))?;
        let place = address.place().to_owned();
        let server = Server::new(url, &address).map_err(|why| refuse("connect", &place, why))?;
        let home = Arc::new(Home {
            server,
            address,
            domain: domain.to_owned(),
            timeout,
            outcomes: LogThrottle::for_outcomes(),
        });
        let session = Session::new(&home);
        rights::check(&session)?;
        schema::prepare(&session, &Session::patient(&home, SCHEMA_TIMEOUT))
            .map_err(|error| rights::explain(&session, error))?;
        let warnings = session.warnings()?;
        let register = Arc::new(SqlRegister::new(session));
        let logs = Arc::new(SqlLogs::new(Session::new(&home)));
        Ok(Self { home, register, logs, warnings })
    }
}

impl Shared for SqlPlace {
    fn journal(&self) -> Result<Box<dyn Journal>, Error> {
        Ok(Box::new(SqlJournal::open(&self.home)?))
    }

    fn register(&self) -> Arc<dyn Register> {
        Arc::<SqlRegister>::clone(&self.register)
    }

    fn logs(&self) -> Arc<dyn Logs> {
        Arc::<SqlLogs>::clone(&self.logs)
    }

    fn place(&self) -> String {
        self.home.address.place().to_owned()
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }
}

impl fmt::Debug for SqlPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (place, domain) = (self.home.address.place(), &self.home.domain);
        f.debug_struct("SqlPlace").field("place", &place).field("domain", domain).finish_non_exhaustive()
    }
}
