//! A few seconds of damage in every run of the tests.

use std::time::Duration;

use orchestrix_sim::{DamageCampaign, damage};

#[test]
fn no_damaged_disk_loses_acknowledged_work_in_silence() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let time = Duration::from_secs(6);
    let outcome = damage(DamageCampaign { first_seed: 1, seeds: 2, time, threads });
    println!("{outcome:#?}");
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
    let done = [outcome.flips, outcome.cuts, outcome.sectors, outcome.erasures, outcome.crash_points];
    assert!(done.iter().all(|count| *count > 20), "{outcome:?}");
    let seen = [outcome.harmless, outcome.refused, outcome.excluded, outcome.passed_over];
    assert!(seen.iter().all(|count| *count > 0), "{outcome:?}");
}
