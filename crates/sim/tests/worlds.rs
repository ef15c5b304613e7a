//! Some hundred worlds in every run of the tests; `make prove` runs as many as there is time for.

use std::time::Duration;

use orchestrix_sim::{Campaign, prove, run_seed};

#[test]
fn no_world_breaks_an_invariant_and_coverage_is_full() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let campaign = Campaign { first_seed: 1, seeds: 600, time: Duration::from_secs(600), threads };
    let outcome = prove(campaign, |_| {});
    assert!(outcome.failed.is_empty(), "{:#?}", outcome.failed);
    assert_eq!(outcome.worlds, 600);
    assert_eq!(
        outcome.coverage.missing(),
        [],
        "a campaign that never saw these has proved nothing about them"
    );
}

/// Seeds that once broke an invariant.
const REGRESSIONS: &[u64] = &[
    // L7: calls of one name for other queues got a lease each, and one for all of these queues got both.
    91_007_877,
    // TL1, by mistake: a turn was decided, the server froze, and the turn was written when the faults had ended.
    4_040_600_168,
    // TL2, by mistake: seven workers asked every few milliseconds for 18 minutes, and the checker counted only to 3,000,000.
    8_500_455_528,
];

#[test]
fn worlds_that_once_broke_something_break_nothing() {
    for seed in REGRESSIONS {
        assert_eq!(run_seed(*seed).violations, [], "seed {seed}");
    }
}

#[test]
fn the_same_seed_is_the_same_world() {
    for seed in [3, 17, 99, 12_345] {
        let (first, second) = (run_seed(seed), run_seed(seed));
        assert_eq!(first.trace, second.trace, "seed {seed}");
        assert_eq!(
            (first.calls, first.seconds, &first.coverage),
            (second.calls, second.seconds, &second.coverage)
        );
    }
    assert_ne!(run_seed(3).trace, run_seed(4).trace);
}

#[test]
fn a_world_that_is_over_leaves_no_thread_behind() {
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let before = threads();
    for seed in 1..40 {
        assert_eq!(orchestrix_sim::run_seed(seed).violations, []);
    }
    // Other tests of this program run beside it, with a few threads of their own.
    assert!(threads() < before + 8, "{} threads, and {before} before", threads());
}
