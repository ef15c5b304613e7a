//! The client of seed 003, word for word (`seed003.ts`), over real `zeromq`: it reads one assignment and never lets go.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use orchestrix_testbed::eventually;
use tempfile::TempDir;

use crate::coordinator::ShardCoordinator;
use crate::support::Running;

/// What the usage at the end of the client names.
const SERVICE: &str = "my-service";
const SHARDS: usize = 100;

/// Each starts so long after the one before.
const APART: Duration = Duration::from_secs(2);

struct Client {
    _running: Running,
    out: PathBuf,
    /// The client as it is started, beside the library that it imports.
    script: PathBuf,
}

impl Client {
    /// Only the name of the worker and the address are others than in the seed.
    fn start(folder: &Path, address: &str, name: &str) -> Self {
        let build = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../.tools/workers/typescript/build")
            .canonicalize();
        let build = build.expect("run scripts/workers first");
        let client = std::fs::read_to_string(build.join("seed003.js")).expect("run scripts/workers first");
        assert!(client.contains("'worker-1'") && client.contains("'tcp://localhost:5555'"));
        let client = client.replace("'worker-1'", &format!("'{name}'"));
        let client = client.replace("'tcp://localhost:5555'", &format!("'{address}'"));
        let script = build.join(format!("seed003-{}-{name}.js", std::process::id()));
        std::fs::write(&script, client).unwrap();
        let out = folder.join(format!("{name}.out"));
        let mut command = Command::new("node");
        command.arg(&script).stdin(Stdio::null());
        command.stdout(File::create(&out).unwrap()).stderr(File::create(folder.join("errors")).unwrap());
        Self { _running: Running(command.spawn().unwrap()), out, script }
    }

    /// What it says it was assigned, once it was.
    fn assigned(&self) -> Option<BTreeSet<u32>> {
        let text = std::fs::read_to_string(&self.out).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("Assigned shards:"))?;
        Some(line.split(',').filter_map(|shard| shard.trim().parse().ok()).collect())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It is only a copy; the folder is made anew from time to time.
        drop(std::fs::remove_file(&self.script));
    }
}

#[test]
fn three_clients_of_the_seed_two_seconds_apart_all_get_a_share() {
    // The times of the seed: a lease of 15 seconds, heartbeats every 10.
    let coordinator = ShardCoordinator::of_the_seed();
    let folder = TempDir::new().unwrap();
    let start = |name: &str| Client::start(folder.path(), &coordinator.tcp(), name);
    let first = start("worker-1");
    eventually("the first has all", || first.assigned().filter(|assigned| assigned.len() == SHARDS));
    // Two seconds apart is what they are about: the second comes between two heartbeats of the first.
    let mut clients = vec![first];
    for name in ["worker-2", "worker-3"] {
        let began = Instant::now();
        eventually("two seconds go by", || (began.elapsed() >= APART).then_some(()));
        clients.push(start(name));
    }
    let assigned =
        eventually("all are answered", || clients.iter().map(Client::assigned).collect::<Option<Vec<_>>>());
    let shares: Vec<usize> = assigned.iter().map(BTreeSet::len).collect();
    assert_eq!(shares, [SHARDS, 33, 33], "what each read, and goes by");
    let mut held: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for (shard, worker) in coordinator.holders(SERVICE) {
        held.entry(worker).or_default().insert(shard);
    }
    let shares: Vec<(&str, usize)> =
        held.iter().map(|(worker, held)| (worker.as_str(), held.len())).collect();
    assert_eq!(shares, [("worker-1", 34), ("worker-2", 33), ("worker-3", 33)]);
    assert_eq!((&held["worker-2"], &held["worker-3"]), (&assigned[1], &assigned[2]));
    assert_eq!(coordinator.metric("orchestrix_shards_overruled_total"), Some(66));
    // The first says for ever that it serves all of them, and is marked.
    eventually("the first is marked", || {
        let shown = coordinator.run(&["shards", SERVICE]);
        let marked: Vec<&str> = shown.lines().filter(|line| line.contains("does not listen")).collect();
        matches!(marked[..], [line] if line.contains("worker-1")).then_some(())
    });
    assert_eq!(coordinator.metric("orchestrix_shards_overlapping"), Some(66));
}
