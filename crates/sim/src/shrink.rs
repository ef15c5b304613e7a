//! Makes a world that fails smaller, as long as it still breaks the same invariant.
//!
//! A rate of zero draws as much from the seed as any other, so most of what is left happens as before.

use crate::plan::Plan;

/// Worlds that are tried at most.
const TRIES_MAX: usize = 400;

/// A world before it begins, which can be made simpler.
pub trait Shrink: Sized {
    /// The same with one thing less, for each thing that can be less; the largest steps first.
    #[must_use]
    fn easier(&self) -> Vec<Self>;
}

/// The simplest plan that was found of which `fails` is still true.
#[must_use]
pub fn shrink<P: Shrink>(plan: P, mut fails: impl FnMut(&P) -> bool) -> P {
    let mut smallest = plan;
    let mut tries = 0..TRIES_MAX;
    while let Some(next) =
        smallest.easier().into_iter().find(|easier| tries.next().is_some() && fails(easier))
    {
        smallest = next;
    }
    smallest
}

/// A rate of a plan.
pub(crate) type Rate<P> = fn(&mut P) -> &mut u32;

/// The same plan without one of its faults, for each that it has.
pub(crate) fn without_each<P: Clone>(plan: &P, rates: &[Rate<P>]) -> Vec<P> {
    let without = |rate: &Rate<P>| {
        let mut easier = plan.clone();
        (std::mem::take(rate(&mut easier)) > 0).then_some(easier)
    };
    rates.iter().filter_map(without).collect()
}

/// Half of a number, and then an eighth less; nothing when it is one.
pub(crate) fn less(number: u64) -> Vec<u64> {
    if number > 1 { vec![number / 2, number - number.div_ceil(8)] } else { Vec::new() }
}

impl Shrink for Plan {
    fn easier(&self) -> Vec<Self> {
        let mut found = without_each(
            self,
            &[
                |plan| &mut plan.lost,
                |plan| &mut plan.doubled,
                |plan| &mut plan.slow,
                |plan| &mut plan.hang_ups,
                |plan| &mut plan.slow_disk,
                |plan| &mut plan.kills,
                |plan| &mut plan.power_losses,
                |plan| &mut plan.stops,
                |plan| &mut plan.freezes,
                |plan| &mut plan.jumps,
                |plan| &mut plan.full_disks,
                |plan| &mut plan.sync_failures,
                |plan| &mut plan.short_writes,
                |plan| &mut plan.worker_crashes,
                |plan| &mut plan.worker_freezes,
                |plan| &mut plan.failures,
                |plan| &mut plan.releases,
                |plan| &mut plan.poison,
                |plan| &mut plan.late_reports,
                |plan| &mut plan.cancels,
                |plan| &mut plan.keyed,
            ],
        );
        let mut smaller = |change: &dyn Fn(&mut Self)| {
            let mut easier = self.clone();
            change(&mut easier);
            found.push(easier);
        };
        for seconds in less(self.seconds) {
            smaller(&|plan| plan.seconds = seconds);
        }
        for tasks in less(self.tasks) {
            smaller(&|plan| plan.tasks = tasks);
        }
        if self.workers > 1 {
            smaller(&|plan| plan.workers = 1);
            smaller(&|plan| plan.workers -= 1);
        }
        if self.changing {
            smaller(&|plan| plan.changing = false);
        }
        if self.submitters > 1 {
            smaller(&|plan| plan.submitters = 1);
        }
        if self.queues > 1 {
            smaller(&|plan| plan.queues = 1);
        }
        if self.queues_max < self.queues {
            smaller(&|plan| plan.queues_max = plan.queues);
        }
        if let Some(shards) = &self.shards {
            let easier = shards.easier().into_iter();
            easier.for_each(|shards| smaller(&|plan| plan.shards = Some(shards.clone())));
        }
        if self.server_drift_ppm != 0 || self.worker_drift_ppm != 0 {
            smaller(&|plan| (plan.server_drift_ppm, plan.worker_drift_ppm) = (0, 0));
        }
        found
    }
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
