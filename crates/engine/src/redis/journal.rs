//! The journal in Redis: a stream with one entry for each batch, named by its last position.
//!
//! The end is noted a second time, in a hash. Open, refresh and read compare the two, so a server that lost
//! one of them is noticed; a handle remembers what it has seen, so a server that lost both is noticed, too. So does the
//! script that appends; a handle that continues to append lets the server watch both (`watch.rs`).
//!
//! **Invariant:** nothing is appended to a journal that ends before what this handle has seen.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use orchestrix_core::Position;

use super::keys::Keys;
use super::server::{Command, Failure, Script, Server, random};
use super::snapshots::RedisSnapshots;
use super::watch::{Outcome, ShortWay};
use crate::batch_frame::{BATCH_FRAME_OVERHEAD_BYTES, pack, unpack};
use crate::fault::invalid;
use crate::{
    Appended, BATCH_BYTES_MAX, Batch, ChainHash, Error, Journal, JournalId, Link, Read, Snapshots, Space,
};

static MAKE: Script = Script::new(include_str!("scripts/make.lua"));
static APPEND: Script =
    Script::new(concat!(include_str!("scripts/ending.lua"), include_str!("scripts/append.lua")));
static READ: Script =
    Script::new(concat!(include_str!("scripts/ending.lua"), include_str!("scripts/read.lua")));
static RAISE: Script =
    Script::new(concat!(include_str!("scripts/ending.lua"), include_str!("scripts/raise.lua")));
static TRIM: Script =
    Script::new(concat!(include_str!("scripts/ending.lua"), include_str!("scripts/trim.lua")));

/// Batches in one answer. Bounds how long a read blocks the server for other clients.
const READ_BATCHES_MAX: usize = 1000;
/// Entries removed at once, for the same reason.
const TRIM_ENTRIES_MAX: usize = 1000;

const DO_OPEN: &str = "open the journal";
const DO_APPEND: &str = "append to the journal";
const DO_READ: &str = "read the journal";
const DO_WAIT: &str = "wait for the journal";
const DO_TRUNCATE: &str = "truncate the journal";

/// A handle of the journal.
#[derive(Debug)]
pub(super) struct RedisJournal {
    server: Arc<Server>,
    keys: Arc<Keys>,
    id: JournalId,
    seen: Mutex<Seen>,
    /// A batch whose outcome is not known.
    unresolved: Option<Link>,
    /// To the next append.
    short_way: ShortWay,
}

/// The last answers to this handle, to be compared with the next ones.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// What was last called the end. What leads to it was not read yet.
    end: Link,
    /// The last batch that was read.
    read: Link,
    /// The last batch that is known to follow all before it: read, or written by this handle.
    own: Link,
}

/// What a script said about the journal, and then what was asked for.
struct Answer {
    word: Vec<u8>,
    end: Link,
    floor: Position,
    rest: Vec<Vec<u8>>,
}

