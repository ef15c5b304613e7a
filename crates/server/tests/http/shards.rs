//! Workers that divide shards, over HTTP.

use std::time::Duration;

use orchestrix_core::limits::PAGE_BYTES_MAX;
use orchestrix_node::{Options as NodeOptions, ShardTimes};
use orchestrix_server::http::Options;
use orchestrix_server::tokens::Tokens;
use serde_json::{Value, json};

use crate::access::{secret, tokens_file};
use crate::kit::{Server, start, start_with, within};

async fn register(server: &Server, worker: &str) -> Value {
    say(server, "orders", worker, "register", json!({})).await
}

async fn heartbeat(server: &Server, worker: &str, serves: &Value, generation: &Value) -> Value {
    let says = json!({"assignedShards": serves, "generation": generation});
    say(server, "orders", worker, "heartbeat", says).await
}

/// What a worker of a service with ten shards says, with what every message of it has.
async fn say(server: &Server, service: &str, worker: &str, call: &str, mut says: Value) -> Value {
    says["maxShardCount"] = json!(10);
    says["session"] = json!(worker);
    let assignment = server.post(&format!("/v1/services/{service}/workers/{worker}/{call}"), &says).await;
    assert_eq!(assignment.status, 200, "{assignment:?}");
    assignment.json()
}

