//! How long a page may be, and how much of answers may wait for those who asked.

use orchestrix_core::limits::{ERROR_BYTES_MAX, PAGE_BYTES_MAX};
use orchestrix_node::Options as NodeOptions;
use orchestrix_server::http::{Limits, Options};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::kit::{LONG, Server, start, start_with};

/// Together more than two pages.
const ITEMS: usize = 140;
/// What a page has beside its items.
const REST_BYTES: usize = 200;

/// Tasks with long errors, of one character.
async fn fail_many(server: &Server, character: &str) -> Vec<u64> {
    let mut ids = Vec::new();
    for _ in 0..ITEMS {
        let id = server.submit("q", json!(1)).await;
        let (task, lease) = server.lease("q", "w").await;
        assert_eq!(task, id);
        let error = character.repeat(ERROR_BYTES_MAX);
        let fail = json!({"lease_id": lease, "error": error, "retry": false});
        server.done(&format!("/v1/tasks/{id}/fail"), &fail).await;
        ids.push(id);
    }
    ids
}

fn numbers(page: &Value, list: &str, field: &str) -> Vec<u64> {
    page[list].as_array().unwrap().iter().map(|item| item[field].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn a_page_of_tasks_has_a_mebibyte_and_the_next_goes_on() {
    // In JSON the second of these characters is six bytes.
    for (character, expected) in [("e", 3), ("\u{1}", 14)] {
        let server = start().await;
        let ids = fail_many(&server, character).await;
        let (mut seen, mut pages, mut cursor) = (Vec::new(), 0, String::new());
        loop {
            let answer = server.get(&format!("/v1/tasks?limit=1000{cursor}")).await;
            assert!(answer.body.len() <= PAGE_BYTES_MAX + REST_BYTES, "{}", answer.body.len());
            let page = answer.json();
            let found = numbers(&page, "tasks", "id");
            assert!(!found.is_empty());
            seen.extend(found);
            pages += 1;
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!((seen, pages), (ids, expected));
        server.stop().await;
    }
}

#[tokio::test]
async fn a_page_of_output_has_a_mebibyte_and_the_next_goes_on() {
    let server = start().await;
    let id = server.submit("q", json!(1)).await;
    let (_, lease) = server.lease("q", "w").await;
    // In JSON each of these characters is six bytes.
    let text = "\u{1}".repeat(4_000);
    for _ in 0..ITEMS / 10 {
        let lines: Vec<Value> = (0..10).map(|_| json!({"text": text})).collect();
        server.done(&format!("/v1/tasks/{id}/logs"), &json!({"lease_id": lease, "lines": lines})).await;
    }
    let (mut seen, mut pages, mut offset) = (Vec::new(), 0, 0);
    while seen.len() < ITEMS {
        let answer = server.get(&format!("/v1/tasks/{id}/logs?limit=1000&offset={offset}")).await;
        assert!(answer.body.len() <= PAGE_BYTES_MAX + REST_BYTES, "{}", answer.body.len());
        let page = answer.json();
        seen.extend(numbers(&page, "lines", "n"));
        assert!(page["next_offset"].as_u64().unwrap() > offset, "at least one line");
        offset = page["next_offset"].as_u64().unwrap();
        assert_eq!(offset, seen.len() as u64);
        pages += 1;
    }
    assert_eq!(seen, (0..ITEMS as u64).collect::<Vec<_>>());
    assert_eq!(pages, 4);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_answers_count_against_their_caller() {
    let limits = Limits { unsent_bytes_per_client: PAGE_BYTES_MAX * 3 / 2, ..Limits::default() };
    let server = start_with(Options { limits, ..Options::default() }, NodeOptions::default()).await;
    fail_many(&server, "e").await;
    let page = "/v1/tasks?limit=1000";
    assert_eq!(server.get(page).await.status, 200);
    // It asks until the buffers between the two are full, and reads nothing.
    let mut slow = server.connect().await;
    let request = format!("GET {page} HTTP/1.1\r\nhost: {}\r\n\r\n", server.address);
    slow.write_all(request.repeat(40).as_bytes()).await.unwrap();
    let answered = async |status: u16| {
        let deadline = std::time::Instant::now() + LONG;
        loop {
            let answer = server.get(page).await;
            if answer.status == status {
                return answer;
            }
            assert!(std::time::Instant::now() < deadline, "{status} did not come, but {}", answer.status);
        }
    };
    let refused = answered(429).await;
    assert_eq!(refused.code(), "rate_limited");
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(server.get("/v1/queues").await.status, 200, "short answers are not refused");
    drop(slow);
    answered(200).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_takes_nothing_leases_nothing() {
    let limits = Limits { unsent_bytes_per_client: PAGE_BYTES_MAX, ..Limits::default() };
    let server = start_with(Options { limits, ..Options::default() }, NodeOptions::default()).await;
    fail_many(&server, "e").await;
    let answered = async |path: &str, status: u16| {
        let deadline = std::time::Instant::now() + LONG;
        let mut body = json!({ "worker": "w" });
        if path == "/v1/lease" {
            body["queues"] = json!(["empty"]);
        }
        loop {
            let answer = server.post(path, &body).await;
            if answer.status == status {
                return answer;
            }
            assert!(std::time::Instant::now() < deadline, "{status} did not come, but {}", answer.status);
        }
    };
    let paths = ["/v1/queues/empty/lease", "/v1/lease"];
    let mut slow = server.connect().await;
    let request = format!("GET /v1/tasks?limit=1000 HTTP/1.1\r\nhost: {}\r\n\r\n", server.address);
    slow.write_all(request.repeat(40).as_bytes()).await.unwrap();
    for path in paths {
        let refused = answered(path, 429).await;
        assert_eq!(refused.code(), "rate_limited");
        assert!(refused.headers.contains_key("retry-after"));
    }
    drop(slow);
    for path in paths {
        answered(path, 200).await;
    }
    server.stop().await;
}
