//! Snapshots: chunks first, each a row with a checksum, and a row that makes them visible last.
//!
//! **Invariant:** a snapshot is visible only if all its chunks were there when its row was written.

use std::sync::Arc;

use orchestrix_core::Position;

use crate::fault::invalid;
use crate::{Error, JournalId, Link, SNAPSHOT_CHUNK_MAX, SnapshotReader, SnapshotWriter, Snapshots};

use super::Home;
use super::fault::{Failure, damaged, refuse};
use super::journal::{hash, int, position, random};
use super::server::{Column, Value};
use super::session::Session;

/// How many chunks are listed at once to be deleted.
const DELETE_CHUNKS_MAX: i64 = 64;

const SNAPSHOTS: &str = "orchestrix_snapshots";
const CHUNKS: &str = "orchestrix_chunks";

/// The snapshots of the journal of a domain.
pub(super) struct SqlSnapshots {
    home: Arc<Home>,
    session: Session,
    journal: JournalId,
}

impl SqlSnapshots {
    pub(super) fn new(home: &Arc<Home>, journal: JournalId) -> Self {
        Self { home: Arc::clone(home), session: Session::new(home), journal }
    }
}

impl Snapshots for SqlSnapshots {
    fn list(&self) -> Result<Vec<Position>, Error> {
        let sql = "SELECT at_position FROM orchestrix_snapshots WHERE domain = ? ORDER BY at_position DESC";
        let rows = self.session.rows(sql, &[Column::Int], &[Value::Text(&self.home.domain)]);
        let rows = rows.map_err(|failure| failure.error(&self.home, "list snapshots"))?;
        Ok(rows.into_iter().map(|mut row| position(row.int())).collect())
    }

    fn create(&self, at: Link) -> Result<Box<dyn SnapshotWriter>, Error> {
        let mut writing = [0; 16];
        random(&mut writing)
            .map_err(|error| refuse("begin a snapshot", self.home.address.place(), error.to_string()))?;
        let (session, journal) = (Session::new(&self.home), self.journal);
        Ok(Box::new(Writer { session, journal, manifest: Manifest { at, writing, chunks: 0 } }))
    }

    fn open(&self, at: Position) -> Result<Box<dyn SnapshotReader>, Error> {
        let doing = format!("open snapshot {at}");
        let sql = "SELECT hash, writing, chunks, crc FROM orchestrix_snapshots
            WHERE domain = ? AND at_position = ?";
        let columns = [Column::Bytes, Column::Bytes, Column::Int, Column::Int];
        let rows = self.session.rows(sql, &columns, &[Value::Text(&self.home.domain), Value::Int(int(at))]);
        let rows = rows.map_err(|failure| failure.error(&self.home, &doing))?;
        let Some(mut row) = rows.into_iter().next() else {
            return Err(invalid(&doing, format!("no snapshot at position {at}")));
        };
        let link = Link { position: at, hash: hash(&row.bytes()) };
        let manifest = Manifest { at: link, writing: hash(&row.bytes()).0, chunks: row.int() };
        if manifest.crc(self.journal) != row.int() {
            return Err(damaged(&self.home, &doing, SNAPSHOTS, at, "checksum mismatch"));
        }
        let session = Session::new(&self.home);
        Ok(Box::new(Reader { session, manifest, next: 0 }))
    }

    fn prune(&self) -> Result<(), Error> {
        let failed = |failure: Failure| failure.error(&self.home, "prune snapshots");
        let domain = Value::Text(&self.home.domain);
        let complete = self.list()?;
        let kept = complete.get(1).or(complete.first()).copied().unwrap_or_default();
        let kept = Value::Int(int(kept));
        // A replica that took over may lack the ones that were listed, or not reach them, and needs the older ones. MySQL
        // looks into the table that it deletes from only where it makes a table of that first, as DISTINCT does.
        let drop = "DELETE FROM orchestrix_snapshots WHERE domain = ? AND at_position < ?
            AND EXISTS (SELECT 1 FROM orchestrix_batches b WHERE b.domain = ? AND b.last_position >= ?)
            AND EXISTS (SELECT 1 FROM (SELECT DISTINCT s.at_position FROM orchestrix_snapshots s
                WHERE s.domain = ? AND s.at_position = ?) there)";
        self.session.execute(drop, &[domain, kept, domain, kept, domain, kept]).map_err(failed)?;
        // Newer chunks without a row may belong to a writer on another node; after a day they do not.
        let listing = "SELECT c.writing, c.number FROM orchestrix_chunks c
            WHERE c.domain = ? AND (c.at_position < ? OR c.stored_at < CURRENT_TIMESTAMP(6) - INTERVAL '1' DAY)
                AND NOT EXISTS (SELECT 1 FROM orchestrix_snapshots s
                    WHERE s.domain = c.domain AND s.writing = c.writing)
            LIMIT ?";
        let delete = "DELETE FROM orchestrix_chunks WHERE domain = ? AND writing = ? AND number = ?";
        loop {
            let values = [domain, kept, Value::Int(DELETE_CHUNKS_MAX)];
            let rows = self.session.rows(listing, &[Column::Bytes, Column::Int], &values).map_err(failed)?;
            if rows.is_empty() {
                return Ok(());
            }
            for mut row in rows {
                let (writing, number) = (row.bytes(), row.int());
                let values = [domain, Value::Bytes(&writing), Value::Int(number)];
                self.session.execute(delete, &values).map_err(failed)?;
            }
        }
    }
}

