//! Routes of workers: lease, heartbeat, complete, fail, release.

use orchestrix_core::wire::{CompletedBatch, Item, LeaseQueue, WorkerHeartbeat};
use orchestrix_node::{Answer, Ask};

use crate::http::answer::{Reply, taken};
use crate::http::body::parse;
use crate::http::error::{Fault, item_problem};
use crate::http::handle::Call;
use crate::http::query::{path_name, task_id};

pub(crate) fn lease_queue(call: &Call<'_>) -> Result<Ask, Fault> {
    call.no_query()?;
    let queue = path_name(call.part)?;
    let request: LeaseQueue = parse(&call.body)?;
    Ok(Ask::Lease(request.from_queue(queue)))
}

pub(crate) fn lease_queues(call: &Call<'_>) -> Result<Ask, Fault> {
    call.no_query()?;
    Ok(Ask::Lease(parse(&call.body)?))
}

pub(crate) fn leases(_: &Call<'_>, answer: Answer) -> Result<Reply, Fault> {
    Reply::ok(taken!(&answer, Answer::Leases { leases, .. } => leases))
}

pub(crate) fn heartbeat(call: &Call<'_>) -> Result<Ask, Fault> {
    call.no_query()?;
    let body = parse(&call.body)?;
    Ok(Ask::heartbeat(task_id(call.part)?, body))
}

pub(crate) fn extended(_: &Call<'_>, answer: Answer) -> Result<Reply, Fault> {
    Reply::ok(&taken!(answer, Answer::Extended(extended) => extended))
}

pub(crate) fn heartbeat_worker(call: &Call<'_>) -> Result<Ask, Fault> {
    call.no_query()?;
    let worker = path_name(call.part)?;
    let WorkerHeartbeat { leases } = parse(&call.body)?;
    Ok(Ask::HeartbeatAll { worker, leases })
}

pub(crate) fn worker_extended(_: &Call<'_>, answer: Answer) -> Result<Reply, Fault> {
    Reply::ok(taken!(&answer, Answer::WorkerExtended(extended) => extended))
}

pub(crate) fn complete(call: &Call<'_>) -> Result<Ask, Fault> {
    call.no_query()?;
    let body = parse(&call.body)?;
    Ok(Ask::complete(task_id(call.part)?, body))
}

pub(crate) fn complete_batch(call: &Call<'_>) -> Result<Ask, Fault> {
    call.no_query()?;
    Ok(Ask::complete_batch(parse(&call.body)?)?)
}

pub(crate) fn completed_batch(_: &Call<'_>, answer: Answer) -> Result<Reply, Fault> {
    let outcomes = taken!(answer, Answer::Batch(outcomes) => outcomes);
    let item = |outcome: Result<_, _>| {
        outcome.map_or_else(|refusal| Item::Refused(item_problem(&refusal)), Item::Done)
    };
    Reply::ok(&CompletedBatch { items: outcomes.into_iter().map(item).collect() })
}

pub(crate) fn fail(call: &Call<'_>) -> Result<Ask, Fault> {
    call.no_query()?;
    let body = parse(&call.body)?;
    Ok(Ask::fail(task_id(call.part)?, body))
}

pub(crate) fn release(call: &Call<'_>) -> Result<Ask, Fault> {
    call.no_query()?;
    let body = parse(&call.body)?;
    Ok(Ask::release(task_id(call.part)?, body))
}
