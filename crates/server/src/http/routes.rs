//! The type of a row in the table of routes, and the search for the row of a request. A row has verb and path, role and
//! scope, types, and the function that answers. A request without a row is answered with `not_found`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use http::{Method, Response};
use orchestrix_node::{Answer, Ask, Node};
use serde::Serialize;
use serde::de::DeserializeOwned;
use utoipa::ToSchema;
use utoipa::openapi::request_body::RequestBody;

use crate::http::answer::{Body, Reply};
use crate::http::body;
use crate::http::error::Fault;
use crate::http::examples::Example;
use crate::http::handle::Call;
use crate::http::openapi::{self, RouteDoc, Schemas};
use crate::http::table::ROUTES;
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
    #[cfg(test)]
    ChangeNote,
    #[cfg(test)]
    DeleteNote,
}

/// How it is asked. `HEAD` is a `GET` whose body is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Get,
    Post,
    Put,
    Patch,
    Delete,
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

/// What a body is.
#[derive(Clone, Copy)]
pub(crate) struct Requested {
    /// Understands it, and writes down what was understood.
    pub(crate) again: fn(&[u8]) -> Result<Vec<u8>, Fault>,
    /// None for one that has nothing to say.
    pub(crate) described: Option<fn(&mut Schemas) -> RequestBody>,
}

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
    /// The type of its body.
    pub(crate) request: Option<Requested>,
    /// A request and its answer. None where the answer is not JSON.
    pub example: Option<Example>,
    /// What the OpenAPI document says of it.
    pub(crate) doc: fn() -> RouteDoc,
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb.as_str(), self.path)
    }
}

const fn route(verb: Verb, path: &'static str, endpoint: Endpoint, access: Access, scope: Scope) -> Route {
    let does = Does::Now(|_| Err(Fault::NoRoute));
    let (audit, pace) = (Audit::Unwritten, Pace::Prompt);
    let doc = || openapi::asks("");
    Route {
        verb,
        path,
        endpoint,
        access,
        scope,
        does,
        audit,
        pace,
        room: 0,
        request: None,
        example: None,
        doc,
    }
}

pub(crate) const fn get(path: &'static str, endpoint: Endpoint, role: Role, scope: Scope) -> Route {
    route(Verb::Get, path, endpoint, Access::Role(role), scope)
}

pub(crate) const fn post(path: &'static str, endpoint: Endpoint, role: Role, scope: Scope) -> Route {
    route(Verb::Post, path, endpoint, Access::Role(role), scope)
}

pub(crate) const fn put(path: &'static str, endpoint: Endpoint, role: Role, scope: Scope) -> Route {
    route(Verb::Put, path, endpoint, Access::Role(role), scope)
}

#[cfg(test)]
pub(crate) const fn patch(path: &'static str, endpoint: Endpoint, role: Role, scope: Scope) -> Route {
    route(Verb::Patch, path, endpoint, Access::Role(role), scope)
}

#[cfg(test)]
pub(crate) const fn delete(path: &'static str, endpoint: Endpoint, role: Role, scope: Scope) -> Route {
    route(Verb::Delete, path, endpoint, Access::Role(role), scope)
}

pub(crate) const fn public(path: &'static str, endpoint: Endpoint) -> Route {
    route(Verb::Get, path, endpoint, Access::Public, Scope::Nothing)
}

