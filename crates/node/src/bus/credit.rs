//! Who can take how much: workers of the bus by their heartbeats, and the offers that count on them.
//!
//! A worker takes an offer whenever it wants; nobody hands it over. So offers are made only as far as workers have room, and each
//! counts on one of them, until some worker starts it.
//!
//! **Invariant:** a worker has as many leases and offers that count on it as it has room for, at most, unless its heartbeats say less
//! than before.

use std::collections::{BTreeMap, BTreeSet};

use orchestrix_core::wire::bus::WorkerHeartbeat;
use orchestrix_core::{LeaseId, Name, Timestamp, is_planted};

/// A worker that was not heard for so long counts no more.
const SILENT_MS: u64 = 30_000;
/// Bounds memory.
const WORKERS_MAX: usize = 20_000;
/// Queues of one worker.
const QUEUES_MAX: usize = 100;
/// Queues of all workers. Bounds the time of one look for tasks.
const ALL_QUEUES_MAX: usize = 1_000;
/// More than this is offered to no worker at a time.
const CAPACITY_MAX: u32 = 1_000;

/// What is known of all workers.
#[derive(Debug, Default)]
pub(crate) struct Credit {
    workers: BTreeMap<Name, Worker>,
    /// Workers that may have room, by their queues. First come those with few queues, which could take nothing else.
    with_room: BTreeMap<Name, BTreeSet<(usize, Name)>>,
    /// Offers, with the workers that they count on.
    counted: BTreeMap<LeaseId, Name>,
    /// Offers that count on nobody yet.
    uncounted: BTreeMap<Name, BTreeSet<LeaseId>>,
    /// When workers that went silent are looked for.
    next_look: Timestamp,
}

#[derive(Debug)]
struct Worker {
    queues: Vec<Name>,
    capacity: u32,
    /// What it works on beside its leases.
    beside: u32,
    /// Offers that count on it.
    offers: u32,
    heard: Timestamp,
}

impl Credit {
    /// A heartbeat has come; the worker works on so many things that are not its leases.
    pub(crate) fn hear(&mut self, heartbeat: &WorkerHeartbeat, beside: u32, now: Timestamp) {
        let name = &heartbeat.worker_id;
        let known = self.workers.get(name);
        let offers = known.map_or(0, |worker| worker.offers);
        if known.is_none() && (heartbeat.capacity == 0 || self.workers.len() >= WORKERS_MAX) {
            return;
        }
        let same = known.is_some_and(|worker| worker.queues.iter().eq(queues_of(heartbeat)));
        if !same {
            self.rest(name);
        }
        let queues = queues_of(heartbeat).cloned().collect();
        let capacity = heartbeat.capacity.min(CAPACITY_MAX);
        self.workers.insert(name.clone(), Worker { queues, capacity, beside, offers, heard: now });
        self.has_room(name);
    }

    /// A worker may have room again.
    pub(crate) fn has_room(&mut self, name: &Name) {
        let Some(worker) = self.workers.get(name) else { return };
        for queue in &worker.queues {
            let all = self.with_room.len();
            if all < ALL_QUEUES_MAX || self.with_room.contains_key(queue) {
                let place = self.with_room.entry(queue.clone()).or_default();
                place.insert((worker.queues.len(), name.clone()));
            }
        }
    }

    /// An offer that was made before counts on the first worker that could take it.
    pub(crate) fn is_offered(&mut self, lease: LeaseId, queue: &Name) {
        self.uncounted.entry(queue.clone()).or_default().insert(lease);
    }

    /// Queues whose workers may have room.
    pub(crate) fn queues(&self) -> Vec<Name> {
        self.with_room.keys().cloned().collect()
    }

