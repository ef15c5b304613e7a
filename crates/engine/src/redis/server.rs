//! The one place that knows the driver: connections to the server, how long anybody waits, and what a failure
//! says about what was done.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{
    Client, Cmd, Connection, ConnectionInfo, ErrorKind, FromRedisValue, ProtocolVersion, RedisError,
    TlsCertificates,
};
use rustls::crypto::CryptoProvider;

use crate::{Cause, Error};

/// Connections kept for later. Bounds what an idle node costs the server; a burst opens more for a while.
const IDLE_MAX: usize = 8;
/// Zero would mean to wait for ever.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nothing was sent.
    Unsent { what: String, retryable: bool },
    /// The server said no, and did nothing.
    Refused { code: String, what: String },
    /// It was sent, and nobody knows what became of it.
    Lost(String),
}

/// What a URL says.
struct Address {
    client: Client,
    /// How people may call it.
    place: String,
    tls: bool,
}

/// A server, and connections to it. A caller that finds none idle opens one, so nobody waits for another.
pub(super) struct Server {
    client: Client,
    place: String,
    tls: bool,
    timeout: Duration,
    idle: Mutex<Vec<Connection>>,
}

impl Server {
    pub(super) fn connect(url: &str, timeout: Duration) -> Result<Self, Error> {
        let Address { client, place, tls } = address(url)?;
        let timeout = timeout.max(TIMEOUT_MIN);
        let server = Self { client, place, tls, timeout, idle: Mutex::default() };
        match server.open() {
            Ok(connection) => server.keep(connection),
            Err(failure) => return Err(server.error("connect to Redis", failure)),
        }
        Ok(server)
    }

