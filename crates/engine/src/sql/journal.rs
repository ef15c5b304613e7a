//! The journal: one row per batch.
//!
//! **Invariant:** rows are only ever added by one statement that finds the row they follow, with its hash, and the
//! floor not above it. `(domain, first_position)` is unique, so one batch follows another. Rows go only below the
//! floor, so the newest stays.

use std::fs::File;
use std::io::Read as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use orchestrix_core::Position;

use crate::batch_frame;
use crate::fault::invalid;
use crate::limit::fitting;
use crate::{
    Appended, BATCH_BYTES_MAX, Batch, ChainHash, Error, Journal, JournalId, Link, Read, Snapshots, Space,
};

use super::Home;
use super::deletion::Deletion;
use super::fault::{Failure, damaged, refuse};
use super::server::{Column, Row, Value};
use super::session::Session;
use super::snapshots::SqlSnapshots;

/// The most batches of one read. Bounds the list of their lengths, which is asked for first.
const READ_BATCHES_MAX: i64 = 512;

/// How often an append is sent when the server says that it wrote nothing, but may the next time.
const TRIES: usize = 3;

const BATCHES: &str = "orchestrix_batches";
const JOURNALS: &str = "orchestrix_journals";

/// A handle of the journal of a domain.
pub(super) struct SqlJournal {
    session: Session,
    id: JournalId,
    /// The newest end that this handle has heard of.
    end: Link,
    deletion: Deletion,
}

/// A journal at one moment.
struct State {
    id: JournalId,
    floor: Position,
    end: Link,
    /// The hash of the batch that ends where this handle last saw the end.
    seen: Option<ChainHash>,
}

impl SqlJournal {
    pub(super) fn open(home: &Arc<Home>) -> Result<Self, Error> {
        let doing = "open the journal";
        let session = Session::new(home);
        let failed = |failure: Failure| failure.error(home, doing);
        let mut id = [0; 16];
        random(&mut id).map_err(|error| refuse(doing, home.address.place(), error.to_string()))?;
        let make = "INSERT INTO orchestrix_journals (id, floor_position, domain) VALUES (?, 0, ?)";
        let values = [Value::Bytes(&id), Value::Text(&home.domain)];
        if state(&session, Position(0)).map_err(failed)?.is_none() {
            match session.execute(make, &values) {
                // Another node made it.
                Ok(_) | Err(Failure::Duplicate) => {}
                Err(failure) => return Err(failed(failure)),
            }
        }
        let found = state(&session, Position(0)).map_err(failed)?;
        let found = found.ok_or_else(|| gone(home, doing))?;
        let journal = Self { session, id: found.id, end: Link::default(), deletion: Deletion::default() };
        journal.check(doing, &found)?;
        Ok(Self { end: found.end, ..journal })
    }

    fn home(&self) -> &Home {
        self.session.home()
    }

    /// The journal now, as long as it still is the one that this handle has seen.
    fn state(&self, doing: &str) -> Result<Result<State, Error>, Failure> {
        let Some(found) = state(&self.session, self.end.position)? else {
            return Ok(Err(gone(self.home(), doing)));
        };
        Ok(self.check(doing, &found).map(|()| found))
    }

    fn check(&self, doing: &str, found: &State) -> Result<(), Error> {
        let wrong = |what: String| Err(damaged(self.home(), doing, JOURNALS, found.id, what));
        if found.id != self.id {
            return wrong(format!("it is not the journal {} that was here before", self.id));
        }
        if found.end.position < found.floor {
            return wrong(format!("it ends at {}, below its floor {}", found.end.position, found.floor));
        }
        let Link { position, hash } = self.end;
        if position > found.floor && found.seen != Some(hash) {
            return wrong(format!(
                "the batch that ended at {position} with {hash} is gone; it ends at {}",
                found.end.position
            ));
        }
        Ok(())
    }

