//! What a leader bounds on its links, and whom it believes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use orchestrix_core::wire::LeaseQueues;
use orchestrix_core::{Name, TaskId};
use orchestrix_node::link::{Asker, Heard, Hello, Question, Reply};
use orchestrix_node::{Ask, Error};
use orchestrix_server::http::{Limits, Options};
use orchestrix_server::tokens::{Secret, Tokens};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::access::{secret, tokens_file};
use crate::cluster::{join_as, place};
use crate::kit::{Door, until, within};
use crate::link::{metric, two, until_metric};

/// Bytes of a payload: more than one frame.
const PAYLOAD: usize = 200_000;
/// Reads at one time.
const READS: usize = 100;
/// Lease calls that wait. Their tasks are more than a socket has room for.
const WAITING: usize = 50;
/// A sign of life.
const PING: [u8; 12] = [7, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// A follower that a test plays, with little room for what it does not read.
async fn link_to(door: &Door) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut stream = socket.connect(door.address).await.unwrap();
    let request = format!(
        "GET /v1/cluster/link HTTP/1.1\r\nhost: {}\r\nconnection: upgrade\r\nupgrade: orchestrix-link\r\n\r\n",
        door.address
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// A follower that a test plays, once both ends have met.
async fn met(stream: &mut TcpStream) -> Asker {
    let mut asker = Asker::new(Hello::new("slow", None), Duration::ZERO);
    let (mut read, mut bytes, mut heard) = (Vec::new(), Vec::new(), Vec::new());
    asker.send(&mut bytes, usize::MAX);
    stream.write_all(&bytes).await.unwrap();
    let end = b"\r\n\r\n";
    while !read.ends_with(end) {
        read.push(within(stream.read_u8()).await.unwrap());
    }
    while heard.is_empty() {
        let byte = within(stream.read_u8()).await.unwrap();
        asker.receive(&[byte], Duration::ZERO, &mut heard).unwrap();
    }
    asker
}

async fn ask_all(stream: &mut TcpStream, asker: &mut Asker, asks: impl IntoIterator<Item = Ask>) {
    for ask in asks {
        asker.ask(&Question::new(ask), Duration::ZERO).unwrap();
    }
    let mut bytes = Vec::new();
    asker.send(&mut bytes, usize::MAX);
    stream.write_all(&bytes).await.unwrap();
}

/// Asks for one task many times, and reads nothing.
async fn ask_for(stream: &mut TcpStream, task: u64, times: usize) -> Asker {
    let mut asker = met(stream).await;
    ask_all(stream, &mut asker, (0..times).map(|_| Ask::Task(TaskId(task)))).await;
    asker
}

/// Reads until everything that was asked is answered.
async fn answers(stream: &mut TcpStream, asker: &mut Asker) -> Vec<Reply> {
    let (mut bytes, mut heard, mut replies) = (vec![0; 64 << 10], Vec::new(), Vec::new());
    while asker.open() > 0 {
        let read = within(stream.read(&mut bytes)).await.unwrap();
        assert!(read > 0, "the link goes on");
        asker.receive(&bytes[..read], Duration::ZERO, &mut heard).unwrap();
        replies.extend(heard.drain(..).filter_map(|heard| match heard {
            Heard::Answer(_, answered) => Some(answered.reply),
            Heard::Ready(_) | Heard::Unreadable(_) | Heard::GoAway(_) => None,
        }));
    }
    replies
}

async fn large_task(door: &Door) -> u64 {
    door.submit("mail", json!("x".repeat(PAYLOAD))).await
}

/// How many of many large reads of one follower were answered, and how many were refused by the limit of the caller and by
/// that of the link.
async fn read_much(limits: Limits) -> [usize; 3] {
    let (leader, follower) = two(Options { limits, ..Options::default() }, Options::default()).await;
    let task = large_task(&leader).await;
    let mut slow = link_to(&leader).await;
    let mut asker = ask_for(&mut slow, task, READS).await;
    until_metric(&leader, "orchestrix_link_asks_taken_total", |count| count == READS as u64).await;
    // Nobody else notices.
    assert_eq!(follower.get(&format!("/v1/tasks/{task}")).await.status, 200);
    let replies = answers(&mut slow, &mut asker).await;
    assert_eq!(metric(&leader, "orchestrix_link_slow_total").await, 0);
    ask_all(&mut slow, &mut asker, [Ask::Task(TaskId(task))]).await;
    let again = answers(&mut slow, &mut asker).await;
    assert!(matches!(again[..], [Reply::Done(Ok(_))]), "what was taken makes room: {again:?}");
    until_metric(&leader, "orchestrix_link_unsent_bytes", |bytes| bytes == 0).await;
    follower.stop().await;
    leader.stop().await;
    let count = |is_so: fn(&Reply) -> bool| replies.iter().filter(|reply| is_so(reply)).count();
    [
        count(|reply| matches!(reply, Reply::Done(Ok(_)))),
        count(|reply| matches!(reply, Reply::Limited(_))),
        count(|reply| matches!(reply, Reply::Done(Err(Error::Overloaded)))),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn large_reads_of_a_caller_are_refused_not_the_link() {
    let limits = Limits { unsent_bytes_per_client: 5 * (PAYLOAD + 5_000), ..Limits::default() };
    let [answered, limited, overloaded] = read_much(limits).await;
    assert!(answered >= 5 && limited > 0 && overloaded == 0, "{answered} {limited} {overloaded}");
    assert_eq!(answered + limited, READS);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_reads_of_many_are_refused_not_the_link() {
    let limits = Limits { unsent_bytes: 10 * (PAYLOAD + 5_000), ..Limits::default() };
    let [answered, limited, overloaded] = read_much(limits).await;
    assert!(answered >= 5 && limited == 0 && overloaded > 0, "{answered} {limited} {overloaded}");
    assert_eq!(answered + overloaded, READS);
}

/// A lease call that waits.
fn lease(worker: usize) -> Ask {
    Ask::Lease(LeaseQueues {
        queues: vec![Name::new("mail").unwrap()],
        worker: Name::new(&format!("w{worker}")).unwrap(),
        max: 1,
        lease_ms: 60_000,
        wait_ms: 60_000,
        request_id: None,
        capacity: None,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn unsent_answers_to_a_slow_follower_are_bounded() {
    let limits = Limits { unsent_bytes: 2 << 20, ..Limits::default() };
    let (leader, follower) = two(Options { limits, ..Options::default() }, Options::default()).await;
    let mut slow = link_to(&leader).await;
    let mut asker = met(&mut slow).await;
    // Leases are not refused once they are decided.
    ask_all(&mut slow, &mut asker, (0..WAITING).map(lease)).await;
    until_metric(&leader, "orchestrix_polls", |count| count == WAITING as u64).await;
    for _ in 0..WAITING {
        large_task(&leader).await;
    }
    until_metric(&leader, "orchestrix_link_slow_total", |count| count == 1).await;
    until_metric(&leader, "orchestrix_link_unsent_bytes", |bytes| bytes == 0).await;
    // Nobody else notices.
    assert_eq!(follower.get("/v1/queues").await.status, 200);
    follower.stop().await;
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_only_sends_is_let_go() {
    let limits = Limits { write_timeout: Duration::from_millis(500), ..Limits::default() };
    let (leader, follower) = two(Options { limits, ..Options::default() }, Options::default()).await;
    let task = large_task(&leader).await;
    let mut slow = link_to(&leader).await;
    ask_for(&mut slow, task, 50).await;
    within(async {
        while metric(&leader, "orchestrix_link_slow_total").await == 0 {
            // It shows that it is alive, and takes nothing.
            let _ = slow.write_all(&PING).await;
        }
    })
    .await;
    follower.stop().await;
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_waits_for_links_and_requests_together() {
    let grace = Duration::from_secs(4);
    let limits = Limits { stop_grace: grace, ..Limits::default() };
    let (leader, follower) = two(Options { limits, ..Options::default() }, Options::default()).await;
    let task = large_task(&leader).await;
    let mut slow = link_to(&leader).await;
    ask_for(&mut slow, task, 50).await;
    until_metric(&leader, "orchestrix_link_unsent_bytes", |bytes| bytes > 0).await;
    // A request whose body never ends.
    let mut open = leader.connect().await;
    let head = "POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{";
    open.write_all(head.as_bytes()).await.unwrap();
    until_metric(&leader, "orchestrix_http_connections", |count| count >= 2).await;
    let began = Instant::now();
    leader.stop().await;
    assert!(began.elapsed() < 2 * grace - Duration::from_secs(1), "{:?}", began.elapsed());
    drop((slow, open));
    follower.stop().await;
}

fn with_tokens(limits: Limits) -> Options {
    let tokens = Some(Tokens::parse(&tokens_file()).unwrap());
    Options { limits, tokens, node_token: Some(Secret::new(secret("node"))), ..Options::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_without_tokens_vouches_for_nobody() {
    let unlimited = Options { tokens: None, ..with_tokens(Limits::default()) };
    let (leader, follower) = two(with_tokens(Limits::default()), unlimited).await;
    let submit = json!({"queue": "mail", "payload": 1});
    let refused = follower.post("/v1/tasks", &submit).await;
    assert_eq!((refused.status, refused.code().as_str()), (401, "unauthorized"));
    assert_eq!(metric_as_admin(&leader, "orchestrix_link_asks_taken_total").await, 0);
    // A caller who shows its own token is served.
    let admin = format!("Bearer {}", secret("admin"));
    let headers = [("authorization", admin.as_str()), ("content-type", "application/json")];
    let body = submit.to_string();
    assert_eq!(follower.send("POST", "/v1/tasks", &headers, Some(body.as_bytes())).await.status, 201);
    follower.stop().await;
    leader.stop().await;
}

async fn metric_as_admin(door: &Door, name: &str) -> u64 {
    let admin = format!("Bearer {}", secret("metrics"));
    let metrics = door.send("GET", "/metrics", &[("authorization", admin.as_str())], None).await;
    let line = metrics.text().lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("{name} is not told")).parse().unwrap()
}

/// A lease call that waits, by a worker with a token.
async fn wait_as_worker(door: &Door, worker: &str) -> TcpStream {
    let mut stream = door.connect().await;
    let body = json!({"worker": worker, "wait_ms": 60_000}).to_string();
    let head = format!(
        "POST /v1/queues/mail/lease HTTP/1.1\r\nhost: {}\r\nconnection: close\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        door.address,
        secret("work"),
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callers_limit_holds_over_all_links() {
    let place = place();
    let join =
        |name: &'static str, limits| join_as(Arc::new(place.clone()), name, name == "a", with_tokens(limits));
    let leader = join("a", Limits { in_flight_per_token: 3, ..Limits::default() }).await;
    leader.leads().await;
    let (one, other) = (join("b", Limits::default()).await, join("c", Limits::default()).await);
    one.sees_leader("a").await;
    other.sees_leader("a").await;
    let waits = [
        wait_as_worker(&one, "w1").await,
        wait_as_worker(&one, "w2").await,
        wait_as_worker(&other, "w3").await,
    ];
    within(async {
        while metric_as_admin(&leader, "orchestrix_link_asks_taken_total").await < 3 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    until("all wait", || leader.member.stats().polls.get() == 3).await;
    let work = format!("Bearer {}", secret("work"));
    let headers = [("authorization", work.as_str()), ("content-type", "application/json")];
    let body = json!({"worker": "w4"}).to_string();
    let refused = other.send("POST", "/v1/queues/mail/lease", &headers, Some(body.as_bytes())).await;
    assert_eq!((refused.status, refused.code().as_str()), (429, "rate_limited"));
    drop(waits);
    for node in [one, other, leader] {
        node.stop().await;
    }
}
