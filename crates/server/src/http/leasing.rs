//! Tasks as workers see them: lease, heartbeat, complete, fail, release.

use futures_util::future::try_join_all;
use orchestrix_core::wire::{
    Complete, CompleteBatch, CompletedBatch, Fail, Heartbeat, Item, LeaseQueue, LeaseQueues, Release,
    WorkerHeartbeat,
};
use orchestrix_core::{Refusal, TaskId};
use orchestrix_node::{Error, Node};

use crate::http::answer::Reply;
use crate::http::body::parse;
use crate::http::error::{Fault, item_problem};
use crate::http::handle::Call;
use crate::http::query::path_name;

pub(crate) async fn lease_queue(call: Call<'_>, node: &Node) -> Result<Reply, Fault> {
    call.no_query()?;
    let queue = path_name(call.part)?;
    let request: LeaseQueue = parse(&call.body)?;
    lease(call, node, request.from_queue(queue)).await
}

pub(crate) async fn lease_queues(call: Call<'_>, node: &Node) -> Result<Reply, Fault> {
    call.no_query()?;
    let request = parse(&call.body)?;
    lease(call, node, request).await
}

async fn lease(call: Call<'_>, node: &Node, request: LeaseQueues) -> Result<Reply, Fault> {
    for queue in &request.queues {
        call.caller.check_queue(queue)?;
    }
    Reply::ok(&node.lease(request).await?)
}

pub(crate) async fn heartbeat(call: Call<'_>, node: &Node) -> Result<Reply, Fault> {
    call.no_query()?;
    let body: Heartbeat = parse(&call.body)?;
    let id = call.task(node).await?;
    Reply::ok(&node.heartbeat(id, body).await?)
}

pub(crate) async fn heartbeat_worker(call: Call<'_>, node: &Node) -> Result<Reply, Fault> {
    call.no_query()?;
    let worker = path_name(call.part)?;
    let body: WorkerHeartbeat = parse(&call.body)?;
    let within = call.caller.queues().map(<[_]>::to_vec);
    Reply::ok(&node.heartbeat_worker(worker, body.leases, within).await?)
}

pub(crate) async fn complete(call: Call<'_>, node: &Node) -> Result<Reply, Fault> {
    call.no_query()?;
    let body: Complete = parse(&call.body)?;
    let id = call.task(node).await?;
    Reply::ok(&node.complete(id, body).await?)
}

pub(crate) async fn complete_batch(call: Call<'_>, node: &Node) -> Result<Reply, Fault> {
    call.no_query()?;
    let batch: CompleteBatch = parse(&call.body)?;
    batch.validate()?;
    if call.caller.queues().is_some() {
        try_join_all(batch.items.iter().map(|item| check_known(&call, node, item.task_id))).await?;
    }
    let outcomes = node.complete_batch(batch.items).await?;
    let items = outcomes.iter().map(|outcome| match outcome {
        Ok(outcome) => Item::Done(*outcome),
        Err(refusal) => Item::Refused(item_problem(refusal)),
    });
    Reply::ok(&CompletedBatch { items: items.collect() })
}

/// Refuses a task of a queue that is not the caller's. One that is not there is refused by itself, later.
async fn check_known(call: &Call<'_>, node: &Node, id: TaskId) -> Result<(), Fault> {
    match call.check_task(node, id).await {
        Err(Fault::Node(Error::Refused(Refusal::NotFound(_)))) => Ok(()),
        checked => checked,
    }
}

pub(crate) async fn fail(call: Call<'_>, node: &Node) -> Result<Reply, Fault> {
    call.no_query()?;
    let body: Fail = parse(&call.body)?;
    let id = call.task(node).await?;
    Reply::ok(&node.fail(id, body).await?)
}

pub(crate) async fn release(call: Call<'_>, node: &Node) -> Result<Reply, Fault> {
    call.no_query()?;
    let body: Release = parse(&call.body)?;
    let id = call.task(node).await?;
    Reply::ok(&node.release(id, body).await?)
}
