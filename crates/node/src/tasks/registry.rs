//! Recently seen workers. Soft state: lost at a restart, restored by their next call, and never used in a
//! decision.

use std::collections::{BTreeMap, BTreeSet};

use orchestrix_core::wire::WorkerView;
use orchestrix_core::{Name, State, Timestamp};

/// Workers remembered at once. The longest silent one is forgotten first.
const WORKERS_MAX: usize = 20_000;

/// Milliseconds after which a silent worker without leases is forgotten.
const SILENT_MS: u64 = 15 * 60_000;

/// Milliseconds between two looks for what is long past.
const SWEEP_MS: u64 = 1_000;

#[derive(Debug, Default)]
pub(crate) struct Registry {
    workers: BTreeMap<Name, Seen>,
    by_time: BTreeSet<(Timestamp, Name)>,
    /// When a queue was last asked for a task.
    asked: BTreeMap<Name, Timestamp>,
    /// When that was last looked through for what is long past.
    swept: Timestamp,
}

#[derive(Debug)]
struct Seen {
    at: Timestamp,
    capacity: Option<u32>,
}

impl Registry {
    pub(crate) fn saw(&mut self, worker: &Name, capacity: Option<u32>, now: Timestamp) {
        if let Some(seen) = self.workers.get_mut(worker) {
            seen.capacity = capacity.or(seen.capacity);
            if seen.at == now {
                return;
            }
            self.by_time.remove(&(seen.at, worker.clone()));
            seen.at = now;
        } else {
            self.workers.insert(worker.clone(), Seen { at: now, capacity });
        }
        self.by_time.insert((now, worker.clone()));
        self.forget(now);
    }

    pub(crate) fn asked(&mut self, queue: &Name, now: Timestamp) {
        if let Some(at) = self.asked.get_mut(queue) {
            *at = now;
        } else {
            if self.asked.len() >= WORKERS_MAX && now.since(self.swept) >= SWEEP_MS {
                self.swept = now;
                self.asked.retain(|_, at| now.since(*at) < SILENT_MS);
            }
            if self.asked.len() < WORKERS_MAX {
                self.asked.insert(queue.clone(), now);
            }
        }
    }

    pub(crate) fn asked_at(&self, queue: &Name) -> Option<Timestamp> {
        self.asked.get(queue).copied()
    }

    /// All workers that are remembered or have leases, by name.
    pub(crate) fn list(&self, state: &State) -> Vec<WorkerView> {
        let seen = self.workers.iter().map(|(worker, seen)| WorkerView {
            worker: worker.clone(),
            seen_at: seen.at,
            leases: state.held_by(worker),
            capacity: seen.capacity,
        });
        let silent = state.holders().filter(|(worker, _)| !self.workers.contains_key(*worker));
        let silent = silent.map(|(worker, leases)| WorkerView {
            worker: worker.clone(),
            seen_at: Timestamp(0),
            leases,
            capacity: None,
        });
        let mut all: Vec<WorkerView> = seen.chain(silent).collect();
        all.sort_by(|a, b| a.worker.cmp(&b.worker));
        all
    }

    fn forget(&mut self, now: Timestamp) {
        while let Some((at, _)) = self.by_time.first() {
            if self.workers.len() <= WORKERS_MAX && now.since(*at) < SILENT_MS {
                return;
            }
            let (_, worker) = self.by_time.pop_first().expect("it was just seen");
            self.workers.remove(&worker);
        }
    }
}
