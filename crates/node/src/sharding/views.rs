//! Services as people see them.

use orchestrix_core::shards::{Service, Shard};
use orchestrix_core::wire::{ServiceList, ServiceSummary, ServiceView, ShardView, ShardWorkerView};
use orchestrix_core::{Name, Position, Refusal, Timestamp};

use crate::decision_loop::DecisionLoop;
use crate::request::{Answer, Error, Recipient};

/// The group of services that name none.
const DEFAULT_GROUP: &str = "default";

impl<R: Recipient> DecisionLoop<R> {
    pub(super) fn service_view(&self, name: &Name, now: Timestamp) -> Result<Answer, Error> {
        let Some(service) = self.state.service(name) else {
            return Err(self.refuse(Refusal::NoService(name.clone())));
        };
        let until = |worker: &Name| {
            let soft = self.sharding.services.get(name)?;
            soft.workers.get(worker).map(|known| known.until)
        };
        let workers = service.workers.iter().map(|(worker, known)| ShardWorkerView {
            worker: worker.clone(),
            shards: service.held_by(worker).map(|(shard, _)| shard).collect(),
            capacity: known.capacity,
            left_ms: until(worker).map_or(0, |until| until.since(now)),
        });
        let shards = (0..).zip(&service.shards).map(|(number, shard)| {
            let (state, token) = match shard {
                Shard::Free => ("FREE", None),
                Shard::Held { token, .. } => ("HELD", Some(*token)),
                Shard::Withdrawn { token, .. } => ("WITHDRAWN", Some(*token)),
            };
            ShardView { shard: number, worker: shard.worker().cloned(), token, state: state.to_owned() }
        });
        Ok(Answer::Service(Box::new(ServiceView {
            service: name.clone(),
            group: group_of(service),
            shard_count: service.count,
            generation: service.generation,
            workers: workers.collect(),
            shards: shards.collect(),
        })))
    }

    pub(super) fn service_list(&self, group: Option<&Name>) -> ServiceList {
        let services = self
            .state
            .services()
            .filter(|(_, service)| group.is_none_or(|group| group.as_str() == group_of(service)));
        let summary = |(name, service): (&Name, &Service)| {
            let count =
                |is: fn(&Shard) -> bool| service.shards.iter().filter(|shard| is(shard)).count() as u64;
            ServiceSummary {
                service: name.clone(),
                group: group_of(service),
                shard_count: service.count,
                workers: service.workers.len() as u64,
                held: count(|shard| matches!(shard, Shard::Held { .. })),
                withdrawn: count(|shard| matches!(shard, Shard::Withdrawn { .. })),
                free: count(|shard| *shard == Shard::Free),
            }
        };
        ServiceList { services: services.map(summary).collect() }
    }
}

fn group_of(service: &Service) -> String {
    service.group.as_ref().map_or(DEFAULT_GROUP, Name::as_str).to_owned()
}

/// A service that has neither shards nor workers any more.
pub(super) fn forgotten(service: &Name, generation: Position) -> ServiceView {
    ServiceView {
        service: service.clone(),
        group: DEFAULT_GROUP.to_owned(),
        shard_count: 0,
        generation,
        workers: Vec::new(),
        shards: Vec::new(),
    }
}
