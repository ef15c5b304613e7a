//! The section of services in a snapshot, in the order of their names. Neighbours that are alike are kept as one.
//! Services are few and written down at once.

use std::collections::BTreeMap;

use minicbor::{Decode, Encode};

use super::state::numbered;
use super::{Promises, Service, Shard, ShardWorker, Shards};
use crate::entity::Moment;
use crate::limits::{SHARD_WORKERS_MAX, SHARDS_MAX};
use crate::snapshot::{Header, Room, Section, SnapshotError, Step, Written, encode_item};
use crate::{Name, Position};

impl Section for Shards {
    fn announce(&self, header: &mut Header) {
        header.services = Some(self.services.len()).filter(|services| *services > 0);
        header.promises = Some(self.promises).filter(|promises| *promises != Promises::default());
    }

    fn expect(&mut self, header: &mut Header) -> Option<usize> {
        self.promises = header.promises.unwrap_or_default();
        Some(header.services.unwrap_or(0))
    }

    fn load(&mut self, item: &[u8], here: Moment) -> Result<(), SnapshotError> {
        let stored: Stored = minicbor::decode(item)?;
        let (name, service) = stored.service(here.position).map_err(SnapshotError::ImpossibleService)?;
        if self.services.last_key_value().is_some_and(|(last, _)| *last >= name) {
            return Err(SnapshotError::ImpossibleService("it is out of order"));
        }
        self.services.insert(name, service);
        Ok(())
    }

    fn each_item(&self, write: &mut dyn FnMut(&[u8])) {
        for (name, service) in &self.services {
            let mut item = Vec::new();
            encode_item(Stored::of(name, service), &mut item);
            write(&item);
        }
    }

    fn begin_capture(&mut self, _: Moment) {
        self.capture = Written::all(self);
    }

    fn step_capture(&mut self, room: Room, chunk: &mut Vec<u8>) -> Step {
        self.capture.step(room, chunk)
    }

    fn end_capture(&mut self) {
        self.capture = Written::default();
    }
}

#[derive(Debug, Encode, Decode)]
struct Stored {
    #[n(0)]
    name: Name,
    #[n(1)]
    group: Option<Name>,
    #[n(2)]
    count: u32,
    #[n(3)]
    workers: BTreeMap<Name, ShardWorker>,
    #[n(4)]
    shards: Vec<Alike>,
    #[n(5)]
    generation: Position,
    #[n(6)]
    weights: BTreeMap<u32, u32>,
    #[n(7)]
    said: BTreeMap<Name, u32>,
    #[n(8)]
    ordered: Option<bool>,
    /// Older snapshots do not say it.
    #[n(9)]
    kept: Option<bool>,
    #[n(10)]
    by: Option<Name>,
}

/// Shards in a row of which the same is true.
#[derive(Debug, Encode, Decode)]
struct Alike {
    #[n(0)]
    count: u32,
    /// The index of their worker among the names; `None` if they are free.
    #[n(1)]
    worker: Option<u32>,
    #[n(2)]
    token: Position,
    /// When they were withdrawn, if so.
    #[n(3)]
    since: Option<Position>,
}

impl Stored {
    fn of(name: &Name, service: &Service) -> Self {
        let names: Vec<&Name> = service.workers.keys().collect();
        let place = |worker: &Name| {
            let place = names.binary_search(&worker).expect("whoever has a shard is one of the workers");
            u32::try_from(place).expect("workers are counted in 32 bits")
        };
        let mut shards: Vec<Alike> = Vec::new();
        let mut before: Option<&Shard> = None;
        for shard in &service.shards {
            if before == Some(shard)
                && let Some(last) = shards.last_mut()
            {
                last.count += 1;
                continue;
            }
            before = Some(shard);
            let (worker, token, since) = match shard {
                Shard::Free => (None, Position(0), None),
                Shard::Held { worker, token } => (Some(place(worker)), *token, None),
                Shard::Withdrawn { worker, token, since } => (Some(place(worker)), *token, Some(*since)),
            };
            shards.push(Alike { count: 1, worker, token, since });
        }
        Self {
            name: name.clone(),
            group: service.group.clone(),
            count: service.count,
            workers: service.workers.clone(),
            shards,
            generation: service.generation,
            weights: service.weights.clone(),
            said: service.said.clone(),
            ordered: Some(service.ordered),
            kept: Some(service.kept),
            by: service.by.clone(),
        }
    }

    /// # Errors
    /// What cannot be.
    fn service(self, position: Position) -> Result<(Name, Service), &'static str> {
        let Self { name, group, count, workers, shards, generation, weights, said, ordered, kept, by } = self;
        // One that no worker ever came to was made by an operator.
        let kept = kept.unwrap_or(said.is_empty() || !weights.is_empty());
        let ordered = ordered.unwrap_or(said.is_empty());
        if count > SHARDS_MAX || workers.len() > SHARD_WORKERS_MAX {
            return Err("it has more shards or workers than there may be");
        }
        let rows = shards.iter().map(|alike| u64::from(alike.count)).sum::<u64>();
        if rows < u64::from(count) || rows > u64::from(SHARDS_MAX) {
            return Err("it has another number of shards than it says");
        }
        let names: Vec<Name> = workers.keys().cloned().collect();
        let mut rows = Vec::with_capacity(usize::try_from(rows).expect("it was bounded"));
        for Alike { count, worker, token, since } in shards {
            if token > position || since.is_some_and(|since| since > position) {
                return Err("a shard was granted or withdrawn later");
            }
            let worker = worker.map(|place| names.get(place as usize).cloned().ok_or("a shard is nobody's"));
            let shard = match (worker.transpose()?, since) {
                (None, _) => Shard::Free,
                (Some(worker), None) => Shard::Held { worker, token },
                (Some(worker), Some(since)) => Shard::Withdrawn { worker, token, since },
            };
            rows.extend(std::iter::repeat_n(shard, count as usize));
        }
        let mut workers = workers;
        for (number, shard) in numbered(&rows) {
            if let Some(worker) = shard.worker().and_then(|worker| workers.get_mut(worker)) {
                worker.shards.insert(number);
            }
        }
        let shards = rows;
        let mut service =
            Service { group, count, shards, workers, generation, weights, said, ordered, kept, by };
        // Older snapshots say no places.
        for worker in names {
            if service.tokens_of(&worker).next().is_some() {
                service.place(&worker);
            }
        }
        Ok((name, service))
    }
}