    /// One statement: written if and only if the batch follows the end.
    fn insert(&self, batch: &Batch, link: Link) -> Result<u64, Failure> {
        let home = self.home();
        let frame = batch_frame::pack(self.id, batch);
        let previous = int(batch.previous.position);
        let mut values = vec![
            Value::Int(previous + 1),
            Value::Int(int(link.position)),
            Value::Bytes(&batch.previous.hash.0),
            Value::Bytes(&link.hash.0),
            Value::Bytes(&frame),
            Value::Text(&home.domain),
            Value::Bytes(&self.id.0),
            Value::Int(previous),
        ];
        let statements = home.server.statements();
        if batch.previous == Link::default() {
            return self.session.execute(statements.append_first, &values);
        }
        values.extend([Value::Int(previous), Value::Bytes(&batch.previous.hash.0)]);
        self.session.execute(statements.append_next, &values)
    }

    /// Nothing was written just now. It may have been before.
    fn settle(&mut self, doing: &str, link: Link) -> Result<Appended, Error> {
        let found = match self.state(doing) {
            Ok(found) => found?,
            Err(Failure::Refused(why)) => return Err(Failure::Refused(why).error(self.home(), doing)),
            Err(_) => return Ok(Appended::Unknown),
        };
        self.end = found.end;
        Ok(if found.end == link { Appended::Done(link) } else { Appended::Conflict(found.end) })
    }

    /// The last positions and hashes of batches that end at or after a position, and how many bytes each has.
    fn heads(&self, from: Position) -> Result<Vec<(Position, ChainHash, usize)>, Failure> {
        let sql = "SELECT last_position, hash, OCTET_LENGTH(parcel) FROM orchestrix_batches
            WHERE domain = ? AND last_position >= ? ORDER BY last_position LIMIT ?";
        let values =
            [Value::Text(&self.home().domain), Value::Int(int(from)), Value::Int(READ_BATCHES_MAX + 1)];
        let rows = self.session.rows(sql, &[Column::Int, Column::Bytes, Column::Int], &values)?;
        let head = |mut row: Row| {
            let (last, hash) = (position(row.int()), hash(&row.bytes()));
            (
                last,
                hash,
                usize::try_from(row.int())
                    .unwrap_or(0)
                    .saturating_sub(batch_frame::BATCH_FRAME_OVERHEAD_BYTES),
            )
        };
        Ok(rows.into_iter().map(head).collect())
    }

    fn batches(&self, doing: &str, after: Position, to: Position) -> Result<Vec<Batch>, Error> {
        let sql = "SELECT first_position, last_position, previous_hash, hash, parcel FROM orchestrix_batches
            WHERE domain = ? AND last_position > ? AND last_position <= ? ORDER BY last_position";
        let columns = [Column::Int, Column::Int, Column::Bytes, Column::Bytes, Column::Bytes];
        let values = [Value::Text(&self.home().domain), Value::Int(int(after)), Value::Int(int(to))];
        let rows = self.session.rows(sql, &columns, &values);
        let rows = rows.map_err(|failure| failure.error(self.home(), doing))?;
        rows.into_iter().map(|row| self.unpack(doing, row)).collect()
    }

    /// A batch whose row says the same as its frame.
    fn unpack(&self, doing: &str, mut row: Row) -> Result<Batch, Error> {
        let (first, last) = (position(row.int()), position(row.int()));
        let (previous, own) = (hash(&row.bytes()), hash(&row.bytes()));
        let wrong = |what: String| damaged(self.home(), doing, BATCHES, last, what);
        let batch = batch_frame::unpack(self.id, &row.bytes()).map_err(|why| wrong(why.to_string()))?;
        let link = batch.link(self.id);
        if (batch.previous.position.next(), batch.previous.hash) != (first, previous) {
            return Err(wrong(format!("its frame follows {:?}", batch.previous)));
        }
        if link != (Link { position: last, hash: own }) {
            return Err(wrong(format!("its frame ends as {link:?}")));
        }
        Ok(batch)
    }

