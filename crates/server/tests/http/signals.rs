//! What a hang-up does, and what the log says of callers, as a process.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::process::{PATIENCE, Process, command, spawn, task};

/// A tokens file with one administrator, and its token.
fn one_token(folder: &Path, name: &str) -> (PathBuf, String) {
    let mut new = Command::new(env!("CARGO_BIN_EXE_orchestrix"));
    let new = new.args(["token", "new", "--name", name, "--role", "admin"]).output().unwrap();
    let text = String::from_utf8(new.stdout).unwrap();
    let (shown, lines) = text.split_once("add to the tokens file:").unwrap();
    let path = folder.join("tokens.toml");
    std::fs::write(&path, lines).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    (path, format!("orx_{}", shown.split_once("orx_").unwrap().1.trim()))
}

/// The lines of a log as they come.
pub(crate) struct Log(Receiver<String>);

impl Log {
    pub(crate) fn of(process: &mut Process) -> Self {
        let mut lines = BufReader::new(process.child.stderr.take().unwrap()).lines();
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            while let Some(Ok(line)) = lines.next()
                && sender.send(line).is_ok()
            {}
        });
        Self(receiver)
    }

    /// All lines until one has a text.
    pub(crate) fn until(&self, text: &str) -> String {
        let mut lines = String::new();
        while !lines.contains(text) {
            let line = self.0.recv_timeout(PATIENCE);
            lines.push_str(&line.unwrap_or_else(|error| panic!("no {text} ({error}): {lines}")));
            lines.push('\n');
        }
        lines
    }
}

#[test]
fn a_hang_up_without_tokens_changes_nothing() {
    let folder = TempDir::new().unwrap();
    let mut process = spawn(command(&folder.path().join("data")));
    let log = Log::of(&mut process);
    process.signal(Signal::HUP);
    log.until("no tokens file");
    assert!(process.send("POST", "/v1/tasks", &task("q")).starts_with("HTTP/1.1 201"));
    process.signal(Signal::TERM);
    assert_eq!(process.wait(), Some(0));
}

#[test]
fn a_hang_up_reads_the_tokens_again_and_keeps_them_if_broken() {
    let folder = TempDir::new().unwrap();
    let (path, first) = one_token(folder.path(), "first");
    let mut command = command(&folder.path().join("data"));
    command.arg("--tokens").arg(&path);
    let mut process = spawn(command);
    let log = Log::of(&mut process);
    let status = |token: &str| {
        let bearer = format!("authorization: Bearer {token}\r\n");
        process.send_with("GET", "/v1/queues", &bearer, "").split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(status(&first), "200");
    let (_, second) = one_token(folder.path(), "second");
    assert_eq!(status(&second), "401", "nothing is read without a signal");
    process.signal(Signal::HUP);
    let lines = log.until("tokens were read again");
    assert!(lines.contains("second") && lines.contains("first"), "{lines}");
    assert_eq!((status(&first).as_str(), status(&second).as_str()), ("401", "200"));
    std::fs::write(&path, "[[token]]\nname = 7\nsha256 = \"canary\"").unwrap();
    process.signal(Signal::HUP);
    let lines = log.until("the old ones stay in force");
    assert!(lines.contains("line 2") && !lines.contains("canary"), "{lines}");
    assert_eq!(status(&second), "200");
    process.signal(Signal::TERM);
    assert_eq!(process.wait(), Some(0));
}

#[test]
fn the_log_names_callers_of_changes_and_refusals() {
    let folder = TempDir::new().unwrap();
    let (path, token) = one_token(folder.path(), "ops");
    let mut command = command(&folder.path().join("data"));
    command.arg("--tokens").arg(&path);
    let mut process = spawn(command);
    let bearer = format!("authorization: Bearer {token}\r\n");
    let made = process.send_with("POST", "/v1/tasks", &bearer, &task("q"));
    let id = made.split("\"id\":").nth(1).unwrap().split(',').next().unwrap().to_owned();
    process.send_with("POST", &format!("/v1/tasks/{id}/cancel"), &bearer, "");
    process.send_with("POST", &format!("/v1/tasks/{id}/retry"), &bearer, "");
    let count = json!({ "shard_count": 7 }).to_string();
    process.send_with("PUT", "/v1/services/s", &bearer, &count);
    let comes = json!({"maxShardCount": 7, "session": "p"}).to_string();
    process.send_with("POST", "/v1/services/s/workers/w/register", &bearer, &comes);
    let goes = json!({ "session": "p" }).to_string();
    process.send_with("POST", "/v1/services/s/workers/w/deregister", &bearer, &goes);
    // There is no cluster; the log says who wanted what all the same.
    process.send_with("POST", "/v1/cluster/leader", &bearer, &json!({"desired": "elsewhere"}).to_string());
    for _ in 0..200 {
        process.send_with("POST", &format!("/v1/tasks/{id}/cancel"), "authorization: Bearer orx_x\r\n", "");
    }
    process.signal(Signal::TERM);
    assert_eq!(process.wait(), Some(0));
    let mut log = String::new();
    process.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    let audit: Vec<&str> = log.lines().filter(|line| line.contains(" audit token=")).collect();
    let of = |route: &str| {
        let found: Vec<_> = audit.iter().filter(|line| line.contains(route)).collect();
        assert_eq!(found.len(), 1, "{route}: {log}");
        found[0].to_string()
    };
    let cancel = of("POST /v1/tasks/{id}/cancel");
    for part in ["INFO", "token=\"ops\"", "status=200", &format!("/v1/tasks/{id}/cancel")] {
        assert!(cancel.contains(part), "{part}: {cancel}");
    }
    assert!(of("/retry").contains("not_failed"));
    assert!(of("PUT /v1/services/{service}").contains("/v1/services/s"));
    for route in ["/register", "/deregister"] {
        assert!(of(route).contains("status=200"), "{log}");
    }
    assert!(of("POST /v1/cluster/leader").contains("target=\"elsewhere\""), "{log}");
    assert_eq!(audit.len(), 6, "submits are not told: {audit:?}");
    let refused = log.lines().filter(|line| line.contains("a caller was refused")).count();
    assert_eq!(refused, 10, "a flood does not fill the log");
}

#[test]
fn the_log_warns_of_a_password_among_the_arguments() {
    let folder = TempDir::new().unwrap();
    let mut command = command(&folder.path().join("data"));
    // Nobody is there; that is for later.
    let mut child = command.args(["--engine", "redis://u:canary@127.0.0.1:1"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(first.contains("WARN") && first.contains("--engine-file"), "{first}");
    assert!(!first.contains("canary"), "{first}");
}

#[test]
fn a_tokens_file_that_does_not_answer_stops_nothing() {
    let folder = TempDir::new().unwrap();
    let (path, token) = one_token(folder.path(), "first");
    let mut command = command(&folder.path().join("data"));
    command.arg("--tokens").arg(&path);
    let mut process = spawn(command);
    let log = Log::of(&mut process);
    std::fs::remove_file(&path).unwrap();
    assert!(Command::new("mkfifo").arg("-m").arg("600").arg(&path).status().unwrap().success());
    process.signal(Signal::HUP);
    let told = log.until("the old ones stay in force");
    assert!(told.contains("not a regular file"), "{told}");
    let asked = process.send_with("GET", "/v1/queues", &format!("authorization: Bearer {token}\r\n"), "");
    assert!(asked.starts_with("HTTP/1.1 200"), "{asked}");
    process.signal(Signal::HUP);
    process.signal(Signal::TERM);
    assert_eq!(process.wait(), Some(0));
}
