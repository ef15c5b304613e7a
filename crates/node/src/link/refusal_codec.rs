//! Refusals as CBOR. What they name is text of this program: a newer leader may name what this node does not know.

use minicbor::Decoder;
use orchestrix_core::{Forbidden, LeaseId, Refusal, TaskId};

use crate::link::codec::{Bad, Field, Out, bad, put, put_choice, take, take_choice};

/// Fields that refusals name.
const FIELDS: [&str; 40] = [
    "address",
    "backoff.base_ms",
    "backoff.factor",
    "backoff.max_ms",
    "bus",
    "capacity",
    "claims",
    "delay_ms",
    "error",
    "group",
    "incarnation",
    "items",
    "lease_ms",
    "leases",
    "limit",
    "lines",
    "max",
    "maxShardCount",
    "max_attempts",
    "node",
    "note",
    "offset",
    "own",
    "payload",
    "priority",
    "progress",
    "queue",
    "queues",
    "result",
    "service",
    "session",
    "shard_count",
    "shards",
    "skipped",
    "tasks",
    "timeout_ms",
    "ttl_ms",
    "wait_ms",
    "weights",
    "worker",
];
/// Why leases are not valid any more.
const STALE: [&str; 13] = [
    "another lease has replaced it, or it never was of this task",
    "it belonged to another worker",
    "it belongs to another worker",
    "it has expired",
    "it has expired: no heartbeat arrived in time",
    "it has expired: the attempt reached the time limit of the task",
    "nobody has started it",
    "it is not the task's any more",
    "it was released",
    "the attempt was reported as failed",
    "the task is not leased under it",
    "the task was cancelled",
    "the task was completed under it",
];
/// What a newer leader says that this node does not know.
const STALE_OTHERWISE: &str = "it is not valid any more";

/// Why leases do not change their owners.
const NOT_OWNER: [&str; 5] = [
    "it is not the node's",
    "it has ended, or is not of the bus",
    "the node has left, or another process has its name",
    "a node that drains takes none",
    "another node owns it",
];

fn known(names: &[&'static str], text: &str) -> Option<&'static str> {
    names.iter().find(|name| **name == text).copied()
}

impl Field for Refusal {
    fn put(&self, out: &mut Out) {
        match self {
            Self::Invalid { field, problem } => {
                put_choice(out, 0);
                put!(out, 0 &(*field).to_owned(), 1 problem);
            }
            Self::TooLarge { field, bytes, max } => {
                put_choice(out, 1);
                put!(out, 0 &(*field).to_owned(), 1 bytes, 2 max);
            }
            Self::NotFound(task) => {
                put_choice(out, 2);
                task.put(out);
            }
            Self::NoService(service) => {
                put_choice(out, 3);
                service.put(out);
            }
            Self::StaleLease { task, lease, why } => {
                put_choice(out, 4);
                put!(out, 0 task, 1 lease, 2 &(*why).to_owned());
            }
            Self::KeyConflict { key, task } => {
                put_choice(out, 5);
                put!(out, 0 key, 1 task);
            }
            Self::NotFailed { task, state } => {
                put_choice(out, 6);
                put!(out, 0 task, 1 state);
            }
            Self::Finished { task, state } => {
                put_choice(out, 7);
                put!(out, 0 task, 1 state);
            }
            Self::Forbidden(Forbidden::Queue(queue)) => {
                put_choice(out, 9);
                queue.put(out);
            }
            Self::Forbidden(Forbidden::AnyQueue) => {
                put_choice(out, 10);
                put!(out,);
            }
            Self::Forbidden(Forbidden::Everything) => {
                put_choice(out, 11);
                put!(out,);
            }
            Self::Internal => {
                put_choice(out, 8);
                put!(out,);
            }
            Self::NotOwner { lease, why } => {
                put_choice(out, 12);
                put!(out, 0 lease, 1 &(*why).to_owned());
            }
            Self::Upgrading { format } => {
                put_choice(out, 13);
                put!(out, 0 & usize::from(*format));
            }
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        Ok(match take_choice(from)? {
            0 => take!(from, { 0 field, 1 problem } => invalid(field, problem)),
            1 => take!(from, { 0 field, 1 bytes, 2 max } => too_large(field, bytes, max)),
            2 => Self::NotFound(Field::take(from)?),
            3 => Self::NoService(Field::take(from)?),
            4 => take!(from, { 0 task, 1 lease, 2 why } => stale(task, lease, why)),
            5 => take!(from, { 0 key, 1 task } => Self::KeyConflict { key, task }),
            6 => take!(from, { 0 task, 1 state } => Self::NotFailed { task, state }),
            7 => take!(from, { 0 task, 1 state } => Self::Finished { task, state }),
            8 => take!(from, {} => Self::Internal),
            9 => Self::Forbidden(Forbidden::Queue(Field::take(from)?)),
            10 => take!(from, {} => Self::Forbidden(Forbidden::AnyQueue)),
            11 => take!(from, {} => Self::Forbidden(Forbidden::Everything)),
            12 => take!(from, { 0 lease, 1 why } => not_owner(lease, why)),
            13 => take!(from, { 0 format } => upgrading(format)),
            _ => return Err(bad("unknown refusal")),
        })
    }
}

/// A field that this node does not know is named in the sentence.
fn invalid(field: String, problem: String) -> Refusal {
    match known(&FIELDS, &field) {
        Some(field) => Refusal::Invalid { field, problem },
        None => Refusal::Invalid { field: "request", problem: field + ": " + &problem },
    }
}

fn too_large(field: String, bytes: usize, max: usize) -> Refusal {
    Refusal::TooLarge { field: known(&FIELDS, &field).unwrap_or("request"), bytes, max }
}

fn stale(task: TaskId, lease: LeaseId, why: String) -> Refusal {
    Refusal::StaleLease { task, lease, why: known(&STALE, &why).unwrap_or(STALE_OTHERWISE) }
}

fn not_owner(lease: LeaseId, why: String) -> Refusal {
    Refusal::NotOwner { lease, why: known(&NOT_OWNER, &why).unwrap_or(NOT_OWNER[0]) }
}

fn upgrading(format: usize) -> Refusal {
    Refusal::Upgrading { format: u8::try_from(format).unwrap_or(u8::MAX) }
}
