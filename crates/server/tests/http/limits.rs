//! What one caller may cost: at the limit it is served, above it is refused, and others are served on.

use std::time::Duration;

use orchestrix_node::Options as NodeOptions;
use orchestrix_server::http::{Limits, Options};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::kit::{Server, read_answer, start_with, within};

async fn limited(limits: Limits) -> Server {
    start_with(Options { limits, ..Options::default() }, NodeOptions::default()).await
}

#[tokio::test]
async fn a_body_is_taken_up_to_its_limit() {
    let server = limited(Limits { body_bytes: 4_096, ..Limits::default() }).await;
    let body = |bytes: usize| {
        let empty = json!({ "queue": "q", "payload": "" }).to_string().len();
        json!({ "queue": "q", "payload": "x".repeat(bytes - empty) }).to_string()
    };
    assert_eq!(server.send("POST", "/v1/tasks", &[], Some(body(4_096).as_bytes())).await.status, 201);
    let position = server.position();
    let refused = server.send("POST", "/v1/tasks", &[], Some(body(4_097).as_bytes())).await;
    assert_eq!((refused.status, refused.code()), (413, "too_large".to_owned()));
    let chunked = |bytes: usize| {
        let body = body(bytes);
        let (first, second) = body.split_at(1_000);
        format!(
            "POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n\
             {:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n",
            first.len(),
            second.len()
        )
    };
    let refused = server.send_raw(chunked(4_097).as_bytes()).await;
    assert_eq!((refused.status, refused.code()), (413, "too_large".to_owned()), "without a length too");
    assert_eq!(server.position(), position);
    assert_eq!(server.send_raw(chunked(4_096).as_bytes()).await.status, 201);
    server.stop().await;
}

/// The first half of a submit with a body of so many bytes, and the second.
fn halves(bytes: usize) -> (Vec<u8>, Vec<u8>) {
    let empty = json!({ "queue": "q", "payload": "" }).to_string().len();
    let body = json!({ "queue": "q", "payload": "x".repeat(bytes - empty) }).to_string();
    let head = "POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length:";
    let (first, second) = body.split_at(bytes / 2);
    (format!("{head} {bytes}\r\n\r\n{first}").into_bytes(), second.as_bytes().to_vec())
}

#[tokio::test]
async fn a_long_body_waits_for_room() {
    const LONG_BODY: usize = 150 << 10;
    let limits = Limits { incoming_bytes_per_client: 2 * LONG_BODY, ..Limits::default() };
    let server = limited(limits).await;
    let (head, rest) = halves(LONG_BODY);
    let mut slow = Vec::new();
    for _ in 0..2 {
        let mut stream = server.connect().await;
        stream.write_all(&head).await.unwrap();
        slow.push(stream);
    }
    let mut third = server.connect().await;
    third.write_all(&[head, rest.clone()].concat()).await.unwrap();
    let mut byte = [0];
    let early = tokio::time::timeout(Duration::from_millis(300), third.read(&mut byte)).await;
    assert!(early.is_err(), "two bodies use all the room, and the third was answered");
    let short = json!({ "queue": "q", "payload": 1 });
    assert_eq!(server.post("/v1/tasks", &short).await.status, 201, "a short body does not wait");
    slow[0].write_all(&rest).await.unwrap();
    assert_eq!(read_answer(&mut slow[0]).await.status, 201);
    assert_eq!(read_answer(&mut third).await.status, 201);
    server.stop().await;
}

#[tokio::test]
async fn a_long_body_without_room_is_refused() {
    let limits = Limits {
        incoming_bytes_per_client: 100 << 10,
        body_timeout: Duration::from_millis(500),
        ..Limits::default()
    };
    let server = limited(limits).await;
    let (head, _) = halves(100 << 10);
    let mut slow = Vec::new();
    for _ in 0..5 {
        let mut stream = server.connect().await;
        stream.write_all(&head).await.unwrap();
        slow.push(stream);
    }
    let mut codes = Vec::new();
    for stream in &mut slow {
        let answer = read_answer(stream).await;
        codes.push((answer.status, answer.code()));
    }
    codes.sort();
    // One after the other has the room until its time is over; the last three wait too long.
    assert_eq!(codes.first(), Some(&(408, "timeout".to_owned())), "{codes:?}");
    assert_eq!(codes.last(), Some(&(429, "rate_limited".to_owned())), "{codes:?}");
    assert_eq!(server.post("/v1/tasks", &json!({ "queue": "q", "payload": 1 })).await.status, 201);
    server.stop().await;
}

