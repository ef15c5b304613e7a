//! Streams: logs that follow a task to its end, events that can be resumed, and readers that are stuck.

use std::time::Duration;

use orchestrix_node::Options as NodeOptions;
use orchestrix_server::http::{Limits, Options};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::kit::{Frame, Server, start, start_with, until, within};

async fn log(server: &Server, task: u64, lease: u64, lines: &[&str]) {
    let lines: Vec<Value> = lines.iter().map(|text| json!({ "text": text })).collect();
    server.done(&format!("/v1/tasks/{task}/logs"), &json!({ "lease_id": lease, "lines": lines })).await;
}

#[tokio::test]
async fn logs_are_read_in_pages() {
    let server = start().await;
    server.submit("q", json!(1)).await;
    let (task, lease) = server.lease("q", "w").await;
    let appended = json!({ "lease_id": lease, "offset": 0, "lines": [{ "text": "a" }, { "text": "b", "stream": "stderr" }, { "text": "c" }] });
    let path = format!("/v1/tasks/{task}/logs");
    assert_eq!(server.done(&path, &appended).await, json!({ "next": 3, "dropped": 0 }));
    assert_eq!(
        server.done(&path, &appended).await,
        json!({ "next": 3, "dropped": 0 }),
        "a repeat is harmless"
    );
    let page = server.get(&format!("{path}?limit=2")).await.json();
    assert_eq!(page["next_offset"], 2);
    assert_eq!((&page["lines"][1]["text"], &page["lines"][1]["stream"]), (&json!("b"), &json!("stderr")));
    let rest = server.get(&format!("{path}?offset=2")).await.json();
    assert_eq!((rest["lines"].as_array().unwrap().len(), &rest["lines"][0]["n"]), (1, &json!(2)));
    let other = server.get(&format!("{path}?attempt=9")).await.json();
    assert_eq!(other["lines"], json!([]));
    server.stop().await;
}

#[tokio::test]
async fn followed_logs_come_as_they_are_written_and_end_with_the_task() {
    let server = start().await;
    server.submit("q", json!(1)).await;
    let (task, lease) = server.lease("q", "w").await;
    log(&server, task, lease, &["first"]).await;
    let mut frames = server.follow(&format!("/v1/tasks/{task}/logs?follow=true"), &[]).await;
    let line = |frame: Frame| (frame.event, frame.id, frame.data["text"].as_str().map(str::to_owned));
    assert_eq!(line(frames.next().await.unwrap()), ("line".into(), Some(1), Some("first".into())));
    log(&server, task, lease, &["second", "third"]).await;
    assert_eq!(line(frames.next().await.unwrap()), ("line".into(), Some(2), Some("second".into())));
    assert_eq!(line(frames.next().await.unwrap()), ("line".into(), Some(3), Some("third".into())));
    server.done(&format!("/v1/tasks/{task}/complete"), &json!({ "lease_id": lease })).await;
    let end = frames.next().await.unwrap();
    assert_eq!((end.event.as_str(), &end.data), ("end", &json!({ "state": "COMPLETED" })));
    assert_eq!(frames.next().await, None);
    server.stop().await;
}

#[tokio::test]
async fn a_log_follower_resumes_and_hears_of_an_earlier_end() {
    let server = start().await;
    server.submit("q", json!(1)).await;
    let (task, lease) = server.lease("q", "w").await;
    log(&server, task, lease, &["a", "b", "c"]).await;
    let fail = json!({ "lease_id": lease, "error": "no", "retry": false });
    server.done(&format!("/v1/tasks/{task}/fail"), &fail).await;
    let path = format!("/v1/tasks/{task}/logs?offset=0&follow=true");
    let mut frames = server.follow(&path, &[("last-event-id", "2")]).await;
    assert_eq!(frames.next().await.unwrap().data["text"], "c");
    assert_eq!(frames.next().await.unwrap().data, json!({ "state": "FAILED" }));
    server.stop().await;
}

#[tokio::test]
async fn a_follower_stays_through_a_retry_and_a_wait_without_output() {
    let server = start().await;
    let body = json!({ "queue": "q", "payload": 1, "backoff": { "base_ms": 0, "max_ms": 0 } });
    server.done("/v1/tasks", &body).await;
    let (task, lease) = server.lease("q", "w").await;
    let mut frames = server.follow(&format!("/v1/tasks/{task}/logs?follow=true"), &[]).await;
    server.done(&format!("/v1/tasks/{task}/fail"), &json!({ "lease_id": lease, "error": "again" })).await;
    let (_, second) = server.lease("q", "w").await;
    log(&server, task, second, &["second attempt"]).await;
    let line = frames.next().await.unwrap();
    assert_eq!((line.event.as_str(), &line.data["attempt"]), ("line", &json!(2)));
    server.done(&format!("/v1/tasks/{task}/cancel"), &json!({})).await;
    server.done(&format!("/v1/tasks/{task}/release"), &json!({ "lease_id": second })).await;
    assert_eq!(frames.next().await.unwrap().data, json!({ "state": "CANCELLED" }));
    server.stop().await;
}

