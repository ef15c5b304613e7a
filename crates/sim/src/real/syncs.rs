//! `syncs`: a write or a sync fails with EIO.
//!
//! In the journal this ends the process: the content of the disk is unknown. Beside it, the coordinator
//! goes on without what failed. Either way nothing that was acknowledged is lost.
//!
//! The cache of the machine keeps what was not synced, so a start would not show that an acknowledgement came in
//! spite of the fault. The tracer does: it says what failed before the process could answer.

use std::path::Path;

use super::ground::Ground;
use super::load::{Actor, Answered};
use super::process::{Coordinator, eventually};
use super::strace::{Injection, On, Writes};
use super::{Checked, Round, Trial, Tried};

const PAYLOAD: usize = 32 << 10;
/// Tasks after which every fault has been met.
const TASKS_MAX: u64 = 200;

/// What the coordinator has to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Ends,
    /// Without refusing anything; what failed is tried again.
    GoesOn,
}

/// A call that fails.
struct Fault {
    name: &'static str,
    call: &'static str,
    on: On,
    nth_max: u64,
    then: Then,
}

const FAULTS: &[Fault] = &[
    Fault {
        name: "failed syncs of a batch",
        call: "fdatasync",
        on: On::Journal,
        nth_max: 60,
        then: Then::Ends,
    },
    Fault {
        name: "failed writes of a batch",
        call: "pwrite64",
        on: On::Journal,
        nth_max: 60,
        then: Then::Ends,
    },
    Fault {
        name: "failed syncs of a new segment",
        call: "fdatasync",
        on: On::Spare,
        nth_max: 1,
        then: Then::Ends,
    },
    Fault {
        name: "failed syncs of a spare",
        call: "fdatasync",
        on: On::SpareUnfinished,
        nth_max: 1,
        then: Then::GoesOn,
    },
    Fault {
        name: "failed syncs of a snapshot",
        call: "fdatasync",
        on: On::SnapshotUnfinished,
        nth_max: 1,
        then: Then::GoesOn,
    },
    Fault {
        name: "failed writes of a snapshot",
        call: "pwrite64",
        on: On::SnapshotUnfinished,
        nth_max: 3,
        then: Then::GoesOn,
    },
];

/// Rounds of one pass through the table.
pub(super) const ENOUGH: u64 = FAULTS.len() as u64;

pub(super) fn run(trial: &Trial<'_>) -> Tried {
    let mut must: Vec<&'static str> = FAULTS.iter().map(|fault| fault.name).collect();
    must.push("unknown outcomes resolved");
    trial.rounds(ENOUGH, &must, |round| {
        let number = usize::try_from(round.number - 1).unwrap_or(0);
        let fault = &FAULTS[number % FAULTS.len()];
        one(trial, round, fault).map_err(|why| format!("{}: {why}", fault.name))?;
        round.tried.see(fault.name, 1);
        Ok(())
    })
}

fn one(trial: &Trial<'_>, round: &mut Round<'_>, fault: &Fault) -> Checked {
    let coordinator = Coordinator::prepare(trial.binary, &["--snapshot-after", "64KiB"])?;
    let mut ground = Ground::new(coordinator, PAYLOAD)?;
    let nth = round.rng.range(1, fault.nth_max);
    let (call, on) = (fault.call, fault.on);
    let injection = Injection { call, on, fault: "error=EIO", nth, writes: Writes::Told };
    let tracer = ground.launch_under(&injection)?;
    let log = ground.coordinator.file("strace");
    let actor = ground.actor("a")?;
    let answered = round.runtime.block_on(submit_until_fault(&actor, fault, &log))?;
    match fault.then {
        Then::Ends => expect_end(&mut ground.coordinator, answered)?,
        Then::GoesOn if answered == Answered::No => return Err("it does not go on".to_owned()),
        Then::GoesOn => {}
    }
    drop(tracer);
    let injected = Injection::injected(&log);
    if injected == 0 {
        return Err(format!("{TASKS_MAX} tasks passed without {call} number {nth}"));
    }
    round.tried.faults += injected;
    if fault.then == Then::GoesOn {
        // What failed is done again later, and all was held in between.
        ground.hold(round)?;
        expect_a_snapshot(&ground.coordinator, &actor, round)?;
        ground.coordinator.kill()?;
    }
    ground.launch_and_hold(round)?;
    Ok(())
}

/// One submit at a time, so that it is known which of them a fault hit.
async fn submit_until_fault(actor: &Actor, fault: &Fault, log: &Path) -> Checked<Answered> {
    for count in 1..=TASKS_MAX {
        let before = Injection::injected(log);
        if actor.submit(count).await? == Answered::No {
            return Ok(Answered::No);
        }
        if Injection::injected(log) == 0 {
            continue;
        }
        match fault.then {
            Then::GoesOn => break,
            Then::Ends if before > 0 => return Err(format!("task {count} was acknowledged after the fault")),
            Then::Ends if fault.hit_a_task(log) => {
                return Err(format!("task {count} was acknowledged in spite of the fault"));
            }
            // The coordinator was at rest again, and the answer under way.
            Then::Ends => {}
        }
    }
    Ok(Answered::Yes)
}

impl Fault {
    /// Whether what failed was part of writing a task. A segment begins with a task; beside tasks only marks are
    /// written, which are short and come when everything was answered.
    fn hit_a_task(&self, log: &Path) -> bool {
        let written = Injection::bytes_of_failed_write(log);
        self.on == On::Spare || written.is_some_and(|bytes| bytes > PAYLOAD as u64)
    }
}

fn expect_end(coordinator: &mut Coordinator, answered: Answered) -> Checked {
    if answered == Answered::Yes {
        return Err(format!("{TASKS_MAX} tasks were acknowledged over a fault"));
    }
    let ended = coordinator.ended()?;
    if ended.code != Some(1) || !ended.said.contains("os error 5") {
        return Err(format!("it should have said why and ended with 1, but {ended:?}"));
    }
    Ok(())
}

/// A whole snapshot comes sooner or later, after any failure.
fn expect_a_snapshot(coordinator: &Coordinator, actor: &Actor, round: &Round<'_>) -> Checked {
    let mut count = TASKS_MAX;
    eventually("a snapshot after the fault", || {
        let names = std::fs::read_dir(coordinator.data()).map_err(super::failed("list the data folder"))?;
        let is_snapshot = |name: &str| name.starts_with("snap-") && name.ends_with(".snapshot");
        let found = names.flatten().any(|entry| entry.file_name().to_str().is_some_and(is_snapshot));
        count += 1;
        match round.runtime.block_on(actor.submit(count))? {
            Answered::Yes => Ok(found.then_some(())),
            Answered::No => Err("it went on, and then did not".to_owned()),
        }
    })
}
