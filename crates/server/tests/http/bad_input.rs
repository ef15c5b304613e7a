//! Everything that can be asked wrongly: each case has its status and code, and leaves no trace.

use orchestrix_core::limits::{
    BATCH_ITEMS_MAX, ERROR_BYTES_MAX, KEY_BYTES_MAX, NAME_BYTES_MAX, NOTE_BYTES_MAX, PAYLOAD_BYTES_MAX,
};
use serde_json::json;

use crate::kit::{Server, start};

/// Method, path, body, status, code, and what the detail says.
type Case<'a> = (&'a str, String, String, u16, &'a str, &'a str);

/// A server with one task of each kind.
struct Stage {
    server: Server,
    waiting: u64,
    leased: (u64, u64),
    completed: (u64, u64),
    failed: u64,
}

async fn stage() -> Stage {
    let server = start().await;
    server.submit("done", json!(1)).await;
    let completed = server.lease("done", "w").await;
    server
        .done(
            &format!("/v1/tasks/{}/complete", completed.0),
            &json!({ "lease_id": completed.1, "result": 7 }),
        )
        .await;
    server.submit("dead", json!(1)).await;
    let failed = server.lease("dead", "w").await;
    let error = json!({ "lease_id": failed.1, "error": "no", "retry": false });
    server.done(&format!("/v1/tasks/{}/fail", failed.0), &error).await;
    server.submit("busy", json!(1)).await;
    let leased = server.lease("busy", "w").await;
    let keyed = json!({ "queue": "q", "payload": 1, "key": "k" });
    let waiting = server.done("/v1/tasks", &keyed).await["id"].as_u64().unwrap();
    Stage { server, waiting, leased, completed, failed: failed.0 }
}

async fn check(stage: &Stage, cases: Vec<Case<'_>>) {
    let before = stage.server.position();
    for (method, path, body, status, code, detail) in cases {
        let headers: &[_] = if method == "POST" { &[("content-type", "application/json")] } else { &[] };
        let answer = stage.server.send(method, &path, headers, Some(body.as_bytes())).await;
        let shown = format!("{method} {path} {}: {answer:?}", &body[..body.len().min(200)]);
        assert_eq!(answer.status, status, "{shown}");
        assert_eq!(answer.code(), code, "{shown}");
        assert!(
            answer.json()["detail"].as_str().unwrap().contains(detail),
            "{shown} does not say {detail:?}"
        );
        assert_eq!(stage.server.position(), before, "{shown} left a trace");
    }
}

fn post<'a>(path: &str, body: &str, status: u16, code: &'a str, detail: &'a str) -> Case<'a> {
    ("POST", path.to_owned(), body.to_owned(), status, code, detail)
}

fn get<'a>(path: &str, status: u16, code: &'a str, detail: &'a str) -> Case<'a> {
    ("GET", path.to_owned(), String::new(), status, code, detail)
}

