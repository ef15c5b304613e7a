//! A server as a child process, and its state as seen from outside.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use crate::error::failed;
use crate::{Error, Place, Process, Recipe, Result};

/// Longer than anything takes on a busy machine. A million jobs take a while to read.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks at something that will change soon.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// A server that used no processor for so long has nothing left to do.
const QUIET: Duration = Duration::from_millis(300);

/// What PostgreSQL says while processes of the one that was killed before it have not noticed that yet.
const STILL_IN_USE: &str = "pre-existing shared memory block";

/// A server, running or not. Killed when dropped.
#[derive(Debug)]
pub struct Server {
    process: Option<Process>,
    recipe: Recipe,
    place: Place,
    /// The folder, if it goes away with the server.
    _folder: Option<TempDir>,
}

impl Server {
    /// Starts a server in a folder that goes away with it, and waits until it is ready.
    ///
    /// # Errors
    /// When it is not installed or does not start.
    pub fn start(recipe: Recipe) -> Result<Self> {
        let folder = TempDir::new().map_err(failed("make a folder"))?;
        let path = folder.path().to_owned();
        Self::begin(recipe, path, Some(folder))
    }

    /// Starts a server in an empty folder that stays, and waits until it is ready.
    ///
    /// # Errors
    /// When it is not installed or does not start.
    pub fn start_in(folder: &Path, recipe: Recipe) -> Result<Self> {
        fs::create_dir_all(folder).map_err(failed("make a folder"))?;
        Self::begin(recipe, folder.to_owned(), None)
    }

    /// Starts a server on what another left in a folder, without waiting for it.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn_in(folder: &Path, recipe: Recipe) -> Result<Self> {
        let mut server = Self::stopped(recipe, folder.to_owned(), None);
        server.spawn()?;
        Ok(server)
    }

    fn begin(recipe: Recipe, path: PathBuf, folder: Option<TempDir>) -> Result<Self> {
        recipe.prepare(&path)?;
        let mut server = Self::stopped(recipe, path, folder);
        server.launch()?;
        Ok(server)
    }

    fn stopped(recipe: Recipe, path: PathBuf, folder: Option<TempDir>) -> Self {
        let place = Place { folder: path, address: recipe.address };
        Self { process: None, recipe, place, _folder: folder }
    }

    /// Starts it, again if it was killed, on what is in its folder, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not start.
    pub fn launch(&mut self) -> Result {
        let began = Instant::now();
        loop {
            self.spawn()?;
            let ready = self.wait_for(|| Ok(self.recipe.is_ready(&self.place).then_some(())));
            if ready.is_ok() || !self.log().contains(STILL_IN_USE) || began.elapsed() > PATIENCE {
                return ready;
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    fn spawn(&mut self) -> Result {
        let mut command = self.recipe.command(&self.place)?;
        let log = File::create(self.place.folder.join("log")).map_err(failed("write a log"))?;
        let errors = log.try_clone().map_err(failed("write a log"))?;
        command.stdin(Stdio::null()).stdout(log).stderr(errors).current_dir("/");
        let process = Process::spawn(&mut command).map_err(|error| missing(&command, &error))?;
        self.process = Some(process);
        Ok(())
    }

    /// Looks again and again until there is something.
    ///
    /// # Errors
    /// When the process ends, takes too long, or the look fails.
    pub fn wait_for<T>(&self, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let start = Instant::now();
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            let why = match self.is_alive() {
                false => "ended",
                true if start.elapsed() > PATIENCE => "is not ready",
                true => {
                    thread::sleep(LOOK_AGAIN);
                    continue;
                }
            };
            return Err(Error::new(format!("{} {why}: {}", self.recipe.name, self.last_words())));
        }
    }

    /// Waits until the server has nothing left to do, like a snapshot.
    ///
    /// # Errors
    /// When the process ends or never rests.
    pub fn wait_until_quiet(&self) -> Result {
        let (mut used, mut since) = (self.cpu()?, Instant::now());
        self.wait_for(|| {
            let now = self.cpu()?;
            if now > used {
                (used, since) = (now, Instant::now());
            }
            Ok((since.elapsed() >= QUIET).then_some(()))
        })
    }

    /// Waits until the process has ended by itself.
    ///
    /// # Errors
    /// When it takes too long.
    pub fn wait_for_end(&mut self) -> Result {
        let start = Instant::now();
        while let Some(process) = &mut self.process {
            if process.ended().map_err(failed("wait for a server"))?.is_some() {
                self.process = None;
            } else if start.elapsed() > PATIENCE {
                return Err(Error::new(format!("{} does not end: {}", self.recipe.name, self.last_words())));
            } else {
                thread::sleep(LOOK_AGAIN);
            }
        }
        Ok(())
    }

    /// Kills it without a warning.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// # Errors
    /// When the process is gone.
    pub fn signal(&self, signal: Signal) -> Result {
        rustix::process::kill_process(self.pid()?, signal).map_err(failed("signal a server"))
    }

    /// # Errors
    /// When it does not run.
    pub fn pid(&self) -> Result<Pid> {
        let process = self.process.as_ref();
        process.map(Process::pid).ok_or_else(|| Error::new(format!("{} does not run", self.recipe.name)))
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.place.address
    }

    /// Where it listens, on its host.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.place.address.port()
    }

    /// Where it keeps its files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.place.folder
    }

    /// What it has printed since it was started last.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.place.folder.join("log")).unwrap_or_default()
    }

    /// Bytes of memory that the process has.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn memory(&self) -> Result<u64> {
        parse_rss(&self.proc("status")?)
            .ok_or_else(|| Error::new(format!("{} has no VmRSS", self.recipe.name)))
    }

    /// Processor time that the process has used.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn cpu(&self) -> Result<Duration> {
        let stat = self.proc("stat")?;
        let ticks = parse_ticks(&stat).ok_or_else(|| Error::new(format!("cannot read {stat:?}")))?;
        Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
    }

    fn proc(&self, name: &str) -> Result<String> {
        fs::read_to_string(format!("/proc/{}/{name}", self.pid()?)).map_err(failed("look at a server"))
    }

    fn is_alive(&self) -> bool {
        // A zombie has no memory left.
        self.memory().is_ok()
    }

    fn last_words(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(5)..].join(" | ")
    }
}