/// What makes a snapshot visible.
struct Manifest {
    at: Link,
    /// Tells this snapshot from others of the same position.
    writing: [u8; 16],
    chunks: i64,
}

impl Manifest {
    fn crc(&self, journal: JournalId) -> i64 {
        let sum = crc32c::crc32c(&journal.0);
        let sum = crc32c::crc32c_append(sum, &self.at.position.0.to_le_bytes());
        let sum = crc32c::crc32c_append(sum, &self.at.hash.0);
        let sum = crc32c::crc32c_append(sum, &self.writing);
        i64::from(crc32c::crc32c_append(sum, &self.chunks.to_le_bytes()))
    }

    fn chunk_crc(&self, number: i64, bytes: &[u8]) -> i64 {
        let sum = crc32c::crc32c_append(crc32c::crc32c(&self.writing), &number.to_le_bytes());
        i64::from(crc32c::crc32c_append(sum, bytes))
    }
}

struct Writer {
    session: Session,
    journal: JournalId,
    manifest: Manifest,
}

impl SnapshotWriter for Writer {
    fn chunk(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() > SNAPSHOT_CHUNK_MAX {
            let why = format!("chunk of {} bytes exceeds the limit of {SNAPSHOT_CHUNK_MAX}", bytes.len());
            return Err(invalid("write snapshot", why));
        }
        let sql =
            "INSERT INTO orchestrix_chunks (domain, writing, number, at_position, crc, bytes, stored_at)
            VALUES (?, ?, ?, ?, ?, ?, CURRENT_TIMESTAMP(6))";
        let home = self.session.home();
        let number = self.manifest.chunks;
        let values = [
            Value::Text(&home.domain),
            Value::Bytes(&self.manifest.writing),
            Value::Int(number),
            Value::Int(int(self.manifest.at.position)),
            Value::Int(self.manifest.chunk_crc(number, bytes)),
            Value::Bytes(bytes),
        ];
        self.session.execute(sql, &values).map_err(|failure| failure.error(home, "write snapshot"))?;
        self.manifest.chunks += 1;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        let doing = "finish snapshot";
        let home = self.session.home();
        let Manifest { at, writing, chunks } = &self.manifest;
        // A replica that took over may lack the batch that it stands on. Two snapshots ahead of the journal would have
        // the ones pruned that it can be read with.
        let insert = "INSERT INTO orchestrix_snapshots (hash, writing, chunks, crc, at_position, domain)
            SELECT ?, ?, ?, ?, ?, j.domain FROM orchestrix_journals j
            WHERE j.domain = ? AND j.id = ?
                AND ? = (SELECT COUNT(*) FROM orchestrix_chunks c WHERE c.domain = j.domain AND c.writing = ?)
                AND EXISTS (SELECT 1 FROM orchestrix_batches b
                    WHERE b.domain = j.domain AND b.last_position = ? AND b.hash = ?)";
        let crc = Value::Int(self.manifest.crc(self.journal));
        let (hash, writing) = (Value::Bytes(&at.hash.0), Value::Bytes(writing));
        let (chunks, domain) = (Value::Int(*chunks), Value::Text(&home.domain));
        let at = Value::Int(int(at.position));
        let journal = Value::Bytes(&self.journal.0);
        let values = [hash, writing, chunks, crc, at, domain, journal, chunks, writing, at, hash];
        let replace = "UPDATE orchestrix_snapshots SET hash = ?, writing = ?, chunks = ?, crc = ?
            WHERE at_position = ? AND domain = ?";
        let written = match self.session.execute(insert, &values) {
            // There was one of the same state: the newer takes its place.
            Err(Failure::Duplicate) => self.session.execute(replace, &values[..6]),
            answer => answer,
        };
        match written.map_err(|failure| failure.error(home, doing))? {
            0 => Err(refuse(
                doing,
                home.address.place(),
                "its chunks, its journal, or the batch that it stands on are gone",
            )),
            _ => Ok(()),
        }
    }
}

struct Reader {
    session: Session,
    manifest: Manifest,
    next: i64,
}

impl SnapshotReader for Reader {
    fn link(&self) -> Link {
        self.manifest.at
    }

    fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        if self.next == self.manifest.chunks {
            return Ok(None);
        }
        let doing = format!("read snapshot {}", self.manifest.at.position);
        let home = self.session.home();
        let number = self.next;
        let sql = "SELECT crc, bytes FROM orchestrix_chunks WHERE domain = ? AND writing = ? AND number = ?";
        let values = [Value::Text(&home.domain), Value::Bytes(&self.manifest.writing), Value::Int(number)];
        let rows = self.session.rows(sql, &[Column::Int, Column::Bytes], &values);
        let rows = rows.map_err(|failure| failure.error(home, &doing))?;
        let row = format!("{}/{number}", JournalId(self.manifest.writing));
        let wrong = |what: &str| damaged(home, &doing, CHUNKS, &row, what);
        let Some(mut found) = rows.into_iter().next() else { return Err(wrong("it is gone")) };
        let (crc, bytes) = (found.int(), found.bytes());
        if crc != self.manifest.chunk_crc(number, &bytes) {
            return Err(wrong("checksum mismatch"));
        }
        self.next += 1;
        Ok(Some(bytes))
    }
}
