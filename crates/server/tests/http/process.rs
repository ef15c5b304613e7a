//! `orchestrix serve` as a process: what it says, how it stops, what it refuses to start with.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;

/// Longer than anything here takes; a test that waits so long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A running coordinator; killed when it is dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) port: u16,
    greeting: String,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn command(data: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orchestrix"));
    command.env_clear().args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) fn spawn(mut command: Command) -> Process {
    let mut child = command.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut greeting = String::new();
    while !greeting.contains("access ") {
        if out.read_line(&mut greeting).unwrap() == 0 {
            let mut why = String::new();
            child.stderr.take().unwrap().read_to_string(&mut why).unwrap();
            panic!("it did not start: {greeting}{why}");
        }
    }
    let port = port_after(&greeting, "http://127.0.0.1:");
    Process { child, port, greeting }
}

fn port_after(greeting: &str, start: &str) -> u16 {
    let port = greeting.split(start).nth(1).unwrap();
    port.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

/// Starts one whose output the test does not read; where it serves stands in a file.
pub(crate) fn spawn_quiet(command: Command, port: &Path) -> Process {
    let mut process = Process::starting(command);
    process.port = wait_until("the port is written", || {
        let ended = process.child.try_wait().unwrap();
        assert!(ended.is_none(), "serve ended with {ended:?}");
        std::fs::read_to_string(port).ok()?.strip_suffix('\n')?.parse().ok()
    });
    process
}

impl Process {
    /// One that serves nothing yet, and perhaps never will.
    pub(crate) fn starting(mut command: Command) -> Self {
        let child = command.spawn().unwrap();
        // The command has a copy of every pipe that it was given.
        drop(command);
        Self { child, port: 0, greeting: String::new() }
    }

    /// What it said when it was ready.
    pub(crate) fn greeting(&self) -> &str {
        &self.greeting
    }

    /// Where it serves ZeroMQ.
    pub(crate) fn zmq_port(&self) -> u16 {
        port_after(&self.greeting, "tcp://127.0.0.1:")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn wait(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it did not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends a request on a connection of its own.
    pub(crate) fn send(&self, method: &str, path: &str, body: &str) -> String {
        self.send_with(method, path, "", body)
    }

    /// The same with more headers.
    pub(crate) fn send_with(&self, method: &str, path: &str, headers: &str, body: &str) -> String {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        self.write_with(&mut stream, method, path, headers, body);
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn write(&self, stream: &mut std::net::TcpStream, method: &str, path: &str, body: &str) {
        self.write_with(stream, method, path, "", body);
    }

    fn write_with(
        &self,
        stream: &mut std::net::TcpStream,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
        );
        std::io::Write::write_all(stream, request.as_bytes()).unwrap();
    }
}

/// Looks until there is something to see.
pub(crate) fn wait_until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn refused(mut command: Command) -> (i32, String) {
    let Output { status, stderr, stdout } = command.output().unwrap();
    let (stderr, stdout) = (String::from_utf8(stderr).unwrap(), String::from_utf8(stdout).unwrap());
    assert_eq!(stdout, "", "{stderr}");
    (status.code().unwrap(), stderr)
}

pub(crate) fn task(queue: &str) -> String {
    json!({ "queue": queue, "payload": 1 }).to_string()
}

#[test]
fn it_prints_its_address_and_stops_cleanly() {
    let folder = TempDir::new().unwrap();
    for (signal, events) in [(Signal::TERM, "journal    new"), (Signal::INT, "events recovered")] {
        let mut process = spawn(command(&folder.path().join("data")));
        let greeting = &process.greeting;
        for part in ["is ready", "dashboard  http://127.0.0.1:", "(engine: file)", "node-1", events] {
            assert!(greeting.contains(part), "{part} is not in {greeting}");
        }
        assert!(!greeting.contains('\x1b'), "colours are for terminals");
        assert!(process.send("POST", "/v1/tasks", &task("q")).starts_with("HTTP/1.1 201"));
        process.signal(signal);
        assert_eq!(process.wait(), Some(0));
    }
    let process = spawn(command(&folder.path().join("data")));
    let tasks = process.send("GET", "/v1/tasks", "");
    assert_eq!(tasks.matches("\"state\":\"WAITING\"").count(), 2, "{tasks}");
}

#[test]
fn the_log_has_the_requested_level() {
    let folder = TempDir::new().unwrap();
    // The variable of old, ours over it, the flag over both; and what the log then has.
    let ways = [
        ([None, None, None], true, false),
        ([Some("debug"), None, None], true, true),
        ([Some("debug"), Some("warn"), None], false, false),
        ([Some("error"), Some("warn"), Some("debug")], true, true),
    ];
    for (way, info, debug) in ways {
        let mut command = command(&folder.path().join("data"));
        let [old, ours, flag] = way;
        command.envs(old.map(|level| ("LOG_LEVEL", level))).envs(ours.map(|level| ("ORCHESTRIX_LOG", level)));
        command.args(flag.map(|level| format!("--log={level}")));
        let mut process = spawn(command);
        // A refusal is worth a line of the level `debug`, a stop one of `info`.
        process.send("POST", "/v1/tasks", "no JSON");
        process.signal(Signal::TERM);
        assert_eq!(process.wait(), Some(0));
        let mut log = String::new();
        process.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        assert_eq!(log.contains("stopped"), info, "{way:?}: {log}");
        assert_eq!(log.contains("refused"), debug, "{way:?}: {log}");
    }
}

#[test]
fn a_stop_answers_calls_that_wait() {
    let folder = TempDir::new().unwrap();
    let mut process = spawn(command(&folder.path().join("data")));
    let mut waiting = std::net::TcpStream::connect(("127.0.0.1", process.port)).unwrap();
    let ask = json!({ "worker": "w", "wait_ms": 60_000 }).to_string();
    process.write(&mut waiting, "POST", "/v1/queues/q/lease", &ask);
    while !process.send("GET", "/metrics", "").contains("orchestrix_polls 1") {}
    process.signal(Signal::TERM);
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("{\"leases\":[],"), "{answer}");
    assert_eq!(process.wait(), Some(0));
}

#[test]
fn a_second_signal_does_not_wait() {
    let folder = TempDir::new().unwrap();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let mut process = spawn(command(&folder.path().join("data")));
        // A request whose body never comes keeps the first signal waiting.
        let mut hanging = std::net::TcpStream::connect(("127.0.0.1", process.port)).unwrap();
        let head = b"POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\n";
        std::io::Write::write_all(&mut hanging, head).unwrap();
        while !process.send("GET", "/metrics", "").contains("orchestrix_http_connections 2") {}
        process.signal(signal);
        while std::net::TcpStream::connect(("127.0.0.1", process.port)).is_ok() {}
        process.signal(signal);
        assert_eq!(process.wait(), Some(code));
    }
}

#[test]
fn killed_at_any_moment_it_has_what_it_acknowledged() {
    let folder = TempDir::new().unwrap();
    let mut process = spawn(command(&folder.path().join("data")));
    for _ in 0..20 {
        assert!(process.send("POST", "/v1/tasks", &task("q")).starts_with("HTTP/1.1 201"));
    }
    process.signal(Signal::KILL);
    assert_eq!(process.wait(), None);
    let process = spawn(command(&folder.path().join("data")));
    assert_eq!(process.send("GET", "/v1/tasks", "").matches("\"WAITING\"").count(), 20);
}

#[test]
fn the_port_is_written_to_a_file() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("port");
    let mut command = command(&folder.path().join("data"));
    command.arg("--port-file").arg(&file);
    let process = spawn(command);
    let deadline = Instant::now() + Duration::from_secs(20);
    while !file.exists() {
        assert!(Instant::now() < deadline);
    }
    let port = process.port;
    while std::fs::read_to_string(&file).unwrap() != format!("{port}\n") {
        assert!(Instant::now() < deadline);
    }
}

