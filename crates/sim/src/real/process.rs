//! The coordinator as a process, with a folder and a port of its own, gone when its owner is.

use std::io::{PipeWriter, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use orchestrix_client::Client;
use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use super::{Checked, failed};

/// Longer than anything takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks at something that will be.
const PAUSE: Duration = Duration::from_millis(5);

/// The next segment and the reserve, where there is room for all of it.
const SPARES: usize = 5;

/// A coordinator, running or not.
pub(crate) struct Coordinator {
    child: Option<Child>,
    port: u16,
    folder: TempDir,
    data: PathBuf,
    binary: PathBuf,
    options: Vec<String>,
    /// Where it listens, on a port of its own choice unless it has one.
    host: IpAddr,
    own_port: u16,
    token: Option<String>,
    /// What it is started under, if not by itself.
    under: Option<Under>,
    /// Where standard output and standard error go.
    prints: [Prints; 2],
}

/// Where a process prints.
#[derive(Debug)]
pub(crate) enum Prints {
    /// A file beside the data.
    File,
    Pipe(PipeWriter),
}

/// Makes the beginning of a command that another follows.
pub(crate) type Under = Box<dyn Fn() -> Command + Send>;

/// How a process ended, and what it said.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) said: String,
}

impl Coordinator {
    /// A folder, and no process yet.
    pub(crate) fn prepare(binary: &Path, options: &[&str]) -> Checked<Self> {
        let folder = TempDir::new().map_err(failed("make a folder"))?;
        let data = folder.path().join("data");
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let (binary, host) = (binary.to_owned(), IpAddr::V4(Ipv4Addr::LOCALHOST));
        Ok(Self {
            child: None,
            port: 0,
            folder,
            data,
            binary,
            options,
            host,
            own_port: 0,
            token: None,
            under: None,
            prints: [Prints::File, Prints::File],
        })
    }

    /// The same, with its data elsewhere.
    pub(crate) fn prepare_on(binary: &Path, data: PathBuf) -> Checked<Self> {
        let mut coordinator = Self::prepare(binary, &[])?;
        coordinator.data = data;
        Ok(coordinator)
    }

    /// The same at another address, to which only those with a token are let in.
    pub(crate) fn at(mut self, host: IpAddr, token: String, under: Under) -> Self {
        (self.host, self.token, self.under) = (host, Some(token), Some(under));
        self
    }

    /// The same on a port that it keeps when it starts again.
    pub(crate) fn on_port(mut self, port: u16) -> Self {
        self.own_port = port;
        self
    }

    /// Another program from the next start on.
    pub(crate) fn becomes(&mut self, binary: &Path) {
        binary.clone_into(&mut self.binary);
    }

    /// Starts it and waits until it serves.
    pub(crate) fn launch(&mut self) -> Checked {
        self.start(None)?;
        self.await_ready()
    }

    /// Starts it, as the last words of another program if one is given, which has to become it.
    pub(crate) fn start(&mut self, program: Option<Command>) -> Checked {
        let port_file = self.file("port");
        if port_file.exists() {
            std::fs::remove_file(&port_file).map_err(failed("remove the file of the port"))?;
        }
        let mut program = match program.or_else(|| self.under.as_ref().map(|under| under())) {
            Some(mut program) => {
                program.arg(&self.binary);
                program
            }
            None => Command::new(&self.binary),
        };
        let (stdout, stderr) = (self.output("stdout", 0)?, self.output("stderr", 1)?);
        let listen = format!("{}:{}", self.host, self.own_port);
        program.arg("serve").arg("--data").arg(&self.data).args(["--listen", &listen, "--port-file"]);
        program.arg(&port_file).args(&self.options).stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        self.child = Some(program.spawn().map_err(failed("start the coordinator"))?);
        Ok(())
    }

    fn output(&self, name: &str, place: usize) -> Checked<Stdio> {
        Ok(match &self.prints[place] {
            Prints::File => std::fs::File::create(self.file(name)).map_err(failed("make a file"))?.into(),
            Prints::Pipe(writer) => writer.try_clone().map_err(failed("copy a pipe"))?.into(),
        })
    }

    /// Where it prints when it is started next.
    pub(crate) fn prints(&mut self, stdout: Prints, stderr: Prints) {
        self.prints = [stdout, stderr];
    }

    pub(crate) fn await_ready(&mut self) -> Checked {
        self.port = eventually("the coordinator is ready", || {
            if let Some(status) = self.child()?.try_wait().map_err(failed("look at the coordinator"))? {
                return Err(format!("the coordinator ended with {status}: {}", self.said()));
            }
            Ok(self.served_port())
        })?;
        Ok(())
    }

    /// Waits until the spares are prepared with which it begins.
    pub(crate) fn await_reserve(&self) -> Checked {
        eventually("all spares are prepared", || {
            let names = std::fs::read_dir(&self.data).map_err(failed("list the data folder"))?;
            let spares =
                names.flatten().filter(|entry| entry.path().extension().is_some_and(|end| end == "spare"));
            Ok((spares.count() >= SPARES).then_some(()))
        })
    }

    /// Whether it has come so far as to serve.
    pub(crate) fn is_ready(&self) -> bool {
        self.served_port().is_some()
    }

    fn served_port(&self) -> Option<u16> {
        std::fs::read_to_string(self.file("port")).ok()?.strip_suffix('\n')?.parse().ok()
    }

