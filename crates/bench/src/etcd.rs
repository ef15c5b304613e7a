//! etcd as a peer: one server, and three small processes that want the same lock under a lease.
//!
//! `etcdctl lock` does what elections on etcd do: a key with a lease that is kept alive, behind the keys of those who
//! came before; and it prints its key when it has the lock. There is nothing that it has to read or write then.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use orchestrix_testbed::{Place, Process, Recipe, Server, first_line};
use rustix::process::Signal;
use serde_json::Value;

use crate::failover::{GIVE_UP, NODES, TTL};
use crate::http;
use crate::process::free_address;

const PROGRAM: &str = "etcd";
const CLIENT: &str = "etcdctl";
const LOCK: &str = "bench";
/// How many keys there are from `bench/` to before `bench0`.
const COUNT_KEYS: &[u8] = br#"{"key":"YmVuY2gv","range_end":"YmVuY2gw","count_only":true}"#;
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The server, and those who want to lead.
pub(crate) struct Candidates {
    server: Server,
    running: Vec<(usize, Process)>,
    /// The holder of the lock, and when this process learned of it.
    elections: Receiver<(usize, Instant)>,
    elected: Sender<(usize, Instant)>,
    leader: Option<usize>,
    next: usize,
    log: PathBuf,
}

pub(crate) fn version() -> Result<String> {
    first_line(Command::new(CLIENT).arg("version"))?;
    let line = first_line(Command::new(PROGRAM).arg("--version"))?;
    Ok(line.split_whitespace().last().unwrap_or(&line).to_owned())
}

fn recipe() -> Recipe {
    let peers = format!("http://{}", free_address());
    let launch = move |place: &Place| {
        let clients = format!("http://{}", place.address);
        let mut command = Command::new(PROGRAM);
        command.args(["--name", "default", "--data-dir"]).arg(place.folder.join("data"));
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--initial-cluster", &format!("default={peers}")]);
        Ok(command)
    };
    Recipe::new("etcd", launch, |place| http::get(place.address, "/health").is_ok())
}

impl Candidates {
    /// # Errors
    /// When the server or a candidate does not start.
    pub(crate) fn start(folder: &Path) -> Result<Self> {
        let server = Server::start_in(folder, recipe())?;
        let (elected, elections) = channel();
        let log = folder.with_extension("candidates.log");
        let mut all = Self { server, running: Vec::new(), elections, elected, leader: None, next: 0, log };
        for _ in 0..NODES {
            all.launch()?;
        }
        Ok(all)
    }

    fn launch(&mut self) -> Result<()> {
        let number = self.next;
        self.next += 1;
        let endpoint = format!("http://{}", self.server.address());
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(CLIENT);
        command.env("ETCDCTL_API", "3").args(["--endpoints", &endpoint, "lock", "--ttl"]);
        command.arg(TTL.as_secs().to_string()).arg(LOCK);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let child = Process::spawn(&mut command);
        let mut child = child.with_context(|| format!("cannot start {CLIENT}; `make bench` installs it"))?;
        let stdout = child.stdout().context("a process without the output that was asked for")?;
        let elected = self.elected.clone();
        thread::spawn(move || {
            // Ends with the process; the receiver may be gone by then.
            if let Some(Ok(_)) = BufReader::new(stdout).lines().next() {
                let _ = elected.send((number, Instant::now()));
            }
        });
        self.running.push((number, child));
        Ok(())
    }

    /// Waits until one leads and all others are in line.
    ///
    /// # Errors
    /// When that takes too long.
    pub(crate) fn wait_for_all(&mut self) -> Result<()> {
        let start = Instant::now();
        while self.leader.is_none() || in_line(self.server.address())? != NODES as u64 {
            if let Ok((number, _)) = self.elections.try_recv() {
                self.leader = Some(number);
            }
            ensure!(start.elapsed() < GIVE_UP, "the candidates are not in line");
            thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Sends a signal to the leader, measures the time until another has the lock, and adds a new candidate.
    ///
    /// # Errors
    /// When no candidate takes over.
    pub(crate) fn replace(&mut self, signal: Signal) -> Result<Duration> {
        let leader = self.leader.take().context("there is no leader")?;
        let at = self.running.iter().position(|(number, _)| *number == leader);
        let (_, child) = &self.running[at.context("the leader is not running")?];
        let since = Instant::now();
        rustix::process::kill_process(child.pid(), signal)?;
        let (number, heard) = self.elections.recv_timeout(GIVE_UP).context("no candidate took over")?;
        self.leader = Some(number);
        self.running.retain(|(number, _)| *number != leader);
        self.launch()?;
        Ok(heard.duration_since(since))
    }
}

/// How many candidates have a key.
fn in_line(address: SocketAddr) -> Result<u64> {
    let (status, text) = http::Alone::connect(address)?.ask("POST", "/v3/kv/range", COUNT_KEYS)?;
    ensure!(status == 200, "etcd answered {status}: {text}");
    parse_count(&text)
}

/// Numbers are text there, and none is none.
fn parse_count(text: &str) -> Result<u64> {
    let answer: Value = serde_json::from_str(text)?;
    let Some(count) = answer.get("count") else { return Ok(0) };
    count.as_str().and_then(|count| count.parse().ok()).context("etcd counted no number")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_counted() {
        assert_eq!(parse_count(r#"{"header":{"revision":"3"},"count":"2"}"#).unwrap(), 2);
        assert_eq!(parse_count(r#"{"header":{"revision":"1"}}"#).unwrap(), 0);
        assert!(parse_count(r#"{"count":"many"}"#).is_err());
    }
}
