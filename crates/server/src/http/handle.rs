//! One request from its headers to its answer.

use std::net::{IpAddr, Ipv4Addr};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use http::header::{AUTHORIZATION, HeaderValue};
use http::request::Parts;
use http::{Request, Response};
use orchestrix_core::limits::{LEASE_PAYLOAD_BYTES_MAX, PAGE_BYTES_MAX};
use orchestrix_core::{Name, is_planted};
use orchestrix_node::Node;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::http::answer::{Body, Reply};
use crate::http::audit::Seen;
use crate::http::connection::RequestBody;
use crate::http::error::Fault;
use crate::http::quota::InFlight;
use crate::http::routes::{Access, Endpoint, Found, Route, Verb, find};
use crate::http::unsent::{SHORT_BYTES_MAX, Unsent};
use crate::http::{
    App, body, dashboard, events, feed, forward, guard, leasing, link, logs, openapi, scope, shards, tasks,
    views,
};
use crate::tokens::{Secret, Token, wall_seconds};

/// A request whose caller may make it.
#[derive(Clone)]
pub(crate) struct Call<'a> {
    pub(crate) app: &'a Arc<App>,
    pub(crate) head: &'a Parts,
    /// What stands for the first part in braces of the route, and for the second.
    pub(crate) part: &'a str,
    pub(crate) second: &'a str,
    pub(crate) caller: Caller,
    /// The address that it comes from.
    pub(crate) peer: IpAddr,
    pub(crate) body: Bytes,
    pub(crate) request_id: &'a HeaderValue,
}

/// An answer, and whose it is.
pub(crate) enum Answered {
    Ours(Reply),
    /// Of the leader.
    Passed(Response<Body>),
}

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) enum Caller {
    /// There are no tokens here; the address is all that is known.
    Anyone(IpAddr),
    Token(Arc<Token>),
}

impl Caller {
    /// What the caller's streams are counted under.
    pub(crate) fn client(&self) -> String {
        match self {
            Self::Anyone(address) => address.to_string(),
            Self::Token(token) => token.name.as_str().to_owned(),
        }
    }

    /// Whose name a change carries.
    pub(crate) fn actor(&self) -> Option<Name> {
        match self {
            Self::Anyone(_) => None,
            Self::Token(token) => Some(token.name.clone()),
        }
    }

    /// Cancelled when the caller may not go on with what it has begun.
    pub(crate) fn ended(&self) -> CancellationToken {
        match self {
            Self::Anyone(_) => CancellationToken::new(),
            Self::Token(token) => token.ended().clone(),
        }
    }

    /// The queues that the caller is limited to, if so.
    pub(crate) fn queues(&self) -> Option<&[Name]> {
        match self {
            Self::Anyone(_) => None,
            Self::Token(token) => token.queues(),
        }
    }
}

/// Answers a request. A bug in a handler is an answer too, and ends nothing else.
pub(crate) async fn handle(app: &Arc<App>, peer: IpAddr, request: Request<RequestBody>) -> Response<Body> {
    let started = Instant::now();
    let (head, body) = request.into_parts();
    let request_id = app.request_ids.name(&head.headers);
    let mut seen = Seen::default();
    let answered =
        AssertUnwindSafe(answer(app, peer, &head, body, &request_id, &mut seen)).catch_unwind().await;
    let answered = answered.unwrap_or_else(|_| {
        tracing::error!(?request_id, method = %head.method, path = head.uri.path(), "a handler stopped because of a bug");
        Err(Fault::Internal)
    });
    let reply = match answered {
        Ok(Answered::Ours(reply)) => {
            seen.tell(
                app,
                forward::caller_address(app, &head.headers).unwrap_or(peer),
                &head,
                Ok(reply.status),
            );
            reply
        }
        // The node that decided has told of it.
        Ok(Answered::Passed(response)) => {
            app.metrics.observe(seen.place(), response.status(), started.elapsed());
            return response;
        }
        Err(fault) => {
            seen.tell(app, forward::caller_address(app, &head.headers).unwrap_or(peer), &head, Err(&fault));
            tracing::debug!(?request_id, method = %head.method, path = head.uri.path(), ?fault, "refused");
            Reply::fault(fault, request_id.to_str().unwrap_or_default())
        }
    };
    app.metrics.observe(seen.place(), reply.status, started.elapsed());
    // How far the journal is says how much goes on here.
    let position = (app.tokens.is_none() || seen.is_known).then(|| app.coordinator.stats().durable.get());
    reply.finish(&app.request_ids, request_id, position)
}

