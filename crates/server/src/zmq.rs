//! Shards over ZeroMQ: a ROUTER for workers that are DEALERs.
//!
//! One message, file by file: `peer` reads it off a connection, `message` finds out what it asks, `http/access`
//! checks who asks, `coordinator` has the leader decide, and `peer` writes the answer. `pushes` tells workers
//! what has changed without being asked.
//!
//! **Invariant:** a connection is only a way for words to travel. Who speaks for a worker is decided by the node, from
//! the session that a connection has by itself or that a worker names.

mod address;
#[doc(hidden)]
pub mod fuzz_api;
mod message;
mod peer;
mod pushes;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use orchestrix_node::Counter;
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use self::peer::Strangers;
use self::pushes::Pushes;
use crate::http::{App, ConnectionPermits};

pub use self::address::Place;
pub(crate) use self::address::host_of;

/// Where workers of other coordinators look for one.
pub const DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 5_555);
/// The pause after an accept that failed for want of something.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What is counted about ZeroMQ.
#[derive(Debug, Default)]
pub(crate) struct ZmqMetrics {
    pub(crate) connections: AtomicU64,
    pub(crate) connections_refused: Counter,
    pub(crate) messages: Counter,
    pub(crate) refused: Counter,
    pub(crate) broken: Counter,
    pub(crate) stuck: Counter,
    pub(crate) pushed: Counter,
}

impl ZmqMetrics {
    /// What `GET /metrics` tells: a name, what kind it is, what it means, and a number.
    pub(crate) fn rows(&self) -> [(&'static str, &'static str, &'static str, u64); 7] {
        let counter = |name, meaning, counter: &Counter| (name, "counter", meaning, counter.get());
        [
            (
                "orchestrix_zmq_connections",
                "gauge",
                "Open ZeroMQ connections.",
                self.connections.load(Relaxed),
            ),
            counter(
                "orchestrix_zmq_connections_refused_total",
                "ZeroMQ connections refused because there were too many.",
                &self.connections_refused,
            ),
            counter("orchestrix_zmq_messages_total", "Messages received over ZeroMQ.", &self.messages),
            counter(
                "orchestrix_zmq_errors_total",
                "Messages that were answered with an error.",
                &self.refused,
            ),
            counter(
                "orchestrix_zmq_broken_total",
                "ZeroMQ peers disconnected because they broke the protocol.",
                &self.broken,
            ),
            counter(
                "orchestrix_zmq_stuck_total",
                "ZeroMQ peers disconnected because they did not read their messages.",
                &self.stuck,
            ),
            counter(
                "orchestrix_zmq_pushes_total",
                "Assignments sent to workers without a request.",
                &self.pushed,
            ),
        ]
    }
}

/// A socket that is bound and not yet served.
#[derive(Debug)]
pub struct Listening {
    listener: TcpListener,
    address: SocketAddr,
}

impl Listening {
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Takes an address.
///
/// # Errors
/// When the address cannot be used.
pub fn listen(address: SocketAddr) -> io::Result<Listening> {
    let listener = crate::http::bind(address)?;
    let address = listener.local_addr()?;
    Ok(Listening { listener, address })
}

/// What all connections share.
#[derive(Debug)]
struct Front {
    app: Arc<App>,
    pushes: Pushes,
    strangers: Strangers,
}

/// Serves until the coordinator stops, then lets connections finish.
pub(crate) async fn serve(listening: Listening, app: Arc<App>) {
    let strangers = Strangers::new(app.limits.zmq_stranger_bytes);
    let front = Arc::new(Front { app: Arc::clone(&app), pushes: Pushes::default(), strangers });
    tokio::spawn(pushes::follow(Arc::clone(&front)));
    let connections = TaskTracker::new();
    let permits = Arc::<ConnectionPermits>::default();
    loop {
        let accepted = tokio::select! {
            accepted = listening.listener.accept() => accepted,
            () = app.stop.cancelled() => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a ZeroMQ connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (all, per_ip) = (app.limits.zmq_connections, app.limits.zmq_connections_per_ip);
        let Some(permit) = ConnectionPermits::take(&permits, peer.ip().to_canonical(), all, per_ip) else {
            app.zmq.connections_refused.add(1);
            continue;
        };
        // Without it, small answers wait for the peer's acknowledgement; where it fails they are just slower.
        let _ = stream.set_nodelay(true);
        let front = Arc::clone(&front);
        connections.spawn(async move {
            let _permit = permit;
            front.app.zmq.connections.fetch_add(1, Relaxed);
            peer::serve(stream, peer.ip().to_canonical(), &front).await;
            front.app.zmq.connections.fetch_sub(1, Relaxed);
        });
    }
    connections.close();
    if tokio::time::timeout(app.limits.stop_grace, connections.wait()).await.is_err() {
        tracing::warn!(
            left = connections.len(),
            "some ZeroMQ connections did not take their answers in time"
        );
    }
}
