//! The OpenAPI document, made from the table of routes and the wire types. What is served is described, and
//! nothing else.

use std::sync::LazyLock;

use bytes::Bytes;
use http::StatusCode;
use orchestrix_core::wire;
use utoipa::ToSchema;
use utoipa::openapi::path::{
    HttpMethod, Operation, OperationBuilder, Parameter, ParameterBuilder, ParameterIn,
};
use utoipa::openapi::path::{PathItem, Paths};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::schema::{ComponentsBuilder, ObjectBuilder, Schema, SchemaType, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    Content, InfoBuilder, OpenApi, OpenApiBuilder, Ref, RefOr, Required, Response, ResponseBuilder,
};

use crate::http::answer::{JSON, Reply};
use crate::http::routes::{Access, Endpoint, ROUTES, Route, Scope, Verb};

const SECURITY: &str = "token";

pub(crate) fn reply() -> Reply {
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(document()));
    Reply::new(StatusCode::OK, JSON, DOCUMENT.clone())
}

/// The document, as JSON.
///
/// # Panics
/// Never: the document is plain JSON.
#[must_use]
pub fn document() -> String {
    let mut paths = Paths::new();
    let mut schemas = Schemas::new();
    described::<wire::Problem>(&mut schemas);
    for route in &ROUTES {
        let method = match route.verb {
            Verb::Get => HttpMethod::Get,
            Verb::Post => HttpMethod::Post,
            Verb::Put => HttpMethod::Put,
        };
        let operation = operation(route, &mut schemas);
        match paths.paths.get_mut(route.path) {
            Some(item) => item.merge_operations(PathItem::new(method, operation)),
            None => drop(paths.paths.insert(route.path.to_owned(), PathItem::new(method, operation))),
        }
    }
    let info = InfoBuilder::new()
        .title("Orchestrix")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("A coordinator for distributed work: durable tasks with leases."))
        .build();
    let scheme = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    let components =
        ComponentsBuilder::new().schemas_from_iter(schemas).security_scheme(SECURITY, scheme).build();
    let document: OpenApi =
        OpenApiBuilder::new().info(info).paths(paths).components(Some(components)).build();
    document.to_json().expect("the document is plain JSON")
}

/// Types that routes refer to, by name.
type Schemas = Vec<(String, RefOr<Schema>)>;

/// What is said about one route.
struct Told {
    summary: &'static str,
    schemas: Schemas,
    body: Option<RequestBody>,
    answers: Vec<(&'static str, Response)>,
    query: &'static [(&'static str, Type, &'static str)],
}

fn operation(route: &Route, schemas: &mut Schemas) -> Operation {
    let told = told(route.endpoint);
    schemas.extend(told.schemas);
    let mut operation = OperationBuilder::new()
        .operation_id(Some(format!("{:?}", route.endpoint)))
        .summary(Some(told.summary))
        .request_body(told.body)
        .response("default", problem());
    for (status, answer) in told.answers {
        operation = operation.response(status, answer);
    }
    for part in route.path.split('{').skip(1).filter_map(|rest| rest.split_once('}')) {
        operation = operation.parameter(in_path(part.0));
    }
    for (name, kind, meaning) in told.query {
        operation = operation.parameter(in_query(name, kind.clone(), meaning));
    }
    if let Access::Role(role) = route.access {
        let role = role.as_str();
        operation = operation
            .description(Some(format!("With tokens, this needs the role `{role}`. {}", limit(route.scope))))
            .security(SecurityRequirement::new::<_, [&str; 0], &str>(SECURITY, []));
    }
    operation.build()
}

/// What a limit of a token to some queues means for a route.
fn limit(scope: Scope) -> &'static str {
    match scope {
        Scope::Nothing => "It concerns no queue.",
        Scope::Named => "A token that is limited to some queues may name only these.",
        Scope::Task => "For a token that is limited to some queues, tasks of other queues are not there.",
        Scope::Own => "A token that is limited to some queues sees and changes only what is in these.",
        Scope::All => "A token that is limited to some queues is refused.",
    }
}

