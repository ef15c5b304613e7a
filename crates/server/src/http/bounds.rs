//! The bounds of fields and parameters in the OpenAPI document: those of `core/limits.rs`. Fields that are no row here have no
//! bound of their own: their type has it, or `tests/http/bounds.rs` says why there is none.

use orchestrix_core::limits::{
    ATTEMPTS_MAX, BACKOFF_FACTOR_MAX, BATCH_ITEMS_MAX, DELAY_MS_MAX, ERROR_BYTES_MAX, ID_MAX, LEASE_MS_MAX,
    LEASE_MS_MIN, LEASE_QUEUES_MAX, NAME_BYTES_MAX, NOTE_BYTES_MAX, PAGE_MAX, PRIORITY_MAX, SHARD_WEIGHT_MAX,
    SHARDS_MAX, TIMEOUT_MS_MAX, WAIT_MS_MAX,
};
use orchestrix_core::{NAME_PATTERN, TaskState};
use serde_json::{Map, Value, json};

/// What a field may be.
#[derive(Clone, Copy)]
enum Bound {
    Whole(i64, u64),
    Real(f64, f64),
    /// Bytes, and no text has fewer of them than characters.
    Text(usize),
    Items(usize, usize),
    /// An object with numbers as names, and so many of them at most.
    Numbered(usize),
    Name,
    /// A name, or nothing, which is as if it were not given.
    NameOrNothing,
    /// The number of a shard, as text.
    Cursor,
    StateOrNothing,
}

use Bound::{Cursor, Items, Name, NameOrNothing, Numbered, Real, StateOrNothing, Text, Whole};

const SHARDS: u64 = SHARDS_MAX as u64;
const DELAY_MS: u64 = DELAY_MS_MAX;
const LEASE_MS: Bound = Whole(LEASE_MS_MIN as i64, LEASE_MS_MAX);
const WAIT_MS: Bound = Whole(0, WAIT_MS_MAX);
const BATCH: u64 = BATCH_ITEMS_MAX as u64;
/// Counts without a limit of their own: what their type holds.
const U32: Bound = Whole(0, u32::MAX as u64);
const U64: Bound = Whole(0, u64::MAX);

/// Fields of requests, by their place in the schema of the body.
const FIELDS: &[(&str, &str, Bound)] = &[
    ("Submit", "priority", Whole(-(PRIORITY_MAX as i64), PRIORITY_MAX as u64)),
    ("Submit", "delay_ms", Whole(0, DELAY_MS)),
    ("Submit", "max_attempts", Whole(1, ATTEMPTS_MAX as u64)),
    ("Submit", "timeout_ms", Whole(1, TIMEOUT_MS_MAX)),
    ("Submit", "ttl_ms", Whole(1, DELAY_MS)),
    ("Backoff", "base_ms", Whole(0, DELAY_MS)),
    ("Backoff", "factor", Real(1.0, BACKOFF_FACTOR_MAX)),
    ("Backoff", "max_ms", Whole(0, DELAY_MS)),
    ("SubmitBatch", "tasks", Items(0, BATCH_ITEMS_MAX)),
    ("CompleteBatch", "items", Items(0, BATCH_ITEMS_MAX)),
    ("LeaseQueue", "max", Whole(1, BATCH)),
    ("LeaseQueue", "lease_ms", LEASE_MS),
    ("LeaseQueue", "wait_ms", WAIT_MS),
    ("LeaseQueue", "capacity", Whole(1, u32::MAX as u64)),
    ("LeaseQueues", "queues", Items(1, LEASE_QUEUES_MAX)),
    ("LeaseQueues", "max", Whole(1, BATCH)),
    ("LeaseQueues", "lease_ms", LEASE_MS),
    ("LeaseQueues", "wait_ms", WAIT_MS),
    ("LeaseQueues", "capacity", Whole(1, u32::MAX as u64)),
    ("Heartbeat", "progress", Whole(0, 100)),
    ("Heartbeat", "note", Text(NOTE_BYTES_MAX)),
    ("WorkerHeartbeat", "leases", Items(0, BATCH_ITEMS_MAX)),
    ("Fail", "error", Text(ERROR_BYTES_MAX)),
    ("LogAppend", "lines", Items(0, BATCH_ITEMS_MAX)),
    ("LogAppend", "offset", U64),
    ("LogAppend", "skipped", U64),
    ("ShardRegister", "maxShardCount", Whole(0, SHARDS)),
    ("ShardRegister", "capacity", Whole(0, SHARDS)),
    ("ShardRegister", "seq", U64),
    ("ShardHeartbeat", "maxShardCount", Whole(0, SHARDS)),
    ("ShardHeartbeat", "assignedShards", Items(0, SHARDS_MAX as usize)),
    ("ShardHeartbeat", "assignedShards/items", U32),
    ("ShardHeartbeat", "capacity", Whole(0, SHARDS)),
    ("ShardHeartbeat", "seq", U64),
    ("ShardDeregister", "seq", U64),
    ("ServiceChange", "shard_count", Whole(0, SHARDS)),
    ("ServiceChange", "weights", Numbered(SHARDS_MAX as usize)),
    ("ServiceChange", "weights/additionalProperties", Whole(1, SHARD_WEIGHT_MAX as u64)),
];

