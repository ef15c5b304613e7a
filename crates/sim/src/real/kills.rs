//! `kills`: the coordinator is killed at any time, under load and again while it recovers.

use std::time::Duration;

use tokio::runtime::Runtime;

use super::ground::Ground;
use super::process::Coordinator;
use super::{Checked, Round, Trial, Tried};

const SUBMITTERS: u64 = 3;
const WORKERS: u64 = 3;
/// Rounds of one folder: bounds how much is compared after each kill.
const ROUNDS_PER_FOLDER: u64 = 40;
const PAYLOAD: usize = 100;
const SNAPSHOT_AFTER: [&str; 3] = ["16KiB", "64KiB", "128MiB"];
/// So many rounds in a million kill again while it recovers.
const AGAIN_PER_MILLION: u32 = 400_000;
/// Longer than a start takes.
const RECOVERY_MS_MAX: u64 = 40;

const MUST: &[&str] =
    &["unknown outcomes resolved", "kills while recovering", "starts from a snapshot", "completions"];

/// A folder with its history.
struct Folder {
    ground: Ground,
    rounds: u64,
    /// What was completed when it was last counted.
    completed: usize,
}

pub(super) const ENOUGH: u64 = 30;

pub(super) fn run(trial: &Trial<'_>) -> Tried {
    let mut folder: Option<Folder> = None;
    trial.rounds(ENOUGH, MUST, |round| {
        let here = match folder.take() {
            Some(folder) if folder.rounds < ROUNDS_PER_FOLDER => folder,
            _ => Folder::new(trial, round)?,
        };
        folder.insert(here).round(round)
    })
}

impl Folder {
    fn new(trial: &Trial<'_>, round: &mut Round<'_>) -> Checked<Self> {
        // From a snapshot, or through all of the journal; in the first folder surely from a snapshot.
        let chosen = if round.number == 1 { 0 } else { round.rng.index(SNAPSHOT_AFTER.len()) };
        let after = SNAPSHOT_AFTER[chosen];
        let coordinator = Coordinator::prepare(trial.binary, &["--snapshot-after", after])?;
        let mut ground = Ground::new(coordinator, PAYLOAD)?;
        ground.coordinator.launch()?;
        Ok(Self { ground, rounds: 0, completed: 0 })
    }

    /// Load, a kill, perhaps more kills while it recovers, and the comparison.
    fn round(&mut self, round: &mut Round<'_>) -> Checked {
        let runtime = round.runtime;
        self.rounds += 1;
        let load = self.start_load(runtime, round.number)?;
        std::thread::sleep(Duration::from_millis(round.rng.range(20, 200)));
        self.ground.coordinator.kill()?;
        round.tried.faults += 1;
        for part in load {
            runtime.block_on(part).map_err(|error| format!("the load stopped: {error}"))??;
        }
        while round.rng.chance(AGAIN_PER_MILLION) {
            self.kill_while_recovering(round)?;
        }
        let found = self.ground.launch_and_hold(round)?;
        let greeting = self.ground.coordinator.greeting();
        round.tried.see("starts from a snapshot", u64::from(greeting.contains("by a snapshot")));
        round.tried.see("torn ends cut", u64::from(greeting.contains("repaired")));
        round.tried.see("completions", (found.acked.completed.len() - self.completed) as u64);
        self.completed = found.acked.completed.len();
        Ok(())
    }

    fn kill_while_recovering(&mut self, round: &mut Round<'_>) -> Checked {
        self.ground.coordinator.start(None)?;
        std::thread::sleep(Duration::from_micros(round.rng.range(0, RECOVERY_MS_MAX * 1_000)));
        let was_ready = self.ground.coordinator.is_ready();
        self.ground.coordinator.kill()?;
        round.tried.faults += 1;
        round.tried.see("kills while recovering", u64::from(!was_ready));
        Ok(())
    }

    fn start_load(&self, runtime: &Runtime, round: u64) -> Checked<Vec<tokio::task::JoinHandle<Checked>>> {
        let actor = |kind: &str, n: u64| self.ground.actor(&format!("{kind}{n}-{round}"));
        let mut load = Vec::new();
        for n in 0..SUBMITTERS {
            load.push(runtime.spawn(actor("s", n)?.submit_until_gone()));
        }
        for n in 0..WORKERS {
            load.push(runtime.spawn(actor("w", n)?.work_until_gone()));
        }
        Ok(load)
    }
}