fn told(endpoint: Endpoint) -> Told {
    match endpoint {
        Endpoint::Submit => takes::<wire::Submit>("Submit a task")
            .and::<wire::Submitted>("201", "The task was accepted.")
            .and::<wire::Submitted>("200", "The task that was submitted with the same key before."),
        Endpoint::SubmitBatch => takes::<wire::SubmitBatch>("Submit many tasks")
            .and::<wire::SubmittedBatch>("200", "What became of each, in the order of the request."),
        Endpoint::LeaseQueue => {
            takes::<wire::LeaseQueue>("Lease tasks of a queue").and::<wire::Leases>("200", LEASES)
        }
        Endpoint::LeaseQueues => {
            takes::<wire::LeaseQueues>("Lease tasks of several queues").and::<wire::Leases>("200", LEASES)
        }
        Endpoint::Heartbeat => {
            takes::<wire::Heartbeat>("Extend a lease").and::<wire::Extended>("200", "The lease goes on.")
        }
        Endpoint::WorkerHeartbeat => takes::<wire::WorkerHeartbeat>("Extend all leases of a worker")
            .and::<wire::WorkerExtended>("200", "What the worker still has."),
        Endpoint::Complete => takes::<wire::Complete>("Complete a task").and::<wire::Outcome>("200", OUTCOME),
        Endpoint::CompleteBatch => takes::<wire::CompleteBatch>("Complete many tasks")
            .and::<wire::CompletedBatch>("200", "What became of each, in the order of the request."),
        Endpoint::Fail => takes::<wire::Fail>("Fail an attempt").and::<wire::Outcome>("200", OUTCOME),
        Endpoint::Release => takes::<wire::Release>("Give a task back").and::<wire::Outcome>("200", OUTCOME),
        Endpoint::Cancel => asks("Cancel a task")
            .and::<wire::Outcome>("200", "The task is cancelled.")
            .and::<wire::Outcome>("202", "The task is leased; its worker will be told."),
        Endpoint::Retry => asks("Give a failed task a new round").and::<wire::Outcome>("200", OUTCOME),
        Endpoint::ListTasks => {
            asks("List tasks").and::<wire::TaskPage>("200", "A page, lowest id first.").with(LIST)
        }
        Endpoint::Task => asks("Look at a task").and::<wire::TaskView>("200", "All that is known of it."),
        Endpoint::Explain => {
            asks("Ask why a task is where it is").and::<wire::Explanation>("200", "A code and a sentence.")
        }
        Endpoint::AppendLogs => takes::<wire::LogAppend>("Store lines of output")
            .and::<wire::LogAppended>("200", "What became of the lines."),
        Endpoint::Logs => asks("Read the output of a task")
            .and::<wire::LogPage>(
                "200",
                "A page of lines; with `follow=true` a stream of `line` events and one `end`.",
            )
            .with(LOGS),
        Endpoint::Queues => asks("List queues").and::<wire::QueueList>("200", "All queues that have tasks."),
        Endpoint::Workers => {
            asks("List workers").and::<wire::WorkerList>("200", "All workers that were seen lately.")
        }
        Endpoint::Cluster => {
            asks("Look at the cluster").and::<wire::Cluster>("200", "The nodes and who leads.")
        }
        Endpoint::ClusterNews => asks("Follow what happens to leadership")
            .plain("text/event-stream", "`coord:` events, and each again as `plg:coordinator:`."),
        Endpoint::Batches => asks("Follow what the leader writes, as another node")
            .plain("application/octet-stream", "Whole batches, each after its length; 0 is a sign of life.")
            .with(&[("after", Type::Integer, "The position that the asking node has reached.")]),
        Endpoint::Link => asks("Open a node link, as another node").empty("101", "The connection is a node link."),
        Endpoint::Services => asks("List services")
            .and::<wire::ServiceList>("200", "All services, by name.")
            .with(&[("group", Type::String, "Only services of this group.")]),
        Endpoint::Service => asks("Look at a service")
            .and::<wire::ServiceView>("200", "Its workers, and a page of its shards.")
            .with(SHARDS),
        Endpoint::ChangeService => takes::<wire::ServiceChange>("Change the shards of a service")
            .and::<wire::ServiceView>("200", "The service as it is now."),
        Endpoint::ShardRegister => {
            takes::<wire::ShardRegister>("Come as a worker of a service")
                .and::<wire::Assignment>("200", "What to serve, once others have let go of it.")
        }
        Endpoint::ShardHeartbeat => takes::<wire::ShardHeartbeat>("Stay as a worker of a service")
            .and::<wire::Assignment>("200", "What to serve."),
        Endpoint::ShardDeregister => takes::<wire::ShardDeregister>("Go as a worker of a service")
            .and::<wire::Assignment>("200", "Nothing is left to serve."),
        Endpoint::ShardAssignments => asks("Follow what a worker should serve")
            .plain("text/event-stream", "`assignment` events, one at once and one for each change.")
            .with(&[(
                "session",
                Type::String,
                "Required. The session of the process that asks: another process of the name hears `fenced`, and the stream ends.",
            )]),
        Endpoint::Lead => {
            takes::<wire::Lead>("Say who should lead").and::<wire::Cluster>("200", "It was asked for.")
        }
        Endpoint::Events => asks("Follow the journal")
            .plain(
                "text/event-stream",
                "Events from now on, or after a position; `gap` where some are missing.",
            )
            .with(&[(
                "after",
                Type::Integer,
                "Send the events after this position first; Last-Event-ID wins.",
            )]),
        Endpoint::Health => asks("Ask whether the coordinator is healthy")
            .and::<wire::Health>("200", "It is healthy.")
            .and::<wire::Health>("503", "It is unhealthy."),
        Endpoint::Ready => asks("Ask whether new work should be sent here").plain(JSON, "It is ready."),
        Endpoint::Metrics => asks("Read the metrics").plain("text/plain", "Prometheus' text format."),
        Endpoint::OpenApi => asks("Read this document").plain(JSON, "OpenAPI 3.1."),
        Endpoint::Dashboard => asks("Open the dashboard").plain("text/html", "A page."),
        Endpoint::DashboardScript => {
            asks("The script of the dashboard").plain("text/javascript", "A script.")
        }
        Endpoint::DashboardStyle => asks("The style of the dashboard").plain("text/css", "A style sheet."),
    }
}

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

