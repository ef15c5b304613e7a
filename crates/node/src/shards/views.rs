//! Views of services for people, and assignments for workers.

use std::collections::BTreeMap;

use orchestrix_core::limits::PAGE_BYTES_MAX;
use orchestrix_core::shards::{DEFAULT_GROUP, Service, Shard};
use orchestrix_core::wire::{
    Assignment, ServiceList, ServiceSummary, ServiceView, ShardView, ShardWorkerView,
};
use orchestrix_core::{Name, Position, Refusal, Timestamp, is_planted};

use super::ServicePage;
use super::soft::{ShardDecisions, Soft};
use crate::decider::Decider;
use crate::request::{Answer, Error, Recipient};

/// Bytes of a shard in JSON, at most, without the name of its worker: itself, and its number at the worker.
const SHARD_BYTES: usize = 104;

impl<R: Recipient> ShardDecisions<R> {
    /// What a worker should serve, without a promise. A process that does not speak for it any more is fenced. After a change
    /// of leader nothing is said, in generation 0, until a heartbeat shows who speaks for it.
    pub(super) fn look_up(
        &self,
        decider: &Decider<R>,
        service: &Name,
        worker: &Name,
        session: &Name,
    ) -> Assignment {
        let known = self.services.get(service).and_then(|soft| soft.workers.get(worker));
        let assigned = || Assignment { lease_ms: 0, ..self.assignment(decider, service, worker, None) };
        match known {
            _ if is_planted("told-to-any-session") => assigned(),
            Some(known) if known.replaced => Assignment { fenced: true, ..Assignment::default() },
            Some(known) => match &known.session {
                Some(speaks) if speaks == session && known.is_unheard => Assignment::default(),
                Some(speaks) if speaks == session => assigned(),
                Some(_) => Assignment { fenced: true, ..Assignment::default() },
                None => Assignment::default(),
            },
            None => assigned(),
        }
    }

    /// What a worker should serve, and for how long.
    pub(super) fn assignment(
        &self,
        decider: &Decider<R>,
        service: &Name,
        worker: &Name,
        seq: Option<u64>,
    ) -> Assignment {
        let Some(known) = decider.state.service(service) else {
            return Assignment { seq, ..Assignment::default() };
        };
        let (assigned_shards, tokens) = known.held_by(worker).unzip();
        let lease_ms = decider.options.shards.lease_ms;
        Assignment { assigned_shards, tokens, generation: known.generation, lease_ms, seq, fenced: false }
    }

    /// A page of the shards of a service: all other calls wait while it is made.
    pub(super) fn service_view(
        &self,
        decider: &Decider<R>,
        page: &ServicePage,
        now: Timestamp,
    ) -> Result<Answer, Error> {
        let ServicePage { service: name, from, limit } = page;
        let Some(service) = decider.state.service(name) else {
            return Err(decider.refuse(Refusal::NoService(name.clone())));
        };
        // A caller may name any number; behind the last shard there are none.
        let from = (*from).min(u32::try_from(service.shards.len()).unwrap_or(u32::MAX));
        let rest = service.shards.get(from as usize..).unwrap_or_default();
        let mut bytes = 0;
        let fits = |shard: &&Shard| {
            bytes += SHARD_BYTES + shard.worker().map_or(0, |worker| worker.as_str().len());
            bytes <= PAGE_BYTES_MAX
        };
        let count = rest.iter().take(*limit).take_while(fits).count();
        let shown = || (from..).zip(&rest[..count]);
        let mut held = BTreeMap::<&Name, Vec<u32>>::new();
        for (number, shard) in shown() {
            if let Shard::Held { worker, .. } = shard {
                held.entry(worker).or_default().push(number);
            }
        }
        let known = |worker: &Name| self.services.get(name)?.workers.get(worker);
        let workers = service.workers.iter().map(|(worker, there)| ShardWorkerView {
            worker: worker.clone(),
            shards: held.remove(worker).unwrap_or_default(),
            capacity: there.capacity,
            place: there.place,
            left_ms: known(worker).map_or(0, |known| known.until.since(now)),
            listens: !known(worker).is_some_and(|known| known.is_deaf),
        });
        let shards = shown().map(|(number, shard)| {
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
            next_cursor: (count < rest.len()).then(|| (from as usize + count).to_string()),
        })))
    }

    pub(super) fn service_list(&self, decider: &Decider<R>, group: Option<&Name>) -> ServiceList {
        let services = decider
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
                overlapping: self.services.get(name).map_or(0, Soft::overlapping),
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
        next_cursor: None,
    }
}
