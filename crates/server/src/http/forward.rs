//! Requests that another node decides: passed to the leader by link or by HTTP, and its answer passed back.
//!
//! **Invariant:** a request is passed on a second time only if it was certainly not accepted, or changes nothing.

use std::net::IpAddr;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING};
use http::{Method, Request, Response, StatusCode, request};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use orchestrix_core::Position;
use orchestrix_core::wire::Problem;
use orchestrix_leadership::Candidate;
use orchestrix_node::{Error, Member, link};
use tokio::time::Instant;

use crate::config::advertised;
use crate::http::App;
use crate::http::answer::{Body, POSITION, REQUEST_ID, Reply};
use crate::http::error::Fault;
use crate::http::handle::{Answered, Call, dispatch};
use crate::http::routes::Route;
use crate::http::sse::{EVENT_STREAM, LAST_EVENT_ID};
use crate::link::asks;
use crate::link::following::Sent;
use crate::tokens::{Role, Secret, wall_seconds};

/// How long a request waits for a leader, and for a position that it has seen elsewhere.
pub(crate) const LEADER_WAIT: Duration = Duration::from_secs(5);
/// How long a request that changes nothing is passed on again and again.
const READ_WAIT_MAX: Duration = Duration::from_secs(60);
/// How often it looks for one.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// A node that does not take a connection for so long is not asked.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of a refusal that are looked at.
const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// Says which node passes a request on. Nobody passes it on again.
const FORWARDED: HeaderName = HeaderName::from_static("orchestrix-forwarded");

/// The address of the caller, for the log of the leader.
const CALLER: HeaderName = HeaderName::from_static("orchestrix-caller-address");
/// What the node shows that says so.
const NODE_AUTHORIZATION: HeaderName = HeaderName::from_static("orchestrix-node-authorization");

/// The headers that a request takes along.
const TAKEN_ALONG: [HeaderName; 5] = [AUTHORIZATION, CONTENT_TYPE, ACCEPT, LAST_EVENT_ID, POSITION];
/// The headers of an answer that are about one connection only.
const LEFT_BEHIND: [HeaderName; 4] = [CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING];

/// Carries requests to the leader and answers back.
#[derive(Debug)]
pub(crate) struct Courier {
    client: Client<HttpConnector, Full<Bytes>>,
    /// What this node shows the others.
    token: RwLock<Option<HeaderValue>>,
}

/// What became of a request that was passed on.
enum Passed {
    /// An answer of the leader that came by link.
    Ours(Reply),
    Answer(Response<Body>),
    /// The other node did not take it; nothing was changed.
    NotAccepted,
    Unknown,
}

/// Where a request that was passed on comes from. Only a node is believed.
pub(crate) fn caller_address(app: &App, headers: &HeaderMap) -> Option<IpAddr> {
    let text = |name: HeaderName| headers.get(name)?.to_str().ok();
    let address = text(CALLER)?.parse().ok()?;
    let secret = Secret::new(text(NODE_AUTHORIZATION)?.strip_prefix("Bearer ")?.to_owned());
    let token = app.tokens.as_ref()?.find(&secret)?;
    (token.has(Role::Node) && !token.is_expired(wall_seconds())).then_some(address)
}

/// Has a request decided: here, if this node leads, else by the node that does.
pub(crate) async fn decide(route: &Route, call: Call<'_>) -> Result<Answered, Fault> {
    let app = call.app;
    let began = Instant::now();
    let mut give_up = began + LEADER_WAIT;
    loop {
        if let Some(node) = app.coordinator.decides() {
            reach_position(&call).await?;
            match dispatch(route, call.clone(), &node).await {
                // The office went elsewhere between the look and the question; nothing was changed.
                Err(Fault::Node(Error::Stopping)) if may_go_elsewhere(&call) => {}
                Err(Fault::Node(Error::OutcomeUnknown))
                    if changes_nothing(&call) && may_go_elsewhere(&call) => {}
                answered => return answered.map(Answered::Ours),
            }
        }
        let Some(member) = app.coordinator.member() else { return Err(Fault::Node(Error::Stopping)) };
        if call.head.headers.contains_key(FORWARDED) {
            return Err(Fault::NoLeader(format!("{} does not lead", member.name())));
        }
        if let Some((leader, epoch)) = member.leadership().leader()
            && !member.is_me(&leader)
        {
            match pass(route, &call, member, &leader, epoch).await? {
                Passed::Ours(reply) => return Ok(Answered::Ours(reply)),
                Passed::Answer(response) => return Ok(Answered::Passed(response)),
                Passed::NotAccepted => {}
                // A leader that was frozen may have kept it for long; the next one gets a chance, too.
                Passed::Unknown if changes_nothing(&call) => {
                    give_up = (Instant::now() + LEADER_WAIT).min(began + READ_WAIT_MAX);
                }
                Passed::Unknown => return Err(Fault::Node(Error::OutcomeUnknown)),
            }
        }
        if app.stop.is_cancelled() {
            return Err(Fault::Node(Error::Stopping));
        }
        if Instant::now() >= give_up {
            return Err(Fault::NoLeader("no node leads at the moment".to_owned()));
        }
        let mut seats = member.seats();
        seats.mark_unchanged();
        // Whoever leads may have changed, here or elsewhere; the look says which.
        let _ = tokio::time::timeout(LOOK_EVERY, seats.changed()).await;
    }
}

