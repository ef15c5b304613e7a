//! The engine in settings: a word, or the address of a server.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use orchestrix_engine::bus::Bus;
use orchestrix_engine::redis::{RedisBus, RedisPlace};
use orchestrix_engine::s3::S3Place;
use orchestrix_engine::sql::SqlPlace;
use orchestrix_engine::{Error, LogThrottle, Shared};
use serde::Deserialize;

use crate::private::{self, Text};

/// How long a start waits for an engine that does not answer, and how often it asks.
const START_MAX: Duration = Duration::from_secs(30);
const START_PAUSE: Duration = Duration::from_millis(500);

const CONNECT: &str = "connect to the engine";

/// Parameters of addresses that are secrets.
const SECRETS: [&str; 4] = ["password", "access_key", "secret_key", "session_token"];

/// The unchecked setting of the engine, or of the bus. It may contain a password, so it is never shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Address(String);

impl From<&str> for Address {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address").finish_non_exhaustive()
    }
}

impl Address {
    /// Reads what a file says; `what` says which file it is. If it holds a password, only its owner may read it.
    ///
    /// # Errors
    /// A sentence that names the file and says what to do.
    pub fn load(path: &Path, what: &str) -> Result<Self, String> {
        let Text { text, private } = private::read(path, what)?;
        let address = Self(text.trim().to_owned());
        if address.has_secret() {
            private?;
        }
        Ok(address)
    }

    /// Whether it holds a password, or something like one.
    #[must_use]
    pub fn has_secret(&self) -> bool {
        let Some((_, rest)) = self.0.split_once("://") else { return false };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // A password that is not encoded may have any character in it.
        let user = rest.rsplit_once('@').map(|(user, _)| user);
        let in_user =
            user.and_then(|user| user.split_once(':')).is_some_and(|(_, secret)| !secret.is_empty());
        let is_secret = |pair: &str| {
            pair.split_once('=').is_some_and(|(name, value)| SECRETS.contains(&name) && !value.is_empty())
        };
        in_user || query.split('&').any(is_secret)
    }

    /// # Errors
    /// A sentence that says what can be given.
    pub fn engine(&self) -> Result<Engine, String> {
        Engine::parse(&self.0)
    }

    /// # Errors
    /// A sentence that says what can be given.
    pub fn bus(&self) -> Result<BusAt, String> {
        if self.0 == "off" {
            return Ok(BusAt::Off);
        }
        match Engine::parse(&self.0) {
            Ok(Engine::Shared(url)) if url.scheme == Scheme::Redis => Ok(BusAt::Server(url)),
            // What was given may hold a password, so it is not repeated.
            Ok(_) | Err(_) => {
                Err("a bus is off, or an address that begins with redis:// or rediss://".to_owned())
            }
        }
    }
}

/// Where the bus is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BusAt {
    /// There is none
    Off,
    /// On the engine, which carries it beside the journal
    Engine,
    /// On a server of its own
    Server(Url),
}

/// What the journal stands on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Files in the data folder
    File,
    /// Memory: nothing survives the process
    Memory,
    /// A server that several nodes share
    Shared(Url),
}

/// The address of a server. Shown without what may be a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    scheme: Scheme,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Redis,
    Sql,
    S3,
}

/// The schemes that are known, each with its engine.
const SCHEMES: [(&str, Scheme); 6] = [
    ("redis", Scheme::Redis),
    ("rediss", Scheme::Redis),
    ("mysql", Scheme::Sql),
    ("postgres", Scheme::Sql),
    ("postgresql", Scheme::Sql),
    ("s3", Scheme::S3),
];

impl Engine {
    /// # Errors
    /// A sentence that says what can be given.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "file" => return Ok(Self::File),
            "memory" => return Ok(Self::Memory),
            _ => {}
        }
        let scheme = text.split_once("://").map(|(scheme, _)| scheme);
        let known = SCHEMES.into_iter().find(|(name, _)| Some(*name) == scheme);
        // What was given may hold a password, so it is not repeated.
        known.map(|(_, scheme)| Self::Shared(Url { scheme, text: text.to_owned() })).ok_or_else(|| {
            "an engine is file, memory, or an address that begins with redis://, rediss://, mysql://, postgres:// or s3://"
                .to_owned()
        })
    }
}