    /// Batches that follow each other, and what was asked for.
    fn check_chain(
        &self,
        doing: &str,
        before: Option<Link>,
        after: Position,
        found: &[Batch],
    ) -> Result<(), Error> {
        let mut before = before;
        for batch in found {
            let follows = match before {
                Some(link) => batch.previous == link,
                None => batch.previous.position < after,
            };
            if !follows {
                let what = match before {
                    Some(link) => format!("it follows {:?}, but {link:?} is before it", batch.previous),
                    None => {
                        format!("it follows {:?}, and what is between {after} and it is gone", batch.previous)
                    }
                };
                return Err(damaged(self.home(), doing, BATCHES, batch.last(), what));
            }
            before = Some(batch.link(self.id));
        }
        Ok(())
    }
}

impl Journal for SqlJournal {
    fn id(&self) -> JournalId {
        self.id
    }

    fn end(&self) -> Link {
        self.end
    }

    fn refresh(&mut self) -> Result<Link, Error> {
        let doing = "ask for the end of the journal";
        let found = self.state(doing).map_err(|failure| failure.error(self.home(), doing))??;
        self.end = found.end;
        Ok(self.end)
    }

    fn wait(&self, after: Position, at_most: Duration) -> Result<(), Error> {
        let began = Instant::now();
        let sql =
            "SELECT last_position FROM orchestrix_batches WHERE domain = ? AND last_position > ? LIMIT 1";
        loop {
            let values = [Value::Text(&self.home().domain), Value::Int(int(after))];
            let more = self.session.rows(sql, &[Column::Int], &values);
            let more = more.map_err(|failure| failure.error(self.home(), "wait for more of the journal"))?;
            let left = at_most.saturating_sub(began.elapsed());
            if !more.is_empty() || left.is_zero() {
                return Ok(());
            }
            self.session.pause(left);
        }
    }

    fn append(&mut self, batch: &Batch) -> Result<Appended, Error> {
        let doing = "append to the journal";
        let fits = i64::try_from(batch.last().0).is_ok();
        if batch.count == 0 || batch.records.len() > BATCH_BYTES_MAX || !fits {
            let why = format!("{} events in {} bytes is not a valid batch", batch.count, batch.records.len());
            return Err(invalid(doing, why));
        }
        let link = batch.link(self.id);
        let mut tries = 0;
        loop {
            tries += 1;
            match self.insert(batch, link) {
                Ok(0) | Err(Failure::Duplicate) => {
                    let settled = self.settle(doing, link)?;
                    if settled != Appended::Unknown {
                        self.home().settled(doing);
                    }
                    return Ok(settled);
                }
                Ok(_) => {
                    self.end = link;
                    self.home().settled(doing);
                    return Ok(Appended::Done(link));
                }
                Err(Failure::Busy(_)) if tries < TRIES => {}
                Err(Failure::Refused(why)) => return Err(Failure::Refused(why).error(self.home(), doing)),
                // A busy server may be free when the same request comes again.
                Err(Failure::Busy(why) | Failure::Lost(why)) => {
                    self.home().unknown(doing, &why);
                    return Ok(Appended::Unknown);
                }
            }
        }
    }

    fn read(&self, after: Position, limit_bytes: usize) -> Result<Read, Error> {
        let doing = "read the journal";
        let failed = |failure: Failure| failure.error(self.home(), doing);
        let mut heads = self.heads(after).map_err(failed)?;
        let before = match heads.first() {
            Some((last, hash, _)) if *last == after => {
                let link = Link { position: after, hash: *hash };
                heads.remove(0);
                Some(link)
            }
            _ => (after == Position(0)).then(Link::default),
        };
        let count = fitting(heads.iter().map(|(_, _, length)| *length), limit_bytes);
        let found = match count.checked_sub(1) {
            Some(last) => self.batches(doing, after, heads[last].0)?,
            None => Vec::new(),
        };
        // The floor rises before anything goes: if it is not above `after` now, nothing was missing then.
        let state = self.state(doing).map_err(failed)??;
        if after < state.floor {
            return Ok(Read::Truncated(state.floor));
        }
        self.check_chain(doing, before, after, &found)?;
        if found.len() != count {
            let what = format!("{count} batches after {after} were there, and then {}", found.len());
            return Err(damaged(self.home(), doing, BATCHES, after, what));
        }
        Ok(if found.is_empty() { Read::End } else { Read::Batches(found) })
    }

