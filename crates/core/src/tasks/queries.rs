//! Queries about tasks.

use super::event::{
    CancelRequested, Extension, LeaseExpired, LeaseGranted, LeaseOffered, LeaseReleased, Purge, Start,
    TaskCancelled, TaskCompleted, TaskEvent, TaskExpired, TaskFailed, TaskRetried,
};
use super::state::QueueCounts;
use super::{Task, TaskState, Tasks};
use crate::limits::{ADVANCE_TASKS_MAX, PAGE_MAX, PAGE_SCAN_MAX};
use crate::{Event, LeaseId, Name, State, TaskId, Timestamp};

/// A queue as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    pub queue: Name,
    pub ready: u64,
    pub all: QueueCounts,
    /// The task that could be leased for longest, and since when.
    pub oldest: Option<(Timestamp, TaskId)>,
    /// The task that is leased next, and since when it could be.
    pub next: Option<(Timestamp, TaskId)>,
}

impl State {
    /// A task that was not purged.
    #[must_use]
    pub fn task(&self, id: TaskId) -> Option<&Task> {
        self.tasks.all.get(id)
    }

    /// The task that a live lease is for.
    #[must_use]
    pub fn leased(&self, lease: LeaseId) -> Option<&Task> {
        self.tasks.leased(lease)
    }

    /// The queue of each task that an event names or makes, in its order. Asked before the event is applied, which may be
    /// the end of a lease or a task.
    pub fn queues_of<'a>(&'a self, event: &'a Event) -> impl Iterator<Item = &'a Name> {
        let event = if let Event::Task(event) = event { Some(event) } else { None };
        event.into_iter().flat_map(move |event| self.tasks.queues_of(event))
    }

    /// Live leases of a worker.
    #[must_use]
    pub fn held_by(&self, worker: &Name) -> u64 {
        self.tasks.held_by(worker)
    }

    /// Whether a worker has fewer leases than it wants at most.
    #[must_use]
    pub fn has_room(&self, worker: &Name, capacity: Option<u32>) -> bool {
        self.tasks.has_room(worker, capacity)
    }

    /// Tasks that are leased now.
    #[must_use]
    pub fn lease_count(&self) -> usize {
        self.tasks.leases.len()
    }

    /// Tasks that are offered over the bus and that nobody has started, after a lease and by their leases.
    pub fn offers(&self, after: Option<LeaseId>) -> impl Iterator<Item = &Task> {
        self.tasks.offers.after(after).filter_map(|lease| self.tasks.leased(*lease))
    }

    /// Leases of the bus that a worker has started, in their order.
    #[must_use]
    pub fn bus_leases_of(&self, worker: &Name) -> &[LeaseId] {
        self.tasks.bus_held.get(worker).map_or(&[], Vec::as_slice)
    }

    /// Leases of the bus, started or not.
    #[must_use]
    pub fn bus_lease_count(&self) -> usize {
        self.tasks.bus_ends.len()
    }

    /// Workers that have live leases, with their number.
    pub fn holders(&self) -> impl Iterator<Item = (&Name, u64)> {
        self.tasks.holders.iter().map(|(worker, leases)| (worker, *leases))
    }

    /// The live leases that an earlier lease call of the same name got.
    #[must_use]
    pub fn granted_to(&self, worker: &Name, request_id: &Name) -> &[LeaseId] {
        self.tasks.requests.get(&(worker.clone(), request_id.clone())).map_or(&[], Vec::as_slice)
    }

    /// All queues that have tasks, by name.
    pub fn queues(&self) -> impl Iterator<Item = Counts> {
        self.tasks.queues.iter().map(|(name, queue)| {
            let next = queue.ready.first().and_then(|next| self.tasks.all.get(next.id()));
            Counts {
                queue: name.clone(),
                ready: queue.ready.len() as u64,
                all: queue.counts,
                oldest: queue.ready_since.first().copied(),
                next: next.map(|task| (task.ready_since(), task.id)),
            }
        })
    }

    /// A page of tasks after an id, lowest id first, and where the next page begins.
    #[must_use]
    pub fn list(&self, filter: &Filter, after: Option<TaskId>, limit: usize) -> (Vec<&Task>, Option<TaskId>) {
        let limit = limit.clamp(1, PAGE_MAX);
        let mut found = Vec::new();
        let mut last = after;
        for (scanned, task) in self.tasks.all.after(after).enumerate() {
            if found.len() == limit || scanned == PAGE_SCAN_MAX {
                return (found, last);
            }
            last = Some(task.id);
            if filter.matches(task) {
                found.push(task);
            }
        }
        (found, None)
    }

