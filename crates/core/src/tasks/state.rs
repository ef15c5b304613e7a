//! The state of tasks, and the indexes over it: every change of a task is between `unindex` and `index`.

use std::collections::BTreeMap;

use super::bus::BusChange;
use super::capture::Capture;
use super::keys::Keys;
use super::section::Loading;
use super::{LiveLease, Task, TaskState};
use crate::sorted::{Keyed, Sorted};
use crate::{Key, LeaseId, Name, TaskId, Timestamp};

/// All tasks, and the indexes over them.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    pub(crate) all: Sorted<Task>,
    pub(crate) queues: BTreeMap<Name, Queue>,
    pub(crate) leases: Sorted<(LeaseId, TaskId)>,
    /// Workers that have leases, with their number.
    pub(crate) holders: BTreeMap<Name, u64>,
    /// Live leases by the lease call that got them: (worker, request id).
    pub(crate) requests: BTreeMap<(Name, Name), Vec<LeaseId>>,
    /// Tasks that are there, by their keys.
    pub(crate) keys: BTreeMap<(Name, Key), TaskId>,
    /// Waiting tasks whose time has not come.
    pub(crate) delayed: Sorted<(Timestamp, TaskId)>,
    /// When a lease, or the ttl of a waiting task, ends; one entry per task at most.
    pub(crate) ends: Sorted<(Timestamp, TaskId)>,
    /// The same for leases of the bus, none of which ends while that is silent.
    pub(crate) bus_ends: Sorted<(Timestamp, TaskId)>,
    /// Leases of the bus that nobody has started.
    pub(crate) offers: Sorted<LeaseId>,
    /// Leases of the bus that a worker has started, in their order.
    pub(crate) bus_held: BTreeMap<Name, Vec<LeaseId>>,
    /// What the event under way changes for owners.
    pub(crate) bus_change: Option<BusChange>,
    /// Completed and cancelled tasks by the time of their end.
    pub(crate) done: Sorted<(Timestamp, TaskId)>,
    /// Dead letters by the time of their end.
    pub(crate) failed: Sorted<(Timestamp, TaskId)>,
    /// Keys of purged tasks.
    pub(crate) remembered: Keys,
    /// A snapshot that is being taken.
    pub(super) capture: Option<Capture>,
    /// A snapshot that is being read.
    pub(super) loading: Option<Loading>,
}

/// The tasks of one queue.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) ready: Sorted<Ready>,
    /// The same tasks, the one that is ready longest first. Costs 16 bytes for each.
    pub(crate) ready_since: Sorted<(Timestamp, TaskId)>,
    pub(crate) counts: QueueCounts,
}

/// How many tasks of a queue are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Waiting, whether their time has come or not.
    pub waiting: u64,
    pub leased: u64,
    pub completed: u64,
    pub failed: u64,
    pub cancelled: u64,
}

impl Queue {
    /// A task can be leased from now on.
    pub(super) fn stand(&mut self, task: &Task) {
        self.ready.insert(Ready::of(task));
        self.ready_since.insert((task.ready_since(), task.id));
    }

    /// A task is about to change. Answers whether it could be leased.
    fn leave(&mut self, task: &Task) -> bool {
        let stood = self.ready.remove(Ready::of(task).key()).is_some();
        if stood {
            self.ready_since.remove((task.ready_since(), task.id));
        }
        stood
    }
}

/// A task that could be leased now, in the order in which that is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    /// The priority, turned around: the largest comes first.
    rank: i32,
    id: TaskId,
}

impl Ready {
    pub(crate) fn of(task: &Task) -> Self {
        let rank = if crate::is_planted("priority-ignored") { 0 } else { -task.priority };
        Self { rank, id: task.id }
    }

    pub(crate) fn id(self) -> TaskId {
        self.id
    }
}

impl Keyed for Ready {
    type Key = (i32, TaskId);
    fn key(&self) -> Self::Key {
        (self.rank, self.id)
    }
}

