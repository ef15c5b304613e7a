//! The rows of the table of routes. To add a route is to add a row here: its verb, path, role, scope, what it is in the OpenAPI
//! document, the type of its body, and what answers it.

use orchestrix_core::limits::{LEASE_PAYLOAD_BYTES_MAX, PAGE_BYTES_MAX};
use orchestrix_core::wire::{
    self, Complete, CompleteBatch, Fail, Heartbeat, Lead, LeaseQueue, LeaseQueues, LogAppend, Release,
    ServiceChange, ShardDeregister, ShardHeartbeat, ShardRegister, Submit, SubmitBatch, WorkerHeartbeat,
};
use utoipa::openapi::schema::Type;

use crate::http::answer::{BYTES, JSON};
use crate::http::openapi::asks;
use crate::http::routes::{Endpoint, Route, Scope, get, post, public, put};
use crate::http::{dashboard, events, feed, leasing, link, logs, openapi, shards, tasks, views};
use crate::tokens::Role;

/// All routes, the busiest first.
pub static ROUTES: [Route; 39] = [
    post("/v1/tasks", Endpoint::Submit, Role::Submit, Scope::Named)
        .doc(|| asks("Submit a task")
            .and::<wire::Submitted>("201", "The task was accepted.")
            .and::<wire::Submitted>("200", "The task that was submitted with the same key before."))
        .takes::<Submit>()
        .asks(tasks::submit, tasks::submitted),
    post("/v1/queues/{queue}/lease", Endpoint::LeaseQueue, Role::Work, Scope::Named)
        .doc(|| asks("Lease tasks of a queue").and::<wire::Leases>("200", LEASES))
        .takes::<LeaseQueue>()
        .asks(leasing::lease_queue, leasing::leases)
        .may_wait()
        .room(LEASE_PAYLOAD_BYTES_MAX),
    post("/v1/tasks/{id}/complete", Endpoint::Complete, Role::Work, Scope::Task)
        .doc(|| asks("Complete a task").and::<wire::Outcome>("200", OUTCOME))
        .takes::<Complete>()
        .asks(leasing::complete, tasks::outcome),
    post("/v1/tasks/{id}/heartbeat", Endpoint::Heartbeat, Role::Work, Scope::Task)
        .doc(|| asks("Extend a lease").and::<wire::Extended>("200", "The lease goes on."))
        .takes::<Heartbeat>()
        .asks(leasing::heartbeat, leasing::extended),
    post("/v1/tasks/batch", Endpoint::SubmitBatch, Role::Submit, Scope::Named)
        .doc(|| asks("Submit many tasks")
            .and::<wire::SubmittedBatch>("200", "What became of each, in the order of the request."))
        .takes::<SubmitBatch>()
        .asks(tasks::submit_batch, tasks::submitted_batch),
    post("/v1/tasks/complete/batch", Endpoint::CompleteBatch, Role::Work, Scope::Own)
        .doc(|| asks("Complete many tasks")
            .and::<wire::CompletedBatch>("200", "What became of each, in the order of the request."))
        .takes::<CompleteBatch>()
        .asks(leasing::complete_batch, leasing::completed_batch),
    post("/v1/workers/{worker}/heartbeat", Endpoint::WorkerHeartbeat, Role::Work, Scope::Own)
        .doc(|| asks("Extend all leases of a worker")
            .and::<wire::WorkerExtended>("200", "What the worker still has."))
        .takes::<WorkerHeartbeat>()
        .asks(leasing::heartbeat_worker, leasing::worker_extended),
    post("/v1/lease", Endpoint::LeaseQueues, Role::Work, Scope::Named)
        .doc(|| asks("Lease tasks of several queues").and::<wire::Leases>("200", LEASES))
        .takes::<LeaseQueues>()
        .asks(leasing::lease_queues, leasing::leases)
        .may_wait()
        .room(LEASE_PAYLOAD_BYTES_MAX),
    SHARD_HEARTBEAT,
    post("/v1/tasks/{id}/fail", Endpoint::Fail, Role::Work, Scope::Task)
        .doc(|| asks("Fail an attempt").and::<wire::Outcome>("200", OUTCOME))
        .takes::<Fail>()
        .asks(leasing::fail, tasks::outcome),
    post("/v1/tasks/{id}/release", Endpoint::Release, Role::Work, Scope::Task)
        .doc(|| asks("Give a task back").and::<wire::Outcome>("200", OUTCOME))
        .takes::<Release>()
        .asks(leasing::release, tasks::outcome),
    post("/v1/tasks/{id}/logs", Endpoint::AppendLogs, Role::Work, Scope::Task)
        .doc(|| asks("Store lines of output")
            .and::<wire::LogAppended>("200", "What became of the lines."))
        .takes::<LogAppend>()
        .leads(|call, node| Box::pin(logs::append(call, node))),
    post("/v1/tasks/{id}/cancel", Endpoint::Cancel, Role::Admin, Scope::Task)
        .doc(|| asks("Cancel a task")
            .and::<wire::Outcome>("200", "The task is cancelled.")
            .and::<wire::Outcome>("202", "The task is leased; its worker will be told."))
        .takes_nothing()
.asks(tasks::cancel, tasks::cancelled)
        .audited(),
    post("/v1/tasks/{id}/retry", Endpoint::Retry, Role::Admin, Scope::Task)
        .doc(|| asks("Give a failed task a new round").and::<wire::Outcome>("200", OUTCOME))
        .takes_nothing()
.asks(tasks::retry, tasks::outcome)
        .audited(),
    get("/v1/tasks", Endpoint::ListTasks, Role::Read, Scope::Named)
        .doc(|| asks("List tasks").and::<wire::TaskPage>("200", "A page, lowest id first.").with(LIST)).asks(tasks::list, tasks::page),
    get("/v1/tasks/{id}", Endpoint::Task, Role::Read, Scope::Task)
        .doc(|| asks("Look at a task").and::<wire::TaskView>("200", "All that is known of it.")).asks(tasks::task, tasks::view),
    get("/v1/tasks/{id}/explain", Endpoint::Explain, Role::Read, Scope::Task)
        .doc(|| asks("Ask why a task is where it is").and::<wire::Explanation>("200", "A code and a sentence."))
        .asks(tasks::explain, tasks::explanation),
    get("/v1/tasks/{id}/logs", Endpoint::Logs, Role::Read, Scope::Task)
        .doc(|| asks("Read the output of a task")
            .and::<wire::LogPage>(
                "200",
                "A page of lines; with `follow=true` a stream of `line` events and one `end`.",
            )
            .with(LOGS))
        .leads(|call, node| Box::pin(logs::read(call, node))),
    get("/v1/queues", Endpoint::Queues, Role::Read, Scope::Own)
        .doc(|| asks("List queues").and::<wire::QueueList>("200", "All queues that have tasks.")).asks(views::queues, views::queue_list),
    get("/v1/workers", Endpoint::Workers, Role::Read, Scope::All)
        .doc(|| asks("List workers").and::<wire::WorkerList>("200", "All workers that were seen lately.")).asks(views::workers, views::worker_list),
    get("/v1/cluster", Endpoint::Cluster, Role::Read, Scope::All)
        .doc(|| asks("Look at the cluster").and::<wire::Cluster>("200", "The nodes and who leads.")).here(|call| Box::pin(views::cluster(call))),
    get("/v1/cluster/news", Endpoint::ClusterNews, Role::Read, Scope::All)
        .doc(|| asks("Follow what happens to leadership")
            .plain("text/event-stream", "`coord:` events, and each again as `plg:coordinator:`.")).now(views::news),
    get("/v1/cluster/batches", Endpoint::Batches, Role::Node, Scope::All)
        .doc(|| asks("Follow what the leader writes, as another node")
            .plain(BYTES, "Whole batches, each after its length; 0 is a sign of life.")
            .with(&[("after", Type::Integer, "The position that the asking node has reached.")])).now(feed::tell),
    get("/v1/cluster/link", Endpoint::Link, Role::Node, Scope::All)
        .doc(|| asks("Open a node link, as another node").empty("101", "The connection is a node link."))
        .upgrades(link::take),
    post("/v1/cluster/leader", Endpoint::Lead, Role::Admin, Scope::All)
        .doc(|| asks("Say who should lead").and::<wire::Cluster>("200", "It was asked for."))
        .takes::<Lead>()
        .leads(|call, _| Box::pin(views::lead(call)))
        .audited(),
    get("/v1/services", Endpoint::Services, Role::Read, Scope::All)
        .doc(|| asks("List services")
            .and::<wire::ServiceList>("200", "All services, by name.")
            .with(&[("group", Type::String, "Only services of this group.")]))
        .asks(shards::services, shards::service_list),
    get("/v1/services/{service}", Endpoint::Service, Role::Read, Scope::All)
        .doc(|| asks("Look at a service")
            .and::<wire::ServiceView>("200", "Its workers, and a page of its shards.")
            .with(SHARDS))
        .asks(shards::service, shards::view)
        .room(PAGE_BYTES_MAX),
    put("/v1/services/{service}", Endpoint::ChangeService, Role::Admin, Scope::All)
        .doc(|| asks("Change the shards of a service")
            .and::<wire::ServiceView>("200", "The service as it is now."))
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
        .doc(|| asks("Follow what a worker should serve")
            .plain("text/event-stream", "`assignment` events, one at once and one for each change.")
            .with(&[(
                "session",
                Type::String,
                "Required. The session of the process that asks: another process of the name hears `fenced`, and the stream ends.",
            )]))
    .leads(|call, node| Box::pin(async move { shards::follow(call, node) })),
    get("/v1/events", Endpoint::Events, Role::Read, Scope::All)
        .doc(events::doc)
        .here(|call| Box::pin(events::follow(call))),
    public("/health", Endpoint::Health)
        .doc(|| asks("Ask whether the coordinator is healthy")
            .and::<wire::Health>("200", "It is healthy.")
            .and::<wire::Health>("503", "It is unhealthy.")).now(views::health),
    public("/ready", Endpoint::Ready)
        .doc(|| asks("Ask whether new work should be sent here").plain(JSON, "It is ready.")).now(views::ready),
    get("/metrics", Endpoint::Metrics, Role::Metrics, Scope::Own)
        .doc(|| asks("Read the metrics").plain("text/plain", "Prometheus' text format.")).here(|call| Box::pin(views::metrics(call))),
    public("/openapi.json", Endpoint::OpenApi)
        .doc(|| asks("Read this document").plain(JSON, "OpenAPI 3.1.")).now(|_| Ok(openapi::reply())),
    public("/", Endpoint::Dashboard)
        .doc(|| asks("Open the dashboard").plain("text/html", "A page.")).now(|_| Ok(dashboard::page())),
    public("/dashboard.js", Endpoint::DashboardScript)
        .doc(|| asks("The script of the dashboard").plain("text/javascript", "A script.")).now(|_| Ok(dashboard::script())),
    public("/dashboard.css", Endpoint::DashboardStyle)
        .doc(|| asks("The style of the dashboard").plain("text/css", "A style sheet.")).now(|_| Ok(dashboard::style())),
];

