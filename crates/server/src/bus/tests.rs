//! How an owner reaches the leader.

use orchestrix_core::{Name, OwnerToken, Refusal};
use orchestrix_engine::JournalId;
use orchestrix_engine::memory::MemoryPlace;
use orchestrix_leadership::Candidate;
use orchestrix_node::{BusOptions, HighWater, Member, Membership, NodeRole, Options, Storage};

use super::*;
use crate::http::{self, NodeLink, Serving};

/// Longer than anything here takes; a test that waits so long has failed.
const LONG: Duration = Duration::from_secs(20);

fn with_bus(node: &str) -> Options {
    Options { node: node.to_owned(), bus: Some(BusOptions::default()), ..Options::default() }
}

/// One of two nodes, behind a door.
fn member(engine: &MemoryPlace, name: &str, stands: bool, node_link: NodeLink) -> (Member, Serving) {
    let listening = http::listen(([127, 0, 0, 1], 0).into()).unwrap();
    let address = format!("http://{}", listening.address());
    let mut leadership = orchestrix_leadership::Options::first_come(Duration::from_secs(3));
    leadership.enable_coordinator = stands;
    let membership = Membership {
        engine: Arc::new(engine.clone()),
        me: Candidate { name: name.to_owned(), incarnation: format!("{name}-1"), address },
        leadership,
        node: with_bus(name),
        high_water: HighWater::in_memory(),
    };
    let member = Member::open(membership).unwrap();
    let serving = listening.serve(member.clone(), http::Options { node_link, ..http::Options::default() });
    (member, serving)
}

/// A leader, and a node that follows it.
async fn two(of_leader: NodeLink) -> (Serving, Serving) {
    let engine = MemoryPlace::new(JournalId([5; 16]));
    let (leader, first) = member(&engine, "a", true, of_leader);
    until(|| matches!(leader.role(), NodeRole::Leads(_))).await;
    let (follower, second) = member(&engine, "b", false, NodeLink::Ours);
    until(|| follower.leadership().leader().is_some_and(|(leader, _)| leader.name == "a")).await;
    (first, second)
}

async fn until(mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LONG, "it did not happen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Joins as soon as all nodes read what is written for it.
async fn join(at: &Serving, name: &str) -> OwnerToken {
    let began = Instant::now();
    loop {
        let (node, incarnation) = (Name::new(name).unwrap(), format!("{name}-1"));
        let ask = OwnerAsk::Join { node, incarnation, address: String::new() };
        match ask_leader(at.app(), ask).await {
            Ok(BusAnswer::Joined(token)) => return token,
            Err(Error::Refused(Refusal::Upgrading { .. })) if began.elapsed() < LONG => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            answer => panic!("{answer:?}"),
        }
    }
}

async fn leave(at: &Serving, node: OwnerToken) {
    let answer = ask_leader(at.app(), OwnerAsk::Leave { node }).await;
    assert!(matches!(answer, Ok(BusAnswer::Done)), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_alone_asks_itself() {
    let (node, _) = orchestrix_node::open(&Storage::Memory, with_bus("a")).unwrap();
    let serving = http::start(([127, 0, 0, 1], 0).into(), node, http::Options::default()).unwrap();
    let token = join(&serving, "a").await;
    leave(&serving, token).await;
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_ask_the_leader_here_or_over_the_link() {
    let (leader, follower) = two(NodeLink::Ours).await;
    let (first, second) = (join(&leader, "a").await, join(&follower, "b").await);
    assert_ne!(first, second);
    assert!(leader.app().links.asks_taken.get() > 0, "the follower asked by link");
    leave(&follower, second).await;
    leave(&leader, first).await;
    follower.stop().await.unwrap();
    leader.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_link_is_asked_nothing() {
    let (leader, follower) = two(NodeLink::Absent).await;
    let answer = ask_leader(follower.app(), OwnerAsk::Leave { node: OwnerToken(1) }).await;
    assert!(matches!(answer, Err(Error::Stopping)), "{answer:?}");
    follower.stop().await.unwrap();
    leader.stop().await.unwrap();
}
