//! The bounds of the OpenAPI document are those of the server: every field and parameter is sent at its bound, which is accepted,
//! and one beyond it, which is refused.

use orchestrix_node::{Options as NodeOptions, ShardTimes};
use orchestrix_server::http::{Endpoint, Options, ROUTES, Route, openapi_document};
use serde_json::{Value, json};

use crate::examples::prepare;
use crate::kit::{Server, start_with};

/// Texts without a bound of their own, and why.
const UNBOUNDED: [(&str, &str); 4] = [
    ("lines/[]/text", "what is longer is cut"),
    ("desired", "nobody has such a name"),
    ("owner", "nobody has such a name"),
    ("cursor", "only a cursor of the same list is one"),
];

/// What is refused at its bound for another reason.
const STATEFUL: [(&str, &str); 2] =
    [("offset", "lines before it have not arrived"), ("group", "the service is in another one")];

/// Stands for a number that is written as it is.
const RAW: &str = "@raw@";

/// One field of a body, or one parameter.
#[derive(Debug)]
struct Field {
    /// Names, or `[]` for what is in a list.
    at: Vec<String>,
    schema: Value,
    nullable: bool,
}

impl Field {
    fn name(&self) -> String {
        self.at.join("/")
    }

    fn is_number(&self) -> bool {
        self.is("integer") || self.is("number")
    }

    fn is(&self, kind: &str) -> bool {
        let kinds = &self.schema["type"];
        kinds == kind || kinds.as_array().is_some_and(|kinds| kinds.contains(&json!(kind)))
    }

    /// Why it has no bound; `None` if it has one.
    fn missing(&self) -> Option<&'static str> {
        let has = |bound: &str| !self.schema[bound].is_null();
        if self.is_number() && !(has("minimum") && has("maximum")) {
            return Some("minimum and maximum");
        }
        if self.is("array") && !has("maxItems") {
            return Some("maxItems");
        }
        let is_text = self.is("string") && !has("enum") && !has("pattern") && !has("maxLength");
        (is_text && !UNBOUNDED.iter().any(|(name, _)| *name == self.name())).then_some("maxLength")
    }

    /// Values at the bounds, and one beyond each, as JSON.
    fn edges(&self, element: &Value) -> (Vec<String>, Vec<String>) {
        let bound = |name: &str| self.schema[name].as_u64().and_then(|n| usize::try_from(n).ok());
        let (mut inside, mut outside) = (Vec::new(), Vec::new());
        if self.is("number") {
            let [min, max] = ["minimum", "maximum"].map(|name| self.schema[name].as_f64().unwrap());
            inside.extend([min, max].map(|it| it.to_string()));
            outside.extend([min - 0.001, max + 0.001].map(|it| it.to_string()));
        }
        if self.is("integer") {
            let whole = |name: &str| self.schema[name].to_string().parse::<i128>().unwrap();
            inside.extend([whole("minimum"), whole("maximum")].map(|it| it.to_string()));
            outside.extend([whole("minimum") - 1, whole("maximum") + 1].map(|it| it.to_string()));
        }
        if self.is("string") {
            let text = |length: usize| json!("7".repeat(length)).to_string();
            inside.extend(bound("maxLength").map(text));
            outside.extend(bound("maxLength").map(|max| text(max + 1)));
            outside.extend(bound("minLength").filter(|min| *min > 0).map(|min| text(min - 1)));
            match self.schema["pattern"].as_str() {
                Some("^[A-Za-z0-9._:-]+$" | "^[A-Za-z0-9._:-]*$") => outside.push(json!("a b").to_string()),
                Some(r"^[^\u0000-\u001F\u007F-\u009F]+$") => outside.push(json!("a\u{9f}").to_string()),
                Some("^[0-9]{1,9}$") => outside.push(json!("1a").to_string()),
                Some(other) => panic!("{} has the pattern {other}", self.name()),
                None => {}
            }
            let known = self.schema["enum"].as_array().into_iter().flatten();
            let known: Vec<String> = known.map(Value::to_string).collect();
            outside.extend((!known.is_empty()).then(|| json!("ELSE").to_string()));
            inside.extend(known);
        }
        if self.is("array") {
            let list = |length: usize| Value::Array(vec![element.clone(); length]).to_string();
            inside.extend(bound("minItems").map(list));
            inside.extend(bound("maxItems").map(list));
            outside.extend(bound("maxItems").map(|max| list(max + 1)));
            outside.extend(bound("minItems").filter(|min| *min > 0).map(|min| list(min - 1)));
        }
        if let Some(max) = bound("maxProperties") {
            let numbered = |count: usize| (0..count).map(|n| (n.to_string(), json!(1))).collect::<Value>();
            inside.push(numbered(max).to_string());
            outside.push(numbered(max + 1).to_string());
            outside.push(json!({ "first": 1 }).to_string());
        }
        let of_null = if self.nullable { &mut inside } else { &mut outside };
        of_null.push("null".to_owned());
        (inside, outside)
    }
}

