//! The one place that knows the driver: connections to the server, timeouts, and what a failure
//! says about what was done.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use redis::{Client, Cmd, Connection, ErrorKind, FromRedisValue, RedisError, ToRedisArgs, Value, cmd};
use sha1::{Digest as _, Sha1};

use super::address::{Address, address};
use super::rights;
use crate::{Cause, Clock as _, Error, LogThrottle, SystemClock};

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
    /// It was sent, and its outcome is unknown.
    Lost(String),
}

/// What is asked of the server.
#[derive(Debug)]
pub(super) struct Command {
    sent: Cmd,
    /// The script that is called by its name here.
    script: Option<&'static Script>,
}

/// A script. Servers know those that they have run by their names, and forget them when they stop.
#[derive(Debug)]
pub(super) struct Script {
    text: &'static str,
    name: OnceLock<String>,
}

/// A server, and connections to it. A caller that finds none idle opens one, so no caller waits for another.
pub(super) struct Server {
    client: Client,
    place: String,
    tls: bool,
    /// Who we are, and which database it is: what is said first on every connection.
    greeting: Vec<Cmd>,
    timeout: Duration,
    idle: Mutex<Vec<Connection>>,
    /// The names of scripts that the server has run for us.
    known: Mutex<BTreeSet<&'static str>>,
    /// Writes whose outcome is not known.
    outcomes: LogThrottle,
}

impl Server {
    pub(super) fn connect(url: &str, timeout: Duration) -> Result<Self, Error> {
        let Address { client, place, tls, greeting } = address(url)?;
        let timeout = timeout.max(TIMEOUT_MIN);
        let (idle, known) = (Mutex::default(), Mutex::default());
        let outcomes = LogThrottle::for_outcomes();
        let server = Self { client, place, tls, greeting, timeout, idle, known, outcomes };
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

    /// The outcome of a write is unknown.
    pub(super) fn unknown(&self, doing: &str, what: &str) {
        self.outcomes.failed(SystemClock.boot(), doing, &format!("{}: {what}", self.place));
    }

    /// What became of a write is known.
    pub(super) fn settled(&self, doing: &str) {
        self.outcomes.succeeded(SystemClock.boot(), doing);
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(super) fn ask<T: FromRedisValue>(&self, command: &Command) -> Result<T, Failure> {
        self.ask_for(command, self.timeout)
    }

    /// Sends a command once and waits so long for its answer. A script is sent in full the first time, and again if the
    /// server says that it has forgotten it, because then it was not run.
    pub(super) fn ask_for<T: FromRedisValue>(
        &self,
        command: &Command,
        patience: Duration,
    ) -> Result<T, Failure> {
        let Some(script) = command.script else { return self.send(&command.sent, patience) };
        if self.known().contains(script.name()) {
            match self.send(&command.sent, patience) {
                Err(Failure::Refused { code, .. }) if code == "NOSCRIPT" => {}
                answer => return answer,
            }
        }
        let answer = self.send(&command.in_full(script), patience);
        if answer.is_ok() {
            self.known().insert(script.name());
        }
        answer
    }

    fn send<T: FromRedisValue>(&self, command: &Cmd, patience: Duration) -> Result<T, Failure> {
        let idle = self.idle().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.open()?,
        };
        self.set_patience(&connection, patience)?;
        match command.query(&mut connection) {
            Ok(answer) => {
                self.keep(connection);
                Ok(answer)
            }
            Err(error) if is_refusal(&error) => {
                self.keep(connection);
                let code = error.code().unwrap_or_default().to_owned();
                Err(Failure::Refused { code, what: error.to_string() })
            }
            Err(error) => Err(self.broken(&error, patience)),
        }
    }

    /// Sends commands in one message, once. The answers are for [`Server::hear`].
    pub(super) fn say(&self, connection: &mut Connection, commands: &[Command]) -> Result<(), Failure> {
        self.set_patience(connection, self.timeout)?;
        let mut message = Vec::new();
        commands.iter().for_each(|command| command.sent.write_packed_command(&mut message));
        connection.send_packed_command(&message).map_err(|error| self.broken(&error, self.timeout))
    }

    /// Waits for the next answers; a refusal is an answer.
    pub(super) fn hear<const N: usize>(&self, connection: &mut Connection) -> Result<[Value; N], Failure> {
        let mut answers = [const { Value::Nil }; N];
        for answer in &mut answers {
            *answer = connection.recv_response().map_err(|error| self.broken(&error, self.timeout))?;
        }
        Ok(answers)
    }

    /// Sends commands in one message, once, and waits for all answers; a refusal is an answer. A script that the server said it
    /// does not know was not run, and is sent again in full.
    pub(super) fn ask_all(&self, commands: &[Command]) -> Result<Vec<Result<Value, Failure>>, Failure> {
        let mut answers: Vec<Option<Result<Value, Failure>>> = commands.iter().map(|_| None).collect();
        let (mut left, mut in_full): (Vec<usize>, bool) = ((0..commands.len()).collect(), false);
        while !left.is_empty() {
            let mut message = Vec::new();
            for at in &left {
                let command = &commands[*at];
                match command.script {
                    Some(script) if in_full => message.extend(command.in_full(script).get_packed_command()),
                    Some(_) | None => command.sent.write_packed_command(&mut message),
                }
            }
            let heard = self.exchange(&message, left.len())?;
            let unknown = |answer: &Result<Value, Failure>| {
                matches!(answer, Err(Failure::Refused { code, .. }) if code == "NOSCRIPT") && !in_full
            };
            let again = std::mem::take(&mut left);
            for (at, answer) in again.into_iter().zip(heard) {
                if unknown(&answer) {
                    left.push(at);
                } else {
                    answers[at] = Some(answer);
                }
            }
            in_full = true;
        }
        Ok(answers.into_iter().flatten().collect())
    }

    fn exchange(&self, message: &[u8], count: usize) -> Result<Vec<Result<Value, Failure>>, Failure> {
        let idle = self.idle().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.open()?,
        };
        self.set_patience(&connection, self.timeout)?;
        let broken = |error: RedisError| self.broken(&error, self.timeout);
        connection.send_packed_command(message).map_err(broken)?;
        let mut answers = Vec::with_capacity(count);
        for _ in 0..count {
            answers.push(heard(connection.recv_response().map_err(broken)?));
        }
        self.keep(connection);
        Ok(answers)
    }

