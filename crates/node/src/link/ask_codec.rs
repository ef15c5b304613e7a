//! Asks as CBOR. What is read is checked as a request of a client is: by constructors, and by `validate`.

use minicbor::Decoder;
use orchestrix_core::limits::{BATCH_ITEMS_MAX, BATCH_PAYLOAD_BYTES_MAX, PAGE_MAX};
use orchestrix_core::wire::{
    LeaseQueues, ServiceChange, ShardDeregister, ShardHeartbeat, ShardRegister, Submit,
};
use orchestrix_core::{Command, Filter, Refusal, TaskCommand};

use crate::link::bus_codec::{self, LOCAL};
use crate::link::codec::{Bad, Field, Out, bad, numbered, put, put_choice, take, take_choice};
use crate::request::Ask;
use crate::shards::{ServicePage, ShardAsk};

/// Numbers of one heartbeat or question. More than fit the largest body of a request.
const NUMBERS_MAX: usize = 1 << 20;

numbered! {
    Submit {
        0 queue, 1 payload, 2 key, 3 priority, 4 delay_ms, 5 max_attempts, 6 timeout_ms, 7 ttl_ms, 8 backoff
    }
    LeaseQueues { 0 queues, 1 worker, 2 max, 3 lease_ms, 4 wait_ms, 5 request_id, 6 capacity }
    Filter { 0 queue, 1 state }
    ShardRegister { 0 max_shard_count, 1 capacity, 2 group, 3 session, 4 seq, 5 by }
    ShardHeartbeat {
        0 max_shard_count, 1 assigned_shards, 2 generation, 3 seq, 4 session, 5 capacity, 6 group, 7 by
    }
    ShardDeregister { 0 session, 1 seq }
    ServiceChange { 0 shard_count, 1 weights }
    ServicePage { 0 service, 1 from, 2 limit }
}