#[test]
fn wrong_settings_are_reported_in_a_sentence() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    let settings = folder.path().join("settings.toml");
    std::fs::write(&settings, "listne = 1\n").unwrap();
    let with = |arguments: &[&str]| {
        let mut command = command(&data);
        command.args(arguments);
        refused(command)
    };
    let settings = settings.to_str().unwrap();
    for (arguments, told) in [
        (&["--config", settings][..], "unknown field `listne`"),
        (&["--config", "/nowhere.toml"], "cannot read the settings file /nowhere.toml"),
        (&["--tokens", "/nowhere.toml"], "cannot read the tokens file /nowhere.toml"),
        (&["--log", "loud=very=much"], "the log level \"loud=very=much\" cannot be used"),
        (&["--retention", "5"], "30s"),
        (&["--max-body", "1"], "max_body is 1; at least 1024 is needed"),
    ] {
        let (code, stderr) = with(arguments);
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains(told), "{stderr}");
    }
    let mut from_variable = command(&data);
    from_variable.env("ORCHESTRIX_MAX_BODY", "lots");
    let (code, stderr) = refused(from_variable);
    assert_eq!(code, 2);
    assert!(stderr.contains("the variable ORCHESTRIX_MAX_BODY cannot be used"), "{stderr}");
    assert!(!data.exists(), "nothing was touched");
}

