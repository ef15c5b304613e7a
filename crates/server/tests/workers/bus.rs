//! Workers of the bus in two languages, which know a Redis server and no node: with one node, and with three that stop or die. The
//! users of nodes and workers have exactly the rights of the page.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use orchestrix_testbed::{Server, eventually, redis};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::{Coordinator, Running, is_alive};

const PAGE: &str = include_str!("../../../../docs/bus.md");

/// Times that suit a test: an owner that is gone is noticed soon.
const SOON: [&str; 6] =
    ["--cluster-heartbeat-interval", "500ms", "--cluster-dead-node-timeout", "2s", "--leader-ttl", "1500ms"];

struct Bus {
    server: Server,
    folder: TempDir,
}

impl Bus {
    fn start() -> Self {
        let server = Server::start(redis(&["--appendonly", "yes"])).unwrap();
        let bus = Self { server, folder: TempDir::new().unwrap() };
        for user in ["orchestrix", "worker"] {
            let line = PAGE.lines().find(|line| line.starts_with(&format!("ACL SETUSER {user} on"))).unwrap();
            assert_eq!(bus.ask(&line.replace("PASSWORD", "secret")), "+OK\r\n");
        }
        bus
    }

    fn url(&self, user: &str) -> String {
        format!("redis://{user}:secret@127.0.0.1:{}", self.server.port())
    }