/// The first line that a program prints.
///
/// # Errors
/// When there is no such program, or it says nothing.
pub fn first_line(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| missing(command, &error))?;
    let line = String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_owned);
    line.ok_or_else(|| Error::new(format!("{} says nothing", command.get_program().display())))
}

/// Whether a process listens there.
#[must_use]
pub fn listens(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_ok()
}

/// Waits until something is there.
///
/// # Panics
/// When it takes longer than anything does.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn missing(command: &Command, error: &std::io::Error) -> Error {
    let program = command.get_program().display();
    Error::new(format!(
        "cannot start {program}: {error}; `make test` and `make bench` install what they need"
    ))
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

    fn shell(script: &'static str, ready: fn(&Place) -> bool) -> Recipe {
        let launch = move |_: &Place| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Ok(command)
        };
        Recipe::new("sh", launch, ready)
    }

    #[test]
    fn an_early_end_is_reported_with_the_last_output() {
        let error = Server::start(shell("echo the disk is damaged >&2; exit 3", |_| false)).unwrap_err();
        assert_eq!(error.to_string(), "sh ended: the disk is damaged");
    }

    #[test]
    fn a_server_is_gone_with_its_handle_and_so_is_its_folder() {
        let server = Server::start(shell("exec sleep 600", |_| true)).unwrap();
        let (pid, folder) = (server.pid().unwrap(), server.folder().to_owned());
        assert!(folder.exists() && server.is_alive());
        drop(server);
        assert!(!folder.exists() && !Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_start_waits_for_what_a_killed_server_left_behind() {
        let script = r#"[ -e "$0/first" ] && touch "$0/second" && exec sleep 600
            touch "$0/first"; echo "FATAL: pre-existing shared memory block is still in use"; exit 1"#;
        let launch = move |place: &Place| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).arg(&place.folder);
            Ok(command)
        };
        let ready = |place: &Place| place.folder.join("second").exists();
        assert!(Server::start(Recipe::new("sh", launch, ready)).is_ok());
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let recipe = Recipe::new("x", |_| Ok(Command::new("no-such-program")), |_| true);
        let error = Server::start(recipe).unwrap_err().to_string();
        assert!(error.starts_with("cannot start no-such-program: "), "{error}");
    }
}
