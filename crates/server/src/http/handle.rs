//! One request from its headers to its answer.

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use http::header::{AUTHORIZATION, HeaderValue};
use http::request::Parts;
use http::{Request, Response};
use tokio::time::Instant;

use crate::coordinator::{Decided, Question};
use crate::http::access::{Client, authorize};
use crate::http::answer::{Body, Reply};
use crate::http::audit::Seen;
use crate::http::body::{self, Received};
use crate::http::connection::RequestBody;
use crate::http::error::Fault;
use crate::http::forward::Carried;
use crate::http::routes::{Audit, Does, Found, Pace, Route, Verb, find};
use crate::http::unsent::{SHORT_BYTES_MAX, Unsent};
use crate::http::{App, forward, guard};

/// A request whose caller may make it.
pub(crate) struct Call<'a> {
    pub(crate) app: &'a Arc<App>,
    pub(crate) head: &'a Parts,
    /// What stands for the first part in braces of the route, and for the second.
    pub(crate) part: &'a str,
    pub(crate) second: &'a str,
    pub(crate) client: Client,
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
                (&head.method, || head.uri.path()),
                Ok(reply.status),
            );
            reply
        }
        // The deciding node has logged it.
        Ok(Answered::Passed(response)) => {
            app.metrics.observe(seen.place(), response.status(), started.elapsed());
            return response;
        }
        Err(fault) => {
            let peer = forward::caller_address(app, &head.headers).unwrap_or(peer);
            seen.tell(app, peer, (&head.method, || head.uri.path()), Err(&fault));
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
    let client = authorize(app, peer, head.headers.get(AUTHORIZATION), route, seen)?;
    let _in_flight = client.enter(app)?;
    // The room of a long body is free when it is answered.
    let Received { bytes: body, _room } = match route.verb {
        Verb::Get => Received::default(),
        Verb::Post | Verb::Put | Verb::Patch | Verb::Delete => {
            let body = body::read(&head.headers, incoming, app, &client).await?;
            client.check_still_known()?;
            body
        }
    };
    seen.note_target(route, &body);
    if route.room > 0 {
        // What is made in vain would cost the loop.
        app.unsent.admit(&client.name(), route.room)?;
    }
    let call = Call { app, head, part, second, client, peer, body, request_id };
    let answered = reply(route, &call).await?;
    hold_if_long(app, &call.client, route.verb, answered)
}

/// An answer that is long stays in memory until its peer has taken it.
fn hold_if_long(app: &App, client: &Client, verb: Verb, answered: Answered) -> Result<Answered, Fault> {
    let Answered::Ours(mut reply) = answered else { return Ok(answered) };
    let bytes = reply.body.bytes();
    if bytes > SHORT_BYTES_MAX {
        let client = client.name();
        let held = match verb {
            Verb::Get => Unsent::hold(&app.unsent, client, bytes)?,
            // What was decided is not refused any more: leases would be lost with their answer.
            Verb::Post | Verb::Put | Verb::Patch | Verb::Delete => {
                Unsent::hold_anyway(&app.unsent, client, bytes)
            }
        };
        reply.unsent = Some(held);
    }
    Ok(Answered::Ours(reply))
}

/// Has a request answered: by every node itself, by the one that decides, or by the leader as the request came.
async fn reply(route: &Route, call: &Call<'_>) -> Result<Answered, Fault> {
    let (app, coordinator) = (call.app, &call.app.coordinator);
    let question = || -> Result<Question<'_>, Fault> {
        Ok(Question {
            app,
            client: &call.client,
            position: forward::position(call)?,
            changes_nothing: route.verb == Verb::Get,
            // What is a line of the leader's log goes there as it came, unless it may wait for long.
            by_link: route.audit == Audit::Unwritten || route.pace == Pace::MayWait,
            carried: Carried::Received(call),
        })
    };
    match route.does {
        Does::Now(now) => now(call).map(Answered::Ours),
        Does::Upgrades(take) => take(call).map(Answered::Passed),
        Does::Here(here) => here(call).await.map(Answered::Ours),
        Does::Asks(ask, reply) => {
            let question = question()?;
            match call.client.wait(route.pace, coordinator.ask(&question, || ask(call))).await? {
                Decided::Answer(answer) => reply(call, answer).map(Answered::Ours),
                Decided::Linked(answer, at) => {
                    reply(call, answer).map(|reply| Answered::Ours(reply.at(at.0)))
                }
                Decided::Passed(response) => Ok(Answered::Passed(response)),
            }
        }
        Does::Leads(lead) => {
            let question = question()?;
            let decided =
                coordinator.decide(&question, |node| async move { lead(call, &node).await }).await?;
            Ok(match decided {
                Decided::Answer(reply) | Decided::Linked(reply, _) => Answered::Ours(reply),
                Decided::Passed(response) => Answered::Passed(response),
            })
        }
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