#[tokio::test]
async fn events_are_resumed_after_a_position() {
    let server = start().await;
    let first = server.submit("q", json!("secret-payload")).await;
    let mut frames = server.follow("/v1/events?after=0", &[]).await;
    let term = frames.next().await.unwrap();
    assert_eq!((term.id, &term.data["type"]), (Some(1), &json!("TermStarted")));
    let raised = frames.next().await.unwrap();
    assert_eq!((raised.id, &raised.data["type"]), (Some(2), &json!("FormatRaised")));
    let created = frames.next().await.unwrap();
    assert_eq!(
        (created.id, &created.data["type"], &created.data["task"]),
        (Some(first), &json!("TaskCreated"), &json!(first))
    );
    assert!(
        created.data.get("payload").is_none() && created.data["queue"] == "q" && created.data["at"].is_u64()
    );
    let second = server.submit("q", json!(2)).await;
    assert_eq!(frames.next().await.unwrap().id, Some(second), "as they come");
    let resumed = second.to_string();
    let mut frames = server.follow("/v1/events?after=0", &[("last-event-id", &resumed)]).await;
    let third = server.submit("q", json!(3)).await;
    assert_eq!(frames.next().await.unwrap().id, Some(third), "the header wins over the address");
    server.stop().await;
}

#[tokio::test]
async fn every_event_of_a_task_names_its_queue() {
    let server = start().await;
    let tasks = [server.submit("mail", json!(1)).await, server.submit("sms", json!(2)).await];
    let leases = [server.lease("mail", "w").await.1, server.lease("sms", "w").await.1];
    server.done("/v1/workers/w/heartbeat", &json!({ "leases": leases })).await;
    server.done(&format!("/v1/tasks/{}/complete", tasks[1]), &json!({ "lease_id": leases[1] })).await;
    server.done(&format!("/v1/tasks/{}/cancel", tasks[0]), &json!({})).await;
    server.done(&format!("/v1/tasks/{}/release", tasks[0]), &json!({ "lease_id": leases[0] })).await;
    let mut frames = server.follow(&format!("/v1/events?after={}", tasks[0] - 1), &[]).await;
    let mut seen = Vec::new();
    while seen.len() < 8 {
        let event = frames.next().await.unwrap().data;
        let queues = match event["extended"].as_array() {
            Some(extended) => extended.iter().map(|lease| lease["queue"].clone()).collect(),
            None => vec![event["queue"].clone()],
        };
        seen.push((event["type"].as_str().unwrap().to_owned(), json!(queues)));
    }
    let seen: Vec<(&str, &Value)> = seen.iter().map(|(name, queues)| (name.as_str(), queues)).collect();
    let (mail, sms) = (json!(["mail"]), json!(["sms"]));
    let expected = [
        ("TaskCreated", &mail),
        ("TaskCreated", &sms),
        ("LeaseGranted", &mail),
        ("LeaseGranted", &sms),
        ("LeaseExtended", &json!(["mail", "sms"])),
        ("TaskCompleted", &sms),
        ("CancelRequested", &mail),
        ("LeaseReleased", &mail),
    ];
    assert_eq!(seen, expected);
    server.stop().await;
}

#[tokio::test]
async fn a_stream_says_after_which_position_it_begins() {
    let server = start().await;
    let last = server.submit("q", json!(1)).await;
    for (path, begins) in [("/v1/events", last), ("/v1/events?after=0", 0), ("/v1/events?after=1", 1)] {
        let mut stream = server.connect().await;
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        while !text.contains(": still here") {
            let mut more = [0; 1024];
            let read = within(tokio::io::AsyncReadExt::read(&mut stream, &mut more)).await.unwrap();
            assert!(read > 0, "{text}");
            text.push_str(&String::from_utf8_lossy(&more[..read]));
        }
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("orchestrix-position: {begins}\r\n")), "{path}: {head}");
        assert!(body.contains(&format!("id: {begins}\n: still here\n")), "{path}: {body}");
    }
    server.stop().await;
}

#[tokio::test]
async fn events_that_are_not_kept_any_more_are_a_gap() {
    let small = NodeOptions { event_ring_bytes: 1_000, ..NodeOptions::default() };
    let server = start_with(Options::default(), small).await;
    let mut last = 0;
    for _ in 0..50 {
        last = server.submit("q", json!("x".repeat(100))).await;
    }
    let mut frames = server.follow("/v1/events?after=1", &[]).await;
    let gap = frames.next().await.unwrap();
    assert_eq!(gap.event, "gap");
    let until = gap.data["until"].as_u64().unwrap();
    assert!(until > 1 && until < last, "{gap:?}");
    assert_eq!(gap.id, Some(until));
    assert_eq!(frames.next().await.unwrap().id, Some(until + 1));
    server.stop().await;
}

