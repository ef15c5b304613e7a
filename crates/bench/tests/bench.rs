//! `orchestrix-bench` from outside, as small as it gets. It measures the `orchestrix` beside it, which tests of the whole
//! workspace have built; for these alone, `cargo build --bin orchestrix` comes first.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A folder on the disk that the build is on.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn bench(data: &tempfile::TempDir, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orchestrix-bench"));
    command.args(["--json", "--quick", "--no-peers", "--window-ms", "60", "--data"]);
    command.arg(data.path()).args(args).output().unwrap()
}

fn measures(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    told(output)
}

fn told(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let all = report["figures"]["all"].as_array().unwrap();
    all.iter().map(|figure| figure["measure"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn bench_measures_a_real_server_and_leaves_nothing_behind() {
    let data = folder();
    let output = bench(&data, &["--only", "batches,one-by-one"]);
    assert_eq!(measures(&output), ["batches", "one_by_one", "one_by_one"]);
    assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 0);
}

#[test]
fn one_client_alone_is_measured_beside_the_machine() {
    let data = folder();
    let page: PathBuf = data.path().join("page.md");
    let output = bench(&data, &["--only", "alone", "--write", page.to_str().unwrap()]);
    assert_eq!(measures(&output), ["sync_p50", "round_trip_p50", "submit_p50", "submit_p99"]);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("| one client alone submits (p50), relative to one sync and one round trip |"));
}

#[test]
fn memory_is_not_taken_for_a_disk() {
    let Ok(data) = tempfile::tempdir_in("/dev/shm") else { return };
    let output = bench(&data, &["--only", "machine"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("is in memory"));
}

#[test]
fn figures_before_a_failed_part_are_printed() {
    let data = folder();
    // A server that prints its version, and ends when it is started.
    let weed = data.path().join("weed");
    std::fs::write(&weed, "#!/bin/sh\n[ \"$1\" = version ] && echo 'version 1.2'\n").unwrap();
    std::fs::set_permissions(&weed, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_orchestrix-bench"));
    command.args(["--json", "--quick", "--only", "machine,engines", "--stores", "seaweedfs", "--data"]);
    let output = command.arg(data.path()).env("ORCHESTRIX_OBJECT_STORES", data.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("on SeaweedFS"), "{said}");
    assert_eq!(told(&output), ["sync_p50", "round_trip_p50"]);
}

/// The processes that a process has started.
fn children(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).ok();
    let all: Vec<String> = tasks.filter_map(of).collect();
    all.iter().flat_map(|some| some.split_whitespace()).map(str::to_owned).collect()
}

#[test]
fn a_run_that_is_interrupted_leaves_no_server_and_no_folder() {
    for signal in [Signal::TERM, Signal::INT] {
        let data = folder();
        let mut command = Command::new(env!("CARGO_BIN_EXE_orchestrix-bench"));
        command.args(["--only", "batches", "--no-peers", "--window-ms", "600000", "--data"]);
        let mut run = command.arg(data.path()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let start = Instant::now();
        let servers = loop {
            let servers = children(run.id());
            if !servers.is_empty() {
                break servers;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "a run starts a server");
            std::thread::yield_now();
        };
        kill_process(Pid::from_child(&run), signal).unwrap();
        assert_eq!(run.wait().unwrap().code(), Some(128 + signal.as_raw()));
        for server in servers {
            assert!(!Path::new(&format!("/proc/{server}")).exists(), "{server} is still there");
        }
        assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 0);
    }
}
