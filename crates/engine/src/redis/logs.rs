//! The output of tasks in Redis: a hash for each task.
//!
//! ```text
//! record: lease 8 | offset 8 | bytes | crc32c 4, of task and all before
//! ```
//! Numbers are little-endian.

use std::sync::Arc;

use orchestrix_core::{LeaseId, TaskId};

use super::keys::Keys;
use super::server::{Command, Script, Server};
use crate::fault::invalid;
use crate::file::TASK_CHUNKS_MAX;
use crate::{Bookmark, Error, LogChunk, LogPlace, Logged, Logs};

static APPEND: Script = Script::new(include_str!("scripts/log_append.lua"));
static MEND: Script = Script::new(include_str!("scripts/log_mend.lua"));
static READ: Script = Script::new(include_str!("scripts/log_read.lua"));
static DELETE: Script = Script::new(include_str!("scripts/log_delete.lua"));

/// What a record adds to its bytes.
const RECORD_BYTES_MORE: usize = 20;
/// Tasks deleted or listed at once. Bounds how long that blocks the server for other clients.
const TASKS_MAX: usize = 1000;

const DO_WRITE: &str = "write task log";
const DO_READ: &str = "read task log";
const DO_LIST: &str = "list task logs";
const DO_DELETE: &str = "delete task logs";

/// The logs of all tasks.
#[derive(Debug)]
pub(super) struct RedisLogs {
    server: Arc<Server>,
    keys: Arc<Keys>,
}

impl RedisLogs {
    pub(super) fn new(server: Arc<Server>, keys: Arc<Keys>) -> Self {
        Self { server, keys }
    }
}

impl Logs for RedisLogs {
    fn append(&self, at: LogPlace, bytes: &[u8]) -> Result<Logged, Error> {
        let LogPlace { task, number, lease, offset } = at;
        let record = encode(task, lease, offset, bytes);
        let mut command = APPEND.with(&[self.keys.log(task), self.keys.logs()]);
        command.arg(task.0).arg(format!("{}@{offset}", lease.0)).arg(&record);
        command.arg(TASK_CHUNKS_MAX).arg(number);
        let answer: Vec<Vec<u8>> = self.server.get(DO_WRITE, &command)?;
        match &answer[..] {
            [word] if word == b"stored" => Ok(Logged::Stored),
            [word] if word == b"conflict" => Ok(Logged::Conflict),
            [word, number, there] if word == b"existed" => {
                let same = |chunk: LogChunk| (chunk.lease, chunk.offset) == (lease, offset);
                if !decode(task, there).is_some_and(same) {
                    let mut command = MEND.with(&[self.keys.log(task)]);
                    let () = self.server.get(DO_WRITE, command.arg(number).arg(there).arg(record))?;
                }
                Ok(Logged::Existed)
            }
            _ => {
                let why = format!("task {task} has reached the limit of {TASK_CHUNKS_MAX} chunks");
                Err(invalid(DO_WRITE, why))
            }
        }
    }

    fn read(&self, task: TaskId, skip: usize, limit_bytes: usize) -> Result<Vec<LogChunk>, Error> {
        let key = self.keys.log(task);
        let mut command = READ.with(std::slice::from_ref(&key));
        command.arg(skip).arg(limit_bytes).arg(RECORD_BYTES_MORE);
        let records: Vec<Vec<u8>> = self.server.get(DO_READ, &command)?;
        let damaged = !records.is_empty();
        let chunks: Vec<_> = records.iter().map_while(|record| decode(task, record)).collect();
        if chunks.is_empty() && damaged {
            let place = format!("{key}/{skip}");
            return Err(self.server.damaged(DO_READ, &place, "checksum mismatch"));
        }
        Ok(chunks)
    }

    fn some_tasks(&self, from: Bookmark, about: usize) -> Result<(Vec<TaskId>, Option<Bookmark>), Error> {
        let mut command = Command::new("SSCAN");
        command.arg(self.keys.logs()).arg(from.0).arg("COUNT").arg(about.min(TASKS_MAX));
        let (next, some): (u64, Vec<u64>) = self.server.get(DO_LIST, &command)?;
        Ok((some.into_iter().map(TaskId).collect(), (next != 0).then_some(Bookmark(next))))
    }

    fn delete(&self, tasks: &[TaskId]) -> Result<(), Error> {
        for some in tasks.chunks(TASKS_MAX) {
            let mut keys = vec![self.keys.logs()];
            keys.extend(some.iter().map(|task| self.keys.log(*task)));
            let mut command = DELETE.with(&keys);
            for task in some {
                command.arg(task.0);
            }
            let () = self.server.get(DO_DELETE, &command)?;
        }
        Ok(())
    }
}

fn encode(task: TaskId, lease: LeaseId, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(bytes.len() + RECORD_BYTES_MORE);
    record.extend(lease.0.to_le_bytes());
    record.extend(offset.to_le_bytes());
    record.extend(bytes);
    record.extend(sum(task, &record).to_le_bytes());
    record
}

fn decode(task: TaskId, record: &[u8]) -> Option<LogChunk> {
    let (body, found) = record.split_last_chunk::<4>()?;
    if sum(task, body) != u32::from_le_bytes(*found) {
        return None;
    }
    let (lease, rest) = body.split_first_chunk::<8>()?;
    let (offset, bytes) = rest.split_first_chunk::<8>()?;
    let (lease, offset) = (LeaseId(u64::from_le_bytes(*lease)), u64::from_le_bytes(*offset));
    Some(LogChunk { lease, offset, bytes: bytes.to_vec() })
}

fn sum(task: TaskId, body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&task.0.to_le_bytes()), body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_another_task_or_with_a_flipped_bit_is_noticed() {
        let record = encode(TaskId(1), LeaseId(2), 3, b"a line");
        let chunk = LogChunk { lease: LeaseId(2), offset: 3, bytes: b"a line".to_vec() };
        assert_eq!(record.len(), 6 + RECORD_BYTES_MORE);
        assert_eq!(decode(TaskId(1), &record), Some(chunk));
        assert_eq!(decode(TaskId(2), &record), None);
        for bit in 0..record.len() * 8 {
            let mut flipped = record.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(TaskId(1), &flipped), None);
        }
    }
}
