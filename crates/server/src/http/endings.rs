//! Wakes the streams of a task when something about it ends: one reader of the events for all of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use orchestrix_core::{
    Event, LeaseExpired, LeaseReleased, TaskCancelled, TaskCompleted, TaskEvent, TaskExpired, TaskFailed,
    TaskId, TaskPurged,
};
use orchestrix_node::{Events, Happening};
use tokio::sync::Notify;

use crate::coordinator::Coordinator;

/// What may end a task or an attempt, see [`wake`].
const ENDS: &[u8] = &[
    TaskCompleted::KIND,
    TaskFailed::KIND,
    LeaseReleased::KIND,
    LeaseExpired::KIND,
    TaskCancelled::KIND,
    TaskExpired::KIND,
    TaskPurged::KIND,
];

/// Who follows which task.
#[derive(Debug)]
pub(crate) struct Endings {
    coordinator: Coordinator,
    followed: Mutex<Followed>,
}

#[derive(Debug, Default)]
struct Followed {
    tasks: BTreeMap<TaskId, (usize, Arc<Notify>)>,
    /// The events are being read.
    reading: bool,
}

/// One follower of one task.
#[derive(Debug)]
pub(crate) struct Following {
    endings: Arc<Endings>,
    task: TaskId,
    woken: Arc<Notify>,
}

impl Endings {
    pub(crate) fn new(coordinator: Coordinator) -> Self {
        Self { coordinator, followed: Mutex::default() }
    }

    /// From here on no end of the task is missed.
    pub(crate) fn follow(self: &Arc<Self>, task: TaskId) -> Following {
        let mut followed = self.lock();
        let (count, woken) = followed.tasks.entry(task).or_default();
        *count += 1;
        let woken = Arc::clone(woken);
        if !followed.reading {
            followed.reading = true;
            tokio::spawn(Arc::clone(self).read(self.coordinator.events(None).only(ENDS)));
        }
        drop(followed);
        Following { endings: Arc::clone(self), task, woken }
    }

    /// Reads events until there is no stream left.
    async fn read(self: Arc<Self>, mut events: Events) {
        loop {
            let happening = events.next().await;
            let mut followed = self.lock();
            if followed.tasks.is_empty() {
                followed.reading = false;
                return;
            }
            match happening {
                Happening::Event { event, .. } => wake(&followed, &event),
                Happening::Gap { .. } => {
                    followed.tasks.values().for_each(|(_, woken)| woken.notify_waiters())
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Followed> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Following {
    /// Waits for the next end. Ask for it before looking at the task, so that none is missed in between.
    pub(crate) fn woken(&self) -> tokio::sync::futures::Notified<'_> {
        self.woken.notified()
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut followed = self.endings.lock();
        let left = followed.tasks.get_mut(&self.task).map(|(count, _)| {
            *count -= 1;
            *count
        });
        if left == Some(0) {
            followed.tasks.remove(&self.task);
        }
    }
}

/// Wakes the followers of the tasks that an event may have ended. They look for themselves.
fn wake(followed: &Followed, event: &Event) {
    let Event::Task(event) = event else { return };
    let task = match event {
        TaskEvent::TaskCompleted(event) => event.task,
        TaskEvent::TaskFailed(event) => event.task,
        TaskEvent::LeaseReleased(event) => event.task,
        TaskEvent::LeaseExpired(event) => event.task,
        TaskEvent::TaskCancelled(event) => event.task,
        TaskEvent::TaskExpired(event) => event.task,
        TaskEvent::TaskPurged(event) => {
            let woken = event.tasks.iter().filter_map(|purge| followed.tasks.get(&purge.task));
            return woken.for_each(|(_, woken)| woken.notify_waiters());
        }
        TaskEvent::TaskCreated(_)
        | TaskEvent::LeaseGranted(_)
        | TaskEvent::LeaseOffered(_)
        | TaskEvent::LeasesStarted(_)
        | TaskEvent::BusResumed(_)
        | TaskEvent::LeaseExtended(_)
        | TaskEvent::CancelRequested(_)
        | TaskEvent::TaskRetried(_) => return,
    };
    if let Some((_, woken)) = followed.tasks.get(&task) {
        woken.notify_waiters();
    }
}
