//! How events change services. Cannot refuse.

use std::collections::BTreeSet;

use super::event::{
    Grant, NewCapacity, ShardCountSet, ShardEvent, ShardWeightsSet, ShardWorkerJoined, ShardWorkerLeft,
    ShardsLetGo, ShardsMoved,
};
use super::{Service, Shard, ShardWorker, Shards};
use crate::{Name, Position, is_planted};

impl Shards {
    pub(super) fn fold(&mut self, event: ShardEvent, at: Position) {
        match event {
            ShardEvent::ShardWorkerJoined(event) => self.shard_worker_joined(event, at),
            ShardEvent::ShardWorkerLeft(event) => self.shard_worker_left(&event, at),
            ShardEvent::ShardCountSet(event) => self.shard_count_set(event, at),
            ShardEvent::ShardWeightsSet(event) => self.shard_weights_set(event),
            ShardEvent::ShardsLetGo(event) => self.shards_let_go(&event, at),
            ShardEvent::ShardsMoved(event) => self.shards_moved(&event, at),
        }
    }

    fn shard_worker_joined(&mut self, event: ShardWorkerJoined, at: Position) {
        let ShardWorkerJoined { service, worker, group, count, capacity, said, by, session } = event;
        let known = self.services.entry(service).or_default();
        if !known.had_workers() {
            known.group = group;
        }
        if let Some(count) = count {
            known.changed(&worker, count);
        } else if let Some(said) = said {
            known.note(&worker, said);
        }
        known.by = by.or(known.by.take());
        let (place, shards) = (None, BTreeSet::new());
        let there = ShardWorker { joined: at, capacity, place, session, shards };
        let before = known.workers.insert(worker, there);
        assert!(before.is_none(), "a worker joins once");
        known.generation = at;
    }

    fn shard_worker_left(&mut self, event: &ShardWorkerLeft, at: Position) {
        let known = self.known_service(&event.service);
        let gone = known.workers.remove(&event.worker).expect("only a worker that is there leaves");
        gone.shards.iter().for_each(|number| *known.shard_mut(*number) = Shard::Free);
        known.trim();
        known.generation = at;
        self.forget_if_empty(&event.service);
    }

    fn shards_let_go(&mut self, event: &ShardsLetGo, at: Position) {
        let known = self.known_service(&event.service);
        for number in event.shards.iter() {
            let shard = known.shard_mut(number);
            assert_eq!(shard.worker(), Some(&event.worker), "a worker lets go of what it had");
            *shard = Shard::Free;
            let worker =
                known.workers.get_mut(&event.worker).expect("only a worker that is there has shards");
            worker.shards.remove(&number);
        }
        known.trim();
        known.generation = at;
    }

    fn shard_count_set(&mut self, event: ShardCountSet, at: Position) {
        let ShardCountSet { service, count, worker } = event;
        let known = self.services.entry(service.clone()).or_default();
        match worker {
            Some(worker) => known.changed(&worker, count),
            None => {
                (known.ordered, known.kept) = (true, true);
                known.resize(count);
            }
        }
        known.generation = at;
        self.forget_if_empty(&service);
    }

    /// A service without shards and workers is none.
    fn forget_if_empty(&mut self, service: &Name) {
        if self.services.get(service).is_some_and(|known| known.count == 0 && known.workers.is_empty()) {
            self.services.remove(service);
        }
    }

    fn shard_weights_set(&mut self, event: ShardWeightsSet) {
        if let Some(known) = self.services.get_mut(&event.service) {
            known.weights = event.weights;
            known.kept = true;
        }
    }

    fn shards_moved(&mut self, event: &ShardsMoved, at: Position) {
        let known = self.known_service(&event.service);
        if let Some(NewCapacity { worker, capacity }) = &event.capacity {
            let there = known.workers.get_mut(worker).expect("only a worker that is there takes shards");
            there.capacity = *capacity;
        }
        for number in event.withdrawn.iter() {
            let shard = known.shard_mut(number);
            let Shard::Held { worker, token } = shard else { panic!("only what is held is withdrawn") };
            let worker = worker.clone();
            *shard = Shard::Withdrawn { worker: worker.clone(), token: *token, since: at };
            if is_planted("granted-before-let-go") {
                *shard = Shard::Free;
                known.workers.get_mut(&worker).expect("it had it").shards.remove(&number);
            }
        }
        for Grant { worker, shards } in &event.granted {
            known.place(worker);
            let there = known.workers.get_key_value(worker);
            // One text for all of them.
            let (worker, there) = there.expect("only a worker that is there gets shards");
            let worker = worker.clone();
            let token = if is_planted("token-of-the-worker") { there.joined } else { at };
            for number in shards.iter() {
                let shard = known.shard_mut(number);
                assert_eq!(*shard, Shard::Free, "only what is free is granted");
                *shard = Shard::Held { worker: worker.clone(), token };
                known.workers.get_mut(&worker).expect("it was just there").shards.insert(number);
            }
        }
        known.generation = at;
    }

    fn known_service(&mut self, service: &Name) -> &mut Service {
        self.services.get_mut(service).expect("an event names a service that is there")
    }
}
