//! Answers: what is sent back, with the headers that every answer has.

use std::fmt::Write;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::header::{CONTENT_SECURITY_POLICY, REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};
use hyper::body::{Frame, Incoming, SizeHint};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::http::connection::Busy;
use crate::http::error::{Fault, ProblemReply};
use crate::http::routes::Methods;
use crate::http::streams::Stream;
use crate::http::unsent::Held;

/// Takes the one kind of answer that a question calls for. Another kind is a bug, here or at the node that answered.
macro_rules! taken {
    ($answer:expr, $pattern:pat => $value:expr) => {
        match $answer {
            $pattern => $value,
            other => {
                tracing::error!(?other, "the answer does not fit its request");
                return Err(crate::http::error::Fault::Internal);
            }
        }
    };
}
pub(crate) use taken;

/// Bytes of a request id that a caller may give.
const REQUEST_ID_BYTES_MAX: usize = 128;
/// Seconds after which to try again: from 1 to this many, at random, so that not all come back at once.
const RETRY_AFTER_S_MAX: u64 = 3;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub(crate) const POSITION: HeaderName = HeaderName::from_static("orchestrix-position");
const FRAME_OPTIONS: HeaderName = HeaderName::from_static("x-frame-options");
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
     frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
);

/// An answer on its way.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) content: &'static str,
    pub(crate) body: Body,
    /// Its place among answers that are long.
    pub(crate) unsent: Option<Held>,
    again: bool,
    allow: Option<Methods>,
    /// The position that it says, if that is not where the journal is by now.
    position: Option<u64>,
}

pub(crate) const JSON: &str = "application/json";
const PROBLEM: &str = "application/problem+json";
/// Neither JSON nor a text.
pub(crate) const BYTES: &str = "application/octet-stream";

impl Reply {
    /// An answer in JSON.
    pub(crate) fn json<T: Serialize>(status: StatusCode, value: &T) -> Result<Self, Fault> {
        let bytes = serde_json::to_vec(value).map_err(|error| {
            tracing::error!(%error, "an answer cannot be written as JSON");
            Fault::Internal
        })?;
        Ok(Self::new(status, JSON, bytes))
    }

    pub(crate) fn ok<T: Serialize>(value: &T) -> Result<Self, Fault> {
        Self::json(StatusCode::OK, value)
    }

