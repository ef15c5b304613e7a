//! The rows of the table of routes. To add a route is to add a row here: its verb, path, role, scope, what it is in the OpenAPI
//! document, the type of its body, and what answers it.

use orchestrix_core::limits::{LEASE_PAYLOAD_BYTES_MAX, PAGE_BYTES_MAX};
use orchestrix_core::wire::{
    self, Complete, CompleteBatch, Fail, Heartbeat, Lead, LeaseQueue, LeaseQueues, LogAppend, Release,
    ServiceChange, ShardDeregister, ShardHeartbeat, ShardRegister, Submit, SubmitBatch, WorkerHeartbeat,
};
use utoipa::openapi::schema::Type;

use crate::http::answer::{BYTES, JSON};
#[cfg(test)]
use crate::http::notes;
use crate::http::openapi::asks;
use crate::http::routes::{Endpoint, Route, Scope, get, post, public, put};
use crate::http::sse::EVENT_STREAM;
use crate::http::{dashboard, events, examples, feed, leasing, link, logs, openapi, shards, tasks, views};
use crate::tokens::Role;

/// All routes, the busiest first.
pub static ROUTES: &[Route] = &[
    post("/v1/tasks", Endpoint::Submit, Role::Submit, Scope::Named)
        .example(examples::SUBMIT)
        .doc(|| {
            asks("Submit a task")
                .and::<wire::Submitted>("201", "The task was accepted.")
                .and::<wire::Submitted>("200", "The task that was submitted with the same key before.")
        })
        .takes::<Submit>()
        .asks(tasks::submit, tasks::submitted),
    post("/v1/queues/{queue}/lease", Endpoint::LeaseQueue, Role::Work, Scope::Named)
        .example(examples::LEASE_QUEUE)
        .doc(|| asks("Lease tasks from a queue").and::<wire::Leases>("200", LEASES))
        .takes::<LeaseQueue>()
        .asks(leasing::lease_queue, leasing::leases)
        .may_wait()
        .room(LEASE_PAYLOAD_BYTES_MAX),
    post("/v1/tasks/{id}/complete", Endpoint::Complete, Role::Work, Scope::Task)
        .example(examples::COMPLETE)
        .doc(|| asks("Complete a task").and::<wire::Outcome>("200", OUTCOME))
        .takes::<Complete>()
        .asks(leasing::complete, tasks::outcome),
    post("/v1/tasks/{id}/heartbeat", Endpoint::Heartbeat, Role::Work, Scope::Task)
        .example(examples::HEARTBEAT)
        .doc(|| asks("Extend a lease").and::<wire::Extended>("200", "The lease is extended."))
        .takes::<Heartbeat>()
        .asks(leasing::heartbeat, leasing::extended),
    post("/v1/tasks/batch", Endpoint::SubmitBatch, Role::Submit, Scope::Named)
        .example(examples::SUBMIT_BATCH)
        .doc(|| {
            asks("Submit a batch of tasks")
                .and::<wire::SubmittedBatch>("200", "The outcome of each, in the order of the request.")
        })
        .takes::<SubmitBatch>()
        .asks(tasks::submit_batch, tasks::submitted_batch),
    post("/v1/tasks/complete/batch", Endpoint::CompleteBatch, Role::Work, Scope::Own)
        .example(examples::COMPLETE_BATCH)
        .doc(|| {
            asks("Complete a batch of tasks")
                .and::<wire::CompletedBatch>("200", "The outcome of each, in the order of the request.")
        })
        .takes::<CompleteBatch>()
        .asks(leasing::complete_batch, leasing::completed_batch),
    post("/v1/workers/{worker}/heartbeat", Endpoint::WorkerHeartbeat, Role::Work, Scope::Own)
        .example(examples::WORKER_HEARTBEAT)
        .doc(|| {
            asks("Extend all leases of a worker")
                .and::<wire::WorkerExtended>("200", "Which leases were extended, and which are lost.")
        })
        .takes::<WorkerHeartbeat>()
        .asks(leasing::heartbeat_worker, leasing::worker_extended),
    post("/v1/lease", Endpoint::LeaseQueues, Role::Work, Scope::Named)
        .example(examples::LEASE_QUEUES)
        .doc(|| asks("Lease tasks from several queues").and::<wire::Leases>("200", LEASES))
        .takes::<LeaseQueues>()
        .asks(leasing::lease_queues, leasing::leases)
        .may_wait()
        .room(LEASE_PAYLOAD_BYTES_MAX),
    SHARD_HEARTBEAT,
    post("/v1/tasks/{id}/fail", Endpoint::Fail, Role::Work, Scope::Task)
        .example(examples::FAIL)
        .doc(|| asks("Fail an attempt").and::<wire::Outcome>("200", OUTCOME))
        .takes::<Fail>()
        .asks(leasing::fail, tasks::outcome),
    post("/v1/tasks/{id}/release", Endpoint::Release, Role::Work, Scope::Task)
        .example(examples::RELEASE)
        .doc(|| asks("Release a task").and::<wire::Outcome>("200", OUTCOME))
        .takes::<Release>()
        .asks(leasing::release, tasks::outcome),
    post("/v1/tasks/{id}/logs", Endpoint::AppendLogs, Role::Work, Scope::Task)
        .example(examples::APPEND_LOGS)
        .doc(|| {
            asks("Append task output").and::<wire::LogAppended>(
                "200",
                "How many lines the lease has sent, and how many were dropped.",
            )
        })
        .takes::<LogAppend>()
        .leads(|call, node| Box::pin(logs::append(call, node))),
    post("/v1/tasks/{id}/cancel", Endpoint::Cancel, Role::Admin, Scope::Task)
        .example(examples::CANCEL)
        .doc(|| {
            asks("Cancel a task")
                .and::<wire::Outcome>("200", "The task is cancelled.")
                .and::<wire::Outcome>("202", "The task is leased; cancellation is requested from its worker.")
        })
        .takes_nothing()
        .asks(tasks::cancel, tasks::cancelled)
        .audited(),
    post("/v1/tasks/{id}/retry", Endpoint::Retry, Role::Admin, Scope::Task)
        .example(examples::RETRY)
        .doc(|| asks("Retry a failed task").and::<wire::Outcome>("200", OUTCOME))
        .takes_nothing()
        .asks(tasks::retry, tasks::outcome)
        .audited(),
    get("/v1/tasks", Endpoint::ListTasks, Role::Read, Scope::Named)
        .example(examples::LIST_TASKS)
        .doc(|| asks("List tasks").and::<wire::TaskPage>("200", "A page, lowest id first.").with(LIST))
        .asks(tasks::list, tasks::page),
    get("/v1/tasks/{id}", Endpoint::Task, Role::Read, Scope::Task)
        .example(examples::TASK)
        .doc(|| asks("Get a task").and::<wire::TaskView>("200", "The task, with its last attempts."))
        .asks(tasks::task, tasks::view),
    get("/v1/tasks/{id}/explain", Endpoint::Explain, Role::Read, Scope::Task)
        .example(examples::EXPLAIN)
        .doc(|| asks("Explain the state of a task").and::<wire::Explanation>("200", "A code and a sentence."))
        .asks(tasks::explain, tasks::explanation),
    get("/v1/tasks/{id}/logs", Endpoint::Logs, Role::Read, Scope::Task)
        .example(examples::LOGS)
        .doc(|| {
            asks("Read task output")
                .and::<wire::LogPage>(
                    "200",
                    "A page of lines; with `follow=true` a stream of `line` events and one `end`.",
                )
                .or_stream()
                .with(LOGS)
        })
        .leads(|call, node| Box::pin(logs::read(call, node))),
    get("/v1/queues", Endpoint::Queues, Role::Read, Scope::Own)
        .example(examples::QUEUES)
        .doc(|| asks("List queues").and::<wire::QueueList>("200", "All queues that have tasks."))
        .asks(views::queues, views::queue_list),
    get("/v1/workers", Endpoint::Workers, Role::Read, Scope::All)
        .example(examples::WORKERS)
        .doc(|| asks("List workers").and::<wire::WorkerList>("200", "All workers that were seen recently."))
        .asks(views::workers, views::worker_list),
    get("/v1/cluster", Endpoint::Cluster, Role::Read, Scope::All)
        .example(examples::CLUSTER)
        .doc(|| {
            asks("Get the cluster status")
                .and::<wire::Cluster>("200", "The nodes, and which one is the leader.")
        })
        .here(|call| Box::pin(views::cluster(call))),
    get("/v1/cluster/news", Endpoint::ClusterNews, Role::Read, Scope::All)
        .doc(|| {
            asks("Stream leadership events")
                .plain(EVENT_STREAM, "`coord:` events, and each again as `plg:coordinator:`.")
        })
        .now(views::news),
    get("/v1/cluster/batches", Endpoint::Batches, Role::Node, Scope::All)
        .doc(|| {
            asks("Stream replicated batches to another node")
                .plain(BYTES, "Whole batches, each after its length; a length of 0 is a sign of life.")
                .with(&[("after", Type::Integer, "The last position that the other node has.")])
        })
        .now(feed::tell),
    get("/v1/cluster/link", Endpoint::Link, Role::Node, Scope::All)
        .doc(|| asks("Open a node link").empty("101", "The connection is a node link."))
        .upgrades(link::take),
    post("/v1/cluster/leader", Endpoint::Lead, Role::Admin, Scope::All)
        .example(examples::LEAD)
        .doc(|| {
            asks("Transfer leadership").and::<wire::Cluster>("200", "The cluster status after the transfer.")
        })
        .takes::<Lead>()
        .leads(|call, _| Box::pin(views::lead(call)))
        .audited(),
    get("/v1/services", Endpoint::Services, Role::Read, Scope::All)
        .example(examples::SERVICES)
        .doc(|| {
            asks("List services").and::<wire::ServiceList>("200", "All services, by name.").with(&[(
                "group",
                Type::String,
                "Only services of this group.",
            )])
        })
        .asks(shards::services, shards::service_list),
    get("/v1/services/{service}", Endpoint::Service, Role::Read, Scope::All)
        .example(examples::SERVICE)
        .doc(|| {
            asks("Get a service")
                .and::<wire::ServiceView>("200", "The service, its workers and a page of its shards.")
                .with(SHARDS)
        })
        .asks(shards::service, shards::view)
        .room(PAGE_BYTES_MAX),
    put("/v1/services/{service}", Endpoint::ChangeService, Role::Admin, Scope::All)
        .example(examples::CHANGE_SERVICE)
        .doc(|| asks("Change a service").and::<wire::ServiceView>("200", "The service after the change."))
        .takes::<ServiceChange>()
        .asks(shards::change, shards::view)
        .audited(),
    SHARD_REGISTER,
    SHARD_DEREGISTER,
    get(
        "/v1/services/{service}/workers/{worker}/assignments",
        Endpoint::ShardAssignments,
        Role::Work,
        Scope::All,
    )
    .doc(|| {
        asks("Stream the assignments of a shard worker")
            .plain(EVENT_STREAM, "`assignment` events, one at once and one for each change.")
            .with(&[(
                "session",
                Type::String,
                "The session that the process registered with. If it is replaced, the stream ends.",
            )])
            .needs(&["session"])
    })
    .leads(|call, node| Box::pin(async move { shards::follow(call, node) })),
    get("/v1/events", Endpoint::Events, Role::Read, Scope::All)
        .doc(events::doc)
        .here(|call| Box::pin(events::follow(call))),
    public("/health", Endpoint::Health)
        .example(examples::HEALTH)
        .doc(|| {
            asks("Check health")
                .and::<wire::Health>("200", "The node is healthy.")
                .and::<wire::Health>("503", "The node is unhealthy.")
        })
        .now(views::health),
    public("/ready", Endpoint::Ready)
        .example(examples::READY)
        .doc(|| asks("Check readiness").plain(JSON, "The node is ready for new work."))
        .now(views::ready),
    get("/metrics", Endpoint::Metrics, Role::Metrics, Scope::Own)
        .doc(|| asks("Get metrics").plain("text/plain", "Metrics in the Prometheus text format."))
        .here(|call| Box::pin(views::metrics(call))),
    public("/openapi.json", Endpoint::OpenApi)
        .doc(|| asks("Get this document").plain(JSON, "This OpenAPI document."))
        .now(|_| Ok(openapi::reply())),
    public("/", Endpoint::Dashboard)
        .doc(|| asks("Open the dashboard").plain("text/html", "A web page."))
        .now(|_| Ok(dashboard::page())),
    public("/dashboard.js", Endpoint::DashboardScript)
        .doc(|| asks("Get the script of the dashboard").plain("text/javascript", "A script."))
        .now(|_| Ok(dashboard::script())),
    public("/dashboard.css", Endpoint::DashboardStyle)
        .doc(|| asks("Get the style sheet of the dashboard").plain("text/css", "A style sheet."))
        .now(|_| Ok(dashboard::style())),
    #[cfg(test)]
    notes::CHANGE_NOTE,
    #[cfg(test)]
    notes::DELETE_NOTE,
];