async fn answer(
    app: &Arc<App>,
    peer: IpAddr,
    head: &Parts,
    incoming: RequestBody,
    request_id: &HeaderValue,
    seen: &mut Seen,
) -> Result<Answered, Fault> {
    check_sizes(app, head)?;
    guard::check_one_host(head.version, &head.headers)?;
    guard::check_transfer(&head.headers)?;
    if app.local_only {
        guard::check_host(&head.headers, &head.uri)?;
    }
    guard::check_origin(&head.method, &head.headers)?;
    let (route, [part, second]) = match find(&head.method, head.uri.path()) {
        Found::Route(found, route, parts) => {
            seen.route = Some((found, route));
            (route, parts)
        }
        Found::OtherMethod(allow) => return Err(Fault::OtherMethod(allow)),
        Found::Nothing => return Err(Fault::NoRoute),
    };
    let caller = authorize(app, peer, head, route, seen)?;
    let _in_flight = enter(app, &caller)?;
    let body = match route.verb {
        Verb::Get => Bytes::new(),
        Verb::Post | Verb::Put => body::read(&head.headers, incoming, &app.limits).await?,
    };
    seen.note_target(route, &body);
    if matches!(route.endpoint, Endpoint::LeaseQueue | Endpoint::LeaseQueues) {
        app.unsent.admit(&caller.client(), LEASE_PAYLOAD_BYTES_MAX)?;
    } else if route.endpoint == Endpoint::Service {
        // The loop that decides makes it: not in vain.
        app.unsent.admit(&caller.client(), PAGE_BYTES_MAX)?;
    }
    let call = Call { app, head, part, second, caller: caller.clone(), peer, body, request_id };
    if route.endpoint == Endpoint::Link {
        return link::take(&call).map(Answered::Passed);
    }
    let answered = match answer_here(route.endpoint, &call).await {
        Some(answered) => answered.map(Answered::Ours)?,
        None => decide(route, call).await?,
    };
    hold_if_long(app, &caller, route.verb, answered)
}

/// An answer that is long stays in memory until its peer has taken it.
fn hold_if_long(app: &App, caller: &Caller, verb: Verb, answered: Answered) -> Result<Answered, Fault> {
    let Answered::Ours(mut reply) = answered else { return Ok(answered) };
    let bytes = reply.body.bytes();
    if bytes > SHORT_BYTES_MAX {
        let client = caller.client();
        let held = match verb {
            Verb::Get => Unsent::hold(&app.unsent, client, bytes)?,
            // What was decided is not refused any more: leases would be lost with their answer.
            Verb::Post | Verb::Put => Unsent::hold_anyway(&app.unsent, client, bytes),
        };
        reply.unsent = Some(held);
    }
    Ok(Answered::Ours(reply))
}

/// Has a request decided, here or elsewhere. A call that waits is not answered with work once its token has ended.
async fn decide(route: &Route, call: Call<'_>) -> Result<Answered, Fault> {
    let ended = call.caller.ended();
    let deciding = forward::decide(route, call);
    match route.endpoint {
        Endpoint::LeaseQueue | Endpoint::LeaseQueues | Endpoint::ShardRegister => tokio::select! {
            decided = deciding => decided,
            () = ended.cancelled() => Err(Fault::Unauthorized(
                "this token has expired or was removed while the request waited".to_owned(),
            )),
        },
        // Everything else is over in a moment, and whoever asked should hear what came of it.
        Endpoint::Submit
        | Endpoint::SubmitBatch
        | Endpoint::Complete
        | Endpoint::CompleteBatch
        | Endpoint::Heartbeat
        | Endpoint::WorkerHeartbeat
        | Endpoint::Fail
        | Endpoint::Release
        | Endpoint::Cancel
        | Endpoint::Retry
        | Endpoint::ListTasks
        | Endpoint::Task
        | Endpoint::Explain
        | Endpoint::AppendLogs
        | Endpoint::Logs
        | Endpoint::Queues
        | Endpoint::Workers
        | Endpoint::Cluster
        | Endpoint::ClusterNews
        | Endpoint::Batches
        | Endpoint::Link
        | Endpoint::Services
        | Endpoint::Service
        | Endpoint::ChangeService
        | Endpoint::ShardHeartbeat
        | Endpoint::ShardDeregister
        | Endpoint::ShardAssignments
        | Endpoint::Lead
        | Endpoint::Events
        | Endpoint::Health
        | Endpoint::Ready
        | Endpoint::Metrics
        | Endpoint::OpenApi
        | Endpoint::Dashboard
        | Endpoint::DashboardScript
        | Endpoint::DashboardStyle => deciding.await,
    }
}

