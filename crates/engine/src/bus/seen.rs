//! What a handle knows of its bus, to be compared with what it hears next.

use orchestrix_core::{Name, Term};

use super::{EntryId, Offer};
use crate::fault::invalid;
use crate::{Cause, Error, JournalId};

/// What is noted in a bus about its claims, and the last offer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Noted {
    pub(crate) term: Term,
    pub(crate) generation: u64,
    pub(crate) last: EntryId,
}

impl Noted {
    /// Whether this is older than that: none of the three ever goes back.
    pub(crate) fn is_behind(&self, seen: &Self) -> bool {
        self.term < seen.term || self.generation < seen.generation || self.last < seen.last
    }

    fn later(self, other: Self) -> Self {
        Self {
            term: self.term.max(other.term),
            generation: self.generation.max(other.generation),
            last: self.last.max(other.last),
        }
    }
}

/// What one handle has seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// For whom it was opened.
    opened: Option<(JournalId, Name)>,
    newest: Noted,
    /// The highest generation that was used. None is used twice, even if the bus has forgotten it.
    used: u64,
    /// Until it is opened again.
    rolled_back: bool,
}

impl Seen {
    /// Begins anew.
    pub(crate) fn opened(&mut self, journal: JournalId, node: &Name, found: Noted) {
        let used = self.used.max(found.generation);
        *self = Self { opened: Some((journal, node.clone())), newest: found, used, rolled_back: false };
    }

    pub(crate) fn journal(&self, doing: &str) -> Result<JournalId, Error> {
        let opened = self.opened.as_ref().map(|(journal, _)| *journal);
        opened.ok_or_else(|| invalid(doing, "the bus was not opened"))
    }

    pub(crate) fn newest(&self) -> Noted {
        self.newest
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    pub(crate) fn is_rolled_back(&self) -> bool {
        self.rolled_back
    }

    /// Learns what was found, after what was the newest when it was asked for: another thread may have heard of something newer
    /// meanwhile. `false` if the bus has forgotten something.
    pub(crate) fn learn(&mut self, before: Noted, found: Option<Noted>) -> bool {
        match found {
            Some(found) if !self.rolled_back && !found.is_behind(&before) => {
                self.newest = self.newest.later(found);
                self.used = self.used.max(found.generation);
                true
            }
            Some(_) | None => {
                self.rolled_back = true;
                false
            }
        }
    }

    pub(crate) fn forgotten(&mut self) {
        self.rolled_back = true;
    }
}

/// Why a bus is refused that was taken for another journal.
pub(crate) fn foreign(doing: &str, place: &str, found: &str, own: JournalId, key: &str) -> Error {
    let what = format!(
        "this bus belongs to the journal {found}, and this node has the journal {own}: name another bus or another \
         domain; only if that journal is given up, delete {key} and all channels of the domain"
    );
    remote(doing, place, what)
}

/// Why an offer is refused whose channel has later ids.
pub(crate) fn ahead(doing: &str, place: &str, offer: &Offer, channel: &str) -> Error {
    let what = format!(
        "{channel} has messages with ids of {} or above, which no node published: find out who sent them, and delete it",
        offer.lease
    );
    remote(doing, place, what)
}

fn remote(doing: &str, place: &str, what: String) -> Error {
    let source = Cause::Remote { place: place.to_owned(), what };
    Error { operation: doing.to_owned(), retryable: false, source }
}
