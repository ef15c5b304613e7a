//! Faults that a machine really has, on the real binary: a disk that fails, a disk that is full, a process that is
//! frozen, a clock that jumps.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod support;

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use orchestrix_client::{Client, new_task};
use orchestrix_core::wire::{Complete, LeaseQueues, Leased, Submit};
use orchestrix_core::{Key, LeaseId, Name, TaskId, TaskState};
use rustix::process::Signal;
use support::{Coordinator, eventually};
use tokio::runtime::Runtime;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn client(url: &str) -> Client {
    Client::builder(url).retries(0).timeout(Duration::from_secs(20)).build().unwrap()
}

fn task(key: &str) -> Submit {
    let mut task = new_task("faults", &1).unwrap();
    task.key = Some(Key::new(key).unwrap());
    task
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn lease_call(lease_ms: u64) -> LeaseQueues {
    LeaseQueues {
        queues: vec![name("faults")],
        worker: name("w"),
        max: 1,
        lease_ms,
        wait_ms: 0,
        request_id: None,
        capacity: None,
    }
}

async fn lease(client: &Client, lease_ms: u64) -> Leased {
    client.lease(&lease_call(lease_ms)).await.unwrap().leases.remove(0)
}

fn completion(lease_id: LeaseId) -> Complete {
    Complete { lease_id, worker: None, result: None }
}

/// Submits until the coordinator is gone; answers what was acknowledged, and the key of what was not.
async fn submit_until_gone(client: &Client, round: u64) -> (Vec<(String, TaskId)>, Option<String>) {
    let mut acknowledged = Vec::new();
    for n in 0..2_000 {
        let key = format!("{round}-{n}");
        match client.submit(&task(&key)).await {
            Ok(submitted) => acknowledged.push((key, submitted.id)),
            Err(_) => return (acknowledged, Some(key)),
        }
    }
    (acknowledged, None)
}

#[test]
fn a_sync_that_fails_stops_it_and_nothing_acknowledged_is_lost() {
    let runtime = runtime();
    let mut coordinator = Coordinator::prepared();
    let mut all: Vec<(String, TaskId)> = Vec::new();
    for (round, nth) in [12_u64, 30, 80].into_iter().enumerate() {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync", "-e"]);
        strace.arg(format!("inject=fdatasync:error=EIO:when={nth}"));
        coordinator.launch_under(strace);
        let (acknowledged, unknown) =
            runtime.block_on(submit_until_gone(&client(&coordinator.url()), round as u64));
        let unknown = unknown.expect("the sync fails while tasks are submitted");
        let (code, said) = coordinator.ended();
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("write journal segment") && said.contains("os error 5"), "{said}");

        coordinator.launch();
        all.extend(acknowledged);
        runtime.block_on(async {
            let client = client(&coordinator.url());
            for (key, id) in &all {
                let found = client.submit(&task(key)).await.unwrap();
                assert_eq!(found.id, *id, "the task of key {key} is another");
            }
            // It is there or it is not; asked again it is there once.
            let first = client.submit(&task(&unknown)).await.unwrap();
            assert_eq!(client.submit(&task(&unknown)).await.unwrap().id, first.id);
            all.push((unknown, first.id));
        });
        coordinator.kill();
    }
    assert!(all.len() > 60, "{} tasks were acknowledged", all.len());
}

/// A coordinator on a small disk of its own, of which a part can be freed.
struct SmallDisk {
    child: Child,
    url: String,
}

