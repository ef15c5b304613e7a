//! The examples of the routes, as the OpenAPI document shows them, are true: each is sent to a coordinator of its own that was
//! prepared as `http/examples.rs` says.

use std::sync::Arc;

use orchestrix_core::wire::Lead;
use orchestrix_server::http::{Endpoint, Example, Options, ROUTES, Route, openapi_document};
use serde_json::{Value, json};

use crate::cluster::{join_as, place};
use crate::document::is_like;
use crate::kit::{Answer, Door, start, until};

/// Routes whose answer is no JSON: streams, frames, pages, numbers. The last one is the document itself.
const NO_JSON: [Endpoint; 10] = [
    Endpoint::ClusterNews,
    Endpoint::Batches,
    Endpoint::Link,
    Endpoint::ShardAssignments,
    Endpoint::Events,
    Endpoint::Metrics,
    Endpoint::Dashboard,
    Endpoint::DashboardScript,
    Endpoint::DashboardStyle,
    Endpoint::OpenApi,
];

pub(crate) async fn prepare(door: &Door, with_shards: bool) {
    let lease = json!({"worker": "box-1", "lease_ms": 60_000});
    door.done("/v1/tasks", &json!({"queue": "mail", "payload": {"to": "ada@example.org"}})).await;
    door.done("/v1/queues/mail/lease", &lease).await;
    door.done("/v1/tasks/3/logs", &json!({"lease_id": 4, "lines": [{"text": "connecting"}]})).await;
    door.done("/v1/tasks", &json!({"queue": "mail", "payload": {"to": "bob@example.org"}})).await;
    door.done("/v1/queues/mail/lease", &lease).await;
    let failed = json!({"lease_id": 6, "error": "no such address", "retry": false});
    door.done("/v1/tasks/5/fail", &failed).await;
    door.done("/v1/tasks", &json!({"queue": "reports", "payload": {"month": 6}})).await;
    if with_shards {
        let registered = json!({"maxShardCount": 4, "session": "a-1"});
        door.done("/v1/services/orders/workers/a/register", &registered).await;
    }
}

async fn send(door: &Door, route: &Route, example: Example) -> Answer {
    let body = (!example.body.is_empty()).then_some(example.body.as_bytes());
    door.send(route.verb.as_str(), example.path, &[("content-type", "application/json")], body).await
}

/// The answer to the example of a transfer, which takes two nodes.
async fn transfer(route: &Route, example: Example) -> Answer {
    let Lead { desired, .. } = serde_json::from_str(example.body).unwrap();
    let (place, follower) = (place(), desired.unwrap());
    let join = async |name: &str| join_as(Arc::new(place.clone()), name, true, Options::default()).await;
    let leader = join("node-1").await;
    leader.leads().await;
    let follower = join(&follower).await;
    follower.sees_leader("node-1").await;
    until("the leader sees both", || leader.member.cluster().nodes.len() == 2).await;
    let answer = send(&leader, route, example).await;
    leader.stop().await;
    follower.stop().await;
    answer
}

/// The status that the document has first, and the answer that it shows with it.
fn shown(document: &Value, route: &Route) -> (String, Value) {
    let operation = &document["paths"][route.path][route.verb.as_str().to_lowercase()];
    let answers = operation["responses"].as_object().unwrap().iter();
    let answer = |answer: &Value| answer["content"]["application/json"].get("example").cloned();
    let mut shown = answers.filter_map(|(status, it)| Some((status.clone(), answer(it)?)));
    let found = shown.next().unwrap_or_else(|| panic!("{} shows no answer", route.path));
    assert_eq!(shown.next(), None, "{}", route.path);
    found
}

/// The names of the nodes of a cluster, and of what is said of each.
fn names(cluster: &Value) -> Vec<(Value, Vec<String>)> {
    let nodes = cluster["nodes"].as_array().into_iter().flatten();
    let mut names: Vec<_> = nodes
        .map(|node| (node["name"].clone(), node.as_object().unwrap().keys().cloned().collect()))
        .collect();
    names.sort_by_key(|(name, _): &(Value, _)| name.to_string());
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn every_example_is_answered_as_its_row_says() {
    let document: Value = serde_json::from_str(&openapi_document()).unwrap();
    let mut wrong = Vec::new();
    for route in ROUTES {
        let Some(example) = route.example else {
            assert!(NO_JSON.contains(&route.endpoint), "{route:?} has no example");
            continue;
        };
        let answer = if route.endpoint == Endpoint::Lead {
            transfer(route, example).await
        } else {
            let server = start().await;
            prepare(&server, route.path.starts_with("/v1/services")).await;
            let answer = send(&server, route, example).await;
            server.stop().await;
            answer
        };
        let (status, expected) = shown(&document, route);
        let is_as_shown = match route.endpoint == Endpoint::Lead {
            // Who leads by then, and how far they are, is open.
            true => names(&answer.json()) == names(&expected),
            false => is_like(&answer.json(), &expected),
        };
        if answer.status.to_string() != status || !is_as_shown {
            wrong.push(format!(
                "{route:?} is answered with {} {}, not {status} {expected}",
                answer.status,
                answer.text()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_document_shows_a_request_for_every_body_and_parameter() {
    let document: Value = serde_json::from_str(&openapi_document()).unwrap();
    for route in ROUTES.iter().filter(|route| route.example.is_some()) {
        let operation = &document["paths"][route.path][route.verb.as_str().to_lowercase()];
        let body = &operation["requestBody"]["content"]["application/json"];
        assert!(body.is_null() || body["example"].is_object(), "{route:?}");
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let is_shown = parameter.get("example").is_some();
            assert!(is_shown || parameter["in"] == "query", "{route:?} shows no {}", parameter["name"]);
        }
    }
}