    /// What the server answers to a command.
    fn ask(&self, command: &str) -> String {
        let mut stream = TcpStream::connect(self.server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.strip_suffix("+OK\r\n").unwrap_or(&answer).to_owned()
    }

    /// A node on its own, on files.
    fn node(&self) -> Coordinator {
        let mut node = Coordinator::prepared();
        node.launch_with(&["--zmq", "off", "--bus", &self.url("orchestrix")]);
        node
    }

    /// Three nodes on an engine that carries the bus; the first one leads.
    fn cluster(&self) -> [Coordinator; 3] {
        let engine = format!("redis://127.0.0.1:{}", self.server.port());
        let mut nodes = [(); 3].map(|()| Coordinator::prepared());
        for (n, node) in nodes.iter_mut().enumerate() {
            let name = format!("n{}", n + 1);
            let mut options = vec!["--zmq", "off", "--engine", &engine, "--node", &name];
            options.extend(SOON);
            node.launch_with(&options);
        }
        nodes
    }

    fn worker(&self, program: &mut Command, slots: &str) -> Running {
        let errors = File::create(self.folder.path().join("worker.err")).unwrap();
        program.args([&self.url("worker"), "mail"]);
        let python = program.get_program().to_string_lossy().contains("python");
        if python {
            program.arg("--slots");
        }
        program.arg(slots).stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        Running(program.spawn().unwrap())
    }

    fn python(&self, slots: &str) -> Running {
        let mut python = Command::new(installed("python/bin/python"));
        self.worker(python.arg(root().join("examples/python/bus_worker.py")), slots)
    }

    fn typescript(&self, slots: &str) -> Running {
        self.worker(Command::new("node").arg(installed("typescript/build/bus_worker.js")), slots)
    }

    /// Until no task has a channel.
    fn until_closed(&self) {
        eventually("no channel is left", || {
            (self.ask("KEYS orchestrix.job.[0-9]*") == "*0\r\n").then_some(())
        });
    }
}

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn installed(path: &str) -> std::path::PathBuf {
    let path = root().join(".tools/workers").join(path);
    assert!(path.exists(), "{} is missing: run scripts/workers", path.display());
    path
}

/// Every task has ended well, and at the first attempt.
fn all_completed_at_once(node: &Coordinator, ids: &[String]) {
    for id in ids {
        node.wait_for_state(id, "COMPLETED");
        let task = node.task(id);
        assert_eq!(task["attempts"].as_array().map(Vec::len), Some(1), "{task}");
    }
}

/// A number that a node tells of itself.
fn metric(node: &Coordinator, name: &str) -> Option<u64> {
    let metrics = node.get("/metrics")?;
    metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

fn completes(bus: &Bus, worker: impl FnOnce(&Bus) -> Running, name: &str) {
    let (node, mut worker) = (bus.node(), worker(bus));
    let ids: Vec<String> = (0..12).map(|_| node.submit(&["mail", r#"{"lines":5}"#])).collect();
    all_completed_at_once(&node, &ids);
    let task = node.task(&ids[0]);
    assert!(task["result"]["worker"].as_str().unwrap().starts_with(name), "{task}");
    let logs = String::from_utf8(node.run(&["logs", &ids[11]]).stdout).unwrap();
    assert_eq!(logs, "line 0\nline 1\nline 2\nline 3\nline 4\n");
    let fails = node.submit(&["mail", r#"{"fail":"no such address"}"#, "--max-attempts", "1"]);
    node.wait_for_state(&fails, "FAILED");
    assert!(node.task(&fails).to_string().contains("no such address"));
    let cancelled = node.submit(&["mail", r#"{"seconds":60}"#]);
    eventually("it runs", || node.task(&cancelled)["lease"]["worker"].as_str().map(drop));
    assert!(node.run(&["cancel", &cancelled]).status.success());
    node.wait_for_state(&cancelled, "CANCELLED");
    bus.until_closed();
    // A worker that is told to go finishes what it has.
    let last = node.submit(&["mail", r#"{"seconds":1}"#]);
    eventually("it runs", || node.task(&last)["lease"]["worker"].as_str().map(drop));
    worker.signal(Signal::TERM);
    all_completed_at_once(&node, &[last]);
    let ended = eventually("the worker ends", || worker.0.try_wait().unwrap());
    assert!(ended.success(), "{ended}");
}

#[test]
fn a_python_worker_needs_only_the_bus() {
    completes(&Bus::start(), |bus| bus.python("4"), "py-");
}

#[test]
fn a_typescript_worker_needs_only_the_bus() {
    completes(&Bus::start(), |bus| bus.typescript("4"), "ts-");
}

#[test]
fn a_node_that_stops_hands_over_and_one_that_dies_is_noticed() {
    let bus = Bus::start();
    let [mut first, mut second, third] = bus.cluster();
    // Each knows of the others by then.
    for node in [&first, &second, &third] {
        eventually("it reports", || (metric(node, "orchestrix_bus_reports_total")? > 2).then_some(()));
    }
    let _worker = bus.python("20");
    let ids: Vec<String> = (0..20).map(|_| first.submit(&["mail", r#"{"seconds":12,"lines":2}"#])).collect();
    let owned = |node: &str| {
        let nodes = &first.json(&["nodes"])[0]["nodes"];
        let found = nodes.as_array().unwrap().iter().find(|found| found["name"] == node);
        found.and_then(|found| found["load"].as_u64()).unwrap_or(0)
    };
    eventually("both followers own some", || (owned("n2") > 0 && owned("n3") > 0).then_some(()));
    kill_process(Pid::from_raw(third.pid().cast_signed()).unwrap(), Signal::TERM).unwrap();
    // Whoever follows a task sees what its owner has stored, on whatever node.
    let mut follower = first.command(&["logs", &ids[0], "--follow"]);
    let mut follower = Running(follower.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap());
    let mut two = [0; 14];
    follower.0.stdout.take().unwrap().read_exact(&mut two).unwrap();
    assert_eq!((&two, &*first.state(&ids[0])), (b"line 0\nline 1\n", "LEASED"));
    let pid = third.pid().to_string();
    eventually("the third gave all away and is gone", || (!is_alive(&pid)).then_some(()));
    second.kill();
    let adopts = || (metric(&first, "orchestrix_bus_adopted_total")? > 0).then_some(());
    eventually("the first has adopted what is left", adopts);
    all_completed_at_once(&first, &ids);
    let logs = String::from_utf8(first.run(&["logs", &ids[0]]).stdout).unwrap();
    assert_eq!(logs, "line 0\nline 1\n");
    bus.until_closed();
    first.kill();
}
