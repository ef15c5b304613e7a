//! What there is, as a whole: queues, workers, the cluster, health and metrics.

use std::sync::atomic::Ordering::Relaxed;

use http::StatusCode;
use orchestrix_core::wire::{Health, HealthCheck};
use serde_json::json;

use crate::http::answer::Reply;
use crate::http::error::Fault;
use crate::http::handle::Call;
use crate::metrics;

pub(crate) async fn queues(call: Call<'_>) -> Result<Reply, Fault> {
    call.no_query()?;
    let mut list = call.app.node.queues().await?;
    if let Some(own) = call.caller.queues() {
        list.queues.retain(|view| own.contains(&view.queue));
    }
    Reply::ok(&list)
}

pub(crate) async fn workers(call: Call<'_>) -> Result<Reply, Fault> {
    call.no_query()?;
    call.caller.check_all_queues()?;
    Reply::ok(&call.app.node.workers().await?)
}

pub(crate) async fn cluster(call: Call<'_>) -> Result<Reply, Fault> {
    call.no_query()?;
    Reply::ok(&call.app.node.cluster().await?)
}

pub(crate) fn health(call: &Call<'_>) -> Result<Reply, Fault> {
    let is_healthy = !call.app.node_ended.load(Relaxed);
    let (status, word) =
        if is_healthy { (StatusCode::OK, "healthy") } else { (StatusCode::SERVICE_UNAVAILABLE, "unhealthy") };
    let checks = vec![HealthCheck { component: "Coordinator".to_owned(), is_healthy }];
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

pub(crate) async fn metrics(call: &Call<'_>) -> Result<Reply, Fault> {
    // A node that has stopped still has its counters.
    let mut queues = call.app.node.queues().await.map_or_else(|_| Vec::new(), |list| list.queues);
    queues.retain(|view| call.caller.check_queue(&view.queue).is_ok());
    let text = metrics::render(&call.app.node, &call.app.metrics, &queues, call.app.streams.count());
    Ok(Reply::new(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text))
}