// What workers also say over ZeroMQ.
pub(crate) const SHARD_REGISTER: Route =
    post("/v1/services/{service}/workers/{worker}/register", Endpoint::ShardRegister, Role::Work, Scope::All)
        .doc(|| {
            asks("Come as a worker of a service")
                .and::<wire::Assignment>("200", "What to serve, once others have let go of it.")
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
.doc(|| asks("Stay as a worker of a service").and::<wire::Assignment>("200", "What to serve."))
.takes::<ShardHeartbeat>()
.asks(shards::heartbeat, shards::assigned);
pub(crate) const SHARD_DEREGISTER: Route = post(
    "/v1/services/{service}/workers/{worker}/deregister",
    Endpoint::ShardDeregister,
    Role::Work,
    Scope::All,
)
.doc(|| asks("Go as a worker of a service").and::<wire::Assignment>("200", "Nothing is left to serve."))
.takes::<ShardDeregister>()
.asks(shards::deregister, shards::assigned)
.audited();

const LEASES: &str = "The tasks handed out; none when there was nothing to do.";
const OUTCOME: &str = "What became of the task.";
const LIST: &[(&str, Type, &str)] = &[
    ("queue", Type::String, "Only tasks of this queue."),
    ("state", Type::String, "Only tasks in this state."),
    ("owner", Type::String, "Only tasks that this node owns; tasks leased over HTTP have no owner."),
    ("limit", Type::Integer, "Tasks of the page, 1 to 1000; 100 if not given."),
    ("cursor", Type::String, "The next_cursor of the page before."),
];
const SHARDS: &[(&str, Type, &str)] = &[
    ("limit", Type::Integer, "Shards of the page, 1 to 100000; as many as 1 MiB holds if not given."),
    ("cursor", Type::String, "The next_cursor of the page before."),
];
const LOGS: &[(&str, Type, &str)] = &[
    ("offset", Type::Integer, "The number of the first line; 0 if not given."),
    ("limit", Type::Integer, "Lines of the page, 1 to 1000; 100 if not given."),
    ("attempt", Type::Integer, "Only lines of this attempt."),
    ("follow", Type::Boolean, "Stream lines until the task ends."),
];
