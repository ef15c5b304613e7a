//! Decides commands about shards. Changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::command::count_field;
use super::event::{
    LeaveReason, NewCapacity, ShardCountSet, ShardWeightsSet, ShardWorkerJoined, ShardWorkerLeft,
    ShardsLetGo, ShardsMoved,
};
use super::{DEFAULT_GROUP, Runs, Service, ShardCommand, Shards};
use crate::limits::{SERVICES_MAX, SERVICES_PER_TOKEN_MAX, SHARD_WORKERS_MAX, SHARDS_TOTAL_MAX};
use crate::{Decision, Event, Name, Refusal, is_planted};

impl Shards {
    pub(super) fn judge(&self, command: &ShardCommand) -> Result<Decision, Refusal> {
        match command {
            ShardCommand::Join { service, worker, group, count, capacity, by, session } => {
                let group = group.as_ref().filter(|group| group.as_str() != DEFAULT_GROUP);
                self.join((service, worker, session.as_ref()), group, (*count, *capacity), by.as_ref())
            }
            ShardCommand::Leave { service, worker, reason } => Ok(self.leave(service, worker, *reason)),
            ShardCommand::LetGo { service, worker, shards } => Ok(self.let_go(service, worker, shards)),
            ShardCommand::Overrule { service, worker, shards } => Ok(self.overrule(service, worker, shards)),
            ShardCommand::SetCount { service, count, worker } => {
                self.set_count(service, *count, worker.as_ref())
            }
            ShardCommand::SetCapacity { service, worker, capacity } => {
                Ok(self.set_capacity(service, worker, *capacity))
            }
            ShardCommand::SetWeights { service, weights } => self.set_weights(service, weights),
            ShardCommand::Move { service, most } => Ok(self.move_shards(service, *most)),
            ShardCommand::Expire { service } => Ok(self.expire_service(service)),
        }
    }

    fn join(
        &self,
        (service, worker, session): (&Name, &Name, Option<&Name>),
        group: Option<&Name>,
        (count, capacity): (u32, Option<u32>),
        by: Option<&Name>,
    ) -> Result<Decision, Refusal> {
        let joined = |count, said, by: Option<&Name>| {
            let (service, worker, group) = (service.clone(), worker.clone(), group.cloned());
            let (by, session) = (by.cloned(), session.cloned());
            event(ShardWorkerJoined { service, worker, group, count, capacity, said, by, session })
        };
        let Some(known) = self.services.get(service) else {
            self.check_room(by)?;
            self.check_shards(None, count, Some(worker))?;
            return Ok(joined(Some(count), None, by));
        };
        if known.group.as_ref() != group && known.had_workers() {
            let known = known.group.as_ref().map_or(DEFAULT_GROUP, Name::as_str);
            let problem = format!("service {service} belongs to group {known}");
            return Err(Refusal::Invalid { field: "group", problem });
        }
        if known.workers.contains_key(worker) {
            return Ok(Decision::Nothing);
        }
        if known.workers.len() >= SHARD_WORKERS_MAX {
            let problem = format!("service {service} has {SHARD_WORKERS_MAX} workers already");
            return Err(Refusal::Invalid { field: "worker", problem });
        }
        let before = known.said.get(worker);
        // A name that was never heard of changes nothing that an operator said.
        if known.ordered && before.is_none() && !is_planted("new-name-undoes-orders") {
            return Ok(joined(None, Some(count), None));
        }
        let changed = (before != Some(&count)).then_some(count);
        if let Some(count) = changed {
            self.check_shards(Some(known), count, Some(worker))?;
        }
        Ok(joined(changed, None, None))
    }

    /// There is room for one more service, and its creator has not made too many.
    fn check_room(&self, by: Option<&Name>) -> Result<(), Refusal> {
        let refused = |problem| Err(Refusal::Invalid { field: "service", problem });
        if self.services.len() >= SERVICES_MAX {
            return refused(format!("there are {SERVICES_MAX} services already"));
        }
        let Some(by) = by else { return Ok(()) };
        let made = self.services.values().filter(|service| service.by.as_ref() == Some(by)).count();
        if made >= SERVICES_PER_TOKEN_MAX {
            return refused(format!("token {by} has made {SERVICES_PER_TOKEN_MAX} services already"));
        }
        Ok(())
    }

    /// There is room for so many shards of a service, beside those of all others.
    fn check_shards(
        &self,
        service: Option<&Service>,
        count: u32,
        worker: Option<&Name>,
    ) -> Result<(), Refusal> {
        let has = service.map_or(0, |service| service.shards.len());
        if count as usize <= has {
            return Ok(());
        }
        let all: usize = self.services.values().map(|service| service.shards.len()).sum();
        if all - has + count as usize <= SHARDS_TOTAL_MAX {
            return Ok(());
        }
        let problem = format!(
            "all services together have {SHARDS_TOTAL_MAX} shards at most, and there are {all} already"
        );
        Err(Refusal::Invalid { field: count_field(worker), problem })
    }

