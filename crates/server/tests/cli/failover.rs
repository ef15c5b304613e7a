//! What people see of a leader that is killed: nothing but a wait.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use orchestrix_testbed::{SYNCED, Server, eventually, redis};

use crate::support::{Coordinator, Running, text};

/// Lines of the command: it writes them while one leader is killed and until the next one leads.
const LINES: usize = 120;
/// Seconds of the leader's time. A lease is as much longer as it is by default.
const TTL: u64 = 6;

/// Three nodes on one Redis server.
struct Cluster {
    nodes: Vec<Coordinator>,
    _redis: Server,
}

impl Cluster {
    fn start() -> Self {
        let redis = Server::start(redis(&SYNCED)).unwrap();
        let engine = format!("redis://{}", redis.address());
        let start = |n: usize| {
            let mut node = Coordinator::prepared();
            let (name, ttl) = (format!("n{n}"), format!("{TTL}s"));
            node.launch_with(&["--engine", &engine, "--node", &name, "--leader-ttl", &ttl]);
            node
        };
        let cluster = Self { nodes: (0..3).map(start).collect(), _redis: redis };
        eventually("all nodes know each other", || {
            let known = cluster.nodes[0].json(&["nodes"]).remove(0);
            (known["nodes"].as_array()?.len() == 3 && known["leader"].is_string()).then_some(())
        });
        cluster
    }

    fn urls(&self) -> String {
        self.nodes.iter().map(Coordinator::url).collect::<Vec<_>>().join(",")
    }

    fn leader(&self) -> usize {
        let cluster = self.nodes[0].json(&["nodes"]).remove(0);
        cluster["leader"].as_str().unwrap().strip_prefix('n').unwrap().parse().unwrap()
    }
}

/// Seconds that an option has by default, as its help says.
fn default_of(node: &Coordinator, command: &str, option: &str) -> u64 {
    let help = text(&node.run(&[command, "--help"]).stdout);
    let words: Vec<&str> = help.split_whitespace().collect();
    let words = words.join(" ");
    let about = words.split(&format!(" {option} <TIME> ")).nth(1).unwrap();
    let seconds = about.split("[default: ").nth(1).unwrap().split("s]").next().unwrap();
    seconds.parse().unwrap()
}

#[test]
fn a_transfer_of_leadership_names_the_new_leader() {
    let cluster = Cluster::start();
    let (before, node) = (cluster.leader(), &cluster.nodes[0]);
    let (from, to) = (format!("n{before}"), format!("n{}", (before + 1) % 3));
    let passed = node.run(&["nodes", "--lead", &to, "--force", "--url", &cluster.urls()]);
    let told = text(&passed.stderr);
    assert_eq!(passed.status.code(), Some(0), "{told}");
    assert!(told.contains(&format!("leadership moved from {from} to {to}")), "{told}");
    assert!(told.contains(&format!("leader {to}:")), "{told}");
    let again = node.json(&["nodes", "--lead", &from, "--force", "--url", &cluster.urls()]).remove(0);
    assert_eq!(again["leader"], from.as_str());
}

#[test]
fn a_killed_leader_costs_neither_attempts_nor_lines_nor_calls() {
    let mut cluster = Cluster::start();
    let urls = cluster.urls();
    let id = cluster.nodes[0].submit(&["q", "1"]);
    let script = format!("for n in $(seq {LINES}); do echo line $n; sleep 0.1; done");
    let [lease, ttl] = [("work", "--lease"), ("serve", "--leader-ttl")]
        .map(|(command, option)| default_of(&cluster.nodes[0], command, option));
    let lease = format!("{}s", TTL * lease / ttl);
    let _worker = cluster.nodes[0].work(&["q", "--url", &urls, "--lease", &lease, "--", "sh", "-c", &script]);
    let mut follow = cluster.nodes[0].command(&["logs", &id, "-f", "--url", &urls]);
    let mut follow = Running(follow.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(follow.0.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "line 1");
    let leader = cluster.leader();
    cluster.nodes[leader].kill();
    let submitted = cluster.nodes[0].run(&["submit", "other", "1", "--url", &urls]);
    let told = text(&submitted.stderr);
    assert_eq!(submitted.status.code(), Some(0), "{told}");
    assert!(told.is_empty() || told == "no leader yet, waiting…\n", "{told}");
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    let all: Vec<String> = (2..=LINES).map(|n| format!("line {n}")).collect();
    assert_eq!(rest, all);
    assert_eq!(follow.0.wait().unwrap().code(), Some(0));
    let survivor = cluster.nodes[0].json(&["task", &id, "--url", &urls]).remove(0);
    assert_eq!((&survivor["state"], &survivor["attempt"]), (&"COMPLETED".into(), &1.into()));
}