    /// A worker that has room for one more task of a queue. `held` is how many leases it has.
    pub(crate) fn worker_for(&mut self, queue: &Name, held: impl Fn(&Name) -> usize) -> Option<Name> {
        loop {
            let (_, name) = self.with_room.get(queue)?.first()?.clone();
            let has_room = self.workers.get(&name).is_some_and(|worker| {
                let room = worker.capacity.saturating_sub(worker.beside).saturating_sub(worker.offers);
                held(&name) < room as usize || (worker.capacity > 0 && is_planted("credit-ignored"))
            });
            if !has_room {
                self.rest(&name);
                continue;
            }
            let Some(lease) = self.uncounted.get_mut(queue).and_then(BTreeSet::pop_first) else {
                return Some(name);
            };
            if self.uncounted.get(queue).is_some_and(BTreeSet::is_empty) {
                self.uncounted.remove(queue);
            }
            self.count(lease, &name);
        }
    }

    /// From now on an offer counts on a worker.
    pub(crate) fn count(&mut self, lease: LeaseId, name: &Name) {
        if let Some(worker) = self.workers.get_mut(name) {
            worker.offers += 1;
            self.counted.insert(lease, name.clone());
        }
    }

    /// An offer has ended, or was started by a worker.
    pub(crate) fn is_settled(&mut self, lease: LeaseId, queue: &Name) {
        if let Some(name) = self.counted.remove(&lease) {
            if let Some(worker) = self.workers.get_mut(&name) {
                worker.offers = worker.offers.saturating_sub(1);
            }
            return self.has_room(&name);
        }
        if let Some(leases) = self.uncounted.get_mut(queue) {
            leases.remove(&lease);
            if leases.is_empty() {
                self.uncounted.remove(queue);
            }
        }
    }

    /// Forgets workers of which nothing was heard. What counts on them counts on nobody.
    pub(crate) fn forget_silent(&mut self, now: Timestamp, queue_of: impl Fn(LeaseId) -> Option<Name>) {
        if now < self.next_look {
            return;
        }
        self.next_look = now.plus(1_000);
        let is_silent = |worker: &Worker| now.since(worker.heard) > SILENT_MS;
        let silent = self.workers.iter().filter(|(_, worker)| is_silent(worker));
        let silent: BTreeSet<Name> = silent.map(|(name, _)| name.clone()).collect();
        for name in &silent {
            self.rest(name);
            self.workers.remove(name);
        }
        if silent.is_empty() {
            return;
        }
        let alone: Vec<LeaseId> =
            self.counted.iter().filter(|(_, name)| silent.contains(*name)).map(|(lease, _)| *lease).collect();
        for lease in alone {
            self.counted.remove(&lease);
            if let Some(queue) = queue_of(lease) {
                self.is_offered(lease, &queue);
            }
        }
    }

    #[cfg(test)]
    fn workers(&self) -> usize {
        self.workers.len()
    }

    /// A worker has no room, or is not there.
    fn rest(&mut self, name: &Name) {
        let Some(worker) = self.workers.get(name) else { return };
        for queue in &worker.queues {
            if let Some(place) = self.with_room.get_mut(queue) {
                place.remove(&(worker.queues.len(), name.clone()));
                if place.is_empty() {
                    self.with_room.remove(queue);
                }
            }
        }
    }
}