#[test]
fn other_machines_are_served_only_with_tokens_and_open_eyes() {
    let folder = TempDir::new().unwrap();
    let tokens = folder.path().join("tokens.toml");
    let new = Command::new(env!("CARGO_BIN_EXE_orchestrix"))
        .args(["token", "new", "--name", "ci", "--role", "admin"])
        .output()
        .unwrap();
    let text = String::from_utf8(new.stdout).unwrap();
    let (shown, lines) = text.split_once("add to the tokens file:").unwrap();
    let token = shown.split_once("orx_").unwrap().1.trim();
    std::fs::write(&tokens, lines).unwrap();
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o600)).unwrap();
    let open = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orchestrix"));
        command
            .env_clear()
            .args(["serve", "--listen", "0.0.0.0:0", "--data"])
            .arg(folder.path().join("data"));
        command.args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let tokens_path = tokens.to_str().unwrap();
    for (more, told) in [
        (&[][..], "give --tokens FILE, or listen on 127.0.0.1"),
        (&["--insecure-plaintext"], "give --tokens FILE"),
        (&["--tokens", tokens_path], "--insecure-plaintext if you trust the network"),
    ] {
        let (code, stderr) = refused(open(more));
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains(told), "{stderr}");
    }
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o644)).unwrap();
    let (code, stderr) = refused(open(&["--tokens", tokens_path, "--insecure-plaintext"]));
    assert_eq!(code, 2);
    assert!(stderr.contains("chmod 600"), "{stderr}");
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o600)).unwrap();
    let mut command = command(&folder.path().join("data"));
    command.args(["--tokens", tokens_path, "--log", "trace"]);
    let mut process = spawn(command);
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", process.port)).unwrap();
    let request = format!(
        "GET /v1/queues HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer orx_{token}\r\n\r\n"
    );
    std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    process.signal(Signal::TERM);
    assert_eq!(process.wait(), Some(0));
    let mut log = String::new();
    process.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(!log.is_empty() && !log.contains(token), "a token is never logged");
}

