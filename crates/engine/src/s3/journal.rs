//! A handle of the journal: the last batch that it has seen, and the meaning of answers of the store.
//!
//! **Invariant:** a batch is sent only after one that this handle has seen, and is done only if the floor, read after
//! it was written, is still below it: otherwise its name was free because history had left it behind.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use orchestrix_core::Position;

use super::head::Head;
use super::history::{History, Known};
use super::keys::Keys;
use super::poll::{PAUSE_MIN, Poll};
use super::snapshots::S3Snapshots;
use super::store::{Failure, SharedStore};
use crate::batch_frame::pack;
use crate::fault::invalid;
use crate::{Appended, BATCH_BYTES_MAX, Batch, Error, Journal, JournalId, Link, Read, Snapshots, Space};

/// How often an append is sent when the store says that it wrote nothing, but may the next time.
const TRIES: usize = 3;

const DO_OPEN: &str = "open the journal";
const DO_APPEND: &str = "append to the journal";
const DO_READ: &str = "read the journal";
const DO_WAIT: &str = "wait for the journal";
const DO_TRUNCATE: &str = "truncate the journal";

/// A handle of the journal.
#[derive(Debug)]
pub(super) struct S3Journal {
    history: History,
    seen: Mutex<Seen>,
    /// A batch whose outcome is not known.
    unresolved: Option<Link>,
    poll: Mutex<Poll>,
    /// A batch that was found while waiting, or did not fit the last answer, by its first position.
    ahead: Mutex<Option<(Position, Vec<u8>)>>,
}

/// The last answers to this handle, to be compared with the next ones.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    end: Known,
    /// The last batch that was read.
    read: Link,
    floor: Position,
}

impl S3Journal {
    /// Opens the journal that is there. If none is known yet and none is there, makes it.
    pub(super) fn open(store: SharedStore, keys: Arc<Keys>, known: Option<JournalId>) -> Result<Self, Error> {
        let damaged = |what: String| store.damaged(DO_OPEN, &keys.journal(), what);
        let mut head = Head::read(&store, &keys, DO_OPEN)?;
        if head.is_none() && known.is_none() {
            let batches =
                store.list(&keys.histories(), None, 1).map_err(|failure| store.error(DO_OPEN, failure))?;
            if !batches.is_empty() {
                return Err(damaged("it is gone, and there are batches".to_owned()));
            }
            Head::make(&store, &keys, DO_OPEN)?;
            head = Head::read(&store, &keys, DO_OPEN)?;
        }
        let Some(head) = head else { return Err(damaged("it is gone".to_owned())) };
        if let Some(known) = known.filter(|known| *known != head.id) {
            return Err(damaged(format!("it was the journal {known} before, and is {} now", head.id)));
        }
        let history = History { store: Arc::clone(&store), keys: Arc::clone(&keys), id: head.id };
        let journal = Self {
            history,
            seen: Mutex::default(),
            unresolved: None,
            poll: Mutex::new(Poll::new(Position(0), Instant::now())),
            ahead: Mutex::default(),
        };
        journal.search(DO_OPEN, Known::from(head.floor))?;
        Ok(journal)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }

    /// Asks for the end, and holds it against what was seen before.
    fn search(&self, doing: &str, from: Known) -> Result<Link, Error> {
        let (end, floor) = self.history.find_end(doing, from)?;
        self.learn_floor(doing, floor)?;
        let mut seen = self.seen();
        let (old, new) = (seen.end.link, end.link);
        if new.position < old.position || (new.position == old.position && new.hash != old.hash) {
            let what = format!(
                "it ended at {} ({}) before and ends at {} ({}) now: the store has forgotten what it acknowledged, \
                 or another history is in its place",
                old.position, old.hash, new.position, new.hash
            );
            return Err(self.history.store.damaged(doing, &self.history.folder(), what));
        }
        if new.position > old.position {
            seen.end = end;
        }
        Ok(new)
    }

    fn floor(&self, doing: &str) -> Result<Link, Error> {
        let floor = self.history.floor(doing)?;
        self.learn_floor(doing, floor)?;
        Ok(floor)
    }

    /// The floor, if a batch that was seen is still above it or went with it.
    fn floor_beside(&self, doing: &str, seen: Known) -> Result<Link, Error> {
        let (floor, there) = self.history.floor_beside(doing, seen)?;
        self.learn_floor(doing, floor)?;
        if !there {
            let Link { position, hash } = seen.link;
            let what = format!(
                "the batch that ended at {position} ({hash}) is gone: the store has forgotten what it acknowledged"
            );
            return Err(self.history.store.damaged(doing, &self.history.name(seen.first), what));
        }
        Ok(floor)
    }