#[tokio::test]
async fn a_body_that_is_not_what_the_route_takes_is_refused() {
    let stage = stage().await;
    let (task, lease) = stage.leased;
    let routes = [
        "/v1/tasks".to_owned(),
        "/v1/tasks/batch".to_owned(),
        "/v1/tasks/complete/batch".to_owned(),
        "/v1/lease".to_owned(),
        "/v1/queues/q/lease".to_owned(),
        "/v1/workers/w/heartbeat".to_owned(),
        format!("/v1/tasks/{task}/heartbeat"),
        format!("/v1/tasks/{task}/complete"),
        format!("/v1/tasks/{task}/fail"),
        format!("/v1/tasks/{task}/release"),
        format!("/v1/tasks/{task}/logs"),
    ];
    for route in &routes {
        let cases = vec![
            post(route, "", 400, "invalid", "the body is empty"),
            post(route, " ", 400, "invalid", "the JSON is not complete"),
            post(route, "{", 400, "invalid", "the JSON is not complete: EOF while parsing"),
            post(route, "{}", 400, "invalid", "this field is required"),
            post(route, "[]", 400, "invalid", ""),
            post(route, "null", 400, "invalid", "must be an object, not null"),
            post(route, "\"text\"", 400, "invalid", "must be an object, not \"text\""),
            post(route, "{\"surprise\":1}", 400, "invalid", "surprise: unknown field; expected"),
            post(route, &"[".repeat(100_000), 400, "invalid", "nested deeper than 64 levels"),
            post(
                route,
                "{\"lease_id\":1,\"lease_id\":2,\"queue\":\"q\",\"queue\":\"q\"}",
                400,
                "invalid",
                "field",
            ),
        ];
        check(&stage, cases).await;
        let bytes = b"{\"worker\":\"\xff\"}";
        let answer = stage.server.send("POST", route, &[], Some(bytes)).await;
        assert_eq!((answer.status, answer.code()), (400, "invalid".to_owned()), "{route}");
        assert!(answer.text().contains("not UTF-8 from byte 11"), "{answer:?}");
        let typed =
            stage.server.send("POST", route, &[("content-type", "application/xml")], Some(b"{}")).await;
        assert_eq!((typed.status, typed.code()), (415, "unsupported_media_type".to_owned()), "{route}");
    }
    for route in [format!("/v1/tasks/{task}/cancel"), format!("/v1/tasks/{task}/retry")] {
        let lease = json!({ "lease_id": lease }).to_string();
        check(
            &stage,
            vec![
                post(&route, &lease, 400, "invalid", "unknown field"),
                post(&route, "7", 400, "invalid", ""),
            ],
        )
        .await;
    }
    stage.server.stop().await;
}

#[tokio::test]
async fn a_task_with_an_impossible_field_is_refused() {
    let stage = stage().await;
    let with = |more: &str| format!("{{\"queue\":\"q\",\"payload\":1,{more}}}");
    let cases = [
        ("\"priority\":1000001", "priority"),
        ("\"priority\":\"high\"", "priority: must be a whole number"),
        ("\"priority\":99999999999", "priority"),
        ("\"priority\":1.5", "priority"),
        ("\"delay_ms\":-1", "delay_ms"),
        ("\"delay_ms\":31622400001", "delay_ms"),
        ("\"max_attempts\":0", "max_attempts"),
        ("\"max_attempts\":1001", "max_attempts"),
        ("\"timeout_ms\":0", "timeout_ms"),
        ("\"ttl_ms\":0", "ttl_ms"),
        ("\"ttl_ms\":18446744073709551616", "ttl_ms"),
        ("\"backoff\":{\"factor\":0.5}", "backoff.factor"),
        ("\"backoff\":{\"factor\":1e999}", "line 1"),
        ("\"backoff\":{\"base_ms\":10,\"max_ms\":5}", "backoff.base_ms"),
        ("\"backoff\":{\"speed\":1}", "backoff"),
        ("\"key\":\"\"", "key"),
        ("\"key\":\"a\\u0000b\"", "key"),
    ];
    let cases = cases.iter().map(|(more, detail)| post("/v1/tasks", &with(more), 400, "invalid", detail));
    check(&stage, cases.collect()).await;
    let names =
        ["", "a b", "a/b", "ä", "a\\u0000"].map(|name| format!("{{\"queue\":\"{name}\",\"payload\":1}}"));
    check(
        &stage,
        names.iter().map(|body| post("/v1/tasks", body, 400, "invalid", "queue: a name")).collect(),
    )
    .await;
    let deep = format!("{{\"queue\":\"q\",\"payload\":{}{}}}", "[".repeat(65), "]".repeat(65));
    let trailing = "{\"queue\":\"q\",\"payload\":1}{}".to_owned();
    let cases = vec![
        post("/v1/tasks", &deep, 400, "invalid", "nested deeper than 64 levels"),
        post("/v1/tasks", &trailing, 400, "invalid", "trailing characters at line 1 column"),
    ];
    check(&stage, cases).await;
    stage.server.stop().await;
}