/// The queues that count, each once as far as it is named in a row.
fn queues_of(heartbeat: &WorkerHeartbeat) -> impl Iterator<Item = &Name> {
    heartbeat.queues.iter().take(QUEUES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn heartbeat(worker: &str, queues: &[&str], capacity: u32) -> WorkerHeartbeat {
        let queues = queues.iter().map(|queue| name(queue)).collect();
        WorkerHeartbeat { worker_id: name(worker), queues, capacity, jobs: Vec::new(), timestamp: None }
    }

    const NOW: Timestamp = Timestamp(1_000);

    /// Makes offers of a queue until nobody has room.
    fn offer_all(credit: &mut Credit, queue: &str, first: u64, held: usize) -> Vec<Name> {
        let mut taken = Vec::new();
        while let Some(worker) = credit.worker_for(&name(queue), |_| held) {
            credit.count(LeaseId(first + taken.len() as u64), &worker);
            taken.push(worker);
        }
        taken
    }

    #[test]
    fn no_more_is_offered_than_a_worker_has_room_for() {
        let mut credit = Credit::default();
        credit.hear(&heartbeat("a", &["mail", "print"], 3), 0, NOW);
        assert_eq!(offer_all(&mut credit, "mail", 1, 1).len(), 2, "it has a lease already");
        assert_eq!(offer_all(&mut credit, "print", 5, 1).len(), 0, "its room is shared by its queues");
        credit.is_settled(LeaseId(1), &name("mail"));
        assert_eq!(offer_all(&mut credit, "print", 5, 1).len(), 1);
        // What it works on beside its leases counts, too.
        credit.hear(&heartbeat("b", &["scan"], 3), 2, NOW);
        assert_eq!(offer_all(&mut credit, "scan", 9, 0).len(), 1);
    }

    #[test]
    fn workers_with_few_queues_come_first() {
        let mut credit = Credit::default();
        credit.hear(&heartbeat("a", &["mail", "print"], 1), 0, NOW);
        credit.hear(&heartbeat("b", &["mail"], 1), 0, NOW);
        assert_eq!(credit.worker_for(&name("mail"), |_| 0), Some(name("b")));
    }

    #[test]
    fn a_worker_that_leaves_or_is_silent_gets_nothing() {
        let mut credit = Credit::default();
        credit.hear(&heartbeat("a", &["mail"], 2), 0, NOW);
        credit.hear(&heartbeat("a", &["mail"], 0), 0, NOW);
        assert_eq!(offer_all(&mut credit, "mail", 1, 0).len(), 0);
        credit.hear(&heartbeat("a", &["mail"], 2), 0, NOW);
        assert_eq!(offer_all(&mut credit, "mail", 1, 0).len(), 2);
        credit.forget_silent(NOW.plus(SILENT_MS), |_| Some(name("mail")));
        assert_eq!(credit.workers(), 1);
        credit.forget_silent(NOW.plus(SILENT_MS + 1_000), |_| Some(name("mail")));
        assert_eq!(credit.workers(), 0);
        // Its offers are still there, so the next worker has less room.
        credit.hear(&heartbeat("b", &["mail"], 3), 0, NOW);
        assert_eq!(offer_all(&mut credit, "mail", 7, 0).len(), 1);
    }

    #[test]
    fn offers_of_the_term_before_count_on_the_first_workers() {
        let mut credit = Credit::default();
        credit.is_offered(LeaseId(1), &name("mail"));
        credit.is_offered(LeaseId(2), &name("mail"));
        credit.is_settled(LeaseId(1), &name("mail"));
        credit.hear(&heartbeat("a", &["mail"], 2), 0, NOW);
        assert_eq!(offer_all(&mut credit, "mail", 3, 0).len(), 1);
    }

    #[test]
    fn queues_and_workers_beyond_the_limits_are_passed_over() {
        let mut credit = Credit::default();
        let many: Vec<String> = (0..=QUEUES_MAX).map(|n| format!("q{n}")).collect();
        let names: Vec<&str> = many.iter().map(String::as_str).collect();
        credit.hear(&heartbeat("a", &names, 1), 0, NOW);
        assert_eq!(credit.queues().len(), QUEUES_MAX);
        credit.hear(&heartbeat("b", &["mail"], CAPACITY_MAX + 1), 0, NOW);
        assert_eq!(offer_all(&mut credit, "mail", 1, 0).len(), CAPACITY_MAX as usize);
        for n in 0..WORKERS_MAX {
            credit.hear(&heartbeat(&format!("w{n}"), &["mail"], 1), 0, NOW);
        }
        assert_eq!(credit.workers(), WORKERS_MAX);
    }
}
