//! A hundred and fifty worlds with several nodes in every run of the tests; `make prove` runs as many as there is time for.

use std::time::Duration;

use orchestrix_sim::{Campaign, ClusterCovered, ClusterPlan, prove_clusters, run_cluster, run_cluster_plan};

#[test]
fn no_cluster_breaks_an_invariant_and_coverage_is_full() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let campaign = Campaign { first_seed: 1, seeds: 150, time: Duration::from_secs(600), threads };
    let outcome = prove_clusters(campaign, |_| {});
    assert!(outcome.failed.is_empty(), "{:#?}", outcome.failed);
    assert_eq!(outcome.worlds, 150);
    assert_eq!(
        outcome.coverage.missing(),
        [],
        "a campaign that never saw these has proved nothing about them"
    );
}

#[test]
fn the_same_seed_is_the_same_cluster() {
    for seed in [3, 17, 99, 12_345] {
        let (first, second) = (run_cluster(seed), run_cluster(seed));
        assert_eq!(first.trace, second.trace, "seed {seed}");
        assert_eq!(
            (first.calls, first.seconds, &first.coverage),
            (second.calls, second.seconds, &second.coverage)
        );
    }
    assert_ne!(run_cluster(3).trace, run_cluster(4).trace);
}

/// A replica took over with the journal of an earlier moment and the snapshots of a later one, which no replica has.
#[test]
fn worlds_that_broke_an_invariant_once_do_not_any_more() {
    assert_eq!(run_cluster(7_726_136_931).violations, []);
}

/// `prove --only calm` has whole days.
#[test]
fn the_first_leader_of_a_calm_cluster_leads_for_an_hour() {
    let hour = run_cluster_plan(ClusterPlan::calm(1, 3_600));
    assert_eq!(hour.violations, []);
    assert!(hour.seconds >= 3_600 && hour.calls > 10, "{} s, {} calls", hour.seconds, hour.calls);
    assert_eq!(hour.coverage.count(ClusterCovered::Elected), 1);
}
