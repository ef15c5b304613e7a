//! `kills`: the coordinator is killed at any time, under load and again while it recovers.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;

use super::ledger::Ledger;
use super::load::Actor;
use super::oracle::hold;
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

/// A folder with its history, and the coordinator that runs on it.
struct Ground {
    coordinator: Coordinator,
    ledger: Arc<Ledger>,
    rounds: u64,
    /// What the ledger had when it was last counted.
    acknowledged: u64,
    completed: usize,
}

pub(super) fn run(trial: &Trial<'_>) -> Tried {
    let mut ground: Option<Ground> = None;
    trial.rounds(30, MUST, |round| {
        let here = match ground.take() {
            Some(ground) if ground.rounds < ROUNDS_PER_FOLDER => ground,
            _ => Ground::new(trial, round)?,
        };
        ground.insert(here).round(round)
    })
}

impl Ground {
    fn new(trial: &Trial<'_>, round: &mut Round<'_>) -> Checked<Self> {
        // From a snapshot, or through all of the journal; in the first folder surely from a snapshot.
        let chosen = if round.number == 1 { 0 } else { round.rng.index(SNAPSHOT_AFTER.len()) };
        let after = SNAPSHOT_AFTER[chosen];
        let mut coordinator = Coordinator::prepare(trial.binary, &["--snapshot-after", after])?;
        let ledger = Arc::new(Ledger::create(coordinator.file("ledger"))?);
        coordinator.launch()?;
        Ok(Self { coordinator, ledger, rounds: 0, acknowledged: 0, completed: 0 })
    }

    /// Load, a kill, perhaps more kills while it recovers, and the comparison.
    fn round(&mut self, round: &mut Round<'_>) -> Checked {
        let runtime = round.runtime;
        self.rounds += 1;
        let load = self.start_load(runtime, round.number)?;
        std::thread::sleep(Duration::from_millis(round.rng.range(20, 200)));
        self.coordinator.kill()?;
        round.tried.faults += 1;
        for part in load {
            runtime.block_on(part).map_err(|error| format!("the load stopped: {error}"))??;
        }
        while round.rng.chance(AGAIN_PER_MILLION) {
            self.kill_while_recovering(round)?;
        }
        self.coordinator.launch()?;
        let greeting = self.coordinator.greeting();
        round.tried.see("starts from a snapshot", u64::from(greeting.contains("by a snapshot")));
        round.tried.see("torn ends cut", u64::from(greeting.contains("repaired")));
        let client = self.coordinator.client()?;
        let found = runtime.block_on(hold(&client, &self.ledger, PAYLOAD))?;
        found.tell(round.tried);
        round.tried.acknowledged += found.said.acknowledged - self.acknowledged;
        round.tried.see("completions", (found.said.completed.len() - self.completed) as u64);
        self.acknowledged = found.said.acknowledged;
        self.completed = found.said.completed.len();
        Ok(())
    }

    fn kill_while_recovering(&mut self, round: &mut Round<'_>) -> Checked {
        self.coordinator.start(None)?;
        std::thread::sleep(Duration::from_micros(round.rng.range(0, RECOVERY_MS_MAX * 1_000)));
        let was_ready = self.coordinator.is_ready();
        self.coordinator.kill()?;
        round.tried.faults += 1;
        round.tried.see("kills while recovering", u64::from(!was_ready));
        Ok(())
    }

    fn start_load(&self, runtime: &Runtime, round: u64) -> Checked<Vec<tokio::task::JoinHandle<Checked>>> {
        let client = self.coordinator.client()?;
        let actor = |kind: &str, n: u64| Actor {
            client: client.clone(),
            ledger: Arc::clone(&self.ledger),
            name: format!("{kind}{n}-{round}"),
            payload: PAYLOAD,
        };
        let submitters = (0..SUBMITTERS).map(|n| runtime.spawn(actor("s", n).submit_until_gone()));
        let mut load: Vec<_> = submitters.collect();
        load.extend((0..WORKERS).map(|n| runtime.spawn(actor("w", n).work_until_gone())));
        Ok(load)
    }
}
