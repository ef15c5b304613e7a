//! A real coordinator for tests: the binary on a free port with a folder of its own, gone when the test is.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use orchestrix_testbed::{eventually, free_port};
use serde_json::Value;
use tempfile::TempDir;

/// A running coordinator.
pub(crate) struct Coordinator {
    child: Option<Child>,
    port: u16,
    data: TempDir,
}

/// A program that is killed when its test ends.
pub(crate) struct Running(pub(crate) Child);

impl Coordinator {
    pub(crate) fn start() -> Self {
        let mut coordinator = Self::prepared();
        coordinator.launch();
        coordinator
    }

    /// A folder and a port, and nobody there yet.
    pub(crate) fn prepared() -> Self {
        let port = free_port();
        Self { child: None, port, data: TempDir::new().unwrap() }
    }

    pub(crate) fn launch(&mut self) {
        self.launch_with(&[]);
    }

    pub(crate) fn launch_with(&mut self, options: &[&str]) {
        let child = Command::new(binary())
            .arg("serve")
            .arg("--data")
            .arg(self.data.path())
            .args(["--listen", &format!("127.0.0.1:{}", self.port)])
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(self.data.path().with_extension("stderr")).unwrap())
            .spawn()
            .unwrap();
        self.child = Some(child);
        eventually("the coordinator is ready", || {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "serve ended with {ended:?}: {}", self.stderr());
            self.get("/ready").filter(|answer| answer.starts_with("HTTP/1.1 200"))
        });
    }

    /// Kills it without a warning.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn data(&self) -> &Path {
        self.data.path()
    }

    /// The command line, pointed to this coordinator.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(arguments).env("ORCHESTRIX_URL", self.url()).env_remove("ORCHESTRIX_TOKEN");
        command
    }

    /// Runs the command line to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).stdin(Stdio::null()).output().unwrap()
    }

    /// Runs a command that has to succeed; answers its lines of JSON.
    pub(crate) fn json(&self, arguments: &[&str]) -> Vec<Value> {
        let output = self.command(arguments).arg("--json").stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Submits a task; answers its id.
    pub(crate) fn submit(&self, arguments: &[&str]) -> String {
        let submitted = self.json(&[&["submit"], arguments].concat());
        submitted[0]["id"].to_string()
    }

    pub(crate) fn task(&self, id: &str) -> Value {
        self.json(&["task", id]).remove(0)
    }

    pub(crate) fn state(&self, id: &str) -> String {
        self.task(id)["state"].as_str().unwrap().to_owned()
    }

    pub(crate) fn wait_for_state(&self, id: &str, state: &str) {
        eventually(&format!("task {id} is {state}"), || (self.state(id) == state).then_some(()));
    }

    /// Starts `orchestrix work`; `--` and the command follow the options.
    pub(crate) fn work(&self, arguments: &[&str]) -> Running {
        let mut command = self.command(&["work"]);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(command.spawn().unwrap())
    }

    /// The whole answer to a plain request.
    pub(crate) fn get(&self, path: &str) -> Option<String> {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        socket.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\n\r\n", self.port);
        socket.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    fn stderr(&self) -> String {
        std::fs::read_to_string(self.data.path().with_extension("stderr")).unwrap_or_default()
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.kill();
        drop(std::fs::remove_file(self.data.path().with_extension("stderr")));
    }
}

impl Running {
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.0.id().cast_signed()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for its end; answers exit code and stdout.
    pub(crate) fn finish(mut self) -> (Option<i32>, String) {
        let mut out = self.0.stdout.take().unwrap();
        let reading = std::thread::spawn(move || {
            let mut stdout = String::new();
            out.read_to_string(&mut stdout).map(|_| stdout)
        });
        let status = eventually("the program ends", || self.0.try_wait().unwrap());
        eventually("its output ends", || reading.is_finished().then_some(()));
        (status.code(), reading.join().unwrap().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Whether a process is there and not a zombie.
pub(crate) fn is_alive(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|status| !status.lines().any(|line| line.starts_with("State:") && line.contains('Z')))
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_orchestrix")
}
