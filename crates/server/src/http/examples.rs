//! An example of each route whose answer is JSON. The OpenAPI document shows them, and a test sends them to a coordinator that
//! was prepared like this:
//!
//! - Task 3 of queue `mail` runs at worker `box-1` under lease 4, and has written a line.
//! - Task 5 of queue `mail` has failed, and task 8 of queue `reports` waits.
//! - Worker `a` has all four shards of service `orders`.
//! - `node-1` leads. The example of a transfer has a cluster with `node-2`.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::http::routes::Route;

/// One request, and its answer.
#[derive(Clone, Copy, Debug)]
pub struct Example {
    /// With a query, if there is one.
    pub path: &'static str,
    /// JSON, or nothing.
    pub body: &'static str,
    /// JSON, with the first status that the row has.
    pub answer: &'static str,
}

impl Example {
    pub(crate) const fn get(path: &'static str, answer: &'static str) -> Self {
        Self { path, body: "", answer }
    }

    pub(crate) const fn new(path: &'static str, body: &'static str, answer: &'static str) -> Self {
        Self { path, body, answer }
    }

    pub(crate) fn body(self) -> Option<Value> {
        (!self.body.is_empty()).then(|| json(self.body))
    }

    pub(crate) fn answer(self) -> Value {
        json(self.answer)
    }

    /// What stands for each parameter of its route, in path and query.
    pub(crate) fn parameters(self, route: &Route) -> BTreeMap<&'static str, Value> {
        let (path, query) = self.path.split_once('?').unwrap_or((self.path, ""));
        let parts = route.parts(path).expect("an example has the path of its row");
        let query = query.split('&').filter_map(|pair| pair.split_once('='));
        route.part_names().zip(parts).chain(query).map(|(name, text)| (name, value(text))).collect()
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("an example is JSON")
}

/// A number, if it is one.
fn value(text: &str) -> Value {
    text.parse::<u64>().map_or_else(|_| text.into(), Into::into)
}

// The examples, in the order of the table.

pub(crate) const SUBMIT: Example = Example::new(
    "/v1/tasks",
    r#"{"queue":"mail","payload":{"to":"eve@example.org"},"key":"welcome-eve","max_attempts":5}"#,
    r#"{"id":9,"state":"WAITING"}"#,
);

pub(crate) const LEASE_QUEUE: Example = Example::new(
    "/v1/queues/reports/lease",
    r#"{"worker":"box-2","max":2,"lease_ms":60000,"wait_ms":20000,"request_id":"r-1"}"#,
    r#"{
        "leases": [
            {"task_id": 8, "lease_id": 9, "queue": "reports", "attempt": 1, "payload": {"month": 6}, "lease_ms": 60000}
        ],
        "waited_ms": 0
    }"#,
);

pub(crate) const COMPLETE: Example = Example::new(
    "/v1/tasks/3/complete",
    r#"{"lease_id":4,"worker":"box-1","result":{"sent":true}}"#,
    r#"{"id":3,"state":"COMPLETED"}"#,
);

pub(crate) const HEARTBEAT: Example = Example::new(
    "/v1/tasks/3/heartbeat",
    r#"{"lease_id":4,"progress":40,"note":"rendering"}"#,
    r#"{"lease_ms":60000,"cancel_requested":false}"#,
);

pub(crate) const SUBMIT_BATCH: Example = Example::new(
    "/v1/tasks/batch",
    r#"{"tasks":[{"queue":"mail","payload":2},{"queue":"reports","payload":3,"delay_ms":3600000}]}"#,
    r#"{"tasks":[{"id":9,"state":"WAITING"},{"id":10,"state":"WAITING"}]}"#,
);

pub(crate) const COMPLETE_BATCH: Example = Example::new(
    "/v1/tasks/complete/batch",
    r#"{"items":[{"task_id":3,"lease_id":4,"result":{"sent":true}},{"task_id":5,"lease_id":4}]}"#,
    r#"{
        "items": [
            {"id": 3, "state": "COMPLETED"},
            {"code": "stale_lease", "detail": "lease 4 of task 5 is not valid: the task is not leased under it"}
        ]
    }"#,
);

pub(crate) const WORKER_HEARTBEAT: Example = Example::new(
    "/v1/workers/box-1/heartbeat",
    r#"{"leases":[4,6]}"#,
    r#"{"extended":[4],"lost":[6],"cancel":[],"lease_ms":60000,"lease_ms_each":[60000]}"#,
);

