//! Answers and errors as CBOR.

use minicbor::Decoder;
use orchestrix_core::Refusal;
use orchestrix_core::wire::{
    Assignment, AttemptView, Cluster, Explanation, LeaseView, Leased, Leases, NodeView, Outcome, QueueList,
    QueueView, ServiceList, ServiceSummary, ServiceView, ShardView, ShardWorkerView, TaskSummary, TaskView,
    WorkerExtended, WorkerList, WorkerView,
};

use crate::link::bus_codec::{LOCAL, WantedOfBus};
use crate::link::codec::{Bad, Field, Out, bad, numbered, put, put_choice, take, take_choice};
use crate::request::{Answer, Ask, Error, Seen};
use crate::shards::ShardAsk;
use crate::tasks::Abandoned;

numbered! {
    Abandoned { 0 at, 1 leases }
    Leases { 0 leases, 1 waited_ms }
    Leased { 0 task_id, 1 lease_id, 2 queue, 3 attempt, 4 payload, 5 lease_ms, 6 timeout_ms }
    WorkerExtended { 0 extended, 1 lost, 2 cancel, 3 lease_ms, 4 lease_ms_each, 5 timeout_ms_each }
    TaskView { 0 summary, 1 payload, 2 result, 3 backoff, 4 attempts }
    TaskSummary {
        0 id, 1 queue, 2 state, 3 priority, 4 key, 5 attempt, 6 max_attempts, 7 round, 8 created_at, 9 not_before_at,
        10 ttl_at, 11 timeout_ms, 12 lease, 13 ended_at, 14 reason, 15 cancelled_by, 16 error
    }
    LeaseView {
        0 lease_id, 1 worker, 2 attempt, 3 granted_at, 4 expires_at, 5 timeout_at, 6 cancel_requested, 7 progress,
        8 note
    }
    AttemptView { 0 attempt, 1 round, 2 lease_id, 3 worker, 4 started_at, 5 ended_at, 6 outcome, 7 error }
    Explanation { 0 id, 1 state, 2 code, 3 detail, 4 not_before_at, 5 ahead, 6 worker, 7 expires_at }
    QueueList { 0 queues }
    QueueView {
        0 queue, 1 ready, 2 delayed, 3 leased, 4 completed, 5 failed, 6 cancelled, 7 submitted_per_s,
        8 completed_per_s, 9 failed_per_s, 10 polls, 11 asked_at, 12 oldest_ms, 13 oldest, 14 next_ms, 15 next
    }
    WorkerList { 0 workers }
    WorkerView { 0 worker, 1 seen_at, 2 leases, 3 capacity }
    Cluster { 0 leader, 1 term, 2 epoch, 3 position, 4 leader_seen_ms, 5 nodes, 6 why }
    NodeView { 0 name, 1 role, 2 state, 3 load, 4 position, 5 lag, 6 address, 7 seen_ms }
    Assignment { 0 assigned_shards, 1 tokens, 2 generation, 3 lease_ms, 4 seq, 5 fenced }
    ServiceView { 0 service, 1 group, 2 shard_count, 3 generation, 4 workers, 5 shards, 6 next_cursor }
    ShardWorkerView { 0 worker, 1 shards, 2 capacity, 3 place, 4 left_ms, 5 listens }
    ShardView { 0 shard, 1 worker, 2 token, 3 state }
    ServiceList { 0 services }
    ServiceSummary { 0 service, 1 group, 2 shard_count, 3 workers, 4 held, 5 withdrawn, 6 free, 7 overlapping }
}