fn asks(summary: &'static str) -> Told {
    Told { summary, schemas: Vec::new(), body: None, answers: Vec::new(), query: &[] }
}

fn takes<T: ToSchema>(summary: &'static str) -> Told {
    let body = RequestBodyBuilder::new().content(JSON, content::<T>()).required(Some(Required::True)).build();
    let mut told = Told { body: Some(body), ..asks(summary) };
    described::<T>(&mut told.schemas);
    told
}

impl Told {
    fn and<T: ToSchema>(mut self, status: &'static str, meaning: &str) -> Self {
        let answer = ResponseBuilder::new().description(meaning).content(JSON, content::<T>());
        self.answers.push((status, answer.build()));
        described::<T>(&mut self.schemas);
        self
    }

    fn plain(mut self, content_type: &str, meaning: &str) -> Self {
        let schema = ObjectBuilder::new().schema_type(SchemaType::AnyValue).build();
        let answer =
            ResponseBuilder::new().description(meaning).content(content_type, Content::new(Some(schema)));
        self.answers.push(("200", answer.build()));
        self
    }

    fn empty(mut self, status: &'static str, meaning: &str) -> Self {
        self.answers.push((status, ResponseBuilder::new().description(meaning).build()));
        self
    }

    fn with(self, query: &'static [(&'static str, Type, &'static str)]) -> Self {
        Self { query, ..self }
    }
}

fn problem() -> Response {
    let told = ResponseBuilder::new().description("Why not: a stable code and a sentence.");
    told.content("application/problem+json", content::<wire::Problem>()).build()
}

/// Describes a type and all that it is made of.
fn described<T: ToSchema>(schemas: &mut Schemas) {
    schemas.push((T::name().into_owned(), T::schema()));
    T::schemas(schemas);
}

fn content<T: ToSchema>() -> Content {
    Content::new(Some(Ref::from_schema_name(T::name())))
}

fn in_path(name: &str) -> Parameter {
    let kind = if name == "id" { Type::Integer } else { Type::String };
    let parameter =
        ParameterBuilder::new().name(name).parameter_in(ParameterIn::Path).required(Required::True);
    parameter.schema(Some(ObjectBuilder::new().schema_type(kind))).build()
}

fn in_query(name: &str, kind: Type, meaning: &str) -> Parameter {
    let parameter =
        ParameterBuilder::new().name(name).parameter_in(ParameterIn::Query).required(Required::False);
    parameter.description(Some(meaning)).schema(Some(ObjectBuilder::new().schema_type(kind))).build()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn every_route_is_described_and_nothing_else() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        assert!(document["openapi"].as_str().unwrap().starts_with("3.1"), "{}", document["openapi"]);
        let described: BTreeSet<(String, String)> = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, item)| {
                item.as_object().unwrap().keys().map(|verb| (path.clone(), verb.to_uppercase()))
            })
            .collect();
        let served =
            ROUTES.iter().map(|route| (route.path.to_owned(), route.verb.as_str().to_owned())).collect();
        assert_eq!(described, served);
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let text = document();
        let document: Value = serde_json::from_str(&text).unwrap();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let references =
            text.split("\"#/components/schemas/").skip(1).map(|rest| rest.split('"').next().unwrap());
        for name in references {
            assert!(schemas.contains_key(name), "{name} is not described");
        }
        assert!(schemas.contains_key("Submit") && schemas.contains_key("LeaseView"));
    }
}