impl Keyed for (LeaseId, TaskId) {
    type Key = LeaseId;
    fn key(&self) -> LeaseId {
        self.0
    }
}

impl Keyed for LeaseId {
    type Key = Self;
    fn key(&self) -> Self {
        *self
    }
}

impl Keyed for (Timestamp, TaskId) {
    type Key = Self;
    fn key(&self) -> Self {
        *self
    }
}

impl Keyed for Task {
    type Key = TaskId;
    fn key(&self) -> TaskId {
        self.id
    }
}

impl QueueCounts {
    /// The count of one state.
    pub(crate) fn of(&mut self, state: TaskState) -> &mut u64 {
        match state {
            TaskState::Waiting => &mut self.waiting,
            TaskState::Leased => &mut self.leased,
            TaskState::Completed => &mut self.completed,
            TaskState::Failed => &mut self.failed,
            TaskState::Cancelled => &mut self.cancelled,
        }
    }

    fn total(self) -> u64 {
        self.waiting + self.leased + self.completed + self.failed + self.cancelled
    }
}

impl Tasks {
    /// A task that was not purged.
    pub(crate) fn get(&self, id: TaskId) -> Option<&Task> {
        self.all.get(id)
    }

    /// The task that a live lease is for.
    pub(crate) fn leased(&self, lease: LeaseId) -> Option<&Task> {
        self.leases.get(lease).and_then(|(_, task)| self.all.get(*task))
    }

    /// Live leases of a worker.
    pub(crate) fn held_by(&self, worker: &Name) -> u64 {
        self.holders.get(worker).copied().unwrap_or(0)
    }

    /// Whether a worker has fewer leases than it wants at most.
    pub(crate) fn has_room(&self, worker: &Name, capacity: Option<u32>) -> bool {
        let room = capacity.is_none_or(|capacity| self.held_by(worker) < u64::from(capacity));
        room || crate::is_planted("capacity-ignored")
    }

    /// The task that a queue would hand out first.
    pub(crate) fn first_ready(&self, queue: &Name) -> Option<Ready> {
        self.queues.get(queue)?.ready.first().copied()
    }

    /// The name as it is kept already, so that a million tasks share one text.
    pub(crate) fn shared_queue(&self, queue: &Name) -> Name {
        self.queues.get_key_value(queue).map_or_else(|| queue.clone(), |(name, _)| name.clone())
    }

    pub(crate) fn shared_worker(&self, worker: &Name) -> Name {
        self.holders.get_key_value(worker).map_or_else(|| worker.clone(), |(name, _)| name.clone())
    }

    /// Takes a task out of all indexes, before it changes.
    pub(crate) fn unindex(&mut self, id: TaskId, at: Timestamp) {
        let task = self.all.get(id).expect("an event names a task that was created before it");
        let queue = self.queues.get_mut(&task.queue).expect("the queue of a task is there");
        *queue.counts.of(task.state) -= 1;
        match task.state {
            TaskState::Waiting => {
                if !queue.leave(task) {
                    self.delayed.remove((task.not_before, id));
                }
                if let Some(ttl_at) = task.ttl_at() {
                    self.ends.remove((ttl_at, id));
                }
            }
            TaskState::Leased => {
                let lease = task.lease.as_ref().expect("a leased task has a lease");
                self.leases.remove(lease.id);
                if let Some(worker) = &lease.worker {
                    forget_holder(&mut self.holders, worker);
                    forget_request(&mut self.requests, worker, lease);
                }
                let ends_at = lease.ends_at();
                if lease.is_of_bus() {
                    let (lease, worker) = (lease.id, lease.worker.clone());
                    self.bus_ends.remove((ends_at, id));
                    self.unindex_bus(lease, worker.as_ref());
                } else {
                    self.ends.remove((ends_at, id));
                }
            }
            TaskState::Completed | TaskState::Cancelled => {
                self.done.remove((task.ending().map_or(at, |ending| ending.at), id));
            }
            TaskState::Failed => {
                self.failed.remove((task.ending().map_or(at, |ending| ending.at), id));
            }
        }
    }