#[tokio::test]
async fn a_fourth_worker_gets_shards_that_three_released() {
    let server = start().await;
    let (a, b, c) = tokio::join!(register(&server, "a"), register(&server, "b"), register(&server, "c"));
    assert_eq!(a["assignedShards"], json!([0, 1, 2, 3]));
    assert_eq!(b["assignedShards"], json!([4, 5, 6]));
    assert_eq!(c["assignedShards"], json!([7, 8, 9]));
    assert_eq!((a["tokens"].as_array().unwrap().len(), a["leaseMs"].as_u64()), (4, Some(15_000)));
    // The others do as they are told whenever they hear of something new.
    let obey = async {
        let mut assignment = [("a", a), ("b", b), ("c", c)];
        loop {
            for (worker, assignment) in &mut assignment {
                *assignment =
                    heartbeat(&server, worker, &assignment["assignedShards"], &assignment["generation"])
                        .await;
            }
        }
    };
    let d = tokio::select! {
        d = within(register(&server, "d")) => d,
        () = obey => unreachable!("they go on for ever"),
    };
    assert_eq!(d["assignedShards"].as_array().unwrap().len(), 2, "{d}");
    let service = server.get("/v1/services/orders").await.json();
    let states: Vec<&str> =
        service["shards"].as_array().unwrap().iter().map(|shard| shard["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["HELD"; 10]);
    let list = server.get("/v1/services?group=default").await.json();
    assert_eq!(list["services"][0]["workers"], 4);
    assert_eq!(server.get("/v1/services?group=other").await.json()["services"], json!([]));
    server.stop().await;
}

#[tokio::test]
async fn a_silent_worker_is_replaced_and_fenced_when_it_speaks_again() {
    let shards = ShardTimes { lease_ms: 1_500, check_ms: 500 };
    let server = start_with(Options::default(), NodeOptions { shards, ..NodeOptions::default() }).await;
    let (a, b) = tokio::join!(register(&server, "a"), register(&server, "b"));
    assert_eq!(a["assignedShards"].as_array().unwrap().len(), 5);
    let mut follow = server.follow("/v1/services/orders/workers/b/assignments?session=b", &[]).await;
    assert_eq!(follow.next().await.unwrap().data["assignedShards"], b["assignedShards"]);
    let live = async {
        loop {
            heartbeat(&server, "b", &b["assignedShards"], &b["generation"]).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let changed = tokio::select! {
        changed = follow.next() => changed.unwrap(),
        () = live => unreachable!("it goes on for ever"),
    };
    assert_eq!(changed.event, "assignment");
    assert_eq!(changed.data["assignedShards"].as_array().unwrap().len(), 10);
    let thawed = heartbeat(&server, "a", &a["assignedShards"], &a["generation"]).await;
    assert_eq!((&thawed["fenced"], &thawed["assignedShards"]), (&json!(true), &json!([])));
    drop(follow);
    server.stop().await;
}

#[tokio::test]
async fn groups_are_listed_divided_and_fail_apart() {
    let shards = ShardTimes { lease_ms: 1_500, check_ms: 500 };
    let server = start_with(Options::default(), NodeOptions { shards, ..NodeOptions::default() }).await;
    let (bills, letters) = tokio::join!(
        say(&server, "bills", "a", "register", json!({"group": "billing"})),
        say(&server, "letters", "b", "register", json!({"group": "mail"})),
    );
    let all: Vec<u32> = (0..10).collect();
    assert_eq!((&bills["assignedShards"], &letters["assignedShards"]), (&json!(all), &json!(all)));
    // The worker of `billing` says no more; the one of `mail` goes on.
    let mut says = json!({"group": "mail", "assignedShards": all, "generation": letters["generation"]});
    let free = async {
        loop {
            let assignment = say(&server, "letters", "b", "heartbeat", says.clone()).await;
            says["generation"] = assignment["generation"].clone();
            let listed = server.get("/v1/services?group=billing").await.json();
            assert_eq!(listed["services"].as_array().unwrap().len(), 1);
            if listed["services"][0]["free"] == 10 {
                return listed["services"][0].clone();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let billing = within(free).await;
    assert_eq!((&billing["service"], &billing["workers"]), (&json!("bills"), &json!(0)));
    let mail = server.get("/v1/services?group=mail").await.json();
    assert_eq!(mail["services"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&mail["services"][0]["service"], &mail["services"][0]["held"]),
        (&json!("letters"), &json!(10))
    );
    let assignment = say(&server, "letters", "b", "heartbeat", says).await;
    assert_eq!(assignment["tokens"], letters["tokens"], "nobody else has held them");
    server.stop().await;
}

#[tokio::test]
async fn a_process_that_was_replaced_hears_so_on_its_stream() {
    let server = start().await;
    register(&server, "a").await;
    let without = server.get("/v1/services/orders/workers/a/assignments").await;
    assert_eq!((without.status, without.code().as_str()), (400, "invalid"), "{without:?}");
    assert!(without.json()["detail"].as_str().unwrap().contains("session"), "{without:?}");
    let path = "/v1/services/orders/workers/a/assignments?session=";
    let mut follow = server.follow(&format!("{path}a"), &[]).await;
    assert_eq!(follow.next().await.unwrap().data["assignedShards"].as_array().unwrap().len(), 10);
    let other = json!({"maxShardCount": 10, "session": "other"});
    let second = server.post("/v1/services/orders/workers/a/register", &other);
    let replaced = async {
        loop {
            let mut again = server.follow(&format!("{path}a"), &[]).await;
            let assignment = again.next().await.unwrap().data;
            if assignment.get("fenced").is_some() {
                assert!(again.next().await.is_none(), "the stream ends");
                return assignment;
            }
        }
    };
    tokio::select! {
        _ = second => panic!("the second waits for the time of the first"),
        assignment = replaced => assert_eq!((&assignment["fenced"], &assignment["assignedShards"]), (&json!(true), &json!([]))),
    }
    server.stop().await;
}

#[tokio::test]
async fn operators_change_the_number_and_bad_input_changes_nothing() {
    let server = start().await;
    assert_eq!(server.get("/v1/services/orders").await.code(), "not_found");
    register(&server, "a").await;
    let changed = server.send("PUT", "/v1/services/orders", &[], Some(br#"{"shard_count":12}"#)).await;
    assert_eq!((changed.status, changed.json()["shard_count"].as_u64()), (200, Some(12)), "{changed:?}");
    let position = server.position();
    let (register, heartbeat) =
        ("/v1/services/orders/workers/x/register", "/v1/services/orders/workers/a/heartbeat");
    for (method, path, body, named) in [
        ("PUT", "/v1/services/orders", r#"{"shard_count":100001}"#, "shard_count"),
        ("PUT", "/v1/services/orders", r#"{"shard_count":-1}"#, "shard_count"),
        ("PUT", "/v1/services/orders", r#"{"weights":{"0":0}}"#, "weights"),
        ("PUT", "/v1/services/nobodys", r#"{"weights":{"0":2}}"#, "nobodys"),
        ("POST", register, r#"{"session":"x"}"#, "maxShardCount"),
        ("POST", register, r#"{"maxShardCount":100001,"session":"x"}"#, "maxShardCount"),
        ("POST", register, r#"{"maxShardCount":1,"session":"x","group":"other"}"#, "group"),
        ("POST", heartbeat, r#"{"maxShardCount":10,"session":"a"}"#, "assignedShards"),
    ] {
        let refused = server.send(method, path, &[], Some(body.as_bytes())).await;
        assert_eq!((refused.status, refused.code().as_str()), (400, "invalid"), "{path} {body}: {refused:?}");
        let detail = refused.json()["detail"].to_string();
        assert!(detail.contains(named), "{body} is told of {named}: {detail}");
        assert!(method != "PUT" || !detail.contains("maxShardCount"), "{body}: {detail}");
    }
    assert_eq!(server.position(), position, "nothing was written");
    let gone = server.post("/v1/services/orders/workers/a/deregister", &json!({"session": "a"})).await;
    assert_eq!((gone.status, &gone.json()["assignedShards"]), (200, &json!([])));
    server.stop().await;
}

#[tokio::test]
async fn a_process_without_a_session_is_refused_and_hears_why() {
    let server = start().await;
    register(&server, "a").await;
    let position = server.position();
    for (call, body) in [
        ("register", json!({"maxShardCount": 10})),
        ("register", json!({"maxShardCount": 10, "session": null})),
        ("heartbeat", json!({"maxShardCount": 10, "assignedShards": [0]})),
        ("heartbeat", json!({"maxShardCount": 10, "assignedShards": []})),
        ("deregister", json!({})),
    ] {
        let refused = server.post(&format!("/v1/services/orders/workers/a/{call}"), &body).await;
        assert_eq!((refused.status, refused.code().as_str()), (400, "invalid"), "{call} {body}: {refused:?}");
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("session") && detail.contains("missing"), "{detail}");
    }
    let bare = server.send("POST", "/v1/services/orders/workers/a/deregister", &[], None).await;
    assert_eq!(bare.status, 400, "{bare:?}");
    assert_eq!(server.position(), position, "nothing was written");
    let described = server.get("/openapi.json").await.json();
    for body in ["ShardRegister", "ShardHeartbeat", "ShardDeregister"] {
        let schema = &described["components"]["schemas"][body];
        let required = schema["required"].as_array().unwrap();
        assert!(required.contains(&json!("session")), "{body}: {schema}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_new_service_counts_for_the_token_that_was_shown() {
    let tokens = Some(Tokens::parse(&tokens_file()).unwrap());
    let server = start_with(Options { tokens, ..Options::default() }, NodeOptions::default()).await;
    let [admin, work] = ["admin", "work"].map(|name| format!("Bearer {}", secret(name)));
    let mut events = server.follow("/v1/events", &[("authorization", &admin)]).await;
    let headers = [("authorization", work.as_str()), ("content-type", "application/json")];
    let comes = json!({"maxShardCount": 1, "session": "p"});
    let beats = json!({"maxShardCount": 1, "session": "p", "assignedShards": []});
    for (service, call, says) in [("orders", "register", comes), ("bills", "heartbeat", beats)] {
        let path = format!("/v1/services/{service}/workers/w/{call}");
        let assignment = server.send("POST", &path, &headers, Some(says.to_string().as_bytes())).await;
        assert_eq!(assignment.status, 200, "{assignment:?}");
        let joined = loop {
            let event = events.next().await.unwrap().data;
            if event["type"] == "ShardWorkerJoined" {
                break event;
            }
        };
        assert_eq!((&joined["service"], &joined["by"]), (&json!(service), &json!("work")));
    }
    drop(events);
    server.stop().await;
}

#[tokio::test]
async fn the_shards_of_a_service_come_in_pages() {
    let server = start().await;
    let change = json!({ "shard_count": 100_000 }).to_string();
    let changed = server.send("PUT", "/v1/services/large", &[], Some(change.as_bytes())).await;
    assert!(changed.status == 200 && changed.body.len() <= PAGE_BYTES_MAX, "{}", changed.body.len());
    let (mut numbers, mut pages, mut path) = (Vec::new(), 0, "/v1/services/large".to_owned());
    loop {
        let answer = server.get(&path).await;
        assert!(answer.status == 200 && answer.body.len() <= PAGE_BYTES_MAX, "{}", answer.body.len());
        let page = answer.json();
        assert_eq!(page["shard_count"], 100_000);
        numbers
            .extend(page["shards"].as_array().unwrap().iter().map(|shard| shard["shard"].as_u64().unwrap()));
        pages += 1;
        let Some(next) = page["next_cursor"].as_str() else { break };
        path = format!("/v1/services/large?cursor={next}");
    }
    assert_eq!(numbers, (0..100_000).collect::<Vec<u64>>());
    assert!(pages > 5, "{pages}");
    let two = server.get("/v1/services/large?limit=2&cursor=99997").await.json();
    assert_eq!(
        (two["shards"][0]["shard"].as_u64(), two["next_cursor"].as_str()),
        (Some(99_997), Some("99999"))
    );
    let last = server.get("/v1/services/large?limit=2&cursor=99998").await.json();
    assert_eq!((last["shards"].as_array().unwrap().len(), last.get("next_cursor")), (2, None));
    let none = server.get("/v1/services/large?cursor=4294967295").await.json();
    assert_eq!((none["shards"].as_array().unwrap().len(), none.get("next_cursor")), (0, None));
    for query in ["limit=0", "limit=100001", "cursor=x", "cursor=-1", "cursor=4294967296", "page=1"] {
        assert_eq!(server.get(&format!("/v1/services/large?{query}")).await.status, 400, "{query}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_refused_weight_leaves_the_number_of_shards() {
    let server = start().await;
    let path = "/v1/services/orders";
    let put = async |body: Value| {
        let headers = [("content-type", "application/json")];
        server.send("PUT", path, &headers, Some(body.to_string().as_bytes())).await
    };
    assert_eq!(put(json!({ "shard_count": 4 })).await.status, 200);
    for wrong in [json!({ "0": 0 }), json!({ "0": 1_000_001 })] {
        let refused = put(json!({ "shard_count": 2, "weights": wrong })).await;
        assert_eq!((refused.status, refused.code()), (400, "invalid".to_owned()));
    }
    assert_eq!(server.get(path).await.json()["shard_count"], 4);
    server.stop().await;
}
