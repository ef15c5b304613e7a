//! The batches of the journal: one object each, named by its first position.
//!
//! The name of the next batch is known from the one before it, so a follower needs no listing, and all who want to
//! append after the same batch race for the same name. Listings say where to begin and what to read at once, never where
//! the end is.
//!
//! **Invariant:** above the floor there are only batches that follow each other: a batch is written only by a writer
//! who has seen the one before it, and the first one that is written stays.

use std::sync::Arc;

use orchestrix_core::Position;

use super::head::Head;
use super::keys::{Keys, number};
use super::store::{Failure, SharedStore};
use crate::batch_frame::{BATCH_FRAME_OVERHEAD_BYTES, unpack};
use crate::limit::fitting;
use crate::{Batch, Error, JournalId, Link};

/// Batches in one answer, read at once. Bounds the listing that says which.
const READ_BATCHES_MAX: usize = 500;
/// Batches that are read one by one before a listing is worth its price.
const STEPS: usize = 4;
/// How often a search for the end begins again because the floor rose above where it began.
const TRIES: usize = 3;

/// The batches of one journal.
#[derive(Clone, Debug)]
pub(super) struct History {
    pub(super) store: SharedStore,
    pub(super) keys: Arc<Keys>,
    pub(super) id: JournalId,
}

/// A batch that others follow, or that is the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) link: Link,
    /// Where it begins. 0 if it is not known, or there is none.
    pub(super) first: Position,
}

impl From<Link> for Known {
    fn from(link: Link) -> Self {
        Self { link, first: Position(0) }
    }
}

impl History {
    /// The floor, as long as it is still this journal.
    pub(super) fn floor(&self, doing: &str) -> Result<Link, Error> {
        self.own(doing, Head::read(&self.store, &self.keys, doing)?)
    }

    /// The floor, and whether a batch that was seen is still there.
    pub(super) fn floor_beside(&self, doing: &str, seen: Known) -> Result<(Link, bool), Error> {
        if seen.first == Position(0) {
            return Ok((self.floor(doing)?, true));
        }
        let (head, there) = Head::read_beside(&self.store, &self.keys, doing, &self.name(seen.first))?;
        let floor = self.own(doing, head)?;
        // Below the floor it may have been deleted.
        Ok((floor, there || seen.link.position <= floor.position))
    }

    fn own(&self, doing: &str, head: Option<Head>) -> Result<Link, Error> {
        let damaged = |what: String| Err(self.store.damaged(doing, &self.keys.journal(), what));
        match head {
            None => damaged(format!("the journal {} is gone", self.id)),
            Some(head) if head.id != self.id => {
                damaged(format!("it was the journal {} before, and is {} now", self.id, head.id))
            }
            Some(head) => Ok(head.floor),
        }
    }

    /// Where the batches are.
    pub(super) fn folder(&self) -> String {
        self.keys.batches(self.id)
    }

    pub(super) fn name(&self, first: Position) -> String {
        self.keys.batch(self.id, first)
    }

    /// The bytes at the name of a batch.
    pub(super) fn fetch(&self, doing: &str, first: Position) -> Result<Option<Vec<u8>>, Error> {
        let found = self.store.get(&self.name(first)).map_err(|failure| self.store.error(doing, failure))?;
        Ok(found.map(|object| object.bytes))
    }

    /// The batch that begins at a position, if it follows what is known of the one before it.
    pub(super) fn unpack(
        &self,
        doing: &str,
        first: Position,
        before: Option<Link>,
        bytes: &[u8],
    ) -> Result<Batch, Error> {
        let damaged = |what: String| self.store.damaged(doing, &self.name(first), what);
        let batch = unpack(self.id, bytes).map_err(|no| damaged(no.to_string()))?;
        let Link { position, hash } = batch.previous;
        if position.next() != first || batch.count == 0 {
            return Err(damaged(format!("it has the batch of {} events after {position}", batch.count)));
        }
        if before.is_some_and(|before| batch.previous != before) {
            return Err(damaged(format!("it follows {position} ({hash}), which is not what is before it")));
        }
        Ok(batch)
    }

    /// The last batch, searched from one that was the last, and the floor.
    pub(super) fn find_end(&self, doing: &str, from: Known) -> Result<(Known, Link), Error> {
        let mut from = from;
        for _ in 0..TRIES {
            let walked = self.walk(doing, from);
            // A missing batch is the end, and one that is there is history, only if the floor was not above them.
            let floor = self.floor(doing)?;
            if floor.position <= from.link.position {
                return Ok((walked?, floor));
            }
            from = Known::from(floor);
        }
        let what = "the floor rises while the end is searched".to_owned();
        Err(self.store.error(doing, Failure::Lost(what)))
    }

    fn walk(&self, doing: &str, from: Known) -> Result<Known, Error> {
        let mut at = from;
        // A reader that begins at the floor most likely has much to read.
        let mut steps = if from.first == Position(0) { STEPS } else { 0 };
        loop {
            if steps == STEPS
                && let Some(further) = self.skip(doing, at)?
            {
                at = further;
            }
            steps = if steps == READ_BATCHES_MAX { STEPS } else { steps + 1 };
            let first = at.link.position.next();
            let Some(bytes) = self.fetch(doing, first)? else { return Ok(at) };
            let batch = self.unpack(doing, first, Some(at.link), &bytes)?;
            at = Known { link: batch.link(self.id), first };
        }
    }