#[tokio::test]
async fn sizes_are_accepted_at_their_limit_and_refused_above() {
    let stage = stage().await;
    let (task, lease) = stage.leased;
    let server = &stage.server;
    let text = |bytes: usize| "x".repeat(bytes);
    let submit = |queue: String, payload: String, key: String| json!({ "queue": queue, "payload": payload, "key": key });
    let limit = submit(text(NAME_BYTES_MAX), text(PAYLOAD_BYTES_MAX - 2), text(KEY_BYTES_MAX));
    assert_eq!(server.post("/v1/tasks", &limit).await.status, 201);
    let beat =
        |note: usize, progress: u64| json!({ "lease_id": lease, "note": text(note), "progress": progress });
    let heartbeat = format!("/v1/tasks/{task}/heartbeat");
    assert_eq!(server.post(&heartbeat, &beat(NOTE_BYTES_MAX, 100)).await.status, 200);
    let batch = |items: usize| json!({ "tasks": vec![json!({ "queue": "batch", "payload": 1 }); items] });
    let tasks = server.done("/v1/tasks/batch", &batch(BATCH_ITEMS_MAX)).await;
    assert_eq!(tasks["tasks"].as_array().unwrap().len(), BATCH_ITEMS_MAX);
    let lines = |count: usize| json!({ "lease_id": lease, "lines": vec![json!({ "text": "x" }); count] });
    let logs = format!("/v1/tasks/{task}/logs");
    assert_eq!(server.post(&logs, &lines(BATCH_ITEMS_MAX)).await.status, 200);
    let error = |bytes: usize| json!({ "lease_id": lease, "error": text(bytes) }).to_string();
    let complete = |bytes: usize| json!({ "lease_id": lease, "result": text(bytes) }).to_string();
    let leases = |count: u64| json!({ "leases": (1..=count).collect::<Vec<u64>>() });
    let none = server.done("/v1/workers/w/heartbeat", &leases(0)).await;
    assert_eq!(none["extended"], json!([]));
    let ask = |more: serde_json::Value| {
        let mut body = json!({ "worker": "w", "queues": ["none"] });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body.to_string()
    };
    let longest = ask(json!({ "max": 1000, "lease_ms": 86_400_000 }));
    assert_eq!(server.send("POST", "/v1/lease", &[], Some(longest.as_bytes())).await.status, 200);
    let many_queues = ask(json!({ "queues": vec!["none"; 101] }));
    check(
        &stage,
        vec![
            post(
                "/v1/tasks",
                &submit(text(NAME_BYTES_MAX + 1), "1".into(), "k2".into()).to_string(),
                400,
                "invalid",
                "128",
            ),
            post(
                "/v1/tasks",
                &submit("q".into(), text(PAYLOAD_BYTES_MAX - 1), "k2".into()).to_string(),
                413,
                "too_large",
                "payload",
            ),
            post(
                "/v1/tasks",
                &submit("q".into(), "1".into(), text(KEY_BYTES_MAX + 1)).to_string(),
                400,
                "invalid",
                "256",
            ),
            post(&heartbeat, &beat(NOTE_BYTES_MAX + 1, 0).to_string(), 413, "too_large", "note"),
            post(&heartbeat, &beat(0, 101).to_string(), 400, "invalid", "progress"),
            post("/v1/tasks/batch", &batch(BATCH_ITEMS_MAX + 1).to_string(), 400, "invalid", "1001 items"),
            post(&logs, &lines(BATCH_ITEMS_MAX + 1).to_string(), 400, "invalid", "1001 items"),
            post(&format!("/v1/tasks/{task}/fail"), &error(ERROR_BYTES_MAX + 1), 413, "too_large", "error"),
            post(
                &format!("/v1/tasks/{task}/complete"),
                &complete(PAYLOAD_BYTES_MAX - 1),
                413,
                "too_large",
                "result",
            ),
            post("/v1/workers/w/heartbeat", &leases(1001).to_string(), 400, "invalid", "1001 items"),
            post("/v1/lease", &ask(json!({ "max": 0 })), 400, "invalid", "max"),
            post("/v1/lease", &ask(json!({ "max": 1001 })), 400, "invalid", "max"),
            post("/v1/lease", &ask(json!({ "lease_ms": 9 })), 400, "invalid", "lease_ms"),
            post("/v1/lease", &ask(json!({ "lease_ms": 86_400_001_u64 })), 400, "invalid", "lease_ms"),
            post("/v1/lease", &ask(json!({ "wait_ms": 60_001 })), 400, "invalid", "wait_ms"),
            post("/v1/lease", &ask(json!({ "capacity": 0 })), 400, "invalid", "capacity"),
            post("/v1/lease", &ask(json!({ "queues": [] })), 400, "invalid", "queues"),
            post("/v1/lease", &many_queues, 400, "invalid", "queues"),
        ],
    )
    .await;
    assert_eq!(
        server
            .send("POST", &format!("/v1/tasks/{task}/fail"), &[], Some(error(ERROR_BYTES_MAX).as_bytes()))
            .await
            .status,
        200
    );
    stage.server.stop().await;
}

