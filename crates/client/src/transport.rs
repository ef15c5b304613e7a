//! One request and its answer over HTTP. The only file that knows status codes, headers and hyper.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use orchestrix_core::Position;
use orchestrix_core::wire::Problem;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Kind, Repeat};
use crate::retry::Backoff;

/// Bytes of one answer. Room for the largest one: a full lease call with the largest payloads.
const ANSWER_BYTES_MAX: usize = 300 << 20;
/// A connection that was idle for longer is not used again: shorter than the coordinator's own limit, so
/// that no request meets a connection that is being closed.
const IDLE: Duration = Duration::from_secs(30);
const CONNECT: Duration = Duration::from_secs(5);
/// Every answer says with this header up to where the journal is durable.
const POSITION: &str = "orchestrix-position";

/// The way to one coordinator.
#[derive(Debug)]
pub(crate) struct Transport {
    http: legacy::Client<HttpConnector, Full<Bytes>>,
    /// Without a slash at the end.
    pub(crate) url: String,
    authorization: Option<HeaderValue>,
    pub(crate) timeout: Duration,
    pub(crate) retries: u32,
}

/// One request to make.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) path: String,
    pub(crate) body: Bytes,
    pub(crate) repeat: Repeat,
    /// How long the coordinator may hold the answer back on purpose.
    pub(crate) held: Duration,
}

impl Call {
    pub(crate) fn get(path: impl Into<String>) -> Self {
        let (method, body) = (Method::GET, Bytes::new());
        Self { method, path: path.into(), body, repeat: Repeat::Harmless, held: Duration::ZERO }
    }

    pub(crate) fn post(
        path: impl Into<String>,
        body: &impl Serialize,
        repeat: Repeat,
    ) -> Result<Self, Error> {
        let body = serde_json::to_vec(body)
            .map_err(|error| Error::invalid(format!("cannot write JSON: {error}")))?;
        let (method, body) = (Method::POST, Bytes::from(body));
        Ok(Self { method, path: path.into(), body, repeat, held: Duration::ZERO })
    }

    pub(crate) fn post_empty(path: impl Into<String>, repeat: Repeat) -> Self {
        Self { method: Method::POST, repeat, ..Self::get(path) }
    }

    /// For people: what was asked.
    fn name(&self) -> String {
        let path = self.path.split('?').next().unwrap_or_default();
        format!("{} {path}", self.method)
    }
}

