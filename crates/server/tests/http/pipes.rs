//! `orchestrix serve` whose output nobody reads.

use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::process::{Process, command, spawn_quiet, task};

/// Each is answered, with a long line in the log at the level `debug` between two of them.
const SUBMITS: usize = 200;
/// Together more than a queue of lines holds.
const PATH_BYTES: usize = 7_000;

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

fn quiet(folder: &TempDir, arguments: &[&str]) -> Command {
    let mut command = command(&folder.path().join("data"));
    command.args(arguments).arg("--port-file").arg(folder.path().join("port"));
    command
}

fn submits_go_on(process: &Process) {
    for number in 0..SUBMITS {
        let answer = process.send("POST", "/v1/tasks", &task("q"));
        assert!(answer.starts_with("HTTP/1.1 201"), "submit {number}: {answer:?}");
        let answer = process.send("GET", &format!("/{}", "x".repeat(PATH_BYTES)), "");
        assert!(answer.starts_with("HTTP/1.1 404"), "{answer:?}");
    }
}

#[test]
fn an_unread_log_stops_nothing() {
    for format in ["text", "json"] {
        let folder = TempDir::new().unwrap();
        let (mut reader, writer) = full_pipe();
        let mut serve = quiet(&folder, &["--log", "debug", "--log-format", format]);
        serve.stdout(Stdio::null()).stderr(writer);
        let mut process = spawn_quiet(serve, &folder.path().join("port"));
        submits_go_on(&process);
        let metrics = process.send("GET", "/metrics", "");
        let line = metrics.lines().find_map(|line| line.strip_prefix("orchestrix_own_log_dropped_total "));
        let dropped = line.unwrap().parse::<u64>().unwrap();
        assert!(dropped > 0);
        // Somebody reads again: how much is missing is said.
        let reading = std::thread::spawn(move || {
            let mut log = String::new();
            reader.read_to_string(&mut log).unwrap();
            log
        });
        process.send("GET", "/health", "");
        process.signal(Signal::TERM);
        assert_eq!(process.wait(), Some(0));
        let log = reading.join().unwrap();
        let told = log.lines().find(|line| line.contains("log lines were dropped"));
        let told = told.unwrap_or_else(|| panic!("{dropped} are missing, and nothing says so"));
        assert_eq!(told.starts_with('{'), format == "json", "{told}");
        assert!(log.contains("stopped"), "lines come again");
    }
}

#[test]
fn a_stop_does_not_wait_for_a_reader() {
    for (out, err) in [(true, false), (false, true), (true, true)] {
        let folder = TempDir::new().unwrap();
        let (_reader, writer) = full_pipe();
        let mut serve = quiet(&folder, &["--log", "debug"]);
        let pipe =
            |is_full: bool| if is_full { Stdio::from(writer.try_clone().unwrap()) } else { Stdio::null() };
        serve.stdout(pipe(out)).stderr(pipe(err));
        let mut process = spawn_quiet(serve, &folder.path().join("port"));
        submits_go_on(&process);
        process.signal(Signal::TERM);
        assert_eq!(process.wait(), Some(0), "stdout full: {out}, stderr full: {err}");
    }
}

#[test]
fn an_unread_complaint_does_not_delay_the_end() {
    let folder = TempDir::new().unwrap();
    let (_reader, writer) = full_pipe();
    let mut serve = quiet(&folder, &["--max-body", "1"]);
    serve.stdout(Stdio::null()).stderr(writer);
    let mut process = Process::starting(serve);
    assert_eq!(process.wait(), Some(2));
}
