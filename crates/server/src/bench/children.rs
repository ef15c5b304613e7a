//! Processes that a run starts: each ends with its handle, and all of them end when the run is interrupted.
//!
//! **Invariant:** a process is in the list from before anybody can ask for the end of all until just before it is waited
//! for, so nobody is missed, and no number in the list belongs to a stranger.

use std::io;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

static RUNNING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// A process. Killed when dropped.
#[derive(Debug)]
pub(super) struct Process(Child);

impl Process {
    /// # Errors
    /// When there is no such program.
    pub(super) fn spawn(command: &mut Command) -> io::Result<Self> {
        let mut running = running();
        let child = command.spawn()?;
        running.push(Pid::from_child(&child));
        Ok(Self(child))
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    pub(super) fn stdout(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// When that cannot be known.
    pub(super) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
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

/// From now on SIGTERM and SIGINT end all processes, remove the folder of the run, and end this one.
///
/// # Errors
/// When signals cannot be waited for.
pub(super) fn end_when_interrupted(folder: PathBuf) -> Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let (mut terminate, mut interrupt) = {
        let _inside = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
    };
    let wait = move || {
        let signal = runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => Signal::TERM,
                _ = interrupt.recv() => Signal::INT,
            }
        });
        // Held to the end: nothing is started any more, and whoever misses a server waits here.
        let running = running();
        for pid in &*running {
            // One that has just ended by itself is waited for below.
            let _ = kill_process(*pid, Signal::KILL);
            let _ = waitpid(Some(*pid), WaitOptions::empty());
        }
        // What cannot be removed is left to the owner of the folder.
        let _ = std::fs::remove_dir_all(&folder);
        std::process::exit(128 + signal.as_raw())
    };
    thread::Builder::new().name("bench-signals".to_owned()).spawn(wait).context("cannot wait for signals")?;
    Ok(())
}

fn forget(running: &mut Vec<Pid>, child: &Child) {
    running.retain(|pid| *pid != Pid::from_child(child));
}

fn running() -> MutexGuard<'static, Vec<Pid>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}
