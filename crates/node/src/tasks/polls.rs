//! Lease calls that wait for a task. They are served in the order in which they came.
//!
//! A call of a worker that has as many tasks as it wants stands outside the lines until one of them ends.

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
    /// Calls outside the lines, by their worker.
    blocked: BTreeMap<Name, BTreeSet<PollId>>,
}

impl<R> Default for Polls<R> {
    fn default() -> Self {
        Self {
            next: 0,
            waiting: BTreeMap::new(),
            by_queue: BTreeMap::new(),
            by_end: BTreeSet::new(),
            by_request: BTreeMap::new(),
            blocked: BTreeMap::new(),
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

    /// Lets a call wait that came at `since`. Answers its name, and the call that it repeats, if that still waits: no caller listens to
    /// it any more.
    pub(crate) fn park(
        &mut self,
        request: LeaseQueues,
        to: R,
        since: Timestamp,
    ) -> (PollId, Option<Poll<R>>) {
        let repeated = request_name(&request).and_then(|name| self.by_request.get(&name).copied());
        let replaced = repeated.and_then(|id| self.take(id));
        let id = PollId(self.next);
        self.next += 1;
        let until = since.plus(request.wait_ms);
        self.line_up(id, &request.queues);
        if let Some(name) = request_name(&request) {
            self.by_request.insert(name, id);
        }
        self.by_end.insert((until, id));
        self.waiting.insert(id, Poll { request, to, since, until });
        (id, replaced)
    }

    /// Takes a call out of the lines until its worker has room again.
    pub(crate) fn block(&mut self, id: PollId) {
        let Some(poll) = self.waiting.get(&id) else { return };
        let (worker, queues) = (poll.request.worker.clone(), poll.request.queues.clone());
        self.leave_lines(id, &queues);
        self.blocked.entry(worker).or_default().insert(id);
    }

    /// Puts the calls of a worker back into their lines. Answers the queues that they wait for.
    pub(crate) fn unblock(&mut self, worker: &Name) -> Vec<Name> {
        let mut queues = Vec::new();
        for id in self.blocked.remove(worker).unwrap_or_default() {
            let Some(poll) = self.waiting.get(&id) else { continue };
            let asked = poll.request.queues.clone();
            self.line_up(id, &asked);
            queues.extend(asked);
        }
        queues
    }

    /// Removes calls whose callers have disconnected.
    pub(crate) fn sweep(&mut self, is_gone: impl Fn(&R) -> bool) {
        let gone = self.waiting.iter().filter(|(_, poll)| is_gone(&poll.to));
        let gone: Vec<PollId> = gone.map(|(id, _)| *id).collect();
        for id in gone {
            self.take(id);
        }
    }

    fn line_up(&mut self, id: PollId, queues: &[Name]) {
        for queue in queues {
            self.by_queue.entry(queue.clone()).or_default().insert(id);
        }
    }

    fn leave_lines(&mut self, id: PollId, queues: &[Name]) {
        for queue in queues {
            if let Some(ids) = self.by_queue.get_mut(queue) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.by_queue.remove(queue);
                }
            }
        }
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
        self.leave_lines(id, &poll.request.queues);
        if let Some(ids) = self.blocked.get_mut(&poll.request.worker) {
            ids.remove(&id);
            if ids.is_empty() {
                self.blocked.remove(&poll.request.worker);
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