    /// The last batch that is listed.
    fn skip(&self, doing: &str, at: Known) -> Result<Option<Known>, Error> {
        let listed = self.store.last(&self.folder(), &self.name(at.link.position));
        let listed = listed.map_err(|failure| self.store.error(doing, failure))?;
        let Some(first) = listed.and_then(|listed| number(&listed.name)).map(Position) else {
            return Ok(None);
        };
        let Some(bytes) = self.fetch(doing, first)? else { return Ok(None) };
        let batch = self.unpack(doing, first, None, &bytes)?;
        Ok(Some(Known { link: batch.link(self.id), first }))
    }

    /// The batches after a position that fit a limit, or some of them; none if there is none at the name that
    /// follows. `ahead` was read before; what does not fit is left there.
    pub(super) fn gather(
        &self,
        doing: &str,
        after: Position,
        before: Option<Link>,
        limit: usize,
        ahead: &mut Option<(Position, Vec<u8>)>,
    ) -> Result<Vec<Batch>, Error> {
        let mut batches = Vec::new();
        let (mut next, mut before, mut room) = (after.next(), before, limit);
        while room > 0 || batches.is_empty() {
            if batches.len() == STEPS {
                batches.extend(self.gather_listed(doing, next, before, room)?);
                break;
            }
            let bytes = match ahead.take().filter(|(first, _)| *first == next) {
                Some((_, bytes)) => bytes,
                None => match self.fetch(doing, next)? {
                    Some(bytes) => bytes,
                    None => break,
                },
            };
            let batch = self.unpack(doing, next, before, &bytes)?;
            if batch.records.len() > room && !batches.is_empty() {
                *ahead = Some((next, bytes));
                break;
            }
            room = room.saturating_sub(batch.records.len());
            (next, before) = (batch.last().next(), Some(batch.link(self.id)));
            batches.push(batch);
        }
        Ok(batches)
    }

    /// Many batches at once, as far as a listing names them.
    fn gather_listed(
        &self,
        doing: &str,
        next: Position,
        before: Option<Link>,
        room: usize,
    ) -> Result<Vec<Batch>, Error> {
        let failed = |failure: Failure| self.store.error(doing, failure);
        let after = self.name(Position(next.0 - 1));
        let listed = self.store.list(&self.folder(), Some(&after), READ_BATCHES_MAX).map_err(failed)?;
        let sizes = listed.iter().map(|listed| listed.size.saturating_sub(BATCH_FRAME_OVERHEAD_BYTES));
        let mut count = fitting(sizes, room);
        if count == 1 && listed.first().is_some_and(|listed| listed.size > BATCH_FRAME_OVERHEAD_BYTES + room)
        {
            count = 0;
        }
        let names: Vec<String> = listed.into_iter().take(count).map(|listed| listed.name).collect();
        let objects = self.store.get_all(&names).map_err(failed)?;
        let mut batches: Vec<Batch> = Vec::with_capacity(objects.len());
        let (mut next, mut before) = (next, before);
        for (name, object) in names.iter().zip(objects) {
            // A listing that leaves one out is no proof of anything.
            let (Some(object), true) = (object, number(name) == Some(next.0)) else { break };
            let batch = self.unpack(doing, next, before, &object.bytes)?;
            (next, before) = (batch.last().next(), Some(batch.link(self.id)));
            batches.push(batch);
        }
        Ok(batches)
    }

    /// The batch that has a position inside, found by listing: its name is not known.
    pub(super) fn around(&self, doing: &str, position: Position, floor: Link) -> Result<Batch, Error> {
        let failed = |failure: Failure| self.store.error(doing, failure);
        let mut from = self.name(floor.position);
        let mut first = None;
        loop {
            let listed = self.store.list(&self.folder(), Some(&from), READ_BATCHES_MAX).map_err(failed)?;
            let numbers = listed.iter().filter_map(|listed| number(&listed.name));
            let below: Vec<u64> = numbers.take_while(|number| *number <= position.0).collect();
            first = below.last().copied().or(first);
            match listed.last() {
                Some(last) if below.len() == listed.len() => from = last.name.clone(),
                Some(_) | None => break,
            }
        }
        let missing = || {
            let what = format!("the batch with {position} is missing, and there are later ones");
            self.store.damaged(doing, &self.folder(), what)
        };
        let first = Position(first.ok_or_else(missing)?);
        let bytes = self.fetch(doing, first)?.ok_or_else(missing)?;
        let batch = self.unpack(doing, first, None, &bytes)?;
        if batch.last() < position { Err(missing()) } else { Ok(batch) }
    }

    /// Deletes what the floor has made unreadable.
    pub(super) fn delete_below(&self, doing: &str, floor: Link) -> Result<(), Error> {
        let failed = |failure: Failure| self.store.error(doing, failure);
        loop {
            let listed = self.store.list(&self.folder(), None, READ_BATCHES_MAX).map_err(failed)?;
            let below = |name: &String| number(name).is_some_and(|first| first <= floor.position.0);
            let all = listed.len();
            let names: Vec<String> = listed.into_iter().map(|listed| listed.name).take_while(below).collect();
            self.store.delete(&names).map_err(failed)?;
            if names.len() < all || names.is_empty() {
                return Ok(());
            }
        }
    }
}