pub(crate) const LEASE_QUEUES: Example = Example::new(
    "/v1/lease",
    r#"{"queues":["mail","reports"],"worker":"box-2","lease_ms":60000}"#,
    LEASE_QUEUE.answer,
);

pub(crate) const FAIL: Example = Example::new(
    "/v1/tasks/3/fail",
    r#"{"lease_id":4,"error":"mailbox is full"}"#,
    r#"{"id":3,"state":"WAITING","not_before_at":1794749908899}"#,
);

pub(crate) const RELEASE: Example = Example::new(
    "/v1/tasks/3/release",
    r#"{"lease_id":4}"#,
    r#"{"id":3,"state":"WAITING","not_before_at":1794749908899}"#,
);

pub(crate) const APPEND_LOGS: Example = Example::new(
    "/v1/tasks/3/logs",
    r#"{"lease_id":4,"offset":1,"lines":[{"text":"slow answer","stream":"stderr"}]}"#,
    r#"{"next":2,"dropped":0}"#,
);

pub(crate) const CANCEL: Example = Example::get("/v1/tasks/8/cancel", r#"{"id":8,"state":"CANCELLED"}"#);

pub(crate) const RETRY: Example =
    Example::get("/v1/tasks/5/retry", r#"{"id":5,"state":"WAITING","not_before_at":1794749908901}"#);

pub(crate) const LIST_TASKS: Example = Example::get(
    "/v1/tasks?queue=mail&state=FAILED&limit=1",
    r#"{
        "tasks": [
            {
                "id": 5,
                "queue": "mail",
                "state": "FAILED",
                "priority": 0,
                "attempt": 1,
                "max_attempts": 3,
                "round": 1,
                "created_at": 1794749908893,
                "ended_at": 1794749908897,
                "reason": "failed",
                "error": "no such address"
            }
        ],
        "next_cursor": "548af4ebf"
    }"#,
);

pub(crate) const TASK: Example = Example::get(
    "/v1/tasks/3",
    r#"{
        "id": 3,
        "queue": "mail",
        "state": "LEASED",
        "priority": 0,
        "attempt": 1,
        "max_attempts": 3,
        "round": 1,
        "created_at": 1794749908886,
        "lease": {
            "lease_id": 4,
            "worker": "box-1",
            "attempt": 1,
            "granted_at": 1794749908893,
            "expires_at": 1794749969493,
            "cancel_requested": false
        },
        "payload": {"to": "ada@example.org"},
        "backoff": {"base_ms": 1000, "factor": 2.0, "max_ms": 600000},
        "attempts": []
    }"#,
);

pub(crate) const EXPLAIN: Example = Example::get(
    "/v1/tasks/8/explain",
    r#"{"id":8,"state":"WAITING","code":"no_worker","detail":"no worker has requested a task from queue reports in the last minute","ahead":0}"#,
);

pub(crate) const LOGS: Example = Example::get(
    "/v1/tasks/3/logs?offset=0&limit=100",
    r#"{
        "lines": [{"n": 0, "attempt": 1, "at": 1794749908896, "stream": "stdout", "text": "connecting"}],
        "next_offset": 1,
        "dropped": 0
    }"#,
);

pub(crate) const QUEUES: Example = Example::get(
    "/v1/queues",
    r#"{
        "queues": [
            {
                "queue": "mail",
                "ready": 0,
                "delayed": 0,
                "leased": 1,
                "completed": 0,
                "failed": 1,
                "cancelled": 0,
                "submitted_per_s": 0.03333333333333333,
                "completed_per_s": 0.0,
                "failed_per_s": 0.016666666666666666,
                "polls": 0,
                "asked_at": 1794749908902
            },
            {
                "queue": "reports",
                "ready": 1,
                "delayed": 0,
                "leased": 0,
                "completed": 0,
                "failed": 0,
                "cancelled": 0,
                "submitted_per_s": 0.016666666666666666,
                "completed_per_s": 0.0,
                "failed_per_s": 0.0,
                "polls": 0,
                "oldest_ms": 306,
                "oldest": 8,
                "next_ms": 306,
                "next": 8
            }
        ]
    }"#,
);