#[tokio::test]
async fn signs_of_life_come_while_nothing_happens() {
    let limits = Limits { keep_alive: Duration::from_millis(20), ..Limits::default() };
    let server = start_with(Options { limits, ..Options::default() }, NodeOptions::default()).await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut bytes = Vec::new();
    while bytes.windows(12).filter(|window| *window == b": still here").count() < 3 {
        let mut more = [0; 1024];
        let read = within(tokio::io::AsyncReadExt::read(&mut stream, &mut more)).await.unwrap();
        assert!(read > 0);
        bytes.extend_from_slice(&more[..read]);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_stuck_reader_is_dropped_and_no_other_is_affected() {
    let limits = Limits { write_timeout: Duration::from_millis(300), ..Limits::default() };
    let node = NodeOptions { event_ring_bytes: 64 << 20, ..NodeOptions::default() };
    let server = start_with(Options { limits, ..Options::default() }, node).await;
    let mut stuck = server.connect().await;
    stuck.write_all(b"GET /v1/events?after=0 HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let tasks = vec![json!({ "queue": "q".repeat(100), "payload": 1 }); 1000];
    let batch = json!({ "tasks": tasks });
    let streams = "orchestrix_http_streams ";
    let mut rounds = 0;
    loop {
        server.done("/v1/tasks/batch", &batch).await;
        rounds += 1;
        let metrics = server.get("/metrics").await;
        let open = metrics.text().lines().find_map(|line| line.strip_prefix(streams)).unwrap().to_owned();
        if rounds > 10 && open == "0" {
            break;
        }
        assert!(rounds < 500, "the stuck reader is still there");
    }
    let mut fresh = server.follow("/v1/events", &[]).await;
    let id = server.submit("q", json!(1)).await;
    assert_eq!(fresh.next().await.unwrap().id, Some(id));
    drop(stuck);
    server.stop().await;
}

#[tokio::test]
async fn streams_are_capped_per_client_and_in_all() {
    let limits = Limits { streams: 3, streams_per_client: 2, ..Limits::default() };
    let server = start_with(Options { limits, ..Options::default() }, NodeOptions::default()).await;
    let first = server.follow("/v1/events", &[]).await;
    let _second = server.follow("/v1/events", &[]).await;
    let third = server.get("/v1/events").await;
    assert_eq!((third.status, third.code()), (429, "rate_limited".to_owned()));
    assert!(third.headers.contains_key("retry-after"));
    drop(first);
    within(async {
        while server.get("/metrics").await.text().contains("orchestrix_http_streams 2") {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let _again = server.follow("/v1/events", &[]).await;
    server.stop().await;
    let limits = Limits { streams: 1, streams_per_client: 2, ..Limits::default() };
    let server = start_with(Options { limits, ..Options::default() }, NodeOptions::default()).await;
    let _first = server.follow("/v1/events", &[]).await;
    let second = server.get("/v1/events").await;
    assert_eq!((second.status, second.code()), (503, "overloaded".to_owned()));
    server.stop().await;
}

#[tokio::test]
async fn a_stop_ends_streams_and_answers_waiting_calls() {
    let server = start().await;
    let mut events = server.follow("/v1/events?after=2", &[]).await;
    let mut waiting = server.connect().await;
    let body = json!({ "worker": "w", "wait_ms": 60_000 }).to_string();
    let request = format!(
        "POST /v1/queues/q/lease HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    waiting.write_all(request.as_bytes()).await.unwrap();
    until("the call waits", || server.node.stats().polls.get() == 1).await;
    let address = server.address;
    server.stop().await;
    assert_eq!(events.next().await, None);
    let answer = crate::kit::read_answer(&mut waiting).await;
    assert_eq!((answer.status, &answer.json()["leases"]), (200, &json!([])));
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn a_stream_says_when_to_come_back() {
    let server = start().await;
    let mut stream = server.connect().await;
    let head = format!("GET /v1/events HTTP/1.1\r\nhost: {}\r\n\r\n", server.address);
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut text, mut more) = (String::new(), [0; 4096]);
    // The first sign of life comes at once, and behind it.
    while !text.contains(": still here") {
        let read = within(stream.read(&mut more)).await.unwrap();
        assert!(read > 0, "{text}");
        text.push_str(std::str::from_utf8(&more[..read]).unwrap());
    }
    assert!(text.contains("retry: 2000\n\n"), "{text}");
    drop(stream);
    server.stop().await;
}
