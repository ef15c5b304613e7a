//! Views of the whole: queues, workers, the cluster, health and metrics.

use std::borrow::Cow;
use std::mem;
use std::time::Duration;

use http::StatusCode;
use orchestrix_core::wire::{Health, HealthCheck, Lead};
use orchestrix_leadership::{EnsureError, LeadershipEvent};
use orchestrix_node::{Answer, Ask, Member};
use serde_json::json;
use tokio::sync::broadcast::{self, error::RecvError};

use crate::http::answer::{Reply, taken};
use crate::http::body::parse;
use crate::http::error::Fault;
use crate::http::handle::Call;
use crate::http::sse::{self, Piece};
use crate::http::streams::{Gone, Sink};
use crate::metrics;

/// How long numbers wait for a node that does not answer: shorter than who asks for them does.
const VIEWS_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) fn queues(call: &Call<'_>) -> Result<Ask, Fault> {
    call.no_query()?;
    Ok(Ask::Queues)
}

pub(crate) fn queue_list(_: &Call<'_>, answer: Answer) -> Result<Reply, Fault> {
    Reply::ok(taken!(&answer, Answer::Queues(queues) => queues))
}

pub(crate) fn workers(call: &Call<'_>) -> Result<Ask, Fault> {
    call.no_query()?;
    Ok(Ask::Workers)
}

pub(crate) fn worker_list(_: &Call<'_>, answer: Answer) -> Result<Reply, Fault> {
    Reply::ok(taken!(&answer, Answer::Workers(workers) => workers))
}

pub(crate) async fn cluster(call: &Call<'_>) -> Result<Reply, Fault> {
    call.no_query()?;
    let mut cluster = call.app.coordinator.cluster().await?;
    let known = mem::take(&mut cluster.why);
    cluster.why = call.app.not_well().into_iter().chain(known).collect();
    Reply::ok(&cluster)
}

/// What happens to leadership, as it does; each event also under the name of the duty that the server has.
pub(crate) fn news(call: &Call<'_>) -> Result<Reply, Fault> {
    call.no_query()?;
    let news = member(call)?.leadership().events();
    let keep_alive = call.app.limits.keep_alive;
    sse::reply(call, |sink| tell_news(sink, news, keep_alive))
}

async fn tell_news(
    sink: Sink,
    mut news: broadcast::Receiver<LeadershipEvent>,
    keep_alive: Duration,
) -> Result<(), Gone> {
    sink.send(Piece::comment()).await?;
    loop {
        let heard = tokio::select! {
            heard = tokio::time::timeout(keep_alive, news.recv()) => heard,
            () = sink.gone() => return Err(Gone),
        };
        let mut piece = Piece::default();
        match heard {
            Ok(Ok(news)) => {
                piece.frame(Some(news.name()), None, &news);
                piece.frame(Some(&news.name_of(orchestrix_node::DUTY)), None, &news);
            }
            Ok(Err(RecvError::Lagged(missed))) => {
                piece.frame(Some("gap"), None, &json!({ "missed": missed }))
            }
            Ok(Err(RecvError::Closed)) => return Ok(()),
            Err(_) => piece = Piece::comment(),
        }
        sink.send(piece).await?;
    }
}

/// Asks the leader to transfer its leader lease, or to release it.
pub(crate) async fn lead(call: &Call<'_>) -> Result<Reply, Fault> {
    call.no_query()?;
    let asked: Lead = parse(&call.body)?;
    let member = member(call)?;
    // Without a name nothing but an election can be meant.
    let force = asked.force || asked.desired.is_none();
    member.ensure_leader(call.client.caller.name.as_ref(), force, asked.desired.as_deref()).await.map_err(
        |error| match error {
            EnsureError::NotLeader(_) | EnsureError::Stopped => Fault::NoLeader(error.to_string()),
            EnsureError::Absent(_) | EnsureError::Mandate | EnsureError::Behind { .. } => {
                Fault::NotPassed(error.to_string())
            }
        },
    )?;
    Reply::ok(&member.cluster())
}

pub(crate) fn member<'a>(call: &Call<'a>) -> Result<&'a Member, Fault> {
    let alone = || Fault::Invalid("this is a single node; a cluster needs a shared engine".to_owned());
    call.app.coordinator.member().ok_or_else(alone)
}

pub(crate) fn health(call: &Call<'_>) -> Result<Reply, Fault> {
    let reason = call.app.unhealthy().map(Cow::into_owned);
    let is_healthy = reason.is_none();
    let (status, word) =
        if is_healthy { (StatusCode::OK, "healthy") } else { (StatusCode::SERVICE_UNAVAILABLE, "unhealthy") };
    let checks = vec![HealthCheck { component: "Coordinator".to_owned(), is_healthy, reason }];
    Reply::json(status, &Health { status: word.to_owned(), checks })
}

pub(crate) fn ready(call: &Call<'_>) -> Result<Reply, Fault> {
    match call.app.not_ready() {
        None => Reply::ok(&json!({ "status": "ready" })),
        Some(reason) => {
            Reply::json(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "not_ready", "reason": reason }))
        }
    }
}

async fn views(call: &Call<'_>) -> metrics::Views {
    let mut views = metrics::Views::default();
    if let Some(node) = call.app.coordinator.decides() {
        let asked = node.ask(&call.client.caller, Ask::Queues).await;
        if let Ok(Answer::Queues(list)) = asked {
            views.queues = list.queues;
        }
        views.services = node.services(None).await.map_or_else(|_| Vec::new(), |list| list.services);
    }
    views
}

pub(crate) async fn metrics(call: &Call<'_>) -> Result<Reply, Fault> {
    // A node that has stopped, follows or stands still has its counters all the same.
    let views = tokio::time::timeout(VIEWS_TIMEOUT, views(call)).await;
    let views = views.unwrap_or_default();
    let (app, stats) = (call.app, call.app.coordinator.stats());
    let text = match call.client.caller.is_limited() {
        false => {
            let streams = app.streams.count();
            metrics::render(stats, &app.metrics, &app.zmq, &app.links, &views, streams, &app.unprinted)
        }
        true => metrics::render_own(&views.queues),
    };
    Ok(Reply::new(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text))
}
