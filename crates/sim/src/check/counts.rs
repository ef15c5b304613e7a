//! Numbers against the journal: the counters of a process, and its numbers of tasks by state.

use std::collections::BTreeMap;

use orchestrix_core::wire::QueueList;
use orchestrix_core::{Event, ExpiryReason, Name, Next, Position, TaskEvent};

use crate::check::Violation;
use crate::check::model::{Is, Model};
use crate::history::{Call, Counted, Entry, History};

/// R2: the counters of a process are the events that it wrote.
pub(super) fn counters(history: &History) -> Option<Violation> {
    history.counted.iter().find_map(|counted| counted_wrong(counted, &history.log))
}

fn counted_wrong(counted: &Counted, log: &[Entry]) -> Option<Violation> {
    let mut events: BTreeMap<&'static str, u64> = counted.counts.keys().map(|name| (*name, 0)).collect();
    let own = log.iter().filter(|entry| entry.position > counted.after && entry.position <= counted.until);
    for (name, number) in own.flat_map(|entry| numbers(&entry.event)) {
        *events.entry(name).or_default() += number;
    }
    let wrong = counted.counts.iter().find(|(name, count)| events.get(*name) != Some(count))?;
    let (name, said) = wrong;
    let (is, after, until) = (events[name], counted.after, counted.until);
    Some(Violation::new("R2", format!("{name} says {said}, and there were {is} from {after} to {until}")))
}

/// What an event adds to which counter.
fn numbers(event: &Event) -> Vec<(&'static str, u64)> {
    let ended = |next: Next| match next {
        Next::Failed => vec![("dead_letters", 1)],
        Next::Cancelled => vec![("cancelled", 1)],
        Next::Waiting { .. } => Vec::new(),
    };
    // A report under an offer starts the lease, too.
    let started = |worker: Option<&Name>| worker.map(|_| ("leased", 1)).into_iter().collect::<Vec<_>>();
    let Event::Task(event) = event else { return Vec::new() };
    match event {
        TaskEvent::CancelRequested(_) => Vec::new(),
        TaskEvent::TaskCreated(_) => vec![("submitted", 1)],
        TaskEvent::LeaseGranted(_) => vec![("leased", 1)],
        TaskEvent::LeaseExtended(event) => vec![("extended", event.extended.len() as u64)],
        TaskEvent::LeaseReleased(event) if event.undelivered == Some(true) => ended(event.next),
        TaskEvent::LeaseOffered(_) | TaskEvent::BusResumed(_) => Vec::new(),
        TaskEvent::LeasesStarted(event) => vec![("leased", event.started.len() as u64)],
        TaskEvent::LeaseReleased(event) => {
            [vec![("released", 1)], ended(event.next), started(event.worker.as_ref())].concat()
        }
        TaskEvent::LeaseExpired(event) => {
            let name = match event.reason {
                ExpiryReason::Silent => "expired_silent",
                ExpiryReason::Timeout => "expired_timeout",
            };
            [vec![(name, 1)], ended(event.next)].concat()
        }
        TaskEvent::TaskCompleted(event) => [vec![("completed", 1)], started(event.worker.as_ref())].concat(),
        TaskEvent::TaskFailed(event) => {
            [vec![("failed", 1)], ended(event.next), started(event.worker.as_ref())].concat()
        }
        TaskEvent::TaskCancelled(_) => vec![("cancelled", 1)],
        TaskEvent::TaskExpired(_) => vec![("ttl_expired", 1)],
        TaskEvent::TaskRetried(_) => vec![("retried", 1)],
        TaskEvent::TaskPurged(event) => vec![("purged", event.tasks.len() as u64)],
    }
}

/// Waiting, leased, completed, failed, cancelled.
type Where = [u64; 5];

/// T14: the tasks of each queue are counted as they were at one place between asking and answering.
pub(super) fn queues(call: &Call, list: &QueueList, model: &Model) -> Result<(), Violation> {
    let said: BTreeMap<&Name, Where> = list
        .queues
        .iter()
        .map(|queue| {
            let waiting = queue.ready + queue.delayed;
            (&queue.queue, [waiting, queue.leased, queue.completed, queue.failed, queue.cancelled])
        })
        .filter(|(_, counts)| counts.iter().any(|count| *count > 0))
        .collect();
    let places = call.durable_before.0..=call.durable_after.0;
    if places.clone().any(|position| all_at(model, Position(position)) == said) {
        return Ok(());
    }
    let (from, to, was) = (call.durable_before, call.durable_after, all_at(model, call.durable_after));
    Err(Violation::new("T14", format!("never so between {from} and {to}: {said:?}, at last {was:?}")))
}

/// How many tasks of each queue were where at a place of the journal.
pub(super) fn all_at(model: &Model, position: Position) -> BTreeMap<&Name, Where> {
    let mut all: BTreeMap<&Name, Where> = BTreeMap::new();
    for task in model.tasks.values() {
        let place = match task.at(position) {
            None | Some(Is::Purged) => continue,
            Some(Is::Waiting) => 0,
            Some(Is::Leased(_) | Is::Asked(_)) => 1,
            Some(Is::Completed) => 2,
            Some(Is::Failed) => 3,
            Some(Is::Cancelled) => 4,
        };
        all.entry(&task.queue).or_default()[place] += 1;
    }
    all
}

/// LL1: without faults, no worker that sends heartbeats loses a lease.
pub(super) fn lost_leases(history: &History) -> Option<Violation> {
    let silent = |event: &Event| matches!(event, Event::Task(TaskEvent::LeaseExpired(event)) if event.reason == ExpiryReason::Silent);
    let lost = history.log.iter().filter(|_| history.calm).find(|entry| silent(&entry.event))?;
    Some(Violation::new("LL1", format!("a lease ended by time at {} in a calm world", lost.position)))
}
