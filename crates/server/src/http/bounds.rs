//! The bounds of fields and parameters in the OpenAPI document: those of `core/limits.rs`.

use orchestrix_core::limits::{
    ATTEMPTS_MAX, BACKOFF_FACTOR_MAX, BATCH_ITEMS_MAX, DELAY_MS_MAX, ERROR_BYTES_MAX, ID_MAX, LEASE_MS_MAX,
    LEASE_MS_MIN, LEASE_QUEUES_MAX, NAME_BYTES_MAX, NOTE_BYTES_MAX, PAGE_MAX, PRIORITY_MAX, SHARDS_MAX,
    TIMEOUT_MS_MAX, WAIT_MS_MAX,
};
use serde_json::{Map, Value, json};

/// What a field may be.
#[derive(Clone, Copy)]
enum Bound {
    Whole(i64, i64),
    Real(f64, f64),
    /// Bytes, and no text has fewer of them than characters.
    Text(usize),
    Items(usize, usize),
}

use Bound::{Items, Real, Text, Whole};

const SHARDS: i64 = SHARDS_MAX as i64;
const DELAY_MS: i64 = DELAY_MS_MAX as i64;
const LEASE_MS: Bound = Whole(LEASE_MS_MIN as i64, LEASE_MS_MAX as i64);
const WAIT_MS: Bound = Whole(0, WAIT_MS_MAX as i64);
const BATCH: i64 = BATCH_ITEMS_MAX as i64;

/// Fields of requests.
const FIELDS: &[(&str, &str, Bound)] = &[
    ("Submit", "priority", Whole(-(PRIORITY_MAX as i64), PRIORITY_MAX as i64)),
    ("Submit", "delay_ms", Whole(0, DELAY_MS)),
    ("Submit", "max_attempts", Whole(1, ATTEMPTS_MAX as i64)),
    ("Submit", "timeout_ms", Whole(1, TIMEOUT_MS_MAX as i64)),
    ("Submit", "ttl_ms", Whole(1, DELAY_MS)),
    ("Backoff", "base_ms", Whole(0, DELAY_MS)),
    ("Backoff", "factor", Real(1.0, BACKOFF_FACTOR_MAX)),
    ("Backoff", "max_ms", Whole(0, DELAY_MS)),
    ("SubmitBatch", "tasks", Items(0, BATCH_ITEMS_MAX)),
    ("CompleteBatch", "items", Items(0, BATCH_ITEMS_MAX)),
    ("LeaseQueue", "max", Whole(1, BATCH)),
    ("LeaseQueue", "lease_ms", LEASE_MS),
    ("LeaseQueue", "wait_ms", WAIT_MS),
    ("LeaseQueue", "capacity", Whole(1, u32::MAX as i64)),
    ("LeaseQueues", "queues", Items(1, LEASE_QUEUES_MAX)),
    ("LeaseQueues", "max", Whole(1, BATCH)),
    ("LeaseQueues", "lease_ms", LEASE_MS),
    ("LeaseQueues", "wait_ms", WAIT_MS),
    ("LeaseQueues", "capacity", Whole(1, u32::MAX as i64)),
    ("Heartbeat", "progress", Whole(0, 100)),
    ("Heartbeat", "note", Text(NOTE_BYTES_MAX)),
    ("WorkerHeartbeat", "leases", Items(0, BATCH_ITEMS_MAX)),
    ("Fail", "error", Text(ERROR_BYTES_MAX)),
    ("ShardRegister", "maxShardCount", Whole(0, SHARDS)),
    ("ShardRegister", "capacity", Whole(0, SHARDS)),
    ("ShardHeartbeat", "maxShardCount", Whole(0, SHARDS)),
    ("ShardHeartbeat", "capacity", Whole(0, SHARDS)),
    ("ServiceChange", "shard_count", Whole(0, SHARDS)),
];

/// Parameters, by their route.
const PARAMETERS: &[(&str, &str, Bound)] = &[
    ("/v1/tasks", "limit", Whole(1, PAGE_MAX as i64)),
    ("/v1/tasks/{id}/logs", "limit", Whole(1, PAGE_MAX as i64)),
    ("/v1/services/{service}", "limit", Whole(1, SHARDS)),
];

/// Says in the document what each field and parameter may be.
pub(crate) fn declare(document: &mut Value) {
    for (schema, field, bound) in FIELDS {
        let field = format!("/components/schemas/{schema}/properties/{field}");
        bound.say(document.pointer_mut(&field).expect("a bound is of a field that is there"));
    }
    let paths = document["paths"].as_object_mut().expect("there are routes");
    for (path, item) in paths {
        for operation in item.as_object_mut().into_iter().flat_map(Map::values_mut) {
            let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
            for parameter in parameters.into_iter().flatten() {
                declare_parameter(path, parameter);
            }
        }
    }
}

fn declare_parameter(path: &str, parameter: &mut Value) {
    let name = parameter["name"].as_str().unwrap_or_default().to_owned();
    let is_path = parameter["in"] == "path";
    let bound = match name.as_str() {
        "id" if is_path => Some(Whole(1, ID_MAX as i64)),
        _ => {
            PARAMETERS.iter().find(|(of, known, _)| *of == path && *known == name).map(|(_, _, bound)| *bound)
        }
    };
    let schema = &mut parameter["schema"];
    if let Some(bound) = bound {
        bound.say(schema);
    } else if is_path {
        schema["minLength"] = json!(1);
        schema["maxLength"] = json!(NAME_BYTES_MAX);
        schema["pattern"] = json!("^[A-Za-z0-9._:-]+$");
    }
}

impl Bound {
    fn say(self, schema: &mut Value) {
        let (low, high) = match self {
            Whole(min, max) => (("minimum", json!(min)), ("maximum", json!(max))),
            Real(min, max) => (("minimum", json!(min)), ("maximum", json!(max))),
            Text(max) => (("minLength", json!(0)), ("maxLength", json!(max))),
            Items(min, max) => (("minItems", json!(min)), ("maxItems", json!(max))),
        };
        for (name, value) in [low, high] {
            schema[name] = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi::document;

    #[test]
    fn the_document_has_the_limits_of_the_rules() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        let submit = &document["components"]["schemas"]["Submit"]["properties"];
        assert_eq!(submit["max_attempts"]["maximum"], json!(ATTEMPTS_MAX));
        assert_eq!(submit["priority"]["minimum"], json!(-PRIORITY_MAX));
        let parameters = &document["paths"]["/v1/tasks/{id}/logs"]["get"]["parameters"];
        let of = |name| parameters.as_array().unwrap().iter().find(|it| it["name"] == name).unwrap();
        assert_eq!(of("id")["schema"]["maximum"], json!(ID_MAX));
        assert_eq!(of("limit")["schema"]["maximum"], json!(PAGE_MAX));
        let lease = &document["paths"]["/v1/queues/{queue}/lease"]["post"]["parameters"][0]["schema"];
        assert_eq!(lease["maxLength"], json!(NAME_BYTES_MAX));
    }
}
