//! The node link on sockets: a follower passes asks to the leader over a few lasting connections.
//!
//! `leading` is the leader's end of one connection, `following` the follower's end and its few connections, `asks` the
//! requests that go over it. The rules are in [`orchestrix_node::link`]. A leader that does not have the link is reached by
//! HTTP, request by request, as `http/forward.rs` does.

pub(crate) mod asks;
pub(crate) mod following;
pub(crate) mod leading;

use std::io;
use std::time::Duration;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use orchestrix_node::Counter;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

/// The protocol in the header `upgrade`.
pub(crate) const PROTOCOL: &str = "orchestrix-link";
/// Where a leader is asked for it.
pub(crate) const PATH: &str = "/v1/cluster/link";

/// Bytes that are read or written at one go.
const GO_BYTES: usize = 128 << 10;

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
    pub(crate) fn rows(&self) -> [(&'static str, &'static str, &'static str, u64); 6] {
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

    fn is_stuck(&self, timeout: Duration) -> bool {
        !self.is_empty() && self.taken_at.elapsed() >= timeout
    }
}