/// Has what came by another wire decided, as a request with this head and body would be. Answers also who said it.
pub(crate) async fn decide_said(
    app: &Arc<App>,
    head: &Parts,
    body: Bytes,
) -> Result<(Answered, Caller), Fault> {
    let (mut seen, peer) = (Seen::default(), IpAddr::V4(Ipv4Addr::LOCALHOST));
    let said = answer_said(app, peer, head, body, &mut seen).await;
    match &said {
        Ok((Answered::Ours(reply), _)) => seen.tell(app, peer, head, Ok(reply.status)),
        Ok((Answered::Passed(_), _)) => {}
        Err(fault) => seen.tell(app, peer, head, Err(fault)),
    }
    said
}

async fn answer_said(
    app: &Arc<App>,
    peer: IpAddr,
    head: &Parts,
    body: Bytes,
    seen: &mut Seen,
) -> Result<(Answered, Caller), Fault> {
    let Found::Route(found, route, [part, second]) = find(&head.method, head.uri.path()) else {
        return Err(Fault::NoRoute);
    };
    seen.route = Some((found, route));
    let caller = authorize(app, peer, head, route, seen)?;
    let _in_flight = enter(app, &caller)?;
    let request_id = &app.request_ids.name(&head.headers);
    let call = Call { app, head, part, second, caller: caller.clone(), peer, body, request_id };
    Ok((decide(route, call).await?, caller))
}

fn enter(app: &App, caller: &Caller) -> Result<Option<InFlight>, Fault> {
    match caller {
        Caller::Token(token) => Ok(Some(app.quotas.enter(token.name.as_str())?)),
        Caller::Anyone(_) => Ok(None),
    }
}

fn check_sizes(app: &App, head: &Parts) -> Result<(), Fault> {
    let url = head.uri.path().len() + head.uri.query().map_or(0, |query| query.len() + 1);
    if url > app.limits.url_bytes {
        return Err(Fault::UrlTooLong { max: app.limits.url_bytes });
    }
    let line = |(name, value): (&http::HeaderName, &http::HeaderValue)| name.as_str().len() + value.len() + 4;
    let headers: usize = head.headers.iter().map(line).sum();
    if headers > app.limits.header_bytes {
        return Err(Fault::HeadersTooLarge { max: app.limits.header_bytes });
    }
    Ok(())
}

fn authorize(app: &App, peer: IpAddr, head: &Parts, route: &Route, seen: &mut Seen) -> Result<Caller, Fault> {
    let (Some(tokens), Access::Role(role)) = (&app.tokens, route.access) else {
        return Ok(Caller::Anyone(peer));
    };
    let given = head.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.split_once(' '));
    let secret = match given {
        Some((scheme, text)) if scheme.eq_ignore_ascii_case("bearer") => Secret::new(text.trim().to_owned()),
        Some(_) | None => {
            return Err(Fault::Unauthorized("send a token with `authorization: Bearer …`".to_owned()));
        }
    };
    let token = tokens.find(&secret);
    seen.token = token.as_ref().map(|token| token.name.clone());
    let Some(token) = token.filter(|token| !token.is_expired(wall_seconds())) else {
        if is_planted("secret-shown") {
            return Err(Fault::Unauthorized(format!("{:?} is not known here", given.map(|(_, text)| text))));
        }
        return Err(Fault::Unauthorized("this token is not known here, or it has expired".to_owned()));
    };
    seen.is_known = true;
    let open = is_planted("role-missing") && head.uri.path().ends_with("/retry");
    if !token.has(role) && !open {
        return Err(Fault::Forbidden(format!("this needs a token with the role {}", role.as_str())));
    }
    let caller = Caller::Token(token);
    scope::admit(&caller, route.scope)?;
    Ok(caller)
}

