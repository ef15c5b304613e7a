//! A node on a socket: HTTP/1.1 and JSON.
//!
//! One request, file by file: `accept` takes the connection, `connection` watches its clock, `handle` checks
//! who asks and finds the route in `routes`, one of `tasks`, `leasing`, `views`, `logs` and `events` asks the
//! node, and `answer` writes the reply. On a node that follows, `forward` has the leader answer, and `feed` brings
//! what the leader writes. `error` alone knows which status a problem has.
//!
//! **Invariant:** a request is refused before its body is read whenever that can be known: by size, by token,
//! by route.

mod accept;
mod access;
mod answer;
mod audit;
mod body;
mod bounds;
mod connection;
mod cursor;
mod dashboard;
mod defaults;
mod endings;
mod error;
mod events;
mod examples;
mod feed;
mod forward;
#[doc(hidden)]
pub mod fuzz_api;
mod guard;
mod handle;
mod incoming;
mod json_error;
mod leasing;
mod limits;
mod link;
mod logs;
#[cfg(test)]
mod notes;
mod openapi;
mod query;
mod quota;
mod refusal;
mod routes;
mod shards;
mod sse;
mod streams;
mod table;
mod tasks;
mod unsent;
mod views;

use std::borrow::Cow;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use orchestrix_node::link::Hello;
use orchestrix_node::{Counter, Failure};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::bus::{self, Found, Identity, OnBus};
use crate::coordinator::Coordinator;
use crate::link::LinkMetrics;
use crate::link::following::Links;
use crate::metrics::HttpMetrics;
use crate::tokens::{Keyring, Replaced, Secret, Tokens};
use crate::zmq::{self, ZmqMetrics};

pub(crate) use accept::ConnectionPermits;
pub(crate) use access::{Client, authorize};
pub(crate) use answer::Body;
pub(crate) use audit::Seen;
pub(crate) use error::Fault;
pub use examples::Example;
pub(crate) use forward::{Carried, Passed, address_of, assignment, of_shards, replaced};
pub(crate) use json_error::plain;
pub use limits::Limits;
pub use openapi::document as openapi_document;
pub use routes::{Access, Endpoint, Route, Scope, Verb};

pub use table::ROUTES;
pub(crate) use table::{SHARD_DEREGISTER, SHARD_HEARTBEAT, SHARD_REGISTER};
pub(crate) use unsent::{Held, SHORT_BYTES_MAX, Unsent};

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 4_096;

/// How a node is served.
#[derive(Debug, Default)]
pub struct Options {
    pub limits: Limits,
    /// Who may do what; without them everyone may do everything.
    pub tokens: Option<Tokens>,
    /// What this node shows the others, who have it among their tokens with the role `node`.
    pub node_token: Option<Secret>,
    /// Where workers with shards speak ZeroMQ, if they do.
    pub zmq: Option<zmq::Listening>,
    /// Lines that this process could not print.
    pub unprinted: Arc<Counter>,
    /// Which node link is spoken; another than that of this program for tests of upgrades.
    #[doc(hidden)]
    pub node_link: NodeLink,
}

/// Which node link a node speaks.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeLink {
    /// That of this program.
    #[default]
    Ours,
    /// None, as programs before it: requests are passed on by HTTP.
    Absent,
    /// That of a program with other versions, from the lowest to the highest.
    Versions(u32, u32),
    /// Ours, with so many asks at one time.
    Asks(usize),
}

