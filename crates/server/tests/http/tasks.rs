//! Tasks from submit to end, over HTTP.

use serde_json::json;

use crate::kit::{start, within};

#[tokio::test]
async fn a_task_goes_from_submit_to_completed() {
    let server = start().await;
    let created = server.post("/v1/tasks", &json!({ "queue": "mail", "payload": { "to": "ada" } })).await;
    assert_eq!(created.status, 201);
    let id = created.json()["id"].as_u64().unwrap();
    assert_eq!(created.json(), json!({ "id": id, "state": "WAITING" }));
    assert_eq!(created.headers["orchestrix-position"], id.to_string());
    let leases = server.done("/v1/queues/mail/lease", &json!({ "worker": "w", "lease_ms": 60_000 })).await;
    let lease = leases["leases"][0]["lease_id"].as_u64().unwrap();
    let expected = json!([{ "task_id": id, "lease_id": lease, "queue": "mail", "attempt": 1, "payload": { "to": "ada" }, "lease_ms": 60_000 }]);
    assert_eq!(leases["leases"], expected);
    let beat = server
        .done(
            &format!("/v1/tasks/{id}/heartbeat"),
            &json!({ "lease_id": lease, "progress": 40, "note": "half" }),
        )
        .await;
    assert_eq!(beat, json!({ "lease_ms": 60_000, "cancel_requested": false }));
    let worker = server.done("/v1/workers/w/heartbeat", &json!({ "leases": [lease, 999] })).await;
    assert_eq!(
        worker,
        json!({ "extended": [lease], "lost": [999], "cancel": [], "lease_ms": 60_000, "lease_ms_each": [60_000] })
    );
    let path = format!("/v1/tasks/{id}/complete");
    let done = server.post(&path, &json!({ "lease_id": lease, "result": { "sent": true } })).await;
    assert_eq!((done.status, done.json()), (200, json!({ "id": id, "state": "COMPLETED" })));
    let position = server.position();
    let again = server.post(&path, &json!({ "lease_id": lease, "result": "another" })).await;
    assert_eq!((again.status, again.json()), (200, json!({ "id": id, "state": "COMPLETED" })));
    assert_eq!(server.position(), position, "a repeat leaves no trace");
    let task = server.get(&format!("/v1/tasks/{id}")).await.json();
    assert_eq!((&task["state"], &task["result"]), (&json!("COMPLETED"), &json!({ "sent": true })));
    assert_eq!(task["attempts"][0]["outcome"], "completed");
    server.stop().await;
}

#[tokio::test]
async fn the_same_key_finds_the_first_task() {
    let server = start().await;
    let body = json!({ "queue": "mail", "payload": { "a": 1, "b": 2 }, "key": "once" });
    let first = server.post("/v1/tasks", &body).await;
    let position = server.position();
    let reordered = br#"{ "key": "once", "payload": { "b": 2, "a": 1 }, "queue": "mail" }"#;
    let second = server.send("POST", "/v1/tasks", &[], Some(reordered)).await;
    assert_eq!((first.status, second.status), (201, 200));
    assert_eq!(first.json()["id"], second.json()["id"]);
    assert_eq!(server.position(), position);
    server.stop().await;
}

#[tokio::test]
async fn a_batch_answers_item_by_item() {
    let server = start().await;
    server.done("/v1/tasks", &json!({ "queue": "q", "payload": 1, "key": "k" })).await;
    let item = |payload: u64, key: &str| json!({ "queue": "q", "payload": payload, "key": key });
    let batch =
        server.post("/v1/tasks/batch", &json!({ "tasks": [item(1, "k"), item(2, "k"), item(3, "n")] })).await;
    assert_eq!(batch.status, 200);
    let tasks = batch.json()["tasks"].clone();
    assert_eq!(tasks[1]["code"], "key_conflict");
    assert!(tasks[0]["id"].as_u64() < tasks[2]["id"].as_u64());
    let leases =
        server.done("/v1/lease", &json!({ "queues": ["q", "other"], "worker": "w", "max": 10 })).await;
    let item = |n: usize| json!({ "task_id": leases["leases"][n]["task_id"], "lease_id": leases["leases"][n]["lease_id"], "result": n });
    let mut stale = item(1);
    stale["lease_id"] = json!(1);
    let done = server.done("/v1/tasks/complete/batch", &json!({ "items": [item(0), stale, item(1)] })).await;
    assert_eq!(done["items"][0]["state"], "COMPLETED");
    assert_eq!(done["items"][1]["code"], "stale_lease");
    assert_eq!(done["items"][2]["state"], "COMPLETED");
    server.stop().await;
}