    fn set_patience(&self, connection: &Connection, patience: Duration) -> Result<(), Failure> {
        let timed = connection
            .set_read_timeout(Some(patience))
            .and_then(|()| connection.set_write_timeout(Some(self.timeout)));
        timed.map_err(|error| Failure::Unsent { what: error.to_string(), retryable: true })
    }

    /// What broke one connection has probably broken all, and each would lose an answer to show it.
    fn broken(&self, error: &RedisError, patience: Duration) -> Failure {
        self.idle().clear();
        Failure::Lost(self.lost(error, patience))
    }

    /// As [`Server::ask`], where not to know is as bad as not to have.
    pub(super) fn get<T: FromRedisValue>(&self, doing: &str, command: &Command) -> Result<T, Error> {
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
            Failure::Refused { code, what } if code == "NOPERM" => (rights::explain(&what), false),
            Failure::Refused { code, what } => {
                let passes = passes(&code, &what);
                (what, passes)
            }
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

    /// A connection for one caller alone.
    pub(super) fn open(&self) -> Result<Connection, Failure> {
        let connection = self.client.get_connection_with_timeout(self.timeout);
        let connection = connection.and_then(|connection| self.shake_hands(connection));
        connection.map_err(|error| {
            let said = error.to_string();
            let code = error.code().unwrap_or_default();
            let (what, retryable) = if passes(code, &said) {
                (said, true)
            } else if code == "WRONGPASS" || matches!(error.kind(), ErrorKind::AuthenticationFailed) {
                (format!("the server did not accept the password ({said})"), false)
            } else if code == "NOPERM" {
                (rights::explain(&said), false)
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

    /// Every answer is looked at before the first command: the driver would leave some to that, and take others for a
    /// wrong password. Then it would be unknown whether the command was sent.
    fn shake_hands(&self, mut connection: Connection) -> Result<Connection, RedisError> {
        connection.set_read_timeout(Some(self.timeout))?;
        connection.set_write_timeout(Some(self.timeout))?;
        for command in &self.greeting {
            let () = command.query(&mut connection)?;
        }
        if self.tls || self.greeting.is_empty() {
            match redis::cmd("PING").query::<()>(&mut connection) {
                // To be refused is an answer, too, unless the connection is. A server without room for a client says so
                // once and hangs up: a caller with another request would only see the end of the connection.
                Err(error) if !is_refusal(&error) || passes("", &error.to_string()) => return Err(error),
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

    fn known(&self) -> MutexGuard<'_, BTreeSet<&'static str>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Command {
    pub(super) fn new(word: &str) -> Self {
        Self { sent: cmd(word), script: None }
    }

    pub(super) fn arg(&mut self, argument: impl ToRedisArgs) -> &mut Self {
        self.sent.arg(argument);
        self
    }

    /// The same, to be sent to a server that may not know the script.
    pub(super) fn with_text(self) -> Self {
        match self.script {
            Some(script) => Self { sent: self.in_full(script), script: None },
            None => self,
        }
    }

    /// The same, with the text of the script in place of its name.
    fn in_full(&self, script: &Script) -> Cmd {
        let mut full = cmd("EVAL");
        full.arg(script.text);
        for argument in self.sent.args_iter().skip(2) {
            if let redis::Arg::Simple(bytes) = argument {
                full.arg(bytes);
            }
        }
        full
    }
}

impl Script {
    pub(super) const fn new(text: &'static str) -> Self {
        Self { text, name: OnceLock::new() }
    }

    /// The script with its keys; its arguments follow.
    pub(super) fn with(&'static self, keys: &[String]) -> Command {
        let mut sent = cmd("EVALSHA");
        sent.arg(self.name()).arg(keys.len()).arg(keys);
        Command { sent, script: Some(self) }
    }

    fn name(&'static self) -> &'static str {
        self.name.get_or_init(|| hex::encode(Sha1::digest(self.text.as_bytes())))
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server").field(&self.place).finish()
    }
}

/// An answer, of which a refusal is one.
pub(super) fn heard(answer: Value) -> Result<Value, Failure> {
    let Value::ServerError(error) = answer else { return Ok(answer) };
    let error = RedisError::from(error);
    let code = error.code().unwrap_or_default().to_owned();
    Err(Failure::Refused { code, what: error.to_string() })
}

/// Whether it is the answer of a server that lives.
fn is_refusal(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
}

/// Whether the server may say something else later.
fn passes(code: &str, what: &str) -> bool {
    let codes =
        ["BUSY", "CLUSTERDOWN", "LOADING", "MISCONF", "MASTERDOWN", "NOREPLICAS", "READONLY", "TRYAGAIN"];
    // This one has no code of its own.
    codes.contains(&code) || what.contains("max number of clients")
}

/// Random bytes.
pub(super) fn random() -> Result<[u8; 16], Error> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).map_err(|error| Error {
        operation: "draw random bytes".to_owned(),
        retryable: false,
        source: Cause::Io(error),
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_has_no_room_for_a_client_may_have_it_later() {
        for code in ["LOADING", "READONLY", "MASTERDOWN", "NOREPLICAS", "CLUSTERDOWN", "BUSY"] {
            assert!(passes(code, ""), "{code}");
        }
        assert!(passes("ERR", "ERR max number of clients reached"));
        assert!(!passes("ERR", "ERR wrong number of arguments") && !passes("WRONGPASS", ""));
    }

    #[test]
    fn a_script_is_called_by_the_name_that_servers_give_it() {
        static SCRIPT: Script = Script::new("return 1");
        // What `SCRIPT LOAD "return 1"` answers.
        assert_eq!(SCRIPT.name(), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }

    #[test]
    fn a_script_in_full_has_the_same_keys_and_arguments() {
        static SCRIPT: Script = Script::new("return 1");
        let mut command = SCRIPT.with(&["a".to_owned(), "b".to_owned()]);
        command.arg(b"\xff\r\n".as_slice()).arg(7);
        let full = command.in_full(&SCRIPT).get_packed_command();
        let mut expected = cmd("EVAL");
        expected.arg("return 1").arg(2).arg("a").arg("b").arg(b"\xff\r\n".as_slice()).arg("7");
        assert_eq!(full, expected.get_packed_command());
    }
}
