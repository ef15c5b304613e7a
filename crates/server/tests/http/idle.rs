//! What connections cost that do nothing, as a process.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::json;
use tempfile::TempDir;

use crate::process::{PATIENCE, Process, command, spawn};

/// A list of so many failed tasks is as long as a page may be.
const TASKS: usize = 100;
const ERROR_BYTES: usize = 16_000;
const CONNECTIONS: usize = 100;
const GROWTH_KIB_MAX: u64 = 32 << 10;

/// Memory that a process has, in KiB.
fn resident(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn body(answer: &str) -> serde_json::Value {
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

/// Sends a request and reads all of its answer; the connection stays.
fn ask(stream: &mut TcpStream, request: &str) -> usize {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let head = loop {
        let mut more = [0; 16 << 10];
        let read = stream.read(&mut more).unwrap();
        answer.extend_from_slice(&more[..read]);
        if let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let text = String::from_utf8_lossy(&answer[..head]).to_ascii_lowercase();
    assert!(text.starts_with("http/1.1 200"), "{text}");
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut rest = vec![0; length.parse::<usize>().unwrap() - (answer.len() - head)];
    stream.read_exact(&mut rest).unwrap();
    length.parse().unwrap()
}

#[test]
fn idle_connections_do_not_keep_their_longest_answer() {
    let folder = TempDir::new().unwrap();
    let process = spawn(command(&folder.path().join("data")));
    let task = json!({"queue": "q", "payload": 1, "max_attempts": 1});
    let tasks = json!({"tasks": vec![task; TASKS]}).to_string();
    process.send("POST", "/v1/tasks/batch", &tasks);
    let leased = process.send("POST", "/v1/queues/q/lease", r#"{"worker":"w","max":1000,"lease_ms":600000}"#);
    for lease in body(&leased)["leases"].as_array().unwrap() {
        let failed = json!({"lease_id": lease["lease_id"], "error": "x".repeat(ERROR_BYTES)}).to_string();
        process.send("POST", &format!("/v1/tasks/{}/fail", lease["task_id"]), &failed);
    }
    let connect = || {
        let stream = TcpStream::connect(("127.0.0.1", process.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let page = "GET /v1/tasks?limit=1000 HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for _ in 0..10 {
        assert!(ask(&mut connect(), page) > 1_000_000);
    }
    let before = resident(&process);
    let mut idle: Vec<TcpStream> = (0..CONNECTIONS).map(|_| connect()).collect();
    for stream in &mut idle {
        ask(stream, page);
    }
    let grown = resident(&process).saturating_sub(before);
    assert!(grown <= GROWTH_KIB_MAX, "{CONNECTIONS} idle connections keep {grown} KiB");
    for stream in &mut idle {
        ask(stream, "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n");
    }
}
