//! Who may do what: all routes by all roles, limits to queues, and what a browser could be tricked into.

use orchestrix_core::Name;
use orchestrix_node::Options as NodeOptions;
use orchestrix_server::http::{Access, Limits, Options, ROUTES, Verb};
use orchestrix_server::tokens::{Role, Tokens};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::kit::{Answer, Server, start, start_with};

const STREAM: &str = "/v1/services/{service}/workers/{worker}/assignments";

/// A tokens file with a token for every role, called as the role, and some special ones.
pub(crate) fn tokens_file() -> String {
    let entry = |name: &str, roles: &str, more: &str| {
        let digest: String = Sha256::digest(secret(name)).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("[[token]]\nname = \"{name}\"\nroles = [{roles}]\nsha256 = \"{digest}\"\n{more}\n")
    };
    let mut text: String =
        Role::ALL.iter().map(|role| entry(role.as_str(), &format!("{:?}", role.as_str()), "")).collect();
    text += &entry("old", "\"admin\"", "expires = 2020-01-01T00:00:00Z");
    text += &entry("mail", "\"submit\", \"work\", \"read\"", "queues = [\"mail\"]");
    text
}

pub(crate) fn secret(name: &str) -> String {
    format!("orx_canary_{name}")
}

async fn with_tokens() -> Server {
    with_limits(Limits::default()).await
}

async fn with_limits(limits: Limits) -> Server {
    let tokens = Some(Tokens::parse(&tokens_file()).unwrap());
    start_with(Options { limits, tokens, ..Options::default() }, NodeOptions::default()).await
}

async fn ask(server: &Server, token: Option<&str>, method: &str, path: &str, body: &str) -> Answer {
    let value = token.map(|name| format!("Bearer {}", secret(name)));
    let headers: Vec<(&str, &str)> = value.iter().map(|value| ("authorization", value.as_str())).collect();
    let body = ["POST", "PUT"].contains(&method).then_some(body.as_bytes());
    server.send(method, path, &headers, body).await
}

#[tokio::test]
async fn every_route_is_for_its_role_and_for_administrators_only() {
    let server = with_tokens().await;
    for route in ROUTES.iter().filter(|route| !["/v1/events", STREAM].contains(&route.path)) {
        let path = route.path.replace("{id}", "999999").replace("{queue}", "q").replace("{worker}", "w");
        let path = path.replace("{service}", "s");
        let position = server.position();
        for role in Role::ALL {
            let answer = ask(&server, Some(role.as_str()), route.verb.as_str(), &path, "not json").await;
            let allowed = match route.access {
                Access::Public => true,
                Access::Role(needed) => role == needed || role == Role::Admin,
            };
            if allowed {
                assert!(answer.status != 401 && answer.status != 403, "{role:?} {path}: {answer:?}");
            } else {
                assert_eq!((answer.status, answer.code()), (403, "forbidden".to_owned()), "{role:?} {path}");
            }
        }
        for token in [None, Some("unknown"), Some("old")] {
            let answer = ask(&server, token, route.verb.as_str(), &path, "not json").await;
            if route.access == Access::Public {
                assert!(answer.status != 401, "{path}");
            } else {
                assert_eq!(
                    (answer.status, answer.code()),
                    (401, "unauthorized".to_owned()),
                    "{token:?} {path}"
                );
                assert_eq!(answer.headers["www-authenticate"], "Bearer");
            }
        }
        let other = match route.verb {
            Verb::Get => "DELETE",
            Verb::Post => "PUT",
            Verb::Put | Verb::Patch | Verb::Delete => "POST",
        };
        assert_eq!(ask(&server, None, other, &path, "").await.status, 405, "{path}");
        assert_eq!(server.position(), position, "{path} changed something");
    }
    let events = |token| ask(&server, token, "GET", "/v1/events?after=x", "");
    assert_eq!(events(Some("read")).await.status, 400);
    assert_eq!(events(Some("work")).await.status, 403);
    assert_eq!(events(None).await.status, 401);
    server.stop().await;
}

#[tokio::test]
async fn only_known_callers_hear_how_far_the_journal_is() {
    let server = with_tokens().await;
    for (token, path, hears) in [
        (None, "/health", false),
        (None, "/v1/queues", false),
        (Some("unknown"), "/v1/queues", false),
        (Some("old"), "/v1/queues", false),
        (Some("read"), "/v1/queues", true),
        (Some("read"), "/metrics", true),
    ] {
        let answer = ask(&server, token, "GET", path, "").await;
        assert_eq!(answer.headers.contains_key("orchestrix-position"), hears, "{token:?} {path}");
    }
    server.stop().await;
    let server = start().await;
    assert!(
        server.get("/health").await.headers.contains_key("orchestrix-position"),
        "without tokens, everyone"
    );
    server.stop().await;
}

