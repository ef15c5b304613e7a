//! Health, metrics, the document, the dashboard, and the headers that every answer has.

use serde_json::json;

use crate::kit::start;

#[tokio::test]
async fn health_has_the_documented_json() {
    let server = start().await;
    let health = server.get("/health").await;
    assert_eq!(health.status, 200);
    assert_eq!(
        health.text(),
        r#"{"status":"healthy","checks":[{"component":"Coordinator","isHealthy":true}]}"#
    );
    assert_eq!(server.get("/ready").await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn a_node_that_has_stopped_is_unhealthy_and_not_ready() {
    let server = start().await;
    server.node.stop().await.unwrap();
    let health = loop {
        let health = server.get("/health").await;
        if health.status == 503 {
            break health;
        }
        assert_eq!(health.status, 200);
        tokio::task::yield_now().await;
    };
    assert_eq!(
        health.json(),
        json!({ "status": "unhealthy", "checks": [
            { "component": "Coordinator", "isHealthy": false, "reason": "the node has stopped" }
        ] })
    );
    assert_eq!(server.get("/ready").await.status, 503);
    let refused = server.post("/v1/tasks", &json!({ "queue": "q", "payload": 1 })).await;
    assert_eq!((refused.status, refused.code()), (503, "stopping".to_owned()));
    assert!(refused.headers["retry-after"].parse::<u32>().unwrap() >= 1);
    assert_eq!(server.get("/metrics").await.status, 200);
}

#[tokio::test]
async fn every_answer_has_the_headers_of_a_careful_server() {
    let server = start().await;
    for path in
        ["/", "/dashboard.js", "/health", "/v1/queues", "/v1/tasks/99999", "/nowhere", "/v1/tasks?x=1"]
    {
        let answer = server.get(path).await;
        let headers = &answer.headers;
        assert_eq!(headers["x-content-type-options"], "nosniff", "{path}");
        assert_eq!(headers["cache-control"], "no-store", "{path}");
        assert!(headers.contains_key("orchestrix-position"), "{path}");
        assert!(!headers["x-request-id"].is_empty(), "{path}");
        assert!(!headers.contains_key("access-control-allow-origin"), "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn pages_load_nothing_foreign_and_are_never_framed() {
    let server = start().await;
    let page = server.get("/").await;
    let policy = &page.headers["content-security-policy"];
    assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"), "{policy}");
    assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert_eq!(page.headers["referrer-policy"], "no-referrer");
    assert_eq!(page.headers["x-frame-options"], "DENY");
    server.stop().await;
}

#[tokio::test]
async fn a_decent_request_id_comes_back_and_another_is_replaced() {
    let server = start().await;
    let named = async |id: &str| server.send("GET", "/nowhere", &[("x-request-id", id)], None).await;
    let answer = named("build-7.a:b_c").await;
    assert_eq!(answer.headers["x-request-id"], "build-7.a:b_c");
    assert_eq!(answer.json()["request_id"], "build-7.a:b_c");
    for bad in ["<script>", "a b", "\"", "x=1;y"] {
        assert_ne!(named(bad).await.headers["x-request-id"], bad);
    }
    server.stop().await;
}

#[tokio::test]
async fn metrics_count_what_happened() {
    let server = start().await;
    server.submit("mail", json!(1)).await;
    server.submit("mail", json!(1)).await;
    let (task, lease) = server.lease("mail", "w").await;
    server.post(&format!("/v1/tasks/{task}/complete"), &json!({ "lease_id": 1 })).await;
    server.done(&format!("/v1/tasks/{task}/complete"), &json!({ "lease_id": lease })).await;
    server.get("/nowhere").await;
    let metrics = server.get("/metrics").await;
    assert!(metrics.headers["content-type"].starts_with("text/plain; version=0.0.4"));
    let text = metrics.text();
    for line in [
        "orchestrix_tasks_submitted_total 2",
        "orchestrix_tasks_completed_total 1",
        "orchestrix_stale_reports_total 1",
        "orchestrix_duplicate_executions_total 0",
        "orchestrix_queue_ready{queue=\"mail\"} 1",
        "orchestrix_queue_completed{queue=\"mail\"} 1",
        "orchestrix_http_requests_total{method=\"POST\",route=\"/v1/tasks\",status=\"201\"} 2",
        "orchestrix_http_requests_total{method=\"POST\",route=\"/v1/tasks/{id}/complete\",status=\"409\"} 1",
        "orchestrix_http_requests_total{method=\"\",route=\"unknown\",status=\"404\"} 1",
        "orchestrix_http_seconds_count{method=\"POST\",route=\"/v1/tasks\"} 2",
    ] {
        assert!(text.lines().any(|told| told == line), "{line} is not in\n{text}");
    }
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        assert!(name.starts_with("orchestrix_"), "{line}");
    }
    server.stop().await;
}

#[tokio::test]
async fn metrics_have_base_units() {
    let server = start().await;
    server.submit("mail", json!(1)).await;
    let metrics = server.get("/metrics").await;
    for line in metrics.text().lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
        assert!(kind != "histogram" || name.ends_with("_seconds"), "{line}");
        for scaled in ["milli", "micro", "nano", "_ms", "_us", "_ns", "_kb", "_mb", "kib", "mib", "minutes"] {
            assert!(!name.contains(scaled), "{name} is not in a base unit");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn queues_workers_and_the_cluster_are_listed() {
    let server = start().await;
    server.submit("mail", json!(1)).await;
    server.lease("mail", "w-1").await;
    let queues = server.get("/v1/queues").await.json();
    assert_eq!((&queues["queues"][0]["queue"], &queues["queues"][0]["leased"]), (&json!("mail"), &json!(1)));
    let workers = server.get("/v1/workers").await.json();
    assert_eq!(
        (&workers["workers"][0]["worker"], &workers["workers"][0]["leases"]),
        (&json!("w-1"), &json!(1))
    );
    let cluster = server.get("/v1/cluster").await.json();
    assert_eq!((&cluster["leader"], &cluster["nodes"][0]["state"]), (&json!("node-1"), &json!("ACTIVE")));
    server.stop().await;
}

#[tokio::test]
async fn openapi_and_dashboard_have_no_foreign_parts() {
    let server = start().await;
    let document = server.get("/openapi.json").await.json();
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["paths"]["/v1/tasks"]["post"]["operationId"], "Submit");
    let page = server.get("/").await;
    assert!(page.headers["content-type"].starts_with("text/html"));
    let script = server.get("/dashboard.js").await;
    let style = server.get("/dashboard.css").await;
    for text in [page.text(), script.text(), style.text()] {
        assert!(!text.contains("http://") && !text.contains("https://") && !text.contains("//cdn"));
        assert!(!text.contains("innerHTML") && !text.contains("document.write") && !text.contains("eval("));
    }
    assert!(
        !page.text().contains("<script>")
            && !page.text().contains("style=")
            && !page.text().contains("onclick")
    );
    server.stop().await;
}

#[tokio::test]
async fn head_is_get_without_the_body() {
    let server = start().await;
    let head = server.send("HEAD", "/health", &[], None).await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert!(head.headers["content-length"].parse::<u32>().unwrap() > 0);
    server.stop().await;
}
