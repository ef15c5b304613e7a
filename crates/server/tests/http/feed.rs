//! What the leader tells those who follow, and what a node may that shows its token.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use orchestrix_core::Position;
use orchestrix_engine::memory::MemoryPlace;
use orchestrix_engine::{
    Appended, Batch, Cause, Clock, Error, Journal, JournalId, Link, Logs, Read, Register, Shared, Snapshots,
    Space, SystemClock,
};
use orchestrix_server::http::{Limits, Options};
use orchestrix_server::tokens::{Secret, Tokens};
use serde_json::json;

use crate::access::{secret, tokens_file};
use crate::cluster::{OneOf, join_as, join_by, place};
use crate::kit::{until, within};

/// An engine whose journal cannot be read for a while.
#[derive(Clone)]
struct Muted {
    place: MemoryPlace,
    muted: Arc<AtomicBool>,
    hangs: Arc<Hang>,
}

struct MutedJournal {
    journal: Box<dyn Journal>,
    muted: Arc<AtomicBool>,
    hangs: Arc<Hang>,
}

/// A call that does not return for a while.
#[derive(Default)]
struct Hang {
    call: Mutex<Option<&'static str>>,
    over: Condvar,
    /// Somebody waits in it.
    caught: AtomicBool,
}

impl Hang {
    fn set(&self, call: Option<&'static str>) {
        *self.call.lock().unwrap() = call;
        self.caught.store(false, SeqCst);
        self.over.notify_all();
    }

    fn pass(&self, call: &'static str) {
        let mut hangs = self.call.lock().unwrap();
        while *hangs == Some(call) {
            self.caught.store(true, SeqCst);
            hangs = self.over.wait(hangs).unwrap();
        }
    }
}

/// A clock that can be set ahead.
#[derive(Debug, Default)]
struct Ahead(AtomicU64);

impl Clock for Ahead {
    fn boot(&self) -> Duration {
        SystemClock.boot() + Duration::from_secs(self.0.load(SeqCst))
    }

    fn busy(&self) -> Duration {
        SystemClock.busy()
    }

    fn wall(&self) -> Duration {
        SystemClock.wall()
    }

    fn pause(&self, time: Duration) {
        SystemClock.pause(time);
    }
}

impl MutedJournal {
    fn check(&self) -> Result<(), Error> {
        if !self.muted.load(SeqCst) {
            return Ok(());
        }
        let source = Cause::Remote { place: "memory".to_owned(), what: "it is muted".to_owned() };
        Err(Error { operation: "read the journal".to_owned(), retryable: true, source })
    }
}

impl Shared for Muted {
    fn journal(&self) -> Result<Box<dyn Journal>, Error> {
        let (muted, hangs) = (Arc::clone(&self.muted), Arc::clone(&self.hangs));
        Ok(Box::new(MutedJournal { journal: self.place.journal()?, muted, hangs }))
    }

    fn register(&self) -> Arc<dyn Register> {
        self.place.register()
    }

    fn logs(&self) -> Arc<dyn Logs> {
        self.place.logs()
    }

    fn place(&self) -> String {
        self.place.place()
    }

    fn warnings(&self) -> Vec<String> {
        self.place.warnings()
    }
}

impl Journal for MutedJournal {
    fn id(&self) -> JournalId {
        self.journal.id()
    }

    fn end(&self) -> Link {
        self.journal.end()
    }

    fn refresh(&mut self) -> Result<Link, Error> {
        self.check()?;
        self.journal.refresh()
    }

    fn wait(&self, after: Position, at_most: Duration) -> Result<(), Error> {
        self.check()?;
        self.hangs.pass("wait");
        self.journal.wait(after, at_most)
    }

    fn append(&mut self, batch: &Batch) -> Result<Appended, Error> {
        self.journal.append(batch)
    }

    fn read(&self, after: Position, limit_bytes: usize) -> Result<Read, Error> {
        self.check()?;
        self.hangs.pass("read");
        self.journal.read(after, limit_bytes)
    }

    fn rest(&mut self) -> Result<(), Error> {
        self.journal.rest()
    }

    fn space(&self) -> Space {
        self.journal.space()
    }

    fn snapshots(&self) -> Box<dyn Snapshots> {
        self.journal.snapshots()
    }

    fn truncate(&mut self) -> Result<Position, Error> {
        self.journal.truncate()
    }
}

