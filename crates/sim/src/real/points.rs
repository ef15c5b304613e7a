//! `points`: the coordinator dies at the entry of a named call, on the binary that ships.
//!
//! Each round takes the next point of the table. The call must be the one that the process died at; then the
//! coordinator starts again and is held to the acknowledgement log.

use rustix::process::Signal;

use super::ground::Ground;
use super::load::Answered;
use super::oracle::Found;
use super::process::Coordinator;
use super::strace::{Injection, On, Tracer, Writes};
use super::{Checked, Round, Trial, Tried};

/// Large, so that segments are full and snapshots due after some dozen tasks.
const PAYLOAD: usize = 64 << 10;
/// Tasks after which every point has been passed.
const TASKS_MAX: u64 = 140;
/// A task of so many is worked on at once.
const WORK_EVERY: u64 = 4;

/// A place in the life of the coordinator.
struct Point {
    name: &'static str,
    at: At,
    call: &'static str,
    on: On,
    /// The largest n of the n-th call that is drawn.
    nth_max: u64,
}

/// When the fault is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// From the first call on, in an empty folder.
    FirstStart,
    /// While it serves.
    Run,
    /// While it starts again after a kill.
    Recovery,
    /// From a SIGTERM under load on.
    Stop,
}

const fn point(name: &'static str, at: At, call: &'static str, on: On, nth_max: u64) -> Point {
    Point { name, at, call, on, nth_max }
}

const POINTS: &[Point] = &[
    point(BEFORE_WRITE, At::Run, "pwrite64", On::Journal, 30),
    point("before the sync of a batch", At::Run, "fdatasync", On::Journal, 30),
    point(BEFORE_ANSWER, At::Run, "sendto", On::Anything, 30),
    point("before a spare is created", At::Run, "openat", On::SpareUnfinished, 1),
    point("before a spare is allocated", At::Run, "pwrite64", On::SpareUnfinished, 4),
    point("before the sync of a spare", At::Run, "fdatasync", On::SpareUnfinished, 1),
    point("before a spare is renamed", At::Run, "renameat", On::SpareUnfinished, 1),
    point("before the header of a segment", At::Run, "pwrite64", On::Spare, 1),
    point("before the sync of a new segment", At::Run, "fdatasync", On::Spare, 1),
    point("before a segment is renamed", At::Run, "renameat", On::Journal, 1),
    point("after a rename, before the sync of the folder", At::Run, "fsync", On::Folder, 3),
    point("before a snapshot is created", At::Run, "openat", On::SnapshotUnfinished, 2),
    point("before a part of a snapshot", At::Run, "pwrite64", On::SnapshotUnfinished, 5),
    point("before the sync of a snapshot", At::Run, "fdatasync", On::SnapshotUnfinished, 1),
    point("before a snapshot is renamed", At::Run, "renameat", On::SnapshotUnfinished, 1),
    point("before an old snapshot is removed", At::Run, "unlinkat", On::Snapshot, 1),
    point("before the floor is written", At::Run, "pwrite64", On::NextFloor, 1),
    point("before the sync of the floor", At::Run, "fdatasync", On::NextFloor, 1),
    point("before the floor is renamed", At::Run, "renameat", On::NextFloor, 1),
    point("before an old segment is removed", At::Run, "unlinkat", On::Journal, 1),
    point("before a file of output is created", At::Run, "openat", On::Logs, 1),
    point("before output is written", At::Run, "pwrite64", On::Logs, 6),
    point("before the sync of output", At::Run, "fdatasync", On::Logs, 6),
    point("before a file of output is renamed", At::Run, "renameat", On::Logs, 1),
    point("first start: a sync of the folder", At::FirstStart, "fsync", On::Folder, 5),
    point("first start: a spare", At::FirstStart, "pwrite64", On::SpareUnfinished, 4),
    point("first start: the first segment", At::FirstStart, "renameat", On::Journal, 1),
    point("recovery: the lock is truncated", At::Recovery, "ftruncate", On::Lock, 1),
    point("recovery: a sync of the folder", At::Recovery, "fsync", On::Folder, 3),
    point("recovery: what is unfinished is removed", At::Recovery, "unlinkat", On::SpareUnfinished, 1),
    point("recovery: the end is written again", At::Recovery, "pwrite64", On::Journal, 2),
    point("recovery: the sync of the end", At::Recovery, "fdatasync", On::Journal, 2),
    point("stop: a write", At::Stop, "pwrite64", On::Journal, 1),
    point("stop: a sync", At::Stop, "fdatasync", On::Journal, 1),
];

const BEFORE_WRITE: &str = "before a batch is written";
const BEFORE_ANSWER: &str = "after the sync, before the answer";

/// Rounds of one pass through the table.
pub(super) const ENOUGH: u64 = POINTS.len() as u64;

pub(super) fn run(trial: &Trial<'_>) -> Tried {
    let must: Vec<&'static str> = POINTS.iter().map(|point| point.name).collect();
    trial.rounds(ENOUGH, &must, |round| {
        let number = usize::try_from(round.number - 1).unwrap_or(0);
        let point = &POINTS[number % POINTS.len()];
        let pass = number / POINTS.len();
        one(trial, round, point).map_err(|why| format!("{} (pass {}): {why}", point.name, pass + 1))?;
        round.tried.see(point.name, 1);
        Ok(())
    })
}