/// What all requests share.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) coordinator: Coordinator,
    /// Reaches the leader, when that is another node.
    pub(crate) leader_client: forward::LeaderClient,
    pub(crate) limits: Limits,
    pub(crate) tokens: Option<Keyring>,
    pub(crate) refusals: audit::Refusals,
    /// Only requests that name this machine as their host are answered.
    pub(crate) local_only: bool,
    pub(crate) metrics: HttpMetrics,
    pub(crate) zmq: ZmqMetrics,
    /// Passes asks to the leader, when that is another node and has the link.
    pub(crate) leader_links: Links,
    pub(crate) links: LinkMetrics,
    pub(crate) node_link: NodeLink,
    pub(crate) bus: OnBus,
    /// Links of other nodes, while they are served.
    pub(crate) link_tasks: TaskTracker,
    pub(crate) permits: Arc<accept::ConnectionPermits>,
    pub(crate) quotas: quota::Quotas,
    pub(crate) incoming: Arc<incoming::Incoming>,
    pub(crate) unsent: Arc<unsent::Unsent>,
    pub(crate) streams: Arc<streams::Streams>,
    pub(crate) endings: Arc<endings::Endings>,
    pub(crate) request_ids: answer::RequestIds,
    /// Ends streams and long waits when the server stops.
    pub(crate) stop: CancellationToken,
    pub(crate) node_ended: AtomicBool,
    /// Lines that this process could not print.
    pub(crate) unprinted: Arc<Counter>,
    /// New connections cannot be accepted at the moment.
    pub(crate) accept_fails: AtomicBool,
}

impl App {
    fn new(coordinator: Coordinator, options: Options, served_on: IpAddr) -> Self {
        Self {
            local_only: served_on.is_loopback() && options.tokens.is_none(),
            metrics: HttpMetrics::default(),
            zmq: ZmqMetrics::default(),
            leader_links: Links::default(),
            links: LinkMetrics::default(),
            node_link: options.node_link,
            bus: OnBus::default(),
            link_tasks: TaskTracker::new(),
            permits: Arc::default(),
            quotas: quota::Quotas::new(&options.limits),
            refusals: audit::Refusals::default(),
            incoming: Arc::new(incoming::Incoming::new(&options.limits)),
            unsent: Arc::new(unsent::Unsent::new(&options.limits)),
            streams: Arc::new(streams::Streams::new(&options.limits)),
            endings: Arc::new(endings::Endings::new(coordinator.clone())),
            request_ids: answer::RequestIds::default(),
            stop: CancellationToken::new(),
            node_ended: AtomicBool::new(false),
            unprinted: options.unprinted,
            accept_fails: AtomicBool::new(false),
            limits: options.limits,
            tokens: options.tokens.map(Keyring::new),
            leader_client: forward::LeaderClient::new(options.node_token.as_ref()),
            coordinator,
        }
    }

    /// What this node says first on a link.
    pub(crate) fn hello(&self) -> Hello {
        let name = self.coordinator.member().map_or("", |member| member.name());
        let ours = Hello::new(name, self.tokens.as_ref().map(Keyring::hash));
        match self.node_link {
            NodeLink::Versions(lowest, highest) => Hello { versions: (lowest, highest), ..ours },
            NodeLink::Asks(asks_max) => Hello { asks_max, ..ours },
            NodeLink::Ours | NodeLink::Absent => ours,
        }
    }

    /// Why a restart is all that helps, if so.
    pub(crate) fn unhealthy(&self) -> Option<Cow<'static, str>> {
        if self.node_ended.load(Relaxed) {
            return Some("the node has stopped".into());
        }
        self.coordinator.stalled().map(Cow::Owned)
    }

    /// Why no new work should be sent here, if so.
    pub(crate) fn not_ready(&self) -> Option<Cow<'static, str>> {
        let stuck = || self.coordinator.unwritten().map(Cow::Owned);
        let waits = || {
            let why = self.coordinator.member()?.waits_for()?;
            Some(Cow::Owned(format!("waiting for the engine: {why}")))
        };
        self.unhealthy().or_else(stuck).or_else(waits).or_else(|| self.unreachable())
    }

    /// What keeps this node from doing its part, as sentences, beside what is said of the leader.
    pub(crate) fn not_well(&self) -> Vec<String> {
        let not_ready = self.not_ready().map(|reason| format!("this node is not ready: {reason}"));
        let refuses = self.coordinator.decides().is_some_and(|node| node.stats().space_low.get() > 0);
        let full = refuses.then(|| {
            "the disk is full: new tasks are refused until there is room, and tasks that are there go on"
                .to_owned()
        });
        not_ready.into_iter().chain(full).chain(self.bus.why()).collect()
    }

    fn unreachable(&self) -> Option<Cow<'static, str>> {
        if self.stop.is_cancelled() {
            return Some("the server is stopping".into());
        }
        if self.accept_fails.load(Relaxed) {
            return Some("no new connections can be accepted".into());
        }
        let member = self.coordinator.member()?;
        let status = member.leadership().status();
        if let Some(error) = status.register_error {
            return Some(format!("the engine refuses or does not answer: {error}").into());
        }
        status.leader.is_none().then_some("there is no leader".into())
    }
}

