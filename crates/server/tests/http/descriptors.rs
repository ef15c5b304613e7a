//! `orchestrix serve` with few open files.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde_json::json;
use tempfile::TempDir;

use crate::process::{PATIENCE, Process, command, spawn, task, wait_until};

/// What the process may open.
const FILES: usize = 256;
/// Each has about 800 KiB of payloads: all of them together need more segments than a start prepares.
const SUBMITS: usize = 24;

/// Starts a coordinator under a limit of open files, as `ulimit` takes it.
fn spawn_limited(folder: &TempDir, limit: &str, arguments: &[&str]) -> Process {
    let serve = command(&folder.path().join("data"));
    let mut limited = Command::new("/bin/sh");
    limited.env_clear().args(["-c", &format!("{limit} && exec \"$0\" \"$@\"")]);
    limited.arg(serve.get_program()).args(serve.get_args()).args(arguments);
    limited.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    spawn(limited)
}

fn open_files(process: &Process) -> usize {
    std::fs::read_dir(Path::new("/proc").join(process.child.id().to_string()).join("fd")).unwrap().count()
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Whether the other end has said something or is gone.
fn is_answered(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    stream.peek(&mut [0]).is_ok()
}

fn submit(stream: &mut TcpStream) -> String {
    let task = json!({ "queue": "q", "payload": "x".repeat(40_000) });
    let body = json!({ "tasks": vec![task; 20] }).to_string();
    let head = format!(
        "POST /v1/tasks/batch HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn connections_leave_the_journal_its_files() {
    let folder = TempDir::new().unwrap();
    let arguments = ["--zmq", "tcp://127.0.0.1:0", "--snapshot-after", "1MiB"];
    let process = spawn_limited(&folder, &format!("ulimit -n {FILES}"), &arguments);
    let workers: Vec<TcpStream> = (0..SUBMITS).map(|_| connect(process.port)).collect();
    // They say nothing: nobody knows whether they have a token.
    let strangers: Vec<[TcpStream; 2]> =
        (0..FILES).map(|_| [connect(process.port), connect(process.zmq_port())]).collect();
    let last = strangers.last().unwrap();
    wait_until("every stranger has a connection or was sent away", || {
        (open_files(&process) >= FILES || last.iter().all(is_answered)).then_some(())
    });
    for mut worker in workers {
        let answer = submit(&mut worker);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer:.300}");
    }
    drop(strangers);
    wait_until("others are let in again", || {
        submit(&mut connect(process.port)).starts_with("HTTP/1.1 200").then_some(())
    });
}

/// The whole machine may have no files left, whatever this process has kept.
#[test]
fn without_file_descriptors_it_waits_and_the_journal_goes_on() {
    let folder = TempDir::new().unwrap();
    let mut process = spawn(command(&folder.path().join("data")));
    // Each is served before there are too few files.
    let workers = [(); 4].map(|()| {
        let mut worker = connect(process.port);
        worker.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        wait_until("it is answered", || is_answered(&worker).then_some(()));
        worker.set_nonblocking(false).unwrap();
        worker
    });
    let few = Rlimit { current: Some(32), maximum: Some(32) };
    prlimit(Some(Pid::from_child(&process.child)), Resource::Nofile, few).unwrap();
    let crowd: Vec<TcpStream> = (0..100).map(|_| connect(process.port)).collect();
    let mut log = BufReader::new(process.child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("cannot accept a connection") {
        line.clear();
        assert!(log.read_line(&mut line).unwrap() > 0, "it ended");
    }
    // More than a segment holds: the next one was prepared before.
    for mut worker in workers {
        let answer = submit(&mut worker);
        assert!(answer.contains("HTTP/1.1 200") && answer.contains("WAITING"), "{answer:.600}");
    }
    drop(crowd);
    // A segment that could not be prepared meanwhile is no full disk, and nobody is refused because of it.
    let answer = process.send("POST", "/v1/tasks", &task("q"));
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    process.signal(Signal::TERM);
    assert_eq!(process.wait(), Some(0));
}

/// The defaults are as many as the machine allows; only a wish of the operator that cannot be met is worth a warning.
#[test]
fn only_chosen_limits_that_are_lowered_are_logged() {
    for (arguments, is_logged) in [(&[][..], false), (&["--max-connections", "5000"][..], true)] {
        let folder = TempDir::new().unwrap();
        let mut process = spawn_limited(&folder, "ulimit -n 1000", arguments);
        process.signal(Signal::TERM);
        assert_eq!(process.wait(), Some(0));
        let mut log = String::new();
        process.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        assert_eq!(log.contains("the limit of open files is too low"), is_logged, "{log}");
        assert_eq!(log.contains("open_files"), is_logged, "{log}");
    }
}

#[test]
fn the_limit_of_open_files_is_raised_as_far_as_it_may_be() {
    let folder = TempDir::new().unwrap();
    let process = spawn_limited(&folder, "ulimit -Sn 100 && ulimit -Hn 1000", &[]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", process.child.id())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<&str> = files.split_whitespace().skip(3).take(2).collect();
    assert_eq!(numbers, ["1000", "1000"]);
}