impl RedisJournal {
    /// Opens the journal that is there. If none is known yet and none is there, makes it.
    pub(super) fn open(
        server: Arc<Server>,
        keys: Arc<Keys>,
        known: Option<JournalId>,
    ) -> Result<Self, Error> {
        let new = if known.is_some() { String::new() } else { JournalId(random()?).to_string() };
        let mut command = MAKE.with(&[keys.meta(), keys.journal()]);
        command.arg(new);
        let answer: Vec<Vec<u8>> = server.get(DO_OPEN, &command)?;
        let id = match &answer[..] {
            [word, id] if word == b"here" => hex(id).map(JournalId),
            _ => {
                return Err(server.damaged(
                    DO_OPEN,
                    &keys.meta(),
                    "it is gone, or only a part of it is there",
                ));
            }
        };
        let id = id.ok_or_else(|| server.damaged(DO_OPEN, &keys.meta(), "the id is no id"))?;
        if let Some(known) = known.filter(|known| *known != id) {
            let what = format!("it was the journal {known} before, and is {id} now");
            return Err(server.damaged(DO_OPEN, &keys.meta(), what));
        }
        let short_way = ShortWay::default();
        let mut journal = Self { server, keys, id, seen: Mutex::default(), unresolved: None, short_way };
        let end = journal.refresh()?;
        journal.seen().own = end;
        Ok(journal)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn script(&self, script: &'static Script) -> Command {
        let mut command = script.with(&[self.keys.meta(), self.keys.journal(), self.keys.snapshots()]);
        command.arg(self.id.to_string());
        command
    }

    /// Understands an answer, and holds it against what was seen before.
    fn heard(&self, doing: &str, answer: Vec<Vec<u8>>) -> Result<Answer, Error> {
        let damaged = |key: String, what: String| Err(self.server.damaged(doing, &key, what));
        let mut parts = answer.into_iter();
        let word = parts.next().unwrap_or_default();
        let rest: Vec<_> = parts.collect();
        let text = |at: usize| rest.get(at).map(|part| String::from_utf8_lossy(part)).unwrap_or_default();
        match &word[..] {
            b"gone" => return damaged(self.keys.meta(), format!("the journal {} is gone", self.id)),
            b"other" => {
                let what = format!("it was the journal {} before, and is {} now", self.id, text(0));
                return damaged(self.keys.meta(), what);
            }
            b"torn" => {
                let what = format!(
                    "the journal ends at {} and its last entry is {}, or has another hash",
                    text(0),
                    text(1)
                );
                return damaged(self.keys.journal(), what);
            }
            _ => {}
        }
        let (position, hash, floor) = (rest.first(), rest.get(1), rest.get(2));
        let noted = (
            position.and_then(|it| number(it)),
            hash.and_then(|it| hex(it)),
            floor.and_then(|it| number(it)),
        );
        let (Some(position), Some(hash), Some(floor)) = noted else {
            return damaged(self.keys.meta(), "what is noted is no position, hash and floor".to_owned());
        };
        let end = Link { position: Position(position), hash: ChainHash(hash) };
        self.learn(doing, end)?;
        Ok(Answer { word, end, floor: Position(floor), rest: rest.into_iter().skip(3).collect() })
    }

    /// A journal only grows.
    fn learn(&self, doing: &str, end: Link) -> Result<(), Error> {
        let mut seen = self.seen();
        let old = seen.end;
        if end.position < old.position || (end.position == old.position && end.hash != old.hash) {
            let what = format!(
                "it ended at {} ({}) before and ends at {} ({}) now: the server has forgotten what it \
                 acknowledged, or another history is in its place",
                old.position, old.hash, end.position, end.hash
            );
            return Err(self.server.damaged(doing, &self.keys.journal(), what));
        }
        seen.end = end;
        Ok(())
    }

    /// The short way, where it is open. Nothing was written if it was dropped.
    fn append_watched(&mut self, batch: &Batch, link: Link) -> Result<Outcome, Failure> {
        // A handle that has seen a later end must not continue from here.
        if self.seen().end != batch.previous || self.unresolved.is_some() {
            self.short_way.give_up();
            return Ok(Outcome::Dropped);
        }
        let Self { server, keys, id, short_way, .. } = self;
        short_way.append(server, keys, *id, batch.previous, (link, || pack(*id, batch)))
    }

    fn append_once(&self, batch: &Batch, link: Link) -> Result<Result<Answer, Error>, Failure> {
        let mut command = self.script(&APPEND);
        command.arg(self.seen().end.position.0);
        for link in [batch.previous, link] {
            command.arg(link.position.0).arg(link.hash.to_string());
        }
        command.arg(pack(self.id, batch));
        Ok(self.heard(DO_APPEND, self.server.ask(&command)?))
    }

    /// The batches of an answer, each held against the one before it.
    fn batches(&self, after: Position, old: Seen, entries: &[Vec<u8>]) -> Result<Vec<Batch>, Error> {
        let known = [Link::default(), old.read, old.own, old.end];
        let mut before = known.into_iter().find(|link| link.position == after);
        let mut batches = Vec::with_capacity(entries.len() / 3);
        for entry in entries.chunks(3) {
            let name = String::from_utf8_lossy(entry.first().map_or(b"", |name| name));
            let place = format!("{}/{name}", self.keys.journal());
            let damaged = |what: String| self.server.damaged(DO_READ, &place, what);
            let [_, hash, frame] = entry else {
                return Err(damaged("part of the entry is missing".to_owned()));
            };
            let batch = unpack(self.id, frame).map_err(|no| damaged(no.to_string()))?;
            let link = batch.link(self.id);
            if name != format!("{}-0", link.position.0) || hex(hash) != Some(link.hash.0) {
                return Err(damaged(format!(
                    "it has the batch that ends at {} ({})",
                    link.position, link.hash
                )));
            }
            let follows = match before {
                Some(before) => batch.previous == before,
                None => batch.previous.position <= after,
            };
            if !follows {
                let (previous, hash) = (batch.previous.position, batch.previous.hash);
                return Err(damaged(format!(
                    "it follows {previous} ({hash}), which is not what is before it"
                )));
            }
            let within = |old: &Link| batch.previous.position < old.position && old.position <= link.position;
            if let Some(other) = [old.own, old.end].iter().find(|old| within(old) && **old != link) {
                let (position, hash) = (other.position, other.hash);
                return Err(damaged(format!(
                    "the batch that ended at {position} ({hash}) is not there any more"
                )));
            }
            before = Some(link);
            batches.push(batch);
        }
        if let Some(last) = before {
            let mut seen = self.seen();
            seen.read = last;
            if last.position > seen.own.position {
                seen.own = last;
            }
        }
        Ok(batches)
    }
}

impl Journal for RedisJournal {
    fn id(&self) -> JournalId {
        self.id
    }

