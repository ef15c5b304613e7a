//! `blocked`: the output of the coordinator has no reader, or the disk does not answer.
//!
//! A pipe without a reader blocks nothing: calls are answered, a stop works, and the log says later how much of it is
//! missing. `/health` and `/ready` report a hanging sync while it lasts, and everything continues after it.

use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::Signal;

use super::ground::Ground;
use super::load::Answered;
use super::process::{Coordinator, Prints, eventually};
use super::strace::{Injection, On, Writes};
use super::{Checked, Round, Trial, Tried, failed};

const PAYLOAD: usize = 100;
/// The length of a hanging sync; longer than the limit after which it is reported.
const HANGS: &str = "delay_enter=12s";
/// Submits between two looks whether lines are dropped.
const SUBMITS: u64 = 50;
/// A request for an unknown path makes a line of this length in the log.
const PATH_BYTES: usize = 7_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    /// A full pipe as standard error, standard output, or both.
    Pipe { out: bool, err: bool, format: &'static str },
    /// A sync that hangs. The loop writes for one caller itself; for several the writer's thread does, and the loop goes
    /// on.
    Sync { callers: u64 },
}

const CASES: [(&str, Case); 6] = [
    ("full pipes for the log", Case::Pipe { out: false, err: true, format: "text" }),
    ("full pipes for the log in JSON", Case::Pipe { out: false, err: true, format: "json" }),
    ("full pipes for the greeting", Case::Pipe { out: true, err: false, format: "text" }),
    ("full pipes for both", Case::Pipe { out: true, err: true, format: "text" }),
    ("hanging syncs of the loop", Case::Sync { callers: 1 }),
    ("hanging syncs of the writer", Case::Sync { callers: 4 }),
];

/// Rounds of one pass through the table.
pub(super) const ENOUGH: u64 = CASES.len() as u64;

pub(super) fn run(trial: &Trial<'_>) -> Tried {
    let must: Vec<&'static str> = CASES.iter().map(|(name, _)| *name).collect();
    trial.rounds(ENOUGH, &must, |round| {
        let number = usize::try_from(round.number - 1).unwrap_or(0);
        let (name, case) = CASES[number % CASES.len()];
        let done = match case {
            Case::Pipe { out, err, format } => full_pipe(trial, round, out, err, format),
            Case::Sync { callers } => hanging_sync(trial, round, callers),
        };
        done.map_err(|why| format!("{name}: {why}"))?;
        round.tried.faults += 1;
        round.tried.see(name, 1);
        Ok(())
    })
}

fn full_pipe(trial: &Trial<'_>, round: &mut Round<'_>, out: bool, err: bool, format: &str) -> Checked {
    let (mut reader, writer) = filled().map_err(failed("fill a pipe"))?;
    let mut coordinator = Coordinator::prepare(trial.binary, &["--log", "debug", "--log-format", format])?;
    let end = |is_full: bool| if is_full { writer.try_clone().map(Prints::Pipe) } else { Ok(Prints::File) };
    coordinator.prints(end(out).map_err(failed("copy a pipe"))?, end(err).map_err(failed("copy a pipe"))?);
    drop(writer);
    let mut ground = Ground::new(coordinator, PAYLOAD)?;
    ground.coordinator.launch()?;
    let actor = ground.actor("a")?;
    let mut count = 0;
    eventually("lines are dropped", || {
        for _ in 0..SUBMITS {
            count += 1;
            if round.runtime.block_on(actor.submit(count))? == Answered::No {
                return Err(format!("task {count} was not answered"));
            }
            expect(&ground.coordinator, &format!("/{}", "x".repeat(PATH_BYTES)), "404")?;
        }
        // A greeting alone fits into the queue.
        let dropped = ground.coordinator.metric("orchestrix_own_log_dropped_total")?;
        Ok((dropped > 0 || !err).then_some(()))
    })?;
    expect(&ground.coordinator, "/health", "200")?;
    let reads = err && round.rng.chance(500_000);
    let reading = reads.then(|| {
        std::thread::spawn(move || {
            let mut log = String::new();
            reader.read_to_string(&mut log).map(|_| log)
        })
    });
    ground.coordinator.signal(Signal::TERM)?;
    let ended = ground.coordinator.ended()?;
    if ended.code != Some(0) {
        return Err(format!("a stop should have been clean, but {ended:?}"));
    }
    ground.coordinator.prints(Prints::File, Prints::File);
    if let Some(reading) = reading {
        let log = reading.join().map_err(|_| "the reader panicked".to_owned())?;
        if !log.map_err(failed("read the log"))?.contains("log lines were dropped") {
            return Err("lines are missing in the log, and it does not say so".to_owned());
        }
    }
    ground.launch_and_hold(round)?;
    Ok(())
}

fn hanging_sync(trial: &Trial<'_>, round: &mut Round<'_>, callers: u64) -> Checked {
    let coordinator = Coordinator::prepare(trial.binary, &[])?;
    let mut ground = Ground::new(coordinator, PAYLOAD)?;
    let nth = round.rng.range(1, 3);
    let injection =
        Injection { call: "fdatasync", on: On::Journal, fault: HANGS, nth, writes: Writes::Untold };
    let tracer = ground.launch_under(&injection)?;
    let actor = ground.actor("a")?;
    let submitting: Vec<_> = (0..callers)
        .map(|caller| {
            let actor = actor.clone();
            round.runtime.spawn(async move {
                for count in 0..10 {
                    if actor.submit(caller * 100 + count).await? == Answered::No {
                        return Err("a sync that took long was no reason not to answer".to_owned());
                    }
                }
                Ok(())
            })
        })
        .collect();
    let coordinator = &ground.coordinator;
    let told = eventually("the health says that the disk is stuck", || {
        let health = coordinator.get("/health")?;
        Ok(health.contains("503").then_some(health))
    })?;
    if !told.contains("has not answered a write for") {
        return Err(format!("/health does not say why: {told}"));
    }
    expect(coordinator, "/ready", "503")?;
    // Numbers are to be had all the same.
    coordinator.metric("orchestrix_position")?;
    for submitting in submitting {
        round.runtime.block_on(submitting).map_err(failed("submit"))??;
    }
    expect(coordinator, "/health", "200")?;
    expect(coordinator, "/ready", "200")?;
    drop(tracer);
    ground.coordinator.kill()?;
    ground.launch_and_hold(round)?;
    Ok(())
}

fn expect(coordinator: &Coordinator, path: &str, status: &str) -> Checked {
    let answer = coordinator.get(path)?;
    if !answer.starts_with(&format!("HTTP/1.1 {status}")) {
        return Err(format!("{path} should have been answered {status}, not {answer}"));
    }
    Ok(())
}

/// A pipe that takes nothing any more.
fn filled() -> std::io::Result<(PipeReader, PipeWriter)> {
    let (reader, mut writer) = std::io::pipe()?;
    let flags = fcntl_getfl(writer.as_fd())?;
    fcntl_setfl(writer.as_fd(), flags | OFlags::NONBLOCK)?;
    for size in [4096, 1] {
        let full = loop {
            if let Err(error) = writer.write(&vec![b'\n'; size]) {
                break error;
            }
        };
        if full.kind() != ErrorKind::WouldBlock {
            return Err(full);
        }
    }
    fcntl_setfl(writer.as_fd(), flags)?;
    Ok((reader, writer))
}