fn document() -> Value {
    serde_json::from_str(&openapi_document()).unwrap()
}

/// A schema by what it refers to, and whether it may be null instead.
fn resolved(document: &Value, schema: &Value) -> (Value, bool) {
    if let Some(name) = schema["$ref"].as_str() {
        return resolved(document, document.pointer(name.trim_start_matches('#')).unwrap());
    }
    if let Some([one, null]) = schema["anyOf"].as_array().map(Vec::as_slice)
        && *null == json!({ "type": "null" })
    {
        return (resolved(document, one).0, true);
    }
    let kinds = schema["type"].as_array();
    let any = schema["type"].is_null() && schema["enum"].is_null();
    (schema.clone(), any || kinds.is_some_and(|kinds| kinds.contains(&json!("null"))))
}

/// All fields of a body, those of its parts included.
fn fields(document: &Value, schema: &Value, at: &[String], found: &mut Vec<Field>) {
    let inner = |name: &str| [at, &[name.to_owned()]].concat();
    let mut parts: Vec<(Vec<String>, &Value)> = Vec::new();
    let properties = schema["properties"].as_object().into_iter().flatten();
    parts.extend(properties.map(|(name, part)| (inner(name), part)));
    parts.extend(schema.get("items").map(|part| (inner("[]"), part)));
    let more = schema.get("additionalProperties").filter(|more| more.is_object());
    parts.extend(more.map(|part| (inner("0"), part)));
    for (at, part) in parts {
        let (schema, nullable) = resolved(document, part);
        fields(document, &schema, &at, found);
        found.push(Field { at, schema, nullable });
    }
}

fn body_schema(document: &Value, route: &Route) -> Option<Value> {
    let operation = &document["paths"][route.path][route.verb.as_str().to_lowercase()];
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    (!schema.is_null()).then(|| resolved(document, schema).0)
}

/// The place of a field in a body, which is made if it is not there.
fn place<'b>(mut body: &'b mut Value, at: &[String]) -> &'b mut Value {
    for name in at {
        body = match &**name {
            "[]" => {
                if body.as_array().is_none_or(Vec::is_empty) {
                    *body = json!([null]);
                }
                &mut body[0]
            }
            name => {
                if !body.is_object() {
                    *body = json!({});
                }
                &mut body[name]
            }
        };
    }
    body
}

/// A right body with one field changed to what is written so.
fn with(body: &Value, at: &[String], written: &str) -> String {
    let mut body = body.clone();
    *place(&mut body, at) = RAW.into();
    body.to_string().replace(&json!(RAW).to_string(), written)
}

/// Each field within its bounds has an answer soon, whatever the others are.
fn right_body(route: &Route) -> Value {
    let mut body: Value = serde_json::from_str(route.example.unwrap().body).unwrap();
    let submit = match route.path {
        "/v1/tasks" => Some(&mut body),
        "/v1/tasks/batch" => Some(&mut body["tasks"][0]),
        _ => None,
    };
    if let Some(submit) = submit {
        // One of the two bounds the other.
        submit["backoff"] = json!({ "base_ms": 0, "max_ms": 31_622_400_000_u64 });
    }
    body
}

async fn server() -> Server {
    let node_options = NodeOptions {
        shards: ShardTimes { lease_ms: 1_000, ..ShardTimes::default() },
        ..NodeOptions::default()
    };
    let server = start_with(Options::default(), node_options).await;
    prepare(&server, true).await;
    server
}

async fn send(server: &Server, route: &Route, path: &str, body: &str) -> (u16, String) {
    // Nobody waits for a task.
    if route.path.ends_with("lease") {
        server.submit("reports", json!(1)).await;
    }
    let headers = [("content-type", "application/json")];
    let answer = server.send(route.verb.as_str(), path, &headers, Some(body.as_bytes())).await;
    (answer.status, answer.text().to_owned())
}

