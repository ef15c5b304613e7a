//! Lease calls that wait for a task. They are served in the order in which they came.

use std::collections::{BTreeMap, BTreeSet};

use orchestrix_core::wire::LeaseQueues;
use orchestrix_core::{Name, Timestamp};

/// Names a waiting call; grows with every call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PollId(u64);

/// One waiting call.
#[derive(Debug)]
pub(crate) struct Poll<R> {
    pub(crate) request: LeaseQueues,
    pub(crate) to: R,
    pub(crate) since: Timestamp,
    until: Timestamp,
}

/// All waiting calls.
#[derive(Debug)]
pub(crate) struct Polls<R> {
    next: u64,
    waiting: BTreeMap<PollId, Poll<R>>,
    by_queue: BTreeMap<Name, BTreeSet<PollId>>,
    by_end: BTreeSet<(Timestamp, PollId)>,
    by_request: BTreeMap<(Name, Name), PollId>,
}

impl<R> Default for Polls<R> {
    fn default() -> Self {
        Self {
            next: 0,
            waiting: BTreeMap::new(),
            by_queue: BTreeMap::new(),
            by_end: BTreeSet::new(),
            by_request: BTreeMap::new(),
        }
    }
}

impl<R> Polls<R> {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Calls that wait for a queue.
    pub(crate) fn count(&self, queue: &Name) -> usize {
        self.by_queue.get(queue).map_or(0, BTreeSet::len)
    }

    /// Lets a call wait. Answers the call that it repeats, if that still waits: nobody listens to it any more.
    pub(crate) fn park(&mut self, request: LeaseQueues, to: R, now: Timestamp) -> Option<Poll<R>> {
        let repeated = request_name(&request).and_then(|name| self.by_request.get(&name).copied());
        let replaced = repeated.and_then(|id| self.take(id));
        let id = PollId(self.next);
        self.next += 1;
        let until = now.plus(request.wait_ms);
        for queue in &request.queues {
            self.by_queue.entry(queue.clone()).or_default().insert(id);
        }
        if let Some(name) = request_name(&request) {
            self.by_request.insert(name, id);
        }
        self.by_end.insert((until, id));
        self.waiting.insert(id, Poll { request, to, since: now, until });
        replaced
    }

    /// The first call that waits for a queue, after another one.
    pub(crate) fn first(&self, queue: &Name, after: Option<PollId>) -> Option<PollId> {
        let ids = self.by_queue.get(queue)?;
        match after {
            Some(after) => ids.range(PollId(after.0 + 1)..).next().copied(),
            None => ids.first().copied(),
        }
    }

    pub(crate) fn get(&self, id: PollId) -> Option<&Poll<R>> {
        self.waiting.get(&id)
    }

    /// Takes a call out of the line.
    pub(crate) fn take(&mut self, id: PollId) -> Option<Poll<R>> {
        let poll = self.waiting.remove(&id)?;
        self.by_end.remove(&(poll.until, id));
        for queue in &poll.request.queues {
            if let Some(ids) = self.by_queue.get_mut(queue) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.by_queue.remove(queue);
                }
            }
        }
        if let Some(name) = request_name(&poll.request) {
            self.by_request.remove(&name);
        }
        Some(poll)
    }

    /// A call that has waited as long as it wanted.
    pub(crate) fn take_over(&mut self, now: Timestamp) -> Option<Poll<R>> {
        let &(_, id) = self.by_end.first().filter(|(until, _)| *until <= now)?;
        self.take(id)
    }

    /// Any call, when all have to go.
    pub(crate) fn take_any(&mut self) -> Option<Poll<R>> {
        let id = *self.waiting.keys().next()?;
        self.take(id)
    }

    pub(crate) fn next_end(&self) -> Option<Timestamp> {
        self.by_end.first().map(|(until, _)| *until)
    }
}

fn request_name(request: &LeaseQueues) -> Option<(Name, Name)> {
    request.request_id.clone().map(|id| (request.worker.clone(), id))
}