impl Field for Result<Outcome, Refusal> {
    fn put(&self, out: &mut Out) {
        match self {
            Ok(outcome) => {
                put_choice(out, 0);
                outcome.put(out);
            }
            Err(refusal) => {
                put_choice(out, 1);
                refusal.put(out);
            }
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        match take_choice(from)? {
            0 => Outcome::take(from).map(Ok),
            1 => Refusal::take(from).map(Err),
            _ => Err(bad("unknown outcome")),
        }
    }
}

impl Field for Seen {
    fn put(&self, out: &mut Out) {
        matches!(self, Self::Repeat).put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        Ok(if bool::take(from)? { Self::Repeat } else { Self::First })
    }
}

impl Field for Answer {
    fn put(&self, out: &mut Out) {
        match self {
            Self::Outcome { outcome, seen } => {
                put_choice(out, 0);
                put!(out, 0 outcome, 1 seen);
            }
            Self::Batch(outcomes) => {
                put_choice(out, 1);
                outcomes.put(out);
            }
            Self::Extended(extended) => {
                put_choice(out, 2);
                extended.put(out);
            }
            Self::WorkerExtended(extended) => {
                put_choice(out, 3);
                extended.put(out);
            }
            Self::Leases { leases, at } => {
                put_choice(out, 4);
                put!(out, 0 leases, 1 at);
            }
            Self::Attempt(attempt) => {
                put_choice(out, 5);
                attempt.put(out);
            }
            Self::Task(task) => {
                put_choice(out, 6);
                task.put(out);
            }
            Self::Tasks { tasks, next } => {
                put_choice(out, 7);
                put!(out, 0 tasks, 1 next);
            }
            Self::Explanation(explanation) => {
                put_choice(out, 8);
                explanation.put(out);
            }
            Self::Queues(queues) => {
                put_choice(out, 9);
                queues.put(out);
            }
            Self::Workers(workers) => {
                put_choice(out, 10);
                workers.put(out);
            }
            Self::Cluster(cluster) => {
                put_choice(out, 11);
                cluster.put(out);
            }
            Self::Assignment(assignment) => {
                put_choice(out, 12);
                assignment.put(out);
            }
            Self::Service(service) => {
                put_choice(out, 13);
                service.put(out);
            }
            Self::Services(services) => {
                put_choice(out, 14);
                services.put(out);
            }
            Self::Unknown(tasks) => {
                put_choice(out, 15);
                tasks.put(out);
            }
            Self::Bus(answer) => {
                put_choice(out, 16);
                answer.put(out);
            }
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        Ok(match take_choice(from)? {
            0 => take!(from, { 0 outcome, 1 seen } => Self::Outcome { outcome, seen }),
            1 => Self::Batch(Field::take(from)?),
            2 => Self::Extended(Field::take(from)?),
            3 => Self::WorkerExtended(Field::take(from)?),
            4 => take!(from, { 0 leases, 1 at } => Self::Leases { leases, at }),
            5 => Self::Attempt(Field::take(from)?),
            6 => Self::Task(Field::take(from)?),
            7 => take!(from, { 0 tasks, 1 next } => Self::Tasks { tasks, next }),
            8 => Self::Explanation(Field::take(from)?),
            9 => Self::Queues(Field::take(from)?),
            10 => Self::Workers(Field::take(from)?),
            11 => Self::Cluster(Field::take(from)?),
            12 => Self::Assignment(Field::take(from)?),
            13 => Self::Service(Field::take(from)?),
            14 => Self::Services(Field::take(from)?),
            15 => Self::Unknown(Field::take(from)?),
            16 => Self::Bus(Field::take(from)?),
            _ => return Err(bad("unknown answer")),
        })
    }
}

impl Field for Error {
    fn put(&self, out: &mut Out) {
        let number = match self {
            Self::Refused(_) => 0,
            Self::Overloaded => 1,
            Self::StorageFull => 2,
            Self::Stopping => 3,
            Self::Unavailable => 4,
            Self::OutcomeUnknown => 5,
        };
        put_choice(out, number);
        match self {
            Self::Refused(refusal) => refusal.put(out),
            Self::Overloaded
            | Self::StorageFull
            | Self::Stopping
            | Self::Unavailable
            | Self::OutcomeUnknown => put!(out,),
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        let number = take_choice(from)?;
        if number == 0 {
            return Refusal::take(from).map(Self::Refused);
        }
        from.skip()?;
        match number {
            1 => Ok(Self::Overloaded),
            2 => Ok(Self::StorageFull),
            3 => Ok(Self::Stopping),
            4 => Ok(Self::Unavailable),
            5 => Ok(Self::OutcomeUnknown),
            _ => Err(bad("unknown error")),
        }
    }
}

/// What kind of answer an ask calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Outcome,
    Batch(usize),
    Extended,
    WorkerExtended,
    Leases,
    Attempt,
    Task,
    Tasks,
    Explanation,
    Queues,
    Workers,
    Cluster,
    Assignment,
    Service,
    Services,
    Unknown,
    Bus(WantedOfBus),
}

impl Wanted {
    pub(super) fn by(ask: &Ask) -> Self {
        match ask {
            Ask::Command(_) => Self::Outcome,
            Ask::Batch(commands) => Self::Batch(commands.len()),
            Ask::Heartbeat(_) => Self::Extended,
            Ask::HeartbeatAll { .. } => Self::WorkerExtended,
            Ask::Lease(_) => Self::Leases,
            Ask::Attempt { .. } => Self::Attempt,
            Ask::Task(_) => Self::Task,
            Ask::Tasks { .. } => Self::Tasks,
            Ask::Explain(_) => Self::Explanation,
            Ask::Queues => Self::Queues,
            Ask::Workers => Self::Workers,
            Ask::Cluster => Self::Cluster,
            Ask::Shards(ask) => match **ask {
                ShardAsk::Register { .. }
                | ShardAsk::Heartbeat { .. }
                | ShardAsk::Deregister { .. }
                | ShardAsk::Assignment { .. } => Self::Assignment,
                ShardAsk::Change { .. } | ShardAsk::Service(_) => Self::Service,
                ShardAsk::Services { .. } => Self::Services,
            },
            Ask::Unknown(_) => Self::Unknown,
            Ask::Owner(ask) => Self::Bus(WantedOfBus::by(ask)),
            Ask::Dispatch(_) => unreachable!("{LOCAL}"),
        }
    }

    pub(super) fn is(self, answer: &Answer) -> bool {
        if let (Self::Bus(wanted), Answer::Bus(answer)) = (self, answer) {
            return wanted.is(answer);
        }
        self == match answer {
            Answer::Outcome { .. } => Self::Outcome,
            Answer::Batch(outcomes) => Self::Batch(outcomes.len()),
            Answer::Extended(_) => Self::Extended,
            Answer::WorkerExtended(_) => Self::WorkerExtended,
            Answer::Leases { .. } => Self::Leases,
            Answer::Attempt(_) => Self::Attempt,
            Answer::Task(_) => Self::Task,
            Answer::Tasks { .. } => Self::Tasks,
            Answer::Explanation(_) => Self::Explanation,
            Answer::Queues(_) => Self::Queues,
            Answer::Workers(_) => Self::Workers,
            Answer::Cluster(_) => Self::Cluster,
            Answer::Assignment(_) => Self::Assignment,
            Answer::Service(_) => Self::Service,
            Answer::Services(_) => Self::Services,
            Answer::Unknown(_) => Self::Unknown,
            // One that was asked for is compared above.
            Answer::Bus(_) => return false,
        }
    }
}

/// The leases of a reply, as they are given back.
pub(super) fn leases_of(answer: &Answer) -> Option<Abandoned> {
    let Answer::Leases { leases, at } = answer else { return None };
    Abandoned::of(leases, *at)
}