#[tokio::test]
async fn impossible_ids_and_unknown_ids_get_different_errors() {
    let stage = stage().await;
    let mut cases = Vec::new();
    for bad in
        ["0", "-1", "+1", "1.5", "abc", "1e3", "9007199254740992", "99999999999999999999999", "%31", "1%20"]
    {
        let body = json!({ "lease_id": 1 }).to_string();
        cases.push(get(&format!("/v1/tasks/{bad}"), 400, "invalid", "not a task id"));
        cases.push(get(&format!("/v1/tasks/{bad}/explain"), 400, "invalid", "not a task id"));
        cases.push(get(&format!("/v1/tasks/{bad}/logs"), 400, "invalid", "not a task id"));
        cases.push(post(&format!("/v1/tasks/{bad}/cancel"), "", 400, "invalid", "not a task id"));
        cases.push(post(&format!("/v1/tasks/{bad}/complete"), &body, 400, "invalid", "not a task id"));
    }
    let body = json!({ "lease_id": 1 }).to_string();
    for unknown in [1, 999_999, 9_007_199_254_740_991_u64] {
        let task = format!("/v1/tasks/{unknown}");
        cases.push(get(&task, 404, "not_found", "there is no task"));
        cases.push(get(&format!("{task}/explain"), 404, "not_found", "there is no task"));
        cases.push(get(&format!("{task}/logs"), 404, "not_found", "there is no task"));
        cases.push(get(&format!("{task}/logs?follow=true"), 404, "not_found", "there is no task"));
        cases.push(post(&format!("{task}/cancel"), "", 404, "not_found", "there is no task"));
        cases.push(post(&format!("{task}/retry"), "{}", 404, "not_found", "there is no task"));
        cases.push(post(&format!("{task}/complete"), &body, 404, "not_found", "there is no task"));
        cases.push(post(&format!("{task}/heartbeat"), &body, 404, "not_found", "there is no task"));
        cases.push(post(&format!("{task}/release"), &body, 404, "not_found", "there is no task"));
        let lines = json!({ "lease_id": 1, "lines": [] }).to_string();
        cases.push(post(&format!("{task}/logs"), &lines, 404, "not_found", "there is no task"));
    }
    cases.push(post("/v1/queues/a%20b/lease", "{\"worker\":\"w\"}", 400, "invalid", "a name"));
    cases.push(post("/v1/queues/a%zz/lease", "{\"worker\":\"w\"}", 400, "invalid", "invalid percent-escape"));
    cases.push(post("/v1/workers/a%2Fb/heartbeat", "{\"leases\":[]}", 400, "invalid", "a name"));
    check(&stage, cases).await;
    stage.server.stop().await;
}

