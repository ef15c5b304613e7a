//! Takes connections, within caps, and lets them finish when the server stops.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

use crate::http::{App, connection};

/// The first wait after an accept that failed for want of something; doubles up to the longest.
const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// The answer to a connection that is one too many. Nothing is read for it.
const ONE_TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    content-type: application/problem+json\r\nretry-after: 2\r\nconnection: close\r\ncontent-length: 122\r\n\r\n\
    {\"code\":\"overloaded\",\"detail\":\"there are too many connections; close some or try later\",\"status\":503,\
    \"title\":\"Overloaded\"}";

/// Serves until the stop, then waits for running requests, up to the grace.
pub(crate) async fn run(listener: TcpListener, app: Arc<App>) {
    let connections = TaskTracker::new();
    let mut backoff = BACKOFF_MIN;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = app.stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                backoff = BACKOFF_MIN;
                app.accept_fails.store(false, Relaxed);
                take(stream, peer.ip().to_canonical(), &connections, &app);
            }
            Err(error) if is_of_the_peer(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection; trying again in {backoff:?}");
                app.accept_fails.store(true, Relaxed);
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(BACKOFF_MAX);
            }
        }
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(app.limits.stop_grace, connections.wait()).await.is_err() {
        tracing::warn!(left = connections.len(), "some connections did not take their answers in time");
    }
}

fn take(stream: TcpStream, peer: IpAddr, connections: &TaskTracker, app: &Arc<App>) {
    let limits = &app.limits;
    let Some(permit) =
        ConnectionPermits::take(&app.permits, peer, limits.connections, limits.connections_per_ip)
    else {
        app.metrics.connections_refused.add(1);
        // A peer that cannot take a few bytes at once does without the reason.
        let _ = stream.try_write(ONE_TOO_MANY);
        return;
    };
    // Without it, small answers wait for the peer's acknowledgement; where it fails they are just slower.
    let _ = stream.set_nodelay(true);
    app.metrics.connections.fetch_add(1, Relaxed);
    let app = Arc::clone(app);
    connections.spawn(async move {
        let _permit = permit;
        connection::serve(stream, peer, Arc::clone(&app)).await;
        app.metrics.connections.fetch_sub(1, Relaxed);
    });
}

/// The peer gave up before it was accepted; nothing is wrong here.
fn is_of_the_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    let kind = error.kind();
    kind == ConnectionAborted || kind == ConnectionReset || kind == Interrupted
}

/// Who is connected how often.
#[derive(Debug, Default)]
pub(crate) struct ConnectionPermits {
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_ip: HashMap<IpAddr, usize>,
    /// Addresses of other nodes, which bring the requests of many.
    nodes: HashMap<IpAddr, usize>,
}

/// While it lives, an address is that of a node, and may have as many connections as all may.
#[derive(Debug)]
pub(crate) struct NodeAddress {
    permits: Arc<ConnectionPermits>,
    ip: IpAddr,
}

/// One connection's permit; free again when dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    permits: Arc<ConnectionPermits>,
    ip: IpAddr,
}

impl ConnectionPermits {
    pub(crate) fn take(
        permits: &Arc<Self>,
        ip: IpAddr,
        all_max: usize,
        ip_max: usize,
    ) -> Option<ConnectionPermit> {
        let mut taken = permits.lock();
        let of_ip = taken.by_ip.get(&ip).copied().unwrap_or(0);
        if taken.all >= all_max || (of_ip >= ip_max && !taken.nodes.contains_key(&ip)) {
            return None;
        }
        taken.all += 1;
        taken.by_ip.insert(ip, of_ip + 1);
        drop(taken);
        Some(ConnectionPermit { permits: Arc::clone(permits), ip })
    }

    pub(crate) fn node_at(permits: &Arc<Self>, ip: IpAddr) -> NodeAddress {
        *permits.lock().nodes.entry(ip).or_default() += 1;
        NodeAddress { permits: Arc::clone(permits), ip }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut taken = self.permits.lock();
        taken.all -= 1;
        leave(&mut taken.by_ip, self.ip);
    }
}

impl Drop for NodeAddress {
    fn drop(&mut self) {
        leave(&mut self.permits.lock().nodes, self.ip);
    }
}

/// One less at an address.
fn leave(counts: &mut HashMap<IpAddr, usize>, ip: IpAddr) {
    let left = counts.get_mut(&ip).map(|count| {
        *count -= 1;
        *count
    });
    if left == Some(0) {
        counts.remove(&ip);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_counted_in_all_and_per_address_and_given_back() {
        let permits = Arc::new(ConnectionPermits::default());
        let (a, b): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let take = |ip| ConnectionPermits::take(&permits, ip, 3, 2);
        let first = take(a).unwrap();
        let _second = take(a).unwrap();
        assert!(take(a).is_none(), "two per address");
        let _third = take(b).unwrap();
        assert!(take(b).is_none(), "three in all");
        drop(first);
        assert!(take(b).is_some());
        assert_eq!(permits.lock().by_ip.len(), 2);
    }

    #[test]
    fn a_present_nodes_address_has_no_own_limit() {
        let permits = Arc::new(ConnectionPermits::default());
        let ip: IpAddr = [10, 0, 0, 1].into();
        let take = || ConnectionPermits::take(&permits, ip, 3, 1);
        let first = take().unwrap();
        assert!(take().is_none(), "one per address");
        let (node, again) =
            (ConnectionPermits::node_at(&permits, ip), ConnectionPermits::node_at(&permits, ip));
        drop(node);
        let more = (take().unwrap(), take().unwrap());
        assert!(take().is_none(), "three in all");
        drop((again, more));
        assert!(take().is_none(), "one per address again");
        drop(first);
        assert!(take().is_some());
        assert!(permits.lock().nodes.is_empty());
    }

    #[test]
    fn the_answer_to_one_too_many_is_as_long_as_it_says() {
        let text = std::str::from_utf8(ONE_TOO_MANY).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
        let problem: orchestrix_core::wire::Problem = serde_json::from_str(body).unwrap();
        assert_eq!(problem.code, "overloaded");
    }
}
