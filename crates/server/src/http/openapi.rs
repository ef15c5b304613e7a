//! The OpenAPI document, made from the table of routes, the wire types and their bounds. What is served is described, and
//! nothing else.

use std::sync::LazyLock;

use bytes::Bytes;
use http::StatusCode;
use orchestrix_core::wire;
use serde_json::Value;
use utoipa::ToSchema;
use utoipa::openapi::example::ExampleBuilder;
use utoipa::openapi::path::{
    HttpMethod, Operation, OperationBuilder, Parameter, ParameterBuilder, ParameterIn,
};
use utoipa::openapi::path::{PathItem, Paths};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::schema::{ComponentsBuilder, ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    Content, ContentBuilder, InfoBuilder, OpenApi, OpenApiBuilder, Ref, RefOr, Required, Response,
    ResponseBuilder,
};

use crate::http::answer::{JSON, Reply};
use crate::http::examples::Example;
use crate::http::routes::{Access, Route, Scope, Verb};
use crate::http::sse::EVENT_STREAM;
use crate::http::table::ROUTES;
use crate::http::{bounds, defaults};

const SECURITY: &str = "token";
const DESCRIPTION: &str = "A coordinator for distributed work: durable tasks with leases, shards, and leadership. \
    Times end in `_at` and are Unix milliseconds; durations end in `_ms`. Errors are `application/problem+json` with a stable \
    `code`. Request bodies refuse unknown fields; answers may get more fields in later versions.";

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
    for route in ROUTES {
        let method = match route.verb {
            Verb::Get => HttpMethod::Get,
            Verb::Post => HttpMethod::Post,
            Verb::Put => HttpMethod::Put,
            Verb::Patch => HttpMethod::Patch,
            Verb::Delete => HttpMethod::Delete,
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
        .description(Some(DESCRIPTION))
        .build();
    let scheme = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    let components =
        ComponentsBuilder::new().schemas_from_iter(schemas).security_scheme(SECURITY, scheme).build();
    let document: OpenApi =
        OpenApiBuilder::new().info(info).paths(paths).components(Some(components)).build();
    let mut document = serde_json::to_value(&document).expect("the document is plain JSON");
    bounds::declare(&mut document);
    defaults::declare(&mut document);
    document.to_string()
}

/// Types that routes refer to, by name.
pub(crate) type Schemas = Vec<(String, RefOr<Schema>)>;

/// What is said about one route.
pub(crate) struct RouteDoc {
    summary: &'static str,
    schemas: Schemas,
    answers: Vec<(&'static str, Response)>,
    query: &'static [(&'static str, Type, &'static str)],
    /// Names of parameters of the query that must be there.
    needed: &'static [&'static str],
}

fn operation(route: &Route, schemas: &mut Schemas) -> Operation {
    let doc = (route.doc)();
    let body = route.request.and_then(|request| request.described);
    let body = body.map(|described| with_example(described(schemas), route.example));
    schemas.extend(doc.schemas);
    let mut operation = OperationBuilder::new()
        .tag(tag(route.path))
        .operation_id(Some(format!("{:?}", route.endpoint)))
        .summary(Some(doc.summary))
        .request_body(body)
        .response("default", problem());
    let mut shown = route.example.map(Example::answer);
    for (status, mut answer) in doc.answers {
        for content in answer.content.values_mut() {
            show(content, &mut shown);
        }
        operation = operation.response(status, answer);
    }
    let shown = route.example.map(|example| example.parameters(route)).unwrap_or_default();
    let shown = |name: &str| shown.get(name).cloned();
    for name in route.part_names() {
        operation = operation.parameter(in_path(name, shown(name)));
    }
    for (name, kind, meaning) in doc.query {
        let needed = if doc.needed.contains(name) { Required::True } else { Required::False };
        let parameter = parameter(name, kind.clone(), shown(name)).parameter_in(ParameterIn::Query);
        operation = operation.parameter(parameter.required(needed).description(Some(*meaning)).build());
    }
    if let Access::Role(role) = route.access {
        let role = role.as_str();
        operation = operation
            .description(Some(format!("With tokens, this needs the role `{role}`. {}", limit(route.scope))))
            .security(SecurityRequirement::new::<_, [&str; 0], &str>(SECURITY, []));
    }
    operation.build()
}

fn with_example(mut body: RequestBody, example: Option<Example>) -> RequestBody {
    let mut shown = example.and_then(Example::body);
    for content in body.content.values_mut() {
        show(content, &mut shown);
    }
    body
}

/// Shows an example, where none was shown yet.
fn show(content: &mut RefOr<Content>, shown: &mut Option<Value>) {
    if let RefOr::T(content) = content {
        content.example = shown.take();
    }
}

/// Under which heading a reader finds a route.
fn tag(path: &str) -> &'static str {
    match path.strip_prefix("/v1/").map(|rest| rest.split('/').next().unwrap_or(rest)) {
        Some("tasks" | "queues" | "lease" | "workers") => "Tasks",
        Some("services") => "Shards",
        Some("cluster" | "events") => "Cluster",
        Some(_) | None => "Process",
    }
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

pub(crate) fn asks(summary: &'static str) -> RouteDoc {
    RouteDoc { summary, schemas: Vec::new(), answers: Vec::new(), query: &[], needed: &[] }
}

/// Describes the body that a route takes.
pub(crate) fn request_body<T: ToSchema>(schemas: &mut Schemas) -> RequestBody {
    described::<T>(schemas);
    RequestBodyBuilder::new().content(JSON, content::<T>()).required(Some(Required::True)).build()
}

impl RouteDoc {
    pub(crate) fn and<T: ToSchema>(mut self, status: &'static str, meaning: &str) -> Self {
        let answer = ResponseBuilder::new().description(meaning).content(JSON, content::<T>());
        self.answers.push((status, answer.build()));
        described::<T>(&mut self.schemas);
        self
    }

    pub(crate) fn plain(mut self, content_type: &str, meaning: &str) -> Self {
        let schema = ObjectBuilder::new().schema_type(SchemaType::AnyValue).build();
        let answer =
            ResponseBuilder::new().description(meaning).content(content_type, Content::new(Some(schema)));
        self.answers.push(("200", answer.build()));
        self
    }

    /// A stream of frames, each with a `T` or a `U` as data. Examples have a name each.
    pub(crate) fn frames<T: ToSchema, U: ToSchema>(
        mut self,
        meaning: &str,
        examples: impl IntoIterator<Item = (String, Value)>,
    ) -> Self {
        let [one, other] = [T::name(), U::name()].map(Ref::from_schema_name);
        let frame = OneOfBuilder::new().item(one).item(other);
        let examples = examples
            .into_iter()
            .map(|(name, value)| (name, ExampleBuilder::new().value(Some(value)).build()));
        let content = ContentBuilder::new().schema(Some(frame)).examples_from_iter(examples).build();
        let answer = ResponseBuilder::new().description(meaning).content(EVENT_STREAM, content);
        self.answers.push(("200", answer.build()));
        described::<T>(&mut self.schemas);
        described::<U>(&mut self.schemas);
        self
    }

    pub(crate) fn empty(mut self, status: &'static str, meaning: &str) -> Self {
        self.answers.push((status, ResponseBuilder::new().description(meaning).build()));
        self
    }

    /// The same answer may also be a stream of server-sent events.
    pub(crate) fn or_stream(mut self) -> Self {
        if let Some((_, answer)) = self.answers.last_mut() {
            let schema = ObjectBuilder::new().schema_type(SchemaType::AnyValue).build();
            answer.content.insert(EVENT_STREAM.to_owned(), RefOr::T(Content::new(Some(schema))));
        }
        self
    }

    pub(crate) fn needs(self, needed: &'static [&'static str]) -> Self {
        Self { needed, ..self }
    }

    pub(crate) fn with(self, query: &'static [(&'static str, Type, &'static str)]) -> Self {
        Self { query, ..self }
    }
}

fn problem() -> Response {
    let told = ResponseBuilder::new().description("The reason: a stable code and a sentence.");
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

fn in_path(name: &str, shown: Option<Value>) -> Parameter {
    let kind = if name == "id" { Type::Integer } else { Type::String };
    parameter(name, kind, shown).parameter_in(ParameterIn::Path).required(Required::True).build()
}

fn parameter(name: &str, kind: Type, shown: Option<Value>) -> ParameterBuilder {
    ParameterBuilder::new().name(name).example(shown).schema(Some(ObjectBuilder::new().schema_type(kind)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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
