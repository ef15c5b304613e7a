//! Faults at the calls that the coordinator makes, put there by `strace`.
//!
//! A signal arrives at the entry of the call, so a process that is killed there has not made it. This needs
//! every call to stop for the tracer: with `--seccomp-bpf` the signal is lost.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::process::{Coordinator, eventually};
use super::{Checked, failed};

/// Positions whose files are looked for by name: more than a round writes.
const POSITIONS: u64 = 600;
/// Numbers of prepared segments and files of logs.
const NUMBERS: u64 = 40;

/// How `strace` marks a call that it let fail.
const INJECTED: &str = "(INJECTED)";

/// What the n-th call of a thread meets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Injection<'a> {
    pub(crate) call: &'a str,
    pub(crate) on: On,
    /// As `strace` says it: `signal=SIGKILL`, `error=EIO`.
    pub(crate) fault: &'a str,
    pub(crate) nth: u64,
    /// Whether writes to the same files are written down, too.
    pub(crate) writes: Writes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writes {
    Untold,
    Told,
}

/// The files that a call must be about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    Journal,
    /// A prepared segment, and while it is being prepared.
    Spare,
    SpareUnfinished,
    Snapshot,
    SnapshotUnfinished,
    NextFloor,
    Logs,
    Folder,
    Lock,
    /// Calls about no file.
    Anything,
}

impl On {
    fn names(self) -> Vec<String> {
        let positions = 1..=POSITIONS;
        match self {
            Self::Journal => positions.map(|n| format!("{n:020}.journal")).collect(),
            Self::Spare => (1..=NUMBERS).map(|n| format!("{n:020}.spare")).collect(),
            Self::SpareUnfinished => (1..=NUMBERS).map(|n| format!("{n:020}.spare.tmp")).collect(),
            Self::Snapshot => positions.map(|n| format!("snap-{n:020}.snapshot")).collect(),
            Self::SnapshotUnfinished => positions.map(|n| format!("snap-{n:020}.snapshot.tmp")).collect(),
            Self::NextFloor => vec!["floor.next".to_owned()],
            Self::Logs => (1..=NUMBERS)
                .flat_map(|n| ["", ".tmp"].map(|ending| format!("logs-{n:020}.chunks{ending}")))
                .collect(),
            Self::Folder => vec![String::new()],
            Self::Lock => vec!["lock".to_owned()],
            Self::Anything => Vec::new(),
        }
    }
}

/// A tracer of a process that ran before.
pub(crate) struct Tracer(Child);