/// Types with a schema of their own.
const TYPES: [(&str, Bound); 3] = [("TaskId", U64), ("LeaseId", U64), ("Position", U64)];

/// Parameters of queries, by their route.
const PARAMETERS: &[(&str, &str, Bound)] = &[
    ("/v1/tasks", "queue", NameOrNothing),
    ("/v1/tasks", "state", StateOrNothing),
    ("/v1/tasks", "limit", Whole(1, PAGE_MAX as u64)),
    ("/v1/tasks/{id}/logs", "offset", U64),
    ("/v1/tasks/{id}/logs", "limit", Whole(1, PAGE_MAX as u64)),
    ("/v1/tasks/{id}/logs", "attempt", U32),
    ("/v1/services", "group", NameOrNothing),
    ("/v1/services/{service}", "limit", Whole(1, SHARDS)),
    ("/v1/services/{service}", "cursor", Cursor),
    ("/v1/services/{service}/workers/{worker}/assignments", "session", Name),
    ("/v1/cluster/batches", "after", U64),
    ("/v1/events", "after", U64),
];

/// Says in the document what each field and parameter may be.
pub(crate) fn declare(document: &mut Value) {
    let schemas = document["components"]["schemas"].as_object_mut().expect("there are types");
    for (schema, bound) in TYPES {
        bound.say(schemas.get_mut(schema).expect("a bound is of a type that is there"));
    }
    for (schema, field, bound) in FIELDS {
        let field = format!("/properties/{field}");
        let field = schemas.get_mut(*schema).and_then(|schema| schema.pointer_mut(&field));
        bound.say(field.expect("a bound is of a field that is there"));
    }
    schemas.values_mut().for_each(mend);
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
    let bound = match (&*name, parameter["in"] == "path") {
        ("id", true) => Some(Whole(1, ID_MAX)),
        (_, true) => Some(Name),
        (_, false) => {
            PARAMETERS.iter().find(|(of, known, _)| *of == path && *known == name).map(|(_, _, bound)| *bound)
        }
    };
    if let Some(bound) = bound {
        bound.say(&mut parameter["schema"]);
    }
}

/// A field that may be any JSON or null would match both halves of `oneOf`.
fn mend(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if let Some(either) = fields.remove("oneOf") {
                fields.insert("anyOf".to_owned(), either);
            }
            fields.values_mut().for_each(mend);
        }
        Value::Array(items) => items.iter_mut().for_each(mend),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

impl Bound {
    fn say(self, schema: &mut Value) {
        let said = match self {
            Whole(min, max) => json!({ "minimum": min, "maximum": max }),
            Real(min, max) => json!({ "minimum": min, "maximum": max }),
            Text(max) => json!({ "minLength": 0, "maxLength": max }),
            Items(min, max) => json!({ "minItems": min, "maxItems": max }),
            Numbered(max) => {
                let names = json!({ "pattern": "^(0|[1-9][0-9]{0,8})$" });
                json!({ "maxProperties": max, "propertyNames": names })
            }
            Name => json!({ "minLength": 1, "maxLength": NAME_BYTES_MAX, "pattern": NAME_PATTERN }),
            NameOrNothing => {
                let pattern = NAME_PATTERN.replace('+', "*");
                json!({ "minLength": 0, "maxLength": NAME_BYTES_MAX, "pattern": pattern })
            }
            Cursor => json!({ "pattern": "^[0-9]{1,9}$" }),
            StateOrNothing => {
                let states = TaskState::ALL.into_iter().map(TaskState::as_str);
                json!({ "enum": states.chain([""]).collect::<Vec<_>>() })
            }
        };
        let said = said.as_object().into_iter().flatten();
        said.for_each(|(name, value)| schema[name] = value.clone());
        if let Whole(_, max) = self {
            // What is larger than the signed type holds is of the unsigned one.
            match schema["format"].as_str() {
                Some("int32") if max > i32::MAX as u64 => schema["format"] = json!("uint32"),
                Some("int64") if max > i64::MAX as u64 => schema["format"] = json!("uint64"),
                Some(_) | None => {}
            }
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
