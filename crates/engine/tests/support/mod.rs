//! Real servers for tests: private, on free ports, in folders of their own, killed by their process id.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use orchestrix_ports::free_port;
use tempfile::TempDir;

pub mod http;
pub mod lasting;
pub mod logged;
pub mod proxy;
pub mod writers;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// How to start a server in a folder, on a port.
type Launch = dyn Fn(&Path, u16) -> Command + Send + Sync;

/// A server that ends with its test.
pub struct Server {
    child: Option<Child>,
    command: Box<Launch>,
    ready: Box<dyn Fn(u16) -> bool + Send + Sync>,
    port: u16,
    folder: TempDir,
}

impl Server {
    /// Starts a server and waits until it is ready. `command` gets its folder and its port.
    pub fn start(
        folder: TempDir,
        command: impl Fn(&Path, u16) -> Command + Send + Sync + 'static,
        ready: impl Fn(u16) -> bool + Send + Sync + 'static,
    ) -> Self {
        let (command, ready) = (Box::new(command), Box::new(ready));
        let mut server = Self { child: None, command, ready, port: free_port(), folder };
        server.launch();
        server
    }

    /// Starts it again, on what it left in its folder.
    pub fn launch(&mut self) {
        let mut command = (self.command)(self.folder.path(), self.port);
        let log = std::fs::File::create(self.folder.path().join("log")).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().unwrap_or_else(|error| {
            panic!("cannot start {name}: {error}; `make test` installs what the tests need")
        });
        eventually(&format!("{name} is ready"), || {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "{name} ended with {ended:?}: {}", self.log());
            (self.ready)(self.port).then_some(())
        });
        self.child = Some(child);
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(self.child.as_ref().expect("it is running"))
    }

    /// Kills it without a warning.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Whether somebody listens there.
pub fn listens(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// Waits until something is there.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
