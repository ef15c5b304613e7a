//! The output of tasks: one row per chunk, in the order in which they were stored.
//!
//! **Invariant:** `(domain, task, number)` is unique, and a row gets a number only where as many rows are before it. So of
//! two nodes one appends, and no row ever comes to stand before one that was counted. Rows of older versions have no
//! number; they count all the same.

use orchestrix_core::{LeaseId, TaskId};

use crate::fault::invalid;
use crate::file::TASK_CHUNKS_MAX;
use crate::limit::fitting;
use crate::{Bookmark, Error, LogChunk, LogPlace, Logged, Logs};

use super::fault::{Failure, damaged};
use super::server::{Column, Row, Value};
use super::session::Session;

/// The most chunks of one read. Bounds the list of their lengths, which is asked for first.
const READ_CHUNKS_MAX: i64 = 1024;
/// Tasks whose output one statement deletes. Bounds for how long others wait for the connection.
const DELETED_TASKS: usize = 16;

const LOGS: &str = "orchestrix_logs";

/// The logs of a domain.
pub(super) struct SqlLogs {
    session: Session,
}

impl SqlLogs {
    pub(super) fn new(session: Session) -> Self {
        Self { session }
    }

    /// One statement: written if and only if as many chunks of the task are there as the caller knows of.
    fn insert(&self, at: LogPlace, bytes: &[u8]) -> Result<u64, Failure> {
        let LogPlace { task, number, lease, offset } = at;
        let domain = Value::Text(&self.session.home().domain);
        let [task, lease, offset] = [task.0, lease.0, offset].map(|number| Value::Int(number.cast_signed()));
        let number = Value::Int(i64::try_from(number).unwrap_or(i64::MAX));
        let crc = Value::Int(sum([at.task.0, at.lease.0, at.offset], bytes));
        let values = [domain, task, number, lease, offset, crc, Value::Bytes(bytes), domain, task, number];
        self.session.execute(self.session.home().server.statements().append_log, &values)
    }

    /// Deletes the rows of one to [`DELETED_TASKS`] tasks. The statement has always as many places, so that it is prepared
    /// once: the last task stands in for those that are missing.
    fn delete_some(&self, tasks: &[TaskId]) -> Result<(), Failure> {
        let more = ", ?".repeat(DELETED_TASKS - 1);
        let sql = format!("DELETE FROM orchestrix_logs WHERE domain = ? AND task IN (?{more})");
        let mut values = vec![Value::Text(&self.session.home().domain)];
        values.extend(tasks.iter().map(|task| Value::Int(task.0.cast_signed())));
        values.resize(DELETED_TASKS + 1, values[tasks.len()]);
        self.session.execute(&sql, &values).map(drop)
    }

    /// Nothing was written. If the place is taken, its chunk stays, unless it is damaged.
    fn keep_or_mend(&self, at: [u64; 3], bytes: &[u8]) -> Result<Logged, Failure> {
        let sql = "SELECT place, crc, bytes FROM orchestrix_logs
            WHERE domain = ? AND task = ? AND lease = ? AND line_offset = ?";
        let [task, lease, offset] = at.map(|number| Value::Int(number.cast_signed()));
        let values = [Value::Text(&self.session.home().domain), task, lease, offset];
        let rows = self.session.rows(sql, &[Column::Int, Column::Int, Column::Bytes], &values)?;
        let Some(mut row) = rows.into_iter().next() else { return Ok(Logged::Conflict) };
        let (place, stored, there) = (row.int(), row.int(), row.bytes());
        if stored != sum(at, &there) {
            let mend = "UPDATE orchestrix_logs SET crc = ?, bytes = ? WHERE place = ?";
            self.session
                .execute(mend, &[Value::Int(sum(at, bytes)), Value::Bytes(bytes), Value::Int(place)])?;
        }
        Ok(Logged::Existed)
    }
}

impl Logs for SqlLogs {
    fn append(&self, at: LogPlace, bytes: &[u8]) -> Result<Logged, Error> {
        let doing = "write task log";
        let LogPlace { task, number, lease, offset } = at;
        let full = number >= TASK_CHUNKS_MAX;
        // What is there already may be sent again.
        let inserted = if full { Ok(0) } else { self.insert(at, bytes) };
        let logged = match inserted {
            Ok(0) | Err(Failure::Duplicate) => self.keep_or_mend([task.0, lease.0, offset], bytes),
            Ok(_) => Ok(Logged::Stored),
            Err(failure) => Err(failure),
        };
        if full && logged == Ok(Logged::Conflict) {
            let why = format!("task {task} has reached the limit of {TASK_CHUNKS_MAX} chunks");
            return Err(invalid(doing, why));
        }
        logged.map_err(|failure| failure.error(self.session.home(), doing))
    }

