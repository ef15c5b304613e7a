//! Processes on one engine: what they must not share, and what they say while it does not answer.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use orchestrix_testbed::{Server, redis};
use orchestrix_zmtp::SocketType;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::access::{secret, tokens_file};
use crate::kit::within;
use crate::process::{Process, command, refused, spawn, wait_until};
use crate::zmq::greet;

/// A Redis server, and nodes on it.
struct Redis(Server);

impl Redis {
    fn start() -> Self {
        Self(Server::start(redis(&[])).unwrap())
    }

    /// Sets how many bytes it may have; 0 is no limit.
    fn limit(&self, bytes: u64) {
        let mut connection = TcpStream::connect(self.0.address()).unwrap();
        write!(connection, "CONFIG SET maxmemory {bytes}\r\n").unwrap();
        let mut answer = [0; 5];
        connection.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"+OK\r\n");
    }

    fn signal(&self, signal: Signal) {
        self.0.signal(signal).unwrap();
    }

    /// A node on it, with a folder and a name.
    fn node(&self, data: &str, name: &str, ttl: &str) -> Command {
        let mut command = command(&self.0.folder().join(data));
        let engine = format!("redis://{}", self.0.address());
        command.args(["--engine", &engine, "--node", name, "--leader-ttl", ttl, "--log", "error"]);
        command
    }
}

fn leads(process: &Process, name: &str) {
    let led = format!("\"leader\":\"{name}\"");
    wait_until("it leads", || process.send("GET", "/v1/cluster", "").contains(&led).then_some(()));
}

fn body(answer: &str) -> Value {
    serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap()
}

