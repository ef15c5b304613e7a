//! A cluster whose nodes have an address each: any takes any request, and the one that leads decides.

use std::sync::Arc;
use std::time::Duration;

use orchestrix_engine::memory::MemoryPlace;
use orchestrix_engine::{Clock, JournalId, Shared, SystemClock};
use orchestrix_leadership::Candidate;
use orchestrix_node::{HighWater, Member, Membership, NodeRole, Options as NodeOptions};
use orchestrix_server::http::{self, Options, Serving};
use orchestrix_server::tokens::{Secret, Tokens};
use serde_json::json;

use crate::kit::{Door, until, within};

const TTL: Duration = Duration::from_secs(3);

/// One of several nodes, behind a door of its own.
pub(crate) struct OneOf {
    pub(crate) door: Door,
    pub(crate) member: Member,
    serving: Serving,
}

impl std::ops::Deref for OneOf {
    type Target = Door;

    fn deref(&self) -> &Door {
        &self.door
    }
}

pub(crate) fn place() -> MemoryPlace {
    MemoryPlace::new(JournalId([5; 16]))
}

async fn join(place: &MemoryPlace, name: &str, stands: bool) -> OneOf {
    join_as(Arc::new(place.clone()), name, stands, Options::default()).await
}

pub(crate) async fn join_as(engine: Arc<dyn Shared>, name: &str, stands: bool, options: Options) -> OneOf {
    join_by(Arc::new(SystemClock), engine, name, stands, options).await
}

pub(crate) async fn join_by(
    clock: Arc<dyn Clock>,
    engine: Arc<dyn Shared>,
    name: &str,
    stands: bool,
    options: Options,
) -> OneOf {
    let listening = http::listen(([127, 0, 0, 1], 0).into()).unwrap();
    let address = format!("http://{}", listening.address());
    let mut leadership = orchestrix_leadership::Options::first_come(TTL);
    leadership.enable_coordinator = stands;
    let membership = Membership {
        engine,
        me: Candidate { name: name.to_owned(), incarnation: format!("{name}-1"), address },
        leadership,
        node: NodeOptions { node: name.to_owned(), ..NodeOptions::default() },
        high_water: HighWater::in_memory(),
    };
    let member = Member::open_by(membership, clock).unwrap();
    let serving = listening.serve(member.clone(), options);
    OneOf { door: Door { address: serving.address }, member, serving }
}

impl OneOf {
    pub(crate) async fn leads(&self) {
        until("it leads", || matches!(self.member.role(), NodeRole::Leads(_))).await;
    }

    /// Waits until it follows somebody. Who was deposed may know its successor before it has stopped to lead.
    pub(crate) async fn sees_leader(&self, name: &str) {
        let sees = || self.member.leadership().leader().is_some_and(|(leader, _)| leader.name == name);
        until("it follows", || sees() && matches!(self.member.role(), NodeRole::Follows)).await;
    }

    pub(crate) fn replace_tokens(&self, tokens: Tokens) {
        self.serving.replace_tokens(tokens);
    }

    pub(crate) fn replace_node_token(&self, token: &Secret) {
        self.serving.replace_node_token(token);
    }

    pub(crate) async fn stop(self) {
        within(self.serving.stop()).await.unwrap();
    }
}

