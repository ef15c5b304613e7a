//! Tokens that end while something goes on under them: by being removed, changed, or over.

use std::process::Command;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use orchestrix_node::Options as NodeOptions;
use orchestrix_server::http::Options;
use orchestrix_server::tokens::{Secret, Tokens};
use orchestrix_server::zmq;
use orchestrix_zmtp::SocketType;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::access::secret;
use crate::cluster::{join_as, place};
use crate::kit::{Door, Frames, read_answer, start_with, until, within};
use crate::zmq::connect;

const CONTINUE: &[u8; 25] = b"HTTP/1.1 100 Continue\r\n\r\n";

fn entry(name: &str, role: &str, more: &str) -> String {
    let digest: String = Sha256::digest(secret(name)).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("[[token]]\nname = \"{name}\"\nroles = [\"{role}\"]\nsha256 = \"{digest}\"\n{more}\n")
}

fn tokens(entries: &[String]) -> Tokens {
    Tokens::parse(&entries.concat()).unwrap()
}

fn all() -> Tokens {
    tokens(&[entry("read", "read", ""), entry("work", "work", ""), entry("admin", "admin", "")])
}

async fn follow(door: &Door, name: &str, path: &str) -> Frames {
    door.follow(path, &[("authorization", &format!("Bearer {}", secret(name)))]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_token_ends_its_streams_and_waiting_calls() {
    let server =
        start_with(Options { tokens: Some(all()), ..Options::default() }, NodeOptions::default()).await;
    let mut removed = follow(&server, "read", "/v1/events").await;
    let mut kept = follow(&server, "admin", "/v1/events").await;
    let bearer = format!("Bearer {}", secret("work"));
    let wait = json!({ "worker": "w", "wait_ms": 30_000 }).to_string();
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let polling = server.send("POST", "/v1/queues/q/lease", &headers, Some(wait.as_bytes()));
    let reading_again = async {
        until("the call waits", || server.node.stats().polls.get() == 1).await;
        server.replace_tokens(tokens(&[entry("admin", "admin", "")]));
    };
    let (polled, ()) = tokio::join!(polling, reading_again);
    assert_eq!((polled.status, polled.code()), (401, "unauthorized".to_owned()));
    assert_eq!(removed.next().await, None, "its stream has ended");
    let admin = format!("Bearer {}", secret("admin"));
    let task = json!({ "queue": "q", "payload": 1 }).to_string();
    let headers = [("authorization", admin.as_str()), ("content-type", "application/json")];
    assert_eq!(server.send("POST", "/v1/tasks", &headers, Some(task.as_bytes())).await.status, 201);
    assert_eq!(kept.next().await.unwrap().data["type"], "TaskCreated", "another goes on");
    let refused = server.send("GET", "/v1/queues", &[("authorization", &bearer)], None).await;
    assert_eq!(refused.status, 401);
    // Nobody was given the task that the call would have waited for.
    let queues = server.send("GET", "/v1/queues", &headers, None).await.json();
    assert_eq!((&queues["queues"][0]["ready"], &queues["queues"][0]["polls"]), (&json!(1), &json!(0)));
    drop(kept);
    server.stop().await;
}

/// A body may take its time: what counts is whether the token is valid when the request is carried out.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_ends_while_a_body_comes_changes_nothing() {
    let server =
        start_with(Options { tokens: Some(all()), ..Options::default() }, NodeOptions::default()).await;
    let bearer = format!("Bearer {}", secret("admin"));
    let task = json!({ "queue": "q", "payload": 1 }).to_string();
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let submitted = server.send("POST", "/v1/tasks", &headers, Some(task.as_bytes())).await;
    let cancel = format!("/v1/tasks/{}/cancel", submitted.json()["id"]);
    let before = server.position();
    let requests = [
        ("POST", "/v1/tasks", task.as_str()),
        ("POST", &cancel, "{}"),
        ("PUT", "/v1/services/s", r#"{"shard_count":1}"#),
    ];
    let mut begun = Vec::new();
    for (method, path, body) in requests {
        let mut stream = server.connect().await;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: {bearer}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\nexpect: 100-continue\r\n\
             connection: close\r\n\r\n",
            body.len()
        );
        within(stream.write_all(head.as_bytes())).await.unwrap();
        // The server has accepted the token and wants the body.
        let mut proceed = [0; CONTINUE.len()];
        within(stream.read_exact(&mut proceed)).await.unwrap();
        assert_eq!(&proceed, CONTINUE);
        begun.push((stream, body));
    }
    server.replace_tokens(tokens(&[entry("read", "read", "")]));
    for (mut stream, body) in begun {
        within(stream.write_all(body.as_bytes())).await.unwrap();
        let answer = read_answer(&mut stream).await;
        assert_eq!((answer.status, answer.code()), (401, "unauthorized".to_owned()));
    }
    assert_eq!(server.position(), before, "nothing has changed");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_gets_less_rights_ends_its_streams() {
    let server =
        start_with(Options { tokens: Some(all()), ..Options::default() }, NodeOptions::default()).await;
    let mut limited = follow(&server, "read", "/v1/events").await;
    let less = [entry("read", "read", "queues = [\"mail\"]"), entry("admin", "admin", "")];
    server.replace_tokens(tokens(&less));
    assert_eq!(limited.next().await, None);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_whose_time_is_over_ends_its_streams() {
    let ends = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + 3;
    let date = Command::new("date").args(["-u", "-d", &format!("@{ends}"), "+%Y-%m-%dT%H:%M:%SZ"]).output();
    let date = String::from_utf8(date.unwrap().stdout).unwrap();
    let short = tokens(&[entry("read", "read", &format!("expires = {}", date.trim()))]);
    let server =
        start_with(Options { tokens: Some(short), ..Options::default() }, NodeOptions::default()).await;
    let mut stream = follow(&server, "read", "/v1/events").await;
    assert_eq!(stream.next().await, None);
    assert!(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() >= ends, "not before");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_token_ends_its_zeromq_peers() {
    let listening = zmq::listen(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listening.address();
    let options = Options { tokens: Some(all()), zmq: Some(listening), ..Options::default() };
    let server = start_with(options, NodeOptions::default()).await;
    let (mut gone, mut stays) =
        (connect(address, SocketType::Dealer).await, connect(address, SocketType::Dealer).await);
    for (dealer, name) in [(&mut gone, "work"), (&mut stays, "admin")] {
        let data = json!({"serviceName": name, "workerId": "w", "maxShardCount": 1, "token": secret(name)});
        dealer.say("register", data).await;
        dealer.hear_assignment().await;
    }
    server.replace_tokens(tokens(&[entry("admin", "admin", "")]));
    assert_eq!(gone.hear_error().await.0, "unauthorized");
    gone.is_left().await;
    let beat = json!({"serviceName": "admin", "workerId": "w", "maxShardCount": 1, "assignedShards": [0],
        "token": secret("admin")});
    stays.say("heartbeat", beat).await;
    stays.hear_assignment().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_ends_streams_and_the_leader_ends_the_feed() {
    let place = place();
    let options = || Options {
        tokens: Some(tokens(&[
            entry("read", "read", ""),
            entry("node", "node", ""),
            entry("admin", "admin", ""),
        ])),
        node_token: Some(Secret::new(secret("node"))),
        ..Options::default()
    };
    let leader = join_as(Arc::new(place.clone()), "a", true, options()).await;
    leader.leads().await;
    let follower = join_as(Arc::new(place), "b", false, options()).await;
    follower.sees_leader("a").await;
    let admin = format!("Bearer {}", secret("admin"));
    let headers = [("authorization", admin.as_str()), ("content-type", "application/json")];
    let task = json!({ "queue": "q", "payload": 1 }).to_string();
    let id = leader.send("POST", "/v1/tasks", &headers, Some(task.as_bytes())).await.json()["id"].clone();
    // It is the leader that fills this one.
    let mut passed = follow(&follower, "read", &format!("/v1/tasks/{id}/logs?follow=true")).await;
    follower.replace_tokens(tokens(&[entry("admin", "admin", "")]));
    assert_eq!(passed.next().await, None);
    let streams = async |more: &str| {
        while !leader.send("GET", "/metrics", &headers, None).await.text().contains(more) {
            tokio::task::yield_now().await;
        }
    };
    crate::kit::within(streams("http_streams 1\n")).await;
    leader.replace_tokens(tokens(&[entry("admin", "admin", "")]));
    crate::kit::within(streams("http_streams 0\n")).await;
    // With another token, which the leader knows, it is fed again.
    leader.replace_tokens(tokens(&[entry("next", "node", ""), entry("admin", "admin", "")]));
    follower.replace_node_token(&Secret::new(secret("next")));
    crate::kit::within(streams("http_streams 1\n")).await;
    follower.stop().await;
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_carry_the_name_of_the_token() {
    let place = place();
    let options = || Options { tokens: Some(all()), ..Options::default() };
    let leader = join_as(Arc::new(place.clone()), "a", true, options()).await;
    leader.leads().await;
    let follower = join_as(Arc::new(place), "b", true, options()).await;
    follower.sees_leader("a").await;
    let mut events = follow(&follower, "read", "/v1/events").await;
    let bearer = format!("Bearer {}", secret("admin"));
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let ask = async |path: &str, body: serde_json::Value| {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = follower.send("POST", path, &headers, Some(body.as_bytes())).await;
        assert!(answer.status < 300, "{path}: {answer:?}");
        answer.json()
    };
    let task = json!({"queue": "q", "payload": 1, "max_attempts": 1});
    let first = ask("/v1/tasks", task.clone()).await["id"].clone();
    let second = ask("/v1/tasks", task).await["id"].clone();
    ask(&format!("/v1/tasks/{first}/cancel"), json!(null)).await;
    let view = follower.send("GET", &format!("/v1/tasks/{first}"), &headers, None).await.json();
    assert_eq!((&view["state"], &view["cancelled_by"]), (&json!("CANCELLED"), &json!("admin")));
    let leases = ask("/v1/queues/q/lease", json!({"worker": "w"})).await;
    let lease = &leases["leases"][0]["lease_id"];
    ask(&format!("/v1/tasks/{second}/fail"), json!({"lease_id": lease, "error": "x"})).await;
    ask(&format!("/v1/tasks/{second}/retry"), json!(null)).await;
    until("b is seen", || leader.member.cluster().nodes.iter().any(|node| node.name == "b")).await;
    ask("/v1/cluster/leader", json!({"desired": "b"})).await;
    let mut by = Vec::new();
    let changes = ["TaskCancelled", "TaskRetried", "TermStarted"];
    while by.len() < changes.len() {
        let data = events.next().await.unwrap().data;
        if let Some(change) = changes.into_iter().find(|change| data["type"] == *change) {
            by.push((change, data["actor"].clone()));
        }
    }
    assert_eq!(by, changes.map(|change| (change, json!("admin"))));
    drop(events);
    follower.stop().await;
    leader.stop().await;
}
