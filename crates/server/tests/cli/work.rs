//! `orchestrix work` against a real coordinator: what a command gets, what becomes of its task, and that
//! nothing of it outlives its lease.

use std::io::{ErrorKind, PipeReader, PipeWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use orchestrix_testbed::eventually;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Coordinator, Running, is_alive, text};

/// Shell code that starts a process of its own, writes both numbers to a file, and stays.
fn tree(file: &Path) -> String {
    format!("sleep 600 & echo $$ $! > {0}.new && mv {0}.new {0}; wait", file.display())
}

/// The numbers that [`tree`] has written.
fn pids(file: &Path) -> Vec<String> {
    eventually("the command has started", || std::fs::read_to_string(file).ok())
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

fn all_gone(pids: &[String]) {
    eventually("the whole tree is gone", || (!pids.iter().any(|pid| is_alive(pid))).then_some(()));
}

/// A coordinator, a task of the queue `q`, and a worker that runs a tree for it.
fn running_tree(options: &[&str], submit: &[&str]) -> (Coordinator, String, Running, Vec<String>) {
    let coordinator = Coordinator::start();
    let file = file(&coordinator, "pids");
    let id = coordinator.submit(&[&["q", "1"], submit].concat());
    let worker = coordinator.work(&[&["q"], options, &["--", "sh", "-c", &tree(&file)]].concat());
    let pids = pids(&file);
    assert!(pids.len() == 2 && pids.iter().all(|pid| is_alive(pid)));
    (coordinator, id, worker, pids)
}

fn file(coordinator: &Coordinator, name: &str) -> PathBuf {
    // Beside the journal, where nobody else writes.
    coordinator.data().join(format!("test-{name}"))
}

#[test]
fn a_command_gets_payload_and_environment_and_logs_output() {
    let coordinator = Coordinator::start();
    let id = coordinator.submit(&["q", r#"{"a":1}"#]);
    let script = "cat; echo; echo $ORCHESTRIX_TASK_ID $ORCHESTRIX_QUEUE $ORCHESTRIX_ATTEMPT; echo oops >&2; \
                  test -n \"$ORCHESTRIX_LEASE_ID\"; printf 'no newline \\377'";
    let _worker = coordinator.work(&["q", "--", "sh", "-c", script]);
    coordinator.wait_for_state(&id, "COMPLETED");
    assert_eq!(coordinator.task(&id)["result"], json!({"exit_code": 0}));
    let lines = coordinator.json(&["logs", &id]);
    let of = |stream: &str| -> Vec<&str> {
        lines
            .iter()
            .filter(|line| line["stream"] == stream)
            .filter_map(|line| line["text"].as_str())
            .collect()
    };
    assert_eq!(of("stdout"), [r#"{"a":1}"#, &format!("{id} q 1"), "no newline \u{fffd}"]);
    assert_eq!(of("stderr"), ["oops"]);
    let plain = text(&coordinator.run(&["logs", &id, "--attempt", "1"]).stdout);
    assert!(plain.contains("oops\n") && plain.contains(&format!("{id} q 1\n")), "{plain}");
}

#[test]
fn a_command_that_fails_tells_its_exit_code_and_its_last_words() {
    let coordinator = Coordinator::start();
    let id = coordinator.submit(&["q", "1", "--max-attempts", "1"]);
    let worker =
        coordinator.work(&["q", "--json", "--", "sh", "-c", "echo first >&2; echo last words >&2; exit 3"]);
    coordinator.wait_for_state(&id, "FAILED");
    assert_eq!(coordinator.task(&id)["error"], "exit code 3: last words");
    assert_eq!(coordinator.run(&["cancel", &id]).status.code(), Some(1), "it has ended");
    worker.signal(Signal::TERM);
    let (code, stdout) = worker.finish();
    assert_eq!(code, Some(0));
    let events: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!(names, ["began", "failed"]);
    assert!(events[1]["took_ms"].is_u64() && events[1]["state"] == "FAILED");
}

#[test]
fn a_command_that_is_killed_tells_the_signal() {
    let coordinator = Coordinator::start();
    let id = coordinator.submit(&["q", "1", "--max-attempts", "1"]);
    let _worker = coordinator.work(&["q", "--", "sh", "-c", "kill -9 $$"]);
    coordinator.wait_for_state(&id, "FAILED");
    assert_eq!(coordinator.task(&id)["error"], "killed by signal 9");
}

#[test]
fn a_failed_task_gets_another_round_by_retry() {
    let coordinator = Coordinator::start();
    let (mine, other) =
        (file(&coordinator, "fixed"), coordinator.submit(&["other", "1", "--max-attempts", "1"]));
    let ids: Vec<String> = (0..12).map(|_| coordinator.submit(&["q", "1", "--max-attempts", "1"])).collect();
    let script = format!("test -e {}", mine.display());
    let _worker = coordinator.work(&["q", "other", "--concurrency", "4", "--", "sh", "-c", &script]);
    for id in ids.iter().chain([&other]) {
        coordinator.wait_for_state(id, "FAILED");
    }
    std::fs::write(&mine, "").unwrap();
    assert_eq!(coordinator.json(&["retry", &ids[0]])[0]["state"], "WAITING");
    coordinator.wait_for_state(&ids[0], "COMPLETED");
    assert_eq!(coordinator.run(&["retry", &ids[0]]).status.code(), Some(1));
    assert_eq!(coordinator.json(&["retry", "--all-failed", "--queue", "q"]).len(), 11);
    for id in &ids {
        coordinator.wait_for_state(id, "COMPLETED");
    }
    assert_eq!(coordinator.state(&other), "FAILED");
}

#[test]
fn wait_shows_the_output_and_exits_with_the_outcome() {
    let coordinator = Coordinator::start();
    let _worker = coordinator.work(&["q", "--", "sh", "-c", "echo working; read n; exit $n"]);
    let well = coordinator.run(&["submit", "q", "0", "--wait"]);
    assert_eq!((well.status.code(), text(&well.stdout).as_str()), (Some(0), "working\n"));
    let badly = coordinator.run(&["submit", "q", "7", "--wait", "--max-attempts", "1"]);
    assert_eq!(badly.status.code(), Some(5));
    assert!(text(&badly.stderr).contains("FAILED: exit code 7"), "{}", text(&badly.stderr));
    let expired = coordinator.run(&["submit", "nobody", "1", "--wait", "--ttl", "100ms"]);
    assert_eq!(expired.status.code(), Some(6), "{}", text(&expired.stderr));
}

#[test]
fn the_end_of_a_task_is_printed_in_whole_colours() {
    let coordinator = Coordinator::start();
    let _worker = coordinator.work(&["q", "--", "sh", "-c", "printf '\\033[8mhidden' >&2; exit 4"]);
    let submit = ["submit", "q", "1", "--wait", "--max-attempts", "1"];
    let told = |color: &str| {
        let ended = coordinator.run(&[&submit[..], &["--color", color]].concat());
        assert_eq!(ended.status.code(), Some(5));
        text(&ended.stderr).split_once(' ').unwrap().1.split_once(' ').unwrap().1.to_owned()
    };
    assert_eq!(told("always"), "\x1b[31mFAILED\x1b[0m: exit code 4: \u{fffd}[8mhidden\n");
    assert_eq!(told("auto"), "FAILED: exit code 4: \u{fffd}[8mhidden\n");
}

/// What `work` says on stderr until it has complained that nobody is there.
fn complaints(options: &[&str]) -> Vec<String> {
    let nobody = Coordinator::prepared();
    let mut worker = nobody.work(&[&["q"], options, &["--", "true"]].concat());
    let stderr = std::io::BufReader::new(worker.0.stderr.take().unwrap());
    let mut lines = Vec::new();
    for line in std::io::BufRead::lines(stderr) {
        lines.push(line.unwrap());
        if lines.last().unwrap().contains("cannot lease") {
            return lines;
        }
    }
    panic!("it ended: {lines:?}");
}

#[test]
fn warnings_of_a_worker_are_coloured_only_when_wanted() {
    assert!(!complaints(&["--color", "never"]).concat().contains('\x1b'));
    assert!(!complaints(&[]).concat().contains('\x1b'), "a pipe is no terminal");
    assert!(complaints(&["--color", "always"]).concat().contains("\x1b[33m"));
}

#[test]
fn warnings_of_a_worker_are_json_when_that_is_wanted() {
    for line in complaints(&["--json", "--color", "always"]) {
        let line: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
        assert!(line["message"].is_string() && line["level"].is_string(), "{line}");
    }
}

#[test]
fn a_time_limit_is_used_nearly_to_its_end_and_named() {
    const LIMIT: u64 = 3_000;
    let coordinator = Coordinator::start();
    let attempts = ["--max-attempts", "3", "--backoff", "1ms"];
    let id = coordinator.submit(&[&["q", "1", "--timeout", "3s"][..], &attempts].concat());
    let worker = coordinator.work(&["q", "--json", "--", "sh", "-c", "echo begun; sleep 600"]);
    coordinator.wait_for_state(&id, "FAILED");
    worker.signal(Signal::TERM);
    let (_, stdout) = worker.finish();
    let events = stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let ended: Vec<Value> = events.filter(|event| event["event"] != "began").collect();
    assert_eq!(ended.len(), 3, "{stdout}");
    for end in ended {
        assert!(end["event"] == "timeout" && end["took_ms"].as_u64() >= Some(LIMIT - LIMIT / 12), "{end}");
    }
    let lines = coordinator.json(&["logs", &id]);
    let of = |stream: &str| lines.iter().filter(|line| line["stream"] == stream).collect::<Vec<_>>();
    assert_eq!(of("stdout").len(), 3, "{lines:?}");
    // A machine that is very busy may be too late for it once: the lease is over in a moment.
    let limit = "the time limit of this attempt was reached: the command was stopped";
    assert!(of("system").iter().any(|line| line["text"] == limit), "{lines:?}");
}

#[test]
fn logs_are_followed_while_they_are_written() {
    let coordinator = Coordinator::start();
    let go = file(&coordinator, "go");
    let id = coordinator.submit(&["q", "1"]);
    let script = format!("echo one; while ! test -e {}; do sleep 0.02; done; echo two", go.display());
    let _worker = coordinator.work(&["q", "--", "sh", "-c", &script]);
    let mut follow = coordinator.command(&["logs", &id, "-f"]);
    let mut follow = Running(follow.stdout(std::process::Stdio::piped()).spawn().unwrap());
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(follow.0.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "one");
    std::fs::write(&go, "").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "two");
    assert!(lines.next().is_none());
    assert_eq!(follow.0.wait().unwrap().code(), Some(0));
}

#[test]
fn cancelling_a_running_task_kills_the_whole_tree() {
    let (coordinator, id, _worker, pids) = running_tree(&["--lease", "900ms"], &[]);
    assert_eq!(coordinator.json(&["explain", &id])[0]["code"], "leased_by");
    assert_eq!(coordinator.json(&["cancel", &id])[0]["cancel_requested"], true);
    all_gone(&pids);
    coordinator.wait_for_state(&id, "CANCELLED");
}

#[test]
fn a_command_that_ignores_sigterm_is_killed_after_the_grace() {
    let coordinator = Coordinator::start();
    let file = file(&coordinator, "pids");
    let id = coordinator.submit(&["q", "1"]);
    let script = format!("trap '' TERM; {}", tree(&file));
    let _worker = coordinator.work(&["q", "--lease", "900ms", "--grace", "100ms", "--", "sh", "-c", &script]);
    let pids = pids(&file);
    coordinator.run(&["cancel", &id]);
    all_gone(&pids);
    coordinator.wait_for_state(&id, "CANCELLED");
}

#[test]
fn a_lease_that_the_coordinator_ended_kills_the_whole_tree() {
    let options = ["--timeout", "700ms", "--max-attempts", "1"];
    let (coordinator, id, _worker, pids) = running_tree(&["--lease", "600ms"], &options);
    all_gone(&pids);
    coordinator.wait_for_state(&id, "FAILED");
    assert_eq!(coordinator.task(&id)["attempts"][0]["outcome"], "timeout");
}

#[test]
fn a_cut_off_worker_kills_the_tree_before_its_lease_ends() {
    let (mut coordinator, _, _worker, pids) = running_tree(&["--lease", "2s"], &[]);
    coordinator.kill();
    let began = std::time::Instant::now();
    all_gone(&pids);
    assert!(began.elapsed() < std::time::Duration::from_secs(2), "took {:?}", began.elapsed());
}

#[test]
fn a_worker_that_slept_past_its_lease_kills_the_tree() {
    let (coordinator, id, worker, pids) = running_tree(&["--lease", "500ms"], &["--max-attempts", "1"]);
    worker.signal(Signal::STOP);
    coordinator.wait_for_state(&id, "FAILED");
    assert!(pids.iter().all(|pid| is_alive(pid)));
    worker.signal(Signal::CONT);
    all_gone(&pids);
    assert_eq!(coordinator.task(&id)["attempts"][0]["outcome"], "silent");
}

#[test]
fn sigterm_kills_the_tree_and_releases_the_task_uncharged() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let (coordinator, id, worker, pids) = running_tree(&[], &[]);
        worker.signal(signal);
        let (code, stdout) = worker.finish();
        assert_eq!(code, Some(0));
        assert!(stdout.contains("released"), "{stdout}");
        all_gone(&pids);
        let task = coordinator.task(&id);
        assert_eq!((&task["state"], &task["attempt"]), (&json!("WAITING"), &json!(0)));
        assert_eq!(task["attempts"][0]["outcome"], "released");
    }
}

#[test]
fn a_second_signal_kills_a_command_that_ignores_the_first() {
    let coordinator = Coordinator::start();
    let file = file(&coordinator, "pids");
    let id = coordinator.submit(&["q", "1"]);
    let told = file.with_extension("told");
    let script =
        format!("trap 'touch {}' TERM; {}; while :; do sleep 0.05; done", told.display(), tree(&file));
    let worker = coordinator.work(&["q", "--grace", "10m", "--", "sh", "-c", &script]);
    let pids = pids(&file);
    worker.signal(Signal::TERM);
    eventually("the command heard the first signal", || told.exists().then_some(()));
    assert!(is_alive(&pids[0]));
    worker.signal(Signal::TERM);
    assert_eq!(worker.finish().0, Some(0));
    all_gone(&pids);
    coordinator.wait_for_state(&id, "WAITING");
}

#[test]
fn a_terminal_that_hangs_up_twice_does_not_cut_the_grace_short() {
    let coordinator = Coordinator::start();
    let [ready, told, go, done] = ["ready", "told", "go", "done"].map(|name| file(&coordinator, name));
    coordinator.submit(&["q", "1"]);
    let script = format!(
        "trap 'touch {}' TERM; touch {}; while ! test -e {}; do sleep 0.02; done; touch {}",
        told.display(),
        ready.display(),
        go.display(),
        done.display()
    );
    let worker = coordinator.work(&["q", "--grace", "10m", "--", "sh", "-c", &script]);
    eventually("the command has started", || ready.exists().then_some(()));
    worker.signal(Signal::HUP);
    eventually("the command heard of the first", || told.exists().then_some(()));
    worker.signal(Signal::HUP);
    std::fs::write(&go, "").unwrap();
    assert_eq!(worker.finish().0, Some(0));
    assert!(done.exists());
}

#[test]
fn tests_begin_with_the_usual_signals() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
    for signal in [Signal::HUP, Signal::CHILD] {
        let ignored = mask >> (signal.as_raw() - 1) & 1 == 1;
        assert!(!ignored, "{signal:?} is ignored: start tests with cargo, or through scripts/run-test");
    }
}

/// A shell script, as cargo starts a program of tests, by somebody who ignores what `nohup` and service managers do.
fn as_a_test(script: &str, limit: &str) -> std::process::Output {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("deps/program");
    std::fs::create_dir(folder.path().join("deps")).unwrap();
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = Command::new("env");
    command.args(["--ignore-signal=HUP", "--ignore-signal=CHLD"]);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/run-test")).arg(program);
    command.env("ORCHESTRIX_TEST_LIMIT", limit).output().unwrap()
}

#[test]
fn tests_get_the_usual_signals_from_any_parent() {
    let output = as_a_test("exec grep SigIgn /proc/self/status", "30s");
    let said = text(&output.stdout);
    let mask = said.trim().strip_prefix("SigIgn:").unwrap_or_else(|| panic!("{output:?}"));
    let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
    for signal in [Signal::HUP, Signal::CHILD] {
        assert_eq!(mask >> (signal.as_raw() - 1) & 1, 0, "{signal:?} is ignored");
    }
}

#[test]
fn tests_that_do_not_end_are_aborted() {
    assert_eq!(as_a_test("exec true", "30s").status.code(), Some(0));
    let output = as_a_test("exec sleep 20", "0.1s");
    assert!(!output.status.success(), "it came to its end: {output:?}");
}

#[test]
fn a_worker_with_sigchld_ignored_hears_how_commands_end() {
    let coordinator = Coordinator::start();
    let script = "exit \"$(cat)\"";
    let worker = std::process::Command::new("env")
        .args([
            "--ignore-signal=CHLD",
            env!("CARGO_BIN_EXE_orchestrix"),
            "work",
            "q",
            "--",
            "sh",
            "-c",
            script,
        ])
        .env("ORCHESTRIX_URL", coordinator.url())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let _worker = Running(worker);
    let good = coordinator.submit(&["q", "0", "--max-attempts", "1"]);
    coordinator.wait_for_state(&good, "COMPLETED");
    let bad = coordinator.submit(&["q", "7", "--max-attempts", "1"]);
    coordinator.wait_for_state(&bad, "FAILED");
    let error = coordinator.task(&bad)["attempts"][0]["error"].to_string();
    assert!(error.contains("exit code 7"), "{error}");
}

#[test]
fn a_worker_that_was_started_to_outlive_its_terminal_does() {
    let coordinator = Coordinator::start();
    let program = env!("CARGO_BIN_EXE_orchestrix");
    let work = ["-c", "trap '' HUP; exec \"$@\"", "sh", program, "work", "q", "--", "true"];
    let worker = std::process::Command::new("sh")
        .args(work)
        .env("ORCHESTRIX_URL", coordinator.url())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let worker = Running(worker);
    coordinator.wait_for_state(&coordinator.submit(&["q", "1"]), "COMPLETED");
    worker.signal(Signal::HUP);
    coordinator.wait_for_state(&coordinator.submit(&["q", "2"]), "COMPLETED");
}

#[test]
fn a_worker_continues_with_unread_warnings() {
    let mut coordinator = Coordinator::start();
    let mut worker = coordinator.work(&["q", "--", "true"]);
    drop(worker.0.stderr.take());
    coordinator.wait_for_state(&coordinator.submit(&["q", "1"]), "COMPLETED");
    coordinator.kill();
    coordinator.launch();
    coordinator.wait_for_state(&coordinator.submit(&["q", "2"]), "COMPLETED");
}

#[test]
fn processes_left_in_a_commands_group_are_killed() {
    let coordinator = Coordinator::start();
    let file = file(&coordinator, "pids");
    let id = coordinator.submit(&["q", "1"]);
    let script = format!("sleep 600 >/dev/null 2>&1 & echo $$ $! > {}", file.display());
    let _worker = coordinator.work(&["q", "--", "sh", "-c", &script]);
    coordinator.wait_for_state(&id, "COMPLETED");
    all_gone(&pids(&file));
}

#[test]
fn several_commands_run_at_once_and_no_more_than_allowed() {
    let coordinator = Coordinator::start();
    let folder = file(&coordinator, "folder");
    std::fs::create_dir(&folder).unwrap();
    for _ in 0..6 {
        coordinator.submit(&["q", "1"]);
    }
    let script = format!("touch {}/$ORCHESTRIX_TASK_ID; exec sleep 600", folder.display());
    let worker = coordinator.work(&["q", "--concurrency", "3", "--name", "me", "--", "sh", "-c", &script]);
    eventually("three run", || (std::fs::read_dir(&folder).unwrap().count() == 3).then_some(()));
    let workers = coordinator.json(&["workers"]);
    assert_eq!(
        workers[0],
        json!({
            "worker": "me", "leases": 3, "capacity": 3, "seen_at": workers[0]["seen_at"],
        })
    );
    assert_eq!(coordinator.json(&["tasks", "--state", "LEASED"]).len(), 3);
    worker.signal(Signal::TERM);
    assert_eq!(worker.finish().0, Some(0));
    assert_eq!(coordinator.json(&["tasks", "--state", "WAITING"]).len(), 6);
}

/// A pipe that takes nothing any more.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = fcntl_getfl(writer.as_fd()).unwrap();
    fcntl_setfl(writer.as_fd(), flags | OFlags::NONBLOCK).unwrap();
    for size in [4096, 1] {
        while writer
            .write(&vec![b'\n'; size])
            .map_err(|error| assert_eq!(error.kind(), ErrorKind::WouldBlock))
            .is_ok()
        {}
    }
    fcntl_setfl(writer.as_fd(), flags).unwrap();
    (reader, writer)
}