#[test]
fn two_processes_have_neither_one_folder_nor_one_name() {
    let redis = Redis::start();
    let mut first = spawn(redis.node("one", "n1", "900ms"));
    leads(&first, "n1");
    let (code, why) = refused(redis.node("one", "n2", "900ms"));
    assert_eq!(code, 1);
    assert!(why.contains("another process is using") && why.contains("choose another data folder"), "{why}");

    let ended = redis.node("two", "n1", "900ms").output().unwrap();
    let why = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{why}");
    let other = format!("another node named n1 is alive, at http://127.0.0.1:{}:", first.port);
    assert!(why.contains(&other) && why.contains("--node NAME"), "{why}");

    // One that was killed has its folder and its name again at once.
    first.signal(Signal::KILL);
    first.wait();
    let mut again = spawn(redis.node("one", "n1", "900ms"));
    leads(&again, "n1");
    let answer = again.send("POST", "/v1/tasks", r#"{"queue":"q","payload":1}"#);
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    again.signal(Signal::TERM);
    assert_eq!(again.wait(), Some(0));
}

#[test]
fn a_silent_engine_leaves_output_unknown_and_the_node_up() {
    let redis = Redis::start();
    let mut node = spawn(redis.node("one", "n1", "60s"));
    leads(&node, "n1");
    node.send("POST", "/v1/tasks", r#"{"queue":"q","payload":1}"#);
    let leased = body(&node.send("POST", "/v1/queues/q/lease", r#"{"worker":"w","lease_ms":60000}"#));
    let (task, lease) = (&leased["leases"][0]["task_id"], &leased["leases"][0]["lease_id"]);
    let path = format!("/v1/tasks/{task}/logs");
    let lines = |offset: u64, text: &str| {
        json!({ "lease_id": lease, "offset": offset, "lines": [{ "text": text }] }).to_string()
    };
    assert!(node.send("POST", &path, &lines(0, "one")).starts_with("HTTP/1.1 200"));
    // Nothing is being written: an answer would wait for that.
    wait_until("the format is raised, and the node has joined the bus", || {
        node.send("GET", "/v1/cluster", "").contains("\"position\":5").then_some(())
    });

    redis.signal(Signal::STOP);
    let sent = node.send("POST", &path, &lines(1, "two"));
    let read = node.send("GET", &path, "");
    redis.signal(Signal::CONT);
    for (answer, code) in [(&sent, "outcome_unknown"), (&read, "overloaded")] {
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("retry-after: "), "{answer}");
        assert_eq!(body(answer)["code"], code, "{answer}");
    }

    let again = wait_until("the engine answers", || {
        let answer = node.send("POST", &path, &lines(1, "two"));
        answer.starts_with("HTTP/1.1 200").then_some(answer)
    });
    assert_eq!(body(&again)["next"], 2);
    let page = body(&node.send("GET", &path, ""));
    let texts: Vec<&Value> = page["lines"].as_array().unwrap().iter().map(|line| &line["text"]).collect();
    assert_eq!(texts, ["one", "two"]);
    let cluster = node.send("GET", "/v1/cluster", "");
    assert!(cluster.contains("\"epoch\":1"), "it was one term: {cluster}");
    node.signal(Signal::TERM);
    assert_eq!(node.wait(), Some(0));
}

const SUBMIT: &str = r#"{"queue":"q","payload":1}"#;

#[test]
fn a_full_engine_is_said_to_be_full_and_new_work_is_refused() {
    let redis = Redis::start();
    let mut node = spawn(redis.node("one", "n1", "60s"));
    leads(&node, "n1");
    assert!(node.send("POST", "/v1/tasks", SUBMIT).starts_with("HTTP/1.1 201"));
    redis.limit(1);
    std::thread::scope(|scope| {
        // Nobody knows before the first write.
        let first = scope.spawn(|| node.send("POST", "/v1/tasks", SUBMIT));
        let full = format!(
            "the engine is full and refuses writes: no space left in redis://127.0.0.1:{}",
            redis.0.port()
        );
        wait_until("it is not ready", || node.send("GET", "/ready", "").contains(&full).then_some(()));
        let refused = node.send("POST", "/v1/tasks", SUBMIT);
        assert!(refused.starts_with("HTTP/1.1 507"), "{refused}");
        assert_eq!(body(&refused)["code"], "storage_full");
        let cluster = body(&node.send("GET", "/v1/cluster", ""));
        assert!(cluster["why"][0].as_str().unwrap().contains(&full), "{cluster}");
        redis.limit(0);
        let first = first.join().unwrap();
        assert!(first.starts_with("HTTP/1.1 201"), "what waited is written when there is room: {first}");
    });
    wait_until("it is ready", || node.send("GET", "/ready", "").starts_with("HTTP/1.1 200").then_some(()));
    let answer = node.send("POST", "/v1/tasks", SUBMIT);
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    node.signal(Signal::TERM);
    assert_eq!(node.wait(), Some(0));
}

#[test]
fn a_node_that_is_not_ready_says_so_on_the_leader_route() {
    let redis = Redis::start();
    let node = spawn(redis.node("one", "n1", "60s"));
    leads(&node, "n1");
    assert!(node.send("POST", "/v1/tasks", SUBMIT).starts_with("HTTP/1.1 201"));
    redis.signal(Signal::STOP);
    std::thread::scope(|scope| {
        scope.spawn(|| node.send("POST", "/v1/tasks", SUBMIT));
        let why = wait_until("it is not well", || {
            let cluster = body(&node.send("GET", "/v1/cluster", ""));
            cluster["why"][0].as_str().map(str::to_owned)
        });
        redis.signal(Signal::CONT);
        assert!(why.starts_with("this node is not ready: "), "{why}");
    });
}

#[test]
fn a_node_is_never_shown_as_dead_and_leading_at_once() {
    let redis = Redis::start();
    let first = spawn(redis.node("one", "n1", "2s"));
    leads(&first, "n1");
    let second = spawn(redis.node("two", "n2", "2s"));
    let both = || second.send("GET", "/v1/cluster", "").matches("ACTIVE").count() == 2;
    wait_until("both are there", || both().then_some(()));
    // No node can renew, write its presence, or take the leader lease.
    redis.limit(1);
    wait_until("nobody leads", || {
        let cluster = body(&second.send("GET", "/v1/cluster", ""));
        for node in cluster["nodes"].as_array().unwrap() {
            assert!(node["role"] != "leader" || node["state"] == "ACTIVE", "{cluster}");
        }
        cluster["leader"].is_null().then_some(())
    });
}

/// Connects from another address of this machine.
async fn connect_from(from: &str, port: u16) -> tokio::net::TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    socket.connect(([127, 0, 0, 1], port).into()).await.unwrap()
}

async fn ask_from(from: &str, port: u16, request: String) -> String {
    let mut stream = connect_from(from, port).await;
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.unwrap();
    answer
}

/// A worker of a service comes over ZeroMQ, from another address of this machine.
async fn register_from(from: &str, node: &Process, service: &str) {
    let mut dealer = greet(connect_from(from, node.zmq_port()).await, SocketType::Dealer).await;
    let token = secret("admin");
    let data = json!({"serviceName": service, "workerId": "w", "maxShardCount": 1, "token": token});
    dealer.say("register", data).await;
    assert_eq!(dealer.hear_assignment().await["assignedShards"], json!([0]));
}

#[tokio::test]
async fn the_leader_logs_the_address_of_the_caller() {
    let redis = Redis::start();
    let tokens = redis.0.folder().join("tokens.toml");
    std::fs::write(&tokens, tokens_file()).unwrap();
    let node_token = redis.0.folder().join("node-token");
    std::fs::write(&node_token, secret("node")).unwrap();
    for path in [&tokens, &node_token] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let node = |name: &str| {
        let mut node = command(&redis.0.folder().join(name));
        let engine = format!("redis://{}", redis.0.address());
        node.args(["--engine", &engine, "--node", name, "--leader-ttl", "60s", "--tokens"]);
        node.arg(&tokens).args(["--zmq", "tcp://127.0.0.1:0", "--node-token"]).arg(&node_token);
        node
    };
    let mut first = spawn(node("n1"));
    let admin = format!("authorization: Bearer {}\r\n", secret("admin"));
    wait_until("it leads", || {
        first.send_with("GET", "/v1/cluster", &admin, "").contains("\"leader\":\"n1\"").then_some(())
    });
    let mut second = spawn(node("n2"));
    let asked = |from: &'static str, port: u16, task: u32, forged: &str| {
        let request = format!(
            "POST /v1/tasks/{task}/cancel HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{admin}{forged}content-length: 0\r\n\r\n"
        );
        ask_from(from, port, request)
    };
    let answer = asked("127.0.0.2", second.port, 71, "").await;
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    let forged =
        "orchestrix-caller-address: 10.0.0.1\r\norchestrix-node-authorization: Bearer orx_canary_work\r\n";
    asked("127.0.0.3", first.port, 72, forged).await;
    asked("127.0.0.4", second.port, 73, forged).await;
    register_from("127.0.0.5", &first, "here").await;
    register_from("127.0.0.6", &second, "there").await;
    let log_of = |node: &mut Process| {
        node.signal(Signal::TERM);
        assert_eq!(node.wait(), Some(0));
        let mut log = String::new();
        node.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        log
    };
    // A registration may wait, so it goes by link, and the node that took it logs it.
    let taken_by_second = log_of(&mut second);
    let log = log_of(&mut first);
    for (task, peer) in [(71, "127.0.0.2"), (72, "127.0.0.3"), (73, "127.0.0.4")] {
        let line = log.lines().find(|line| line.contains(&format!("/v1/tasks/{task}/cancel")));
        assert!(line.is_some_and(|line| line.contains(&format!("peer={peer} "))), "{task}: {log}");
    }
    for (log, service, peer) in [(&log, "here", "127.0.0.5"), (&taken_by_second, "there", "127.0.0.6")] {
        let line = log.lines().find(|line| line.contains(&format!("/v1/services/{service}/workers/w/")));
        assert!(line.is_some_and(|line| line.contains(&format!("peer={peer} "))), "{service}: {log}");
    }
}
