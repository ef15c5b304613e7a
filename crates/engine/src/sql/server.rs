//! A server of one kind or the other: the one place where the two kinds meet.

use std::time::Duration;

use super::address::{Address, Kind};
use super::fault::Failure;
#[cfg(feature = "mysql")]
use super::mysql;
#[cfg(feature = "postgres")]
use super::postgres;

/// What a statement is given.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    Int(i64),
    Text(&'a str),
    Bytes(&'a [u8]),
}

/// What a column of an answer holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Column {
    Int,
    Text,
    Bytes,
}

/// One field of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Int(i64),
    Text(String),
    Bytes(Vec<u8>),
}

/// One row of an answer, with the columns that were asked for.
#[derive(Debug)]
pub(super) struct Row(pub(super) std::vec::IntoIter<Field>);

impl Row {
    pub(super) fn int(&mut self) -> i64 {
        match self.0.next() {
            Some(Field::Int(number)) => number,
            other => panic!("a number was asked for, not {other:?}"),
        }
    }

    pub(super) fn text(&mut self) -> String {
        match self.0.next() {
            Some(Field::Text(text)) => text,
            other => panic!("a text was asked for, not {other:?}"),
        }
    }

    pub(super) fn bytes(&mut self) -> Vec<u8> {
        match self.0.next() {
            Some(Field::Bytes(bytes)) => bytes,
            other => panic!("bytes were asked for, not {other:?}"),
        }
    }
}

/// The statements that the two kinds write differently. Those that have parameters have the same ones in the same
/// order, as `?`.
pub(super) struct Statements {
    pub(super) has_schema: &'static str,
    /// In their newest form.
    pub(super) tables: &'static [&'static str],
    /// What brings tables of version 1 to version 2, then those to version 3, and so on. Does no harm twice.
    pub(super) upgrades: &'static [&'static [&'static str]],
    /// Around all changes of tables. The lock answers 1.
    pub(super) schema_begin: &'static [&'static str],
    pub(super) schema_lock: &'static str,
    pub(super) schema_end: &'static str,
    pub(super) schema_undo: &'static str,
    /// Answers the number of rows: 1 if it was written.
    pub(super) append_first: &'static str,
    pub(super) append_next: &'static str,
    /// Answers the number of rows: 1 if it was written.
    pub(super) append_log: &'static str,
    pub(super) claim_first: &'static str,
    pub(super) claim_next: &'static str,
    /// Everything before the condition.
    pub(super) cells: &'static str,
}

/// A kind of server, and how to reach one.
pub(super) enum Server {
    #[cfg(feature = "mysql")]
    MySql(mysql::Target),
    #[cfg(feature = "postgres")]
    Postgres(postgres::Target),
}

/// A connection that is set up.
pub(super) enum Connection {
    #[cfg(feature = "mysql")]
    MySql(Box<mysql::Connected>),
    #[cfg(feature = "postgres")]
    Postgres(Box<postgres::Connected>),
}

/// Hears of appends, where the server tells of them.
pub(super) enum Listener {
    #[cfg(feature = "mysql")]
    None,
    #[cfg(feature = "postgres")]
    Postgres(Box<postgres::Listening>),
}

impl Server {
    pub(super) fn new(url: &str, address: &Address) -> Result<Self, String> {
        match address.kind {
            #[cfg(feature = "mysql")]
            Kind::MySql => mysql::Target::parse(url).map(Self::MySql),
            #[cfg(feature = "postgres")]
            Kind::Postgres => postgres::Target::parse(url).map(Self::Postgres),
            #[cfg(not(all(feature = "mysql", feature = "postgres")))]
            other => Err(format!("this program was built without the engine {other:?}")),
        }
    }

    pub(super) fn statements(&self) -> &'static Statements {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(_) => &mysql::STATEMENTS,
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => &postgres::STATEMENTS,
        }
    }

    /// Connects, and sets up the session so that no statement takes longer than `timeout`.
    pub(super) async fn connect(&self, timeout: Duration) -> Result<Connection, Failure> {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(target) => Ok(Connection::MySql(Box::new(target.connect(timeout).await?))),
            #[cfg(feature = "postgres")]
            Self::Postgres(target) => Ok(Connection::Postgres(Box::new(target.connect(timeout).await?))),
        }
    }

    pub(super) async fn listen(&self) -> Result<Listener, Failure> {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(_) => Ok(Listener::None),
            #[cfg(feature = "postgres")]
            Self::Postgres(target) => Ok(Listener::Postgres(Box::new(target.listen().await?))),
        }
    }
}

impl Listener {
    /// Returns when a batch may have been appended to `domain`. Without notifications, after a while.
    pub(super) async fn heard(&mut self, domain: &str, poll_interval: Duration) -> Result<(), Failure> {
        match self {
            #[cfg(feature = "mysql")]
            Self::None => {
                let _ = domain;
                tokio::time::sleep(poll_interval).await;
                Ok(())
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(listening) => {
                let _ = poll_interval;
                listening.heard(domain).await
            }
        }
    }
}

impl Connection {
    /// Runs a statement; answers how many rows it touched.
    pub(super) async fn execute(&mut self, sql: &str, values: &[Value<'_>]) -> Result<u64, Failure> {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(connected) => connected.execute(sql, values).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(connected) => connected.execute(sql, values).await,
        }
    }

    pub(super) async fn rows(
        &mut self,
        sql: &str,
        values: &[Value<'_>],
        columns: &[Column],
    ) -> Result<Vec<Row>, Failure> {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(connected) => connected.rows(sql, values, columns).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(connected) => connected.rows(sql, values, columns).await,
        }
    }

    /// What makes this server promise less than it could.
    pub(super) async fn warnings(&mut self) -> Result<Vec<String>, Failure> {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(connected) => connected.warnings().await,
            #[cfg(feature = "postgres")]
            Self::Postgres(connected) => connected.warnings().await,
        }
    }

    /// The most bytes of one statement, and the setting that says so.
    pub(super) fn statement_max(&self) -> Option<(usize, &'static str)> {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(connected) => Some((connected.max_allowed_packet, "max_allowed_packet")),
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => None,
        }
    }
}