/// Asks the leader by link if it can be, else by HTTP.
async fn pass(
    route: &Route,
    call: &Call<'_>,
    member: &Member,
    leader: &Candidate,
    epoch: u64,
) -> Result<Passed, Fault> {
    if let Some(question) = asks::question(route.endpoint, call)? {
        let sent = tokio::select! {
            sent = call.app.leader_links.ask(call.app, leader, epoch, question) => sent,
            () = replaced(member, epoch) => Sent::Unknown,
            () = call.app.stop.cancelled() => Sent::Unknown,
        };
        match sent {
            Sent::Answered(answered) => return answer(route, call, *answered),
            Sent::NotTaken => return Ok(Passed::NotAccepted),
            Sent::Unknown => return Ok(Passed::Unknown),
            Sent::NoLink => {}
        }
    }
    Ok(call.app.courier.pass(call, member, leader, epoch).await)
}

/// What came of an ask that went by link, as it would be if it had gone by HTTP.
fn answer(route: &Route, call: &Call<'_>, answered: link::Answered) -> Result<Passed, Fault> {
    match answered.reply {
        link::Reply::Done(Ok(answer)) => {
            asks::reply(route.endpoint, &answer).map(|reply| Passed::Ours(reply.at(answered.position.0)))
        }
        link::Reply::Done(Err(Error::Stopping)) | link::Reply::NotTaken => Ok(Passed::NotAccepted),
        link::Reply::Done(Err(Error::OutcomeUnknown)) if changes_nothing(call) => Ok(Passed::NotAccepted),
        link::Reply::Done(Err(error)) => Err(Fault::Node(error)),
        link::Reply::Limited(why) => Err(Fault::RateLimited(why)),
        link::Reply::Behind { asked, at } => Err(Fault::Behind { asked, at }),
        link::Reply::Cancelled => Ok(Passed::Unknown),
    }
}

fn may_go_elsewhere(call: &Call<'_>) -> bool {
    call.app.coordinator.member().is_some() && !call.app.stop.is_cancelled()
}

fn changes_nothing(call: &Call<'_>) -> bool {
    call.head.method == Method::GET || call.head.method == Method::HEAD
}

/// Waits for what the caller has seen elsewhere, if it says so.
async fn reach_position(call: &Call<'_>) -> Result<(), Fault> {
    match position(call)? {
        Some(position) => reach(call, position).await,
        None => Ok(()),
    }
}

/// What the caller has seen elsewhere, if it says so.
pub(crate) fn position(call: &Call<'_>) -> Result<Option<u64>, Fault> {
    let Some(given) = call.head.headers.get(&POSITION) else { return Ok(None) };
    let position = given.to_str().ok().and_then(|text| text.parse().ok());
    let wrong = || Fault::Invalid(format!("header orchestrix-position is a number, not {given:?}"));
    position.map(Some).ok_or_else(wrong)
}

/// Waits, but not for ever, until this node is so far.
pub(crate) async fn reach(call: &Call<'_>, position: u64) -> Result<(), Fault> {
    if call.app.coordinator.reaches(Position(position), LEADER_WAIT).await {
        return Ok(());
    }
    Err(Fault::Behind { asked: position, at: call.app.coordinator.stats().durable.get() })
}

impl Courier {
    pub(crate) fn new(token: Option<&Secret>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let mut client = Client::builder(TokioExecutor::new());
        client.pool_timer(TokioTimer::new()).pool_idle_timeout(Duration::from_secs(30));
        Self { client: client.build(connector), token: RwLock::new(token.map(Secret::bearer)) }
    }

    /// What this node shows from now on.
    pub(crate) fn show(&self, token: &Secret) {
        *self.token.write().unwrap_or_else(PoisonError::into_inner) = Some(token.bearer());
    }

