//! The one table of routes: what is asked how, which role may ask it, which queues it concerns, and what answers it. What is
//! not in it does not exist.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use http::{Method, Response};
use orchestrix_core::limits::{LEASE_PAYLOAD_BYTES_MAX, PAGE_BYTES_MAX};
use orchestrix_core::wire::{
    Complete, CompleteBatch, Fail, Heartbeat, Lead, LeaseQueue, LeaseQueues, LogAppend, Release,
    ServiceChange, ShardDeregister, ShardHeartbeat, ShardRegister, Submit, SubmitBatch, WorkerHeartbeat,
};
use orchestrix_node::{Answer, Ask, Node};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::http::answer::{Body, Reply};
use crate::http::body;
use crate::http::error::Fault;
use crate::http::handle::Call;
use crate::http::{dashboard, events, feed, leasing, link, logs, openapi, shards, tasks, views};
use crate::tokens::Role;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Submit,
    LeaseQueue,
    Complete,
    Heartbeat,
    SubmitBatch,
    CompleteBatch,
    WorkerHeartbeat,
    LeaseQueues,
    Fail,
    Release,
    Cancel,
    Retry,
    ListTasks,
    Task,
    Explain,
    AppendLogs,
    Logs,
    Queues,
    Workers,
    Cluster,
    ClusterNews,
    Batches,
    Link,
    Services,
    Service,
    ChangeService,
    ShardRegister,
    ShardHeartbeat,
    ShardDeregister,
    ShardAssignments,
    Lead,
    Events,
    Health,
    Ready,
    Metrics,
    OpenApi,
    Dashboard,
    DashboardScript,
    DashboardStyle,
}

/// How it is asked. `HEAD` is a `GET` whose body is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Get,
    Post,
    Put,
}

/// Who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everyone: it tells nothing about tasks.
    Public,
    /// Tokens with this role, and administrators.
    Role(Role),
}

/// Which queues a request concerns. The decision loop keeps callers who are limited to some queues within these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// None: it tells nothing about tasks.
    Nothing,
    /// Those that the request names. One that is not the caller's is refused.
    Named,
    /// The queue of the task in the path. A task of another queue is not found.
    Task,
    /// The caller's own. Nothing of another queue is seen or changed.
    Own,
    /// All of them, or the cluster as a whole. Callers who are limited are refused.
    All,
}

/// What answers a request.
#[derive(Clone, Copy)]
pub(crate) enum Does {
    /// The node that decides: the question that the request is, and the reply that its answer is.
    Asks(fn(&Call<'_>) -> Result<Ask, Fault>, fn(&Call<'_>, Answer) -> Result<Reply, Fault>),
    /// The node that decides, by more than one question or by a stream.
    Leads(for<'a> fn(&'a Call<'a>, &'a Node) -> Replying<'a>),
    /// Every node, by itself.
    Here(for<'a> fn(&'a Call<'a>) -> Replying<'a>),
    /// The same, at once.
    Now(fn(&Call<'_>) -> Result<Reply, Fault>),
    /// The same, and the connection is another protocol from then on.
    Upgrades(fn(&Call<'_>) -> Result<Response<Body>, Fault>),
}

type Replying<'a> = Pin<Box<dyn Future<Output = Result<Reply, Fault>> + Send + 'a>>;

type Again = fn(&[u8]) -> Result<Vec<u8>, Fault>;

/// Whether a request is a line of the log when it was answered. A refusal for want of a right always is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audit {
    /// Work itself is in the journal, and who only looks changes nothing.
    Unwritten,
    Written,
}

/// Whether an answer may wait for something to happen. A call that waits gets no work once its token has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Over in a moment, and the caller should hear what came of it.
    Prompt,
    MayWait,
}

/// One row of the table.
#[derive(Clone, Copy)]
pub struct Route {
    pub verb: Verb,
    /// Parts in braces, at most two, stand for any text without a slash.
    pub path: &'static str,
    pub endpoint: Endpoint,
    pub access: Access,
    pub scope: Scope,
    pub(crate) does: Does,
    pub(crate) audit: Audit,
    pub(crate) pace: Pace,
    /// Bytes that the answer may have: with so many unsent, the caller is not let in.
    pub(crate) room: usize,
    /// Understands a body, and writes down what was understood.
    pub(crate) body: Option<Again>,
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb.as_str(), self.path)
    }
}

const fn route(verb: Verb, path: &'static str, endpoint: Endpoint, access: Access, scope: Scope) -> Route {
    let does = Does::Now(|_| Err(Fault::NoRoute));
    let (audit, pace) = (Audit::Unwritten, Pace::Prompt);
    Route { verb, path, endpoint, access, scope, does, audit, pace, room: 0, body: None }
}

