//! Requests that another node decides: passed to the leader over HTTP, and its answer passed back. When and to whom is up to
//! `coordinator.rs`.

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
use orchestrix_core::wire::{Assignment, Problem};
use orchestrix_leadership::Candidate;
use orchestrix_node::{Error, Member, ShardAsk};

use crate::config::advertised;
use crate::coordinator::{LOOK_EVERY, Question};
use crate::http::App;
use crate::http::answer::{Body, JSON, POSITION, REQUEST_ID};
use crate::http::error::Fault;
use crate::http::handle::Call;
use crate::http::sse::{EVENT_STREAM, LAST_EVENT_ID};
use crate::tokens::{Role, Secret, wall_seconds};

/// Bytes of an answer of the leader to a worker.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// A node that does not take a connection for so long is not asked.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of a refusal that are looked at.
const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// Names the node that passes a request on. It is never passed on again.
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
pub(crate) struct LeaderClient {
    client: Client<HttpConnector, Full<Bytes>>,
    /// What this node shows the others.
    token: RwLock<Option<HeaderValue>>,
}

/// A question as it reaches a leader that takes only HTTP.
pub(crate) enum Carried<'a> {
    /// A request as it came.
    Received(&'a Call<'a>),
    /// What a worker said over another wire, and the token that it has shown.
    Made(&'a ShardAsk, Option<&'a HeaderValue>),
}

impl Carried<'_> {
    /// The name of the request in logs.
    pub(crate) fn request_id(&self) -> Option<String> {
        match self {
            Self::Received(call) => call.request_id.to_str().ok().map(str::to_owned),
            Self::Made(..) => None,
        }
    }

    /// Whether another node has passed it on already.
    pub(crate) fn is_forwarded(&self) -> bool {
        match self {
            Self::Received(call) => call.head.headers.contains_key(FORWARDED),
            Self::Made(..) => false,
        }
    }
}

/// What became of a request that was passed on.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and it is unpacked at once")]
pub(crate) enum Passed {
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

/// What the caller has seen elsewhere, if it says so.
pub(crate) fn position(call: &Call<'_>) -> Result<Option<u64>, Fault> {
    let Some(given) = call.head.headers.get(&POSITION) else { return Ok(None) };
    let position = given.to_str().ok().and_then(|text| text.parse().ok());
    let wrong = || Fault::Invalid(format!("header orchestrix-position is a number, not {given:?}"));
    position.map(Some).ok_or_else(wrong)
}

impl LeaderClient {
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

    /// Passes a question to the leader.
    pub(crate) async fn pass(
        &self,
        question: &Question<'_>,
        member: &Member,
        leader: &Candidate,
        epoch: u64,
    ) -> Passed {
        let token = self.token.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(request) = request(question, member, leader, token) else { return Passed::NotAccepted };
        let sent = tokio::select! {
            sent = self.client.request(request) => sent,
            // The new leader does not wait for the one before, and neither does this.
            () = replaced(member, epoch) => return Passed::Unknown,
            // Nor does a stop wait for another node; what was passed on is withdrawn there.
            () = question.app.stop.cancelled() => return Passed::Unknown,
        };
        match sent {
            Ok(response) if response.status() == StatusCode::SERVICE_UNAVAILABLE => {
                refused(response, question.changes_nothing).await
            }
            Ok(response) if is_stream(&response) => {
                let ends = [question.app.stop.clone(), question.client.ended()];
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
    question: &Question<'_>,
    member: &Member,
    leader: &Candidate,
    token: Option<HeaderValue>,
) -> Option<Request<Full<Bytes>>> {
    let address = address_of(leader)?;
    let (request, peer, body) = match &question.carried {
        Carried::Received(call) => (received(call, &address), Some(call.peer), call.body.clone()),
        Carried::Made(ask, shown) => {
            let (path, body) = of_shards(ask)?;
            let id = question.app.request_ids.name(&HeaderMap::new());
            let request = Request::builder().method(Method::POST).uri(format!("{address}{path}"));
            let request = request.header(CONTENT_TYPE, JSON).header(REQUEST_ID, id);
            let request = shown.iter().fold(request, |request, shown| request.header(AUTHORIZATION, *shown));
            (request, question.client.caller.address, body)
        }
    };
    let mut request = request.header(FORWARDED, member.name());
    if let (Some(token), Some(peer)) = (token, peer) {
        request = request.header(CALLER, peer.to_string()).header(NODE_AUTHORIZATION, token);
    }
    let request = request.body(Full::new(body));
    request.inspect_err(|error| tracing::warn!(address, %error, "the leader's address cannot be used")).ok()
}

/// A request as it came, for the leader.
fn received(call: &Call<'_>, address: &str) -> request::Builder {
    let path = call.head.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let mut request = Request::builder().method(call.head.method.clone()).uri(format!("{address}{path}"));
    for name in &TAKEN_ALONG {
        for value in call.head.headers.get_all(name) {
            request = request.header(name, value);
        }
    }
    request.header(REQUEST_ID, call.request_id)
}

/// The path and the body of the request that a question of a worker is. Others come only over HTTP.
pub(crate) fn of_shards(ask: &ShardAsk) -> Option<(String, Bytes)> {
    let path = |service, worker, verb| format!("/v1/services/{service}/workers/{worker}/{verb}");
    let (path, body) = match ask {
        ShardAsk::Register { service, worker, body } => {
            (path(service, worker, "register"), serde_json::to_vec(body))
        }
        ShardAsk::Heartbeat { service, worker, body } => {
            (path(service, worker, "heartbeat"), serde_json::to_vec(body))
        }
        ShardAsk::Deregister { service, worker, body } => {
            (path(service, worker, "deregister"), serde_json::to_vec(body))
        }
        ShardAsk::Change { .. }
        | ShardAsk::Assignment { .. }
        | ShardAsk::Service(_)
        | ShardAsk::Services { .. } => return None,
    };
    Some((path, body.expect("what a worker says is plain JSON").into()))
}

/// What the leader has answered to a question of a worker.
pub(crate) async fn assignment(response: Response<Body>) -> Result<Assignment, Problem> {
    let problem = |fault: Fault| fault.problem("").problem;
    let (head, body) = response.into_parts();
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|_| problem(Fault::Node(Error::OutcomeUnknown)))?.to_bytes();
    let unreadable = |_| problem(Fault::Internal);
    if head.status.is_success() {
        return serde_json::from_slice(&body).map_err(unreadable);
    }
    Err(serde_json::from_slice(&body).map_err(unreadable)?)
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

/// Waits until another node is leader.
pub(crate) async fn replaced(member: &Member, epoch: u64) {
    while member.leadership().leader().is_none_or(|(_, now)| now == epoch) {
        tokio::time::sleep(2 * LOOK_EVERY).await;
    }
}
