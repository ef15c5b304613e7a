//! `syncs`: a write or a sync fails with EIO.
//!
//! In the journal that is the end of the process: nobody knows what the disk holds. Beside it, the coordinator
//! goes on without what failed. Either way nothing that was acknowledged is lost.

use std::sync::Arc;

use super::ledger::Ledger;
use super::load::{Actor, Answered};
use super::oracle::hold;
use super::process::{Coordinator, eventually};
use super::strace::{Injection, On};
use super::{Checked, Round, Trial, Tried};

const PAYLOAD: usize = 32 << 10;
/// Tasks after which every fault has been met.
const TASKS_MAX: u64 = 200;

/// What the coordinator has to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Ends,
    /// Perhaps without new tasks for a moment, until a second try has gone well.
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

pub(super) fn run(trial: &Trial<'_>) -> Tried {
    let mut must: Vec<&'static str> = FAULTS.iter().map(|fault| fault.name).collect();
    must.push("unknown outcomes resolved");
    trial.rounds(FAULTS.len() as u64, &must, |round| {
        let number = usize::try_from(round.number - 1).unwrap_or(0);
        let fault = &FAULTS[number % FAULTS.len()];
        one(trial, round, fault).map_err(|why| format!("{}: {why}", fault.name))?;
        round.tried.see(fault.name, 1);
        Ok(())
    })
}

fn one(trial: &Trial<'_>, round: &mut Round<'_>, fault: &Fault) -> Checked {
    let mut coordinator = Coordinator::prepare(trial.binary, &["--snapshot-after", "64KiB"])?;
    let ledger = Arc::new(Ledger::create(coordinator.file("ledger"))?);
    coordinator.launch()?;
    coordinator.await_reserve()?;
    let nth = round.rng.range(1, fault.nth_max);
    let injection = Injection { call: fault.call, on: fault.on, fault: "error=EIO", nth };
    let tracer = injection.attach(&coordinator)?;
    let actor = Actor {
        client: coordinator.client()?,
        ledger: Arc::clone(&ledger),
        name: "a".to_owned(),
        payload: PAYLOAD,
    };
    let log = coordinator.file("strace");
    let answered = round.runtime.block_on(async {
        for count in 1..=TASKS_MAX {
            if actor.submit(count).await? == Answered::No {
                return Ok(Answered::No);
            }
            if fault.then == Then::GoesOn && Injection::injected(&log) > 0 {
                break;
            }
        }
        Checked::Ok(Answered::Yes)
    })?;
    match fault.then {
        Then::Ends => expect_end(&mut coordinator, answered)?,
        Then::GoesOn if answered == Answered::No => return Err("it does not go on".to_owned()),
        Then::GoesOn => {}
    }
    drop(tracer);
    let injected = Injection::injected(&log);
    if injected == 0 {
        return Err(format!("{TASKS_MAX} tasks passed without {} number {nth}", fault.call));
    }
    round.tried.faults += injected;
    if fault.then == Then::GoesOn {
        // What failed is done again later, and all was held in between.
        round.runtime.block_on(hold(&coordinator.client()?, &ledger, PAYLOAD))?;
        expect_a_snapshot(&coordinator, &actor, round)?;
        coordinator.kill()?;
    }
    coordinator.launch()?;
    let found = round.runtime.block_on(hold(&coordinator.client()?, &ledger, PAYLOAD))?;
    found.tell(round.tried);
    round.tried.acknowledged += found.said.acknowledged;
    Ok(())
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

/// A whole snapshot comes sooner or later, whatever failed before.
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