    /// A client that repeats nothing by itself.
    pub(crate) fn client(&self) -> Checked<Client> {
        self.client_with(PATIENCE, 0)
    }

    /// One that waits so long for each answer, and repeats a call so often.
    pub(crate) fn client_with(&self, timeout: Duration, retries: u32) -> Checked<Client> {
        let mut builder = Client::builder(&self.url()).retries(retries).timeout(timeout);
        if let Some(token) = &self.token {
            builder = builder.token(token);
        }
        builder.build().map_err(failed("make a client"))
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}:{}", self.host, self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    pub(crate) fn binary(&self) -> &Path {
        &self.binary
    }

    /// A file beside the data.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn pid(&self) -> Checked<Pid> {
        let child = self.child.as_ref().ok_or("the coordinator does not run")?;
        Ok(Pid::from_child(child))
    }

    pub(crate) fn signal(&self, signal: Signal) -> Checked {
        rustix::process::kill_process(self.pid()?, signal).map_err(failed("send a signal"))
    }

    /// Kills it without a warning.
    pub(crate) fn kill(&mut self) -> Checked {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        child.kill().map_err(failed("kill the coordinator"))?;
        child.wait().map_err(failed("wait for the coordinator"))?;
        Ok(())
    }

    /// Waits until it has ended by itself.
    pub(crate) fn ended(&mut self) -> Checked<Ended> {
        let status = eventually("the coordinator ends", || {
            self.child()?.try_wait().map_err(failed("look at the coordinator"))
        })?;
        self.child = None;
        Ok(Ended { code: status.code(), signal: status.signal(), said: self.said() })
    }

    /// What it wrote to standard error.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(self.file("stderr")).unwrap_or_default()
    }

    /// What it wrote to standard output: where everything is, and what was recovered.
    pub(crate) fn greeting(&self) -> String {
        std::fs::read_to_string(self.file("stdout")).unwrap_or_default()
    }

    /// The whole answer to a plain request.
    pub(crate) fn get(&self, path: &str) -> Checked<String> {
        let mut socket = TcpStream::connect((self.host, self.port)).map_err(|error| {
            let said = self.said();
            let last: Vec<&str> = said.lines().rev().take(3).collect();
            format!("cannot connect to the coordinator: {error}; it said last: {last:?}")
        })?;
        socket.set_read_timeout(Some(PATIENCE)).map_err(failed("set a timeout"))?;
        let host = format!("{}:{}", self.host, self.port);
        let token = self.token.as_ref().map(|token| format!("Authorization: Bearer {token}\r\n"));
        let token = token.unwrap_or_default();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{token}Connection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).map_err(failed("send a request"))?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).map_err(failed("read an answer"))?;
        Ok(answer)
    }

    /// What a metric without labels says.
    pub(crate) fn metric(&self, name: &str) -> Checked<u64> {
        let answer = self.get("/metrics")?;
        let value = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        value.ok_or_else(|| format!("there is no metric {name}"))
    }

    /// Bytes of memory that it has in use.
    pub(crate) fn resident_bytes(&self) -> Checked<u64> {
        let status = self.proc("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        Ok(kib.ok_or("the process has no VmRSS")? << 10)
    }

    /// How many files and sockets it has open.
    pub(crate) fn descriptors(&self) -> Checked<u64> {
        let folder = format!("/proc/{}/fd", self.pid()?.as_raw_nonzero());
        Ok(std::fs::read_dir(folder).map_err(failed("list file descriptors"))?.count() as u64)
    }

    /// Whether every thread of it is under a tracer.
    pub(crate) fn is_traced(&self) -> Checked<bool> {
        let folder = format!("/proc/{}/task", self.pid()?.as_raw_nonzero());
        let threads = std::fs::read_dir(folder).map_err(failed("list threads"))?;
        let traced = |thread: std::io::Result<std::fs::DirEntry>| {
            let status = std::fs::read_to_string(thread?.path().join("status"))?;
            Ok(status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0")))
        };
        let all: std::io::Result<Vec<bool>> = threads.map(traced).collect();
        // A thread that ends meanwhile is not under anything any more; the next look does without it.
        Ok(all.is_ok_and(|all| all.into_iter().all(|traced| traced)))
    }

    fn proc(&self, name: &str) -> Checked<String> {
        let path = format!("/proc/{}/{name}", self.pid()?.as_raw_nonzero());
        std::fs::read_to_string(path).map_err(failed("look at the process"))
    }

    fn child(&mut self) -> Checked<&mut Child> {
        self.child.as_mut().ok_or_else(|| "the coordinator does not run".to_owned())
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        // A frozen process is killed as well; a process that cannot be killed is gone already.
        let _ = self.kill();
    }
}

/// Waits until something is there.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Checked<Option<T>>) -> Checked<T> {
    let began = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if began.elapsed() >= PATIENCE {
            return Err(format!("waited {PATIENCE:?} in vain: {what}"));
        }
        std::thread::sleep(PAUSE);
    }
}

/// A runtime for the clients of the coordinator.
pub(crate) fn runtime() -> Checked<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build().map_err(failed("start a runtime"))?;
    // A campaign may have been started with SIGCHLD ignored; its children are waited for all the same.
    let inside = runtime.enter();
    let child = tokio::signal::unix::SignalKind::child();
    drop(tokio::signal::unix::signal(child).map_err(failed("listen for the end of children"))?);
    drop(inside);
    Ok(runtime)
}
