//! One connection and its timeouts: a peer that sends its headers too slowly, is idle for too long or does not
//! read its answer is disconnected, and others are not affected.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Request, Response, StatusCode};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::http::answer::{BYTES, Body, PIECE_BYTES_MAX};
use crate::http::limits::Limits;
use crate::http::{App, handle, refusal};

/// Bytes that a connection buffers at least: bodies are read in pieces of up to this size.
const BUFFER_BYTES_MIN: usize = 64 << 10;
/// Headers of one request.
const HEADERS_MAX: usize = 100;

/// Serves one connection to its end.
pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    peer: IpAddr,
    app: Arc<App>,
) {
    let pulse = Arc::new(Pulse::new());
    let io = TokioIo::new(Watched { io: stream, pulse: Arc::clone(&pulse), rewritten: None });
    let service = service_fn(|request: Request<Incoming>| {
        let (app, busy) = (Arc::clone(&app), Busy::begin(&pulse));
        let request = request.map(|incoming| RequestBody { incoming, pulse: Arc::clone(&pulse) });
        async move {
            let mut response = handle::handle(&app, peer, request).await;
            if carries_other_bytes(&response) {
                busy.0.is_raw.store(true, Relaxed);
            }
            response.body_mut().hold(busy);
            Ok::<_, Infallible>(response)
        }
    });
    let mut protocol = http1::Builder::new();
    protocol
        .header_read_timeout(None)
        // Answers are small: one buffer and one write cost less than a list of buffers. Long ones come in pieces, because
        // the buffer never gets smaller again.
        .writev(false)
        .max_headers(HEADERS_MAX)
        .max_buf_size(BUFFER_BYTES_MIN.max(2 * app.limits.header_bytes));
    let connection = pin!(protocol.serve_connection(io, service).with_upgrades());
    run(connection, Watch::new(&pulse, &app.limits), &app).await;
}

/// Whether what follows the headers is neither JSON nor another text of ours, and may look like anything.
fn carries_other_bytes(response: &Response<Body>) -> bool {
    response.status() == StatusCode::SWITCHING_PROTOCOLS
        || response.headers().get(CONTENT_TYPE).is_some_and(|content| content == BYTES)
}

/// Runs a connection until it ends, times out, or has to finish for a stop.
async fn run<C: Connection>(mut connection: Pin<&mut C>, mut watch: Watch, app: &App) {
    let mut stop = pin!(app.stop.cancelled());
    let mut stopping = false;
    std::future::poll_fn(|cx| {
        if !stopping && stop.as_mut().poll(cx).is_ready() {
            stopping = true;
            connection.as_mut().finish();
        }
        if connection.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        watch.poll(&app.limits, cx)
    })
    .await;
}

/// What is asked of a connection here: to go on, and to end after what it has.
trait Connection: Future {
    fn finish(self: Pin<&mut Self>);
}

impl<I, S> Connection for http1::UpgradeableConnection<TokioIo<Watched<I>>, S>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: hyper::service::HttpService<hyper::body::Incoming>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    S::ResBody: 'static,
    <S::ResBody as hyper::body::Body>::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// What a connection does, seen from outside. Times are milliseconds since it began, plus one.
#[derive(Debug)]
struct Pulse {
    start: Instant,
    /// A request is being answered.
    busy: AtomicBool,
    /// Since when nothing was asked.
    idle: AtomicU64,
    /// Since when headers arrive; 0 when none do.
    header: AtomicU64,
    /// Since when the peer takes nothing; 0 when it does.
    blocked: AtomicU64,
    /// Bytes of answers that are in the buffer.
    buffered: AtomicUsize,
    /// An answer whose next piece waits until the buffer is written.
    waiting: Mutex<Option<Waker>>,
    /// The last four bytes that were read.
    read: AtomicU32,
    /// The last bytes of the body of the request that is answered, and how many of them there are, up to four.
    body: AtomicU32,
    body_bytes: AtomicUsize,
    /// The connection carries bytes that may look like an answer of hyper: they go out as they are.
    is_raw: AtomicBool,
}