/// A socket that is bound and not yet served.
#[derive(Debug)]
pub struct Listening {
    listener: TcpListener,
    address: SocketAddr,
}

/// A node that is being served.
#[derive(Debug)]
pub struct Serving {
    pub address: SocketAddr,
    app: Arc<App>,
    accepting: JoinHandle<()>,
    /// Ends with the last worker's answer.
    zmq: Option<JoinHandle<()>>,
}

/// Takes an address.
///
/// # Errors
/// When the address cannot be used.
pub fn listen(address: SocketAddr) -> io::Result<Listening> {
    let listener = bind(address)?;
    let address = listener.local_addr()?;
    Ok(Listening { listener, address })
}

pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

impl Listening {
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves a coordinator on this socket, in the background.
    #[must_use]
    pub fn serve(self, coordinator: impl Into<Coordinator>, mut options: Options) -> Serving {
        let Self { listener, address } = self;
        let zmq = options.zmq.take();
        let app = Arc::new(App::new(coordinator.into(), options, address.ip()));
        let ended = Arc::clone(&app);
        tokio::spawn(async move {
            // The owner of the node gets the reason; here it counts only that it stopped.
            let _ = ended.coordinator.stopped().await;
            ended.node_ended.store(true, Relaxed);
        });
        tokio::spawn(feed::take(Arc::clone(&app)));
        tokio::spawn(expire(Arc::clone(&app)));
        let zmq = zmq.map(|listening| tokio::spawn(zmq::serve(listening, Arc::clone(&app))));
        let accepting = tokio::spawn(accept::run(listener, Arc::clone(&app)));
        Serving { address, app, accepting, zmq }
    }
}

/// Ends tokens whose time is over, until the server stops.
async fn expire(app: Arc<App>) {
    let Some(tokens) = &app.tokens else { return };
    tokio::select! {
        () = tokens.expire() => {}
        () = app.stop.cancelled() => {}
    }
}

/// Takes an address and serves a coordinator on it.
///
/// # Errors
/// When the address cannot be used.
pub fn start(
    address: SocketAddr,
    coordinator: impl Into<Coordinator>,
    options: Options,
) -> io::Result<Serving> {
    Ok(listen(address)?.serve(coordinator, options))
}

impl Serving {
    /// Only these tokens are known from now on; what goes on under others ends. Where everyone may do everything, this
    /// stays so: whether there are tokens is decided at the start.
    pub fn replace_tokens(&self, tokens: Tokens) {
        let Some(known) = &self.app.tokens else { return };
        let Replaced { added, ended } = known.replace(tokens);
        tracing::info!(?added, ?ended, "tokens were read again");
    }

    /// What this node shows the others from now on.
    pub fn replace_node_token(&self, token: &Secret) {
        self.app.leader_client.show(token);
    }

    #[cfg(test)]
    pub(crate) fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// Offers tasks over a bus, too.
    pub(crate) fn attach(&self, found: Found, identity: Identity) {
        bus::attach(&self.app, found, identity);
    }

    /// Stops: leases of a bus are handed to other nodes, no new connections, what is in flight is answered, then the node makes everything durable.
    /// Calls that wait for a task are answered with nothing.
    ///
    /// # Errors
    /// The failure that kept the node from a clean stop.
    pub async fn stop(self) -> Result<(), Failure> {
        // While the leader can still be asked.
        self.app.bus.stop().await;
        self.app.stop.cancel();
        let stopped = self.app.coordinator.stop().await;
        self.app.link_tasks.close();
        let workers = async {
            if let Some(zmq) = self.zmq {
                let _ = zmq.await;
            }
        };
        // What a follower does not take in time is unknown to it.
        let links = tokio::time::timeout(self.app.limits.stop_grace, self.app.link_tasks.wait());
        // All have the same time. A panic of the accept loop has been reported by then.
        let _ = tokio::join!(self.accepting, workers, links);
        stopped
    }
}