impl Route {
    pub(crate) const fn asks(
        self,
        ask: fn(&Call<'_>) -> Result<Ask, Fault>,
        reply: fn(&Call<'_>, Answer) -> Result<Reply, Fault>,
    ) -> Self {
        Self { does: Does::Asks(ask, reply), ..self }
    }

    pub(crate) const fn leads(self, lead: for<'a> fn(&'a Call<'a>, &'a Node) -> Replying<'a>) -> Self {
        Self { does: Does::Leads(lead), ..self }
    }

    pub(crate) const fn here(self, here: for<'a> fn(&'a Call<'a>) -> Replying<'a>) -> Self {
        Self { does: Does::Here(here), ..self }
    }

    pub(crate) const fn now(self, now: fn(&Call<'_>) -> Result<Reply, Fault>) -> Self {
        Self { does: Does::Now(now), ..self }
    }

    pub(crate) const fn upgrades(self, take: fn(&Call<'_>) -> Result<Response<Body>, Fault>) -> Self {
        Self { does: Does::Upgrades(take), ..self }
    }

    pub(crate) const fn takes<T: DeserializeOwned + Serialize + ToSchema>(self) -> Self {
        let described: fn(&mut Schemas) -> RequestBody = openapi::request_body::<T>;
        Self { request: Some(Requested { again: again::<T>, described: Some(described) }), ..self }
    }

    /// Its body is empty, or an empty object.
    pub(crate) const fn takes_nothing(self) -> Self {
        let again: fn(&[u8]) -> Result<Vec<u8>, Fault> =
            |body| body::parse_nothing(body).map(|()| Vec::new());
        Self { request: Some(Requested { again, described: None }), ..self }
    }

    pub(crate) const fn doc(self, doc: fn() -> RouteDoc) -> Self {
        Self { doc, ..self }
    }

    pub(crate) const fn example(self, example: Example) -> Self {
        Self { example: Some(example), ..self }
    }

    pub(crate) const fn audited(self) -> Self {
        Self { audit: Audit::Written, ..self }
    }

    pub(crate) const fn may_wait(self) -> Self {
        Self { pace: Pace::MayWait, ..self }
    }

    pub(crate) const fn room(self, room: usize) -> Self {
        Self { room, ..self }
    }
}

fn again<T: DeserializeOwned + Serialize>(body: &[u8]) -> Result<Vec<u8>, Fault> {
    let understood: T = body::parse(body)?;
    Ok(serde_json::to_vec(&understood).expect("what was JSON can be written as JSON"))
}

/// The methods of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Methods(u8);

impl Methods {
    fn and(self, verb: Verb) -> Self {
        Self(self.0 | 1 << verb as u8)
    }

    fn has(self, verb: Verb) -> bool {
        self.0 & 1 << verb as u8 != 0
    }
}

/// As the header `Allow` lists them.
impl fmt::Display for Methods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verbs = Verb::ALL.into_iter().filter(|verb| self.has(*verb));
        let names = verbs.map(|verb| if verb == Verb::Get { "GET, HEAD" } else { verb.as_str() });
        f.write_str(&names.collect::<Vec<_>>().join(", "))
    }
}

/// What the table says about a request.
#[derive(Debug)]
pub(crate) enum Found<'p> {
    /// The row, its place in the table, and the texts that stand for the parts in braces.
    Route(usize, &'static Route, [&'p str; 2]),
    /// The path is there, but only for these methods.
    OtherMethod(Methods),
    Nothing,
}

/// Looks a request up in the table. A path without braces stands for itself only, not for the part in braces of a later row.
pub(crate) fn find<'p>(method: &Method, path: &'p str) -> Found<'p> {
    let (mut methods, mut is_plain) = (Methods::default(), false);
    for (place, route) in ROUTES.iter().enumerate() {
        let Some(parts) = route.parts(path) else { continue };
        if is_plain && !parts[0].is_empty() {
            continue;
        }
        if route.verb.is(method) {
            return Found::Route(place, route, parts);
        }
        is_plain |= parts[0].is_empty();
        methods = methods.and(route.verb);
    }
    if methods == Methods::default() { Found::Nothing } else { Found::OtherMethod(methods) }
}

impl Verb {
    /// In the order in which `Allow` lists them.
    pub const ALL: [Self; 5] = [Self::Get, Self::Post, Self::Put, Self::Patch, Self::Delete];

    fn is(self, method: &Method) -> bool {
        match self {
            Self::Get => method == Method::GET || method == Method::HEAD,
            Self::Post => method == Method::POST,
            Self::Put => method == Method::PUT,
            Self::Patch => method == Method::PATCH,
            Self::Delete => method == Method::DELETE,
        }
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

impl Route {
    /// The names of the parts in braces.
    pub(crate) fn part_names(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0))
    }

    /// The texts for the parts in braces, empty when there is none; `None` when the path is another.
    pub(crate) fn parts<'p>(&self, path: &'p str) -> Option<[&'p str; 2]> {
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
            Found::OtherMethod(allow) => allow.to_string(),
            Found::Nothing => "nothing".to_owned(),
        }
    }

    #[test]
    fn every_row_finds_itself() {
        for row in ROUTES {
            let parts = row.path.split('/').map(|part| if part.starts_with('{') { "7" } else { part });
            let path = parts.collect::<Vec<_>>().join("/");
            let found = found(row.verb.as_str(), &path);
            assert!(found.starts_with(&format!("{:?}", row.endpoint)), "{} found {found}", row.path);
        }
    }

    #[test]
    fn a_path_without_braces_stands_before_those_that_match_it() {
        for (place, plain) in ROUTES.iter().enumerate().filter(|(_, row)| !row.path.contains('{')) {
            let earlier = ROUTES[..place]
                .iter()
                .find(|row| row.parts(plain.path).is_some_and(|[one, _]| !one.is_empty()));
            assert!(earlier.is_none(), "{} stands behind {earlier:?}", plain.path);
        }
        assert_eq!(found("GET", "/v1/tasks/batch"), "POST");
        assert_eq!(found("GET", "/v1/tasks/batches"), "Task batches");
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