impl Injection<'_> {
    fn command(&self, coordinator: &Coordinator) -> Command {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-y", "-qq", "-s", "16", "-o"]).arg(coordinator.file("strace"));
        let told = match self.writes {
            Writes::Untold => "",
            Writes::Told => ",pwrite64",
        };
        strace.args(["-e", &format!("trace={}{told}", self.call)]);
        strace.args(["-e", &format!("inject={}:{}:when={}", self.call, self.fault, self.nth)]);
        for name in self.on.names() {
            // Some calls name the file under its folder, others have it open.
            let path =
                if name.is_empty() { coordinator.data().to_owned() } else { coordinator.data().join(&name) };
            strace.arg("-P").arg(path);
            if !name.is_empty() {
                strace.arg("-P").arg(name);
            }
        }
        strace
    }

    /// Starts the coordinator with the fault from its first call on. The tracer is a grandchild, so the child is the
    /// coordinator itself.
    pub(crate) fn start(&self, coordinator: &mut Coordinator) -> Checked {
        let mut command = self.command(coordinator);
        command.arg("-D");
        coordinator.start(Some(command))
    }

    /// Puts the fault into a coordinator that runs, and waits until all its threads are watched.
    pub(crate) fn attach(&self, coordinator: &Coordinator) -> Checked<Tracer> {
        let pid = coordinator.pid()?.as_raw_nonzero().to_string();
        let mut command = self.command(coordinator);
        command.args(["-p", &pid]).stdin(Stdio::null()).stderr(Stdio::null());
        let mut tracer = Tracer(command.spawn().map_err(failed("start strace"))?);
        eventually("strace watches the coordinator", || {
            if let Some(status) = tracer.0.try_wait().map_err(failed("look at strace"))? {
                return Err(format!("strace ended with {status}; may this user trace processes?"));
            }
            Ok(coordinator.is_traced()?.then_some(()))
        })?;
        Ok(tracer)
    }

    /// The call that the process died at, as `strace` wrote it down: the n-th of its thread, without a result.
    pub(crate) fn fatal_call(&self, log: &Path) -> Checked<String> {
        eventually(&format!("the process died at {} number {}", self.call, self.nth), || {
            let text = std::fs::read_to_string(log).unwrap_or_default();
            Ok(self.find_fatal_call(&text))
        })
    }

    fn find_fatal_call(&self, log: &str) -> Option<String> {
        let (begin, resumed) = (format!(" {}(", self.call), format!("<... {} resumed>", self.call));
        let mut died = log
            .lines()
            .filter(|line| line.ends_with("= ?") && (line.contains(&begin) || line.contains(&resumed)));
        died.find_map(|line| {
            let thread = line.split(' ').next()?;
            let mut calls =
                log.lines().filter(|line| line.split(' ').next() == Some(thread) && line.contains(&begin));
            let last = calls.clone().next_back()?;
            let count = calls.by_ref().count() as u64;
            (count == self.nth).then(|| last.to_owned())
        })
    }

    /// How many times the fault was put into a call. `strace` writes a line before it lets the process go on: what
    /// the process does after the fault, it does after the line.
    pub(crate) fn injected(log: &Path) -> u64 {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        text.matches(INJECTED).count() as u64
    }

    /// The bytes of the last write before the first fault, or of the write that failed. It needs [`Writes::Told`].
    pub(crate) fn bytes_of_failed_write(log: &Path) -> Option<u64> {
        last_write(&std::fs::read_to_string(log).unwrap_or_default())
    }
}

fn last_write(log: &str) -> Option<u64> {
    let failed = log.lines().position(|line| line.contains(INJECTED))?;
    let writes = log.lines().take(failed + 1).filter(|line| line.contains(" pwrite64("));
    // Behind the bytes, which are cut short, stand their number and where they go.
    let (_, numbers) = writes.last()?.rsplit_once('"')?;
    numbers.split(", ").nth(1)?.parse().ok()
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // SIGTERM lets it detach; the process that it watches goes on, if it is there.
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.0),
            rustix::process::Signal::TERM,
        );
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
7  fsync(11</data>) = 0
8  fsync(11</data>) = 0
7  fsync(11</data> <unfinished ...>
8  +++ killed by SIGKILL +++
7  <... fsync resumed>)  = ?
7  +++ killed by SIGKILL +++
";

    #[test]
    fn a_process_died_at_the_nth_call_without_a_result() {
        let injection = |call, nth| Injection {
            call,
            on: On::Folder,
            fault: "signal=SIGKILL",
            nth,
            writes: Writes::Untold,
        };
        let found = injection("fsync", 2).find_fatal_call(LOG);
        assert_eq!(found.as_deref(), Some("7  fsync(11</data> <unfinished ...>"));
        assert_eq!(injection("fsync", 1).find_fatal_call(LOG), None, "the first of each came back");
        assert_eq!(injection("renameat", 1).find_fatal_call(LOG), None);
    }
    #[test]
    fn the_write_that_a_failed_sync_was_for_is_the_last_before_it() {
        let log = "\
7  pwrite64(9</1.journal>, \"\\0\\\"a, 5, 6\"..., 32850, 4096) = 32850
7  fdatasync(9</1.journal>) = 0
8  pwrite64(9</1.journal>, \"mark\"..., 40, 36946 <unfinished ...>
8  <... pwrite64 resumed>)  = 40
";
        let failed =
            |more: &str| last_write(&format!("{log}{more}7  pwrite64(9</1.journal>, \"\"..., 99, 0) = 99\n"));
        assert_eq!(failed(""), None, "nothing failed");
        assert_eq!(
            failed("8  fdatasync(9</1.journal>) = -1 EIO (Input/output error) (INJECTED)\n"),
            Some(40)
        );
        let write =
            "7  pwrite64(9</1.journal>, \"b\"..., 32851, 4096) = -1 EIO (Input/output error) (INJECTED)\n";
        assert_eq!(failed(write), Some(32_851));
    }
}