    /// A floor only rises.
    fn learn_floor(&self, doing: &str, floor: Link) -> Result<(), Error> {
        let mut seen = self.seen();
        if floor.position < seen.floor {
            let what = format!("the floor was {} before, and is {} now", seen.floor, floor.position);
            return Err(self.history.store.damaged(doing, &self.history.keys.journal(), what));
        }
        seen.floor = floor.position;
        Ok(())
    }

    /// The outcome of a batch is unknown if the error passes; otherwise this is the end.
    fn unknown(&mut self, link: Link, error: Error) -> Result<Appended, Error> {
        if !error.retryable {
            return Err(error);
        }
        self.history.store.unknown(DO_APPEND, &error.source.to_string());
        self.unresolved = Some(link);
        Ok(Appended::Unknown)
    }

    /// The answer to a batch, by where the journal ends.
    fn settle(&mut self, link: Link) -> Result<Appended, Error> {
        let from = self.seen().end;
        match self.search(DO_APPEND, from) {
            Ok(end) => {
                self.unresolved = None;
                self.history.store.settled(DO_APPEND);
                Ok(if end == link { Appended::Done(link) } else { Appended::Conflict(end) })
            }
            Err(error) => self.unknown(link, error),
        }
    }

    /// A batch was written just now. It counts if the floor is still below it, and what it follows still there.
    fn confirm(&mut self, batch: &Batch, link: Link) -> Result<Appended, Error> {
        let before = self.seen().end;
        match self.floor_beside(DO_APPEND, before) {
            Ok(floor) if floor.position <= batch.previous.position => {
                self.seen().end = Known { link, first: batch.previous.position.next() };
                self.unresolved = None;
                self.history.store.settled(DO_APPEND);
                Ok(Appended::Done(link))
            }
            Ok(_) => self.settle(link),
            Err(error) => self.unknown(link, error),
        }
    }

    /// Races for the name after a batch that was seen.
    fn race(&mut self, batch: &Batch, link: Link) -> Result<Appended, Error> {
        let frame = pack(self.history.id, batch);
        let first = batch.previous.position.next();
        let name = self.history.name(first);
        // That nothing was sent now says nothing about what was sent before.
        let again = self.unresolved == Some(link);
        for _ in 0..TRIES {
            let store = &self.history.store;
            match store.create(&name, &frame) {
                Ok(_) => return self.confirm(batch, link),
                Err(Failure::Unmet | Failure::Contested) => {}
                Err(failure @ Failure::Lost(_)) => {
                    let error = store.error(DO_APPEND, failure);
                    return self.unknown(link, error);
                }
                Err(Failure::Unsent(_) | Failure::Refused(_)) if again => return Ok(Appended::Unknown),
                Err(failure @ (Failure::Unsent(_) | Failure::Refused(_))) => {
                    return Err(store.error(DO_APPEND, failure));
                }
            }
            // Another write was first, and it may have been ours.
            match self.history.fetch(DO_APPEND, first) {
                Ok(Some(there)) if there == frame => {
                    // It counts as if it had been written now; others may have gone on from it.
                    return match self.confirm(batch, link)? {
                        Appended::Done(_) => self.settle(link),
                        other @ (Appended::Conflict(_) | Appended::Unknown) => Ok(other),
                    };
                }
                Ok(Some(_)) => return self.settle(link),
                // There was none, or the journal was truncated past this place.
                Ok(None) => match self.floor(DO_APPEND) {
                    Ok(floor) if floor.position <= batch.previous.position => {}
                    Ok(_) => return self.settle(link),
                    Err(error) => return self.unknown(link, error),
                },
                Err(error) => return self.unknown(link, error),
            }
        }
        let error = self.history.store.error(DO_APPEND, Failure::Contested);
        self.unknown(link, error)
    }

    /// Takes over what was read.
    fn learn_read(&self, batches: &[Batch]) -> Result<(), Error> {
        let mut seen = self.seen();
        for batch in batches {
            let known = Known { link: batch.link(self.history.id), first: batch.previous.position.next() };
            let end = seen.end.link;
            let within = batch.previous.position < end.position && end.position <= known.link.position;
            if within && known.link != end {
                let what =
                    format!("the batch that ended at {} ({}) is not there any more", end.position, end.hash);
                let name = self.history.name(known.first);
                return Err(self.history.store.damaged(DO_READ, &name, what));
            }
            if known.link.position >= end.position {
                seen.end = known;
            }
            seen.read = known.link;
        }
        Ok(())
    }
}