    pub(crate) fn new(status: StatusCode, content: &'static str, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            content,
            body: Body::whole(body.into()),
            unsent: None,
            again: false,
            allow: None,
            position: None,
        }
    }

    /// A stream that goes on.
    pub(crate) fn stream(content: &'static str, pieces: mpsc::Receiver<Bytes>, place: Stream) -> Self {
        let body = Body::of(Source::Stream { pieces, _place: place });
        Self {
            status: StatusCode::OK,
            content,
            body,
            unsent: None,
            again: false,
            allow: None,
            position: None,
        }
    }

    /// The same, of a position.
    pub(crate) fn at(self, position: u64) -> Self {
        Self { position: Some(position), ..self }
    }

    pub(crate) fn fault(fault: Fault, request_id: &str) -> Self {
        let ProblemReply { status, problem, again, allow } = fault.problem(request_id);
        let body = serde_json::to_vec(&problem).expect("a problem is plain JSON");
        Self {
            status,
            content: PROBLEM,
            body: Body::whole(body.into()),
            unsent: None,
            again,
            allow,
            position: None,
        }
    }

    /// Adds the headers that every answer has, and those of pages: data is never shown as one.
    pub(crate) fn finish(
        self,
        ids: &RequestIds,
        request_id: HeaderValue,
        position: Option<u64>,
    ) -> Response<Body> {
        let mut response = Response::new(Body { _unsent: self.unsent, ..self.body });
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.reserve(10);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content));
        headers.insert(REQUEST_ID, request_id);
        if let Some(position) = self.position.or(position) {
            headers.insert(POSITION, HeaderValue::from(position));
        }
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if self.content.starts_with("text/html") {
            headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
            headers.insert(FRAME_OPTIONS, HeaderValue::from_static("DENY"));
            headers.insert(CONTENT_SECURITY_POLICY, POLICY);
        }
        if self.again {
            headers.insert(RETRY_AFTER, HeaderValue::from(1 + ids.random() % RETRY_AFTER_S_MAX));
        }
        if let Some(allow) = self.allow {
            let allow = HeaderValue::from_str(&allow.to_string());
            headers.insert(ALLOW, allow.expect("names of methods are fine in a header"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Bytes of an answer that a connection buffers. What it has buffered once it keeps for as long as it lives.
pub(crate) const PIECE_BYTES_MAX: usize = 16 << 10;

/// The body of an answer. A connection takes it in pieces, each when the one before is written.
#[derive(Debug)]
pub(crate) struct Body {
    source: Source,
    /// What the source gave and the connection has not taken.
    rest: Bytes,
    /// Its place among answers that are long.
    _unsent: Option<Held>,
    /// Keeps the connection from being taken for idle.
    busy: Option<Busy>,
}

#[derive(Debug)]
enum Source {
    /// Everything is there.
    Whole,
    /// Pieces as they come; the place among the streams is free again when this is dropped.
    Stream { pieces: mpsc::Receiver<Bytes>, _place: Stream },
    /// What the leader answers, as it comes. A stream ends when this node stops or its caller's token ends, an answer is
    /// brought to its end.
    Passed { incoming: Incoming, ends: Vec<Pin<Box<WaitForCancellationFutureOwned>>> },
}

impl Body {
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self { source: Source::Whole, rest: bytes, _unsent: None, busy: None }
    }

    fn of(source: Source) -> Self {
        Self { source, rest: Bytes::new(), _unsent: None, busy: None }
    }

    pub(crate) fn passed(incoming: Incoming) -> Self {
        Self::of(Source::Passed { incoming, ends: Vec::new() })
    }

    pub(crate) fn passed_until(incoming: Incoming, ends: [CancellationToken; 2]) -> Self {
        let ends = ends.map(|end| Box::pin(end.cancelled_owned())).into();
        Self::of(Source::Passed { incoming, ends })
    }

    /// Bytes that are there already.
    pub(crate) fn bytes(&self) -> usize {
        self.rest.len()
    }

    /// Says which connection takes it.
    pub(crate) fn hold(&mut self, busy: Busy) {
        self.busy = Some(busy);
    }
}

impl Source {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self {
            Self::Whole => Poll::Ready(None),
            Self::Stream { pieces, .. } => {
                pieces.poll_recv(cx).map(|frame| frame.map(|bytes| Ok(Frame::data(bytes))))
            }
            Self::Passed { incoming, ends } => {
                if ends.iter_mut().any(|end| end.as_mut().poll(cx).is_ready()) {
                    return Poll::Ready(None);
                }
                hyper::body::Body::poll_frame(Pin::new(incoming), cx)
            }
        }
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let body = self.get_mut();
        if body.rest.is_empty() {
            match ready!(body.source.poll_frame(cx)).map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(bytes))) => body.rest = bytes,
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        let piece = match &body.busy {
            Some(busy) => {
                let length = body.rest.len().min(PIECE_BYTES_MAX);
                ready!(busy.poll_room(length, cx));
                body.rest.split_to(length)
            }
            None => std::mem::take(&mut body.rest),
        };
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
            && match &self.source {
                Source::Whole => true,
                Source::Stream { .. } => false,
                Source::Passed { incoming, .. } => incoming.is_end_stream(),
            }
    }

    fn size_hint(&self) -> SizeHint {
        let more = match &self.source {
            Source::Whole => Some(0),
            Source::Stream { .. } => None,
            Source::Passed { incoming, .. } => incoming.size_hint().exact(),
        };
        more.map_or_else(SizeHint::default, |more| SizeHint::with_exact(more + self.rest.len() as u64))
    }
}

/// Names requests, so that an answer can be found in the log.
#[derive(Debug)]
pub(crate) struct RequestIds {
    /// Differs from process to process.
    seed: u64,
    next: AtomicU64,
}

impl Default for RequestIds {
    fn default() -> Self {
        Self { seed: RandomState::new().build_hasher().finish(), next: AtomicU64::new(0) }
    }
}

impl RequestIds {
    /// The caller's own id if it is a decent one, else a new one.
    pub(crate) fn name(&self, headers: &HeaderMap) -> HeaderValue {
        let decent = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'-');
        match headers.get(REQUEST_ID) {
            Some(given)
                if (1..=REQUEST_ID_BYTES_MAX).contains(&given.len())
                    && given.as_bytes().iter().all(decent) =>
            {
                given.clone()
            }
            Some(_) | None => {
                let mut id = String::with_capacity(24);
                let number = self.next.fetch_add(1, Relaxed);
                let written = write!(id, "{:08x}-{number:x}", self.seed >> 32);
                written.expect("writing to memory cannot fail");
                HeaderValue::from_str(&id).expect("hexadecimal digits are fine in a header")
            }
        }
    }

    /// A number that differs from call to call; not for secrets.
    fn random(&self) -> u64 {
        let mut mixed =
            self.seed.wrapping_add(self.next.fetch_add(1, Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 31)
    }
}