impl Field for Command {
    fn put(&self, out: &mut Out) {
        match self {
            Self::Task(command) => command.put(out),
            Self::Term(_) | Self::Shard(_) | Self::Ownership(_) => {
                unreachable!("no caller asks for this command by itself")
            }
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        TaskCommand::take(from).map(Self::Task)
    }
}

impl Field for TaskCommand {
    fn put(&self, out: &mut Out) {
        match self {
            // The hash of the request is made again by the leader.
            Self::Submit { task, request: _ } => {
                put_choice(out, 0);
                task.put(out);
            }
            Self::Heartbeat { task, lease, worker, progress, note } => {
                put_choice(out, 1);
                put!(out, 0 task, 1 lease, 2 worker, 3 progress, 4 note);
            }
            Self::Complete { task, lease, worker, result } => {
                put_choice(out, 2);
                put!(out, 0 task, 1 lease, 2 worker, 3 result);
            }
            Self::Fail { task, lease, worker, error, retry } => {
                put_choice(out, 3);
                put!(out, 0 task, 1 lease, 2 worker, 3 error, 4 retry);
            }
            Self::Release { task, lease, worker } => {
                put_choice(out, 4);
                put!(out, 0 task, 1 lease, 2 worker);
            }
            Self::Cancel { task, actor } => {
                put_choice(out, 5);
                put!(out, 0 task, 1 actor);
            }
            Self::Retry { task, actor } => {
                put_choice(out, 6);
                put!(out, 0 task, 1 actor);
            }
            Self::Lease(_)
            | Self::Offer(_)
            | Self::Start(_)
            | Self::Extend(_)
            | Self::Note { .. }
            | Self::ResumeBus { .. }
            | Self::HeartbeatAll { .. }
            | Self::Abandon { .. }
            | Self::Expire { .. }
            | Self::Purge(_) => unreachable!("no caller asks for this command by itself"),
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        Ok(match take_choice(from)? {
            0 => {
                let Command::Task(submit) = Command::submit(Submit::take(from)?) else {
                    return Err(bad("a submit is about a task"));
                };
                submit
            }
            1 => take!(from, { 0 task, 1 lease, 2 worker, 3 progress, 4 note } =>
                Self::Heartbeat { task, lease, worker, progress, note }),
            2 => take!(from, { 0 task, 1 lease, 2 worker, 3 result } =>
                Self::Complete { task, lease, worker, result }),
            3 => take!(from, { 0 task, 1 lease, 2 worker, 3 error, 4 retry } =>
                Self::Fail { task, lease, worker, error, retry }),
            4 => take!(from, { 0 task, 1 lease, 2 worker } => Self::Release { task, lease, worker }),
            5 => take!(from, { 0 task, 1 actor } => Self::Cancel { task, actor }),
            6 => take!(from, { 0 task, 1 actor } => Self::Retry { task, actor }),
            _ => return Err(bad("unknown command")),
        })
    }
}

impl Field for ShardAsk {
    fn put(&self, out: &mut Out) {
        match self {
            Self::Register { service, worker, body } => {
                put_choice(out, 0);
                put!(out, 0 service, 1 worker, 2 body);
            }
            Self::Heartbeat { service, worker, body } => {
                put_choice(out, 1);
                put!(out, 0 service, 1 worker, 2 body);
            }
            Self::Deregister { service, worker, body } => {
                put_choice(out, 2);
                put!(out, 0 service, 1 worker, 2 body);
            }
            Self::Change { service, change } => {
                put_choice(out, 3);
                put!(out, 0 service, 1 change);
            }
            Self::Assignment { service, worker, session } => {
                put_choice(out, 4);
                put!(out, 0 service, 1 worker, 2 session);
            }
            Self::Service(page) => {
                put_choice(out, 5);
                page.put(out);
            }
            Self::Services { group } => {
                put_choice(out, 6);
                put!(out, 0 group);
            }
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        Ok(match take_choice(from)? {
            0 => take!(from, { 0 service, 1 worker, 2 body } => Self::Register { service, worker, body }),
            1 => take!(from, { 0 service, 1 worker, 2 body } => Self::Heartbeat { service, worker, body }),
            2 => take!(from, { 0 service, 1 worker, 2 body } => Self::Deregister { service, worker, body }),
            3 => take!(from, { 0 service, 1 change } => Self::Change { service, change }),
            4 => take!(from, { 0 service, 1 worker, 2 session } =>
                Self::Assignment { service, worker, session }),
            5 => Self::Service(ServicePage::take(from)?),
            6 => take!(from, { 0 group } => Self::Services { group }),
            _ => return Err(bad("unknown ask about shards")),
        })
    }
}

impl Field for Ask {
    fn put(&self, out: &mut Out) {
        match self {
            Self::Command(command) => {
                put_choice(out, 0);
                command.put(out);
            }
            Self::Batch(commands) => {
                put_choice(out, 1);
                commands.put(out);
            }
            Self::Heartbeat(command) => {
                put_choice(out, 2);
                command.put(out);
            }
            Self::HeartbeatAll { worker, leases } => {
                put_choice(out, 3);
                put!(out, 0 worker, 1 leases);
            }
            Self::Lease(request) => {
                put_choice(out, 4);
                request.put(out);
            }
            Self::Attempt { task, lease } => {
                put_choice(out, 5);
                put!(out, 0 task, 1 lease);
            }
            Self::Task(task) => {
                put_choice(out, 6);
                task.put(out);
            }
            Self::Tasks { filter, after, limit } => {
                put_choice(out, 7);
                put!(out, 0 filter, 1 after, 2 limit);
            }
            Self::Explain(task) => {
                put_choice(out, 8);
                task.put(out);
            }
            Self::Queues => {
                put_choice(out, 9);
                put!(out,);
            }
            Self::Workers => {
                put_choice(out, 10);
                put!(out,);
            }
            Self::Cluster => {
                put_choice(out, 11);
                put!(out,);
            }
            Self::Shards(ask) => {
                put_choice(out, 12);
                ask.put(out);
            }
            Self::Unknown(tasks) => {
                put_choice(out, 13);
                tasks.put(out);
            }
            Self::Owner(ask) => {
                put_choice(out, 14);
                ask.put(out);
            }
            Self::Dispatch(_) => unreachable!("{LOCAL}"),
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        Ok(match take_choice(from)? {
            0 => Self::Command(Field::take(from)?),
            1 => Self::Batch(Field::take(from)?),
            2 => Self::Heartbeat(Field::take(from)?),
            3 => {
                take!(from, { 0 worker, 1 leases } => Self::HeartbeatAll { worker, leases })
            }
            4 => Self::Lease(Field::take(from)?),
            5 => take!(from, { 0 task, 1 lease } => Self::Attempt { task, lease }),
            6 => Self::Task(Field::take(from)?),
            7 => take!(from, { 0 filter, 1 after, 2 limit } => Self::Tasks { filter, after, limit }),
            8 => Self::Explain(Field::take(from)?),
            9 => take!(from, {} => Self::Queues),
            10 => take!(from, {} => Self::Workers),
            11 => take!(from, {} => Self::Cluster),
            12 => Self::Shards(Field::take(from)?),
            13 => Self::Unknown(Field::take(from)?),
            14 => Self::Owner(Field::take(from)?),
            _ => return Err(bad("unknown ask")),
        })
    }
}

/// Checks an ask that came from another node as what a client sends is checked.
pub(super) fn validate(ask: &Ask) -> Result<(), Refusal> {
    match ask {
        Ask::Command(Command::Task(TaskCommand::Heartbeat { .. })) => Err(Refusal::Internal),
        Ask::Heartbeat(command) if !matches!(command, Command::Task(TaskCommand::Heartbeat { .. })) => {
            Err(Refusal::Internal)
        }
        Ask::Command(command) | Ask::Heartbeat(command) => command.validate(),
        Ask::Batch(commands) => validate_batch(commands),
        Ask::HeartbeatAll { worker, leases } => {
            Command::Task(TaskCommand::HeartbeatAll { worker: worker.clone(), leases: leases.clone() })
                .validate()
        }
        Ask::Lease(request) => request.validate(),
        Ask::Tasks { limit, .. } => at_most("limit", *limit, PAGE_MAX),
        Ask::Shards(ask) => match &**ask {
            ShardAsk::Heartbeat { body, .. } => at_most("shards", body.assigned_shards.len(), NUMBERS_MAX),
            ShardAsk::Register { .. }
            | ShardAsk::Deregister { .. }
            | ShardAsk::Change { .. }
            | ShardAsk::Assignment { .. }
            | ShardAsk::Service(_)
            | ShardAsk::Services { .. } => Ok(()),
        },
        Ask::Unknown(tasks) => at_most("tasks", tasks.len(), NUMBERS_MAX),
        Ask::Owner(ask) => bus_codec::validate(ask),
        Ask::Dispatch(_) => Err(Refusal::Internal),
        Ask::Attempt { .. } | Ask::Task(_) | Ask::Explain(_) | Ask::Queues | Ask::Workers | Ask::Cluster => {
            Ok(())
        }
    }
}

fn validate_batch(commands: &[Command]) -> Result<(), Refusal> {
    at_most("items", commands.len(), BATCH_ITEMS_MAX)?;
    let mut bytes = 0;
    for command in commands {
        // Each is validated by itself when it is decided: one that is not valid is refused alone.
        let Command::Task(command) = command else { return Err(Refusal::Internal) };
        bytes += match command {
            TaskCommand::Submit { task, .. } => task.payload.as_str().len(),
            TaskCommand::Complete { result, .. } => result.as_ref().map_or(0, |result| result.as_str().len()),
            TaskCommand::Heartbeat { .. } => return Err(Refusal::Internal),
            TaskCommand::Fail { .. }
            | TaskCommand::Release { .. }
            | TaskCommand::Cancel { .. }
            | TaskCommand::Retry { .. }
            | TaskCommand::Lease(_)
            | TaskCommand::Offer(_)
            | TaskCommand::Start(_)
            | TaskCommand::Extend(_)
            | TaskCommand::Note { .. }
            | TaskCommand::ResumeBus { .. }
            | TaskCommand::HeartbeatAll { .. }
            | TaskCommand::Abandon { .. }
            | TaskCommand::Expire { .. }
            | TaskCommand::Purge(_) => 0,
        };
    }
    if bytes > BATCH_PAYLOAD_BYTES_MAX {
        return Err(Refusal::TooLarge { field: "items", bytes, max: BATCH_PAYLOAD_BYTES_MAX });
    }
    Ok(())
}

fn at_most(field: &'static str, items: usize, max: usize) -> Result<(), Refusal> {
    if items <= max {
        return Ok(());
    }
    Err(Refusal::Invalid {
        field,
        problem: format!("has {items} items, at most {max} are accepted in one call"),
    })
}