#[test]
fn a_worker_with_unread_output_keeps_its_leases_and_stops() {
    let coordinator = Coordinator::start();
    let (begun, go) = (file(&coordinator, "begun"), file(&coordinator, "go"));
    let ids: Vec<String> = (0..3).map(|_| coordinator.submit(&["q", "1"])).collect();
    let script = format!(
        "echo $ORCHESTRIX_TASK_ID >> {}; until test -e {}; do sleep 0.05; done",
        begun.display(),
        go.display()
    );
    let ((_out, stdout), (_err, stderr)) = (full_pipe(), full_pipe());
    let mut command = coordinator.command(&["work", "q", "--concurrency", "3", "--lease", "1s", "--json"]);
    command.args(["--", "sh", "-c", &script]).stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    let mut worker = Running(command.spawn().unwrap());
    let begun = || std::fs::read_to_string(&begun).unwrap_or_default().lines().count();
    eventually("all commands run", || (begun() == 3).then_some(()));
    // Each of three leases, over and over again: so long that all of them had ended otherwise.
    eventually("leases are extended", || {
        let metrics = coordinator.get("/metrics")?;
        let line = metrics.lines().find_map(|line| line.strip_prefix("orchestrix_leases_extended_total "))?;
        (line.trim().parse::<f64>().ok()? >= 18.0).then_some(())
    });
    std::fs::write(&go, "").unwrap();
    for id in &ids {
        coordinator.wait_for_state(id, "COMPLETED");
        assert_eq!(coordinator.task(id)["attempt"], 1);
    }
    assert_eq!(begun(), 3, "each command ran once");
    worker.signal(Signal::TERM);
    let ended = eventually("the worker ends", || worker.0.try_wait().unwrap());
    assert_eq!(ended.code(), Some(0));
}

