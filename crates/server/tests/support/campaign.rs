//! Campaigns of `orchestrix-sim` against the binary of these tests, with a small budget.

use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use orchestrix_sim::{RealCampaign, Trial, Tried};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_orchestrix");

/// Runs as many rounds as are enough for the campaign to see all that it must.
pub(crate) fn holds(name: &str) {
    let rounds = campaign(name).enough;
    let tried = run(name, rounds, Path::new(BINARY));
    assert!(tried.is_good(), "violations {:#?}, never seen {:#?}", tried.violations, tried.missing);
    assert_eq!(tried.rounds, rounds, "every round was run");
}

pub(crate) fn run(name: &str, rounds: u64, binary: &Path) -> Tried {
    let (ended, time) = (AtomicU64::new(0), Duration::MAX);
    let trial = Trial { binary, old_binary: None, seed: 1, rounds, time, ended: &ended };
    campaign(name).run(&trial)
}

fn campaign(name: &str) -> RealCampaign {
    RealCampaign::named(name).expect("a campaign with this name")
}
