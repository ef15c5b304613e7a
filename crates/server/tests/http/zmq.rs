//! Workers that divide shards, over ZeroMQ: what they say, what they hear, and what they must not do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use orchestrix_node::{Options as NodeOptions, ShardTimes};
use orchestrix_server::http::{Limits, Options};
use orchestrix_server::tokens::Tokens;
use orchestrix_server::zmq;
use orchestrix_zmtp::{Connection, Incoming, Limits as Parts, Reader, SocketType, Writer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::access::{secret, tokens_file};
use crate::cluster::{join_as, place};
use crate::kit::{Server, start_with, until, within};
use crate::link::metric;

/// A socket of a worker.
pub(crate) struct Dealer {
    reader: Reader<TcpStream>,
    writer: Writer<TcpStream>,
}

pub(crate) async fn connect(address: SocketAddr, socket: SocketType) -> Dealer {
    greet(TcpStream::connect(address).await.unwrap(), socket).await
}

/// A socket of a worker that is connected.
pub(crate) async fn greet(stream: TcpStream, socket: SocketType) -> Dealer {
    // What it hears may be as long as it likes.
    let limits = Parts { message_bytes: 64 << 20, ..Parts::default() };
    let (reader, writer) = Connection::greet(stream, socket, b"", limits).await.unwrap().split();
    Dealer { reader, writer }
}

impl Dealer {
    pub(crate) async fn say(&mut self, kind: &str, data: Value) {
        let message = json!({"type": kind, "data": data}).to_string();
        self.writer.send(&[message.as_bytes()]).await.unwrap();
    }

    /// The type and the data of the next message.
    async fn hear(&mut self) -> (String, Value) {
        let Incoming::Message(parts) = within(self.reader.next()).await.unwrap() else {
            panic!("no message")
        };
        let message: Value = serde_json::from_slice(parts.last().unwrap()).unwrap();
        (message["type"].as_str().unwrap().to_owned(), message["data"].clone())
    }

    pub(crate) async fn hear_assignment(&mut self) -> Value {
        let (kind, data) = self.hear().await;
        assert_eq!(kind, "assignment", "{data}");
        data
    }

    pub(crate) async fn hear_error(&mut self) -> (String, String) {
        let (kind, data) = self.hear().await;
        assert_eq!(kind, "error", "{data}");
        (data["code"].as_str().unwrap().to_owned(), data["message"].as_str().unwrap().to_owned())
    }

    async fn register(&mut self, worker: &str, count: u32) {
        self.say("register", json!({"serviceName": "orders", "workerId": worker, "maxShardCount": count}))
            .await;
    }

    /// Says that it does as it was told.
    async fn obey(&mut self, worker: &str, count: u32, assignment: &Value) {
        let (serves, generation) = (&assignment["assignedShards"], &assignment["generation"]);
        let data = json!({"serviceName": "orders", "workerId": worker, "maxShardCount": count,
            "assignedShards": serves, "generation": generation, "seq": 7});
        self.say("heartbeat", data).await;
    }

    pub(crate) async fn is_left(&mut self) {
        while within(self.reader.next()).await.is_ok() {}
    }
}

fn shares(assignment: &Value) -> Vec<u64> {
    assignment["assignedShards"].as_array().unwrap().iter().map(|shard| shard.as_u64().unwrap()).collect()
}

async fn start(limits: Limits, times: ShardTimes) -> (Server, SocketAddr) {
    let listening = zmq::listen(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listening.address();
    let options = Options { limits, zmq: Some(listening), ..Options::default() };
    (start_with(options, NodeOptions { shards: times, ..NodeOptions::default() }).await, address)
}

async fn usual() -> (Server, SocketAddr) {
    start(Limits::default(), ShardTimes::default()).await
}

async fn counted(server: &Server, name: &str) -> u64 {
    let shown = format!("Bearer {}", secret("metrics"));
    let metrics = server.send("GET", "/metrics", &[("authorization", &shown)], None).await;
    let line = metrics.text().lines().find(|line| line.starts_with(&format!("{name} "))).unwrap().to_owned();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn workers_hear_at_once_what_changes_and_a_heartbeat_lets_go() {
    let (server, address) = usual().await;
    let (mut a, mut b) =
        (connect(address, SocketType::Dealer).await, connect(address, SocketType::Dealer).await);
    a.register("a", 10).await;
    let assignment = a.hear_assignment().await;
    assert_eq!(shares(&assignment), (0..10).collect::<Vec<_>>());
    assert_eq!(
        (assignment["tokens"].as_array().unwrap().len(), &assignment["leaseMs"]),
        (10, &json!(15_000))
    );
    b.register("b", 10).await;
    let assignment = a.hear_assignment().await;
    assert_eq!(
        (shares(&assignment), assignment.get("leaseMs")),
        (vec![0, 1, 2, 3, 4], None),
        "it promises no time"
    );
    a.obey("a", 10, &assignment).await;
    let answer = a.hear_assignment().await;
    assert_eq!((&answer["seq"], &answer["leaseMs"]), (&json!(7), &json!(15_000)));
    assert_eq!(shares(&b.hear_assignment().await), vec![5, 6, 7, 8, 9]);
    b.register("b", 10).await;
    assert_eq!(shares(&b.hear_assignment().await), vec![5, 6, 7, 8, 9], "again on the same socket");
    b.say("deregister", json!({"serviceName": "orders", "workerId": "b"})).await;
    assert_eq!(shares(&b.hear_assignment().await), Vec::<u64>::new());
    assert_eq!(shares(&a.hear_assignment().await), (0..10).collect::<Vec<_>>());
    assert_eq!(counted(&server, "orchestrix_zmq_pushes_total").await, 2);
    server.stop().await;
}

#[tokio::test]
async fn a_second_socket_with_the_name_of_a_worker_fences_the_first() {
    let (server, address) = start(Limits::default(), ShardTimes { lease_ms: 1_000, check_ms: 300 }).await;
    let mut first = connect(address, SocketType::Dealer).await;
    first.register("a", 4).await;
    let assignment = first.hear_assignment().await;
    let mut second = connect(address, SocketType::Dealer).await;
    second.register("a", 4).await;
    // It is not believed from the moment on that the second has come.
    let empty = loop {
        first.obey("a", 4, &assignment).await;
        let (kind, data) = first.hear().await;
        if kind == "error" {
            assert_eq!(data["code"], "fenced");
            break first.hear_assignment().await;
        }
    };
    assert_eq!((shares(&empty), &empty["fenced"]), (vec![], &json!(true)));
    let later = second.hear_assignment().await;
    assert_eq!(shares(&later), vec![0, 1, 2, 3]);
    assert!(later["tokens"][0].as_u64() > assignment["tokens"][0].as_u64(), "with a larger token");
    server.stop().await;
}

#[tokio::test]
async fn a_refused_worker_fences_no_other() {
    let (server, address) = usual().await;
    let mut first = connect(address, SocketType::Dealer).await;
    first.register("a", 4).await;
    let assignment = first.hear_assignment().await;
    let mut second = connect(address, SocketType::Dealer).await;
    let wrong = json!({"serviceName": "orders", "workerId": "a", "maxShardCount": 4, "group": "other"});
    for data in [json!({"serviceName": "orders", "workerId": "a"}), wrong] {
        second.say("register", data).await;
        assert_eq!(second.hear_error().await.0, "invalid");
    }
    first.obey("a", 4, &assignment).await;
    assert_eq!(shares(&first.hear_assignment().await), vec![0, 1, 2, 3], "it hears of nothing else");
    server.stop().await;
}

#[tokio::test]
async fn a_worker_whose_time_is_over_hears_so() {
    let (server, address) = start(Limits::default(), ShardTimes { lease_ms: 500, check_ms: 100 }).await;
    let mut silent = connect(address, SocketType::Dealer).await;
    silent.register("a", 4).await;
    silent.hear_assignment().await;
    assert_eq!(silent.hear_error().await.0, "fenced");
    assert_eq!(silent.hear_assignment().await["fenced"], json!(true));
    server.stop().await;
}

#[tokio::test]
async fn a_worker_that_leaves_and_disconnects_has_left() {
    let (server, address) = usual().await;
    let mut stays = connect(address, SocketType::Dealer).await;
    stays.register("stays", 2).await;
    stays.hear_assignment().await;
    for round in 0..4 {
        let mut goes = connect(address, SocketType::Dealer).await;
        let worker = format!("goes-{round}");
        goes.register(&worker, 2).await;
        let assignment = stays.hear_assignment().await;
        stays.obey("stays", 2, &assignment).await;
        goes.hear_assignment().await;
        goes.say("deregister", json!({"serviceName": "orders", "workerId": worker})).await;
        drop(goes);
        while shares(&stays.hear_assignment().await).len() < 2 {}
    }
    server.stop().await;
}

#[tokio::test]
async fn a_req_socket_is_answered_in_kind() {
    let (server, address) = usual().await;
    let mut req = connect(address, SocketType::Req).await;
    let message = r#"{"type":"register","data":{"serviceName":"orders","workerId":"r","maxShardCount":4}}"#;
    req.writer.send(&[b"", message.as_bytes()]).await.unwrap();
    let Incoming::Message(parts) = within(req.reader.next()).await.unwrap() else { panic!("no message") };
    assert_eq!((parts.len(), parts[0].len()), (2, 0));
    let mut dealer = connect(address, SocketType::Dealer).await;
    dealer.register("d", 4).await;
    until("something was withdrawn", || server.node.stats().shards_withdrawn.get() == 2).await;
    req.writer.send(&[b"", b"{}"]).await.unwrap();
    let Incoming::Message(parts) = within(req.reader.next()).await.unwrap() else { panic!("no message") };
    assert!(std::str::from_utf8(&parts[1]).unwrap().contains("error"), "the answer, and no push before it");
    server.stop().await;
}

#[tokio::test]
async fn an_invalid_message_is_named_and_changes_nothing() {
    let (server, address) = usual().await;
    let mut good = connect(address, SocketType::Dealer).await;
    good.register("good", 4).await;
    let assignment = good.hear_assignment().await;
    let position = server.position();
    let mut bad = connect(address, SocketType::Dealer).await;
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let message = |kind: &str, data: &str| format!(r#"{{"type":"{kind}","data":{data}}}"#);
    let wrong = [
        ("", "JSON"),
        ("{", "JSON"),
        ("\u{0}\u{1}", "JSON"),
        (&deep, "JSON"),
        (&message("steal", "{}"), "steal"),
        (&message("register", "{}"), "serviceName"),
        (&message("register", r#"{"serviceName":"","workerId":"w","maxShardCount":1}"#), "serviceName"),
        (&message("register", r#"{"serviceName":"a/b","workerId":"w","maxShardCount":1}"#), "serviceName"),
        (
            &message("register", &format!(r#"{{"serviceName":"s","workerId":"{}"}}"#, "w".repeat(129))),
            "workerId",
        ),
        (&message("register", r#"{"serviceName":"s","workerId":"w"}"#), "maxShardCount"),
        (&message("register", r#"{"serviceName":"s","workerId":"w","maxShardCount":100001}"#), "100000"),
        (&message("register", r#"{"serviceName":"s","workerId":"w","maxShardCount":-1}"#), "maxShardCount"),
        (&message("register", r#"{"serviceName":"s","workerId":"w","maxShardCount":1e99}"#), "maxShardCount"),
        (
            &message("register", r#"{"serviceName":"s","workerId":"w","maxShardCount":1,"colour":2}"#),
            "colour",
        ),
        (
            &message(
                "heartbeat",
                r#"{"serviceName":"orders","workerId":"good","maxShardCount":4,"assignedShards":[-1]}"#,
            ),
            "assignedShards",
        ),
    ];
    for (text, named) in wrong {
        bad.writer.send(&[text.as_bytes()]).await.unwrap();
        let (code, why) = bad.hear_error().await;
        assert_eq!(code, "invalid", "{text:.80}: {why}");
        assert!(why.contains(named), "{text:.80}: {why}");
    }
    assert_eq!(counted(&server, "orchestrix_zmq_errors_total").await, wrong.len() as u64);
    assert_eq!(server.position(), position, "nothing was written");
    good.obey("good", 4, &assignment).await;
    assert_eq!(shares(&good.hear_assignment().await), vec![0, 1, 2, 3]);
    server.stop().await;
}

#[tokio::test]
async fn parts_and_bytes_beyond_limits_end_one_connection() {
    let (server, address) =
        start(Limits { body_bytes: 2_000, ..Limits::default() }, ShardTimes::default()).await;
    let mut good = connect(address, SocketType::Dealer).await;
    let long = vec![b'x'; 2_000];
    good.writer.send(&[&long]).await.unwrap();
    assert!(good.hear_error().await.1.contains("JSON"), "the longest that is read");
    good.writer.send(&[&b"x"[..]; 8]).await.unwrap();
    assert!(good.hear_error().await.1.contains("this one has 8"), "the most parts that are read");
    for (parts, named) in
        [(vec![&[b'x'; 2_001][..]], "2001 bytes"), (vec![&b"x"[..]; 9], "more than 8 parts")]
    {
        let mut bad = connect(address, SocketType::Dealer).await;
        bad.writer.send(&parts).await.unwrap();
        assert!(bad.hear_error().await.1.contains(named));
        bad.is_left().await;
    }
    good.register("good", 2).await;
    assert_eq!(shares(&good.hear_assignment().await), vec![0, 1]);
    assert_eq!(counted(&server, "orchestrix_zmq_broken_total").await, 2);
    server.stop().await;
}

#[tokio::test]
async fn a_peer_without_a_greeting_is_disconnected() {
    let (server, address) = usual().await;
    let kinds: [&[u8]; 3] = [b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n ", &[0xff; 64], b""];
    let strangers = kinds.map(|first| async move {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&first.repeat(2)).await.unwrap();
        // Whoever says nothing is left after a while.
        let mut heard = Vec::new();
        let _ = within(stream.read_to_end(&mut heard)).await;
    });
    futures_util::future::join_all(strangers).await;
    assert_eq!(counted(&server, "orchestrix_zmq_broken_total").await, 3);
    server.stop().await;
}

#[tokio::test]
async fn one_connection_more_than_allowed_is_refused() {
    let (server, address) =
        start(Limits { zmq_connections: 2, ..Limits::default() }, ShardTimes::default()).await;
    let mut first = connect(address, SocketType::Dealer).await;
    let _second = connect(address, SocketType::Dealer).await;
    let mut third = TcpStream::connect(address).await.unwrap();
    assert_eq!(within(third.read(&mut [0; 1])).await.unwrap_or(0), 0);
    assert_eq!(counted(&server, "orchestrix_zmq_connections_refused_total").await, 1);
    first.register("a", 1).await;
    first.hear_assignment().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_reads_nothing_is_closed_alone() {
    let limits = Limits { write_timeout: Duration::from_millis(300), ..Limits::default() };
    let (server, address) = start(limits, ShardTimes::default()).await;
    let mut stuck = connect(address, SocketType::Dealer).await;
    stuck.register("stuck", 20_000).await;
    let assignment = stuck.hear_assignment().await;
    let heartbeat = json!({"type": "heartbeat", "data": {"serviceName": "orders", "workerId": "stuck",
        "maxShardCount": 20_000, "assignedShards": assignment["assignedShards"], "generation": assignment["generation"]}});
    let heartbeat = heartbeat.to_string();
    let asking = async {
        // It asks for more than fits between the two, and takes nothing of it.
        while stuck.writer.send(&[heartbeat.as_bytes()]).await.is_ok() {}
    };
    let mut other = connect(address, SocketType::Dealer).await;
    let others = async {
        loop {
            other
                .say(
                    "heartbeat",
                    json!({"serviceName": "mail", "workerId": "o", "maxShardCount": 1,
                "assignedShards": []}),
                )
                .await;
            other.hear_assignment().await;
        }
    };
    tokio::select! {
        () = within(asking) => {}
        () = others => unreachable!("they go on for ever"),
    }
    assert_eq!(counted(&server, "orchestrix_zmq_stuck_total").await, 1);
    server.stop().await;
}

#[tokio::test]
async fn where_there_are_tokens_a_worker_shows_one_in_every_message() {
    let listening = zmq::listen(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listening.address();
    let tokens = Some(Tokens::parse(&tokens_file()).unwrap());
    let options = Options { tokens, zmq: Some(listening), ..Options::default() };
    let server = start_with(options, NodeOptions::default()).await;
    let mut dealer = connect(address, SocketType::Dealer).await;
    let register = |token: Option<String>| {
        let mut data = json!({"serviceName": "orders", "workerId": "a", "maxShardCount": 1});
        if let Some(token) = token {
            data["token"] = token.into();
        }
        data
    };
    for (token, code) in [
        (None, "unauthorized"),
        (Some("nobody".to_owned()), "unauthorized"),
        (Some(secret("read")), "forbidden"),
    ] {
        dealer.say("register", register(token)).await;
        assert_eq!(dealer.hear_error().await.0, code);
    }
    dealer.say("register", register(Some(secret("work")))).await;
    assert_eq!(shares(&dealer.hear_assignment().await), vec![0]);
    server.stop().await;
}

async fn with_tokens(limits: Limits) -> (Server, SocketAddr) {
    let listening = zmq::listen(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listening.address();
    let tokens = Some(Tokens::parse(&tokens_file()).unwrap());
    let options = Options { limits, tokens, zmq: Some(listening), ..Options::default() };
    (start_with(options, NodeOptions::default()).await, address)
}

/// A message of so many bytes.
fn padded(kind: &str, mut data: Value, token: &str, bytes: usize) -> String {
    data["token"] = token.into();
    let mut text = json!({"type": kind, "data": data}).to_string();
    text.push_str(&" ".repeat(bytes.saturating_sub(text.len())));
    text
}

#[tokio::test]
async fn a_worker_with_all_shards_comes_back_with_a_heartbeat() {
    let (server, address) = with_tokens(Limits::default()).await;
    let who = |service: &str| json!({"serviceName": service, "workerId": "a", "session": "a-1", "maxShardCount": 100_000});
    let register = |service: &str| padded("register", who(service), &secret("work"), 0);
    let mut first = connect(address, SocketType::Dealer).await;
    first.writer.send(&[register("orders").as_bytes()]).await.unwrap();
    let assignment = first.hear_assignment().await;
    drop(first);
    let mut data = who("orders");
    data["assignedShards"] = assignment["assignedShards"].clone();
    data["generation"] = assignment["generation"].clone();
    data["seq"] = 7.into();
    let heartbeat = padded("heartbeat", data, &secret("work"), 0);
    assert!(heartbeat.len() > 500_000);
    let mut known = connect(address, SocketType::Dealer).await;
    known.writer.send(&[heartbeat.as_bytes()]).await.unwrap();
    assert_eq!(known.hear_assignment().await["seq"], 7);
    // The same behind a registration that has not been answered yet.
    let mut again = connect(address, SocketType::Dealer).await;
    again.writer.send(&[register("other").as_bytes()]).await.unwrap();
    again.writer.send(&[heartbeat.as_bytes()]).await.unwrap();
    again.hear_assignment().await;
    again.hear_assignment().await;
    server.stop().await;
}

#[tokio::test]
async fn peers_without_a_token_share_room_for_long_messages() {
    let max = 200_000;
    let (server, address) = with_tokens(Limits { zmq_stranger_bytes: max, ..Limits::default() }).await;
    let register = || json!({"serviceName": "orders", "workerId": "a", "maxShardCount": 1});
    let message = |token: &str, bytes: usize| padded("register", register(), token, bytes);
    let mut stranger = connect(address, SocketType::Dealer).await;
    for _ in 0..3 {
        stranger.writer.send(&[message("nobody", max).as_bytes()]).await.unwrap();
        assert_eq!(stranger.hear_error().await.0, "unauthorized", "what was refused makes room");
    }
    stranger.writer.send(&[message("nobody", max + 1).as_bytes()]).await.unwrap();
    let (code, why) = stranger.hear_error().await;
    assert_eq!(code, "invalid");
    assert!(why.contains("200001 bytes") && why.contains("register"), "{why}");
    stranger.is_left().await;
    // One that announces as much as there is, and says nothing.
    let mut silent = TcpStream::connect(address).await.unwrap();
    let mut greeting = bytes_of_a_greeting();
    greeting.push(2);
    greeting.extend_from_slice(&(max as u64).to_be_bytes());
    silent.write_all(&greeting).await.unwrap();
    until_counted(&server, "orchestrix_zmq_connections", 1).await;
    let mut known = connect(address, SocketType::Dealer).await;
    known.writer.send(&[message(&secret("work"), 64 << 10).as_bytes()]).await.unwrap();
    known.hear_assignment().await;
    known.writer.send(&[message(&secret("work"), max + 1).as_bytes()]).await.unwrap();
    known.hear_assignment().await;
    let mut waiting = connect(address, SocketType::Dealer).await;
    waiting.writer.send(&[message(&secret("work"), (64 << 10) + 1).as_bytes()]).await.unwrap();
    drop(silent);
    waiting.hear_assignment().await;
    server.stop().await;
}

async fn until_counted(server: &Server, name: &str, count: u64) {
    within(async { while counted(server, name).await != count {} }).await;
}

/// A ping with a context of so many bytes.
fn ping(context: usize) -> Vec<u8> {
    let length = u8::try_from(7 + context).unwrap();
    [&[4, length, 4][..], b"PING", &[0, 0], &vec![b'c'; context]].concat()
}

#[tokio::test]
async fn a_ping_has_a_context_of_at_most_16_bytes() {
    let (server, address) = usual().await;
    for (context, lives) in [(16, true), (17, false)] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&[bytes_of_a_greeting(), ping(context)].concat()).await.unwrap();
        let pong = [&b"PONG"[..], &vec![b'c'; context]].concat();
        let mut heard = Vec::new();
        let has_pong = |heard: &[u8]| heard.windows(pong.len()).any(|window| window == pong);
        while !has_pong(&heard) && within(stream.read_buf(&mut heard)).await.unwrap() > 0 {}
        assert_eq!(has_pong(&heard), lives, "{context}");
    }
    assert_eq!(counted(&server, "orchestrix_zmq_broken_total").await, 1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_that_reads_no_pongs_is_left() {
    let limits = Limits { write_timeout: Duration::from_millis(300), ..Limits::default() };
    let (server, address) = with_tokens(limits).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&bytes_of_a_greeting()).await.unwrap();
    // Many more than the buffers between the two take.
    let pings = ping(16).repeat(1_000);
    let sent = within(async {
        let mut sent = 0;
        while stream.write_all(&pings).await.is_ok() {
            sent += 1_000;
        }
        sent
    });
    assert!(sent.await > 0);
    until_counted(&server, "orchestrix_zmq_stuck_total", 1).await;
    server.stop().await;
}

#[tokio::test]
async fn half_a_message_and_pings_do_not_hold_a_place() {
    let limits = Limits { body_timeout: Duration::from_millis(300), ..Limits::default() };
    let (server, address) = start(limits, ShardTimes::default()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut greeting = bytes_of_a_greeting();
    // The first of two parts, and never the second.
    greeting.extend_from_slice(&[1, 3, b'a', b'b', b'c']);
    stream.write_all(&greeting).await.unwrap();
    let ping = [&[4, 7, 4][..], b"PING", &[0, 0]].concat();
    let (mut reader, mut writer) = stream.split();
    let pinging = async {
        while writer.write_all(&ping).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let reading = async {
        let mut heard = Vec::new();
        // A reset is an end, too.
        let _ = reader.read_to_end(&mut heard).await;
        String::from_utf8_lossy(&heard).into_owned()
    };
    let heard = tokio::select! {
        heard = within(reading) => heard,
        () = pinging => String::new(),
    };
    assert!(heard.is_empty() || heard.contains("was not complete after 0 s"), "{heard}");
    assert_eq!(counted(&server, "orchestrix_zmq_broken_total").await, 1);
    server.stop().await;
}

/// What a DEALER says first.
fn bytes_of_a_greeting() -> Vec<u8> {
    let mut greeting = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1];
    greeting.extend_from_slice(b"NULL");
    greeting.resize(64, 0);
    let ready = [&[5][..], b"READY", &[11], b"Socket-Type", &[0, 0, 0, 6], b"DEALER"].concat();
    greeting.extend_from_slice(&[4, u8::try_from(ready.len()).unwrap()]);
    greeting.extend_from_slice(&ready);
    greeting
}

#[tokio::test]
async fn one_address_has_as_many_connections_as_allowed() {
    let limits = Limits { zmq_connections_per_ip: 2, ..Limits::default() };
    let (server, address) = start(limits, ShardTimes::default()).await;
    let first = connect(address, SocketType::Dealer).await;
    let _second = connect(address, SocketType::Dealer).await;
    let mut third = TcpStream::connect(address).await.unwrap();
    assert_eq!(within(third.read(&mut [0; 1])).await.unwrap_or(0), 0);
    assert_eq!(counted(&server, "orchestrix_zmq_connections_refused_total").await, 1);
    drop(first);
    let deadline = std::time::Instant::now() + crate::kit::LONG;
    while counted(&server, "orchestrix_zmq_connections").await > 1 {
        assert!(std::time::Instant::now() < deadline, "the place is not free again");
    }
    connect(address, SocketType::Dealer).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_takes_workers_and_tells_them_what_changes() {
    let engine = place();
    let leader = join_as(Arc::new(engine.clone()), "a", true, Options::default()).await;
    leader.leads().await;
    let listening = zmq::listen(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listening.address();
    let options = Options { zmq: Some(listening), ..Options::default() };
    let follower = join_as(Arc::new(engine), "b", true, options).await;
    follower.sees_leader("a").await;
    let (mut a, mut b) =
        (connect(address, SocketType::Dealer).await, connect(address, SocketType::Dealer).await);
    a.register("a", 4).await;
    assert_eq!(shares(&a.hear_assignment().await), vec![0, 1, 2, 3]);
    b.register("b", 4).await;
    let assignment = a.hear_assignment().await;
    assert_eq!(shares(&assignment), vec![0, 1]);
    a.obey("a", 4, &assignment).await;
    assert_eq!(a.hear_assignment().await["seq"], json!(7));
    assert_eq!(shares(&b.hear_assignment().await), vec![2, 3]);
    assert!(metric(&follower, "orchestrix_link_asks_total").await >= 3, "workers are asked about by link");
    // The next leader knows who has what, and believes the same sockets.
    leader.stop().await;
    follower.leads().await;
    a.obey("a", 4, &assignment).await;
    let still = a.hear_assignment().await;
    assert_eq!((shares(&still), &still["tokens"]), (vec![0, 1], &assignment["tokens"]));
    follower.stop().await;
}