#[tokio::test]
async fn a_body_far_above_the_limit_is_refused_before_it_is_read() {
    let server = limited(Limits::default()).await;
    let request = b"POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1099511627776\r\n\r\n{";
    let mut stream = server.connect().await;
    stream.write_all(request).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut bytes = Vec::new();
    within(stream.read_to_end(&mut bytes)).await.unwrap();
    assert!(bytes.is_empty() || bytes.starts_with(b"HTTP/1.1 4"), "{:?}", String::from_utf8_lossy(&bytes));
    assert_eq!(server.get("/health").await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn an_address_is_taken_up_to_its_limit() {
    let server = limited(Limits { url_bytes: 500, ..Limits::default() }).await;
    let path = |bytes: usize| format!("/health?{}", "x".repeat(bytes - "/health?".len()));
    assert_eq!(server.get(&path(500)).await.status, 200);
    let refused = server.get(&path(501)).await;
    assert_eq!((refused.status, refused.code()), (414, "too_large".to_owned()));
    let far_above = format!("GET /health?{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "x".repeat(70_000));
    assert!(matches!(server.send_nonsense(far_above.as_bytes()).await, None | Some(414 | 431)));
    server.stop().await;
}

#[tokio::test]
async fn headers_are_taken_up_to_their_limit() {
    let server = limited(Limits { header_bytes: 2_048, ..Limits::default() }).await;
    let host = server.address.to_string();
    let others = "host".len() + host.len() + 4 + "connection".len() + "close".len() + 4;
    let value = |bytes: usize| "v".repeat(bytes - others - "x-padding".len() - 4);
    assert_eq!(server.send("GET", "/health", &[("x-padding", &value(2_048))], None).await.status, 200);
    let refused = server.send("GET", "/health", &[("x-padding", &value(2_049))], None).await;
    assert_eq!((refused.status, refused.code()), (431, "too_large".to_owned()));
    let far_above = format!("GET /health HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "v".repeat(200_000));
    assert!(matches!(server.send_nonsense(far_above.as_bytes()).await, None | Some(431)));
    let many: Vec<(String, String)> = (0..200).map(|n| (format!("x-{n}"), "v".to_owned())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(server.send("GET", "/health", &many, None).await.status, 431);
    server.stop().await;
}

#[tokio::test]
async fn connections_are_taken_up_to_their_limit() {
    let server = limited(Limits { connections_per_ip: 2, ..Limits::default() }).await;
    let mut first = server.connect().await;
    let mut second = server.connect().await;
    for stream in [&mut first, &mut second] {
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut byte = [0; 1];
        within(stream.read_exact(&mut byte)).await.unwrap();
    }
    let mut third = server.connect().await;
    let refused = read_answer(&mut third).await;
    assert_eq!((refused.status, refused.json()["code"].as_str()), (503, Some("overloaded")));
    assert_eq!(refused.headers["retry-after"], "2");
    drop(first);
    within(async {
        loop {
            let mut stream = server.connect().await;
            // Refused connections are closed without a look at what they sent.
            let _ = stream
                .write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                .await;
            let mut bytes = Vec::new();
            let _ = stream.read_to_end(&mut bytes).await;
            if bytes.starts_with(b"HTTP/1.1 200") {
                return;
            }
        }
    })
    .await;
    drop(second);
    server.stop().await;
}

#[tokio::test]
async fn slow_and_silent_peers_are_let_go_while_others_are_served() {
    let limits = Limits {
        header_timeout: Duration::from_millis(300),
        idle_timeout: Duration::from_millis(600),
        body_timeout: Duration::from_millis(300),
        ..Limits::default()
    };
    let server = limited(limits).await;
    let mut idle = Vec::new();
    for _ in 0..100 {
        idle.push(server.connect().await);
    }
    let mut trickling = Vec::new();
    for _ in 0..100 {
        let mut stream = server.connect().await;
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-").await.unwrap();
        trickling.push(stream);
    }
    let mut slow_body = server.connect().await;
    let head =
        b"POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 100\r\n\r\n{";
    slow_body.write_all(head).await.unwrap();
    let start = std::time::Instant::now();
    for stream in &mut trickling {
        // Each byte is progress, and none of it helps.
        let _ = stream.write_all(b"a").await;
        assert_eq!(server.get("/health").await.status, 200, "others are served");
    }
    let answer = read_answer(&mut slow_body).await;
    assert_eq!((answer.status, answer.code()), (408, "timeout".to_owned()));
    for mut stream in idle.into_iter().chain(trickling) {
        let mut bytes = Vec::new();
        // A reset is an end too.
        let _ = within(stream.read_to_end(&mut bytes)).await;
        assert!(bytes.is_empty(), "{:?}", String::from_utf8_lossy(&bytes));
    }
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    server.stop().await;
}

#[tokio::test]
async fn a_connection_that_works_is_kept_past_the_header_timeout() {
    let limits = Limits { header_timeout: Duration::from_millis(50), ..Limits::default() };
    let server = limited(limits).await;
    let mut stream = server.connect().await;
    for _ in 0..5 {
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut bytes = vec![0; 4096];
        let read = within(stream.read(&mut bytes)).await.unwrap();
        assert!(bytes[..read].starts_with(b"HTTP/1.1 200"));
        // Time passes between two requests: this is what is tested.
        tokio::time::sleep(Duration::from_millis(80)).await;
    }
    let ask = json!({ "worker": "w", "wait_ms": 300 }).to_string();
    let request = format!(
        "POST /v1/queues/q/lease HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{ask}",
        ask.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = vec![0; 4096];
    let read = within(stream.read(&mut bytes)).await.unwrap();
    assert!(bytes[..read].starts_with(b"HTTP/1.1 200"), "a long wait is not an idle connection");
    server.stop().await;
}

#[tokio::test]
async fn a_request_begun_behind_another_has_its_own_time() {
    let limits = Limits { header_timeout: Duration::from_millis(300), ..Limits::default() };
    let server = limited(limits).await;
    let wait = json!({ "worker": "w", "wait_ms": 500 }).to_string();
    let poll = format!(
        "POST /v1/queues/q/lease HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{wait}",
        wait.len()
    );
    for whole in ["GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n", poll.as_str()] {
        for apart in [false, true] {
            let mut stream = server.connect().await;
            if apart {
                stream.write_all(whole.as_bytes()).await.unwrap();
                stream.write_all(b"GET /health HTT").await.unwrap();
            } else {
                stream.write_all(format!("{whole}GET /health HTT").as_bytes()).await.unwrap();
            }
            let mut bytes = Vec::new();
            // Idle connections are kept for longer than this test waits.
            let _ = within(stream.read_to_end(&mut bytes)).await;
            let text = String::from_utf8(bytes).unwrap();
            assert_eq!(text.matches("HTTP/1.1 200").count(), 1, "{text}");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn a_kept_connection_with_bodies_is_not_taken_for_slow() {
    let limits = Limits { header_timeout: Duration::from_millis(50), ..Limits::default() };
    let server = limited(limits).await;
    let mut stream = server.connect().await;
    for payload in ["1", "{\"a\":[1,2]}", "\"x\""] {
        let body = format!("{{\"queue\":\"q\",\"payload\":{payload}}}");
        let head =
            format!("POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body.as_bytes()).await.unwrap();
        let mut bytes = vec![0; 4096];
        let read = within(stream.read(&mut bytes)).await.unwrap();
        assert!(bytes[..read].starts_with(b"HTTP/1.1 201"), "{payload}");
        // Time passes between two requests: this is what is tested.
        tokio::time::sleep(Duration::from_millis(120)).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn refusals_of_the_http_layer_are_problems() {
    let server = limited(Limits::default()).await;
    let many: String = (0..101).map(|n| format!("x-{n}: 1\r\n")).collect();
    let long = "a".repeat(70_000);
    for (request, status, code) in [
        (
            format!("GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{many}\r\n"),
            431,
            "too_large",
        ),
        (
            format!("GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: {long}\r\n\r\n"),
            431,
            "too_large",
        ),
        ("GET /he alth HTTP/1.1\r\n\r\n".to_owned(), 400, "invalid"),
        ("GET /health HTTP/1.1\r\nno colon\r\n\r\n".to_owned(), 400, "invalid"),
    ] {
        let answer = server.send_raw(request.as_bytes()).await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{request:.60}");
        assert_eq!(answer.headers["cache-control"], "no-store");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_request_names_one_host() {
    let server = limited(Limits::default()).await;
    for (head, status) in [
        ("GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close", 200),
        ("GET /health HTTP/1.0", 200),
        ("GET /health HTTP/1.0\r\nhost: localhost", 200),
        ("GET /health HTTP/1.1\r\nconnection: close", 400),
        ("GET /health HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\nconnection: close", 400),
        ("GET /health HTTP/1.1\r\nhost: localhost\r\nHost: evil.example\r\nconnection: close", 400),
        ("GET http://localhost/health HTTP/1.1\r\nconnection: close", 400),
    ] {
        let answer = server.send_raw(format!("{head}\r\n\r\n").as_bytes()).await;
        assert_eq!(answer.status, status, "{head}");
        if status == 400 {
            assert_eq!(answer.code(), "invalid");
            assert!(answer.text().contains("Host"), "{}", answer.text());
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn only_names_of_this_machine_are_served() {
    let server = limited(Limits::default()).await;
    for (host, status) in [
        ("localhost", 200),
        ("localhost:3000", 200),
        ("[::1]:3000", 200),
        ("127.0.0.1:80", 200),
        ("[::1].evil.example", 403),
        ("[::1]:", 403),
        ("[::1", 403),
        ("localhost:evil", 403),
        ("localhost:", 403),
        ("localhost:65536", 403),
        ("localhost:+80", 403),
        ("user@localhost", 403),
        ("localhost\u{e4}", 403),
    ] {
        let request = format!("GET /v1/queues HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        assert_eq!(server.send_raw(request.as_bytes()).await.status, status, "{host}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_transfer_coding_that_is_not_known_is_refused() {
    let server = limited(Limits::default()).await;
    let body = json!({ "queue": "q", "payload": 1 }).to_string();
    for (coding, status) in [
        ("chunked", 201),
        ("Chunked", 201),
        ("gzip, chunked", 501),
        ("identity, chunked", 501),
        ("chunked\r\ntransfer-encoding: chunked", 501),
    ] {
        let request = format!(
            "POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: {coding}\r\n\r\n\
             {:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        );
        let answer = server.send_raw(request.as_bytes()).await;
        assert!(
            answer.status == status || status == 501 && answer.status == 400,
            "{coding}: {}",
            answer.status
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn a_body_that_is_packed_is_refused() {
    let server = limited(Limits::default()).await;
    let body = json!({ "queue": "q", "payload": 1 }).to_string();
    for (coding, status) in
        [("identity", 201), ("Identity", 201), ("gzip", 415), ("identity, br", 415), ("", 415), ("x", 415)]
    {
        let headers = [("content-encoding", coding)];
        let answer = server.send("POST", "/v1/tasks", &headers, Some(body.as_bytes())).await;
        assert_eq!(answer.status, status, "{coding}");
        if status == 415 {
            assert_eq!(answer.code(), "unsupported_media_type");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let server = limited(Limits::default()).await;
    let mut stream = server.connect().await;
    let mut requests = String::new();
    for _ in 0..99 {
        requests.push_str("GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n");
    }
    requests.push_str("GET /nowhere HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(requests.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    within(stream.read_to_end(&mut bytes)).await.unwrap();
    let text = String::from_utf8(bytes).unwrap();
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 99);
    assert!(text.rfind("HTTP/1.1 404").unwrap() > text.rfind("HTTP/1.1 200").unwrap());
    server.stop().await;
}

#[tokio::test]
async fn malformed_requests_are_refused_and_change_nothing() {
    let server = limited(Limits::default()).await;
    let position = server.position();
    for bad in [
        &b"\x16\x03\x01\x02\x00\x01\x00"[..],
        b"GET\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n{}",
        b"POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n{}",
        b"POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    ] {
        let answer = server.send_raw(bad).await;
        assert_eq!((answer.status, answer.code()), (400, "invalid".to_owned()), "{:?}", String::from_utf8_lossy(bad));
    }
    let mut cut = server.connect().await;
    cut.write_all(
        b"POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-length: 26\r\n\r\n{\"queue\":\"q\",",
    )
    .await
    .unwrap();
    drop(cut);
    assert_eq!(server.get("/health").await.status, 200);
    assert_eq!(server.position(), position);
    server.stop().await;
}