/// Items of a batch are refused one by one.
fn is_refused(status: u16, text: &str) -> bool {
    let item = |code: &str| text.contains(&format!(r#"{{"code":"{code}""#));
    status == 400 || status == 413 || status == 200 && (item("invalid") || item("too_large"))
}

#[test]
fn every_field_of_a_request_has_a_bound() {
    let document = document();
    let mut missing = Vec::new();
    for route in ROUTES {
        let mut found = Vec::new();
        if let Some(schema) = body_schema(&document, route) {
            fields(&document, &schema, &[], &mut found);
        }
        let operation = &document["paths"][route.path][route.verb.as_str().to_lowercase()];
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let at = vec![parameter["name"].as_str().unwrap().to_owned()];
            found.push(Field { at, schema: parameter["schema"].clone(), nullable: false });
        }
        let without = found.iter().filter_map(|field| Some((field.name(), field.missing()?)));
        missing.extend(without.map(|(name, what)| format!("{route:?} {name} has no {what}")));
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_is_taken_at_its_bound_and_refused_beyond() {
    let document = document();
    let mut wrong = Vec::new();
    // Alone, a node has nobody to hand its office to, whoever is named.
    for route in ROUTES.iter().filter(|route| route.endpoint != Endpoint::Lead) {
        let Some(schema) = body_schema(&document, route) else { continue };
        let (server, body, path) = (server().await, right_body(route), route.example.unwrap().path);
        let mut found = Vec::new();
        fields(&document, &schema, &[], &mut found);
        for field in found {
            let element = place(&mut body.clone(), &[&field.at[..], &["[]".to_owned()]].concat()).clone();
            let (mut inside, outside) = field.edges(&element);
            if STATEFUL.iter().any(|(name, _)| *name == field.name()) {
                inside.retain(|value| value == "null");
            }
            for (values, refused) in [(inside, false), (outside, true)] {
                for value in values {
                    let (status, text) = send(&server, route, path, &with(&body, &field.at, &value)).await;
                    if is_refused(status, &text) != refused || status >= 500 {
                        let value = value.get(..60).unwrap_or(&value);
                        wrong.push(format!("{route:?} {} = {value}: {status} {text}", field.name()));
                    }
                }
            }
        }
        server.stop().await;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_lacks_nothing_that_is_required_and_has_nothing_more() {
    let document = document();
    for route in ROUTES {
        let Some(schema) = body_schema(&document, route) else { continue };
        let (server, body, path) = (server().await, right_body(route), route.example.unwrap().path);
        let (status, text) = send(&server, route, path, &with(&body, &["more".to_owned()], "1")).await;
        assert!(status == 400 && text.contains("more"), "{route:?}: {status} {text}");
        for name in schema["required"].as_array().into_iter().flatten() {
            let mut body = body.clone();
            body.as_object_mut().unwrap().remove(name.as_str().unwrap());
            let (status, text) = send(&server, route, path, &body.to_string()).await;
            assert!(status == 400 && text.contains(name.as_str().unwrap()), "{route:?}: {status} {text}");
        }
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_parameter_is_taken_at_its_bound_and_refused_beyond() {
    let document = document();
    let (server, mut wrong) = (server().await, Vec::new());
    for route in ROUTES {
        let operation = &document["paths"][route.path][route.verb.as_str().to_lowercase()];
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let name = parameter["name"].as_str().unwrap();
            let field =
                Field { at: vec![name.to_owned()], schema: parameter["schema"].clone(), nullable: true };
            let (inside, outside) = field.edges(&Value::Null);
            for (values, refused) in [(inside, false), (outside, true)] {
                for value in values.iter().filter(|value| *value != "null" && *value != "\"\"") {
                    // Streams that begin have no end, and what a node of a cluster is asked is no matter of bounds.
                    if (!refused && route.example.is_none()) || route.endpoint == Endpoint::Link {
                        continue;
                    }
                    let text: String = serde_json::from_str(value).unwrap_or_else(|_| value.clone());
                    let path = with_parameter(route, name, &text, parameter["in"] == "query");
                    // A queue of another name has no tasks.
                    let body = route.example.map_or("", |example| example.body).replace("20000", "0");
                    let (status, text) = send(&server, route, &path, &body).await;
                    if is_refused(status, &text) != refused || status >= 500 {
                        wrong.push(format!("{route:?} {path}: {status} {text}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    server.stop().await;
}

/// The path of a route with one of its parameters.
fn with_parameter(route: &Route, name: &str, value: &str, in_query: bool) -> String {
    let value = value.replace(' ', "%20").replace('\u{9f}', "%C2%9F");
    let part = format!("{{{name}}}");
    let path = if in_query { route.path.to_owned() } else { route.path.replace(&part, &value) };
    let path = path.replace("{id}", "2");
    let parts = path.split('/').map(|part| if part.starts_with('{') { "a" } else { part });
    let path = parts.collect::<Vec<_>>().join("/");
    if in_query { format!("{path}?{name}={value}") } else { path }
}