#[tokio::test]
async fn cancel_ends_a_waiting_task_and_asks_for_a_leased_one() {
    let server = start().await;
    let waiting = server.submit("q", json!(1)).await;
    let path = format!("/v1/tasks/{waiting}/cancel");
    let cancelled = server.send("POST", &path, &[], None).await;
    assert_eq!((cancelled.status, cancelled.json()), (200, json!({ "id": waiting, "state": "CANCELLED" })));
    server.submit("q", json!(2)).await;
    let (task, lease) = server.lease("q", "w").await;
    let asked = server.post(&format!("/v1/tasks/{task}/cancel"), &json!({})).await;
    assert_eq!(asked.status, 202);
    assert_eq!(asked.json(), json!({ "id": task, "state": "LEASED", "cancel_requested": true }));
    let beat = server.done(&format!("/v1/tasks/{task}/heartbeat"), &json!({ "lease_id": lease })).await;
    assert_eq!(beat["cancel_requested"], true);
    let explained = server.get(&format!("/v1/tasks/{task}/explain")).await.json();
    assert_eq!(explained["code"], "cancel_requested");
    let released = server.done(&format!("/v1/tasks/{task}/release"), &json!({ "lease_id": lease })).await;
    assert_eq!(released["state"], "CANCELLED");
    server.stop().await;
}

#[tokio::test]
async fn a_failed_task_waits_then_is_dead_then_is_retried() {
    let server = start().await;
    let body =
        json!({ "queue": "q", "payload": 1, "max_attempts": 2, "backoff": { "base_ms": 0, "max_ms": 0 } });
    let id = server.done("/v1/tasks", &body).await["id"].as_u64().unwrap();
    let fail = format!("/v1/tasks/{id}/fail");
    let (_, first) = server.lease("q", "w").await;
    let outcome = server.done(&fail, &json!({ "lease_id": first, "error": "boom" })).await;
    assert_eq!(outcome["state"], "WAITING");
    let (_, second) = server.lease("q", "w").await;
    let outcome = server.done(&fail, &json!({ "lease_id": second, "error": "boom" })).await;
    assert_eq!(outcome["state"], "FAILED");
    let retried = server.post(&format!("/v1/tasks/{id}/retry"), &json!({})).await;
    assert_eq!((retried.status, &retried.json()["state"]), (200, &json!("WAITING")));
    assert_eq!(server.get(&format!("/v1/tasks/{id}")).await.json()["round"], 2);
    server.stop().await;
}

#[tokio::test]
async fn a_lease_call_waits_for_a_task() {
    let server = start().await;
    let ask = json!({ "worker": "w", "wait_ms": 60_000 });
    let waiting = server.post("/v1/queues/q/lease", &ask);
    let submitting = async {
        while server.node.stats().polls.get() == 0 {
            tokio::task::yield_now().await;
        }
        server.submit("q", json!("work")).await
    };
    let (leases, id) = within(async { tokio::join!(waiting, submitting) }).await;
    assert_eq!(leases.json()["leases"][0]["task_id"], id);
    server.stop().await;
}

#[tokio::test]
async fn a_caller_that_leaves_gives_its_place_back() {
    let server = start().await;
    let mut gone = server.connect().await;
    let body = json!({ "worker": "gone", "wait_ms": 60_000 }).to_string();
    let request = format!(
        "POST /v1/queues/q/lease HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    tokio::io::AsyncWriteExt::write_all(&mut gone, request.as_bytes()).await.unwrap();
    crate::kit::until("the call waits", || server.node.stats().polls.get() == 1).await;
    drop(gone);
    let id = server.submit("q", json!(1)).await;
    let leases = server.done("/v1/queues/q/lease", &json!({ "worker": "here", "wait_ms": 10_000 })).await;
    assert_eq!(leases["leases"][0]["task_id"], id);
    assert_eq!(leases["leases"][0]["attempt"], 1, "what nobody took is not charged");
    server.stop().await;
}

#[tokio::test]
async fn pages_follow_each_other_to_the_end() {
    let server = start().await;
    let ids: Vec<u64> = {
        let tasks = vec![json!({ "queue": "q", "payload": 1 }); 25];
        let done = server.done("/v1/tasks/batch", &json!({ "tasks": tasks })).await;
        done["tasks"].as_array().unwrap().iter().map(|task| task["id"].as_u64().unwrap()).collect()
    };
    server.submit("other", json!(1)).await;
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page =
            server.get(&format!("/v1/tasks?queue=q&state=WAITING&limit=10&cursor={cursor}")).await.json();
        seen.extend(page["tasks"].as_array().unwrap().iter().map(|task| task["id"].as_u64().unwrap()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => break,
        }
        let elsewhere = server.get(&format!("/v1/tasks?queue=other&cursor={cursor}")).await;
        assert_eq!(
            (elsewhere.status, elsewhere.code()),
            (400, "invalid".to_owned()),
            "a cursor of another list"
        );
    }
    assert_eq!(seen, ids);
    let owned = server.get("/v1/tasks?owner=node-1").await.json();
    assert_eq!(owned, json!({ "tasks": [], "next_cursor": null }));
    server.stop().await;
}

#[tokio::test]
async fn names_in_paths_may_be_escaped_and_bodies_may_have_no_type() {
    let server = start().await;
    server.submit("mail:eu", json!(1)).await;
    let leases = server.send("POST", "/v1/queues/mail%3Aeu/lease", &[], Some(b"{\"worker\":\"w\"}")).await;
    assert_eq!(leases.json()["leases"][0]["queue"], "mail:eu");
    let typed = [("content-type", "application/json; charset=utf-8")];
    assert_eq!(
        server.send("POST", "/v1/queues/x/lease", &typed, Some(b"{\"worker\":\"w\"}")).await.status,
        200
    );
    server.stop().await;
}