    fn rest(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn space(&self) -> Space {
        Space::Plenty
    }

    fn snapshots(&self) -> Box<dyn Snapshots> {
        Box::new(SqlSnapshots::new(self.session.home(), self.id))
    }

    fn truncate(&mut self) -> Result<Position, Error> {
        let doing = "truncate the journal";
        let failed = |failure: Failure| failure.error(self.home(), doing);
        let older = self.snapshots().list()?.get(1).copied().unwrap_or_default();
        let sql = "SELECT last_position FROM orchestrix_batches
            WHERE domain = ? AND last_position <= ? ORDER BY last_position DESC LIMIT 1";
        let domain = Value::Text(&self.home().domain);
        let rows =
            self.session.rows(sql, &[Column::Int], &[domain, Value::Int(int(older))]).map_err(failed)?;
        if let Some(mut row) = rows.into_iter().next() {
            let floor = Value::Int(row.int());
            let raise = "UPDATE orchestrix_journals SET floor_position = ?
                WHERE domain = ? AND id = ? AND floor_position < ?
                    AND EXISTS (SELECT 1 FROM orchestrix_snapshots s WHERE s.domain = ? AND s.at_position = ?)";
            let id = Value::Bytes(&self.id.0);
            // A replica that took over may not have the snapshot.
            let values = [floor, domain, id, floor, domain, Value::Int(int(older))];
            self.session.execute(raise, &values).map_err(failed)?;
        }
        // Durable by now, and what counts is what it says, not what was asked for.
        let floor = self.state(doing).map_err(failed)??.floor;
        self.deletion.begin(self.session.home(), floor);
        Ok(floor)
    }
}

/// The journal, its newest batch, and the batch that ends at `seen`, at one moment; `None` if there is no journal.
fn state(session: &Session, seen: Position) -> Result<Option<State>, Failure> {
    let sql = "SELECT j.id, j.floor_position, COALESCE(e.last_position, 0), COALESCE(e.hash, j.id),
            COALESCE(s.last_position, 0), COALESCE(s.hash, j.id)
        FROM orchestrix_journals j
        LEFT JOIN orchestrix_batches e ON e.domain = j.domain AND e.last_position =
            (SELECT MAX(n.last_position) FROM orchestrix_batches n WHERE n.domain = j.domain)
        LEFT JOIN orchestrix_batches s ON s.domain = j.domain AND s.last_position = ?
        WHERE j.domain = ?";
    let columns = [Column::Bytes, Column::Int, Column::Int, Column::Bytes, Column::Int, Column::Bytes];
    let values = [Value::Int(int(seen)), Value::Text(&session.home().domain)];
    let Some(mut row) = session.rows(sql, &columns, &values)?.into_iter().next() else { return Ok(None) };
    let (id, floor) = (JournalId(hash(&row.bytes()).0), position(row.int()));
    let (last, own) = (position(row.int()), hash(&row.bytes()));
    let (at, there) = (position(row.int()), hash(&row.bytes()));
    let end = if last == Position(0) { Link::default() } else { Link { position: last, hash: own } };
    Ok(Some(State { id, floor, end, seen: (at > Position(0)).then_some(there) }))
}

fn gone(home: &Home, doing: &str) -> Error {
    damaged(home, doing, JOURNALS, "its row", "the journal is gone")
}

/// Fills bytes with randomness.
pub(super) fn random(bytes: &mut [u8]) -> std::io::Result<()> {
    File::open("/dev/urandom")?.read_exact(bytes)
}

/// Positions are checked to fit when a batch is appended; a larger one is after all of them.
pub(super) fn int(position: Position) -> i64 {
    i64::try_from(position.0).unwrap_or(i64::MAX)
}

pub(super) fn position(number: i64) -> Position {
    Position(u64::try_from(number).unwrap_or(0))
}

/// A hash of another length is no hash of ours, and matches none.
pub(super) fn hash(bytes: &[u8]) -> ChainHash {
    ChainHash(bytes.try_into().unwrap_or([0xff; 16]))
}
