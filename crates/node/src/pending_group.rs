//! The next commit group, which the loop offers to the writer while it waits for asks.
//!
//! Either takes it: the writer, to write it, or the loop, to add to it.
//!
//! A group reaches the journal in three ways, and one slot with a condition variable in place of them would save little. The
//! loop itself writes small groups, so these are not handed over (`Inline` in `runner.rs`). A large group goes through a
//! channel, and only on an engine that is a server is one offered. The slot would have to hold all three kinds of work, to be
//! taken back or not, and an answer would still come another way. In a profile of submits over HTTP with 64 connections, when
//! all groups of more than one caller were handed over, loop and writer woke each other in 1.2 % of the processor time, and all
//! channels and locks took 1.5 %; a slot has the same two wake-ups.
//!
//! **Invariant:** nothing is decided while a group is offered, not even what an ack asks for: that would come before it.

use std::sync::PoisonError;

use orchestrix_core::Term;

use crate::commit_group::CommitGroup;
use crate::node::Waiter;
use crate::runner::Runner;
use crate::sync::mpsc::Receiver;
use crate::sync::{Mutex, MutexGuard};
use crate::writer::Work;

/// Where it lies.
#[derive(Default)]
pub(crate) struct PendingGroup(Mutex<Option<(CommitGroup<Waiter>, Term)>>);

impl PendingGroup {
    pub(crate) fn put(&self, group: CommitGroup<Waiter>, term: Term) {
        *self.lock() = Some((group, term));
    }

    pub(crate) fn take_back(&self) -> Option<CommitGroup<Waiter>> {
        self.lock().take().map(|(group, _)| group)
    }

    /// What the writer does next. What was handed over comes first: it was there before anything was offered.
    pub(crate) fn next(&self, works: &Receiver<Work>) -> Option<Work> {
        // Read under the lock: a thread that sees an offer sees all groups that were handed over before it.
        let mut offered = self.lock();
        works.try_recv().ok().or_else(|| offered.take().map(|(group, term)| Work::Write { group, term }))
    }

    fn lock(&self) -> MutexGuard<'_, Option<(CommitGroup<Waiter>, Term)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the loop remembers of a group that it offered.
pub(crate) struct Pending {
    bytes: u64,
}

impl Runner {
    /// Offers the group, unless more is to be done with it than to write it.
    pub(crate) fn offer(&mut self) -> Option<Pending> {
        if !self.offers || !self.linger.is_zero() || self.is_snapshot_due() {
            return None;
        }
        let (group, term) = (self.decisions.take_group(), self.decisions.state().term());
        let offered = Pending { bytes: group.records.len() as u64 };
        if group.count > 0 {
            // It may be written while the loop waits, which is then for no longer than until the journal may rest.
            self.unmarked = Some(self.clock.boot());
        }
        self.at_writer += 1;
        self.offer.put(group, term);
        Some(offered)
    }

    /// Goes on with the group that was offered, unless the writer has it.
    pub(crate) fn take_back(&mut self, offered: Option<Pending>) {
        let Some(Pending { bytes }) = offered else { return };
        match self.offer.take_back() {
            Some(group) => {
                self.at_writer -= 1;
                self.decisions.take_back(group);
            }
            None => self.snapshot.wrote(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::sync::mpsc::sync_channel;

    use orchestrix_core::Position;

    use super::*;

    fn group(first: u64) -> CommitGroup<Waiter> {
        let mut group = CommitGroup::default();
        group.first = Position(first);
        group
    }

    fn first(work: Option<Work>) -> Option<u64> {
        match work {
            Some(Work::Write { group, .. }) => Some(group.first.0),
            Some(Work::Rest | Work::Truncate) | None => None,
        }
    }

    #[test]
    fn a_sent_group_is_written_before_an_offered_one() {
        let (offer, (works, handed)) = (PendingGroup::default(), sync_channel(4));
        works.send(Work::Write { group: group(4), term: Term(1) }).unwrap();
        offer.put(group(5), Term(1));
        assert_eq!(first(offer.next(&handed)), Some(4));
        assert_eq!(first(offer.next(&handed)), Some(5));
        assert!(offer.take_back().is_none(), "the writer has it");
        assert!(offer.next(&handed).is_none());
    }

    #[test]
    fn a_group_taken_back_is_not_written() {
        let (offer, (_works, handed)) = (PendingGroup::default(), sync_channel(4));
        offer.put(group(5), Term(1));
        assert_eq!(offer.take_back().map(|group| group.first), Some(Position(5)));
        assert!(offer.next(&handed).is_none(), "the loop has it");
    }
}