impl SmallDisk {
    /// Mounts the disk in a namespace that goes away with the process.
    fn start(mount: &Path, megabytes: u32, filler_megabytes: u32) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let script = r#"
            mount -t tmpfs -o "size=$2m,mode=700" tmpfs "$1" || exit 9
            head -c "${3}M" /dev/zero > "$1/filler"
            exec 3<&0
            ( read -r go <&3; rm "$1/filler" ) &
            exec "$5" serve --data "$1/data" --listen "127.0.0.1:$4" >/dev/null
        "#;
        let mut command = Command::new("unshare");
        if !rustix::process::getuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(mount);
        command.args([megabytes.to_string(), filler_megabytes.to_string(), port.to_string()]);
        command.arg(env!("CARGO_BIN_EXE_orchestrix")).stdin(Stdio::piped());
        let url = format!("http://127.0.0.1:{port}");
        Self { child: command.spawn().unwrap(), url }
    }

    fn free_some(&mut self) {
        self.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn a_full_disk_refuses_new_tasks_lets_old_ones_end_and_recovers() {
    let folder = tempfile::tempdir().unwrap();
    let mut disk = SmallDisk::start(folder.path(), 48, 24);
    let client = client(&disk.url);
    let runtime = runtime();
    eventually("the coordinator is ready", || runtime.block_on(client.queues()).ok());
    runtime.block_on(async {
        let early = client.submit(&task("early")).await.unwrap();
        let held = lease(&client, 600_000).await;
        let large = new_task("large", &"x".repeat(200 << 10)).unwrap();
        let mut stored = 0;
        let refused = loop {
            match client.submit(&large).await {
                Ok(_) => stored += 1,
                Err(error) => break error,
            }
            assert!(stored < 10_000, "24 MiB hold more than that");
        };
        assert_eq!(refused.code(), "storage_full", "{refused}");
        assert!(stored > 10, "{stored} tasks were stored");
        let outcome = client.complete(held.task_id, &completion(held.lease_id)).await.unwrap();
        assert_eq!((outcome.id, outcome.state), (early.id, TaskState::Completed), "old work ends");

        disk.free_some();
        let began = Instant::now();
        while client.submit(&large).await.is_err() {
            assert!(began.elapsed() < Duration::from_secs(30), "it does not notice that there is room");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let queues = client.queues().await.unwrap().queues;
        let large = queues.iter().find(|queue| queue.queue.as_str() == "large").unwrap();
        assert!(large.ready > stored, "{} of {stored} tasks are there", large.ready);
    });
}

#[test]
fn a_frozen_coordinator_ends_no_lease_early_and_lets_nobody_finish_late() {
    let (runtime, coordinator) = (runtime(), Coordinator::start());
    let client = client(&coordinator.url());
    runtime.block_on(async {
        client.submit(&task("short freeze")).await.unwrap();
        let leased = lease(&client, 20_000).await;
        coordinator.signal(Signal::STOP);
        tokio::time::sleep(Duration::from_millis(700)).await;
        coordinator.signal(Signal::CONT);
        let outcome = client.complete(leased.task_id, &completion(leased.lease_id)).await.unwrap();
        assert_eq!(outcome.state, TaskState::Completed, "less than its length has passed");

        client.submit(&task("long freeze")).await.unwrap();
        let leased = lease(&client, 500).await;
        let began = Instant::now();
        coordinator.signal(Signal::STOP);
        tokio::time::sleep_until((began + Duration::from_millis(800)).into()).await;
        coordinator.signal(Signal::CONT);
        let late = client.complete(leased.task_id, &completion(leased.lease_id)).await.unwrap_err();
        assert_eq!(late.code(), "stale_lease", "{late}");
        let again = loop {
            let leases = client.lease(&LeaseQueues { wait_ms: 5_000, ..lease_call(20_000) }).await.unwrap();
            if let Some(leased) = leases.leases.into_iter().next() {
                break leased;
            }
        };
        assert_eq!((again.task_id, again.attempt), (leased.task_id, 2));
    });
}

/// The library that lets a process believe in another time.
fn libfaketime() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").unwrap();
    let found = folders.map(|folder| folder.unwrap().path().join("faketime/libfaketimeMT.so.1"));
    found.into_iter().find(|path| path.exists()).expect("libfaketime is installed by `make test`")
}

#[test]
fn a_clock_that_jumps_ends_no_lease_and_forgets_no_task() {
    let folder = tempfile::tempdir().unwrap();
    let offset = folder.path().join("offset");
    let set = |text: &str| {
        // Moved into place, so that nobody reads half of it.
        std::fs::write(folder.path().join("next"), text).unwrap();
        std::fs::rename(folder.path().join("next"), &offset).unwrap();
    };
    set("+0");
    let mut coordinator = Coordinator::prepared();
    let mut env = Command::new("env");
    env.arg(format!("LD_PRELOAD={}", libfaketime().display()));
    env.arg(format!("FAKETIME_TIMESTAMP_FILE={}", offset.display()));
    env.args(["FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1", "DONT_FAKE_MONOTONIC=1"]);
    coordinator.launch_under(env);
    let year = |years: i64| {
        let date = |answer: String| {
            Some(answer.split_once("date: ")?.1.split(' ').nth(3)?.parse::<i64>().ok()? + years)
        };
        eventually("an answer with a date", || date(coordinator.get("/health")?))
    };
    let now = year(0);
    set("+3650d");
    eventually("the process believes in the other time", || {
        (year(-10) >= now - 1 && year(0) > now).then_some(())
    });
    set("+0");
    let client = client(&coordinator.url());
    runtime().block_on(async {
        client.submit(&task("done")).await.unwrap();
        let done = lease(&client, 60_000).await;
        client.complete(done.task_id, &completion(done.lease_id)).await.unwrap();
        let began = client.submit(&task("before")).await.unwrap();
        let before = client.task(began.id).await.unwrap().summary.created_at;
        for jump in ["+1", "-1", "+3600", "-3600", "+3650d", "-3650d", "+0"] {
            set("+0");
            client.submit(&task(&format!("under {jump}"))).await.unwrap();
            let held = lease(&client, 60_000).await;
            set(jump);
            // A round of the loop under the new time.
            client.queues().await.unwrap();
            let heard = client.heartbeat_worker(&name("w"), vec![held.lease_id]).await.unwrap();
            assert_eq!(heard.extended, [held.lease_id], "{jump}: the lease goes on");
            client.complete(held.task_id, &completion(held.lease_id)).await.unwrap();
            let view = client.task(done.task_id).await.unwrap();
            assert_eq!(view.summary.state, TaskState::Completed, "{jump}: nothing is forgotten");
        }
        let late = client.submit(&task("after")).await.unwrap();
        let after = client.task(late.id).await.unwrap().summary.created_at;
        assert!(after.0 - before.0 < 600_000, "the clock of the term did not jump: {before:?}, {after:?}");
    });
}