#[tokio::test]
async fn the_roles_that_change_things_are_few() {
    let by = |role: Role| ROUTES.iter().filter(|route| route.access == Access::Role(role)).count();
    assert_eq!((by(Role::Submit), by(Role::Work), by(Role::Admin), by(Role::Read)), (2, 13, 4, 11));
    assert!(ROUTES.iter().all(|route| route.verb == Verb::Get || route.access != Access::Public));
}

#[tokio::test]
async fn a_wrong_way_to_show_a_token_is_no_token() {
    let server = with_tokens().await;
    for value in [
        "",
        "Bearer",
        "Bearer ",
        "Basic b3J4OnA=",
        "Token orx_canary_read",
        "orx_canary_read",
        "Bearer orx_canary_rea",
    ] {
        let answer = server.send("GET", "/v1/queues", &[("authorization", value)], None).await;
        assert_eq!(answer.status, 401, "{value:?}");
        assert!(!answer.text().contains("canary"), "a token is never repeated");
    }
    let answer = server.send("GET", "/v1/queues", &[("authorization", "bearer orx_canary_read")], None).await;
    assert_eq!(answer.status, 200);
    let in_query = server.get("/v1/queues?token=orx_canary_read").await;
    assert_eq!(in_query.status, 401);
    server.stop().await;
}