/// The last four bytes of what came before and of these.
fn last_four(before: u32, bytes: &[u8]) -> u32 {
    let from = bytes.len().saturating_sub(4);
    bytes[from..].iter().fold(before, |last, byte| last << 8 | u32::from(*byte))
}

impl Pulse {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            busy: AtomicBool::new(false),
            idle: AtomicU64::new(1),
            header: AtomicU64::new(0),
            blocked: AtomicU64::new(0),
            read: AtomicU32::new(0),
            body: AtomicU32::new(0),
            body_bytes: AtomicUsize::new(0),
            buffered: AtomicUsize::new(0),
            is_raw: AtomicBool::new(false),
            waiting: Mutex::default(),
        }
    }

    fn took_body(&self, bytes: &[u8]) {
        self.body.store(last_four(self.body.load(Relaxed), bytes), Relaxed);
        self.body_bytes.store((self.body_bytes.load(Relaxed) + bytes.len()).min(4), Relaxed);
    }

    /// Whether what was read last is the end of a request: an empty line, or the end of its body. If not, the next request
    /// has begun already.
    fn is_between_requests(&self) -> bool {
        let read = self.read.load(Relaxed).to_be_bytes();
        let body = self.body.load(Relaxed).to_be_bytes();
        let of_body = self.body_bytes.load(Relaxed);
        read.ends_with(b"\n\r\n")
            || read.ends_with(b"\n\n")
            || of_body > 0 && read[4 - of_body..] == body[4 - of_body..]
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    /// All that was buffered is written.
    fn flushed(&self) {
        if self.buffered.swap(0, Relaxed) > 0
            && let Some(answer) = self.waiting().take()
        {
            answer.wake();
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When this connection is to be let go, if nothing changes.
    fn deadline(&self, limits: &Limits) -> Option<Instant> {
        let after = |since: u64, limit: Duration| self.start + Duration::from_millis(since) + limit;
        let (header, blocked) = (self.header.load(Relaxed), self.blocked.load(Relaxed));
        let asked = match (self.busy.load(Relaxed), header) {
            (true, _) => None,
            (false, 0) => Some(after(self.idle.load(Relaxed), limits.idle_timeout)),
            (false, since) => Some(after(since, limits.header_timeout)),
        };
        let taken = (blocked > 0).then(|| after(blocked, limits.write_timeout));
        asked.into_iter().chain(taken).min()
    }
}

/// A request is being answered while this lives.
#[derive(Debug)]
pub(crate) struct Busy(Arc<Pulse>);

impl Busy {
    fn begin(pulse: &Arc<Pulse>) -> Self {
        pulse.busy.store(true, Relaxed);
        pulse.header.store(0, Relaxed);
        pulse.body_bytes.store(0, Relaxed);
        Self(Arc::clone(pulse))
    }

    /// Ready when the buffer of the connection has room for a piece of an answer, which it gets then.
    pub(crate) fn poll_room(&self, bytes: usize, cx: &Context<'_>) -> Poll<()> {
        let buffered = self.0.buffered.load(Relaxed);
        if buffered > 0 && buffered + bytes > PIECE_BYTES_MAX {
            *self.0.waiting() = Some(cx.waker().clone());
            return Poll::Pending;
        }
        self.0.buffered.store(buffered + bytes, Relaxed);
        Poll::Ready(())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let now = self.0.now();
        self.0.idle.store(now, Relaxed);
        // A request that was begun while another was answered has its own time from now on.
        self.0.header.store(if self.0.is_between_requests() { 0 } else { now }, Relaxed);
        self.0.busy.store(false, Relaxed);
    }
}

/// The body of a request, which tells the pulse how it ends.
#[derive(Debug)]
pub(crate) struct RequestBody {
    incoming: Incoming,
    pulse: Arc<Pulse>,
}

impl hyper::body::Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.incoming).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(bytes) = frame.data_ref()
        {
            self.pulse.took_body(bytes);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// An alarm that is set earlier at once and later only when it rings: a busy connection costs no timers.
struct Watch {
    pulse: Arc<Pulse>,
    armed: Instant,
    alarm: Pin<Box<Sleep>>,
}

impl Watch {
    fn new(pulse: &Arc<Pulse>, limits: &Limits) -> Self {
        let armed = pulse.deadline(limits).unwrap_or(pulse.start);
        Self { pulse: Arc::clone(pulse), armed, alarm: Box::pin(sleep_until(armed)) }
    }

    /// Ready when the connection is to be let go.
    fn poll(&mut self, limits: &Limits, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let Some(deadline) = self.pulse.deadline(limits) else { return Poll::Pending };
            if deadline < self.armed || self.alarm.is_elapsed() {
                self.armed = deadline;
                self.alarm.as_mut().reset(deadline);
            }
            ready!(self.alarm.as_mut().poll(cx));
            if deadline <= Instant::now() {
                return Poll::Ready(());
            }
        }
    }
}

/// A socket, or what stands for one, that tells the pulse what goes in and out.
struct Watched<S> {
    io: S,
    pulse: Arc<Pulse>,
    /// What is written instead of what is given, and how much of it was.
    rewritten: Option<(Vec<u8>, usize)>,
}

impl<S: AsyncWrite + Unpin> Watched<S> {
    /// Writes what is to be written instead of `given` bytes, which count as written when all of it is.
    fn poll_rewritten(&mut self, given: usize, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        while let Some((bytes, at)) = &mut self.rewritten {
            match ready!(Pin::new(&mut self.io).poll_write(cx, &bytes[*at..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => *at += written,
            }
            if *at == bytes.len() {
                self.rewritten = None;
            }
        }
        Poll::Ready(Ok(given))
    }
}

impl<S> Watched<S> {
    fn wrote(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.pulse.blocked.store(0, Relaxed);
        } else if self.pulse.blocked.load(Relaxed) == 0 {
            self.pulse.blocked.store(self.pulse.now(), Relaxed);
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buffer);
        let pulse = &self.pulse;
        pulse.read.store(last_four(pulse.read.load(Relaxed), &buffer.filled()[before..]), Relaxed);
        if buffer.filled().len() > before && !pulse.busy.load(Relaxed) && pulse.header.load(Relaxed) == 0 {
            pulse.header.store(pulse.now(), Relaxed);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.rewritten.is_none() && !self.pulse.is_raw.load(Relaxed) {
            self.rewritten = refusal::rewritten(bytes).map(|new| (new, 0));
        }
        let written = match self.rewritten {
            Some(_) => self.poll_rewritten(bytes.len(), cx),
            None => Pin::new(&mut self.io).poll_write(cx, bytes),
        };
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, slices);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        // It is asked for only when all that was buffered is written.
        if flushed.is_ready() {
            self.pulse.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const REFUSAL: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

    /// What a peer gets of these bytes, after an answer.
    async fn written_after(answer: &Response<Body>) -> Vec<u8> {
        let (ours, mut theirs) = tokio::io::duplex(4_096);
        let pulse = Arc::new(Pulse::new());
        pulse.is_raw.store(carries_other_bytes(answer), Relaxed);
        let mut watched = Watched { io: ours, pulse, rewritten: None };
        watched.write_all(REFUSAL).await.unwrap();
        drop(watched);
        let mut read = Vec::new();
        theirs.read_to_end(&mut read).await.unwrap();
        read
    }

    #[tokio::test]
    async fn bytes_that_look_like_a_refusal_are_not_rewritten() {
        let answer = |status, content| {
            let answer = Response::builder().status(status).header(CONTENT_TYPE, content);
            answer.body(Body::whole(Bytes::new())).unwrap()
        };
        let link = answer(StatusCode::SWITCHING_PROTOCOLS, "none");
        assert_eq!(written_after(&link).await, REFUSAL);
        assert_eq!(written_after(&answer(StatusCode::OK, BYTES)).await, REFUSAL);
        let told = written_after(&answer(StatusCode::OK, "application/json")).await;
        assert!(String::from_utf8(told).unwrap().contains("problem+json"));
    }
}