    /// Puts a task into all indexes, after it changed.
    pub(crate) fn index(&mut self, id: TaskId, at: Timestamp) {
        let task = self.all.get(id).expect("an event names a task that was created before it");
        if let Some(claim) = task.key() {
            self.keys.insert((task.queue.clone(), claim.key.clone()), id);
        }
        if !self.queues.contains_key(&task.queue) {
            self.queues.insert(task.queue.clone(), Queue::default());
        }
        let queue = self.queues.get_mut(&task.queue).expect("it was just made sure");
        *queue.counts.of(task.state) += 1;
        match task.state {
            TaskState::Waiting => {
                let early = if crate::is_planted("granted-early") { 500 } else { 0 };
                if task.not_before <= at.plus(early) {
                    queue.stand(task);
                } else {
                    self.delayed.insert((task.not_before, id));
                }
                if let Some(ttl_at) = task.ttl_at() {
                    self.ends.insert((ttl_at, id));
                }
            }
            TaskState::Leased => {
                let lease = task.lease.as_ref().expect("a leased task has a lease");
                self.leases.insert((lease.id, id));
                if let Some(worker) = &lease.worker {
                    *self.holders.entry(worker.clone()).or_default() += 1;
                    if let Some(request_id) = &lease.request_id {
                        let request = (worker.clone(), request_id.clone());
                        self.requests.entry(request).or_default().push(lease.id);
                    }
                }
                let ends_at = lease.ends_at();
                if lease.is_of_bus() {
                    let (lease, worker) = (lease.id, lease.worker.clone());
                    self.bus_ends.insert((ends_at, id));
                    self.index_bus(lease, worker.as_ref());
                } else {
                    self.ends.insert((ends_at, id));
                }
            }
            TaskState::Completed | TaskState::Cancelled => {
                self.done.insert((task.ending().map_or(at, |ending| ending.at), id));
            }
            TaskState::Failed => {
                self.failed.insert((task.ending().map_or(at, |ending| ending.at), id));
            }
        }
    }

    /// Forgets keys of purged tasks whose time is over; a few at a time, so that no event is slow.
    pub(crate) fn forget_keys(&mut self, now: Timestamp) {
        for _ in 0..4 {
            if self.remembered.first().is_none_or(|key| key.until() > now) {
                return;
            }
            self.forget_first_key();
        }
    }

    /// Forgets the key that was remembered first.
    pub(crate) fn forget_first_key(&mut self) {
        if let Some((number, key)) = self.remembered.forget_first() {
            self.save_key_for_capture(number, key);
        }
    }

    /// Takes a task that is in no other index out for good, and its key with it.
    pub(crate) fn drop_task(&mut self, id: TaskId) -> Task {
        let task = self.all.remove(id).expect("a task that is dropped is there");
        if let Some(claim) = task.key() {
            self.keys.remove(&(task.queue.clone(), claim.key.clone()));
        }
        task
    }

    /// Drops a queue that has no tasks left.
    pub(crate) fn drop_if_empty(&mut self, queue: &Name) {
        if self.queues.get(queue).is_some_and(|queue| queue.counts.total() == 0) {
            self.queues.remove(queue);
        }
    }
}

fn forget_holder(holders: &mut BTreeMap<Name, u64>, worker: &Name) {
    let leases = holders.get_mut(worker).expect("the worker of a lease is counted");
    *leases -= 1;
    if *leases == 0 {
        holders.remove(worker);
    }
}

fn forget_request(requests: &mut BTreeMap<(Name, Name), Vec<LeaseId>>, worker: &Name, lease: &LiveLease) {
    let Some(request_id) = &lease.request_id else { return };
    let request = (worker.clone(), request_id.clone());
    let Some(leases) = requests.get_mut(&request) else { return };
    leases.retain(|id| *id != lease.id);
    if leases.is_empty() {
        requests.remove(&request);
    }
}