#[test]
fn a_worker_sends_all_output_to_a_coordinator_with_slow_syncs() {
    const LINES: usize = 20_000;
    let coordinator = Coordinator::start();
    let mut strace = Command::new("strace");
    let pid = coordinator.pid().to_string();
    // So slow that, when the command has ended, its pipe takes longer than 2 seconds and the lines that wait for their turn
    // longer than 5: so long each of them was waited for once.
    strace.args(["-f", "-qq", "-e", "trace=fdatasync", "-e", "inject=fdatasync:delay_exit=300000"]);
    strace.args(["-o", "/dev/null", "-p", &pid]).stdin(Stdio::null());
    let _strace = Running(strace.spawn().unwrap());
    let traced = format!("/proc/{pid}/status");
    eventually("syncs are slow", || {
        let status = std::fs::read_to_string(&traced).unwrap();
        let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?;
        (tracer.trim() != "0").then_some(())
    });
    let id = coordinator.submit(&["q", "1"]);
    let _worker = coordinator.work(&["q", "--", "seq", "1", &LINES.to_string()]);
    let lines = || {
        let first = format!("/v1/tasks/{id}/logs?offset={}&limit=1", LINES - 1);
        coordinator.get(&first).filter(|page| page.contains(&format!("\"text\":\"{LINES}\"")))
    };
    // Longer than a worker once waited for the last lines; each half has its time.
    eventually("half of the output is there", || {
        let half = format!("/v1/tasks/{id}/logs?offset={}&limit=1", LINES / 2);
        coordinator.get(&half).filter(|page| page.contains("\"text\""))
    });
    eventually("the last line is there", lines);
    coordinator.wait_for_state(&id, "COMPLETED");
}
