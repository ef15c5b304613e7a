//! The defaults of fields and parameters in the OpenAPI document. Those of fields come from the types themselves: a body
//! with only its required fields is read, and written with all of them.

use orchestrix_core::wire::{Backoff, Fail, Lead, LeaseQueue, LeaseQueues, LogText, Submit};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// How many items a page has.
pub(crate) const PAGE_DEFAULT: usize = 100;

/// Reads the shortest body of a type and writes it with all fields.
type Whole = fn(&str) -> Value;

/// Each type that has defaults, and its shortest body.
const BODIES: [(&str, &str, Whole); 7] = [
    ("Submit", r#"{"queue":"q","payload":0}"#, whole::<Submit>),
    ("Backoff", "{}", whole::<Backoff>),
    ("LeaseQueue", r#"{"worker":"w"}"#, whole::<LeaseQueue>),
    ("LeaseQueues", r#"{"worker":"w","queues":["q"]}"#, whole::<LeaseQueues>),
    ("Fail", r#"{"lease_id":1,"error":""}"#, whole::<Fail>),
    ("LogText", r#"{"text":""}"#, whole::<LogText>),
    ("Lead", "{}", whole::<Lead>),
];

/// Parameters of queries with a default, by their route.
const PARAMETERS: [(&str, &str, usize); 3] = [
    ("/v1/tasks", "limit", PAGE_DEFAULT),
    ("/v1/tasks/{id}/logs", "limit", PAGE_DEFAULT),
    ("/v1/tasks/{id}/logs", "offset", 0),
];

fn whole<T: DeserializeOwned + Serialize>(body: &str) -> Value {
    let body: T = serde_json::from_str(body).expect("the shortest body has all required fields");
    serde_json::to_value(body).expect("a body is plain JSON")
}

/// Adds the default of each field and parameter that has one. A field that is an object has those of its own fields.
pub(crate) fn declare(document: &mut Value) {
    for (name, body, whole) in BODIES {
        let schema = &mut document["components"]["schemas"][name];
        let required = schema["required"].clone();
        let is_required =
            |field: &str| required.as_array().is_some_and(|all| all.iter().any(|it| it == field));
        let fields = schema["properties"].as_object_mut().expect("a body has fields");
        for (field, value) in whole(body).as_object().into_iter().flatten() {
            if !is_required(field) && !value.is_null() && !value.is_object() {
                let declared = fields.get_mut(field).and_then(Value::as_object_mut);
                declared.expect("a field of the type").insert("default".to_owned(), value.clone());
            }
        }
    }
    for (path, name, value) in PARAMETERS {
        let operations = document["paths"][path].as_object_mut().into_iter().flat_map(Map::values_mut);
        let parameters = operations.filter_map(|it| it.get_mut("parameters")?.as_array_mut()).flatten();
        for parameter in parameters.filter(|parameter| parameter["name"] == name) {
            parameter["schema"]["default"] = json!(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi::document;

    #[test]
    fn the_document_has_the_defaults_of_the_types() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        let of = |schema: &str, field: &str| {
            document["components"]["schemas"][schema]["properties"][field]["default"].clone()
        };
        for (schema, field, value) in [
            ("Submit", "max_attempts", json!(3)),
            ("Submit", "priority", json!(0)),
            ("Backoff", "max_ms", json!(600_000)),
            ("LeaseQueue", "lease_ms", json!(30_000)),
            ("LeaseQueues", "wait_ms", json!(0)),
            ("Fail", "retry", json!(true)),
            ("LogText", "stream", json!("stdout")),
            ("Lead", "force", json!(false)),
            ("Submit", "queue", Value::Null),
            ("Submit", "timeout_ms", Value::Null),
            ("Submit", "backoff", Value::Null),
        ] {
            assert_eq!(of(schema, field), value, "{schema}.{field}");
        }
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            for (field, declared) in schema["properties"].as_object().into_iter().flatten() {
                let is_promised =
                    declared["description"].as_str().is_some_and(|it| it.ends_with("by default."));
                assert!(!is_promised || declared.get("default").is_some(), "{name}.{field}");
            }
        }
        let logs = &document["paths"]["/v1/tasks/{id}/logs"]["get"]["parameters"];
        let limit = logs.as_array().unwrap().iter().find(|it| it["name"] == "limit").unwrap();
        assert_eq!(limit["schema"]["default"], json!(PAGE_DEFAULT));
    }
}
