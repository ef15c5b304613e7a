//! Some worlds with shards in every run of the tests; `make prove` runs as many as there is time for.

use std::time::Duration;

use orchestrix_sim::{Campaign, ShardCovered, handovers, prove_shards, run_shards};

#[test]
fn no_shard_world_breaks_an_invariant_and_coverage_is_full() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let campaign = Campaign { first_seed: 1, seeds: 100, time: Duration::from_secs(600), threads };
    let outcome = prove_shards(campaign, |_| {});
    assert!(outcome.failed.is_empty(), "{:#?}", outcome.failed);
    assert_eq!(outcome.worlds, 100);
    assert_eq!(
        outcome.coverage.missing(),
        [],
        "a campaign that never saw these has proved nothing about them"
    );
    assert!(outcome.coverage.count(ShardCovered::ServerChanged) > 1_000, "{:?}", outcome.coverage);
}

#[test]
fn the_same_seed_is_the_same_world_with_shards() {
    for seed in [3, 17, 99] {
        let (first, second) = (run_shards(seed), run_shards(seed));
        assert_eq!(first.trace, second.trace, "seed {seed}");
        assert_eq!(
            (first.calls, first.seconds, &first.coverage),
            (second.calls, second.seconds, &second.coverage)
        );
    }
    assert_ne!(run_shards(3).trace, run_shards(4).trace);
}

#[test]
fn no_lost_handover_message_gives_a_shard_two_workers() {
    // One pair in so many; with 1, all.
    let nth = std::env::var("ORCHESTRIX_HANDOVER_PAIRS").ok().and_then(|nth| nth.parse().ok()).unwrap_or(10);
    let all = handovers(nth);
    println!("{} messages, {} worlds: {:?}", all.messages, all.worlds, all.coverage);
    assert!(all.failed.is_empty(), "{:#?}", all.failed);
    assert!(all.messages >= 15 && all.worlds > 3 * all.messages, "{} messages", all.messages);
    // In each of them a shard is let go of, or its worker falls silent.
    let given = all.coverage.count(ShardCovered::LetGo) + all.coverage.count(ShardCovered::LeftSilent);
    assert!(given >= all.worlds, "{:?}", all.coverage);
}

/// Seeds that once broke an invariant.
#[test]
fn seeds_that_once_failed_break_no_invariant() {
    // A heartbeat from before its process was replaced arrived when that process had come again.
    for seed in [40_260_525, 53_001_388, 1_727_960_368, 3_757_322_926] {
        assert_eq!(run_shards(seed).violations, [], "seed {seed}");
    }
}
