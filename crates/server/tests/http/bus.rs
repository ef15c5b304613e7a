//! `orchestrix serve` with a bus: where it is, and what a bus that is away or refuses keeps from whom.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Command;

use orchestrix_testbed::{Server, free_port, redis};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::process::{PATIENCE, Process, command, spawn, task, wait_until};
use crate::signals::Log;

/// The user of the page about the engine on Redis, and of the page about the bus.
const ENGINE: &str = include_str!("../../../../docs/engines/redis.md");
const BUS: &str = include_str!("../../../../docs/bus.md");

fn server() -> Server {
    Server::start(redis(&["--appendonly", "yes"])).unwrap()
}

/// Runs a command on the server.
fn run(server: &Server, line: &str) {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("{line}\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    assert_eq!(answer, "+OK\r\n", "{line}");
}

/// Makes the user of a page, with these rights more or less, and gives the URL.
fn url_of(page: &str, server: &Server, changed: &str) -> String {
    let line = page.lines().find(|line| line.starts_with("ACL SETUSER orchestrix ")).unwrap();
    run(server, format!("{} {changed}", line.replace("PASSWORD", "canary")).trim_end());
    format!("redis://orchestrix:canary@127.0.0.1:{}", server.port())
}

/// One that keeps its tasks where these arguments say.
fn serve(folder: &TempDir, arguments: &[&str]) -> Command {
    let mut command = command(&folder.path().join("data"));
    command.args(["--zmq", "off"]).args(arguments);
    command
}

fn stop(mut process: Process) {
    process.signal(Signal::TERM);
    assert_eq!(process.wait(), Some(0));
}

#[test]
fn every_engine_takes_a_bus_of_its_own() {
    let (server, folder) = (server(), TempDir::new().unwrap());
    for engine in ["file", "memory"] {
        // A bus belongs to one journal.
        run(&server, "FLUSHALL");
        let bus = url_of(BUS, &server, "");
        let mut process = spawn(serve(&folder, &["--engine", engine, "--bus", &bus]));
        let row = format!("bus        redis://127.0.0.1:{}/0, domain default\n", server.port());
        assert!(process.greeting().contains(&row), "{}", process.greeting());
        let log = Log::of(&mut process).until("the bus is used from now on");
        assert!(log.contains("--bus-file FILE") && !log.contains("canary"), "{log}");
        stop(process);
    }
}

#[test]
fn an_engine_on_redis_carries_the_bus_unless_it_is_off() {
    let (server, folder) = (server(), TempDir::new().unwrap());
    let engine = url_of(ENGINE, &server, "~orchestrix.* +time");
    let process = spawn(serve(&folder, &["--engine", &engine]));
    let rows = process.greeting().lines().filter(|line| line.contains("domain default")).count();
    assert_eq!(rows, 2, "the journal and the bus: {}", process.greeting());
    stop(process);
    let process = spawn(serve(&folder, &["--engine", &engine, "--bus", "off"]));
    assert!(!process.greeting().contains("bus "), "{}", process.greeting());
    stop(process);
}

#[test]
fn an_engine_that_may_not_carry_a_bus_serves_over_http() {
    let (server, folder) = (server(), TempDir::new().unwrap());
    let engine = url_of(ENGINE, &server, "");
    let process = spawn(serve(&folder, &["--engine", &engine]));
    let greeting = process.greeting();
    assert!(
        greeting.contains("bus        none; the engine refuses it") && greeting.contains("orchestrix."),
        "{greeting}"
    );
    wait_until("a task is taken", || {
        process.send("POST", "/v1/tasks", &task("q")).starts_with("HTTP/1.1 201").then_some(())
    });
    stop(process);
}

#[test]
fn a_bus_that_was_asked_for_and_refuses_ends_the_start() {
    let (server, folder) = (server(), TempDir::new().unwrap());
    let bus = url_of(BUS, &server, "-xreadgroup");
    let wrong = bus.replace("canary", "wrong-canary");
    for (bus, told) in [(&bus, "xreadgroup"), (&wrong, "127.0.0.1")] {
        let out = serve(&folder, &["--bus", bus]).output().unwrap();
        let why = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(1), "{why}");
        assert!(why.contains(told) && !why.contains("canary"), "{why}");
    }
    assert!(!folder.path().join("data").exists(), "nothing was opened");
}

#[test]
fn a_bus_that_is_away_keeps_nobody_from_working_over_http() {
    let (folder, port) = (TempDir::new().unwrap(), free_port());
    let mut process = spawn(serve(&folder, &["--bus", &format!("redis://127.0.0.1:{port}")]));
    assert!(process.greeting().contains("bus        does not answer yet"), "{}", process.greeting());
    let log = Log::of(&mut process);
    assert!(process.send("POST", "/v1/tasks", &task("q")).starts_with("HTTP/1.1 201"));
    for path in ["/health", "/ready"] {
        assert!(process.send("GET", path, "").starts_with("HTTP/1.1 200"), "{path}");
    }
    let why = || process.send("GET", "/v1/cluster", "").contains("the bus does not answer");
    assert!(why());
    log.until("workers are served over HTTP");
    let _server = Server::start(redis(&[]).on_port(port)).unwrap();
    let told = log.until("the bus is used from now on");
    assert!(told.contains("the bus answers"), "{told}");
    wait_until("the bus is no reason any more", || (!why()).then_some(()));
    stop(process);
}

#[test]
fn a_stop_does_not_wait_for_a_bus_that_is_away() {
    let folder = TempDir::new().unwrap();
    stop(spawn(serve(&folder, &["--bus", &format!("redis://127.0.0.1:{}", free_port())])));
}
