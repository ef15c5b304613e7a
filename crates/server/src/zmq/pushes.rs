//! Pushes to workers: assignments without a request, when the journal changes them.
//!
//! A push promises no time; only an answer does. It is made from the events alone, so every node can make it, the
//! leader or not. A worker that misses one gets the same in the answer to its next heartbeat.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use orchestrix_core::wire::Assignment;
use orchestrix_core::{Event, LeaveReason, Name, Position, ShardEvent, ShardWorkerLeft, ShardsMoved};
use orchestrix_node::Happening;

use super::peer::Outbox;
use super::{Front, message};

/// The workers that speak through connections of this node.
#[derive(Debug, Default)]
pub(super) struct Pushes {
    services: Mutex<HashMap<Name, HashMap<Name, Spoken>>>,
}

/// A worker, its last assignment, and its connection.
#[derive(Debug)]
struct Spoken {
    outbox: Outbox,
    shards: BTreeMap<u32, Position>,
    generation: Position,
}

impl Spoken {
    fn tell_fenced(&self) {
        self.outbox.push(message::fenced());
        self.outbox.push(message::assignment(&Assignment { fenced: true, ..Assignment::default() }));
    }
}

impl Pushes {
    /// A worker was answered through a connection: from now on, it hears there what changes.
    pub(super) fn note(&self, service: &Name, worker: &Name, outbox: &Outbox, assignment: &Assignment) {
        let mut services = self.lock();
        // Such an entry would never be removed.
        if outbox.is_over() {
            return;
        }
        let known = services.get(service).and_then(|workers| workers.get(worker));
        if known.is_some_and(|known| known.outbox.is(outbox) && known.generation > assignment.generation) {
            return;
        }
        let shards =
            assignment.assigned_shards.iter().copied().zip(assignment.tokens.iter().copied()).collect();
        let spoken = Spoken { outbox: outbox.clone(), shards, generation: assignment.generation };
        let before = services.entry(service.clone()).or_default().insert(worker.clone(), spoken);
        // An earlier connection of the worker counts no more.
        if let Some(before) = before.filter(|before| !before.outbox.is(outbox)) {
            before.tell_fenced();
        }
    }

    /// A worker has gone, or does not speak for itself any more.
    pub(super) fn goes(&self, service: &Name, worker: &Name, outbox: &Outbox) {
        let mut services = self.lock();
        let Some(workers) = services.get_mut(service) else { return };
        if workers.get(worker).is_some_and(|known| known.outbox.is(outbox)) {
            workers.remove(worker);
        }
        if workers.is_empty() {
            services.remove(service);
        }
    }

    /// A connection is over.
    pub(super) fn left(&self, outbox: &Outbox) {
        self.lock().retain(|_, workers| {
            workers.retain(|_, known| !known.outbox.is(outbox));
            !workers.is_empty()
        });
    }

    /// The time of a worker was over before anything was heard of it.
    fn lost(&self, at: Position, event: &ShardWorkerLeft) {
        let mut services = self.lock();
        let Some(workers) = services.get_mut(&event.service) else { return };
        if event.reason != LeaveReason::Deregistered
            && workers.get(&event.worker).is_some_and(|known| known.generation < at)
            && let Some(known) = workers.remove(&event.worker)
        {
            known.tell_fenced();
        }
        if workers.is_empty() {
            services.remove(&event.service);
        }
    }

    /// A round of a service.
    fn moved(&self, at: Position, event: &ShardsMoved) -> u64 {
        let mut services = self.lock();
        let Some(workers) = services.get_mut(&event.service) else { return 0 };
        let withdrawn: BTreeSet<u32> = event.withdrawn.iter().collect();
        let granted: HashMap<&Name, _> =
            event.granted.iter().map(|grant| (&grant.worker, &grant.shards)).collect();
        let mut pushed = 0;
        for (worker, spoken) in workers.iter_mut().filter(|(_, spoken)| spoken.generation < at) {
            let before = spoken.shards.len();
            spoken.shards.retain(|shard, _| !withdrawn.contains(shard));
            let gets = granted.get(worker);
            if spoken.shards.len() == before && gets.is_none() {
                continue;
            }
            spoken.shards.extend(gets.into_iter().flat_map(|shards| shards.iter()).map(|shard| (shard, at)));
            spoken.generation = at;
            let (assigned_shards, tokens) =
                spoken.shards.iter().map(|(shard, token)| (*shard, *token)).unzip();
            let assignment = Assignment { assigned_shards, tokens, generation: at, ..Assignment::default() };
            spoken.outbox.push(message::assignment(&assignment));
            pushed += 1;
        }
        pushed
    }

    /// Some events were missed: every worker is unknown until its next answer.
    fn forget(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, HashMap<Name, Spoken>>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells workers what the journal changes, until the coordinator stops.
pub(super) async fn follow(front: Arc<Front>) {
    let mut events = front.app.coordinator.events(None).only(&[ShardsMoved::KIND, ShardWorkerLeft::KIND]);
    loop {
        let happening = tokio::select! {
            happening = events.next() => happening,
            () = front.app.stop.cancelled() => return,
        };
        match happening {
            Happening::Event { position, event: Event::Shard(ShardEvent::ShardsMoved(event)), .. } => {
                front.app.zmq.pushed.add(front.pushes.moved(position, &event));
            }
            Happening::Event {
                position, event: Event::Shard(ShardEvent::ShardWorkerLeft(event)), ..
            } => {
                front.pushes.lost(position, &event);
            }
            Happening::Event { .. } => {}
            Happening::Gap { .. } => front.pushes.forget(),
        }
    }
}