// What workers also say over ZeroMQ.
pub(crate) const SHARD_REGISTER: Route =
    post("/v1/services/{service}/workers/{worker}/register", Endpoint::ShardRegister, Role::Work, Scope::All)
        .example(examples::SHARD_REGISTER)
        .doc(|| {
            asks("Register a shard worker")
                .and::<wire::Assignment>("200", "The assignment, when the rebalance is done.")
        })
        .takes::<ShardRegister>()
        .asks(shards::register, shards::assigned)
        .audited()
        .may_wait();
pub(crate) const SHARD_HEARTBEAT: Route = post(
    "/v1/services/{service}/workers/{worker}/heartbeat",
    Endpoint::ShardHeartbeat,
    Role::Work,
    Scope::All,
)
.example(examples::SHARD_HEARTBEAT)
.doc(|| asks("Send the heartbeat of a shard worker").and::<wire::Assignment>("200", "The assignment."))
.takes::<ShardHeartbeat>()
.asks(shards::heartbeat, shards::assigned);
pub(crate) const SHARD_DEREGISTER: Route = post(
    "/v1/services/{service}/workers/{worker}/deregister",
    Endpoint::ShardDeregister,
    Role::Work,
    Scope::All,
)
.example(examples::SHARD_DEREGISTER)
.doc(|| asks("Deregister a shard worker").and::<wire::Assignment>("200", "An empty assignment."))
.takes::<ShardDeregister>()
.asks(shards::deregister, shards::assigned)
.audited();

const LEASES: &str = "The leased tasks; empty if no task was ready.";
const OUTCOME: &str = "The task and its new state.";
const LIST: &[(&str, Type, &str)] = &[
    ("queue", Type::String, "Only tasks of this queue."),
    ("state", Type::String, "Only tasks in this state."),
    ("owner", Type::String, "Only tasks of this owner; tasks leased over HTTP have none."),
    ("limit", Type::Integer, "Tasks per page, 1 to 1000; 100 by default."),
    ("cursor", Type::String, "The `next_cursor` of the previous page."),
];
const SHARDS: &[(&str, Type, &str)] = &[
    ("limit", Type::Integer, "Shards per page, 1 to 100000; by default as many as 1 MiB holds."),
    ("cursor", Type::String, "The `next_cursor` of the previous page."),
];
const LOGS: &[(&str, Type, &str)] = &[
    ("offset", Type::Integer, "The number of the first line; 0 by default."),
    ("limit", Type::Integer, "Lines per page, 1 to 1000; 100 by default."),
    ("attempt", Type::Integer, "Only lines of this attempt."),
    ("follow", Type::Boolean, "Stream lines until the task ends."),
];