impl Transport {
    pub(crate) fn new(
        url: &str,
        token: Option<&str>,
        timeout: Duration,
        retries: u32,
    ) -> Result<Self, Error> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT));
        let http = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        let authorization = token.map(bearer).transpose()?;
        Ok(Self { http, url: check_url(url)?, authorization, timeout, retries })
    }

    /// Asks until there is an answer, or until asking again could do harm or is of no use.
    pub(crate) async fn ask<A: DeserializeOwned>(&self, call: Call) -> Result<A, Error> {
        let mut backoff = Backoff::new(self.retries);
        loop {
            let error = match self.ask_once(&call).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            match backoff.next(&error) {
                Some(wait) => {
                    tracing::debug!(call = call.name(), %error, wait_ms = wait.as_millis(), "trying again");
                    tokio::time::sleep(wait).await;
                }
                None => return Err(error),
            }
        }
    }

    /// Asks one time.
    pub(crate) async fn ask_once<A: DeserializeOwned>(&self, call: &Call) -> Result<A, Error> {
        let (_, body) = self.exchange(call, &[]).await?;
        serde_json::from_slice(&body).map_err(|error| self.foreign(call, StatusCode::OK, error.to_string()))
    }

    /// Asks one time and takes the answer as it is, also with the status of an error.
    pub(crate) async fn ask_raw(&self, call: &Call) -> Result<(StatusCode, Bytes), Error> {
        let whole = async {
            let response = self.send(call, &[]).await?;
            let status = response.status();
            Ok((status, self.body(call, response).await?))
        };
        self.in_time(call, whole).await
    }

    /// Opens a stream: the body comes as long as the coordinator sends. Answers also how far the journal was
    /// when it began.
    pub(crate) async fn open(
        &self,
        call: &Call,
        headers: &[(&'static str, String)],
    ) -> Result<(Option<Position>, Incoming), Error> {
        let begun = async {
            let response = self.send(call, headers).await?;
            if !response.status().is_success() {
                return Err(self.problem(call, response).await);
            }
            let position = response.headers().get(POSITION).and_then(|value| value.to_str().ok());
            let position = position.and_then(|value| value.trim().parse().ok()).map(Position);
            Ok((position, response.into_body()))
        };
        self.in_time(call, begun).await
    }

    /// A stream that broke or went silent.
    pub(crate) fn broken(&self, call: &Call, why: String) -> Error {
        Error::new(Kind::Interrupted { call: call.name(), url: self.url.clone(), why }, call.repeat)
    }

    async fn exchange(
        &self,
        call: &Call,
        headers: &[(&'static str, String)],
    ) -> Result<(StatusCode, Bytes), Error> {
        let whole = async {
            let response = self.send(call, headers).await?;
            let status = response.status();
            if !status.is_success() {
                return Err(self.problem(call, response).await);
            }
            Ok((status, self.body(call, response).await?))
        };
        self.in_time(call, whole).await
    }

    async fn in_time<T>(
        &self,
        call: &Call,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let after = self.timeout + call.held;
        let late = |_| {
            let kind = Kind::TimedOut { call: call.name(), url: self.url.clone(), after };
            Err(Error::new(kind, call.repeat))
        };
        tokio::time::timeout(after, work).await.unwrap_or_else(late)
    }

    async fn send(
        &self,
        call: &Call,
        headers: &[(&'static str, String)],
    ) -> Result<Response<Incoming>, Error> {
        let mut request =
            Request::builder().method(call.method.clone()).uri(format!("{}{}", self.url, call.path));
        if !call.body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request = request.header(ACCEPT, "application/json, text/event-stream");
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let request = request
            .body(Full::new(call.body.clone()))
            .map_err(|error| Error::invalid(format!("cannot ask for {}: {error}", call.path)))?;
        self.http.request(request).await.map_err(|error| self.unsent_or_interrupted(call, &error))
    }

    fn unsent_or_interrupted(&self, call: &Call, error: &legacy::Error) -> Error {
        let why = innermost(error);
        if error.is_connect() {
            return Error::new(Kind::Unreachable { url: self.url.clone(), why }, call.repeat);
        }
        self.broken(call, why)
    }

    async fn body(&self, call: &Call, response: Response<Incoming>) -> Result<Bytes, Error> {
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        body.map(http_body_util::Collected::to_bytes).map_err(|error| self.broken(call, error.to_string()))
    }

    async fn problem(&self, call: &Call, response: Response<Incoming>) -> Error {
        let status = response.status();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after = retry_after.and_then(|value| value.trim().parse::<f64>().ok());
        let retry_after = retry_after.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let body = match self.body(call, response).await {
            Ok(body) => body,
            Err(error) => return error,
        };
        match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) => Error::new(Kind::Answered { problem, retry_after }, call.repeat),
            Err(_) => self.foreign(call, status, shorten(&String::from_utf8_lossy(&body))),
        }
    }

    pub(crate) fn foreign(&self, call: &Call, status: StatusCode, why: String) -> Error {
        Error::new(Kind::Foreign { call: call.name(), url: self.url.clone(), status, why }, call.repeat)
    }
}

/// Writes a value for a query.
pub(crate) fn encode(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(char::from(byte))
            }
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

fn check_url(url: &str) -> Result<String, Error> {
    let wrong = |why: &str| Error::invalid(format!("{url:?} is not the address of a coordinator: {why}"));
    let uri: Uri = url.parse().map_err(|_| wrong("write it like http://127.0.0.1:3000"))?;
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => return Err(wrong("https is not spoken here; use http to a proxy on this machine")),
        _ => return Err(wrong("write it like http://127.0.0.1:3000")),
    }
    if uri.authority().is_none_or(|authority| authority.as_str().contains('@')) {
        return Err(wrong("pass the token by itself, not in the address"));
    }
    if uri.query().is_some() {
        return Err(wrong("it has no place for a query"));
    }
    Ok(url.trim_end_matches('/').to_owned())
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
    fn an_address_keeps_its_path_and_loses_its_last_slash() {
        assert_eq!(check_url("http://127.0.0.1:3000/").unwrap(), "http://127.0.0.1:3000");
        assert_eq!(check_url("http://proxy/orchestrix/").unwrap(), "http://proxy/orchestrix");
    }

    #[test]
    fn a_wrong_address_is_refused_with_an_example() {
        for bad in ["127.0.0.1:3000", "nonsense", "ftp://x", "", "http://user:secret@host", "http://h/?a=b"] {
            assert!(check_url(bad).is_err(), "{bad:?}");
        }
        let error = check_url("127.0.0.1:3000").unwrap_err();
        assert!(error.to_string().contains("http://127.0.0.1:3000"), "{error}");
    }

    #[test]
    fn a_token_never_shows_in_debug_output() {
        let transport = Transport::new("http://h", Some("s3cret"), CONNECT, 0).unwrap();
        assert!(!format!("{transport:?}").contains("s3cret"));
        let error = Transport::new("http://h", Some("s3cret\u{7f}x"), CONNECT, 0).unwrap_err();
        assert!(!error.to_string().contains("s3cret"));
    }

    #[test]
    fn values_of_a_query_are_encoded() {
        assert_eq!(encode("a b&c=ä"), "a%20b%26c%3D%C3%A4");
    }

    #[test]
    fn a_page_of_text_is_shortened_to_a_line() {
        assert_eq!(shorten(" a\n b "), "a b");
        assert_eq!(shorten(""), "an empty answer");
        assert_eq!(shorten(&"ä".repeat(500)).chars().count(), 121);
    }

    #[tokio::test]
    async fn a_refused_connection_is_unreachable_and_certainly_did_nothing() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", socket.local_addr().unwrap());
        drop(socket);
        let transport = Transport::new(&url, None, CONNECT, 0).unwrap();
        let call = Call::post("/v1/tasks", &1, Repeat::Doubles).unwrap();
        let error = transport.ask::<u32>(call).await.unwrap_err();
        assert_eq!(error.code(), "unreachable");
        assert!(error.is_retryable());
        assert!(error.to_string().contains("connection refused"), "{error}");
    }

    #[tokio::test]
    async fn a_connection_that_breaks_leaves_the_outcome_unknown_and_is_not_repeated() {
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
        let transport = Transport::new(&url, None, CONNECT, 5).unwrap();
        let call = Call::post("/v1/tasks", &1, Repeat::Doubles).unwrap();
        let error = transport.ask::<u32>(call).await.unwrap_err();
        assert_eq!(error.code(), "interrupted");
        assert!(error.is_outcome_unknown() && !error.is_retryable());
        assert_eq!(server.await.unwrap(), 1);
    }
}
