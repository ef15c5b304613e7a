//! The one table of routes: what is asked how, which role may ask it, and which queues it concerns. What is not in it does
//! not exist.

use http::Method;

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

/// Which queues a request concerns. `http/scope.rs` keeps callers who are limited to some queues within these.
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

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub verb: Verb,
    /// Parts in braces, at most two, stand for any text without a slash.
    pub path: &'static str,
    pub endpoint: Endpoint,
    pub access: Access,
    pub scope: Scope,
}

const fn get(path: &'static str, endpoint: Endpoint, role: Role, scope: Scope) -> Route {
    Route { verb: Verb::Get, path, endpoint, access: Access::Role(role), scope }
}

const fn post(path: &'static str, endpoint: Endpoint, role: Role, scope: Scope) -> Route {
    Route { verb: Verb::Post, path, endpoint, access: Access::Role(role), scope }
}

const fn put(path: &'static str, endpoint: Endpoint, role: Role, scope: Scope) -> Route {
    Route { verb: Verb::Put, path, endpoint, access: Access::Role(role), scope }
}

const fn public(path: &'static str, endpoint: Endpoint) -> Route {
    Route { verb: Verb::Get, path, endpoint, access: Access::Public, scope: Scope::Nothing }
}

/// All routes, the busiest first.
pub const ROUTES: [Route; 39] = [
    post("/v1/tasks", Endpoint::Submit, Role::Submit, Scope::Named),
    post("/v1/queues/{queue}/lease", Endpoint::LeaseQueue, Role::Work, Scope::Named),
    post("/v1/tasks/{id}/complete", Endpoint::Complete, Role::Work, Scope::Task),
    post("/v1/tasks/{id}/heartbeat", Endpoint::Heartbeat, Role::Work, Scope::Task),
    post("/v1/tasks/batch", Endpoint::SubmitBatch, Role::Submit, Scope::Named),
    post("/v1/tasks/complete/batch", Endpoint::CompleteBatch, Role::Work, Scope::Own),
    post("/v1/workers/{worker}/heartbeat", Endpoint::WorkerHeartbeat, Role::Work, Scope::Own),
    post("/v1/lease", Endpoint::LeaseQueues, Role::Work, Scope::Named),
    post(
        "/v1/services/{service}/workers/{worker}/heartbeat",
        Endpoint::ShardHeartbeat,
        Role::Work,
        Scope::All,
    ),
    post("/v1/tasks/{id}/fail", Endpoint::Fail, Role::Work, Scope::Task),
    post("/v1/tasks/{id}/release", Endpoint::Release, Role::Work, Scope::Task),
    post("/v1/tasks/{id}/logs", Endpoint::AppendLogs, Role::Work, Scope::Task),
    post("/v1/tasks/{id}/cancel", Endpoint::Cancel, Role::Admin, Scope::Task),
    post("/v1/tasks/{id}/retry", Endpoint::Retry, Role::Admin, Scope::Task),
    get("/v1/tasks", Endpoint::ListTasks, Role::Read, Scope::Named),
    get("/v1/tasks/{id}", Endpoint::Task, Role::Read, Scope::Task),
    get("/v1/tasks/{id}/explain", Endpoint::Explain, Role::Read, Scope::Task),
    get("/v1/tasks/{id}/logs", Endpoint::Logs, Role::Read, Scope::Task),
    get("/v1/queues", Endpoint::Queues, Role::Read, Scope::Own),
    get("/v1/workers", Endpoint::Workers, Role::Read, Scope::All),
    get("/v1/cluster", Endpoint::Cluster, Role::Read, Scope::All),
    get("/v1/cluster/news", Endpoint::ClusterNews, Role::Read, Scope::All),
    get("/v1/cluster/batches", Endpoint::Batches, Role::Node, Scope::All),
    get("/v1/cluster/link", Endpoint::Link, Role::Node, Scope::All),
    post("/v1/cluster/leader", Endpoint::Lead, Role::Admin, Scope::All),
    get("/v1/services", Endpoint::Services, Role::Read, Scope::All),
    get("/v1/services/{service}", Endpoint::Service, Role::Read, Scope::All),
    put("/v1/services/{service}", Endpoint::ChangeService, Role::Admin, Scope::All),
    post("/v1/services/{service}/workers/{worker}/register", Endpoint::ShardRegister, Role::Work, Scope::All),
    post(
        "/v1/services/{service}/workers/{worker}/deregister",
        Endpoint::ShardDeregister,
        Role::Work,
        Scope::All,
    ),
    get(
        "/v1/services/{service}/workers/{worker}/assignments",
        Endpoint::ShardAssignments,
        Role::Work,
        Scope::All,
    ),
    get("/v1/events", Endpoint::Events, Role::Read, Scope::All),
    public("/health", Endpoint::Health),
    public("/ready", Endpoint::Ready),
    get("/metrics", Endpoint::Metrics, Role::Metrics, Scope::Own),
    public("/openapi.json", Endpoint::OpenApi),
    public("/", Endpoint::Dashboard),
    public("/dashboard.js", Endpoint::DashboardScript),
    public("/dashboard.css", Endpoint::DashboardStyle),
];

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
