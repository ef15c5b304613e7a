//! Processes on one engine: what they must not share, and what they say while it does not answer.

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::{Process, command, refused, spawn, wait_until};

/// A Redis server of its own; killed when it is dropped.
struct Redis {
    child: Child,
    port: u16,
    folder: TempDir,
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Redis {
    fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let port = orchestrix_ports::free_port();
        let mut redis = Command::new("redis-server");
        redis.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]);
        let child = redis.arg(folder.path()).stdout(Stdio::null()).spawn().unwrap();
        wait_until("Redis answers", || TcpStream::connect(("127.0.0.1", port)).ok());
        Self { child, port, folder }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// A node on it, with a folder and a name.
    fn node(&self, data: &str, name: &str, ttl: &str) -> Command {
        let mut command = command(&self.folder.path().join(data));
        let engine = format!("redis://127.0.0.1:{}", self.port);
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
fn while_the_engine_does_not_answer_output_is_unknown_or_asked_for_again_and_the_node_goes_on() {
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
