//! A worker as a process of its own, in one of three languages, that tells what it does in lines of JSON.

#[path = "../../../client/examples/shard_worker.rs"]
#[expect(dead_code, reason = "an example has a main of its own")]
mod shard_worker;

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;

use crate::support::Running;

/// Tells this program, started by itself, that it is a worker: its arguments with spaces between.
const WORKER: &str = "ORCHESTRIX_TEST_WORKER";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    Rust,
    TypeScript,
    Python,
    /// In TypeScript: reads one assignment, and counts no time.
    Plain,
}

/// One line of a worker.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Line {
    /// Nanoseconds of the monotonic clock.
    pub(crate) at: u64,
    pub(crate) event: Event,
    pub(crate) shard: u32,
    pub(crate) token: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Event {
    Serve,
    Use,
    Stop,
}

/// A worker that runs, or ran.
pub(crate) struct Process {
    pub(crate) name: String,
    running: Running,
    out: PathBuf,
}

impl Process {
    /// Starts a worker of ten shards, or of as many as are said; its lines go to a file in the folder.
    pub(crate) fn start(
        language: Language,
        folder: &Path,
        address: &str,
        service: &str,
        name: &str,
        shards: u32,
    ) -> Self {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let shards = shards.to_string();
        let arguments = [address, service, name, &shards];
        let mut command = command(language, &arguments);
        let started = STARTED.fetch_add(1, Ordering::Relaxed);
        let out = folder.join(format!("{name}-{started}.out"));
        let errors = File::create(folder.join(format!("{name}-{started}.err"))).unwrap();
        command.stdin(Stdio::null()).stdout(File::create(&out).unwrap()).stderr(errors);
        let name = name.to_owned();
        Self { name, running: Running(command.spawn().unwrap()), out }
    }

    /// All that it told so far. The last line of one that was killed may be half a line.
    pub(crate) fn lines(&self) -> Vec<Line> {
        let text = std::fs::read_to_string(&self.out).unwrap();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// What it serves, if it is to be believed.
    pub(crate) fn serves(&self) -> BTreeSet<u32> {
        let mut serves = BTreeSet::new();
        for line in self.lines() {
            match line.event {
                Event::Serve => assert!(serves.insert(line.shard), "{} serves {line:?} twice", self.name),
                Event::Stop => assert!(serves.remove(&line.shard), "{} stops {line:?} in vain", self.name),
                Event::Use => assert!(serves.contains(&line.shard), "{} uses {line:?}", self.name),
            }
        }
        serves
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.running.signal(signal);
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.running.0.try_wait().unwrap()
    }
}

/// The clock of all workers, in nanoseconds.
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap()
}

fn command(language: Language, arguments: &[&str]) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let tools = root.join(".tools/workers");
    let installed = |path: &str| {
        let path = tools.join(path);
        assert!(path.exists(), "{} is missing: run scripts/workers", path.display());
        path
    };
    match language {
        Language::Rust => {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "process::a_worker_in_rust", "--nocapture", "-q"]);
            command.env(WORKER, arguments.join(" "));
            command
        }
        Language::TypeScript | Language::Plain => {
            let plain = language == Language::Plain;
            let script = if plain { "typescript/build/plain.js" } else { "typescript/build/worker.js" };
            let mut command = Command::new("node");
            command.arg(installed(script)).args(arguments);
            if plain {
                // Seconds between two heartbeats.
                command.arg("0.5");
            }
            command
        }
        Language::Python => {
            let mut command = Command::new(installed("python/bin/python"));
            command.arg(root.join("examples/python/worker.py")).args(arguments);
            command
        }
    }
}

/// What the worker in Rust runs; for a test it is nothing.
#[test]
fn a_worker_in_rust() {
    let Ok(arguments) = std::env::var(WORKER) else { return };
    let arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(shard_worker::serve(&arguments)).unwrap();
}
