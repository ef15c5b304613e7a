//! The output of tasks in files: an append-only store of chunks with an index in memory.
//!
//! Each appender writes its record and waits; one of the waiting threads syncs for all. A deleted task leaves
//! the index at once, and a tombstone says so to the next start. Files without anything alive are removed,
//! files that are mostly dead are written anew.
//!
//! **Invariant:** a chunk is durable before it is acknowledged, and a deleted one never comes back.

mod compact;
mod index;
mod record;
mod scan;

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use orchestrix_core::TaskId;

use self::index::{Index, Place, Stored};
use self::record::{CHUNK_BYTES_MAX, FILE_HEADER_BYTES, Record};
pub use self::scan::LogRecovery;
use super::names;
use crate::disk::{self, Disk, DiskLock, Lock};
use crate::fault::{damaged, flawed, invalid, io_error, stopped};
use crate::{Bookmark, Cause, Error, LogChunk, LogPlace, Logged, Logs};

/// Bounds how much is written anew at once, and how many files are open for a given amount of output.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Bounds the memory that the index of one task takes: 40 bytes for each.
pub const TASK_CHUNKS_MAX: usize = 1 << 16;

const WRITE: &str = "write task log";
const READ: &str = "read task log";

/// The logs of all tasks, in the files of one folder.
#[derive(Debug)]
pub struct FileLogs {
    disk: Arc<dyn Disk>,
    file_bytes: u64,
    state: Mutex<State>,
    synced: Condvar,
    /// Held while files are rewritten.
    compacting: Mutex<()>,
    recovery: LogRecovery,
    _lock: Box<dyn DiskLock>,
}

#[derive(Debug)]
struct State {
    index: Index,
    /// All before this place is durable.
    durable: Stored,
    /// A sync is running.
    syncing: bool,
    stopped: bool,
    /// The frame being written; kept, so that an append allocates nothing.
    buffer: Vec<u8>,
}

impl FileLogs {
    /// Opens the logs in a folder and reads where every chunk is.
    ///
    /// # Errors
    /// `InUse`, `UnknownFormat`, and I/O errors of the folder. A file that cannot be read is
    /// left out.
    pub fn open(disk: Arc<dyn Disk>) -> Result<Self, Error> {
        Self::open_with(disk, FILE_BYTES_MAX)
    }

    /// As [`FileLogs::open`], with files of at most so many bytes, or of one record.
    ///
    /// # Errors
    /// As [`FileLogs::open`].
    pub fn open_with(disk: Arc<dyn Disk>, file_bytes: u64) -> Result<Self, Error> {
        let lock = match disk.lock(names::LOGS_LOCK) {
            Ok(Lock::Held(lock)) => lock,
            Ok(Lock::Busy { holder }) => {
                let source = Cause::InUse { path: disk.path(""), holder };
                return Err(Error { operation: "lock the task logs".to_owned(), retryable: false, source });
            }
            Err(error) => return Err(io_error(&*disk, "lock", names::LOGS_LOCK, error)),
        };
        let (index, recovery) = scan::scan(&disk)?;
        let durable = index.written();
        let state = State { index, durable, syncing: false, stopped: false, buffer: Vec::new() };
        let logs = Self {
            disk,
            file_bytes,
            state: Mutex::new(state),
            synced: Condvar::new(),
            compacting: Mutex::new(()),
            recovery,
            _lock: lock,
        };
        if let Err(error) = logs.compact() {
            tracing::warn!(%error, "room of deleted task logs is given back with a later deletion");
        }
        Ok(logs)
    }

    /// What opening them found and did.
    #[must_use]
    pub fn recovery(&self) -> &LogRecovery {
        &self.recovery
    }

    /// Whether a record fits the file that grows.
    fn has_room(&self, state: &State, record: Record<'_>) -> bool {
        let bytes = record.frame_bytes() as u64;
        state
            .index
            .growing()
            .is_some_and(|file| file.size <= FILE_HEADER_BYTES as u64 || file.size + bytes <= self.file_bytes)
    }

