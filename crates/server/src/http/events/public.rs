//! The one place where events of the journal become events that readers see. Every field is named here, so a new one is
//! shown only if somebody decides so.

use orchestrix_core::shards::Runs;
use orchestrix_core::wire::events as public;
use orchestrix_core::{
    BusResumed, CancelReason, CancelRequested, Event, ExpiryReason, Extension, FormatRaised, Grant, KeyClaim,
    LeaseExpired, LeaseExtended, LeaseGranted, LeaseId, LeaseOffered, LeaseReleased, LeasesStarted,
    LeaveReason, Name, NewCapacity, Next, NodeDraining, NodeJoined, NodeLeft, NodeLeftReason, OwnersAssigned,
    OwnersReleased, OwnershipEvent, Position, PositionsSkipped, Purge, ShardCountSet, ShardEvent,
    ShardWeightsSet, ShardWorkerJoined, ShardWorkerLeft, ShardsLetGo, ShardsMoved, Start, TaskCancelled,
    TaskCompleted, TaskCreated, TaskEvent, TaskExpired, TaskFailed, TaskId, TaskPurged, TaskRetried,
    TermEvent, TermStarted, Tick, Timestamp,
};
use orchestrix_node::TaskQueues;

/// An event as readers see it.
pub(crate) fn shown(
    position: Position,
    at: Timestamp,
    event: Event,
    queues: &TaskQueues,
) -> public::StreamedEvent {
    let event = match event {
        Event::Term(event) => of_term(event),
        Event::Task(event) => of_task(event, position, queues),
        Event::Shard(event) => of_shard(event),
        Event::Ownership(event) => of_ownership(event),
    };
    public::StreamedEvent { position, at, event }
}

fn of_term(event: TermEvent) -> public::Event {
    match event {
        TermEvent::TermStarted(TermStarted { epoch, node, actor, shard_lease_ms }) => {
            public::Event::TermStarted(public::TermStarted { epoch, node, actor, shard_lease_ms })
        }
        TermEvent::FormatRaised(FormatRaised { format }) => {
            public::Event::FormatRaised(public::FormatRaised { format })
        }
        TermEvent::Tick(Tick {}) => public::Event::Tick(public::Tick {}),
        TermEvent::PositionsSkipped(PositionsSkipped { count }) => {
            public::Event::PositionsSkipped(public::PositionsSkipped { count })
        }
    }
}

