//! Child processes: each ends with its handle, and all of them can be ended at once.
//!
//! **Invariant:** a process is in the list from before anybody can ask for the end of all until just before it is waited
//! for, so none is missed, and no number in the list belongs to a stranger.

use std::io;
use std::process::{Child, ChildStdout, Command, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

static RUNNING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// A process. Killed when dropped.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// # Errors
    /// When there is no such program.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        let mut running = running();
        let child = command.spawn()?;
        running.push(Pid::from_child(&child));
        Ok(Self(child))
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// What it prints, if that was piped; only once.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// When that cannot be known.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        let mut running = running();
        let status = self.0.try_wait()?;
        if status.is_some() {
            forget(&mut running, &self.0);
        }
        Ok(status)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        forget(&mut running(), &self.0);
        let _ = self.0.wait();
    }
}

/// Ends every process. While the answer is kept nothing is started any more, and handles of processes wait.
#[must_use]
pub fn end_all() -> impl Sized {
    let running = running();
    for pid in &*running {
        // One that has just ended by itself is waited for below.
        let _ = kill_process(*pid, Signal::KILL);
        let _ = waitpid(Some(*pid), WaitOptions::empty());
    }
    running
}

fn forget(running: &mut Vec<Pid>, child: &Child) {
    running.retain(|pid| *pid != Pid::from_child(child));
}

fn running() -> MutexGuard<'static, Vec<Pid>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}