impl Engine {
    /// Whether it can carry a bus.
    #[must_use]
    pub fn carries_bus(&self) -> bool {
        match self {
            Self::File | Self::Memory => false,
            Self::Shared(url) => url.scheme == Scheme::Redis,
        }
    }
}

impl Url {
    /// Connects to a bus. Every call on it waits at most `timeout` for its answer.
    ///
    /// # Errors
    /// When the server does not let us in, or does not answer.
    pub fn connect_bus(&self, timeout: Duration) -> Result<Arc<dyn Bus>, Error> {
        Ok(Arc::new(RedisBus::connect(&self.text, timeout)?))
    }

    /// Connects. Every call on the engine waits at most `timeout` for its answer.
    ///
    /// # Errors
    /// When the server does not let us in, or is not one that several nodes can share.
    pub fn connect(&self, timeout: Duration) -> Result<Arc<dyn Shared>, Error> {
        Ok(match self.scheme {
            Scheme::Redis => Arc::new(RedisPlace::connect(&self.text, timeout)?),
            Scheme::Sql => Arc::new(SqlPlace::connect(&self.text, timeout)?),
            Scheme::S3 => Arc::new(S3Place::connect(&self.text, timeout)?),
        })
    }

    /// Connects to a server that may be about to start: machines that start together start in any order.
    ///
    /// # Errors
    /// As for [`Url::connect`], or when it does not answer for half a minute.
    pub fn connect_when_it_answers(&self, timeout: Duration) -> Result<Arc<dyn Shared>, Error> {
        let began = Instant::now();
        let throttle = LogThrottle::new("the engine does not answer yet: trying again", "the engine answers");
        loop {
            let answer = self.connect(timeout);
            if answer.is_ok() {
                throttle.succeeded(began.elapsed(), CONNECT);
            }
            match answer {
                Err(error) if error.retryable && began.elapsed() < START_MAX => {
                    throttle.failed(began.elapsed(), CONNECT, &error.source.to_string());
                    std::thread::sleep(START_PAUSE);
                }
                answer => return answer,
            }
        }
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Url").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_a_word_or_an_address() {
        assert_eq!(Engine::parse("file"), Ok(Engine::File));
        assert_eq!(Engine::parse("memory"), Ok(Engine::Memory));
        for address in [
            "redis://h",
            "rediss://h?ca=f",
            "mysql://u:p@h/d",
            "postgres://h",
            "postgresql://h",
            "s3://bucket",
        ] {
            assert!(matches!(Engine::parse(address), Ok(Engine::Shared(_))), "{address}");
        }
        for wrong in ["", "File", "redis", "redis:h", "http://h", "://", "amqp://u:secret@h"] {
            let told = Engine::parse(wrong).unwrap_err();
            assert!(told.contains("redis://") && !told.contains("secret"), "{told}");
        }
    }

    #[test]
    fn a_password_is_noticed_wherever_it_is() {
        for with in [
            "redis://:p@h",
            "redis://u:p@h/1?ca=f",
            "mysql://u:a@b:c@h/d",
            "postgres://h/d?password=p",
            "postgres://u@h/d?application_name=a&password=p",
            "s3://k:s@bucket",
            "s3://bucket?secret_key=s",
        ] {
            assert!(Address::from(with).has_secret(), "{with}");
        }
        for without in
            ["file", "memory", "redis://h:6379", "mysql://u@h:3306/d", "redis://u:@h", "s3://b?region=r"]
        {
            assert!(!Address::from(without).has_secret(), "{without}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let engine = Engine::parse("redis://user:secret@host:1/2").unwrap();
        assert!(!format!("{engine:?}").contains("secret"));
    }
}
