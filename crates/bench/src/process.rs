//! Coordinators as child processes, and what an interrupted run leaves behind: nothing.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use orchestrix_testbed::{Place, Recipe, Server, end_all, free_port};
use rustix::process::Signal;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::http;

/// A server that is silent for so long has stopped.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// Starts `orchestrix serve` on a folder with some options and waits until it is ready.
///
/// # Errors
/// When it does not start.
pub(crate) fn start_node(program: &Path, folder: &Path, options: &[&str]) -> Result<Server> {
    Ok(Server::start_in(folder, serve(program, options))?)
}

/// Starts `orchestrix serve` on what another left in a folder, without waiting for it.
///
/// # Errors
/// When the program cannot be started.
pub(crate) fn spawn_orchestrix(program: &Path, folder: &Path) -> Result<Server> {
    Ok(Server::spawn_in(folder, serve(program, &[]))?)
}

fn serve(program: &Path, options: &[&str]) -> Recipe {
    let program = program.to_owned();
    let launch = move |place: &Place| {
        let mut command = Command::new(&program);
        command.arg("serve").arg("--data").arg(place.folder.join("data"));
        command.arg("--listen").arg(place.address.to_string());
        Ok(command)
    };
    Recipe::new("Orchestrix", launch, |place| http::get(place.address, "/ready").is_ok()).set(options)
}

/// A free address on loopback.
pub(crate) fn free_address() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()))
}

/// Says one line to a server and takes one line of its answer.
///
/// # Errors
/// When it does not answer.
pub(crate) fn ask(address: SocketAddr, line: &[u8]) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.write_all(line)?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    Ok(answer.trim_end().to_owned())
}

/// From now on SIGTERM and SIGINT end all processes, remove the folder of the run, and end this one.
///
/// # Errors
/// When signals cannot be waited for.
pub(crate) fn end_when_interrupted(folder: PathBuf) -> Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let (mut terminate, mut interrupt) = {
        let _inside = runtime.enter();
        // This process may have been started with SIGCHLD ignored; its children are waited for all the same.
        drop(signal(SignalKind::child())?);
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
    };
    let wait = move || {
        let signal = runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => Signal::TERM,
                _ = interrupt.recv() => Signal::INT,
            }
        });
        // Held to the end: nothing is started any more, and a thread that misses a server waits here.
        let _ended = end_all();
        // What cannot be removed is left to the owner of the folder.
        let _ = std::fs::remove_dir_all(&folder);
        std::process::exit(128 + signal.as_raw())
    };
    thread::Builder::new().name("bench-signals".to_owned()).spawn(wait).context("cannot wait for signals")?;
    Ok(())
}