    /// Asks another node, in the name of this one.
    pub(crate) async fn ask(&self, request: request::Builder) -> Result<Response<Incoming>, String> {
        let token = self.token.read().unwrap_or_else(PoisonError::into_inner).clone();
        let request = match token {
            Some(token) => request.header(AUTHORIZATION, token),
            None => request,
        };
        let request = request.body(Full::default()).map_err(|error| error.to_string())?;
        self.client.request(request).await.map_err(|error| error.to_string())
    }

    async fn pass(&self, call: &Call<'_>, member: &Member, leader: &Candidate, epoch: u64) -> Passed {
        let token = self.token.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(request) = request(call, member, leader, token) else { return Passed::NotAccepted };
        let sent = tokio::select! {
            sent = self.client.request(request) => sent,
            // Whoever leads now does not wait for the one before, and neither does this.
            () = replaced(member, epoch) => return Passed::Unknown,
            // Nor does a stop wait for another node; what was passed on is withdrawn there.
            () = call.app.stop.cancelled() => return Passed::Unknown,
        };
        match sent {
            Ok(response) if response.status() == StatusCode::SERVICE_UNAVAILABLE => {
                refused(response, changes_nothing(call)).await
            }
            Ok(response) if is_stream(&response) => {
                let ends = [call.app.stop.clone(), call.caller.ended()];
                Passed::Answer(response.map(|body| Body::passed_until(body, ends))).tidied()
            }
            Ok(response) => Passed::Answer(response.map(Body::passed)).tidied(),
            Err(error) if error.is_connect() => {
                tracing::debug!(leader = leader.name, address = leader.address, %error, "the leader is not reached");
                Passed::NotAccepted
            }
            Err(error) => {
                tracing::debug!(leader = leader.name, %error, "the leader did not answer");
                Passed::Unknown
            }
        }
    }
}

fn request(
    call: &Call<'_>,
    member: &Member,
    leader: &Candidate,
    token: Option<HeaderValue>,
) -> Option<Request<Full<Bytes>>> {
    let path = call.head.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let address = address_of(leader)?;
    let mut request = Request::builder().method(call.head.method.clone()).uri(format!("{address}{path}"));
    for name in &TAKEN_ALONG {
        for value in call.head.headers.get_all(name) {
            request = request.header(name, value);
        }
    }
    let mut request = request.header(FORWARDED, member.name()).header(REQUEST_ID, call.request_id);
    if let Some(token) = token {
        request = request.header(CALLER, call.peer.to_string()).header(NODE_AUTHORIZATION, token);
    }
    let request = request.body(Full::new(call.body.clone()));
    request.inspect_err(|error| tracing::warn!(address, %error, "the leader's address cannot be used")).ok()
}

/// Where a leader is reached. Tokens go there: what is in the register has to be what a node may be started with.
pub(crate) fn address_of(leader: &Candidate) -> Option<String> {
    let address = advertised(&leader.address);
    if address.is_err() {
        tracing::warn!(leader = leader.name, address = leader.address, "the leader's address cannot be used");
    }
    address.ok()
}

impl Passed {
    fn tidied(mut self) -> Self {
        if let Self::Answer(response) = &mut self {
            LEFT_BEHIND.iter().for_each(|name| drop(response.headers_mut().remove(name)));
        }
        self
    }
}

fn is_stream(response: &Response<Incoming>) -> bool {
    response.headers().get(CONTENT_TYPE).is_some_and(|content| content == EVENT_STREAM)
}

/// A refusal that says that nothing was changed is not the last word: another may lead by now.
async fn refused(response: Response<Incoming>, changes_nothing: bool) -> Passed {
    let (head, body) = response.into_parts();
    let Ok(body) = Limited::new(body, REFUSAL_BYTES_MAX).collect().await else { return Passed::Unknown };
    let body = body.to_bytes();
    let code = serde_json::from_slice::<Problem>(&body).map(|problem| problem.code);
    match code.as_deref() {
        Ok("no_leader" | "stopping") => return Passed::NotAccepted,
        Ok("outcome_unknown") if changes_nothing => return Passed::NotAccepted,
        Ok(_) | Err(_) => {}
    }
    Passed::Answer(Response::from_parts(head, Body::whole(body))).tidied()
}

/// Waits until somebody else leads.
pub(crate) async fn replaced(member: &Member, epoch: u64) {
    while member.leadership().leader().is_none_or(|(_, now)| now == epoch) {
        tokio::time::sleep(2 * LOOK_EVERY).await;
    }
}