/// Payloads and results are not shown. The ids that are the position of the event are.
fn of_task(event: TaskEvent, position: Position, queues: &TaskQueues) -> public::Event {
    let queue_of = |n| queues.get(n).expect("an event names a task that was created before it").clone();
    let queue = || queue_of(0);
    match event {
        TaskEvent::TaskCreated(event) => created(event, TaskId(position.0)),
        TaskEvent::LeaseGranted(event) => granted(event, LeaseId(position.0), queue()),
        TaskEvent::LeaseExtended(LeaseExtended { extended, progress, note }) => {
            let extended = (0..).zip(extended).map(|(n, lease)| extension(lease, queue_of(n))).collect();
            public::Event::LeaseExtended(public::LeaseExtended { extended, progress, note })
        }
        TaskEvent::LeaseOffered(LeaseOffered { task, attempt, length_ms, expires_at }) => {
            let (queue, lease) = (queue(), LeaseId(position.0));
            let offered = public::LeaseOffered { task, queue, lease, attempt, length_ms, expires_at };
            public::Event::LeaseOffered(offered)
        }
        TaskEvent::LeasesStarted(LeasesStarted { started }) => {
            let started = (0..).zip(started).map(|(n, lease)| started_lease(lease, queue_of(n))).collect();
            public::Event::LeasesStarted(public::LeasesStarted { started })
        }
        TaskEvent::BusResumed(BusResumed { silent_since }) => {
            public::Event::BusResumed(public::BusResumed { silent_since })
        }
        TaskEvent::LeaseReleased(LeaseReleased { task, lease, charged, next, undelivered, worker }) => {
            let next = next_step(next);
            public::Event::LeaseReleased(public::LeaseReleased {
                task,
                queue: queue(),
                lease,
                charged,
                next,
                undelivered,
                worker,
            })
        }
        TaskEvent::LeaseExpired(LeaseExpired { task, lease, reason, next }) => {
            let (reason, next) = (expiry_reason(reason), next_step(next));
            public::Event::LeaseExpired(public::LeaseExpired { task, queue: queue(), lease, reason, next })
        }
        TaskEvent::TaskCompleted(TaskCompleted { task, lease, result: _, worker }) => {
            public::Event::TaskCompleted(public::TaskCompleted { task, queue: queue(), lease, worker })
        }
        TaskEvent::TaskFailed(TaskFailed { task, lease, error, next, worker }) => {
            let next = next_step(next);
            public::Event::TaskFailed(public::TaskFailed { task, queue: queue(), lease, error, next, worker })
        }
        TaskEvent::TaskCancelled(TaskCancelled { task, reason, actor }) => {
            let reason = cancel_reason(reason);
            public::Event::TaskCancelled(public::TaskCancelled { task, queue: queue(), reason, actor })
        }
        TaskEvent::CancelRequested(CancelRequested { task, cancel_at, actor }) => {
            public::Event::CancelRequested(public::CancelRequested { task, queue: queue(), cancel_at, actor })
        }
        TaskEvent::TaskExpired(TaskExpired { task }) => {
            public::Event::TaskExpired(public::TaskExpired { task, queue: queue() })
        }
        TaskEvent::TaskRetried(TaskRetried { task, actor }) => {
            public::Event::TaskRetried(public::TaskRetried { task, queue: queue(), actor })
        }
        TaskEvent::TaskPurged(TaskPurged { tasks, keys_kept }) => {
            let tasks = (0..).zip(tasks).map(|(n, task)| purged(task, queue_of(n))).collect();
            public::Event::TaskPurged(public::TaskPurged { tasks, keys_kept })
        }
    }
}

fn created(event: TaskCreated, task: TaskId) -> public::Event {
    let TaskCreated {
        queue,
        payload: _,
        priority,
        not_before,
        max_attempts,
        key,
        timeout_ms,
        ttl_at,
        backoff,
    } = event;
    let key = key.map(|KeyClaim { key, request: _ }| public::EventKey { key });
    public::Event::TaskCreated(public::TaskCreated {
        task,
        queue,
        priority,
        not_before,
        max_attempts,
        key,
        timeout_ms,
        ttl_at,
        backoff,
    })
}

fn granted(event: LeaseGranted, lease: LeaseId, queue: Name) -> public::Event {
    let LeaseGranted { task, worker, attempt, length_ms, expires_at, timeout_at, request_id } = event;
    public::Event::LeaseGranted(public::LeaseGranted {
        task,
        queue,
        lease,
        worker,
        attempt,
        length_ms,
        expires_at,
        timeout_at,
        request_id,
    })
}

fn extension(Extension { lease, expires_at }: Extension, queue: Name) -> public::ExtendedLease {
    public::ExtendedLease { lease, queue, expires_at }
}

fn started_lease(Start { lease, worker, expires_at }: Start, queue: Name) -> public::StartedLease {
    public::StartedLease { lease, queue, worker, expires_at }
}

fn of_ownership(event: OwnershipEvent) -> public::Event {
    match event {
        OwnershipEvent::NodeJoined(NodeJoined { node, incarnation, address }) => {
            public::Event::NodeJoined(public::NodeJoined { node, incarnation, address })
        }
        OwnershipEvent::NodeLeft(NodeLeft { node, reason }) => {
            let reason = match reason {
                NodeLeftReason::Stopped => public::NodeLeftReason::Stopped,
                NodeLeftReason::Silent => public::NodeLeftReason::Silent,
                NodeLeftReason::Replaced => public::NodeLeftReason::Replaced,
            };
            public::Event::NodeLeft(public::NodeLeft { node, reason })
        }
        OwnershipEvent::NodeDraining(NodeDraining { node }) => {
            public::Event::NodeDraining(public::NodeDraining { node })
        }
        OwnershipEvent::OwnersAssigned(OwnersAssigned { node, leases }) => {
            public::Event::OwnersAssigned(public::OwnersAssigned { node, leases })
        }
        OwnershipEvent::OwnersReleased(OwnersReleased { node, leases }) => {
            public::Event::OwnersReleased(public::OwnersReleased { node, leases })
        }
    }
}

