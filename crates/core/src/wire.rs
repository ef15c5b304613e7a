//! The JSON of the HTTP interface: requests, answers and problems, shared by the server and its clients.
//!
//! Requests refuse unknown fields; answers may get more of them, so that an older client reads a newer server.
//! Times are `*_at` in Unix milliseconds, durations `*_ms`; ids are numbers.
//! Sizes and ranges are checked by [`crate::Command`], in one place for every way in.

pub mod bus;
pub mod events;
mod objects;
mod shards;

use serde::{Deserialize, Serialize};

use crate::{Json, Key, LeaseId, Name, Position, TaskId, TaskState, Term, Timestamp};

pub use self::objects::Object;
pub use self::shards::*;

/// Derives what every wire type has: JSON both ways, and a schema for the OpenAPI document.
macro_rules! wire {
    ($($(#[$meta:meta])* pub struct $name:ident { $($body:tt)* })*) => {$(
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        $(#[$meta])*
        pub struct $name { $($body)* }
    )*};
}

wire! {
    /// A task to be done: the body of `POST /v1/tasks`.
    #[serde(deny_unknown_fields)]
    pub struct Submit {
        pub queue: Name,
        pub payload: Json,
        /// Makes a repeat of this request find the first task, within its queue.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub key: Option<Key>,
        /// A larger value goes first; 0 by default.
        #[serde(default)]
        pub priority: i32,
        /// How long the task waits before its first attempt; 0 by default.
        #[serde(default)]
        pub delay_ms: u64,
        /// Attempts before the task is `FAILED`; 3 by default.
        #[serde(default = "default_max_attempts")]
        pub max_attempts: u32,
        /// Ends an attempt this long after its grant, heartbeats or not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub timeout_ms: Option<u64>,
        /// Cancels the task when it still waits after this time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub ttl_ms: Option<u64>,
        #[serde(default, deserialize_with = "objects::one")]
        pub backoff: Backoff,
    }

    /// How long a failed task waits: `base_ms × factor ^ (attempt − 1)`, at most `max_ms`, less up to a tenth.
    #[derive(Copy, minicbor::Encode, minicbor::Decode)]
    #[serde(deny_unknown_fields)]
    pub struct Backoff {
        #[n(0)]
        /// The wait after the first attempt, at most `max_ms`; 1000 by default.
        #[serde(default = "default_base_ms")]
        pub base_ms: u64,
        #[n(1)]
        /// 2 by default.
        #[serde(default = "default_factor")]
        pub factor: f64,
        #[n(2)]
        /// The longest wait; 600000 by default.
        #[serde(default = "default_max_ms")]
        pub max_ms: u64,
    }

    /// The task that a submit made, or found under its key.
    #[derive(Copy)]
    pub struct Submitted {
        pub id: TaskId,
        pub state: TaskState,
    }

    /// The body of `POST /v1/tasks/batch`.
    #[serde(deny_unknown_fields)]
    pub struct SubmitBatch {
        #[serde(deserialize_with = "objects::all")]
        pub tasks: Vec<Submit>,
    }

    /// The body of `POST /v1/queues/{queue}/lease`.
    #[serde(deny_unknown_fields)]
    pub struct LeaseQueue {
        pub worker: Name,
        /// How many tasks at most; 1 by default.
        #[serde(default = "default_max")]
        pub max: usize,
        /// Length of the leases; 30000 by default.
        #[serde(default = "default_lease_ms")]
        pub lease_ms: u64,
        /// How long to wait for a task when there is none.
        #[serde(default)]
        pub wait_ms: u64,
        /// Makes a repeat of this request get the same leases, while they are live.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub request_id: Option<Name>,
        /// How many tasks the worker can run at once: with live leases counted, it gets no more than this.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub capacity: Option<u32>,
    }

    /// The body of `POST /v1/lease`: the same from several queues.
    #[serde(deny_unknown_fields)]
    pub struct LeaseQueues {
        pub queues: Vec<Name>,
        pub worker: Name,
        /// How many tasks at most; 1 by default.
        #[serde(default = "default_max")]
        pub max: usize,
        /// Length of the leases; 30000 by default.
        #[serde(default = "default_lease_ms")]
        pub lease_ms: u64,
        #[serde(default)]
        pub wait_ms: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub request_id: Option<Name>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub capacity: Option<u32>,
    }

    /// The leased tasks; empty if no task was ready.
    pub struct Leases {
        pub leases: Vec<Leased>,
        /// How long the call waited: a lease counts from `sent + waited_ms` on the worker's clock.
        pub waited_ms: u64,
    }

    /// One task, leased to a worker.
    pub struct Leased {
        pub task_id: TaskId,
        /// The fencing token: give it to every store that the task writes to.
        pub lease_id: LeaseId,
        pub queue: Name,
        pub attempt: u32,
        pub payload: Json,
        pub lease_ms: u64,
        /// The rest of the attempt's time limit, if it has one, in the same measure: if it is not more than `lease_ms`,
        /// the limit ends the attempt, however often the lease is extended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub timeout_ms: Option<u64>,
    }

    /// The body of `POST /v1/tasks/{id}/heartbeat`.
    #[serde(deny_unknown_fields)]
    pub struct Heartbeat {
        pub lease_id: LeaseId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub worker: Option<Name>,
        /// 0 to 100.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub progress: Option<u8>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub note: Option<String>,
    }

    /// A renewed lease: it lasts `lease_ms` from when the heartbeat was sent.
    #[derive(Copy)]
    pub struct Extended {
        pub lease_ms: u64,
        pub cancel_requested: bool,
        /// The rest of the attempt's time limit, if it has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub timeout_ms: Option<u64>,
    }

    /// The body of `POST /v1/tasks/{id}/complete`.
    #[serde(deny_unknown_fields)]
    pub struct Complete {
        pub lease_id: LeaseId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub worker: Option<Name>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub result: Option<Json>,
    }

    /// The body of `POST /v1/tasks/{id}/fail`.
    #[serde(deny_unknown_fields)]
    pub struct Fail {
        pub lease_id: LeaseId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub worker: Option<Name>,
        pub error: String,
        /// Whether the task may be tried again; true by default.
        #[serde(default = "default_retry")]
        pub retry: bool,
    }

    /// The body of `POST /v1/tasks/{id}/release`.
    #[serde(deny_unknown_fields)]
    pub struct Release {
        pub lease_id: LeaseId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub worker: Option<Name>,
    }

    /// The new state of a task: the answer to complete, fail, release, cancel and retry.
    #[derive(Copy)]
    pub struct Outcome {
        pub id: TaskId,
        pub state: TaskState,
        /// When a waiting task may be leased again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub not_before_at: Option<Timestamp>,
        /// The task is leased; its worker learns it from the next heartbeat.
        #[serde(default, skip_serializing_if = "is_false")]
        pub cancel_requested: bool,
    }

    /// The body of `POST /v1/tasks/complete/batch`.
    #[serde(deny_unknown_fields)]
    pub struct CompleteBatch {
        #[serde(deserialize_with = "objects::all")]
        pub items: Vec<CompleteItem>,
    }

    /// One completion of a batch.
    #[serde(deny_unknown_fields)]
    pub struct CompleteItem {
        pub task_id: TaskId,
        pub lease_id: LeaseId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub result: Option<Json>,
    }

    /// The body of `POST /v1/workers/{worker}/heartbeat`.
    #[serde(deny_unknown_fields)]
    pub struct WorkerHeartbeat {
        pub leases: Vec<LeaseId>,
    }

    /// Which leases of a worker were extended, and which are lost.
    pub struct WorkerExtended {
        pub extended: Vec<LeaseId>,
        /// Not valid any more: stop these, another worker may run them.
        pub lost: Vec<LeaseId>,
        /// Extended, but their tasks should be cancelled.
        pub cancel: Vec<LeaseId>,
        /// The shortest of the extended leases' lengths; 0 when none was extended.
        pub lease_ms: u64,
        /// The length of each, in the order of `extended`: one that is near its time limit does not shorten the
        /// others for a worker that looks here.
        #[serde(default)]
        pub lease_ms_each: Vec<u64>,
        /// The rest of the time limit of each, in the same order; missing when none has a limit.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub timeout_ms_each: Vec<Option<u64>>,
    }

    /// One task, with its last attempts.
    pub struct TaskView {
        #[serde(flatten)]
        pub summary: TaskSummary,
        pub payload: Json,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub result: Option<Json>,
        pub backoff: Backoff,
        /// The last attempts, oldest first; the running one is not among them.
        pub attempts: Vec<AttemptView>,
    }

    /// One task of a list.
    pub struct TaskSummary {
        pub id: TaskId,
        pub queue: Name,
        pub state: TaskState,
        pub priority: i32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub key: Option<Key>,
        /// Attempts so far in this round, the running one included.
        pub attempt: u32,
        pub max_attempts: u32,
        /// 1, and one more for every retry of a failed task.
        pub round: u32,
        pub created_at: Timestamp,
        /// Not leased before this time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub not_before_at: Option<Timestamp>,
        /// Cancelled when it still waits at this time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub ttl_at: Option<Timestamp>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub timeout_ms: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub lease: Option<LeaseView>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub ended_at: Option<Timestamp>,
        /// The reason of the outcome.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub reason: Option<String>,
        /// The name of the token that cancelled it, or asked its worker to stop.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub cancelled_by: Option<Name>,
        /// The error of the last failed attempt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub error: Option<String>,
    }

    /// The lease that a task is under.
    pub struct LeaseView {
        pub lease_id: LeaseId,
        pub worker: Name,
        pub attempt: u32,
        pub granted_at: Timestamp,
        pub expires_at: Timestamp,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub timeout_at: Option<Timestamp>,
        pub cancel_requested: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub progress: Option<u8>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub note: Option<String>,
    }

    /// One attempt that ended.
    pub struct AttemptView {
        pub attempt: u32,
        pub round: u32,
        pub lease_id: LeaseId,
        pub worker: Name,
        pub started_at: Timestamp,
        pub ended_at: Timestamp,
        /// `completed`, `failed`, `released`, `silent`, `timeout` or `cancelled`.
        pub outcome: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub error: Option<String>,
    }

    /// A page of tasks, lowest id first.
    pub struct TaskPage {
        pub tasks: Vec<TaskSummary>,
        /// Where the next page begins; none after the last. A page may be short, even empty, before the last.
        pub next_cursor: Option<String>,
    }

    /// Why a task is in its state.
    pub struct Explanation {
        pub id: TaskId,
        pub state: TaskState,
        /// `delayed`, `backoff`, `behind_n`, `no_worker`, `leased_by`, `cancel_requested` or `finished`.
        pub code: String,
        pub detail: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub not_before_at: Option<Timestamp>,
        /// Tasks of the same queue that go first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub ahead: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub worker: Option<Name>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub expires_at: Option<Timestamp>,
    }

    /// The body of `POST /v1/tasks/{id}/logs`.
    #[serde(deny_unknown_fields)]
    pub struct LogAppend {
        pub lease_id: LeaseId,
        #[serde(deserialize_with = "objects::all")]
        pub lines: Vec<LogText>,
        /// How many lines of this lease were sent before these; makes a repeat harmless.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub offset: Option<u64>,
        /// How many lines right before `offset` may not have arrived, because they were not acknowledged in time. Those that
        /// have not leave one line of `stream` `system` that says how many they are.
        #[serde(default, skip_serializing_if = "shards::is_zero")]
        pub skipped: u64,
    }

    /// One line of output.
    #[serde(deny_unknown_fields)]
    pub struct LogText {
        pub text: String,
        #[serde(default)]
        pub stream: LogStream,
    }

    /// How many lines a lease has sent, and how many were dropped.
    #[derive(Copy)]
    pub struct LogAppended {
        /// Lines of this lease so far, dropped ones included: the `offset` of the next call.
        pub next: u64,
        /// Lines of this call that were beyond the cap.
        pub dropped: u64,
    }

    /// Some lines of a task's output.
    pub struct LogPage {
        pub lines: Vec<LogLine>,
        pub next_offset: u64,
        /// Lines of this task that were dropped because they were beyond the cap.
        pub dropped: u64,
    }

    /// One stored line.
    pub struct LogLine {
        /// The number of the line in the task, from 0, over all attempts.
        pub n: u64,
        pub attempt: u32,
        pub at: Timestamp,
        pub stream: LogStream,
        pub text: String,
    }

    /// All queues that have tasks.
    pub struct QueueList {
        pub queues: Vec<QueueView>,
    }

    /// One queue: its counts and rates.
    pub struct QueueView {
        pub queue: Name,
        /// Waiting tasks that could be leased now.
        pub ready: u64,
        /// Waiting tasks that may not be leased yet: delayed, or after a failure.
        pub delayed: u64,
        pub leased: u64,
        pub completed: u64,
        pub failed: u64,
        pub cancelled: u64,
        /// Tasks per second over the last minute.
        pub submitted_per_s: f64,
        pub completed_per_s: f64,
        pub failed_per_s: f64,
        /// Lease calls that wait for a task now.
        pub polls: u64,
        /// The time of the last lease call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub asked_at: Option<Timestamp>,
        /// How long the oldest ready task has been ready: it rises when a task starves.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub oldest_ms: Option<u64>,
        /// That task.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub oldest: Option<TaskId>,
        /// How long the task that is next in line has been ready.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub next_ms: Option<u64>,
        /// That task.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub next: Option<TaskId>,
    }

    /// All workers that were seen recently.
    pub struct WorkerList {
        pub workers: Vec<WorkerView>,
    }

    /// One worker.
    pub struct WorkerView {
        pub worker: Name,
        pub seen_at: Timestamp,
        pub leases: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub capacity: Option<u32>,
    }

    /// The nodes of the cluster, and which one is the leader.
    pub struct Cluster {
        pub leader: Option<String>,
        pub term: Term,
        pub epoch: u64,
        pub position: Position,
        /// The age of the leader's last sign of life, at the node that answers; 0 at the leader itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub leader_seen_ms: Option<u64>,
        pub nodes: Vec<NodeView>,
        /// Why the cluster has no working leader, in sentences.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub why: Vec<String>,
    }

    /// The body of `POST /v1/cluster/leader`: which node should become leader.
    #[serde(deny_unknown_fields)]
    pub struct Lead {
        /// A node by name; without it the leader releases its leader lease, and there is an election.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub desired: Option<String>,
        /// Even if the leader's mandate is young, or the node has not read the whole journal.
        #[serde(default)]
        pub force: bool,
    }

    /// One node.
    pub struct NodeView {
        pub name: String,
        /// `leader` or `follower`.
        pub role: String,
        /// `ACTIVE`, `DRAINING` or `DEAD`.
        pub state: String,
        /// Tasks that this node owns or has leased out.
        pub load: u64,
        pub position: Position,
        /// Events that the leader has and this node has not.
        pub lag: u64,
        /// The address at which other nodes reach it, in a cluster.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub address: Option<String>,
        /// The age of its last sign of life, at the node that answers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub seen_ms: Option<u64>,
    }

    /// The health of a node.
    pub struct Health {
        /// `healthy` or `unhealthy`.
        pub status: String,
        pub checks: Vec<HealthCheck>,
    }

    /// One part of the health.
    pub struct HealthCheck {
        pub component: String,
        #[serde(rename = "isHealthy")]
        pub is_healthy: bool,
        /// Why it is not healthy.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub reason: Option<String>,
    }

    /// An error, as `application/problem+json`.
    pub struct Problem {
        /// A stable code, for programs.
        pub code: String,
        /// An explanation, for people.
        pub detail: String,
        /// The HTTP status.
        pub status: u16,
        pub title: String,
        /// Identifies the request in the log of the server.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub request_id: Option<String>,
    }

    /// Why one item of a batch was refused.
    pub struct ItemProblem {
        pub code: String,
        pub detail: String,
    }

    /// The answer of `POST /v1/tasks/batch`, in the order of the request.
    pub struct SubmittedBatch {
        pub tasks: Vec<Item<Submitted>>,
    }

    /// The answer of `POST /v1/tasks/complete/batch`, in the order of the request.
    pub struct CompletedBatch {
        pub items: Vec<Item<Outcome>>,
    }
}

/// One item of a batch's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Item<T> {
    Done(T),
    Refused(ItemProblem),
}

/// Where a line came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum LogStream {
    #[default]
    Stdout,
    Stderr,
    /// Written by Orchestrix itself, about lines that were dropped.
    System,
}

impl LeaseQueue {
    /// The same request for a list of queues.
    #[must_use]
    pub fn from_queue(self, queue: Name) -> LeaseQueues {
        let Self { worker, max, lease_ms, wait_ms, request_id, capacity } = self;
        LeaseQueues { queues: vec![queue], worker, max, lease_ms, wait_ms, request_id, capacity }
    }
}

impl Submit {
    /// A task with all defaults.
    #[must_use]
    pub fn new(queue: Name, payload: Json) -> Self {
        Self {
            queue,
            payload,
            key: None,
            priority: 0,
            delay_ms: 0,
            max_attempts: default_max_attempts(),
            timeout_ms: None,
            ttl_ms: None,
            backoff: Backoff::default(),
        }
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base_ms: default_base_ms(), factor: default_factor(), max_ms: default_max_ms() }
    }
}

fn default_max_attempts() -> u32 {
    3
}

fn default_base_ms() -> u64 {
    1_000
}

fn default_factor() -> f64 {
    2.0
}

fn default_max_ms() -> u64 {
    600_000
}

fn default_max() -> usize {
    1
}

fn default_lease_ms() -> u64 {
    30_000
}

fn default_retry() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_false(value: &bool) -> bool {
    !value
}
