//! Makes a world that fails smaller, as long as it still breaks the same invariant.
//!
//! A rate of zero draws as much from the seed as any other, so most of what is left happens as before.

use crate::plan::Plan;

/// Worlds that are tried at most.
const TRIES_MAX: usize = 400;

/// The simplest plan that was found of which `fails` is still true.
#[must_use]
pub fn shrink(plan: Plan, mut fails: impl FnMut(&Plan) -> bool) -> Plan {
    let mut smallest = plan;
    let mut tries = 0..TRIES_MAX;
    while let Some(next) =
        easier(&smallest).into_iter().find(|easier| tries.next().is_some() && fails(easier))
    {
        smallest = next;
    }
    smallest
}

/// The same plan with one thing less, the largest steps first.
fn easier(plan: &Plan) -> Vec<Plan> {
    let mut found = Vec::new();
    let mut without = |change: &dyn Fn(&mut Plan) -> &mut u32| {
        let mut easier = plan.clone();
        if std::mem::take(change(&mut easier)) > 0 {
            found.push(easier);
        }
    };
    without(&|plan| &mut plan.lost);
    without(&|plan| &mut plan.doubled);
    without(&|plan| &mut plan.slow);
    without(&|plan| &mut plan.slow_disk);
    without(&|plan| &mut plan.kills);
    without(&|plan| &mut plan.power_losses);
    without(&|plan| &mut plan.stops);
    without(&|plan| &mut plan.freezes);
    without(&|plan| &mut plan.jumps);
    without(&|plan| &mut plan.full_disks);
    without(&|plan| &mut plan.sync_failures);
    without(&|plan| &mut plan.short_writes);
    without(&|plan| &mut plan.worker_crashes);
    without(&|plan| &mut plan.worker_freezes);
    without(&|plan| &mut plan.failures);
    without(&|plan| &mut plan.releases);
    without(&|plan| &mut plan.poison);
    without(&|plan| &mut plan.late_reports);
    without(&|plan| &mut plan.cancels);
    without(&|plan| &mut plan.keyed);
    let mut smaller = |change: &dyn Fn(&mut Plan)| {
        let mut easier = plan.clone();
        change(&mut easier);
        found.push(easier);
    };
    if plan.seconds > 1 {
        smaller(&|plan| plan.seconds /= 2);
        smaller(&|plan| plan.seconds -= plan.seconds.div_ceil(8));
    }
    if plan.tasks > 1 {
        smaller(&|plan| plan.tasks /= 2);
        smaller(&|plan| plan.tasks -= plan.tasks.div_ceil(8));
    }
    if plan.workers > 1 {
        smaller(&|plan| plan.workers = 1);
        smaller(&|plan| plan.workers -= 1);
    }
    if plan.submitters > 1 {
        smaller(&|plan| plan.submitters = 1);
    }
    if plan.queues > 1 {
        smaller(&|plan| plan.queues = 1);
    }
    if plan.server_drift_ppm != 0 || plan.worker_drift_ppm != 0 {
        smaller(&|plan| (plan.server_drift_ppm, plan.worker_drift_ppm) = (0, 0));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_needed_to_fail_is_left() {
        let mut plan = Plan::draw(3);
        (plan.workers, plan.tasks) = (5, 100);
        let (mut kills, mut losses) = (plan.clone(), plan);
        (kills.kills, losses.lost) = (1_000, 1_000);
        let needs_kills = shrink(kills, |plan| plan.kills > 0 && plan.tasks >= 5);
        assert_eq!((needs_kills.kills, needs_kills.lost, needs_kills.tasks), (1_000, 0, 5));
        assert_eq!((needs_kills.workers, needs_kills.submitters, needs_kills.seconds), (1, 1, 1));
        let needs_losses = shrink(losses, |plan| plan.lost > 0 && plan.workers >= 2);
        assert_eq!((needs_losses.lost, needs_losses.kills), (1_000, 0));
        assert!(needs_losses.workers == 2, "{}", needs_losses.workers);
    }
}
