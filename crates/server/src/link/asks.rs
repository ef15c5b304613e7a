//! Requests that go to the leader over the link: from the request to an ask, and from the answer to what is sent.
//!
//! Requests of callers who are limited to some queues go by HTTP, because the leader checks what these may see. So do
//! requests that are lines of the leader's log, and everything that is rare.

use http::StatusCode;
use orchestrix_core::wire::{
    Complete, CompleteBatch, CompleteItem, CompletedBatch, Fail, Heartbeat, Item, LeaseQueue, LeaseQueues,
    Release, ShardDeregister, ShardHeartbeat, ShardRegister, Submit, SubmitBatch, Submitted, SubmittedBatch,
    WorkerHeartbeat,
};
use orchestrix_core::{Command, Position};
use orchestrix_node::link::{Caller, Question};
use orchestrix_node::{Answer, Ask, Seen, ShardAsk};

use crate::http::{Call, Endpoint, Fault, Reply, body, error, forward, query};

/// The question that a request asks; `None` if it does not go over a link.
pub(crate) fn question(endpoint: Endpoint, call: &Call<'_>) -> Result<Option<Question>, Fault> {
    if call.caller.queues().is_some() {
        return Ok(None);
    }
    let Some(ask) = ask(endpoint, call)? else { return Ok(None) };
    let caller = Caller { name: call.caller.actor(), queues: None, address: Some(call.peer) };
    let position = forward::position(call)?.map(Position);
    let request_id = call.request_id.to_str().ok().map(str::to_owned);
    Ok(Some(Question { caller, ask, position, request_id, within: None }))
}

fn ask(endpoint: Endpoint, call: &Call<'_>) -> Result<Option<Ask>, Fault> {
    let goes = matches!(
        endpoint,
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
            | Endpoint::Task
            | Endpoint::Explain
            | Endpoint::Queues
            | Endpoint::Workers
            | Endpoint::ShardRegister
            | Endpoint::ShardHeartbeat
            | Endpoint::ShardDeregister
    );
    if !goes {
        return Ok(None);
    }
    call.no_query()?;
    let ask = tasks(endpoint, call)?;
    validate(&ask)?;
    Ok(Some(ask))
}

fn validate(ask: &Ask) -> Result<(), Fault> {
    if let Ask::Command(command) | Ask::Heartbeat(command) = ask {
        command.validate()?;
    } else if let Ask::HeartbeatAll { worker, leases, .. } = ask {
        Command::HeartbeatAll { worker: worker.clone(), leases: leases.clone() }.validate()?;
    } else if let Ask::Lease(request) = ask {
        request.validate()?;
    }
    Ok(())
}

fn tasks(endpoint: Endpoint, call: &Call<'_>) -> Result<Ask, Fault> {
    let task = || query::task_id(call.part);
    Ok(match endpoint {
        Endpoint::Submit => Ask::Command(Command::submit(body::parse::<Submit>(&call.body)?)),
        Endpoint::SubmitBatch => {
            let batch: SubmitBatch = body::parse(&call.body)?;
            batch.validate()?;
            Ask::Batch(batch.tasks.into_iter().map(Command::submit).collect())
        }
        Endpoint::LeaseQueue => {
            let queue = query::path_name(call.part)?;
            Ask::Lease(body::parse::<LeaseQueue>(&call.body)?.from_queue(queue))
        }
        Endpoint::LeaseQueues => Ask::Lease(body::parse::<LeaseQueues>(&call.body)?),
        Endpoint::Complete => {
            let Complete { lease_id: lease, worker, result } = body::parse(&call.body)?;
            Ask::Command(Command::Complete { task: task()?, lease, worker, result })
        }
        Endpoint::CompleteBatch => {
            let batch: CompleteBatch = body::parse(&call.body)?;
            batch.validate()?;
            let complete = |CompleteItem { task_id: task, lease_id: lease, result }| Command::Complete {
                task,
                lease,
                worker: None,
                result,
            };
            Ask::Batch(batch.items.into_iter().map(complete).collect())
        }
        Endpoint::Heartbeat => {
            let Heartbeat { lease_id: lease, worker, progress, note } = body::parse(&call.body)?;
            Ask::Heartbeat(Command::Heartbeat { task: task()?, lease, worker, progress, note })
        }
        Endpoint::WorkerHeartbeat => {
            let worker = query::path_name(call.part)?;
            let WorkerHeartbeat { leases } = body::parse(&call.body)?;
            Ask::HeartbeatAll { worker, leases, within: None }
        }
        Endpoint::Fail => {
            let Fail { lease_id: lease, worker, error, retry } = body::parse(&call.body)?;
            Ask::Command(Command::Fail { task: task()?, lease, worker, error, retry })
        }
        Endpoint::Release => {
            let Release { lease_id: lease, worker } = body::parse(&call.body)?;
            Ask::Command(Command::Release { task: task()?, lease, worker })
        }
        Endpoint::Task => Ask::Task(task()?),
        Endpoint::Explain => Ask::Explain(task()?),
        Endpoint::Queues => Ask::Queues,
        Endpoint::Workers => Ask::Workers,
        Endpoint::ShardRegister | Endpoint::ShardHeartbeat | Endpoint::ShardDeregister => {
            Ask::Shards(Box::new(shards(endpoint, call)?))
        }
        Endpoint::Cancel
        | Endpoint::Retry
        | Endpoint::ListTasks
        | Endpoint::AppendLogs
        | Endpoint::Logs
        | Endpoint::Cluster
        | Endpoint::ClusterNews
        | Endpoint::Batches
        | Endpoint::Link
        | Endpoint::Services
        | Endpoint::Service
        | Endpoint::ChangeService
        | Endpoint::ShardAssignments
        | Endpoint::Lead
        | Endpoint::Events
        | Endpoint::Health
        | Endpoint::Ready
        | Endpoint::Metrics
        | Endpoint::OpenApi
        | Endpoint::Dashboard
        | Endpoint::DashboardScript
        | Endpoint::DashboardStyle => return Err(Fault::Internal),
    })
}

