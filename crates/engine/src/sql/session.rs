//! One connection of a handle: opened when it is needed, closed when an answer is lost or the server refuses, opened again
//! at the next call.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::Error;

use super::Home;
use super::fault::Failure;
use super::server::{Column, Connection, Listener, Row, Value};

/// How often to look for more where the server does not tell. Bounds how late a follower is.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How long to wait for a word before looking all the same: a word may be lost with its connection.
const HEAR_AT_MOST: Duration = Duration::from_secs(1);

/// What there is besides the values in a statement, in bytes: its head, types and lengths. With room to spare.
const STATEMENT_HEAD: usize = 4096;

/// A connection that reconnects. One call at a time.
pub(super) struct Session {
    home: Arc<Home>,
    timeout: Duration,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    connection: Option<Connection>,
    listener: Option<Listener>,
    /// Last, since the others end in it.
    runtime: Option<Runtime>,
}

impl Session {
    pub(super) fn new(home: &Arc<Home>) -> Self {
        Self::patient(home, home.timeout)
    }

    /// For calls that may take longer than others.
    pub(super) fn patient(home: &Arc<Home>, timeout: Duration) -> Self {
        Self { home: Arc::clone(home), timeout, open: Mutex::default() }
    }

    pub(super) fn home(&self) -> &Arc<Home> {
        &self.home
    }

    /// A statement that may write. It is sent once.
    pub(super) fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<u64, Failure> {
        let length: usize = values.iter().map(length).sum();
        self.call(async |connection| {
            if let Some((most, setting)) = connection.statement_max()
                && length + STATEMENT_HEAD > most
            {
                let why =
                    format!("{length} bytes are more than the server takes: {setting} is {most}; raise it");
                return Err(Failure::Refused(why));
            }
            connection.execute(sql, values).await
        })
    }

    /// A statement that only reads. A connection that broke while it was idle is noticed here, and it is asked again.
    pub(super) fn rows(
        &self,
        sql: &str,
        columns: &[Column],
        values: &[Value<'_>],
    ) -> Result<Vec<Row>, Failure> {
        let was_open = self.open().connection.is_some();
        let ask = || self.call(async |connection| connection.rows(sql, values, columns).await);
        match ask() {
            Err(Failure::Lost(_)) if was_open => ask(),
            answer => answer,
        }
    }

    /// Several statements on one connection.
    pub(super) fn together<T>(
        &self,
        run: impl AsyncFnOnce(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.call(run)
    }

    pub(super) fn warnings(&self) -> Result<Vec<String>, Error> {
        self.call(async |connection| connection.warnings().await)
            .map_err(|failure| failure.error(&self.home, "ask for settings"))
    }

    /// Returns when a batch may have been appended, and at the latest when the time is over.
    pub(super) fn pause(&self, at_most: Duration) {
        let mut open = self.open();
        let Open { listener, runtime, .. } = &mut *open;
        let timeout = self.timeout;
        let Ok(runtime) = begun(runtime) else { return };
        if listener.is_none() {
            let listening = async { tokio::time::timeout(timeout, self.home.server.listen()).await };
            if let Ok(Ok(begun)) = runtime.block_on(listening) {
                // Who has just begun to listen looks once more first.
                *listener = Some(begun);
            } else {
                std::thread::sleep(POLL_INTERVAL.min(at_most));
            }
            return;
        }
        let heard = async {
            let Some(listener) = listener else { return Ok(Ok(())) };
            tokio::time::timeout(at_most.min(HEAR_AT_MOST), listener.heard(&self.home.domain, POLL_INTERVAL))
                .await
        };
        if let Ok(Err(_)) = runtime.block_on(heard) {
            // A listener gives its connection back to the runtime that it was made in.
            let _inside = runtime.enter();
            *listener = None;
        }
    }

    /// One call on the connection, which is made first if there is none. Unless the server answered, the connection is
    /// given up: what comes on it later would be the answer to something else. So it is when the server said no: what a user
    /// may do, and where its tables are, some servers look up when it connects, and never again.
    fn call<T>(&self, run: impl AsyncFnOnce(&mut Connection) -> Result<T, Failure>) -> Result<T, Failure> {
        let mut open = self.open();
        let Open { connection, runtime, .. } = &mut *open;
        let timeout = self.timeout;
        let there = connection.take();
        let running = async {
            let mut connection = match there {
                Some(connection) => connection,
                None => self.home.server.connect(timeout).await?,
            };
            let result = run(&mut connection).await;
            Ok((connection, result))
        };
        let ended = begun(runtime)?.block_on(async { tokio::time::timeout(timeout, running).await });
        match ended {
            Ok(Ok((_, Err(failure @ (Failure::Lost(_) | Failure::Refused(_)))))) => Err(failure),
            Ok(Ok((used, answered))) => {
                *connection = Some(used);
                answered
            }
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(Failure::Lost(format!("no answer within {timeout:?}"))),
        }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Open { connection, listener, runtime } = std::mem::take(&mut *self.open());
        let Some(runtime) = runtime else { return };
        {
            // A connection gives itself back to the runtime that it was made in.
            let _inside = runtime.enter();
            drop((connection, listener));
        }
        // A session may be dropped inside a runtime, where blocking is not allowed.
        runtime.shutdown_background();
    }
}

/// The runtime of a session, made when it is first needed.
fn begun(runtime: &mut Option<Runtime>) -> Result<&mut Runtime, Failure> {
    let made = match runtime.take() {
        Some(made) => made,
        None => Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::Lost(error.to_string()))?,
    };
    Ok(runtime.insert(made))
}

fn length(value: &Value<'_>) -> usize {
    match value {
        Value::Int(_) => 8,
        Value::Text(text) => text.len(),
        Value::Bytes(bytes) => bytes.len(),
    }
}

/// What an error of the driver proves that is no answer of a server.
pub(super) fn unanswered(error: &sqlx::Error) -> Failure {
    let what = error.to_string();
    // The server answered with something that is not what was asked for.
    if matches!(error, sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_)) {
        return Failure::Refused(what);
    }
    Failure::Lost(what)
}