/// Two nodes of which the first leads.
async fn two() -> (OneOf, OneOf) {
    let place = place();
    let first = join(&place, "a", true).await;
    first.leads().await;
    let second = join(&place, "b", true).await;
    second.sees_leader("a").await;
    (first, second)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_takes_every_request_and_passes_it_on() {
    let (leader, follower) = two().await;
    let id = follower.submit("mail", json!({"n": 1})).await;
    let seen = leader.get(&format!("/v1/tasks/{id}")).await;
    assert_eq!((seen.status, seen.json()["queue"].as_str()), (200, Some("mail")));
    let (task, lease) = follower.lease("mail", "w").await;
    assert_eq!(task, id);
    let stale = follower.post(&format!("/v1/tasks/{id}/complete"), &json!({"lease_id": lease + 1})).await;
    assert_eq!((stale.status, stale.code().as_str()), (409, "stale_lease"));
    follower.done(&format!("/v1/tasks/{id}/complete"), &json!({"lease_id": lease})).await;
    let seen = follower.get(&format!("/v1/tasks/{id}")).await;
    assert_eq!(seen.json()["state"], "COMPLETED");
    assert!(seen.headers["orchestrix-position"].parse::<u64>().unwrap() > id);
    let named = follower.send("GET", "/v1/queues", &[("x-request-id", "mine")], None).await;
    assert_eq!(named.headers["x-request-id"], "mine");
    // What is wrong is told by whoever notices it first.
    assert_eq!(follower.post("/v1/tasks", &json!({"queue": "q"})).await.status, 400);
    assert_eq!(follower.get("/v1/nothing").await.status, 404);
    follower.stop().await;
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_go_through_a_follower() {
    let (leader, follower) = two().await;
    let id = follower.submit("mail", json!(1)).await;
    let mut events = follower.follow(&format!("/v1/events?after={}", id - 1), &[]).await;
    assert_eq!(events.next().await.unwrap().data["type"], "TaskCreated");
    let (task, lease) = follower.lease("mail", "w").await;
    let lines = json!({"lease_id": lease, "lines": [{"text": "hello"}]});
    follower.done(&format!("/v1/tasks/{task}/logs"), &lines).await;
    let mut output = follower.follow(&format!("/v1/tasks/{task}/logs?follow=true"), &[]).await;
    assert_eq!(output.next().await.unwrap().data["text"], "hello");
    follower.done(&format!("/v1/tasks/{task}/complete"), &json!({"lease_id": lease})).await;
    assert_eq!(output.next().await.unwrap().event, "end");
    for name in ["LeaseGranted", "TaskCompleted"] {
        let mut event = events.next().await.unwrap().data;
        while event["type"] == "Tick" || event["type"] == "FormatRaised" {
            event = events.next().await.unwrap().data;
        }
        assert_eq!(
            (&event["type"], &event["queue"]),
            (&json!(name), &json!("mail")),
            "as read by a follower"
        );
    }
    drop((events, output));
    follower.stop().await;
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_leader_a_request_waits_and_gets_no_leader() {
    let alone = join(&place(), "a", false).await;
    let ready = alone.get("/ready").await;
    assert_eq!((ready.status, ready.json()["reason"].as_str()), (503, Some("there is no leader")));
    let refused = alone.post("/v1/tasks", &json!({"queue": "q", "payload": 1})).await;
    assert_eq!((refused.status, refused.code().as_str()), (503, "no_leader"));
    assert!(refused.headers.contains_key("retry-after"));
    let cluster = alone.get("/v1/cluster").await.json();
    assert_eq!(cluster["leader"], json!(null));
    let why = cluster["why"].to_string();
    assert!(why.contains("there is no leader") && why.contains("enable_coordinator is false"), "{cluster}");
    alone.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_passed_on_is_not_passed_on_again() {
    let (leader, follower) = two().await;
    let passed = [("orchestrix-forwarded", "c")];
    let refused = follower.send("GET", "/v1/queues", &passed, None).await;
    assert_eq!((refused.status, refused.code().as_str()), (503, "no_leader"));
    assert_eq!(leader.send("GET", "/v1/queues", &passed, None).await.status, 200);
    follower.stop().await;
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_that_was_seen_elsewhere_is_waited_for() {
    let (leader, follower) = two().await;
    let id = leader.submit("mail", json!(1)).await;
    let seen = [("orchestrix-position", id.to_string())];
    let seen: Vec<(&str, &str)> = seen.iter().map(|(name, value)| (*name, value.as_str())).collect();
    assert_eq!(follower.send("GET", &format!("/v1/tasks/{id}"), &seen, None).await.status, 200);
    let far = [("orchestrix-position", "1000000")];
    let behind = leader.send("GET", "/v1/queues", &far, None).await;
    assert_eq!((behind.status, behind.code().as_str()), (503, "behind"));
    let nonsense = leader.send("GET", "/v1/queues", &[("orchestrix-position", "x")], None).await;
    assert_eq!(nonsense.code(), "invalid");
    follower.stop().await;
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_of_leadership_is_published_as_an_event() {
    let (leader, follower) = two().await;
    let mut news = follower.follow("/v1/cluster/news", &[]).await;
    let absent = follower.post("/v1/cluster/leader", &json!({"desired": "c"})).await;
    assert_eq!((absent.status, absent.code().as_str()), (409, "not_passed"));
    until("b is seen", || leader.member.cluster().nodes.iter().any(|node| node.name == "b")).await;
    follower.done("/v1/cluster/leader", &json!({"desired": "b"})).await;
    follower.leads().await;
    let mut heard = Vec::new();
    while heard.len() < 2 {
        let frame = news.next().await.unwrap();
        if frame.event.ends_with(":coordinator-promoted") {
            assert_eq!(frame.data["workerId"], "b");
            heard.push(frame.event);
        }
    }
    assert_eq!(heard, ["coord:coordinator-promoted", "plg:coordinator:coordinator-promoted"]);
    leader.sees_leader("b").await;
    leader.submit("mail", json!(1)).await;
    assert_eq!(leader.get("/v1/cluster").await.json()["leader"], "b");
    // Nobody in particular: there is an election.
    let before = leader.member.stats().epoch.get();
    leader.done("/v1/cluster/leader", &json!({})).await;
    until("another term begins", || leader.member.stats().epoch.get() > before).await;
    follower.stop().await;
    leader.stop().await;
}
