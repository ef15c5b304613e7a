//! A bug is planted, and the world that finds it is made smaller. Alone in its program: a planted bug is planted for all.

use orchestrix_sim::{ClusterPlan, Shrink, run_cluster_plan, shrink};

#[test]
fn the_world_of_a_planted_bug_gets_smaller_and_still_finds_it() {
    assert!(orchestrix_core::plant("lease-taken-early"));
    let finds = |plan: &ClusterPlan| {
        run_cluster_plan(plan.clone()).violations.iter().any(|violation| violation.invariant == "E5")
    };
    let plan = (1..100).map(ClusterPlan::draw).find(finds).expect("some world finds the bug");
    let smallest = shrink(plan.clone(), finds);
    assert!(finds(&smallest));
    // Whatever else is taken away, the bug does not show any more: so there is little left.
    assert!(smallest.easier().len() < plan.easier().len() / 2, "{plan:#?} became {smallest:#?}");
    assert!(!orchestrix_core::plant(""), "no bug has no name");
    assert!(!finds(&smallest), "without the bug this world breaks nothing");
}
