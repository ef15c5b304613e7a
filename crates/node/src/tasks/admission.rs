//! Lease calls in the first seconds of a term under a leader lease.
//!
//! When the leader changes, the calls of all workers arrive at once. So many are decided in a window; the rest wait in
//! the order in which they came, as long as they would have waited for a task. Heartbeats and reports do not stand in this
//! line: workers keep the tasks that they have.
//!
//! **Invariant:** calls are served in order. After the first seconds it is emptied as fast as groups are written.

use std::collections::VecDeque;

use orchestrix_core::Timestamp;
use orchestrix_core::wire::LeaseQueues;

/// For so many milliseconds of a term calls are counted.
const FIRST_MS: u64 = 5_000;
/// Milliseconds of a window, from the beginning of the term.
const WINDOW_MS: u64 = 100;
/// Lease calls that are decided in a window. Less than half of a group, if each gets one task.
const CALLS_PER_WINDOW: u32 = 200;

/// The line in front of the lease calls of a term.
#[derive(Debug)]
pub(crate) struct Admission<R> {
    began: Timestamp,
    /// The end of the window.
    window_ends: Timestamp,
    /// Calls that this window still takes.
    left: u32,
    line: VecDeque<Waiting<R>>,
    /// No call in the line has waited long enough before then.
    next_end: Timestamp,
}

/// A lease call that is not decided yet.
#[derive(Debug)]
pub(crate) struct Waiting<R> {
    pub(crate) request: LeaseQueues,
    pub(crate) to: R,
    pub(crate) since: Timestamp,
}

impl<R> Waiting<R> {
    fn until(&self) -> Timestamp {
        self.since.plus(self.request.wait_ms)
    }
}

impl<R> Admission<R> {
    pub(crate) fn begin(now: Timestamp) -> Self {
        Self {
            began: now,
            window_ends: now.plus(WINDOW_MS),
            left: CALLS_PER_WINDOW,
            line: VecDeque::new(),
            next_end: Timestamp(u64::MAX),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.line.len()
    }

    /// No call has to wait here any more.
    pub(crate) fn is_over(&self, now: Timestamp) -> bool {
        self.line.is_empty() && self.is_late(now)
    }

    fn is_late(&self, now: Timestamp) -> bool {
        now >= self.began.plus(FIRST_MS)
    }

    /// Whether a call that comes now may be decided at once.
    pub(crate) fn admits(&mut self, now: Timestamp) -> bool {
        self.line.is_empty() && self.spend(now)
    }

    pub(crate) fn line_up(&mut self, waiting: Waiting<R>) {
        self.next_end = self.next_end.min(waiting.until());
        self.line.push_back(waiting);
    }

    /// The next of the line that may be decided.
    pub(crate) fn next(&mut self, now: Timestamp) -> Option<Waiting<R>> {
        if self.line.is_empty() || !self.spend(now) {
            return None;
        }
        self.line.pop_front()
    }

    /// Calls whose wait is over.
    pub(crate) fn take_over(&mut self, now: Timestamp) -> Vec<Waiting<R>> {
        if now < self.next_end {
            return Vec::new();
        }
        let mut over = Vec::new();
        for waiting in std::mem::take(&mut self.line) {
            if waiting.until() <= now {
                over.push(waiting);
            } else {
                self.line.push_back(waiting);
            }
        }
        self.next_end = self.line.iter().map(Waiting::until).min().unwrap_or(Timestamp(u64::MAX));
        over
    }

    /// Removes calls whose callers have disconnected.
    pub(crate) fn sweep(&mut self, is_gone: impl Fn(&R) -> bool) {
        self.line.retain(|waiting| !is_gone(&waiting.to));
    }

    /// All calls, when the term ends.
    pub(crate) fn into_line(self) -> VecDeque<Waiting<R>> {
        self.line
    }

    /// When there is something to do for those in the line.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        let next = if self.left > 0 { Timestamp(0) } else { self.window_ends };
        (!self.line.is_empty()).then(|| next.min(self.next_end))
    }

    fn spend(&mut self, now: Timestamp) -> bool {
        if self.is_late(now) {
            return true;
        }
        if now >= self.window_ends {
            let passed = now.since(self.began) / WINDOW_MS;
            self.window_ends = self.began.plus((passed + 1) * WINDOW_MS);
            self.left = CALLS_PER_WINDOW;
        }
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }
}