/// What every node answers by itself.
async fn answer_here(endpoint: Endpoint, call: &Call<'_>) -> Option<Result<Reply, Fault>> {
    Some(match endpoint {
        Endpoint::Cluster => views::cluster(call).await,
        Endpoint::ClusterNews => views::news(call),
        Endpoint::Batches => feed::tell(call),
        Endpoint::Events => events::follow(call).await,
        Endpoint::Health => views::health(call),
        Endpoint::Ready => views::ready(call),
        Endpoint::Metrics => views::metrics(call).await,
        Endpoint::OpenApi => Ok(openapi::reply()),
        Endpoint::Dashboard => Ok(dashboard::page()),
        Endpoint::DashboardScript => Ok(dashboard::script()),
        Endpoint::DashboardStyle => Ok(dashboard::style()),
        Endpoint::Submit
        | Endpoint::SubmitBatch
        | Endpoint::LeaseQueue
        | Endpoint::LeaseQueues
        | Endpoint::Complete
        | Endpoint::CompleteBatch
        | Endpoint::Heartbeat
        | Endpoint::WorkerHeartbeat
        | Endpoint::Fail
        | Endpoint::Release
        | Endpoint::Cancel
        | Endpoint::Retry
        | Endpoint::ListTasks
        | Endpoint::Task
        | Endpoint::Explain
        | Endpoint::AppendLogs
        | Endpoint::Logs
        | Endpoint::Queues
        | Endpoint::Workers
        | Endpoint::Services
        | Endpoint::Service
        | Endpoint::ChangeService
        | Endpoint::ShardRegister
        | Endpoint::ShardHeartbeat
        | Endpoint::ShardDeregister
        | Endpoint::ShardAssignments
        | Endpoint::Link
        | Endpoint::Lead => return None,
    })
}

/// What the node that decides answers.
pub(crate) async fn dispatch(route: &Route, call: Call<'_>, node: &Node) -> Result<Reply, Fault> {
    scope::enter(&call, route.scope, node).await?;
    match route.endpoint {
        Endpoint::Submit => tasks::submit(call, node).await,
        Endpoint::SubmitBatch => tasks::submit_batch(call, node).await,
        Endpoint::LeaseQueue => leasing::lease_queue(call, node).await,
        Endpoint::LeaseQueues => leasing::lease_queues(call, node).await,
        Endpoint::Complete => leasing::complete(call, node).await,
        Endpoint::CompleteBatch => leasing::complete_batch(call, node).await,
        Endpoint::Heartbeat => leasing::heartbeat(call, node).await,
        Endpoint::WorkerHeartbeat => leasing::heartbeat_worker(call, node).await,
        Endpoint::Fail => leasing::fail(call, node).await,
        Endpoint::Release => leasing::release(call, node).await,
        Endpoint::Cancel => tasks::cancel(call, node).await,
        Endpoint::Retry => tasks::retry(call, node).await,
        Endpoint::ListTasks => tasks::list(call, node).await,
        Endpoint::Task => tasks::task(call, node).await,
        Endpoint::Explain => tasks::explain(call, node).await,
        Endpoint::AppendLogs => logs::append(call, node).await,
        Endpoint::Logs => logs::read(call, node).await,
        Endpoint::Queues => views::queues(call, node).await,
        Endpoint::Workers => views::workers(call, node).await,
        Endpoint::Services => shards::services(call, node).await,
        Endpoint::Service => shards::service(call, node).await,
        Endpoint::ChangeService => shards::change(call, node).await,
        Endpoint::ShardRegister => shards::register(call, node).await,
        Endpoint::ShardHeartbeat => shards::heartbeat(call, node).await,
        Endpoint::ShardDeregister => shards::deregister(call, node).await,
        Endpoint::ShardAssignments => shards::follow(&call, node),
        Endpoint::Lead => views::lead(&call).await,
        Endpoint::Cluster
        | Endpoint::ClusterNews
        | Endpoint::Batches
        | Endpoint::Link
        | Endpoint::Events
        | Endpoint::Health
        | Endpoint::Ready
        | Endpoint::Metrics
        | Endpoint::OpenApi
        | Endpoint::Dashboard
        | Endpoint::DashboardScript
        | Endpoint::DashboardStyle => unreachable!("every node answers this by itself"),
    }
}