    /// What and where it is, without user and password.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(super) fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Failure> {
        self.ask_for(command, self.timeout)
    }

    /// Sends a command once and waits so long for its answer.
    pub(super) fn ask_for<T: FromRedisValue>(&self, command: &Cmd, patience: Duration) -> Result<T, Failure> {
        let idle = self.idle().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.open()?,
        };
        let timed = connection
            .set_read_timeout(Some(patience))
            .and_then(|()| connection.set_write_timeout(Some(self.timeout)));
        if let Err(error) = timed {
            return Err(Failure::Unsent { what: error.to_string(), retryable: true });
        }
        match command.query(&mut connection) {
            Ok(answer) => {
                self.keep(connection);
                Ok(answer)
            }
            Err(error) if matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension) => {
                self.keep(connection);
                let code = error.code().unwrap_or_default().to_owned();
                Err(Failure::Refused { code, what: error.to_string() })
            }
            Err(error) => {
                // What broke one has probably broken all, and each would lose an answer to show it.
                self.idle().clear();
                Err(Failure::Lost(self.lost(&error, patience)))
            }
        }
    }

    /// As [`Server::ask`], where not to know is as bad as not to have.
    pub(super) fn get<T: FromRedisValue>(&self, doing: &str, command: &Cmd) -> Result<T, Error> {
        self.ask(command).map_err(|failure| self.error(doing, failure))
    }

    pub(super) fn error(&self, doing: &str, failure: Failure) -> Error {
        let (what, retryable) = match failure {
            Failure::Unsent { what, retryable } => (what, retryable),
            Failure::Lost(what) => (what, true),
            Failure::Refused { code, .. } if code == "OOM" => {
                let source = Cause::Full { path: PathBuf::from(&self.place) };
                return Error { operation: doing.to_owned(), retryable: true, source };
            }
            Failure::Refused { code, what } => (what, passes(&code)),
        };
        let source = Cause::Remote { place: self.place.clone(), what };
        Error { operation: doing.to_owned(), retryable, source }
    }

    /// What is kept under a key is not what was written.
    pub(super) fn damaged(&self, doing: &str, key: &str, what: impl Into<String>) -> Error {
        let path = PathBuf::from(format!("{}/{key}", self.place));
        let source = Cause::Damaged { path, offset: 0, what: what.into() };
        Error { operation: doing.to_owned(), retryable: false, source }
    }

    fn open(&self) -> Result<Connection, Failure> {
        let connection = self.client.get_connection_with_timeout(self.timeout);
        let connection = connection.and_then(|connection| self.shake_hands(connection));
        connection.map_err(|error| {
            let said = error.to_string();
            let (what, retryable) = if matches!(error.kind(), ErrorKind::AuthenticationFailed) {
                ("the server did not accept the password".to_owned(), false)
            } else if said.contains("invalid peer certificate") {
                let why = "the server does not prove who it is";
                (format!("{why} ({said}); if its authority is your own, give it with ?ca=FILE"), false)
            } else if self.tls && error.is_timeout() {
                // A server without TLS waits for the end of what it takes for a command.
                let what = self.lost(&error, self.timeout);
                (format!("{what}; does it speak TLS on this port?"), true)
            } else {
                (self.lost(&error, self.timeout), true)
            };
            Failure::Unsent { what, retryable }
        })
    }

    /// The driver leaves this to the first command. Then nobody would know whether that was sent.
    fn shake_hands(&self, mut connection: Connection) -> Result<Connection, RedisError> {
        if self.tls {
            connection.set_read_timeout(Some(self.timeout))?;
            connection.set_write_timeout(Some(self.timeout))?;
            match redis::cmd("PING").query::<()>(&mut connection) {
                // To be refused is an answer, too.
                Err(error) if !matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension) => {
                    return Err(error);
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(connection)
    }

    fn lost(&self, error: &RedisError, patience: Duration) -> String {
        if error.is_timeout() { format!("no answer within {patience:?}") } else { error.to_string() }
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.idle();
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server").field(&self.place).finish()
    }
}

/// Whether the server may say something else later.
fn passes(code: &str) -> bool {
    ["BUSY", "LOADING", "MISCONF", "MASTERDOWN", "NOREPLICAS", "READONLY", "TRYAGAIN"].contains(&code)
}

/// The URL itself is never repeated: it has a password.
fn address(url: &str) -> Result<Address, Error> {
    let wrong = |what: &str| {
        let source = Cause::Remote { place: "redis".to_owned(), what: what.to_owned() };
        Error { operation: "read the URL".to_owned(), retryable: false, source }
    };
    let form = "it must be redis://[user][:password@]host[:port][/database], or rediss://… for TLS";
    let tls = url.starts_with("rediss://");
    // What the driver would take for a wish not to check certificates is not for it.
    let (url, query) = if tls { url.split_once('?').unwrap_or((url, "")) } else { (url, "") };
    if tls && url.contains('#') || url.starts_with("valkeys:") {
        return Err(wrong(form));
    }
    let ca = match query.split_once('=') {
        Some(("ca", file)) if !file.is_empty() && !file.contains('&') => Some(file),
        None if query.is_empty() => None,
        Some(_) | None => return Err(wrong("the one parameter of rediss:// is ca=FILE")),
    };
    let info: ConnectionInfo = url.parse().map_err(|_| wrong(form))?;
    // Answers have the same form on all servers, and nothing but the password is sent before the first command.
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2).set_skip_set_lib_name();
    let scheme = if tls { "rediss" } else { "redis" };
    let place = format!("{scheme}://{}/{}", info.addr(), settings.db());
    let info = info.set_redis_settings(settings);
    if !tls {
        let client = Client::open(info).map_err(|_| wrong(form))?;
        return Ok(Address { client, place, tls });
    }
    // The driver asks for the one of the process. Whoever has chosen one keeps it.
    if CryptoProvider::get_default().is_none() {
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let root_cert = ca.map(std::fs::read).transpose().map_err(|error| {
        wrong(&format!("the authority {} cannot be read: {error}", ca.unwrap_or_default()))
    })?;
    let client = Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert });
    let client = client.map_err(|error| wrong(&format!("TLS cannot be set up: {error}")))?;
    Ok(Address { client, place, tls })
}

/// Bytes that nobody else draws.
pub(super) fn random() -> Result<[u8; 16], Error> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).map_err(|error| Error {
        operation: "draw random bytes".to_owned(),
        retryable: false,
        source: Cause::Io(error),
    })?;
    Ok(bytes)
}

/// A script with its keys; its arguments follow.
pub(super) fn script(text: &str, keys: &[String]) -> Cmd {
    let mut command = redis::cmd("EVAL");
    command.arg(text).arg(keys.len()).arg(keys);
    command
}
