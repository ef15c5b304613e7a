//! Followers reach the leader over a few lasting connections.

use std::sync::Arc;

use orchestrix_server::http::{Limits, NodeLink, Options};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::cluster::{OneOf, join_as, place};
use crate::kit::{Door, read_answer, until, within};

/// Connections that a follower may have to the leader.
const CONNECTIONS_MAX: u64 = 8;
/// Calls that wait at one follower.
const WAITING: usize = 5_000;

pub(crate) async fn two(leader: Options, follower: Options) -> (OneOf, OneOf) {
    let place = place();
    let first = join_as(Arc::new(place.clone()), "a", true, leader).await;
    first.leads().await;
    let second = join_as(Arc::new(place), "b", true, follower).await;
    second.sees_leader("a").await;
    (first, second)
}

pub(crate) async fn metric(door: &Door, name: &str) -> u64 {
    let metrics = door.get("/metrics").await;
    let line = metrics.text().lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("{name} is not told")).parse().unwrap()
}

pub(crate) async fn until_metric(door: &Door, name: &str, is_so: impl Fn(u64) -> bool) {
    within(async {
        while !is_so(metric(door, name).await) {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// Begins a lease call that waits.
pub(crate) async fn wait_for_task(door: &Door, worker: &str) -> TcpStream {
    let mut stream = door.connect().await;
    let body = json!({"worker": worker, "wait_ms": 60_000}).to_string();
    let head = format!(
        "POST /v1/queues/mail/lease HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        door.address,
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

pub(crate) async fn life_cycle(door: &Door) -> u64 {
    let id = door.submit("mail", json!({"n": 1})).await;
    let (task, lease) = door.lease("mail", "w").await;
    assert_eq!(task, id);
    let path = |verb: &str| format!("/v1/tasks/{id}/{verb}");
    door.done(&path("heartbeat"), &json!({"lease_id": lease, "progress": 50})).await;
    let kept = door.done("/v1/workers/w/heartbeat", &json!({"leases": [lease]})).await;
    assert_eq!(kept["extended"], json!([lease]));
    let stale = door.post(&path("complete"), &json!({"lease_id": lease + 1})).await;
    assert_eq!((stale.status, stale.code().as_str()), (409, "stale_lease"));
    assert!(stale.text().contains("another lease has replaced it"), "{}", stale.text());
    door.done(&path("complete"), &json!({"lease_id": lease, "result": {"ok": true}})).await;
    let seen = door.get(&format!("/v1/tasks/{id}")).await;
    assert_eq!((seen.status, seen.json()["state"].as_str()), (200, Some("COMPLETED")));
    assert!(seen.headers["orchestrix-position"].parse::<u64>().unwrap() > id);
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn a_life_cycle_through_a_follower_goes_by_link() {
    let (leader, follower) = two(Options::default(), Options::default()).await;
    life_cycle(&follower).await;
    let batch =
        json!({"tasks": [{"queue": "q", "payload": 1}, {"queue": "q", "payload": 2, "max_attempts": 0}]});
    let batch = follower.done("/v1/tasks/batch", &batch).await;
    assert!(batch["tasks"][0]["id"].is_u64(), "{batch}");
    assert_eq!(batch["tasks"][1]["code"], "invalid");
    assert_eq!(metric(&follower, "orchestrix_link_asks_total").await, 8);
    assert_eq!(metric(&leader, "orchestrix_link_asks_taken_total").await, 8);
    assert_eq!(metric(&follower, "orchestrix_link_asks_in_flight").await, 0);
    let connections = metric(&follower, "orchestrix_link_connections").await;
    assert!((1..=CONNECTIONS_MAX).contains(&connections), "{connections}");
    follower.stop().await;
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_link_is_reached_by_http() {
    let (leader, follower) =
        two(Options { node_link: NodeLink::Absent, ..Options::default() }, Options::default()).await;
    life_cycle(&follower).await;
    assert_eq!(metric(&follower, "orchestrix_link_asks_total").await, 0);
    assert_eq!(metric(&follower, "orchestrix_link_connections").await, 0);
    follower.stop().await;
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_wait_at_a_follower_over_few_connections() {
    let options = || Options {
        limits: Limits { connections_per_ip: 2 * WAITING, ..Limits::default() },
        ..Options::default()
    };
    let (leader, follower) = two(options(), options()).await;
    let mut calls = Vec::new();
    for n in 0..WAITING {
        calls.push(wait_for_task(&follower, &format!("w{n}")).await);
    }
    until_metric(&follower, "orchestrix_link_asks_in_flight", |count| count == WAITING as u64).await;
    let connections = metric(&leader, "orchestrix_link_followers").await;
    assert!((1..=CONNECTIONS_MAX).contains(&connections), "{connections}");
    for _ in 0..WAITING / 1_000 {
        let tasks: Vec<Value> = (0..1_000).map(|n| json!({"queue": "mail", "payload": n})).collect();
        follower.done("/v1/tasks/batch", &json!({"tasks": tasks})).await;
    }
    let mut tasks = std::collections::BTreeSet::new();
    for mut call in calls {
        let answer = read_answer(&mut call).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        tasks.insert(answer.json()["leases"][0]["task_id"].as_u64().unwrap());
    }
    assert_eq!(tasks.len(), WAITING, "everyone has another task");
    follower.stop().await;
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_who_hangs_up_at_a_follower_takes_no_task() {
    let (leader, follower) = two(Options::default(), Options::default()).await;
    let gone = wait_for_task(&follower, "gone").await;
    until_metric(&leader, "orchestrix_link_asks_taken_total", |count| count == 1).await;
    drop(gone);
    until_metric(&follower, "orchestrix_link_asks_in_flight", |count| count == 0).await;
    leader.submit("mail", json!(1)).await;
    let mut next = wait_for_task(&follower, "next").await;
    let answer = read_answer(&mut next).await;
    assert_eq!(answer.json()["leases"].as_array().unwrap().len(), 1, "{}", answer.text());
    follower.stop().await;
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_leader_answers_waiting_calls_at_a_follower() {
    let (leader, follower) = two(Options::default(), Options::default()).await;
    let mut waits = wait_for_task(&follower, "w").await;
    until_metric(&leader, "orchestrix_link_asks_taken_total", |count| count == 1).await;
    leader.stop().await;
    let answer = read_answer(&mut waits).await;
    assert_eq!((answer.status, answer.json()["leases"].clone()), (200, json!([])));
    follower.leads().await;
    life_cycle(&follower).await;
    follower.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_leader_is_followed() {
    let (leader, follower) = two(Options::default(), Options::default()).await;
    life_cycle(&follower).await;
    until("b is seen", || leader.member.cluster().nodes.iter().any(|node| node.name == "b")).await;
    follower.done("/v1/cluster/leader", &json!({"desired": "b"})).await;
    follower.leads().await;
    leader.sees_leader("b").await;
    life_cycle(&leader).await;
    assert!(metric(&leader, "orchestrix_link_asks_total").await > 0);
    follower.stop().await;
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn links_end_when_another_node_leads() {
    let (leader, follower) = two(Options::default(), Options::default()).await;
    life_cycle(&follower).await;
    assert!(metric(&follower, "orchestrix_link_connections").await > 0);
    until("b is seen", || leader.member.cluster().nodes.iter().any(|node| node.name == "b")).await;
    follower.done("/v1/cluster/leader", &json!({"desired": "b"})).await;
    follower.leads().await;
    until_metric(&follower, "orchestrix_link_connections", |count| count == 0).await;
    until_metric(&leader, "orchestrix_link_followers", |count| count == 0).await;
    follower.stop().await;
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_linked_answer_has_the_position_of_its_own_write() {
    let (leader, follower) = two(Options::default(), Options::default()).await;
    for n in 0..200 {
        let answer = follower.post("/v1/tasks", &json!({"queue": "mail", "payload": n})).await;
        let (id, position) = (answer.json()["id"].as_u64().unwrap(), &answer.headers["orchestrix-position"]);
        assert!(position.parse::<u64>().unwrap() >= id, "task {id} at position {position}");
    }
    follower.stop().await;
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_of_other_versions_is_reached_by_http() {
    let other = Options { node_link: NodeLink::Versions(8, 9), ..Options::default() };
    let (leader, follower) = two(other, Options::default()).await;
    life_cycle(&follower).await;
    assert_eq!(metric(&leader, "orchestrix_link_asks_taken_total").await, 0);
    follower.stop().await;
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_of_other_versions_passes_requests_on_by_http() {
    let other = Options { node_link: NodeLink::Versions(8, 9), ..Options::default() };
    let (leader, follower) = two(Options::default(), other).await;
    life_cycle(&follower).await;
    assert_eq!(metric(&leader, "orchestrix_link_asks_taken_total").await, 0);
    follower.stop().await;
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_connection_leaves_room_on_the_other() {
    let few = Options { node_link: NodeLink::Asks(1), ..Options::default() };
    let (leader, follower) = two(few, Options::default()).await;
    life_cycle(&follower).await;
    let waits = wait_for_task(&follower, "w").await;
    until_metric(&leader, "orchestrix_link_asks_taken_total", |count| count >= 8).await;
    for _ in 0..10 {
        assert_eq!(follower.get("/v1/queues").await.status, 200);
    }
    drop(waits);
    follower.stop().await;
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_link_is_overloaded() {
    let few = Options { node_link: NodeLink::Asks(1), ..Options::default() };
    let (leader, follower) = two(few, Options::default()).await;
    life_cycle(&follower).await;
    let waits = [wait_for_task(&follower, "v").await, wait_for_task(&follower, "w").await];
    until_metric(&leader, "orchestrix_link_asks_taken_total", |count| count >= 9).await;
    // Both connections have one.
    let full = follower.get("/v1/queues").await;
    assert_eq!((full.status, full.code().as_str()), (503, "overloaded"));
    drop(waits);
    follower.stop().await;
    leader.stop().await;
}
