//! Routes of services: registrations and heartbeats of workers, and views and changes for operators.

use std::time::Duration;

use orchestrix_core::limits::SHARDS_MAX;
use orchestrix_core::wire::{Assignment, ShardDeregister};
use orchestrix_core::{Event, Name, ShardEvent, ShardWorkerLeft, ShardsLetGo, ShardsMoved};
use orchestrix_node::{Answer, Ask, Events, Happening, Node, ServicePage, ShardAsk};

use crate::http::answer::{Reply, taken};
use crate::http::body::parse;
use crate::http::error::Fault;
use crate::http::handle::Call;
use crate::http::query::path_name;
use crate::http::sse::{self, Piece};
use crate::http::streams::{Gone, Sink};

pub(crate) fn register(call: &Call<'_>) -> Result<Ask, Fault> {
    let (service, worker) = named(call)?;
    Ok(asking(ShardAsk::Register { service, worker, body: parse(&call.body)? }))
}

pub(crate) fn heartbeat(call: &Call<'_>) -> Result<Ask, Fault> {
    let (service, worker) = named(call)?;
    Ok(asking(ShardAsk::Heartbeat { service, worker, body: parse(&call.body)? }))
}

pub(crate) fn deregister(call: &Call<'_>) -> Result<Ask, Fault> {
    let (service, worker) = named(call)?;
    let body = if call.body.is_empty() { ShardDeregister::default() } else { parse(&call.body)? };
    Ok(asking(ShardAsk::Deregister { service, worker, body }))
}

fn asking(ask: ShardAsk) -> Ask {
    Ask::Shards(Box::new(ask))
}

pub(crate) fn assigned(_: &Call<'_>, answer: Answer) -> Result<Reply, Fault> {
    Reply::ok(taken!(&answer, Answer::Assignment(assignment) => assignment))
}

/// The service and the worker in the path.
fn named(call: &Call<'_>) -> Result<(Name, Name), Fault> {
    call.no_query()?;
    Ok((path_name(call.part)?, path_name(call.second)?))
}

pub(crate) fn services(call: &Call<'_>) -> Result<Ask, Fault> {
    let query = call.query(&["group"])?;
    Ok(asking(ShardAsk::Services { group: query.name("group")? }))
}

pub(crate) fn service_list(_: &Call<'_>, answer: Answer) -> Result<Reply, Fault> {
    Reply::ok(taken!(&answer, Answer::Services(services) => services))
}

pub(crate) fn service(call: &Call<'_>) -> Result<Ask, Fault> {
    let query = call.query(&["limit", "cursor"])?;
    let limit = query.bounded("limit", 1, SHARDS_MAX as usize, SHARDS_MAX as usize)?;
    let from = query.number("cursor")?.unwrap_or(0);
    Ok(asking(ShardAsk::Service(ServicePage { service: path_name(call.part)?, from, limit })))
}

pub(crate) fn view(_: &Call<'_>, answer: Answer) -> Result<Reply, Fault> {
    Reply::ok(taken!(&answer, Answer::Service(service) => service))
}

pub(crate) fn change(call: &Call<'_>) -> Result<Ask, Fault> {
    call.no_query()?;
    let change = parse(&call.body)?;
    Ok(asking(ShardAsk::Change { service: path_name(call.part)?, change }))
}

/// What a worker should serve, at once and whenever it changes.
pub(crate) fn follow(call: &Call<'_>, node: &Node) -> Result<Reply, Fault> {
    let missing = "parameter session is missing: name the session that the worker registered with";
    let session = call.query(&["session"])?.name("session")?;
    let session = session.ok_or_else(|| Fault::Invalid(missing.to_owned()))?;
    let (service, worker) = (path_name(call.part)?, path_name(call.second)?);
    let events = node.events(None).only(&[ShardWorkerLeft::KIND, ShardsLetGo::KIND, ShardsMoved::KIND]);
    let (node, keep_alive) = (node.clone(), call.app.limits.keep_alive);
    sse::reply(call, |sink| tell(sink, events, node, Follower { service, worker, session }, keep_alive))
}

/// Who wants to hear of changes.
struct Follower {
    service: Name,
    worker: Name,
    session: Name,
}

async fn tell(
    sink: Sink,
    mut events: Events,
    node: Node,
    follower: Follower,
    keep_alive: Duration,
) -> Result<(), Gone> {
    let Follower { service, worker, session } = follower;
    let mut sent = None;
    loop {
        let ask = ShardAsk::Assignment {
            service: service.clone(),
            worker: worker.clone(),
            session: session.clone(),
        };
        // A new stream asks the next leader.
        let Ok(now) = node.shards(ask).await else { return Ok(()) };
        let mut piece = Piece::default();
        let fenced = now.fenced;
        // In generation 0 nothing is known of the process; the answer to its next heartbeat says more.
        let says_something = fenced || now.generation.0 > 0;
        if says_something && sent.as_ref().is_none_or(|sent: &Assignment| fenced || sent.tokens != now.tokens)
        {
            piece.frame(Some("assignment"), Some(now.generation.0), &now);
            sent = Some(now);
        }
        sink.send(piece).await?;
        if fenced {
            return Ok(());
        }
        loop {
            let waited = tokio::select! {
                waited = tokio::time::timeout(keep_alive, events.next()) => waited,
                () = sink.gone() => return Err(Gone),
            };
            match waited {
                Ok(happening) if concerns(&happening, &service) => break,
                Ok(_) => {}
                Err(_) => sink.send(Piece::comment()).await?,
            }
        }
    }
}

/// Whether something happened to a service; what was missed may have.
fn concerns(happening: &Happening, service: &Name) -> bool {
    let Happening::Event { event, .. } = happening else { return true };
    let Event::Shard(event) = event else { return false };
    match event {
        ShardEvent::ShardWorkerLeft(event) => event.service == *service,
        ShardEvent::ShardsLetGo(event) => event.service == *service,
        ShardEvent::ShardsMoved(event) => event.service == *service,
        ShardEvent::ShardWorkerJoined(_) | ShardEvent::ShardCountSet(_) | ShardEvent::ShardWeightsSet(_) => {
            false
        }
    }
}