const fn get(path: &'static str, endpoint: Endpoint, role: Role, scope: Scope) -> Route {
    route(Verb::Get, path, endpoint, Access::Role(role), scope)
}

const fn post(path: &'static str, endpoint: Endpoint, role: Role, scope: Scope) -> Route {
    route(Verb::Post, path, endpoint, Access::Role(role), scope)
}

const fn put(path: &'static str, endpoint: Endpoint, role: Role, scope: Scope) -> Route {
    route(Verb::Put, path, endpoint, Access::Role(role), scope)
}

const fn public(path: &'static str, endpoint: Endpoint) -> Route {
    route(Verb::Get, path, endpoint, Access::Public, Scope::Nothing)
}

impl Route {
    const fn asks(
        self,
        ask: fn(&Call<'_>) -> Result<Ask, Fault>,
        reply: fn(&Call<'_>, Answer) -> Result<Reply, Fault>,
    ) -> Self {
        Self { does: Does::Asks(ask, reply), ..self }
    }

    const fn leads(self, lead: for<'a> fn(&'a Call<'a>, &'a Node) -> Replying<'a>) -> Self {
        Self { does: Does::Leads(lead), ..self }
    }

    const fn here(self, here: for<'a> fn(&'a Call<'a>) -> Replying<'a>) -> Self {
        Self { does: Does::Here(here), ..self }
    }

    const fn now(self, now: fn(&Call<'_>) -> Result<Reply, Fault>) -> Self {
        Self { does: Does::Now(now), ..self }
    }

    const fn upgrades(self, take: fn(&Call<'_>) -> Result<Response<Body>, Fault>) -> Self {
        Self { does: Does::Upgrades(take), ..self }
    }

    const fn takes<T: DeserializeOwned + Serialize>(self) -> Self {
        Self { body: Some(again::<T>), ..self }
    }

    /// A body of this route has nothing to say.
    const fn takes_nothing(self) -> Self {
        Self { body: Some(|body| body::parse_nothing(body).map(|()| Vec::new())), ..self }
    }

    const fn audited(self) -> Self {
        Self { audit: Audit::Written, ..self }
    }

    const fn may_wait(self) -> Self {
        Self { pace: Pace::MayWait, ..self }
    }

    const fn room(self, room: usize) -> Self {
        Self { room, ..self }
    }
}

fn again<T: DeserializeOwned + Serialize>(body: &[u8]) -> Result<Vec<u8>, Fault> {
    let understood: T = body::parse(body)?;
    Ok(serde_json::to_vec(&understood).expect("what was JSON can be written as JSON"))
}

/// All routes, the busiest first.
pub static ROUTES: [Route; 39] = [
    post("/v1/tasks", Endpoint::Submit, Role::Submit, Scope::Named)
        .takes::<Submit>()
        .asks(tasks::submit, tasks::submitted),
    post("/v1/queues/{queue}/lease", Endpoint::LeaseQueue, Role::Work, Scope::Named)
        .takes::<LeaseQueue>()
        .asks(leasing::lease_queue, leasing::leases)
        .may_wait()
        .room(LEASE_PAYLOAD_BYTES_MAX),
    post("/v1/tasks/{id}/complete", Endpoint::Complete, Role::Work, Scope::Task)
        .takes::<Complete>()
        .asks(leasing::complete, tasks::outcome),
    post("/v1/tasks/{id}/heartbeat", Endpoint::Heartbeat, Role::Work, Scope::Task)
        .takes::<Heartbeat>()
        .asks(leasing::heartbeat, leasing::extended),
    post("/v1/tasks/batch", Endpoint::SubmitBatch, Role::Submit, Scope::Named)
        .takes::<SubmitBatch>()
        .asks(tasks::submit_batch, tasks::submitted_batch),
    post("/v1/tasks/complete/batch", Endpoint::CompleteBatch, Role::Work, Scope::Own)
        .takes::<CompleteBatch>()
        .asks(leasing::complete_batch, leasing::completed_batch),
    post("/v1/workers/{worker}/heartbeat", Endpoint::WorkerHeartbeat, Role::Work, Scope::Own)
        .takes::<WorkerHeartbeat>()
        .asks(leasing::heartbeat_worker, leasing::worker_extended),
    post("/v1/lease", Endpoint::LeaseQueues, Role::Work, Scope::Named)
        .takes::<LeaseQueues>()
        .asks(leasing::lease_queues, leasing::leases)
        .may_wait()
        .room(LEASE_PAYLOAD_BYTES_MAX),
    SHARD_HEARTBEAT,
    post("/v1/tasks/{id}/fail", Endpoint::Fail, Role::Work, Scope::Task)
        .takes::<Fail>()
        .asks(leasing::fail, tasks::outcome),
    post("/v1/tasks/{id}/release", Endpoint::Release, Role::Work, Scope::Task)
        .takes::<Release>()
        .asks(leasing::release, tasks::outcome),
    post("/v1/tasks/{id}/logs", Endpoint::AppendLogs, Role::Work, Scope::Task)
        .takes::<LogAppend>()
        .leads(|call, node| Box::pin(logs::append(call, node))),
    post("/v1/tasks/{id}/cancel", Endpoint::Cancel, Role::Admin, Scope::Task)
        .takes_nothing()
        .asks(tasks::cancel, tasks::cancelled)
        .audited(),
    post("/v1/tasks/{id}/retry", Endpoint::Retry, Role::Admin, Scope::Task)
        .takes_nothing()
        .asks(tasks::retry, tasks::outcome)
        .audited(),
    get("/v1/tasks", Endpoint::ListTasks, Role::Read, Scope::Named).asks(tasks::list, tasks::page),
    get("/v1/tasks/{id}", Endpoint::Task, Role::Read, Scope::Task).asks(tasks::task, tasks::view),
    get("/v1/tasks/{id}/explain", Endpoint::Explain, Role::Read, Scope::Task)
        .asks(tasks::explain, tasks::explanation),
    get("/v1/tasks/{id}/logs", Endpoint::Logs, Role::Read, Scope::Task)
        .leads(|call, node| Box::pin(logs::read(call, node))),
    get("/v1/queues", Endpoint::Queues, Role::Read, Scope::Own).asks(views::queues, views::queue_list),
    get("/v1/workers", Endpoint::Workers, Role::Read, Scope::All).asks(views::workers, views::worker_list),
    get("/v1/cluster", Endpoint::Cluster, Role::Read, Scope::All).here(|call| Box::pin(views::cluster(call))),
    get("/v1/cluster/news", Endpoint::ClusterNews, Role::Read, Scope::All).now(views::news),
    get("/v1/cluster/batches", Endpoint::Batches, Role::Node, Scope::All).now(feed::tell),
    get("/v1/cluster/link", Endpoint::Link, Role::Node, Scope::All).upgrades(link::take),
    post("/v1/cluster/leader", Endpoint::Lead, Role::Admin, Scope::All)
        .takes::<Lead>()
        .leads(|call, _| Box::pin(views::lead(call)))
        .audited(),
    get("/v1/services", Endpoint::Services, Role::Read, Scope::All)
        .asks(shards::services, shards::service_list),
    get("/v1/services/{service}", Endpoint::Service, Role::Read, Scope::All)
        .asks(shards::service, shards::view)
        .room(PAGE_BYTES_MAX),
    put("/v1/services/{service}", Endpoint::ChangeService, Role::Admin, Scope::All)
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
    .leads(|call, node| Box::pin(async move { shards::follow(call, node) })),
    get("/v1/events", Endpoint::Events, Role::Read, Scope::All).here(|call| Box::pin(events::follow(call))),
    public("/health", Endpoint::Health).now(views::health),
    public("/ready", Endpoint::Ready).now(views::ready),
    get("/metrics", Endpoint::Metrics, Role::Metrics, Scope::Own).here(|call| Box::pin(views::metrics(call))),
    public("/openapi.json", Endpoint::OpenApi).now(|_| Ok(openapi::reply())),
    public("/", Endpoint::Dashboard).now(|_| Ok(dashboard::page())),
    public("/dashboard.js", Endpoint::DashboardScript).now(|_| Ok(dashboard::script())),
    public("/dashboard.css", Endpoint::DashboardStyle).now(|_| Ok(dashboard::style())),
];

// What workers also say over ZeroMQ.
pub(crate) const SHARD_REGISTER: Route =
    post("/v1/services/{service}/workers/{worker}/register", Endpoint::ShardRegister, Role::Work, Scope::All)
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
.takes::<ShardHeartbeat>()
.asks(shards::heartbeat, shards::assigned);
pub(crate) const SHARD_DEREGISTER: Route = post(
    "/v1/services/{service}/workers/{worker}/deregister",
    Endpoint::ShardDeregister,
    Role::Work,
    Scope::All,
)
.takes::<ShardDeregister>()
.asks(shards::deregister, shards::assigned)
.audited();

/// What the table says about a request.
#[derive(Debug)]
pub(crate) enum Found<'p> {
    /// The row, its place in the table, and the texts that stand for the parts in braces.
    Route(usize, &'static Route, [&'p str; 2]),
    /// The path is there, but only for these methods.
    OtherMethod(&'static str),
    Nothing,
}

/// Looks a request up in the table.
pub(crate) fn find<'p>(method: &Method, path: &'p str) -> Found<'p> {
    let (mut gets, mut posts, mut puts) = (false, false, false);
    for (place, route) in ROUTES.iter().enumerate() {
        let Some(parts) = route.parts(path) else { continue };
        if route.verb.is(method) {
            return Found::Route(place, route, parts);
        }
        match route.verb {
            Verb::Get => gets = true,
            Verb::Post => posts = true,
            Verb::Put => puts = true,
        }
    }
    match (gets, posts, puts) {
        (true, true, _) => Found::OtherMethod("GET, HEAD, POST"),
        (true, false, true) => Found::OtherMethod("GET, HEAD, PUT"),
        (true, false, false) => Found::OtherMethod("GET, HEAD"),
        (false, true, _) => Found::OtherMethod("POST"),
        (false, false, true) => Found::OtherMethod("PUT"),
        (false, false, false) => Found::Nothing,
    }
}