#[tokio::test]
async fn routes_methods_and_parameters_that_are_not_there_are_refused() {
    let stage = stage().await;
    let task = format!("/v1/tasks/{}", stage.waiting);
    let mut cases = Vec::new();
    for path in
        ["/v2/tasks", "/v1", "/v1/task", "/v1/tasks/", "/tasks", "/v1/tasks/1/2/3", "/../etc/passwd", "/.env"]
    {
        cases.push(get(path, 404, "not_found", "no such route"));
    }
    for (method, path) in
        [("DELETE", "/v1/tasks"), ("PUT", task.as_str()), ("POST", "/v1/queues"), ("PATCH", "/health")]
    {
        cases.push((method, path.to_owned(), String::new(), 405, "method_not_allowed", "this route allows"));
    }
    for query in [
        "x=1",
        "queue=a&queue=b",
        "queue=a%20b",
        "state=waiting",
        "state=DONE",
        "limit=0",
        "limit=1001",
        "limit=-1",
        "limit=x",
        "limit=1.5",
        "cursor=abc",
        "cursor=0000000000000000",
        "queue=%zz",
    ] {
        cases.push(get(&format!("/v1/tasks?{query}"), 400, "invalid", ""));
    }
    for query in ["offset=-1", "offset=x", "limit=0", "attempt=-1", "follow=yes", "tail=1"] {
        cases.push(get(&format!("{task}/logs?{query}"), 400, "invalid", "parameter"));
    }
    for path in [
        "/v1/events?after=-1",
        "/v1/events?after=x",
        "/v1/events?from=1",
        "/v1/events?after=999999",
        "/v1/queues?x=1",
        "/v1/workers?x",
        "/v1/cluster?x=1",
    ] {
        cases.push(get(path, 400, "invalid", ""));
    }
    cases.push(get(&format!("{task}?x=1"), 400, "invalid", "this route has none"));
    check(&stage, cases).await;
    let allow = stage.server.send("DELETE", "/v1/tasks", &[], None).await;
    assert_eq!(allow.headers["allow"], "GET, HEAD, POST");
    stage.server.stop().await;
}

#[tokio::test]
async fn rights_that_one_does_not_have_are_refused() {
    let stage = stage().await;
    let ((task, lease), (done, done_lease)) = (stage.leased, stage.completed);
    let mut cases = Vec::new();
    for (id, lease) in
        [(task, 1), (task, lease + 1), (task, 9_007_199_254_740_993), (stage.waiting, lease), (done, lease)]
    {
        let with = |more: &str| format!("{{\"lease_id\":{lease}{more}}}");
        let path = |verb: &str| format!("/v1/tasks/{id}/{verb}");
        cases.push(post(&path("heartbeat"), &with(""), 409, "stale_lease", "is not valid"));
        cases.push(post(&path("complete"), &with(",\"result\":1"), 409, "stale_lease", "is not valid"));
        cases.push(post(&path("fail"), &with(",\"error\":\"x\""), 409, "stale_lease", "is not valid"));
        cases.push(post(&path("release"), &with(""), 409, "stale_lease", "is not valid"));
        cases.push(post(
            &path("logs"),
            &with(",\"lines\":[{\"text\":\"x\"}]"),
            409,
            "stale_lease",
            "is not valid",
        ));
    }
    let other = json!({ "lease_id": lease, "worker": "somebody-else" }).to_string();
    cases.push(post(&format!("/v1/tasks/{task}/complete"), &other, 409, "stale_lease", ""));
    cases.push(post(&format!("/v1/tasks/{task}/heartbeat"), &other, 409, "stale_lease", ""));
    cases.push(post(
        &format!("/v1/tasks/{done}/heartbeat"),
        &json!({ "lease_id": done_lease }).to_string(),
        409,
        "stale_lease",
        "",
    ));
    cases.push(post(&format!("/v1/tasks/{done}/cancel"), "", 409, "finished", "COMPLETED"));
    cases.push(post(&format!("/v1/tasks/{}/cancel", stage.failed), "", 409, "finished", "FAILED"));
    cases.push(post(&format!("/v1/tasks/{done}/retry"), "", 409, "not_failed", "COMPLETED"));
    cases.push(post(&format!("/v1/tasks/{}/retry", stage.waiting), "", 409, "not_failed", "WAITING"));
    cases.push(post(&format!("/v1/tasks/{task}/retry"), "", 409, "not_failed", "LEASED"));
    let conflict = json!({ "queue": "q", "payload": 2, "key": "k" }).to_string();
    cases.push(post("/v1/tasks", &conflict, 409, "key_conflict", "belongs to task"));
    check(&stage, cases).await;
    stage.server.stop().await;
}