#[test]
fn zeromq_is_loopback_only_and_its_address_is_printed() {
    let folder = TempDir::new().unwrap();
    let serve = |name: &str, zmq: &str| {
        let mut command = command(&folder.path().join(name));
        command.args(["--zmq", zmq]);
        command
    };
    for address in ["tcp://0.0.0.0:5555", "tcp://*:5555", "10.0.0.1:5555"] {
        let (code, stderr) = refused(serve("none", address));
        assert_eq!(code, 2, "{stderr}");
        assert!(
            stderr.contains("other machines") && stderr.contains("--zmq tcp://127.0.0.1:5555"),
            "{stderr}"
        );
    }
    let mut older = command(&folder.path().join("none"));
    older.env("SHARD_COORDINATOR_BIND_HOST", "tcp://0.0.0.0");
    assert!(refused(older).1.contains("other machines"));
    assert!(!folder.path().join("none").exists());
    let first = spawn(serve("first", "127.0.0.1:0"));
    let (_, at) = first.greeting.split_once("ZeroMQ on tcp://").unwrap();
    let (code, stderr) = refused(serve("second", at.lines().next().unwrap()));
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("in use") && stderr.contains("--zmq"), "{stderr}");
    let off = spawn(serve("off", "off"));
    assert!(off.greeting.contains("shards     over HTTP\n"), "{}", off.greeting);
}

#[test]
fn a_port_or_a_folder_in_use_is_reported() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    let process = spawn(command(&data));
    let (code, stderr) = refused(command(&data));
    assert_eq!(code, 1, "{stderr}");
    assert!(
        stderr.contains(data.to_str().unwrap()) && stderr.contains("another process is using"),
        "{stderr}"
    );
    let mut same_port = Command::new(env!("CARGO_BIN_EXE_orchestrix"));
    let address = format!("127.0.0.1:{}", process.port);
    let elsewhere = folder.path().join("other");
    same_port.env_clear().args(["serve", "--listen", &address, "--data"]).arg(&elsewhere);
    let (code, stderr) = refused(same_port);
    assert_eq!(code, 1);
    assert!(
        stderr.contains(&address) && stderr.contains("in use") && stderr.contains("--listen"),
        "{stderr}"
    );
    assert!(!elsewhere.exists());
}

#[test]
fn an_unusable_data_folder_is_named() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "not a folder").unwrap();
    let (code, stderr) = refused(command(&file));
    assert_eq!(code, 1);
    assert!(stderr.contains(file.to_str().unwrap()) && stderr.contains("--data"), "{stderr}");
    // Nobody can make a folder there, whoever runs the tests.
    let (code, stderr) = refused(command(Path::new("/proc/orchestrix")));
    assert_eq!(code, 1);
    assert!(stderr.contains("/proc/orchestrix") && stderr.contains("--data"), "{stderr}");

    let data = folder.path().join("data");
    let mut process = spawn(command(&data));
    for _ in 0..5 {
        assert!(process.send("POST", "/v1/tasks", &task("needle")).starts_with("HTTP/1.1 201"));
    }
    process.signal(Signal::TERM);
    assert_eq!(process.wait(), Some(0));
    drop(process);
    let segment = segment_of(&data);
    let mut bytes = std::fs::read(&segment).unwrap();
    let place = place_of_queue(&bytes).unwrap();
    bytes[place] ^= 0x01;
    std::fs::write(&segment, bytes).unwrap();
    let (code, stderr) = refused(command(&data));
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains(segment.file_name().unwrap().to_str().unwrap()), "{stderr}");
    let look = format!("orchestrix journal verify {}", data.display());
    assert!(stderr.contains(&look) && stderr.contains("backup"), "{stderr}");
}

/// The file below a folder that has the name of the queue in it: the segment of the journal.
fn segment_of(folder: &Path) -> PathBuf {
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap().map(Result::unwrap) {
            if entry.metadata().unwrap().is_dir() {
                folders.push(entry.path());
            } else if place_of_queue(&std::fs::read(entry.path()).unwrap()).is_some() {
                return entry.path();
            }
        }
    }
    panic!("no segment below {}", folder.display());
}

/// The name of the queue, as CBOR writes it.
fn place_of_queue(bytes: &[u8]) -> Option<usize> {
    bytes.windows(7).position(|window| window == b"\x66needle").map(|place| place + 1)
}