fn purged(Purge { task, key_until }: Purge, queue: Name) -> public::PurgedTask {
    public::PurgedTask { task, queue, key_until }
}

fn next_step(next: Next) -> public::NextStep {
    match next {
        Next::Waiting { not_before } => public::NextStep::Waiting { not_before },
        Next::Failed => public::NextStep::Failed,
        Next::Cancelled => public::NextStep::Cancelled,
    }
}

fn expiry_reason(reason: ExpiryReason) -> public::ExpiryReason {
    match reason {
        ExpiryReason::Silent => public::ExpiryReason::Silent,
        ExpiryReason::Timeout => public::ExpiryReason::Timeout,
    }
}

fn cancel_reason(reason: CancelReason) -> public::CancelReason {
    match reason {
        CancelReason::Requested => public::CancelReason::Requested,
        CancelReason::Unheeded => public::CancelReason::Unheeded,
    }
}

/// The session of a worker is not shown: it lets a process speak for the worker.
fn of_shard(event: ShardEvent) -> public::Event {
    match event {
        ShardEvent::ShardWorkerJoined(ShardWorkerJoined {
            service,
            worker,
            group,
            count,
            capacity,
            said,
            by,
            session: _,
        }) => public::Event::ShardWorkerJoined(public::ShardWorkerJoined {
            service,
            worker,
            group,
            count,
            capacity,
            said,
            by,
        }),
        ShardEvent::ShardWorkerLeft(ShardWorkerLeft { service, worker, reason }) => {
            let reason = leave_reason(reason);
            public::Event::ShardWorkerLeft(public::ShardWorkerLeft { service, worker, reason })
        }
        ShardEvent::ShardCountSet(ShardCountSet { service, count, worker }) => {
            public::Event::ShardCountSet(public::ShardCountSet { service, count, worker })
        }
        ShardEvent::ShardWeightsSet(ShardWeightsSet { service, weights }) => {
            public::Event::ShardWeightsSet(public::ShardWeightsSet { service, weights })
        }
        ShardEvent::ShardsLetGo(ShardsLetGo { service, worker, shards, overruled }) => {
            let shards = runs(&shards);
            public::Event::ShardsLetGo(public::ShardsLetGo { service, worker, shards, overruled })
        }
        ShardEvent::ShardsMoved(ShardsMoved { service, withdrawn, granted, capacity }) => {
            public::Event::ShardsMoved(public::ShardsMoved {
                service,
                withdrawn: runs(&withdrawn),
                granted: granted.into_iter().map(grant).collect(),
                capacity: capacity.map(new_capacity),
            })
        }
    }
}

fn leave_reason(reason: LeaveReason) -> public::LeaveReason {
    match reason {
        LeaveReason::Deregistered => public::LeaveReason::Deregistered,
        LeaveReason::Silent => public::LeaveReason::Silent,
        LeaveReason::Fenced => public::LeaveReason::Fenced,
    }
}

fn runs(shards: &Runs) -> Vec<public::ShardRun> {
    shards.runs().map(|(first, count)| public::ShardRun { first, count }).collect()
}

fn grant(Grant { worker, shards }: Grant) -> public::ShardGrant {
    public::ShardGrant { worker, shards: runs(&shards) }
}

fn new_capacity(NewCapacity { worker, capacity }: NewCapacity) -> public::CapacityChange {
    public::CapacityChange { worker, capacity }
}