impl Verb {
    fn is(self, method: &Method) -> bool {
        match self {
            Self::Get => method == Method::GET || method == Method::HEAD,
            Self::Post => method == Method::POST,
            Self::Put => method == Method::PUT,
        }
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
        }
    }
}

impl Route {
    /// The texts for the parts in braces, empty when there is none; `None` when the path is another.
    fn parts<'p>(&self, path: &'p str) -> Option<[&'p str; 2]> {
        let mut parts = [""; 2];
        let (mut pattern, mut path) = (self.path, path);
        for part in &mut parts {
            let Some((before, rest)) = pattern.split_once('{') else { break };
            path = path.strip_prefix(before)?;
            let end = path.find('/').unwrap_or(path.len());
            (*part, path) = path.split_at_checked(end).filter(|(part, _)| !part.is_empty())?;
            pattern = rest.split_once('}').map_or("", |(_, after)| after);
        }
        (path == pattern).then_some(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(method: &str, path: &str) -> String {
        match find(&method.parse().unwrap(), path) {
            Found::Route(_, route, [one, two]) => format!("{:?} {one}{two}", route.endpoint),
            Found::OtherMethod(allow) => allow.to_owned(),
            Found::Nothing => "nothing".to_owned(),
        }
    }

    #[test]
    fn every_row_finds_itself() {
        for row in &ROUTES {
            let path = ["{id}", "{queue}", "{worker}", "{service}"];
            let path = path.iter().fold(row.path.to_owned(), |path, part| path.replace(part, "7"));
            let found = found(row.verb.as_str(), &path);
            assert!(found.starts_with(&format!("{:?}", row.endpoint)), "{} found {found}", row.path);
        }
    }

    #[test]
    fn paths_are_matched_whole() {
        assert_eq!(found("POST", "/v1/tasks/7/complete"), "Complete 7");
        assert_eq!(found("POST", "/v1/tasks/complete/batch"), "CompleteBatch ");
        for path in
            ["/v1/tasks/", "/v1/tasks//complete", "/v1/tasks/7/8/complete", "/v1/tasks/7/", "/v2/tasks", ""]
        {
            assert_eq!(found("POST", path), "nothing", "{path}");
        }
    }

    #[test]
    fn two_parts_are_told_apart() {
        let path = "/v1/services/a/workers/b/register";
        let Found::Route(_, route, parts) = find(&Method::POST, path) else { panic!("it is there") };
        assert_eq!((route.endpoint, parts), (Endpoint::ShardRegister, ["a", "b"]));
        for path in
            ["/v1/services/a/workers//register", "/v1/services//workers/b/register", "/v1/services/a/b"]
        {
            assert_eq!(found("POST", path), "nothing", "{path}");
        }
    }

    #[test]
    fn another_method_is_told_which_ones_there_are() {
        assert_eq!(found("DELETE", "/v1/tasks"), "GET, HEAD, POST");
        assert_eq!(found("GET", "/v1/tasks/7/complete"), "POST");
        assert_eq!(found("POST", "/health"), "GET, HEAD");
        assert_eq!(found("HEAD", "/health"), "Health ");
        assert_eq!(found("POST", "/v1/services/s"), "GET, HEAD, PUT");
    }
}