    /// When something is to be done next if no command comes: a delay that is over, a right that ends.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        let of_bus = self.tasks.bus_ends.first().map(|(at, _)| *at);
        self.next_due_beside_bus().into_iter().chain(of_bus).min()
    }

    /// The same while the bus is silent: none of its leases ends.
    #[must_use]
    pub fn next_due_beside_bus(&self) -> Option<Timestamp> {
        let delayed = self.tasks.delayed.first().map(|(at, _)| *at);
        let ends = self.tasks.ends.first().map(|(at, _)| *at);
        delayed.into_iter().chain(ends).min()
    }

    /// A task for which [`TaskCommand::Expire`](crate::TaskCommand::Expire) has something to decide.
    #[must_use]
    pub fn next_end(&self, now: Timestamp) -> Option<TaskId> {
        let ends = self.tasks.ends.first().into_iter().chain(self.tasks.bus_ends.first());
        ends.min().filter(|(at, _)| *at <= now).map(|(_, task)| *task)
    }

    /// The same while the bus is silent.
    #[must_use]
    pub fn next_end_beside_bus(&self, now: Timestamp) -> Option<TaskId> {
        self.tasks.ends.first().filter(|(at, _)| *at <= now).map(|(_, task)| *task)
    }

    /// Lets tasks whose time has come stand in line, some at a time. Changes only indexes: whether a task may
    /// be leased is a question of its `not_before` and the time of asking alone. Returns
    /// their queues.
    pub fn advance(&mut self, now: Timestamp, mut woken: impl FnMut(&Name)) {
        for _ in 0..ADVANCE_TASKS_MAX {
            let Some(&(at, id)) = self.tasks.delayed.first().filter(|(at, _)| *at <= now) else { return };
            if crate::is_planted("delay-never-over") {
                return;
            }
            self.tasks.delayed.remove((at, id));
            let task = self.tasks.all.get(id).expect("a delayed task is there");
            let queue = self.tasks.queues.get_mut(&task.queue).expect("the queue of a task is there");
            queue.stand(task);
            woken(&task.queue);
        }
    }

    /// Whether a queue has a task that could be leased.
    #[must_use]
    pub fn has_ready(&self, queue: &Name) -> bool {
        self.tasks.first_ready(queue).is_some()
    }

    #[must_use]
    pub fn has_queue(&self, queue: &Name) -> bool {
        self.tasks.queues.contains_key(queue)
    }

    /// Whether there are ended tasks, which are purged some day.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.tasks.done.len() + self.tasks.failed.len() > 0
    }

    /// Keys of purged tasks that are remembered.
    #[must_use]
    pub fn remembered_keys(&self) -> usize {
        self.tasks.remembered.len()
    }
}

/// Which tasks of a list are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub queue: Option<Name>,
    pub state: Option<TaskState>,
}

impl Filter {
    fn matches(&self, task: &Task) -> bool {
        self.queue.as_ref().is_none_or(|queue| *queue == task.queue)
            && self.state.is_none_or(|state| state == task.state)
    }
}

impl Tasks {
    fn queues_of<'a>(&'a self, event: &'a TaskEvent) -> impl Iterator<Item = &'a Name> {
        let (mut created, mut named): (Option<&Name>, Option<TaskId>) = (None, None);
        let (mut extended, mut purged): (&[Extension], &[Purge]) = (&[], &[]);
        let mut started: &[Start] = &[];
        match event {
            TaskEvent::TaskCreated(event) => created = Some(&event.queue),
            TaskEvent::LeaseExtended(event) => extended = &event.extended,
            TaskEvent::TaskPurged(event) => purged = &event.tasks,
            TaskEvent::LeasesStarted(event) => started = &event.started,
            TaskEvent::BusResumed(_) => {}
            TaskEvent::LeaseOffered(LeaseOffered { task, .. })
            | TaskEvent::LeaseGranted(LeaseGranted { task, .. })
            | TaskEvent::LeaseReleased(LeaseReleased { task, .. })
            | TaskEvent::LeaseExpired(LeaseExpired { task, .. })
            | TaskEvent::TaskCompleted(TaskCompleted { task, .. })
            | TaskEvent::TaskFailed(TaskFailed { task, .. })
            | TaskEvent::TaskCancelled(TaskCancelled { task, .. })
            | TaskEvent::CancelRequested(CancelRequested { task, .. })
            | TaskEvent::TaskExpired(TaskExpired { task })
            | TaskEvent::TaskRetried(TaskRetried { task, .. }) => named = Some(*task),
        }
        let named = named.into_iter().chain(purged.iter().map(|purge| purge.task));
        let tasks = named.filter_map(move |task| self.all.get(task));
        let leases = extended.iter().map(|extension| extension.lease);
        let leases = leases.chain(started.iter().map(|start| start.lease));
        let leased = leases.filter_map(move |lease| self.leased(lease));
        created.into_iter().chain(tasks.chain(leased).map(|task| &task.queue))
    }
}
