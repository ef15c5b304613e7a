//! When shards are at rest: every worker is in, serves its assignment, and no shard is free that a worker could take.

use orchestrix_core::shards::{self, Shard};
use orchestrix_core::{Name, State};

use crate::actors::Actor;
use crate::shards::plan::ShardPlan;
use crate::shards::record::Kind;
use crate::shards::worker::ShardWorker;
use crate::world::{MS, SECOND};

/// Nothing has gone wrong for so long that shards must be at rest, in microseconds: messages that were late have arrived
/// (`latest` lengths of a right), a worker that one of them registered has expired (one), the owners of its name have come
/// again (one), and shards have moved (one, and one for workers that are believed only after a while).
pub(crate) fn bound_us(plan: &ShardPlan) -> u64 {
    (6 + plan.latest) * plan.lease_ms * MS + 10 * SECOND
}

/// Nothing if all is well, else what is not.
pub(crate) fn unrest(state: &State, actors: &[Actor]) -> Option<String> {
    let workers = || {
        actors.iter().filter_map(|actor| match actor {
            Actor::ShardWorker(worker) => Some(worker),
            Actor::Submitter(_) | Actor::Worker(_) | Actor::Away => None,
        })
    };
    let mut known = 0;
    for worker in workers() {
        match (worker.is_down(), worker.is_twin()) {
            (true, true) => {}
            (_, true) => return Some("a second process has not ended".to_owned()),
            (_, false) if worker.is_deaf() => {
                known += 1;
                if !worker.is_in() {
                    return Some(format!(
                        "a worker that does not listen is not in: {}",
                        worker.whereabouts()
                    ));
                }
            }
            (_, false) => {
                known += 1;
                let problem = unsettled(state, worker);
                if problem.is_some() {
                    return problem;
                }
            }
        }
    }
    let has = |service: &Name, kind| workers().any(|it| it.names().0 == service && it.kind() == kind);
    let there: usize = state.services().map(|(_, service)| service.workers.len()).sum();
    if there != known {
        return Some(format!("{there} workers are in, and {known} are alive"));
    }
    // No worker is overruled while another could be asked, so the wait has no end.
    let is_stuck = |service: &Name| has(service, Kind::Deaf) && has(service, Kind::Aware);
    state.services().filter(|(name, _)| !is_stuck(name)).find_map(|(name, service)| {
        let lies = |shard: &Shard| match shard {
            Shard::Held { .. } => false,
            Shard::Withdrawn { .. } => true,
            Shard::Free => service.workers.iter().any(|(name, worker)| {
                let has = service.held_by(name).count();
                worker.capacity.is_none_or(|most| has < most as usize)
            }),
        };
        let (has, count) = (service.shards.len(), service.count);
        let lying = service.shards.iter().position(lies);
        let held = |worker: &Name| service.held_by(worker).count();
        let most = service.workers.keys().map(held).max().unwrap_or(0);
        let room = |(name, worker): &(&Name, &shards::ShardWorker)| {
            worker.capacity.is_none_or(|capacity| held(name) < capacity as usize)
        };
        let least = service.workers.iter().filter(room).map(|(name, _)| held(name)).min();
        if least.is_some_and(|least| most > least + 1) {
            return Some(format!("a worker of service {name} has {least:?}, and another {most}"));
        }
        let whole = has == count as usize;
        (lying.is_some() || !whole)
            .then(|| format!("service {name} has {has} of {count} shards, and {lying:?} is on its way"))
    })
}

fn unsettled(state: &State, worker: &ShardWorker) -> Option<String> {
    let (service, name) = worker.names();
    let Some(serves) = worker.settled() else {
        return Some(format!("{service} {name} is not in: {}", worker.whereabouts()));
    };
    let should: Vec<_> = state.service(service).map(|it| it.held_by(name).collect()).unwrap_or_default();
    (serves != should).then(|| format!("{service} {name} serves {serves:?} and should {should:?}"))
}

#[cfg(test)]
mod tests {
    use crate::cluster::{ClusterPlan, run_cluster_plan};

    /// Once each process that was started again found that the call of the one before it was let in.
    #[test]
    fn workers_that_are_started_again_come_in() {
        let mut plan = ClusterPlan::sharded(113);
        (plan.seconds, plan.actors.seconds) = (30, 30);
        let shards = plan.actors.shards.as_mut().expect("it is about shards");
        shards.deaf = (0..shards.services.len()).collect();
        shards.one_deaf.clear();
        (shards.leaves, shards.twins) = (shards.leaves.max(12_000), shards.twins.max(50_000));
        assert_eq!(run_cluster_plan(plan).violations, []);
    }
}