pub(crate) const WORKERS: Example =
    Example::get("/v1/workers", r#"{"workers":[{"worker":"box-1","seen_at":1794749908902,"leases":1}]}"#);

pub(crate) const CLUSTER: Example = Example::get(
    "/v1/cluster",
    r#"{
        "leader": "node-1",
        "term": 1,
        "epoch": 1,
        "position": 8,
        "nodes": [{"name": "node-1", "role": "leader", "state": "ACTIVE", "load": 1, "position": 8, "lag": 0}]
    }"#,
);

pub(crate) const LEAD: Example = Example::new(
    "/v1/cluster/leader",
    r#"{"desired":"node-2","force":true}"#,
    r#"{
        "leader": null,
        "term": 1,
        "epoch": 1,
        "position": 11,
        "nodes": [
            {
                "name": "node-1",
                "role": "follower",
                "state": "ACTIVE",
                "load": 0,
                "position": 11,
                "lag": 0,
                "address": "http://10.0.0.1:3000",
                "seen_ms": 0
            },
            {
                "name": "node-2",
                "role": "follower",
                "state": "ACTIVE",
                "load": 0,
                "position": 9,
                "lag": 2,
                "address": "http://10.0.0.2:3000",
                "seen_ms": 986
            }
        ],
        "why": ["no leader: no present node has become leader yet: node-1, node-2"]
    }"#,
);

pub(crate) const SERVICES: Example = Example::get(
    "/v1/services?group=default",
    r#"{
        "services": [
            {"service": "orders", "group": "default", "shard_count": 4, "workers": 1, "held": 4, "withdrawn": 0, "free": 0}
        ]
    }"#,
);

pub(crate) const SERVICE: Example = Example::get(
    "/v1/services/orders?limit=4",
    r#"{
        "service": "orders",
        "group": "default",
        "shard_count": 4,
        "generation": 10,
        "workers": [{"worker": "a", "shards": [0, 1, 2, 3], "place": 0, "left_ms": 15248}],
        "shards": [
            {"shard": 0, "worker": "a", "token": 10, "state": "HELD"},
            {"shard": 1, "worker": "a", "token": 10, "state": "HELD"},
            {"shard": 2, "worker": "a", "token": 10, "state": "HELD"},
            {"shard": 3, "worker": "a", "token": 10, "state": "HELD"}
        ]
    }"#,
);

pub(crate) const CHANGE_SERVICE: Example = Example::new(
    "/v1/services/orders",
    r#"{"shard_count":2}"#,
    r#"{
        "service": "orders",
        "group": "default",
        "shard_count": 2,
        "generation": 11,
        "workers": [{"worker": "a", "shards": [0, 1, 2, 3], "place": 0, "left_ms": 15248}],
        "shards": [
            {"shard": 0, "worker": "a", "token": 10, "state": "HELD"},
            {"shard": 1, "worker": "a", "token": 10, "state": "HELD"},
            {"shard": 2, "worker": "a", "token": 10, "state": "HELD"},
            {"shard": 3, "worker": "a", "token": 10, "state": "HELD"}
        ]
    }"#,
);

pub(crate) const HEALTH: Example = Example::get(
    "/health",
    r#"{"status":"healthy","checks":[{"component":"Coordinator","isHealthy":true}]}"#,
);

pub(crate) const READY: Example = Example::get("/ready", r#"{"status":"ready"}"#);

pub(crate) const SHARD_REGISTER: Example = Example::new(
    "/v1/services/invoices/workers/a/register",
    r#"{"maxShardCount":2,"session":"a-2"}"#,
    r#"{"assignedShards":[0,1],"tokens":[12,12],"generation":12,"leaseMs":15000}"#,
);

pub(crate) const SHARD_HEARTBEAT: Example = Example::new(
    "/v1/services/orders/workers/a/heartbeat",
    r#"{"maxShardCount":4,"assignedShards":[0,1,2,3],"generation":10,"seq":1,"session":"a-1"}"#,
    r#"{"assignedShards":[0,1,2,3],"tokens":[10,10,10,10],"generation":10,"leaseMs":15000,"seq":1}"#,
);

pub(crate) const SHARD_DEREGISTER: Example = Example::new(
    "/v1/services/orders/workers/a/deregister",
    r#"{"session":"a-1"}"#,
    r#"{"assignedShards":[],"tokens":[],"generation":11}"#,
);