    /// Begins files until a record fits. Waits for syncs, which lets others in.
    fn make_room<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        record: Record<'_>,
    ) -> Result<MutexGuard<'a, State>, Error> {
        if state.stopped {
            return Err(stopped(WRITE));
        }
        while !self.has_room(&state, record) {
            state = self.commit(state)?;
            // Others may have begun the next file.
            if !self.has_room(&state, record) && state.durable == state.index.written() {
                self.next_file(&mut state)?;
            }
        }
        Ok(state)
    }

    /// Writes a record that fits behind the last one; it is not durable yet.
    fn write(&self, state: &mut State, record: Record<'_>) -> Result<Stored, Error> {
        if state.stopped {
            return Err(stopped(WRITE));
        }
        let State { index, buffer, stopped, .. } = state;
        let file = index.last_mut().expect("a file was begun");
        record.encode(file.seed, buffer);
        let at = file.size;
        if let Err(error) = file.file.write_at(buffer, at) {
            // What was written of it must not stand before the next record.
            let room_may_come = disk::is_full(&error) && file.file.set_len(at).is_ok();
            *stopped = !room_may_come;
            return Err(io_error(&*self.disk, WRITE, &file.name, error));
        }
        file.size += record.frame_bytes() as u64;
        Ok(index.written())
    }

    /// Begins the next file. All before it is durable.
    fn next_file(&self, state: &mut State) -> Result<(), Error> {
        // Nothing was tried yet, so what is there can still be read.
        let Some(number) = state.index.next_number() else {
            let last = names::log(u32::MAX);
            return Err(damaged(&*self.disk, WRITE, &last, 0, "no file can follow this one"));
        };
        match scan::begin_file(&*self.disk, number) {
            Ok(file) => {
                state.index.add_file(file);
                state.durable = state.index.written();
                Ok(())
            }
            Err(error) => {
                state.stopped = !error.retryable;
                Err(error)
            }
        }
    }

    /// Waits until all current writes are durable; syncs for all if no other thread does.
    fn commit<'a>(&'a self, mut state: MutexGuard<'a, State>) -> Result<MutexGuard<'a, State>, Error> {
        let wanted = state.index.written();
        loop {
            if state.stopped {
                return Err(stopped(WRITE));
            }
            if state.durable >= wanted {
                return Ok(state);
            }
            if state.syncing {
                state = self.synced.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let written = state.index.written();
            let current = state.index.last().expect("something was written");
            let (file, name) = (Arc::clone(&current.file), current.name.clone());
            state.syncing = true;
            drop(state);
            let outcome = file.sync_data();
            state = self.state();
            state.syncing = false;
            self.synced.notify_all();
            match outcome {
                Ok(()) => state.durable = state.durable.max(written),
                Err(error) => {
                    state.stopped = true;
                    return Err(io_error(&*self.disk, "sync task log", &name, error));
                }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_chunk(&self, place: Place, file: &index::LogFile) -> Result<LogChunk, Error> {
        let flaw = |flaw| flawed(&*self.disk, READ, &file.name, place.at, flaw);
        let (_, bytes) = file.record(place.at, place.len).map_err(flaw)?;
        Ok(LogChunk { lease: place.lease, offset: place.offset, bytes })
    }
}

impl Logs for FileLogs {
    fn append(&self, at: LogPlace, bytes: &[u8]) -> Result<Logged, Error> {
        if bytes.len() > CHUNK_BYTES_MAX {
            let why = format!("chunk of {} bytes exceeds the limit of {CHUNK_BYTES_MAX}", bytes.len());
            return Err(invalid(WRITE, why));
        }
        let LogPlace { task, number, lease, offset } = at;
        let record = Record::Chunk { task, lease, offset, bytes };
        let mut flawed = None;
        let mut state = self.state();
        loop {
            let there = state.index.place(task, lease, offset);
            if let Some(place) = there.filter(|place| flawed != Some(*place)) {
                let file = state.index.file(place.file).clone();
                drop(self.commit(state)?);
                if file.record(place.at, place.len).is_ok() {
                    return Ok(Logged::Existed);
                }
                flawed = Some(place);
                state = self.state();
                continue;
            }
            let stored = state.index.chunks(task).len();
            if there.is_none() && stored != number {
                return Ok(Logged::Conflict);
            }
            if there.is_none() && stored >= TASK_CHUNKS_MAX {
                let why = format!("task {task} has reached the limit of {TASK_CHUNKS_MAX} chunks");
                return Err(invalid(WRITE, why));
            }
            if self.has_room(&state, record) {
                break;
            }
            // Waiting lets others in, and they may store the same.
            state = self.make_room(state, record)?;
        }
        let end = self.write(&mut state, record)?;
        let len = u32::try_from(bytes.len()).expect("a chunk is at most CHUNK_BYTES_MAX long");
        let at = end.at - record.frame_bytes() as u64;
        let place = Place { lease, offset, file: end.file, at, len };
        let logged = match flawed.filter(|flawed| state.index.place(task, lease, offset) == Some(*flawed)) {
            Some(flawed) => {
                state.index.replace(task, flawed, place);
                Logged::Existed
            }
            None => {
                state.index.add(task, place);
                Logged::Stored
            }
        };
        drop(self.commit(state)?);
        Ok(logged)
    }

    fn read(&self, task: TaskId, skip: usize, limit_bytes: usize) -> Result<Vec<LogChunk>, Error> {
        let state = self.commit(self.state())?;
        let rest = state.index.chunks(task).get(skip..).unwrap_or_default();
        let count = crate::limit::fitting(rest.iter().map(|place| place.len as usize), limit_bytes);
        let wanted = rest[..count].to_vec();
        let mut files = BTreeMap::new();
        for place in &wanted {
            files.entry(place.file).or_insert_with(|| state.index.file(place.file).clone());
        }
        drop(state);
        let mut chunks = Vec::with_capacity(wanted.len());
        for place in wanted {
            match self.read_chunk(place, &files[&place.file]) {
                Ok(chunk) => chunks.push(chunk),
                Err(error) if chunks.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(chunks)
    }

    fn is_whole(&self) -> bool {
        self.recovery.damaged == 0 && self.recovery.cut_bytes == 0
    }

    fn some_tasks(&self, _: Bookmark, _: usize) -> Result<(Vec<TaskId>, Option<Bookmark>), Error> {
        Ok((self.state().index.tasks().collect(), None))
    }

    fn delete(&self, tasks: &[TaskId]) -> Result<(), Error> {
        for some in tasks.chunks(record::TOMBSTONE_TASKS_MAX) {
            let state = self.state();
            if state.stopped {
                return Err(stopped("delete task logs"));
            }
            let known: Vec<_> =
                some.iter().copied().filter(|task| !state.index.chunks(*task).is_empty()).collect();
            if known.is_empty() {
                continue;
            }
            let body = record::tombstone_body(&known);
            let record = Record::Tombstone { body: &body };
            let mut state = self.make_room(state, record)?;
            let end = self.write(&mut state, record)?;
            let len = u32::try_from(body.len()).expect("a tombstone names at most TOMBSTONE_TASKS_MAX tasks");
            state.index.bury(&known, end.at - record.frame_bytes() as u64, len);
            drop(self.commit(state)?);
        }
        self.compact()
    }
}
