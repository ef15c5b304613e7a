//! One request to one address, and its answer. The only file that knows status codes, headers and hyper.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use orchestrix_core::Position;
use orchestrix_core::wire::Problem;
use serde::de::DeserializeOwned;

use crate::call::{Call, View};
use crate::error::{Error, Kind};

/// Bytes of one answer. Room for the largest one: a full lease call with the largest payloads.
const ANSWER_BYTES_MAX: usize = 300 << 20;
/// A connection that was idle for longer is not used again: shorter than the coordinator's own limit, so
/// that no request meets a connection that is being closed.
const IDLE: Duration = Duration::from_secs(30);
/// The longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Every answer says with this header up to where the journal is durable, and a request says what it has seen.
const POSITION: &str = "orchestrix-position";

/// What all requests of a client have in common, wherever they go.
#[derive(Debug)]
pub(crate) struct Http {
    client: legacy::Client<HttpConnector, Full<Bytes>>,
    authorization: Option<HeaderValue>,
    timeout: Duration,
    /// The highest position in any answer; 0 before the first.
    seen: AtomicU64,
}

/// One try of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange<'a> {
    pub(crate) http: &'a Http,
    pub(crate) url: &'a str,
    pub(crate) call: &'a Call,
}

impl Http {
    pub(crate) fn new(token: Option<&str>, timeout: Duration) -> Result<Self, Error> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        // Earlier than the whole call: who did not even get a connection knows that nothing was sent.
        connector.set_connect_timeout(Some(CONNECT.min(timeout / 2)));
        let client = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        let authorization = token.map(bearer).transpose()?;
        Ok(Self { client, authorization, timeout, seen: AtomicU64::new(0) })
    }

    /// Answers from now on should know this.
    pub(crate) fn saw(&self, position: Position) {
        // Nothing else is published with this number, so its order among other memory does not matter.
        self.seen.fetch_max(position.0, Ordering::Relaxed);
    }

    /// Answers need not know any more what was heard so far.
    pub(crate) fn forget(&self) {
        self.seen.store(0, Ordering::Relaxed);
    }

    fn seen(&self) -> Option<u64> {
        Some(self.seen.load(Ordering::Relaxed)).filter(|seen| *seen > 0)
    }
}