#[tokio::test]
async fn a_token_for_one_queue_is_for_that_queue_only() {
    let server = with_tokens().await;
    let task = |queue: &str| json!({ "queue": queue, "payload": 1 }).to_string();
    let own = ask(&server, Some("mail"), "POST", "/v1/tasks", &task("mail")).await;
    assert_eq!(own.status, 201);
    let foreign = ask(&server, Some("submit"), "POST", "/v1/tasks", &task("pay")).await.json()["id"].clone();
    let lease = json!({ "worker": "w" }).to_string();
    let leased =
        ask(&server, Some("work"), "POST", "/v1/queues/pay/lease", &lease).await.json()["leases"][0].clone();
    let position = server.position();
    let batch = |queues: [&str; 2]| {
        json!({ "tasks": queues.map(|queue| json!({ "queue": queue, "payload": 1 })) }).to_string()
    };
    let report = json!({ "lease_id": leased["lease_id"], "error": "x" }).to_string();
    let complete = json!({ "lease_id": leased["lease_id"] }).to_string();
    let items = json!({ "items": [{ "task_id": foreign, "lease_id": leased["lease_id"] }] }).to_string();
    let lines = json!({ "lease_id": leased["lease_id"], "lines": [] }).to_string();
    let both = json!({ "queues": ["mail", "pay"], "worker": "w" }).to_string();
    let forbidden = [
        ("POST", "/v1/tasks".to_owned(), task("pay")),
        ("POST", "/v1/tasks/batch".to_owned(), batch(["mail", "pay"])),
        ("POST", "/v1/queues/pay/lease".to_owned(), lease.clone()),
        ("POST", "/v1/lease".to_owned(), both),
        ("GET", "/v1/tasks".to_owned(), String::new()),
        ("GET", "/v1/tasks?queue=pay".to_owned(), String::new()),
        ("GET", "/v1/workers".to_owned(), String::new()),
        ("GET", "/v1/events".to_owned(), String::new()),
    ];
    for (method, path, body) in forbidden {
        let answer = ask(&server, Some("mail"), method, &path, &body).await;
        assert_eq!((answer.status, answer.code()), (403, "forbidden".to_owned()), "{method} {path}");
    }
    let hidden = [
        ("POST", format!("/v1/tasks/{foreign}/complete"), complete.clone()),
        ("POST", format!("/v1/tasks/{foreign}/heartbeat"), complete.clone()),
        ("POST", format!("/v1/tasks/{foreign}/release"), complete),
        ("POST", format!("/v1/tasks/{foreign}/fail"), report),
        ("POST", format!("/v1/tasks/{foreign}/logs"), lines),
        ("GET", format!("/v1/tasks/{foreign}"), String::new()),
        ("GET", format!("/v1/tasks/{foreign}/explain"), String::new()),
        ("GET", format!("/v1/tasks/{foreign}/logs"), String::new()),
        ("GET", format!("/v1/tasks/{foreign}/logs?follow=true"), String::new()),
    ];
    for (method, path, body) in hidden {
        let answer = ask(&server, Some("mail"), method, &path, &body).await;
        assert_eq!((answer.status, answer.code()), (404, "not_found".to_owned()), "{method} {path}");
        assert!(!answer.text().contains("pay"), "{method} {path}");
    }
    let answer = ask(&server, Some("mail"), "POST", "/v1/tasks/complete/batch", &items).await;
    assert_eq!((answer.status, &answer.json()["items"][0]["code"]), (200, &json!("not_found")));
    let unknown = json!({ "items": [{ "task_id": 999_999, "lease_id": 1 }] }).to_string();
    let answer = ask(&server, Some("mail"), "POST", "/v1/tasks/complete/batch", &unknown).await;
    assert_eq!((answer.status, &answer.json()["items"][0]["code"]), (200, &json!("not_found")));
    let leases = json!({ "leases": [leased["lease_id"]] }).to_string();
    let beat = ask(&server, Some("mail"), "POST", "/v1/workers/w/heartbeat", &leases).await.json();
    assert_eq!((&beat["extended"], &beat["lost"]), (&json!([]), &json!([leased["lease_id"]])));
    assert_eq!(server.position(), position);
    let beat = ask(&server, Some("work"), "POST", "/v1/workers/w/heartbeat", &leases).await.json();
    assert_eq!(beat["extended"], json!([leased["lease_id"]]), "a token for all queues extends it");
    let queues = ask(&server, Some("mail"), "GET", "/v1/queues", "").await.json();
    assert_eq!(queues["queues"].as_array().unwrap().len(), 1);
    assert_eq!(
        ask(&server, Some("mail"), "GET", "/v1/tasks?queue=mail", "").await.json()["tasks"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert!(Name::new("mail").is_ok());
    server.stop().await;
}

#[tokio::test]
async fn the_in_flight_limit_of_a_token_is_its_own() {
    let server = with_limits(Limits { in_flight_per_token: 2, ..Limits::default() }).await;
    let wait = json!({ "worker": "w", "wait_ms": 30_000 }).to_string();
    let poll = || ask(&server, Some("work"), "POST", "/v1/queues/q/lease", &wait);
    let submit = async || {
        let task = json!({ "queue": "q", "payload": 1 }).to_string();
        assert_eq!(ask(&server, Some("submit"), "POST", "/v1/tasks", &task).await.status, 201);
    };
    let refuse_the_third = async || {
        while ask(&server, Some("read"), "GET", "/v1/queues", "").await.json()["queues"][0]["polls"] != 2 {
            tokio::task::yield_now().await;
        }
        let refused = poll().await;
        assert_eq!((refused.status, refused.code()), (429, "rate_limited".to_owned()));
        assert!(refused.headers.contains_key("retry-after"));
        submit().await;
        submit().await;
    };
    submit().await;
    assert_eq!(poll().await.status, 200);
    let (first, second, ()) = tokio::join!(poll(), poll(), refuse_the_third());
    assert_eq!((first.status, second.status), (200, 200));
    submit().await;
    assert_eq!(poll().await.status, 200, "answers make room");
    server.stop().await;
}

#[tokio::test]
async fn the_rate_limit_of_a_token_is_its_own() {
    let server = with_limits(Limits { requests_per_second_per_token: 1, ..Limits::default() }).await;
    assert_eq!(ask(&server, Some("read"), "GET", "/v1/queues", "").await.status, 200);
    let mut refused = ask(&server, Some("read"), "GET", "/v1/queues", "").await;
    while refused.status == 200 {
        refused = ask(&server, Some("read"), "GET", "/v1/queues", "").await;
    }
    assert_eq!((refused.status, refused.code()), (429, "rate_limited".to_owned()));
    assert!(refused.headers.contains_key("retry-after") && refused.text().contains("token read"));
    assert_eq!(ask(&server, Some("admin"), "GET", "/v1/queues", "").await.status, 200);
    assert_eq!(ask(&server, None, "GET", "/health", "").await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn without_tokens_only_this_machine_is_served() {
    let server = start().await;
    for host in ["localhost", "127.0.0.1:1", "[::1]:3000"] {
        assert_eq!(server.send("GET", "/v1/queues", &[("host", host)], None).await.status, 200, "{host}");
    }
    for host in ["evil.example", "localhost.evil.example", "10.0.0.1", ""] {
        let answer = server.send("GET", "/v1/queues", &[("host", host)], None).await;
        assert_eq!((answer.status, answer.code()), (403, "forbidden".to_owned()), "{host:?}");
    }
    server.stop().await;
    let server = with_tokens().await;
    assert_eq!(server.send("GET", "/health", &[("host", "coordinator.internal")], None).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn a_page_of_another_site_changes_nothing() {
    let server = start().await;
    let id = server.submit("q", json!(1)).await;
    let position = server.position();
    let own = format!("http://{}", server.address);
    for headers in [
        [("origin", "http://evil.example"), ("x-a", "1")],
        [("origin", "null"), ("x-a", "1")],
        [("sec-fetch-site", "cross-site"), ("x-a", "1")],
        [("sec-fetch-site", "same-site"), ("origin", own.as_str())],
    ] {
        let answer = server.send("POST", &format!("/v1/tasks/{id}/cancel"), &headers, None).await;
        assert_eq!((answer.status, answer.code()), (403, "forbidden".to_owned()), "{headers:?}");
    }
    assert_eq!(server.position(), position);
    let same =
        server.send("POST", &format!("/v1/tasks/{id}/cancel"), &[("origin", own.as_str())], None).await;
    assert_eq!(same.status, 200);
    server.stop().await;
}