    fn read(&self, task: TaskId, skip: usize, limit_bytes: usize) -> Result<Vec<LogChunk>, Error> {
        let doing = "read task log";
        let home = self.session.home();
        let failed = |failure: Failure| failure.error(home, doing);
        let (domain, id) = (Value::Text(&home.domain), Value::Int(task.0.cast_signed()));
        let sql = "SELECT OCTET_LENGTH(bytes) FROM orchestrix_logs
            WHERE domain = ? AND task = ? ORDER BY place LIMIT ? OFFSET ?";
        let skip = Value::Int(i64::try_from(skip).unwrap_or(i64::MAX));
        let heads = self.session.rows(sql, &[Column::Int], &[domain, id, Value::Int(READ_CHUNKS_MAX), skip]);
        let lengths = heads.map_err(failed)?;
        let lengths = lengths.into_iter().map(|mut row| usize::try_from(row.int()).unwrap_or(0));
        let count = Value::Int(i64::try_from(fitting(lengths, limit_bytes)).unwrap_or(1));
        let sql = "SELECT place, lease, line_offset, crc, bytes FROM orchestrix_logs
            WHERE domain = ? AND task = ? ORDER BY place LIMIT ? OFFSET ?";
        let columns = [Column::Int, Column::Int, Column::Int, Column::Int, Column::Bytes];
        let rows = self.session.rows(sql, &columns, &[domain, id, count, skip]).map_err(failed)?;
        let mut chunks = Vec::new();
        for row in rows {
            match chunk(task, row) {
                Ok(chunk) => chunks.push(chunk),
                // What comes before it is good.
                Err(_) if !chunks.is_empty() => break,
                Err(place) => return Err(damaged(home, doing, LOGS, place, "checksum mismatch")),
            }
        }
        Ok(chunks)
    }

    fn some_tasks(&self, from: Bookmark, about: usize) -> Result<(Vec<TaskId>, Option<Bookmark>), Error> {
        let sql =
            "SELECT DISTINCT task FROM orchestrix_logs WHERE domain = ? AND task >= ? ORDER BY task LIMIT ?";
        let home = self.session.home();
        let from = Value::Int(i64::try_from(from.0).unwrap_or(i64::MAX));
        let most = Value::Int(i64::try_from(about).unwrap_or(i64::MAX));
        let rows = self.session.rows(sql, &[Column::Int], &[Value::Text(&home.domain), from, most]);
        let rows = rows.map_err(|failure| failure.error(home, "list task logs"))?;
        let tasks: Vec<_> = rows.into_iter().map(|mut row| TaskId(row.int().cast_unsigned())).collect();
        let next = tasks.last().filter(|_| tasks.len() == about).map(|last| Bookmark(last.0 + 1));
        Ok((tasks, next))
    }

    fn delete(&self, tasks: &[TaskId]) -> Result<(), Error> {
        for some in tasks.chunks(DELETED_TASKS) {
            let mut deleted = self.delete_some(some);
            // Together they may have more rows than a statement has time for.
            if matches!(deleted, Err(Failure::Busy(_) | Failure::Lost(_))) && some.len() > 1 {
                deleted = some.chunks(1).try_for_each(|task| self.delete_some(task));
            }
            deleted.map_err(|failure| failure.error(self.session.home(), "delete task log"))?;
        }
        Ok(())
    }
}

/// The chunk of a row; its place if it is damaged.
fn chunk(task: TaskId, mut row: Row) -> Result<LogChunk, i64> {
    let (place, lease, offset) = (row.int(), row.int().cast_unsigned(), row.int().cast_unsigned());
    let (stored, bytes) = (row.int(), row.bytes());
    if stored != sum([task.0, lease, offset], &bytes) {
        return Err(place);
    }
    Ok(LogChunk { lease: LeaseId(lease), offset, bytes })
}

/// Covers where a chunk stands, too: a row that was moved is not taken for another.
fn sum(place: [u64; 3], bytes: &[u8]) -> i64 {
    let head = place.iter().fold(0, |sum, part| crc32c::crc32c_append(sum, &part.to_le_bytes()));
    i64::from(crc32c::crc32c_append(head, bytes))
}