    /// A service that has lost its workers for long is forgotten, unless an operator wants it.
    fn expire_service(&self, service: &Name) -> Decision {
        let known = self.services.get(service).filter(|known| known.workers.is_empty() && !known.kept);
        if known.is_none() {
            return Decision::Nothing;
        }
        event(ShardCountSet { service: service.clone(), count: 0, worker: None })
    }

    fn leave(&self, service: &Name, worker: &Name, reason: LeaveReason) -> Decision {
        let is_there = self.services.get(service).is_some_and(|known| known.workers.contains_key(worker));
        if !is_there {
            return Decision::Nothing;
        }
        event(ShardWorkerLeft { service: service.clone(), worker: worker.clone(), reason })
    }

    fn set_capacity(&self, service: &Name, worker: &Name, capacity: Option<u32>) -> Decision {
        let known = self.services.get(service).and_then(|known| known.workers.get(worker));
        if known.is_none_or(|known| known.capacity == capacity) {
            return Decision::Nothing;
        }
        let capacity = Some(NewCapacity { worker: worker.clone(), capacity });
        let (withdrawn, granted) = (Runs::default(), Vec::new());
        event(ShardsMoved { service: service.clone(), withdrawn, granted, capacity })
    }

    /// Frees withdrawn shards that were released. A worker that releases a shard of its own gets it again, or another.
    fn let_go(&self, service: &Name, worker: &Name, shards: &[u32]) -> Decision {
        let Some(known) = self.services.get(service) else { return Decision::Nothing };
        let has = |number: &u32| {
            known.shards.get(*number as usize).is_some_and(|shard| shard.worker() == Some(worker))
        };
        // Each once, even if it was named twice.
        let shards: BTreeSet<u32> = shards.iter().copied().filter(has).collect();
        if shards.is_empty() {
            return Decision::Nothing;
        }
        let shards: Runs = shards.into_iter().collect();
        event(ShardsLetGo { service: service.clone(), worker: worker.clone(), shards, overruled: None })
    }

    /// Takes back what was withdrawn and may still be served.
    fn overrule(&self, service: &Name, worker: &Name, shards: &BTreeSet<u32>) -> Decision {
        let Some(known) = self.services.get(service) else { return Decision::Nothing };
        let withdrawn = known.withdrawn_from(worker).map(|(shard, _)| shard);
        let shards: Runs = withdrawn.filter(|shard| shards.contains(shard)).collect();
        if shards.is_empty() {
            return Decision::Nothing;
        }
        let (service, worker, overruled) = (service.clone(), worker.clone(), Some(true));
        event(ShardsLetGo { service, worker, shards, overruled })
    }

    fn set_count(&self, service: &Name, count: u32, worker: Option<&Name>) -> Result<Decision, Refusal> {
        let known = self.services.get(service);
        let said = match (known, worker) {
            (Some(known), Some(_)) if is_planted("last-word-counts") => known.count == count,
            (Some(known), Some(worker)) => known.said.get(worker) == Some(&count),
            (Some(known), None) => known.count == count && known.ordered,
            (None, Some(_)) => false,
            // What is not there has no shards.
            (None, None) => count == 0,
        };
        if said {
            return Ok(Decision::Nothing);
        }
        if known.is_none() {
            self.check_room(None)?;
        }
        self.check_shards(known, count, worker)?;
        Ok(event(ShardCountSet { service: service.clone(), count, worker: worker.cloned() }))
    }

    fn set_weights(&self, service: &Name, weights: &BTreeMap<u32, u32>) -> Result<Decision, Refusal> {
        let Some(known) = self.services.get(service) else {
            let problem = format!("there is no service {service}");
            return Err(Refusal::Invalid { field: "service", problem });
        };
        let weights: BTreeMap<u32, u32> = weights
            .iter()
            .filter(|(_, weight)| **weight != 1)
            .map(|(shard, weight)| (*shard, *weight))
            .collect();
        if weights == known.weights {
            return Ok(Decision::Nothing);
        }
        Ok(event(ShardWeightsSet { service: service.clone(), weights }))
    }

    fn move_shards(&self, service: &Name, most: usize) -> Decision {
        let moves = self.services.get(service).and_then(|known| known.moves(most));
        let Some((withdrawn, granted)) = moves else { return Decision::Nothing };
        event(ShardsMoved { service: service.clone(), withdrawn, granted, capacity: None })
    }
}

fn event(event: impl Into<Event>) -> Decision {
    Decision::Event(event.into())
}