/// A leader, and a follower that can be kept from reading.
async fn a_leader_and_a_muted(options: impl Fn() -> Options) -> (OneOf, OneOf, Arc<AtomicBool>) {
    let engine = Muted { place: place(), muted: Arc::default(), hangs: Arc::default() };
    let leader = join_as(Arc::new(engine.place.clone()), "a", true, options()).await;
    leader.leads().await;
    let muted = Arc::clone(&engine.muted);
    let follower = join_as(Arc::new(engine), "b", true, options()).await;
    follower.sees_leader("a").await;
    muted.store(true, SeqCst);
    (leader, follower, muted)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_feeds_a_follower_without_its_engine() {
    let (leader, follower, muted) = a_leader_and_a_muted(Options::default).await;
    let first = leader.submit("mail", json!(1)).await;
    within(follower.member.applied(Position(first))).await;
    let last = leader.submit("mail", json!({"large": "x".repeat(100_000)})).await;
    within(follower.member.applied(Position(last))).await;
    let mut events = follower.follow(&format!("/v1/events?after={}", last - 1), &[]).await;
    assert_eq!(events.next().await.unwrap().data["type"], "TaskCreated");
    drop(events);
    // It is as warm as any, and leads when the other goes and the engine answers again.
    muted.store(false, SeqCst);
    leader.stop().await;
    follower.leads().await;
    assert_eq!(follower.get(&format!("/v1/tasks/{last}")).await.status, 200);
    follower.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_leader_tells_and_only_of_what_follows() {
    let (leader, follower, muted) = a_leader_and_a_muted(Options::default).await;
    muted.store(false, SeqCst);
    let refused = follower.get("/v1/cluster/batches?after=0").await;
    assert_eq!((refused.status, refused.code().as_str()), (503, "no_leader"));
    let refused = leader.get("/v1/cluster/batches").await;
    assert!(refused.status == 400 && refused.text().contains("after"), "{refused:?}");
    follower.stop().await;
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_whose_thread_hangs_says_so_in_health() {
    let engine = Muted { place: place(), muted: Arc::default(), hangs: Arc::default() };
    let (hangs, clock) = (Arc::clone(&engine.hangs), Arc::new(Ahead::default()));
    // Without a token for nodes the follower is not fed, so it asks the engine all the time.
    let options = || with_tokens(Limits::default(), None);
    let leader = join_as(Arc::new(engine.place.clone()), "a", true, options()).await;
    leader.leads().await;
    let follower = join_by(clock.clone(), Arc::new(engine), "b", false, options()).await;
    follower.sees_leader("a").await;
    for (call, thread) in [
        ("read", "the thread that follows the journal"),
        ("wait", "the thread that waits for the journal to grow"),
    ] {
        assert_eq!((follower.get("/health").await.status, follower.get("/ready").await.status), (200, 200));
        hangs.set(Some(call));
        until("it hangs", || hangs.caught.load(SeqCst)).await;
        assert_eq!(follower.get("/health").await.status, 200, "a call may take some time");
        clock.0.fetch_add(31, SeqCst);
        let reason = format!("the engine has not answered {thread} for 3");
        // The other thread needs a round to see that it is not late.
        until(&reason, || follower.member.stalled().is_some_and(|why| why.starts_with(&reason))).await;
        let health = follower.get("/health").await;
        assert_eq!((health.status, health.json()["status"].as_str().unwrap()), (503, "unhealthy"), "{call}");
        assert!(health.text().contains(&reason), "{health:?}");
        let ready = follower.get("/ready").await;
        assert!(ready.status == 503 && ready.text().contains(&reason), "{ready:?}");
        hangs.set(None);
        until("it goes on", || follower.member.stalled().is_none()).await;
    }
    follower.stop().await;
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_begin_after_what_the_caller_has_seen() {
    let (leader, follower, muted) = a_leader_and_a_muted(|| with_tokens(Limits::default(), None)).await;
    let admin = format!("Bearer {}", secret("admin"));
    let submit = async || {
        let headers = [("authorization", admin.as_str()), ("content-type", "application/json")];
        let body = json!({"queue": "mail", "payload": 1}).to_string();
        let told = leader.send("POST", "/v1/tasks", &headers, Some(body.as_bytes())).await;
        told.json()["id"].as_u64().unwrap()
    };
    let seen = submit().await;
    assert!(follower.member.stats().durable.get() < seen, "it cannot read");
    // Who has seen nothing gets what this node does not know yet.
    let mut early = follower.follow("/v1/events", &[("authorization", &admin)]).await;
    let (given, looks) = (seen.to_string(), async {
        for _ in 0..10 {
            assert_eq!(follower.get("/health").await.status, 200);
        }
    });
    let headers = [("authorization", admin.as_str()), ("orchestrix-position", given.as_str())];
    let mut asked = Box::pin(follower.follow("/v1/events", &headers));
    tokio::select! {
        biased;
        _ = &mut asked => panic!("it answered before it was so far"),
        () = looks => {}
    }
    let next = submit().await;
    muted.store(false, SeqCst);
    let mut events = within(asked).await;
    assert_eq!(events.next().await.unwrap().id, Some(next));
    assert_eq!(early.next().await.unwrap().id, Some(seen));
    drop((events, early));
    follower.stop().await;
    leader.stop().await;
}

fn with_tokens(limits: Limits, node_token: Option<&str>) -> Options {
    let tokens = Some(Tokens::parse(&tokens_file()).unwrap());
    Options {
        limits,
        tokens,
        node_token: node_token.map(|name| Secret::new(secret(name))),
        ..Options::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_there_are_tokens_a_node_shows_its_own() {
    for (token, fed) in [(Some("node"), true), (Some("work"), false), (None, false)] {
        let (leader, follower, muted) = a_leader_and_a_muted(|| with_tokens(Limits::default(), token)).await;
        let admin = format!("Bearer {}", secret("admin"));
        let body = json!({"queue": "mail", "payload": 1}).to_string();
        let headers = [("authorization", admin.as_str()), ("content-type", "application/json")];
        let told = leader.send("POST", "/v1/tasks", &headers, Some(body.as_bytes())).await;
        let id = told.json()["id"].as_u64().unwrap();
        if fed {
            within(follower.member.applied(Position(id))).await;
            muted.store(false, SeqCst);
        } else {
            // Then it reads the engine.
            assert!(follower.member.stats().durable.get() < id, "{token:?}");
            muted.store(false, SeqCst);
            within(follower.member.applied(Position(id))).await;
        }
        follower.stop().await;
        leader.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_token_lifts_the_limit_of_its_address() {
    const PER_IP: usize = 4;
    let limits = Limits { connections_per_ip: PER_IP, ..Limits::default() };
    let place = place();
    let leader = join_as(Arc::new(place.clone()), "a", true, with_tokens(limits, Some("node"))).await;
    leader.leads().await;
    let options = with_tokens(Limits::default(), Some("node"));
    let follower = join_as(Arc::new(place), "b", false, options).await;
    follower.sees_leader("a").await;
    let admin = format!("Bearer {}", secret("admin"));
    let headers = [("authorization", admin.as_str()), ("content-type", "application/json")];
    // It is known as a node from when it is fed.
    let fed = async {
        while !leader.send("GET", "/metrics", &headers, None).await.text().contains("http_streams 1\n") {}
    };
    within(fed).await;
    let waiting = (0..3 * PER_IP).map(|n| {
        let body = json!({"worker": format!("w{n}"), "wait_ms": 20_000}).to_string();
        let (follower, headers) = (&follower, &headers);
        async move { follower.send("POST", "/v1/queues/mail/lease", headers, Some(body.as_bytes())).await }
    });
    let all = futures_util::future::join_all(waiting);
    let feeding = async {
        until("all wait at the leader", || leader.member.stats().polls.get() == 3 * PER_IP as u64).await;
        for _ in 0..3 * PER_IP {
            let body = json!({"queue": "mail", "payload": 1}).to_string();
            let told = follower.send("POST", "/v1/tasks", &headers, Some(body.as_bytes())).await;
            assert_eq!(told.status, 201, "{told:?}");
        }
    };
    let (answers, ()) = within(async { tokio::join!(all, feeding) }).await;
    for answer in answers {
        assert_eq!(answer.json()["leases"].as_array().unwrap().len(), 1, "{answer:?}");
    }
    follower.stop().await;
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_passed_on_ends_when_its_node_stops() {
    let (leader, follower, muted) = a_leader_and_a_muted(Options::default).await;
    muted.store(false, SeqCst);
    let id = leader.submit("mail", json!(1)).await;
    let (_, lease) = leader.lease("mail", "w").await;
    let lines = json!({"lease_id": lease, "lines": [{"text": "hello"}]});
    leader.done(&format!("/v1/tasks/{id}/logs"), &lines).await;
    let mut output = follower.follow(&format!("/v1/tasks/{id}/logs?follow=true"), &[]).await;
    assert_eq!(output.next().await.unwrap().data["text"], "hello");
    // The grace of a stop is ten seconds; nothing of it is needed.
    tokio::time::timeout(Duration::from_secs(5), follower.stop()).await.expect("it stops at once");
    assert!(output.next().await.is_none(), "the stream has ended");
    leader.stop().await;
}
