//! What a follower does on a link whose leader a test plays.

use std::sync::Arc;
use std::time::{Duration, Instant};

use orchestrix_core::wire::{Leased, Leases};
use orchestrix_core::{Json, LeaseId, Name, Position, TaskId};
use orchestrix_engine::SystemClock;
use orchestrix_engine::memory::MemoryPlace;
use orchestrix_leadership::Candidate;
use orchestrix_node::link::{Answerer, AskId, Asked, Hello, Reply};
use orchestrix_node::{Answer, Ask, HighWater, Member, Membership, NodeRole, Options as NodeOptions};
use orchestrix_server::http::Options;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::cluster::{OneOf, join_as, place};
use crate::kit::{until, within};
use crate::link::wait_for_task;

const ACCEPTED: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: orchestrix-link\r\n\r\n";

/// Leads, and has a door that a test keeps.
struct Played {
    member: Member,
    listener: TcpListener,
}

/// The leader's end of one link.
struct Linked {
    stream: TcpStream,
    answerer: Answerer<()>,
    /// What has come and was not looked at.
    asked: std::collections::VecDeque<Asked>,
}

async fn two() -> (Played, OneOf) {
    let place = place();
    let leader = Played::open(&place).await;
    let follower = join_as(Arc::new(place), "b", false, Options::default()).await;
    follower.sees_leader("a").await;
    (leader, follower)
}

impl Played {
    async fn open(place: &MemoryPlace) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let membership = Membership {
            engine: Arc::new(place.clone()),
            me: Candidate { name: "a".to_owned(), incarnation: "a-1".to_owned(), address },
            leadership: orchestrix_leadership::Options::first_come(Duration::from_secs(3)),
            node: NodeOptions { node: "a".to_owned(), ..NodeOptions::default() },
            high_water: HighWater::in_memory(),
        };
        let member = Member::open_by(membership, Arc::new(SystemClock)).unwrap();
        until("it leads", || matches!(member.role(), NodeRole::Leads(_))).await;
        Self { member, listener }
    }

    /// Takes a link, with a window of some bytes.
    async fn accept(&self, window_bytes: usize) -> Linked {
        loop {
            let (mut stream, _) = within(self.listener.accept()).await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(within(stream.read_u8()).await.unwrap());
            }
            if !head.starts_with(b"GET /v1/cluster/link ") {
                continue;
            }
            stream.write_all(ACCEPTED).await.unwrap();
            let hello = Hello { window_bytes, ..Hello::new("a", None) };
            let answerer = Answerer::new(hello, Duration::ZERO);
            return Linked { stream, answerer, asked: std::collections::VecDeque::new() };
        }
    }
}

impl Linked {
    async fn send(&mut self) {
        let mut bytes = Vec::new();
        self.answerer.send(&mut bytes, usize::MAX);
        self.stream.write_all(&bytes).await.unwrap();
    }

    /// The next thing that the follower says.
    async fn next(&mut self) -> Asked {
        loop {
            self.send().await;
            match self.asked.pop_front() {
                Some(Asked::Ready(_)) => {}
                Some(asked) => return asked,
                None => {
                    let mut bytes = [0; 4_096];
                    let read = within(self.stream.read(&mut bytes)).await.unwrap();
                    assert!(read > 0, "the follower keeps the link");
                    let mut asked = Vec::new();
                    self.answerer.receive(&bytes[..read], Duration::ZERO, &mut asked).unwrap();
                    self.asked.extend(asked);
                }
            }
        }
    }

    async fn next_ask(&mut self) -> (AskId, Ask) {
        let asked = self.next().await;
        let Asked::Ask(id, question) = asked else { panic!("no ask, but {asked:?}") };
        (id, question.ask)
    }
}

fn leases() -> Answer {
    let leased = Leased {
        task_id: TaskId(7),
        lease_id: LeaseId(9),
        queue: Name::new("mail").unwrap(),
        attempt: 1,
        payload: Json::null(),
        lease_ms: 1_000,
        timeout_ms: None,
    };
    Answer::Leases { leases: Leases { leases: vec![leased], waited_ms: 0 }, at: Position(11) }
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_given_back_after_the_farewell() {
    let (leader, follower) = two().await;
    let gone = wait_for_task(&follower, "gone").await;
    let mut link = leader.accept(1 << 20).await;
    let (id, ask) = link.next_ask().await;
    assert!(matches!(ask, Ask::Lease(_)), "{ask:?}");
    drop(gone);
    let cancel = link.next().await;
    assert!(matches!(cancel, Asked::Cancel(cancelled) if cancelled == id), "{cancel:?}");
    link.answerer.go_away();
    link.answerer.answer(id, Reply::Done(Ok(leases())), None);
    let back = link.next().await;
    let Asked::GiveBack(back) = back else { panic!("{back:?}") };
    assert_eq!((back.at, back.leases), (Position(11), vec![(TaskId(7), LeaseId(9))]));
    follower.stop().await;
    leader.member.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ask_without_room_in_time_is_overloaded() {
    let (leader, follower) = two().await;
    // The loop takes nothing: one ask is let through, and the others wait.
    let full = wait_for_task(&follower, "w").await;
    let mut link = leader.accept(1).await;
    let (_, ask) = link.next_ask().await;
    assert!(matches!(ask, Ask::Lease(_)), "{ask:?}");
    let other = wait_for_task(&follower, "v").await;
    let mut second = leader.accept(1).await;
    let (_, ask) = second.next_ask().await;
    assert!(matches!(ask, Ask::Lease(_)), "{ask:?}");
    let began = Instant::now();
    let late = follower.post("/v1/tasks", &json!({"queue": "mail", "payload": 1})).await;
    assert_eq!((late.status, late.code().as_str()), (503, "overloaded"), "{}", late.text());
    assert!(began.elapsed() >= Duration::from_secs(5), "{:?}", began.elapsed());
    drop((full, other));
    follower.stop().await;
    leader.member.stop().await.unwrap();
}
