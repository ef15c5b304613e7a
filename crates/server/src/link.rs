//! The node link on sockets: a follower passes asks to the leader over a few lasting connections.
//!
//! `leading` is the leader's end of one connection, `following` the follower's few connections, and `passing` the task of each.
//! The rules are in [`orchestrix_node::link`]. A leader that does not have the link is reached by HTTP, request by request, as
//! `http/forward.rs` does.

pub(crate) mod following;
pub(crate) mod leading;
mod passing;

use std::io;
use std::time::Duration;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use orchestrix_core::Position;
use orchestrix_leadership::Candidate;
use orchestrix_node::link::{self as rules, Reply};
use orchestrix_node::{Answer, Ask, Counter, Error};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

use crate::coordinator::{LEADER_WAIT, Question};
use crate::http::Fault;
use crate::link::following::Sent;

/// The protocol in the header `upgrade`.
pub(crate) const PROTOCOL: &str = "orchestrix-link";
/// Where a leader is asked for it.
pub(crate) const PATH: &str = "/v1/cluster/link";

/// Bytes that are read or written at one go.
const GO_BYTES: usize = 128 << 10;

/// What came of an ask that was to go over a link.
pub(crate) enum ByLink<T> {
    /// The leader's answer, and how far its journal was durable.
    Answer(T, Position),
    /// Certainly not decided.
    NotAccepted,
    Unknown,
    /// It goes another way.
    NoLink,
}

impl Question<'_> {
    /// Asks the leader over the link. What comes of it is what would come of the same request over HTTP.
    pub(crate) async fn ask_by_link(
        &self,
        ask: Ask,
        leader: &Candidate,
        epoch: u64,
    ) -> Result<ByLink<Answer>, Fault> {
        let question = rules::Question {
            caller: self.client.caller.clone(),
            ask,
            position: self.position.map(Position),
            request_id: self.carried.request_id(),
            within: Some(LEADER_WAIT),
        };
        match self.app.leader_links.ask(self.app, leader, epoch, question).await {
            Sent::Answered(answered) => self.answered(*answered),
            Sent::NotTaken => Ok(ByLink::NotAccepted),
            Sent::Full(_) | Sent::Overloaded => Err(Fault::Node(Error::Overloaded)),
            // The leader would answer the same again.
            Sent::Unreadable if self.changes_nothing => Err(Fault::Internal),
            Sent::Unreadable | Sent::Unknown => Ok(ByLink::Unknown),
            Sent::NoLink => Ok(ByLink::NoLink),
        }
    }

    fn answered(&self, answered: rules::Answered) -> Result<ByLink<Answer>, Fault> {
        match answered.reply {
            Reply::Done(Ok(answer)) => Ok(ByLink::Answer(answer, answered.position)),
            Reply::Done(Err(Error::Stopping)) | Reply::NotTaken => Ok(ByLink::NotAccepted),
            Reply::Done(Err(Error::OutcomeUnknown)) if self.changes_nothing => Ok(ByLink::NotAccepted),
            Reply::Done(Err(error)) => Err(Fault::Node(error)),
            Reply::Limited(why) => Err(Fault::RateLimited(why)),
            Reply::Behind { asked, at } => Err(Fault::Behind { asked, at }),
            Reply::Cancelled => Ok(ByLink::Unknown),
        }
    }
}

/// Numbers about links.
#[derive(Debug, Default)]
pub(crate) struct LinkMetrics {
    /// Connections to the leader that are open.
    pub(crate) out: AtomicU64,
    /// Connections of followers that are open.
    pub(crate) taken: AtomicU64,
    /// Asks that were sent to the leader.
    pub(crate) asks_sent: Counter,
    /// Asks of followers that were taken.
    pub(crate) asks_taken: Counter,
    /// Asks that were sent and are not answered, waiting calls included.
    pub(crate) in_flight: AtomicU64,
    /// Connections to the leader that were lost.
    pub(crate) lost: Counter,
    /// Bytes of answers that followers have not taken.
    pub(crate) unsent_bytes: AtomicU64,
    /// Links of followers that were ended because they took too little.
    pub(crate) slow: Counter,
}

/// Counts one more while it lives.
pub(crate) struct Counted<'a>(&'a AtomicU64);

impl<'a> Counted<'a> {
    pub(crate) fn one(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl LinkMetrics {
    /// Name, kind, meaning and value of each number.
    pub(crate) fn rows(&self) -> [(&'static str, &'static str, &'static str, u64); 8] {
        [
            (
                "orchestrix_link_connections",
                "gauge",
                "Open links of this node to the leader.",
                self.out.load(Relaxed),
            ),
            (
                "orchestrix_link_followers",
                "gauge",
                "Open links of followers to this node.",
                self.taken.load(Relaxed),
            ),
            (
                "orchestrix_link_asks_in_flight",
                "gauge",
                "Asks sent to the leader that are not answered, waiting calls included.",
                self.in_flight.load(Relaxed),
            ),
            (
                "orchestrix_link_asks_total",
                "counter",
                "Asks sent to the leader by link.",
                self.asks_sent.get(),
            ),
            (
                "orchestrix_link_asks_taken_total",
                "counter",
                "Asks of followers taken by link.",
                self.asks_taken.get(),
            ),
            (
                "orchestrix_link_unsent_bytes",
                "gauge",
                "Bytes of answers that followers have not taken yet.",
                self.unsent_bytes.load(Relaxed),
            ),
            (
                "orchestrix_link_slow_total",
                "counter",
                "Links of followers ended because answers were not taken.",
                self.slow.get(),
            ),
            ("orchestrix_link_lost_total", "counter", "Links to the leader that ended.", self.lost.get()),
        ]
    }
}

/// What is to be written, and how much of it was.
#[derive(Debug)]
struct Output {
    bytes: Vec<u8>,
    written: usize,
    /// When the peer last took something, or there was nothing to take.
    taken_at: Instant,
}

impl Output {
    fn new() -> Self {
        Self { bytes: Vec::new(), written: 0, taken_at: Instant::now() }
    }

    fn is_empty(&self) -> bool {
        self.written == self.bytes.len()
    }

    /// Takes more when all was written.
    fn refill(&mut self, fill: impl FnOnce(&mut Vec<u8>, usize)) {
        if self.is_empty() {
            self.bytes.clear();
            self.written = 0;
            self.taken_at = Instant::now();
            fill(&mut self.bytes, GO_BYTES);
            self.bytes.shrink_to(2 * GO_BYTES);
        }
    }

    async fn write(&mut self, io: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let written = io.write(&self.bytes[self.written..]).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.written += written;
        self.taken_at = Instant::now();
        Ok(())
    }

    /// When the peer has taken nothing for too long, if there is something to take.
    fn stuck_at(&self, timeout: Duration) -> Option<Instant> {
        (!self.is_empty()).then(|| self.taken_at + timeout)
    }

    fn is_stuck(&self, timeout: Duration) -> bool {
        self.stuck_at(timeout).is_some_and(|at| at <= Instant::now())
    }

    /// Writes what is left, before the connection ends.
    async fn flush(&mut self, io: &mut (impl AsyncWrite + Unpin), within: Duration) {
        let all = async {
            while !self.is_empty() {
                self.write(io).await?;
            }
            io.shutdown().await
        };
        // A peer that is gone, or does not take it in time, does without.
        let _ = tokio::time::timeout(within, all).await;
    }
}
