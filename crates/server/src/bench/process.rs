//! Servers as child processes: each has its own folder and port, and ends with its handle.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use super::children::Process;
use super::http;

/// How long a server may take until it answers. A million jobs take a while to read.
const START_MAX: Duration = Duration::from_secs(120);
/// Between two looks at something that will change soon.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// A server that used no processor for so long has nothing left to do.
const QUIET: Duration = Duration::from_millis(300);

/// A running server. Killed when dropped.
#[derive(Debug)]
pub(super) struct Server {
    name: &'static str,
    process: Process,
    pub(super) address: SocketAddr,
    log: PathBuf,
}

impl Server {
    /// Starts a program; what it says goes to a file beside its data.
    ///
    /// # Errors
    /// When there is no such program.
    pub(super) fn spawn(
        name: &'static str,
        mut command: Command,
        address: SocketAddr,
        folder: &Path,
    ) -> Result<Self> {
        let log = folder.with_extension("log");
        let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let program = command.get_program().to_string_lossy().into_owned();
        let process = Process::spawn(&mut command).with_context(|| {
            format!("cannot start {program}; `make bench` installs what is missing, --no-peers does without")
        })?;
        Ok(Self { name, process, address, log })
    }

    /// Waits until somebody listens.
    ///
    /// # Errors
    /// When the process ends or takes too long.
    pub(super) fn wait_until_open(&self) -> Result<()> {
        self.wait_for(|| Ok(TcpStream::connect(self.address).ok())).map(drop)
    }

    /// Looks again and again until there is something.
    ///
    /// # Errors
    /// When the process ends, takes too long, or the look fails.
    pub(super) fn wait_for<T>(&self, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let start = Instant::now();
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            ensure!(self.is_alive(), "{} ended: {}", self.name, self.last_words());
            ensure!(start.elapsed() < START_MAX, "{} is not ready: {}", self.name, self.last_words());
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// Waits until the server has nothing left to do, like a snapshot.
    ///
    /// # Errors
    /// When the process ends or never rests.
    pub(super) fn wait_until_quiet(&self) -> Result<()> {
        let (mut used, mut since) = (self.cpu()?, Instant::now());
        self.wait_for(|| {
            let now = self.cpu()?;
            if now > used {
                (used, since) = (now, Instant::now());
            }
            Ok((since.elapsed() >= QUIET).then_some(()))
        })
    }

    /// Bytes of memory that the process has.
    ///
    /// # Errors
    /// When the process is gone.
    pub(super) fn memory(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.pid()))?;
        parse_rss(&status).with_context(|| format!("{} has no VmRSS", self.name))
    }

    /// Processor time that the process has used.
    ///
    /// # Errors
    /// When the process is gone.
    pub(super) fn cpu(&self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.pid()))?;
        let ticks = parse_ticks(&stat).with_context(|| format!("{}: cannot read {stat:?}", self.name))?;
        Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
    }

    /// Ends the process the hard way, as a crash would.
    pub(super) fn kill(self) {
        drop(self);
    }

    /// # Errors
    /// When the process is gone.
    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        Ok(rustix::process::kill_process(self.process.pid(), signal)?)
    }

    /// Waits until the process has ended by itself.
    ///
    /// # Errors
    /// When it takes too long.
    pub(super) fn wait_for_end(mut self) -> Result<()> {
        let start = Instant::now();
        while self.process.ended()?.is_none() {
            ensure!(start.elapsed() < START_MAX, "{} does not end: {}", self.name, self.last_words());
            thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    fn is_alive(&self) -> bool {
        // A zombie has no memory left.
        self.memory().is_ok()
    }

    fn last_words(&self) -> String {
        let words = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = words.lines().collect();
        lines[lines.len().saturating_sub(5)..].join(" | ")
    }
}

/// Starts `orchestrix serve` on a folder and waits until it is ready.
///
/// # Errors
/// When it does not start.
pub(super) fn start_orchestrix(program: &Path, folder: &Path) -> Result<Server> {
    start_node(program, folder, &[])
}

/// Starts `orchestrix serve` on a folder with some options and waits until it is ready.
///
/// # Errors
/// When it does not start.
pub(super) fn start_node(program: &Path, folder: &Path, options: &[&str]) -> Result<Server> {
    let server = spawn_node(program, folder, options)?;
    server.wait_for(|| Ok(http::get(server.address, "/ready").ok()))?;
    Ok(server)
}

/// Starts `orchestrix serve` on a folder, without waiting for it.
///
/// # Errors
/// When the program cannot be started.
pub(super) fn spawn_orchestrix(program: &Path, folder: &Path) -> Result<Server> {
    spawn_node(program, folder, &[])
}

fn spawn_node(program: &Path, folder: &Path, options: &[&str]) -> Result<Server> {
    let address = free_address();
    let mut command = Command::new(program);
    command.arg("serve").arg("--data").arg(folder).arg("--listen").arg(address.to_string()).args(options);
    Server::spawn("Orchestrix", command, address, folder)
}

/// An address on loopback that nobody listens on.
pub(super) fn free_address() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, orchestrix_ports::free_port()))
}

/// The first line that a program prints.
///
/// # Errors
/// When there is no such program, or it says nothing.
pub(super) fn first_line(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| {
        format!("{program} is not installed; `make bench` installs it, --no-peers does without")
    })?;
    match String::from_utf8_lossy(&output.stdout).lines().next() {
        Some(line) => Ok(line.to_owned()),
        None => bail!("{program} says nothing"),
    }
}

/// Says one line to a server and takes one line of its answer.
///
/// # Errors
/// When it does not answer.
pub(super) fn ask(address: SocketAddr, line: &[u8]) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(START_MAX))?;
    stream.write_all(line)?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    Ok(answer.trim_end().to_owned())
}

fn parse_rss(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// User and system time. The name of the process may contain anything but ends with the last parenthesis.
fn parse_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        assert_eq!(parse_rss("Name:\tx\nVmRSS:\t    2048 kB\n"), Some(2048 * 1024));
        assert_eq!(parse_rss("Name:\tx\n"), None);
    }

    #[test]
    fn processor_time_is_read_past_any_name() {
        let stat = "7 (a ) (b) R 1 2 3 4 5 6 7 8 9 10 30 12 13 14 15";
        assert_eq!(parse_ticks(stat), Some(42));
        assert_eq!(parse_ticks("7 x"), None);
    }

    #[test]
    fn a_process_that_ends_early_is_told_with_its_last_words() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo the disk is damaged >&2; exit 3"]);
        let address = free_address();
        let server = Server::spawn("sh", command, address, &folder.path().join("data")).unwrap();
        let error = server.wait_until_open().unwrap_err().to_string();
        assert_eq!(error, "sh ended: the disk is damaged");
    }
}