fn shards(endpoint: Endpoint, call: &Call<'_>) -> Result<ShardAsk, Fault> {
    let (service, worker) = (query::path_name(call.part)?, query::path_name(call.second)?);
    let by = call.caller.actor();
    Ok(if endpoint == Endpoint::ShardRegister {
        let body = ShardRegister { by, ..body::parse(&call.body)? };
        ShardAsk::Register { service, worker, body }
    } else if endpoint == Endpoint::ShardHeartbeat {
        let body = ShardHeartbeat { by, ..body::parse(&call.body)? };
        ShardAsk::Heartbeat { service, worker, body }
    } else {
        let body = if call.body.is_empty() { ShardDeregister::default() } else { body::parse(&call.body)? };
        ShardAsk::Deregister { service, worker, body }
    })
}

/// What a caller is sent for an answer.
pub(crate) fn reply(endpoint: Endpoint, answer: &Answer) -> Result<Reply, Fault> {
    match answer {
        Answer::Outcome { outcome, seen } if endpoint == Endpoint::Submit => {
            let status = match seen {
                Seen::First => StatusCode::CREATED,
                Seen::Repeat => StatusCode::OK,
            };
            Reply::json(status, &Submitted { id: outcome.id, state: outcome.state })
        }
        Answer::Outcome { outcome, .. } => Reply::ok(outcome),
        Answer::Batch(outcomes) if endpoint == Endpoint::SubmitBatch => {
            let tasks = outcomes.iter().map(|outcome| match outcome {
                Ok(outcome) => Item::Done(Submitted { id: outcome.id, state: outcome.state }),
                Err(refusal) => Item::Refused(error::item_problem(refusal)),
            });
            Reply::ok(&SubmittedBatch { tasks: tasks.collect() })
        }
        Answer::Batch(outcomes) => {
            let items = outcomes.iter().map(|outcome| match outcome {
                Ok(outcome) => Item::Done(*outcome),
                Err(refusal) => Item::Refused(error::item_problem(refusal)),
            });
            Reply::ok(&CompletedBatch { items: items.collect() })
        }
        Answer::Extended(extended) => Reply::ok(extended),
        Answer::WorkerExtended(extended) => Reply::ok(extended),
        Answer::Leases { leases, .. } => Reply::ok(leases),
        Answer::Task(task) => Reply::ok(task),
        Answer::Explanation(explanation) => Reply::ok(explanation),
        Answer::Queues(queues) => Reply::ok(queues),
        Answer::Workers(workers) => Reply::ok(workers),
        Answer::Assignment(assignment) => Reply::ok(assignment),
        Answer::Attempt(_)
        | Answer::Tasks { .. }
        | Answer::Cluster(_)
        | Answer::Service(_)
        | Answer::Services(_)
        | Answer::Unknown(_) => Err(Fault::Internal),
    }
}