impl Exchange<'_> {
    /// The body of an answer that is no error.
    pub(crate) async fn answer<A: DeserializeOwned>(&self) -> Result<A, Error> {
        let whole = async {
            let response = self.send(&[]).await?;
            if !response.status().is_success() {
                return Err(self.problem(response).await);
            }
            self.read(response).await
        };
        self.in_time(whole).await
    }

    /// The body of an answer, also with the status of an error.
    pub(crate) async fn answer_of_any_status<A: DeserializeOwned>(&self) -> Result<A, Error> {
        self.in_time(async { self.read(self.send(&[]).await?).await }).await
    }

    /// Opens a stream: the body comes as long as the coordinator sends. Answers also how far the journal was
    /// when it began.
    pub(crate) async fn open(
        &self,
        headers: &[(&'static str, String)],
    ) -> Result<(Option<Position>, Incoming), Error> {
        let begun = async {
            let response = self.send(headers).await?;
            if !response.status().is_success() {
                return Err(self.problem(response).await);
            }
            Ok((position(response.headers()), response.into_body()))
        };
        self.in_time(begun).await
    }

    /// The connection broke between request and answer, or amid the answer.
    pub(crate) fn broken(&self, why: String) -> Error {
        self.error(Kind::Interrupted { call: self.call.name(), url: self.url.to_owned(), why })
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let after = self.http.timeout.saturating_add(self.call.held).min(self.call.limit);
        let late =
            |_| Err(self.error(Kind::TimedOut { call: self.call.name(), url: self.url.to_owned(), after }));
        tokio::time::timeout(after, work).await.unwrap_or_else(late)
    }

    async fn send(&self, headers: &[(&'static str, String)]) -> Result<Response<Incoming>, Error> {
        let Self { http, url, call } = self;
        let mut request = Request::builder().method(call.method.clone()).uri(format!("{url}{}", call.path));
        if !call.body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(authorization) = &http.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        if let (View::NotOlderThanSeen, Some(seen)) = (call.view, http.seen()) {
            request = request.header(POSITION, seen);
        }
        request = request.header(ACCEPT, "application/json, text/event-stream");
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let request = request
            .body(Full::new(call.body.clone()))
            .map_err(|error| Error::invalid(format!("cannot ask for {}: {error}", call.path)))?;
        let response = http.client.request(request).await;
        let response = response.map_err(|error| self.unsent_or_interrupted(&error))?;
        position(response.headers()).into_iter().for_each(|position| http.saw(position));
        Ok(response)
    }

    fn unsent_or_interrupted(&self, error: &legacy::Error) -> Error {
        let why = innermost(error);
        if error.is_connect() {
            return self.error(Kind::Unreachable { url: self.url.to_owned(), why });
        }
        self.broken(why)
    }

    async fn read<A: DeserializeOwned>(&self, response: Response<Incoming>) -> Result<A, Error> {
        let status = response.status();
        let body = self.body(response).await?;
        serde_json::from_slice(&body).map_err(|error| self.foreign(status, error.to_string()))
    }

    async fn body(&self, response: Response<Incoming>) -> Result<Bytes, Error> {
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        body.map(http_body_util::Collected::to_bytes).map_err(|error| self.broken(error.to_string()))
    }

    async fn problem(&self, response: Response<Incoming>) -> Error {
        let status = response.status();
        let retry_after = number(response.headers(), RETRY_AFTER.as_str());
        let retry_after = retry_after.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let body = match self.body(response).await {
            Ok(body) => body,
            Err(error) => return error,
        };
        match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) => self.error(Kind::Answered { problem, retry_after }),
            Err(_) => self.foreign(status, shorten(&String::from_utf8_lossy(&body))),
        }
    }

    fn foreign(&self, status: StatusCode, why: String) -> Error {
        self.error(Kind::Foreign { call: self.call.name(), url: self.url.to_owned(), status, why })
    }

    fn error(&self, kind: Kind) -> Error {
        let error = Error::of_a_try(kind, self.call.repeat, self.url);
        if self.call.method.is_safe() { error } else { error.perhaps_done() }
    }
}

fn position(headers: &HeaderMap) -> Option<Position> {
    number(headers, POSITION).map(Position)
}

fn number<N: std::str::FromStr>(headers: &HeaderMap, name: &str) -> Option<N> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

fn bearer(token: &str) -> Result<HeaderValue, Error> {
    let value = HeaderValue::try_from(format!("Bearer {}", token.trim()));
    // The token itself must not show up in a message.
    let mut value = value.map_err(|_| Error::invalid("the token has characters that no token has"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The cause at the bottom, in lower case: "connection refused" rather than "client error (Connect)".
fn innermost(error: &legacy::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let text = cause.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

/// The beginning of a text that may be a whole page.
fn shorten(text: &str) -> String {
    const CHARACTERS: usize = 120;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(CHARACTERS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None if line.is_empty() => "an empty answer".to_owned(),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_never_shows_in_debug_output() {
        let http = Http::new(Some("s3cret"), CONNECT).unwrap();
        assert!(!format!("{http:?}").contains("s3cret"));
        let error = Http::new(Some("s3cret\u{7f}x"), CONNECT).unwrap_err();
        assert!(!error.to_string().contains("s3cret"));
    }

    #[test]
    fn a_page_of_text_is_shortened_to_a_line() {
        assert_eq!(shorten(" a\n b "), "a b");
        assert_eq!(shorten(""), "an empty answer");
        assert_eq!(shorten(&"ä".repeat(500)).chars().count(), 121);
    }

    #[test]
    fn the_seen_position_only_grows_until_forgotten() {
        let http = Http::new(None, CONNECT).unwrap();
        assert_eq!(http.seen(), None);
        [5, 9, 7].into_iter().for_each(|position| http.saw(Position(position)));
        assert_eq!(http.seen(), Some(9));
        http.forget();
        assert_eq!(http.seen(), None);
    }
}