    fn end(&self) -> Link {
        self.seen().end
    }

    fn refresh(&mut self) -> Result<Link, Error> {
        let mut command = self.script(&READ);
        // No batches: only where it ends.
        command.arg(0).arg(0).arg(0).arg(0);
        let answer = self.heard(DO_READ, self.server.get(DO_READ, &command)?)?;
        Ok(answer.end)
    }

    fn wait(&self, after: Position, at_most: Duration) -> Result<(), Error> {
        let until = Instant::now() + at_most;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            // In parts: a connection that broke without a sign is noticed after one of them.
            let part = left.clamp(Duration::from_millis(1), self.server.timeout());
            let mut command = Command::new("XREAD");
            command.arg("COUNT").arg(1).arg("BLOCK").arg(part.as_millis().max(1).to_string());
            command.arg("STREAMS").arg(self.keys.journal()).arg(format!("{}-0", after.0));
            let answer: Result<Option<redis::Value>, Failure> =
                self.server.ask_for(&command, part + self.server.timeout());
            if answer.map_err(|failure| self.server.error(DO_WAIT, failure))?.is_some() {
                return Ok(());
            }
        }
    }

    fn append(&mut self, batch: &Batch) -> Result<Appended, Error> {
        if batch.count == 0 || batch.records.len() > BATCH_BYTES_MAX {
            let why = format!("{} events in {} bytes is not a valid batch", batch.count, batch.records.len());
            return Err(invalid(DO_APPEND, why));
        }
        let link = batch.link(self.id);
        // That nothing was sent now says nothing about what was sent before.
        let again = self.unresolved == Some(link);
        let answer = match self.append_watched(batch, link) {
            Ok(Outcome::Done) => {
                let mut seen = self.seen();
                (seen.end, seen.own) = (link, link);
                return Ok(Appended::Done(link));
            }
            Ok(Outcome::Dropped | Outcome::Denied) => self.append_once(batch, link),
            Err(failure) => Err(failure),
        };
        match answer {
            Ok(answer) => {
                let answer = answer?;
                self.unresolved = None;
                self.server.settled(DO_APPEND);
                if answer.word != b"done" {
                    return Ok(Appended::Conflict(answer.end));
                }
                self.seen().own = link;
                self.short_way.begin(&self.server, &self.keys, self.id);
                Ok(Appended::Done(link))
            }
            Err(Failure::Lost(what)) => {
                self.server.unknown(DO_APPEND, &what);
                self.unresolved = Some(link);
                Ok(Appended::Unknown)
            }
            Err(Failure::Unsent { what, .. } | Failure::Refused { what, .. }) if again => {
                self.server.unknown(DO_APPEND, &what);
                Ok(Appended::Unknown)
            }
            Err(failure @ (Failure::Unsent { .. } | Failure::Refused { .. })) => {
                Err(self.server.error(DO_APPEND, failure))
            }
        }
    }

    fn read(&self, after: Position, limit_bytes: usize) -> Result<Read, Error> {
        let old = *self.seen();
        let mut command = self.script(&READ);
        command.arg(after.0).arg(limit_bytes).arg(BATCH_FRAME_OVERHEAD_BYTES).arg(READ_BATCHES_MAX);
        let answer = self.heard(DO_READ, self.server.get(DO_READ, &command)?)?;
        if after < answer.floor {
            return Ok(Read::Truncated(answer.floor));
        }
        let batches = self.batches(after, old, &answer.rest)?;
        Ok(if batches.is_empty() { Read::End } else { Read::Batches(batches) })
    }

    fn rest(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn space(&self) -> Space {
        Space::Plenty
    }

    fn snapshots(&self) -> Box<dyn Snapshots> {
        Box::new(RedisSnapshots::new(Arc::clone(&self.server), Arc::clone(&self.keys), self.id))
    }

    fn truncate(&mut self) -> Result<Position, Error> {
        let snapshots = RedisSnapshots::new(Arc::clone(&self.server), Arc::clone(&self.keys), self.id);
        let older = snapshots.whole(DO_TRUNCATE)?.get(1).copied().unwrap_or_default();
        let mut command = self.script(&RAISE);
        command.arg(older.0);
        let floor = self.heard(DO_TRUNCATE, self.server.get(DO_TRUNCATE, &command)?)?.floor;
        // The floor is durable: what is below it may go now or later. The entry that ends at the floor stays, and
        // with it always the last one.
        loop {
            let mut command = self.script(&TRIM);
            command.arg(floor.0).arg(TRIM_ENTRIES_MAX);
            let removed: usize = self.server.get(DO_TRUNCATE, &command)?;
            if removed == 0 {
                return Ok(floor);
            }
        }
    }
}

pub(super) fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

pub(super) fn hex(text: &[u8]) -> Option<[u8; 16]> {
    let mut bytes = [0; 16];
    hex::decode_to_slice(text, &mut bytes).ok().map(|()| bytes)
}
