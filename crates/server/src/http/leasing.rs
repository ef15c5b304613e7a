//! Tasks as workers see them: lease, heartbeat, complete, fail, release.

use orchestrix_core::wire::{
    Complete, CompleteBatch, CompletedBatch, Fail, Heartbeat, Item, LeaseQueue, LeaseQueues, Release,
    WorkerHeartbeat,
};
use orchestrix_core::{Refusal, TaskId};
use orchestrix_node::Node;

use crate::http::answer::Reply;
use crate::http::body::parse;
use crate::http::error::{Fault, item_problem};
use crate::http::handle::Call;
use crate::http::query::{path_name, task_id};

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
    Reply::ok(&node.heartbeat(task_id(call.part)?, body).await?)
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
    Reply::ok(&node.complete(task_id(call.part)?, body).await?)
}

pub(crate) async fn complete_batch(call: Call<'_>, node: &Node) -> Result<Reply, Fault> {
    call.no_query()?;
    let batch: CompleteBatch = parse(&call.body)?;
    batch.validate()?;
    let ids: Vec<TaskId> = batch.items.iter().map(|item| item.task_id).collect();
    let hidden = call.hidden(node, ids.iter().copied()).await?;
    let own = batch.items.into_iter().zip(&hidden).filter(|(_, hidden)| !**hidden);
    let own: Vec<_> = own.map(|(item, _)| item).collect();
    let decided = if own.is_empty() { Vec::new() } else { node.complete_batch(own).await? };
    let mut decided = decided.into_iter();
    let items = ids.iter().zip(hidden).map(|(id, hidden)| {
        let outcome = match hidden {
            true => Err(Refusal::NotFound(*id)),
            false => decided.next().expect("every item that was asked about is answered"),
        };
        outcome.map_or_else(|refusal| Item::Refused(item_problem(&refusal)), Item::Done)
    });
    Reply::ok(&CompletedBatch { items: items.collect() })
}

pub(crate) async fn fail(call: Call<'_>, node: &Node) -> Result<Reply, Fault> {
    call.no_query()?;
    let body: Fail = parse(&call.body)?;
    Reply::ok(&node.fail(task_id(call.part)?, body).await?)
}

pub(crate) async fn release(call: Call<'_>, node: &Node) -> Result<Reply, Fault> {
    call.no_query()?;
    let body: Release = parse(&call.body)?;
    Reply::ok(&node.release(task_id(call.part)?, body).await?)
}
