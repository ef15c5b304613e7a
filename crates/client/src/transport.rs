//! Sends calls to any address of a coordinator: each try goes to the current one, and after a failure to the next.
//!
//! **Invariant:** a call is sent again only if the last try certainly did nothing, or a repeat is harmless. Which
//! address is asked changes nothing about that.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use orchestrix_core::Position;
use serde::de::DeserializeOwned;

use crate::addresses::{Addresses, At};
use crate::call::Call;
use crate::error::Error;
use crate::exchange::{Exchange, Http};
use crate::retry::Backoff;

#[derive(Debug)]
pub(crate) struct Transport {
    http: Http,
    addresses: Addresses,
    pub(crate) retries: u32,
    leader_wait: LeaderWait,
}

/// What a call does while nodes answer that there is no leader.
#[derive(Clone)]
pub(crate) struct LeaderWait {
    /// How long it goes on.
    pub(crate) patience: Duration,
    /// Hears of every such answer.
    pub(crate) observer: Arc<dyn Fn() + Send + Sync>,
}

impl Default for LeaderWait {
    /// Longer than the default time of a leader that is gone, and than the next one takes to begin.
    fn default() -> Self {
        Self { patience: Duration::from_secs(45), observer: Arc::new(|| {}) }
    }
}

impl fmt::Debug for LeaderWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderWait").field("patience", &self.patience).finish_non_exhaustive()
    }
}

/// A stream that has begun.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) at: At,
    /// How far the journal was at that moment.
    pub(crate) position: Option<Position>,
    pub(crate) body: Incoming,
}

impl Transport {
    pub(crate) fn new(
        addresses: Addresses,
        token: Option<&str>,
        timeout: Duration,
        retries: u32,
        leader_wait: LeaderWait,
    ) -> Result<Self, Error> {
        Ok(Self { http: Http::new(token, timeout)?, addresses, retries, leader_wait })
    }

    pub(crate) fn backoff(&self) -> Backoff {
        Backoff::new(self.retries, self.leader_wait.patience)
    }

    pub(crate) fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Asks until there is an answer, or until asking again could do harm or is of no use.
    pub(crate) async fn ask<A: DeserializeOwned>(&self, call: Call) -> Result<A, Error> {
        let mut backoff = self.backoff();
        loop {
            let error = match self.ask_once(&call).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            self.pause(&mut backoff, &call, error).await?;
        }
    }

    /// Waits for the next try, or tells the error.
    pub(crate) async fn pause(&self, backoff: &mut Backoff, call: &Call, error: Error) -> Result<(), Error> {
        let (reason, leaderless) = (error.to_string(), error.is_leaderless());
        let wait = backoff.next(error).inspect_err(|error| self.given_up(error))?;
        if leaderless {
            (self.leader_wait.observer)();
        }
        tracing::debug!(call = call.name(), reason, wait_ms = wait.as_millis(), "trying again");
        tokio::time::sleep(wait).await;
        Ok(())
    }

    /// Asks one time.
    pub(crate) async fn ask_once<A: DeserializeOwned>(&self, call: &Call) -> Result<A, Error> {
        let at = self.addresses.current();
        self.settle(at, self.exchange(at, call).answer().await)
    }

    /// Asks one time and takes the answer as it is, also with the status of an error.
    pub(crate) async fn ask_for_any_status<A: DeserializeOwned>(&self, call: &Call) -> Result<A, Error> {
        let at = self.addresses.current();
        self.settle(at, self.exchange(at, call).answer_of_any_status().await)
    }

    /// Opens a stream: the body comes as long as the coordinator sends.
    pub(crate) async fn open(
        &self,
        call: &Call,
        headers: &[(&'static str, String)],
    ) -> Result<Opened, Error> {
        let at = self.addresses.current();
        let (position, body) = self.settle(at, self.exchange(at, call).open(headers).await)?;
        Ok(Opened { at, position, body })
    }

    /// A stream from this address broke or went silent.
    pub(crate) fn broken(&self, at: At, call: &Call, why: String) -> Error {
        let error = self.exchange(at, call).broken(why);
        self.addresses.leave(at);
        error
    }

    /// Answers from now on should know this.
    pub(crate) fn saw(&self, position: Position) {
        self.http.saw(position);
    }

    fn exchange<'a>(&'a self, at: At, call: &'a Call) -> Exchange<'a> {
        Exchange { http: &self.http, url: self.addresses.url(at), call }
    }

    /// Leaves an address that failed. What it asked to wait before it is asked again does not matter to the others.
    fn settle<T>(&self, at: At, tried: Result<T, Error>) -> Result<T, Error> {
        tried.map_err(|error| {
            if error.is_better_elsewhere() {
                self.addresses.leave(at);
            }
            if self.addresses.has_others() && error.is_about_one_node() {
                return error.without_retry_after();
            }
            error
        })
    }

    /// A coordinator that began a new journal will not be as far as the old one for a long time. The caller hears
    /// of it once; after that, the client takes things as they are.
    fn given_up(&self, error: &Error) {
        if error.code() == "behind" {
            self.http.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addresses::split;
    use crate::error::Repeat;

    const TIMEOUT: Duration = Duration::from_secs(5);

    fn transport(url: &str, retries: u32) -> Transport {
        let addresses = Addresses::new(&split(url)).unwrap();
        Transport::new(addresses, None, TIMEOUT, retries, LeaderWait::default()).unwrap()
    }

    #[tokio::test]
    async fn a_refused_connection_certainly_did_nothing() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", socket.local_addr().unwrap());
        drop(socket);
        let call = Call::post("/v1/tasks", &1, Repeat::Doubles).unwrap();
        let error = transport(&url, 0).ask::<u32>(call).await.unwrap_err();
        assert_eq!(error.code(), "unreachable");
        assert!(error.is_retryable());
        assert!(error.to_string().contains("connection refused"), "{error}");
    }

    #[tokio::test]
    async fn a_broken_connection_is_an_unknown_outcome_not_repeated() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let mut accepted = 0;
            while let Ok(Ok((mut socket, _))) =
                tokio::time::timeout(Duration::from_millis(500), listener.accept()).await
            {
                accepted += 1;
                let mut bytes = [0; 16];
                tokio::io::AsyncReadExt::read_exact(&mut socket, &mut bytes).await.unwrap();
            }
            accepted
        });
        let call = Call::post("/v1/tasks", &1, Repeat::Doubles).unwrap();
        let error = transport(&url, 5).ask::<u32>(call).await.unwrap_err();
        assert_eq!(error.code(), "interrupted");
        assert!(error.is_outcome_unknown() && !error.is_retryable());
        assert_eq!(server.await.unwrap(), 1);
    }
}