fn one(trial: &Trial<'_>, round: &mut Round<'_>, point: &Point) -> Checked {
    let coordinator = Coordinator::prepare(trial.binary, &["--snapshot-after", "64KiB"])?;
    let mut ground = Ground::new(coordinator, PAYLOAD)?;
    let injection = kill_at(point.call, point.on, round.rng.range(1, point.nth_max));
    match point.at {
        At::FirstStart => start_and_die(&mut ground, &injection)?,
        At::Run => use_until_killed(&mut ground, &injection, round)?,
        At::Recovery => {
            leave_something_unfinished(&mut ground, round)?;
            start_and_die(&mut ground, &injection)?;
        }
        At::Stop => stop_under_load(&mut ground, &injection, round)?,
    }
    let call = injection.fatal_call(&ground.coordinator.file("strace"))?;
    round.tried.faults += 1;
    let found = ground.launch_and_hold(round)?;
    check_effect(point, &found).map_err(|why| format!("{why}; the process died at {call}"))?;
    if round.runtime.block_on(use_it(&ground, WORK_EVERY))? == Answered::No {
        return Err("it started again, but does not serve".to_owned());
    }
    Ok(())
}

fn kill_at(call: &str, on: On, nth: u64) -> Injection<'_> {
    Injection { call, on, fault: "signal=SIGKILL", nth, writes: Writes::Untold }
}

fn start_and_die(ground: &mut Ground, injection: &Injection<'_>) -> Checked {
    injection.start(&mut ground.coordinator)?;
    expect_killed(&mut ground.coordinator)
}

fn use_until_killed(ground: &mut Ground, injection: &Injection<'_>, round: &Round<'_>) -> Checked {
    let tracer = ground.launch_under(injection)?;
    if round.runtime.block_on(use_it(ground, TASKS_MAX))? == Answered::Yes {
        return Err(format!("{TASKS_MAX} tasks passed without {} number {}", injection.call, injection.nth));
    }
    drop_when_ended(&mut ground.coordinator, tracer)
}

/// One caller at a time: what a fault hits is then the call without an answer.
async fn use_it(ground: &Ground, tasks: u64) -> Checked<Answered> {
    let actor = ground.actor(&format!("p{}", ground.coordinator.pid()?.as_raw_nonzero()))?;
    for count in 1..=tasks {
        let mut answered = actor.submit(count).await?;
        if answered == Answered::Yes && count.is_multiple_of(WORK_EVERY) {
            answered = actor.work(count, 0).await?;
        }
        if answered == Answered::No {
            return Ok(Answered::No);
        }
    }
    Ok(Answered::Yes)
}

fn expect_killed(coordinator: &mut Coordinator) -> Checked {
    let ended = coordinator.ended()?;
    if ended.signal != Some(Signal::KILL.as_raw()) {
        return Err(format!("it was not killed, but {ended:?}"));
    }
    Ok(())
}

/// The tracer writes down the end before it leaves.
fn drop_when_ended(coordinator: &mut Coordinator, tracer: Tracer) -> Checked {
    expect_killed(coordinator)?;
    drop(tracer);
    Ok(())
}

/// Tasks, a kill while a spare is prepared, and so a file that the recovery has to remove.
fn leave_something_unfinished(ground: &mut Ground, round: &Round<'_>) -> Checked {
    let first = kill_at("renameat", On::SpareUnfinished, 1);
    use_until_killed(ground, &first, round)?;
    first.fatal_call(&ground.coordinator.file("strace"))?;
    Ok(())
}

/// The process is frozen while the signal and the fault are put in place: everything it does then, it does after
/// the signal.
fn stop_under_load(ground: &mut Ground, injection: &Injection<'_>, round: &mut Round<'_>) -> Checked {
    ground.coordinator.launch()?;
    let mut load = Vec::new();
    for n in 0..3 {
        load.push(round.runtime.spawn(ground.actor(&format!("s{n}"))?.submit_until_gone()));
    }
    std::thread::sleep(std::time::Duration::from_millis(round.rng.range(5, 50)));
    ground.coordinator.signal(Signal::STOP)?;
    ground.coordinator.signal(Signal::TERM)?;
    let tracer = injection.attach(&ground.coordinator)?;
    ground.coordinator.signal(Signal::CONT)?;
    drop_when_ended(&mut ground.coordinator, tracer)?;
    for part in load {
        round.runtime.block_on(part).map_err(|error| format!("the load stopped: {error}"))??;
    }
    Ok(())
}

/// A kill loses nothing that was handed to the kernel, and nothing else was done.
fn check_effect(point: &Point, found: &Found) -> Checked {
    match point.name {
        BEFORE_WRITE if found.carried_out > 0 => Err("a task is there that was never written".to_owned()),
        BEFORE_ANSWER if found.left_no_trace > 0 => Err("a synced task is not there".to_owned()),
        _ => Ok(()),
    }
}