impl Journal for S3Journal {
    fn id(&self) -> JournalId {
        self.history.id
    }

    fn end(&self) -> Link {
        self.seen().end.link
    }

    fn refresh(&mut self) -> Result<Link, Error> {
        let old = self.seen().end;
        let end = self.search(DO_READ, old)?;
        self.floor_beside(DO_READ, old)?;
        Ok(end)
    }

    fn wait(&self, after: Position, at_most: Duration) -> Result<(), Error> {
        let until = Instant::now() + at_most;
        loop {
            let found = lock(&self.ahead).as_ref().is_some_and(|(first, _)| *first == after.next());
            if found || after < self.seen().end.link.position {
                return Ok(());
            }
            let now = Instant::now();
            let due = lock(&self.poll).due(after, now);
            std::thread::sleep(due.min(until).saturating_duration_since(now));
            if due >= until {
                return Ok(());
            }
            match self.history.fetch(DO_WAIT, after.next())? {
                Some(bytes) => *lock(&self.ahead) = Some((after.next(), bytes)),
                None => lock(&self.poll).missed(Instant::now()),
            }
        }
    }

    fn append(&mut self, batch: &Batch) -> Result<Appended, Error> {
        if batch.count == 0 || batch.records.len() > BATCH_BYTES_MAX {
            let why = format!("{} events in {} bytes is not a valid batch", batch.count, batch.records.len());
            return Err(invalid(DO_APPEND, why));
        }
        let link = batch.link(self.history.id);
        if batch.previous != self.seen().end.link {
            let settled = self.settle(link)?;
            if settled != Appended::Conflict(batch.previous) {
                return Ok(settled);
            }
        }
        self.race(batch, link)
    }

    fn linger(&self) -> Duration {
        PAUSE_MIN
    }

    fn read(&self, after: Position, limit_bytes: usize) -> Result<Read, Error> {
        let old = *self.seen();
        let known = [Link::default(), old.read, old.end.link];
        let before = known.into_iter().find(|link| link.position == after);
        let mut ahead = lock(&self.ahead).take();
        let gathered = self.history.gather(DO_READ, after, before, limit_bytes, &mut ahead);
        *lock(&self.ahead) = ahead;
        // What was found, and what was not, counts only if the floor was not above it.
        let floor = self.floor(DO_READ)?;
        if after < floor.position {
            return Ok(Read::Truncated(floor.position));
        }
        let mut batches = gathered?;
        if batches.is_empty() {
            let mut end = old.end.link;
            if after > end.position {
                end = self.search(DO_READ, old.end)?;
            }
            if after >= end.position {
                return Ok(Read::End);
            }
            batches = vec![self.history.around(DO_READ, after.next(), floor)?];
        }
        self.learn_read(&batches)?;
        Ok(Read::Batches(batches))
    }

    fn rest(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn space(&self) -> Space {
        Space::Plenty
    }

    fn snapshots(&self) -> Box<dyn Snapshots> {
        Box::new(S3Snapshots::new(&self.history))
    }

    fn truncate(&mut self) -> Result<Position, Error> {
        let older = S3Snapshots::new(&self.history).whole(DO_TRUNCATE)?.into_iter().nth(1);
        let mut floor = self.floor(DO_TRUNCATE)?;
        if let Some(older) = older.filter(|older| older.position > floor.position) {
            // A floor that is not the end of a batch would hide the rest of it.
            let next = older.position.next();
            let ends = match self.history.fetch(DO_TRUNCATE, next)? {
                Some(bytes) => self.history.unpack(DO_TRUNCATE, next, None, &bytes)?.previous == older,
                None => self.refresh()? == older,
            };
            let History { store, keys, id } = &self.history;
            if !ends {
                let what = "no batch ends where this snapshot was taken";
                return Err(store.damaged(DO_TRUNCATE, &keys.snapshot(older.position), what));
            }
            Head::raise(store, keys, DO_TRUNCATE, *id, older)?;
            floor = self.floor(DO_TRUNCATE)?;
        }
        self.history.delete_below(DO_TRUNCATE, floor)?;
        Ok(floor.position)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
